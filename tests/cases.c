/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cases.h"

#include <stdlib.h>
#include <string.h>

bool expects_gpu(void)
{
    const char *text = getenv("TANDEM_EXPECT_GPU");

    return text && !strcmp(text, "1");
}

int run_cases(const char *name, const test_cases *const *parts, size_t count, CMFixtureFunction set_up,
              CMFixtureFunction tear_down)
{
    struct CMUnitTest *all;
    size_t at = 0;
    int failed;

    for (size_t i = 0; i < count; i++)
        at += parts[i]->count;
    all = calloc(at, sizeof *all);
    if (!all)
        return 1;
    at = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(all + at, parts[i]->first, parts[i]->count * sizeof *all);
        at += parts[i]->count;
    }
    failed = _cmocka_run_group_tests(name, all, at, set_up, tear_down);
    free(all);
    return failed;
}
