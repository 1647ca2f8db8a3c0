/* The kernels of one architecture (__CUDA_ARCH__) as a module of the emulator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/emu/builtins.h"

#include "kernels/cuda/kernels.cu"
