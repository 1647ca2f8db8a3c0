/* Memory of every kind, timelines, and the barriers that hand memory over.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <fcntl.h>

#include "interop/os/opaque.h"
#include "interop/vk/table.h"
#include "tests/interop/vk/rig.h"
#include "tests/limits.h"

/* Bytes travel mem -> staging and staging -> mem by the device, with the barriers that a session records. */
static void check_round_trip(td_vk_mem *mem, bool external)
{
    uint32_t words = (uint32_t)(mem->bytes / 4);
    VkBufferCopy copy = {.size = words * 4ull};
    VkCommandBuffer commands;
    vku_buffer staging;
    uint32_t *out;

    assert_vk(vku_buffer_create(&gpu, copy.size, VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                                &staging));
    out = staging.host;
    for (uint32_t i = 0; i < words; i++)
        out[i] = i * 2654435761u + 17;
    commands = vku_begin(&gpu);
    gpu.CmdCopyBuffer(commands, staging.buffer, mem->buffer, 1, &copy);
    td_vk_record_release(vk, commands, mem, external, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT);
    assert_vk(vku_run(&gpu, commands));
    if (mem->host) {
        uint32_t *host = mem->host;

        for (uint32_t i = 0; i < words; i++)
            assert_int_equal(host[i], i * 2654435761u + 17);
        for (uint32_t i = 0; i < words; i++)
            host[i] = ~host[i];
    }
    memset(out, 0, copy.size);
    commands = vku_begin(&gpu);
    td_vk_record_acquire(vk, commands, mem, external, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT);
    gpu.CmdCopyBuffer(commands, mem->buffer, staging.buffer, 1, &copy);
    vku_full_barrier(&gpu, commands);
    assert_vk(vku_run(&gpu, commands));
    for (uint32_t i = 0; i < words; i++)
        assert_int_equal(out[i], mem->host ? ~(i * 2654435761u + 17) : i * 2654435761u + 17);
    vku_buffer_destroy(&gpu, &staging);
}

static void test_host_memory(void **state)
{
    const uint64_t sizes[] = {4, 4096, 4100, 1 << 20};
    struct stat stat;
    td_vk_mem mem;

    (void)state;
    if (!caps->import_host)
        skip();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *second;

        assert_ok(td_vk_mem_create_host(vk, sizes[i], STORAGE, &mem, why, sizeof why));
        assert_int_equal(mem.bytes, sizes[i]);
        assert_true(mem.owned && mem.host && mem.memfd > 2 && mem.offset == 0);
        assert_true(mem.allocation_bytes >= sizes[i] && mem.allocation_bytes % caps->host_alignment == 0);
        check_round_trip(&mem, false);
        /* Nobody can cut the file under us, the creator included. */
        assert_int_equal(fstat(mem.memfd, &stat), 0);
        assert_int_equal(stat.st_size, mem.allocation_bytes);
        assert_true(ftruncate(mem.memfd, 0) < 0);
        assert_true(ftruncate(mem.memfd, (off_t)mem.allocation_bytes + 4096) < 0);
        assert_int_equal(fcntl(mem.memfd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        /* Another mapping of the fd, as another process would make it, shows the same bytes. */
        second = mmap(NULL, mem.allocation_bytes, PROT_READ, MAP_SHARED, mem.memfd, 0);
        assert_ptr_not_equal(second, MAP_FAILED);
        assert_memory_equal(second, mem.host, mem.bytes);
        munmap(second, mem.allocation_bytes);
        td_vk_mem_free(vk, &mem);
        assert_true(!mem.buffer && !mem.memory && !mem.host);
    }
}

static void test_import_host(void **state)
{
    uint64_t page, bytes;
    unsigned char *block;
    td_vk_mem mem;
    int fd;

    (void)state;
    if (!caps->import_host)
        skip();
    page = caps->host_alignment;
    bytes = 16 * page;
    block = aligned_alloc(page, bytes + page);
    assert_non_null(block);
    memset(block, 0x5a, bytes + page);
    assert_ok(td_vk_mem_import_host(vk, block, bytes, STORAGE, &mem, why, sizeof why));
    assert_ptr_equal(mem.host, block);
    check_round_trip(&mem, false);
    assert_fails(td_vk_mem_export_fd(vk, &mem, &fd, why, sizeof why), TANDEM_ERROR_ARG, "OPAQUE_FD");
    td_vk_mem_free(vk, &mem);
    assert_int_equal(block[bytes], 0x5a);
    block[0] = 1; /* still ours */

    memset(&mem, 0x77, sizeof mem);
    assert_fails(td_vk_mem_import_host(vk, NULL, bytes, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "host");
    assert_fails(td_vk_mem_import_host(vk, block + 64, bytes, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG,
                 "host");
    assert_fails(td_vk_mem_import_host(vk, block, bytes - 4, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG,
                 "bytes");
    assert_fails(td_vk_mem_import_host(vk, block, 0, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "bytes");
    assert_fails(td_vk_mem_import_host(vk, block, bytes, 0, &mem, why, sizeof why), TANDEM_ERROR_ARG, "usage");
    assert_fails(td_vk_mem_import_host(vk, block, bytes, STORAGE, NULL, why, sizeof why), TANDEM_ERROR_ARG, "out");
    assert_fails(td_vk_mem_import_host(NULL, block, bytes, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "vk");
    assert_int_equal(((unsigned char *)&mem)[0], 0x77); /* untouched on failure */
    free(block);
}

static void test_exported_memory(void **state)
{
    td_vk_mem mem, view;
    struct stat stat;
    int fds[2];

    (void)state;
    if (!caps->export_memory)
        skip();
    assert_ok(td_vk_mem_create_export(vk, 1 << 20, STORAGE, &mem, why, sizeof why));
    assert_true(mem.owned && mem.memory && mem.allocation_bytes >= mem.bytes && mem.offset == 0 && mem.memfd <= 0);
    check_round_trip(&mem, true);
    for (int i = 0; i < 2; i++) {
        assert_ok(td_vk_mem_export_fd(vk, &mem, &fds[i], why, sizeof why));
        assert_int_equal(fstat(fds[i], &stat), 0);
    }
    assert_int_not_equal(fds[0], fds[1]);
    close(fds[0]);

    /* The other fd is imported again: the same bytes, through another VkDeviceMemory. */
    {
        VkExternalMemoryBufferCreateInfo external = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                     .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
        VkBufferCreateInfo info = {
            .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .pNext = &external, .size = mem.bytes, .usage = STORAGE};
        VkMemoryDedicatedAllocateInfo dedicated = {.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO};
        VkImportMemoryFdInfoKHR import = {.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR,
                                          .pNext = mem.dedicated ? &dedicated : NULL,
                                          .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
                                          .fd = fds[1]};
        VkMemoryAllocateInfo allocate = {
            .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &import, .allocationSize = mem.allocation_bytes};
        VkMemoryRequirements needs;

        view = (td_vk_mem){.bytes = mem.bytes, .allocation_bytes = mem.allocation_bytes, .owned = true};
        assert_vk(gpu.CreateBuffer(gpu.device, &info, NULL, &view.buffer));
        dedicated.buffer = view.buffer;
        gpu.GetBufferMemoryRequirements(gpu.device, view.buffer, &needs);
        for (uint32_t i = 0; i < gpu.memory.memoryTypeCount; i++)
            if ((needs.memoryTypeBits >> i & 1) &&
                (gpu.memory.memoryTypes[i].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)) {
                allocate.memoryTypeIndex = i;
                break;
            }
        assert_vk(gpu.AllocateMemory(gpu.device, &allocate, NULL, &view.memory)); /* and Vulkan owns the fd */
        assert_vk(gpu.BindBufferMemory(gpu.device, view.buffer, view.memory, 0));
    }
    {
        VkCommandBuffer commands = vku_begin(&gpu);
        VkBufferCopy copy = {.size = mem.bytes};
        vku_buffer staging;

        assert_vk(vku_buffer_create(&gpu, mem.bytes, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &staging));
        gpu.CmdFillBuffer(commands, mem.buffer, 0, VK_WHOLE_SIZE, 0xfeedbeef);
        td_vk_record_release(vk, commands, &mem, true, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT);
        assert_vk(vku_run(&gpu, commands));
        commands = vku_begin(&gpu);
        td_vk_record_acquire(vk, commands, &view, true, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT);
        gpu.CmdCopyBuffer(commands, view.buffer, staging.buffer, 1, &copy);
        vku_full_barrier(&gpu, commands);
        assert_vk(vku_run(&gpu, commands));
        for (uint32_t i = 0; i < mem.bytes / 4; i++)
            assert_int_equal(((uint32_t *)staging.host)[i], 0xfeedbeef);
        vku_buffer_destroy(&gpu, &staging);
    }
    td_vk_mem_free(vk, &view);
    td_vk_mem_free(vk, &mem);
}

/* Memory as an engine allocates it: exportable, and not for one buffer alone. */
static VkDeviceMemory engine_memory(uint64_t bytes)
{
    VkExternalMemoryBufferCreateInfo external = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                 .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    VkBufferCreateInfo buffer_info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .pNext = &external, .size = bytes, .usage = STORAGE};
    VkExportMemoryAllocateInfo export = {.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                         .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &export, .allocationSize = bytes};
    VkMemoryRequirements needs;
    VkDeviceMemory memory;
    VkBuffer buffer;

    assert_vk(gpu.CreateBuffer(gpu.device, &buffer_info, NULL, &buffer));
    gpu.GetBufferMemoryRequirements(gpu.device, buffer, &needs);
    gpu.DestroyBuffer(gpu.device, buffer, NULL);
    while (!(needs.memoryTypeBits >> info.memoryTypeIndex & 1))
        info.memoryTypeIndex++;
    assert_vk(gpu.AllocateMemory(gpu.device, &info, NULL, &memory));
    return memory;
}

static void test_wrapped_memory(void **state)
{
    const uint64_t part = 65536, all = 4 * part;
    const VkExternalMemoryBufferCreateInfo shared = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                     .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    const VkBufferCreateInfo buffer_info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .pNext = &shared, .size = all, .usage = STORAGE};
    VkDeviceMemory memory;
    td_vk_mem first, second;
    VkBuffer buffer;

    (void)state;
    if (!caps->export_memory)
        skip();
    memory = engine_memory(all);
    assert_ok(td_vk_mem_wrap(vk, memory, all, 0, part, false, &first, why, sizeof why));
    assert_ok(td_vk_mem_wrap(vk, memory, all, 2 * part, 2 * part, false, &second, why, sizeof why));
    assert_true(second.buffer && second.memory == memory && !second.owned && second.offset == 2 * part);
    check_round_trip(&first, true);
    check_round_trip(&second, true);
    td_vk_mem_free(vk, &second);
    check_round_trip(&first, true); /* the engine's memory outlives a wrapping */
    td_vk_mem_free(vk, &first);
    /* The engine's own buffer over it, and a mem within that. */
    assert_vk(gpu.CreateBuffer(gpu.device, &buffer_info, NULL, &buffer));
    assert_vk(gpu.BindBufferMemory(gpu.device, buffer, memory, 0));
    assert_ok(td_vk_mem_wrap_buffer(vk, buffer, memory, all, part, part, true, &first, why, sizeof why));
    assert_true(first.buffer == buffer && first.buffer_offset == part && first.engines_buffer && first.dedicated);
    td_vk_mem_free(vk, &first);
    assert_fails(td_vk_mem_wrap_buffer(vk, VK_NULL_HANDLE, memory, all, 0, part, true, &first, why, sizeof why),
                 TANDEM_ERROR_ARG, "buffer is VK_NULL_HANDLE");
    assert_fails(td_vk_mem_wrap_buffer(vk, buffer, memory, all, part, all, true, &first, why, sizeof why), TANDEM_ERROR_ARG,
                 "beyond allocation_bytes");
    assert_fails(td_vk_mem_wrap_buffer(vk, buffer, memory, 2 * all, all, part, true, &first, why, sizeof why),
                 TANDEM_ERROR_ARG, "beyond the buffer");
    assert_fails(td_vk_mem_wrap_buffer(vk, buffer, memory, all, 1, part, true, &first, why, sizeof why), TANDEM_ERROR_ARG,
                 "not a multiple of");
    gpu.DestroyBuffer(gpu.device, buffer, NULL);
    /* No other buffer may be bound to dedicated memory: there is none. */
    assert_ok(td_vk_mem_wrap(vk, memory, all, 0, all, true, &first, why, sizeof why));
    assert_true(first.buffer == VK_NULL_HANDLE && first.memory == memory && !first.owned && first.dedicated);
    td_vk_mem_free(vk, &first);

    assert_fails(td_vk_mem_wrap(vk, memory, all, 1, part, false, &first, why, sizeof why), TANDEM_ERROR_ARG, "offset");
    assert_fails(td_vk_mem_wrap(vk, VK_NULL_HANDLE, all, 0, all, false, &first, why, sizeof why), TANDEM_ERROR_ARG,
                 "memory");
    assert_fails(td_vk_mem_wrap(vk, memory, all, all, 4, false, &first, why, sizeof why), TANDEM_ERROR_ARG,
                 "allocation_bytes");
    assert_fails(td_vk_mem_wrap(vk, memory, all, UINT64_MAX - 3, 4, false, &first, why, sizeof why), TANDEM_ERROR_ARG,
                 "offset");
    assert_fails(td_vk_mem_wrap(vk, memory, all, 0, 0, false, &first, why, sizeof why), TANDEM_ERROR_ARG, "bytes");
    assert_fails(td_vk_mem_wrap(vk, memory, all, 0, 4, false, NULL, why, sizeof why), TANDEM_ERROR_ARG, "out");
    assert_fails(td_vk_mem_wrap(NULL, memory, all, 0, 4, false, &first, why, sizeof why), TANDEM_ERROR_ARG, "vk");
    gpu.FreeMemory(gpu.device, memory, NULL);
}

static void test_memory_refuses(void **state)
{
    const uint64_t huge[] = {1ull << 50, UINT64_MAX, UINT64_MAX - 4095, (uint64_t)INT64_MAX + 1};
    int fds = vku_open_fds(), zero = fcntl(0, F_GETFD), fd = 5;
    td_vk_mem mem = {0};

    (void)state;
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        char number[32];

        snprintf(number, sizeof number, "%llu", (unsigned long long)huge[i]);
        if (caps->export_memory)
            assert_fails(td_vk_mem_create_export(vk, huge[i], STORAGE, &mem, why, sizeof why), TANDEM_ERROR_NOMEM,
                         number);
        if (caps->import_host)
            assert_fails(td_vk_mem_create_host(vk, huge[i], STORAGE, &mem, why, sizeof why), TANDEM_ERROR_NOMEM,
                         number);
    }
    assert_fails(td_vk_mem_create_export(NULL, 64, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "vk");
    assert_fails(td_vk_mem_create_export(vk, 0, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "bytes");
    assert_fails(td_vk_mem_create_export(vk, 64, 0, &mem, why, sizeof why), TANDEM_ERROR_ARG, "usage");
    assert_fails(td_vk_mem_create_export(vk, 64, STORAGE, NULL, why, sizeof why), TANDEM_ERROR_ARG, "out");
    assert_fails(td_vk_mem_create_host(NULL, 64, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "vk");
    assert_fails(td_vk_mem_create_host(vk, 0, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "bytes");
    assert_fails(td_vk_mem_create_host(vk, 64, 0, &mem, why, sizeof why), TANDEM_ERROR_ARG, "usage");
    assert_fails(td_vk_mem_create_host(vk, 64, STORAGE, NULL, why, sizeof why), TANDEM_ERROR_ARG, "out");
    assert_fails(td_vk_mem_export_fd(vk, &mem, NULL, why, sizeof why), TANDEM_ERROR_ARG, "fd");
    assert_fails(td_vk_mem_export_fd(vk, &mem, &fd, why, sizeof why), TANDEM_ERROR_ARG, "mem");
    assert_int_equal(fd, -1);
    assert_fails(td_vk_mem_export_fd(vk, NULL, &fd, why, sizeof why), TANDEM_ERROR_ARG, "mem");
    assert_fails(td_vk_mem_export_fd(NULL, &mem, &fd, why, sizeof why), TANDEM_ERROR_ARG, "vk");
    /* Text may be left out. */
    assert_int_equal(td_vk_mem_create_host(vk, 0, STORAGE, &mem, NULL, 0), TANDEM_ERROR_ARG);
    /* Zeroed and half-made mems; 0 is not taken for a file. */
    td_vk_mem_free(vk, NULL);
    td_vk_mem_free(vk, &mem);
    td_vk_mem_free(NULL, &mem);
    td_vk_mem_free(vk, &mem);
    fd = memfd_create("half", MFD_CLOEXEC);
    mem = (td_vk_mem){.memfd = td_fd_dup(fd), .owned = true, .allocation_bytes = 4096};
    close(fd);
    td_vk_mem_free(vk, &mem);
    assert_int_equal(vku_open_fds(), fds);
    assert_int_equal(fcntl(0, F_GETFD), zero);
}

/* Timelines */

static void test_timeline_on_the_host(void **state)
{
    VkSemaphore semaphore = VK_NULL_HANDLE;
    uint64_t value = 0, before;

    (void)state;
    assert_ok(td_vk_timeline_create(vk, 41, false, &semaphore, why, sizeof why));
    td_vk_name(vk, VK_OBJECT_TYPE_SEMAPHORE, (uint64_t)semaphore, "host timeline");
    assert_ok(td_vk_timeline_value(vk, semaphore, &value));
    assert_int_equal(value, 41);
    assert_ok(td_vk_timeline_wait(vk, semaphore, 41, 0));
    assert_int_equal(td_vk_timeline_wait(vk, semaphore, 42, 0), TANDEM_ERROR_BUSY);
    before = td_now_ns();
    assert_int_equal(td_vk_timeline_wait(vk, semaphore, 42, 50000000), TANDEM_ERROR_BUSY);
    assert_in_range(td_now_ns() - before, 45000000, LIMITS_SOON_NS);
    assert_ok(td_vk_timeline_signal(vk, semaphore, 45));
    assert_ok(td_vk_timeline_wait(vk, semaphore, 42, VKU_TIMEOUT_NS));
    assert_ok(td_vk_timeline_value(vk, semaphore, &value));
    assert_int_equal(value, 45);
    /* It only rises, and not by more than the device can tell apart. */
    assert_int_equal(td_vk_timeline_signal(vk, semaphore, 45), TANDEM_ERROR_ARG);
    assert_int_equal(td_vk_timeline_signal(vk, semaphore, 1), TANDEM_ERROR_ARG);
    td_vk_timeline_destroy(vk, &semaphore);
    assert_true(semaphore == VK_NULL_HANDLE);

    td_vk_timeline_destroy(vk, &semaphore);
    td_vk_timeline_destroy(vk, NULL);
    td_vk_timeline_destroy(NULL, &semaphore);
    assert_int_equal(td_vk_timeline_value(vk, VK_NULL_HANDLE, &value), TANDEM_ERROR_ARG);
    assert_int_equal(td_vk_timeline_value(NULL, VK_NULL_HANDLE, NULL), TANDEM_ERROR_ARG);
    assert_int_equal(td_vk_timeline_signal(vk, VK_NULL_HANDLE, 1), TANDEM_ERROR_ARG);
    assert_int_equal(td_vk_timeline_wait(vk, VK_NULL_HANDLE, 1, 0), TANDEM_ERROR_ARG);
    assert_int_equal(td_vk_timeline_wait(NULL, VK_NULL_HANDLE, 1, 0), TANDEM_ERROR_ARG);
    assert_fails(td_vk_timeline_create(vk, 0, false, NULL, why, sizeof why), TANDEM_ERROR_ARG, "out");
    assert_fails(td_vk_timeline_create(NULL, 0, false, &semaphore, why, sizeof why), TANDEM_ERROR_ARG, "vk");
}

static void test_timeline_wait_before_signal(void **state)
{
    VkSemaphore to_queue, from_queue;
    vku_point wait, signal;
    uint64_t value;

    (void)state;
    assert_ok(td_vk_timeline_create(vk, 0, false, &to_queue, why, sizeof why));
    assert_ok(td_vk_timeline_create(vk, 0, false, &from_queue, why, sizeof why));
    for (uint64_t frame = 1; frame <= 5; frame++) {
        wait = (vku_point){to_queue, frame};
        signal = (vku_point){from_queue, frame};
        assert_vk(vku_submit(&gpu, VK_NULL_HANDLE, wait, signal, VK_NULL_HANDLE));
        assert_int_equal(td_vk_timeline_wait(vk, from_queue, frame, 2000000), TANDEM_ERROR_BUSY);
        assert_ok(td_vk_timeline_value(vk, from_queue, &value));
        assert_int_equal(value, frame - 1);
        assert_ok(td_vk_timeline_signal(vk, to_queue, frame));
        assert_ok(td_vk_timeline_wait(vk, from_queue, frame, VKU_TIMEOUT_NS));
    }
    assert_vk(gpu.DeviceWaitIdle(gpu.device));
    td_vk_timeline_destroy(vk, &to_queue);
    td_vk_timeline_destroy(vk, &from_queue);
}

static void test_exported_timeline(void **state)
{
    PFN_vkImportSemaphoreFdKHR import_fd;
    VkSemaphore semaphore, second;
    VkImportSemaphoreFdInfoKHR import = {.sType = VK_STRUCTURE_TYPE_IMPORT_SEMAPHORE_FD_INFO_KHR,
                                         .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
    uint64_t value;
    int fd = 5;

    (void)state;
    if (!caps->export_timeline) {
        assert_fails(td_vk_timeline_create(vk, 0, true, &semaphore, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                     "VK_KHR_external_semaphore_fd");
        assert_ok(td_vk_timeline_create(vk, 0, false, &semaphore, why, sizeof why));
        assert_fails(td_vk_timeline_export_fd(vk, semaphore, &fd, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                     "VK_KHR_external_semaphore_fd");
        assert_int_equal(fd, -1);
        td_vk_timeline_destroy(vk, &semaphore);
        skip();
    }
    import_fd = (PFN_vkImportSemaphoreFdKHR)gpu.GetDeviceProcAddr(gpu.device, "vkImportSemaphoreFdKHR");
    assert_non_null(import_fd);
    assert_ok(td_vk_timeline_create(vk, 7, true, &semaphore, why, sizeof why));
    assert_ok(td_vk_timeline_create(vk, 0, false, &second, why, sizeof why));
    assert_ok(td_vk_timeline_export_fd(vk, semaphore, &fd, why, sizeof why));
    assert_true(fcntl(fd, F_GETFD) >= 0);
    import.semaphore = second;
    import.fd = fd;
    assert_vk(import_fd(gpu.device, &import)); /* and Vulkan owns the fd */
    assert_ok(td_vk_timeline_value(vk, second, &value));
    assert_int_equal(value, 7);
    assert_ok(td_vk_timeline_signal(vk, semaphore, 9));
    assert_ok(td_vk_timeline_wait(vk, second, 9, VKU_TIMEOUT_NS));
    td_vk_timeline_destroy(vk, &semaphore);
    assert_ok(td_vk_timeline_value(vk, second, &value));
    assert_int_equal(value, 9);
    td_vk_timeline_destroy(vk, &second);
    assert_fails(td_vk_timeline_export_fd(vk, VK_NULL_HANDLE, &fd, why, sizeof why), TANDEM_ERROR_ARG, "semaphore");
    assert_fails(td_vk_timeline_export_fd(vk, semaphore, NULL, why, sizeof why), TANDEM_ERROR_ARG, "fd");
}

/* What interop/os says of opaque descriptors, in Vulkan's and CUDA's words. */
static void test_opaque_words(void **state)
{
    (void)state;
    assert_string_equal(td_opaque_memory_extension, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME);
    assert_string_equal(td_opaque_semaphore_extension, VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME);
    assert_int_equal(td_opaque.get_memory_struct, VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR);
    assert_int_equal(td_opaque.get_semaphore_struct, VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR);
    assert_int_equal(td_opaque.memory_type, VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT);
    assert_int_equal(td_opaque.semaphore_type, VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT);
    assert_int_equal(td_opaque.cuda_memory_type, 1);   /* CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD */
    assert_int_equal(td_opaque.cuda_timeline_type, 9); /* CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD */
    assert_int_equal(offsetof(td_vk_handle_info, object), offsetof(VkMemoryGetFdInfoKHR, memory));
    assert_int_equal(offsetof(td_vk_handle_info, type), offsetof(VkMemoryGetFdInfoKHR, handleType));
    assert_int_equal(offsetof(td_vk_handle_info, object), offsetof(VkSemaphoreGetFdInfoKHR, semaphore));
    assert_int_equal(offsetof(td_vk_handle_info, type), offsetof(VkSemaphoreGetFdInfoKHR, handleType));
    assert_int_equal(td_opaque_fd(td_opaque_of(7)), 7);
}

static void test_calibrate(void **state)
{
    uint64_t device[2], host[2], before, after;

    (void)state;
    assert_int_equal(td_vk_calibrate(NULL, device, host), TANDEM_ERROR_ARG);
    assert_int_equal(td_vk_calibrate(vk, NULL, host), TANDEM_ERROR_ARG);
    if (!caps->calibrated) {
        assert_int_equal(td_vk_calibrate(vk, device, host), TANDEM_ERROR_UNSUPPORTED);
        skip();
    }
    before = td_now_ns();
    assert_ok(td_vk_calibrate(vk, &device[0], &host[0]));
    usleep(20000);
    assert_ok(td_vk_calibrate(vk, &device[1], &host[1]));
    after = td_now_ns();
    assert_in_range(host[0], before, after);
    assert_in_range(host[1], host[0], after);
    /* Both clocks saw the same time pass, within a millisecond. */
    assert_in_range(device[1] - device[0] + 1000000 - (host[1] - host[0]), 0, 2000000);
}

/* Barriers without a stage, and both kinds in one command buffer with labels around them. */
static void test_barriers(void **state)
{
    VkCommandBuffer commands;
    td_vk_mem mem;

    (void)state;
    if (!caps->import_host)
        skip();
    assert_ok(td_vk_mem_create_host(vk, 4096, STORAGE, &mem, why, sizeof why));
    commands = vku_begin(&gpu);
    td_vk_label_begin(vk, commands, "outer");
    td_vk_record_release(vk, commands, &mem, false, 0, 0);
    td_vk_record_acquire(vk, commands, &mem, false, 0, 0);
    td_vk_record_acquire(vk, commands, &mem, true, SHADER, READ_WRITE);
    td_vk_record_release(vk, commands, &mem, true, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    td_vk_label_end(vk, commands);
    assert_vk(vku_run(&gpu, commands));
    td_vk_mem_free(vk, &mem);
}

static const struct CMUnitTest cases[] = {
    TEST(test_host_memory),
    TEST(test_import_host),
    TEST(test_exported_memory),
    TEST(test_wrapped_memory),
    TEST(test_memory_refuses),
    TEST(test_timeline_on_the_host),
    TEST(test_timeline_wait_before_signal),
    TEST(test_exported_timeline),
    TEST(test_opaque_words),
    TEST(test_calibrate),
    TEST(test_barriers),
};
const test_cases vk_memory_cases = TEST_CASES(cases);
