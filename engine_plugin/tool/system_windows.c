/* Windows. See system.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/system.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <windows.h>

void tool_system_begin(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (_get_osfhandle(fd) >= 0)
            _setmode(fd, _O_BINARY);
    SetConsoleOutputCP(CP_UTF8);
}

bool tool_make_temporary(char *name)
{
    const int fd = mkstemp(name);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* In the code page of fopen(), which is UTF-8 from Windows 10 1903 on: tandem.manifest. */
bool tool_replace(const char *from, const char *to)
{
    const bool replaced = MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH);
    if (!replaced)
        errno = GetLastError() == ERROR_ACCESS_DENIED || GetLastError() == ERROR_SHARING_VIOLATION ? EACCES : EIO;
    return replaced;
}

bool tool_program_folder(char *path, size_t bytes)
{
    const DWORD length = GetModuleFileNameA(NULL, path, (DWORD)bytes);
    path[length < bytes ? length : 0] = 0;
    for (char *at = path; *at; at++)
        if (*at == '\\')
            *at = '/';
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = 0;
    return slash != NULL;
}

/* A file that goes as it is closed: there is no stream in memory. */
void tool_text_begin(tool_text *text)
{
    char folder[MAX_PATH + 1], path[MAX_PATH + 1];
    *text = (tool_text){0};
    if (GetTempPathA(sizeof folder, folder) && GetTempFileNameA(folder, "tdm", 0, path))
        text->file = fopen(path, "w+bTD"); /* T: kept in memory where there is room. D: removed */
}

char *tool_text_end(tool_text *text)
{
    FILE *file = text->file;
    const long length = file && !ferror(file) && !fflush(file) ? ftell(file) : -1;
    text->text = length >= 0 ? malloc((size_t)length + 1) : NULL;
    if (text->text) {
        rewind(file);
        text->bytes = fread(text->text, 1, (size_t)length, file);
        text->text[text->bytes] = 0;
        if (text->bytes != (size_t)length) {
            free(text->text);
            text->text = NULL;
        }
    }
    if (file)
        fclose(file);
    return text->text;
}
