/* Messages between our own processes: whole, with at most two descriptors, over SOCK_SEQPACKET.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_PASS_H
#define TANDEM_DAEMON_PASS_H

#include "interop/base.h"

/* BUSY: not now; LOST: nobody is there. */
tandem_status td_pass(int to, const void *message, size_t bytes, const int *fds, uint32_t fd_count);
/* fds[2]: -1 where none came, and both where not all that were sent could be taken, as this process has no room for them;
 * they are the caller's. PROTOCOL: not of this size. */
tandem_status td_fetch(int from, void *message, size_t bytes, int fds[2]);

#endif
