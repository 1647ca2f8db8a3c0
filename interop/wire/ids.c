/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/wire/ids.h"

void td_ids_begin(td_ids *ids, td_wire_kind kind, td_ids_slot *slots, uint32_t capacity)
{
    *ids = (td_ids){.kind = kind, .capacity = capacity, .slots = slots};
    for (uint32_t i = 0; i < capacity; i++)
        slots[i] = (td_ids_slot){NULL, 1};
}

uint64_t td_ids_add(td_ids *ids, void *object)
{
    for (uint32_t i = 0; object && ids->count < ids->capacity && i < ids->capacity; i++)
        if (!ids->slots[i].object && ids->slots[i].generation) {
            ids->slots[i].object = object;
            ids->count++;
            return td_wire_id(ids->kind, ids->slots[i].generation, i);
        }
    return 0;
}

static td_ids_slot *find(const td_ids *ids, uint64_t id)
{
    const uint32_t slot = td_wire_id_slot(id);

    if (td_wire_id_kind(id) != (uint32_t)ids->kind || slot >= ids->capacity || !ids->slots[slot].object ||
        ids->slots[slot].generation != td_wire_id_generation(id))
        return NULL;
    return &ids->slots[slot];
}

void *td_ids_find(const td_ids *ids, uint64_t id)
{
    const td_ids_slot *slot = find(ids, id);

    return slot ? slot->object : NULL;
}

void *td_ids_remove(td_ids *ids, uint64_t id)
{
    td_ids_slot *slot = find(ids, id);
    void *object = slot ? slot->object : NULL;

    if (slot) {
        slot->object = NULL;
        slot->generation++; /* at 0 the slot is never used again, rather than an id */
        ids->count--;
    }
    return object;
}
