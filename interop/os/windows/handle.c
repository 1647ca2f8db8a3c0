/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/windows/handle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

td_windows_text td_windows_error(DWORD error)
{
    const DWORD how = FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, english = 0x0409;
    td_windows_text out;
    wchar_t wide[100];
    DWORD length = FormatMessageW(how, NULL, error, english, wide, sizeof wide / sizeof *wide, NULL);

    if (!length)
        length = FormatMessageW(how, NULL, error, 0, wide, sizeof wide / sizeof *wide, NULL);
    while (length && (wide[length - 1] <= L' ' || wide[length - 1] == L'.'))
        length--;
    length = (DWORD)WideCharToMultiByte(CP_UTF8, 0, wide, (int)length, out.text, sizeof out.text - 1, NULL, NULL);
    out.text[length] = 0;
    if (!length)
        snprintf(out.text, sizeof out.text, "error %lu", error);
    return out;
}

wchar_t *td_wide(const char *text)
{
    const int units = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, NULL, 0);
    wchar_t *wide = units > 0 ? malloc((size_t)units * sizeof *wide) : NULL;

    if (wide)
        MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, wide, units);
    else
        errno = units > 0 ? ENOMEM : EILSEQ;
    return wide;
}

char *td_narrow(const wchar_t *text)
{
    const int bytes = WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL);
    char *narrow = bytes > 0 ? malloc((size_t)bytes) : NULL;

    if (narrow)
        WideCharToMultiByte(CP_UTF8, 0, text, -1, narrow, bytes, NULL, NULL);
    else
        errno = bytes > 0 ? ENOMEM : EILSEQ;
    return narrow;
}

uint64_t td_section_bytes(HANDLE section, DWORD access)
{
    void *view = MapViewOfFile(section, access, 0, 0, 0);
    MEMORY_BASIC_INFORMATION region;
    uint64_t bytes = 0;

    if (!view)
        return 0;
    if (VirtualQuery(view, &region, sizeof region) && region.State == MEM_COMMIT)
        bytes = region.RegionSize;
    UnmapViewOfFile(view);
    return bytes;
}

bool td_windows_user_of(HANDLE process, td_windows_user *user)
{
    HANDLE token;
    DWORD bytes;
    bool known;

    if (!OpenProcessToken(process, TOKEN_QUERY, &token))
        return false;
    known = GetTokenInformation(token, TokenUser, &user->is, sizeof user->is, &bytes);
    CloseHandle(token);
    return known;
}

uint32_t td_windows_user_number(td_windows_user *user)
{
    return *GetSidSubAuthority(user->is.user.User.Sid, *GetSidSubAuthorityCount(user->is.user.User.Sid) - 1u);
}
