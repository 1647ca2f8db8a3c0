/* Attention on int4 codes of Q and K, packed two a byte: `attn_4b_fp8` with e4m3 codes of V (sm_89), `attn_4b_f16`
 * with fp16 ones (sm_80, sm_86).
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The same as attn_8b.cu with mma m16n8k64 s4 for S: half the bytes of K and half the instructions, the same integers.
 * Later GPUs have no int4 tensor cores; there the codes stay int8 and attn_8b.cu computes with them.
 * Registers on sm_89: 128, 162, 166, 216, 254; on sm_80: 128, 164, 194, 210, 255 (d256 spills). Not timed yet.
 * Shared bytes: TD_ATTENTION_SHARED_BYTES(TD_PACKED_ROW_BYTES(d), 1 or 2, d).
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
