/* The frame before, as it is seen now: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A thread has a pixel. The four that it reads are its neighbours' as well, which the caches have.
 */
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor.cuh"
#include "kernels/reproject/params.h"

namespace td {

/* A pixel's surface; what is not finite, or not there, is 0. */
struct ReprojectSurface {
    float normal[3], depth;

    __device__ __forceinline__ ReprojectSurface(const float (&normal_read)[3], float depth_read)
    {
#pragma unroll
        for (int c = 0; c < 3; c++)
            normal[c] = is_finite(normal_read[c]) ? normal_read[c] : 0.0f;
        depth = is_finite(depth_read) && depth_read > 0 ? depth_read : 0.0f;
    }

    __device__ __forceinline__ float dot(const ReprojectSurface &other) const
    {
        return normal[0] * other.normal[0] + normal[1] * other.normal[1] + normal[2] * other.normal[2];
    }

    /* A cosine is compared by its square. */
    __device__ __forceinline__ bool is_same(const ReprojectSurface &then) const
    {
        const float both = dot(then), lengths = dot(*this) * then.dot(then);

        return both >= 0 && is_finite(lengths) && both * both >= TD_REPROJECT_NORMAL * TD_REPROJECT_NORMAL * lengths &&
               fabsf(depth - then.depth) <= TD_REPROJECT_DEPTH * depth;
    }
};

/* What it is seen as, times its weight, and that. */
__device__ __forceinline__ void reproject_pixel(const td_params_reproject &p, int64_t batch, uint32_t y, uint32_t x,
                                                float (&sums)[4])
{
    const uint32_t rows[1] = {y}, columns[1] = {x};
    float motion[1][2], valid[1][1], normal[1][3], depth[1][1], history[4][4], normal_before[4][3], depth_before[4][1];
    uint32_t tap_rows[4], tap_columns[4];

    load_pixels(motion, p.motion, p.motion_dtype, p.motion_at, batch, rows, columns, 0.0f);
    load_pixels(valid, p.valid, p.valid_dtype, p.valid_at, batch, rows, columns, 1.0f);
    load_pixels(normal, p.normal, p.normal_dtype, p.normal_at, batch, rows, columns, 0.0f);
    load_pixels(depth, p.depth, p.depth_dtype, p.depth_at, batch, rows, columns, 0.0f);
    const bool is_near = fabsf(motion[0][0]) < TD_REPROJECT_FARTHEST && fabsf(motion[0][1]) < TD_REPROJECT_FARTHEST;
    const float across = is_near ? motion[0][0] : 0.0f, along = is_near ? motion[0][1] : 0.0f;
    const float top = floorf(float(y) + along), left = floorf(float(x) + across);
    const float down = float(y) + along - top, right = float(x) + across - left;

    /* Of taps beyond the image, and where none counts, what is near is read as well: nothing that is read waits for a decision. */
#pragma unroll
    for (int tap = 0; tap < 4; tap++) {
        tap_rows[tap] = uint32_t(min(max(int(top) + tap / 2, 0), int(p.height) - 1));
        tap_columns[tap] = uint32_t(min(max(int(left) + tap % 2, 0), int(p.width) - 1));
    }
    load_pixels(history, p.history, p.history_at, batch, tap_rows, tap_columns);
    load_pixels(normal_before, p.normal_before, p.normal_before_dtype, p.normal_before_at, batch, tap_rows, tap_columns, 0.0f);
    load_pixels(depth_before, p.depth_before, p.depth_before_dtype, p.depth_before_at, batch, tap_rows, tap_columns, 0.0f);
    if (!is_near || !(valid[0][0] > 0))
        return;
    const ReprojectSurface now(normal[0], depth[0][0]);
#pragma unroll
    for (int tap = 0; tap < 4; tap++) {
        const float(&seen)[4] = history[tap];
        const float share = (tap / 2 ? down : 1.0f - down) * (tap % 2 ? right : 1.0f - right), weight = share * seen[3];
        const bool is_inside = int(tap_rows[tap]) == int(top) + tap / 2 && int(tap_columns[tap]) == int(left) + tap % 2;

        if (!is_inside || !(seen[3] > 0) || !is_finite(seen[0] + seen[1] + seen[2] + seen[3]) ||
            !now.is_same(ReprojectSurface(normal_before[tap], depth_before[tap][0])))
            continue;
#pragma unroll
        for (int c = 0; c < 3; c++)
            sums[c] += seen[c] * weight;
        sums[3] += weight;
    }
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_REPROJECT_THREADS) reproject(const __grid_constant__ td_params_reproject p)
{
    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
    const int64_t batch = blockIdx.x / p.columns / p.rows;
    const uint32_t y = blockIdx.x / p.columns % p.rows * TD_REPROJECT_HEIGHT + threadIdx.x / TD_REPROJECT_WIDTH;
    const uint32_t x = blockIdx.x % p.columns * TD_REPROJECT_WIDTH + threadIdx.x % TD_REPROJECT_WIDTH;
    float sums[4] = {};

    if (y >= p.height || x >= p.width)
        return;
    td::reproject_pixel(p, batch, y, x, sums);
    const bool is_there = sums[3] > 0;
    float *o = p.o + td::row_at(p.o_at, batch, y, x);
#pragma unroll
    for (int c = 0; c < 3; c++)
        sums[c] = is_there ? __fdividef(sums[c], sums[3]) : 0.0f;
    sums[3] = is_there ? fminf(sums[3], TD_REPROJECT_MOST) : 0.0f;
    if (uint64_t(o) % 16 == 0)
        *reinterpret_cast<float4 *>(o) = make_float4(sums[0], sums[1], sums[2], sums[3]);
    else
        o[0] = sums[0], o[1] = sums[1], o[2] = sums[2], o[3] = sums[3];
}
