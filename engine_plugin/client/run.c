/* Jobs that run networks: what they name is checked, and nothing is planned. See network.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/network.h"

/* What belongs to the network itself. */
static tandem_status check_run(const td_network *network, const tandem_run *run, char *why)
{
    for (size_t i = 0; i < sizeof run->reserved / sizeof *run->reserved; i++)
        if (run->reserved[i])
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "run.reserved[%zu] is %u, not 0", i,
                           run->reserved[i]);
    if (run->binding_count != network->binding_count)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "run.binding_count is %u; the network has %u inputs and outputs",
                       run->binding_count, network->binding_count);
    if (run->binding_count && !run->bindings)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "run.bindings is NULL");
    return td_network_check_numbers(network, run->numbers, run->number_count, "run.", why);
}

static tandem_status check_uniforms(const td_prepared *prepared, const tandem_run *run, char *why)
{
    if (run->uniform_bytes != prepared->uniform_bytes)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "run.uniform_bytes is %" PRIu64 "; for these numbers it must be %" PRIu64,
                       run->uniform_bytes, prepared->uniform_bytes);
    if (run->uniform_bytes && !run->uniforms)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "run.uniforms is NULL");
    return TANDEM_OK;
}

/* Whether the strides of a binding are those of its tensor, or none. */
static bool lies_dense(const tandem_view *view, const tandem_view *dense, const uint32_t shape[4])
{
    const int64_t given[3] = {view->stride_batch, view->stride_head, view->stride_row};
    const int64_t wanted[3] = {dense->stride_batch, dense->stride_head, dense->stride_row};
    bool as_tensor = true;

    for (int i = 0; i < 3; i++)
        as_tensor = as_tensor && (given[i] == wanted[i] || shape[i] == 1);
    return as_tensor || (!given[0] && !given[1] && !given[2]);
}

static tandem_status bind_binding_locked(tandem_session *s, td_job *job, uint32_t index,
                                         const tandem_view *view, const td_program_tensor *tensor,
                                         char *why)
{
    const char *name = job->names[index];
    tandem_view dense = td_program_dense(tensor->dtype, tensor->shape);

    if (view->dtype != tensor->dtype)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "%s.dtype is %u; the network has %u",
                       name, view->dtype, tensor->dtype);
    if (view->reserved)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "%s.reserved is %u, not 0", name,
                       view->reserved);
    if (!lies_dense(view, &dense, tensor->shape))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "%s has strides %" PRId64 ", %" PRId64 ", %" PRId64
                       "; it must lie dense: %" PRId64 ", %" PRId64 ", %" PRId64,
                       name, view->stride_batch, view->stride_head, view->stride_row,
                       dense.stride_batch, dense.stride_head, dense.stride_row);
    dense.mem = view->mem;
    dense.offset_bytes = view->offset_bytes;
    return td_job_bind_view_locked(s, job, index, &dense, tensor->shape, TD_BINDING_ALIGN, why);
}

static tandem_status bind_bindings_locked(tandem_session *s, td_job *job, const tandem_run *run,
                                          const td_network *network, const td_program *program,
                                          char *why)
{
    const tandem_view *views[TD_JOB_VIEWS];
    tandem_status status = TANDEM_OK;

    for (uint32_t i = 0; i < run->binding_count && status == TANDEM_OK; i++) {
        const td_program_tensor *tensor = &program->tensors[program->bindings[i]];
        const uint32_t index = TD_PROGRAM_BINDINGS + i;

        views[index] = &run->bindings[i];
        job->names[index] = network->binding_names[i];
        job->written[index] = tensor->role == TD_ROLE_OUTPUT;
        status = bind_binding_locked(s, job, index, &run->bindings[i], tensor, why);
    }
    return status == TANDEM_OK ? td_job_views_apart(job, TD_PROGRAM_BINDINGS, views, why) : status;
}

/* Memory of the session's own. */
static void bind_block(td_job *job, uint32_t view, const char *name, td_mem *mem,
                       uint64_t offset, uint64_t bytes)
{
    job->names[view] = name;
    job->written[view] = view == TD_PROGRAM_STATE || view >= TD_PROGRAM_BINDINGS;
    job->mems[view] = mem;
    job->views[view] = mem->address + offset;
    job->extents[view] = (td_extent){.bytes = bytes, .row_bytes = bytes};
}

tandem_status td_run_bind_locked(tandem_session *s, td_job *job, uint32_t slot,
                                 const tandem_run *run, char *why)
{
    td_instance *instance = td_instance_find_locked(s, run->instance, "run.instance", why);
    td_prepared *prepared;
    tandem_status status;

    if (!instance)
        return TANDEM_ERROR_ARG;
    const td_network *network = instance->model->network;
    status = td_instance_check_locked(s, instance, "run.instance", why);
    if (status == TANDEM_OK)
        status = check_run(network, run, why);
    if (status != TANDEM_OK)
        return status;
    if (job->life.has_deadline && !instance->desc.deadlines)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "job.deadline_ns is %" PRIu64 ", but run.instance 0x%" PRIx64
                       " was made without desc.deadlines",
                       job->life.deadline_ns - job->submit_ns, run->instance);
    prepared = td_instance_find_prepared(instance, run->numbers);
    if (!prepared)
        return td_instance_not_prepared(instance, run->numbers, "run.", why);
    status = check_uniforms(prepared, run, why);
    if (status != TANDEM_OK)
        return status;
    job->sampled = td_layers_sample_next_locked(prepared);
    const td_program *program = job->sampled ? prepared->sampled : prepared->program;
    td_job_set_view_count(job, program->plan->view_count);
    bind_block(job, TD_PROGRAM_WEIGHTS, "weights", instance->model->mem, 0, network->weight_bytes);
    bind_block(job, TD_PROGRAM_STATE, "state", instance->state, 0, network->state_bytes);
    bind_block(job, TD_PROGRAM_UNIFORM, "uniforms", prepared->uniforms, slot * prepared->slot_bytes,
               prepared->slot_bytes);
    status = bind_bindings_locked(s, job, run, network, program, why);
    if (status != TANDEM_OK)
        return status;
    if (job->sampled)
        bind_block(job, TD_PROGRAM_BINDINGS + run->binding_count, "samples", prepared->layers->mem, 0, program->sample_bytes);
    job->instance = instance;
    job->prepared = prepared;
    job->atomic_commit = program->claims;
    job->plan = td_plan_use(program->plan);
    job->label = "tandem run";
    return TANDEM_OK;
}

void td_run_note_recorded_locked(tandem_session *s, const tandem_run *run)
{
    char ignored[TD_WHY_BYTES];
    td_instance *instance = td_instance_find_locked(s, run->instance, "run.instance", ignored);

    td_instance_find_prepared(instance, run->numbers)->recorded = true;
}

void td_run_take_uniforms_locked(td_job *job, const tandem_run *run)
{
    const td_mem *mem = job->mems[TD_PROGRAM_UNIFORM];

    if (run->uniform_bytes)
        memcpy((char *)mem->host + (job->views[TD_PROGRAM_UNIFORM] - mem->address), run->uniforms,
               run->uniform_bytes);
}
