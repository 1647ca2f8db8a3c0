/* What an engine has already: a Vulkan device, here made with what Tandem can use of it. Both
 * Vulkan examples stand on this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef VULKAN_DEVICE_H
#define VULKAN_DEVICE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tandem/vulkan.h>
#include <vulkan/vulkan.h>

enum { MOST_NAMES = 64, MOST_FAMILIES = 16 };

/* An engine's objects; what `vulkan` points to is within, so it stays where it is. */
typedef struct engine {
    tandem_vulkan vulkan; /* as the session is told */
    const char *names[MOST_NAMES];
    VkPhysicalDeviceFeatures2 features;
    VkPhysicalDeviceTimelineSemaphoreFeatures timeline;
    VkPhysicalDeviceBufferDeviceAddressFeatures address;
    VkCommandPool pool;
} engine;

/* A sample ends where something fails; an engine leaves the effect out. */
static inline void check(int failed, const char *what)
{
    char why[600] = "";

    if (!failed)
        return;
    tandem_error_text(
        NULL, why, sizeof why); /* of this thread's last call of Tandem that failed, if any did */
    fprintf(stderr, "%s failed. %s\n", what, why);
    exit(1);
}

/* Names of the extensions that Tandem can use: of the instance, or once there is one, of the
 * device, with two features. */
static inline uint32_t ask_tandem(engine *e)
{
    tandem_requirement list[MOST_NAMES] = {TANDEM_INIT(tandem_requirement)};
    const uint32_t kind = e->vulkan.instance ? TANDEM_REQUIREMENT_DEVICE_EXTENSION
                                             : TANDEM_REQUIREMENT_INSTANCE_EXTENSION;
    uint32_t count = MOST_NAMES, used = 0;

    check(tandem_vulkan_requirements(vkGetInstanceProcAddr, e->vulkan.instance,
                                     e->vulkan.physical_device, &count, list),
          "tandem_vulkan_requirements");
    for (uint32_t i = 0; i < count; i++) {
        if (!list[i].available)
            continue;
        if (list[i].kind == kind)
            e->names[used++] = list[i].name;
        else if (list[i].kind == TANDEM_REQUIREMENT_FEATURE &&
                 !strcmp(list[i].name, "timelineSemaphore"))
            e->timeline.timelineSemaphore = VK_TRUE;
        else if (list[i].kind == TANDEM_REQUIREMENT_FEATURE &&
                 !strcmp(list[i].name, "bufferDeviceAddress"))
            e->address.bufferDeviceAddress = VK_TRUE;
    }
    return used;
}

static inline void create_instance(engine *e)
{
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .apiVersion = VK_API_VERSION_1_2};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &application};

    info.enabledExtensionCount = ask_tandem(e);
    info.ppEnabledExtensionNames = e->names;
    check(vkCreateInstance(&info, NULL, &e->vulkan.instance), "vkCreateInstance");
    e->vulkan.api_version = application.apiVersion;
    e->vulkan.get_instance_proc_addr = vkGetInstanceProcAddr;
}

/* The first device, and a queue of its that computes. `features` has what the engine itself wants.
 */
static inline void create_device(engine *e)
{
    const float priority = 1;
    VkQueueFamilyProperties families[MOST_FAMILIES];
    uint32_t one = 1, count = MOST_FAMILIES, family = 0;
    VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                     .queueCount = 1,
                                     .pQueuePriorities = &priority};
    VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                               .pNext = &e->features,
                               .queueCreateInfoCount = 1,
                               .pQueueCreateInfos = &queue,
                               .ppEnabledExtensionNames = e->names};

    check(vkEnumeratePhysicalDevices(e->vulkan.instance, &one, &e->vulkan.physical_device) < 0 ||
              !one,
          "finding a device");
    vkGetPhysicalDeviceQueueFamilyProperties(e->vulkan.physical_device, &count, families);
    while (family < count && !(families[family].queueFlags & VK_QUEUE_COMPUTE_BIT))
        family++;
    check(family == count, "finding a queue that computes");
    queue.queueFamilyIndex = family;
    e->features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    e->features.pNext = &e->timeline;
    e->timeline.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES;
    e->timeline.pNext = &e->address;
    e->address.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES;
    info.enabledExtensionCount = ask_tandem(e);
    check(vkCreateDevice(e->vulkan.physical_device, &info, NULL, &e->vulkan.device),
          "vkCreateDevice");
    vkGetDeviceQueue(e->vulkan.device, family, 0, &e->vulkan.queue);
    e->vulkan.queue_family = family;
    e->vulkan.enabled_extension_count = info.enabledExtensionCount;
    e->vulkan.enabled_extensions = e->names;
    e->vulkan.enabled_features = &e->features;
}

static inline void open_engine(engine *e)
{
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT};

    e->vulkan.struct_bytes = TANDEM_INIT(tandem_vulkan).struct_bytes;
    create_instance(e);
    create_device(e);
    pool.queueFamilyIndex = e->vulkan.queue_family;
    check(vkCreateCommandPool(e->vulkan.device, &pool, NULL, &e->pool), "vkCreateCommandPool");
}

static inline void close_engine(engine *e)
{
    vkDestroyCommandPool(e->vulkan.device, e->pool, NULL);
    vkDestroyDevice(e->vulkan.device, NULL);
    vkDestroyInstance(e->vulkan.instance, NULL);
}

static inline VkCommandBuffer new_commands(const engine *e)
{
    const VkCommandBufferAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = e->pool,
        .commandBufferCount = 1};
    VkCommandBuffer commands = NULL;

    check(vkAllocateCommandBuffers(e->vulkan.device, &info, &commands), "vkAllocateCommandBuffers");
    return commands;
}

static inline void begin_commands(VkCommandBuffer commands)
{
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};

    check(vkBeginCommandBuffer(commands, &info), "vkBeginCommandBuffer");
}

/* A moment on a timeline semaphore; VK_NULL_HANDLE: none. */
typedef struct moment {
    VkSemaphore semaphore;
    uint64_t value;
} moment;

/* Submits what was recorded, behind a moment and before another one. */
static inline void submit_commands(const engine *e, VkCommandBuffer commands, moment wait,
                                   moment signal, VkFence fence)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const uint32_t waits = wait.semaphore != VK_NULL_HANDLE,
                   signals = signal.semaphore != VK_NULL_HANDLE;
    const VkTimelineSemaphoreSubmitInfo values = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = waits,
        .pWaitSemaphoreValues = &wait.value,
        .signalSemaphoreValueCount = signals,
        .pSignalSemaphoreValues = &signal.value};
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .pNext = waits || signals ? &values : NULL,
                                 .waitSemaphoreCount = waits,
                                 .pWaitSemaphores = &wait.semaphore,
                                 .pWaitDstStageMask = &stage,
                                 .commandBufferCount = 1,
                                 .pCommandBuffers = &commands,
                                 .signalSemaphoreCount = signals,
                                 .pSignalSemaphores = &signal.semaphore};

    check(vkEndCommandBuffer(commands), "vkEndCommandBuffer");
    check(vkQueueSubmit(e->vulkan.queue, 1, &submit, fence), "vkQueueSubmit");
}

/* A buffer that the host reads. */
typedef struct readback {
    VkBuffer buffer;
    VkDeviceMemory memory;
    void *host;
} readback;

static inline uint32_t memory_type(const engine *e, uint32_t allowed, VkMemoryPropertyFlags wanted)
{
    VkPhysicalDeviceMemoryProperties memory;
    uint32_t i = 0;

    vkGetPhysicalDeviceMemoryProperties(e->vulkan.physical_device, &memory);
    while (i < memory.memoryTypeCount &&
           (!(allowed >> i & 1) || (memory.memoryTypes[i].propertyFlags & wanted) != wanted))
        i++;
    check(i == memory.memoryTypeCount, "finding a type of memory");
    return i;
}

static inline readback new_readback(const engine *e, VkDeviceSize bytes)
{
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = bytes,
                                     .usage = VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    const VkDevice device = e->vulkan.device;
    VkMemoryRequirements needs;
    readback r;

    check(vkCreateBuffer(device, &info, NULL, &r.buffer), "vkCreateBuffer");
    vkGetBufferMemoryRequirements(device, r.buffer, &needs);
    memory.allocationSize = needs.size;
    memory.memoryTypeIndex = memory_type(e, needs.memoryTypeBits,
                                         VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                             VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
    check(vkAllocateMemory(device, &memory, NULL, &r.memory), "vkAllocateMemory");
    check(vkBindBufferMemory(device, r.buffer, r.memory, 0), "vkBindBufferMemory");
    check(vkMapMemory(device, r.memory, 0, VK_WHOLE_SIZE, 0, &r.host), "vkMapMemory");
    return r;
}

static inline void free_readback(const engine *e, readback *r)
{
    vkDestroyBuffer(e->vulkan.device, r->buffer, NULL);
    vkFreeMemory(e->vulkan.device, r->memory, NULL);
}

/* Behind it the host may read what transfers wrote. */
static inline void read_by_host(VkCommandBuffer commands)
{
    const VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                     .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                     .dstAccessMask = VK_ACCESS_HOST_READ_BIT};

    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1,
                         &barrier, 0, NULL, 0, NULL);
}

#endif
