/* `norm_rows` on the CPU, the bits of the GPU's: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/norm/norm.h"

#include "kernels/cpu/cpu.h"
#include "kernels/norm/params.h"

enum { STEP = 8 * TD_NORM_THREADS };

typedef struct row {
    const td_params_norm *p;
    int64_t batch, head, row;
} row;

TD_INLINE int64_t place(const row *of, const td_strides *at, uint32_t c)
{
    return td_row_at(at, of->batch, of->head, of->row) + c;
}

/* h of channels from c on; returns how many, at most `step`. */
TD_INLINE uint32_t load(const row *of, uint32_t c, uint32_t step, float *h)
{
    const td_params_norm *p = of->p;
    const uint32_t count = p->channels - c < step ? p->channels - c : step;
    uint16_t rounded[STEP];
    float more[STEP];
    td_to_floats(h, p->x, p->dtype, place(of, &p->x_at, c), count);
    if (!p->residual)
        return count;
    td_to_floats(more, p->residual, p->residual_dtype, place(of, &p->residual_at, c), count);
    for (uint32_t i = 0; i < count; i++)
        h[i] += more[i];
    if (p->dtype != TANDEM_DTYPE_F32) {
        td_from_floats(rounded, p->dtype, 0, h, count);
        td_to_floats(h, rounded, p->dtype, 0, count);
    }
    return count;
}

/* Of what threads have eight sums each of, [lanes][8]. */
TD_INLINE float mean_of(const td_params_norm *p, float *sums)
{
    float all = 0;
    for (uint32_t first = 0; first < p->lanes; first += 32) {
        float *warp = sums + 8 * first;
        for (uint32_t lane = 0; lane < 32; lane++)
            for (uint32_t apart = 4; apart; apart /= 2)
                for (uint32_t i = 0; i < apart; i++)
                    warp[8 * lane + i] += warp[8 * lane + i + apart];
        for (uint32_t apart = 16; apart; apart /= 2)
            for (uint32_t lane = 0; lane < apart; lane++)
                warp[8 * lane] += warp[8 * (lane + apart)];
        all = first ? all + warp[0] : warp[0];
    }
    return all / (float)p->channels;
}

/* The mean of h, or of (h - mean)^2. */
TD_INLINE float mean_of_row(const row *of, bool squares, float mean)
{
    float sums[STEP] = {0}, h[STEP];
    for (uint32_t c = 0; c < of->p->channels; c += 8 * of->p->lanes) {
        const uint32_t count = load(of, c, 8 * of->p->lanes, h);
        for (uint32_t i = 0; i < count; i++)
            sums[i] += squares ? (h[i] - mean) * (h[i] - mean) : h[i];
    }
    return mean_of(of->p, sums);
}

/* `count` channels from c on, both even where some of them turn. */
TD_INLINE void rotate(const row *of, uint32_t c, uint32_t count, float *y)
{
    const td_params_norm *p = of->p;
    if (!p->rotation || c >= p->rotated_channels)
        return;
    const int64_t asked = p->position[td_row_at(&p->position_at, of->batch, 0, of->row)], last = (int64_t)p->positions - 1;
    const float *turn = p->rotation + (asked < 0 ? 0 : asked > last ? last : asked) * p->rotation_stride + c;
    for (uint32_t i = 0; i < count && c + i < p->rotated_channels; i += 2) {
        const float a = y[i], b = y[i + 1];
        y[i] = a * turn[i] - b * turn[i + 1];
        y[i + 1] = a * turn[i + 1] + b * turn[i];
    }
}

TD_INLINE void norm_body(const void *params, const td_block *at)
{
    const td_params_norm *p = params;
    const uint64_t rows = TD_NORM_THREADS / p->lanes, first = at->x * rows;
    for (uint64_t n = first; n < first + rows && n < p->total && td_block_goes_on(at); n++) {
        const int64_t plane = (int64_t)(n / p->rows);
        const row of = {p, plane / p->heads, plane % p->heads, (int64_t)(n % p->rows)};
        const float mean = p->subtracts_mean ? mean_of_row(&of, false, 0) : 0;
        const float scale = 1 / sqrtf(mean_of_row(&of, true, mean) + p->epsilon);
        float y[STEP], weight[STEP];
        for (uint32_t c = 0, count; c < p->channels; c += count) {
            count = load(&of, c, STEP, y);
            if (p->sum)
                td_from_floats(p->sum, p->dtype, place(&of, &p->sum_at, c), y, count);
            if (p->weight)
                td_to_floats(weight, p->weight, p->weight_dtype, c, count);
            for (uint32_t i = 0; i < count; i++)
                y[i] = p->weight ? (y[i] - mean) * scale * weight[i] : (y[i] - mean) * scale;
            if (p->bias)
                td_to_floats(weight, p->bias, p->bias_dtype, c, count);
            for (uint32_t i = 0; i < count && p->bias; i++)
                y[i] += weight[i];
            rotate(&of, c, count, y);
            td_from_floats(p->y, p->y_dtype, place(&of, &p->y_at, c), y, count);
        }
    }
}

TD_CPU_CLONES(norm)
