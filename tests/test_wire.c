/* The wire: what is right passes, what is wrong is refused with its name and value, and whatever a peer does with
 * descriptors, sockets and shared memory, this side has afterwards what it had before.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interop/wire/conn.h"
#include "interop/wire/ids.h"
#include "interop/wire/ring.h"
#include "wire_util.h"

#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif

enum { SCM_MAX = 253, MESSAGES = 1000000, KILLS = 25, CONNECTS = 10000 };

static char why[400];
static const size_t why_bytes = sizeof why;

/* Futexes are the only system calls that interop/wire makes by syscall(): the linker brings them here, poll() too. */
static atomic_int futex_calls;
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

/* What happens while it is asked whether a peer still lives. */
static void (*while_asked)(void);
int __real_poll(struct pollfd *fds, nfds_t count, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout);

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout)
{
    if (while_asked)
        while_asked();
    return __real_poll(fds, count, timeout);
}

static int count_fds(void)
{
    int count = 0;

    for (int fd = 0; fd < 4096; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static int fds_before;

static int note_fds(void **state)
{
    (void)state;
    fds_before = count_fds();
    return 0;
}

static int same_fds(void **state)
{
    const int after = count_fds();

    (void)state;
    if (after != fds_before)
        print_error("%d descriptors before, %d after\n", fds_before, after);
    return after != fds_before;
}

static tandem_status check(const td_wire_rules *rules, td_wire_road road, const void *bytes, size_t length, uint32_t fds)
{
    tandem_status status;

    why[0] = 0;
    status = td_wire_check(rules, road, bytes, length, fds, why, why_bytes);
    assert_true(status == TANDEM_OK || status == TANDEM_ERROR_PROTOCOL);
    assert_int_equal(status == TANDEM_OK, why[0] == 0);
    return status;
}

static tandem_status check_sample(uint32_t type, const td_wire_message *m)
{
    const td_wire_rules rules = wire_rules(type);

    return check(&rules, wire_road(type), m, m->header.bytes, m->header.fds);
}

/* ---- messages ---- */

/* The table of PROTOCOL.md is the one that the code goes by. */
static void test_document(void **state)
{
    const char *root = getenv("TANDEM_SOURCE");
    char path[4096], line[512], name[32], from[32];
    unsigned type, bytes, fds, seen = 0;
    FILE *file;

    (void)state;
    snprintf(path, sizeof path, "%s/interop/PROTOCOL.md", root ? root : ".");
    file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "| %u | %31[A-Z_] | %31[a-z, ] | %u | %u |", &type, name, from, &bytes, &fds) != 5)
            continue;
        assert_string_equal(td_wire_name(type), name);
        assert_int_equal(td_wire_bytes(type), bytes);
        assert_int_equal(td_wire_new((td_wire_type)type, 0).header.fds, fds);
        assert_int_equal(wire_road(type) == TD_WIRE_RING, strstr(from, "ring") != NULL);
        if (!strstr(from, "both"))
            assert_int_equal(wire_road(type) == TD_WIRE_TO_CLIENT, strstr(from, "daemon") != NULL);
        seen++;
    }
    fclose(file);
    assert_int_equal(seen, WIRE_TYPES);
}

/* Each message passes where it belongs, and nowhere else; whole, and not by a byte more or less. */
static void test_right_messages(void **state)
{
    (void)state;
    for (int i = 0; i < WIRE_TYPES; i++) {
        const uint32_t type = wire_types[i];
        const td_wire_message m = wire_sample(type);
        const td_wire_rules rules = wire_rules(type);
        uint8_t longer[sizeof m + 8] __attribute__((aligned(8)));

        assert_int_equal(check_sample(type, &m), TANDEM_OK);
        assert_null(wire_promise(&rules, wire_road(type), &m, m.header.bytes));
        for (int road = 1; road <= 4; road *= 2)
            for (int ready = 0; ready < 2; ready++) {
                td_wire_rules other = rules;
                const bool greets = type == TD_WIRE_HELLO || type == TD_WIRE_WELCOME;
                const bool anytime = type == TD_WIRE_ERROR || type == TD_WIRE_BYE;
                const bool fits = road == (int)wire_road(type) && (anytime || greets == !ready);

                other.ready = ready;
                if (type == TD_WIRE_BYE && road == TD_WIRE_TO_DAEMON)
                    continue; /* see below */
                assert_int_equal(check(&other, (td_wire_road)road, &m, m.header.bytes, m.header.fds) == TANDEM_OK,
                                 fits);
            }
        for (size_t length = 0; length < m.header.bytes; length++) {
            void *exact = malloc(length ? length : 1);

            memcpy(exact, &m, length);
            assert_int_equal(check(&rules, wire_road(type), exact, length, m.header.fds), TANDEM_ERROR_PROTOCOL);
            free(exact);
        }
        memset(longer, 0, sizeof longer);
        memcpy(longer, &m, m.header.bytes);
        assert_int_equal(check(&rules, wire_road(type), longer, m.header.bytes + 1u, m.header.fds),
                         type == TD_WIRE_JOB || type == TD_WIRE_SUBMITTED || type == TD_WIRE_CANCEL
                             ? TANDEM_OK /* a slot is longer than what it holds */
                             : TANDEM_ERROR_PROTOCOL);
        for (uint32_t fds = 0; fds < 4; fds++)
            assert_int_equal(check(&rules, wire_road(type), &m, m.header.bytes, fds) == TANDEM_OK, fds == m.header.fds);
    }
}

static void test_bye_to_daemon(void **state)
{
    td_wire_message m = td_wire_new(TD_WIRE_BYE, 0);
    td_wire_rules rules = wire_rules(TD_WIRE_BYE);

    (void)state;
    m.bye.reason = TD_WIRE_BYE_DONE;
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.bye, 0), TANDEM_OK);
    m.bye.reason = TD_WIRE_BYE_STOPPING;
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.bye, 0), TANDEM_ERROR_PROTOCOL);
    rules.ready = false;
    m.bye.reason = TD_WIRE_BYE_DONE;
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.bye, 0), TANDEM_ERROR_PROTOCOL);
}

/* A number at an offset of a right message is replaced: the refusal names the field, and the value where there is one
 * to be named. */
typedef struct refusal {
    uint16_t type, at;
    uint8_t width;
    uint64_t value;
    const char *names, *says;
} refusal;

static const refusal refusals[] = {
    {TD_WIRE_PING, 0, 4, 17, "PING.header.bytes", "17"},
    {TD_WIRE_PING, 4, 2, 0, "message.header.type", "0"},
    {TD_WIRE_PING, 4, 2, 12, "message.header.type", "12"},
    {TD_WIRE_PING, 4, 2, 65535, "message.header.type", "65535"},
    {TD_WIRE_PING, 4, 2, TD_WIRE_HELLO, "HELLO.header.type", "behind WELCOME"},
    {TD_WIRE_PING, 6, 2, 1, "PING.header.fds", "1"},
    {TD_WIRE_PING, 8, 4, 0, "PING.header.serial", "0"},
    {TD_WIRE_PING, 8, 4, WIRE_SERIAL + 1, "PING.header.serial", "8"},
    {TD_WIRE_PING, 8, 4, WIRE_SERIAL - 1, "PING.header.serial", "6"},
    {TD_WIRE_PING, 12, 4, 5, "PING.header.reserved", "5"},
    {TD_WIRE_HELLO, 16, 4, 0x4d444e55, "HELLO.magic", "1296322133"},
    {TD_WIRE_HELLO, 20, 2, 0, "HELLO.version_min", "0"},
    {TD_WIRE_HELLO, 20, 2, 2, "HELLO.version_min", "2"},
    {TD_WIRE_HELLO, 120, 4, 3, "HELLO.share", "3"},
    {TD_WIRE_HELLO, 124, 4, 3, "HELLO.backend", "3"},
    {TD_WIRE_HELLO, 128, 4, 33, "HELLO.frames_in_flight", "33"},
    {TD_WIRE_HELLO, 132, 4, 2, "HELLO.timing", "2"},
    {TD_WIRE_HELLO, 136, 8, 60000000001, "HELLO.wait_bound_ns", "60000000001"},
    {TD_WIRE_HELLO, 144, 1, 0x1b, "HELLO.name", "0x1b"},
    {TD_WIRE_HELLO, 145, 1, 0xff, "HELLO.name", "0xff"},
    {TD_WIRE_HELLO, 207, 1, 'x', "HELLO.name", "behind its end"},
    {TD_WIRE_HELLO, 208, 4, 2, "HELLO.job_class", "2"},
    {TD_WIRE_HELLO, 255, 1, 9, "HELLO.reserved", "9"},
    {TD_WIRE_MEM_CREATE, 6, 2, 0, "MEM_CREATE.header.fds", "0"},
    {TD_WIRE_MEM_CREATE, 6, 2, 2, "MEM_CREATE.header.fds", "2"},
    {TD_WIRE_MEM_CREATE, 16, 4, 0, "MEM_CREATE.kind", "0"},
    {TD_WIRE_MEM_CREATE, 16, 4, 3, "MEM_CREATE.kind", "3"},
    {TD_WIRE_MEM_CREATE, 20, 4, 1, "MEM_CREATE.dedicated", "1"},
    {TD_WIRE_MEM_CREATE, 24, 8, 0, "MEM_CREATE.bytes", "0"},
    {TD_WIRE_MEM_CREATE, 24, 8, 65537, "MEM_CREATE.bytes", "65537"},
    {TD_WIRE_MEM_CREATE, 24, 8, UINT64_MAX, "MEM_CREATE.bytes", "18446744073709551615"},
    {TD_WIRE_MEM_CREATE, 24, 8, 61441, "MEM_CREATE.offset_bytes", "61441"},
    {TD_WIRE_MEM_CREATE, 32, 8, 65537, "MEM_CREATE.allocation_bytes", "65537"},
    {TD_WIRE_MEM_CREATE, 32, 8, WIRE_MEM_BYTES + 4096, "MEM_CREATE.allocation_bytes", "1073745920"},
    {TD_WIRE_MEM_CREATE, 40, 8, 4095, "MEM_CREATE.offset_bytes", "4095"},
    {TD_WIRE_MEM_CREATE, 40, 8, 0xfffffffffffff000, "MEM_CREATE.offset_bytes", "18446744073709547520"},
    {TD_WIRE_MEM_CREATE, 40, 8, 61440, "MEM_CREATE.offset_bytes", "61440"},
    {TD_WIRE_MEM_CREATE, 63, 1, 1, "MEM_CREATE.reserved", "1"},
    {TD_WIRE_MEM_DESTROY, 16, 8, 0, "MEM_DESTROY.id", "0x0"},
    {TD_WIRE_MEM_DESTROY, 16, 8, 1ull << 56 | 1ull << 24, "MEM_DESTROY.id", "0x100000001000000"},
    {TD_WIRE_MEM_DESTROY, 16, 8, 1ull << 56 | 1, "MEM_DESTROY.id", "0x100000000000001"},
    {TD_WIRE_MEM_DESTROY, 16, 8, 1ull << 56 | 1ull << 24 | (WIRE_MEMS + 1), "MEM_DESTROY.id", "0x100000001000041"},
    {TD_WIRE_MEM_DESTROY, 16, 8, 2ull << 56 | 1ull << 24 | 1, "MEM_DESTROY.id", "id of a mem"},
    {TD_WIRE_TIMELINE_DESTROY, 16, 8, 1ull << 56 | 1ull << 24 | 1, "TIMELINE_DESTROY.id", "id of a timeline"},
    {TD_WIRE_MODEL_DESTROY, 16, 8, 3ull << 56 | 1ull << 24 | 9, "MODEL_DESTROY.id", "id of a model"},
    {TD_WIRE_TIMELINE_CREATE, 16, 4, 0, "TIMELINE_CREATE.kind", "0"},
    {TD_WIRE_TIMELINE_CREATE, 16, 4, 3, "TIMELINE_CREATE.kind", "3"},
    {TD_WIRE_TIMELINE_CREATE, 20, 4, 2, "TIMELINE_CREATE.signaller", "2"},
    {TD_WIRE_TIMELINE_CREATE, 40, 8, 1, "TIMELINE_CREATE.reserved", "8"},
    {TD_WIRE_MODEL_LOAD, 16, 1, 0, "MODEL_LOAD.path", "behind its end"},
    {TD_WIRE_MODEL_LOAD, 16, 4, 0x2f2e2e2f, "MODEL_LOAD.path", "'..'"},
    {TD_WIRE_MODEL_LOAD, 16, 3, 0x2f2e2e, "MODEL_LOAD.path", "'..'"},
    {TD_WIRE_MODEL_LOAD, 40, 4, 0x2e2e2f, "MODEL_LOAD.path", "'..'"},
    {TD_WIRE_MODEL_TENSOR, 16, 8, 0, "MODEL_TENSOR.model", "0x0"},
    {TD_WIRE_MODEL_TENSOR, 24, 1, '\n', "MODEL_TENSOR.name", "0x0a"},
    {TD_WIRE_STATS, 20, 4, 1, "STATS.reserved", "1"},
    {TD_WIRE_JOB, 0, 4, 2048, "JOB.header.bytes", "2048"},
    {TD_WIRE_JOB, 8, 4, 1, "JOB.header.serial", "1"},
    {TD_WIRE_JOB, 16, 8, WIRE_TICKET + 1, "JOB.ticket", "10"},
    {TD_WIRE_JOB, 16, 8, WIRE_TICKET - 1, "JOB.ticket", "8"},
    {TD_WIRE_JOB, 32, 4, 1071, "JOB.struct_bytes", "1071"},
    {TD_WIRE_JOB, 368, 1, 1, "JOB.op", "must be 0"},
    {TD_WIRE_JOB, 36, 4, 0, "JOB.operation", "0"},
    {TD_WIRE_JOB, 36, 4, 99, "JOB.operation", "99"},
    {TD_WIRE_JOB, 40, 8, 0, "JOB.wait.value", "41"},
    {TD_WIRE_JOB, 40, 8, 1ull << 56 | 1ull << 24 | 1, "JOB.wait.timeline", "0x100000001000001"},
    {TD_WIRE_JOB, 56, 8, 0, "JOB.signal.value", "42"},
    {TD_WIRE_JOB, 56, 8, 2ull << 56 | 1, "JOB.signal.timeline", "0x200000000000001"},
    {TD_WIRE_JOB, 80, 8, 0, "JOB.q.mem", "0x0"},
    {TD_WIRE_JOB, 88, 8, 4097, "JOB.q.offset_bytes", "4097"},
    {TD_WIRE_JOB, 88, 8, UINT64_MAX - 1, "JOB.q ", "18446744073709551614"},
    {TD_WIRE_JOB, 88, 8, WIRE_MEM_BYTES, "JOB.q ", "1073741824"},
    {TD_WIRE_JOB, 96, 4, 0, "JOB.q.dtype", "0"},
    {TD_WIRE_JOB, 96, 4, TANDEM_DTYPE_Q6_K + 1, "JOB.q.dtype", "14"},
    {TD_WIRE_JOB, 96, 4, TANDEM_DTYPE_Q4_K, "JOB.q ", "beyond"},
    {TD_WIRE_JOB, 100, 4, 1, "JOB.q.reserved", "1"},
    {TD_WIRE_JOB, 104, 8, UINT64_MAX, "JOB.q.stride_batch", "-1"},
    {TD_WIRE_JOB, 112, 8, 1ull << 63, "JOB.q.stride_head", "-9223372036854775808"},
    {TD_WIRE_JOB, 120, 8, UINT64_MAX - 7, "JOB.q.stride_row", "-8"},
    {TD_WIRE_JOB, 104, 8, INT64_MAX, "JOB.q ", "9223372036854775807"},
    {TD_WIRE_JOB, 112, 8, 1ull << 62, "JOB.q ", "4611686018427387904"},
    {TD_WIRE_JOB, 168, 8, 0x0a0a0a0a0a0a0a0a, "JOB.k ", "723401728380766730"},
    {TD_WIRE_JOB, 200, 8, -2ull, "JOB.v.stride_batch", "-2"},
    {TD_WIRE_JOB, 224, 8, 3ull << 56 | 1ull << 24 | 1, "JOB.o.mem", "0x300000001000001"},
    {TD_WIRE_JOB, 288, 4, TANDEM_DTYPE_Q6_K + 1, "JOB.lse.dtype", "14"},
    {TD_WIRE_JOB, 288, 4, TANDEM_DTYPE_NONE, "JOB.lse", "must be 0"},
    {TD_WIRE_JOB, 320, 4, 0, "JOB.q.shape[0]", "0"},
    {TD_WIRE_JOB, 320, 4, UINT32_MAX, "JOB.q.shape[0]", "4294967295"},
    {TD_WIRE_JOB, 320, 4, 1 << 30, "JOB.q ", "beyond"},
    {TD_WIRE_JOB, 324, 4, 0, "JOB.q.shape[1]", "0"},
    {TD_WIRE_JOB, 328, 4, 0, "JOB.k.shape[1]", "0"},
    {TD_WIRE_JOB, 332, 4, 0, "JOB.q.shape[2]", "0"},
    {TD_WIRE_JOB, 332, 4, 1 << 30, "JOB.q ", "beyond"},
    {TD_WIRE_JOB, 336, 4, 0x40000001, "JOB.k.shape[2]", "1073741825"},
    {TD_WIRE_JOB, 340, 4, 0, "JOB.q.shape[3]", "0"},
    {TD_WIRE_SUBMITTED, 16, 8, 0, "SUBMITTED.timeline", "0x0"},
    {TD_WIRE_CANCEL, 16, 8, 0, "CANCEL.ticket", "0"},
    {TD_WIRE_CANCEL, 16, 8, WIRE_TICKET, "CANCEL.ticket", "9"},
    {TD_WIRE_WELCOME, 8, 4, WIRE_SERIAL, "WELCOME.header.serial", "7"},
    {TD_WIRE_WELCOME, 8, 4, 0, "WELCOME.header.serial", "0"},
    {TD_WIRE_WELCOME, 16, 4, 0, "WELCOME.magic", "0"},
    {TD_WIRE_WELCOME, 20, 2, 2, "WELCOME.version", "2"},
    {TD_WIRE_WELCOME, 22, 2, 1, "WELCOME.reserved0", "1"},
    {TD_WIRE_WELCOME, 24, 8, 4, "WELCOME.features", "0x4"},
    {TD_WIRE_WELCOME, 120, 4, TD_WIRE_SHARE_HOST, "WELCOME.share", "1"},
    {TD_WIRE_WELCOME, 132, 4, 0, "WELCOME.frames_in_flight", "0"},
    {TD_WIRE_WELCOME, 136, 4, 1 << 24, "WELCOME.mems", "16777216"},
    {TD_WIRE_WELCOME, 140, 4, UINT32_MAX, "WELCOME.timelines", "4294967295"},
    {TD_WIRE_WELCOME, 144, 4, 1 << 24, "WELCOME.models", "16777216"},
    {TD_WIRE_WELCOME, 148, 4, 0, "WELCOME.requests", "0"},
    {TD_WIRE_WELCOME, 152, 8, 1ull << 63, "WELCOME.mem_bytes", "9223372036854775808"},
    {TD_WIRE_WELCOME, 168, 4, 0, "WELCOME.rung", "0"},
    {TD_WIRE_WELCOME, 168, 4, 6, "WELCOME.rung", "6"},
    {TD_WIRE_WELCOME, 172, 4, 3, "WELCOME.reserved1", "3"},
    {TD_WIRE_WELCOME, 176, 1, 7, "WELCOME.name", "0x07"},
    {TD_WIRE_WELCOME, 255, 1, 1, "WELCOME.reserved", "1"},
    {TD_WIRE_DONE, 16, 8, 4ull << 56 | 1ull << 24 | 1, "DONE.id", "0x400000001000001"},
    {TD_WIRE_DONE, 16, 8, 1, "DONE.id", "0x1"},
    {TD_WIRE_ERROR, 8, 4, WIRE_SERIAL, "ERROR.header.serial", "7"},
    {TD_WIRE_ERROR, 16, 4, 0, "ERROR.status", "0"},
    {TD_WIRE_ERROR, 16, 4, 1, "ERROR.status", "1"},
    {TD_WIRE_ERROR, 16, 4, (uint32_t)-9, "ERROR.status", "-9"},
    {TD_WIRE_ERROR, 20, 4, 1, "ERROR.reserved", "1"},
    {TD_WIRE_ERROR, 24, 8, 3, "ERROR.ticket", "3"},
    {TD_WIRE_ERROR, 431, 1, 1, "ERROR.text", "behind its end"},
    {TD_WIRE_INFO_REPLY, 16, 4, 0, "INFO_REPLY.backend", "0"},
    {TD_WIRE_INFO_REPLY, 20, 4, 6, "INFO_REPLY.rung", "6"},
    {TD_WIRE_INFO_REPLY, 144, 1, 0x80, "INFO_REPLY.rung_reason", "0x80"},
    {TD_WIRE_INFO_REPLY, 400, 1, 0x7f, "INFO_REPLY.device", "0x7f"},
    {TD_WIRE_INFO_REPLY, 559, 1, 1, "INFO_REPLY.isa", "behind its end"},
    {TD_WIRE_TENSOR, 16, 8, 0, "TENSOR.view.mem", "0x0"},
    {TD_WIRE_TENSOR, 32, 4, 0, "TENSOR.view.dtype", "0"},
    {TD_WIRE_TENSOR, 64, 8, 0, "TENSOR.shape", "0"},
    {TD_WIRE_TENSOR, 88, 8, 1ull << 31, "TENSOR.shape", "2147483648"},
    {TD_WIRE_TENSOR, 56, 8, INT64_MAX, "TENSOR.view ", "4096"},
    {TD_WIRE_STATS_REPLY, 16, 4, 17, "STATS_REPLY.total", "17"},
    {TD_WIRE_STATS_REPLY, 20, 4, UINT32_MAX, "STATS_REPLY.first", "4294967295"},
    {TD_WIRE_STATS_REPLY, 24, 4, 17, "STATS_REPLY.count", "17"},
    {TD_WIRE_STATS_REPLY, 24, 4, 1, "STATS_REPLY.rows", "18"},
    {TD_WIRE_STATS_REPLY, 28, 4, 1, "STATS_REPLY.reserved", "1"},
    {TD_WIRE_STATS_REPLY, 52, 4, 2, "STATS_REPLY.rows.job_class", "2"},
    {TD_WIRE_STATS_REPLY, 56, 1, 0xc0, "STATS_REPLY.rows.name", "0xc0"},
    {TD_WIRE_STATS_REPLY, 2079, 1, 1, "STATS_REPLY.rows", "1"},
    {TD_WIRE_RESET, 8, 4, 1, "RESET.header.serial", "1"},
    {TD_WIRE_RESET, 16, 4, 0, "RESET.epoch", "0"},
    {TD_WIRE_RESET, 20, 4, 0, "RESET.status", "0"},
    {TD_WIRE_RESET, 24, 8, WIRE_TICKET, "RESET.last_ticket", "9"},
    {TD_WIRE_RESET, 271, 1, 1, "RESET.text", "behind its end"},
    {TD_WIRE_BYE, 16, 4, 0, "BYE.reason", "0"},
    {TD_WIRE_BYE, 16, 4, 5, "BYE.reason", "5"},
    {TD_WIRE_BYE, 20, 4, 1, "BYE.reserved", "1"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        td_wire_message m = wire_sample(r->type);
        const td_wire_rules rules = wire_rules(r->type);
        const uint32_t length = m.header.bytes, fds = m.header.fds;

        memcpy((char *)&m + r->at, &r->value, r->width);
        if (check(&rules, wire_road(r->type), &m, length, fds) == TANDEM_OK || strncmp(why, r->names, strlen(r->names)) ||
            !strstr(why, r->says)) {
            print_error("refusal %zu: wanted %s and %s, got '%s'\n", i, r->names, r->says, why);
            fail();
        }
    }
}

/* What depends on what was agreed on. */
static void test_agreements(void **state)
{
    td_wire_rules rules = wire_rules(TD_WIRE_PING);
    td_wire_message m;

    (void)state;
    rules.features = 0;
    for (int i = 0; i < WIRE_TYPES; i++) {
        const uint32_t type = wire_types[i];
        const bool optional = (type >= TD_WIRE_MODEL_LOAD && type <= TD_WIRE_STATS) || type == TD_WIRE_TENSOR ||
                              type == TD_WIRE_STATS_REPLY;

        if (type == TD_WIRE_HELLO || type == TD_WIRE_WELCOME)
            continue;
        m = wire_sample(type);
        assert_int_equal(check(&rules, wire_road(type), &m, m.header.bytes, m.header.fds) == TANDEM_OK, !optional);
        assert_int_equal(strstr(why, "needs feature") != NULL, optional);
    }

    rules = wire_rules(TD_WIRE_MEM_CREATE);
    m = wire_sample(TD_WIRE_MEM_CREATE);
    m.mem_create.kind = TD_WIRE_MEM_OPAQUE;
    m.mem_create.dedicated = 1;
    m.mem_create.offset_bytes = 100; /* any, other than a slab's */
    m.mem_create.allocation_bytes = 65537;
    assert_int_equal(check_sample(TD_WIRE_MEM_CREATE, &m), TANDEM_OK);
    rules.share = TD_WIRE_SHARE_HOST;
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.mem_create, 1), TANDEM_ERROR_PROTOCOL);
    assert_non_null(strstr(why, "MEM_CREATE.kind is 2, must be 1"));
    m = wire_sample(TD_WIRE_TIMELINE_CREATE);
    m.timeline_create.kind = TD_WIRE_TIMELINE_OPAQUE;
    assert_int_equal(check_sample(TD_WIRE_TIMELINE_CREATE, &m), TANDEM_OK);
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.timeline_create, 1), TANDEM_ERROR_PROTOCOL);
    rules.share = TD_WIRE_SHARE_NONE;
    for (int i = 0; i < 3; i++) {
        const uint32_t type = (uint32_t[]){TD_WIRE_MEM_CREATE, TD_WIRE_TIMELINE_CREATE, TD_WIRE_JOB}[i];

        m = wire_sample(type);
        assert_int_equal(check(&rules, wire_road(type), &m, m.header.bytes, m.header.fds), TANDEM_ERROR_PROTOCOL);
        assert_non_null(strstr(why, "share"));
    }

    /* Points that nobody asked for, an lse that is not wanted, a client that is newer, serials that are used up. */
    m = wire_sample(TD_WIRE_JOB);
    m.job.job.wait = m.job.job.signal = (tandem_point){0, 0};
    memset(&m.job.job.op.attention.lse, 0, sizeof(tandem_view));
    assert_int_equal(check_sample(TD_WIRE_JOB, &m), TANDEM_OK);
    m = wire_sample(TD_WIRE_HELLO);
    m.hello.version_max = 9;
    m.hello.features = UINT64_MAX;
    m.hello.reserved[0] = 1;
    assert_int_equal(check_sample(TD_WIRE_HELLO, &m), TANDEM_OK);
    assert_int_equal(td_wire_version(m.hello.version_min, m.hello.version_max), 1);
    assert_int_equal(td_wire_version(2, 9), 0);
    m = wire_sample(TD_WIRE_PING);
    rules = wire_rules(TD_WIRE_PING);
    rules.next_serial = m.header.serial = UINT32_MAX;
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.header, 0), TANDEM_OK);
    td_wire_took(&rules, TD_WIRE_TO_DAEMON, &m);
    m.header.serial = 0;
    assert_int_equal(check(&rules, TD_WIRE_TO_DAEMON, &m, sizeof m.header, 0), TANDEM_ERROR_PROTOCOL);
}

static uint64_t at(const void *bytes, size_t offset, size_t width)
{
    uint64_t value = 0;

    for (size_t i = 0; i < width; i++)
        value |= (uint64_t)((const uint8_t *)bytes)[offset + i] << 8 * i;
    return value;
}

/* A job comes out as it went in, and lies where PROTOCOL.md says. */
static void test_job_layout(void **state)
{
    td_wire_message m = td_wire_new(TD_WIRE_JOB, 0), copy;
    tandem_job *job = &m.job.job;
    uint8_t *raw = (uint8_t *)&m;
    uint64_t next = 1;

    (void)state;
    for (size_t i = 16; i < sizeof m.job; i++) {
        next = next * 6364136223846793005u + 1442695040888963407u;
        raw[i] = (uint8_t)(next >> 33);
    }
    memcpy(&copy, &m, sizeof m.job);
    assert_memory_equal(&copy.job.job, job, sizeof *job);
    assert_int_equal(at(raw, 0, 4), sizeof(td_wire_job));
    assert_int_equal(at(raw, 4, 2), TD_WIRE_JOB);
    assert_true(at(raw, 16, 8) == m.job.ticket && at(raw, 24, 8) == m.job.submit_ns);
    assert_true(at(raw, 40, 8) == job->wait.timeline && at(raw, 48, 8) == job->wait.value);
    assert_true(at(raw, 56, 8) == job->signal.timeline && at(raw, 64, 8) == job->signal.value);
    assert_true(at(raw, 72, 8) == job->deadline_ns);
    for (int v = 0; v < 5; v++) {
        const tandem_view *view = &job->op.attention.q + v;
        const size_t base = 80 + 48 * (size_t)v;

        assert_true(at(raw, base, 8) == view->mem && at(raw, base + 8, 8) == view->offset_bytes);
        assert_true(at(raw, base + 16, 4) == view->dtype && at(raw, base + 20, 4) == view->reserved);
        assert_true(at(raw, base + 24, 8) == (uint64_t)view->stride_batch &&
                    at(raw, base + 32, 8) == (uint64_t)view->stride_head &&
                    at(raw, base + 40, 8) == (uint64_t)view->stride_row);
    }
    assert_true(at(raw, 320, 4) == job->op.attention.batch && at(raw, 340, 4) == job->op.attention.head_dim);
    assert_true(at(raw, 352, 4) == job->op.attention.precision && at(raw, 360, 4) == job->op.attention.granularity);
}

static void test_view_end(void **state)
{
    tandem_view v = {.dtype = TANDEM_DTYPE_F16};
    uint64_t end, dice = 88172645463325252;

    (void)state;
    for (int i = 0; i < 20000; i++) { /* against the last element's place, by loops */
        uint32_t n[4];
        uint64_t last = 0;

        for (int k = 0; k < 4; k++) {
            dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
            n[k] = (uint32_t)(dice % 5) + 1;
        }
        v.stride_batch = (int64_t)(dice >> 20 & 63);
        v.stride_head = (int64_t)(dice >> 26 & 63);
        v.stride_row = (int64_t)(dice >> 32 & 63);
        v.dtype = 1 + (uint32_t)(dice >> 40) % 3;
        v.offset_bytes = dice >> 45 & 255;
        for (uint32_t b = 0; b < n[0]; b++)
            for (uint32_t h = 0; h < n[1]; h++)
                for (uint32_t r = 0; r < n[2]; r++) {
                    const uint64_t element =
                        (uint64_t)(b * v.stride_batch + h * v.stride_head + r * v.stride_row) + n[3];

                    last = element > last ? element : last;
                }
        assert_true(td_view_end_bytes(&v, (const uint32_t[]){n[0], n[1], n[2], n[3]}, &end));
        assert_int_equal(end, v.offset_bytes + last * (v.dtype == TANDEM_DTYPE_F32 ? 4 : 2));
    }
    v = (tandem_view){.dtype = TANDEM_DTYPE_CODES_INT8, .offset_bytes = 256}; /* codes, then scales at a multiple of 256 */
    assert_true(td_view_end_bytes(&v, (const uint32_t[]){1, 3, 130, 80}, &end));
    assert_int_equal(end, 256 + 3 * 256 * 96 + 3 * 256 * 4);
    v.dtype = TANDEM_DTYPE_CODES_E4M3;
    assert_true(td_view_end_bytes(&v, (const uint32_t[]){1, 3, 130, 80}, &end));
    assert_int_equal(end, 256 + 3 * 256 * 96 + 3 * 96 * 4);
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){1 << 30, 1 << 30, 1 << 30, 128}, &end));
    v = (tandem_view){.dtype = TANDEM_DTYPE_Q4_K, .offset_bytes = 6, .stride_row = 512}; /* blocks of 256 elements, whole ones */
    assert_true(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 3, 256}, &end));
    assert_int_equal(end, 6 + 2 * 2 * 144 + 144);
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 3, 128}, &end));
    v.stride_row = 128;
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 3, 256}, &end));
    v = (tandem_view){.dtype = TANDEM_DTYPE_Q8_0, .stride_row = 64};
    assert_true(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 2, 64}, &end));
    assert_int_equal(end, 4 * 34);
    /* Each product overflows 64 bits, and their sum would come out small. */
    v = (tandem_view){.dtype = TANDEM_DTYPE_F32, .stride_batch = INT64_MAX, .stride_head = INT64_MAX};
    v.stride_row = INT64_MAX;
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){1 << 30, 1 << 30, 1 << 30, 1024}, &end));
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}, &end));
    v = (tandem_view){.dtype = TANDEM_DTYPE_F16, .stride_batch = 1ll << 62};
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){5, 1, 1, 1}, &end)); /* 4 * 2^62 * 2 = 2^65: 0 in 64 bits */
    v = (tandem_view){.dtype = TANDEM_DTYPE_F16, .offset_bytes = INT64_MAX - 1};
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 1, 1}, &end));
    v.offset_bytes = INT64_MAX - 3;
    assert_true(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 1, 1}, &end));
    assert_int_equal(end, INT64_MAX - 1);
    v.stride_head = -1;
    assert_false(td_view_end_bytes(&v, (const uint32_t[]){1, 1, 1, 1}, &end));
}

static void test_ids_and_reports(void **state)
{
    static const uint32_t slots[] = {0, 1, 77, TD_WIRE_MAX_SLOTS - 1};
    td_wire_report in, out;

    (void)state;
    for (int kind = 1; kind <= 3; kind++)
        for (int i = 0; i < 4; i++) {
            const uint64_t id = td_wire_id((td_wire_kind)kind, 0xdeadbeef, slots[i]);

            assert_int_equal(td_wire_id_kind(id), kind);
            assert_int_equal(td_wire_id_generation(id), 0xdeadbeef);
            assert_int_equal(td_wire_id_slot(id), slots[i]);
        }
    assert_true(td_wire_id_slot(0) >= TD_WIRE_MAX_SLOTS);

    for (uint32_t state_word = 0; state_word < 256; state_word++)
        for (uint32_t precision = 0; precision < 8; precision++)
            for (int32_t status = -12; status < 4; status++) {
                const bool right = state_word <= 5 && precision <= 3 && status <= 0 && status >= -8;

                in = (td_wire_report){
                    .ticket = 0xfedcba98, .state = state_word, .precision = precision, .status = status,
                    .yours = (state_word ^ precision) & 1};
                assert_int_equal(td_wire_report_unpack(td_wire_report_pack(&in), &out, why, why_bytes),
                                 right ? TANDEM_OK : TANDEM_ERROR_PROTOCOL);
                assert_true(out.ticket == in.ticket && out.state == in.state && out.precision == precision &&
                            out.status == status && out.yours == in.yours);
            }
}

/* Ids find what they were given for, until it is removed, and never again. */
static void test_id_table(void **state)
{
    enum { SLOTS = 5, STEPS = 2000 };
    static int objects[STEPS];
    static uint64_t given[STEPS]; /* the id of each object, and whether it still has it */
    static bool alive[STEPS];
    td_ids_slot slots[SLOTS];
    uint64_t dice = 12345;
    td_ids ids;
    uint32_t count = 0;

    (void)state;
    td_ids_begin(&ids, TD_WIRE_KIND_TIMELINE, slots, SLOTS);
    for (int i = 0; i < STEPS; i++) {
        given[i] = td_ids_add(&ids, &objects[i]);
        assert_int_equal(given[i] != 0, count < SLOTS);
        alive[i] = given[i] != 0;
        count += alive[i];
        for (int k = i > 40 ? i - 40 : 0; k < i; k++)
            assert_true(given[k] != given[i] || !given[k]);
        dice = dice * 6364136223846793005u + 1442695040888963407u;
        for (int k = i > 20 ? i - 20 : 0; dice >> 62 && k <= i; k++) {
            assert_ptr_equal(td_ids_find(&ids, given[k]), alive[k] ? &objects[k] : NULL);
            if ((dice >> (k % 32) & 3) == 0) {
                assert_ptr_equal(td_ids_remove(&ids, given[k]), alive[k] ? &objects[k] : NULL);
                count -= alive[k];
                alive[k] = false;
            }
        }
        assert_int_equal(ids.count, count);
    }
    td_ids_begin(&ids, TD_WIRE_KIND_TIMELINE, slots, SLOTS);
    slots[0].generation = UINT32_MAX;
    given[0] = td_ids_add(&ids, objects);
    assert_int_equal(td_wire_id_slot(given[0]), 0);
    assert_null(td_ids_find(&ids, given[0] ^ 3ull << 56)); /* of another kind */
    assert_null(td_ids_find(&ids, given[0] + SLOTS));
    assert_null(td_ids_find(&ids, 0));
    assert_null(td_ids_find(&ids, 2ull << 56 | 1ull << 24 | 2)); /* a slot that is free */
    assert_ptr_equal(td_ids_remove(&ids, given[0]), objects);
    for (int i = 0; i < SLOTS; i++) /* the generations of slot 0 are used up */
        assert_int_equal(td_ids_add(&ids, objects) != 0, i < SLOTS - 1);
    assert_int_equal(td_ids_add(&ids, NULL), 0);
}

static void test_texts(void **state)
{
    /* What comes in, what the field of 8 bytes holds. */
    static const char *const texts[][2] = {
        {"", ""},
        {"1234567", "1234567"},
        {"12345678", "1234567"},
        {"a\x1b[b\nc", "a?[b?c"},
        {"\xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f", "\xc3\xa4\xc3\xb6\xc3\xbc"}, /* cut at a whole character */
        {"\xf0\x9f\x8e\xae!", "\xf0\x9f\x8e\xae!"},
        {"\xc0\x80", "??"},             /* overlong */
        {"\xed\xa0\x80", "???"},        /* half a surrogate */
        {"\xf4\x90\x80\x80", "????"},   /* beyond Unicode */
        {"\xc2\x9fx", "??x"},           /* a control character of two bytes */
        {"\xe2\x82", "??"},             /* cut off */
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        td_wire_message m = wire_sample(TD_WIRE_ERROR);
        char field[8];

        memset(field, 'z', sizeof field);
        td_wire_text(field, sizeof field, texts[i][0]);
        assert_string_equal(field, texts[i][1]);
        for (size_t k = strlen(field); k < sizeof field; k++)
            assert_int_equal(field[k], 0);
        td_wire_text(m.error.text, sizeof m.error.text, texts[i][0]);
        assert_int_equal(check_sample(TD_WIRE_ERROR, &m), TANDEM_OK);
        /* As it came, it passes only if td_wire_text() had nothing to change. */
        memset(m.error.text, 0, sizeof m.error.text);
        memcpy(m.error.text, texts[i][0], strlen(texts[i][0]));
        assert_int_equal(check_sample(TD_WIRE_ERROR, &m) == TANDEM_OK, !strchr(texts[i][1], '?'));
    }
    for (int length = 399; length < 401; length++) {
        td_wire_message m = wire_sample(TD_WIRE_ERROR);

        memset(m.error.text, 'x', (size_t)length);
        assert_int_equal(check_sample(TD_WIRE_ERROR, &m) == TANDEM_OK, length < 400);
    }
}

static void test_identity(void **state)
{
    td_wire_identity mine, theirs;
    td_wire_sizes sizes = td_wire_sizes_here();
    const uint8_t none[16] = {0};
    /* Where a byte is changed, from which share on it matters, and what the text names. */
    static const struct {
        size_t at;
        uint32_t from;
        const char *says;
    } differences[] = {{0, 1, "host id"},     {15, 1, "host id"},     {16, 1, "boot id"}, {32, 2, "device UUID"},
                       {48, 2, "driver UUID"}, {64, 2, "driver"},      {71, 2, "driver"}};

    (void)state;
    memset(&mine, 0x11, sizeof mine);
    theirs = mine;
    td_wire_identify(&mine);
    td_wire_identify(&theirs);
    assert_memory_equal(&mine, &theirs, sizeof mine);
    if (access("/proc/sys/kernel/random/boot_id", R_OK) == 0)
        assert_memory_not_equal(mine.boot_id, none, 16);
    assert_int_equal(mine.device_uuid[0], 0x11);
    for (uint32_t share = 0; share < 3; share++) {
        assert_int_equal(td_wire_match(&mine, &theirs, &sizes, share, why, why_bytes), TANDEM_OK);
        for (size_t i = 0; i < sizeof differences / sizeof *differences; i++) {
            tandem_status status;

            theirs = mine;
            ((uint8_t *)&theirs)[differences[i].at] ^= 0x80;
            why[0] = 0;
            status = td_wire_match(&mine, &theirs, &sizes, share, why, why_bytes);
            assert_int_equal(status, share >= differences[i].from ? TANDEM_ERROR_UNSUPPORTED : TANDEM_OK);
            assert_true(status == TANDEM_OK || strstr(why, differences[i].says));
        }
        theirs = mine;
    }
    memset(theirs.driver_uuid, 0, 16); /* a daemon without Vulkan does not know it */
    assert_int_equal(td_wire_match(&mine, &theirs, &sizes, TD_WIRE_SHARE_OPAQUE, why, why_bytes), TANDEM_OK);
    memset(theirs.device_uuid, 0, 16);
    memset(mine.device_uuid, 0, 16);
    assert_int_equal(td_wire_match(&mine, &theirs, &sizes, TD_WIRE_SHARE_OPAQUE, why, why_bytes),
                     TANDEM_ERROR_UNSUPPORTED);
    sizes.slot_bytes = 256;
    assert_int_equal(td_wire_match(&mine, &mine, &sizes, TD_WIRE_SHARE_NONE, why, why_bytes), TANDEM_ERROR_UNSUPPORTED);
    assert_string_equal(why, "slot_bytes is 2048 here and 256 there");
}

/* ---- the socket ---- */

static void make_path(char path[64], const char *name)
{
    snprintf(path, 64, "/tmp/tandem-wire-%d-%s", (int)getpid(), name);
}

static void forget_path(const char *path)
{
    char lock[80];

    snprintf(lock, sizeof lock, "%s.lock", path);
    unlink(path);
    unlink(lock);
}

static void test_listen(void **state)
{
    td_listener listener, second;
    static td_conn client, server;
    char path[64], longer[200];
    struct stat st;
    int fd;

    (void)state;
    make_path(path, "listen");
    forget_path(path);
    assert_int_equal(td_conn_connect(&client, path, why, why_bytes), TANDEM_ERROR_LOST);
    assert_int_equal(td_listener_open(&listener, path, why, why_bytes), TANDEM_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode, S_IFSOCK | 0600);
    assert_int_equal(td_listener_open(&second, path, why, why_bytes), TANDEM_ERROR_BUSY);
    assert_int_equal(stat(path, &st), 0);

    assert_int_equal(td_listener_accept(&listener, &server, why, why_bytes), TANDEM_ERROR_BUSY);
    assert_int_equal(td_conn_connect(&client, path, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_listener_accept(&listener, &server, why, why_bytes), TANDEM_OK);
    assert_true(server.pid == getpid() && server.uid == getuid() && server.gid == getgid());
    assert_true(client.pid == getpid() && client.uid == getuid());
    assert_true(fcntl(server.fd, F_GETFD) & FD_CLOEXEC && fcntl(client.fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(server.fd, F_GETFL) & O_NONBLOCK && fcntl(client.fd, F_GETFL) & O_NONBLOCK);
    td_conn_close(&client);
    td_conn_close(&server);
    td_listener_close(&listener);
    assert_int_equal(stat(path, &st), -1);

    /* What a dead daemon left is taken over; what is no socket is not. */
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    {
        struct sockaddr_un to = {.sun_family = AF_UNIX};

        memcpy(to.sun_path, path, strlen(path) + 1);
        assert_int_equal(bind(fd, (struct sockaddr *)&to, sizeof to), 0);
        close(fd);
    }
    assert_int_equal(td_listener_open(&listener, path, why, why_bytes), TANDEM_OK);

    /* One from the service manager. */
    assert_int_equal(td_listener_adopt(&second, listener.fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_connect(&client, path, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_adopt(&server, client.fd, why, why_bytes), TANDEM_OK);
    td_conn_close(&server);
    assert_int_equal(td_listener_accept(&second, &server, why, why_bytes), TANDEM_OK);
    td_listener_close(&second);
    assert_int_equal(td_listener_adopt(&second, client.fd, why, why_bytes), TANDEM_ERROR_ARG);
    td_conn_close(&client);
    td_conn_close(&server);
    assert_int_equal(td_conn_adopt(&client, listener.fd, why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(td_conn_adopt(&client, 0x7ffffff, why, why_bytes), TANDEM_ERROR_ARG);
    td_listener_close(&listener);
    forget_path(path);

    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    close(fd);
    assert_int_equal(td_listener_open(&listener, path, why, why_bytes), TANDEM_ERROR_IO);
    assert_int_equal(stat(path, &st), 0);
    forget_path(path);
    memset(longer, 'a', sizeof longer);
    longer[107] = 0;
    assert_int_equal(strlen(longer), 107);
    assert_int_equal(td_conn_connect(&client, longer, why, why_bytes), TANDEM_ERROR_LOST);
    longer[107] = 'a';
    longer[108] = 0;
    assert_int_equal(td_conn_connect(&client, longer, why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(td_listener_open(&listener, longer, why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(td_listener_open(&listener, "", why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(td_listener_open(&listener, "/nowhere/at/all", why, why_bytes), TANDEM_ERROR_IO);
}

static void test_adopted_listener_is_closed(void **state)
{
    td_listener listener, adopted;
    char path[64];

    (void)state;
    make_path(path, "adopt");
    forget_path(path);
    assert_int_equal(td_listener_open(&listener, path, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_listener_adopt(&adopted, listener.fd, why, why_bytes), TANDEM_OK);
    td_listener_close(&adopted);
    assert_int_equal(access(path, F_OK), 0); /* the service manager's */
    td_listener_close(&listener);
    forget_path(path);
}

/* Two ends, as connections; `raw` is a third hand on the first end, to misbehave with. */
static void make_pair(td_conn *a, td_conn *b)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(td_conn_adopt(a, fds[0], why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_adopt(b, fds[1], why, why_bytes), TANDEM_OK);
    close(fds[0]);
    close(fds[1]);
}

/* Sends bytes with `first` + `second` descriptors, in two control messages if second > 0. */
static void send_raw(int socket, const void *bytes, size_t length, int fd, unsigned first, unsigned second)
{
    static union {
        struct cmsghdr align;
        char bytes[4096];
    } control;
    struct iovec part = {(void *)(uintptr_t)bytes, length};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    const unsigned counts[2] = {first, second};
    char *next = control.bytes;

    memset(&control, 0, sizeof control);
    for (int i = 0; i < 2; i++) {
        struct cmsghdr *c = (struct cmsghdr *)(void *)next;

        if (!counts[i])
            continue;
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * counts[i]);
        for (unsigned k = 0; k < counts[i]; k++)
            memcpy(CMSG_DATA(c) + k * sizeof(int), &fd, sizeof fd);
        next += CMSG_SPACE(sizeof(int) * counts[i]);
    }
    if (next > control.bytes) {
        m.msg_control = control.bytes;
        m.msg_controllen = (size_t)(next - control.bytes);
    }
    assert_int_equal(sendmsg(socket, &m, MSG_NOSIGNAL), (ssize_t)length);
}

static tandem_status recv_one(td_conn *conn, uint32_t type, td_wire_message *m, int *fd)
{
    td_wire_rules rules = wire_rules(type);
    int fds[TD_WIRE_MAX_FDS] = {12345};
    tandem_status status;

    why[0] = 0;
    status = td_conn_recv(conn, &rules, wire_road(type) == TD_WIRE_TO_CLIENT ? TD_WIRE_TO_CLIENT : TD_WIRE_TO_DAEMON, m,
                          fds, why, why_bytes);
    *fd = fds[0];
    return status;
}

static void test_descriptors_travel(void **state)
{
    static td_conn a, b;
    td_wire_message m = wire_sample(TD_WIRE_MEM_CREATE), got;
    td_wire_rules rules = wire_rules(TD_WIRE_MEM_CREATE);
    struct stat sent, come;
    int slab, fd, fds[TD_WIRE_MAX_FDS];

    (void)state;
    make_pair(&a, &b);
    assert_int_equal(recv_one(&b, TD_WIRE_PING, &got, &fd), TANDEM_ERROR_BUSY);
    assert_int_equal(fd, -1);
    assert_int_equal(td_slab_make("wire", m.mem_create.allocation_bytes, false, &slab, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_send(&a, &m, &slab, why, why_bytes), TANDEM_OK);
    assert_true(fcntl(slab, F_GETFD) >= 0); /* stays the caller's */
    assert_int_equal(td_conn_wait(&b, 1000000000, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_recv(&b, &rules, TD_WIRE_TO_DAEMON, &got, fds, why, why_bytes), TANDEM_OK);
    assert_memory_equal(&got, &m, sizeof m.mem_create);
    assert_int_equal(rules.next_serial, WIRE_SERIAL + 1);
    assert_true(fds[0] >= 0 && fds[0] != slab && fcntl(fds[0], F_GETFD) & FD_CLOEXEC);
    assert_true(!fstat(slab, &sent) && !fstat(fds[0], &come) && sent.st_ino == come.st_ino);
    assert_int_equal(td_slab_check(fds[0], m.mem_create.allocation_bytes, false, why, why_bytes), TANDEM_OK);
    close(fds[0]);

    /* The same serial again is out of order. */
    assert_int_equal(td_conn_send(&a, &m, &slab, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_recv(&b, &rules, TD_WIRE_TO_DAEMON, &got, fds, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(fds[0], -1);
    close(slab);

    /* A descriptor that is closed cannot be sent, and says so; nor what is no message. */
    assert_int_equal(td_conn_send(&a, &m, &slab, why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(td_conn_send(&a, &m, NULL, why, why_bytes), TANDEM_ERROR_ARG);
    m.header.bytes = 8;
    assert_int_equal(td_conn_send(&a, &m, &a.fd, why, why_bytes), TANDEM_ERROR_ARG);
    m.header.bytes = sizeof m + 8;
    assert_int_equal(td_conn_send(&a, &m, &a.fd, why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(recv_one(&b, TD_WIRE_PING, &got, &fd), TANDEM_ERROR_BUSY);
    td_conn_close(&a);
    assert_int_equal(td_conn_wait(&b, 1000000000, why, why_bytes), TANDEM_OK);
    assert_int_equal(recv_one(&b, TD_WIRE_PING, &got, &fd), TANDEM_ERROR_LOST);
    m = wire_sample(TD_WIRE_PING);
    assert_int_equal(td_conn_send(&b, &m, NULL, why, why_bytes), TANDEM_ERROR_LOST);
    td_conn_close(&b);
}

/* Descriptors in every odd way: refused, and none stays behind. */
static void test_hostile_descriptors(void **state)
{
    static const struct {
        uint32_t type;
        unsigned first, second;
        tandem_status status;
    } ways[] = {
        {TD_WIRE_MEM_CREATE, 1, 0, TANDEM_OK},          {TD_WIRE_MEM_CREATE, 0, 0, TANDEM_ERROR_PROTOCOL},
        {TD_WIRE_MEM_CREATE, 2, 0, TANDEM_ERROR_PROTOCOL}, {TD_WIRE_MEM_CREATE, 1, 1, TANDEM_ERROR_PROTOCOL},
        {TD_WIRE_MEM_CREATE, 20, 33, TANDEM_ERROR_PROTOCOL}, {TD_WIRE_MEM_CREATE, 100, 153, TANDEM_ERROR_PROTOCOL},
        {TD_WIRE_MEM_CREATE, SCM_MAX, 0, TANDEM_ERROR_PROTOCOL}, {TD_WIRE_MEM_CREATE, 60, 0, TANDEM_ERROR_PROTOCOL},
        {TD_WIRE_MEM_CREATE, 61, 0, TANDEM_ERROR_PROTOCOL}, {TD_WIRE_PING, 0, 0, TANDEM_OK},
        {TD_WIRE_PING, 1, 0, TANDEM_ERROR_PROTOCOL},    {TD_WIRE_PING, SCM_MAX, 0, TANDEM_ERROR_PROTOCOL},
        {TD_WIRE_HELLO, 0, 0, TANDEM_OK},               {TD_WIRE_HELLO, 1, 0, TANDEM_ERROR_PROTOCOL},
        {TD_WIRE_HELLO, 200, 0, TANDEM_ERROR_PROTOCOL}, {TD_WIRE_WELCOME, 1, 0, TANDEM_OK},
        {TD_WIRE_WELCOME, 0, 0, TANDEM_ERROR_PROTOCOL}, {TD_WIRE_BYE, 5, 0, TANDEM_ERROR_PROTOCOL},
    };
    static td_conn a, b;
    td_wire_message got;

    (void)state;
    make_pair(&a, &b);
    for (int claims = 0; claims < 2; claims++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            td_wire_message m = wire_sample(ways[i].type);
            const int before = count_fds();
            tandem_status status;
            int fd;

            if (claims) /* the header says how many come: not what the type has */
                m.header.fds = (uint16_t)(ways[i].first + ways[i].second);
            send_raw(a.fd, &m, wire_sample(ways[i].type).header.bytes, a.fd, ways[i].first, ways[i].second);
            status = recv_one(&b, ways[i].type, &got, &fd);
            if (status != ways[i].status)
                print_error("way %zu: status %d, '%s'\n", i, status, why);
            assert_int_equal(status, ways[i].status);
            assert_int_equal(fd >= 0, status == TANDEM_OK && m.header.fds);
            td_fd_close(&fd);
            assert_int_equal(count_fds(), before);
        }
    td_conn_close(&a);
    td_conn_close(&b);
}

/* Other control messages before or behind the descriptors: the kernel may add who sent it, and a descriptor of that
 * process. */
static void test_other_control_messages(void **state)
{
    static const int options[] = {SO_PASSCRED, SO_PASSPIDFD, SO_TIMESTAMP, SO_PASSSEC};
    static td_conn a, b;
    td_wire_message m = wire_sample(TD_WIRE_MEM_CREATE), got;
    const int on = 1;
    int fd, set = 0;

    (void)state;
    make_pair(&a, &b);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        set += !setsockopt(b.fd, SOL_SOCKET, options[i], &on, sizeof on); /* not all kernels know each */
        for (int with = 0; with < 2; with++) {
            const td_wire_message ping = wire_sample(TD_WIRE_PING);
            const int before = count_fds();

            send_raw(a.fd, with ? &m : &ping, with ? sizeof m.mem_create : sizeof ping.header, a.fd, (unsigned)with, 0);
            assert_int_equal(recv_one(&b, TD_WIRE_PING, &got, &fd), TANDEM_OK);
            assert_int_equal(fd >= 0, with);
            td_fd_close(&fd);
            send_raw(a.fd, &m, sizeof m.mem_create, a.fd, SCM_MAX, 0);
            assert_int_equal(recv_one(&b, TD_WIRE_PING, &got, &fd), TANDEM_ERROR_PROTOCOL);
            assert_int_equal(count_fds(), before);
        }
    }
    assert_true(set >= 2);
    td_conn_close(&a);
    td_conn_close(&b);
}

static void test_hostile_packets(void **state)
{
    static td_conn a, b;
    static uint8_t bytes[8192] __attribute__((aligned(8)));
    const td_wire_message ping = wire_sample(TD_WIRE_PING);
    td_wire_message got;
    int fd;

    (void)state;
    for (size_t length = 1; length <= sizeof bytes; length = length < 40 ? length + 1 : length * 2 - 1) {
        make_pair(&a, &b);
        memset(bytes, 0xff, sizeof bytes);
        memcpy(bytes, &ping, sizeof ping.header);
        send_raw(a.fd, bytes, length, a.fd, length & 1, 0);
        assert_int_equal(recv_one(&b, TD_WIRE_PING, &got, &fd), length == 16 ? TANDEM_OK : TANDEM_ERROR_PROTOCOL);
        assert_int_equal(fd, -1);
        assert_int_equal(length > sizeof(td_wire_message), strstr(why, "longer than") != NULL);
        td_conn_close(&a);
        td_conn_close(&b);
    }
    make_pair(&a, &b);
    send_raw(a.fd, bytes, 0, a.fd, 3, 0); /* an empty packet reads like an end */
    assert_int_equal(recv_one(&b, TD_WIRE_PING, &got, &fd), TANDEM_ERROR_LOST);
    td_conn_close(&a);
    td_conn_close(&b);
}

/* Takes every descriptor that this process may have. */
static int exhaust(int *taken, int most, struct rlimit *before)
{
    struct rlimit low;
    int count = 0;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, before), 0);
    low = *before;
    low.rlim_cur = (rlim_t)most;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    while (count < most && (taken[count] = fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0)
        count++;
    assert_int_equal(errno, EMFILE);
    return count;
}

static void release(int *taken, int count, const struct rlimit *before)
{
    for (int i = 0; i < count; i++)
        close(taken[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, before), 0);
}

/* With no descriptor left the kernel drops what comes: our shortage, and not the peer's fault. */
static void test_no_descriptors_left(void **state)
{
    static td_conn a, b, turned_away, client;
    td_wire_message m = wire_sample(TD_WIRE_MEM_CREATE), got;
    td_listener listener;
    struct rlimit before;
    int taken[128], count, fd;
    char path[64];

    (void)state;
    make_path(path, "emfile");
    forget_path(path);
    make_pair(&a, &b);
    assert_int_equal(td_listener_open(&listener, path, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_connect(&turned_away, path, why, why_bytes), TANDEM_OK);

    send_raw(a.fd, &m, sizeof m.mem_create, a.fd, 1, 0);
    send_raw(a.fd, &m, sizeof m.mem_create, a.fd, 40, 0);
    send_raw(a.fd, &m, sizeof m.mem_create, a.fd, 1, 0);
    count = exhaust(taken, 128, &before);
    assert_int_equal(recv_one(&b, TD_WIRE_MEM_CREATE, &got, &fd), TANDEM_ERROR_NOMEM);
    assert_int_equal(fd, -1);
    assert_int_equal(got.header.serial, WIRE_SERIAL); /* so that it can be answered */
    assert_non_null(strstr(why, "MEM_CREATE"));
    /* One that lies at the same time stays a liar, or is answered: either way nothing is left. */
    assert_int_not_equal(recv_one(&b, TD_WIRE_MEM_CREATE, &got, &fd), TANDEM_OK);
    assert_int_equal(fd, -1);
    /* Somebody who connects is turned away instead of being reported for ever. */
    assert_int_equal(td_listener_accept(&listener, &client, why, why_bytes), TANDEM_ERROR_NOMEM);
    assert_int_equal(td_listener_accept(&listener, &client, why, why_bytes), TANDEM_ERROR_BUSY);
    assert_true(listener.spare >= 0);
    assert_int_equal(td_conn_connect(&client, path, why, why_bytes), TANDEM_ERROR_NOMEM);
    assert_int_equal(td_slab_make("wire", 4096, true, &fd, why, why_bytes), TANDEM_ERROR_NOMEM);
    release(taken, count, &before);

    assert_int_equal(recv_one(&b, TD_WIRE_MEM_CREATE, &got, &fd), TANDEM_OK);
    td_fd_close(&fd);
    assert_int_equal(recv_one(&turned_away, TD_WIRE_DONE, &got, &fd), TANDEM_ERROR_LOST);
    assert_int_equal(td_conn_connect(&client, path, why, why_bytes), TANDEM_OK);
    td_conn_close(&turned_away);
    assert_int_equal(td_listener_accept(&listener, &turned_away, why, why_bytes), TANDEM_OK);
    td_conn_close(&turned_away);
    td_conn_close(&client);
    td_listener_close(&listener);
    td_conn_close(&a);
    td_conn_close(&b);
    forget_path(path);
}

/* With room for one descriptor of two the kernel hands over one, as many as the message should have: only MSG_CTRUNC tells. */
static void test_cut_control_data(void **state)
{
    static td_conn a, b;
    td_wire_message got;
    struct rlimit before;
    int taken[128], count, fd;

    (void)state;
    for (int claims = 1; claims <= 2; claims++) { /* what the header says of them */
        td_wire_message m = wire_sample(TD_WIRE_MEM_CREATE);
        tandem_status status;
        int held;

        make_pair(&a, &b);
        m.header.fds = (uint16_t)claims;
        send_raw(a.fd, &m, sizeof m.mem_create, a.fd, 2, 0);
        count = exhaust(taken, 128, &before);
        close(taken[--count]);
        held = count_fds();
        status = recv_one(&b, TD_WIRE_MEM_CREATE, &got, &fd);
        assert_int_equal(count_fds(), held); /* the one that came is closed */
        release(taken, count, &before);
        assert_int_equal(status, TANDEM_ERROR_PROTOCOL);
        assert_int_equal(fd, -1);
        assert_int_equal(strstr(why, "control data was cut") != NULL, claims == 1);
        td_conn_close(&a);
        td_conn_close(&b);
    }
}

/* A peer that never reads: bounded, then LOST. One that reads late gets everything, in order, descriptors included. */
static void test_unread(void **state)
{
    static td_conn a, b;
    td_wire_rules rules = wire_rules(TD_WIRE_MEM_CREATE);
    int slab, fds[TD_WIRE_MAX_FDS];

    (void)state;
    assert_int_equal(td_slab_make("wire", 65536, false, &slab, why, why_bytes), TANDEM_OK);
    for (int reads = 0; reads < 2; reads++) {
        const int before = count_fds(), small = 4096;
        uint32_t sent = 0, got = 0;
        td_wire_message m, come;

        make_pair(&a, &b);
        assert_int_equal(setsockopt(a.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
        for (tandem_status status = TANDEM_OK; status == TANDEM_OK; sent += status == TANDEM_OK) {
            m = wire_sample(TD_WIRE_MEM_CREATE);
            m.header.serial = WIRE_SERIAL + sent;
            if (sent % 3) {
                m.header = td_wire_new(TD_WIRE_PING, WIRE_SERIAL + sent).header;
            }
            status = td_conn_send(&a, &m, sent % 3 ? NULL : &slab, why, why_bytes);
            assert_true(status == TANDEM_OK || status == TANDEM_ERROR_LOST);
            assert_true(a.queued_bytes <= TD_CONN_QUEUE_BYTES && sent < 5000);
        }
        assert_true(a.queued_bytes > TD_CONN_QUEUE_BYTES - 128);
        assert_non_null(strstr(why, "does not read"));
        assert_int_equal(td_conn_flush(&a, why, why_bytes), TANDEM_ERROR_BUSY);
        assert_int_equal(td_conn_wait(&a, 1000000, why, why_bytes), TANDEM_ERROR_BUSY);
        rules.next_serial = WIRE_SERIAL;
        while (reads && got < sent) {
            const tandem_status status = td_conn_recv(&b, &rules, TD_WIRE_TO_DAEMON, &come, fds, why, why_bytes);

            if (status == TANDEM_ERROR_BUSY) {
                assert_int_not_equal(td_conn_wait(&a, 0, why, why_bytes), TANDEM_ERROR_LOST);
                continue;
            }
            assert_int_equal(status, TANDEM_OK);
            assert_int_equal(come.header.serial, WIRE_SERIAL + got);
            assert_int_equal(fds[0] >= 0, got % 3 == 0);
            td_fd_close(&fds[0]);
            got++;
        }
        assert_int_equal(a.queued_bytes == 0, reads);
        td_conn_close(&a);
        td_conn_close(&b);
        assert_int_equal(count_fds(), before);
    }
    close(slab);
}

/* Whoever is thrown out still reads why, although the other has closed without having read all. */
static void test_last_words(void **state)
{
    static td_conn client, daemon;
    const td_wire_message ping = wire_sample(TD_WIRE_PING), error = wire_sample(TD_WIRE_ERROR);
    td_wire_message got;
    int fd;

    (void)state;
    make_pair(&client, &daemon);
    for (int i = 0; i < 3; i++)
        assert_int_equal(td_conn_send(&client, &ping, NULL, why, why_bytes), TANDEM_OK);
    assert_int_equal(recv_one(&daemon, TD_WIRE_PING, &got, &fd), TANDEM_OK);
    assert_int_equal(td_conn_send(&daemon, &error, NULL, why, why_bytes), TANDEM_OK);
    assert_true(td_conn_alive(client.fd));
    td_conn_close(&daemon);
    assert_false(td_conn_alive(client.fd));
    assert_int_equal(recv_one(&client, TD_WIRE_ERROR, &got, &fd), TANDEM_OK);
    assert_string_equal(got.error.text, error.error.text);
    assert_int_equal(recv_one(&client, TD_WIRE_ERROR, &got, &fd), TANDEM_ERROR_LOST);
    td_conn_close(&client);
}

/* A client that dies and leaves its socket to a child: the socket does not tell, the process does. */
static void test_process(void **state)
{
    static td_conn server;
    td_listener listener;
    struct pollfd p = {-1, POLLIN, 0};
    char path[64];
    int hold[2], ready[2], status;
    pid_t client, child;
    char byte;

    (void)state;
    make_path(path, "process");
    forget_path(path);
    assert_int_equal(td_listener_open(&listener, path, why, why_bytes), TANDEM_OK);
    assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    client = fork();
    if (client == 0) {
        static td_conn conn;

        if (td_conn_connect(&conn, path, NULL, 0))
            _exit(1);
        child = fork();
        if (child < 0 || (child == 0 && write(ready[1], "", 1) != 1))
            _exit(1);
        close(hold[1]);
        _exit(read(hold[0], &byte, 1) != 0); /* the client is killed here, its child goes on to the end */
    }
    for (tandem_status s = TANDEM_ERROR_BUSY; s == TANDEM_ERROR_BUSY;) {
        s = td_listener_accept(&listener, &server, why, why_bytes);
        assert_true(s == TANDEM_OK || s == TANDEM_ERROR_BUSY);
    }
    assert_int_equal(server.pid, client);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    p.fd = td_conn_process(&server);
    assert_true(p.fd >= 0 && fcntl(p.fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(poll(&p, 1, 0), 0);
    assert_int_equal(kill(client, SIGKILL), 0);
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_int_equal(waitpid(client, &status, 0), client);
    assert_true(td_conn_alive(server.fd)); /* the child has it */
    close(p.fd);
    for (int i = 0; i < 2; i++) {
        close(hold[i]);
        close(ready[i]);
    }
    for (const uint64_t begin = td_now_ns(); td_conn_alive(server.fd);)
        assert_true(td_now_ns() - begin < 10000000000);
    td_conn_close(&server);
    td_listener_close(&listener);
    forget_path(path);
}

static void test_many_connects(void **state)
{
    static td_conn client, server;
    td_wire_message got;
    td_listener listener;
    char path[64];
    int fd;

    (void)state;
    make_path(path, "many");
    forget_path(path);
    assert_int_equal(td_listener_open(&listener, path, why, why_bytes), TANDEM_OK);
    for (int i = 0; i < CONNECTS; i++) {
        assert_int_equal(td_conn_connect(&client, path, why, why_bytes), TANDEM_OK);
        if (i % 3)
            send_raw(client.fd, &i, sizeof i, listener.fd, i % 5 == 0, 0);
        if (i % 2)
            td_conn_close(&client);
        assert_int_equal(td_listener_accept(&listener, &server, why, why_bytes), TANDEM_OK);
        assert_int_equal(recv_one(&server, TD_WIRE_HELLO, &got, &fd),
                         i % 3   ? TANDEM_ERROR_PROTOCOL
                         : i % 2 ? TANDEM_ERROR_LOST
                                 : TANDEM_ERROR_BUSY);
        td_conn_close(&client);
        td_conn_close(&server);
    }
    /* Nobody accepts: the backlog fills, and the next is told to come again. */
    {
        int waiting[256], count = 0;
        tandem_status status = TANDEM_OK;

        for (; count < 256 && status == TANDEM_OK; count += status == TANDEM_OK) {
            status = td_conn_connect(&client, path, why, why_bytes);
            if (status == TANDEM_OK)
                waiting[count] = client.fd;
        }
        assert_int_equal(status, TANDEM_ERROR_BUSY);
        for (int i = 0; i < count; i++)
            close(waiting[i]);
    }
    td_listener_close(&listener);
    forget_path(path);
}

/* Descriptors of other kinds, where a slab, a page, or something of a driver's belongs. */
static void test_kinds(void **state)
{
    enum { BYTES = 65536 };
    char link[64];
    int fd, pair[2], other;

    (void)state;
    assert_int_equal(td_slab_make("wire", BYTES, false, &fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_slab_check(fd, BYTES, false, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_opaque_check(fd, why, why_bytes), TANDEM_OK); /* what lavapipe exports is one */
    assert_int_equal(td_slab_check(fd, BYTES, true, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(td_slab_check(fd, BYTES - 1, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(td_slab_check(fd, BYTES + 4096, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(ftruncate(fd, BYTES - 4096), -1);
    assert_int_equal(fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 4096), 0);
    assert_int_equal(td_slab_check(fd, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_non_null(strstr(why, "must be allocated"));
    assert_int_equal(posix_fallocate(fd, 0, BYTES), 0);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    other = open(link, O_RDONLY | O_CLOEXEC);
    assert_true(other >= 0);
    assert_int_equal(td_slab_check(other, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    close(other);
    other = open(link, O_PATH | O_CLOEXEC);
    assert_true(other >= 0);
    assert_int_equal(td_slab_check(other, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(td_opaque_check(other, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    close(other);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
    assert_int_equal(td_slab_check(fd, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    close(fd);
    assert_int_equal(td_slab_check(fd, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(td_opaque_check(fd, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(td_opaque_check(-1, why, why_bytes), TANDEM_ERROR_PROTOCOL);

    assert_int_equal(td_slab_make("wire", BYTES, true, &fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_slab_check(fd, BYTES, true, why, why_bytes), TANDEM_OK);
    assert_int_equal(ftruncate(fd, BYTES + 4096), -1);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    close(fd);
    for (int i = 0; i < 3; i++) { /* sizes that are none */
        assert_int_equal(td_slab_make("wire", (uint64_t[]){0, 4097, 1ull << 63}[i], true, &fd, why, why_bytes),
                         TANDEM_ERROR_ARG);
        assert_int_equal(fd, -1);
    }
    assert_int_equal(td_slab_make("wire", 1ull << 62, true, &fd, why, why_bytes), TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(why, "are left"));
    assert_int_equal(td_slab_make("wire", 128 << 20, true, &fd, why, why_bytes), TANDEM_ERROR_NOMEM); /* see main() */
    assert_int_equal(fd, -1);

    fd = memfd_create("bare", MFD_CLOEXEC | MFD_ALLOW_SEALING); /* not sealed; then sealed, but against the wrong thing */
    assert_int_equal(posix_fallocate(fd, 0, BYTES), 0);
    assert_int_equal(td_slab_check(fd, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
    assert_int_equal(td_slab_check(fd, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(td_slab_check(fd, BYTES, false, why, why_bytes), TANDEM_OK);
    close(fd);
    fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB); /* a fault may kill its reader */
    if (fd >= 0) {
        assert_int_equal(ftruncate(fd, 2 << 20), 0);
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        assert_int_equal(td_slab_check(fd, 2 << 20, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_non_null(strstr(why, "no memfd"));
        close(fd);
    }

    assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
    const struct {
        int fd;
        bool opaque;
    } others[] = {{open("/dev/null", O_RDWR | O_CLOEXEC), true},
                  {eventfd(0, EFD_CLOEXEC), true},
                  {open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC), false},
                  {open("/proc/self/status", O_RDONLY | O_CLOEXEC), false},
                  {socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), false},
                  {pair[0], false},
                  {pair[1], false}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_true(others[i].fd >= 0);
        assert_int_equal(td_slab_check(others[i].fd, 4096, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_int_equal(td_opaque_check(others[i].fd, why, why_bytes),
                         others[i].opaque ? TANDEM_OK : TANDEM_ERROR_PROTOCOL);
        close(others[i].fd);
    }
}

/* ---- shared memory ---- */

static void open_rings(td_ring *daemon, td_ring *client)
{
    int fd;

    assert_int_equal(td_ring_make(daemon, &fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_ring_open(client, fd, why, why_bytes), TANDEM_OK);
    assert_ptr_not_equal(daemon->area, client->area);
    close(fd);
}

static void close_rings(td_ring *daemon, td_ring *client)
{
    td_ring_close(daemon);
    td_ring_close(client);
    td_ring_close(client); /* twice does nothing */
}

static td_wire_message numbered_job(uint64_t ticket)
{
    td_wire_message m = wire_sample(TD_WIRE_JOB);
    uint64_t sum = ticket * 0x9e3779b97f4a7c15;

    m.job.ticket = ticket;
    m.job.submit_ns = sum;
    m.job.job.deadline_ns = ~sum;
    m.job.job.wait.value = sum >> 7;
    m.job.job.op.attention.lse.offset_bytes = (sum >> 40) * 4;
    return m;
}

static void test_ring(void **state)
{
    static const uint32_t starts[] = {0, 1, 0xffffffff, 0xffffffe0};
    td_ring daemon, client;
    td_wire_message m;

    (void)state;
    for (int s = 0; s < 4; s++) {
        td_wire_rules rules = wire_rules(TD_WIRE_JOB);
        uint32_t count;

        open_rings(&daemon, &client);
        daemon.own = client.own = starts[s];
        atomic_store(&daemon.area->head, starts[s]);
        atomic_store(&daemon.area->tail, starts[s]);
        rules.next_ticket = 1;
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_ERROR_BUSY);
        for (uint64_t ticket = 1, taken = 0; taken < 500;) {
            for (uint64_t n = 0; n < 1 + ticket % 97; n++) {
                const td_wire_message job = numbered_job(ticket);
                const tandem_status status = td_ring_put(&client, &job, why, why_bytes);

                assert_int_equal(status, ticket - taken <= TD_WIRE_SLOTS ? TANDEM_OK : TANDEM_ERROR_BUSY);
                ticket += status == TANDEM_OK;
            }
            assert_int_equal(td_ring_count(&daemon, &count, why, why_bytes), TANDEM_OK);
            assert_int_equal(count, ticket - 1 - taken);
            for (uint64_t n = taken % 53 + 1; n && taken + 1 < ticket; n--) {
                const td_wire_message job = numbered_job(++taken);

                assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_OK);
                assert_memory_equal(&m, &job, sizeof job.job);
            }
        }
        m = wire_sample(TD_WIRE_STATS_REPLY);
        assert_int_equal(td_ring_put(&client, &m, why, why_bytes), TANDEM_ERROR_ARG);
        close_rings(&daemon, &client);
    }
}

/* Indices, and slots, as a hostile peer would leave them. */
static void test_hostile_ring(void **state)
{
    static const uint32_t distances[] = {65, 66, 0x7fffffff, 0x80000000, 0xffffff00, 0xffffffff};
    td_wire_message m = numbered_job(WIRE_TICKET);
    td_ring daemon, client;
    uint32_t count;

    (void)state;
    open_rings(&daemon, &client);
    for (size_t i = 0; i < sizeof distances / sizeof *distances; i++) {
        td_wire_rules rules = wire_rules(TD_WIRE_JOB);

        atomic_store(&client.area->tail, daemon.own + distances[i]);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_non_null(strstr(why, "ring.tail is"));
        assert_int_equal(td_ring_count(&daemon, &count, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_int_equal(count, 0);
        assert_int_equal(td_ring_await(&daemon, -1, 1000000000, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        m = numbered_job(WIRE_TICKET);
        atomic_store(&daemon.area->head, client.own - distances[i]);
        assert_int_equal(td_ring_put(&client, &m, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_non_null(strstr(why, "ring.head is"));
        atomic_store(&daemon.area->head, daemon.own);
        atomic_store(&client.area->tail, client.own);
    }
    /* Slots that were never written, requests in the ring, a job twice: PROTOCOL, and the ring goes on behind them. */
    {
        const td_wire_message ping = wire_sample(TD_WIRE_PING);
        td_wire_rules rules = wire_rules(TD_WIRE_JOB);

        atomic_store(&client.area->tail, ++client.own);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_int_equal(td_ring_put(&client, &ping, why, why_bytes), TANDEM_OK);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_non_null(strstr(why, "in the ring"));
        for (int i = 0; i < 2; i++) {
            m = numbered_job(WIRE_TICKET);
            assert_int_equal(td_ring_put(&client, &m, why, why_bytes), TANDEM_OK);
        }
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_OK);
        assert_int_equal(rules.next_ticket, WIRE_TICKET + 1);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_ERROR_BUSY);
    }
    close_rings(&daemon, &client);
}

typedef struct scribbler {
    td_area *area;
    atomic_bool stop;
} scribbler;

static void *scribble(void *user)
{
    scribbler *s = user;
    const td_wire_message right = numbered_job(WIRE_TICKET);
    uint64_t dice = 1;

    while (!atomic_load(&s->stop)) {
        for (uint32_t slot = 0; slot < TD_WIRE_SLOTS; slot++)
            for (uint32_t i = 0; i < sizeof right.job / 8; i++) {
                uint64_t word;

                memcpy(&word, (const char *)&right + 8 * i, 8);
                dice = dice * 6364136223846793005u + 1442695040888963407u;
                if (dice >> 58 == 0) /* wrong for a moment, so that it changes between a check and a use */
                    atomic_store_explicit(&s->area->slots[slot][i], dice, memory_order_relaxed);
                atomic_store_explicit(&s->area->slots[slot][i], word, memory_order_relaxed);
            }
        atomic_fetch_add(&s->area->tail, 1);
    }
    return NULL;
}

/* Whatever changes while it is read: what was taken for right is right, and stays it. */
static void test_changing_slots(void **state)
{
    td_ring daemon, client;
    td_wire_rules rules = wire_rules(TD_WIRE_JOB);
    td_wire_message m;
    pthread_t thread;
    scribbler s;
    int right = 0, wrong = 0;

    (void)state;
    open_rings(&daemon, &client);
    s.area = client.area;
    atomic_init(&s.stop, false);
    assert_int_equal(pthread_create(&thread, NULL, scribble, &s), 0);
    for (const uint64_t begin = td_now_ns(); td_now_ns() - begin < 300000000 || right < 100;) {
        const td_wire_rules fresh = wire_rules(TD_WIRE_JOB);
        tandem_status status;

        assert_true(td_now_ns() - begin < 30000000000);
        rules = fresh;
        daemon.own = atomic_load(&daemon.area->tail) - 1;
        status = td_ring_take(&daemon, &rules, &m, why, why_bytes);
        assert_true(status == TANDEM_OK || status == TANDEM_ERROR_PROTOCOL);
        if (status == TANDEM_OK) {
            assert_int_equal(check(&fresh, TD_WIRE_RING, &m, TD_WIRE_SLOT_BYTES, 0), TANDEM_OK);
            assert_null(wire_promise(&fresh, TD_WIRE_RING, &m, TD_WIRE_SLOT_BYTES));
        }
        right += status == TANDEM_OK;
        wrong += status != TANDEM_OK;
    }
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    print_message("%d right, %d wrong\n", right, wrong);
    close_rings(&daemon, &client);
}

/* Puts jobs 1, 2, 3 ... until told otherwise, or `count`. */
static void produce(td_ring *client, uint64_t count)
{
    for (uint64_t ticket = 1; ticket <= count; ticket++) {
        const td_wire_message job = numbered_job(ticket);
        tandem_status status;

        while ((status = td_ring_put(client, &job, NULL, 0)) == TANDEM_ERROR_BUSY)
            sched_yield();
        if (status != TANDEM_OK)
            _exit(1);
    }
}

/* Forks a producer. The socket tells when it is gone. */
static pid_t start_producer(td_ring *daemon, int *socket, uint64_t count)
{
    td_ring client;
    int fds[2];
    pid_t pid;

    open_rings(daemon, &client);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fds[0]);
        produce(&client, count);
        _exit(0);
    }
    close(fds[1]);
    td_ring_close(&client);
    *socket = fds[0];
    return pid;
}

/* Takes all until the producer is gone; returns how many there were. */
static uint64_t consume(td_ring *daemon, int socket)
{
    td_wire_rules rules = wire_rules(TD_WIRE_JOB);
    uint64_t taken = 0;
    td_wire_message m;

    rules.next_ticket = 1;
    for (;;) {
        tandem_status status = td_ring_take(daemon, &rules, &m, why, why_bytes);

        if (status == TANDEM_ERROR_BUSY) {
            status = td_ring_await(daemon, socket, 30000000000, why, why_bytes);
            if (status == TANDEM_ERROR_LOST)
                return taken;
            assert_int_equal(status, TANDEM_OK);
            continue;
        }
        assert_int_equal(status, TANDEM_OK);
        {
            const td_wire_message job = numbered_job(++taken);

            if (memcmp(&m, &job, sizeof job.job)) /* assert_memory_equal() is slow */
                assert_memory_equal(&m, &job, sizeof job.job);
        }
    }
}

static void test_two_processes(void **state)
{
    uint64_t begin;
    td_ring daemon;
    int socket, status;
    pid_t pid;

    (void)state;
    begin = td_now_ns();
    pid = start_producer(&daemon, &socket, MESSAGES);
    assert_int_equal(consume(&daemon, socket), MESSAGES);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    print_message("%d jobs through the ring: %.2f us each\n", MESSAGES,
                  (double)(td_now_ns() - begin) / 1e3 / (double)MESSAGES);
    close(socket);
    td_ring_close(&daemon);
}

/* A producer that is killed at any moment leaves whole jobs, or none. */
static void test_killed_producer(void **state)
{
    uint64_t total = 0;

    (void)state;
    for (int i = 0; i < KILLS; i++) {
        td_ring daemon;
        int socket, status;
        const pid_t pid = start_producer(&daemon, &socket, UINT64_MAX);
        uint64_t begin;

        for (int n = 0; n < 5 && i % 2; n++) /* half of them fill the ring, half are read from meanwhile */
            td_ring_await(&daemon, socket, 1000000, why, why_bytes);
        if (i % 2) {
            const pid_t killer = fork();

            if (killer == 0) {
                usleep((unsigned)(i * 977 % 5000));
                kill(pid, SIGKILL);
                _exit(0);
            }
            total += consume(&daemon, socket);
            assert_int_equal(waitpid(killer, &status, 0), killer);
        } else {
            usleep((unsigned)(i * 977 % 5000));
            assert_int_equal(kill(pid, SIGKILL), 0);
            total += consume(&daemon, socket);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        begin = td_now_ns();
        assert_int_equal(td_ring_await(&daemon, socket, 10000000000, why, why_bytes), TANDEM_ERROR_LOST);
        assert_true(td_now_ns() - begin < 5000000000);
        close(socket);
        td_ring_close(&daemon);
    }
    assert_true(total > 0);
}

/* A frame makes no system call unless somebody sleeps; then one. */
static void test_system_calls(void **state)
{
    td_wire_rules rules = wire_rules(TD_WIRE_JOB);
    td_ring daemon, client;
    td_point point;
    td_wire_message m;
    int fd, calls;

    (void)state;
    open_rings(&daemon, &client);
    assert_int_equal(td_point_make(&point, 0, &fd, why, why_bytes), TANDEM_OK);
    close(fd);
    rules.next_ticket = 1;
    calls = futex_calls;
    for (uint64_t i = 1; i <= 1000; i++) {
        const td_wire_message job = numbered_job(i);
        td_wire_report report = {.state = TANDEM_JOB_DONE};
        uint64_t value;

        assert_int_equal(td_ring_put(&client, &job, why, why_bytes), TANDEM_OK);
        assert_int_equal(td_ring_await(&daemon, -1, 1000, why, why_bytes), TANDEM_OK);
        assert_int_equal(td_ring_take(&daemon, &rules, &m, why, why_bytes), TANDEM_OK);
        td_ring_report(&daemon, i, &report);
        assert_int_equal(td_ring_read_report(&client, i, &report, why, why_bytes), TANDEM_OK);
        td_point_raise(&point, i);
        assert_int_equal(td_point_read(&point, &value, why, why_bytes), TANDEM_OK);
        assert_int_equal(td_point_await(&point, i, -1, 1000, why, why_bytes), TANDEM_OK);
    }
    assert_int_equal(futex_calls, calls);
    atomic_fetch_add(&client.area->to_daemon.waiters, 1);
    m = numbered_job(1001);
    assert_int_equal(td_ring_put(&client, &m, why, why_bytes), TANDEM_OK);
    assert_int_equal(futex_calls, calls + 1);
    td_point_close(&point);
    close_rings(&daemon, &client);
}

/* Waits end when they should: at their bound, although bells ring for nothing and words lie. */
static void test_bounds(void **state)
{
    td_ring daemon, client;
    td_point mine, theirs;
    uint64_t begin, value;
    int fd;

    (void)state;
    open_rings(&daemon, &client);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(atomic_load(&client.area->to_daemon.waiters), i < 2 ? 0 : UINT32_MAX);
        if (i == 1)
            atomic_store(&client.area->to_daemon.waiters, UINT32_MAX); /* from one that died, or lies */
        if (i == 2)
            atomic_store(&client.area->to_daemon.count, UINT32_MAX);
        if (i == 3)
            td_bell_ring(&client.area->to_daemon);
        begin = td_now_ns();
        assert_int_equal(td_ring_await(&daemon, -1, 30000000, why, why_bytes), TANDEM_ERROR_BUSY);
        assert_in_range(td_now_ns() - begin, 30000000, 5000000000);
    }
    begin = td_now_ns();
    td_ring_sleep(&client, td_ring_seen(&client), UINT64_MAX); /* a slice at most */
    assert_in_range(td_now_ns() - begin, 50000000, 5000000000);
    value = UINT64_MAX; /* not at all where something has changed since it looked: the best of ten, on a busy machine */
    for (int i = 0; i < 10; i++) {
        begin = td_now_ns();
        td_ring_sleep(&client, td_ring_seen(&client) + 1, UINT64_MAX);
        value = td_now_ns() - begin < value ? td_now_ns() - begin : value;
    }
    assert_true(value < 50000000);
    close_rings(&daemon, &client);

    assert_int_equal(td_point_make(&mine, 5, &fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_point_open(&theirs, fd, why, why_bytes), TANDEM_OK);
    close(fd);
    assert_int_equal(theirs.highest, 5);
    begin = td_now_ns();
    assert_int_equal(td_point_await(&theirs, 6, -1, 20000000, why, why_bytes), TANDEM_ERROR_BUSY);
    assert_in_range(td_now_ns() - begin, 20000000, 5000000000);
    td_point_raise(&mine, 4); /* does not rise: left out */
    assert_int_equal(td_point_read(&theirs, &value, why, why_bytes), TANDEM_OK);
    assert_int_equal(value, 5);
    td_point_raise(&mine, UINT64_MAX);
    assert_int_equal(td_point_await(&theirs, 1ull << 63, -1, 0, why, why_bytes), TANDEM_OK);
    atomic_store(&mine.page->value, 7); /* a counter that falls is a lie */
    assert_int_equal(td_point_read(&theirs, &value, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_true(value == UINT64_MAX && strstr(why, "fell"));
    assert_int_equal(td_point_await(&theirs, 8, -1, 1000000000, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    td_point_close(&mine);
    td_point_close(&theirs);

    /* Neither is mapped from what is no slab of its size. */
    fd = memfd_create("bare", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(posix_fallocate(fd, 0, TD_WIRE_AREA_BYTES), 0);
    assert_int_equal(td_ring_open(&client, fd, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_null(client.area);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    assert_int_equal(td_point_open(&theirs, fd, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_null(theirs.page);
    assert_int_equal(td_ring_open(&client, fd, why, why_bytes), TANDEM_OK);
    td_ring_close(&client);
    close(fd);
}

static td_ring last_ring;
static td_point last_point;
static td_conn last_peer;

static void act_and_die(void)
{
    const td_wire_message job = numbered_job(WIRE_TICKET);

    while_asked = NULL;
    assert_int_equal(td_ring_put(&last_ring, &job, why, why_bytes), TANDEM_OK);
    td_point_raise(&last_point, 1);
    td_conn_close(&last_peer);
}

/* A peer that signals, or puts a job, and dies at once: what it did counts. */
static void test_last_acts(void **state)
{
    static td_conn conn;
    td_ring daemon;
    td_point point;
    int fd;

    (void)state;
    for (int ring = 0; ring < 2; ring++) {
        make_pair(&last_peer, &conn);
        open_rings(&daemon, &last_ring);
        assert_int_equal(td_point_make(&last_point, 0, &fd, why, why_bytes), TANDEM_OK);
        assert_int_equal(td_point_open(&point, fd, why, why_bytes), TANDEM_OK);
        close(fd);
        while_asked = act_and_die;
        assert_int_equal(ring ? td_ring_await(&daemon, conn.fd, 10000000000, why, why_bytes)
                              : td_point_await(&point, 1, conn.fd, 10000000000, why, why_bytes),
                         TANDEM_OK);
        assert_int_equal(td_point_await(&point, 2, conn.fd, 10000000000, why, why_bytes), TANDEM_ERROR_LOST);
        td_point_close(&point);
        td_point_close(&last_point);
        close_rings(&daemon, &last_ring);
        td_conn_close(&conn);
    }
}

/* Across processes: each value wakes who waits for it; what was signalled in the last moment is seen; a death too. */
static void test_points_of_two_processes(void **state)
{
    enum { ROUNDS = 2000 };
    td_point ping, pong;
    int fds[2], sockets[2], status;
    uint64_t begin;
    pid_t pid;

    (void)state;
    assert_int_equal(td_point_make(&ping, 0, &fds[0], why, why_bytes), TANDEM_OK);
    assert_int_equal(td_point_make(&pong, 0, &fds[1], why, why_bytes), TANDEM_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    begin = td_now_ns();
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        td_point in, out;

        close(sockets[0]);
        if (td_point_open(&in, fds[0], NULL, 0) || td_point_open(&out, fds[1], NULL, 0))
            _exit(1);
        for (uint64_t i = 1; i <= ROUNDS; i++) {
            if (td_point_await(&in, i, sockets[1], 10000000000, NULL, 0))
                _exit(2);
            td_point_raise(&out, i);
        }
        td_point_raise(&out, ROUNDS + 1);
        _exit(0);
    }
    close(sockets[1]);
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        td_point_raise(&ping, i);
        assert_int_equal(td_point_await(&pong, i, sockets[0], 10000000000, why, why_bytes), TANDEM_OK);
    }
    print_message("a point there and back: %.1f us\n", (double)(td_now_ns() - begin) / 1e3 / ROUNDS);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(td_point_await(&pong, ROUNDS + 1, sockets[0], 10000000000, why, why_bytes), TANDEM_OK);
    begin = td_now_ns();
    assert_int_equal(td_point_await(&pong, ROUNDS + 2, sockets[0], 10000000000, why, why_bytes), TANDEM_ERROR_LOST);
    assert_true(td_now_ns() - begin < 5000000000);
    close(sockets[0]);
    close(fds[0]);
    close(fds[1]);
    td_point_close(&ping);
    td_point_close(&pong);
}

static void test_reports(void **state)
{
    td_wire_report r = {.state = TANDEM_JOB_FAILED,
                        .status = TANDEM_ERROR_LOST,
                        .precision = TANDEM_PRECISION_8B,
                        .begin_ns = 7,
                        .end_ns = UINT64_MAX};
    td_ring daemon, client;
    const uint64_t far = (1ull << 32) + 3; /* tickets have 64 bits, the word 32 */
    uint32_t seen;

    (void)state;
    open_rings(&daemon, &client);
    seen = td_ring_seen(&client);
    for (uint64_t t = 1; t < 600; t += 37) { /* nothing written yet */
        td_wire_report got = {.state = 99};

        assert_int_equal(td_ring_read_report(&client, t, &got, why, why_bytes), TANDEM_OK);
        assert_true(got.state == TANDEM_JOB_PENDING && got.ticket == t && !got.begin_ns);
    }
    td_ring_report(&daemon, 300, &(td_wire_report){.state = TANDEM_JOB_RUNNING, .begin_ns = 5});
    assert_int_equal(td_ring_seen(&client), seen); /* nobody waits for that */
    td_ring_report(&daemon, 300, &r);
    assert_int_equal(td_ring_seen(&client), seen + 1);
    assert_int_equal(td_ring_read_report(&client, 300, &r, why, why_bytes), TANDEM_OK);
    assert_true(r.ticket == 300 && r.state == TANDEM_JOB_FAILED && r.status == TANDEM_ERROR_LOST);
    assert_true(r.precision == TANDEM_PRECISION_8B && r.begin_ns == 7 && r.end_ns == UINT64_MAX);
    assert_int_equal(td_ring_read_report(&client, 300 - 256, &r, why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(td_ring_read_report(&client, 300 + 256, &r, why, why_bytes), TANDEM_OK);
    assert_true(r.ticket == 556 && r.state == TANDEM_JOB_PENDING && r.status == TANDEM_OK);
    td_ring_report(&daemon, far, &(td_wire_report){.state = TANDEM_JOB_DONE});
    assert_int_equal(td_ring_read_report(&client, far, &r, why, why_bytes), TANDEM_OK);
    assert_int_equal(r.state, TANDEM_JOB_DONE);
    atomic_store(&daemon.area->reports[9].word, 9ull << 32 | 6);
    assert_int_equal(td_ring_read_report(&client, 9, &r, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    close_rings(&daemon, &client);
}

typedef struct reporter {
    td_ring daemon;
    atomic_uint_fast64_t last;
    atomic_bool stop;
} reporter;

static void *keep_reporting(void *user)
{
    reporter *w = user;

    for (uint64_t t = 1; !atomic_load(&w->stop); t++) {
        if (t % 3)
            td_ring_report(&w->daemon, t, &(td_wire_report){.state = TANDEM_JOB_PENDING});
        td_ring_report(&w->daemon, t, &(td_wire_report){.state = TANDEM_JOB_DONE, .begin_ns = 3 * t, .end_ns = 5 * t});
        atomic_store(&w->last, t);
    }
    return NULL;
}

/* A report is never half one job's and half another's, however fast they come. */
static void test_reports_are_whole(void **state)
{
    static reporter w;
    td_ring client;
    pthread_t thread;
    uint32_t done = 0, old = 0, turn = 0;

    (void)state;
    open_rings(&w.daemon, &client);
    assert_int_equal(pthread_create(&thread, NULL, keep_reporting, &w), 0);
    while (atomic_load(&w.last) < 300)
        sched_yield();
    for (const uint64_t begin = td_now_ns(); td_now_ns() - begin < 300000000 || !done;) {
        /* The last, the one that is being written, the oldest that are kept. */
        const uint64_t t = atomic_load(&w.last) + (uint64_t[]){0, 1, (uint64_t)-255, (uint64_t)-254}[turn++ % 4];
        td_wire_report r;
        const tandem_status status = td_ring_read_report(&client, t, &r, why, why_bytes);

        assert_true(status == TANDEM_OK || status == TANDEM_ERROR_ARG || status == TANDEM_ERROR_BUSY);
        old += status != TANDEM_OK;
        if (status != TANDEM_OK)
            continue;
        assert_int_equal(r.ticket, (uint32_t)t);
        if (r.state == TANDEM_JOB_DONE)
            assert_true(r.begin_ns == 3 * t && r.end_ns == 5 * t);
        else
            assert_true(r.begin_ns == 0 && r.end_ns == 0);
        done++;
        assert_true(td_now_ns() - begin < 30000000000);
    }
    atomic_store(&w.stop, true);
    pthread_join(thread, NULL);
    print_message("%u whole, %u too old\n", done, old);
    close_rings(&w.daemon, &client);
}

/* A whole conversation, as PROTOCOL.md tells it: hello, a mem, a timeline, a job, its point, goodbye. */
static void test_conversation(void **state)
{
    static td_conn client, daemon;
    td_wire_rules mine = td_wire_rules_new(td_operation_of_clients), theirs = td_wire_rules_new(td_operation_of_clients);
    td_wire_message m = wire_sample(TD_WIRE_HELLO), got;
    td_ring jobs, area;
    td_point point, signal;
    int fds[TD_WIRE_MAX_FDS], fd;
    td_wire_identity identity;
    td_wire_report report = {.state = TANDEM_JOB_DONE, .begin_ns = 1, .end_ns = 2};

    (void)state;
    make_pair(&client, &daemon);
    m.header.serial = 1;
    m.hello.share = TD_WIRE_SHARE_HOST;
    td_wire_identify(&m.hello.identity);
    assert_int_equal(td_conn_send(&client, &m, NULL, why, why_bytes), TANDEM_OK);
    td_wire_took(&mine, TD_WIRE_TO_DAEMON, &m);
    assert_int_equal(td_conn_recv(&daemon, &theirs, TD_WIRE_TO_DAEMON, &got, fds, why, why_bytes), TANDEM_OK);
    memset(&identity, 0, sizeof identity);
    td_wire_identify(&identity);
    assert_int_equal(
        td_wire_match(&identity, &got.hello.identity, &got.hello.sizes, got.hello.share, why, why_bytes), TANDEM_OK);

    m = wire_sample(TD_WIRE_WELCOME);
    m.header.serial = got.header.serial;
    m.welcome.share = got.hello.share;
    m.welcome.features = got.hello.features & TD_WIRE_FEATURES;
    m.welcome.identity = identity;
    assert_int_equal(td_ring_make(&jobs, &fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_send(&daemon, &m, &fd, why, why_bytes), TANDEM_OK);
    close(fd);
    td_wire_rules_welcome(&theirs, &m.welcome);
    assert_int_equal(td_conn_recv(&client, &mine, TD_WIRE_TO_CLIENT, &got, fds, why, why_bytes), TANDEM_OK);
    td_wire_rules_welcome(&mine, &got.welcome);
    assert_int_equal(td_ring_open(&area, fds[0], why, why_bytes), TANDEM_OK);
    close(fds[0]);

    m = wire_sample(TD_WIRE_TIMELINE_CREATE);
    m.header.serial = mine.next_serial;
    assert_int_equal(td_point_make(&point, m.timeline_create.initial_value, &fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_send(&client, &m, &fd, why, why_bytes), TANDEM_OK);
    close(fd);
    td_wire_took(&mine, TD_WIRE_TO_DAEMON, &m);
    assert_int_equal(td_conn_recv(&daemon, &theirs, TD_WIRE_TO_DAEMON, &got, fds, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_point_open(&signal, fds[0], why, why_bytes), TANDEM_OK);
    close(fds[0]);
    assert_int_equal(signal.highest, got.timeline_create.initial_value);
    m = td_wire_new(TD_WIRE_DONE, got.header.serial);
    m.object.id = td_wire_id(TD_WIRE_KIND_TIMELINE, 1, 1);
    assert_int_equal(td_conn_send(&daemon, &m, NULL, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_recv(&client, &mine, TD_WIRE_TO_CLIENT, &got, fds, why, why_bytes), TANDEM_OK);
    assert_int_equal(got.header.serial, 2);

    m = wire_sample(TD_WIRE_JOB);
    m.job.ticket = mine.next_ticket;
    m.job.job.signal = (tandem_point){got.object.id, 42};
    assert_int_equal(td_ring_put(&area, &m, why, why_bytes), TANDEM_OK);
    td_wire_took(&mine, TD_WIRE_RING, &m);
    assert_int_equal(td_ring_take(&jobs, &theirs, &got, why, why_bytes), TANDEM_OK);
    assert_int_equal(theirs.next_ticket, mine.next_ticket);
    td_ring_report(&jobs, got.job.ticket, &report);
    td_point_raise(&signal, got.job.job.signal.value);
    assert_int_equal(td_point_await(&point, 42, client.fd, 1000000000, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_ring_read_report(&area, m.job.ticket, &report, why, why_bytes), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_DONE);

    m = td_wire_new(TD_WIRE_BYE, 0);
    m.bye.reason = TD_WIRE_BYE_DONE;
    assert_int_equal(td_conn_send(&client, &m, NULL, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_recv(&daemon, &theirs, TD_WIRE_TO_DAEMON, &got, fds, why, why_bytes), TANDEM_OK);
    td_conn_close(&client);
    td_conn_close(&daemon);
    td_point_close(&point);
    td_point_close(&signal);
    close_rings(&jobs, &area);
}

/* ---- vigils ---- */

/* One in vain: not again for a while, and longer each time; those that pay make up for it slowly. */
static void test_vigils(void **state)
{
    td_vigil vigil = {0};
    uint64_t now = 1000000000, longest = 0, spent = 0;

    (void)state;
    assert_true(td_vigil_pays(&vigil, now));
    td_vigil_end(&vigil, true, now);
    assert_true(td_vigil_pays(&vigil, now));
    td_vigil_end(&vigil, false, now);
    assert_false(td_vigil_pays(&vigil, now + 20 * TD_VIGIL_NS));
    assert_true(td_vigil_pays(&vigil, now + 50 * TD_VIGIL_NS));
    /* Who is always wrong: a second, in the end, for each of them. */
    for (int i = 0; i < 100; i++) {
        const uint64_t from = now;

        while (!td_vigil_pays(&vigil, now))
            now += 100000;
        longest = now - from > longest ? now - from : longest;
        td_vigil_end(&vigil, false, now);
        spent += TD_VIGIL_NS;
    }
    assert_in_range(longest, 500000000, 2000000000);
    assert_true(spent * 1000 < now - 1000000000);
    /* And back. */
    while (!td_vigil_pays(&vigil, now))
        now += 100000;
    for (int i = 0; i < 1000; i++)
        td_vigil_end(&vigil, true, now);
    td_vigil_end(&vigil, false, now);
    assert_true(td_vigil_pays(&vigil, now + 50 * TD_VIGIL_NS));
    /* To let others run takes no time where there are none, and is told where it does. */
    now = td_now_ns();
    for (int i = 0; i < 100; i++) {
        const uint64_t before = now;
        const bool soon = td_vigil_pass(&now);

        assert_true(now > before);
        assert_int_equal(soon, now - before < TD_VIGIL_NS);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, note_fds, same_fds)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_document),
        TEST(test_right_messages),
        TEST(test_bye_to_daemon),
        TEST(test_refusals),
        TEST(test_agreements),
        TEST(test_job_layout),
        TEST(test_view_end),
        TEST(test_ids_and_reports),
        TEST(test_id_table),
        TEST(test_texts),
        TEST(test_identity),
        TEST(test_listen),
        TEST(test_adopted_listener_is_closed),
        TEST(test_descriptors_travel),
        TEST(test_hostile_descriptors),
        TEST(test_other_control_messages),
        TEST(test_hostile_packets),
        TEST(test_no_descriptors_left),
        TEST(test_cut_control_data),
        TEST(test_unread),
        TEST(test_last_words),
        TEST(test_process),
        TEST(test_many_connects),
        TEST(test_kinds),
        TEST(test_ring),
        TEST(test_hostile_ring),
        TEST(test_changing_slots),
        TEST(test_two_processes),
        TEST(test_killed_producer),
        TEST(test_system_calls),
        TEST(test_bounds),
        TEST(test_last_acts),
        TEST(test_points_of_two_processes),
        TEST(test_reports),
        TEST(test_reports_are_whole),
        TEST(test_conversation),
        TEST(test_vigils),
    };

    /* No slab of this program's, whatever goes wrong, can take the machine's memory. */
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){64 << 20, 64 << 20});
    return cmocka_run_group_tests(tests, NULL, NULL);
}
