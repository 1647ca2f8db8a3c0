/* y = finish(x w^T) for 17 to 32 rows of x and weights in tiles, by mma.sync: `linear_ring`, where a block has much shared memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * As `linear_tiles` of two tiles a warp, with the same bits; but a multiprocessor has one block, and what its registers hold of weights
 * under way is too little to keep memory busy: half of the time warps waited for weights, and for x, which comes from L2. So each thread
 * copies the weights that it multiplies into shared memory, several chunks ahead, and has x of the next chunk in registers.
 */
#include "kernels/cuda/tiles.cuh"
#include "kernels/linear/few_rows.cuh"
#include "kernels/linear/weights.cuh"

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
    int g, q;

    /* With a gate by halves the first eight rows are of the first half of w. Tiles that do not exist are the last one, and so are rows of
     * x: what comes of them is not written. */
    __device__ __forceinline__ LinearRing(const td_params_linear &all, uint8_t *shared)
        : p(all), ring(reinterpret_cast<Stage *>(shared)), stage(0), stage_to(0), g(int(threadIdx.x % 32 / 4)), q(int(threadIdx.x % 4))
    {
        const int share_log2 = linear_log2(p.tile_warps);
        const uint32_t warp = threadIdx.x / 32, part = warp & (p.tile_warps - 1), across = warps >> share_log2;
        const uint32_t w_rows = p.gate ? 2 * p.outs : p.outs;
        const uint32_t chunks = p.ins / Row::channels, begin = part * chunks >> share_log2;

        left = to_copy = ((part + 1) * chunks >> share_log2) - begin;
#pragma unroll
        for (int i = 0; i < 2 * tiles; i++) {
            const uint32_t index = (blockIdx.x * tiles + i / 2) * across + (warp >> share_log2);
            const uint32_t asked = p.gate == TANDEM_GATE_HALVES ? index * 8 + g + i % 2 * p.outs : index * 16 + i % 2 * 8 + g;
            const uint32_t row = min(asked, w_rows - 1);
            const uint8_t *const chunk = static_cast<const uint8_t *>(p.w) + int64_t(row / 16) * (16 * p.w_stride) + begin * uint32_t(Row::bytes);

            r[i] = row % 16;
            codes[i] = chunk + Row::slab_at(r[i], q);
            scales[i] = chunk + Row::scale_at(r[i]) / 16 * 16;
        }
        x = static_cast<const uint16_t *>(p.x) + begin * Row::channels + 8 * q;
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
        Row rows[2 * tiles];

#pragma unroll
        for (int i = 0; i < 2 * tiles; i++) {
            const uint32_t *const four = reinterpret_cast<const uint32_t *>(&from.scales[i][threadIdx.x / 4]);

            rows[i].codes = from.codes[i][threadIdx.x];
            rows[i].scales = four[Row::scale_at(r[i]) % 16 / 4];
        }
        copy();
        stage = stage + 1 == stages ? 0 : stage + 1;
#pragma unroll
        for (int i = 0; i < groups; i++)
            multiply_group(c, rows, i, of_x[i]);
    }
    /* Of the i-th 32 channels. Sums are scaled and added up as in `linear_tiles`. */
    __device__ __forceinline__ static void multiply_group(float (&c)[tiles][columns][4], const Row (&rows)[2 * tiles], int i, const uint4 (&of_x)[columns])
    {
        TileGroup of[2 * tiles];
        uint32_t a[tiles][2][4]; /* of mma: the first four of each eight weights, then the others */

#pragma unroll
        for (int t = 0; t < 2 * tiles; t++) {
            rows[t].group(of[t], i);
#pragma unroll
            for (int w = 0; w < 2; w++) {
                uint32_t four[2];

                linear_whole<Bf16>(four, of[t].codes[w], float(Row::less));
                a[t / 2][w][t % 2] = four[0], a[t / 2][w][2 + t % 2] = four[1];
            }
        }
#pragma unroll
        for (int column = 0; column < columns; column++)
#pragma unroll
            for (int t = 0; t < tiles; t++) {
                float sums[4] = {};

                linear_mma<Bf16>(sums, a[t][0], of_x[column].x, of_x[column].y);
                linear_mma<Bf16>(sums, a[t][1], of_x[column].z, of_x[column].w);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    c[t][column][e] = __fmaf_rn(of[2 * t + e / 2].scale[0], sums[e], c[t][column][e]);
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
