/* Tiles in shared memory as wgmma reads them, and rings of them: swizzles, descriptors, copies.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#include "ptx.cuh"

#if TD_HAVE_WGMMA

namespace td {

/* Where byte `at` of a tile of rows of Row bytes lies: 16-byte pieces are exchanged, so that 8 rows
 * meet 8 banks. */
template <int Row> __device__ __forceinline__ uint32_t swizzled(uint32_t at)
{
    return at ^ (at >> 7 & (Row / 16 - 1)) << 4;
}

/* What wgmma wants to know of a tile of rows of Row bytes in shared memory, rows one group of 8
 * after another: the low word is its address in 16 bytes, and one for a distance that these layouts
 * do not have. */
__device__ __forceinline__ uint32_t tile_word(const void *tile)
{
    return 1u << 16 | shared_address(tile) >> 4;
}
template <int Row> __device__ __forceinline__ uint64_t descriptor(uint32_t word)
{
    constexpr uint32_t swizzle = Row == 128 ? 1 : Row == 64 ? 2 : 3;

    return uint64_t(swizzle << 30 | 8 * Row >> 4) << 32 | word;
}

/* Where a warp is in a ring of stages: which stage is next, and the phase of its barriers. */
struct PipelineState {
    uint32_t stage, parity;

    template <int Stages, int By = 1> __device__ __forceinline__ void next()
    {
        stage += By;
        if (stage >= Stages) {
            stage -= Stages;
            parity ^= 1;
        }
    }
};

__device__ __forceinline__ void wait_for(const uint64_t &barrier, uint32_t parity)
{
    while (!mbarrier_try_wait(shared_address(&barrier), parity)) {
    }
}

/* All of the warp are done with a stage. One lane says so: 32 arrivals would be 32 atomic
 * operations. */
__device__ __forceinline__ void warp_arrive(uint64_t &barrier)
{
    __syncwarp();
    if (elect_sync())
        mbarrier_arrive(shared_address(&barrier));
}

/* Starts copying Rows rows of Bytes bytes into swizzled rows of Row bytes, by 128 threads: as many
 * neighbours share a row as its pieces of 16 bytes allow. Eight rows further the swizzle is the
 * same, so a thread needs few addresses. */
template <int Rows, int Bytes, int Row>
__device__ __forceinline__ void copy_swizzled(void *shared, const uint8_t *global, int64_t stride,
                                              int t)
{
    /* a power of two; rows */
    constexpr int pieces = Bytes / 16, abreast = pieces & -pieces, at_once = 128 / abreast;
    static_assert(Rows % at_once == 0 && (at_once % 8 == 0 || 8 % at_once == 0),
                  "every thread copies as much");
    const int row = t / abreast, byte = t % abreast * 16;
    const uint8_t *from = global + row * stride + byte;
    const int64_t further = at_once * stride;

#pragma unroll
    for (int r = 0; r < Rows; r += at_once) {
#pragma unroll
        for (int piece = 0; piece < pieces; piece += abreast)
            cp_async_16(shared_address(shared) +
                            swizzled<Row>(uint32_t((row + r % 8) * Row + byte + piece * 16)) +
                            uint32_t(r / 8 * 8 * Row),
                        from + piece * 16);
        from += further;
    }
}

} // namespace td
#endif
