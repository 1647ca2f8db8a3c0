/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/interop/faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/interop/cuda_calls.h"
#include "tests/interop/fake_cuda.h"
#include "tests/interop/fake_kernels.h"
#include "tests/interop/vk_util.h"

pthread_mutex_t fault_semaphores = PTHREAD_MUTEX_INITIALIZER;

static struct {
    pthread_mutex_t lock;
    fault_plan plan;
    bool armed;
    unsigned calls;
    unsigned kernels; /* loaded since it was armed */
    const char *last; /* call, of any kind, and */
    unsigned in_a_row; /* how often it has been made one after the other */
    const char *tripped;
    const char *looked_up[512];
    unsigned looked_up_count;
    int cuda_opened;
    atomic_int vulkan, cuda, blocks, mappings, threads, wrong_closes;
    _Atomic(fault_observer) observer;
    unsigned disguise;
    fault_cuda_kind cuda_kind;
    PFN_vkGetInstanceProcAddr gipa;
    td_vk_table vk;
    PFN_vkEnumerateInstanceExtensionProperties enumerate_instance;
    PFN_vkGetPhysicalDeviceCalibrateableTimeDomainsEXT time_domains;
    td_cu_table cu;
} f = {.lock = PTHREAD_MUTEX_INITIALIZER};

void fault_arm(const fault_plan *plan)
{
    pthread_mutex_lock(&f.lock);
    f.plan = *plan;
    f.calls = 0;
    f.kernels = 0;
    f.last = NULL;
    f.tripped = NULL;
    f.armed = true;
    pthread_mutex_unlock(&f.lock);
}

unsigned fault_disarm(void)
{
    unsigned calls;

    pthread_mutex_lock(&f.lock);
    f.armed = false;
    calls = f.calls;
    pthread_mutex_unlock(&f.lock);
    return calls;
}

const char *fault_tripped(void)
{
    const char *tripped;

    pthread_mutex_lock(&f.lock);
    tripped = f.tripped;
    pthread_mutex_unlock(&f.lock);
    return tripped;
}

void fault_shake(unsigned most_us)
{
    static _Thread_local unsigned seed;
    static atomic_uint threads;
    static atomic_int asked = -1;
    int how = atomic_load(&asked);

    if (how < 0) {
        const char *value = getenv("TANDEM_TEST_SHAKE");

        how = value ? atoi(value) : 0;
        atomic_store(&asked, how);
    }
    if (how <= 0)
        return;
    if (!seed)
        seed = (unsigned)how * 7919 + atomic_fetch_add(&threads, 1) + 1;
    if (rand_r(&seed) % 16 == 0)
        usleep((unsigned)rand_r(&seed) % most_us);
}

/* Streams load more than a hundred kernels in one loop, and make and destroy their events in others: the first ones stand
 * for all, as on a GPU a frame that fails at each of them takes minutes. */
static bool is_repeated(const char *call)
{
    enum { THAT_COUNT = 3 };
    const bool again = f.last && !strcmp(call, f.last);

    f.in_a_row = again ? f.in_a_row + 1 : 1;
    f.last = call;
    if (!strcmp(call, "cuModuleGetFunction"))
        f.kernels++;
    if (!strcmp(call, "cuModuleGetFunction") || !strcmp(call, "cuFuncLoad") || !strcmp(call, "cuFuncGetAttribute"))
        return f.kernels > THAT_COUNT;
    return (!strcmp(call, "cuEventCreate") || !strcmp(call, "cuEventDestroy")) && f.in_a_row > THAT_COUNT;
}

/* Whether this call is to fail. */
static bool trip(fault_kind kind, const char *call)
{
    bool fails = false;

    if (kind & (FAULT_VULKAN | FAULT_CUDA))
        fault_shake(2000);
    pthread_mutex_lock(&f.lock);
    if (f.armed && !is_repeated(call) && (f.plan.kinds & kind) && (!f.plan.call || !strcmp(f.plan.call, call))) {
        f.calls++;
        fails = f.plan.n && (f.calls == f.plan.n || (f.plan.sticky && f.calls > f.plan.n));
        if (fails && !f.tripped)
            f.tripped = call;
    }
    pthread_mutex_unlock(&f.lock);
    return fails;
}

void fault_observe(fault_observer observer)
{
    atomic_store(&f.observer, observer);
}

static void see(const char *call, const void *info, uint64_t handle)
{
    fault_observer observer = atomic_load(&f.observer);

    if (observer)
        observer(call, info, handle);
}

static void look_up(const char *name)
{
    pthread_mutex_lock(&f.lock);
    for (unsigned i = 0; i < f.looked_up_count && name; i++)
        if (f.looked_up[i] == name || !strcmp(f.looked_up[i], name))
            name = NULL;
    if (name && f.looked_up_count < sizeof f.looked_up / sizeof *f.looked_up)
        f.looked_up[f.looked_up_count++] = name; /* a literal of libtandem's */
    pthread_mutex_unlock(&f.lock);
}

bool fault_looked_up(const char *part_of_name)
{
    bool found = false;

    pthread_mutex_lock(&f.lock);
    for (unsigned i = 0; i < f.looked_up_count; i++)
        found = found || strstr(f.looked_up[i], part_of_name);
    pthread_mutex_unlock(&f.lock);
    return found;
}

int fault_cuda_opened(void)
{
    return f.cuda_opened;
}

fault_live fault_count_live(void)
{
    return (fault_live){.vulkan = f.vulkan,
                        .cuda = f.cuda_kind == FAULT_REAL_CUDA ? f.cuda : fake_cuda_driver.live,
                        .blocks = f.blocks,
                        .mappings = f.mappings,
                        .threads = f.threads,
                        .fds = vku_open_fds()};
}

int fault_wrong_closes(void)
{
    return f.wrong_closes;
}

void fault_disguise_as(unsigned bits)
{
    f.disguise = bits;
}

/* The C library. */

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_realloc(void *pointer, size_t bytes);
void __wrap_free(void *pointer);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, long offset);
int __wrap_munmap(void *at, size_t bytes);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_eventfd(unsigned value, int flags);
int __wrap_timerfd_create(int clock, int flags);
int __wrap_posix_fallocate(int fd, long offset, long bytes);
int __wrap_fcntl(int fd, int command, long argument);
int __wrap_close(int fd);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *user);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes);
void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlsym(void *library, const char *name);
const td_cubin *__wrap_td_cubins(uint32_t *count);

static void *counted(void *pointer)
{
    f.blocks += pointer != NULL;
    return pointer;
}

static bool no_memory(const char *call)
{
    if (!trip(FAULT_LIBC, call))
        return false;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t bytes)
{
    return no_memory("malloc") ? NULL : counted(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return no_memory("calloc") ? NULL : counted(__real_calloc(count, bytes));
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return no_memory("aligned_alloc") ? NULL : counted(__real_aligned_alloc(alignment, bytes));
}

void *__wrap_realloc(void *pointer, size_t bytes)
{
    void *more = no_memory("realloc") ? NULL : __real_realloc(pointer, bytes);

    return pointer ? more : counted(more);
}

void __wrap_free(void *pointer)
{
    f.blocks -= pointer != NULL;
    __real_free(pointer);
}

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, long offset)
{
    void *mapping = no_memory("mmap") ? MAP_FAILED : __real_mmap(at, bytes, protection, flags, fd, offset);

    f.mappings += mapping != MAP_FAILED;
    return mapping;
}

int __wrap_munmap(void *at, size_t bytes)
{
    const int result = __real_munmap(at, bytes);

    f.mappings -= result == 0;
    return result;
}

static bool no_fd(const char *call)
{
    if (!trip(FAULT_LIBC, call))
        return false;
    errno = EMFILE;
    return true;
}

int __wrap_memfd_create(const char *name, unsigned flags)
{
    return no_fd("memfd_create") ? -1 : __real_memfd_create(name, flags);
}

int __wrap_eventfd(unsigned value, int flags)
{
    return no_fd("eventfd") ? -1 : __real_eventfd(value, flags);
}

int __wrap_timerfd_create(int clock, int flags)
{
    return no_fd("timerfd_create") ? -1 : __real_timerfd_create(clock, flags);
}

int __wrap_posix_fallocate(int fd, long offset, long bytes)
{
    return trip(FAULT_LIBC, "posix_fallocate") ? ENOSPC : __real_posix_fallocate(fd, offset, bytes);
}

int __wrap_fcntl(int fd, int command, long argument)
{
    int result;

    if (no_fd(command == F_DUPFD_CLOEXEC ? "fcntl(F_DUPFD_CLOEXEC)"
              : command == F_ADD_SEALS   ? "fcntl(F_ADD_SEALS)"
                                         : "fcntl"))
        return -1;
    result = __real_fcntl(fd, command, argument);
    if (command == F_DUPFD_CLOEXEC)
        see("dup", &result, (uint64_t)fd);
    return result;
}

int __wrap_close(int fd)
{
    const int result = __real_close(fd);

    see("close", NULL, (uint64_t)fd);
    f.wrong_closes += result != 0;
    return result;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *user)
{
    int result = trip(FAULT_LIBC, "pthread_create") ? EAGAIN : __real_pthread_create(thread, attributes, main, user);

    f.threads += result == 0;
    return result;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    f.threads--;
    return __real_pthread_join(thread, result);
}

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    return trip(FAULT_LIBC, "pthread_mutex_init") ? ENOMEM : __real_pthread_mutex_init(mutex, attributes);
}

int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes)
{
    return trip(FAULT_LIBC, "pthread_cond_init") ? ENOMEM : __real_pthread_cond_init(cond, attributes);
}

/* Vulkan. */

void fault_vulkan(PFN_vkGetInstanceProcAddr gipa)
{
    f.gipa = gipa;
}

const td_vk_table *fault_vulkan_real(void)
{
    return &f.vk;
}

PFN_vkGetMemoryFdKHR fault_get_memory_fd(void)
{
    return (PFN_vkGetMemoryFdKHR)(PFN_vkVoidFunction)f.vk.get_memory_handle;
}

/* X(name, info, handle) */
#define CREATES(X)                                                                 \
    X(CreateBuffer, VkBufferCreateInfo, VkBuffer)                                  \
    X(AllocateMemory, VkMemoryAllocateInfo, VkDeviceMemory)                        \
    X(CreateCommandPool, VkCommandPoolCreateInfo, VkCommandPool)                   \
    X(CreateFence, VkFenceCreateInfo, VkFence)                                     \
    X(CreateShaderModule, VkShaderModuleCreateInfo, VkShaderModule)                \
    X(CreateDescriptorSetLayout, VkDescriptorSetLayoutCreateInfo, VkDescriptorSetLayout) \
    X(CreatePipelineLayout, VkPipelineLayoutCreateInfo, VkPipelineLayout)
#define DESTROYS(X)                                     \
    X(DestroyBuffer, VkBuffer)                          \
    X(FreeMemory, VkDeviceMemory)                       \
    X(DestroyCommandPool, VkCommandPool)                \
    X(DestroySemaphore, VkSemaphore)                    \
    X(DestroyFence, VkFence)                            \
    X(DestroyShaderModule, VkShaderModule)              \
    X(DestroyDescriptorSetLayout, VkDescriptorSetLayout)\
    X(DestroyPipelineLayout, VkPipelineLayout)          \
    X(DestroyPipeline, VkPipeline)
/* X(name, parameters, arguments, info, handle) */
#define RETURNS(X)                                                                                                     \
    X(EnumerateDeviceExtensionProperties, (VkPhysicalDevice a, const char *b, uint32_t *c, VkExtensionProperties *d),  \
      (a, b, c, d), NULL, 0)                                                                                           \
    X(BindBufferMemory, (VkDevice a, VkBuffer b, VkDeviceMemory c, VkDeviceSize d), (a, b, c, d), NULL, (uint64_t)d)   \
    X(MapMemory, (VkDevice a, VkDeviceMemory b, VkDeviceSize c, VkDeviceSize d, VkMemoryMapFlags e, void **g),         \
      (a, b, c, d, e, g), NULL, (uint64_t)b)                                                                           \
    X(ResetCommandPool, (VkDevice a, VkCommandPool b, VkCommandPoolResetFlags c), (a, b, c), NULL, (uint64_t)b)        \
    X(AllocateCommandBuffers, (VkDevice a, const VkCommandBufferAllocateInfo *b, VkCommandBuffer *c), (a, b, c), b, 0) \
    X(BeginCommandBuffer, (VkCommandBuffer a, const VkCommandBufferBeginInfo *b), (a, b), b, 0)                        \
    X(EndCommandBuffer, (VkCommandBuffer a), (a), NULL, 0)                                                             \
    X(QueueSubmit, (VkQueue a, uint32_t b, const VkSubmitInfo *c, VkFence d), (a, b, c, d), c, b)                      \
    X(WaitForFences, (VkDevice a, uint32_t b, const VkFence *c, VkBool32 d, uint64_t e), (a, b, c, d, e), c, b)        \
    X(GetSemaphoreCounterValue, (VkDevice a, VkSemaphore b, uint64_t *c), (a, b, c), NULL, (uint64_t)b)                \
    X(WaitSemaphores, (VkDevice a, const VkSemaphoreWaitInfo *b, uint64_t c), (a, b, c), b, c)                         \
    X(SignalSemaphore, (VkDevice a, const VkSemaphoreSignalInfo *b), (a, b), b, b->value)                              \
    X(GetMemoryFdPropertiesKHR,                                                                                        \
      (VkDevice a, VkExternalMemoryHandleTypeFlagBits b, int c, VkMemoryFdPropertiesKHR *d), (a, b, c, d), NULL,       \
      (uint64_t)c)                                                                                                     \
    X(GetMemoryHostPointerPropertiesEXT,                                                                               \
      (VkDevice a, VkExternalMemoryHandleTypeFlagBits b, const void *c, VkMemoryHostPointerPropertiesEXT *d),          \
      (a, b, c, d), c, (uint64_t)b)                                                                                    \
    X(GetCalibratedTimestampsEXT,                                                                                      \
      (VkDevice a, uint32_t b, const VkCalibratedTimestampInfoEXT *c, uint64_t *d, uint64_t *e), (a, b, c, d, e), c,   \
      b)                                                                                                               \
    X(SetDebugUtilsObjectNameEXT, (VkDevice a, const VkDebugUtilsObjectNameInfoEXT *b), (a, b), b, 0)
/* Those that cannot fail and need no eye on them. */
#define VOIDS(X)                                                                                                       \
    X(GetPhysicalDeviceMemoryProperties)                                                                               \
    X(GetPhysicalDeviceFormatProperties)                                                                               \
    X(GetPhysicalDeviceProperties)                                                                                     \
    X(GetPhysicalDeviceProperties2)                                                                                    \
    X(GetPhysicalDeviceFeatures2)                                                                                      \
    X(UnmapMemory)                                                                                                     \
    X(CmdCopyBuffer)                                                                                                   \
    X(GetBufferDeviceAddress)                                                                                          \
    X(CreateCuModuleNVX)                                                                                               \
    X(CreateCuFunctionNVX)                                                                                             \
    X(DestroyCuModuleNVX)                                                                                              \
    X(DestroyCuFunctionNVX)                                                                                            \
    X(CmdCuLaunchKernelNVX)                                                                                            \
    X(CmdBindPipeline)                                                                                                 \
    X(CmdPushConstants)                                                                                                \
    X(CmdPushDescriptorSetKHR)                                                                                         \
    X(CmdDispatch)                                                                                                     \
    X(CmdBeginDebugUtilsLabelEXT)                                                                                      \
    X(CmdEndDebugUtilsLabelEXT)                                                                                        \
    X(CreateDebugUtilsMessengerEXT)

/* What the driver gets of a create info: nothing of dma-bufs, where it only seems to know them. */
static const void *for_driver(const void *info)
{
    static _Thread_local VkBufferCreateInfo buffer;
    static _Thread_local VkMemoryAllocateInfo memory;
    const VkBaseInStructure *s = info, *next = s->pNext;

    if (!(f.disguise & FAULT_DMA_BUF) || !next)
        return info;
    if (next->sType == VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO &&
        ((const VkExternalMemoryBufferCreateInfo *)(const void *)next)->handleTypes ==
            VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT) {
        buffer = *(const VkBufferCreateInfo *)info;
        buffer.pNext = NULL;
        return &buffer;
    }
    if (next->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR) {
        memory = *(const VkMemoryAllocateInfo *)info;
        memory.pNext = NULL;
        return &memory;
    }
    return info;
}

/* A driver that took an fd closes it. */
static void close_import(const void *info)
{
    const VkBaseInStructure *s = info, *next = s->pNext;

    if (next && next->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR && (f.disguise & FAULT_DMA_BUF))
        __real_close(((const VkImportMemoryFdInfoKHR *)(const void *)next)->fd);
}

static VKAPI_ATTR VkResult VKAPI_CALL any_memory_type(VkDevice device, VkExternalMemoryHandleTypeFlagBits handle, int fd,
                                                      VkMemoryFdPropertiesKHR *properties)
{
    (void)device;
    (void)fd;
    properties->memoryTypeBits = UINT32_MAX;
    return handle == VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT ? VK_SUCCESS : VK_ERROR_INVALID_EXTERNAL_HANDLE;
}

#define X(name, Info, Handle)                                                                                          \
    static VKAPI_ATTR VkResult VKAPI_CALL hook_##name(VkDevice device, const Info *info,                               \
                                                      const VkAllocationCallbacks *allocator, Handle *out)             \
    {                                                                                                                  \
        VkResult result;                                                                                               \
                                                                                                                       \
        see("vk" #name, info, 0);                                                                                      \
        if (trip(FAULT_VULKAN, "vk" #name))                                                                            \
            return f.plan.vulkan;                                                                                      \
        result = f.vk.name(device, for_driver(info), allocator, out);                                                  \
        f.vulkan += result == VK_SUCCESS;                                                                              \
        if (result == VK_SUCCESS)                                                                                      \
            close_import(info);                                                                                        \
        return result;                                                                                                 \
    }
CREATES(X)
#undef X

#define X(name, Handle)                                                                                                \
    static VKAPI_ATTR void VKAPI_CALL hook_##name(VkDevice device, Handle handle,                                      \
                                                  const VkAllocationCallbacks *allocator)                              \
    {                                                                                                                  \
        see("vk" #name, NULL, (uint64_t)handle);                                                                       \
        f.vulkan -= handle != VK_NULL_HANDLE;                                                                          \
        f.vk.name(device, handle, allocator);                                                                          \
    }
DESTROYS(X)
#undef X

#define X(name, parameters, arguments, info, handle)                                                                   \
    static VKAPI_ATTR VkResult VKAPI_CALL hook_##name parameters                                                       \
    {                                                                                                                  \
        VkResult result;                                                                                               \
                                                                                                                       \
        see("vk" #name, info, handle);                                                                                 \
        if (trip(FAULT_VULKAN, "vk" #name))                                                                            \
            return f.plan.vulkan;                                                                                      \
        pthread_mutex_lock(&fault_semaphores);                                                                         \
        result = f.vk.name arguments;                                                                                  \
        pthread_mutex_unlock(&fault_semaphores);                                                                       \
        return result;                                                                                                 \
    }
RETURNS(X)
#undef X

static VKAPI_ATTR VkResult VKAPI_CALL hook_CreateComputePipelines(VkDevice device, VkPipelineCache cache,
                                                                  uint32_t count,
                                                                  const VkComputePipelineCreateInfo *infos,
                                                                  const VkAllocationCallbacks *allocator,
                                                                  VkPipeline *pipelines)
{
    VkResult result;

    see("vkCreateComputePipelines", infos, count);
    if (trip(FAULT_VULKAN, "vkCreateComputePipelines"))
        return f.plan.vulkan;
    result = f.vk.CreateComputePipelines(device, cache, count, infos, allocator, pipelines);
    f.vulkan += result == VK_SUCCESS;
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_CreateSemaphore(VkDevice device, const VkSemaphoreCreateInfo *info,
                                                           const VkAllocationCallbacks *allocator, VkSemaphore *out)
{
    VkSemaphoreTypeCreateInfo type;
    VkSemaphoreCreateInfo plain = *info;
    VkResult result;

    see("vkCreateSemaphore", info, 0);
    if (trip(FAULT_VULKAN, "vkCreateSemaphore"))
        return f.plan.vulkan;
    if (f.disguise & FAULT_TIMELINES) { /* without VkExportSemaphoreCreateInfo, which this device does not know */
        type = *(const VkSemaphoreTypeCreateInfo *)info->pNext;
        type.pNext = NULL;
        plain.pNext = &type;
    }
    result = f.vk.CreateSemaphore(device, &plain, allocator, out);
    f.vulkan += result == VK_SUCCESS;
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_get_memory_handle(VkDevice device, const td_vk_handle_info *info,
                                                            td_opaque_handle *handle)
{
    see("vkGetMemoryFdKHR", info, 0);
    return trip(FAULT_VULKAN, "vkGetMemoryFdKHR") ? f.plan.vulkan : f.vk.get_memory_handle(device, info, handle);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_get_semaphore_handle(VkDevice device, const td_vk_handle_info *info,
                                                               td_opaque_handle *handle)
{
    see("vkGetSemaphoreFdKHR", info, info->object);
    if (trip(FAULT_VULKAN, "vkGetSemaphoreFdKHR"))
        return f.plan.vulkan;
    if (!(f.disguise & FAULT_TIMELINES))
        return f.vk.get_semaphore_handle(device, info, handle);
    handle->fd = fake_cuda_semaphore_fd((VkSemaphore)info->object);
    return handle->fd < 0 ? VK_ERROR_TOO_MANY_OBJECTS : VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL hook_GetPhysicalDeviceExternalSemaphoreProperties(
    VkPhysicalDevice device, const VkPhysicalDeviceExternalSemaphoreInfo *info, VkExternalSemaphoreProperties *answer)
{
    see("vkGetPhysicalDeviceExternalSemaphoreProperties", info, 0);
    f.vk.GetPhysicalDeviceExternalSemaphoreProperties(device, info, answer);
    if (f.disguise & FAULT_TIMELINES)
        answer->externalSemaphoreFeatures |= VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT;
    if (f.disguise & FAULT_NO_TIMELINES)
        answer->externalSemaphoreFeatures = 0;
}

static VKAPI_ATTR void VKAPI_CALL hook_GetPhysicalDeviceExternalBufferProperties(
    VkPhysicalDevice device, const VkPhysicalDeviceExternalBufferInfo *info, VkExternalBufferProperties *answer)
{
    see("vkGetPhysicalDeviceExternalBufferProperties", info, 0);
    f.vk.GetPhysicalDeviceExternalBufferProperties(device, info, answer);
    if (f.disguise & FAULT_DEDICATED_ONLY)
        answer->externalMemoryProperties.externalMemoryFeatures |= VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT;
    if ((f.disguise & FAULT_DMA_BUF) && info->handleType == VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT)
        answer->externalMemoryProperties.externalMemoryFeatures |= VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
}

static VKAPI_ATTR void VKAPI_CALL hook_GetPhysicalDeviceQueueFamilyProperties(VkPhysicalDevice device, uint32_t *count,
                                                                              VkQueueFamilyProperties *list)
{
    const uint32_t room = *count;

    f.vk.GetPhysicalDeviceQueueFamilyProperties(device, count, list);
    if (!(f.disguise & FAULT_TWO_FAMILIES))
        return;
    if (list && *count < room)
        list[*count] = list[0];
    ++*count;
}

static VKAPI_ATTR void VKAPI_CALL hook_GetBufferMemoryRequirements2(VkDevice device,
                                                                    const VkBufferMemoryRequirementsInfo2 *info,
                                                                    VkMemoryRequirements2 *needs)
{
    f.vk.GetBufferMemoryRequirements2(device, info, needs);
    if (f.disguise & FAULT_ROUNDS_UP)
        needs->memoryRequirements.size = td_align_up(needs->memoryRequirements.size, 65536) + 65536;
    for (VkBaseOutStructure *s = needs->pNext; s; s = s->pNext)
        if (s->sType == VK_STRUCTURE_TYPE_MEMORY_DEDICATED_REQUIREMENTS && (f.disguise & FAULT_WANTS_DEDICATED))
            ((VkMemoryDedicatedRequirements *)(void *)s)->prefersDedicatedAllocation = VK_TRUE;
    see("vkGetBufferMemoryRequirements2", needs, (uint64_t)info->buffer);
}

static VKAPI_ATTR void VKAPI_CALL hook_CmdPipelineBarrier(
    VkCommandBuffer commands, VkPipelineStageFlags src, VkPipelineStageFlags dst, VkDependencyFlags flags,
    uint32_t memory_count, const VkMemoryBarrier *memory, uint32_t buffer_count, const VkBufferMemoryBarrier *buffers,
    uint32_t image_count, const VkImageMemoryBarrier *images)
{
    const fault_barrier barrier = {src, dst, buffer_count ? *buffers : (VkBufferMemoryBarrier){0}};

    see("vkCmdPipelineBarrier", &barrier, buffer_count);
    f.vk.CmdPipelineBarrier(commands, src, dst, flags, memory_count, memory, buffer_count, buffers, image_count,
                            images);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_enumerate_instance(const char *layer, uint32_t *count,
                                                              VkExtensionProperties *list)
{
    return trip(FAULT_VULKAN, "vkEnumerateInstanceExtensionProperties") ? f.plan.vulkan
                                                                        : f.enumerate_instance(layer, count, list);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_time_domains(VkPhysicalDevice device, uint32_t *count,
                                                        VkTimeDomainEXT *domains)
{
    return trip(FAULT_VULKAN, "vkGetPhysicalDeviceCalibrateableTimeDomainsEXT")
               ? f.plan.vulkan
               : f.time_domains(device, count, domains);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL hook_GetDeviceProcAddr(VkDevice device, const char *name);

/* Lengths first: there are many names, of which a sanitizer's strcmp() reads each to its end. */
#define IS(text, length, name) ((length) == sizeof(name) - 1 && !memcmp(text, name, sizeof(name) - 1))

/* The hook before a function, which it keeps. A name that is in no list ends the program: so the lists stay whole. */
static PFN_vkVoidFunction hooked(const char *name, PFN_vkVoidFunction function)
{
    size_t length = strlen(name); /* but of "KHR", where a function is the core's as well */

    if (!strncmp(name + 2, "GetSemaphoreCounterValue", 24) || !strncmp(name + 2, "WaitSemaphores", 14) ||
        !strncmp(name + 2, "SignalSemaphore", 15))
        if (length > 3 && !strcmp(name + length - 3, "KHR"))
            length -= 3;
#define HOOK(of)                                      \
    if (IS(name, length, "vk" #of)) {                 \
        if (function)                                 \
            f.vk.of = (PFN_vk##of)function;           \
        return (PFN_vkVoidFunction)(void *)hook_##of; \
    }
#define X(of, ...) HOOK(of)
    CREATES(X)
    DESTROYS(X)
    RETURNS(X)
#undef X
    HOOK(CreateComputePipelines)
    HOOK(CreateSemaphore)
    HOOK(GetPhysicalDeviceExternalSemaphoreProperties)
    HOOK(GetPhysicalDeviceExternalBufferProperties)
    HOOK(GetBufferMemoryRequirements2)
    HOOK(GetPhysicalDeviceQueueFamilyProperties)
    HOOK(CmdPipelineBarrier)
    HOOK(GetDeviceProcAddr)
#undef HOOK
#define HANDLES(of, get)                              \
    if (IS(name, length, "vk" #of)) {                 \
        if (function)                                 \
            f.vk.get = (td_vk_get_handle)function;    \
        return (PFN_vkVoidFunction)(void *)hook_##get; \
    }
    HANDLES(GetMemoryFdKHR, get_memory_handle)
    HANDLES(GetSemaphoreFdKHR, get_semaphore_handle)
#undef HANDLES
#define X(of)                       \
    if (IS(name, length, "vk" #of)) \
        return function;
    VOIDS(X)
#undef X
    if (!strcmp(name, "vkEnumerateInstanceExtensionProperties")) {
        f.enumerate_instance = (PFN_vkEnumerateInstanceExtensionProperties)function;
        return (PFN_vkVoidFunction)(void *)hook_enumerate_instance;
    }
    if (!strcmp(name, "vkGetPhysicalDeviceCalibrateableTimeDomainsEXT")) {
        f.time_domains = (PFN_vkGetPhysicalDeviceCalibrateableTimeDomainsEXT)function;
        return (PFN_vkVoidFunction)(void *)hook_time_domains;
    }
    fprintf(stderr, "tests/interop/faults.c has no hook for %s\n", name);
    abort();
}

static bool is_pretended(const char *name)
{
    return (!strcmp(name, "vkGetSemaphoreFdKHR") && (f.disguise & FAULT_TIMELINES)) ||
           (!strcmp(name, "vkGetMemoryFdPropertiesKHR") && (f.disguise & FAULT_DMA_BUF));
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL hook_GetDeviceProcAddr(VkDevice device, const char *name)
{
    PFN_vkVoidFunction function = f.vk.GetDeviceProcAddr(device, name);

    look_up(name);
    if ((!function && !is_pretended(name)) || trip(FAULT_VULKAN_LOOKUP, name))
        return NULL;
    if ((f.disguise & FAULT_DMA_BUF) && !strcmp(name, "vkGetMemoryFdPropertiesKHR"))
        function = (PFN_vkVoidFunction)any_memory_type;
    return hooked(name, function);
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL fault_gipa(VkInstance instance, const char *name)
{
    PFN_vkVoidFunction function = f.gipa(instance, name);

    look_up(name);
    if (!function || trip(FAULT_VULKAN_LOOKUP, name))
        return NULL;
    return hooked(name, function);
}

/* CUDA. */

/* Such an error takes the context with it. */
#define LAUNCH_FAILED 719

/* The newest event to sleep by. A waiter records it if it comes before the end, and looks now and then if it cannot;
 * events of submits have to be recorded. */
static _Atomic(td_cu_event) sleeper;

static const char *name_for(const char *call, const void *info)
{
    return !strcmp(call, "cuEventRecord") && info == atomic_load(&sleeper) ? "cuEventRecord to sleep by" : call;
}

static void note_sleeper(const char *call, const void *info, uint64_t flags)
{
    if (!strcmp(call, "cuEventCreate") && (flags & TD_CU_EVENT_SLEEPS))
        atomic_store(&sleeper, *(const td_cu_event *)info);
}

#define X(name, parameters, arguments, info, handle, adds)                                                             \
    static td_cu_result hook_##name parameters                                                                         \
    {                                                                                                                  \
        const bool fails = trip(FAULT_CUDA, name_for(#name, info));                                                    \
        td_cu_result result = TD_CU_SUCCESS;                                                                           \
                                                                                                                       \
        see(#name, info, handle);                                                                                      \
        if (fails && f.plan.cuda == LAUNCH_FAILED && f.cuda_kind == FAULT_FAKE_CUDA)                                   \
            fake_cuda_die();                                                                                           \
        if (!fails || (adds) < 0)                                                                                      \
            result = f.cu.name arguments;                                                                              \
        if (!fails && result == TD_CU_SUCCESS)                                                                         \
            note_sleeper(#name, info, handle);                                                                         \
        if ((!fails || (adds) == -1) && result == TD_CU_SUCCESS && (adds) > -2)                                        \
            f.cuda += (adds);                                                                                          \
        return fails ? f.plan.cuda : result;                                                                           \
    }
CUDA(X)
#undef X

void fault_cuda(fault_cuda_kind kind)
{
    f.cuda_kind = kind;
    if (kind == FAULT_FAKE_CUDA)
        f.cu = *fake_cuda_table();
}

static int the_fake;

void *__wrap_dlopen(const char *name, int flags)
{
    const bool cuda = !strcmp(name, "libcuda.so.1");

    f.cuda_opened += cuda;
    /* dlerror() then is about something else, or NULL: as with a real dlopen() that somebody else's call overtakes. */
    if (trip(FAULT_LIBC, "dlopen") || (cuda && f.cuda_kind == FAULT_NO_CUDA))
        return __real_dlopen("/nonexistent/library.so", RTLD_NOW);
    if (cuda && f.cuda_kind == FAULT_FAKE_CUDA)
        return &the_fake;
    return __real_dlopen(name, flags);
}

static void *hooked_cuda(const char *symbol, void *function)
{
    const size_t length = strlen(symbol);

#define REQUIRED(kind, name, of, parameters)                        \
    if (IS(symbol, length, #of)) {                                  \
        if (f.cuda_kind == FAULT_REAL_CUDA)                         \
            memcpy(&f.cu.name, &function, sizeof function);         \
        return (void *)hook_##name;                                 \
    }
    TD_CU_FUNCTIONS(REQUIRED, REQUIRED)
#undef REQUIRED
    fprintf(stderr, "tests/interop/faults.c has no hook for %s\n", symbol);
    abort();
}

void *__wrap_dlsym(void *library, const char *name)
{
    void *function = NULL;

    if (strncmp(name, "cu", 2))
        return __real_dlsym(library, name);
    look_up(name);
    if (trip(FAULT_CUDA_LOOKUP, name) || ((f.disguise & FAULT_NO_GRAPHS) && !strcmp(name, "cuGraphCreate")))
        return NULL;
    if (f.cuda_kind == FAULT_FAKE_CUDA && fake_cuda_of_benches(name))
        return fake_cuda_of_benches(name);
    if (f.cuda_kind == FAULT_REAL_CUDA) {
        function = __real_dlsym(library, name);
        if (!function)
            return NULL;
    }
    return hooked_cuda(name, function);
}

static const td_cubin *given;

void fault_kernels(const td_cubin *kernels)
{
    given = kernels;
}

const td_cubin *__wrap_td_cubins(uint32_t *count)
{
    if (f.cuda_kind != FAULT_FAKE_CUDA)
        return __real_td_cubins(count);
    if (!given)
        return fake_kernels(count, f.disguise & FAULT_DAMAGED_IMAGE);
    *count = 1;
    return given;
}
