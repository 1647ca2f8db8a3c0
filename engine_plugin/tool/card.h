/* Cards of characters, for `tandem npc`: lines of text, of which a persona and
 * a grammar become.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_CARD_H
#define TD_TOOL_CARD_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tool_card {
    char *name, *persona;
    char *grammar; /* of a reply: what is said, and maybe a line of JSON, which
                      names no thing to give that is not on the card */
} tool_card;

/* Reads a card's text. `is_told`: the model knows nothing of cards, and is told
 * with the persona what it is to do. False, and why, which names the line;
 * begins as zeros, and is freed in any case. */
bool tool_card_read(const char *text, size_t bytes, bool is_told, tool_card *card, char *why,
                    size_t why_bytes);
void tool_card_free(tool_card *card);

#endif
