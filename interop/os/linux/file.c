/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/os/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interop/os/descriptor.h"

#define MOST_AT_ONCE (1u << 30)

tandem_status td_file_open(const char *path, int *fd, uint64_t *bytes, char *why, size_t why_bytes)
{
    tandem_status status = TANDEM_OK;
    struct stat st;

    *bytes = 0;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes to is not waited for */
    if (*fd < 0 || fstat(*fd, &st))
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s", strerror(errno));
    else if (!S_ISREG(st.st_mode))
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "it is not a file");
    else
        *bytes = (uint64_t)st.st_size;
    if (status != TANDEM_OK)
        td_fd_close(fd);
    return status;
}

tandem_status td_file_path(int fd, char path[TD_FILE_PATH_BYTES], char *why, size_t why_bytes)
{
    (void)why;
    (void)why_bytes;
    snprintf(path, TD_FILE_PATH_BYTES, "/proc/self/fd/%d", fd);
    return TANDEM_OK;
}

tandem_status td_file_read(int fd, uint64_t offset, void *to, uint64_t bytes, char *why, size_t why_bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t rest = bytes - done;
        const ssize_t got =
            pread(fd, (char *)to + done, rest < MOST_AT_ONCE ? (size_t)rest : MOST_AT_ONCE, (off_t)(offset + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return td_fail(why, why_bytes, TANDEM_ERROR_IO, "%" PRIu64 " bytes at %" PRIu64 ": %s", bytes, offset,
                           strerror(errno));
        if (got == 0)
            return td_fail(why, why_bytes, TANDEM_ERROR_IO,
                           "the file ends at %" PRIu64 ", within %" PRIu64 " bytes at %" PRIu64, offset + done, bytes,
                           offset);
        done += (uint64_t)got;
    }
    return TANDEM_OK;
}

tandem_status td_file_map(const char *path, void **map, uint64_t *bytes, char *why, size_t why_bytes)
{
    int fd;
    tandem_status status = td_file_open(path, &fd, bytes, why, why_bytes);

    *map = NULL;
    if (status == TANDEM_OK && *bytes) {
        *map = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (*map == MAP_FAILED) {
            *map = NULL;
            status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "it cannot be mapped: %s", strerror(errno));
        }
    }
    td_fd_close(&fd);
    return status;
}

tandem_status td_file_create(const char *path, int *fd, char *why, size_t why_bytes)
{
    *fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return *fd >= 0 ? TANDEM_OK : td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s", strerror(errno));
}

tandem_status td_file_write(int fd, const void *from, uint64_t bytes, char *why, size_t why_bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t rest = bytes - done;
        const ssize_t put = write(fd, (const char *)from + done, rest < MOST_AT_ONCE ? (size_t)rest : MOST_AT_ONCE);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s", strerror(errno));
        done += (uint64_t)put;
    }
    return TANDEM_OK;
}

tandem_status td_file_close(int *fd, char *why, size_t why_bytes)
{
    const int failed = close(*fd);

    *fd = -1;
    return failed ? td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s", strerror(errno)) : TANDEM_OK;
}

void td_file_remove(const char *path)
{
    unlink(path);
}

char *td_file_whole_path(const char *path)
{
    return realpath(path, NULL);
}

bool td_file_is_from_root(const char *path)
{
    return path[0] == '/';
}
