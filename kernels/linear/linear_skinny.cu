/* y = finish(x w^T) for up to 64 rows of x and dense weights, bound by how fast these are read: `linear_skinny`, by mma.sync.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Rows of w are mma's 16 rows, rows of x its 8 columns. A block has `tiles` times 16 rows of w; its warps share the channels, and
 * products do not care which channels of a step are called which. At the end the warps' sums are added up in shared memory, in the
 * order of warps.
 *
 * Weights go straight into registers: of eight, warp i takes steps i, i + 8 ..., so that together they read long runs of each row, a
 * thread eight neighbouring channels. A warp has nothing under way while it multiplies: for 9 to 32 rows there are twice as many. Where
 * nobody writes w, its first steps are loaded before the kernel ahead is over.
 */
#include "kernels/linear/weights.cuh"

namespace td {

/* Eight channels, if they are there. */
__device__ __forceinline__ void linear_load8(uint32_t (&x)[4], const uint16_t *p, bool there)
{
    uint4 all = make_uint4(0, 0, 0, 0);

    if (there)
        all = __ldg(reinterpret_cast<const uint4 *>(p));
    x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
}

/* Tiles of 16 rows of w, of 8 rows of x. */
template <int Tiles, int Columns, bool Bf16> struct LinearSkinny {
    static constexpr int channels = 32; /* of a step */
    static constexpr int rows = 16 * Tiles, columns = 8 * Columns, sum_stride = rows + 4; /* floats */
    static constexpr int warps = TD_LINEAR_SKINNY_WARPS(Columns), threads = 32 * warps;
    static constexpr int elements = 4 * Tiles * Columns, together = elements < 16 ? elements : 16; /* a thread's sums */

    struct Sums {
        float parts[warps][together * 32], sums[columns * sum_stride];
    };

    /* With a gate by halves the first half of the rows is of the first half of w. Rows that do not exist are the last one. */
    __device__ __forceinline__ static const uint16_t *w_row(const td_params_linear &p, uint32_t row)
    {
        const uint32_t w_rows = p.gate ? 2 * p.outs : p.outs;
        const uint32_t at = p.gate == TANDEM_GATE_HALVES
                                ? blockIdx.x * (rows / 2) + row % (rows / 2) + (row < rows / 2 ? 0 : p.outs)
                                : blockIdx.x * rows + row;

        return reinterpret_cast<const uint16_t *>(static_cast<const uint8_t *>(p.w) + min(at, w_rows - 1) * p.w_stride);
    }

    /* A step's products, from channel k on. */
    __device__ __forceinline__ static void multiply(const td_params_linear &p, float (&c)[Tiles][Columns][4],
                                                    const uint32_t (&a)[Tiles][2][4], uint32_t k)
    {
        const int lane = int(threadIdx.x % 32), g = lane / 4, q = lane % 4;

#pragma unroll
        for (int column = 0; column < Columns; column++) {
            const uint32_t row = 8 * column + g;
            uint32_t x[4];

            linear_load8(x, static_cast<const uint16_t *>(p.x) + row * p.x_stride + k + 8 * q, row < p.rows && k + 8 * q < p.ins);
#pragma unroll
            for (int t = 0; t < Tiles; t++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint32_t fragment[4] = {a[t][0][2 * half], a[t][1][2 * half], a[t][0][2 * half + 1], a[t][1][2 * half + 1]};

                    linear_mma<Bf16>(c[t][column], fragment, x[2 * half], x[2 * half + 1]);
                }
        }
    }

    /* Some steps at a time, the first ones, where nobody writes w, from before the kernel ahead is over. */
    __device__ __forceinline__ static void sum(const td_params_linear &p, float (&c)[Tiles][Columns][4])
    {
        constexpr int unroll = Tiles > 1 ? 2 : Columns > 1 ? 4 : 8;
        const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32), g = lane / 4, q = lane % 4;
        const uint32_t steps = (p.ins + channels - 1) / channels;
        const uint16_t *w[Tiles][2];
        uint32_t a[unroll][Tiles][2][4];
        const auto load = [&](uint32_t first) {
#pragma unroll
            for (int u = 0; u < unroll; u++) {
                const uint32_t k = (first + u * warps) * channels;

#pragma unroll
                for (int i = 0; i < 2 * Tiles; i++)
                    linear_load8(a[u][i / 2][i % 2], w[i / 2][i % 2] + k, k + 8 * q < p.ins);
            }
        };

#pragma unroll
        for (int i = 0; i < 2 * Tiles; i++)
            w[i / 2][i % 2] = w_row(p, 8 * i + g) + 8 * q;
        if (!p.w_is_constant)
            wait_for_previous();
        load(warp);
        if (p.w_is_constant)
            wait_for_previous();
        launch_dependents();
#pragma unroll 1
        for (uint32_t first = warp; first < steps;) {
#pragma unroll
            for (int u = 0; u < unroll; u++)
                multiply(p, c, a[u], (first + u * warps) * channels);
            first += warps * unroll;
            if (first < steps)
                load(first);
        }
    }
};

template <int Tiles, int Columns, bool Bf16> __device__ __forceinline__ void linear_skinny(const td_params_linear &p)
{
    using S = LinearSkinny<Tiles, Columns, Bf16>;
    constexpr int rows = S::rows, columns = S::columns, stride = S::sum_stride, warps = S::warps, threads = S::threads;
    constexpr int elements = S::elements, together = S::together;
    __shared__ __align__(16) uint8_t shared[sizeof(typename S::Sums)];
    auto &parts = reinterpret_cast<typename S::Sums *>(shared)->parts;
    auto &sums = reinterpret_cast<typename S::Sums *>(shared)->sums;
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
    float c[Tiles][Columns][4] = {};

    S::sum(p, c);
    if (cancelled(p.cancel))
        return;
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

#define TD_LINEAR_SKINNY(type, bf16, tiles, columns)                                                            \
    extern "C" __global__ void __launch_bounds__(32 * TD_LINEAR_SKINNY_WARPS(columns), (columns) == 1 ? 2 : 1)  \
        linear_##type##_skinny_dense_##columns(const __grid_constant__ td_params_linear p)                      \
    {                                                                                                           \
        td::linear_skinny<tiles, columns, bf16>(p);                                                             \
    }
#define TD_LINEAR_SKINNY_TYPES(tiles, columns)     \
    TD_LINEAR_SKINNY(f16, false, tiles, columns)   \
    TD_LINEAR_SKINNY(bf16, true, tiles, columns)
TD_LINEAR_SKINNY_TYPES(1, 1)
TD_LINEAR_SKINNY_TYPES(2, 2)
TD_LINEAR_SKINNY_TYPES(2, 4)
TD_LINEAR_SKINNY_TYPES(2, 8)
