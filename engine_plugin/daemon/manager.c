/* What the service manager is told (sd_notify), if one has started us.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine_plugin/daemon/manager.h"
#include "interop/os/descriptor.h"
#include "interop/wire/conn.h"

int td_manager_socket(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const size_t length = path ? strlen(path) : 0;
    int fd;

    if (!length || length >= sizeof to.sun_path || (path[0] != '/' && path[0] != '@'))
        return -1;
    memcpy(to.sun_path, path, length);
    if (path[0] == '@')
        to.sun_path[0] = 0;
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, (socklen_t)(sizeof to.sun_family + length)))
        td_fd_close(&fd);
    return fd;
}

uint64_t td_manager_watchdog_ns(void)
{
    const char *pid = getenv("WATCHDOG_PID"), *us = getenv("WATCHDOG_USEC");

    if (!us || (pid && strtol(pid, NULL, 10) != (long)getpid()))
        return 0;
    return strtoull(us, NULL, 10) * 1000;
}

void td_manager_tell(int socket, const char *text)
{
    if (socket >= 0)
        (void)!send(socket, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
}
