/* What the parts of test_abi share. SPDX-License-Identifier: Apache-2.0 */
#ifndef TANDEM_TESTS_ABI_RIG_H
#define TANDEM_TESTS_ABI_RIG_H

#include "tests/plugin/daemon_util.h"
#include "tests/cases.h"

extern group_daemon served; /* today's */
extern const test_cases abi_structs_cases, abi_wire_cases;

#endif
