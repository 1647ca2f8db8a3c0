/* attn_8b_wgmma_short with S, P and R written out, for tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "attn_8b_wgmma.cuh"
#include "attn_8b_wgmma_256.cuh"

#if TD_HAVE_WGMMA
TD_HOPPER_ENTRIES(attn_8b_wgmma_dump, 1, true)
TD_HOPPER_256_ENTRY(attn_8b_wgmma_dump, true)
#endif
