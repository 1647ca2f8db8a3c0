/* Linear layers on the CPU. See params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block of y is computed STEP channels at a time: x's rows and w's rows as floats, then some rows of both at a time in
 * registers. A sum has LANES parts, lane i channels i, i + LANES and so on of a step; these are added up in one order, step by
 * step. So cutting rows or columns changes no bits, nor does it matter whether there is one row or many; instruction sets with a
 * fused multiply-add round once where others round twice.
 *
 * Weights in small blocks are multiplied as whole numbers where that is possible: integers.h.
 */
#include "kernels/linear/linear.h"

#include "kernels/blocks.h"
#include "kernels/linear/cpu/integers.h"

enum { ROWS = TD_LINEAR_CPU_ROWS, COLUMNS = TD_LINEAR_CPU_COLUMNS, STEP = 512, LANES = 16, MOST_TOGETHER = 4 };

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float half __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
typedef float quarter __attribute__((vector_size(LANES), aligned(4), may_alias));

typedef struct tile {
    union {
        struct {
            float x[ROWS][STEP], w[COLUMNS][STEP];
        };
#if TD_X86
        struct {
            td_ints ints_x[ROWS], ints_w[COLUMNS];
        };
#endif
    };
    float sums[ROWS][COLUMNS];
} tile;
_Static_assert(sizeof(tile) <= TD_LINEAR_CPU_LOCAL_BYTES, "a block's scratch");

/* Which part of y a block is for. */
typedef struct part {
    const td_params_linear *p;
    uint32_t first_row, rows;
    uint32_t first_column, columns; /* of y */
    uint32_t w_columns;             /* of w's rows: with a gate twice as many */
} part;

/* The row of w for a column of the tile: with a gate by halves all of a's come first. */
static uint32_t w_row(const part *at, uint32_t column)
{
    if (at->p->gate == TANDEM_GATE_HALVES)
        return column < at->columns ? at->first_column + column : at->p->outs + at->first_column + column - at->columns;
    return (at->p->gate == TANDEM_GATE_PAIRS ? 2 : 1) * at->first_column + column;
}

static const unsigned char *w_at(const part *at, uint32_t column)
{
    return (const unsigned char *)at->p->w + (int64_t)w_row(at, column) * at->p->w_stride;
}

/* --- Weights --- */

/* Weights that are codes, from channel `first` on, which is a multiple of STEP. */
static void load_codes(const td_params_linear *p, const unsigned char *w, uint32_t first, uint32_t count, float *to)
{
    const uint32_t dtype = td_linear_weight_dtype(p->weights, p->dtype);
    const td_dtype of = td_dtype_of(dtype);
    uint16_t rounded[STEP];
    if (p->weights == TD_LINEAR_INT8) {
        for (uint32_t i = 0; i < count; i++)
            to[i] = (float)(int8_t)w[first + i];
        return;
    }
    for (uint32_t i = 0; i < count; i += of.elements)
        td_block_decode(dtype, to + i, w + (first + i) / of.elements * of.bytes);
    if (p->dtype == TANDEM_DTYPE_F32)
        return;
    td_from_floats(rounded, p->dtype, 0, to, count);
    td_to_floats(to, rounded, p->dtype, 0, count);
}

/* --- Sums --- */

TD_INLINE float add_lanes(const float *lanes)
{
    const half eight = *(const half *)lanes + *(const half *)(lanes + 8);
    float parts[8];

    *(half *)parts = eight;
    const quarter four = *(const quarter *)parts + *(const quarter *)(parts + 4);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* The same of four at once, with fewer moves: halves of two, then quarters of all, are added in one register. */
TD_INLINE quarter add_lanes_of_four(const vec of[4])
{
#define HALVES(a, b, at)                                                                                               \
    __builtin_shufflevector(a, b, at, at + 1, at + 2, at + 3, at + 4, at + 5, at + 6, at + 7, at + 16, at + 17, at + 18, \
                            at + 19, at + 20, at + 21, at + 22, at + 23)
#define QUARTERS(a, b, at)                                                                                        \
    __builtin_shufflevector(a, b, at, at + 1, at + 2, at + 3, at + 8, at + 9, at + 10, at + 11, at + 16, at + 17, \
                            at + 18, at + 19, at + 24, at + 25, at + 26, at + 27)
    const vec eights[2] = {HALVES(of[0], of[1], 0) + HALVES(of[0], of[1], 8), HALVES(of[2], of[3], 0) + HALVES(of[2], of[3], 8)};
    const vec fours = QUARTERS(eights[0], eights[1], 0) + QUARTERS(eights[0], eights[1], 4);
    const vec twos = fours + __builtin_shufflevector(fours, fours, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    const vec ones = twos + __builtin_shufflevector(twos, twos, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#undef HALVES
#undef QUARTERS

    return (quarter)__builtin_shufflevector(ones, ones, 0, 4, 8, 12);
}

/* Rows are `together` at a time: what is behind the last is computed and not used. */
static uint32_t whole(uint32_t count, uint32_t together)
{
    return (count + together - 1) / together * together;
}

/* x's rows of a step, with zeros up to whole vectors. */
TD_INLINE void load_x(tile *t, const part *at, uint32_t first, uint32_t channels, uint32_t together)
{
    const td_params_linear *p = at->p;

    for (uint32_t r = 0; r < whole(at->rows, together); r++) {
        const uint32_t count = r < at->rows ? channels : 0;
        if (count)
            td_to_floats(t->x[r], p->x, p->dtype, (int64_t)(at->first_row + r) * p->x_stride + first, count);
        memset(t->x[r] + count, 0, (whole(channels, LANES) - count) * sizeof(float));
    }
}

TD_INLINE void load_w(tile *t, const part *at, uint32_t first, uint32_t channels, uint32_t together)
{
    const td_params_linear *p = at->p;

    for (uint32_t c = 0; c < whole(at->w_columns, together); c++) {
        const uint32_t count = c < at->w_columns ? channels : 0;
        if (count && p->weights == TD_LINEAR_DENSE)
            td_to_floats(t->w[c], w_at(at, c), p->dtype, first, count);
        else if (count)
            load_codes(p, w_at(at, c), first, count, t->w[c]);
        memset(t->w[c] + count, 0, (whole(channels, LANES) - count) * sizeof(float));
    }
}

/* Products of as many rows and columns as registers are there for, constants both. */
TD_INLINE void multiply(tile *t, const part *at, uint32_t channels, uint32_t rows, uint32_t columns)
{
    for (uint32_t r = 0; r < at->rows; r += rows)
        for (uint32_t c = 0; c < at->w_columns; c += columns) {
            vec sums[MOST_TOGETHER][MOST_TOGETHER] = {0};
            for (uint32_t k = 0; k < channels; k += LANES)
                for (uint32_t i = 0; i < rows; i++)
                    for (uint32_t j = 0; j < columns; j++)
                        sums[i][j] += *(const vec *)&t->x[r + i][k] * *(const vec *)&t->w[c + j][k];
            for (uint32_t i = 0; i < rows; i++)
                if (columns == 4)
                    *(quarter *)&t->sums[r + i][c] += add_lanes_of_four(sums[i]);
                else
                    for (uint32_t j = 0; j < columns; j++)
                        t->sums[r + i][c + j] += add_lanes((const float *)&sums[i][j]);
        }
}

/* Within 4e-7, and 1 from where that is the nearest on: libm's is called for one number at a time. */
TD_INLINE float erf_of(float x)
{
    const uint32_t sign = td_bits(x) & 0x80000000, a = td_bits(x) & 0x7fffffff, one = 0x3f800000, most = 0x407b3333; /* 3.925 */
    const float t = td_float(td_select(a < most, a, most)), s = t * t;
    const float above =
        ((((2.0308131e-6f * s + 2.8749768e-4f) * s + 3.876589e-3f) * s + 5.3085145e-2f) * s + 0.19297872f) * s + 1.128379f;
    const float below =
        ((((3.8031169e-5f * s + 1.1898132e-3f) * s + 1.5188874e-2f) * s + 0.11516998f) * s + 0.5043546f) * s + 1;
    const uint32_t near = td_select(a < most, td_bits(t * above / below), one);
    return td_float(sign | td_select(a > 0x7f800000, a, near)); /* a NaN stays one */
}

TD_INLINE float activate(uint32_t activation, float x)
{
    if (activation == TANDEM_ACTIVATION_SILU)
        return x / (1 + expf(-x));
    if (activation == TANDEM_ACTIVATION_GELU)
        return 0.5f * x * (1 + erf_of(x * 0.70710678f));
    if (activation == TANDEM_ACTIVATION_GELU_TANH)
        return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    return activation == TANDEM_ACTIVATION_TANH ? tanhf(x) : x;
}

TD_INLINE void rotate(const part *at, int64_t row, float *y)
{
    const td_params_linear *p = at->p;
    const int64_t asked = p->position[row], last = (int64_t)p->positions - 1;
    const float *turn = p->rotation + (asked < 0 ? 0 : asked > last ? last : asked) * p->rotation_stride;
    for (uint32_t c = 0; c < at->columns && at->first_column + c < p->rotated_columns; c += 2) {
        const uint32_t channel = (at->first_column + c) % p->head_dim;
        const float a = y[c], b = y[c + 1], *t = turn + channel;
        if (channel >= p->rotated_channels)
            continue;
        y[c] = a * t[0] - b * t[1];
        y[c + 1] = a * t[1] + b * t[0];
    }
}

/* Sums to y: of one row after the other. */
TD_INLINE void finish(tile *t, const part *at)
{
    const td_params_linear *p = at->p;
    float scale[COLUMNS], bias[COLUMNS], y[COLUMNS], residual[COLUMNS];
    for (uint32_t c = 0; c < at->w_columns; c++) {
        if (p->scale)
            scale[c] = p->scale[w_row(at, c)];
        if (p->bias)
            td_to_floats(&bias[c], p->bias, p->bias_dtype, w_row(at, c), 1);
    }
    for (uint32_t r = 0; r < at->rows; r++) {
        const int64_t row = at->first_row + r;
        float *sums = t->sums[r];
        for (uint32_t c = 0; c < at->w_columns && p->scale; c++)
            sums[c] *= scale[c];
        for (uint32_t c = 0; c < at->w_columns && p->bias; c++)
            sums[c] += bias[c];
        if (p->gate == TANDEM_GATE_NONE && p->activation == TANDEM_ACTIVATION_GELU) /* a loop of its own: in vectors */
            for (uint32_t c = 0; c < at->columns; c++)
                y[c] = activate(TANDEM_ACTIVATION_GELU, sums[c]);
        else if (p->gate == TANDEM_GATE_NONE)
            for (uint32_t c = 0; c < at->columns; c++)
                y[c] = activate(p->activation, sums[c]);
        for (uint32_t c = 0; c < at->columns && p->gate; c++) {
            const bool pairs = p->gate == TANDEM_GATE_PAIRS;
            y[c] = activate(p->activation, sums[pairs ? 2 * c : c]) * sums[pairs ? 2 * c + 1 : at->columns + c];
        }
        if (p->rotation)
            rotate(at, row, y);
        if (p->residual)
            td_to_floats(residual, p->residual, p->residual_dtype, row * p->residual_stride + at->first_column,
                         at->columns);
        for (uint32_t c = 0; c < at->columns && p->residual; c++)
            y[c] += residual[c];
        td_from_floats(p->y, p->y_dtype, row * p->y_stride + at->first_column, y, at->columns);
    }
}

/* All for each instruction set; only products are added without being rounded before. `row`: of one. */
static void load_c(tile *t, const part *at, uint32_t first, uint32_t channels)
{
    load_x(t, at, first, channels, MOST_TOGETHER);
    load_w(t, at, first, channels, MOST_TOGETHER);
}
static void multiply_c(tile *t, const part *at, uint32_t channels)
{
    multiply(t, at, channels, 1, 1);
}
static void finish_c(tile *t, const part *at)
{
    finish(t, at);
}
#if TD_X86
#define FUSED __attribute__((optimize("fp-contract=fast")))
TD_TARGET_AVX2 static void load_avx2(tile *t, const part *at, uint32_t first, uint32_t channels)
{
    load_x(t, at, first, channels, MOST_TOGETHER);
    load_w(t, at, first, channels, MOST_TOGETHER);
}
TD_TARGET_AVX2 FUSED static void multiply_avx2(tile *t, const part *at, uint32_t channels)
{
    multiply(t, at, channels, 2, 2);
}
TD_TARGET_AVX2 static void finish_avx2(tile *t, const part *at)
{
    finish(t, at);
}
TD_TARGET_AVX512 FUSED static void multiply_avx512(tile *t, const part *at, uint32_t channels)
{
    multiply(t, at, channels, 4, 4);
}
TD_TARGET_AVX512 FUSED static void multiply_row_avx512(tile *t, const part *at, uint32_t channels)
{
    multiply(t, at, channels, 1, 4);
}
#endif
static const struct {
    void (*load)(tile *t, const part *at, uint32_t first, uint32_t channels);
    void (*multiply)(tile *t, const part *at, uint32_t channels);
    void (*multiply_row)(tile *t, const part *at, uint32_t channels);
    void (*finish)(tile *t, const part *at);
} variants[TD_ISA_COUNT] = {
    {load_c, multiply_c, multiply_c, finish_c},
#if TD_X86
    {load_avx2, multiply_avx2, multiply_avx2, finish_avx2},
    {load_avx2, multiply_avx512, multiply_row_avx512, finish_avx2},
#endif
};

#if TD_X86
static const unsigned char *block_at(const part *at, uint32_t column, uint32_t first)
{
    const td_dtype of = td_dtype_of(td_linear_weight_dtype(at->p->weights, at->p->dtype));

    return w_at(at, column) + first / of.elements * of.bytes;
}

/* One row's weights are read as they lie; columns beyond the last are some other. */
static void multiply_row_of_ints(tile *t, const part *at, uint32_t first, uint32_t channels)
{
    for (uint32_t c = 0; c < at->w_columns; c += TD_INTS_TOGETHER) {
        const unsigned char *w[TD_INTS_TOGETHER];

        for (uint32_t i = 0; i < TD_INTS_TOGETHER; i++)
            w[i] = block_at(at, c + i < at->w_columns ? c + i : c, first);
        td_ints_multiply_row(&t->ints_x[0], at->p->weights, w, channels, &t->sums[0][c]);
    }
}

static void multiply_ints(tile *t, const part *at, uint32_t first, uint32_t channels)
{
    const uint32_t rows = whole(at->rows, TD_INTS_TOGETHER), columns = whole(at->w_columns, TD_INTS_TOGETHER);

    for (uint32_t r = 0; r < at->rows; r++)
        td_ints_of_x(&t->ints_x[r], at->p->x, at->p->dtype, (at->first_row + r) * at->p->x_stride + first, channels);
    if (at->rows == 1) {
        multiply_row_of_ints(t, at, first, channels);
        return;
    }
    for (uint32_t c = 0; c < columns; c++)
        td_ints_of_w(&t->ints_w[c], at->p->weights, block_at(at, c < at->w_columns ? c : 0, first), channels);
    memset(&t->ints_x[at->rows], 0, (rows - at->rows) * sizeof t->ints_x[0]);
    td_ints_multiply(t->ints_x, rows, t->ints_w, columns, channels, t->sums[0], COLUMNS);
}
#endif

static uint32_t step_of(const td_params_linear *p)
{
#if TD_X86
    if (td_cpu_linear_in_integers(p))
        return TD_INTS_STEP;
#endif
    (void)p;
    return STEP;
}

static void compute(tile *t, const part *at, td_isa isa, uint32_t first, uint32_t channels)
{
#if TD_X86
    if (td_cpu_linear_in_integers(at->p)) {
        multiply_ints(t, at, first, channels);
        return;
    }
#endif
    variants[isa].load(t, at, first, channels);
    (at->rows > 1 ? variants[isa].multiply : variants[isa].multiply_row)(t, at, channels);
}

void td_cpu_linear(const void *params, const td_block *at)
{
    const td_params_linear *p = params;
    const uint32_t wide = p->gate ? COLUMNS / 2 : COLUMNS, across = (p->outs + wide - 1) / wide;
    const uint32_t first_row = at->x / across * ROWS, first_column = at->x % across * wide;
    const uint32_t columns = p->outs - first_column < wide ? p->outs - first_column : wide;
    const part it = {.p = p,
                     .first_row = first_row,
                     .rows = p->rows - first_row < ROWS ? p->rows - first_row : ROWS,
                     .first_column = first_column,
                     .columns = columns,
                     .w_columns = p->gate ? 2 * columns : columns};
    const td_isa isa = td_cpu_isa_level();
    tile *t = at->local;
    const uint32_t step = step_of(p);
    memset(t->sums, 0, whole(it.rows, MOST_TOGETHER) * sizeof t->sums[0]);
    for (uint32_t first = 0; first < p->ins; first += step) {
        if (!td_block_goes_on(at))
            return;
        compute(t, &it, isa, first, p->ins - first < step ? p->ins - first : step);
    }
    variants[isa].finish(t, &it);
}
