/* Open Image Denoise, opened at run time where it is installed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_BENCH_OIDN_H
#define TD_BENCH_OIDN_H

#include "engine_plugin/tool/picture.h"
#include "engine_plugin/tool/series.h"

typedef enum bench_oidn_quality { BENCH_OIDN_FAST = 4, BENCH_OIDN_BALANCED = 5, BENCH_OIDN_HIGH = 6 } bench_oidn_quality;

typedef struct bench_oidn bench_oidn;

/* On the CPU or, `cuda`, on the first CUDA device, from the library at `path`, or from where libraries are; NULL with the reason. */
bench_oidn *bench_oidn_open(const char *path, bool cuda, char *why, size_t why_bytes);
void bench_oidn_close(bench_oidn **oidn);

/* The RT filter, HDR, on what is finite; albedo and normal may have no pixels. `prefilters`: those are cleaned first, and said to be
 * clean. `ms`: the time that filters take, without their making. False with the reason. */
bool bench_oidn_run(bench_oidn *oidn, const tool_picture *color, const tool_picture *albedo, const tool_picture *normal,
                    bench_oidn_quality quality, bool prefilters, tool_picture *out, double *ms, char *why, size_t why_bytes);

/* Adds the ms that each of so many frames takes, random ones with albedo and normal in the device's own memory, from the call until all
 * is through. False with the reason. */
bool bench_oidn_time(bench_oidn *oidn, uint32_t width, uint32_t height, bench_oidn_quality quality, uint32_t frames, bench_series *ms,
                     char *why, size_t why_bytes);

#endif
