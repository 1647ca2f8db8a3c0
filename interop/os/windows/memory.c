/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/memory.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "interop/os/descriptor.h"
#include "interop/os/windows/handle.h"

#include <winioctl.h>
#include <winternl.h>

#define PREFIX L"tandem-"

/* Where shared memory is mapped, and what its section is called; empty if by none of ours. */
typedef struct mapping {
    struct mapping *next;
    const char *begin;
    void *view; /* which begins on multiples of 64 KiB */
    uint64_t bytes, offset;
    wchar_t name[48];
    td_waker *wakers;
} mapping;

static SRWLOCK mappings_lock = SRWLOCK_INIT;
static mapping *mappings;
static mapping own; /* all else that this process has, of which few words are waited for with others */

/* The last part of the name, if it is as ours are: a peer may send anything. */
static void name_of(HANDLE section, wchar_t *name, size_t units)
{
    union {
        UNICODE_STRING is;
        char room[512];
    } text;
    const wchar_t *last;
    ULONG bytes;

    name[0] = 0;
    if (NtQueryObject(section, 1 /* its name */, &text, sizeof text, &bytes) || text.is.Length < sizeof *last)
        return;
    last = text.is.Buffer + text.is.Length / sizeof *last;
    for (bytes = 0; last > text.is.Buffer && last[-1] != L'\\'; bytes++)
        last--;
    if (bytes >= units || bytes < wcslen(PREFIX) || wmemcmp(last, PREFIX, wcslen(PREFIX)))
        return;
    wmemcpy(name, last, bytes);
    name[bytes] = 0;
}

static mapping *mapping_of(const char *at)
{
    mapping *m = mappings;

    while (m && (at < m->begin || at >= m->begin + m->bytes))
        m = m->next;
    return m;
}

static td_waker *waker_at(const mapping *m, uint64_t offset)
{
    td_waker *waker = m->wakers;

    while (waker && waker->offset != offset)
        waker = waker->next;
    return waker;
}

/* Under a name that others know, or of this process alone. */
static td_waker *make_waker(mapping *m, uint64_t offset)
{
    td_waker *waker = calloc(1, sizeof *waker);
    wchar_t name[80];

    if (!waker)
        return NULL;
    swprintf(name, sizeof name / sizeof *name, L"Local\\%ls.%llx", m->name, (unsigned long long)(m->offset + offset));
    waker->event = CreateEventW(NULL, TRUE, FALSE, m == &own ? NULL : name); /* or opens what another has made */
    waker->offset = offset;
    waker->next = m->wakers;
    m->wakers = waker;
    return waker;
}

td_waker *td_waker_of(const void *word, bool make, bool *local)
{
    td_waker *waker = NULL;
    uint64_t offset;
    mapping *m;

    AcquireSRWLockShared(&mappings_lock);
    m = mapping_of(word);
    *local = !m;
    m = m ? m : &own;
    offset = (uint64_t)((const char *)word - m->begin);
    if (*local || m->name[0])
        waker = waker_at(m, offset);
    ReleaseSRWLockShared(&mappings_lock); /* nobody unmaps what is waited in */
    if (!waker && (*local ? make : m->name[0] != 0)) {
        AcquireSRWLockExclusive(&mappings_lock);
        waker = waker_at(m, offset);
        if (!waker)
            waker = make_waker(m, offset);
        ReleaseSRWLockExclusive(&mappings_lock);
    }
    return waker && waker->event ? waker : NULL;
}

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

void td_zero_pages(void *begin, uint64_t bytes)
{
    memset(begin, 0, (size_t)bytes);
}

/* They are for who may lock pages, and to be asked for as memory is allocated. */
void td_prefer_large_pages(void *begin, uint64_t bytes)
{
    (void)begin;
    (void)bytes;
}

/* A name that nothing else has, from which those who map the section make the names of its events. */
static HANDLE make_section(uint64_t bytes)
{
    wchar_t name[64];
    uint64_t random[2];
    HANDLE section;

    do {
        if (!SystemFunction036(random, sizeof random)) /* RtlGenRandom() */
            return NULL;
        swprintf(name, sizeof name / sizeof *name, L"Local\\" PREFIX L"%016llx%016llx", (unsigned long long)random[0],
                 (unsigned long long)random[1]);
        section = CreateFileMappingW(INVALID_HANDLE_VALUE, NULL, PAGE_READWRITE | SEC_COMMIT, (DWORD)(bytes >> 32), (DWORD)bytes,
                                     name);
        if (!section || GetLastError() != ERROR_ALREADY_EXISTS)
            return section;
        CloseHandle(section);
    } while (true);
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

/* Writes all of it, and lets the file end at `bytes`; on most disks what was not written takes no room. */
static bool fill(HANDLE file, const char *begin, uint64_t begin_bytes, uint64_t bytes)
{
    FILE_END_OF_FILE_INFO end = {.EndOfFile.QuadPart = (int64_t)bytes};
    DWORD done;

    DeviceIoControl(file, FSCTL_SET_SPARSE, NULL, 0, NULL, 0, &done, NULL);
    for (uint64_t at = 0; at < begin_bytes; at += done) {
        const uint64_t rest = begin_bytes - at;

        if (!WriteFile(file, begin + at, rest < 1 << 30 ? (DWORD)rest : 1 << 30, &done, NULL) || !done)
            return false;
    }
    return SetFileInformationByHandle(file, FileEndOfFileInfo, &end, sizeof end);
}

/* A section would count as memory to its end: a file, which is gone with its last handle, and is not written to a disk for want of
 * anything better. The handle that is given away can only read. */
tandem_status td_memfd_make_sparse(const char *name, const void *begin, uint64_t begin_bytes, uint64_t bytes, int *fd, char *why,
                                   size_t why_bytes)
{
    const DWORD all = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    const DWORD how = FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE;
    HANDLE self = GetCurrentProcess(), file = INVALID_HANDLE_VALUE, reads = NULL;
    wchar_t folder[MAX_PATH + 1], path[MAX_PATH + 64];
    uint64_t random[2];

    (void)name;
    if (GetTempPathW(sizeof folder / sizeof *folder, folder) && SystemFunction036(random, sizeof random)) {
        swprintf(path, sizeof path / sizeof *path, L"%ls" PREFIX L"%016llx%016llx", folder, (unsigned long long)random[0],
                 (unsigned long long)random[1]);
        file = CreateFileW(path, GENERIC_READ | GENERIC_WRITE | DELETE, all, NULL, CREATE_NEW, how, NULL);
    }
    if (file != INVALID_HANDLE_VALUE && fill(file, begin, begin_bytes, bytes) &&
        !DuplicateHandle(self, file, self, &reads, GENERIC_READ, FALSE, 0))
        reads = NULL;
    *fd = td_fd_of(reads);
    if (*fd < 0)
        td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "a file of %" PRIu64 " bytes cannot be made: %s", begin_bytes,
                td_windows_error(GetLastError()).text);
    if (file != INVALID_HANDLE_VALUE)
        CloseHandle(file);
    return *fd >= 0 ? TANDEM_OK : TANDEM_ERROR_NOMEM;
}

static tandem_status wrong_length(uint64_t has, uint64_t bytes, char *why, size_t why_bytes)
{
    return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "descriptor is %" PRIu64 " bytes long, must be %" PRIu64, has, bytes);
}

tandem_status td_memfd_check(int fd, uint64_t bytes, bool fixed, char *why, size_t why_bytes)
{
    const uint64_t has = td_handle_of(fd) ? td_section_bytes(td_handle_of(fd), FILE_MAP_WRITE) : 0;

    (void)fixed;
    return has == bytes && bytes ? TANDEM_OK : wrong_length(has, bytes, why, why_bytes);
}

tandem_status td_memfd_check_whole(int fd, uint64_t most_bytes, char *why, size_t why_bytes)
{
    LARGE_INTEGER has = {0};

    if (!td_handle_of(fd) || GetFileType(td_handle_of(fd)) != FILE_TYPE_DISK || !GetFileSizeEx(td_handle_of(fd), &has))
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "descriptor is no file");
    return (uint64_t)has.QuadPart <= most_bytes ? TANDEM_OK : wrong_length((uint64_t)has.QuadPart, most_bytes, why, why_bytes);
}

tandem_status td_memfd_map(int fd, uint64_t bytes, void **memory, char *why, size_t why_bytes)
{
    return td_memfd_map_part(fd, 0, bytes, memory, why, why_bytes);
}

tandem_status td_memfd_map_part(int fd, uint64_t offset, uint64_t bytes, void **memory, char *why, size_t why_bytes)
{
    enum { GRANULARITY = 65536 };
    const uint64_t ahead = offset % GRANULARITY, at = offset - ahead;
    mapping *m = malloc(sizeof *m);
    void *view =
        m ? MapViewOfFile(td_handle_of(fd), FILE_MAP_ALL_ACCESS, (DWORD)(at >> 32), (DWORD)at, (SIZE_T)(ahead + bytes)) : NULL;
    const DWORD error = m ? GetLastError() : ERROR_NOT_ENOUGH_MEMORY;

    *memory = NULL;
    if (!view) {
        free(m);
        return td_fail(why, why_bytes,
                       error == ERROR_NOT_ENOUGH_MEMORY || error == ERROR_COMMITMENT_LIMIT ? TANDEM_ERROR_NOMEM
                                                                                           : TANDEM_ERROR_IO,
                       "MapViewOfFile of %" PRIu64 " bytes: %s", bytes, td_windows_error(error).text);
    }
    *m = (mapping){.begin = (char *)view + ahead, .view = view, .bytes = bytes, .offset = offset};
    *memory = (char *)view + ahead;
    name_of(td_handle_of(fd), m->name, sizeof m->name / sizeof *m->name);
    AcquireSRWLockExclusive(&mappings_lock);
    m->next = mappings;
    mappings = m;
    ReleaseSRWLockExclusive(&mappings_lock);
    return TANDEM_OK;
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

/* Of files, too, which are in no list. */
void td_unmap(void *memory, uint64_t bytes)
{
    mapping **at = &mappings, *m;

    (void)bytes;
    AcquireSRWLockExclusive(&mappings_lock);
    while (*at && (*at)->begin != memory)
        at = &(*at)->next;
    m = *at;
    if (m)
        *at = m->next;
    ReleaseSRWLockExclusive(&mappings_lock);
    UnmapViewOfFile(m ? m->view : memory);
    while (m && m->wakers) {
        td_waker *waker = m->wakers;

        m->wakers = waker->next;
        if (waker->event)
            CloseHandle(waker->event);
        free(waker);
    }
    free(m);
}
