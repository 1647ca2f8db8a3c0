/* cuDNN's fp16 attention, to compare with: opened at run time, optional. And CUDA events and graphs, for timing it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_BENCH_CUDNN_H
#define TD_BENCH_CUDNN_H

#include "interop/cu/cu.h"

typedef struct bench_cudnn bench_cudnn;

typedef struct bench_cudnn_shape {
    uint32_t batch, heads, q_len, kv_len, head_dim;
    bool causal; /* as cuDNN counts: from the top left corner, so q_len == kv_len */
    float scale;
} bench_cudnn_shape;

/* Device addresses of dense fp16 tensors [batch, heads, rows, head_dim]. */
typedef struct bench_cudnn_tensors {
    uint64_t q, k, v, o;
} bench_cudnn_tensors;

/* NULL, and the reason in `why`, where libcudnn.so.9 or libcuda.so.1 cannot be opened. The device outlives it. */
bench_cudnn *bench_cudnn_open(td_cu_device *device, char *why, size_t why_bytes);
void bench_cudnn_close(bench_cudnn *c);
uint32_t bench_cudnn_version(const bench_cudnn *c); /* as 91900 */

/* Makes the plan that cuDNN's own heuristics put first; the one before it is gone. */
bool bench_cudnn_prepare(bench_cudnn *c, const bench_cudnn_shape *shape, char *why, size_t why_bytes);
/* Records `calls` executions into one CUDA graph, on sets[0], sets[1], ... in turn; the graph before it is gone. */
bool bench_cudnn_record(bench_cudnn *c, const bench_cudnn_tensors *sets, uint32_t set_count, uint32_t calls, char *why,
                        size_t why_bytes);
/* Launches the graph; microseconds by CUDA events. */
bool bench_cudnn_run(bench_cudnn *c, double *us, char *why, size_t why_bytes);

#endif
