/* Between sessions and a tandemd: all that they say goes through, but for features of the protocol that neither is to know the other
 * has. So a session meets a tandemd of a time when there were fewer, and the reverse. Or one that lies: what is said can be
 * changed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_RELAY_H
#define TANDEM_TESTS_RELAY_H

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "interop/wire/wire.h"
#include "tests/plugin/daemon_util.h"

typedef struct relay {
    char path[108];
    int listener, ends[2]; /* the session's, the daemon's */
    uint64_t without;      /* features */
    void (*change)(td_wire_message *m, int fd); /* or NULL; fd: what comes with it, which may become something else, or -1 */
    struct sockaddr_un daemon;
    pthread_t thread;
} relay;

/* A packet with its descriptors; false: who sent it is gone. */
static inline bool relay_one(const relay *r, int from, int to)
{
    static _Thread_local td_wire_message m;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec bytes = {&m, sizeof m};
    struct msghdr h = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    const ssize_t got = recvmsg(from, &h, MSG_CMSG_CLOEXEC);

    if (got <= 0)
        return false;
    if (m.header.type == TD_WIRE_HELLO)
        m.hello.features &= ~r->without;
    if (r->change) {
        const struct cmsghdr *c = h.msg_controllen ? CMSG_FIRSTHDR(&h) : NULL;
        int fd = -1;

        if (c)
            memcpy(&fd, CMSG_DATA(c), sizeof fd);
        r->change(&m, fd);
    }
    bytes.iov_len = (size_t)got;
    if (!h.msg_controllen)
        h.msg_control = NULL;
    const bool sent = sendmsg(to, &h, MSG_NOSIGNAL) == got;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c))
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            close(fd);
        }
    return sent;
}

/* One session, until one of both is gone. */
static inline void *relay_all(void *user)
{
    relay *r = user;

    r->ends[0] = accept(r->listener, NULL, NULL);
    r->ends[1] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool goes_on = r->ends[0] >= 0 && !connect(r->ends[1], (struct sockaddr *)&r->daemon, sizeof r->daemon);
    while (goes_on) {
        struct pollfd p[2] = {{r->ends[0], POLLIN, 0}, {r->ends[1], POLLIN, 0}};

        if (poll(p, 2, -1) < 0)
            break;
        for (int i = 0; i < 2 && goes_on; i++)
            goes_on = !p[i].revents || relay_one(r, r->ends[i], r->ends[!i]);
    }
    for (int i = 0; i < 2; i++)
        if (r->ends[i] >= 0)
            close(r->ends[i]);
    return NULL;
}

/* Listens at `path`, for one session. */
static inline void relay_begin(relay *r, const char *path, const char *daemon, uint64_t without,
                               void (*change)(td_wire_message *m, int fd))
{
    struct sockaddr_un here = {.sun_family = AF_UNIX};

    *r = (relay){.without = without, .change = change, .daemon.sun_family = AF_UNIX};
    snprintf(r->path, sizeof r->path, "%s", path);
    snprintf(here.sun_path, sizeof here.sun_path, "%s", path);
    snprintf(r->daemon.sun_path, sizeof r->daemon.sun_path, "%s", daemon);
    unlink(path);
    r->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(r->listener >= 0);
    assert_int_equal(bind(r->listener, (struct sockaddr *)&here, sizeof here), 0);
    assert_int_equal(listen(r->listener, 1), 0);
    assert_int_equal(pthread_create(&r->thread, NULL, relay_all, r), 0);
}

/* Once the session is gone. */
static inline void relay_end(relay *r)
{
    pthread_join(r->thread, NULL);
    close(r->listener);
    unlink(r->path);
}

#endif
