/* Heads to measure attention on, drawn or read from files, and how far results are from exact ones.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_SAMPLES_H
#define TD_TOOL_SAMPLES_H

#include "engine_plugin/tool/tool.h"
#include "kernels/attention/cpu/variants.h"

/* How synthetic Q, K, V are made, one head: (offset of the channel + token's norm * N(0, 1)), rounded to fp16.
 *   offsets of Q and K   sign * size * exp(spread * N(0, 1)), every channel its own: outlier channels are its tail, the
 *                        same for all tokens of the head, which is what smoothing relies on
 *   shared               part of log size that Q and K have in common
 *   outliers             so many channels, the same ones in Q and K, have offsets of q_outlier, k_outlier times a sign
 *   token's norm         exp(token_spread * N(0, 1))
 *   sink                 one key in 1024 lies so far along the mean of Q that its logits are that much higher
 *   V                    N(0, 1) times the channel's size, exp(v_spread * N(0, 1)); its offset is a sign times
 *                        [v_offset, v_offset + 1], or v_normal * N(0, 1)
 *   hard                 the family of the last layer, if there is more than one; NULL: this one */
typedef struct tool_family {
    const char *name;
    double q_offset, k_offset, spread, shared, q_outlier, k_outlier, token_spread, sink, v_offset, v_normal, v_spread;
    uint32_t outliers;
    const struct tool_family *hard;
} tool_family;

/* What the tables are measured on: named after what they are like. */
extern const tool_family tool_family_video, tool_family_long, tool_family_biased, tool_family_flat, tool_family_normal,
    tool_family_outlier;

typedef struct tool_sample {
    float *q, *k, *v;
    double *exact; /* [q_len][dim] */
    td_head head;
    uint32_t layer, index; /* file or synthetic layer; head within it */
    uint32_t head_of_file; /* query head; index counts batches, too */
    bool faint;            /* its mean |exact| is below a hundredth of its layer's: relative errors say nothing there */
} tool_sample;

typedef struct tool_samples {
    tool_sample *items;
    uint32_t count;
} tool_samples;

typedef struct tool_metrics {
    double cosine, l1, rmse;
} tool_metrics;

/* What metrics are made of, summed over elements: of a head, or of a whole layer as one vector. */
typedef struct tool_sums {
    double dot, mine, exact, difference, size, squares, count;
} tool_sums;

/* Adds `layers` * `heads` synthetic heads, or every head of a file. False, and the reason, if that fails. */
bool tool_samples_make(tool_samples *to, const tool_family *family, uint32_t layers, uint32_t heads, uint32_t q_len,
                       uint32_t kv_len, uint32_t dim, uint64_t seed, char *why, size_t why_bytes);
bool tool_samples_read(tool_samples *to, const char *path, uint32_t layer, bool causal, char *why, size_t why_bytes);
void tool_samples_free(tool_samples *samples);
/* Fills in `exact` of every sample that lacks it, and `faint` of all. */
bool tool_samples_exact(tool_samples *samples, uint32_t threads, char *why, size_t why_bytes);

tool_sums tool_sum(const float *o, const double *exact, size_t n);
void tool_sums_add(tool_sums *to, const tool_sums *more);
tool_metrics tool_metrics_of(const tool_sums *sums);
tool_metrics tool_measure(const float *o, const double *exact, size_t n);

/* One head through the plan that a session would make, on the CPU, or on the GPU that `cuda` opened. */
bool tool_run_mode(const td_head *head, uint32_t precision, uint32_t smooth, tool_cuda *cuda, float *o,
                   uint32_t threads, char *why, size_t why_bytes);

uint32_t tool_cores(void);

#endif
