/* What the service manager is told (sd_notify), if one has started us.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_MANAGER_H
#define TANDEM_DAEMON_MANAGER_H

#include <stdint.h>

/* The socket that it listens at, or -1. */
int td_manager_socket(void);
/* How often it wants to hear of us; 0: it does not. */
uint64_t td_manager_watchdog_ns(void);
void td_manager_tell(int socket, const char *text);

#endif
