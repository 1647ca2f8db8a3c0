/* Barriers between a plan's records, what a plan may not be, and plans that are recorded by hand.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/params.h"
#include "kernels/builder.h"
#include "tests/plugin/inline/rig.h"

static td_plan *hand_made(uint32_t records)
{
    static const td_kernel kernel = {.name = "mean_final", .entry = "mean_final"};
    td_plan *plan = calloc(1, sizeof *plan);

    assert_non_null(plan);
    for (uint32_t i = 0; i < records; i++) {
        td_record *r = td_plan_add_record(plan, sizeof(td_params_mean_final));

        assert_non_null(r);
        r->kernel = &kernel;
        r->grid[0] = r->grid[1] = r->grid[2] = r->block[1] = r->block[2] = 1;
        r->block[0] = TD_BLOCK_THREADS;
        r->registers = 32;
    }
    return plan;
}

static void reads(td_plan *plan, uint32_t record, uint32_t base, uint32_t view, uint64_t begin, uint64_t end)
{
    assert_non_null(td_plan_add_read(plan, &plan->records[record], (td_range){base, view, begin, end}));
}

static void writes(td_plan *plan, uint32_t record, uint32_t base, uint32_t view, uint64_t begin, uint64_t end)
{
    assert_non_null(td_plan_add_write(plan, &plan->records[record], (td_range){base, view, begin, end}));
}

/* Records it, without ever submitting; returns the barriers between records, data_barriers those that carry data. */
static unsigned count_barriers(td_plan *plan, unsigned *data)
{
    const uint64_t views[TD_VIEW_COUNT] = {0};
    const td_stream_submit submit = {.plan = plan, .views = views, .scratch = 4096, .label = "never submitted"};
    VkCommandBuffer commands = vku_begin(&gpu);
    uint64_t number;
    unsigned count;

    td_plan_barriers(plan);
    assert_non_null(commands);
    F.barriers = F.data_barriers = F.wide_barriers = F.launches = 0;
    must(td_inline_record(stream, &submit, commands, &number, why, sizeof why));
    assert_int_equal(F.launches, plan->record_count + 2);
    assert_int_equal(F.wide_barriers, 0);
    count = F.barriers - 2;
    *data = F.data_barriers - 2;
    assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
    gpu.FreeCommandBuffers(gpu.device, gpu.pool, 1, &commands);
    td_plan_free(plan);
    free(plan);
    return count;
}

#define SCRATCH TD_BASE_SCRATCH, 0
#define VIEW(i) TD_BASE_VIEW, i
#define BARRIERS(plan, all, with_data)                             \
    do {                                                           \
        assert_int_equal(count_barriers(plan, &data), all);        \
        assert_int_equal(data, with_data);                         \
    } while (0)

static void test_barriers(void **state)
{
    td_plan *plan;
    unsigned data;

    (void)state;
    BARRIERS(hand_made(0), 0, 0);
    BARRIERS(hand_made(400), 0, 0); /* as many as a plan has */
    /* independent: they read the same, write side by side, into different views and bases */
    plan = hand_made(4);
    for (uint32_t i = 0; i < 4; i++)
        reads(plan, i, VIEW(TD_VIEW_Q), 0, 4096);
    writes(plan, 0, SCRATCH, 0, 256);
    writes(plan, 1, SCRATCH, 256, 512);
    writes(plan, 2, VIEW(TD_VIEW_O), 0, 256);
    writes(plan, 3, VIEW(TD_VIEW_LSE), 0, 256);
    BARRIERS(plan, 0, 0);
    /* read after write, by one byte */
    plan = hand_made(2);
    writes(plan, 0, SCRATCH, 0, 257);
    reads(plan, 1, SCRATCH, 256, 512);
    BARRIERS(plan, 1, 1);
    /* write after write */
    plan = hand_made(2);
    writes(plan, 0, VIEW(TD_VIEW_O), 0, 256);
    writes(plan, 1, VIEW(TD_VIEW_O), 128, 129);
    BARRIERS(plan, 1, 1);
    /* write after read: an order, no data */
    plan = hand_made(2);
    reads(plan, 0, SCRATCH, 0, 256);
    writes(plan, 1, SCRATCH, 0, 256);
    BARRIERS(plan, 1, 0);
    /* one barrier serves all before it; what comes behind it is independent again */
    plan = hand_made(5);
    writes(plan, 0, SCRATCH, 0, 256);
    writes(plan, 1, SCRATCH, 256, 512);
    reads(plan, 2, SCRATCH, 0, 512);
    writes(plan, 2, SCRATCH, 512, 768);
    reads(plan, 3, SCRATCH, 0, 256);
    reads(plan, 4, SCRATCH, 512, 513);
    BARRIERS(plan, 2, 2);
    /* an order makes nobody see data: what was written before it is still to be waited for */
    plan = hand_made(4);
    writes(plan, 0, SCRATCH, 0, 256);
    reads(plan, 1, VIEW(TD_VIEW_Q), 0, 256);
    writes(plan, 2, VIEW(TD_VIEW_Q), 0, 256);
    reads(plan, 3, SCRATCH, 0, 256);
    BARRIERS(plan, 2, 1);
    /* and an order is one for all before it */
    plan = hand_made(4);
    reads(plan, 0, SCRATCH, 0, 512);
    reads(plan, 1, SCRATCH, 256, 512);
    writes(plan, 2, SCRATCH, 0, 256);
    writes(plan, 3, SCRATCH, 256, 512);
    BARRIERS(plan, 1, 0);
    /* the words of the job */
    plan = hand_made(2);
    writes(plan, 0, TD_BASE_CONTROL, 0, 0, 64);
    reads(plan, 1, TD_BASE_CONTROL, 0, 0, 4);
    BARRIERS(plan, 1, 1);
}

static void test_barriers_of_attention(void **state)
{
    const tu_shape shape = {.q_len = 256, .kv_len = 512, .head_dim = 64, .precision = TANDEM_PRECISION_8B};
    td_target target = td_target_for_sm(sm);
    td_plan *plan = calloc(1, sizeof *plan);
    unsigned data;
    tu_case it;

    (void)state;
    assert_non_null(plan);
    tu_case_init(&it, &shape);
    /* (partial means of K, amax of V) | mean of K | codes of K, V and Q | attention; the order of the records makes the
     * second of V's wait with the codes */
    must(td_plan_attention(&it.op, &target, plan, NULL, why, sizeof why));
    BARRIERS(plan, 3, 3);
    /* and one to claim the output, one to write it */
    target.commit = true;
    plan = calloc(1, sizeof *plan);
    assert_non_null(plan);
    must(td_plan_attention(&it.op, &target, plan, NULL, why, sizeof why));
    BARRIERS(plan, 5, 5);
    tu_case_free(&it);
}

/* --- Limits --- */

static void refused(td_plan *plan, const char *limit)
{
    const uint64_t views[TD_VIEW_COUNT] = {0};
    const td_stream_submit submit = {.plan = plan, .views = views, .scratch = 4096, .label = "never submitted"};
    VkCommandBuffer commands = vku_begin(&gpu);
    uint64_t number = 0, sequence = 0;
    bool signalled = false;

    assert_non_null(commands);
    F.launches = F.barriers = F.submits = 0;
    assert_int_equal(td_inline_check(stream, plan, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    if (!strstr(why, limit))
        fail_msg("'%s' does not name %s", why, limit);
    assert_int_equal(td_inline_record(stream, &submit, commands, &number, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                     TANDEM_ERROR_UNSUPPORTED);
    assert_int_equal(number | sequence | F.launches | F.barriers | F.submits, 0);
    assert_false(signalled);
    assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
    gpu.FreeCommandBuffers(gpu.device, gpu.pool, 1, &commands);
    td_plan_free(plan);
    free(plan);
}

#define REFUSED(change, limit)              \
    do {                                    \
        td_plan *plan_ = hand_made(2);      \
        td_record *r = &plan_->records[1];  \
        change;                             \
        refused(plan_, limit);              \
    } while (0)

/* That a kernel has declared. */
static uint32_t shared_of(const char *entry)
{
    const td_cubin *cubin = td_cubin_for_sm(sm, why, sizeof why);

    assert_non_null(cubin);
    assert_non_null(td_cubin_find(cubin, entry));
    return td_cubin_find(cubin, entry)->shared_bytes;
}

static void test_refusals(void **state)
{
    static const td_kernel unknown = {.name = "no_such_kernel", .entry = "no_such_kernel"},
                           host_only = {.name = "of_the_cpu_alone"};
    const tu_shape shape = {.q_len = 100, .kv_len = 100, .head_dim = 64};

    (void)state;
    REFUSED(r->shared_bytes = 48 * 1024, "48128");
    REFUSED(r->shared_bytes = UINT32_MAX, "shared memory");
    REFUSED(r->registers = 255; r->block[0] = 512, "registers");
    REFUSED(r->block[0] = 2048, "2048 threads");
    REFUSED(r->block[1] = 0, "0 threads");
    REFUSED(r->flags = TD_RECORD_CLUSTER, "clusters");
    REFUSED(r->flags = TD_RECORD_TENSOR_MAPS, "tensor maps");
    REFUSED(assert_non_null(td_plan_add_reloc(plan_, r, (td_reloc){.kind = TD_RELOC_TENSOR_MAP})), "tensor maps");
    REFUSED(r->local_bytes = 13000, "13000 bytes of local memory");
    REFUSED(r->grid[0] = 0, "grid of 0 in x");
    REFUSED(r->grid[0] = 0x80000000u, "grid of 2147483648 in x");
    REFUSED(r->grid[1] = 65536, "grid of 65536 in y");
    REFUSED(r->grid[2] = 65536, "grid of 65536 in z");
    REFUSED(r->param_bytes = 0, "0 bytes of parameters");
    REFUSED(r->param_bytes = TD_PARAM_BYTES + 1, "4097 bytes of parameters");
    REFUSED(r->kernel = &unknown, "no_such_kernel");
    REFUSED(r->kernel = &host_only, "of_the_cpu_alone");
    REFUSED(r->shared_bytes = 47 * 1024 + 1, "in a command buffer there are 48128");
    REFUSED(r->local_bytes = 12 * 1024 + 1, "in a command buffer there are 12288");
    REFUSED(r->registers = 255; r->block[0] = 257, "an SM has 65536");
    REFUSED(r->registers = 65; r->block[0] = 1024, "an SM has 65536"); /* they are handed out by eights */
    REFUSED(r->registers = 224; r->block[0] = 288, "an SM has 65536"); /* 64512: but nine warps of 7168 are three a quarter */
    /* at the limit, and what it does without, is no reason to refuse it */
    for (int i = 0; i < 4; i++) {
        td_plan *plan = hand_made(1);
        td_record *r = &plan->records[0];

        if (i == 0)
            r->shared_bytes = 47 * 1024 - shared_of(r->kernel->entry);
        else if (i == 1)
            r->local_bytes = 12 * 1024;
        else if (i == 2)
            r->registers = 255, r->block[0] = 256;
        else
            r->flags = TD_RECORD_PDL;
        must(td_inline_check(stream, plan, why, sizeof why));
        td_plan_free(plan);
        free(plan);
    }
    /* and the device lives */
    check_case(&shape, "after refusals");
}

/* --- Recorded plans --- */

void submit_commands(VkCommandBuffer commands)
{
    const VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};

    assert_int_equal(gpu.QueueSubmit(gpu.queue, 1, &info, VK_NULL_HANDLE), VK_SUCCESS);
    assert_int_equal(gpu.DeviceWaitIdle(gpu.device), VK_SUCCESS);
}

static void test_recorded(void **state)
{
    const tu_shape shape = {.q_len = 100, .kv_len = 300, .head_dim = 128, .precision = TANDEM_PRECISION_8B};
    const td_target target = td_target_for_sm(sm);
    uint64_t first, second, third, begin, end, before, now;
    VkCommandBuffer commands[3];
    td_stream_submit submit;
    tu_case it;
    vk_case on;

    (void)state;
    tu_case_init(&it, &shape);
    assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
    vk_case_make(&on, &it);
    submit = submit_of(&on, &it.plan);
    expected(&it, &it.o, &it.lse);
    for (int i = 0; i < 3; i++)
        commands[i] = vku_begin(&gpu);
    must(td_inline_record(stream, &submit, commands[0], &first, why, sizeof why));
    must(td_inline_record(stream, &submit, commands[1], &second, why, sizeof why));
    must(td_inline_record(stream, &submit, commands[2], &third, why, sizeof why));
    assert_true(first < second && second < third);
    for (int i = 0; i < 3; i++)
        assert_int_equal(gpu.EndCommandBuffer(commands[i]), VK_SUCCESS);
    assert_false(td_inline_begun(stream, first) || td_inline_ran(stream, first, &begin, &end));

    /* in whatever order */
    before = td_now_ns();
    submit_commands(commands[1]);
    now = td_now_ns();
    assert_true(td_inline_begun(stream, second) && td_inline_ran(stream, second, &begin, &end));
    assert_true(begin <= end && begin + 1000000 > before && end < now + 1000000);
    assert_false(td_inline_ran(stream, first, &begin, &end));
    same("recorded", &on, TD_VIEW_O, &it.o);
    submit_commands(commands[0]);
    assert_true(td_inline_ran(stream, first, &begin, &end));
    /* again, on what it was given up for and not */
    memset(on.mems[TD_VIEW_O].host, TU_POISON, it.o.bytes);
    assert_false(td_inline_cancelled(stream, first));
    td_inline_cancel(stream, first);
    td_inline_cancel(stream, third);
    assert_true(td_inline_cancelled(stream, first) && !td_inline_cancelled(stream, second));
    submit_commands(commands[0]);
    submit_commands(commands[2]);
    assert_true(td_inline_ran(stream, third, &begin, &end));
    for (size_t i = 0; i < it.o.bytes; i++)
        assert_int_equal(((unsigned char *)on.mems[TD_VIEW_O].host)[i], TU_POISON);
    submit_commands(commands[1]);
    same("recorded, submitted twice", &on, TD_VIEW_O, &it.o);
    gpu.FreeCommandBuffers(gpu.device, gpu.pool, 3, commands);
    vk_case_free(&on);
    tu_case_free(&it);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_barriers),
    cmocka_unit_test(test_barriers_of_attention),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_recorded),
};
const test_cases inline_barriers_cases = TEST_CASES(cases);
