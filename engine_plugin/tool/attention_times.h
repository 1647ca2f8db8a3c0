/* How long attention takes, on the first CUDA device or on the CPU: for `tandem tune` and, beside other libraries' kernels,
 * for `tandem bench attention`.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A shape's contenders are measured in turn, round after round: A B C A B C, by two protocols, as their ratios differ:
 * SUSTAINED: each has the GPU for `run_us` at a time, call after call, until the clock is what its own power allows.
 * ONE_CALL: each has it for a single call at a time, so all have one clock, which is what none of them alone would have.
 * Outputs are poisoned before a run and checked at the end. Where a shape is small, several calls are one submit, on
 * tensors that do not fit into the L2 together.
 */
#ifndef TD_TOOL_ATTENTION_TIMES_H
#define TD_TOOL_ATTENTION_TIMES_H

#include "engine_plugin/exec/exec.h"
#include "engine_plugin/tool/nvml.h"
#include "engine_plugin/tool/series.h"

enum { TIMES_ROWS = 9, TIMES_SETS = 64, TIMES_COPIES = 20 };

/* INLINE: 8b's kernel for command buffers, on the same codes; sm_90, where it is another one. PEER: somebody else's. */
typedef enum times_kind { TIMES_KERNEL, TIMES_INLINE, TIMES_END_TO_END, TIMES_PEER } times_kind;

typedef enum times_protocol { TIMES_SUSTAINED, TIMES_ONE_CALL, TIMES_PROTOCOLS } times_protocol;

typedef struct times_shape {
    uint32_t batch, heads, n, dim;
    uint32_t kv_heads, queries; /* heads and n but for `tandem tune` */
    bool causal, small, kernels_only; /* kernels_only: what is end to end only fills the scratch */
    bool smooth_v;                    /* V besides what is smoothed by itself; 8B and 4B */
} times_shape;

/* One line of a shape's table. */
typedef struct times_row {
    times_kind kind;
    uint32_t precision, used; /* used: what AUTO took */
    char why[200]; /* not measured, because; empty: measured */
    bench_series us[TIMES_PROTOCOLS];
    double error; /* relative L1 of the checked rows */
    const td_plan *plan; /* `copies` calls */
    bool (*peer)(void *user, double *us, char *why, size_t why_bytes); /* `copies` calls of PEER's, on all sets in turn */
    void *user;
    uint32_t copies, slot; /* slot: of the stream, so that each plan keeps a graph of its own */
    uint32_t runs;         /* of the plan, so far */
    uint64_t scratch, scratch_bytes; /* of set 0; from one set to the next */
    bench_power power[TIMES_PROTOCOLS]; /* at the end of its last run */
    double joules, energy_calls;        /* of SUSTAINED's turns that NVML's counter was read around, and the calls in them */
} times_row;

/* Zeroed but for what is asked for is closed. */
typedef struct times {
    bool cpu;
    bool tunes;      /* for `tandem tune`: outputs are not compared with float64, a turn ends once its times have settled */
    bool inline_too; /* INLINE has rows */
    uint32_t rounds;
    double run_us; /* that a contender has the GPU in a round, small shapes a tenth; at least one call */
    td_cu_device *device;
    td_stream *stream;
    td_thread_pool *pool; /* of a CPU */
    const char *executor;
    bench_nvml *nvml;
    td_target target;
    uint64_t l2_bytes;
    double turns_us; /* of all turns so far, if `tunes` */
    void *cuda;
    int (*memset_d32)(uint64_t at, unsigned value, size_t count);
    int (*copy)(uint64_t to, uint64_t from, size_t bytes);
    int (*synchronize)(void);
    uint16_t *block; /* N(0, 1) */
    td_cu_mem device_block, tensors, scratch;
    void *host_tensors, *host_scratch;
} times;


/* On the first CUDA device, or with `cpu` on the CPU. False, and the reason, if there is none that can be used. */
bool times_open(times *t, char *why, size_t why_bytes);
void times_close(times *t); /* accepts one whose open failed */
/* The rows of a shape: kernel and end to end of each of `precisions` ("8b,f16"). Returns how many; 0, and the reason, if
 * there is no memory for them. *sets: of Q, K, V and O that take turns. A peer's row may follow. The device is entered. */
uint32_t times_make_rows(times *t, const times_shape *s, const char *precisions, times_row *rows, uint32_t *sets,
                         char *why, size_t why_bytes);
/* Address of tensor `i` (Q, K, V, O) of a set. */
uint64_t times_tensor(const times *t, const times_shape *s, uint32_t set, uint32_t i);
void times_measure(times *t, const times_shape *s, times_row *rows, uint32_t count, uint32_t sets, char *why,
                   size_t why_bytes);
tandem_attention times_op(const times_shape *s, uint32_t precision);
double times_joules(const times_row *it); /* of a call, SUSTAINED; NAN: not known */
double times_median(const times_row *it, times_protocol p); /* NAN: not measured, or NULL */
/* Drops what rows have measured, and their plans. */
void times_free_rows(times_row *rows, uint32_t count);

#endif
