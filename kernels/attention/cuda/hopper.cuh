/* O = softmax(scale * Q K^T) V on Hopper: int8 Q K^T and e4m3 P V by wgmma.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Shapes: Q codes [bh][q_pad][Dim], K codes [bhk][kv_pad][Dim], V codes [bhk][Dim][kv_pad], keys permuted as the A
 * fragment of P wants them. A block is two to four warpgroups of 64 rows and one that fetches. A step takes 128 keys in
 * two halves that follow one another in one set of registers for S (i: step; 0, 1: halves):
 *
 *   fetching   V(i) K(i+1) -> a ring of stages, mbarriers full and empty
 *   tensor     S = Q K0(i) |              | S = Q K1(i), R += P0 V0(i) |            | S = Q K0(i+1), R += P1 V1(i) ...
 *   threads                | P0 = ex2 S0  |                            | P1 = ex2 S |
 *
 * While one warpgroup waits for S, the others are in the exponential. P is computed before it is known whether its base
 * fits, and again if it did not. Whether it did is seen in P's codes, four at a time: only where one is as large as the
 * limit are the maxima of S looked at.
 *
 * R adds up TD_HOPPER_R_KEYS keys in fp16: products are exact, those of 32 keys and R are cut off behind 13 fractional
 * bits of the largest and added up exactly, and the sum is rounded to nearest (kernels/attention/cpu/twin.c). O, in fp32, takes the
 * rest (two-level accumulation). fp16 sums take half the registers and half the way through the registers' ports, so a
 * third warpgroup has room: a thread at Dim 128 has O 64, R 34, S 32, P 16 of 160; at Dim 64 a fourth: O 32, R 18 of 112.
 * No sum overflows: P <= 2^TD_LATE_LIMIT_LOG2 and V's codes are at most TD_V_TOP, so 256 keys are at most
 * 128 * 1.75 * 256 = 57344 of 65504. P's sum, at most 32768, is one more column of P V, a channel of ones: the
 * denominator adds up the very codes that the numerator has, rounded alike.
 * A row's base follows its maximum late: when it is set, P is about 2^(TD_LATE_LIMIT_LOG2 - TD_HEADROOM_LOG2), and it
 * stays until a P would pass the limit. So nothing saturates, 64 keys cost a row one comparison, and rebasing is rare.
 * Where a base is far (params.h), each step makes P again as it has to be there: see hide_base().
 *
 * Where tiles are many, blocks walk over them (HopperTile::walks): the ring goes on from one tile to the next, and the fetch that
 * a tile begins with brings Q and scales, too, into one of two places in turn. Such a place is free when all warps have said so
 * behind the tile's O. Who fetches says in front of that fetch which tile it is, or that there is none.
 *
 * Where tiles are few, all warpgroups of a block have the same 64 rows, and each every so manieth step of keys with bases, R
 * and O of its own (HopperTile::splits). Behind the last step each leaves O in a stage of its own, and all of them write the
 * tile: O = sum of O_i 2^(top_i - top), in the warpgroups' order, so every run has the same bits. Such a block walks from
 * tile to tile; the ring goes on. It is another order of adding up than that of the other blocks, so other bits.
 * Where there are somewhat more, two warpgroups of four have the same 64 rows, and two the next 64 (HopperTile::abreast): warpgroup
 * i has rows of part i % 2 and every second step, from step i / 2 on. Of such a pair each leaves the other half of its channels
 * and writes its own.
 */
#pragma once

#include <math_constants.h>

#include "kernels/cuda/tensor.cuh"
#include "kernels/cuda/tile.cuh"

#if TD_HAVE_WGMMA

namespace td {

constexpr float kBaseLog2 = TD_LATE_LIMIT_LOG2 - TD_HEADROOM_LOG2;
static_assert((TD_HOPPER_R_KEYS << unsigned(TD_LATE_LIMIT_LOG2)) * (TD_V_TOP > 1 ? TD_V_TOP : 1) <= 65504,
              "sums in fp16 overflow: of P V, or of P");

/* Where a block that walks is: a head and a tile of its rows, -1 behind the last one. */
struct WalkPlace {
    uint32_t bh;
    int tile;
};

template <bool First, class A, class B> struct Either {
    using type = A;
};
template <class A, class B> struct Either<false, A, B> {
    using type = B;
};

/* Splits: 1, or so many warpgroups have the same 64 rows, and each every Splits-th step of keys. Walks: blocks whose warpgroups
 * share no keys walk from tile to tile, and have what they need of a tile but K and V twice. */
template <int Dim, int Groups, bool Dump, int Splits = 1, bool Walks = false> struct HopperTile {
    static constexpr unsigned d = Dim;
    static constexpr int dim = Dim, groups = Groups, splits = Splits, abreast = Groups / Splits, rows = 64 * abreast;
    static constexpr int threads = 128 * (Groups + 1), buffers = Walks ? 2 : 1;
    static constexpr int stages = int(Walks ? TD_HOPPER_WALK_STAGES(d) : TD_HOPPER_STAGES(d, unsigned(Splits)));
    static constexpr int keys = int(TD_HOPPER_KEYS);
    static constexpr bool dump = Dump || kAllDump, walks = Walks;
    static constexpr int qk_row = int(TD_HOPPER_ROW_BYTES(d)); /* bytes of a row of Q or K */
    static constexpr int columns = Dim + 8; /* of P V: the channels, and eight times P's sum */

    struct Stage {
        alignas(1024) uint8_t k[keys * qk_row];
        alignas(1024) uint8_t v[columns * keys];
        alignas(1024) float k_scale[keys];
    };
    struct Common {
        Stage stage[stages];
        alignas(1024) uint8_t q[buffers][rows * qk_row];
        float v_scale[Splits > 1 || Walks ? 2 : groups][Dim]; /* of every second tile, or of each warpgroup */
        float v_mean[Splits > 1 || Walks ? 2 : groups][Dim];
        alignas(1024) uint64_t full[stages];
        uint64_t empty[stages];
        float row_scale[rows]; /* with the softmax's, a thread's two side by side; of rows that are shared: as q_scale has them */
        float l[2][128 * groups]; /* each thread's, which it rarely needs; then sums and bases of each warpgroup's rows */
        uint32_t left[groups];    /* where warpgroups have the same rows: the stage that has one's part of O */
        uint64_t q_free;          /* there, too: nobody reads Q and row_scale any more */
    };
    struct Walking : Common {
        alignas(16) float q_scale[2][rows];
        uint64_t tile_free[2]; /* nobody reads Q, scales, means and `where` of the tile any more */
        WalkPlace where[2];
    };
    using Shared = typename Either<Walks, Walking, Common>::type;
    static constexpr bool pairs = Splits == 2 && abreast == 2;
    static_assert(Splits == 1 || Splits == Groups || (pairs && Dim == 64), "all warpgroups have the same rows, or two");
    static_assert(Splits == 1 || (stages % Splits == 0 && stages >= 2 * Splits), "a stage is of one share of the keys");
    static_assert(Splits == 1 || 64 * Dim * 4 <= Dim * keys + keys * qk_row, "a stage has room for O beside its ones");
    static_assert(sizeof(Shared) <= 227 * 1024, "more than a block gets");
    static_assert(Dim <= 128, "a thread of a warpgroup looks after a channel at most");
    static_assert(!Walks || (Splits == 1 && Groups == TD_HOPPER_GROUPS(d) && !Dump), "as many warpgroups as there are");
    static_assert(sizeof(Shared) == (Walks ? TD_HOPPER_WALK_SHARED_BYTES(d)
                                           : TD_HOPPER_SHARED_BYTES(d, unsigned(Groups), unsigned(Splits))),
                  "the launch asks for another size");
};

/* Whether floats of a base's size are too far apart for P to be made with one rounding; see params.h. */
__device__ __forceinline__ bool is_far(float base)
{
    return fabsf(base) >= TD_FAR_BASE && base != -CUDART_INF_F;
}

/* log2 of P of a score of s times c. */
__device__ __forceinline__ float exponent(float s, float c, float base)
{
    return is_far(base) ? __fsub_rn(__fmul_rn(s, c), base) : __fmaf_rn(s, c, -base);
}

/* The base by which P of a score is 2^below, or 1 where that would be far. */
__device__ __forceinline__ float base_below(float score, float below)
{
    const float next = __fsub_rn(score, below);

    return is_far(score) || is_far(next) ? score : next;
}

/* A base that is far is rare, so nobody asks: where a warp has one, its first lane's is NaN meanwhile, and so is that one's P, of
 * which each step finds that it may have passed its limit. The lane's neighbours have the same rows and know. */
__device__ __forceinline__ bool any_far(const float (&top)[2])
{
    return __any_sync(~0u, is_far(top[0]) | is_far(top[1]));
}
__device__ __forceinline__ void hide_base(float (&top)[2])
{
    if ((tid_x() & 31) == 0)
        top[0] = CUDART_NAN_F;
}
__device__ __forceinline__ void show_base(float (&top)[2])
{
    const int lane = tid_x() & 31;

    top[0] = __shfl_sync(~0u, top[0], lane ? lane : 1);
}

/* Where byte `at` of a tile of rows of Row bytes lies: 16-byte pieces are exchanged, so that 8 rows meet 8 banks. */
template <int Row> __device__ __forceinline__ uint32_t swizzled(uint32_t at)
{
    return at ^ (at >> 7 & (Row / 16 - 1)) << 4;
}

/* What wgmma wants to know of a tile of rows of Row bytes in shared memory, rows one group of 8 after another: the low
 * word is its address in 16 bytes, and one for a distance that these layouts do not have. */
__device__ __forceinline__ uint32_t tile_word(const void *tile)
{
    return 1u << 16 | shared_address(tile) >> 4;
}
template <int Row> __device__ __forceinline__ uint64_t descriptor(uint32_t word)
{
    constexpr uint32_t swizzle = Row == 128 ? 1 : Row == 64 ? 2 : 3;

    return uint64_t(swizzle << 30 | 8 * Row >> 4) << 32 | word;
}

struct RingPlace {
    uint32_t stage, parity;

    template <int Stages, int By = 1> __device__ __forceinline__ void next()
    {
        stage += By;
        if (stage >= Stages) {
            stage -= Stages;
            parity ^= 1;
        }
    }
};

__device__ __forceinline__ void wait_for(const uint64_t &barrier, uint32_t parity)
{
    while (!mbarrier_try_wait(shared_address(&barrier), parity)) {
    }
}

/* All of the warp are done with a stage. One lane says so: 32 arrivals would be 32 atomic operations. */
__device__ __forceinline__ void warp_arrive(uint64_t &barrier)
{
    __syncwarp();
    if (elect_sync())
        mbarrier_arrive(shared_address(&barrier));
}

/* Starts copying Rows rows of Bytes bytes into swizzled rows of Row bytes, by 128 threads: as many neighbours share a
 * row as its pieces of 16 bytes allow. Eight rows further the swizzle is the same, so a thread needs few addresses. */
template <int Rows, int Bytes, int Row>
__device__ __forceinline__ void copy_swizzled(void *shared, const uint8_t *global, int64_t stride, int t)
{
    constexpr int pieces = Bytes / 16, abreast = pieces & -pieces, at_once = 128 / abreast; /* a power of two; rows */
    static_assert(Rows % at_once == 0 && (at_once % 8 == 0 || 8 % at_once == 0), "every thread copies as much");
    const int row = t / abreast, byte = t % abreast * 16;
    const uint8_t *from = global + row * stride + byte;
    const int64_t further = at_once * stride;

#pragma unroll
    for (int r = 0; r < Rows; r += at_once) {
#pragma unroll
        for (int piece = 0; piece < pieces; piece += abreast)
            cp_async_16(shared_address(shared) +
                            swizzled<Row>(uint32_t((row + r % 8) * Row + byte + piece * 16)) + uint32_t(r / 8 * 8 * Row),
                        from + piece * 16);
        from += further;
    }
}

struct HopperPlace : PlaceOf<int64_t> {
    int steps; /* of T::keys keys */
};

/* Where the scale of a row is: next to that of the other one that a thread has, of its warp's 16. */
__device__ __forceinline__ int place_of_row(int row)
{
    return (row & ~15) | (row & 7) << 1 | (row >> 3 & 1);
}

/* What a consumer adds up; rows g and g + 8 of its warp's 16. */
template <class T> struct Sums {
    uint32_t r[T::columns / 4]; /* two channels of a row each */
    float o[T::dim / 2];
    float l[2], top[2], scale[2]; /* P = 2^(S scale - top); scale: of rows, softmax and keys */

    /* row_scale: of all rows, with the softmax's in it, those of a thread side by side (place_of_row()). */
    __device__ __forceinline__ void set_scale(const float *row_scale, float key_scale)
    {
        const float2 mine = *reinterpret_cast<const float2 *>(row_scale + uint32_t(tid_x()) / 4 * 2);

        scale[0] = __fmul_rn(mine.x, key_scale);
        scale[1] = __fmul_rn(mine.y, key_scale);
    }

    /* The same where the softmax's is not in it. */
    __device__ __forceinline__ void set_scale(const float *row_scale, float key_scale, float softmax_scale)
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
    static constexpr uint32_t kLimitCode = (7 + uint32_t(TD_LATE_LIMIT_LOG2)) << 3; /* e4m3 of a power of two */
    static constexpr int kMasked = INT32_MIN, kBad = INT32_MIN + 1; /* stand for S: a key out of reach, a bad one */

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
    __device__ __forceinline__ void mask(const float *k_scale, int lane, int first_key, int end, int reach)
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

    /* Whether a P may pass the limit whose score is `here` once it is rounded, which P is not made of. */
    __device__ __forceinline__ static bool too_high(float here, float base)
    {
        const float high = __fsub_rn(here, base);

        return (is_far(base) ? high : __fmaf_rn(fabsf(here), TD_HALF_STEP, high)) > TD_LATE_LIMIT_LOG2;
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

    /* Whether a code of P of a half is the limit's or above, as it is wherever P would pass the limit: a sign of
     * `exceeds` that costs a third of it. No code has its top bit set, so there is no carry from one to the next. */
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

    /* Gives rows another base; `here` becomes the factor for what has been added up by the old one. */
    template <int Apart> __device__ __forceinline__ void rebase(float (&here)[2], float *l)
    {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            here[row] = quad_max(here[row]);
            const float next = too_high(here[row], top[row]) ? base_below(here[row], kBaseLog2) : top[row];

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

    /* P of pieces Begin to End - 1 of a half, 16 keys each. `Again` heeds far bases, and converts S, which is exact, by another
     * instruction: else the compiler keeps the floats of the first try for the second, where it lacks the registers. */
    template <int Half, int Begin, int End, bool Again = false> __device__ __forceinline__ void exponentials()
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
            if (__any_sync(~0u, moves | far)) /* a vote, or the compiler does not see that the warp agrees */
                exponentials<Half, 0, kPieces, true>();
            if (far)
                hide_base(top);
        }
    }
};

/* Whether all of the warp's threads have one scale for their keys, four of a step, as they do unless a key is bad. */
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

/* For tests: S and codes of P of a half, R before it begins anew. `row` is the warp's in [bh][q_pad]. On the emulator all kernels
 * have these, R only where warpgroups share no keys. */
template <class T, int Half>
__device__ __forceinline__ void dump_s(const td_params_attention &p, const Consumer<T> &c, int64_t row, int lane,
                                       int key)
{
    if (!p.dump_s)
        return;
#pragma unroll
    for (int i = 0; i < T::keys / 4; i++)
        p.dump_s[(row + fragment_row(lane, i % 4)) * p.kv_pad + key + Half * T::keys / 2 +
                 fragment_column(lane, i / 4, i % 4)] = c.s[i];
}
template <class T, int Half>
__device__ __forceinline__ void dump_p(const td_params_attention &p, const Consumer<T> &c, int64_t row, int lane,
                                       int key)
{
    if (!p.dump_p)
        return;
#pragma unroll
    for (int i = 0; i < T::keys / 4; i++)
        p.dump_p[(row + fragment_row(lane, i % 4)) * p.kv_pad + key + Half * T::keys / 2 +
                 fragment_column(lane, i / 4, i % 4)] =
            uint8_t(c.p[Half][i / 16][2 * (i / 8 % 2) + i % 4 / 2] >> (16 * (i / 4 % 2) + 8 * (i % 2)));
}
template <class T>
__device__ __forceinline__ void dump_r(const td_params_attention &p, const Sums<T> &c, int64_t row, int lane, int step)
{
    if (!p.dump_r)
        return;
    const int64_t each = TD_HOPPER_SUMS(p.kv_pad, T::d), at = step * T::keys / int(TD_HOPPER_R_KEYS);

#pragma unroll
    for (int i = 0; i < T::dim / 2; i++) {
        const float2 pair = c.pair_of_r(i / 2);

        p.dump_r[((row + fragment_row(lane, i % 4)) * each + at) * T::dim + fragment_column(lane, i / 4, i % 4)] =
            i % 2 ? pair.y : pair.x;
    }
}

/* K of a step, and the keys' scales. */
template <class T>
__device__ __forceinline__ void fetch_k(typename T::Stage &to, const uint8_t *k, const float *k_scale, int t)
{
    copy_swizzled<T::keys, T::dim, T::qk_row>(to.k, k, T::dim, t);
    if (t < T::keys / 4)
        cp_async_16(shared_address(to.k_scale + 4 * t), k_scale + 4 * t);
}

/* --- Warpgroups that share keys --- */

/* The tile number n of this block: of all tiles every gridDim.x-th, forwards and backwards in turn, as with a mask the
 * longest come first. steps: -1 behind the last one. */
template <class T> __device__ __forceinline__ HopperPlace split_place(const td_params_attention &p, uint32_t n)
{
    uint32_t words[3] = {(p.o.rows + T::rows - 1) / T::rows, p.planes, p.heads};
    forget(words); /* else all that divides by them is kept in registers from one tile to the next */
    const uint32_t tiles = words[0], planes = words[1], heads = words[2];
    const uint32_t number = n * gridDim.x + (n % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    HopperPlace at = {};

    at.steps = -1;
    if (number < planes * tiles) {
        const uint32_t by = p.causal ? planes : tiles, whole = number / by, rest = number % by;
        const uint32_t bh = p.causal ? rest : whole, tile = p.causal ? tiles - 1 - whole : rest;

        at = {place_of<T, int64_t>(p, bh, int(tile), heads), 0};
        at.steps = (at.keys + T::keys - 1) / T::keys;
    }
    return at;
}

/* Of the first steps of a tile, how many are warpgroup number `split`'s. */
template <class T> __device__ __forceinline__ int share(int steps, int split)
{
    return (steps - split + T::splits - 1) / T::splits;
}

/* K of the step that each share of the keys begins with, into stages from `place` on: `wait` waits for them. */
template <class T, class Wait>
__device__ __forceinline__ void fetch_first(typename T::Shared &shared, const td_params_attention &p, const HopperPlace &at,
                                            RingPlace place, Wait wait)
{
    const uint8_t *k = (const uint8_t *)p.k_codes + at.bhk * p.kv_pad * T::dim;
    const float *k_scale = p.k_scale + at.bhk * p.kv_pad;

#pragma unroll 1
    for (int fetch = 0; fetch < T::splits; fetch++) {
        wait(place);
        if (fetch < at.steps)
            fetch_k<T>(shared.stage[place.stage], k, k_scale, int(threadIdx.x) % 128);
        place.next<T::stages>();
        k += T::keys * T::dim;
        k_scale += T::keys;
    }
}

/* What the warpgroups share of a tile besides: Q, scales of its rows and of channels, means. */
template <class T>
__device__ __forceinline__ void fetch_rows(typename T::Shared &shared, const td_params_attention &p, const HopperPlace &at,
                                           uint32_t n)
{
    const int t = int(threadIdx.x) % 128;
    const int64_t q_row = at.bh * p.q_pad + at.row0, channel = at.bhk * T::dim + t % 32 * 4;

    copy_swizzled<T::rows, T::dim, T::qk_row>(shared.q[0], (const uint8_t *)p.q_codes + q_row * T::dim, T::dim, t);
    if (t < T::rows / 4)
        cp_async_16(shared_address(shared.row_scale + 4 * t), p.q_scale + q_row + 4 * t);
    else if (t >= 32 && t < 32 + T::dim / 4)
        cp_async_16(shared_address(shared.v_scale[n % 2] + t % 32 * 4), p.v_scale + channel);
    else if (t >= 64 && t < 64 + T::dim / 4)
        cp_async_16_or_zero(shared_address(shared.v_mean[n % 2] + t % 32 * 4),
                            p.v_mean ? p.v_mean + channel : p.v_scale, p.v_mean ? 16 : 0);
}

/* Each share of the keys has its stages, and as many fetches of a tile as the others: fetch number n is for share n % splits
 * and holds K of step n and V of step n - splits, where these are. Whoever has waited for its first one has fetch_rows(), too.
 * at: the first tile, whose first fetches are under way. */
template <class T>
__device__ __forceinline__ void produce_split(typename T::Shared &shared, const td_params_attention &p, HopperPlace at)
{
    const int t = int(threadIdx.x) % 128;
    RingPlace place = {0, 1};
    const auto wait = [&](RingPlace to) {
        if (t < 32) /* four warps that poll would cost issue slots */
            wait_for(shared.empty[to.stage], to.parity);
        bar_sync<128>(6);
    };

#pragma unroll 1
    for (uint32_t n = 0; at.steps >= 0; at = split_place<T>(p, ++n)) {
        if (n > 0) {
            fetch_first<T>(shared, p, at, place, wait);
            wait_for(shared.q_free, (n - 1) % 2);
            bar_sync<128>(6); /* for racecheck, which follows an arrival of a warp's one lane for that lane alone */
            fetch_rows<T>(shared, p, at, n);
        }
        const uint8_t *k = (const uint8_t *)p.k_codes + (at.bhk * p.kv_pad + T::splits * T::keys) * T::dim;
        const uint8_t *v = (const uint8_t *)p.v_codes + at.bhk * p.kv_pad * T::dim;
        const float *k_scale = p.k_scale + at.bhk * p.kv_pad + T::splits * T::keys;
        const int fetches = (at.steps + 2 * T::splits - 1) / T::splits * T::splits;

#pragma unroll 1
        for (int fetch = 0; fetch < fetches; fetch++) {
            if (fetch >= T::splits) {
                wait(place);
                if (fetch < at.steps) {
                    fetch_k<T>(shared.stage[place.stage], k, k_scale, t);
                    k += T::keys * T::dim;
                    k_scale += T::keys;
                }
                if (fetch - T::splits < at.steps) {
                    copy_swizzled<T::dim, T::keys, T::keys>(shared.stage[place.stage].v, v, p.kv_pad, t);
                    v += T::keys;
                }
            }
            cp_async_arrive(shared_address(&shared.full[place.stage]));
            place.next<T::stages>();
        }
    }
    cp_async_wait<0>();
}

/* What a thread of a warpgroup that shares no keys has on its way besides Q: scales of a row and of its keys of the first
 * step, and of a channel, whose mean is the last. */
struct HopperLoads {
    float q_scale, v_scale, v_mean;
    float2 low, high;
};

template <class T>
__device__ __forceinline__ HopperLoads load_rows(typename T::Shared &shared, const td_params_attention &p, const HopperPlace &at)
{
    const int thread = int(threadIdx.x) % 128, group = int(threadIdx.x) / 128;
    const int64_t q_row = at.bh * p.q_pad + min(at.row0 + 64 * group, int(p.q_pad) - 64);
    const float *k_scale = p.k_scale + at.bhk * p.kv_pad + 2 * (thread % 32);
    const bool has_channel = thread < T::dim;
    HopperLoads loads;

    copy_swizzled<64, T::dim, T::qk_row>(shared.q[0] + group * 64 * T::qk_row,
                                         (const uint8_t *)p.q_codes + q_row * T::dim, T::dim, thread);
    cp_async_commit();
    loads.q_scale = thread < 64 ? p.q_scale[q_row + thread] : 0.0f;
    loads.v_scale = has_channel ? p.v_scale[at.bhk * T::dim + thread] : 0.0f;
    loads.v_mean = has_channel && p.v_mean ? p.v_mean[at.bhk * T::dim + thread] : 0.0f;
    loads.low = *reinterpret_cast<const float2 *>(k_scale);
    loads.high = *reinterpret_cast<const float2 *>(k_scale + 64);
    return loads;
}

/* Fetch number n holds V of step n - 1 and K of step n: what the consumers need at the same time. K of the first step is on
 * its way. Every thread arrives for
 * its own copies: racecheck does not follow a lane that does so for its warp, and it costs nothing here. */
template <class T>
__device__ __forceinline__ void produce(typename T::Shared &shared, const td_params_attention &p, const HopperPlace &at)
{
    const int t = int(threadIdx.x) % 128;
    const uint8_t *k = (const uint8_t *)p.k_codes + at.bhk * p.kv_pad * T::dim;
    const uint8_t *v = (const uint8_t *)p.v_codes + at.bhk * p.kv_pad * T::dim - T::keys;
    const float *k_scale = p.k_scale + at.bhk * p.kv_pad;
    RingPlace place = {0, 1};
    uint32_t before = 0;

#pragma unroll 1
    for (int fetch = 0; fetch <= at.steps; fetch++) {
        typename T::Stage &to = shared.stage[place.stage];

        if (fetch > 0) {
            if (t < 32) /* four warps that poll would cost issue slots */
                wait_for(shared.empty[place.stage], place.parity);
            bar_sync<128>(6);
            if (fetch < at.steps)
                fetch_k<T>(to, k, k_scale, t);
            copy_swizzled<T::dim, T::keys, T::keys>(to.v, v, p.kv_pad, t);
        }
        cp_async_commit();
        if (fetch > 0) { /* the fetch before this one is there */
            cp_async_wait<1>();
            fence_proxy_async();
            mbarrier_arrive(shared_address(&shared.full[before]));
        }
        before = place.stage;
        place.next<T::stages>();
        k += T::keys * T::dim;
        k_scale += T::keys;
        v += T::keys;
    }
    cp_async_wait<0>();
    fence_proxy_async();
    mbarrier_arrive(shared_address(&shared.full[before]));
}

/* --- Blocks that walk --- */

/* The tile number n of this block. Without a mask of all tiles every gridDim.x-th. With one, heads come by as many as have
 * chunk_planes, of each such chunk the longest tiles of all its heads first, or last in every second one, so that tiles of
 * like length meet where chunks do; and blocks take them forwards and backwards in turn. */
template <class T> __device__ __forceinline__ WalkPlace walk_place(const td_params_attention &p, uint32_t n)
{
    uint32_t words[3] = {(p.o.rows + T::rows - 1) / T::rows, p.planes, p.chunk_planes};
    forget(words); /* else all that divides by them is kept in registers from one tile to the next */
    const uint32_t tiles = words[0], planes = words[1], each = words[2];
    const uint32_t number = n * gridDim.x + (p.causal && n % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);

    if (number >= planes * tiles)
        return {0, -1};
    if (!p.causal)
        return {number / tiles, int(number % tiles)};
    const uint32_t chunk = number / (each * tiles), first = chunk * each, rest = number - first * tiles;
    const uint32_t here = min(each, planes - first), whole = rest / here, chunks = (planes + each - 1) / each;

    return {first + rest % here, int((chunks - chunk) % 2 ? tiles - 1 - whole : whole)};
}

template <class T> __device__ __forceinline__ HopperPlace walk_to(const td_params_attention &p, WalkPlace where)
{
    uint32_t heads[1] = {p.heads};
    forget(heads);
    HopperPlace at = {place_of<T, int64_t>(p, where.bh, where.tile, heads[0]), 0};

    at.steps = (at.keys + T::keys - 1) / T::keys;
    return at;
}

/* Q, scales of its rows, which may end in a warpgroup's, and of channels, means. */
template <class T>
__device__ __forceinline__ void fetch_tile(typename T::Shared &shared, const td_params_attention &p, const HopperPlace &at,
                                           uint32_t n)
{
    const int t = int(threadIdx.x) % 128, of = int(n % 2);
    const int64_t channel = at.bhk * T::dim + t % 32 * 4;

#pragma unroll 1
    for (int group = 0; group < T::groups; group++) {
        const int64_t q_row = at.bh * p.q_pad + min(at.row0 + 64 * group, int(p.q_pad) - 64);

        copy_swizzled<64, T::dim, T::qk_row>(shared.q[of] + group * 64 * T::qk_row,
                                             (const uint8_t *)p.q_codes + q_row * T::dim, T::dim, t);
        if (t < 16)
            cp_async_16(shared_address(shared.q_scale[of] + 64 * group + 4 * t), p.q_scale + q_row + 4 * t);
    }
    if (t < T::dim / 4)
        cp_async_16(shared_address(shared.v_scale[of] + t % 32 * 4), p.v_scale + channel);
    else if (t >= 32 && t < 32 + T::dim / 4)
        cp_async_16_or_zero(shared_address(shared.v_mean[of] + t % 32 * 4), p.v_mean ? p.v_mean + channel : p.v_scale,
                            p.v_mean ? 16 : 0);
}

/* What is first fetched of a tile. */
template <class T>
__device__ __forceinline__ void fetch_begin(typename T::Shared &shared, const td_params_attention &p, const HopperPlace &at,
                                            uint32_t n, uint32_t stage)
{
    fetch_tile<T>(shared, p, at, n);
    if (at.steps > 0)
        fetch_k<T>(shared.stage[stage], (const uint8_t *)p.k_codes + at.bhk * p.kv_pad * T::dim,
                   p.k_scale + at.bhk * p.kv_pad, int(threadIdx.x) % 128);
}

/* As produce(), tile after tile; the first fetch of a tile has what fetch_tile() brings, too. Which tile it is, or that there
 * is none, is said in front of it. at: the first tile, whose first fetch is under way. */
template <class T>
__device__ __forceinline__ void produce_walk(typename T::Shared &shared, const td_params_attention &p, HopperPlace at)
{
    const int t = int(threadIdx.x) % 128;
    RingPlace place = {0, 1};
    uint32_t before = 0, cancel = 0;
    const auto wait = [&] {
        if (t < 32) /* four warps that poll would cost issue slots */
            wait_for(shared.empty[place.stage], place.parity);
    };
    const auto arrive = [&] {
        fence_proxy_async();
        mbarrier_arrive(shared_address(&shared.full[before]));
    };

#pragma unroll 1
    for (uint32_t n = 0;; n++) {
        if (n > 0) {
            if (t < 32) {
                const WalkPlace next = cancel ? WalkPlace{0, -1} : walk_place<T>(p, n);

                wait();
                if (n > 1)
                    wait_for(shared.tile_free[n % 2], (n / 2 - 1) % 2);
                if (t == 0)
                    shared.where[n % 2] = next;
            }
            bar_sync<128>(6);
            const WalkPlace where = shared.where[n % 2];

            if (where.tile < 0)
                break;
            at = walk_to<T>(p, where);
            fetch_begin<T>(shared, p, at, n, place.stage);
            cp_async_commit();
            cp_async_wait<1>();
            arrive();
        } else {
            cp_async_commit();
        }
        const uint8_t *k = (const uint8_t *)p.k_codes + at.bhk * p.kv_pad * T::dim;
        const uint8_t *v = (const uint8_t *)p.v_codes + at.bhk * p.kv_pad * T::dim;
        const float *k_scale = p.k_scale + at.bhk * p.kv_pad;

        if (p.cancel && t == 0)
            cancel = *(const volatile uint32_t *)p.cancel; /* there when the tile ends, as it may come from afar */
        before = place.stage;
        place.next<T::stages>();
#pragma unroll 1
        for (int fetch = 1; fetch <= at.steps; fetch++) {
            typename T::Stage &to = shared.stage[place.stage];

            k += T::keys * T::dim;
            k_scale += T::keys;
            wait();
            bar_sync<128>(6);
            if (fetch < at.steps)
                fetch_k<T>(to, k, k_scale, t);
            copy_swizzled<T::dim, T::keys, T::keys>(to.v, v, p.kv_pad, t);
            v += T::keys;
            cp_async_commit();
            cp_async_wait<1>(); /* the fetch before this one is there */
            arrive();
            before = place.stage;
            place.next<T::stages>();
        }
    }
    cp_async_wait<0>();
    arrive();
    mbarrier_arrive(shared_address(&shared.full[place.stage]));
}

__device__ __forceinline__ void write_lse(const td_params_attention &p, int64_t bh, int64_t row, int lane, float top,
                                          float l)
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

    p.lse[plane / p.heads * p.lse_stride_batch + plane % p.heads * p.lse_stride_head + row * p.lse_stride_row] = lse;
}

__device__ __forceinline__ uint32_t pack2(__half *, float x0, float x1)
{
    const __half2 pair = __floats2half2_rn(x0, x1);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof bits);
    return bits;
}
__device__ __forceinline__ uint32_t pack2(__nv_bfloat16 *, float x0, float x1)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x0, x1);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

/* x[i] of a quad's thread q becomes what x[q] of thread i was. */
__device__ __forceinline__ void transpose_quad(uint32_t (&x)[4], int q)
{
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!(i & bit)) {
                const uint32_t got = __shfl_xor_sync(~0u, q & bit ? x[i] : x[i + bit], bit);

                x[i] = q & bit ? got : x[i];
                x[i + bit] = q & bit ? x[i + bit] : got;
            }
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

/* O of rows g and g + 8, from channel `first` on; rows without any key are 0. A warp meets this code once, and to fetch an
 * instruction takes longer than to execute it. So where all of its rows have keys and the addresses allow it, two-byte elements
 * go without a choice for each, and as 8 bytes a thread, for which neighbours exchange a word of two. */
template <class T, class E>
__device__ __forceinline__ void write_o(const td_params_attention &p, int64_t bh, const float *v_scale,
                                        const float *v_mean, int row0, int lane, const Sums<T> &c, int first)
{
    const int rows = int(p.o.rows) - row0 - lane / 4, left = int(p.o.dim) - first; /* of this thread: 0 and 8, if below */
    const uint32_t plane = uint32_t(bh);
    /* Above 128 channels the branch would have something spilt. */
    const int64_t head = T::dim <= 128 ? plane_offset(p, plane)
                                       : plane / p.heads * p.o.stride_batch + plane % p.heads * p.o.stride_head;
    E *to = static_cast<E *>(p.o.data) + head + (row0 + lane / 4) * p.o.stride_row + first;
    const int64_t eight = 8 * p.o.stride_row;
    using Two = std::conditional_t<sizeof(E) == 2, E, __half>;
    const bool some[2] = {c.l[0] != 0.0f, c.l[1] != 0.0f};
    const bool wide = sizeof(E) == 2 && __all_sync(~0u, some[0] && some[1] && reinterpret_cast<uint64_t>(to) % 8 == 0 &&
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
                const float2 scale = of_channel(v_scale, channel), mean = of_channel(v_mean, channel);

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
__device__ __forceinline__ void write_rows(const td_params_attention &p, int64_t bh, const float *v_scale,
                                           const float *v_mean, int row0, int lane, const Sums<T> &c, int first = 0)
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

/* Sums of some channels. */
template <int Dim> struct HopperHalf {
    static constexpr int dim = Dim, columns = Dim + 8;
};

/* Where channels of a row of O lie that a warpgroup leaves for others: in K and V of a stage, but for V's ones. Eight
 * channels are exchanged, so that 8 rows meet all banks. */
template <class T> __device__ __forceinline__ float *left_o(typename T::Stage &stage, int row, int channel)
{
    constexpr int mask = T::dim % 64 ? 3 : 7;

    return reinterpret_cast<float *>(stage.k) + row * T::dim + (channel ^ (row & mask) * 8);
}

/* Four neighbours in a row of O, of which there are `dim`. */
template <class E> __device__ __forceinline__ void write_four(E *to, int channel, int dim, const float (&x)[4])
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

/* Of a row that the warpgroups have left their parts of: bases are made the largest of them, and what has been added up is
 * added up in the warpgroups' order. Instead of bases, factors for the parts; instead of the first sum, one divided by all. */
template <class T>
__device__ __forceinline__ void weigh(typename T::Shared &shared, const td_params_attention &p, const HopperPlace &at, int row)
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
__device__ __forceinline__ void put_together(typename T::Shared &shared, const td_params_attention &p, const HopperPlace &at,
                                             uint32_t n)
{
    constexpr int fours = T::dim / 4, abreast = 128 * T::splits / fours; /* rows */
    const int t = tid_x(), channel = t % fours * 4, rows = min(64, int(p.o.rows) - at.row0);
    E *to = static_cast<E *>(p.o.data) + plane_offset(p, uint32_t(at.bh)) + (at.row0 + t / fours) * p.o.stride_row;
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
        const float y[4] = {some ? __fadd_rn(__fmul_rn(__fmul_rn(x[0], part), scale.x), mean.x) : 0.0f,
                            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[1], part), scale.y), mean.y) : 0.0f,
                            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[2], part), scale.z), mean.z) : 0.0f,
                            some ? __fadd_rn(__fmul_rn(__fmul_rn(x[3], part), scale.w), mean.w) : 0.0f};
        write_four(to, channel, int(p.o.dim), y);
        to += abreast * p.o.stride_row;
    }
}

/* Leaves this warpgroup's part in `stage`, which nobody uses any more, and writes some of what all parts make. */
template <class T>
__device__ __forceinline__ void merge(typename T::Shared &shared, const td_params_attention &p, const HopperPlace &at,
                                      uint32_t n, uint32_t stage, const Sums<T> &c)
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
            *reinterpret_cast<float2 *>(left_o<T>(shared.stage[stage], row, fragment_column(lane, j, 0))) =
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

/* What two warpgroups with the same rows make of both parts' channels; `Split`: which share of the keys this one has had. */
template <int Split, int N>
__device__ __forceinline__ void combine(float (&mine)[N], const float4 *theirs, const float (&by)[2][2])
{
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const float4 got = theirs[128 * i];
        const float other[4] = {got.x, got.y, got.z, got.w};

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float first = Split ? other[j] : mine[4 * i + j], second = Split ? mine[4 * i + j] : other[j];

            mine[4 * i + j] = __fmaf_rn(second, by[j / 2][1], __fmul_rn(first, by[j / 2][0]));
        }
    }
}

/* Of two warpgroups with the same rows each leaves half of its channels in `stage`, which neither it nor the other one with
 * these keys uses any more, and writes the other half, with that of the other. As weigh() and put_together() do it. */
template <class T>
__device__ __forceinline__ void merge_pair(typename T::Shared &shared, const td_params_attention &p, const HopperPlace &at,
                                           uint32_t n, uint32_t stage, Sums<T> &c)
{
    using Half = HopperHalf<T::dim / 2>;
    constexpr int half = T::dim / 4, part_floats = 128 * half;
    const int thread = tid_x() & 127, group = __shfl_sync(~0u, tid_x() >> 7, 0), lane = thread & 31;
    const int split = group / T::abreast, part = group % T::abreast, other = (split ^ 1) * T::abreast + part;
    const int row0 = thread >> 5 << 4;
    const uint32_t pair_barrier = uint32_t(3 + part);
    float4 *left = reinterpret_cast<float4 *>(reinterpret_cast<float *>(shared.stage[stage].k) + part * part_floats) + thread;
    Sums<Half> mine;

    show_base(c.top);
    bar_sync<128 * T::abreast>(uint32_t(1 + split)); /* all of their warps have read V and their sums */
    if (thread == 0)
        shared.left[group] = stage;
    const auto give = [&](int from) {
#pragma unroll
        for (int i = 0; i < half / 4; i++)
            left[128 * i] = make_float4(c.o[from + 4 * i], c.o[from + 4 * i + 1], c.o[from + 4 * i + 2], c.o[from + 4 * i + 3]);
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
        const float l = shared.l[0][at_row], base = shared.l[1][at_row], top = fmaxf(base, c.top[row]);
        const float here = c.top[row] == top ? 1.0f : ex2(__fsub_rn(c.top[row], top));
        const float there = base == top ? 1.0f : ex2(__fsub_rn(base, top));

        by[row][0] = split ? there : here;
        by[row][1] = split ? here : there;
        mine.l[row] = __fmaf_rn(split ? c.l[row] : l, by[row][1], __fmul_rn(split ? l : c.l[row], by[row][0]));
        mine.top[row] = top;
    }
    const float4 *from = reinterpret_cast<const float4 *>(
                             reinterpret_cast<const float *>(shared.stage[shared.left[other]].k) + part * part_floats) +
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
    write_rows<Half>(p, at.bh, shared.v_scale[n % 2], shared.v_mean[n % 2], at.row0 + 64 * part + row0, lane, mine,
                     split * (T::dim / 2));
}

/* The tile that consume() has, behind its loop: where long blocks walk it is found anew, as registers are few. */
template <class T>
__device__ __forceinline__ HopperPlace again(const typename T::Shared &shared, const td_params_attention &p,
                                             const HopperPlace &at, uint32_t n)
{
    if constexpr (T::walks)
        return walk_to<T>(p, shared.where[n % 2]);
    else
        return at;
}

/* A tile, of which K of the first step is or comes in stage `now`. n: where blocks walk, this block's tile number n. */
template <class T>
__device__ __forceinline__ void consume(typename T::Shared &shared, const td_params_attention &p, const HopperPlace &at,
                                        RingPlace &now, const HopperLoads &loads, uint32_t n = 0)
{
    constexpr int pieces = Consumer<T>::kPieces, apart = 128 * T::groups;
    const int thread = int(threadIdx.x) % 128, lane = thread % 32, warp = thread / 32;
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0); /* the compiler sees that a warp agrees on it */
    const int part = group % T::abreast, split = group / T::abreast, group_row = at.row0 + 64 * part;
    const int past = int(p.kv_len) - int(p.o.rows), end = int(p.kv_len);
    const int free_keys = p.causal ? min(end, group_row + past + 1) : end; /* that all rows may attend to */
    const int keys = p.causal ? min(end, min(group_row + 64, int(p.o.rows)) + past) : end;
    const int steps = group_row < int(p.o.rows) ? share<T>((max(0, keys) + T::keys - 1) / T::keys, split) : 0;
    const int free_steps = share<T>(max(0, free_keys) / T::keys, split);
    const int64_t dump_row = at.bh * p.q_pad + min(group_row, int(p.q_pad) - 64) + 16 * warp;
    const uint32_t q_tile = tile_word(shared.q[T::walks ? n % 2 : 0]) + uint32_t((group_row - at.row0) * T::qk_row / 16);
    const uint32_t k_tile = tile_word(shared.stage[0].k), v_tile = tile_word(shared.stage[0].v);
    constexpr uint32_t stage_words = sizeof(typename T::Stage) / 16;
    Consumer<T> c;
    const auto sums = [&] { return &shared.l[0][tid_x()]; };
    const auto key_of = [&](int step) { return (step * T::splits + split) * T::keys; };

#pragma unroll
    for (int row = 0; row < 2; row++) {
        c.top[row] = -CUDART_INF_F;
        shared.l[row][threadIdx.x] = 0.0f;
    }
    float key_scale;
    bool odd = false; /* keys of the step are masked or bad */
    /* The scale of a thread's keys, and whether the step is odd. */
    const auto look = [&](const float *k_scale, int step) {
        const float2 low = *reinterpret_cast<const float2 *>(k_scale + 2 * lane);
        const float2 high = *reinterpret_cast<const float2 *>(k_scale + 64 + 2 * lane);

        key_scale = low.x;
        return !scales_agree(low, high) || step >= free_steps;
    };
#pragma unroll
    for (int i = 0; i < T::dim / 2; i++)
        c.o[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < T::columns / 4; i++)
        c.r[i] = 0;
    if constexpr (T::walks) {
        const int row = 64 * group + 16 * warp + lane % 16;

        if (lane < 16) /* of the warp's rows, which no other warp reads */
            shared.row_scale[place_of_row(row)] = __fmul_rn(shared.q_scale[n % 2][row], __fmul_rn(p.scale, TD_LOG2_E));
        __syncwarp();
    } else if (T::splits == 1) {
        odd = !scales_agree(loads.low, loads.high) || free_steps <= 0;
        key_scale = loads.low.x;
        if (thread < T::dim) {
            shared.v_scale[group][thread] = loads.v_scale;
            shared.v_mean[group][thread] = loads.v_mean;
        }
        if (thread < 64)
            shared.row_scale[64 * group + place_of_row(thread)] = __fmul_rn(loads.q_scale, __fmul_rn(p.scale, TD_LOG2_E));
        cp_async_wait<0>();
        fence_proxy_async();
        bar_sync<128>(1 + group);
    }

    if (steps > 0) {
        RingPlace next = now;
        /* Registers are few: what is rarely needed is found anew there. */
        const auto mask = [&](auto half, const float *k_scale, int step) {
            const int t = int(uint32_t(tid_x()) % 128u), first = p.causal ? group_row + t / 32 * 16 + past + 1 : end;

            c.template mask<decltype(half)::value>(k_scale, t & 31, (step * T::splits + split) * T::keys, end, first);
        };
        const auto set_scale = [&] {
            if (T::splits > 1)
                c.set_scale(shared.row_scale + 64 * part, key_scale, __fmul_rn(p.scale, TD_LOG2_E));
            else
                c.set_scale(shared.row_scale, key_scale);
        };
        const auto mask_first = [&](const float *k_scale, int step) {
            key_scale = largest_scale<T>(k_scale, tid_x() & 31);
            set_scale();
            mask(Number<0>(), k_scale, step);
        };

        next.next<T::stages, T::splits>();
        if (!T::walks)
            wait_for(shared.full[now.stage], now.parity);
        const float *first_scale = shared.stage[now.stage].k_scale;
        if (T::splits > 1)
            fence_proxy_async(); /* copies arrive by themselves */
        if (T::splits > 1 || T::walks)
            odd = look(first_scale, 0);
        c.template issue_qk<0>(q_tile, k_tile + now.stage * stage_words);
        wgmma_wait<0>();
        wgmma_hold(c.s);
        if (T::dump)
            dump_s<T, 0>(p, c, dump_row, lane, key_of(0));
        set_scale();
        if (odd)
            mask_first(first_scale, 0);
        c.template set_base<apart>(sums());

#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const bool more = step + 1 < steps; /* else the products of K below are of other keys, and not used */
            const uint32_t k_now = k_tile + now.stage * stage_words, k_next = k_tile + next.stage * stage_words;
            const uint32_t v_next = v_tile + next.stage * stage_words;
            const float *k_scale = shared.stage[now.stage].k_scale, *k_scale_next = shared.stage[next.stage].k_scale;

            const bool fetched = mbarrier_try_wait(shared_address(&shared.full[next.stage]), next.parity);
            c.template exponentials<0, 0, pieces / 2>();
            wgmma_wait<0>(); /* R of the step before */
            wgmma_hold(c.r);
            if (r_begins(step)) {
                if (T::dump && step > 0)
                    dump_r<T>(p, c, dump_row, lane, step - 1);
                c.template flush<apart>(sums());
            }
            c.template exponentials<0, pieces / 2, pieces>();
            c.template check<0, apart>(sums());
            if (__builtin_expect(odd, 0))
                c.template correct<0>();
            if (T::dump)
                dump_p<T, 0>(p, c, dump_row, lane, key_of(step));
            if (!fetched)
                wait_for(shared.full[next.stage], next.parity);
            if (T::splits > 1)
                fence_proxy_async();
            c.template issue_qk<1>(q_tile, k_now);
            c.template issue_pv<0>(v_next, !r_begins(step));
            wgmma_wait<1>(); /* S of the second half */
            wgmma_hold(c.s);
            if (T::dump)
                dump_s<T, 1>(p, c, dump_row, lane, key_of(step));
            if (__builtin_expect(odd, 0))
                mask(Number<1>(), k_scale, step);
            warp_arrive(shared.empty[now.stage]);

            c.template exponentials<1, 0, pieces>();
            c.template check<1, apart>(sums());
            if (__builtin_expect(odd, 0))
                c.template correct<1>();
            if (T::dump)
                dump_p<T, 1>(p, c, dump_row, lane, key_of(step));
            c.template issue_qk<0>(q_tile, k_next);
            c.template issue_pv<1>(v_next);
            odd = look(k_scale_next, step + 1);
            set_scale();
            wgmma_wait<1>(); /* S of the next step */
            wgmma_hold(c.s);
            if (T::dump && more)
                dump_s<T, 0>(p, c, dump_row, lane, key_of(step + 1));
            if (__builtin_expect(odd && more, 0))
                mask_first(k_scale_next, step + 1);
            now = next;
            next.next<T::stages, T::splits>();
        }
        wgmma_wait<0>();
        wgmma_hold(c.r);
        if (T::dump)
            dump_r<T>(p, c, dump_row, lane, steps - 1);
        c.template flush<apart>(sums());
    }
    if constexpr (!T::walks)
        launch_dependents(); /* the next call's prologue: its blocks take the places that these leave */
    const HopperPlace place = again<T>(shared, p, at, n);
    const int fetches = T::splits > 1 ? share<T>(place.steps, 0) : place.steps + 1;
    int fetch = steps;
    const auto release = [&](int end) {
        for (; fetch < end; fetch++) {
            wait_for(shared.full[now.stage], now.parity);
            warp_arrive(shared.empty[now.stage]);
            now.next<T::stages, T::splits>();
        }
    };

    release(T::walks ? steps + 1 : fetches); /* of other warpgroups; of those that share, but for the last */
    c.l[0] = sums()[0];
    c.l[1] = sums()[apart];
    if constexpr (T::splits > 1) {
        wait_for(shared.full[now.stage], now.parity); /* the last: all that fetch have seen q_free of the tile before */
        warp_arrive(shared.q_free);
        if constexpr (T::pairs)
            merge_pair<T>(shared, p, at, n, now.stage, c);
        else
            merge<T>(shared, p, at, n, now.stage, c);
        warp_arrive(shared.empty[now.stage]);
        now.next<T::stages, T::splits>();
    } else {
        const uint32_t t = uint32_t(tid_x()), of = T::walks ? n % 2 : t / 128;

        write_rows<T>(p, place.bh, shared.v_scale[of], shared.v_mean[of], place.row0 + int(t / 32 * 16), int(t % 32), c);
    }
    if constexpr (T::walks) {
        release(fetches); /* behind what takes time: the other warpgroups have their last steps meanwhile */
        warp_arrive(shared.tile_free[n % 2]);
    }
}

} // namespace td
#endif
