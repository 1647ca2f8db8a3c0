/* Devices that plans are made for. See target.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/target.h"

#include <inttypes.h>

#include "interop/base.h"

uint32_t td_dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case TANDEM_DTYPE_F16:
    case TANDEM_DTYPE_BF16: return 2;
    case TANDEM_DTYPE_F32: return 4;
    case TANDEM_DTYPE_CODES_INT8:
    case TANDEM_DTYPE_CODES_E4M3: return 1;
    default: return 0;
    }
}

uint64_t td_view_extent_bytes(const tandem_view *view, uint32_t batch, uint32_t heads, uint32_t rows, uint32_t dim)
{
    const uint32_t bytes = td_dtype_bytes(view->dtype);
    if (!bytes || !batch || !heads || !rows || !dim)
        return 0;
    if (view->stride_batch < 0 || view->stride_head < 0 || view->stride_row < 0)
        return UINT64_MAX;
    if (view->dtype == TANDEM_DTYPE_CODES_INT8 || view->dtype == TANDEM_DTYPE_CODES_E4M3)
        return tandem_codes_bytes(view->dtype, batch, heads, rows, dim, NULL);
    /* each product is below 2^95, so the sum does not overflow 128 bits */
    unsigned __int128 n = dim;
    n += (unsigned __int128)(batch - 1) * (uint64_t)view->stride_batch;
    n += (unsigned __int128)(heads - 1) * (uint64_t)view->stride_head;
    n += (unsigned __int128)(rows - 1) * (uint64_t)view->stride_row;
    n *= bytes;
    return n >= UINT64_MAX ? UINT64_MAX : (uint64_t)n;
}

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
