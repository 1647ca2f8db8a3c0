/* How tandemd cuts jobs into pieces: together they are the job, each element of O once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/daemon/costs.h"
#include "kernels/attention/attention.h"

static uint32_t below(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33) % n;
}

static tandem_view dense(uint32_t dtype, uint32_t heads, uint32_t rows, uint32_t dim)
{
    return (tandem_view){.mem = 1,
                         .dtype = dtype,
                         .stride_batch = (int64_t)heads * rows * dim,
                         .stride_head = (int64_t)rows * dim,
                         .stride_row = dim};
}

static tandem_attention job_of(uint32_t batch, uint32_t kv_heads, uint32_t group, uint32_t q_len, uint32_t kv_len,
                               bool causal)
{
    tandem_attention op = {.precision = TANDEM_PRECISION_8B,
                           .batch = batch,
                           .kv_heads = kv_heads,
                           .heads = kv_heads * group,
                           .q_len = q_len,
                           .kv_len = kv_len,
                           .head_dim = 32,
                           .causal = causal};

    op.q = dense(TANDEM_DTYPE_F16, op.heads, op.q_len, op.head_dim);
    op.k = op.v = dense(TANDEM_DTYPE_F16, op.kv_heads, op.kv_len, op.head_dim);
    op.o = dense(TANDEM_DTYPE_F32, op.heads, op.q_len, op.head_dim);
    return op;
}

/* As the daemon knows it. */
static td_workload workload(const tandem_attention *op, uint32_t position)
{
    static tandem_operands of[2];
    static int last;

    last = !last;
    of[last].attention = *op;
    return (td_workload){.operation = &td_operation_attention, .op = &of[last], .position = position};
}

static tandem_attention random_job(uint64_t *state)
{
    static const uint32_t lengths[] = {1, 70, 1100, 3000, 9000};
    const uint32_t q_len = 1 + below(state, lengths[below(state, 5)]), kv_len = 1 + below(state, lengths[below(state, 5)]);
    const uint32_t batch = 1 + below(state, below(state, 4) ? 3 : 60);

    return job_of(batch, 1 + below(state, 4), 1 + below(state, 7), q_len, kv_len, below(state, 2));
}

/* The most pieces that there can be. */
static uint32_t cut_finely(const tandem_attention *op, uint32_t *pieces)
{
    static const td_costs costs;

    return td_cost_cuts(&costs, workload(op, 0), 1, pieces);
}

/* Marks the rows that a piece writes, none of which was written before, and looks at what it reads. */
static void mark(const tandem_attention *op, const tandem_attention *part, uint32_t last_keys, unsigned char *seen)
{
    const int64_t past = (int64_t)op->kv_len - op->q_len;
    const size_t rows = (size_t)op->batch * op->heads * op->q_len;

    for (uint32_t b = 0; b < part->batch; b++)
        for (uint32_t h = 0; h < part->heads; h++) {
            const uint64_t o = part->o.offset_bytes / 4 / op->head_dim + ((uint64_t)b * op->heads + h) * op->q_len;
            const uint64_t q = part->q.offset_bytes / 2 / op->head_dim + ((uint64_t)b * op->heads + h) * op->q_len;
            const uint64_t head = o / op->q_len % op->heads, batch = o / op->q_len / op->heads;
            const uint64_t k = part->k.offset_bytes / 2 / op->head_dim +
                               ((uint64_t)b * op->kv_heads + h / (part->heads / part->kv_heads)) * op->kv_len;
            const int64_t keys = past + (int64_t)(o % op->q_len) + part->q_len; /* of its last row */

            assert_true(o == q && part->v.offset_bytes == part->k.offset_bytes);
            assert_true(k / op->kv_len == batch * op->kv_heads + head / (op->heads / op->kv_heads));
            assert_true(o + part->q_len <= rows && (last_keys || !op->causal || part->q_len == op->q_len));
            assert_true(part->kv_len == op->kv_len || last_keys == TD_NO_KEYS);
            assert_true(!last_keys || op->causal);
            if (last_keys)
                assert_int_equal(last_keys, keys > 0 ? keys : TD_NO_KEYS);
            for (uint32_t r = 0; r < part->q_len; r++)
                assert_int_equal(seen[o + r]++, 0);
        }
}

static void test_pieces_are_the_job(void **state)
{
    uint64_t seed = 5;
    uint32_t most = 0, without_keys = 0;

    (void)state;
    for (int n = 0; n < 600; n++) {
        static const td_costs costs;
        const tandem_attention op = random_job(&seed);
        const size_t rows = (size_t)op.batch * op.heads * op.q_len;
        const uint64_t guess = td_cost_guess(&costs, workload(&op, 0)), coarse_ns = guess / (1 + below(&seed, 300)) + 1;
        unsigned char *seen = calloc(rows, 1);
        td_part_at at = {0};
        uint32_t pieces, cuts = n % 2 ? cut_finely(&op, &pieces) : td_cost_cuts(&costs, workload(&op, 0), coarse_ns, &pieces);

        assert_non_null(seen);
        most = pieces > most ? pieces : most;
        for (uint32_t i = 0; i < pieces; i++) {
            tandem_attention part = op;
            const uint32_t last_keys = pieces > 1 ? td_attention_part(&op, cuts, &at, &part) : 0;

            without_keys += last_keys == TD_NO_KEYS;
            mark(&op, &part, last_keys, seen);
        }
        for (size_t r = 0; r < rows; r++)
            assert_int_equal(seen[r], 1);
        free(seen);
    }
    assert_true(most > 20 && without_keys > 20);
}

/* No piece is guessed to take longer than was asked for, unless it is of so few rows of one head that K and V would be
 * quantised again for little; whatever the shape. And there are not many more pieces than that needs. */
static void test_no_piece_is_too_long(void **state)
{
    enum { LEAST = 1152, GUESS_NS = 10000 };
    const uint64_t most_ns = 400000;
    uint64_t seed = 77;
    uint32_t cut = 0;

    (void)state;
    for (int n = 0; n < 3000; n++) {
        static const td_costs costs[2] = {{.is_gpu = true}, {.ns_per_mflop = 3000}};
        const td_costs *c = &costs[n % 2];
        const uint32_t few = 1 + below(&seed, 1 << below(&seed, 12)), many = few + below(&seed, 1 << (8 + below(&seed, 14)));
        const bool causal = below(&seed, 2), cross = below(&seed, 4);
        tandem_attention op = job_of(1 + below(&seed, 1 << below(&seed, 11)), 1 + below(&seed, 8), 1 + below(&seed, 9),
                                     cross ? many : few, cross ? few : many, causal);
        const uint64_t guess = td_cost_guess(c, workload(&op, 0));
        uint64_t long_ones = 0;
        td_part_at at = {0};
        uint32_t pieces, cuts;

        if (guess / most_ns >= 16000) /* of more there are longer pieces */
            continue;
        cuts = td_cost_cuts(c, workload(&op, 0), most_ns, &pieces);
        assert_true(pieces == 1 || guess > most_ns);
        cut += pieces > 1;
        for (uint32_t i = 0; i < pieces; i++) {
            tandem_attention part = op;
            const uint32_t last_keys = pieces > 1 ? td_attention_part(&op, cuts, &at, &part) : 0;
            const uint64_t part_ns = pieces > 1 ? td_cost_part(c, workload(&op, 0), workload(&part, last_keys)) : guess;

            if (part_ns <= most_ns + GUESS_NS + 1)
                continue;
            long_ones++;
            if (part.batch != 1 || part.heads != 1 || part.q_len > LEAST)
                fail_msg("batch %u, heads %u of %u, q %u, kv %u, causal %u: piece %u of %u, of %u heads and %u rows, takes %lu ns",
                         op.batch, op.kv_heads, op.heads, op.q_len, op.kv_len, op.causal, i, pieces, part.heads, part.q_len,
                         (unsigned long)part_ns);
        }
        assert_true(long_ones || pieces <= 4 * (guess / most_ns + 1) + 2 * op.batch * op.heads);
    }
    assert_true(cut > 1000);
}

/* How often a row of a causal piece attends to a key. */
static uint64_t count_pairs(const tandem_attention *part, uint32_t last_keys)
{
    uint64_t pairs = 0;

    for (uint32_t r = 0; r < part->q_len && last_keys != TD_NO_KEYS; r++)
        if (last_keys + r + 1 > part->q_len)
            pairs += last_keys + r + 1 - part->q_len;
    return pairs;
}

/* Later rows of a causal head see more keys, the first ones perhaps none, and those are read and written all the same:
 * pieces are as long as their share of the work allows, in whole tiles, but not so short that K and V are quantised again
 * for little. */
static void test_causal_heads_are_cut_by_work(void **state)
{
    static const uint32_t lengths[][2] = {{65536, 65536}, {16384, 65536}, {65536, 16384},   {8000, 3000},
                                          {3000, 1800},   {1 << 20, 64},  {1 << 20, 30000}, {100000, 1}};
    enum { WANTED = 8, LEAST = 1152, BLOCK = 384, ROW = 128 };

    (void)state;
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
        static const td_costs costs = {.is_gpu = true};
        const tandem_attention op = job_of(1, 1, 1, lengths[n][0], lengths[n][1], true);
        const uint64_t guess = td_cost_guess(&costs, workload(&op, 0)), pairs_of_all = count_pairs(&op, op.kv_len);
        const uint64_t all = pairs_of_all + (uint64_t)ROW * op.q_len;
        uint64_t row = 0, pairs = 0, cost = 0;
        uint32_t pieces, cuts;
        td_part_at at = {0};

        cuts = td_cost_cuts(&costs, workload(&op, 0), guess / WANTED, &pieces);
        assert_in_range(pieces, op.q_len > 8 * LEAST ? WANTED : 2, 2 * WANTED);
        for (uint32_t i = 0; i < pieces; i++) {
            tandem_attention part = op, more = op;
            const uint32_t last_keys = td_attention_part(&op, cuts, &at, &part);
            const uint64_t pairs_here = count_pairs(&part, last_keys), here = pairs_here + (uint64_t)ROW * part.q_len;

            row += part.q_len;
            pairs += pairs_here;
            cost += td_cost_part(&costs, workload(&op, 0), workload(&part, last_keys));
            assert_true(here * WANTED <= all || part.q_len <= LEAST);
            more.q_len = part.q_len + BLOCK;
            assert_true(row % BLOCK == 0 || row == op.q_len);
            if (row + BLOCK < op.q_len && part.q_len > LEAST && last_keys != TD_NO_KEYS)
                assert_true((count_pairs(&more, last_keys + BLOCK) + (uint64_t)ROW * more.q_len) * (WANTED + 1) > all);
        }
        assert_int_equal(row, op.q_len);
        assert_int_equal(pairs, pairs_of_all);
        assert_in_range(cost, guess, guess + (uint64_t)pieces * 10001);
    }
}

/* What one piece takes says nothing of another that is as long. */
static void test_causal_pieces_are_learned_apart(void **state)
{
    static td_costs costs;
    const tandem_attention part = {.batch = 1,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .q_len = 1152,
                                   .kv_len = 65536,
                                   .head_dim = 64,
                                   .causal = 1,
                                   .precision = TANDEM_PRECISION_8B};

    (void)state;
    td_cost_learn(&costs, workload(&part, 1152), 0, 1000, 0, true, 1000);
    td_cost_learn(&costs, workload(&part, 65536), 0, 50000, 0, true, 50000);
    assert_int_equal(td_cost_guess(&costs, workload(&part, 1152)), 1000);
    assert_int_equal(td_cost_guess(&costs, workload(&part, 65536)), 50000);
    assert_true(td_cost_guess(&costs, workload(&part, 40000)) > td_cost_guess(&costs, workload(&part, 20000)) * 3 / 2);
}

/* Their scales lie behind all codes: INTEGRATION.md says so, and what bounds how long others wait for them. */
static void test_codes_are_not_cut(void **state)
{
    uint64_t seed = 9;
    uint32_t pieces = 0;

    (void)state;
    for (int n = 0; n < 50; n++) {
        tandem_attention op = random_job(&seed);

        op.q.dtype = op.k.dtype = TANDEM_DTYPE_CODES_INT8;
        op.v.dtype = TANDEM_DTYPE_CODES_E4M3;
        cut_finely(&op, &pieces);
        assert_int_equal(pieces, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_are_the_job),
        cmocka_unit_test(test_no_piece_is_too_long),
        cmocka_unit_test(test_causal_heads_are_cut_by_work),
        cmocka_unit_test(test_causal_pieces_are_learned_apart),
        cmocka_unit_test(test_codes_are_not_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
