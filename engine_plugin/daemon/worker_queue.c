/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_plugin/daemon/worker_queue.h"

static td_slot *first_ready(td_worker_queue *queue, const uint64_t *last_sequence, uint64_t full)
{
    td_slot *first = NULL;

    for (uint32_t i = 0; i < TD_WORKER_SLOTS; i++) {
        td_slot *slot = &queue->slots[i];
        const uint32_t session = slot->worker_session % TD_MAX_SESSIONS;

        if (atomic_load_explicit(&slot->state, memory_order_acquire) == TD_SLOT_READY &&
            !(full >> session & 1) && slot->sequence > last_sequence[session] &&
            (!first || slot->sequence < first->sequence))
            first = slot;
    }
    return first;
}

/* Scan twice: while one scan goes over the slots, the broker may put job n into one that the scan has passed and n + 1 into
 * one ahead of it. A scan that begins after n + 1 was seen sees both. */
td_slot *td_worker_queue_next(td_worker_queue *queue, const uint64_t last_sequence[TD_MAX_SESSIONS], uint64_t full)
{
    return first_ready(queue, last_sequence, full) ? first_ready(queue, last_sequence, full) : NULL;
}
