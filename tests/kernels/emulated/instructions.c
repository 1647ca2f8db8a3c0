/* Single instructions, what no plan holds, and kernels with mistakes, which must be seen.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/probe.h"
#include "tests/kernels/emulated/rig.h"

static void test_probes(void **state)
{
    static td_plan plan;
    const uint32_t tiles = quick ? 16 : 64;
    void *arrays[TD_PROBE_VIEWS];
    char why[256] = "";

    (void)state;
    for (int i = 0; i < TD_PROBE_VIEWS; i++) {
        arrays[i] = aligned_alloc(256, tiles * TD_PROBE_A_BYTES + TU_GUARD_BYTES); /* the largest */
        assert_non_null(arrays[i]);
    }
    float *got = malloc(tiles * TD_PROBE_ELEMENTS * sizeof *got);
    assert_non_null(got);
    for (size_t m = 0; m < EM_MODULES; m++)
        for (uint32_t unit = 0; unit < TD_PROBE_UNITS; unit++) {
            td_target target = td_target_for_sm(em_modules[m].sm);
            uint64_t views[TD_PROBE_VIEWS];

            target.twin = true;
            if (td_plan_probe(unit, tiles, &target, &plan, why, sizeof why))
                continue;
            td_probe_fill_random(unit, tiles, 17 + unit, arrays[0], arrays[1], arrays[2]);
            for (int i = 0; i < TD_PROBE_VIEWS; i++)
                views[i] = (uintptr_t)arrays[i];
            must(td_exec_cpu_run(&plan, views, 0, THREADS, NULL), "the twin");
            views[TD_PROBE_D] = (uintptr_t)got;
            em_launch_record(&em_modules[m], &plan.records[0], views, 0, seed);
            assert_memory_equal(got, arrays[TD_PROBE_D], tiles * TD_PROBE_ELEMENTS * sizeof *got);
        }
    for (int i = 0; i < TD_PROBE_VIEWS; i++)
        free(arrays[i]);
    free(got);
}

static void test_stamp(void **state)
{
    (void)state;
    for (size_t m = 0; m < EM_MODULES; m++) {
        _Alignas(16) td_stamp slot = {0};
        uint64_t completed = 0, params[TD_PARAM_BYTES / 8] = {0};
        char why[200] = "";
        emu_launch it = {.grid = 1, .block = 1, .params = params, .seed = seed, .why = why, .why_bytes = sizeof why};

        for (uint32_t end = 0; end < 2; end++) {
            const td_params_stamp stamp = {
                .slot = &slot, .completed = end ? &completed : NULL, .sequence = 7 + end, .end = end};
            memcpy(params, &stamp, sizeof stamp);
            if (em_launch(&em_modules[m], "stamp", &it))
                fail_msg("stamp: %s", why);
        }
        assert_int_equal(slot.begun, 7);
        assert_int_equal(slot.sequence, 8);
        assert_int_equal(completed, 8);
        assert_true(slot.begin_ns && slot.end_ns > slot.begin_ns);
    }
}

/* --- Kernels with mistakes: tests/emu/broken.cpp --- */

typedef struct mistaken {
    const char *kernel;
    uint32_t grid, block, shared_bytes, cluster, words;
} mistaken;

/* Runs it under many seeds: how many failed, how many gave other words than `want`. */
static void run_mistaken(const mistaken *it, uint32_t mistake, uint32_t *want, uint32_t *failed, uint32_t *differs, char *why,
                         size_t why_bytes)
{
    enum { SEEDS = 24 };
    static uint32_t in[1024], out[1024];

    for (uint32_t i = 0; i < 1024; i++)
        in[i] = 0x9e3779b9u * (i + 1);
    *failed = *differs = 0;
    for (uint32_t s = 0; s < SEEDS; s++) {
        uint64_t params[TD_PARAM_BYTES / 8] = {(uintptr_t)in, (uintptr_t)out, mistake};
        char text[1600] = "";
        emu_launch run = {.grid = it->grid,
                          .block = it->block,
                          .shared_bytes = it->shared_bytes,
                          .cluster = it->cluster,
                          .params = params,
                          .seed = seed * 1000 + s,
                          .why = text,
                          .why_bytes = sizeof text};

        memset(out, TU_POISON, sizeof out);
        if (em_launch(&broken, it->kernel, &run)) {
            (*failed)++;
            snprintf(why, why_bytes, "%s", text);
        } else if (mistake == 0 && s == 0) {
            memcpy(want, out, sizeof out);
        } else {
            *differs += memcmp(want, out, it->words * 4) != 0;
        }
    }
}

static void test_mistakes_are_seen(void **state)
{
    static const struct {
        mistaken it;
        const char *why[5]; /* by mistake from 1 on: what the run says, or "" where it gives other words at times */
    } kernels[] = {
        {{"ring", 1, 64, 0, 1, 64}, {"deadlock"}},
        {{"fetch", 1, 128, 2048, 1, 128}, {"", "", "of shared memory", "deadlock", "deadlock"}},
        {{"product", 1, 128, 0, 1, 512}, {"", "wgmma.fence", "", ""}},
        {{"neighbours", 8, 64, 0, 4, 512}, {"", "has not initialised", "has ended", "that waits for"}},
    };

    (void)state;
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        static uint32_t want[1024];
        uint32_t failed, differs;
        char why[1600] = "";

        run_mistaken(&kernels[k].it, 0, want, &failed, &differs, why, sizeof why);
        if (failed || differs)
            fail_msg("%s without a mistake: %u failed, %u differ: %s", kernels[k].it.kernel, failed, differs, why);
        for (uint32_t m = 0; m < 5 && kernels[k].why[m]; m++) {
            run_mistaken(&kernels[k].it, m + 1, want, &failed, &differs, why, sizeof why);
            print_message("    %s, mistake %u: %u failed, %u differ; %s\n", kernels[k].it.kernel, m + 1, failed, differs,
                          failed ? why : "");
            if (*kernels[k].why[m]) {
                assert_true(failed > 0);
                assert_non_null(strstr(why, kernels[k].why[m]));
            } else {
                assert_true(differs > 0);
            }
        }
    }
}

/* One block after the other, three beside each other, and clusters of four. */
static void test_static_memory(void **state)
{
    enum { BLOCKS = 12, WORDS = BLOCKS * 64 };
    static const uint32_t nothing[WORDS];
    static uint32_t out[WORDS];

    (void)state;
    for (uint32_t s = 0; s < 6; s++) {
        const uint64_t params[TD_PARAM_BYTES / 8] = {0, (uintptr_t)out};
        char why[300] = "";
        emu_launch it = {.grid = BLOCKS, .block = 64, .cluster = s % 3 == 2 ? 4 : 1, .together = s % 3 == 1 ? 3 : 1,
                         .params = params, .seed = seed + s, .why = why, .why_bytes = sizeof why};

        memset(out, TU_POISON, sizeof out);
        if (em_launch(&broken, "leftovers", &it))
            fail_msg("leftovers: %s", why);
        assert_memory_equal(out, nothing, sizeof out);
    }
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_mistakes_are_seen),
    cmocka_unit_test(test_static_memory),
    cmocka_unit_test(test_probes),
    cmocka_unit_test(test_stamp),
};
const test_cases kernels_instructions_cases = TEST_CASES(cases);
