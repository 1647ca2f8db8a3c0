/* The engine's device: what to enable on it, what was enabled, the function table.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/vk/table.h"

/* One answer of a two-call enumeration; NULL with *count 0 where it fails. */
static VkExtensionProperties *enumerate(PFN_vkEnumerateInstanceExtensionProperties of_instance,
                                        PFN_vkEnumerateDeviceExtensionProperties of_device, VkPhysicalDevice device,
                                        uint32_t *count)
{
    VkExtensionProperties *list = NULL;
    VkResult result = VK_INCOMPLETE;

    for (int tries = 0; tries < 4 && result == VK_INCOMPLETE; tries++) {
        *count = 0;
        result = of_device ? of_device(device, NULL, count, NULL) : of_instance(NULL, count, NULL);
        if (result != VK_SUCCESS || *count == 0)
            break;
        free(list);
        list = calloc(*count, sizeof *list);
        if (!list)
            break;
        result = of_device ? of_device(device, NULL, count, list) : of_instance(NULL, count, list);
    }
    if (result != VK_SUCCESS || !list) {
        free(list);
        list = NULL;
        *count = 0;
    }
    return list;
}

static bool offered(const VkExtensionProperties *list, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(list[i].extensionName, name) == 0)
            return true;
    return false;
}

static bool offers_extension(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, VkPhysicalDevice physical_device,
                             const char *name, bool of_device)
{
    PFN_vkEnumerateInstanceExtensionProperties of_instance =
        (PFN_vkEnumerateInstanceExtensionProperties)gipa(NULL, "vkEnumerateInstanceExtensionProperties");
    PFN_vkEnumerateDeviceExtensionProperties of =
        of_device ? (PFN_vkEnumerateDeviceExtensionProperties)gipa(instance, "vkEnumerateDeviceExtensionProperties") : NULL;
    VkExtensionProperties *list = NULL;
    uint32_t count = 0;
    bool found;

    if (of_device ? of != NULL : of_instance != NULL)
        list = enumerate(of_instance, of, physical_device, &count);
    found = offered(list, count, name);
    free(list);
    return found;
}

static bool offers_feature(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, VkPhysicalDevice physical_device,
                           const td_vk_item *item)
{
    enum { MOST_BYTES = 512 }; /* of a struct of features */
    PFN_vkGetPhysicalDeviceProperties get_properties =
        (PFN_vkGetPhysicalDeviceProperties)gipa(instance, "vkGetPhysicalDeviceProperties");
    PFN_vkGetPhysicalDeviceFeatures2 get_features =
        (PFN_vkGetPhysicalDeviceFeatures2)gipa(instance, "vkGetPhysicalDeviceFeatures2");
    VkPhysicalDeviceProperties properties = {0};
    union {
        VkBaseOutStructure base;
        unsigned char bytes[MOST_BYTES];
    } feature = {.base = {.sType = item->feature_struct}};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &feature};
    VkBool32 there = VK_FALSE;

    if (!get_properties || !get_features || item->feature_struct_bytes > MOST_BYTES)
        return false;
    get_properties(physical_device, &properties);
    if (properties.apiVersion < VK_API_VERSION_1_1 ||
        (properties.apiVersion < VK_API_VERSION_1_2 &&
         !offers_extension(gipa, instance, physical_device, item->extension, true)))
        return false;
    get_features(physical_device, &features);
    memcpy(&there, feature.bytes + item->feature_offset, sizeof there);
    return there == VK_TRUE;
}

bool td_vk_offers(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, VkPhysicalDevice physical_device,
                  const td_vk_item *item)
{
    if (item->kind != TD_VK_INSTANCE_EXTENSION && (!instance || !physical_device))
        return false;
    if (item->kind == TD_VK_FEATURE)
        return offers_feature(gipa, instance, physical_device, item);
    return offers_extension(gipa, instance, physical_device, item->name, item->kind == TD_VK_DEVICE_EXTENSION);
}

static void note_device(td_vk_caps *caps, const VkPhysicalDeviceIDProperties *id)
{
    static_assert(sizeof id->deviceLUID == sizeof caps->adapter.luid, "a LUID has 8 bytes");
    memcpy(caps->device_uuid, id->deviceUUID, sizeof caps->device_uuid);
    caps->adapter = (td_adapter){.known = id->deviceLUIDValid};
    if (!id->deviceLUIDValid)
        return;
    memcpy(caps->adapter.luid, id->deviceLUID, sizeof caps->adapter.luid);
    caps->adapter.node_mask = id->deviceNodeMask;
}

tandem_status td_vk_identify(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, VkPhysicalDevice physical_device,
                             td_vk_caps *caps, char *why, size_t why_bytes)
{
    PFN_vkGetPhysicalDeviceProperties2 get =
        (PFN_vkGetPhysicalDeviceProperties2)gipa(instance, "vkGetPhysicalDeviceProperties2");
    VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &id};

    if (!get)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the instance has no vkGetPhysicalDeviceProperties2");
    get(physical_device, &properties);
    if (properties.properties.apiVersion < VK_API_VERSION_1_1)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "'%s' is of Vulkan %u.%u: 1.1 is the least",
                       properties.properties.deviceName, VK_API_VERSION_MAJOR(properties.properties.apiVersion),
                       VK_API_VERSION_MINOR(properties.properties.apiVersion));
    snprintf(caps->name, sizeof caps->name, "%s", properties.properties.deviceName);
    note_device(caps, &id);
    return TANDEM_OK;
}

static bool enabled(const td_vk_desc *desc, const char *name)
{
    for (uint32_t i = 0; i < desc->enabled_extension_count; i++)
        if (strcmp(desc->enabled_extensions[i], name) == 0)
            return true;
    return false;
}

static bool timeline_enabled(const td_vk_desc *desc)
{
    const VkPhysicalDeviceFeatures2 *features = desc->enabled_features;

    if (desc->api_version < VK_API_VERSION_1_2 && !enabled(desc, VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME))
        return false;
    if (!features)
        return true;
    for (const VkBaseInStructure *s = features->pNext; s; s = s->pNext) {
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES &&
            ((const VkPhysicalDeviceTimelineSemaphoreFeatures *)s)->timelineSemaphore)
            return true;
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES &&
            ((const VkPhysicalDeviceVulkan12Features *)s)->timelineSemaphore)
            return true;
    }
    return false;
}

static bool addresses_enabled(const td_vk_desc *desc)
{
    if (desc->api_version < VK_API_VERSION_1_2 && !enabled(desc, VK_KHR_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME))
        return false;
    for (const VkBaseInStructure *s = desc->enabled_features ? desc->enabled_features->pNext : NULL; s; s = s->pNext) {
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES &&
            ((const VkPhysicalDeviceBufferDeviceAddressFeatures *)s)->bufferDeviceAddress)
            return true;
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES &&
            ((const VkPhysicalDeviceVulkan12Features *)s)->bufferDeviceAddress)
            return true;
    }
    return false;
}

static tandem_status check_desc(const td_vk_desc *desc, char *why, size_t why_bytes)
{
    if (!desc->get_instance_proc_addr)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "get_instance_proc_addr is NULL");
    if (!desc->instance)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "instance is VK_NULL_HANDLE");
    if (!desc->physical_device)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "physical_device is VK_NULL_HANDLE");
    if (!desc->device)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "device is VK_NULL_HANDLE");
    if (desc->enabled_extension_count && !desc->enabled_extensions)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "enabled_extensions is NULL, enabled_extension_count is %u",
                       desc->enabled_extension_count);
    for (uint32_t i = 0; i < desc->enabled_extension_count; i++)
        if (!desc->enabled_extensions[i])
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "enabled_extensions[%u] is NULL", i);
    if (desc->further_family_count && !desc->further_families)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "further_families is NULL, further_family_count is %u",
                       desc->further_family_count);
    if (desc->further_family_count >= TD_VK_FAMILIES)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "further_family_count is %u, more than %d",
                       desc->further_family_count, TD_VK_FAMILIES - 1);
    if (desc->enabled_features && desc->enabled_features->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "enabled_features->sType is %d, not VkPhysicalDeviceFeatures2's",
                       (int)desc->enabled_features->sType);
    if (VK_API_VERSION_VARIANT(desc->api_version) != 0 || desc->api_version < VK_API_VERSION_1_1)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "api_version is %u.%u: Vulkan 1.1 is the least",
                       VK_API_VERSION_MAJOR(desc->api_version), VK_API_VERSION_MINOR(desc->api_version));
    return TANDEM_OK;
}

static tandem_status load_table(td_vk *vk, const td_vk_desc *desc, bool core_timeline, char *why, size_t why_bytes)
{
    td_vk_table *fn = &vk->fn;
    PFN_vkGetInstanceProcAddr gipa = desc->get_instance_proc_addr;

#define MISSING(name) td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the device has no vk" #name)
#define X(name)                                                                                                        \
    fn->name = (PFN_vk##name)gipa(vk->instance, "vk" #name);                                                           \
    if (!fn->name)                                                                                                     \
        return MISSING(name);
    TD_VK_INSTANCE_FUNCTIONS(X)
#undef X
#define X(name)                                                                                                        \
    fn->name = (PFN_vk##name)fn->GetDeviceProcAddr(vk->device, "vk" #name);                                            \
    if (!fn->name)                                                                                                     \
        return MISSING(name);
    TD_VK_DEVICE_FUNCTIONS(X)
#undef X
    vk->caps.timeline = timeline_enabled(desc);
#define X(name)                                                                                                        \
    if (vk->caps.timeline)                                                                                             \
        fn->name = (PFN_vk##name)fn->GetDeviceProcAddr(vk->device, core_timeline ? "vk" #name : "vk" #name "KHR");     \
    if (vk->caps.timeline && !fn->name)                                                                                \
        return MISSING(name);
    TD_VK_TIMELINE_FUNCTIONS(X)
#undef X
#undef MISSING

#define LOAD(name) (fn->name = (PFN_vk##name)fn->GetDeviceProcAddr(vk->device, "vk" #name))
    if (enabled(desc, td_opaque_memory_extension))
        fn->get_memory_handle = (td_vk_get_handle)fn->GetDeviceProcAddr(vk->device, td_opaque.get_memory);
    if (enabled(desc, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME) &&
        enabled(desc, VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME))
        LOAD(GetMemoryFdPropertiesKHR);
    if (enabled(desc, td_opaque_semaphore_extension))
        fn->get_semaphore_handle = (td_vk_get_handle)fn->GetDeviceProcAddr(vk->device, td_opaque.get_semaphore);
    if (enabled(desc, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME))
        LOAD(GetMemoryHostPointerPropertiesEXT);
    if (enabled(desc, VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME))
        LOAD(CmdPushDescriptorSetKHR);
    if (enabled(desc, VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME))
        LOAD(GetCalibratedTimestampsEXT);
    if (enabled(desc, VK_NVX_BINARY_IMPORT_EXTENSION_NAME)) {
        LOAD(CreateCuModuleNVX);
        LOAD(CreateCuFunctionNVX);
        LOAD(DestroyCuModuleNVX);
        LOAD(DestroyCuFunctionNVX);
        LOAD(CmdCuLaunchKernelNVX);
    }
    if (addresses_enabled(desc))
        fn->GetBufferDeviceAddress = (PFN_vkGetBufferDeviceAddress)fn->GetDeviceProcAddr(
            vk->device, core_timeline ? "vkGetBufferDeviceAddress" : "vkGetBufferDeviceAddressKHR");
    /* An instance extension: the loader answers only where it was enabled. */
    vk->caps.debug_utils = gipa(vk->instance, "vkCreateDebugUtilsMessengerEXT") && LOAD(SetDebugUtilsObjectNameEXT) &&
                           LOAD(CmdBeginDebugUtilsLabelEXT) && LOAD(CmdEndDebugUtilsLabelEXT);
    if (desc->enabled_features) {
        vk->caps.read_without_format = desc->enabled_features->features.shaderStorageImageReadWithoutFormat;
        vk->caps.write_without_format = desc->enabled_features->features.shaderStorageImageWriteWithoutFormat;
    }
#undef LOAD
    return TANDEM_OK;
}

static bool can_calibrate(td_vk *vk, const td_vk_desc *desc)
{
    PFN_vkGetPhysicalDeviceCalibrateableTimeDomainsEXT get =
        (PFN_vkGetPhysicalDeviceCalibrateableTimeDomainsEXT)desc->get_instance_proc_addr(
            vk->instance, "vkGetPhysicalDeviceCalibrateableTimeDomainsEXT");
    VkTimeDomainEXT domains[16];
    uint32_t count = 16;
    bool device = false, monotonic = false;

    if (!get || vk->timestamp_mask == 0 || get(vk->physical_device, &count, domains) < 0)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        device = device || domains[i] == VK_TIME_DOMAIN_DEVICE_EXT;
        monotonic = monotonic || domains[i] == VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT;
    }
    return device && monotonic;
}

static tandem_status check_family(td_vk *vk, char *why, size_t why_bytes)
{
    VkQueueFamilyProperties families[64];
    uint32_t count = 64, bits;

    vk->fn.GetPhysicalDeviceQueueFamilyProperties(vk->physical_device, &count, families);
    if (vk->queue_family >= count)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "queue_family is %u, the device has %u", vk->queue_family,
                       count);
    for (uint32_t i = 1; i < vk->family_count; i++) {
        if (vk->families[i] >= count)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "further_families[%u] is %u, the device has %u", i - 1,
                           vk->families[i], count);
        for (uint32_t k = 0; k < i; k++)
            if (vk->families[i] == vk->families[k])
                return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "further_families[%u] is %u, which was named before", i - 1,
                               vk->families[i]);
    }
    bits = families[vk->queue_family].timestampValidBits;
    vk->timestamp_mask = bits >= 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
    vk->caps.computes = families[vk->queue_family].queueFlags & VK_QUEUE_COMPUTE_BIT;
    return TANDEM_OK;
}

static void query_properties(td_vk *vk, bool timeline_known, bool driver_known)
{
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
    VkPhysicalDeviceTimelineSemaphoreProperties timeline = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_PROPERTIES};
    VkPhysicalDeviceMaintenance3Properties maintenance = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES};
    VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES, .pNext = &maintenance};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &id};
    VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    const VkPhysicalDeviceLimits *limits = &properties.properties.limits;

    if (vk->fn.GetMemoryHostPointerPropertiesEXT) {
        host.pNext = properties.pNext;
        properties.pNext = &host;
    }
    if (timeline_known) {
        timeline.pNext = properties.pNext;
        properties.pNext = &timeline;
    }
    if (driver_known) {
        driver.pNext = properties.pNext;
        properties.pNext = &driver;
    }
    vk->fn.GetPhysicalDeviceProperties2(vk->physical_device, &properties);
    vk->fn.GetPhysicalDeviceMemoryProperties(vk->physical_device, &vk->memory);
    snprintf(vk->caps.name, sizeof vk->caps.name, "%s", properties.properties.deviceName);
    note_device(&vk->caps, &id);
    memcpy(vk->caps.driver_uuid, id.driverUUID, sizeof vk->caps.driver_uuid);
    vk->caps.driver_id = driver.driverID;
    vk->caps.driver_version = properties.properties.driverVersion;
    vk->caps.host_alignment = host.minImportedHostPointerAlignment;
    vk->caps.max_storage_range = limits->maxStorageBufferRange;
    vk->caps.timestamp_period = limits->timestampPeriod;
    vk->storage_alignment = limits->minStorageBufferOffsetAlignment;
    vk->max_groups[0] = limits->maxComputeWorkGroupCount[0];
    vk->max_groups[1] = limits->maxComputeWorkGroupCount[1];
    vk->caps.max_descriptors = limits->maxPerStageDescriptorStorageBuffers;
    if (limits->maxPerStageDescriptorSampledImages < vk->caps.max_descriptors)
        vk->caps.max_descriptors = limits->maxPerStageDescriptorSampledImages;
    if (limits->maxPerStageDescriptorStorageImages < vk->caps.max_descriptors)
        vk->caps.max_descriptors = limits->maxPerStageDescriptorStorageImages;
    vk->max_timeline_difference = timeline.maxTimelineSemaphoreValueDifference;
    vk->max_allocation_bytes = 0;
    for (uint32_t i = 0; i < vk->memory.memoryHeapCount; i++)
        if (vk->memory.memoryHeaps[i].size > vk->max_allocation_bytes)
            vk->max_allocation_bytes = vk->memory.memoryHeaps[i].size;
    if (maintenance.maxMemoryAllocationSize < vk->max_allocation_bytes)
        vk->max_allocation_bytes = maintenance.maxMemoryAllocationSize;
}

static bool buffers_exportable(td_vk *vk)
{
    VkPhysicalDeviceExternalBufferInfo info = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
                                               .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                                        VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                                        VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                                               .handleType = (VkExternalMemoryHandleTypeFlagBits)td_opaque.memory_type};
    VkExternalBufferProperties properties = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};

    vk->fn.GetPhysicalDeviceExternalBufferProperties(vk->physical_device, &info, &properties);
    return properties.externalMemoryProperties.externalMemoryFeatures & VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT;
}

static bool timelines_exportable(td_vk *vk)
{
    VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    VkPhysicalDeviceExternalSemaphoreInfo info = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_SEMAPHORE_INFO,
                                                  .pNext = &type,
                                                  .handleType =
                                                      (VkExternalSemaphoreHandleTypeFlagBits)td_opaque.semaphore_type};
    VkExternalSemaphoreProperties properties = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_SEMAPHORE_PROPERTIES};

    vk->fn.GetPhysicalDeviceExternalSemaphoreProperties(vk->physical_device, &info, &properties);
    return properties.externalSemaphoreFeatures & VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT;
}

static bool driver_offers(td_vk *vk, const char *name)
{
    uint32_t count = 0;
    VkExtensionProperties *list =
        enumerate(NULL, vk->fn.EnumerateDeviceExtensionProperties, vk->physical_device, &count);
    bool found = offered(list, count, name);

    free(list);
    return found;
}

/* Of an extension that cannot be used: why not. `functions`: those of it were found. */
static const char *lack_of_extension(td_vk *vk, const td_vk_desc *desc, const char *name, bool functions)
{
    if (!enabled(desc, name))
        return driver_offers(vk, name) ? "is not enabled" : "is not offered by the driver";
    return functions ? NULL : "is enabled, but the driver lacks functions of it";
}

/* What each capability takes, and the capabilities that follow. */
static void find_lacks(td_vk *vk, const td_vk_desc *desc)
{
    const td_vk_table *fn = &vk->fn;
    td_vk_caps *caps = &vk->caps;
    td_vk_lacks *lacks = &caps->lacks;

    lacks->timeline_feature = caps->timeline ? NULL : "is not enabled";
    lacks->address_feature = addresses_enabled(desc) ? NULL : "is not enabled";
    lacks->memory_export = lack_of_extension(vk, desc, td_opaque_memory_extension, fn->get_memory_handle != NULL);
    if (!lacks->memory_export && !buffers_exportable(vk))
        lacks->memory_export = "is enabled, but the driver cannot export buffers";
    lacks->semaphore_export = lack_of_extension(vk, desc, td_opaque_semaphore_extension, fn->get_semaphore_handle != NULL);
    if (!lacks->semaphore_export && caps->timeline && !timelines_exportable(vk))
        lacks->semaphore_export = "is enabled, but the driver cannot export timeline semaphores";
    lacks->memory_host = lack_of_extension(vk, desc, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME,
                                           fn->GetMemoryHostPointerPropertiesEXT != NULL);
    lacks->dma_buf = lack_of_extension(vk, desc, VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME,
                                       fn->GetMemoryFdPropertiesKHR != NULL);
    lacks->push_descriptor =
        lack_of_extension(vk, desc, VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME, fn->CmdPushDescriptorSetKHR != NULL);
    lacks->calibrated = lack_of_extension(vk, desc, VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME,
                                          fn->GetCalibratedTimestampsEXT != NULL);
    if (!lacks->calibrated && !can_calibrate(vk, desc))
        lacks->calibrated = "is enabled, but not for the device's clock and CLOCK_MONOTONIC";
    lacks->binary_import = lack_of_extension(vk, desc, VK_NVX_BINARY_IMPORT_EXTENSION_NAME,
                                             fn->CreateCuModuleNVX && fn->CreateCuFunctionNVX &&
                                                 fn->DestroyCuModuleNVX && fn->DestroyCuFunctionNVX &&
                                                 fn->CmdCuLaunchKernelNVX);
    if (!lacks->address_feature && !fn->GetBufferDeviceAddress)
        lacks->address_feature = "is enabled, but the driver lacks vkGetBufferDeviceAddress";
    caps->export_memory = !lacks->memory_export;
    caps->export_timeline = caps->timeline && !lacks->semaphore_export;
    caps->import_host = !lacks->memory_host;
    caps->import_dma_buf = !lacks->dma_buf;
    caps->push_descriptor = !lacks->push_descriptor;
    caps->calibrated = !lacks->calibrated;
    caps->inline_kernels = !lacks->binary_import && !lacks->address_feature && caps->timeline && caps->computes;
}

tandem_status td_vk_open(const td_vk_desc *desc, const td_log *log, td_vk **out, char *why, size_t why_bytes)
{
    VkPhysicalDeviceProperties properties;
    tandem_status status;
    td_vk *vk;

    if (!out)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "out is NULL");
    *out = NULL;
    if (!desc)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "desc is NULL");
    status = check_desc(desc, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    vk = calloc(1, sizeof *vk);
    if (!vk)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "%zu bytes of host memory", sizeof *vk);
    if (pthread_mutex_init(&vk->lock, NULL)) {
        free(vk);
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a lock");
    }
    if (log)
        vk->log = *log;
    vk->instance = desc->instance;
    vk->physical_device = desc->physical_device;
    vk->device = desc->device;
    vk->queue_family = vk->families[0] = desc->queue_family;
    vk->family_count = 1 + desc->further_family_count;
    for (uint32_t i = 1; i < vk->family_count; i++)
        vk->families[i] = desc->further_families[i - 1];

    status = load_table(vk, desc, desc->api_version >= VK_API_VERSION_1_2, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    vk->fn.GetPhysicalDeviceProperties(vk->physical_device, &properties);
    if (properties.apiVersion < VK_API_VERSION_1_1) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s has Vulkan %u.%u: 1.1 is the least",
                         properties.deviceName, VK_API_VERSION_MAJOR(properties.apiVersion),
                         VK_API_VERSION_MINOR(properties.apiVersion));
        goto fail;
    }
    status = check_family(vk, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    query_properties(vk, properties.apiVersion >= VK_API_VERSION_1_2 ||
                             enabled(desc, VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME),
                     desc->api_version >= VK_API_VERSION_1_2);
    find_lacks(vk, desc);
    td_logf(&vk->log, TD_LOG_DEBUG, "%s: memory is %sexported, timelines are %sexported", vk->caps.name,
            vk->caps.export_memory ? "" : "not ", vk->caps.export_timeline ? "" : "not ");
    *out = vk;
    return TANDEM_OK;

fail:
    td_vk_close(&vk);
    return status;
}

void td_vk_close(td_vk **vk)
{
    if (!vk || !*vk)
        return;
    while ((*vk)->left) {
        td_vk_left *left = (*vk)->left;

        (*vk)->left = left->next;
        if (!left->end(left))
            td_logf(&(*vk)->log, TD_LOG_WARN, "'%s' still uses what was left behind: that is never freed",
                    (*vk)->caps.name);
    }
    if (!(*vk)->in_use)
        td_vk_pipelines_free(*vk);
    td_vk_exports_free(*vk);
    pthread_mutex_destroy(&(*vk)->lock);
    free(*vk);
    *vk = NULL;
}

void td_vk_keep(td_vk *vk)
{
    vk->in_use = true;
}

void td_vk_leave(td_vk *vk, td_vk_left *left)
{
    pthread_mutex_lock(&vk->lock);
    left->next = vk->left;
    vk->left = left;
    pthread_mutex_unlock(&vk->lock);
}

const td_vk_caps *td_vk_get_caps(const td_vk *vk)
{
    return vk ? &vk->caps : NULL;
}

tandem_status td_vk_calibrate(td_vk *vk, uint64_t *device_ns, uint64_t *monotonic_ns)
{
    VkCalibratedTimestampInfoEXT infos[2] = {
        {.sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, .timeDomain = VK_TIME_DOMAIN_DEVICE_EXT},
        {.sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, .timeDomain = VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT}};
    uint64_t ticks[2], deviation;
    VkResult result;

    if (!vk || !device_ns || !monotonic_ns)
        return TANDEM_ERROR_ARG;
    if (!vk->caps.calibrated)
        return TANDEM_ERROR_UNSUPPORTED;
    result = vk->fn.GetCalibratedTimestampsEXT(vk->device, 2, infos, ticks, &deviation);
    if (result != VK_SUCCESS)
        return td_vk_result(result, "vkGetCalibratedTimestampsEXT", NULL, 0);
    /* double would round ticks beyond 2^53 */
    *device_ns = (uint64_t)((long double)(ticks[0] & vk->timestamp_mask) * (long double)vk->caps.timestamp_period);
    *monotonic_ns = ticks[1];
    return TANDEM_OK;
}
