/* The engine's own VkDeviceMemory where no GPU shares it: the CPU's rungs and `copy`, in this process and in tandemd. What
 * comes out is to the bit what host memory gives; and what is said when a release or an acquire is missing, which alone
 * move the bytes there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interop/base.h"
#include "tandem/vulkan.h"
#include "tests/interop/vk_util.h"
#include "tests/plugin/daemon_util.h"

#define LONG_NS 60000000000ull
#define TRANSFER VK_PIPELINE_STAGE_TRANSFER_BIT
enum { HEADS = 2, ROWS = 96, KEYS = 300, DIM = 64, FRAMES = 5, OFFSET = 4096, GUARD = 64, VIEWS = 4 };
enum { Q_BYTES = HEADS * ROWS * DIM * 4, K_BYTES = HEADS * KEYS * DIM * 4 };

static group_daemon served;

typedef struct ground {
    const char *name;
    uint32_t asked, rung;
    bool remote;
} ground;

static const ground grounds[] = {
    {"cpu", 0, TANDEM_RUNG_CPU, false},
    {"host on the CPU", TANDEM_RUNG_HOST, TANDEM_RUNG_HOST, false},
    {"copy", TANDEM_RUNG_COPY, TANDEM_RUNG_COPY, false},
    {"tandemd", 0, TANDEM_RUNG_CPU, true},
    {"tandemd, copy", TANDEM_RUNG_COPY, TANDEM_RUNG_COPY, true},
};
enum { GROUNDS = sizeof grounds / sizeof *grounds };

/* A block of the engine's: its memory, its buffer over it, and what the session makes of it. */
typedef struct block {
    VkBuffer buffer;
    VkDeviceMemory memory;
    tandem_mem mem;
    uint64_t bytes;
    vku_buffer up, down;
} block;

typedef struct rig {
    const ground *on;
    vku vk;
    tandem_vulkan vulkan;
    tandem_session *s;
    tandem_timeline engines, ours;
    VkSemaphore engines_semaphore, ours_semaphore;
    tandem_job job;
    bool dedicated; /* each block's memory, to its buffer */
    block blocks[VIEWS];
    uint32_t count;
    uint64_t value;
    pthread_mutex_t lock;
    unsigned warnings, errors;
    char warned[4000];
} rig;

static void hear(void *user, int level, const char *text)
{
    rig *r = user;
    size_t used;

    pthread_mutex_lock(&r->lock);
    used = strlen(r->warned);
    r->errors += level == TANDEM_LOG_ERROR;
    r->warnings += level == TANDEM_LOG_WARN;
    if (level <= TANDEM_LOG_WARN)
        snprintf(r->warned + used, sizeof r->warned - used, "%s\n", text);
    pthread_mutex_unlock(&r->lock);
}

static tandem_timeline new_timeline(rig *r, tandem_signaller signaller, VkSemaphore *semaphore)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller};
    tandem_timeline timeline;

    assert_int_equal(tandem_timeline_create(r->s, &desc, &timeline), TANDEM_OK);
    assert_int_equal(tandem_timeline_get_vulkan(r->s, timeline, semaphore), TANDEM_OK);
    return timeline;
}

static void make_block(rig *r, block *b, uint64_t bytes)
{
    const VkBufferUsageFlags usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    const VkExternalMemoryHandleTypeFlags handle = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
    const VkExternalMemoryBufferCreateInfo shared = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                     .handleTypes = handle};
    VkMemoryDedicatedAllocateInfo alone = {.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO};
    const VkExportMemoryAllocateInfo exported = {.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                                 .pNext = r->dedicated ? &alone : NULL, .handleTypes = handle};
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .pNext = &shared,
                                     .size = OFFSET + bytes + GUARD, .usage = usage};
    VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &exported};
    tandem_mem_desc desc = {.struct_bytes = sizeof desc, .source = TANDEM_MEM_VULKAN, .bytes = bytes,
                            .offset_bytes = OFFSET};
    tandem_mem_vulkan seen = {.struct_bytes = sizeof seen};
    VkMemoryRequirements needs;
    char text[600] = "";

    b->bytes = bytes;
    assert_int_equal(r->vk.CreateBuffer(r->vk.device, &info, NULL, &b->buffer), VK_SUCCESS);
    r->vk.GetBufferMemoryRequirements(r->vk.device, b->buffer, &needs);
    alone.buffer = b->buffer;
    allocate.allocationSize = desc.allocation_bytes = needs.size;
    while (!(needs.memoryTypeBits >> allocate.memoryTypeIndex & 1))
        allocate.memoryTypeIndex++;
    assert_int_equal(r->vk.AllocateMemory(r->vk.device, &allocate, NULL, &b->memory), VK_SUCCESS);
    assert_int_equal(r->vk.BindBufferMemory(r->vk.device, b->buffer, b->memory, 0), VK_SUCCESS);
    desc.vulkan_memory = (uint64_t)(uintptr_t)b->memory;
    desc.dedicated = 1;
    assert_int_equal(tandem_mem_create(r->s, &desc, &(tandem_mem){0}), TANDEM_ERROR_UNSUPPORTED);
    tandem_error_text(r->s, text, sizeof text);
    assert_non_null(strstr(text, "desc.dedicated is 1, desc.vulkan_buffer 0: on this rung the engine's memory is copied"));
    desc.dedicated = r->dedicated;
    desc.vulkan_buffer = r->dedicated ? (uint64_t)(uintptr_t)b->buffer : 0;
    if (tandem_mem_create(r->s, &desc, &b->mem) != TANDEM_OK) {
        tandem_error_text(r->s, text, sizeof text);
        fail_msg("%s: %s", r->on->name, text);
    }
    assert_int_equal(tandem_mem_get_vulkan(r->s, b->mem, &seen), TANDEM_OK);
    assert_true(seen.memory == b->memory && seen.offset == OFFSET && !seen.buffer == r->dedicated);
    assert_int_equal(vku_buffer_create(&r->vk, bytes, VK_BUFFER_USAGE_TRANSFER_SRC_BIT, &b->up), VK_SUCCESS);
    assert_int_equal(vku_buffer_create(&r->vk, bytes, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &b->down), VK_SUCCESS);
}

/* `count` blocks: one for all views, or one for each. */
static void open_rig(rig *r, const ground *on, uint32_t count, bool dedicated)
{
    const vku_options options = {.validation = true};
    const uint64_t bytes[VIEWS] = {Q_BYTES, K_BYTES, K_BYTES, Q_BYTES};
    tandem_attention *op = &r->job.op.attention;
    tandem_view *const views[VIEWS] = {&op->q, &op->k, &op->v, &op->o};
    uint64_t at = 0;
    char text[600] = "";
    tandem_info info = {.struct_bytes = sizeof info};
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .rung = on->asked,
                                      .vulkan = &r->vulkan, .log = hear, .user = r, .cpu_threads = 2,
                                      .wait_bound_ns = LONG_NS, .error_text = text, .error_text_bytes = sizeof text,
                                      .socket = on->remote ? served.socket_path : NULL};

    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    r->on = on;
    r->dedicated = dedicated;
    if (!vku_try(&r->vk, &options))
        skip();
    r->vulkan = vku_engine(&r->vk);
    if (tandem_session_create(&desc, &r->s) != TANDEM_OK)
        fail_msg("%s: session: %s", on->name, text);
    assert_int_equal(tandem_session_info(r->s, &info), TANDEM_OK);
    assert_int_equal(info.rung, on->rung);
    r->engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, &r->engines_semaphore);
    r->ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, &r->ours_semaphore);
    r->count = count;
    for (uint32_t i = 0; i < count; i++)
        make_block(r, &r->blocks[i], count == 1 ? 2 * Q_BYTES + 2 * K_BYTES : bytes[i]);
    r->errors = 0; /* the dedicated ones */
    r->warned[0] = 0;
    r->job = (tandem_job){.struct_bytes = sizeof r->job, .operation = TANDEM_OPERATION_ATTENTION};
    *op = (tandem_attention){.batch = 1, .heads = HEADS, .kv_heads = HEADS, .q_len = ROWS, .kv_len = KEYS,
                             .head_dim = DIM, .precision = TANDEM_PRECISION_8B};
    for (uint32_t i = 0; i < VIEWS; i++) {
        *views[i] = tandem_view_dense(r->blocks[count == 1 ? 0 : i].mem, count == 1 ? at : 0, TANDEM_DTYPE_F32, HEADS,
                                      i == 1 || i == 2 ? KEYS : ROWS, DIM);
        at += bytes[i];
    }
}

static void close_rig(rig *r)
{
    assert_int_equal(r->vk.DeviceWaitIdle(r->vk.device), VK_SUCCESS);
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
    for (uint32_t i = 0; i < r->count; i++) {
        r->vk.DestroyBuffer(r->vk.device, r->blocks[i].buffer, NULL);
        r->vk.FreeMemory(r->vk.device, r->blocks[i].memory, NULL);
        vku_buffer_destroy(&r->vk, &r->blocks[i].up);
        vku_buffer_destroy(&r->vk, &r->blocks[i].down);
    }
    vku_close(&r->vk);
    if (r->vk.errors)
        fail_msg("%s: validation: %s", r->on->name, r->vk.last_text);
}

/* Where a view's bytes are on the engine's host. */
static void *host_of(rig *r, uint32_t view, bool up)
{
    const tandem_attention *op = &r->job.op.attention;
    const tandem_view *const views[VIEWS] = {&op->q, &op->k, &op->v, &op->o};
    const block *b = &r->blocks[r->count == 1 ? 0 : view];

    return (char *)(up ? b->up.host : b->down.host) + views[view]->offset_bytes;
}

static void fill(float *to, uint64_t bytes, uint64_t seed)
{
    for (uint64_t i = 0; i < bytes / sizeof *to; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        to[i] = (float)((double)(seed >> 40) * 0x1p-23 - 1);
    }
}

static void fill_frame(rig *r, uint64_t n)
{
    fill(host_of(r, 0, true), Q_BYTES, 3 * n);
    fill(host_of(r, 1, true), K_BYTES, 3 * n + 1);
    fill(host_of(r, 2, true), K_BYTES, 3 * n + 2);
    memset(host_of(r, 3, true), 0x11, Q_BYTES);
}

typedef enum mistake { NONE, NO_RELEASE, NO_ACQUIRE, NEITHER, O_NOT_RELEASED } mistake;

static bool releases(mistake m) { return m == NONE || m == NO_ACQUIRE || m == O_NOT_RELEASED; }
static bool acquires(mistake m) { return m == NONE || m == NO_RELEASE || m == O_NOT_RELEASED; }

/* A frame as in INTEGRATION.md, through the engine's own buffers. */
static void frame(rig *r, mistake m)
{
    const uint64_t n = ++r->value;
    tandem_job_report report = {.struct_bytes = sizeof report};
    VkCommandBuffer a = vku_begin(&r->vk), b;
    tandem_ticket ticket;
    VkFence fence;

    assert_int_equal(r->vk.CreateFence(r->vk.device,
                                       &(VkFenceCreateInfo){.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO}, NULL, &fence),
                     VK_SUCCESS);
    for (uint32_t i = 0; i < r->count; i++) {
        const VkBufferCopy copy = {.dstOffset = OFFSET, .size = r->blocks[i].bytes};

        r->vk.CmdCopyBuffer(a, r->blocks[i].up.buffer, r->blocks[i].buffer, 1, &copy);
        vku_full_barrier(&r->vk, a);
        if (releases(m) && !(m == O_NOT_RELEASED && i == 3))
            assert_int_equal(tandem_record_release(r->s, a, r->blocks[i].mem, TRANSFER, VK_ACCESS_TRANSFER_WRITE_BIT),
                             TANDEM_OK);
    }
    r->job.wait = (tandem_point){r->engines, n};
    r->job.signal = (tandem_point){r->ours, n};
    assert_int_equal(tandem_submit(r->s, &r->job, &ticket), TANDEM_OK);
    assert_int_equal(vku_submit(&r->vk, a, (vku_point){0}, (vku_point){r->engines_semaphore, n}, VK_NULL_HANDLE),
                     VK_SUCCESS);
    assert_int_equal(tandem_timeline_submitted(r->s, r->engines, n), TANDEM_OK);
    b = vku_begin(&r->vk);
    for (uint32_t i = 0; i < r->count; i++) {
        const VkBufferCopy copy = {.srcOffset = OFFSET, .size = r->blocks[i].bytes};

        if (acquires(m))
            assert_int_equal(tandem_record_acquire(r->s, b, r->blocks[i].mem, TRANSFER, VK_ACCESS_TRANSFER_READ_BIT),
                             TANDEM_OK);
        vku_full_barrier(&r->vk, b);
        r->vk.CmdCopyBuffer(b, r->blocks[i].buffer, r->blocks[i].down.buffer, 1, &copy);
    }
    vku_full_barrier(&r->vk, b);
    assert_int_equal(vku_submit(&r->vk, b, (vku_point){r->ours_semaphore, n}, (vku_point){0}, fence), VK_SUCCESS);
    assert_int_equal(tandem_wait(r->s, ticket, LONG_NS, &report), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
    assert_int_equal(tandem_point_wait(r->s, r->job.signal, LONG_NS), TANDEM_OK);
    assert_int_equal(r->vk.WaitForFences(r->vk.device, 1, &fence, VK_TRUE, LONG_NS), VK_SUCCESS);
    r->vk.DestroyFence(r->vk.device, fence, NULL);
    r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, 1, &a);
    r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, 1, &b);
}

/* The same job on host memory, without Vulkan. */
static void compute_on_host(rig *r, void *o)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .cpu_threads = 2};
    const tandem_mem_desc mem_desc = {.struct_bytes = sizeof mem_desc, .bytes = 2 * Q_BYTES + 2 * K_BYTES};
    const uint64_t bytes[VIEWS] = {Q_BYTES, K_BYTES, K_BYTES, Q_BYTES};
    tandem_job job = r->job;
    tandem_attention *op = &job.op.attention;
    tandem_view *const views[VIEWS] = {&op->q, &op->k, &op->v, &op->o};
    tandem_session *s;
    tandem_mem mem;
    tandem_ticket ticket;
    uint64_t at = 0;
    void *host;

    assert_int_equal(tandem_session_create(&desc, &s), TANDEM_OK);
    assert_int_equal(tandem_mem_create(s, &mem_desc, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(s, mem, &host), TANDEM_OK);
    job.wait = job.signal = (tandem_point){0};
    for (uint32_t i = 0; i < VIEWS; i++) {
        views[i]->mem = mem;
        views[i]->offset_bytes = at;
        memcpy((char *)host + at, host_of(r, i, true), bytes[i]);
        at += bytes[i];
    }
    assert_int_equal(tandem_submit(s, &job, &ticket), TANDEM_OK);
    assert_int_equal(tandem_wait(s, ticket, LONG_NS, NULL), TANDEM_OK);
    memcpy(o, (char *)host + op->o.offset_bytes, Q_BYTES);
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
}

static void same_bits(bool dedicated)
{
    static char want[Q_BYTES];
    rig r;

    for (int g = 0; g < GROUNDS; g++)
        for (uint32_t count = 1; count <= VIEWS; count += VIEWS - 1) {
            open_rig(&r, &grounds[g], count, dedicated);
            for (uint64_t n = 1; n <= FRAMES; n++) {
                fill_frame(&r, n);
                frame(&r, NONE);
                compute_on_host(&r, want);
                if (memcmp(host_of(&r, 3, false), want, Q_BYTES))
                    fail_msg("%s, %u mems: frame %" PRIu64 " differs from host memory's", r.on->name, count, n);
                for (uint32_t i = 0; i < 3; i++) /* what was read came back as it was */
                    assert_memory_equal(host_of(&r, i, false), host_of(&r, i, true), i ? K_BYTES : Q_BYTES);
            }
            close_rig(&r);
            if (r.warnings || r.errors)
                fail_msg("%s: %s", r.on->name, r.warned);
        }
}

static void test_same_bits(void **state)
{
    (void)state;
    same_bits(false);
}

/* The engine's own buffers in place of the session's, which such memory does not take. */
static void test_dedicated(void **state)
{
    (void)state;
    same_bits(true);
}

static unsigned count_of(const char *all, const char *words)
{
    unsigned count = 0;

    for (const char *at = all; (at = strstr(at, words)); at += strlen(words))
        count++;
    return count;
}

/* Each mistake in every frame, told once, with its mem's name. */
static void test_forgotten(void **state)
{
    char name[64];
    rig r;

    (void)state;
    for (int g = 0; g < GROUNDS; g++)
        for (mistake m = NO_RELEASE; m <= NEITHER; m++)
            for (uint32_t count = 1; count <= VIEWS; count += VIEWS - 1) {
                unsigned releases_told, acquires_told;

                open_rig(&r, &grounds[g], count, false);
                for (uint64_t n = 1; n <= FRAMES; n++) {
                    fill_frame(&r, n);
                    frame(&r, m);
                }
                snprintf(name, sizeof name, "mem 0x%" PRIx64, r.blocks[m == NO_ACQUIRE ? count - 1 : 0].mem);
                close_rig(&r);
                releases_told = count_of(r.warned, "tandem_record_release() was never recorded");
                acquires_told = count_of(r.warned, "tandem_record_acquire() was never recorded");
                if (r.errors || releases_told != !releases(m) || acquires_told != !acquires(m) ||
                    (r.warnings && !strstr(r.warned, name)))
                    fail_msg("%s, %d, %u mems: %u warnings: %s", r.on->name, (int)m, count, r.warnings, r.warned);
            }
}

/* An output of which a job writes a part: an acquire brings all of it back. One that is written wholly needs no release. */
static void test_output_not_released(void **state)
{
    char name[64];
    rig r;

    (void)state;
    for (int part = 0; part < 2; part++) {
        open_rig(&r, &grounds[0], VIEWS, false);
        r.job.op.attention.q_len -= (uint32_t)part;
        for (uint64_t n = 1; n <= FRAMES; n++) {
            fill_frame(&r, n);
            frame(&r, O_NOT_RELEASED);
        }
        snprintf(name, sizeof name, "o.mem 0x%" PRIx64 ", but tandem_record_release()", r.blocks[3].mem);
        close_rig(&r);
        assert_int_equal(count_of(r.warned, name), part);
        assert_int_equal(r.warnings, part);
    }
}

/* One job, whose result nobody fetches: told when the mem goes. */
static void test_forgotten_at_the_end(void **state)
{
    rig r;

    (void)state;
    for (int how = 0; how < 2; how++) {
        open_rig(&r, &grounds[0], VIEWS, false);
        fill_frame(&r, 1);
        frame(&r, NO_ACQUIRE);
        assert_int_equal(count_of(r.warned, "tandem_record_acquire()"), 0);
        if (how)
            assert_int_equal(tandem_mem_destroy(r.s, r.blocks[3].mem), TANDEM_OK);
        close_rig(&r);
        assert_int_equal(count_of(r.warned, "ends, but tandem_record_acquire() was never recorded"), 1);
        assert_int_equal(r.warnings, 1);
    }
}

/* Who works through the host's address needs neither. */
static void test_by_the_host(void **state)
{
    static char want[Q_BYTES];
    void *host[VIEWS];
    rig r;

    (void)state;
    for (int g = 0; g < GROUNDS; g++) {
        open_rig(&r, &grounds[g], VIEWS, false);
        for (int i = 0; i < VIEWS; i++)
            assert_int_equal(tandem_mem_host(r.s, r.blocks[i].mem, &host[i]), TANDEM_OK);
        fill_frame(&r, 1);
        for (int i = 0; i < VIEWS; i++)
            memcpy(host[i], host_of(&r, (uint32_t)i, true), r.blocks[i].bytes);
        frame(&r, NEITHER);
        frame(&r, NEITHER);
        compute_on_host(&r, want);
        assert_memory_equal(host[3], want, Q_BYTES);
        close_rig(&r);
        if (r.warnings || r.errors)
            fail_msg("%s: %s", r.on->name, r.warned);
    }
}

static int set_up(void **state)
{
    *state = &served;
    return group_daemon_begin(&served, "memory", "backend = cpu\nthreads = 2\n");
}

static int tear_down(void **state)
{
    return group_daemon_end(*state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_dedicated),
        cmocka_unit_test(test_forgotten),
        cmocka_unit_test(test_output_not_released),
        cmocka_unit_test(test_forgotten_at_the_end),
        cmocka_unit_test(test_by_the_host),
    };

    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
