/* The daemon's side of ids: what a client may name, and nothing else.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A slot that is used again has another generation, so an id that was destroyed finds nothing. One thread's at a time.
 */
#ifndef TANDEM_IDS_H
#define TANDEM_IDS_H

#include "interop/wire/wire.h"

typedef struct td_ids_slot {
    void *object;        /* NULL: free */
    uint32_t generation; /* of the next object here, or of the one that is; 0: used up */
} td_ids_slot;

typedef struct td_ids {
    td_wire_kind kind;
    uint32_t capacity, count;
    td_ids_slot *slots; /* the caller's, `capacity` of them */
} td_ids;

void td_ids_begin(td_ids *ids, td_wire_kind kind, td_ids_slot *slots, uint32_t capacity);
/* 0 if there is no room. */
uint64_t td_ids_add(td_ids *ids, void *object);
/* NULL for an id that is not, or no longer, one of these. */
void *td_ids_find(const td_ids *ids, uint64_t id);
/* The object that had this id, or NULL. */
void *td_ids_remove(td_ids *ids, uint64_t id);

#endif
