/* The socket: listeners, packets, descriptors in every odd way, peers that do not read, die, or are somebody else.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interop/os/channel.h"
#include "interop/os/descriptor.h"
#include "interop/os/memory.h"
#include "tests/interop/wire/rig.h"

#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif

static void make_path(char path[64], const char *name)
{
    snprintf(path, 64, "/tmp/tandem-wire-%d-%s", (int)getpid(), name);
}

static void forget_path(const char *path)
{
    char beside[80];

    unlink(path);
    snprintf(beside, sizeof beside, "%s.lock", path);
    unlink(beside);
    snprintf(beside, sizeof beside, "%s.new", path);
    unlink(beside);
}

/* What a process leaves that is killed while it listens. */
static void leave_socket(const char *path)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un to = {.sun_family = AF_UNIX};

    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    assert_int_equal(bind(fd, (struct sockaddr *)&to, sizeof to), 0);
    close(fd);
}

static void test_listen(void **state)
{
    td_listener listener, second;
    static td_conn client, server;
    char path[64], unready[80], longer[200];
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
    snprintf(unready, sizeof unready, "%s.new", path);
    leave_socket(path);
    leave_socket(unready);
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
    fd = open(unready, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    close(fd);
    assert_int_equal(td_listener_open(&listener, path, why, why_bytes), TANDEM_ERROR_IO);
    assert_non_null(strstr(why, unready));
    assert_int_equal(access(path, F_OK), -1);
    forget_path(path);
    memset(longer, 'a', sizeof longer);
    longer[107] = 0;
    assert_int_equal(strlen(longer), 107);
    assert_int_equal(td_conn_connect(&client, longer, why, why_bytes), TANDEM_ERROR_LOST);
    longer[107] = 'a';
    longer[108] = 0;
    assert_int_equal(td_conn_connect(&client, longer, why, why_bytes), TANDEM_ERROR_ARG);
    longer[104] = 0; /* with ".new" behind it one more than there may be */
    assert_int_equal(td_listener_open(&listener, longer, why, why_bytes), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "has 104 bytes, must have 1 to 103"));
    assert_int_equal(td_listener_open(&listener, "", why, why_bytes), TANDEM_ERROR_ARG);
    assert_int_equal(td_listener_open(&listener, "/nowhere/at/all", why, why_bytes), TANDEM_ERROR_IO);
}

/* Listens at many paths, at each until somebody says that he got through. */
static _Noreturn void listen_in_turn(const char *name, int times, int got_through)
{
    for (int i = 0; i < times; i++) {
        td_listener listener;
        char path[64], byte;

        snprintf(path, sizeof path, "%s%d", name, i);
        if (td_listener_open(&listener, path, why, why_bytes) != TANDEM_OK || read(got_through, &byte, 1) != 1)
            _exit(1);
        td_listener_close(&listener);
    }
    _exit(0);
}

/* Whoever waits for the socket to be there, as scripts do, is never refused. */
static void test_listens_once_it_is_there(void **state)
{
    enum { TIMES = 300 };
    char name[56], path[64];
    int status, ends[2];
    pid_t pid;

    (void)state;
    snprintf(name, sizeof name, "/tmp/tandem-wire-%d-there", (int)getpid());
    assert_int_equal(pipe(ends), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        close(ends[1]); /* ends with us */
        listen_in_turn(name, TIMES, ends[0]);
    }
    for (int i = 0; i < TIMES; i++) {
        int channel;

        snprintf(path, sizeof path, "%s%d", name, i);
        while (td_channel_connect(path, &channel, why, why_bytes) != TANDEM_OK)
            if (!strstr(why, "No such file"))
                fail_msg("%s", why);
        td_fd_close(&channel);
        assert_int_equal(write(ends[1], "", 1), 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    for (int i = 0; i < TIMES; i++) {
        snprintf(path, sizeof path, "%s%d", name, i);
        forget_path(path);
    }
    close(ends[0]);
    close(ends[1]);
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
    int buffer, fd, fds[TD_WIRE_MAX_FDS];

    (void)state;
    make_pair(&a, &b);
    assert_int_equal(recv_one(&b, TD_WIRE_PING, &got, &fd), TANDEM_ERROR_BUSY);
    assert_int_equal(fd, -1);
    assert_int_equal(td_memfd_make("wire", m.mem_create.allocation_bytes, false, &buffer, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_send(&a, &m, &buffer, why, why_bytes), TANDEM_OK);
    assert_true(fcntl(buffer, F_GETFD) >= 0); /* stays the caller's */
    assert_int_equal(td_conn_wait(&b, 1000000000, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_recv(&b, &rules, TD_WIRE_TO_DAEMON, &got, fds, why, why_bytes), TANDEM_OK);
    assert_memory_equal(&got, &m, sizeof m.mem_create);
    assert_int_equal(rules.next_serial, WIRE_SERIAL + 1);
    assert_true(fds[0] >= 0 && fds[0] != buffer && fcntl(fds[0], F_GETFD) & FD_CLOEXEC);
    assert_true(!fstat(buffer, &sent) && !fstat(fds[0], &come) && sent.st_ino == come.st_ino);
    assert_int_equal(td_memfd_check(fds[0], m.mem_create.allocation_bytes, false, why, why_bytes), TANDEM_OK);
    close(fds[0]);

    /* The same serial again is out of order. */
    assert_int_equal(td_conn_send(&a, &m, &buffer, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_conn_recv(&b, &rules, TD_WIRE_TO_DAEMON, &got, fds, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(fds[0], -1);
    close(buffer);

    /* A descriptor that is closed cannot be sent, and says so; nor what is no message. */
    assert_int_equal(td_conn_send(&a, &m, &buffer, why, why_bytes), TANDEM_ERROR_ARG);
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
    assert_int_equal(td_memfd_make("wire", 4096, true, &fd, why, why_bytes), TANDEM_ERROR_NOMEM);
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
    int buffer, fds[TD_WIRE_MAX_FDS];

    (void)state;
    assert_int_equal(td_memfd_make("wire", 65536, false, &buffer, why, why_bytes), TANDEM_OK);
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
            status = td_conn_send(&a, &m, sent % 3 ? NULL : &buffer, why, why_bytes);
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
    close(buffer);
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
    assert_true(td_channel_is_open(client.fd));
    td_conn_close(&daemon);
    assert_false(td_channel_is_open(client.fd));
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
    assert_true(td_channel_is_open(server.fd)); /* the child has it */
    close(p.fd);
    for (int i = 0; i < 2; i++) {
        close(hold[i]);
        close(ready[i]);
    }
    for (const uint64_t begin = td_now_ns(); td_channel_is_open(server.fd);)
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

/* Descriptors of other kinds, where a shared buffer, a shared timeline, or something of a driver's belongs. */
static void test_kinds(void **state)
{
    enum { BYTES = 65536 };
    char link[64];
    int fd, pair[2], other;

    (void)state;
    assert_int_equal(td_memfd_make("wire", BYTES, false, &fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_memfd_check(fd, BYTES, false, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_opaque_check(fd, why, why_bytes), TANDEM_OK); /* what lavapipe exports is one */
    assert_int_equal(td_memfd_check(fd, BYTES, true, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(td_memfd_check(fd, BYTES - 1, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(td_memfd_check(fd, BYTES + 4096, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(ftruncate(fd, BYTES - 4096), -1);
    assert_int_equal(fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 4096), 0);
    assert_int_equal(td_memfd_check(fd, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_non_null(strstr(why, "must be allocated"));
    assert_int_equal(posix_fallocate(fd, 0, BYTES), 0);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    other = open(link, O_RDONLY | O_CLOEXEC);
    assert_true(other >= 0);
    assert_int_equal(td_memfd_check(other, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    close(other);
    other = open(link, O_PATH | O_CLOEXEC);
    assert_true(other >= 0);
    assert_int_equal(td_memfd_check(other, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(td_opaque_check(other, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    close(other);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
    assert_int_equal(td_memfd_check(fd, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    close(fd);
    assert_int_equal(td_memfd_check(fd, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(td_opaque_check(fd, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(td_opaque_check(-1, why, why_bytes), TANDEM_ERROR_PROTOCOL);

    assert_int_equal(td_memfd_make("wire", BYTES, true, &fd, why, why_bytes), TANDEM_OK);
    assert_int_equal(td_memfd_check(fd, BYTES, true, why, why_bytes), TANDEM_OK);
    assert_int_equal(ftruncate(fd, BYTES + 4096), -1);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    close(fd);
    for (int i = 0; i < 3; i++) { /* sizes that are none */
        assert_int_equal(td_memfd_make("wire", (uint64_t[]){0, 4097, 1ull << 63}[i], true, &fd, why, why_bytes),
                         TANDEM_ERROR_ARG);
        assert_int_equal(fd, -1);
    }
    assert_int_equal(td_memfd_make("wire", 1ull << 62, true, &fd, why, why_bytes), TANDEM_ERROR_NOMEM);
    assert_non_null(strstr(why, "are left"));
    assert_int_equal(td_memfd_make("wire", 128 << 20, true, &fd, why, why_bytes), TANDEM_ERROR_NOMEM); /* see main() */
    assert_int_equal(fd, -1);

    fd = memfd_create("bare", MFD_CLOEXEC | MFD_ALLOW_SEALING); /* not sealed; then sealed, but against the wrong thing */
    assert_int_equal(posix_fallocate(fd, 0, BYTES), 0);
    assert_int_equal(td_memfd_check(fd, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
    assert_int_equal(td_memfd_check(fd, BYTES, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(td_memfd_check(fd, BYTES, false, why, why_bytes), TANDEM_OK);
    close(fd);
    fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB); /* a fault may kill its reader */
    if (fd >= 0) {
        assert_int_equal(ftruncate(fd, 2 << 20), 0);
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        assert_int_equal(td_memfd_check(fd, 2 << 20, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
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
        assert_int_equal(td_memfd_check(others[i].fd, 4096, false, why, why_bytes), TANDEM_ERROR_PROTOCOL);
        assert_int_equal(td_opaque_check(others[i].fd, why, why_bytes),
                         others[i].opaque ? TANDEM_OK : TANDEM_ERROR_PROTOCOL);
        close(others[i].fd);
    }
}

static const struct CMUnitTest cases[] = {
    TEST(test_listen),
    TEST(test_listens_once_it_is_there),
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
};
const test_cases wire_socket_cases = TEST_CASES(cases);
