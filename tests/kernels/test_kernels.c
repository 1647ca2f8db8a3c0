/* The CUDA kernels on an emulator (tests/emu) against the CPU twin, as test_cuda compares them on a GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * test_kernels [--seed N] [--quick]; the seed decides in which order threads run, and when what they started happens.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/each.h"
#include "tests/kernels/emulated/rig.h"

/* test_kernels_images runs conv's here, though test_cuda has them on a GPU. */
static bool is_ours(const char *entry)
{
    return te_program_of(entry) == TE_CUDA && strncmp(entry, "conv", 4);
}

/* After all others: no kernel was left out but those that have a program of their own here, too. */
static void test_every_entry_was_run(void **state)
{
    uint32_t cubin_count = 0, missing = 0;
    const td_cubin *cubins = td_cubins(&cubin_count);

    (void)state;
    for (size_t m = 0; m < EM_MODULES; m++) {
        for (size_t i = 0; i < em_modules[m].entry_count; i++)
            if (!em_modules[m].was_run[i] && is_ours(em_modules[m].entries[i])) {
                print_message("    %s of sm_%u was not run\n", em_modules[m].entries[i], em_modules[m].sm);
                missing++;
            }
        print_message("    sm_%u: %zu entries\n", em_modules[m].sm, em_modules[m].entry_count);
        for (uint32_t c = 0; c < cubin_count; c++)
            for (uint32_t i = 0; !cubins[c].ptx && cubins[c].sm == em_modules[m].sm && i < cubins[c].image_count; i++)
                for (uint32_t e = 0; e < cubins[c].images[i].entry_count; e++)
                    if (is_ours(cubins[c].images[i].entries[e].entry) &&
                        !dlsym(em_modules[m].library, cubins[c].images[i].entries[e].entry))
                        fail_msg("the emulator has no %s of sm_%u", cubins[c].images[i].entries[e].entry,
                                 em_modules[m].sm);
    }
    assert_int_equal(missing, 0);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_every_entry_was_run),
};
static const test_cases own_cases = TEST_CASES(cases);

int main(int argc, char **argv)
{
    const test_cases *const parts[] = {
        &kernels_instructions_cases, &kernels_codes_cases, &kernels_direct_cases,
        &kernels_heads_cases, &own_cases,
    };

    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    quick = getenv("TANDEM_SANITIZED") != NULL;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--quick") == 0) {
            quick = true;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 0);
        } else {
            fprintf(stderr, "usage: test_kernels [--seed N] [--quick]\n");
            return 2;
        }
    if (!em_open_all(TD_EMU_FOLDER) || !em_open(&broken, TD_EMU_FOLDER, "libemu_broken.so"))
        return 1;
    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    printf("seed %llu\n", (unsigned long long)seed);
    return run_cases("tests", parts, sizeof parts / sizeof *parts, NULL, NULL);
}
