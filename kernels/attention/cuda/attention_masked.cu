/* Attention with lengths of keys, a bias, or positions of rows: `attn_masked_f16`, `attn_masked_bf16`, by mma.sync, for every architecture.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Tensors as they lie in memory, without a prologue: one launch, as networks of many small layers want it. A block has 64 rows of
 * Q, 16 a warp, whose fragments stay in registers; keys come MaskedTile::keys a step, the next step's copied while this one is
 * computed. Rows of K and V that do not count are never read. What is not finite in V is 0 in shared memory, and its key `bad`,
 * so that it reaches no row but those that attend to it.
 */
#include <type_traits>

#include "mask.cuh"
#include "softmax.cuh"
#include "kernels/cuda/tensor.cuh"

namespace td {

template <class E, int Dim> struct MaskedTile {
    static constexpr int dim = Dim, rows = int(TD_MASKED_ROWS), keys = int(TD_MASKED_KEYS(unsigned(Dim)));
    static constexpr int pitch = Dim + 8; /* elements: eight rows of 16 bytes fall into eight bank groups */

    struct Stage {
        alignas(16) uint16_t k[keys * pitch];
        alignas(16) uint16_t v[keys * pitch];
        int bad[keys]; /* the last step that was so there */
    };
    struct Shared {
        Stage stage[2];
    };
    static_assert(sizeof(Shared) == TD_MASKED_SHARED_BYTES(unsigned(Dim)), "the launch asks for another size");
};

template <class E> constexpr uint16_t masked_infinity = 0x7c00;
template <> constexpr uint16_t masked_infinity<__nv_bfloat16> = 0x7f80;

template <class E>
__device__ __forceinline__ void masked_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (std::is_same_v<E, __nv_bfloat16>)
        mma_bf16(c, a, b0, b1);
    else
        mma_f16(c, a, b0, b1);
}

/* Eight elements, of which there may be none, on their way into shared memory. */
__device__ __forceinline__ void masked_copy(uint16_t *to, const uint16_t *from, bool wide, bool there)
{
    if (wide) {
        cp_async_16_or_zero(shared_address(to), from, there ? 16 : 0);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i] = there ? from[i] : 0;
}

/* Whether 16 bytes may be read at once, from any eighth channel on. */
__device__ __forceinline__ bool masked_wide(const td_tensor &x)
{
    return (uint64_t(x.data) | uint64_t(x.stride_batch | x.stride_head | x.stride_row) * 2) % 16 == 0;
}

template <class E, int Dim> struct Masked {
    using T = MaskedTile<E, Dim>;
    static constexpr int tiles = T::keys / 8; /* of S, across */
    static constexpr int pieces = T::keys * Dim / 8; /* of 16 bytes, of a step's K or V */

    const td_params_attention_masked &p;
    BatchMask mask;
    int64_t batch, head, kv_head;
    int row0;  /* of the block */
    int keys;  /* that count, and that some row of the block attends to */
    int begin; /* the first of them */
    const uint16_t *k, *v;

    __device__ __forceinline__ explicit Masked(const td_params_attention_masked &params)
        : p(params), mask(params, blockIdx.x / ((params.q.rows + T::rows - 1) / T::rows) / params.q.heads)
    {
        const uint32_t tiles_of_rows = (p.q.rows + T::rows - 1) / T::rows, plane = blockIdx.x / tiles_of_rows;

        batch = plane / p.q.heads;
        head = plane % p.q.heads;
        kv_head = head / (p.q.heads / p.k.heads);
        row0 = int(blockIdx.x % tiles_of_rows) * T::rows;
        keys = mask.keys;
        begin = 0;
        if (p.causal || p.position)
            look();
        k = static_cast<const uint16_t *>(p.k.data) + batch * p.k.stride_batch + kv_head * p.k.stride_head +
            mask.k_first * p.k.stride_row;
        v = static_cast<const uint16_t *>(p.v.data) + batch * p.v.stride_batch + kv_head * p.v.stride_head +
            mask.k_first * p.v.stride_row;
    }

    /* What the block's rows attend to together; each warp looks at all of them. */
    __device__ __forceinline__ void look()
    {
        int least = keys, most = 0;

        for (int row = row0 + tid_x() % 32; row < min(row0 + T::rows, mask.rows); row += 32) {
            int first, reach;

            mask.find(row, first, reach);
            least = min(least, first);
            most = max(most, reach);
        }
#pragma unroll
        for (int apart = 16; apart; apart /= 2) {
            least = min(least, __shfl_xor_sync(~0u, least, apart));
            most = max(most, __shfl_xor_sync(~0u, most, apart));
        }
        begin = least;
        keys = most;
    }

    template <class F> __device__ __forceinline__ static void each_piece(F f)
    {
#pragma unroll
        for (int piece = tid_x(); piece < pieces; piece += int(TD_BLOCK_THREADS))
            f(piece / (Dim / 8), piece % (Dim / 8) * 8);
    }

    __device__ __forceinline__ void fetch(typename T::Stage &to, int step, bool wide_k, bool wide_v) const
    {
        each_piece([&](int key, int channel) {
            const int64_t row = step * T::keys + key;
            const bool there = row < keys && channel < int(p.q.dim);

            masked_copy(&to.k[key * T::pitch + channel], k + (there ? row * p.k.stride_row + channel : 0), wide_k, there);
            masked_copy(&to.v[key * T::pitch + channel], v + (there ? row * p.v.stride_row + channel : 0), wide_v, there);
        });
        cp_async_commit();
    }

    /* Of what this thread has copied itself. */
    __device__ __forceinline__ static void mend(typename T::Stage &of, int step)
    {
        each_piece([&](int key, int channel) {
            uint16_t *at = &of.v[key * T::pitch + channel];
            uint16_t x[8];
            bool bad = false;

            memcpy(x, __builtin_assume_aligned(at, 16), sizeof x);
#pragma unroll
            for (int i = 0; i < 8; i++)
                if ((x[i] & masked_infinity<E>) == masked_infinity<E>) {
                    x[i] = 0;
                    bad = true;
                }
            if (bad) {
                memcpy(at, x, sizeof x);
                of.bad[key] = step;
            }
        });
    }

    /* Two channels of a row of Q. */
    __device__ __forceinline__ uint32_t load_q(int row, int channel, bool wide) const
    {
        const uint16_t *at = static_cast<const uint16_t *>(p.q.data) + batch * p.q.stride_batch + head * p.q.stride_head +
                             (mask.q_first + row) * p.q.stride_row + channel;

        if (row >= mask.rows || channel >= int(p.q.dim))
            return 0;
        return wide ? *reinterpret_cast<const uint32_t *>(at) : at[0] | uint32_t(at[1]) << 16;
    }

    /* In base 2, from dot products: scaled, capped, biased; -inf where a row does not attend to a key. */
    __device__ __forceinline__ void score(float (&s)[tiles][4], const typename T::Stage &now, int step, int warp_row,
                                          const int (&first)[2], const int (&reach)[2]) const
    {
        const int lane = tid_x() % 32;
        const float c = __fmul_rn(p.scale, TD_LOG2_E);

#pragma unroll
        for (int i = 0; i < 4 * tiles; i++) {
            const int row = warp_row + fragment_row(lane, i % 4), in_step = fragment_column(lane, i / 4, i % 4);
            const int key = step * T::keys + in_step, end = reach[i % 4 / 2];
            float &x = s[i / 4][i % 4];

            if (fabsf(x) == CUDART_INF_F || now.bad[in_step] == step) /* something in Q, K or V is not finite */
                x = CUDART_NAN_F;
            x = __fmul_rn(x, c);
            if (p.softcap > 0)
                x = capped(x, p.softcap);
            if (p.bias && row < mask.rows && key < end) {
                const float bias = load_one(p.bias, p.bias_dtype, row_at(p.bias_at, batch, head, row) + key);

                x = bias == -CUDART_INF_F ? bias : __fadd_rn(x, __fmul_rn(bias, TD_LOG2_E));
            }
            if (key >= end || key < first[i % 4 / 2])
                x = -CUDART_INF_F;
        }
    }

    __device__ __forceinline__ void store(const float (&o)[Dim / 8][4], Softmax &softmax, int warp_row) const
    {
        const int lane = tid_x() % 32;
        const float sink = sink_of(p, head);

#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = warp_row + fragment_row(lane, 2 * half);
            const int64_t out = mask.q_first + row;

            if (row >= mask.rows)
                continue;
            if (p.sink)
                softmax.add_sink(half, sink);
            const float l = softmax.l[half];
            if (p.lse && lane % 4 == 0)
                p.lse[row_at(p.lse_at, batch, head, out)] = softmax.lse(half, sink);
#pragma unroll
            for (int j = 0; j < Dim / 8; j++) {
                const int c = fragment_column(lane, j, 0);

                if (c < int(p.q.dim))
                    store_pair(p.o, batch, head, out, c, l != 0.0f ? __fdiv_rn(o[j][2 * half], l) : 0.0f,
                               l != 0.0f ? __fdiv_rn(o[j][2 * half + 1], l) : 0.0f);
            }
        }
    }

    __device__ __forceinline__ void attend(typename T::Shared &shared) const
    {
        const int lane = tid_x() % 32, warp_row = row0 + tid_x() / 32 * 16, steps = (keys + T::keys - 1) / T::keys;
        const bool wide_q = masked_wide(p.q), wide_k = masked_wide(p.k), wide_v = masked_wide(p.v);
        const int from = begin / T::keys;
        uint32_t q[Dim / 16][4];
        float o[Dim / 8][4];
        int first[2], reach[2];
        Softmax softmax;

        if (row0 >= mask.rows)
            return;
#pragma unroll
        for (int half = 0; half < 2; half++)
            mask.find(mask.existing(warp_row + fragment_row(lane, 2 * half)), first[half], reach[half]);
        for (int i = tid_x(); i < 2 * T::keys; i += int(TD_BLOCK_THREADS))
            shared.stage[i / T::keys].bad[i % T::keys] = -1;
        __syncthreads();
        if (steps > from)
            fetch(shared.stage[from % 2], from, wide_k, wide_v);
#pragma unroll
        for (int step = 0; step < Dim / 16; step++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[step][i] = load_q(warp_row + lane / 4 + i % 2 * 8, 16 * step + i / 2 * 8 + lane % 4 * 2, wide_q);
        softmax.start();
#pragma unroll
        for (int i = 0; i < Dim / 2; i++)
            o[i / 4][i % 4] = 0.0f;

#pragma unroll 1
        for (int step = from; step < steps; step++) {
            typename T::Stage &now = shared.stage[step % 2];
            float s[tiles][4], alpha[2];

            cp_async_wait<0>();
            mend(now, step);
            __syncthreads(); /* the step is there, and nobody is at the one before it any more */
            if (step + 1 < steps)
                fetch(shared.stage[(step + 1) % 2], step + 1, wide_k, wide_v);
#pragma unroll
            for (int i = 0; i < 4 * tiles; i++)
                s[i / 4][i % 4] = 0.0f;
#pragma unroll
            for (int part = 0; part < Dim / 16; part++)
#pragma unroll
                for (int j = 0; j < tiles; j += 2) { /* keys 8 j to 8 j + 15 */
                    const int key = 8 * j + 8 * (lane / 16) + lane % 8, channel = 16 * part + 8 * (lane / 8 % 2);
                    uint32_t b[4];

                    ldmatrix_x4(b, shared_address(&now.k[key * T::pitch + channel]));
                    masked_mma<E>(s[j], q[part], b[0], b[1]);
                    masked_mma<E>(s[j + 1], q[part], b[2], b[3]);
                }
            score(s, now, step, warp_row, first, reach);
            softmax.step(s, alpha);
#pragma unroll
            for (int i = 0; i < Dim / 2; i++)
                o[i / 4][i % 4] = __fmul_rn(o[i / 4][i % 4], alpha[i % 4 / 2]);
#pragma unroll
            for (int part = 0; part < T::keys / 16; part++) {
                uint32_t a[4];

#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int j = 2 * part + i / 2, r = 2 * (i % 2);

                    a[i] = pack_pair(std::is_same_v<E, __nv_bfloat16>, s[j][r], s[j][r + 1]);
                }
#pragma unroll
                for (int j = 0; j < Dim / 8; j += 2) { /* channels 8 j to 8 j + 15 */
                    const int key = 16 * part + lane % 16, channel = 8 * j + lane / 16 * 8;
                    uint32_t b[4];

                    ldmatrix_x4_transposed(b, shared_address(&now.v[key * T::pitch + channel]));
                    masked_mma<E>(o[j], a, b[0], b[1]);
                    masked_mma<E>(o[j + 1], a, b[2], b[3]);
                }
            }
        }
        softmax.finish();
        store(o, softmax, warp_row);
    }
};

template <class E, int Dim> __device__ __forceinline__ void attend_masked(const td_params_attention_masked &p)
{
    TD_DYNAMIC_SHARED(16, shared);

    Masked<E, Dim>(p).attend(*reinterpret_cast<typename MaskedTile<E, Dim>::Shared *>(shared));
}

} // namespace td

#define TD_MASKED_ENTRY(name, type, dim, blocks)                                                         \
    extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS, blocks)                               \
        attn_masked_##name##_d##dim(const __grid_constant__ td_params_attention_masked p)                \
    {                                                                                                    \
        td::wait_for_previous();                                                                         \
        td::launch_dependents();                                                                         \
        if (!td::cancelled(p.cancel))                                                                    \
            td::attend_masked<type, dim>(p);                                                             \
    }
#define TD_MASKED_ENTRIES(name, type)  \
    TD_MASKED_ENTRY(name, type, 32, 4) \
    TD_MASKED_ENTRY(name, type, 64, 3) \
    TD_MASKED_ENTRY(name, type, 96, 2) \
    TD_MASKED_ENTRY(name, type, 128, 2) \
    TD_MASKED_ENTRY(name, type, 256, 1)

TD_MASKED_ENTRIES(f16, __half)
TD_MASKED_ENTRIES(bf16, __nv_bfloat16)
