/* cuBLASLt's fp16 products, to compare with: opened at run time, optional, by benches alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_BENCH_CUBLAS_H
#define TD_BENCH_CUBLAS_H

#include "interop/cu/cu.h"

typedef struct bench_cublas bench_cublas;

/* Device addresses of dense fp16 matrices: y [rows][outs] = x [rows][ins] w^T, w [outs][ins]. */
typedef struct bench_cublas_call {
    uint64_t x, w, y;
} bench_cublas_call;

/* NULL, and the reason in `why`, where libcublasLt.so.13 (or .12) or libcuda.so.1 cannot be opened. The device outlives it. */
bench_cublas *bench_cublas_open(td_cu_device *device, char *why, size_t why_bytes);
void bench_cublas_close(bench_cublas *c);
uint32_t bench_cublas_version(const bench_cublas *c);

/* Records the calls into CUDA graphs, one for each of the algorithms that the library's heuristics name, and keeps the fastest.
 * The graph before it is gone. */
bool bench_cublas_record(bench_cublas *c, uint32_t rows, uint32_t ins, uint32_t outs, const bench_cublas_call *calls, uint32_t count,
                         char *why, size_t why_bytes);
/* Launches the graph; microseconds by CUDA events. */
bool bench_cublas_run(bench_cublas *c, double *us, char *why, size_t why_bytes);
/* The same for `bytes` that are copied on the device. */
bool bench_cublas_copy(bench_cublas *c, uint64_t to, uint64_t from, uint64_t bytes, double *us, char *why, size_t why_bytes);

#endif
