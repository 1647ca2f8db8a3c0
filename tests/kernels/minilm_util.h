/* The encoder of all-MiniLM-L6-v2 for tests: its graphs, its weights, sentences, and runs of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Graphs and weights are minilm.py's, in the build folder, where tests run; sentences and what
 * transformers computes of them are in tests/kernels/minilm.
 */
#ifndef TD_TESTS_MINILM_UTIL_H
#define TD_TESTS_MINILM_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/model/graph_file.h"
#include "tandem/tandem.h"

#define MINILM_FILE "minilm/minilm.safetensors"
enum { MINILM_DIM = 384, MINILM_WORDS = 30522 };
enum { MINILM_IDS, MINILM_LENGTHS, MINILM_EMBEDDINGS, MINILM_BINDINGS };

/* The least that a cosine may be. */
#define MINILM_COSINE_F16 0.99999
#define MINILM_COSINE_8B 0.999

typedef struct minilm {
    td_graph *graph;
    void *weights; /* the view TD_PROGRAM_WEIGHTS of its programs */
    uint64_t weight_bytes;
} minilm;

/* graph: "f16", "f16-unpadded" or "8b"; weights: a file that has them, or NULL: made up, as large
 * as a trained network's about. */
minilm minilm_open(const char *graph, const char *weights);
void minilm_close(minilm *model);

typedef struct minilm_sentences {
    uint32_t count;
    int32_t *ids; /* of all, one after the other */
    int32_t *lengths;
    float *embeddings; /* [count][MINILM_DIM], of transformers */
} minilm_sentences;

minilm_sentences minilm_read_sentences(void);
void minilm_free_sentences(minilm_sentences *sentences);

/* Some of them, in a program of that size. Behind a sentence's ids are some that are no words. */
typedef struct minilm_batch {
    const td_program *program;
    uint32_t count, tokens;
    int32_t *ids, *lengths; /* [count][tokens], [count] */
    float *embeddings;      /* [count][MINILM_DIM]: to be written */
} minilm_batch;

/* How a batch is computed. */
typedef void minilm_run(const minilm *model, const minilm_batch *batch, void *user);

/* On the CPU. user: an int that fills scratch before, or NULL: NaNs. */
minilm_run minilm_run_cpu;

/* By a job of a session that has the model from a file, for mems that the host sees. */
typedef struct minilm_session {
    tandem_session *s;
    tandem_model model;
    tandem_instance instance;
    tandem_mem mem;
    uint64_t mem_bytes;
    char *host;
} minilm_session;
minilm_session minilm_session_open(const tandem_session_desc *desc, const char *file);
void minilm_session_close(minilm_session *session);
/* user: one. */
minilm_run minilm_run_session;

/* A file of a graph ("f16"), and a model's weights. */
void minilm_write(const minilm *model, const char *graph, const char *file);

/* All sentences, `batch` at a time, short ones beside long ones: embeddings [count][MINILM_DIM]. */
void minilm_embed(const minilm *model, const minilm_sentences *sentences, uint32_t batch,
                  const td_target *target, minilm_run *run, void *user, float *embeddings);

/* The least cosine of two embeddings of a sentence. */
double minilm_least_cosine(const float *a, const float *b, uint32_t count);

const td_program *minilm_program(const minilm *model, uint32_t batch, uint32_t tokens,
                                 const td_target *target);

/* Memory as an executor has it, poisoned: NaNs of every float. */
void *minilm_memory(uint64_t bytes);

/* What must succeed. */
void minilm_must(tandem_status status, const char *why);

#endif
