/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/windows/layer/loader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <jansson.h>

/* The program's calls begin at the top, which is the layer where there is one, else the bottom. */
static HMODULE dll;
static PFN_vkGetInstanceProcAddr top_instance, vulkan;
static PFN_vkGetDeviceProcAddr top_device, vulkan_device;

/* What the first word of handles points to: a table of functions with the true loader, and told apart by its address alone. */
static int keys[2];
static VkInstance instance_now;
static bool links_taken = true;
static atomic_int live;
static int left;

static void put_key(void *handle, const int *key)
{
    *(const void **)handle = key;
}

/* --- The bottom --- */

/* Objects that are counted: what makes one, and what ends it. */
#define COUNTED(X)                                                                                                     \
    X(Fence, VkFenceCreateInfo) X(Semaphore, VkSemaphoreCreateInfo) X(CommandPool, VkCommandPoolCreateInfo)            \
    X(Image, VkImageCreateInfo) X(ImageView, VkImageViewCreateInfo) X(Buffer, VkBufferCreateInfo)                      \
    X(QueryPool, VkQueryPoolCreateInfo) X(ShaderModule, VkShaderModuleCreateInfo)                                      \
    X(DescriptorSetLayout, VkDescriptorSetLayoutCreateInfo) X(PipelineLayout, VkPipelineLayoutCreateInfo)              \
    X(SwapchainKHR, VkSwapchainCreateInfoKHR)

#define X(name, info_type)                                                                                             \
    static PFN_vkCreate##name real_Create##name;                                                                       \
    static PFN_vkDestroy##name real_Destroy##name;                                                                     \
    static VKAPI_ATTR VkResult VKAPI_CALL make_##name(VkDevice device, const info_type *info,                          \
                                                      const VkAllocationCallbacks *allocator, Vk##name *out)           \
    {                                                                                                                  \
        const VkResult result = real_Create##name(device, info, allocator, out);                                       \
        atomic_fetch_add(&live, result == VK_SUCCESS);                                                                 \
        return result;                                                                                                 \
    }                                                                                                                  \
    static VKAPI_ATTR void VKAPI_CALL end_##name(VkDevice device, Vk##name it, const VkAllocationCallbacks *allocator) \
    {                                                                                                                  \
        atomic_fetch_sub(&live, it != VK_NULL_HANDLE);                                                                 \
        real_Destroy##name(device, it, allocator);                                                                     \
    }
COUNTED(X)
#undef X

static PFN_vkAllocateMemory real_AllocateMemory;
static PFN_vkFreeMemory real_FreeMemory;

static VKAPI_ATTR VkResult VKAPI_CALL allocate_memory(VkDevice device, const VkMemoryAllocateInfo *info,
                                                      const VkAllocationCallbacks *allocator, VkDeviceMemory *out)
{
    const VkResult result = real_AllocateMemory(device, info, allocator, out);

    atomic_fetch_add(&live, result == VK_SUCCESS);
    return result;
}

static VKAPI_ATTR void VKAPI_CALL free_memory(VkDevice device, VkDeviceMemory it, const VkAllocationCallbacks *allocator)
{
    atomic_fetch_sub(&live, it != VK_NULL_HANDLE);
    real_FreeMemory(device, it, allocator);
}

static PFN_vkDestroyDevice real_DestroyDevice;

static VKAPI_ATTR void VKAPI_CALL bottom_destroy_device(VkDevice device, const VkAllocationCallbacks *allocator)
{
    left = atomic_exchange(&live, 0);
    real_DestroyDevice(device, allocator);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL bottom_device(VkDevice device, const char *name)
{
    const PFN_vkVoidFunction own = vulkan_device(device, name);

#define X(object, info_type)                                       \
    if (own && !strcmp(name, "vkCreate" #object)) {                \
        real_Create##object = (PFN_vkCreate##object)own;           \
        return (PFN_vkVoidFunction)make_##object;                  \
    }                                                              \
    if (own && !strcmp(name, "vkDestroy" #object)) {               \
        real_Destroy##object = (PFN_vkDestroy##object)own;         \
        return (PFN_vkVoidFunction)end_##object;                   \
    }
    COUNTED(X)
#undef X
    if (own && !strcmp(name, "vkDestroyDevice")) {
        real_DestroyDevice = (PFN_vkDestroyDevice)own;
        return (PFN_vkVoidFunction)bottom_destroy_device;
    }
    if (own && !strcmp(name, "vkAllocateMemory")) {
        real_AllocateMemory = (PFN_vkAllocateMemory)own;
        return (PFN_vkVoidFunction)allocate_memory;
    }
    if (own && !strcmp(name, "vkFreeMemory")) {
        real_FreeMemory = (PFN_vkFreeMemory)own;
        return (PFN_vkVoidFunction)free_memory;
    }
    return own;
}

/* What lies in a chain for layers: each has to take its own link out of it. */
static void look_at_link(const void *chain, VkStructureType type)
{
    for (const VkLayerInstanceCreateInfo *it = chain; it; it = it->pNext)
        if (it->sType == type && it->function == VK_LAYER_LINK_INFO)
            links_taken = links_taken && !it->u.pLayerInfo;
}

static VKAPI_ATTR VkResult VKAPI_CALL bottom_create_instance(const VkInstanceCreateInfo *info,
                                                             const VkAllocationCallbacks *allocator, VkInstance *instance)
{
    const PFN_vkCreateInstance create = (PFN_vkCreateInstance)vulkan(NULL, "vkCreateInstance");
    const VkResult result = create(info, allocator, instance);

    look_at_link(info->pNext, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    if (result == VK_SUCCESS)
        put_key(*instance, &keys[0]);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL bottom_create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                                                           const VkAllocationCallbacks *allocator, VkDevice *device)
{
    const PFN_vkCreateDevice create = (PFN_vkCreateDevice)vulkan(instance_now, "vkCreateDevice");
    const VkResult result = create(physical, info, allocator, device);

    look_at_link(info->pNext, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    if (result == VK_SUCCESS)
        put_key(*device, &keys[1]);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL bottom_physical_devices(VkInstance instance, uint32_t *count, VkPhysicalDevice *list)
{
    const PFN_vkEnumeratePhysicalDevices real = (PFN_vkEnumeratePhysicalDevices)vulkan(instance, "vkEnumeratePhysicalDevices");
    const VkResult result = real(instance, count, list);

    for (uint32_t i = 0; list && result >= 0 && i < *count; i++)
        put_key(list[i], &keys[0]);
    return result;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL bottom_instance(VkInstance instance, const char *name)
{
    if (!strcmp(name, "vkGetInstanceProcAddr"))
        return (PFN_vkVoidFunction)bottom_instance;
    if (!strcmp(name, "vkCreateInstance"))
        return (PFN_vkVoidFunction)bottom_create_instance;
    if (!strcmp(name, "vkCreateDevice"))
        return (PFN_vkVoidFunction)bottom_create_device;
    if (!strcmp(name, "vkEnumeratePhysicalDevices"))
        return (PFN_vkVoidFunction)bottom_physical_devices;
    if (!strcmp(name, "vkGetDeviceProcAddr"))
        return (PFN_vkVoidFunction)bottom_device;
    return vulkan(instance, name);
}

/* --- The layer --- */

/* "NAME": "VALUE" of the manifest, and what the environment has. */
static bool is_set_so(const json_t *variables)
{
    const char *name;
    json_t *value;

    assert_int_equal(json_object_size(variables), 1);
    json_object_foreach((json_t *)(uintptr_t)variables, name, value) {
        const char *is = getenv(name);
        return is && !strcmp(is, json_string_value(value));
    }
    return false;
}

/* Any value disables. */
static bool is_there(const json_t *variables)
{
    const char *name;
    json_t *value;

    assert_int_equal(json_object_size(variables), 1);
    json_object_foreach((json_t *)(uintptr_t)variables, name, value)
        return getenv(name) != NULL;
    return false;
}

static void negotiate(const char *path)
{
    VkNegotiateLayerInterface asks = {.sType = LAYER_NEGOTIATE_INTERFACE_STRUCT,
                                      .loaderLayerInterfaceVersion = CURRENT_LOADER_LAYER_INTERFACE_VERSION};

    dll = LoadLibraryA(path);
    assert_non_null(dll);
    const PFN_vkNegotiateLoaderLayerInterfaceVersion ask = (PFN_vkNegotiateLoaderLayerInterfaceVersion)(void *)GetProcAddress(
        dll, "vkNegotiateLoaderLayerInterfaceVersion");
    assert_non_null(ask);
    assert_int_equal(ask(&asks), VK_SUCCESS);
    assert_int_equal(asks.loaderLayerInterfaceVersion, 2);
    assert_true(asks.pfnGetInstanceProcAddr && asks.pfnGetDeviceProcAddr && !asks.pfnGetPhysicalDeviceProcAddr);
    top_instance = asks.pfnGetInstanceProcAddr;
    top_device = asks.pfnGetDeviceProcAddr;
}

bool loader_begin(void)
{
    char path[1000];
    json_error_t error;

    vulkan = (PFN_vkGetInstanceProcAddr)(void *)GetProcAddress(LoadLibraryA("vulkan-1.dll"), "vkGetInstanceProcAddr");
    assert_non_null(vulkan);
    top_instance = bottom_instance;
    top_device = bottom_device;
    GetModuleFileNameA(NULL, path, sizeof path);
    char *name = strrchr(path, '\\') + 1;
    snprintf(name, sizeof path - (size_t)(name - path), "VkLayer_tandem_effect.json");
    json_t *manifest = json_load_file(path, 0, &error), *layer = json_object_get(manifest, "layer");
    const char *library = json_string_value(json_object_get(layer, "library_path"));
    assert_non_null(library);
    assert_string_equal(json_string_value(json_object_get(layer, "name")), "VK_LAYER_TANDEM_effect");
    /* Its own folder's, as it has one. */
    assert_true(library[0] == '.' && library[1] == '\\');
    snprintf(name, sizeof path - (size_t)(name - path), "%s", library + 2);
    const bool enabled =
        is_set_so(json_object_get(layer, "enable_environment")) && !is_there(json_object_get(layer, "disable_environment"));
    json_decref(manifest);
    if (enabled)
        negotiate(path);
    return enabled;
}

void loader_end(void)
{
    if (dll)
        assert_true(FreeLibrary(dll));
    dll = NULL;
}

/* --- The program's calls --- */

static VKAPI_ATTR VkResult VKAPI_CALL set_instance_data(VkInstance instance, void *object)
{
    assert_ptr_equal(instance, instance_now);
    put_key(object, &keys[0]);
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL set_device_data(VkDevice device, void *object)
{
    assert_ptr_equal(*(void **)device, &keys[1]);
    put_key(object, &keys[1]);
    return VK_SUCCESS;
}

VkResult loader_create_instance(const VkInstanceCreateInfo *info, VkInstance *instance)
{
    VkLayerInstanceLink below = {.pfnNextGetInstanceProcAddr = bottom_instance};
    VkLayerInstanceCreateInfo features = {.sType = VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO,
                                          .pNext = info->pNext,
                                          .function = VK_LOADER_FEATURES,
                                          .u.loaderFeatures = VK_LOADER_FEATURE_PHYSICAL_DEVICE_SORTING};
    VkLayerInstanceCreateInfo data = {.sType = VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO,
                                      .pNext = &features,
                                      .function = VK_LOADER_DATA_CALLBACK,
                                      .u.pfnSetInstanceLoaderData = set_instance_data};
    VkLayerInstanceCreateInfo link = {.sType = VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO,
                                      .pNext = &data,
                                      .function = VK_LAYER_LINK_INFO,
                                      .u.pLayerInfo = &below};
    VkInstanceCreateInfo with = *info;
    const PFN_vkCreateInstance create = (PFN_vkCreateInstance)top_instance(NULL, "vkCreateInstance");

    if (dll)
        with.pNext = &link;
    const VkResult result = create(&with, NULL, instance);
    instance_now = result == VK_SUCCESS ? *instance : VK_NULL_HANDLE;
    if (result == VK_SUCCESS)
        vulkan_device = (PFN_vkGetDeviceProcAddr)vulkan(instance_now, "vkGetDeviceProcAddr");
    return result;
}

VkResult loader_create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info, VkDevice *device)
{
    VkLayerDeviceLink below = {.pfnNextGetInstanceProcAddr = bottom_instance, .pfnNextGetDeviceProcAddr = bottom_device};
    VkLayerDeviceCreateInfo data = {.sType = VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO,
                                    .pNext = info->pNext,
                                    .function = VK_LOADER_DATA_CALLBACK,
                                    .u.pfnSetDeviceLoaderData = set_device_data};
    VkLayerDeviceCreateInfo link = {.sType = VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO,
                                    .pNext = &data,
                                    .function = VK_LAYER_LINK_INFO,
                                    .u.pLayerInfo = &below};
    VkDeviceCreateInfo with = *info;
    const PFN_vkCreateDevice create = (PFN_vkCreateDevice)top_instance(instance_now, "vkCreateDevice");

    if (dll)
        with.pNext = &link;
    return create(physical, &with, NULL, device);
}

VkResult loader_physical_device(VkPhysicalDevice *physical)
{
    uint32_t count = 1;
    const VkResult result = ((PFN_vkEnumeratePhysicalDevices)top_instance(instance_now, "vkEnumeratePhysicalDevices"))(
        instance_now, &count, physical);

    return result < 0 ? result : count ? VK_SUCCESS : VK_ERROR_INITIALIZATION_FAILED;
}

void loader_queue(VkDevice device, uint32_t family, VkQueue *queue)
{
    ((PFN_vkGetDeviceQueue)top_device(device, "vkGetDeviceQueue"))(device, family, 0, queue);
    put_key(*queue, &keys[1]);
}

VkResult loader_commands(VkDevice device, const VkCommandBufferAllocateInfo *info, VkCommandBuffer *commands)
{
    const VkResult result =
        ((PFN_vkAllocateCommandBuffers)top_device(device, "vkAllocateCommandBuffers"))(device, info, commands);

    for (uint32_t i = 0; result == VK_SUCCESS && i < info->commandBufferCount; i++)
        put_key(commands[i], &keys[1]);
    return result;
}

void loader_destroy_device(VkDevice device)
{
    ((PFN_vkDestroyDevice)top_device(device, "vkDestroyDevice"))(device, NULL);
}

void loader_destroy_instance(void)
{
    ((PFN_vkDestroyInstance)top_instance(instance_now, "vkDestroyInstance"))(instance_now, NULL);
    instance_now = VK_NULL_HANDLE;
}

PFN_vkVoidFunction loader_instance_function(const char *name)
{
    return top_instance(instance_now, name);
}

PFN_vkVoidFunction loader_device_function(VkDevice device, const char *name)
{
    return top_device(device, name);
}

PFN_vkVoidFunction loader_below(VkDevice device, const char *name)
{
    return bottom_device(device, name);
}

bool loader_links_were_taken(void)
{
    return links_taken;
}

int loader_left(void)
{
    return left;
}
