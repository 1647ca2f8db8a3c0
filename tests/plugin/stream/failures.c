/* What becomes of a stream when the n-th call fails; images that are damaged, or loaded on demand.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "tests/interop/fake_image.h"
#include "tests/plugin/stream/rig.h"

/* A life of a stream; what fails must say so, and what comes after must work. Returns the failures. */
static unsigned live(int kind)
{
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    uint64_t other[TD_VIEW_COUNT] = {8192, 8192, 12288, 16384};
    COPY(shorter);
    td_cu_mem mem = {0}, host = {0};
    td_stream *s = NULL;
    td_cu_device *d = NULL;
    unsigned failures = 0;
    char why[256];

    shorter.record_count--;
    why[0] = 0;
    if (td_cu_device_open(NULL, &log_here, &d, why, sizeof why) ||
        kinds[kind](d, &log_here, &s, why, sizeof why) || td_cu_mem_alloc(d, BYTES, &mem, why, sizeof why) ||
        td_cu_mem_alloc_host(d, BYTES, &host, why, sizeof why)) {
        assert_true(why[0]);
        failures++;
    }
    for (int i = 0; !failures && i < 9; i++) {
        const td_stream_copy copy = {mem.address, host.host, BYTES};
        const td_stream_submit submit = {.plan = i == 3 || i == 4 ? &shorter : &plan,
                                         .views = i % 2 ? views : other,
                                         .scratch = 4096,
                                         .copies_in = &copy,
                                         .copies_out = &copy,
                                         .copy_in_count = i >= 6,
                                         .copy_out_count = i >= 6};
        uint64_t sequence = 0;
        bool signalled;

        why[0] = 0;
        for (int attempt = 0; attempt < 2; attempt++) {
            const tandem_status status = td_stream_enqueue(s, &submit, &sequence, &signalled, why, sizeof why);

            if (!status)
                break;
            assert_true(why[0]);
            assert_int_equal(attempt, 0); /* one call fails, no other */
            assert_int_equal(sequence, 0);
            failures++;
        }
        if (i == 2)
            td_stream_cancel(s, sequence);
        while (td_stream_wait(s, sequence))
            failures++;
        assert_true(td_stream_completed(s) >= sequence);
        failures += td_stream_status(s, why, sizeof why) != TANDEM_OK;
    }
    if (d) {
        td_cu_mem_free(d, &mem);
        td_cu_mem_free(d, &host);
    }
    td_stream_destroy(&s, limit_ns);
    td_cu_device_close(&d);
    return failures;
}

static void test_faults(void **state)
{
    (void)state;
    fault_cuda(FAULT_FAKE_CUDA);
    for (int kind = 0; kind < 2; kind++) {
        unsigned n = 0, calls = 0, silent = 0;

        do {
            const fault_plan faults = {.kinds = FAULT_CUDA, .n = ++n, .cuda = 999};
            const fault_live before = fault_count_live();
            unsigned failures;

            fake_cuda_driver.abandoned = 0;
            fault_arm(&faults);
            failures = live(kind);
            fault_disarm();
            if (!fault_tripped())
                assert_int_equal(failures, 0);
            else
                silent += !failures;
            calls += fault_tripped() != NULL;
            if (fault_count_live().cuda != before.cuda || fault_count_live().threads != before.threads)
                fail_msg("%s: call %u, %s, fails, and something is left", kind_names[kind], n, fault_tripped());
        } while (fault_tripped());
        print_message("    %s: %u calls failed, %u of them without harm\n", kind_names[kind], calls, silent);
        assert_true(calls > 100);
        assert_true(silent < calls / 2);
    }
}

/* What cannot be asked is not idle; what has failed is. */
static void test_drain(void **state)
{
    static const char *const calls[] = {"cuStreamQuery", "cuCtxPushCurrent"};
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};

    (void)state;
    for (int i = 0; i < 2; i++) {
        const fault_plan refuse = {.kinds = FAULT_CUDA, .call = calls[i], .n = 1, .sticky = true, .cuda = 2};
        const fault_plan fail = {.kinds = FAULT_CUDA, .call = calls[i], .n = 1, .sticky = true, .cuda = 719};

        open_stream(0);
        fake_cuda_driver.holds = true;
        submit_plan(&plan, views, 0);
        assert_false(td_stream_drain(stream, 0));
        fault_arm(&refuse);
        assert_false(td_stream_drain(stream, 1000000));
        fault_disarm();
        assert_false(td_stream_drain(stream, 0));
        if (i) { /* it fails instead of going on */
            fault_arm(&fail);
            assert_true(td_stream_drain(stream, limit_ns));
            fault_disarm();
        }
        fake_cuda_driver.holds = false;
        assert_true(td_stream_drain(stream, limit_ns));
        close_stream();
    }
}

/* No driver is given what was built otherwise, and the reason says so. */
static void test_damaged_image(void **state)
{
    char why[256] = "";

    (void)state;
    fault_cuda(FAULT_FAKE_CUDA);
    must(td_cu_device_open(NULL, &log_here, &device, why, sizeof why), why);
    for (int kind = 0; kind < 2; kind++) {
        const fault_live before = fault_count_live();
        td_stream *refused = (td_stream *)why;

        fault_disguise_as(FAULT_DAMAGED_IMAGE);
        assert_int_equal(kinds[kind](device, NULL, &refused, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
        fault_disguise_as(0);
        assert_non_null(strstr(why, "the kernels text for sm_90 in this build are damaged"));
        assert_null(refused);
        assert_int_equal(fault_count_live().cuda, before.cuda);
        assert_int_equal(fault_count_live().blocks, before.blocks);
    }
    td_cu_device_close(&device);
}

/* Two images: `early` has the stamp and many other kernels, `late` those of the plan, and is loaded on demand. */
enum { EARLY = 300 };
static td_cubin_entry early_entries[EARLY] = {{.entry = "stamp", .registers = 16}}, late_entries[64];
static td_image two_images[2] = {{.entries = early_entries, .entry_count = EARLY},
                                 {.entries = late_entries, .on_demand = true}};
static const td_cubin two = {.sm = 90, .images = two_images, .image_count = 2};

static void give_two_images(void)
{
    static char names[EARLY][8];

    for (uint32_t i = 1; i < EARLY; i++) {
        snprintf(names[i], sizeof names[i], "k%u", (unsigned)i);
        early_entries[i] = (td_cubin_entry){.entry = names[i], .registers = 32};
    }
    for (uint32_t i = 0; i < plan.record_count; i++)
        late_entries[i] = (td_cubin_entry){.entry = plan.records[i].kernel->entry, .registers = 32};
    fake_image(&two_images[0], false);
    fake_image(&two_images[1], false);
    two_images[1].name = "late";
    two_images[1].entry_count = plan.record_count;
    fault_kernels(&two);
}

static tandem_status try_plan(const td_plan *of, char *why, size_t why_bytes)
{
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    const td_stream_submit submit = {.plan = of, .views = views, .scratch = 4096, .label = "frame"};
    uint64_t sequence = 0;
    bool signalled;

    return td_stream_enqueue(stream, &submit, &sequence, &signalled, why, why_bytes);
}

/* The first submit that needs an image loads it, those after it do not; what could not be loaded is tried again. */
static void test_images_on_demand(void **state)
{
    static const fault_plan modules = {.kinds = FAULT_CUDA, .call = "cuModuleLoadDataEx"};
    static const fault_plan loading_fails = {
        .kinds = FAULT_CUDA, .call = "cuModuleLoadDataEx", .n = 1, .cuda = TD_CU_ERROR_OUT_OF_MEMORY};
    static const fault_plan a_function_fails = {
        .kinds = FAULT_CUDA, .call = "cuModuleGetFunction", .n = 2, .cuda = TD_CU_ERROR_OUT_OF_MEMORY};
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    char why[256] = "";

    (void)state;
    give_two_images();
    for (int kind = 0; kind < 2; kind++) {
        fault_arm(&modules);
        open_stream(kind);
        assert_int_equal(fault_disarm(), 1);
        for (int i = 0; i < 2; i++) {
            const fault_live before = fault_count_live();

            fault_arm(i ? &a_function_fails : &loading_fails);
            assert_int_equal(try_plan(&plan, why, sizeof why), TANDEM_ERROR_NOMEM);
            fault_disarm();
            assert_int_equal(fault_count_live().cuda, before.cuda);
        }
        fault_arm(&modules);
        for (int i = 0; i < 3; i++)
            must(td_stream_wait(stream, submit_plan(&plan, views, 0)), "waiting");
        assert_int_equal(fault_disarm(), 1);
        assert_true(td_stream_drain(stream, limit_ns));
        close_stream();
    }
    fault_kernels(NULL);
}

/* Streams of a context share what one of them has loaded; it is unloaded with the last of them. */
static void test_shared_images(void **state)
{
    static const fault_plan loads = {.kinds = FAULT_CUDA, .call = "cuModuleLoadDataEx"};
    static const fault_plan unloads = {.kinds = FAULT_CUDA, .call = "cuModuleUnload"};
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};

    (void)state;
    give_two_images();
    for (int order = 0; order < 2; order++) {
        td_cu_device *other_device;
        td_stream *other;

        open_stream(0);
        other_device = device;
        other = stream;
        fault_arm(&loads);
        open_stream(1);
        assert_int_equal(fault_disarm(), 0);
        for (unsigned i = 0; i < 4; i++) { /* the first submit of either loads what is loaded on demand, for both */
            td_stream *const one = stream;

            fault_arm(&loads);
            must(td_stream_wait(stream, submit_plan(&plan, views, 0)), "waiting");
            assert_int_equal(fault_disarm(), i == 0);
            assert_true(td_stream_drain(stream, limit_ns));
            stream = other;
            other = one;
        }
        fault_arm(&unloads);
        td_stream_destroy(order ? &stream : &other, limit_ns);
        td_cu_device_close(order ? &device : &other_device);
        assert_int_equal(fault_disarm(), 0);
        if (order) {
            stream = other;
            device = other_device;
        }
        must(td_stream_wait(stream, submit_plan(&plan, views, 0)), "waiting");
        assert_true(td_stream_drain(stream, limit_ns));
        fault_arm(&unloads);
        close_stream();
        assert_int_equal(fault_disarm(), 2);
    }
    fault_kernels(NULL);
}

/* Nothing is loaded beside what is pending: it may be waiting for the caller. What was prepared needs nothing loaded. */
static void test_no_loading_beside_work(void **state)
{
    static td_plan early;
    static const td_kernel kernel = {.name = "k7", .entry = "k7"};
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    char why[256] = "";

    (void)state;
    give_two_images();
    assert_non_null(td_plan_append(&early, &plan.records[0]));
    early.records[0].kernel = &kernel;
    open_stream(0);
    fake_cuda_driver.holds = true;
    submit_plan(&early, views, 0);
    assert_int_equal(try_plan(&plan, why, sizeof why), TANDEM_ERROR_BUSY);
    assert_non_null(strstr(why, "the kernels late cannot be loaded"));
    assert_int_equal(td_stream_prepare(stream, &plan, why, sizeof why), TANDEM_ERROR_BUSY);
    fake_cuda_driver.holds = false;
    must(try_plan(&plan, why, sizeof why), why);
    assert_true(td_stream_drain(stream, limit_ns));
    close_stream();
    for (int kind = 0; kind < 2; kind++) {
        open_stream(kind);
        must(td_stream_prepare(stream, &plan, why, sizeof why), why);
        fake_cuda_driver.holds = true;
        submit_plan(&early, views, 0);
        must(try_plan(&plan, why, sizeof why), why);
        fake_cuda_driver.holds = false;
        assert_true(td_stream_drain(stream, limit_ns));
        close_stream();
    }
    fault_kernels(NULL);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_faults),
    cmocka_unit_test(test_drain),
    cmocka_unit_test(test_damaged_image),
    cmocka_unit_test(test_images_on_demand),
    cmocka_unit_test(test_shared_images),
    cmocka_unit_test(test_no_loading_beside_work),
};
const test_cases stream_failures_cases = TEST_CASES(cases);
