/* Attention on int8 codes of Q and K and e4m3 codes of V by wgmma: `attn_8b_wgmma`, sm_90a. See
 * hopper.cuh.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * S = q_scale k_scale (Qc Kc^T), exact in int32; R = Pc Vc in fp16 over 256 keys in the tensor
 * cores, O += R in fp32. Blocks have TD_HOPPER_GROUPS(d) warpgroups that compute, of 64 rows each.
 * `attn_8b_wgmma_short` has one fewer: where there are few blocks, shorter ones end earlier.
 * `attn_8b_wgmma_walk`: where there are more tiles than multiprocessors, blocks walk over them, so
 * K, V and Q of the next are there when one ends. Not a bit differs. `attn_8b_wgmma_split`: blocks
 * of 64 rows whose warpgroups share the keys, for fewer still; they walk, block x of the grid's
 * having tiles x, 2 * grid - 1 - x, ... `attn_8b_wgmma_pair`: the same with blocks of 128 rows, two
 * warpgroups for each 64. Shared bytes: TD_HOPPER_SHARED_BYTES(d, groups, splits),
 * TD_HOPPER_WALK_SHARED_BYTES(d). Registers of a thread that computes: 240, 160 or 112 with 2, 3 or
 * 4. `attn_8b_wgmma_dump` is the short one for tests, with S, P and R written out. Times:
 * kernels/attention/NOTES.md.
 */
#pragma once

#include "hopper.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* Barriers, and the eight rows of ones of each stage. */
template <class T>
__device__ __forceinline__ void begin_ring(typename T::Shared &shared, uint32_t fill,
                                           uint32_t drain)
{
    constexpr int pieces = 8 * T::keys / 16;

    /* One takes 140 cycles, so each is another warp's. A loop, not a predicate: with that,
     * racecheck sees other threads' copies hit by it. */
#pragma unroll 1
    for (int stage = threadIdx.x % 32 ? T::stages : int(threadIdx.x) / 32; stage < T::stages;
         stage += T::threads / 32) {
        mbarrier_init(shared_address(&shared.full[stage]), fill);
        mbarrier_init(shared_address(&shared.empty[stage]), drain);
    }
#pragma unroll 1
    for (int i = int(threadIdx.x); i < T::stages * pieces; i += T::threads)
        *reinterpret_cast<uint4 *>(shared.stage[i / pieces].v + T::dim * T::keys +
                                   i % pieces * 16) =
            make_uint4(0x38383838u, 0x38383838u, 0x38383838u, 0x38383838u);
}

template <class T> __device__ __forceinline__ void attend_hopper(const td_params_attention &p)
{
    TD_DYNAMIC_SHARED(1024, hopper_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(hopper_bytes);
    HopperRowTile at = {row_tile<T, int64_t>(p), 0};

    at.steps = (at.keys + T::keys - 1) / T::keys;

    begin_ring<T>(shared, 128, 4 * T::groups);
    fence_proxy_async();
    wait_for_previous();
    const bool given_up = p.cancel && threadIdx.x == 0 && *(const volatile uint32_t *)p.cancel;
    HopperLoads loads = {}; /* what takes time is begun first */
    if (threadIdx.x < 128 * T::groups)
        loads = load_rows<T>(shared, p, at);
    else if (at.steps > 0)
        fetch_k<T>(shared.stage[0], (const uint8_t *)p.k_codes + at.bhk * p.kv_pad * T::dim,
                   p.k_scale + at.bhk * p.kv_pad, int(threadIdx.x) % 128);
    if (__syncthreads_or(given_up)) {
        cp_async_wait<0>();
        return;
    }
    if (threadIdx.x >= 128 * T::groups) {
        setmaxnreg_dec<T::groups == 3 ? 32 : 24>();
        produce<T>(shared, p, at);
    } else {
        setmaxnreg_inc<T::groups == 2 ? 240 : T::groups == 3 ? 160 : 112>();
        PipelineState now = {0, 0};
        consume<T>(shared, p, at, now, loads);
    }
}

/* Where the warpgroups share keys: what takes time is begun first, and the block walks from tile to
 * tile. */
template <class T> __device__ __forceinline__ void attend_split(const td_params_attention &p)
{
    TD_DYNAMIC_SHARED(1024, hopper_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(hopper_bytes);
    HopperRowTile at = split_row_tile<T>(p, 0);

    begin_ring<T>(shared, 128, 4 * T::abreast);
    if (threadIdx.x == 0)
        mbarrier_init(shared_address(&shared.q_free), 4 * T::groups);
    fence_proxy_async(); /* not behind the copies: it would wait for them */
    wait_for_previous();
    const bool given_up = p.cancel && threadIdx.x == 0 && *(const volatile uint32_t *)p.cancel;
    if (threadIdx.x >= 128 * T::groups) {
        fetch_first<T>(shared, p, at, PipelineState{0, 1}, [](PipelineState) {});
        fetch_rows<T>(shared, p, at, 0);
    }
    if (__syncthreads_or(given_up)) {
        cp_async_wait<0>();
        return;
    }
    if (threadIdx.x >= 128 * T::groups) {
        setmaxnreg_dec<T::groups == 3 ? 32 : 24>();
        produce_split<T>(shared, p, at);
    } else {
        setmaxnreg_inc<T::groups == 3 ? 160 : 112>();
        PipelineState now = {uint32_t(__shfl_sync(~0u, int(threadIdx.x) / 128, 0) / T::abreast), 0};
#pragma unroll 1
        for (uint32_t n = 0; at.steps >= 0; at = split_row_tile<T>(p, ++n))
            consume<T>(shared, p, at, now, HopperLoads{}, n);
    }
}

/* The same where blocks walk from tile to tile and their warpgroups have rows of their own. */
template <class T> __device__ __forceinline__ void attend_walk(const td_params_attention &p)
{
    TD_DYNAMIC_SHARED(1024, hopper_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(hopper_bytes);

    begin_ring<T>(shared, 128, 4 * T::groups);
    if (threadIdx.x == 0) {
        mbarrier_init(shared_address(&shared.tile_free[0]), 4 * T::groups);
        mbarrier_init(shared_address(&shared.tile_free[1]), 4 * T::groups);
        shared.where[0] = walk_tile<T>(p, 0);
    }
    fence_proxy_async();
    wait_for_previous();
    const bool given_up = p.cancel && threadIdx.x == 0 && *(const volatile uint32_t *)p.cancel;
    if (threadIdx.x >= 128 * T::groups)
        fetch_begin<T>(shared, p, walk_to<T>(p, walk_tile<T>(p, 0)), 0, 0);
    if (__syncthreads_or(given_up)) {
        cp_async_wait<0>();
        return;
    }
    if (threadIdx.x >= 128 * T::groups) {
        setmaxnreg_dec<32>();
        produce_walk<T>(shared, p, walk_to<T>(p, shared.where[0]));
    } else {
        setmaxnreg_inc<T::groups == 3 ? 160 : 112>();
        PipelineState now = {0, 0};

#pragma unroll 1
        for (uint32_t n = 0;; n++) {
            wait_for(shared.full[now.stage], now.parity);
            const WalkTile where = shared.where[n % 2];

            if (where.tile < 0)
                break;
            consume<T>(shared, p, walk_to<T>(p, where), now, HopperLoads{}, n);
        }
        launch_dependents(); /* as consume() does where blocks do not walk */
    }
}

} // namespace td

#define TD_HOPPER_ENTRY(name, dim, fewer, dump)                                              \
    extern "C" __global__ void                                                               \
        __launch_bounds__(TD_HOPPER_THREADS(TD_HOPPER_GROUPS(dim) - fewer), 1)               \
        name##_d##dim(const __grid_constant__ td_params_attention p)                         \
    {                                                                                        \
        td::attend_hopper<td::HopperTile<dim, int(TD_HOPPER_GROUPS(dim)) - fewer, dump>>(p); \
    }
#define TD_HOPPER_ENTRIES(name, fewer, dump) \
    TD_HOPPER_ENTRY(name, 32, fewer, dump)   \
    TD_HOPPER_ENTRY(name, 64, fewer, dump)   \
    TD_HOPPER_ENTRY(name, 96, fewer, dump)   \
    TD_HOPPER_ENTRY(name, 128, fewer, dump)
#define TD_SPLIT_ENTRY(name, dim, splits)                                                         \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(TD_HOPPER_SPLITS(dim)), 1)     \
        name##_d##dim(const __grid_constant__ td_params_attention p)                              \
    {                                                                                             \
        td::attend_split<td::HopperTile<dim, int(TD_HOPPER_SPLITS(dim)), false, int(splits)>>(p); \
    }
#define TD_WALK_ENTRY(dim)                                                                    \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(TD_HOPPER_GROUPS(dim)), 1) \
        attn_8b_wgmma_walk_d##dim(const __grid_constant__ td_params_attention p)              \
    {                                                                                         \
        td::attend_walk<td::HopperTile<dim, int(TD_HOPPER_GROUPS(dim)), false, 1, true>>(p);  \
    }
#endif
