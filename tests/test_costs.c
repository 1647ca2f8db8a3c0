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

#include "engine_plugin/daemon/daemon.h"

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

static tandem_attention random_job(uint64_t *state)
{
    tandem_attention op = {.precision = TANDEM_PRECISION_8B};

    op.batch = 1 + below(state, 3);
    op.kv_heads = 1 + below(state, 4);
    op.heads = op.kv_heads * (1 + below(state, 6));
    op.q_len = 1 + below(state, 3000);
    op.kv_len = 1 + below(state, 3000);
    op.head_dim = 32;
    op.causal = below(state, 2);
    op.q = dense(TANDEM_DTYPE_F16, op.heads, op.q_len, op.head_dim);
    op.k = op.v = dense(TANDEM_DTYPE_F16, op.kv_heads, op.kv_len, op.head_dim);
    op.o = dense(TANDEM_DTYPE_F32, op.heads, op.q_len, op.head_dim);
    return op;
}

/* The most pieces that there can be. */
static uint32_t cut_finely(const tandem_attention *op, uint32_t *pieces)
{
    static const td_costs costs;

    return td_slices(&costs, op, 1, pieces);
}

static void test_pieces_are_the_job(void **state)
{
    uint64_t seed = 5;
    uint32_t most = 0;

    (void)state;
    for (int n = 0; n < 300; n++) {
        const tandem_attention op = random_job(&seed);
        const size_t rows = (size_t)op.batch * op.heads * op.q_len;
        unsigned char *seen = calloc(rows, 1);
        uint32_t pieces, cuts = cut_finely(&op, &pieces);

        assert_non_null(seen);
        most = pieces > most ? pieces : most;
        for (uint32_t i = 0; i < pieces; i++) {
            tandem_attention part = op;
            const uint32_t last_keys = pieces > 1 ? td_slice(&op, cuts, i, &part) : 0;

            for (uint32_t b = 0; b < part.batch; b++)
                for (uint32_t h = 0; h < part.heads; h++) {
                    const uint64_t o = part.o.offset_bytes / 4 / op.head_dim + ((uint64_t)b * op.heads + h) * op.q_len;
                    const uint64_t q = part.q.offset_bytes / 2 / op.head_dim + ((uint64_t)b * op.heads + h) * op.q_len;
                    const uint64_t head = o / op.q_len % op.heads, batch = o / op.q_len / op.heads;
                    const uint64_t k = part.k.offset_bytes / 2 / op.head_dim +
                                       ((uint64_t)b * op.kv_heads + h / (part.heads / part.kv_heads)) * op.kv_len;

                    assert_true(o == q && part.v.offset_bytes == part.k.offset_bytes);
                    assert_true(k / op.kv_len == batch * op.kv_heads + head / (op.heads / op.kv_heads));
                    assert_true(part.kv_len == op.kv_len && o + part.q_len <= rows);
                    assert_true(last_keys <= op.kv_len && (last_keys || !op.causal || part.q_len == op.q_len));
                    if (last_keys)
                        assert_true(op.causal && last_keys + op.q_len == op.kv_len + o % op.q_len + part.q_len);
                    for (uint32_t r = 0; r < part.q_len; r++)
                        assert_int_equal(seen[o + r]++, 0);
                }
        }
        for (size_t r = 0; r < rows; r++)
            assert_int_equal(seen[r], 1);
        free(seen);
    }
    assert_true(most > 20);
}

/* How often a row of a causal piece attends to a key. */
static uint64_t count_pairs(const tandem_attention *part, uint32_t last_keys)
{
    uint64_t pairs = 0;

    for (uint32_t r = 0; r < part->q_len; r++)
        if (last_keys + r + 1 > part->q_len)
            pairs += last_keys + r + 1 - part->q_len;
    return pairs;
}

/* Later rows of a causal head see more keys: pieces are as long as their share of the work allows, in whole tiles, but
 * not so short that K and V are quantised again for little. */
static void test_causal_heads_are_cut_by_work(void **state)
{
    static const uint32_t lengths[][2] = {{65536, 65536}, {16384, 65536}, {65536, 16384}, {8000, 3000}, {3000, 1800}};
    enum { WANTED = 8, LEAST = 1152, BLOCK = 384 };

    (void)state;
    for (int n = 0; n < 5; n++) {
        static const td_costs costs = {.is_gpu = true};
        tandem_attention op = {.batch = 1,
                               .heads = 1,
                               .kv_heads = 1,
                               .q_len = lengths[n][0],
                               .kv_len = lengths[n][1],
                               .head_dim = 64,
                               .causal = 1,
                               .precision = TANDEM_PRECISION_8B};
        const uint64_t guess = td_cost_guess(&costs, &op, 0);
        const uint64_t all = count_pairs(&op, op.kv_len), idle = op.q_len > op.kv_len ? op.q_len - op.kv_len : 0;
        uint64_t row = 0, pairs = 0, cost = 0;
        uint32_t pieces, cuts;

        op.q = dense(TANDEM_DTYPE_F16, 1, op.q_len, 64);
        op.k = op.v = dense(TANDEM_DTYPE_F16, 1, op.kv_len, 64);
        op.o = dense(TANDEM_DTYPE_F32, 1, op.q_len, 64);
        cuts = td_slices(&costs, &op, guess / WANTED, &pieces);
        assert_true(pieces > 1);
        for (uint32_t i = 0; i < pieces; i++) {
            tandem_attention part = op, more = op;
            const uint32_t last_keys = td_slice(&op, cuts, i, &part);
            const uint64_t here = count_pairs(&part, last_keys), begin = row > idle ? row : idle;

            row += part.q_len;
            pairs += here;
            cost += td_cost_part(&costs, &op, &part, last_keys);
            assert_true(here > 0 && last_keys + op.q_len == row + op.kv_len);
            assert_true(here * WANTED <= all || row - begin <= LEAST);
            more.q_len = part.q_len + BLOCK;
            assert_true(row % BLOCK == 0 || row == op.q_len);
            if (row + BLOCK < op.q_len && row - begin > LEAST)
                assert_true(count_pairs(&more, last_keys + BLOCK) * (WANTED + 1) > all);
        }
        assert_int_equal(row, op.q_len);
        assert_int_equal(pairs, all);
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
    td_cost_learn(&costs, &part, 1152, 0, 1000, 0, true, 1000);
    td_cost_learn(&costs, &part, 65536, 0, 50000, 0, true, 50000);
    assert_int_equal(td_cost_guess(&costs, &part, 1152), 1000);
    assert_int_equal(td_cost_guess(&costs, &part, 65536), 50000);
    assert_true(td_cost_guess(&costs, &part, 40000) > td_cost_guess(&costs, &part, 20000) * 3 / 2);
}

/* Their scales lie behind all codes. */
static void test_codes_are_not_cut(void **state)
{
    uint64_t seed = 9;
    uint32_t pieces = 0;

    (void)state;
    for (int n = 0; n < 50; n++) {
        tandem_attention op = random_job(&seed);

        op.q.dtype = op.k.dtype = TANDEM_DTYPE_CODES_INT8;
        op.v.dtype = TANDEM_DTYPE_CODES_E4M3;
        assert_int_equal(cut_finely(&op, &pieces), 1);
        assert_int_equal(pieces, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_are_the_job),
        cmocka_unit_test(test_causal_heads_are_cut_by_work),
        cmocka_unit_test(test_causal_pieces_are_learned_apart),
        cmocka_unit_test(test_codes_are_not_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
