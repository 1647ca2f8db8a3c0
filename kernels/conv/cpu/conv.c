/* Convolutions on the CPU. See params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block's pixels of x become floats, some channels at a time; then some pixels by some vectors of outputs at a time are summed up
 * in registers. Weights were made floats once for the whole run, outputs together, so that a vector of them is one load.
 */
#include "kernels/conv/conv.h"

#include "kernels/cpu/cpu.h"

enum { LANES = 16, STEP = TD_CONV_CPU_STEP };
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Which part of y a block is for, and what of x that needs. */
typedef struct part {
    const td_params_conv *p;
    int64_t batch;
    uint32_t first_row, first_column, rows, columns; /* of pixels */
    uint32_t first_out, outs;
    uint32_t patch_width, patch_height;
    float *patch; /* [patch_height][patch_width][STEP] */
    float *sums;  /* [TD_CONV_HEIGHT][TD_CONV_WIDTH][TD_CONV_OUTS] */
} part;

TD_INLINE void conv_pack_body(const void *params, const td_block *at)
{
    const td_params_conv *p = params;
    const uint32_t count = p->size * p->size * (p->channels + p->coarse_channels);
    float *packed = (float *)(uintptr_t)p->packed, row[LANES][256];

    for (uint32_t k = 0; k < count && td_block_goes_on(at); k += 256) {
        const uint32_t here = count - k < 256 ? count - k : 256;
        for (uint32_t i = 0; i < LANES; i++) {
            const uint32_t out = at->x * LANES + i;
            memset(row[i], 0, sizeof row[i]);
            if (out < p->outs)
                td_to_floats(row[i], p->w, TANDEM_DTYPE_F16, out * p->w_stride + k, here);
        }
        for (uint32_t j = 0; j < here; j++)
            for (uint32_t i = 0; i < LANES; i++)
                packed[(size_t)(k + j) * p->outs_pad + at->x * LANES + i] = row[i][j];
    }
}

/* Channels `first` to first + count of x's and coarse's together. */
TD_INLINE void load_patch(const part *t, uint32_t first, uint32_t count)
{
    const td_params_conv *p = t->p;
    const bool is_coarse = first >= p->channels;
    const int64_t top = (int64_t)t->first_row * p->stride - p->size / 2, left = (int64_t)t->first_column * p->stride - p->size / 2;

    for (uint32_t r = 0; r < t->patch_height; r++)
        for (uint32_t c = 0; c < t->patch_width; c++) {
            const int64_t y = top + r, x = left + c;
            float *to = t->patch + ((size_t)r * t->patch_width + c) * STEP;
            if (y < 0 || x < 0 || y >= p->height || x >= p->width)
                memset(to, 0, count * sizeof *to);
            else if (is_coarse)
                td_to_floats(to, p->coarse, TANDEM_DTYPE_F16, td_row_at(&p->coarse_at, t->batch, y / 2, x / 2) + first - p->channels, count);
            else
                td_to_floats(to, p->x, TANDEM_DTYPE_F16, td_row_at(&p->x_at, t->batch, y, x) + first, count);
        }
}

/* Sums of `pixels` neighbours of a row and `vectors` of outputs, constants both. */
TD_INLINE void multiply(const part *t, uint32_t first, uint32_t count, uint32_t row, uint32_t column, uint32_t out, const uint32_t pixels,
                        const uint32_t vectors)
{
    const td_params_conv *p = t->p;
    const uint32_t channels = p->channels + p->coarse_channels, step = p->stride * STEP;
    vec sums[8][4];

    for (uint32_t i = 0; i < pixels; i++)
        for (uint32_t v = 0; v < vectors; v++)
            sums[i][v] = *(const vec *)&t->sums[(row * TD_CONV_WIDTH + column + i) * TD_CONV_OUTS + out + v * LANES];
    for (uint32_t tap = 0; tap < (uint32_t)p->size * p->size; tap++) {
        const float *x = t->patch + ((row * p->stride + tap / p->size) * (size_t)t->patch_width + column * p->stride + tap % p->size) * STEP;
        const float *w = p->packed + ((size_t)tap * channels + first) * p->outs_pad + t->first_out + out;
        for (uint32_t k = 0; k < count; k++, w += p->outs_pad)
            for (uint32_t i = 0; i < pixels; i++)
                for (uint32_t v = 0; v < vectors; v++)
                    sums[i][v] += x[i * step + k] * *(const vec *)(w + v * LANES);
    }
    for (uint32_t i = 0; i < pixels; i++)
        for (uint32_t v = 0; v < vectors; v++)
            *(vec *)&t->sums[(row * TD_CONV_WIDTH + column + i) * TD_CONV_OUTS + out + v * LANES] = sums[i][v];
}

TD_INLINE void multiply_rows(const part *t, uint32_t first, uint32_t count, uint32_t out, const uint32_t pixels, const uint32_t vectors)
{
    for (uint32_t row = 0; row < t->rows; row++)
        for (uint32_t column = 0; column < t->columns; column += pixels)
            multiply(t, first, count, row, column, out, pixels, vectors);
}

/* What a plan for a GPU, run here, has: weights as they are in the file. */
TD_INLINE void multiply_plainly(const part *t, uint32_t first, uint32_t count)
{
    const td_params_conv *p = t->p;
    const uint32_t channels = p->channels + p->coarse_channels;
    float w[STEP];

    for (uint32_t o = 0; o < t->outs; o++)
        for (uint32_t tap = 0; tap < (uint32_t)p->size * p->size; tap++) {
            td_to_floats(w, p->w, TANDEM_DTYPE_F16, (t->first_out + o) * p->w_stride + tap * channels + first, count);
            for (uint32_t row = 0; row < t->rows; row++)
                for (uint32_t column = 0; column < t->columns; column++) {
                    const float *x = t->patch + ((row * p->stride + tap / p->size) * (size_t)t->patch_width + column * p->stride + tap % p->size) * STEP;
                    float *sum = &t->sums[(row * TD_CONV_WIDTH + column) * TD_CONV_OUTS + o];
                    for (uint32_t k = 0; k < count; k++)
                        *sum += x[k] * w[k];
                }
        }
}

TD_INLINE void write(const part *t)
{
    const td_params_conv *p = t->p;
    const uint32_t each = p->outs / (p->shuffle * p->shuffle);
    float bias[TD_CONV_OUTS] = {0};

    if (p->bias)
        memcpy(bias, p->bias + t->first_out, t->outs * sizeof *bias);
    for (uint32_t row = 0; row < t->rows; row++)
        for (uint32_t column = 0; column < t->columns; column++) {
            float *sum = &t->sums[(row * TD_CONV_WIDTH + column) * TD_CONV_OUTS];
            for (uint32_t o = 0; o < t->outs; o++) {
                sum[o] += bias[o];
                sum[o] = p->relu && sum[o] < 0 ? 0 : sum[o];
            }
            for (uint32_t o = 0; o < t->outs;) {
                const uint32_t out = t->first_out + o, quarter = out / each, left = each - out % each;
                const uint32_t here = left < t->outs - o ? left : t->outs - o;
                const int64_t y = (int64_t)(t->first_row + row) * p->shuffle + quarter / 2, x = (int64_t)(t->first_column + column) * p->shuffle + quarter % 2;
                td_from_floats(p->y, p->y_dtype, td_row_at(&p->y_at, t->batch, y, x) + out % each, sum + o, here);
                o += here;
            }
        }
}

/* Pixels from (row, column) and outputs from `out` on, of a batch. */
TD_INLINE void conv_part(const td_params_conv *p, const td_block *at, int64_t batch, uint32_t row, uint32_t column, uint32_t out, uint32_t outs, bool wide)
{
    part t = {.p = p,
              .batch = batch,
              .first_row = row,
              .first_column = column,
              .first_out = out,
              .outs = outs,
              .patch_width = (TD_CONV_WIDTH - 1) * p->stride + p->size,
              .patch_height = (TD_CONV_HEIGHT - 1) * p->stride + p->size,
              .patch = at->local};

    t.rows = p->out_height - row < TD_CONV_HEIGHT ? p->out_height - row : TD_CONV_HEIGHT;
    t.columns = p->out_width - column < TD_CONV_WIDTH ? p->out_width - column : TD_CONV_WIDTH;
    t.sums = t.patch + (size_t)t.patch_width * t.patch_height * STEP;
    memset(t.sums, 0, TD_CONV_WIDTH * TD_CONV_HEIGHT * TD_CONV_OUTS * sizeof *t.sums);
    for (uint32_t first = 0, count; first < p->channels + p->coarse_channels && td_block_goes_on(at); first += count) {
        const uint32_t end = first < p->channels ? p->channels : p->channels + p->coarse_channels;
        const uint32_t vectors = (t.outs + LANES - 1) / LANES;
        count = end - first < STEP ? end - first : STEP;
        load_patch(&t, first, count);
        if (!p->packed)
            multiply_plainly(&t, first, count);
        else if (!wide)
            for (uint32_t v = 0; v < vectors; v++)
                multiply_rows(&t, first, count, v * LANES, 4, 1);
        else if (vectors == 4)
            multiply_rows(&t, first, count, 0, 4, 4);
        else if (vectors == 3)
            multiply_rows(&t, first, count, 0, 8, 3);
        else if (vectors == 2)
            multiply_rows(&t, first, count, 0, 8, 2);
        else
            multiply_rows(&t, first, count, 0, 8, 1);
    }
    write(&t);
}

TD_INLINE void conv_body(const void *params, const td_block *at, bool wide)
{
    const td_params_conv *p = params;

    for (uint64_t i = at->x; i < p->parts && td_block_goes_on(at); i += p->blocks) {
        const uint32_t place = (uint32_t)i / p->tiles;
        const uint32_t first_row = place / p->columns % p->rows * p->high, first_out = (uint32_t)i % p->tiles * p->tile;
        const uint32_t end_row = p->out_height - first_row < p->high ? p->out_height : first_row + p->high;
        const uint32_t end_out = p->outs - first_out < p->tile ? p->outs : first_out + p->tile;
        for (uint32_t row = first_row; row < end_row; row += TD_CONV_HEIGHT)
            for (uint32_t out = first_out; out < end_out; out += TD_CONV_OUTS)
                conv_part(p, at, place / p->columns / p->rows, row, place % p->columns * TD_CONV_WIDTH, out,
                          end_out - out < TD_CONV_OUTS ? end_out - out : TD_CONV_OUTS, wide);
    }
}

static void conv_c(const void *params, const td_block *at)
{
    conv_body(params, at, false);
}

/* The kernels' files round each product by itself, for twins of the GPU; this is none. */
#define FUSED __attribute__((optimize("fp-contract=fast")))

#if TD_X86
TD_TARGET_AVX2 FUSED static void conv_avx2(const void *params, const td_block *at)
{
    conv_body(params, at, false);
}

TD_TARGET_AVX512 FUSED static void conv_avx512(const void *params, const td_block *at)
{
    conv_body(params, at, true);
}

void td_cpu_conv(const void *params, const td_block *at)
{
    static const td_cpu_fn levels[TD_ISA_COUNT] = {conv_c, conv_avx2, conv_avx512};
    levels[td_cpu_isa_level()](params, at);
}
#else
void td_cpu_conv(const void *params, const td_block *at)
{
    conv_c(params, at);
}
#endif

TD_CPU_CLONES(conv_pack)
