/* How many descriptors each client may hold.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_DESCRIPTORS_H
#define TANDEM_DAEMON_DESCRIPTORS_H

#include "engine_plugin/daemon/state.h"

typedef struct td_fd_share {
    uint32_t clients, newcomers; /* who may be connected */
    uint32_t objects, of_client; /* that hold one: all clients', and each one's */
} td_fd_share;
td_fd_share td_fds_shared(const td_broker *b);
/* Whether a client may have another object that holds one; else says why, and logs it once. */
bool td_fd_fits(td_broker *b, td_client *c, char *why, size_t why_bytes);
/* False: too few for even one client, which is said. */
bool td_fds_begin(td_broker *b);

#endif
