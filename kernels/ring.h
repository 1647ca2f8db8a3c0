/* The ring of slots of attn_8b_wgmma_inline: what a fetch brings and where to, and which phase of a barrier a wait is for.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Plain functions, for the kernel and for tests/kernels/test_ring.c, which lets warps that fetch and warps that compute run
 * against each other in every order.
 *
 * A tile is 64 keys. Fetch n brings K of tile n and V of tile n - 1, which are needed at the same time: T tiles take T + 1
 * fetches, the first without V, the last without K. It lies in slot n % slots and is that slot's round n / slots.
 * The fetching warps are teams, at most as many as slots; team n % teams has fetch n.
 * A slot has two mbarriers:
 *   full    1 arrival of each thread of the team a phase, once what this thread copies of the fetch is there
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

TD_RING td_ring_place td_ring_of(uint32_t fetch, uint32_t slots)
{
    const td_ring_place place = {fetch % slots, fetch / slots % 2};

    return place;
}

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
    return tiles ? tiles + 1 : 0;
}

/* What is in a fetch: K of tile `fetch`, V of tile `fetch - 1`. */
TD_RING bool td_ring_has_k(uint32_t fetch, uint32_t tiles)
{
    return fetch < tiles;
}
TD_RING bool td_ring_has_v(uint32_t fetch)
{
    return fetch > 0;
}

#endif
