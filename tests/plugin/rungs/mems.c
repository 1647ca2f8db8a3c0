/* Mems that the engine does not see, that the host sees, and that are not the session's own; points of the host's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/plugin/rungs/rig.h"

/* A job reads what the one before it wrote, and the engine sees neither in between; then its own bytes again. */
static void chain(rig *r)
{
    const shape sh = {2, 64, 48, 32, TANDEM_PRECISION_F16, 0, ONE_MEM};
    const tandem_timeline between = new_timeline(r, TANDEM_SIGNALLER_SESSION);
    tandem_timeline engines, ours;
    unsigned char *want[2], *got[2];
    tandem_attention views, second;
    uint64_t bytes[2];
    tandem_job next;
    slot f;

    begin_points(r, &engines, &ours);
    lay_out(&sh, &views, bytes);
    make_slot(r, &f, &views, bytes);
    want[0] = malloc(bytes[0]);
    want[1] = NULL;
    for (uint64_t n = 1; n <= 4; n++) {
        fill(f.up[0].host, bytes[0], n);
        memcpy(want[0], f.up[0].host, bytes[0]);
        frame_up(r, &f, engines, n);
        f.job.wait = (tandem_point){engines, n};
        f.job.signal = (tandem_point){between, n};
        submit_job(r, &f.job);
        next = f.job; /* O is its Q, and Q its O */
        next.op.attention.q = f.job.op.attention.o;
        next.op.attention.o = f.job.op.attention.q;
        next.wait = (tandem_point){between, n};
        next.signal = (tandem_point){ours, n};
        f.ticket = submit_job(r, &next);
        frame_handed_over(r, &f, engines);
        frame_down(r, &f, ours);
        expect_done(r, f.ticket);
        compute(&f.job.op.attention, f.mems, want);
        second = next.op.attention;
        compute(&second, f.mems, want);
        got[0] = f.down[0].host;
        got[1] = NULL;
        /* O of the first is checked by itself: what the second read is near the oracle's, not equal to it. */
        check(r, "a chain", &second, f.mems, got, got, bytes, 0);
        for (uint32_t i = 0; i < bytes_of(sh.heads, sh.rows, sh.dim) / 4; i++) {
            const float *o = (const float *)(void *)got[0], *ref = (const float *)(void *)want[0];

            if (!(fabs((double)o[i] - (double)ref[i]) < 5e-3))
                fail_msg("%s: the second job's element %u is %g, not %g", r->on->name, i, (double)o[i], (double)ref[i]);
        }
    }
    assert_int_equal(r->vk.DeviceWaitIdle(r->vk.device), VK_SUCCESS);
    free_slot(r, &f);
    free(want[0]);
    assert_int_equal(tandem_timeline_destroy(r->s, between), TANDEM_OK);
    end_points(r, engines, ours);
}

static void test_chain(void **state)
{
    (void)state;
    for (int g = 0; g < ground_count; g++) {
        rig r;

        if (grounds[g].same || !open_rig(&r, &grounds[g]))
            continue;
        chain(&r);
        assert_int_equal(r.errors, 0);
        close_rig(&r);
    }
}

#define REFUSED(r, call, words)                                                                            \
    do {                                                                                                   \
        const unsigned before_ = (r)->errors;                                                              \
        const tandem_status got_ = (call);                                                                 \
        if (got_ != TANDEM_ERROR_UNSUPPORTED || (r)->errors != before_ + 1 || !strstr((r)->last, (words))) \
            fail_msg("%s, line %d: %d, %s", (r)->on->name, __LINE__, got_, (r)->last);                     \
    } while (0)

/* The rung `copy` and memory that is not its own. */
static void copied_sources(rig *r)
{
    enum { BYTES = 65536, OFFSET = 65536 };
    const VkPipelineStageFlags transfer = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = OFFSET + BYTES,
                                     .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                              VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    const shape sh = {2, 48, 40, 32, TANDEM_PRECISION_F16, 0, ONE_MEM};
    VkMemoryAllocateInfo memory_info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = BYTES};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    unsigned char *want[2] = {malloc(BYTES), NULL}, *got[2] = {NULL, NULL};
    VkCommandBuffer commands = vku_begin(&r->vk);
    tandem_mem mems[2] = {0, 0}, mem;
    VkMemoryRequirements needs;
    vku_buffer up, down;
    tandem_view *list[5];
    uint64_t bytes[2];
    VkBufferCopy copy;
    VkDeviceMemory memory;
    VkBuffer buffer;
    void *host, *pages;

    /* Of the session's: host memory too. */
    mem = new_mem(r, BYTES);
    assert_int_equal(tandem_mem_host(r->s, mem, &host), TANDEM_OK);
    on_the_host(r, mem, host);
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);

    /* Of the host's: for the host and for jobs, unknown to Vulkan. */
    pages = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    desc.source = TANDEM_MEM_HOST;
    desc.host = pages;
    assert_int_equal(tandem_mem_create(r->s, &desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(r->s, mem, &host), TANDEM_OK);
    assert_ptr_equal(host, pages);
    on_the_host(r, mem, host);
    REFUSED(r, tandem_mem_get_vulkan(r->s, mem, &vulkan), "no Vulkan memory");
    REFUSED(r, tandem_record_release(r->s, commands, mem, transfer, VK_ACCESS_TRANSFER_WRITE_BIT), "no VkBuffer");
    assert_int_equal(tandem_mem_destroy(r->s, mem), TANDEM_OK);
    munmap(pages, BYTES);

    /* Of the engine's: what has no VkBuffer that could be copied is refused. */
    desc = (tandem_mem_desc){.struct_bytes = sizeof desc, .bytes = BYTES, .offset_bytes = OFFSET};
    assert_int_equal(r->vk.CreateBuffer(r->vk.device, &info, NULL, &buffer), VK_SUCCESS);
    r->vk.GetBufferMemoryRequirements(r->vk.device, buffer, &needs);
    desc.allocation_bytes = memory_info.allocationSize = needs.size;
    while (!(needs.memoryTypeBits >> memory_info.memoryTypeIndex & 1))
        memory_info.memoryTypeIndex++;
    assert_int_equal(r->vk.AllocateMemory(r->vk.device, &memory_info, NULL, &memory), VK_SUCCESS);
    assert_int_equal(r->vk.BindBufferMemory(r->vk.device, buffer, memory, 0), VK_SUCCESS);
    desc.source = TANDEM_MEM_FD;
    desc.fd = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(desc.fd, (off_t)desc.allocation_bytes), 0);
    REFUSED(r, tandem_mem_create(r->s, &desc, &mem), "desc.source is FD (2)");
    close(desc.fd);
    desc.source = TANDEM_MEM_VULKAN;
    desc.vulkan_memory = (uint64_t)(uintptr_t)memory;
    desc.dedicated = 1;
    REFUSED(r, tandem_mem_create(r->s, &desc, &mem), "desc.dedicated is 1");
    desc.dedicated = 0;
    assert_int_equal(tandem_mem_create(r->s, &desc, &mems[0]), TANDEM_OK);
    assert_int_equal(tandem_mem_get_vulkan(r->s, mems[0], &vulkan), TANDEM_OK);
    assert_true(vulkan.memory == memory && vulkan.offset == OFFSET && vulkan.buffer);

    lay_out(&sh, &job.op.attention, bytes);
    assert_true(bytes[0] <= BYTES);
    views_of(&job.op.attention, list);
    for (int i = 0; i < 5; i++)
        list[i]->mem = mems[0];
    assert_int_equal(vku_buffer_create(&r->vk, BYTES, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &up), VK_SUCCESS);
    assert_int_equal(vku_buffer_create(&r->vk, BYTES, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &down), VK_SUCCESS);
    fill(up.host, BYTES, 4);
    memcpy(want[0], up.host, BYTES);
    copy = (VkBufferCopy){.dstOffset = OFFSET, .size = BYTES};
    r->vk.CmdCopyBuffer(commands, up.buffer, buffer, 1, &copy);
    assert_int_equal(tandem_record_release(r->s, commands, mems[0], transfer, VK_ACCESS_TRANSFER_WRITE_BIT), TANDEM_OK);
    assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);
    expect_done(r, submit_job(r, &job));
    commands = vku_begin(&r->vk);
    assert_int_equal(tandem_record_acquire(r->s, commands, mems[0], transfer, VK_ACCESS_TRANSFER_READ_BIT), TANDEM_OK);
    copy = (VkBufferCopy){.srcOffset = OFFSET, .size = BYTES};
    r->vk.CmdCopyBuffer(commands, buffer, down.buffer, 1, &copy);
    vku_full_barrier(&r->vk, commands);
    assert_int_equal(vku_run(&r->vk, commands), VK_SUCCESS);
    compute(&job.op.attention, mems, want);
    got[0] = down.host;
    bytes[0] = BYTES;
    check(r, "the engine's memory", &job.op.attention, mems, got, want, bytes, 2e-3);
    assert_int_equal(tandem_mem_destroy(r->s, mems[0]), TANDEM_OK);
    vku_buffer_destroy(&r->vk, &up);
    vku_buffer_destroy(&r->vk, &down);
    r->vk.DestroyBuffer(r->vk.device, buffer, NULL);
    r->vk.FreeMemory(r->vk.device, memory, NULL);
    free(want[0]);
}

static void test_copied_sources(void **state)
{
    static const char *const names[] = {"copy, forced", "copy on the CPU, forced", "nothing at all"};

    (void)state;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        rig r;

        if (!open_rig(&r, ground_named(names[n])))
            continue;
        copied_sources(&r);
        close_rig(&r);
    }
}

/* Points without semaphores: counters that the host reads, waits for and signals. */
static void test_host_points(void **state)
{
    rig r;

    (void)state;
    for (int g = 0; g < ground_count; g++) {
        tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .initial_value = 5};
        tandem_timeline engines;
        VkSemaphore semaphore;
        uint64_t value;

        if (strcmp(grounds[g].without[1] ? grounds[g].without[1] : "", TIMELINE_FEATURE) &&
            strcmp(grounds[g].name, "nothing at all") && strcmp(grounds[g].name, "memory alone"))
            continue;
        if (!open_rig(&r, &grounds[g]))
            continue;
        assert_false(r.semaphores);
        assert_int_equal(tandem_timeline_create(r.s, &desc, &engines), TANDEM_OK);
        REFUSED(&r, tandem_timeline_get_vulkan(r.s, engines, &semaphore), "timelineSemaphore is not enabled");
        assert_int_equal(tandem_timeline_value(r.s, engines, &value), TANDEM_OK);
        assert_int_equal(value, 5);
        assert_int_equal(tandem_timeline_signal(r.s, engines, 8), TANDEM_OK);
        assert_int_equal(tandem_point_wait(r.s, (tandem_point){engines, 8}, 0), TANDEM_OK);
        assert_int_equal(tandem_point_wait(r.s, (tandem_point){engines, 9}, 1000000), TANDEM_ERROR_BUSY);
        desc.vulkan_semaphore = 1;
        REFUSED(&r, tandem_timeline_create(r.s, &desc, &engines), "timelineSemaphore is not enabled");
        close_rig(&r);
    }
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_chain),
    cmocka_unit_test(test_copied_sources),
    cmocka_unit_test(test_host_points),
};
const test_cases rungs_mems_cases = TEST_CASES(cases);
