/* What the kernels use of CUDA's header of that name, for the emulator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#pragma once

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
