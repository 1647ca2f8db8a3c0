/* What the two prologues of sm_90 share where V is smoothed: scales by the largest and the smallest x
 * of a channel. Rounding keeps an order, so the largest |x - mean| is that of one of these, to the
 * bit, and nobody needs a look at V between mean and codes. See prepare_head.cuh.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "prepare_slice.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace td {

/* Behind the first look's barrier: a word of channels' largest and smallest x, of V's keys that the
 * block has. */
template <class E, int D, int W, int N>
__device__ __forceinline__ void ends_of_block(const td_params_prepare &p,
                                              const HeadShared<D, W, true> &shared, uint32_t rank,
                                              int word, uint32_t (&top)[N], uint32_t (&low)[N])
{
    load_words(top, &shared.v_ends[0][0][0][word]);
    load_words(low, &shared.v_ends[0][0][1][word]);
#pragma unroll 1
    for (int tile = 0; tile < int(p.tiles); tile++) {
        const int left = int(p.kv_len) - (int(rank * p.tiles) + tile) * int(TD_TILE_ROWS);

#pragma unroll
        for (int r = 0; r < 8; r++)
            if (r < left) {
                uint32_t here[2][N];

                load_words(here[0], &shared.v_ends[tile][r][0][word]);
                load_words(here[1], &shared.v_ends[tile][r][1][word]);
#pragma unroll
                for (int w = 0; w < N; w++) {
                    top[w] = max_x2<E>(top[w], here[0][w]);
                    low[w] = min_x2<E>(low[w], here[1][w]);
                }
            }
    }
}

/* The largest |x - mean|: that of the largest x or of the smallest. Where the mean overflowed to
 * NaN it is 0, as the maximum over chunks is that knows no NaN. */
__device__ __forceinline__ float most_of_ends(float top, float low, float mean)
{
    return fmaxf(fmaxf(0.0f, fabsf(__fsub_rn(top, mean))), fabsf(__fsub_rn(low, mean)));
}

} // namespace td
#endif
