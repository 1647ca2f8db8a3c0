/* What F16's warpgroups that share the keys of a tile have added up, put together: O = sum of O_i
 * 2^(top_i - top).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "f16_dump.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* Eight neighbours in a row of O. */
template <class E> __device__ __forceinline__ void f16_write_eight(E *to, const float (&x)[8])
{
    if constexpr (sizeof(E) == 4) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            to[i] = x[i];
    } else {
        uint32_t bits[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            bits[i] = pack2(to, x[2 * i], x[2 * i + 1]);
        if (reinterpret_cast<uint64_t>(to) % 16 == 0) {
            *reinterpret_cast<uint4 *>(to) = make_uint4(bits[0], bits[1], bits[2], bits[3]);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                reinterpret_cast<uint16_t *>(to)[i] = uint16_t(bits[i / 2] >> (16 * (i % 2)));
        }
    }
}

/* O, sums and bases of a warp's rows from `first_row` on: its team's part of them. */
template <class T, class S>
__device__ __forceinline__ void f16_leave(S &shared, int team, int first_row, int lane,
                                          const F16Consumer<T> &c)
{
    const int row = first_row + lane / 4, which = lane % 4; /* a lane has one of a quad's numbers */

    (which % 2 ? shared.top : shared.l)[team][row + which / 2 * 8] =
        which == 0 ? c.l[0] : which == 1 ? c.top[0] : which == 2 ? c.l[1] : c.top[1];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < T::dim / 8; j++)
            *reinterpret_cast<float2 *>(T::left(shared, team, row + 8 * half) +
                                        fragment_column(lane, j, 0)) =
                float2{c.o[4 * j + 2 * half], c.o[4 * j + 2 * half + 1]};
}

/* O and lse of the tile, from what the teams have left. */
template <class T, class E, class S>
__device__ __forceinline__ void f16_put_together(const S &shared, const td_params_attention_f16 &p,
                                                 const F16RowTile &at)
{
    constexpr int eights = T::dim / 8;
    const int rows = min(T::rows, int(p.o.rows) - at.row0);
    E *to = static_cast<E *>(p.o.data) + at.batch * p.o.stride_batch + at.head * p.o.stride_head +
            at.row0 * p.o.stride_row;

#pragma unroll 1
    for (int i = tid_x(); i < rows * eights; i += T::threads) {
        const int row = i / eights, channel = i % eights * 8;
        float x[8], top = -CUDART_INF_F, l = 0;

#pragma unroll
        for (int team = 0; team < T::teams; team++)
            top = fmaxf(top, shared.top[team][row]);
#pragma unroll
        for (int team = 0; team < T::teams; team++) {
            const float *left = T::left(shared, team, row) + channel;
            const float4 low = *reinterpret_cast<const float4 *>(left),
                         high = *reinterpret_cast<const float4 *>(left + 4);
            const float o[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            const float base = shared.top[team][row],
                        by = base == top ? 1.0f : ex2(__fsub_rn(base, top));

            l = __fmaf_rn(shared.l[team][row], by, l);
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[j] = team ? __fmaf_rn(o[j], by, x[j]) : __fmul_rn(o[j], by);
        }
        if (f16_hidden(p, at.row0 + row, top))
            l = CUDART_NAN_F;
        const float part = l != 0.0f ? __frcp_rn(l) : 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = __fmul_rn(x[j], part);
        f16_write_eight(to + row * p.o.stride_row + channel, x);
        if (p.lse && channel == 0)
            p.lse[at.batch * p.lse_stride_batch + at.head * p.lse_stride_head +
                  (at.row0 + row) * p.lse_stride_row] =
                l != 0.0f ? __fmul_rn(__fadd_rn(top, log2f(l)), TD_LN_2) : -CUDART_INF_F;
    }
}

/* The tile of block x, as f16_row_tile() counts: with a mask the longest ones of all heads come
 * first. */
template <class T>
__device__ __forceinline__ uint32_t f16_split_work(const td_params_attention_f16 &p, uint32_t x)
{
    const uint32_t tiles = (p.q.rows + T::rows - 1) / T::rows,
                   planes = p.causal ? p.works / tiles : 1;

    return p.causal ? x % planes * tiles + x / planes : x;
}

} // namespace td
#endif
