/* The stream: points, what a frame costs, commands that are kept, who looks, slots, and uploads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plugin/inline/rig.h"
#include "tests/plugin/poller.h"

static void test_points(void **state)
{
    const tu_shape shape = {.q_len = 64, .kv_len = 64, .head_dim = 32};
    const td_target target = td_target_for_sm(sm);
    VkSemaphore in = VK_NULL_HANDLE, out = VK_NULL_HANDLE;
    uint64_t sequence, value = 0, begin, end;
    td_stream_point wait, signal;
    td_stream_submit submit;
    bool signalled = false;
    tu_case it;
    vk_case on;

    (void)state;
    tu_case_init(&it, &shape);
    assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
    vk_case_make(&on, &it);
    must(td_vk_timeline_create(vk, 0, false, &in, why, sizeof why));
    must(td_vk_timeline_create(vk, 0, false, &out, why, sizeof why));
    submit = submit_of(&on, &it.plan);
    wait = (td_stream_point){NULL, in, 3};
    signal = (td_stream_point){NULL, out, 7};
    submit.wait = &wait;
    submit.signal = &signal;
    submit.slot = 5;
    if (!F.real) /* the fake waits on the host, within the submit */
        must(td_vk_timeline_signal(vk, in, 3));
    must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why));
    assert_true(signalled);
    if (F.real) {
        assert_true(td_stream_completed(stream) < sequence);
        assert_false(td_stream_drain(stream, 1000000));
        must(td_vk_timeline_signal(vk, in, 3));
    }
    assert_int_equal(td_vk_timeline_wait(vk, out, 7, LIMIT_NS), TANDEM_OK);
    assert_int_equal(td_stream_wait(stream, sequence), TANDEM_OK);
    assert_true(td_stream_drain(stream, LIMIT_NS));
    must(td_vk_timeline_value(vk, out, &value));
    assert_int_equal(value, 7);
    assert_true(td_stream_times(stream, sequence, &begin, &end) && begin <= end);
    assert_true(td_stream_begun(stream, sequence));
    expected(&it, &it.o, &it.lse);
    same("after a wait", &on, TD_VIEW_O, &it.o);
    td_vk_timeline_destroy(vk, &in);
    td_vk_timeline_destroy(vk, &out);
    vk_case_free(&on);
    tu_case_free(&it);
}

/* Frames in slots of their own cost no allocation, no copy, no wait, no recording, and one submit each. */
static void test_frame_counts(void **state)
{
    enum { SLOTS = 3, WARM = 4 * SLOTS, TIMES = 100 };
    const tu_shape shape = {.q_len = 64, .kv_len = 64, .head_dim = 32};
    const td_target target = td_target_for_sm(sm);
    td_stream_submit submit;
    uint64_t sequence = 0;
    tu_case it;
    vk_case on;

    (void)state;
    tu_case_init(&it, &shape);
    assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
    vk_case_make(&on, &it);
    submit = submit_of(&on, &it.plan);
    for (uint32_t frame = 0; frame < WARM + TIMES; frame++) {
        const uint64_t begin = td_now_ns();
        bool signalled;

        if (frame == WARM)
            F.allocations = F.copies = F.host_waits = F.begins = F.submits = F.batches = F.waits = F.signals = 0;
        while (sequence >= SLOTS && td_stream_completed(stream) + SLOTS <= sequence)
            assert_true(td_now_ns() - begin < LIMIT_NS);
        submit.slot = frame % SLOTS;
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why));
    }
    assert_int_equal(F.allocations, 0);
    assert_int_equal(F.copies, 0);
    assert_int_equal(F.host_waits, 0);
    /* A slot is used again when its last submit's stamp was seen, so one of its buffers can be pending still, where others share
     * the device for longer than the warm-up showed. Then a spare is recorded, and the two take turns: one a slot, at most. */
    assert_true(F.begins <= (F.real ? SLOTS : 0));
    assert_int_equal(F.submits, TIMES);
    assert_int_equal(F.batches, TIMES);
    assert_int_equal(F.waits, 0);
    assert_int_equal(F.signals, TIMES);
    assert_int_equal(td_stream_wait(stream, sequence), TANDEM_OK);
    vk_case_free(&on);
    tu_case_free(&it);
}

/* What happens right before a submit goes to the queue. */
typedef struct meddler {
    td_stream *stream;
    uint64_t sequence; /* of the submit at hand */
    uint64_t end_ns;   /* of the one before */
    bool gives_up, cancels;
} meddler;

static void meddle(void *user)
{
    meddler *m = user;

    if (m->gives_up)
        __atomic_store_n(&td_stream_control(m->stream, m->sequence)->stale, 1, __ATOMIC_SEQ_CST);
    if (m->cancels)
        td_stream_cancel(m->stream, m->sequence);
}

static void unmeddled(void *user)
{
    (void)user;
}

/* Enqueues in slot 3 and waits; O is what is expected, or what it was. */
static void run_meddled(meddler *m, vk_case *on, const tu_case *it, const td_plan *plan, uint32_t verdict)
{
    td_stream_submit submit = submit_of(on, plan);
    uint64_t sequence = 0, begin, end;
    unsigned char *o = on->mems[TD_VIEW_O].host;
    bool signalled;

    submit.slot = 3;
    memset(o, TU_POISON, it->o.bytes);
    m->sequence++;
    must(td_stream_enqueue(m->stream, &submit, &sequence, &signalled, why, sizeof why));
    assert_int_equal(sequence, m->sequence);
    assert_int_equal(td_stream_wait(m->stream, sequence), TANDEM_OK);
    assert_int_equal(td_stream_completed(m->stream), sequence);
    assert_int_equal(td_stream_control(m->stream, sequence)->verdict, verdict);
    if (!m->gives_up && !m->cancels)
        same("by commands that were kept", on, TD_VIEW_O, &it->o);
    for (size_t i = 0; i < it->o.bytes && (m->gives_up || m->cancels); i++)
        assert_int_equal(o[i], TU_POISON);
    assert_true(td_stream_times(m->stream, sequence, &begin, &end) && m->end_ns <= begin && begin <= end);
    m->end_ns = end;
    for (uint64_t i = sequence; i && i + 5 > sequence; i--)
        assert_true(td_stream_begun(m->stream, i) && td_stream_times(m->stream, i, &begin, &end) && end <= m->end_ns);
    assert_false(td_stream_begun(m->stream, sequence + 1) || td_stream_times(m->stream, sequence + 1, &begin, &end));
}

/* Commands are recorded when a slot is given something for the first time, and then submitted again: what the host says
 * about one submit is not said about the next. */
static void test_kept_commands(void **state)
{
    enum { ROUNDS = 6 };
    const tu_shape shape = {.q_len = 100, .kv_len = 200, .head_dim = 64, .precision = TANDEM_PRECISION_8B};
    td_target target = td_target_for_sm(sm);
    td_inline_desc desc = desc_here();
    td_plan *commits = calloc(1, sizeof *commits);
    meddler m = {0};
    vk_case on[2];
    td_attention_layout layout;
    tu_case it[2];

    (void)state;
    assert_non_null(commits);
    desc.lock = meddle;
    desc.unlock = unmeddled;
    desc.user = &m;
    must(td_stream_create_inline(&desc, NULL, &m.stream, why, sizeof why));
    for (int i = 0; i < 2; i++) {
        tu_shape seeded = shape;

        seeded.seed = 3 + (uint64_t)i;
        tu_case_init(&it[i], &seeded);
        assert_int_equal(tu_case_run(&it[i], &target, 2), TANDEM_OK);
        expected(&it[i], &it[i].o, &it[i].lse);
    }
    target.commit = true;
    must(td_plan_attention(&it[0].op, &target, commits, &layout, why, sizeof why)); /* as the others, with room for its codes */
    for (int i = 0; i < 2; i++) { /* scratch for either plan */
        const td_plan plain = it[i].plan; /* which has its memory meanwhile */

        it[i].plan = *commits;
        vk_case_make(&on[i], &it[i]);
        it[i].plan = plain;
    }
    for (int round = 0; round < ROUNDS; round++) {
        if (round == 1)
            F.begins = F.allocations = 0;
        for (int i = 0; i < 2; i++) {
            run_meddled(&m, &on[i], &it[i], &it[i].plan, TD_VERDICT_NONE);
            run_meddled(&m, &on[i], &it[i], commits, TD_VERDICT_COMMITTED);
            if (round % 2 == 0)
                continue;
            m.gives_up = true;
            run_meddled(&m, &on[i], &it[i], commits, TD_VERDICT_GIVEN_UP);
            m.gives_up = false;
            run_meddled(&m, &on[i], &it[i], commits, TD_VERDICT_COMMITTED);
            m.cancels = true;
            run_meddled(&m, &on[i], &it[i], &it[i].plan, TD_VERDICT_NONE);
            m.cancels = false;
            run_meddled(&m, &on[i], &it[i], &it[i].plan, TD_VERDICT_NONE);
        }
    }
    assert_int_equal(F.begins, 0);
    /* what differs is recorded, in place of what was not used for longest */
    for (uint32_t blocks = 2; blocks < 5; blocks++) {
        td_plan *other = calloc(1, sizeof *other);

        assert_non_null(other);
        assert_true(td_plan_copy(other, commits));
        other->records[other->record_count - 1].grid[0] = blocks; /* nothing is committed by them */
        F.begins = 0;
        m.gives_up = true;
        run_meddled(&m, &on[0], &it[0], other, TD_VERDICT_GIVEN_UP);
        assert_int_equal(F.begins, 1);
        run_meddled(&m, &on[0], &it[0], other, TD_VERDICT_GIVEN_UP);
        m.gives_up = false;
        assert_int_equal(F.begins, 1);
        run_meddled(&m, &on[0], &it[0], commits, TD_VERDICT_COMMITTED);
        td_plan_free(other);
        free(other);
    }
    assert_int_equal(F.allocations, 0);
    td_stream_destroy(&m.stream, LIMIT_NS);
    for (int i = 0; i < 2; i++) {
        vk_case_free(&on[i]);
        tu_case_free(&it[i]);
    }
    td_plan_free(commits);
    free(commits);
}

static void test_pollers(void **state)
{
    enum { SLOTS = 3, SUBMITS = 2000, POLLERS = 3 };
    static const td_plan nothing;
    poller pollers[POLLERS] = {0};
    atomic_bool over = false;
    uint64_t sequence = 0;

    (void)state;
    for (int i = 0; i < POLLERS; i++) {
        pollers[i].stream = stream;
        pollers[i].over = &over;
        assert_int_equal(pthread_create(&pollers[i].thread, NULL, poll_stream, &pollers[i]), 0);
    }
    for (uint32_t i = 0; i < SUBMITS; i++) {
        const td_stream_submit submit = {.plan = &nothing, .slot = i % SLOTS, .label = "test"};
        const uint64_t begin = td_now_ns();
        tandem_status status;
        bool signalled;

        while ((status = td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why)) ==
               TANDEM_ERROR_BUSY)
            if (td_now_ns() - begin > LIMIT_NS)
                break;
        if (status != TANDEM_OK)
            break;
    }
    td_stream_wait(stream, sequence);
    atomic_store(&over, true);
    for (int i = 0; i < POLLERS; i++)
        assert_int_equal(pthread_join(pollers[i].thread, NULL), 0);
    assert_int_equal(td_stream_completed(stream), sequence);
    for (int i = 0; i < POLLERS; i++) {
        assert_int_equal(pollers[i].wrong, 0);
        assert_true(pollers[i].seen > 0);
    }
}

/* A slot has one submit at a time, and what it says of the one before is not said of the next. */
static void test_slot_in_use(void **state)
{
    const td_vk_desc desc = vku_desc(&gpu);
    const int live = F.live;
    static const td_plan nothing;
    td_stream_submit submit = {.plan = &nothing, .label = "test"};
    td_inline_desc inline_desc = desc_here();
    uint64_t sequence = 0, begin, end;
    td_stream *made;
    bool signalled;

    (void)state;
    must(td_vk_open(&desc, NULL, &inline_desc.vk, why, sizeof why));
    must(td_stream_create_inline(&inline_desc, NULL, &made, why, sizeof why));
    for (submit.slot = 0; submit.slot < 2; submit.slot++) {
        must(td_stream_enqueue(made, &submit, &sequence, &signalled, why, sizeof why));
        assert_int_equal(td_stream_wait(made, sequence), TANDEM_OK);
    }
    F.swallow_submits = true;
    for (submit.slot = 0; submit.slot < 2; submit.slot++) {
        must(td_stream_enqueue(made, &submit, &sequence, &signalled, why, sizeof why));
        assert_int_equal(td_stream_enqueue(made, &submit, &sequence, &signalled, why, sizeof why), TANDEM_ERROR_BUSY);
        assert_int_equal(sequence, 3 + submit.slot);
        assert_non_null(strstr(why, "pending"));
        assert_false(signalled || td_stream_begun(made, 3) || td_stream_times(made, 3, &begin, &end));
        assert_int_equal(td_stream_completed(made), 2);
        assert_true(td_stream_begun(made, 2) && td_stream_times(made, 2, &begin, &end));
    }
    F.swallow_submits = false;
    fake_nvx_end_swallowed();
    td_stream_destroy(&made, LIMIT_NS);
    td_vk_close(&inline_desc.vk);
    assert_int_equal(F.live, live);
}

static void test_upload(void **state)
{
    enum { BYTES = (20 << 20) + 5, AT = 3 };
    unsigned char *data = malloc(BYTES);
    td_vk_mem device = {0};
    vku_buffer back;
    VkCommandBuffer commands;
    VkBufferCopy copy = {.srcOffset = AT, .size = BYTES};

    (void)state;
    assert_non_null(data);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i * 7 + i / 251);
    must(td_vk_mem_create_device(vk, BYTES + AT, STORAGE, &device, why, sizeof why));
    must(td_inline_upload(stream, &device, AT, data, BYTES, why, sizeof why));
    assert_int_equal(vku_buffer_create(&gpu, BYTES, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &back), VK_SUCCESS);
    commands = vku_begin(&gpu);
    gpu.CmdCopyBuffer(commands, device.buffer, back.buffer, 1, &copy);
    assert_int_equal(vku_run(&gpu, commands), VK_SUCCESS);
    assert_memory_equal(back.host, data, BYTES);
    vku_buffer_destroy(&gpu, &back);
    td_vk_mem_free(vk, &device);
    free(data);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_points),
    cmocka_unit_test(test_frame_counts),
    cmocka_unit_test(test_kept_commands),
    cmocka_unit_test(test_pollers),
    cmocka_unit_test(test_slot_in_use),
    cmocka_unit_test(test_upload),
};
const test_cases inline_streams_cases = TEST_CASES(cases);
