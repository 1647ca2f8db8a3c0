/* A small job on the CPU's threads, for `tandem bench handover`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_BENCH_SMALL_H
#define TD_TOOL_BENCH_SMALL_H

#include "demo/tool_bench.h"

/* What an engine has of a small job on two cores: alone, idle in between, and with one of the cores kept busy by a thread of
 * its own; `seconds` for each. Prints it, and adds to the targets. *why says what failed, or is "". */
json_t *bench_small_job(bench_targets *targets, double seconds, char *why, size_t why_bytes);

#endif
