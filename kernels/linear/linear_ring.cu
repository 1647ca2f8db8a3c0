/* y = finish(x w^T) for 17 to 32 rows of x and weights in tiles, by mma.sync: `linear_ring`, where a block has much shared memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * As `linear_tiles` of two tiles a warp, with the same bits; but a multiprocessor has one block, and what its registers hold of weights
 * under way is too little to keep memory busy: half of the time warps waited for weights, and for x, which comes from L2. So each thread
 * copies the weights that it multiplies into shared memory, several chunks ahead, and has x of the next chunk in registers.
 */
#include "kernels/linear/tile_products.cuh"

#if TD_HAVE_WGMMA /* where a block may have so much; else nobody plans it */

namespace td {

template <int Dtype, bool Bf16> struct LinearRing {
    using Row = TileRow<Dtype>;
    static constexpr int warps = TD_LINEAR_TILES_WARPS, threads = 32 * warps, stages = TD_LINEAR_RING_STAGES;
    static constexpr int columns = 4, tiles = 2, groups = Row::channels / 32;
    static_assert(!Row::has_minimum && !Row::apart && Row::channels == 64, "one slab a row, and a scale for each 32 channels");

    /* What a chunk has of weights: of a warp's two rows of two tiles each thread's slab, and of eight rows four scales each. */
    struct Stage {
        uint4 codes[2 * tiles][threads];
        uint4 scales[2 * tiles][8 * warps];
    };
    static_assert(stages * sizeof(Stage) == TD_LINEAR_RING_BYTES && LinearFewRows<warps, columns, false>::bytes <= TD_LINEAR_RING_BYTES,
                  "what plans ask for");
    /* A thread's 32 channels of its rows of x. */
    using Words = uint4[groups][columns];

    const td_params_linear &p;
    Stage *const ring;
    const uint8_t *codes[2 * tiles], *scales[2 * tiles]; /* of this thread's rows of w, in the chunk that is copied next; */
    uint32_t r[2 * tiles];                               /* which of a tile those are */
    uint32_t left, to_copy, stage, stage_to; /* this warp's chunks to multiply and to copy, and where they are */
    const uint16_t *x;                       /* this thread's channels of the next chunk */
    uint32_t x_at[columns];
    int q;

    /* Rows of x that do not exist are the last one: what comes of them is not written. */
    __device__ __forceinline__ LinearRing(const td_params_linear &all, uint8_t *shared)
        : p(all), ring(reinterpret_cast<Stage *>(shared)), stage(0), stage_to(0), q(int(threadIdx.x % 4))
    {
        const LinearTilePart<Row> part(p);
        const uint32_t g = threadIdx.x % 32 / 4;

        left = to_copy = part.count;
#pragma unroll
        for (int i = 0; i < 2 * tiles; i++) {
            const uint32_t row = part.row(blockIdx.x, tiles, i);
            const uint8_t *const chunk = part.chunk_of(row);

            r[i] = row % 16;
            codes[i] = chunk + Row::slab_at(r[i], q);
            scales[i] = chunk + Row::scale_at(r[i]) / 16 * 16;
        }
        x = static_cast<const uint16_t *>(p.x) + part.begin * Row::channels + 8 * q;
#pragma unroll
        for (int column = 0; column < columns; column++)
            x_at[column] = min(8u * column + g, p.rows - 1) * uint32_t(p.x_stride);
    }

    /* Begins to copy the next chunk, if there is one. */
    __device__ __forceinline__ void copy()
    {
        if (to_copy) {
            Stage &to = ring[stage_to];

#pragma unroll
            for (int i = 0; i < 2 * tiles; i++) {
                cp_async_16(shared_address(&to.codes[i][threadIdx.x]), codes[i]);
                if (q == 0)
                    cp_async_16(shared_address(&to.scales[i][threadIdx.x / 4]), scales[i]);
                codes[i] += Row::bytes, scales[i] += Row::bytes;
            }
            to_copy--;
            stage_to = stage_to + 1 == stages ? 0 : stage_to + 1;
        }
        cp_async_commit();
    }
    __device__ __forceinline__ void load_x(Words &to)
    {
#pragma unroll
        for (int i = 0; i < groups; i++)
#pragma unroll
            for (int column = 0; column < columns; column++)
                to[i][column] = __ldg(reinterpret_cast<const uint4 *>(x + x_at[column] + 32 * i));
        x += Row::channels;
    }

    /* Adds the products of a chunk, for which x is there; another takes the place of the one before it. */
    __device__ __forceinline__ void multiply(float (&c)[tiles][columns][4], const Words &of_x)
    {
        cp_async_wait<stages - 2>();
        __syncwarp(); /* scales are there for all, and all have read those of before */
        const Stage &from = ring[stage];
        Row rows[tiles][2];

#pragma unroll
        for (int i = 0; i < 2 * tiles; i++) {
            const uint32_t *const four = reinterpret_cast<const uint32_t *>(&from.scales[i][threadIdx.x / 4]);

            rows[i / 2][i % 2].codes = from.codes[i][threadIdx.x];
            rows[i / 2][i % 2].scales = four[Row::scale_at(r[i]) % 16 / 4];
        }
        copy();
        stage = stage + 1 == stages ? 0 : stage + 1;
#pragma unroll
        for (int i = 0; i < groups; i++) {
            TileGroup of[tiles][2];
            uint32_t a[tiles][2][4];

#pragma unroll
            for (int t = 0; t < tiles; t++)
                linear_tile_operands<Row, Bf16>(a[t], of[t], rows[t], i);
#pragma unroll
            for (int column = 0; column < columns; column++)
#pragma unroll
                for (int t = 0; t < tiles; t++)
                    linear_tile_add<Row, Bf16>(c[t][column], of[t], a[t], of_x[i][column]);
        }
    }

    /* The sums of this warp's chunks, of which the first are on their way. */
    __device__ __forceinline__ void sum(float (&c)[tiles][columns][4])
    {
        Words now, next;

        if (left)
            load_x(now);
#pragma unroll 1
        for (; left > 1; left -= 2) {
            load_x(next);
            multiply(c, now);
            if (left > 2)
                load_x(now);
            multiply(c, next);
        }
        if (left)
            multiply(c, now);
        cp_async_wait<0>();
    }
};

template <int Dtype, bool Bf16> __device__ __forceinline__ void linear_ring(const td_params_linear &p)
{
    using Products = LinearRing<Dtype, Bf16>;
    using Rows = LinearFewRows<Products::warps, Products::columns, false>;
    TD_DYNAMIC_SHARED(16, linear_ring_bytes);
    float *const sums = reinterpret_cast<float *>(linear_ring_bytes);
    Products products(p, linear_ring_bytes);
    float c[Products::tiles][Products::columns][4] = {};

    if (!p.w_is_constant)
        wait_for_previous();
#pragma unroll 1
    for (int i = 0; i < Products::stages - 1; i++)
        products.copy();
    if (p.w_is_constant)
        wait_for_previous();
    launch_dependents();
    const bool stop = is_set(p.cancel);

    products.sum(c);
#pragma unroll
    for (int t = 0; t < Products::tiles; t++) {
        Rows rows(p, blockIdx.x * Products::tiles + t, 0, p.rows);

        __syncthreads(); /* sums lie where weights were, or others */
        rows.put(c[t], sums);
        if (__syncthreads_or(stop))
            return;
        rows.finish(sums);
    }
}

} // namespace td

#define TD_LINEAR_RING(type, bf16, name, dtype)                                                                               \
    extern "C" __global__ void __launch_bounds__(32 * TD_LINEAR_TILES_WARPS, 1)                                                \
        linear_##type##_ring_##name(const __grid_constant__ td_params_linear p)                                               \
    {                                                                                                                          \
        td::linear_ring<dtype, bf16>(p);                                                                                       \
    }
TD_LINEAR_RING(f16, false, q8_0, TANDEM_DTYPE_Q8_0_TILES)
TD_LINEAR_RING(bf16, true, q8_0, TANDEM_DTYPE_Q8_0_TILES)

#endif
