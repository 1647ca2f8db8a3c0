/* What the parts of test_daemon_shares have of each other.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_DAEMON_SHARES_RIG_H
#define TANDEM_TESTS_DAEMON_SHARES_RIG_H

#include "tests/cases.h"
#include "tests/plugin/daemon_client.h"

/* What a client's jobs need besides its mems. */
uint64_t scratch_of(const shape *of);

/* Each file's, in the order in which they run. */
extern const test_cases daemon_shares_quotas_cases, daemon_shares_turns_cases, daemon_shares_temp_outputs_cases;

#endif
