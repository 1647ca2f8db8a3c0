/* What a character is made of, for the files that it is in. See tandem/npc.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_NPC_CHARACTERS_PARTS_H
#define TD_NPC_CHARACTERS_PARTS_H

#include "engine_plugin/npc/history.h"
#include "engine_plugin/npc/language.h"
#include "engine_plugin/npc/likely.h"
#include "engine_plugin/npc/reply.h"
#include "engine_plugin/npc/stage.h"
#include "kernels/arena.h"

enum { TD_NPC_REPLIES = 16 };

typedef struct td_said {
    char *text; /* with a 0 behind it */
    size_t bytes, room;
    uint32_t tokens, end;
    double score;
    td_likelies likely; /* where they are kept */
} td_said;

struct tandem_npc {
    tandem_language *language;
    td_stage *own;     /* where those of a language have none in common */
    td_sequence *read; /* what it has read; NULL: all was lost */
    bool plain;
    td_history history;

    td_tokens tokens;   /* the prompt, and the reply so far */
    size_t prompt, new; /* tokens of the prompt; those that were not in the caches */
    uint64_t before;    /* tokens that were read when it was said */

    uint32_t state;
    td_arena copies; /* of what `say` points to */
    tandem_say say;  /* of which only numbers and callbacks are left */
    td_reply_desc how;
    td_reply *reply;
    uint32_t current, begun; /* replies */
    bool cancelled, in_call; /* during on_text */
    bool answered;           /* the last turn is a reply to what was said last */
    float *first;            /* logits behind the prompt, where there are more replies than one */
    bool at_first;           /* they are the next token's */
    td_said said[TD_NPC_REPLIES];
    tandem_token_logprob tops[TD_LIKELY_TOPS]; /* that were asked for last */

    char *grammar_text, *schema_text; /* that the matcher is for; NULL: there is none */
    td_grammar *grammar;
    td_matcher *matcher;

    tandem_npc_news news; /* that were not told yet */
    char *news_text;
    size_t news_room;
};

/* characters_grammar.c: the matcher of a grammar, a schema or both, which keeps what it has learnt
 * from reply to reply. */
tandem_status td_npc_take_grammar(tandem_npc *n, const char *grammar, const char *schema,
                                  char *why);
void td_npc_free_grammar(tandem_npc *n);

#endif
