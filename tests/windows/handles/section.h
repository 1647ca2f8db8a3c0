/* What the handles of tests/windows/handles are: sections, in which it stands what they were exported from.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_WINDOWS_SECTION_H
#define TD_TESTS_WINDOWS_SECTION_H

#include <stdbool.h>
#include <stdint.h>

#include <windows.h>

typedef enum section_kind { SECTION_MEMORY = 0x6d656d6f, SECTION_SEMAPHORE = 0x73656d61 } section_kind;
typedef struct section {
    uint64_t kind, object, bytes; /* object: VkDeviceMemory, VkSemaphore; bytes: of the allocation */
} section;

static inline HANDLE section_make(section what, uint64_t bytes)
{
    HANDLE handle =
        CreateFileMappingW(INVALID_HANDLE_VALUE, NULL, PAGE_READWRITE, (DWORD)(bytes >> 32), (DWORD)bytes, NULL);
    section *view = handle ? MapViewOfFile(handle, FILE_MAP_WRITE, 0, 0, sizeof *view) : NULL;

    if (view) {
        *view = what;
        UnmapViewOfFile(view);
    }
    return handle;
}

/* What the handle is; all 0 for one that is none of ours. */
static inline section section_read(HANDLE handle)
{
    const section *view = MapViewOfFile(handle, FILE_MAP_READ, 0, 0, sizeof *view);
    section is = {0};

    if (view) {
        is = *view;
        UnmapViewOfFile(view);
    }
    return is.kind == SECTION_MEMORY || is.kind == SECTION_SEMAPHORE ? is : (section){0};
}

#endif
