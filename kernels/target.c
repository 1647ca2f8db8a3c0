/* Devices that plans are made for. See target.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/target.h"

#include <inttypes.h>

#include "interop/base.h"

td_target td_target_for_sm(uint32_t sm)
{
    td_target target = {.sm = sm, .accumulator = TD_ACCUMULATOR_F32, .multiprocessors = TD_H200_MULTIPROCESSORS};
    if (sm >= 100)
        target.accumulator = TD_ACCUMULATOR_BLACKWELL_MMA;
    else if (sm >= 90)
        target.accumulator = TD_ACCUMULATOR_HOPPER_MMA;
    else if (sm >= 89)
        target.accumulator = TD_ACCUMULATOR_ADA_MMA;
    return target;
}

td_target td_target_for_stream(uint32_t sm)
{
    td_target target = td_target_for_sm(sm);
    target.tensor_maps = sm >= 90;
    target.shared_bytes = sm >= 100 ? 99u * 1024u : sm >= 90 ? 227u * 1024u : 0;
    return target;
}

const td_cubin *td_cubin_for_sm(uint32_t sm, char *why, size_t why_bytes)
{
    uint32_t count = 0;
    const td_cubin *table = td_cubins(&count), *best = NULL;
    for (uint32_t i = 0; i < count; i++)
        if (!table[i].ptx && table[i].sm <= sm && table[i].sm / 10 == sm / 10 && (!best || table[i].sm > best->sm))
            best = &table[i];
    for (uint32_t i = 0; i < count && (!best || best->ptx); i++)
        if (table[i].ptx && table[i].sm <= sm && (!best || table[i].sm > best->sm))
            best = &table[i];
    if (!why || best)
        return best;
    if (!count)
        td_text(why, why_bytes, "this build has no GPU kernels: it was made without nvcc");
    else
        td_text(why, why_bytes, "no kernel for compute capability %" PRIu32 ".%" PRIu32, sm / 10, sm % 10);
    return best;
}

bool td_target_kernels(const td_target *target, const td_cubin **cubin, uint32_t *sm, char *why, size_t why_bytes)
{
    uint32_t cubins = 0;
    td_cubins(&cubins);
    *cubin = NULL;
    *sm = target->sm;
    if (!target->sm || !cubins || target->twin)
        return true;
    *cubin = target->image ? target->image : td_cubin_for_sm(target->sm, why, why_bytes);
    if (*cubin)
        *sm = (*cubin)->sm;
    return *cubin != NULL;
}
