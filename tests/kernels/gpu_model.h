/* A GPU like the H200 as tests know it: who computes which tile when is worked out block by block from what a plan says, as
 * the kernels' own schedules have it, and what a tile takes fits what was measured there.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * It judges the estimates of kernels/attention/tuning.c and shares nothing with them but the plans. Its numbers are the least squares
 * of the logarithms over some 1460 times of the table that is shipped for the H200 (kernels and prologues, up to 128 heads of
 * 32768 keys) and the kernels of tests/measured/h200-attention-whole.json; test_tuning says how far it is from both. What
 * nobody has measured: tiles that see no keys, which are taken to last as long as their Q and O take to come and go.
 */
#ifndef TD_TESTS_GPU_MODEL_H
#define TD_TESTS_GPU_MODEL_H

#include "kernels/attention/attention.h"
#include "kernels/target.h"

typedef struct gpu_model {
    uint32_t multiprocessors; /* 0: an H200's */
    uint32_t planned_for;     /* so many, which plans believe there are; 0: as there are */
    bool smooth;              /* no waves: work is shared out evenly */
    double noise;             /* of each kernel, up to so much either way */
} gpu_model;

/* Microseconds of a precision's attention kernel on fp16 tensors, and of 8B's prologue. */
double gpu_model_kernel_us(const gpu_model *gpu, const tandem_attention *op, bool coded);
double gpu_model_prologue_us(const tandem_attention *op);

#endif
