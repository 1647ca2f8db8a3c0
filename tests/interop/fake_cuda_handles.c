/* Descriptors that the fake CUDA driver imports, on Linux.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "tests/interop/fake_cuda_parts.h"

int fake_cuda_semaphore_fd(VkSemaphore semaphore)
{
    int fd = __real_memfd_create("fake semaphore", MFD_CLOEXEC);

    if (fd >= 0 && write(fd, &semaphore, sizeof semaphore) != (ssize_t)sizeof semaphore) {
        __real_close(fd);
        fd = -1;
    }
    return fd;
}

bool fake_handle_read(td_opaque_handle handle, VkSemaphore *semaphore)
{
    return pread(handle.fd, semaphore, sizeof *semaphore, 0) == (ssize_t)sizeof *semaphore;
}

void fake_handle_taken(td_opaque_handle handle)
{
    __real_close(handle.fd);
}
