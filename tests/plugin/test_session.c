/* Sessions through the public API: on host memory, on Vulkan (lavapipe or a GPU), on CUDA where it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * TANDEM_EXPECT_GPU=1: a machine with a GPU; then the `timeline` rung must be there. --bench prints how soon the host
 * learns of what the device did, instead.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/plugin/session/rig.h"

int main(int argc, char **argv)
{
    struct rlimit files;

    if (argc > 1 && !strcmp(argv[1], "--bench"))
        return bench(argc > 2 ? argv[2] : NULL);
    const test_cases *const parts[] = {
        &session_library_cases, &session_refusals_cases, &session_results_cases,
        &session_jobs_cases, &session_destruction_cases, &session_memory_cases,
        &session_threads_cases, &session_networks_cases, &session_device_cases, &session_images_cases,
        &session_waits_cases,
        &session_retire_cases, &session_cuda_cases,
    };

    if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    return run_cases("tests", parts, sizeof parts / sizeof *parts, make_model, remove_model);
}
