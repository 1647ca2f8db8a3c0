/* y = finish(x w^T) of fp16 or bf16 by wgmma, x and w fetched by TMA: `linear_wgmma`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has one or two warpgroups of 64 rows that multiply, and a warp that fetches. It walks over tiles; fetches run ahead
 * into the next one, over a ring of stages of 64 channels. About round n of a stage:
 *
 *   who fetches   waits for phase n - 1 of empty, says how many bytes will come, starts copies: all end phase n of full
 *   each warp     waits for phase n of full, multiplies, waits for the products of the stage before, and arrives at that stage's
 *                 empty of every block of the cluster
 *
 * Blocks of a cluster have tiles of the same columns, below each other. Each fetches its own rows of x and a part of w's rows
 * for all: so nobody may fetch into a stage before the warps of all blocks have left it, and no block may end before what
 * others send to it has come and what it says to others is heard (the barrier at the end).
 * Tiles are walked in bands of TD_LINEAR_BAND clusters' rows, column by column, so that those under way at a time share as
 * many rows of x and w in L2 as they can.
 * Shared bytes: LinearTile::shared_bytes. Every wait ends after some ten seconds, then the kernel traps.
 */
#include "kernels/linear/epilogue.cuh"
#include "kernels/linear/walk.cuh"
#include "kernels/linear/wgmma.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* Blocks of a cluster share columns (`Cluster`), or the channels of one tile (`Splits`); not both. */
template <int Groups, int N, int Stages, int Cluster, int Splits, bool Bf16> struct LinearTile {
    static constexpr int groups = Groups, rows = 64 * Groups, columns = N, stages = Stages;
    static constexpr int cluster = Cluster, splits = Splits, blocks = Cluster * Splits;
    static constexpr bool bf16 = Bf16;
    static_assert(Cluster == 1 || Splits == 1, "blocks share one thing");
    static constexpr int threads = 128 * Groups + (Groups > 1 ? 128 : 32);
    static constexpr int boxes = TD_LINEAR_BOXES(Cluster), box_rows = N / boxes;
    static constexpr uint32_t stage_bytes = (rows + N) * 128;
    using Out = LinearOut<N>;
    static_assert(box_rows % 8 == 0, "boxes begin where the swizzle does");

    struct Ring {
        alignas(1024) uint8_t x[Stages][rows * 128];
        alignas(1024) uint8_t w[Stages][N * 128];
    };
    static constexpr int sum_stride = N + 8; /* floats */
    static_assert(Splits == 1 || sizeof(Ring) >= 4 * rows * sum_stride, "sums lie where stages were");

    struct Shared : Ring {
        uint64_t full[Stages], empty[Stages];
        uint32_t given_up;
    };
    static_assert(sizeof(Shared) <= 227 * 1024, "more than a block can have");
};

/* Which steps of 64 channels are a block's. */
struct LinearSteps {
    uint32_t begin, end;

    __device__ __forceinline__ LinearSteps(const td_params_linear &p, uint32_t split, uint32_t splits)
    {
        const uint32_t steps = (p.ins + 63) / 64;

        begin = steps * split / splits;
        end = steps * (split + 1) / splits;
    }
};

template <class T> __device__ __forceinline__ uint32_t linear_row(uint32_t row_tile, uint32_t rank)
{
    return (row_tile * T::cluster + (T::cluster > 1 ? rank : 0)) * T::rows;
}

/* One thread. */
template <class T>
__device__ __forceinline__ void linear_fetch(typename T::Shared &shared, const td_params_linear_tma &all, uint32_t rank)
{
    const td_params_linear &p = all.p;
    const LinearWalk walk = linear_walk<T>(p);
    const LinearSteps steps(p, T::splits > 1 ? rank : 0, T::splits);
    LinearStage to = {0, 1};

    tma_prefetch_map(&all.x_map);
    tma_prefetch_map(&all.w_map);
#pragma unroll 1
    for (uint32_t work = blockIdx.x / T::blocks; work < walk.count; work += gridDim.x / T::blocks) {
        uint32_t row, column;

        walk.at(work, row, column);
        const int32_t x_row = int32_t(linear_row<T>(row, rank));
        int32_t w_row[T::boxes];
#pragma unroll
        for (int i = 0; i < T::boxes; i++)
            w_row[i] = p.gate == TANDEM_GATE_HALVES
                           ? int32_t(column * (T::columns / 2) + i % (T::boxes / 2) * T::box_rows +
                                     (i < T::boxes / 2 ? 0 : p.outs))
                           : int32_t(column * T::columns + i * T::box_rows);
#pragma unroll 1
        for (uint32_t step = steps.begin; step < steps.end; step++) {
            const uint32_t full = shared_address(&shared.full[to.stage]);
            const uint32_t w_to = shared_address(shared.w[to.stage]);

            wait_or_trap(shared.empty[to.stage], to.parity);
            mbarrier_expect(full, T::stage_bytes);
            tma_load(shared_address(shared.x[to.stage]), &all.x_map, full, int32_t(step * 64), x_row);
#pragma unroll
            for (int i = 0; i < T::boxes; i++) {
                if constexpr (T::cluster == 1)
                    tma_load(w_to + i * T::box_rows * 128, &all.w_map, full, int32_t(step * 64), w_row[i]);
                else if (uint32_t(i) % T::cluster == rank)
                    tma_load_multicast(w_to + i * T::box_rows * 128, &all.w_map, full, int32_t(step * 64), w_row[i],
                                       (1 << T::cluster) - 1);
            }
            to.template next<T::stages>();
        }
    }
}

/* Sums of a tile, over this block's steps. */
template <class T>
__device__ __forceinline__ void linear_multiply(typename T::Shared &shared, LinearStage &at, LinearSteps steps,
                                                float (&c)[T::columns / 2])
{
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), lane = int(threadIdx.x % 32);
    const uint32_t x_first = shared_address(shared.x[0]) + group * (64 * 128), w_first = shared_address(shared.w[0]);
    uint32_t before = 0;

    const auto leave = [&](uint32_t stage) {
        if constexpr (T::cluster == 1) {
            if (lane == 0)
                mbarrier_arrive(shared_address(&shared.empty[stage]));
        } else if (lane < T::cluster) {
            mbarrier_arrive_at(shared_address(&shared.empty[stage]), lane);
        }
    };
#pragma unroll 1
    for (uint32_t step = steps.begin; step < steps.end; step++) {
        const uint32_t x = x_first + at.stage * (T::rows * 128), w = w_first + at.stage * (T::columns * 128);

        wait_or_trap(shared.full[at.stage], at.parity);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_linear<T::bf16>(c, linear_descriptor<128>(x + 32 * k), linear_descriptor<128>(w + 32 * k),
                                  k > 0 || step > steps.begin);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > steps.begin)
            leave(before);
        before = at.stage;
        at.template next<T::stages>();
    }
    wgmma_wait<0>();
    wgmma_hold(c);
    leave(before);
}

template <class T>
__device__ __forceinline__ void linear_consume(typename T::Shared &shared, const td_params_linear &p, uint32_t rank)
{
    const LinearWalk walk = linear_walk<T>(p);
    const int warp = int(threadIdx.x) / 32;
    const LinearSteps steps(p, 0, 1);
    LinearStage at = {0, 0};

#pragma unroll 1
    for (uint32_t work = blockIdx.x / T::cluster; work < walk.count; work += gridDim.x / T::cluster) {
        uint32_t row, column;
        float c[T::columns / 2];

        walk.at(work, row, column);
        linear_multiply<T>(shared, at, steps, c);
        T::Out::write(p, c, linear_row<T>(row, rank) + warp * 16, column);
    }
}

/* Eight of the sums of all blocks of a cluster, which lie at the same place in each. */
template <int Splits> __device__ __forceinline__ void linear_add8(float (&x)[8], const float *at)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = 0.0f;
#pragma unroll
    for (int split = 0; split < Splits; split++) {
        const float4 low = ld_cluster(at, split), high = ld_cluster(at + 4, split);

        x[0] += low.x, x[1] += low.y, x[2] += low.z, x[3] += low.w;
        x[4] += high.x, x[5] += high.y, x[6] += high.z, x[7] += high.w;
    }
}

/* A cluster has one tile: each block adds up its channels' sums, then all add up each other's, a part each. All threads. */
template <class T>
__device__ __forceinline__ void linear_split(typename T::Shared &shared, const td_params_linear_tma &all, uint32_t rank)
{
    const td_params_linear &p = all.p;
    float *sums = reinterpret_cast<float *>(&shared);
    uint32_t row_tile, column_tile;

    linear_walk<T>(p).at(blockIdx.x / T::splits, row_tile, column_tile);
    if (threadIdx.x >= 128 * T::groups) {
        if (threadIdx.x == 128 * T::groups)
            linear_fetch<T>(shared, all, rank);
        __syncwarp();
    } else {
        const LinearSteps steps(p, rank, T::splits);
        const int lane = int(threadIdx.x % 32);
        LinearStage at = {0, 0};
        float c[T::columns / 2];
        float *to = sums + (threadIdx.x / 32 * 16 + lane / 4) * T::sum_stride + lane % 4 * 2;

        if (steps.begin < steps.end) {
            linear_multiply<T>(shared, at, steps, c);
        } else {
#pragma unroll
            for (int i = 0; i < T::columns / 2; i++)
                c[i] = 0.0f;
        }
        bar_sync<128 * T::groups>(1); /* nobody multiplies what is overwritten now */
#pragma unroll
        for (int i = 0; i < T::columns / 8; i++) {
            *reinterpret_cast<float2 *>(to + 8 * i) = make_float2(c[4 * i], c[4 * i + 1]);
            *reinterpret_cast<float2 *>(to + 8 * i + 8 * T::sum_stride) = make_float2(c[4 * i + 2], c[4 * i + 3]);
        }
    }
    cluster_sync();
    const uint32_t across = p.gate ? T::columns / 16 : T::columns / 8; /* octets of y's columns */
    const uint32_t row0 = row_tile * T::rows, octets = min(p.rows - row0, uint32_t(T::rows)) * across;
#pragma unroll 1
    for (uint32_t i = rank * T::threads + threadIdx.x; i < octets; i += T::splits * T::threads) {
        const uint32_t row = i / across, octet = i % across;
        const float *at = sums + row * T::sum_stride;
        float a[8], b[8];

        if (p.gate == TANDEM_GATE_PAIRS) {
            float x[8], y[8];

            linear_add8<T::splits>(x, at + 16 * octet);
            linear_add8<T::splits>(y, at + 16 * octet + 8);
            linear_unzip(a, b, x, y);
        } else {
            linear_add8<T::splits>(a, at + 8 * octet);
            if (p.gate)
                linear_add8<T::splits>(b, at + 8 * octet + T::columns / 2);
        }
        linear_finish(p, row0 + row, (column_tile * across + octet) * 8, a, b);
    }
}

template <class T> __device__ __forceinline__ void linear_run(const td_params_linear_tma &all)
{
    TD_DYNAMIC_SHARED(1024, linear_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(linear_bytes);
    const uint32_t rank = T::blocks > 1 ? cluster_rank() : 0;
    bool given_up;

    if (threadIdx.x < T::stages) {
        mbarrier_init(shared_address(&shared.full[threadIdx.x]), 1);
        mbarrier_init(shared_address(&shared.empty[threadIdx.x]), 4 * T::groups * T::cluster);
    }
    /* All blocks of a cluster must agree on it. */
    if constexpr (T::blocks > 1) {
        if (threadIdx.x == 0)
            shared.given_up = all.p.cancel && *(const volatile uint32_t *)all.p.cancel;
        fence_mbarrier_init();
        cluster_sync();
        given_up = ld_cluster_first(&shared.given_up);
    } else {
        fence_proxy_async();
        __syncthreads();
        given_up = cancelled(all.p.cancel);
    }
    if (given_up) {
        /* nothing was started */
    } else if constexpr (T::splits > 1) {
        linear_split<T>(shared, all, rank);
    } else if (threadIdx.x >= 128 * T::groups) {
        if constexpr (T::groups > 1)
            setmaxnreg_dec<40>();
        if (threadIdx.x == 128 * T::groups)
            linear_fetch<T>(shared, all, rank);
        __syncwarp();
    } else {
        if constexpr (T::groups > 1)
            setmaxnreg_inc<232>();
        linear_consume<T>(shared, all.p, rank);
    }
    if constexpr (T::blocks > 1)
        cluster_sync();
}

} // namespace td

#define TD_LINEAR_ENTRY(name, groups, columns, stages, cluster, splits, bf16)                        \
    extern "C" __global__ void __launch_bounds__(128 * (groups) + ((groups) > 1 ? 128 : 32), 1)      \
        name(const __grid_constant__ td_params_linear_tma p)                                         \
    {                                                                                                \
        td::wait_for_previous();                                                                     \
        td::linear_run<td::LinearTile<groups, columns, stages, cluster, splits, bf16>>(p);           \
    }
#define TD_LINEAR_ENTRIES(name, groups, columns, stages, cluster, splits)                     \
    TD_LINEAR_ENTRY(linear_f16_wgmma_##name, groups, columns, stages, cluster, splits, false) \
    TD_LINEAR_ENTRY(linear_bf16_wgmma_##name, groups, columns, stages, cluster, splits, true)
TD_LINEAR_ENTRIES(128x256, 2, 256, 4, 1, 1)
TD_LINEAR_ENTRIES(128x128, 2, 128, 6, 1, 1)
TD_LINEAR_ENTRIES(64x64, 1, 64, 8, 1, 1)
TD_LINEAR_ENTRIES(64x128_k2, 1, 128, 4, 1, 2)
#endif
