/* How long kernels, launches, waits and copies take: --bench.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/cuda/rig.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/attention/cpu.h"
#include "kernels/builder.h"

/* None where a plan needs none, as f16's that reads the tensors as they are. */
static void alloc_scratch(const td_plan *plan, td_cu_mem *out)
{
    char why[256];

    *out = (td_cu_mem){0};
    if (plan->scratch_bytes)
        must(td_cu_mem_alloc(device, plan->scratch_bytes, out, why, sizeof why), why);
}

static void bench_case(const char *name, const tandem_attention *op)
{
    const tandem_view *views_of[TU_VIEWS] = {&op->q, &op->k, &op->v, &op->o, &op->lse};
    const td_target target = td_target_for_stream(td_cu_device_info(device)->sm);
    uint64_t views[TU_VIEWS] = {0}, sequence, begin_ns, end_ns, state = 1;
    td_cu_mem mems[TU_VIEWS] = {{0}}, scratch;
    static td_plan plan, one;
    double total_ms = 0;
    bool signalled;
    char why[256];

    must(td_attention_check(op, why, sizeof why), why);
    must(td_plan_attention(op, &target, &plan, NULL, why, sizeof why), why);
    const size_t piece = 1 << 20;
    uint16_t *noise = malloc(piece * 2);
    assert_non_null(noise);
    for (size_t i = 0; i < piece; i++)
        noise[i] = td_to_f16((float)tu_normal(&state));
    for (int i = 0; i < TU_VIEWS; i++) {
        const bool kv = i == TD_VIEW_K || i == TD_VIEW_V;
        const uint64_t bytes = td_view_extent_bytes(views_of[i], op->batch, kv ? op->kv_heads : op->heads,
                                                    kv ? op->kv_len : op->q_len, op->head_dim);

        if (!bytes)
            continue;
        must(td_cu_mem_alloc(device, bytes, &mems[i], why, sizeof why), why);
        views[i] = mems[i].address;
        for (uint64_t at = 0; at < bytes; at += piece * 2)
            must(td_cu_copy_to_device(device, mems[i].address + at, noise,
                                      bytes - at < piece * 2 ? bytes - at : piece * 2),
                 "copy");
    }
    alloc_scratch(&plan, &scratch);
    const double flop = 4.0 * op->batch * op->heads * op->q_len * op->kv_len * op->head_dim;
    print_message("%s: b%u h%u q%u kv%u d%u, scratch %.1f MB\n", name, op->batch, op->heads, op->q_len, op->kv_len,
                  op->head_dim, (double)plan.scratch_bytes / 1e6);
    for (uint32_t i = 0; i <= plan.record_count; i++) {
        const bool all = i == plan.record_count; /* the plan as it is */
        const uint32_t repeats = all ? 1 : 8;
        double best_ms = 1e9;

        td_plan_reset(&one);
        for (uint32_t r = 0; r < (all ? plan.record_count : repeats); r++)
            assert_non_null(td_plan_append(&one, &plan.records[all ? r : i]));
        td_plan_barriers(&one);
        const td_stream_submit submit = {.plan = &one, .views = views, .scratch = scratch.address, .label = name};
        for (int round = 0; round < 5; round++) {
            must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
            wait_for(sequence);
            assert_true(td_stream_times(stream, sequence, &begin_ns, &end_ns));
            const double ms = (double)(end_ns - begin_ns) / 1e6 / repeats;
            if (ms < best_ms)
                best_ms = ms;
        }
        if (all)
            print_message("  %-22s %8.4f ms  (kernels alone %.4f)\n", "the whole plan", best_ms, total_ms);
        else
            print_message("  %-22s %8.4f ms", plan.records[i].kernel->entry, best_ms);
        if (!all && i + 1 == plan.record_count)
            print_message("  %7.1f TFLOPS", flop / best_ms / 1e9);
        if (!all)
            print_message("\n");
        total_ms += best_ms;
    }
    must(td_stream_status(stream, why, sizeof why), why);
    for (int i = 0; i < TU_VIEWS; i++)
        td_cu_mem_free(device, &mems[i]);
    td_cu_mem_free(device, &scratch);
    free(noise);
}

static tandem_attention bench_op(uint32_t batch, uint32_t heads, uint32_t q_len, uint32_t kv_len, uint32_t dim,
                                 uint32_t precision)
{
    tandem_attention op = {.batch = batch,
                           .heads = heads,
                           .kv_heads = heads,
                           .q_len = q_len,
                           .kv_len = kv_len,
                           .head_dim = dim,
                           .precision = precision};
    const tandem_view rows_q = {.dtype = TANDEM_DTYPE_F16,
                                .stride_batch = (int64_t)heads * q_len * dim,
                                .stride_head = (int64_t)q_len * dim,
                                .stride_row = dim};
    const tandem_view rows_k = {.dtype = TANDEM_DTYPE_F16,
                                .stride_batch = (int64_t)heads * kv_len * dim,
                                .stride_head = (int64_t)kv_len * dim,
                                .stride_row = dim};

    op.q = op.o = rows_q;
    op.k = op.v = rows_k;
    return op;
}

void test_bench(void **state)
{
    static const struct {
        const char *name;
        uint32_t batch, heads, q_len, kv_len, dim;
    } shapes[] = {{"b4 h32 4k d64", 4, 32, 4096, 4096, 64},
                  {"b4 h32 4k d128", 4, 32, 4096, 4096, 128},
                  {"windows of an effect", 2025, 1, 256, 1024, 32},
                  {"b4 h8 4k d256", 4, 8, 4096, 4096, 256}};

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint32_t f16 = 0; f16 < 2; f16++) {
            char name[64];
            const tandem_attention op = bench_op(shapes[i].batch, shapes[i].heads, shapes[i].q_len, shapes[i].kv_len,
                                                 shapes[i].dim, f16 ? TANDEM_PRECISION_F16 : TANDEM_PRECISION_8B);

            snprintf(name, sizeof name, "%s, %s", shapes[i].name, f16 ? "f16" : "8b");
            bench_case(name, &op);
        }
}

/* The same on shapes of no size, among the tests: a bench that breaks is else seen only where somebody measures. */
void test_bench_small(void **state)
{
    static const uint32_t dims[] = {32, 64, 96, 128, 256}, both[] = {TANDEM_PRECISION_F16, TANDEM_PRECISION_8B};
    const uint64_t held = td_cu_device_allocated_bytes(device);

    (void)state;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (size_t p = 0; p < sizeof both / sizeof *both; p++) {
            const tandem_attention op = bench_op(1, 2, 256, 256, dims[i], both[p]);

            bench_case(both[p] == TANDEM_PRECISION_F16 ? "small, f16" : "small, 8b", &op);
        }
    assert_int_equal(td_cu_device_allocated_bytes(device), held);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double part_of(double *values, int count, double part)
{
    qsort(values, (size_t)count, sizeof *values, by_size);
    return values[(int)((count - 1) * part)];
}

/* What a frame costs the thread that submits it: 20 records that compute nothing to speak of. */
void test_bench_enqueue(void **state)
{
    enum { RECORDS = 20, FRAMES = 500 };
    const tu_shape shape = {.heads = 1, .q_len = 64, .kv_len = 64, .head_dim = 64, .seed = 1};
    const td_target target = td_target_for_sm(td_cu_device_info(device)->sm);
    static double plain_us[FRAMES], pending_us[FRAMES], gpu_us[FRAMES];
    uint64_t sequence = 0, value = 0, begin, begin_ns, end_ns, views[TU_VIEWS] = {0};
    td_cu_mem mems[TU_VIEWS] = {{0}}, scratch;
    static td_plan plan;
    td_stream *own;
    bool signalled;
    char why[256];
    tu_case it;

    (void)state;
    tu_case_init(&it, &shape);
    must(td_plan_attention(&it.op, &target, &plan, NULL, why, sizeof why), why);
    tu_case_free(&it);
    const uint32_t own_records = plan.record_count;
    while (plan.record_count < RECORDS)
        assert_non_null(td_plan_append(&plan, &plan.records[plan.record_count % own_records]));
    for (int i = 0; i < TU_VIEWS; i++) {
        must(td_cu_mem_alloc(device, 1 << 16, &mems[i], why, sizeof why), why);
        views[i] = mems[i].address;
    }
    alloc_scratch(&plan, &scratch);
    for (int kind = 0; kind < 2; kind++) {
        meeting in = {0}, out = {0};

        must((kind ? td_stream_create_graph : td_stream_create)(device, NULL, &own, why, sizeof why), why);
        if (vk) {
            in = meeting_new(0);
            out = meeting_new(0);
        }
        value = 0;
        for (int frame = -50; frame < FRAMES; frame++) {
            const td_stream_point wait = {.cu = &in.cuda, .value = ++value}, signal = {.cu = &out.cuda, .value = value};
            const td_stream_submit submit = {.plan = &plan,
                                             .views = views,
                                             .scratch = scratch.address,
                                             .wait = vk ? &wait : NULL,
                                             .signal = vk ? &signal : NULL,
                                             .slot = (uint32_t)value % 3};
            const bool pends = vk && frame % 2;

            if (vk && !pends)
                must(td_vk_timeline_signal(vk, in.vulkan, value), "signal");
            begin = td_now_ns();
            must(td_stream_enqueue(own, &submit, &sequence, &signalled, why, sizeof why), why);
            if (frame >= 0)
                (pends ? pending_us : plain_us)[frame / 2] = (double)(td_now_ns() - begin) / 1e3;
            if (pends)
                must(td_vk_timeline_signal(vk, in.vulkan, value), "signal");
            while (td_stream_completed(own) < sequence)
                assert_true(td_now_ns() - begin < run_limit_ns);
            assert_true(td_stream_times(own, sequence, &begin_ns, &end_ns));
            if (frame >= 0)
                gpu_us[frame] = (double)(end_ns - begin_ns) / 1e3;
        }
        print_message("%s, %d records%s: enqueue p50 %.1f p99 %.1f us (wait still open: %.1f, %.1f); %.1f us on the GPU\n",
                      kind ? "graph" : "launches", RECORDS, vk ? ", wait and signal" : "", part_of(plain_us, FRAMES / 2, .5),
                      part_of(plain_us, FRAMES / 2, .99), vk ? part_of(pending_us, FRAMES / 2, .5) : 0,
                      vk ? part_of(pending_us, FRAMES / 2, .99) : 0, part_of(gpu_us, FRAMES, .5));
        td_stream_destroy(&own, 1000000000u);
        if (vk) {
            meeting_free(&in);
            meeting_free(&out);
        }
    }
    for (int i = 0; i < TU_VIEWS; i++)
        td_cu_mem_free(device, &mems[i]);
    td_cu_mem_free(device, &scratch);
}

/* One thread spins and so knows when a submit was finished; the other one sleeps. */
typedef struct sleeper {
    td_stream *stream;
    uint64_t count;
    sem_t submitted;
    uint64_t *woken_ns;
    double cpu_ns;
} sleeper;

static void *sleep_on(void *user)
{
    struct timespec begin, end;
    sleeper *it = user;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (uint64_t i = 1; i <= it->count; i++) {
        sem_wait(&it->submitted);
        td_stream_wait(it->stream, i);
        it->woken_ns[i] = td_now_ns();
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    it->cpu_ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    return NULL;
}

void test_bench_wait(void **state)
{
    enum { SUBMITS = 720, RATE = 240 };
    const tandem_attention op = bench_op(1, 8, 8192, 8192, 64, TANDEM_PRECISION_8B);
    const td_target target = td_target_for_sm(td_cu_device_info(device)->sm);
    static uint64_t woken_ns[SUBMITS + 1], done_ns[SUBMITS + 1];
    static double late_us[SUBMITS];
    td_cu_mem mem, scratch;
    static td_plan plan;
    td_stream *own;
    bool signalled;
    char why[256];
    uint64_t next;

    (void)state;
    must(td_plan_attention(&op, &target, &plan, NULL, why, sizeof why), why);
    must(td_cu_mem_alloc(device, 4 << 23, &mem, why, sizeof why), why);
    alloc_scratch(&plan, &scratch);
    const uint64_t views[TU_VIEWS] = {mem.address, mem.address + (1 << 23), mem.address + (2 << 23),
                                           mem.address + (3 << 23)};
    for (int kind = 0; kind < 2; kind++) {
        pthread_t thread;

        must((kind ? td_stream_create_graph : td_stream_create)(device, NULL, &own, why, sizeof why), why);
        sleeper it = {.stream = own, .count = SUBMITS, .woken_ns = woken_ns};
        assert_int_equal(sem_init(&it.submitted, 0, 0), 0);
        assert_int_equal(pthread_create(&thread, NULL, sleep_on, &it), 0);
        next = td_now_ns();
        for (uint64_t i = 1; i <= SUBMITS; i++) {
            const td_stream_submit submit = {.plan = &plan, .views = views, .scratch = scratch.address};
            uint64_t sequence;

            next += 1000000000u / RATE;
            while (td_now_ns() < next)
                usleep(100);
            must(td_stream_enqueue(own, &submit, &sequence, &signalled, why, sizeof why), why);
            sem_post(&it.submitted);
            while (td_stream_completed(own) < sequence)
                ;
            done_ns[i] = td_now_ns();
        }
        pthread_join(thread, NULL);
        sem_destroy(&it.submitted);
        for (int i = 0; i < SUBMITS; i++)
            late_us[i] = woken_ns[i + 1] > done_ns[i + 1] ? (double)(woken_ns[i + 1] - done_ns[i + 1]) / 1e3 : 0;
        print_message("%s: woken p50 %.1f p90 %.1f p99 %.1f us after the end of a submit, %d a second, %.2f %% of a core\n",
                      kind ? "graph" : "launches", part_of(late_us, SUBMITS, .5), part_of(late_us, SUBMITS, .9),
                      part_of(late_us, SUBMITS, .99), RATE, it.cpu_ns / ((double)SUBMITS / RATE * 1e9) * 100);
        td_stream_destroy(&own, 1000000000u);
    }
    td_cu_mem_free(device, &mem);
    td_cu_mem_free(device, &scratch);
}

/* 8 MiB each way and a kernel or two between, alone and three in flight. */
void test_bench_copies(void **state)
{
    enum { SLOTS = 3, FRAMES = 60, MIB = 1 << 20 };
    const tandem_attention op = bench_op(1, 16, 4096, 4096, 64, TANDEM_PRECISION_8B);
    const td_target target = td_target_for_sm(td_cu_device_info(device)->sm);
    td_cu_mem memory[SLOTS], host[SLOTS], scratch;
    static td_plan plan;
    td_stream *own;
    bool signalled;
    char why[256];

    (void)state;
    must(td_plan_attention(&op, &target, &plan, NULL, why, sizeof why), why);
    must(td_stream_create(device, NULL, &own, why, sizeof why), why);
    alloc_scratch(&plan, &scratch);
    for (int i = 0; i < SLOTS; i++) {
        must(td_cu_mem_alloc(device, 32 * MIB, &memory[i], why, sizeof why), why);
        must(td_cu_mem_alloc_host(device, 32 * MIB, &host[i], why, sizeof why), why);
        memset(host[i].host, 0, 32 * MIB);
    }
    for (int variant = 0; variant < 3; variant++) {
        const int flight = variant ? SLOTS : 1;
        uint64_t sequences[SLOTS] = {0}, begin = 0;

        for (int frame = -6; frame < FRAMES; frame++) {
            const int slot = (frame + 6) % flight;
            const uint64_t address = memory[variant == 2 ? slot : 0].address;
            const uint64_t views[TU_VIEWS] = {address, address + 8 * MIB, address + 16 * MIB, address + 24 * MIB};
            const td_stream_copy in = {address, host[slot].host, 24 * MIB},
                                 out = {address + 24 * MIB, (char *)host[slot].host + 24 * MIB, 8 * MIB};
            const td_stream_submit submit = {.plan = &plan,
                                             .views = views,
                                             .scratch = scratch.address,
                                             .copies_in = &in,
                                             .copies_out = &out,
                                             .copy_in_count = 1,
                                             .copy_out_count = 1,
                                             .slot = (uint32_t)slot};

            if (sequences[slot])
                must(td_stream_wait(own, sequences[slot]), "wait");
            if (frame == 0)
                begin = td_now_ns();
            must(td_stream_enqueue(own, &submit, &sequences[slot], &signalled, why, sizeof why), why);
        }
        for (int slot = 0; slot < flight; slot++)
            must(td_stream_wait(own, sequences[slot]), "wait");
        print_message("24 MiB in, 8 MiB out, %s: %.0f us a frame\n",
                      variant == 0   ? "one by one"
                      : variant == 1 ? "three in flight in the same memory"
                                     : "three in flight in memory of their own",
                      (double)(td_now_ns() - begin) / FRAMES / 1e3);
    }
    td_stream_destroy(&own, 1000000000u);
    for (int i = 0; i < SLOTS; i++) {
        td_cu_mem_free(device, &memory[i]);
        td_cu_mem_free(device, &host[i]);
    }
    td_cu_mem_free(device, &scratch);
}
