/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/descriptor.h"

#include <errno.h>

#include "interop/os/windows/handle.h"

#include <winternl.h>

int td_fd_dup(int fd)
{
    HANDLE self = GetCurrentProcess(), copy = NULL;

    if (td_handle_of(fd) && DuplicateHandle(self, td_handle_of(fd), self, &copy, 0, FALSE, DUPLICATE_SAME_ACCESS))
        return td_fd_of(copy);
    errno = td_handle_of(fd) && GetLastError() != ERROR_INVALID_HANDLE ? EMFILE : EBADF;
    return -1;
}

void td_fd_close(int *fd)
{
    td_channel_end(*fd);
    if (td_handle_of(*fd))
        CloseHandle(td_handle_of(*fd));
    *fd = -1;
}

bool td_fd_look(int fd, td_fd_kind *kind, uint64_t *bytes)
{
    const HANDLE handle = td_handle_of(fd);
    FILE_STANDARD_INFO info;
    DWORD flags;

    *bytes = 0;
    if (!handle || !GetHandleInformation(handle, &flags)) {
        errno = EBADF;
        return false;
    }
    switch (GetFileType(handle)) {
    case FILE_TYPE_DISK:
        if (!GetFileInformationByHandleEx(handle, FileStandardInfo, &info, sizeof info)) {
            errno = EBADF;
            return false;
        }
        *kind = info.Directory ? TD_FD_FOLDER : TD_FD_FILE;
        *bytes = info.Directory ? 0 : (uint64_t)info.EndOfFile.QuadPart;
        return true;
    case FILE_TYPE_PIPE: /* sockets are such, too */
        *kind = TD_FD_PIPE;
        return true;
    case FILE_TYPE_CHAR:
        *kind = TD_FD_OTHER;
        return true;
    default:
        *bytes = td_section_bytes(handle, FILE_MAP_READ);
        *kind = *bytes ? TD_FD_FILE : TD_FD_OTHER;
        return true;
    }
}

/* Of memory the system says no number: one of its name, which is no other's. */
static uint64_t number_of_section(HANDLE section)
{
    union {
        UNICODE_STRING is;
        char room[512];
    } text;
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    ULONG bytes;

    if (NtQueryObject(section, 1 /* its name */, &text, sizeof text, &bytes) || !text.is.Length)
        return (uintptr_t)section;
    for (size_t i = 0; i < text.is.Length / sizeof *text.is.Buffer; i++)
        hash = (hash ^ text.is.Buffer[i]) * 1099511628211u;
    return hash;
}

bool td_fd_identify(int fd, td_fd_identity *identity)
{
    const HANDLE handle = td_handle_of(fd);
    BY_HANDLE_FILE_INFORMATION info;
    td_fd_kind kind;

    *identity = (td_fd_identity){0};
    if (!td_fd_look(fd, &kind, &identity->bytes))
        return false;
    if (!GetFileInformationByHandle(handle, &info)) { /* Wine takes a section for a file of a disk until here */
        identity->device = UINT64_MAX;
        identity->number = number_of_section(handle);
    } else {
        identity->device = info.dwVolumeSerialNumber;
        identity->number = (uint64_t)info.nFileIndexHigh << 32 | info.nFileIndexLow;
        identity->changed_ns =
            ((uint64_t)info.ftLastWriteTime.dwHighDateTime << 32 | info.ftLastWriteTime.dwLowDateTime) * 100;
    }
    return true;
}

uint32_t td_fd_most(void)
{
    return 1 << 16; /* as many as there is memory for; here at least so many */
}

bool td_fd_standard(void)
{
    return true; /* other handles do not get their numbers */
}
