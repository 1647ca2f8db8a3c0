/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugin/fake_nvx.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/os/clock.h"
#include "kernels/cpu/cpu.h"
#include "kernels/model/graph_file.h"
#include "kernels/params.h"
#include "tests/interop/fake_image.h"
#include "tests/interop/fake_kernels.h"
#include "tests/plugin/network_util.h"

enum { KERNELS = 96, FUNCTIONS = 512, LISTS = 512, ITEMS = 512, EXTENSIONS = 400 };
#define WAIT_NS 10000000000ull

fake_nvx fake_nvx_state;

static td_vk_table real; /* of the instance */
static PFN_vkGetInstanceProcAddr real_gipa;
static PFN_vkCreateDevice real_create_device;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Devices: each has functions of its own, since one may be behind the layer and another not. */

typedef struct owner {
    const void *key;
    VkDevice device;
    td_vk_table fn;
    PFN_vkQueueWaitIdle queue_wait_idle;
    PFN_vkCmdExecuteCommands execute_commands;
} owner;

static owner owners[32];
static uint32_t owner_count;

/* By what the loader puts first into a device, its queues and its command buffers. */
static owner *find_owner(const void *dispatchable)
{
    const void *key = *(const void *const *)dispatchable;

    for (uint32_t i = 0; i < owner_count; i++)
        if (owners[i].key == key)
            return &owners[i];
    return NULL;
}

static const td_vk_table *of(const void *dispatchable)
{
    const owner *found = find_owner(dispatchable);

    if (!found)
        abort();
    return &found->fn;
}

static owner *add_owner(VkDevice device)
{
    owner *it = find_owner(device); /* or one that is no more and had its place */

    if (!it) {
        if (owner_count == sizeof owners / sizeof *owners)
            abort();
        it = &owners[owner_count++];
        it->key = *(const void *const *)device;
    }
    it->device = device;
    it->queue_wait_idle = (PFN_vkQueueWaitIdle)real.GetDeviceProcAddr(device, "vkQueueWaitIdle");
    return it;
}

/* Kernels. */

static const td_kernel *kernels[KERNELS];
static uint32_t param_bytes[KERNELS]; /* of each */
static td_cubin_entry entries[KERNELS + 1] = {{.entry = "stamp", .registers = 16}};
static uint32_t kernel_count;

/* The same in two images. */
static td_cubin_entry early[KERNELS + 1], late[KERNELS];
static td_image parts[2] = {{.entries = early}, {.entries = late, .on_demand = true}};

static void part_kernels(void)
{
    for (uint32_t i = 0; i <= kernel_count; i++)
        if (strncmp(entries[i].entry, "attn_f16", 8))
            early[parts[0].entry_count++] = entries[i];
        else
            late[parts[1].entry_count++] = entries[i];
    fake_image(&parts[0], false);
    fake_image(&parts[1], false);
}

static void learn_kernels(const td_plan *plan)
{
    for (uint32_t i = 0; i < plan->record_count; i++) {
        uint32_t at = 0;

        while (at < kernel_count && strcmp(kernels[at]->entry, plan->records[i].kernel->entry))
            at++;
        if (at < kernel_count)
            continue;
        if (kernel_count == KERNELS)
            abort();
        param_bytes[kernel_count] = plan->records[i].param_bytes;
        kernels[kernel_count++] = plan->records[i].kernel;
        entries[kernel_count] = (td_cubin_entry){.entry = plan->records[i].kernel->entry,
                                                 .registers = plan->records[i].block[0] > 128 ? 64 : 168};
    }
}

/* Those of the network that tests have. */
static void learn_network(void)
{
    td_target target = td_target_for_sm(90);
    const uint32_t numbers[] = {NETWORK_ROWS};
    const td_program *program = NULL;
    td_graph *graph;
    char why[200] = "";

    target.twin = target.commit = true;
    if (td_graph_read(network_text, strlen(network_text), &graph, why, sizeof why) != TANDEM_OK ||
        td_program_build(graph, numbers, &target, &program, why, sizeof why) != TANDEM_OK) {
        fprintf(stderr, "tests/plugin/fake_nvx.c: %s\n", why);
        abort();
    }
    learn_kernels(program->plan);
    td_program_drop(&program);
    td_graph_destroy(&graph);
}

void fake_nvx_learn(void)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256};
    static td_plan plan;

    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (uint32_t precision = TANDEM_PRECISION_F16; precision <= TANDEM_PRECISION_4B; precision++)
            for (uint32_t way = 0; way < 11; way++) { /* in steps, for sm_80; those of fp16 for sm_90 are fused, or none */
                const uint32_t sm = way < 2 ? 80 : 90;
                const uint32_t smooth = (way < 4 ? TANDEM_SMOOTH_Q : 0u) | TANDEM_SMOOTH_K |
                                        (way % 2 ? 0u : (uint32_t)TANDEM_SMOOTH_V);
                const uint32_t dtype = way == 6 || way == 8   ? TANDEM_DTYPE_BF16
                                       : way % 2 || way == 10 ? TANDEM_DTYPE_F16
                                                              : TANDEM_DTYPE_F32;
                tandem_attention op = fault_attention(dtype, dims[d], precision);
                const td_attention_options options = {.rows = way < 7    ? TD_MOST_ROWS
                                                              : way < 9  ? TD_SHORT_ROWS
                                                              : way < 10 ? TD_SPLIT_ROWS
                                                                         : TD_PAIR_ROWS};
                td_target target = td_target_for_sm(sm);
                char why[200];

                op.smooth = way < 5 ? smooth : (uint32_t)TANDEM_SMOOTH_NONE;
                target.twin = target.commit = true;
                target.attention = &options;
                if (td_plan_attention(&op, &target, &plan, NULL, why, sizeof why) != TANDEM_OK) {
                    fprintf(stderr, "tests/plugin/fake_nvx.c: %s\n", why);
                    abort();
                }
                learn_kernels(&plan);
            }
    learn_network();
    part_kernels();
}

/* Of the functions that there are, where launches go to a device: what they are called. */
static struct {
    VkCuFunctionNVX handle;
    const char *attention; /* NULL: of another kind */
} functions[FUNCTIONS];

static void name_function(VkCuFunctionNVX handle, const char *entry)
{
    uint32_t at = 0, kernel = 0;

    while (at < FUNCTIONS && functions[at].handle)
        at++;
    if (at == FUNCTIONS)
        abort();
    while (kernel < kernel_count && strcmp(kernels[kernel]->entry, entry))
        kernel++;
    functions[at].handle = handle;
    functions[at].attention =
        kernel < kernel_count && !strncmp(entry, "attn_", 5) ? kernels[kernel]->name : NULL;
}

static uint32_t function_at(VkCuFunctionNVX handle)
{
    uint32_t at = 0;

    while (at < FUNCTIONS && functions[at].handle != handle)
        at++;
    if (at == FUNCTIONS)
        abort();
    return at;
}

const td_cubin *fake_nvx_cubins(uint32_t *count)
{
    static td_image all = {.entries = entries};
    static const td_cubin one = {.sm = 90, .images = &all, .image_count = 1};
    static const td_cubin two = {.sm = 90, .images = parts, .image_count = 2};

    fake_image(&all, fake_nvx_state.damaged_image);
    all.entry_count = kernel_count + 1;
    *count = 1;
    return fake_nvx_state.two_images ? &two : &one;
}

/* What command buffers hold, where launches run on the host. */

typedef struct item {
    const td_kernel *kernel; /* NULL: the stamp, or a barrier */
    bool barrier;
    uint32_t grid[3];
    _Alignas(16) unsigned char params[TD_PARAM_BYTES];
} item;

typedef struct list {
    VkCommandBuffer commands;
    uint32_t count;
    item items[ITEMS];
} list;

static list *lists[LISTS];

static list *list_of(VkCommandBuffer commands)
{
    uint32_t i = 0;

    while (i < LISTS && lists[i] && lists[i]->commands != commands)
        i++;
    if (i == LISTS)
        abort();
    if (!lists[i]) {
        lists[i] = calloc(1, sizeof **lists);
        if (!lists[i])
            abort();
        lists[i]->commands = commands;
    }
    return lists[i];
}

static item *add_item(VkCommandBuffer commands)
{
    list *l = list_of(commands);

    if (l->count == ITEMS)
        abort();
    return &l->items[l->count++];
}

/* As kernels/cuda/common.cu. */
static void stamp(const td_params_stamp *p)
{
    if (!p->end) {
        __atomic_store_n(&p->slot->begin_ns, td_now_ns(), __ATOMIC_SEQ_CST);
        __atomic_store_n(&p->slot->begun, p->sequence, __ATOMIC_SEQ_CST);
        return;
    }
    __atomic_store_n(&p->slot->end_ns, td_now_ns(), __ATOMIC_SEQ_CST);
    __atomic_store_n(&p->slot->sequence, p->sequence, __ATOMIC_SEQ_CST);
    if (p->completed)
        __atomic_store_n(p->completed, p->sequence, __ATOMIC_SEQ_CST);
}

static void run_item(const item *it)
{
    td_block at = {0};

    if (it->barrier)
        return;
    if (!it->kernel) {
        stamp((const td_params_stamp *)(const void *)it->params);
        return;
    }
    at.local = aligned_alloc(64, (it->kernel->cpu_local_bytes + 127) & ~(size_t)63);
    if (!at.local)
        abort();
    /* Each block of a kernel on the GPU looks at the cancel word; of the twins the executor does. */
    const uint32_t *cancel;
    memcpy(&cancel, it->params, sizeof cancel);
    const bool heeds = strcmp(it->kernel->entry, "claim") && strcmp(it->kernel->entry, "commit");
    for (at.z = 0; at.z < it->grid[2]; at.z++)
        for (at.y = 0; at.y < it->grid[1]; at.y++)
            for (at.x = 0; at.x < it->grid[0]; at.x++)
                if (!heeds || !cancel || !__atomic_load_n(cancel, __ATOMIC_RELAXED)) {
                    fake_nvx_state.blocks += heeds;
                    it->kernel->cpu(it->params, &at);
                }
    free(at.local);
}

static void run_list(const list *l)
{
    for (uint32_t begin = 0; begin < l->count;) {
        uint32_t end = begin;

        while (end < l->count && !l->items[end].barrier)
            end++;
        for (uint32_t i = begin; i < end; i++)
            run_item(&l->items[fake_nvx_state.backwards ? end - 1 - (i - begin) : i]);
        begin = end + 1;
    }
}

/* Hooks. */

static bool fails(const char *call, VkResult *result)
{
    fake_nvx *f = &fake_nvx_state;

    if (!f->fail_at || (f->fail_call && strcmp(call, f->fail_call)) || --f->fail_at)
        return false;
    f->failed = true;
    *result = f->failure ? f->failure : VK_ERROR_OUT_OF_HOST_MEMORY;
    return true;
}

#define FAIL(call)                                      \
    do {                                                \
        VkResult failure_;                              \
        if (fails(call, &failure_))                     \
            return failure_;                            \
    } while (0)

/* X(name, what it counts): creations of the form (device, info, allocator, out). */
#define CREATIONS(X)                                       \
    X(CreateBuffer, VkBufferCreateInfo, VkBuffer)          \
    X(AllocateMemory, VkMemoryAllocateInfo, VkDeviceMemory) \
    X(CreateSemaphore, VkSemaphoreCreateInfo, VkSemaphore) \
    X(CreateCommandPool, VkCommandPoolCreateInfo, VkCommandPool)
#define X(name, info_type, type)                                                                                   \
    static VKAPI_ATTR VkResult VKAPI_CALL hook_##name(VkDevice device, const info_type *info,                      \
                                                      const VkAllocationCallbacks *allocator, type *out)           \
    {                                                                                                              \
        VkResult result;                                                                                           \
        FAIL("vk" #name);                                                                                          \
        result = of(device)->name(device, info, allocator, out);                                                          \
        fake_nvx_state.allocations++;                                                                              \
        fake_nvx_state.live += result == VK_SUCCESS;                                                               \
        return result;                                                                                             \
    }
CREATIONS(X)
#undef X

#define DESTRUCTIONS(X)                \
    X(DestroyBuffer, VkBuffer)         \
    X(FreeMemory, VkDeviceMemory)      \
    X(DestroySemaphore, VkSemaphore)   \
    X(DestroyCommandPool, VkCommandPool)
#define X(name, type)                                                                             \
    static VKAPI_ATTR void VKAPI_CALL hook_##name(VkDevice device, type handle,                   \
                                                  const VkAllocationCallbacks *allocator)         \
    {                                                                                             \
        fake_nvx_state.live -= handle != VK_NULL_HANDLE;                                          \
        of(device)->name(device, handle, allocator);                                                     \
    }
DESTRUCTIONS(X)
#undef X

static VKAPI_ATTR VkResult VKAPI_CALL hook_AllocateCommandBuffers(VkDevice device,
                                                                  const VkCommandBufferAllocateInfo *info,
                                                                  VkCommandBuffer *out)
{
    FAIL("vkAllocateCommandBuffers");
    fake_nvx_state.allocations++;
    return of(device)->AllocateCommandBuffers(device, info, out);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_BindBufferMemory(VkDevice device, VkBuffer buffer, VkDeviceMemory memory,
                                                            VkDeviceSize offset)
{
    FAIL("vkBindBufferMemory");
    return of(device)->BindBufferMemory(device, buffer, memory, offset);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_MapMemory(VkDevice device, VkDeviceMemory memory, VkDeviceSize offset,
                                                     VkDeviceSize bytes, VkMemoryMapFlags flags, void **out)
{
    FAIL("vkMapMemory");
    return of(device)->MapMemory(device, memory, offset, bytes, flags, out);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_ResetCommandPool(VkDevice device, VkCommandPool pool,
                                                            VkCommandPoolResetFlags flags)
{
    FAIL("vkResetCommandPool");
    return of(device)->ResetCommandPool(device, pool, flags);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_BeginCommandBuffer(VkCommandBuffer commands,
                                                              const VkCommandBufferBeginInfo *info)
{
    FAIL("vkBeginCommandBuffer");
    pthread_mutex_lock(&lock);
    fake_nvx_state.begins++;
    if (!fake_nvx_state.real)
        list_of(commands)->count = 0;
    pthread_mutex_unlock(&lock);
    return of(commands)->BeginCommandBuffer(commands, info);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_EndCommandBuffer(VkCommandBuffer commands)
{
    FAIL("vkEndCommandBuffer");
    return of(commands)->EndCommandBuffer(commands);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_GetSemaphoreCounterValue(VkDevice device, VkSemaphore semaphore,
                                                                    uint64_t *value)
{
    FAIL("vkGetSemaphoreCounterValue");
    __atomic_fetch_add(&fake_nvx_state.counter_reads, 1, __ATOMIC_RELAXED);
    return of(device)->GetSemaphoreCounterValue(device, semaphore, value);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_WaitSemaphores(VkDevice device, const VkSemaphoreWaitInfo *info,
                                                          uint64_t timeout)
{
    FAIL("vkWaitSemaphores");
    fake_nvx_state.host_waits++;
    return of(device)->WaitSemaphores(device, info, timeout);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_SignalSemaphore(VkDevice device, const VkSemaphoreSignalInfo *info)
{
    FAIL("vkSignalSemaphore");
    return of(device)->SignalSemaphore(device, info);
}

static VKAPI_ATTR void VKAPI_CALL hook_CmdPipelineBarrier(
    VkCommandBuffer commands, VkPipelineStageFlags src, VkPipelineStageFlags dst, VkDependencyFlags flags,
    uint32_t memory_count, const VkMemoryBarrier *memory, uint32_t buffer_count, const VkBufferMemoryBarrier *buffers,
    uint32_t image_count, const VkImageMemoryBarrier *images)
{
    pthread_mutex_lock(&lock);
    fake_nvx_state.barriers++;
    fake_nvx_state.data_barriers += memory_count != 0;
    fake_nvx_state.wide_barriers +=
        src != VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT || dst != VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    if (!fake_nvx_state.real)
        *add_item(commands) = (item){.barrier = true};
    pthread_mutex_unlock(&lock);
    of(commands)->CmdPipelineBarrier(commands, src, dst, flags, memory_count, memory, buffer_count, buffers, image_count, images);
}

static VKAPI_ATTR void VKAPI_CALL hook_CmdCopyBuffer(VkCommandBuffer commands, VkBuffer from, VkBuffer to,
                                                     uint32_t count, const VkBufferCopy *regions)
{
    fake_nvx_state.copies++;
    of(commands)->CmdCopyBuffer(commands, from, to, count, regions);
}

/* Launches run where the primary's are. */
static VKAPI_ATTR void VKAPI_CALL hook_execute_commands(VkCommandBuffer commands, uint32_t count,
                                                        const VkCommandBuffer *secondaries)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < count && !fake_nvx_state.real; i++) {
        const list *l = list_of(secondaries[i]);

        for (uint32_t j = 0; j < l->count; j++)
            *add_item(commands) = l->items[j];
    }
    pthread_mutex_unlock(&lock);
    find_owner(commands)->execute_commands(commands, count, secondaries);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_CreateCuModuleNVX(VkDevice device, const VkCuModuleCreateInfoNVX *info,
                                                             const VkAllocationCallbacks *allocator, VkCuModuleNVX *out)
{
    VkResult result = VK_SUCCESS;

    FAIL("vkCreateCuModuleNVX");
    if (fake_nvx_state.real)
        result = of(device)->CreateCuModuleNVX(device, info, allocator, out);
    else if (info->dataSize != sizeof fake_image_text || memcmp(info->pData, fake_image_text, info->dataSize))
        result = VK_ERROR_INITIALIZATION_FAILED;
    else
        *out = (VkCuModuleNVX)(uintptr_t)entries;
    fake_nvx_state.live += result == VK_SUCCESS;
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_CreateCuFunctionNVX(VkDevice device, const VkCuFunctionCreateInfoNVX *info,
                                                               const VkAllocationCallbacks *allocator,
                                                               VkCuFunctionNVX *out)
{
    uint32_t at = 0;
    VkResult result = VK_SUCCESS;

    FAIL("vkCreateCuFunctionNVX");
    if (fake_nvx_state.real) {
        result = of(device)->CreateCuFunctionNVX(device, info, allocator, out);
        pthread_mutex_lock(&lock);
        if (result == VK_SUCCESS)
            name_function(*out, info->pName);
        pthread_mutex_unlock(&lock);
    } else {
        while (at <= kernel_count && strcmp(entries[at].entry, info->pName))
            at++;
        if (at > kernel_count || !info->module)
            return VK_ERROR_INITIALIZATION_FAILED;
        *out = (VkCuFunctionNVX)(uintptr_t)(at + 1);
    }
    fake_nvx_state.live += result == VK_SUCCESS;
    return result;
}

static VKAPI_ATTR void VKAPI_CALL hook_DestroyCuModuleNVX(VkDevice device, VkCuModuleNVX module,
                                                          const VkAllocationCallbacks *allocator)
{
    fake_nvx_state.live--;
    if (fake_nvx_state.real)
        of(device)->DestroyCuModuleNVX(device, module, allocator);
}

static VKAPI_ATTR void VKAPI_CALL hook_DestroyCuFunctionNVX(VkDevice device, VkCuFunctionNVX function,
                                                            const VkAllocationCallbacks *allocator)
{
    fake_nvx_state.live--;
    if (!fake_nvx_state.real)
        return;
    pthread_mutex_lock(&lock);
    if (function)
        functions[function_at(function)].handle = VK_NULL_HANDLE;
    pthread_mutex_unlock(&lock);
    of(device)->DestroyCuFunctionNVX(device, function, allocator);
}

static VKAPI_ATTR void VKAPI_CALL hook_CmdCuLaunchKernelNVX(VkCommandBuffer commands, const VkCuLaunchInfoNVX *info)
{
    const uint32_t index = (uint32_t)((uintptr_t)info->function - 1);
    bool lost;
    item *it;

    pthread_mutex_lock(&lock);
    fake_nvx_state.launches++;
    lost = fake_nvx_state.skip_launch && !--fake_nvx_state.skip_launch;
    if (fake_nvx_state.real) {
        const char *attention = functions[function_at(info->function)].attention;

        if (attention)
            fake_nvx_state.attention = attention;
    } else if (!lost) {
        if (info->paramCount != 1 || info->extraCount || index > kernel_count)
            abort();
        it = add_item(commands);
        *it = (item){.kernel = index ? kernels[index - 1] : NULL,
                     .grid = {info->gridDimX, info->gridDimY, info->gridDimZ}};
        if (it->kernel && !strncmp(it->kernel->name, "attn_", 5)) {
            fake_nvx_state.attention = it->kernel->name;
            fake_nvx_state.attention_blocks = info->gridDimX;
        }
        memcpy(it->params, info->pParams[0], index ? param_bytes[index - 1] : sizeof(td_params_stamp));
    }
    pthread_mutex_unlock(&lock);
    if (fake_nvx_state.real && !lost)
        of(commands)->CmdCuLaunchKernelNVX(commands, info);
}

/* Submits are cut before and behind each command buffer with launches: those run on the host once all before is over. */

static bool has_launches(VkCommandBuffer commands)
{
    const list *l = list_of(commands);

    for (uint32_t i = 0; i < l->count; i++)
        if (!l->items[i].barrier)
            return true;
    return false;
}

static VkResult run_submit(VkQueue queue, const VkSubmitInfo *info, VkFence fence)
{
    const VkTimelineSemaphoreSubmitInfo *points = info->pNext;
    const VkSemaphoreWaitInfo wait = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                      .semaphoreCount = info->waitSemaphoreCount,
                                      .pSemaphores = info->pWaitSemaphores,
                                      .pValues = points ? points->pWaitSemaphoreValues : NULL};
    VkSubmitInfo part = *info;
    bool launches = false;

    for (uint32_t i = 0; i < info->commandBufferCount; i++)
        launches = launches || has_launches(info->pCommandBuffers[i]);
    if (!launches)
        return of(queue)->QueueSubmit(queue, 1, info, fence);
    if (info->waitSemaphoreCount && of(queue)->WaitSemaphores(find_owner(queue)->device, &wait, WAIT_NS) != VK_SUCCESS)
        return VK_ERROR_DEVICE_LOST;
    part.pNext = NULL; /* the waits are over, the signals come last */
    part.waitSemaphoreCount = part.signalSemaphoreCount = part.commandBufferCount = 0;
    for (uint32_t i = 0; i < info->commandBufferCount; i++) {
        VkResult result = VK_SUCCESS;

        if (!has_launches(info->pCommandBuffers[i])) {
            part.commandBufferCount++;
            continue;
        }
        if (part.commandBufferCount)
            result = of(queue)->QueueSubmit(queue, 1, &part, VK_NULL_HANDLE);
        if (result == VK_SUCCESS)
            result = find_owner(queue)->queue_wait_idle(queue);
        if (result != VK_SUCCESS)
            return result;
        run_list(list_of(info->pCommandBuffers[i]));
        /* It stays in what is submitted, for its barriers and for the layer. */
        part.pCommandBuffers = info->pCommandBuffers + i;
        part.commandBufferCount = 1;
    }
    part.pNext = info->pNext;
    part.signalSemaphoreCount = info->signalSemaphoreCount;
    return of(queue)->QueueSubmit(queue, 1, &part, fence);
}

enum { SWALLOWED = 16, MOST = 4 };

/* A submit with all that its pointers lead to. */
typedef struct swallowed {
    VkQueue queue;
    VkSubmitInfo info;
    VkTimelineSemaphoreSubmitInfo points;
    VkCommandBuffer commands[MOST];
    VkPipelineStageFlags stages[MOST];
    VkSemaphore waits[MOST], signals[MOST];
    uint64_t wait_values[MOST], signal_values[MOST];
} swallowed;

static swallowed swallowed_submits[SWALLOWED];
static uint32_t swallowed_count;

#define KEEP(to, from, count) memcpy(to, from, (count) * sizeof *(to))

static void swallow(VkQueue queue, const VkSubmitInfo *info)
{
    const VkTimelineSemaphoreSubmitInfo *points = info->pNext;
    swallowed *it = &swallowed_submits[swallowed_count];

    if (swallowed_count++ == SWALLOWED || !points || info->commandBufferCount > MOST ||
        info->waitSemaphoreCount > MOST || info->signalSemaphoreCount > MOST)
        abort();
    *it = (swallowed){.queue = queue, .info = *info, .points = *points};
    KEEP(it->commands, info->pCommandBuffers, info->commandBufferCount);
    if (info->waitSemaphoreCount) {
        KEEP(it->stages, info->pWaitDstStageMask, info->waitSemaphoreCount);
        KEEP(it->waits, info->pWaitSemaphores, info->waitSemaphoreCount);
        KEEP(it->wait_values, points->pWaitSemaphoreValues, info->waitSemaphoreCount);
    }
    KEEP(it->signals, info->pSignalSemaphores, info->signalSemaphoreCount);
    KEEP(it->signal_values, points->pSignalSemaphoreValues, info->signalSemaphoreCount);
    it->info.pNext = &it->points;
    it->info.pCommandBuffers = it->commands;
    it->info.pWaitDstStageMask = it->stages;
    it->info.pWaitSemaphores = it->waits;
    it->info.pSignalSemaphores = it->signals;
    it->points.pWaitSemaphoreValues = it->wait_values;
    it->points.pSignalSemaphoreValues = it->signal_values;
}

void fake_nvx_end_swallowed(void)
{
    for (uint32_t i = 0; i < swallowed_count; i++)
        for (uint32_t j = 0; j < swallowed_submits[i].info.signalSemaphoreCount; j++) {
            const swallowed *it = &swallowed_submits[i];
            const VkDevice device = find_owner(it->queue)->device;
            const VkSemaphoreSignalInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
                                                .semaphore = it->signals[j],
                                                .value = it->signal_values[j]};

            if (of(device)->SignalSemaphore(device, &info) != VK_SUCCESS)
                abort();
        }
    swallowed_count = 0;
}

void fake_nvx_run_swallowed(void)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < swallowed_count; i++)
        if (run_submit(swallowed_submits[i].queue, &swallowed_submits[i].info, VK_NULL_HANDLE) != VK_SUCCESS)
            abort();
    swallowed_count = 0;
    pthread_mutex_unlock(&lock);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_QueueSubmit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos,
                                                       VkFence fence)
{
    VkResult result = VK_SUCCESS;

    FAIL("vkQueueSubmit");
    fake_nvx_state.submits++;
    fake_nvx_state.batches += count;
    for (uint32_t i = 0; i < count; i++) {
        fake_nvx_state.waits += infos[i].waitSemaphoreCount;
        fake_nvx_state.signals += infos[i].signalSemaphoreCount;
    }
    if (fake_nvx_state.swallow_submits) {
        for (uint32_t i = 0; i < count; i++)
            swallow(queue, &infos[i]);
        return VK_SUCCESS;
    }
    if (fake_nvx_state.real || !count)
        return of(queue)->QueueSubmit(queue, count, infos, fence);
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < count && result == VK_SUCCESS; i++)
        result = run_submit(queue, &infos[i], i + 1 == count ? fence : VK_NULL_HANDLE);
    pthread_mutex_unlock(&lock);
    return result;
}

#define DEVICE_HOOKS(X)         \
    X(CreateBuffer)             \
    X(DestroyBuffer)            \
    X(AllocateMemory)           \
    X(FreeMemory)               \
    X(BindBufferMemory)         \
    X(MapMemory)                \
    X(CreateSemaphore)          \
    X(DestroySemaphore)         \
    X(GetSemaphoreCounterValue) \
    X(WaitSemaphores)           \
    X(SignalSemaphore)          \
    X(CreateCommandPool)        \
    X(DestroyCommandPool)       \
    X(ResetCommandPool)         \
    X(AllocateCommandBuffers)   \
    X(BeginCommandBuffer)       \
    X(EndCommandBuffer)         \
    X(CmdPipelineBarrier)       \
    X(CmdCopyBuffer)            \
    X(QueueSubmit)              \
    X(CreateCuModuleNVX)        \
    X(DestroyCuModuleNVX)       \
    X(CreateCuFunctionNVX)      \
    X(DestroyCuFunctionNVX)     \
    X(CmdCuLaunchKernelNVX)

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL hook_gdpa(VkDevice device, const char *name)
{
    PFN_vkVoidFunction found = real.GetDeviceProcAddr(device, name);
    owner *it = add_owner(device);

#define X(function)                                                     \
    if (!strcmp(name, "vk" #function)) {                                \
        it->fn.function = (PFN_vk##function)found;                      \
        return (PFN_vkVoidFunction)hook_##function;                     \
    }
    DEVICE_HOOKS(X)
#undef X
    if (!strcmp(name, "vkCmdExecuteCommands")) {
        it->execute_commands = (PFN_vkCmdExecuteCommands)found;
        return (PFN_vkVoidFunction)hook_execute_commands;
    }
    return found;
}

static const char *const lent[] = {VK_NVX_BINARY_IMPORT_EXTENSION_NAME, VK_NVX_IMAGE_VIEW_HANDLE_EXTENSION_NAME};
enum { LENT = sizeof lent / sizeof *lent };

static VKAPI_ATTR VkResult VKAPI_CALL hook_enumerate(VkPhysicalDevice device, const char *layer, uint32_t *count,
                                                     VkExtensionProperties *out)
{
    VkExtensionProperties all[EXTENSIONS];
    uint32_t n = EXTENSIONS - LENT;
    VkResult result = real.EnumerateDeviceExtensionProperties(device, layer, &n, all);

    if (result != VK_SUCCESS)
        return result;
    fake_nvx_state.real = false;
    for (uint32_t i = 0; i < n; i++)
        fake_nvx_state.real = fake_nvx_state.real || !strcmp(all[i].extensionName, lent[0]);
    for (uint32_t i = 0; i < LENT && !fake_nvx_state.real; i++) {
        all[n] = (VkExtensionProperties){.specVersion = 2};
        snprintf(all[n++].extensionName, sizeof all->extensionName, "%s", lent[i]);
    }
    if (!out) {
        *count = n;
        return VK_SUCCESS;
    }
    result = *count < n ? VK_INCOMPLETE : VK_SUCCESS;
    *count = *count < n ? *count : n;
    memcpy(out, all, *count * sizeof *out);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                                                         const VkAllocationCallbacks *allocator, VkDevice *out)
{
    VkDeviceCreateInfo without = *info;
    const char *names[EXTENSIONS];

    without.enabledExtensionCount = 0;
    without.ppEnabledExtensionNames = names;
    for (uint32_t i = 0; i < info->enabledExtensionCount && i < EXTENSIONS; i++) {
        bool ours = false;

        for (uint32_t j = 0; j < LENT && !fake_nvx_state.real; j++)
            ours = ours || !strcmp(info->ppEnabledExtensionNames[i], lent[j]);
        if (!ours)
            names[without.enabledExtensionCount++] = info->ppEnabledExtensionNames[i];
    }
    return real_create_device(physical, &without, allocator, out);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL hook_gipa(VkInstance instance, const char *name)
{
    PFN_vkVoidFunction found = real_gipa(instance, name);

    if (!strcmp(name, "vkGetDeviceProcAddr")) {
        real.GetDeviceProcAddr = (PFN_vkGetDeviceProcAddr)found;
        return (PFN_vkVoidFunction)hook_gdpa;
    }
    if (!strcmp(name, "vkEnumerateDeviceExtensionProperties")) {
        real.EnumerateDeviceExtensionProperties = (PFN_vkEnumerateDeviceExtensionProperties)found;
        return (PFN_vkVoidFunction)hook_enumerate;
    }
    if (!strcmp(name, "vkCreateDevice")) {
        real_create_device = (PFN_vkCreateDevice)found;
        return (PFN_vkVoidFunction)hook_create_device;
    }
    return found;
}

PFN_vkGetInstanceProcAddr fake_nvx_wrap(PFN_vkGetInstanceProcAddr gipa)
{
    real_gipa = gipa;
    return hook_gipa;
}
