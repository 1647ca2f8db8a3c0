/* Attention as an operation: what others see of it. See kernels/operation.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/attention/attention.h"

/* It is sent to a daemon as it lies in memory, so it may grow, but nothing in it may move. */
#define AT(member, offset) _Static_assert(offsetof(tandem_attention, member) == (offset), #member)
AT(q, 0);
AT(k, 48);
AT(v, 96);
AT(o, 144);
AT(lse, 192);
AT(batch, 240);
AT(heads, 244);
AT(kv_heads, 248);
AT(q_len, 252);
AT(kv_len, 256);
AT(head_dim, 260);
AT(scale, 264);
AT(causal, 268);
AT(precision, 272);
AT(smooth, 276);
AT(granularity, 280);
AT(reserved, 284);
AT(length, 288);
AT(bias, 336);
AT(position, 384);
AT(softcap, 432);
AT(window, 436);
AT(q_start, 440);
AT(k_start, 488);
AT(sink, 536);
AT(q_total, 584);
AT(kv_total, 588);

static void shape(const tandem_operands *operands, uint32_t view, uint32_t shape[4])
{
    const tandem_attention *op = &operands->attention;
    const bool of_keys = view == TD_VIEW_K || view == TD_VIEW_V, by_head = view != TD_VIEW_LENGTH && view != TD_VIEW_POSITION;
    const bool packed = (of_keys ? op->k_start : op->q_start).dtype != TANDEM_DTYPE_NONE && view <= TD_VIEW_POSITION &&
                        view != TD_VIEW_LENGTH && view != TD_VIEW_BIAS;
    shape[0] = packed ? 1 : op->batch;
    shape[1] = of_keys ? op->kv_heads : by_head ? op->heads : 1;
    shape[2] = of_keys ? (packed ? op->kv_total : op->kv_len) : packed ? op->q_total : op->q_len;
    shape[3] = view == TD_VIEW_LSE || !by_head ? 1 : view == TD_VIEW_BIAS ? op->kv_len : op->head_dim;
    if (view == TD_VIEW_LENGTH)
        shape[2] = 1;
    if (view >= TD_VIEW_Q_START) {
        shape[0] = shape[2] = 1;
        shape[1] = view == TD_VIEW_SINK ? op->heads : 1;
        shape[3] = view == TD_VIEW_SINK ? 1 : op->batch + 1;
    }
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    return td_attention_check(&op->attention, why, why_bytes);
}

static tandem_status plan(const tandem_operands *op, const td_target *target, td_plan *plan, char *why, size_t why_bytes)
{
    return td_plan_attention(&op->attention, target, plan, NULL, why, why_bytes);
}

static uint32_t precision(const tandem_operands *op, const td_target *target)
{
    return td_attention_precision(&op->attention, target);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    return td_attention_cost(&op->attention, position);
}

static uint32_t split(const tandem_operands *op, uint32_t count)
{
    return td_attention_split(&op->attention, count);
}

static uint32_t part(const tandem_operands *op, uint32_t count, td_part_at *at, tandem_operands *part)
{
    return td_attention_part(&op->attention, count, at, &part->attention);
}

#define VIEW(member, is_written, is_optional) {#member, offsetof(tandem_attention, member), is_written, is_optional}
#define NUMBER(member) {#member, offsetof(tandem_attention, member), false}
#define FLOAT(member) {#member, offsetof(tandem_attention, member), true}
const td_operation td_operation_attention = {
    .layout = {.name = "attention",
               .number = TANDEM_OPERATION_ATTENTION,
               .bytes = sizeof(tandem_attention),
               .version = 4,
               .older = (const uint32_t[]){offsetof(tandem_attention, length), offsetof(tandem_attention, softcap),
                                           offsetof(tandem_attention, q_start)},
               .view_count = TD_VIEW_COUNT,
               .views = {[TD_VIEW_Q] = VIEW(q, false, false),
                         [TD_VIEW_K] = VIEW(k, false, false),
                         [TD_VIEW_V] = VIEW(v, false, false),
                         [TD_VIEW_O] = VIEW(o, true, false),
                         [TD_VIEW_LSE] = VIEW(lse, true, true),
                         [TD_VIEW_LENGTH] = VIEW(length, false, true),
                         [TD_VIEW_BIAS] = VIEW(bias, false, true),
                         [TD_VIEW_POSITION] = VIEW(position, false, true),
                         [TD_VIEW_Q_START] = VIEW(q_start, false, true),
                         [TD_VIEW_K_START] = VIEW(k_start, false, true),
                         [TD_VIEW_SINK] = VIEW(sink, false, true)},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(heads), NUMBER(kv_heads), NUMBER(q_len), NUMBER(kv_len),
               NUMBER(head_dim), FLOAT(scale), NUMBER(causal), NUMBER(precision), NUMBER(smooth),
               NUMBER(granularity), FLOAT(softcap), NUMBER(window), NUMBER(q_total), NUMBER(kv_total)},
    .precision_at = offsetof(tandem_attention, precision),
    .labels = {"tandem attention", "tandem attention f16", "tandem attention 8b", "tandem attention 4b"},
    .check = check,
    .plan = plan,
    .precision = precision,
    .cost = cost,
    .split = split,
    .part = part,
};
