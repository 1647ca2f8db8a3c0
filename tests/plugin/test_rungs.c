/* The rungs below `timeline`, each forced and each as a device comes to it that lacks something: Vulkan frames with new
 * data each time, several in flight, against the oracle. On lavapipe the CPU computes, on a GPU CUDA.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * TANDEM_EXPECT_GPU=1: a machine with a GPU, where the rungs with CUDA must be there.
 */
#include "tests/plugin/rungs/rig.h"

int main(void)
{
    const test_cases *const parts[] = {
        &rungs_frames_cases, &rungs_mems_cases, &rungs_sessions_cases,
    };

    return run_cases("tests", parts, sizeof parts / sizeof *parts, NULL, NULL);
}
