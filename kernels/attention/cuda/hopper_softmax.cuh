/* What a thread of a warpgroup that computes has in registers: S, P, R, O, bases and sums, and what
 * it does with them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include <cuda_fp16.h>

#include "hopper_tile.cuh"
#include "late_base.cuh"

#if TD_HAVE_WGMMA

namespace td {

constexpr float kBaseLog2 = TD_LATE_LIMIT_LOG2 - TD_HEADROOM_LOG2;
static_assert((TD_HOPPER_R_KEYS << unsigned(TD_LATE_LIMIT_LOG2)) * (TD_V_TOP > 1 ? TD_V_TOP : 1) <=
                  65504,
              "sums in fp16 overflow: of P V, or of P");

/* What a consumer adds up; rows g and g + 8 of its warp's 16. */
template <class T> struct Sums {
    uint32_t r[T::columns / 4]; /* two channels of a row each */
    float o[T::dim / 2];
    float l[2], top[2], scale[2]; /* P = 2^(S scale - top); scale: of rows, softmax and keys */

    /* row_scale: of all rows, with the softmax's in it, those of a thread side by side
     * (place_of_row()). */
    __device__ __forceinline__ void set_scale(const float *row_scale, float key_scale)
    {
        const float2 mine =
            *reinterpret_cast<const float2 *>(row_scale + uint32_t(tid_x()) / 4 * 2);

        scale[0] = __fmul_rn(mine.x, key_scale);
        scale[1] = __fmul_rn(mine.y, key_scale);
    }

    /* The same where the softmax's is not in it. */
    __device__ __forceinline__ void set_scale(const float *row_scale, float key_scale,
                                              float softmax_scale)
    {
        const uint32_t t = uint32_t(tid_x());
        const float *mine = row_scale + t % 128 / 32 * 16 + t % 32 / 4;

        scale[0] = __fmul_rn(__fmul_rn(mine[0], softmax_scale), key_scale);
        scale[1] = __fmul_rn(__fmul_rn(mine[8], softmax_scale), key_scale);
    }

    __device__ __forceinline__ float2 pair_of_r(int i) const
    {
        __half2 pair;

        memcpy(&pair, &r[i], sizeof pair);
        return __half22float2(pair);
    }

    /* O += R: the second level of the accumulation. l: of two rows, `Apart` from another. */
    template <int Apart = 1> __device__ __forceinline__ void flush(float *l)
    {
#pragma unroll
        for (int i = 0; i < T::dim / 4; i++) {
            const float2 pair = pair_of_r(i);

            o[2 * i] = __fadd_rn(o[2 * i], pair.x);
            o[2 * i + 1] = __fadd_rn(o[2 * i + 1], pair.y);
        }
#pragma unroll
        for (int row = 0; row < 2; row++)
            l[row * Apart] = __fadd_rn(l[row * Apart], pair_of_r(T::dim / 4 + row).x);
    }
};

/* Whether R begins anew with a step of TD_HOPPER_KEYS keys: then it has to be in O. */
__device__ __forceinline__ bool r_begins(int step)
{
    return uint32_t(step) % (TD_HOPPER_R_KEYS / TD_HOPPER_KEYS) == 0;
}

template <int Value> struct Number {
    static constexpr int value = Value;
};

/* A consumer's registers. */
template <class T> struct Consumer : Sums<T> {
    static constexpr int kHalf = T::keys / 2, kPieces = kHalf / 16;
    /* e4m3 of a power of two */
    static constexpr uint32_t kLimitCode = (7 + uint32_t(TD_LATE_LIMIT_LOG2)) << 3;
    /* stand for S: a key out of reach, a bad one */
    static constexpr int kMasked = INT32_MIN, kBad = INT32_MIN + 1;

    int s[kHalf / 2]; /* of a half */
    uint32_t p[2][kHalf / 32][4];
    using Sums<T>::r, Sums<T>::o, Sums<T>::top, Sums<T>::scale;

    /* S of a half of the keys; q and k are tile_word()s. */
    template <int Half> __device__ __forceinline__ void issue_qk(uint32_t q, uint32_t k)
    {
        k += Half * kHalf * T::qk_row / 16;
        wgmma_fence();
        wgmma_s8<false>(s, descriptor<T::qk_row>(q), descriptor<T::qk_row>(k));
#pragma unroll
        for (int step = 1; step < T::dim / 32; step++)
            wgmma_s8<true>(s, descriptor<T::qk_row>(q + 2 * step),
                           descriptor<T::qk_row>(k + 2 * step));
        wgmma_commit();
    }

    /* R += P V of a half, or R = P V. */
    template <int Half> __device__ __forceinline__ void issue_pv(uint32_t v, bool add = true)
    {
        v += Half * kHalf / 16;
#pragma unroll
        for (int step = 0; step < kHalf / 32; step++)
            wgmma_hold(p[Half][step]);
        wgmma_fence();
        wgmma_e4m3(r, p[Half][0], descriptor<T::keys>(v), add);
#pragma unroll
        for (int step = 1; step < kHalf / 32; step++)
            wgmma_e4m3(r, p[Half][step], descriptor<T::keys>(v + 2 * step));
        wgmma_commit();
    }

    /* Replaces what the mask hides and what bad keys poison. */
    template <int Half>
    __device__ __forceinline__ void mask(const float *k_scale, int lane, int first_key, int end,
                                         int reach)
    {
#pragma unroll
        for (int i = 0; i < kHalf / 2; i++) {
            const int column = Half * kHalf + fragment_column(lane, i / 4, i % 4);
            const float key_scale = k_scale[column];

            if (key_scale != key_scale)
                s[i] = kBad;
            if (first_key + column >= min(end, reach + fragment_row(lane, i % 4)))
                s[i] = kMasked;
        }
    }

    /* Whether a P may pass the limit whose score is `here` once it is rounded, which P is not made
     * of. */
    __device__ __forceinline__ static bool too_high(float here, float base)
    {
        const float high = __fsub_rn(here, base);

        return (is_far(base) ? high : __fmaf_rn(fabsf(here), TD_HALF_STEP, high)) >
               TD_LATE_LIMIT_LOG2;
    }

    /* Whether P of what S is of would pass the limit in this thread; `here` are its maxima. */
    __device__ __forceinline__ bool exceeds(float (&here)[2]) const
    {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            int part[2] = {kMasked, kMasked};

#pragma unroll
            for (int i = 0; i < kHalf / 4; i++)
                part[i / 2 % 2] = max(part[i / 2 % 2], s[i / 2 * 4 + 2 * row + i % 2]);
            const int most = max(part[0], part[1]);
            here[row] = most > kBad ? __fmul_rn(float(most), scale[row]) : -CUDART_INF_F;
        }
        return too_high(here[0], top[0]) || too_high(here[1], top[1]);
    }

    /* Whether a code of P of a half is the limit's or above, as it is wherever P would pass the
     * limit: a sign of `exceeds` that costs a third of it. No code has its top bit set, so there is
     * no carry from one to the next. */
    template <int Half> __device__ __forceinline__ bool at_limit() const
    {
        uint32_t all = 0;

#pragma unroll
        for (int i = 0; i < kHalf / 32; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                all |= p[Half][i][j] + (0x80u - kLimitCode) * 0x01010101u;
        return all & 0x80808080u;
    }

    /* Gives rows another base; `here` becomes the factor for what has been added up by the old one.
     */
    template <int Apart> __device__ __forceinline__ void rebase(float (&here)[2], float *l)
    {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            here[row] = quad_max(here[row]);
            const float next =
                too_high(here[row], top[row]) ? base_below(here[row], kBaseLog2) : top[row];

            here[row] = next == top[row] ? 1.0f : ex2(__fsub_rn(top[row], next));
            top[row] = next;
            l[row * Apart] = __fmul_rn(l[row * Apart], here[row]);
        }
    }

    __device__ __forceinline__ void rescale(const float (&by)[2])
    {
#pragma unroll
        for (int i = 0; i < T::dim / 2; i++)
            o[i] = __fmul_rn(o[i], by[i % 4 / 2]);
        const uint32_t halves[2] = {cvt_f16x2(by[0], by[0]), cvt_f16x2(by[1], by[1])};
#pragma unroll
        for (int i = 0; i < T::columns / 4; i++)
            r[i] = mul_f16x2(r[i], halves[i % 2]);
    }

    /* P of pieces Begin to End - 1 of a half, 16 keys each. `Again` heeds far bases, and converts
     * S, which is exact, by another instruction: else the compiler keeps the floats of the first
     * try for the second, where it lacks the registers. */
    template <int Half, int Begin, int End, bool Again = false>
    __device__ __forceinline__ void exponentials()
    {
#pragma unroll
        for (int piece = Begin; piece < End; piece++) {
            float e[8];

#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int value = s[8 * piece + i];

                if constexpr (Again)
                    e[i] = ex2(exponent(__int2float_rz(value), scale[i % 4 / 2], top[i % 4 / 2]));
                else
                    e[i] = ex2(__fmaf_rn(__int2float_rn(value), scale[i % 4 / 2], -top[i % 4 / 2]));
            }
#pragma unroll
            for (int row = 0; row < 2; row++)
                p[Half][piece / 2][2 * (piece % 2) + row] =
                    uint32_t(cvt_e4m3x2(e[2 * row + 1], e[2 * row])) |
                    uint32_t(cvt_e4m3x2(e[2 * row + 5], e[2 * row + 4])) << 16;
        }
    }

    /* Codes of what was masked: 0, or NaN for a bad key. */
    template <int Half> __device__ __forceinline__ void correct()
    {
#pragma unroll
        for (int i = 0; i < kHalf / 2; i++) {
            const int byte = 16 * (i / 4 % 2) + 8 * (i % 2);
            uint32_t &word = p[Half][i / 16][2 * (i / 8 % 2) + i % 4 / 2];

            if (s[i] <= kBad)
                word = (word & ~(255u << byte)) | (s[i] == kBad ? 127u << byte : 0u);
        }
    }

    /* The first base, by half 0. */
    template <int Apart = 1> __device__ __forceinline__ void set_base(float *l)
    {
        float here[2];

        exceeds(here);
        rebase<Apart>(here, l); /* nothing has been added up */
        if (any_far(top))
            hide_base(top);
    }

    /* P of a half again, if its base does not fit. */
    template <int Half, int Apart = 1> __device__ __forceinline__ void check(float *l)
    {
        float here[2];

        if (__builtin_expect(__any_sync(~0u, at_limit<Half>()), 0)) {
            show_base(top);
            const bool moves = __any_sync(~0u, exceeds(here));

            if (moves) {
                wgmma_wait<0>(); /* R */
                wgmma_hold(r);
                rebase<Apart>(here, l);
                rescale(here);
            }
            const bool far = any_far(top);
            if (__any_sync(~0u,
                           moves |
                               far)) /* a vote, or the compiler does not see that the warp agrees */
                exponentials<Half, 0, kPieces, true>();
            if (far)
                hide_base(top);
        }
    }
};

/* Whether all of the warp's threads have one scale for their keys, four of a step, as they do
 * unless a key is bad. */
__device__ __forceinline__ bool scales_agree(float2 low, float2 high)
{
    return __all_sync(~0u, low.x == low.y && low.x == high.x && low.x == high.y);
}

/* The largest scale of those keys of a step that a thread has a part of: none that is NaN. */
template <class T> __device__ __forceinline__ float largest_scale(const float *k_scale, int lane)
{
    float most = -CUDART_INF_F;

    for (int key = 2 * (lane % 4); key < T::keys; key += 8)
        most = fmaxf(most, fmaxf(k_scale[key], k_scale[key + 1]));
    return most;
}

} // namespace td
#endif
