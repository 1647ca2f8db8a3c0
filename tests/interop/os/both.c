/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/interop/os/both.h"

#include <string.h>

#include "interop/os/channel.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"
#include "interop/os/event.h"
#include "interop/os/file.h"
#include "interop/os/futex.h"
#include "interop/os/memory.h"
#include "interop/os/poll.h"
#include "interop/os/process.h"
#include "interop/os/thread.h"

#define LONG_NS 20000000000ull

static char why[400];

/* The second end is adopted, as another process would; what is found is what there is. */
static void pairs_are_polled(void **state)
{
    int ends[2], adopted, event, fd, came;
    td_channel_got got;
    td_polled p[3];
    char text[8];

    (void)state;
    assert_int_equal(td_channel_pair(ends, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_channel_adopt(ends[1], &adopted, why, sizeof why), TANDEM_OK);
    td_fd_close(&ends[1]);
    td_channel_given(ends[0], td_process_id());
    assert_int_equal(td_event_make(false, &event, why, sizeof why), TANDEM_OK);
    p[0] = (td_polled){ends[0], TD_POLL_READS, 0};
    p[1] = (td_polled){event, TD_POLL_READS, 0};
    p[2] = (td_polled){-1, TD_POLL_READS | TD_POLL_WRITES, 0};
    assert_true(td_poll(p, 3, 1) && !p[0].found && !p[1].found && !p[2].found);
    p[0].wants = TD_POLL_READS | TD_POLL_WRITES;
    assert_true(td_poll(p, 3, 20000) && p[0].found == TD_POLL_WRITES && !p[1].found);
    td_event_set(event);
    assert_int_equal(td_memfd_make("test", 8192, true, &fd, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_channel_send(adopted, "there", 6, &fd, 1, why, sizeof why), TANDEM_OK);
    p[0].wants = TD_POLL_READS;
    assert_true(td_poll(p, 3, 20000) && p[1].found == TD_POLL_READS);
    assert_true(td_poll(p, 1, 20000) && p[0].found == TD_POLL_READS);
    assert_int_equal(td_channel_receive(ends[0], text, sizeof text, &came, 1, &got, why, sizeof why), TANDEM_OK);
    assert_int_equal(got.fds, 1);
    assert_int_equal(td_memfd_check(came, 8192, true, why, sizeof why), TANDEM_OK);
    td_fd_close(&came);
    td_fd_close(&fd);
    td_fd_close(&adopted);
    assert_true(td_poll(p, 1, 20000) && p[0].found & TD_POLL_READS && p[0].found & TD_POLL_GONE);
    td_fd_close(&ends[0]);
    td_fd_close(&event);
}

static _Atomic uint32_t *words[3];

static void *change_one(void *user)
{
    td_sleep_ns(3000000);
    atomic_store(words[*(int *)user], 7);
    td_futex_wake_shared(words[*(int *)user]);
    return NULL;
}

/* Two in shared memory, one that is this process's alone. */
static void many_words_are_slept_on(void **state)
{
    static _Atomic uint32_t own;
    td_futex_seen seen[3];
    uint64_t begin;
    void *map;
    int fd;

    (void)state;
    assert_int_equal(td_memfd_make("test", 8192, true, &fd, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_memfd_map(fd, 8192, &map, why, sizeof why), TANDEM_OK);
    td_fd_close(&fd);
    words[0] = map;
    words[1] = &own;
    words[2] = words[0] + 1100;
    for (int i = 0; i < 3; i++)
        seen[i] = (td_futex_seen){words[i], 0};
    begin = td_now_ns();
    if (!td_futex_wait_many(seen, 3, begin + 4000000)) {
        td_unmap(map, 8192);
        print_message("this system cannot wait for many words\n");
        return;
    }
    assert_true(td_now_ns() - begin >= 1000000);
    for (int i = 0; i < 3; i++) {
        pthread_t thread;

        begin = td_now_ns();
        assert_true(td_thread_start(&thread, change_one, &i));
        while (!atomic_load(words[i]))
            assert_true(td_futex_wait_many(seen, 3, begin + LONG_NS));
        assert_true(td_now_ns() - begin < LONG_NS / 4); /* woken */
        pthread_join(thread, NULL);
        assert_true(td_futex_wait_many(seen, 3, begin + LONG_NS)); /* it is another already */
        assert_true(td_now_ns() - begin < LONG_NS / 2);
        atomic_store(words[i], 0);
    }
    td_unmap(map, 8192);
}

static void parts_are_mapped(void **state)
{
    enum { PAGES = 40, AT = 19, BYTES = PAGES * TD_MEMFD_PAGE_BYTES };
    void *whole, *part;
    int fd;

    (void)state;
    assert_int_equal(td_memfd_make("test", BYTES, false, &fd, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_memfd_map(fd, BYTES, &whole, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_memfd_map_part(fd, AT * TD_MEMFD_PAGE_BYTES, 2 * TD_MEMFD_PAGE_BYTES, &part, why, sizeof why), TANDEM_OK);
    strcpy((char *)whole + AT * TD_MEMFD_PAGE_BYTES, "the same");
    assert_string_equal(part, "the same");
    td_unmap(part, 2 * TD_MEMFD_PAGE_BYTES);
    assert_false(td_is_mapped(part, 1));
    assert_true(td_is_mapped(whole, BYTES));
    td_unmap(whole, BYTES);
    td_fd_close(&fd);
    assert_int_not_equal(td_memfd_map_part(-1, 0, TD_MEMFD_PAGE_BYTES, &part, why, sizeof why), TANDEM_OK);
    assert_null(part);
}

/* By any of its descriptors, and opened anew. */
static void files_are_told_apart(void **state)
{
    td_fd_identity is, other;
    char path[TD_FILE_PATH_BYTES];
    uint64_t bytes;
    int fd, copy, again;

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        int fds[2];

        for (int i = 0; i < 2; i++)
            assert_int_equal(kind ? td_memfd_make_sparse("test", "abc", 3, 8192, &fds[i], why, sizeof why)
                                  : td_memfd_make("test", 8192, true, &fds[i], why, sizeof why),
                             TANDEM_OK);
        copy = td_fd_dup(fds[0]);
        assert_true(td_fd_identify(fds[0], &is) && is.bytes == 8192);
        assert_true(td_fd_identify(copy, &other) && is.device == other.device && is.number == other.number);
        assert_true(td_fd_identify(fds[1], &other) && (is.device != other.device || is.number != other.number));
        td_fd_close(&copy);
        td_fd_close(&fds[0]);
        td_fd_close(&fds[1]);
    }
    assert_false(td_fd_identify(-1, &is));
    assert_true(td_fd_most() >= 64);
    assert_int_equal(td_memfd_make_sparse("test", "abc", 3, 8192, &fd, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_file_path(fd, path, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_file_open(path, &again, &bytes, why, sizeof why), TANDEM_OK);
    assert_true(td_fd_identify(fd, &is) && td_fd_identify(again, &other) && is.number == other.number && bytes == 8192);
    td_fd_close(&again);
    td_fd_close(&fd);
    assert_true(td_file_is_from_root(path));
    assert_false(td_file_is_from_root("a/b") || td_file_is_from_root(""));
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(pairs_are_polled),
    cmocka_unit_test(many_words_are_slept_on),
    cmocka_unit_test(parts_are_mapped),
    cmocka_unit_test(files_are_told_apart),
};
const test_cases os_both_cases = TEST_CASES(cases);
