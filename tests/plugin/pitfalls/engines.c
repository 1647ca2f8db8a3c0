/* The engine's own VkDeviceMemory where CUDA computes beside Vulkan: `timeline`, `host` and `copy`. What CUDA is told of it,
 * what is recorded around a job, and where the bytes go. (Inline: tests/plugin/inline. The CPU, tandemd: test_engine_memory.)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/plugin/pitfalls/rig.h"

#define TRANSFER VK_PIPELINE_STAGE_TRANSFER_BIT
enum { OFFSET = 4096, WHOLE_BYTES = OFFSET + MEM_BYTES + 256 };

/* As an engine allocates it, for export. */
typedef struct block {
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint64_t bytes;
    vku_buffer up, down;
} block;

static void make_block(block *b, bool dedicated)
{
    const VkExternalMemoryBufferCreateInfo shared = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                     .handleTypes = (VkExternalMemoryHandleTypeFlags)OPAQUE_MEMORY};
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .pNext = &shared, .size = WHOLE_BYTES,
                                     .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    VkMemoryDedicatedAllocateInfo alone = {.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO};
    const VkExportMemoryAllocateInfo exported = {.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                                 .pNext = dedicated ? &alone : NULL,
                                                 .handleTypes = (VkExternalMemoryHandleTypeFlags)OPAQUE_MEMORY};
    VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &exported};
    VkMemoryRequirements needs;

    assert_int_equal(w.vk.CreateBuffer(w.vk.device, &info, NULL, &b->buffer), VK_SUCCESS);
    w.vk.GetBufferMemoryRequirements(w.vk.device, b->buffer, &needs);
    alone.buffer = b->buffer;
    allocate.allocationSize = b->bytes = needs.size;
    while (!(needs.memoryTypeBits >> allocate.memoryTypeIndex & 1))
        allocate.memoryTypeIndex++;
    assert_int_equal(w.vk.AllocateMemory(w.vk.device, &allocate, NULL, &b->memory), VK_SUCCESS);
    assert_int_equal(w.vk.BindBufferMemory(w.vk.device, b->buffer, b->memory, 0), VK_SUCCESS);
    assert_int_equal(vku_buffer_create(&w.vk, WHOLE_BYTES, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &b->up), VK_SUCCESS);
    assert_int_equal(vku_buffer_create(&w.vk, WHOLE_BYTES, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &b->down), VK_SUCCESS);
    for (int i = 0; i < WHOLE_BYTES; i++)
        ((unsigned char *)b->up.host)[i] = (unsigned char)(i * 7 + 1);
}

static void free_block(block *b)
{
    w.vk.DestroyBuffer(w.vk.device, b->buffer, NULL);
    w.vk.FreeMemory(w.vk.device, b->memory, NULL);
    vku_buffer_destroy(&w.vk, &b->up);
    vku_buffer_destroy(&w.vk, &b->down);
}

/* The engine's copies go around the barrier that the session records, or what is in its place. */
static void hand_over(const block *b, tandem_mem mem, tandem_status expected)
{
    const VkBufferCopy copy = {.size = WHOLE_BYTES};
    VkCommandBuffer commands = vku_begin(&w.vk);

    w.vk.CmdCopyBuffer(commands, b->up.buffer, b->buffer, 1, &copy);
    vku_full_barrier(&w.vk, commands);
    assert_int_equal(tandem_record_release(w.s, commands, mem, TRANSFER, VK_ACCESS_TRANSFER_WRITE_BIT), expected);
    assert_int_equal(vku_run(&w.vk, commands), VK_SUCCESS);
}

static void take_back(const block *b, tandem_mem mem, tandem_status expected)
{
    const VkBufferCopy copy = {.size = WHOLE_BYTES};
    VkCommandBuffer commands = vku_begin(&w.vk);

    assert_int_equal(tandem_record_acquire(w.s, commands, mem, TRANSFER, VK_ACCESS_TRANSFER_READ_BIT), expected);
    vku_full_barrier(&w.vk, commands);
    w.vk.CmdCopyBuffer(commands, b->buffer, b->down.buffer, 1, &copy);
    vku_full_barrier(&w.vk, commands);
    assert_int_equal(vku_run(&w.vk, commands), VK_SUCCESS);
}

/* CUDA gets the allocation as the engine made it, and maps the mem's part of it. */
static void expect_import(const tandem_mem_desc *desc)
{
    assert_int_equal(event_of("vkGetMemoryFdKHR", 0)->handles, OPAQUE_MEMORY);
    assert_int_equal(event_of("cuImportExternalMemory", 0)->type, td_opaque.cuda_memory_type);
    assert_int_equal(event_of("cuImportExternalMemory", 0)->bytes, desc->allocation_bytes);
    assert_int_equal(event_of("cuImportExternalMemory", 0)->flags, desc->dedicated ? TD_CU_MEMORY_DEDICATED : 0);
    assert_int_equal(event_of("cuExternalMemoryGetMappedBuffer", 0)->offset, OFFSET);
    assert_int_equal(event_of("cuExternalMemoryGetMappedBuffer", 0)->bytes, MEM_BYTES);
    assert_int_equal(count_of("vkAllocateMemory"), 0);
}

/* What is written is what the fake's memory begins with, as nothing is computed; all else is as it was. */
static void expect_copied(const block *b)
{
    const unsigned char *up = b->up.host, *down = b->down.host;

    for (int i = 0; i < WHOLE_BYTES; i++) {
        const bool written = i >= OFFSET + VIEW_BYTES && i < OFFSET + MEM_BYTES;

        if (down[i] != (written ? 0xa5 : up[i]))
            fail_msg("byte %d came back as %02x", i, down[i]);
    }
}

typedef enum kind { SUBALLOCATED, DEDICATED, WITH_BUFFER } kind; /* the latter: dedicated, and its buffer is named */

static void engines_memory(uint32_t rung, kind k)
{
    const bool dedicated = k != SUBALLOCATED;
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_VULKAN, .bytes = MEM_BYTES,
                            .offset_bytes = OFFSET, .dedicated = dedicated};
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    /* Memory that is dedicated takes no buffer of the session's: the engine records barriers on its own, or names that. */
    const tandem_status recorded = k == DEDICATED ? TANDEM_ERROR_UNSUPPORTED : TANDEM_OK;
    const tandem_point none = {0};
    tandem_job job;
    tandem_mem mem;
    block b;

    if (!prepare_fake(ON_TIMELINES))
        skip();
    w.desc.rung = rung;
    assert_int_equal(create(), TANDEM_OK);
    assert_int_equal(w.info.rung, rung);
    assert_int_equal(w.info.backend, TANDEM_BACKEND_CUDA);
    make_block(&b, dedicated);
    desc.vulkan_memory = (uint64_t)(uintptr_t)b.memory;
    desc.allocation_bytes = b.bytes;
    desc.vulkan_buffer = k == WITH_BUFFER ? (uint64_t)(uintptr_t)b.buffer : 0;
    forget();
    assert_int_equal(tandem_mem_create(w.s, &desc, &mem), TANDEM_OK);
    if (rung == TANDEM_RUNG_COPY)
        assert_int_equal(count_of("cuImportExternalMemory"), 0);
    else
        expect_import(&desc);
    assert_int_equal(tandem_mem_get_vulkan(w.s, mem, &vulkan), TANDEM_OK);
    assert_true(vulkan.memory == b.memory && vulkan.offset == OFFSET && !vulkan.buffer == dedicated);
    forget();
    hand_over(&b, mem, recorded);
    if (rung != TANDEM_RUNG_COPY && k != DEDICATED) {
        const VkBufferMemoryBarrier *barrier = &event_of("vkCmdPipelineBarrier", 0)->barrier.buffer;

        assert_true(barrier->buffer == (dedicated ? b.buffer : vulkan.buffer));
        assert_int_equal(barrier->offset, dedicated ? OFFSET : 0);
        assert_int_equal(barrier->size, dedicated ? MEM_BYTES : VK_WHOLE_SIZE);
        assert_int_equal(barrier->dstQueueFamilyIndex, VK_QUEUE_FAMILY_EXTERNAL);
    }
    job = new_job(mem, none, none);
    assert_int_equal(ended(submit(&job)).state, TANDEM_JOB_DONE);
    take_back(&b, mem, recorded);
    if (rung == TANDEM_RUNG_COPY)
        expect_copied(&b);
    else
        assert_memory_equal(b.down.host, b.up.host, WHOLE_BYTES); /* the fake's import is memory of its own */
    assert_int_equal(tandem_mem_destroy(w.s, mem), TANDEM_OK);
    assert_int_equal(tandem_session_destroy(&w.s), TANDEM_OK);
    free_block(&b);
    leave();
}

static void on_timelines(void **state)
{
    (void)state;
    for (kind k = SUBALLOCATED; k <= WITH_BUFFER; k++)
        engines_memory(TANDEM_RUNG_TIMELINE, k);
}

static void on_host(void **state)
{
    (void)state;
    for (kind k = SUBALLOCATED; k <= WITH_BUFFER; k++)
        engines_memory(TANDEM_RUNG_HOST, k);
}

static void on_copies(void **state)
{
    (void)state;
    engines_memory(TANDEM_RUNG_COPY, SUBALLOCATED);
    engines_memory(TANDEM_RUNG_COPY, WITH_BUFFER);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(on_timelines),
    cmocka_unit_test(on_host),
    cmocka_unit_test(on_copies),
};
const test_cases pitfalls_engines_cases = TEST_CASES(cases);
