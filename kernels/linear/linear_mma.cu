/* y = finish(x w^T) by mma.sync: any weights, any strides, every GPU from sm_80 on. `linear_mma`.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has 128 rows of x and 128 of w; its eight warps have 64 x 32 each. Two stages of 32 channels: while one is multiplied,
 * the next is on its way, by cp.async where rows are aligned, else through registers. Weights that are not dense become dense
 * on their way into shared memory. Rows there are padded to 80 bytes, so that ldmatrix meets no bank twice.
 */
#include "kernels/linear/weights.cuh"

namespace td {

struct LinearMmaShared {
    static constexpr int stride = 80; /* bytes of a row */
    struct {
        alignas(16) uint8_t x[128 * stride], w[128 * stride];
    } stage[2];
};
static_assert(sizeof(LinearMmaShared) == TD_LINEAR_MMA_SHARED_BYTES && sizeof(LinearMmaShared) <= 47 * 1024,
              "what plans ask for; no more than a block has in a command buffer");

/* Eight neighbours of a row, from channel `k` on, to shared memory; zeros where there are none. */
__device__ __forceinline__ void linear_copy8(uint8_t *to, const uint16_t *row, uint32_t k, uint32_t ins, bool exists, bool wide)
{
    if (wide) {
        cp_async_16_or_zero(shared_address(to), row + (exists && k < ins ? k : 0), exists && k < ins ? 16 : 0);
        return;
    }
    uint32_t words[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t at = k + 2 * i;

        words[i] = exists && at < ins ? __ldg(row + at) : 0;
        words[i] |= exists && at + 1 < ins ? uint32_t(__ldg(row + at + 1)) << 16 : 0;
    }
    *reinterpret_cast<uint4 *>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

template <int Weights, bool Bf16> __device__ __forceinline__ void linear_mma_tile(const td_params_linear &p)
{
    using W = LinearWeights<Weights>;
    constexpr int stride = LinearMmaShared::stride;
    constexpr bool dense = Weights == TD_LINEAR_DENSE;
    TD_DYNAMIC_SHARED(16, linear_mma_bytes);
    LinearMmaShared &shared = *reinterpret_cast<LinearMmaShared *>(linear_mma_bytes);
    const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const uint32_t w_rows = p.gate ? 2 * p.outs : p.outs, steps = (p.ins + 31) / 32;
    const uint32_t column_tiles = (w_rows + 127) / 128, row_tile = blockIdx.x / column_tiles;
    const uint32_t column_tile = blockIdx.x - row_tile * column_tiles;
    const bool x_wide = uint64_t(p.x) % 16 == 0 && p.x_stride % 8 == 0 && p.ins % 8 == 0;
    const bool w_wide = uint64_t(p.w) % 16 == 0 && p.w_stride % 16 == 0 && p.ins % 8 == 0;
    /* This thread's pieces of eight channels: of two rows, and the same in each step. */
    const int piece = thread % 4, first = thread / 4;
    const uint16_t *x[2];
    const uint8_t *w[2];
    bool x_exists[2], w_exists[2];
    float c[4][16];

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t in = first + 64 * i, x_row = row_tile * 128 + in, sub = 4 * column_tile + in / 32;
        const uint32_t w_row = p.gate == TANDEM_GATE_HALVES ? sub * 16 + in % 16 + (in % 32 < 16 ? 0 : p.outs) : sub * 32 + in % 32;

        x_exists[i] = x_row < p.rows;
        w_exists[i] = w_row < w_rows;
        x[i] = static_cast<const uint16_t *>(p.x) + (x_exists[i] ? x_row * p.x_stride : 0);
        w[i] = static_cast<const uint8_t *>(p.w) + (w_exists[i] ? w_row * p.w_stride : 0);
    }
#pragma unroll
    for (int i = 0; i < 64; i++)
        c[i / 16][i % 16] = 0.0f;

    uint32_t raw[2][W::words];
    const auto start = [&](uint32_t step) {
        auto &to = shared.stage[step % 2];

#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = (first + 64 * i) * stride + piece * 16;

            linear_copy8(to.x + at, x[i], 32 * step + 8 * piece, p.ins, x_exists[i], x_wide);
            if constexpr (dense)
                linear_copy8(to.w + at, reinterpret_cast<const uint16_t *>(w[i]), 32 * step + 8 * piece, p.ins, w_exists[i],
                             w_wide);
            else
                W::load(raw[i], w[i], step / W::groups, piece,
                        w_exists[i] && 32 * step + (Weights == TD_LINEAR_INT8 ? 8 * piece : 0) < p.ins);
        }
        cp_async_commit();
    };
    const auto finish = [&](uint32_t step) {
        if constexpr (!dense) {
            auto &to = shared.stage[step % 2];

#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint8_t *row = to.w + (first + 64 * i) * stride;
                uint32_t words[4];

#pragma unroll
                for (int group = 0; group < W::groups; group++)
                    if (group == int(step % W::groups))
                        W::template get<Bf16>(words, raw[i], group);
                if constexpr (W::apart) {
                    *reinterpret_cast<uint2 *>(row + piece * 8) = make_uint2(words[0], words[1]);
                    *reinterpret_cast<uint2 *>(row + 32 + piece * 8) = make_uint2(words[2], words[3]);
                } else {
                    *reinterpret_cast<uint4 *>(row + piece * 16) = make_uint4(words[0], words[1], words[2], words[3]);
                }
            }
        }
        cp_async_wait<0>();
        __syncthreads();
    };
    const int row0 = warp / 4 * 64, column0 = warp % 4 * 32;
    const uint32_t x_lane = (row0 + lane % 16) * stride + lane / 16 * 16;
    const uint32_t w_lane = (column0 + lane % 8) * stride + lane / 8 * 16;

    start(0);
    finish(0);
#pragma unroll 1
    for (uint32_t step = 0; step < steps; step++) {
        const uint32_t x_at = shared_address(shared.stage[step % 2].x) + x_lane;
        const uint32_t w_at = shared_address(shared.stage[step % 2].w) + w_lane;
        uint32_t b[4][4];

        if (step + 1 < steps)
            start(step + 1);
#pragma unroll
        for (int n = 0; n < 4; n++)
            ldmatrix_x4(b[n], w_at + n * (8 * stride));
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int m = 0; m < 4; m++) {
                uint32_t a[4];

                ldmatrix_x4(a, x_at + m * (16 * stride) + k * 32);
#pragma unroll
                for (int n = 0; n < 4; n++)
                    linear_mma<Bf16>(reinterpret_cast<float(&)[4]>(c[m][4 * n]), a, b[n][2 * k], b[n][2 * k + 1]);
            }
        if (step + 1 < steps)
            finish(step + 1);
    }
#pragma unroll 1
    for (int m = 0; m < 4; m++) { /* one copy of the code that writes */
        float sums[16];

#pragma unroll
        for (int i = 0; i < 64; i++)
            if (i / 16 == m)
                sums[i % 16] = c[i / 16][i % 16];
        LinearOut<32>::write(p, sums, row_tile * 128 + row0 + 16 * m, column_tile * 4 + warp % 4);
    }
}

} // namespace td

#define TD_LINEAR_MMA(type, bf16, name, weights)                              \
    extern "C" __global__ void __launch_bounds__(256, 1) \
        linear_##type##_mma_##name(const __grid_constant__ td_params_linear p) \
    {                                                                         \
        td::wait_for_previous();                                              \
        if (!td::cancelled(p.cancel))                                         \
            td::linear_mma_tile<weights, bf16>(p);                            \
    }
#define TD_LINEAR_MMA_TYPES(name, weights)      \
    TD_LINEAR_MMA(f16, false, name, weights)    \
    TD_LINEAR_MMA(bf16, true, name, weights)
TD_LINEAR_MMA_TYPES(dense, TD_LINEAR_DENSE)
TD_LINEAR_MMA_TYPES(int8, TD_LINEAR_INT8)
TD_LINEAR_MMA_TYPES(q8_0, TD_LINEAR_Q8_0)
TD_LINEAR_MMA_TYPES(q4_0, TD_LINEAR_Q4_0)
TD_LINEAR_MMA_TYPES(q4_1, TD_LINEAR_Q4_1)
TD_LINEAR_MMA_TYPES(q4_k, TD_LINEAR_Q4_K)
TD_LINEAR_MMA_TYPES(q6_k, TD_LINEAR_Q6_K)
TD_LINEAR_MMA_TYPES(q5_k, TD_LINEAR_Q5_K)
