/* The inline rung: CUDA kernels within Vulkan command buffers, on a GPU that has VK_NVX_binary_import; elsewhere on the
 * fake of tests/plugin/fake_nvx.h, where the kernels are their CPU twins.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * TANDEM_EXPECT_GPU=1: it must be the GPU. --bench measures gaps and CPU time instead, --bench-minilm [MODEL] the
 * encoder of all-MiniLM-L6-v2.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plugin/inline/rig.h"

static int open_all(void **state)
{
    (void)state;
    stream = new_stream();
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    td_stream_destroy(&stream, LIMIT_NS);
    return 0;
}

int main(int argc, char **argv)
{
    const char *file = argc > 2 ? argv[2] : NULL;
    const struct CMUnitTest measurements[] = {cmocka_unit_test(test_bench)},
                            network[] = {cmocka_unit_test_prestate(test_bench_minilm, (void *)file)};
    const test_cases *const parts[] = {
        &inline_plans_cases, &inline_barriers_cases, &inline_streams_cases, &inline_failures_cases,
        &inline_frames_cases, &inline_recorded_cases, &inline_sessions_cases, &inline_networks_cases,
        &inline_stamps_cases, &inline_example_cases,
    };
    const bool bench = argc > 1 && !strcmp(argv[1], "--bench"),
               bench_minilm = argc > 1 && !strcmp(argv[1], "--bench-minilm");
    const vku_options options = {.wrap = fake_nvx_wrap, .validation = !bench && !bench_minilm};
    td_cu_info info = {0};
    td_vk_desc desc;
    int failed;

    fake_nvx_learn();
    switch (vku_open(&gpu, &options)) {
    case VKU_OK: break;
    case VKU_NO_VULKAN: return expects_gpu() ? 1 : 77;
    default: return 1;
    }
    if (expects_gpu() && !F.real) {
        fprintf(stderr, "%s has no VK_NVX_binary_import, but a GPU is expected\n", gpu.name);
        return 1;
    }
    desc = vku_desc(&gpu);
    if (td_vk_open(&desc, NULL, &vk, why, sizeof why) != TANDEM_OK ||
        td_cu_device_query(td_vk_get_caps(vk)->device_uuid, &info, why, sizeof why) != TANDEM_OK) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    sm = info.sm;
    if (bench)
        failed = cmocka_run_group_tests(measurements, open_all, close_all);
    else if (bench_minilm)
        failed = cmocka_run_group_tests(network, open_all, close_all);
    else
        failed = run_cases("tests", parts, sizeof parts / sizeof *parts, open_all, close_all);
    td_vk_close(&vk);
    vku_close(&gpu); /* where the layer reports what was not destroyed */
    if (gpu.errors)
        fprintf(stderr, "%u errors of the validation layer\n", gpu.errors);
    return failed || gpu.errors;
}
