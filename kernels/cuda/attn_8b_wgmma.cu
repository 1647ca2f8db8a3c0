/* Attention on int8 codes of Q and K and e4m3 codes of V by wgmma: `attn_8b_wgmma`, sm_90a. See hopper.cuh.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * S = q_scale k_scale (Qc Kc^T), exact in int32; R = Pc Vc in fp16 over 256 keys in the tensor cores, O += R in fp32.
 * Blocks have TD_HOPPER_GROUPS(d) warpgroups that compute, of 64 rows each. `attn_8b_wgmma_short` has one fewer: where
 * there are few blocks, shorter ones end earlier. Not a bit differs.
 * Shared bytes: TD_HOPPER_SHARED_BYTES(d, groups). Registers of a thread that computes: 240, 160 or 112 with 2, 3 or 4.
 * `attn_8b_wgmma_dump` is the short one for tests, with S, P and R written out.
 * Times: kernels/NOTES.md.
 */
#include "hopper.cuh"

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
        setmaxnreg_dec<T::groups == 3 ? 32 : 24>();
        produce<T>(shared, p, at);
    } else {
        setmaxnreg_inc<T::groups == 2 ? 240 : T::groups == 3 ? 160 : 112>();
        consume<T>(shared, p, at);
    }
}

} // namespace td

#define TD_HOPPER_ENTRY(name, dim, fewer, dump)                                                                \
    extern "C" __global__ void __launch_bounds__(TD_HOPPER_THREADS(TD_HOPPER_GROUPS(dim) - fewer), 1)          \
        name##_d##dim(const __grid_constant__ td_params_attention p)                                           \
    {                                                                                                          \
        td::wait_for_previous();                                                                               \
        if (!td::cancelled(p.cancel))                                                                          \
            td::attend_hopper<td::HopperTile<dim, int(TD_HOPPER_GROUPS(dim)) - fewer, dump>>(p);               \
    }
#define TD_HOPPER_ENTRIES(name, fewer, dump) \
    TD_HOPPER_ENTRY(name, 32, fewer, dump)   \
    TD_HOPPER_ENTRY(name, 64, fewer, dump)   \
    TD_HOPPER_ENTRY(name, 96, fewer, dump)   \
    TD_HOPPER_ENTRY(name, 128, fewer, dump)
TD_HOPPER_ENTRIES(attn_8b_wgmma, 0, false)
TD_HOPPER_ENTRIES(attn_8b_wgmma_short, 1, false)
TD_HOPPER_ENTRIES(attn_8b_wgmma_dump, 1, true)
#endif
