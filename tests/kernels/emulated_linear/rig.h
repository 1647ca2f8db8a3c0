/* What the files of test_kernels_linear share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_KERNELS_LINEAR_RIG_H
#define TANDEM_TESTS_KERNELS_LINEAR_RIG_H

#include "tests/cases.h"
#include "tests/kernels/emu_modules.h"
#include "tests/kernels/linear_util.h"

/* A plan's records on the emulator, or with td_exec_cpu_run() where there is none. */
void kl_run(const tl_case *it, const tandem_operands *op, em_module *on, td_target target);

extern const test_cases kernels_linear_codes_cases;

#endif
