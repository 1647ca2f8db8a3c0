/* Attention by mma.sync, for every architecture: what attention.cuh has, for each kind of codes.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * `attn_4b_fp8` (sm_89) and `attn_4b_f16` (sm_80, sm_86): int4 codes of Q and K, packed two a byte,
 * and e4m3 or fp16 codes of V. The same as attn_8b with mma m16n8k64 s4 for S: half the bytes of K
 * and half the instructions, the same integers. Later GPUs have no int4 tensor cores; there the
 * codes stay int8 and attn_8b computes with them. Registers on sm_89: 128, 162, 166, 216, 254; on
 * sm_80: 128, 164, 194, 210, 255 (d256 spills). Not timed yet. Shared bytes:
 * TD_ATTENTION_SHARED_BYTES(TD_PACKED_ROW_BYTES(d), 1 or 2, d).
 *
 * `attn_8b_fp8` (sm_89 and up) and `attn_8b_f16`: int8 codes of Q and K, and e4m3 or fp16 codes of
 * V. S = q_scale k_scale (Qc Kc^T) [+ delta-S], exact in int32; fp8: R = Pc Vc over 64 keys, O = O
 * alpha + R in fp32. On sm_90 mma.sync e4m3 is carried out on fp16 products, on sm_89 and sm_120 it
 * is native. Shared bytes: TD_ATTENTION_SHARED_BYTES(d, 1 or 2, d); at most 43008 where d <= 128.
 * Registers of attn_8b_fp8 on sm_90: 96, 128, 166, 168, 254, none spilt. H200, batch 4, 32 heads,
 * 4096 x 4096: d64 2.42 ms (227 TFLOPS), d128 4.25 ms (259 TFLOPS), without the prologue.
 *
 * `attn_f16`: fp16 codes of Q, K and V with fp32 accumulation, the kernel of the precision F16. S =
 * q_scale k_scale (Qc Kc^T), scales powers of two (1 unless a row is beyond 32768); P in fp16, P V
 * straight into O. At d256 the fragments of Q come from L1 in every step: 64 registers less. Shared
 * bytes: TD_ATTENTION_SHARED_BYTES(2 * d, 2, d); 71168 at d256, which is more than the inline
 * executor has. Registers on sm_90: 128, 158, 188, 228, 255 (d256 spills 16 bytes). H200, batch 4,
 * 32 heads, 4096 x 4096: d64 2.48 ms (222 TFLOPS), d128 4.50 ms (244 TFLOPS).
 */
#include "attention.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 900
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
TD_ATTENTION_ENTRY(attn_4b_fp8, 32, 4, 1, 4)
TD_ATTENTION_ENTRY(attn_4b_fp8, 64, 4, 1, 3)
TD_ATTENTION_ENTRY(attn_4b_fp8, 96, 4, 1, 3)
TD_ATTENTION_ENTRY(attn_4b_fp8, 128, 4, 1, 2)
TD_ATTENTION_ENTRY(attn_4b_fp8, 256, 4, 1, 1)
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 890
TD_ATTENTION_ENTRY(attn_4b_f16, 32, 4, 2, 4)
TD_ATTENTION_ENTRY(attn_4b_f16, 64, 4, 2, 3)
TD_ATTENTION_ENTRY(attn_4b_f16, 96, 4, 2, 2)
TD_ATTENTION_ENTRY(attn_4b_f16, 128, 4, 2, 2)
TD_ATTENTION_ENTRY(attn_4b_f16, 256, 4, 2, 1)
#endif
#endif

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

TD_ATTENTION_ENTRY(attn_f16, 32, 16, 2, 4)
TD_ATTENTION_ENTRY(attn_f16, 64, 16, 2, 3)
TD_ATTENTION_ENTRY(attn_f16, 96, 16, 2, 2)
TD_ATTENTION_ENTRY(attn_f16, 128, 16, 2, 2)
TD_ATTENTION_ENTRY(attn_f16, 256, 16, 2, 1)
