/* y = finish(x w^T) of fp16 or bf16 by wgmma where a block has 47 KB of shared memory and neither clusters nor tensor maps:
 * `linear_inline`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * As linear_wgmma, but a warpgroup fetches by cp.async, a slot of few channels at a time. About round n of a slot:
 *
 *   each thread that fetches   waits for phase n - 1 of empty, starts copies, which arrive at full: all end phase n
 *   each warp that multiplies  waits for phase n of full, then at its fence, multiplies, waits for the products of the slot before,
 *                              and arrives at that slot's empty
 *
 * Nobody waits for copies but those that multiply. Every wait ends after some ten seconds, then the kernel traps.
 */
#include "kernels/linear/epilogue.cuh"
#include "kernels/linear/walk.cuh"
#include "kernels/linear/wgmma.cuh"

#if TD_HAVE_WGMMA

namespace td {

template <int N, int Channels, int Slots, bool Bf16> struct LinearInlineTile {
    static constexpr int rows = 64, columns = N, channels = Channels, slots = Slots;
    static constexpr bool bf16 = Bf16;
    static constexpr int row_bytes = 2 * Channels;
    using Out = LinearOut<N>;

    struct Shared {
        alignas(1024) uint8_t slot[Slots][(rows + N) * row_bytes]; /* rows of x, then of w */
        uint64_t full[Slots], empty[Slots];
    };
    static_assert(sizeof(Shared) <= 47 * 1024, "more than a block has in a command buffer");
};

/* Copies of a tile's rows into a slot: neighbours have neighbouring pieces of 16 bytes of a row. */
template <class T>
__device__ __forceinline__ void linear_inline_fetch(typename T::Shared &shared, const td_params_linear &p)
{
    constexpr int pieces = T::channels / 8, at_once = 128 / pieces; /* rows */
    constexpr int copies = (T::rows + T::columns) / at_once, x_copies = T::rows / at_once;
    static_assert(T::rows % at_once == 0 && T::columns % at_once == 0 && at_once % 8 == 0, "threads copy alike");
    const LinearWalk walk = linear_walk<T>(p);
    const uint32_t steps = (p.ins + T::channels - 1) / T::channels, w_rows = p.gate ? 2 * p.outs : p.outs;
    const uint32_t thread = threadIdx.x % 128, piece = thread % pieces, first = thread / pieces;
    const uint32_t place = first * T::row_bytes + (piece ^ first * T::row_bytes / 128) % pieces * 16;
    const uint32_t slots = shared_address(shared.slot[0]) + place;
    LinearStage to = {0, 1};

#pragma unroll 1
    for (uint32_t work = blockIdx.x; work < walk.count; work += gridDim.x) {
        uint32_t row_tile, column_tile, there = 0;
        const uint8_t *from[copies];

        walk.at(work, row_tile, column_tile);
#pragma unroll
        for (int i = 0; i < copies; i++) {
            const uint32_t x_row = row_tile * T::rows + i * at_once + first;
            const uint32_t in = (i - x_copies) * at_once + first; /* of the tile's rows of w */
            const uint32_t w_row = p.gate == TANDEM_GATE_HALVES ? column_tile * (T::columns / 2) + in % (T::columns / 2) +
                                                                    (in < T::columns / 2 ? 0 : p.outs)
                                                              : column_tile * T::columns + in;
            const bool exists = i < x_copies ? x_row < p.rows : w_row < w_rows;

            from[i] = i < x_copies ? static_cast<const uint8_t *>(p.x) + 2 * x_row * p.x_stride
                                   : static_cast<const uint8_t *>(p.w) + w_row * p.w_stride;
            from[i] = exists ? from[i] + piece * 16 : static_cast<const uint8_t *>(p.x);
            there |= uint32_t(exists) << i;
        }
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            const uint32_t slot = slots + to.stage * sizeof shared.slot[0];
            const uint32_t now = step * T::channels + 8 * piece < p.ins ? there : 0;

            wait_or_trap(shared.empty[to.stage], to.parity);
#pragma unroll
            for (int i = 0; i < copies; i++)
                cp_async_16_or_zero(slot + i * at_once * T::row_bytes, from[i] + step * T::row_bytes,
                                    now >> i & 1 ? 16 : 0);
            cp_async_arrive(shared_address(&shared.full[to.stage]));
            to.template next<T::slots>();
        }
    }
    cp_async_commit(); /* no thread leaves before its copies are there */
    cp_async_wait<0>();
}

template <class T>
__device__ __forceinline__ void linear_inline_consume(typename T::Shared &shared, const td_params_linear &p)
{
    const LinearWalk walk = linear_walk<T>(p);
    const uint32_t steps = (p.ins + T::channels - 1) / T::channels;
    const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), lane = int(threadIdx.x % 32);
    const uint32_t x_first = shared_address(shared.slot[0]) + warp / 4 * (64 * T::row_bytes);
    const uint32_t w_first = shared_address(shared.slot[0]) + T::rows * T::row_bytes;
    LinearStage at = {0, 0};

    const auto leave = [&](uint32_t slot) {
        if (lane == 0)
            mbarrier_arrive(shared_address(&shared.empty[slot]));
    };
#pragma unroll 1
    for (uint32_t work = blockIdx.x; work < walk.count; work += gridDim.x) {
        uint32_t row, column, before = 0;
        float c[T::columns / 2];

        walk.at(work, row, column);
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            const uint32_t here = at.stage * sizeof shared.slot[0];

            wait_or_trap(shared.full[at.stage], at.parity);
            fence_proxy_async();
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < T::channels / 16; k++)
                wgmma_linear<T::bf16>(c, linear_descriptor<T::row_bytes>(x_first + here + 32 * k),
                                      linear_descriptor<T::row_bytes>(w_first + here + 32 * k), k > 0 || step > 0);
            wgmma_commit();
            wgmma_wait<1>();
            if (step > 0)
                leave(before);
            before = at.stage;
            at.template next<T::slots>();
        }
        wgmma_wait<0>();
        wgmma_hold(c);
        leave(before);
        T::Out::write(p, c, row * T::rows + warp * 16, column);
    }
}

template <class T> __device__ __forceinline__ void linear_inline(const td_params_linear &p)
{
    TD_DYNAMIC_SHARED(1024, linear_inline_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(linear_inline_bytes);

    if (threadIdx.x < T::slots) {
        mbarrier_init(shared_address(&shared.full[threadIdx.x]), 128);
        mbarrier_init(shared_address(&shared.empty[threadIdx.x]), 4);
    }
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x >= 128)
        linear_inline_fetch<T>(shared, p);
    else
        linear_inline_consume<T>(shared, p);
}

} // namespace td

#define TD_LINEAR_INLINE_ENTRY(name, columns, channels, slots, bf16)                                  \
    extern "C" __global__ void __launch_bounds__(256, 1) name(const __grid_constant__ td_params_linear p) \
    {                                                                                                 \
        td::wait_for_previous();                                                                      \
        if (!td::cancelled(p.cancel))                                                                 \
            td::linear_inline<td::LinearInlineTile<columns, channels, slots, bf16>>(p);               \
    }
TD_LINEAR_INLINE_ENTRY(linear_f16_inline_64x64, 64, 32, 5, false)
TD_LINEAR_INLINE_ENTRY(linear_bf16_inline_64x64, 64, 32, 5, true)
#endif
