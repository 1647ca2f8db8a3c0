/* Attention on int8 codes of Q and K and e4m3 codes of V by wgmma: `attn_8b_wgmma`, sm_90a. See hopper.cuh.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * S = q_scale k_scale (Qc Kc^T), exact in int32; R = Pc Vc over 128 keys in the tensor cores, O += R in fp32.
 * Shared bytes: TD_HOPPER_SHARED_BYTES(d); 124 KB at d128. Registers: 240 of a thread that computes, 24 of one that
 * fetches.
 * `attn_8b_wgmma_dump` is the same for tests, with S, P and R written out.
 * H200, batch 4, 32 heads, 4096 x 4096: d64 1.07 ms (515 TFLOPS), d128 1.34 ms (822 TFLOPS), without the prologue.
 */
#include "hopper.cuh"

#if TD_HAVE_WGMMA
TD_HOPPER_ENTRY(attn_8b_wgmma, 32, false)
TD_HOPPER_ENTRY(attn_8b_wgmma, 64, false)
TD_HOPPER_ENTRY(attn_8b_wgmma, 96, false)
TD_HOPPER_ENTRY(attn_8b_wgmma, 128, false)
TD_HOPPER_ENTRY(attn_8b_wgmma_dump, 32, true)
TD_HOPPER_ENTRY(attn_8b_wgmma_dump, 64, true)
TD_HOPPER_ENTRY(attn_8b_wgmma_dump, 96, true)
TD_HOPPER_ENTRY(attn_8b_wgmma_dump, 128, true)
#endif
