/* What an instance has for some numbers: programs, uniforms, kernels and scratch. See network.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * To prepare is to plan, which takes long, so all of this is without the session's lock but for what says that it has it.
 */
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/network.h"

#define ENQUEUING_NS 1000000u /* how often a worker that is at the stream is looked at */

static uint64_t program_bytes(const td_program *program)
{
    return program ? td_arena_bytes(&program->memory) + td_arena_bytes(&program->plan->memory) : 0;
}

uint64_t td_prepared_bytes(const td_prepared *prepared)
{
    if (!prepared->program)
        return 0;
    return program_bytes(prepared->program) + program_bytes(prepared->sampled) + prepared->uniforms->bytes +
           (prepared->layers ? prepared->layers->mem->bytes : 0);
}

tandem_status td_prepared_make_uniforms(tandem_session *s, td_prepared *prepared, char *why)
{
    uint64_t bytes;

    if (!td_mul_u64(prepared->slot_bytes, s->jobs_in_flight, &bytes))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM,
                       "no memory for %" PRIu64 " bytes of uniforms", prepared->uniform_bytes);
    prepared->uniforms = td_mem_new(s, bytes, why);
    return prepared->uniforms ? td_mem_make_filled(s, prepared->uniforms, why) : TANDEM_ERROR_NOMEM;
}

/* Of each slot, for a run of this size; tandemd's worker takes a job's as it comes, so much as its
 * client may have. */
static tandem_status reserve_scratch_locked(tandem_session *s, uint64_t bytes, char *why)
{
    td_submission nobody = {.most_bytes = UINT64_MAX};
    tandem_status status = TANDEM_OK;

    for (uint32_t i = 0; i < s->jobs_in_flight && status == TANDEM_OK && !s->of_worker; i++)
        status = td_scratch_reserve_locked(s, &s->jobs[i], &nobody, bytes, why);
    return status;
}

/* Kernels and scratch for a program's runs; NULL: there is none. */
static tandem_status make_ready_locked(tandem_session *s, const td_program *program, char *why)
{
    tandem_status status = TANDEM_OK;

    if (program && s->stream)
        status = td_stream_prepare(s->stream, program->plan, why, TD_WHY_BYTES);
    return program && status == TANDEM_OK ? reserve_scratch_locked(s, program->plan->scratch_bytes, why) : status;
}

static tandem_status make_ready(tandem_session *s, td_prepared *prepared, char *why)
{
    const td_program *program = prepared->program;

    prepared->as = (tandem_prepared){.struct_bytes = sizeof prepared->as,
                                     .record_count = program->plan->record_count,
                                     .chain = program->chain,
                                     .layer_count = prepared->sampled ? prepared->sampled->sample_count : 0,
                                     .scratch_bytes = program->plan->scratch_bytes,
                                     .uniform_bytes = prepared->uniform_bytes};
    pthread_mutex_lock(&s->lock);
    while (s->enqueuing) /* by the worker, without the lock; a stream has one caller at a time */
        td_cond_wait_until(s, &s->changed, td_now_ns() + ENQUEUING_NS);
    tandem_status status = make_ready_locked(s, program, why);
    if (status == TANDEM_OK)
        status = make_ready_locked(s, prepared->sampled, why);
    pthread_mutex_unlock(&s->lock);
    return status;
}

tandem_status td_local_prepare(tandem_session *s, td_instance *instance, td_prepared *prepared,
                               char *why)
{
    tandem_status status = td_prepared_make_uniforms(s, prepared, why);

    if (status == TANDEM_OK && prepared->sampled)
        status = td_layers_make(s, instance, prepared->sampled, &prepared->layers, why);
    return status == TANDEM_OK ? make_ready(s, prepared, why) : status;
}

/* The program, and where layers are sampled and there are some, the one with samples. */
static tandem_status build(tandem_session *s, const td_instance *instance, const uint8_t *precisions,
                           td_prepared *out, char *why)
{
    const td_graph *graph = instance->model->network->graph;
    td_target target = s->target;
    tandem_status status;

    target.commit = instance->desc.deadlines;
    target.precision = instance->desc.precision;
    target.node_precisions = precisions;
    status = td_program_build(graph, out->numbers, &target, &out->program, why, TD_WHY_BYTES);
    target.sample_rows = s->ops->is_elsewhere ? 0 : td_instance_sample_rows(&instance->desc);
    target.sample_all = instance->desc.sample_all;
    if (status == TANDEM_OK && target.sample_rows)
        status = td_program_build(graph, out->numbers, &target, &out->sampled, why, TD_WHY_BYTES);
    if (out->sampled && !out->sampled->sample_count)
        td_program_drop(&out->sampled);
    return status;
}

tandem_status td_instance_make_prepared(tandem_session *s, td_instance *instance,
                                        const uint32_t *numbers, td_prepared *out, char *why)
{
    const td_graph *graph = instance->model->network->graph;
    tandem_status status;

    *out = (td_prepared){0};
    if (graph->number_count)
        memcpy(out->numbers, numbers, graph->number_count * sizeof *numbers);
    status = build(s, instance, instance->precisions, out, why);
    if (status != TANDEM_OK)
        return status;
    for (uint32_t i = 0; i < out->program->tensor_count; i++) {
        const td_program_tensor *tensor = &out->program->tensors[i];

        if (tensor->role == TD_ROLE_UNIFORM)
            out->uniform_bytes = tensor->offset + tensor->bytes;
    }
    out->slot_bytes = td_align_up(out->uniform_bytes + 1, TD_PROGRAM_ALIGN);
    return s->ops->prepare(s, instance, out, why);
}

tandem_status td_instance_replan(tandem_session *s, const td_instance *instance, const td_prepared *prepared,
                                 td_prepared *made, char *why)
{
    memcpy(made->numbers, prepared->numbers, sizeof made->numbers);
    made->uniform_bytes = prepared->uniform_bytes;
    const tandem_status status = build(s, instance, prepared->layers->precisions, made, why);
    if (status == TANDEM_OK && (!made->sampled || made->sampled->sample_bytes != prepared->sampled->sample_bytes))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "other layers could be sampled then");
    return status == TANDEM_OK ? make_ready(s, made, why) : status;
}

void td_prepared_swap_locked(td_prepared *prepared, td_prepared *made)
{
    const td_prepared old = *prepared;

    prepared->program = made->program;
    prepared->sampled = made->sampled;
    prepared->as = made->as;
    made->program = old.program;
    made->sampled = old.sampled;
}
