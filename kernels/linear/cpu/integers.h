/* Products of whole numbers, for weights in blocks of 32, on CPUs with AVX2 or AVX-512 VNNI: the same bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A weight is scale * code + offset, of its block. x is made the same, 32 channels at a time, of codes with 16 bits: no more
 * than 2^-16 of their largest is lost. Products of codes are added up exactly.
 */
#ifndef TANDEM_KERNELS_LINEAR_CPU_INTEGERS_H
#define TANDEM_KERNELS_LINEAR_CPU_INTEGERS_H

#include "kernels/cpu/cpu.h"
#include "kernels/linear/linear.h"

#if TD_X86
enum {
    TD_INTS_BLOCK = 32,
    TD_INTS_STEP = 1024, /* channels that are one of these, at most */
    TD_INTS_GROUPS = TD_INTS_STEP / (2 * TD_INTS_BLOCK),
    TD_INTS_BLOCKS = TD_INTS_STEP / TD_INTS_BLOCK,
    TD_INTS_TOGETHER = 4 /* rows and columns */
};

/* A step of a row. Of two blocks the lower halves lie side by side, then the upper ones. Blocks that are not there are zeros. */
typedef struct td_ints {
    _Alignas(64) int16_t codes[TD_INTS_STEP];
    float scales[TD_INTS_GROUPS][16];  /* of the first block eight times, then of the second */
    float each[TD_INTS_BLOCKS];        /* scales */
    float offsets[TD_INTS_BLOCKS];     /* of x: sums of what its codes stand for */
} td_ints;

/* Where a block's lower half lies among codes; its upper one is a block further. */
static inline uint32_t td_ints_place(uint32_t block)
{
    return block / 2 * (2 * TD_INTS_BLOCK) + block % 2 * (TD_INTS_BLOCK / 2);
}

/* Of two blocks each. */
static inline uint32_t td_ints_groups(uint32_t count)
{
    return (count + 2 * TD_INTS_BLOCK - 1) / (2 * TD_INTS_BLOCK);
}

static inline uint32_t td_ints_block_bytes(uint32_t weights)
{
    return weights == TD_LINEAR_Q4_0 ? 18 : weights == TD_LINEAR_Q4_1 ? 20 : 34;
}

/* By what x is multiplied to be codes, whose largest has 15 bits. What is smaller than any number whose share that is, is 0. */
static inline float td_ints_factor(float largest)
{
    return largest > 1e-34f ? 32767 / largest : 0;
}

/* Blocks that are not there. */
static inline void td_ints_clear(td_ints *to, uint32_t count)
{
    const uint32_t first = count / (2 * TD_INTS_BLOCK) * (2 * TD_INTS_BLOCK);

    memset(to->each, 0, sizeof to->each);
    memset(to->offsets, 0, sizeof to->offsets);
    memset(to->codes + first, 0, (td_ints_groups(count) * 2 * TD_INTS_BLOCK - first) * sizeof *to->codes);
}

/* `count` channels, whole blocks; x from element `at` on, F16 or BF16. */
void td_ints_of_x(td_ints *to, const void *x, uint32_t dtype, int64_t at, uint32_t count);
void td_ints_of_w(td_ints *to, uint32_t weights, const unsigned char *w, uint32_t count);

/* Adds products of all rows and columns to their sums, which are `stride` apart from row to row; there must be multiples of
 * TD_INTS_TOGETHER of both. */
void td_ints_multiply(const td_ints *x, uint32_t rows, const td_ints *w, uint32_t columns, uint32_t count, float *sums,
                      uint32_t stride);
/* The same bits of one row, and of TD_INTS_TOGETHER columns, whose weights are read as they lie. */
void td_ints_multiply_row(const td_ints *x, uint32_t weights, const unsigned char *const w[TD_INTS_TOGETHER], uint32_t count,
                          float sums[TD_INTS_TOGETHER]);

/* Those of AVX2, which the others are where there is no AVX-512. */
void td_ints_of_x_avx2(td_ints *to, const void *x, uint32_t dtype, int64_t at, uint32_t count);
void td_ints_of_w_avx2(td_ints *to, uint32_t weights, const unsigned char *w, uint32_t count);
void td_ints_multiply_avx2(const td_ints *x, uint32_t rows, const td_ints *w, uint32_t columns, uint32_t count, float *sums,
                           uint32_t stride);
void td_ints_multiply_row_avx2(const td_ints *x, uint32_t weights, const unsigned char *const w[TD_INTS_TOGETHER],
                               uint32_t count, float sums[TD_INTS_TOGETHER]);
#endif

#endif
