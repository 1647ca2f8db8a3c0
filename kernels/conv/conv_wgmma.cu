/* Convolutions of images by wgmma, for sm_90a: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Two warpgroups, each with one or two tiles of 8 x 8 pixels. Pixels lie in shared memory as 16 bytes of eight channels, one
 * after the other along a row, so eight neighbours are what wgmma calls a core matrix, and the window's next tap is the same
 * matrix 16 bytes further: nothing is copied for it. With stride 2 even and odd columns lie apart, for the same reason.
 *
 * A stage is one row of the window times sixteen channels: its weights, and pixels where they are others than the stage before
 * had. Stages go through a ring by cp.async, two ahead of the products, which run one behind:
 *
 *   wait for the copies of this stage; all threads meet; start the copies of the stage after the next; start this stage's
 *   products; wait for those of the stage before
 *
 * When all threads met, whoever did has waited for the products of the stage before the last, so its place in the ring is free.
 * Where there is no room for a fourth stage (stride 2) none is left under way.
 */
#include "kernels/conv/params.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor.cuh"

#if TD_HAVE_WGMMA

namespace td {

#ifndef TD_PTX_HEADER /* the emulator has it of any size */
#define TD_D_12 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11"
#define TD_X_12(c, x) TD_X_AT(c, x, 0), TD_X_AT(c, x, 4), TD_X_AT(c, x, 8)
TD_WGMMA_QK(24, 12, 12, 13)
TD_WGMMA_QK(32, 16, 16, 17)
TD_WGMMA_QK(48, 24, 24, 25)
TD_WGMMA_QK(80, 40, 40, 41)

/* As cp_async_16_or_zero(), by way of the L1 cache. */
__device__ __forceinline__ void cp_async_16_by_l1(uint32_t shared, const void *global, uint32_t bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" : : "r"(shared), "l"(global), "r"(bytes) : "memory");
}
#else
static inline void cp_async_16_by_l1(uint32_t shared, const void *global, uint32_t bytes)
{
    cp_async_16_or_zero(shared, global, bytes);
}
#endif

template <int Size, int Stride, int Outs, int Tiles> struct ConvWgmma {
    static constexpr int threads = int(TD_CONV_WGMMA_THREADS), wide = int(TD_CONV_WIDTH), high = 8 * Tiles;
    /* Stages of weights, and of pixels: with stride 1 all rows of a window are in one, else each has its own. */
    static constexpr int ring = Stride == 1 ? 4 : 3, pixel_ring = Size == 3 && Stride == 1 ? 2 : ring, pending = ring - 3;
    static constexpr int rows = Stride == 1 ? high + Size - 1 : high, columns = (wide - 1) * Stride + Size, pitch = (columns + Stride - 1) / Stride;
    static constexpr int plane = rows * pitch * Stride; /* pixels of eight channels, those that no window has counted */
    static constexpr uint32_t pixel_bytes = plane * 32, weight_bytes = Size * Outs * 32;
    static constexpr int pieces = 2 * rows * columns, pieces_each = (pieces + threads - 1) / threads;
    static constexpr int weights = 2 * Size * Outs, weights_each = (weights + threads - 1) / threads;
    static_assert(pixel_ring * pixel_bytes + ring * weight_bytes == TD_CONV_WGMMA_SHARED(Size, Stride, Outs, Tiles), "what the plan says");
    static_assert(TD_CONV_WGMMA_SHARED(Size, Stride, Outs, Tiles) <= 47 * 1024, "no more than a block has in a command buffer");

    /* What a block computes at a time. */
    struct Part {
        int64_t batch;
        int row, column, out, outs; /* its first, and how many outputs there are */

        __device__ __forceinline__ void set(const td_params_conv &p, uint32_t index)
        {
            const uint32_t at = index / p.tiles, line = at / p.columns;

            batch = line / p.rows;
            row = int(line - uint32_t(batch) * p.rows) * high;
            column = int(at - line * p.columns) * wide;
            out = int(index - at * p.tiles) * Outs;
            outs = min(Outs, int(p.outs) - out);
        }
    };

    const td_params_conv &p;
    Part ahead;     /* which copies are of */
    uint32_t index; /* its */
    int channel;    /* of it: the next to be copied */
    /* In shared memory: the rings, and where the next stage to be multiplied and the next to be copied are. */
    uint32_t x_first, w_first, x_read, w_read, x_write, w_write;
    /* What this thread copies of a stage: from where in x, coarse and weights, in octets of channels, -1: zeros; to where. */
    int place[pieces_each], coarse[Stride == 1 ? pieces_each : 1], weight[weights_each];
    uint32_t to[Stride == 1 ? 1 : pieces_each], weight_to[weights_each];

    __device__ __forceinline__ ConvWgmma(const td_params_conv &params, uint8_t *shared) : p(params), index(blockIdx.x), channel(0)
    {
        x_first = x_read = x_write = shared_address(shared);
        w_first = w_read = w_write = x_first + pixel_ring * pixel_bytes;
#pragma unroll
        for (int i = 0; i < (Stride == 1 ? 1 : pieces_each); i++) {
            const int piece = int(threadIdx.x) + i * threads, row = piece / 2 / columns, column = piece / 2 % columns;

            to[i] = uint32_t(piece % 2 * plane + (column % Stride * rows + row) * pitch + column / Stride) * 16;
        }
#pragma unroll
        for (int i = 0; i < weights_each; i++) {
            const int piece = int(threadIdx.x) + i * threads, out = piece / 2 % Outs, tap = piece / 2 / Outs;

            weight_to[i] = uint32_t((tap * 2 + piece % 2) * Outs + out) * 16;
        }
        aim();
    }

    /* At the part ahead. */
    __device__ __forceinline__ void aim()
    {
        ahead.set(p, index);
#pragma unroll
        for (int i = 0; i < pieces_each; i++) {
            const int y = row_of(i), x = ahead.column * Stride - Size / 2 + (int(threadIdx.x) + i * threads) / 2 % columns;
            const bool exists = unsigned(x) < p.width && (Stride == 2 || unsigned(y) < p.height);

            if constexpr (Stride == 1) {
                place[i] = exists ? y * p.x_row + x * p.x_pixel : -1;
                coarse[i] = exists ? y / 2 * p.coarse_row + x / 2 * p.coarse_pixel : -1;
            } else {
                place[i] = exists ? x : -1;
            }
        }
#pragma unroll
        for (int i = 0; i < weights_each; i++) {
            const int piece = int(threadIdx.x) + i * threads, out = piece / 2 % Outs, tap = piece / 2 / Outs;

            weight[i] = out < ahead.outs ? (ahead.out + out) * p.w_row + tap * int(p.total / 8) + piece % 2 : -1;
        }
    }

    /* Of this thread's piece i in the image: that of the window's first row with stride 2. */
    __device__ __forceinline__ int row_of(int i) const
    {
        return ahead.row * Stride - Size / 2 + (int(threadIdx.x) + i * threads) / 2 / columns * Stride;
    }

    template <int Ring> __device__ __forceinline__ static void next(uint32_t &at, uint32_t first, uint32_t bytes)
    {
        at = at == first + (Ring - 1) * bytes ? first : at + bytes;
    }

    /* Starts copies of the next stage, if there is one: row `window` of the windows. */
    __device__ __forceinline__ void load(int window)
    {
        if (index < p.parts) {
            if (Stride == 2 || window == 0) {
                load_pixels(window);
                next<pixel_ring>(x_write, x_first, pixel_bytes);
            }
            load_weights(window);
            next<ring>(w_write, w_first, weight_bytes);
            if (window == Size - 1) {
                channel += int(TD_CONV_CHUNK);
                if (channel == int(p.total)) {
                    channel = 0;
                    index += gridDim.x;
                    if (index < p.parts)
                        aim();
                }
            }
        }
        cp_async_commit();
    }

    __device__ __forceinline__ void load_pixels(int window) const
    {
        const bool is_coarse = Stride == 1 && channel >= int(p.channels);
        const __half *image = (is_coarse ? static_cast<const __half *>(p.coarse) + ahead.batch * p.coarse_at.stride_batch + (channel - int(p.channels))
                                         : static_cast<const __half *>(p.x) + ahead.batch * p.x_at.stride_batch + channel) +
                              threadIdx.x % 2 * 8;

#pragma unroll
        for (int i = 0; i < pieces_each; i++) {
            int at = is_coarse ? coarse[Stride == 1 ? i : 0] : place[i];

            if constexpr (Stride == 2) { /* which may be another row at each stage */
                const int y = row_of(i) + window;

                at = at >= 0 && unsigned(y) < p.height ? y * p.x_row + at * p.x_pixel : -1;
            }
            if (int(threadIdx.x) + i * threads < pieces)
                cp_async_16_or_zero(x_write + (Stride == 1 ? to[0] + uint32_t(i * threads * 8) : to[Stride == 1 ? 0 : i]), image + int64_t(max(at, 0)) * 8,
                                    at < 0 ? 0 : 16);
        }
    }

    /* By way of L1, where they are still when a block has its next part: 32 bytes at a time, they are most of what L2 is asked for. */
    __device__ __forceinline__ void load_weights(int window) const
    {
        const __half *from = static_cast<const __half *>(p.w) + window * Size * int(p.total) + channel;

#pragma unroll
        for (int i = 0; i < weights_each; i++)
            if (int(threadIdx.x) + i * threads < weights)
                cp_async_16_by_l1(w_write + weight_to[i], from + int64_t(max(weight[i], 0)) * 8, weight[i] < 0 ? 0 : 16);
    }

    /* Where a matrix of eight neighbours after the other lies, as wgmma wants to know it: the next eight channels are `octet` bytes
     * further, the next eight rows `group`. */
    __device__ __forceinline__ static uint64_t matrix(uint32_t address, uint32_t octet, uint32_t group)
    {
        return uint64_t(group >> 4) << 32 | octet >> 4 << 16 | address >> 4;
    }

    /* A warpgroup's tile, its first pixel in the block. */
    __device__ __forceinline__ static int tile_row(int group)
    {
        return Tiles == 2 ? 8 * group : 0;
    }
    __device__ __forceinline__ static int tile_column(int group, int tile)
    {
        return 8 * (Tiles == 2 ? tile : group);
    }

    /* First: before it there are no sums. */
    template <bool First> __device__ __forceinline__ void multiply(int window, float (&c)[Tiles][Outs / 2])
    {
        const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);

        wgmma_fence();
#pragma unroll
        for (int tap = 0; tap < Size; tap++)
#pragma unroll
            for (int t = 0; t < Tiles; t++) {
                const int row = tile_row(group) + (Stride == 1 ? window : tap % 2 * rows), column = tile_column(group, t) + tap / Stride;
                const uint64_t pixels = matrix(x_read + uint32_t(row * pitch + column) * 16, plane * 16, pitch * 16);
                const uint64_t of = matrix(w_read + uint32_t(tap) * (Outs * 32), Outs * 16, 128);

                if (First && tap == 0)
                    wgmma_qk<false, false>(c[t], pixels, of);
                else
                    wgmma_qk<true, false>(c[t], pixels, of);
            }
        wgmma_commit();
        if (Stride == 2 || window == Size - 1)
            next<pixel_ring>(x_read, x_first, pixel_bytes);
        next<ring>(w_read, w_first, weight_bytes);
    }

    template <bool First> __device__ __forceinline__ void step(int window, float (&c)[Tiles][Outs / 2])
    {
        cp_async_wait<1>();
        fence_proxy_async();
        __syncthreads();
        load((window + 2) % Size);
        multiply<First>(window, c);
        wgmma_wait<pending>();
    }

    /* Four lanes have a pixel, two outputs of each eight. Of two times eight, which are 32 bytes, the two lanes of a pair give each other
     * what makes four in a row of each, the even lane's of the first eight. */
    __device__ __forceinline__ void write(const float (&c)[Tiles][Outs / 2], uint32_t part) const
    {
        constexpr int octets = Outs / 8;
        const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % 4, group = int(threadIdx.x) / 128, odd = lane % 2;
        Part now;

        now.set(p, part);
        const int row = now.row + tile_row(group) + 2 * warp, column = now.column + tile_column(group, 0) + lane / 4;
        const int each = int(p.each), shuffle = p.shuffle;
        const float least = p.relu ? 0.0f : __uint_as_float(0xff800000u);
        int quarter = (now.out + 8 * odd) / each, of = now.out + 8 * odd - quarter * each; /* of a shuffle: eight neighbours are of one */

#pragma unroll
        for (int n = 0; n < octets; n += 2) {
            const bool is_there = (n + odd) * 8 < now.outs;
            const int pixel = (row * shuffle + quarter / 2) * p.y_row + (column * shuffle + quarter % 2) * p.y_pixel;
            float bias[2][2] = {};

#pragma unroll
            for (int i = 0; i < 4; i++)
                if (p.bias && (n + i / 2) * 8 < now.outs)
                    bias[i / 2][i % 2] = p.bias[now.out + (n + i / 2) * 8 + lane % 4 * 2 + i % 2];
#pragma unroll
            for (int i = 0; i < 2 * Tiles; i++) {
                const int t = i / 2, down = i % 2;
                const bool exists = row + down < int(p.out_height) && column + 8 * t < int(p.out_width);
                const int64_t at = now.batch * p.y_at.stride_batch + int64_t(pixel + down * shuffle * p.y_row + 8 * t * shuffle * p.y_pixel) * 8 + of + lane / 2 % 2 * 4;
                float sums[2][2] = {};

#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (n + j / 2 < octets) {
                        const float sum = c[t][(n + j / 2) * 4 + down * 2 + j % 2] + bias[j / 2][j % 2];

                        sums[j / 2][j % 2] = sum < least ? least : sum;
                    }
                if (p.y_dtype == TANDEM_DTYPE_F32) {
                    const float a = exchange(sums[0][0], sums[1][0]), b = exchange(sums[0][1], sums[1][1]);

                    if (exists && is_there)
                        *reinterpret_cast<float4 *>(static_cast<float *>(p.y) + at) =
                            odd ? make_float4(a, b, sums[1][0], sums[1][1]) : make_float4(sums[0][0], sums[0][1], a, b);
                } else {
                    const uint32_t first = cvt_f16x2(sums[0][1], sums[0][0]), second = cvt_f16x2(sums[1][1], sums[1][0]), got = exchange(first, second);

                    if (exists && is_there)
                        *reinterpret_cast<uint2 *>(static_cast<__half *>(p.y) + at) = odd ? make_uint2(got, second) : make_uint2(first, got);
                }
            }
            of += 16;
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (of >= each)
                    of -= each, quarter++;
        }
    }

    /* The other lane's of a pair: of the even one the second, of the odd one the first. */
    template <class T> __device__ __forceinline__ static T exchange(T first, T second)
    {
        return __shfl_xor_sync(~0u, threadIdx.x % 2 ? first : second, 1);
    }

    __device__ __forceinline__ void run()
    {
        load(0);
        load(1 % Size);
#pragma unroll 1
        for (uint32_t part = blockIdx.x; part < p.parts; part += gridDim.x) {
            float c[Tiles][Outs / 2];

            step<true>(0, c);
#pragma unroll
            for (int window = 1; window < Size; window++)
                step<false>(window, c);
#pragma unroll 1
            for (uint32_t channels = TD_CONV_CHUNK; channels < p.total; channels += TD_CONV_CHUNK)
#pragma unroll
                for (int window = 0; window < Size; window++)
                    step<false>(window, c);
            wgmma_wait<0>();
#pragma unroll
            for (int t = 0; t < Tiles; t++)
                wgmma_hold(c[t]);
            write(c, part);
        }
    }
};

} // namespace td

#define TD_CONV_ENTRY(size, stride, outs, tiles)                                                                                            \
    extern "C" __global__ void __launch_bounds__(TD_CONV_WGMMA_THREADS, TD_CONV_WGMMA_BLOCKS)                                                                  \
        conv_wgmma_##size##_##stride##_##outs##_##tiles(const __grid_constant__ td_params_conv p)                                          \
    {                                                                                                                                       \
        TD_DYNAMIC_SHARED(128, conv_bytes);                                                                                                 \
                                                                                                                                            \
        td::ConvWgmma<size, stride, outs, tiles> part(p, conv_bytes);                                                                       \
        td::wait_for_previous();                                                                                                            \
        td::launch_dependents();                                                                                                            \
        if (!td::cancelled(p.cancel))                                                                                                       \
            part.run();                                                                                                                     \
    }
#define TD_CONV_ENTRIES(size, outs) TD_CONV_ENTRY(size, 1, outs, 1) TD_CONV_ENTRY(size, 1, outs, 2)
TD_CONV_ENTRIES(3, 32)
TD_CONV_ENTRIES(3, 48)
TD_CONV_ENTRIES(3, 64)
TD_CONV_ENTRY(3, 2, 32, 1)
TD_CONV_ENTRY(3, 2, 48, 1)
TD_CONV_ENTRY(3, 2, 64, 1)
TD_CONV_ENTRIES(1, 24)
TD_CONV_ENTRIES(1, 64)
TD_CONV_ENTRIES(1, 80)
#endif
