/* GGUF files: what they have is found, and what is broken is refused with what is wrong and where.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/model/gguf.h"
#include "tests/kernels/gguf_util.h"

enum { F32 = 0, Q4_0 = 2, Q8_0 = 8, Q3_K = 11, Q4_K = 12, UNKNOWN = 99 };

static void must_say(const char *why, const char *says)
{
    if (!strstr(why, says))
        fail_msg("\"%s\" does not say \"%s\"", why, says);
}

/* --- A file with a value of each type --- */

static void put_values(gguf_writer *w)
{
    const float f32 = -1.5f;
    const double f64 = 1e100;
    const int32_t i32[3] = {-1, 0, INT32_MAX};
    const uint16_t u16 = 65535;
    const int16_t i16 = -32768;

    gguf_put_key(w, "u8", TD_GGUF_U8), gguf_put(w, "\xff", 1);
    gguf_put_key(w, "i8", TD_GGUF_I8), gguf_put(w, "\xff", 1);
    gguf_put_key(w, "u16", TD_GGUF_U16), gguf_put(w, &u16, 2);
    gguf_put_key(w, "i16", TD_GGUF_I16), gguf_put(w, &i16, 2);
    gguf_put_key(w, "u32", TD_GGUF_U32), gguf_put_u32(w, UINT32_MAX);
    gguf_put_key(w, "i32", TD_GGUF_I32), gguf_put_u32(w, (uint32_t)-7);
    gguf_put_key(w, "f32", TD_GGUF_F32), gguf_put(w, &f32, 4);
    gguf_put_key(w, "yes", TD_GGUF_BOOL), gguf_put(w, "\1", 1);
    gguf_put_key(w, "text", TD_GGUF_STRING), gguf_put_string(w, "na\xc3\xafve");
    gguf_put_key(w, "u64", TD_GGUF_U64), gguf_put_u64(w, 1ull << 40);
    gguf_put_key(w, "i64", TD_GGUF_I64), gguf_put_u64(w, (uint64_t)-3);
    gguf_put_key(w, "f64", TD_GGUF_F64), gguf_put(w, &f64, 8);
    gguf_put_array(w, "i32s", TD_GGUF_I32, 3), gguf_put(w, i32, sizeof i32);
    gguf_put_array(w, "texts", TD_GGUF_STRING, 3);
    gguf_put_string(w, "a"), gguf_put_string(w, ""), gguf_put_string(w, "ccc");
    gguf_put_array(w, "none", TD_GGUF_F32, 0);
    gguf_put_array(w, "no_texts", TD_GGUF_STRING, 0);
    gguf_put_array(w, "bools", TD_GGUF_BOOL, 2), gguf_put(w, "\0\1", 2);
    gguf_put_key(w, "general.alignment", TD_GGUF_U32), gguf_put_u32(w, 64);
}
enum { VALUES = 18, TENSORS = 3, Q_BYTES = 3 * 2 * 18, K_BYTES = 110 };

static gguf_writer whole_file(void)
{
    gguf_writer w = {0};

    gguf_put_header(&w, TENSORS, VALUES);
    put_values(&w);
    gguf_put_tensor(&w, "b", 64, 3, Q4_0, 0);
    gguf_put_tensor(&w, "a", 256, 1, Q3_K, 128);
    gguf_put_string(&w, "scalar"), gguf_put_u32(&w, 0), gguf_put_u32(&w, F32);
    gguf_put_u64(&w, 320);
    gguf_align(&w, 64);
    for (int i = 0; i < 324; i++)
        gguf_put(&w, &(uint8_t){(uint8_t)i}, 1);
    return w;
}

static void check_values(const td_gguf *file)
{
    static const struct {
        const char *key;
        double number;
    } numbers[] = {{"u8", 255},        {"i8", -1},    {"u16", 65535}, {"i16", -32768},
                   {"u32", 4294967295}, {"i32", -7},   {"f32", -1.5},  {"yes", 1},
                   {"u64", 1099511627776}, {"i64", -3}, {"f64", 1e100}};
    const td_gguf_value *v;

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        v = td_gguf_find(file, numbers[i].key);
        assert_non_null(v);
        assert_false(v->is_array);
        assert_int_equal(v->count, 1);
        assert_true(td_gguf_number(v, 0) == numbers[i].number);
    }
    v = td_gguf_find(file, "i32s");
    assert_int_equal(v->count, 3);
    assert_true(td_gguf_number(v, 0) == -1 && td_gguf_number(v, 1) == 0);
    assert_true(td_gguf_number(v, 2) == INT32_MAX);
    v = td_gguf_find(file, "texts");
    assert_int_equal(v->count, 3);
    assert_true(td_gguf_string_is(v->strings[0], "a") && td_gguf_string_is(v->strings[1], ""));
    assert_true(td_gguf_string_is(v->strings[2], "ccc"));
    assert_false(td_gguf_string_is(v->strings[2], "cc"));
    assert_int_equal(td_gguf_find(file, "none")->count, 0);
    assert_int_equal(td_gguf_find(file, "no_texts")->count, 0);
    assert_true(td_gguf_number(td_gguf_find(file, "bools"), 1) == 1);
    assert_null(td_gguf_find(file, "u"));
    assert_null(td_gguf_find(file, ""));
}

static void check_tensors(const td_gguf *file)
{
    const td_gguf_tensor *t = td_gguf_find_tensor(file, "b");

    assert_int_equal(file->tensor_count, TENSORS);
    assert_string_equal(t->type_name, "Q4_0");
    assert_int_equal(t->dtype, TANDEM_DTYPE_Q4_0);
    assert_int_equal(t->dimensions, 2);
    assert_true(t->shape[0] == 64 && t->shape[1] == 3 && t->shape[2] == 1 && t->shape[3] == 1);
    assert_int_equal(t->bytes, Q_BYTES);
    assert_int_equal(t->offset % 64, 0);
    for (int i = 0; i < Q_BYTES; i++)
        assert_int_equal(((const uint8_t *)t->data)[i], i);
    t = td_gguf_find_tensor(file, "a");
    assert_string_equal(t->type_name, "Q3_K");
    assert_int_equal(t->dtype, TANDEM_DTYPE_NONE);
    assert_int_equal(t->bytes, K_BYTES);
    assert_int_equal(*(const uint8_t *)t->data, 128);
    t = td_gguf_find_tensor(file, "scalar");
    assert_true(t->dimensions == 0 && t->bytes == 4 && t->shape[0] == 1);
    assert_int_equal(*(const uint8_t *)t->data, 320 & 255);
    assert_null(td_gguf_find_tensor(file, "c"));
}

static void test_whole(void **state)
{
    gguf_writer w = whole_file();
    char path[64], why[300] = "";
    td_gguf file;
    const int fd = memfd_create("gguf", MFD_CLOEXEC);

    (void)state;
    assert_int_equal(td_gguf_read(w.bytes, w.size, &file, why, sizeof why), TANDEM_OK);
    assert_int_equal(file.alignment, 64);
    assert_int_equal(file.value_count, VALUES);
    check_values(&file);
    check_tensors(&file);
    td_gguf_close(&file);
    assert_null(td_gguf_find(&file, "u8"));
    assert_null(td_gguf_find_tensor(&file, "a"));

    assert_int_equal(write(fd, w.bytes, w.size), (ssize_t)w.size);
    gguf_free(&w);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_int_equal(td_gguf_open(path, &file, why, sizeof why), TANDEM_OK);
    close(fd);
    check_values(&file);
    check_tensors(&file);
    td_gguf_close(&file);
    td_gguf_close(&file);
}

/* --- Getters --- */

static void test_getters(void **state)
{
    gguf_writer w = whole_file();
    char why[300] = "";
    td_gguf file;
    uint32_t u;
    float f;
    bool b;
    td_gguf_string s;
    const td_gguf_value *v;

    (void)state;
    assert_int_equal(td_gguf_read(w.bytes, w.size, &file, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_gguf_u32(&file, "u8", &u, why, sizeof why), TANDEM_OK);
    assert_int_equal(u, 255);
    assert_int_equal(td_gguf_u32(&file, "u32", &u, why, sizeof why), TANDEM_OK);
    assert_int_equal(u, UINT32_MAX);
    assert_int_equal(td_gguf_f32(&file, "f32", &f, why, sizeof why), TANDEM_OK);
    assert_true(f == -1.5f);
    assert_int_equal(td_gguf_bool(&file, "yes", &b, why, sizeof why), TANDEM_OK);
    assert_true(b);
    assert_int_equal(td_gguf_text(&file, "text", &s, why, sizeof why), TANDEM_OK);
    assert_true(td_gguf_string_is(s, "na\xc3\xafve"));
    assert_int_equal(td_gguf_array(&file, "i32s", TD_GGUF_I32, &v, why, sizeof why), TANDEM_OK);
    assert_int_equal(v->count, 3);

    assert_int_equal(td_gguf_u32(&file, "absent", &u, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say(why, "key \"absent\" is not there");
    assert_int_equal(td_gguf_u32(&file, "i8", &u, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say(why, "key \"i8\": is -1, not 0 to 4294967295 (byte ");
    assert_int_equal(td_gguf_u32(&file, "u64", &u, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say(why, "1099511627776");
    assert_int_equal(td_gguf_u32(&file, "f32", &u, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say(why, "key \"f32\": is F32, not an integer (byte ");
    assert_int_equal(td_gguf_u32(&file, "i32s", &u, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say(why, "is an array of I32, not an integer");
    assert_int_equal(td_gguf_u32(&file, "yes", &u, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    assert_int_equal(td_gguf_f32(&file, "f64", &f, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say(why, "is inf");
    assert_int_equal(td_gguf_f32(&file, "u8", &f, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say(why, "is U8, not a float");
    assert_int_equal(td_gguf_bool(&file, "bools", &b, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say(why, "is an array of bool, not a bool");
    assert_int_equal(td_gguf_text(&file, "texts", &s, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say(why, "is an array of string, not a string");
    assert_int_equal(td_gguf_array(&file, "texts", TD_GGUF_F32, &v, why, sizeof why),
                     TANDEM_ERROR_PROTOCOL);
    must_say(why, "is an array of string, not an array of F32");
    assert_int_equal(td_gguf_array(&file, "u8", TD_GGUF_U8, &v, why, sizeof why),
                     TANDEM_ERROR_PROTOCOL);
    must_say(why, "is U8, not an array of U8");
    td_gguf_close(&file);
    gguf_free(&w);
}

static void test_weights(void **state)
{
    gguf_writer w = whole_file();
    char why[300] = "";
    td_gguf file;
    const td_gguf_tensor *t = NULL;

    (void)state;
    assert_int_equal(td_gguf_read(w.bytes, w.size, &file, why, sizeof why), TANDEM_OK);
    assert_int_equal(
        td_gguf_weights(&file, "b", (uint64_t[]){64, 3, 1, 1}, &t, why, sizeof why), TANDEM_OK);
    assert_ptr_equal(t, td_gguf_find_tensor(&file, "b"));
    assert_int_equal(td_gguf_weights(&file, "b", (uint64_t[]){64, 4, 1, 1}, &t, why, sizeof why),
                     TANDEM_ERROR_PROTOCOL);
    must_say(why, "tensor \"b\": dimension 1 is 3, not 4 (byte ");
    assert_int_equal(td_gguf_weights(&file, "c", (uint64_t[]){64, 4, 1, 1}, &t, why, sizeof why),
                     TANDEM_ERROR_PROTOCOL);
    must_say(why, "tensor \"c\" is not there");
    assert_int_equal(td_gguf_weights(&file, "a", (uint64_t[]){256, 1, 1, 1}, &t, why, sizeof why),
                     TANDEM_ERROR_UNSUPPORTED);
    must_say(why, "tensor \"a\": nothing here computes with Q3_K (byte ");
    td_gguf_close(&file);
    gguf_free(&w);
}

/* --- What is broken --- */

/* A file of one tensor, which may be wrong, and 64 bytes for it. */
static gguf_writer tensor_file(const char *name, uint64_t columns, uint64_t rows, uint32_t type,
                               uint64_t offset)
{
    gguf_writer w = {0};

    gguf_put_header(&w, 1, 0);
    gguf_put_tensor(&w, name, columns, rows, type, offset);
    gguf_align(&w, 32);
    for (int i = 0; i < 8; i++)
        gguf_put_u64(&w, 0);
    return w;
}

static void must_refuse(gguf_writer *w, const char *says)
{
    char why[300] = "";
    td_gguf file;
    uint8_t *exact = malloc(w->size ? w->size : 1); /* a byte read beyond it is seen */

    memcpy(exact, w->bytes, w->size);
    assert_int_equal(td_gguf_read(exact, w->size, &file, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say(why, says);
    assert_null(file.bytes);
    free(exact);
    gguf_free(w);
}

static void test_broken_tensors(void **state)
{
    static const struct {
        const char *name;
        uint64_t columns, rows;
        uint32_t type;
        uint64_t offset;
        const char *says;
    } cases[] = {
        {"blk.3.attn_q.weight", 4, 4, UNKNOWN, 0,
         "tensor \"blk.3.attn_q.weight\": type 99 is not known (byte 71)"},
        {"t", 4, 4, 4, 0, "type 4 is not known"},
        {"t", 4, 4, 1u << 31, 0, "type 2147483648 is not known"},
        {"t", 0, 4, F32, 0, "dimension 0 is 0 (byte 37)"},
        {"t", 4, 0, F32, 0, "dimension 1 is 0"},
        {"t", 33, 1, Q8_0, 0, "rows of 33 elements are no whole blocks of Q8_0"},
        {"t", 128, 2, Q4_K, 0, "rows of 128 elements are no whole blocks of Q4_K"},
        {"t", UINT64_MAX, 2, F32, 0, "the product of its shape overflows"},
        {"t", 1ull << 62, 1, F32, 0, "its bytes overflow"},
        {"t", 1ull << 61, 1, F32, 0, "its bytes overflow"},
        {"t", 4, 4, F32, 8, "offset 8 is no multiple of 32"},
        {"t", 4, 4, F32, 32, "its 64 bytes do not end within the 160 of the file"},
        {"t", 4, 4, F32, 96, "do not end within"},
        {"t", 4, 4, F32, 1ull << 63, "do not end within"},
        {"t", 4, 4, F32, UINT64_MAX - 31, "do not end within"},
        {"", 4, 4, F32, 0, "tensor 0 of 1: the name has 0 bytes, not 1 to 64 (byte 24)"},
        {"a.name.that.is.much.too.long.for.a.tensor.since.it.has.65.letters", 4, 4, F32, 0,
         "the name has 65 bytes"},
        {"a\nb", 4, 4, F32, 0, "the name has a byte 10, which is no printable ASCII (byte 33)"},
        {"a\xc2\x9f", 4, 4, F32, 0, "a byte 194"},
    };
    gguf_writer w = tensor_file("t", 4, 4, F32, 0);
    td_gguf file;

    (void)state;
    assert_int_equal(td_gguf_read(w.bytes, w.size, &file, NULL, 0), TANDEM_OK);
    td_gguf_close(&file);
    gguf_free(&w);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        w = tensor_file(cases[i].name, cases[i].columns, cases[i].rows, cases[i].type,
                        cases[i].offset);
        must_refuse(&w, cases[i].says);
    }

    w = (gguf_writer){0};
    gguf_put_header(&w, 1, 0);
    gguf_put_string(&w, "t"), gguf_put_u32(&w, 5);
    for (int i = 0; i < 8; i++)
        gguf_put_u64(&w, 1);
    must_refuse(&w, "tensor \"t\": it has 5 dimensions, more than 4 (byte 33)");

    w = (gguf_writer){0};
    gguf_put_header(&w, 2, 0);
    gguf_put_tensor(&w, "t", 4, 4, F32, 0), gguf_put_tensor(&w, "t", 4, 4, F32, 0);
    gguf_align(&w, 32);
    for (int i = 0; i < 8; i++)
        gguf_put_u64(&w, 0);
    must_refuse(&w, "tensor \"t\": is there twice");
}

/* A file of one value: the bytes behind its key and type. */
static void must_refuse_value(const char *key, uint32_t type, const void *bytes, size_t count,
                              const char *says)
{
    gguf_writer w = {0};

    gguf_put_header(&w, 0, 1);
    gguf_put_key(&w, key, type);
    gguf_put(&w, bytes, count);
    must_refuse(&w, says);
}

static void test_broken_values(void **state)
{
    gguf_writer w;
    const uint64_t length = 9;
    const struct {
        uint32_t type;
        uint32_t count[2];
    } __attribute__((packed)) numbers = {TD_GGUF_I64, {0, 1u << 29}},
                              strings = {TD_GGUF_STRING, {1u << 24, 0}},
                              many = {TD_GGUF_STRING, {1u << 25, 0}},
                              beyond = {TD_GGUF_F32, {1, 0}}, arrays = {TD_GGUF_ARRAY, {1, 0}},
                              unknown = {13, {1, 0}};

    (void)state;
    must_refuse_value("k", 13, "12345678", 8, "key \"k\": type 13 is not known (byte 33)");
    must_refuse_value("k", TD_GGUF_BOOL, "\2", 1, "key \"k\": a bool is 2 (byte 37)");
    must_refuse_value("k", TD_GGUF_U64, "1234567", 7, "its value takes 8 bytes, and 7 are left");
    must_refuse_value("k", TD_GGUF_STRING, &length, 8, "a string takes 9 bytes, and 0 are left");
    must_refuse_value("k", TD_GGUF_STRING, &length, 7, "a string takes 8 bytes, and 7 are left");
    must_refuse_value("k", TD_GGUF_ARRAY, &numbers, sizeof numbers, "are more than a file has");
    must_refuse_value("k", TD_GGUF_ARRAY, &strings, sizeof strings,
                      "the number of strings is 16777216, more than the 0 bytes left can be");
    must_refuse_value("k", TD_GGUF_ARRAY, &many, sizeof many, "is 33554432, more than 16777216");
    must_refuse_value("k", TD_GGUF_ARRAY, &beyond, sizeof beyond, "its value takes 4 bytes");
    must_refuse_value("k", TD_GGUF_ARRAY, &arrays, sizeof arrays, "arrays of arrays are not read");
    must_refuse_value("k", TD_GGUF_ARRAY, &unknown, sizeof unknown, "type 13 is not known");
    must_refuse_value("\xff", TD_GGUF_BOOL, "\1", 1, "key 0 of 1: the key has a byte 255");
    must_refuse_value("general.alignment", TD_GGUF_BOOL, "\1", 1, "is bool, not an integer");
    must_refuse_value("general.alignment", TD_GGUF_U8, "\4", 1,
                      "is 4, no power of two of 8 to 1048576");
    must_refuse_value("general.alignment", TD_GGUF_U8, "\x30", 1, "is 48, no power of two");
    must_refuse_value("general.alignment", TD_GGUF_U8, "\0", 1, "is 0, no power of two");

    w = (gguf_writer){0};
    gguf_put_header(&w, 0, 2);
    gguf_put_key(&w, "k", TD_GGUF_BOOL), gguf_put(&w, "\1", 1);
    gguf_put_key(&w, "k", TD_GGUF_BOOL), gguf_put(&w, "\1", 1);
    must_refuse(&w, "key \"k\": is there twice");
}

static gguf_writer header_file(const char magic[4], uint32_t version, uint64_t tensors,
                               uint64_t values)
{
    gguf_writer w = {0};

    gguf_put(&w, magic, 4);
    gguf_put_u32(&w, version);
    gguf_put_u64(&w, tensors);
    gguf_put_u64(&w, values);
    return w;
}

static void test_broken_headers(void **state)
{
    static const struct {
        const char *magic;
        uint32_t version;
        uint64_t tensors, values;
        const char *says;
    } cases[] = {
        {"GGML", 3, 0, 0, "begins with 47 47 4d 4c, not with \"GGUF\" (byte 0)"},
        {"GGUF", 1, 0, 0, "version 1 is none of 2 and 3 (byte 4)"},
        {"GGUF", 4, 0, 0, "version 4 is none"},
        {"GGUF", 0, 0, 0, "version 0 is none"},
        {"GGUF", 3u << 24, 0, 0, "big-endian"},
        {"GGUF", 3, 1, 0, "the number of tensors is 1, more than the 8 bytes left can be"},
        {"GGUF", 3, 0, 1, "the number of keys is 1, more than the 0 bytes left can be (byte 16)"},
        {"GGUF", 3, UINT64_MAX, 0, "the number of tensors is 18446744073709551615, more than"},
        {"GGUF", 3, 0, 65537, "the number of keys is 65537, more than 65536"},
    };
    gguf_writer w;
    td_gguf file;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        w = header_file(cases[i].magic, cases[i].version, cases[i].tensors, cases[i].values);
        must_refuse(&w, cases[i].says);
    }
    w = header_file("GGUF", 2, 0, 0); /* right, as empty as one can be */
    assert_int_equal(td_gguf_read(w.bytes, w.size, &file, NULL, 0), TANDEM_OK);
    td_gguf_close(&file);
    gguf_free(&w);
}

/* A file cut off anywhere is refused: everything in it is needed. */
static void test_cut(void **state)
{
    gguf_writer w = whole_file();

    (void)state;
    for (size_t size = 0; size < w.size; size++) {
        gguf_writer cut = {0};

        gguf_put(&cut, w.bytes, size);
        must_refuse(&cut, "byte ");
    }
    gguf_free(&w);
}

static void test_files(void **state)
{
    char path[] = "/tmp/tandem-gguf-XXXXXX", why[300] = "";
    td_gguf file;

    (void)state;
    assert_true(close(mkstemp(path)) == 0);
    assert_int_equal(td_gguf_open(path, &file, why, sizeof why), TANDEM_ERROR_PROTOCOL);
    must_say(why, "\"GGUF\" takes 4 bytes, and 0 are left");
    unlink(path);
    assert_int_equal(td_gguf_open(path, &file, why, sizeof why), TANDEM_ERROR_IO);
    must_say(why, "No such file or directory");
    td_gguf_close(&file);
    assert_int_equal(td_gguf_open("/tmp", &file, why, sizeof why), TANDEM_ERROR_IO);
    must_say(why, "it is not a file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),          cmocka_unit_test(test_getters),
        cmocka_unit_test(test_weights),        cmocka_unit_test(test_broken_tensors),
        cmocka_unit_test(test_broken_values),  cmocka_unit_test(test_broken_headers),
        cmocka_unit_test(test_cut),            cmocka_unit_test(test_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
