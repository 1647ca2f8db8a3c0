/* What there is on this machine: CUDA, Vulkan, and what a session would be on each device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/survey.h"

#include <stdio.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "engine_plugin/setup/setup.h"
#include "kernels/target.h"

typedef struct vulkan_loader {
    td_library *library;
    PFN_vkGetInstanceProcAddr get;
    VkInstance instance;
    uint32_t api_version;
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

static void ask_requirements(const vulkan_loader *vk, VkPhysicalDevice device, requirements *out)
{
    out->count = SURVEY_REQUIREMENTS;
    out->list[0] = TANDEM_INIT(tandem_requirement);
    if (tandem_vulkan_requirements(vk->get, vk->instance, device, &out->count, out->list) != TANDEM_OK)
        out->count = 0; /* why, says what opens the session */
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

static void ask_device(const vulkan_loader *vk, VkPhysicalDevice physical, device_report *out)
{
    const PFN_vkGetPhysicalDeviceProperties get_properties =
        (PFN_vkGetPhysicalDeviceProperties)vk->get(vk->instance, "vkGetPhysicalDeviceProperties");
    const PFN_vkDestroyDevice destroy = (PFN_vkDestroyDevice)vk->get(vk->instance, "vkDestroyDevice");
    char *const why = out->session.why;
    const size_t why_bytes = sizeof out->session.why;
    VkPhysicalDeviceProperties properties;
    integration_enabled enabled = {0};
    tandem_vulkan vulkan = TANDEM_INIT(tandem_vulkan,
                                       .api_version = vk->api_version,
                                       .get_instance_proc_addr = vk->get,
                                       .instance = vk->instance,
                                       .physical_device = physical);
    get_properties(physical, &properties);
    snprintf(out->name, sizeof out->name, "%s", properties.deviceName);
    out->api_version = properties.apiVersion;
    ask_identity(vk, physical, out);
    ask_requirements(vk, physical, &out->needs);
    if (!setup_family(vk->get, vk->instance, physical, &(setup_need){0}, &vulkan.queue_family)) {
        snprintf(why, why_bytes, "none of its queues computes");
        return;
    }
    if (!integrate_enable(&enabled, vk->get, vk->instance, physical, why, why_bytes))
        return;
    vulkan.enabled_extension_count = enabled.extension_count;
    vulkan.enabled_extensions = enabled.extensions;
    vulkan.enabled_features = &enabled.features;
    const VkResult result = setup_device(vk->get, vk->instance, physical, vulkan.queue_family, &enabled, &vulkan.device,
                                         &vulkan.queue);
    if (result != VK_SUCCESS) {
        snprintf(why, why_bytes, "vkCreateDevice returned %d", (int)result);
        return;
    }
    ask_session(&vulkan, vk->tuning, &out->session);
    survey_ladder(&vulkan, &out->ladder);
    destroy(vulkan.device, NULL);
}

/* The version that the loader has, as far as this knows it; 0 where that is older than what Tandem needs. */
static uint32_t version_of(PFN_vkGetInstanceProcAddr get)
{
    const PFN_vkEnumerateInstanceVersion ask = (PFN_vkEnumerateInstanceVersion)get(NULL, "vkEnumerateInstanceVersion");
    uint32_t version = VK_API_VERSION_1_1;
    if (!ask)
        return 0;
    ask(&version);
    return version < VK_API_VERSION_1_3 ? version : VK_API_VERSION_1_3;
}

static bool open_instance(vulkan_loader *vk, vulkan_report *out)
{
    VkDebugUtilsMessengerEXT nobody;
    if (!setup_loader(&vk->library, &vk->get, out->why, sizeof out->why))
        return false;
    vk->api_version = version_of(vk->get);
    if (!vk->api_version) {
        snprintf(out->why, sizeof out->why, "libvulkan.so.1 is older than Vulkan 1.1");
        return false;
    }
    ask_requirements(vk, VK_NULL_HANDLE, &out->instance_needs);
    const setup_instance_desc desc = {.get = vk->get, .application = "tandem info", .api_version = vk->api_version};
    return setup_instance(&desc, &vk->instance, &nobody, out->why, sizeof out->why) == VK_SUCCESS;
}

void survey_vulkan(survey_tuning tuning, vulkan_report *out)
{
    vulkan_loader vk = {.tuning = tuning};
    if (open_instance(&vk, out)) {
        const PFN_vkEnumeratePhysicalDevices enumerate =
            (PFN_vkEnumeratePhysicalDevices)vk.get(vk.instance, "vkEnumeratePhysicalDevices");
        VkPhysicalDevice devices[SURVEY_DEVICES];
        out->device_count = SURVEY_DEVICES;
        if (enumerate(vk.instance, &out->device_count, devices) < 0)
            out->device_count = 0;
        if (!out->device_count)
            snprintf(out->why, sizeof out->why, "no Vulkan device");
        for (uint32_t i = 0; i < out->device_count; i++)
            ask_device(&vk, devices[i], &out->devices[i]);
        setup_instance_destroy(vk.get, vk.instance, VK_NULL_HANDLE);
    }
    td_library_close(&vk.library);
}
