/* What got slower than in an earlier run of `tandem bench attention`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/bench/against.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "interop/base.h"

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

json_t *bench_against_read(const char *path, char *why, size_t why_bytes)
{
    json_error_t error;
    json_t *report = json_load_file(path, 0, &error);
    if (!report) {
        td_fail(why, why_bytes, TANDEM_ERROR_IO, "--against \"%s\": %s", path, error.text);
        return NULL;
    }
    if (strcmp(text_of(report, "bench"), "attention") || !json_is_array(json_object_get(report, "shapes"))) {
        td_fail(why, why_bytes, TANDEM_ERROR_IO, "--against \"%s\": not what `tandem bench attention --json` writes", path);
        json_decref(report);
        return NULL;
    }
    return report;
}

static bool is_same(const json_t *a, const json_t *b, const char *const *keys, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i])))
            return false;
    return true;
}

/* The one of `list` that has what `like` has at these keys; NULL if there is none. */
static const json_t *find(const json_t *list, const json_t *like, const char *const *keys, size_t count)
{
    size_t i;
    const json_t *it;
    json_array_foreach(list, i, it)
        if (is_same(it, like, keys, count))
            return it;
    return NULL;
}

/* Microseconds by a protocol: `one_call`, or what was sustained; NAN: not measured. */
static double median(const json_t *row, bool one_call)
{
    const json_t *protocol = one_call ? json_object_get(row, "one_call") : row;
    const json_t *us = json_object_get(json_object_get(protocol, "us"), "median");
    return json_is_number(us) && json_number_value(us) > 0 ? json_number_value(us) : NAN;
}

static int sm_mhz(const json_t *row, bool one_call)
{
    return (int)json_integer_value(json_object_get(one_call ? json_object_get(row, "one_call") : row, "sm_mhz"));
}

static long long number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static void print_slower(const json_t *shape, const json_t *row, const json_t *old, bool one_call)
{
    const double us = median(row, one_call), before = median(old, one_call);
    const int mhz = sm_mhz(row, one_call), old_mhz = sm_mhz(old, one_call);
    printf("  SLOWER b%lld h%-2lld d%-3lld n%-5lld%s %s %s, %s: %.2f us, was %.2f (%+.1f %%)", number(shape, "batch"),
           number(shape, "heads"), number(shape, "d"), number(shape, "n"),
           json_is_true(json_object_get(shape, "causal")) ? " causal" : "", text_of(row, "precision"), text_of(row, "what"),
           one_call ? "one call at a time" : "sustained", us, before, 100 * (us / before - 1));
    if (mhz && old_mhz)
        printf(", %d MHz, was %d", mhz, old_mhz);
    printf("\n");
}

bool bench_against_compare(const json_t *now, const json_t *before, double percent, bench_against *out, char *why, size_t why_bytes)
{
    static const char *const shape_keys[] = {"batch", "heads", "n", "d", "causal"}, *const row_keys[] = {"what", "precision"};
    size_t i, j;
    const json_t *shape, *row;
    *out = (bench_against){0};
    if (strcmp(text_of(now, "device"), text_of(before, "device"))) {
        td_fail(why, why_bytes, TANDEM_ERROR_ARG, "that was measured on \"%s\", this on \"%s\"", text_of(before, "device"),
                text_of(now, "device"));
        return false;
    }
    json_array_foreach(json_object_get(now, "shapes"), i, shape) {
        const json_t *old = find(json_object_get(before, "shapes"), shape, shape_keys, sizeof shape_keys / sizeof *shape_keys);
        json_array_foreach(json_object_get(shape, "rows"), j, row) {
            if (!strcmp(text_of(row, "what"), "cudnn"))
                continue;
            const json_t *old_row = find(json_object_get(old, "rows"), row, row_keys, sizeof row_keys / sizeof *row_keys);
            for (int one_call = 0; one_call < 2; one_call++) {
                const double ratio = median(row, one_call) / median(old_row, one_call);
                if (isnan(median(row, one_call)))
                    continue;
                out->missing += isnan(ratio);
                out->compared += !isnan(ratio);
                out->faster += ratio < 1 / (1 + percent / 100);
                if (ratio > 1 + percent / 100) {
                    out->slower++;
                    print_slower(shape, row, old_row, one_call);
                }
            }
        }
    }
    printf("against that: %u medians, %u more than %g %% slower, %u faster by as much; %u not in it\n", (unsigned)out->compared,
           (unsigned)out->slower, percent, (unsigned)out->faster, (unsigned)out->missing);
    return true;
}
