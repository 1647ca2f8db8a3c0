/* Attention on int8 codes of Q and K and e4m3 codes of V by wgmma: the kernels of sm_90a, by head
 * dim.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attn_8b_wgmma.cuh"
#include "attn_8b_wgmma_256.cuh"
#include "attn_8b_wgmma_inline.cuh"

#if TD_HAVE_WGMMA
TD_WALK_ENTRY(32)
TD_WALK_ENTRY(64)
TD_WALK_ENTRY(96)
TD_WALK_ENTRY(128)
TD_SPLIT_ENTRY(attn_8b_wgmma_split, 32, TD_HOPPER_SPLITS(32))
TD_SPLIT_ENTRY(attn_8b_wgmma_split, 64, TD_HOPPER_SPLITS(64))
TD_SPLIT_ENTRY(attn_8b_wgmma_split, 96, TD_HOPPER_SPLITS(96))
TD_SPLIT_ENTRY(attn_8b_wgmma_split, 128, TD_HOPPER_SPLITS(128))
TD_SPLIT_ENTRY(attn_8b_wgmma_pair, 64, 2)
TD_HOPPER_ENTRIES(attn_8b_wgmma, 0, false)
TD_HOPPER_ENTRIES(attn_8b_wgmma_short, 1, false)
TD_HOPPER_256_ENTRY(attn_8b_wgmma, false)

extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(TD_HOPPER_INLINE_GROUPS(64u)), 1)
    attn_8b_wgmma_inline_pair_d64(const __grid_constant__ td_params_attention p)
{
    td::attend_ring<td::ring::Tile<64, int(TD_HOPPER_INLINE_GROUPS(64u)), 2>>(p);
}
TD_INLINE_SPLIT_ENTRY(32)
TD_INLINE_SPLIT_ENTRY(64)
TD_INLINE_SPLIT_ENTRY(96)
TD_INLINE_SPLIT_ENTRY(128)
TD_INLINE_ENTRY(attn_8b_wgmma_inline, 32, TD_HOPPER_INLINE_GROUPS(32u))
TD_INLINE_ENTRY(attn_8b_wgmma_inline, 64, TD_HOPPER_INLINE_GROUPS(64u))
TD_INLINE_ENTRY(attn_8b_wgmma_inline, 96, TD_HOPPER_INLINE_GROUPS(96u))
TD_INLINE_ENTRY(attn_8b_wgmma_inline, 128, TD_HOPPER_INLINE_GROUPS(128u))
TD_INLINE_ENTRY(attn_8b_wgmma_inline_short, 32, TD_HOPPER_INLINE_FEW)
TD_INLINE_ENTRY(attn_8b_wgmma_inline_short, 64, TD_HOPPER_INLINE_FEW)
TD_INLINE_ENTRY(attn_8b_wgmma_inline_short, 96, TD_HOPPER_INLINE_FEW)
TD_INLINE_ENTRY(attn_8b_wgmma_inline_short, 128, TD_HOPPER_INLINE_FEW)
#endif
