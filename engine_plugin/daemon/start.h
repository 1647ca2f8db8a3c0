/* How the daemon begins, as the system has it: where it listens and is configured, what it is started with and by whom.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_START_H
#define TANDEM_DAEMON_START_H

#include "engine_plugin/daemon/config.h"
#include "interop/os/channel.h"

/* Of --help, up to where the options are that are the same everywhere. */
extern const char td_start_help[];

/* Whether td_channel_default() is a place to listen at: the folder of the user's session must be the user's, as who can write there
 * can put another daemon in the place of this one. In a folder such as /tmp (sticky) only owners can. UNSUPPORTED if it is not. */
tandem_status td_start_check_place(const char *path, char *why, size_t why_bytes);
/* Which configuration is read if it is there. False: none. */
bool td_start_config(char *path, size_t bytes);
/* Whether the service manager hands over a listener. */
bool td_start_inherits(void);
/* Listens there; NULL: at what the service manager hands over. */
tandem_status td_start_listen(td_listener *listener, const td_config *config, const char *socket, char *why, size_t why_bytes);
/* What would end the process and is told otherwise; as many descriptors as it may have. */
void td_start_signals(void);
void td_start_limits(void);
/* What --worker makes of this process: its exit status. */
int td_start_worker(int argc, char **argv);

#endif
