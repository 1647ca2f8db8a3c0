/* Files of the tool: three tensors in, a list of them out; and the sizes of a graph.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine_plugin/client/tuning_file.h"
#include "engine_plugin/tool/system.h"
#include "engine_plugin/tool/tool.h"
#include "interop/base.h"
#include "interop/os/file.h"
#include "interop/os/memory.h"
#include "kernels/graph.h"
#include "kernels/model/safetensors.h"

enum { MAX_INPUTS = 4 };

struct tool_file {
    td_safetensors safetensors;
    char *path;
    void *data[MAX_INPUTS];
    uint32_t data_count;
};

tool_file *tool_open(const char *path, char *why, size_t why_bytes)
{
    char text[400];
    tool_file *file = calloc(1, sizeof *file);
    if (file)
        file->path = strdup(path);
    if (!file || !file->path) {
        free(file);
        td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "out of memory");
        return NULL;
    }
    if (td_safetensors_open(path, &file->safetensors, text, sizeof text) != TANDEM_OK) {
        td_fail(why, why_bytes, TANDEM_ERROR_IO, "--in \"%s\": %s", path, text);
        free(file->path);
        free(file);
        return NULL;
    }
    return file;
}

bool tool_find(tool_file *file, const char *name, tool_input *out, char *why, size_t why_bytes)
{
    char text[400];
    const td_safetensor *tensor = td_safetensors_find(&file->safetensors, name);
    const char *wrong = NULL;
    if (!tensor)
        wrong = "is missing";
    else if (tensor->dtype < TANDEM_DTYPE_F16 || tensor->dtype > TANDEM_DTYPE_F32)
        wrong = "must be F16, BF16 or F32";
    else if (tensor->dimensions != 4)
        wrong = "must have 4 dimensions [batch, heads, rows, head_dim]";
    if (wrong && tensor)
        td_fail(why, why_bytes, TANDEM_ERROR_ARG, "--in \"%s\": tensor \"%s\" (%s, %u dimensions) %s", file->path, name,
                tensor->dtype_name, tensor->dimensions, wrong);
    else if (wrong)
        td_fail(why, why_bytes, TANDEM_ERROR_ARG, "--in \"%s\": tensor \"%s\" %s", file->path, name, wrong);
    if (wrong || file->data_count == MAX_INPUTS)
        return false;
    void *data = td_aligned_alloc(64, td_align_up(tensor->bytes + 1, 64));
    if (!data) {
        td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "out of memory for tensor \"%s\" of %llu bytes", name,
                (unsigned long long)tensor->bytes);
        return false;
    }
    file->data[file->data_count++] = data;
    if (td_safetensors_read(&file->safetensors, tensor, data, text, sizeof text) != TANDEM_OK) {
        td_fail(why, why_bytes, TANDEM_ERROR_IO, "--in \"%s\": %s", file->path, text);
        return false;
    }
    *out = (tool_input){.dtype = tensor->dtype, .rank = tensor->dimensions, .data = data};
    memcpy(out->shape, tensor->shape, sizeof out->shape);
    return true;
}

void tool_close(tool_file *file)
{
    if (!file)
        return;
    td_safetensors_close(&file->safetensors);
    for (uint32_t i = 0; i < file->data_count; i++)
        td_aligned_free(file->data[i]);
    free(file->path);
    free(file);
}

/* The file that `path` means, through symbolic links, so that a rename replaces it and not the link. NULL if it is no
 * file and cannot become one. */
static char *resolve(const char *option, const char *path, char *why, size_t why_bytes)
{
    struct stat st;
    if (stat(path, &st) == 0) {
        char *real = S_ISREG(st.st_mode) ? td_file_whole_path(path) : NULL;
        if (!real)
            td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s \"%s\": %s", option, path,
                    S_ISREG(st.st_mode) ? strerror(errno) : "is there and is not a regular file");
        return real;
    }
    return strdup(path);
}

bool tool_save(const char *path, const tool_list *list, char *why, size_t why_bytes)
{
    char text[400] = "";
    char *real = resolve("--out", path, why, why_bytes), *temporary = NULL;
    bool done = false;
    if (!real)
        return false;
    const size_t length = strlen(real) + 8;
    temporary = malloc(length);
    if (!temporary) {
        td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "out of memory");
        goto end;
    }
    snprintf(temporary, length, "%s.XXXXXX", real);
    if (!tool_make_temporary(temporary)) {
        td_fail(why, why_bytes, TANDEM_ERROR_IO, "--out \"%s\": %s", path, strerror(errno));
        unlink(temporary);
        goto end;
    }
    td_safetensors_item items[TOOL_TENSORS];
    td_safetensors_text texts[TOOL_PAIRS];
    for (uint32_t i = 0; i < list->count; i++) {
        const tool_tensor *t = &list->tensors[i];
        items[i] = (td_safetensors_item){.name = t->name, .dtype = t->dtype, .dimensions = t->rank, .data = t->data};
        memcpy(items[i].shape, t->shape, sizeof t->shape);
    }
    for (uint32_t i = 0; i < list->pair_count; i++)
        texts[i] = (td_safetensors_text){list->keys[i], list->values[i]};
    done = td_safetensors_write_texts(temporary, texts, list->pair_count, items, list->count, text, sizeof text) == TANDEM_OK;
    if (done && !tool_replace(temporary, real)) {
        snprintf(text, sizeof text, "%s", strerror(errno));
        done = false;
    }
    if (!done) {
        unlink(temporary);
        td_fail(why, why_bytes, TANDEM_ERROR_IO, "--out \"%s\": %s", path, text[0] ? text : "could not be written");
    }
end:
    free(temporary);
    free(real);
    return done;
}

static bool folder_takes_files(const char *option, const char *path, char *file, char *why, size_t why_bytes)
{
    char *slash = strrchr(file, '/');
    if (slash)
        slash[slash == file] = 0;
    const bool can = access(slash ? file : ".", W_OK | X_OK) == 0;
    if (!can)
        td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s \"%s\": %s", option, path, strerror(errno));
    return can;
}

bool tool_can_save(const char *option, const char *path, char *why, size_t why_bytes)
{
    char *real = resolve(option, path, why, why_bytes);
    const bool can = real && folder_takes_files(option, path, real, why, why_bytes);
    free(real);
    return can;
}

bool tool_can_write(const char *option, const char *path, char *why, size_t why_bytes)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return tool_can_save(option, path, why, why_bytes);
    const bool folder = S_ISDIR(st.st_mode), can = !folder && access(path, W_OK) == 0;
    if (!can)
        td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s \"%s\": %s", option, path, strerror(folder ? EISDIR : errno));
    return can;
}

bool tool_tuning_text(const char *path, char **text, size_t *bytes, char *why, size_t why_bytes)
{
    FILE *file = fopen(path, "rb");
    *text = file ? malloc(TD_TUNING_MOST_TEXT + 1) : NULL;
    *bytes = *text ? fread(*text, 1, TD_TUNING_MOST_TEXT + 1, file) : 0;
    const bool good = *text && !ferror(file);
    if (!good) {
        td_fail(why, why_bytes, TANDEM_ERROR_IO, "\"%s\": %s", path, strerror(errno));
        free(*text);
        *text = NULL;
    }
    if (file)
        fclose(file);
    return good;
}

bool tool_tuning(const char *path, td_tuning_table *out, char *why, size_t why_bytes)
{
    char *text = NULL, reason[300] = "";
    size_t bytes = 0;
    bool good = tool_tuning_text(path, &text, &bytes, why, why_bytes);
    if (good && td_tuning_parse(text, bytes, out, reason, sizeof reason) != TANDEM_OK) {
        td_fail(why, why_bytes, TANDEM_ERROR_IO, "\"%s\": %s", path, reason);
        good = false;
    }
    free(text);
    return good;
}

uint32_t tool_find_number(const td_graph *graph, const char *name, size_t length)
{
    uint32_t i = 0;

    while (i < graph->number_count &&
           (strlen(graph->numbers[i].name) != length || memcmp(graph->numbers[i].name, name, length) != 0))
        i++;
    return i;
}

int tool_read_sizes(const char *command, const char *set, const td_graph *graph, uint32_t *numbers)
{
    for (const char *at = set, *end; at; at = *end ? end + 1 : NULL) {
        const size_t length = strcspn(at, "=,");
        const uint32_t which = tool_find_number(graph, at, length);
        uint64_t value = 0;
        char text[32];

        end = at + strcspn(at, ",");
        if (which == graph->number_count)
            return tool_usage(command, "--set \"%s\": \"%.*s\" is no number of this model", set, (int)length, at);
        snprintf(text, sizeof text, "%.*s", at[length] == '=' ? (int)(end - at - length - 1) : 0, at + length + 1);
        if (!tool_number(text, 1, graph->numbers[which].most, &value))
            return tool_usage(command, "--set \"%s\": %s must be a number from 1 to %" PRIu32, set,
                              graph->numbers[which].name, graph->numbers[which].most);
        numbers[which] = (uint32_t)value;
    }
    return TOOL_OK;
}
