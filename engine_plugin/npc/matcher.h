/* How far a reply has come in a grammar, and which tokens may be next.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Where a reply is within rules is a set of stacks. Sets that were met are kept, with where each byte
 * leads from them and which tokens fit, so that most of what a grammar asks is looked up.
 */
#ifndef TD_NPC_MATCHER_H
#define TD_NPC_MATCHER_H

#include "engine_plugin/npc/grammar.h"
#include "engine_plugin/npc/token_tree.h"

typedef struct td_matcher td_matcher;

/* At the beginning. Grammar and tree are the caller's, and must live as long. UNSUPPORTED where the
 * grammar can be read in too many ways at once; NOMEM. */
tandem_status td_matcher_create(const td_grammar *grammar, const td_token_tree *tree,
                                td_matcher **out, char *why, size_t why_bytes);
void td_matcher_destroy(td_matcher **matcher);
/* To the beginning again. */
void td_matcher_restart(td_matcher *m);

/* Bit token % 64 of [token / 64] is set where that token may be next; those that end a reply, where
 * the text may end. Holds until the next call. As td_matcher_create(). */
tandem_status td_matcher_tokens(td_matcher *m, const uint64_t **bits, char *why, size_t why_bytes);
/* The text goes on with these bytes: false where it must not, and nothing has changed then. */
bool td_matcher_add(td_matcher *m, const char *bytes, size_t count);
/* The same for a token; one that ends a reply fits where the text may end. */
bool td_matcher_add_token(td_matcher *m, uint32_t token);

/* Whether the text may end here, and whether it must, as nothing can follow. */
bool td_matcher_may_end(const td_matcher *m);
bool td_matcher_must_end(const td_matcher *m);

#endif
