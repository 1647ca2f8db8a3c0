/* Devices: one that is lost under a session, and what sessions ask of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdatomic.h>
#include <string.h>

#include "interop/base.h"
#include "tests/plugin/session/rig.h"

/* A device that is lost: the engine's functions answer so from some moment on. */
static struct {
    PFN_vkGetInstanceProcAddr gipa;
    PFN_vkGetDeviceProcAddr gdpa;
    PFN_vkGetSemaphoreCounterValue value;
    PFN_vkWaitSemaphores wait;
    PFN_vkSignalSemaphore signal;
    atomic_bool lost;
} faulty;

static VKAPI_ATTR VkResult VKAPI_CALL faulty_value(VkDevice device, VkSemaphore semaphore, uint64_t *value)
{
    return atomic_load(&faulty.lost) ? VK_ERROR_DEVICE_LOST : faulty.value(device, semaphore, value);
}

static VKAPI_ATTR VkResult VKAPI_CALL faulty_wait(VkDevice device, const VkSemaphoreWaitInfo *info, uint64_t timeout)
{
    return atomic_load(&faulty.lost) ? VK_ERROR_DEVICE_LOST : faulty.wait(device, info, timeout);
}

static VKAPI_ATTR VkResult VKAPI_CALL faulty_signal(VkDevice device, const VkSemaphoreSignalInfo *info)
{
    return atomic_load(&faulty.lost) ? VK_ERROR_DEVICE_LOST : faulty.signal(device, info);
}

static PFN_vkVoidFunction faulty_replace(const char *name, PFN_vkVoidFunction function)
{
    if (function && !strncmp(name, "vkGetSemaphoreCounterValue", 26)) {
        faulty.value = (PFN_vkGetSemaphoreCounterValue)function;
        return (PFN_vkVoidFunction)faulty_value;
    }
    if (function && !strncmp(name, "vkWaitSemaphores", 16)) {
        faulty.wait = (PFN_vkWaitSemaphores)function;
        return (PFN_vkVoidFunction)faulty_wait;
    }
    if (function && !strncmp(name, "vkSignalSemaphore", 17)) {
        faulty.signal = (PFN_vkSignalSemaphore)function;
        return (PFN_vkVoidFunction)faulty_signal;
    }
    return function;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL faulty_gdpa(VkDevice device, const char *name)
{
    return faulty_replace(name, faulty.gdpa(device, name));
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL faulty_gipa(VkInstance instance, const char *name)
{
    PFN_vkVoidFunction function = faulty.gipa(instance, name);

    if (function && !strcmp(name, "vkGetDeviceProcAddr")) {
        faulty.gdpa = (PFN_vkGetDeviceProcAddr)function;
        return (PFN_vkVoidFunction)faulty_gdpa;
    }
    return faulty_replace(name, function);
}

static void test_device_lost(void **state)
{
    tandem_timeline engines, ours;
    tandem_job_report report;
    tandem_ticket ticket;
    tandem_job job;
    uint64_t begin, value;
    unsigned errors;
    rig r;

    (void)state;
    if (!rig_prepare(&r, ON_VULKAN_CPU))
        skip();
    faulty.gipa = r.vulkan.get_instance_proc_addr;
    r.vulkan.get_instance_proc_addr = faulty_gipa;
    atomic_store(&faulty.lost, false);
    assert_true(rig_start(&r));
    engines = new_timeline(&r, TANDEM_SIGNALLER_ENGINE, 0);
    ours = new_timeline(&r, TANDEM_SIGNALLER_SESSION, 0);
    job = new_job(new_mem(&r, MEM_BYTES));
    job.wait = (tandem_point){engines, 1};
    job.signal = (tandem_point){ours, 1};
    ticket = submit(&r, &job);
    job.signal.value = 2;
    submit(&r, &job);
    sleep_ns(STUCK_NS);
    assert_int_equal(report_of(&r, ticket).state, TANDEM_JOB_PENDING);
    atomic_store(&faulty.lost, true);
    assert_int_equal(tandem_wait(r.s, ticket, UINT64_MAX, NULL), TANDEM_OK); /* for ever is until then */
    report = ended(&r, ticket);
    assert_int_equal(report.state, TANDEM_JOB_FAILED);
    assert_int_equal(report.status, TANDEM_ERROR_LOST);
    begin = td_now_ns(); /* the log's line comes behind the report */
    while (!errors_of(&r) && td_now_ns() - begin < LIMITS_PATIENCE_NS)
        sleep_ns(1000000);
    sleep_ns(STUCK_NS);
    errors = errors_of(&r);
    assert_int_equal(errors, 1); /* once, not once a job */
    job.wait = job.signal = (tandem_point){0, 0};
    REFUSED(&r, LOST, "lost", got = tandem_submit(r.s, &job, &ticket));
    REFUSED(&r, LOST, "timeline is 0x", got = tandem_timeline_value(r.s, ours, &value));
    REFUSED(&r, LOST, "lost", got = tandem_point_wait(r.s, (tandem_point){ours, 9}, UINT64_MAX));
    REFUSED(&r, LOST, "lost", got = tandem_point_wait(r.s, (tandem_point){engines, 9}, UINT64_MAX));
    begin = td_now_ns();
    assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
    assert_true(td_now_ns() - begin < LIMITS_SOON_NS);
    atomic_store(&faulty.lost, false);
    rig_close(&r);
}

static void test_requirements(void **state)
{
    tandem_requirement list[64] = {{.struct_bytes = sizeof *list}};
    uint32_t count = 64, instance_count = 64, small;
    bool timeline = false, memory = false, semaphore = false;
    rig r;

    (void)state;
    if (!rig_prepare(&r, ON_VULKAN))
        skip();
    assert_int_equal(tandem_vulkan_requirements(r.vk.gipa, NULL, NULL, &instance_count, list), TANDEM_OK);
    for (uint32_t i = 0; i < instance_count; i++)
        assert_int_equal(list[i].kind, TANDEM_REQUIREMENT_INSTANCE_EXTENSION);
    assert_int_equal(tandem_vulkan_requirements(r.vk.gipa, r.vk.instance, r.vk.physical_device, &count, list),
                     TANDEM_OK);
    assert_true(count > 3 && count < 64);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(list[i].name && list[i].name[0]);
        assert_true(list[i].kind <= TANDEM_REQUIREMENT_FEATURE && list[i].required <= 1 && list[i].available <= 1);
        assert_true(list[i].required || (list[i].buys && list[i].buys[0]));
        if (list[i].kind == TANDEM_REQUIREMENT_FEATURE)
            assert_true(list[i].feature_struct != 0 && list[i].feature_offset >= sizeof(VkBaseOutStructure));
        else
            assert_true(!strncmp(list[i].name, "VK_", 3));
        timeline = timeline || (!strcmp(list[i].name, "timelineSemaphore") && !list[i].required);
        memory = memory || (!strcmp(list[i].name, "VK_KHR_external_memory_fd") && !list[i].required);
        semaphore = semaphore || (!strcmp(list[i].name, "VK_KHR_external_semaphore_fd") && !list[i].required);
    }
    assert_true(timeline && memory && semaphore);
    small = 0;
    assert_int_equal(tandem_vulkan_requirements(r.vk.gipa, r.vk.instance, r.vk.physical_device, &small, NULL),
                     TANDEM_OK);
    assert_int_equal(small, count);
    memset(list, 0, sizeof list);
    small = 2;
    assert_int_equal(tandem_vulkan_requirements(r.vk.gipa, r.vk.instance, r.vk.physical_device, &small, list),
                     TANDEM_ERROR_ARG); /* struct_bytes */
    list[0].struct_bytes = sizeof *list;
    assert_int_equal(tandem_vulkan_requirements(r.vk.gipa, r.vk.instance, r.vk.physical_device, &small, list),
                     TANDEM_ERROR_BUSY);
    assert_int_equal(small, count);
    assert_true(list[1].name && !list[2].name);
    assert_int_equal(tandem_vulkan_requirements(NULL, NULL, NULL, &small, list), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_vulkan_requirements(r.vk.gipa, NULL, NULL, NULL, list), TANDEM_ERROR_ARG);
    rig_close(&r);
}

/* Without a session: the CPU is always there, and lavapipe's device shares the host's memory with it. */
static void test_devices(void **state)
{
    tandem_device list[8] = {TANDEM_INIT(tandem_device)}, one = TANDEM_INIT(tandem_device), *cpu;
    uint32_t count = 8;
    rig r;

    (void)state;
    assert_int_equal(tandem_devices(&count, list), TANDEM_OK);
    assert_true(count > 0 && count <= 8);
    cpu = &list[count - 1];
    assert_int_equal(cpu->backend, TANDEM_BACKEND_CPU);
    assert_true(cpu->isa[0] && !strncmp(cpu->name, "CPU, ", 5));
    assert_int_equal(cpu->why[0] != 0, count == 1);
    if (!rig_open(&r, ON_VULKAN))
        skip();
    assert_int_equal(tandem_vulkan_device(r.vk.gipa, r.vk.instance, r.vk.physical_device, &one), TANDEM_OK);
    assert_int_equal(one.backend, r.info.backend);
    if (one.backend == TANDEM_BACKEND_CUDA) {
        assert_memory_equal(one.uuid, r.info.device_uuid, sizeof one.uuid);
        assert_string_equal(one.name, r.info.device);
        assert_int_equal(one.sm, r.info.sm);
    } else {
        assert_int_equal(one.rungs, 1u << TANDEM_RUNG_CPU | 1u << TANDEM_RUNG_HOST | 1u << TANDEM_RUNG_COPY);
        assert_non_null(strstr(one.why, "no CUDA here: "));
    }
    assert_true(one.rungs >> r.info.rung & 1);
    assert_int_equal(tandem_vulkan_device(r.vk.gipa, r.vk.instance, VK_NULL_HANDLE, &one), TANDEM_ERROR_ARG);
    one.struct_bytes = 0;
    assert_int_equal(tandem_vulkan_device(r.vk.gipa, r.vk.instance, r.vk.physical_device, &one), TANDEM_ERROR_ARG);
    rig_close(&r);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_devices),
    cmocka_unit_test(test_device_lost),
    cmocka_unit_test(test_requirements),
};
const test_cases session_device_cases = TEST_CASES(cases);
