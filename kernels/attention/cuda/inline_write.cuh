/* O of attn_8b_wgmma_inline where warpgroups share keys: each leaves its part, half of the channels
 * at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "hopper_write.cuh"
#include "inline_tile.cuh"

#if TD_HAVE_WGMMA

namespace td {
namespace ring {

/* Where a row's channels lie that a warpgroup leaves for the others: half of them at a time, where
 * K and V were. */
template <class T>
__device__ __forceinline__ float *left_half(typename T::Shared &shared, int group, int row,
                                            int channel)
{
    constexpr int half = T::dim / 2, mask = half % 64 == 0 ? 7 : half % 32 == 0 ? 3 : 1;

    return reinterpret_cast<float *>(shared.k[0]) + (group * 64 + row) * half +
           (channel ^ (row & mask) * 8);
}

/* As in hopper_write.cuh, of a row of the block: sums and bases of its warpgroups lie behind one
 * another. */
template <class T>
__device__ __forceinline__ void weigh(typename T::Shared &shared, const td_params_attention &p,
                                      const RowTileOf<uint32_t> &at, int row)
{
    float(*const sums)[T::keys] = shared.k_scale + row / 64;
    const int r = row % 64;
    float top = -CUDART_INF_F, l = 0;

#pragma unroll
    for (int i = 0; i < T::splits; i++)
        top = fmaxf(top, sums[i * T::abreast][64 + r]);
#pragma unroll
    for (int i = 0; i < T::splits; i++) {
        const float base = sums[i * T::abreast][64 + r], sum = sums[i * T::abreast][r];
        const float by = base == top ? 1.0f : ex2(__fsub_rn(base, top));

        l = i ? __fmaf_rn(sum, by, l) : __fmul_rn(sum, by);
        sums[i * T::abreast][64 + r] = by;
    }
    sums[0][r] = l != 0.0f ? __frcp_rn(l) : 0.0f;
    write_lse(p, at.bh, at.row0 + row, 1, top, l);
}

/* Half of the channels of O of the tile's rows. */
template <class T, class E>
__device__ __forceinline__ void put_half(typename T::Shared &shared, const td_params_attention &p,
                                         int64_t begin, int rows, int first)
{
    constexpr int fours = T::dim / 8, at_once = 128 * T::groups / fours; /* rows */
    const int t = tid_x(), channel = t % fours * 4;
    E *to = static_cast<E *>(p.o.data) + begin + t / fours * p.o.stride_row;
    const float4 scale = *reinterpret_cast<const float4 *>(shared.v_scale + first + channel);
    const float4 mean = *reinterpret_cast<const float4 *>(shared.v_mean + first + channel);

    static_assert(128 * T::groups % fours == 0, "a thread's channels stay");
#pragma unroll 2
    for (int row = t / fours; row < rows; row += at_once) {
        const int part = row / 64, r = row % 64;
        float x[4];

#pragma unroll
        for (int i = 0; i < T::splits; i++) {
            const float4 o = *reinterpret_cast<const float4 *>(
                left_half<T>(shared, i * T::abreast + part, r, channel));
            const float by = shared.k_scale[i * T::abreast + part][64 + r];

            x[0] = i ? __fmaf_rn(o.x, by, x[0]) : __fmul_rn(o.x, by);
            x[1] = i ? __fmaf_rn(o.y, by, x[1]) : __fmul_rn(o.y, by);
            x[2] = i ? __fmaf_rn(o.z, by, x[2]) : __fmul_rn(o.z, by);
            x[3] = i ? __fmaf_rn(o.w, by, x[3]) : __fmul_rn(o.w, by);
        }
        const float whole = shared.k_scale[part][r];
        const bool some = whole != 0.0f;
        const float y[4] = {
            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[0], whole), scale.x), mean.x) : 0.0f,
            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[1], whole), scale.y), mean.y) : 0.0f,
            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[2], whole), scale.z), mean.z) : 0.0f,
            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[3], whole), scale.w), mean.w) : 0.0f};
        write_four(to, first + channel, int(p.o.dim), y);
        to += at_once * p.o.stride_row;
    }
}

/* Leaves this warpgroup's part, and writes some of what all parts make. */
template <class T>
__device__ __forceinline__ void merge(typename T::Shared &shared, const td_params_attention &p,
                                      const Sums<T> &c)
{
    RowTileOf<uint32_t> at;
    const int t = tid_x(), group = t / 128, lane = t % 32;

    at.bh = shared.bh;
    at.row0 = int(shared.row0);
    const int64_t begin = at.bh / p.heads * p.o.stride_batch + at.bh % p.heads * p.o.stride_head +
                          at.row0 * p.o.stride_row;
    const int rows = min(T::rows, int(p.o.rows) - at.row0);

    /* nobody reads scales of these keys any more */
    bar_sync<128 * T::abreast>(uint32_t(1 + T::split(group)));
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (lane % 4 == 1) { /* see hide_base() */
            const int row = t % 128 / 32 * 16 + fragment_row(lane, 2 * half);

            shared.k_scale[group][row] = c.l[half];
            shared.k_scale[group][64 + row] = c.top[half];
        }
    bar_sync<128 * T::groups>(7); /* nor K and V */
    if (t < T::rows)
        weigh<T>(shared, p, at, t);
#pragma unroll
    for (int first = 0; first < T::dim; first += T::dim / 2) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = t % 128 / 32 * 16 + fragment_row(lane, 2 * half);

#pragma unroll
            for (int j = 0; j < T::dim / 16; j++) {
                const int i = 4 * (first / 8 + j) + 2 * half;

                *reinterpret_cast<float2 *>(left_half<T>(
                    shared, group, row, fragment_column(lane, j, 0))) = float2{c.o[i], c.o[i + 1]};
            }
        }
        bar_sync<128 * T::groups>(7);
        if (p.o.dtype == TANDEM_DTYPE_F32)
            put_half<T, float>(shared, p, begin, rows, first);
        else if (p.o.dtype == TANDEM_DTYPE_F16)
            put_half<T, __half>(shared, p, begin, rows, first);
        else
            put_half<T, __nv_bfloat16>(shared, p, begin, rows, first);
        if (first == 0)
            bar_sync<128 * T::groups>(7);
    }
}

} // namespace ring
} // namespace td
#endif
