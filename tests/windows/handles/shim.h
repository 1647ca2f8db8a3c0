/* In front of a Vulkan device that exports nothing: it seems to have VK_KHR_external_memory_win32 and
 * VK_KHR_external_semaphore_win32, whose handles are sections of section.h. What is asked for otherwise than the two allow is a
 * flaw. The same of CloseHandle() and DuplicateHandle(), as the program that this is linked into calls them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_WINDOWS_SHIM_H
#define TD_TESTS_WINDOWS_SHIM_H

#include "interop/os/adapter.h"
#include "tests/interop/vk_util.h"

typedef struct shim_state {
    td_adapter adapter; /* of the device */
    bool no_semaphores; /* it has not the second extension */
    bool dedicated;     /* buffers are exported from memory of their own */
    unsigned gets;          /* handles that were given, */
    unsigned calls, fails;  /* as in nvcuda.h: of those that make, allocate and export, and of DuplicateHandle() */
    const char *failed;
    int live;               /* buffers, memory, semaphores */
    unsigned wrong_closes;  /* of what was no handle */
    char flaw[200];         /* the first one */
} shim_state;
extern shim_state shim;

/* For vku_options.wrap. */
PFN_vkGetInstanceProcAddr shim_wrap(PFN_vkGetInstanceProcAddr gipa);

/* How many handles there are of what was exported, beyond one that the shim has of each; it then forgets them. */
unsigned shim_open_handles(void);

#endif
