/* Attention on codes with lengths of keys, a bias, a cap, positions of rows or windows, by mma.sync, for every architecture: what
 * attention.cuh has, with a mask; and how many keys count.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * `attn_masked_8b_fp8`, `attn_masked_8b_f16`, `attn_masked_4b_fp8`, `attn_masked_4b_f16`: see attention_mma.cu for which GPU has
 * which, and why. `attn_masked_keys` comes before the prologue, `attn_spans` and
 * `attn_unspanned` before and behind all, of fp16 attention, too. Not timed yet.
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
    const td_span q = p.q_spans ? p.q_spans[batch] : td_span{0, int(p.rows)};
    const td_span k = p.k_spans ? p.k_spans[batch] : td_span{0, int(p.keys)};
    const int t = int(threadIdx.x), all = k.end - k.first, length = p.length ? p.length[batch * p.length_stride] : all;
    const int count = min(max(length, 0), all);
    int reach = p.position ? 0 : count;

    if (td::cancelled(p.cancel))
        return;
    if (t == 0)
        most = 0;
    __syncthreads();
    for (int64_t row = q.first + t; p.position && row < q.end; row += TD_BLOCK_THREADS) {
        const int position = p.position[batch * p.position_at.stride_batch + row * p.position_at.stride_row];

        reach = max(reach, position < count ? position + 1 : count);
    }
    atomicMax(&most, unsigned(max(reach, 0)));
    __syncthreads();
    if (t == 0)
        p.spans[batch] = td_span{k.first, k.first + int(most)};
}

/* A warp for rows, one for keys: of 32 batches at a time the largest start so far. */
extern "C" __global__ void __launch_bounds__(64) attn_spans(const __grid_constant__ td_params_attention_spans p)
{
    const int lane = int(threadIdx.x) % 32, i = int(threadIdx.x) / 32;
    const int32_t *start = p.start[i];
    td_span *spans = p.spans[i];
    const int total = int(p.total[i]), most = int(p.most[i]);
    int before = 0;

    if (td::cancelled(p.cancel) || !spans)
        return;
    for (int64_t b0 = 0; b0 <= p.batch; b0 += 32) {
        const int64_t b = b0 + lane;
        int c = b <= p.batch ? min(max(start[b], 0), total) : 0;

#pragma unroll
        for (int apart = 1; apart < 32; apart *= 2) {
            const int other = __shfl_sync(~0u, c, (lane - apart) & 31);

            c = lane >= apart ? max(c, other) : c;
        }
        c = max(c, before);
        const int left = __shfl_sync(~0u, c, (lane - 1) & 31), begin = lane ? left : before;
        if (b > 0 && b <= p.batch)
            spans[b - 1] = td_span{begin, begin + min(c - begin, most)};
        before = __shfl_sync(~0u, c, 31);
    }
}

namespace td {

__device__ __forceinline__ void clear_rows(const td_params_attention_unspanned &p, int64_t head, int64_t from, int64_t to)
{
    for (int64_t row = from + threadIdx.x / 32; row < to; row += TD_BLOCK_THREADS / 32) {
        if (p.lse && threadIdx.x % 32 == 0)
            p.lse[row_at(p.lse_at, 0, head, row)] = -CUDART_INF_F;
        for (int c = int(threadIdx.x) % 32 * 2; c < int(p.o.dim); c += 64)
            store_pair(p.o, 0, head, row, c, 0.0f, 0.0f);
    }
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS)
    attn_unspanned(const __grid_constant__ td_params_attention_unspanned p)
{
    const uint32_t batch = blockIdx.x / p.o.heads, head = blockIdx.x % p.o.heads;

    if (td::cancelled(p.cancel))
        return;
    if (batch == 0)
        td::clear_rows(p, head, 0, p.spans[0].first);
    td::clear_rows(p, head, p.spans[batch].end, batch + 1 < p.batch ? p.spans[batch + 1].first : int(p.o.rows));
}
