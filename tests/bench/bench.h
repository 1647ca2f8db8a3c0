/* The benches of tandem-bench, and what they share: targets.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_BENCH_H
#define TD_BENCH_H

#include "engine_plugin/tool/samples.h"
#include "engine_plugin/tool/series.h"

/* What main() is: `tandem-bench BENCH ...`, which `tandem bench BENCH ...` starts; for the paper's tables BENCH is accuracy, for
 * what `tandem eval` does eval. */
int bench_main(int argc, char **argv);

int bench_handover(int argc, char **argv);
int bench_attention(int argc, char **argv);
int bench_daemon(int argc, char **argv);
int bench_linear(int argc, char **argv);
int bench_npc(int argc, char **argv);
int bench_effect(int argc, char **argv);
int bench_accuracy(int argc, char **argv);
int bench_eval(int argc, char **argv);

/* Writes what figures.py draws, measured on the first head of `samples` or (NULL) on synthetic ones. */
int bench_figures(const char *path, const tool_samples *samples);

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

#endif
