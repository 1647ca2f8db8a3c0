/* A word of a cache's job that its client writes to while it is read, on the CPU and on the emulator: a row's position.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/cache/cache.h"
#include "tests/kernels/kernels_util.h"

enum { DIM = 64, ENTRIES = 333, PAGES = (ENTRIES + TD_CACHE_PAGE - 1) / TD_CACHE_PAGE, RUNS = 1000 };

typedef struct changing {
    _Atomic int32_t *word;
    int32_t values[2];
    atomic_bool over;
} changing;

static void *change_word(void *user)
{
    changing *c = user;

    for (uint32_t i = 0; !c->over; i++)
        atomic_store(c->word, c->values[i / 16 % 2]);
    return NULL;
}

static void *zeros(size_t bytes)
{
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);

    assert_non_null(memory);
    return memset(memory, 0, bytes);
}

/* A row that is appended to a pool, on the CPU where there is no module. */
static void append(em_module *on, const uint64_t views[TD_MAX_VIEWS], uint64_t plane_bytes)
{
    const tandem_operands op = {.cache_append = {.k = tandem_view_dense(1, 0, TANDEM_DTYPE_F16, 1, 1, DIM),
                                                 .v = tandem_view_dense(1, 0, TANDEM_DTYPE_F16, 1, 1, DIM),
                                                 .position = tandem_view_dense(1, 0, TANDEM_DTYPE_I32, 1, 1, 1),
                                                 .cache = tandem_view_dense(1, 0, TANDEM_DTYPE_U8, 1, 1, (uint32_t)plane_bytes),
                                                 .table = tandem_view_dense(1, 0, TANDEM_DTYPE_I32, 1, 1, 1 + PAGES),
                                                 .batch = 1,
                                                 .kv_heads = 1,
                                                 .rows = 1,
                                                 .head_dim = DIM,
                                                 .entries = ENTRIES,
                                                 .format = TANDEM_CACHE_F16,
                                                 .slots = 1,
                                                 .pages = PAGES}};
    const td_target target = td_target_for_sm(on ? on->sm : 0);
    char why[300] = "";
    TU_PLAN(plan);

    if (td_operation_cache_append.check(&op, why, sizeof why) ||
        td_operation_cache_append.plan(&op, &target, &plan, why, sizeof why))
        fail_msg("%s", why);
    void *scratch = zeros(plan.scratch_bytes + 1);
    for (uint32_t i = 0; on && i < plan.record_count; i++)
        em_launch_record(on, &plan.records[i], views, (uintptr_t)scratch, i);
    if (!on)
        assert_int_equal(td_exec_cpu_run(&plan, views, (uintptr_t)scratch, 1, NULL), TANDEM_OK);
    free(scratch);
}

/* It is there or not: what was looked at is what is used, so nothing else is read or written. */
static void change(em_module *on)
{
    const uint64_t plane_bytes = tandem_cache_pool_bytes(TANDEM_CACHE_F16, 1, PAGES, DIM);
    unsigned char *planes = zeros(plane_bytes);
    int32_t position = 5, table[1 + PAGES];
    uint16_t row[DIM] = {0};
    changing c = {.word = (_Atomic int32_t *)&position, .values = {5, INT32_MAX}};
    pthread_t thread;

    table[0] = 0;
    for (int32_t i = 0; i < PAGES; i++)
        table[1 + i] = i;
    assert_int_equal(pthread_create(&thread, NULL, change_word, &c), 0);
    for (int i = 0; i < RUNS; i++)
        append(on,
               (const uint64_t[TD_MAX_VIEWS]){(uintptr_t)row, (uintptr_t)row, (uintptr_t)&position, (uintptr_t)planes,
                                              (uintptr_t)table},
               plane_bytes);
    c.over = true;
    pthread_join(thread, NULL);
    free(planes);
}

static void test_positions(void **state)
{
    (void)state;
    for (size_t module = 0; module <= EM_MODULES; module++)
        change(module < EM_MODULES ? &em_modules[module] : NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_positions)};

    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
