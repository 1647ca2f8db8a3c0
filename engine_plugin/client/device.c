/* Which backend a session gets, which rung of the ladder, and why not the next.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "kernels/plan_cache.h"
#include "kernels/attention/tuning.h"
#include "kernels/cpu/cpu.h"

#define SAME_CLOCK_NS 1000000

static tandem_status open_vulkan(tandem_session *s, const tandem_vulkan *vulkan, char *why)
{
    const td_vk_desc vk = {
        .get_instance_proc_addr = vulkan->get_instance_proc_addr,
        .instance = vulkan->instance,
        .physical_device = vulkan->physical_device,
        .device = vulkan->device,
        .api_version = vulkan->api_version,
        .queue_family = vulkan->queue_family,
        .enabled_extension_count = vulkan->enabled_extension_count,
        .enabled_extensions = vulkan->enabled_extensions,
        .enabled_features = vulkan->enabled_features,
    };

    tandem_status status;

    s->queue = (td_vk_queue){vulkan->queue, vulkan->lock_queue, vulkan->unlock_queue, vulkan->user};
    status = td_vk_open(&vk, &s->log, &s->vk, why, TD_WHY_BYTES);
    if (status == TANDEM_OK)
        memcpy(s->device_uuid, td_vk_get_caps(s->vk)->device_uuid, sizeof s->device_uuid);
    return status;
}

/* Whether the device's clock in Vulkan is the one that stamps are taken from. */
static void compare_clocks(tandem_session *s)
{
    const td_vk_caps *caps = td_vk_get_caps(s->vk);
    uint64_t device_ns, now_ns;

    if (caps && caps->calibrated && td_vk_calibrate(s->vk, &device_ns, &now_ns) == TANDEM_OK) {
        int64_t apart = (int64_t)(device_ns - now_ns) - td_stream_clock_offset_ns(s->stream);

        s->same_clock = apart > -SAME_CLOCK_NS && apart < SAME_CLOCK_NS;
        td_logf(&s->log, TD_LOG_DEBUG, "Vulkan's clock and CUDA's are %" PRId64 " ns apart: %s", apart,
                s->same_clock ? "one clock" : "two clocks");
    }
}

/* CUDA kernels within the engine's own command buffers, without a CUDA context. */
static tandem_status open_inline(tandem_session *s, const tandem_session_desc *desc, char *why)
{
    const td_vk_caps *caps = td_vk_get_caps(s->vk);
    const tandem_vulkan *vulkan = desc->vulkan;
    const td_cubin *cubin;
    td_cu_info info;
    tandem_status status;

    if (!caps)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "the session has no Vulkan device");
    if (!caps->inline_kernels)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "%s", caps->missing_inline);
    if (!vulkan->queue)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "no queue was given for the self-test and for submits");
    status = td_cu_device_query(caps->device_uuid, &info, why, TD_WHY_BYTES);
    if (status == TANDEM_OK)
        status = td_stream_create_inline(&(td_inline_desc){.vk = s->vk,
                                                           .sm = info.sm,
                                                           .queue = vulkan->queue,
                                                           .lock = vulkan->lock_queue,
                                                           .unlock = vulkan->unlock_queue,
                                                           .user = vulkan->user},
                                         &s->log, &s->stream, why, TD_WHY_BYTES);
    if (status != TANDEM_OK)
        return status;
    s->backend = TANDEM_BACKEND_CUDA;
    s->rung = TANDEM_RUNG_INLINE;
    s->gpu_signals = true;
    s->target = td_exec_target(&info, false);
    s->sm = s->target.sm;
    td_text(s->device_name, sizeof s->device_name, "%s", info.name);
    cubin = td_cubin_for_sm(info.sm, why, TD_WHY_BYTES);
    if (cubin)
        snprintf(s->isa, sizeof s->isa, "sm_%u", cubin->sm);
    compare_clocks(s);
    return TANDEM_OK;
}

/* CUDA on the engine's own GPU. On failure `why` says what keeps it from it, and nothing is left open. */
static tandem_status open_cuda(tandem_session *s, char *why)
{
    const td_vk_caps *caps = td_vk_get_caps(s->vk);
    const td_cu_info *info;
    const td_cubin *cubin;
    tandem_status status;

    status = td_cu_device_open(caps ? caps->device_uuid : NULL, &s->log, &s->cu, why, TD_WHY_BYTES);
    /* A worker session's jobs come in pieces of many shapes: a graph for each would be made again and again. */
    if (status == TANDEM_OK && s->of_worker)
        td_cu_device_urgency(s->cu, s->job_class == TANDEM_CLASS_FRAME ? TD_CU_SOON : TD_CU_LATER);
    if (status == TANDEM_OK)
        status = (s->of_worker ? td_stream_create : td_stream_create_graph)(s->cu, &s->log, &s->stream, why, TD_WHY_BYTES);
    if (status != TANDEM_OK) {
        td_cu_device_close(&s->cu);
        return status;
    }
    info = td_cu_device_info(s->cu);
    s->backend = TANDEM_BACKEND_CUDA;
    s->target = td_exec_target(info, true);
    s->sm = info->sm;
    s->cuda_driver_version = info->driver_version;
    memcpy(s->device_uuid, info->uuid, sizeof s->device_uuid);
    td_text(s->device_name, sizeof s->device_name, "%s", info->name);
    cubin = td_cubin_for_sm(info->sm, why, TD_WHY_BYTES);
    if (cubin)
        snprintf(s->isa, sizeof s->isa, cubin->ptx ? "ptx compute_%u" : "sm_%u", cubin->sm);
    compare_clocks(s);
    return TANDEM_OK;
}

static void open_cpu(tandem_session *s)
{
    s->backend = TANDEM_BACKEND_CPU;
    s->target = td_target_for_sm(0);
    snprintf(s->device_name, sizeof s->device_name, "CPU, %u thread%s", s->threads, s->threads == 1 ? "" : "s");
    snprintf(s->isa, sizeof s->isa, "%s", td_cpu_isa());
}

/* The ladder: each step says whether the session can stand on it, else what is missing. */

static tandem_status has_shared_memory(tandem_session *s, char *why)
{
    const td_vk_caps *caps = td_vk_get_caps(s->vk);

    if (!caps)
        return TANDEM_OK;
    if (s->cu && !caps->export_memory)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "'%s' cannot share its memory with CUDA: %s missing", caps->name,
                       caps->missing[0] ? caps->missing : "export of OPAQUE_FD buffers is");
    if (!s->cu && !caps->import_host)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "the CPU cannot share memory with '%s': VK_EXT_external_memory_host is not enabled",
                       caps->name);
    return TANDEM_OK;
}

static tandem_status has_shared_timelines(tandem_session *s, char *why)
{
    const td_vk_caps *caps = td_vk_get_caps(s->vk);
    tandem_status status;

    if (!caps)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "the session has no Vulkan device to share semaphores with");
    status = has_shared_memory(s, why);
    if (status != TANDEM_OK)
        return status;
    if (!caps->export_timeline)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "%s missing",
                       caps->missing[0] ? caps->missing : "export of OPAQUE_FD timeline semaphores is");
    if (!td_cu_device_info(s->cu)->timelines)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "CUDA on '%s' cannot import timeline semaphores",
                       td_cu_device_info(s->cu)->name);
    return TANDEM_OK;
}

static tandem_status has_what_to_copy(tandem_session *s, char *why)
{
    if (s->cu || s->vk)
        return TANDEM_OK;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "the CPU and the engine are in the same memory");
}

typedef struct step {
    tandem_rung rung;
    const char *name;
    bool if_asked; /* as good as the one above it: only taken when it is asked for */
    tandem_status (*has)(tandem_session *s, char *why);
} step;

static const step with_cuda[] = {
    {TANDEM_RUNG_TIMELINE, "timeline", false, has_shared_timelines},
    {TANDEM_RUNG_HOST, "host", false, has_shared_memory},
    {TANDEM_RUNG_COPY, "copy", false, has_what_to_copy},
    {0},
};
static const step with_cpu[] = {
    {TANDEM_RUNG_CPU, "cpu", false, has_shared_memory},
    {TANDEM_RUNG_HOST, "host", true, has_shared_memory},
    {TANDEM_RUNG_COPY, "copy", false, has_what_to_copy},
    {0},
};
static const step with_daemon[] = {
    {TANDEM_RUNG_TIMELINE, "timeline", false, td_remote_shares_gpu},
    {TANDEM_RUNG_HOST, "host", false, has_shared_memory},
    {TANDEM_RUNG_COPY, "copy", false, has_what_to_copy},
    {0},
};

static const char *rung_name(uint32_t rung)
{
    static const char *const names[] = {"best", "inline", "timeline", "host", "copy", "cpu"};

    return names[rung];
}

/* The first step that holds, or the one that is asked for. `reason`: why none above them all could be had. */
static tandem_status take_step(tandem_session *s, const step *ladder, uint32_t asked, const char *reason, char *why)
{
    char text[TD_WHY_BYTES];

    td_text(s->rung_reason, sizeof s->rung_reason, "%s", reason);
    for (const step *at = ladder; at->name; at++) {
        tandem_status status;

        if (asked ? at->rung != asked : at->if_asked)
            continue;
        status = at->has(s, text);
        if (status == TANDEM_OK) {
            s->rung = at->rung;
            s->gpu_signals = at->rung == TANDEM_RUNG_TIMELINE;
            return TANDEM_OK;
        }
        if (asked)
            return td_fail(why, TD_WHY_BYTES, status, "desc.rung is %u (%s): %s", asked, at->name, text);
        if (s->cu)
            td_text(s->rung_reason, sizeof s->rung_reason, "%s: %s", at->name, text);
        else
            td_text(s->rung_reason, sizeof s->rung_reason, "%s: %s; %s", at->name, text, reason);
    }
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "desc.rung is %u (%s): %s", asked, rung_name(asked),
                   reason);
}

/* tandemd computes: in memory of this device's where its GPU can share it, else in the host's. */
static tandem_status open_remote(tandem_session *s, const tandem_session_desc *desc, char *why)
{
    char reason[TD_WHY_BYTES];
    const tandem_status status = td_remote_open(s, desc, why);

    if (status != TANDEM_OK)
        return status;
    td_text(reason, sizeof reason, "%s", s->rung_reason);
    return take_step(s, s->backend == TANDEM_BACKEND_CPU ? with_cpu : with_daemon, desc->rung, reason, why);
}

/* Memory and timelines of other processes' Vulkan, without a Vulkan device of this one. */
static tandem_status take_worker_session(tandem_session *s, char *why)
{
    if (!td_cu_device_info(s->cu)->timelines)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "CUDA on '%s' cannot import timeline semaphores",
                       td_cu_device_info(s->cu)->name);
    s->rung = TANDEM_RUNG_TIMELINE;
    s->gpu_signals = true;
    return TANDEM_OK;
}

tandem_status td_device_open(tandem_session *s, const tandem_session_desc *desc, char *why)
{
    const bool cpu_asked = desc->backend == TANDEM_BACKEND_CPU || desc->rung == TANDEM_RUNG_CPU;
    char reason[TD_WHY_BYTES] = "the CPU was asked for", text[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_OK;

    if (desc->rung == TANDEM_RUNG_CPU && desc->backend == TANDEM_BACKEND_CUDA)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.rung is 5 (cpu), but desc.backend is 1 (CUDA)");
    if (desc->vulkan)
        status = open_vulkan(s, desc->vulkan, why);
    if (status == TANDEM_OK && desc->socket)
        return open_remote(s, desc, why);
    if (status != TANDEM_OK)
        return status;
    if (!cpu_asked && (!desc->rung || desc->rung == TANDEM_RUNG_INLINE)) {
        status = open_inline(s, desc, text);
        if (status == TANDEM_OK)
            return status;
        td_text(reason, sizeof reason, "inline: %s", text);
        if (desc->rung)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "desc.rung is 1 (inline): %s", text);
    }
    if (!cpu_asked) {
        if (desc->rung)
            snprintf(reason, sizeof reason, "the %s rung was asked for", rung_name(desc->rung));
        status = open_cuda(s, text);
        if (status == TANDEM_OK && s->imports_only)
            return take_worker_session(s, why);
        if (status == TANDEM_OK)
            return take_step(s, with_cuda, desc->rung, reason, why);
        if (desc->backend == TANDEM_BACKEND_CUDA)
            return td_fail(why, TD_WHY_BYTES, status, "%s", text);
        td_text(reason, sizeof reason, "no CUDA here: %s", text);
    }
    open_cpu(s);
    return take_step(s, with_cpu, desc->rung, reason, why);
}

/* Why no table of times can be used, or NULL. */
static const char *why_no_table(const tandem_session *s)
{
    if (s->ops->tuning == TANDEM_TUNING_DAEMON)
        return "tandemd goes by its own";
    if (s->cu)
        return NULL;
    return s->backend == TANDEM_BACKEND_CPU ? "there are no tables of the CPU's kernels"
                                              : "there are no tables of kernels in command buffers";
}

void td_device_tune(tandem_session *s)
{
    const char *no_table = why_no_table(s);
    char reason[TD_WHY_BYTES] = "";

    s->tuning = s->ops->tuning;
    s->target.tuning = NULL;
    td_plan_cache_clear(s->plans); /* a table may be another one at the same place */
    if (no_table)
        snprintf(reason, sizeof reason, "%s", no_table);
    else if (s->given && td_tuning_fits(s->given, s->target.sm, s->device_name, reason, sizeof reason))
        s->target.tuning = s->given;
    else
        s->target.tuning = td_tuning_shipped(s->target.sm, s->device_name);
    if (s->target.tuning)
        s->tuning = s->target.tuning == s->given ? TANDEM_TUNING_GIVEN : TANDEM_TUNING_SHIPPED;
    else if (!reason[0])
        td_text(reason, sizeof reason, "no times of '%s' came with this library", s->device_name);
    if (s->given && s->tuning != TANDEM_TUNING_GIVEN) {
        td_logf(&s->log, TD_LOG_WARN, "the tuning that was given is not used: %s", reason);
        td_text(s->tuning_reason, sizeof s->tuning_reason, "what was given is not used: %s", reason);
    } else {
        td_text(s->tuning_reason, sizeof s->tuning_reason, "%s", reason);
    }
}

void td_device_close(tandem_session *s)
{
    if (s->stuck) {
        td_logf(&s->log, TD_LOG_WARN, "'%s' failed: what it may still use is left behind", s->device_name);
        s->cu = NULL; /* its context cannot be released while a kernel or a wait hangs in it */
    }
    td_stream_destroy(&s->stream, s->stuck ? 0 : TD_CLOSE_BOUND_NS);
    td_cu_device_close(&s->cu);
    td_vk_close(&s->vk);
}
