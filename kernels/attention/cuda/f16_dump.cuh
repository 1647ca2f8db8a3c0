/* S and P of the kernels on fp16 and bf16 tensors written out, for tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "f16.cuh"

#if TD_HAVE_WGMMA

namespace td {

struct F16Dumped : td_params_attention_f16 {
    td_dump_f16 dump;
};
static_assert(sizeof(F16Dumped) == sizeof(td_params_attention_f16_dump), "one block, named twice");

/* What an entry takes: only on the emulator is there where to write to. */
using F16Params = std::conditional_t<kAllDump, F16Dumped, td_params_attention_f16>;

/* Of a warp's 16 rows and a step's keys, those that exist: put(place in [bh][q_pad][kv_pad], i), i
 * being that of a thread's scores. */
template <class T, class Put>
__device__ __forceinline__ void f16_dump(const F16Dumped &p, const F16Rows<T> &rows, int first_key,
                                         Put put)
{
    const int64_t bh = int64_t(rows.at.batch) * p.q.heads + rows.at.head;
    const int lane = tid_x() % 32;

    for (int i = 0; i < T::keys / 2; i++) {
        const int row = rows.row0 + fragment_row(lane, i % 4);
        const int key = first_key + fragment_column(lane, i / 4, i % 4);

        if (row < int(p.q.rows) && key < int(p.k.rows))
            put((bh * p.dump.q_pad + row) * p.dump.kv_pad + key, i);
    }
}

/* Scores before they are masked. */
template <class T>
__device__ __forceinline__ void f16_dump_s(const td_params_attention_f16 &p,
                                           const float (&s)[T::keys / 2], const F16Rows<T> &rows,
                                           int first_key)
{
    if constexpr (kAllDump) {
        const F16Dumped &to = static_cast<const F16Dumped &>(p);

        if (to.dump.s)
            f16_dump<T>(to, rows, first_key, [&](int64_t at, int i) { to.dump.s[at] = s[i]; });
    }
}

/* P as it is multiplied. */
template <class T>
__device__ __forceinline__ void f16_dump_p(const td_params_attention_f16 &p,
                                           const typename F16Consumer<T>::Codes &codes,
                                           const F16Rows<T> &rows, int first_key)
{
    if constexpr (kAllDump) {
        const F16Dumped &to = static_cast<const F16Dumped &>(p);

        if (to.dump.p)
            f16_dump<T>(to, rows, first_key, [&](int64_t at, int i) {
                to.dump.p[at] = uint16_t(codes[i / 8][i / 2 % 4] >> (16 * (i % 2)));
            });
    }
}

} // namespace td
#endif
