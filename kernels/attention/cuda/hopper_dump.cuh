/* S, P and R written out, for tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "hopper_softmax.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* For tests: S and codes of P of a half, R before it begins anew. `row` is the warp's in
 * [bh][q_pad]. On the emulator all kernels have these, R only where warpgroups share no keys. */
template <class T, int Half>
__device__ __forceinline__ void dump_s(const td_params_attention &p, const Consumer<T> &c,
                                       int64_t row, int lane, int key)
{
    if (!p.dump_s)
        return;
#pragma unroll
    for (int i = 0; i < T::keys / 4; i++)
        p.dump_s[(row + fragment_row(lane, i % 4)) * p.kv_pad + key + Half * T::keys / 2 +
                 fragment_column(lane, i / 4, i % 4)] = c.s[i];
}
template <class T, int Half>
__device__ __forceinline__ void dump_p(const td_params_attention &p, const Consumer<T> &c,
                                       int64_t row, int lane, int key)
{
    if (!p.dump_p)
        return;
#pragma unroll
    for (int i = 0; i < T::keys / 4; i++)
        p.dump_p[(row + fragment_row(lane, i % 4)) * p.kv_pad + key + Half * T::keys / 2 +
                 fragment_column(lane, i / 4, i % 4)] =
            uint8_t(c.p[Half][i / 16][2 * (i / 8 % 2) + i % 4 / 2] >>
                    (16 * (i / 4 % 2) + 8 * (i % 2)));
}
template <class T>
__device__ __forceinline__ void dump_r(const td_params_attention &p, const Sums<T> &c, int64_t row,
                                       int lane, int step)
{
    if (!p.dump_r)
        return;
    const int64_t each = TD_HOPPER_SUMS(p.kv_pad, T::d),
                  at = step * T::keys / int(TD_HOPPER_R_KEYS);

#pragma unroll
    for (int i = 0; i < T::dim / 2; i++) {
        const float2 pair = c.pair_of_r(i / 2);

        p.dump_r[((row + fragment_row(lane, i % 4)) * each + at) * T::dim +
                 fragment_column(lane, i / 4, i % 4)] = i % 2 ? pair.y : pair.x;
    }
}

} // namespace td
#endif
