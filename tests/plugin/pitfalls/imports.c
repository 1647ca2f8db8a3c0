/* Pitfalls of what is imported: who closes an fd, what an import says, images, and which device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/plugin/pitfalls/rig.h"

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
    assert_int_equal(fault_get_memory_fd()(w.vk.device, &info, &fd), VK_SUCCESS);
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
    assert_int_equal(fault_get_memory_fd()(w.vk.device, &info, &desc.fd), VK_SUCCESS);
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

/* --- dma-bufs: a memfd stands for one, and the device seems to import it --- */

enum { DMA_BYTES = 65536, DMA_OFFSET = 4096 };

static tandem_mem_desc dma_buf(int fd)
{
    return TANDEM_INIT(tandem_mem_desc,
                       .source = TANDEM_MEM_FD,
                       .handle_type = TANDEM_HANDLE_DMA_BUF,
                       .fd = fd,
                       .allocation_bytes = DMA_BYTES,
                       .offset_bytes = DMA_OFFSET,
                       .bytes = MEM_BYTES);
}

static int make_memfd(void)
{
    const int fd = memfd_create("dma-buf", MFD_CLOEXEC);

    assert_true(fd >= 0 && !ftruncate(fd, DMA_BYTES));
    return fd;
}

/* Imported into Vulkan by a duplicate that is then the device's, with a buffer over the part; and as it is nobody's on the CPU,
 * copied there and back. */
static void dma_bufs_are_imported(void **state)
{
    const uint64_t handle = (uint64_t)VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT;
    tandem_mem_vulkan vulkan = TANDEM_INIT(tandem_mem_vulkan);
    tandem_timeline engines, ours;
    int fds = 0;

    (void)state;
    w.dma_bufs = true;
    if (!prepare_fake(ON_VULKAN_CPU))
        skip();
    assert_int_equal(create(), TANDEM_OK);
    engines = new_timeline(TANDEM_SIGNALLER_ENGINE);
    ours = new_timeline(TANDEM_SIGNALLER_SESSION);
    for (uint32_t round = 1; round <= 2; round++) {
        const int fd = make_memfd();
        const tandem_mem_desc desc = dma_buf(fd);
        tandem_mem mem;
        void *host;

        forget();
        assert_int_equal(tandem_mem_create(w.s, &desc, &mem), TANDEM_OK);
        assert_int_equal(event_of("vkCreateBuffer", 0)->handles, handle);
        assert_int_equal(event_of("vkCreateBuffer", 0)->bytes, MEM_BYTES);
        assert_int_equal(event_of("vkAllocateMemory", 0)->type, handle);
        assert_int_equal(event_of("vkAllocateMemory", 0)->bytes, DMA_BYTES);
        assert_int_not_equal(event_of("vkAllocateMemory", 0)->handle, fd);
        assert_int_equal(event_of("vkBindBufferMemory", 0)->handle, DMA_OFFSET);
        assert_int_equal(close(fd), 0); /* it was the caller's */
        assert_int_equal(tandem_mem_get_vulkan(w.s, mem, &vulkan), TANDEM_OK);
        assert_true(vulkan.buffer && vulkan.memory && vulkan.offset == DMA_OFFSET && vulkan.bytes == MEM_BYTES);
        assert_int_equal(tandem_mem_host(w.s, mem, &host), TANDEM_OK);
        run_frame(mem, engines, ours, round);
        forget();
        assert_int_equal(tandem_mem_destroy(w.s, mem), TANDEM_OK);
        assert_int_equal(count_of("vkFreeMemory"), 2); /* with its staging memory */
        if (round == 1)
            fds = vku_open_fds(); /* a GPU's driver opens some for itself with the first frame */
        assert_int_equal(vku_open_fds(), fds);
    }
    leave();
}

static void refuse_handle(const tandem_mem_desc *desc, tandem_status status, const char *expected)
{
    const int fds = vku_open_fds();
    char text[400];
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(w.s, desc, &mem), status);
    tandem_error_text(w.s, text, sizeof text);
    if (!strstr(text, expected))
        fail_msg("'%s' is not in '%s'", expected, text);
    assert_int_equal(vku_open_fds(), fds);
}

static void handles_are_refused(void **state)
{
    const int fd = make_memfd();
    tandem_mem_desc desc = dma_buf(fd), changed;

    (void)state;
    w.dma_bufs = true;
    if (!prepare_fake(ON_VULKAN_CPU))
        skip();
    assert_int_equal(create(), TANDEM_OK);
#define REFUSED(status, text, ...) (changed = desc, __VA_ARGS__, refuse_handle(&changed, TANDEM_ERROR_##status, text))
    REFUSED(ARG, "desc.handle_type is 3; it must be 0 (OPAQUE_FD), 1 (DMA_BUF) or 2 (WIN32)", changed.handle_type = 3);
    REFUSED(UNSUPPORTED, "desc.handle_type is 2 (WIN32): this system has file descriptors", changed.handle_type = 2);
    REFUSED(ARG, "desc.handle_type is 1, but desc.source is 0, not 2 (FD)", changed.source = 0);
    REFUSED(ARG, "desc.reserved2 is 1, not 0", changed.reserved2 = 1);
    REFUSED(UNSUPPORTED, "desc.dedicated is 1", changed.dedicated = 1);
    REFUSED(ARG, "but desc.fd", changed.allocation_bytes = 2 * DMA_BYTES);
    REFUSED(ARG, "desc.offset_bytes is 65536", changed.offset_bytes = DMA_BYTES);
    REFUSED(ARG, "offset is 4097, not a multiple of", changed.offset_bytes = DMA_OFFSET + 1);
    fault_arm(&(fault_plan){FAULT_VULKAN, "vkAllocateMemory", 1, false, VK_ERROR_OUT_OF_DEVICE_MEMORY, 0});
    REFUSED(NOMEM, "vkAllocateMemory", changed.fd = fd); /* and the duplicate is closed */
    fault_disarm();
    fault_arm(&(fault_plan){FAULT_VULKAN, "vkGetMemoryFdPropertiesKHR", 1, false, VK_ERROR_INVALID_EXTERNAL_HANDLE, 0});
    REFUSED(ARG, "vkGetMemoryFdPropertiesKHR", changed.fd = fd); /* no dma-buf */
    fault_disarm();
    leave();

    /* Who does not import any says what would. */
    if (!prepare_fake(ON_VULKAN_CPU))
        skip();
    assert_int_equal(create(), TANDEM_OK);
    REFUSED(UNSUPPORTED, "VK_EXT_external_memory_dma_buf is not enabled", changed.fd = fd);
    leave();
    assert_true(prepare_fake(ON_TIMELINES));
    assert_int_equal(create(), TANDEM_OK);
    REFUSED(UNSUPPORTED, "CUDA imports none; the inline, copy and cpu rungs take it", changed.fd = fd);
    leave();
    assert_true(prepare_fake(ON_HOST));
    assert_int_equal(create(), TANDEM_OK);
    REFUSED(UNSUPPORTED, "without Vulkan nobody imports it: map it, and give it as HOST (1)", changed.fd = fd);
    leave();
#undef REFUSED
    assert_int_equal(close(fd), 0);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(dma_bufs_are_imported),
    cmocka_unit_test(handles_are_refused),
#define X(n) cmocka_unit_test(pitfall_##n),
    PITFALLS_OF_IMPORTS(X)
#undef X
};
const test_cases pitfalls_imports_cases = TEST_CASES(cases);
