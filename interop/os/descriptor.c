/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/os/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

int td_fd_dup(int fd)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

void td_fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

bool td_fd_standard(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) /* the lowest one is free */
            return false;
    return true;
}
