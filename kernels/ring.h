/* The ring of slots of attn_8b_wgmma_inline: where a fetch lies, and which phase of a barrier a wait is for.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Plain functions, for the kernel and for tests/test_ring.c, which lets warps that fetch and warps that compute run
 * against each other in every order.
 *
 * A tile is 64 keys. Those of T tiles are fetched one after the other, in the order in which they are needed:
 *   K(0), K(1) V(0), K(2) V(1), ... K(T-1) V(T-2), V(T-1)
 * Fetch f lies in slot f % slots and is that slot's round f / slots. A slot has two mbarriers:
 *   full    1 arrival of each fetching thread a phase, by itself once what this thread copies of the fetch is there
 *   empty   1 arrival of each consumer a phase, once it does not read the fetch any more
 * An mbarrier knows its phase only by its parity: a wait for parity x returns while the phase in progress has the other
 * one. So it means what it says only where the phase waited for is the one in progress or the one right before.
 */
#ifndef TANDEM_KERNELS_RING_H
#define TANDEM_KERNELS_RING_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define TD_RING __host__ __device__ __forceinline__
#else
#define TD_RING static inline
#endif

/* Where a fetch lies. */
typedef struct td_ring_place {
    uint32_t slot;
    uint32_t odd; /* round % 2 */
} td_ring_place;

/* Of the fetch behind the one at `place`. */
TD_RING td_ring_place td_ring_next(td_ring_place place, uint32_t slots)
{
    const bool last = place.slot + 1 == slots;
    const td_ring_place next = {last ? 0 : place.slot + 1, last ? place.odd ^ 1 : place.odd};

    return next;
}

/* A consumer waits for phase `round` of full: that is the round's own fetch. */
TD_RING uint32_t td_ring_full_parity(td_ring_place place)
{
    return place.odd;
}

/* Who fetches waits for phase `round - 1` of empty; in round 0 for the one that a new barrier has behind it. */
TD_RING uint32_t td_ring_empty_parity(td_ring_place place)
{
    return place.odd ^ 1;
}

TD_RING uint32_t td_ring_fetches(uint32_t tiles)
{
    return 2 * tiles;
}

/* Whether a fetch is of V, and its tile. */
TD_RING bool td_ring_is_v(uint32_t fetch, uint32_t tiles)
{
    return fetch == 2 * tiles - 1 || (fetch > 0 && fetch % 2 == 0);
}
TD_RING uint32_t td_ring_tile(uint32_t fetch, uint32_t tiles)
{
    return fetch == 2 * tiles - 1 ? tiles - 1 : fetch % 2 ? (fetch + 1) / 2 : fetch ? fetch / 2 - 1 : 0;
}

/* What a consumer waits for in tile t: K of tile t + 1, for which V's place stands behind the last, and V of tile t. */
typedef struct td_ring_pair {
    td_ring_place k, v;
} td_ring_pair;
TD_RING td_ring_pair td_ring_take(td_ring_place *next, bool more, uint32_t slots)
{
    td_ring_pair pair;

    pair.k = *next;
    pair.v = more ? td_ring_next(*next, slots) : *next;
    *next = td_ring_next(pair.v, slots);
    return pair;
}

#endif
