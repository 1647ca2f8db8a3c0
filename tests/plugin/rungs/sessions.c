/* Sessions on each rung: refused, without Vulkan, destroyed while jobs are on their way, and their accounts.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/plugin/rungs/rig.h"

/* What cannot be had is refused by name, in the session's error text and in one log line. */
static void refuse(rig *r, uint32_t backend, tandem_rung asked, const char *words)
{
    tandem_session_desc desc = r->desc;
    tandem_session *s = (tandem_session *)r;
    const unsigned before = r->errors;
    tandem_status status;

    desc.backend = backend;
    desc.rung = asked;
    r->text[0] = 0;
    status = tandem_session_create(&desc, &s);
    if (status != TANDEM_ERROR_UNSUPPORTED || s || !strstr(r->text, words) || r->errors != before + 1)
        fail_msg("%s, rung %u: %d, %s", r->on->name, asked, status, r->text);
}

static void test_refusals(void **state)
{
    static const ground bare = {.name = "bare",
                                .without = {INLINE_KERNELS, MEMORY_FD, SEMAPHORE_FD, MEMORY_HOST, TIMELINE_FEATURE}};
    static const ground dark = {.name = "memory alone", .without = {INLINE_KERNELS, SEMAPHORE_FD, TIMELINE_FEATURE}};
    tandem_session *s = NULL;
    rig r;
    bool cuda;

    (void)state;
    prepare(&r, &bare);
    cuda = has_cuda(&r);
    refuse(&r, TANDEM_BACKEND_AUTO, TANDEM_RUNG_INLINE, "VK_NVX_binary_import");
    refuse(&r, TANDEM_BACKEND_AUTO, TANDEM_RUNG_TIMELINE, cuda ? MEMORY_FD : "no CUDA");
    refuse(&r, TANDEM_BACKEND_AUTO, TANDEM_RUNG_HOST, cuda ? MEMORY_FD : MEMORY_HOST);
    refuse(&r, TANDEM_BACKEND_AUTO, TANDEM_RUNG_CPU, MEMORY_HOST);
    refuse(&r, TANDEM_BACKEND_CPU, TANDEM_RUNG_INLINE, "desc.rung is 1 (inline)");
    refuse(&r, TANDEM_BACKEND_CPU, TANDEM_RUNG_TIMELINE, "desc.rung is 2 (timeline)");
    refuse(&r, TANDEM_BACKEND_CPU, TANDEM_RUNG_HOST, MEMORY_HOST);
    refuse(&r, TANDEM_BACKEND_CUDA, TANDEM_RUNG_CPU, "desc.backend is 1");
    close_rig(&r);
    prepare(&r, &dark);
    refuse(&r, TANDEM_BACKEND_AUTO, TANDEM_RUNG_TIMELINE, cuda ? TIMELINE_FEATURE : "no CUDA");
    /* The same without Vulkan. */
    r.desc.vulkan = NULL;
    refuse(&r, TANDEM_BACKEND_AUTO, TANDEM_RUNG_INLINE, "no Vulkan device");
    refuse(&r, TANDEM_BACKEND_CPU, TANDEM_RUNG_COPY, "same memory");
    if (cuda)
        refuse(&r, TANDEM_BACKEND_CUDA, TANDEM_RUNG_TIMELINE, "no Vulkan device");
    r.desc.backend = TANDEM_BACKEND_CPU;
    r.desc.rung = TANDEM_RUNG_HOST;
    assert_int_equal(tandem_session_create(&r.desc, &s), TANDEM_OK);
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
    close_rig(&r);
}

/* Without Vulkan: CUDA's own memory beside the host's. */
static void test_copy_without_vulkan(void **state)
{
    static const ground plain = {.name = "copy without Vulkan", .asked = TANDEM_RUNG_COPY};
    tandem_mem mem;
    void *host;
    rig r;

    (void)state;
    prepare(&r, &plain);
    if (!has_cuda(&r)) {
        close_rig(&r);
        skip();
    }
    r.desc.vulkan = NULL;
    r.desc.backend = TANDEM_BACKEND_CUDA;
    assert_int_equal(tandem_session_create(&r.desc, &r.s), TANDEM_OK);
    mem = new_mem(&r, 65536);
    assert_int_equal(tandem_mem_host(r.s, mem, &host), TANDEM_OK);
    on_the_host(&r, mem, host);
    assert_int_equal(tandem_mem_destroy(r.s, mem), TANDEM_OK);
    close_rig(&r);
}

/* Mems, timelines and sessions are destroyed while jobs wait, run and copy; nothing is left of them. */
static void in_flight(rig *r)
{
    const shape sh = {1, 4000, 64, 64, TANDEM_PRECISION_F16, 0, TWO_MEMS};
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE),
                          ours = new_timeline(r, TANDEM_SIGNALLER_SESSION);
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_attention views;
    slot f[IN_FLIGHT];
    uint64_t bytes[2];

    lay_out(&sh, &views, bytes);
    for (uint64_t n = 0; n < IN_FLIGHT; n++) {
        make_slot(r, &f[n], &views, bytes);
        fill(f[n].up[0].host, bytes[0], n);
        frame_up(r, &f[n], engines, 2 * n + 1);
        /* The last waits for what nobody will signal. */
        f[n].job.wait = (tandem_point){engines, n == IN_FLIGHT - 1 ? 100 : 2 * n + 1};
        f[n].job.signal = (tandem_point){ours, n + 1};
        f[n].ticket = submit_job(r, &f[n].job);
        frame_handed_over(r, &f[n], engines);
    }
    assert_int_equal(r->vk.DeviceWaitIdle(r->vk.device), VK_SUCCESS); /* no commands wait for a job here */
    assert_int_equal(tandem_mem_destroy(r->s, f[2].mems[1]), TANDEM_OK);
    assert_int_equal(tandem_wait(r->s, f[2].ticket, LONG_NS, &report), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_CANCELLED);
    f[2].mems[1] = 0;
    vku_buffer_destroy(&r->vk, &f[2].up[1]);
    vku_buffer_destroy(&r->vk, &f[2].down[1]);
    assert_int_equal(tandem_mem_destroy(r->s, f[1].mems[0]), TANDEM_OK);
    f[1].mems[0] = 0;
    vku_buffer_destroy(&r->vk, &f[1].up[0]);
    vku_buffer_destroy(&r->vk, &f[1].down[0]);
    assert_int_equal(tandem_point_wait(r->s, (tandem_point){ours, 3}, LONG_NS), TANDEM_OK);
    f[0].job.wait = (tandem_point){engines, 200};
    f[0].job.signal = (tandem_point){ours, 4};
    submit_job(r, &f[0].job); /* pending when the session goes */
    for (int n = 0; n < IN_FLIGHT; n++) {
        VkCommandBuffer commands[2] = {f[n].up_commands, f[n].down_commands};

        r->vk.FreeCommandBuffers(r->vk.device, r->vk.pool, 2, commands);
        for (int m = 0; m < 2; m++)
            if (f[n].mems[m]) {
                vku_buffer_destroy(&r->vk, &f[n].up[m]);
                vku_buffer_destroy(&r->vk, &f[n].down[m]);
            }
    }
    assert_int_equal(tandem_session_destroy(&r->s), TANDEM_OK);
}

static void test_in_flight(void **state)
{
    (void)state;
    for (int g = 0; g < ground_count; g++) {
        int fds = 0;
        rig r;

        if (grounds[g].same || !open_rig(&r, &grounds[g]))
            continue;
        for (int turn = 0; turn < 3; turn++) {
            if (turn == 1)
                fds = vku_open_fds();
            if (!r.s)
                assert_int_equal(tandem_session_create(&r.desc, &r.s), TANDEM_OK);
            in_flight(&r);
        }
        assert_int_equal(r.errors, 0);
        assert_int_equal(vku_open_fds(), fds);
        close_rig(&r);
    }
}

/* What a mem takes is given back with it. */
static void test_accounts(void **state)
{
    static const char *const names[] = {"host, forced", "copy, forced", "copy on the CPU, forced"};
    enum { BYTES = 3 << 20 };

    (void)state;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        tandem_info before = {.struct_bytes = sizeof before}, with = before, after = before;
        tandem_mem mem;
        rig r;

        if (!open_rig(&r, ground_named(names[n])))
            continue;
        mem = new_mem(&r, 4096); /* the table of ids grows */
        assert_int_equal(tandem_mem_destroy(r.s, mem), TANDEM_OK);
        assert_int_equal(tandem_session_info(r.s, &before), TANDEM_OK);
        mem = new_mem(&r, BYTES);
        assert_int_equal(tandem_session_info(r.s, &with), TANDEM_OK);
        if (r.info.rung == TANDEM_RUNG_COPY) {
            assert_true(with.host_bytes >= before.host_bytes + BYTES);
            assert_true(with.device_bytes >=
                        before.device_bytes + BYTES * (r.info.backend == TANDEM_BACKEND_CUDA ? 2 : 1));
        }
        assert_int_equal(tandem_mem_destroy(r.s, mem), TANDEM_OK);
        assert_int_equal(tandem_session_info(r.s, &after), TANDEM_OK);
        assert_int_equal(after.host_bytes, before.host_bytes);
        assert_int_equal(after.device_bytes, before.device_bytes);
        close_rig(&r);
    }
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_copy_without_vulkan),
    cmocka_unit_test(test_in_flight),
    cmocka_unit_test(test_accounts),
};
const test_cases rungs_sessions_cases = TEST_CASES(cases);
