/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/windows/handles/shim.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/windows/handles/section.h"

#include <vulkan/vulkan_win32.h>
#include <winternl.h>

shim_state shim;

#define HOOKED(X)                                   \
    X(EnumerateDeviceExtensionProperties)           \
    X(GetPhysicalDeviceProperties2)                 \
    X(GetPhysicalDeviceExternalBufferProperties)    \
    X(GetPhysicalDeviceExternalSemaphoreProperties) \
    X(GetBufferMemoryRequirements2)                 \
    X(CreateDevice)                                 \
    X(GetDeviceProcAddr)                            \
    X(CreateBuffer)                                 \
    X(DestroyBuffer)                                \
    X(AllocateMemory)                               \
    X(FreeMemory)                                   \
    X(CreateSemaphore)                              \
    X(DestroySemaphore)

static struct {
    PFN_vkGetInstanceProcAddr gipa;
#define X(name) PFN_vk##name name;
    HOOKED(X)
#undef X
} real;

enum { MOST = 256 };
static struct object {
    section is;
    HANDLE kept; /* once it was exported */
} objects[MOST];
static unsigned object_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *const names[2] = {VK_KHR_EXTERNAL_MEMORY_WIN32_EXTENSION_NAME, VK_KHR_EXTERNAL_SEMAPHORE_WIN32_EXTENSION_NAME};

static void flaw(const char *text)
{
    if (!shim.flaw[0])
        snprintf(shim.flaw, sizeof shim.flaw, "%s", text);
}

static bool trip(const char *call)
{
    bool fails;

    pthread_mutex_lock(&lock);
    fails = ++shim.calls == shim.fails;
    if (fails)
        shim.failed = call;
    pthread_mutex_unlock(&lock);
    return fails;
}

static const void *in_chain(const void *info, VkStructureType type)
{
    const VkBaseInStructure *s = info;

    while (s && s->sType != type)
        s = s->pNext;
    return s;
}

static struct object *find_locked(section_kind kind, uint64_t handle)
{
    for (unsigned i = object_count; i--;) /* the newest: a handle's value may come again */
        if (objects[i].is.kind == kind && objects[i].is.object == handle)
            return &objects[i];
    return NULL;
}

static void add(section is)
{
    pthread_mutex_lock(&lock);
    if (object_count == MOST)
        abort();
    objects[object_count++] = (struct object){.is = is};
    pthread_mutex_unlock(&lock);
}

/* The device. */

static VKAPI_ATTR VkResult VKAPI_CALL hook_EnumerateDeviceExtensionProperties(VkPhysicalDevice device, const char *layer,
                                                                              uint32_t *count, VkExtensionProperties *list)
{
    const uint32_t more = layer ? 0 : shim.no_semaphores ? 1 : 2, room = *count;
    VkResult result;

    if (list)
        *count = room > more ? room - more : 0;
    result = real.EnumerateDeviceExtensionProperties(device, layer, count, list);
    if (result == VK_SUCCESS)
        for (uint32_t i = 0; i < more; i++, ++*count)
            if (list)
                snprintf(list[*count].extensionName, sizeof list->extensionName, "%s", names[i]);
    return result;
}

static VKAPI_ATTR void VKAPI_CALL hook_GetPhysicalDeviceProperties2(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *out)
{
    VkPhysicalDeviceIDProperties *id;

    real.GetPhysicalDeviceProperties2(device, out);
    id = (void *)(uintptr_t)in_chain(out, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES);
    if (!id)
        return;
    id->deviceLUIDValid = shim.adapter.known;
    memcpy(id->deviceLUID, shim.adapter.luid, sizeof id->deviceLUID);
    id->deviceNodeMask = shim.adapter.node_mask;
}

static VKAPI_ATTR void VKAPI_CALL hook_GetPhysicalDeviceExternalBufferProperties(
    VkPhysicalDevice device, const VkPhysicalDeviceExternalBufferInfo *info, VkExternalBufferProperties *out)
{
    real.GetPhysicalDeviceExternalBufferProperties(device, info, out);
    out->externalMemoryProperties.externalMemoryFeatures =
        info->handleType == VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32_BIT ? VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT : 0;
}

static VKAPI_ATTR void VKAPI_CALL hook_GetPhysicalDeviceExternalSemaphoreProperties(
    VkPhysicalDevice device, const VkPhysicalDeviceExternalSemaphoreInfo *info, VkExternalSemaphoreProperties *out)
{
    const VkSemaphoreTypeCreateInfo *type = in_chain(info, VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO);

    real.GetPhysicalDeviceExternalSemaphoreProperties(device, info, out);
    out->externalSemaphoreFeatures = info->handleType == VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_WIN32_BIT && type &&
                                             type->semaphoreType == VK_SEMAPHORE_TYPE_TIMELINE
                                         ? VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT
                                         : 0;
}

static VKAPI_ATTR void VKAPI_CALL hook_GetBufferMemoryRequirements2(VkDevice device, const VkBufferMemoryRequirementsInfo2 *info,
                                                                    VkMemoryRequirements2 *out)
{
    VkMemoryDedicatedRequirements *asks;

    real.GetBufferMemoryRequirements2(device, info, out);
    asks = (void *)(uintptr_t)in_chain(out, VK_STRUCTURE_TYPE_MEMORY_DEDICATED_REQUIREMENTS);
    if (asks)
        asks->prefersDedicatedAllocation = shim.dedicated;
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_CreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                                                        const VkAllocationCallbacks *allocator, VkDevice *out)
{
    const char *kept[64];
    VkDeviceCreateInfo less = *info;

    less.enabledExtensionCount = 0;
    less.ppEnabledExtensionNames = kept;
    for (uint32_t i = 0; i < info->enabledExtensionCount && less.enabledExtensionCount < 64; i++)
        if (strcmp(info->ppEnabledExtensionNames[i], names[0]) && strcmp(info->ppEnabledExtensionNames[i], names[1]))
            kept[less.enabledExtensionCount++] = info->ppEnabledExtensionNames[i];
    return real.CreateDevice(physical, &less, allocator, out);
}

/* Objects. */

static VKAPI_ATTR VkResult VKAPI_CALL hook_CreateBuffer(VkDevice device, const VkBufferCreateInfo *info,
                                                        const VkAllocationCallbacks *allocator, VkBuffer *out)
{
    const VkExternalMemoryBufferCreateInfo *external =
        in_chain(info, VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO);
    VkBufferCreateInfo plain = *info;
    VkResult result;

    if (trip("vkCreateBuffer"))
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    if (external && external->handleTypes != VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT) {
        if (external->handleTypes != VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32_BIT)
            flaw("vkCreateBuffer: not of OPAQUE_WIN32");
        plain.pNext = NULL;
    }
    result = real.CreateBuffer(device, &plain, allocator, out);
    shim.live += result == VK_SUCCESS;
    return result;
}

static VKAPI_ATTR void VKAPI_CALL hook_DestroyBuffer(VkDevice device, VkBuffer buffer, const VkAllocationCallbacks *allocator)
{
    shim.live -= buffer != VK_NULL_HANDLE;
    real.DestroyBuffer(device, buffer, allocator);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_AllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
                                                          const VkAllocationCallbacks *allocator, VkDeviceMemory *out)
{
    const VkExportMemoryAllocateInfo *export = in_chain(info, VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO);
    VkMemoryAllocateInfo plain = *info;
    VkResult result;

    if (trip("vkAllocateMemory"))
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    if (export) {
        const VkMemoryDedicatedAllocateInfo *dedicated = in_chain(info, VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO);

        if (export->handleTypes != VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32_BIT)
            flaw("vkAllocateMemory: not of OPAQUE_WIN32");
        if (shim.dedicated && (!dedicated || !dedicated->buffer))
            flaw("vkAllocateMemory: not for one buffer");
        plain.pNext = NULL;
    }
    result = real.AllocateMemory(device, &plain, allocator, out);
    shim.live += result == VK_SUCCESS;
    if (result == VK_SUCCESS && export)
        add((section){SECTION_MEMORY, (uint64_t)*out, info->allocationSize});
    return result;
}

static VKAPI_ATTR void VKAPI_CALL hook_FreeMemory(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *allocator)
{
    shim.live -= memory != VK_NULL_HANDLE;
    real.FreeMemory(device, memory, allocator);
}

static VKAPI_ATTR VkResult VKAPI_CALL hook_CreateSemaphore(VkDevice device, const VkSemaphoreCreateInfo *info,
                                                           const VkAllocationCallbacks *allocator, VkSemaphore *out)
{
    const VkExportSemaphoreCreateInfo *export = in_chain(info, VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO);
    const VkSemaphoreTypeCreateInfo *type = in_chain(info, VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO);
    VkSemaphoreTypeCreateInfo alone;
    VkSemaphoreCreateInfo plain = *info;
    VkResult result;

    if (trip("vkCreateSemaphore"))
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    if (type) {
        alone = *type;
        alone.pNext = NULL;
        plain.pNext = &alone;
    }
    if (export && export->handleTypes != VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_WIN32_BIT)
        flaw("vkCreateSemaphore: not of OPAQUE_WIN32");
    result = real.CreateSemaphore(device, &plain, allocator, out);
    shim.live += result == VK_SUCCESS;
    if (result == VK_SUCCESS && export)
        add((section){SECTION_SEMAPHORE, (uint64_t)*out, 0});
    return result;
}

static VKAPI_ATTR void VKAPI_CALL hook_DestroySemaphore(VkDevice device, VkSemaphore semaphore,
                                                        const VkAllocationCallbacks *allocator)
{
    shim.live -= semaphore != VK_NULL_HANDLE;
    real.DestroySemaphore(device, semaphore, allocator);
}

/* Handles. The section is as long as the memory: whoever is lent it by its handle may look. */

static VkResult give(section_kind kind, uint64_t handle, HANDLE *out)
{
    struct object *o;

    pthread_mutex_lock(&lock);
    o = find_locked(kind, handle);
    if (!o)
        flaw("a handle of what was not made for export");
    else if (o->kept)
        flaw("a second handle of one object");
    if (o && !o->kept) {
        *out = section_make(o->is, o->is.bytes > 4096 ? o->is.bytes : 4096);
        if (!DuplicateHandle(GetCurrentProcess(), *out, GetCurrentProcess(), &o->kept, 0, FALSE, DUPLICATE_SAME_ACCESS))
            abort();
        shim.gets++;
    }
    pthread_mutex_unlock(&lock);
    return o ? VK_SUCCESS : VK_ERROR_UNKNOWN;
}

static VKAPI_ATTR VkResult VKAPI_CALL get_memory(VkDevice device, const VkMemoryGetWin32HandleInfoKHR *info, HANDLE *out)
{
    (void)device;
    if (trip("vkGetMemoryWin32HandleKHR"))
        return VK_ERROR_TOO_MANY_OBJECTS;
    if (info->sType != VK_STRUCTURE_TYPE_MEMORY_GET_WIN32_HANDLE_INFO_KHR || info->pNext ||
        info->handleType != VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32_BIT)
        flaw("VkMemoryGetWin32HandleInfoKHR");
    return give(SECTION_MEMORY, (uint64_t)info->memory, out);
}

static VKAPI_ATTR VkResult VKAPI_CALL get_semaphore(VkDevice device, const VkSemaphoreGetWin32HandleInfoKHR *info, HANDLE *out)
{
    (void)device;
    if (trip("vkGetSemaphoreWin32HandleKHR"))
        return VK_ERROR_TOO_MANY_OBJECTS;
    if (info->sType != VK_STRUCTURE_TYPE_SEMAPHORE_GET_WIN32_HANDLE_INFO_KHR || info->pNext ||
        info->handleType != VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_WIN32_BIT)
        flaw("VkSemaphoreGetWin32HandleInfoKHR");
    return give(SECTION_SEMAPHORE, (uint64_t)info->semaphore, out);
}

unsigned shim_open_handles(void)
{
    unsigned open = 0;

    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < object_count; i++) {
        PUBLIC_OBJECT_BASIC_INFORMATION info = {0};
        ULONG bytes;

        if (!objects[i].kept)
            continue;
        if (NtQueryObject(objects[i].kept, ObjectBasicInformation, &info, sizeof info, &bytes) || !info.HandleCount)
            abort();
        open += info.HandleCount - 1;
        CloseHandle(objects[i].kept);
    }
    object_count = 0;
    pthread_mutex_unlock(&lock);
    return open;
}

/* Found by their names. */

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL hook_GetDeviceProcAddr(VkDevice device, const char *name);

static PFN_vkVoidFunction hooked(const char *name, PFN_vkVoidFunction function)
{
#define X(of)                                         \
    if (!strcmp(name, "vk" #of)) {                    \
        real.of = (PFN_vk##of)function;               \
        return (PFN_vkVoidFunction)(void *)hook_##of; \
    }
    HOOKED(X)
#undef X
    return function;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL hook_GetDeviceProcAddr(VkDevice device, const char *name)
{
    PFN_vkVoidFunction function;

    if (!strcmp(name, "vkGetMemoryWin32HandleKHR"))
        return (PFN_vkVoidFunction)(void *)get_memory;
    if (!strcmp(name, "vkGetSemaphoreWin32HandleKHR"))
        return (PFN_vkVoidFunction)(void *)get_semaphore;
    function = real.GetDeviceProcAddr(device, name);
    return function ? hooked(name, function) : NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL shim_gipa(VkInstance instance, const char *name)
{
    PFN_vkVoidFunction function = real.gipa(instance, name);

    return function ? hooked(name, function) : NULL;
}

PFN_vkGetInstanceProcAddr shim_wrap(PFN_vkGetInstanceProcAddr gipa)
{
    real.gipa = gipa;
    return shim_gipa;
}

/* Of the system: in place of what the import library has for this program. */

static void *of_kernel(const char *name)
{
    return (void *)(uintptr_t)GetProcAddress(GetModuleHandleW(L"kernel32"), name);
}

static BOOL WINAPI close_handle(HANDLE handle)
{
    static BOOL(WINAPI * close)(HANDLE);
    BOOL closed;

    if (!close)
        close = (BOOL(WINAPI *)(HANDLE))of_kernel("CloseHandle");
    closed = close(handle);
    shim.wrong_closes += !closed;
    return closed;
}

static BOOL WINAPI duplicate_handle(HANDLE from, HANDLE handle, HANDLE to, LPHANDLE out, DWORD access, BOOL inherit, DWORD options)
{
    static BOOL(WINAPI * duplicate)(HANDLE, HANDLE, HANDLE, LPHANDLE, DWORD, BOOL, DWORD);

    if (!duplicate)
        duplicate = (BOOL(WINAPI *)(HANDLE, HANDLE, HANDLE, LPHANDLE, DWORD, BOOL, DWORD))of_kernel("DuplicateHandle");
    if (section_read(handle).kind && pthread_mutex_trylock(&lock) == 0) { /* not the shim's own */
        pthread_mutex_unlock(&lock);
        if (trip("DuplicateHandle")) {
            SetLastError(ERROR_NOT_ENOUGH_MEMORY);
            return FALSE;
        }
    }
    return duplicate(from, handle, to, out, access, inherit, options);
}

extern void *__imp_CloseHandle, *__imp_DuplicateHandle;
void *__imp_CloseHandle = (void *)close_handle, *__imp_DuplicateHandle = (void *)duplicate_handle;
