/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/attention_cpu/rig.h"

const uint32_t dims[DIMS] = {32, 64, 80, 96, 128, 256, 40, 48, 72, 112, 160, 192};
const char *const isas[ISAS] = {"c", "avx2", "avx512-vnni"};

const td_target cpu = {.sm = 0};

td_target twin_of(uint32_t sm)
{
    td_target target = td_target_for_sm(sm);
    target.twin = true;
    return target;
}

td_target wgmma_twin(void)
{
    td_target target = td_target_for_stream(90);
    target.twin = true;
    return target;
}

size_t o_count(const tu_case *it)
{
    return (size_t)it->op.batch * it->op.heads * it->op.q_len * it->op.head_dim;
}

tandem_attention good_op(void)
{
    const tandem_view q = {
        .dtype = TANDEM_DTYPE_F16, .stride_batch = 6 * 100 * 64, .stride_head = 100 * 64, .stride_row = 64};
    const tandem_view k = {
        .dtype = TANDEM_DTYPE_F16, .stride_batch = 3 * 300 * 64, .stride_head = 300 * 64, .stride_row = 64};
    const tandem_view lse = {.dtype = TANDEM_DTYPE_F32, .stride_batch = 600, .stride_head = 100, .stride_row = 1};
    return (tandem_attention){.q = q,
                              .k = k,
                              .v = k,
                              .o = q,
                              .lse = lse,
                              .batch = 2,
                              .heads = 6,
                              .kv_heads = 3,
                              .q_len = 100,
                              .kv_len = 300,
                              .head_dim = 64};
}
