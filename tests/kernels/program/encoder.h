/* A transformer's encoder for tests of programs: as a graph, as its operations, in float64.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_PROGRAM_ENCODER_H
#define TD_TESTS_PROGRAM_ENCODER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/model/graph_file.h"

enum {
    BLOCKS = 2,
    HEADS = 2,
    HEAD_DIM = 32,
    DIM = HEADS * HEAD_DIM,
    HIDDEN = 128,
    MOST = 65, /* sequences, tokens of one */
    TOKENS = 100
};

/* What a run is given; rows: of all sequences. */
typedef struct sizes {
    uint32_t batch, tokens, rows;
    int32_t *ids, *lengths, *places;
} sizes;

/* Random weights; before all else, and behind it. */
void encoder_make_weights(void);
void encoder_free_weights(void);

/* Written to a file and read: the graph, and the weights of its programs. Numbers: batch, tokens;
 * inputs `ids`, `lengths`, `places`, outputs `out`, `mean`. */
td_graph *encoder_graph(td_safetensors *file);

/* By plans of its operations, each with tensors of its own. */
void encoder_nodes(sizes s, float *out, float *mean);

/* A sequence in float64. */
void encoder_exactly(uint32_t tokens, const int32_t *ids, double *out);

/* -1 to 1. */
float program_random(uint32_t *seed);
/* What must succeed. */
void program_must(tandem_status status, const char *why);
/* Memory as an executor has it, poisoned: NaNs of every float. */
void *program_memory(uint64_t bytes);

#endif
