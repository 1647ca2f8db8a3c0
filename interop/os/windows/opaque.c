/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/opaque.h"

#include "interop/os/windows/handle.h"

const char td_opaque_memory_extension[] = "VK_KHR_external_memory_win32";
const char td_opaque_semaphore_extension[] = "VK_KHR_external_semaphore_win32";

const td_opaque_kind td_opaque = {
    .name = "OPAQUE_WIN32",
    .get_memory = "vkGetMemoryWin32HandleKHR",
    .get_semaphore = "vkGetSemaphoreWin32HandleKHR",
    .get_memory_struct = 1000073003,
    .get_semaphore_struct = 1000078003,
    .memory_type = 2,
    .semaphore_type = 2,
    .cuda_memory_type = 2,
    .cuda_timeline_type = 10,
    .is_win32 = true,
    .exported_once = true,
};

int td_opaque_fd(td_opaque_handle handle)
{
    const int fd = td_fd_of(handle.win32);

    return td_handle_of(fd) == handle.win32 ? fd : -1;
}

td_opaque_handle td_opaque_of(int fd)
{
    return (td_opaque_handle){.win32 = td_handle_of(fd)};
}
