/* test_attention_cpu --bench: the demo's frame, how long each of its records takes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/cpu/cpu.h"
#include "tests/kernels/attention_cpu/rig.h"

static double milliseconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

int bench(void)
{
    static const char *const precisions[] = {"auto", "f16", "8b", "4b"}, *const types[] = {"", "f16", "bf16", "f32"};
    for (uint32_t dtype = TANDEM_DTYPE_F16; dtype <= TANDEM_DTYPE_F32; dtype += 2)
        for (uint32_t precision = 1; precision <= 3; precision++)
            for (int isa = ISAS - 1; isa >= 0; isa--) {
                if (!td_cpu_isa_force(isas[isa]))
                    continue;
                tu_case it;
                tu_case_init(&it, &(tu_shape){.batch = 225,
                                              .q_len = 256,
                                              .kv_len = 1024,
                                              .head_dim = 32,
                                              .precision = precision,
                                              .dtype_q = dtype,
                                              .dtype_k = dtype,
                                              .dtype_v = dtype,
                                              .dtype_o = dtype});
                if (tu_case_run(&it, &cpu, 2) != TANDEM_OK)
                    return 1;
                const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it.q.data, (uintptr_t)it.k.data, (uintptr_t)it.v.data,
                                                       (uintptr_t)it.o.data, 0};
                double wall = INFINITY, user = INFINITY;
                for (int run = 0; run < (isa ? 7 : 2); run++) {
                    const double wall_begin = milliseconds(CLOCK_MONOTONIC),
                                 begin = milliseconds(CLOCK_PROCESS_CPUTIME_ID);
                    td_exec_cpu_run(&it.plan, views, (uintptr_t)it.scratch, 2, NULL);
                    wall = fmin(wall, milliseconds(CLOCK_MONOTONIC) - wall_begin);
                    user = fmin(user, milliseconds(CLOCK_PROCESS_CPUTIME_ID) - begin);
                }
                printf("225 x 256 x 1024 x 32 %-4s %-3s %-12s wall %6.1f ms, cpu %6.1f ms:", types[dtype],
                       precisions[precision], isas[isa], wall, user);
                for (uint32_t i = 0; i < it.plan.record_count; i++) {
                    TU_PLAN(one);
                    double least = INFINITY;
                    assert_non_null(td_plan_append(&one, &it.plan.records[i]));
                    for (int run = 0; run < (isa ? 5 : 2); run++) {
                        const double begin = milliseconds(CLOCK_PROCESS_CPUTIME_ID);
                        td_exec_cpu_run(&one, views, (uintptr_t)it.scratch, 1, NULL);
                        least = fmin(least, milliseconds(CLOCK_PROCESS_CPUTIME_ID) - begin);
                    }
                    printf(" %s %.1f", one.records[0].kernel->name, least);
                }
                printf("\n");
                fflush(stdout);
                tu_case_free(&it);
            }
    return 0;
}
