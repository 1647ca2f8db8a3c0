/* Which keys the rows of a block attend to, where lengths, positions or windows say so, and what that does to their scores: for
 * attention on codes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include <math_constants.h>

#include "kernels/attention/params.h"
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/tensor.cuh"

namespace td {

/* Which rows and keys a batch has, and which of these a row attends to. What is asked for comes from memory that clients write. */
struct BatchMask {
    const td_params_attention_masked &p;
    int64_t batch;
    int rows, keys, past; /* its rows; keys that count; row i is the one of key i + past where nothing else says so */
    int q_first, k_first; /* of its rows and keys in the tensors */

    __device__ __forceinline__ BatchMask(const td_params_attention_masked &params, uint32_t of_batch) : p(params), batch(of_batch)
    {
        const td_span q = p.q_spans ? p.q_spans[batch] : td_span{0, int(p.q.rows)};
        const td_span k = p.k_spans ? p.k_spans[batch] : td_span{0, int(p.keys)};
        const int all = k.end - k.first, length = p.length ? p.length[batch * p.length_stride] : all;

        rows = q.end - q.first;
        keys = min(max(length, 0), all);
        past = (p.counts_by_span ? all : int(p.keys)) - rows;
        q_first = q.first;
        k_first = k.first;
    }

    /* Rows that do not exist are as the last one. */
    __device__ __forceinline__ int existing(int row) const
    {
        return min(row, rows - 1);
    }

    /* Of a row that exists: from which key on it attends, and how many from key 0 on. */
    __device__ __forceinline__ void find(int row, int &first, int &reach) const
    {
        int64_t own = int64_t(row) + past;

        if (p.position)
            own = p.position[batch * p.position_at.stride_batch + (q_first + row) * p.position_at.stride_row];
        reach = p.position || p.causal ? int(max(min(own + 1, int64_t(keys)), int64_t(0))) : keys;
        first = p.window ? int(min(max(own - p.window + 1, int64_t(0)), int64_t(reach))) : 0;
    }
};

/* A head's, in base 2. */
__device__ __forceinline__ float sink_of(const td_params_attention_masked &p, int64_t head)
{
    return p.sink ? __fmul_rn(load_one(p.sink, p.sink_dtype, head * p.sink_stride), TD_LOG2_E) : -CUDART_INF_F;
}

/* Of 64 rows, in shared memory: from which key on each one attends, and how many from key 0 on; of all rows the first key and the
 * end, and where it is the same for all. And how many rows the batch has, and where they begin. */
struct RowMask {
    int first[64], reach[64];
    int begin, end, free_begin, free_end;
    int rows, q_first;
};

/* What a block's first 64 threads find of their rows; the others wait. */
__device__ __forceinline__ void fill(RowMask &of, const BatchMask &mask, int row0)
{
    const int t = tid_x();

    if (t < 64 && mask.rows > 0)
        mask.find(mask.existing(row0 + t), of.first[t], of.reach[t]);
    if (t == 0)
        of.rows = mask.rows, of.q_first = mask.q_first;
    __syncthreads();
    if (t < 32) {
        int begin = min(of.first[t], of.first[t + 32]), free_begin = max(of.first[t], of.first[t + 32]);
        int end = max(of.reach[t], of.reach[t + 32]), free_end = min(of.reach[t], of.reach[t + 32]);

#pragma unroll
        for (int apart = 16; apart; apart /= 2) {
            begin = min(begin, __shfl_xor_sync(~0u, begin, apart));
            free_begin = max(free_begin, __shfl_xor_sync(~0u, free_begin, apart));
            end = max(end, __shfl_xor_sync(~0u, end, apart));
            free_end = min(free_end, __shfl_xor_sync(~0u, free_end, apart));
        }
        if (t == 0)
            of.begin = begin, of.free_begin = free_begin, of.end = end, of.free_end = free_end;
    }
    __syncthreads();
}

struct ScoreMask {
    const td_params_attention_masked &p;
    uint32_t batch, head;
    int row0;

    /* Scores of a tile of 64 keys from `key0` on, of this warp's 16 rows: capped, with the row's own part from `own`, where there
     * is one; biased; -inf where a row does not attend to a key. */
    __device__ __forceinline__ void apply(float (&s)[8][4], const RowMask &of, int key0, const float *own, float sl2) const
    {
        const int lane = tid_x() % 32;

        if (p.softcap > 0)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int in_block = tid_x() / 32 * 16 + fragment_row(lane, 2 * half);
                const float more = own ? __fmul_rn(own[row0 + in_block], sl2) : 0.0f;

#pragma unroll
                for (int i = 0; i < 16; i++) {
                    float &x = s[i / 2][2 * half + i % 2];

                    x = capped(__fadd_rn(x, more), p.softcap);
                }
            }
        if (p.bias)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int in_block = tid_x() / 32 * 16 + fragment_row(lane, 2 * half), end = of.reach[in_block] - key0;
                const int64_t at = row_at(p.bias_at, batch, head, min(row0 + in_block, of.rows - 1)) + key0;

#pragma unroll
                for (int i = 0; i < 16; i++) {
                    const int column = fragment_column(lane, i / 2, i % 2);
                    float &x = s[i / 2][2 * half + i % 2];

                    if (column < end) {
                        const float bias = load_one(p.bias, p.bias_dtype, at + column);

                        x = bias == -CUDART_INF_F ? bias : __fadd_rn(x, __fmul_rn(bias, TD_LOG2_E));
                    }
                }
            }
        if (key0 < of.free_begin || key0 + 64 > of.free_end)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int in_block = tid_x() / 32 * 16 + fragment_row(lane, 2 * half);
                const int end = of.reach[in_block] - key0, begin = of.first[in_block] - key0;

#pragma unroll
                for (int i = 0; i < 16; i++) {
                    const int column = fragment_column(lane, i / 2, i % 2);

                    if (column < begin || column >= end)
                        s[i / 2][2 * half + i % 2] = -CUDART_INF_F;
                }
            }
    }
};

} // namespace td
