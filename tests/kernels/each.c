/* Cases that launch each kernel. See each.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/each.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

te_program te_program_of(const char *entry)
{
    static const struct {
        const char *family;
        te_program program;
    } apart[] = {{"attn_masked", TE_OPERATIONS}, {"attn_spans", TE_OPERATIONS}, {"attn_unspanned", TE_OPERATIONS},
                 {"binary", TE_OPERATIONS},      {"cache_step", TE_LLAMA},  {"cache", TE_OPERATIONS},  {"embed", TE_OPERATIONS},
                 {"conv_wgmma", TE_CUDA},        {"conv", TE_OPERATIONS},    {"demodulate", TE_OPERATIONS}, {"fetch", TE_OPERATIONS}, {"gather", TE_OPERATIONS},
                 {"linear_f16_normed", TE_LLAMA}, {"linear", TE_LINEAR},        {"norm", TE_OPERATIONS},   {"pool", TE_OPERATIONS},
                 {"reproject", TE_OPERATIONS},   {"scatter", TE_OPERATIONS}, {"top", TE_OPERATIONS}};

    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
        if (strncmp(entry, apart[i].family, strlen(apart[i].family)) == 0)
            return apart[i].program;
    return TE_CUDA;
}

bool te_arguments(te_cases *it, int argc, char **argv)
{
    const char *which = argc > 2 ? argv[2] : "0/1";

    *it = (te_cases){.name = ""};
    if (!strcmp(argv[1], "--cases"))
        return true;
    if (sscanf(which, "%u/%u", &it->lane, &it->lanes) == 2) {
        if (it->lane < it->lanes)
            return true;
        fprintf(stderr, "--each %s: must be the number of a lane, from 0 on, and of how many\n", which);
        return false;
    }
    it->lane = 0;
    it->lanes = 1;
    it->name = which;
    return true;
}

void te_begin(te_cases *it, uint32_t sm)
{
    char why[160] = "";

    *it = (te_cases){.lane = it->lane, .lanes = it->lanes, .name = it->name, .cubin = td_cubin_for_sm(sm, why, sizeof why)};
    if (!it->cubin)
        fail_msg("%s", why);
    assert_true(td_cubin_entry_count(it->cubin) <= TE_MOST_KERNELS);
}

/* The kernels of all images, one behind the other. */
static const char *entry_at(const td_cubin *cubin, uint32_t at)
{
    const td_image *of = cubin->images;

    while (at >= of->entry_count)
        at -= of++->entry_count;
    return of->entries[at].entry;
}

bool te_is_mine(te_cases *it, const td_plan *plan, bool other_variant)
{
    bool *launched = it->launched[other_variant], wanted = false;

    for (uint32_t r = 0; r < plan->record_count; r++) {
        const char *entry = plan->records[r].kernel->entry;

        for (uint32_t i = 0; i < td_cubin_entry_count(it->cubin); i++)
            if (!strcmp(entry_at(it->cubin, i), entry)) {
                wanted = wanted || (!launched[i] && !strncmp(entry, it->name, strlen(it->name)));
                launched[i] = true;
            }
    }
    if (!wanted)
        return false;
    const bool mine = it->lanes && it->number % it->lanes == it->lane;

    it->number++;
    it->ran += mine;
    return mine;
}

void te_end(const te_cases *it, te_program program)
{
    uint32_t missing = 0;

    print_message("    %u of %u cases ran here, on sm_%u\n", it->ran, it->number, (unsigned)it->cubin->sm);
    for (uint32_t i = 0; i < td_cubin_entry_count(it->cubin); i++) {
        const char *entry = entry_at(it->cubin, i);

        if (te_program_of(entry) != program || it->launched[0][i] || !strcmp(entry, "stamp") || !strcmp(entry, "fetch")) /* around each plan, and of programs */
            continue;
        print_message("    no case runs %s of sm_%u\n", entry, (unsigned)it->cubin->sm);
        missing++;
    }
    assert_int_equal(missing, 0);
    assert_true(it->number > it->lane);
}

typedef struct whole_program {
    te_cases *it;
    te_program number;
    void (*cases)(td_target target);
} whole_program;

static void test_no_kernel_is_left_out(void **state)
{
    const whole_program *program = *state;
    uint32_t count;
    const td_cubin *table = td_cubins(&count);

    for (uint32_t i = 0; i < count; i++)
        if (!table[i].ptx) {
            te_begin(program->it, table[i].sm);
            assert_ptr_equal(program->it->cubin, &table[i]);
            program->cases(td_target_for_stream(table[i].sm));
            te_end(program->it, program->number);
        }
}

int te_check_cases(te_cases *it, te_program number, void (*cases)(td_target target))
{
    whole_program program = {it, number, cases};
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_no_kernel_is_left_out, &program)};
    uint32_t count;

    td_cubins(&count);
    return count ? cmocka_run_group_tests_name("cases", tests, NULL, NULL) : 77;
}
