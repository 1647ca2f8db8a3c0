/* `tandem info`: the build, the CPU, CUDA, and what a session would be on each Vulkan device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demo/tool.h"
#include "interop/cu/cu.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"
#include "tandem/vulkan.h"

enum { MAX_REQUIREMENTS = 64, MAX_DEVICES = 16, FEATURE_BYTES = 1024 };

typedef struct requirements {
    uint32_t count;
    tandem_requirement list[MAX_REQUIREMENTS];
} requirements;

typedef struct cuda_report {
    bool there;
    td_cu_info info;
    char why[256], cubin[64], int4[96]; /* int4: what computes the integers of 4b */
} cuda_report;

typedef struct session_report {
    bool there;
    tandem_info info;
    char why[512];
} session_report;

typedef struct device_report {
    char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
    uint32_t api_version;
    requirements needs;
    session_report session;
} device_report;

typedef struct vulkan_report {
    char why[256]; /* why there is nothing to list */
    requirements instance_needs;
    uint32_t device_count;
    device_report devices[MAX_DEVICES];
} vulkan_report;

typedef struct vulkan_loader {
    void *library;
    PFN_vkGetInstanceProcAddr get;
    VkInstance instance;
} vulkan_loader;

static const char *const kind_names[] = {"instance extension", "device extension", "feature"};

static void ask_session(const tandem_vulkan *vulkan, session_report *out)
{
    tandem_session_desc desc = {.struct_bytes = sizeof desc, .vulkan = vulkan};
    desc.error_text = out->why;
    desc.error_text_bytes = sizeof out->why;
    tandem_session *session = NULL;
    const tandem_status status = tandem_session_create(&desc, &session);
    if (status != TANDEM_OK) {
        if (!out->why[0])
            snprintf(out->why, sizeof out->why, "%s", tandem_status_text(status));
        return;
    }
    out->info.struct_bytes = sizeof out->info;
    out->there = tandem_session_info(session, &out->info) == TANDEM_OK;
    tandem_session_destroy(&session);
}

static void ask_cuda(cuda_report *out)
{
    const td_log quiet = {0};
    td_cu_device *device = NULL;
    if (td_cu_device_open(NULL, &quiet, &device, out->why, sizeof out->why) != TANDEM_OK)
        return;
    out->there = true;
    out->info = *td_cu_device_info(device);
    const td_cubin *cubin = td_cubin_for_sm(out->info.sm, out->why, sizeof out->why);
    if (cubin)
        snprintf(out->cubin, sizeof out->cubin, cubin->ptx ? "PTX compute_%u" : "sm_%u", cubin->sm);
    snprintf(out->int4, sizeof out->int4, "%s",
             out->info.sm < 90 ? "int4 tensor cores (mma s4)"
                               : "int8 tensor cores, the same integers: this GPU has no int4 ones");
    td_cu_device_close(&device);
}

static bool ask_requirements(const vulkan_loader *vk, VkPhysicalDevice device, requirements *out)
{
    out->count = MAX_REQUIREMENTS;
    out->list[0].struct_bytes = sizeof out->list[0];
    const tandem_status status = tandem_vulkan_requirements(vk->get, vk->instance, device, &out->count, out->list);
    if (out->count > MAX_REQUIREMENTS)
        out->count = MAX_REQUIREMENTS;
    out->list[0].struct_bytes = sizeof out->list[0];
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
    if (!ask_requirements(vk, physical, &out->needs)) {
        snprintf(out->session.why, sizeof out->session.why, "the requirements could not be asked");
        return;
    }
    for (uint32_t i = 0; i < out->needs.count; i++)
        if (out->needs.list[i].required && !out->needs.list[i].available) {
            snprintf(out->session.why, sizeof out->session.why, "the device lacks the %s %s",
                     kind_names[out->needs.list[i].kind % 3], out->needs.list[i].name);
            return;
        }
    unsigned char *blocks = calloc(MAX_REQUIREMENTS + 1, FEATURE_BYTES);
    if (!blocks)
        return;
    const char *names[MAX_REQUIREMENTS];
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
        tandem_vulkan vulkan = {.struct_bytes = sizeof vulkan,
                                .api_version = instance_version,
                                .get_instance_proc_addr = vk->get,
                                .instance = vk->instance,
                                .physical_device = physical,
                                .device = device,
                                .queue_family = queue.queueFamilyIndex,
                                .enabled_extension_count = info.enabledExtensionCount,
                                .enabled_extensions = names,
                                .enabled_features = features};
        ask_session(&vulkan, &out->session);
        ((PFN_vkDestroyDevice)get_device(device, "vkDestroyDevice"))(device, NULL);
    }
    free(blocks);
}

static void ask_vulkan(vulkan_report *out)
{
    vulkan_loader vk = {.library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL)};
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
    const char *names[MAX_REQUIREMENTS];
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
    VkPhysicalDevice devices[MAX_DEVICES];
    out->device_count = MAX_DEVICES;
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

static void text_requirements(const requirements *needs)
{
    for (uint32_t i = 0; i < needs->count; i++) {
        const tandem_requirement *r = &needs->list[i];
        printf("    %-9s %-8s %-18s %s%s%s\n", r->available ? "available" : "missing",
               r->required ? "required" : "optional", kind_names[r->kind % 3], r->name, r->buys ? ": " : "",
               r->buys ? r->buys : "");
    }
}

static void text_session(const char *indent, const session_report *s)
{
    if (!s->there)
        printf("%ssession: none: %s\n", indent, s->why);
    else
        printf("%ssession: rung %s, computes on %s (%s)\n%swhy not higher: %s\n", indent, tool_rung_name(s->info.rung),
               s->info.device, s->info.isa, indent, s->info.rung_reason[0] ? s->info.rung_reason : "nothing is higher");
}

static void print_text(const cuda_report *cuda, const session_report *host, const vulkan_report *vulkan)
{
    uint32_t cubins = 0;
    const td_cubin *cubin = td_cubins(&cubins);
    printf("tandem %u.%u.%u\n", tandem_version() >> 22, tandem_version() >> 12 & 1023, tandem_version() & 4095);
    printf("build: %s", cubins ? "CUDA kernels for" : "without CUDA kernels (made without nvcc)");
    for (uint32_t i = 0; i < cubins; i++)
        printf(cubin[i].ptx ? " PTX compute_%u" : " sm_%u", cubin[i].sm);
    printf("\ncpu: %s\n", td_cpu_isa());
    if (cuda->there)
        printf("cuda: %s, sm_%u, driver for CUDA %u.%u, runs %s\n", cuda->info.name, cuda->info.sm,
               cuda->info.driver_version / 1000, cuda->info.driver_version % 1000 / 10,
               cuda->cubin[0] ? cuda->cubin : cuda->why);
    else
        printf("cuda: none: %s\n", cuda->why);
    if (cuda->there)
        printf("    4b: %s\n", cuda->int4);
    printf("without Vulkan:\n");
    text_session("    ", host);
    if (vulkan->why[0])
        printf("vulkan: none: %s\n", vulkan->why);
    if (vulkan->instance_needs.count) {
        printf("vulkan instance:\n");
        text_requirements(&vulkan->instance_needs);
    }
    for (uint32_t i = 0; i < vulkan->device_count; i++) {
        const device_report *d = &vulkan->devices[i];
        printf("vulkan device %u: %s, Vulkan %u.%u.%u\n", i, d->name, VK_API_VERSION_MAJOR(d->api_version),
               VK_API_VERSION_MINOR(d->api_version), VK_API_VERSION_PATCH(d->api_version));
        text_session("    ", &d->session);
        text_requirements(&d->needs);
    }
}

static void json_pair(const char *name, const char *text, const char *after)
{
    printf("\"%s\": ", name);
    tool_json_string(text);
    fputs(after, stdout);
}

static void json_requirements(const requirements *needs)
{
    printf("\"requirements\": [");
    for (uint32_t i = 0; i < needs->count; i++) {
        const tandem_requirement *r = &needs->list[i];
        printf("%s{", i ? ", " : "");
        json_pair("name", r->name, ", ");
        json_pair("kind", kind_names[r->kind % 3], ", ");
        printf("\"required\": %s, \"available\": %s, ", r->required ? "true" : "false",
               r->available ? "true" : "false");
        json_pair("buys", r->buys ? r->buys : "", "}");
    }
    printf("]");
}

static void json_session(const char *name, const session_report *s)
{
    printf("\"%s\": ", name);
    if (!s->there) {
        printf("{\"rung\": null, ");
        json_pair("reason", s->why, "}");
        return;
    }
    printf("{");
    json_pair("backend", tool_backend_name(s->info.backend), ", ");
    json_pair("rung", tool_rung_name(s->info.rung), ", ");
    json_pair("rung_reason", s->info.rung_reason, ", ");
    json_pair("device", s->info.device, ", ");
    json_pair("isa", s->info.isa, ", ");
    printf("\"sm\": %u, \"cuda_driver_version\": %u, \"cpu_threads\": %u}", s->info.sm, s->info.cuda_driver_version,
           s->info.cpu_threads);
}

static void print_json(const cuda_report *cuda, const session_report *host, const vulkan_report *vulkan)
{
    uint32_t cubins = 0;
    const td_cubin *cubin = td_cubins(&cubins);
    printf("{\"version\": \"%u.%u.%u\",\n \"build\": {\"cuda\": %s, \"kernels\": [", tandem_version() >> 22,
           tandem_version() >> 12 & 1023, tandem_version() & 4095, cubins ? "true" : "false");
    for (uint32_t i = 0; i < cubins; i++)
        printf(cubin[i].ptx ? "%s\"compute_%u\"" : "%s\"sm_%u\"", i ? ", " : "", cubin[i].sm);
    printf("]},\n \"cpu\": {");
    json_pair("isa", td_cpu_isa(), "},\n \"cuda\": ");
    if (cuda->there) {
        printf("{");
        json_pair("device", cuda->info.name, ", ");
        printf("\"sm\": %u, \"driver_version\": %u, \"timelines\": %s, ", cuda->info.sm, cuda->info.driver_version,
               cuda->info.timelines ? "true" : "false");
        json_pair("runs", cuda->cubin, ", ");
        json_pair("int4", cuda->int4, ", ");
        json_pair("reason", cuda->why, "},\n ");
    } else {
        printf("{\"device\": null, ");
        json_pair("reason", cuda->why, "},\n ");
    }
    json_session("host_session", host);
    printf(",\n \"vulkan\": {");
    json_pair("reason", vulkan->why, ", ");
    json_requirements(&vulkan->instance_needs);
    printf(", \"devices\": [");
    for (uint32_t i = 0; i < vulkan->device_count; i++) {
        const device_report *d = &vulkan->devices[i];
        printf("%s\n  {", i ? "," : "");
        json_pair("name", d->name, ", ");
        printf("\"api_version\": \"%u.%u.%u\", ", VK_API_VERSION_MAJOR(d->api_version),
               VK_API_VERSION_MINOR(d->api_version), VK_API_VERSION_PATCH(d->api_version));
        json_session("session", &d->session);
        printf(", ");
        json_requirements(&d->needs);
        printf("}");
    }
    printf("]}}\n");
}

int tool_info(int argc, char **argv)
{
    bool json = false;
    const tool_option options[] = {{"--json", NULL, &json}};
    if (tool_parse("info", argc, argv, options, 1) != TOOL_OK)
        return TOOL_USAGE;
    cuda_report cuda = {0};
    session_report host = {0};
    vulkan_report *vulkan = calloc(1, sizeof *vulkan);
    if (!vulkan)
        return tool_fail("info", "out of memory");
    ask_cuda(&cuda);
    ask_session(NULL, &host);
    ask_vulkan(vulkan);
    if (json)
        print_json(&cuda, &host, vulkan);
    else
        print_text(&cuda, &host, vulkan);
    free(vulkan);
    return TOOL_OK;
}
