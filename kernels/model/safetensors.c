/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/model/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/base.h"
#include "interop/os/descriptor.h"
#include "interop/os/file.h"

enum { PREFIX_BYTES = 8, MAX_NAME_SHOWN = 80 };
#define MAX_HEADER_BYTES (100u * 1000 * 1000)

static const struct {
    const char *name;
    uint32_t bytes, dtype;
} dtypes[] = {
    {"F16", 2, TANDEM_DTYPE_F16},   {"BF16", 2, TANDEM_DTYPE_BF16},    {"F32", 4, TANDEM_DTYPE_F32},
    {"F64", 8, TANDEM_DTYPE_NONE},  {"F8_E4M3", 1, TANDEM_DTYPE_NONE}, {"F8_E5M2", 1, TANDEM_DTYPE_NONE},
    {"BOOL", 1, TANDEM_DTYPE_NONE}, {"I8", 1, TANDEM_DTYPE_I8},        {"U8", 1, TANDEM_DTYPE_U8},
    {"I16", 2, TANDEM_DTYPE_NONE},  {"U16", 2, TANDEM_DTYPE_NONE},     {"I32", 4, TANDEM_DTYPE_I32},
    {"U32", 4, TANDEM_DTYPE_NONE},  {"I64", 8, TANDEM_DTYPE_NONE},     {"U64", 8, TANDEM_DTYPE_NONE},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static int find_dtype(const char *name)
{
    for (int i = 0; i < DTYPES; i++)
        if (!strcmp(dtypes[i].name, name))
            return i;
    return -1;
}

static bool product_fits(const uint64_t *shape, uint32_t dimensions, uint32_t element_bytes, uint64_t *bytes)
{
    bool zero = false;

    *bytes = element_bytes;
    for (uint32_t i = 0; i < dimensions; i++)
        zero = zero || !shape[i];
    for (uint32_t i = 0; i < dimensions && !zero; i++)
        if (!td_mul_u64(*bytes, shape[i], bytes))
            return false;
    if (zero)
        *bytes = 0;
    return *bytes <= (uint64_t)INT64_MAX;
}

static tandem_status bad(char *why, size_t why_bytes, const char *name, const char *format, ...)
    __attribute__((format(TD_PRINTF, 4, 5)));

static tandem_status bad(char *why, size_t why_bytes, const char *name, const char *format, ...)
{
    char text[200];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "tensor '%.*s': %s", MAX_NAME_SHOWN, name, text);
}

static tandem_status parse_tensor(const char *name, const json_t *object, uint64_t data_begin, uint64_t data_bytes,
                                  td_safetensor *out, char *why, size_t why_bytes)
{
    const json_t *dtype = json_object_get(object, "dtype"), *shape = json_object_get(object, "shape"),
                 *offsets = json_object_get(object, "data_offsets");
    uint64_t begin, end, bytes;
    int which;

    if (!json_is_object(object))
        return bad(why, why_bytes, name, "is not an object");
    if (json_object_size(object) != 3 || !dtype || !shape || !offsets)
        return bad(why, why_bytes, name, "has not exactly dtype, shape and data_offsets");
    if (!json_is_string(dtype))
        return bad(why, why_bytes, name, "dtype is not a string");
    which = find_dtype(json_string_value(dtype));
    if (which < 0)
        return bad(why, why_bytes, name, "dtype is '%.40s'", json_string_value(dtype));
    if (!json_is_array(shape))
        return bad(why, why_bytes, name, "shape is not an array");
    if (json_array_size(shape) > TD_SAFETENSORS_DIMENSIONS)
        return bad(why, why_bytes, name, "shape has %zu dimensions, more than %d", json_array_size(shape),
                   TD_SAFETENSORS_DIMENSIONS);
    out->dimensions = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < out->dimensions; i++) {
        const json_t *size = json_array_get(shape, i);

        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return bad(why, why_bytes, name, "shape[%u] is not a number of elements", i);
        out->shape[i] = (uint64_t)json_integer_value(size);
    }
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return bad(why, why_bytes, name, "data_offsets is not a pair");
    for (uint32_t i = 0; i < 2; i++)
        if (!json_is_integer(json_array_get(offsets, i)) || json_integer_value(json_array_get(offsets, i)) < 0)
            return bad(why, why_bytes, name, "data_offsets[%u] is not a number of bytes", i);
    begin = (uint64_t)json_integer_value(json_array_get(offsets, 0));
    end = (uint64_t)json_integer_value(json_array_get(offsets, 1));
    if (begin > end)
        return bad(why, why_bytes, name, "data_offsets are %" PRIu64 ", %" PRIu64 ": they fall", begin, end);
    if (end > data_bytes)
        return bad(why, why_bytes, name,
                   "data_offsets are %" PRIu64 ", %" PRIu64 ", but the file has %" PRIu64 " bytes of data", begin, end,
                   data_bytes);
    out->dtype_name = dtypes[which].name;
    out->dtype = dtypes[which].dtype;
    out->element_bytes = dtypes[which].bytes;
    if (!product_fits(out->shape, out->dimensions, out->element_bytes, &bytes))
        return bad(why, why_bytes, name, "the product of its shape overflows");
    if (bytes != end - begin)
        return bad(why, why_bytes, name, "its shape takes %" PRIu64 " bytes, data_offsets give %" PRIu64, bytes,
                   end - begin);
    out->offset = data_begin + begin;
    out->bytes = bytes;
    return TANDEM_OK;
}

/* A copy behind the strings that the file has; there is room. */
static const char *keep(char **end, const char *string)
{
    const size_t bytes = strlen(string) + 1;
    const char *copy = memcpy(*end, string, bytes);

    *end += bytes;
    return copy;
}

static tandem_status parse_metadata(td_safetensors *file, const json_t *metadata, char **end, char *why, size_t why_bytes)
{
    const char *key;
    const json_t *value;

    if (!json_is_object(metadata))
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "__metadata__ is not an object");
    file->texts = calloc(json_object_size(metadata) + 1, sizeof *file->texts);
    if (!file->texts)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for the metadata");
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value) {
        if (!json_is_string(value))
            return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "__metadata__ '%.*s' is not a string", MAX_NAME_SHOWN, key);
        file->texts[file->text_count].key = keep(end, key);
        file->texts[file->text_count++].value = keep(end, json_string_value(value));
    }
    return TANDEM_OK;
}

static size_t bytes_of_strings(const json_t *root)
{
    const char *key;
    json_t *value;
    size_t bytes = 1;

    json_object_foreach((json_t *)(uintptr_t)root, key, value)
        bytes += strlen(key) + 1;
    root = json_object_get(root, "__metadata__");
    json_object_foreach((json_t *)(uintptr_t)root, key, value)
        bytes += strlen(key) + json_string_length(value) + 2;
    return bytes;
}

static int by_offset(const void *a, const void *b)
{
    const td_safetensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Tensors lie one after the other and leave nothing between or behind them: a byte that nobody names can hide anything.
 */
static tandem_status check_cover(const td_safetensors *file, uint64_t data_begin, char *why, size_t why_bytes)
{
    uint64_t at = data_begin;

    for (uint32_t i = 0; i < file->count; i++) {
        const td_safetensor *t = &file->tensors[i];

        if (t->offset < at)
            return bad(why, why_bytes, t->name, "begins at %" PRIu64 ", within the one before, which ends at %" PRIu64,
                       t->offset - data_begin, at - data_begin);
        if (t->offset > at)
            return bad(why, why_bytes, t->name,
                       "begins at %" PRIu64 ", and nothing is said of the %" PRIu64 " bytes before",
                       t->offset - data_begin, t->offset - at);
        at += t->bytes;
    }
    if (at != file->file_bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "the tensors end at %" PRIu64 ", the file at %" PRIu64,
                       at, file->file_bytes);
    return TANDEM_OK;
}

static tandem_status parse_header(td_safetensors *file, const json_t *root, uint64_t data_begin, char *why,
                                  size_t why_bytes)
{
    const size_t entries = json_object_size(root);
    const char *key;
    char *end;
    json_t *value;
    tandem_status status = TANDEM_OK;

    file->tensors = calloc(entries ? entries : 1, sizeof *file->tensors);
    end = file->strings = malloc(bytes_of_strings(root));
    if (!file->tensors || !file->strings)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for %zu tensors", entries);
    json_object_foreach((json_t *)(uintptr_t)root, key, value) {
        td_safetensor *tensor = &file->tensors[file->count];

        if (!strcmp(key, "__metadata__")) {
            status = parse_metadata(file, value, &end, why, why_bytes);
        } else {
            status = parse_tensor(key, value, data_begin, file->file_bytes - data_begin, tensor, why, why_bytes);
            tensor->name = keep(&end, key);
            file->count++;
        }
        if (status != TANDEM_OK)
            return status;
    }
    qsort(file->tensors, file->count, sizeof *file->tensors, by_offset);
    return check_cover(file, data_begin, why, why_bytes);
}

tandem_status td_safetensors_open(const char *path, td_safetensors *out, char *why, size_t why_bytes)
{
    unsigned char prefix[PREFIX_BYTES];
    uint64_t header_bytes = 0;
    json_t *root = NULL;
    char *header = NULL;
    json_error_t error;
    tandem_status status;

    *out = (td_safetensors){0};
    status = td_file_open(path, &out->fd, &out->file_bytes, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    if (out->file_bytes < PREFIX_BYTES) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "the file has %" PRIu64 " bytes, not even a length",
                         out->file_bytes);
        goto fail;
    }
    status = td_file_read(out->fd, 0, prefix, PREFIX_BYTES, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    for (int i = PREFIX_BYTES - 1; i >= 0; i--)
        header_bytes = header_bytes << 8 | prefix[i];
    if (!memcmp(prefix, "GGUF", 4)) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "it is a GGUF file, not safetensors");
        goto fail;
    }
    if (header_bytes > MAX_HEADER_BYTES || header_bytes > out->file_bytes - PREFIX_BYTES) {
        status =
            td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                    "the header's length is %" PRIu64 " in a file of %" PRIu64 " bytes", header_bytes, out->file_bytes);
        goto fail;
    }
    header = malloc(header_bytes + 1);
    if (!header) {
        status =
            td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a header of %" PRIu64 " bytes", header_bytes);
        goto fail;
    }
    status = td_file_read(out->fd, PREFIX_BYTES, header, header_bytes, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    root = json_loadb(header, header_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(root)) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "the header of %" PRIu64 " bytes is no JSON object: %s",
                         header_bytes, root ? "it is something else" : error.text);
        goto fail;
    }
    status = parse_header(out, root, PREFIX_BYTES + header_bytes, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    json_decref(root);
    free(header);
    return TANDEM_OK;
fail:
    json_decref(root);
    free(header);
    td_safetensors_close(out);
    return status;
}

void td_safetensors_close(td_safetensors *file)
{
    if (file->tensors || file->strings || file->file_bytes || file->fd > 0)
        td_fd_close(&file->fd);
    free(file->tensors);
    free(file->texts);
    free(file->strings);
    *file = (td_safetensors){.fd = -1};
}

const td_safetensor *td_safetensors_find(const td_safetensors *file, const char *name)
{
    for (uint32_t i = 0; i < file->count; i++)
        if (!strcmp(file->tensors[i].name, name))
            return &file->tensors[i];
    return NULL;
}

const char *td_safetensors_find_text(const td_safetensors *file, const char *key)
{
    for (uint32_t i = 0; i < file->text_count; i++)
        if (!strcmp(file->texts[i].key, key))
            return file->texts[i].value;
    return NULL;
}

tandem_status td_safetensors_read_part(const td_safetensors *file, const td_safetensor *tensor, uint64_t from,
                                       uint64_t bytes, void *to, char *why, size_t why_bytes)
{
    char text[200];
    tandem_status status = td_file_read(file->fd, tensor->offset + from, to, bytes, text, sizeof text);

    return status == TANDEM_OK
               ? status
               : td_fail(why, why_bytes, status, "tensor '%.*s': %s", MAX_NAME_SHOWN, tensor->name, text);
}

tandem_status td_safetensors_read(const td_safetensors *file, const td_safetensor *tensor, void *to, char *why,
                                  size_t why_bytes)
{
    return td_safetensors_read_part(file, tensor, 0, tensor->bytes, to, why, why_bytes);
}

static tandem_status describe(const td_safetensors_item *items, uint32_t count, json_t *root, char *why,
                              size_t why_bytes)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < count; i++) {
        const td_safetensors_item *item = &items[i];
        const int which = item->dtype ? find_dtype(item->dtype) : -1;
        json_t *shape;
        uint64_t bytes, end;

        if (!item->name || !strcmp(item->name, "__metadata__") || json_object_get(root, item->name))
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "items[%u].name is '%s': missing, reserved or there already", i,
                           item->name ? item->name : "");
        if (which < 0)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "items[%u].dtype is '%s'", i,
                           item->dtype ? item->dtype : "");
        if (item->dimensions > TD_SAFETENSORS_DIMENSIONS)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "items[%u].dimensions is %u", i, item->dimensions);
        if (!product_fits(item->shape, item->dimensions, dtypes[which].bytes, &bytes) || !td_add_u64(at, bytes, &end) ||
            end > (uint64_t)INT64_MAX)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "items[%u].shape: its product overflows", i);
        if (bytes && !item->data)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "items[%u].data is NULL", i);
        shape = json_array();
        for (uint32_t d = 0; d < item->dimensions; d++)
            json_array_append_new(shape, json_integer((json_int_t)item->shape[d]));
        if (json_object_set_new(root, item->name,
                                json_pack("{s:s, s:o, s:[I,I]}", "dtype", item->dtype, "shape", shape, "data_offsets",
                                          (json_int_t)at, (json_int_t)end)))
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "items[%u].name is '%s', which is not UTF-8", i,
                           item->name);
        at = end;
    }
    return TANDEM_OK;
}

static uint64_t item_bytes(const td_safetensors_item *item)
{
    uint64_t bytes = 0;

    product_fits(item->shape, item->dimensions, dtypes[find_dtype(item->dtype)].bytes, &bytes);
    return bytes;
}

static bool describe_texts(const td_safetensors_text *texts, uint32_t count, json_t *root)
{
    json_t *metadata = count ? json_object() : NULL;

    for (uint32_t i = 0; i < count; i++)
        if (json_object_set_new(metadata, texts[i].key, json_string(texts[i].value))) {
            json_decref(metadata);
            return false;
        }
    return !count || json_object_set_new(root, "__metadata__", metadata) == 0;
}

tandem_status td_safetensors_write(const char *path, const td_safetensors_item *items, uint32_t count, char *why,
                                   size_t why_bytes)
{
    return td_safetensors_write_texts(path, NULL, 0, items, count, why, why_bytes);
}

tandem_status td_safetensors_write_texts(const char *path, const td_safetensors_text *texts, uint32_t text_count,
                                         const td_safetensors_item *items, uint32_t count, char *why, size_t why_bytes)
{
    static const char spaces[PREFIX_BYTES] = "        ";
    unsigned char prefix[PREFIX_BYTES];
    json_t *root = json_object();
    char *header = NULL, text[120];
    int fd = -1;
    uint64_t text_bytes, header_bytes;
    tandem_status status;

    if (!root)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a header");
    if (!describe_texts(texts, text_count, root)) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "the metadata is not UTF-8, or there is no memory for it");
        goto done;
    }
    status = describe(items, count, root, why, why_bytes);
    if (status != TANDEM_OK)
        goto done;
    header = json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (!header) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a header of %u tensors", count);
        goto done;
    }
    status = td_file_create(path, &fd, text, sizeof text);
    if (status != TANDEM_OK) {
        td_fail(why, why_bytes, status, "'%s': %s", path, text);
        goto done;
    }
    text_bytes = strlen(header);
    header_bytes = td_align_up(text_bytes, PREFIX_BYTES); /* so that data is aligned: readers that map files like it */
    for (int i = 0; i < PREFIX_BYTES; i++)
        prefix[i] = (unsigned char)(header_bytes >> 8 * i);
    status = td_file_write(fd, prefix, sizeof prefix, text, sizeof text);
    if (status == TANDEM_OK)
        status = td_file_write(fd, header, text_bytes, text, sizeof text);
    if (status == TANDEM_OK)
        status = td_file_write(fd, spaces, header_bytes - text_bytes, text, sizeof text);
    for (uint32_t i = 0; i < count && status == TANDEM_OK; i++)
        status = td_file_write(fd, items[i].data, item_bytes(&items[i]), text, sizeof text);
    if (status == TANDEM_OK)
        status = td_file_close(&fd, text, sizeof text);
    if (status != TANDEM_OK) {
        td_fd_close(&fd);
        td_fail(why, why_bytes, status, "'%s': %s", path, text);
        td_file_remove(path);
    }
done:
    free(header);
    json_decref(root);
    return status;
}
