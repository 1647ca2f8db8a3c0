/* All kernels of an architecture in one translation unit, hence one cubin.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "commit.cu"
#include "probe.cu"
#include "prologue.cu"
#include "fused.cu" /* needs prologue.cu */
#include "prepare_head.cu" /* needs fused.cu */
#include "prepare.cu" /* needs prepare_head.cu */
#include "stamp.cu"

#include "attn_4b.cu"
#include "attn_8b.cu"
#include "attn_8b_wgmma.cu"
#include "attn_8b_wgmma_256.cu"
#include "attn_8b_wgmma_inline.cu"
#include "attn_f16.cu"
#include "attn_f16_wgmma.cu"
#include "attn_f16_wgmma_inline.cu"
#include "attn_f16_wgmma_split.cu"
#include "attn_f16_wgmma_teams.cu"
