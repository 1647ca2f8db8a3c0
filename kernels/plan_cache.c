/* Plans that are kept. See plan_cache.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/plan_cache.h"

#include <string.h>

_Static_assert(sizeof(td_target) % sizeof(uint64_t) == 0, "keys are hashed by words of 64 bits, as operations' structs are");

static void set_op(const td_operation_layout *layout, tandem_operands *to, const tandem_operands *op)
{
    memcpy(to, op, layout->bytes);
    for (uint32_t i = 0; i < layout->view_count; i++) {
        tandem_view *view = td_view_of(layout, to, i);
        view->mem = 0;
        view->offset_bytes %= 16;
    }
}

static uint64_t hash_of(uint64_t hash, const void *bytes, size_t count)
{
    uint64_t word;
    for (size_t i = 0; i < count; i += sizeof word) {
        memcpy(&word, (const unsigned char *)bytes + i, sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    return hash;
}

/* Of the operation's structs only `bytes` are used. */
static bool same(const td_plan_key *a, const td_plan_key *b, size_t bytes)
{
    return a->number == b->number && memcmp(&a->target, &b->target, sizeof a->target) == 0 &&
           memcmp(&a->op, &b->op, bytes) == 0 && memcmp(&a->whole, &b->whole, bytes) == 0;
}

tandem_status td_plan_cached(td_plan_cache *cache, const td_operation *operation, const tandem_operands *op,
                             const td_target *target, const td_plan **plan, char *why, size_t why_bytes)
{
    td_cached_plan *oldest = &cache->entries[0];
    td_plan_key key;
    memset(&key.target, 0, sizeof key.target);
    key.number = operation->layout.number;
    set_op(&operation->layout, &key.op, op);
    if (target->whole)
        set_op(&operation->layout, &key.whole, target->whole);
    else
        memset(&key.whole, 0, operation->layout.bytes);
    memcpy(&key.target, target, sizeof key.target);
    key.target.whole = NULL;

    const size_t bytes = operation->layout.bytes;
    uint64_t hash = hash_of(0xcbf29ce484222325u, &key.number, sizeof key.number);
    hash = hash_of(hash_of(hash, &key.op, bytes), &key.target, sizeof key.target);
    if (target->whole)
        hash = hash_of(hash, &key.whole, bytes);
    for (uint32_t i = 0; i < TD_CACHED_PLANS; i++) {
        td_cached_plan *it = &cache->entries[i];
        if (it->used && it->hash == hash && same(&it->key, &key, bytes)) {
            it->used = ++cache->count;
            *plan = td_plan_use(it->plan);
            return TANDEM_OK;
        }
        if (it->used < oldest->used)
            oldest = it;
    }
    td_plan *made = td_plan_create();
    if (!made)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a plan");
    *plan = made;
    const tandem_status status = operation->plan(op, target, made, why, why_bytes);
    if (status != TANDEM_OK) {
        td_plan_drop(plan);
        return status;
    }
    td_plan_drop(&oldest->plan);
    oldest->plan = td_plan_use(made);
    oldest->key = key;
    oldest->hash = hash;
    oldest->used = ++cache->count;
    return TANDEM_OK;
}

void td_plan_cache_clear(td_plan_cache *cache)
{
    for (uint32_t i = 0; i < TD_CACHED_PLANS; i++)
        td_plan_drop(&cache->entries[i].plan);
    memset(cache, 0, sizeof *cache);
}
