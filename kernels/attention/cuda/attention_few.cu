/* Attention with lengths of keys, a bias, or positions of rows, of so few rows that blocks of 64 would leave multiprocessors idle:
 * `attn_masked_few_f16`, `attn_masked_few_bf16`, by mma.sync, for every architecture.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block has 16 rows of Q, its four warps share the keys: each takes every fourth step of them, and at the end the sums of all
 * are added up in shared memory, in the order of warps. Q, K and V go from memory straight into registers, where products do not
 * care which channels of a step are called which: of 32 channels of a row a thread has eight neighbouring ones.
 * Code that a block meets once takes longer than what it does: so there is little of it, and what is rare stands aside.
 */
#include <type_traits>

#include <math_constants.h>

#include "kernels/attention/params.h"
#include "mask.cuh"
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/tensor.cuh"

namespace td {

template <class E, int Dim> struct Few {
    static constexpr bool bf16 = std::is_same_v<E, __nv_bfloat16>;
    static constexpr int rows = int(TD_FEW_ROWS), warps = int(TD_BLOCK_THREADS) / 32;
    static constexpr int keys = Dim <= 64 ? 32 : 16, tiles = keys / 8; /* of a warp's step */
    static constexpr int groups = Dim / 32;                            /* of channels */
    static constexpr int pitch = Dim + 4;

    /* What each warp has: the largest score of a row, and sums of P and of P V. */
    struct Shared {
        float o[warps][rows * pitch], m[warps][rows], l[warps][rows];
    };
    static_assert(sizeof(Shared) == TD_FEW_SHARED_BYTES(unsigned(Dim)), "the launch asks for another size");

    const td_params_attention_masked &p;
    uint32_t batch, head;
    int row0, g, q, warp; /* this thread's rows are row0 + g and + g + 8, its channels 8 q to 8 q + 7 of each group */

    __device__ __forceinline__ explicit Few(const td_params_attention_masked &params) : p(params)
    {
        const uint32_t tiles_of_rows = (p.q.rows + rows - 1) / rows, plane = blockIdx.x / tiles_of_rows;

        batch = plane / p.q.heads;
        head = plane - batch * p.q.heads;
        row0 = int(blockIdx.x - plane * tiles_of_rows) * rows;
        g = int(threadIdx.x % 32 / 4);
        q = int(threadIdx.x % 4);
        warp = int(threadIdx.x / 32);
    }

    /* Where this thread's channels of a plane begin. */
    __device__ __forceinline__ const uint16_t *plane_of(const td_tensor &x, uint32_t of_head) const
    {
        return static_cast<const uint16_t *>(x.data) + batch * x.stride_batch + of_head * x.stride_head + 8 * q;
    }

    /* Channels of a row, zeros where there are none. */
    __device__ __forceinline__ void load(uint32_t (&x)[groups][4], const uint16_t *row, bool there) const
    {
#pragma unroll
        for (int i = 0; i < groups; i++) {
            uint4 words = make_uint4(0, 0, 0, 0);

            if (there && 32 * i + 8 * q < int(p.q.dim))
                words = __ldg(reinterpret_cast<const uint4 *>(row + 32 * i));
            x[i][0] = words.x, x[i][1] = words.y, x[i][2] = words.z, x[i][3] = words.w;
        }
    }

    __device__ __forceinline__ static void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        if constexpr (bf16)
            mma_bf16(c, a, b0, b1);
        else
            mma_f16(c, a, b0, b1);
    }

    /* The upper bit of each half of a word that is not finite. */
    __device__ __forceinline__ static uint32_t not_finite(uint32_t x)
    {
        constexpr uint32_t exponent = bf16 ? 0x7f807f80u : 0x7c007c00u, one = bf16 ? 0x00800080u : 0x04000400u;

        return ((x & exponent) + one) & 0x80008000u;
    }

    /* What is not finite in V becomes 0, and its key's scores NaN: so it reaches no row but those that attend to it. */
    __device__ __forceinline__ static void mend(uint32_t (&v)[tiles][groups][4], float (&s)[tiles][4], int q)
    {
#pragma unroll
        for (int t = 0; t < tiles; t++) {
            uint32_t bad = 0;

#pragma unroll
            for (int i = 0; i < 4 * groups; i++) {
                uint32_t &word = v[t][i / 4][i % 4];
                const uint32_t halves = not_finite(word) >> 15;

                bad |= halves;
                word &= ~(halves * 0xffffu);
            }
            const uint32_t quads = __ballot_sync(~0u, bad != 0);
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (quads >> 4 * (2 * q + i % 2) & 15)
                    s[t][i] = CUDART_NAN_F;
        }
    }

    template <class B> __device__ __forceinline__ void add_bias(float (&s)[tiles][4], int key0, const int (&reach)[2]) const
    {
#pragma unroll
        for (int i = 0; i < 4 * tiles; i++) {
            const int row = row0 + g + i % 4 / 2 * 8, key = key0 + i / 4 * 8 + 2 * q + i % 2;
            float &x = s[i / 4][i % 4];

            if (key < reach[i % 4 / 2]) {
                const float bias = to_float(static_cast<const B *>(p.bias)[row_at(p.bias_at, batch, head, row) + key]);

                x = bias == -CUDART_INF_F ? bias : __fadd_rn(x, __fmul_rn(bias, TD_LOG2_E));
            }
        }
    }

    /* Before the windows of rows there is none. */
    __device__ __forceinline__ void hide(float (&s)[tiles][4], int key0, const int (&first)[2]) const
    {
#pragma unroll
        for (int i = 0; i < 4 * tiles; i++)
            if (key0 + i / 4 * 8 + 2 * q + i % 2 < first[i % 4 / 2])
                s[i / 4][i % 4] = -CUDART_INF_F;
    }

    /* From dot products to scores in base 2; -inf where a row does not attend to a key. */
    __device__ __forceinline__ void score(float (&s)[tiles][4], int key0, const int (&reach)[2]) const
    {
        const float c = __fmul_rn(p.scale, TD_LOG2_E);

#pragma unroll
        for (int i = 0; i < 4 * tiles; i++) { /* what is infinite came of something that is not finite: NaN */
            float &x = s[i / 4][i % 4];

            x = __fmul_rn(__fmaf_rn(x, 0.0f, x), c);
        }
        if (p.softcap > 0)
#pragma unroll
            for (int i = 0; i < 4 * tiles; i++)
                s[i / 4][i % 4] = capped(s[i / 4][i % 4], p.softcap);
        if (p.bias) {
            if (p.bias_dtype == TANDEM_DTYPE_F32)
                add_bias<float>(s, key0, reach);
            else if (p.bias_dtype == TANDEM_DTYPE_BF16)
                add_bias<__nv_bfloat16>(s, key0, reach);
            else
                add_bias<__half>(s, key0, reach);
        }
        if (key0 + keys > min(reach[0], reach[1]))
#pragma unroll
            for (int i = 0; i < 4 * tiles; i++)
                if (key0 + i / 4 * 8 + 2 * q + i % 2 >= reach[i % 4 / 2])
                    s[i / 4][i % 4] = -CUDART_INF_F;
    }

    /* s becomes P, times what alpha says of sums so far; sums of P are a thread's own. fmaxf drops a NaN, so m never is one. */
    __device__ __forceinline__ static void soften(float (&s)[tiles][4], float (&m)[2], float (&l)[2], float (&alpha)[2])
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = m[half], sum = 0.0f;

#pragma unroll
            for (int t = 0; t < tiles; t++)
                top = fmaxf(top, fmaxf(s[t][2 * half], s[t][2 * half + 1]));
            top = quad_max(top);
            const float base = __fsub_rn(top == -CUDART_INF_F ? 0.0f : top, TD_LOG2_448);
#pragma unroll
            for (int i = 0; i < 2 * tiles; i++) {
                float &x = s[i / 2][2 * half + i % 2];

                x = ex2(__fsub_rn(x, base));
                sum = __fadd_rn(sum, x);
            }
            alpha[half] = ex2(__fsub_rn(m[half], __fadd_rn(base, TD_LOG2_448)));
            m[half] = top;
            l[half] = __fmaf_rn(l[half], alpha[half], sum);
        }
    }

    /* This warp's keys, into shared memory. */
    __device__ __forceinline__ void sum(Shared &shared, const BatchMask &mask) const
    {
        const uint32_t kv_head = head / (p.q.heads / p.k.heads);
        const uint16_t *const k_plane = plane_of(p.k, kv_head) + mask.k_first * p.k.stride_row;
        const uint16_t *const v_plane = plane_of(p.v, kv_head) + mask.k_first * p.v.stride_row;
        const uint16_t *const q_row = plane_of(p.q, head) + (mask.q_first + row0 + g) * p.q.stride_row;
        int first[2], reach[2], count = mask.keys, begin = 0; /* that some row of the block attends to */
        uint32_t rows_of_q[2][groups][4];
        float o[groups][4][4], m[2] = {-CUDART_INF_F, -CUDART_INF_F}, l[2] = {0.0f, 0.0f};

#pragma unroll
        for (int half = 0; half < 2; half++)
            mask.find(mask.existing(row0 + g + 8 * half), first[half], reach[half]);
        if (row0 + g >= mask.rows)
            reach[0] = 0;
        if (row0 + g + 8 >= mask.rows)
            reach[1] = 0;
        if (p.causal || p.position) {
            count = max(reach[0], reach[1]);
#pragma unroll
            for (int apart = 4; apart < 32; apart *= 2)
                count = max(count, __shfl_xor_sync(~0u, count, apart));
        }
        if (p.window) {
            begin = min(first[0], first[1]);
#pragma unroll
            for (int apart = 4; apart < 32; apart *= 2)
                begin = min(begin, __shfl_xor_sync(~0u, begin, apart));
            begin = begin / (warps * keys) * (warps * keys);
        }
        load(rows_of_q[0], q_row, row0 + g < mask.rows);
        load(rows_of_q[1], q_row + 8 * p.q.stride_row, row0 + g + 8 < mask.rows);
#pragma unroll
        for (int i = 0; i < 16 * groups; i++)
            o[i / 16][i / 4 % 4][i % 4] = 0.0f;
#pragma unroll 1
        for (int key0 = begin + warp * keys; key0 < count; key0 += warps * keys) {
            uint32_t k[tiles][groups][4], v[tiles][groups][4], odd = 0;
            float s[tiles][4], alpha[2];

#pragma unroll
            for (int t = 0; t < tiles; t++)
                load(k[t], k_plane + (key0 + 8 * t + g) * p.k.stride_row, key0 + 8 * t + g < count);
#pragma unroll
            for (int t = 0; t < tiles; t++)
                load(v[t], v_plane + (key0 + 8 * t + g) * p.v.stride_row, key0 + 8 * t + g < count);
#pragma unroll
            for (int i = 0; i < 4 * tiles; i++)
                s[i / 4][i % 4] = 0.0f;
#pragma unroll
            for (int i = 0; i < 2 * groups; i++) {
                const uint32_t(&low)[4] = rows_of_q[0][i / 2], (&high)[4] = rows_of_q[1][i / 2];
                const uint32_t a[4] = {low[i % 2 * 2], high[i % 2 * 2], low[i % 2 * 2 + 1], high[i % 2 * 2 + 1]};

#pragma unroll
                for (int t = 0; t < tiles; t++)
                    multiply(s[t], a, k[t][i / 2][i % 2 * 2], k[t][i / 2][i % 2 * 2 + 1]);
            }
#pragma unroll
            for (int i = 0; i < 4 * groups * tiles; i++)
                odd |= not_finite(v[i / 4 / groups][i / 4 % groups][i % 4]);
            if (__any_sync(~0u, odd != 0))
                mend(v, s, q);
            score(s, key0, reach);
            if (p.window)
                hide(s, key0, first);
            soften(s, m, l, alpha);
            if (key0 >= begin + warps * keys)
#pragma unroll
                for (int i = 0; i < 16 * groups; i++)
                    o[i / 16][i / 4 % 4][i % 4] = __fmul_rn(o[i / 16][i / 4 % 4][i % 4], alpha[i % 4 / 2]);
#pragma unroll
            for (int t = 0; t < tiles; t += 2) {
                const uint32_t a[4] = {pack_pair(bf16, s[t][0], s[t][1]), pack_pair(bf16, s[t][2], s[t][3]),
                                       pack_pair(bf16, s[t + 1][0], s[t + 1][1]), pack_pair(bf16, s[t + 1][2], s[t + 1][3])};

#pragma unroll
                for (int i = 0; i < 4 * groups; i++)
                    multiply(o[i / 4][i % 4], a, transpose_8x8(v[t][i / 4][i % 4]), transpose_8x8(v[t + 1][i / 4][i % 4]));
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = g + 8 * half;
            const float all = quad_sum(l[half]);

            if (q == 0) {
                shared.m[warp][row] = m[half];
                shared.l[warp][row] = all;
            }
#pragma unroll
            for (int i = 0; i < 2 * groups; i++) /* channels 32 i / 2 + 8 q + 4 (i % 2) and the next three */
                *reinterpret_cast<float4 *>(&shared.o[warp][row * pitch + i / 2 * 32 + 8 * q + i % 2 * 4]) =
                    make_float4(o[i / 2][i % 2 * 2][2 * half], o[i / 2][i % 2 * 2][2 * half + 1],
                                o[i / 2][i % 2 * 2 + 1][2 * half], o[i / 2][i % 2 * 2 + 1][2 * half + 1]);
        }
    }

    /* Of all warps: eight threads have a row, four channels each of every group. */
    __device__ __forceinline__ void finish(const Shared &shared, const BatchMask &mask) const
    {
        const int in = int(threadIdx.x / 8), row = row0 + in, channel = int(threadIdx.x % 8) * 4;
        float top = shared.m[0][in], factor[warps], l = 0.0f;

        if (row >= mask.rows)
            return;
#pragma unroll
        for (int w = 1; w < warps; w++)
            top = fmaxf(top, shared.m[w][in]);
        const float base = top == -CUDART_INF_F ? 0.0f : top;
#pragma unroll
        for (int w = 0; w < warps; w++) {
            factor[w] = ex2(__fsub_rn(shared.m[w][in], base));
            l = __fmaf_rn(factor[w], shared.l[w][in], l);
        }
        const float sink = sink_of(p, head);
        if (p.sink)
            l = __fadd_rn(l, ex2(__fadd_rn(__fsub_rn(sink, base), TD_LOG2_448)));
        const int64_t out = mask.q_first + row;
        const float part = l == 0.0f ? 0.0f : __fdividef(1.0f, l);
#pragma unroll 1
        for (int c = channel; c < int(p.q.dim); c += 32) {
            float4 all = make_float4(0, 0, 0, 0);

#pragma unroll
            for (int w = 0; w < warps; w++) {
                const float4 x = *reinterpret_cast<const float4 *>(&shared.o[w][in * pitch + c]);

                all.x = __fmaf_rn(factor[w], x.x, all.x), all.y = __fmaf_rn(factor[w], x.y, all.y);
                all.z = __fmaf_rn(factor[w], x.z, all.z), all.w = __fmaf_rn(factor[w], x.w, all.w);
            }
            store_pair(p.o, batch, head, out, c, __fmul_rn(all.x, part), __fmul_rn(all.y, part));
            store_pair(p.o, batch, head, out, c + 2, __fmul_rn(all.z, part), __fmul_rn(all.w, part));
        }
        if (p.lse && channel == 0)
            p.lse[row_at(p.lse_at, batch, head, out)] =
                l == CUDART_INF_F ? __fmul_rn(sink, TD_LN_2)
                : l == 0.0f       ? -CUDART_INF_F : __fmul_rn(__fsub_rn(__fadd_rn(base, log2f(l)), TD_LOG2_448), TD_LN_2);
    }
};

template <class E, int Dim> __device__ __forceinline__ void attend_few(const td_params_attention_masked &p)
{
    TD_DYNAMIC_SHARED(16, bytes);
    typename Few<E, Dim>::Shared &shared = *reinterpret_cast<typename Few<E, Dim>::Shared *>(bytes);
    const Few<E, Dim> few(p);
    const bool stop = threadIdx.x == 0 && is_set(p.cancel);

    wait_for_previous();
    launch_dependents();
    const BatchMask mask(p, few.batch);
    if (few.row0 >= mask.rows)
        return;
    few.sum(shared, mask);
    if (!__syncthreads_or(stop))
        few.finish(shared, mask);
}

} // namespace td

#define TD_FEW_ENTRY(name, type, dim)                                                     \
    extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS, 1)                     \
        attn_masked_few_##name##_d##dim(const __grid_constant__ td_params_attention_masked p) \
    {                                                                                     \
        td::attend_few<type, dim>(p);                                                     \
    }
#define TD_FEW_ENTRIES(name, type)  \
    TD_FEW_ENTRY(name, type, 32) \
    TD_FEW_ENTRY(name, type, 64) \
    TD_FEW_ENTRY(name, type, 96) \
    TD_FEW_ENTRY(name, type, 128)

TD_FEW_ENTRIES(f16, __half)
TD_FEW_ENTRIES(bf16, __nv_bfloat16)
