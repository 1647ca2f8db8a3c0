/* What interop/os/ promises on each system, by the same tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_OS_BOTH_H
#define TANDEM_TESTS_OS_BOTH_H

#include "tests/cases.h"

extern const test_cases os_both_cases;

#endif
