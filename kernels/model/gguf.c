/* A reader of GGUF files. See gguf.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/model/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "interop/operation.h"
#include "interop/os/file.h"
#include "interop/os/memory.h"

enum {
    OLDEST_VERSION = 2, /* differs from 3 in nothing that is read here */
    NEWEST_VERSION = 3,
    DEFAULT_ALIGNMENT = 32,
    LEAST_ALIGNMENT = 8,
    MOST_ALIGNMENT = 1 << 20,
    LEAST_VALUE_BYTES = 13, /* of a file: a key's length, a type, a bool */
    LEAST_TENSOR_BYTES = 24 /* a name's length, how many dimensions, a type, an offset */
};

/* --- Types --- */

static const struct {
    const char *name;
    uint32_t bytes; /* 0: each has its own length */
} value_types[] = {
    [TD_GGUF_U8] = {"U8", 1},         [TD_GGUF_I8] = {"I8", 1},     [TD_GGUF_U16] = {"U16", 2},
    [TD_GGUF_I16] = {"I16", 2},       [TD_GGUF_U32] = {"U32", 4},   [TD_GGUF_I32] = {"I32", 4},
    [TD_GGUF_F32] = {"F32", 4},       [TD_GGUF_BOOL] = {"bool", 1}, [TD_GGUF_ARRAY] = {"array", 0},
    [TD_GGUF_STRING] = {"string", 0}, [TD_GGUF_U64] = {"U64", 8},   [TD_GGUF_I64] = {"I64", 8},
    [TD_GGUF_F64] = {"F64", 8},
};
enum { VALUE_TYPES = sizeof value_types / sizeof *value_types };

/* By number. Those without a dtype are known so that a reason can name them. */
static const struct {
    const char *name;
    uint32_t elements, bytes; /* of a block */
    uint32_t dtype;
} tensor_types[] = {
    [0] = {"F32", 1, 4, TANDEM_DTYPE_F32},
    [1] = {"F16", 1, 2, TANDEM_DTYPE_F16},
    [2] = {"Q4_0", 32, 18, TANDEM_DTYPE_Q4_0},
    [3] = {"Q4_1", 32, 20, TANDEM_DTYPE_Q4_1},
    [6] = {"Q5_0", 32, 22, TANDEM_DTYPE_NONE},
    [7] = {"Q5_1", 32, 24, TANDEM_DTYPE_NONE},
    [8] = {"Q8_0", 32, 34, TANDEM_DTYPE_Q8_0},
    [10] = {"Q2_K", 256, 84, TANDEM_DTYPE_NONE},
    [11] = {"Q3_K", 256, 110, TANDEM_DTYPE_NONE},
    [12] = {"Q4_K", 256, 144, TANDEM_DTYPE_Q4_K},
    [13] = {"Q5_K", 256, 176, TANDEM_DTYPE_Q5_K},
    [14] = {"Q6_K", 256, 210, TANDEM_DTYPE_Q6_K},
    [16] = {"IQ2_XXS", 256, 66, TANDEM_DTYPE_NONE},
    [17] = {"IQ2_XS", 256, 74, TANDEM_DTYPE_NONE},
    [18] = {"IQ3_XXS", 256, 98, TANDEM_DTYPE_NONE},
    [19] = {"IQ1_S", 256, 50, TANDEM_DTYPE_NONE},
    [20] = {"IQ4_NL", 32, 18, TANDEM_DTYPE_NONE},
    [21] = {"IQ3_S", 256, 110, TANDEM_DTYPE_NONE},
    [22] = {"IQ2_S", 256, 82, TANDEM_DTYPE_NONE},
    [23] = {"IQ4_XS", 256, 136, TANDEM_DTYPE_NONE},
    [24] = {"I8", 1, 1, TANDEM_DTYPE_I8},
    [25] = {"I16", 1, 2, TANDEM_DTYPE_NONE},
    [26] = {"I32", 1, 4, TANDEM_DTYPE_I32},
    [27] = {"I64", 1, 8, TANDEM_DTYPE_NONE},
    [28] = {"F64", 1, 8, TANDEM_DTYPE_NONE},
    [29] = {"IQ1_M", 256, 56, TANDEM_DTYPE_NONE},
    [30] = {"BF16", 1, 2, TANDEM_DTYPE_BF16},
    [34] = {"TQ1_0", 256, 54, TANDEM_DTYPE_NONE},
    [35] = {"TQ2_0", 256, 66, TANDEM_DTYPE_NONE},
    [39] = {"MXFP4", 32, 17, TANDEM_DTYPE_NONE},
};
enum { TENSOR_TYPES = sizeof tensor_types / sizeof *tensor_types };

/* --- Bytes --- */

typedef struct reader {
    td_gguf *file;
    uint64_t at;
    char subject[TD_NAME_MOST + 16]; /* what is being read: `tensor "a"` */
    tandem_status status;
    char *why;
    size_t why_bytes;
} reader;

static bool fail(reader *r, uint64_t at, const char *format, ...)
    __attribute__((format(TD_PRINTF, 3, 4)));

static bool fail(reader *r, uint64_t at, const char *format, ...)
{
    char text[200];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->status = td_fail(r->why, r->why_bytes, TANDEM_ERROR_PROTOCOL, "%s: %s (byte %" PRIu64 ")",
                        r->subject, text, at);
    return false;
}

static bool fail_memory(reader *r)
{
    r->status = td_fail(r->why, r->why_bytes, TANDEM_ERROR_NOMEM, "no memory for %s", r->subject);
    return false;
}

static void *take_memory(reader *r, uint64_t count, size_t bytes, size_t alignment)
{
    void *memory = td_arena_take(&r->file->arena, (size_t)count * bytes, alignment);

    if (!memory)
        fail_memory(r);
    return memory;
}

/* The next bytes of the file; NULL if it has fewer. */
static const uint8_t *take(reader *r, uint64_t bytes, const char *what)
{
    const uint64_t at = r->at, left = r->file->size - at;

    if (bytes > left) {
        fail(r, at, "%s takes %" PRIu64 " bytes, and %" PRIu64 " are left", what, bytes, left);
        return NULL;
    }
    r->at += bytes;
    return r->file->bytes + at;
}

static bool take_u32(reader *r, const char *what, uint32_t *out)
{
    const uint8_t *from = take(r, sizeof *out, what);

    if (from)
        memcpy(out, from, sizeof *out);
    return from;
}

static bool take_u64(reader *r, const char *what, uint64_t *out)
{
    const uint8_t *from = take(r, sizeof *out, what);

    if (from)
        memcpy(out, from, sizeof *out);
    return from;
}

/* How many there are of what takes at least `least_bytes` each. */
static bool take_count(reader *r, const char *what, uint32_t most, uint32_t least_bytes,
                       uint64_t *out)
{
    const uint64_t at = r->at;

    if (!take_u64(r, what, out))
        return false;
    if (*out > most)
        return fail(r, at, "%s is %" PRIu64 ", more than %u", what, *out, most);
    if (*out > (r->file->size - r->at) / least_bytes)
        return fail(r, at, "%s is %" PRIu64 ", more than the %" PRIu64 " bytes left can be", what,
                    *out, r->file->size - r->at);
    return true;
}

static bool take_string(reader *r, const char *what, td_gguf_string *out)
{
    if (!take_u64(r, what, &out->length))
        return false;
    out->bytes = (const char *)take(r, out->length, what);
    return out->bytes;
}

/* A key or name: printable ASCII, so that it can be shown; copied, with a 0 behind it. */
static const char *take_name(reader *r, const char *what, uint32_t most)
{
    const uint64_t at = r->at;
    td_gguf_string name;
    const char *copy;

    if (!take_string(r, what, &name))
        return NULL;
    if (name.length < 1 || name.length > most) {
        fail(r, at, "%s has %" PRIu64 " bytes, not 1 to %u", what, name.length, most);
        return NULL;
    }
    for (uint64_t i = 0; i < name.length; i++)
        if (name.bytes[i] < ' ' || name.bytes[i] > '~') {
            fail(r, r->at - name.length + i, "%s has a byte %u, which is no printable ASCII", what,
                 (uint8_t)name.bytes[i]);
            return NULL;
        }
    copy = td_arena_text(&r->file->arena, name.bytes, name.length);
    if (!copy)
        fail_memory(r);
    return copy;
}

/* --- Metadata --- */

static bool read_strings(reader *r, td_gguf_value *v)
{
    td_gguf_string *strings = take_memory(r, v->count, sizeof *strings, _Alignof(td_gguf_string));

    for (uint64_t i = 0; strings && i < v->count; i++)
        if (!take_string(r, "a string", &strings[i]))
            return false;
    v->strings = strings;
    return strings;
}

static bool read_numbers(reader *r, td_gguf_value *v)
{
    uint64_t bytes;

    if (!td_mul_u64(v->count, value_types[v->type].bytes, &bytes))
        return fail(r, v->offset, "%" PRIu64 " elements are more than a file has", v->count);
    v->bytes = take(r, bytes, "its value");
    for (uint64_t i = 0; v->type == TD_GGUF_BOOL && v->bytes && i < v->count; i++)
        if (v->bytes[i] > 1)
            return fail(r, v->offset + i, "a bool is %u", v->bytes[i]);
    return v->bytes;
}

static bool read_value(reader *r, td_gguf_value *v)
{
    uint64_t type_at = r->at;
    uint32_t type;

    v->count = 1;
    if (!take_u32(r, "its type", &type))
        return false;
    if (type == TD_GGUF_ARRAY) {
        v->is_array = true;
        type_at = r->at;
        if (!take_u32(r, "its elements' type", &type))
            return false;
        if (type == TD_GGUF_ARRAY)
            return fail(r, type_at, "arrays of arrays are not read");
        const bool ok = type == TD_GGUF_STRING
                            ? take_count(r, "the number of strings", TD_GGUF_MOST_STRINGS,
                                         sizeof(uint64_t), &v->count)
                            : take_u64(r, "its length", &v->count);
        if (!ok)
            return false;
    }
    if (type >= VALUE_TYPES)
        return fail(r, type_at, "type %u is not known", type);
    v->type = (td_gguf_type)type;
    v->offset = r->at;
    return type == TD_GGUF_STRING ? read_strings(r, v) : read_numbers(r, v);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const td_gguf_value *)a)->key, ((const td_gguf_value *)b)->key);
}

static bool read_values(reader *r)
{
    td_gguf *file = r->file;

    for (uint32_t i = 0; i < file->value_count; i++) {
        td_gguf_value *v = &file->values[i];

        snprintf(r->subject, sizeof r->subject, "key %u of %u", i, file->value_count);
        if (!(v->key = take_name(r, "the key", TD_GGUF_KEY_BYTES)))
            return false;
        snprintf(r->subject, sizeof r->subject, "key \"" TD_NAME "\"", TD_NAMED(v->key));
        if (!read_value(r, v))
            return false;
    }
    qsort(file->values, file->value_count, sizeof *file->values, compare_keys);
    for (uint32_t i = 1; i < file->value_count; i++)
        if (!compare_keys(&file->values[i - 1], &file->values[i])) {
            snprintf(r->subject, sizeof r->subject, "key \"" TD_NAME "\"",
                     TD_NAMED(file->values[i].key));
            return fail(r, file->values[i].offset, "is there twice");
        }
    return true;
}

static bool read_alignment(reader *r)
{
    static const char key[] = "general.alignment";
    const td_gguf_value *v = td_gguf_find(r->file, key);
    uint32_t *alignment = &r->file->alignment;

    *alignment = DEFAULT_ALIGNMENT;
    if (!v)
        return true;
    r->status = td_gguf_u32(r->file, key, alignment, r->why, r->why_bytes);
    if (r->status != TANDEM_OK)
        return false;
    snprintf(r->subject, sizeof r->subject, "key \"%s\"", key);
    if (*alignment & (*alignment - 1) || *alignment < LEAST_ALIGNMENT ||
        *alignment > MOST_ALIGNMENT)
        return fail(r, v->offset, "is %u, no power of two of %d to %d", *alignment, LEAST_ALIGNMENT,
                    MOST_ALIGNMENT);
    return true;
}

/* --- Tensors --- */

static void be_about(reader *r, const td_gguf_tensor *t)
{
    snprintf(r->subject, sizeof r->subject, "tensor \"%s\"", t->name);
}

static bool read_shape(reader *r, td_gguf_tensor *t)
{
    uint64_t at = r->at;

    for (uint32_t d = 0; d < TD_GGUF_DIMENSIONS; d++)
        t->shape[d] = 1;
    if (!take_u32(r, "the number of dimensions", &t->dimensions))
        return false;
    if (t->dimensions > TD_GGUF_DIMENSIONS)
        return fail(r, at, "it has %u dimensions, more than %d", t->dimensions, TD_GGUF_DIMENSIONS);
    for (uint32_t d = 0; d < t->dimensions; d++) {
        at = r->at;
        if (!take_u64(r, "a dimension", &t->shape[d]))
            return false;
        if (!t->shape[d])
            return fail(r, at, "dimension %u is 0", d);
    }
    return true;
}

/* How many bytes so many elements of a type are. */
static bool read_type(reader *r, td_gguf_tensor *t)
{
    const uint64_t at = r->at;
    uint64_t blocks;
    uint32_t type;

    if (!take_u32(r, "its type", &type))
        return false;
    if (type >= TENSOR_TYPES || !tensor_types[type].name)
        return fail(r, at, "type %u is not known", type);
    t->type_name = tensor_types[type].name;
    t->dtype = tensor_types[type].dtype;
    if (t->shape[0] % tensor_types[type].elements)
        return fail(r, at, "rows of %" PRIu64 " elements are no whole blocks of %s", t->shape[0],
                    t->type_name);
    blocks = t->shape[0] / tensor_types[type].elements;
    for (uint32_t d = 1; d < TD_GGUF_DIMENSIONS; d++)
        if (!td_mul_u64(blocks, t->shape[d], &blocks))
            return fail(r, t->described, "the product of its shape overflows");
    if (!td_mul_u64(blocks, tensor_types[type].bytes, &t->bytes) || t->bytes > INT64_MAX)
        return fail(r, t->described, "its bytes overflow");
    return true;
}

static bool read_tensor(reader *r, td_gguf_tensor *t)
{
    t->described = r->at;
    if (!(t->name = take_name(r, "the name", TD_GGUF_NAME_BYTES)))
        return false;
    be_about(r, t);
    return read_shape(r, t) && read_type(r, t) && take_u64(r, "its offset", &t->offset);
}

/* Offsets count from where the tensors' bytes begin, which is known when all have been read. */
static bool place_tensor(reader *r, td_gguf_tensor *t, uint64_t begin)
{
    be_about(r, t);
    if (t->offset % r->file->alignment)
        return fail(r, t->described, "offset %" PRIu64 " is no multiple of %u", t->offset,
                    r->file->alignment);
    if (!td_add_u64(begin, t->offset, &t->offset) || t->offset > r->file->size ||
        t->bytes > r->file->size - t->offset)
        return fail(r, t->described,
                    "its %" PRIu64 " bytes do not end within the %" PRIu64 " of the file", t->bytes,
                    r->file->size);
    t->data = r->file->bytes + t->offset;
    return true;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const td_gguf_tensor *)a)->name, ((const td_gguf_tensor *)b)->name);
}

static bool read_tensors(reader *r)
{
    td_gguf *file = r->file;

    for (uint32_t i = 0; i < file->tensor_count; i++) {
        snprintf(r->subject, sizeof r->subject, "tensor %u of %u", i, file->tensor_count);
        if (!read_tensor(r, &file->tensors[i]))
            return false;
    }
    for (uint32_t i = 0; i < file->tensor_count; i++)
        if (!place_tensor(r, &file->tensors[i], td_align_up(r->at, file->alignment)))
            return false;
    qsort(file->tensors, file->tensor_count, sizeof *file->tensors, compare_names);
    for (uint32_t i = 1; i < file->tensor_count; i++)
        if (!compare_names(&file->tensors[i - 1], &file->tensors[i])) {
            be_about(r, &file->tensors[i]);
            return fail(r, file->tensors[i].described, "is there twice");
        }
    return true;
}

/* --- The file --- */

static bool read_header(reader *r)
{
    uint64_t tensors, values;
    uint32_t version;
    const uint8_t *magic;

    snprintf(r->subject, sizeof r->subject, "the header");
    if (!(magic = take(r, 4, "\"GGUF\"")))
        return false;
    if (memcmp(magic, "GGUF", 4))
        return fail(r, 0, "begins with %02x %02x %02x %02x, not with \"GGUF\"", magic[0], magic[1],
                    magic[2], magic[3]);
    if (!take_u32(r, "its version", &version))
        return false;
    if (version && !(version & 0xffff))
        return fail(r, 4, "the file is for big-endian machines");
    if (version < OLDEST_VERSION || version > NEWEST_VERSION)
        return fail(r, 4, "version %u is none of %d and %d", version, OLDEST_VERSION,
                    NEWEST_VERSION);
    if (!take_count(r, "the number of tensors", TD_GGUF_MOST_TENSORS, LEAST_TENSOR_BYTES,
                    &tensors) ||
        !take_count(r, "the number of keys", TD_GGUF_MOST_KEYS, LEAST_VALUE_BYTES, &values))
        return false;
    r->file->tensor_count = (uint32_t)tensors;
    r->file->value_count = (uint32_t)values;
    r->file->values = take_memory(r, values, sizeof *r->file->values, _Alignof(td_gguf_value));
    r->file->tensors = take_memory(r, tensors, sizeof *r->file->tensors, _Alignof(td_gguf_tensor));
    if (!r->file->values || !r->file->tensors)
        return false;
    memset(r->file->values, 0, values * sizeof *r->file->values);
    memset(r->file->tensors, 0, tensors * sizeof *r->file->tensors);
    return true;
}

tandem_status td_gguf_read(const void *bytes, uint64_t size, td_gguf *out, char *why,
                           size_t why_bytes)
{
    reader r = {.file = out, .why = why, .why_bytes = why_bytes};

    *out = (td_gguf){.bytes = bytes, .size = size};
    if (!read_header(&r) || !read_values(&r) || !read_alignment(&r) || !read_tensors(&r))
        td_gguf_close(out);
    return r.status;
}

tandem_status td_gguf_open(const char *path, td_gguf *out, char *why, size_t why_bytes)
{
    void *map;
    uint64_t size;
    tandem_status status = td_file_map(path, &map, &size, why, why_bytes);

    *out = (td_gguf){0};
    if (status != TANDEM_OK)
        return status;
    status = td_gguf_read(map, size, out, why, why_bytes);
    if (status == TANDEM_OK)
        out->map = map;
    else if (map)
        td_unmap(map, size);
    return status;
}

const char *td_gguf_sort(td_gguf *file)
{
    qsort(file->values, file->value_count, sizeof *file->values, compare_keys);
    qsort(file->tensors, file->tensor_count, sizeof *file->tensors, compare_names);
    for (uint32_t i = 1; i < file->value_count; i++)
        if (!compare_keys(&file->values[i - 1], &file->values[i]))
            return file->values[i].key;
    for (uint32_t i = 1; i < file->tensor_count; i++)
        if (!compare_names(&file->tensors[i - 1], &file->tensors[i]))
            return file->tensors[i].name;
    return NULL;
}

void td_gguf_close(td_gguf *file)
{
    for (uint32_t i = 0; i < file->map_count; i++)
        td_unmap(file->maps[i].at, file->maps[i].bytes);
    td_arena_free(&file->arena);
    if (file->map)
        td_unmap(file->map, file->size);
    *file = (td_gguf){0};
}

/* --- What a file has --- */

const td_gguf_value *td_gguf_find(const td_gguf *file, const char *key)
{
    const td_gguf_value sought = {.key = key};

    return file->value_count ? bsearch(&sought, file->values, file->value_count, sizeof sought,
                                       compare_keys)
                             : NULL;
}

const td_gguf_tensor *td_gguf_find_tensor(const td_gguf *file, const char *name)
{
    const td_gguf_tensor sought = {.name = name};

    return file->tensor_count ? bsearch(&sought, file->tensors, file->tensor_count, sizeof sought,
                                        compare_names)
                              : NULL;
}

double td_gguf_number(const td_gguf_value *value, uint64_t i)
{
    const uint8_t *from = value->bytes + i * value_types[value->type].bytes;
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
        float f32;
        double f64;
    } x;

    memcpy(&x, from, value_types[value->type].bytes);
    switch (value->type) {
    case TD_GGUF_U8:
    case TD_GGUF_BOOL:
        return x.u8;
    case TD_GGUF_I8:
        return x.i8;
    case TD_GGUF_U16:
        return x.u16;
    case TD_GGUF_I16:
        return x.i16;
    case TD_GGUF_U32:
        return x.u32;
    case TD_GGUF_I32:
        return x.i32;
    case TD_GGUF_F32:
        return (double)x.f32;
    case TD_GGUF_U64:
        return (double)x.u64;
    case TD_GGUF_I64:
        return (double)x.i64;
    case TD_GGUF_F64:
        return x.f64;
    case TD_GGUF_STRING:
    case TD_GGUF_ARRAY:
        break;
    }
    return NAN;
}

static bool is_integer(const td_gguf_value *v)
{
    return v->type <= TD_GGUF_I32 || v->type == TD_GGUF_U64 || v->type == TD_GGUF_I64;
}

static tandem_status is_not(const char *key, const td_gguf_value *v, const char *what, char *why,
                            size_t why_bytes)
{
    if (!v)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "key \"" TD_NAME "\" is not there",
                       TD_NAMED(key));
    return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                   "key \"" TD_NAME "\": is %s%s, not %s (byte %" PRIu64 ")", TD_NAMED(key),
                   v->is_array ? "an array of " : "", value_types[v->type].name, what, v->offset);
}

tandem_status td_gguf_u32(const td_gguf *file, const char *key, uint32_t *out, char *why,
                          size_t why_bytes)
{
    const td_gguf_value *v = td_gguf_find(file, key);

    if (!v || v->is_array || !is_integer(v))
        return is_not(key, v, "an integer", why, why_bytes);
    const double x = td_gguf_number(v, 0);
    if (x < 0 || x > UINT32_MAX)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                       "key \"" TD_NAME "\": is %.0f, not 0 to %u (byte %" PRIu64 ")",
                       TD_NAMED(key), x, UINT32_MAX, v->offset);
    *out = (uint32_t)x;
    return TANDEM_OK;
}

tandem_status td_gguf_f32(const td_gguf *file, const char *key, float *out, char *why,
                          size_t why_bytes)
{
    const td_gguf_value *v = td_gguf_find(file, key);

    if (!v || v->is_array || (v->type != TD_GGUF_F32 && v->type != TD_GGUF_F64))
        return is_not(key, v, "a float", why, why_bytes);
    const float x = (float)td_gguf_number(v, 0);
    if (!isfinite(x))
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                       "key \"" TD_NAME "\": is %f (byte %" PRIu64 ")", TD_NAMED(key), (double)x,
                       v->offset);
    *out = x;
    return TANDEM_OK;
}

tandem_status td_gguf_bool(const td_gguf *file, const char *key, bool *out, char *why,
                           size_t why_bytes)
{
    const td_gguf_value *v = td_gguf_find(file, key);

    if (!v || v->is_array || v->type != TD_GGUF_BOOL)
        return is_not(key, v, "a bool", why, why_bytes);
    *out = v->bytes[0];
    return TANDEM_OK;
}

tandem_status td_gguf_text(const td_gguf *file, const char *key, td_gguf_string *out, char *why,
                           size_t why_bytes)
{
    const td_gguf_value *v = td_gguf_find(file, key);

    if (!v || v->is_array || v->type != TD_GGUF_STRING)
        return is_not(key, v, "a string", why, why_bytes);
    *out = v->strings[0];
    return TANDEM_OK;
}

tandem_status td_gguf_array(const td_gguf *file, const char *key, td_gguf_type type,
                            const td_gguf_value **out, char *why, size_t why_bytes)
{
    const td_gguf_value *v = td_gguf_find(file, key);
    char what[40];

    snprintf(what, sizeof what, "an array of %s", value_types[type].name);
    if (!v || !v->is_array || v->type != type)
        return is_not(key, v, what, why, why_bytes);
    *out = v;
    return TANDEM_OK;
}

tandem_status td_gguf_weights(const td_gguf *file, const char *name,
                              const uint64_t shape[TD_GGUF_DIMENSIONS], const td_gguf_tensor **out,
                              char *why, size_t why_bytes)
{
    const td_gguf_tensor *t = td_gguf_find_tensor(file, name);

    if (!t)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                       "tensor \"" TD_NAME "\" is not there", TD_NAMED(name));
    for (uint32_t d = 0; d < TD_GGUF_DIMENSIONS; d++)
        if (t->shape[d] != shape[d])
            return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                           "tensor \"%s\": dimension %u is %" PRIu64 ", not %" PRIu64
                           " (byte %" PRIu64 ")",
                           t->name, d, t->shape[d], shape[d], t->described);
    if (t->dtype == TANDEM_DTYPE_NONE)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "tensor \"%s\": nothing here computes with %s (byte %" PRIu64 ")", t->name,
                       t->type_name, t->described);
    *out = t;
    return TANDEM_OK;
}
