/* Attention on the CPU: checks, plans, oracle, prologue, twin and the kernels that ship. --bench prints times instead.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/kernels/attention_cpu/rig.h"

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--bench") == 0)
        return bench();
    const test_cases *const parts[] = {
        &attention_cpu_formats_cases, &attention_cpu_plans_cases, &attention_cpu_codes_cases,
        &attention_cpu_oracle_cases, &attention_cpu_accuracy_cases, &attention_cpu_executor_cases,
        &attention_cpu_commit_cases,
    };
    return run_cases("attention on the CPU", parts, sizeof parts / sizeof *parts, NULL, NULL);
}
