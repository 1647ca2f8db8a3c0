/* What clients of tandemd share: quotas, models, time on the device, and the temporary outputs that jobs are cut with.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/daemon/daemon_shares/rig.h"

int main(void)
{
    const test_cases *const parts[] = {
        &daemon_shares_quotas_cases, &daemon_shares_turns_cases, &daemon_shares_temp_outputs_cases,
    };

    if (!begin_tests("tandemd"))
        return 1;
    return end_tests(run_cases("own", parts, sizeof parts / sizeof *parts, NULL, NULL));
}
