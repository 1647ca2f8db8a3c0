/* The wire over pipes: the same messages, greetings and conversation as on Linux, and what a channel promises, with peers in this
 * process, in another, in one that is killed, and such that speak no channel's language.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * As `test_wire.exe --peer NAME` it is the other process.
 */
#include <stdio.h>

#include <windows.h>

#include <aclapi.h>

#include "interop/os/event.h"
#include "interop/os/futex.h"
#include "interop/os/memory.h"
#include "interop/os/process.h"
#include "interop/os/thread.h"
#include "tests/interop/wire/rig.h"

enum { WORDS_BYTES = 4096, ROUNDS = 200, FILL_BYTES = 4000 };

char why[400];
const size_t why_bytes = sizeof why;
static DWORD handles_before;

/* One by one: Wine does not say how many there are. */
static DWORD count_handles(void)
{
    DWORD count = 0, flags;

    for (uintptr_t value = 4; value < 4000; value += 4)
        count += GetHandleInformation((HANDLE)value, &flags) != 0;
    return count;
}

int note_fds(void **state)
{
    (void)state;
    handles_before = count_handles();
    return 0;
}

int same_fds(void **state)
{
    const DWORD after = count_handles();

    (void)state;
    if (after != handles_before)
        print_error("%lu handles before, %lu after\n", handles_before, after);
    return after != handles_before;
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

#define assert_ok(call) assert_ok_text(call, #call)
static void assert_ok_text(tandem_status status, const char *what)
{
    if (status != TANDEM_OK)
        fail_msg("%s is %d: %s", what, status, why);
}

/* Another name each time. */
static const char *pipe_name(void)
{
    static char name[100];
    static unsigned made;

    snprintf(name, sizeof name, "\\\\.\\pipe\\tandem-test-%lu-%u", GetCurrentProcessId(), made++);
    return name;
}

static void accept_one(td_listener *listener, int *channel)
{
    uint32_t ready;

    assert_ok(td_channel_wait(listener->fd, false, -1, 20000000000u, &ready, why, why_bytes));
    assert_int_equal(ready, TD_CHANNEL_READS);
    assert_ok(td_listener_next(listener, channel, why, why_bytes));
}

static void make_channels(int ends[2])
{
    td_listener listener;

    assert_ok(td_listener_open(&listener, pipe_name(), why, why_bytes));
    assert_ok(td_channel_connect(listener.path, &ends[1], why, why_bytes));
    accept_one(&listener, &ends[0]);
    td_listener_close(&listener);
}

void make_pair(td_conn *a, td_conn *b)
{
    td_listener listener;
    uint32_t ready;

    assert_ok(td_listener_open(&listener, pipe_name(), why, why_bytes));
    assert_ok(td_conn_connect(a, listener.path, why, why_bytes));
    assert_ok(td_channel_wait(listener.fd, false, -1, 20000000000u, &ready, why, why_bytes));
    assert_ok(td_listener_accept(&listener, b, why, why_bytes));
    td_listener_close(&listener);
}

void open_rings(td_ring *daemon, td_ring *client)
{
    const td_wire_sizes sizes = td_wire_sizes_here();
    int fd;

    assert_ok(td_ring_make(daemon, &sizes, &fd, why, why_bytes));
    assert_ok(td_ring_open(client, &sizes, fd, why, why_bytes));
    td_fd_close(&fd);
}

void close_rings(td_ring *daemon, td_ring *client)
{
    td_ring_close(daemon);
    td_ring_close(client);
}

static size_t take(int channel, char *text, size_t bytes)
{
    td_channel_got got;
    uint32_t ready;

    assert_ok(td_channel_wait(channel, false, -1, 20000000000u, &ready, why, why_bytes));
    assert_true(ready & TD_CHANNEL_READS);
    assert_ok(td_channel_receive(channel, text, bytes, NULL, 0, &got, why, why_bytes));
    return got.bytes;
}

static void test_channel(void **state)
{
    td_channel_peer peer;
    td_channel_got got;
    int ends[2], event;
    uint32_t ready;
    char text[32];

    (void)state;
    make_channels(ends);
    assert_ok(td_event_make(false, &event, why, why_bytes));
    for (int i = 0; i < 2; i++) {
        assert_ok(td_channel_peer_of(ends[i], &peer, why, why_bytes));
        assert_int_equal(peer.process, td_process_id());
        assert_int_equal(peer.user, td_process_user());
        assert_true(td_channel_is_open(ends[i]));
        assert_int_equal(td_channel_receive(ends[i], text, sizeof text, NULL, 0, &got, why, why_bytes), TANDEM_ERROR_BUSY);
    }
    assert_ok(td_channel_wait(ends[0], false, event, 1000, &ready, why, why_bytes));
    assert_int_equal(ready, 0);
    td_event_set(event);
    assert_ok(td_channel_wait(ends[0], true, event, 1000000000, &ready, why, why_bytes));
    assert_int_equal(ready, TD_CHANNEL_EVENT | TD_CHANNEL_WRITES);
    assert_ok(td_channel_send(ends[1], "first", 6, NULL, 0, why, why_bytes));
    assert_ok(td_channel_send(ends[1], "second", 7, NULL, 0, why, why_bytes));
    assert_int_equal(WaitForSingleObject((HANDLE)(intptr_t)ends[0], 20000), WAIT_OBJECT_0); /* as engines may */
    assert_int_equal(take(ends[0], text, sizeof text), 6);
    assert_string_equal(text, "first");
    assert_ok(td_channel_send(ends[0], "back", 5, NULL, 0, why, why_bytes));
    assert_int_equal(take(ends[1], text, sizeof text), 5);
    assert_string_equal(text, "back");
    /* What was said before the end is still there to take. */
    td_channel_shut(ends[1]);
    assert_false(td_channel_is_open(ends[1]));
    assert_false(td_channel_is_open(ends[0]));
    assert_int_equal(take(ends[0], text, 3), 3); /* cut */
    assert_int_equal(take(ends[0], text, sizeof text), 0);
    assert_int_equal(take(ends[0], text, sizeof text), 0);
    assert_int_equal(take(ends[1], text, sizeof text), 0);
    assert_int_equal(td_channel_send(ends[0], "gone", 5, NULL, 0, why, why_bytes), TANDEM_ERROR_LOST);
    assert_int_equal(td_channel_send(ends[1], "gone", 5, NULL, 0, why, why_bytes), TANDEM_ERROR_LOST);
    td_fd_close(&ends[0]);
    td_fd_close(&ends[1]);
    td_fd_close(&event);
    assert_ok(td_channel_wait(0x7ffffff0, false, -1, 0, &ready, why, why_bytes));
    assert_int_equal(ready, TD_CHANNEL_NONE);
}

/* Who does not read is told of as such, and nothing that was taken up is lost. */
static void test_full(void **state)
{
    static char message[FILL_BYTES], got[FILL_BYTES];
    tandem_status status = TANDEM_OK;
    uint32_t sent = 0, ready;
    int ends[2];

    (void)state;
    make_channels(ends);
    for (; sent < 10000 && status == TANDEM_OK; sent += status == TANDEM_OK) {
        memcpy(message, &sent, sizeof sent);
        status = td_channel_send(ends[0], message, sizeof message, NULL, 0, why, why_bytes);
    }
    assert_int_equal(status, TANDEM_ERROR_BUSY);
    assert_ok(td_channel_wait(ends[0], true, -1, 1000, &ready, why, why_bytes));
    assert_int_equal(ready, 0);
    for (uint32_t i = 0; i < sent; i++) {
        assert_int_equal(take(ends[1], got, sizeof got), sizeof got);
        assert_memory_equal(got, &i, sizeof i);
    }
    assert_ok(td_channel_wait(ends[0], true, -1, 20000000000u, &ready, why, why_bytes));
    assert_int_equal(ready, TD_CHANNEL_WRITES);
    assert_ok(td_channel_send(ends[0], message, sizeof message, NULL, 0, why, why_bytes));
    td_fd_close(&ends[0]);
    assert_int_equal(take(ends[1], got, sizeof got), sizeof got);
    assert_int_equal(take(ends[1], got, sizeof got), 0);
    td_fd_close(&ends[1]);
}

/* With room for one of three, the others stay where they are, and are counted; duplicates that were taken are given up with the
 * next word of who took them. */
static void test_handles(void **state)
{
    int ends[2], fds[3], came[2];
    td_channel_got got;
    DWORD before;
    char text[8];

    (void)state;
    make_channels(ends);
    for (int i = 0; i < 3; i++)
        assert_ok(td_memfd_make("test", 4096, true, &fds[i], why, why_bytes));
    before = count_handles();
    assert_ok(td_channel_send(ends[0], "three", 6, fds, 3, why, why_bytes));
    assert_int_equal(count_handles(), before + 3);
    assert_ok(td_channel_receive(ends[1], text, sizeof text, came, 1, &got, why, why_bytes));
    assert_true(got.bytes == 6 && got.fds == 3 && !got.is_longer && !got.lost_fds && !got.no_fd_left);
    assert_ok(td_memfd_check(came[0], 4096, true, why, why_bytes));
    td_fd_close(&came[0]);
    assert_ok(td_channel_send(ends[1], "thanks", 7, NULL, 0, why, why_bytes));
    assert_int_equal(take(ends[0], text, sizeof text), 7);
    assert_int_equal(count_handles(), before);
    assert_int_equal(td_channel_send(ends[0], "none", 5, (int[]){-1}, 1, why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(td_channel_send(ends[0], "none", 5, (int[]){0x7ffffff0}, 1, why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(count_handles(), before);
    assert_ok(td_channel_send(ends[0], "more", 5, fds, 3, why, why_bytes)); /* and is never taken */
    td_fd_close(&ends[0]);
    td_fd_close(&ends[1]);
    for (int i = 0; i < 3; i++)
        td_fd_close(&fds[i]);
}

/* Each writes what no channel would, with handles of this process's numbers that were never given. */
static void test_strangers(void **state)
{
    static char junk[100000];
    static const size_t lengths[] = {1, 23, 24, 90000, sizeof junk};

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths * 3; i++) {
        const char *name = pipe_name();
        int channel, fds[4];
        uint32_t ready, header[6] = {i % 3 ? 4 : 5, i % 3 == 2, 4, 8, 12, UINT32_MAX};
        td_channel_got got;
        td_listener listener;
        tandem_status status;
        HANDLE pipe;
        DWORD bytes;
        char text[16];

        assert_ok(td_listener_open(&listener, name, why, why_bytes));
        pipe = CreateFileA(name, GENERIC_READ | GENERIC_WRITE, 0, NULL, OPEN_EXISTING, FILE_FLAG_OVERLAPPED, NULL);
        assert_ptr_not_equal(pipe, INVALID_HANDLE_VALUE);
        accept_one(&listener, &channel);
        memcpy(junk, header, sizeof header);
        {
            OVERLAPPED writing = {.hEvent = CreateEventW(NULL, TRUE, FALSE, NULL)};

            WriteFile(pipe, junk, (DWORD)lengths[i / 3], NULL, &writing);
            assert_ok(td_channel_wait(channel, false, -1, 20000000000u, &ready, why, why_bytes));
            status = td_channel_receive(channel, text, sizeof text, fds, 4, &got, why, why_bytes);
            GetOverlappedResult(pipe, &writing, &bytes, TRUE);
            CloseHandle(writing.hEvent);
        }
        if (lengths[i / 3] >= sizeof header && i % 3 == 1) { /* its handles are taken from this process, which plays both */
            assert_int_equal(status, TANDEM_OK);
            assert_int_equal(got.is_longer, lengths[i / 3] > sizeof header);
            assert_true(got.lost_fds); /* the last is none */
            for (int j = 0; j < 4; j++)
                td_fd_close(&fds[j]);
            assert_int_equal(td_channel_receive(channel, text, sizeof text, NULL, 0, &got, why, why_bytes), TANDEM_ERROR_BUSY);
        } else {
            assert_int_equal(status, TANDEM_ERROR_PROTOCOL);
            assert_false(td_channel_is_open(channel));
        }
        td_fd_close(&channel);
        CloseHandle(pipe);
        td_listener_close(&listener);
    }
}

static void test_listener(void **state)
{
    char path[100], text[8];
    td_listener listener, second;
    int channel, many[40], came;
    uint32_t connected = 0, accepted = 0;
    PACL acl = NULL;
    PSECURITY_DESCRIPTOR security = NULL;
    ACCESS_ALLOWED_ACE *entry;

    (void)state;
    snprintf(path, sizeof path, "%s", pipe_name());
    assert_int_equal(td_channel_connect(path, &channel, why, why_bytes), TANDEM_ERROR_LOST);
    assert_int_equal(td_channel_connect("C:\\pipe", &channel, why, why_bytes), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "socket path 'C:\\pipe' must be of a pipe: '\\\\.\\pipe\\NAME'"));
    assert_int_equal(td_channel_connect(NULL, &channel, why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(td_channel_connect("\\\\.\\pipe\\\xff", &channel, why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(td_listener_open(&listener, "/tmp/x", why, why_bytes), TANDEM_ERROR_ARG);
    td_listener_close(&listener);
    assert_ok(td_listener_open(&listener, path, why, why_bytes));
    assert_int_equal(td_listener_next(&listener, &channel, why, why_bytes), TANDEM_ERROR_BUSY);
    assert_int_equal(td_listener_open(&second, path, why, why_bytes), TANDEM_ERROR_BUSY);
    td_listener_close(&second);
    /* More than wait at once; who is turned away is told that it is not for good. */
    while (connected < 40 && td_channel_connect(path, &many[connected], why, why_bytes) == TANDEM_OK)
        connected++;
    assert_in_range(connected, 10, 39);
    assert_int_equal(td_channel_connect(path, &channel, why, why_bytes), TANDEM_ERROR_BUSY);
    while (td_listener_next(&listener, &came, why, why_bytes) == TANDEM_OK) {
        if (!accepted++) { /* nobody but this user may open it */
            HANDLE pipe = CreateFileA(path, READ_CONTROL | GENERIC_READ, 0, NULL, OPEN_EXISTING, 0, NULL);

            assert_ptr_not_equal(pipe, INVALID_HANDLE_VALUE);
            assert_int_equal(GetSecurityInfo(pipe, SE_KERNEL_OBJECT, DACL_SECURITY_INFORMATION, NULL, NULL, &acl, NULL, &security),
                             ERROR_SUCCESS);
            assert_int_equal(acl->AceCount, 1);
            assert_true(GetAce(acl, 0, (void **)&entry));
            assert_int_equal(entry->Header.AceType, ACCESS_ALLOWED_ACE_TYPE);
            assert_int_equal(*GetSidSubAuthority(&entry->SidStart, *GetSidSubAuthorityCount(&entry->SidStart) - 1u),
                             td_process_user());
            LocalFree(security);
            CloseHandle(pipe); /* and is gone before it is accepted */
        }
        td_fd_close(&came);
    }
    assert_in_range(accepted, connected, connected + 1);
    for (uint32_t i = 0; i < connected; i++) {
        assert_int_equal(take(many[i], text, sizeof text), 0);
        td_fd_close(&many[i]);
    }
    td_listener_close(&listener);
    assert_int_equal(td_channel_connect(path, &channel, why, why_bytes), TANDEM_ERROR_LOST);
    assert_int_equal(td_listener_adopt(&listener, 4, why, why_bytes), TANDEM_ERROR_ARG);
}

/* ---- another process ---- */

typedef struct shared_words {
    _Atomic uint32_t ping, pong;
} shared_words;

/* Takes memory, answers with some of its own, and then each ping with a pong, until it is killed. */
static int be_peer(const char *name)
{
    shared_words *words;
    td_channel_got got;
    uint32_t ready, seen = 0;
    int channel, fd, own;
    void *map;
    char text[8];

    if (td_channel_connect(name, &channel, why, why_bytes) != TANDEM_OK ||
        td_channel_wait(channel, false, -1, 20000000000u, &ready, why, why_bytes) != TANDEM_OK ||
        td_channel_receive(channel, text, sizeof text, &fd, 1, &got, why, why_bytes) != TANDEM_OK || got.fds != 1 ||
        td_memfd_check(fd, WORDS_BYTES, true, why, why_bytes) != TANDEM_OK ||
        td_memfd_map(fd, WORDS_BYTES, &map, why, why_bytes) != TANDEM_OK ||
        td_memfd_make("own", 2 * WORDS_BYTES, true, &own, why, why_bytes) != TANDEM_OK ||
        td_channel_send(channel, "mine", 5, &own, 1, why, why_bytes) != TANDEM_OK) {
        fprintf(stderr, "peer: %s\n", why);
        return 1;
    }
    words = map;
    for (;;) {
        td_futex_wait_shared(&words->ping, seen, 900000000);
        if (atomic_load(&words->ping) == seen)
            continue;
        seen = atomic_load(&words->ping);
        atomic_store(&words->pong, seen);
        td_futex_wake_shared(&words->pong);
    }
}

static HANDLE start_peer(const char *name)
{
    PROCESS_INFORMATION made;
    STARTUPINFOA how = {.cb = sizeof how};
    char line[1200], program[1000];

    GetModuleFileNameA(NULL, program, sizeof program);
    snprintf(line, sizeof line, "\"%s\" --peer %s", program, name);
    assert_true(CreateProcessA(NULL, line, NULL, NULL, FALSE, 0, NULL, NULL, &how, &made));
    CloseHandle(made.hThread);
    return made.hProcess;
}

static void test_processes(void **state)
{
    enum { SOME = 20 };
    uint64_t begin, took, slowest = 0, of_some = 0, best = UINT64_MAX;
    shared_words *words;
    td_channel_peer peer;
    td_listener listener;
    td_channel_got got;
    int channel, fd, came, death;
    uint32_t ready;
    HANDLE process;
    char text[8];
    void *map;

    (void)state;
    assert_ok(td_listener_open(&listener, pipe_name(), why, why_bytes));
    process = start_peer(listener.path);
    accept_one(&listener, &channel);
    td_listener_close(&listener);
    assert_ok(td_channel_peer_of(channel, &peer, why, why_bytes));
    assert_int_equal((DWORD)peer.process, GetProcessId(process));
    death = td_channel_process(channel, &peer);
    assert_true(death > 0);
    assert_ok(td_memfd_make("words", WORDS_BYTES, true, &fd, why, why_bytes));
    assert_ok(td_memfd_map(fd, WORDS_BYTES, &map, why, why_bytes));
    assert_ok(td_channel_send(channel, "yours", 6, &fd, 1, why, why_bytes));
    td_fd_close(&fd); /* at once */
    assert_ok(td_channel_wait(channel, false, -1, 20000000000u, &ready, why, why_bytes));
    assert_ok(td_channel_receive(channel, text, sizeof text, &came, 1, &got, why, why_bytes));
    assert_string_equal(text, "mine");
    assert_ok(td_memfd_check(came, 2 * WORDS_BYTES, true, why, why_bytes));
    td_fd_close(&came);

    words = map;
    begin = td_now_ns();
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        const uint64_t from = td_now_ns();

        atomic_store(&words->ping, i);
        td_futex_wake_shared(&words->ping);
        while (atomic_load(&words->pong) != i && td_now_ns() - from < 20000000000u)
            td_futex_wait_shared(&words->pong, i - 1, 900000000);
        assert_int_equal(atomic_load(&words->pong), i);
        took = td_now_ns() - from;
        slowest = took > slowest ? took : slowest;
        of_some += took;
        if (i % SOME == 0) {
            best = of_some < best ? of_some : best;
            of_some = 0;
        }
    }
    print_message("a word there and back: %.1f us, at most %.1f us\n", (double)(td_now_ns() - begin) / 1e3 / ROUNDS,
                  (double)slowest / 1e3);
    /* Woken, not found by looking each millisecond or two: the best of some, as others have the cores, too. */
    assert_in_range(best, 0, 800000ull * SOME);

    assert_true(td_channel_is_open(channel));
    assert_int_equal(WaitForSingleObject((HANDLE)(intptr_t)death, 0), WAIT_TIMEOUT);
    assert_true(TerminateProcess(process, 3));
    assert_ok(td_channel_wait(channel, false, death, 20000000000u, &ready, why, why_bytes));
    assert_true(ready);
    assert_int_equal(WaitForSingleObject((HANDLE)(intptr_t)death, 20000), WAIT_OBJECT_0);
    assert_int_equal(take(channel, text, sizeof text), 0);
    assert_false(td_channel_is_open(channel));
    assert_int_equal(td_channel_send(channel, "gone", 5, NULL, 0, why, why_bytes), TANDEM_ERROR_LOST);
    td_unmap(map, WORDS_BYTES);
    td_fd_close(&channel);
    td_fd_close(&death);
    CloseHandle(process);
}

/* Several threads of one process sleep on a word: all are woken. */
static shared_words *shared;
static atomic_uint awake;

static void *sleep_on_it(void *user)
{
    (void)user;
    while (!atomic_load(&shared->ping))
        td_futex_wait_shared(&shared->ping, 0, 999000000);
    atomic_fetch_add(&awake, 1);
    return NULL;
}

static void test_threads_on_a_word(void **state)
{
    pthread_t threads[4];
    uint64_t begin;
    void *map;
    int fd;

    (void)state;
    assert_ok(td_memfd_make("words", WORDS_BYTES, true, &fd, why, why_bytes));
    assert_ok(td_memfd_map(fd, WORDS_BYTES, &map, why, why_bytes));
    td_fd_close(&fd);
    shared = map;
    for (int i = 0; i < 4; i++)
        assert_true(td_thread_start(&threads[i], sleep_on_it, NULL));
    td_sleep_ns(20000000);
    assert_int_equal(atomic_load(&awake), 0);
    begin = td_now_ns();
    atomic_store(&shared->ping, 1);
    td_futex_wake_shared(&shared->ping);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_in_range(td_now_ns() - begin, 0, 500000000); /* nobody by its timeout */
    td_unmap(map, WORDS_BYTES);
}

static const struct CMUnitTest channels[] = {
    TEST(test_channel), TEST(test_full),      TEST(test_handles),          TEST(test_strangers),
    TEST(test_listener), TEST(test_processes), cmocka_unit_test(test_threads_on_a_word),
};
static const test_cases channel_cases = TEST_CASES(channels);

int main(int argc, char **argv)
{
    const test_cases *const parts[] = {&channel_cases, &wire_messages_cases, &wire_greeting_cases, &wire_conversation_cases};
    int warm[2];

    if (argc == 3 && !strcmp(argv[1], "--peer"))
        return be_peer(argv[2]);
    make_channels(warm); /* what the system opens once */
    td_fd_close(&warm[0]);
    td_fd_close(&warm[1]);
    return run_cases("tests", parts, sizeof parts / sizeof *parts, NULL, NULL);
}
