/* `tandem bench daemon`: what it costs to have tandemd compute, and what many clients get of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The hand-over is that of `tandem bench handover`, on the same routes: one in this process and one through the daemon,
 * in turn. The clients are processes of their own, this program again, each with a route; what they do is told and
 * counted in memory that all of them map.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine_plugin/client/ladder.h"
#include "engine_plugin/tool/daemon.h"
#include "engine_plugin/tool/routes.h"
#include "tests/bench/bench.h"

enum { CLIENTS = 8, MOST_WAITS = 8192, FRAMES_PER_S = 60, START_S = 90 };
enum { HERE, THERE, ROUTES };

/* A kind of client. */
typedef struct plan {
    const char *name;
    uint32_t batch, tokens, job_class;
    double hz; /* 0: as fast as it can, three in flight */
} plan;

typedef struct seat {
    plan plan;
    _Atomic uint32_t ready;
    _Atomic uint64_t frames, waits;
    char why[320];
    double wait_us[MOST_WAITS];
} seat;

typedef struct table {
    char socket[TD_CONN_PATH_BYTES];
    _Atomic uint32_t go, counts, stop;
    seat seats[CLIENTS];
} table;

/* What a group of clients did. */
typedef struct outcome {
    double seconds, rate[CLIENTS], share[CLIENTS]; /* frames a second; part of all compute */
    double busy;                                   /* part of the time in which the daemon computed */
    bench_series wait_us;                          /* of those with hz */
} outcome;

typedef struct bench {
    bench_vk vk;
    route routes[ROUTES];
    tool_daemon daemon;
    char folder[64], socket[TD_CONN_PATH_BYTES], config[96], log[96];
    pid_t process; /* a daemon of our own, or 0 */
    table *table;
    int table_fd;
    bench_targets targets;
    uint32_t rounds;
    double round_ms, seconds;
    uint64_t measured; /* frames and waits */
    bool is_cpu, strict;
} bench;

/* A client. */

typedef struct client {
    table *table;
    seat *seat;
    bench_vk vk;
    route route;
    uint64_t left; /* jobs until the next frame that is checked */
} client;

static bool goes_on(void *user)
{
    client *c = user;
    c->seat->frames = c->route.frames;
    return !c->table->stop && c->left && c->left--;
}

/* Jobs one behind the other; now and then each slot has a whole frame, of new data that are checked. */
static bool run_fast(client *c)
{
    enum { JOBS = 200 };
    bool good = true;
    while (good && !c->table->stop) {
        c->left = JOBS;
        good = route_jobs(&c->route, ROUTE_SLOTS, goes_on, c);
        for (int i = 0; i < ROUTE_SLOTS && good; i++)
            good = route_single(&c->route, &c->vk, false);
    }
    return good;
}

/* A frame each 1/hz s; one that took too long leaves others out. Where the CPU would render it, too, just its job. */
static bool run_paced(client *c)
{
    const uint64_t period = (uint64_t)(1e9 / c->seat->plan.hz);
    const bool renders = c->route.info.backend != TANDEM_BACKEND_CPU;
    uint64_t next = td_now_ns();
    bool good = true;
    while (good && !c->table->stop) {
        c->left = 1;
        good = renders ? route_single(&c->route, &c->vk, false) : route_jobs(&c->route, 1, goes_on, c);
        const double us = route_waited_us(&c->route);
        if (c->table->counts && c->seat->waits < MOST_WAITS && isfinite(us))
            c->seat->wait_us[c->seat->waits++] = us;
        c->seat->frames = c->route.frames;
        const uint64_t now = td_now_ns();
        while (next <= now)
            next += period;
        bench_sleep_ns(next - now);
    }
    return good && route_single(&c->route, &c->vk, false);
}

static void make_client_payload(payload *p, char text[160], const plan *made)
{
    payload_make(p, text, made->name, PAYLOAD_ATTENTION, (uint64_t)made->batch * made->tokens * BENCH_ROW_BYTES,
                 made->batch, 1, 1, made->tokens, TANDEM_PRECISION_8B, 0.18f);
    if (made->tokens > TD_BENCH_KEYS)
        p->checked_rows = 0; /* that the shader cannot: all of O is looked at still */
}

static bool open_client(client *c, payload *p, char text[160])
{
    route *l = &c->route;
    *l = (route){.name = c->seat->plan.name,
                .kind = ROUTE_SUBMITTED,
                .socket = c->table->socket,
                .job_class = c->seat->plan.job_class,
                .job_first = true};
    if (!bench_vk_open(&c->vk, l->why, sizeof l->why))
        return false;
    route_open(l, &c->vk);
    make_client_payload(p, text, &c->seat->plan);
    if (l->why[0])
        return false;
    route_prepare(l, &c->vk, p);
    for (int i = 0; i < ROUTE_SLOTS; i++)
        if (l->why[0] || !route_single(l, &c->vk, false))
            return false;
    return true;
}

static int be_client(int fd, uint64_t index)
{
    static client c;
    static payload p;
    char text[160];
    c.table = mmap(NULL, sizeof *c.table, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (c.table == MAP_FAILED)
        return TOOL_FAILED;
    c.seat = &c.table->seats[index];
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0ul, 0ul, 0ul);
    bool good = open_client(&c, &p, text);
    c.seat->ready = good;
    while (good && !c.table->go && !c.table->stop)
        bench_sleep_ns(1000000);
    if (good)
        good = c.seat->plan.hz > 0 ? run_paced(&c) : run_fast(&c);
    if (!good)
        snprintf(c.seat->why, sizeof c.seat->why, "%s", c.route.why[0] ? c.route.why : "a frame failed");
    route_close(&c.route, &c.vk);
    bench_vk_close(&c.vk);
    return good ? TOOL_OK : TOOL_FAILED;
}

/* Processes. */

static pid_t start_client(const bench *b, uint32_t index)
{
    char fd_text[16], index_text[16];
    snprintf(fd_text, sizeof fd_text, "%d", b->table_fd);
    snprintf(index_text, sizeof index_text, "%u", (unsigned)index);
    char *const argv[] = {
        (char *)"tandem-bench", (char *)"daemon", (char *)"--client", fd_text, index_text, NULL};
    const pid_t pid = fork();
    if (!pid) {
        fcntl(b->table_fd, F_SETFD, 0);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    return pid;
}

/* tandemd: beside this program, or where the shell would find it. */
static void become_daemon(const bench *b)
{
    char path[4096];
    const int log = open(b->log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0ul, 0ul, 0ul);
    dup2(log, STDERR_FILENO);
    if (tool_program("tandemd", path, sizeof path))
        execl(path, "tandemd", "--socket", b->socket, "--config", b->config, (char *)NULL);
    execlp("tandemd", "tandemd", "--socket", b->socket, "--config", b->config, (char *)NULL);
    _exit(127);
}

static bool start_daemon(bench *b, char *why, size_t why_bytes)
{
    snprintf(b->folder, sizeof b->folder, "/tmp/tandem-bench-XXXXXX");
    if (!mkdtemp(b->folder)) {
        snprintf(why, why_bytes, "%s: %s", b->folder, strerror(errno));
        b->folder[0] = 0;
        return false;
    }
    snprintf(b->socket, sizeof b->socket, "%s/socket", b->folder);
    snprintf(b->config, sizeof b->config, "%s/config", b->folder);
    snprintf(b->log, sizeof b->log, "%s/log", b->folder);
    FILE *config = fopen(b->config, "we");
    if (!config || fputs("# the defaults\n", config) < 0 || fclose(config)) {
        snprintf(why, why_bytes, "%s: %s", b->config, strerror(errno));
        return false;
    }
    b->process = fork();
    if (!b->process)
        become_daemon(b);
    return b->process > 0;
}

static bool reach_daemon(bench *b, char *why, size_t why_bytes)
{
    const uint64_t begin = td_now_ns();
    for (;;) {
        const tandem_status status = tool_daemon_open(&b->daemon, b->socket, "tandem bench", why, why_bytes);
        if (status == TANDEM_OK)
            return true;
        if (b->process && waitpid(b->process, NULL, WNOHANG) == b->process) {
            b->process = 0;
            snprintf(why, why_bytes, "tandemd was not found beside this program, or ended at once (%s)", b->log);
            return false;
        }
        if (status != TANDEM_ERROR_LOST || !b->process || td_now_ns() - begin > START_S * 1000000000ull)
            return false;
        bench_sleep_ns(10000000);
    }
}

static void end_daemon(bench *b)
{
    tool_daemon_close(&b->daemon);
    if (b->process) {
        kill(b->process, SIGTERM);
        waitpid(b->process, NULL, 0);
    }
    if (!b->folder[0])
        return;
    unlink(b->config);
    unlink(b->log);
    unlink(b->socket);
    snprintf(b->log, sizeof b->log, "%s/socket.lock", b->folder);
    unlink(b->log);
    rmdir(b->folder);
}

/* Groups of clients. */

static bool await_ready(bench *b, const pid_t *pids, uint32_t count, char *why, size_t why_bytes)
{
    const uint64_t begin = td_now_ns();
    for (uint32_t i = 0; i < count;) {
        const seat *s = &b->table->seats[i];
        siginfo_t info = {.si_pid = 0};
        if (s->ready) {
            i++;
            continue;
        }
        if (!waitid(P_PID, (id_t)pids[i], &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid) {
            snprintf(why, why_bytes, "a client of %s could not begin: %s", s->plan.name,
                     s->why[0] ? s->why : "it ended");
            return false;
        }
        if (td_now_ns() - begin > START_S * 1000000000ull) {
            snprintf(why, why_bytes, "a client of %s did not begin within %d s", s->plan.name, START_S);
            return false;
        }
        bench_sleep_ns(2000000);
    }
    return true;
}

static uint64_t compute_ns(const tool_daemon *d, pid_t pid)
{
    for (uint32_t i = 0; i < d->row_count; i++)
        if (d->rows[i].pid == (uint32_t)pid)
            return d->rows[i].gpu_ns;
    return 0;
}

static bool take_shot(bench *b, const pid_t *pids, uint32_t count, uint64_t frames[CLIENTS], uint64_t ns[CLIENTS],
                      char *why, size_t why_bytes)
{
    if (tool_daemon_stats(&b->daemon, why, why_bytes) != TANDEM_OK)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        frames[i] = b->table->seats[i].frames;
        ns[i] = compute_ns(&b->daemon, pids[i]);
    }
    return true;
}

static bool measure_group(bench *b, const pid_t *pids, uint32_t count, double seconds, outcome *out, char *why,
                          size_t why_bytes)
{
    uint64_t frames[2][CLIENTS], ns[2][CLIENTS], from, all = 0;
    bench_sleep_ns((uint64_t)(fmax(0.3, seconds / 5) * 1e9)); /* until all are in their stride */
    if (!take_shot(b, pids, count, frames[0], ns[0], why, why_bytes))
        return false;
    from = b->daemon.rows_ns;
    b->table->counts = 1;
    bench_sleep_ns((uint64_t)(seconds * 1e9));
    b->table->counts = 0;
    if (!take_shot(b, pids, count, frames[1], ns[1], why, why_bytes))
        return false;
    out->seconds = 1e-9 * (double)(b->daemon.rows_ns - from);
    for (uint32_t i = 0; i < count; i++)
        all += ns[1][i] - ns[0][i];
    for (uint32_t i = 0; i < count; i++) {
        out->rate[i] = (double)(frames[1][i] - frames[0][i]) / out->seconds;
        out->share[i] = all ? (double)(ns[1][i] - ns[0][i]) / (double)all : NAN;
    }
    out->busy = 1e-9 * (double)all / out->seconds;
    return true;
}

/* Starts clients, measures them together, ends them. */
static bool run_group(bench *b, const plan *const plans[], uint32_t count, double seconds, outcome *out, char *why,
                      size_t why_bytes)
{
    pid_t pids[CLIENTS];
    bool good = true;
    memset(b->table, 0, sizeof *b->table);
    *out = (outcome){0};
    memcpy(b->table->socket, b->socket, sizeof b->table->socket);
    for (uint32_t i = 0; i < count; i++)
        b->table->seats[i].plan = *plans[i];
    for (uint32_t i = 0; i < count; i++)
        pids[i] = start_client(b, i);
    good = await_ready(b, pids, count, why, why_bytes);
    b->table->go = good;
    good = good && measure_group(b, pids, count, seconds, out, why, why_bytes);
    b->table->stop = 1;
    for (uint32_t i = 0; i < count; i++) {
        seat *s = &b->table->seats[i];
        int status = -1;
        const uint64_t begin = td_now_ns();
        pid_t ended;
        while (!(ended = waitpid(pids[i], &status, WNOHANG)) && td_now_ns() - begin < 30000000000ull)
            bench_sleep_ns(2000000);
        if (!ended) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
        }
        if (good && status) {
            snprintf(why, why_bytes, "a client of %s failed: %s", s->plan.name, s->why[0] ? s->why : "it did not end");
            good = false;
        }
        for (uint64_t n = 0; n < s->waits && n < MOST_WAITS; n++)
            bench_add(&out->wait_us, s->wait_us[n]);
    }
    return good;
}

/* The parts of the report. */

static json_t *route_report(const route *l)
{
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "lane", l->name, "why", l->why, "round_trip_us",
                     bench_json(&l->round_trip), "in_flight_us", bench_json(&l->in_flight), "cpu_us",
                     bench_json(&l->cpu), "job_us", bench_json(&l->job));
}

/* One payload on both routes. False: a route broke, or its data were wrong. */
static bool hand_over(bench *b, const payload *p, json_t *list)
{
    bool good = true;
    routes_measure(b->routes, ROUTES, &b->vk, p, b->rounds, b->round_ms);
    printf("\n%s: %s\n  %-22s %9s %9s %11s %9s %9s\n", p->name, p->job, "us", "round p50", "p99", "3 in flight",
           "CPU calls", "job");
    json_t *routes = json_array();
    for (int i = 0; i < ROUTES; i++) {
        const route *l = &b->routes[i];
        if (l->why[0])
            printf("  %-22s - %s\n", l->name, l->why);
        else
            printf("  %-22s %9.1f %9.1f %11.1f %9.1f %9.1f\n", l->name, bench_median(&l->round_trip),
                   bench_at(&l->round_trip, 0.99), bench_median(&l->in_flight), bench_median(&l->cpu),
                   bench_median(&l->job));
        good = good && !l->why[0] && !l->wrong;
        b->measured += l->round_trip.count;
        json_array_append_new(routes, route_report(l));
    }
    json_array_append_new(list, json_pack("{s:s, s:s, s:o}", "payload", p->name, "job", p->job, "lanes", routes));
    return good;
}

static bool hand_overs(bench *b, json_t *report)
{
    static payload empty, bulk;
    static char empty_job[160], bulk_job[160];
    const uint64_t bytes = b->is_cpu ? 256 << 10 : 8 << 20;
    json_t *list = json_array();
    const route *here = &b->routes[HERE], *there = &b->routes[THERE];
    payload_make(&empty, empty_job, "64 B", PAYLOAD_EMPTY, 64, 1, 1, 1, 1, TANDEM_PRECISION_F16, 1);
    payload_make(&bulk, bulk_job, b->is_cpu ? "256 KiB" : "8 MiB", PAYLOAD_GATHER, bytes, 1,
                 (uint32_t)(bytes / BENCH_ROW_BYTES / 4096), 1, 32, TANDEM_PRECISION_F16, 1);
    bool good = hand_over(b, &empty, list);
    const double empty_here = bench_median(&here->round_trip), empty_there = bench_median(&there->round_trip);
    good = good && hand_over(b, &bulk, list);
    const double ratio = bench_median(&here->in_flight) / bench_median(&there->in_flight);
    bench_expect(&b->targets, b->is_cpu ? empty_there : NAN, false, 200, "empty hand-over through tandemd, p50 us");
    bench_expect(&b->targets, b->is_cpu ? NAN : empty_there - empty_here, false, 60,
                 "empty hand-over through tandemd above that in process, p50 us");
    bench_expect(&b->targets, good ? ratio : NAN, true, 0.88, "throughput through tandemd by that in process, %s",
                 bulk.name);
    json_object_set_new(report, "handover", list);
    for (int i = 0; i < ROUTES; i++)
        route_free_series(&b->routes[i]);
    return good;
}

static json_t *client_report(const plan *p, const outcome *o, uint32_t i, double alone)
{
    return json_pack("{s:s, s:i, s:i, s:o, s:o, s:o}", "client", p->name, "tokens", (int)p->tokens, "batch",
                     (int)p->batch, "frames_per_s", bench_number(o->rate[i]), "alone_per_s", bench_number(alone),
                     "share", bench_number(o->share[i]));
}

/* One with long jobs, seven with short ones: all as fast as they can; then frames by themselves, and with the long ones in
 * their background. What frames wait for by themselves is the GPU's, which gives processes time slices in turn. */
static bool unequal(bench *b, json_t *report, char *why, size_t why_bytes)
{
    const plan long_jobs = b->is_cpu ? (plan){"2k tokens", 1, 2048, TANDEM_CLASS_FRAME, 0}
                                     : (plan){"64k tokens", 2, 65536, TANDEM_CLASS_FRAME, 0},
               short_jobs = b->is_cpu ? (plan){"256 tokens", 4, 256, TANDEM_CLASS_FRAME, 0}
                                      : (plan){"1k tokens", 128, 1024, TANDEM_CLASS_FRAME, 0};
    plan background = long_jobs, paced = short_jobs;
    const plan *all[CLIENTS] = {&long_jobs}, *frames[CLIENTS] = {&background};
    outcome alone[2] = {{0}}, together = {0}, quiet = {0}, waits = {0};
    double total = 0, worst = 0;
    background.job_class = TANDEM_CLASS_BACKGROUND;
    paced.hz = FRAMES_PER_S;
    for (int i = 1; i < CLIENTS; i++) {
        all[i] = &short_jobs;
        frames[i] = &paced;
    }
    bool good = run_group(b, all, 1, b->seconds / 2, &alone[0], why, why_bytes) &&
                run_group(b, all + 1, 1, b->seconds / 2, &alone[1], why, why_bytes) &&
                run_group(b, all, CLIENTS, b->seconds, &together, why, why_bytes) &&
                run_group(b, frames + 1, CLIENTS - 1, b->seconds, &quiet, why, why_bytes) &&
                run_group(b, frames, CLIENTS, b->seconds, &waits, why, why_bytes);
    json_t *list = json_array();
    printf("\neight clients, each a process with three jobs in flight\n  %-14s %12s %12s %8s\n", "", "frames/s",
           "alone", "share");
    for (uint32_t i = 0; i < CLIENTS && good; i++) {
        const double by_itself = alone[i != 0].rate[0];
        printf("  %-14s %12.1f %12.1f %6.1f %%\n", all[i]->name, together.rate[i], by_itself, 100 * together.share[i]);
        total += together.rate[i] / by_itself;
        worst = fmax(worst, fabs(together.share[i] * CLIENTS - 1));
        json_array_append_new(list, client_report(all[i], &together, i, by_itself));
    }
    const double p50 = bench_median(&waits.wait_us), p99 = bench_at(&waits.wait_us, 0.99);
    const double quiet_p50 = bench_median(&quiet.wait_us), quiet_p99 = bench_at(&quiet.wait_us, 0.99);
    if (good)
        printf("  promised: 12.5 %% each. All together: %.2f of what one client alone gets done\n"
               "  seven at %d frames a second: a frame's job waits p50 %.0f us, p99 %.0f us (%zu frames);\n"
               "  with %s in their background p50 %.0f us, p99 %.0f us (%zu frames)\n",
               total, FRAMES_PER_S, quiet_p50, quiet_p99, quiet.wait_us.count, background.name, p50, p99,
               waits.wait_us.count);
    bench_expect(&b->targets, good ? worst : NAN, false, 0.1,
                 "eight clients: the largest difference of a share from an eighth of all");
    bench_expect(&b->targets, good ? total : NAN, true, 0.8, "eight clients together by one alone");
    bench_expect(&b->targets, good && !b->is_cpu ? p50 : NAN, false, 500,
                 "a frame's job beside long ones in the background, wait p50 us");
    bench_expect(&b->targets, good && !b->is_cpu ? p50 - quiet_p50 : NAN, false, 500,
                 "a frame's job beside long ones in the background, wait p50 above that without them, us");
    json_object_set_new(report, "clients",
                        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "together", list, "total",
                                  bench_number(good ? total : NAN), "worst_share", bench_number(good ? worst : NAN),
                                  "busy", bench_number(together.busy), "frame_wait_us", bench_json(&waits.wait_us),
                                  "frame_wait_quiet_us", bench_json(&quiet.wait_us),
                                  "background_per_s", bench_number(waits.rate[0])));
    bench_free(&waits.wait_us);
    bench_free(&quiet.wait_us);
    return good;
}

static int run(bench *b, const char *json)
{
    char why[420] = "";
    route *here = &b->routes[HERE], *there = &b->routes[THERE];
    *here = (route){.name = "in this process", .kind = ROUTE_SUBMITTED};
    *there = (route){.name = "through tandemd", .kind = ROUTE_SUBMITTED, .socket = b->socket, .job_first = true};
    route_open(there, &b->vk);
    here->rung = there->rung;
    if (!there->why[0])
        route_open(here, &b->vk);
    if (there->why[0] || here->why[0])
        return tool_fail("bench daemon", "%s: %s", there->why[0] ? there->name : here->name,
                         there->why[0] ? there->why : here->why);
    printf("%s, %s, rung %s on both sides\n", b->vk.properties.deviceName, b->daemon.welcome.name,
           td_rung_name(here->rung));
    json_t *report = bench_report("daemon", b->vk.properties.deviceName, b->vk.driver);
    json_object_set_new(report, "rung", json_string(td_rung_name(here->rung)));
    json_object_set_new(report, "rounds", json_integer(b->rounds));
    bool good = hand_overs(b, report);
    if (!good)
        snprintf(why, sizeof why, "a route broke, or computed something wrong");
    route_close(there, &b->vk);
    route_close(here, &b->vk);
    bench_vk_close(&b->vk); /* clients measure without it */
    b->vk = (bench_vk){0};
    good = good && unequal(b, report, why, sizeof why);
    const uint32_t missed = bench_print_targets(&b->targets);
    json_object_set_new(report, "targets", bench_targets_json(&b->targets));
    json_object_set_new(report, "missed", json_integer(missed));
    const int saved = bench_save(report, json);
    if (!good)
        return tool_fail("bench daemon", "%s", why);
    return saved ? saved : bench_status("bench daemon", b->measured, missed, b->strict);
}

static bool open_table(bench *b)
{
    b->table_fd = memfd_create("tandem-bench", MFD_CLOEXEC);
    if (b->table_fd < 0 || ftruncate(b->table_fd, sizeof *b->table))
        return false;
    b->table = mmap(NULL, sizeof *b->table, PROT_READ | PROT_WRITE, MAP_SHARED, b->table_fd, 0);
    return b->table != MAP_FAILED;
}

int bench_daemon(int argc, char **argv)
{
    const char *json = NULL, *socket = NULL, *rounds = NULL;
    bool quick = false, strict = false;
    const tool_option options[] = {{"--json", &json, NULL},     {"--socket", &socket, NULL},
                                   {"--rounds", &rounds, NULL}, {"--quick", NULL, &quick},
                                   {"--strict", NULL, &strict}};
    uint64_t number = 0, index = 0;
    char why[420] = "";
    if (argc == 3 && !strcmp(argv[0], "--client") && tool_number(argv[1], 0, 1 << 20, &number) &&
        tool_number(argv[2], 0, CLIENTS - 1, &index))
        return be_client((int)number, index);
    if (tool_parse("bench daemon", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (rounds && !tool_number(rounds, 1, 1000, &number))
        return tool_usage("bench daemon", "--rounds \"%s\": must be a number from 1 to 1000", rounds);
    if (json && !tool_can_write("--json", json, why, sizeof why))
        return tool_fail("bench daemon", "%s", why);
    bench *b = calloc(1, sizeof *b);
    if (!b)
        return tool_fail("bench daemon", "out of memory");
    b->table_fd = b->daemon.conn.fd = -1;
    b->strict = strict;
    b->rounds = rounds ? (uint32_t)number : quick ? 2 : 9;
    b->round_ms = quick ? 10 : 40;
    b->seconds = quick ? 1 : 6;
    bool good = open_table(b);
    if (!good)
        snprintf(why, sizeof why, "memory for clients: %s", strerror(errno));
    if (good && socket)
        good = tool_daemon_path(socket, b->socket, why, sizeof why);
    else if (good)
        good = start_daemon(b, why, sizeof why);
    good = good && reach_daemon(b, why, sizeof why) && bench_vk_open(&b->vk, why, sizeof why);
    b->is_cpu = b->daemon.info.backend == TANDEM_BACKEND_CPU;
    const int result = good ? run(b, json) : tool_fail("bench daemon", "%s", why);
    if (b->vk.engine.library)
        bench_vk_close(&b->vk);
    end_daemon(b);
    free(b);
    return result;
}
