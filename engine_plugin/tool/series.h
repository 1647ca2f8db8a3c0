/* Series of measurements, and reports of them as JSON.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_SERIES_H
#define TD_TOOL_SERIES_H

#include <jansson.h>

#include "engine_plugin/tool/tool.h"

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

/* The head of a report: what, when, on what. The caller adds the rest and saves it. */
json_t *bench_report(const char *bench, const char *device, const char *driver);
/* Writes and drops a report; a line on stderr and TOOL_FAILED where that fails. path NULL: only drops it. */
int bench_save(json_t *report, const char *path);

/* N(0, 1) and bits, from a state of the caller's. */
uint64_t bench_random(uint64_t *state);
double bench_normal(uint64_t *state);

void bench_sleep_ns(uint64_t ns);

#endif
