/* `tandem bench handover`: what it costs to have a payload transformed between two pieces of Vulkan work, on each rung.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * All routes take turns, round after round, each with single frames and then with three in flight. What a route computes
 * is checked in every frame, by the Vulkan work behind it.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/ladder.h"
#include "engine_plugin/tool/nvml.h"
#include "engine_plugin/tool/routes.h"
#include "kernels/builder.h"
#include "shaders/filter_shared.h"
#include "tests/bench/small.h"

enum { ROUTES = 10, PAYLOADS = 5, LAUNCHES = 20 };

/* What a route did on a payload. */
typedef struct figures {
    char why[320];
    bench_series gap_in, gap_out, round_trip, in_flight, cpu, process_cpu, job, between;
    uint64_t frames, wrong;
} figures;

typedef struct handover {
    bench_vk vk;
    route routes[ROUTES];
    figures figures[PAYLOADS][ROUTES];
    figures enqueue[3]; /* `cpu` of stream, graph, recorded */
    payload payloads[PAYLOADS];
    char jobs[PAYLOADS][160];
    bench_targets targets;
    bench_nvml *nvml;
    uint32_t rounds, wanted; /* wanted: payloads, one bit each */
    double round_ms; /* that a route may take for single frames in a round, and for frames in flight */
    bool is_cpu, strict;
} handover;

enum { VULKAN, CHAIN, PROBE, CUDA, RECORDED, INLINE, TIMELINE, RUNG_HOST, RUNG_COPY, RUNG_CPU };

static void make_routes(handover *h)
{
    static const struct {
        const char *name;
        route_kind kind;
        uint32_t rung;
    } table[ROUTES] = {[VULKAN] = {"floor: Vulkan alone", ROUTE_VULKAN, 0},
                      [CHAIN] = {"floor: in 3 submits", ROUTE_CHAIN, 0},
                      [PROBE] = {"floor: bare timelines", ROUTE_PROBE, 0},
                      [CUDA] = {"floor: CUDA alone", ROUTE_CUDA, 0}, /* on the buffers of the one before */
                      [RECORDED] = {"inline, recorded", ROUTE_RECORDED, TANDEM_RUNG_INLINE},
                      [INLINE] = {"inline, submitted", ROUTE_SUBMITTED, TANDEM_RUNG_INLINE},
                      [TIMELINE] = {"timeline", ROUTE_SUBMITTED, TANDEM_RUNG_TIMELINE},
                      [RUNG_HOST] = {"host", ROUTE_SUBMITTED, TANDEM_RUNG_HOST},
                      [RUNG_COPY] = {"copy", ROUTE_SUBMITTED, TANDEM_RUNG_COPY},
                      [RUNG_CPU] = {"cpu", ROUTE_SUBMITTED, TANDEM_RUNG_CPU}};
    for (int i = 0; i < ROUTES; i++)
        h->routes[i] = (route){.name = table[i].name, .kind = table[i].kind, .rung = table[i].rung,
                             .probe = &h->routes[PROBE]};
}

static void make_payloads(handover *h)
{
    enum { TILE = TD_FILTER_TILE, SIDE = TILE + 2 * TD_FILTER_HALO, QUERIES = 4096 };
    /* The demo's sizes with a GPU and without. */
    const uint32_t width = h->is_cpu ? 320 : 960, height = h->is_cpu ? 180 : 540;
    const uint32_t tiles = (width + TILE - 1) / TILE * ((height + TILE - 1) / TILE);
    static const struct {
        const char *name;
        uint64_t bytes;
    } gathers[] = {{"256 KiB", 256 << 10}, {"8 MiB", 8 << 20}, {"64 MiB", 64 << 20}};
    payload_make(&h->payloads[0], h->jobs[0], "64 B", PAYLOAD_EMPTY, 64, 1, 1, 1, 1, TANDEM_PRECISION_F16, 1);
    for (int i = 0; i < 3; i++)
        payload_make(&h->payloads[1 + i], h->jobs[1 + i], gathers[i].name, PAYLOAD_GATHER, gathers[i].bytes, 1,
                     (uint32_t)(gathers[i].bytes / BENCH_ROW_BYTES / QUERIES), 1, 32, TANDEM_PRECISION_F16, 1);
    payload_make(&h->payloads[4], h->jobs[4], h->is_cpu ? "320x180" : "960x540", PAYLOAD_ATTENTION,
                 (uint64_t)tiles * TILE * TILE * BENCH_ROW_BYTES, tiles, 1, 1, SIDE * SIDE, TANDEM_PRECISION_8B,
                 TD_FILTER_SCALE);
}

/* Takes what a route has measured, and leaves it empty. */
static void take_figures(route *l, figures *f)
{
    *f = (figures){.gap_in = l->gap_in, .gap_out = l->gap_out, .round_trip = l->round_trip, .in_flight = l->in_flight,
                   .cpu = l->cpu, .process_cpu = l->process_cpu, .job = l->job, .between = l->between,
                   .frames = l->frames, .wrong = l->wrong};
    memcpy(f->why, l->why, sizeof f->why);
    l->gap_in = l->gap_out = l->round_trip = l->in_flight = l->cpu = l->process_cpu = l->job = l->between =
        (bench_series){0};
}

static void measure(handover *h, uint32_t payload_index)
{
    routes_measure(h->routes, ROUTES, &h->vk, &h->payloads[payload_index], h->rounds, h->round_ms);
    for (int i = 0; i < ROUTES; i++)
        take_figures(&h->routes[i], &h->figures[payload_index][i]);
}

static const char *cell(const bench_series *s, double p, char text[16])
{
    const double x = bench_at(s, p);
    if (isnan(x))
        snprintf(text, 16, "-");
    else
        snprintf(text, 16, fabs(x) < 100 ? "%.1f" : "%.0f", x);
    return text;
}

/* Without what the session says of its own description, "desc.rung is 1 (inline): ". */
static const char *reason(const char *why)
{
    const char *end = strncmp(why, "desc.rung is ", 13) ? NULL : strstr(why, "): ");
    return end ? end + 3 : why;
}

static void print_payload(handover *h, uint32_t index)
{
    char a[8][16];
    printf("\n%s: %s\n", h->payloads[index].name, h->payloads[index].job);
    printf("  %-22s %9s %9s %9s %9s %11s %9s %9s\n", "us", "gap in", "gap out", "round p50", "p99", "3 in flight",
           "CPU calls", "job");
    for (int i = 0; i < ROUTES; i++) {
        const figures *f = &h->figures[index][i];
        if (!f->round_trip.count) {
            printf("  %-22s - %s\n", h->routes[i].name, reason(f->why));
            continue;
        }
        printf("  %-22s %9s %9s %9s %9s %11s %9s %9s%s\n", h->routes[i].name, cell(&f->gap_in, 0.5, a[0]),
               cell(&f->gap_out, 0.5, a[1]), cell(&f->round_trip, 0.5, a[2]), cell(&f->round_trip, 0.99, a[3]),
               cell(&f->in_flight, 0.5, a[4]), cell(&f->cpu, 0.5, a[5]), cell(&f->job, 0.5, a[6]),
               f->wrong ? " WRONG" : "");
    }
    fflush(stdout);
}

static json_t *route_json(const route *l, const figures *f)
{
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:s}", "lane", l->name, "rung",
                     l->rung ? json_string(td_rung_name(l->rung)) : json_null(), "gap_in_us", bench_json(&f->gap_in),
                     "gap_out_us", bench_json(&f->gap_out), "between_us", bench_json(&f->between), "round_trip_us",
                     bench_json(&f->round_trip),
                     "in_flight_3_us", bench_json(&f->in_flight), "cpu_calls_us", bench_json(&f->cpu), "cpu_process_us",
                     bench_json(&f->process_cpu), "job_us", bench_json(&f->job), "frames", (json_int_t)f->frames,
                     "wrong", (json_int_t)f->wrong, "not_measured", f->why);
}

/* Time a frame of three in flight would take if its hand-over were Vulkan's own: Vulkan's frame, with the time of its
 * middle replaced by the job's. */
static double vulkan_floor(const figures *vulkan, const figures *l)
{
    return bench_median(&vulkan->in_flight) - bench_median(&vulkan->job) + bench_median(&l->job);
}

static void expect(handover *h, uint32_t index)
{
    const payload *p = &h->payloads[index];
    const figures *of = h->figures[index], *probe = &of[PROBE], *timeline = &of[TIMELINE];
    if (p->kind == PAYLOAD_EMPTY) {
        if (h->is_cpu)
            bench_expect(&h->targets, bench_median(&of[RUNG_CPU].round_trip), false, 130,
                         "cpu, %s: round trip of an empty hand-over, p50 us", p->name);
        return;
    }
    if (h->is_cpu)
        return;
    for (int i = RECORDED; i <= INLINE; i++) {
        const char *name = h->routes[i].name;
        if (p->kind == PAYLOAD_ATTENTION && i == RECORDED) {
            bench_expect(&h->targets, bench_median(&of[i].gap_in), false, 2, "%s, %s: gap in, us", name, p->name);
            bench_expect(&h->targets, bench_median(&of[i].gap_out), false, 2, "%s, %s: gap out, us", name, p->name);
        }
        bench_expect(&h->targets, vulkan_floor(&of[VULKAN], &of[i]) / bench_median(&of[i].in_flight), true, 0.95,
                     "%s, %s: 3 in flight, throughput by all-Vulkan's", name, p->name);
    }
    bench_expect(&h->targets, vulkan_floor(&of[CHAIN], &of[INLINE]) / bench_median(&of[INLINE].in_flight), true, 0.95,
                 "%s, %s: 3 in flight, throughput by all-Vulkan's in three submits", h->routes[INLINE].name, p->name);
    bench_expect(&h->targets,
                 bench_median(&timeline->gap_in) + bench_median(&timeline->gap_out) - bench_median(&probe->gap_in) -
                     bench_median(&probe->gap_out),
                 false, 10, "timeline, %s: both gaps beyond a bare probe's, us", p->name);
    bench_expect(&h->targets, bench_median(&probe->in_flight) / bench_median(&timeline->in_flight), true, 0.95,
                 "timeline, %s: 3 in flight, throughput by a bare probe's", p->name);
}

static json_t *waiting(handover *h, double seconds)
{
    json_t *list = json_array();
    for (int i = 0; i < ROUTES && seconds > 0; i++) {
        route *l = &h->routes[i];
        if (!l->session || l->why[0] || l->kind != ROUTE_SUBMITTED)
            continue;
        route_prepare(l, &h->vk, &h->payloads[0]);
        for (int by_fd = 0; by_fd < 2 && !l->why[0]; by_fd++) {
            const char *how = by_fd ? "tandem_point_fd" : "tandem_point_wait";
            bench_series us = {0};
            double core = NAN;
            const bool good = route_waiting(l, &h->vk, by_fd, seconds, &us, &core);
            if (good) {
                bench_expect(&h->targets, bench_median(&us), false, 60, "%s, %s: p50 us", l->name, how);
                bench_expect(&h->targets, bench_at(&us, 0.99), false, 150, "%s, %s: p99 us", l->name, how);
                bench_expect(&h->targets, 100 * core, false, 3, "%s, %s: %% of a core", l->name, how);
            }
            json_array_append_new(list, json_pack("{s:s, s:s, s:o, s:o, s:s}", "lane", l->name, "by", how, "latency_us",
                                                  good ? bench_json(&us) : json_null(), "core", bench_number(core),
                                                  "not_measured", l->why));
            bench_free(&us);
        }
        route_unprepare(l, &h->vk);
    }
    return list;
}

static void print_waiting(const json_t *list)
{
    size_t i;
    json_t *it;
    if (json_array_size(list))
        printf("\nthe host learns of a point, 240 a second, us after the end\n  %-22s %-18s %9s %9s %9s %9s\n", "", "",
               "p50", "p99", "max", "% of core");
    json_array_foreach(list, i, it) {
        const json_t *us = json_object_get(it, "latency_us");
        printf("  %-22s %-18s ", json_string_value(json_object_get(it, "lane")),
               json_string_value(json_object_get(it, "by")));
        if (json_is_object(us))
            printf("%9.1f %9.1f %9.1f %9.2f\n", json_number_value(json_object_get(us, "median")),
                   json_number_value(json_object_get(us, "p99")), json_number_value(json_object_get(us, "max")),
                   100 * json_number_value(json_object_get(it, "core")));
        else
            printf("- %s\n", json_string_value(json_object_get(it, "not_measured")));
    }
}

/* The records of an attention plan over and over, up to LAUNCHES. */
static bool make_long_plan(uint32_t sm, td_plan *out, char *why, size_t why_bytes)
{
    const tandem_view view = payload_view(0, 256, 1);
    const tandem_attention op = {.q = view, .k = view, .v = view, .o = view, .batch = 1, .heads = 1, .kv_heads = 1,
                                 .q_len = 256, .kv_len = 256, .head_dim = 32, .precision = TANDEM_PRECISION_8B};
    const td_target target = td_target_for_sm(sm);
    td_plan plan = {0};
    bool good = td_plan_attention(&op, &target, &plan, NULL, why, why_bytes) == TANDEM_OK && td_plan_copy(out, &plan);
    while (good && out->record_count < LAUNCHES)
        good = td_plan_append(out, &plan.records[out->record_count % plan.record_count]);
    td_plan_barriers(out);
    td_plan_free(&plan);
    return good;
}

static void wait_completed(td_stream *stream, uint64_t sequence)
{
    const uint64_t begin = td_now_ns();
    while (td_stream_completed(stream) < sequence && td_now_ns() - begin < 2000000000u) {
    }
}

/* CPU time of one enqueue, with a wait that is over and a signal whose values rise. */
static void time_enqueue(route *probe, td_stream *stream, const td_plan *plan, td_cu_mem *mem, bench_series *us,
                         char *why, size_t why_bytes)
{
    enum { TIMES = 200 };
    const uint64_t q = mem->address + td_align_up(plan->scratch_bytes, 256), bytes = 256 * 64;
    const uint64_t views[TD_VIEW_COUNT] = {q, q + bytes, q + 2 * bytes, q + 3 * bytes};
    for (uint32_t i = 0; i < TIMES; i++) {
        const td_stream_point wait = {&probe->cu_engine, probe->engine, probe->engine_value};
        const td_stream_point signal = {&probe->cu_done, probe->done, ++probe->done_value};
        const td_stream_submit submit = {.plan = plan, .views = views, .scratch = mem->address, .wait = &wait,
                                         .signal = &signal, .slot = i % ROUTE_SLOTS, .label = "bench"};
        uint64_t sequence = 0;
        bool signalled;
        const uint64_t begin = bench_thread_cpu_ns();
        if (td_stream_enqueue(stream, &submit, &sequence, &signalled, why, why_bytes) != TANDEM_OK)
            return;
        if (i >= 2 * ROUTE_SLOTS)
            bench_add(us, 1e-3 * (double)(bench_thread_cpu_ns() - begin));
        wait_completed(stream, sequence);
    }
}

static void time_recording(handover *h, uint32_t sm, const td_plan *plan, bench_series *us, char *why, size_t why_bytes)
{
    enum { TIMES = 200 };
    bench_vk *v = &h->vk;
    const td_log quiet = {0};
    const tandem_vulkan engine = tool_engine_vulkan(&v->engine);
    const td_inline_desc desc = {.vk = v->vk, .sm = sm, .queue = v->engine.queue, .lock = engine.lock_queue,
                                 .unlock = engine.unlock_queue, .user = v};
    td_stream *stream = NULL;
    bench_slot slot = {0};
    bench_buffer buffer = {0};
    /* What is recorded here never runs. */
    const uint64_t views[TD_VIEW_COUNT] = {0x10000, 0x20000, 0x30000, 0x40000};
    if (bench_buffer_make(v, 256, false, &buffer, why, why_bytes) &&
        bench_slot_make(v, buffer.buffer, buffer.buffer, &slot, why, why_bytes) &&
        td_stream_create_inline(&desc, &quiet, &stream, why, why_bytes) == TANDEM_OK)
        for (uint32_t i = 0; i < TIMES; i++) {
            const td_stream_submit submit = {.plan = plan, .views = views, .scratch = 0x100000, .label = "bench"};
            uint64_t number;
            if (!bench_begin(v, &slot, 1))
                break;
            const uint64_t begin = bench_thread_cpu_ns();
            if (td_inline_record(stream, &submit, slot.commands[1], &number, why, why_bytes) != TANDEM_OK)
                break;
            if (i)
                bench_add(us, 1e-3 * (double)(bench_thread_cpu_ns() - begin));
            v->EndCommandBuffer(slot.commands[1]);
        }
    if (stream)
        td_stream_destroy(&stream, 2000000000);
    bench_slot_free(v, &slot);
    bench_buffer_free(v, &buffer);
}

enum { BY_STREAM, BY_GRAPH, BY_RECORDING };

static void enqueue_recorded(handover *h)
{
    figures *f = &h->enqueue[BY_RECORDING];
    const route *l = &h->routes[RECORDED];
    td_plan plan = {0};
    memcpy(f->why, l->why, sizeof f->why);
    if (!l->why[0] && make_long_plan(l->info.sm, &plan, f->why, sizeof f->why))
        time_recording(h, l->info.sm, &plan, &f->cpu, f->why, sizeof f->why);
    td_plan_free(&plan);
}

static void enqueue_on_cuda(handover *h)
{
    route *probe = &h->routes[PROBE];
    figures *stream = &h->enqueue[BY_STREAM], *graph = &h->enqueue[BY_GRAPH];
    td_plan made = {0}, *plan = &made;
    td_stream *graphs = NULL;
    td_cu_mem mem = {0};
    const td_log quiet = {0};
    memcpy(stream->why, probe->why, sizeof stream->why);
    memcpy(graph->why, probe->why, sizeof graph->why);
    if (!probe->why[0] && probe->device &&
        make_long_plan(td_cu_device_info(probe->device)->sm, plan, stream->why, sizeof stream->why) &&
        td_cu_mem_alloc(probe->device, plan->scratch_bytes + (1 << 20), &mem, stream->why, sizeof stream->why) ==
            TANDEM_OK) {
        time_enqueue(probe, probe->stream, plan, &mem, &stream->cpu, stream->why, sizeof stream->why);
        if (td_stream_create_graph(probe->device, &quiet, &graphs, graph->why, sizeof graph->why) == TANDEM_OK)
            time_enqueue(probe, graphs, plan, &mem, &graph->cpu, graph->why, sizeof graph->why);
    }
    if (graphs)
        td_stream_destroy(&graphs, 2000000000);
    if (mem.kind)
        td_cu_mem_free(probe->device, &mem);
    td_plan_free(plan);
}

static json_t *enqueueing(handover *h)
{
    static const char *const names[] = {"stream", "graph", "recorded inline"};
    static const double limits[] = {0, 8, 60};
    json_t *list = json_array();
    printf("\nCPU time to enqueue %d launches, us\n", LAUNCHES);
    for (int i = 0; i < 3; i++) {
        figures *f = &h->enqueue[i];
        if (f->cpu.count)
            printf("  %-22s p50 %.1f, p99 %.1f\n", names[i], bench_median(&f->cpu), bench_at(&f->cpu, 0.99));
        else
            printf("  %-22s - %s\n", names[i], reason(f->why));
        if (limits[i] > 0)
            bench_expect(&h->targets, bench_median(&f->cpu), false, limits[i], "%d launches by %s: p50 us of CPU",
                         LAUNCHES, names[i]);
        json_array_append_new(list, json_pack("{s:s, s:i, s:o}", "by", names[i], "launches", LAUNCHES, "cpu_us",
                                              bench_json(&f->cpu)));
        bench_free(&f->cpu);
    }
    return list;
}

static int run(handover *h, const char *json, double seconds)
{
    uint64_t wrong = 0, measured = 0;
    uint32_t broken = 0;
    bool opened[ROUTES];
    json_t *list = json_array();
    char driver[768];
    const td_vk_caps *caps = td_vk_get_caps(h->vk.vk);
    h->nvml = h->is_cpu ? NULL : bench_nvml_open(caps->device_uuid);
    snprintf(driver, sizeof driver, "%.700s", h->vk.driver);
    printf("%s, %s, consumer's begin by %s\n", h->vk.properties.deviceName, driver,
           h->vk.shader_clock ? "the shader's clock" : "timestamp");
    for (int i = 0; i < ROUTES; i++) {
        route_open(&h->routes[i], &h->vk);
        opened[i] = !h->routes[i].why[0];
    }
    opened[CUDA] = opened[PROBE]; /* whose buffers it uses */
    for (uint32_t i = 0; i < PAYLOADS; i++) {
        const payload *p = &h->payloads[i];
        if (!(h->wanted >> i & 1))
            continue;
        measure(h, i);
        print_payload(h, i);
        expect(h, i);
        json_t *routes = json_array();
        for (int l = 0; l < ROUTES; l++) {
            figures *f = &h->figures[i][l];
            json_array_append_new(routes, route_json(&h->routes[l], f));
            wrong += f->wrong;
            measured += f->round_trip.count;
            /* A rung that is not there is no failure; one that is there and broke is. */
            if (opened[l] && f->why[0]) {
                printf("%s: %s\n", h->routes[l].name, f->why);
                broken++;
            }
            bench_series *const all[] = {&f->gap_in, &f->gap_out,     &f->round_trip, &f->in_flight,
                                         &f->cpu,    &f->process_cpu, &f->job,        &f->between};
            for (size_t j = 0; j < sizeof all / sizeof *all; j++)
                bench_free(all[j]);
        }
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:o}", "payload", p->name, "job", p->job, "bytes",
                                              (json_int_t)p->bytes, "lanes", routes));
    }
    const bench_power power = bench_nvml_read(h->nvml);
    json_t *waits = waiting(h, seconds);
    print_waiting(waits);
    char why_not[320] = "";
    json_t *small_job = bench_small_job(&h->targets, seconds > 0 ? seconds : 0.25, why_not, sizeof why_not);
    if (why_not[0]) {
        printf("a small job on the CPU: %s\n", why_not);
        broken++;
    }
    enqueue_recorded(h);
    enqueue_on_cuda(h);
    json_t *enqueues = enqueueing(h);
    const uint32_t missed = bench_print_targets(&h->targets);
    json_t *report = bench_report("handover", h->vk.properties.deviceName, driver);
    json_object_set_new(report, "vulkan", json_sprintf("%u.%u.%u", VK_API_VERSION_MAJOR(h->vk.properties.apiVersion),
                                                       VK_API_VERSION_MINOR(h->vk.properties.apiVersion),
                                                       VK_API_VERSION_PATCH(h->vk.properties.apiVersion)));
    json_object_set_new(report, "rounds", json_integer(h->rounds));
    json_object_set_new(report, "sm_mhz", json_integer(power.sm_mhz));
    json_object_set_new(report, "watts", json_real(power.milliwatts * 1e-3));
    json_object_set_new(report, "payloads", list);
    json_object_set_new(report, "waiting", waits);
    json_object_set_new(report, "small_job", small_job);
    json_object_set_new(report, "enqueue", enqueues);
    json_object_set_new(report, "targets", bench_targets_json(&h->targets));
    json_object_set_new(report, "missed", json_integer(missed));
    for (int i = ROUTES; i-- > 0;)
        route_close(&h->routes[i], &h->vk);
    bench_nvml_close(h->nvml);
    const int saved = bench_save(report, json);
    if (wrong || broken)
        return tool_fail("bench handover", "%" PRIu64 " frames were wrong, %u routes broke", wrong, (unsigned)broken);
    return saved ? saved : bench_status("bench handover", measured, missed, h->strict);
}

int bench_handover(int argc, char **argv)
{
    static const char *const words[] = {"64B", "256K", "8M", "64M", "demo", NULL};
    const char *json = NULL, *payloads = NULL, *rounds = NULL, *budget = NULL;
    bool quick = false, no_waits = false, strict = false;
    const tool_option options[] = {{"--json", &json, NULL},     {"--payloads", &payloads, NULL},
                                   {"--rounds", &rounds, NULL}, {"--round-ms", &budget, NULL},
                                   {"--quick", NULL, &quick},   {"--no-waiting", NULL, &no_waits},
                                   {"--strict", NULL, &strict}};
    const int parsed = tool_parse("bench handover", argc, argv, options, sizeof options / sizeof *options);
    uint64_t number = 0;
    char why[400] = "";
    if (parsed != TOOL_OK)
        return parsed;
    handover *h = calloc(1, sizeof *h);
    if (!h)
        return tool_fail("bench handover", "out of memory");
    h->strict = strict;
    h->rounds = quick ? 2 : 7;
    h->round_ms = quick ? 10 : 30;
    int result = TOOL_OK;
    if (rounds && !tool_number(rounds, 1, 1000, &number))
        result = tool_usage("bench handover", "--rounds \"%s\": must be a number from 1 to 1000", rounds);
    else if (rounds)
        h->rounds = (uint32_t)number;
    if (!result && budget && !tool_number(budget, 1, 10000, &number))
        result = tool_usage("bench handover", "--round-ms \"%s\": must be a number from 1 to 10000", budget);
    else if (budget)
        h->round_ms = (double)number;
    if (!result && payloads)
        result = tool_words("bench handover", "--payloads", payloads, words);
    for (const char *at = payloads; !result && at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char word[16];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, ","), at);
        h->wanted |= 1u << tool_word(word, words);
    }
    if (!payloads)
        h->wanted = ~0u;
    if (!result && json && !tool_can_write("--json", json, why, sizeof why))
        result = tool_fail("bench handover", "%s", why);
    if (!result && !bench_vk_open(&h->vk, why, sizeof why))
        result = tool_fail("bench handover", "%s", why);
    if (!result) {
        h->is_cpu = h->vk.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
        make_routes(h);
        make_payloads(h);
        result = run(h, json, no_waits ? 0 : quick ? 0.25 : 1.5);
    }
    bench_vk_close(&h->vk);
    free(h);
    return result;
}
