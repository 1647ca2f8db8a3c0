/* Pictures in files, by the endings of their names. See picture.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "engine_plugin/tool/picture.h"
#include "engine_plugin/tool/system.h"
#include "interop/base.h"

typedef struct format {
    const char *ending;
    bool (*read)(const char *path, uint32_t channels, tool_picture *out, char *why, size_t why_bytes);
    bool (*write)(const char *path, const tool_picture *picture, char *why, size_t why_bytes);
} format;

static const format formats[] = {
    {".pfm", tool_pfm_read, tool_pfm_write},
#ifdef TOOL_PNG
    {".png", tool_png_read, tool_png_write},
#endif
#ifdef TOOL_EXR
    {".exr", tool_exr_read, tool_exr_write},
#endif
};
enum { FORMATS = sizeof formats / sizeof *formats };

static const format *format_of(const char *option, const char *path, char *why, size_t why_bytes)
{
    const char *ending = strrchr(path, '.');
    char known[64] = "";

    for (size_t i = 0; i < FORMATS; i++) {
        if (ending && !strcasecmp(ending, formats[i].ending))
            return &formats[i];
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", formats[i].ending);
    }
    td_text(why, why_bytes, "%s \"%s\": pictures that this build knows end in %s", option, path, known);
    return NULL;
}

bool tool_picture_read(const char *option, const char *path, uint32_t channels, tool_picture *out, char *why, size_t why_bytes)
{
    const format *of = format_of(option, path, why, why_bytes);
    char text[300] = "";

    *out = (tool_picture){0};
    if (!of)
        return false;
    if (of->read(path, channels, out, text, sizeof text))
        return true;
    tool_picture_free(out);
    td_text(why, why_bytes, "%s \"%s\": %s", option, path, text);
    return false;
}

bool tool_picture_can_write(const char *option, const char *path, char *why, size_t why_bytes)
{
    return format_of(option, path, why, why_bytes) != NULL;
}

bool tool_picture_write(const char *option, const char *path, const tool_picture *picture, char *why, size_t why_bytes)
{
    const format *of = format_of(option, path, why, why_bytes);
    char text[300] = "", temporary[4096];

    if (!of)
        return false;
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    const bool done =
        tool_make_temporary(temporary) && of->write(temporary, picture, text, sizeof text) && tool_replace(temporary, path);
    const int error = errno;
    if (!done) {
        unlink(temporary);
        td_text(why, why_bytes, "%s \"%s\": %s", option, path, text[0] ? text : strerror(error));
    }
    return done;
}
