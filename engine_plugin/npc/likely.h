/* How likely each token of a reply was, and what else was likely in its place.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_NPC_LIKELY_H
#define TD_NPC_LIKELY_H

#include <stddef.h>
#include <stdint.h>

#include "tandem/types.h"

enum { TD_LIKELY_TOPS = 20 /* at most */ };

typedef struct td_logprob {
    uint32_t token;
    float logprob; /* the logarithm of its probability */
} td_logprob;

typedef struct td_likely {
    td_logprob is;
    size_t text_at; /* where in the reply's text its own begins */
    uint32_t top_count;
    td_logprob tops[TD_LIKELY_TOPS]; /* the likeliest first; of equal ones the lesser token */
} td_likely;

/* Begins as zeros. */
typedef struct td_likelies {
    td_likely *list;
    size_t count, room;
} td_likelies;

/* One more token, behind which `tops` others are kept, at most TD_LIKELY_TOPS: by logits [words],
 * of which NaNs are of no token. NOMEM. */
tandem_status td_likelies_add(td_likelies *to, const float *logits, uint32_t words, uint32_t token,
                              size_t text_at, uint32_t tops);
void td_likelies_free(td_likelies *likelies);

#endif
