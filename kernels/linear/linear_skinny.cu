/* y = finish(x w^T) for up to 64 rows of x: bound by how fast w is read. `linear_skinny`, by mma.sync.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Rows of w are mma's 16 rows, rows of x its 8 columns. A block has `tiles` times 16 rows of w; its warps share the channels: of
 * eight, warp i takes steps i, i + 8 ..., so that together they read long runs of each row. No shared memory on the way: a thread
 * loads eight neighbouring channels of w and x, and products do not care which channels of a step are called which. A warp has
 * nothing under way while it multiplies: dense ones have twice as many where they do both. At the end the warps' sums are added
 * up in shared memory, in the order of warps.
 */
#include "kernels/linear/weights.cuh"

namespace td {

/* Eight channels of a row of x in the order of a thread's weights. */
template <bool Apart>
__device__ __forceinline__ void linear_load_x(uint32_t (&x)[4], const uint16_t *group, int q, bool there)
{
    uint2 low = make_uint2(0, 0), high = low;

    if (there && Apart) {
        low = __ldg(reinterpret_cast<const uint2 *>(group + 4 * q));
        high = __ldg(reinterpret_cast<const uint2 *>(group + 16 + 4 * q));
    } else if (there) {
        const uint4 all = __ldg(reinterpret_cast<const uint4 *>(group + 8 * q));

        low = make_uint2(all.x, all.y), high = make_uint2(all.z, all.w);
    }
    x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
}

/* Tiles of 16 rows of w, of 8 rows of x. */
template <int Weights, int Tiles, int Columns, bool Bf16>
__device__ __forceinline__ void linear_skinny(const td_params_linear &p)
{
    using W = LinearWeights<Weights>;
    constexpr int rows = 16 * Tiles, columns = 8 * Columns, stride = rows + 4; /* floats */
    constexpr int warps = TD_LINEAR_SKINNY_WARPS(Weights, Columns), threads = 32 * warps;
    constexpr int elements = 4 * Tiles * Columns, together = elements < 16 ? elements : 16; /* a thread's sums */
    constexpr int unroll = W::words * Tiles > 8 ? 1 : W::words * Tiles > 4 ? 2 : Columns > 1 ? 4 : 8;
    __shared__ __align__(16) float parts[warps][together * 32], sums[columns * stride];
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32), g = lane / 4, q = lane % 4;
    const uint32_t w_rows = p.gate ? 2 * p.outs : p.outs, steps = (p.ins + W::channels - 1) / W::channels;
    /* With a gate by halves the first half of the rows is of the first half of w. */
    const auto w_row = [&](int row) {
        return p.gate == TANDEM_GATE_HALVES
                   ? blockIdx.x * (rows / 2) + row % (rows / 2) + (row < rows / 2 ? 0 : p.outs)
                   : blockIdx.x * rows + row;
    };
    const uint8_t *w[Tiles][2];
    float c[Tiles][Columns][4];

#pragma unroll
    for (int t = 0; t < Tiles; t++) {
#pragma unroll
        for (int i = 0; i < 2; i++) /* rows that do not exist are the last one */
            w[t][i] = static_cast<const uint8_t *>(p.w) + min(w_row(16 * t + 8 * i + g), w_rows - 1) * p.w_stride;
#pragma unroll
        for (int i = 0; i < 4 * Columns; i++)
            c[t][i / 4][i % 4] = 0.0f;
    }
#pragma unroll 1
    for (uint32_t first = warp; first < steps; first += warps * unroll) {
        uint32_t raw[unroll][Tiles][2][W::words];

#pragma unroll
        for (int u = 0; u < unroll; u++) {
            const uint32_t step = first + u * warps;
            const bool there = step * W::channels + (W::channels == 32 && !W::apart ? 8 * q : 0) < p.ins;

#pragma unroll
            for (int t = 0; t < Tiles; t++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    W::load(raw[u][t][i], w[t][i], step, q, there);
        }
#pragma unroll
        for (int u = 0; u < unroll; u++)
#pragma unroll
            for (int group = 0; group < W::groups; group++) {
                const uint32_t k = (first + u * warps) * W::channels + 32 * group;
                uint32_t a[Tiles][2][4];

#pragma unroll
                for (int t = 0; t < Tiles; t++) {
                    W::template get<Bf16>(a[t][0], raw[u][t][0], group);
                    W::template get<Bf16>(a[t][1], raw[u][t][1], group);
                }
#pragma unroll
                for (int column = 0; column < Columns; column++) {
                    const uint32_t row = 8 * column + g;
                    uint32_t x[4];

                    linear_load_x<W::apart>(x, static_cast<const uint16_t *>(p.x) + row * p.x_stride + k, q,
                                            row < p.rows && k + (W::apart ? 0 : 8 * q) < p.ins);
#pragma unroll
                    for (int t = 0; t < Tiles; t++)
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            const uint32_t fragment[4] = {a[t][0][2 * half], a[t][1][2 * half], a[t][0][2 * half + 1],
                                                          a[t][1][2 * half + 1]};

                            linear_mma<Bf16>(c[t][column], fragment, x[2 * half], x[2 * half + 1]);
                        }
                }
            }
    }
    /* Some sums of a thread at a time: each warp puts its own, then each thread adds up one of all warps. */
#pragma unroll
    for (int begin = 0; begin < elements; begin += together) {
#pragma unroll
        for (int i = 0; i < together; i += 4) {
            const float(&four)[4] = c[(begin + i) / 4 / Columns][(begin + i) / 4 % Columns];

            reinterpret_cast<float4 *>(parts[warp])[i * 8 + lane] = make_float4(four[0], four[1], four[2], four[3]);
        }
        __syncthreads();
        for (int i = int(threadIdx.x); i < together * 32; i += threads) {
            const int of = begin / 4 + i / 128, from = i / 4 % 32; /* which four sums, of which lane */
            float sum = parts[0][i];

#pragma unroll
            for (int other = 1; other < warps; other++)
                sum += parts[other][i];
            sums[(of % Columns * 8 + from % 4 * 2 + i % 2) * stride + of / Columns * 16 + i % 4 / 2 * 8 + from / 4] = sum;
        }
        __syncthreads();
    }
    const int across = p.gate ? rows / 16 : rows / 8; /* octets of y's columns */
    for (int i = int(threadIdx.x); i < columns * across; i += threads) {
        const int row = i / across, octet = i % across;
        const float *at = sums + row * stride;
        float a[8], b[8];

        if (p.gate == TANDEM_GATE_PAIRS) {
            float x[8], y[8];

            linear_get8(x, at + 16 * octet);
            linear_get8(y, at + 16 * octet + 8);
            linear_unzip(a, b, x, y);
        } else {
            linear_get8(a, at + 8 * octet);
            linear_get8(b, at + (p.gate ? rows / 2 : 0) + 8 * octet);
        }
        linear_finish(p, row, (blockIdx.x * across + octet) * 8, a, b);
    }
}

} // namespace td

#define TD_LINEAR_SKINNY(type, bf16, name, weights, tiles, columns)                                     \
    extern "C" __global__ void __launch_bounds__(32 * TD_LINEAR_SKINNY_WARPS(weights, columns), 1)      \
        linear_##type##_skinny_##name##_##columns(const __grid_constant__ td_params_linear p)           \
    {                                                                                                   \
        td::wait_for_previous();                                                                        \
        if (!td::cancelled(p.cancel))                                                                   \
            td::linear_skinny<weights, tiles, columns, bf16>(p);                                        \
    }
#define TD_LINEAR_SKINNY_COLUMNS(type, bf16, name, weights)     \
    TD_LINEAR_SKINNY(type, bf16, name, weights, 1, 1)           \
    TD_LINEAR_SKINNY(type, bf16, name, weights, 2, 2)           \
    TD_LINEAR_SKINNY(type, bf16, name, weights, 2, 4)           \
    TD_LINEAR_SKINNY(type, bf16, name, weights, 2, 8)
#define TD_LINEAR_SKINNY_TYPES(name, weights)               \
    TD_LINEAR_SKINNY_COLUMNS(f16, false, name, weights)     \
    TD_LINEAR_SKINNY_COLUMNS(bf16, true, name, weights)
TD_LINEAR_SKINNY_TYPES(dense, TD_LINEAR_DENSE)
TD_LINEAR_SKINNY_TYPES(int8, TD_LINEAR_INT8)
TD_LINEAR_SKINNY_TYPES(q8_0, TD_LINEAR_Q8_0)
TD_LINEAR_SKINNY_TYPES(q4_0, TD_LINEAR_Q4_0)
TD_LINEAR_SKINNY_TYPES(q4_1, TD_LINEAR_Q4_1)
TD_LINEAR_SKINNY_TYPES(q4_k, TD_LINEAR_Q4_K)
TD_LINEAR_SKINNY_TYPES(q6_k, TD_LINEAR_Q6_K)
