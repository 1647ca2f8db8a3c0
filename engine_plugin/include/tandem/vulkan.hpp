/* Tandem in C++17 on a Vulkan device: what tandem/vulkan.h has beside tandem/tandem.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Made by engine_plugin/bindings/generate.py from the headers of C, which say what each function does, who owns what, which
 * thread may call, and whether it blocks: that is the same here. Errors are as in tandem/tandem.hpp.
 */
#ifndef TANDEM_VULKAN_HPP
#define TANDEM_VULKAN_HPP

#include "tandem/tandem.hpp"
#include "tandem/vulkan.h"

namespace tandem {

inline std::vector<tandem_requirement> vulkan_requirements(PFN_vkGetInstanceProcAddr get_instance_proc_addr, VkInstance instance, VkPhysicalDevice physical_device)
{
    return fetch<tandem_requirement>(
        [&](std::uint32_t *count, tandem_requirement *list) { return tandem_vulkan_requirements(get_instance_proc_addr, instance, physical_device, count, list); });
}

inline tandem_device vulkan_device(PFN_vkGetInstanceProcAddr get_instance_proc_addr, VkInstance instance, VkPhysicalDevice physical_device)
{
    tandem_device device = make<tandem_device>();

    check(tandem_vulkan_device(get_instance_proc_addr, instance, physical_device, &device));
    return device;
}

inline tandem_mem_vulkan mem_get_vulkan(const session &on, tandem_mem mem)
{
    tandem_mem_vulkan out = make<tandem_mem_vulkan>();

    check(tandem_mem_get_vulkan(on.get(), mem, &out));
    return out;
}

inline VkSemaphore timeline_get_vulkan(const session &on, tandem_timeline timeline)
{
    VkSemaphore out{};

    check(tandem_timeline_get_vulkan(on.get(), timeline, &out));
    return out;
}

inline void record_release(const session &on, VkCommandBuffer commands, tandem_mem mem, VkPipelineStageFlags src_stage, VkAccessFlags src_access)
{
    check(tandem_record_release(on.get(), commands, mem, src_stage, src_access));
}

inline void record_acquire(const session &on, VkCommandBuffer commands, tandem_mem mem, VkPipelineStageFlags dst_stage, VkAccessFlags dst_access)
{
    check(tandem_record_acquire(on.get(), commands, mem, dst_stage, dst_access));
}

inline tandem_ticket record(const session &on, const tandem_job &job, VkCommandBuffer commands)
{
    tandem_ticket ticket{};

    check(tandem_record(on.get(), &job, commands, &ticket));
    return ticket;
}

inline std::optional<tandem_ticket> try_record(const session &on, const tandem_job &job, VkCommandBuffer commands)
{
    tandem_ticket ticket{};

    if (!check_busy(tandem_record(on.get(), &job, commands, &ticket)))
        return std::nullopt;
    return ticket;
}

inline std::tuple<std::uint32_t, std::uint32_t> pack_tiles(const session &on, const tandem_pack &pack)
{
    std::uint32_t tiles_x{};
    std::uint32_t tiles_y{};

    check(tandem_pack_tiles(on.get(), &pack, &tiles_x, &tiles_y));
    return {tiles_x, tiles_y};
}

inline void record_pack(const session &on, VkCommandBuffer commands, const tandem_pack &pack)
{
    check(tandem_record_pack(on.get(), commands, &pack));
}

inline void record_unpack(const session &on, VkCommandBuffer commands, const tandem_pack &unpack)
{
    check(tandem_record_unpack(on.get(), commands, &unpack));
}

inline void record_pack_images(const session &on, VkCommandBuffer commands, list<tandem_pack_image> images)
{
    check(tandem_record_pack_images(on.get(), commands, images.data(), images.size()));
}

inline void record_unpack_images(const session &on, VkCommandBuffer commands, list<tandem_pack_image> images)
{
    check(tandem_record_unpack_images(on.get(), commands, images.data(), images.size()));
}

} // namespace tandem
#endif
