/* How kernels are launched: features, tensor maps and shared memory that are there, and those that are not.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/plugin/stream/rig.h"

static void test_refusals(void **state)
{
    static td_stream_copy copies[TD_STREAM_COPIES + 1];
    const uint64_t views[TD_VIEW_COUNT] = {0};
    uint64_t sequence = 5;
    bool signalled = true;
    char why[256] = "";

    (void)state;
    open_stream(1);
    td_stream_submit submit = {.plan = &plan, .views = views, .copies_in = copies, .copy_in_count = TD_STREAM_COPIES + 1};
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "65 copies in"));
    submit = (td_stream_submit){.plan = &plan, .views = views, .slot = TD_STREAM_PENDING};
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "slot 32"));
    assert_false(signalled);
    assert_int_equal(sequence, 5);
    close_stream();
}

static unsigned overlapping, clusters, edges;

static void see_launch(const char *call, const void *info, uint64_t handle)
{
    const td_cu_launch *launch = info;

    (void)handle;
    edges += !strcmp(call, "cuGraphAddDependencies_v2");
    if (strcmp(call, "cuLaunchKernelEx"))
        return;
    assert_true(launch->attribute_count >= 1);
    for (unsigned i = 0; i < launch->attribute_count; i++) {
        const td_cu_launch_attribute *a = &launch->attributes[i];

        overlapping += a->id == TD_CU_LAUNCH_OVERLAPS && a->value.allowed == 1;
        clusters += a->id == TD_CU_LAUNCH_CLUSTER && a->value.cluster[0] == 16;
    }
}

/* Launch features: those that this kind and GPU have are used, the others refused. */
static void test_flags(void **state)
{
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};
    COPY(flagged);

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        td_stream_submit submit = {.plan = &flagged, .views = views, .scratch = 4096};
        uint64_t sequence;
        bool signalled;
        char why[256] = "";

        open_stream(kind);
        flagged.records[0].flags = TD_RECORD_CLUSTER; /* the fake refuses 16 blocks where that was not asked for */
        flagged.records[0].cluster = 16;
        flagged.records[0].grid[0] = 32;
        flagged.records[1].flags = flagged.records[2].flags = TD_RECORD_PDL;
        overlapping = clusters = edges = warnings = 0;
        fault_observe(see_launch);
        must(td_stream_wait(stream, submit_plan(&flagged, views, 0)), "wait");
        fault_observe(NULL);
        assert_int_equal(overlapping, kind ? 0 : 2);
        assert_int_equal(edges, kind ? 2 : 0);
        assert_int_equal(clusters, kind ? 0 : 1);
        assert_int_equal(warnings, 0);
        if (kind) { /* another size of them is another graph */
            const td_cu_counts before = td_cu_device_counts(device);

            flagged.records[0].cluster = 8;
            must(td_stream_wait(stream, submit_plan(&flagged, views, 0)), "wait");
            assert_true(td_cu_device_counts(device).allocations > before.allocations);
        }
        flagged.records[0].flags = 8;
        assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                         TANDEM_ERROR_UNSUPPORTED);
        assert_non_null(strstr(why, "flags 8"));
        close_stream();
    }
}

/* Tensor maps are encoded for the view's address of each submit; what the driver refuses is not launched. */
static void test_tensor_maps(void **state)
{
    const td_tensor_map map = {.channels = 72, .rows = 5, .stride_bytes = 160, .box_channels = 64, .box_rows = 128,
                               .dtype = TANDEM_DTYPE_BF16};
    uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384}, got[6];
    td_plan mapped __attribute__((cleanup(td_plan_free))) = {0};
    td_record *r = td_plan_add_record(&mapped, FAKE_CUDA_ONLY_BYTES);
    const td_record *like = &plan.records[0];
    char why[256] = "";

    (void)state;
    assert_non_null(r);
    r->kernel = like->kernel;
    memcpy(r->grid, like->grid, sizeof r->grid);
    memcpy(r->block, like->block, sizeof r->block);
    r->flags = TD_RECORD_TENSOR_MAPS;
    memcpy(r->params + 192, &map, sizeof map);
    assert_non_null(td_plan_add_reloc(&mapped, r, (td_reloc){.base = TD_BASE_CONTROL}));
    assert_non_null(td_plan_add_reloc(&mapped, r, (td_reloc){.offset = 192, .kind = TD_RELOC_TENSOR_MAP, .base = TD_BASE_VIEW,
                                                             .view = TD_VIEW_K, .addend = 32}));
    for (int kind = 0; kind < 2; kind++) {
        td_stream_submit submit = {.plan = &mapped, .views = views, .scratch = 4096};
        uint64_t sequence;
        bool signalled;

        open_stream(kind);
        for (int i = 0; i < 3; i++) {
            views[TD_VIEW_K] = 8192 + 64u * (unsigned)i;
            must(td_stream_wait(stream, submit_plan(&mapped, views, 0)), "wait");
            memcpy(got, fake_cuda_launches[(fake_cuda_launched - 1) % FAKE_CUDA_LAUNCHES].params + 192, sizeof got);
            assert_int_equal(got[0], views[TD_VIEW_K] + 32);
            assert_int_equal(got[1], 72);
            assert_int_equal(got[2], 5);
            assert_int_equal(got[3], 160);
            assert_int_equal(got[4], UINT64_C(128) << 32 | 64);
            assert_int_equal(got[5], TD_CU_MAP_BF16);
        }
        views[TD_VIEW_K] = 8200;
        fake_cuda_launched = 0;
        assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), TANDEM_ERROR_DEVICE);
        assert_non_null(strstr(why, "a tensor map of 5 x 72"));
        assert_int_equal(fake_cuda_launched, 0);
        close_stream();
    }
}

/* More shared memory than a kernel has anyway is asked for before it is launched, by either kind; the fake refuses else. */
static void test_shared_memory(void **state)
{
    static const int static_bytes[] = {0, 6 * 1024};
    const uint64_t views[TD_VIEW_COUNT] = {4096, 8192, 12288, 16384};

    (void)state;
    for (int i = 0; i < 4; i++) {
        td_stream_submit submit = {.views = views, .scratch = 4096};
        COPY(large);
        uint64_t sequence;
        bool signalled;
        char why[256] = "";

        fake_cuda_driver.static_shared_bytes = static_bytes[i / 2];
        open_stream(i % 2);
        warnings = 0;
        for (uint32_t bytes = 47 * 1024; bytes <= 226 * 1024 - (uint32_t)static_bytes[i / 2]; bytes += 30 * 512) {
            for (uint32_t r = 0; r < large.record_count; r++)
                large.records[r].shared_bytes = bytes;
            must(td_stream_wait(stream, submit_plan(&large, views, 0)), "wait");
        }
        assert_int_equal(warnings, 0);
        large.records[1].shared_bytes = 227 * 1024 + 1 - (uint32_t)static_bytes[i / 2];
        submit.plan = &large;
        assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                         TANDEM_ERROR_UNSUPPORTED);
        assert_non_null(strstr(why, "232449 bytes of shared memory"));
        close_stream();
    }
    fake_cuda_driver.static_shared_bytes = 0;
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_flags),
    cmocka_unit_test(test_tensor_maps),
    cmocka_unit_test(test_shared_memory),
};
const test_cases stream_kernels_cases = TEST_CASES(cases);
