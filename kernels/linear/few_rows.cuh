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

/* Of a power of two: a division by one that is not known takes 30 instructions. */
__device__ __forceinline__ int linear_log2(uint32_t power)
{
    return __ffs(int(power)) - 1;
}

/* Most layers, those that p.in_quads says: four neighbours of y's columns a thread, so that with one row many share what there is to do,
 * and little code, one behind the other. A block meets it once, and each jump to code that is not there yet takes a quarter of a
 * microsecond. */
struct LinearQuads {
    float4 bias, more; /* read ahead of the sums: more is a residual, or cosines and sines */
    int64_t to;        /* in y, */
    uint32_t column;   /* of its first; UINT32_MAX: there is none */
    uint32_t channel;  /* where cosines are in their row, of position `at`; only if the columns are turned */
    int at;
    bool turns;
    int entry;                 /* of where they are scattered to, if it is one, */
    const int32_t *entry_from; /* which is there; nullptr: they are not; */
    uint16_t *entries;         /* these channels of the first one */

    /* What kernels ahead of this one do not write. */
    __device__ __forceinline__ void aim(const td_params_linear &p, uint32_t row, uint32_t first)
    {
        column = first < p.outs ? first : UINT32_MAX;
        to = row * p.y_stride + column;
        turns = p.rotation && column < p.rotated_columns;
        channel = turns ? column % p.head_dim : 0;
        turns = turns && channel < p.rotated_channels;
        entry_from = nullptr;
        if (p.scatter.to && column - p.scatter.first < p.scatter.columns)
            aim_at_entries(p.scatter, row, column - p.scatter.first);
    }
    __device__ __forceinline__ void aim_at_entries(const td_linear_scatter &s, uint32_t row, uint32_t column)
    {
        const uint32_t head = column / s.dim, batch = row / s.rows;

        entry_from = s.position + row_at(s.position_at, batch, 0, row - batch * s.rows);
        entries = static_cast<uint16_t *>(s.to) + row_at(s.at, batch, head, 0) + (column - head * s.dim);
    }
    __device__ __forceinline__ bool is_there() const { return column != UINT32_MAX; }
    __device__ __forceinline__ void look(const td_params_linear &p, uint32_t row)
    {
        at = turns ? p.position[row] : 0;
        entry = entry_from ? *entry_from : -1;
    }
    __device__ __forceinline__ void load(const td_params_linear &p, uint32_t row)
    {
        if (p.bias)
            bias = quad_of(p.bias, column);
        if (p.residual)
            more = *reinterpret_cast<const float4 *>(static_cast<const float *>(p.residual) + row * p.residual_stride + column);
        else if (turns)
            more = quad_of(p.rotation + min(max(at, 0), int(p.positions - 1)) * p.rotation_stride, channel);
    }
    /* From sums a and, with a gate, b. */
    __device__ __forceinline__ void finish(const td_params_linear &p, float4 a, float4 b) const
    {
        if (p.bias)
            a = plus(a, bias);
        if (p.activation)
            a = make_float4(linear_swish(a.x, a.x), linear_swish(a.y, a.y), linear_swish(a.z, a.z), linear_swish(a.w, a.w));
        if (p.gate) {
            if (p.bias)
                b = plus(b, quad_of(p.bias, p.outs + column));
            a = make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
        }
        if (turns)
            a = make_float4(a.x * more.x - a.y * more.y, a.x * more.y + a.y * more.x, a.z * more.z - a.w * more.w, a.z * more.w + a.w * more.z);
        if (p.residual)
            a = plus(a, more);
        const bool bf16 = p.y_dtype == TANDEM_DTYPE_BF16;
        if (p.y_dtype == TANDEM_DTYPE_F32) {
            *reinterpret_cast<float4 *>(static_cast<float *>(p.y) + to) = a;
            return;
        }
        const uint2 four = make_uint2(pack_pair(bf16, a.x, a.y), pack_pair(bf16, a.z, a.w));
        *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(p.y) + to) = four;
        if (p.scatter.to && uint32_t(entry) < p.scatter.entries)
            *reinterpret_cast<uint2 *>(entries + entry * p.scatter.at.stride_row) = four;
    }
    __device__ __forceinline__ static float4 plus(float4 a, float4 b)
    {
        return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
    __device__ __forceinline__ static float4 quad_of(const void *x, uint32_t first)
    {
        return __ldg(reinterpret_cast<const float4 *>(static_cast<const float *>(x) + first));
    }
};

/* Of a block of so many warps, and so many tiles of 8 rows of x (columns of mma). HasRoom: what sums are finished with is read beside
 * them. */
template <int Warps, int Columns, bool HasRoom = Columns == 1> struct LinearFewRows {
    static constexpr int stride = 20; /* floats of a row of x and a tile, so that q and g meet all banks */
    static constexpr int bytes = Warps * 8 * Columns * stride * 4; /* [warp][row of x][16 rows of w] floats */

    const td_params_linear &p;
    const uint32_t group, first_row, rows;
    uint32_t from; /* this thread's first sums; */
    LinearQuads ahead; /* and what becomes of them, if they are of anything */

    /* group: of the tiles that a block has at a time; rows of x from the first on. */
    __device__ __forceinline__ LinearFewRows(const td_params_linear &all, uint32_t of_tiles, uint32_t first_of_rows, uint32_t count)
        : p(all), group(of_tiles), first_row(first_of_rows), rows(count)
    {
        ahead.column = UINT32_MAX;
        if (HasRoom && p.in_quads && threadIdx.x < rows * (2 * across()))
            aim(threadIdx.x);
    }
    /* Octets of a block's columns of y, a power of two as tile_warps is; and the first of those columns. What is cheap to find is not kept. */
    __device__ __forceinline__ uint32_t across() const { return (p.gate ? Warps : 2 * Warps) >> linear_log2(p.tile_warps); }
    __device__ __forceinline__ uint32_t first_column() const { return group * across() * 8; }
    /* Of thread i of those that have four columns each. */
    __device__ __forceinline__ uint32_t row_of(uint32_t i) const { return i >> linear_log2(2 * across()); }
    __device__ __forceinline__ uint32_t column_of(uint32_t i) const { return (i & (2 * across() - 1)) * 4; }
    __device__ __forceinline__ bool has_first() const { return HasRoom && ahead.is_there(); }
    /* A tile's columns of y are 16, with a gate eight: then b's sums are behind a's. */
    __device__ __forceinline__ void aim(uint32_t i)
    {
        const uint32_t tile_log2 = p.gate ? 3 : 4, row = row_of(i), at = column_of(i);

        ahead.aim(p, first_row + row, first_column() + at);
        from = ((at >> tile_log2) * p.tile_warps * 8 * Columns + row) * stride + (at & 15u >> (4 - tile_log2));
    }

    /* Reads ahead what this thread's first sums are finished with: look() where that is, as far as the kernel ahead may have written it. */
    __device__ __forceinline__ void look()
    {
        if (has_first())
            ahead.look(p, first_row + row_of(threadIdx.x));
    }
    __device__ __forceinline__ void begin()
    {
        if (has_first())
            ahead.load(p, first_row + row_of(threadIdx.x));
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
    /* Four sums of all warps of a tile, in the order of warps, of which there are a power of two. */
    __device__ __forceinline__ float4 take4(const float *at) const
    {
        float4 all = *reinterpret_cast<const float4 *>(at);

#pragma unroll
        for (uint32_t half = 1; half < Warps; half *= 2)
            if (p.tile_warps > half) {
                float4 more[Warps / 2];

#pragma unroll
                for (uint32_t i = 0; i < half; i++)
                    more[i] = *reinterpret_cast<const float4 *>(at + (half + i) * (8 * Columns * stride));
#pragma unroll
                for (uint32_t i = 0; i < half; i++)
                    all = LinearQuads::plus(all, more[i]);
            }
        return all;
    }
    __device__ __forceinline__ void take(float (&a)[8], const float *sums, uint32_t tile, uint32_t row, uint32_t first) const
    {
        const float *const at = sums + (tile * p.tile_warps * 8 * Columns + row) * stride + first;
        const float4 low = take4(at), high = take4(at + 4);

        a[0] = low.x, a[1] = low.y, a[2] = low.z, a[3] = low.w;
        a[4] = high.x, a[5] = high.y, a[6] = high.z, a[7] = high.w;
    }
    /* Once all have put theirs. */
    __device__ __forceinline__ void finish(const float *sums)
    {
        if (p.in_quads)
            finish_quads(sums);
        else
            finish_octets(sums);
    }
    __device__ __forceinline__ void finish_quads(const float *sums)
    {
        if constexpr (HasRoom) { /* for all that there are */
            static_assert(Columns == 1, "8 rows of at most 16 octets");
            if (has_first())
                finish_quad(sums);
        } else {
            for (uint32_t i = threadIdx.x; i < rows * (2 * across()); i += 32 * Warps) {
                aim(i);
                if (!ahead.is_there())
                    continue;
                ahead.look(p, first_row + row_of(i));
                ahead.load(p, first_row + row_of(i));
                finish_quad(sums);
            }
        }
    }
    __device__ __forceinline__ void finish_quad(const float *sums) const
    {
        const float4 a = take4(sums + from), b = p.gate ? take4(sums + from + 8) : a;

        ahead.finish(p, a, b);
    }
    __device__ __forceinline__ void finish_octets(const float *sums) const
    {
        for (uint32_t i = threadIdx.x; i < rows * across(); i += 32 * Warps) {
            const uint32_t row = row_of(2 * i), octet = i & (across() - 1), tile = p.gate ? octet : octet / 2;
            float x[8], y[8];

            take(x, sums, tile, row, p.gate ? 0 : octet % 2 * 8);
            if (p.gate)
                take(y, sums, tile, row, 8);
            if (p.gate == TANDEM_GATE_PAIRS) {
                float even[8], odd[8];

                linear_unzip(even, odd, x, y);
#pragma unroll
                for (int e = 0; e < 8; e++)
                    x[e] = even[e], y[e] = odd[e];
            }
            linear_finish(p, first_row + row, first_column() + octet * 8, x, y);
        }
    }
};

} // namespace td
