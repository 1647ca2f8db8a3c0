/* y = finish(x w^T) of fp16 or bf16 by wgmma, x and w fetched by TMA: `linear_wgmma`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has one or two warpgroups of 64 rows that multiply, and a warp that fetches. It walks over tiles; fetches run ahead
 * into the next one, over a ring of stages of 64 channels. About round n of a stage:
 *
 *   who fetches   waits for phase n - 1 of empty, says how many bytes will come, starts copies: all end phase n of full
 *   each warp     waits for phase n of full, multiplies, waits for the products of the stage before, and arrives at that stage's
 *                 empty
 *
 * Tiles are walked in bands of TD_LINEAR_BAND rows of tiles, column by column, so that those under way at a time share as
 * many rows of x and w in L2 as they can.
 * Shared bytes: LinearTile::shared_bytes. Every wait ends after some ten seconds, then the kernel traps.
 */
#include "kernels/linear/epilogue.cuh"
#include "kernels/linear/walk.cuh"
#include "kernels/linear/wgmma.cuh"

#if TD_HAVE_WGMMA

namespace td {

template <int Groups, int N, int Stages, bool Bf16> struct LinearTile {
    static constexpr int groups = Groups, rows = 64 * Groups, columns = N, stages = Stages;
    static constexpr bool bf16 = Bf16;
    static constexpr int boxes = TD_LINEAR_BOXES, box_rows = N / boxes;
    static constexpr uint32_t stage_bytes = (rows + N) * 128;
    using Out = LinearOut<N>;
    static_assert(box_rows % 8 == 0, "boxes begin where the swizzle does");

    struct Shared {
        alignas(1024) uint8_t x[Stages][rows * 128];
        alignas(1024) uint8_t w[Stages][N * 128];
        uint64_t full[Stages], empty[Stages];
    };
    static_assert(sizeof(Shared) <= 227 * 1024, "more than a block can have");
};

/* One thread. */
template <class T>
__device__ __forceinline__ void linear_fetch(typename T::Shared &shared, const td_params_linear_tma &all)
{
    const td_params_linear &p = all.p;
    const LinearWalk walk = linear_walk<T>(p);
    const uint32_t steps = (p.ins + 63) / 64;
    LinearStage to = {0, 1};

    tma_prefetch_map(&all.x_map);
    tma_prefetch_map(&all.w_map);
#pragma unroll 1
    for (uint32_t work = blockIdx.x; work < walk.count; work += gridDim.x) {
        uint32_t row, column;

        walk.at(work, row, column);
        const int32_t x_row = int32_t(row * T::rows);
        int32_t w_row[T::boxes];
#pragma unroll
        for (int i = 0; i < T::boxes; i++)
            w_row[i] = p.gate == TANDEM_GATE_HALVES
                           ? int32_t(column * (T::columns / 2) + i % (T::boxes / 2) * T::box_rows +
                                     (i < T::boxes / 2 ? 0 : p.outs))
                           : int32_t(column * T::columns + i * T::box_rows);
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            const uint32_t full = shared_address(&shared.full[to.stage]);
            const uint32_t w_to = shared_address(shared.w[to.stage]);

            wait_or_trap(shared.empty[to.stage], to.parity);
            mbarrier_expect(full, T::stage_bytes);
            tma_load(shared_address(shared.x[to.stage]), &all.x_map, full, int32_t(step * 64), x_row);
#pragma unroll
            for (int i = 0; i < T::boxes; i++)
                tma_load(w_to + i * T::box_rows * 128, &all.w_map, full, int32_t(step * 64), w_row[i]);
            to.template next<T::stages>();
        }
    }
}

/* Sums of a tile. */
template <class T>
__device__ __forceinline__ void linear_multiply(typename T::Shared &shared, LinearStage &at, uint32_t steps,
                                                float (&c)[T::columns / 2])
{
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), lane = int(threadIdx.x % 32);
    const uint32_t x_first = shared_address(shared.x[0]) + group * (64 * 128), w_first = shared_address(shared.w[0]);
    uint32_t before = 0;

    const auto leave = [&](uint32_t stage) {
        if (lane == 0)
            mbarrier_arrive(shared_address(&shared.empty[stage]));
    };
#pragma unroll 1
    for (uint32_t step = 0; step < steps; step++) {
        const uint32_t x = x_first + at.stage * (T::rows * 128), w = w_first + at.stage * (T::columns * 128);

        wait_or_trap(shared.full[at.stage], at.parity);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_linear<T::bf16>(c, linear_descriptor<128>(x + 32 * k), linear_descriptor<128>(w + 32 * k),
                                  k > 0 || step > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0)
            leave(before);
        before = at.stage;
        at.template next<T::stages>();
    }
    wgmma_wait<0>();
    wgmma_hold(c);
    leave(before);
}

template <class T>
__device__ __forceinline__ void linear_consume(typename T::Shared &shared, const td_params_linear &p)
{
    const LinearWalk walk = linear_walk<T>(p);
    const int warp = int(threadIdx.x) / 32;
    const uint32_t steps = (p.ins + 63) / 64;
    LinearStage at = {0, 0};

#pragma unroll 1
    for (uint32_t work = blockIdx.x; work < walk.count; work += gridDim.x) {
        uint32_t row, column;
        float c[T::columns / 2];

        walk.at(work, row, column);
        linear_multiply<T>(shared, at, steps, c);
        T::Out::write(p, c, row * T::rows + warp * 16, column);
    }
}

template <class T> __device__ __forceinline__ void linear_run(const td_params_linear_tma &all)
{
    TD_DYNAMIC_SHARED(1024, linear_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(linear_bytes);

    if (threadIdx.x < T::stages) {
        mbarrier_init(shared_address(&shared.full[threadIdx.x]), 1);
        mbarrier_init(shared_address(&shared.empty[threadIdx.x]), 4 * T::groups);
    }
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x >= 128 * T::groups) {
        if constexpr (T::groups > 1)
            setmaxnreg_dec<40>();
        if (threadIdx.x == 128 * T::groups)
            linear_fetch<T>(shared, all);
        __syncwarp();
    } else {
        if constexpr (T::groups > 1)
            setmaxnreg_inc<232>();
        linear_consume<T>(shared, all.p);
    }
}

} // namespace td

#define TD_LINEAR_ENTRY(name, groups, columns, stages, bf16)                                         \
    extern "C" __global__ void __launch_bounds__(128 * (groups) + ((groups) > 1 ? 128 : 32), 1)      \
        name(const __grid_constant__ td_params_linear_tma p)                                         \
    {                                                                                                \
        td::wait_for_previous();                                                                     \
        if (!td::cancelled(p.p.cancel))                                                              \
            td::linear_run<td::LinearTile<groups, columns, stages, bf16>>(p);                        \
    }
#define TD_LINEAR_ENTRIES(name, groups, columns, stages)                     \
    TD_LINEAR_ENTRY(linear_f16_wgmma_##name, groups, columns, stages, false) \
    TD_LINEAR_ENTRY(linear_bf16_wgmma_##name, groups, columns, stages, true)
TD_LINEAR_ENTRIES(128x256, 2, 256, 4)
TD_LINEAR_ENTRIES(128x128, 2, 128, 6)
TD_LINEAR_ENTRIES(64x64, 1, 64, 8)
#endif
