/* Attention on codes with lengths of keys, a bias, a cap, positions of rows or windows, by mma.sync, for every architecture: what
 * attention.cuh has, with a mask; and how many keys count.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * `attn_masked_8b_fp8`, `attn_masked_8b_f16`, `attn_masked_4b_fp8`, `attn_masked_4b_f16`: see attention_mma.cu for which GPU has
 * which, and why. `attn_masked_keys` comes before the prologue. Not timed yet.
 */
#include "attention.cuh"

#define TD_MASKED_CODES_ENTRY(name, dim, qk_bits, pv_bytes, blocks)                      \
    extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS, blocks)               \
        attn_masked_##name##_d##dim(const __grid_constant__ td_params_attention_masked_codes p) \
    {                                                                                    \
        if (!td::cancelled(p.of.cancel))                                                 \
            td::attend<td::Tile<dim, qk_bits, pv_bytes>, true>(p.of, &p.mask);           \
    }
#define TD_MASKED_CODES_ENTRIES(name, qk_bits, pv_bytes)     \
    TD_MASKED_CODES_ENTRY(name, 32, qk_bits, pv_bytes, 4)    \
    TD_MASKED_CODES_ENTRY(name, 64, qk_bits, pv_bytes, 3)    \
    TD_MASKED_CODES_ENTRY(name, 96, qk_bits, pv_bytes, 2)    \
    TD_MASKED_CODES_ENTRY(name, 128, qk_bits, pv_bytes, 2)   \
    TD_MASKED_CODES_ENTRY(name, 256, qk_bits, pv_bytes, 1)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
TD_MASKED_CODES_ENTRIES(8b_fp8, 8, 1)
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 890
TD_MASKED_CODES_ENTRIES(8b_f16, 8, 2)
TD_MASKED_CODES_ENTRIES(4b_f16, 4, 2)
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 890
TD_MASKED_CODES_ENTRIES(4b_fp8, 4, 1)
#endif

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS)
    attn_masked_keys(const __grid_constant__ td_params_attention_keys p)
{
    __shared__ unsigned most;
    const int64_t batch = blockIdx.x;
    const int t = int(threadIdx.x), length = p.length ? p.length[batch * p.length_stride] : int(p.keys);
    const int count = min(max(length, 0), int(p.keys));
    int reach = p.position ? 0 : count;

    if (td::cancelled(p.cancel))
        return;
    if (t == 0)
        most = 0;
    __syncthreads();
    for (int64_t row = t; p.position && row < p.rows; row += TD_BLOCK_THREADS) {
        const int position = p.position[batch * p.position_at.stride_batch + row * p.position_at.stride_row];

        reach = max(reach, position < count ? position + 1 : count);
    }
    atomicMax(&most, unsigned(max(reach, 0)));
    __syncthreads();
    if (t == 0)
        p.counts[batch] = int(most);
}
