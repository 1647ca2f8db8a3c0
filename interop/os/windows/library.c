/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/library.h"

#include <stdlib.h>

#include "interop/os/windows/handle.h"

const char td_library_cuda[] = "nvcuda.dll", td_library_vulkan[] = "vulkan-1.dll";

/* From where the program lies and from where the system does, but not from the folder that it works in. */
tandem_status td_library_open(const char *name, td_library **library, char *why, size_t why_bytes)
{
    wchar_t *wide = td_wide(name);
    const bool has_folder = wide && (wcschr(wide, L'\\') || wcschr(wide, L'/'));
    DWORD error = ERROR_INVALID_NAME;

    *library = NULL;
    if (wide) {
        *library = (td_library *)LoadLibraryExW(wide, NULL, has_folder ? LOAD_WITH_ALTERED_SEARCH_PATH
                                                                       : LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
        error = GetLastError();
    }
    free(wide);
    return *library ? TANDEM_OK
                    : td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s: %s", name, td_windows_error(error).text);
}

void *td_library_symbol(td_library *library, const char *name)
{
    return (void *)(uintptr_t)GetProcAddress((HMODULE)library, name);
}

void td_library_close(td_library **library)
{
    *library = NULL; /* its code stays */
}
