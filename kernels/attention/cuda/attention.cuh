/* O = softmax(scale * Q K^T) V over quantised operands, one block of 64 query rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Shapes: Q codes [bh][q_pad][Dim], K codes [bhk][kv_pad][Dim] (int4: two a byte), V codes
 * [bhk][Dim][kv_pad]; 4 warps of 16 rows, 64 keys a step.
 *
 *   time ->   K(0) V(0)  |  S = Q K(i)   softmax   O += P V(i)  |  ...  |  O / l
 *   copies               |  K(i+1) ---------->  V(i+1) -------> |          (with one stage: K(i+1) once S is done,
 *                                                                           V(i+1) once P V(i) is done)
 * A thread holds O (Dim / 2 registers), S (32) and, up to 256 bytes a row, its fragments of Q (Dim
 * * QkBits / 64). P never leaves registers: the C fragment of S is the A fragment of P, because V's
 * keys are stored permuted (e4m3) or because the layouts agree anyhow (fp16).
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "mask.cuh"
#include "softmax.cuh"
#include "kernels/cuda/tensor.cuh"
#include "tile.cuh"

namespace td {

template <class T>
__device__ __forceinline__ void fetch_k(typename T::Stage &to, const td_params_attention &p,
                                        const RowTile &at, int tile)
{
    const int64_t row = int64_t(at.bhk) * p.kv_pad + tile * T::keys;
    const int t = tid_x();

    copy_rows<T::keys, T::q_row_bytes, T::k_row_bytes>(
        to.k, (const uint8_t *)p.k_codes + row * T::q_row_bytes, T::q_row_bytes);
    if (t < T::keys / 4)
        cp_async_16(shared_address(to.k_scale + 4 * t), p.k_scale + row + 4 * t);
    if (p.delta && t < T::keys / 4) {
        const int64_t block =
            int64_t(at.bh) * (p.q_pad / TD_TILE_ROWS) + at.row0 / int(TD_TILE_ROWS);

        cp_async_16(shared_address(to.delta + 4 * t),
                    p.delta + block * p.kv_pad + tile * T::keys + 4 * t);
    }
}

template <class T>
__device__ __forceinline__ void fetch_v(typename T::Stage &to, const td_params_attention &p,
                                        const RowTile &at, int tile)
{
    const int64_t stride = int64_t(p.kv_pad) * T::pv_bytes;

    copy_rows<T::dim, T::keys * T::pv_bytes, T::v_row_bytes>(to.v,
                                                             (const uint8_t *)p.v_codes +
                                                                 int64_t(at.bhk) * T::dim * stride +
                                                                 tile * T::keys * T::pv_bytes,
                                                             stride);
}

/* S = Q K^T in the tensor cores, by the bits of a code. */
template <int Bits> struct Dot;
template <> struct Dot<4> {
    using type = int;
    __device__ __forceinline__ static void mma(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
    {
        mma_s4(c, a, b0, b1);
    }
};
template <> struct Dot<8> {
    using type = int;
    __device__ __forceinline__ static void mma(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
    {
        mma_s8(c, a, b0, b1);
    }
};
template <> struct Dot<16> {
    using type = float;
    __device__ __forceinline__ static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
    {
        mma_f16(c, a, b0, b1);
    }
};

__device__ __forceinline__ int end_of(const RowMask &mask)
{
    return mask.end;
}
__device__ __forceinline__ int end_of(char)
{
    return 0;
}
__device__ __forceinline__ int rows_of(const RowMask &mask, const td_params_attention &)
{
    return mask.rows;
}
__device__ __forceinline__ uint32_t rows_of(char, const td_params_attention &p)
{
    return p.o.rows;
}

/* The warp's first row in the dumps. */
__device__ __forceinline__ int64_t dump_row(const td_params_attention &p, const RowTile &at)
{
    return int64_t(at.bh) * p.q_pad + at.row0 + tid_x() / 32 * 16;
}

/* P V of one tile, O = O * alpha + it. E4M3: R over the tile's 64 keys first, then one fma
 * (two-level accumulation). */
template <class T>
__device__ __forceinline__ void accumulate(float (&o)[T::dim / 8][4], const float (&s)[8][4],
                                           const float (&alpha)[2], uint32_t v, int lane,
                                           const td_params_attention &p, const RowTile &at,
                                           int tile)
{
    if constexpr (T::pv_bytes == 1) {
#if TD_HAVE_E4M3
        uint32_t a[2][4];

#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                /* n-tiles j, j + 1; row half i % 2 */
                const int j = 4 * step + 2 * (i / 2), r = 2 * (i % 2);

                a[step][i] = uint32_t(cvt_e4m3x2(s[j][r + 1], s[j][r])) |
                             uint32_t(cvt_e4m3x2(s[j + 1][r + 1], s[j + 1][r])) << 16;
            }
        if (p.dump_p) {
            const int thread = tid_x() % 32;
            uint8_t *to = p.dump_p + dump_row(p, at) * p.kv_pad + tile * T::keys;

#pragma unroll
            for (int i = 0; i < 32; i++) {
                const int j = i / 4, e = i % 4;
                const uint32_t word = a[j / 4][2 * (j / 2 % 2) + e / 2];

                to[fragment_row(thread, e) * int64_t(p.kv_pad) + fragment_column(thread, j, e)] =
                    uint8_t(word >> (16 * (j % 2) + 8 * (e % 2)));
            }
        }
#pragma unroll
        for (int j = 0; j < T::dim / 8; j++) {
            uint32_t b[4];
            float r[4] = {0.0f, 0.0f, 0.0f, 0.0f};

            load_v<T>(b, v, lane, j, 0);
            mma_e4m3(r, a[0], b[0], b[1]);
            mma_e4m3(r, a[1], b[2], b[3]);
            if (p.dump_r) {
                const int thread = tid_x() % 32;

#pragma unroll
                for (int i = 0; i < 4; i++)
                    p.dump_r[((dump_row(p, at) + fragment_row(thread, i)) *
                                  (p.kv_pad / TD_TILE_KEYS) +
                              tile) *
                                 T::dim +
                             fragment_column(thread, j, i)] = r[i];
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[j][i] = __fmaf_rn(o[j][i], alpha[i / 2], r[i]);
        }
#endif
    } else {
#pragma unroll
        for (int j = 0; j < T::dim / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[j][i] = __fmul_rn(o[j][i], alpha[i / 2]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t a[2][4];

#pragma unroll
            for (int step = 0; step < 2; step++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int j = 4 * half + 2 * step + i / 2, r = 2 * (i % 2);

                    a[step][i] = cvt_f16x2(s[j][r + 1], s[j][r]);
                }
#pragma unroll
            for (int j = 0; j < T::dim / 8; j++) {
                uint32_t b[4];

                load_v<T>(b, v, lane, j, half);
                mma_f16(o[j], a[0], b[0], b[1]);
                mma_f16(o[j], a[1], b[2], b[3]);
            }
        }
    }
}

/* mask: what td_params_attention_masked_codes has, or nothing. */
template <class T, bool Masked>
__device__ __forceinline__ void attend(const td_params_attention &p, const td_params_attention_masked *mask)
{
    TD_DYNAMIC_SHARED(16, shared_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(shared_bytes);
    __shared__ RowTile at; /* out of the registers' way */
    __shared__ std::conditional_t<Masked, RowMask, char> masked;
    if (threadIdx.x == 0)
        at = row_tile<T>(p);
    __syncthreads();
    int begin = 0; /* the first tile */
    if constexpr (Masked) {
        fill(masked, BatchMask(*mask, at.bh / p.heads), at.row0);
        if (at.row0 >= masked.rows)
            return;
        begin = masked.begin / T::keys;
    }
    const int lane = int(threadIdx.x) % 32;
    const int tiles = ((Masked ? end_of(masked) : at.keys) + T::keys - 1) / T::keys;
    const float sl2 = __fmul_rn(p.scale, TD_LOG2_E);
    /* the warp's row of Q */
    const int64_t first = int64_t(at.bh) * p.q_pad + at.row0 + int(threadIdx.x) / 32 * 16;
    const uint8_t *q_rows = (const uint8_t *)p.q_codes + first * T::q_row_bytes;
    uint32_t q[T::q_in_registers ? T::steps : 1][4];
    float o[T::dim / 8][4], row_scale[2];
    Softmax softmax;

    if (tiles > begin) {
        fetch_k<T>(shared.stage[begin % T::stages], p, at, begin);
        cp_async_commit();
        fetch_v<T>(shared.stage[begin % T::stages], p, at, begin);
        cp_async_commit();
    }
    softmax.start();
#pragma unroll
    for (int j = 0; j < T::dim / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            o[j][i] = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; half++)
        row_scale[half] = __fmul_rn(p.q_scale[first + fragment_row(lane, 2 * half)], sl2);
    if constexpr (T::q_in_registers)
#pragma unroll
        for (int step = 0; step < T::steps; step++)
            load_q<T>(q[step], q_rows, lane, step);

#pragma unroll 1
    for (int tile = begin; tile < tiles; tile++) {
        typename T::Stage &now = shared.stage[tile % T::stages],
                          &next = shared.stage[(tile + 1) % T::stages];
        const bool more = tile + 1 < tiles;
        typename Dot<T::qk_bits>::type dot[8][4];
        float s[8][4], alpha[2];

        cp_async_wait<1>(); /* K(tile); V(tile) may still be on its way */
        __syncthreads();
        if (T::stages == 2) {
            if (more)
                fetch_k<T>(next, p, at, tile + 1);
            cp_async_commit();
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                dot[j][i] = 0;
#pragma unroll
        for (int step = 0; step < T::steps; step++) {
            uint32_t a[4];

            if constexpr (!T::q_in_registers)
                load_q<T>(a, q_rows, lane, step);
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                uint32_t b[4];

                load_k<T>(b, shared_address(now.k), lane, j, step);
                if constexpr (T::q_in_registers) {
                    Dot<T::qk_bits>::mma(dot[j], q[step], b[0], b[1]);
                    Dot<T::qk_bits>::mma(dot[j + 1], q[step], b[2], b[3]);
                } else {
                    Dot<T::qk_bits>::mma(dot[j], a, b[0], b[1]);
                    Dot<T::qk_bits>::mma(dot[j + 1], a, b[2], b[3]);
                }
            }
        }
        if (p.dump_s) {
            const int thread = tid_x() % 32;
            int32_t *to = p.dump_s + dump_row(p, at) * p.kv_pad + tile * T::keys;

#pragma unroll
            for (int i = 0; i < 32; i++) {
                const auto value = dot[i / 4][i % 4];
                int32_t bits;

                memcpy(&bits, &value, sizeof bits);
                to[fragment_row(thread, i % 4) * int64_t(p.kv_pad) +
                   fragment_column(thread, i / 4, i % 4)] = bits;
            }
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 scale =
                *reinterpret_cast<const float2 *>(&now.k_scale[fragment_column(lane, j, 0)]);

#pragma unroll
            for (int i = 0; i < 4; i++)
                s[j][i] = __fmul_rn(float(dot[j][i]),
                                    __fmul_rn(row_scale[i / 2], i % 2 ? scale.y : scale.x));
        }
        if (p.delta)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float2 delta =
                    *reinterpret_cast<const float2 *>(&now.delta[fragment_column(lane, j, 0)]);

#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[j][i] = __fmaf_rn(i % 2 ? delta.y : delta.x, sl2, s[j][i]);
            }
        if constexpr (Masked) {
            ScoreMask{*mask, at.bh / p.heads, at.bh % p.heads, at.row0}.apply(
                s, masked, tile * T::keys, p.lse_bias ? p.lse_bias + int64_t(at.bh) * p.q_pad : nullptr, sl2);
        } else if ((tile + 1) * T::keys > at.free_keys) {
            const int thread = tid_x() % 32, first = at.row0 + tid_x() / 32 * 16 + at.reach;

#pragma unroll
            for (int i = 0; i < 32; i++) {
                const int end = p.causal ? min(first + fragment_row(thread, i % 4), int(p.kv_len))
                                         : int(p.kv_len);

                if (tile * T::keys + fragment_column(thread, i / 4, i % 4) >= end)
                    s[i / 4][i % 4] = -CUDART_INF_F;
            }
        }
        if (T::stages == 1) {
            __syncthreads();
            if (more)
                fetch_k<T>(now, p, at, tile + 1);
            cp_async_commit();
        }
        softmax.step(s, alpha);

        cp_async_wait<1>(); /* V(tile); K(tile + 1) may still be on its way */
        __syncthreads();
        if (T::stages == 2) {
            if (more)
                fetch_v<T>(next, p, at, tile + 1);
            cp_async_commit();
        }
        accumulate<T>(o, s, alpha, shared_address(now.v), lane, p, at, tile);
        if (T::stages == 1) {
            __syncthreads();
            if (more)
                fetch_v<T>(now, p, at, tile + 1);
            cp_async_commit();
        }
    }
    softmax.finish();

    const int row = at.row0 + tid_x() / 32 * 16;
    const int64_t batch = at.bh / p.heads, head = at.bh % p.heads;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t r = row + fragment_row(lane, 2 * half);

        int64_t out = r; /* where the row is in o and lse */
        float sink = -CUDART_INF_F, share = 1.0f; /* of keys, beside the sink */
        const float of_keys = softmax.l[half];    /* 0: no scale says what O is */

        if (r >= rows_of(masked, p))
            continue;
        if constexpr (Masked) {
            out += masked.q_first;
            if (mask->sink) {
                sink = sink_of(*mask, head);
                if (p.lse_bias && !(mask->softcap > 0)) /* scores are without what smoothing K took off */
                    sink = __fsub_rn(sink, __fmul_rn(p.lse_bias[int64_t(at.bh) * p.q_pad + r], sl2));
                softmax.add_sink(half, sink);
                share = __fdiv_rn(of_keys, softmax.l[half]);
            }
        }
        if (p.lse && lane % 4 == 0) {
            float lse = Masked ? softmax.lse(half, sink) : softmax.lse(half);

            if (p.lse_bias && !(Masked && mask->softcap > 0))
                lse = __fadd_rn(lse, __fmul_rn(p.lse_bias[int64_t(at.bh) * p.q_pad + r], p.scale));
            p.lse[batch * p.lse_stride_batch + head * p.lse_stride_head + out * p.lse_stride_row] =
                lse;
        }
#pragma unroll
        for (int j = 0; j < T::dim / 8; j++) {
            const int c = fragment_column(lane, j, 0); /* channels c, c + 1: dim is even */
            float x[2];

            if (c >= int(p.o.dim))
                continue;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                x[i] = 0.0f;
                if (of_keys != 0.0f)
                    x[i] = __fmul_rn(__fdiv_rn(o[j][2 * half + i], softmax.l[half]),
                                     p.v_scale[int64_t(at.bhk) * T::dim + c + i]);
                if (of_keys != 0.0f && p.v_mean)
                    x[i] = __fadd_rn(x[i], Masked ? __fmul_rn(p.v_mean[int64_t(at.bhk) * T::dim + c + i], share)
                                                  : p.v_mean[int64_t(at.bhk) * T::dim + c + i]);
            }
            store_pair(p.o, batch, head, out, c, x[0], x[1]);
        }
    }
}

} // namespace td

/* blocks: how many shall fit on a multiprocessor; it bounds the registers (65536 / 128 / blocks).
 * As many as go without spilling: on sm_89 that is one less. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 890
#define TD_BLOCKS(others, sm_89) sm_89
#else
#define TD_BLOCKS(others, sm_89) others
#endif
#define TD_ATTENTION_ENTRY(name, dim, qk_bits, pv_bytes, blocks)           \
    extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS, blocks) \
        name##_d##dim(const __grid_constant__ td_params_attention p)       \
    {                                                                      \
        if (!td::cancelled(p.cancel))                                      \
            td::attend<td::Tile<dim, qk_bits, pv_bytes>, false>(p, nullptr); \
    }
