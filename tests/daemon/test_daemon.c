/* tandemd as a process, and clients that speak its wire: results, hostile ones, and how it is started and stopped.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/daemon/daemon/parts.h"

int main(void)
{
    const test_cases *const common[] = {&daemon_clients_cases}, *const own[] = {&daemon_processes_cases, &daemon_networks_cases};
    int failed;

    if (!begin_tests("tandemd"))
        return 1;
    failed = run_cases("one daemon", common, 1, set_up_daemon, tear_down_daemon);
    failed += run_cases("daemons", own, 2, NULL, NULL);
    return end_tests(failed);
}
