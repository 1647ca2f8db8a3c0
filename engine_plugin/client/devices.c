/* Which devices there are to compute on, and on which rungs, without a session.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "kernels/cpu/cpu.h"

enum { MOST_DEVICES = 64 };

static uint32_t bit(tandem_rung rung)
{
    return 1u << rung;
}

/* The rungs that there are on these grounds, and why not the best of them. */
static void find_rungs(tandem_device *device, td_device_kind kind, const td_grounds *g)
{
    char why[TD_WHY_BYTES] = "";

    for (const td_way *way = td_ladder; way < td_ladder + TD_WAYS; way++) {
        if (way->device != kind)
            continue;
        if (td_way_is_open(*way, g, why)) /* the CPU's first is known by two names */
            device->rungs |= bit(td_rung_of(*way, 0)) | bit(td_rung_of(*way, TANDEM_RUNG_HOST));
        else if (!device->why[0] && !device->rungs)
            td_text(device->why, sizeof device->why, "%s: %s", td_rung_name(td_rung_of(*way, 0)), why);
    }
    if (!device->rungs)
        td_text(device->why, sizeof device->why, "%s", why);
}

static tandem_device cpu_device(const td_grounds *g)
{
    tandem_device device = {.struct_bytes = sizeof device, .backend = TANDEM_BACKEND_CPU};
    const uint32_t cores = td_core_count();

    snprintf(device.name, sizeof device.name, "CPU, %u thread%s", cores, cores == 1 ? "" : "s");
    snprintf(device.isa, sizeof device.isa, "%s", td_cpu_isa());
    find_rungs(&device, TD_DEVICE_CPU, g);
    return device;
}

static tandem_device cuda_device(const td_grounds *g)
{
    const td_cu_info *info = &g->cuda;
    tandem_device device = {.struct_bytes = sizeof device,
                            .backend = TANDEM_BACKEND_CUDA,
                            .sm = info->sm,
                            .cuda_driver_version = info->driver_version,
                            .multiprocessors = info->multiprocessors,
                            .memory_bytes = info->memory_bytes};
    char ignored[TD_WHY_BYTES];
    const td_cubin *cubin = td_cubin_for_sm(info->sm, ignored, sizeof ignored);

    memcpy(device.uuid, info->uuid, sizeof device.uuid);
    td_text(device.name, sizeof device.name, "%s", info->name);
    if (cubin)
        snprintf(device.isa, sizeof device.isa, cubin->ptx ? "ptx compute_%u" : "sm_%u", cubin->sm);
    find_rungs(&device, TD_DEVICE_CUDA, g);
    return device;
}

tandem_status tandem_devices(uint32_t *count, tandem_device *list)
{
    static const td_vk_caps everything = {.computes = true}; /* an engine on that GPU may enable it all */
    td_grounds on_host = {0}, on_gpu = {.vulkan = &everything, .has_queue = true};
    td_cu_info infos[MOST_DEVICES];
    char why[TD_WHY_BYTES] = "";
    tandem_device cpu = cpu_device(&on_host);
    uint32_t room = list && count ? *count : 0, cuda = MOST_DEVICES, bytes;

    if (!count)
        return td_call_fail(__func__, TANDEM_ERROR_ARG, "count is NULL");
    if (room && TD_STRUCT_CHECK("list[0]", list, why, sizeof why) != TANDEM_OK)
        return td_call_fail(__func__, TANDEM_ERROR_ARG, why);
    bytes = room ? list[0].struct_bytes : 0;
    if (td_cu_device_list(infos, &cuda, why, sizeof why) != TANDEM_OK) {
        td_text(cpu.why, sizeof cpu.why, "%s", why);
        cuda = 0;
    }
    *count = cuda + 1;
    for (uint32_t i = 0; i < room && i < *count; i++) {
        tandem_device *const theirs = (void *)((char *)list + (size_t)i * bytes);
        tandem_device device = cpu;

        if (i < cuda) {
            td_grounds_with_cuda(&on_gpu, &infos[i]);
            device = cuda_device(&on_gpu);
        }
        theirs->struct_bytes = bytes;
        TD_STRUCT_OUT(theirs, &device);
    }
    if (!list || room >= *count)
        return TANDEM_OK;
    td_text(why, sizeof why, "count is %u; there are %u devices", room, *count);
    return td_call_fail(__func__, TANDEM_ERROR_BUSY, why);
}

tandem_status tandem_vulkan_device(PFN_vkGetInstanceProcAddr get_instance_proc_addr, VkInstance instance,
                                   VkPhysicalDevice physical_device, tandem_device *device)
{
    static const td_way any_cuda = {TD_DEVICE_CUDA, TD_SHARING_COPY};
    td_vk_caps caps = {.computes = true};
    td_grounds g = {.vulkan = &caps, .has_queue = true};
    char why[TD_WHY_BYTES] = "";
    tandem_device cpu, known;

    if (!get_instance_proc_addr || !instance || !physical_device || !device)
        return td_call_fail(__func__, TANDEM_ERROR_ARG,
                            !get_instance_proc_addr ? "get_instance_proc_addr is NULL"
                            : !instance             ? "instance is VK_NULL_HANDLE"
                            : !physical_device      ? "physical_device is VK_NULL_HANDLE"
                                                    : "device is NULL");
    if (TD_STRUCT_CHECK("device", device, why, sizeof why) != TANDEM_OK)
        return td_call_fail(__func__, TANDEM_ERROR_ARG, why);
    if (td_vk_identify(get_instance_proc_addr, instance, physical_device, &caps, why, sizeof why) != TANDEM_OK)
        return td_call_fail(__func__, TANDEM_ERROR_UNSUPPORTED, why);
    td_grounds_ask_offer(get_instance_proc_addr, instance, physical_device, &caps);
    td_grounds_ask_cuda(&g);
    cpu = cpu_device(&g);
    if (td_way_is_open(any_cuda, &g, why)) {
        known = cuda_device(&g);
        known.rungs |= cpu.rungs & bit(TANDEM_RUNG_CPU);
    } else {
        known = cpu;
        td_text(known.why, sizeof known.why, "%s", why);
    }
    TD_STRUCT_OUT(device, &known);
    return TANDEM_OK;
}
