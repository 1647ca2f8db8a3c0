/* O = softmax(scale * Q K^T) V of fp16 or bf16 tensors by wgmma, as they lie in memory: `attn_f16_wgmma`, sm_90a.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Shapes: Q, K, V, O [batch, head, row, channel] with strides, rows 16-byte aligned, Q, K and V of one type. Warpgroups
 * of 64 rows compute, one more fetches; a block works on some tiles of rows, one after the other. A warpgroup:
 *
 *   fetching   Q K(0) K(1) V(0) K(2) V(1) ...  -> rings of stages for K and V, mbarriers full and empty
 *   tensor     S = Q K(i+1), O += P V(i) |      (the other warpgroups')      | S = Q K(i+2), O += P V(i+1)
 *   threads                              | wait for S, P = ex2 S, wait for O |
 *
 * The warpgroups take turns at handing products to the tensor cores, so that one's exponentials lie beside another's
 * products. V is read as it lies, keys being rows: wgmma transposes B of 16 bits.
 *
 * S, l and O are fp32; P is rounded to the tensors' type. A row's base follows its maximum late: when it is set, the
 * largest P is 2^TD_F16_TOP_LOG2, and it stays until a P would pass 2^TD_F16_LIMIT_LOG2, which is finite in fp16. So P
 * has all its bits down to 2^-22 of the row's largest, and O is rarely rescaled.
 * Shared bytes: TD_F16_SHARED_BYTES(d); 193 KB at d128, 145 KB at d64. Registers: 232 of a thread that computes and 40 of
 * one that fetches; at d64, with three warpgroups, 160 and 32.
 * H200, batch 4, 32 heads, 4096 x 4096: d64 2.40 ms (459 TFLOPS), d128 1.96 ms (560 TFLOPS).
 * A bad V (NaN or infinity) makes the rows NaN that attend to it, and no others: where the mask cuts a step, those that
 * fetch look for such keys, clear them and say where the first one is.
 */
#include <type_traits>

#include "hopper.cuh"

#if TD_HAVE_WGMMA

namespace td {

template <int Dim, int Keys, int Groups, int Stages, bool Bf16> struct F16Tile {
    static constexpr int dim = Dim, keys = Keys, groups = Groups, stages = Stages;
    static constexpr bool bf16 = Bf16;
    static constexpr int rows = 64 * Groups, threads = 128 * (Groups + 1);
    static constexpr int parts = (Dim + 63) / 64; /* a row is cut into parts of 64 channels: 128 bytes */
    static constexpr int consumer_registers = Groups == 2 ? 232 : 160, producer_registers = Groups == 2 ? 40 : 32;

    struct Shared {
        alignas(1024) uint8_t q[2][Groups][parts][64 * 128]; /* of this tile of rows and the next */
        alignas(1024) uint8_t k[Stages][parts][Keys * 128];
        alignas(1024) uint8_t v[Stages][parts][Keys * 128];
        alignas(1024) uint64_t q_full[2];
        uint64_t q_empty[2], k_full[Stages], k_empty[Stages], v_full[Stages], v_empty[Stages];
        int first_bad[Stages]; /* key of V in the step */
    };
    static_assert(sizeof(Shared) == TD_F16_SHARED(unsigned(Dim), unsigned(Keys), unsigned(Groups), unsigned(Stages)),
                  "the launch asks for another size");
};

/* A tile of rows of one head. */
struct F16Place {
    uint32_t batch, head, kv_head;
    int row0, steps;
    int free_keys; /* that all its rows may attend to */
};

/* What this block does after a tile. */
__device__ __forceinline__ uint32_t f16_next(const td_params_attention_f16 &p, uint32_t work)
{
    return work + (p.pair == 1 ? gridDim.x : work % 2 ? 2 * gridDim.x - 1 : 1);
}

template <class T> __device__ __forceinline__ F16Place f16_place(const td_params_attention_f16 &p, uint32_t work)
{
    const uint32_t tiles = (p.q.rows + T::rows - 1) / T::rows;
    const uint32_t bh = work / tiles, x = work % tiles;
    const int q_len = int(p.q.rows), kv_len = int(p.k.rows), reach = kv_len - q_len + 1;
    uint32_t tile = x;
    F16Place at;

    if (p.causal) /* a block's tiles are long and short ones in turn; single ones begin with the longest */
        tile = p.pair == 1 ? tiles - 1 - x : x % 2 ? x / 2 : tiles - 1 - x / 2;
    at.batch = bh / p.q.heads;
    at.head = bh % p.q.heads;
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

__device__ __forceinline__ const uint8_t *f16_rows(const td_tensor &x, int64_t batch, int64_t head, int64_t row)
{
    return static_cast<const uint8_t *>(x.data) +
           2 * (batch * x.stride_batch + head * x.stride_head + row * x.stride_row);
}

/* Copies of Rows rows of Dim channels into parts of 128-byte swizzled rows, by 128 threads: as many neighbours share a
 * row as its pieces of 16 bytes allow. Eight rows further the swizzle is the same. */
template <int Rows, int Dim> struct F16Copy {
    static constexpr int pieces = Dim / 8, abreast = pieces & -pieces, at_once = 128 / abreast; /* rows */
    static_assert(at_once % 8 == 0 && (Rows % at_once == 0), "every thread copies as much");

    __device__ __forceinline__ static int first_row()
    {
        return tid_x() % 128 / abreast;
    }
    /* What this thread copies of a row begins here. */
    __device__ __forceinline__ static int first_byte()
    {
        return tid_x() % abreast * 16;
    }
    /* Where a piece of its first row goes. */
    __device__ __forceinline__ static uint32_t place(int piece)
    {
        const int at = tid_x() % abreast + piece, row = first_row();

        return uint32_t(at / 8 * Rows * 128 + row * 128 + (at ^ row) % 8 * 16);
    }

    /* `from`: its first piece; `there`: of the rows, how many exist; the others become zeros. */
    __device__ __forceinline__ static void start(uint32_t to, const uint8_t *from, int64_t stride_bytes, int there)
    {
        const int row = first_row();

#pragma unroll
        for (int r = 0; r < Rows; r += at_once) {
#pragma unroll
            for (int piece = 0; piece < pieces; piece += abreast)
                cp_async_16_or_zero(to + place(piece) + uint32_t(r * 128), from + piece * 16, row + r < there ? 16 : 0);
            from += at_once * stride_bytes;
        }
    }

    /* Clears the pieces that this thread copied where they hold a NaN or an infinity; the first such row, or Rows. */
    __device__ __forceinline__ static int clear_bad(uint8_t *shared, uint32_t exponent)
    {
        const int row = first_row();
        int first = Rows;

#pragma unroll 1
        for (int piece = 0; piece < pieces; piece += abreast)
#pragma unroll 1
            for (int r = 0; r < Rows; r += at_once) {
                uint32_t *words = reinterpret_cast<uint32_t *>(shared + place(piece) + r * 128);
                bool bad = false;

#pragma unroll
                for (int i = 0; i < 4; i++)
                    bad |= (words[i] & exponent) == exponent || (words[i] & exponent << 16) == exponent << 16;
                if (bad) {
                    *reinterpret_cast<uint4 *>(words) = make_uint4(0, 0, 0, 0);
                    first = min(first, row + r);
                }
            }
        return first;
    }
};

template <class T>
__device__ __forceinline__ void f16_produce(typename T::Shared &shared, const td_params_attention_f16 &p,
                                            uint32_t begin, uint32_t end)
{
    using Copy = F16Copy<T::keys, T::dim>;
    using CopyQ = F16Copy<64, T::dim>;
    constexpr uint32_t kProducers = 4; /* barrier */
    RingPlace q_place = {0, 1}, k_place = {0, 1}, v_place = {0, 1};
    uint64_t *before = nullptr; /* says that the copies that were started last are there */

    /* While there is no room, what is under way is waited for. */
    const auto wait_for_room = [&](const uint64_t &empty, uint32_t parity) {
        if (__all_sync(~0u, mbarrier_try_wait(shared_address(&empty), parity)))
            return;
        if (before) {
            cp_async_wait<0>();
            fence_proxy_async();
            mbarrier_arrive(shared_address(before));
            before = nullptr;
        }
        wait_for(empty, parity);
    };
    const auto publish = [&](uint64_t &full) {
        cp_async_commit();
        if (before) {
            cp_async_wait<1>();
            fence_proxy_async();
            mbarrier_arrive(shared_address(before));
        }
        before = &full;
    };
#pragma unroll 1
    for (uint32_t work = begin; work < end; work = f16_next(p, work)) {
        const F16Place at = f16_place<T>(p, work);
        if (at.steps == 0)
            continue;
        wait_for_room(shared.q_empty[q_place.stage], q_place.parity);
#pragma unroll 1
        for (int group = 0; group < T::groups; group++) {
            const int row0 = at.row0 + 64 * group;

            CopyQ::start(shared_address(shared.q[q_place.stage][group]),
                         f16_rows(p.q, at.batch, at.head, row0 + CopyQ::first_row()) + CopyQ::first_byte(),
                         2 * p.q.stride_row, int(p.q.rows) - row0);
        }
        publish(shared.q_full[q_place.stage]);
        q_place.template next<2>();

        const uint8_t *k = f16_rows(p.k, at.batch, at.kv_head, Copy::first_row()) + Copy::first_byte();
        const uint8_t *v = f16_rows(p.v, at.batch, at.kv_head, Copy::first_row()) + Copy::first_byte();
#pragma unroll 1
        for (int step = -1; step < at.steps; step++) { /* K of the next, V of this one */
            if (step + 1 < at.steps) {
                wait_for_room(shared.k_empty[k_place.stage], k_place.parity);
                Copy::start(shared_address(shared.k[k_place.stage]), k, 2 * p.k.stride_row,
                            int(p.k.rows) - (step + 1) * T::keys);
                publish(shared.k_full[k_place.stage]);
                k_place.template next<T::stages>();
                k += 2 * T::keys * p.k.stride_row;
            }
            if (step < 0)
                continue;
            wait_for_room(shared.v_empty[v_place.stage], v_place.parity);
            Copy::start(shared_address(shared.v[v_place.stage]), v, 2 * p.v.stride_row, int(p.k.rows) - step * T::keys);
            publish(shared.v_full[v_place.stage]);
            if (p.causal && (step + 1) * T::keys > at.free_keys) { /* before others see it */
                cp_async_wait<0>();
                const int first = Copy::clear_bad(shared.v[v_place.stage][0], T::bf16 ? 0x7f80u : 0x7c00u);
                if (threadIdx.x % 128 == 0)
                    shared.first_bad[v_place.stage] = T::keys;
                bar_sync<128>(kProducers);
                if (first < T::keys)
                    atomicMin(&shared.first_bad[v_place.stage], first);
            }
            v_place.template next<T::stages>();
            v += 2 * T::keys * p.v.stride_row;
        }
    }
    if (before) {
        cp_async_wait<0>();
        fence_proxy_async();
        mbarrier_arrive(shared_address(before));
    }
}

/* A consumer's registers; rows g and g + 8 of its warp's 16. */
template <class T> struct F16Consumer {
    float s[T::keys / 2], o[T::dim / 2];
    uint32_t p[T::keys / 16][4];
    float l[2], top[2]; /* P = 2^(S c - top) */

    __device__ __forceinline__ void start()
    {
#pragma unroll
        for (int i = 0; i < T::dim / 2; i++)
            o[i] = 0.0f;
        l[0] = l[1] = 0.0f;
        top[0] = top[1] = -CUDART_INF_F;
    }

    __device__ __forceinline__ void issue_qk(uint32_t q, uint32_t k)
    {
        wgmma_fence();
        wgmma_qk<false, T::bf16>(s, descriptor<128>(q), descriptor<128>(k));
#pragma unroll
        for (int step = 1; step < T::dim / 16; step++)
            wgmma_qk<true, T::bf16>(s, descriptor<128>(q + step / 4 * (64 * 8) + step % 4 * 2),
                                    descriptor<128>(k + step / 4 * (T::keys * 8) + step % 4 * 2));
        wgmma_commit();
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

    __device__ __forceinline__ void mask(int lane, int first_key, int end, int reach)
    {
        const int low = min(end, reach + fragment_row(lane, 0)) - first_key - 2 * (lane % 4);
        const int high = min(end, reach + fragment_row(lane, 2)) - first_key - 2 * (lane % 4);

#pragma unroll
        for (int i = 0; i < T::keys / 2; i++)
            if (i / 4 * 8 + i % 2 >= (i % 4 < 2 ? low : high))
                s[i] = -CUDART_INF_F;
    }

    /* S becomes P; whether O has to be multiplied by alpha. */
    __device__ __forceinline__ bool softmax(float c, float (&alpha)[2])
    {
        float here[2];

#pragma unroll
        for (int row = 0; row < 2; row++) {
            float part[2] = {s[2 * row], s[2 * row + 1]};

#pragma unroll
            for (int i = 1; i < T::keys / 8; i++) {
                part[0] = fmaxf(part[0], s[4 * i + 2 * row]);
                part[1] = fmaxf(part[1], s[4 * i + 2 * row + 1]);
            }
            here[row] = __fmul_rn(fmaxf(part[0], part[1]), c);
            alpha[row] = 1.0f;
        }
        constexpr float slack = TD_F16_LIMIT_LOG2 - TD_F16_TOP_LOG2, limit = TD_F16_LIMIT_LOG2;
        static_assert(slack > 0, "the base may stay");
        const bool moves = __any_sync(~0u, here[0] > __fadd_rn(top[0], limit) || here[1] > __fadd_rn(top[1], limit));
        if (moves) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                here[row] = quad_max(here[row]);
                if (here[row] > __fadd_rn(top[row], limit)) {
                    const float next = __fsub_rn(here[row], TD_F16_TOP_LOG2);

                    alpha[row] = ex2(__fsub_rn(top[row], next));
                    top[row] = next;
                    l[row] = __fmul_rn(l[row], alpha[row]);
                }
            }
        }
        const float base[2] = {top[0] == -CUDART_INF_F ? 0.0f : top[0], top[1] == -CUDART_INF_F ? 0.0f : top[1]};
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
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

    __device__ __forceinline__ void convert()
    {
        using E = std::conditional_t<T::bf16, __nv_bfloat16, __half>;

#pragma unroll
        for (int i = 0; i < T::keys / 4; i++)
            p[i / 4][i % 4] = pack2(static_cast<E *>(nullptr), s[2 * i], s[2 * i + 1]);
    }

    /* Adds up what the quad's threads have of l; makes rows NaN that met anything that is not finite. */
    __device__ __forceinline__ void finish()
    {
        float zero[2] = {0.0f, 0.0f};

#pragma unroll
        for (int i = 0; i < T::dim / 2; i++)
            zero[i % 4 / 2] = __fmaf_rn(o[i], 0.0f, zero[i % 4 / 2]);
#pragma unroll
        for (int row = 0; row < 2; row++)
            l[row] = quad_sum(__fadd_rn(l[row], zero[row]));
    }
};

/* O of a warp's 16 rows. Where the addresses allow it, two-byte elements go by way of shared memory (`stage`: room for 16
 * rows of 128-byte parts), so that whole rows are written, 16 bytes a thread. */
template <class T, class E>
__device__ __forceinline__ void f16_write_o(const td_params_attention_f16 &p, const F16Place &at, int row0, int lane,
                                            uint8_t *stage, const F16Consumer<T> &c)
{
    constexpr int pitch = T::parts * 128, pieces = T::dim / 8;
    E *to = static_cast<E *>(p.o.data) + at.batch * p.o.stride_batch + at.head * p.o.stride_head +
            row0 * p.o.stride_row;
    const int rows = int(p.o.rows) - row0;
    const float part[2] = {c.l[0] != 0.0f ? __frcp_rn(c.l[0]) : 0.0f, c.l[1] != 0.0f ? __frcp_rn(c.l[1]) : 0.0f};

    if constexpr (sizeof(E) == 2)
        if (reinterpret_cast<uint64_t>(to) % 16 == 0 && uint64_t(p.o.stride_row) % 8 == 0) {
            const int row = lane % 16, piece = lane / 16; /* whose address this lane gives */

#pragma unroll
            for (int j = 0; j < pieces; j += 2) {
                uint32_t bits[4];

#pragma unroll
                for (int i = 0; i < 4; i++)
                    bits[i] = pack2(to, __fmul_rn(c.o[4 * j + 2 * i], part[i % 2]),
                                    __fmul_rn(c.o[4 * j + 2 * i + 1], part[i % 2]));
                stmatrix_x4(shared_address(stage) + row * pitch + ((j + piece) ^ row % 8) * 16, bits);
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < pieces / 2; i++) {
                const int r = (32 * i + lane) / pieces, x = (32 * i + lane) % pieces;
                const uint4 bits = *reinterpret_cast<const uint4 *>(stage + r * pitch + (x ^ r % 8) * 16);

                if (r < rows)
                    *reinterpret_cast<uint4 *>(to + r * p.o.stride_row + 8 * x) = bits;
            }
            return;
        }
#pragma unroll
    for (int i = 0; i < T::dim / 2; i += 2) {
        const int row = fragment_row(lane, i % 4), channel = fragment_column(lane, i / 4, 0);
        E *one = to + row * p.o.stride_row + channel;
        const float x0 = __fmul_rn(c.o[i], part[i % 4 / 2]), x1 = __fmul_rn(c.o[i + 1], part[i % 4 / 2]);

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

template <class T>
__device__ __forceinline__ void f16_write(const td_params_attention_f16 &p, const F16Place &at, int row0, int lane,
                                          uint8_t *stage, const F16Consumer<T> &c)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t row = row0 + fragment_row(lane, 2 * half);

        if (p.lse && lane % 4 == 0 && row < p.o.rows)
            p.lse[at.batch * p.lse_stride_batch + at.head * p.lse_stride_head + row * p.lse_stride_row] =
                c.l[half] != 0.0f ? __fmul_rn(__fadd_rn(c.top[half], log2f(c.l[half])), TD_LN_2) : -CUDART_INF_F;
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
__device__ __forceinline__ void f16_write_nothing(const td_params_attention_f16 &p, const F16Place &at, int row0, int lane)
{
#pragma unroll 1
    for (int64_t row = row0; row < min(row0 + 16, int(p.o.rows)); row++) {
#pragma unroll 1
        for (int c = lane; c < T::dim; c += 32) {
            const int64_t to = at.batch * p.o.stride_batch + at.head * p.o.stride_head + row * p.o.stride_row + c;

            if (p.o.dtype == TANDEM_DTYPE_F32)
                static_cast<float *>(p.o.data)[to] = 0.0f;
            else
                static_cast<uint16_t *>(p.o.data)[to] = 0;
        }
        if (p.lse && lane == 0)
            p.lse[at.batch * p.lse_stride_batch + at.head * p.lse_stride_head + row * p.lse_stride_row] = -CUDART_INF_F;
    }
}

/* What a warpgroup does of one tile of rows: where its warp's rows lie, and how far they see. */
template <class T> struct F16Rows {
    F16Place at;
    int row0, reach; /* row r may attend to keys below reach + r - row0, if there are so many */

    __device__ __forceinline__ F16Rows(const td_params_attention_f16 &p, uint32_t work, int first_row)
        : at(f16_place<T>(p, work)), row0(at.row0 + first_row),
          reach(p.causal ? row0 + int(p.k.rows) - int(p.q.rows) + 1 : int(p.k.rows))
    {
    }
    /* Some of the rows do not attend to all keys of the step. */
    __device__ __forceinline__ bool cut(int step) const
    {
        return (step + 1) * T::keys > at.free_keys;
    }
};

template <class T>
__device__ __forceinline__ void f16_consume(typename T::Shared &shared, const td_params_attention_f16 &p,
                                            uint32_t begin, uint32_t end)
{
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) % 128 / 32;
    const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0); /* the compiler sees that a warp agrees on it */
    const int first_row = 64 * group + 16 * warp;
    constexpr uint32_t part_words = T::keys * 128 / 16, stage_words = T::parts * part_words;
    constexpr uint32_t q_words = T::groups * T::parts * 64 * 128 / 16;
    const uint32_t q_tile = tile_word(shared.q[0][group]), k_tile = tile_word(shared.k[0]);
    const uint32_t v_tile = part_words << 16 | shared_address(shared.v[0]) >> 4;
    const uint32_t my_turn = 1 + group, next_turn = 1 + (group + 1) % T::groups;
    const float scale = __fmul_rn(p.scale, TD_LOG2_E);
    RingPlace q_place = {0, 0}, k_place = {0, 0}, v_place = {0, 0};
    F16Consumer<T> c;

    /* The next tile that has keys; rows without any are done with at once. */
    uint32_t work = begin;
    const auto next_rows = [&] {
        F16Rows<T> rows(p, work, first_row);

        while (rows.at.steps == 0) {
            f16_write_nothing<T>(p, rows.at, rows.row0, lane);
            work = f16_next(p, work);
            if (work >= end)
                break;
            rows = F16Rows<T>(p, work, first_row);
        }
        return rows;
    };
    const auto issue_qk = [&] {
        c.issue_qk(q_tile + q_place.stage * q_words, k_tile + k_place.stage * stage_words);
    };
    const auto done_with_k = [&] {
        warp_arrive(shared.k_empty[k_place.stage]);
        k_place.template next<T::stages>();
    };
    /* Q is not needed any more: O goes through its place. */
    const auto write = [&](const F16Rows<T> &of, uint32_t stage) {
        bar_sync<128>(5 + group);
        f16_write<T>(p, of.at, of.row0, lane, &shared.q[stage][group][0][0] + warp * (T::parts * 16 * 128), c);
        warp_arrive(shared.q_empty[stage]);
    };
    const auto mask = [&](const F16Rows<T> &rows, int step) {
        if (__builtin_expect(rows.cut(step), 0))
            c.mask(lane, step * T::keys, int(p.k.rows), rows.reach);
    };
    /* Once O += P V is under way: rows that attend to a bad V of a step that the mask cuts. */
    const auto look = [&](const F16Rows<T> &rows, int step) {
        if (__builtin_expect(p.causal && rows.cut(step), 0)) {
            const int bad = shared.first_bad[v_place.stage];
#pragma unroll
            for (int row = 0; row < 2; row++)
                if (bad < T::keys && step * T::keys + bad < rows.reach + fragment_row(lane, 2 * row))
                    c.l[row] = CUDART_NAN_F;
        }
    };
    const auto done_with_v = [&] {
        wgmma_wait<0>();
        wgmma_hold(c.o);
        warp_arrive(shared.v_empty[v_place.stage]);
        v_place.template next<T::stages>();
    };

    F16Rows<T> rows = next_rows();
    if (work >= end)
        return;
    if (group == T::groups - 1)
        bar_arrive<256>(next_turn);
    float alpha[2];
    int step = 0;
    c.start();
    wait_for(shared.q_full[q_place.stage], q_place.parity);
    wait_for(shared.k_full[k_place.stage], k_place.parity);
    issue_qk();
    wgmma_wait<0>();
    wgmma_hold(c.s);
    done_with_k();
    mask(rows, 0);
    c.softmax(scale, alpha);
    c.convert();
#pragma unroll 1
    while (true) {
        if (step + 1 < rows.at.steps) {
            wait_for(shared.k_full[k_place.stage], k_place.parity);
            bar_sync<256>(my_turn);
            issue_qk();
            wait_for(shared.v_full[v_place.stage], v_place.parity);
            c.issue_pv(v_tile + v_place.stage * stage_words);
            bar_arrive<256>(next_turn);
            wgmma_wait<1>();
            wgmma_hold(c.s);
            done_with_k();
            mask(rows, step + 1);
            const bool moves = c.softmax(scale, alpha);
            look(rows, step);
            done_with_v();
            if (moves)
                c.rescale(alpha);
            c.convert();
            step++;
            continue;
        }
        /* The last P V of a tile lies beside the first Q K of the next. */
        const F16Rows<T> old = rows;
        work = f16_next(p, work);
        if (work < end)
            rows = next_rows();
        const uint32_t q_stage = q_place.stage;
        if (work >= end) {
            wait_for(shared.v_full[v_place.stage], v_place.parity);
            c.issue_pv(v_tile + v_place.stage * stage_words);
            look(old, step);
            done_with_v();
            c.finish();
            write(old, q_stage);
            break;
        }
        q_place.template next<2>();
        wait_for(shared.q_full[q_place.stage], q_place.parity);
        wait_for(shared.k_full[k_place.stage], k_place.parity);
        issue_qk();
        wait_for(shared.v_full[v_place.stage], v_place.parity);
        c.issue_pv(v_tile + v_place.stage * stage_words);
        look(old, step);
        done_with_v();
        wgmma_hold(c.s);
        done_with_k();
        c.finish();
        write(old, q_stage);
        c.start();
        mask(rows, 0);
        c.softmax(scale, alpha);
        c.convert();
        step = 0;
    }
    if (group == 0)
        bar_sync<256>(my_turn); /* the last turn that was passed: a barrier must not be left half full */
}

template <class T> __device__ __forceinline__ void attend_f16(const td_params_attention_f16 &p)
{
    TD_DYNAMIC_SHARED(1024, f16_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(f16_bytes);
    const uint32_t begin = blockIdx.x * p.pair, end = p.works;

    if (threadIdx.x < T::stages) {
        mbarrier_init(shared_address(&shared.k_full[threadIdx.x]), 128);
        mbarrier_init(shared_address(&shared.v_full[threadIdx.x]), 128);
        mbarrier_init(shared_address(&shared.k_empty[threadIdx.x]), 4 * T::groups);
        mbarrier_init(shared_address(&shared.v_empty[threadIdx.x]), 4 * T::groups);
    }
    if (threadIdx.x < 2) {
        mbarrier_init(shared_address(&shared.q_full[threadIdx.x]), 128);
        mbarrier_init(shared_address(&shared.q_empty[threadIdx.x]), 4 * T::groups);
    }
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x >= 128 * T::groups) {
        setmaxnreg_dec<T::producer_registers>();
        f16_produce<T>(shared, p, begin, end);
    } else {
        setmaxnreg_inc<T::consumer_registers>();
        f16_consume<T>(shared, p, begin, end);
    }
}

} // namespace td

#define TD_F16_ENTRY(name, dim, keys, groups, stages, bf16)              \
    extern "C" __global__ void __launch_bounds__(128 * (groups + 1), 1)  \
        name(const __grid_constant__ td_params_attention_f16 p)          \
    {                                                                    \
        td::wait_for_previous();                                         \
        if (!td::cancelled(p.cancel))                                    \
            td::attend_f16<td::F16Tile<dim, keys, groups, stages, bf16>>(p); \
    }
#define TD_F16_ENTRIES(dim)                                                                                          \
    TD_F16_ENTRY(attn_f16_wgmma_d##dim, dim, TD_F16_KEYS, TD_F16_GROUPS(dim), TD_F16_STAGES(dim), false)             \
    TD_F16_ENTRY(attn_bf16_wgmma_d##dim, dim, TD_F16_KEYS, TD_F16_GROUPS(dim), TD_F16_STAGES(dim), true)
#ifdef TD_F16_VARIANTS
TD_F16_VARIANTS
#else
TD_F16_ENTRIES(64)
TD_F16_ENTRIES(80)
TD_F16_ENTRIES(96)
TD_F16_ENTRIES(128)
#endif
#endif
