/* Codes of Q, K and V on the CPU, the bits of the GPU's: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Every instruction set gives the same bits: no contraction, no reordered sums. The bodies are plain C, compiled twice.
 */
#include "kernels/codes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/linear/linear.h"

enum { ROWS = TD_TILE_ROWS, MAX_DIM = 256 };

/* Of one thread: rows of a chunk, and their codes. */
typedef struct local {
    float tile[ROWS * MAX_DIM];
    uint8_t codes[ROWS * MAX_DIM];
} local;
_Static_assert(sizeof(local) == TD_LINEAR_CODES_CPU_LOCAL_BYTES, "linear.h has another size");

/* A chunk of a head of y, of which so many rows exist. */
typedef struct chunk {
    const td_params_linear_codes *p;
    uint32_t batch, head, first, rows;
} chunk;

static chunk chunk_of(const td_params_linear_codes *p, uint32_t batch, uint32_t head, uint32_t index)
{
    const uint32_t first = index * ROWS, left = p->y.rows - first;
    return (chunk){p, batch, head, first, left < ROWS ? left : ROWS};
}

/* Row r as floats of which all are finite: others become 0. Whether there was none of these. */
TD_INLINE bool load_row(const chunk *of, uint32_t r, float *row)
{
    const td_tensor *y = &of->p->y;
    uint32_t bad = 0;
    td_to_floats(row, y->data, y->dtype,
                 of->batch * y->stride_batch + of->head * y->stride_head + (int64_t)(of->first + r) * y->stride_row, y->dim);
    for (uint32_t c = 0; c < y->dim; c++)
        bad |= (td_bits(row[c]) & 0x7f800000) == 0x7f800000;
    for (uint32_t c = 0; bad && c < y->dim; c++)
        row[c] = (td_bits(row[c]) & 0x7f800000) == 0x7f800000 ? 0 : row[c];
    return !bad;
}

TD_INLINE void linear_codes_partial_body(const void *params, const td_block *at)
{
    const td_params_linear_codes *p = params;
    const uint32_t plane = at->x / p->chunks, batch = plane / p->kv_heads, head = p->heads + plane % p->kv_heads, dim = p->y.dim;
    const chunk k = chunk_of(p, batch, head, at->x % p->chunks), v = chunk_of(p, batch, head + p->kv_heads, at->x % p->chunks);
    float *sums = p->partial + (size_t)at->x * 2 * dim, *most = sums + dim, sum[8][MAX_DIM], row[MAX_DIM];
    memset(sum, 0, sizeof sum);
    memset(most, 0, dim * sizeof *most);
    for (uint32_t r = 0; r < k.rows; r++) {
        load_row(&k, r, row);
        for (uint32_t c = 0; c < dim; c++)
            sum[r % 8][c] += row[c];
        load_row(&v, r, row);
        for (uint32_t c = 0; c < dim; c++)
            most[c] = fabsf(row[c]) > most[c] ? fabsf(row[c]) : most[c];
    }
    for (uint32_t c = 0; c < dim; c++)
        sums[c] = (((sum[0][c] + sum[1][c]) + (sum[2][c] + sum[3][c])) + (sum[4][c] + sum[5][c])) + (sum[6][c] + sum[7][c]);
}

void td_cpu_linear_codes_statistics(const void *params, const td_block *at)
{
    const td_params_linear_codes *p = params;
    const uint32_t dim = p->y.dim;
    const float *partial = p->partial + (size_t)at->x * p->chunks * 2 * dim;
    float *mean = p->statistics + at->x / p->kv_heads * p->statistics_at.stride_batch + at->x % p->kv_heads * p->statistics_at.stride_head;
    float *most = mean + p->statistics_at.stride_row;
    for (uint32_t c = 0; c < dim; c++) {
        float sum = 0, top = 0;
        for (uint32_t i = 0; i < p->chunks; i++) {
            const float *of = partial + (size_t)i * 2 * dim + c;
            sum += of[0];
            top = of[dim] > top ? of[dim] : top;
        }
        mean[c] = sum / (float)p->y.rows;
        most[c] = top;
    }
}

/* v rounded to the nearest integer, ties to even, for |v| < 2^22; then within +-TD_Q_TOP, NaN to -TD_Q_TOP. */
TD_INLINE float round_clamp(float v)
{
    v = (v + 0x1.8p23f) - 0x1.8p23f;
    v = v > -TD_Q_TOP ? v : -TD_Q_TOP;
    return v < TD_Q_TOP ? v : TD_Q_TOP;
}

/* A chunk of Q or K; bad[] says which rows have a scale of NaN in any case. */
TD_INLINE void quantise_rows(const chunk *of, local *at, const float *mean, bool is_k, bool *bad, int8_t *codes, float *scales)
{
    const td_params_linear_codes *p = of->p;
    const uint32_t d_pad = p->d_pad, dim = p->y.dim;
    uint32_t top[ROWS] = {0}; /* the bits of floats >= 0 order like the floats */
    for (uint32_t r = 0; r < of->rows; r++) {
        float *row = at->tile + r * MAX_DIM;
        uint32_t *amax = &top[td_row_group(r, p->granularity, is_k)];
        bad[r] |= !load_row(of, r, row);
        int32_t most = 0;
        for (uint32_t c = 0; c < dim; c++) {
            row[c] = mean ? row[c] - mean[c] : row[c];
            const int32_t a = (int32_t)(td_bits(row[c]) & 0x7fffffff);
            most = a > most ? a : most;
        }
        *amax = (uint32_t)most > *amax ? (uint32_t)most : *amax;
    }
    memset(codes, 0, (size_t)ROWS * d_pad);
    for (uint32_t r = 0; r < ROWS; r++) {
        const float amax = td_float(top[td_row_group(r, p->granularity, is_k)]), factor = TD_Q_TOP / amax;
        const float *row = at->tile + r * MAX_DIM;
        const bool tiny = amax < TD_TINY_AMAX;
        scales[r] = r >= of->rows ? 0 : bad[r] ? NAN : tiny ? 0 : amax / TD_Q_TOP;
        for (uint32_t c = 0; r < of->rows && !tiny && c < dim; c++)
            codes[r * d_pad + c] = (int8_t)(int32_t)round_clamp(row[c] * factor);
    }
}

/* A chunk of V; tells which rows are bad. */
TD_INLINE void quantise_v(const chunk *of, local *at, const float *most, bool *bad, uint8_t *codes, float *scales)
{
    const td_params_linear_codes *p = of->p;
    const uint32_t d_pad = p->d_pad, dim = p->y.dim, rows_pad = p->chunks * ROWS;
    float factor[MAX_DIM], row[MAX_DIM];
    for (uint32_t c = 0; c < dim; c++)
        factor[c] = most[c] < TD_TINY_AMAX ? 0 : TD_V_TOP / most[c];
    for (uint32_t c = 0; c < d_pad && of->first == 0; c++)
        scales[c] = c >= dim || most[c] < TD_TINY_AMAX ? 0 : most[c] / TD_V_TOP;
    memset(at->codes, 0, sizeof at->codes);
    for (uint32_t r = 0; r < of->rows; r++) {
        bad[r] = !load_row(of, r, row);
        for (uint32_t c = 0; c < dim; c++) {
            const float v = row[c] * factor[c], least = v > -TD_V_TOP ? v : -TD_V_TOP;
            at->codes[r * MAX_DIM + c] = td_to_e4m3(least < TD_V_TOP ? least : TD_V_TOP);
        }
    }
    for (uint32_t c = 0; c < d_pad; c++)
        for (uint32_t i = 0; i < ROWS; i++)
            codes[(size_t)c * rows_pad + of->first + i] = at->codes[td_v_key(i) * MAX_DIM + c];
}

TD_INLINE void linear_codes_body(const void *params, const td_block *at)
{
    const td_params_linear_codes *p = params;
    const uint32_t plane = at->x / p->chunks, index = at->x % p->chunks, all = p->heads + p->kv_heads;
    const uint32_t batch = plane / all, head = plane % all, kv_head = head - p->heads;
    const size_t rows_pad = (size_t)p->chunks * ROWS, codes = rows_pad * p->d_pad;
    const bool is_k = head >= p->heads;
    const size_t heads = is_k ? p->kv_heads : p->heads, number = batch * heads + (is_k ? kv_head : head), planes = p->batch * heads;
    const chunk rows = chunk_of(p, batch, head, index);
    uint8_t *to = is_k ? p->k : p->q;
    bool bad[ROWS] = {false};
    const float *mean = NULL;
    if (is_k) {
        const chunk v = chunk_of(p, batch, head + p->kv_heads, index);
        mean = p->statistics + batch * p->statistics_at.stride_batch + kv_head * p->statistics_at.stride_head;
        quantise_v(&v, at->local, mean + p->statistics_at.stride_row, bad, p->v + number * codes,
                   (float *)(p->v + planes * codes) + number * p->d_pad);
    }
    quantise_rows(&rows, at->local, mean, is_k, bad, (int8_t *)to + number * codes + (size_t)rows.first * p->d_pad,
                  (float *)(to + planes * codes) + number * rows_pad + rows.first);
}

TD_CPU_CLONES(linear_codes_partial)
TD_CPU_CLONES(linear_codes)
