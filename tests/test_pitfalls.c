/* The known pitfalls of sharing between Vulkan and CUDA, each by its number: a test named pitfall_NN, or a reason in
 * tests/pitfalls.txt. Every number from 1 to 34 is in one of the two, once.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * TANDEM_EXPECT_GPU=1: on the GPU with its own drivers. Else on lavapipe, whose timelines seem exportable to a fake
 * CUDA driver: there it is what libtandem asks for that is looked at, and not what a driver makes of it.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine_plugin/exec/exec.h"
#include "tandem/plugin.h"
#include "tests/daemon_util.h"
#include "tests/fake_cuda.h"
#include "tests/faults.h"
#include "tests/vk_util.h"

#define MS 1000000ull
#define LONG_NS (60000 * MS)
#define OPAQUE_MEMORY ((uint64_t)VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT)
#define OPAQUE_SEMAPHORE ((uint64_t)VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT)
enum { LAST_PITFALL = 34, ROWS = 32, DIM = 32, VIEW_BYTES = ROWS * DIM * 4, MEM_BYTES = 2 * VIEW_BYTES };

typedef enum ground { ON_HOST, ON_VULKAN_CPU, ON_CUDA, ON_TIMELINES } ground;

static struct {
    bool gpu;        /* the real drivers */
    bool one_by_one; /* no graphs: each launch, wait and signal is a call of its own */
    ground on;
    vku vk;
    bool has_vk;
    vku_options options;
    tandem_vulkan vulkan;
    tandem_session_desc desc;
    tandem_session *s;
    tandem_info info;
    char text[400]; /* of the last failure of tandem_session_create() */
    unsigned locked;
} w;

/* What was asked for, in order. */
typedef struct event {
    const char *call;
    uint64_t handle;
    uint64_t handles, usage, type, bytes, offset, flags; /* as far as the call has them */
    bool dedicated;
    fault_barrier barrier;
} event;

static struct {
    pthread_mutex_t lock;
    event list[8192];
    unsigned count;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const void *chained(const void *info, VkStructureType type)
{
    const VkBaseInStructure *s = info;

    while (s && s->sType != type)
        s = s->pNext;
    return s;
}

static void look(event *e, const void *info)
{
    if (!strcmp(e->call, "vkCreateBuffer")) {
        const VkBufferCreateInfo *b = info;
        const VkExternalMemoryBufferCreateInfo *external =
            chained(info, VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO);

        e->handles = external ? external->handleTypes : 0;
        e->usage = b->usage;
        e->bytes = b->size;
        e->flags = (uint64_t)b->sharingMode;
    } else if (!strcmp(e->call, "vkAllocateMemory")) {
        const VkExportMemoryAllocateInfo *export = chained(info, VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO);
        const VkMemoryDedicatedAllocateInfo *dedicated =
            chained(info, VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO);

        e->bytes = ((const VkMemoryAllocateInfo *)info)->allocationSize;
        e->handles = export ? export->handleTypes : 0;
        e->dedicated = dedicated && dedicated->buffer;
    } else if (!strcmp(e->call, "vkGetPhysicalDeviceExternalBufferProperties")) {
        e->handles = (uint64_t)((const VkPhysicalDeviceExternalBufferInfo *)info)->handleType;
        e->usage = ((const VkPhysicalDeviceExternalBufferInfo *)info)->usage;
    } else if (!strcmp(e->call, "vkCreateSemaphore")) {
        const VkExportSemaphoreCreateInfo *export = chained(info, VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO);
        const VkSemaphoreTypeCreateInfo *type = chained(info, VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO);

        e->handles = export ? export->handleTypes : 0;
        e->type = type ? (uint64_t)type->semaphoreType : 0;
    } else if (!strcmp(e->call, "vkGetPhysicalDeviceExternalSemaphoreProperties")) {
        const VkSemaphoreTypeCreateInfo *type = chained(info, VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO);

        e->handles = (uint64_t)((const VkPhysicalDeviceExternalSemaphoreInfo *)info)->handleType;
        e->type = type ? (uint64_t)type->semaphoreType : 0;
    } else if (!strcmp(e->call, "vkGetMemoryFdKHR")) {
        e->handles = (uint64_t)((const VkMemoryGetFdInfoKHR *)info)->handleType;
    } else if (!strcmp(e->call, "vkGetSemaphoreFdKHR")) {
        e->handles = (uint64_t)((const VkSemaphoreGetFdInfoKHR *)info)->handleType;
    } else if (!strcmp(e->call, "vkCmdPipelineBarrier")) {
        e->barrier = *(const fault_barrier *)info;
    } else if (!strcmp(e->call, "cuImportExternalMemory")) {
        const td_cu_memory_handle *h = info;

        e->type = (uint64_t)h->type;
        e->bytes = h->size;
        e->flags = h->flags;
        e->handle = (uint64_t)h->handle.fd;
    } else if (!strcmp(e->call, "cuExternalMemoryGetMappedBuffer")) {
        e->offset = ((const td_cu_memory_buffer *)info)->offset;
        e->bytes = ((const td_cu_memory_buffer *)info)->size;
    } else if (!strcmp(e->call, "cuImportExternalSemaphore")) {
        e->type = (uint64_t)((const td_cu_semaphore_handle *)info)->type;
        e->handle = (uint64_t)((const td_cu_semaphore_handle *)info)->handle.fd;
    } else if (!strcmp(e->call, "cuWaitExternalSemaphoresAsync") ||
               !strcmp(e->call, "cuSignalExternalSemaphoresAsync")) {
        e->bytes = ((const td_cu_semaphore_value *)info)->value;
    } else if (!strcmp(e->call, "dup")) {
        e->offset = (uint64_t)*(const int *)info;
    }
}

static void observe(const char *call, const void *info, uint64_t handle)
{
    event e = {.call = call, .handle = handle};

    look(&e, info);
    pthread_mutex_lock(&seen.lock);
    if (seen.count < sizeof seen.list / sizeof *seen.list)
        seen.list[seen.count++] = e;
    pthread_mutex_unlock(&seen.lock);
}

static void forget(void)
{
    pthread_mutex_lock(&seen.lock);
    seen.count = 0;
    pthread_mutex_unlock(&seen.lock);
}

static unsigned count_of(const char *call)
{
    unsigned count = 0;

    pthread_mutex_lock(&seen.lock);
    for (unsigned i = 0; i < seen.count; i++)
        count += !strcmp(seen.list[i].call, call);
    pthread_mutex_unlock(&seen.lock);
    return count;
}

/* The n-th call of that name, from 0; it must be there. */
static const event *event_of(const char *call, unsigned n)
{
    const event *found = NULL;

    pthread_mutex_lock(&seen.lock);
    for (unsigned i = 0; i < seen.count && !found; i++)
        if (!strcmp(seen.list[i].call, call) && n-- == 0)
            found = &seen.list[i];
    pthread_mutex_unlock(&seen.lock);
    if (!found)
        fail_msg("%s was not called", call);
    return found;
}

static void assert_order(const char *const *calls, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (event_of(calls[i - 1], 0) > event_of(calls[i], 0))
            fail_msg("%s comes before %s", calls[i], calls[i - 1]);
}

/* Sessions. */

static void lock_queue(void *user)
{
    (void)user;
    w.locked++;
}

static bool prepare(ground on)
{
    w.on = on;
    w.has_vk = on == ON_VULKAN_CPU || on == ON_TIMELINES;
    w.s = NULL;
    w.text[0] = 0;
    fault_observe(observe);
    fault_disguise_as((on == ON_TIMELINES && !w.gpu ? FAULT_TIMELINES : 0) | (w.one_by_one ? FAULT_NO_GRAPHS : 0));
    fault_cuda(on < ON_CUDA ? FAULT_NO_CUDA : w.gpu ? FAULT_REAL_CUDA : FAULT_FAKE_CUDA);
    fake_cuda_driver.vulkan = NULL;
    fake_cuda_driver.device_count = 1;
    w.desc = (tandem_session_desc){.struct_bytes = sizeof w.desc,
                                   .backend = on < ON_CUDA ? TANDEM_BACKEND_CPU : TANDEM_BACKEND_CUDA,
                                   .cpu_threads = 1,
                                   .error_text = w.text,
                                   .error_text_bytes = sizeof w.text};
    if (w.has_vk) {
        static const char *extensions[17];
        VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
        VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                                  .pNext = &id};
        vku_found found;

        w.options.validation = true;
        found = vku_open(&w.vk, &w.options);
        if (found == VKU_NO_VULKAN && !w.gpu)
            return false;
        assert_int_equal(found, VKU_OK);
        fault_vulkan(w.vk.gipa);
        ((PFN_vkGetPhysicalDeviceProperties2)w.vk.gipa(w.vk.instance, "vkGetPhysicalDeviceProperties2"))(
            w.vk.physical_device, &properties);
        memcpy(fake_cuda_driver.uuids[0], id.deviceUUID, sizeof id.deviceUUID);
        fake_cuda_driver.vulkan = fault_vulkan_real();
        fake_cuda_driver.device = w.vk.device;
        memcpy(extensions, w.vk.extensions, sizeof w.vk.extensions);
        w.vulkan = (tandem_vulkan){
            .struct_bytes = sizeof w.vulkan,
            .api_version = w.vk.api_version,
            .get_instance_proc_addr = fault_gipa,
            .instance = w.vk.instance,
            .physical_device = w.vk.physical_device,
            .device = w.vk.device,
            .queue_family = w.vk.queue_family,
            .enabled_extension_count = w.vk.extension_count,
            .enabled_extensions = extensions,
            .enabled_features = &w.vk.features,
            .queue = w.gpu ? VK_NULL_HANDLE : w.vk.queue, /* without one there is no inline rung */
            .lock_queue = lock_queue,
            .unlock_queue = lock_queue,
        };
        if (on == ON_TIMELINES && !w.gpu)
            extensions[w.vulkan.enabled_extension_count++] = "VK_KHR_external_semaphore_fd"; /* lavapipe has it not */
        w.desc.vulkan = &w.vulkan;
    }
    w.options = (vku_options){0};
    forget();
    return true;
}

static tandem_status create(void)
{
    tandem_status status = tandem_session_create(&w.desc, &w.s);

    w.info.struct_bytes = sizeof w.info;
    if (w.s)
        assert_int_equal(tandem_session_info(w.s, &w.info), TANDEM_OK);
    return status;
}

static void leave(void)
{
    if (w.s)
        assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    fault_observe(NULL);
    fault_disguise_as(0);
    w.one_by_one = false;
    assert_int_equal(fault_wrong_closes(), 0);
    if (!w.has_vk)
        return;
    vku_close(&w.vk);
    if (w.vk.errors)
        fail_msg("validation: %s", w.vk.last_text);
    w.has_vk = false;
}

static void enter(ground on)
{
    if (!prepare(on))
        skip();
    if (create() != TANDEM_OK)
        fail_msg("no session: %s", w.text);
    assert_int_equal(w.info.rung, on == ON_TIMELINES ? TANDEM_RUNG_TIMELINE
                                  : on == ON_CUDA    ? TANDEM_RUNG_HOST
                                                     : TANDEM_RUNG_CPU);
}

static tandem_mem new_mem(uint64_t bytes)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = bytes};
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(w.s, &desc, &mem), TANDEM_OK);
    return mem;
}

static tandem_timeline new_timeline(tandem_signaller signaller)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller};
    tandem_timeline timeline;

    assert_int_equal(tandem_timeline_create(w.s, &desc, &timeline), TANDEM_OK);
    return timeline;
}

static tandem_job new_job(tandem_mem mem, tandem_point wait, tandem_point signal)
{
    const tandem_view in = {.mem = mem,
                            .dtype = TANDEM_DTYPE_F32,
                            .stride_batch = ROWS * DIM,
                            .stride_head = ROWS * DIM,
                            .stride_row = DIM};
    tandem_job job = {.struct_bytes = sizeof job,
                      .operation = TANDEM_OPERATION_ATTENTION,
                      .wait = wait,
                      .signal = signal,
                      .op.attention = {.q = in,
                                       .k = in,
                                       .v = in,
                                       .o = in,
                                       .batch = 1,
                                       .heads = 1,
                                       .kv_heads = 1,
                                       .q_len = ROWS,
                                       .kv_len = ROWS,
                                       .head_dim = DIM,
                                       .precision = TANDEM_PRECISION_F16}};

    job.op.attention.o.offset_bytes = VIEW_BYTES;
    return job;
}

static tandem_ticket submit(const tandem_job *job)
{
    tandem_ticket ticket;
    tandem_status status = tandem_submit(w.s, job, &ticket);

    if (status != TANDEM_OK) {
        char text[400];

        tandem_error_text(w.s, text, sizeof text);
        fail_msg("%s", text);
    }
    return ticket;
}

static tandem_job_report state_of(tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_poll(w.s, ticket, &report), TANDEM_OK);
    return report;
}

static tandem_job_report ended(tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_wait(w.s, ticket, LONG_NS, &report), TANDEM_OK);
    return report;
}

static void sleep_ms(unsigned ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

static uint64_t value_of(tandem_timeline timeline)
{
    uint64_t value;

    assert_int_equal(tandem_timeline_value(w.s, timeline, &value), TANDEM_OK);
    return value;
}

/* One job from the engine's point to ours. */
static void run_frame(tandem_mem mem, tandem_timeline engines, tandem_timeline ours, uint64_t value)
{
    const tandem_job job = new_job(mem, (tandem_point){engines, value}, (tandem_point){ours, value});
    const tandem_ticket ticket = submit(&job);

    assert_int_equal(tandem_timeline_signal(w.s, engines, value), TANDEM_OK);
    assert_int_equal(ended(ticket).state, TANDEM_JOB_DONE);
    assert_int_equal(tandem_point_wait(w.s, job.signal, LONG_NS), TANDEM_OK);
}

/* Who closes an fd. */

static void assert_imported_dup(const char *export, const char *import)
{
    const event *dup = event_of("dup", 0), *imported = event_of(import, 0);

    assert_true(event_of(export, 0) < dup && dup < imported);
    assert_int_equal(imported->handle, dup->offset); /* what is imported is a duplicate */
    assert_int_equal(count_of("dup"), 1);
    assert_int_equal(count_of("close"), 1);
    assert_int_equal(event_of("close", 0)->handle, dup->handle); /* what was exported is closed, the duplicate is not */
}

static void pitfall_01(void **state)
{
    const fault_plan refuse = {.kinds = FAULT_CUDA, .call = "cuImportExternalMemory", .n = 1, .cuda = 999};
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 65536};
    VkMemoryGetFdInfoKHR info = {.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
                                 .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    tandem_mem mem, of_fd;
    int fds, fd = -1;

    (void)state;
    enter(ON_TIMELINES);
    forget();
    mem = new_mem(desc.bytes);
    assert_imported_dup("vkGetMemoryFdKHR", "cuImportExternalMemory");
    desc.allocation_bytes = event_of("vkAllocateMemory", 0)->bytes;
    desc.dedicated = event_of("vkAllocateMemory", 0)->dedicated;
    forget();
    new_timeline(TANDEM_SIGNALLER_SESSION);
    assert_imported_dup("vkGetSemaphoreFdKHR", "cuImportExternalSemaphore");

    /* An fd of the engine's stays the engine's, whether the import succeeds or not. */
    assert_int_equal(tandem_mem_get_vulkan(w.s, mem, &vulkan), TANDEM_OK);
    info.memory = vulkan.memory;
    assert_int_equal(fault_vulkan_real()->GetMemoryFdKHR(w.vk.device, &info, &fd), VK_SUCCESS);
    fds = vku_open_fds();
    desc.source = TANDEM_MEM_FD;
    desc.fd = fd;
    forget();
    fault_arm(&refuse);
    assert_int_equal(tandem_mem_create(w.s, &desc, &of_fd), TANDEM_ERROR_ARG);
    assert_int_equal(fault_disarm(), 1);
    assert_int_equal(count_of("close"), 1);
    assert_int_equal(event_of("close", 0)->handle, event_of("dup", 0)->offset); /* here the duplicate is still ours */
    assert_int_equal(vku_open_fds(), fds);
    assert_int_equal(tandem_mem_create(w.s, &desc, &of_fd), TANDEM_OK);
    assert_true(fcntl(fd, F_GETFD) >= 0);
    assert_int_equal(tandem_mem_destroy(w.s, of_fd), TANDEM_OK);
    assert_true(fcntl(fd, F_GETFD) >= 0);
    td_fd_close(&fd);
    leave();
}

/* What an import says about the allocation. */

static void pitfall_03(void **state)
{
    (void)state;
    enter(ON_TIMELINES);
    fault_disguise_as((w.gpu ? 0 : FAULT_TIMELINES) | FAULT_ROUNDS_UP);
    forget();
    new_mem(1000);
    assert_int_equal(event_of("vkCreateBuffer", 0)->bytes, 1000);
    assert_true(event_of("vkAllocateMemory", 0)->bytes >= 65536);
    assert_int_equal(event_of("cuImportExternalMemory", 0)->bytes, event_of("vkAllocateMemory", 0)->bytes);
    assert_int_equal(event_of("cuExternalMemoryGetMappedBuffer", 0)->offset, 0);
    assert_int_equal(event_of("cuExternalMemoryGetMappedBuffer", 0)->bytes, 1000);
    leave();
}

static void pitfall_04(void **state)
{
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_FD, .bytes = 1000, .offset_bytes = 4096};
    VkMemoryGetFdInfoKHR info = {.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
                                 .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    tandem_mem_vulkan one = {.struct_bytes = sizeof one}, two = one;
    tandem_mem mem, part;

    (void)state;
    enter(ON_TIMELINES);
    forget();
    mem = new_mem(65536);
    assert_int_equal(tandem_mem_get_vulkan(w.s, mem, &one), TANDEM_OK);
    assert_int_equal(tandem_mem_get_vulkan(w.s, new_mem(65536), &two), TANDEM_OK);
    assert_int_equal(count_of("vkAllocateMemory"), 2); /* no pool whose other parts would be exported too */
    assert_true(one.memory != two.memory && one.offset == 0 && two.offset == 0);

    info.memory = one.memory;
    desc.allocation_bytes = event_of("vkAllocateMemory", 0)->bytes;
    desc.dedicated = event_of("vkAllocateMemory", 0)->dedicated;
    assert_int_equal(fault_vulkan_real()->GetMemoryFdKHR(w.vk.device, &info, &desc.fd), VK_SUCCESS);
    forget();
    assert_int_equal(tandem_mem_create(w.s, &desc, &part), TANDEM_OK);
    assert_int_equal(event_of("cuImportExternalMemory", 0)->bytes, desc.allocation_bytes);
    assert_int_equal(event_of("cuExternalMemoryGetMappedBuffer", 0)->offset, 4096);
    assert_int_equal(event_of("cuExternalMemoryGetMappedBuffer", 0)->bytes, 1000);
    assert_int_equal(tandem_mem_destroy(w.s, part), TANDEM_OK);
    td_fd_close(&desc.fd);
    leave();
}

static void pitfall_05(void **state)
{
    static const unsigned disguises[] = {FAULT_WANTS_DEDICATED, FAULT_DEDICATED_ONLY};

    (void)state;
    enter(ON_TIMELINES);
    for (int i = 0; i < 2; i++) {
        const unsigned plain = w.gpu ? 0 : FAULT_TIMELINES;

        fault_disguise_as(plain | disguises[i]);
        forget();
        new_mem(65536);
        assert_true(event_of("vkAllocateMemory", 0)->dedicated);
        assert_int_equal(event_of("cuImportExternalMemory", 0)->flags, TD_CU_MEMORY_DEDICATED);
        fault_disguise_as(plain);
        forget();
        new_mem(65536);
        /* Both sides say the same, whatever this driver prefers. */
        assert_int_equal(event_of("cuImportExternalMemory", 0)->flags,
                         event_of("vkAllocateMemory", 0)->dedicated ? TD_CU_MEMORY_DEDICATED : 0);
    }
    leave();
}

static void pitfall_06(void **state)
{
    const tandem_mem_desc desc = {
        .struct_bytes = sizeof desc, .bytes = 4096, .vulkan_usage = VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT};
    tandem_mem mem;

    (void)state;
    enter(ON_TIMELINES);
    forget();
    assert_int_equal(tandem_mem_create(w.s, &desc, &mem), TANDEM_OK);
    assert_int_equal(event_of("vkCreateBuffer", 0)->handles, OPAQUE_MEMORY);
    assert_int_equal(event_of("vkAllocateMemory", 0)->handles, OPAQUE_MEMORY);
    assert_true(event_of("vkGetPhysicalDeviceExternalBufferProperties", 0) < event_of("vkCreateBuffer", 0));
    assert_int_equal(event_of("vkGetPhysicalDeviceExternalBufferProperties", 0)->handles, OPAQUE_MEMORY);
    assert_int_equal(event_of("vkGetPhysicalDeviceExternalBufferProperties", 0)->usage,
                     event_of("vkCreateBuffer", 0)->usage);
    assert_true(event_of("vkCreateBuffer", 0)->usage & VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT);
    leave();

    enter(ON_VULKAN_CPU);
    forget();
    new_mem(4096);
    assert_int_equal(event_of("vkCreateBuffer", 0)->handles, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT);
    leave();
}

static void pitfall_07(void **state)
{
    static const char *const calls[] = {"cuMemFree", "cuDestroyExternalMemory", "vkDestroyBuffer", "vkFreeMemory"};
    tandem_timeline engines, ours;
    tandem_ticket ticket;
    tandem_job job;
    tandem_mem mem;

    (void)state;
    enter(ON_TIMELINES);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    job = new_job(mem, (tandem_point){engines, 1}, (tandem_point){ours, 1});
    assert_int_equal(tandem_timeline_signal(w.s, engines, 1), TANDEM_OK);
    ticket = submit(&job);
    forget();
    assert_int_equal(tandem_mem_destroy(w.s, mem), TANDEM_OK);
    assert_int_equal(state_of(ticket).state, TANDEM_JOB_DONE); /* drained first */
    assert_order(calls, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(count_of(calls[i]), 1);

    /* The same when the session goes with the mem still there. */
    new_mem(MEM_BYTES);
    forget();
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    assert_order(calls + 1, 3);
    assert_true(event_of("cuDestroyExternalSemaphore", 0) < event_of("vkDestroySemaphore", 0));
    leave();
}

static void pitfall_08(void **state)
{
    static const char *const calls[] = {"vkAllocateMemory", "vkGetMemoryFdKHR", "cuImportExternalMemory"};

    (void)state;
    enter(ON_TIMELINES);
    forget();
    new_mem(65536);
    assert_order(calls, 3);
    assert_int_equal(count_of("cuMemAlloc"), 0);
    assert_false(fault_looked_up("cuMemCreate"));
    assert_false(fault_looked_up("cuMemExport"));
    assert_false(fault_looked_up("cuMemAllocAsync"));
    assert_false(fault_looked_up("cuMemFreeAsync"));
    leave();
}

/* Images stay behind the pack shader. */
static void pitfall_09(void **state)
{
    enum { SIDE = 8 };
    const VkImageUsageFlags usage = VK_IMAGE_USAGE_SAMPLED_BIT;
    float pixels[SIDE * SIDE * 4], *packed;
    VkCommandBuffer commands;
    tandem_pack pack;
    tandem_mem mem;
    vku_image image;
    void *host;

    (void)state;
    enter(ON_VULKAN_CPU);
    for (int i = 0; i < SIDE * SIDE * 4; i++)
        pixels[i] = (float)i;
    assert_int_equal(vku_image_create(&w.vk, VK_FORMAT_R32G32B32A32_SFLOAT, SIDE, SIDE, usage, &image), VK_SUCCESS);
    assert_int_equal(vku_image_upload(&w.vk, &image, pixels, VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);
    mem = new_mem(sizeof pixels);
    pack = (tandem_pack){.struct_bytes = sizeof pack,
                         .image_count = 1,
                         .images = {image.view},
                         .layout = VK_IMAGE_LAYOUT_GENERAL,
                         .width = SIDE,
                         .height = SIDE,
                         .tile_width = SIDE,
                         .tile_height = SIDE,
                         .channels = 4,
                         .view_channels = 4,
                         .view = {.mem = mem, .dtype = TANDEM_DTYPE_F32, .stride_row = 4}};
    commands = vku_begin(&w.vk);
    assert_int_equal(tandem_record_pack(w.s, commands, &pack), TANDEM_OK);
    assert_int_equal(tandem_record_release(w.s, commands, mem, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                           VK_ACCESS_SHADER_WRITE_BIT),
                     TANDEM_OK);
    assert_int_equal(vku_run(&w.vk, commands), VK_SUCCESS);
    assert_int_equal(tandem_mem_host(w.s, mem, &host), TANDEM_OK);
    packed = host;
    for (int i = 0; i < SIDE * SIDE * 4; i++)
        assert_true(packed[i] == (float)i); /* rows of pixels, whatever the image's tiling */
    assert_false(fault_looked_up("Image"));
    assert_false(fault_looked_up("Mipmapped"));
    vku_image_destroy(&w.vk, &image);
    leave();
}

static void pitfall_10(void **state)
{
    const int opened = fault_cuda_opened();
    uint64_t before;

    (void)state;
    enter(ON_VULKAN_CPU);
    assert_int_equal(fault_cuda_opened(), opened); /* no context is paid for where none is wanted */
    leave();

    enter(ON_TIMELINES);
    before = w.info.device_bytes;
    forget();
    new_mem(100000);
    assert_int_equal(tandem_session_info(w.s, &w.info), TANDEM_OK);
    assert_int_equal(w.info.device_bytes - before, event_of("vkAllocateMemory", 0)->bytes);
    assert_false(fault_looked_up("cuMemGetInfo")); /* our own bytes are counted, budgets are nobody's business here */
    leave();
}

/* Which device. */

static void pitfall_11(void **state)
{
    static const uint8_t foreign[16] = {0xf0, 0x0d};
    uint8_t own[16];

    (void)state;
    if (!prepare(ON_TIMELINES))
        skip();
    fault_cuda(FAULT_FAKE_CUDA);
    fault_disguise_as(FAULT_NO_TIMELINES);
    memcpy(own, fake_cuda_driver.uuids[0], sizeof own);
    /* CUDA counts its devices in another order. */
    fake_cuda_driver.device_count = 3;
    memcpy(fake_cuda_driver.uuids[0], foreign, sizeof foreign);
    memset(fake_cuda_driver.uuids[1], 7, 16);
    memcpy(fake_cuda_driver.uuids[2], own, sizeof own);
    assert_int_equal(create(), TANDEM_OK);
    assert_int_equal(fake_cuda_driver.retained_ordinal, 2);
    assert_memory_equal(w.info.device_uuid, own, sizeof own);
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    /* None of them is the engine's. */
    fake_cuda_driver.device_count = 2;
    assert_int_equal(create(), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(w.text, "f00d0000-"));
    assert_non_null(strstr(w.text, "07070707-"));
    w.desc.backend = TANDEM_BACKEND_AUTO;
    assert_int_equal(create(), TANDEM_OK);
    assert_int_equal(w.info.backend, TANDEM_BACKEND_CPU);
    assert_non_null(strstr(w.info.rung_reason, "UUID"));
    leave();
}

/* CUDA without Vulkan, Vulkan without CUDA. */
static void pitfall_12(void **state)
{
    tandem_timeline engines, ours;

    (void)state;
    enter(ON_CUDA);
    assert_int_equal(w.info.backend, TANDEM_BACKEND_CUDA);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    run_frame(new_mem(MEM_BYTES), engines, ours, 1);
    leave();

    if (!prepare(ON_VULKAN_CPU))
        skip();
    w.desc.backend = TANDEM_BACKEND_CUDA;
    assert_int_equal(create(), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(w.text, "no CUDA driver"));
    w.desc.backend = TANDEM_BACKEND_AUTO;
    assert_int_equal(create(), TANDEM_OK);
    assert_int_equal(w.info.rung, TANDEM_RUNG_CPU);
    assert_non_null(strstr(w.info.rung_reason, "no CUDA driver"));
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    run_frame(new_mem(MEM_BYTES), engines, ours, 1);
    leave();
}

static void pitfall_13(void **state)
{
    tandem_requirement list[32] = {{.struct_bytes = sizeof *list}};
    uint32_t count = 32;

    (void)state;
    enter(ON_VULKAN_CPU); /* on a device without a surface */
    assert_int_equal(
        tandem_vulkan_requirements(w.vk.gipa, w.vk.instance, w.vk.physical_device, &count, list), TANDEM_OK);
    assert_true(count > 3);
    for (uint32_t i = 0; i < count; i++) {
        assert_null(strstr(list[i].name, "surface"));
        assert_null(strstr(list[i].name, "swapchain"));
    }
    assert_false(fault_looked_up("Surface"));
    assert_false(fault_looked_up("Swapchain"));
    leave();
}

/* Semaphores. */

static void pitfall_14(void **state)
{
    (void)state;
    enter(ON_TIMELINES);
    forget();
    new_timeline(TANDEM_SIGNALLER_ENGINE);
    new_timeline(TANDEM_SIGNALLER_SESSION);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(event_of("cuImportExternalSemaphore", i)->type, 9); /* TIMELINE_SEMAPHORE_FD; 1 is binary */
        assert_int_equal(event_of("vkCreateSemaphore", i)->type, VK_SEMAPHORE_TYPE_TIMELINE);
    }
    leave();
}

static void pitfall_15(void **state)
{
    (void)state;
    enter(ON_TIMELINES);
    forget();
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    assert_int_equal(create(), TANDEM_OK);
    assert_int_equal(event_of("vkGetPhysicalDeviceExternalSemaphoreProperties", 0)->type, VK_SEMAPHORE_TYPE_TIMELINE);
    assert_int_equal(event_of("vkGetPhysicalDeviceExternalSemaphoreProperties", 0)->handles, OPAQUE_SEMAPHORE);
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    /* The extension is there, timelines cannot be exported: one rung lower, and no semaphore is made for export. */
    fault_disguise_as(FAULT_NO_TIMELINES);
    assert_int_equal(create(), TANDEM_OK);
    assert_int_equal(w.info.rung, TANDEM_RUNG_HOST);
    assert_non_null(strstr(w.info.rung_reason, "timeline"));
    forget();
    new_timeline(TANDEM_SIGNALLER_SESSION);
    assert_int_equal(event_of("vkCreateSemaphore", 0)->handles, 0);
    assert_int_equal(count_of("vkGetSemaphoreFdKHR"), 0);
    leave();
}

static void rising(ground on)
{
    tandem_timeline engines, ours;
    tandem_ticket ticket;
    tandem_job job;
    tandem_mem mem;

    enter(on);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    run_frame(mem, engines, ours, 5);
    /* Each direction has one producer, whose values rise. */
    for (uint64_t value = 4; value <= 5; value++) {
        job = new_job(mem, (tandem_point){0}, (tandem_point){ours, value});
        assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_ARG);
        assert_int_equal(tandem_timeline_signal(w.s, engines, value), TANDEM_ERROR_ARG);
    }
    job = new_job(mem, (tandem_point){0}, (tandem_point){engines, 6});
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_signal(w.s, ours, 6), TANDEM_ERROR_ARG);
    /* Steps that every device grants. */
    job = new_job(mem, (tandem_point){0}, (tandem_point){ours, 5 + 0x80000000ull});
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_signal(w.s, engines, 5 + 0x80000000ull), TANDEM_ERROR_ARG);
    /* A promise counts from tandem_submit() on, not from its signal. */
    job = new_job(mem, (tandem_point){engines, 6}, (tandem_point){ours, 6});
    ticket = submit(&job);
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_timeline_signal(w.s, engines, 6), TANDEM_OK);
    run_frame(mem, engines, ours, 7);
    leave();
}

static void pitfall_16(void **state)
{
    (void)state;
    rising(ON_HOST);
    rising(ON_VULKAN_CPU);
    rising(ON_TIMELINES);
}

static void older_value(ground on)
{
    tandem_timeline engines, ours;
    tandem_ticket tickets[2];
    tandem_job job;
    tandem_mem mem;

    enter(on);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    forget();
    for (uint64_t i = 0; i < 2; i++) {
        job = new_job(mem, (tandem_point){engines, 1 + i}, (tandem_point){ours, 1 + i});
        tickets[i] = submit(&job);
    }
    assert_int_equal(tandem_timeline_signal(w.s, engines, 1), TANDEM_OK);
    assert_int_equal(tandem_point_wait(w.s, (tandem_point){ours, 1}, LONG_NS), TANDEM_OK);
    assert_int_equal(ended(tickets[0]).state, TANDEM_JOB_DONE);
    sleep_ms(20);
    assert_int_equal(state_of(tickets[1]).state, TANDEM_JOB_PENDING);
    assert_int_equal(tandem_timeline_signal(w.s, engines, 9), TANDEM_OK);
    assert_int_equal(ended(tickets[1]).state, TANDEM_JOB_DONE);
    if (on == ON_TIMELINES)
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(event_of("cuWaitExternalSemaphoresAsync", i)->bytes, 1 + i);
    leave();
}

static void pitfall_17(void **state)
{
    (void)state;
    older_value(ON_HOST);
    older_value(ON_VULKAN_CPU);
    w.one_by_one = true;
    older_value(ON_TIMELINES);
}

static void bounded(ground on)
{
    tandem_timeline engines, ours;
    tandem_job_report report;
    tandem_job job;
    tandem_mem mem;
    uint64_t begin;

    if (!prepare(on))
        skip();
    w.desc.wait_bound_ns = 50 * MS;
    assert_int_equal(create(), TANDEM_OK);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    job = new_job(mem, (tandem_point){engines, 1}, (tandem_point){ours, 1});
    begin = td_now_ns();
    report = ended(submit(&job));
    assert_int_equal(report.state, TANDEM_JOB_FAILED);
    assert_int_equal(report.status, TANDEM_ERROR_LOST);
    assert_int_equal(tandem_point_wait(w.s, job.signal, LONG_NS), TANDEM_OK); /* signalled, whatever becomes of it */
    assert_in_range(td_now_ns() - begin, 50 * MS, 3000 * MS);
    /* The stream is free again. */
    job = new_job(mem, (tandem_point){0}, (tandem_point){ours, 2});
    assert_int_equal(ended(submit(&job)).state, TANDEM_JOB_DONE);
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);

    /* A session goes while a job waits for what never comes. */
    w.desc.wait_bound_ns = 0;
    assert_int_equal(create(), TANDEM_OK);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    job = new_job(new_mem(MEM_BYTES), (tandem_point){engines, 1}, (tandem_point){0});
    submit(&job);
    begin = td_now_ns();
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    assert_true(td_now_ns() - begin < 4000 * MS);
    leave();
}

static void pitfall_18(void **state)
{
    (void)state;
    bounded(ON_HOST);
    bounded(ON_VULKAN_CPU);
    bounded(ON_TIMELINES);
}

/* One stream for wait, kernels and signal; that one and those for copies do not synchronise with the NULL stream. */
static void pitfall_19(void **state)
{
    static const char *const calls[] = {"cuWaitExternalSemaphoresAsync", "cuLaunchKernel",
                                        "cuSignalExternalSemaphoresAsync"};
    tandem_timeline engines, ours;
    uint64_t stream;

    (void)state;
    w.one_by_one = true;
    enter(ON_TIMELINES);
    assert_int_equal(count_of("cuStreamCreate"), 4);
    for (unsigned n = 0; n < 4; n++)
        assert_int_equal(event_of("cuStreamCreate", n)->handle, TD_CU_STREAM_NON_BLOCKING);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    forget();
    run_frame(new_mem(MEM_BYTES), engines, ours, 1);
    assert_order(calls, 3);
    stream = event_of(calls[0], 0)->handle;
    assert_true(stream > 2); /* 1 and 2 are the legacy and the per-thread stream */
    for (int i = 0; i < 3; i++)
        for (unsigned n = 0; n < count_of(calls[i]); n++)
            assert_int_equal(event_of(calls[i], n)->handle, stream);
    assert_true(count_of("cuLaunchKernel") >= 3); /* two stamps and what is between them */
    assert_true(event_of(calls[2], 0) > event_of("cuLaunchKernel", count_of("cuLaunchKernel") - 1));
    leave();

    /* As a graph: one launch on such a stream, and nothing beside it. */
    enter(ON_TIMELINES);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    forget();
    run_frame(new_mem(MEM_BYTES), engines, ours, 1);
    assert_int_equal(count_of("cuGraphLaunch"), 1);
    assert_true(event_of("cuGraphLaunch", 0)->handle > 2);
    for (int i = 0; i < 3; i++)
        assert_int_equal(count_of(calls[i]), 0);
    leave();
}

/* The kernels of one frame that goes call by call; a graph must hold as many. */
static unsigned kernels_of_a_frame(void)
{
    unsigned count;

    w.one_by_one = true;
    enter(ON_TIMELINES);
    forget();
    run_frame(new_mem(MEM_BYTES), new_timeline(TANDEM_SIGNALLER_ENGINE), new_timeline(TANDEM_SIGNALLER_SESSION), 1);
    count = count_of("cuLaunchKernel") + count_of("cuLaunchKernelEx");
    leave();
    return count;
}

/* A graph keeps the values it was made with: each frame names its own, or it would begin at an earlier frame's point and
 * signal that one again. And all of a frame's kernels are in it. */
static void pitfall_20(void **state)
{
    enum { SLOTS = 3, FRAMES = 4 * SLOTS };
    const unsigned kernels = kernels_of_a_frame();
    tandem_timeline engines, ours;
    tandem_mem mem;

    (void)state;
    enter(ON_TIMELINES);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    forget();
    for (uint64_t n = 1; n <= FRAMES; n++) {
        const tandem_job job = new_job(mem, (tandem_point){engines, n}, (tandem_point){ours, n});
        tandem_ticket ticket;

        assert_int_equal(tandem_timeline_submitted(w.s, engines, n), TANDEM_OK);
        ticket = submit(&job);
        for (uint64_t begin = td_now_ns(); count_of("cuGraphLaunch") < n; sleep_ms(1))
            assert_true(td_now_ns() - begin < 10000 * MS);
        sleep_ms(5);
        assert_int_equal(value_of(ours), n - 1); /* it waits for this frame's point, though the last one's has come */
        assert_int_equal(tandem_timeline_signal(w.s, engines, n), TANDEM_OK);
        assert_int_equal(tandem_point_wait(w.s, job.signal, 10000 * MS), TANDEM_OK);
        assert_int_equal(ended(ticket).state, TANDEM_JOB_DONE);
        assert_int_equal(value_of(ours), n);
    }
    assert_int_equal(count_of("cuGraphInstantiateWithFlags"), SLOTS); /* the others were replayed */
    assert_int_equal(count_of("cuGraphAddKernelNode"), SLOTS * kernels);
    assert_int_equal(count_of("cuGraphLaunch"), FRAMES);
    assert_int_equal(count_of("cuLaunchKernel") + count_of("cuLaunchKernelEx"), 0);
    leave();
}

static void pitfall_22(void **state)
{
    (void)state;
    enter(ON_TIMELINES);
    forget();
    new_timeline(TANDEM_SIGNALLER_SESSION);
    new_mem(4096);
    assert_int_equal(event_of("vkCreateSemaphore", 0)->handles, OPAQUE_SEMAPHORE);
    assert_int_equal(event_of("vkGetSemaphoreFdKHR", 0)->handles, OPAQUE_SEMAPHORE);
    assert_int_equal(event_of("vkGetMemoryFdKHR", 0)->handles, OPAQUE_MEMORY);
    assert_false(fault_looked_up("ImportSemaphore"));
    assert_false(fault_looked_up("ImportFence"));
    assert_false(fault_looked_up("Drm"));
    leave();
}

/* Barriers. */

static void record_both(fault_barrier *release, fault_barrier *acquire)
{
    const tandem_mem mem = new_mem(4096);
    VkCommandBuffer commands = vku_begin(&w.vk);
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};

    assert_int_equal(tandem_mem_get_vulkan(w.s, mem, &vulkan), TANDEM_OK);
    forget();
    assert_int_equal(tandem_record_release(w.s, commands, mem, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                           VK_ACCESS_SHADER_WRITE_BIT),
                     TANDEM_OK);
    assert_int_equal(tandem_record_acquire(w.s, commands, mem, VK_PIPELINE_STAGE_VERTEX_SHADER_BIT,
                                           VK_ACCESS_SHADER_READ_BIT),
                     TANDEM_OK);
    assert_int_equal(count_of("vkCmdPipelineBarrier"), 2);
    *release = event_of("vkCmdPipelineBarrier", 0)->barrier;
    *acquire = event_of("vkCmdPipelineBarrier", 1)->barrier;
    for (int i = 0; i < 2; i++) {
        const VkBufferMemoryBarrier *b = i ? &acquire->buffer : &release->buffer;

        assert_true(b->buffer == vulkan.buffer && b->offset == 0 && b->size == VK_WHOLE_SIZE);
    }
    w.vk.EndCommandBuffer(commands);
    w.vk.FreeCommandBuffers(w.vk.device, w.vk.pool, 1, &commands);
}

static void pitfall_23(void **state)
{
    fault_barrier release, acquire;

    (void)state;
    enter(ON_TIMELINES);
    forget();
    record_both(&release, &acquire);
    assert_int_equal(release.buffer.srcQueueFamilyIndex, w.vk.queue_family);
    assert_int_equal(release.buffer.dstQueueFamilyIndex, VK_QUEUE_FAMILY_EXTERNAL);
    assert_int_equal(acquire.buffer.srcQueueFamilyIndex, VK_QUEUE_FAMILY_EXTERNAL);
    assert_int_equal(acquire.buffer.dstQueueFamilyIndex, w.vk.queue_family);
    forget();
    new_mem(4096);
    assert_int_equal(event_of("vkCreateBuffer", 0)->flags, VK_SHARING_MODE_EXCLUSIVE);
    leave();

    /* The CPU is no other owner: its accesses are the host's. */
    enter(ON_VULKAN_CPU);
    record_both(&release, &acquire);
    assert_int_equal(release.buffer.srcQueueFamilyIndex, VK_QUEUE_FAMILY_IGNORED);
    assert_int_equal(release.buffer.dstQueueFamilyIndex, VK_QUEUE_FAMILY_IGNORED);
    assert_int_equal(acquire.buffer.srcQueueFamilyIndex, VK_QUEUE_FAMILY_IGNORED);
    assert_int_equal(acquire.buffer.dstQueueFamilyIndex, VK_QUEUE_FAMILY_IGNORED);
    leave();
}

static void pitfall_24(void **state)
{
    fault_barrier release, acquire;

    (void)state;
    enter(ON_TIMELINES);
    record_both(&release, &acquire);
    assert_int_equal(release.src_stage, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT);
    assert_int_equal(release.buffer.srcAccessMask, VK_ACCESS_SHADER_WRITE_BIT);
    assert_int_equal(acquire.dst_stage, VK_PIPELINE_STAGE_VERTEX_SHADER_BIT); /* where it is read, and nowhere else */
    assert_int_equal(acquire.buffer.dstAccessMask, VK_ACCESS_SHADER_READ_BIT);
    assert_true(acquire.src_stage & VK_PIPELINE_STAGE_VERTEX_SHADER_BIT); /* chained to the submit's wait */
    leave();

    enter(ON_VULKAN_CPU);
    record_both(&release, &acquire);
    assert_true(release.dst_stage & VK_PIPELINE_STAGE_HOST_BIT);
    assert_true(release.buffer.dstAccessMask & VK_ACCESS_HOST_READ_BIT);
    assert_true(acquire.src_stage & VK_PIPELINE_STAGE_HOST_BIT);
    assert_int_equal(acquire.buffer.srcAccessMask, VK_ACCESS_HOST_WRITE_BIT);
    assert_int_equal(acquire.dst_stage, VK_PIPELINE_STAGE_VERTEX_SHADER_BIT);
    leave();
}

/* The engine's queue is the engine's alone. */
static void pitfall_25(void **state)
{
    static const ground grounds[] = {ON_VULKAN_CPU, ON_TIMELINES};

    (void)state;
    for (int i = 0; i < 2; i++) {
        tandem_timeline engines, ours;

        w.locked = 0;
        enter(grounds[i]);
        engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
        ours = new_timeline(TANDEM_SIGNALLER_SESSION);
        run_frame(new_mem(MEM_BYTES), engines, ours, 1);
        assert_int_equal(w.locked, 0); /* nothing was to be done on it */
        assert_int_equal(count_of("vkQueueSubmit"), 0);
        assert_false(fault_looked_up("vkGetDeviceQueue"));
        assert_false(fault_looked_up("WaitIdle"));
        leave();
    }
}

static void without(ground on, tandem_rung rung, const char *requirement)
{
    w.options = (vku_options){.without = {requirement}};
    if (!prepare(on))
        skip();
    w.desc.rung = rung;
    assert_int_equal(create(), TANDEM_ERROR_UNSUPPORTED);
    if (!strstr(w.text, requirement))
        fail_msg("without %s: %s", requirement, w.text);
    leave();
}

static void pitfall_26(void **state)
{
    static const char *const needed[] = {"VK_KHR_external_memory_fd", "VK_KHR_external_semaphore_fd",
                                         "VK_EXT_external_memory_host", "VK_KHR_push_descriptor", "timelineSemaphore"};
    tandem_requirement list[32] = {{.struct_bytes = sizeof *list}};
    uint32_t count = 32;

    (void)state;
    enter(ON_VULKAN_CPU);
    assert_int_equal(
        tandem_vulkan_requirements(w.vk.gipa, w.vk.instance, w.vk.physical_device, &count, list), TANDEM_OK);
    for (size_t n = 0; n < sizeof needed / sizeof *needed; n++) {
        bool listed = false;

        for (uint32_t i = 0; i < count; i++)
            listed = listed || (!strcmp(list[i].name, needed[n]) && list[i].buys && list[i].buys[0]);
        if (!listed)
            fail_msg("%s is not among the requirements", needed[n]);
    }
    leave();
    /* What was not enabled is named. */
    without(ON_VULKAN_CPU, TANDEM_RUNG_CPU, "VK_EXT_external_memory_host");
    without(ON_TIMELINES, TANDEM_RUNG_HOST, "VK_KHR_external_memory_fd");
    without(ON_TIMELINES, TANDEM_RUNG_TIMELINE, "timelineSemaphore");
}

static unsigned count_cuda_calls(void)
{
    unsigned count = 0;

    pthread_mutex_lock(&seen.lock);
    for (unsigned i = 0; i < seen.count; i++)
        count += !strncmp(seen.list[i].call, "cu", 2);
    pthread_mutex_unlock(&seen.lock);
    return count;
}

static unsigned count_workers(const char *log_path)
{
    FILE *file = fopen(log_path, "r");
    unsigned count = 0;
    char line[1000];

    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, "worker (process ") && strstr(line, "computes on");
    fclose(file);
    return count;
}

/* Processes with a CUDA context each have the GPU in turns: of engines that share it by tandemd only the worker has one,
 * the same for all. An engine alone has the primary context, with nothing of what CIG forbids. */
static void pitfall_27(void **state)
{
    static const char *const not_used[] = {"cuCtxCreate", "cuGreenCtx", "cuMemCreate", "cuMemAllocAsync", "cuMemPool"};
    static const char *const files[] = {"socket", "socket.lock", "config", "log"};
    char folder[] = "/tmp/tandem-pitfalls-XXXXXX", program[4096], paths[4][64];
    const char *build = getenv("TANDEM_BUILD");
    tandem_session *sessions[2];
    pid_t daemon;
    int opened;

    (void)state;
    enter(ON_CUDA);
    assert_int_equal(count_of("cuDevicePrimaryCtxRetain"), 1);
    leave();
    for (size_t i = 0; i < sizeof not_used / sizeof *not_used; i++)
        if (fault_looked_up(not_used[i]))
            fail_msg("%s was asked for", not_used[i]);

    assert_non_null(build);
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 4; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder, files[i]);
    snprintf(program, sizeof program, "%s/tandemd", build);
    assert_true(prepare(ON_CUDA));
    w.desc.backend = w.gpu ? TANDEM_BACKEND_CUDA : TANDEM_BACKEND_AUTO;
    w.desc.socket = paths[0];
    daemon = begin_daemon(program, paths[0], paths[2], w.gpu ? "" : "backend = cpu\n", paths[3]);
    opened = fault_cuda_opened();
    for (int i = 0; i < 2; i++) {
        if (create() != TANDEM_OK)
            fail_msg("no session: %s", w.text);
        run_frame(new_mem(MEM_BYTES), new_timeline(TANDEM_SIGNALLER_ENGINE), new_timeline(TANDEM_SIGNALLER_SESSION), 1);
        sessions[i] = w.s;
    }
    assert_int_equal(fault_cuda_opened(), opened);
    assert_int_equal(count_cuda_calls(), 0);
    assert_int_equal(count_workers(paths[3]), 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tandem_session_destroy(&sessions[i]), TANDEM_OK);
    w.s = NULL;
    end_daemon_by(&daemon, SIGTERM);
    leave();
    for (int i = 0; i < 4; i++)
        unlink(paths[i]);
    assert_int_equal(rmdir(folder), 0);
}

/* Priorities are a hint: a session alone asks for none, tandemd's streams do, and do without where the driver has none. */
static void pitfall_28(void **state)
{
    (void)state;
    enter(ON_TIMELINES);
    assert_int_equal(count_of("cuStreamCreateWithPriority"), 0);
    for (int lacks = 0; lacks < 2; lacks++) {
        const fault_plan faults = {
            .kinds = FAULT_CUDA_LOOKUP, .call = "cuStreamCreateWithPriority", .n = 1, .sticky = true};
        const unsigned before = count_of("cuStreamCreateWithPriority");
        td_cu_device *device = NULL;
        td_stream *stream = NULL;
        char why[200] = "";

        if (lacks)
            fault_arm(&faults);
        assert_int_equal(td_cu_device_open(NULL, NULL, &device, why, sizeof why), TANDEM_OK);
        td_cu_device_urgency(device, TD_CU_SOON);
        if (td_stream_create(device, NULL, &stream, why, sizeof why) != TANDEM_OK)
            fail_msg("%s", why);
        if (lacks)
            fault_disarm();
        assert_int_equal(count_of("cuStreamCreateWithPriority") > before, !lacks);
        td_stream_destroy(&stream, 1000000000u);
        td_cu_device_close(&device);
    }
    leave();
}

/* Sizes that lie, and what a mem holds before its first use. */
static void pitfall_31(void **state)
{
    static const ground grounds[] = {ON_HOST, ON_VULKAN_CPU};
    static const struct {
        uint64_t bytes, allocation, offset;
    } lies[] = {{8192, 4096, 0},          {4096, 4096, 1},           {4096, 0, 0},
                {4096, 65536, 65536},     {4096, 65536, UINT64_MAX}, {UINT64_MAX, UINT64_MAX, 0},
                {4096, UINT64_MAX, 4096}, {0, 65536, 0}};
    VkMemoryGetFdInfoKHR info = {.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
                                 .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_FD};
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    tandem_mem mem;
    int fds;

    (void)state;
    for (int g = 0; g < 2; g++) {
        enter(grounds[g]);
        for (int twice = 0; twice < 2; twice++) {
            void *host;

            mem = new_mem(MEM_BYTES);
            assert_int_equal(tandem_mem_host(w.s, mem, &host), TANDEM_OK);
            for (size_t i = 0; i < MEM_BYTES; i++)
                assert_int_equal(((const char *)host)[i], 0);
            memset(host, 0x5a, MEM_BYTES);
            assert_int_equal(tandem_mem_destroy(w.s, mem), TANDEM_OK);
        }
        leave();
    }

    enter(ON_TIMELINES);
    assert_int_equal(tandem_mem_get_vulkan(w.s, new_mem(65536), &vulkan), TANDEM_OK);
    info.memory = vulkan.memory;
    assert_int_equal(fault_vulkan_real()->GetMemoryFdKHR(w.vk.device, &info, &desc.fd), VK_SUCCESS);
    fds = vku_open_fds();
    forget();
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        /* The size of the allocation itself can be checked only where its fd has one. */
        if (lies[i].allocation == UINT64_MAX && lies[i].bytes == 4096 && w.gpu)
            continue;
        desc.bytes = lies[i].bytes;
        desc.allocation_bytes = lies[i].allocation;
        desc.offset_bytes = lies[i].offset;
        if (tandem_mem_create(w.s, &desc, &mem) != TANDEM_ERROR_ARG)
            fail_msg("lie %zu is believed", i);
    }
    assert_int_equal(count_of("cuImportExternalMemory"), 0); /* none got as far as a driver */
    assert_int_equal(vku_open_fds(), fds);
    td_fd_close(&desc.fd);
    leave();
}

/* vkWaitSemaphores takes 10 ms to see a value that CUDA signals: the host never sleeps in it. */
static void pitfall_34(void **state)
{
    tandem_timeline engines, ours;

    (void)state;
    enter(ON_TIMELINES);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    run_frame(new_mem(MEM_BYTES), engines, ours, 1);
    assert_int_equal(count_of("vkWaitSemaphores"), 0);
    leave();
}

/* What is counted. */

#define PITFALLS(X) \
    X(01) X(03) X(04) X(05) X(06) X(07) X(08) X(09) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) \
    X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(31) X(34)

static FILE *open_reasons(void)
{
    const char *source = getenv("TANDEM_SOURCE"), *slash = strrchr(__FILE__, '/');
    char path[1024];

    if (source)
        snprintf(path, sizeof path, "%s/tests/pitfalls.txt", source);
    else
        snprintf(path, sizeof path, "%.*s/pitfalls.txt", slash ? (int)(slash - __FILE__) : 1, slash ? __FILE__ : ".");
    return fopen(path, "r");
}

static void all_are_counted(void **state)
{
    static const char *const tested[] = {
#define X(n) #n,
        PITFALLS(X)
#undef X
    };
    unsigned times[LAST_PITFALL + 1] = {0};
    FILE *reasons = open_reasons();
    char line[512];

    (void)state;
    assert_non_null(reasons);
    for (size_t i = 0; i < sizeof tested / sizeof *tested; i++) {
        const long n = strtol(tested[i], NULL, 10);

        assert_in_range(n, 1, LAST_PITFALL);
        times[n]++;
    }
    while (fgets(line, sizeof line, reasons)) {
        char *rest;
        long n;

        if (line[0] == '#' || line[0] == '\n')
            continue;
        n = strtol(line, &rest, 10);
        if (rest == line || n < 1 || n > LAST_PITFALL || strlen(rest) < 10)
            fail_msg("pitfalls.txt: no number and reason: %s", line);
        times[n]++;
    }
    fclose(reasons);
    for (int n = 1; n <= LAST_PITFALL; n++)
        if (times[n] != 1)
            fail_msg("pitfall %d is accounted for %u times", n, times[n]);
}

/* A device whose kernels wait for the test: the fake one, wherever this runs. */
static bool prepare_fake(ground on)
{
    const bool gpu = w.gpu;
    bool there;

    w.gpu = false;
    there = prepare(on);
    w.gpu = gpu;
    return there;
}

/* What is copied there and back beside the kernels of others, and what is not. */

static void begin_copies(bool registers)
{
    const fault_plan refuse = {
        .kinds = FAULT_CUDA, .call = "cuMemHostRegister", .n = !registers, .sticky = true, .cuda = 999};

    prepare_fake(ON_CUDA);
    fault_arm(&refuse);
    w.desc.rung = TANDEM_RUNG_COPY;
    assert_int_equal(create(), TANDEM_OK);
    assert_int_equal(w.info.rung, TANDEM_RUNG_COPY);
    atomic_store(&fake_cuda_driver.holds, true);
    forget();
}

static void end_copies(void)
{
    atomic_store(&fake_cuda_driver.holds, false);
    fault_disarm();
    leave();
}

/* So many jobs' bytes are on their way there, once the worker had the time, and no more. */
static void expect_brought(unsigned count)
{
    for (int i = 0; i < 500 && count_of("cuMemcpyHtoDAsync") < count; i++)
        sleep_ms(10);
    sleep_ms(5);
    assert_int_equal(count_of("cuMemcpyHtoDAsync"), count);
}

static void release_and_end(const tandem_ticket *tickets, int count)
{
    atomic_store(&fake_cuda_driver.holds, false);
    for (int i = 0; i < count; i++)
        assert_int_equal(ended(tickets[i]).state, TANDEM_JOB_DONE);
    atomic_store(&fake_cuda_driver.holds, true);
    forget();
}

static void copies_overlap(void **state)
{
    const tandem_point none = {0};
    tandem_ticket tickets[3];
    tandem_mem mems[3];
    tandem_job jobs[3];
    unsigned char *host;

    (void)state;
    begin_copies(true);
    for (int i = 0; i < 3; i++) {
        mems[i] = new_mem(4 * VIEW_BYTES);
        jobs[i] = new_job(mems[i], none, none);
    }
    /* With memory of its own for each, all three go ahead. */
    for (int i = 0; i < 3; i++)
        tickets[i] = submit(&jobs[i]);
    assert_int_equal(count_of("cuMemcpyHtoDAsync"), 3);
    assert_int_equal(count_of("cuMemcpyDtoHAsync"), 3);
    sleep_ms(5);
    assert_in_range(state_of(tickets[0]).state, TANDEM_JOB_PENDING, TANDEM_JOB_RUNNING);
    release_and_end(tickets, 3);

    /* What reads what the one before it wrote does so behind that: A -> B, B -> C, and what is at B then. Kernels of this
     * device write nothing: its memory is 0xa5 all over where nothing was brought in. */
    mems[0] = new_mem(4 * VIEW_BYTES);
    assert_int_equal(tandem_mem_host(w.s, mems[0], (void **)&host), TANDEM_OK);
    memset(host, 0x11, 4 * VIEW_BYTES);
    for (int i = 0; i < 3; i++) {
        tandem_attention *a = &jobs[i].op.attention;

        jobs[i] = new_job(mems[0], none, none);
        a->q.offset_bytes = a->k.offset_bytes = a->v.offset_bytes = i == 1 ? VIEW_BYTES : 0;
        a->o.offset_bytes = i == 1 ? 2 * VIEW_BYTES : VIEW_BYTES;
        tickets[i] = submit(&jobs[i]);
    }
    assert_int_equal(count_of("cuMemcpyHtoDAsync"), 3);
    sleep_ms(5);
    release_and_end(tickets, 3);
    for (int i = 0; i < VIEW_BYTES; i++)
        if (host[i] != 0x11 || host[VIEW_BYTES + i] != 0xa5 || host[2 * VIEW_BYTES + i] != 0xa5)
            fail_msg("byte %d is %x, %x, %x", i, host[i], host[VIEW_BYTES + i], host[2 * VIEW_BYTES + i]);

    /* A deadline's result is taken back once it is known to be wanted: nothing is brought in behind it. */
    jobs[0] = new_job(mems[0], none, none);
    jobs[0].deadline_ns = LONG_NS;
    jobs[1] = new_job(mems[1], none, none);
    for (int i = 0; i < 2; i++)
        tickets[i] = submit(&jobs[i]);
    expect_brought(1);
    assert_int_equal(count_of("cuMemcpyDtoHAsync"), 0);
    assert_int_equal(state_of(tickets[1]).state, TANDEM_JOB_PENDING);
    release_and_end(tickets, 2);

    /* What kernels write in place on the host is not brought in before they are through; its neighbours are. */
    jobs[0].deadline_ns = 0;
    jobs[0].op.attention.o.stride_row *= 2;
    jobs[0].op.attention.o.stride_head *= 2;
    jobs[0].op.attention.o.stride_batch *= 2;
    jobs[2] = new_job(mems[0], none, none); /* its O is there */
    jobs[2].op.attention.q.mem = jobs[2].op.attention.k.mem = jobs[2].op.attention.v.mem = mems[2];
    for (int i = 0; i < 3; i++)
        tickets[i] = submit(&jobs[i]);
    expect_brought(2);
    assert_int_equal(count_of("cuMemcpyDtoHAsync"), 1);
    release_and_end(tickets, 3);
    end_copies();
}

/* Bytes that go through pinned memory beside the host's: the worker brings them, and not while that is in use. */
static void copies_by_hand(void **state)
{
    const tandem_point none = {0};
    tandem_ticket tickets[3];
    tandem_mem mems[2], outs[3];
    unsigned char *host = aligned_alloc(4096, 8 * VIEW_BYTES), *pinned;

    (void)state;
    assert_non_null(host);
    memset(host, 0x22, 8 * VIEW_BYTES);
    begin_copies(false);
    for (int i = 0; i < 2; i++) {
        const tandem_mem_desc desc = {.struct_bytes = sizeof desc,
                                      .source = TANDEM_MEM_HOST,
                                      .host = host + 4 * i * VIEW_BYTES,
                                      .bytes = 4 * VIEW_BYTES};

        assert_int_equal(tandem_mem_create(w.s, &desc, &mems[i]), TANDEM_OK);
    }
    for (int i = 0; i < 3; i++)
        outs[i] = new_mem(4 * VIEW_BYTES);
    forget();
    for (int round = 0; round < 2; round++) { /* the second job reads another mem, then the same */
        for (int i = 0; i < 3; i++) {
            tandem_job job = new_job(mems[i == 1 && round == 0], none, none);

            job.op.attention.o.mem = outs[i];
            tickets[i] = submit(&job);
        }
        expect_brought(round == 0 ? 2 : 1);
        assert_int_equal(state_of(tickets[2]).state, TANDEM_JOB_PENDING);
        release_and_end(tickets, 3);
    }
    /* And what comes back this way holds up what is behind it. */
    for (int i = 0; i < 2; i++) {
        const tandem_job job = new_job(mems[i], none, none);

        tickets[i] = submit(&job);
    }
    expect_brought(1);
    assert_int_equal(host[VIEW_BYTES], 0x22);
    /* Cancelled, it does not come back at all. */
    assert_int_equal(tandem_cancel(w.s, tickets[0]), TANDEM_OK);
    atomic_store(&fake_cuda_driver.holds, false);
    assert_int_equal(ended(tickets[0]).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(tickets[1]).state, TANDEM_JOB_DONE);
    assert_int_equal(host[VIEW_BYTES], 0x22);
    assert_int_equal(host[5 * VIEW_BYTES], 0xa5);
    assert_int_equal(tandem_mem_host(w.s, outs[0], (void **)&pinned), TANDEM_OK);
    assert_int_equal(pinned[VIEW_BYTES], 0xa5);
    end_copies();
    free(host);
}

/* What goes to the GPU, when, and what a frame costs there. */

/* Nothing waits on the GPU for what the engine has not announced, and nothing overtakes what is held. */
static void held_on_the_host(void **state)
{
    tandem_timeline engines, ours;
    tandem_ticket tickets[4];
    tandem_job job;
    tandem_mem mem;

    (void)state;
    w.one_by_one = true;
    enter(ON_TIMELINES);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    run_frame(mem, engines, ours, 1);
    forget();
    for (uint64_t i = 0; i < 3; i++) {
        job = new_job(mem, i == 1 ? (tandem_point){0} : (tandem_point){engines, 2 + i}, (tandem_point){ours, 2 + i});
        tickets[i] = submit(&job);
    }
    sleep_ms(5);
    assert_int_equal(count_of("cuLaunchKernel"), 0);
    assert_int_equal(count_of("cuWaitExternalSemaphoresAsync"), 0);
    /* From within the call, as far as it announces. */
    assert_int_equal(tandem_timeline_submitted(w.s, engines, 2), TANDEM_OK);
    assert_int_equal(count_of("cuWaitExternalSemaphoresAsync"), 1);
    assert_int_equal(event_of("cuWaitExternalSemaphoresAsync", 0)->bytes, 2);
    assert_int_equal(count_of("cuSignalExternalSemaphoresAsync"), 2);
    sleep_ms(5);
    assert_int_equal(value_of(ours), 1);
    assert_int_equal(state_of(tickets[0]).state, TANDEM_JOB_PENDING);
    assert_int_equal(tandem_timeline_signal(w.s, engines, 2), TANDEM_OK);
    assert_int_equal(ended(tickets[0]).state, TANDEM_JOB_DONE);
    assert_int_equal(ended(tickets[1]).state, TANDEM_JOB_DONE);
    assert_int_equal(count_of("cuWaitExternalSemaphoresAsync"), 1);
    /* The third is noticed. */
    assert_int_equal(tandem_timeline_signal(w.s, engines, 4), TANDEM_OK);
    assert_int_equal(ended(tickets[2]).state, TANDEM_JOB_DONE);
    assert_int_equal(value_of(ours), 4);
    /* Announced before: at once. */
    forget();
    assert_int_equal(tandem_timeline_submitted(w.s, engines, 100), TANDEM_OK);
    job = new_job(mem, (tandem_point){engines, 100}, (tandem_point){ours, 5});
    tickets[3] = submit(&job);
    assert_int_equal(count_of("cuWaitExternalSemaphoresAsync"), 1);
    assert_int_equal(tandem_timeline_signal(w.s, engines, 100), TANDEM_OK);
    assert_int_equal(ended(tickets[3]).state, TANDEM_JOB_DONE);
    leave();
}

static char log_text[1000];
static unsigned log_lines;

static void keep_log(void *user, int level, const char *text)
{
    (void)user;
    if (level == TANDEM_LOG_ERROR) {
        log_lines++;
        snprintf(log_text, sizeof log_text, "%s", text);
    }
}

/* A job that is with the GPU is given up by its words, and the GPU signals for it, once its wait is over. */
static void given_up_on_the_gpu(void **state)
{
    tandem_timeline engines, ours;
    tandem_ticket late, cancelled, lost;
    tandem_job job;
    tandem_mem mem;
    uint64_t begin;

    (void)state;
    if (!prepare(ON_TIMELINES))
        skip();
    w.desc.wait_bound_ns = 60 * MS;
    w.desc.log = keep_log;
    log_lines = 0;
    assert_int_equal(create(), TANDEM_OK);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    assert_int_equal(tandem_timeline_submitted(w.s, engines, 3), TANDEM_OK);
    begin = td_now_ns();
    job = new_job(mem, (tandem_point){engines, 1}, (tandem_point){ours, 1});
    job.deadline_ns = 20 * MS;
    late = submit(&job);
    job = new_job(mem, (tandem_point){engines, 2}, (tandem_point){ours, 2});
    cancelled = submit(&job);
    job = new_job(mem, (tandem_point){engines, 3}, (tandem_point){ours, 3});
    lost = submit(&job);
    assert_int_equal(tandem_cancel(w.s, cancelled), TANDEM_OK);
    assert_int_equal(ended(late).state, TANDEM_JOB_STALE);
    assert_in_range(td_now_ns() - begin, 20 * MS, 60 * MS);
    assert_int_equal(state_of(cancelled).state, TANDEM_JOB_PENDING); /* until its point comes */
    assert_int_equal(ended(lost).state, TANDEM_JOB_FAILED);
    assert_int_equal(ended(lost).status, TANDEM_ERROR_LOST);
    assert_in_range(td_now_ns() - begin, 60 * MS, 3000 * MS);
    sleep_ms(30);
    assert_int_equal(value_of(ours), 0);
    assert_int_equal(value_of(engines), 0); /* nobody forced it */
    assert_int_equal(log_lines, 3);         /* each wait is told of once */
    assert_non_null(strstr(log_text, "announced 3"));
    assert_non_null(strstr(log_text, "on the GPU as submit 3, 0 of its"));
    for (uint64_t i = 1; i <= 3; i++) {
        assert_int_equal(tandem_timeline_signal(w.s, engines, i), TANDEM_OK);
        assert_int_equal(tandem_point_wait(w.s, (tandem_point){ours, i}, LONG_NS), TANDEM_OK);
    }
    assert_int_equal(ended(cancelled).state, TANDEM_JOB_CANCELLED);
    assert_int_equal(ended(late).state, TANDEM_JOB_STALE);
    /* The session goes while an announced wait is out of bounds: now it is released. */
    assert_int_equal(tandem_timeline_submitted(w.s, engines, 4), TANDEM_OK);
    job = new_job(mem, (tandem_point){engines, 4}, (tandem_point){ours, 4});
    submit(&job);
    begin = td_now_ns();
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    assert_in_range(td_now_ns() - begin, 30 * MS, 2500 * MS);
    assert_non_null(strstr(log_text, "released by force"));
    leave();
}

static atomic_uint allocated;

static void *count_allocate(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    atomic_fetch_add(&allocated, 1);
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void just_release(void *user, void *pointer)
{
    (void)user;
    free(pointer);
}

/* After as many frames as there are slots: no allocation, no copy, no wait on the host, nothing made or mapped. */
static void frames_cost_nothing(void **state)
{
    static const char *const may[] = {"vkGetSemaphoreCounterValue",
                                      "vkSignalSemaphore", /* the test's own */
                                      "vkGetCalibratedTimestampsEXT",
                                      "cuCtxPushCurrent",
                                      "cuCtxPopCurrent",
                                      "cuLaunchKernel",
                                      "cuLaunchKernelEx",
                                      "cuWaitExternalSemaphoresAsync",
                                      "cuSignalExternalSemaphoresAsync",
                                      "cuEventRecord",
                                      "cuEventQuery",
                                      "cuEventSynchronize", /* the waiter's */
                                      "cuStreamQuery",
                                      "cuStreamWaitEvent",
                                      "cuGraphLaunch",
                                      "cuGraphExecKernelNodeSetParams",
                                      "cuGraphExecExternalSemaphoresSignalNodeSetParams",
                                      "cuGraphExecExternalSemaphoresWaitNodeSetParams"};
    enum { WARM = 6, FRAMES = 30 };
    tandem_timeline engines, ours;
    unsigned before;
    tandem_mem mem;

    (void)state;
    if (!prepare(ON_TIMELINES))
        skip();
    w.desc.allocate = count_allocate;
    w.desc.release = just_release;
    assert_int_equal(create(), TANDEM_OK);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    mem = new_mem(MEM_BYTES);
    for (uint64_t n = 1; n <= WARM + FRAMES; n++) {
        tandem_job job = new_job(mem, (tandem_point){engines, n}, (tandem_point){ours, n});
        tandem_ticket ticket;

        if (n == WARM + 1) {
            forget();
            before = atomic_load(&allocated);
            assert_int_equal(tandem_session_info(w.s, &w.info), TANDEM_OK);
        }
        if (n % 3 == 1) /* one of the three slots: a slot's graph is made again when its plan changes */
            job.deadline_ns = LONG_NS;
        assert_int_equal(tandem_timeline_submitted(w.s, engines, n), TANDEM_OK);
        ticket = submit(&job);
        assert_int_equal(tandem_timeline_signal(w.s, engines, n), TANDEM_OK);
        assert_int_equal(ended(ticket).state, TANDEM_JOB_DONE);
    }
    for (unsigned i = 0; i < seen.count; i++) {
        bool fine = false;

        for (size_t k = 0; k < sizeof may / sizeof *may; k++)
            fine = fine || !strcmp(seen.list[i].call, may[k]);
        if (!fine)
            fail_msg("a frame calls %s", seen.list[i].call);
    }
    assert_true(seen.count > 3 * FRAMES);
    assert_int_equal(atomic_load(&allocated), before);
    {
        tandem_info after = {.struct_bytes = sizeof after};

        assert_int_equal(tandem_session_info(w.s, &after), TANDEM_OK);
        assert_int_equal(after.cuda_copies, w.info.cuda_copies);
        assert_int_equal(after.cuda_allocations, w.info.cuda_allocations);
        assert_int_equal(after.cuda_host_waits, w.info.cuda_host_waits);
        assert_int_equal(after.host_bytes, w.info.host_bytes);
    }
    leave();
}

/* Three jobs that the device is at when it fails, or when the session goes. */

typedef struct doomed {
    tandem_timeline ours;
    tandem_ticket tickets[3];
    int fd; /* of the last one's point */
} doomed;

static void begin_doomed(doomed *d, ground on, bool copies)
{
    const tandem_point none = {0};

    w.one_by_one = true;
    if (!prepare_fake(on))
        skip();
    if (copies)
        w.desc.rung = TANDEM_RUNG_COPY;
    w.desc.log = keep_log;
    log_lines = 0;
    assert_int_equal(create(), TANDEM_OK);
    d->ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    atomic_store(&fake_cuda_driver.holds, true);
    for (uint64_t i = 0; i < 3; i++) {
        const tandem_job job = new_job(new_mem(MEM_BYTES), none, (tandem_point){d->ours, i + 1});

        d->tickets[i] = submit(&job);
    }
    assert_int_equal(tandem_point_fd(w.s, (tandem_point){d->ours, 3}, &d->fd), TANDEM_OK);
    sleep_ms(5);
    assert_int_equal(value_of(d->ours), 0);
}

static bool is_readable(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};

    return poll(&one, 1, 100) == 1;
}

static void fails_at_work(ground on, bool copies)
{
    const fault_plan failed = {.kinds = FAULT_CUDA, .n = 1, .sticky = true, .cuda = 719};
    const tandem_point none = {0};
    tandem_ticket ticket;
    uint64_t begin;
    tandem_job job;
    doomed d;

    begin_doomed(&d, on, copies);
    fault_arm(&failed);
    for (uint64_t i = 0; i < 3; i++) {
        const tandem_job_report report = ended(d.tickets[i]);

        assert_int_equal(report.state, TANDEM_JOB_FAILED);
        assert_int_equal(report.status, TANDEM_ERROR_DEVICE);
        assert_int_equal(tandem_point_wait(w.s, (tandem_point){d.ours, i + 1}, LONG_NS), TANDEM_OK);
    }
    assert_int_equal(value_of(d.ours), 3);
    assert_true(is_readable(d.fd));
    close(d.fd);
    sleep_ms(10);
    assert_int_equal(log_lines, 1);
    assert_non_null(strstr(log_text, "the GPU failed"));
    begin = td_now_ns(); /* what no job signals never comes */
    assert_int_equal(tandem_point_wait(w.s, (tandem_point){d.ours, 4}, LONG_NS), TANDEM_ERROR_DEVICE);
    assert_true(td_now_ns() - begin < LONG_NS / 2);
    fault_disarm();
    job = new_job(new_mem(MEM_BYTES), none, none);
    assert_int_equal(tandem_submit(w.s, &job, &ticket), TANDEM_ERROR_DEVICE);
    atomic_store(&fake_cuda_driver.holds, false); /* what it still does hurts nobody */
    sleep_ms(50);
    assert_int_equal(value_of(d.ours), 3);
    leave();
}

static void the_gpu_fails(void **state)
{
    (void)state;
    fails_at_work(ON_CUDA, false);
    fails_at_work(ON_CUDA, true);
    if (!w.gpu) /* semaphores that the fake device may signal */
        fails_at_work(ON_TIMELINES, false);
}

static void hangs_to_the_end(bool copies)
{
    uint64_t begin = td_now_ns();
    doomed d;

    begin_doomed(&d, ON_CUDA, copies);
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    assert_in_range(td_now_ns() - begin, 1900 * MS, 6000 * MS);
    assert_true(is_readable(d.fd));
    close(d.fd);
    assert_int_equal(log_lines, 1);
    assert_non_null(strstr(log_text, "3 jobs did not end on the GPU within 2 s; what they use is left behind"));
    atomic_store(&fake_cuda_driver.holds, false);
    sleep_ms(50);
    leave();
}

static void the_gpu_hangs(void **state)
{
    (void)state;
    hangs_to_the_end(false);
    hangs_to_the_end(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define X(n) cmocka_unit_test(pitfall_##n),
        PITFALLS(X)
#undef X
        cmocka_unit_test(all_are_counted),
        cmocka_unit_test(copies_overlap),
        cmocka_unit_test(copies_by_hand),
        cmocka_unit_test(held_on_the_host),
        cmocka_unit_test(given_up_on_the_gpu),
        cmocka_unit_test(frames_cost_nothing),
        cmocka_unit_test(the_gpu_fails),
        cmocka_unit_test(the_gpu_hangs),
    };
    const char *gpu = getenv("TANDEM_EXPECT_GPU");

    w.gpu = gpu && !strcmp(gpu, "1");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
