/* Series of measurements, and reports of them as JSON.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/series.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void bench_add(bench_series *s, double value)
{
    if (s->count == s->capacity) {
        const size_t capacity = s->capacity ? 2 * s->capacity : 64;
        double *values = realloc(s->values, capacity * sizeof *values);
        if (!values)
            return;
        s->values = values;
        s->capacity = capacity;
    }
    s->values[s->count++] = value;
}

void bench_free(bench_series *s)
{
    free(s->values);
    *s = (bench_series){0};
}

static int rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_at(const bench_series *s, double p)
{
    double *sorted = s->count ? malloc(s->count * sizeof *sorted) : NULL;
    if (!sorted)
        return NAN;
    memcpy(sorted, s->values, s->count * sizeof *sorted);
    qsort(sorted, s->count, sizeof *sorted, rising);
    const double rank = ceil(p * (double)s->count);
    const double value = sorted[rank < 1 ? 0 : (size_t)rank - 1];
    free(sorted);
    return value;
}

json_t *bench_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *bench_json(const bench_series *s)
{
    if (!s->count)
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:I}", "median", bench_number(bench_median(s)), "min",
                     bench_number(bench_at(s, 0)), "max", bench_number(bench_at(s, 1)), "p99",
                     bench_number(bench_at(s, 0.99)), "count", (json_int_t)s->count);
}

json_t *bench_report(const char *bench, const char *device, const char *driver)
{
    char date[32];
    const time_t now = time(NULL);
    struct tm parts;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    return json_pack("{s:s, s:s, s:s, s:s}", "bench", bench, "device", device, "driver", driver, "date", date);
}

int bench_save(json_t *report, const char *path)
{
    const bool ok = report && (!path || json_dump_file(report, path, JSON_INDENT(1) | JSON_REAL_PRECISION(7)) == 0);
    json_decref(report);
    return ok ? TOOL_OK : tool_fail("bench", "--json \"%s\" could not be written", path ? path : "");
}

uint64_t bench_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double bench_normal(uint64_t *state)
{
    const double a = ((double)(bench_random(state) >> 11) + 0.5) * 0x1p-53;
    const double b = ((double)(bench_random(state) >> 11) + 0.5) * 0x1p-53;
    return sqrt(-2 * log(a)) * cos(6.283185307179586 * b);
}

void bench_sleep_ns(uint64_t ns)
{
    struct timespec rest = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (nanosleep(&rest, &rest)) {
    }
}
