/* The table of what each way to compute needs, and how each requirement is probed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/client/ladder.h"

#include <string.h>

#include "engine_plugin/client/client.h"
#include "interop/os/opaque.h"
#include "kernels/target.h"

const td_way td_ladder[TD_WAYS] = {
    {TD_DEVICE_CUDA, TD_SHARING_INLINE},
    {TD_DEVICE_CUDA, TD_SHARING_TIMELINE},
    {TD_DEVICE_CUDA, TD_SHARING_HOST},
    {TD_DEVICE_CUDA, TD_SHARING_COPY},
    {TD_DEVICE_CUDA_ELSEWHERE, TD_SHARING_TIMELINE},
    {TD_DEVICE_CUDA_ELSEWHERE, TD_SHARING_HOST},
    {TD_DEVICE_CUDA_ELSEWHERE, TD_SHARING_COPY},
    {TD_DEVICE_CPU, TD_SHARING_HOST},
    {TD_DEVICE_CPU, TD_SHARING_COPY},
};

tandem_rung td_rung_of(td_way way, uint32_t asked)
{
    static const tandem_rung rungs[TD_SHARINGS] = {TANDEM_RUNG_INLINE, TANDEM_RUNG_TIMELINE, TANDEM_RUNG_HOST,
                                                   TANDEM_RUNG_COPY};

    if (way.device == TD_DEVICE_CPU && way.sharing == TD_SHARING_HOST && asked != TANDEM_RUNG_HOST)
        return TANDEM_RUNG_CPU;
    return rungs[way.sharing];
}

const char *td_rung_name(uint32_t rung)
{
    static const char *const names[] = {"best",
                                        [TANDEM_RUNG_INLINE] = "inline",
                                        [TANDEM_RUNG_TIMELINE] = "timeline",
                                        [TANDEM_RUNG_HOST] = "host",
                                        [TANDEM_RUNG_COPY] = "copy",
                                        [TANDEM_RUNG_CPU] = "cpu"};

    return rung <= TANDEM_RUNG_CPU ? names[rung] : "unknown";
}

bool td_ladder_has(td_device_kind device, uint32_t rung)
{
    for (const td_way *way = td_ladder; way < td_ladder + TD_WAYS; way++)
        if (way->device == device && (!rung || td_rung_of(*way, rung) == rung))
            return true;
    return false;
}

void td_grounds_with_cuda(td_grounds *g, const td_cu_info *cuda)
{
    g->cuda = *cuda;
    g->no_driver[0] = g->no_gpu[0] = g->no_kernels[0] = 0;
    if (g->vulkan)
        td_adapter_check(&g->vulkan->adapter, &cuda->adapter, g->no_gpu, sizeof g->no_gpu);
    td_cubin_for_sm(cuda->sm, g->no_kernels, sizeof g->no_kernels);
}

void td_grounds_ask_cuda(td_grounds *g)
{
    const uint8_t *uuid = g->vulkan ? g->vulkan->device_uuid : NULL;
    td_cu_info info;

    if (td_cu_device_query(uuid, &info, g->no_gpu, sizeof g->no_gpu) == TANDEM_OK) {
        td_grounds_with_cuda(g, &info);
        return;
    }
    /* Is it the GPU, or no GPU of all? */
    if (!uuid || td_cu_device_query(NULL, &info, g->no_driver, sizeof g->no_driver) != TANDEM_OK)
        td_text(g->no_driver, sizeof g->no_driver, "%s", g->no_gpu);
}

/* --- Probes --- */

static td_have say(char *why, const char *format, ...) __attribute__((format(TD_PRINTF, 2, 3)));
static td_have say(char *why, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    td_text_list(why, TD_WHY_BYTES, format, list);
    va_end(list);
    return TD_MISSING;
}

static td_have probe_vulkan(const td_requirement *r, const td_grounds *g, char *why)
{
    (void)r;
    return g->vulkan || g->imports ? TD_HAVE : say(why, "the session has no Vulkan device");
}

static td_have probe_two_memories(const td_requirement *r, const td_grounds *g, char *why)
{
    (void)r;
    return g->vulkan ? TD_HAVE : say(why, "the CPU and the engine are in the same memory");
}

static const char *lack_of(const td_requirement *r, const td_grounds *g)
{
    const char *lack;

    memcpy(&lack, (const char *)g->vulkan + r->lack, sizeof lack);
    return lack;
}

static td_have probe_enabled(const td_requirement *r, const td_grounds *g, char *why)
{
    if (!g->vulkan)
        return TD_UNKNOWN;
    return lack_of(r, g) ? say(why, "%s %s", r->name, lack_of(r, g)) : TD_HAVE;
}

static td_have probe_export(const td_requirement *r, const td_grounds *g, char *why)
{
    if (!g->vulkan)
        return TD_UNKNOWN;
    return lack_of(r, g) ? say(why, "'%s' cannot share its memory with CUDA: %s %s", g->vulkan->name, r->name, lack_of(r, g))
                         : TD_HAVE;
}

static td_have probe_import(const td_requirement *r, const td_grounds *g, char *why)
{
    if (!g->vulkan)
        return TD_UNKNOWN;
    return lack_of(r, g) ? say(why, "the CPU cannot share memory with '%s': %s %s", g->vulkan->name, r->name, lack_of(r, g))
                         : TD_HAVE;
}

static td_have probe_queue(const td_requirement *r, const td_grounds *g, char *why)
{
    (void)r;
    if (!g->vulkan && !g->imports)
        return TD_UNKNOWN;
    if (!g->has_queue)
        return say(why, "no queue was given for the self-test and for submits");
    return g->vulkan->computes ? TD_HAVE : say(why, "the queue's family does not compute");
}

static td_have probe_driver(const td_requirement *r, const td_grounds *g, char *why)
{
    (void)r;
    return g->no_driver[0] ? say(why, "no CUDA here: %s", g->no_driver) : TD_HAVE;
}

static td_have probe_gpu(const td_requirement *r, const td_grounds *g, char *why)
{
    (void)r;
    if (g->no_driver[0])
        return TD_UNKNOWN;
    return g->no_gpu[0] ? say(why, "no CUDA here: %s", g->no_gpu) : TD_HAVE;
}

static td_have probe_kernels(const td_requirement *r, const td_grounds *g, char *why)
{
    (void)r;
    if (g->no_driver[0] || g->no_gpu[0])
        return TD_UNKNOWN;
    return g->no_kernels[0] ? say(why, "no CUDA here: %s", g->no_kernels) : TD_HAVE;
}

static td_have probe_cuda_timelines(const td_requirement *r, const td_grounds *g, char *why)
{
    (void)r;
    if (g->no_driver[0] || g->no_gpu[0])
        return TD_UNKNOWN;
    return g->cuda.timelines ? TD_HAVE : say(why, "CUDA on '%s' cannot import timeline semaphores", g->cuda.name);
}

static td_have probe_elsewhere(const td_requirement *r, const td_grounds *g, char *why)
{
    (void)r;
    return g->no_elsewhere[0] ? say(why, "tandemd: %s", g->no_elsewhere) : TD_HAVE;
}

/* --- The table --- */

#define WAY(device, sharing) (1u << ((device) * TD_SHARINGS + (sharing)))
#define INLINE WAY(TD_DEVICE_CUDA, TD_SHARING_INLINE)
#define TIMELINE WAY(TD_DEVICE_CUDA, TD_SHARING_TIMELINE)
#define HOST WAY(TD_DEVICE_CUDA, TD_SHARING_HOST)
#define COPY WAY(TD_DEVICE_CUDA, TD_SHARING_COPY)
#define CUDA (INLINE | TIMELINE | HOST | COPY)
#define ELSEWHERE(sharing) WAY(TD_DEVICE_CUDA_ELSEWHERE, TD_SHARING_##sharing)
#define CPU(sharing) WAY(TD_DEVICE_CPU, TD_SHARING_##sharing)
#define LACK(of) offsetof(td_vk_caps, lacks.of)
#define EXTENSION(extension) &(const td_vk_item){.name = extension, .kind = TD_VK_DEVICE_EXTENSION}

static const td_vk_item timeline_semaphore = {
    .name = "timelineSemaphore",
    .kind = TD_VK_FEATURE,
    .feature_struct = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES,
    .feature_offset = offsetof(VkPhysicalDeviceTimelineSemaphoreFeatures, timelineSemaphore),
    .feature_struct_bytes = sizeof(VkPhysicalDeviceTimelineSemaphoreFeatures),
    .extension = VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME,
};
static const td_vk_item buffer_device_address = {
    .name = "bufferDeviceAddress",
    .kind = TD_VK_FEATURE,
    .feature_struct = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES,
    .feature_offset = offsetof(VkPhysicalDeviceBufferDeviceAddressFeatures, bufferDeviceAddress),
    .feature_struct_bytes = sizeof(VkPhysicalDeviceBufferDeviceAddressFeatures),
    .extension = VK_KHR_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME,
};

#define NVIDIA "comes with NVIDIA's driver: update it, and see that no layer hides it"
#define ANY_DRIVER "update the device's driver; an engine has to enable it with its device"

/* What is more telling where it is missing stands first: reasons list what is missing in this order. */
const td_requirement td_requirements[] = {
    {.name = "CUDA driver",
     .ways = CUDA,
     .buys = "the GPU computes",
     .advice = "with an NVIDIA GPU: install its driver, 580 or newer, until nvidia-smi shows the GPU (in a container: pass "
               "the GPU in). Without a GPU this is fine: the CPU computes",
     .probe = probe_driver},
    {.name = "CUDA on the engine's GPU",
     .ways = CUDA,
     .buys = "Vulkan and CUDA are on one device, found by its UUID, and on Windows by its LUID and nodes as well",
     .advice = "the engine has to render on the GPU that CUDA knows, or have CUDA_VISIBLE_DEVICES show that one",
     .probe = probe_gpu},
    {.name = "kernels for that GPU",
     .ways = CUDA,
     .buys = "this build has machine code or PTX that runs there",
     .advice = "GPUs from compute capability 8.0 on can be used, if the build has kernels for them: install CUDA's compiler "
               "(INSTALL.md, \"nvcc\") and build again",
     .probe = probe_kernels},
    {.name = "timelines in CUDA",
     .ways = TIMELINE,
     .buys = "CUDA waits for and signals the engine's timeline semaphores",
     .advice = "update NVIDIA's driver: CUDA has them from 11.2 on",
     .probe = probe_cuda_timelines},
    {.name = "tandemd on the same GPU",
     .ways = ELSEWHERE(TIMELINE),
     .buys = "tandemd computes on what this device's Vulkan exports",
     .advice = "run tandemd on the engine's GPU and driver; its log says what it computes on",
     .probe = probe_elsewhere},
    {.name = "Vulkan",
     .ways = INLINE | TIMELINE | ELSEWHERE(TIMELINE),
     .buys = "the GPU hands over without the host",
     .advice = "give the session the engine's Vulkan device, 1.1 or newer",
     .probe = probe_vulkan},
    {.name = "two memories",
     .ways = ELSEWHERE(COPY) | CPU(COPY),
     .buys = "there is something to copy between: a Vulkan device's memory, and the host's",
     .advice = "without Vulkan the CPU and the engine share all memory, and nothing has to be copied",
     .probe = probe_two_memories},
    {.name = VK_EXT_DEBUG_UTILS_EXTENSION_NAME,
     .buys = "names and labels on what is created and recorded, for validation layers and frame debuggers",
     .advice = "comes with Vulkan's loader and its layers (Debian: libvulkan1, vulkan-validationlayers)",
     .vk = &(const td_vk_item){.name = VK_EXT_DEBUG_UTILS_EXTENSION_NAME, .kind = TD_VK_INSTANCE_EXTENSION}},
    {.name = td_opaque_memory_extension,
     .ways = TIMELINE | HOST | ELSEWHERE(TIMELINE),
     .buys = "the timeline rung, with the same of semaphores, and the host rung: CUDA uses the engine's memory without copies",
     .advice = NVIDIA,
     .vk = EXTENSION(td_opaque_memory_extension),
     .probe = probe_export,
     .lack = LACK(memory_export)},
    {.name = td_opaque_semaphore_extension,
     .ways = TIMELINE | ELSEWHERE(TIMELINE),
     .buys = "the timeline rung, with the same of memory: the GPU hands over between Vulkan and CUDA without the host",
     .advice = NVIDIA,
     .vk = EXTENSION(td_opaque_semaphore_extension),
     .probe = probe_enabled,
     .lack = LACK(semaphore_export)},
    {.name = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME,
     .ways = ELSEWHERE(HOST) | CPU(HOST),
     .buys = "sessions on the CPU, where CUDA is not there: it and the device see the same bytes, no copies",
     .advice = ANY_DRIVER,
     .vk = EXTENSION(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME),
     .probe = probe_import,
     .lack = LACK(memory_host)},
    {.name = VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME,
     .buys = "memory of any device's, as a dma-buf, on the inline, copy and cpu rungs; with VK_KHR_external_memory_fd",
     .advice = ANY_DRIVER,
     .vk = EXTENSION(VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME),
     .probe = probe_enabled,
     .lack = LACK(dma_buf)},
    {.name = VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME,
     .buys = "tandem_record_pack() and _unpack(), tandem_record_pack_images() and _unpack_images(): images to tensors and "
             "back",
     .advice = ANY_DRIVER,
     .vk = EXTENSION(VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME),
     .probe = probe_enabled,
     .lack = LACK(push_descriptor)},
    {.name = VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME,
     .buys = "traces and overlays that show the GPU and the host on one clock",
     .advice = ANY_DRIVER,
     .vk = EXTENSION(VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME),
     .probe = probe_enabled,
     .lack = LACK(calibrated)},
    {.name = VK_NVX_BINARY_IMPORT_EXTENSION_NAME,
     .ways = INLINE,
     .buys = "the inline rung, with bufferDeviceAddress: CUDA kernels run within the engine's own command buffers",
     .advice = "NVIDIA's driver has it from 470 on: update it, and see that no layer hides it",
     .vk = EXTENSION(VK_NVX_BINARY_IMPORT_EXTENSION_NAME),
     .probe = probe_enabled,
     .lack = LACK(binary_import)},
    {.name = VK_NVX_IMAGE_VIEW_HANDLE_EXTENSION_NAME,
     .buys = "kernels on the inline rung that read and write the engine's images; none does so far",
     .advice = NVIDIA,
     .vk = EXTENSION(VK_NVX_IMAGE_VIEW_HANDLE_EXTENSION_NAME)},
    {.name = VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME,
     .buys = "timelineSemaphore for an application that asks for Vulkan 1.1; part of Vulkan from 1.2 on",
     .advice = ANY_DRIVER,
     .vk = EXTENSION(VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME)},
    {.name = VK_KHR_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME,
     .buys = "bufferDeviceAddress, for the inline rung, for an application that asks for Vulkan 1.1; part of Vulkan from 1.2 "
             "on",
     .advice = ANY_DRIVER,
     .vk = EXTENSION(VK_KHR_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME)},
    {.name = "timelineSemaphore",
     .ways = INLINE | TIMELINE | ELSEWHERE(TIMELINE),
     .buys = "points that submits wait for and signal; without it the engine waits and signals on the host",
     .advice = ANY_DRIVER,
     .vk = &timeline_semaphore,
     .probe = probe_enabled,
     .lack = LACK(timeline_feature)},
    {.name = "bufferDeviceAddress",
     .ways = INLINE,
     .buys = "the inline rung, with VK_NVX_binary_import: kernels take addresses of buffers",
     .advice = ANY_DRIVER,
     .vk = &buffer_device_address,
     .probe = probe_enabled,
     .lack = LACK(address_feature)},
    {.name = "a queue that computes",
     .ways = INLINE,
     .buys = "the inline rung tries a first job there, and tandem_submit() submits there",
     .advice = "set tandem_vulkan.queue, of a family with VK_QUEUE_COMPUTE_BIT",
     .probe = probe_queue},
};
const uint32_t td_requirement_count = sizeof td_requirements / sizeof *td_requirements;

#define ALL_ELSEWHERE (ELSEWHERE(TIMELINE) | ELSEWHERE(HOST) | ELSEWHERE(COPY))
#define ALL_CPU (CPU(HOST) | CPU(COPY))
const td_memory_kind td_memory_kinds[] = {
    {.name = "CREATE", .source = TANDEM_MEM_CREATE, .ways = CUDA | ALL_ELSEWHERE | ALL_CPU, .needs = ""},
    {.name = "HOST",
     .source = TANDEM_MEM_HOST,
     .ways = CUDA | ELSEWHERE(HOST) | ELSEWHERE(COPY) | ALL_CPU,
     .needs = "whole pages, and with Vulkan VK_EXT_external_memory_host, but on copy"},
    {.name = "FD, OPAQUE_FD",
     .source = TANDEM_MEM_FD,
     .handle = TANDEM_HANDLE_OPAQUE_FD,
     .ways = TIMELINE | HOST | ELSEWHERE(TIMELINE),
     .needs = "Vulkan, on the device and driver that exported it; on Linux"},
    {.name = "FD, WIN32",
     .source = TANDEM_MEM_FD,
     .handle = TANDEM_HANDLE_WIN32,
     .ways = TIMELINE | HOST | ELSEWHERE(TIMELINE),
     .needs = "Vulkan, on the device and driver that exported it, as OPAQUE_WIN32; on Windows"},
    {.name = "FD, DMA_BUF",
     .source = TANDEM_MEM_FD,
     .handle = TANDEM_HANDLE_DMA_BUF,
     .ways = INLINE | COPY | ELSEWHERE(HOST) | ELSEWHERE(COPY) | ALL_CPU,
     .needs = "Vulkan with VK_EXT_external_memory_dma_buf"},
    {.name = "VULKAN",
     .source = TANDEM_MEM_VULKAN,
     .ways = CUDA | ALL_ELSEWHERE | ALL_CPU,
     .needs = "Vulkan; an export as OPAQUE_FD (Windows: OPAQUE_WIN32) on timeline and host, a device address on inline"},
    {.name = "CUDA",
     .source = TANDEM_MEM_CUDA,
     .ways = TIMELINE | HOST,
     .needs = "device memory of one allocation"},
};
const uint32_t td_memory_kind_count = sizeof td_memory_kinds / sizeof *td_memory_kinds;

bool td_way_takes(td_way way, uint32_t source, uint32_t handle)
{
    for (const td_memory_kind *kind = td_memory_kinds; kind < td_memory_kinds + td_memory_kind_count; kind++)
        if (kind->source == source && kind->handle == handle)
            return kind->ways & td_way_bit(way);
    return false;
}

/* --- What follows from it --- */

void td_grounds_ask_offer(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, VkPhysicalDevice physical_device,
                          td_vk_caps *caps)
{
    static const char lack[] = "is not offered by the driver";
    const char *word = lack;

    for (const td_requirement *r = td_requirements; r < td_requirements + td_requirement_count; r++)
        if (r->lack && !td_vk_offers(gipa, instance, physical_device, r->vk))
            memcpy((char *)caps + r->lack, &word, sizeof word);
}

td_have td_requirement_probe(const td_requirement *r, const td_grounds *g, char *why)
{
    why[0] = 0;
    return r->probe ? r->probe(r, g, why) : TD_UNKNOWN;
}

bool td_way_is_open(td_way way, const td_grounds *g, char *why)
{
    size_t used = 0;

    why[0] = 0;
    for (uint32_t i = 0; i < td_requirement_count; i++) {
        const td_requirement *r = &td_requirements[i];
        char text[TD_WHY_BYTES];

        if (!(r->ways & td_way_bit(way)) || td_requirement_probe(r, g, text) != TD_MISSING)
            continue;
        td_text(why + used, TD_WHY_BYTES - used, "%s%s", used ? ", " : "", text);
        used += strlen(why + used);
    }
    return !used;
}
