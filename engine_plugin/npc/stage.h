/* What characters of a language compute on together: one instance of its model, in whose caches
 * each has a sequence of tokens, and whose runs have tokens of several.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A sequence is told what it is to have read, and reads what it has not: parts of up to 64 tokens
 * by itself, the last token together with those of others. Its caches are pages of a pool
 * (pages.h), so what begins alike is read once and lies there once, and a page that nobody needs at
 * the time may go to others: then it is read again when it is needed. What a sequence computes is
 * the same to the bit, whatever else is computed with it, and whatever of it was there before.
 *
 * Without pages there is one sequence, with caches of its own.
 *
 * Threads: any, also at once; but one at a time for each sequence.
 */
#ifndef TD_NPC_STAGE_H
#define TD_NPC_STAGE_H

#include <stdbool.h>

#include "engine_plugin/npc/pages.h"
#include "tandem/tandem.h"

enum { TD_STAGE_SLOTS = 256 /* at most */, TD_STAGE_ROWS = 32 /* sequences of a run, at most */ };

typedef struct td_stage td_stage;
typedef struct td_sequence td_sequence;

typedef struct td_stage_desc {
    tandem_session *session; /* the caller's, as is */
    tandem_model model;      /* a language model's */
    uint32_t slots, pages;   /* as that was made for; pages 0: one sequence */
    uint32_t rows;           /* sequences of a run, at most; 0: as many as there may be */
    uint32_t context, precision;
    uint32_t layers, kv_heads, head_dim, cache; /* of the model: layers 0: nothing is ever saved */
    uint32_t hidden; /* channels of its output of that name; 0: it has none */
    uint32_t tops;   /* words of its output `top`; 0: it has none */
} td_stage_desc;

/* What goes wrong is said by tandem_error_text() of the session. */
tandem_status td_stage_create(const td_stage_desc *desc, td_stage **out);
/* Of which no sequence is left. */
void td_stage_destroy(td_stage **stage);

/* What it has done so far, and holds. */
typedef struct td_stage_counts {
    uint64_t tokens, runs;                 /* that were read; how many runs had them */
    uint64_t cache_bytes;
    uint32_t pages, pages_held, pages_kept;
} td_stage_counts;
td_stage_counts td_stage_count(td_stage *stage);

/* Goes on without waiting: takes what a run has computed, and submits the next one. `asker`: on
 * whose behalf. A run waits for who was given logits by the last one, and may be about to go on, as
 * long as nobody asks for it twice. What goes wrong of a run is what td_sequence_look() of those in
 * it says. */
void td_stage_step(td_stage *stage, td_sequence *asker);

/* What a frame had, and may have. */
typedef struct td_stage_spent {
    uint64_t spent_ns, late_ns; /* by the frame before; beyond its budget */
    uint64_t tokens;
    double tokens_per_s; /* of late */
    uint32_t waiting;    /* sequences that are to read something */
} td_stage_spent;
/* A frame begins, and may spend so much; 0: whatever it takes, and steps begin runs again, as if
 * there were no frames. Where runs cannot stand still it needs a session with `timing`. */
td_stage_spent td_stage_frame(td_stage *stage, uint64_t budget_ns);

/* Until the run under way has ended, or the time is over; false: there is none. */
bool td_stage_wait(td_stage *stage, uint64_t timeout_ns);

/* --- Sequences --- */

/* NOMEM. */
tandem_status td_sequence_open(td_stage *stage, td_sequence **out);
void td_sequence_close(td_sequence **sequence);

/* It is to have read these tokens, 1 to the context's, and to know the logits of the last one. What
 * of them it, or any other, has read is not read again. NOMEM, and it is to read nothing. */
tandem_status td_sequence_read(td_sequence *sequence, const uint32_t *ids, size_t count);
/* Whether all logits are wanted from now on, as at first, or the largest do, which cost less: a run whose sequences all want no
 * more leaves the others on the device. Without `tops` there are always all. */
void td_sequence_want_all(td_sequence *sequence, bool all);
/* It is to read nothing more. */
void td_sequence_rest(td_sequence *sequence);

typedef enum td_sequence_is {
    TD_SEQUENCE_RESTS,
    TD_SEQUENCE_READS, /* or waits for its turn to */
    TD_SEQUENCE_KNOWS, /* all is read; its logits are there */
    TD_SEQUENCE_FAILED
} td_sequence_is;

typedef struct td_sequence_state {
    uint32_t is;          /* td_sequence_is */
    tandem_status status; /* why it failed */
    size_t read;          /* of its tokens, in caches */
    uint64_t tokens;      /* that were read for it since it was opened */
    const float *logits;  /* [words]: KNOWS, until it is to read again; NULL: nobody wanted all; so are: */
    const float *tops;    /* [2 * tops], as an operation `top` has them; NULL: the model has no such output */
    const float *hidden;  /* [hidden]; NULL: the model has no such output */
} td_sequence_state;
td_sequence_state td_sequence_look(td_sequence *sequence);

/* --- What they have read, as bytes --- */

/* Full pages, and tokens of the newest one. */
typedef struct td_saved {
    const uint32_t *ids; /* the sequence's, until it is to read again */
    size_t count;
    uint32_t pages, tail;
} td_saved;

/* Of pages behind the first ones, which are saved with others, if at all. */
uint64_t td_stage_saved_bytes(const td_stage *stage, uint32_t pages, uint32_t tail);

/* What a sequence that rests could save. BUSY, and why: a run did not end. */
tandem_status td_sequence_saved(td_sequence *sequence, td_saved *out, char *why);
/* Pages from `first` on, and tokens behind them. As above; or what td_instance_copy() says. */
tandem_status td_sequence_save(td_sequence *sequence, const td_saved *of, uint32_t first, void *to,
                               char *why);
/* A sequence that rests is as if it had read that: when it is to read these tokens, it reads those
 * of the pages before `first`, unless others have, and then takes `bytes`, which are copied, for read.
 * Others never get these. NOMEM. */
tandem_status td_sequence_restore(td_sequence *sequence, const td_saved *of, uint32_t first,
                                  const void *bytes);

#endif
