/* Plans that are kept. See plan_cache.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/attention/plan_cache.h"

#include <string.h>

_Static_assert(sizeof(td_plan_key) % sizeof(uint64_t) == 0, "keys are hashed by words of 64 bits");

static void set_op(tandem_attention *to, const tandem_attention *op)
{
    tandem_view *const views[] = {&to->q, &to->k, &to->v, &to->o, &to->lse};
    *to = *op;
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        views[i]->mem = 0;
        views[i]->offset_bytes %= 16;
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

tandem_status td_plan_cached(td_plan_cache *cache, const tandem_attention *op, const td_target *target,
                             const td_plan **plan, char *why, size_t why_bytes)
{
    td_cached_plan *oldest = &cache->entries[0];
    td_plan_key key;
    memset(&key, 0, sizeof key);
    set_op(&key.op, op);
    if (target->whole)
        set_op(&key.whole, target->whole);
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
    const tandem_status status = td_plan_attention(op, target, &oldest->plan, NULL, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    oldest->key = key;
    oldest->hash = hash;
    oldest->used = ++cache->count;
    *plan = &oldest->plan;
    return TANDEM_OK;
}
