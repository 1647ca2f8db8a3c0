/* How a stream is made and ends, with images on demand, GPUs that hang, and calls that fail.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/plugin/inline/rig.h"

static void test_create_and_destroy(void **state)
{
    const int live = F.live;

    (void)state;
    for (int i = 0; i < 2; i++) {
        td_stream *other = new_stream();

        assert_true(F.live > live + 10);
        td_stream_destroy(&other, LIMIT_NS);
        assert_int_equal(F.live, live);
    }
    must(td_vk_address_memory(vk, true, why, sizeof why));
}

static void fails_to_create(const td_inline_desc *desc, const char *text)
{
    td_stream *made = stream;
    tandem_status status = td_stream_create_inline(desc, NULL, &made, why, sizeof why);

    assert_int_equal(status, TANDEM_ERROR_UNSUPPORTED);
    assert_null(made);
    if (!strstr(why, text))
        fail_msg("'%s' does not say '%s'", why, text);
    must(td_vk_address_memory(vk, true, why, sizeof why)); /* for the other stream */
}

/* The first plan that needs an image loads it, those after it do not; what could not be loaded is tried again. */
static void test_images_on_demand(void **state)
{
    static const char *const calls[] = {"vkCreateCuModuleNVX", "vkCreateCuFunctionNVX"};
    /* On a GPU one whose kernel, Hopper's, is in an image that the self-test does not need. */
    const uint32_t dtype = F.real ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_F32;
    const tu_shape shape = {.q_len = 100, .kv_len = 300, .head_dim = 64, .precision = TANDEM_PRECISION_F16,
                            .dtype_q = dtype, .dtype_k = dtype, .dtype_v = dtype};
    const td_target target = td_target_for_sm(sm);
    td_stream *const of_one = stream;
    const int live = F.live;
    uint64_t sequence;
    bool signalled;
    tu_case it;
    vk_case on;

    (void)state;
    if (F.real && sm / 10 != 9)
        skip();
    F.two_images = true;
    stream = new_stream();
    tu_case_init(&it, &shape);
    must(td_plan_attention(&it.op, &target, &it.plan, NULL, why, sizeof why));
    vk_case_make(&on, &it);
    for (int i = 0; i < 2; i++) {
        const td_stream_submit submit = submit_of(&on, &it.plan);
        const int held = F.live;

        F.fail_call = calls[i];
        F.fail_at = (unsigned)i + 1;
        F.failure = VK_ERROR_OUT_OF_DEVICE_MEMORY;
        assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                         TANDEM_ERROR_NOMEM);
        F.fail_call = NULL;
        F.failure = VK_SUCCESS;
        assert_int_equal(F.live, held);
    }
    vk_case_free(&on);
    tu_case_free(&it);
    check_case(&shape, "an image on demand");
    const int loaded = F.live;
    check_case(&shape, "the same image");
    assert_int_equal(F.live, loaded);
    td_stream_destroy(&stream, LIMIT_NS);
    F.two_images = false;
    stream = of_one;
    assert_int_equal(F.live, live);
    must(td_vk_address_memory(vk, true, why, sizeof why)); /* for the other stream */
}

static void test_what_demotes(void **state)
{
    td_inline_desc desc = desc_here();
    int live = F.live;

    (void)state;
    desc.queue = VK_NULL_HANDLE;
    fails_to_create(&desc, "no queue");
    desc.queue = gpu.queue;
    desc.sm = 61;
    fails_to_create(&desc, "6.1");
    desc.sm = sm;
    if (!F.real) {
        F.damaged_image = true;
        fails_to_create(&desc, "the kernels text for sm_90 in this build are damaged");
        F.damaged_image = false;
    }
    /* a launch that is lost: the codes of V, the attention itself */
    F.skip_launch = 6;
    fails_to_create(&desc, "wrong data");
    F.skip_launch = 8;
    fails_to_create(&desc, "wrong data");
    F.skip_launch = 9; /* the end stamp */
    fails_to_create(&desc, "stamp");
    F.skip_launch = 0;
    assert_int_equal(F.live, live);
}

/* Nothing ends: what the device may still use is left behind, and freed once it has come to an end after all. */
static void test_hang(void **state)
{
    const td_vk_desc desc = vku_desc(&gpu);
    td_inline_desc inline_desc = desc_here();
    const int live = F.live;
    td_vk_mem mem = {0};
    td_stream *made;
    int left;

    (void)state;
    must(td_vk_open(&desc, NULL, &inline_desc.vk, why, sizeof why));
    F.swallow_submits = true;
    assert_int_equal(td_stream_create_inline(&inline_desc, NULL, &made, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "did not end within"));
    assert_null(made);
    left = F.live;
    assert_true(left > live + 10);
    F.swallow_submits = false;
    /* the device comes back: others run, and so does a copy, which then hangs as well */
    must(td_stream_create_inline(&inline_desc, NULL, &made, why, sizeof why));
    must(td_vk_mem_create_device(inline_desc.vk, 4, STORAGE, &mem, why, sizeof why));
    must(td_inline_upload(made, &mem, 0, "abc", 4, why, sizeof why));
    F.swallow_submits = true;
    F.fail_call = "vkWaitSemaphores";
    F.fail_at = 1;
    F.failure = VK_TIMEOUT;
    assert_int_equal(td_inline_upload(made, &mem, 0, "def", 4, why, sizeof why), TANDEM_ERROR_DEVICE);
    assert_non_null(strstr(why, "a copy to the device did not end within"));
    F.fail_call = NULL;
    F.swallow_submits = false;
    td_vk_mem_free(inline_desc.vk, &mem);
    td_stream_destroy(&made, LIMIT_NS);
    assert_true(F.live > left);
    fake_nvx_end_swallowed();
    td_vk_close(&inline_desc.vk);
    assert_int_equal(F.live, live);
}

static void test_failing_calls(void **state)
{
    const td_inline_desc desc = desc_here();
    const int live = F.live;

    (void)state;
    for (unsigned n = 1;; n += F.real ? 7 : 1) {
        td_stream *made = NULL;
        tandem_status status;
        bool waits;

        F.failed = false;
        F.fail_at = n;
        F.failure = n % 3 ? VK_ERROR_OUT_OF_DEVICE_MEMORY : VK_ERROR_INITIALIZATION_FAILED;
        F.host_waits = 0;
        why[0] = 0;
        status = td_stream_create_inline(&desc, NULL, &made, why, sizeof why);
        F.fail_at = 0;
        waits = F.host_waits > 0;
        if (!F.failed) {
            must(status);
            td_stream_destroy(&made, LIMIT_NS);
            assert_true(n > 40);
            break;
        }
        assert_true((status == TANDEM_OK) == (made != NULL));
        assert_true(status != TANDEM_OK ? why[0] != 0 : waits); /* a wait is tried again */
        td_stream_destroy(&made, LIMIT_NS);
        if (F.live != live)
            fail_msg("with call %u failing %d objects are left: %s", n, F.live - live, why);
    }
    must(td_vk_address_memory(vk, true, why, sizeof why));
}

static void test_failing_submits(void **state)
{
    static const char *const calls[] = {"vkCreateCommandPool", "vkAllocateCommandBuffers", "vkBeginCommandBuffer",
                                        "vkEndCommandBuffer", "vkQueueSubmit", "vkResetCommandPool",
                                        "vkGetSemaphoreCounterValue"};
    static const char *const labels[] = {"a", "b", "c", "d", "e", "f"}; /* each is recorded anew */
    const tu_shape shape = {.q_len = 64, .kv_len = 64, .head_dim = 32};
    const td_target target = td_target_for_sm(sm);
    td_stream_submit submit;
    tu_case it;
    vk_case on;

    (void)state;
    tu_case_init(&it, &shape);
    assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
    vk_case_make(&on, &it);
    submit = submit_of(&on, &it.plan);
    for (uint32_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        bool failed = false;

        for (size_t tries = 0; tries < sizeof labels / sizeof *labels; tries++) {
            uint64_t sequence = 0;
            bool signalled = true;
            tandem_status status;

            submit.slot = 20 + i;
            submit.label = labels[tries];
            F.failed = false;
            F.fail_call = calls[i];
            F.fail_at = 1;
            F.failure = VK_ERROR_OUT_OF_HOST_MEMORY;
            status = td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why);
            F.fail_at = 0;
            F.fail_call = NULL;
            assert_int_equal(status, F.failed ? TANDEM_ERROR_NOMEM : TANDEM_OK);
            assert_false(signalled);
            if (!F.failed)
                assert_int_equal(td_stream_wait(stream, sequence), TANDEM_OK);
            failed = failed || F.failed;
            run(&submit);
        }
        assert_true(failed);
    }
    expected(&it, &it.o, &it.lse);
    same("after failures", &on, TD_VIEW_O, &it.o);
    vk_case_free(&on);
    tu_case_free(&it);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_create_and_destroy),
    cmocka_unit_test(test_images_on_demand),
    cmocka_unit_test(test_what_demotes),
    cmocka_unit_test(test_hang),
    cmocka_unit_test(test_failing_calls),
    cmocka_unit_test(test_failing_submits),
};
const test_cases inline_failures_cases = TEST_CASES(cases);
