/* The kernels of one architecture (__CUDA_ARCH__) as a module of the emulator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/emu/builtins.h"

#include "kernels/attention/cuda/attention_dump.cu"
#include "kernels/attention/cuda/attention_few.cu"
#include "kernels/attention/cuda/attention_masked.cu"
#include "kernels/attention/cuda/attention_mma.cu"
#include "kernels/attention/cuda/attention_prepare.cu"
#include "kernels/attention/cuda/attention_wgmma_8b.cu"
#include "kernels/attention/cuda/attention_wgmma_f16.cu"
#include "kernels/binary/binary.cu"
#include "kernels/cache/cache_append.cu"
#include "kernels/cache/cache_attend.cu"
#include "kernels/cuda/common.cu"
#include "kernels/cuda/probe.cu"
#include "kernels/embed/embed.cu"
#include "kernels/linear/linear_codes.cu"
#include "kernels/linear/linear_direct.cu"
#include "kernels/linear/linear_few.cu"
#include "kernels/linear/linear_inline.cu"
#include "kernels/linear/linear_mma.cu"
#include "kernels/linear/linear_skinny.cu"
#include "kernels/norm/norm.cu"
#include "kernels/pool/pool.cu"
#include "kernels/scatter/scatter.cu"
