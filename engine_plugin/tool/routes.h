/* Ways to have a payload transformed between two pieces of Vulkan work, for `tandem bench handover`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_ROUTES_H
#define TD_TOOL_ROUTES_H

#include "engine_plugin/exec/exec.h"
#include "engine_plugin/tool/series.h"
#include "engine_plugin/tool/vk.h"

typedef enum payload_kind { PAYLOAD_EMPTY, PAYLOAD_GATHER, PAYLOAD_ATTENTION } payload_kind;

typedef struct payload {
    const char *name, *job; /* job: the shape, for people */
    payload_kind kind;
    uint64_t bytes;              /* that the job reads as Q, and writes as O */
    uint64_t in_bytes, out_bytes;
    tandem_attention op;         /* views without mems; Q, K, V one after the other in one mem, O in another */
    struct td_bench_push push;   /* but the frame */
    uint32_t in_groups, out_groups, checked_rows;
} payload;

/* `text` gets the shape, which p->job then points to. The job's rows are 32 f16. */
enum { BENCH_ROW_BYTES = 64 };
void payload_make(payload *p, char text[160], const char *name, payload_kind kind, uint64_t bytes, uint32_t batch,
                  uint32_t heads, uint32_t kv_heads, uint32_t kv_len, uint32_t precision, float scale);

/* Dense rows of that kind. */
tandem_view payload_view(uint64_t offset, uint32_t rows, uint32_t heads);

typedef enum route_kind {
    ROUTE_VULKAN,   /* floor: the transform as a Vulkan dispatch, one submit a frame */
    ROUTE_CHAIN,    /* floor: the same in three submits, chained by two timelines */
    ROUTE_CUDA,     /* floor: the job's plan on a CUDA stream, alone */
    ROUTE_PROBE,    /* floor: the plan on a CUDA stream between two Vulkan semaphores, no session */
    ROUTE_RECORDED, /* the inline rung: tandem_record(), one submit a frame */
    ROUTE_SUBMITTED /* any rung: tandem_submit() between two submits */
} route_kind;

enum { ROUTE_SLOTS = 3 };

typedef struct route_slot {
    bench_slot gpu;
    bench_buffer in, out; /* ROUTE_VULKAN, ROUTE_CHAIN */
    tandem_mem mem_in, mem_out;
    td_vk_mem vk_in, vk_out; /* ROUTE_PROBE */
    td_cu_mem cu_in, cu_out, scratch;
    bool consumed;
    uint32_t frame;
    uint64_t signal_value, sequence, begin_ns, cpu_ns;
    tandem_ticket ticket;
} route_slot;

typedef struct route {
    const char *name;
    route_kind kind;
    uint32_t rung;           /* with a socket, 0: what comes */
    const char *socket;      /* NULL: in this process; else tandemd's */
    uint32_t job_class;      /* tandem_class */
    bool job_first;          /* the job is handed over before its producer is submitted */
    char why[320]; /* not measured, because; empty: it works */
    tandem_session *session;
    tandem_info info;
    tandem_timeline engine_timeline, session_timeline;
    VkSemaphore engine, done;
    uint64_t engine_value, done_value;
    /* Without a session. ROUTE_CUDA runs on the mems of `probe`. */
    struct route *probe;
    td_cu_device *device;
    td_stream *stream;
    td_cu_timeline cu_engine, cu_done;
    const td_plan *plan;
    const payload *payload;
    route_slot slots[ROUTE_SLOTS];
    bool has_slots;
    uint32_t frame;
    /* Of the payload at hand: microseconds. */
    bench_series gap_in, gap_out, round_trip, in_flight, cpu, process_cpu, job;
    bench_series between; /* from the producer's end to the consumer's begin, with no timestamps in between */
    uint64_t frames, wrong;
    tandem_ticket last; /* of the last job that has ended */
} route;
void route_free_series(route *l);

/* Makes what a route needs on any payload; why[] says what it lacks. */
void route_open(route *l, bench_vk *v);
void route_close(route *l, bench_vk *v);
/* Buffers for a payload; the series begin empty. */
void route_prepare(route *l, bench_vk *v, const payload *p);
void route_unprepare(route *l, bench_vk *v);
/* One frame, waited for: its series get an entry each, unless it is the first one. */
bool route_single(route *l, bench_vk *v, bool counted);
/* `frames` frames with three in flight. */
bool route_pipelined(route *l, bench_vk *v, uint32_t frames);

/* Jobs alone, on the data of the last ROUTE_SLOTS single frames, so many of them in flight as long as more() says so.
 * Only for ROUTE_SUBMITTED. */
bool route_jobs(route *l, uint32_t in_flight, bool (*more)(void *user), void *user);
/* All routes on a payload, in turn: in each round about round_ms of single frames, then of frames in flight. Then their
 * series are those of this payload; a route that fails says why. */
void routes_measure(route *routes, uint32_t count, bench_vk *v, const payload *p, uint32_t rounds, double round_ms);
/* From the submission of the last job that has ended to its begin; NAN: not known. */
double route_waited_us(const route *l);

/* Latency with which the host learns of a point, 240 points a second, after the GPU's end: by tandem_point_wait(), or
 * by tandem_point_fd() and poll(). Microseconds; `core`: CPU time of the process without that of tandem_submit(), by
 * wall time. */
bool route_waiting(route *l, bench_vk *v, bool by_fd, double seconds, bench_series *us, double *core);

uint64_t bench_thread_cpu_ns(void);
uint64_t bench_process_cpu_ns(void);

#endif
