/* What the loader asks of a layer: which functions are its own, and instances and devices as they
 * come and go.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/layer/control.h"
#include "engine_plugin/layer/enable.h"
#include "engine_plugin/layer/layer.h"
#include "engine_plugin/layer/present.h"
#include "interop/base.h"

/* --- Instances --- */

/* The loader's part of the chain that has the layer below this one; NULL: it is no loader. */
static VkLayerInstanceCreateInfo *instance_link(const VkInstanceCreateInfo *info)
{
    VkLayerInstanceCreateInfo *it = (void *)info->pNext;

    while (it && !(it->sType == VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO &&
                   it->function == VK_LAYER_LINK_INFO))
        it = (void *)it->pNext;
    return it;
}

static VkLayerDeviceCreateInfo *device_link(const VkDeviceCreateInfo *info,
                                            VkLayerFunction function)
{
    VkLayerDeviceCreateInfo *it = (void *)info->pNext;

    while (it &&
           !(it->sType == VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO && it->function == function))
        it = (void *)it->pNext;
    return it;
}

static bool load_instance(layer_instance *it)
{
    bool whole = true;

#define X(name)                                                    \
    it->fn.name = (PFN_vk##name)it->below(it->handle, "vk" #name); \
    whole = whole && it->fn.name;
    LAYER_INSTANCE_FUNCTIONS(X)
#undef X
#define X(name) it->fn.name = (PFN_vk##name)it->below(it->handle, "vk" #name);
    LAYER_INSTANCE_EXTRAS(X)
#undef X
    return whole;
}

/* Sessions need Vulkan 1.1, and are best with 1.2; a driver that has less refuses, or takes it as
 * its own. */
static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *asked,
                                                      const VkAllocationCallbacks *allocator,
                                                      VkInstance *instance)
{
    VkLayerInstanceCreateInfo *link = instance_link(asked);
    if (!link || !link->u.pLayerInfo)
        return VK_ERROR_INITIALIZATION_FAILED;
    VkLayerInstanceLink *const next = link->u.pLayerInfo->pNext;
    const PFN_vkGetInstanceProcAddr below = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    const PFN_vkCreateInstance create = (PFN_vkCreateInstance)below(NULL, "vkCreateInstance");
    VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO};
    VkInstanceCreateInfo info = *asked;
    layer_instance *it = calloc(1, sizeof *it);
    VkResult result;

    if (!create || !it) {
        free(it);
        return create ? VK_ERROR_OUT_OF_HOST_MEMORY : VK_ERROR_INITIALIZATION_FAILED;
    }
    if (asked->pApplicationInfo)
        application = *asked->pApplicationInfo;
    const uint32_t wished = application.apiVersion ? application.apiVersion : VK_API_VERSION_1_0;
    if (wished < VK_API_VERSION_1_2)
        application.apiVersion = VK_API_VERSION_1_2;
    info.pApplicationInfo = &application;
    link->u.pLayerInfo = next;
    result = create(&info, allocator, instance);
    if (result != VK_SUCCESS) { /* without a change, and as if this layer were none */
        application.apiVersion = wished;
        link->u.pLayerInfo = next;
        result = create(asked, allocator, instance);
    }
    if (result != VK_SUCCESS) {
        free(it);
        return result;
    }
    it->key = layer_key_of(*instance);
    it->handle = *instance;
    it->below = below;
    it->api_version = application.apiVersion;
    if (!load_instance(it))
        it->api_version = 0;
    layer_add_instance(it);
    return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL destroy_instance(VkInstance instance,
                                                   const VkAllocationCallbacks *allocator)
{
    layer_instance *it = instance ? layer_take_instance(instance) : NULL;

    if (it && it->fn.DestroyInstance)
        it->fn.DestroyInstance(instance, allocator);
    free(it);
}

/* --- Devices --- */

static bool load_device(layer_device *d)
{
    bool whole = true;

#define X(name)                                                 \
    d->fn.name = (PFN_vk##name)d->below(d->handle, "vk" #name); \
    whole = whole && d->fn.name;
    LAYER_DEVICE_FUNCTIONS(X)
#undef X
#define X(name) d->fn.name = (PFN_vk##name)d->below(d->handle, "vk" #name);
    LAYER_DEVICE_EXTRAS(X)
#undef X
    return whole;
}

static void free_device(layer_device *d)
{
    if (!d)
        return;
    for (uint32_t i = 0; i < d->extension_count; i++)
        free(d->extensions[i]);
    free(d->extensions);
    free(d->queues);
    free(d->spare);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static layer_device *new_device(layer_instance *instance, VkPhysicalDevice physical)
{
    layer_device *d = calloc(1, sizeof *d);

    if (d && pthread_mutex_init(&d->lock, NULL)) {
        free(d);
        d = NULL;
    }
    if (d) {
        d->instance = instance;
        d->physical = physical;
    }
    return d;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical,
                                                    const VkDeviceCreateInfo *asked,
                                                    const VkAllocationCallbacks *allocator,
                                                    VkDevice *device)
{
    VkLayerDeviceCreateInfo *link = device_link(asked, VK_LAYER_LINK_INFO);
    const VkLayerDeviceCreateInfo *callback = device_link(asked, VK_LOADER_DATA_CALLBACK);
    layer_instance *instance = layer_instance_of(physical);
    if (!link || !link->u.pLayerInfo || !instance)
        return VK_ERROR_INITIALIZATION_FAILED;
    VkLayerDeviceLink *const next = link->u.pLayerInfo->pNext;
    const PFN_vkGetDeviceProcAddr below = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    const PFN_vkCreateDevice create =
        (PFN_vkCreateDevice)link->u.pLayerInfo->pfnNextGetInstanceProcAddr(instance->handle,
                                                                           "vkCreateDevice");
    layer_device *d = new_device(instance, physical);
    layer_creation *c = calloc(1, sizeof *c);
    VkResult result = VK_ERROR_INITIALIZATION_FAILED;
    bool kept = false;

    if (!create || !d || !c) {
        free_device(d);
        free(c);
        return create ? VK_ERROR_OUT_OF_HOST_MEMORY : result;
    }
    link->u.pLayerInfo = next;
    if (callback && instance->api_version && layer_creation_make(c, d, asked)) {
        result = create(physical, &c->info, allocator, device);
        kept = result == VK_SUCCESS && layer_creation_keep(c, d);
        if (!kept)
            td_text(d->unable, sizeof d->unable,
                    "the device cannot be made with what Tandem uses (%d)", result);
    }
    layer_creation_free(c);
    free(c);
    if (result != VK_SUCCESS) {
        link->u.pLayerInfo = next;
        result = create(physical, asked, allocator, device);
    }
    if (result != VK_SUCCESS) {
        free_device(d);
        return result;
    }
    d->key = layer_key_of(*device);
    d->handle = *device;
    d->below = below;
    d->set_loader_data = callback ? callback->u.pfnSetDeviceLoaderData : NULL;
    if ((!load_device(d) || !kept) && !d->unable[0])
        td_text(d->unable, sizeof d->unable, "the device lacks functions of Vulkan");
    layer_add_device(d);
    if (d->fn.QueuePresentKHR)
        layer_control_begin();
    return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL destroy_device(VkDevice device,
                                                 const VkAllocationCallbacks *allocator)
{
    layer_device *d = device ? layer_device_of(device) : NULL;

    if (!d)
        return;
    layer_present_end(d); /* what ends the session looks its device up */
    layer_take_device(device);
    if (d->fn.DestroyDevice)
        d->fn.DestroyDevice(device, allocator);
    free_device(d);
}

/* --- Queues: which family each is of --- */

static void know_queue(layer_device *d, VkQueue queue, uint32_t family)
{
    bool known = !queue;

    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->queue_count; i++)
        known = known || d->queues[i].handle == queue;
    if (!known) {
        layer_queue *more = realloc(d->queues, (d->queue_count + 1) * sizeof *more);
        if (more) {
            d->queues = more;
            d->queues[d->queue_count++] = (layer_queue){queue, family};
        }
    }
    pthread_mutex_unlock(&d->lock);
}

static VKAPI_ATTR void VKAPI_CALL get_queue(VkDevice device, uint32_t family, uint32_t index,
                                            VkQueue *queue)
{
    layer_device *d = layer_device_of(device);

    d->fn.GetDeviceQueue(device, family, index, queue);
    know_queue(d, *queue, family);
}

static VKAPI_ATTR void VKAPI_CALL get_queue2(VkDevice device, const VkDeviceQueueInfo2 *info,
                                             VkQueue *queue)
{
    layer_device *d = layer_device_of(device);

    d->fn.GetDeviceQueue2(device, info, queue);
    /* One of protected memory is left alone. */
    if (!info->flags)
        know_queue(d, *queue, info->queueFamilyIndex);
}

/* --- Swapchains --- */

static VKAPI_ATTR VkResult VKAPI_CALL create_swapchain(VkDevice device,
                                                       const VkSwapchainCreateInfoKHR *info,
                                                       const VkAllocationCallbacks *allocator,
                                                       VkSwapchainKHR *swapchain)
{
    return layer_swapchain_create(layer_device_of(device), info, allocator, swapchain);
}

static VKAPI_ATTR void VKAPI_CALL destroy_swapchain(VkDevice device, VkSwapchainKHR swapchain,
                                                    const VkAllocationCallbacks *allocator)
{
    layer_swapchain_destroy(layer_device_of(device), swapchain, allocator);
}

static VKAPI_ATTR VkResult VKAPI_CALL present(VkQueue queue, const VkPresentInfoKHR *info)
{
    return layer_present(layer_device_of(queue), queue, info);
}

/* --- What the loader asks --- */

static VKAPI_ATTR VkResult VKAPI_CALL instance_layers(uint32_t *count,
                                                      VkLayerProperties *properties)
{
    const VkLayerProperties own = {.layerName = LAYER_NAME,
                                   .specVersion = VK_API_VERSION_1_3,
                                   .implementationVersion = 1,
                                   .description = "Effects of Tandem's on what is presented"};

    if (!properties) {
        *count = 1;
        return VK_SUCCESS;
    }
    if (!*count)
        return VK_INCOMPLETE;
    *count = 1;
    properties[0] = own;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL device_layers(VkPhysicalDevice physical, uint32_t *count,
                                                    VkLayerProperties *properties)
{
    (void)physical;
    return instance_layers(count, properties);
}

/* It has no extensions. */
static VKAPI_ATTR VkResult VKAPI_CALL instance_extensions(const char *layer, uint32_t *count,
                                                          VkExtensionProperties *properties)
{
    (void)properties;
    *count = 0;
    return layer && !strcmp(layer, LAYER_NAME) ? VK_SUCCESS : VK_ERROR_LAYER_NOT_PRESENT;
}

static VKAPI_ATTR VkResult VKAPI_CALL device_extensions(VkPhysicalDevice physical,
                                                        const char *layer, uint32_t *count,
                                                        VkExtensionProperties *properties)
{
    const layer_instance *it = layer_instance_of(physical);

    if (layer && !strcmp(layer, LAYER_NAME)) {
        *count = 0;
        return VK_SUCCESS;
    }
    return it ? it->fn.EnumerateDeviceExtensionProperties(physical, layer, count, properties)
              : VK_ERROR_INITIALIZATION_FAILED;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_instance(VkInstance instance, const char *name);
static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_device(VkDevice device, const char *name);

typedef struct hook {
    const char *name;
    PFN_vkVoidFunction function;
    bool extra; /* of an extension, or of a later Vulkan: ours where there is one below */
} hook;

static const hook of_instance[] = {
    {"vkGetInstanceProcAddr", (PFN_vkVoidFunction)get_instance, false},
    {"vkCreateInstance", (PFN_vkVoidFunction)create_instance, false},
    {"vkDestroyInstance", (PFN_vkVoidFunction)destroy_instance, false},
    {"vkCreateDevice", (PFN_vkVoidFunction)create_device, false},
    {"vkEnumerateInstanceLayerProperties", (PFN_vkVoidFunction)instance_layers, false},
    {"vkEnumerateInstanceExtensionProperties", (PFN_vkVoidFunction)instance_extensions, false},
    {"vkEnumerateDeviceLayerProperties", (PFN_vkVoidFunction)device_layers, false},
    {"vkEnumerateDeviceExtensionProperties", (PFN_vkVoidFunction)device_extensions, false},
};
static const hook of_device[] = {
    {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)get_device, false},
    {"vkDestroyDevice", (PFN_vkVoidFunction)destroy_device, false},
    {"vkGetDeviceQueue", (PFN_vkVoidFunction)get_queue, false},
    {"vkGetDeviceQueue2", (PFN_vkVoidFunction)get_queue2, true},
    {"vkCreateSwapchainKHR", (PFN_vkVoidFunction)create_swapchain, true},
    {"vkDestroySwapchainKHR", (PFN_vkVoidFunction)destroy_swapchain, true},
    {"vkQueuePresentKHR", (PFN_vkVoidFunction)present, true},
};

static const hook *find_hook(const hook *list, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(list[i].name, name))
            return &list[i];
    return NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_device(VkDevice device, const char *name)
{
    const layer_device *d = layer_device_of(device);
    const hook *it = find_hook(of_device, sizeof of_device / sizeof *of_device, name);

    if (it && !it->extra)
        return it->function;
    const PFN_vkVoidFunction below = d ? d->below(device, name) : NULL;
    return it && below ? it->function : below;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_instance(VkInstance instance, const char *name)
{
    const hook *it = find_hook(of_instance, sizeof of_instance / sizeof *of_instance, name);

    if (it)
        return it->function;
    const layer_instance *known = instance ? layer_instance_of(instance) : NULL;
    const PFN_vkVoidFunction below = known ? known->below(instance, name) : NULL;
    it = find_hook(of_device, sizeof of_device / sizeof *of_device, name);
    return it && (below || !it->extra) ? it->function : below;
}

VK_LAYER_EXPORT VKAPI_ATTR VkResult VKAPI_CALL
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *asked)
{
    if (!asked || asked->sType != LAYER_NEGOTIATE_INTERFACE_STRUCT ||
        asked->loaderLayerInterfaceVersion < 2)
        return VK_ERROR_INITIALIZATION_FAILED;
    asked->loaderLayerInterfaceVersion = 2;
    asked->pfnGetInstanceProcAddr = get_instance;
    asked->pfnGetDeviceProcAddr = get_device;
    asked->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
