/* The warps of attn_8b_wgmma_inline that fetch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "inline_tile.cuh"

#if TD_HAVE_WGMMA

namespace td {
namespace ring {

/* A warp of a team, which has every so many fetches, or a ring's. A thread's copies go to and come
 * from addresses that differ from fetch to fetch by the same. */
template <class T> struct Fetcher {
    static constexpr int threads = 32 * T::team_warps;
    /* at once */
    static constexpr int k_pieces = T::dim / 16, k_abreast = k_pieces & -k_pieces,
                         k_rows = threads / k_abreast;
    static constexpr int v_rows = threads / (T::tile / 16);
    /* of rows, by where the swizzle puts their pieces */
    static constexpr int kinds = k_rows < 8 ? 8 / k_rows : 1;
    static_assert(T::tile % k_rows == 0 && T::dim % v_rows == 0 && v_rows % 8 == 0,
                  "every thread copies as much");

    typename T::Shared &shared;
    const td_params_attention &p;
    static constexpr uint32_t each = T::slots; /* from one of its fetches of a ring to the next */

    uint32_t team, ring, first, tiles; /* of the ring; its first fetch */
    int t;
    int64_t plane;
    const uint8_t *k_plane, *v_plane, *k, *v;
    const float *k_scale;
    int64_t v_further;
    uint32_t k_to, v_to;
    uint32_t k_at[kinds][k_pieces / k_abreast];

    __device__ __forceinline__ Fetcher(typename T::Shared &s, const td_params_attention &params,
                                       const RowTile &at)
        : shared(s), p(params)
    {
        /* the compiler sees that a warp agrees on it */
        team = __shfl_sync(~0u, threadIdx.x % 128 / threads, 0);
        t = int(threadIdx.x) % threads;
        const int k_row = t / k_abreast, k_byte = t % k_abreast * 16;
        const int v_row = t / (T::tile / 16), v_byte = t % (T::tile / 16) * 16;
        ring = team / each;
        first = team % each;
        const int64_t key = ring * T::keys + first * T::tile;

        plane = at.bhk;
        tiles = uint32_t(tiles_of<T>(at.tiles, int(ring)));
        k_plane = (const uint8_t *)p.k_codes + plane * p.kv_pad * T::dim;
        v_plane = (const uint8_t *)p.v_codes + plane * p.kv_pad * T::dim;
        k = k_plane + (key + k_row) * T::dim + k_byte;
        v = v_plane + v_row * int64_t(p.kv_pad) + key + v_byte + before(first);
        k_scale = p.k_scale + plane * p.kv_pad + key + 4 * t;
        v_further = int64_t(v_rows) * p.kv_pad;
        k_to = shared_address(shared.k[ring * T::slots]);
        v_to = shared_address(shared.v[ring * T::slots]) +
               swizzled<T::tile>(uint32_t(v_row * T::tile + v_byte));
#pragma unroll
        for (int i = 0; i < kinds; i++)
#pragma unroll
            for (int j = 0; j < k_pieces / k_abreast; j++)
                k_at[i][j] = k_to + swizzled<T::qk_row>(uint32_t((k_row + i * k_rows) * T::qk_row +
                                                                 k_byte + 16 * k_abreast * j));
    }

    /* From the keys of a ring's tile number n on to those of the tile of this team's next fetch. */
    static __device__ __forceinline__ int further(uint32_t n)
    {
        return T::slots == 1 ? (n % 2 ? (2 * T::splits - 1) * T::tile : T::tile)
               : T::shares   ? T::splits * T::keys
                             : int(T::slots) * T::tile;
    }

    /* And from its keys to those of the tile before it; of the first to those that the first V of a
     * ring of one slot has. */
    static __device__ __forceinline__ int before(uint32_t n)
    {
        return T::slots == 1 && n == 0 ? 0
               : n % 2 || !T::shares   ? -T::tile
                                       : (1 - 2 * T::splits) * T::tile;
    }

    __device__ __forceinline__ bool has(uint32_t n) const
    {
        return team < T::teams && n < td_ring_fetches(tiles);
    }

    __device__ __forceinline__ void copy_k(uint32_t n)
    {
        const uint32_t k_slot =
            T::slots == 1 ? 0 : td_ring_of(n, T::slots).slot * uint32_t(sizeof shared.k[0]);

        if (td_ring_has_k(n, tiles)) {
#pragma unroll
            for (int r = 0; r < T::tile / k_rows; r++)
#pragma unroll
                for (int j = 0; j < k_pieces / k_abreast; j++)
                    cp_async_16(k_at[r % kinds][j] + k_slot +
                                    uint32_t(r / kinds * kinds * k_rows * T::qk_row),
                                k + r * k_rows * T::dim + 16 * k_abreast * j);
            if (n % 2 == 0 && t < T::keys / 4) {
                const uint32_t to = shared_address(
                    shared.k_scale[T::shares ? ring * T::abreast : n / 2 % 2] + 4 * t);

                cp_async_16(to, k_scale);
            }
        }
        k += further(n) * T::dim;
        k_scale += further(n);
    }

    __device__ __forceinline__ void copy_v(uint32_t n)
    {
        const uint32_t v_slot =
            T::slots == 1 ? 0 : td_ring_of(n, T::slots).slot * uint32_t(sizeof shared.v[0]);

        if (td_ring_has_v(n)) {
            const uint8_t *from = v;

#pragma unroll
            for (int r = 0; r < T::dim / v_rows; r++, from += v_further)
                cp_async_16(v_to + v_slot + uint32_t(r * v_rows * T::tile), from);
        }
        v += T::slots > 1 ? further(n) : -before(n);
    }

    /* V's scales and means; a mean that there is not is 0. */
    __device__ __forceinline__ void copy_v_scales()
    {
        for (int c = 4 * t; c < T::dim; c += 4 * threads) {
            const int64_t channel = plane * T::dim + c;

            cp_async_16(shared_address(shared.v_scale + c), p.v_scale + channel);
            cp_async_16_or_zero(shared_address(shared.v_mean + c),
                                p.v_mean ? p.v_mean + channel : p.v_scale, p.v_mean ? 16 : 0);
        }
    }

    /* The first fetch, for which there is room. */
    __device__ __forceinline__ void begin()
    {
        if (has(first)) {
            copy_k(first);
            copy_v(first);
            if (team == 0 && !T::v_last)
                copy_v_scales();
            cp_async_commit();
        }
    }

    /* Blocks of a head each bring a part of its scales of keys into L2, for which all of them would
     * wait at the same time; where a ring has one slot, of its K and V, too. */
    __device__ __forceinline__ void warm_l2(int row0)
    {
        const uint32_t tiles_of_rows = (p.o.rows + T::rows - 1) / T::rows,
                       number = uint32_t(row0) / T::rows;
        const auto part = [&](const void *plane_of, uint32_t bytes) {
            const uint32_t each = (bytes / 128 + tiles_of_rows - 1) / tiles_of_rows * 128,
                           begin = number * each;
            const uint32_t end = min(bytes, begin + min(each, 1u << 16));
            const uint8_t *const from = static_cast<const uint8_t *>(plane_of);
#pragma unroll 1
            for (uint32_t at = begin + threadIdx.x % 128 * 128; at < end; at += 128 * 128)
                prefetch_l2(from + at);
        };

        part(p.k_scale + plane * p.kv_pad, 4 * p.kv_pad);
        if (T::slots == 1) {
            part(k_plane, p.kv_pad * T::dim);
            part(v_plane, p.kv_pad * T::dim);
        }
    }

    __device__ __forceinline__ void go_on()
    {
#pragma unroll 1
        for (uint32_t n = first; has(n); n += each) {
            const td_ring_place place = td_ring_of(n, T::slots);
            const uint32_t slot = ring * T::slots + place.slot;

            if (n != first) {
                wait_or_trap(shared.empty[slot], td_ring_empty_parity(place));
                /* for racecheck, which follows an arrival of a warp's one lane for that lane alone
                 */
                bar_sync<threads>(8 + team);
                copy_k(n);
                copy_v(n);
                cp_async_commit();
            }
            if (T::tiles_ahead > 0 && n + T::tiles_ahead < tiles) {
                const int64_t ahead = (n + T::tiles_ahead) * T::tile;

                for (int at_byte = 128 * t; at_byte < T::tile * T::dim; at_byte += 128 * threads)
                    prefetch_l2(k_plane + ahead * T::dim + at_byte);
                for (int c = t; c < T::dim && ahead % 128 == 0; c += threads)
                    prefetch_l2(v_plane + c * int64_t(p.kv_pad) + ahead);
            }
            cp_async_wait<0>();
            fence_proxy_async();
            mbarrier_arrive(shared_address(&shared.full[slot]));
        }
    }
};

} // namespace ring
} // namespace td
#endif
