/* Texts that end a reply, found while it comes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_NPC_STOPS_H
#define TD_NPC_STOPS_H

#include <stdbool.h>
#include <stddef.h>

#include "tandem/types.h"

/* Begins with what is looked for, the rest zeros. What may be the beginning of one of them is held
 * back until it is seen whether it is; so where text and stops are whole UTF-8, what comes out is. */
typedef struct td_stops {
    const char *const *texts; /* the caller's; none of them is empty */
    size_t count;
    bool found;
    char *held;
    size_t held_bytes, room;
} td_stops;

/* More of the text: what of it, and of what was held back, is to be shown begins at *out, which
 * holds until the next call; *out_bytes of it. Nothing behind a stop is. NOMEM. */
tandem_status td_stops_add(td_stops *s, const char *text, size_t bytes, const char **out,
                           size_t *out_bytes);
/* The end of the text: what is still held back. */
void td_stops_end(td_stops *s, const char **out, size_t *out_bytes);
void td_stops_free(td_stops *s);

#endif
