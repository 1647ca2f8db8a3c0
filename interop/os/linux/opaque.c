/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/opaque.h"

const char td_opaque_memory_extension[] = "VK_KHR_external_memory_fd";
const char td_opaque_semaphore_extension[] = "VK_KHR_external_semaphore_fd";

const td_opaque_kind td_opaque = {
    .name = "OPAQUE_FD",
    .get_memory = "vkGetMemoryFdKHR",
    .get_semaphore = "vkGetSemaphoreFdKHR",
    .get_memory_struct = 1000074002,
    .get_semaphore_struct = 1000079001,
    .memory_type = 1,
    .semaphore_type = 1,
    .cuda_memory_type = 1,
    .cuda_timeline_type = 9,
    .import_takes = true,
};

int td_opaque_fd(td_opaque_handle handle)
{
    return handle.fd;
}

td_opaque_handle td_opaque_of(int fd)
{
    return (td_opaque_handle){.fd = fd};
}
