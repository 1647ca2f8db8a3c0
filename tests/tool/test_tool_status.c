/* The tool's exit status where what it measures goes wrong, which no machine does on demand: sessions that refuse every job,
 * memory that is not there, and a GPU (the fake one, which computes nothing) that does not add up as the twin does.
 *
 * test_tool_status daemon --client ...: it is tandem-bench, which starts itself so; ACCEPTS in the environment is how many
 * jobs of that client are not refused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/tool/tool.h"
#include "kernels/attention/attention.h"
#include "tandem/tandem.h"
#include "tests/bench/bench.h"
#include "tests/interop/fake_cuda.h"
#include "tests/interop/fake_image.h"
#include "tests/interop/faults.h"

static uint64_t accepts = UINT64_MAX; /* so many jobs; all others are refused */
tandem_status __real_tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket);
tandem_status __wrap_tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket);

tandem_status __wrap_tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket)
{
    if (!accepts)
        return TANDEM_ERROR_DEVICE;
    accepts--;
    return __real_tandem_submit(session, job, ticket);
}

/* Runs the tool; what it wrote to stderr is in `said`. */
static int run(char **argv, char said[2000])
{
    FILE *file = tmpfile();
    const int before = dup(STDERR_FILENO);
    int argc = 0, status;
    size_t length;

    assert_non_null(file);
    assert_true(before >= 0);
    while (argv[argc])
        argc++;
    dup2(fileno(file), STDERR_FILENO);
    status = strcmp(argv[1], "bench") ? tool_main(argc, argv) : bench_main(argc - 1, argv + 1);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(file);
    length = fread(said, 1, 1999, file);
    said[length] = 0;
    fclose(file);
    return status;
}

static void a_route_that_breaks_fails_the_bench(void **state)
{
    char *argv[] = {"tandem", "bench", "handover", "--payloads", "64B", "--rounds", "1", "--round-ms", "1", "--quick",
                    "--no-waiting", NULL};
    char said[2000];

    (void)state;
    fault_cuda(FAULT_NO_CUDA);
    assert_int_equal(run(argv, said), TOOL_OK);
    accepts = 0;
    assert_int_equal(run(argv, said), TOOL_FAILED);
    accepts = UINT64_MAX;
    assert_non_null(strstr(said, "routes broke"));
}

static void shapes_without_memory_fail_the_bench(void **state)
{
    const fault_plan no_memory = {.kinds = FAULT_LIBC, .call = "aligned_alloc", .n = 1, .sticky = true};
    char *argv[] = {"tandem", "bench", "attention", "--backend", "cpu", "--only", "small", "--n", "256", "--dim", "64",
                    "--precision", "f16", "--rounds", "1", "--run-ms", "0", NULL};
    char said[2000];

    (void)state;
    fault_arm(&no_memory);
    assert_int_equal(run(argv, said), TOOL_FAILED);
    fault_disarm();
    assert_non_null(strstr(said, "measurements failed"));
}

static void units_that_differ_fail_the_probe(void **state)
{
    static td_cubin_entry entries[] = {{.entry = "stamp", .registers = 16},
                                       {.entry = "probe_wgmma_e4m3", .registers = 32},
                                       {.entry = "probe_mma_e4m3", .registers = 32},
                                       {.entry = "probe_mma_f16", .registers = 32},
                                       {.entry = "probe_wgmma_e4m3_f16", .registers = 32}};
    static td_image image = {.entries = entries, .entry_count = sizeof entries / sizeof *entries};
    static const td_cubin cubin = {.sm = 90, .images = &image, .image_count = 1};
    char *argv[] = {"tandem", "probe", "fp22", "--backend", "cuda", "--tiles", "2", NULL};
    char said[2000];

    (void)state;
    fake_image(&image, false);
    fault_kernels(&cubin);
    fault_cuda(FAULT_FAKE_CUDA);
    fake_cuda_driver.device_count = 1;
    assert_int_equal(run(argv, said), TOOL_FAILED);
    assert_non_null(strstr(said, "differs from the twin's model"));
}

#define ACCEPTS "TANDEM_TEST_ACCEPTS"
static void a_client_that_fails_fails_the_bench(void **state)
{
    static const char *const accepted[] = {"0", "5"}, /* it begins with three */
        *const words[] = {" tokens could not begin: ", " tokens failed: "};
    char *argv[] = {"tandem", "bench", "daemon", "--quick", NULL};
    char said[2000];

    (void)state;
    fault_cuda(FAULT_NO_CUDA);
    for (int i = 0; i < 2; i++) {
        setenv(ACCEPTS, accepted[i], 1);
        assert_int_equal(run(argv, said), TOOL_FAILED);
        assert_non_null(strstr(said, "bench daemon: a client of "));
        assert_non_null(strstr(said, words[i]));
    }
    unsetenv(ACCEPTS);
}

/* On a fake GPU of compute capability 9.0, whose kernels compute nothing: those of the plans that have been added. */
enum { MOST_ENTRIES = 32 };
static td_cubin_entry entries[MOST_ENTRIES] = {{.entry = "stamp", .registers = 16}};
static td_image image = {.entries = entries};
static const td_cubin idle_kernels = {.sm = 90, .images = &image, .image_count = 1};

/* On streams and in command buffers, by each kind of attention's blocks. */
static void add_kernels(const td_operation *operation, const tandem_operands *op)
{
    for (int i = 0; i < 2 * (TD_PAIR_ROWS + 1); i++) {
        const td_attention_options options = {.rows = i / 2};
        td_target target = i % 2 ? td_target_for_stream(90) : td_target_for_sm(90);
        td_plan plan = {0};
        char why[256] = "";

        target.twin = true; /* there need not be any yet */
        target.multiprocessors = 4;
        target.attention = &options;
        if (operation->plan(op, &target, &plan, why, sizeof why) != TANDEM_OK)
            fail_msg("%s", why);
        for (uint32_t r = 0; r < plan.record_count; r++) {
            const char *entry = plan.records[r].kernel->entry;

            if (td_cubin_find(&idle_kernels, entry))
                continue;
            assert_true(image.entry_count < MOST_ENTRIES);
            entries[image.entry_count++] = (td_cubin_entry){.entry = entry, .registers = 32};
        }
        td_plan_free(&plan);
    }
}

static void use_idle_kernels(void)
{
    fake_image(&image, false);
    fault_kernels(&idle_kernels);
    fault_cuda(FAULT_FAKE_CUDA);
    fake_cuda_driver.device_count = 1;
}

static void a_kernel_that_fails_fails_bench_linear(void **state)
{
    static const uint32_t layers[][3] = {{4096, 4096, 4096}, {512, 1024, 1024}}; /* of --quick */
    char *argv[] = {"tandem", "bench", "linear", "--quick", "--no-cublaslt", "--rounds", "2", "--run-ms", "1", NULL};
    char said[2000];

    (void)state;
    image.entry_count = 1;
    for (int i = 0; i < 2; i++) {
        tandem_operands op = {0};

        memset(&op, 0, sizeof op);
        op.linear = (tandem_linear){.rows = layers[i][0], .outs = layers[i][1], .ins = layers[i][2]};
        op.linear.x = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, op.linear.rows, op.linear.ins);
        op.linear.w = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, op.linear.outs, op.linear.ins);
        op.linear.y = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, op.linear.rows, op.linear.outs);
        add_kernels(td_operation_find(TANDEM_OPERATION_LINEAR), &op);
    }
    use_idle_kernels();
    assert_int_equal(run(argv, said), TOOL_FAILED);
    assert_non_null(strstr(said, "bench linear: 4 measurements failed")); /* on streams and in command buffers, of two layers */
}

static void a_kernel_that_fails_fails_tune(void **state)
{
    const fault_plan illegal_address = {.kinds = FAULT_CUDA, .call = "cuGraphLaunch", .n = 4, .sticky = true, .cuda = 700};
    char *argv[] = {"tandem", "tune", "--quick", "--dim", "64", "--out", "tuning-of-nothing.json", NULL};
    char said[2000];

    (void)state;
    image.entry_count = 1;
    for (uint32_t precision = TANDEM_PRECISION_F16; precision <= TANDEM_PRECISION_8B; precision++) {
        const tandem_view view = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, 256, 64);
        tandem_operands op;

        memset(&op, 0, sizeof op);
        op.attention = (tandem_attention){.q = view, .k = view, .v = view, .o = view, .batch = 1, .heads = 1, .kv_heads = 1,
                                          .q_len = 256, .kv_len = 256, .head_dim = 64, .precision = precision};
        add_kernels(td_operation_find(TANDEM_OPERATION_ATTENTION), &op);
    }
    use_idle_kernels();
    fault_arm(&illegal_address);
    assert_int_equal(run(argv, said), TOOL_FAILED);
    fault_disarm();
    assert_non_null(strstr(said, "cuGraphLaunch"));
    assert_int_equal(access("tuning-of-nothing.json", F_OK), -1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_route_that_breaks_fails_the_bench),
        cmocka_unit_test(shapes_without_memory_fail_the_bench),
        cmocka_unit_test(units_that_differ_fail_the_probe),
        cmocka_unit_test(a_client_that_fails_fails_the_bench),
        cmocka_unit_test(a_kernel_that_fails_fails_bench_linear),
        cmocka_unit_test(a_kernel_that_fails_fails_tune),
    };

    if (argc > 1) {
        accepts = getenv(ACCEPTS) ? strtoull(getenv(ACCEPTS), NULL, 10) : UINT64_MAX;
        return bench_main(argc, argv);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
