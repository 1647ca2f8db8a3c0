/* What all parts of the reader of folders need. See folder_maker.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/model/folder_maker.h"

#include "interop/os/descriptor.h"
#include "interop/os/file.h"
#include "interop/os/memory.h"

enum { MOST_JSON_BYTES = 1 << 28, MOST_JSON_VALUES = 1 << 23 };

bool td_folder_fail(td_folder *f, tandem_status status, const char *format, ...)
{
    va_list args;

    if (f->status != TANDEM_OK)
        return false;
    va_start(args, format);
    td_text_list(f->why, f->why_bytes, format, args);
    va_end(args);
    f->status = status;
    return false;
}

#define FAIL(status, ...) td_folder_fail(f, status, __VA_ARGS__)

void *td_folder_take(td_folder *f, uint64_t count, size_t bytes)
{
    void *memory = td_arena_take(&f->out->arena, (size_t)count * bytes + 1, 16);

    if (!memory)
        FAIL(TANDEM_ERROR_NOMEM, "no memory for a model's description");
    return memory;
}

const char *td_folder_text(td_folder *f, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    td_text_list(text, sizeof text, format, args);
    va_end(args);
    const char *copy = td_arena_text(&f->out->arena, text, strlen(text));
    if (!copy)
        FAIL(TANDEM_ERROR_NOMEM, "no memory for a model's description");
    return copy ? copy : "";
}

bool td_folder_path(td_folder *f, const char *name, char path[TD_FOLDER_PATH_BYTES])
{
    if (strlen(f->path) + strlen(name) + 2 > TD_FOLDER_PATH_BYTES)
        return FAIL(TANDEM_ERROR_ARG, "the path has more than %d bytes", TD_FOLDER_PATH_BYTES);
    td_text(path, TD_FOLDER_PATH_BYTES, "%s/%s", f->path, name);
    return true;
}

static bool is_file(const char *path)
{
    uint64_t bytes;
    int fd;

    if (td_file_open(path, &fd, &bytes, NULL, 0) != TANDEM_OK)
        return false;
    td_fd_close(&fd);
    return true;
}

bool td_folder_is(const char *path)
{
    char config[TD_FOLDER_PATH_BYTES];

    if (strlen(path) + sizeof "/config.json" > sizeof config)
        return false;
    td_text(config, sizeof config, "%s/config.json", path);
    return is_file(config);
}

bool td_folder_json(td_folder *f, const char *name, td_json *json)
{
    char path[TD_FOLDER_PATH_BYTES], why[300] = "";
    uint64_t bytes;
    void *map;

    *json = (td_json){0};
    if (!td_folder_path(f, name, path) || !is_file(path))
        return false;
    tandem_status status = td_file_map(path, &map, &bytes, why, sizeof why);
    if (status == TANDEM_OK) {
        status = td_json_read_within(map, bytes, MOST_JSON_BYTES, MOST_JSON_VALUES, json, why,
                                     sizeof why);
        if (map)
            td_unmap(map, bytes);
    }
    return status == TANDEM_OK || FAIL(status, "%s: %s", name, why);
}

bool td_folder_put(td_folder *f, td_gguf_value value)
{
    td_gguf *out = f->out;
    td_gguf_value *values = td_arena_grow(&out->arena, out->values, out->value_count,
                                          sizeof *values, _Alignof(td_gguf_value));

    if (!values)
        return FAIL(TANDEM_ERROR_NOMEM, "no memory for a model's description");
    out->values = values;
    values[out->value_count++] = value;
    return f->status == TANDEM_OK;
}

static bool put_number(td_folder *f, const char *key, td_gguf_type type, const void *number,
                       size_t bytes)
{
    void *copy = td_folder_take(f, bytes, 1);

    if (!copy)
        return false;
    memcpy(copy, number, bytes);
    return td_folder_put(f, (td_gguf_value){.key = key, .type = type, .count = 1, .bytes = copy});
}

bool td_folder_put_u32(td_folder *f, const char *key, uint32_t value)
{
    return put_number(f, key, TD_GGUF_U32, &value, sizeof value);
}

bool td_folder_put_f32(td_folder *f, const char *key, float value)
{
    return put_number(f, key, TD_GGUF_F32, &value, sizeof value);
}

bool td_folder_put_bool(td_folder *f, const char *key, bool value)
{
    return put_number(f, key, TD_GGUF_BOOL, &(uint8_t){value}, 1);
}

bool td_folder_put_text(td_folder *f, const char *key, const char *text, size_t bytes)
{
    td_gguf_string *string = td_folder_take(f, 1, sizeof *string);

    if (!string || !(string->bytes = td_arena_text(&f->out->arena, text, bytes)))
        return FAIL(TANDEM_ERROR_NOMEM, "no memory for a model's description");
    string->length = bytes;
    return td_folder_put(
        f, (td_gguf_value){.key = key, .type = TD_GGUF_STRING, .count = 1, .strings = string});
}

/* --- Tensors --- */

bool td_folder_add_tensor(td_folder *f, td_gguf_tensor tensor)
{
    td_gguf *out = f->out;
    td_gguf_tensor *tensors = td_arena_grow(&out->arena, out->tensors, out->tensor_count,
                                            sizeof *tensors, _Alignof(td_gguf_tensor));

    if (!tensors)
        return FAIL(TANDEM_ERROR_NOMEM, "no memory for a model's description");
    out->tensors = tensors;
    tensors[out->tensor_count++] = tensor;
    return f->status == TANDEM_OK;
}

bool td_folder_add_vector(td_folder *f, const char *name, const float *data, uint32_t count)
{
    float *copy = td_folder_take(f, count, sizeof *copy);

    if (!copy)
        return false;
    memcpy(copy, data, count * sizeof *copy);
    return td_folder_add_tensor(f, (td_gguf_tensor){.name = name,
                                                    .type_name = "F32",
                                                    .dtype = TANDEM_DTYPE_F32,
                                                    .dimensions = 1,
                                                    .shape = {count, 1, 1, 1},
                                                    .data = copy,
                                                    .bytes = count * sizeof *copy});
}
