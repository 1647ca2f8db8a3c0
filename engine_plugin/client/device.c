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

static void lock_queue(void *session)
{
    const td_queue_locks *locks = &((const tandem_session *)session)->locks;

    locks->lock(locks->user, locks->family, locks->index);
}

static void unlock_queue(void *session)
{
    const td_queue_locks *locks = &((const tandem_session *)session)->locks;

    locks->unlock(locks->user, locks->family, locks->index);
}

td_vk_desc td_device_vulkan(const tandem_vulkan *vulkan)
{
    return (td_vk_desc){
        .get_instance_proc_addr = vulkan->get_instance_proc_addr,
        .instance = vulkan->instance,
        .physical_device = vulkan->physical_device,
        .device = vulkan->device,
        .api_version = vulkan->api_version,
        .queue_family = vulkan->queue_family,
        .enabled_extension_count = vulkan->enabled_extension_count,
        .enabled_extensions = vulkan->enabled_extensions,
        .enabled_features = vulkan->enabled_features,
        .further_family_count = vulkan->further_family_count,
        .further_families = vulkan->further_families,
    };
}

static tandem_status open_vulkan(tandem_session *s, const tandem_vulkan *vulkan, char *why)
{
    const td_vk_desc vk = td_device_vulkan(vulkan);
    tandem_status status;

    s->queue = (td_vk_queue){vulkan->queue, vulkan->lock_queue, vulkan->unlock_queue, vulkan->user};
    s->locks = (td_queue_locks){vulkan->lock_queue2, vulkan->unlock_queue2, vulkan->user, vulkan->queue_family,
                                vulkan->queue_index};
    if (s->locks.lock)
        s->queue = (td_vk_queue){vulkan->queue, lock_queue, unlock_queue, s};
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
static tandem_status open_inline(tandem_session *s, const tandem_vulkan *vulkan, const td_cu_info *info, char *why)
{
    const td_cubin *cubin;
    tandem_status status;

    status = td_stream_create_inline(&(td_inline_desc){.vk = s->vk,
                                                       .sm = info->sm,
                                                       .queue = vulkan->queue,
                                                       .lock = s->queue.lock,
                                                       .unlock = s->queue.unlock,
                                                       .user = s->queue.user},
                                     &s->log, &s->stream, why, TD_WHY_BYTES);
    if (status != TANDEM_OK)
        return status;
    s->target = td_exec_target(info, false);
    s->sm = s->target.sm;
    td_text(s->device_name, sizeof s->device_name, "%s", info->name);
    cubin = td_cubin_for_sm(info->sm, why, TD_WHY_BYTES);
    if (cubin)
        snprintf(s->isa, sizeof s->isa, "sm_%u", cubin->sm);
    compare_clocks(s);
    return TANDEM_OK;
}

/* CUDA on the engine's own GPU. On failure `why` says what keeps it from it, and nothing is left open. */
static tandem_status open_cuda(tandem_session *s, const tandem_session_desc *desc, char *why)
{
    const td_vk_caps *caps = td_vk_get_caps(s->vk);
    const td_cu_info *info;
    const td_cubin *cubin;
    tandem_status status;

    if (desc->cuda_context)
        status = td_cu_device_open_in(desc->cuda_context, desc->cuda_stream, &s->log, &s->cu, why, TD_WHY_BYTES);
    else
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
    s->in_order = desc->cuda_stream != NULL;
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
    s->target = td_target_for_sm(0);
    snprintf(s->device_name, sizeof s->device_name, "CPU, %u thread%s", s->threads, s->threads == 1 ? "" : "s");
    snprintf(s->isa, sizeof s->isa, "%s", td_cpu_isa());
}

/* What computes that way. CUDA that cannot be opened is as good as none, and what it says once it is open counts. */
static tandem_status open_way(tandem_session *s, td_way way, const tandem_session_desc *desc, td_grounds *g, char *why)
{
    tandem_status status = TANDEM_OK;

    if (way.device == TD_DEVICE_CPU && !desc->socket)
        open_cpu(s);
    if (way.device != TD_DEVICE_CUDA)
        return TANDEM_OK;
    if (way.sharing == TD_SHARING_INLINE)
        return open_inline(s, desc->vulkan, &g->cuda, why);
    if (!s->cu)
        status = open_cuda(s, desc, why);
    if (status != TANDEM_OK) {
        td_text(g->no_gpu, sizeof g->no_gpu, "%s", why);
        return status;
    }
    g->cuda = *td_cu_device_info(s->cu);
    return td_way_is_open(way, g, why) ? TANDEM_OK : TANDEM_ERROR_UNSUPPORTED;
}

/* The best way of this device's that is open, or the one that is asked for. `reason`: why nobody better computes. */
static tandem_status climb(tandem_session *s, td_device_kind device, const tandem_session_desc *desc, td_grounds *g,
                           const char *reason, char *why)
{
    tandem_status status = TANDEM_ERROR_UNSUPPORTED;
    char text[TD_WHY_BYTES];

    td_text(text, sizeof text, "%s", reason);
    td_text(s->rung_reason, sizeof s->rung_reason, "%s", reason);
    for (const td_way *way = td_ladder; way < td_ladder + TD_WAYS; way++) {
        const tandem_rung rung = td_rung_of(*way, desc->rung);

        if (way->device != device || (desc->rung && rung != desc->rung))
            continue;
        if (td_way_is_open(*way, g, text)) {
            status = open_way(s, *way, desc, g, text);
            if (status == TANDEM_OK) {
                s->way = *way;
                s->rung = rung;
                return TANDEM_OK;
            }
        }
        if (device == TD_DEVICE_CUDA)
            td_text(s->rung_reason, sizeof s->rung_reason, "%s: %s", td_rung_name(rung), text);
        else
            td_text(s->rung_reason, sizeof s->rung_reason, "%s: %s; %s", td_rung_name(rung), text, reason);
    }
    if (!desc->rung)
        return td_fail(why, TD_WHY_BYTES, status, "%s", text);
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED, "desc.rung is %u (%s): %s", desc->rung,
                   td_rung_name(desc->rung), text);
}

/* tandemd computes: in memory of this device's where its GPU can share it, else in the host's. */
static tandem_status open_remote(tandem_session *s, const tandem_session_desc *desc, td_grounds *g, char *why)
{
    char reason[TD_WHY_BYTES] = "inline: tandemd computes in a process of its own";
    td_device_kind device;
    const tandem_status status = td_remote_open(s, desc, g, &device, why);

    if (status != TANDEM_OK)
        return status;
    if (device == TD_DEVICE_CPU)
        td_text(reason, sizeof reason, "%s", why);
    return climb(s, device, desc, g, reason, why);
}

/* On the device of a caller's context, and on no other. */
static tandem_status open_in_context(tandem_session *s, const tandem_session_desc *desc, td_grounds *g, char *why)
{
    char text[TD_WHY_BYTES];
    const tandem_status status = open_cuda(s, desc, text);

    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "desc.cuda_context is %p, desc.cuda_stream %p: %s", desc->cuda_context,
                       desc->cuda_stream, text);
    td_grounds_with_cuda(g, td_cu_device_info(s->cu));
    return climb(s, TD_DEVICE_CUDA, desc, g, "", why);
}

tandem_status td_device_open(tandem_session *s, const tandem_session_desc *desc, char *why)
{
    static const td_way any_cuda = {TD_DEVICE_CUDA, TD_SHARING_COPY}; /* which needs nothing else */
    const bool cpu_asked = desc->backend == TANDEM_BACKEND_CPU || desc->rung == TANDEM_RUNG_CPU;
    char reason[TD_WHY_BYTES] = "the CPU was asked for";
    td_grounds g = {.imports = s->imports_only, .has_queue = desc->vulkan && desc->vulkan->queue};
    tandem_status status = TANDEM_OK;

    if (desc->rung == TANDEM_RUNG_CPU && desc->backend == TANDEM_BACKEND_CUDA)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.rung is 5 (cpu), but desc.backend is 1 (CUDA)");
    if (desc->vulkan)
        status = open_vulkan(s, desc->vulkan, why);
    if (status != TANDEM_OK)
        return status;
    g.vulkan = td_vk_get_caps(s->vk);
    if (desc->socket)
        return open_remote(s, desc, &g, why);
    if (desc->cuda_context)
        return open_in_context(s, desc, &g, why);
    if (cpu_asked)
        return climb(s, TD_DEVICE_CPU, desc, &g, reason, why);
    td_grounds_ask_cuda(&g);
    td_text(reason, sizeof reason, desc->rung ? "the %s rung was asked for" : "", td_rung_name(desc->rung));
    status = climb(s, TD_DEVICE_CUDA, desc, &g, reason, why);
    if (status == TANDEM_OK || desc->backend == TANDEM_BACKEND_CUDA || td_way_is_open(any_cuda, &g, reason))
        return status;
    return td_ladder_has(TD_DEVICE_CPU, desc->rung) ? climb(s, TD_DEVICE_CPU, desc, &g, reason, why) : status;
}

/* Why no table of times can be used, or NULL. */
static const char *why_no_table(const tandem_session *s)
{
    if (s->ops->tuning == TANDEM_TUNING_DAEMON)
        return "tandemd goes by its own";
    if (s->cu)
        return NULL;
    return s->way.device == TD_DEVICE_CPU ? "there are no tables of the CPU's kernels"
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
