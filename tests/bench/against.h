/* What got slower than in an earlier run of `tandem bench attention`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_BENCH_AGAINST_H
#define TD_BENCH_AGAINST_H

#include <jansson.h>

#include "engine_plugin/tool/tool.h"

/* Reads a report; the caller drops it. NULL, and the reason with the path in it, if it is none of that bench. */
json_t *bench_against_read(const char *path, char *why, size_t why_bytes);

typedef struct bench_against {
    uint32_t compared, slower, faster; /* medians: of a kernel at a shape by a protocol */
    uint32_t missing;                  /* medians of `now` that the earlier run has not */
} bench_against;

/* Prints a line for each median of `now` that is more than `percent` slower than in `before`. Times by somebody else's kernels, which
 * nobody here can make faster, are left out. False, and the reason, if the two were measured on different devices. */
bool bench_against_compare(const json_t *now, const json_t *before, double percent, bench_against *out, char *why, size_t why_bytes);

#endif
