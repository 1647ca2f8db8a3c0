/* The executors on CUDA streams over a fake driver: order of copies, numbers, graphs that are kept, and for every n what
 * becomes of it when the n-th call fails. Nothing computes there; that is tests/kernels/test_cuda.c's part, on a GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/plugin/stream/rig.h"

int main(void)
{
    const test_cases *const parts[] = {
        &stream_submits_cases, &stream_kernels_cases, &stream_copies_cases, &stream_failures_cases,
    };

    return run_cases("tests", parts, sizeof parts / sizeof *parts, make_plan, NULL);
}
