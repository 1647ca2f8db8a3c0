/* Attention: everything about an operation but its memory is checked here.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>

#include "interop/base.h"
#include "kernels/attention/plan.h"
#include "kernels/check.h"

/* Where a view is codes: that K and V are, of which Q may be none yet, and that they lie as they must. */
static tandem_status check_codes(const tandem_attention *op, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_attention.layout;
    const struct {
        uint32_t index, dtype;
        const tandem_view *view;
    } views[3] = {{TD_VIEW_Q, TANDEM_DTYPE_CODES_INT8, &op->q},
                  {TD_VIEW_K, TANDEM_DTYPE_CODES_INT8, &op->k},
                  {TD_VIEW_V, TANDEM_DTYPE_CODES_E4M3, &op->v}};
    if (!td_dtype_is_codes(op->q.dtype) && !td_dtype_is_codes(op->k.dtype) && !td_dtype_is_codes(op->v.dtype))
        return TANDEM_OK;
    for (int i = 0; i < 3; i++) {
        const tandem_view *view = views[i].view;
        if (i == 0 && !td_dtype_is_codes(view->dtype))
            continue;
        if (view->dtype != views[i].dtype)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                          "attention.%s.dtype is %" PRIu32 "; where q, k or v is codes it must be %" PRIu32 "%s",
                          layout->views[views[i].index].name, view->dtype, views[i].dtype,
                          i == 0 ? ", or none of codes" : "");
    }
    for (int i = 0; i < 3; i++) {
        if (!td_dtype_is_codes(views[i].view->dtype))
            continue;
        const tandem_status status = td_check_codes(layout, td_operands_of(op), views[i].index, why, why_bytes);
        if (status != TANDEM_OK)
            return status;
    }
    if (op->precision != TANDEM_PRECISION_AUTO && op->precision != TANDEM_PRECISION_8B)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                      "attention.precision is %" PRIu32 "; for codes it must be 0 (auto) or 2 (8b)", op->precision);
    if (op->smooth > TANDEM_SMOOTH_NONE)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                      "attention.smooth is %" PRIu32 "; codes are smoothed already, or not: it must be 0 or 1", op->smooth);
    if (op->lse.dtype != TANDEM_DTYPE_NONE)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                      "attention.lse.dtype is %" PRIu32 "; of codes, whose mean nobody knows, it must be 0", op->lse.dtype);
    if (op->softcap > 0)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                      "attention.softcap is %f; of codes, whose mean nobody knows, it must be 0", (double)op->softcap);
    if (op->sink.dtype != TANDEM_DTYPE_NONE)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                      "attention.sink.dtype is %" PRIu32 "; of codes, whose mean nobody knows, it must be 0", op->sink.dtype);
    if (td_attention_has_starts(op))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "attention.k.dtype is %" PRIu32 "; with q_start or k_start it must not be codes, which lie by batch", op->k.dtype);
    return TANDEM_OK;
}

/* Rows of all sequences are as many as `total` says, where there are starts. */
static tandem_status check_starts(const tandem_attention *op, char *why, size_t why_bytes)
{
    const struct {
        const char *name, *start;
        uint32_t dtype, total;
    } of[2] = {{"q_total", "q_start", op->q_start.dtype, op->q_total}, {"kv_total", "k_start", op->k_start.dtype, op->kv_total}};
    for (int i = 0; i < 2; i++) {
        if (of[i].dtype == TANDEM_DTYPE_NONE && of[i].total)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "attention.%s is %" PRIu32 "; without %s it must be 0", of[i].name,
                           of[i].total, of[i].start);
        const tandem_status status =
            of[i].dtype == TANDEM_DTYPE_NONE ? TANDEM_OK : td_check_size("attention", of[i].name, of[i].total, why, why_bytes);
        if (status != TANDEM_OK)
            return status;
    }
    if (op->k_start.dtype != TANDEM_DTYPE_NONE && op->length.dtype != TANDEM_DTYPE_NONE)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "attention.length.dtype is %" PRIu32 "; with k_start it must be 0",
                       op->length.dtype);
    return TANDEM_OK;
}

/* With lengths, a bias, positions, a window or a cap AUTO is F16, whose kernel takes operands as they are. */
static tandem_status check_masked(const tandem_attention *op, char *why, size_t why_bytes)
{
    if (!(op->softcap >= 0 && isfinite(op->softcap)))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "attention.softcap is %f; it must be finite and not negative",
                       (double)op->softcap);
    if (op->window && !op->causal && op->position.dtype == TANDEM_DTYPE_NONE)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "attention.window is %" PRIu32 "; without causal and position it must be 0", op->window);
    if (!td_attention_is_masked(op))
        return TANDEM_OK;
    if (op->position.dtype != TANDEM_DTYPE_NONE && op->causal)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "attention.causal is %" PRIu32 "; with position it must be 0", op->causal);
    if (op->smooth > TANDEM_SMOOTH_NONE && op->precision <= TANDEM_PRECISION_F16)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "attention.smooth is %" PRIu32 "; with length, bias, position, window, softcap, start or sink it must be 0 or 1, or precision, which "
                       "is %" PRIu32 ", 2 (8b) or 3 (4b)", op->smooth, op->precision);
    return TANDEM_OK;
}

/* What models have. Those for which no kernel is built are padded with channels of zeros, to what td_pad_dim() says. */
static bool is_head_dim(uint32_t dim)
{
    static const uint32_t dims[] = {32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        if (dims[i] == dim)
            return true;
    return false;
}

tandem_status td_attention_check(const tandem_attention *op, char *why, size_t why_bytes)
{
    const td_size sizes[] = {{"batch", op->batch},
                             {"heads", op->heads},
                             {"kv_heads", op->kv_heads},
                             {"q_len", op->q_len},
                             {"kv_len", op->kv_len}},
                  limits[] = {{"precision", op->precision},
                              {"granularity", op->granularity},
                              {"causal", op->causal},
                              {"reserved", op->reserved}};
    const uint32_t highest[] = {TANDEM_PRECISION_4B, TANDEM_GRANULARITY_TENSOR, 1, 0};
    static const char *const legal[] = {
        "0 (auto), 1 (f16), 2 (8b) or 3 (4b)",
        "0 (default), 1 (thread, Ada's), 2 (thread, Hopper's), 3 (token), 4 (warp), 5 (block) or 6 (tensor)",
        "0 or 1", "0"};
    tandem_status status = td_check_sizes("attention", sizes, sizeof sizes / sizeof *sizes, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    if (op->heads % op->kv_heads)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                      "attention.heads is %" PRIu32 "; it must be a multiple of kv_heads, which is %" PRIu32, op->heads,
                      op->kv_heads);
    if (!is_head_dim(op->head_dim))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                      "attention.head_dim is %" PRIu32 "; it must be 32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192 or 256",
                      op->head_dim);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value > highest[i])
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "attention.%s is %" PRIu32 "; it must be %s",
                          limits[i].name, limits[i].value, legal[i]);
    if (op->smooth > 15)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                      "attention.smooth is %" PRIu32
                      "; it must be 0 (default), 1 (none), or a sum of 2 (Q), 4 (K) and 8 (V): at most 14",
                      op->smooth);
    if ((op->smooth & TANDEM_SMOOTH_NONE) && op->smooth != TANDEM_SMOOTH_NONE)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                      "attention.smooth is %" PRIu32 "; NONE (1) must not be combined with others", op->smooth);
    if (!isfinite(op->scale))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "attention.scale is %f; it must be finite", (double)op->scale);

    status = check_starts(op, why, why_bytes);
    for (uint32_t i = 0; i < TD_VIEW_COUNT && status == TANDEM_OK; i++) {
        const uint32_t dtypes = i == TD_VIEW_LSE ? TD_DTYPES(TANDEM_DTYPE_F32)
                                : i == TD_VIEW_LENGTH || i == TD_VIEW_POSITION || i == TD_VIEW_Q_START || i == TD_VIEW_K_START
                                    ? TD_DTYPES(TANDEM_DTYPE_I32)
                                : i == TD_VIEW_O || i == TD_VIEW_BIAS || i == TD_VIEW_SINK ? TD_DTYPES_FLOAT
                                                                     : TD_DTYPES_FLOAT | TD_DTYPES_CODES;
        status = td_check_view(&td_operation_attention.layout, td_operands_of(op), i, dtypes, why, why_bytes);
    }
    if (status == TANDEM_OK)
        status = check_codes(op, why, why_bytes);
    if (status == TANDEM_OK)
        status = check_masked(op, why, why_bytes);
    if (status != TANDEM_OK)
        return status;

    /* Every grid must fit into 2^31 - 1 blocks and all of scratch into 2^63 bytes; no array has more than
     * bh * (q blocks) * (kv rows) or bh * rows * 256 elements of 4 bytes, and there are fewer than 32. */
    const unsigned __int128 bh = (unsigned __int128)op->batch * op->heads;
    const uint64_t q_tiles = ((uint64_t)op->q_len + 63) / 64, q_blocks = ((uint64_t)op->q_len + 127) / 128;
    const uint64_t chunks = ((uint64_t)op->kv_len + 127) / 128;
    const bool deltas = (op->smooth & TANDEM_SMOOTH_Q) || (op->precision == TANDEM_PRECISION_4B && op->smooth == 0);
    unsigned __int128 blocks = bh * (q_tiles > chunks ? q_tiles : chunks);
    if (deltas && bh * q_blocks * chunks > blocks)
        blocks = bh * q_blocks * chunks;
    if (blocks > TD_MOST_BLOCKS)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                      "attention.batch, heads, q_len, kv_len are %" PRIu32 ", %" PRIu32 ", %" PRIu32 ", %" PRIu32
                      "; together they need more than %d blocks",
                      op->batch, op->heads, op->q_len, op->kv_len, TD_MOST_BLOCKS);
    return TANDEM_OK;
}
