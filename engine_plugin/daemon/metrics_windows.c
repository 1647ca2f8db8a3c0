/* The metrics are not given to anybody on Windows yet: http_windows.c has no sockets.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/daemon/metrics.h"

int td_metrics_listen(uint32_t port, char *why, size_t why_bytes)
{
    td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "metrics is %u: must be 0 on Windows, where no page is served", port);
    return -1;
}
