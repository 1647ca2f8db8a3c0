/* Attention on int8 codes of Q and K: `attn_8b_fp8` with e4m3 codes of V (sm_89 and up), `attn_8b_f16` with fp16 ones.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * S = q_scale k_scale (Qc Kc^T) [+ delta-S], exact in int32; fp8: R = Pc Vc over 64 keys, O = O alpha + R in fp32.
 * On sm_90 mma.sync e4m3 is carried out on fp16 products, on sm_89 and sm_120 it is native.
 * Shared bytes: TD_ATTENTION_SHARED_BYTES(d, 1 or 2, d); at most 43008 where d <= 128.
 * Registers of attn_8b_fp8 on sm_90: 96, 128, 166, 168, 254, none spilt.
 * H200, batch 4, 32 heads, 4096 x 4096: d64 2.42 ms (227 TFLOPS), d128 4.25 ms (259 TFLOPS), without the prologue.
 */
#include "attention.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
TD_ATTENTION_ENTRY(attn_8b_fp8, 32, 8, 1, TD_BLOCKS(5, 4))
TD_ATTENTION_ENTRY(attn_8b_fp8, 64, 8, 1, TD_BLOCKS(4, 3))
TD_ATTENTION_ENTRY(attn_8b_fp8, 96, 8, 1, 3)
TD_ATTENTION_ENTRY(attn_8b_fp8, 128, 8, 1, TD_BLOCKS(3, 2))
TD_ATTENTION_ENTRY(attn_8b_fp8, 256, 8, 1, 1)
#endif

TD_ATTENTION_ENTRY(attn_8b_f16, 32, 8, 2, 4)
TD_ATTENTION_ENTRY(attn_8b_f16, 64, 8, 2, 3)
TD_ATTENTION_ENTRY(attn_8b_f16, 96, 8, 2, 2)
TD_ATTENTION_ENTRY(attn_8b_f16, 128, 8, 2, 2)
TD_ATTENTION_ENTRY(attn_8b_f16, 256, 8, 2, 1)
