/* See integrate.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/integrate.h"

#include <stdio.h>
#include <string.h>

/* How long a job's wait for the engine's signal may last before it fails: as long as a first frame may take, in which drivers
 * compile shaders. */
#define WAIT_BOUND_NS 30000000000u

static tandem_status create_mem(const integration *it, uint64_t bytes, tandem_mem *mem)
{
    const tandem_mem_desc desc = TANDEM_INIT(tandem_mem_desc, .source = TANDEM_MEM_CREATE, .bytes = bytes, .fd = -1);
    return tandem_mem_create(it->session, &desc, mem);
}

/* One timeline that the engine signals and one that the session does, each a VkSemaphore of the engine's device. */
static tandem_status create_timelines(integration *it)
{
    const tandem_timeline_desc from_engine = TANDEM_INIT(tandem_timeline_desc, .signaller = TANDEM_SIGNALLER_ENGINE);
    const tandem_timeline_desc from_session = TANDEM_INIT(tandem_timeline_desc, .signaller = TANDEM_SIGNALLER_SESSION);
    tandem_status status = tandem_timeline_create(it->session, &from_engine, &it->engine_timeline);
    if (status == TANDEM_OK)
        status = tandem_timeline_create(it->session, &from_session, &it->session_timeline);
    if (status == TANDEM_OK)
        status = tandem_timeline_get_vulkan(it->session, it->engine_timeline, &it->engine_semaphore);
    if (status == TANDEM_OK)
        status = tandem_timeline_get_vulkan(it->session, it->session_timeline, &it->session_semaphore);
    return status;
}

bool integrate_open(integration *it, const integration_desc *desc, char *why, size_t why_bytes)
{
    const tandem_session_desc session = TANDEM_INIT(tandem_session_desc,
                                                    .backend = desc->backend,
                                                    .vulkan = &desc->vulkan,
                                                    .log = desc->log,
                                                    .user = desc->user,
                                                    .cpu_threads = desc->cpu_threads,
                                                    .frames_in_flight = 2 * INTEGRATION_SLOTS + 2,
                                                    .wait_bound_ns = WAIT_BOUND_NS,
                                                    .timing = 1,
                                                    .rung = desc->rung,
                                                    .error_text = why,
                                                    .error_text_bytes = why_bytes);
    *it = (integration){0};
    why[0] = 0;
    tandem_status status = tandem_session_create(&session, &it->session);
    if (status != TANDEM_OK) {
        if (!why[0])
            snprintf(why, why_bytes, "%s", tandem_status_text(status));
        return false;
    }
    it->info = TANDEM_INIT(tandem_info);
    status = tandem_session_info(it->session, &it->info);
    if (status == TANDEM_OK)
        status = create_timelines(it);
    for (int i = 0; i < INTEGRATION_SLOTS && status == TANDEM_OK; i++) {
        status = create_mem(it, desc->input_bytes, &it->slots[i].input);
        if (status == TANDEM_OK)
            status = create_mem(it, desc->output_bytes, &it->slots[i].output);
    }
    if (status != TANDEM_OK) {
        tandem_error_text(it->session, why, why_bytes);
        integrate_close(it);
    }
    return status == TANDEM_OK;
}

/* With a session go its timelines and its memory. */
void integrate_close(integration *it)
{
    if (it->session)
        tandem_session_destroy(&it->session);
    memset(it, 0, sizeof *it);
}

/* Here compute shaders write the input, and have read the output of the frame that had the slot before. */
tandem_status integrate_give(const integration *it, const integration_slot *slot, VkCommandBuffer commands)
{
    const VkPipelineStageFlags compute = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    const tandem_status status =
        tandem_record_release(it->session, commands, slot->input, compute, VK_ACCESS_SHADER_WRITE_BIT);
    return status ? status
                  : tandem_record_release(it->session, commands, slot->output, compute, VK_ACCESS_SHADER_READ_BIT);
}

bool integrate_records(const integration *it)
{
    return it->info.rung == TANDEM_RUNG_INLINE;
}

integration_point integrate_given(integration *it)
{
    return (integration_point){it->engine_semaphore, ++it->engine_value};
}

tandem_status integrate_submitted(const integration *it)
{
    return tandem_timeline_submitted(it->session, it->engine_timeline, it->engine_value);
}

tandem_status integrate_job(integration *it, integration_slot *slot, tandem_job *job, VkCommandBuffer commands,
                            tandem_ticket *ticket)
{
    if (integrate_records(it))
        return tandem_record(it->session, job, commands, ticket);
    job->wait = (tandem_point){it->engine_timeline, it->engine_value};
    job->signal = (tandem_point){it->session_timeline, it->session_value + 1};
    const tandem_status status = tandem_submit(it->session, job, ticket);
    if (status == TANDEM_OK) /* else nobody signals that value, so nobody may wait for it */
        slot->done = ++it->session_value;
    return status;
}

integration_point integrate_done(const integration *it, const integration_slot *slot)
{
    return (integration_point){it->session_semaphore, slot->done};
}

tandem_status integrate_take(const integration *it, tandem_mem mem, VkCommandBuffer commands,
                             VkPipelineStageFlags stages, VkAccessFlags access)
{
    return tandem_record_acquire(it->session, commands, mem, stages, access);
}

tandem_status integrate_wait(const integration *it, tandem_ticket ticket, uint64_t timeout_ns)
{
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    const tandem_status status = tandem_wait(it->session, ticket, timeout_ns, &report);
    return status != TANDEM_OK || report.state == TANDEM_JOB_DONE ? status : (tandem_status)report.status;
}
