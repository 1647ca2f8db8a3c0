/* The known pitfalls of sharing between Vulkan and CUDA, each by its number: a test named pitfall_NN, or a reason in
 * tests/plugin/pitfalls/untested.txt. Every number from 1 to 34 is in one of the two, once.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * TANDEM_EXPECT_GPU=1: on the GPU with its own drivers. Else on lavapipe, whose timelines seem exportable to a fake
 * CUDA driver: there it is what libtandem asks for that is looked at, and not what a driver makes of it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plugin/pitfalls/rig.h"

static FILE *open_reasons(void)
{
    const char *source = getenv("TANDEM_SOURCE"), *slash = strrchr(__FILE__, '/');
    char path[1024];

    if (source)
        snprintf(path, sizeof path, "%s/tests/plugin/pitfalls/untested.txt", source);
    else
        snprintf(path, sizeof path, "%.*s/pitfalls/untested.txt", slash ? (int)(slash - __FILE__) : 1, slash ? __FILE__ : ".");
    return fopen(path, "r");
}

static void all_are_counted(void **state)
{
    static const char *const tested[] = {
#define X(n) #n,
        PITFALLS(X)
#undef X
    };
    unsigned times[LAST_PITFALL + 1] = {0};
    FILE *reasons = open_reasons();
    char line[512];

    (void)state;
    assert_non_null(reasons);
    for (size_t i = 0; i < sizeof tested / sizeof *tested; i++) {
        const long n = strtol(tested[i], NULL, 10);

        assert_in_range(n, 1, LAST_PITFALL);
        times[n]++;
    }
    while (fgets(line, sizeof line, reasons)) {
        char *rest;
        long n;

        if (line[0] == '#' || line[0] == '\n')
            continue;
        n = strtol(line, &rest, 10);
        if (rest == line || n < 1 || n > LAST_PITFALL || strlen(rest) < 10)
            fail_msg("pitfalls.txt: no number and reason: %s", line);
        times[n]++;
    }
    fclose(reasons);
    for (int n = 1; n <= LAST_PITFALL; n++)
        if (times[n] != 1)
            fail_msg("pitfall %d is accounted for %u times", n, times[n]);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(all_are_counted),
};
static const test_cases own_cases = TEST_CASES(cases);

int main(void)
{
    const test_cases *const parts[] = {
        &pitfalls_imports_cases, &pitfalls_semaphores_cases, &pitfalls_queues_cases, &own_cases,
        &pitfalls_copies_cases, &pitfalls_frames_cases, &pitfalls_engines_cases,
    };

    w.gpu = expects_gpu();
    return run_cases("tests", parts, sizeof parts / sizeof *parts, NULL, NULL);
}
