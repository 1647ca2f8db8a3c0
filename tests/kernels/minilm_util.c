/* The encoder of all-MiniLM-L6-v2 for tests. See minilm_util.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/minilm_util.h"

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

static size_t read_text(const char *name, char *text, size_t most)
{
    char path[100];

    snprintf(path, sizeof path, "minilm/%s.json", name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is not in the build folder", path);
    const size_t bytes = fread(text, 1, most - 1, file);
    assert_true(bytes < most - 1);
    text[bytes] = 0;
    fclose(file);
    return bytes;
}

static td_graph *read_graph(const char *name)
{
    static char text[1 << 16];
    const size_t bytes = read_text(name, text, sizeof text);
    char why[400] = "";
    td_graph *graph;

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

static const char *dtype_name(uint32_t dtype)
{
    return dtype == TANDEM_DTYPE_F16 ? "F16" : dtype == TANDEM_DTYPE_F32 ? "F32" : "I32";
}

void minilm_write(const minilm *model, const char *graph, const char *file)
{
    enum { MOST = 200 };
    static td_safetensors_item items[MOST];
    static char text[1 << 16];
    const td_target cpu = td_target_for_sm(0);
    const td_program *program = minilm_program(model, 1, 1, &cpu);
    const td_safetensors_text texts = {TD_GRAPH_KEY, text};
    uint32_t count = 0;
    char why[400] = "";

    read_text(graph, text, sizeof text);
    for (uint32_t i = 0; i < program->tensor_count; i++) {
        const td_program_tensor *tensor = &program->tensors[i];
        td_safetensors_item *item = &items[count];

        if (tensor->role != TD_ROLE_WEIGHT)
            continue;
        assert_true(count++ < MOST);
        *item = (td_safetensors_item){.name = tensor->name,
                                      .dtype = dtype_name(tensor->dtype),
                                      .dimensions = tensor->dimensions,
                                      .data = (char *)model->weights + tensor->offset};
        for (uint32_t d = 0; d < tensor->dimensions; d++)
            item->shape[d] = tensor->shape[4 - tensor->dimensions + d];
    }
    minilm_must(td_safetensors_write_texts(file, &texts, 1, items, count, why, sizeof why), why);
    td_program_drop(&program);
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

    snprintf(path, sizeof path, "%s/tests/kernels/minilm/fixtures.safetensors", source ? source : "..");
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

/* --- Runs of a session --- */

static void session_must(tandem_session *s, tandem_status status)
{
    char text[500] = "";

    if (status != TANDEM_OK)
        tandem_error_text(s, text, sizeof text);
    minilm_must(status, text);
}

minilm_session minilm_session_open(const tandem_session_desc *desc, const char *file)
{
    const tandem_instance_desc plain = {.struct_bytes = sizeof plain};
    tandem_session_desc with_text = *desc;
    minilm_session it = {NULL};
    char text[500] = "";

    with_text.error_text = text;
    with_text.error_text_bytes = sizeof text;
    minilm_must(tandem_session_create(&with_text, &it.s), text);
    session_must(it.s, tandem_model_load(it.s, file, &it.model));
    session_must(it.s, tandem_model_instance(it.s, it.model, &plain, &it.instance));
    return it;
}

void minilm_session_close(minilm_session *session)
{
    session_must(NULL, tandem_session_destroy(&session->s));
}

static void make_mem(minilm_session *it, uint64_t bytes)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = bytes};
    void *host;

    if (bytes <= it->mem_bytes)
        return;
    if (it->mem)
        session_must(it->s, tandem_mem_destroy(it->s, it->mem));
    session_must(it->s, tandem_mem_create(it->s, &desc, &it->mem));
    session_must(it->s, tandem_mem_host(it->s, it->mem, &host));
    it->host = host;
    it->mem_bytes = bytes;
}

void minilm_run_session(const minilm *model, const minilm_batch *batch, void *user)
{
    const uint32_t numbers[] = {batch->count, batch->tokens};
    void *const data[] = {batch->ids, batch->lengths, batch->embeddings};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_RUN};
    tandem_job_report report = {.struct_bytes = sizeof report};
    minilm_session *it = user;
    tandem_view views[MINILM_BINDINGS];
    tandem_network_tensor tensors[MINILM_BINDINGS];
    tandem_ticket ticket;
    uint64_t bytes = 0;

    (void)model;
    session_must(it->s, tandem_model_prepare(it->s, it->instance, numbers, 2));
    for (uint32_t i = 0; i < MINILM_BINDINGS; i++) {
        tensors[i].struct_bytes = sizeof tensors[i];
        session_must(it->s, tandem_model_binding(it->s, it->model, numbers, 2, i, &tensors[i]));
        views[i] = (tandem_view){.offset_bytes = bytes, .dtype = tensors[i].dtype};
        bytes += td_align_up(tensors[i].bytes, 256);
    }
    make_mem(it, bytes);
    memset(it->host, 0xff, it->mem_bytes);
    for (uint32_t i = 0; i < MINILM_BINDINGS; i++) {
        views[i].mem = it->mem;
        if (tensors[i].role == TANDEM_NETWORK_INPUT)
            memcpy(it->host + views[i].offset_bytes, data[i], tensors[i].bytes);
    }
    job.op.run = (tandem_run){.instance = it->instance,
                              .bindings = views,
                              .binding_count = MINILM_BINDINGS,
                              .numbers = numbers,
                              .number_count = 2};
    session_must(it->s, tandem_submit(it->s, &job, &ticket));
    session_must(it->s, tandem_wait(it->s, ticket, 60000000000u, &report));
    assert_int_equal(report.state, TANDEM_JOB_DONE);
    memcpy(batch->embeddings, it->host + views[MINILM_EMBEDDINGS].offset_bytes,
           tensors[MINILM_EMBEDDINGS].bytes);
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
