/* Views in bytes. See operation.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "interop/operation.h"

td_dtype td_dtype_of(uint32_t dtype)
{
    static const td_dtype known[] = {
        [TANDEM_DTYPE_F16] = {1, 2, 2, 2},
        [TANDEM_DTYPE_BF16] = {1, 2, 2, 2},
        [TANDEM_DTYPE_F32] = {1, 4, 4, 4},
        [TANDEM_DTYPE_CODES_INT8] = {1, 1, 1, 16}, /* every kernel reads 16 bytes at a time */
        [TANDEM_DTYPE_CODES_E4M3] = {1, 1, 1, 16},
        [TANDEM_DTYPE_I32] = {1, 4, 4, 4},
        [TANDEM_DTYPE_U8] = {1, 1, 1, 1},
        [TANDEM_DTYPE_I8] = {1, 1, 1, 1},
        [TANDEM_DTYPE_Q8_0] = {32, 34, 2, 2},
        [TANDEM_DTYPE_Q4_0] = {32, 18, 2, 2},
        [TANDEM_DTYPE_Q4_1] = {32, 20, 2, 2},
        [TANDEM_DTYPE_Q4_K] = {256, 144, 2, 2},
        [TANDEM_DTYPE_Q6_K] = {256, 210, 2, 2},
        [TANDEM_DTYPE_Q5_K] = {256, 176, 2, 2},
        [TANDEM_DTYPE_Q8_0_TILES] = {64, 68, 16, 16}, /* of a row: a tile has 16 */
        [TANDEM_DTYPE_Q4_0_TILES] = {128, 72, 16, 16},
        [TANDEM_DTYPE_Q4_1_TILES] = {128, 80, 16, 16},
        [TANDEM_DTYPE_Q4_K_TILES] = {256, 144, 16, 16},
        [TANDEM_DTYPE_Q6_K_TILES] = {256, 210, 16, 16},
        [TANDEM_DTYPE_Q5_K_TILES] = {256, 176, 16, 16},
    };
    return dtype < sizeof known / sizeof *known ? known[dtype] : (td_dtype){0, 0, 0, 0};
}

uint32_t td_dtype_bytes(uint32_t dtype)
{
    const td_dtype of = td_dtype_of(dtype);

    return of.elements == 1 ? of.bytes : 0;
}

uint64_t td_view_extent_bytes(const tandem_view *view, uint32_t batch, uint32_t heads, uint32_t rows, uint32_t channels)
{
    const td_dtype of = td_dtype_of(view->dtype);
    const int64_t strides[3] = {view->stride_batch, view->stride_head, view->stride_row};
    const uint32_t counts[3] = {batch, heads, rows};
    unsigned __int128 n = channels; /* in elements; each product is below 2^95, so the sum does not leave 128 bits */

    if (!of.elements || !batch || !heads || !rows || !channels)
        return 0;
    if (channels % of.elements)
        return UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        if (strides[i] < 0 || strides[i] % of.elements)
            return UINT64_MAX;
        n += (unsigned __int128)(counts[i] - 1) * (uint64_t)strides[i];
    }
    if (td_dtype_is_codes(view->dtype)) /* with their scales; that they lie dense is checked by whoever plans the job */
        return tandem_codes_bytes(view->dtype, batch, heads, rows, channels, NULL);
    n = n / of.elements * of.bytes;
    return n >= UINT64_MAX ? UINT64_MAX : (uint64_t)n;
}

bool td_view_end_bytes(const tandem_view *view, const uint32_t shape[4], uint64_t *end_bytes)
{
    const uint64_t extent = td_view_extent_bytes(view, shape[0], shape[1], shape[2], shape[3]);
    uint64_t end;

    if (extent == UINT64_MAX || !td_add_u64(extent, view->offset_bytes, &end) || end > INT64_MAX)
        return false;
    *end_bytes = end;
    return true;
}
