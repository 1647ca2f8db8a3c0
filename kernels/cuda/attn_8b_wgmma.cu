/* Attention on int8 codes of Q and K and e4m3 codes of V by wgmma: `attn_8b_wgmma`, sm_90a. See hopper.cuh, and hopper_narrow.cuh for up to d64.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * S = q_scale k_scale (Qc Kc^T), exact in int32; R = Pc Vc over 128 keys in the tensor cores, O += R in fp32.
 * Shared bytes: TD_HOPPER_SHARED_BYTES(d); 124 KB at d128, 124 KB at d64. Registers of a thread that computes: 240, or
 * 160 up to d64.
 * `attn_8b_wgmma_dump` is the same for tests, with S, P and R written out.
 * Times: kernels/NOTES.md.
 */
#include "hopper.cuh"
#include "hopper_narrow.cuh"

#if TD_HAVE_WGMMA

namespace td {

template <class T> __device__ __forceinline__ void attend_hopper(const td_params_attention &p)
{
    TD_DYNAMIC_SHARED(1024, hopper_bytes);
    typename T::Shared &shared = *reinterpret_cast<typename T::Shared *>(hopper_bytes);
    HopperPlace at = {place<T, int64_t>(p), 0};

    at.steps = (at.keys + T::keys - 1) / T::keys;

    if (threadIdx.x < T::stages) {
        mbarrier_init(shared_address(&shared.full[threadIdx.x]), 4);
        mbarrier_init(shared_address(&shared.empty[threadIdx.x]), 4 * T::groups);
    }
    constexpr int words = 8 * T::keys / 4; /* the eight rows of ones */
    for (int i = int(threadIdx.x); i < T::stages * words; i += T::threads)
        *reinterpret_cast<uint32_t *>(shared.stage[i / words].v + T::dim * T::keys + i % words * 4) = 0x38383838u;
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x >= 128 * T::groups) {
        setmaxnreg_dec<T::groups == 2 ? 24 : 32>();
        produce<T>(shared, p, at);
    } else {
        setmaxnreg_inc<T::groups == 2 ? 240 : 160>();
        if constexpr (T::groups == 2)
            consume<T>(shared, p, at);
        else
            narrow::consume<T>(shared, p, at);
    }
}

} // namespace td

#define TD_HOPPER_ENTRY(name, dim, dump)                                              \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(unsigned(dim)), 1) \
        name##_d##dim(const __grid_constant__ td_params_attention p)                  \
    {                                                                                 \
        td::wait_for_previous();                                                      \
        if (!td::cancelled(p.cancel))                                                 \
            td::attend_hopper<td::HopperTile<dim, dump>>(p);                          \
    }
TD_HOPPER_ENTRY(attn_8b_wgmma, 32, false)
TD_HOPPER_ENTRY(attn_8b_wgmma, 64, false)
TD_HOPPER_ENTRY(attn_8b_wgmma, 96, false)
TD_HOPPER_ENTRY(attn_8b_wgmma, 128, false)
TD_HOPPER_ENTRY(attn_8b_wgmma_dump, 32, true)
TD_HOPPER_ENTRY(attn_8b_wgmma_dump, 64, true)
TD_HOPPER_ENTRY(attn_8b_wgmma_dump, 96, true)
TD_HOPPER_ENTRY(attn_8b_wgmma_dump, 128, true)
#endif
