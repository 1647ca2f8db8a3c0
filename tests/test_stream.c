/* The executors on CUDA streams over a fake driver: order of copies, numbers, graphs that are kept, and for every n what
 * becomes of it when the n-th call fails. Nothing computes there; that is tests/test_cuda.c's part, on a GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/exec/exec.h"
#include "tests/fake_cuda.h"
#include "tests/faults.h"

typedef tandem_status (*create_fn)(td_cu_device *device, const td_log *log, td_stream **out, char *why, size_t why_bytes);
static const create_fn kinds[2] = {td_stream_create, td_stream_create_graph};
static const char *const kind_names[2] = {"cu_stream", "cu_graph"};

enum { BYTES = 4096, SLOTS = 3 };
static const uint64_t limit_ns = 5000000000u;

static td_plan plan;
static td_cu_device *device;
static td_stream *stream;
static unsigned warnings;

static void on_log(void *user, int level, const char *text)
{
    (void)user;
    warnings += level <= TD_LOG_WARN && strstr(text, "one by one");
}
static const td_log log_here = {.fn = on_log};

static void must(tandem_status status, const char *why)
{
    if (status)
        fail_msg("status %d: %s", (int)status, why);
}

static void open_stream(int kind)
{
    char why[256] = "";

    fault_cuda(FAULT_FAKE_CUDA);
    must(td_cu_device_open(NULL, &log_here, &device, why, sizeof why), why);
    must(kinds[kind](device, &log_here, &stream, why, sizeof why), why);
}

static void close_stream(void)
{
    td_stream_destroy(&stream, limit_ns);
    td_cu_device_close(&device);
}

/* A plan of kernels that the fake takes for its own. */
static int make_plan(void **state)
{
    const tandem_attention op = fault_attention(TANDEM_DTYPE_F32, 32, TANDEM_PRECISION_F16);
    td_target target = td_target_for_sm(90);
    char why[256] = "";

    (void)state;
    target.twin = true;
    return td_plan_attention(&op, &target, &plan, NULL, why, sizeof why) != TANDEM_OK;
}

static uint64_t submit_plan(const td_plan *of, const uint64_t *views, uint32_t slot)
{
    const td_stream_submit submit = {.plan = of, .views = views, .scratch = 4096, .slot = slot, .label = "frame"};
    uint64_t sequence = 0;
    bool signalled;
    char why[256] = "";

    must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
    return sequence;
}

static void test_graphs_are_kept(void **state)
{
    uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    td_plan shorter = plan, wider = plan;
    td_cu_counts before, after;

    (void)state;
    open_stream(1);
    shorter.record_count--;
    wider.records[0].grid[0]++;
    warnings = 0;
    for (int i = 0; i < 4 * SLOTS; i++) {
        const uint32_t slot = (uint32_t)i % SLOTS;
        uint64_t sequence;

        before = td_cu_device_counts(device);
        sequence = submit_plan(&plan, views, slot);
        after = td_cu_device_counts(device);
        must(td_stream_wait(stream, sequence), "wait");
        assert_int_equal(after.launches - before.launches, 1);
        if (i >= SLOTS) { /* push, two stamps, launch, event, pop */
            assert_int_equal(after.allocations, before.allocations);
            assert_int_equal(after.all - before.all, 6);
        }
    }
    views[0] = 20480; /* the prologue of Q, nothing else */
    before = td_cu_device_counts(device);
    must(td_stream_wait(stream, submit_plan(&plan, views, 0)), "wait");
    after = td_cu_device_counts(device);
    assert_int_equal(after.allocations, before.allocations);
    assert_true(after.all - after.sleeps - (before.all - before.sleeps) > 8);
    for (int i = 0; i < 2; i++) {
        before = td_cu_device_counts(device);
        must(td_stream_wait(stream, submit_plan(i ? &wider : &shorter, views, 0)), "wait");
        after = td_cu_device_counts(device);
        assert_true(after.allocations > before.allocations);
        assert_int_equal(after.launches - before.launches, 1);
    }
    assert_int_equal(warnings, 0);
    close_stream();
}

/* The stream counts what is pending, whichever kind it is; a slot that is taken goes kernel by kernel. */
static void test_pending(void **state)
{
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        uint64_t sequence = 0;

        open_stream(kind);
        for (int i = 0; i < 200; i++) {
            const td_stream_submit submit = {.plan = &plan, .views = views, .scratch = 4096};
            bool signalled;
            char why[256];
            const tandem_status status = td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why);

            assert_true(status == TANDEM_OK || status == TANDEM_ERROR_BUSY);
            assert_true(td_stream_completed(stream) <= sequence);
            if (status == TANDEM_ERROR_BUSY)
                must(td_stream_wait(stream, sequence), "wait");
        }
        must(td_stream_wait(stream, sequence), "wait");
        assert_int_equal(td_stream_completed(stream), sequence);
        assert_true(td_stream_begun(stream, sequence));
        assert_false(td_stream_begun(stream, sequence + 1));
        assert_int_equal(td_stream_progress(stream, sequence), plan.record_count);
        assert_int_equal(td_stream_progress(stream, sequence + 1), 0);
        must(td_stream_wait(stream, 1), "of long ago");
        close_stream();
    }
}

static void test_refusals(void **state)
{
    static td_stream_copy copies[TD_VIEW_COUNT + 1];
    const uint64_t views[TD_VIEW_COUNT] = {0};
    uint64_t sequence = 5;
    bool signalled = true;
    char why[256] = "";

    (void)state;
    open_stream(1);
    td_stream_submit submit = {.plan = &plan, .views = views, .copies_in = copies, .copy_in_count = TD_VIEW_COUNT + 1};
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "6 copies in"));
    submit = (td_stream_submit){.plan = &plan, .views = views, .slot = TD_STREAM_PENDING};
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "slot 32"));
    assert_false(signalled);
    assert_int_equal(sequence, 5);
    close_stream();
}

static unsigned overlapping, clusters, edges;

static void see_launch(const char *call, const void *info, uint64_t handle)
{
    const td_cu_launch *launch = info;

    (void)handle;
    edges += !strcmp(call, "cuGraphAddDependencies_v2");
    if (strcmp(call, "cuLaunchKernelEx"))
        return;
    assert_true(launch->attribute_count >= 1);
    for (unsigned i = 0; i < launch->attribute_count; i++) {
        const td_cu_launch_attribute *a = &launch->attributes[i];

        overlapping += a->id == TD_CU_LAUNCH_OVERLAPS && a->value.allowed == 1;
        clusters += a->id == TD_CU_LAUNCH_CLUSTER && a->value.cluster[0] == 16;
    }
}

/* Launch features: those that this kind and GPU have are used, the others refused. */
static void test_flags(void **state)
{
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    td_plan flagged = plan;

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        td_stream_submit submit = {.plan = &flagged, .views = views, .scratch = 4096};
        uint64_t sequence;
        bool signalled;
        char why[256] = "";

        open_stream(kind);
        flagged.records[0].flags = TD_RECORD_CLUSTER; /* the fake refuses 16 blocks where that was not asked for */
        flagged.records[0].cluster = 16;
        flagged.records[0].grid[0] = 32;
        flagged.records[1].flags = flagged.records[2].flags = TD_RECORD_PDL;
        overlapping = clusters = edges = warnings = 0;
        fault_observe(see_launch);
        must(td_stream_wait(stream, submit_plan(&flagged, views, 0)), "wait");
        fault_observe(NULL);
        assert_int_equal(overlapping, kind ? 0 : 2);
        assert_int_equal(edges, kind ? 2 : 0);
        assert_int_equal(clusters, kind ? 0 : 1);
        assert_int_equal(warnings, 0);
        if (kind) { /* another size of them is another graph */
            const td_cu_counts before = td_cu_device_counts(device);

            flagged.records[0].cluster = 8;
            must(td_stream_wait(stream, submit_plan(&flagged, views, 0)), "wait");
            assert_true(td_cu_device_counts(device).allocations > before.allocations);
        }
        flagged.records[0].flags = TD_RECORD_TENSOR_MAPS;
        assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                         TANDEM_ERROR_UNSUPPORTED);
        assert_non_null(strstr(why, "flags 4"));
        close_stream();
    }
}

/* More shared memory than a kernel has anyway is asked for before it is launched, by either kind; the fake refuses else. */
static void test_shared_memory(void **state)
{
    static const int static_bytes[] = {0, 6 * 1024};
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};

    (void)state;
    for (int i = 0; i < 4; i++) {
        td_stream_submit submit = {.views = views, .scratch = 4096};
        td_plan large = plan;
        uint64_t sequence;
        bool signalled;
        char why[256] = "";

        fake_cuda_driver.static_shared_bytes = static_bytes[i / 2];
        open_stream(i % 2);
        warnings = 0;
        for (uint32_t bytes = 47 * 1024; bytes <= 226 * 1024 - (uint32_t)static_bytes[i / 2]; bytes += 30 * 512) {
            for (uint32_t r = 0; r < large.record_count; r++)
                large.records[r].shared_bytes = bytes;
            must(td_stream_wait(stream, submit_plan(&large, views, 0)), "wait");
        }
        assert_int_equal(warnings, 0);
        large.records[1].shared_bytes = 227 * 1024 + 1 - (uint32_t)static_bytes[i / 2];
        submit.plan = &large;
        assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                         TANDEM_ERROR_UNSUPPORTED);
        assert_non_null(strstr(why, "232449 bytes of shared memory"));
        close_stream();
    }
    fake_cuda_driver.static_shared_bytes = 0;
}

/* --- Copies --- */

typedef struct copying {
    td_cu_mem device[SLOTS], in[SLOTS], out[SLOTS];
    uint64_t sequence[SLOTS];
    unsigned char value[SLOTS];
} copying;

static void copying_new(copying *it)
{
    char why[256] = "";

    memset(it, 0, sizeof *it);
    for (int i = 0; i < SLOTS; i++) {
        must(td_cu_mem_alloc(device, BYTES, &it->device[i], why, sizeof why), why);
        must(td_cu_mem_alloc_host(device, BYTES, &it->in[i], why, sizeof why), why);
        must(td_cu_mem_alloc_host(device, BYTES, &it->out[i], why, sizeof why), why);
    }
}

static void copying_free(copying *it)
{
    for (int i = 0; i < SLOTS; i++) {
        td_cu_mem_free(device, &it->device[i]);
        td_cu_mem_free(device, &it->in[i]);
        td_cu_mem_free(device, &it->out[i]);
    }
}

static void look_at(copying *it, int slot)
{
    const unsigned char *bytes = it->out[slot].host;

    if (!it->sequence[slot])
        return;
    must(td_stream_wait(stream, it->sequence[slot]), "wait");
    assert_true(td_stream_completed(stream) >= it->sequence[slot]);
    for (int i = 0; i < BYTES; i++)
        if (bytes[i] != it->value[slot])
            fail_msg("submit %llu brought back %u at byte %d, not %u", (unsigned long long)it->sequence[slot], bytes[i],
                     i, it->value[slot]);
}

/* What goes in comes out, three in flight, by one memory of the device's or by one each; others in between. */
static void test_copies(void **state)
{
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    copying it;

    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        const bool shared = variant & 1, between = variant & 2;

        open_stream(variant >> 2);
        copying_new(&it);
        for (int frame = 0; frame < 150; frame++) {
            const int slot = frame % SLOTS;
            const uint64_t address = it.device[shared ? 0 : slot].address;
            const td_stream_copy in = {address, it.in[slot].host, BYTES}, out = {address, it.out[slot].host, BYTES};
            const td_stream_submit submit = {.plan = &plan,
                                             .views = views,
                                             .scratch = 4096,
                                             .copies_in = &in,
                                             .copies_out = &out,
                                             .copy_in_count = 1,
                                             .copy_out_count = 1,
                                             .slot = (uint32_t)slot};
            bool signalled;
            char why[256] = "";

            look_at(&it, slot);
            it.value[slot] = (unsigned char)(frame + 1);
            memset(it.in[slot].host, it.value[slot], BYTES);
            memset(it.out[slot].host, 0xee, BYTES);
            must(td_stream_enqueue(stream, &submit, &it.sequence[slot], &signalled, why, sizeof why), why);
            if (between && frame % 2)
                submit_plan(&plan, views, SLOTS);
        }
        for (int slot = 0; slot < SLOTS; slot++)
            look_at(&it, slot);
        copying_free(&it);
        close_stream();
    }
}

/* A submit takes to the host what the next one brings back from there. */
static void test_copies_by_way_of_the_host(void **state)
{
    const uint64_t views[TD_VIEW_COUNT] = {0};
    static const td_plan nothing;
    copying it;

    (void)state;
    open_stream(0);
    copying_new(&it);
    for (int frame = 0; frame < 50; frame++) {
        const unsigned char value = (unsigned char)(frame + 1);
        const td_stream_copy first_in = {it.device[0].address, it.in[0].host, BYTES},
                             first_out = {it.device[0].address, it.out[0].host, BYTES},
                             second_in = {it.device[1].address, it.out[0].host, BYTES},
                             second_out = {it.device[1].address, it.out[1].host, BYTES};
        const td_stream_submit submits[2] = {{.plan = &nothing, .views = views, .copies_in = &first_in,
                                              .copies_out = &first_out, .copy_in_count = 1, .copy_out_count = 1},
                                             {.plan = &nothing, .views = views, .copies_in = &second_in,
                                              .copies_out = &second_out, .copy_in_count = 1, .copy_out_count = 1}};
        bool signalled;
        char why[256] = "";

        memset(it.in[0].host, value, BYTES);
        for (int i = 0; i < 2; i++)
            must(td_stream_enqueue(stream, &submits[i], &it.sequence[1], &signalled, why, sizeof why), why);
        it.value[1] = value;
        look_at(&it, 1);
    }
    copying_free(&it);
    close_stream();
}

/* --- Faults --- */

/* A life of a stream; what fails must say so, and what comes after must work. Returns the failures. */
static unsigned live(int kind)
{
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    uint64_t other[TD_VIEW_COUNT] = {8192, 8192, 12288, 16384};
    td_plan shorter = plan;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_are_kept),
        cmocka_unit_test(test_pending),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_shared_memory),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_copies_by_way_of_the_host),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_drain),
    };

    return cmocka_run_group_tests(tests, make_plan, NULL);
}
