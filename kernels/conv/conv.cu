/* Convolutions of images by mma.sync: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A product of matrices whose rows are pixels, 16 neighbours of a row by a tile of the instruction, and whose columns are outputs;
 * its sum runs over the window's pixels and channels. Sixteen channels at a time, of the pixels that a block needs and of its
 * weights, come into shared memory, 32 bytes a pixel and a weight's row. Which of them is which of the instruction's k is the same
 * for both, so a thread takes four neighbours in one load, and no bank is met twice.
 *
 * Where pixels are is found once: to find it again for every sixteen channels took longer than what is computed with them.
 */
#include "kernels/conv/params.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor.cuh"

namespace td {

static_assert(TD_CONV_SHARED(3, 2, TD_CONV_OUTS, 1) <= 47 * 1024, "no more than a block has in a command buffer");
static_assert(2 * TD_CONV_OUTS <= TD_BLOCK_THREADS, "a thread has half a row of 16 weights");

/* What a block computes. */
struct ConvPart {
    const td_params_conv &p;
    int64_t batch;
    int first_row, first_column, first_out, outs;
    int width, pixels, total; /* of the pixels it needs; channels of all */
    uint8_t *x, *w;           /* in shared memory: [pixels][16], [size * size][tile][16], */
    int *places;              /* [2][pixels]: in x and in coarse, in octets of channels; -1: in none */

    __device__ __forceinline__ ConvPart(const td_params_conv &params, uint8_t *shared) : p(params)
    {
        const uint32_t place = blockIdx.x / p.tiles;

        batch = place / p.columns / p.rows;
        first_row = int(place / p.columns % p.rows * TD_CONV_HEIGHT);
        first_column = int(place % p.columns * TD_CONV_WIDTH);
        first_out = int(blockIdx.x % p.tiles * p.tile);
        outs = min(int(p.tile), int(p.outs) - first_out);
        width = int(TD_CONV_WIDTH - 1) * p.stride + p.size;
        pixels = width * (int(TD_CONV_HEIGHT - 1) * p.stride + p.size);
        total = int(p.channels + p.coarse_channels);
        x = shared;
        w = x + pixels * 32;
        places = reinterpret_cast<int *>(w + p.size * p.size * int(p.tile) * 32);
    }

    __device__ __forceinline__ void find_pixels() const
    {
        const int top = first_row * p.stride - p.size / 2, left = first_column * p.stride - p.size / 2;

        for (int i = int(threadIdx.x); i < pixels; i += int(TD_BLOCK_THREADS)) {
            const int row = top + i / width, column = left + i % width;
            const bool exists = row >= 0 && column >= 0 && row < int(p.height) && column < int(p.width);

            places[i] = exists ? int(row_at(p.x_at, 0, row, column) / 8) : -1;
            if (p.coarse_channels)
                places[pixels + i] = exists ? int(row_at(p.coarse_at, 0, row / 2, column / 2) / 8) : -1;
        }
    }

    /* Sixteen channels from `channel` on, of x and coarse together. */
    __device__ __forceinline__ void load(int channel) const
    {
        const bool is_coarse = channel >= int(p.channels);
        const int half = int(threadIdx.x) % 2 * 8, out = int(threadIdx.x) / 2, *const at = places + (is_coarse ? pixels : 0);
        const __half *const image = is_coarse ? static_cast<const __half *>(p.coarse) + row_at(p.coarse_at, batch, 0, 0) + (channel - int(p.channels)) + half
                                              : static_cast<const __half *>(p.x) + row_at(p.x_at, batch, 0, 0) + channel + half;
        const __half *weights = static_cast<const __half *>(p.w) + (first_out + min(out, outs - 1)) * p.w_stride + channel + half;
        uint32_t to_x = shared_address(x) + threadIdx.x * 16, to_w = shared_address(w) + threadIdx.x * 16;

        for (int i = int(threadIdx.x); i < 2 * pixels; i += int(TD_BLOCK_THREADS), to_x += TD_BLOCK_THREADS * 16) {
            const int place = at[i / 2];

            cp_async_16_or_zero(to_x, image + int64_t(max(place, 0)) * 8, place < 0 ? 0 : 16);
        }
        if (out < int(p.tile))
            for (int tap = p.size * p.size; tap > 0; tap--, weights += total, to_w += p.tile * 32)
                cp_async_16_or_zero(to_w, weights, out < outs ? 16 : 0);
        cp_async_commit();
    }

    __device__ __forceinline__ void multiply(float (&c)[2][8][4]) const
    {
        const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, size = p.size, step = p.stride;
        const uint8_t *row = x + (2 * warp * step * width + lane / 4 * step) * 32 + lane % 4 * 8, *weights = w + lane * 8;

#pragma unroll 1
        for (int i = 0; i < size; i++, row += width * 32) {
            const uint8_t *pixel = row;

#pragma unroll 1
            for (int j = 0; j < size; j++, pixel += 32, weights += p.tile * 32) {
                uint32_t a[2][4];

#pragma unroll
                for (int m = 0; m < 2; m++) {
                    const uint2 low = *reinterpret_cast<const uint2 *>(pixel + m * step * width * 32);
                    const uint2 high = *reinterpret_cast<const uint2 *>(pixel + (m * step * width + 8 * step) * 32);

                    a[m][0] = low.x, a[m][1] = high.x, a[m][2] = low.y, a[m][3] = high.y;
                }
#pragma unroll
                for (int n = 0; n < 8; n++)
                    if (n * 8 < outs) {
                        const uint2 b = *reinterpret_cast<const uint2 *>(weights + n * 8 * 32);

#pragma unroll
                        for (int m = 0; m < 2; m++)
                            mma_f16(c[m][n], a[m], b.x, b.y);
                    }
            }
        }
    }

    __device__ __forceinline__ void write(const float (&c)[2][8][4]) const
    {
        const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, each = int(p.outs) / (p.shuffle * p.shuffle);
        const int row = first_row + 2 * warp, column = first_column + lane / 4;
        int quarter = first_out / each, of = first_out % each; /* of a shuffle: eight neighbours are of one */
        int64_t at[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            at[i] = row_at(p.y_at, batch, (row + i / 2) * p.shuffle, (column + i % 2 * 8) * p.shuffle) + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (n * 8 >= outs)
                continue;
            const int out = first_out + n * 8 + lane % 4 * 2;
            const float bias0 = p.bias ? p.bias[out] : 0.0f, bias1 = p.bias ? p.bias[out + 1] : 0.0f;
            const int64_t shuffled = row_at(p.y_at, 0, quarter / 2, quarter % 2) + of;

#pragma unroll
            for (int i = 0; i < 4; i++) {
                float sum0 = c[i / 2][n][i % 2 * 2] + bias0, sum1 = c[i / 2][n][i % 2 * 2 + 1] + bias1;

                if (row + i / 2 >= int(p.out_height) || column + i % 2 * 8 >= int(p.out_width))
                    continue;
                sum0 = p.relu && sum0 < 0 ? 0.0f : sum0;
                sum1 = p.relu && sum1 < 0 ? 0.0f : sum1;
                if (p.y_dtype == TANDEM_DTYPE_F32)
                    *reinterpret_cast<float2 *>(static_cast<float *>(p.y) + at[i] + shuffled) = make_float2(sum0, sum1);
                else
                    *reinterpret_cast<uint32_t *>(static_cast<__half *>(p.y) + at[i] + shuffled) = cvt_f16x2(sum1, sum0);
            }
            of += 8;
            if (of == each)
                of = 0, quarter++;
        }
    }
};

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS) conv(const __grid_constant__ td_params_conv p)
{
    TD_DYNAMIC_SHARED(16, conv_bytes);
    float c[2][8][4] = {};

    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel))
        return;
    const td::ConvPart part(p, conv_bytes);

    part.find_pixels();
    __syncthreads();
#pragma unroll 1
    for (int channel = 0; channel < part.total; channel += int(TD_CONV_CHUNK)) {
        if (channel)
            __syncthreads(); /* nobody reads the last ones any more */
        part.load(channel);
        td::cp_async_wait<0>();
        __syncthreads();
        part.multiply(c);
    }
    part.write(c);
}
