/* The ring of slots of attn_f16_wgmma_inline: like that of kernels/ring.h, but a fetch brings one thing.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A tile is a step's keys. Those of T tiles are fetched one after the other, in the order in which they are needed:
 *   K(0), K(1) V(0), K(2) V(1), ... K(T-1) V(T-2), V(T-1)
 * All threads that fetch have a part of each fetch. Fetch f lies in slot f % slots and is that slot's round f / slots; the
 * slot's mbarriers and their phases are those of kernels/ring.h. tests/kernels/test_ring_single.c lets warps that fetch and warps
 * that compute run against each other in every order.
 */
#ifndef TANDEM_KERNELS_RING_SINGLE_H
#define TANDEM_KERNELS_RING_SINGLE_H

#include "kernels/ring.h"

TD_RING uint32_t td_single_fetches(uint32_t tiles)
{
    return 2 * tiles;
}

/* Whether a fetch is of V, and its tile. */
TD_RING bool td_single_is_v(uint32_t fetch, uint32_t tiles)
{
    return fetch == 2 * tiles - 1 || (fetch > 0 && fetch % 2 == 0);
}
TD_RING uint32_t td_single_tile(uint32_t fetch, uint32_t tiles)
{
    return fetch == 2 * tiles - 1 ? tiles - 1 : fetch % 2 ? (fetch + 1) / 2 : fetch ? fetch / 2 - 1 : 0;
}

/* What a consumer waits for in tile t: K of tile t + 1, for which V's place stands behind the last, and V of tile t. */
typedef struct td_single_pair {
    td_ring_place k, v;
} td_single_pair;
TD_RING td_single_pair td_single_take(td_ring_place *next, bool more, uint32_t slots)
{
    td_single_pair pair;

    pair.k = *next;
    pair.v = more ? td_ring_next(*next, slots) : *next;
    *next = td_ring_next(pair.v, slots);
    return pair;
}

#endif
