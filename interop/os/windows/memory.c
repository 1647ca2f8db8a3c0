/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/memory.h"

#include <inttypes.h>
#include <malloc.h>

#include "interop/os/descriptor.h"
#include "interop/os/windows/handle.h"

uint64_t td_page_bytes(void)
{
    SYSTEM_INFO info;

    GetSystemInfo(&info);
    return info.dwPageSize;
}

static MEMORYSTATUSEX memory_status(void)
{
    MEMORYSTATUSEX status = {.dwLength = sizeof status};

    GlobalMemoryStatusEx(&status);
    return status;
}

uint64_t td_machine_bytes(void)
{
    return memory_status().ullTotalPhys;
}

void *td_aligned_alloc(size_t alignment, size_t bytes)
{
    return _aligned_malloc(bytes, alignment);
}

void td_aligned_free(void *memory)
{
    _aligned_free(memory);
}

bool td_is_mapped(const void *begin, uint64_t bytes)
{
    const char *at = begin, *const end = at + bytes;
    MEMORY_BASIC_INFORMATION region;

    while (at < end) {
        if (!VirtualQuery(at, &region, sizeof region) || region.State != MEM_COMMIT ||
            region.Protect & (PAGE_NOACCESS | PAGE_GUARD))
            return false;
        at = (const char *)region.BaseAddress + region.RegionSize;
    }
    return true;
}

/* What is freed at once does not hold up others there, that we know of. */
void td_drop_pages(void *begin, uint64_t bytes)
{
    (void)begin;
    (void)bytes;
}

/* They are for who may lock pages, and to be asked for as memory is allocated. */
void td_prefer_large_pages(void *begin, uint64_t bytes)
{
    (void)begin;
    (void)bytes;
}

static HANDLE make_section(uint64_t bytes)
{
    return CreateFileMappingW(INVALID_HANDLE_VALUE, NULL, PAGE_READWRITE | SEC_COMMIT, (DWORD)(bytes >> 32), (DWORD)bytes, NULL);
}

/* A section has all of its bytes from the start, and they stay so many: that is `fixed`, and more than who does not ask for it
 * gets. */
tandem_status td_memfd_make(const char *name, uint64_t bytes, bool fixed, int *fd, char *why, size_t why_bytes)
{
    const uint64_t left = memory_status().ullAvailPageFile;

    (void)name;
    (void)fixed;
    *fd = -1;
    if (!bytes || bytes > INT64_MAX || bytes % TD_MEMFD_PAGE_BYTES)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "a memfd of %" PRIu64 " bytes: must be whole pages of %d", bytes,
                       TD_MEMFD_PAGE_BYTES);
    if (bytes > left)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "a memfd of %" PRIu64 " bytes: %" PRIu64 " are left", bytes,
                       left);
    *fd = td_fd_of(make_section(bytes));
    return *fd >= 0 ? TANDEM_OK
                    : td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "a memfd of %" PRIu64 " bytes: CreateFileMapping: %s", bytes,
                              td_windows_error(GetLastError()).text);
}

/* The handle that is given away can only read. */
tandem_status td_memfd_make_sparse(const char *name, const void *begin, uint64_t begin_bytes, uint64_t bytes, int *fd, char *why,
                                   size_t why_bytes)
{
    HANDLE self = GetCurrentProcess(), section = make_section(bytes), reads = NULL;
    void *view = section ? MapViewOfFile(section, FILE_MAP_WRITE, 0, 0, (SIZE_T)begin_bytes) : NULL;

    (void)name;
    if (view) {
        memcpy(view, begin, (size_t)begin_bytes);
        UnmapViewOfFile(view);
        if (!DuplicateHandle(self, section, self, &reads, FILE_MAP_READ | SECTION_QUERY, FALSE, 0))
            reads = NULL;
    }
    *fd = td_fd_of(reads);
    if (*fd < 0)
        td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "a memfd of %" PRIu64 " bytes cannot be made: %s", begin_bytes,
                td_windows_error(GetLastError()).text);
    if (section)
        CloseHandle(section);
    return *fd >= 0 ? TANDEM_OK : TANDEM_ERROR_NOMEM;
}

tandem_status td_memfd_check(int fd, uint64_t bytes, bool fixed, char *why, size_t why_bytes)
{
    const uint64_t has = td_handle_of(fd) ? td_section_bytes(td_handle_of(fd)) : 0;

    (void)fixed;
    return has == bytes && bytes ? TANDEM_OK
                                 : td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                                           "descriptor is %" PRIu64 " bytes long, must be %" PRIu64, has, bytes);
}

tandem_status td_memfd_map(int fd, uint64_t bytes, void **memory, char *why, size_t why_bytes)
{
    DWORD error;

    *memory = MapViewOfFile(td_handle_of(fd), FILE_MAP_ALL_ACCESS, 0, 0, (SIZE_T)bytes);
    error = GetLastError();
    return *memory ? TANDEM_OK
                   : td_fail(why, why_bytes,
                             error == ERROR_NOT_ENOUGH_MEMORY || error == ERROR_COMMITMENT_LIMIT ? TANDEM_ERROR_NOMEM
                                                                                                 : TANDEM_ERROR_IO,
                             "MapViewOfFile of %" PRIu64 " bytes: %s", bytes, td_windows_error(error).text);
}

tandem_status td_opaque_check(int fd, char *why, size_t why_bytes)
{
    td_fd_kind kind;
    uint64_t bytes;

    if (!td_fd_look(fd, &kind, &bytes))
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "handle %d cannot be looked at", fd);
    if (kind == TD_FD_FOLDER || kind == TD_FD_PIPE || (kind == TD_FD_FILE && GetFileType(td_handle_of(fd)) == FILE_TYPE_DISK))
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "handle %d is nothing that a driver exports", fd);
    return TANDEM_OK;
}

void td_unmap(void *memory, uint64_t bytes)
{
    (void)bytes;
    UnmapViewOfFile(memory);
}
