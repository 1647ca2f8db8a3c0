/* The parts of test_daemon.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_DAEMON_PARTS_H
#define TANDEM_TESTS_DAEMON_PARTS_H

#include "tests/cases.h"
#include "tests/plugin/daemon_client.h"

/* With one daemon for all, and with one for each. */
extern const test_cases daemon_clients_cases, daemon_processes_cases, daemon_networks_cases;

#endif
