/* y = finish(x w^T) of fp16 or bf16 by wgmma where a block has 47 KB of shared memory and neither clusters nor tensor maps:
 * `linear_direct`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What is under way decides how fast a multiprocessor reads, and 47 KB are few: so they are w's alone, and x goes into registers,
 * of which a multiprocessor has 256 KB. Each row of x is read by one warp. Four lanes have 32 channels of a row, 16 bytes each, and
 * exchange words until each has those that wgmma wants of it.
 *
 * About round n of a slot of w's rows:
 *
 *   each thread that fetches   waits for phase n - 1 of empty, starts copies, which arrive at full: all end phase n
 *   a thread that publishes    waits for phase n of full, then at its fence, and arrives at ready
 *   each warp that multiplies  waits for phase n of ready, multiplies, waits for the products of the slot before, and arrives at
 *                              that slot's empty
 *
 * The fence between copies and wgmma waits for all that its thread has under way. So it has a thread for itself: whoever multiplies
 * has loads of x under way, whoever fetches has copies. Every wait ends after some ten seconds, then the kernel traps.
 */
#include "kernels/cuda/fragment.cuh"
#include "kernels/linear/epilogue.cuh"
#include "kernels/linear/walk.cuh"
#include "kernels/linear/wgmma.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* Warpgroups of `Tiles` times 64 rows; slots of so many channels of N of w's rows. A step is 32 channels: of a row, 64 bytes in
 * one piece. x is read `Ahead` steps ahead. Words of `Batch` steps are exchanged, then multiplied; Ahead is a multiple of it. */
template <int Groups, int Tiles, int N, int Channels, int Slots, int Ahead, int Batch, bool Bf16> struct LinearDirectTile {
    static constexpr int groups = Groups, tiles = Tiles, rows = 64 * Groups * Tiles, columns = N;
    static constexpr int slots = Slots, slot_channels = Channels, slots_a_step = 32 / Channels, ahead = Ahead, batch = Batch;
    static constexpr bool bf16 = Bf16;
    static constexpr int row_bytes = 2 * Channels;
    static constexpr int fetchers = 64, publisher = fetchers; /* threads behind those that multiply */
    using Out = LinearOut<N>;

    struct Shared {
        alignas(1024) uint8_t slot[Slots][N * row_bytes];
        uint64_t full[Slots], ready[Slots], empty[Slots];
    };
    static_assert(sizeof(Shared) <= 47 * 1024, "more than a block has in a command buffer");
};

/* As many as are unrolled: behind the last channel there are zeros. */
template <class T> __device__ __forceinline__ uint32_t linear_direct_steps(const td_params_linear &p)
{
    return (p.ins + 32 * T::ahead - 1) / (32 * T::ahead) * T::ahead;
}

/* Copies of w's rows into slots: four neighbours have a row's channels of a step. Rows that do not exist are the last one. */
template <class T>
__device__ __forceinline__ void linear_direct_fetch(typename T::Shared &shared, const td_params_linear &p, uint32_t thread)
{
    constexpr int at_once = T::fetchers / 4, copies = T::columns / at_once, pieces = T::slot_channels / 8;
    const LinearWalk walk = linear_walk<T>(p);
    const uint32_t steps = linear_direct_steps<T>(p), w_rows = p.gate ? 2 * p.outs : p.outs;
    const uint32_t piece = thread % 4, first = thread / 4;
    const uint32_t place = first * T::row_bytes + (piece ^ first * T::row_bytes / 128) % pieces * 16;
    const uint32_t slots = shared_address(shared.slot[0]) + place;
    LinearStage to = {piece / pieces, 1};

#pragma unroll 1
    for (uint32_t work = blockIdx.x; work < walk.count; work += gridDim.x) {
        uint32_t row_tile, column_tile;
        const uint8_t *from[copies];

        walk.at(work, row_tile, column_tile);
#pragma unroll
        for (int i = 0; i < copies; i++) {
            const uint32_t in = i * at_once + first; /* of the tile's rows of w */
            const uint32_t w_row = p.gate == TANDEM_GATE_HALVES ? column_tile * (T::columns / 2) + in % (T::columns / 2) +
                                                                    (in < T::columns / 2 ? 0 : p.outs)
                                                              : column_tile * T::columns + in;

            from[i] = static_cast<const uint8_t *>(p.w) + min(w_row, w_rows - 1) * p.w_stride + piece * 16;
        }
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            const uint32_t slot = slots + to.stage * sizeof shared.slot[0];
            const uint32_t bytes = 32 * step + 8 * piece < p.ins ? 16 : 0;

            wait_or_trap(shared.empty[to.stage], to.parity);
#pragma unroll
            for (int i = 0; i < copies; i++)
                cp_async_16_or_zero(slot + i * at_once * T::row_bytes, from[i] + step * 64, bytes);
            cp_async_arrive(shared_address(&shared.full[to.stage]));
            to.template next<T::slots, T::slots_a_step>();
        }
    }
    cp_async_commit(); /* no thread leaves before its copies are there */
    cp_async_wait<0>();
}

template <class T> __device__ __forceinline__ void linear_direct_publish(typename T::Shared &shared, const td_params_linear &p)
{
    const LinearWalk walk = linear_walk<T>(p);
    const uint32_t slots = linear_direct_steps<T>(p) * T::slots_a_step;
    LinearStage at = {0, 0};

#pragma unroll 1
    for (uint32_t work = blockIdx.x; work < walk.count; work += gridDim.x)
#pragma unroll 1
        for (uint32_t slot = 0; slot < slots; slot++) {
            wait_or_trap(shared.full[at.stage], at.parity);
            fence_proxy_async();
            mbarrier_arrive(shared_address(&shared.ready[at.stage]));
            at.template next<T::slots>();
        }
}

/* Words of x, of steps ahead: of each tile of 64 rows two rows, eight apart, of which four lanes have eight channels each. */
template <class T> struct LinearDirectX {
    const uint16_t *row[T::tiles][2];
    uint32_t words[T::ahead][T::tiles][2][4];
    uint32_t piece; /* this lane's channels of a step begin there */

    __device__ __forceinline__ LinearDirectX(const td_params_linear &p, uint32_t row_tile) : piece(threadIdx.x % 4 * 8)
    {
        const uint32_t first = row_tile * T::rows + threadIdx.x / 128 * (64 * T::tiles) + threadIdx.x % 128 / 32 * 16;

#pragma unroll
        for (int i = 0; i < 2 * T::tiles; i++) { /* rows that do not exist are the last one */
            const uint32_t at = min(first + i / 2 * 64 + i % 2 * 8 + threadIdx.x % 32 / 4, p.rows - 1);

            row[i / 2][i % 2] = static_cast<const uint16_t *>(p.x) + at * p.x_stride;
        }
    }
    /* Step `i` from `step` on; behind the last channel others. */
    __device__ __forceinline__ void load(int i, uint32_t step, uint32_t ins)
    {
        const uint32_t at = min(32 * (step + i) + piece, ins - 8);

#pragma unroll
        for (int r = 0; r < 2 * T::tiles; r++)
            load_here(words[i][r / 2][r % 2], row[r / 2][r % 2] + at);
    }
    /* That step as wgmma's fragments, of two times 16 channels. */
    __device__ __forceinline__ void order(uint32_t (&a)[T::tiles][2][4], int i)
    {
        const int q = int(threadIdx.x % 4);

#pragma unroll
        for (int t = 0; t < T::tiles; t++) {
            uint32_t(&from)[2][4] = words[i][t];

            transpose_quad(from[0], q);
            transpose_quad(from[1], q);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                a[t][j / 2][j % 2 * 2] = from[0][j];
                a[t][j / 2][j % 2 * 2 + 1] = from[1][j];
            }
            wgmma_hold(a[t][0]);
            wgmma_hold(a[t][1]);
        }
    }
    /* What is behind the last channel. */
    __device__ __forceinline__ void clear(uint32_t step, uint32_t ins)
    {
#pragma unroll
        for (int i = 0; i < 8 * T::ahead * T::tiles; i++)
            if (32 * (step + i / 8 / T::tiles) + piece >= ins)
                words[i / 8 / T::tiles][i / 8 % T::tiles][i / 4 % 2][i % 4] = 0;
    }
};

template <class T>
__device__ __forceinline__ void linear_direct_consume(typename T::Shared &shared, const td_params_linear &p)
{
    const LinearWalk walk = linear_walk<T>(p);
    const uint32_t steps = linear_direct_steps<T>(p), w_first = shared_address(shared.slot[0]);
    const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), lane = int(threadIdx.x % 32);
    LinearStage at = {0, 0};

    const auto leave = [&](uint32_t slot) {
        if (lane == 0)
            mbarrier_arrive(shared_address(&shared.empty[slot]));
    };
#pragma unroll 1
    for (uint32_t work = blockIdx.x; work < walk.count; work += gridDim.x) {
        uint32_t row, column, before = 0;
        float c[T::tiles][T::columns / 2];
        uint32_t a[T::batch][T::tiles][2][4];

        walk.at(work, row, column);
        LinearDirectX<T> x(p, row);
#pragma unroll
        for (int i = 0; i < T::ahead; i++)
            x.load(i, 0, p.ins);
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step += T::ahead) {
            if (32 * (step + T::ahead) > p.ins)
                x.clear(step, p.ins);
#pragma unroll
            for (int i = 0; i < T::ahead * T::slots_a_step; i++) {
                constexpr int batch = T::batch * T::slots_a_step;
                const uint32_t here = w_first + at.stage * sizeof shared.slot[0];

                if (i % batch == 0)
#pragma unroll
                    for (int j = 0; j < T::batch; j++) {
                        x.order(a[j], i / T::slots_a_step + j);
                        x.load(i / T::slots_a_step + j, step + T::ahead, p.ins);
                    }
                wait_or_trap(shared.ready[at.stage], at.parity);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < T::slot_channels / 16; k++)
#pragma unroll
                    for (int t = 0; t < T::tiles; t++)
                        wgmma_linear<T::bf16>(c[t], a[i % batch / T::slots_a_step][t][i % T::slots_a_step + k],
                                              linear_descriptor<T::row_bytes>(here + 32 * k), i + k > 0 || step > 0);
                wgmma_commit();
                if (i % batch > 0) {
                    wgmma_wait<1>();
                    leave(before);
                }
                before = at.stage;
                at.template next<T::slots>();
                if (i % batch == batch - 1) {
                    wgmma_wait<0>();
                    leave(before);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < T::tiles; t++) {
            wgmma_hold(c[t]);
            T::Out::write(p, c[t], row * T::rows + (warp / 4 * T::tiles + t) * 64 + warp % 4 * 16, column);
        }
    }
}

template <class T, int FetchRegisters, int Registers> __device__ __forceinline__ void linear_direct(const td_params_linear &p)
{
    TD_DYNAMIC_SHARED(1024, linear_direct_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(linear_direct_bytes);

    if (threadIdx.x < T::slots) {
        mbarrier_init(shared_address(&shared.full[threadIdx.x]), T::fetchers / T::slots_a_step);
        mbarrier_init(shared_address(&shared.ready[threadIdx.x]), 1);
        mbarrier_init(shared_address(&shared.empty[threadIdx.x]), 4 * T::groups);
    }
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x >= 128 * T::groups) {
        const uint32_t thread = threadIdx.x - 128 * T::groups;

        if constexpr (T::groups > 1)
            setmaxnreg_dec<FetchRegisters>();
        if (thread < T::fetchers)
            linear_direct_fetch<T>(shared, p, thread);
        else if (thread == T::publisher)
            linear_direct_publish<T>(shared, p);
    } else {
        if constexpr (T::groups > 1)
            setmaxnreg_inc<Registers>();
        linear_direct_consume<T>(shared, p);
    }
}

} // namespace td

#define TD_LINEAR_DIRECT_ENTRY(name, groups, tiles, columns, channels, slots, ahead, batch, bf16, fetching, multiplying)       \
    extern "C" __global__ void __launch_bounds__(128 * ((groups) + 1), 1) name(const __grid_constant__ td_params_linear p)      \
    {                                                                                                                          \
        td::wait_for_previous();                                                                                               \
        if (!td::cancelled(p.cancel))                                                                                          \
            td::linear_direct<td::LinearDirectTile<groups, tiles, columns, channels, slots, ahead, batch, bf16>, fetching,     \
                              multiplying>(p);                                                                                 \
    }
#define TD_LINEAR_DIRECT_ENTRIES(name, groups, tiles, columns, channels, slots, ahead, batch, fetching, multiplying)           \
    TD_LINEAR_DIRECT_ENTRY(linear_f16_direct_##name, groups, tiles, columns, channels, slots, ahead, batch, false, fetching,   \
                           multiplying)                                                                                        \
    TD_LINEAR_DIRECT_ENTRY(linear_bf16_direct_##name, groups, tiles, columns, channels, slots, ahead, batch, true, fetching,   \
                           multiplying)
TD_LINEAR_DIRECT_ENTRIES(256x128, 2, 2, 128, 32, 5, 2, 1, 56, 224)
TD_LINEAR_DIRECT_ENTRIES(128x128, 2, 1, 128, 32, 5, 4, 2, 72, 216)
#endif
