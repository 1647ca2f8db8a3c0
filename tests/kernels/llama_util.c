/* Language models for tests. See llama_util.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/llama_util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/model/folder.h"
#include "tests/kernels/llama_file.h"

void lu_must(tandem_status status, const char *why)
{
    if (status)
        fail_msg("status %d: %s", (int)status, why);
}

void *lu_memory(uint64_t bytes)
{
    void *memory = aligned_alloc(TD_PROGRAM_ALIGN, td_align_up(bytes + 1, TD_PROGRAM_ALIGN));

    assert_non_null(memory);
    return memset(memory, 0xff, bytes);
}

/* --- Models --- */

lu_model lu_open(const char *path, const void *bytes, uint64_t size, uint32_t slots,
                 uint32_t context)
{
    return lu_open_cached(path, bytes, size, slots, context, TANDEM_CACHE_F16);
}

lu_model lu_open_as(const char *path, const void *bytes, uint64_t size, const td_llama_desc *desc)
{
    td_target target = td_target_for_sm(desc->tiles ? 90 : 0);
    const td_program *program; /* weights and caches lie alike in all */
    lu_model m = {0};
    char why[400] = "";

    target.twin = true; /* no cubin is asked for */
    lu_must(path ? td_checkpoint_open(path, &m.file, why, sizeof why)
                 : td_gguf_read(bytes, size, &m.file, why, sizeof why),
            why);
    lu_must(td_llama_open(&m.file, desc, &m.llama, why, sizeof why), why);
    lu_must(td_program_build(m.llama.graph, (const uint32_t[]){1, 1, 1}, &target, &program, why,
                             sizeof why),
            why);
    m.weight_bytes = program->weight_bytes;
    m.state_bytes = program->state_bytes;
    m.weights = lu_memory(m.weight_bytes);
    td_llama_read_weights(&m.llama, program, m.weights);
    td_program_drop(&program);
    return m;
}

lu_model lu_open_cached(const char *path, const void *bytes, uint64_t size, uint32_t slots,
                        uint32_t context, uint32_t cache)
{
    return lu_open_as(path, bytes, size,
                      &(td_llama_desc){.slots = slots, .context = context, .cache = cache});
}

void lu_close(lu_model *model)
{
    td_llama_close(&model->llama);
    td_gguf_close(&model->file);
    free(model->weights);
}

/* --- Instances --- */

lu_instance lu_begin(const lu_model *model, td_target target, lu_run *run, void *user)
{
    return (lu_instance){.model = model,
                         .target = target,
                         .run = run,
                         .user = user,
                         .state = lu_memory(model->state_bytes)};
}

void lu_end(lu_instance *it)
{
    td_program_drop(&it->program);
    free(it->state);
}

void lu_run_cpu(lu_instance *it, const void *uniforms, float *logits)
{
    const td_plan *plan = it->program->plan;
    void *scratch = lu_memory(plan->scratch_bytes);
    const uint64_t views[] = {(uintptr_t)it->model->weights, (uintptr_t)it->state,
                              (uintptr_t)uniforms, (uintptr_t)logits};

    assert_int_equal(td_exec_cpu_run(plan, views, (uintptr_t)scratch, 2, NULL), TANDEM_OK);
    free(scratch);
}

static void set_uniform(const td_program *program, void *uniforms, const char *name,
                        const int32_t *from)
{
    for (uint32_t i = 0; i < program->tensor_count; i++) {
        const td_program_tensor *t = &program->tensors[i];

        if (!strcmp(t->name, name)) {
            memcpy((char *)uniforms + t->offset, from, t->bytes);
            return;
        }
    }
    fail_msg("there is no %s", name);
}

/* Of a model with pages: the sequences of a batch have the first slots, and pages one behind the other. */
static void set_table(const lu_instance *it, void *uniforms)
{
    const uint32_t batch = it->numbers[0], columns = 1 + (it->model->llama.context + 63) / 64;
    int32_t *table = lu_memory((uint64_t)batch * columns * sizeof *table);

    for (uint32_t i = 0; i < batch * columns; i++)
        table[i] = (int32_t)(i % columns ? i / columns * (columns - 1) + i % columns - 1 : i / columns);
    set_uniform(it->program, uniforms, "table", table);
    free(table);
}

void lu_compute(lu_instance *it, const uint32_t numbers[TD_LLAMA_NUMBERS], const int32_t *ids,
                const int32_t *positions, const int32_t *rows, float *logits)
{
    char why[400] = "";

    if (memcmp(it->numbers, numbers, sizeof it->numbers) != 0) {
        td_program_drop(&it->program);
        lu_must(td_program_build(it->model->llama.graph, numbers, &it->target, &it->program, why,
                                 sizeof why),
                why);
        memcpy(it->numbers, numbers, sizeof it->numbers);
        assert_int_equal(it->program->weight_bytes, it->model->weight_bytes);
        assert_int_equal(it->program->state_bytes, it->model->state_bytes);
        assert_int_equal(it->program->binding_count, 1);
    }
    void *uniforms = lu_memory(it->program->uniform_bytes);
    set_uniform(it->program, uniforms, "ids", ids);
    set_uniform(it->program, uniforms, "positions", positions);
    set_uniform(it->program, uniforms, "rows", rows);
    if (it->model->llama.pages)
        set_table(it, uniforms);
    it->run(it, uniforms, logits);
    free(uniforms);
}

void lu_compute_sequence(lu_instance *it, const int32_t *ids, uint32_t first, uint32_t count,
                         uint32_t most, float *logits)
{
    const uint32_t words = it->model->llama.sizes.words;
    int32_t *positions = lu_memory(most * sizeof *positions),
            *rows = lu_memory(most * sizeof *rows);

    for (uint32_t done = 0, n; done < count; done += n) {
        n = count - done < most ? count - done : most;
        for (uint32_t i = 0; i < n; i++) {
            positions[i] = (int32_t)(first + done + i);
            rows[i] = (int32_t)i;
        }
        lu_compute(it, (const uint32_t[]){1, n, n}, ids + done, positions, rows,
                   logits + (size_t)done * words);
    }
    free(positions);
    free(rows);
}

/* --- Records that are joined --- */

lu_model lu_open_joined(uint32_t dim, uint32_t head_dim, uint32_t dtype, uint32_t cache)
{
    const lf_shape shape = {.layers = 1, .dim = dim, .hidden = 256, .heads = 4, .kv_heads = 1, .head_dim = head_dim,
                            .rotated_channels = 64, .words = LU_WORDS, .context = 300, .dtype = dtype};
    const uint32_t pages = cache == TANDEM_CACHE_F16 ? LU_SEQUENCES * 5 : 0;
    uint64_t bytes;
    void *file = lf_make(&shape, NULL, &bytes);
    const lu_model model = lu_open_as(NULL, file, bytes, &(td_llama_desc){.slots = LU_SEQUENCES, .cache = cache == LU_ROWS ? TANDEM_CACHE_F16 : cache,
                                                                           .tiles = true, .pages = pages});

    free(file);
    return model;
}

void lu_speak(lu_instance *it, float logits[LU_SPOKEN])
{
    for (uint32_t run = 0; run < LU_RUNS; run++) {
        int32_t ids[LU_SEQUENCES], positions[LU_SEQUENCES], rows[LU_SEQUENCES];

        for (uint32_t i = 0; i < LU_SEQUENCES; i++) {
            ids[i] = (int32_t)(run * 37 + i * 11) % LU_WORDS;
            positions[i] = 252 + (int32_t)run;
            rows[i] = (int32_t)i;
        }
        lu_compute(it, (const uint32_t[]){LU_SEQUENCES, 1, LU_SEQUENCES}, ids, positions, rows, logits + run * LU_SEQUENCES * LU_WORDS);
    }
}

uint32_t lu_best(const float *logits, uint32_t words)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < words; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

double lu_cosine(const float *a, const float *b, uint32_t count)
{
    double ab = 0, aa = 0, bb = 0;

    for (uint32_t i = 0; i < count; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return ab / sqrt(aa * bb);
}
