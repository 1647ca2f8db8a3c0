/* Logits of SmolLM2-135M-Instruct: what transformers computes of some sequences, in tests/kernels/smollm2,
 * and how far something else is from that.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_SMOLLM2_LOGITS_H
#define TD_TESTS_SMOLLM2_LOGITS_H

#include "tests/kernels/llama_util.h"

enum { SMOLLM2_TOP = 8, SMOLLM2_SLOTS = 2, SMOLLM2_CONTEXT = 512 };

/* The least that a cosine of logits may be. */
#define SMOLLM2_COSINE 0.9999

/* See make_fixtures.py. */
typedef struct smollm2_sequence {
    uint32_t length, prompt; /* tokens, and how many of them are no answer */
    const int32_t *ids;
    const int32_t *tops;     /* [length][SMOLLM2_TOP] */
    const float *top_logits; /* likewise */
    const float *sums;       /* [length] */
} smollm2_sequence;

typedef struct smollm2_fixtures {
    uint32_t count;
    smollm2_sequence *sequences;
    float *whole; /* the logits behind sequence 0 */
    void *data[6];
} smollm2_fixtures;

smollm2_fixtures smollm2_read(void);
void smollm2_free(smollm2_fixtures *fixtures);

/* Of logits against transformers'. */
typedef struct smollm2_score {
    uint32_t tokens, same; /* of how many the most likely next one is the same */
    double divergence,
        most; /* Kullback and Leibler's, of the TOP and all the rest: mean, largest */
} smollm2_score;
void smollm2_add(smollm2_score *score, const smollm2_sequence *sequence, uint32_t at,
                 const float *logits, uint32_t words);

/* Prints it; fails where it is not what it must be: its divergence, and the part of tokens whose next one is the same. INT8 of Q and
 * K alone, or E4M3 of V, has another most likely one for every hundredth token, whose first two are about as likely. */
#define SMOLLM2_DIVERGENCE 1e-3
#define SMOLLM2_SAME 0.99
#define SMOLLM2_DIVERGENCE_8B 5e-3
#define SMOLLM2_SAME_8B 0.96
void smollm2_check(const smollm2_score *score, double divergence, double same);

/* Tokens of the answer to a prompt, one after the other, that are transformers'. */
uint32_t smollm2_answer(lu_instance *it, const smollm2_sequence *sequence);

#endif
