/* A Vulkan engine without pictures.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/vk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/client.h"

#define WAIT_NS 20000000000ull

static const uint32_t plain_words[] = {
#include "shaders/bench.spv.inc"
};
static const uint32_t clock_words[] = {
#include "shaders/bench_clock.spv.inc"
};

static bool say(char *why, size_t why_bytes, VkResult result, const char *what)
{
    if (result != VK_SUCCESS)
        td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "%s: VkResult %d", what, (int)result);
    return result == VK_SUCCESS;
}

static bool make_instance(bench_vk *v, char *why, size_t why_bytes)
{
    const setup_need need = {.api_version = VK_API_VERSION_1_2, .stamps = true};
    if (!tool_engine_begin(&v->engine, "tandem bench", &need, why, why_bytes))
        return false;
#define LOAD(name)                                                    \
    v->name = (PFN_vk##name)v->engine.get(v->engine.instance, "vk" #name);           \
    if (!v->name) {                                                    \
        td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "no vk" #name); \
        return false;                                                  \
    }
    BENCH_INSTANCE_FUNCTIONS(LOAD)
#undef LOAD
    return true;
}

static void ask_device(bench_vk *v)
{
    VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                              .pNext = &driver};
    v->GetPhysicalDeviceProperties2(v->engine.physical, &properties);
    v->properties = properties.properties;
    snprintf(v->driver, sizeof v->driver, "%s %s", driver.driverName, driver.driverInfo);
    v->GetPhysicalDeviceMemoryProperties(v->engine.physical, &v->memory);
}

static bool has_extension(bench_vk *v, const char *name)
{
    uint32_t count = 0;
    bool found = false;
    v->EnumerateDeviceExtensionProperties(v->engine.physical, NULL, &count, NULL);
    VkExtensionProperties *list = calloc(count + 1, sizeof *list);
    if (list && v->EnumerateDeviceExtensionProperties(v->engine.physical, NULL, &count, list) >= 0)
        for (uint32_t i = 0; i < count; i++)
            found = found || !strcmp(list[i].extensionName, name);
    free(list);
    return found;
}

static bool make_device(bench_vk *v, char *why, size_t why_bytes)
{
    VkPhysicalDeviceShaderClockFeaturesKHR clock = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CLOCK_FEATURES_KHR};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &clock};
    const bool clocks = has_extension(v, VK_KHR_SHADER_CLOCK_EXTENSION_NAME);
    if (clocks)
        v->GetPhysicalDeviceFeatures2(v->engine.physical, &features);
    /* A shader's clock is that of the timestamps where there is a GPU; software says nothing about it. */
    v->shader_clock = clocks && clock.shaderDeviceClock && v->properties.deviceType != VK_PHYSICAL_DEVICE_TYPE_CPU &&
                      v->properties.vendorID == 0x10de &&
                      integrate_enable_extension(&v->engine.enabled, VK_KHR_SHADER_CLOCK_EXTENSION_NAME) &&
                      integrate_enable_feature(&v->engine.enabled, clock.sType,
                                               offsetof(VkPhysicalDeviceShaderClockFeaturesKHR, shaderDeviceClock));
    if (!tool_engine_make(&v->engine, why, why_bytes))
        return false;
#define LOAD(name)                                                            \
    v->name = (PFN_vk##name)v->GetDeviceProcAddr(v->engine.device, "vk" #name);       \
    if (!v->name) {                                                            \
        td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "no vk" #name);      \
        return false;                                                          \
    }
    BENCH_DEVICE_FUNCTIONS(LOAD)
#undef LOAD
    return true;
}

static bool make_pipelines(bench_vk *v, char *why, size_t why_bytes)
{
    VkDescriptorSetLayoutBinding bindings[3];
    for (uint32_t i = 0; i < 3; i++)
        bindings[i] = (VkDescriptorSetLayoutBinding){.binding = i,
                                                     .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                                     .descriptorCount = 1,
                                                     .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    const VkDescriptorSetLayoutCreateInfo set = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                                 .bindingCount = 3,
                                                 .pBindings = bindings};
    const VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = sizeof(struct td_bench_push)};
    VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                         .setLayoutCount = 1,
                                         .pSetLayouts = &v->set_layout,
                                         .pushConstantRangeCount = 1,
                                         .pPushConstantRanges = &range};
    const VkShaderModuleCreateInfo code = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                           .codeSize = v->shader_clock ? sizeof clock_words : sizeof plain_words,
                                           .pCode = v->shader_clock ? clock_words : plain_words};
    VkShaderModule module = VK_NULL_HANDLE;
    bool ok = say(why, why_bytes, v->CreateDescriptorSetLayout(v->engine.device, &set, NULL, &v->set_layout),
                  "vkCreateDescriptorSetLayout") &&
              say(why, why_bytes, v->CreatePipelineLayout(v->engine.device, &layout, NULL, &v->layout),
                  "vkCreatePipelineLayout") &&
              say(why, why_bytes, v->CreateShaderModule(v->engine.device, &code, NULL, &module), "vkCreateShaderModule");
    for (uint32_t mode = 0; mode < TD_BENCH_MODES && ok; mode++) {
        const VkSpecializationMapEntry entry = {0, 0, sizeof mode};
        const VkSpecializationInfo special = {1, &entry, sizeof mode, &mode};
        const VkPipelineShaderStageCreateInfo stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                       .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                                       .module = module,
                                                       .pName = "main",
                                                       .pSpecializationInfo = &special};
        const VkComputePipelineCreateInfo info = {
            .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO, .stage = stage, .layout = v->layout};
        ok = say(why, why_bytes,
                 v->CreateComputePipelines(v->engine.device, VK_NULL_HANDLE, 1, &info, NULL, &v->pipelines[mode]),
                 "vkCreateComputePipelines");
    }
    if (module)
        v->DestroyShaderModule(v->engine.device, module, NULL);
    return ok;
}

bool bench_vk_open(bench_vk *v, char *why, size_t why_bytes)
{
    const td_log quiet = {0};
    if (!make_instance(v, why, why_bytes))
        return false;
    ask_device(v);
    if (!make_device(v, why, why_bytes))
        return false;
    const tandem_vulkan engine = tool_engine_vulkan(&v->engine);
    const td_vk_desc desc = td_device_vulkan(&engine);
    return td_vk_open(&desc, &quiet, &v->vk, why, why_bytes) == TANDEM_OK && make_pipelines(v, why, why_bytes);
}

void bench_vk_close(bench_vk *v)
{
    if (v->vk) {
        v->DeviceWaitIdle(v->engine.device);
        for (int i = 0; i < TD_BENCH_MODES; i++)
            v->DestroyPipeline(v->engine.device, v->pipelines[i], NULL);
        v->DestroyPipelineLayout(v->engine.device, v->layout, NULL);
        v->DestroyDescriptorSetLayout(v->engine.device, v->set_layout, NULL);
        td_vk_close(&v->vk);
    }
    tool_engine_close(&v->engine);
}

bool bench_buffer_make(bench_vk *v, uint64_t bytes, bool host, bench_buffer *out, char *why, size_t why_bytes)
{
    const VkMemoryPropertyFlags wanted =
        host ? VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT |
                   VK_MEMORY_PROPERTY_HOST_CACHED_BIT
             : VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = bytes,
                                     .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                              VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    VkMemoryRequirements needs;
    uint32_t type = 0;
    out->bytes = bytes;
    if (!say(why, why_bytes, v->CreateBuffer(v->engine.device, &info, NULL, &out->buffer), "vkCreateBuffer"))
        return false;
    v->GetBufferMemoryRequirements(v->engine.device, out->buffer, &needs);
    while (type < v->memory.memoryTypeCount && (!(needs.memoryTypeBits >> type & 1) ||
                                                (v->memory.memoryTypes[type].propertyFlags & wanted) != wanted))
        type++;
    const VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                           .allocationSize = needs.size,
                                           .memoryTypeIndex = type};
    return say(why, why_bytes,
               type == v->memory.memoryTypeCount ? VK_ERROR_FEATURE_NOT_PRESENT
                                                 : v->AllocateMemory(v->engine.device, &allocate, NULL, &out->memory),
               "vkAllocateMemory") &&
           say(why, why_bytes, v->BindBufferMemory(v->engine.device, out->buffer, out->memory, 0), "vkBindBufferMemory") &&
           (!host || say(why, why_bytes, v->MapMemory(v->engine.device, out->memory, 0, VK_WHOLE_SIZE, 0, &out->host),
                         "vkMapMemory"));
}

void bench_buffer_free(bench_vk *v, bench_buffer *b)
{
    v->DestroyBuffer(v->engine.device, b->buffer, NULL);
    v->FreeMemory(v->engine.device, b->memory, NULL);
    *b = (bench_buffer){0};
}

bool bench_slot_make(bench_vk *v, VkBuffer in, VkBuffer out, bench_slot *s, char *why, size_t why_bytes)
{
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = v->engine.family};
    const VkQueryPoolCreateInfo queries = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                           .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                           .queryCount = BENCH_STAMPS};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 3};
    const VkDescriptorPoolCreateInfo descriptors = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                                    .maxSets = 1,
                                                    .poolSizeCount = 1,
                                                    .pPoolSizes = &size};
    s->in = in;
    s->out = out;
    for (int i = 0; i < BENCH_COMMANDS; i++) {
        if (!say(why, why_bytes, v->CreateCommandPool(v->engine.device, &pool, NULL, &s->pools[i]), "vkCreateCommandPool"))
            return false;
        const VkCommandBufferAllocateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                      .commandPool = s->pools[i],
                                                      .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                      .commandBufferCount = 1};
        if (!say(why, why_bytes, v->AllocateCommandBuffers(v->engine.device, &commands, &s->commands[i]),
                 "vkAllocateCommandBuffers"))
            return false;
    }
    if (!say(why, why_bytes, v->CreateQueryPool(v->engine.device, &queries, NULL, &s->queries), "vkCreateQueryPool") ||
        !say(why, why_bytes, v->CreateFence(v->engine.device, &fence, NULL, &s->fence), "vkCreateFence") ||
        !say(why, why_bytes, v->CreateDescriptorPool(v->engine.device, &descriptors, NULL, &s->descriptors),
             "vkCreateDescriptorPool") ||
        !bench_buffer_make(v, sizeof(bench_result), true, &s->result, why, why_bytes))
        return false;
    const VkDescriptorSetAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                                  .descriptorPool = s->descriptors,
                                                  .descriptorSetCount = 1,
                                                  .pSetLayouts = &v->set_layout};
    if (!say(why, why_bytes, v->AllocateDescriptorSets(v->engine.device, &allocate, &s->set), "vkAllocateDescriptorSets"))
        return false;
    const VkDescriptorBufferInfo buffers[3] = {
        {in, 0, VK_WHOLE_SIZE}, {out, 0, VK_WHOLE_SIZE}, {s->result.buffer, 0, VK_WHOLE_SIZE}};
    const VkWriteDescriptorSet write = {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                        .dstSet = s->set,
                                        .descriptorCount = 3,
                                        .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                        .pBufferInfo = buffers};
    v->UpdateDescriptorSets(v->engine.device, 1, &write, 0, NULL);
    return true;
}

void bench_slot_free(bench_vk *v, bench_slot *s)
{
    bench_buffer_free(v, &s->result);
    v->DestroyDescriptorPool(v->engine.device, s->descriptors, NULL);
    v->DestroyFence(v->engine.device, s->fence, NULL);
    v->DestroyQueryPool(v->engine.device, s->queries, NULL);
    for (int i = 0; i < BENCH_COMMANDS; i++)
        v->DestroyCommandPool(v->engine.device, s->pools[i], NULL);
    *s = (bench_slot){0};
}

bool bench_begin(bench_vk *v, bench_slot *s, uint32_t which)
{
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    if (v->ResetCommandPool(v->engine.device, s->pools[which], 0) != VK_SUCCESS ||
        v->BeginCommandBuffer(s->commands[which], &begin) != VK_SUCCESS)
        return false;
    s->stamp_count = which ? s->stamp_count : 0;
    return true;
}

void bench_stamp(bench_vk *v, bench_slot *s, uint32_t which, bool top)
{
    if (!s->stamp_count)
        v->CmdResetQueryPool(s->commands[which], s->queries, 0, BENCH_STAMPS);
    v->CmdWriteTimestamp(s->commands[which],
                         top ? VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT : VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, s->queries,
                         s->stamp_count++);
}

void bench_dispatch(bench_vk *v, bench_slot *s, uint32_t which, uint32_t mode, const struct td_bench_push *push,
                    uint32_t groups)
{
    VkCommandBuffer commands = s->commands[which];
    v->CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, v->pipelines[mode]);
    v->CmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, v->layout, 0, 1, &s->set, 0, NULL);
    v->CmdPushConstants(commands, v->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof *push, push);
    v->CmdDispatch(commands, groups, 1, 1);
}

void bench_barrier(bench_vk *v, bench_slot *s, uint32_t which, VkPipelineStageFlags from, VkAccessFlags wrote,
                   VkPipelineStageFlags to, VkAccessFlags use)
{
    const VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = wrote,
                                     .dstAccessMask = use};
    v->CmdPipelineBarrier(s->commands[which], from, to, 0, 1, &barrier, 0, NULL, 0, NULL);
}

bool bench_submit(bench_vk *v, bench_slot *s, uint32_t which, bench_signal wait, bench_signal signal, bool fence)
{
    const VkPipelineStageFlags all = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .waitSemaphoreValueCount = wait.semaphore ? 1 : 0,
                                                  .pWaitSemaphoreValues = &wait.value,
                                                  .signalSemaphoreValueCount = signal.semaphore ? 1 : 0,
                                                  .pSignalSemaphoreValues = &signal.value};
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .pNext = &values,
                                 .waitSemaphoreCount = wait.semaphore ? 1 : 0,
                                 .pWaitSemaphores = &wait.semaphore,
                                 .pWaitDstStageMask = &all,
                                 .commandBufferCount = 1,
                                 .pCommandBuffers = &s->commands[which],
                                 .signalSemaphoreCount = signal.semaphore ? 1 : 0,
                                 .pSignalSemaphores = &signal.semaphore};
    if (v->EndCommandBuffer(s->commands[which]) != VK_SUCCESS ||
        (fence && v->ResetFences(v->engine.device, 1, &s->fence) != VK_SUCCESS))
        return false;
    pthread_mutex_lock(&v->engine.queue_lock);
    const VkResult result = v->QueueSubmit(v->engine.queue, 1, &submit, fence ? s->fence : VK_NULL_HANDLE);
    pthread_mutex_unlock(&v->engine.queue_lock);
    return result == VK_SUCCESS;
}

bool bench_finish(bench_vk *v, bench_slot *s, uint64_t stamps[BENCH_STAMPS])
{
    if (v->WaitForFences(v->engine.device, 1, &s->fence, VK_TRUE, WAIT_NS) != VK_SUCCESS ||
        (s->stamp_count &&
         v->GetQueryPoolResults(v->engine.device, s->queries, 0, s->stamp_count, s->stamp_count * sizeof *stamps, stamps,
                                sizeof *stamps, VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT) != VK_SUCCESS))
        return false;
    /* Not by doubles: a tick of 1 ns since 1970 has more than 53 bits. */
    for (uint32_t i = 0; i < s->stamp_count && v->properties.limits.timestampPeriod != 1.0f; i++)
        stamps[i] = (uint64_t)((long double)stamps[i] * (long double)v->properties.limits.timestampPeriod);
    return true;
}
