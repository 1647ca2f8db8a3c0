/* The daemon's numbers, in Prometheus' text format.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_METRICS_H
#define TANDEM_DAEMON_METRICS_H

#include "engine_plugin/daemon/state.h"

int td_metrics_listen(uint32_t port, char *why, size_t why_bytes);
/* Until the next call. */
const char *td_metrics_page(td_broker *b, size_t *bytes);

#endif
