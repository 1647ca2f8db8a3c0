/* Submits: what is refused, clocks, graphs that are kept, calls of the driver for each frame, slots, and what is
 * pending.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine_plugin/exec/stream.h"
#include "tests/plugin/poller.h"
#include "tests/plugin/stream/rig.h"

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
    /* four shapes in turn have a graph each; of a fifth the one that was launched longest ago is made */
    for (int i = 0; i < 16; i++) {
        COPY(other);

        other.records[0].grid[0] += i < 12 ? 2 + (uint32_t)i % 4 : 6;
        before = td_cu_device_counts(device);
        must(td_stream_wait(stream, submit_plan(i % 4 == 3 && i < 12 ? &plan : &other, views, 1)), "wait");
        after = td_cu_device_counts(device);
        if (i >= 4 && i != 12)
            assert_int_equal(after.allocations, before.allocations);
    }
    assert_int_equal(warnings, 0);
    close_stream();
}

static void check_pointers(const td_plan *of, const uint64_t *views, uint64_t scratch)
{
    for (uint32_t i = 0; i < of->record_count; i++) {
        const td_record *record = &of->records[i];

        for (uint32_t j = 0; j < record->reloc_count; j++) {
            const td_reloc *reloc = &record->relocs[j];
            uint64_t is, wanted = td_exec_address(reloc, views, scratch, 0);

            if (reloc->kind != TD_RELOC_POINTER || reloc->base == TD_BASE_CONTROL)
                continue;
            memcpy(&is, fake_cuda_launches[i].params + reloc->offset, sizeof is);
            assert_true(is == wanted);
        }
    }
}

/* A plan that is kept is bound anew only where its pointers lead elsewhere. */
static void test_what_is_bound(void **state)
{
    uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    td_plan *kept[2] = {td_plan_create(), td_plan_create()};
    uint32_t seed = 1;

    (void)state;
    open_stream(1);
    for (int i = 0; i < 2; i++) {
        assert_non_null(kept[i]);
        assert_true(td_plan_copy(kept[i], &plan));
    }
    for (int i = 0; i < 60; i++) {
        const td_plan *of = kept[i / 3 % 2];
        td_stream_submit submit = {.plan = of, .views = views, .scratch = 1 << 20};
        td_cu_counts before, after;
        uint64_t sequence = 0;
        bool signalled;
        char why[256] = "";

        seed = seed * 1664525u + 1013904223u;
        if (i % 3 == 1)
            views[seed >> 30] += 4096;
        if (i % 7 == 3)
            submit.scratch = 1 << 21;
        atomic_store(&fake_cuda_launched, 0);
        before = td_cu_device_counts(device);
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
        after = td_cu_device_counts(device);
        must(td_stream_wait(stream, sequence), "wait");
        assert_int_equal(atomic_load(&fake_cuda_launched), of->record_count);
        check_pointers(of, views, submit.scratch);
        if (i % 3 == 2 && i % 7 != 3 && i % 7 != 4) /* push, launch, event, pop */
            assert_int_equal(after.all - before.all, 4);
        if (i)
            assert_int_equal(after.allocations, before.allocations);
    }
    close_stream();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kept[i]->users, 1);
        td_plan_drop((const td_plan **)&kept[i]);
    }
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

static void test_pollers(void **state)
{
    enum { SUBMITS = 1000, POLLERS = 3 };
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        poller pollers[POLLERS] = {0};
        atomic_bool over = false;
        uint64_t sequence = 0;

        open_stream(kind);
        for (int i = 0; i < POLLERS; i++) {
            pollers[i].stream = stream;
            pollers[i].over = &over;
            assert_int_equal(pthread_create(&pollers[i].thread, NULL, poll_stream, &pollers[i]), 0);
        }
        for (uint32_t i = 0; i < SUBMITS; i++) { /* more in flight than slots: some by graph, some not */
            if (sequence >= 2 * SLOTS)
                must(td_stream_wait(stream, sequence - 2 * SLOTS + 1), "wait");
            sequence = submit_plan(&plan, views, i % SLOTS);
        }
        must(td_stream_wait(stream, sequence), "wait");
        atomic_store(&over, true);
        for (int i = 0; i < POLLERS; i++)
            assert_int_equal(pthread_join(pollers[i].thread, NULL), 0);
        assert_int_equal(td_stream_completed(stream), sequence);
        for (int i = 0; i < POLLERS; i++)
            assert_int_equal(pollers[i].wrong, 0);
        close_stream();
    }
}

/* A device that is done at once: submit i ran at i. */
static tandem_status enqueue_at_once(td_stream *it, const td_stream_submit *submit, uint64_t sequence, bool *signalled,
                                     char *why, size_t why_bytes)
{
    td_stamp *stamp = &it->ring->timestamps[td_stream_place(it, sequence)].stamp;

    (void)submit;
    (void)signalled;
    (void)why;
    (void)why_bytes;
    __atomic_store_n(&stamp->begin_ns, sequence, __ATOMIC_RELEASE);
    __atomic_store_n(&stamp->begun, TD_STREAM_RAN, __ATOMIC_RELEASE);
    __atomic_store_n(&stamp->end_ns, sequence, __ATOMIC_RELEASE);
    __atomic_store_n(&stamp->sequence, TD_STREAM_RAN, __ATOMIC_RELEASE);
    return TANDEM_OK;
}

/* The first thread that writes to a page is held up there. */
static struct {
    void *page;
    size_t bytes;
    atomic_bool held, released;
} held_up;

static void hold_up(int signal_number, siginfo_t *info, void *context)
{
    const size_t offset = (size_t)((uintptr_t)info->si_addr - (uintptr_t)held_up.page);

    (void)context;
    if (offset >= held_up.bytes) {
        signal(signal_number, SIG_DFL); /* a fault that is none of ours: it comes again */
        return;
    }
    mprotect(held_up.page, held_up.bytes, PROT_READ | PROT_WRITE);
    atomic_store(&held_up.held, true);
    while (!atomic_load(&held_up.released))
        td_sleep_ns(100000);
}

static void *look_once(void *user)
{
    td_stream_completed(user);
    return NULL;
}

typedef struct submitter {
    td_stream *stream;
    uint64_t until, sequence;
    atomic_bool over;
} submitter;

static void *submit_at_once(void *user)
{
    static const td_plan nothing;
    submitter *it = user;
    char why[256];
    bool signalled;

    while (it->sequence < it->until) {
        const td_stream_submit submit = {.plan = &nothing};

        if (td_stream_enqueue(it->stream, &submit, &it->sequence, &signalled, why, sizeof why) != TANDEM_OK)
            break;
    }
    atomic_store(&it->over, true);
    return NULL;
}

/* A thread that is held up between reading timestamps and keeping them writes over none of later submits. */
static void test_held_up_looker(void **state)
{
    static const td_stream_ops at_once = {.enqueue = enqueue_at_once};
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (sizeof(td_stream) + page - 1) / page * page;
    const struct sigaction action = {.sa_sigaction = hold_up, .sa_flags = SA_SIGINFO};
    struct sigaction before;
    td_stream *quick = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    submitter submits = {.stream = quick, .until = TD_STREAM_TIMES / 2};
    pthread_t looks, goes_on;

    (void)state;
    assert_ptr_not_equal(quick, MAP_FAILED);
    quick->ops = &at_once;
    quick->look_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    quick->ring = aligned_alloc(_Alignof(td_stream_ring), sizeof *quick->ring);
    assert_non_null(quick->ring);
    memset(quick->ring, 0, sizeof *quick->ring);
    submit_at_once(&submits);
    assert_int_equal(submits.sequence, TD_STREAM_TIMES / 2);
    held_up.page = (void *)((uintptr_t)&quick->times[submits.sequence] / page * page); /* of the last one, not yet seen */
    held_up.bytes = page;
    assert_true((char *)held_up.page >= (char *)quick->times &&
                (char *)held_up.page + page <= (char *)quick->times + sizeof quick->times);
    assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
    assert_int_equal(mprotect(held_up.page, page, PROT_READ), 0);
    assert_int_equal(pthread_create(&looks, NULL, look_once, quick), 0);
    while (!atomic_load(&held_up.held))
        td_sleep_ns(100000);
    submits.until += TD_STREAM_TIMES + TD_STREAM_PENDING;
    atomic_store(&submits.over, false);
    assert_int_equal(pthread_create(&goes_on, NULL, submit_at_once, &submits), 0);
    for (int i = 0; i < 100 && !atomic_load(&submits.over); i++) /* or it waits for the one that is held up */
        td_sleep_ns(1000000);
    atomic_store(&held_up.released, true);
    assert_int_equal(pthread_join(looks, NULL), 0);
    assert_int_equal(pthread_join(goes_on, NULL), 0);
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
    assert_int_equal(submits.sequence, submits.until);
    assert_int_equal(td_stream_completed(quick), submits.until);
    for (uint64_t i = submits.until - TD_STREAM_TIMES + 1; i <= submits.until; i++) {
        const uint64_t offset = (uint64_t)td_stream_clock_offset_ns(quick);
        uint64_t begin = 0, end = 0;

        assert_true(td_stream_times(quick, i, &begin, &end));
        assert_int_equal(begin + offset, i);
        assert_int_equal(end + offset, i);
    }
    pthread_mutex_destroy(&quick->look_lock);
    free(quick->ring);
    munmap(quick, bytes);
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

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_bounds_of_plans),
    cmocka_unit_test(test_clock_is_mended),
    cmocka_unit_test(test_graphs_are_kept),
    cmocka_unit_test(test_what_is_bound),
    cmocka_unit_test(test_calls_of_a_frame),
    cmocka_unit_test(test_slot_in_use),
    cmocka_unit_test(test_cancel_by_slot),
    cmocka_unit_test(test_pollers),
    cmocka_unit_test(test_held_up_looker),
    cmocka_unit_test(test_pending),
    cmocka_unit_test(test_long_plans),
};
const test_cases stream_submits_cases = TEST_CASES(cases);
