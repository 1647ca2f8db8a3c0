/* A small job on the CPU's threads, for `tandem bench handover`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_BENCH_SMALL_H
#define TD_BENCH_SMALL_H

#include <sched.h>

#include "tests/bench/bench.h"

/* Two processors of `of` that are no threads of one core, which share its units, as files below `folder` say
 * (/sys/devices/system/cpu); those that it does not name are cores of their own. False if there are none. Needs _GNU_SOURCE. */
bool bench_two_cores(const cpu_set_t *of, const char *folder, cpu_set_t *two);

/* What an engine has of a small job on two cores: alone, idle in between, and with one of the cores kept busy by a thread of
 * its own; `seconds` for each. Prints it, and adds to the targets. *why says what failed, or is "". */
json_t *bench_small_job(bench_targets *targets, double seconds, char *why, size_t why_bytes);

#endif
