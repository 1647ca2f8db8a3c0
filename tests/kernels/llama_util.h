/* Language models for tests: opened, and run on whatever computes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_LLAMA_UTIL_H
#define TD_TESTS_LLAMA_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/model/llama.h"

typedef struct lu_model {
    td_gguf file;
    td_llama llama;
    void *weights; /* the view TD_PROGRAM_WEIGHTS of its programs */
    uint64_t weight_bytes, state_bytes;
} lu_model;

/* path: a file; or bytes: one in memory. */
lu_model lu_open(const char *path, const void *bytes, uint64_t size, uint32_t slots,
                 uint32_t context);
/* The same with caches in another format than fp16. */
lu_model lu_open_cached(const char *path, const void *bytes, uint64_t size, uint32_t slots,
                        uint32_t context, uint32_t cache);
/* As a desc says it, which may be for GPUs alone. */
lu_model lu_open_as(const char *path, const void *bytes, uint64_t size, const td_llama_desc *desc);
void lu_close(lu_model *model);

/* An instance of a model: caches, and how its programs are run. */
typedef struct lu_instance lu_instance;
typedef void lu_run(lu_instance *it, const void *uniforms, float *logits);
struct lu_instance {
    const lu_model *model;
    td_target target;
    lu_run *run;
    void *user;
    void *state;                        /* on the host; NaNs at first */
    const td_program *program;          /* the last one's, */
    uint32_t numbers[TD_LLAMA_NUMBERS]; /* for these sizes */
};
lu_instance lu_begin(const lu_model *model, td_target target, lu_run *run, void *user);
void lu_end(lu_instance *it);

/* On the CPU. */
lu_run lu_run_cpu;

/* ids and positions [batch][tokens], rows [wanted]; logits [wanted][words]. */
void lu_compute(lu_instance *it, const uint32_t numbers[TD_LLAMA_NUMBERS], const int32_t *ids,
                const int32_t *positions, const int32_t *rows, float *logits);

/* The tokens of a sequence in slot 0 from `first` on, `most` at a time: logits [count][words]. */
void lu_compute_sequence(lu_instance *it, const int32_t *ids, uint32_t first, uint32_t count,
                         uint32_t most, float *logits);

/* A small model whose programs have records that are joined (kernels/join.h), of F16 with pages. */
enum { LU_WORDS = 64, LU_SEQUENCES = 2, LU_RUNS = 6, LU_SPOKEN = LU_RUNS * LU_SEQUENCES * LU_WORDS };
enum { LU_ROWS = 3 }; /* instead of a tandem_cache: fp16 rows one behind the other, neither pages nor codes */
lu_model lu_open_joined(uint32_t dim, uint32_t head_dim, uint32_t dtype, uint32_t cache);
/* Its logits of a token a run of each sequence, across the end of a chunk of 256 keys. State is zeros before. */
void lu_speak(lu_instance *it, float logits[LU_SPOKEN]);

/* What must succeed. */
void lu_must(tandem_status status, const char *why);

/* Memory as an executor has it, poisoned: NaNs of every float. */
void *lu_memory(uint64_t bytes);

/* The largest of some logits; the first of them. */
uint32_t lu_best(const float *logits, uint32_t words);
double lu_cosine(const float *a, const float *b, uint32_t count);

#endif
