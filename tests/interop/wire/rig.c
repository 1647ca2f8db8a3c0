/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/interop/wire/rig.h"

char why[400];
const size_t why_bytes = sizeof why;

atomic_int futex_calls;
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

long __wrap_syscall(long number, ...)
{
    va_list args;
    long a[6];

    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_futex)
        futex_calls++;
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int count_fds(void)
{
    int count = 0;

    for (int fd = 0; fd < 4096; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static int fds_before;

int note_fds(void **state)
{
    (void)state;
    fds_before = count_fds();
    return 0;
}

int same_fds(void **state)
{
    const int after = count_fds();

    (void)state;
    if (after != fds_before)
        print_error("%d descriptors before, %d after\n", fds_before, after);
    return after != fds_before;
}

tandem_status check(const td_wire_rules *rules, td_wire_road road, const void *bytes, size_t length, uint32_t fds)
{
    tandem_status status;

    why[0] = 0;
    status = td_wire_check(rules, road, bytes, length, fds, why, why_bytes);
    assert_true(status == TANDEM_OK || status == TANDEM_ERROR_PROTOCOL);
    assert_int_equal(status == TANDEM_OK, why[0] == 0);
    return status;
}

tandem_status check_sample(uint32_t type, const td_wire_message *m)
{
    const td_wire_rules rules = wire_rules(type);

    return check(&rules, wire_road(type), m, m->header.bytes, m->header.fds);
}

void make_pair(td_conn *a, td_conn *b)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(td_conn_adopt(a, fds[0], why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_adopt(b, fds[1], why, why_bytes), TANDEM_OK);
    close(fds[0]);
    close(fds[1]);
}

void open_rings_of(td_ring *daemon, td_ring *client, td_wire_sizes sizes)
{
    int fd;

    assert_int_equal(td_ring_make(daemon, &sizes, &fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_ring_open(client, &sizes, fd, why, why_bytes), TANDEM_OK);
    assert_ptr_not_equal(daemon->shared, client->shared);
    close(fd);
}

void open_rings(td_ring *daemon, td_ring *client)
{
    open_rings_of(daemon, client, td_wire_sizes_here());
}

void close_rings(td_ring *daemon, td_ring *client)
{
    td_ring_close(daemon);
    td_ring_close(client);
    td_ring_close(client); /* twice does nothing */
}
