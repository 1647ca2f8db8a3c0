/* Comparing what kernels left of a case with what the CPU twin left: each fails the cmocka test that calls it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_ATTENTION_COMPARE_H
#define TD_TESTS_ATTENTION_COMPARE_H

#include "tests/kernels/attention_util.h"

/* `gpu`: its scratch, the twin's being the case's. All but the dumps, bit for bit. */
void tu_compare_prologue(const tu_case *it, const unsigned char *gpu);
/* S bit for bit, codes of P (NULL: none) but for one in 10000 that is one off, of the keys that a row's block visits. */
void tu_compare_codes(const tu_case *it, const unsigned char *gpu_s, const unsigned char *twin_s, const unsigned char *gpu_p,
                      const unsigned char *twin_p);
/* S bit for bit, codes of P but for one in 10000, R as `accumulator` (unless it is wgmma's) makes it of the GPU's own P. */
void tu_compare_dumps(const tu_case *it, const unsigned char *gpu, uint32_t accumulator);
/* Relative L1 over what is finite in both; NaN and Inf must be at the same places. */
double tu_distance(const tu_tensor *gpu, const tu_tensor *twin);
/* O, and lse where it has data. */
void tu_compare_outputs(const tu_case *it, const tu_tensor *o, const tu_tensor *lse);
/* A tensor of the same shape and layout, with memory of its own. */
tu_tensor tu_tensor_like(const tu_tensor *of);

#endif
