/* See setup.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/setup/setup.h"

enum { MOST_DEVICES = 16, MOST_FAMILIES = 32 };

#define LOAD(name) (PFN_vk##name) get(instance, "vk" #name)

bool setup_loader(td_library **library, PFN_vkGetInstanceProcAddr *get, char *why, size_t why_bytes)
{
    if (td_library_open(td_library_vulkan, library, why, why_bytes) == TANDEM_OK)
        *(void **)get = td_library_symbol(*library, "vkGetInstanceProcAddr");
    if (*get)
        return true;
    td_library_close(library);
    td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s is not installed", td_library_vulkan);
    return false;
}

static VkResult explain(VkResult result, char *why, size_t why_bytes)
{
    td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
            result == VK_ERROR_INCOMPATIBLE_DRIVER ? "no Vulkan driver is installed"
            : result == VK_ERROR_LAYER_NOT_PRESENT ? "VK_LAYER_KHRONOS_validation is not installed"
                                                   : "vkCreateInstance returned %d",
            (int)result);
    return result;
}

VkResult setup_instance(const setup_instance_desc *desc, VkInstance *instance, VkDebugUtilsMessengerEXT *messenger,
                        char *why, size_t why_bytes)
{
    const PFN_vkCreateInstance create = (PFN_vkCreateInstance)desc->get(NULL, "vkCreateInstance");
    static const char layer[] = "VK_LAYER_KHRONOS_validation";
    const char *const layers[] = {layer};
    const VkDebugUtilsMessengerCreateInfoEXT listener = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
        .pfnUserCallback = desc->on_message,
        .pUserData = desc->user};
    const VkValidationFeatureEnableEXT synchronisation = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
    const VkValidationFeaturesEXT validation = {.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                                .pNext = &listener, /* of how the instance itself is made */
                                                .enabledValidationFeatureCount = 1,
                                                .pEnabledValidationFeatures = &synchronisation};
    integration_enabled enabled = {0};
    for (uint32_t i = 0; i < desc->extension_count; i++)
        integrate_enable_extension(&enabled, desc->extensions[i]);
    if (!integrate_enable(&enabled, desc->get, VK_NULL_HANDLE, VK_NULL_HANDLE, why, why_bytes))
        return VK_ERROR_EXTENSION_NOT_PRESENT;
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .pApplicationName = desc->application,
                                           .apiVersion = desc->api_version};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pNext = desc->on_message ? &validation : NULL,
                                       .pApplicationInfo = &application,
                                       .enabledLayerCount = desc->on_message ? 1 : 0,
                                       .ppEnabledLayerNames = layers,
                                       .enabledExtensionCount = enabled.extension_count,
                                       .ppEnabledExtensionNames = enabled.extensions};
    *messenger = VK_NULL_HANDLE;
    VkResult result = create ? create(&info, NULL, instance) : VK_ERROR_INITIALIZATION_FAILED;
    if (result != VK_SUCCESS) {
        *instance = VK_NULL_HANDLE;
        return explain(result, why, why_bytes);
    }
    if (!desc->on_message)
        return VK_SUCCESS;
    const PFN_vkCreateDebugUtilsMessengerEXT listen =
        (PFN_vkCreateDebugUtilsMessengerEXT)desc->get(*instance, "vkCreateDebugUtilsMessengerEXT");
    result = listen ? listen(*instance, &listener, NULL, messenger) : VK_ERROR_EXTENSION_NOT_PRESENT;
    if (result == VK_SUCCESS)
        return VK_SUCCESS;
    setup_instance_destroy(desc->get, *instance, VK_NULL_HANDLE);
    *instance = VK_NULL_HANDLE;
    td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the validation layer cannot be listened to: VkResult %d", (int)result);
    return result;
}

void setup_instance_destroy(PFN_vkGetInstanceProcAddr get, VkInstance instance, VkDebugUtilsMessengerEXT messenger)
{
    if (messenger)
        (LOAD(DestroyDebugUtilsMessengerEXT))(instance, messenger, NULL);
    if (instance)
        (LOAD(DestroyInstance))(instance, NULL);
}

bool setup_family(PFN_vkGetInstanceProcAddr get, VkInstance instance, VkPhysicalDevice physical, const setup_need *need,
                  uint32_t *family)
{
    const VkQueueFlags wanted = VK_QUEUE_COMPUTE_BIT | (need->draws ? VK_QUEUE_GRAPHICS_BIT : 0u);
    VkQueueFamilyProperties families[MOST_FAMILIES];
    uint32_t count = MOST_FAMILIES;
    (LOAD(GetPhysicalDeviceQueueFamilyProperties))(physical, &count, families);
    for (uint32_t i = 0; i < count; i++) {
        VkBool32 presents = VK_TRUE;
        if ((families[i].queueFlags & wanted) != wanted || (need->stamps && !families[i].timestampValidBits))
            continue;
        if (need->surface && (LOAD(GetPhysicalDeviceSurfaceSupportKHR))(physical, i, need->surface, &presents) < 0)
            continue;
        if (!presents)
            continue;
        *family = i;
        return true;
    }
    return false;
}

static int rank_of(VkPhysicalDeviceType type)
{
    switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return 4;
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return 3;
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return 2;
    default: return 1;
    }
}

bool setup_pick(PFN_vkGetInstanceProcAddr get, VkInstance instance, const setup_need *need, VkPhysicalDevice *physical,
                uint32_t *family, char *why, size_t why_bytes)
{
    const PFN_vkGetPhysicalDeviceProperties get_properties = LOAD(GetPhysicalDeviceProperties);
    VkPhysicalDevice devices[MOST_DEVICES];
    uint32_t count = MOST_DEVICES, found = 0; /* of the best */
    int best = 0;
    if ((LOAD(EnumeratePhysicalDevices))(instance, &count, devices) < 0)
        count = 0;
    for (uint32_t i = 0; i < count; i++) {
        VkPhysicalDeviceProperties properties;
        uint32_t fits;
        get_properties(devices[i], &properties);
        const int rank = rank_of(properties.deviceType);
        if (rank < best || properties.apiVersion < need->api_version ||
            !setup_family(get, instance, devices[i], need, &fits))
            continue;
        if (rank > best)
            found = 0;
        best = rank;
        if (found++ > need->skip)
            continue;
        *physical = devices[i];
        *family = fits;
    }
    if (!best)
        td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                "none of %u Vulkan devices has version %u.%u and a queue that computes%s%s%s", count,
                VK_API_VERSION_MAJOR(need->api_version), VK_API_VERSION_MINOR(need->api_version),
                need->draws ? ", draws" : "", need->stamps ? ", tells the time" : "", need->surface ? ", presents" : "");
    else if (found <= need->skip)
        td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "device %u is asked for, of %u Vulkan devices that would do", need->skip,
                found);
    return found > need->skip;
}

VkResult setup_device(PFN_vkGetInstanceProcAddr get, VkInstance instance, VkPhysicalDevice physical, uint32_t family,
                      const integration_enabled *enabled, VkDevice *device, VkQueue *queue)
{
    const PFN_vkGetDeviceProcAddr get_device = LOAD(GetDeviceProcAddr);
    const float priority = 1;
    const VkDeviceQueueCreateInfo one = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                         .queueFamilyIndex = family,
                                         .queueCount = 1,
                                         .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &enabled->features,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &one,
                                     .enabledExtensionCount = enabled->extension_count,
                                     .ppEnabledExtensionNames = enabled->extensions};
    const VkResult result = (LOAD(CreateDevice))(physical, &info, NULL, device);
    if (result == VK_SUCCESS)
        ((PFN_vkGetDeviceQueue)get_device(*device, "vkGetDeviceQueue"))(*device, family, 0, queue);
    else
        *device = VK_NULL_HANDLE;
    return result;
}
