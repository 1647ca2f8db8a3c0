/* Plans that are kept by what they were made from: a network submits few shapes again and again, and a plan with
 * AUTO takes up to 9 us to make.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_PLAN_CACHE_H
#define TANDEM_KERNELS_PLAN_CACHE_H

#include "kernels/operation.h"

/* All that a plan depends on. Of a view's place that is only how it is aligned: mem is 0, offset_bytes what is left of 16.
 * Compared as bytes: padding that differs makes the same plan once more, never another one. */
typedef struct td_plan_key {
    uint64_t number; /* of the operation */
    tandem_operands op, whole; /* whole: zeros where there is none, and NULL in the target */
    td_target target;
} td_plan_key;

enum { TD_CACHED_PLANS = 8 };
typedef struct td_cached_plan {
    uint64_t hash, used; /* used: when last, by the cache's count; 0: never */
    td_plan_key key;
    const td_plan *plan;
} td_cached_plan;

/* Begins as zeros, ends with td_plan_cache_clear(); who has it locks it. */
typedef struct td_plan_cache {
    uint64_t count;
    td_cached_plan entries[TD_CACHED_PLANS];
} td_plan_cache;

/* The operation's plan, or the one that it made before; the caller's td_plan_drop() ends its use of it. What the target
 * points to, tables, options and images, must not change while the cache has plans of it. NOMEM beside what `plan` of the
 * operation returns. */
tandem_status td_plan_cached(td_plan_cache *cache, const td_operation *operation, const tandem_operands *op,
                             const td_target *target, const td_plan **plan, char *why, size_t why_bytes);

/* Empties it; plans that are in use stay with who uses them. */
void td_plan_cache_clear(td_plan_cache *cache);

#endif
