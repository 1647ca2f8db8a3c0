/* What the kernels on fp16 and bf16 tensors by wgmma share: a block's tiles of rows, copies of rows
 * into swizzled parts, the softmax with its late base, O's way out.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include <type_traits>

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/tensor.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "late_base.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* A tile of rows of one head. */
struct F16RowTile {
    uint32_t batch, head, kv_head;
    int row0, steps;
    int free_keys; /* that all its rows may attend to */
};

/* What this block does after a tile. */
__device__ __forceinline__ uint32_t f16_next(const td_params_attention_f16 &p, uint32_t work)
{
    return work + (p.pair == 1 ? gridDim.x : work % 2 ? 2 * gridDim.x - 1 : 1);
}

template <class T>
__device__ __forceinline__ F16RowTile f16_row_tile(const td_params_attention_f16 &p, uint32_t work)
{
    const uint32_t tiles = (p.q.rows + T::rows - 1) / T::rows;
    const uint32_t bh = work / tiles, x = work % tiles;
    const int q_len = int(p.q.rows), kv_len = int(p.k.rows), reach = kv_len - q_len + 1;
    uint32_t tile = x;
    F16RowTile at;

    if (p.causal) /* a block's tiles are long and short ones in turn; single ones begin with the
                     longest */
        tile = p.pair == 1 ? tiles - 1 - x : x % 2 ? x / 2 : tiles - 1 - x / 2;
    at.batch = 0;
    at.head = at.kv_head = bh;
    if (bh >= p.q.heads) { /* a division takes a hundred cycles */
        at.batch = bh / p.q.heads;
        at.head = at.kv_head = bh - at.batch * p.q.heads;
    }
    if (p.q.heads != p.k.heads)
        at.kv_head = at.head / (p.q.heads / p.k.heads);
    at.row0 = int(tile) * T::rows;
    int keys = kv_len;
    at.free_keys = kv_len;
    if (p.causal) {
        keys = max(0, min(kv_len, min(at.row0 + T::rows, q_len) - 1 + reach));
        at.free_keys = max(0, min(kv_len, at.row0 + reach));
    }
    at.steps = (keys + T::keys - 1) / T::keys;
    return at;
}

__device__ __forceinline__ const uint8_t *f16_rows(const td_tensor &x, int64_t batch, int64_t head,
                                                   int64_t row)
{
    return static_cast<const uint8_t *>(x.data) +
           2 * (batch * x.stride_batch + head * x.stride_head + row * x.stride_row);
}

/* Copies of Rows rows of Dim channels into parts of 128-byte swizzled rows, by so many threads: as
 * many neighbours share a row as its pieces of 16 bytes allow. Eight rows further the swizzle is
 * the same. PartRows: how many rows a part has. */
template <int Rows, int Dim, int PartRows = Rows, int Threads = 128> struct F16Copy {
    /* rows */
    static constexpr int pieces = Dim / 8, abreast = pieces & -pieces, at_once = Threads / abreast;
    static_assert(at_once % 8 == 0 && (Rows % at_once == 0 || at_once > Rows),
                  "every thread copies as much, or nothing");

    __device__ __forceinline__ static int first_row()
    {
        return int(uint32_t(tid_x()) % uint32_t(Threads) / uint32_t(abreast));
    }
    /* What this thread copies of a row begins here. */
    __device__ __forceinline__ static int first_byte()
    {
        return int(uint32_t(tid_x()) % uint32_t(abreast) * 16u);
    }
    /* Where a piece of its first row goes. */
    __device__ __forceinline__ static uint32_t place(int piece)
    {
        const uint32_t at = uint32_t(tid_x()) % uint32_t(abreast) + uint32_t(piece),
                       row = uint32_t(first_row());

        return uint32_t(at / 8 * PartRows * 128 + row * 128 + (at ^ row) % 8 * 16);
    }

    /* `from`: its first piece; `there`: of the rows, how many exist; the others become zeros. */
    __device__ __forceinline__ static void start(uint32_t to, const uint8_t *from,
                                                 int64_t stride_bytes, int there)
    {
        const int row = first_row();

        if (at_once > Rows && row >= Rows)
            return;
#pragma unroll
        for (int r = 0; r < Rows; r += at_once) {
#pragma unroll
            for (int piece = 0; piece < pieces; piece += abreast)
                cp_async_16_or_zero(to + place(piece) + uint32_t(r * 128), from + piece * 16,
                                    row + r < there ? 16 : 0);
            from += at_once * stride_bytes;
        }
    }

    /* The same where all rows exist and lie one behind the other: an instruction a piece. */
    __device__ __forceinline__ static void start_dense(uint32_t to, const uint8_t *from)
    {
        if (at_once > Rows && first_row() >= Rows)
            return;
#pragma unroll
        for (int r = 0; r < Rows; r += at_once)
#pragma unroll
            for (int piece = 0; piece < pieces; piece += abreast)
                cp_async_16(to + place(piece) + uint32_t(r * 128), from + r * 2 * Dim + piece * 16);
    }

    /* Clears the pieces that this thread copied where they hold a NaN or an infinity; the first
     * such row, or Rows. */
    __device__ __forceinline__ static int clear_bad(uint8_t *shared, uint32_t exponent)
    {
        const int row = first_row();
        int first = Rows;

        if (at_once > Rows && row >= Rows)
            return Rows;
#pragma unroll 1
        for (int piece = 0; piece < pieces; piece += abreast)
#pragma unroll 1
            for (int r = 0; r < Rows; r += at_once) {
                uint32_t *words = reinterpret_cast<uint32_t *>(shared + place(piece) + r * 128);
                bool bad = false;

#pragma unroll
                for (int i = 0; i < 4; i++)
                    bad |= (words[i] & exponent) == exponent ||
                           (words[i] & exponent << 16) == exponent << 16;
                if (bad) {
                    *reinterpret_cast<uint4 *>(words) = make_uint4(0, 0, 0, 0);
                    first = min(first, row + r);
                }
            }
        return first;
    }
};

/* S of 64 rows and a step's keys; q and k are tile_word()s. */
template <class T>
__device__ __forceinline__ void f16_issue_qk(float (&s)[T::keys / 2], uint32_t q, uint32_t k)
{
    wgmma_fence();
    wgmma_qk<false, T::bf16>(s, descriptor<128>(q), descriptor<128>(k));
#pragma unroll
    for (int step = 1; step < T::dim / 16; step++)
        wgmma_qk<true, T::bf16>(s, descriptor<128>(q + step / 4 * (64 * 8) + step % 4 * 2),
                                descriptor<128>(k + step / 4 * (T::keys * 8) + step % 4 * 2));
    wgmma_commit();
}

/* A consumer's registers; rows g and g + 8 of its warp's 16. */
template <class T> struct F16Consumer {
    using Scores = float[T::keys / 2];
    using Codes = uint32_t[T::keys / 16][4];
    float o[T::dim / 2];
    Codes p;
    float l[2], top[2]; /* P = 2^(S c - top) */

    __device__ __forceinline__ void start()
    {
#pragma unroll
        for (int i = 0; i < T::dim / 2; i++)
            o[i] = 0.0f;
        l[0] = l[1] = 0.0f;
        top[0] = top[1] = -CUDART_INF_F;
    }

    /* A finite number where a thread's scores are all finite: by one of its rows, as what is not
     * finite in K shows in all of them, and by an instruction for two scores of that row. (Of
     * finite ones above 2^63 it may be none. That costs time, and no more.) */
    __device__ __forceinline__ static float trace(const Scores &s)
    {
        float sum = __fmul_rn(s[0], s[1]);

#pragma unroll
        for (int i = 4; i < T::keys / 2; i += 4)
            sum = __fmaf_rn(s[i], s[i + 1], sum);
        return sum;
    }

    /* Of what is not finite in Q or K a score of -infinity is the one sign that P would lose. This
     * is NaN if a score of the row is not finite, else 0. */
    __device__ __forceinline__ static float zeros(const Scores &s, int row)
    {
        float sum = 0.0f;

#pragma unroll
        for (int i = 0; i < T::keys / 2; i++)
            if (i % 4 / 2 == row)
                sum = __fmaf_rn(s[i], 0.0f, sum);
        return sum;
    }

    /* And this makes NaN of all such scores. */
    __device__ __forceinline__ static void poison(Scores &s)
    {
#pragma unroll
        for (int i = 0; i < T::keys / 2; i++)
            s[i] = __fmaf_rn(s[i], 0.0f, s[i]);
    }

    /* v's word says how far it is from one part to the next. */
    __device__ __forceinline__ void issue_pv(uint32_t v)
    {
#pragma unroll
        for (int step = 0; step < T::keys / 16; step++)
            wgmma_hold(p[step]);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < T::keys / 16; step++)
            wgmma_pv<T::bf16>(o, p[step], descriptor<128>(v + step * (16 * 8)));
        wgmma_commit();
    }

    __device__ __forceinline__ static void mask(float (&s)[T::keys / 2], int lane, int first_key,
                                                int end, int reach)
    {
        const int low = min(end, reach + fragment_row(lane, 0)) - first_key - 2 * (lane % 4);
        const int high = min(end, reach + fragment_row(lane, 2)) - first_key - 2 * (lane % 4);

#pragma unroll
        for (int i = 0; i < T::keys / 2; i++)
            if (i / 4 * 8 + i % 2 >= (i % 4 < 2 ? low : high))
                s[i] = -CUDART_INF_F;
    }

    /* Scores of a step as a softmax takes them: masked where it is cut. trace() of them, or 0 if
     * they may be -infinity. No votes in here: of a loop that has them where tiles change, the
     * compiler does not see that the warp agrees. */
    __device__ __forceinline__ static float prepare(Scores &s, bool cut, int lane, int first_key,
                                                    int end, int reach)
    {
        const float seen = trace(s);

        if (!__builtin_expect(cut, 0))
            return seen;
        poison(s);
        mask(s, lane, first_key, end, reach);
        return 0.0f;
    }

    /* The same of a tile's first step: they may be. */
    __device__ __forceinline__ static void prepare_first(Scores &s, bool cut, int lane,
                                                         int first_key, int end, int reach)
    {
        poison(s);
        if (__builtin_expect(cut, 0))
            mask(s, lane, first_key, end, reach);
    }

    /* Rows that attend to a bad V of a step, of which key `bad` is the first such, or behind the
     * step: they are bad, too. */
    __device__ __forceinline__ void look(int bad, int lane, int first_key, int reach)
    {
#pragma unroll
        for (int row = 0; row < 2; row++)
            if (bad < T::keys && first_key + bad < reach + fragment_row(lane, 2 * row))
                l[row] = CUDART_NAN_F;
    }

    /* As hopper.cuh has it, but without a vote, which is not seen to be one in all of these loops:
     * one lane of a quad hides. */
    __device__ __forceinline__ void hide_base()
    {
        const bool hides = (tid_x() & 3) == 0;

        top[0] = hides & is_far(top[0]) ? CUDART_NAN_F : top[0];
        top[1] = hides & is_far(top[1]) ? CUDART_NAN_F : top[1];
    }
    __device__ __forceinline__ void show_base()
    {
        const int lane = (tid_x() & 31) | 1;

        top[0] = __shfl_sync(~0u, top[0], lane);
        top[1] = __shfl_sync(~0u, top[1], lane);
    }

    /* The largest scores of this thread's. */
    __device__ __forceinline__ static void largest(const Scores &s, float (&most)[2])
    {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            float part[2] = {s[2 * row], s[2 * row + 1]};

#pragma unroll
            for (int i = 1; i < T::keys / 8; i++) {
                part[0] = fmaxf(part[0], s[4 * i + 2 * row]);
                part[1] = fmaxf(part[1], s[4 * i + 2 * row + 1]);
            }
            most[row] = fmaxf(part[0], part[1]);
        }
    }

    /* Gives rows another base of which a P would pass the limit; whether this thread's have one,
     * and O has to be multiplied by alpha. */
    __device__ __forceinline__ bool raise(const float (&most)[2], float c, float (&alpha)[2])
    {
        bool moves = false;

        static_assert(TD_F16_LIMIT_LOG2 - TD_F16_TOP_LOG2 > 0, "the base may stay");
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const float here = quad_max(most[row]);

            alpha[row] = 1.0f;
            if (exponent(here, c, top[row]) > TD_F16_LIMIT_LOG2) {
                const float next = base_below(__fmul_rn(here, c), TD_F16_TOP_LOG2);

                alpha[row] = ex2(__fsub_rn(top[row], next));
                top[row] = next;
                l[row] = __fmul_rn(l[row], alpha[row]);
                moves = true;
            }
        }
        return moves;
    }

    /* What P is made with: ex2(s c - base). */
    __device__ __forceinline__ void set_base(float (&base)[2]) const
    {
#pragma unroll
        for (int row = 0; row < 2; row++)
            base[row] = top[row] == -CUDART_INF_F ? 0.0f : top[row];
    }

    /* The same with one rounding where a base is not far, and with two where it is: this is the
     * first of them. */
    __device__ __forceinline__ static void split_product(Scores &s, float &c, float (&base)[2])
    {
        const bool far[2] = {is_far(base[0]), is_far(base[1])};

#pragma unroll
        for (int i = 0; i < T::keys / 2; i++)
            s[i] = __fmaf_rn(s[i], c, far[i % 4 / 2] ? -0.0f : -base[i % 4 / 2]);
        c = 1.0f;
        base[0] = far[0] ? base[0] : 0.0f;
        base[1] = far[1] ? base[1] : 0.0f;
    }

    /* P of S, and a thread's sums of it. */
    __device__ __forceinline__ static void exponentials(const Scores &s, Codes &to, float c,
                                                        const float (&base)[2], float (&sum)[2])
    {
        using E = std::conditional_t<T::bf16, __nv_bfloat16, __half>;
        float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};

#pragma unroll
        for (int i = 0; i < T::keys / 2; i += 2) {
            const float low = ex2(__fmaf_rn(s[i], c, -base[i % 4 / 2]));
            const float high = ex2(__fmaf_rn(s[i + 1], c, -base[i % 4 / 2]));

            part[i % 4] = __fadd_rn(part[i % 4], low);
            part[i % 4 + 1] = __fadd_rn(part[i % 4 + 1], high);
            to[i / 8][i / 2 % 4] = pack2(static_cast<E *>(nullptr), low, high);
        }
        sum[0] = __fadd_rn(part[0], part[1]);
        sum[1] = __fadd_rn(part[2], part[3]);
    }

    /* P of a tile's first step. */
    __device__ __forceinline__ void begin(Scores &s, Codes &to, float c)
    {
        float most[2], alpha[2], base[2];

        l[0] = l[1] = 0.0f;
        top[0] = top[1] = -CUDART_INF_F;
        largest(s, most);
        raise(most, c, alpha);
        const bool far = any_far(top);
        set_base(base);
        if (far)
            split_product(s, c, base);
        exponentials(s, to, c, base, l);
        hide_base();
    }

    /* P of another step; `seen` is from prepare(). Its sums say whether a P may be too large, and
     * maxima are looked for only then. wait(): for O. */
    template <class Wait>
    __device__ __forceinline__ void go_on(Scores &s, Codes &to, float c, float seen, Wait wait)
    {
        constexpr float limit = float(1u << int(TD_F16_LIMIT_LOG2));
        const bool finite = fabsf(seen) < CUDART_INF_F;
        float sum[2], base[2];

        set_base(base);
        exponentials(s, to, c, base, sum);
        if (__builtin_expect(__any_sync(~0u, !((sum[0] <= limit) & (sum[1] <= limit) & finite)),
                             0)) {
            float most[2], alpha[2];

            show_base();
            largest(s, most);
            const float zero[2] = {finite ? 0.0f : zeros(s, 0), finite ? 0.0f : zeros(s, 1)};
            const bool moves = raise(most, c, alpha), far = any_far(top);
            /* a vote, or the compiler does not see that the warp agrees */
            if (__any_sync(~0u, moves | far)) {
                wait();
                set_base(base);
                if (far)
                    split_product(s, c, base);
                exponentials(s, to, c, base, sum);
                rescale(alpha);
            }
            hide_base();
            sum[0] = __fadd_rn(sum[0], zero[0]);
            sum[1] = __fadd_rn(sum[1], zero[1]);
        }
        l[0] = __fadd_rn(l[0], sum[0]);
        l[1] = __fadd_rn(l[1], sum[1]);
    }

    /* S becomes P; whether O has to be multiplied by alpha. Where keys of a step are few, maxima
     * are looked for in each. */
    __device__ __forceinline__ bool softmax(Scores &s, float c, float (&alpha)[2], float seen)
    {
        const bool finite = fabsf(seen) < CUDART_INF_F;
        float most[2], base[2], sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};

        alpha[0] = alpha[1] = 1.0f;
        largest(s, most);
        set_base(base);
        const bool moves =
            __any_sync(~0u, !((__fmaf_rn(most[0], c, -top[0]) <= TD_F16_LIMIT_LOG2) &
                              (__fmaf_rn(most[1], c, -top[1]) <= TD_F16_LIMIT_LOG2) & finite));
        if (moves) {
            show_base();
            l[0] = __fadd_rn(l[0], finite ? 0.0f : zeros(s, 0));
            l[1] = __fadd_rn(l[1], finite ? 0.0f : zeros(s, 1));
            raise(most, c, alpha);
            set_base(base);
            hide_base();
            split_product(s, c, base);
        }
#pragma unroll
        for (int i = 0; i < T::keys / 2; i++) {
            s[i] = ex2(__fmaf_rn(s[i], c, -base[i % 4 / 2]));
            sum[i % 4] = __fadd_rn(sum[i % 4], s[i]);
        }
        l[0] = __fadd_rn(l[0], __fadd_rn(sum[0], sum[1]));
        l[1] = __fadd_rn(l[1], __fadd_rn(sum[2], sum[3]));
        return moves;
    }

    __device__ __forceinline__ void rescale(const float (&alpha)[2])
    {
#pragma unroll
        for (int i = 0; i < T::dim / 2; i++)
            o[i] = __fmul_rn(o[i], alpha[i % 4 / 2]);
    }

    __device__ __forceinline__ void convert(const float (&s)[T::keys / 2])
    {
        using E = std::conditional_t<T::bf16, __nv_bfloat16, __half>;

#pragma unroll
        for (int i = 0; i < T::keys / 4; i++)
            p[i / 4][i % 4] = pack2(static_cast<E *>(nullptr), s[2 * i], s[2 * i + 1]);
    }

    /* Adds up what the quad's threads have of l; makes rows NaN that met anything that is not
     * finite. */
    __device__ __forceinline__ void finish()
    {
        float zero[2] = {0.0f, 0.0f};

        show_base();
#pragma unroll
        for (int i = 0; i < T::dim / 2; i++)
            zero[i % 4 / 2] = __fmaf_rn(o[i], 0.0f, zero[i % 4 / 2]);
#pragma unroll
        for (int row = 0; row < 2; row++)
            l[row] = quad_sum(__fadd_rn(l[row], zero[row]));
    }
};

/* O of a warp's 16 rows. Where the addresses allow it, two-byte elements go 16 bytes a thread: by
 * way of shared memory (T::staged; `stage`: room for 16 rows of 128-byte parts), so that whole rows
 * are written, or through the quad's lanes. */
template <class T, class E>
__device__ __forceinline__ void f16_write_o(const td_params_attention_f16 &p, const F16RowTile &at,
                                            int row0, int lane, uint8_t *stage,
                                            const F16Consumer<T> &c)
{
    constexpr int pitch = T::parts * 128, pieces = T::dim / 8;
    E *to = static_cast<E *>(p.o.data) + at.batch * p.o.stride_batch + at.head * p.o.stride_head +
            row0 * p.o.stride_row;
    const int rows = int(p.o.rows) - row0;
    const float part[2] = {c.l[0] != 0.0f ? __frcp_rn(c.l[0]) : 0.0f,
                           c.l[1] != 0.0f ? __frcp_rn(c.l[1]) : 0.0f};

    if constexpr (sizeof(E) == 2 && !T::staged)
        if (reinterpret_cast<uint64_t>(to) % 16 == 0 && uint64_t(p.o.stride_row) % 8 == 0) {
            const int q = lane % 4;

#pragma unroll
            for (int four = 0; four < pieces; four += 4)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int row = fragment_row(lane, 2 * half);
                    uint32_t bits[4];

#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int at = min(4 * (four + i), T::dim / 2 - 4) + 2 * half;

                        bits[i] = pack2(to, __fmul_rn(c.o[at], part[half]),
                                        __fmul_rn(c.o[at + 1], part[half]));
                    }
                    transpose_quad(bits, q);
                    if (row < rows && four + q < pieces)
                        *reinterpret_cast<uint4 *>(to + row * p.o.stride_row + 8 * (four + q)) =
                            make_uint4(bits[0], bits[1], bits[2], bits[3]);
                }
            return;
        }
    if constexpr (sizeof(E) == 2 && T::staged)
        if (reinterpret_cast<uint64_t>(to) % 16 == 0 && uint64_t(p.o.stride_row) % 8 == 0) {
            const int row = lane % 16, piece = lane / 16; /* whose address this lane gives */

#pragma unroll
            for (int j = 0; j < pieces; j += 2) {
                uint32_t bits[4];

#pragma unroll
                for (int i = 0; i < 4; i++)
                    bits[i] = pack2(to, __fmul_rn(c.o[4 * j + 2 * i], part[i % 2]),
                                    __fmul_rn(c.o[4 * j + 2 * i + 1], part[i % 2]));
                stmatrix_x4(shared_address(stage) + row * pitch + ((j + piece) ^ row % 8) * 16,
                            bits);
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < pieces / 2; i++) {
                const int r = (32 * i + lane) / pieces, x = (32 * i + lane) % pieces;
                const uint4 bits =
                    *reinterpret_cast<const uint4 *>(stage + r * pitch + (x ^ r % 8) * 16);

                if (r < rows)
                    *reinterpret_cast<uint4 *>(to + r * p.o.stride_row + 8 * x) = bits;
            }
            return;
        }
#pragma unroll
    for (int i = 0; i < T::dim / 2; i += 2) {
        const int row = fragment_row(lane, i % 4), channel = fragment_column(lane, i / 4, 0);
        E *one = to + row * p.o.stride_row + channel;
        const float x0 = __fmul_rn(c.o[i], part[i % 4 / 2]),
                    x1 = __fmul_rn(c.o[i + 1], part[i % 4 / 2]);

        if (row < rows) {
            if constexpr (sizeof(E) == 4) {
                one[0] = x0;
                one[1] = x1;
            } else {
                const uint32_t bits = pack2(to, x0, x1);

                reinterpret_cast<uint16_t *>(one)[0] = uint16_t(bits);
                reinterpret_cast<uint16_t *>(one)[1] = uint16_t(bits >> 16);
            }
        }
    }
}

/* Whether a row had scores, and all of them were -infinity: Q is not finite there, and nothing else
 * has shown it. */
__device__ __forceinline__ bool f16_hidden(const td_params_attention_f16 &p, int row, float top)
{
    return top == -CUDART_INF_F && (!p.causal || row + int(p.k.rows) >= int(p.q.rows));
}

template <class T>
__device__ __forceinline__ void f16_write(const td_params_attention_f16 &p, const F16RowTile &at,
                                          int row0, int lane, uint8_t *stage, F16Consumer<T> &c)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t row = row0 + fragment_row(lane, 2 * half);

        if (f16_hidden(p, int(row), c.top[half]))
            c.l[half] = CUDART_NAN_F;
        if (p.lse && lane % 4 == 0 && row < p.o.rows)
            p.lse[at.batch * p.lse_stride_batch + at.head * p.lse_stride_head +
                  row * p.lse_stride_row] =
                c.l[half] != 0.0f ? __fmul_rn(__fadd_rn(c.top[half], log2f(c.l[half])), TD_LN_2)
                                  : -CUDART_INF_F;
    }
    if (p.o.dtype == TANDEM_DTYPE_F32)
        f16_write_o<T, float>(p, at, row0, lane, stage, c);
    else if (p.o.dtype == TANDEM_DTYPE_F16)
        f16_write_o<T, __half>(p, at, row0, lane, stage, c);
    else
        f16_write_o<T, __nv_bfloat16>(p, at, row0, lane, stage, c);
}

/* Rows without keys: O is 0. */
template <class T>
__device__ __forceinline__ void f16_write_nothing(const td_params_attention_f16 &p,
                                                  const F16RowTile &at, int row0, int lane)
{
#pragma unroll 1
    for (int64_t row = row0; row < min(row0 + 16, int(p.o.rows)); row++) {
#pragma unroll 1
        for (int c = lane; c < T::dim; c += 32) {
            const int64_t to =
                at.batch * p.o.stride_batch + at.head * p.o.stride_head + row * p.o.stride_row + c;

            if (p.o.dtype == TANDEM_DTYPE_F32)
                static_cast<float *>(p.o.data)[to] = 0.0f;
            else
                static_cast<uint16_t *>(p.o.data)[to] = 0;
        }
        if (p.lse && lane == 0)
            p.lse[at.batch * p.lse_stride_batch + at.head * p.lse_stride_head +
                  row * p.lse_stride_row] = -CUDART_INF_F;
    }
}

/* What a warpgroup does of one tile of rows: where its warp's rows lie, and how far they see. */
template <class T> struct F16Rows {
    F16RowTile at;
    int row0, reach; /* row r may attend to keys below reach + r - row0, if there are so many */

    __device__ __forceinline__ F16Rows(const td_params_attention_f16 &p, uint32_t work,
                                       int first_row)
        : at(f16_row_tile<T>(p, work)), row0(at.row0 + first_row),
          reach(p.causal ? row0 + int(p.k.rows) - int(p.q.rows) + 1 : int(p.k.rows))
    {
    }
    /* Some of the rows do not attend to all keys of the step. */
    __device__ __forceinline__ bool cut(int step) const
    {
        return (step + 1) * T::keys > at.free_keys;
    }
};

} // namespace td
#endif
