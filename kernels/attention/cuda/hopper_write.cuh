/* O and lse on their way out: of a warp's rows, and of rows that several warpgroups have parts of.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include <type_traits>

#include "hopper_softmax.cuh"
#include "kernels/cuda/tensor.cuh"

#if TD_HAVE_WGMMA

namespace td {

__device__ __forceinline__ void write_lse(const td_params_attention &p, int64_t bh, int64_t row,
                                          int lane, float top, float l)
{
    if (!p.lse || lane % 4 != 1 || row >= p.o.rows) /* not the one that may hide its base */
        return;
    float lse = -CUDART_INF_F;
    if (l != 0.0f) {
        lse = __fmul_rn(__fadd_rn(top, log2f(l)), TD_LN_2);
        if (p.lse_bias)
            lse = __fadd_rn(lse, __fmul_rn(p.lse_bias[bh * p.q_pad + row], p.scale));
    }
    const uint32_t plane = uint32_t(bh); /* dividing 64 bits takes hundreds of cycles */

    p.lse[plane / p.heads * p.lse_stride_batch + plane % p.heads * p.lse_stride_head +
          row * p.lse_stride_row] = lse;
}

/* Where a head's rows of O begin, in elements. The first of the batch needs no division. */
__device__ __forceinline__ int64_t plane_offset(const td_params_attention &p, uint32_t plane)
{
    int64_t batch = 0;

    if (plane >= p.heads) {
        batch = plane / p.heads * p.o.stride_batch;
        plane %= p.heads;
    }
    return batch + plane * p.o.stride_head;
}

/* O of rows g and g + 8, from channel `first` on; rows without any key are 0. A warp meets this
 * code once, and to fetch an instruction takes longer than to execute it. So where all of its rows
 * have keys and the addresses allow it, two-byte elements go without a choice for each, and as 8
 * bytes a thread, for which neighbours exchange a word of two. */
template <class T, class E>
__device__ __forceinline__ void write_o(const td_params_attention &p, int64_t bh,
                                        const float *v_scale, const float *v_mean, int row0,
                                        int lane, const Sums<T> &c, int first)
{
    /* of this thread: 0 and 8, if below */
    const int rows = int(p.o.rows) - row0 - lane / 4, left = int(p.o.dim) - first;
    const uint32_t plane = uint32_t(bh);
    /* Above 128 channels the branch would have something spilt. */
    const int64_t head =
        T::dim <= 128 ? plane_offset(p, plane)
                      : plane / p.heads * p.o.stride_batch + plane % p.heads * p.o.stride_head;
    E *to = static_cast<E *>(p.o.data) + head + (row0 + lane / 4) * p.o.stride_row + first;
    const int64_t eight = 8 * p.o.stride_row;
    using Two = std::conditional_t<sizeof(E) == 2, E, __half>;
    const bool some[2] = {c.l[0] != 0.0f, c.l[1] != 0.0f};
    const bool wide =
        sizeof(E) == 2 &&
        __all_sync(~0u, some[0] && some[1] && reinterpret_cast<uint64_t>(to) % 8 == 0 &&
                            uint64_t(eight) % 32 == 0);
    const float part[2] = {__frcp_rn(c.l[0]), __frcp_rn(c.l[1])};
    /* Elements i and i + 1 of n-tile j. */
    const auto two = [&](int j, int half, const float2 &scale, const float2 &mean) {
        const float x0 = __fmul_rn(__fmul_rn(c.o[4 * j + 2 * half], part[half]), scale.x);
        const float x1 = __fmul_rn(__fmul_rn(c.o[4 * j + 2 * half + 1], part[half]), scale.y);

        return float2{__fadd_rn(x0, mean.x), __fadd_rn(x1, mean.y)};
    };
    const auto of_channel = [&](const float *from, int channel) {
        return *reinterpret_cast<const float2 *>(from + first + channel);
    };

    if (__builtin_expect(wide, 1)) {
        const bool odd = lane & 1;
        E *at = to + lane % 4 / 2 * 4 + odd * 8;

#pragma unroll
        for (int j = 0; j < T::dim / 8; j += 2) {
            uint32_t bits[2][2];

#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int channel = fragment_column(lane, j + i, 0);
                const float2 scale = of_channel(v_scale, channel),
                             mean = of_channel(v_mean, channel);

#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float2 y = two(j + i, half, scale, mean);

                    bits[half][i] = pack2(static_cast<Two *>(nullptr), y.x, y.y);
                }
            }
            const bool mine = 8 * j + (lane % 4 / 2 * 4 + odd * 8) < left;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t got = __shfl_xor_sync(~0u, odd ? bits[half][0] : bits[half][1], 1);

                if (mine && 8 * half < rows)
                    *reinterpret_cast<uint2 *>(at + half * eight + 8 * j) =
                        make_uint2(odd ? got : bits[half][0], odd ? bits[half][1] : got);
            }
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < T::dim / 8; j++) {
        const int channel = fragment_column(lane, j, 0);
        const float2 scale = of_channel(v_scale, channel), mean = of_channel(v_mean, channel);

#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float2 y = some[half] ? two(j, half, scale, mean) : float2{0, 0};
            E *at = to + half * eight + channel;

            if (8 * half >= rows || channel >= left)
                continue;
            if constexpr (sizeof(E) == 4) {
                at[0] = y.x;
                at[1] = y.y;
            } else {
                const uint32_t bits = pack2(to, y.x, y.y);

                reinterpret_cast<uint16_t *>(at)[0] = uint16_t(bits);
                reinterpret_cast<uint16_t *>(at)[1] = uint16_t(bits >> 16);
            }
        }
    }
}

/* O and lse of a warp's 16 rows. */
template <class T>
__device__ __forceinline__ void write_rows(const td_params_attention &p, int64_t bh,
                                           const float *v_scale, const float *v_mean, int row0,
                                           int lane, const Sums<T> &c, int first = 0)
{
    if (first == 0)
#pragma unroll
        for (int row = 0; row < 2; row++)
            write_lse(p, bh, row0 + fragment_row(lane, 2 * row), lane, c.top[row], c.l[row]);
    if (__builtin_expect(p.o.dtype == TANDEM_DTYPE_F16, 1))
        write_o<T, __half>(p, bh, v_scale, v_mean, row0, lane, c, first);
    else if (p.o.dtype == TANDEM_DTYPE_F32)
        write_o<T, float>(p, bh, v_scale, v_mean, row0, lane, c, first);
    else
        write_o<T, __nv_bfloat16>(p, bh, v_scale, v_mean, row0, lane, c, first);
}

/* --- Parts of O of warpgroups that share keys --- */

/* Sums of some channels. */
template <int Dim> struct HopperHalf {
    static constexpr int dim = Dim, columns = Dim + 8;
};

/* Where channels of a row of O lie that a warpgroup leaves for others: in K and V of a stage, but
 * for V's ones. Eight channels are exchanged, so that 8 rows meet all banks. */
template <class T>
__device__ __forceinline__ float *left_o(typename T::Stage &stage, int row, int channel)
{
    constexpr int mask = T::dim % 64 ? 3 : 7;

    return reinterpret_cast<float *>(stage.k) + row * T::dim + (channel ^ (row & mask) * 8);
}

/* Four neighbours in a row of O, of which there are `dim`. */
template <class E>
__device__ __forceinline__ void write_four(E *to, int channel, int dim, const float (&x)[4])
{
    to += channel;
    if constexpr (sizeof(E) == 4) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (channel + i < dim)
                to[i] = x[i];
    } else {
        const uint32_t bits[2] = {pack2(to, x[0], x[1]), pack2(to, x[2], x[3])};

        if (channel + 4 <= dim && reinterpret_cast<uint64_t>(to) % 8 == 0) {
            *reinterpret_cast<uint2 *>(to) = make_uint2(bits[0], bits[1]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (channel + i < dim)
                    reinterpret_cast<uint16_t *>(to)[i] = uint16_t(bits[i / 2] >> (16 * (i % 2)));
        }
    }
}

/* Of a row that the warpgroups have left their parts of: bases are made the largest of them, and
 * what has been added up is added up in the warpgroups' order. Instead of bases, factors for the
 * parts; instead of the first sum, one divided by all. */
template <class T>
__device__ __forceinline__ void weigh(typename T::Shared &shared, const td_params_attention &p,
                                      const HopperRowTile &at, int row)
{
    float top = -CUDART_INF_F, l = 0;

#pragma unroll
    for (int i = 0; i < T::splits; i++)
        top = fmaxf(top, shared.l[1][128 * i + row]);
#pragma unroll
    for (int i = 0; i < T::splits; i++) {
        const float base = shared.l[1][128 * i + row], sum = shared.l[0][128 * i + row];
        const float by = base == top ? 1.0f : ex2(__fsub_rn(base, top));

        l = i ? __fmaf_rn(sum, by, l) : __fmul_rn(sum, by);
        shared.l[1][128 * i + row] = by;
    }
    shared.l[0][row] = l != 0.0f ? __frcp_rn(l) : 0.0f;
    write_lse(p, uint32_t(at.bh), at.row0 + row, 1, top, l);
}

/* O of the tile's rows. A thread has its channels in all of its rows. */
template <class T, class E>
__device__ __forceinline__ void put_together(typename T::Shared &shared,
                                             const td_params_attention &p, const HopperRowTile &at,
                                             uint32_t n)
{
    constexpr int fours = T::dim / 4, abreast = 128 * T::splits / fours; /* rows */
    const int t = tid_x(), channel = t % fours * 4, rows = min(64, int(p.o.rows) - at.row0);
    E *to = static_cast<E *>(p.o.data) + plane_offset(p, uint32_t(at.bh)) +
            (at.row0 + t / fours) * p.o.stride_row;
    const float4 scale = *reinterpret_cast<const float4 *>(shared.v_scale[n % 2] + channel);
    const float4 mean = *reinterpret_cast<const float4 *>(shared.v_mean[n % 2] + channel);
    typename T::Stage *left[T::splits];

    static_assert(128 * T::splits % fours == 0, "a thread's channels stay");
#pragma unroll
    for (int i = 0; i < T::splits; i++)
        left[i] = &shared.stage[shared.left[i]];
#pragma unroll 1
    for (int row = t / fours; row < rows; row += abreast) {
        float x[4];

#pragma unroll
        for (int i = 0; i < T::splits; i++) {
            const float4 o = *reinterpret_cast<const float4 *>(left_o<T>(*left[i], row, channel));
            const float by = shared.l[1][128 * i + row];

            x[0] = i ? __fmaf_rn(o.x, by, x[0]) : __fmul_rn(o.x, by);
            x[1] = i ? __fmaf_rn(o.y, by, x[1]) : __fmul_rn(o.y, by);
            x[2] = i ? __fmaf_rn(o.z, by, x[2]) : __fmul_rn(o.z, by);
            x[3] = i ? __fmaf_rn(o.w, by, x[3]) : __fmul_rn(o.w, by);
        }
        const float part = shared.l[0][row];
        const bool some = part != 0.0f;
        const float y[4] = {
            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[0], part), scale.x), mean.x) : 0.0f,
            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[1], part), scale.y), mean.y) : 0.0f,
            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[2], part), scale.z), mean.z) : 0.0f,
            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[3], part), scale.w), mean.w) : 0.0f};
        write_four(to, channel, int(p.o.dim), y);
        to += abreast * p.o.stride_row;
    }
}

/* Leaves this warpgroup's part in `stage`, which nobody uses any more, and writes some of what all
 * parts make. */
template <class T>
__device__ __forceinline__ void merge(typename T::Shared &shared, const td_params_attention &p,
                                      const HopperRowTile &at, uint32_t n, uint32_t stage,
                                      const Sums<T> &c)
{
    const int t = tid_x(), group = t / 128, lane = t % 32;

    bar_sync<128>(uint32_t(1 + group)); /* all of its warps have read V and their sums */
    if (t % 128 == 0)
        shared.left[group] = stage;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = t % 128 / 32 * 16 + fragment_row(lane, 2 * half);

        if (lane % 4 == 1) { /* see hide_base() */
            shared.l[0][128 * group + row] = c.l[half];
            shared.l[1][128 * group + row] = c.top[half];
        }
#pragma unroll
        for (int j = 0; j < T::dim / 8; j++)
            *reinterpret_cast<float2 *>(
                left_o<T>(shared.stage[stage], row, fragment_column(lane, j, 0))) =
                float2{c.o[4 * j + 2 * half], c.o[4 * j + 2 * half + 1]};
    }
    bar_sync<128 * T::splits>(7);
    if (t < 64)
        weigh<T>(shared, p, at, t);
    bar_sync<128 * T::splits>(7);
    if (__builtin_expect(p.o.dtype == TANDEM_DTYPE_F16, 1))
        put_together<T, __half>(shared, p, at, n);
    else if (p.o.dtype == TANDEM_DTYPE_F32)
        put_together<T, float>(shared, p, at, n);
    else
        put_together<T, __nv_bfloat16>(shared, p, at, n);
    bar_sync<128 * T::splits>(7);
}

/* What two warpgroups with the same rows make of both parts' channels; `Split`: which share of the
 * keys this one has had. */
template <int Split, int N>
__device__ __forceinline__ void combine(float (&mine)[N], const float4 *theirs,
                                        const float (&by)[2][2])
{
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const float4 got = theirs[128 * i];
        const float other[4] = {got.x, got.y, got.z, got.w};

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float first = Split ? other[j] : mine[4 * i + j],
                        second = Split ? mine[4 * i + j] : other[j];

            mine[4 * i + j] = __fmaf_rn(second, by[j / 2][1], __fmul_rn(first, by[j / 2][0]));
        }
    }
}

/* Of two warpgroups with the same rows each leaves half of its channels in `stage`, which neither
 * it nor the other one with these keys uses any more, and writes the other half, with that of the
 * other. As weigh() and put_together() do it. */
template <class T>
__device__ __forceinline__ void merge_pair(typename T::Shared &shared, const td_params_attention &p,
                                           const HopperRowTile &at, uint32_t n, uint32_t stage,
                                           Sums<T> &c)
{
    using Half = HopperHalf<T::dim / 2>;
    constexpr int half = T::dim / 4, part_floats = 128 * half;
    const int thread = tid_x() & 127, group = __shfl_sync(~0u, tid_x() >> 7, 0), lane = thread & 31;
    const int split = group / T::abreast, part = group % T::abreast,
              other = (split ^ 1) * T::abreast + part;
    const int row0 = thread >> 5 << 4;
    const uint32_t pair_barrier = uint32_t(3 + part);
    float4 *left = reinterpret_cast<float4 *>(reinterpret_cast<float *>(shared.stage[stage].k) +
                                              part * part_floats) +
                   thread;
    Sums<Half> mine;

    show_base(c.top);
    /* all of their warps have read V and their sums */
    bar_sync<128 * T::abreast>(uint32_t(1 + split));
    if (thread == 0)
        shared.left[group] = stage;
    const auto give = [&](int from) {
#pragma unroll
        for (int i = 0; i < half / 4; i++)
            left[128 * i] = make_float4(c.o[from + 4 * i], c.o[from + 4 * i + 1],
                                        c.o[from + 4 * i + 2], c.o[from + 4 * i + 3]);
    };
    if (split) /* not a choice for each element */
        give(0);
    else
        give(half);
#pragma unroll
    for (int row = 0; row < 2; row++)
        if (lane % 4 == 0) {
            shared.l[0][128 * group + row0 + fragment_row(lane, 2 * row)] = c.l[row];
            shared.l[1][128 * group + row0 + fragment_row(lane, 2 * row)] = c.top[row];
        }
    bar_sync<256>(pair_barrier);
    float by[2][2]; /* of rows; of the first and the second share of the keys */
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int at_row = 128 * other + row0 + fragment_row(lane, 2 * row);
        const float l = shared.l[0][at_row], base = shared.l[1][at_row],
                    top = fmaxf(base, c.top[row]);
        const float here = c.top[row] == top ? 1.0f : ex2(__fsub_rn(c.top[row], top));
        const float there = base == top ? 1.0f : ex2(__fsub_rn(base, top));

        by[row][0] = split ? there : here;
        by[row][1] = split ? here : there;
        mine.l[row] = __fmaf_rn(split ? c.l[row] : l, by[row][1],
                                __fmul_rn(split ? l : c.l[row], by[row][0]));
        mine.top[row] = top;
    }
    const float4 *from = reinterpret_cast<const float4 *>(
                             reinterpret_cast<const float *>(shared.stage[shared.left[other]].k) +
                             part * part_floats) +
                         thread;
    if (split) {
#pragma unroll
        for (int i = 0; i < half; i++)
            mine.o[i] = c.o[half + i];
        combine<1>(mine.o, from, by);
    } else {
#pragma unroll
        for (int i = 0; i < half; i++)
            mine.o[i] = c.o[i];
        combine<0>(mine.o, from, by);
    }
    bar_sync<256>(pair_barrier); /* the other one has read what this one has left */
    write_rows<Half>(p, at.bh, shared.v_scale[n % 2], shared.v_mean[n % 2],
                     at.row0 + 64 * part + row0, lane, mine, split * (T::dim / 2));
}

} // namespace td
#endif
