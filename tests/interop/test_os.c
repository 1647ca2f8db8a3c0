/* What interop/os/ promises to all that stands on it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "interop/os/channel.h"
#include "interop/os/clock.h"
#include "interop/os/cpu.h"
#include "interop/os/descriptor.h"
#include "interop/os/event.h"
#include "interop/os/file.h"
#include "interop/os/futex.h"
#include "interop/os/library.h"
#include "interop/os/machine.h"
#include "interop/os/memory.h"
#include "interop/os/process.h"
#include "interop/os/thread.h"
#include "tests/interop/os/both.h"

static char why[200];

static void time_passes(void **state)
{
    const uint64_t begin = td_now_ns();

    (void)state;
    td_sleep_ns(2000000);
    assert_true(td_now_ns() - begin >= 2000000);
}

static void descriptors_are_told_apart(void **state)
{
    static const char *const paths[] = {"/proc/self/exe", "/", "/dev/null"};
    static const td_fd_kind kinds[] = {TD_FD_FILE, TD_FD_FOLDER, TD_FD_OTHER};
    int pair[2], ends[2], fd;
    td_fd_kind kind;
    uint64_t bytes;

    (void)state;
    for (int i = 0; i < 3; i++) {
        fd = open(paths[i], O_RDONLY | O_CLOEXEC);
        assert_true(td_fd_look(fd, &kind, &bytes));
        assert_int_equal(kind, kinds[i]);
        assert_int_equal(bytes != 0, kinds[i] == TD_FD_FILE);
        td_fd_close(&fd);
        assert_int_equal(fd, -1);
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    assert_int_equal(pipe(ends), 0);
    assert_true(td_fd_look(pair[0], &kind, &bytes) && kind == TD_FD_SOCKET);
    assert_true(td_fd_look(ends[0], &kind, &bytes) && kind == TD_FD_PIPE);
    assert_int_equal(td_memfd_make("test", 8192, true, &fd, why, sizeof why), TANDEM_OK);
    assert_true(td_fd_look(fd, &kind, &bytes) && kind == TD_FD_FILE && bytes == 8192);
    assert_false(td_fd_look(-1, &kind, &bytes));
    td_fd_close(&fd);
    for (int i = 0; i < 2; i++)
        td_fd_close(&pair[i]), td_fd_close(&ends[i]);
}

/* It begins with what was given, the rest reads as zeros, and nobody changes it. */
static void sparse_memory_is_for_reading(void **state)
{
    const uint64_t bytes = (1ull << 40) + 1; /* more than there is */
    char got[8];
    int fd;

    (void)state;
    assert_int_equal(td_memfd_make_sparse("test", "header", 6, bytes, &fd, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_file_read(fd, 0, got, 8, why, sizeof why), TANDEM_OK);
    assert_memory_equal(got, "header\0\0", 8);
    assert_int_equal(td_file_read(fd, bytes - 8, got, 8, why, sizeof why), TANDEM_OK);
    assert_memory_equal(got, "\0\0\0\0\0\0\0\0", 8);
    assert_int_equal(td_file_read(fd, bytes - 7, got, 8, why, sizeof why), TANDEM_ERROR_IO);
    assert_true(pwrite(fd, "x", 1, 0) < 0 && ftruncate(fd, 0) < 0 && ftruncate(fd, (off_t)bytes + 1) < 0);
    td_fd_close(&fd);
}

static void duplicates_leave_the_standard_ones(void **state)
{
    const int before = td_fd_dup(STDIN_FILENO);
    int low, high;

    (void)state;
    assert_true(before > STDERR_FILENO);
    close(STDIN_FILENO);
    low = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(low, STDIN_FILENO);
    high = td_fd_dup(low);
    assert_true(high > STDERR_FILENO);
    assert_int_equal(fcntl(high, F_GETFD), FD_CLOEXEC);
    close(low);
    assert_int_equal(td_memfd_make("test", 4096, false, &low, why, sizeof why), TANDEM_OK); /* 0 is free */
    assert_true(low > STDERR_FILENO);
    td_fd_close(&low);
    td_fd_close(&high);
    assert_int_equal(dup2(before, STDIN_FILENO), STDIN_FILENO);
    close(before);
}

static void memory_is_mapped_and_given_back(void **state)
{
    const uint64_t page = td_page_bytes(), bytes = 4 * 65536;
    unsigned char *anywhere = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *here, *there;
    int fd;

    (void)state;
    assert_true(page >= 4096 && td_machine_bytes() > page);
    assert_ptr_not_equal(anywhere, MAP_FAILED);
    memset(anywhere, 7, bytes);
    assert_true(td_is_mapped(anywhere + 1, bytes - 1));
    td_drop_pages(anywhere, bytes);
    assert_int_equal(anywhere[bytes / 2], 0);
    assert_int_equal(munmap(anywhere + bytes / 2, page), 0);
    assert_false(td_is_mapped(anywhere, bytes));
    munmap(anywhere, bytes);
    assert_int_equal(td_memfd_make("test", 8192, true, &fd, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_memfd_map(fd, 8192, &here, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_memfd_map(fd, 8192, &there, why, sizeof why), TANDEM_OK);
    td_fd_close(&fd);
    strcpy(here, "the same");
    assert_string_equal(there, "the same");
    td_unmap(here, 8192);
    td_unmap(there, 8192);
    assert_int_equal(td_memfd_map(-1, 8192, &here, why, sizeof why), TANDEM_ERROR_IO);
    assert_null(here);
}

/* From odd places, within a page and over several; and of pages that the kernel may not take back. */
static void memory_is_zeroed(void **state)
{
    enum { BYTES = 5 * 65536, EDGE = 100 };
    static const uint64_t ends[] = {EDGE + 1, 3000, 65536, 2 * 65536 + 1, BYTES - EDGE};
    unsigned char *memory = td_aligned_alloc(65536, BYTES);

    (void)state;
    assert_non_null(memory);
    for (size_t i = 0; i < 2 * sizeof ends / sizeof *ends; i++) {
        const uint64_t end = ends[i / 2];

        memset(memory, 7, BYTES);
        if (i % 2)
            assert_int_equal(mlock(memory + 65536, 65536), 0);
        td_zero_pages(memory + EDGE, end - EDGE);
        for (uint64_t at = 0; at < BYTES; at++)
            assert_int_equal(memory[at], at < EDGE || at >= end ? 7 : 0);
        if (i % 2)
            munlock(memory + 65536, 65536);
    }
    td_aligned_free(memory);
}

static void files_are_written_and_read(void **state)
{
    char path[] = "/tmp/tandem-os-XXXXXX", read[4];
    int fd = mkstemp(path);
    uint64_t bytes;
    char *whole;
    void *map;

    (void)state;
    td_fd_close(&fd);
    assert_int_equal(td_file_map(path, &map, &bytes, why, sizeof why), TANDEM_OK);
    assert_true(!map && !bytes);
    assert_int_equal(td_file_create(path, &fd, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_file_write(fd, "ten ", 4, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_file_write(fd, "bytes.", 6, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_file_close(&fd, why, sizeof why), TANDEM_OK);
    assert_int_equal(fd, -1);
    assert_int_equal(td_file_open(path, &fd, &bytes, why, sizeof why), TANDEM_OK);
    assert_int_equal(bytes, 10);
    assert_int_equal(td_file_read(fd, 4, read, 4, why, sizeof why), TANDEM_OK);
    assert_memory_equal(read, "byte", 4);
    assert_int_equal(td_file_read(fd, 8, read, 4, why, sizeof why), TANDEM_ERROR_IO);
    assert_string_equal(why, "the file ends at 10, within 4 bytes at 8");
    td_fd_close(&fd);
    assert_int_equal(td_file_map(path, &map, &bytes, why, sizeof why), TANDEM_OK);
    assert_memory_equal(map, "ten bytes.", bytes);
    td_unmap(map, bytes);
    whole = td_file_whole_path(path);
    assert_string_equal(whole, path);
    free(whole);
    td_file_remove(path);
    assert_null(td_file_whole_path(path));
    assert_int_equal(td_file_open(path, &fd, &bytes, why, sizeof why), TANDEM_ERROR_IO);
    assert_string_equal(why, "No such file or directory");
    assert_int_equal(fd, -1);
    assert_int_equal(td_file_map("/tmp", &map, &bytes, why, sizeof why), TANDEM_ERROR_IO);
    assert_string_equal(why, "it is not a file");
    assert_int_equal(td_file_create("/nowhere/at/all", &fd, why, sizeof why), TANDEM_ERROR_IO);
}

static void events_and_alarms_wake_a_channel(void **state)
{
    const uint64_t begin = td_now_ns();
    int pair[2], event, alarm, set;
    uint32_t ready;

    (void)state;
    assert_int_equal(td_event_make(false, &event, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_event_make(true, &set, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_alarm_make(&alarm, why, sizeof why), TANDEM_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(td_channel_wait(pair[0], false, event, 1000, &ready, why, sizeof why), TANDEM_OK);
    assert_int_equal(ready, 0);
    td_event_set(event);
    assert_int_equal(td_channel_wait(pair[0], true, event, UINT32_MAX, &ready, why, sizeof why), TANDEM_OK);
    assert_int_equal(ready, TD_CHANNEL_EVENT | TD_CHANNEL_WRITES);
    td_event_clear(event);
    assert_int_equal(td_channel_wait(-1, false, event, 0, &ready, why, sizeof why), TANDEM_OK);
    assert_int_equal(ready, 0);
    assert_int_equal(td_channel_wait(-1, false, set, 0, &ready, why, sizeof why), TANDEM_OK);
    assert_int_equal(ready, TD_CHANNEL_EVENT);
    td_alarm_set(alarm, 3000000);
    td_event_await(alarm, 60000);
    assert_true(td_now_ns() - begin >= 3000000);
    assert_int_equal(td_channel_wait(pair[0], false, alarm, 0, &ready, why, sizeof why), TANDEM_OK);
    assert_int_equal(ready, TD_CHANNEL_EVENT);
    assert_int_equal(td_channel_send(pair[1], "hello", 5, NULL, 0, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_channel_wait(pair[0], false, -1, UINT32_MAX, &ready, why, sizeof why), TANDEM_OK);
    assert_int_equal(ready, TD_CHANNEL_READS);
    td_channel_shut(pair[1]);
    assert_false(td_channel_is_open(pair[0]));
    td_fd_close(&pair[1]);
    td_fd_close(&pair[0]);
    td_fd_close(&event), td_fd_close(&alarm), td_fd_close(&set);
}

/* With room for one of three, the others are closed, and counted. */
static void descriptors_travel(void **state)
{
    int pair[2], fds[3], came[2];
    td_channel_peer peer;
    td_channel_got got;
    char text[8];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(td_channel_peer_of(pair[0], &peer, why, sizeof why), TANDEM_OK);
    assert_int_equal(peer.process, td_process_id());
    assert_int_equal(peer.user, td_process_user());
    for (int i = 0; i < 3; i++)
        assert_int_equal(td_memfd_make("test", 4096, true, &fds[i], why, sizeof why), TANDEM_OK);
    assert_int_equal(td_channel_send(pair[0], "three", 6, fds, 3, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_channel_receive(pair[1], text, sizeof text, came, 1, &got, why, sizeof why), TANDEM_OK);
    assert_int_equal(got.bytes, 6);
    assert_int_equal(got.fds, 3);
    assert_false(got.is_longer || got.lost_fds || got.no_fd_left);
    assert_int_equal(td_memfd_check(came[0], 4096, true, why, sizeof why), TANDEM_OK);
    td_fd_close(&came[0]);
    assert_int_equal(td_channel_send(pair[0], "longer than eight", 18, NULL, 0, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_channel_receive(pair[1], text, sizeof text, came, 2, &got, why, sizeof why), TANDEM_OK);
    assert_true(got.is_longer && !got.fds && came[0] == -1 && came[1] == -1);
    assert_int_equal(td_channel_receive(pair[1], text, sizeof text, came, 2, &got, why, sizeof why), TANDEM_ERROR_BUSY);
    assert_int_equal(td_channel_send(pair[0], "none", 5, (int[]){-1}, 1, why, sizeof why), TANDEM_ERROR_ARG);
    td_fd_close(&pair[0]);
    assert_int_equal(td_channel_receive(pair[1], text, sizeof text, came, 2, &got, why, sizeof why), TANDEM_OK);
    assert_int_equal(got.bytes, 0);
    assert_int_equal(td_channel_send(pair[1], "gone", 5, NULL, 0, why, sizeof why), TANDEM_ERROR_LOST);
    td_fd_close(&pair[1]);
    for (int i = 0; i < 3; i++)
        td_fd_close(&fds[i]);
}

static _Atomic uint32_t word;

static void *wake(void *user)
{
    (void)user;
    td_thread_name("tandem test");
    td_sleep_ns(1000000);
    atomic_store(&word, 1);
    td_futex_wake(&word, UINT32_MAX);
    td_futex_wake_shared(&word);
    return NULL;
}

static void words_are_slept_on(void **state)
{
    for (int shared = 0; shared < 2; shared++) {
        pthread_t thread;

        atomic_store(&word, 0);
        td_futex_wait(&word, 1); /* it is 0 */
        assert_true(td_thread_start(&thread, wake, NULL));
        while (!atomic_load(&word))
            if (shared)
                td_futex_wait_shared(&word, 0, 999999999);
            else
                td_futex_wait(&word, 0);
        pthread_join(thread, NULL);
    }
    (void)state;
}

static void conditions_end_by_the_clock(void **state)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const uint64_t until = td_now_ns() + 2000000;
    pthread_cond_t cond;

    (void)state;
    assert_true(td_cond_make(&cond));
    pthread_mutex_lock(&lock);
    while (td_now_ns() < until)
        td_cond_wait(&cond, &lock, until);
    td_cond_wait(&cond, &lock, 0); /* long ago */
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&cond);
}

static void *be_held(void *user)
{
    const int slack = td_thread_slack();
    td_cpus cpus, one;
    bool *good = user;

    *good = td_thread_cpus(&cpus) && slack > 0;
    td_thread_set_slack(slack / 2 + 1);
    *good = *good && td_thread_slack() == slack / 2 + 1;
    td_thread_run_on_one((uint32_t)td_thread_cpu());
    *good = *good && td_core_count() == 1 && td_thread_cpus(&one) && one.bits[td_thread_cpu() / 64] >> td_thread_cpu() % 64 & 1;
    td_thread_run_on(&cpus);
    *good = *good && td_thread_cpus(&one) && !memcmp(&cpus, &one, sizeof cpus);
    return NULL;
}

static void threads_run_where_they_are_put(void **state)
{
    const uint32_t cores = td_core_count();
    bool good = false;
    pthread_t thread;

    (void)state;
    assert_true(cores >= 1);
    assert_true(td_thread_start(&thread, be_held, &good));
    pthread_join(thread, NULL);
    assert_true(good);
    assert_int_equal(td_core_count(), cores);
}

static void a_child_is_another_process(void **state)
{
    td_process_mark mark = {0};
    int said = 0;
    pid_t child;

    (void)state;
    assert_string_equal(td_process_name(), "test_os");
    assert_true(td_process_mark_make(&mark));
    assert_true(td_process_mark_is_here(&mark));
    child = fork();
    if (!child)
        _exit(td_process_mark_is_here(&mark) ? 1 : 42);
    assert_int_equal(waitpid(child, &said, 0), child);
    assert_int_equal(WEXITSTATUS(said), 42);
    assert_true(td_process_mark_is_here(&mark));
    td_process_mark_free(&mark);
    td_process_mark_free(&mark);
}

static void libraries_are_found_or_named(void **state)
{
    td_library *library;

    (void)state;
    assert_int_equal(td_library_open("libc.so.6", &library, why, sizeof why), TANDEM_OK);
    assert_non_null(td_library_symbol(library, "strlen"));
    assert_null(td_library_symbol(library, "there is no such thing"));
    td_library_close(&library);
    assert_null(library);
    td_library_close(&library);
    assert_int_equal(td_library_open("libnone.so.9", &library, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "libnone.so.9"));
    assert_null(library);
}

static void a_start_of_the_machine_has_a_name(void **state)
{
    char first[80], again[80], cut[5];

    (void)state;
    assert_true(td_machine_boot_id(first, sizeof first) >= 32);
    td_machine_boot_id(again, sizeof again);
    assert_string_equal(first, again);
    assert_int_equal(td_machine_boot_id(cut, sizeof cut), 4);
    assert_memory_equal(first, cut, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_passes),
        cmocka_unit_test(descriptors_are_told_apart),
        cmocka_unit_test(sparse_memory_is_for_reading),
        cmocka_unit_test(duplicates_leave_the_standard_ones),
        cmocka_unit_test(memory_is_mapped_and_given_back),
        cmocka_unit_test(memory_is_zeroed),
        cmocka_unit_test(files_are_written_and_read),
        cmocka_unit_test(events_and_alarms_wake_a_channel),
        cmocka_unit_test(descriptors_travel),
        cmocka_unit_test(words_are_slept_on),
        cmocka_unit_test(conditions_end_by_the_clock),
        cmocka_unit_test(threads_run_where_they_are_put),
        cmocka_unit_test(a_child_is_another_process),
        cmocka_unit_test(libraries_are_found_or_named),
        cmocka_unit_test(a_start_of_the_machine_has_a_name),
    };

    const test_cases own = TEST_CASES(tests), *const parts[] = {&own, &os_both_cases};

    return run_cases("os", parts, 2, NULL, NULL);
}
