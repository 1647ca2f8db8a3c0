/* A path tracer's frame as light and tokens: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has a tile, a thread a pixel of it. A tile has as many rows of tokens as half of its own.
 */
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor.cuh"
#include "kernels/demodulate/params.h"

namespace td {

constexpr int demodulate_channels = int(TD_DEMODULATE_MOST_CHANNELS);

__device__ __forceinline__ float demodulate_element(const void *from, uint32_t dtype, int64_t at)
{
    return dtype == TANDEM_DTYPE_F32 ? static_cast<const float *>(from)[at] : to_float(static_cast<const __half *>(from)[at]);
}

/* A thread's pixel. */
struct DemodulatePixel {
    int64_t batch;
    int y, x;
    bool exists;

    __device__ __forceinline__ explicit DemodulatePixel(const td_params_demodulate &p)
    {
        batch = blockIdx.x / p.columns / p.rows;
        y = int(blockIdx.x / p.columns % p.rows * TD_DEMODULATE_TILE + threadIdx.x / TD_DEMODULATE_TILE);
        x = int(blockIdx.x % p.columns * TD_DEMODULATE_TILE + threadIdx.x % TD_DEMODULATE_TILE);
        exists = y < int(p.height) && x < int(p.width);
    }

    /* Elements that are not finite are 0. */
    template <int Channels>
    __device__ __forceinline__ void load(float (&to)[Channels], const void *from, uint32_t dtype, const td_strides &at, float absent) const
    {
#pragma unroll
        for (int c = 0; c < Channels; c++) {
            to[c] = from ? demodulate_element(from, dtype, row_at(at, batch, y, x) + c) : absent;
            to[c] = is_finite(to[c]) ? to[c] : 0.0f;
        }
    }

    /* Whether it is there; else it is black. */
    __device__ __forceinline__ bool load_color(const td_params_demodulate &p, float (&color)[3]) const
    {
        bool there = true;

#pragma unroll
        for (int c = 0; c < 3; c++) {
            color[c] = demodulate_element(p.color, p.color_dtype, row_at(p.color_at, batch, y, x) + c);
            there = there && is_finite(color[c]);
        }
#pragma unroll
        for (int c = 0; c < 3; c++)
            color[c] = there && color[c] > 0 ? color[c] : 0.0f;
        return there;
    }
};

/* Of all threads' of a block, in shared memory; the first thread's result counts. */
__device__ __forceinline__ float demodulate_sum(float x, float *shared)
{
    __syncthreads();
    shared[threadIdx.x] = x;
    __syncthreads();
#pragma unroll 1
    for (uint32_t apart = TD_DEMODULATE_THREADS / 2; apart; apart /= 2) {
        if (threadIdx.x < apart)
            shared[threadIdx.x] += shared[threadIdx.x + apart];
        __syncthreads();
    }
    return shared[0];
}

/* Neighbours in as few stores as there can be: of one element each they take as long as all else. */
__device__ __forceinline__ void demodulate_store4(__half *to, const float *x, int count)
{
    if (count >= 4 && uint64_t(to) % 8 == 0) {
        *reinterpret_cast<uint2 *>(to) = make_uint2(cvt_f16x2(x[1], x[0]), cvt_f16x2(x[3], x[2]));
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < count)
            to[i] = __float2half_rn(x[i]);
}

__device__ __forceinline__ void demodulate_store_light(float *to, const float (&light)[3], float weight)
{
    if (uint64_t(to) % 16 == 0)
        *reinterpret_cast<float4 *>(to) = make_float4(light[0], light[1], light[2], weight);
    else
        to[0] = light[0], to[1] = light[1], to[2] = light[2], to[3] = weight;
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_DEMODULATE_THREADS) demodulate_tiles(const __grid_constant__ td_params_demodulate p)
{
    __shared__ float shared[TD_DEMODULATE_THREADS];

    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
    const td::DemodulatePixel pixel(p);
    float color[3] = {}, depth[1] = {};
    bool there = false;

    if (pixel.exists) {
        there = pixel.load_color(p, color);
        pixel.load(depth, p.depth, p.depth_dtype, p.depth_at, 0.0f);
    }
    const bool has_depth = depth[0] > TD_DEMODULATE_LEAST;
    const float luminance = td::demodulate_sum(0.2126f * color[0] + 0.7152f * color[1] + 0.0722f * color[2], shared);
    const float count = td::demodulate_sum(there ? 1.0f : 0.0f, shared);
    const float depths = td::demodulate_sum(has_depth ? 1.0f : 0.0f, shared);
    const float logs = td::demodulate_sum(has_depth ? logf(depth[0]) : 0.0f, shared);
    const float mean = count > 0 ? luminance / count : 0.0f;

    if (threadIdx.x == 0)
        p.tiles[blockIdx.x] = mean > TD_DEMODULATE_LEAST ? td_demodulate_sums{logf(mean), 1.0f, logs, depths} : td_demodulate_sums{0.0f, 0.0f, logs, depths};
}

extern "C" __global__ void __launch_bounds__(TD_DEMODULATE_THREADS) demodulate_all(const __grid_constant__ td_params_demodulate p)
{
    __shared__ float shared[TD_DEMODULATE_THREADS];
    const int64_t count = int64_t(p.rows) * p.columns;
    td_demodulate_sums sums = {};

    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
    for (int64_t i = threadIdx.x; i < count; i += TD_DEMODULATE_THREADS) {
        const td_demodulate_sums &tile = p.tiles[blockIdx.x * count + i];

        sums.luminance += tile.luminance;
        sums.luminances += tile.luminances;
        sums.depth += tile.depth;
        sums.depths += tile.depths;
    }
    sums.luminance = td::demodulate_sum(sums.luminance, shared);
    sums.luminances = td::demodulate_sum(sums.luminances, shared);
    sums.depth = td::demodulate_sum(sums.depth, shared);
    sums.depths = td::demodulate_sum(sums.depths, shared);
    if (threadIdx.x == 0)
        p.all[blockIdx.x] = sums;
}

extern "C" __global__ void __launch_bounds__(TD_DEMODULATE_THREADS) demodulate(const __grid_constant__ td_params_demodulate p)
{
    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
    const td::DemodulatePixel pixel(p);

    /* The pixels of a token that are beyond the image have zeros in it. */
    if (pixel.y >= int(p.height + p.height % 2) || pixel.x >= int(p.width + p.width % 2))
        return;
    const td_demodulate_sums all = p.all[pixel.batch];
    const float exposure = all.luminances > 0 ? expf(-all.luminance / all.luminances) : 1.0f;
    const float far = all.depths > 0 ? expf(all.depth / all.depths) : 1.0f;
    float channels[td::demodulate_channels] = {};

    if (pixel.exists) {
        float color[3], albedo[3], normal[3], depth[1], shown[3];
        const bool there = pixel.load_color(p, color);

        pixel.load(albedo, p.albedo, p.albedo_dtype, p.albedo_at, 1.0f);
        pixel.load(normal, p.normal, p.normal_dtype, p.normal_at, 0.0f);
        pixel.load(depth, p.depth, p.depth_dtype, p.depth_at, 0.0f);
        const bool emits = albedo[0] < TD_DEMODULATE_DARK && albedo[1] < TD_DEMODULATE_DARK && albedo[2] < TD_DEMODULATE_DARK;
        float *light = p.light + td::row_at(p.light_at, pixel.batch, pixel.y, pixel.x);
        float *modulation = p.modulation + td::row_at(p.modulation_at, pixel.batch, pixel.y, pixel.x);

#pragma unroll
        for (int c = 0; c < 3; c++) {
            const float divisor = emits ? 1.0f : fminf(fmaxf(albedo[c], TD_DEMODULATE_DARK), 1.0f);

            modulation[c] = divisor;
            shown[c] = color[c] / divisor;
            channels[c] = log1pf(exposure * shown[c]);
            channels[3 + c] = fminf(fmaxf(albedo[c], 0.0f), 1.0f);
            channels[6 + c] = fminf(fmaxf(normal[c], -1.0f), 1.0f);
        }
        td::demodulate_store_light(light, shown, there ? 1.0f : 0.0f);
        channels[9] = depth[0] > 0 ? depth[0] / (depth[0] + far) : 0.0f;
        channels[10] = there ? 1.0f : 0.0f;
        channels[11] = emits ? 1.0f : 0.0f;
        if (p.history) {
            const float *history = p.history + td::row_at(p.history_at, pixel.batch, pixel.y, pixel.x);

#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float value = td::is_finite(history[c]) && history[c] > 0 ? history[c] : 0.0f;

                channels[12 + c] = c < 3 ? log1pf(exposure * value) : value / (1.0f + value);
            }
        }
    }
    __half *token = static_cast<__half *>(p.tokens) + td::row_at(p.tokens_at, pixel.batch, pixel.y / 2, pixel.x / 2) +
                    (pixel.y % 2 * 2 + pixel.x % 2) * int(p.channels);
#pragma unroll
    for (int c = 0; c < td::demodulate_channels; c += 4)
        td::demodulate_store4(token + c, channels + c, int(p.channels) - c);
}
