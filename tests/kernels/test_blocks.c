/* GGUF's blocks of weights: known ones by hand, and round trips within a bound.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "kernels/blocks.h"

static void known_blocks(void **state)
{
    uint8_t b[256];
    float x[TD_MAX_BLOCK];
    (void)state;
    memset(b, 0, sizeof b);
    b[1] = 0x38, b[2] = 0x80, b[33] = 127; /* 0.5 */
    td_block_decode(TANDEM_DTYPE_Q8_0, x, b);
    assert_true(x[0] == -64 && x[1] == 0 && x[31] == 63.5f);
    b[2] = 0xf0, b[17] = 0x19;
    td_block_decode(TANDEM_DTYPE_Q4_0, x, b);
    assert_true(x[0] == -4 && x[16] == 3.5f && x[15] == 0.5f && x[31] == -3.5f);
    b[2] = 0, b[3] = 0xbc, b[4] = 0xf2; /* -1 */
    td_block_decode(TANDEM_DTYPE_Q4_1, x, b);
    assert_true(x[0] == 0 && x[16] == 6.5f);
    /* d 0.5, dmin 1. Sub-block 1: scale 3, minimum 5. Sub-block 4: scale 0x21, minimum 0x13. */
    memset(b, 0, sizeof b);
    b[1] = 0x38, b[3] = 0x3c, b[5] = 3, b[9] = 5;
    b[4] = 2 << 6, b[8] = 1 << 6, b[12] = 0x31;
    b[16] = 0xf7, b[16 + 64 + 31] = 0x0c;
    td_block_decode(TANDEM_DTYPE_Q4_K, x, b);
    assert_true(x[0] == 0 && x[32] == 17.5f && x[33] == -5);
    assert_true(x[128] == -19 && x[128 + 31] == 0.5f * 33 * 12 - 19);
    /* The same with a fifth bit: of weight 0 of sub-block 1, of weight 31 of sub-block 4. */
    memset(b, 0, sizeof b);
    b[1] = 0x38, b[3] = 0x3c, b[5] = 3, b[9] = 5;
    b[4] = 2 << 6, b[8] = 1 << 6, b[12] = 0x31;
    b[48] = 0xf7, b[48 + 64 + 31] = 0x0c, b[16] = 1 << 1, b[16 + 31] = 1 << 4;
    td_block_decode(TANDEM_DTYPE_Q5_K, x, b);
    assert_true(x[0] == 0 && x[32] == 1.5f * 31 - 5 && x[33] == -5);
    assert_true(x[128] == -19 && x[128 + 31] == 0.5f * 33 * 28 - 19);
    /* d 0.5. Weight 37: low 9, high 2, scale -3. Weight 255: low 15, high 3, scale 2. */
    memset(b, 0, sizeof b);
    b[209] = 0x38, b[37] = 0x09, b[128 + 5] = 2 << 2, b[192 + 2] = (uint8_t)-3;
    b[64 + 63] = 0xf0, b[128 + 63] = 3 << 6, b[192 + 15] = 2;
    td_block_decode(TANDEM_DTYPE_Q6_K, x, b);
    assert_true(x[37] == -1.5f * 9 && x[255] == 31 && x[254] == -32 && x[0] == 0);
}

/* Weights of [low, high] come back within half a step, which rounding the scales and minima widens. */
static void round_trips(void **state)
{
    static const float steps[] = {[TANDEM_DTYPE_Q8_0] = 1 / 254.0f, [TANDEM_DTYPE_Q4_0] = 1 / 14.0f,
                                                   [TANDEM_DTYPE_Q4_1] = 1 / 15.0f,  [TANDEM_DTYPE_Q4_K] = 1 / 15.0f,
                                                   [TANDEM_DTYPE_Q6_K] = 1 / 62.0f,
                                                   [TANDEM_DTYPE_Q5_K] = 1 / 31.0f};
    static const float ranges[][2] = {{-1, 1}, {0.5f, 3}, {-3, -0.5f}, {0, 0}};
    uint32_t seed = 1;
    (void)state;
    for (uint32_t dtype = TANDEM_DTYPE_Q8_0; dtype <= TANDEM_DTYPE_Q5_K; dtype++)
        for (uint32_t round = 0; round < 400; round++) {
            const float *range = ranges[round % 4], most = fmaxf(fabsf(range[0]), fabsf(range[1]));
            const uint32_t count = td_dtype_of(dtype).elements, bytes = td_dtype_of(dtype).bytes;
            float from[TD_MAX_BLOCK], to[TD_MAX_BLOCK + 1];
            uint8_t block[256];
            memset(block, 0xa5, sizeof block);
            for (uint32_t i = 0; i < count; i++) {
                seed = seed * 1664525u + 1013904223u;
                from[i] = range[0] + (range[1] - range[0]) * (float)(seed >> 8) * 0x1p-24f;
            }
            to[count] = 12345;
            td_block_encode(dtype, block, from);
            td_block_decode(dtype, to, block);
            /* Scales of six bits: a 63rd off at most at either end; of eight: a 254th; fp16's 2^-11. */
            const float coarse = dtype == TANDEM_DTYPE_Q4_K || dtype == TANDEM_DTYPE_Q5_K ? 2 / 63.0f : dtype == TANDEM_DTYPE_Q6_K ? 1 / 127.0f : 0x1p-9f;
            for (uint32_t i = 0; i < count; i++)
                assert_true(fabsf(to[i] - from[i]) <= most * (steps[dtype] * (1 + coarse) + coarse));
            assert_true(to[count] == 12345);
            for (uint32_t i = bytes; i < sizeof block; i++)
                assert_int_equal(block[i], 0xa5);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_blocks), cmocka_unit_test(round_trips)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
