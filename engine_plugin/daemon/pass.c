/* Messages between our own processes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "engine_plugin/daemon/pass.h"
#include "interop/os/descriptor.h"

tandem_status td_pass(int to, const void *message, size_t bytes, const int *fds, uint32_t fd_count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)message, bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;

    if (fd_count) {
        struct cmsghdr *c;

        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, fd_count * sizeof(int));
    }
    do
        sent = sendmsg(to, &m, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)bytes)
        return TANDEM_OK;
    return sent < 0 && (errno == EAGAIN || errno == ENOBUFS) ? TANDEM_ERROR_BUSY : TANDEM_ERROR_LOST;
}

tandem_status td_fetch(int from, void *message, size_t bytes, int fds[2])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec part = {message, bytes};
    struct msghdr m = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    uint32_t count = 0;
    ssize_t got;
    bool whole;

    fds[0] = fds[1] = -1;
    do
        got = recvmsg(from, &m, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return got < 0 && errno == EAGAIN ? TANDEM_ERROR_BUSY : TANDEM_ERROR_LOST;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len && count < 2; i++)
            memcpy(&fds[count++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
    whole = (size_t)got == bytes && !(m.msg_flags & MSG_TRUNC);
    if (!whole || m.msg_flags & MSG_CTRUNC) { /* some of the descriptors are no message's */
        td_fd_close(&fds[0]);
        td_fd_close(&fds[1]);
    }
    return whole ? TANDEM_OK : TANDEM_ERROR_PROTOCOL;
}
