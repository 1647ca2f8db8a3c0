/* The end of kernels for few rows of x, whose warps share tiles of 16 rows of w: warps' sums are added up, and finished.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A tile of 16 rows of w has `tile_warps` warps of a block, which take parts of its channels; their sums are added up in shared memory
 * in the order of warps. So a row of y has the same bits however many other rows there are.
 */
#pragma once

#include "kernels/linear/epilogue.cuh"

namespace td {

/* The usual case of float32 rows, which are but added to: four columns a thread, so that a warp writes long runs of them, as memory of
 * the host's across PCIe wants it, and more threads wait for what they read. */
struct LinearQuads {
    __device__ __forceinline__ static bool suffices(const td_params_linear &p)
    {
        const uint64_t aligned = uint64_t(p.y) | uint64_t(p.residual) | uint64_t(p.y_stride | p.residual_stride) * 4;

        return p.y_dtype == TANDEM_DTYPE_F32 && !p.gate && !p.rotation && !p.activation && !p.scale && !p.bias && p.outs % 4 == 0 &&
               aligned % 16 == 0 && (!p.residual || p.residual_dtype == TANDEM_DTYPE_F32);
    }
    /* The residual of four columns. */
    __device__ __forceinline__ static void load(const td_params_linear &p, uint32_t row, uint32_t column, float (&residual)[8])
    {
        float4 x = make_float4(0, 0, 0, 0);

        if (p.residual && column < p.outs)
            x = *reinterpret_cast<const float4 *>(static_cast<const float *>(p.residual) + row * p.residual_stride + column);
        residual[0] = x.x, residual[1] = x.y, residual[2] = x.z, residual[3] = x.w;
    }
    __device__ __forceinline__ static void store(const td_params_linear &p, uint32_t row, uint32_t column, float4 sum, const float (&residual)[8])
    {
        if (p.residual)
            sum = make_float4(sum.x + residual[0], sum.y + residual[1], sum.z + residual[2], sum.w + residual[3]);
        if (column < p.outs)
            *reinterpret_cast<float4 *>(static_cast<float *>(p.y) + row * p.y_stride + column) = sum;
    }
};

/* Of a block of so many warps, and so many tiles of 8 rows of x (columns of mma). HasRoom: what sums are finished with is read beside
 * them. */
template <int Warps, int Columns, bool HasRoom = Columns == 1> struct LinearFewRows {
    static constexpr int stride = 20; /* floats of a row of x and a tile, so that q and g meet all banks */
    static constexpr int bytes = Warps * 8 * Columns * stride * 4; /* [warp][row of x][16 rows of w] floats */

    const td_params_linear &p;
    const uint32_t share, octets, across, first_row, count, first_column;
    const bool in_quads;
    LinearAhead ahead;

    /* group: of the tiles that a block has at a time; rows of x from the first on. */
    __device__ __forceinline__ LinearFewRows(const td_params_linear &all, uint32_t group, uint32_t first_of_rows, uint32_t rows)
        : p(all), share(all.tile_warps), octets(all.gate ? 1 : 2), across(Warps / all.tile_warps * octets), first_row(first_of_rows), count(across * rows),
          first_column(group * across * 8), in_quads(LinearQuads::suffices(all))
    {
    }
    /* Reads ahead what this thread's first sums are finished with. */
    __device__ __forceinline__ void begin()
    {
        if (HasRoom && in_quads && threadIdx.x < 2 * count)
            LinearQuads::load(p, first_row + threadIdx.x / (2 * across), first_column + threadIdx.x % (2 * across) * 4, ahead.more);
        if (HasRoom && !in_quads && threadIdx.x < count)
            ahead.load(p, first_row + threadIdx.x / across, first_column + threadIdx.x % across * 8);
    }
    __device__ __forceinline__ void put(const float (&c)[Columns][4], float *sums) const
    {
        float *const at = sums + threadIdx.x / 32 * (8 * Columns * stride) + threadIdx.x % 4 * (2 * stride) + threadIdx.x % 32 / 4;

#pragma unroll
        for (int column = 0; column < Columns; column++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                at[(8 * column + e % 2) * stride + e / 2 * 8] = c[column][e];
    }
    /* Four sums of all warps of a tile. */
    __device__ __forceinline__ float4 take4(const float *sums, uint32_t tile, uint32_t row, uint32_t first) const
    {
        const float *at = sums + (tile * share * 8 * Columns + row) * stride + first;
        float4 all = *reinterpret_cast<const float4 *>(at);

#pragma unroll 1
        for (uint32_t i = 1; i < share; i++) {
            const float4 more = *reinterpret_cast<const float4 *>(at + i * (8 * Columns * stride));

            all = make_float4(all.x + more.x, all.y + more.y, all.z + more.z, all.w + more.w);
        }
        return all;
    }
    __device__ __forceinline__ void take(float (&a)[8], const float *sums, uint32_t tile, uint32_t row, uint32_t first) const
    {
        const float4 low = take4(sums, tile, row, first), high = take4(sums, tile, row, first + 4);

        a[0] = low.x, a[1] = low.y, a[2] = low.z, a[3] = low.w;
        a[4] = high.x, a[5] = high.y, a[6] = high.z, a[7] = high.w;
    }
    /* Once all have put theirs. */
    __device__ __forceinline__ void finish(const float *sums)
    {
        if (in_quads)
            finish_quads(sums);
        else
            finish_octets(sums);
    }
    __device__ __forceinline__ void finish_quads(const float *sums)
    {
        for (uint32_t i = threadIdx.x; i < 2 * count; i += 32 * Warps) {
            const uint32_t row = i / (2 * across), at = i % (2 * across) * 4;

            if (!HasRoom || i != threadIdx.x)
                LinearQuads::load(p, first_row + row, first_column + at, ahead.more);
            LinearQuads::store(p, first_row + row, first_column + at, take4(sums, at / 16, row, at % 16), ahead.more);
        }
    }
    __device__ __forceinline__ void finish_octets(const float *sums)
    {
        for (uint32_t i = threadIdx.x; i < count; i += 32 * Warps) {
            const uint32_t row = i / across, octet = i % across, tile = octet / octets, column = first_column + octet * 8;
            float x[8], y[8];

            take(x, sums, tile, row, octets == 2 ? octet % 2 * 8 : 0);
            if (p.gate)
                take(y, sums, tile, row, 8);
            if (p.gate == TANDEM_GATE_PAIRS) {
                float even[8], odd[8];

                linear_unzip(even, odd, x, y);
#pragma unroll
                for (int e = 0; e < 8; e++)
                    x[e] = even[e], y[e] = odd[e];
            }
            if (!HasRoom || i != threadIdx.x)
                ahead.load(p, first_row + row, column);
            linear_finish(p, first_row + row, column, x, y, ahead);
        }
    }
};

} // namespace td
