/* What was said to a character and by it, and how much of it the character remembers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_NPC_HISTORY_H
#define TD_NPC_HISTORY_H

#include "engine_plugin/npc/chat.h"

/* Begins as zeros. */
typedef struct td_history {
    char *persona;       /* NULL: none */
    td_chat_turn *turns; /* with texts of their own, with a 0 behind each */
    size_t count, room;
    uint32_t forgotten; /* turns that were there */
} td_history;

void td_history_free(td_history *h);
/* All but the persona. */
void td_history_clear(td_history *h);
/* NOMEM, and nothing has changed. */
tandem_status td_history_add(td_history *h, td_chat_role role, const char *text, size_t bytes);
void td_history_drop_last(td_history *h);

/* The tokens of a dialogue, up to where a reply begins, with room for `reply` more below `context`:
 * where there is none the oldest turns are forgotten, up to half of the context, but for the
 * system's at the beginning. ARG, and nothing is forgotten, where what stays has no room; NOMEM. */
tandem_status td_history_encode(td_history *h, const td_tokenizer *t, const td_chat_form *form,
                                uint32_t context, uint32_t reply, td_tokens *out, char *why,
                                size_t why_bytes);

#endif
