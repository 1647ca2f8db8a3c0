/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/descriptor.h"

#include <errno.h>

#include "interop/os/windows/handle.h"

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

bool td_fd_standard(void)
{
    return true; /* other handles do not get their numbers */
}
