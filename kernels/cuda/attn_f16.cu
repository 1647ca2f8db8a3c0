/* Attention on fp16 codes of Q, K and V with fp32 accumulation: `attn_f16`, the kernel of the precision F16.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * S = q_scale k_scale (Qc Kc^T), scales powers of two (1 unless a row is beyond 32768); P in fp16, P V straight into O.
 * At d256 the fragments of Q come from L1 in every step: 64 registers less.
 * Shared bytes: TD_ATTENTION_SHARED_BYTES(2 * d, 2, d); 71168 at d256, which is more than the inline executor has.
 * Registers on sm_90: 128, 158, 188, 228, 255 (d256 spills 16 bytes).
 * H200, batch 4, 32 heads, 4096 x 4096: d64 2.48 ms (222 TFLOPS), d128 4.50 ms (244 TFLOPS).
 */
#include "attention.cuh"

TD_ATTENTION_ENTRY(attn_f16, 32, 16, 2, 4)
TD_ATTENTION_ENTRY(attn_f16, 64, 16, 2, 3)
TD_ATTENTION_ENTRY(attn_f16, 96, 16, 2, 2)
TD_ATTENTION_ENTRY(attn_f16, 128, 16, 2, 2)
TD_ATTENTION_ENTRY(attn_f16, 256, 16, 2, 1)
