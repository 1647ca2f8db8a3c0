/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/os/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "interop/os/descriptor.h"

#ifndef SCM_PIDFD
#define SCM_PIDFD 0x04
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* Room for what the kernel may add on its own; a peer that fills it with descriptors gets them closed. */
enum { BACKLOG = 64, CONTROL_BYTES = 256 };

/* What is added to a listener's path while it does not listen yet. */
#define NOT_YET ".new"

/* The address of path with `added` behind it. */
static tandem_status address_of(const char *path, const char *added, struct sockaddr_un *to, char *why, size_t why_bytes)
{
    const size_t length = path ? strlen(path) : 0, most = sizeof to->sun_path - 1 - strlen(added);

    memset(to, 0, sizeof *to);
    to->sun_family = AF_UNIX;
    if (!length || length > most)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "socket path '%s' has %zu bytes, must have 1 to %zu",
                       path ? path : "", length, most);
    snprintf(to->sun_path, sizeof to->sun_path, "%s%s", path, added);
    return TANDEM_OK;
}

/* Removes a socket that a dead process left. */
static tandem_status remove_socket(const char *path, char *why, size_t why_bytes)
{
    struct stat st;

    return (lstat(path, &st) ? errno == ENOENT : S_ISSOCK(st.st_mode) && !unlink(path))
               ? TANDEM_OK
               : td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s is in the way, and no socket that can be removed", path);
}

/* A listening socket that is at the path from the moment at which it can be connected to: whoever waits for the path to be there, as
 * scripts do, is never refused. */
static tandem_status listen_at(td_listener *listener, const struct sockaddr_un *to, const char *path, char *why, size_t why_bytes)
{
    tandem_status status = remove_socket(path, why, why_bytes);
    struct stat st;

    if (status == TANDEM_OK)
        status = remove_socket(to->sun_path, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    listener->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* The mode of the socket becomes that of its path: no moment in which others could connect. */
    if (listener->fd < 0 || fchmod(listener->fd, 0600) || bind(listener->fd, (const struct sockaddr *)to, sizeof *to))
        return td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: %s", to->sun_path, strerror(errno));
    if (lstat(to->sun_path, &st) || !S_ISSOCK(st.st_mode) || st.st_uid != geteuid())
        return td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: something else was put in the socket's place", to->sun_path);
    if (listen(listener->fd, BACKLOG) || rename(to->sun_path, path)) {
        const int error = errno;

        unlink(to->sun_path);
        return td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: %s", path, strerror(error));
    }
    listener->device = st.st_dev;
    listener->inode = st.st_ino;
    memcpy(listener->path, path, strlen(path) + 1);
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

tandem_status td_listener_open(td_listener *listener, const char *path, char *why, size_t why_bytes)
{
    char lock_path[TD_CHANNEL_PATH_BYTES + 8];
    struct sockaddr_un to;
    tandem_status status;

    *listener = (td_listener){.fd = -1, .lock = -1, .spare = -1};
    status = address_of(path, NOT_YET, &to, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    snprintf(lock_path, sizeof lock_path, "%s.lock", path);
    listener->lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (listener->lock < 0)
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: %s", lock_path, strerror(errno));
    else if (flock(listener->lock, LOCK_EX | LOCK_NB))
        status = td_fail(why, why_bytes, errno == EWOULDBLOCK ? TANDEM_ERROR_BUSY : TANDEM_ERROR_IO,
                         "%s is locked: a daemon listens there", lock_path);
    else if ((listener->spare = td_fd_dup(listener->lock)) < 0)
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: %s", lock_path, strerror(errno));
    else
        status = listen_at(listener, &to, path, why, why_bytes);
    if (status != TANDEM_OK)
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

tandem_status td_listener_next(td_listener *listener, int *fd, char *why, size_t why_bytes)
{
    bool turned_away;
    int error;

    *fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (*fd >= 0)
        return TANDEM_OK;
    error = errno;
    if (error == EAGAIN || error == EINTR || error == ECONNABORTED)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "nobody waits to be accepted");
    if (error != EMFILE && error != ENFILE)
        return td_fail(why, why_bytes, error == ENOMEM || error == ENOBUFS ? TANDEM_ERROR_NOMEM : TANDEM_ERROR_IO,
                       "accept: %s", strerror(error));
    /* Left in the backlog it would be reported again and again. */
    td_fd_close(&listener->spare);
    *fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    turned_away = *fd >= 0;
    td_fd_close(fd);
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

/* Channels. */

tandem_status td_channel_named(const char *name, char path[TD_CHANNEL_PATH_BYTES], char *why, size_t why_bytes)
{
    const char *folder = getenv("XDG_RUNTIME_DIR");

    path[0] = 0;
    if (!folder || folder[0] != '/')
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "XDG_RUNTIME_DIR is %s",
                       folder ? "no absolute path" : "not set");
    if (snprintf(path, TD_CHANNEL_PATH_BYTES, "%s/%s", folder, name) >= TD_CHANNEL_PATH_BYTES)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "XDG_RUNTIME_DIR is '" TD_NAME "', too long for a socket's path",
                       TD_NAMED(folder));
    return TANDEM_OK;
}

tandem_status td_channel_connect(const char *path, int *channel, char *why, size_t why_bytes)
{
    struct sockaddr_un to;
    tandem_status status = address_of(path, "", &to, why, why_bytes);
    int error;

    *channel = -1;
    if (status != TANDEM_OK)
        return status;
    *channel = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*channel < 0)
        return td_fail(why, why_bytes, errno == EMFILE ? TANDEM_ERROR_NOMEM : TANDEM_ERROR_IO, "socket: %s",
                       strerror(errno));
    if (!connect(*channel, (const struct sockaddr *)&to, sizeof to))
        return TANDEM_OK;
    error = errno;
    td_fd_close(channel);
    return td_fail(why, why_bytes,
                   error == EAGAIN || error == EINTR          ? TANDEM_ERROR_BUSY
                   : error == ECONNREFUSED || error == ENOENT ? TANDEM_ERROR_LOST
                   : error == EPROTOTYPE                      ? TANDEM_ERROR_PROTOCOL
                                                              : TANDEM_ERROR_IO,
                   "%s: %s", path, strerror(error));
}

tandem_status td_channel_adopt(int fd, int *channel, char *why, size_t why_bytes)
{
    tandem_status status = check_socket(fd, 0, why, why_bytes);

    *channel = -1;
    if (status != TANDEM_OK)
        return status;
    *channel = td_fd_dup(fd);
    if (*channel >= 0 && !fcntl(*channel, F_SETFL, fcntl(*channel, F_GETFL) | O_NONBLOCK))
        return TANDEM_OK;
    status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "descriptor %d: %s", fd, strerror(errno));
    td_fd_close(channel);
    return status;
}

tandem_status td_channel_pair(int ends[2], char *why, size_t why_bytes)
{
    if (!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
        if (!fcntl(ends[0], F_SETFL, fcntl(ends[0], F_GETFL) | O_NONBLOCK))
            return TANDEM_OK;
        td_fd_close(&ends[0]);
        td_fd_close(&ends[1]);
    }
    ends[0] = ends[1] = -1;
    return td_fail(why, why_bytes, errno == EMFILE || errno == ENFILE ? TANDEM_ERROR_NOMEM : TANDEM_ERROR_IO, "socketpair: %s",
                   strerror(errno));
}

void td_channel_given(int channel, int32_t process)
{
    (void)channel;
    (void)process;
}

tandem_status td_channel_peer_of(int channel, td_channel_peer *peer, char *why, size_t why_bytes)
{
    struct ucred is = {0};
    socklen_t size = sizeof is;

    if (getsockopt(channel, SOL_SOCKET, SO_PEERCRED, &is, &size))
        return td_fail(why, why_bytes, TANDEM_ERROR_IO, "SO_PEERCRED: %s", strerror(errno));
    *peer = (td_channel_peer){.process = is.pid, .user = is.uid, .group = is.gid};
    return TANDEM_OK;
}

int td_channel_process(int channel, const td_channel_peer *peer)
{
    int fd = -1;
    socklen_t size = sizeof fd;

    if (!getsockopt(channel, SOL_SOCKET, SO_PEERPIDFD, &fd, &size))
        return fd;
    /* Before Linux 6.5; the number may already be another's, if the peer is dead: then the socket tells. */
    return td_channel_is_open(channel) ? (int)syscall(SYS_pidfd_open, peer->process, 0) : -1;
}

tandem_status td_channel_send(int channel, const void *message, uint32_t bytes, const int *fds, uint32_t fd_count, char *why,
                              size_t why_bytes)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * TD_CHANNEL_MOST_FDS)];
    } control;
    struct iovec part = {(void *)(uintptr_t)message, bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;
    int error;

    if (fd_count) {
        struct cmsghdr *c;

        memset(&control, 0, sizeof control);
        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
    }
    do
        sent = sendmsg(channel, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)bytes)
        return TANDEM_OK;
    error = errno;
    if (sent < 0 && (error == EAGAIN || error == EWOULDBLOCK))
        return TANDEM_ERROR_BUSY;
    if (sent < 0 && (error == EPIPE || error == ECONNRESET || error == ENOTCONN))
        return td_fail(why, why_bytes, TANDEM_ERROR_LOST, "the peer is gone");
    if (sent < 0 && error == EBADF && fd_count)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "descriptor %d cannot be sent: %s", fds[0], strerror(error));
    return td_fail(why, why_bytes, error == ENOMEM || error == ENOBUFS ? TANDEM_ERROR_NOMEM : TANDEM_ERROR_IO,
                   "sendmsg of %" PRIu32 " bytes: %s", bytes, sent < 0 ? strerror(error) : "cut");
}

/* Keeps the first descriptors of a message, closes all others, and returns how many came. */
static uint32_t collect(struct msghdr *message, int *fds, uint32_t most_fds)
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
            if (rights && count < most_fds)
                fds[count] = fd;
            else
                td_fd_close(&fd);
            count += rights;
        }
    }
    return count;
}

/* Whether this process could not have taken a descriptor just now. */
static bool short_of_fds(int channel)
{
    int fd = td_fd_dup(channel);
    const bool is_short = fd < 0 && (errno == EMFILE || errno == ENFILE);

    td_fd_close(&fd);
    return is_short;
}

tandem_status td_channel_receive(int channel, void *message, size_t bytes, int *fds, uint32_t most_fds, td_channel_got *got,
                                 char *why, size_t why_bytes)
{
    union {
        struct cmsghdr align;
        char bytes[CONTROL_BYTES];
    } control;
    struct iovec part = {message, bytes};
    struct msghdr m = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t came = -1;

    for (uint32_t i = 0; i < most_fds; i++)
        fds[i] = -1;
    /* A peer that closed without having read all is told of once, ahead of what it has still said: its last words. */
    for (int resets = 0; resets < 2;) {
        came = recvmsg(channel, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (came >= 0 || (errno != EINTR && errno != ECONNRESET))
            break;
        resets += errno == ECONNRESET;
    }
    if (came < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "nothing has come");
    if (came < 0 && (errno == ECONNRESET || errno == ENOTCONN || errno == EPIPE))
        return td_fail(why, why_bytes, TANDEM_ERROR_LOST, "the peer is gone");
    if (came < 0)
        return td_fail(why, why_bytes, errno == ENOMEM ? TANDEM_ERROR_NOMEM : TANDEM_ERROR_IO, "recvmsg: %s",
                       strerror(errno));
    *got = (td_channel_got){.bytes = (size_t)came,
                            .fds = collect(&m, fds, most_fds),
                            .is_longer = m.msg_flags & MSG_TRUNC,
                            .lost_fds = m.msg_flags & MSG_CTRUNC};
    got->no_fd_left = got->lost_fds && short_of_fds(channel);
    return TANDEM_OK;
}

tandem_status td_channel_wait(int channel, bool writes, int event, uint64_t timeout_ns, uint32_t *ready, char *why,
                              size_t why_bytes)
{
    const struct timespec t = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
    struct pollfd p[2] = {{channel, (short)(POLLIN | (writes ? POLLOUT : 0)), 0}, {event, POLLIN, 0}};

    *ready = 0;
    if (ppoll(p, 2, &t, NULL) < 0)
        return errno == EINTR ? TANDEM_OK : td_fail(why, why_bytes, TANDEM_ERROR_IO, "poll: %s", strerror(errno));
    if (p[0].revents & POLLNVAL)
        *ready |= TD_CHANNEL_NONE;
    else if (p[0].revents & ~POLLOUT)
        *ready |= TD_CHANNEL_READS;
    if (p[0].revents & POLLOUT)
        *ready |= TD_CHANNEL_WRITES;
    if (p[1].revents)
        *ready |= TD_CHANNEL_EVENT;
    return TANDEM_OK;
}

bool td_channel_is_open(int channel)
{
    struct pollfd p = {channel, 0, 0};

    return poll(&p, 1, 0) <= 0 || !(p.revents & (POLLHUP | POLLERR | POLLNVAL));
}

void td_channel_shut(int channel)
{
    shutdown(channel, SHUT_RDWR);
}
