/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <time.h>

#include "tests/plugin/pitfalls/rig.h"

world w;

events seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

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
        e->family_count = b->queueFamilyIndexCount;
        for (uint32_t i = 0; i < 2 && i < b->queueFamilyIndexCount; i++)
            e->families[i] = b->pQueueFamilyIndices[i];
    } else if (!strcmp(e->call, "vkAllocateMemory")) {
        const VkExportMemoryAllocateInfo *export = chained(info, VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO);
        const VkMemoryDedicatedAllocateInfo *dedicated =
            chained(info, VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO);

        e->bytes = ((const VkMemoryAllocateInfo *)info)->allocationSize;
        e->handles = export ? export->handleTypes : 0;
        e->dedicated = dedicated && dedicated->buffer;
        if (chained(info, VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR)) {
            const VkImportMemoryFdInfoKHR *import = chained(info, VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR);

            e->type = (uint64_t)import->handleType;
            e->handle = (uint64_t)import->fd;
        }
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
        e->handle = (uint64_t)h->handle.opaque.fd;
    } else if (!strcmp(e->call, "cuExternalMemoryGetMappedBuffer")) {
        e->offset = ((const td_cu_memory_buffer *)info)->offset;
        e->bytes = ((const td_cu_memory_buffer *)info)->size;
    } else if (!strcmp(e->call, "cuImportExternalSemaphore")) {
        e->type = (uint64_t)((const td_cu_semaphore_handle *)info)->type;
        e->handle = (uint64_t)((const td_cu_semaphore_handle *)info)->handle.opaque.fd;
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

void forget(void)
{
    pthread_mutex_lock(&seen.lock);
    seen.count = 0;
    pthread_mutex_unlock(&seen.lock);
}

unsigned count_of(const char *call)
{
    unsigned count = 0;

    pthread_mutex_lock(&seen.lock);
    for (unsigned i = 0; i < seen.count; i++)
        count += !strcmp(seen.list[i].call, call);
    pthread_mutex_unlock(&seen.lock);
    return count;
}

const event *event_of(const char *call, unsigned n)
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

void assert_order(const char *const *calls, size_t count)
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

bool prepare(ground on)
{
    w.on = on;
    w.has_vk = on == ON_VULKAN_CPU || on == ON_TIMELINES;
    w.s = NULL;
    w.text[0] = 0;
    fault_observe(observe);
    fault_disguise_as((on == ON_TIMELINES && !w.gpu ? FAULT_TIMELINES : 0) | (w.one_by_one ? FAULT_NO_GRAPHS : 0) |
                      (w.two_families ? FAULT_TWO_FAMILIES : 0) | (w.dma_bufs ? FAULT_DMA_BUF : 0));
    fault_cuda(on < ON_CUDA ? FAULT_NO_CUDA : w.gpu ? FAULT_REAL_CUDA : FAULT_FAKE_CUDA);
    fake_cuda_driver.vulkan = NULL;
    fake_cuda_driver.device_count = 1;
    w.desc = (tandem_session_desc){.struct_bytes = sizeof w.desc,
                                   .backend = on < ON_CUDA ? TANDEM_BACKEND_CPU : TANDEM_BACKEND_CUDA,
                                   .cpu_threads = 1,
                                   .error_text = w.text,
                                   .error_text_bytes = sizeof w.text};
    if (w.has_vk) {
        static const char *extensions[INTEGRATION_EXTENSIONS + 2];
        VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
        VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                                  .pNext = &id};
        vku_found found;

        w.options.validation = !w.two_families;
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
        w.vulkan = vku_engine(&w.vk);
        w.vulkan.get_instance_proc_addr = fault_gipa;
        memcpy(extensions, w.vulkan.enabled_extensions, w.vulkan.enabled_extension_count * sizeof *extensions);
        w.vulkan.enabled_extensions = extensions;
        if (w.gpu)
            w.vulkan.queue = VK_NULL_HANDLE; /* without one there is no inline rung */
        w.vulkan.lock_queue = w.vulkan.unlock_queue = lock_queue;
        if (w.dma_bufs)
            extensions[w.vulkan.enabled_extension_count++] = "VK_EXT_external_memory_dma_buf"; /* nor this */
        if (on == ON_TIMELINES && !w.gpu)
            extensions[w.vulkan.enabled_extension_count++] = "VK_KHR_external_semaphore_fd"; /* lavapipe has it not */
        w.desc.vulkan = &w.vulkan;
    }
    w.options = (vku_options){0};
    forget();
    return true;
}

tandem_status create(void)
{
    tandem_status status = tandem_session_create(&w.desc, &w.s);

    w.info.struct_bytes = sizeof w.info;
    if (w.s)
        assert_int_equal(tandem_session_info(w.s, &w.info), TANDEM_OK);
    return status;
}

void leave(void)
{
    if (w.s)
        assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    fault_observe(NULL);
    fault_disguise_as(0);
    w.one_by_one = w.two_families = w.dma_bufs = false;
    assert_int_equal(fault_wrong_closes(), 0);
    if (!w.has_vk)
        return;
    vku_close(&w.vk);
    if (w.vk.errors)
        fail_msg("validation: %s", w.vk.last_text);
    w.has_vk = false;
}

void enter(ground on)
{
    if (!prepare(on))
        skip();
    if (create() != TANDEM_OK)
        fail_msg("no session: %s", w.text);
    assert_int_equal(w.info.rung, on == ON_TIMELINES ? TANDEM_RUNG_TIMELINE
                                  : on == ON_CUDA    ? TANDEM_RUNG_HOST
                                                     : TANDEM_RUNG_CPU);
}

tandem_mem new_mem(uint64_t bytes)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = bytes};
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(w.s, &desc, &mem), TANDEM_OK);
    return mem;
}

tandem_timeline new_timeline(tandem_signaller signaller)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller};
    tandem_timeline timeline;

    assert_int_equal(tandem_timeline_create(w.s, &desc, &timeline), TANDEM_OK);
    return timeline;
}

tandem_job new_job(tandem_mem mem, tandem_point wait, tandem_point signal)
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

tandem_ticket submit(const tandem_job *job)
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

tandem_job_report state_of(tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_poll(w.s, ticket, &report), TANDEM_OK);
    return report;
}

tandem_job_report ended(tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_wait(w.s, ticket, LONG_NS, &report), TANDEM_OK);
    return report;
}

void sleep_ms(unsigned ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

uint64_t value_of(tandem_timeline timeline)
{
    uint64_t value;

    assert_int_equal(tandem_timeline_value(w.s, timeline, &value), TANDEM_OK);
    return value;
}

void run_frame(tandem_mem mem, tandem_timeline engines, tandem_timeline ours, uint64_t value)
{
    const tandem_job job = new_job(mem, (tandem_point){engines, value}, (tandem_point){ours, value});
    const tandem_ticket ticket = submit(&job);

    assert_int_equal(tandem_timeline_signal(w.s, engines, value), TANDEM_OK);
    assert_int_equal(ended(ticket).state, TANDEM_JOB_DONE);
    assert_int_equal(tandem_point_wait(w.s, job.signal, LONG_NS), TANDEM_OK);
}

bool prepare_fake(ground on)
{
    const bool gpu = w.gpu;
    bool there;

    w.gpu = false;
    there = prepare(on);
    w.gpu = gpu;
    return there;
}
