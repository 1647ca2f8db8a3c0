/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/os/library.h"

#include <dlfcn.h>

const char td_library_cuda[] = "libcuda.so.1", td_library_vulkan[] = "libvulkan.so.1";

tandem_status td_library_open(const char *name, td_library **library, char *why, size_t why_bytes)
{
    const char *text;

    *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*library)
        return TANDEM_OK;
    text = dlerror(); /* of another thread's failure, or none, if that one came between */
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s", text ? text : "it cannot be opened");
}

void *td_library_symbol(td_library *library, const char *name)
{
    return dlsym(library, name);
}

void td_library_close(td_library **library)
{
    if (*library)
        dlclose(*library);
    *library = NULL;
}
