/* Which backend a session gets, which rung of the ladder, and why not the next.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "kernels/cpu/cpu.h"

#define SAME_CLOCK_NS 1000000

static const char *const inline_extensions[] = {"VK_NVX_binary_import", "VK_NVX_image_view_handle"};

static bool is_enabled(const tandem_vulkan *vulkan, const char *extension)
{
    for (uint32_t i = 0; i < vulkan->enabled_extension_count; i++)
        if (!strcmp(vulkan->enabled_extensions[i], extension))
            return true;
    return false;
}

/* CUDA on the engine's own GPU. On failure `why` says what keeps it from it, and nothing is left open. */
static tandem_status open_cuda(tandem_session *s, const tandem_vulkan *vulkan, char *why)
{
    const td_vk_caps *caps = s->vk ? td_vk_get_caps(s->vk) : NULL;
    const td_cubin *cubin;
    tandem_status status;
    uint64_t device_ns, now_ns;

    if (caps && !caps->export_memory)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "'%s' cannot share its memory with CUDA: %s missing", caps->name,
                       caps->missing[0] ? caps->missing : "export of OPAQUE_FD buffers is");
    status = td_cu_device_open(caps ? caps->device_uuid : NULL, &s->log, &s->cu, why, TD_WHY_BYTES);
    if (status == TANDEM_OK)
        status = td_stream_create(s->cu, &s->log, &s->stream, why, TD_WHY_BYTES);
    if (status != TANDEM_OK) {
        td_cu_device_close(&s->cu);
        return status;
    }
    const td_cu_info *info = td_cu_device_info(s->cu);

    s->backend = TANDEM_BACKEND_CUDA;
    s->target = td_target_for_sm(info->sm);
    snprintf(s->device_name, sizeof s->device_name, "%s", info->name);
    cubin = td_cubin_for_sm(info->sm, why, TD_WHY_BYTES);
    if (cubin)
        snprintf(s->isa, sizeof s->isa, cubin->ptx ? "ptx compute_%u" : "sm_%u", cubin->sm);
    s->gpu_signals = caps && caps->export_timeline && info->timelines;
    s->rung = s->gpu_signals ? TANDEM_RUNG_TIMELINE : TANDEM_RUNG_HOST;
    if (!caps) {
        snprintf(s->rung_reason, sizeof s->rung_reason,
                 "timeline: the session has no Vulkan device to share semaphores with");
    } else if (!caps->export_timeline) {
        snprintf(s->rung_reason, sizeof s->rung_reason, "timeline: %.200s missing",
                 caps->missing[0] ? caps->missing : "export of OPAQUE_FD timeline semaphores is");
    } else if (!info->timelines) {
        snprintf(s->rung_reason, sizeof s->rung_reason, "timeline: CUDA on '%s' cannot import timeline semaphores",
                 info->name);
    } else {
        const char *missing = NULL;

        for (size_t i = 0; i < sizeof inline_extensions / sizeof *inline_extensions; i++)
            if (!missing && !is_enabled(vulkan, inline_extensions[i]))
                missing = inline_extensions[i];
        if (missing)
            snprintf(s->rung_reason, sizeof s->rung_reason, "inline: %s is not enabled", missing);
        else
            snprintf(s->rung_reason, sizeof s->rung_reason, "inline: the inline executor is not part of this version");
    }
    if (caps && caps->calibrated && td_vk_calibrate(s->vk, &device_ns, &now_ns) == TANDEM_OK) {
        int64_t apart = (int64_t)(device_ns - now_ns) - td_stream_clock_offset_ns(s->stream);

        s->same_clock = apart > -SAME_CLOCK_NS && apart < SAME_CLOCK_NS;
        td_logf(&s->log, TD_LOG_DEBUG, "Vulkan's clock and CUDA's are %" PRId64 " ns apart: %s", apart,
                s->same_clock ? "one clock" : "two clocks");
    }
    return TANDEM_OK;
}

tandem_status td_device_open(tandem_session *s, const tandem_session_desc *desc, char *why)
{
    const tandem_vulkan *vulkan = desc->vulkan;
    const td_vk_caps *caps = NULL;
    tandem_status status;

    if (vulkan) {
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

        status = td_vk_open(&vk, &s->log, &s->vk, why, TD_WHY_BYTES);
        if (status != TANDEM_OK)
            return status;
        caps = td_vk_get_caps(s->vk);
    }
    if (desc->backend != TANDEM_BACKEND_CPU) {
        status = open_cuda(s, vulkan, why);
        if (status == TANDEM_OK || desc->backend == TANDEM_BACKEND_CUDA)
            return status;
        snprintf(s->rung_reason, sizeof s->rung_reason, "no CUDA here: %.230s", why);
    } else {
        snprintf(s->rung_reason, sizeof s->rung_reason, "no CUDA here: the CPU was asked for");
    }
    if (caps && !caps->import_host)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "the CPU cannot share memory with '%s': VK_EXT_external_memory_host is not enabled (%s)",
                       caps->name, s->rung_reason);
    s->backend = TANDEM_BACKEND_CPU;
    s->rung = TANDEM_RUNG_CPU;
    s->target = td_target_for_sm(0);
    snprintf(s->device_name, sizeof s->device_name, "CPU, %u thread%s", s->threads, s->threads == 1 ? "" : "s");
    snprintf(s->isa, sizeof s->isa, "%s", td_cpu_isa());
    return TANDEM_OK;
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
