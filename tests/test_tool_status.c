/* The tool's exit status where what it measures goes wrong, which no machine does on demand: sessions that refuse every job,
 * memory that is not there, and a GPU (the fake one, which computes nothing) that does not add up as the twin does.
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
#include <string.h>
#include <unistd.h>

#include "demo/tool.h"
#include "tandem/tandem.h"
#include "tests/fake_cuda.h"
#include "tests/fake_image.h"
#include "tests/faults.h"

int tool_main(int argc, char **argv);

static bool refuses;
tandem_status __real_tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket);
tandem_status __wrap_tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket);

tandem_status __wrap_tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket)
{
    return refuses ? TANDEM_ERROR_DEVICE : __real_tandem_submit(session, job, ticket);
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
    status = tool_main(argc, argv);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(file);
    length = fread(said, 1, 1999, file);
    said[length] = 0;
    fclose(file);
    return status;
}

static void a_lane_that_breaks_fails_the_bench(void **state)
{
    char *argv[] = {"tandem", "bench", "handover", "--payloads", "64B", "--rounds", "1", "--round-ms", "1", "--quick",
                    "--no-waiting", NULL};
    char said[2000];

    (void)state;
    fault_cuda(FAULT_NO_CUDA);
    assert_int_equal(run(argv, said), TOOL_OK);
    refuses = true;
    assert_int_equal(run(argv, said), TOOL_FAILED);
    refuses = false;
    assert_non_null(strstr(said, "lanes broke"));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lane_that_breaks_fails_the_bench),
        cmocka_unit_test(shapes_without_memory_fail_the_bench),
        cmocka_unit_test(units_that_differ_fail_the_probe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
