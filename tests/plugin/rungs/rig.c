/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plugin/rungs/rig.h"

const ground grounds[] = {
    {.name = "timeline, forced", .asked = TANDEM_RUNG_TIMELINE, .cuda = TANDEM_RUNG_TIMELINE, .reason_cuda = "asked"},
    {.name = "host, forced", .asked = TANDEM_RUNG_HOST, .cuda = TANDEM_RUNG_HOST, .cpu = TANDEM_RUNG_HOST,
     .reason_cuda = "asked", .reason_cpu = "CUDA"},
    {.name = "copy, forced", .asked = TANDEM_RUNG_COPY, .cuda = TANDEM_RUNG_COPY, .cpu = TANDEM_RUNG_COPY,
     .reason_cuda = "asked", .reason_cpu = "CUDA"},
    {.name = "cpu, forced", .asked = TANDEM_RUNG_CPU, .cuda = TANDEM_RUNG_CPU, .cpu = TANDEM_RUNG_CPU,
     .reason_cuda = "asked", .reason_cpu = "asked"},
    {.name = "host on the CPU, forced", .backend = TANDEM_BACKEND_CPU, .asked = TANDEM_RUNG_HOST,
     .cuda = TANDEM_RUNG_HOST, .cpu = TANDEM_RUNG_HOST, .reason_cuda = "asked", .reason_cpu = "asked"},
    {.name = "copy on the CPU, forced", .backend = TANDEM_BACKEND_CPU, .asked = TANDEM_RUNG_COPY,
     .cuda = TANDEM_RUNG_COPY, .cpu = TANDEM_RUNG_COPY, .reason_cuda = "asked", .reason_cpu = "asked"},
    {.name = "no semaphores", .same = true, .without = {INLINE_KERNELS, SEMAPHORE_FD}, .cuda = TANDEM_RUNG_HOST,
     .cpu = TANDEM_RUNG_CPU, .reason_cuda = "timeline: " SEMAPHORE_FD, .reason_cpu = "CUDA"},
    {.name = "semaphores not said", .same = true, .without = {INLINE_KERNELS}, .unsaid = {SEMAPHORE_FD}, .cuda =
     TANDEM_RUNG_HOST,
     .cpu = TANDEM_RUNG_CPU, .reason_cuda = "timeline: " SEMAPHORE_FD, .reason_cpu = "CUDA"},
    {.name = "semaphores hidden", .same = true, .without = {INLINE_KERNELS}, .hidden = {"vkGetSemaphoreFdKHR"},
     .disguises = HIDES_FUNCTIONS, .cuda = TANDEM_RUNG_HOST, .cpu = TANDEM_RUNG_CPU,
     .reason_cuda = "timeline: " SEMAPHORE_FD, .reason_cpu = "CUDA"},
    {.name = "timelines not exported", .same = true, .without = {INLINE_KERNELS}, .disguises = NO_TIMELINE_EXPORT,
     .cuda = TANDEM_RUNG_HOST, .cpu = TANDEM_RUNG_CPU, .reason_cuda = "timeline: " SEMAPHORE_FD, .reason_cpu = "CUDA"},
    {.name = "no timelines", .same = true, .without = {INLINE_KERNELS, TIMELINE_FEATURE}, .cuda = TANDEM_RUNG_HOST,
     .cpu = TANDEM_RUNG_CPU, .reason_cuda = "timeline: " TIMELINE_FEATURE, .reason_cpu = "CUDA"},
    /* As stock Godot makes it. */
    {.name = "memory alone", .without = {INLINE_KERNELS, SEMAPHORE_FD, TIMELINE_FEATURE, MEMORY_HOST},
     .cuda = TANDEM_RUNG_HOST, .cpu = TANDEM_RUNG_COPY, .reason_cuda = TIMELINE_FEATURE, .reason_cpu = MEMORY_HOST},
    {.name = "no memory", .same = true, .without = {INLINE_KERNELS, MEMORY_FD}, .cuda = TANDEM_RUNG_COPY, .cpu =
     TANDEM_RUNG_CPU,
     .reason_cuda = MEMORY_FD, .reason_cpu = "CUDA"},
    {.name = "memory not said", .same = true, .without = {INLINE_KERNELS}, .unsaid = {MEMORY_FD, MEMORY_HOST},
     .cuda = TANDEM_RUNG_COPY, .cpu = TANDEM_RUNG_COPY, .reason_cuda = MEMORY_FD, .reason_cpu = MEMORY_HOST},
    {.name = "memory hidden", .same = true, .without = {INLINE_KERNELS},
     .hidden = {"vkGetMemoryFdKHR", "vkGetMemoryHostPointerPropertiesEXT"}, .disguises = HIDES_FUNCTIONS,
     .cuda = TANDEM_RUNG_COPY, .cpu = TANDEM_RUNG_COPY, .reason_cuda = MEMORY_FD, .reason_cpu = MEMORY_HOST},
    {.name = "memory not exported", .same = true, .without = {INLINE_KERNELS, MEMORY_HOST}, .disguises =
     NO_BUFFER_EXPORT,
     .cuda = TANDEM_RUNG_COPY, .cpu = TANDEM_RUNG_COPY, .reason_cuda = MEMORY_FD, .reason_cpu = MEMORY_HOST},
    {.name = "nothing at all", .without = {INLINE_KERNELS, MEMORY_FD, SEMAPHORE_FD, MEMORY_HOST, TIMELINE_FEATURE},
     .cuda = TANDEM_RUNG_COPY, .cpu = TANDEM_RUNG_COPY, .reason_cuda = MEMORY_FD, .reason_cpu = MEMORY_HOST},
    {.name = "the CPU without timelines", .without = {TIMELINE_FEATURE}, .backend = TANDEM_BACKEND_CPU,
     .cuda = TANDEM_RUNG_CPU, .cpu = TANDEM_RUNG_CPU, .reason_cuda = "asked", .reason_cpu = "asked"},
};

const int ground_count = sizeof grounds / sizeof *grounds;

static void on_log(void *user, int level, const char *text)
{
    rig *r = user;

    pthread_mutex_lock(&r->lock);
    r->errors += level == TANDEM_LOG_ERROR;
    r->bounced += strstr(text, "goes through pinned memory") != NULL;
    if (level == TANDEM_LOG_ERROR)
        snprintf(r->last, sizeof r->last, "%s", text);
    pthread_mutex_unlock(&r->lock);
}

/* The disguise. */

static struct {
    const ground *on;
    PFN_vkGetInstanceProcAddr gipa;
    PFN_vkGetDeviceProcAddr gdpa;
    PFN_vkGetPhysicalDeviceExternalBufferProperties buffers;
    PFN_vkGetPhysicalDeviceExternalSemaphoreProperties semaphores;
} worn;

static bool is_hidden(const char *name)
{
    for (size_t i = 0; i < 3 && worn.on->hidden[i]; i++)
        if (!strcmp(worn.on->hidden[i], name))
            return true;
    return false;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL worn_gdpa(VkDevice device, const char *name)
{
    return is_hidden(name) ? NULL : worn.gdpa(device, name);
}

static VKAPI_ATTR void VKAPI_CALL worn_buffers(VkPhysicalDevice device, const VkPhysicalDeviceExternalBufferInfo *info,
                                               VkExternalBufferProperties *answer)
{
    worn.buffers(device, info, answer);
    answer->externalMemoryProperties.externalMemoryFeatures &=
        ~(VkExternalMemoryFeatureFlags)VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT;
}

static VKAPI_ATTR void VKAPI_CALL worn_semaphores(VkPhysicalDevice device,
                                                  const VkPhysicalDeviceExternalSemaphoreInfo *info,
                                                  VkExternalSemaphoreProperties *answer)
{
    worn.semaphores(device, info, answer);
    answer->externalSemaphoreFeatures = 0;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL worn_gipa(VkInstance instance, const char *name)
{
    PFN_vkVoidFunction found = is_hidden(name) ? NULL : worn.gipa(instance, name);

    if (found && !strcmp(name, "vkGetDeviceProcAddr")) {
        worn.gdpa = (PFN_vkGetDeviceProcAddr)found;
        return (PFN_vkVoidFunction)worn_gdpa;
    }
    if (found && (worn.on->disguises & NO_BUFFER_EXPORT) &&
        !strcmp(name, "vkGetPhysicalDeviceExternalBufferProperties")) {
        worn.buffers = (PFN_vkGetPhysicalDeviceExternalBufferProperties)found;
        return (PFN_vkVoidFunction)worn_buffers;
    }
    if (found && (worn.on->disguises & NO_TIMELINE_EXPORT) &&
        !strcmp(name, "vkGetPhysicalDeviceExternalSemaphoreProperties")) {
        worn.semaphores = (PFN_vkGetPhysicalDeviceExternalSemaphoreProperties)found;
        return (PFN_vkVoidFunction)worn_semaphores;
    }
    return found;
}

static bool names(const char *const *list, size_t most, const char *name)
{
    for (size_t i = 0; i < most && list[i]; i++)
        if (!strcmp(list[i], name))
            return true;
    return false;
}

void prepare(rig *r, const ground *on)
{
    vku_options options = {.validation = true};
    uint32_t count = 0;

    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    r->on = on;
    memcpy(options.without, on->without, sizeof on->without);
    if (!vku_try(&r->vk, &options))
        skip();
    for (uint32_t i = 0; i < r->vk.enabled.extension_count; i++)
        if (!names(on->unsaid, sizeof on->unsaid / sizeof *on->unsaid, r->vk.enabled.extensions[i]))
            r->extensions[count++] = r->vk.enabled.extensions[i];
    worn.on = on;
    worn.gipa = r->vk.gipa;
    r->semaphores = !names(on->without, sizeof on->without / sizeof *on->without, TIMELINE_FEATURE);
    r->vulkan = vku_engine(&r->vk);
    r->vulkan.enabled_extension_count = count;
    r->vulkan.enabled_extensions = r->extensions;
    if (on->disguises)
        r->vulkan.get_instance_proc_addr = worn_gipa;
    r->desc = (tandem_session_desc){.struct_bytes = sizeof r->desc,
                                    .backend = on->backend,
                                    .rung = on->asked,
                                    .vulkan = &r->vulkan,
                                    .log = on_log,
                                    .user = r,
                                    .wait_bound_ns = LONG_NS,
                                    .error_text = r->text,
                                    .error_text_bytes = sizeof r->text};
    if (getenv("TANDEM_TEST_THREADS"))
        r->desc.cpu_threads = (uint32_t)atoi(getenv("TANDEM_TEST_THREADS"));
}

void close_rig(rig *r)
{
    if (r->s)
        assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    vku_close(&r->vk);
    if (r->vk.errors)
        fail_msg("%s: validation: %s", r->on->name, r->vk.last_text);
}

bool has_cuda(rig *r)
{
    static int known = -1;
    tandem_session_desc desc = r->desc;
    tandem_session *s;
    tandem_status status;

    if (known >= 0)
        return known;
    desc.backend = TANDEM_BACKEND_CUDA;
    desc.rung = TANDEM_RUNG_COPY;
    desc.log = NULL;
    status = tandem_session_create(&desc, &s);
    if (status == TANDEM_OK)
        tandem_session_destroy(&s);
    else
        assert_int_equal(status, TANDEM_ERROR_UNSUPPORTED);
    if (expects_gpu())
        assert_int_equal(status, TANDEM_OK);
    known = status == TANDEM_OK;
    return known;
}

bool open_rig(rig *r, const ground *on)
{
    tandem_rung expected;
    const char *reason;
    tandem_status status;
    bool cuda;

    prepare(r, on);
    cuda = on->backend != TANDEM_BACKEND_CPU && has_cuda(r);
    expected = cuda || on->backend == TANDEM_BACKEND_CPU ? on->cuda : on->cpu;
    reason = cuda || on->backend == TANDEM_BACKEND_CPU ? on->reason_cuda : on->reason_cpu;
    status = tandem_session_create(&r->desc, &r->s);
    if (!expected) {
        assert_int_equal(status, TANDEM_ERROR_UNSUPPORTED);
        assert_int_equal(r->errors, 1);
        if (!strstr(r->text, "desc.rung is"))
            fail_msg("%s: refused as: %s", on->name, r->text);
        close_rig(r);
        return false;
    }
    if (status != TANDEM_OK)
        fail_msg("%s: %d %s", on->name, status, r->text);
    r->info.struct_bytes = sizeof r->info;
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    if (r->info.rung != expected || !strstr(r->info.rung_reason, reason))
        fail_msg("%s: rung %u, not %u: %s", on->name, r->info.rung, expected, r->info.rung_reason);
    assert_int_equal(r->info.backend, cuda && expected != TANDEM_RUNG_CPU ? TANDEM_BACKEND_CUDA : TANDEM_BACKEND_CPU);
    return true;
}

const ground *ground_named(const char *name)
{
    for (int g = 0; g < ground_count; g++)
        if (!strcmp(grounds[g].name, name))
            return &grounds[g];
    fail_msg("no ground %s", name);
    return NULL;
}
