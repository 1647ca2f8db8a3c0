/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/wire/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "interop/os/clock.h"
#include "interop/os/descriptor.h"

#ifndef SCM_PIDFD
#define SCM_PIDFD 0x04
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* Room for what the kernel may add on its own; a peer that fills it with descriptors gets them closed. */
enum { BACKLOG = 64, CONTROL_BYTES = 256 };

/* What the queue holds of a message; its bytes follow, padded to 8. */
typedef struct entry {
    uint32_t bytes, fds;
    int fd[TD_WIRE_MAX_FDS + TD_WIRE_MAX_FDS % 2]; /* keeps messages on multiples of 8 */
} entry;
static_assert(sizeof(entry) % 8 == 0, "messages behind it are aligned");

static void close_all(int *fds, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        td_fd_close(&fds[i]);
}

static tandem_status address_of(const char *path, struct sockaddr_un *to, char *why, size_t why_bytes)
{
    const size_t length = path ? strlen(path) : 0;

    memset(to, 0, sizeof *to);
    to->sun_family = AF_UNIX;
    if (!length || length >= sizeof to->sun_path)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "socket path '%s' has %zu bytes, must have 1 to %zu",
                       path ? path : "", length, sizeof to->sun_path - 1);
    memcpy(to->sun_path, path, length);
    return TANDEM_OK;
}

/* Whether an fd is a socket as we use them; `listening` 0 or 1. */
static tandem_status check_socket(int fd, int listening, char *why, size_t why_bytes)
{
    int domain = 0, type = 0, accepts = -1;
    socklen_t size = sizeof domain;

    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "descriptor %d is no socket: %s", fd, strerror(errno));
    if (domain != AF_UNIX || type != SOCK_SEQPACKET || accepts != listening)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "descriptor %d is a socket of domain %d, type %d, %slistening; must be a Unix SOCK_SEQPACKET, "
                       "%slistening",
                       fd, domain, type, accepts ? "" : "not ", listening ? "" : "not ");
    return TANDEM_OK;
}

static tandem_status begin(td_conn *conn, int fd, char *why, size_t why_bytes)
{
    struct ucred peer = {0};
    socklen_t size = sizeof peer;

    conn->fd = fd;
    conn->queued_bytes = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)) {
        td_fail(why, why_bytes, TANDEM_ERROR_IO, "SO_PEERCRED: %s", strerror(errno));
        td_fd_close(&conn->fd);
        return TANDEM_ERROR_IO;
    }
    conn->pid = peer.pid;
    conn->uid = peer.uid;
    conn->gid = peer.gid;
    return TANDEM_OK;
}

tandem_status td_listener_open(td_listener *listener, const char *path, char *why, size_t why_bytes)
{
    char lock_path[TD_CONN_PATH_BYTES + 8];
    struct sockaddr_un to;
    tandem_status status;
    struct stat st;

    *listener = (td_listener){.fd = -1, .lock = -1, .spare = -1};
    status = address_of(path, &to, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    snprintf(lock_path, sizeof lock_path, "%s.lock", path);
    listener->lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (listener->lock < 0) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: %s", lock_path, strerror(errno));
        goto fail;
    }
    if (flock(listener->lock, LOCK_EX | LOCK_NB)) {
        status = td_fail(why, why_bytes, errno == EWOULDBLOCK ? TANDEM_ERROR_BUSY : TANDEM_ERROR_IO,
                         "%s is locked: a daemon listens there", lock_path);
        goto fail;
    }
    if (!lstat(path, &st) && (!S_ISSOCK(st.st_mode) || unlink(path))) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s is in the way, and no socket that can be removed", path);
        goto fail;
    }
    listener->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* The mode of the socket becomes that of its path: no moment in which others could connect. */
    if (listener->fd < 0 || fchmod(listener->fd, 0600) ||
        bind(listener->fd, (const struct sockaddr *)&to, sizeof to)) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: %s", path, strerror(errno));
        goto fail;
    }
    if (lstat(path, &st) || !S_ISSOCK(st.st_mode) || st.st_uid != geteuid()) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: something else was put in the socket's place", path);
        goto fail;
    }
    listener->device = st.st_dev;
    listener->inode = st.st_ino;
    memcpy(listener->path, path, strlen(path) + 1);
    listener->spare = td_fd_dup(listener->lock);
    if (listener->spare < 0 || listen(listener->fd, BACKLOG)) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: %s", path, strerror(errno));
        goto fail;
    }
    return TANDEM_OK;

fail:
    td_listener_close(listener);
    return status;
}

tandem_status td_listener_adopt(td_listener *listener, int fd, char *why, size_t why_bytes)
{
    tandem_status status;

    *listener = (td_listener){.fd = -1, .lock = -1, .spare = -1};
    status = check_socket(fd, 1, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    listener->fd = td_fd_dup(fd);
    listener->spare = td_fd_dup(fd);
    if (listener->fd < 0 || listener->spare < 0 ||
        fcntl(listener->fd, F_SETFL, fcntl(listener->fd, F_GETFL) | O_NONBLOCK)) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "descriptor %d: %s", fd, strerror(errno));
        td_listener_close(listener);
    }
    return status;
}

tandem_status td_listener_accept(td_listener *listener, td_conn *conn, char *why, size_t why_bytes)
{
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), error;
    bool turned_away;

    conn->fd = -1;
    conn->queued_bytes = 0;
    if (fd >= 0)
        return begin(conn, fd, why, why_bytes);
    error = errno;
    if (error == EAGAIN || error == EINTR || error == ECONNABORTED)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "nobody waits to be accepted");
    if (error != EMFILE && error != ENFILE)
        return td_fail(why, why_bytes, error == ENOMEM || error == ENOBUFS ? TANDEM_ERROR_NOMEM : TANDEM_ERROR_IO,
                       "accept: %s", strerror(error));
    /* Left in the backlog it would be reported again and again. */
    td_fd_close(&listener->spare);
    fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    turned_away = fd >= 0;
    td_fd_close(&fd);
    listener->spare = td_fd_dup(listener->fd);
    if (!turned_away)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "nobody waits to be accepted");
    return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "accept: %s; a client was turned away", strerror(error));
}

void td_listener_close(td_listener *listener)
{
    struct stat st;

    if (listener->path[0] && !lstat(listener->path, &st) && st.st_dev == listener->device &&
        st.st_ino == listener->inode)
        unlink(listener->path); /* under the lock; path.lock stays, since removing it would race with the next daemon */
    listener->path[0] = 0;
    td_fd_close(&listener->fd);
    td_fd_close(&listener->spare);
    td_fd_close(&listener->lock);
}

tandem_status td_conn_connect(td_conn *conn, const char *path, char *why, size_t why_bytes)
{
    struct sockaddr_un to;
    tandem_status status;
    int fd, error;

    conn->fd = -1;
    conn->queued_bytes = 0;
    status = address_of(path, &to, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return td_fail(why, why_bytes, errno == EMFILE ? TANDEM_ERROR_NOMEM : TANDEM_ERROR_IO, "socket: %s",
                       strerror(errno));
    if (!connect(fd, (const struct sockaddr *)&to, sizeof to))
        return begin(conn, fd, why, why_bytes);
    error = errno;
    td_fd_close(&fd);
    return td_fail(why, why_bytes,
                   error == EAGAIN || error == EINTR              ? TANDEM_ERROR_BUSY
                   : error == ECONNREFUSED || error == ENOENT     ? TANDEM_ERROR_LOST
                   : error == EPROTOTYPE                          ? TANDEM_ERROR_PROTOCOL
                                                                  : TANDEM_ERROR_IO,
                   "%s: %s", path, strerror(error));
}

tandem_status td_conn_adopt(td_conn *conn, int fd, char *why, size_t why_bytes)
{
    tandem_status status = check_socket(fd, 0, why, why_bytes);
    int own;

    conn->fd = -1;
    conn->queued_bytes = 0;
    if (status != TANDEM_OK)
        return status;
    own = td_fd_dup(fd);
    if (own < 0 || fcntl(own, F_SETFL, fcntl(own, F_GETFL) | O_NONBLOCK)) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "descriptor %d: %s", fd, strerror(errno));
        td_fd_close(&own);
        return status;
    }
    return begin(conn, own, why, why_bytes);
}

/* Takes the first message off the queue. */
static void drop_first(td_conn *conn)
{
    entry first;
    uint32_t bytes;

    memcpy(&first, conn->queue, sizeof first);
    close_all(first.fd, first.fds);
    bytes = (uint32_t)(sizeof first + td_align_up(first.bytes, 8));
    conn->queued_bytes -= bytes;
    memmove(conn->queue, conn->queue + bytes, conn->queued_bytes);
}

void td_conn_close(td_conn *conn)
{
    while (conn->queued_bytes)
        drop_first(conn);
    td_fd_close(&conn->fd);
}

static tandem_status send_now(const td_conn *conn, const void *bytes, uint32_t length, const int *fds, uint32_t fd_count,
                              char *why, size_t why_bytes)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * TD_WIRE_MAX_FDS)];
    } control;
    struct iovec part = {(void *)(uintptr_t)bytes, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;
    int error;

    if (fd_count) {
        struct cmsghdr *c;

        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
    }
    do
        sent = sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)length)
        return TANDEM_OK;
    error = errno;
    if (sent < 0 && (error == EAGAIN || error == EWOULDBLOCK))
        return TANDEM_ERROR_BUSY;
    if (sent < 0 && (error == EPIPE || error == ECONNRESET || error == ENOTCONN))
        return td_fail(why, why_bytes, TANDEM_ERROR_LOST, "the peer (process %d) is gone", (int)conn->pid);
    if (sent < 0 && error == EBADF && fd_count)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "descriptor %d cannot be sent: %s", fds[0], strerror(error));
    return td_fail(why, why_bytes, error == ENOMEM || error == ENOBUFS ? TANDEM_ERROR_NOMEM : TANDEM_ERROR_IO,
                   "sendmsg of %" PRIu32 " bytes: %s", length, sent < 0 ? strerror(error) : "cut");
}

tandem_status td_conn_flush(td_conn *conn, char *why, size_t why_bytes)
{
    while (conn->queued_bytes) {
        tandem_status status;
        entry first;

        memcpy(&first, conn->queue, sizeof first);
        status = send_now(conn, conn->queue + sizeof first, first.bytes, first.fd, first.fds, why, why_bytes);
        if (status != TANDEM_OK)
            return status == TANDEM_ERROR_BUSY ? td_fail(why, why_bytes, status, "%" PRIu32 " bytes are queued still",
                                                         conn->queued_bytes)
                                               : status;
        drop_first(conn);
    }
    return TANDEM_OK;
}

tandem_status td_conn_send(td_conn *conn, const void *message, const int *fds, char *why, size_t why_bytes)
{
    const td_wire_header *h = message;
    tandem_status status;
    entry last = {.bytes = h->bytes, .fds = h->fds};
    uint64_t need;

    if (h->bytes < sizeof *h || h->bytes > sizeof(td_wire_message) || h->fds > TD_WIRE_MAX_FDS || (h->fds && !fds))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "a message of %" PRIu32 " bytes with %u descriptors", h->bytes,
                       h->fds);
    status = td_conn_flush(conn, why, why_bytes);
    if (status == TANDEM_OK)
        status = send_now(conn, message, h->bytes, fds, h->fds, why, why_bytes);
    if (status != TANDEM_ERROR_BUSY)
        return status;
    need = sizeof last + td_align_up(h->bytes, 8);
    if (need > TD_CONN_QUEUE_BYTES - conn->queued_bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_LOST,
                       "the peer (process %d) does not read: %" PRIu32 " bytes are queued", (int)conn->pid,
                       conn->queued_bytes);
    for (uint32_t i = 0; i < h->fds; i++) {
        last.fd[i] = td_fd_dup(fds[i]);
        if (last.fd[i] < 0) {
            status = td_fail(why, why_bytes, errno == EBADF ? TANDEM_ERROR_ARG : TANDEM_ERROR_NOMEM,
                             "descriptor %d cannot be queued: %s", fds[i], strerror(errno));
            close_all(last.fd, i);
            return status;
        }
    }
    memcpy(conn->queue + conn->queued_bytes, &last, sizeof last);
    memcpy(conn->queue + conn->queued_bytes + sizeof last, message, h->bytes);
    conn->queued_bytes += (uint32_t)need;
    return TANDEM_OK;
}

/* Keeps the first TD_WIRE_MAX_FDS descriptors of a message, closes all others, and returns how many came. */
static uint32_t collect(struct msghdr *message, int fds[TD_WIRE_MAX_FDS])
{
    uint32_t count = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        const bool rights = c->cmsg_type == SCM_RIGHTS;
        const size_t held = c->cmsg_len > CMSG_LEN(0) ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;

        if (c->cmsg_level != SOL_SOCKET || (!rights && c->cmsg_type != SCM_PIDFD))
            continue;
        for (size_t i = 0; i < held; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (rights && count < TD_WIRE_MAX_FDS)
                fds[count] = fd;
            else
                td_fd_close(&fd);
            count += rights;
        }
    }
    return count;
}

/* Whether this process could not have taken a descriptor just now. */
static bool short_of_fds(const td_conn *conn)
{
    int fd = td_fd_dup(conn->fd);
    const bool is_short = fd < 0 && (errno == EMFILE || errno == ENFILE);

    td_fd_close(&fd);
    return is_short;
}

tandem_status td_conn_recv(td_conn *conn, td_wire_rules *rules, td_wire_road road, td_wire_message *message,
                           int fds[TD_WIRE_MAX_FDS], char *why, size_t why_bytes)
{
    union {
        struct cmsghdr align;
        char bytes[CONTROL_BYTES];
    } control;
    struct iovec part = {message, sizeof *message};
    struct msghdr m = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    tandem_status status;
    uint32_t count;
    ssize_t got = -1;

    for (int i = 0; i < TD_WIRE_MAX_FDS; i++)
        fds[i] = -1;
    /* A peer that closed without having read all is told of once, ahead of what it has still said: its last words. */
    for (int resets = 0; resets < 2;) {
        got = recvmsg(conn->fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (got >= 0 || (errno != EINTR && errno != ECONNRESET))
            break;
        resets += errno == ECONNRESET;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "nothing has come");
    if (got < 0 && (errno == ECONNRESET || errno == ENOTCONN || errno == EPIPE))
        return td_fail(why, why_bytes, TANDEM_ERROR_LOST, "the peer (process %d) is gone", (int)conn->pid);
    if (got < 0)
        return td_fail(why, why_bytes, errno == ENOMEM ? TANDEM_ERROR_NOMEM : TANDEM_ERROR_IO, "recvmsg: %s",
                       strerror(errno));
    count = collect(&m, fds);
    memset((char *)message + got, 0, sizeof *message - (size_t)got); /* what the peer does not know of it */
    if (m.msg_flags & MSG_TRUNC) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "message is longer than the %zu bytes of the longest",
                         sizeof *message);
    } else if (m.msg_flags & MSG_CTRUNC) {
        status = TANDEM_ERROR_PROTOCOL;
        if ((size_t)got >= sizeof message->header && count < message->header.fds && short_of_fds(conn))
            status = td_wire_check(rules, road, message, (size_t)got, message->header.fds, why, why_bytes);
        else
            td_fail(why, why_bytes, status, "control data was cut: message comes with more than may be");
        if (status == TANDEM_OK) {
            td_wire_took(rules, road, message);
            status = td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "%s came without its descriptor: none is left here",
                             td_wire_name(message->header.type));
        }
    } else if (got == 0) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_LOST, "the peer (process %d) has closed", (int)conn->pid);
    } else {
        status = td_wire_check(rules, road, message, (size_t)got, count, why, why_bytes);
        if (status == TANDEM_OK)
            td_wire_took(rules, road, message);
    }
    if (status != TANDEM_OK)
        close_all(fds, count < TD_WIRE_MAX_FDS ? count : TD_WIRE_MAX_FDS);
    return status;
}

tandem_status td_conn_wait(td_conn *conn, uint64_t timeout_ns, char *why, size_t why_bytes)
{
    const uint64_t begin_ns = td_now_ns();

    for (;;) {
        const uint64_t gone = td_now_ns() - begin_ns, left = gone < timeout_ns ? timeout_ns - gone : 0;
        const struct timespec t = {(time_t)(left / 1000000000), (long)(left % 1000000000)};
        struct pollfd p = {conn->fd, (short)(POLLIN | (conn->queued_bytes ? POLLOUT : 0)), 0};
        const int ready = ppoll(&p, 1, &t, NULL);

        if (ready < 0 && errno != EINTR)
            return td_fail(why, why_bytes, TANDEM_ERROR_IO, "poll: %s", strerror(errno));
        if (ready > 0 && p.revents & POLLNVAL)
            return td_fail(why, why_bytes, TANDEM_ERROR_LOST, "the connection is closed");
        if (ready > 0 && p.revents & ~POLLOUT)
            return TANDEM_OK;
        if (ready > 0) {
            const tandem_status status = td_conn_flush(conn, why, why_bytes);

            if (status != TANDEM_OK && status != TANDEM_ERROR_BUSY)
                return status;
        }
        if (!left)
            return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "nothing came within %" PRIu64 " ms",
                           timeout_ns / 1000000);
    }
}

bool td_conn_alive(int fd)
{
    struct pollfd p = {fd, 0, 0};

    return poll(&p, 1, 0) <= 0 || !(p.revents & (POLLHUP | POLLERR | POLLNVAL));
}

int td_conn_process(const td_conn *conn)
{
    int fd = -1;
    socklen_t size = sizeof fd;

    if (!getsockopt(conn->fd, SOL_SOCKET, SO_PEERPIDFD, &fd, &size))
        return fd;
    /* Before Linux 6.5; the number may already be another's, if the peer is dead: then the socket tells. */
    return td_conn_alive(conn->fd) ? (int)syscall(SYS_pidfd_open, conn->pid, 0) : -1;
}
