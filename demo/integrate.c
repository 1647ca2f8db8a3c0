/* See integrate.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/integrate.h"

#include <stdio.h>
#include <string.h>

/* As long as a first frame may take, in which drivers compile shaders. */
#define WAIT_BOUND_NS 30000000000u

enum { MAX_REQUIREMENTS = 64 };

bool integrate_is_enabled(const integration_enabled *it, const char *extension)
{
    for (uint32_t i = 0; i < it->extension_count; i++)
        if (!strcmp(it->extensions[i], extension))
            return true;
    return false;
}

bool integrate_enable_extension(integration_enabled *to, const char *name)
{
    if (integrate_is_enabled(to, name))
        return true;
    if (to->extension_count == INTEGRATION_EXTENSIONS)
        return false;
    to->extensions[to->extension_count++] = name;
    return true;
}

/* A feature is a VkBool32 somewhere in a struct of some type: whatever type that is, its struct joins the chain once. */
bool integrate_enable_feature(integration_enabled *to, VkStructureType type, uint32_t offset_bytes)
{
    const VkBool32 yes = VK_TRUE;
    VkBaseOutStructure *it = (void *)&to->features;
    to->features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    while (it && it->sType != type)
        it = it->pNext;
    if (offset_bytes + sizeof yes > (it == (void *)&to->features ? sizeof to->features : sizeof to->structs[0]))
        return false;
    if (!it) {
        if (to->struct_count == INTEGRATION_STRUCTS)
            return false;
        it = (void *)to->structs[to->struct_count++];
        it->sType = type;
        it->pNext = to->features.pNext;
        to->features.pNext = it;
    }
    memcpy((char *)it + offset_bytes, &yes, sizeof yes);
    return true;
}

bool integrate_enable(integration_enabled *to, PFN_vkGetInstanceProcAddr get, VkInstance instance,
                      VkPhysicalDevice physical, char *why, size_t why_bytes)
{
    tandem_requirement list[MAX_REQUIREMENTS] = {TANDEM_INIT(tandem_requirement)};
    uint32_t count = MAX_REQUIREMENTS;
    const tandem_status status = tandem_vulkan_requirements(get, instance, physical, &count, list);
    if (status != TANDEM_OK) {
        snprintf(why, why_bytes, "Tandem could not be asked what to enable: %s", tandem_status_text(status));
        return false;
    }
    to->features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    for (uint32_t i = 0; i < count; i++) {
        const tandem_requirement *r = &list[i];
        const bool of_instance = r->kind == TANDEM_REQUIREMENT_INSTANCE_EXTENSION;
        if (of_instance == (physical != VK_NULL_HANDLE))
            continue;
        if (r->available && !(r->kind == TANDEM_REQUIREMENT_FEATURE
                                  ? integrate_enable_feature(to, r->feature_struct, r->feature_offset)
                                  : integrate_enable_extension(to, r->name))) {
            snprintf(why, why_bytes, "no room to enable %s", r->name);
            return false;
        }
        if (!r->available && r->required) {
            snprintf(why, why_bytes, "%s is missing, which Tandem needs", r->name);
            return false;
        }
    }
    return true;
}

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
                                                    .wait_bound_ns = desc->wait_bound_ns ? desc->wait_bound_ns : WAIT_BOUND_NS,
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
