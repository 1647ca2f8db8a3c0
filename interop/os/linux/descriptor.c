/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/os/descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

bool td_fd_look(int fd, td_fd_kind *kind, uint64_t *bytes)
{
    struct stat st;
    int64_t end = 0;

    if (fstat(fd, &st))
        return false;
    *kind = S_ISREG(st.st_mode)    ? TD_FD_FILE
            : S_ISDIR(st.st_mode)  ? TD_FD_FOLDER
            : S_ISFIFO(st.st_mode) ? TD_FD_PIPE
            : S_ISSOCK(st.st_mode) ? TD_FD_SOCKET
                                   : TD_FD_OTHER;
    if (*kind == TD_FD_FILE)
        end = st.st_size;
    else if (*kind == TD_FD_OTHER && !S_ISCHR(st.st_mode) && !S_ISBLK(st.st_mode))
        end = lseek(fd, 0, SEEK_END); /* a dma-buf has no position that this could move */
    *bytes = end > 0 ? (uint64_t)end : 0;
    return true;
}

bool td_fd_identify(int fd, td_fd_identity *identity)
{
    struct stat st;

    if (fstat(fd, &st))
        return false;
    *identity = (td_fd_identity){.device = st.st_dev,
                                 .number = st.st_ino,
                                 .bytes = (uint64_t)st.st_size,
                                 .changed_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec};
    return true;
}

uint32_t td_fd_most(void)
{
    struct rlimit limit = {0};

    getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur < UINT32_MAX ? (uint32_t)limit.rlim_cur : UINT32_MAX;
}

bool td_fd_standard(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) /* the lowest one is free */
            return false;
    return true;
}
