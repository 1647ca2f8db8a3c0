/* F16's kernels by wgmma, on tensors as they lie in memory: alone, in teams, sharing keys, and in command buffers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/emulated/rig.h"

/* F16 by wgmma, on tensors as they lie in memory. */
static void test_direct(void **state)
{
    static const uint32_t dims[] = {64, 80, 96, 128};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{1, 1, 65, 129, 0}, {1, 1, 130, 300, 1}, {2, 1, 1, 64, 0}, {1, 1, 200, 70, 1}};
    static const uint32_t lengths[] = {1, 63, 64, 65};

    (void)state;
    for (uint32_t type = TANDEM_DTYPE_F16; type <= TANDEM_DTYPE_BF16; type++)
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t s = 0; s < 4; s++) {
                if (quick ? s != i : (s + type) % 2)
                    continue;
                check(em_module_of(90), 90,
                      &(tu_shape){.heads = sizes[s].heads,
                                  .kv_heads = sizes[s].kv_heads,
                                  .q_len = sizes[s].q_len,
                                  .kv_len = sizes[s].kv_len,
                                  .head_dim = dims[i],
                                  .causal = sizes[s].causal,
                                  .precision = TANDEM_PRECISION_F16,
                                  .dtype_q = type,
                                  .dtype_k = type,
                                  .dtype_v = type,
                                  .dtype_o = 1 + (s + i) % 3,
                                  .layout = s % 2 ? TU_BY_ROW : TU_DENSE,
                                  .lse = s != 1,
                                  .v_bias = 1,
                                  .seed = 100 + 5 * i + s},
                      (options){.stream = true});
            }
    /* so many keys that the stages are used again, twice or more */
    for (uint32_t i = 0; i < 4; i++)
        if (!quick || i % 2 == 0)
            check(em_module_of(90), 90,
                  &(tu_shape){.q_len = 2,
                              .kv_len = 1000,
                              .head_dim = dims[i],
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = 1,
                              .dtype_k = 1,
                              .dtype_v = 1,
                              .seed = 40 + i},
                  (options){.stream = true, .dump = false, .schedules = quick ? 1 : 3});
    for (uint32_t q = 0; q < 4 && !quick; q++)
        for (uint32_t k = 0; k < 4; k++)
            check(em_module_of(90), 90,
                  &(tu_shape){.heads = 1 + (q + k) % 2,
                              .q_len = lengths[q],
                              .kv_len = lengths[k] + (k > 0) * 64,
                              .head_dim = dims[(q + k) % 4],
                              .causal = (q * 4 + k) / 3 % 2,
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = 1 + q % 2,
                              .dtype_k = 1 + q % 2,
                              .dtype_v = 1 + q % 2,
                              .lse = 1,
                              .seed = 50 + 4 * q + k},
                  (options){.stream = true, .schedules = 2});
    /* a bad V in a step that the mask cuts, scores of a wide range, more tiles than blocks take at a time */
    check(em_module_of(90), 90,
          &(tu_shape){.heads = 2,
                      .q_len = 150,
                      .kv_len = 170,
                      .head_dim = 64,
                      .causal = 1,
                      .precision = TANDEM_PRECISION_F16,
                      .dtype_q = 1,
                      .dtype_k = 1,
                      .dtype_v = 1,
                      .lse = 1,
                      .seed = 90},
          (options){.stream = true, .spoil = spoil_values});
    check(em_module_of(90), 90,
          &(tu_shape){.q_len = 40,
                      .kv_len = 400,
                      .head_dim = 64,
                      .scale = 1.5f,
                      .precision = TANDEM_PRECISION_F16,
                      .dtype_q = 2,
                      .dtype_k = 2,
                      .dtype_v = 2,
                      .lse = 1,
                      .seed = 91},
          (options){.stream = true});
    /* bases that move at every step, that stay though sums are large */
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t s = 0; s < 2; s++)
            check(em_module_of(90), 90,
                  &(tu_shape){.q_len = 130 + 64 * s,
                              .kv_len = 500 + s,
                              .head_dim = dims[i],
                              .causal = (i + s) % 2,
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = 1 + (i + s) / 2 % 2,
                              .dtype_k = 1 + (i + s) / 2 % 2,
                              .dtype_v = 1 + (i + s) / 2 % 2,
                              .lse = 1,
                              .seed = 93 + 2 * i + s},
                  (options){.stream = true, .split = TD_MOST_ROWS, .spoil = s ? sum_to_the_limit : move_bases});
    for (uint32_t causal = 0; causal < 2 && !quick; causal++)
        check(em_module_of(90), 90,
              &(tu_shape){.batch = 23,
                          .heads = 13,
                          .q_len = 4,
                          .kv_len = causal ? 20 : 140,
                          .head_dim = 64,
                          .causal = causal,
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .seed = 92},
              (options){.stream = true});
}

/* Head dim 64 again: blocks of two teams that have tiles of their own: none, one, several, pairs; warpgroups that stop before their team's last
 * step, rows without keys, rings that go round. Blocks are as many as `seed` says, of one to five multiprocessors. */
static void test_direct_teams(void **state)
{
    static const struct {
        uint32_t batch, heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{1, 1, 1, 65, 129, 0},  {2, 2, 1, 130, 300, 1}, {1, 1, 1, 1, 1, 0},    {1, 2, 2, 300, 70, 1},
                 {1, 1, 1, 2, 1200, 0},  {2, 4, 2, 256, 256, 1}, {3, 5, 5, 20, 100, 0}, {1, 3, 1, 520, 520, 1},
                 {1, 1, 1, 10, 1500, 1}, {1, 6, 6, 129, 64, 1},  {1, 2, 1, 400, 200, 0}, {2, 3, 3, 64, 65, 1}};

    (void)state;
    for (uint32_t s = 0; s < 12; s++)
        for (uint32_t type = TANDEM_DTYPE_F16; type <= TANDEM_DTYPE_BF16; type++) {
            if (quick && (s + type) % 3)
                continue;
            check(em_module_of(90), 90,
                  &(tu_shape){.batch = sizes[s].batch,
                              .heads = sizes[s].heads,
                              .kv_heads = sizes[s].kv_heads,
                              .q_len = sizes[s].q_len,
                              .kv_len = sizes[s].kv_len,
                              .head_dim = 64,
                              .causal = sizes[s].causal,
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = type,
                              .dtype_k = type,
                              .dtype_v = type,
                              .dtype_o = 1 + s % 3,
                              .layout = s % 3 == 2 ? TU_BATCH_LAST : (tu_layout)(s % 3),
                              .lse = s % 2,
                              .v_bias = 1,
                              .seed = 830 + 3 * s + type},
                  (options){.stream = true, .split = TD_MOST_ROWS, .schedules = quick ? 1 : 3});
        }
    /* bad values, of V in steps that the mask cuts, too; scores of a wide range, bases that move, that stay */
    for (uint32_t i = 0; i < 8; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.heads = 2,
                          .q_len = 150 + 64 * (i % 2),
                          .kv_len = 170 + 300 * (i / 4),
                          .head_dim = 64,
                          .causal = i % 3 != 2,
                          .scale = i == 1 ? 1.5f : 0,
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1 + i / 2 % 2,
                          .dtype_k = 1 + i / 2 % 2,
                          .dtype_v = 1 + i / 2 % 2,
                          .lse = 1,
                          .seed = 870 + i},
              (options){.stream = true,
                        .split = TD_MOST_ROWS,
                        .spoil = i < 4 ? i == 1 ? NULL : spoil_values : i % 2 ? sum_to_the_limit : move_bases});
}

/* The same by warpgroups that share the keys, four of 64 rows or (at head dim 64) two pairs of 128: fewer steps than teams,
 * as many, so many that rings go round; rows without keys, parts without keys. */
static void test_direct_split(void **state)
{
    static const uint32_t dims[] = {64, 80, 96, 128}, lengths[] = {1, 63, 64, 65};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 65, 129, 0}, {1, 1, 130, 900, 1}, {1, 1, 1, 1, 0},     {2, 2, 200, 70, 1},
                 {1, 1, 64, 2200, 0}, {1, 1, 63, 640, 0}, {1, 1, 300, 260, 1}, {1, 1, 10, 1500, 1}};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t s = 0; s < 8; s++)
            for (uint32_t members = 1; members <= (i ? 1 : 2); members++) {
                const uint32_t type = 1 + (s + i / 2 + members) % 2;
                if (quick && s % 4 != (i + members) % 4)
                    continue;
                check(em_module_of(90), 90,
                      &(tu_shape){.heads = sizes[s].heads,
                                  .kv_heads = sizes[s].kv_heads,
                                  .q_len = sizes[s].q_len,
                                  .kv_len = sizes[s].kv_len,
                                  .head_dim = dims[i],
                                  .causal = sizes[s].causal,
                                  .precision = TANDEM_PRECISION_F16,
                                  .dtype_q = type,
                                  .dtype_k = type,
                                  .dtype_v = type,
                                  .dtype_o = 1 + (s + i) % 3,
                                  .layout = s % 3 == 2 ? TU_BATCH_LAST : (tu_layout)(s % 3),
                                  .lse = (s + i) % 2,
                                  .v_bias = 1,
                                  .seed = 700 + 16 * i + 2 * s + members},
                      (options){.stream = true,
                                .split = members == 1 ? TD_SPLIT_ROWS : TD_PAIR_ROWS,
                                .schedules = quick ? 1 : 2});
            }
    for (uint32_t q = 0; q < 4 && !quick; q++)
        for (uint32_t k = 0; k < 4; k++)
            check(em_module_of(90), 90,
                  &(tu_shape){.heads = 1 + (q + k) % 2,
                              .q_len = lengths[q],
                              .kv_len = lengths[k] + k % 3 * 128,
                              .head_dim = k % 2 ? dims[(q + k / 2) % 4] : 64,
                              .causal = (q * 4 + k) / 3 % 2,
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = 1 + q % 2,
                              .dtype_k = 1 + q % 2,
                              .dtype_v = 1 + q % 2,
                              .lse = 1,
                              .seed = 770 + 4 * q + k},
                  (options){.stream = true, .split = k % 2 ? TD_SPLIT_ROWS : TD_PAIR_ROWS, .schedules = 2});
    /* bad values, of V in steps that the mask cuts, too; scores of a wide range */
    for (uint32_t i = 0; i < 8; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.heads = 2,
                          .q_len = 150,
                          .kv_len = 170,
                          .head_dim = i < 4 ? dims[i] : 64,
                          .causal = 1,
                          .scale = i % 4 == 1 ? 1.5f : 0,
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1 + i / 2 % 2,
                          .dtype_k = 1 + i / 2 % 2,
                          .dtype_v = 1 + i / 2 % 2,
                          .lse = 1,
                          .seed = 790 + i},
              (options){.stream = true,
                        .split = i < 4 ? TD_SPLIT_ROWS : TD_PAIR_ROWS,
                        .spoil = i % 4 == 1 ? NULL : spoil_values});
    /* every entry */
    for (uint32_t i = 0; i < 10; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.q_len = 65,
                          .kv_len = 70,
                          .head_dim = i < 8 ? dims[i % 4] : 64,
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = i < 8 ? 1 + i / 4 : i - 7,
                          .dtype_k = i < 8 ? 1 + i / 4 : i - 7,
                          .dtype_v = i < 8 ? 1 + i / 4 : i - 7,
                          .seed = 810 + i},
              (options){.stream = true, .split = i < 8 ? TD_SPLIT_ROWS : TD_PAIR_ROWS, .schedules = 1});
}

/* The same in command buffers: rings of 4 or 5 slots of 32, 48 or 64 keys, rounded several times, and across tiles of rows;
 * blocks of two sizes, as seeds are even or odd. */
static void test_direct_inline(void **state)
{
    static const uint32_t dims[] = {64, 80, 96, 128}, lengths[] = {1, 31, 32, 33, 48, 63, 64, 65};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 65, 129, 0}, {1, 1, 330, 500, 1}, {1, 1, 1, 1, 0}, {2, 2, 200, 70, 1}, {1, 1, 64, 700, 0}};

    (void)state;
    for (uint32_t type = TANDEM_DTYPE_F16; type <= TANDEM_DTYPE_BF16; type++)
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t s = 0; s < 5; s++) {
                if (quick ? s != i || (s + type) % 2 : (s + type) % 2)
                    continue;
                check(em_module_of(90), 90,
                      &(tu_shape){.heads = sizes[s].heads,
                                  .kv_heads = sizes[s].kv_heads,
                                  .q_len = sizes[s].q_len,
                                  .kv_len = sizes[s].kv_len,
                                  .head_dim = dims[i],
                                  .causal = sizes[s].causal,
                                  .precision = TANDEM_PRECISION_F16,
                                  .dtype_q = type,
                                  .dtype_k = type,
                                  .dtype_v = type,
                                  .dtype_o = 1 + (s + i) % 3,
                                  .layout = s % 2 ? TU_BY_ROW : TU_DENSE,
                                  .lse = s != 1,
                                  .v_bias = 1,
                                  .seed = 300 + 5 * i + s},
                      (options){.schedules = quick ? 1 : 3});
            }
    for (uint32_t q = 0; q < 8 && !quick; q++)
        for (uint32_t k = 0; k < 8; k++)
            check(em_module_of(90), 90,
                  &(tu_shape){.heads = 1 + (q + k) % 2,
                              .q_len = lengths[q],
                              .kv_len = lengths[k] + (k % 2) * 64,
                              .head_dim = dims[(q + k) % 4],
                              .causal = (q * 8 + k) / 3 % 2,
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = 1 + q % 2,
                              .dtype_k = 1 + q % 2,
                              .dtype_v = 1 + q % 2,
                              .lse = 1,
                              .seed = 340 + 8 * q + k},
                  (options){.schedules = 2});
    /* a bad V in steps that the mask cuts, scores of a wide range, blocks with several tiles of rows */
    for (uint32_t i = 0; i < 4; i++)
        if (!quick || i == 3)
            check(em_module_of(90), 90,
                  &(tu_shape){.heads = 2,
                              .q_len = 150,
                              .kv_len = 170,
                              .head_dim = dims[i],
                              .causal = 1,
                              .precision = TANDEM_PRECISION_F16,
                              .dtype_q = 1,
                              .dtype_k = 1,
                              .dtype_v = 1,
                              .lse = 1,
                              .seed = 390 + i},
                  (options){.spoil = spoil_values, .schedules = quick ? 1 : 3});
    check(em_module_of(90), 90,
          &(tu_shape){.q_len = 40,
                      .kv_len = 400,
                      .head_dim = 64,
                      .scale = 1.5f,
                      .precision = TANDEM_PRECISION_F16,
                      .dtype_q = 2,
                      .dtype_k = 2,
                      .dtype_v = 2,
                      .lse = 1,
                      .seed = 395},
          (options){0});
    /* every entry: long and short blocks of both types */
    for (uint32_t i = 0; i < 16; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.q_len = 65,
                          .kv_len = 70,
                          .head_dim = dims[i % 4],
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1 + i / 4 % 2,
                          .dtype_k = 1 + i / 4 % 2,
                          .dtype_v = 1 + i / 4 % 2,
                          .seed = 400 + i},
              (options){.split = i < 8 ? TD_SHORT_ROWS : TD_MOST_ROWS, .schedules = 1});
    for (uint32_t causal = 0; causal < 2 && !quick; causal++)
        check(em_module_of(90), 90,
              &(tu_shape){.batch = 23,
                          .heads = 13,
                          .q_len = 4,
                          .kv_len = causal ? 20 : 140,
                          .head_dim = causal ? 128 : 64,
                          .causal = causal,
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .seed = 397},
              (options){.schedules = 2});
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_direct),
    cmocka_unit_test(test_direct_teams),
    cmocka_unit_test(test_direct_split),
    cmocka_unit_test(test_direct_inline),
};
const test_cases kernels_direct_cases = TEST_CASES(cases);
