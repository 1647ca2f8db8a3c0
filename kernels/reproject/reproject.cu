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

__device__ __forceinline__ float reproject_element(const void *from, uint32_t dtype, int64_t at)
{
    return dtype == TANDEM_DTYPE_F32 ? static_cast<const float *>(from)[at] : to_float(static_cast<const __half *>(from)[at]);
}

/* A pixel's surface; what is not finite, or not there, is 0. */
struct ReprojectSurface {
    float normal[3], depth;

    __device__ __forceinline__ ReprojectSurface(const void *normals, uint32_t normal_dtype, const td_strides &normal_at, const void *depths,
                                                uint32_t depth_dtype, const td_strides &depth_at, int64_t batch, int y, int x)
    {
#pragma unroll
        for (int c = 0; c < 3; c++) {
            normal[c] = normals ? reproject_element(normals, normal_dtype, row_at(normal_at, batch, y, x) + c) : 0.0f;
            normal[c] = is_finite(normal[c]) ? normal[c] : 0.0f;
        }
        depth = depths ? reproject_element(depths, depth_dtype, row_at(depth_at, batch, y, x)) : 0.0f;
        depth = is_finite(depth) && depth > 0 ? depth : 0.0f;
    }

    __device__ __forceinline__ float dot(const ReprojectSurface &other) const
    {
        return normal[0] * other.normal[0] + normal[1] * other.normal[1] + normal[2] * other.normal[2];
    }

    __device__ __forceinline__ bool is_same(const ReprojectSurface &then) const
    {
        return dot(then) >= TD_REPROJECT_NORMAL * __fsqrt_rn(dot(*this) * then.dot(then)) && fabsf(depth - then.depth) <= TD_REPROJECT_DEPTH * depth;
    }
};

/* What it is seen as; false: as nothing. */
__device__ __forceinline__ bool reproject_pixel(const td_params_reproject &p, int64_t batch, int y, int x, float (&sums)[4])
{
    const float across = reproject_element(p.motion, p.motion_dtype, row_at(p.motion_at, batch, y, x));
    const float along = reproject_element(p.motion, p.motion_dtype, row_at(p.motion_at, batch, y, x) + 1);
    const float valid = p.valid ? reproject_element(p.valid, p.valid_dtype, row_at(p.valid_at, batch, y, x)) : 1.0f;

    if (!(valid > 0 && fabsf(across) < TD_REPROJECT_FARTHEST && fabsf(along) < TD_REPROJECT_FARTHEST))
        return false;
    const ReprojectSurface now(p.normal, p.normal_dtype, p.normal_at, p.depth, p.depth_dtype, p.depth_at, batch, y, x);
    const float top = floorf(float(y) + along), left = floorf(float(x) + across);
    const float down = float(y) + along - top, right = float(x) + across - left;

#pragma unroll
    for (int tap = 0; tap < 4; tap++) {
        const int row = int(top) + tap / 2, column = int(left) + tap % 2;
        const float share = (tap / 2 ? down : 1.0f - down) * (tap % 2 ? right : 1.0f - right);

        if (row < 0 || column < 0 || row >= int(p.height) || column >= int(p.width))
            continue;
        const ReprojectSurface then(p.normal_before, p.normal_before_dtype, p.normal_before_at, p.depth_before, p.depth_before_dtype,
                                    p.depth_before_at, batch, row, column);
        const float *history = p.history + row_at(p.history_at, batch, row, column);
        const float weight = history[3];

        if (!(weight > 0) || !is_finite(history[0] + history[1] + history[2] + weight) || !now.is_same(then))
            continue;
#pragma unroll
        for (int c = 0; c < 3; c++)
            sums[c] += history[c] * (share * weight);
        sums[3] += share * weight;
    }
    return sums[3] > 0;
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_REPROJECT_THREADS) reproject(const __grid_constant__ td_params_reproject p)
{
    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
    const int64_t batch = blockIdx.x / p.columns / p.rows;
    const int y = int(blockIdx.x / p.columns % p.rows * TD_REPROJECT_HEIGHT + threadIdx.x / TD_REPROJECT_WIDTH);
    const int x = int(blockIdx.x % p.columns * TD_REPROJECT_WIDTH + threadIdx.x % TD_REPROJECT_WIDTH);
    float sums[4] = {};

    if (y >= int(p.height) || x >= int(p.width))
        return;
    const bool is_there = td::reproject_pixel(p, batch, y, x, sums);
    float *o = p.o + td::row_at(p.o_at, batch, y, x);
#pragma unroll
    for (int c = 0; c < 3; c++)
        o[c] = is_there ? sums[c] / sums[3] : 0.0f;
    o[3] = is_there ? fminf(sums[3], TD_REPROJECT_MOST) : 0.0f;
}
