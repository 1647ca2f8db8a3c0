/* What interop/os/windows makes of the system: descriptors, events, memory that is shared, files by names of UTF-8, words that are
 * waited for, threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <windows.h>

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
#include "interop/os/thread_pool.h"
#include "tandem/tandem.h"
#include "tests/interop/os/both.h"
#include "tests/limits.h"

static char why[400];

#define assert_ok(call) assert_int_equal_text(call, TANDEM_OK, #call)
static void assert_int_equal_text(int is, int wanted, const char *what)
{
    if (is != wanted)
        fail_msg("%s is %d: %s", what, is, why);
}

/* A descriptor is a handle, which the system's own functions take. */
static void test_event(void **state)
{
    int event, copy;

    (void)state;
    assert_ok(td_event_make(false, &event, why, sizeof why));
    assert_int_equal(WaitForSingleObject((HANDLE)(intptr_t)event, 0), WAIT_TIMEOUT);
    copy = td_fd_dup(event);
    assert_true(copy > 0 && copy != event);
    td_event_set(copy);
    td_fd_close(&copy);
    assert_int_equal(copy, -1);
    assert_int_equal(WaitForSingleObject((HANDLE)(intptr_t)event, 0), WAIT_OBJECT_0);
    assert_int_equal(WaitForSingleObject((HANDLE)(intptr_t)event, 0), WAIT_OBJECT_0); /* it stays set */
    td_event_clear(event);
    assert_int_equal(WaitForSingleObject((HANDLE)(intptr_t)event, 0), WAIT_TIMEOUT);
    td_fd_close(&event);
    assert_int_equal(td_fd_dup(-1), -1); /* which would be this process */
    assert_int_equal(td_fd_dup(0), -1);
    assert_int_equal(td_fd_dup(0x7ffffff0), -1);
}

static void test_alarm(void **state)
{
    uint64_t begin;
    int alarm;

    (void)state;
    assert_ok(td_alarm_make(&alarm, why, sizeof why));
    assert_int_equal(WaitForSingleObject((HANDLE)(intptr_t)alarm, 0), WAIT_TIMEOUT);
    begin = td_now_ns();
    td_alarm_set(alarm, 20000000);
    assert_int_equal(WaitForSingleObject((HANDLE)(intptr_t)alarm, 0), WAIT_TIMEOUT);
    td_event_await(alarm, 5000);
    assert_int_equal(WaitForSingleObject((HANDLE)(intptr_t)alarm, 0), WAIT_OBJECT_0);
    assert_in_range(td_now_ns() - begin, 19000000, LIMITS_SOON_NS);
    td_fd_close(&alarm);
    begin = td_now_ns();
    td_sleep_ns(3000000);
    assert_in_range(td_now_ns() - begin, 3000000, LIMITS_SOON_NS);
}

static void test_memory(void **state)
{
    void *first, *second, *aligned;
    uint64_t bytes;
    td_fd_kind kind;
    int fd, copy;

    (void)state;
    assert_int_equal(td_memfd_make("x", 4095, true, &fd, why, sizeof why), TANDEM_ERROR_ARG);
    assert_int_equal(td_memfd_make("x", 1ull << 50, true, &fd, why, sizeof why), TANDEM_ERROR_NOMEM);
    assert_ok(td_memfd_make("x", 65536, true, &fd, why, sizeof why));
    copy = td_fd_dup(fd);
    assert_ok(td_memfd_check(copy, 65536, true, why, sizeof why));
    assert_int_equal(td_memfd_check(copy, 131072, true, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    assert_true(td_fd_look(copy, &kind, &bytes) && kind == TD_FD_FILE && bytes == 65536);
    assert_ok(td_memfd_map(fd, 65536, &first, why, sizeof why));
    assert_ok(td_memfd_map(copy, 65536, &second, why, sizeof why));
    td_fd_close(&fd);
    td_fd_close(&copy);
    ((char *)first)[65535] = 7;
    assert_int_equal(((char *)second)[65535], 7);
    assert_true(td_is_mapped(first, 65536));
    td_unmap(first, 65536);
    assert_false(td_is_mapped(first, 65536));
    td_unmap(second, 65536);
    aligned = td_aligned_alloc(4096, 100);
    assert_int_equal((uintptr_t)aligned % 4096, 0);
    td_aligned_free(aligned);
    td_aligned_free(NULL);
    assert_true(td_machine_bytes() > 1 << 28 && td_page_bytes() >= 4096);
}

/* What cannot be written to by who gets it. */
static void test_memory_to_read(void **state)
{
    const uint64_t length = (1ull << 33) + 1;
    char read[4], path[TD_FILE_PATH_BYTES];
    uint64_t bytes;
    DWORD done;
    int fd, again;

    (void)state;
    assert_ok(td_memfd_make_sparse("x", "abc", 3, length, &fd, why, sizeof why));
    assert_ok(td_file_read(fd, 0, read, 4, why, sizeof why));
    assert_memory_equal(read, "abc\0", 4);
    assert_ok(td_file_read(fd, length - 4, read, 4, why, sizeof why));
    assert_memory_equal(read, "\0\0\0\0", 4);
    assert_int_equal(td_file_read(fd, length - 3, read, 4, why, sizeof why), TANDEM_ERROR_IO);
    assert_false(WriteFile((HANDLE)(intptr_t)fd, "x", 1, &done, NULL));
    assert_ok(td_file_path(fd, path, why, sizeof why));
    assert_ok(td_file_open(path, &again, &bytes, why, sizeof why));
    assert_int_equal(bytes, length);
    td_fd_close(&again);
    td_fd_close(&fd);
    assert_int_equal(td_file_open(path, &again, &bytes, why, sizeof why), TANDEM_ERROR_IO); /* gone */
}

static void test_files(void **state)
{
    static const char name[] = "t\xc3\xa4nd\xe2\x82\xacm.bin", content[] = "line\nend\x1a";
    char read[4];
    uint64_t bytes;
    char *whole;
    void *map;
    int fd;

    (void)state;
    td_file_remove(name);
    assert_int_equal(td_file_open(name, &fd, &bytes, why, sizeof why), TANDEM_ERROR_IO);
    assert_int_equal(fd, -1);
    assert_ok(td_file_create(name, &fd, why, sizeof why));
    assert_ok(td_file_write(fd, content, sizeof content, why, sizeof why));
    assert_ok(td_file_close(&fd, why, sizeof why));
    assert_int_not_equal(GetFileAttributesW(L"t\u00e4nd\u20acm.bin"), INVALID_FILE_ATTRIBUTES);
    assert_ok(td_file_open(name, &fd, &bytes, why, sizeof why));
    assert_int_equal(bytes, sizeof content);
    assert_ok(td_file_read(fd, 5, read, 4, why, sizeof why));
    assert_memory_equal(read, "end\x1a", 4);
    assert_int_equal(td_file_read(fd, 8, read, 4, why, sizeof why), TANDEM_ERROR_IO);
    assert_non_null(strstr(why, "the file ends at 10"));
    td_fd_close(&fd);
    assert_ok(td_file_map(name, &map, &bytes, why, sizeof why));
    assert_memory_equal(map, content, sizeof content);
    td_unmap(map, bytes);
    whole = td_file_whole_path(name);
    assert_non_null(whole);
    assert_true(whole[1] == ':' && strlen(whole) > strlen(name) && !strcmp(whole + strlen(whole) - strlen(name), name));
    free(whole);
    assert_true(td_file_is_from_root("C:\\a") && td_file_is_from_root("z:/a") && td_file_is_from_root("\\\\machine\\a"));
    assert_false(td_file_is_from_root("C:a") || td_file_is_from_root("\\a") || td_file_is_from_root("a") || td_file_is_from_root(""));
    td_file_remove(name);
    assert_null(td_file_whole_path(name));
    assert_int_equal(td_file_open(".", &fd, &bytes, why, sizeof why), TANDEM_ERROR_IO);
    assert_non_null(strstr(why, "is not a file"));
    assert_int_equal(td_file_open("\xff\xfe", &fd, &bytes, why, sizeof why), TANDEM_ERROR_IO);
    assert_int_equal(td_file_open("NUL", &fd, &bytes, why, sizeof why), TANDEM_ERROR_IO);
}

static _Atomic uint32_t word;

static void *wake(void *user)
{
    (void)user;
    td_thread_name("waker");
    td_sleep_ns(2000000);
    atomic_store(&word, 1);
    td_futex_wake(&word, 1);
    return NULL;
}

static void test_threads(void **state)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    pthread_t thread;
    td_cpus cpus;
    uint64_t begin;

    (void)state;
    assert_true(td_thread_start(&thread, wake, NULL));
    while (!atomic_load(&word))
        td_futex_wait(&word, 0);
    td_futex_wait(&word, 0); /* it is another: at once */
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(td_cond_make(&cond));
    pthread_mutex_lock(&lock);
    begin = td_now_ns();
    td_cond_wait(&cond, &lock, begin + 5000000);
    assert_in_range(td_now_ns() - begin, 4000000, LIMITS_SOON_NS);
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&cond);
    assert_true(td_core_count() >= 1 && td_thread_cpus(&cpus));
    td_thread_run_on_one((uint32_t)__builtin_ctzll(cpus.bits[0]));
    assert_int_equal(td_core_count(), 1);
    td_thread_run_on(&cpus);
    assert_true(td_thread_cpu() >= 0);
}

static atomic_uint turns;

static void count_turn(void *context, uint64_t index, uint32_t worker)
{
    (void)context;
    (void)index;
    (void)worker;
    atomic_fetch_add(&turns, 1);
}

static uint64_t cpu_time(void)
{
    FILETIME made, ended, kernel, user;

    GetProcessTimes(GetCurrentProcess(), &made, &ended, &kernel, &user);
    return (((uint64_t)kernel.dwHighDateTime << 32 | kernel.dwLowDateTime) +
            ((uint64_t)user.dwHighDateTime << 32 | user.dwLowDateTime)) * 100;
}

/* Threads without work sleep. */
static void test_pool(void **state)
{
    td_thread_pool *pool = td_thread_pool_create(4);
    uint64_t spent;

    (void)state;
    for (int i = 0; i < 200; i++)
        td_thread_pool_run(pool, 100, count_turn, NULL);
    assert_int_equal(turns, 20000);
    td_sleep_ns(20000000);
    spent = cpu_time();
    td_sleep_ns(300000000);
    assert_in_range(cpu_time() - spent, 0, 100000000);
    td_thread_pool_destroy(&pool);
}

static void test_process(void **state)
{
    td_process_mark mark;
    td_library *library;
    char id[64];

    (void)state;
    assert_string_equal(td_process_name(), "test_system.exe");
    assert_int_equal((uint32_t)td_process_id(), GetCurrentProcessId());
    assert_true(td_process_mark_make(&mark) && td_process_mark_is_here(&mark));
    td_process_mark_free(&mark);
    assert_int_equal(td_machine_boot_id(id, sizeof id), 0);
    assert_true(td_machine_id(id, sizeof id) == strlen(id));
    assert_int_equal(td_library_open("no-such.dll", &library, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "no-such.dll: "));
    assert_ok(td_library_open("kernel32.dll", &library, why, sizeof why));
    assert_non_null(td_library_symbol(library, "Sleep"));
    assert_null(td_library_symbol(library, "NoSuch"));
    td_library_close(&library);
}

/* A daemon is looked for where pipes are. */
static void test_socket(void **state)
{
    tandem_session_desc desc =
        TANDEM_INIT(tandem_session_desc, .socket = "\\\\.\\pipe\\nobody", .error_text = why, .error_text_bytes = sizeof why);
    tandem_session *session;

    (void)state;
    assert_int_equal(tandem_session_create(&desc, &session), TANDEM_ERROR_LOST);
    assert_non_null(strstr(why, "\\\\.\\pipe\\nobody: "));
    assert_null(session);
    desc.socket = "/run/tandem-0";
    assert_int_equal(tandem_session_create(&desc, &session), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "socket path '/run/tandem-0' must be of a pipe"));
    assert_null(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_event),   cmocka_unit_test(test_alarm),   cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_to_read), cmocka_unit_test(test_files),   cmocka_unit_test(test_threads),
        cmocka_unit_test(test_pool),    cmocka_unit_test(test_process), cmocka_unit_test(test_socket),
    };

    const test_cases own = TEST_CASES(tests), *const parts[] = {&own, &os_both_cases};

    return run_cases("system", parts, 2, NULL, NULL);
}
