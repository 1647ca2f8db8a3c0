/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/file.h"

#include <inttypes.h>
#include <stdlib.h>

#include "interop/os/descriptor.h"
#include "interop/os/windows/handle.h"

#define MOST_AT_ONCE (1u << 30)

static HANDLE open_wide(const char *path, DWORD access, DWORD how, DWORD flags)
{
    wchar_t *wide = td_wide(path);
    HANDLE file = INVALID_HANDLE_VALUE;
    DWORD error = ERROR_INVALID_NAME;

    if (wide) {
        file = CreateFileW(wide, access, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, how,
                           FILE_ATTRIBUTE_NORMAL | flags, NULL);
        error = GetLastError();
    }
    free(wide);
    SetLastError(error);
    return file;
}

static tandem_status failed(const char *what, char *why, size_t why_bytes)
{
    return td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s%s", what, td_windows_error(GetLastError()).text);
}

tandem_status td_file_open(const char *path, int *fd, uint64_t *bytes, char *why, size_t why_bytes)
{
    const DWORD folders_too = FILE_FLAG_BACKUP_SEMANTICS; /* or they are refused as if for want of rights */
    tandem_status status = TANDEM_OK;
    td_fd_kind kind;

    *bytes = 0;
    *fd = td_fd_of(open_wide(path, GENERIC_READ, OPEN_EXISTING, folders_too));
    if (*fd < 0)
        return failed("", why, why_bytes);
    if (!td_fd_look(*fd, &kind, bytes) || kind != TD_FD_FILE)
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "it is not a file");
    if (status != TANDEM_OK) {
        td_fd_close(fd);
        *bytes = 0;
    }
    return status;
}

tandem_status td_file_path(int fd, char path[TD_FILE_PATH_BYTES], char *why, size_t why_bytes)
{
    wchar_t wide[TD_FILE_PATH_BYTES];
    const DWORD units = GetFinalPathNameByHandleW(td_handle_of(fd), wide, TD_FILE_PATH_BYTES, FILE_NAME_NORMALIZED);

    if (!units || units >= TD_FILE_PATH_BYTES || !WideCharToMultiByte(CP_UTF8, 0, wide, -1, path, TD_FILE_PATH_BYTES, NULL, NULL))
        return td_fail(why, why_bytes, TANDEM_ERROR_IO, "handle %d has no path: %s", fd, td_windows_error(GetLastError()).text);
    return TANDEM_OK;
}

/* One read at a place, whatever other threads read. False: *error says why. */
static bool read_at(HANDLE file, uint64_t offset, void *to, DWORD bytes, DWORD *got, DWORD *error)
{
    OVERLAPPED at = {.Offset = (DWORD)offset, .OffsetHigh = (DWORD)(offset >> 32)};

    *got = 0;
    if (ReadFile(file, to, bytes, got, &at))
        return true;
    *error = GetLastError();
    return *error == ERROR_HANDLE_EOF;
}

tandem_status td_file_read(int fd, uint64_t offset, void *to, uint64_t bytes, char *why, size_t why_bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t rest = bytes - done;
        DWORD got, error;

        if (!read_at(td_handle_of(fd), offset + done, (char *)to + done, rest < MOST_AT_ONCE ? (DWORD)rest : MOST_AT_ONCE, &got,
                     &error))
            return td_fail(why, why_bytes, TANDEM_ERROR_IO, "%" PRIu64 " bytes at %" PRIu64 ": %s", bytes, offset,
                           td_windows_error(error).text);
        if (got == 0)
            return td_fail(why, why_bytes, TANDEM_ERROR_IO,
                           "the file ends at %" PRIu64 ", within %" PRIu64 " bytes at %" PRIu64, offset + done, bytes,
                           offset);
        done += got;
    }
    return TANDEM_OK;
}

tandem_status td_file_map(const char *path, void **map, uint64_t *bytes, char *why, size_t why_bytes)
{
    int fd;
    tandem_status status = td_file_open(path, &fd, bytes, why, why_bytes);

    *map = NULL;
    if (status == TANDEM_OK && *bytes) {
        HANDLE section = CreateFileMappingW(td_handle_of(fd), NULL, PAGE_READONLY, 0, 0, NULL);

        if (section)
            *map = MapViewOfFile(section, FILE_MAP_READ, 0, 0, (SIZE_T)*bytes);
        if (!*map)
            status = failed("it cannot be mapped: ", why, why_bytes);
        if (section)
            CloseHandle(section); /* the view lives on */
    }
    td_fd_close(&fd);
    return status;
}

tandem_status td_file_create(const char *path, int *fd, char *why, size_t why_bytes)
{
    *fd = td_fd_of(open_wide(path, GENERIC_WRITE, CREATE_ALWAYS, 0));
    return *fd >= 0 ? TANDEM_OK : td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s", td_windows_error(GetLastError()).text);
}

tandem_status td_file_write(int fd, const void *from, uint64_t bytes, char *why, size_t why_bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t rest = bytes - done;
        DWORD put = 0;

        if (!WriteFile(td_handle_of(fd), (const char *)from + done, rest < MOST_AT_ONCE ? (DWORD)rest : MOST_AT_ONCE, &put,
                       NULL) ||
            !put)
            return td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s", td_windows_error(GetLastError()).text);
        done += put;
    }
    return TANDEM_OK;
}

tandem_status td_file_close(int *fd, char *why, size_t why_bytes)
{
    const bool closed = td_handle_of(*fd) && CloseHandle(td_handle_of(*fd));

    *fd = -1;
    return closed ? TANDEM_OK : td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s", td_windows_error(GetLastError()).text);
}

void td_file_remove(const char *path)
{
    wchar_t *wide = td_wide(path);

    if (wide)
        DeleteFileW(wide);
    free(wide);
}

char *td_file_whole_path(const char *path)
{
    HANDLE file = open_wide(path, 0, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS);
    const DWORD units = file == INVALID_HANDLE_VALUE ? 0 : GetFinalPathNameByHandleW(file, NULL, 0, 0);
    wchar_t *whole = units ? malloc((units + 1) * sizeof *whole) : NULL;
    char *narrow = NULL;

    if (whole && GetFinalPathNameByHandleW(file, whole, units + 1, 0)) {
        const bool plain = !wcsncmp(whole, L"\\\\?\\", 4) && wcsncmp(whole, L"\\\\?\\UNC\\", 8); /* \\?\C:\... */

        narrow = td_narrow(whole + (plain ? 4 : 0));
    }
    free(whole);
    if (file != INVALID_HANDLE_VALUE)
        CloseHandle(file);
    return narrow;
}

/* Of a drive or another machine. */
bool td_file_is_from_root(const char *path)
{
    const bool drive = (path[0] | 32) >= 'a' && (path[0] | 32) <= 'z' && path[1] == ':';

    return drive ? path[2] == '\\' || path[2] == '/' : path[0] == '\\' && path[1] == '\\';
}
