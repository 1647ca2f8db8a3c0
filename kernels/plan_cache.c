/* Plans that are kept. See plan_cache.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/plan_cache.h"

#include <string.h>

_Static_assert(sizeof(td_plan_key) % sizeof(uint64_t) == 0, "keys are hashed by words of 64 bits");

static void set_op(const td_operation_layout *layout, tandem_operands *to, const tandem_operands *op)
{
    memcpy(to, op, layout->bytes);
    for (uint32_t i = 0; i < layout->view_count; i++) {
        tandem_view *view = td_view_of(layout, to, i);
        view->mem = 0;
        view->offset_bytes %= 16;
    }
}

static uint64_t hash_of(const td_plan_key *key)
{
    uint64_t word, hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof *key; i += sizeof word) {
        memcpy(&word, (const unsigned char *)key + i, sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    return hash;
}

tandem_status td_plan_cached(td_plan_cache *cache, const td_operation *operation, const tandem_operands *op,
                             const td_target *target, const td_plan **plan, char *why, size_t why_bytes)
{
    td_cached_plan *oldest = &cache->entries[0];
    td_plan_key key;
    memset(&key, 0, sizeof key);
    key.number = operation->layout.number;
    set_op(&operation->layout, &key.op, op);
    if (target->whole)
        set_op(&operation->layout, &key.whole, target->whole);
    memcpy(&key.target, target, sizeof key.target);
    key.target.whole = NULL;

    const uint64_t hash = hash_of(&key);
    for (uint32_t i = 0; i < TD_CACHED_PLANS; i++) {
        td_cached_plan *it = &cache->entries[i];
        if (it->used && it->hash == hash && memcmp(&it->key, &key, sizeof key) == 0) {
            it->used = ++cache->count;
            *plan = &it->plan;
            return TANDEM_OK;
        }
        if (it->used < oldest->used)
            oldest = it;
    }
    oldest->used = 0; /* until it is whole */
    const tandem_status status = operation->plan(op, target, &oldest->plan, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    oldest->key = key;
    oldest->hash = hash;
    oldest->used = ++cache->count;
    *plan = &oldest->plan;
    return TANDEM_OK;
}
