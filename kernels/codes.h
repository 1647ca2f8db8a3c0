/* Codes as kernels of several families write and read them: tandem_codes_bytes() in types.h says how they lie.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Plain C that C++ accepts; CUDA's kernels have these functions, too.
 */
#ifndef TANDEM_KERNELS_CODES_H
#define TANDEM_KERNELS_CODES_H

#include <stdint.h>

#include "tandem/types.h"

#ifdef __CUDACC__
#define TD_CODES_INLINE static __device__ __forceinline__
#else
#define TD_CODES_INLINE static inline
#endif

#define TD_Q_TOP 127.0f /* the largest code of Q and K, */
#define TD_V_TOP 1.75f  /* and of V */
#define TD_TINY_AMAX 7.8886090522101181e-31f /* 2^-100: below it a group counts as all zero */
#define TD_CODES_ALIGN 256 /* of where they begin in a mem, and of their scales */

/* Channels with their padding, of which kernels are built for five. */
TD_CODES_INLINE uint32_t td_pad_dim(uint32_t dim)
{
    return dim <= 32 ? 32 : dim <= 64 ? 64 : dim <= 96 ? 96 : dim <= 128 ? 128 : 256;
}

/* The place within its 16 keys where V's codes have a key, and back. */
TD_CODES_INLINE uint32_t td_v_position(uint32_t key)
{
    return (key & ~15u) | ((key & 6u) << 1) | ((key & 8u) >> 2) | (key & 1u);
}
TD_CODES_INLINE uint32_t td_v_key(uint32_t position)
{
    return (position & ~15u) | ((position & 12u) >> 1) | ((position & 2u) << 2) | (position & 1u);
}

/* Which of a chunk's groups a row of 0..127 belongs to, for granularities of at least one row and at most 128. */
TD_CODES_INLINE uint32_t td_row_group(uint32_t row, uint32_t granularity, uint32_t is_k)
{
    switch (granularity) {
    case TANDEM_GRANULARITY_THREAD_ADA: return is_k ? row / 64 * 4 + row % 8 / 2 : row / 32 * 8 + row % 8;
    case TANDEM_GRANULARITY_THREAD_HOPPER: return is_k ? row % 8 / 2 : row / 16 * 8 + row % 8;
    case TANDEM_GRANULARITY_TOKEN: return row;
    case TANDEM_GRANULARITY_WARP: return is_k ? row / 64 : row / 32;
    case TANDEM_GRANULARITY_BLOCK: return is_k ? row / 64 : 0;
    default: return 0;
    }
}

#endif
