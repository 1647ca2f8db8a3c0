/* Live quality control: which precision each layer of a network has, by what samples of its runs say.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * No clock, no memory, no locks: what is measured goes in, precisions come out. A layer is a node with a precision. Its
 * similarity is cosine * (1 - relative L1) against exact attention, which is 1 where it is exact.
 *
 * - Below the least similarity a layer becomes more precise at once, by one step.
 * - It becomes cheaper only after samples in a row, `patience` of them, in which the cheaper precision, too, was good enough, by a
 *   margin. Each time that this had to be taken back soon, the patience is twice as long.
 * - A run that may take so long: while it takes longer, one layer at a time becomes cheaper, that which loses least. While it
 *   takes less than three quarters of that, one becomes more precise, that which is worst; with a patience of its own.
 * - Where both cannot be had, similarity is kept.
 */
#ifndef TANDEM_RUN_QUALITY_H
#define TANDEM_RUN_QUALITY_H

#include <stdbool.h>
#include <stdint.h>

#include "tandem/tandem.h"

enum { TD_QUALITY_PATIENCE = 4, TD_QUALITY_MOST_PATIENCE = 256 };

typedef struct td_quality_target {
    double min_similarity; /* 0: none */
    double max_us;         /* of a run; 0: none */
} td_quality_target;

/* What a sample says of a layer. */
typedef struct td_layer_sample {
    double similarity; /* of what the run computed */
    double cheaper;    /* of the same rows in the next cheaper precision; below 0: nobody knows */
} td_layer_sample;

typedef struct td_layer_control {
    uint32_t precision; /* tandem_precision, not AUTO */
    uint32_t can;       /* a bit each, 1 << precision: which it may have */
    uint32_t good;      /* samples in a row in which the cheaper one was good enough */
    uint32_t patience;  /* how many it takes */
    uint32_t age;       /* samples since it changed last */
    bool lowered;       /* that was to a cheaper one */
} td_layer_control;

typedef struct td_quality {
    td_quality_target target;
    uint32_t spare;          /* samples in a row with time to spare */
    uint32_t spare_patience;
    uint32_t spare_age;      /* samples since time was last spent */
    uint32_t layer_count;
    td_layer_control *layers; /* the caller's */
} td_quality;

/* layers: with `precision` and `can`; the rest is set. */
void td_quality_begin(td_quality *quality, const td_quality_target *target, td_layer_control *layers, uint32_t layer_count);

/* The next cheaper precision that a layer may have, or more precise one; AUTO: there is none. */
uint32_t td_quality_cheaper(const td_layer_control *layer);
uint32_t td_quality_finer(const td_layer_control *layer);

/* A sample of each layer, and how long runs took lately; 0: nobody knows. True: some precision has changed. */
bool td_quality_step(td_quality *quality, const td_layer_sample *samples, double run_us);

#endif
