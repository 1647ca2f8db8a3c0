/* Linux. See system.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/system.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void tool_system_begin(void)
{
}

bool tool_make_temporary(char *name)
{
    const int fd = mkstemp(name);
    if (fd < 0)
        return false;
    const mode_t mask = umask(0);
    umask(mask);
    const bool opened = fchmod(fd, 0666 & ~mask) == 0;
    close(fd);
    return opened;
}

bool tool_replace(const char *from, const char *to)
{
    return rename(from, to) == 0;
}

bool tool_program_folder(char *path, size_t bytes)
{
    const ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
    path[length > 0 ? length : 0] = 0;
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = 0;
    return slash != NULL;
}

void tool_text_begin(tool_text *text)
{
    *text = (tool_text){0};
    text->file = open_memstream(&text->text, &text->bytes);
}

char *tool_text_end(tool_text *text)
{
    const bool is_whole = text->file && !ferror(text->file);
    if (text->file && (fclose(text->file) || !is_whole)) {
        free(text->text);
        text->text = NULL;
    }
    return text->text;
}
