/* The cases of a program that is built of several files: each file has a list, and main() runs one after the other.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_CASES_H
#define TANDEM_TESTS_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

typedef struct test_cases {
    const struct CMUnitTest *first;
    size_t count;
} test_cases;
#define TEST_CASES(array) {array, sizeof array / sizeof *array}

/* TANDEM_EXPECT_GPU=1: this machine has one, and what a program has to do with it is not skipped. */
bool expects_gpu(void);

/* As cmocka_run_group_tests_name() of all these, in this order. */
int run_cases(const char *name, const test_cases *const *parts, size_t count, CMFixtureFunction set_up,
              CMFixtureFunction tear_down);

#endif
