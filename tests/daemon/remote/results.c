/* What is computed in a tandemd: the same bits, in memory of the host's and of Vulkan's, for two at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interop/base.h"
#include "tests/daemon/remote/rig.h"

static void test_same_bits(void **state)
{
    side x;

    (void)state;
    open_side(&x, socket_path, NULL, 0);
    assert_int_equal(x.info.backend, TANDEM_BACKEND_CPU);
    assert_int_equal(x.info.rung, TANDEM_RUNG_CPU);
    assert_non_null(strstr(x.info.rung_reason, "tandemd"));
    check_same(&x);
    close_side(&x);
}

/* A VkDeviceMemory of the engine's, by copies. */
static void check_engines_memory(side *x)
{
    const shape *s = &shapes[1];
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkBufferUsageFlags usage =
        VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_VULKAN};
    VkMemoryRequirements needs;
    VkCommandBuffer commands;
    vku_buffer buffer;
    uint64_t in, bytes;
    tandem_job job;
    tandem_mem mem;
    void *want = expected(s, &bytes);

    assert_int_equal(vku_buffer_create(&vk, bytes, usage, &buffer), VK_SUCCESS);
    vk.GetBufferMemoryRequirements(vk.device, buffer.buffer, &needs);
    desc.bytes = bytes;
    desc.vulkan_memory = (uint64_t)(uintptr_t)buffer.memory;
    desc.allocation_bytes = needs.size;
    assert_int_equal(tandem_mem_create(x->s, &desc, &mem), TANDEM_OK);
    job = job_of(s, mem, &in, &bytes);
    fill(buffer.host, in, bytes, s->dtype);
    commands = vku_begin(&vk);
    assert_int_equal(tandem_record_release(x->s, commands, mem, stage, VK_ACCESS_TRANSFER_WRITE_BIT), TANDEM_OK);
    assert_int_equal(vku_run(&vk, commands), VK_SUCCESS);
    run(x, &job);
    commands = vku_begin(&vk);
    assert_int_equal(tandem_record_acquire(x->s, commands, mem, stage, VK_ACCESS_TRANSFER_READ_BIT), TANDEM_OK);
    vku_full_barrier(&vk, commands);
    assert_int_equal(vku_run(&vk, commands), VK_SUCCESS);
    assert_memory_equal(buffer.host, want, bytes);
    assert_int_equal(tandem_mem_destroy(x->s, mem), TANDEM_OK);
    vku_buffer_destroy(&vk, &buffer);
    free(want);
}

/* The renderer fills a buffer and signals; the daemon computes on the same pages; the renderer waits and copies. */
static void test_vulkan(void **state)
{
    const shape *s = &shapes[1];
    tandem_mem_vulkan buffer = {.struct_bytes = sizeof buffer};
    VkSemaphore engines, ours;
    VkBufferCopy whole;
    VkCommandBuffer up, down;
    vku_buffer from, to;
    uint64_t in, bytes;
    tandem_ticket ticket;
    tandem_job job;
    tandem_mem mem;
    void *want, *host;
    side x;

    (void)state;
    if (!open_vulkan(NULL))
        skip();
    open_side(&x, socket_path, &vulkan, 0);
    check_same(&x);
    want = expected(s, &bytes);
    mem = new_mem(&x, bytes, &host);
    job = job_of(s, mem, &in, &bytes);
    assert_int_equal(tandem_mem_get_vulkan(x.s, mem, &buffer), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(x.s, x.engines, &engines), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(x.s, x.ours, &ours), TANDEM_OK);
    assert_int_equal(vku_buffer_create(&vk, bytes, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &from), VK_SUCCESS);
    assert_int_equal(vku_buffer_create(&vk, bytes, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &to), VK_SUCCESS);
    fill(from.host, in, bytes, s->dtype);
    whole = (VkBufferCopy){.size = bytes};
    up = vku_begin(&vk);
    vk.CmdCopyBuffer(up, from.buffer, buffer.buffer, 1, &whole);
    assert_int_equal(tandem_record_release(x.s, up, mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT),
                     TANDEM_OK);
    down = vku_begin(&vk);
    assert_int_equal(tandem_record_acquire(x.s, down, mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT),
                     TANDEM_OK);
    vk.CmdCopyBuffer(down, buffer.buffer, to.buffer, 1, &whole);
    vku_full_barrier(&vk, down);
    job.wait = (tandem_point){x.engines, 1};
    ticket = submit(&x, &job);
    assert_int_equal(vku_submit(&vk, up, (vku_point){0}, (vku_point){engines, 1}, VK_NULL_HANDLE), VK_SUCCESS);
    assert_int_equal(vku_submit(&vk, down, (vku_point){ours, x.value}, (vku_point){engines, 2}, VK_NULL_HANDLE),
                     VK_SUCCESS);
    assert_int_equal(tandem_point_wait(x.s, (tandem_point){x.engines, 2}, PATIENCE), TANDEM_OK);
    assert_int_equal(ended(&x, ticket, SOON).state, TANDEM_JOB_DONE);
    assert_memory_equal(to.host, want, bytes);
    vk.DeviceWaitIdle(vk.device);
    vku_buffer_destroy(&vk, &from);
    vku_buffer_destroy(&vk, &to);
    free(want);
    close_side(&x);
    close_vulkan();
    /* Without VK_EXT_external_memory_host: the rung `copy`, whose staging memory the daemon has beside. */
    assert_true(open_vulkan("VK_EXT_external_memory_host"));
    open_side(&x, socket_path, &vulkan, 0);
    assert_int_equal(x.info.rung, TANDEM_RUNG_COPY);
    check_same(&x);
    check_engines_memory(&x);
    close_side(&x);
    close_vulkan();
}

static void check_host_mem(side *x, void *memory, uint64_t bytes, const void *want)
{
    const tandem_mem_desc desc = {
        .struct_bytes = sizeof desc, .source = TANDEM_MEM_HOST, .bytes = td_align_up(bytes, 4096), .host = memory};
    uint64_t in, same;
    tandem_job job;
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(x->s, &desc, &mem), TANDEM_OK);
    job = job_of(&shapes[1], mem, &in, &same);
    fill(memory, in, bytes, shapes[1].dtype);
    run(x, &job);
    assert_memory_equal(memory, want, bytes);
    assert_int_equal(tandem_mem_destroy(x->s, mem), TANDEM_OK);
}

static void test_mems(void **state)
{
    uint64_t bytes;
    void *want = expected(&shapes[1], &bytes), *pages;
    const uint64_t whole = td_align_up(bytes, 4096) + 4096;
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 4096, .allocation_bytes = 4096};
    tandem_mem mem;
    side x;

    (void)state;
    pages = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    open_side(&x, socket_path, NULL, 0);
    check_host_mem(&x, pages, bytes, want);
    check_host_mem(&x, (char *)pages + 64, bytes, want);
    desc.source = TANDEM_MEM_FD;
    desc.fd = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(desc.fd, 4096), 0);
    assert_int_equal(tandem_mem_create(x.s, &desc, &mem), TANDEM_ERROR_UNSUPPORTED);
    close(desc.fd);
    assert_int_equal(x.errors, 1);
    close_side(&x);
    if (open_vulkan(NULL)) {
        open_side(&x, socket_path, &vulkan, 0);
        check_host_mem(&x, pages, bytes, want);
        check_engines_memory(&x);
        desc.source = TANDEM_MEM_VULKAN;
        desc.vulkan_memory = 1;
        desc.dedicated = 1;
        assert_int_equal(tandem_mem_create(x.s, &desc, &mem), TANDEM_ERROR_UNSUPPORTED);
        assert_true(says(&x, "desc.dedicated is 1, desc.vulkan_buffer 0: on this rung the engine's memory is copied"));
        desc.source = TANDEM_MEM_FD;
        close_side(&x);
        close_vulkan();
    }
    munmap(pages, whole);
    free(want);
}

typedef struct runner {
    pthread_t thread;
    const shape *s;
    void *want;
    uint64_t bytes;
    _Atomic bool wrong;
    unsigned rounds;
} runner;

static void *run_many(void *user)
{
    runner *r = user;
    uint64_t in, bytes;
    void *host;
    tandem_job job;
    side x;

    open_side(&x, socket_path, NULL, 0);
    job = job_of(r->s, new_mem(&x, r->bytes, &host), &in, &bytes);
    for (unsigned i = 0; i < r->rounds && !r->wrong; i++) {
        fill(host, in, bytes, r->s->dtype);
        r->wrong = ended(&x, submit(&x, &job), PATIENCE).state != TANDEM_JOB_DONE || memcmp(host, r->want, bytes) != 0;
    }
    close_side(&x);
    return NULL;
}

static void test_two_clients(void **state)
{
    runner r[2] = {{.s = &shapes[0], .rounds = 150}, {.s = &shapes[1], .rounds = 30}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        r[i].want = expected(r[i].s, &r[i].bytes);
        assert_int_equal(pthread_create(&r[i].thread, NULL, run_many, &r[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(r[i].thread, NULL);
        assert_false(r[i].wrong);
        free(r[i].want);
    }
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_same_bits),
    cmocka_unit_test(test_vulkan),
    cmocka_unit_test(test_mems),
    cmocka_unit_test(test_two_clients),
};
const test_cases remote_results_cases = TEST_CASES(cases);
