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
#include "tests/fake_image.h"
#include "tests/faults.h"
#include "tests/looker.h"

typedef tandem_status (*create_fn)(td_cu_device *device, const td_log *log, td_stream **out, char *why, size_t why_bytes);
static const create_fn kinds[2] = {td_stream_create, td_stream_create_graph};
static const char *const kind_names[2] = {"cu_stream", "cu_graph"};

enum { BYTES = 4096, SLOTS = 3 };
static const uint64_t limit_ns = 5000000000u;

static td_plan plan;

/* A plan of the test's own, freed where its block ends. */
#define COPY(name)                                             \
    td_plan name __attribute__((cleanup(td_plan_free))) = {0}; \
    assert_true(td_plan_copy(&name, &plan))
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

/* What a plan has too much of is refused by each executor before it is copied. */
static void test_bounds_of_plans(void **state)
{
    enum { WAYS = 5 };

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        open_stream(kind);
        for (int way = 0; way < WAYS; way++) {
            const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
            COPY(wrong);
            td_record *r = &wrong.records[0];
            const td_stream_submit submit = {.plan = &wrong, .views = views, .scratch = 4096};
            uint64_t sequence = 0;
            bool signalled;
            char why[256] = "";

            switch (way) {
            case 0: r->param_bytes = 0; break;
            case 1: r->param_bytes = TD_PARAM_BYTES + 1; break;
            case 2: r->relocs[1].offset = (uint16_t)(r->param_bytes - 4); break;
            case 3: r->relocs[1].kind = TD_RELOC_TENSOR_MAP, r->relocs[1].offset = (uint16_t)(r->param_bytes - 64); break;
            default: r->relocs[1] = (td_reloc){.offset = 8, .base = TD_BASE_VIEW, .view = TD_MAX_VIEWS}; break;
            }
            assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                             TANDEM_ERROR_UNSUPPORTED);
            assert_non_null(strstr(why, r->kernel->name));
            assert_int_equal(sequence, 0);
            assert_int_equal(td_exec_cpu_run(&wrong, views, 4096, 1, NULL), TANDEM_ERROR_UNSUPPORTED);
        }
        close_stream();
    }
}

/* However far off the device's clock is, a submit lies between its enqueuing and when its end was seen. */
static void test_clock_is_mended(void **state)
{
    static const int64_t off[] = {-3600000000000, -20000000, -2000000, 0, 2000000, 20000000, 3600000000000};
    const uint64_t views[TD_MAX_VIEWS] = {4096, 8192, 12288, 16384};

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        open_stream(kind);
        for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
            uint64_t before, after, sequence, begin, end;

            td_stream_set_clock_offset_ns(stream, td_stream_clock_offset_ns(stream) + off[i]);
            before = td_now_ns();
            sequence = submit_plan(&plan, views, 0);
            must(td_stream_wait(stream, sequence), "wait");
            assert_true(td_stream_times(stream, sequence, &begin, &end));
            after = td_now_ns(); /* behind that, which may be the first to see the end */
            assert_true(before <= begin && begin <= end && end <= after);
        }
        close_stream();
    }
}

static void test_graphs_are_kept(void **state)
{
    uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    COPY(shorter);
    COPY(wider);
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
        if (i >= SLOTS) { /* push, launch, event, pop */
            assert_int_equal(after.allocations, before.allocations);
            assert_int_equal(after.all - before.all, 4);
        }
    }
    views[0] = 20480; /* the prologue of Q, nothing else */
    before = td_cu_device_counts(device);
    must(td_stream_wait(stream, submit_plan(&plan, views, 0)), "wait");
    after = td_cu_device_counts(device);
    assert_int_equal(after.allocations, before.allocations);
    assert_true(after.all - after.sleeps - (before.all - before.sleeps) > 4);
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

/* --- Calls of the driver, with points that the host plays --- */

static atomic_uint_fast64_t points[3];

static VkResult VKAPI_CALL read_point(VkDevice unused, VkSemaphore semaphore, uint64_t *value)
{
    (void)unused;
    *value = atomic_load(&points[(uintptr_t)semaphore]);
    return VK_SUCCESS;
}

static VkResult VKAPI_CALL raise_point(VkDevice unused, const VkSemaphoreSignalInfo *info)
{
    (void)unused;
    atomic_store(&points[(uintptr_t)info->semaphore], info->value);
    return VK_SUCCESS;
}

static td_cu_timeline timelines[3];

/* A stream of graphs, with timelines[1] to wait for and timelines[2] to signal. */
static void open_with_points(void)
{
    static const td_vk_table table = {.GetSemaphoreCounterValue = read_point, .SignalSemaphore = raise_point};
    char why[256] = "";

    fake_cuda_driver.vulkan = &table;
    open_stream(1);
    for (uintptr_t i = 1; i < 3; i++) {
        const int fd = fake_cuda_semaphore_fd((VkSemaphore)i);

        atomic_store(&points[i], 0);
        assert_true(fd >= 0);
        must(td_cu_timeline_import_fd(device, fd, &timelines[i], why, sizeof why), why);
        close(fd);
    }
}

static void close_with_points(void)
{
    atomic_store(&points[1], UINT64_MAX);
    assert_true(td_stream_drain(stream, limit_ns));
    for (int i = 1; i < 3; i++)
        td_cu_timeline_free(device, &timelines[i]);
    close_stream();
    fake_cuda_driver.vulkan = NULL;
}

static char made[4096];                          /* of the last submit_points() */
static unsigned char new_params[TD_PARAM_BYTES]; /* of the kernel that was set last */

static void see_call(const char *call, const void *info, uint64_t handle)
{
    (void)handle;
    if (strncmp(call, "cu", 2)) /* of the C library's */
        return;
    if (!strcmp(call, "cuGraphExecKernelNodeSetParams")) {
        const td_cu_kernel_node *node = info;

        memcpy(new_params, node->extra[1], *(const size_t *)node->extra[3]);
    }
    assert_true(strlen(made) + strlen(call) + 2 < sizeof made);
    strcat(strcat(made, call), " ");
}

/* In slot 0, from `value` of the one point to that of the other. */
static tandem_status submit_points(const td_plan *of, const uint64_t *views, uint64_t value, uint64_t *sequence)
{
    const td_stream_point wait = {&timelines[1], VK_NULL_HANDLE, value}, signal = {&timelines[2], VK_NULL_HANDLE, value};
    const td_stream_submit submit = {.plan = of, .views = views, .scratch = 4096, .wait = &wait, .signal = &signal};
    tandem_status status;
    bool signalled;
    char why[256] = "";

    made[0] = 0;
    fault_observe(see_call);
    status = td_stream_enqueue(stream, &submit, sequence, &signalled, why, sizeof why);
    fault_observe(NULL);
    assert_true(signalled);
    return status;
}

static unsigned count_calls(const char *call)
{
    unsigned count = 0;

    for (const char *at = made; (at = strstr(at, call)); at++)
        count++;
    return count;
}

#define WAIT_NODE "cuGraphExecExternalSemaphoresWaitNodeSetParams "
#define SIGNAL_NODE "cuGraphExecExternalSemaphoresSignalNodeSetParams "
#define KERNEL_NODE "cuGraphExecKernelNodeSetParams "
static const char unchanged[] =
    "cuCtxPushCurrent " WAIT_NODE SIGNAL_NODE "cuGraphLaunch cuEventRecord cuCtxPopCurrent ";

static void make_committing_plan(td_plan *out)
{
    const tandem_attention op = fault_attention(TANDEM_DTYPE_F32, 32, TANDEM_PRECISION_F16);
    td_target target = td_target_for_sm(90);
    char why[256] = "";

    target.twin = target.commit = true;
    must(td_plan_attention(&op, &target, out, NULL, why, sizeof why), why);
}

/* From frame to frame only the values of points change, though records look at the host's words and at a cancel word. */
static void test_calls_of_a_frame(void **state)
{
    uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384}, frame = 0, sequence = 0, last_end = 0, begin, end, got;
    td_plan *commits = calloc(1, sizeof *commits);
    const td_record *changed = NULL;
    unsigned users = 0;

    (void)state;
    assert_non_null(commits);
    make_committing_plan(commits);
    open_with_points();
    for (int i = 0; i < 270; i++) { /* more than there are places, and times */
        atomic_store(&points[1], ++frame);
        must(submit_points(commits, views, frame, &sequence), "submit");
        assert_int_equal(sequence, frame);
        must(td_stream_wait(stream, sequence), "wait");
        if (i)
            assert_string_equal(made, unchanged);
        assert_int_equal(td_stream_completed(stream), sequence);
        assert_int_equal(atomic_load(&points[2]), frame);
        assert_true(td_stream_times(stream, sequence, &begin, &end) && last_end <= begin && begin <= end);
        last_end = end;
    }
    assert_false(td_stream_times(stream, sequence - 256, &begin, &end));
    assert_true(td_stream_times(stream, sequence - 255, &begin, &end));

    views[TD_VIEW_O] = 20480; /* whoever writes there is told, nobody else is */
    for (uint32_t i = 0; i < commits->record_count; i++)
        for (uint32_t r = 0; r < commits->records[i].reloc_count; r++)
            if (commits->records[i].relocs[r].base == TD_BASE_VIEW && commits->records[i].relocs[r].view == TD_VIEW_O) {
                users += changed != &commits->records[i];
                changed = &commits->records[i];
            }
    assert_non_null(changed);
    atomic_store(&points[1], ++frame);
    must(submit_points(commits, views, frame, &sequence), "submit");
    assert_int_equal(count_calls(KERNEL_NODE), users);
    assert_int_equal(count_calls(" "), 6 + users);
    for (uint32_t r = 0; r < changed->reloc_count; r++)
        if (changed->relocs[r].base == TD_BASE_VIEW && changed->relocs[r].view == TD_VIEW_O) {
            memcpy(&got, new_params + changed->relocs[r].offset, sizeof got);
            assert_int_equal(got, views[TD_VIEW_O] + changed->relocs[r].addend);
        }
    must(td_stream_wait(stream, sequence), "wait");
    commits->records[0].params[commits->records[0].param_bytes - 1] ^= 1; /* in the plan's own memory */
    atomic_store(&points[1], ++frame);
    must(submit_points(commits, views, frame, &sequence), "submit");
    assert_int_equal(count_calls(KERNEL_NODE), 1);
    must(td_stream_wait(stream, sequence), "wait");
    atomic_store(&points[1], ++frame);
    must(submit_points(commits, views, frame, &sequence), "submit");
    assert_string_equal(made, unchanged);
    close_with_points();
    td_plan_free(commits);
    free(commits);
}

/* A slot that is taken goes kernel by kernel, in order, also where it is taken by a submit of which an error is told; after
 * that its graph is as it was. */
static void test_slot_in_use(void **state)
{
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    uint64_t value = 1, first = 0, second = 0, begin, end, second_begin, second_end;

    (void)state;
    open_with_points();
    atomic_store(&points[1], value);
    must(submit_points(&plan, views, value, &first), "submit");
    must(td_stream_wait(stream, first), "wait");
    for (int failing = 0; failing < 2; failing++) {
        const fault_plan fail = {.kinds = FAULT_CUDA, .call = "cuEventRecord", .n = 1, .cuda = 999};

        value++;
        if (failing)
            fault_arm(&fail);
        assert_int_equal(submit_points(&plan, views, value, &first), failing ? TANDEM_ERROR_DEVICE : TANDEM_OK);
        if (failing)
            fault_disarm();
        else
            assert_string_equal(made, unchanged);
        assert_int_equal(count_calls("cuGraphLaunch "), 1);
        first = 2 + 3 * (uint64_t)failing;
        must(submit_points(&plan, views, value + 1, &second), "submit");
        assert_int_equal(second, first + 1);
        assert_int_equal(count_calls("cuLaunchKernel "), plan.record_count + 2);
        assert_int_equal(count_calls("cuGraph"), 0);
        for (uint64_t i = first; i <= second; i++)
            assert_false(td_stream_begun(stream, i) || td_stream_times(stream, i, &begin, &end));
        assert_int_equal(td_stream_completed(stream), first - 1);

        atomic_store(&points[1], value);
        must(td_stream_wait(stream, first), "wait");
        assert_int_equal(td_stream_completed(stream), first);
        assert_true(td_stream_begun(stream, first) && td_stream_times(stream, first, &begin, &end) && begin <= end);
        assert_false(td_stream_begun(stream, second));
        atomic_store(&points[1], ++value);
        must(td_stream_wait(stream, second), "wait");
        assert_true(td_stream_times(stream, second, &second_begin, &second_end));
        assert_true(end <= second_begin && second_begin <= second_end);

        atomic_store(&points[1], ++value);
        must(submit_points(&plan, views, value, &first), "submit");
        assert_string_equal(made, unchanged);
        must(td_stream_wait(stream, first), "wait");
    }
    close_with_points();
}

static const uint32_t *cancel_word;

static void see_kernel(const char *call, const void *info, uint64_t handle)
{
    const td_cu_kernel_node *node = info;

    (void)handle;
    if (!strcmp(call, "cuGraphAddKernelNode") && node->extra && *(const size_t *)node->extra[3] > sizeof(td_params_stamp))
        memcpy(&cancel_word, node->extra[1], sizeof cancel_word); /* of the last of them */
}

/* What is said of a submit is said of no other that has its slot. */
static void test_cancel_by_slot(void **state)
{
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    uint64_t sequence = 0;

    (void)state;
    open_with_points();
    fault_observe(see_kernel);
    must(td_stream_wait(stream, submit_plan(&plan, views, 0)), "wait"); /* without points: another graph */
    fault_observe(NULL);
    assert_non_null(cancel_word);
    for (uint64_t value = 1; value < 20; value++) {
        const bool cancels = value % 3 == 0;
        const uint64_t begin = td_now_ns();

        must(submit_points(&plan, views, value, &sequence), "submit");
        assert_int_equal(count_calls("cuMemcpyHtoDAsync"), value % 3 == 1 && value > 1);
        assert_int_equal(td_stream_control(stream, sequence)->cancel, 0);
        if (cancels) {
            td_stream_cancel(stream, sequence);
            while (!__atomic_load_n(cancel_word, __ATOMIC_ACQUIRE) && td_now_ns() - begin < limit_ns) {
            }
        }
        assert_int_equal(td_stream_control(stream, sequence)->cancel, cancels);
        atomic_store(&points[1], value);
        must(td_stream_wait(stream, sequence), "wait");
        assert_int_equal(__atomic_load_n(cancel_word, __ATOMIC_ACQUIRE), cancels);
        td_stream_cancel(stream, sequence); /* too late */
        assert_int_equal(td_stream_control(stream, sequence)->cancel, cancels);
    }
    close_with_points();
}

static void test_lookers(void **state)
{
    enum { SUBMITS = 1000, LOOKERS = 3 };
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        looker lookers[LOOKERS] = {0};
        atomic_bool over = false;
        uint64_t sequence = 0;

        open_stream(kind);
        for (int i = 0; i < LOOKERS; i++) {
            lookers[i].stream = stream;
            lookers[i].over = &over;
            assert_int_equal(pthread_create(&lookers[i].thread, NULL, look_on, &lookers[i]), 0);
        }
        for (uint32_t i = 0; i < SUBMITS; i++) { /* more in flight than slots: some by graph, some not */
            if (sequence >= 2 * SLOTS)
                must(td_stream_wait(stream, sequence - 2 * SLOTS + 1), "wait");
            sequence = submit_plan(&plan, views, i % SLOTS);
        }
        must(td_stream_wait(stream, sequence), "wait");
        atomic_store(&over, true);
        for (int i = 0; i < LOOKERS; i++)
            assert_int_equal(pthread_join(lookers[i].thread, NULL), 0);
        assert_int_equal(td_stream_completed(stream), sequence);
        for (int i = 0; i < LOOKERS; i++)
            assert_int_equal(lookers[i].wrong, 0);
        close_stream();
    }
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

/* However many records a plan has it is run, as a graph or one by one; but not behind so many that a launch would wait. */
static void test_long_plans(void **state)
{
    enum { LONG = 500 };
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    td_plan longer __attribute__((cleanup(td_plan_free))) = {0};
    char why[256] = "";

    (void)state;
    for (uint32_t i = 0; i < LONG; i++)
        assert_non_null(td_plan_append(&longer, &plan.records[i % plan.record_count]));
    for (int kind = 0; kind < 2; kind++) {
        uint64_t sequence = 0;

        open_stream(kind);
        fake_cuda_launched = warnings = 0;
        for (int round = 0; round < 3; round++) {
            sequence = submit_plan(&longer, views, 0);
            must(td_stream_wait(stream, sequence), "wait");
            assert_int_equal(td_stream_progress(stream, sequence), LONG);
        }
        assert_int_equal(fake_cuda_launched, 3 * LONG);
        assert_int_equal(warnings, 0);
        if (kind == 0) {
            td_stream_submit submit = {.plan = &longer, .views = views, .scratch = 4096};
            bool signalled;

            fake_cuda_driver.holds = true;
            sequence = submit_plan(&longer, views, 0);
            assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), TANDEM_ERROR_BUSY);
            assert_non_null(strstr(why, "500 records are too many while 504 commands are pending"));
            submit.plan = &plan;
            must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
            fake_cuda_driver.holds = false;
            must(td_stream_wait(stream, sequence), "wait");
            submit.plan = &longer;
            must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
            must(td_stream_wait(stream, sequence), "wait");
        }
        close_stream();
    }
}

static void test_refusals(void **state)
{
    static td_stream_copy copies[TD_MAX_VIEWS + 1];
    const uint64_t views[TD_VIEW_COUNT] = {0};
    uint64_t sequence = 5;
    bool signalled = true;
    char why[256] = "";

    (void)state;
    open_stream(1);
    td_stream_submit submit = {.plan = &plan, .views = views, .copies_in = copies, .copy_in_count = TD_MAX_VIEWS + 1};
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "9 copies in"));
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
    COPY(flagged);

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
        flagged.records[0].flags = 8;
        assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                         TANDEM_ERROR_UNSUPPORTED);
        assert_non_null(strstr(why, "flags 8"));
        close_stream();
    }
}

/* Tensor maps are encoded for the view's address of each submit; what the driver refuses is not launched. */
static void test_tensor_maps(void **state)
{
    const td_tensor_map map = {.channels = 72, .rows = 5, .stride_bytes = 160, .box_channels = 64, .box_rows = 128,
                               .dtype = TANDEM_DTYPE_BF16};
    uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384}, got[6];
    td_plan mapped __attribute__((cleanup(td_plan_free))) = {0};
    td_record *r = td_plan_add_record(&mapped, FAKE_CUDA_ONLY_BYTES);
    const td_record *like = &plan.records[0];
    char why[256] = "";

    (void)state;
    assert_non_null(r);
    r->kernel = like->kernel;
    memcpy(r->grid, like->grid, sizeof r->grid);
    memcpy(r->block, like->block, sizeof r->block);
    r->flags = TD_RECORD_TENSOR_MAPS;
    memcpy(r->params + 192, &map, sizeof map);
    assert_non_null(td_plan_add_reloc(&mapped, r, (td_reloc){.base = TD_BASE_CONTROL}));
    assert_non_null(td_plan_add_reloc(&mapped, r, (td_reloc){.offset = 192, .kind = TD_RELOC_TENSOR_MAP, .base = TD_BASE_VIEW,
                                                             .view = TD_VIEW_K, .addend = 32}));
    for (int kind = 0; kind < 2; kind++) {
        td_stream_submit submit = {.plan = &mapped, .views = views, .scratch = 4096};
        uint64_t sequence;
        bool signalled;

        open_stream(kind);
        for (int i = 0; i < 3; i++) {
            views[TD_VIEW_K] = 8192 + 64u * (unsigned)i;
            must(td_stream_wait(stream, submit_plan(&mapped, views, 0)), "wait");
            memcpy(got, fake_cuda_launches[(fake_cuda_launched - 1) % FAKE_CUDA_LAUNCHES].params + 192, sizeof got);
            assert_int_equal(got[0], views[TD_VIEW_K] + 32);
            assert_int_equal(got[1], 72);
            assert_int_equal(got[2], 5);
            assert_int_equal(got[3], 160);
            assert_int_equal(got[4], UINT64_C(128) << 32 | 64);
            assert_int_equal(got[5], TD_CU_MAP_BF16);
        }
        views[TD_VIEW_K] = 8200;
        fake_cuda_launched = 0;
        assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), TANDEM_ERROR_DEVICE);
        assert_non_null(strstr(why, "a tensor map of 5 x 72"));
        assert_int_equal(fake_cuda_launched, 0);
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
        COPY(large);
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

/* A submit whose copies overlap with an earlier one's records is seen to have begun. */
static void test_begun_beside(void **state)
{
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        const uint64_t begin = td_now_ns();
        copying it;

        open_stream(kind);
        copying_new(&it);
        fake_cuda_driver.holds = true;
        for (int slot = 0; slot < 2; slot++) {
            const td_stream_copy in = {it.device[slot].address, it.in[slot].host, BYTES};
            const td_stream_submit submit = {.plan = &plan,
                                             .views = views,
                                             .scratch = 4096,
                                             .copies_in = &in,
                                             .copy_in_count = 1,
                                             .slot = (uint32_t)slot};
            bool signalled;
            char why[256] = "";

            must(td_stream_enqueue(stream, &submit, &it.sequence[slot], &signalled, why, sizeof why), why);
        }
        while (!td_stream_begun(stream, it.sequence[1]))
            assert_true(td_now_ns() - begin < limit_ns);
        assert_int_equal(td_stream_completed(stream), 0);
        fake_cuda_driver.holds = false;
        must(td_stream_wait(stream, it.sequence[1]), "wait");
        assert_int_equal(td_stream_completed(stream), it.sequence[1]);
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

/* Nothing is loaded beside what is pending: it may be waiting for the caller. */
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
    fake_cuda_driver.holds = false;
    must(try_plan(&plan, why, sizeof why), why);
    assert_true(td_stream_drain(stream, limit_ns));
    close_stream();
    fault_kernels(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds_of_plans),
        cmocka_unit_test(test_clock_is_mended),
        cmocka_unit_test(test_graphs_are_kept),
        cmocka_unit_test(test_calls_of_a_frame),
        cmocka_unit_test(test_slot_in_use),
        cmocka_unit_test(test_cancel_by_slot),
        cmocka_unit_test(test_lookers),
        cmocka_unit_test(test_pending),
        cmocka_unit_test(test_long_plans),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_tensor_maps),
        cmocka_unit_test(test_shared_memory),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_begun_beside),
        cmocka_unit_test(test_copies_by_way_of_the_host),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_damaged_image),
        cmocka_unit_test(test_images_on_demand),
        cmocka_unit_test(test_shared_images),
        cmocka_unit_test(test_no_loading_beside_work),
    };

    return cmocka_run_group_tests(tests, make_plan, NULL);
}
