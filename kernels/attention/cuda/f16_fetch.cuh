/* The warps that fetch for a team of attn_f16_wgmma_teams.cuh: Q K(0) K(1) V(0) K(2) V(1) ... of
 * its tiles into its rings of stages for K and V. As attn_f16_wgmma's, but for registers, which are
 * few: places in rings are counts.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "f16.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* What a team has in shared memory. */
template <class T> struct F16Rings {
    /* of this tile of rows and the next */
    alignas(1024) uint8_t q[2][T::groups][T::parts][64 * 128];
    alignas(1024) uint8_t k[T::stages][T::parts][T::keys * 128];
    alignas(1024) uint8_t v[T::stages][T::parts][T::keys * 128];
    alignas(1024) uint64_t q_full[2];
    uint64_t q_empty[2], k_full[T::stages], k_empty[T::stages], v_full[T::stages],
        v_empty[T::stages];
    int first_bad[T::stages]; /* key of V in the step */

    __device__ __forceinline__ void begin()
    {
        if (threadIdx.x < T::stages) {
            mbarrier_init(shared_address(&k_full[threadIdx.x]), T::fetching);
            mbarrier_init(shared_address(&v_full[threadIdx.x]), T::fetching);
            mbarrier_init(shared_address(&k_empty[threadIdx.x]), 4 * T::groups);
            mbarrier_init(shared_address(&v_empty[threadIdx.x]), 4 * T::groups);
        }
        if (threadIdx.x < 2) {
            mbarrier_init(shared_address(&q_full[threadIdx.x]), T::fetching);
            mbarrier_init(shared_address(&q_empty[threadIdx.x]), 128 * T::groups);
        }
    }
};

/* What a team does after a tile. */
__device__ __forceinline__ uint32_t f16_team_next(const td_params_attention_f16 &p, uint32_t work)
{
    return work + (p.pair == 1 ? p.blocks : work % 2 ? 2 * p.blocks - 1 : 1);
}

/* Where the n-th use of a ring is, and in which of its barriers' phases. */
template <uint32_t Stages> __device__ __forceinline__ uint32_t f16_stage(uint32_t n)
{
    static_assert((Stages & (Stages - 1)) == 0,
                  "a mask and a shift: registers of those that fetch are few");
    return n % Stages;
}
template <uint32_t Stages> __device__ __forceinline__ uint32_t f16_parity(uint32_t n)
{
    return n / Stages % 2;
}

/* For one team, by T::fetching threads that meet at barrier `meet`, and once all of the block, when
 * the first copies are under way: tiles from `begin` on; where teams share the keys, `team` takes
 * every so manieth step. */
template <class T>
__device__ __forceinline__ void f16_fetch(F16Rings<T> &shared, const td_params_attention_f16 &p,
                                          uint32_t begin, uint32_t end, int team, uint32_t meet)
{
    using Copy = F16Copy<T::keys, T::dim, T::keys, T::fetching>;
    using CopyQ = F16Copy<64, T::dim, 64, T::fetching>;
    uint32_t tiles = 0, fetched = 0; /* K of so many steps; V is one behind */
    /* the barrier that says that the copies that were started last are there */
    uint32_t before = 0;
    int cut = -1;                    /* where they are V of a step that the mask cuts: its stage */

    /* What was started last is there. */
    const auto arrive = [&] {
        if (cut >= 0) { /* before others see it */
            const int first = Copy::clear_bad(shared.v[cut][0], T::bf16 ? 0x7f80u : 0x7c00u);
            /* for racecheck, which follows an arrival of a warp's one lane for that lane alone */
            bar_sync<T::fetching>(meet);
            if (threadIdx.x % T::fetching == 0)
                shared.first_bad[cut] = T::keys;
            bar_sync<T::fetching>(meet);
            if (first < T::keys)
                atomicMin(&shared.first_bad[cut], first);
        }
        fence_proxy_async();
        mbarrier_arrive(before);
    };
    /* While there is no room, what is under way is waited for. */
    const auto wait_for_room = [&](const uint64_t &empty, uint32_t parity) {
        if (__all_sync(~0u, mbarrier_try_wait(shared_address(&empty), parity)))
            return;
        if (before) {
            cp_async_wait<0>();
            arrive();
            before = 0;
        }
        wait_for(empty, parity);
    };
    const auto start = [](auto copy, uint32_t to, const uint8_t *from, int64_t stride, int rows,
                          int there) {
        if (there >= rows && stride == T::dim)
            copy.start_dense(to, from);
        else
            copy.start(to, from, 2 * stride, there);
    };
    const auto publish = [&](uint64_t &full, int cuts = -1) {
        cp_async_commit();
        if (before) {
            cp_async_wait<1>();
            arrive();
        }
        before = shared_address(&full);
        cut = cuts;
    };
#pragma unroll 1
    for (uint32_t work = begin; work < end; work = f16_team_next(p, work)) {
        const F16RowTile at = f16_row_tile<T>(p, work);
        const int steps = (at.steps - team + T::shares - 1) / T::shares;
        if (steps == 0)
            continue;
        const uint32_t q_stage = f16_stage<2>(tiles);
        if (tiles > 0)
            wait_for_room(shared.q_empty[q_stage], f16_parity<2>(tiles) ^ 1);
#pragma unroll 1
        for (int group = 0; group < T::groups; group++) {
            const int row0 = at.row0 + 64 * group;

            start(CopyQ(), shared_address(shared.q[q_stage][group]),
                  f16_rows(p.q, at.batch, at.head, row0 + CopyQ::first_row()) + CopyQ::first_byte(),
                  p.q.stride_row, 64, int(p.q.rows) - row0);
        }
        publish(shared.q_full[q_stage]);
        tiles++;

        const int first = team * T::keys + Copy::first_row();
        const uint8_t *k = f16_rows(p.k, at.batch, at.kv_head, first) + Copy::first_byte();
        const uint8_t *v = f16_rows(p.v, at.batch, at.kv_head, first) + Copy::first_byte();
#pragma unroll 1
        for (int step = -1; step < steps; step++) { /* K of the next, V of this one */
            const int key = (step * T::shares + team) * T::keys;

            if (step + 1 < steps) {
                const uint32_t stage = f16_stage<T::stages>(fetched);

                if (fetched > 0)
                    wait_for_room(shared.k_empty[stage], f16_parity<T::stages>(fetched) ^ 1);
                start(Copy(), shared_address(shared.k[stage]), k, p.k.stride_row, T::keys,
                      int(p.k.rows) - (key + T::shares * T::keys));
                /* barriers are there, and whether the job is given up */
                if (fetched == 0 && __syncthreads_or(false)) {
                    cp_async_wait<0>();
                    return;
                }
                publish(shared.k_full[stage]);
                k += T::shares * 2 * T::keys * p.k.stride_row;
            }
            if (step >= 0) {
                const uint32_t stage = f16_stage<T::stages>(fetched - 1);

                wait_for_room(shared.v_empty[stage], f16_parity<T::stages>(fetched - 1) ^ 1);
                start(Copy(), shared_address(shared.v[stage]), v, p.v.stride_row, T::keys,
                      int(p.k.rows) - key);
                publish(shared.v_full[stage],
                        p.causal && key + T::keys > at.free_keys ? int(stage) : -1);
                v += T::shares * 2 * T::keys * p.v.stride_row;
            }
            fetched++;
        }
        fetched--; /* the last step has V alone */
    }
    if (fetched == 0)
        __syncthreads_or(false);
    if (before) {
        cp_async_wait<0>();
        arrive();
    }
}

} // namespace td
#endif
