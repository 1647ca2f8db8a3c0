/* How much memory each client may hold, and all of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_QUOTAS_H
#define TANDEM_DAEMON_QUOTAS_H

#include "engine_plugin/daemon/state.h"

/* A limit may have become lower than what is held. */
static inline uint64_t td_room_in(uint64_t limit, uint64_t held)
{
    return held < limit ? limit - held : 0;
}
/* The scratch that the worker holds for a client's jobs, or (NULL) for those of all. */
uint64_t td_scratch_held(const td_broker *b, const td_client *c);
/* Whether a client's quota and that of all have room for more. */
bool td_client_fits(const td_broker *b, const td_client *c, uint64_t bytes);
/* Kinds of memory that may be short. */
enum { TD_HELD_MEMS = 1, TD_HELD_MODELS = 2 };
/* Says that what is asked for is more than a client may have, */
void td_quota_own_text(const td_broker *b, const td_client *c, const char *what, uint64_t asked, char *text, size_t text_bytes);
/* or than all of them may have of these kinds, and who holds it. */
void td_quota_all_text(td_broker *b, const td_client *c, const char *what, uint64_t asked, uint32_t kinds, char *text,
                       size_t text_bytes);
/* Why there is no memory for what a job needs, and who holds it. */
void td_client_lacks(td_broker *b, const td_client *c, const char *what, uint64_t lacks_bytes, char *text, size_t text_bytes);

#endif
