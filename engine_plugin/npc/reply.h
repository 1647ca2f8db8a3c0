/* A reply in the making: from logits to the next token, and to the text that it adds.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * It knows nothing of who computes logits. Between two tokens its maker may do anything else.
 */
#ifndef TD_NPC_REPLY_H
#define TD_NPC_REPLY_H

#include "engine_plugin/npc/matcher.h"
#include "engine_plugin/npc/sampling.h"
#include "engine_plugin/npc/stops.h"

typedef enum td_reply_state {
    TD_REPLY_GOES_ON,
    TD_REPLY_ENDED,   /* the model, or what the grammar allows, has come to its end, */
    TD_REPLY_STOPPED, /* a text came that ends it, */
    TD_REPLY_FULL,    /* or it has as many tokens as it may have */
    TD_REPLY_ASKS     /* nothing was taken: the next token takes all logits to say */
} td_reply_state;

/* What it is given is the caller's, and must live as long as the reply. */
typedef struct td_reply_desc {
    const td_tokenizer *tokenizer;
    td_sampling how; /* with dry_multiplier and no dry_breaks: line ends, : " and * are those */
    const char *const *stops;
    size_t stop_count;
    uint32_t most_tokens;
    bool scores; /* td_reply_score() is asked for, which costs some time a token, and takes all logits */
    td_matcher *matcher; /* of what it must be; NULL: any text */
} td_reply_desc;

typedef struct td_reply td_reply;

/* ARG, naming what is wrong; NOMEM. */
tandem_status td_reply_create(const td_reply_desc *desc, td_reply **out, char *why,
                              size_t why_bytes);
void td_reply_destroy(td_reply **reply);
/* It may have at most so many tokens, if it could have more. */
void td_reply_shorten(td_reply *r, uint32_t most_tokens);
/* Begins another one, which draws other numbers. */
void td_reply_restart(td_reply *r);

/* Takes the next token, which it adds to `history` (all tokens so far, the prompt's too) unless it
 * ends the reply. *text is what of the text is to be shown, whole UTF-8, and holds until the next
 * call; at the end all that was held back. NOMEM; UNSUPPORTED as td_matcher_tokens(). */
tandem_status td_reply_next(td_reply *r, const td_words *words, td_tokens *history, const char **text,
                            size_t *text_bytes, char *why, size_t why_bytes);
/* Whether it wants all logits for the next token, or so many of the largest may do. */
bool td_reply_wants_all(const td_reply *r, uint32_t top_count);
/* Ends it here, as if it had no room for more: the rest of the text. */
void td_reply_cut(td_reply *r, const char **text, size_t *text_bytes);

td_reply_state td_reply_state_of(const td_reply *r);
/* How long the text is that its tokens stand for so far, with what is not shown yet. */
size_t td_reply_text_bytes(const td_reply *r);
/* Of its tokens, the mean of the logarithm of how likely each was for the model; 0: it has none. */
double td_reply_score(const td_reply *r);

#endif
