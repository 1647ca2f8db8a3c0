/* What there is on this machine: CUDA, Vulkan, and what a session would be on each device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/survey.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "kernels/target.h"

enum { FEATURE_BYTES = 1024 };

typedef struct vulkan_loader {
    void *library;
    PFN_vkGetInstanceProcAddr get;
    VkInstance instance;
    survey_tuning tuning;
} vulkan_loader;

const char *survey_kind_name(uint32_t kind)
{
    static const char *const names[] = {"instance extension", "device extension", "feature"};
    return names[kind % 3];
}

static void ask_session(const tandem_vulkan *vulkan, survey_tuning tuning, session_report *out)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc,
                                                 .vulkan = vulkan,
                                                 .tuning = tuning.text,
                                                 .tuning_bytes = tuning.bytes,
                                                 .error_text = out->why,
                                                 .error_text_bytes = sizeof out->why);
    tandem_session *session = NULL;
    const tandem_status status = tandem_session_create(&desc, &session);
    if (status != TANDEM_OK) {
        if (!out->why[0])
            snprintf(out->why, sizeof out->why, "%s", tandem_status_text(status));
        return;
    }
    out->info = TANDEM_INIT(tandem_info);
    out->available = tandem_session_info(session, &out->info) == TANDEM_OK;
    tandem_session_destroy(&session);
}

void survey_session(survey_tuning tuning, session_report *out)
{
    ask_session(NULL, tuning, out);
}

void survey_cuda(cuda_report *out)
{
    const td_log quiet = {0};
    td_cu_device *device = NULL;
    if (td_cu_device_open(NULL, &quiet, &device, out->why, sizeof out->why) != TANDEM_OK)
        return;
    out->available = true;
    out->info = *td_cu_device_info(device);
    const td_cubin *cubin = td_cubin_for_sm(out->info.sm, out->why, sizeof out->why);
    if (cubin)
        snprintf(out->cubin, sizeof out->cubin, cubin->ptx ? "PTX compute_%u" : "sm_%u", cubin->sm);
    snprintf(out->int4, sizeof out->int4, "%s",
             out->info.sm < 90 ? "int4 tensor cores (mma s4)"
                               : "int8 tensor cores, the same integers: this GPU has no int4 ones");
    td_cu_device_close(&device);
}

void survey_ladder(const tandem_vulkan *vulkan, ladder_report *out)
{
    td_grounds g = {.has_queue = vulkan && vulkan->queue};
    td_vk *vk = NULL;
    char why[TD_WHY_BYTES];
    if (vulkan) {
        const td_vk_desc desc = td_device_vulkan(vulkan);
        td_vk_open(&desc, NULL, &vk, why, sizeof why);
    }
    g.vulkan = td_vk_get_caps(vk);
    td_grounds_ask_cuda(&g);
    for (uint32_t i = 0; i < td_requirement_count && i < SURVEY_ROWS; i++)
        out->have[i] = td_requirement_probe(&td_requirements[i], &g, out->why[i]);
    td_vk_close(&vk);
}

static bool ask_requirements(const vulkan_loader *vk, VkPhysicalDevice device, requirements *out)
{
    out->count = SURVEY_REQUIREMENTS;
    out->list[0] = TANDEM_INIT(tandem_requirement);
    const tandem_status status = tandem_vulkan_requirements(vk->get, vk->instance, device, &out->count, out->list);
    if (out->count > SURVEY_REQUIREMENTS)
        out->count = SURVEY_REQUIREMENTS;
    return status == TANDEM_OK || status == TANDEM_ERROR_BUSY;
}

/* Names of the extensions of one kind that are there. */
static uint32_t available(const requirements *needs, uint32_t kind, const char **names)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < needs->count; i++)
        if (needs->list[i].kind == kind && needs->list[i].available)
            names[count++] = needs->list[i].name;
    return count;
}

/* Every feature struct starts with sType and pNext and is shorter than FEATURE_BYTES, so a zeroed block of that size
 * serves for each of them, whatever its type. */
static VkPhysicalDeviceFeatures2 *feature_chain(const requirements *needs, unsigned char *blocks)
{
    uint32_t used = 1;
    VkBaseOutStructure *first = (void *)blocks;
    first->sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    for (uint32_t i = 0; i < needs->count; i++) {
        const tandem_requirement *r = &needs->list[i];
        if (r->kind != TANDEM_REQUIREMENT_FEATURE || !r->available ||
            r->feature_offset > FEATURE_BYTES - sizeof(VkBool32))
            continue;
        uint32_t at = 0;
        while (at < used && ((VkBaseOutStructure *)(void *)(blocks + at * FEATURE_BYTES))->sType != r->feature_struct)
            at++;
        VkBaseOutStructure *block = (void *)(blocks + at * FEATURE_BYTES);
        if (at == used) {
            block->sType = r->feature_struct;
            block->pNext = first->pNext;
            first->pNext = block;
            used++;
        }
        const VkBool32 yes = VK_TRUE;
        memcpy((unsigned char *)block + r->feature_offset, &yes, sizeof yes);
    }
    return (void *)blocks;
}

static uint32_t pick_family(const vulkan_loader *vk, VkPhysicalDevice device)
{
    PFN_vkGetPhysicalDeviceQueueFamilyProperties get =
        (PFN_vkGetPhysicalDeviceQueueFamilyProperties)vk->get(vk->instance, "vkGetPhysicalDeviceQueueFamilyProperties");
    VkQueueFamilyProperties families[32];
    uint32_t count = 32;
    get(device, &count, families);
    for (uint32_t i = 0; i < count; i++)
        if (families[i].queueFlags & VK_QUEUE_COMPUTE_BIT)
            return i;
    return 0;
}

static void ask_identity(const vulkan_loader *vk, VkPhysicalDevice physical, device_report *out)
{
    PFN_vkGetPhysicalDeviceProperties2 get =
        (PFN_vkGetPhysicalDeviceProperties2)vk->get(vk->instance, "vkGetPhysicalDeviceProperties2");
    VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES, .pNext = &driver};
    VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &id};
    td_cu_info info;
    char ignored[256];
    if (!get)
        return;
    get(physical, &all);
    memcpy(out->uuid, id.deviceUUID, sizeof out->uuid);
    snprintf(out->driver, sizeof out->driver, "%s %s", driver.driverName, driver.driverInfo);
    out->has_cuda = td_cu_device_query(out->uuid, &info, ignored, sizeof ignored) == TANDEM_OK;
}

static void ask_device(const vulkan_loader *vk, VkPhysicalDevice physical, uint32_t instance_version,
                       device_report *out)
{
    PFN_vkGetPhysicalDeviceProperties get_properties =
        (PFN_vkGetPhysicalDeviceProperties)vk->get(vk->instance, "vkGetPhysicalDeviceProperties");
    PFN_vkCreateDevice create = (PFN_vkCreateDevice)vk->get(vk->instance, "vkCreateDevice");
    PFN_vkGetDeviceProcAddr get_device = (PFN_vkGetDeviceProcAddr)vk->get(vk->instance, "vkGetDeviceProcAddr");
    VkPhysicalDeviceProperties properties;
    get_properties(physical, &properties);
    snprintf(out->name, sizeof out->name, "%s", properties.deviceName);
    out->api_version = properties.apiVersion;
    ask_identity(vk, physical, out);
    if (!ask_requirements(vk, physical, &out->needs)) {
        snprintf(out->session.why, sizeof out->session.why, "the requirements could not be asked");
        return;
    }
    for (uint32_t i = 0; i < out->needs.count; i++)
        if (out->needs.list[i].required && !out->needs.list[i].available) {
            snprintf(out->session.why, sizeof out->session.why, "the device lacks the %s %s",
                     survey_kind_name(out->needs.list[i].kind), out->needs.list[i].name);
            return;
        }
    unsigned char *blocks = calloc(SURVEY_REQUIREMENTS + 1, FEATURE_BYTES);
    if (!blocks)
        return;
    const char *names[SURVEY_REQUIREMENTS];
    const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = pick_family(vk, physical),
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    VkPhysicalDeviceFeatures2 *features = feature_chain(&out->needs, blocks);
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = features,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount =
                                         available(&out->needs, TANDEM_REQUIREMENT_DEVICE_EXTENSION, names),
                                     .ppEnabledExtensionNames = names};
    VkDevice device = VK_NULL_HANDLE;
    const VkResult result = create(physical, &info, NULL, &device);
    if (result != VK_SUCCESS) {
        snprintf(out->session.why, sizeof out->session.why, "vkCreateDevice returned %d", (int)result);
    } else {
        tandem_vulkan vulkan = TANDEM_INIT(tandem_vulkan,
                                           .api_version = instance_version,
                                           .get_instance_proc_addr = vk->get,
                                           .instance = vk->instance,
                                           .physical_device = physical,
                                           .device = device,
                                           .queue_family = queue.queueFamilyIndex,
                                           .enabled_extension_count = info.enabledExtensionCount,
                                           .enabled_extensions = names,
                                           .enabled_features = features);
        ((PFN_vkGetDeviceQueue)get_device(device, "vkGetDeviceQueue"))(device, queue.queueFamilyIndex, 0, &vulkan.queue);
        ask_session(&vulkan, vk->tuning, &out->session);
        survey_ladder(&vulkan, &out->ladder);
        ((PFN_vkDestroyDevice)get_device(device, "vkDestroyDevice"))(device, NULL);
    }
    free(blocks);
}

void survey_vulkan(survey_tuning tuning, vulkan_report *out)
{
    vulkan_loader vk = {.library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL), .tuning = tuning};
    if (!vk.library) {
        snprintf(out->why, sizeof out->why, "libvulkan.so.1 is not installed");
        return;
    }
    *(void **)&vk.get = dlsym(vk.library, "vkGetInstanceProcAddr");
    PFN_vkCreateInstance create = vk.get ? (PFN_vkCreateInstance)vk.get(NULL, "vkCreateInstance") : NULL;
    PFN_vkEnumerateInstanceVersion version =
        vk.get ? (PFN_vkEnumerateInstanceVersion)vk.get(NULL, "vkEnumerateInstanceVersion") : NULL;
    if (!create || !version) {
        snprintf(out->why, sizeof out->why, "libvulkan.so.1 is older than Vulkan 1.1");
        goto done;
    }
    uint32_t api = VK_API_VERSION_1_1;
    version(&api);
    if (api > VK_API_VERSION_1_3)
        api = VK_API_VERSION_1_3;
    ask_requirements(&vk, VK_NULL_HANDLE, &out->instance_needs);
    const char *names[SURVEY_REQUIREMENTS];
    const VkApplicationInfo application = {
        .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .pApplicationName = "tandem info", .apiVersion = api};
    const VkInstanceCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
        .pApplicationInfo = &application,
        .enabledExtensionCount = available(&out->instance_needs, TANDEM_REQUIREMENT_INSTANCE_EXTENSION, names),
        .ppEnabledExtensionNames = names};
    const VkResult result = create(&info, NULL, &vk.instance);
    if (result != VK_SUCCESS) {
        snprintf(out->why, sizeof out->why,
                 result == VK_ERROR_INCOMPATIBLE_DRIVER ? "no Vulkan driver is installed"
                                                        : "vkCreateInstance returned %d",
                 (int)result);
        goto done;
    }
    PFN_vkEnumeratePhysicalDevices enumerate =
        (PFN_vkEnumeratePhysicalDevices)vk.get(vk.instance, "vkEnumeratePhysicalDevices");
    VkPhysicalDevice devices[SURVEY_DEVICES];
    out->device_count = SURVEY_DEVICES;
    if (enumerate(vk.instance, &out->device_count, devices) < 0)
        out->device_count = 0;
    if (!out->device_count)
        snprintf(out->why, sizeof out->why, "no Vulkan device");
    for (uint32_t i = 0; i < out->device_count; i++)
        ask_device(&vk, devices[i], api, &out->devices[i]);
    ((PFN_vkDestroyInstance)vk.get(vk.instance, "vkDestroyInstance"))(vk.instance, NULL);
done:
    dlclose(vk.library);
}
