/* A path tracer's frame as light and tokens: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has a tile, a thread a pixel of it, or a warp all. A tile has as many rows of tokens as half of its own.
 */
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor.cuh"
#include "kernels/demodulate/params.h"

namespace td {

constexpr int demodulate_channels = int(TD_DEMODULATE_MOST_CHANNELS);

/* A thread's pixel of the block's tile, and those that are a multiple of `apart` rows below it. */
template <int Rows> struct DemodulatePixels {
    int64_t batch;
    int y, x, apart, height, width;

    __device__ __forceinline__ explicit DemodulatePixels(const td_params_demodulate &p, int threads)
    {
        batch = blockIdx.x / p.columns / p.rows;
        y = int(blockIdx.x / p.columns % p.rows * TD_DEMODULATE_TILE + threadIdx.x / TD_DEMODULATE_TILE);
        x = int(blockIdx.x % p.columns * TD_DEMODULATE_TILE + threadIdx.x % TD_DEMODULATE_TILE);
        apart = threads / int(TD_DEMODULATE_TILE), height = int(p.height), width = int(p.width);
    }
    __device__ __forceinline__ bool exists(int i) const
    {
        return y + i * apart < height && x < width;
    }

    /* As they lie in memory; of pixels that do not exist, those of the nearest that does. */
    template <int Channels>
    __device__ __forceinline__ void read(float (&to)[Rows][Channels], const void *from, uint32_t dtype, const td_strides &at,
                                         float absent) const
    {
        uint32_t rows[Rows], columns[Rows];

#pragma unroll
        for (int i = 0; i < Rows; i++)
            rows[i] = uint32_t(min(y + i * apart, height - 1)), columns[i] = uint32_t(min(x, width - 1));
        load_pixels(to, from, dtype, at, batch, rows, columns, absent);
    }
};

/* Elements that are not finite are 0. */
template <int Channels> __device__ __forceinline__ void demodulate_clean(float (&x)[Channels])
{
#pragma unroll
    for (int c = 0; c < Channels; c++)
        x[c] = is_finite(x[c]) ? x[c] : 0.0f;
}

/* Whether it is there; else it is black. */
__device__ __forceinline__ bool demodulate_clean_color(float (&color)[3])
{
    const bool there = is_finite(color[0]) && is_finite(color[1]) && is_finite(color[2]);

#pragma unroll
    for (int c = 0; c < 3; c++)
        color[c] = there && color[c] > 0 ? color[c] : 0.0f;
    return there;
}

/* Of all threads' of a warp. */
__device__ __forceinline__ void demodulate_add_up(float (&sums)[4])
{
#pragma unroll
    for (int apart = 16; apart; apart /= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums[i] += __shfl_xor_sync(~0u, sums[i], apart);
}

/* Eight neighbours, or `count` of them, in as few stores as there can be: of one element each they take as long as all else. */
__device__ __forceinline__ void demodulate_store8(__half *to, const float *x, int count)
{
    uint32_t pairs[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        pairs[i] = cvt_f16x2(x[2 * i + 1], x[2 * i]);
    if (count >= 8 && uint64_t(to) % 16 == 0) {
        *reinterpret_cast<uint4 *>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i += 4)
        if (count >= i + 4 && uint64_t(to) % 8 == 0)
            *reinterpret_cast<uint2 *>(to + i) = make_uint2(pairs[i / 2], pairs[i / 2 + 1]);
        else
#pragma unroll
            for (int j = i; j < i + 4; j++)
                if (j < count)
                    to[j] = __float2half_rn(x[j]);
}

__device__ __forceinline__ void demodulate_store_light(float *to, const float (&light)[3], float weight)
{
    if (uint64_t(to) % 16 == 0)
        *reinterpret_cast<float4 *>(to) = make_float4(light[0], light[1], light[2], weight);
    else
        to[0] = light[0], to[1] = light[1], to[2] = light[2], to[3] = weight;
}

} // namespace td

/* A warp has a tile. */
extern "C" __global__ void __launch_bounds__(TD_DEMODULATE_TILE_THREADS)
    demodulate_tiles(const __grid_constant__ td_params_demodulate p)
{
    constexpr int rows = int(TD_DEMODULATE_THREADS / TD_DEMODULATE_TILE_THREADS);

    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
    const td::DemodulatePixels<rows> pixels(p, TD_DEMODULATE_TILE_THREADS);
    float color[rows][3], depth[rows][1], sums[4] = {};

    pixels.read(color, p.color, p.color_dtype, p.color_at, 0.0f);
    pixels.read(depth, p.depth, p.depth_dtype, p.depth_at, 0.0f);
#pragma unroll
    for (int i = 0; i < rows; i++) {
        const bool has_depth = pixels.exists(i) && td::is_finite(depth[i][0]) && depth[i][0] > TD_DEMODULATE_LEAST;
        const bool is_seen = td::demodulate_clean_color(color[i]) && pixels.exists(i);

        sums[0] += is_seen ? 0.2126f * color[i][0] + 0.7152f * color[i][1] + 0.0722f * color[i][2] : 0.0f;
        sums[1] += is_seen ? 1.0f : 0.0f;
        sums[2] += has_depth ? logf(depth[i][0]) : 0.0f;
        sums[3] += has_depth ? 1.0f : 0.0f;
    }
    td::demodulate_add_up(sums);
    if (threadIdx.x)
        return;
    const float mean = sums[1] > 0 ? sums[0] / sums[1] : 0.0f;
    const bool is_lit = mean > TD_DEMODULATE_LEAST;
    p.tiles[blockIdx.x] = {is_lit ? logf(mean) : 0.0f, is_lit ? 1.0f : 0.0f, sums[2], sums[3]};
}

extern "C" __global__ void __launch_bounds__(TD_DEMODULATE_THREADS) demodulate_all(const __grid_constant__ td_params_demodulate p)
{
    constexpr int warps = int(TD_DEMODULATE_THREADS) / 32;
    __shared__ float shared[warps][4];
    const uint32_t count = p.rows * p.columns;
    float sums[4] = {};

    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < count; i += TD_DEMODULATE_THREADS) {
        const float4 tile = reinterpret_cast<const float4 *>(p.tiles)[uint64_t(blockIdx.x) * count + i];

        sums[0] += tile.x, sums[1] += tile.y, sums[2] += tile.z, sums[3] += tile.w;
    }
    td::demodulate_add_up(sums);
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int i = 0; i < 4; i++)
            shared[threadIdx.x / 32][i] = sums[i];
    __syncthreads();
    if (threadIdx.x)
        return;
#pragma unroll
    for (int i = 0; i < 4; i++)
        for (int warp = 1; warp < warps; warp++)
            sums[i] += shared[warp][i];
    p.scales[blockIdx.x] = {sums[1] > 0 ? expf(-sums[0] / sums[1]) : 1.0f, sums[3] > 0 ? expf(sums[2] / sums[3]) : 1.0f};
}

extern "C" __global__ void __launch_bounds__(TD_DEMODULATE_THREADS) demodulate(const __grid_constant__ td_params_demodulate p)
{
    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
    const td::DemodulatePixels<1> pixel(p, TD_DEMODULATE_THREADS);

    /* The pixels of a token that are beyond the image have zeros in it. */
    if (pixel.y >= int(p.height + p.height % 2) || pixel.x >= int(p.width + p.width % 2))
        return;
    /* Loads are ahead of all that waits for one. */
    float of_color[1][3], of_albedo[1][3], of_normal[1][3], of_depth[1][1], of_history[1][4];
    float(&color)[3] = of_color[0], (&albedo)[3] = of_albedo[0], (&normal)[3] = of_normal[0], &depth = of_depth[0][0];
    pixel.read(of_color, p.color, p.color_dtype, p.color_at, 0.0f);
    pixel.read(of_albedo, p.albedo, p.albedo_dtype, p.albedo_at, 1.0f);
    pixel.read(of_normal, p.normal, p.normal_dtype, p.normal_at, 0.0f);
    pixel.read(of_depth, p.depth, p.depth_dtype, p.depth_at, 0.0f);
    pixel.read(of_history, p.history, TANDEM_DTYPE_F32, p.history_at, 0.0f);
    const float exposure = p.scales[pixel.batch].exposure, far = p.scales[pixel.batch].far;
    float channels[td::demodulate_channels] = {};

    if (pixel.exists(0)) {
        const bool there = td::demodulate_clean_color(color);
        float shown[3];

        td::demodulate_clean(albedo);
        td::demodulate_clean(normal);
        td::demodulate_clean(of_depth[0]);
        td::demodulate_clean(of_history[0]);
        const bool emits = !(albedo[0] > 0 || albedo[1] > 0 || albedo[2] > 0);
        float *light = p.light + td::row_at(p.light_at, pixel.batch, pixel.y, pixel.x);
        float *modulation = p.modulation + td::row_at(p.modulation_at, pixel.batch, pixel.y, pixel.x);

#pragma unroll
        for (int c = 0; c < 3; c++) {
            const float divisor = emits ? 1.0f : fminf(fmaxf(albedo[c], TD_DEMODULATE_DARK), 1.0f);

            modulation[c] = divisor;
            shown[c] = __fdividef(color[c], divisor);
            channels[c] = log1pf(exposure * shown[c]);
            channels[3 + c] = fminf(fmaxf(albedo[c], 0.0f), 1.0f);
            channels[6 + c] = fminf(fmaxf(normal[c], -1.0f), 1.0f);
        }
        td::demodulate_store_light(light, shown, there ? 1.0f : 0.0f);
        channels[9] = depth > 0 ? __fdividef(depth, depth + far) : 0.0f;
        channels[10] = there ? 1.0f : 0.0f;
        channels[11] = emits ? 1.0f : 0.0f;
        if (p.history)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float value = fmaxf(of_history[0][c], 0.0f);

                channels[12 + c] = c < 3 ? log1pf(exposure * value) : __fdividef(value, 1.0f + value);
            }
    }
    __half *token = static_cast<__half *>(p.tokens) + td::row_at(p.tokens_at, pixel.batch, pixel.y / 2, pixel.x / 2) +
                    (pixel.y % 2 * 2 + pixel.x % 2) * int(p.channels);
#pragma unroll
    for (int c = 0; c < td::demodulate_channels; c += 8)
        td::demodulate_store8(token + c, channels + c, int(p.channels) - c);
}
