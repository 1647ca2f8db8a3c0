/* Attention on fp16 and bf16 tensors as they lie in memory: plans of attn_f16_wgmma and its variants.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/attention/cpu.h"
#include "kernels/attention/plan.h"

#define F16_WGMMA(name_, d) {.name = name_, .entry = name_ "_d" #d, .cpu = td_twin_attn_f16_wgmma}
typedef struct direct_kernels {
    uint32_t dim;
    td_kernel kernels[DIRECT_KINDS][2];
} direct_kernels;
#define DIRECT_PAIR(kind, d) {F16_WGMMA("attn_f16_wgmma" kind, d), F16_WGMMA("attn_bf16_wgmma" kind, d)}
#define DIRECTS(d)                                                                                       \
    .dim = d, .kernels = {[DIRECT] = DIRECT_PAIR("", d), [DIRECT_SPLIT] = DIRECT_PAIR("_split", d),      \
                          [DIRECT_INLINE] = DIRECT_PAIR("_inline", d), [DIRECT_SHORT] = DIRECT_PAIR("_inline_short", d)}
static const direct_kernels directs[] = {
    {DIRECTS(64), .kernels[DIRECT_SPLIT2] = DIRECT_PAIR("_split2", 64)}, {DIRECTS(80)}, {DIRECTS(96)}, {DIRECTS(128)}};

const td_kernel *td_direct_kernel(const tandem_attention *op, const td_target *target, const td_cubin *cubin,
                                      uint32_t sm, uint32_t smooth, float scale)
{
    const bool bf16 = op->q.dtype == TANDEM_DTYPE_BF16;
    if (sm != 90 || (cubin && cubin->ptx) || td_options_of(target).dump || smooth != TANDEM_SMOOTH_NONE || !(scale > 0) ||
        (!bf16 && op->q.dtype != TANDEM_DTYPE_F16) || op->k.dtype != op->q.dtype || op->v.dtype != op->q.dtype ||
        !td_is_wide(&op->q) || !td_is_wide(&op->k) || !td_is_wide(&op->v))
        return NULL;
    for (size_t i = 0; i < sizeof directs / sizeof *directs && td_direct_has_dim(op->head_dim); i++)
        if (directs[i].dim == op->head_dim)
            return &directs[i].kernels[td_direct_block_of(op, target).kind][bf16];
    return NULL;
}

uint32_t td_add_direct(td_planning *p, const td_kernel *kernel)
{
    const tandem_attention *op = p->op;
    const td_target *target = p->target;
    const td_direct_block block = td_direct_block_of(op, target);
    const uint32_t keys = p->seen_keys;
    const td_direct_walk walk = td_direct_walk_of(op, target, &block, keys);
    const td_written to = td_place_output(p);
    const td_params_attention_f16 params = {.q = td_tensor_of(&op->q, op->heads, op->q_len, op->head_dim),
                                            .k = td_tensor_of(&op->k, op->kv_heads, keys, op->head_dim),
                                            .v = td_tensor_of(&op->v, op->kv_heads, keys, op->head_dim),
                                            .o = to.o,
                                            .lse_stride_batch = to.lse_stride_batch,
                                            .lse_stride_head = to.lse_stride_head,
                                            .lse_stride_row = to.lse_stride_row,
                                            .scale = p->scale,
                                            .causal = (uint16_t)op->causal,
                                            .pair = (uint16_t)walk.pair,
                                            .works = (uint32_t)walk.works,
                                            .blocks = (uint32_t)(walk.grid * block.walkers),
                                            .tile_rows = (uint16_t)block.rows,
                                            .step_keys = (uint16_t)block.keys,
                                            .teams = (uint16_t)block.teams,
                                            .walkers = (uint16_t)block.walkers};
    td_record *record = td_build_record(&p->at, kernel, walk.grid, &params, sizeof params);
    record->shared_bytes = block.shared_bytes;
    record->block[0] = block.threads;
    td_build_view(&p->at, record, TD_READ, AT(attention_f16, q.data), TD_VIEW_Q);
    td_build_view(&p->at, record, TD_READ, AT(attention_f16, k.data), TD_VIEW_K);
    td_build_view(&p->at, record, TD_READ, AT(attention_f16, v.data), TD_VIEW_V);
    td_build_write(&p->at, record, AT(attention_f16, o.data), &p->out[0]);
    td_build_write(&p->at, record, AT(attention_f16, lse), &p->out[1]);
    return block.keys;
}
