/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_plugin/daemon/daemon.h"

static td_slot *first_ready(td_desk *desk, const uint64_t *last_sequence, uint64_t full)
{
    td_slot *first = NULL;

    for (uint32_t i = 0; i < TD_DESK_SLOTS; i++) {
        td_slot *slot = &desk->slots[i];

        if (atomic_load_explicit(&slot->state, memory_order_acquire) == TD_SLOT_READY &&
            !(full >> slot->lane % TD_LANES & 1) && slot->sequence > last_sequence[slot->lane % TD_LANES] &&
            (!first || slot->sequence < first->sequence))
            first = slot;
    }
    return first;
}

/* While one look goes over the slots the broker may put a job where it has been, and the next one where it has not. All
 * that were put before a job that was seen are seen by the look after that. */
td_slot *td_desk_next(td_desk *desk, const uint64_t last_sequence[TD_LANES], uint64_t full)
{
    return first_ready(desk, last_sequence, full) ? first_ready(desk, last_sequence, full) : NULL;
}
