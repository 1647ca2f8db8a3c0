/* Plans that commit: all of the output or not a byte of it, whoever else gives the job up meanwhile.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/commit.h"
#include "tests/kernels/attention_cpu/rig.h"

/* Runs a case's plan on poisoned output, with the job's words; on scratch of as many bytes as the plan asks for, where
 * places that are never in use at once have the same ones. */
static tandem_status run_committing(tu_case *it, const td_target *target, td_control *control)
{
    char why[256] = "";
    const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)it->q.data, (uintptr_t)it->k.data, (uintptr_t)it->v.data,
                                           (uintptr_t)it->o.data, (uintptr_t)it->lse.data};
    assert_int_equal(td_plan_attention(&it->op, target, &it->plan, NULL, why, sizeof why), TANDEM_OK);
    tu_poison(&it->o);
    if (it->lse.data)
        tu_poison(&it->lse);
    free(it->scratch);
    it->scratch = aligned_alloc(256, it->plan.scratch_bytes);
    for (size_t i = 0; i < it->plan.scratch_bytes / 4; i++) /* as an earlier job may have left it */
        ((uint32_t *)it->scratch)[i] = TD_VERDICT_COMMITTED;
    return td_exec_cpu_run(&it->plan, views, (uintptr_t)it->scratch, 2, control);
}

static bool is_poison(const tu_tensor *x)
{
    for (size_t i = 0; i < x->bytes; i++)
        if (((const unsigned char *)x->data)[i] != TU_POISON)
            return false;
    return true;
}

/* Every layout, type and head dim, with lse and without, on one to three of the chunks that a block of `commit` copies. What
 * attention computes is tested elsewhere, so heads are few, rows no more than that takes, and twins' head dims small. */
static void test_commit(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 64, 128, 129, 7, 127, 257};
    const td_target targets[] = {cpu, twin_of(90), twin_of(80)};
    for (uint32_t i = 0; i < 48; i++) {
        const uint32_t turn = i / 3;
        const tu_shape shape = {.batch = 1 + i % 2,
                                .heads = 2,
                                .kv_heads = 1,
                                .q_len = rows[i % 7],
                                .kv_len = 33 + i,
                                .head_dim = dims[turn % (i % 3 ? 3 : DIMS)],
                                .dtype_o = 1 + (i + turn) % 3,
                                .lse = (turn + turn / DIMS) % 2,
                                .layout = (tu_layout)(i / 4 % 4),
                                .precision = i % 2 ? TANDEM_PRECISION_8B : TANDEM_PRECISION_F16,
                                .seed = i + 1};
        td_target target = targets[i % 3];
        td_control control = {0};
        tu_case it;
        tu_case_init(&it, &shape);
        assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
        const uint32_t plain = it.plan.record_count;
        unsigned char *o = malloc(it.o.bytes), *lse = malloc(it.lse.bytes + 1);
        memcpy(o, it.o.data, it.o.bytes);
        if (it.lse.data)
            memcpy(lse, it.lse.data, it.lse.bytes);

        /* The same bytes where places in scratch share theirs. */
        assert_int_equal(run_committing(&it, &target, NULL), TANDEM_OK);
        assert_memory_equal(o, it.o.data, it.o.bytes);

        /* The same bytes, with and without the words; nothing else is written. */
        target.commit = true;
        assert_int_equal(tu_case_run(&it, &target, 2), TANDEM_OK);
        assert_memory_equal(o, it.o.data, it.o.bytes);
        assert_int_equal(run_committing(&it, &target, &control), TANDEM_OK);
        assert_memory_equal(o, it.o.data, it.o.bytes);
        if (it.lse.data)
            assert_memory_equal(lse, it.lse.data, it.lse.bytes);
        assert_int_equal(control.claimed, 1);
        assert_int_equal(control.verdict, TD_VERDICT_COMMITTED);

        /* Only the last record writes what the engine sees; the claim waits for all that is computed. */
        assert_int_equal(it.plan.record_count, plain + 2);
        for (uint32_t r = 0; r + 1 < it.plan.record_count; r++)
            for (uint32_t w = 0; w < it.plan.records[r].write_count; w++)
                assert_int_equal(it.plan.records[r].writes[w].base, TD_BASE_SCRATCH);
        const td_record *attention = &it.plan.records[plain - 1], *claims = &it.plan.records[plain];
        assert_int_equal(claims->block[0] * claims->grid[0], 1);
        assert_int_equal(claims->reads[0].begin_bytes, attention->writes[0].begin_bytes);
        assert_int_equal(claims[1].reads[0].begin_bytes, claims->writes[0].begin_bytes);

        /* Given up before, with and without the word that stops it: not a byte. */
        for (uint32_t cancel = 0; cancel < 2; cancel++) {
            control = (td_control){.stale = 1, .cancel = cancel};
            assert_int_equal(run_committing(&it, &target, &control), cancel ? TANDEM_ERROR_BUSY : TANDEM_OK);
            assert_true(is_poison(&it.o));
            assert_true(!it.lse.data || is_poison(&it.lse));
            assert_int_equal(control.verdict, cancel ? TD_VERDICT_NONE : TD_VERDICT_GIVEN_UP);
        }
        free(o);
        free(lse);
        tu_case_free(&it);
    }
}

typedef struct race {
    td_control control;
    uint32_t round, answered, delay;
    bool wins;
} race;

static void idle(uint32_t turns)
{
    for (volatile uint32_t i = 0; i < turns; i++)
        ;
}

/* The host's side: gives each round's job up after a while. */
static void *give_up(void *user)
{
    race *it = user;
    for (uint32_t round = 1; round; round++) {
        uint32_t now;
        while ((now = __atomic_load_n(&it->round, __ATOMIC_ACQUIRE)) != round)
            if (now == UINT32_MAX || sched_yield())
                return NULL;
        idle(it->delay);
        __atomic_store_n(&it->control.stale, 1, __ATOMIC_SEQ_CST);
        it->wins = !__atomic_load_n(&it->control.claimed, __ATOMIC_SEQ_CST);
        __atomic_store_n(&it->answered, round, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* What pieces have written elsewhere, dense, becomes the output, whatever its layout; or not a byte of it. */
static void test_commit_of_a_temporary_output(void **state)
{
    (void)state;
    const td_target targets[] = {cpu, twin_of(90), twin_of(80)};
    for (uint32_t i = 0; i < 36; i++) {
        const tu_shape shape = {.batch = 1 + i % 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .q_len = i % 5 ? 1 + i * 7 : 256,
                                .kv_len = 33,
                                .head_dim = dims[i % DIMS],
                                .dtype_o = 1 + i % 3,
                                .lse = i / 3 % 2,
                                .layout = (tu_layout)(i / 4 % 4),
                                .precision = TANDEM_PRECISION_8B,
                                .seed = i + 1};
        const uint64_t row_bytes = shape.head_dim * (shape.dtype_o == TANDEM_DTYPE_F32 ? 4u : 2u);
        char why[256] = "";
        tu_case it;
        tu_case_init(&it, &shape);
        const uint64_t rows = (uint64_t)it.op.batch * it.op.heads * it.op.q_len;
        unsigned char *o = malloc(rows * row_bytes), *lse = malloc(rows * 4);
        assert_true(o && lse);
        for (uint64_t b = 0; b < rows * row_bytes; b++)
            o[b] = (unsigned char)(b * 31 >> 3 ^ i);
        for (uint64_t b = 0; b < rows * 4; b++)
            lse[b] = (unsigned char)(b * 17 >> 2 ^ i);
        tandem_operands op = {.attention = it.op}, commit;
        td_commit_make(&td_operation_attention, 7, &op, &commit);
        assert_true(op.attention.o.mem == 7 && (!shape.lse || op.attention.lse.mem == 7));
        assert_int_equal(td_operation_commit.check(&commit, why, sizeof why), TANDEM_OK);
        assert_int_equal(td_operation_commit.plan(&commit, &targets[i % 3], &it.plan, why, sizeof why), TANDEM_OK);
        assert_int_equal(it.plan.record_count, 2);
        assert_int_equal(it.plan.precision, TANDEM_PRECISION_8B);
        for (uint32_t stale = 0; stale < 2; stale++) {
            const uint64_t views[TD_MAX_VIEWS] = {(uintptr_t)o, (uintptr_t)lse, (uintptr_t)it.o.data, (uintptr_t)it.lse.data};
            td_control control = {.stale = 1 - stale};
            void *scratch = aligned_alloc(256, it.plan.scratch_bytes);
            assert_non_null(scratch);
            *(uint32_t *)scratch = TD_VERDICT_COMMITTED;
            tu_poison(&it.o);
            if (it.lse.data)
                tu_poison(&it.lse);
            assert_int_equal(td_exec_cpu_run(&it.plan, views, (uintptr_t)scratch, 2, &control), TANDEM_OK);
            assert_int_equal(control.verdict, control.stale ? TD_VERDICT_GIVEN_UP : TD_VERDICT_COMMITTED);
            if (control.stale) {
                assert_true(is_poison(&it.o));
                assert_true(!it.lse.data || is_poison(&it.lse));
            }
            free(scratch);
        }
        for (uint64_t r = 0; r < rows; r++) {
            const uint64_t batch = r / it.op.q_len / it.op.heads, head = r / it.op.q_len % it.op.heads;
            const uint64_t row = r % it.op.q_len;
            const tandem_view *to = &it.op.o, *lse_to = &it.op.lse;
            const uint64_t at = batch * (uint64_t)to->stride_batch + head * (uint64_t)to->stride_head +
                                row * (uint64_t)to->stride_row;
            const uint64_t lse_at = batch * (uint64_t)lse_to->stride_batch + head * (uint64_t)lse_to->stride_head +
                                    row * (uint64_t)lse_to->stride_row;
            assert_memory_equal((unsigned char *)it.o.data + at * (row_bytes / shape.head_dim), o + r * row_bytes, row_bytes);
            if (it.lse.data)
                assert_memory_equal((unsigned char *)it.lse.data + lse_at * 4, lse + r * 4, 4);
        }
        assert_int_equal(tu_spoilt(&it.o), 0);
        assert_true(!it.lse.data || !tu_spoilt(&it.lse));
        free(o);
        free(lse);
        tu_case_free(&it);
    }
}

/* Never do both win; a host that came too late reads what was decided. */
static void test_commit_race(void **state)
{
    (void)state;
    enum { ROUNDS = 10000, ENOUGH = 200 }; /* the handicap keeps each round close to the moment that decides */
    const tu_shape shape = {.q_len = 4, .kv_len = 4, .head_dim = 32, .precision = TANDEM_PRECISION_F16, .lse = 1};
    td_target target = cpu;
    uint64_t seed = 5;
    uint32_t committed = 0, given_up = 0;
    int32_t handicap = 20000; /* the host's longest delay, or less 0 the job's: whoever loses gets less of it */
    race it = {0};
    pthread_t thread;
    tu_case of;
    tu_case_init(&of, &shape);
    assert_int_equal(tu_case_run(&of, &target, 1), TANDEM_OK);
    unsigned char *o = malloc(of.o.bytes);
    memcpy(o, of.o.data, of.o.bytes);
    target.commit = true;
    assert_int_equal(pthread_create(&thread, NULL, give_up, &it), 0);
    for (uint32_t round = 1; round <= ROUNDS && (committed < ENOUGH || given_up < ENOUGH); round++) {
        it.control = (td_control){0};
        const uint32_t delay = (uint32_t)(tu_random(&seed) % (uint32_t)(abs(handicap) + 1));
        it.delay = handicap > 0 ? delay : 0;
        __atomic_store_n(&it.round, round, __ATOMIC_RELEASE);
        idle(handicap > 0 ? 0 : delay);
        assert_int_equal(run_committing(&of, &target, &it.control), TANDEM_OK);
        while (__atomic_load_n(&it.answered, __ATOMIC_ACQUIRE) != round)
            sched_yield();
        if (it.control.verdict == TD_VERDICT_COMMITTED) {
            assert_false(it.wins);
            assert_memory_equal(o, of.o.data, of.o.bytes);
            committed++;
            handicap -= handicap > -20000000 ? abs(handicap) / 16 + 20 : 0;
        } else {
            assert_int_equal(it.control.verdict, TD_VERDICT_GIVEN_UP);
            assert_true(is_poison(&of.o) && is_poison(&of.lse));
            given_up++;
            handicap += handicap < 20000000 ? abs(handicap) / 16 + 20 : 0;
        }
    }
    __atomic_store_n(&it.round, UINT32_MAX, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    assert_true(committed && given_up);
    free(o);
    tu_case_free(&of);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_commit),
    cmocka_unit_test(test_commit_of_a_temporary_output),
    cmocka_unit_test(test_commit_race),
};
const test_cases attention_cpu_commit_cases = TEST_CASES(cases);
