/* What sessions compute: in memory of their own, of the caller's and of the engine's, in frames and from images.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interop/base.h"
#include "kernels/attention/attention.h"
#include "tests/plugin/session/rig.h"

static void compute(rig *r)
{
    static const struct {
        uint32_t precision, causal, smooth;
        double bound;
    } cases[] = {
        {TANDEM_PRECISION_F16, 0, 0, 2e-3}, {TANDEM_PRECISION_F16, 1, 0, 2e-3},
        {TANDEM_PRECISION_AUTO, 0, 0, 2e-3}, {TANDEM_PRECISION_8B, 0, 0, 0.08},
        {TANDEM_PRECISION_8B, 1, TANDEM_SMOOTH_K | TANDEM_SMOOTH_V, 0.08},
    };
    const tandem_mem mem = new_mem(r, MEM_BYTES);
    const tandem_timeline ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 10);
    float *data = calloc(1, MEM_BYTES);
    bool released = false;

    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tandem_job job = new_job(mem);
        tandem_job_report report;
        tandem_ticket ticket;

        job.op.attention.precision = cases[i].precision;
        job.op.attention.causal = cases[i].causal;
        job.op.attention.smooth = cases[i].smooth;
        job.signal = (tandem_point){ours, 11 + i};
        fill(data, i);
        transfer(r, mem, data, MEM_BYTES, true);
        released = true;
        ticket = submit(r, &job);
        assert_int_equal(tandem_point_wait(r->s, job.signal, LONG_NS), TANDEM_OK);
        report = ended(r, ticket);
        assert_int_equal(report.state, TANDEM_JOB_DONE);
        assert_int_equal(report.status, TANDEM_OK);
        assert_int_equal(report.precision, cases[i].precision ? cases[i].precision : TANDEM_PRECISION_F16);
        assert_true(report.submit_ns && report.begin_ns && report.end_ns > report.begin_ns);
        assert_true(report.begin_ns + 5 * MS > report.submit_ns && report.end_ns < td_now_ns() + 5 * MS);
        assert_int_equal(value_of(r, ours), 11 + i);
        transfer(r, mem, data, MEM_BYTES, false);
        check_output(&job, data, cases[i].bound);
    }
    assert_true(released);
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    assert_int_equal(r->info.jobs_submitted, sizeof cases / sizeof *cases);
    assert_int_equal(r->info.jobs_done, sizeof cases / sizeof *cases);
    free(data);
}

static void test_compute(void **state)
{
    (void)state;
    each_kind(compute);
}

/* Memory of the caller's, page-aligned; strided views that interleave inputs and output; no lse. */
static void caller_memory(rig *r)
{
    enum { PITCH = 4 * DIM, N = 64 };
    const uint64_t bytes = 65536;
    float *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_HOST, .bytes = bytes, .host = host};
    const tandem_view view = {.dtype = TANDEM_DTYPE_F32, .stride_row = PITCH};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    tandem_attention *a = &job.op.attention;
    double ref[N * DIM];
    tandem_mem mem;
    void *address;
    uint64_t seed = 3;

    assert_true(host != MAP_FAILED);
    assert_int_equal(tandem_mem_create(r->s, &desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(r->s, mem, &address), TANDEM_OK);
    assert_ptr_equal(address, host);
    for (uint32_t i = 0; i < N * PITCH; i++)
        host[i] = (float)noise(&seed);
    *a = (tandem_attention){.q = view,
                            .k = view,
                            .v = view,
                            .o = view,
                            .batch = 1,
                            .heads = 1,
                            .kv_heads = 1,
                            .q_len = N,
                            .kv_len = N,
                            .head_dim = DIM,
                            .precision = TANDEM_PRECISION_F16};
    a->q.mem = a->k.mem = a->v.mem = a->o.mem = mem;
    a->k.offset_bytes = DIM * sizeof(float);
    a->v.offset_bytes = 2 * DIM * sizeof(float);
    a->o.offset_bytes = 3 * DIM * sizeof(float);
    td_ref_attention(a, host, host + DIM, host + 2 * DIM, ref, NULL);
    assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
    for (uint32_t row = 0; row < N; row++)
        for (uint32_t c = 0; c < DIM; c++)
            assert_true(fabs((double)host[row * PITCH + 3 * DIM + c] - ref[row * DIM + c]) < 5e-3);
    {
        const float before = host[5];

        /* One channel further, and O would run into the next row's Q. */
        REFUSED(r, ARG, "o.offset_bytes is 388: it overlaps q at 0", a->o.offset_bytes += sizeof(float);
                tandem_ticket ticket; got = tandem_submit(r->s, &job, &ticket));
        assert_true(host[5] == before);
        a->o.offset_bytes -= sizeof(float);
    }
    {
        /* The second half once more, as a mem of its own: O there, K in the whole at the same bytes. CUDA registers
         * memory once only. */
        const uint64_t half = bytes / 2;
        const tandem_mem_desc again = {
            .struct_bytes = sizeof again, .source = TANDEM_MEM_HOST, .bytes = half, .host = (char *)host + half};
        tandem_mem other;
        tandem_ticket ticket;

        if (r->info.backend == TANDEM_BACKEND_CPU) {
            assert_int_equal(tandem_mem_create(r->s, &again, &other), TANDEM_OK);
            a->o.mem = other;
            a->o.offset_bytes = 0;
            a->q_len = 8;
            a->k.offset_bytes = half;
            a->kv_len = 8;
            REFUSED(r, ARG, "o.offset_bytes is 0: it overlaps k at 32768", got = tandem_submit(r->s, &job, &ticket));
            a->k.offset_bytes = 0;
            assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
            assert_int_equal(tandem_mem_destroy(r->s, other), TANDEM_OK);
        }
    }
    if (r->has_vk) {
        tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};

        assert_int_equal(tandem_mem_get_vulkan(r->s, mem, &vulkan), TANDEM_OK);
        assert_true(vulkan.buffer && vulkan.memory && vulkan.offset == 0 && vulkan.bytes == bytes);
    }
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
    host[0] = 1; /* still the caller's */
    munmap(host, bytes);
}

static void test_caller_memory(void **state)
{
    (void)state;
    each_kind_that_shares(caller_memory);
}

/* Memory of the engine's: a part of an allocation that it made for export, as an fd or as a VkDeviceMemory. */
static void engines_memory(rig *r, tandem_mem_source source)
{
    enum { ALLOCATION = 1 << 20, OFFSET = 1 << 16 };
    const VkExternalMemoryBufferCreateInfo external = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                       .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    const VkBufferCreateInfo buffer_info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .pNext = &external,
        .size = ALLOCATION,
        .usage =
            VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
    };
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkExportMemoryAllocateInfo export = {.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                               .pNext = r->info.rung == TANDEM_RUNG_INLINE ? &flags : NULL,
                                               .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    const PFN_vkGetMemoryFdKHR get_fd =
        (PFN_vkGetMemoryFdKHR)r->vk.GetDeviceProcAddr(r->vk.device, "vkGetMemoryFdKHR");
    const VkPipelineStageFlags transfer_stage = VK_PIPELINE_STAGE_TRANSFER_BIT,
                               none = VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT;
    VkMemoryAllocateInfo memory_info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &export};
    VkMemoryGetFdInfoKHR fd_info = {.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
                                    .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    VkBufferMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER, .size = VK_WHOLE_SIZE};
    tandem_mem_desc desc = {
        .struct_bytes = sizeof desc, .source = source, .bytes = MEM_BYTES, .offset_bytes = OFFSET, .fd = -1};
    const VkBufferCopy up = {.dstOffset = OFFSET, .size = MEM_BYTES}, down = {.srcOffset = OFFSET, .size = MEM_BYTES};
    VkMemoryRequirements needs;
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    VkDeviceMemory memory;
    VkBuffer buffer;
    VkCommandBuffer commands;
    vku_buffer staging;
    tandem_mem mem;
    tandem_job job;
    int fds;

    assert_non_null(get_fd);
    assert_int_equal(r->vk.CreateBuffer(r->vk.device, &buffer_info, NULL, &buffer), VK_SUCCESS);
    r->vk.GetBufferMemoryRequirements(r->vk.device, buffer, &needs);
    memory_info.allocationSize = desc.allocation_bytes = needs.size;
    for (uint32_t i = r->vk.memory.memoryTypeCount; i-- > 0;)
        if ((needs.memoryTypeBits >> i & 1) &&
            (r->vk.memory.memoryTypes[i].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT))
            memory_info.memoryTypeIndex = i;
    assert_int_equal(r->vk.AllocateMemory(r->vk.device, &memory_info, NULL, &memory), VK_SUCCESS);
    assert_int_equal(r->vk.BindBufferMemory(r->vk.device, buffer, memory, 0), VK_SUCCESS);
    fds = vku_open_fds();
    if (source == TANDEM_MEM_FD) {
        fd_info.memory = memory;
        assert_int_equal(get_fd(r->vk.device, &fd_info, &desc.fd), VK_SUCCESS);
    } else {
        desc.vulkan_memory = (uint64_t)(uintptr_t)memory;
    }
    assert_int_equal(tandem_mem_create(r->s, &desc, &mem), TANDEM_OK);
    if (source == TANDEM_MEM_FD) {
        assert_true(fcntl(desc.fd, F_GETFD) >= 0);
        close(desc.fd);
        REFUSED(r, UNSUPPORTED, say("mem is 0x%" PRIx64, mem), got = tandem_mem_get_vulkan(r->s, mem, &vulkan));
    } else {
        assert_int_equal(tandem_mem_get_vulkan(r->s, mem, &vulkan), TANDEM_OK);
        assert_true(vulkan.buffer && vulkan.memory == memory && vulkan.offset == OFFSET && vulkan.bytes == MEM_BYTES);
    }
    assert_int_equal(vku_buffer_create(&r->vk, MEM_BYTES, buffer_info.usage, &staging), VK_SUCCESS);
    fill(staging.host, 8);
    if (source == TANDEM_MEM_VULKAN) { /* the session's buffer on the same bytes */
        float data[FLOATS];

        memcpy(data, staging.host, sizeof data);
        transfer(r, mem, data, sizeof data, true);
        job = new_job(mem);
        assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
        transfer(r, mem, data, sizeof data, false);
        check_output(&job, data, 2e-3);
    }
    commands = vku_begin(&r->vk);
    if (source == TANDEM_MEM_FD)
        REFUSED(r, UNSUPPORTED, say("mem is 0x%" PRIx64, mem),
                got = tandem_record_release(r->s, commands, mem, transfer_stage, VK_ACCESS_TRANSFER_WRITE_BIT));
    r->vk.CmdCopyBuffer(commands, staging.buffer, buffer, 1, &up);
    barrier.buffer = buffer;
    barrier.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
    barrier.srcQueueFamilyIndex = r->vk.queue_family;
    barrier.dstQueueFamilyIndex = VK_QUEUE_FAMILY_EXTERNAL;
    r->vk.CmdPipelineBarrier(commands, transfer_stage, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, 0, 0, NULL, 1, &barrier, 0,
                             NULL);
    assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);
    job = new_job(mem);
    assert_int_equal(ended(r, submit(r, &job)).state, TANDEM_JOB_DONE);
    commands = vku_begin(&r->vk);
    barrier.srcAccessMask = 0;
    barrier.dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT;
    barrier.srcQueueFamilyIndex = VK_QUEUE_FAMILY_EXTERNAL;
    barrier.dstQueueFamilyIndex = r->vk.queue_family;
    r->vk.CmdPipelineBarrier(commands, none, transfer_stage, 0, 0, NULL, 1, &barrier, 0, NULL);
    r->vk.CmdCopyBuffer(commands, buffer, staging.buffer, 1, &down);
    vku_full_barrier(&r->vk, commands);
    assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);
    check_output(&job, staging.host, 2e-3);
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
    vku_buffer_destroy(&r->vk, &staging);
    assert_int_equal(vku_open_fds(), fds);
    r->vk.DestroyBuffer(r->vk.device, buffer, NULL);
    r->vk.FreeMemory(r->vk.device, memory, NULL); /* stayed the engine's */
}

static void test_engines_memory(void **state)
{
    bool ran = false;

    (void)state;
    for (rig_kind kind = ON_VULKAN; kind < KINDS; kind++) {
        rig r;

        if (!rig_open(&r, kind))
            continue;
        if (r.info.backend == TANDEM_BACKEND_CUDA && r.info.rung != TANDEM_RUNG_COPY) {
            if (r.info.rung != TANDEM_RUNG_INLINE)
                engines_memory(&r, TANDEM_MEM_FD);
            engines_memory(&r, TANDEM_MEM_VULKAN);
            ran = true;
        }
        rig_close(&r);
    }
    if (!ran)
        skip(); /* only CUDA sees the engine's device memory */
}

/* Frames through Vulkan: the engine uploads, the session computes, the engine reads back; nobody waits in between. */
static void frames(rig *r, uint32_t in_flight)
{
    enum { FRAMES = 24, WARM = 8 };
    struct {
        vku_buffer staging;
        tandem_mem mem;
        tandem_mem_vulkan vulkan;
        VkCommandBuffer up, down;
        tandem_job job;
        tandem_ticket ticket;
    } f[3];
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0),
                          done = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    VkSemaphore engines_vk, ours_vk, done_vk;
    VkCommandBuffer used[2 * FRAMES];
    uint32_t used_count = 0;
    const VkBufferCopy whole = {.size = MEM_BYTES};
    tandem_info warm = {.struct_bytes = sizeof warm}, after = {.struct_bytes = sizeof after};

    assert_int_equal(tandem_timeline_get_vulkan(r->s, engines, &engines_vk), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(r->s, ours, &ours_vk), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(r->s, done, &done_vk), TANDEM_OK);
    for (uint32_t i = 0; i < in_flight; i++) {
        f[i].mem = new_mem(r, MEM_BYTES);
        f[i].vulkan.struct_bytes = sizeof f[i].vulkan;
        f[i].job = new_job(f[i].mem);
        assert_int_equal(tandem_mem_get_vulkan(r->s, f[i].mem, &f[i].vulkan), TANDEM_OK);
        assert_true(f[i].vulkan.buffer && f[i].vulkan.memory && f[i].vulkan.bytes == MEM_BYTES);
        assert_int_equal(vku_buffer_create(&r->vk, MEM_BYTES,
                                           VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                                           &f[i].staging),
                         VK_SUCCESS);
    }
    for (uint64_t n = 1; n <= FRAMES + in_flight - 1; n++) {
        if (n <= FRAMES) {
            const uint32_t i = (uint32_t)(n % in_flight);

            if (n == WARM + 1)
                assert_int_equal(tandem_session_info(r->s, &warm), TANDEM_OK);
            fill(f[i].staging.host, n);
            f[i].up = vku_begin(&r->vk);
            r->vk.CmdCopyBuffer(f[i].up, f[i].staging.buffer, f[i].vulkan.buffer, 1, &whole);
            assert_int_equal(tandem_record_release(r->s, f[i].up, f[i].mem, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                                   VK_ACCESS_TRANSFER_WRITE_BIT),
                             TANDEM_OK);
            assert_int_equal(vku_submit(&r->vk, f[i].up, (vku_point){0}, (vku_point){engines_vk, n}, VK_NULL_HANDLE),
                             VK_SUCCESS);
            if (n % 3) /* else it is noticed */
                assert_int_equal(tandem_timeline_submitted(r->s, engines, n), TANDEM_OK);
            f[i].job.wait = (tandem_point){engines, n};
            f[i].job.signal = (tandem_point){ours, n};
            f[i].ticket = submit(r, &f[i].job);
        }
        if (n >= in_flight) {
            const uint64_t old = n - in_flight + 1;
            const uint32_t i = (uint32_t)(old % in_flight);

            f[i].down = vku_begin(&r->vk);
            assert_int_equal(tandem_record_acquire(r->s, f[i].down, f[i].mem, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                                   VK_ACCESS_TRANSFER_READ_BIT),
                             TANDEM_OK);
            r->vk.CmdCopyBuffer(f[i].down, f[i].vulkan.buffer, f[i].staging.buffer, 1, &whole);
            vku_full_barrier(&r->vk, f[i].down);
            assert_int_equal(
                vku_submit(&r->vk, f[i].down, (vku_point){ours_vk, old}, (vku_point){done_vk, old}, VK_NULL_HANDLE),
                VK_SUCCESS);
            assert_int_equal(tandem_point_wait(r->s, (tandem_point){done, old}, LONG_NS), TANDEM_OK);
            check_output(&f[i].job, f[i].staging.host, 2e-3);
            assert_int_equal(ended(r, f[i].ticket).state, TANDEM_JOB_DONE);
            used[used_count++] = f[i].up;
            used[used_count++] = f[i].down;
        }
    }
    /* The validation layer does not learn from an exported timeline that commands are done. */
    assert_int_equal(r->vk.DeviceWaitIdle(r->vk.device), VK_SUCCESS);
    r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, used_count, used);
    assert_int_equal(tandem_session_info(r->s, &after), TANDEM_OK);
    if (gpu_signals(r)) {
        assert_int_equal(after.cuda_copies, warm.cuda_copies);
        assert_int_equal(after.cuda_allocations, warm.cuda_allocations);
        assert_int_equal(after.cuda_host_waits, warm.cuda_host_waits);
        assert_true(after.cuda_launches >= warm.cuda_launches + FRAMES - WARM); /* a graph each */
    }
    assert_int_equal(after.host_bytes, warm.host_bytes);
    assert_int_equal(after.device_bytes, warm.device_bytes);
    for (uint32_t i = 0; i < in_flight; i++) {
        assert_int_equal(tandem_mem_destroy(r->s, f[i].mem), TANDEM_OK);
        vku_buffer_destroy(&r->vk, &f[i].staging);
    }
    assert_int_equal(tandem_timeline_destroy(r->s, done), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, ours), TANDEM_OK);
    assert_int_equal(tandem_timeline_destroy(r->s, engines), TANDEM_OK);
}

static void test_frames(void **state)
{
    bool ran = false;

    (void)state;
    for (rig_kind kind = ON_VULKAN; kind < KINDS; kind++)
        for (uint32_t in_flight = 2; in_flight <= 3; in_flight++) {
            rig r;

            if (!rig_prepare(&r, kind))
                continue;
            r.desc.frames_in_flight = in_flight;
            if (!rig_start(&r))
                continue;
            frames(&r, in_flight);
            rig_close(&r);
            ran = true;
        }
    if (!ran)
        skip();
}

/* An image goes through pack, a job and unpack; the engine's own semaphores do the hand-over. */
static void pack_frame(rig *r)
{
    enum { SIDE = 16, TILE = 8, TILES = 4, ROWS_ = TILE * TILE, VIEW = TILES * ROWS_ * DIM };
    const VkExportSemaphoreCreateInfo export = {.sType = VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO,
                                                .handleTypes = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .pNext = gpu_signals(r) ? &export : NULL,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
                                            .initialValue = 7};
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    tandem_timeline_desc desc = {.struct_bytes = sizeof desc};
    tandem_timeline timelines[2];
    VkSemaphore semaphores[2], seen;
    vku_image from, to;
    float pixels[SIDE * SIDE * 4], result[SIDE * SIDE * 4];
    float *packed = calloc(TILES * ROWS_, DIM * sizeof *packed);
    double *ref = calloc(TILES * ROWS_, DIM * sizeof *ref);
    const tandem_mem mem = new_mem(r, 2 * VIEW * sizeof(float));
    tandem_pack pack;
    tandem_job job;
    tandem_view view;
    VkCommandBuffer commands[2];
    uint64_t seed = 5;
    uint32_t tiles_x, tiles_y;

    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(r->vk.CreateSemaphore(r->vk.device, &info, NULL, &semaphores[i]), VK_SUCCESS);
        desc.signaller = i;
        desc.vulkan_semaphore = (uint64_t)(uintptr_t)semaphores[i];
        assert_int_equal(tandem_timeline_create(r->s, &desc, &timelines[i]), TANDEM_OK);
        assert_int_equal(tandem_timeline_get_vulkan(r->s, timelines[i], &seen), TANDEM_OK);
        assert_true(seen == semaphores[i]);
        assert_int_equal(value_of(r, timelines[i]), 7);
    }
    for (uint32_t i = 0; i < SIDE * SIDE * 4; i++)
        pixels[i] = (float)noise(&seed);
    assert_int_equal(
        vku_image_create(&r->vk, VK_FORMAT_R32G32B32A32_SFLOAT, SIDE, SIDE, VK_IMAGE_USAGE_SAMPLED_BIT, &from),
        VK_SUCCESS);
    assert_int_equal(
        vku_image_create(&r->vk, VK_FORMAT_R32G32B32A32_SFLOAT, SIDE, SIDE, VK_IMAGE_USAGE_STORAGE_BIT, &to),
        VK_SUCCESS);
    assert_int_equal(vku_image_upload(&r->vk, &from, pixels, VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL), VK_SUCCESS);
    assert_int_equal(vku_image_upload(&r->vk, &to, pixels, VK_IMAGE_LAYOUT_GENERAL), VK_SUCCESS);

    view = (tandem_view){.mem = mem,
                         .dtype = TANDEM_DTYPE_F32,
                         .stride_batch = ROWS_ * DIM,
                         .stride_head = ROWS_ * DIM,
                         .stride_row = DIM};
    pack = (tandem_pack){.struct_bytes = sizeof pack,
                         .image_count = 1,
                         .images = {from.view},
                         .layout = VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL,
                         .width = SIDE,
                         .height = SIDE,
                         .tile_width = TILE,
                         .tile_height = TILE,
                         .channels = 4,
                         .view_channels = DIM,
                         .view = view};
    assert_int_equal(tandem_pack_tiles(r->s, &pack, &tiles_x, &tiles_y), TANDEM_OK);
    assert_int_equal(tiles_x * tiles_y, TILES);
    commands[0] = vku_begin(&r->vk);
    assert_int_equal(tandem_record_pack(r->s, commands[0], &pack), TANDEM_OK);
    assert_int_equal(
        tandem_record_release(r->s, commands[0], mem, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT),
        TANDEM_OK);
    assert_int_equal(vku_submit(&r->vk, commands[0], (vku_point){0}, (vku_point){semaphores[0], 8}, VK_NULL_HANDLE),
                     VK_SUCCESS);

    job = (tandem_job){.struct_bytes = sizeof job,
                       .operation = TANDEM_OPERATION_ATTENTION,
                       .wait = {timelines[0], 8},
                       .signal = {timelines[1], 8}};
    job.op.attention = (tandem_attention){.q = view,
                                          .k = view,
                                          .v = view,
                                          .o = view,
                                          .batch = TILES,
                                          .heads = 1,
                                          .kv_heads = 1,
                                          .q_len = ROWS_,
                                          .kv_len = ROWS_,
                                          .head_dim = DIM,
                                          .precision = TANDEM_PRECISION_F16};
    job.op.attention.o.offset_bytes = VIEW * sizeof(float);
    submit(r, &job);

    pack.images[0] = to.view;
    pack.layout = VK_IMAGE_LAYOUT_GENERAL;
    pack.format = to.format;
    pack.channels = 3;
    pack.view = job.op.attention.o;
    commands[1] = vku_begin(&r->vk);
    assert_int_equal(
        tandem_record_acquire(r->s, commands[1], mem, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT),
        TANDEM_OK);
    assert_int_equal(tandem_record_unpack(r->s, commands[1], &pack), TANDEM_OK);
    assert_int_equal(
        vku_submit(&r->vk, commands[1], (vku_point){semaphores[1], 8}, (vku_point){semaphores[0], 9}, VK_NULL_HANDLE),
        VK_SUCCESS);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){timelines[0], 9}, LONG_NS), TANDEM_OK);
    assert_int_equal(vku_image_readback(&r->vk, &to, result), VK_SUCCESS);

    for (uint32_t t = 0; t < TILES; t++)
        for (uint32_t p = 0; p < ROWS_; p++)
            for (uint32_t c = 0; c < 4; c++)
                packed[(t * ROWS_ + p) * DIM + c] =
                    pixels[((t / 2 * TILE + p / TILE) * SIDE + t % 2 * TILE + p % TILE) * 4 + c];
    td_ref_attention(&job.op.attention, packed, packed, packed, ref, NULL);
    for (uint32_t t = 0; t < TILES; t++)
        for (uint32_t p = 0; p < ROWS_; p++)
            for (uint32_t c = 0; c < 4; c++) {
                const float got = result[((t / 2 * TILE + p / TILE) * SIDE + t % 2 * TILE + p % TILE) * 4 + c];
                const double want = c < 3 ? ref[(t * ROWS_ + p) * DIM + c] : 1;

                if (!(fabs((double)got - want) < 5e-3))
                    fail_msg("tile %u, pixel %u, channel %u is %g, not %g (%g before)", t, p, c, (double)got, want,
                             (double)pixels[((t / 2 * TILE + p / TILE) * SIDE + t % 2 * TILE + p % TILE) * 4 + c]);
            }
    r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, 2, commands);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(tandem_timeline_destroy(r->s, timelines[i]), TANDEM_OK);
        r->vk.DestroySemaphore(r->vk.device, semaphores[i], NULL); /* stayed the engine's */
    }
    vku_image_destroy(&r->vk, &from);
    vku_image_destroy(&r->vk, &to);
    free(packed);
    free(ref);
}

static void test_pack_frame(void **state)
{
    rig r;

    (void)state;
    if (!rig_open(&r, ON_VULKAN))
        skip();
    pack_frame(&r);
    rig_close(&r);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_compute),
    cmocka_unit_test(test_caller_memory),
    cmocka_unit_test(test_engines_memory),
    cmocka_unit_test(test_frames),
    cmocka_unit_test(test_pack_frame),
};
const test_cases session_results_cases = TEST_CASES(cases);
