/* Keeps every library that was opened. A driver that the loader lets go takes its symbols with it, so that LeakSanitizer
 * could not tell its leaks from ours (Mesa's list of caches on AMD processors is one); and NVIDIA's (580) loses
 * thread-local storage each time: the 31st vkCreateInstance of a process says VK_ERROR_INCOMPATIBLE_DRIVER.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dlfcn.h>

__attribute__((weak, visibility("default"))) int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
