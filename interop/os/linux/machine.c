/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/os/machine.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* The content of a file up to its line end. */
static size_t first_line(const char *path, char *line, size_t bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    const ssize_t got = fd < 0 ? -1 : read(fd, line, bytes - 1);

    if (fd >= 0)
        close(fd);
    line[got > 0 ? got : 0] = 0;
    line[strcspn(line, "\n")] = 0;
    return strlen(line);
}

size_t td_machine_id(char *text, size_t bytes)
{
    return first_line("/etc/machine-id", text, bytes);
}

size_t td_machine_boot_id(char *text, size_t bytes)
{
    return first_line("/proc/sys/kernel/random/boot_id", text, bytes);
}
