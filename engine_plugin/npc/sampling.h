/* Which token is next: from logits and what was said so far.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * In this order, of which each step is left out where its numbers are 0:
 *   bias         is added to logits of some tokens
 *   penalties    of tokens among the last `penalty_last`: a logit above 0 is divided by `repetition`,
 *                one below multiplied; then `frequency` for each time and `presence` once are taken off
 *   DRY          off a token that would go on with a repetition, of the last L tokens: multiplier *
 *                base^(L - length) from L = length on; not across tokens that break sequences
 *   top k        the k largest stay
 *   typical p    tokens whose surprise is nearest to the mean one, up to this probability together
 *   top p        the most likely ones, up to this probability together
 *   min p        those at least so likely as the most likely one times this
 *   XTC          so probably all but the least of those that are at least so likely are taken out
 *   temperature  divides logits; 0: the most likely token behind DRY, nothing is drawn
 * Probabilities are those of the tokens that are left. Of equal logits the lesser token comes first.
 * What is drawn depends on the seed and on how many tokens were drawn before, and on nothing else.
 */
#ifndef TD_NPC_SAMPLING_H
#define TD_NPC_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tandem/types.h"

typedef struct td_logit_bias {
    uint32_t token;
    float bias; /* -INFINITY: never */
} td_logit_bias;

/* All zeros: always the most likely token. */
typedef struct td_sampling {
    uint64_t seed;
    float temperature;
    uint32_t top_k;
    float typical_p, top_p, min_p;          /* 0 to 1 */
    float xtc_probability, xtc_threshold;   /* 0 to 1 */
    uint32_t penalty_last;                  /* 0: all */
    float repetition, frequency, presence;
    float dry_multiplier, dry_base;         /* the base is at least 1 */
    uint32_t dry_length;                    /* at least 1 */
    uint32_t dry_last;                      /* that it looks at; 0: all */
    const uint32_t *dry_breaks;             /* tokens; the caller's, like: */
    uint32_t dry_break_count, bias_count;
    const td_logit_bias *biases;
} td_sampling;

typedef struct td_sampler td_sampler;

/* For a model of so many words. ARG, naming what is wrong; NOMEM. */
tandem_status td_sampler_create(const td_sampling *how, uint32_t words, td_sampler **out, char *why,
                                size_t why_bytes);
void td_sampler_destroy(td_sampler **sampler);

/* The next token behind `count` others. Logits that are NaN are never taken, nor are tokens whose
 * bit in `allowed`, token % 64 of [token / 64], is 0; NULL: all may be. */
uint32_t td_sampler_next(td_sampler *s, const float *logits, const uint64_t *allowed,
                         const uint32_t *history, size_t count);

/* Of a vocabulary all logits, or the largest: a token's logit, largest first, then the tokens as numbers, as an operation `top` has
 * them. */
typedef struct td_words {
    const float *logits; /* [words]; NULL: not known */
    const float *tops;   /* [2 * top_count]; NULL: not known */
    uint32_t top_count;
} td_words;

/* Whether the largest logits may do: no more than those are drawn from, and nothing makes others more likely. */
bool td_sampler_may_use_tops(const td_sampler *s, uint32_t top_count);
/* The same token as td_sampler_next() would take of all logits. False: the largest do not say which, as penalties have made them
 * less likely than others may be; then nothing is drawn. */
bool td_sampler_next_of_tops(td_sampler *s, const td_words *of, const uint32_t *history, size_t count, uint32_t *token);

/* A number from 0 to 1, not 1 itself: draw `index` of a seed. */
double td_sampling_draw(uint64_t seed, uint64_t index);

#endif
