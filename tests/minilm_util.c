/* The encoder of all-MiniLM-L6-v2 for tests. See minilm_util.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/minilm_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

void minilm_must(tandem_status status, const char *why)
{
    if (status)
        fail_msg("status %d: %s", (int)status, why);
}

void *minilm_memory(uint64_t bytes)
{
    void *memory = aligned_alloc(TD_PROGRAM_ALIGN, td_align_up(bytes + 1, TD_PROGRAM_ALIGN));

    assert_non_null(memory);
    return memset(memory, 0xff, bytes);
}

/* --- The model --- */

static td_graph *read_graph(const char *name)
{
    char path[100], why[400] = "";
    static char text[1 << 16];
    td_graph *graph;

    snprintf(path, sizeof path, "minilm/%s.json", name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is not in the build folder", path);
    const size_t bytes = fread(text, 1, sizeof text, file);
    assert_true(bytes < sizeof text);
    fclose(file);
    minilm_must(td_graph_read(text, bytes, &graph, why, sizeof why), why);
    return graph;
}

/* -1 to 1. */
static float random_value(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) * 0x1p-23f - 1;
}

/* Tables and matrices are fp16; what channels are multiplied by or added to is float32, near 1 or
 * near 0; counts are int32. */
static void make_up(const td_program_tensor *tensor, void *to, uint32_t *seed)
{
    const uint64_t count = tensor->bytes / td_dtype_of(tensor->dtype).bytes;
    const float size = 1.7f / sqrtf((float)tensor->shape[3]); /* products of rows are about 1 */
    const float middle = strstr(tensor->name, ".weight") ? 1 : 0;

    for (uint64_t i = 0; i < count; i++)
        if (tensor->dtype == TANDEM_DTYPE_F16)
            ((uint16_t *)to)[i] = td_to_f16(size * random_value(seed));
        else if (tensor->dtype == TANDEM_DTYPE_F32)
            ((float *)to)[i] = middle + 0.2f * random_value(seed);
        else
            ((int32_t *)to)[i] = (int32_t)i;
}

minilm minilm_open(const char *graph, const char *weights)
{
    const td_target cpu = td_target_for_sm(0);
    minilm m = {.graph = read_graph(graph)};
    const td_program *program = minilm_program(&m, 1, 1, &cpu); /* weights lie alike in all */
    char why[400] = "";
    uint32_t seed = 1;

    m.weight_bytes = program->weight_bytes;
    m.weights = minilm_memory(m.weight_bytes);
    if (weights) {
        td_safetensors file;

        minilm_must(td_safetensors_open(weights, &file, why, sizeof why), why);
        minilm_must(td_graph_file_weights(&file, program, m.weights, why, sizeof why), why);
        td_safetensors_close(&file);
    } else {
        for (uint32_t i = 0; i < program->tensor_count; i++) {
            const td_program_tensor *tensor = &program->tensors[i];

            if (tensor->role == TD_ROLE_WEIGHT)
                make_up(tensor, (char *)m.weights + tensor->offset, &seed);
        }
    }
    td_program_drop(&program);
    return m;
}

void minilm_close(minilm *model)
{
    td_graph_destroy(&model->graph);
    free(model->weights);
}

const td_program *minilm_program(const minilm *model, uint32_t batch, uint32_t tokens,
                                 const td_target *target)
{
    static const char *const bindings[] = {"ids", "lengths", "embeddings"};
    const td_program *program;
    char why[400] = "";

    minilm_must(td_program_build(model->graph, (const uint32_t[]){batch, tokens}, target, &program,
                                 why, sizeof why),
                why);
    assert_int_equal(program->binding_count, MINILM_BINDINGS);
    for (int i = 0; i < MINILM_BINDINGS; i++)
        assert_string_equal(program->tensors[program->bindings[i]].name, bindings[i]);
    return program;
}

/* --- Sentences --- */

static void *read_tensor(const td_safetensors *file, const char *name, uint64_t *bytes)
{
    const td_safetensor *tensor = td_safetensors_find(file, name);
    char why[400] = "";

    assert_non_null(tensor);
    void *to = minilm_memory(tensor->bytes);
    minilm_must(td_safetensors_read(file, tensor, to, why, sizeof why), why);
    *bytes = tensor->bytes;
    return to;
}

minilm_sentences minilm_read_sentences(void)
{
    const char *source = getenv("TANDEM_SOURCE");
    minilm_sentences s;
    td_safetensors file;
    char path[500], why[400] = "";
    uint64_t length_bytes, id_bytes, embedding_bytes, ids = 0;

    snprintf(path, sizeof path, "%s/tests/minilm/fixtures.safetensors", source ? source : "..");
    minilm_must(td_safetensors_open(path, &file, why, sizeof why), why);
    s.lengths = read_tensor(&file, "lengths", &length_bytes);
    s.ids = read_tensor(&file, "ids", &id_bytes);
    s.embeddings = read_tensor(&file, "embeddings", &embedding_bytes);
    s.count = (uint32_t)(length_bytes / sizeof *s.lengths);
    for (uint32_t i = 0; i < s.count; i++)
        ids += (uint32_t)s.lengths[i];
    assert_int_equal(id_bytes, ids * sizeof *s.ids);
    assert_int_equal(embedding_bytes, (uint64_t)s.count * MINILM_DIM * sizeof *s.embeddings);
    td_safetensors_close(&file);
    return s;
}

void minilm_free_sentences(minilm_sentences *sentences)
{
    free(sentences->ids);
    free(sentences->lengths);
    free(sentences->embeddings);
}

/* --- Runs --- */

static void embed_some(const minilm *model, const minilm_sentences *sentences,
                       const uint32_t *which, uint32_t count, const td_target *target,
                       minilm_run *run, void *user, float *embeddings)
{
    minilm_batch batch = {.count = count, .lengths = minilm_memory(count * sizeof(int32_t))};

    for (uint32_t i = 0; i < count; i++) {
        const uint32_t length = (uint32_t)sentences->lengths[which[i]];

        batch.lengths[i] = (int32_t)length;
        batch.tokens = length > batch.tokens ? length : batch.tokens;
    }
    batch.program = minilm_program(model, count, batch.tokens, target);
    batch.embeddings = minilm_memory((uint64_t)count * MINILM_DIM * sizeof(float));
    batch.ids = minilm_memory((uint64_t)count * batch.tokens * sizeof(int32_t));
    for (uint32_t i = 0; i < count; i++) {
        const int32_t *ids = sentences->ids;

        for (uint32_t j = 0; j < which[i]; j++)
            ids += sentences->lengths[j];
        memcpy(batch.ids + i * batch.tokens, ids, (uint32_t)batch.lengths[i] * sizeof *ids);
    }
    run(model, &batch, user);
    for (uint32_t i = 0; i < count; i++)
        memcpy(embeddings + which[i] * MINILM_DIM, batch.embeddings + i * MINILM_DIM,
               MINILM_DIM * sizeof(float));
    free(batch.ids);
    free(batch.lengths);
    free(batch.embeddings);
    td_program_drop(&batch.program);
}

void minilm_embed(const minilm *model, const minilm_sentences *sentences, uint32_t batch,
                  const td_target *target, minilm_run *run, void *user, float *embeddings)
{
    enum { MOST = 64, STEP = 73 }; /* a prime, so that all are reached */
    uint32_t which[MOST];

    assert_true(batch <= MOST && sentences->count % STEP);
    for (uint32_t first = 0; first < sentences->count; first += batch) {
        const uint32_t left = sentences->count - first, count = left < batch ? left : batch;

        for (uint32_t i = 0; i < count; i++)
            which[i] = (first + i) * STEP % sentences->count;
        embed_some(model, sentences, which, count, target, run, user, embeddings);
    }
}

void minilm_run_cpu(const minilm *model, const minilm_batch *batch, void *user)
{
    const td_program *program = batch->program;
    void *scratch = minilm_memory(program->plan->scratch_bytes);
    const uint64_t views[] = {(uintptr_t)model->weights, 0, 0, (uintptr_t)batch->ids,
                              (uintptr_t)batch->lengths, (uintptr_t)batch->embeddings};

    if (user)
        memset(scratch, *(int *)user, program->plan->scratch_bytes);
    assert_int_equal(program->weight_bytes, model->weight_bytes);
    assert_int_equal(td_exec_cpu_run(program->plan, views, (uintptr_t)scratch, 2, NULL), TANDEM_OK);
    free(scratch);
}

double minilm_least_cosine(const float *a, const float *b, uint32_t count)
{
    double least = 1;

    for (uint32_t i = 0; i < count; i++, a += MINILM_DIM, b += MINILM_DIM) {
        double ab = 0, aa = 0, bb = 0;

        for (int j = 0; j < MINILM_DIM; j++) {
            ab += (double)a[j] * (double)b[j];
            aa += (double)a[j] * (double)a[j];
            bb += (double)b[j] * (double)b[j];
        }
        const double cosine = ab / sqrt(aa * bb);
        least = cosine >= least ? least : cosine; /* what is no number is the least */
    }
    return least;
}
