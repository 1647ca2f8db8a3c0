/* A small job on the CPU's threads, for `tandem bench handover`.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The engine here has two cores and says nothing to anybody about how threads are to wait. What can go wrong: threads that
 * sleep are woken too late to help, threads that do not sleep take the cores from the engine's, and a job that waits for
 * a thread waits for whoever has that thread's core.
 */
#define _GNU_SOURCE
#include "tests/bench/small.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/routes.h"
#include "kernels/cpu/cpu.h"
#include "tandem/tandem.h"

enum { HEADS = 8, ROWS = 128, DIM = 64, CORES = 2, WARM = 20, A_SECOND = 240, CORE_TEXT = 64 };
#define VIEW_BYTES ((uint64_t)HEADS * ROWS * DIM * 2)
#define WAIT_NS 20000000000ull

static const char *const the_job = "8b, 8 heads of 128 x 128, d 64, fp16; two threads on two cores";

/* From tandem_submit() until a thread computes, until it has, until tandem_wait() is back, and all of that; in us. */
enum { BEGINS, COMPUTES, RETURNS, ALL, PARTS };
static const char *const part_names[PARTS] = {"begin_us", "compute_us", "return_us", "latency_us"};
typedef bench_series parts[PARTS];

typedef struct small {
    tandem_session *session;
    tandem_job job;
    atomic_bool ends; /* the thread that keeps a core busy */
} small;

static bool works(small *s, tandem_status status, const char *what, char *why, size_t why_bytes)
{
    char text[256] = "";

    if (status == TANDEM_OK)
        return true;
    if (s->session)
        tandem_error_text(s->session, text, sizeof text);
    td_fail(why, why_bytes, status, "%s: %s", what, text[0] ? text : tandem_status_text(status));
    return false;
}

/* The processors of the core that `cpu` is of, as Linux writes them; "" where it does not say. */
static void read_core(const char *folder, int cpu, char text[CORE_TEXT])
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof path, "%s/cpu%d/topology/thread_siblings_list", folder, cpu);
    file = fopen(path, "r");
    if (!file || !fgets(text, CORE_TEXT, file))
        text[0] = 0;
    if (file)
        fclose(file);
}

bool bench_two_cores(const cpu_set_t *of, const char *folder, cpu_set_t *two)
{
    char first[CORE_TEXT] = "", other[CORE_TEXT];

    CPU_ZERO(two);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(two) < CORES; cpu++) {
        if (!CPU_ISSET(cpu, of))
            continue;
        read_core(folder, cpu, other);
        if (CPU_COUNT(two) && other[0] && strcmp(first, other) == 0)
            continue;
        memcpy(first, other, sizeof first);
        CPU_SET(cpu, two);
    }
    return CPU_COUNT(two) == CORES;
}

/* For this thread and all that it starts from here on. Returns false where there is but one. */
static bool take_two_cores(cpu_set_t *before)
{
    cpu_set_t two;

    return !pthread_getaffinity_np(pthread_self(), sizeof *before, before) &&
           bench_two_cores(before, "/sys/devices/system/cpu", &two) &&
           !pthread_setaffinity_np(pthread_self(), sizeof two, &two);
}

static bool open_small(small *s, char *why, size_t why_bytes)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc,
                                                 .backend = TANDEM_BACKEND_CPU, .cpu_threads = CORES,
                                                 .timing = 1, .error_text = why, .error_text_bytes = why_bytes);
    const tandem_mem_desc mem_desc = TANDEM_INIT(tandem_mem_desc, .bytes = 4 * VIEW_BYTES);
    tandem_view view = {.dtype = TANDEM_DTYPE_F16, .stride_head = ROWS * DIM, .stride_row = DIM};
    tandem_attention *a = &s->job.op.attention;
    uint64_t state = 1;
    void *host;

    if (tandem_session_create(&desc, &s->session) != TANDEM_OK)
        return false;
    if (!works(s, tandem_mem_create(s->session, &mem_desc, &view.mem), "tandem_mem_create", why, why_bytes) ||
        !works(s, tandem_mem_host(s->session, view.mem, &host), "tandem_mem_host", why, why_bytes))
        return false;
    for (uint64_t i = 0; i < 3 * VIEW_BYTES / 2; i++)
        ((uint16_t *)host)[i] = td_to_f16((float)bench_normal(&state));
    s->job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_ATTENTION);
    *a = (tandem_attention){.q = view, .k = view, .v = view, .o = view, .batch = 1, .heads = HEADS, .kv_heads = HEADS,
                            .q_len = ROWS, .kv_len = ROWS, .head_dim = DIM, .precision = TANDEM_PRECISION_8B};
    a->k.offset_bytes = VIEW_BYTES;
    a->v.offset_bytes = 2 * VIEW_BYTES;
    a->o.offset_bytes = 3 * VIEW_BYTES;
    return true;
}

static bool run_job(small *s, double us[PARTS], char *why, size_t why_bytes)
{
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    const uint64_t begin = td_now_ns();
    tandem_ticket ticket;

    if (!works(s, tandem_submit(s->session, &s->job, &ticket), "tandem_submit", why, why_bytes) ||
        !works(s, tandem_wait(s->session, ticket, WAIT_NS, &report), "tandem_wait", why, why_bytes))
        return false;
    const uint64_t end = td_now_ns();
    us[BEGINS] = 1e-3 * (double)(report.begin_ns - begin);
    us[COMPUTES] = 1e-3 * (double)(report.end_ns - report.begin_ns);
    us[RETURNS] = 1e-3 * (double)(end - report.end_ns);
    us[ALL] = 1e-3 * (double)(end - begin);
    if (report.state != TANDEM_JOB_DONE)
        td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "the small job ended in state %u", report.state);
    return report.state == TANDEM_JOB_DONE;
}

/* One after the other, or 240 times a second as a game's frames come, for so long; at least one, however slow the machine. */
static bool run_jobs(small *s, bool paced, double seconds, parts *us, char *why, size_t why_bytes)
{
    const uint64_t period = 1000000000u / A_SECOND;
    uint64_t begin, i = 0;
    double one[PARTS];

    for (int warm = 0; warm < WARM; warm++)
        if (!run_job(s, one, why, why_bytes))
            return false;
    begin = td_now_ns();
    do {
        const uint64_t due = begin + i++ * period, now = td_now_ns();

        if (paced && due > now)
            bench_sleep_ns(due - now);
        if (!run_job(s, one, why, why_bytes))
            return false;
        for (int part = 0; part < PARTS; part++)
            bench_add(&(*us)[part], one[part]);
    } while (td_now_ns() < begin + (uint64_t)(seconds * 1e9));
    return true;
}

static void *keep_busy(void *user)
{
    small *s = user;
    volatile uint64_t x = 1;

    while (!s->ends)
        for (int i = 0; i < 1000; i++)
            x = x * 3 + 1;
    return NULL;
}

/* All four of {one after the other, 240 a second} x {quiet, beside a busy thread}, and the idle session. */
static bool measure_small(small *s, double seconds, parts us[2][2], double *idle, char *why, size_t why_bytes)
{
    pthread_t busy;
    bool good = true;

    for (int paced = 0; paced < 2 && good; paced++)
        good = run_jobs(s, paced, seconds, &us[0][paced], why, why_bytes);
    if (!good)
        return false;
    const uint64_t cpu = bench_process_cpu_ns(), begin = td_now_ns();
    bench_sleep_ns((uint64_t)(seconds * 1e9));
    *idle = (double)(bench_process_cpu_ns() - cpu) / (double)(td_now_ns() - begin);
    if (pthread_create(&busy, NULL, keep_busy, s))
        return works(s, TANDEM_ERROR_NOMEM, "pthread_create", why, why_bytes);
    for (int paced = 0; paced < 2 && good; paced++)
        good = run_jobs(s, paced, seconds, &us[1][paced], why, why_bytes);
    s->ends = true;
    pthread_join(busy, NULL);
    return good;
}

static const char *const beside_names[2] = {"quiet", "beside a busy thread"};
static const char *const pace_names[2] = {"one after the other", "240 a second"};

static json_t *report_small(bench_targets *targets, parts us[2][2], double idle)
{
    json_t *rows = json_array();

    printf("\na small job on the CPU, us: %s\n  %-22s %-20s %9s %9s %9s %9s   of p50: begins, computes, returns\n", the_job, "",
           "", "p50", "p95", "p99", "max");
    for (int busy = 0; busy < 2; busy++)
        for (int paced = 0; paced < 2; paced++) {
            const bench_series *part = us[busy][paced], *of = &part[ALL];
            const double p50 = bench_median(of), p95 = bench_at(of, 0.95);

            printf("  %-22s %-20s %9.0f %9.0f %9.0f %9.0f   %.0f, %.0f, %.0f\n", beside_names[busy], pace_names[paced], p50,
                   p95, bench_at(of, 0.99), bench_at(of, 1), bench_median(&part[BEGINS]), bench_median(&part[COMPUTES]),
                   bench_median(&part[RETURNS]));
            bench_expect(targets, busy ? p95 : p50, false, busy ? 1500 : 300, "small job on the CPU, %s, %s: %s us",
                         beside_names[busy], pace_names[paced], busy ? "p95" : "p50");
            json_t *row = json_pack("{s:s, s:s, s:o}", "beside", beside_names[busy], "pace", pace_names[paced], "p95_us",
                                    bench_number(p95));
            for (int i = 0; i < PARTS; i++)
                json_object_set_new(row, part_names[i], bench_json(&part[i]));
            json_array_append_new(rows, row);
        }
    printf("  with no job            %.2f %% of a core\n", 100 * idle);
    bench_expect(targets, 100 * idle, false, 2, "small job on the CPU, none under way: %% of a core");
    return json_pack("{s:s, s:i, s:o, s:o}", "job", the_job, "threads", CORES, "idle_core", bench_number(idle), "rows",
                     rows);
}

json_t *bench_small_job(bench_targets *targets, double seconds, char *why, size_t why_bytes)
{
    parts us[2][2] = {0};
    small s = {0};
    json_t *report = NULL;
    double idle = NAN;
    cpu_set_t before;

    why[0] = 0;
    if (!take_two_cores(&before)) {
        printf("\na small job on the CPU: not measured, this takes two cores\n");
        return json_null();
    }
    if (open_small(&s, why, why_bytes) && measure_small(&s, seconds, us, &idle, why, why_bytes))
        report = report_small(targets, us, idle);
    if (s.session)
        tandem_session_destroy(&s.session);
    pthread_setaffinity_np(pthread_self(), sizeof before, &before);
    for (int i = 0; i < 4 * PARTS; i++)
        bench_free(&us[i / PARTS / 2][i / PARTS % 2][i % PARTS]);
    return report ? report : json_null();
}
