/* What the parts of `tandem bench` share: series of measurements, targets, the GPU's clocks, JSON.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_BENCH_H
#define TD_TOOL_BENCH_H

#include <jansson.h>

#include "engine_plugin/tool/tool.h"

int bench_handover(int argc, char **argv);
int bench_attention(int argc, char **argv);
int bench_daemon(int argc, char **argv);
int bench_linear(int argc, char **argv);

/* Numbers of one quantity, in the order in which they were measured. Zeroed is empty. */
typedef struct bench_series {
    double *values;
    size_t count, capacity;
} bench_series;
void bench_add(bench_series *s, double value); /* left out where memory is short */
void bench_free(bench_series *s);
/* By nearest rank, p from 0 to 1; NAN when empty. */
double bench_at(const bench_series *s, double p);
static inline double bench_median(const bench_series *s)
{
    return bench_at(s, 0.5);
}
/* {median, min, max, count}, or null when empty. */
json_t *bench_json(const bench_series *s);
/* A number as JSON has it: no NaN, no infinity. */
json_t *bench_number(double x);

/* A target: met, missed, or not measured here (value NAN). */
typedef struct bench_target {
    char text[160];
    double value, limit;
    bool at_least; /* else at most */
} bench_target;
enum { BENCH_TARGETS = 640 };
typedef struct bench_targets {
    bench_target items[BENCH_TARGETS];
    uint32_t count;
} bench_targets;
void bench_expect(bench_targets *targets, double value, bool at_least, double limit, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* One line for each that was measured, and one that counts them. Returns how many were missed. */
uint32_t bench_print_targets(const bench_targets *targets);
/* The exit status of a bench in which nothing broke: a line on stderr and TOOL_FAILED where nothing was measured or, if
 * `strict`, where targets were missed. */
int bench_status(const char *bench, uint64_t measured, uint32_t missed, bool strict);
json_t *bench_targets_json(const bench_targets *targets);

/* NVML, where there is one: clocks and power of the GPU with this UUID (16 bytes). All calls accept NULL. */
typedef struct bench_nvml bench_nvml;
typedef struct bench_power {
    uint32_t sm_mhz, memory_mhz, milliwatts; /* 0: not known */
} bench_power;
bench_nvml *bench_nvml_open(const uint8_t *uuid);
void bench_nvml_close(bench_nvml *nvml);
bench_power bench_nvml_read(bench_nvml *nvml);
const char *bench_nvml_driver(const bench_nvml *nvml); /* "" where it is not known */

/* The head of a report: what, when, on what. The caller adds the rest and saves it. */
json_t *bench_report(const char *bench, const char *device, const char *driver);
/* Writes and drops a report; a line on stderr and TOOL_FAILED where that fails. path NULL: only drops it. */
int bench_save(json_t *report, const char *path);

/* Microseconds of our own kernels, for `tandem tune`, in the order of kernels/attention/tuning.h; 0: not measured. */
typedef struct bench_times {
    double kernel[TD_TUNING_COSTS], whole[TD_TUNING_COSTS]; /* whole: with the prologue; 0 if there is none */
} bench_times;
typedef struct bench_tune_shape {
    uint32_t batch, heads, kv_heads, queries, keys, head_dim;
    bool causal, kernels_only;
} bench_tune_shape;
typedef struct bench_tune bench_tune;
/* On the first CUDA device, or the CPU, a precision having it for run_us at a time. NULL, and the reason, if there is none
 * that can be used. */
bench_tune *bench_tune_open(bool cpu, double run_us, char *why, size_t why_bytes);
/* Its name, compute capability and multiprocessors. */
void bench_tune_device(const bench_tune *t, td_tuning_table *out);
/* tandem_precision that AUTO is for the shape, by a table or by what there is (NULL). */
uint32_t bench_tune_auto(const bench_tune *t, const bench_tune_shape *shape, const td_tuning_table *table);
/* precisions: "8b,f16" or with "4b". */
bool bench_tune_run(bench_tune *t, const bench_tune_shape *shape, const char *precisions, bench_times *out, char *why,
                    size_t why_bytes);
void bench_tune_close(bench_tune *t);

/* N(0, 1) and bits, from a state of the caller's. */
uint64_t bench_random(uint64_t *state);
double bench_normal(uint64_t *state);

void bench_sleep_ns(uint64_t ns);

#endif
