/* What a process gives up. Nothing of this can be undone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_CONFINE_H
#define TANDEM_DAEMON_CONFINE_H

#include "interop/base.h"

/* No new privileges, no core files, not to be traced. */
void td_confine_process(void);
/* From here on this thread, and those that it starts, can do nothing with files by their names but remove one from the
 * folder of that socket ("": nothing); where the kernel can see to that. */
void td_confine_files(const char *socket_path);
/* From here on this process has few system calls left, in all its threads: what it needs (broker), or all but what no
 * driver needs: once it is up (worker), or ever (launcher, whose workers inherit it). */
tandem_status td_confine_broker(char *why, size_t why_bytes);
tandem_status td_confine_launcher(char *why, size_t why_bytes);
tandem_status td_confine_worker(char *why, size_t why_bytes);

#endif
