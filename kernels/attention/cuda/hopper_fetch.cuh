/* The warps that fetch: copies of Q, K, V and scales into the stages of the ring, in three orders.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * produce()        a tile: where warpgroups have rows of their own and the block has one tile
 * produce_walk()   the same, tile after tile
 * produce_split()  tile after tile, where warpgroups have the same rows and share the keys
 */
#pragma once

#include "hopper_schedule.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* K of a step, and the keys' scales. */
template <class T>
__device__ __forceinline__ void fetch_k(typename T::Stage &to, const uint8_t *k,
                                        const float *k_scale, int t)
{
    copy_swizzled<T::keys, T::dim, T::qk_row>(to.k, k, T::dim, t);
    if (t < T::keys / 4)
        cp_async_16(shared_address(to.k_scale + 4 * t), k_scale + 4 * t);
}

/* --- A tile --- */

/* What a thread of a warpgroup that shares no keys has on its way besides Q: scales of a row and of
 * its keys of the first step, and of a channel, whose mean is the last. */
struct HopperLoads {
    float q_scale, v_scale, v_mean;
    float2 low, high;
};

template <class T>
__device__ __forceinline__ HopperLoads load_rows(typename T::Shared &shared,
                                                 const td_params_attention &p,
                                                 const HopperRowTile &at)
{
    const int thread = int(threadIdx.x) % 128, group = int(threadIdx.x) / 128;
    const int64_t q_row = at.bh * p.q_pad + min(at.row0 + 64 * group, int(p.q_pad) - 64);
    const float *k_scale = p.k_scale + at.bhk * p.kv_pad + 2 * (thread % 32);
    const bool has_channel = thread < T::dim;
    HopperLoads loads;

    copy_swizzled<64, T::dim, T::qk_row>(shared.q[0] + group * 64 * T::qk_row,
                                         (const uint8_t *)p.q_codes + q_row * T::dim, T::dim,
                                         thread);
    cp_async_commit();
    loads.q_scale = thread < 64 ? p.q_scale[q_row + thread] : 0.0f;
    loads.v_scale = has_channel ? p.v_scale[at.bhk * T::dim + thread] : 0.0f;
    loads.v_mean = has_channel && p.v_mean ? p.v_mean[at.bhk * T::dim + thread] : 0.0f;
    loads.low = *reinterpret_cast<const float2 *>(k_scale);
    loads.high = *reinterpret_cast<const float2 *>(k_scale + 64);
    return loads;
}

/* Fetch number n holds V of step n - 1 and K of step n: what the consumers need at the same time. K
 * of the first step is on its way. Every thread arrives for its own copies: racecheck does not
 * follow a lane that does so for its warp, and it costs nothing here. */
template <class T>
__device__ __forceinline__ void produce(typename T::Shared &shared, const td_params_attention &p,
                                        const HopperRowTile &at)
{
    const int t = int(threadIdx.x) % 128;
    const uint8_t *k = (const uint8_t *)p.k_codes + at.bhk * p.kv_pad * T::dim;
    const uint8_t *v = (const uint8_t *)p.v_codes + at.bhk * p.kv_pad * T::dim - T::keys;
    const float *k_scale = p.k_scale + at.bhk * p.kv_pad;
    PipelineState state = {0, 1};
    uint32_t before = 0;

#pragma unroll 1
    for (int fetch = 0; fetch <= at.steps; fetch++) {
        typename T::Stage &to = shared.stage[state.stage];

        if (fetch > 0) {
            if (t < 32) /* four warps that poll would cost issue slots */
                wait_for(shared.empty[state.stage], state.parity);
            bar_sync<128>(6);
            if (fetch < at.steps)
                fetch_k<T>(to, k, k_scale, t);
            copy_swizzled<T::dim, T::keys, T::keys>(to.v, v, p.kv_pad, t);
        }
        cp_async_commit();
        if (fetch > 0) { /* the fetch before this one is there */
            cp_async_wait<1>();
            fence_proxy_async();
            mbarrier_arrive(shared_address(&shared.full[before]));
        }
        before = state.stage;
        state.next<T::stages>();
        k += T::keys * T::dim;
        k_scale += T::keys;
        v += T::keys;
    }
    cp_async_wait<0>();
    fence_proxy_async();
    mbarrier_arrive(shared_address(&shared.full[before]));
}

/* --- Tile after tile --- */

/* Q, scales of its rows, which may end in a warpgroup's, and of channels, means. */
template <class T>
__device__ __forceinline__ void fetch_tile(typename T::Shared &shared, const td_params_attention &p,
                                           const HopperRowTile &at, uint32_t n)
{
    const int t = int(threadIdx.x) % 128, of = int(n % 2);
    const int64_t channel = at.bhk * T::dim + t % 32 * 4;

#pragma unroll 1
    for (int group = 0; group < T::groups; group++) {
        const int64_t q_row = at.bh * p.q_pad + min(at.row0 + 64 * group, int(p.q_pad) - 64);

        copy_swizzled<64, T::dim, T::qk_row>(shared.q[of] + group * 64 * T::qk_row,
                                             (const uint8_t *)p.q_codes + q_row * T::dim, T::dim,
                                             t);
        if (t < 16)
            cp_async_16(shared_address(shared.q_scale[of] + 64 * group + 4 * t),
                        p.q_scale + q_row + 4 * t);
    }
    if (t < T::dim / 4)
        cp_async_16(shared_address(shared.v_scale[of] + t % 32 * 4), p.v_scale + channel);
    else if (t >= 32 && t < 32 + T::dim / 4)
        cp_async_16_or_zero(shared_address(shared.v_mean[of] + t % 32 * 4),
                            p.v_mean ? p.v_mean + channel : p.v_scale, p.v_mean ? 16 : 0);
}

/* What is first fetched of a tile. */
template <class T>
__device__ __forceinline__ void fetch_begin(typename T::Shared &shared,
                                            const td_params_attention &p, const HopperRowTile &at,
                                            uint32_t n, uint32_t stage)
{
    fetch_tile<T>(shared, p, at, n);
    if (at.steps > 0)
        fetch_k<T>(shared.stage[stage], (const uint8_t *)p.k_codes + at.bhk * p.kv_pad * T::dim,
                   p.k_scale + at.bhk * p.kv_pad, int(threadIdx.x) % 128);
}

/* As produce(), tile after tile; the first fetch of a tile has what fetch_tile() brings, too. Which
 * tile it is, or that there is none, is said in front of it. at: the first tile, whose first fetch
 * is under way. */
template <class T>
__device__ __forceinline__ void produce_walk(typename T::Shared &shared,
                                             const td_params_attention &p, HopperRowTile at)
{
    const int t = int(threadIdx.x) % 128;
    PipelineState state = {0, 1};
    uint32_t before = 0, cancel = 0;
    const auto wait = [&] {
        if (t < 32) /* four warps that poll would cost issue slots */
            wait_for(shared.empty[state.stage], state.parity);
    };
    const auto arrive = [&] {
        fence_proxy_async();
        mbarrier_arrive(shared_address(&shared.full[before]));
    };

#pragma unroll 1
    for (uint32_t n = 0;; n++) {
        if (n > 0) {
            if (t < 32) {
                const WalkTile next = cancel ? WalkTile{0, -1} : walk_tile<T>(p, n);

                wait();
                if (n > 1)
                    wait_for(shared.tile_free[n % 2], (n / 2 - 1) % 2);
                if (t == 0)
                    shared.where[n % 2] = next;
            }
            bar_sync<128>(6);
            const WalkTile where = shared.where[n % 2];

            if (where.tile < 0)
                break;
            at = walk_to<T>(p, where);
            fetch_begin<T>(shared, p, at, n, state.stage);
            cp_async_commit();
            cp_async_wait<1>();
            arrive();
        } else {
            cp_async_commit();
        }
        const uint8_t *k = (const uint8_t *)p.k_codes + at.bhk * p.kv_pad * T::dim;
        const uint8_t *v = (const uint8_t *)p.v_codes + at.bhk * p.kv_pad * T::dim;
        const float *k_scale = p.k_scale + at.bhk * p.kv_pad;

        if (p.cancel && t == 0)
            /* there when the tile ends, as it may come from afar */
            cancel = *(const volatile uint32_t *)p.cancel;
        before = state.stage;
        state.next<T::stages>();
#pragma unroll 1
        for (int fetch = 1; fetch <= at.steps; fetch++) {
            typename T::Stage &to = shared.stage[state.stage];

            k += T::keys * T::dim;
            k_scale += T::keys;
            wait();
            bar_sync<128>(6);
            if (fetch < at.steps)
                fetch_k<T>(to, k, k_scale, t);
            copy_swizzled<T::dim, T::keys, T::keys>(to.v, v, p.kv_pad, t);
            v += T::keys;
            cp_async_commit();
            cp_async_wait<1>(); /* the fetch before this one is there */
            arrive();
            before = state.stage;
            state.next<T::stages>();
        }
    }
    cp_async_wait<0>();
    arrive();
    mbarrier_arrive(shared_address(&shared.full[state.stage]));
}

/* --- Warpgroups that share keys --- */

/* K of the step that each share of the keys begins with, into stages from `state` on: `wait` waits
 * for them. */
template <class T, class Wait>
__device__ __forceinline__ void fetch_first(typename T::Shared &shared,
                                            const td_params_attention &p, const HopperRowTile &at,
                                            PipelineState state, Wait wait)
{
    const uint8_t *k = (const uint8_t *)p.k_codes + at.bhk * p.kv_pad * T::dim;
    const float *k_scale = p.k_scale + at.bhk * p.kv_pad;

#pragma unroll 1
    for (int fetch = 0; fetch < T::splits; fetch++) {
        wait(state);
        if (fetch < at.steps)
            fetch_k<T>(shared.stage[state.stage], k, k_scale, int(threadIdx.x) % 128);
        state.next<T::stages>();
        k += T::keys * T::dim;
        k_scale += T::keys;
    }
}

/* What the warpgroups share of a tile besides: Q, scales of its rows and of channels, means. */
template <class T>
__device__ __forceinline__ void fetch_rows(typename T::Shared &shared, const td_params_attention &p,
                                           const HopperRowTile &at, uint32_t n)
{
    const int t = int(threadIdx.x) % 128;
    const int64_t q_row = at.bh * p.q_pad + at.row0, channel = at.bhk * T::dim + t % 32 * 4;

    copy_swizzled<T::rows, T::dim, T::qk_row>(
        shared.q[0], (const uint8_t *)p.q_codes + q_row * T::dim, T::dim, t);
    if (t < T::rows / 4)
        cp_async_16(shared_address(shared.row_scale + 4 * t), p.q_scale + q_row + 4 * t);
    else if (t >= 32 && t < 32 + T::dim / 4)
        cp_async_16(shared_address(shared.v_scale[n % 2] + t % 32 * 4), p.v_scale + channel);
    else if (t >= 64 && t < 64 + T::dim / 4)
        cp_async_16_or_zero(shared_address(shared.v_mean[n % 2] + t % 32 * 4),
                            p.v_mean ? p.v_mean + channel : p.v_scale, p.v_mean ? 16 : 0);
}

/* Each share of the keys has its stages, and as many fetches of a tile as the others: fetch number
 * n is for share n % splits and holds K of step n and V of step n - splits, where these are.
 * Whoever has waited for its first one has fetch_rows(), too. at: the first tile, whose first
 * fetches are under way. */
template <class T>
__device__ __forceinline__ void produce_split(typename T::Shared &shared,
                                              const td_params_attention &p, HopperRowTile at)
{
    const int t = int(threadIdx.x) % 128;
    PipelineState state = {0, 1};
    const auto wait = [&](PipelineState to) {
        if (t < 32) /* four warps that poll would cost issue slots */
            wait_for(shared.empty[to.stage], to.parity);
        bar_sync<128>(6);
    };

#pragma unroll 1
    for (uint32_t n = 0; at.steps >= 0; at = split_row_tile<T>(p, ++n)) {
        if (n > 0) {
            fetch_first<T>(shared, p, at, state, wait);
            wait_for(shared.q_free, (n - 1) % 2);
            /* for racecheck, which follows an arrival of a warp's one lane for that lane alone */
            bar_sync<128>(6);
            fetch_rows<T>(shared, p, at, n);
        }
        const uint8_t *k =
            (const uint8_t *)p.k_codes + (at.bhk * p.kv_pad + T::splits * T::keys) * T::dim;
        const uint8_t *v = (const uint8_t *)p.v_codes + at.bhk * p.kv_pad * T::dim;
        const float *k_scale = p.k_scale + at.bhk * p.kv_pad + T::splits * T::keys;
        const int fetches = (at.steps + 2 * T::splits - 1) / T::splits * T::splits;

#pragma unroll 1
        for (int fetch = 0; fetch < fetches; fetch++) {
            if (fetch >= T::splits) {
                wait(state);
                if (fetch < at.steps) {
                    fetch_k<T>(shared.stage[state.stage], k, k_scale, t);
                    k += T::keys * T::dim;
                    k_scale += T::keys;
                }
                if (fetch - T::splits < at.steps) {
                    copy_swizzled<T::dim, T::keys, T::keys>(shared.stage[state.stage].v, v,
                                                            p.kv_pad, t);
                    v += T::keys;
                }
            }
            cp_async_arrive(shared_address(&shared.full[state.stage]));
            state.next<T::stages>();
        }
    }
    cp_async_wait<0>();
}

} // namespace td
#endif
