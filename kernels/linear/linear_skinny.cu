/* y = finish(x w^T) for up to 64 rows of x: bound by how fast w is read. `linear_skinny`, by mma.sync.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Rows of w are mma's 16 rows, rows of x its 8 columns. A block has `tiles` times 16 rows of w; its warps share the channels, and
 * products do not care which channels of a step are called which. At the end the warps' sums are added up in shared memory, in the
 * order of warps.
 *
 * Dense weights go straight into registers: of eight, warp i takes steps i, i + 8 ..., so that together they read long runs of each
 * row, a thread eight neighbouring channels. A warp has nothing under way while it multiplies: for 9 to 32 rows there are twice as many.
 *
 * Others are too few bytes a load for that, and blocks begin at any even address: a warp copies a run of each row, some 130 to
 * 210 bytes, by pieces of 16 that hold it, into shared memory of its own, two runs ahead, and decodes from there. Warps wait for
 * no others until the end.
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

/* What a warp copies of a row at a time: so many channels, and pieces of 16 bytes wherever their bytes begin. An odd number of
 * pieces from one row to the next meets all banks. */
template <int Weights> struct LinearRun {
    static constexpr int channels = Weights == TD_LINEAR_INT8 || Weights == TD_LINEAR_Q8_0 ? 128 : 256;
    static constexpr int bytes = Weights == TD_LINEAR_INT8   ? 128
                                 : Weights == TD_LINEAR_Q8_0 ? 4 * 34
                                 : Weights == TD_LINEAR_Q4_0 ? 8 * 18
                                 : Weights == TD_LINEAR_Q4_1 ? 8 * 20
                                 : Weights == TD_LINEAR_Q4_K ? 144
                                 : Weights == TD_LINEAR_Q5_K ? 176
                                                             : 210;
    static constexpr int most_before = Weights == TD_LINEAR_INT8 ? 8 : 14, pieces = (most_before + bytes + 15) / 16;
    static constexpr int stride = 16 * (pieces | 1), stages = 2;
};

/* Tiles of 16 rows of w, of 8 rows of x. */
template <int Weights, int Tiles, int Columns, bool Bf16> struct LinearSkinny {
    using W = LinearWeights<Weights>;
    using Run = LinearRun<Weights>;
    static constexpr bool dense = Weights == TD_LINEAR_DENSE;
    static constexpr int rows = 16 * Tiles, columns = 8 * Columns, sum_stride = rows + 4; /* floats */
    static constexpr int warps = TD_LINEAR_SKINNY_WARPS(Weights, Columns), threads = 32 * warps;
    static constexpr int elements = 4 * Tiles * Columns, together = elements < 16 ? elements : 16; /* a thread's sums */

    struct Sums {
        float parts[warps][together * 32], sums[columns * sum_stride];
    };
    static constexpr int run_bytes = rows * Run::stride, ring_bytes = dense ? 0 : warps * Run::stages * run_bytes;
    static_assert(ring_bytes == TD_LINEAR_SKINNY_SHARED_BYTES(Weights) && ring_bytes <= 47 * 1024,
                  "what plans ask for; no more than a block has in a command buffer");
    static_assert(dense || int(sizeof(Sums)) <= ring_bytes, "sums lie where weights were");

    /* With a gate by halves the first half of the rows is of the first half of w. Rows that do not exist are the last one. */
    __device__ __forceinline__ static const uint8_t *w_row(const td_params_linear &p, uint32_t row)
    {
        const uint32_t w_rows = p.gate ? 2 * p.outs : p.outs;
        const uint32_t at = p.gate == TANDEM_GATE_HALVES
                                ? blockIdx.x * (rows / 2) + row % (rows / 2) + (row < rows / 2 ? 0 : p.outs)
                                : blockIdx.x * rows + row;

        return static_cast<const uint8_t *>(p.w) + min(at, w_rows - 1) * p.w_stride;
    }

    /* A step's products, from channel `first` on. */
    __device__ __forceinline__ static void multiply(const td_params_linear &p, float (&c)[Tiles][Columns][4],
                                                    const uint32_t (&raw)[Tiles][2][W::words], uint32_t first)
    {
        const int lane = int(threadIdx.x % 32), g = lane / 4, q = lane % 4;

#pragma unroll
        for (int group = 0; group < W::groups; group++) {
            const uint32_t k = first + 32 * group;
            uint32_t a[Tiles][2][4];

#pragma unroll
            for (int t = 0; t < Tiles; t++) {
                W::template get<Bf16>(a[t][0], raw[t][0], group);
                W::template get<Bf16>(a[t][1], raw[t][1], group);
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

    /* Straight from memory, some steps at a time. */
    __device__ __forceinline__ static void sum_dense(const td_params_linear &p, float (&c)[Tiles][Columns][4])
    {
        constexpr int unroll = W::words * Tiles > 8 ? 1 : W::words * Tiles > 4 ? 2 : Columns > 1 ? 4 : 8;
        const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32), g = lane / 4, q = lane % 4;
        const uint32_t steps = (p.ins + W::channels - 1) / W::channels;
        const uint8_t *w[Tiles][2];

#pragma unroll
        for (int i = 0; i < 2 * Tiles; i++)
            w[i / 2][i % 2] = w_row(p, 8 * i + g);
#pragma unroll 1
        for (uint32_t first = warp; first < steps; first += warps * unroll) {
            uint32_t raw[unroll][Tiles][2][W::words];

#pragma unroll
            for (int u = 0; u < unroll; u++) {
                const uint32_t step = first + u * warps;

#pragma unroll
                for (int i = 0; i < 2 * Tiles; i++)
                    W::template load<LinearGlobal>(raw[u][i / 2][i % 2], w[i / 2][i % 2], step, q,
                                                   step * W::channels + 8 * q < p.ins);
            }
#pragma unroll
            for (int u = 0; u < unroll; u++)
                multiply(p, c, raw[u], (first + u * warps) * W::channels);
        }
    }

    /* By way of shared memory, of which each warp has its own. */
    __device__ __forceinline__ static void sum_runs(const td_params_linear &p, float (&c)[Tiles][Columns][4], uint8_t *ring)
    {
        constexpr int copies = (rows * Run::pieces + 31) / 32, steps = Run::channels / W::channels;
        constexpr int unroll = Columns == 1 ? steps : 1;
        const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32), g = lane / 4, q = lane % 4;
        const uint32_t runs = (p.ins + Run::channels - 1) / Run::channels;
        uint8_t *const mine = ring + warp * (Run::stages * run_bytes);
        constexpr bool kept = Columns < 8; /* else sums leave no registers for addresses */
        constexpr int at_once = kept ? copies : 2;
        const uint8_t *from[copies];
        uint32_t before[2 * Tiles]; /* of the bytes of this thread's rows, up to a multiple of 16 */

#pragma unroll
        for (int i = 0; i < copies; i++)
            from[i] = w_row(p, uint32_t(i * 32 + lane) / Run::pieces);
#pragma unroll
        for (int i = 0; i < 2 * Tiles; i++)
            before[i] = uint32_t(uintptr_t(w_row(p, 8 * i + g)));
        const auto start = [&](uint32_t run, uint32_t stage) {
            const uint32_t to = shared_address(mine + stage * run_bytes);
            const uint32_t bytes = min(uint32_t(Run::channels), p.ins - run * Run::channels) * Run::bytes / Run::channels;

#pragma unroll at_once
            for (int i = 0; i < copies; i++) {
                const uint32_t row = uint32_t(i * 32 + lane) / Run::pieces, at = uint32_t(i * 32 + lane) % Run::pieces * 16;
                const uint8_t *first = (kept ? from[i] : w_row(p, row)) + run * Run::bytes;
                const uint32_t skipped = uint32_t(uintptr_t(first)) % 16, end = skipped + bytes;

                if (run < runs && row < uint32_t(rows) && at < end)
                    cp_async_16_or_zero(to + row * Run::stride + at, first - skipped + at, min(end - at, 16u));
            }
            cp_async_commit();
        };

        start(warp, 0);
        start(warp + warps, 1);
        uint32_t stage = 0;
#pragma unroll 1
        for (uint32_t run = warp; run < runs; run += warps) {
            const uint8_t *w[2 * Tiles];

            cp_async_wait<Run::stages - 1>();
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2 * Tiles; i++)
                w[i] = mine + stage * run_bytes + (8 * i + g) * Run::stride + (before[i] + run * Run::bytes) % 16;
#pragma unroll unroll
            for (int step = 0; step < steps; step++) {
                const uint32_t k = run * Run::channels + step * W::channels;
                uint32_t raw[Tiles][2][W::words];

#pragma unroll
                for (int i = 0; i < 2 * Tiles; i++)
                    W::template load<LinearShared>(raw[i / 2][i % 2], w[i], step, q,
                                                   k + (Weights == TD_LINEAR_INT8 ? 8 * q : 0) < p.ins);
                multiply(p, c, raw, k);
            }
            __syncwarp(); /* all have read what is overwritten now */
            start(run + Run::stages * warps, stage);
            stage ^= 1;
        }
        cp_async_wait<0>();
    }
};

template <class S> __device__ __forceinline__ uint8_t *linear_skinny_shared()
{
    if constexpr (S::dense) {
        __shared__ __align__(16) uint8_t sums[sizeof(typename S::Sums)];

        return sums;
    } else {
        TD_DYNAMIC_SHARED(16, linear_skinny_bytes);

        return linear_skinny_bytes;
    }
}

template <int Weights, int Tiles, int Columns, bool Bf16>
__device__ __forceinline__ void linear_skinny(const td_params_linear &p)
{
    using S = LinearSkinny<Weights, Tiles, Columns, Bf16>;
    constexpr int rows = S::rows, columns = S::columns, stride = S::sum_stride, warps = S::warps, threads = S::threads;
    constexpr int elements = S::elements, together = S::together;
    uint8_t *const shared = linear_skinny_shared<S>();
    auto &parts = reinterpret_cast<typename S::Sums *>(shared)->parts;
    auto &sums = reinterpret_cast<typename S::Sums *>(shared)->sums;
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
    float c[Tiles][Columns][4];

#pragma unroll
    for (int i = 0; i < elements; i++)
        c[i / 4 / Columns][i / 4 % Columns][i % 4] = 0.0f;
    if constexpr (S::dense) {
        S::sum_dense(p, c);
    } else {
        S::sum_runs(p, c, shared);
        __syncthreads(); /* sums lie where weights were */
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

/* Warps that a multiprocessor has registers for: as many as they may have without spilling. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define TD_LINEAR_SKINNY_WIDE 16
#else
#define TD_LINEAR_SKINNY_WIDE 24
#endif
#define TD_LINEAR_SKINNY_AT_ONCE(weights, columns)                               \
    ((columns) == 1 ? ((weights) >= TD_LINEAR_Q6_K ? TD_LINEAR_SKINNY_WIDE : 24) \
                    : (columns) < 8 && (weights) < TD_LINEAR_Q6_K ? 12 : 8)
#define TD_LINEAR_SKINNY_BLOCKS(weights, columns)   \
    ((weights) == TD_LINEAR_DENSE ? 1               \
                                  : TD_LINEAR_SKINNY_AT_ONCE(weights, columns) / TD_LINEAR_SKINNY_WARPS(weights, columns))
#define TD_LINEAR_SKINNY(type, bf16, name, weights, tiles, columns)                                          \
    extern "C" __global__ void __launch_bounds__(32 * TD_LINEAR_SKINNY_WARPS(weights, columns),              \
                                                 TD_LINEAR_SKINNY_BLOCKS(weights, columns))                  \
        linear_##type##_skinny_##name##_##columns(const __grid_constant__ td_params_linear p)                \
    {                                                                                                        \
        td::wait_for_previous();                                                                             \
        if (!td::cancelled(p.cancel))                                                                        \
            td::linear_skinny<weights, tiles, columns, bf16>(p);                                             \
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
TD_LINEAR_SKINNY_TYPES(q5_k, TD_LINEAR_Q5_K)
