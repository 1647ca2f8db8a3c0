/* Attention on fp16 and bf16 tensors by wgmma, as they lie in memory: the kernels of sm_90a, by
 * head dim.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attn_f16_wgmma.cuh"
#include "attn_f16_wgmma_inline.cuh"
#include "attn_f16_wgmma_split.cuh"
#include "attn_f16_wgmma_teams.cuh"

#if TD_HAVE_WGMMA
TD_F16_ENTRIES(80)
TD_F16_ENTRIES(96)
TD_F16_ENTRIES(128)
TD_F16_INLINE_ENTRIES(, 64, TD_F16_INLINE_GROUPS)
TD_F16_INLINE_ENTRIES(, 80, TD_F16_INLINE_GROUPS)
TD_F16_INLINE_ENTRIES(, 96, TD_F16_INLINE_GROUPS)
TD_F16_INLINE_ENTRIES(, 128, TD_F16_INLINE_GROUPS)
TD_F16_INLINE_ENTRIES(_short, 64, TD_F16_INLINE_GROUPS - 1)
TD_F16_INLINE_ENTRIES(_short, 80, TD_F16_INLINE_GROUPS - 1)
TD_F16_INLINE_ENTRIES(_short, 96, TD_F16_INLINE_GROUPS - 1)
TD_F16_INLINE_ENTRIES(_short, 128, TD_F16_INLINE_GROUPS - 1)
TD_F16_SPLIT_ENTRIES(64)
TD_F16_SPLIT_ENTRIES(80)
TD_F16_SPLIT_ENTRIES(96)
TD_F16_SPLIT_ENTRIES(128)
TD_F16_TEAMS_ENTRY(attn_f16_wgmma_d64, 1, false)
TD_F16_TEAMS_ENTRY(attn_bf16_wgmma_d64, 1, true)
TD_F16_TEAMS_ENTRY(attn_f16_wgmma_split2_d64, 2, false)
TD_F16_TEAMS_ENTRY(attn_bf16_wgmma_split2_d64, 2, true)
#endif
