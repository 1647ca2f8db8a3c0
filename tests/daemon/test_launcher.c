/* Messages between the daemon's own processes: whole, and with all of their descriptors or none.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine_plugin/daemon/launcher.h"
#include "engine_plugin/daemon/pass.h"
#include "interop/os/descriptor.h"
#include "tests/plugin/daemon_util.h"

static const char word[] = "a message";

typedef struct rig {
    int ends[2], files[2]; /* two different files */
    struct rlimit room;
} rig;

static int set_up(void **state)
{
    static rig r;

    *state = &r;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r.room), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, r.ends), 0);
    r.files[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    r.files[1] = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    assert_true(r.files[0] >= 0 && r.files[1] >= 0);
    return 0;
}

static int tear_down(void **state)
{
    rig *r = *state;

    for (int i = 0; i < 2; i++) {
        td_fd_close(&r->ends[i]);
        td_fd_close(&r->files[i]);
    }
    return setrlimit(RLIMIT_NOFILE, &r->room);
}

static bool is_same_file(int a, int b)
{
    struct stat of_a, of_b;

    return !fstat(a, &of_a) && !fstat(b, &of_b) && of_a.st_ino == of_b.st_ino && of_a.st_dev == of_b.st_dev;
}

/* Takes a message that brings none of its descriptors, and leaves none in this process. */
static void fetch_without(const rig *r, tandem_status status)
{
    char text[sizeof word] = "";
    int fds[2] = {0, 0};

    assert_int_equal(td_fetch(r->ends[1], text, sizeof text, fds), status);
    assert_int_equal(fds[0], -1);
    assert_int_equal(fds[1], -1);
    if (status == TANDEM_OK)
        assert_string_equal(text, word);
}

static void all_descriptors_come(void **state)
{
    const rig *r = *state;

    for (uint32_t count = 0; count <= 2; count++) {
        char text[sizeof word] = "";
        int fds[2];

        assert_int_equal(td_pass(r->ends[0], word, sizeof word, r->files, count), TANDEM_OK);
        assert_int_equal(td_fetch(r->ends[1], text, sizeof text, fds), TANDEM_OK);
        assert_string_equal(text, word);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(fds[i] >= 0, i < count);
            if (i < count)
                assert_true(is_same_file(fds[i], r->files[i]));
            td_fd_close(&fds[i]);
        }
    }
}

static void a_message_of_another_size_brings_none(void **state)
{
    const rig *r = *state;
    const int before = count_fds_of(getpid());
    char longer[sizeof word + 1] = "";

    assert_int_equal(td_pass(r->ends[0], word, sizeof word - 1, r->files, 2), TANDEM_OK);
    fetch_without(r, TANDEM_ERROR_PROTOCOL);
    assert_int_equal(td_pass(r->ends[0], longer, sizeof longer, r->files, 2), TANDEM_OK);
    fetch_without(r, TANDEM_ERROR_PROTOCOL);
    assert_int_equal(count_fds_of(getpid()), before);
}

/* There is room for the first alone: the message is still read, or its sender would wait for an answer. */
static void a_process_without_room_takes_none(void **state)
{
    const rig *r = *state;
    const int before = count_fds_of(getpid()), next = dup(r->files[0]);
    const struct rlimit few = {(rlim_t)next + 1, r->room.rlim_max};

    assert_true(next >= 0);
    close(next);
    assert_int_equal(td_pass(r->ends[0], word, sizeof word, r->files, 2), TANDEM_OK);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    fetch_without(r, TANDEM_OK);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &r->room), 0);
    assert_int_equal(count_fds_of(getpid()), before);
}

/* More than td_pass() sends: none of ours does. */
static void too_many_are_none(void **state)
{
    const rig *r = *state;
    const int before = count_fds_of(getpid()), three[3] = {r->files[0], r->files[1], r->files[0]};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof three)];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)word, sizeof word};
    const struct msghdr m = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof three);
    memcpy(CMSG_DATA(c), three, sizeof three);
    assert_int_equal(sendmsg(r->ends[0], &m, MSG_NOSIGNAL), sizeof word);
    fetch_without(r, TANDEM_OK);
    assert_int_equal(count_fds_of(getpid()), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_descriptors_come, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_message_of_another_size_brings_none, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_process_without_room_takes_none, set_up, tear_down),
        cmocka_unit_test_setup_teardown(too_many_are_none, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
