/* Attention with lengths of keys, a bias, or positions of rows: one record, on tensors as they lie in memory, or one on codes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/attention/cpu.h"
#include "kernels/attention/plan.h"

#define MASKED(type, d) {.name = "attn_masked_" #type, .entry = "attn_masked_" #type "_d" #d}
#define MASKEDS(type) {MASKED(type, 32), MASKED(type, 64), MASKED(type, 96), MASKED(type, 128), MASKED(type, 256)}
static const td_kernel kernels[2][TD_D_PADS] = {MASKEDS(f16), MASKEDS(bf16)};
#define FEWS(type) {MASKED(few_##type, 32), MASKED(few_##type, 64), MASKED(few_##type, 96), MASKED(few_##type, 128)}
static const td_kernel kernels_few[2][TD_D_PADS - 1] = {FEWS(f16), FEWS(bf16)};
static const td_kernel kernel_fast = {
    .name = "attn_masked", .cpu = td_fast_attn_masked, .cpu_local_bytes = sizeof(td_local_fast)};
static const td_kernel kernels_8b_fp8[TD_D_PADS] = MASKEDS(8b_fp8), kernels_8b_f16[TD_D_PADS] = MASKEDS(8b_f16);
static const td_kernel kernels_4b_fp8[TD_D_PADS] = MASKEDS(4b_fp8), kernels_4b_f16[TD_D_PADS] = MASKEDS(4b_f16);
static const td_kernel kernel_fast_codes = {
    .name = "attn_masked_codes", .cpu = td_fast_attn_masked_codes, .cpu_local_bytes = sizeof(td_local_fast)};
static const td_kernel kernel_keys = {
    .name = "attn_masked_keys", .entry = "attn_masked_keys", .cpu = td_cpu_attn_masked_keys};
static const td_kernel kernel_spans = {.name = "attn_spans", .entry = "attn_spans", .cpu = td_cpu_attn_spans};
static const td_kernel kernel_unspanned = {
    .name = "attn_unspanned", .entry = "attn_unspanned", .cpu = td_cpu_attn_unspanned};
_Static_assert(sizeof(td_params_attention_masked_codes) <= TD_PARAM_BYTES, "a record has room for it");

/* Whether blocks of so many rows leave multiprocessors idle, of the whole operation, so that parts have its bits; and whether
 * the kernel for that can read it. */
static bool is_few(const td_planning *p)
{
    const tandem_attention *op = p->op, *whole = p->target->whole ? &p->target->whole->attention : op;
    const uint64_t tiles = ((uint64_t)whole->q_len + TD_MASKED_ROWS - 1) / TD_MASKED_ROWS;
    return p->at.is_gpu && p->d_pad <= 128 && td_is_wide(&op->q) && td_is_wide(&op->k) && td_is_wide(&op->v) &&
           (uint64_t)whole->batch * whole->heads * tiles <= td_multiprocessors(p->target);
}

/* GPUs multiply what they load. */
static const td_kernel *kernel_of(const td_planning *p, bool few, char *why, size_t why_bytes)
{
    const tandem_attention *op = p->op;
    const struct {
        const char *name;
        uint32_t dtype;
    } views[] = {{"q", op->q.dtype}, {"k", op->k.dtype}, {"v", op->v.dtype}};
    if (!p->at.is_gpu)
        return &kernel_fast;
    for (int i = 0; i < 3; i++)
        if (views[i].dtype == TANDEM_DTYPE_F32 || views[i].dtype != op->q.dtype) {
            td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                    "attention.%s.dtype is %" PRIu32 "; with length, bias, position, window, softcap, start or sink, on a GPU, q, k and v must all be 1 (f16) or all 2 (bf16)",
                    views[i].name, views[i].dtype);
            return NULL;
        }
    const uint32_t is_bf16 = op->q.dtype == TANDEM_DTYPE_BF16, d = td_index_of_dim(p->d_pad);
    return few ? &kernels_few[is_bf16][d] : &kernels[is_bf16][d];
}

static td_strides positions_of(const tandem_attention *op)
{
    td_strides at = td_strides_of(&op->position);
    if (op->q_start.dtype != TANDEM_DTYPE_NONE)
        at.stride_batch = 0;
    return at;
}

static td_params_attention_masked params_of(const td_planning *p, const td_written *to)
{
    const tandem_attention *op = p->op;
    return (td_params_attention_masked){.q = p->q.tensor,
                                        .k = p->k.tensor,
                                        .v = p->v.tensor,
                                        .o = to->o,
                                        .lse_at = {to->lse_stride_batch, to->lse_stride_head, to->lse_stride_row},
                                        .length_stride = op->length.stride_batch,
                                        .bias_at = td_strides_of(&op->bias),
                                        .position_at = positions_of(op),
                                        .sink_stride = op->sink.stride_head,
                                        .sink_dtype = op->sink.dtype,
                                        .counts_by_span = op->k_start.dtype != TANDEM_DTYPE_NONE,
                                        .scale = p->scale,
                                        .bias_dtype = op->bias.dtype,
                                        .keys = p->seen_keys,
                                        .causal = op->causal,
                                        .window = op->window,
                                        .softcap = op->softcap * TD_LOG2_E};
}

tandem_status td_add_masked(td_planning *p, char *why, size_t why_bytes)
{
    const tandem_attention *op = p->op;
    const bool few = is_few(p);
    const td_kernel *kernel = kernel_of(p, few, why, why_bytes);
    if (!kernel)
        return TANDEM_ERROR_UNSUPPORTED;
    const td_written to = td_place_output(p);
    const td_params_attention_masked params = params_of(p, &to);
    const uint32_t rows = few ? TD_FEW_ROWS : TD_MASKED_ROWS;
    td_builder *at = &p->at;
    td_record *record = td_build_record(at, kernel, p->q.planes * (((uint64_t)op->q_len + rows - 1) / rows), &params, sizeof params);
    record->block[0] = at->is_gpu ? TD_BLOCK_THREADS : 1;
    record->shared_bytes = few           ? TD_FEW_SHARED_BYTES(p->d_pad)
                           : at->is_gpu ? TD_MASKED_SHARED_BYTES(p->d_pad)
                                        : 0;
    record->flags = at->overlaps ? TD_RECORD_PDL : 0;
    td_build_view(at, record, TD_READ, AT(attention_masked, q.data), TD_VIEW_Q);
    td_build_view(at, record, TD_READ, AT(attention_masked, k.data), TD_VIEW_K);
    td_build_view(at, record, TD_READ, AT(attention_masked, v.data), TD_VIEW_V);
    td_build_view(at, record, TD_READ, AT(attention_masked, length), TD_VIEW_LENGTH);
    td_build_view(at, record, TD_READ, AT(attention_masked, bias), TD_VIEW_BIAS);
    td_build_view(at, record, TD_READ, AT(attention_masked, position), TD_VIEW_POSITION);
    td_build_view(at, record, TD_READ, AT(attention_masked, sink), TD_VIEW_SINK);
    td_build_scratch(at, record, TD_READ, AT(attention_masked, q_spans), p->q.spans);
    td_build_scratch(at, record, TD_READ, AT(attention_masked, k_spans), p->k.spans);
    td_build_write(at, record, AT(attention_masked, o.data), &p->out[0]);
    td_build_write(at, record, AT(attention_masked, lse), &p->out[1]);
    return TANDEM_OK;
}

static td_place take_spans(td_planning *p)
{
    return td_build_take(&p->at, true, (unsigned __int128)p->op->batch * sizeof(td_span));
}

void td_add_spans(td_planning *p)
{
    const tandem_attention *op = p->op;
    const td_params_attention_spans params = {.total = {op->q_total, op->kv_total},
                                              .most = {op->q_len, op->kv_len},
                                              .batch = op->batch};
    const bool of_q = op->q_start.dtype != TANDEM_DTYPE_NONE, of_k = op->k_start.dtype != TANDEM_DTYPE_NONE;
    td_builder *at = &p->at;
    if (of_q)
        p->q.spans = take_spans(p);
    if (of_k)
        p->k.spans = p->v.spans = take_spans(p);
    td_record *record = td_build_record(at, &kernel_spans, 1, &params, sizeof params);
    record->block[0] = at->is_gpu ? 64 : 1; /* a warp for each */
    td_build_view(at, record, TD_READ, AT(attention_spans, start[0]), TD_VIEW_Q_START);
    td_build_view(at, record, TD_READ, AT(attention_spans, start[1]), TD_VIEW_K_START);
    td_build_scratch(at, record, TD_WRITE, AT(attention_spans, spans[0]), p->q.spans);
    td_build_scratch(at, record, TD_WRITE, AT(attention_spans, spans[1]), p->k.spans);
}

void td_add_unspanned(td_planning *p)
{
    const tandem_attention *op = p->op;
    const td_params_attention_unspanned params = {
        .o = {.stride_head = p->out[0].at.stride_head,
              .stride_row = p->out[0].at.stride_row,
              .dtype = op->o.dtype,
              .heads = op->heads,
              .rows = op->q_total,
              .dim = op->head_dim},
        .lse_at = {0, p->out[1].at.stride_head, p->out[1].at.stride_row},
        .batch = op->batch};
    td_builder *at = &p->at;
    td_record *record = td_build_record(at, &kernel_unspanned, p->q.planes, &params, sizeof params);
    record->block[0] = at->is_gpu ? TD_BLOCK_THREADS : 1;
    td_build_scratch(at, record, TD_READ, AT(attention_unspanned, spans), p->q.spans);
    td_build_write(at, record, AT(attention_unspanned, o.data), &p->out[0]);
    td_build_write(at, record, AT(attention_unspanned, lse), &p->out[1]);
}

/* Where all keys count, or codes are there that nobody makes, there is nothing to say. */
void td_add_masked_keys(td_planning *p)
{
    const tandem_attention *op = p->op;
    const td_params_attention_keys params = {.length_stride = op->length.stride_batch,
                                             .position_at = positions_of(op),
                                             .rows = op->q_len,
                                             .keys = op->kv_len};
    td_builder *at = &p->at;
    if (p->coded || (op->length.dtype == TANDEM_DTYPE_NONE && op->position.dtype == TANDEM_DTYPE_NONE))
        return;
    const td_place all = p->k.spans;
    p->k.spans = p->v.spans = take_spans(p);
    td_record *record = td_build_record(at, &kernel_keys, op->batch, &params, sizeof params);
    record->block[0] = at->is_gpu ? TD_BLOCK_THREADS : 1;
    td_build_view(at, record, TD_READ, AT(attention_keys, length), TD_VIEW_LENGTH);
    td_build_view(at, record, TD_READ, AT(attention_keys, position), TD_VIEW_POSITION);
    td_build_scratch(at, record, TD_READ, AT(attention_keys, q_spans), p->q.spans);
    td_build_scratch(at, record, TD_READ, AT(attention_keys, k_spans), all);
    td_build_scratch(at, record, TD_WRITE, AT(attention_keys, spans), p->k.spans);
}

/* What reads codes takes the spans that these were made by, whatever clients write meanwhile. Codes that were there are of all keys. */
td_record *td_add_masked_codes(td_planning *p, const td_written *to, const td_params_attention *attention)
{
    const td_kernel *of_gpus = p->packed ? (p->v_f16 ? kernels_4b_f16 : kernels_4b_fp8)
                                         : (p->v_f16 ? kernels_8b_f16 : kernels_8b_fp8);
    td_params_attention_masked_codes params = {.of = *attention, .mask = params_of(p, to)};
    td_builder *at = &p->at;
    const uint32_t rows = at->is_gpu ? TD_MASKED_ROWS : TD_FAST_ROWS;
    const uint64_t blocks = p->q.planes * (((uint64_t)p->op->q_len + rows - 1) / rows);
    params.of.causal = 0;
    td_record *record = td_build_record(at, at->is_gpu ? &of_gpus[td_index_of_dim(p->d_pad)] : &kernel_fast_codes, blocks,
                                        &params, sizeof params);
    record->block[0] = at->is_gpu ? TD_BLOCK_THREADS : 1;
    record->shared_bytes = at->is_gpu ? TD_ATTENTION_SHARED_BYTES(p->qk_row_bytes, p->v_f16 ? 2u : 1u, p->d_pad) : 0;
    if (p->coded)
        td_build_view(at, record, TD_READ, AT(attention_masked_codes, mask.length), TD_VIEW_LENGTH);
    td_build_scratch(at, record, TD_READ, AT(attention_masked_codes, mask.q_spans), p->q.spans);
    td_build_scratch(at, record, TD_READ, AT(attention_masked_codes, mask.k_spans), p->k.spans);
    td_build_view(at, record, TD_READ, AT(attention_masked_codes, mask.sink), TD_VIEW_SINK);
    td_build_view(at, record, TD_READ, AT(attention_masked_codes, mask.bias), TD_VIEW_BIAS);
    td_build_view(at, record, TD_READ, AT(attention_masked_codes, mask.position), TD_VIEW_POSITION);
    return record;
}
