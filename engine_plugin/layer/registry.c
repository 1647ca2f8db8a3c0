/* Instances and devices by what the loader puts into each handle of theirs; and what is below them,
 * for sessions.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine_plugin/layer/layer.h"

/* --- What there is --- */

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static layer_instance *instances;
static layer_device *devices;

void *layer_key_of(const void *dispatchable)
{
    return *(void *const *)dispatchable;
}

layer_instance *layer_instance_of(const void *dispatchable)
{
    pthread_mutex_lock(&registry);
    layer_instance *it = instances;
    while (it && it->key != layer_key_of(dispatchable))
        it = it->next;
    pthread_mutex_unlock(&registry);
    return it;
}

layer_device *layer_device_of(const void *dispatchable)
{
    pthread_mutex_lock(&registry);
    layer_device *it = devices;
    while (it && it->key != layer_key_of(dispatchable))
        it = it->next;
    pthread_mutex_unlock(&registry);
    return it;
}

void layer_add_instance(layer_instance *it)
{
    pthread_mutex_lock(&registry);
    it->next = instances;
    instances = it;
    pthread_mutex_unlock(&registry);
}

void layer_add_device(layer_device *it)
{
    pthread_mutex_lock(&registry);
    it->next = devices;
    devices = it;
    pthread_mutex_unlock(&registry);
}

layer_instance *layer_take_instance(VkInstance handle)
{
    pthread_mutex_lock(&registry);
    layer_instance **link = &instances;
    while (*link && (*link)->handle != handle)
        link = &(*link)->next;
    layer_instance *it = *link;
    if (it)
        *link = it->next;
    /* Devices that the program forgot end with it, and their handles may be others' from now on. */
    for (layer_device **at = &devices; it && *at;)
        if ((*at)->instance == it)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    pthread_mutex_unlock(&registry);
    return it;
}

void layer_take_device(VkDevice handle)
{
    pthread_mutex_lock(&registry);
    layer_device **link = &devices;
    while (*link && (*link)->handle != handle)
        link = &(*link)->next;
    if (*link)
        *link = (*link)->next;
    pthread_mutex_unlock(&registry);
}

/* --- What is below, for the session --- */

/* What is allocated below the loader it does not know, nor do the layers in between. */
static VKAPI_ATTR VkResult VKAPI_CALL below_allocate(VkDevice device,
                                                     const VkCommandBufferAllocateInfo *info,
                                                     VkCommandBuffer *commands)
{
    const layer_device *d = layer_device_of(device);
    const VkResult result = d->fn.AllocateCommandBuffers(device, info, commands);

    for (uint32_t i = 0; result == VK_SUCCESS && i < info->commandBufferCount; i++)
        d->set_loader_data(device, commands[i]);
    return result;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL below_of_device(VkDevice device, const char *name)
{
    const layer_device *d = layer_device_of(device);

    if (!strcmp(name, "vkAllocateCommandBuffers"))
        return (PFN_vkVoidFunction)below_allocate;
    return d ? d->below(device, name) : NULL;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL layer_below(VkInstance instance, const char *name)
{
    const layer_instance *it = instance ? layer_instance_of(instance) : NULL;

    if (!it)
        return NULL;
    if (!strcmp(name, "vkGetInstanceProcAddr"))
        return (PFN_vkVoidFunction)layer_below;
    if (!strcmp(name, "vkGetDeviceProcAddr"))
        return (PFN_vkVoidFunction)below_of_device;
    return it->below(instance, name);
}
