/* The CUDA kernels and their stream against the CPU twin, on a GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of older architectures run, too, where the build has their PTX: the driver compiles it.
 * test_cuda [--quick | --bench | --each [LANE/LANES | NAME] | --cases]; exits 77 where there is no CUDA device, unless TANDEM_EXPECT_GPU is 1.
 * What needs Vulkan too is skipped, or then fails likewise, where there is none.
 * --quick runs few and small cases, --bench prints the time of each kernel instead.
 * TANDEM_TEST_FILTER: a pattern of the tests that run.
 * --each runs each kernel of this GPU once or twice (for compute-sanitizer), or every LANES-th of these cases, from number
 * LANE on, or those of the kernels whose names begin with NAME. --cases needs no GPU: that --each leaves no kernel out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cases.h"
#include "tests/kernels/cuda/rig.h"

static void print_log(void *user, int level, const char *text)
{
    (void)user;
    fprintf(stderr, "log %d: %s\n", level, text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest bench[] = {cmocka_unit_test(test_bench_enqueue), cmocka_unit_test(test_bench_wait),
                                       cmocka_unit_test(test_bench_copies), cmocka_unit_test(test_bench)};
    const struct CMUnitTest kernel_by_kernel[] = {cmocka_unit_test(test_each)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_head_dims),
        cmocka_unit_test(test_direct),
        cmocka_unit_test(test_inline_wgmma),
        cmocka_unit_test(test_split_wgmma),
        cmocka_unit_test(test_walk_wgmma),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_causal_and_groups),
        cmocka_unit_test(test_many_heads),
        cmocka_unit_test(test_prepare),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_types_and_layouts),
        cmocka_unit_test(test_smoothing),
        cmocka_unit_test(test_granularities),
        cmocka_unit_test(test_commit),
        cmocka_unit_test(test_odd_values),
        cmocka_unit_test(test_wide_blocks),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_open_and_close),
        cmocka_unit_test(test_bench_small),
        cmocka_unit_test(test_vulkan_leaks_nothing),
    };
    /* Of each kind of stream. */
    const struct CMUnitTest streams[] = {
        cmocka_unit_test(test_frame_counts), cmocka_unit_test(test_refusals), cmocka_unit_test(test_vulkan_frames),
        cmocka_unit_test(test_replay),       cmocka_unit_test(test_cancel),   cmocka_unit_test(test_copies),
        cmocka_unit_test(test_launch_features),
    };
    /* Starts another process, which sanitizers do not follow. */
    const struct CMUnitTest peers[] = {cmocka_unit_test(test_peer_dies)};
    const struct CMUnitTest emulated[] = {
        cmocka_unit_test(test_head_dims),         cmocka_unit_test(test_causal_and_groups),
        cmocka_unit_test(test_smoothing),         cmocka_unit_test(test_granularities),
        cmocka_unit_test(test_odd_values),        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_int4_equals_int8),
    };
    /* leaves a stream behind: not for leak checks */
    const struct CMUnitTest stuck[] = {cmocka_unit_test(test_stuck_stream)};
    const bool times = argc > 1 && !strcmp(argv[1], "--bench");
    const td_log log = {.fn = print_log};
    char why[512] = "";
    tandem_status status;
    int failures;

    if (argc > 2 && !strcmp(argv[1], "--peer"))
        return be_peer(atoi(argv[2]));
    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    quick = argc > 1 && !strcmp(argv[1], "--quick");
    const bool each_only = argc > 1 && !strcmp(argv[1], "--each"), cases_only = argc > 1 && !strcmp(argv[1], "--cases");
    if ((each_only || cases_only) && !te_arguments(&kernel_cases, argc, argv))
        return 2;
    if (cases_only)
        return te_check_cases(&kernel_cases, TE_CUDA, each_kernel);
    const bool expected = expects_gpu(); /* what is missing is a failure */
    status = td_cu_device_open(NULL, &log, &device, why, sizeof why);
    if (status) {
        fprintf(stderr, "no GPU: %s\n", why);
        return expected ? 1 : 77;
    }
    status = td_stream_create(device, &log, &stream, why, sizeof why);
    if (status) {
        fprintf(stderr, "no stream: %s\n", why);
        td_cu_device_close(&device);
        return 1;
    }
    print_message("%s, compute capability %u, driver %u, clock offset %lld ns\n", td_cu_device_info(device)->name,
                  td_cu_device_info(device)->sm, td_cu_device_info(device)->driver_version,
                  (long long)td_stream_clock_offset_ns(stream));
    if (each_only) {
        failures = cmocka_run_group_tests(kernel_by_kernel, NULL, NULL);
        td_stream_destroy(&stream, 1000000000u);
        td_cu_device_close(&device);
        return failures != 0;
    }
    const bool vulkan = open_vulkan();
    failures = times ? cmocka_run_group_tests(bench, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
    own_stream = stream;
    for (int kind = 0; kind < 2 && !times; kind++) {
        graphs = kind;
        /* a new one, whose clock offset is: clocks drift by a microsecond a second */
        status = (graphs ? td_stream_create_graph : td_stream_create)(device, &log, &stream, why, sizeof why);
        if (status) {
            fprintf(stderr, "no stream %s: %s\n", graphs ? "of graphs" : "of launches", why);
            failures++;
            break;
        }
        failures += cmocka_run_group_tests_name(graphs ? "graphs" : "launches", streams, NULL, NULL);
        if (!quick)
            failures += cmocka_run_group_tests_name(graphs ? "graphs" : "launches", peers, NULL, NULL);
        td_stream_destroy(&stream, 1000000000u);
    }
    graphs = false;
    stream = own_stream;
    uint32_t images = 0;
    const td_cubin *table = td_cubins(&images), *own = td_cubin_for_sm(td_cu_device_info(device)->sm, why, sizeof why);
    for (uint32_t i = 0; i < images && !times && !quick; i++) {
        if (!table[i].ptx || table[i].sm > td_cu_device_info(device)->sm || (table + i == own && own->sm >= 90))
            continue;
        image = &table[i];
        print_message("kernels of compute_%u, compiled by the driver\n", image->sm);
        status = td_stream_create_image(device, image, &log, &stream, why, sizeof why);
        if (status) {
            fprintf(stderr, "compute_%u: %s\n", image->sm, why);
            failures++;
        } else {
            failures += cmocka_run_group_tests_name("older kernels", emulated, NULL, NULL);
            td_stream_destroy(&stream, 1000000000u);
        }
    }
    image = NULL;
    stream = own_stream;
    const uint64_t held = td_cu_device_allocated_bytes(device);
    uint64_t left = 0; /* the streams that are given up keep their cancel words */
    for (int kind = 0; kind < 2 && !times && !quick; kind++) {
        graphs = kind;
        failures += cmocka_run_group_tests(stuck, NULL, NULL);
        failures += kind && td_cu_device_allocated_bytes(device) - held != 2 * left;
        left = td_cu_device_allocated_bytes(device) - held;
    }
    if (!times && !vulkan && expected)
        failures++;
    close_vulkan();
    td_stream_destroy(&stream, 1000000000u);
    if (td_cu_device_allocated_bytes(device) != left || left > 4096) {
        fprintf(stderr, "%llu bytes of device memory are left, not %llu\n",
                (unsigned long long)td_cu_device_allocated_bytes(device), (unsigned long long)left);
        failures++;
    }
    td_cu_device_close(&device);
    return failures != 0;
}
