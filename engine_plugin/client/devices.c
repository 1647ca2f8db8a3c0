/* Which devices there are to compute on, and on which rungs, without a session.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "kernels/cpu/cpu.h"

enum { MOST_DEVICES = 64, MOST_REQUIREMENTS = 32 };

static uint32_t bit(tandem_rung rung)
{
    return 1u << rung;
}

static tandem_device cpu_device(void)
{
    tandem_device device = {.struct_bytes = sizeof device,
                            .backend = TANDEM_BACKEND_CPU,
                            .rungs = bit(TANDEM_RUNG_CPU) | bit(TANDEM_RUNG_HOST)};
    const uint32_t cores = td_core_count();

    snprintf(device.name, sizeof device.name, "CPU, %u thread%s", cores, cores == 1 ? "" : "s");
    snprintf(device.isa, sizeof device.isa, "%s", td_cpu_isa());
    return device;
}

/* The rungs that CUDA and the kernels of this library have on it. */
static tandem_device cuda_device(const td_cu_info *info)
{
    tandem_device device = {.struct_bytes = sizeof device,
                            .backend = TANDEM_BACKEND_CUDA,
                            .sm = info->sm,
                            .cuda_driver_version = info->driver_version,
                            .multiprocessors = info->multiprocessors,
                            .memory_bytes = info->memory_bytes};
    char why[TD_WHY_BYTES];
    const td_cubin *cubin = td_cubin_for_sm(info->sm, why, sizeof why);

    memcpy(device.uuid, info->uuid, sizeof device.uuid);
    td_text(device.name, sizeof device.name, "%s", info->name);
    if (!cubin) {
        td_text(device.why, sizeof device.why, "%s", why);
        return device;
    }
    snprintf(device.isa, sizeof device.isa, cubin->ptx ? "ptx compute_%u" : "sm_%u", cubin->sm);
    device.rungs = bit(TANDEM_RUNG_INLINE) | bit(TANDEM_RUNG_HOST) | bit(TANDEM_RUNG_COPY);
    if (info->timelines)
        device.rungs |= bit(TANDEM_RUNG_TIMELINE);
    else
        td_text(device.why, sizeof device.why, "timeline: CUDA on '%s' cannot import timeline semaphores", info->name);
    return device;
}

tandem_status tandem_devices(uint32_t *count, tandem_device *list)
{
    td_cu_info infos[MOST_DEVICES];
    char why[TD_WHY_BYTES] = "";
    tandem_device cpu = cpu_device();
    uint32_t room = list && count ? *count : 0, cuda = MOST_DEVICES;

    if (!count)
        return td_call_fail(__func__, TANDEM_ERROR_ARG, "count is NULL");
    if (room && list[0].struct_bytes != sizeof *list) {
        td_text(why, sizeof why, "list[0].struct_bytes is %u, not %zu", list[0].struct_bytes, sizeof *list);
        return td_call_fail(__func__, TANDEM_ERROR_ARG, why);
    }
    if (td_cu_device_list(infos, &cuda, why, sizeof why) != TANDEM_OK) {
        td_text(cpu.why, sizeof cpu.why, "%s", why);
        cuda = 0;
    }
    *count = cuda + 1;
    for (uint32_t i = 0; i < room && i < *count; i++)
        list[i] = i < cuda ? cuda_device(&infos[i]) : cpu;
    if (!list || room >= *count)
        return TANDEM_OK;
    td_text(why, sizeof why, "count is %u; there are %u devices", room, *count);
    return td_call_fail(__func__, TANDEM_ERROR_BUSY, why);
}

/* What a device of Vulkan's offers to enable. */
typedef struct offer {
    td_vk_requirement list[MOST_REQUIREMENTS];
    uint32_t count;
} offer;

static bool offers(const offer *o, const char *name)
{
    for (uint32_t i = 0; i < o->count; i++)
        if (!strcmp(o->list[i].name, name))
            return o->list[i].available;
    return false;
}

/* Takes those rungs away that need what is not offered, and says of the best of them what that is. */
static void narrow(tandem_device *device, const offer *o)
{
    static const struct {
        tandem_rung rung;
        const char *name, *needs[3];
    } rungs[] = {
        {TANDEM_RUNG_INLINE, "inline", {VK_NVX_BINARY_IMPORT_EXTENSION_NAME, "bufferDeviceAddress", "timelineSemaphore"}},
        {TANDEM_RUNG_TIMELINE,
         "timeline",
         {VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME, VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME, "timelineSemaphore"}},
        {TANDEM_RUNG_HOST, "host", {VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME}},
    };

    for (uint32_t r = 0; r < sizeof rungs / sizeof *rungs; r++)
        for (uint32_t i = 0; i < 3 && rungs[r].needs[i]; i++) {
            if (offers(o, rungs[r].needs[i]) || !(device->rungs & bit(rungs[r].rung)))
                continue;
            device->rungs &= ~bit(rungs[r].rung);
            if (!device->why[0])
                td_text(device->why, sizeof device->why, "%s: the Vulkan device has no %s", rungs[r].name,
                        rungs[r].needs[i]);
        }
}

tandem_status tandem_vulkan_device(PFN_vkGetInstanceProcAddr get_instance_proc_addr, VkInstance instance,
                                   VkPhysicalDevice physical_device, tandem_device *device)
{
    char why[TD_WHY_BYTES] = "";
    tandem_device cpu = cpu_device();
    uint8_t uuid[16];
    td_cu_info info;
    offer o;

    if (!get_instance_proc_addr || !instance || !physical_device || !device)
        return td_call_fail(__func__, TANDEM_ERROR_ARG,
                            !get_instance_proc_addr ? "get_instance_proc_addr is NULL"
                            : !instance             ? "instance is VK_NULL_HANDLE"
                            : !physical_device      ? "physical_device is VK_NULL_HANDLE"
                                                    : "device is NULL");
    if (device->struct_bytes != sizeof *device) {
        td_text(why, sizeof why, "device.struct_bytes is %u, not %zu", device->struct_bytes, sizeof *device);
        return td_call_fail(__func__, TANDEM_ERROR_ARG, why);
    }
    if (td_vk_device_uuid(get_instance_proc_addr, instance, physical_device, uuid, why, sizeof why) != TANDEM_OK)
        return td_call_fail(__func__, TANDEM_ERROR_UNSUPPORTED, why);
    o.count = td_vk_requirements(get_instance_proc_addr, instance, physical_device, MOST_REQUIREMENTS, o.list);
    cpu.rungs = bit(TANDEM_RUNG_COPY);
    if (offers(&o, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME))
        cpu.rungs |= bit(TANDEM_RUNG_CPU) | bit(TANDEM_RUNG_HOST);
    if (td_cu_device_query(uuid, &info, why, sizeof why) == TANDEM_OK) {
        *device = cuda_device(&info);
        narrow(device, &o);
        device->rungs |= cpu.rungs & bit(TANDEM_RUNG_CPU);
    } else {
        *device = cpu;
        td_text(device->why, sizeof device->why, "no CUDA here: %s", why);
    }
    return TANDEM_OK;
}
