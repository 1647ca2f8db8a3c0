/* A language model on a session. See speaker.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/speaker.h"

#include <stdlib.h>
#include <string.h>

enum { NUMBERS = 3 /* batch, tokens, wanted */ };

/* --- The model --- */

/* What the file's network says of itself. */
static tandem_status read_sizes(td_speaker *s)
{
    tandem_network network = {.struct_bytes = sizeof network};
    tandem_network_number wanted = {.struct_bytes = sizeof wanted};
    tandem_network_tensor logits = {.struct_bytes = sizeof logits};
    const uint32_t one[NUMBERS] = {1, 1, 1};
    tandem_status status = tandem_model_info(s->session, s->model, &network);

    if (status == TANDEM_OK && network.number_count != NUMBERS)
        return TANDEM_ERROR_UNSUPPORTED;
    if (status == TANDEM_OK)
        status = tandem_model_number(s->session, s->model, 2, &wanted);
    if (status == TANDEM_OK)
        status = tandem_model_binding(s->session, s->model, one, NUMBERS, 0, &logits);
    s->context = wanted.most; /* all tokens of its one sequence */
    s->words = logits.shape[3];
    s->cache_bytes = network.state_bytes;
    return status;
}

static tandem_status make_logits(td_speaker *s, uint32_t rows)
{
    const tandem_status status =
        td_host_mem_make(s->session, (uint64_t)rows * s->words * sizeof(float), &s->mem);

    s->logits = s->mem.host;
    s->view = (tandem_view){.mem = s->mem.mem, .dtype = TANDEM_DTYPE_F32};
    return status;
}

tandem_status td_speaker_open(tandem_session *session, const td_speaker_desc *desc,
                              td_speaker *speaker)
{
    const tandem_model_desc model = {.struct_bytes = sizeof model,
                                     .cache = desc->cache,
                                     .path = desc->path,
                                     .context = desc->context};
    const tandem_instance_desc instance = {.struct_bytes = sizeof instance,
                                           .precision = desc->precision};
    tandem_status status;

    *speaker = (td_speaker){
        .session = session, .model = desc->model, .owns_model = desc->path != NULL};
    status = desc->path ? tandem_model_create(session, &model, &speaker->model) : TANDEM_OK;
    if (status == TANDEM_OK)
        status = read_sizes(speaker);
    if (status == TANDEM_OK)
        status = make_logits(speaker, desc->all_logits ? TD_SPEAKER_PART : 1);
    if (status == TANDEM_OK)
        status = tandem_model_instance(session, speaker->model, &instance, &speaker->instance);
    if (status != TANDEM_OK)
        td_speaker_close(speaker);
    return status;
}

void td_speaker_close(td_speaker *speaker)
{
    if (speaker->instance)
        tandem_instance_destroy(speaker->session, speaker->instance);
    if (speaker->owns_model && speaker->model)
        tandem_model_destroy(speaker->session, speaker->model);
    td_host_mem_free(speaker->session, &speaker->mem);
    free(speaker->uniforms);
    *speaker = (td_speaker){0};
}

/* --- Runs --- */

static tandem_status find_uniforms(td_speaker *s, const uint32_t numbers[NUMBERS])
{
    uint64_t *const offsets[] = {&s->ids, &s->positions, &s->rows};
    tandem_network_tensor uniform = {.struct_bytes = sizeof uniform};

    for (uint32_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        const tandem_status status =
            tandem_model_uniform(s->session, s->model, numbers, NUMBERS, i, &uniform);
        if (status != TANDEM_OK)
            return status;
        *offsets[i] = uniform.offset_bytes;
        s->uniform_bytes = uniform.offset_bytes + uniform.bytes;
    }
    char *more = realloc(s->uniforms, s->uniform_bytes);
    if (!more)
        return TANDEM_ERROR_NOMEM;
    s->uniforms = memset(more, 0, s->uniform_bytes);
    return TANDEM_OK;
}

static tandem_status prepare(td_speaker *s, uint32_t tokens, uint32_t wanted)
{
    const uint32_t numbers[NUMBERS] = {1, tokens, wanted};
    tandem_status status;

    if (s->tokens == tokens && s->wanted == wanted)
        return TANDEM_OK;
    s->tokens = 0;
    status = tandem_model_prepare(s->session, s->instance, numbers, NUMBERS);
    if (status == TANDEM_OK)
        status = find_uniforms(s, numbers);
    if (status != TANDEM_OK)
        return status;
    s->tokens = tokens;
    s->wanted = wanted;
    return TANDEM_OK;
}

static tandem_status submit(td_speaker *s, tandem_ticket *ticket)
{
    const uint32_t numbers[NUMBERS] = {1, s->tokens, s->wanted};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_RUN};

    job.op.run = (tandem_run){.instance = s->instance,
                              .bindings = &s->view,
                              .binding_count = 1,
                              .numbers = numbers,
                              .number_count = NUMBERS,
                              .uniforms = s->uniforms,
                              .uniform_bytes = s->uniform_bytes};
    return tandem_submit(s->session, &job, ticket);
}

tandem_status td_speaker_submit(td_speaker *s, const uint32_t *ids, uint32_t first, uint32_t count,
                                uint32_t wanted, tandem_ticket *ticket)
{
    const tandem_status status = prepare(s, count, wanted);

    if (status != TANDEM_OK)
        return status;
    for (uint32_t i = 0; i < count; i++) {
        ((int32_t *)(void *)(s->uniforms + s->ids))[i] = (int32_t)ids[i];
        ((int32_t *)(void *)(s->uniforms + s->positions))[i] = (int32_t)(first + i);
    }
    for (uint32_t i = 0; i < wanted; i++)
        ((int32_t *)(void *)(s->uniforms + s->rows))[i] = (int32_t)(count - wanted + i);
    return submit(s, ticket);
}

tandem_status td_speaker_compute(td_speaker *s, const uint32_t *ids, uint32_t first,
                                 uint32_t count, uint32_t wanted)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_ticket ticket;
    tandem_status status = td_speaker_submit(s, ids, first, count, wanted, &ticket);

    if (status != TANDEM_OK)
        return status;
    status = tandem_wait(s->session, ticket, UINT64_MAX, &report);
    if (status == TANDEM_OK && report.state != TANDEM_JOB_DONE)
        status = report.status ? (tandem_status)report.status : TANDEM_ERROR_LOST;
    return status;
}

tandem_status td_speaker_read(td_speaker *s, const uint32_t *ids, uint32_t first, uint32_t count)
{
    tandem_status status = TANDEM_OK;

    for (uint32_t done = 0, n; done < count && status == TANDEM_OK; done += n) {
        n = td_speaker_part(first + done, count - done);
        status = td_speaker_compute(s, ids + done, first + done, n, 1);
    }
    return status;
}
