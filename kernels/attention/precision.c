/* Attention: which kernels, and what AUTO takes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/attention/plan.h"
#include "kernels/attention/tuning.h"

float td_int4_clip(uint32_t granularity, uint32_t head_dim, bool is_k)
{
    static const uint32_t rows_of_q[] = {4, 4, 2, 1, 32, 128, 128}, rows_of_k[] = {16, 16, 32, 1, 64, 64, 128};
    const uint32_t i = granularity <= TANDEM_GRANULARITY_TENSOR ? granularity : 0;
    const uint32_t values = (is_k ? rows_of_k : rows_of_q)[i] * head_dim;
    return values <= 64 || head_dim < 64 ? 1 : values <= 256 || head_dim < 96 ? 0.8125f : 0.75f;
}

/* What AUTO stands for. Tables are measured on a stream's kernels, with tensors of 16 bits and all else left to us. */
static uint32_t choose_precision(const tandem_attention *op, const td_target *target, const td_cubin *cubin,
                                 uint32_t sm)
{
    const tandem_view *const inputs[] = {&op->q, &op->k, &op->v};
    const td_tuning_table *table = target->tuning;
    bool usual = op->smooth == TANDEM_SMOOTH_DEFAULT && op->granularity == TANDEM_GRANULARITY_DEFAULT && op->scale >= 0;
    for (int i = 0; i < 3; i++)
        usual = usual && td_is_wide(inputs[i]) && inputs[i]->dtype == op->q.dtype && inputs[i]->dtype != TANDEM_DTYPE_F32;
    const bool known = table && table->sm == target->sm &&
                       target->shared_bytes == td_target_for_stream(target->sm).shared_bytes;
    const uint32_t precision = known && usual ? td_tuning_precision(table, op) : (uint32_t)TANDEM_PRECISION_AUTO;
    if (precision != TANDEM_PRECISION_AUTO)
        return precision;
    if (!usual || !td_direct_kernel(op, target, cubin, sm, TANDEM_SMOOTH_NONE, 1))
        return td_tuning_rule(op);
    return (td_direct_is_roomy(target, op->head_dim) ? td_tuning_rule_direct : td_tuning_rule_inline)(op, target->multiprocessors);
}

uint32_t td_attention_precision(const tandem_attention *op, const td_target *target)
{
    const td_cubin *cubin;
    uint32_t sm;
    if (td_dtype_is_codes(op->k.dtype))
        return TANDEM_PRECISION_8B;
    if (td_attention_is_masked(op) && op->precision == TANDEM_PRECISION_AUTO)
        return TANDEM_PRECISION_F16;
    if (op->precision != TANDEM_PRECISION_AUTO || !td_target_kernels(target, &cubin, &sm, NULL, 0))
        return op->precision;
    return choose_precision(op, target, cubin, sm);
}
