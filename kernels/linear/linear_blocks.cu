/* y = finish(x w^T) for up to 64 rows of x and weights of int8 or in blocks: `linear_blocks`, by mma.sync.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Rows of w are mma's 16 rows, rows of x its 8 columns. What is multiplied are the weights' whole numbers, which are exact in x's type;
 * sums of 32 channels, of Q6_K 16, are scaled as float32 and added up. Warps of a tile of 16 rows of w take runs of its channels in turns.
 *
 * Blocks begin at any even address, and a load of two bytes is too few to keep memory busy: a warp copies a run of each row, some 130
 * to 210 bytes, by the pieces of 16 that hold it, into shared memory of its own, two runs ahead, and decodes from there. Four threads
 * copy a row and need no more of its address than where it begins. Warps wait for no others until the end.
 *
 * Time of small layers is the latency of what is met once: so the first runs are under way before the kernel ahead is over where
 * nobody writes w, what sums are finished with is read beside x, and there is little code.
 */
#include "kernels/linear/few_rows.cuh"
#include "kernels/linear/weights.cuh"

namespace td {

/* A thread's eight weights of 32 channels of a row: bytes, less `less`, times the scale, of Q6_K one for each four bytes, less the minimum. */
struct LinearGroup {
    uint32_t codes[2];
    float scale[2], minimum;
};

/* How a run's row lies in shared memory, aligned to two bytes: group() reads, of the i-th 32 channels, those of thread q of four: 4q to
 * 4q + 3 and those 16 further, so that rows of an odd number of pieces apart meet all banks. */
template <int Weights> struct LinearRun;

template <> struct LinearRun<TD_LINEAR_INT8> : LinearShared {
    static constexpr int channels = 128, bytes = 128, less = 128;
    static constexpr bool has_scale = false, has_minimum = false, has_halves = false;

    __device__ __forceinline__ static void group(LinearGroup &to, const uint8_t *row, int i, int q)
    {
        const uint32_t *words = reinterpret_cast<const uint32_t *>(row + 32 * i + 4 * q);

        to.codes[0] = words[0] ^ 0x80808080u, to.codes[1] = words[4] ^ 0x80808080u;
    }
};

template <> struct LinearRun<TD_LINEAR_Q8_0> : LinearShared {
    static constexpr int channels = 128, bytes = 4 * 34, less = 128;
    static constexpr bool has_scale = true, has_minimum = false, has_halves = false;

    __device__ __forceinline__ static void group(LinearGroup &to, const uint8_t *row, int i, int q)
    {
        const uint8_t *block = row + 34 * i;

        to.scale[0] = block_half(u16(block));
        to.codes[0] = u32(block + 2 + 4 * q) ^ 0x80808080u;
        to.codes[1] = u32(block + 18 + 4 * q) ^ 0x80808080u;
    }
};

template <> struct LinearRun<TD_LINEAR_Q4_0> : LinearShared {
    static constexpr int channels = 256, bytes = 8 * 18, less = 8;
    static constexpr bool has_scale = true, has_minimum = false, has_halves = false;

    __device__ __forceinline__ static void group(LinearGroup &to, const uint8_t *row, int i, int q)
    {
        const uint8_t *block = row + 18 * i;
        const uint32_t x = u32(block + 2 + 4 * q);

        to.scale[0] = block_half(u16(block));
        to.codes[0] = x & 0x0f0f0f0fu, to.codes[1] = x >> 4 & 0x0f0f0f0fu;
    }
};

template <> struct LinearRun<TD_LINEAR_Q4_1> : LinearShared {
    static constexpr int channels = 256, bytes = 8 * 20, less = 0;
    static constexpr bool has_scale = true, has_minimum = true, has_halves = false;

    __device__ __forceinline__ static void group(LinearGroup &to, const uint8_t *row, int i, int q)
    {
        const uint8_t *block = row + 20 * i;
        const uint32_t x = u32(block + 4 + 4 * q);

        to.scale[0] = block_half(u16(block));
        to.minimum = -block_half(u16(block + 2));
        to.codes[0] = x & 0x0f0f0f0fu, to.codes[1] = x >> 4 & 0x0f0f0f0fu;
    }
};

/* Scale and minimum of sub-block i of Q4_K or Q5_K. */
__device__ __forceinline__ void linear_k_pair(LinearGroup &to, const uint8_t *block, int i)
{
    const uint32_t bytes = linear_k_scales<LinearShared>(block + 4, uint32_t(i) / 2);

    to.scale[0] = __fmul_rn(block_half(LinearShared::u16(block)), block_byte(bytes, i % 2, 0.0f));
    to.minimum = __fmul_rn(block_half(LinearShared::u16(block + 2)), block_byte(bytes, 2 + i % 2, 0.0f));
}

template <> struct LinearRun<TD_LINEAR_Q4_K> : LinearShared {
    static constexpr int channels = 256, bytes = 144, less = 0;
    static constexpr bool has_scale = true, has_minimum = true, has_halves = false;

    __device__ __forceinline__ static void group(LinearGroup &to, const uint8_t *row, int i, int q)
    {
        linear_k_pair(to, row, i);
#pragma unroll
        for (int k = 0; k < 2; k++)
            to.codes[k] = u32(row + 16 + i / 2 * 32 + 4 * q + 16 * k) >> i % 2 * 4 & 0x0f0f0f0fu;
    }
};

template <> struct LinearRun<TD_LINEAR_Q5_K> : LinearShared {
    static constexpr int channels = 256, bytes = 176, less = 0;
    static constexpr bool has_scale = true, has_minimum = true, has_halves = false;

    __device__ __forceinline__ static void group(LinearGroup &to, const uint8_t *row, int i, int q)
    {
        linear_k_pair(to, row, i);
#pragma unroll
        for (int k = 0; k < 2; k++)
            to.codes[k] = (u32(row + 48 + i / 2 * 32 + 4 * q + 16 * k) >> i % 2 * 4 & 0x0f0f0f0fu) |
                          (u32(row + 16 + 4 * q + 16 * k) >> i & 0x01010101u) << 4;
    }
};

template <> struct LinearRun<TD_LINEAR_Q6_K> : LinearShared {
    static constexpr int channels = 256, bytes = 210, less = 32;
    static constexpr bool has_scale = true, has_minimum = false, has_halves = true;

    __device__ __forceinline__ static void group(LinearGroup &to, const uint8_t *row, int i, int q)
    {
        const int half = i / 4, part = i % 4;
        const uint8_t *scales = row + 192 + 8 * half + 2 * part;
        const float all = block_half(u16(row + 208));

#pragma unroll
        for (int k = 0; k < 2; k++) {
            const uint32_t low = u32(row + 64 * half + part % 2 * 32 + 4 * q + 16 * k) >> part / 2 * 4;
            const uint32_t high = u32(row + 128 + 32 * half + 4 * q + 16 * k) >> 2 * part;

            to.codes[k] = (low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4;
            to.scale[k] = __fmul_rn(all, float(int8_t(scales[k])));
        }
    }
};

/* Four channels of x and those 16 further, as far as the first of each is before `left`. */
__device__ __forceinline__ void linear_load_x(uint32_t (&x)[4], const uint16_t *channels, int left)
{
    const uint2 none = make_uint2(0, 0), *at = reinterpret_cast<const uint2 *>(channels);
    const uint2 low = left > 0 ? __ldg(at) : none, high = left > 16 ? __ldg(at + 4) : none;

    x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
}

/* Columns: tiles of 8 rows of x. */
template <int Weights, int Columns, bool Bf16> struct LinearBlocks {
    using Run = LinearRun<Weights>;
    static constexpr int warps = TD_LINEAR_BLOCKS_WARPS(Weights), threads = 32 * warps, stages = 2;
    static constexpr int before = Weights == TD_LINEAR_INT8 ? 8 : 14; /* bytes of a first piece that are not the row's, at most */
    /* An odd number of pieces of 16 bytes from one row to the next meets all banks. */
    static constexpr int pieces = (before + Run::bytes + 15) / 16, copies = (pieces + 3) / 4, stride = 16 * (pieces | 1);
    static constexpr int run_bytes = 16 * stride;
    static_assert(Run::channels == TD_LINEAR_BLOCKS_RUN(Weights) && warps * stages * run_bytes <= TD_LINEAR_BLOCKS_SHARED_BYTES(Weights) &&
                      LinearFewRows<warps, Columns>::bytes <= TD_LINEAR_BLOCKS_SHARED_BYTES(Weights) && TD_LINEAR_BLOCKS_SHARED_BYTES(Weights) <= 47 * 1024,
                  "what plans ask for; no more than a block has in a command buffer");

    const td_params_linear &p;
    uint8_t *const mine;  /* this warp's part of the ring */
    uint32_t part, share; /* of a tile's warps this is the part-th */
    int g, q;

    __device__ __forceinline__ LinearBlocks(const td_params_linear &all, uint8_t *ring)
        : p(all), mine(ring + threadIdx.x / 32 * (stages * run_bytes)), part(threadIdx.x / 32 % all.tile_warps), share(all.tile_warps),
          g(int(threadIdx.x % 32 / 4)), q(int(threadIdx.x % 4))
    {
    }
    /* Where this warp's first run begins in rows g and g + 8 of the tile. With a gate by halves the first eight rows of a tile are of
     * the first half of w. Rows that do not exist are the last one. */
    __device__ __forceinline__ void find(const uint8_t *(&rows)[2]) const
    {
        const uint32_t tile = first_tile() + threadIdx.x / 32 / share, w_rows = p.gate ? 2 * p.outs : p.outs;

#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = p.gate == TANDEM_GATE_HALVES ? tile * 8 + g + i * p.outs : tile * 16 + 8 * i + g;

            rows[i] = static_cast<const uint8_t *>(p.w) + min(row, w_rows - 1) * p.w_stride + part * Run::bytes;
        }
    }
    __device__ __forceinline__ uint32_t first_tile() const { return blockIdx.x * (warps / share); }
    __device__ __forceinline__ uint32_t runs() const { return (p.ins + Run::channels - 1) / Run::channels; }

    /* Begins to copy a run, if there is such a one, of rows that begin at `from`. */
    __device__ __forceinline__ void start(const uint8_t *const (&from)[2], uint32_t run, uint32_t stage) const
    {
        if (run < runs())
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int skipped = int(uintptr_t(from[i]) % 16);
                const uint8_t *first = from[i] - skipped + 16 * q;
                const uint32_t to = shared_address(mine + stage * run_bytes + (8 * i + g) * stride + 16 * q);

                if ((run + 1) * Run::channels <= p.ins) {
#pragma unroll
                    for (int k = 0; k < copies; k++)
                        if (64 * k + 64 <= Run::bytes) /* whatever q is */
                            cp_async_16(to + 64 * k, first + 64 * k);
                        else
                            cp_async_16_some(to + 64 * k, first + 64 * k, skipped + Run::bytes - 16 * q - 64 * k);
                } else {
                    const int bytes = skipped + int(p.ins % Run::channels) * Run::bytes / Run::channels;

#pragma unroll 1
                    for (int k = 0; k < copies; k++)
                        cp_async_16_some(to + 64 * k, first + 64 * k, bytes - 16 * q - 64 * k);
                }
            }
        cp_async_commit();
    }

    /* Adds the products of 32 channels, from channel k on. */
    __device__ __forceinline__ void multiply(float (&c)[Columns][4], const uint8_t *const (&rows)[2], int i, uint32_t k) const
    {
        const bool there = k < p.ins; /* blocks are there as a whole */
        const uint32_t ones = Bf16 ? 0x3f803f80u : 0x3c003c00u, one[4] = {ones, ones, ones, ones};
        LinearGroup of[2];
        uint32_t a[2][4]; /* four channels in two words, of both halves */

#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t(&words)[4] = a[r];
            uint32_t low[2], high[2];

            Run::group(of[r], rows[r], i, q);
            linear_whole<Bf16>(low, of[r].codes[0], float(Run::less));
            linear_whole<Bf16>(high, of[r].codes[1], float(Run::less));
            words[0] = low[0], words[1] = low[1], words[2] = high[0], words[3] = high[1];
        }
#pragma unroll
        for (int column = 0; column < Columns; column++) {
            const uint32_t row = min(8u * column + g, p.rows - 1); /* what does not exist is not written */
            float sums[2][4] = {}, all[4] = {};
            uint32_t x[4];

            linear_load_x(x, static_cast<const uint16_t *>(p.x) + (row * uint32_t(p.x_stride) + k + 4 * q), int(p.ins) - int(k) - 4 * q);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t fragment[4] = {a[0][2 * half], a[1][2 * half], a[0][2 * half + 1], a[1][2 * half + 1]};

                linear_mma<Bf16>(Run::has_scale ? sums[Run::has_halves ? half : 0] : c[column], fragment, x[2 * half], x[2 * half + 1]);
                if constexpr (Run::has_minimum)
                    linear_mma<Bf16>(all, one, x[2 * half], x[2 * half + 1]);
            }
            if constexpr (Run::has_scale)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const LinearGroup &mine_of = of[e / 2];

                    if (there) /* what lies behind the last block is no number */
                        c[column][e] = __fmaf_rn(mine_of.scale[0], sums[0][e], c[column][e]);
                    if (there && Run::has_halves)
                        c[column][e] = __fmaf_rn(mine_of.scale[1], sums[1][e], c[column][e]);
                    if (there && Run::has_minimum)
                        c[column][e] = __fmaf_rn(-mine_of.minimum, all[e], c[column][e]);
                }
        }
    }

    /* Those of all of this warp's runs, of which the first two are on their way; `next` is where the third begins. */
    __device__ __forceinline__ void sum(float (&c)[Columns][4], const uint8_t *(&next)[2]) const
    {
        constexpr int pairs = Run::channels / 64, unroll = Columns > 1 ? 1 : Weights >= TD_LINEAR_Q4_K ? pairs : 2, within = Columns <= 2 ? 2 : 1;
        const uint32_t step = share * Run::bytes;
        uint32_t stage = 0;

#pragma unroll 1
        for (uint32_t run = part; run < runs(); run += share) {
            const uint8_t *rows[2];

            cp_async_wait<stages - 1>();
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2; i++)
                rows[i] = mine + stage * run_bytes + (8 * i + g) * stride + (uint32_t(uintptr_t(next[i])) - stages * step) % 16;
#pragma unroll unroll
            for (int i = 0; i < pairs; i++) /* of sub-blocks, which share bytes */
#pragma unroll within
                for (int j = 2 * i; j < 2 * i + 2; j++)
                    multiply(c, rows, j, run * Run::channels + 32 * j);
            __syncwarp(); /* all have read what is overwritten now */
            start(next, run + stages * share, stage);
            next[0] += step, next[1] += step;
            stage ^= 1;
        }
        cp_async_wait<0>();
    }
};

template <int Weights, int Columns, bool Bf16> __device__ __forceinline__ void linear_blocks(const td_params_linear &p)
{
    using B = LinearBlocks<Weights, Columns, Bf16>;
    TD_DYNAMIC_SHARED(16, linear_blocks_bytes);
    const B b(p, linear_blocks_bytes);
    float *const sums = reinterpret_cast<float *>(linear_blocks_bytes);
    LinearFewRows<B::warps, Columns> rows(p, blockIdx.x, 0, p.rows);
    const uint8_t *next[2];
    float c[Columns][4] = {};

    if (!p.w_is_constant)
        wait_for_previous();
    b.find(next);
#pragma unroll 1
    for (uint32_t stage = 0; stage < B::stages; stage++) {
        b.start(next, b.part + stage * b.share, stage);
        next[0] += b.share * B::Run::bytes, next[1] += b.share * B::Run::bytes;
    }
    if (p.w_is_constant)
        wait_for_previous();
    launch_dependents();
    const bool stop = is_set(p.cancel);

    rows.look();
    rows.begin();
    b.sum(c, next);
    __syncthreads(); /* sums lie where weights were */
    rows.put(c, sums);
    if (!__syncthreads_or(stop))
        rows.finish(sums);
}

} // namespace td

/* Warps that a multiprocessor is to have at once, so that none of their registers spill: scales and minima take some. */
#define TD_LINEAR_BLOCKS_AT_ONCE(weights, columns) ((columns) == 8 ? 8 : (weights) < TD_LINEAR_Q4_1 ? 24 : 16)
#define TD_LINEAR_BLOCKS(type, bf16, name, weights, columns)                                                                     \
    extern "C" __global__ void __launch_bounds__(32 * TD_LINEAR_BLOCKS_WARPS(weights),                                      \
                                                 TD_LINEAR_BLOCKS_AT_ONCE(weights, columns) / TD_LINEAR_BLOCKS_WARPS(weights))    \
        linear_##type##_blocks_##name##_##columns(const __grid_constant__ td_params_linear p)                                     \
    {                                                                                                                             \
        td::linear_blocks<weights, columns, bf16>(p);                                                                             \
    }
#define TD_LINEAR_BLOCKS_TYPES(name, weights)         \
    TD_LINEAR_BLOCKS(f16, false, name, weights, 1)    \
    TD_LINEAR_BLOCKS(f16, false, name, weights, 2)    \
    TD_LINEAR_BLOCKS(f16, false, name, weights, 4)    \
    TD_LINEAR_BLOCKS(f16, false, name, weights, 8)    \
    TD_LINEAR_BLOCKS(bf16, true, name, weights, 1)    \
    TD_LINEAR_BLOCKS(bf16, true, name, weights, 2)    \
    TD_LINEAR_BLOCKS(bf16, true, name, weights, 4)    \
    TD_LINEAR_BLOCKS(bf16, true, name, weights, 8)
TD_LINEAR_BLOCKS_TYPES(int8, TD_LINEAR_INT8)
TD_LINEAR_BLOCKS_TYPES(q8_0, TD_LINEAR_Q8_0)
TD_LINEAR_BLOCKS_TYPES(q4_0, TD_LINEAR_Q4_0)
TD_LINEAR_BLOCKS_TYPES(q4_1, TD_LINEAR_Q4_1)
TD_LINEAR_BLOCKS_TYPES(q4_k, TD_LINEAR_Q4_K)
TD_LINEAR_BLOCKS_TYPES(q6_k, TD_LINEAR_Q6_K)
TD_LINEAR_BLOCKS_TYPES(q5_k, TD_LINEAR_Q5_K)
