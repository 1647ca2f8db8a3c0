/* `quantise`: codes and scales of Q, K and V. See fused.cuh.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "fused_set.cuh"

namespace td {

/* A set of Q or K, tiles first .. of all heads, those below `end`. With Mean they are smoothed.
 * `ready` is called by all threads once the loads of the first set are under way; it ends with a
 * barrier and true, or false if the job is given up. */
template <bool Mean, class E, class Ready>
__device__ __forceinline__ bool quantise_set(const td_params_quantise &p, const Part &part,
                                             const E *x, uint32_t first, uint32_t end,
                                             const Turn &turn, FusedShared &shared, uint8_t *stage,
                                             Ready ready)
{
    const ThreadLayout layout(p.dim, p.d_pad);
    const int t = int(threadIdx.x), set_rows = kVectors * layout.at_once;
    const int per_tile = int(TD_TILE_ROWS) / layout.at_once;
    const int64_t row0 = int64_t(first) * TD_TILE_ROWS;
    const int mean_step = Mean && part.block_mean ? int(p.d_pad) : 0; /* from tile to tile */
    Vector<E> kept[kVectors];

    if (!bring_set(kept, part, x, first, end, p.d_pad, turn, layout, shared,
                   stage + TD_FUSED_SHARED_BYTES, ready))
        return false;
    const int *rows_of = shared.tiles[turn.which].rows;
    uint32_t exists = 0; /* bits of vectors */
#pragma unroll
    for (int i = 0; i < kVectors; i++)
        exists |=
            uint32_t(layout.reads &&
                     i % per_tile * layout.at_once + layout.row < rows_of[i / per_tile])
            << i;
    clean_set(kept, [&](int i) { shared.bad[i * layout.at_once + layout.row] = 1; });
    if (Mean && part.block_mean) {
        sum_rows<1>(stage, layout, kept, [&](int tile, int c, const float(&sum)[1]) {
            if (rows_of[tile] && c < int(p.d_pad)) {
                const float mean = __fdiv_rn(sum[0], float(rows_of[tile]));

                shared.mean[tile * int(p.d_pad) + c] = mean;
                part.block_mean[int64_t(first + uint32_t(tile)) * p.d_pad + c] = mean;
            }
        });
        __syncthreads();
    }

    const auto largest_of = [&](const Vector<E> &v, int i) {
        const float *mean = shared.mean + i / per_tile * mean_step + layout.channel;
        unsigned most = 0;

        if constexpr (!Mean) {
            Vector<E> top;

            top.words[0] = 0;
#pragma unroll
            for (int w = 0; w < Vector<E>::count; w++)
                top.words[0] = max_magnitude(top.words[0], v.words[w]);
            most = __float_as_uint(fmaxf(top.at(0), top.at(1)));
        } else if (exists >> i & 1) {
            float largest = 0.0f;

#pragma unroll
            for (int c = 0; c < 8; c++) {
                const float y = __fsub_rn(v.at(c), mean[c]);

                if constexpr (std::is_same_v<E, __half>) /* never NaN: sums of 2^30 of them are
                                                            finite */
                    largest = fmaxf(largest, fabsf(y));
                else
                    most = max(most, magnitude(y));
            }
            if constexpr (std::is_same_v<E, __half>)
                most = __float_as_uint(largest);
        }
        return most;
    };
    const auto tell = [&](unsigned most, int i) {
        const int r = i * layout.at_once + layout.row;

        if (layout.channel == 0)
            atomicMax(&shared.top[r / 128 * 128 + group_of(r % 128, p.granularity, part.is_k)],
                      most);
    };
    unsigned most[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; i++)
        most[i] = largest_of(kept[i], i);
#pragma unroll 1
    for (int offset = layout.lanes / 2; offset; offset /= 2)
#pragma unroll
        for (int i = 0; i < kVectors; i++)
            most[i] = max(most[i], __shfl_xor_sync(~0u, most[i], offset));
#pragma unroll
    for (int i = 0; i < kVectors; i++)
        tell(most[i], i);
#pragma unroll
    for (int i = 0; i < kVectors; i++)
        forget(kept[i].words); /* else 64 differences are kept, in more registers than there are */
    __syncthreads();
    if (const int r = t; r < set_rows) { /* a thread a row */
        const unsigned top =
            shared.top[r / 128 * 128 + group_of(r % 128, p.granularity, part.is_k)];
        const float amax = __fmul_rn(__uint_as_float(top), part.clip);
        float scale = code_scale(amax, p.qmax);

        shared.factor[r] = code_factor(amax, p.qmax);
        if (shared.bad[r])
            scale = CUDART_NAN_F;
        if (first + uint32_t(r) / TD_TILE_ROWS < end) {
            if (part.flag)
                scale = __fadd_rn(scale, part.flag[row0 + r]);
            part.scale[row0 + r] =
                r % int(TD_TILE_ROWS) < rows_of[r / int(TD_TILE_ROWS)] ? scale : 0.0f;
        }
    }
    __syncthreads();

    const auto put = [&](const Vector<E> &v, int i) {
        const int r = i * layout.at_once + layout.row;
        const float *mean = shared.mean + i / per_tile * mean_step + layout.channel,
                    factor = shared.factor[r];
        const bool has = exists >> i & 1;
        uint32_t code[8];

        if (first + uint32_t(r) / TD_TILE_ROWS >= end)
            return;
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const float y = Mean ? __fsub_rn(v.at(c), mean[c]) : v.at(c);
            const float within = fminf(fmaxf(__fmul_rn(y, factor), -p.qmax), p.qmax);

            code[c] = __float_as_uint(
                __fadd_rn(within, 12582912.0f)); /* 1.5 * 2^23: its last bits are the integer */
        }
        if (p.mode == 2) {
            const int row_bytes = int(TD_PACKED_ROW_BYTES(uint32_t(p.d_pad)));
            uint8_t *to = (uint8_t *)part.codes + (row0 + r) * row_bytes;
            uint32_t word = 0;

#pragma unroll
            for (int c = 0; c < 8; c++)
                word |= (code[c] & 15) << (4 * c);
            word = has ? word : 0;
            /* the second: padding */
            for (int c = layout.channel; c < 2 * row_bytes; c += 8 * layout.lanes) {
                *reinterpret_cast<uint32_t *>(to + c / 2) = word;
                word = 0;
            }
        } else if (layout.writes) {
            uint2 word;

            word.x = __byte_perm(__byte_perm(code[0], code[1], 0x0040),
                                 __byte_perm(code[2], code[3], 0x0040), 0x5410);
            word.y = __byte_perm(__byte_perm(code[4], code[5], 0x0040),
                                 __byte_perm(code[6], code[7], 0x0040), 0x5410);
            *reinterpret_cast<uint2 *>((uint8_t *)part.codes + (row0 + r) * p.d_pad +
                                       layout.channel) = has ? word : make_uint2(0, 0);
        }
    };
#pragma unroll
    for (int i = 0; i < kVectors; i++)
        put(kept[i], i);
    return true;
}

/* lse_bias of a set of Q: a thread a row, the channels in order. */
template <class E>
__device__ __forceinline__ void bias_of_set(const td_params_quantise &p, const Part &part,
                                            const E *x, uint32_t first, uint32_t end,
                                            FusedShared &shared, uint8_t *stage)
{
    const uint32_t t = threadIdx.x, chunks = (p.kv_len + TD_TILE_ROWS - 1) / TD_TILE_ROWS;

    for (uint32_t tile = first; tile < end; tile++) {
        const uint32_t bh = tile / part.chunks, head = bh % p.heads,
                       row = tile % part.chunks * TD_TILE_ROWS + t;

        head_mean(shared.mean, stage, p.partial,
                  bh / p.heads * p.kv_heads + head / (p.heads / p.kv_heads), chunks, p.d_pad,
                  p.kv_len, nullptr);
        if (t >= TD_TILE_ROWS)
            continue;
        const E *from =
            x + bh / p.heads * part.strides[0] + head * part.strides[1] + row * part.strides[2];
        float bias = 0.0f;
        for (uint32_t c = 0; row < part.len && c < p.dim; c++) {
            const float v = to_float(from[c]);

            bias = __fmaf_rn(is_finite(v) ? v : 0.0f, shared.mean[c], bias);
        }
        p.lse_bias[int64_t(tile) * TD_TILE_ROWS + t] = bias;
    }
}

/* Scales of a head's V, its chunks' maxima being known; ends with a barrier. shared.top is all
 * zeros. */
__device__ __forceinline__ void factors_of_v(const td_params_quantise &p, uint32_t bhk,
                                             uint32_t chunks, bool writes, FusedShared &shared,
                                             uint8_t *stage)
{
    const uint32_t t = threadIdx.x, parts = TD_FUSED_THREADS / p.d_pad, c = t % p.d_pad;
    const float *values = reinterpret_cast<const float *>(stage);
    float most = 0.0f;

    for (uint32_t from = 0, count; from < chunks; from += count) {
        count = bring(stage, p.amax + int64_t(bhk) * chunks * p.d_pad, from, chunks, p.d_pad);
        if (t < parts * p.d_pad)
#pragma unroll 8
            for (uint32_t i = t / p.d_pad; i < count; i += parts)
                most = fmaxf(most, values[i * p.d_pad + c]);
    }
    if (t < parts * p.d_pad)
        atomicMax(&shared.top[c], __float_as_uint(most));
    __syncthreads();
    if (t < p.d_pad) {
        const float amax = __uint_as_float(shared.top[t]);

        shared.factor[t] = code_factor(amax, TD_V_TOP);
        if (writes)
            p.v_scale[int64_t(bhk) * p.d_pad + t] = code_scale(amax, TD_V_TOP);
    }
    __syncthreads();
}

#if TD_HAVE_E4M3
/* A set of V: keys first .. of a head whose first element is at `head`. Word w of a channel of the
 * stage holds keys 16 (w / 4) + 2 (w % 4) + {0, 1, 8, 9}; it lies at w ^ (channel / 8 * (32 /
 * lanes)), so that neither way meets a bank twice. */
template <class E, class Ready>
__device__ __forceinline__ bool quantise_set_of_v(const td_params_quantise &p, const E *head,
                                                  int64_t stride, uint32_t bhk, uint32_t first,
                                                  bool wide, const Turn &turn, FusedShared &shared,
                                                  uint8_t *stage, Ready ready)
{
    constexpr int keys[4] = {0, 1, 8, 9};
    const ThreadLayout layout(p.dim, p.d_pad);
    const int t = int(threadIdx.x), threads = int(TD_FUSED_THREADS),
              set_rows = kVectors * layout.at_once;
    const int twist = 32 / layout.lanes;
    uint8_t *ahead = stage + TD_FUSED_SHARED_BYTES;
    Vector<E> kept[kVectors];

    const auto find = [&](uint32_t first_key, auto f) {
        const uint32_t key = first_key + uint32_t(layout.row / 4 * 16 + layout.row % 4 * 2);
        const E *from = head + key * stride + layout.channel;

#pragma unroll
        for (int i = 0; i < 4; i++)
            f(i, from + keys[i] * stride, layout.reads && key + uint32_t(keys[i]) < p.kv_len);
    };
    if (!wide)
        find(first, [&](int i, const E *from, bool exists) {
            kept[i].template load<false>(from, exists);
        });
    else if (turn.first || !turn.ahead)
        find(first,
             [&](int i, const E *from, bool exists) { kept[i].template load<true>(from, exists); });
    if (!ready())
        return false;
    if (!turn.first && turn.ahead)
        take_ahead(kept, ahead);
    if (turn.ahead && turn.has_next) {
        find(first + uint32_t(set_rows),
             [&](int i, const E *from, bool exists) { load_ahead(ahead, i, from, exists); });
        cp_async_commit();
    }
    clean_set(kept, [](int) {});
    if (layout.writes) {
        uint32_t *to = reinterpret_cast<uint32_t *>(stage) + layout.channel * (set_rows / 4) +
                       (layout.row ^ (layout.channel / 8 * twist));

#pragma unroll
        for (int c = 0; c < 8; c++) {
            const float factor = shared.factor[layout.channel + c];
            const uint32_t low =
                cvt_e4m3x2(__fmul_rn(kept[1].at(c), factor), __fmul_rn(kept[0].at(c), factor));
            const uint32_t high =
                cvt_e4m3x2(__fmul_rn(kept[3].at(c), factor), __fmul_rn(kept[2].at(c), factor));

            to[c * (set_rows / 4)] = __byte_perm(low, high, 0x5410);
        }
    }
    __syncthreads();
    const uint32_t kv_pad = (p.kv_len + TD_TILE_ROWS - 1) / TD_TILE_ROWS * TD_TILE_ROWS;
    const int pieces = set_rows / 16, shift = __ffs(pieces) - 1; /* of 16 keys, a power of two */
    uint8_t *codes = (uint8_t *)p.v_codes + int64_t(bhk) * p.d_pad * kv_pad + first;
#pragma unroll 1
    for (int i = t; i < int(p.d_pad) << shift; i += threads) {
        const int channel = i >> shift, piece = i & (pieces - 1), swap = channel / 8 * twist;

        if (first + uint32_t(piece) * 16 >= kv_pad)
            continue;
        uint4 x = reinterpret_cast<const uint4 *>(stage)[channel * pieces + (piece ^ swap >> 2)];
        if (swap & 1)
            x = make_uint4(x.y, x.x, x.w, x.z);
        if (swap & 2)
            x = make_uint4(x.z, x.w, x.x, x.y);
        *reinterpret_cast<uint4 *>(codes + int64_t(channel) * kv_pad + piece * 16) = x;
    }
    return true;
}
#endif

/* Some sets of a head of K, or one of Q: two versions, so that what differs stays in constant
 * memory. */
template <bool is_k>
__device__ __forceinline__ void block_of_qk(const td_params_quantise &p, uint32_t block,
                                            uint32_t gone, FusedShared &shared, uint8_t *stage)
{
    const uint32_t each = TD_FUSED_TILES(p.d_pad),
                   kv_chunks = (p.kv_len + TD_TILE_ROWS - 1) / TD_TILE_ROWS;
    const uint32_t bhk = is_k ? block / p.kv_blocks : 0, limit = is_k ? kv_chunks : p.q_tiles;
    const uint32_t tile0 = (is_k ? block % p.kv_blocks : block) * p.sets * each,
                   to = min(tile0 + p.sets * each, limit);
    const bool smooth = is_k ? p.partial != nullptr : p.q_mean != nullptr;
    Part part;

    part.is_k = is_k;
    for (int i = 0; i < 3; i++)
        part.strides[i] = is_k ? p.k_strides[i] : p.q_strides[i];
    part.heads = is_k ? p.kv_heads : p.heads;
    part.len = is_k ? p.kv_len : p.q_len;
    part.dim = p.dim;
    part.chunks = (part.len + TD_TILE_ROWS - 1) / TD_TILE_ROWS;
    part.scale = is_k ? p.k_scale : p.q_scale;
    part.block_mean = is_k ? nullptr : p.q_mean;
    part.flag = is_k ? p.flag : nullptr;
    part.codes = is_k ? p.k_codes : p.q_codes;
    part.clip = is_k ? p.k_clip : p.q_clip;

    as_dtype(is_k ? p.k : p.q, is_k ? p.k_dtype : p.q_dtype, [&](auto x) {
        const auto ready = [&]() {
            const bool stop = __syncthreads_or(int(gone));

            if (is_k) {
                wait_for_previous();
                if (p.partial && !stop)
                    head_mean(shared.mean, stage, p.partial, bhk, kv_chunks, p.d_pad, p.kv_len,
                              tile0 == 0 ? p.k_mean : nullptr);
            }
            return !stop;
        };
        Turn turn = {true, false, p.ahead && is_wide(x, part.strides), 0};
        for (uint32_t tile = tile0; tile < to; tile += each) {
            const uint32_t first = bhk * kv_chunks + tile, end = bhk * kv_chunks + to;

            turn.has_next = tile + each < to;
            if (smooth ? !quantise_set<true>(p, part, x, first, end, turn, shared, stage, ready)
                       : !quantise_set<false>(p, part, x, first, end, turn, shared, stage, ready))
                return;
            turn.first = false;
            turn.which ^= 1;
            __syncthreads(); /* what the set left in shared memory is used */
        }
        if (!is_k && p.lse_bias) {
            wait_for_previous();
            bias_of_set(p, part, x, tile0, to, shared, stage);
        }
    });
}

__device__ __forceinline__ void block_of_v(const td_params_quantise &p, uint32_t block,
                                           uint32_t gone, FusedShared &shared, uint8_t *stage)
{
#if TD_HAVE_E4M3
    const uint32_t bhk = block / p.kv_blocks, chunks = (p.kv_len + TD_TILE_ROWS - 1) / TD_TILE_ROWS;
    const uint32_t each = TD_FUSED_TILES(p.d_pad), from = block % p.kv_blocks * p.sets * each;
    const uint32_t to = min(from + p.sets * each, chunks);

    for (uint32_t c = threadIdx.x; c < p.d_pad; c += TD_FUSED_THREADS)
        shared.top[c] = 0;
    as_dtype(p.v, p.v_dtype, [&](auto v) {
        const auto *head =
            v + bhk / p.kv_heads * p.v_strides[0] + bhk % p.kv_heads * p.v_strides[1];
        const bool wide = is_wide(v, p.v_strides);

        Turn turn = {true, false, p.ahead && wide, 0};
        for (uint32_t tile = from; tile < to; tile += each) {
            const auto ready = [&]() {
                if (!turn.first) {
                    __syncthreads(); /* the last set's codes have left */
                    return true;
                }
                const bool stop = __syncthreads_or(int(gone));

                wait_for_previous();
                if (!stop)
                    factors_of_v(p, bhk, chunks, tile == 0, shared, stage);
                return !stop;
            };

            turn.has_next = tile + each < to;
            if (!quantise_set_of_v(p, head, p.v_strides[2], bhk, tile * TD_TILE_ROWS, wide, turn,
                                   shared, stage, ready))
                return;
            turn.first = false;
        }
    });
#endif
}

} // namespace td

/* Plans of GPUs with FP8 tensor cores have it. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
/* Two blocks a multiprocessor; what ptxas makes of it for sm_120 spills at 64 registers. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define TD_QUANTISE_BLOCKS 1
#else
#define TD_QUANTISE_BLOCKS 2
#endif
extern "C" __global__ void __launch_bounds__(TD_FUSED_THREADS, TD_QUANTISE_BLOCKS)
    quantise(const __grid_constant__ td_params_quantise p)
{
    TD_DYNAMIC_SHARED(16, stage);
    td::FusedShared &shared = *reinterpret_cast<td::FusedShared *>(stage + TD_FUSED_STAGE_BYTES);
    const uint32_t gone = td::cancel_word(p.cancel), kv = p.kv_planes * p.kv_blocks;
    const bool is_q = blockIdx.x >= 2 * kv;

    td::launch_dependents();
    if (!is_q && blockIdx.x % 2)
        td::block_of_v(p, kv - 1 - blockIdx.x / 2, gone, shared, stage);
    else if (is_q)
        td::block_of_qk<false>(p, blockIdx.x - 2 * kv, gone, shared, stage);
    else
        td::block_of_qk<true>(p, kv - 1 - blockIdx.x / 2, gone, shared, stage);
}
#endif
