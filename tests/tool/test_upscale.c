/* Where the pixels of a frame lie that was rendered smaller, which sizes fit, and what is between them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine_plugin/tool/upscale.h"

enum { MOST = 64 };

/* Each has an output pixel of its own, which its middle is in. */
static void test_places(void **state)
{
    (void)state;
    for (uint32_t output = 1; output <= MOST; output++)
        for (uint32_t rendered = (output + 1) / 2; rendered <= output; rendered++)
            for (uint32_t i = 0, next = 0; i < rendered; i++) {
                const uint32_t at = tool_upscale_at(i, rendered, output);
                assert_in_range(at, next, output - 1);
                assert_in_range((2 * i + 1) * output, 2 * rendered * at, 2 * rendered * (at + 1) - 1);
                next = at + 1;
            }
    assert_int_equal(tool_upscale_at(16383, 16384, 16384), 16383);
    assert_int_equal(tool_upscale_at(8191, 8192, 16384), 16383);
}

static bool fits(uint32_t width, uint32_t height, uint32_t output_width, uint32_t output_height)
{
    const tool_picture rendered = {.width = width, .height = height}, output = {.width = output_width, .height = output_height};

    return tool_upscale_fits(&rendered, &output);
}

static void test_sizes(void **state)
{
    (void)state;
    for (uint32_t height = 1; height <= MOST; height++)
        for (uint32_t width = 1; width <= MOST; width++) {
            for (uint32_t halves = 2; halves <= 4; halves++)
                assert_true(fits(tool_upscale_count(width, halves), tool_upscale_count(height, halves), width, height));
            assert_true(fits(width, height, 2 * width, 2 * height));
            assert_false(fits(width, height, 2 * width + 1, 2 * height));
            assert_false(fits(width, height, 2 * width, 2 * height + 1));
            assert_false(fits(width, height, width - 1, height));
            assert_false(fits(width, height, width, height - 1));
        }
    assert_int_equal(tool_upscale_count(37, 3), 25);
    assert_int_equal(tool_upscale_count(37, 4), 19);
    assert_true(fits(1280, 720, 1920, 1080));
    assert_true(fits(1129, 635, 1920, 1080)); /* 1.7, to the nearest */
    assert_true(fits(911, 512, 1366, 768)); /* 1.5: 910.67 */
    assert_true(fits(910, 512, 1366, 768));
    assert_false(fits(900, 512, 1366, 768));
    assert_false(fits(1280, 1080, 1920, 1080));
    assert_false(fits(1920, 720, 1920, 1080));
    assert_false(fits(720, 1280, 1920, 1080));
}

/* Numbers that name their pixels. */
static tool_picture numbered(uint32_t width, uint32_t height, uint32_t channels)
{
    tool_picture picture;

    assert_true(tool_picture_new(&picture, width, height, channels));
    for (size_t i = 0; i < (size_t)width * height * channels; i++)
        picture.pixels[i] = (float)i;
    return picture;
}

/* What is rendered of a whole frame goes back to where it was, and nothing else is there. */
static void test_pictures(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 3 * MOST; n++) {
        const uint32_t height = 1 + n / 3, width = 1 + 7 * height % MOST, halves = 2 + n % 3, channels = 1 + n % 4;
        tool_picture whole = numbered(width, height, channels), small, placed;
        assert_true(tool_upscale_take(&whole, tool_upscale_count(width, halves), tool_upscale_count(height, halves), &small));
        assert_true(tool_upscale_place(&small, width, height, &placed));
        assert_true(placed.width == width && placed.height == height && placed.channels == channels);
        size_t there = 0;
        for (size_t i = 0; i < (size_t)width * height * channels; i++)
            if (!isnan(placed.pixels[i])) {
                assert_true(placed.pixels[i] == (float)i);
                there++;
            }
        assert_int_equal(there, (size_t)small.width * small.height * channels);
        tool_picture_free(&whole);
        tool_picture_free(&small);
        tool_picture_free(&placed);
    }
}

static void test_bicubic(void **state)
{
    static const float row[6] = {0, 0, 16, NAN, -5, 32};
    static const float expected[12] = {0, 0, 0, 0, 9, 16, 9, 0, 0, 0, 16, 32}; /* (-1, 9, 9, -1) / 16 */
    tool_picture small = numbered(5, 4, 2), out, placed;

    (void)state;
    assert_true(tool_upscale_bicubic(&small, 10, 8, &out) && tool_upscale_place(&small, 10, 8, &placed));
    for (size_t i = 0; i < 10 * 8 * 2; i++)
        assert_true(isnan(placed.pixels[i]) || out.pixels[i] == placed.pixels[i]); /* through its pixels */
    for (uint32_t x = 3; x < 8; x++) /* a plane stays one: row 4 is in the middle of rendered ones 1 and 2 */
        for (uint32_t c = 0; c < 2; c++)
            assert_true(fabsf(out.pixels[(4 * 10 + x) * 2 + c] - (15 + (float)(x - 1) + (float)c)) < 1e-4f);
    tool_picture_free(&out);
    tool_picture_free(&placed);
    tool_picture_free(&small);

    assert_true(tool_picture_new(&small, 6, 1, 1));
    for (uint32_t x = 0; x < 6; x++)
        small.pixels[x] = row[x];
    assert_true(tool_upscale_bicubic(&small, 12, 1, &out));
    for (uint32_t x = 0; x < 12; x++)
        assert_true(fabsf(out.pixels[x] - expected[x]) < 1e-4f);
    tool_picture_free(&out);
    tool_picture_free(&small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places), cmocka_unit_test(test_sizes), cmocka_unit_test(test_pictures),
                                       cmocka_unit_test(test_bicubic)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
