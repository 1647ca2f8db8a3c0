/* Keeps every library that was opened, so that LeakSanitizer can name the frames of a driver that the loader let go.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dlfcn.h>

__attribute__((weak, visibility("default"))) int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
