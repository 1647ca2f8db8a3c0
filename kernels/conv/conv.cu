/* Convolutions of images by mma.sync: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A product of matrices whose rows are pixels, 16 neighbours of a row by a tile of the instruction, and whose columns are outputs;
 * its sum runs over the window's pixels and channels. Sixteen channels at a time, of the pixels that a block needs and of its
 * weights, come into shared memory, 32 bytes a pixel and a weight's row. Which of them is which of the instruction's k is the same
 * for both, so a thread takes four neighbours in one load, and no bank is met twice.
 */
#include "kernels/conv/params.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor.cuh"

namespace td {

constexpr int conv_pixels = 33 * 17; /* of a block with 3 x 3 and stride 2 */

struct ConvShared {
    alignas(16) uint8_t x[conv_pixels * 32], w[9 * TD_CONV_OUTS * 32];
};
static_assert(sizeof(ConvShared) == TD_CONV_SHARED_BYTES && sizeof(ConvShared) <= 47 * 1024,
              "what plans ask for; no more than a block has in a command buffer");

/* What a block computes. */
struct ConvPart {
    const td_params_conv &p;
    int64_t batch;
    int first_row, first_column, first_out, outs;
    int width, pixels, total; /* of the pixels it needs; channels of all */

    __device__ __forceinline__ explicit ConvPart(const td_params_conv &params) : p(params)
    {
        const uint32_t tiles = (p.outs + TD_CONV_OUTS - 1) / TD_CONV_OUTS, place = blockIdx.x / tiles;

        batch = place / p.columns / p.rows;
        first_row = int(place / p.columns % p.rows * TD_CONV_HEIGHT);
        first_column = int(place % p.columns * TD_CONV_WIDTH);
        first_out = int(blockIdx.x % tiles * TD_CONV_OUTS);
        outs = min(int(TD_CONV_OUTS), int(p.outs) - first_out);
        width = int(TD_CONV_WIDTH - 1) * p.stride + p.size;
        pixels = width * (int(TD_CONV_HEIGHT - 1) * p.stride + p.size);
        total = int(p.channels + p.coarse_channels);
    }

    /* Sixteen channels from `channel` on, of x and coarse together. */
    __device__ __forceinline__ void load(ConvShared &shared, int channel) const
    {
        const bool is_coarse = channel >= int(p.channels);
        const int top = first_row * p.stride - p.size / 2, left = first_column * p.stride - p.size / 2;
        const uint32_t to_x = shared_address(shared.x), to_w = shared_address(shared.w);

        for (int i = int(threadIdx.x); i < 2 * pixels; i += int(TD_BLOCK_THREADS)) {
            const int pixel = i / 2, y = top + pixel / width, x = left + pixel % width;
            const bool exists = y >= 0 && x >= 0 && y < int(p.height) && x < int(p.width);
            const __half *from = static_cast<const __half *>(p.x);

            if (exists && is_coarse)
                from = static_cast<const __half *>(p.coarse) + row_at(p.coarse_at, batch, y / 2, x / 2) + (channel - int(p.channels)) + i % 2 * 8;
            else if (exists)
                from += row_at(p.x_at, batch, y, x) + channel + i % 2 * 8;
            cp_async_16_or_zero(to_x + i * 16, from, exists ? 16 : 0);
        }
        const int rows = p.size * p.size * int(TD_CONV_OUTS);

        for (int i = int(threadIdx.x); i < 2 * rows; i += int(TD_BLOCK_THREADS)) {
            const int tap = i / 2 / int(TD_CONV_OUTS), out = i / 2 % int(TD_CONV_OUTS);
            const bool exists = out < outs;
            const __half *from = static_cast<const __half *>(p.w);

            if (exists)
                from += (first_out + out) * p.w_stride + tap * total + channel + i % 2 * 8;
            cp_async_16_or_zero(to_w + i * 16, from, exists ? 16 : 0);
        }
        cp_async_commit();
    }

    __device__ __forceinline__ void multiply(const ConvShared &shared, float (&c)[2][8][4]) const
    {
        const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, size = p.size, step = p.stride;

#pragma unroll 1
        for (int tap = 0; tap < size * size; tap++) {
            const uint8_t *x = shared.x + ((2 * warp * step + tap / size) * width + lane / 4 * step + tap % size) * 32 + lane % 4 * 8;
            const uint8_t *w = shared.w + (tap * int(TD_CONV_OUTS) + lane / 4) * 32 + lane % 4 * 8;
            uint32_t a[2][4];

#pragma unroll
            for (int m = 0; m < 2; m++) {
                const uint2 low = *reinterpret_cast<const uint2 *>(x + m * step * width * 32);
                const uint2 high = *reinterpret_cast<const uint2 *>(x + (m * step * width + 8 * step) * 32);

                a[m][0] = low.x, a[m][1] = high.x, a[m][2] = low.y, a[m][3] = high.y;
            }
#pragma unroll
            for (int n = 0; n < 8; n++)
                if (n * 8 < outs) {
                    const uint2 b = *reinterpret_cast<const uint2 *>(w + n * 8 * 32);

#pragma unroll
                    for (int m = 0; m < 2; m++)
                        mma_f16(c[m][n], a[m], b.x, b.y);
                }
        }
    }

    __device__ __forceinline__ void write(const float (&c)[2][8][4]) const
    {
        const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, each = int(p.outs) / (p.shuffle * p.shuffle);

#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int out = first_out + n * 8 + lane % 4 * 2, quarter = out / each;

            if (n * 8 >= outs)
                continue;
            const float bias0 = p.bias ? p.bias[out] : 0.0f, bias1 = p.bias ? p.bias[out + 1] : 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = first_row + 2 * warp + i / 2, column = first_column + lane / 4 + i % 2 * 8;
                float sum0 = c[i / 2][n][i % 2 * 2] + bias0, sum1 = c[i / 2][n][i % 2 * 2 + 1] + bias1;

                if (row >= int(p.out_height) || column >= int(p.out_width))
                    continue;
                const int64_t at = row_at(p.y_at, batch, row * p.shuffle + quarter / 2, column * p.shuffle + quarter % 2) + out % each;

                sum0 = p.relu && sum0 < 0 ? 0.0f : sum0;
                sum1 = p.relu && sum1 < 0 ? 0.0f : sum1;
                if (p.y_dtype == TANDEM_DTYPE_F32)
                    *reinterpret_cast<float2 *>(static_cast<float *>(p.y) + at) = make_float2(sum0, sum1);
                else
                    *reinterpret_cast<uint32_t *>(static_cast<__half *>(p.y) + at) = cvt_f16x2(sum1, sum0);
            }
        }
    }
};

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS) conv(const __grid_constant__ td_params_conv p)
{
    TD_DYNAMIC_SHARED(16, conv_bytes);
    td::ConvShared &shared = *reinterpret_cast<td::ConvShared *>(conv_bytes);
    float c[2][8][4] = {};

    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
    const td::ConvPart part(p);

#pragma unroll 1
    for (int channel = 0; channel < part.total; channel += int(TD_CONV_CHUNK)) {
        if (channel)
            __syncthreads(); /* nobody reads the last ones any more */
        part.load(shared, channel);
        td::cp_async_wait<0>();
        __syncthreads();
        part.multiply(shared, c);
    }
    part.write(c);
}
