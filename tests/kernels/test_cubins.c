/* The kernels that lie packed in the library: whole they come out as they were built, and nothing else ever does.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zstd.h>

#include "kernels/target.h"

enum { TEXT_BYTES = 20000, PACKED_BYTES = 24000 };

static unsigned char text[TEXT_BYTES], packed[PACKED_BYTES];

/* An image of text that packs to about a half. */
static td_image make_image(void)
{
    ZSTD_CCtx *zstd = ZSTD_createCCtx();
    uint32_t state = 1;

    for (size_t i = 0; i < TEXT_BYTES; i++)
        text[i] = (unsigned char)('a' + ((state = state * 1664525u + 1013904223u) >> 28));
    assert_non_null(zstd);
    ZSTD_CCtx_setParameter(zstd, ZSTD_c_checksumFlag, 1);
    const size_t bytes = ZSTD_compress2(zstd, packed, PACKED_BYTES, text, TEXT_BYTES);
    assert_false(ZSTD_isError(bytes));
    ZSTD_freeCCtx(zstd);
    return (td_image){.name = "text", .data = packed, .data_bytes = bytes, .image_bytes = TEXT_BYTES};
}

static const td_cubin of_90 = {.sm = 90};

static tandem_status unpacked(const td_image *image, void *out, char *why, size_t why_bytes)
{
    return td_cubin_image(&of_90, image, out, why, why_bytes);
}

/* What was built in: an ELF file or PTX each, that a checksum vouches for. A kernel is in one image of an architecture. */
static void check_own_image(const td_cubin *cubin, const td_image *image)
{
    char why[200] = "";
    void *bytes;

    if (td_cubin_image(cubin, image, &bytes, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
    if (cubin->ptx)
        assert_true(strstr(bytes, ".version ") && strlen(bytes) == image->image_bytes);
    else
        assert_memory_equal(bytes, "\177ELF", 4);
    assert_true(image->data_bytes < image->image_bytes / 2);
    for (uint32_t i = 0; i < image->entry_count; i++)
        assert_ptr_equal(td_cubin_find(cubin, image->entries[i].entry), &image->entries[i]);
    print_message("    %s_%u, %s: %zu bytes, packed %zu\n", cubin->ptx ? "compute" : "sm", (unsigned)cubin->sm,
                  image->name, image->image_bytes, image->data_bytes);
    free(bytes);
}

static void test_own_images(void **state)
{
    uint32_t count;
    const td_cubin *table = td_cubins(&count);

    (void)state;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t entries = 0;

        for (uint32_t at = 0; at < table[i].image_count; at++) {
            check_own_image(&table[i], &table[i].images[at]);
            entries += table[i].images[at].entry_count;
        }
        assert_int_equal(td_cubin_entry_count(&table[i]), entries);
        assert_null(td_cubin_find(&table[i], "no such kernel"));
    }
}

static void test_whole_image(void **state)
{
    const td_image whole = make_image();
    unsigned char *image;
    char why[200] = "";

    (void)state;
    assert_int_equal(unpacked(&whole, &image, why, sizeof why), TANDEM_OK);
    assert_memory_equal(image, text, TEXT_BYTES);
    assert_int_equal(image[TEXT_BYTES], 0);
    assert_string_equal(why, "");
    free(image);
}

static void is_refused(const td_image *packed_image, const char *what, size_t at)
{
    void *image = text;
    char why[200] = "";
    const tandem_status status = unpacked(packed_image, &image, why, sizeof why);

    if (status != TANDEM_ERROR_UNSUPPORTED || image || !strstr(why, "the kernels text for sm_90 in this build are damaged"))
        fail_msg("%s %zu: status %d, '%s'", what, at, (int)status, why);
}

/* Returns whether the image came out whole although a byte of it is another: there are several ways to pack a text. */
static bool is_whole_or_refused(const td_image *packed_image, size_t at)
{
    void *image;

    if (unpacked(packed_image, &image, NULL, 0) != TANDEM_OK) {
        is_refused(packed_image, "byte", at);
        return false;
    }
    assert_memory_equal(image, text, TEXT_BYTES);
    free(image);
    return true;
}

/* Each byte, each length, each size that it is not. */
static void test_damaged_images(void **state)
{
    const td_image whole = make_image();
    size_t harmless = 0;

    (void)state;
    for (size_t i = 0; i < whole.data_bytes; i++) {
        packed[i] ^= 0x10;
        harmless += is_whole_or_refused(&whole, i);
        packed[i] ^= 0x10;
    }
    assert_true(harmless < whole.data_bytes / 100); /* such as the time and the system in the header */
    for (size_t bytes = 0; bytes < whole.data_bytes; bytes++) {
        const td_image cut = {
            .name = "text", .data = packed, .data_bytes = bytes, .image_bytes = TEXT_BYTES};

        is_refused(&cut, "cut to", bytes);
    }
    for (int longer = -3; longer <= 3; longer++) {
        td_image other = whole;

        other.image_bytes += (size_t)longer;
        if (longer)
            is_refused(&other, "image bytes", other.image_bytes);
        other = whole;
        other.data_bytes += 3;
        is_refused(&other, "with more behind it", other.data_bytes);
    }
}

/* Else the sanitizer's malloc() ends the program. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void test_no_memory(void **state)
{
    td_image whole = make_image();
    void *image = text;
    char why[200] = "";

    (void)state;
    whole.image_bytes = PTRDIFF_MAX;
    assert_int_equal(unpacked(&whole, &image, why, sizeof why), TANDEM_ERROR_NOMEM);
    assert_null(image);
    assert_non_null(strstr(why, "to unpack the kernels text for sm_90"));
}

static void *unpack(void *user)
{
    for (int i = 0; i < 50; i++) {
        void *image;

        if (unpacked(user, &image, NULL, 0) != TANDEM_OK || memcmp(image, text, TEXT_BYTES))
            return user;
        free(image);
    }
    return NULL;
}

static void test_threads(void **state)
{
    td_image whole = make_image();
    pthread_t threads[8];

    (void)state;
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, unpack, &whole), 0);
    for (int i = 0; i < 8; i++) {
        void *failed;

        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_images), cmocka_unit_test(test_whole_image), cmocka_unit_test(test_damaged_images),
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
