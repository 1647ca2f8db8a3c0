/* See enable.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/layer/enable.h"

#include <stdlib.h>
#include <string.h>

#include "interop/base.h"

/* Of the structs that a VkDeviceCreateInfo may chain; 0: not known here. */
static size_t size_of(VkStructureType type)
{
    switch ((int)type) {
    case VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO:
        return sizeof(VkLayerDeviceCreateInfo);
    case VK_STRUCTURE_TYPE_DEVICE_GROUP_DEVICE_CREATE_INFO:
        return sizeof(VkDeviceGroupDeviceCreateInfo);
    case VK_STRUCTURE_TYPE_DEVICE_PRIVATE_DATA_CREATE_INFO:
        return sizeof(VkDevicePrivateDataCreateInfo);
    case VK_STRUCTURE_TYPE_DEVICE_MEMORY_OVERALLOCATION_CREATE_INFO_AMD:
        return sizeof(VkDeviceMemoryOverallocationCreateInfoAMD);
    case VK_STRUCTURE_TYPE_DEVICE_DIAGNOSTICS_CONFIG_CREATE_INFO_NV:
        return sizeof(VkDeviceDiagnosticsConfigCreateInfoNV);
    case VK_STRUCTURE_TYPE_DEVICE_DEVICE_MEMORY_REPORT_CREATE_INFO_EXT:
        return sizeof(VkDeviceDeviceMemoryReportCreateInfoEXT);
#define X(name, type_of_it) \
    case type_of_it:        \
        return sizeof(name);
#include "engine_plugin/layer/structs.inc"
#undef X
    default:
        return 0;
    }
}

static bool is_copy(const layer_creation *c, const void *node)
{
    return (const char *)node >= (const char *)c->copies &&
           (const char *)node < (const char *)(c->copies + c->copy_count);
}

/* A struct in front of the chain; NULL if there is no room. */
static VkBaseOutStructure *put_in_front(layer_creation *c, VkStructureType type)
{
    if (c->copy_count == LAYER_COPIES)
        return NULL;
    VkBaseOutStructure *node = (void *)c->copies[c->copy_count++];
    node->sType = type;
    node->pNext = (void *)c->info.pNext;
    c->info.pNext = node;
    return node;
}

/* Copies the chain up to a struct of unknown size: from there on it is the program's own. */
static void copy_chain(layer_creation *c)
{
    const void **link = &c->info.pNext;

    while (*link && c->copy_count < LAYER_COPIES) {
        const VkBaseInStructure *from = *link;
        const size_t bytes = size_of(from->sType);
        if (!bytes || bytes > sizeof c->copies[0])
            return;
        VkBaseOutStructure *to = (void *)c->copies[c->copy_count++];
        memcpy(to, from, bytes);
        *link = to;
        link = (const void **)&to->pNext;
    }
}

static void *find(const layer_creation *c, VkStructureType type)
{
    const VkBaseInStructure *it = c->info.pNext;

    while (it && it->sType != type)
        it = it->pNext;
    return (void *)it;
}

/* Sets a feature wherever it belongs, and says whether it is set. `in_12`: where it is in
 * VkPhysicalDeviceVulkan12Features, beside which a struct of its own is forbidden. */
static VkBool32 enable_feature(layer_creation *c, VkStructureType type, size_t offset, size_t in_12)
{
    char *node = find(c, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);

    if (node)
        offset = in_12;
    else
        node = find(c, type);
    if (!node)
        node = (char *)put_in_front(c, type);
    if (!node)
        return VK_FALSE;
    VkBool32 *it = (VkBool32 *)(node + offset);
    if (is_copy(c, node))
        *it = VK_TRUE;
    return *it;
}

/* What Tandem wants of features beyond the core's own, which are all that the list of requirements
 * has. */
static bool wants(const layer_creation *c, VkStructureType type)
{
    for (uint32_t i = 0; i < c->wanted.struct_count; i++)
        if (((const VkBaseInStructure *)c->wanted.structs[i])->sType == type)
            return true;
    return false;
}

static void enable_features(layer_creation *c, layer_device *d)
{
    VkPhysicalDeviceFeatures has;
    VkPhysicalDeviceFeatures2 *chained = find(c, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2);

    d->instance->fn.GetPhysicalDeviceFeatures(d->physical, &has);
    VkPhysicalDeviceFeatures *core = chained ? &chained->features : &c->plain;
    if (!chained) {
        if (c->info.pEnabledFeatures)
            c->plain = *c->info.pEnabledFeatures;
        c->info.pEnabledFeatures = &c->plain;
    }
    if (has.shaderStorageImageWriteWithoutFormat && (!chained || is_copy(c, chained)))
        core->shaderStorageImageWriteWithoutFormat = VK_TRUE;
    d->features = (VkPhysicalDeviceFeatures2){.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                              .pNext = &d->timeline,
                                              .features = *core};
    d->timeline = (VkPhysicalDeviceTimelineSemaphoreFeatures){
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES,
        .pNext = &d->address};
    d->address = (VkPhysicalDeviceBufferDeviceAddressFeatures){
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES};
    if (wants(c, d->timeline.sType))
        d->timeline.timelineSemaphore =
            enable_feature(c, d->timeline.sType,
                           offsetof(VkPhysicalDeviceTimelineSemaphoreFeatures, timelineSemaphore),
                           offsetof(VkPhysicalDeviceVulkan12Features, timelineSemaphore));
    if (wants(c, d->address.sType))
        d->address.bufferDeviceAddress = enable_feature(
            c, d->address.sType,
            offsetof(VkPhysicalDeviceBufferDeviceAddressFeatures, bufferDeviceAddress),
            offsetof(VkPhysicalDeviceVulkan12Features, bufferDeviceAddress));
}

static bool names_it(const VkDeviceCreateInfo *info, const char *name)
{
    for (uint32_t i = 0; i < info->enabledExtensionCount; i++)
        if (!strcmp(info->ppEnabledExtensionNames[i], name))
            return true;
    return false;
}

/* Part of Vulkan 1.2: an extension of it is not needed, and one that goes against another's may not
 * be there. */
static bool is_core(const layer_device *d, const char *name)
{
    VkPhysicalDeviceProperties properties;

    d->instance->fn.GetPhysicalDeviceProperties(d->physical, &properties);
    const bool is_12 = properties.apiVersion >= VK_API_VERSION_1_2 &&
                       d->instance->api_version >= VK_API_VERSION_1_2;
    return is_12 && (!strcmp(name, VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME) ||
                     !strcmp(name, VK_KHR_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME));
}

static bool add_extensions(layer_creation *c, const layer_device *d,
                           const VkDeviceCreateInfo *asked)
{
    uint32_t count = asked->enabledExtensionCount;

    c->names = calloc((size_t)count + INTEGRATION_EXTENSIONS, sizeof *c->names);
    if (!c->names)
        return false;
    for (uint32_t i = 0; i < count; i++)
        c->names[i] = asked->ppEnabledExtensionNames[i];
    for (uint32_t i = 0; i < c->wanted.extension_count; i++)
        if (!names_it(asked, c->wanted.extensions[i]) && !is_core(d, c->wanted.extensions[i]))
            c->names[count++] = c->wanted.extensions[i];
    c->info.enabledExtensionCount = count;
    c->info.ppEnabledExtensionNames = c->names;
    return true;
}

/* Devices of which nothing can be made. */
static const char *lack_of(const layer_device *d, const layer_creation *c)
{
    VkPhysicalDeviceProperties properties;
    const VkDeviceGroupDeviceCreateInfo *group =
        find(c, VK_STRUCTURE_TYPE_DEVICE_GROUP_DEVICE_CREATE_INFO);

    d->instance->fn.GetPhysicalDeviceProperties(d->physical, &properties);
    if (properties.apiVersion < VK_API_VERSION_1_1 || d->instance->api_version < VK_API_VERSION_1_1)
        return "the device has no Vulkan 1.1";
    if (group && group->physicalDeviceCount > 1)
        return "the device is a group of several";
    if (!names_it(&c->info, VK_KHR_SWAPCHAIN_EXTENSION_NAME))
        return "the program presents nothing with this device";
    /* Vulkan forbids the two together. */
    if (names_it(&c->info, VK_EXT_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME))
        return "the program uses VK_EXT_buffer_device_address";
    return NULL;
}

bool layer_creation_make(layer_creation *c, layer_device *d, const VkDeviceCreateInfo *asked)
{
    memset(c, 0, sizeof *c);
    c->info = *asked;
    const char *lack = lack_of(d, c);
    if (lack) {
        td_text(d->unable, sizeof d->unable, "%s", lack);
        return false;
    }
    if (!integrate_enable(&c->wanted, layer_below, d->instance->handle, d->physical, d->unable,
                          sizeof d->unable))
        return false;
    if (!add_extensions(c, d, asked)) {
        td_text(d->unable, sizeof d->unable, "there is no memory");
        return false;
    }
    copy_chain(c);
    enable_features(c, d);
    return true;
}

void layer_creation_free(layer_creation *c)
{
    free(c->names);
    c->names = NULL;
}

bool layer_creation_keep(const layer_creation *c, layer_device *d)
{
    d->extensions = calloc((size_t)c->info.enabledExtensionCount + 1, sizeof *d->extensions);
    for (uint32_t i = 0; d->extensions && i < c->info.enabledExtensionCount; i++) {
        const size_t bytes = strlen(c->names[i]) + 1;
        d->extensions[i] = malloc(bytes);
        if (!d->extensions[i])
            return false;
        memcpy(d->extensions[i], c->names[i], bytes);
        d->extension_count++;
    }
    return d->extensions != NULL;
}
