/* Kernels that compute on codes: by mma.sync of each GPU, and by wgmma on streams and in command buffers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/attention/cpu.h"
#include "tests/kernels/emulated/rig.h"

/* Every precision and head dim on the kernels of mma.sync, whatever they are on this GPU. */
static void check_mma(uint32_t sm)
{
    static const uint32_t dims[] = {32, 64, 80, 128, 256}, precisions[] = {TANDEM_PRECISION_8B, TANDEM_PRECISION_4B,
                                                                          TANDEM_PRECISION_F16};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{1, 1, 64, 64, 0}, {2, 1, 1, 65, 1}, {1, 1, 63, 130, 1}, {2, 2, 65, 63, 0}, {1, 1, 65, 1, 1}};
    static const uint32_t lengths[] = {1, 63, 64, 65, 130};
    em_module *on = em_module_of(sm);

    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t i = 0; i < 5; i++) {
            const uint32_t size = (i + p) % 5;
            tu_shape shape = {.heads = sizes[size].heads,
                              .kv_heads = sizes[size].kv_heads,
                              .q_len = sizes[size].q_len,
                              .kv_len = sizes[size].kv_len,
                              .head_dim = dims[i],
                              .causal = sizes[size].causal,
                              .precision = precisions[p],
                              .lse = i % 2,
                              .k_bias = 1,
                              .v_bias = 1,
                              .seed = 10 * p + i};

            check(on, sm, &shape, (options){.dump = true, .schedules = !quick && i == 1 ? 3 : 1});
            if (p == 2 || (quick && i % 2))
                continue;
            /* of sixteen bits, with another prologue from sm_89 on */
            shape.dtype_q = shape.dtype_k = shape.dtype_v = 1 + (i + p) % 2;
            shape.dtype_o = 1 + i % 3;
            shape.layout = (tu_layout)(i % 4);
            check(on, sm, &shape, (options){.dump = true});
        }
    for (uint32_t q = 0; q < 4; q++)
        for (uint32_t k = 0; k < 5; k++)
            if (!quick || k == q)
                check(on, sm,
                      &(tu_shape){.heads = 2,
                                  .kv_heads = 1 + (q + k) % 2,
                                  .q_len = lengths[q],
                                  .kv_len = lengths[k],
                                  .head_dim = k % 2 ? 64 : 32,
                                  .causal = (q * 5 + k) / 3 % 2,
                                  .precision = precisions[(q * 5 + k) % 3],
                                  .dtype_q = q % 3,
                                  .dtype_k = q % 3,
                                  .dtype_v = q % 3,
                                  .lse = k % 2,
                                  .seed = 20 + 5 * q + k},
                      (options){.dump = true, .schedules = k == 3 ? 2 : 1});
    /* fp16 codes of V, which later GPUs have kernels for, too */
    for (uint32_t i = 0; sm > 80 && i < 5; i++)
        check(on, 80, &(tu_shape){.q_len = 33, .kv_len = 70, .head_dim = dims[i], .precision = TANDEM_PRECISION_8B, .seed = 40 + i},
              (options){.dump = true});
    check(on, sm,
          &(tu_shape){.batch = 1 + !quick,
                      .heads = 2,
                      .kv_heads = 1,
                      .q_len = 150,
                      .kv_len = 140,
                      .head_dim = 32,
                      .causal = 1,
                      .lse = 1,
                      .layout = TU_GAPS,
                      .dtype_o = TANDEM_DTYPE_BF16,
                      .precision = TANDEM_PRECISION_8B,
                      .seed = 50},
          (options){.commit = true});
    for (uint32_t type = quick ? 1 : 0; type < 2; type++)
        check(on, sm,
              &(tu_shape){.heads = 2,
                          .q_len = 70,
                          .kv_len = 200,
                          .head_dim = 32,
                          .dtype_q = type,
                          .dtype_k = type,
                          .dtype_v = type,
                          .precision = TANDEM_PRECISION_8B,
                          .seed = 51},
              (options){.dump = true, .spoil = spoil_values});
    if (!quick)
        for (uint32_t g = TANDEM_GRANULARITY_THREAD_ADA; g <= TANDEM_GRANULARITY_TENSOR; g++)
            check(on, sm,
                  &(tu_shape){.q_len = 70,
                              .kv_len = 140,
                              .head_dim = 64,
                              .granularity = g,
                              .smooth = g % 2 ? 14 : TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K,
                              .lse = 1,
                              .dtype_q = g % 3,
                              .dtype_k = g % 3,
                              .dtype_v = g % 3,
                              .precision = g % 2 ? TANDEM_PRECISION_8B : TANDEM_PRECISION_4B,
                              .k_bias = 3,
                              .v_bias = 5,
                              .seed = 60 + g},
                  (options){.prologue_only = true});
}

static void test_sm80(void **state)
{
    (void)state;
    check_mma(80);
}

static void test_sm89(void **state)
{
    (void)state;
    check_mma(89);
}

static void test_sm90(void **state)
{
    (void)state;
    check_mma(90);
}

static void test_sm120(void **state)
{
    (void)state;
    check_mma(120);
}

/* Head dims for which there is no kernel: on those of the next larger one, whose other channels stay 0 and go nowhere. */
static void test_padded_dims(void **state)
{
    static const uint32_t dims[] = {40, 48, 72, 112, 160, 192}, sms[] = {80, 89, 90, 90, 120};
    static const uint32_t precisions[] = {TANDEM_PRECISION_8B, TANDEM_PRECISION_F16, TANDEM_PRECISION_4B};

    (void)state;
    for (uint32_t i = 0; i < 6; i++)
        for (uint32_t s = 0; s < 5; s++) {
            const bool stream = s == 3; /* by wgmma */
            if (quick && (i + s) % 3)
                continue;
            for (uint32_t p = 0; p < (stream ? 2 : 3); p++)
                check(em_module_of(sms[s]), sms[s],
                      &(tu_shape){.heads = 2,
                                  .kv_heads = 1 + i % 2,
                                  .q_len = stream ? 65 : 33,
                                  .kv_len = stream ? 129 : 70,
                                  .head_dim = dims[i],
                                  .causal = (i + s + p) % 2,
                                  .precision = precisions[p],
                                  .dtype_q = (s + p) % 3, /* of sixteen bits another prologue makes the codes */
                                  .dtype_k = (s + p) % 3,
                                  .dtype_v = (s + p) % 3,
                                  .dtype_o = 1 + (i + p) % 3,
                                  .layout = (tu_layout)((i + s) % 4),
                                  .lse = p == 0,
                                  .k_bias = 1,
                                  .v_bias = 1,
                                  .seed = 700 + 30 * p + 5 * i + s},
                      (options){.stream = stream, .most_l1 = precisions[p] == TANDEM_PRECISION_4B  ? 0.5
                                                             : precisions[p] == TANDEM_PRECISION_8B ? 0.1
                                                                                                    : 5e-3});
        }
}

/* The 8b kernels of wgmma, and the prologue that goes with them. */
static void test_wgmma(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 128};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 65, 129, 0}, {1, 1, 130, 257, 1}, {1, 1, 1, 1, 0}, {2, 2, 200, 70, 1}, {1, 1, 64, 128, 0}};
    static const uint32_t lengths[] = {1, 63, 64, 65};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            if (quick ? s != i : s == i)
                continue;
            const tu_shape shape = {.heads = sizes[s].heads,
                                    .kv_heads = sizes[s].kv_heads,
                                    .q_len = sizes[s].q_len,
                                    .kv_len = sizes[s].kv_len,
                                    .head_dim = dims[i],
                                    .causal = sizes[s].causal,
                                    .precision = TANDEM_PRECISION_8B,
                                    .dtype_q = 1 + s % 2,
                                    .dtype_k = 1 + s % 2,
                                    .dtype_v = 1 + s % 2,
                                    .dtype_o = 1 + (s + i) % 3,
                                    .layout = (tu_layout)(s % 4),
                                    .lse = (s + i) % 4 == 0,
                                    .k_bias = 1,
                                    .v_bias = 1,
                                    .seed = 70 + 5 * i + s};

            check(em_module_of(90), 90, &shape, (options){.stream = true, .dump = true});
            if (s < 2 || quick)
                check(em_module_of(90), 90, &shape, (options){.stream = true, .schedules = quick ? 1 : 2});
        }
    /* so many keys that the stages are used again, twice or more */
    for (uint32_t i = 0; i < 4; i++)
        if (!quick || i % 2 == 0)
            check(em_module_of(90), 90,
                  &(tu_shape){.q_len = 2,
                              .kv_len = dims[i] <= 64 ? 1700 : 1000,
                              .head_dim = dims[i],
                              .precision = TANDEM_PRECISION_8B,
                              .dtype_q = 1,
                              .dtype_k = 1,
                              .dtype_v = 1,
                              .seed = 40 + i},
                  (options){.stream = true, .dump = i % 2, .schedules = quick ? 1 : 3});
    for (uint32_t q = 0; q < 4 && !quick; q++)
        for (uint32_t k = 0; k < 4; k++)
            check(em_module_of(90), 90,
                  &(tu_shape){.heads = 1 + (q + k) % 2,
                              .q_len = lengths[q],
                              .kv_len = lengths[k] + (k > 0) * 64,
                              .head_dim = dims[(q + k) % 4],
                              .causal = (q * 4 + k) / 3 % 2,
                              .precision = TANDEM_PRECISION_8B,
                              .dtype_q = 1 + q % 2,
                              .dtype_k = 1 + q % 2,
                              .dtype_v = 1 + q % 2,
                              .seed = 20 + 4 * q + k},
                  (options){.stream = true, .dump = k % 2, .schedules = 2});
    check(em_module_of(90), 90,
          &(tu_shape){.heads = 2,
                      .q_len = 70,
                      .kv_len = 200,
                      .head_dim = 64,
                      .dtype_q = 1,
                      .dtype_k = 1,
                      .dtype_v = 1,
                      .precision = TANDEM_PRECISION_8B,
                      .seed = 95},
          (options){.stream = true, .dump = true, .spoil = spoil_values});
    for (uint32_t i = 0; i < 12; i++) /* by both kernels of streams, and by that of command buffers */
        check(em_module_of(90), 90,
              &(tu_shape){.q_len = 20,
                          .kv_len = 2 * TD_HOPPER_R_KEYS + 6,
                          .head_dim = dims[i / 3],
                          .precision = TANDEM_PRECISION_8B,
                          .smooth = TANDEM_SMOOTH_NONE,
                          .scale = TD_LN_2 / (float)dims[i / 3],
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .lse = 1,
                          .seed = 96 + i % 3},
              (options){.stream = i % 3 < 2, .spoil = fill_to_the_limit});
}

/* Signs, so that row r's key is 7 r modulo the keys, and all others are far from it. */
static float far_apart;
static void set_far_apart(tu_case *it)
{
    const uint32_t keys = it->op.kv_len, rows = it->op.q_len;

    for (uint32_t key = 0; key < keys; key++)
        for (uint32_t c = 0; c < it->op.head_dim; c++) {
            uint64_t state = key * 1000 + c;
            const float x = tu_random(&state) % 2 ? far_apart : -far_apart;

            tu_set(&it->k, 0, 0, key, c, (double)x);
            for (uint32_t row = 0; row < rows; row++)
                if (7 * row % keys == key)
                    tu_set(&it->q, 0, 0, row, c, (double)x);
        }
}

/* Scores beyond what floats resolve: up to 2^33. */
static void test_far_apart(void **state)
{
    static const struct {
        uint32_t head_dim;
        bool stream;
        td_rows split;
    } kinds[] = {{32, true, 0}, {128, true, 0}, {64, false, 0}, {96, false, 0}, {64, true, TD_SPLIT_ROWS}, {256, true, 0}};
    static const float sizes[] = {100, 700, 1500, 3000, 4000, 6000, 11000, 30000};

    (void)state;
    for (uint32_t i = 0; i < 6; i++)
        for (uint32_t s = 0; s < 8; s++) {
            if (quick && (i + s) % 4)
                continue;
            far_apart = sizes[s];
            check(em_module_of(90), 90,
                  &(tu_shape){.q_len = 70,
                              .kv_len = 300,
                              .head_dim = kinds[i].head_dim,
                              .precision = TANDEM_PRECISION_8B,
                              .smooth = s % 2 ? TANDEM_SMOOTH_NONE : 0,
                              .dtype_q = 1,
                              .dtype_k = 1,
                              .dtype_v = 1,
                              .dtype_o = 3,
                              .lse = 1,
                              .seed = 400 + s},
                  (options){.stream = kinds[i].stream, .split = kinds[i].split, .spoil = set_far_apart, .most_l1 = 0.05});
        }
    for (uint32_t s = 0; s < 8; s++) {
        far_apart = sizes[s];
        check(em_module_of(90), 90,
              &(tu_shape){.q_len = 70,
                          .kv_len = 300,
                          .head_dim = 64,
                          .precision = TANDEM_PRECISION_F16,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .dtype_o = 3,
                          .lse = 1,
                          .seed = 410 + s},
              (options){.stream = s % 2, .spoil = set_far_apart, .most_l1 = 0.001});
    }
}

/* The 8b kernel of head dim 256 by wgmma: both warpgroups, each of their rows, slots used several times. */
static void test_wgmma_256(void **state)
{
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 65, 129, 0}, {1, 1, 130, 257, 1}, {1, 1, 1, 1, 0},    {2, 2, 200, 70, 1},
                 {1, 1, 64, 128, 0}, {4, 2, 3, 65, 0},    {1, 1, 2, 1300, 0}, {1, 1, 129, 700, 1}};

    (void)state;
    for (uint32_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const tu_shape shape = {.heads = sizes[s].heads,
                                .kv_heads = sizes[s].kv_heads,
                                .q_len = sizes[s].q_len,
                                .kv_len = sizes[s].kv_len,
                                .head_dim = 256,
                                .causal = sizes[s].causal,
                                .precision = TANDEM_PRECISION_8B,
                                .dtype_q = 1 + s % 2,
                                .dtype_k = 1 + s % 2,
                                .dtype_v = 1 + s % 2,
                                .dtype_o = 1 + s % 3,
                                .layout = (tu_layout)(s % 4),
                                .lse = s % 4 == 0,
                                .k_bias = 1,
                                .v_bias = 1,
                                .seed = 300 + s};

        if (quick && s != 1 && s != 3)
            continue;
        check(em_module_of(90), 90, &shape, (options){.stream = true, .dump = true});
        check(em_module_of(90), 90, &shape, (options){.stream = true, .schedules = quick ? 1 : 2});
    }
    for (uint32_t i = 0; i < 2; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.heads = 2,
                          .q_len = 70,
                          .kv_len = 200,
                          .head_dim = 256,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .precision = TANDEM_PRECISION_8B,
                          .seed = 310},
              (options){.stream = true, .dump = i, .spoil = spoil_values});
    for (uint32_t i = 0; i < 4; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.q_len = 20,
                          .kv_len = 2 * TD_HOPPER_R_KEYS + 6,
                          .head_dim = 256,
                          .precision = TANDEM_PRECISION_8B,
                          .smooth = TANDEM_SMOOTH_NONE,
                          .scale = TD_LN_2 / 256,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .lse = 1,
                          .seed = 311},
              (options){.stream = true, .dump = i / 2, .spoil = i % 2 ? move_bases : fill_to_the_limit});
}

/* The 8b kernel whose blocks walk, by one to five of them: tiles without keys and of a few, rings that go on from one tile to
 * the next, heads by chunks, tiles that end in the middle of a warpgroup's rows or before some of them. */
static void test_wgmma_walk(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 128};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 300, 129, 0}, {3, 3, 400, 300, 1}, {6, 2, 1, 1, 0}, {2, 2, 600, 70, 1},
                 {2, 1, 260, 1100, 1}, {5, 1, 200, 260, 1}};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t s = 0; s < 6; s++)
            if (!quick || (s + i) % 3 == 1)
                check(em_module_of(90), 90,
                      &(tu_shape){.heads = sizes[s].heads,
                                  .kv_heads = sizes[s].kv_heads,
                                  .q_len = sizes[s].q_len,
                                  .kv_len = sizes[s].kv_len,
                                  .head_dim = dims[i],
                                  .causal = sizes[s].causal,
                                  .precision = TANDEM_PRECISION_8B,
                                  .smooth = s % 2 ? TANDEM_SMOOTH_V : 0,
                                  .dtype_q = 1 + s % 2,
                                  .dtype_k = 1 + s % 2,
                                  .dtype_v = 1 + s % 2,
                                  .dtype_o = (s + i) % 3,
                                  .layout = (tu_layout)(s % 4),
                                  .lse = (s + i) % 2,
                                  .k_bias = 1,
                                  .v_bias = 1,
                                  .seed = 330 + 6 * i + s},
                      (options){.stream = true, .split = TD_MOST_ROWS, .schedules = quick ? 1 : 2});
    for (uint32_t i = 0; i < 4; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.heads = 2,
                          .q_len = 270,
                          .kv_len = 600,
                          .head_dim = dims[i],
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .lse = 1,
                          .precision = TANDEM_PRECISION_8B,
                          .seed = 355 + 5 * i},
              (options){.stream = true, .split = TD_MOST_ROWS, .spoil = i % 2 ? spoil_values : move_bases});
}

/* The 8b kernel whose warpgroups share the keys: fewer steps than warpgroups, as many, a few times as many; rows without keys,
 * parts without keys. */
static void check_split(bool stream)
{
    static const uint32_t dims[] = {32, 64, 80, 128, 64}; /* the last by pairs */
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 65, 129, 0}, {1, 1, 130, 900, 1}, {1, 1, 1, 1, 0},     {2, 2, 200, 70, 1},
                 {1, 1, 64, 2200, 0}, {1, 1, 63, 640, 0}, {1, 1, 300, 260, 1}, {1, 1, 10, 1500, 1}};

    for (uint32_t i = 0; i < 5; i++)
        for (uint32_t s = 0; s < 8; s++)
            if (!quick || s % 4 == i || i == 4)
                check(em_module_of(90), 90,
                      &(tu_shape){.heads = sizes[s].heads,
                                  .kv_heads = sizes[s].kv_heads,
                                  .q_len = sizes[s].q_len,
                                  .kv_len = sizes[s].kv_len,
                                  .head_dim = dims[i],
                                  .causal = sizes[s].causal,
                                  .precision = TANDEM_PRECISION_8B,
                                  .dtype_q = 1 + s % 2,
                                  .dtype_k = 1 + s % 2,
                                  .dtype_v = 1 + s % 2,
                                  .dtype_o = (s + i) % 3,
                                  .layout = (tu_layout)(s % 4),
                                  .lse = (s + i) % 2,
                                  .k_bias = 1,
                                  .v_bias = 1,
                                  .seed = 250 + 8 * i + s},
                      (options){.stream = stream, .split = i < 4 ? TD_SPLIT_ROWS : TD_PAIR_ROWS, .schedules = quick ? 1 : 2});
    for (uint32_t i = 0; i < 6; i++)
        check(em_module_of(90), 90,
              &(tu_shape){.heads = 2,
                          .q_len = 70,
                          .kv_len = 200 + 200 * (i % 4),
                          .head_dim = i < 4 ? dims[i] : 64,
                          .dtype_q = 1,
                          .dtype_k = 1,
                          .dtype_v = 1,
                          .lse = 1,
                          .precision = TANDEM_PRECISION_8B,
                          .seed = 290 + i},
              (options){.stream = stream,
                        .split = i < 4 ? TD_SPLIT_ROWS : TD_PAIR_ROWS,
                        .spoil = i % 2 ? spoil_values : fill_to_the_limit});
}

static void test_wgmma_split(void **state)
{
    (void)state;
    check_split(true);
}

static void test_inline_split(void **state)
{
    (void)state;
    check_split(false);
}

/* The 8b kernels of command buffers by wgmma: rings of 2, 3 and 4 slots, rounded several times. */
static void test_inline_wgmma(void **state)
{
    static const uint32_t dims[] = {32, 64, 80, 128}, lengths[] = {1, 63, 64, 65};
    static const struct {
        uint32_t heads, kv_heads, q_len, kv_len, causal;
    } sizes[] = {{2, 1, 65, 129, 0}, {1, 1, 130, 1000, 1}, {1, 1, 1, 1, 0}, {2, 2, 200, 70, 1}, {1, 1, 64, 700, 0}};

    (void)state;
    for (uint32_t i = 0; i < 8; i++) /* every entry */
        check(em_module_of(90), 90,
              &(tu_shape){.q_len = 65,
                          .kv_len = 70,
                          .head_dim = 32 + 32 * (i % 4),
                          .precision = TANDEM_PRECISION_8B,
                          .seed = 600 + i},
              (options){.split = i < 4 ? TD_SHORT_ROWS : TD_MOST_ROWS, .schedules = 1});
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t s = 0; s < 5; s++)
            if (!quick || s == i)
                check(em_module_of(90), 90,
                      &(tu_shape){.heads = sizes[s].heads,
                                  .kv_heads = sizes[s].kv_heads,
                                  .q_len = sizes[s].q_len,
                                  .kv_len = sizes[s].kv_len,
                                  .head_dim = dims[i],
                                  .causal = sizes[s].causal,
                                  .precision = TANDEM_PRECISION_8B,
                                  .dtype_q = 1,
                                  .dtype_k = 1,
                                  .dtype_v = 1,
                                  .dtype_o = (s + i) % 3,
                                  .lse = (s + i) % 2,
                                  .k_bias = 1,
                                  .v_bias = 1,
                                  .seed = 150 + 5 * i + s},
                      (options){.schedules = quick ? 1 : 3});
    for (uint32_t q = 0; q < 4 && !quick; q++)
        for (uint32_t k = 0; k < 4; k++)
            check(em_module_of(90), 90,
                  &(tu_shape){.heads = 1 + (q + k) % 2,
                              .q_len = lengths[q],
                              .kv_len = lengths[k] + (k > 0) * 64,
                              .head_dim = dims[(q + k) % 4],
                              .causal = (q * 4 + k) / 3 % 2,
                              .precision = TANDEM_PRECISION_8B,
                              .lse = 1,
                              .seed = 170 + 4 * q + k},
                  (options){.schedules = 2});
    check(em_module_of(90), 90,
          &(tu_shape){.heads = 2,
                      .q_len = 70,
                      .kv_len = 200,
                      .head_dim = 64,
                      .precision = TANDEM_PRECISION_8B,
                      .lse = 1,
                      .seed = 190},
          (options){.spoil = spoil_values});
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_sm80),
    cmocka_unit_test(test_sm89),
    cmocka_unit_test(test_sm90),
    cmocka_unit_test(test_sm120),
    cmocka_unit_test(test_padded_dims),
    cmocka_unit_test(test_wgmma),
    cmocka_unit_test(test_wgmma_256),
    cmocka_unit_test(test_wgmma_walk),
    cmocka_unit_test(test_far_apart),
    cmocka_unit_test(test_wgmma_split),
    cmocka_unit_test(test_inline_split),
    cmocka_unit_test(test_inline_wgmma),
};
const test_cases kernels_codes_cases = TEST_CASES(cases);
