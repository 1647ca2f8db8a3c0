/* y = finish(x w^T) for up to 64 rows of x and weights in tiles: `linear_tiles`, by mma.sync; and tiles made dense: `linear_unpack`.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Rows of w are mma's 16 rows, rows of x its 8 columns, and as in `linear_blocks` weights are whole numbers, whose sums of 32 channels,
 * of Q6_K 16, are scaled and added up as float32. Tiles are as a warp reads them: what memory sends goes from registers into products,
 * without shared memory. Each warp has a part of a tile's channels, one behind the other, and some 256 of them under way while it
 * multiplies those before; the first, where nobody writes w, before the kernel ahead is over. With many rows of x and enough tiles a warp
 * has two of them, side by side: then what x sends through L1, some times what weights are, is for both.
 * Where tiles are few, multiprocessors multiply the same ones by other rows of x.
 * Entries `normed` begin with RMSNorm of the few rows that they multiply, each block for itself, into shared memory: that is less than
 * what a kernel of its own takes to begin and to end.
 */
#include "kernels/cuda/norm_line.cuh"
#include "kernels/linear/tile_products.cuh"

namespace td {

/* Normed: x is in shared memory. */
template <int Dtype, int Columns, int Tiles, bool Bf16, bool Normed = false> struct LinearTiles {
    using Row = TileRow<Dtype>;
    static constexpr int warps = TD_LINEAR_TILES_WARPS;
    /* Chunks under way, as far as there are registers. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
    static constexpr int of_pairs = Columns == 8 ? 1 : 2;
#else
    static constexpr int of_pairs = 2;
#endif
    static constexpr int ahead = Tiles == 2 ? of_pairs : Row::channels > 64 || Columns == 8 ? 2 : Columns == 4 ? 3 : 4;
    static constexpr bool has_room = Columns == 1 && !Row::has_minimum && !Row::apart; /* registers */

    const td_params_linear &p;
    const uint8_t *chunk[Tiles][2]; /* of the tiles of this thread's rows of w: */
    uint32_t r[Tiles][2];
    uint32_t left;     /* this warp's chunks, from there on */
    const uint16_t *x; /* this thread's of their channels; */
    uint32_t x_at[Columns]; /* its rows of x */
    int q;

    /* Rows of x that do not exist are the last one: what comes of them is not written. */
    __device__ __forceinline__ LinearTiles(const td_params_linear &all, uint32_t block, uint32_t rows, const uint16_t *rows_of_x, uint32_t x_stride)
        : p(all), q(int(threadIdx.x % 4))
    {
        const LinearTilePart<Row> part(p);
        const uint32_t g = threadIdx.x % 32 / 4;

        left = part.count;
#pragma unroll
        for (int i = 0; i < 2 * Tiles; i++) {
            const uint32_t row = part.row(block, Tiles, i);

            r[i / 2][i % 2] = row % 16;
            chunk[i / 2][i % 2] = part.chunk_of(row);
        }
        x = rows_of_x + part.begin * Row::channels + (Row::apart ? 4 : 8) * q;
#pragma unroll
        for (int column = 0; column < Columns; column++)
            x_at[column] = min(8u * column + g, rows - 1) * x_stride;
    }
    /* The u-th chunk from here. */
    __device__ __forceinline__ void load(Row (&to)[Tiles][2], int u) const
    {
        if (uint32_t(u) < left)
#pragma unroll
            for (int i = 0; i < 2 * Tiles; i++)
                to[i / 2][i % 2].load(chunk[i / 2][i % 2] + u * Row::bytes, r[i / 2][i % 2], q);
    }

    template <class Words> __device__ __forceinline__ static Words words_of_x(const uint16_t *at)
    {
        if constexpr (Normed)
            return *reinterpret_cast<const Words *>(at);
        else
            return __ldg(reinterpret_cast<const Words *>(at));
    }
    /* This thread's eight of 32 channels of a row of x, in the order of tiles. */
    __device__ __forceinline__ uint4 load_x(int column, int channel) const
    {
        const uint16_t *at = x + x_at[column] + channel;

        if constexpr (Row::apart) {
            const uint2 low = words_of_x<uint2>(at), high = words_of_x<uint2>(at + 16);

            return make_uint4(low.x, low.y, high.x, high.y);
        } else {
            return words_of_x<uint4>(at);
        }
    }

    /* Adds the products of the u-th chunk. */
    __device__ __forceinline__ void multiply(float (&c)[Tiles][Columns][4], const Row (&rows)[Tiles][2], int u) const
    {
        constexpr int groups = Row::channels / 32, most = Columns == 8 ? 1 : Columns == 4 ? 2 : 4; /* for registers */
        constexpr int some = groups < most ? groups : most;

#pragma unroll 1
        for (int first = 0; first < groups; first += some)
#pragma unroll
            for (int i = first; i < first + some; i++)
                multiply_group(c, rows, i, u * Row::channels + 32 * i);
    }
    /* Of the i-th 32 channels, which are the 32 from channel k on. */
    __device__ __forceinline__ void multiply_group(float (&c)[Tiles][Columns][4], const Row (&rows)[Tiles][2], int i, int k) const
    {
        TileGroup of[Tiles][2];
        uint32_t a[Tiles][2][4];

#pragma unroll
        for (int t = 0; t < Tiles; t++)
            linear_tile_operands<Row, Bf16>(a[t], of[t], rows[t], i);
#pragma unroll
        for (int column = 0; column < Columns; column++) {
            const uint4 of_x = load_x(column, k);

#pragma unroll
            for (int t = 0; t < Tiles; t++)
                linear_tile_add<Row, Bf16>(c[t][column], of[t], a[t], of_x);
        }
    }

    /* The sums of this warp's chunks, of which the first are in `ring`: each is followed by the one that takes its registers. */
    __device__ __forceinline__ void sum(float (&c)[Tiles][Columns][4], Row (&ring)[ahead][Tiles][2])
    {
#pragma unroll 1
        while (left >= ahead) {
#pragma unroll
            for (int u = 0; u < ahead; u++) {
                multiply(c, ring[u], u);
                load(ring[u], u + ahead);
            }
            left -= ahead;
#pragma unroll
            for (int i = 0; i < 2 * Tiles; i++)
                chunk[i / 2][i % 2] += ahead * Row::bytes;
            x += ahead * Row::channels;
        }
#pragma unroll
        for (int u = 0; u < ahead - 1; u++)
            if (uint32_t(u) < left)
                multiply(c, ring[u], u);
    }
};

/* Rows of x as they are. */
struct LinearAsItIs {
    __device__ __forceinline__ void fetch() const
    {
    }
    __device__ __forceinline__ void make() const
    {
    }
};

/* Rows of x by RMSNorm, in shared memory. A row that a warp has is multiplied by all, as it is the only one, most often. */
struct LinearNormed {
    const td_params_linear_normed &n;
    float *weight;    /* [ins] */
    __half *x;        /* [rows][TD_LINEAR_NORMED_PITCH(ins)] */
    float (*warps)[TD_NORM_THREADS / 32]; /* [TD_LINEAR_NORMED_ROWS]: of short rows [0] is what they are multiplied by */

    /* What nobody writes, while the kernel ahead runs. */
    __device__ __forceinline__ void fetch() const
    {
        for (uint32_t c = 4 * threadIdx.x; c < n.p.ins; c += 4 * TD_NORM_THREADS)
            cp_async_16(shared_address(weight + c), n.norm_weight + c);
        cp_async_commit();
    }
    __device__ __forceinline__ void make() const
    {
        if (n.lanes > 32)
            make_long();
        else
            make_short();
        __syncthreads();
    }

private:
    __device__ __forceinline__ const float *row_of_x(uint32_t row) const
    {
        return static_cast<const float *>(n.p.x) + int64_t(row) * n.p.x_stride;
    }
    /* Of a row each, one behind the other. */
    __device__ __forceinline__ void make_long() const
    {
        NormLine line(TD_NORM_THREADS, n.p.ins);

#pragma unroll 1
        for (uint32_t row = 0; row < n.p.rows; row++) {
            line.load(line.h, row_of_x(row), true);
            if (!row) {
                cp_async_wait<0>();
                __syncthreads();
            }
            line.store(x + row * TD_LINEAR_NORMED_PITCH(n.p.ins), line.scale(n.epsilon, true, warps[row]), true,
                       [&](int i, float(&w)[8]) { linear_get8(w, weight + line.step * i + line.first); });
        }
    }
    /* A warp a row for what that is multiplied by; then half of the block a row, eight channels a thread. */
    __device__ __forceinline__ void make_short() const
    {
        constexpr uint32_t half = TD_NORM_THREADS / 2;
        static_assert(TD_LINEAR_NORMED_ROWS == TD_NORM_THREADS / 32 && TD_NORM_SHORT <= 8 * half, "a warp a row, eight channels a thread");
        const uint32_t warp = threadIdx.x / 32, c = 8 * (threadIdx.x % half);
        float *const scales = warps[0];

        if (warp < n.p.rows) {
            NormLine line(32, n.p.ins);

            line.load(line.h, row_of_x(warp), true);
            const float scale = line.scale(n.epsilon, true, warps[1]);
            if (threadIdx.x % 32 == 0)
                scales[warp] = scale;
        }
        cp_async_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (uint32_t row = threadIdx.x / half; row < n.p.rows && c < n.p.ins; row += 2) {
            float h[8], w[8];

            norm_load8(h, row_of_x(row), c); /* from L1 */
            linear_get8(w, weight + c);
            norm_store8(x + row * TD_LINEAR_NORMED_PITCH(n.p.ins) + c, h, scales[row], w);
        }
    }
};

template <int Dtype, int Columns, int Tiles, bool Bf16, bool Normed, class Source>
__device__ __forceinline__ void linear_tiles(const td_params_linear &p, const uint16_t *x, uint32_t x_stride, const Source &source)
{
    using Products = LinearTiles<Dtype, Columns, Tiles, Bf16, Normed>;
    using Rows = LinearFewRows<Products::warps, Columns, Products::has_room>;
    __shared__ __align__(16) float sums[Rows::bytes / 4];
    const uint32_t group = !Normed && Tiles == 1 && p.tile_blocks ? blockIdx.x / p.tile_blocks : 0, block = blockIdx.x - group * p.tile_blocks;
    const uint32_t first_row = group * (8 * Columns), count = min(p.rows - first_row, 8u * Columns);
    Products products(p, block, count, x + first_row * x_stride, x_stride);
    Rows rows(p, block * Tiles, first_row, count);
    typename Products::Row ring[Products::ahead][Tiles][2];
    float c[Tiles][Columns][4] = {};

    if (!p.w_is_constant)
        wait_for_previous();
    source.fetch();
#pragma unroll
    for (int u = 0; u < Products::ahead; u++)
        products.load(ring[u], u);
    if (p.w_is_constant)
        wait_for_previous();
    launch_dependents();
    const bool stop = is_set(p.cancel);

    rows.look();
    source.make();
    rows.begin();
    products.sum(c, ring);
    rows.put(c[0], sums);
    if (__syncthreads_or(stop))
        return;
    rows.finish(sums);
    if constexpr (Tiles == 2) {
        Rows more(p, block * Tiles + 1, first_row, count);

        __syncthreads();
        more.put(c[1], sums);
        __syncthreads();
        more.finish(sums);
    }
}

template <int Dtype, int Columns, int Tiles, bool Bf16> __device__ __forceinline__ void linear_tiles(const td_params_linear &p)
{
    linear_tiles<Dtype, Columns, Tiles, Bf16, false>(p, static_cast<const uint16_t *>(p.x), uint32_t(p.x_stride), LinearAsItIs{});
}

template <int Dtype> __device__ __forceinline__ void linear_tiles_normed(const td_params_linear_normed &n)
{
    static_assert(TD_NORM_THREADS == 32 * TD_LINEAR_TILES_WARPS, "a block of either");
    TD_DYNAMIC_SHARED(16, bytes);
    __shared__ float warps[TD_LINEAR_NORMED_ROWS][TD_NORM_THREADS / 32];
    float *const weight = reinterpret_cast<float *>(bytes);
    const LinearNormed source = {n, weight, reinterpret_cast<__half *>(weight + n.p.ins), warps};

    linear_tiles<Dtype, 1, 1, false, true>(n.p, reinterpret_cast<const uint16_t *>(source.x), TD_LINEAR_NORMED_PITCH(n.p.ins), source);
}

/* A thread has its part of a row of a chunk: eight of each 32 channels. */
template <int Dtype, bool Bf16> __device__ __forceinline__ void linear_unpack(const td_params_linear_unpack &p)
{
    using Row = TileRow<Dtype>;
    const uint32_t chunks = p.ins / Row::channels, thread = threadIdx.x % 64, r = thread / 4;
    const uint64_t index = uint64_t(blockIdx.x) * (TD_LINEAR_UNPACK_THREADS / 64) + threadIdx.x / 64;
    const int q = int(thread % 4);
    Row row;

    if (!p.w_is_constant)
        wait_for_previous();
    if (index < uint64_t(p.w_rows / 16) * chunks)
        row.load(static_cast<const uint8_t *>(p.w) + index * Row::bytes, r, q);
    if (p.w_is_constant)
        wait_for_previous();
    launch_dependents();
    if (is_set(p.cancel) || index >= uint64_t(p.w_rows / 16) * chunks)
        return;
    uint16_t *const to = static_cast<uint16_t *>(p.to) + (index / chunks * 16 + r) * uint64_t(p.ins) + index % chunks * Row::channels;

#pragma unroll
    for (int i = 0; i < Row::channels / 32; i++) {
        TileGroup of = {};
        uint32_t w[2][2];

        row.group(of, i);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float four[4];

            tile_decode4(four, of.codes[k], float(Row::less), of.scale[Row::apart ? k : 0], of.minimum);
            w[k][0] = pack_pair(Bf16, four[0], four[1]), w[k][1] = pack_pair(Bf16, four[2], four[3]);
        }
        if constexpr (Row::apart) {
            *reinterpret_cast<uint2 *>(to + 32 * i + 4 * q) = make_uint2(w[0][0], w[0][1]);
            *reinterpret_cast<uint2 *>(to + 32 * i + 16 + 4 * q) = make_uint2(w[1][0], w[1][1]);
        } else {
            *reinterpret_cast<uint4 *>(to + 32 * i + 8 * q) = make_uint4(w[0][0], w[0][1], w[1][0], w[1][1]);
        }
    }
}

} // namespace td

/* Blocks that a multiprocessor is to have at once, so that none of their registers spill: two up to that dtype with up to 8 rows. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TD_LINEAR_TILES_LIGHT TANDEM_DTYPE_Q6_K_TILES
#else
#define TD_LINEAR_TILES_LIGHT TANDEM_DTYPE_Q4_0_TILES
#endif
#define TD_LINEAR_TILES_AT_ONCE(bf16, dtype, columns) \
    ((columns) == 1 && (dtype) <= TD_LINEAR_TILES_LIGHT && !((bf16) && (dtype) == TANDEM_DTYPE_Q4_K_TILES) ? 2 : 1)
#define TD_LINEAR_TILES(type, bf16, name, dtype, columns)                                                                     \
    extern "C" __global__ void __launch_bounds__(32 * TD_LINEAR_TILES_WARPS, TD_LINEAR_TILES_AT_ONCE(bf16, dtype, columns))   \
        linear_##type##_tiles_##name##_##columns(const __grid_constant__ td_params_linear p)                                  \
    {                                                                                                                          \
        td::linear_tiles<dtype, columns, 1, bf16>(p);                                                                          \
    }
#define TD_LINEAR_PAIRS(type, bf16, name, dtype, columns)                                                                     \
    extern "C" __global__ void __launch_bounds__(32 * TD_LINEAR_TILES_WARPS, 1)                                                \
        linear_##type##_pairs_##name##_##columns(const __grid_constant__ td_params_linear p)                                  \
    {                                                                                                                          \
        td::linear_tiles<dtype, columns, 2, bf16>(p);                                                                          \
    }
#define TD_LINEAR_UNPACK(type, bf16, name, dtype)                                                                             \
    extern "C" __global__ void __launch_bounds__(TD_LINEAR_UNPACK_THREADS)                                                     \
        linear_##type##_unpack_##name(const __grid_constant__ td_params_linear_unpack p)                                      \
    {                                                                                                                          \
        td::linear_unpack<dtype, bf16>(p);                                                                                     \
    }
#define TD_LINEAR_NORMED(name, dtype)                                                                                          \
    extern "C" __global__ void __launch_bounds__(32 * TD_LINEAR_TILES_WARPS, TD_LINEAR_TILES_AT_ONCE(false, dtype, 1))        \
        linear_f16_normed_##name(const __grid_constant__ td_params_linear_normed p)                                           \
    {                                                                                                                          \
        td::linear_tiles_normed<dtype>(p);                                                                                     \
    }
#define TD_LINEAR_TILES_OF(type, bf16, name, dtype)  \
    TD_LINEAR_TILES(type, bf16, name, dtype, 1)      \
    TD_LINEAR_TILES(type, bf16, name, dtype, 2)      \
    TD_LINEAR_TILES(type, bf16, name, dtype, 4)      \
    TD_LINEAR_TILES(type, bf16, name, dtype, 8)      \
    TD_LINEAR_UNPACK(type, bf16, name, dtype)
#define TD_LINEAR_TILES_TYPES(name, dtype)          \
    TD_LINEAR_TILES_OF(f16, false, name, dtype)     \
    TD_LINEAR_TILES_OF(bf16, true, name, dtype)     \
    TD_LINEAR_NORMED(name, dtype)
TD_LINEAR_TILES_TYPES(q8_0, TANDEM_DTYPE_Q8_0_TILES)
TD_LINEAR_TILES_TYPES(q4_0, TANDEM_DTYPE_Q4_0_TILES)
TD_LINEAR_TILES_TYPES(q4_1, TANDEM_DTYPE_Q4_1_TILES)
TD_LINEAR_TILES_TYPES(q4_k, TANDEM_DTYPE_Q4_K_TILES)
TD_LINEAR_TILES_TYPES(q6_k, TANDEM_DTYPE_Q6_K_TILES)
TD_LINEAR_TILES_TYPES(q5_k, TANDEM_DTYPE_Q5_K_TILES)
/* Two tiles a warp, of the format that leaves registers for it. */
TD_LINEAR_PAIRS(f16, false, q8_0, TANDEM_DTYPE_Q8_0_TILES, 4)
TD_LINEAR_PAIRS(f16, false, q8_0, TANDEM_DTYPE_Q8_0_TILES, 8)
TD_LINEAR_PAIRS(bf16, true, q8_0, TANDEM_DTYPE_Q8_0_TILES, 4)
TD_LINEAR_PAIRS(bf16, true, q8_0, TANDEM_DTYPE_Q8_0_TILES, 8)
