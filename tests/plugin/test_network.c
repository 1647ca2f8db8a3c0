/* Networks through the public API, on the CPU: what is refused and why, state, instances, files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "tests/plugin/network/rig.h"

int main(void)
{
    const test_cases *const parts[] = {&network_runs_cases, &network_refusals_cases,
                                       &network_files_cases, &network_threads_cases,
                                       &network_language_cases};

    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    return run_cases("networks", parts, sizeof parts / sizeof *parts, NULL, NULL);
}
