/* D = A B + C by one tensor core instruction: `probe_wgmma_e4m3`, `probe_wgmma_e4m3_f16`, `probe_mma_e4m3`,
 * `probe_mma_f16`. See params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A block is a tile of 16 x 8. wgmma works on 64 rows: its four warps hold the same 16.
 * B for wgmma, without swizzle: two core matrices (k 0..15, 16..31) of 8 columns x 16 bytes, 128 bytes apart.
 */
#include <cuda_fp16.h>

#include "fragment.cuh"
#include "kernels/params.h"

namespace td {

constexpr int kProbeRows = 16, kProbeColumns = 8;
constexpr int kProbeRowBytes = 32; /* of A, and a column of B: 32 e4m3 or 16 fp16 */

struct ProbeTile {
    uint32_t a[4], b[2];
    float c[4];

    __device__ __forceinline__ explicit ProbeTile(const td_params_probe &p)
    {
        const int lane = int(threadIdx.x) % 32;
        const int64_t tile = blockIdx.x;
        const uint8_t *from_a = (const uint8_t *)p.a + (tile * kProbeRows + lane / 4) * kProbeRowBytes + 4 * (lane % 4);
        const uint8_t *from_b =
            (const uint8_t *)p.b + (tile * kProbeColumns + lane / 4) * kProbeRowBytes + 4 * (lane % 4);

        a[0] = ld_global(from_a);
        a[1] = ld_global(from_a + 8 * kProbeRowBytes);
        a[2] = ld_global(from_a + 16);
        a[3] = ld_global(from_a + 8 * kProbeRowBytes + 16);
        b[0] = ld_global(from_b);
        b[1] = ld_global(from_b + 16);
        for (int i = 0; i < 4; i++)
            c[i] = p.c[at(lane, i)];
    }

    __device__ __forceinline__ static int64_t at(int lane, int i)
    {
        return (int64_t(blockIdx.x) * kProbeRows + fragment_row(lane, i)) * kProbeColumns + fragment_column(lane, 0, i);
    }

    __device__ __forceinline__ void store(const td_params_probe &p) const
    {
        if (threadIdx.x < 32)
            for (int i = 0; i < 4; i++)
                p.d[at(int(threadIdx.x), i)] = c[i];
    }
};

} // namespace td

#if TD_HAVE_WGMMA
template <bool InF16> __device__ __forceinline__ void probe_wgmma(const td_params_probe &p)
{
    constexpr int core = 128; /* bytes of a core matrix */
    __shared__ __align__(128) uint8_t b[2 * core];
    td::ProbeTile tile(p);
    uint32_t halves[2] = {td::cvt_f16x2(tile.c[1], tile.c[0]), td::cvt_f16x2(tile.c[3], tile.c[2])};

    for (int i = int(threadIdx.x); i < 2 * core; i += int(TD_BLOCK_THREADS)) {
        const int column = i % core / 16, k = i / core * 16 + i % 16;

        b[i] = ((const uint8_t *)p.b)[(int64_t(blockIdx.x) * td::kProbeColumns + column) * td::kProbeRowBytes + k];
    }
    td::fence_proxy_async();
    __syncthreads();
    /* start address, bytes between the core matrices of k, those of the next 8 columns (none); in 16 bytes each */
    const uint64_t descriptor =
        (td::shared_address(b) & 0x3ffff) >> 4 | uint64_t(core >> 4) << 16 | uint64_t(2 * core >> 4) << 32;
    td::wgmma_fence();
    if constexpr (InF16)
        td::wgmma_m64n8k32_e4m3(halves, tile.a, descriptor);
    else
        td::wgmma_m64n8k32_e4m3(tile.c, tile.a, descriptor);
    td::wgmma_commit();
    td::wgmma_wait<0>();
    for (int i = 0; i < 4 && InF16; i++)
        tile.c[i] = __half2float(__ushort_as_half((unsigned short)(halves[i / 2] >> 16 * (i % 2))));
    tile.store(p);
}

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS)
    probe_wgmma_e4m3(const __grid_constant__ td_params_probe p)
{
    probe_wgmma<false>(p);
}

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS)
    probe_wgmma_e4m3_f16(const __grid_constant__ td_params_probe p)
{
    probe_wgmma<true>(p);
}
#endif

#if TD_HAVE_E4M3
extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS) probe_mma_e4m3(const __grid_constant__ td_params_probe p)
{
    td::ProbeTile tile(p);

    td::mma_e4m3(tile.c, tile.a, tile.b[0], tile.b[1]);
    tile.store(p);
}
#endif

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS) probe_mma_f16(const __grid_constant__ td_params_probe p)
{
    td::ProbeTile tile(p);

    td::mma_f16(tile.c, tile.a, tile.b[0], tile.b[1]);
    tile.store(p);
}
