/* What is within a tokenizer: its tokens, how to find them, and which pairs of them are one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_NPC_VOCABULARY_H
#define TD_NPC_VOCABULARY_H

#include "engine_plugin/npc/pattern.h"
#include "engine_plugin/npc/tokenizer.h"
#include "kernels/arena.h"

/* As files number them. */
typedef enum td_token_kind {
    TD_TOKEN_NORMAL = 1,
    TD_TOKEN_UNKNOWN = 2,
    TD_TOKEN_CONTROL = 3,
    TD_TOKEN_USER_DEFINED = 4, /* found in any text before all else */
    TD_TOKEN_UNUSED = 5,
    TD_TOKEN_BYTE = 6
} td_token_kind;

typedef struct td_token {
    const char *text; /* the bytes that it stands for; a special one's name */
    uint32_t bytes;
    float score;
    td_token_kind kind;
} td_token;

/* Two tokens that become one. Those of lower order do so first. */
typedef struct td_merge {
    uint32_t left, right; /* TD_NO_TOKEN: an empty slot */
    uint32_t order, token;
} td_merge;

enum { TD_MOST_ENDS = 16 };

struct td_tokenizer {
    td_arena arena;
    uint32_t count;
    td_token *tokens;
    uint32_t longest; /* bytes of a token */
    bool bytewise;    /* merges bytes of words; else characters of texts */
    bool space_first; /* before the characters of a text */
    bool begins;
    uint32_t begin, unknown, end_count, ends[TD_MOST_ENDS];
    uint32_t of_byte[256]; /* the token of each byte; TD_NO_TOKEN: it has none */

    /* Tables in which a search goes on to the next slot, sizes powers of two. */
    uint32_t *by_text; /* tokens that texts are made of; TD_NO_TOKEN: empty */
    td_merge *merges;
    uint32_t text_slots, merge_slots;

    /* Those that are found in texts as a whole, longest first among those of one first byte; where
     * those of a byte begin, and those of the next. */
    uint32_t *whole;
    uint32_t whole_from[257];

    td_pattern *pattern; /* bytewise */
};

/* Copies a text with a space for each U+2581, as which SentencePiece writes it; vocabularies here
 * have spaces. Returns how many bytes that is. */
size_t td_vocabulary_spaces(const char *text, size_t bytes, char *to);

/* TD_NO_TOKEN, and NULL, where there is none. */
uint32_t td_vocabulary_find(const td_tokenizer *t, const char *text, size_t bytes);
const td_merge *td_vocabulary_merge(const td_tokenizer *t, uint32_t left, uint32_t right);

#endif
