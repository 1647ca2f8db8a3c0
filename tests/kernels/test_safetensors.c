/* Safetensors: what is written reads back; what is broken is refused with a reason, whatever it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interop/base.h"
#include "kernels/model/safetensors.h"

enum { PATH_BYTES = 64, MAX_FILE = 4096, MUTATIONS = 20000 };

static int count_fds(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* A file in memory, and a path to it. */
static int make_file(char path[PATH_BYTES], const void *bytes, size_t count)
{
    int fd = memfd_create("safetensors", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, count), (ssize_t)count);
    snprintf(path, PATH_BYTES, "/proc/self/fd/%d", fd);
    return fd;
}

static size_t compose(unsigned char *to, uint64_t length, const char *header, size_t data_bytes)
{
    const size_t header_bytes = strlen(header);

    assert_true(8 + header_bytes + data_bytes <= MAX_FILE);
    for (int i = 0; i < 8; i++)
        to[i] = (unsigned char)(length >> 8 * i);
    memcpy(to + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        to[8 + header_bytes + i] = (unsigned char)i;
    return 8 + header_bytes + data_bytes;
}

static void test_round_trip(void **state)
{
    const float f32[6] = {1, -2, 3.5f, 0, 1e30f, -1e-30f};
    const uint16_t f16[4] = {0x3c00, 0x7e00, 0, 0x8000}, bf16[2] = {0x3f80, 0xff80};
    const int32_t i32[3] = {-1, 0, 0x7fffffff};
    const uint8_t u8[5] = {0, 1, 2, 254, 255};
    const int64_t i64 = -5;
    const td_safetensors_item items[] = {
        {"weight", "F32", 2, {2, 3}, f32},
        {"h", "F16", 4, {1, 2, 1, 2}, f16},
        {"b\"\\\n\xc3\xa9", "BF16", 1, {2}, bf16},
        {"ids", "I32", 1, {3}, i32},
        {"u", "U8", 1, {5}, u8},
        {"scalar", "I64", 0, {0}, &i64},
        {"empty", "F32", 3, {4, 0, 7}, NULL},
        {"i8", "I8", 1, {5}, u8},
        {"last", "F32", 1, {1}, f32},
    };
    enum { COUNT = sizeof items / sizeof *items };
    const size_t element[COUNT] = {4, 2, 2, 4, 1, 8, 4, 1, 4};
    const uint32_t dtype[COUNT] = {TANDEM_DTYPE_F32, TANDEM_DTYPE_F16,  TANDEM_DTYPE_BF16, TANDEM_DTYPE_I32, TANDEM_DTYPE_U8,
                                   TANDEM_DTYPE_NONE, TANDEM_DTYPE_F32, TANDEM_DTYPE_I8,   TANDEM_DTYPE_F32};
    char path[] = "/tmp/tandem-safetensors-XXXXXX", why[300] = "";
    td_safetensors file;
    int fd = mkstemp(path), before;
    struct stat st;

    (void)state;
    assert_true(fd >= 0);
    before = count_fds();
    assert_int_equal(td_safetensors_write(path, items, COUNT, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_safetensors_open(path, &file, why, sizeof why), TANDEM_OK);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(file.file_bytes, st.st_size);
    assert_int_equal(file.count, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        const td_safetensor *t = td_safetensors_find(&file, items[i].name);
        unsigned char *bytes;
        uint64_t product = element[i];

        assert_non_null(t);
        assert_string_equal(t->dtype_name, items[i].dtype);
        assert_int_equal(t->dtype, dtype[i]);
        assert_int_equal(t->dimensions, items[i].dimensions);
        for (uint32_t d = 0; d < t->dimensions; d++) {
            assert_int_equal(t->shape[d], items[i].shape[d]);
            product *= t->shape[d];
        }
        assert_int_equal(t->bytes, product);
        bytes = malloc(t->bytes + 1);
        bytes[t->bytes] = 0x5a;
        assert_int_equal(td_safetensors_read(&file, t, bytes, why, sizeof why), TANDEM_OK);
        if (product)
            assert_memory_equal(bytes, items[i].data, product);
        assert_int_equal(bytes[t->bytes], 0x5a);
        free(bytes);
    }
    assert_null(td_safetensors_find(&file, "weigh"));
    assert_int_equal(file.tensors[0].offset % 8, 0);

    /* The file shrinks under the reader. */
    assert_int_equal(truncate(path, st.st_size - 2), 0);
    why[0] = 0;
    {
        float last = 0;

        assert_int_equal(td_safetensors_read(&file, td_safetensors_find(&file, "last"), &last, why, sizeof why),
                         TANDEM_ERROR_IO);
        assert_non_null(strstr(why, "'last'"));
    }
    td_safetensors_close(&file);
    td_safetensors_close(&file);
    assert_int_equal(count_fds(), before);
    close(fd);
    unlink(path);
}

static void test_writer_refuses(void **state)
{
    const float x[2] = {0};
    const struct {
        td_safetensors_item items[2];
        uint32_t count;
        const char *text;
    } cases[] = {
        {{{"a", "F31", 1, {2}, x}}, 1, "F31"},
        {{{"a", NULL, 1, {2}, x}}, 1, "dtype"},
        {{{NULL, "F32", 1, {2}, x}}, 1, "name"},
        {{{"__metadata__", "F32", 1, {2}, x}}, 1, "__metadata__"},
        {{{"a", "F32", 1, {2}, x}, {"a", "F32", 1, {2}, x}}, 2, "items[1].name"},
        {{{"a", "F32", 9, {2}, x}}, 1, "dimensions is 9"},
        {{{"a", "F32", 2, {UINT64_MAX, 2}, x}}, 1, "overflow"},
        {{{"a", "F32", 2, {1ull << 32, 1ull << 32}, x}}, 1, "overflow"},
        {{{"a", "U8", 1, {1ull << 63}, x}}, 1, "overflow"},
        {{{"a", "U8", 1, {INT64_MAX}, x}, {"b", "U8", 1, {1}, x}}, 2, "overflow"},
        {{{"a", "F32", 1, {2}, NULL}}, 1, "data is NULL"},
        {{{"\xff\xfe", "F32", 1, {2}, x}}, 1, "UTF-8"},
    };
    char path[] = "/tmp/tandem-safetensors-none-XXXXXX", why[300];

    (void)state;
    assert_true(close(mkstemp(path)) == 0 && unlink(path) == 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        why[0] = 0;
        assert_int_equal(td_safetensors_write(path, cases[i].items, cases[i].count, why, sizeof why), TANDEM_ERROR_ARG);
        if (!strstr(why, cases[i].text))
            fail_msg("case %zu: '%s' does not say '%s'", i, why, cases[i].text);
        assert_int_not_equal(access(path, F_OK), 0);
    }
    assert_int_equal(td_safetensors_write("/nonexistent/x", cases[0].items, 0, why, sizeof why), TANDEM_ERROR_IO);
    assert_non_null(strstr(why, "/nonexistent/x"));
    if (access("/dev/full", W_OK) == 0) {
        char link_path[] = "/tmp/tandem-full-XXXXXX";
        const td_safetensors_item item = {"a", "F32", 1, {2}, x};

        assert_true(close(mkstemp(link_path)) == 0 && unlink(link_path) == 0);
        assert_int_equal(symlink("/dev/full", link_path), 0);
        assert_int_equal(td_safetensors_write(link_path, &item, 1, why, sizeof why), TANDEM_ERROR_IO);
        assert_int_not_equal(access(link_path, F_OK), 0);
    }
}

#define T(shape, begin, end) "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"
enum { RIGHT = -1 };

static void test_broken(void **state)
{
    static const struct {
        const char *header;
        int64_t length; /* RIGHT: the header's own */
        size_t data_bytes;
        const char *text; /* what the reason must say; NULL: the file is right */
    } cases[] = {
        /* what is right, so that the rest is broken for its own reason */
        {"{}", RIGHT, 0, NULL},
        {"{\"a\":" T("[2]", 0, 8) "}", RIGHT, 8, NULL},
        {"{\"a\":" T("[2]", 0, 8) "}   ", RIGHT, 8, NULL},
        {"{\"b\":" T("[1]", 8, 12) ",\"a\":" T("[2]", 0, 8) "}", RIGHT, 12, NULL},
        {"{\"__metadata__\":{\"k\":\"v\"},\"a\":" T("[]", 0, 4) "}", RIGHT, 4, NULL},
        {"{\"a\":" T("[0]", 0, 0) ",\"b\":" T("[1]", 0, 4) ",\"c\":" T("[3,0]", 4, 4) "}", RIGHT, 4, NULL},
        {"{\"a\":" T("[0,9223372036854775807,9223372036854775807]", 0, 0) "}", RIGHT, 0, NULL},
        /* lengths */
        {"", RIGHT, 0, "header"},
        {"{}", 3, 0, "length is 3"},
        {"{}", 1, 0, "no JSON object"},
        {"{}", INT64_MAX, 0, "length is 9223372036854775807"},
        {"{}", -2, 0, "length is 18446744073709551614"},
        {"{}", 100000001, 0, "length is 100000001"},
        /* JSON */
        {"[]", RIGHT, 0, "no JSON object"},
        {"3", RIGHT, 0, "no JSON object"},
        {"{\"a\":", RIGHT, 0, "no JSON object"},
        {"{}{}", RIGHT, 0, "no JSON object"},
        {"{\"a\\u0000b\":" T("[1]", 0, 4) "}", RIGHT, 4, "no JSON object"},
        {"{\"\xff\":" T("[1]", 0, 4) "}", RIGHT, 4, "no JSON object"},
        {"{\"a\":" T("[1]", 0, 4) ",\"a\":" T("[1]", 4, 8) "}", RIGHT, 8, "no JSON object"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", RIGHT, 4,
         "no JSON object"},
        /* entries */
        {"{\"a\":null}", RIGHT, 0, "'a': is not an object"},
        {"{\"a\":[1]}", RIGHT, 0, "'a': is not an object"},
        {"{\"a\":{}}", RIGHT, 0, "'a': has not exactly"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", RIGHT, 4, "has not exactly"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", RIGHT, 4, "has not exactly"},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", RIGHT, 4, "dtype is not a string"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", RIGHT, 4, "dtype is 'F33'"},
        {"{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", RIGHT, 4, "dtype is 'f32'"},
        {"{\"a\":" T("4", 0, 4) "}", RIGHT, 4, "shape is not an array"},
        {"{\"a\":" T("[1,1,1,1,1,1,1,1,1]", 0, 4) "}", RIGHT, 4, "9 dimensions"},
        {"{\"a\":" T("[-1]", 0, 4) "}", RIGHT, 4, "shape[0]"},
        {"{\"a\":" T("[1,1.0]", 0, 4) "}", RIGHT, 4, "shape[1]"},
        {"{\"a\":" T("[\"1\"]", 0, 4) "}", RIGHT, 4, "shape[0]"},
        {"{\"a\":" T("[9223372036854775807]", 0, 4) "}", RIGHT, 4, "overflows"},
        {"{\"a\":" T("[4294967296,4294967296]", 0, 0) "}", RIGHT, 0, "overflows"},
        {"{\"a\":" T("[2147483648,2147483648,4]", 0, 0) "}", RIGHT, 0, "overflows"},
        {"{\"a\":" T("[99999999999999999999]", 0, 4) "}", RIGHT, 4, "no JSON object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":4}}", RIGHT, 4, "data_offsets is not a pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", RIGHT, 4, "data_offsets is not a pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,\"4\"]}}", RIGHT, 4, "data_offsets[1]"},
        {"{\"a\":" T("[1]", -4, 0) "}", RIGHT, 4, "data_offsets[0]"},
        {"{\"a\":" T("[1]", 4, 0) "}", RIGHT, 4, "4, 0: they fall"},
        {"{\"a\":" T("[1]", 0, 8) "}", RIGHT, 8, "takes 4 bytes"},
        {"{\"a\":" T("[2]", 0, 8) "}", RIGHT, 7, "the file has 7 bytes"},
        {"{\"a\":" T("[1]", 9223372036854775803, 9223372036854775807) "}", RIGHT, 8, "the file has 8 bytes"},
        {"{\"a\":" T("[2]", 0, 8) ",\"b\":" T("[2]", 4, 12) "}", RIGHT, 12, "'b': begins at 4, within"},
        {"{\"a\":" T("[2]", 0, 8) ",\"b\":" T("[2]", 0, 8) "}", RIGHT, 8, "begins at 0, within"},
        {"{\"a\":" T("[1]", 4, 8) "}", RIGHT, 8, "the 4 bytes before"},
        {"{\"a\":" T("[1]", 0, 4) "}", RIGHT, 8, "the tensors end at"},
        {"{}", RIGHT, 1, "the tensors end at"},
        {"{\"__metadata__\":3}", RIGHT, 0, "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"k\":3}}", RIGHT, 0, "'k' is not a string"},
    };
    unsigned char bytes[MAX_FILE];
    char path[PATH_BYTES], why[300];
    const int before = count_fds();

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t own = strlen(cases[i].header);
        const uint64_t length = cases[i].length == RIGHT ? own : (uint64_t)cases[i].length;
        const size_t count = compose(bytes, length, cases[i].header, cases[i].data_bytes);
        const int fd = make_file(path, bytes, count);
        td_safetensors file;
        tandem_status status;

        why[0] = 0;
        status = td_safetensors_open(path, &file, why, sizeof why);
        if (!cases[i].text) {
            if (status != TANDEM_OK)
                fail_msg("case %zu is right, but: %s", i, why);
            td_safetensors_close(&file);
        } else if (status != TANDEM_ERROR_PROTOCOL || !strstr(why, cases[i].text)) {
            fail_msg("case %zu: status %d, '%s' does not say '%s'", i, status, why, cases[i].text);
        } else {
            assert_null(file.tensors);
            assert_null(file.strings);
        }
        close(fd);
    }
    for (size_t count = 0; count < 8; count++) {
        const int fd = make_file(path, "\2\0\0\0\0\0\0\0", count);
        td_safetensors file;

        assert_int_equal(td_safetensors_open(path, &file, why, sizeof why), TANDEM_ERROR_PROTOCOL);
        assert_non_null(strstr(why, "not even a length"));
        close(fd);
    }
    assert_int_equal(count_fds(), before);
}

static void test_texts(void **state)
{
    static const td_safetensors_text texts[] = {{"k", "v"}, {"graph \"\xc3\xa9\"", "{\"version\": 1,\n\t\"nodes\": []}"}, {"", ""}};
    const float x = 1;
    const td_safetensors_item item = {"x", "F32", 1, {1}, &x};
    char path[] = "/tmp/tandem-safetensors-XXXXXX", why[300] = "";
    const int fd = mkstemp(path);
    td_safetensors file;

    (void)state;
    assert_true(fd >= 0);
    for (uint32_t count = 0; count <= 3; count++) {
        assert_int_equal(td_safetensors_write_texts(path, texts, count, &item, 1, why, sizeof why), TANDEM_OK);
        assert_int_equal(td_safetensors_open(path, &file, why, sizeof why), TANDEM_OK);
        assert_true(file.count == 1 && file.text_count == count);
        for (uint32_t i = 0; i < 3; i++) {
            const char *text = td_safetensors_find_text(&file, texts[i].key);

            if (i < count)
                assert_string_equal(text, texts[i].value);
            else
                assert_null(text);
        }
        td_safetensors_close(&file);
    }
    close(fd);
    unlink(path);
}

static void test_no_file(void **state)
{
    char fifo[] = "/tmp/tandem-fifo-XXXXXX", why[300] = "";
    const int before = count_fds();
    td_safetensors file;

    (void)state;
    assert_int_equal(td_safetensors_open("/nonexistent/y", &file, why, sizeof why), TANDEM_ERROR_IO);
    assert_string_equal(why, "No such file or directory"); /* who asked names the path */
    assert_int_equal(td_safetensors_open("/tmp", &file, why, sizeof why), TANDEM_ERROR_IO);
    assert_int_equal(td_safetensors_open("/dev/zero", &file, why, sizeof why), TANDEM_ERROR_IO);
    assert_true(close(mkstemp(fifo)) == 0 && unlink(fifo) == 0);
    assert_int_equal(mkfifo(fifo, 0600), 0); /* nobody writes: must not hang */
    assert_int_equal(td_safetensors_open(fifo, &file, why, sizeof why), TANDEM_ERROR_IO);
    unlink(fifo);
    td_safetensors_close(&file);
    assert_int_equal(count_fds(), before);
}

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A right file, a few bytes changed, moved, cut or put in from a list of what hurts. Whatever opens must be consistent.
 */
static void test_mutations(void **state)
{
    static const char *const words[] = {"-1",
                                        "0",
                                        "9223372036854775807",
                                        "18446744073709551615",
                                        "4294967296",
                                        "1e9",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "\"",
                                        ",",
                                        ":",
                                        "null",
                                        "F32",
                                        "F64",
                                        "BF16",
                                        "shape",
                                        "dtype",
                                        "\\u0000",
                                        "\xc3\x28"};
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":" T("[2,3]", 0, 24) ",\"b\":"
                         "{\"dtype\":\"I8\",\"shape\":[5],\"data_offsets\":[24,29]},\"c\":" T("[1,0]", 29, 29) "}";
    unsigned char right[MAX_FILE], bytes[MAX_FILE + 64], *data;
    const size_t count = compose(right, strlen(header), header, 29);
    uint64_t seed = 0x9e3779b97f4a7c15;
    uint32_t opened = 0, refused = 0;
    char path[PATH_BYTES], why[300];
    int fd = make_file(path, right, count);

    (void)state;
    data = malloc(MAX_FILE);
    for (uint32_t i = 0; i < MUTATIONS; i++) {
        size_t n = count;
        td_safetensors file;
        tandem_status status;

        memcpy(bytes, right, count);
        for (uint64_t edits = 1 + next(&seed) % 3; edits; edits--) {
            const size_t limit = next(&seed) % 8 ? n : (n < 8 ? n : 8), at = limit ? next(&seed) % limit : 0;
            const char *word = words[next(&seed) % (sizeof words / sizeof *words)];

            switch (next(&seed) % 6) {
            case 0: bytes[at] ^= (unsigned char)(1u << next(&seed) % 8); break;
            case 1: bytes[at] = (unsigned char)next(&seed); break;
            case 2: n = next(&seed) % 4 ? n : at; break;
            case 3:
                if (at + strlen(word) <= n)
                    memcpy(bytes + at, word, strlen(word));
                break;
            case 4: /* put in, and say so half of the time */
                if (n + strlen(word) <= MAX_FILE) {
                    memmove(bytes + at + strlen(word), bytes + at, n - at);
                    memcpy(bytes + at, word, strlen(word));
                    n += strlen(word);
                    if (next(&seed) % 2)
                        bytes[0] = (unsigned char)(bytes[0] + strlen(word));
                }
                break;
            default:
                if (at >= 8 && at < strlen(header) + 8 && bytes[at] >= '0' && bytes[at] <= '9')
                    bytes[at] = (unsigned char)('0' + next(&seed) % 10);
            }
        }
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, bytes, n, 0), (ssize_t)n);
        why[0] = 0;
        status = td_safetensors_open(path, &file, why, sizeof why);
        if (status != TANDEM_OK) {
            refused++;
            assert_int_equal(status, TANDEM_ERROR_PROTOCOL);
            assert_true(why[0]);
            continue;
        }
        opened++;
        assert_int_equal(file.file_bytes, n);
        for (uint32_t t = 0; t < file.count; t++) {
            const td_safetensor *tensor = &file.tensors[t];
            unsigned __int128 product = tensor->element_bytes;

            assert_true(tensor->dimensions <= TD_SAFETENSORS_DIMENSIONS);
            for (uint32_t d = 0; d < tensor->dimensions; d++)
                product *= tensor->shape[d];
            assert_true(product == tensor->bytes);
            assert_true(tensor->offset >= 8 && tensor->offset <= n && tensor->bytes <= n - tensor->offset);
            assert_true(t == 0 || tensor->offset == file.tensors[t - 1].offset + file.tensors[t - 1].bytes);
            assert_int_equal(td_safetensors_read(&file, tensor, data, why, sizeof why), TANDEM_OK);
            if (tensor->bytes)
                assert_memory_equal(data, bytes + tensor->offset, tensor->bytes);
        }
        td_safetensors_close(&file);
    }
    free(data);
    close(fd);
    /* Both ends were really visited. */
    assert_true(opened > MUTATIONS / 100);
    assert_true(refused > MUTATIONS / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_writer_refuses), cmocka_unit_test(test_broken),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_no_file),    cmocka_unit_test(test_mutations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
