/* Cases of conv, and what they should give: for the emulated GPUs and for a real one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_CONV_CASES_H
#define TD_TESTS_CONV_CASES_H

#include "tests/kernels/kernels_util.h"

enum { CV_CASES = 21 };

/* Random tensors; `n` chooses batch, kernel size, stride, shuffle, activation, layouts and seeds. */
ku_case cv_make(uint32_t n, uint32_t height, uint32_t width, uint32_t channels, uint32_t coarse_channels, uint32_t outs);
/* One of CV_CASES. Which kernel is planned depends on how many blocks a GPU runs at a time, too; with each of
 * cv_multiprocessors all of a GPU's are met, and blocks that have one part, or one after the other. */
ku_case cv_case(uint32_t n);
extern const uint32_t cv_multiprocessors[4];

/* Fails the test unless y is what float64 gives. */
void cv_check(const ku_case *it);

#endif
