/* RMSNorm and LayerNorm: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * `norm_rows`: any. A row is read two or three times, from memory but once: it is in the cache then.
 * `norm_short`: the usual one of a short row, which a warp has in registers. Code that a block meets once takes longer than what it
 * does, so there is little of it, and all loads are under way before one of them is waited for.
 * `norm_line`: the usual one of float32 rows, as language models have them, in registers of a warp or a block, likewise.
 */
#include "kernels/cuda/norm_line.cuh"

namespace td {

/* Of which plane a row is; most often there is one. */
__device__ __forceinline__ void norm_place(const td_params_norm &p, uint64_t number, int64_t &batch, int64_t &head, int64_t &row)
{
    batch = head = 0;
    row = int64_t(number);
    if (p.total > p.rows) {
        const int64_t plane = int64_t(number / p.rows);

        row = int64_t(number % p.rows);
        batch = plane / p.heads;
        head = plane % p.heads;
    }
}

struct NormRow {
    const td_params_norm &p;
    int64_t batch, head, row;
    uint32_t lane;

    __device__ __forceinline__ int64_t at(const td_strides &r, uint32_t c) const
    {
        return row_at(r, batch, head, row) + c;
    }

    /* f(h, c, count) for all channels of this thread, eight at a time, of which `count` exist. */
    template <class F> __device__ __forceinline__ void each(F f) const
    {
        for (uint32_t c = lane * 8; c < p.channels; c += 8u * p.lanes) {
            const int count = int(p.channels - c);
            float h[8], more[8];

            load_some(h, p.x, p.dtype, at(p.x_at, c), count);
            if (p.residual)
                load_some(more, p.residual, p.residual_dtype, at(p.residual_at, c), count);
#pragma unroll
            for (int i = 0; i < 8 && p.residual; i++) {
                h[i] = __fadd_rn(h[i], more[i]);
                if (p.dtype == TANDEM_DTYPE_F16)
                    h[i] = __half2float(__float2half_rn(h[i]));
                else if (p.dtype == TANDEM_DTYPE_BF16)
                    h[i] = __bfloat162float(__float2bfloat16_rn(h[i]));
            }
            f(h, c, count);
        }
    }

    /* Turns what are pairs among eight neighbours, from channel c on. */
    __device__ __forceinline__ void rotate(float (&y)[8], uint32_t c) const
    {
        if (!p.rotation || c >= p.rotated_channels)
            return;
        const int64_t asked = p.position[row_at(p.position_at, batch, 0, row)], last = int64_t(p.positions) - 1;
        const float *turn = p.rotation + min(max(asked, int64_t(0)), last) * p.rotation_stride + c;

#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const float a = y[i], b = y[i + 1];

            y[i] = __fsub_rn(__fmul_rn(a, turn[i]), __fmul_rn(b, turn[i + 1]));
            y[i + 1] = __fadd_rn(__fmul_rn(a, turn[i + 1]), __fmul_rn(b, turn[i]));
        }
    }

    /* The mean, over the row, of what each thread has eight sums of. */
    __device__ __forceinline__ float mean(const float (&s)[8], float (&warps)[TD_NORM_THREADS / 32]) const
    {
        float all = norm_warp_sum(s);

        if (p.lanes > 32) {
            __syncthreads(); /* nobody reads the last ones any more */
            all = norm_block_sum(all, warps);
        }
        return __fdiv_rn(all, float(p.channels));
    }
};

/* Eight channels of a row in every 256, as far as there are any: 16 bytes each, zeros elsewhere. */
template <class E> struct NormShort {
    static constexpr int most = int(TD_NORM_SHORT / 256);

    uint4 words[most];

    __device__ __forceinline__ void load(const void *row, uint32_t channels)
    {
#pragma unroll
        for (int i = 0; i < most; i++) {
            const uint32_t c = 256 * i + threadIdx.x % 32 * 8;

            words[i] = make_uint4(0, 0, 0, 0);
            if (c < channels)
                words[i] = *reinterpret_cast<const uint4 *>(static_cast<const E *>(row) + c);
        }
    }
    __device__ __forceinline__ void get(float (&x)[8], int i) const
    {
        E e[8];

        memcpy(e, &words[i], sizeof e);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = to_float(e[j]);
    }
    /* Of x and `more`, rounded. */
    __device__ __forceinline__ void add(const NormShort &more, uint32_t channels)
    {
#pragma unroll
        for (int i = 0; i < most; i++)
            if (256 * i < channels) {
                float x[8], y[8];

                get(x, i);
                more.get(y, i);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    x[j] = __fadd_rn(x[j], y[j]);
                set(words[i], x);
            }
    }
    __device__ __forceinline__ static void set(uint4 &to, const float (&x)[8])
    {
        E *const as = nullptr;

        to = make_uint4(pack2(as, x[0], x[1]), pack2(as, x[2], x[3]), pack2(as, x[4], x[5]), pack2(as, x[6], x[7]));
    }
    /* The mean of x, or of its squared distances from `from`. */
    template <bool Squares> __device__ __forceinline__ float mean(uint32_t channels, float from) const
    {
        float s[8] = {};

#pragma unroll
        for (int i = 0; i < most; i++)
            if (256 * i < channels) {
                const bool there = 256 * i + threadIdx.x % 32 * 8 < channels;
                float x[8];

                get(x, i);
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    if (Squares)
                        x[j] = there ? __fmul_rn(__fsub_rn(x[j], from), __fsub_rn(x[j], from)) : 0.0f;
                    s[j] = __fadd_rn(s[j], x[j]);
                }
            }
        return __fdiv_rn(norm_warp_sum(s), float(channels));
    }
};

template <class E> __device__ __forceinline__ void norm_short(const td_params_norm &p)
{
    constexpr int most = NormShort<E>::most;
    const uint64_t number = uint64_t(blockIdx.x) * (TD_NORM_THREADS / 32) + threadIdx.x / 32;
    const bool stop = is_set(p.cancel);
    int64_t batch, head, row;

    norm_place(p, number, batch, head, row);
    wait_for_previous();
    launch_dependents();
    if (number >= p.total) /* whole warps leave */
        return;
    float weight[most][8], bias[most][8];
    NormShort<E> h;

    h.load(static_cast<const E *>(p.x) + row_at(p.x_at, batch, head, row), p.channels);
#pragma unroll
    for (int i = 0; i < most; i++) {
        const uint32_t c = 256 * i + threadIdx.x % 32 * 8;

        if (c < p.channels && p.weight)
            norm_load8(weight[i], p.weight, c);
        if (c < p.channels && p.bias)
            norm_load8(bias[i], p.bias, c);
    }
    if (p.residual) {
        NormShort<E> more;

        more.load(static_cast<const E *>(p.residual) + row_at(p.residual_at, batch, head, row), p.channels);
        h.add(more, p.channels);
    }
    const float mean = p.subtracts_mean ? h.template mean<false>(p.channels, 0) : 0.0f;
    const float square = h.template mean<true>(p.channels, mean);
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(square, p.epsilon)));

    if (__any_sync(~0u, stop))
        return;
    E *const y = static_cast<E *>(p.y) + row_at(p.y_at, batch, head, row);
#pragma unroll
    for (int i = 0; i < most; i++) {
        const uint32_t c = 256 * i + threadIdx.x % 32 * 8;

        if (c < p.channels) {
            float x[8];
            uint4 words;

            if (p.sum)
                *reinterpret_cast<uint4 *>(static_cast<E *>(p.sum) + row_at(p.sum_at, batch, head, row) + c) = h.words[i];
            h.get(x, i);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                x[j] = __fmul_rn(__fsub_rn(x[j], mean), scale);
                if (p.weight)
                    x[j] = __fmul_rn(x[j], weight[i][j]);
                if (p.bias)
                    x[j] = __fadd_rn(x[j], bias[i][j]);
            }
            NormShort<E>::set(words, x);
            *reinterpret_cast<uint4 *>(y + c) = words;
        }
    }
}

template <class Y> __device__ __forceinline__ void norm_line(const td_params_norm &p, float (&warps)[TD_NORM_THREADS / 32])
{
    const uint64_t number = uint64_t(blockIdx.x) * (TD_NORM_THREADS / p.lanes) + threadIdx.x / p.lanes;
    NormLine row(p.lanes, p.channels);
    int64_t batch, head, at;

    norm_place(p, number, batch, head, at);
    const bool there = number < p.total; /* of all threads of a warp alike */
    float weight[NormLine::most][8];
    const bool stop = is_set(p.cancel);

    if (!p.weight_is_constant) /* else it comes from memory while the kernel ahead runs */
        wait_for_previous();
    row.load(weight, static_cast<const float *>(p.weight), there);
    if (p.weight_is_constant)
        wait_for_previous();
    launch_dependents();
    row.load(row.h, static_cast<const float *>(p.x) + row_at(p.x_at, batch, head, at), there);
    const float scale = row.scale(p.epsilon, there, warps);

    if (__any_sync(~0u, stop))
        return;
    row.store(static_cast<Y *>(p.y) + row_at(p.y_at, batch, head, at), scale, there, [&](int i, float(&w)[8]) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            w[j] = weight[i][j];
    });
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_NORM_THREADS, 2) norm_rows(const __grid_constant__ td_params_norm p)
{
    __shared__ float warps[TD_NORM_THREADS / 32];
    const uint64_t number = uint64_t(blockIdx.x) * (TD_NORM_THREADS / p.lanes) + threadIdx.x / p.lanes;

    td::wait_for_previous();
    td::launch_dependents();
    if (td::cancelled(p.cancel) || number >= p.total) /* whole warps leave; where all threads share a row there is one */
        return;
    const int64_t plane = int64_t(number / p.rows);
    const td::NormRow row = {p, plane / p.heads, plane % p.heads, int64_t(number % p.rows), threadIdx.x % p.lanes};
    float sums[8] = {}, squares[8] = {}, mean = 0;

    if (p.subtracts_mean) {
        row.each([&](const float(&h)[8], uint32_t, int) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                sums[i] = __fadd_rn(sums[i], h[i]);
        });
        mean = row.mean(sums, warps);
    }
    row.each([&](const float(&h)[8], uint32_t, int count) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float apart = i < count ? __fsub_rn(h[i], mean) : 0;

            squares[i] = __fadd_rn(squares[i], __fmul_rn(apart, apart));
        }
    });
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(row.mean(squares, warps), p.epsilon)));

    row.each([&](const float(&h)[8], uint32_t c, int count) {
        float y[8], weight[8], bias[8];

        if (p.sum)
            td::store_some(p.sum, p.dtype, row.at(p.sum_at, c), count, h);
        if (p.weight)
            td::load_some(weight, p.weight, p.weight_dtype, c, count);
        if (p.bias)
            td::load_some(bias, p.bias, p.bias_dtype, c, count);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            y[i] = __fmul_rn(__fsub_rn(h[i], mean), scale);
            if (p.weight)
                y[i] = __fmul_rn(y[i], weight[i]);
            if (p.bias)
                y[i] = __fadd_rn(y[i], bias[i]);
        }
        row.rotate(y, c);
        td::store_some(p.y, p.y_dtype, row.at(p.y_at, c), count, y);
    });
}

extern "C" __global__ void __launch_bounds__(TD_NORM_THREADS, 1) norm_short_f16(const __grid_constant__ td_params_norm p)
{
    td::norm_short<__half>(p);
}

extern "C" __global__ void __launch_bounds__(TD_NORM_THREADS, 1) norm_short_bf16(const __grid_constant__ td_params_norm p)
{
    td::norm_short<__nv_bfloat16>(p);
}

extern "C" __global__ void __launch_bounds__(TD_NORM_THREADS, 1) norm_line_f16(const __grid_constant__ td_params_norm p)
{
    __shared__ float warps[TD_NORM_THREADS / 32];

    td::norm_line<__half>(p, warps);
}

extern "C" __global__ void __launch_bounds__(TD_NORM_THREADS, 1) norm_line_bf16(const __grid_constant__ td_params_norm p)
{
    __shared__ float warps[TD_NORM_THREADS / 32];

    td::norm_line<__nv_bfloat16>(p, warps);
}
