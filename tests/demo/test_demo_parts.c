/* The demo's figures: accuracy against the oracle, PSNR, box filters, seams, percentiles, the command line.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "demo/adapt.h"
#include "demo/engine.h"
#include "demo/metrics.h"
#include "demo/mixture.h"
#include "demo/oidn.h"
#include "demo/options.h"
#include "demo/probe.h"
#include "demo/scene.h"
#include "kernels/attention/attention.h"
#include "kernels/target.h"

enum { BATCH = 3, Q_LEN = 40, KV_LEN = 70, DIM = 32, WIDTH = 48, HEIGHT = 32 };

static uint32_t seed = 1;

static float random_float(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / 8388608.0f - 1.0f;
}

/* A half of magnitude 2^-6 to 2: exponent 9 to 16. */
static uint16_t random_half(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (uint16_t)((seed >> 16 & 0x8000u) | ((9u + (seed >> 8 & 7u)) << 10) | (seed >> 12 & 1023u));
}

typedef struct tokens {
    uint16_t q[BATCH * Q_LEN * DIM], k[BATCH * KV_LEN * DIM], v[BATCH * KV_LEN * DIM], o[BATCH * Q_LEN * DIM];
    double exact[BATCH * Q_LEN * DIM];
} tokens;

/* Channels from 20 on are zero in K and V, as the padding of the demo's tokens is. */
static tokens *make_tokens(void)
{
    tokens *t = calloc(1, sizeof *t);
    assert_non_null(t);
    for (size_t i = 0; i < sizeof t->q / sizeof *t->q; i++)
        t->q[i] = random_half();
    for (size_t i = 0; i < sizeof t->k / sizeof *t->k; i++) {
        t->k[i] = i % DIM < 20 ? random_half() : 0;
        t->v[i] = i % DIM < 20 ? random_half() : 0;
    }
    tandem_view view = {.dtype = TANDEM_DTYPE_F16, .stride_row = DIM};
    tandem_attention op = {.batch = BATCH, .heads = 1, .kv_heads = 1, .q_len = Q_LEN, .kv_len = KV_LEN, .head_dim = DIM};
    op.scale = 0.5f;
    view.stride_batch = view.stride_head = Q_LEN * DIM;
    op.q = op.o = view;
    view.stride_batch = view.stride_head = KV_LEN * DIM;
    op.k = op.v = view;
    td_ref_attention(&op, t->q, t->k, t->v, t->exact, NULL);
    for (size_t i = 0; i < sizeof t->o / sizeof *t->o; i++)
        t->o[i] = random_half();
    return t;
}

static void test_probe_against_oracle(void **state)
{
    (void)state;
    tokens *t = make_tokens();
    demo_accuracy all = {0}, rows = {0}, part;
    double error = 0, absolute = 0, dot = 0, mine = 0, exact = 0, squared = 0;
    for (size_t i = 0; i < BATCH * Q_LEN * DIM; i++) {
        const double o = (double)demo_half_to_float(t->o[i]), x = t->exact[i];
        error += fabs(o - x);
        absolute += fabs(x);
        dot += o * x;
        mine += o * o;
        exact += x * x;
        squared += (o - x) * (o - x);
    }
    demo_probe_all(t->q, t->k, t->v, t->o, BATCH, Q_LEN, KV_LEN, DIM, 0.5f, 0, 2, &all);
    assert_int_equal(all.elements, BATCH * Q_LEN * DIM);
    assert_float_equal(demo_accuracy_rel_l1(&all), error / absolute, 1e-9);
    assert_float_equal(demo_accuracy_cos(&all), dot / sqrt(mine * exact), 1e-9);
    assert_float_equal(demo_accuracy_rmse(&all), sqrt(squared / (BATCH * Q_LEN * DIM)), 1e-9);

    /* Every fifth row, from each of the five it can begin with, is all of them. */
    for (uint32_t b = 0; b < BATCH; b++)
        for (uint32_t first = 0; first < 5; first++) {
            const size_t q = (size_t)b * Q_LEN * DIM, k = (size_t)b * KV_LEN * DIM;
            part = (demo_accuracy){0};
            demo_probe_rows(t->q + q, t->k + k, t->v + k, t->o + q, Q_LEN, KV_LEN, DIM, 0.5f, first, 5, 0, &part);
            assert_int_equal(part.elements, Q_LEN / 5 * DIM);
            demo_accuracy_merge(&rows, &part);
        }
    assert_float_equal(demo_accuracy_rel_l1(&rows), demo_accuracy_rel_l1(&all), 1e-9);

    part = (demo_accuracy){0};
    demo_probe_all(t->q, t->k, t->v, t->o, BATCH, Q_LEN, KV_LEN, DIM, 0.5f, 0.25, 1, &part);
    assert_float_equal(demo_accuracy_rel_l1(&part), demo_accuracy_rel_l1(&all) + 0.25, 1e-3);
    /* What was pushed away is in O now: who measures again finds the same. */
    rows = (demo_accuracy){0};
    demo_probe_all(t->q, t->k, t->v, t->o, BATCH, Q_LEN, KV_LEN, DIM, 0.5f, 0, 1, &rows);
    assert_float_equal(demo_accuracy_rel_l1(&rows), demo_accuracy_rel_l1(&part), 1e-9);
    free(t);
}

static void test_psnr_and_box(void **state)
{
    (void)state;
    float *reference = calloc(4 * WIDTH * HEIGHT, sizeof(float)), *noisy = calloc(4 * WIDTH * HEIGHT, sizeof(float));
    assert_true(reference && noisy);
    for (size_t i = 0; i < 4 * WIDTH * HEIGHT; i++)
        reference[i] = noisy[i] = 1.0f;
    assert_true(demo_psnr_db(noisy, reference, WIDTH, HEIGHT) > 150);
    /* 1 / (1 + 1) = 0.5 against 0.25 / 0.75 = 1 / 3: the error is 1 / 6. */
    for (size_t i = 0; i < 4 * WIDTH * HEIGHT; i++)
        noisy[i] = 0.5f;
    assert_float_equal(demo_psnr_db(noisy, reference, WIDTH, HEIGHT), 20 * log10(6.0), 1e-4);
    assert_float_equal(demo_best_box_db(noisy, reference, WIDTH, HEIGHT), 20 * log10(6.0), 1e-4);
    /* White noise falls with the area of the box: 7x7 wins, by 20 log10 7 and what the repeated edge costs. */
    for (size_t i = 0; i < 4 * WIDTH * HEIGHT; i++)
        noisy[i] = 1.0f + 0.05f * random_float();
    const double gain = demo_best_box_db(noisy, reference, WIDTH, HEIGHT) - demo_psnr_db(noisy, reference, WIDTH, HEIGHT);
    assert_true(gain > 14.5 && gain < 17.5);
    /* A pixel that is no number is black for both. */
    noisy[4 * (WIDTH * 7 + 9)] = NAN;
    assert_true(demo_psnr_db(noisy, reference, WIDTH, HEIGHT) < 50);
    assert_true(demo_best_box_db(noisy, reference, WIDTH, HEIGHT) < 60);
    free(reference);
    free(noisy);
}

/* Of one bright pixel 5x5 get a share; at a corner there are only 3x3 to share with. What is no number is black. */
static void test_box(void **state)
{
    (void)state;
    static float noisy[4 * 64 * 48], out[4 * 64 * 48];
    noisy[4 * (20 * 64 + 30)] = 25.0f;
    noisy[1] = 9.0f;
    noisy[4 * (40 * 64 + 10) + 2] = NAN;
    demo_box(noisy, 64, 48, out);
    assert_float_equal(out[4 * (22 * 64 + 28)], 1, 1e-6);
    assert_float_equal(out[4 * (23 * 64 + 30)], 0, 0);
    assert_float_equal(out[1], 1, 1e-6);
    assert_float_equal(out[4 * (40 * 64 + 10) + 2], 0, 0);
}

/* Where nothing counts the picture is grey and darker; what counts most is bright, in its colour; larger it is at the side. */
static void test_map(void **state)
{
    (void)state;
    enum { W = 200, H = 180, X = 40, Y = 30, AT = Y * W + X };
    static float picture[4 * W * H], now[W * H], before[W * H];
    for (size_t i = 0; i < W * H; i++)
        for (size_t c = 0; c < 3; c++)
            picture[4 * i + c] = 1.0f + (float)c;
    now[AT + 3] = 0.5f;
    before[AT - 3] = 0.4f;
    now[AT + 5] = 1e-6f; /* too little to be seen */
    demo_mixture_paint(picture, now, before, W, H, X, Y, picture);
    const float *orange = picture + 4 * (AT + 3), *blue = picture + 4 * (AT - 3), *grey = picture + 4 * (AT + 5);
    assert_true(orange[0] > 2 && orange[2] < 0.5f && blue[2] > 2 && blue[0] < 0.5f);
    assert_true(grey[0] == grey[1] && grey[1] == grey[2] && grey[0] < 1 && grey[0] > 0.1f);
    /* 33 pixels thrice as large, at the right, since the pixel is at the left. */
    const size_t left = W - 99 - H / 40, top = (H - 99) / 2;
    const float *large = picture + 4 * ((top + 49) * W + left + (16 + 3) * 3 + 1);
    assert_memory_equal(large, orange, 3 * sizeof(float));
}

static void test_seams(void **state)
{
    (void)state;
    float *reference = calloc(4 * WIDTH * HEIGHT, sizeof(float)), *picture = calloc(4 * WIDTH * HEIGHT, sizeof(float));
    demo_seams even = {0}, stepped = {0}, elsewhere = {0};
    assert_true(reference && picture);
    for (size_t i = 0; i < 4 * WIDTH * HEIGHT; i++)
        picture[i] = 1.0f + 0.01f * random_float();
    for (size_t i = 0; i < 4 * WIDTH * HEIGHT; i++)
        reference[i] = 1.0f;
    demo_seams_add(&even, picture, reference, WIDTH, HEIGHT, 16, 3, 5);
    assert_true(demo_seams_ratio(&even) > 0.9 && demo_seams_ratio(&even) < 1.1);
    /* Every other tile of a grid shifted by (3, 5) is brighter. */
    for (size_t y = 0; y < HEIGHT; y++)
        for (size_t x = 0; x < WIDTH; x++)
            for (size_t c = 0; c < 3; c++)
                picture[4 * (y * WIDTH + x) + c] += ((x + 3) / 16 + (y + 5) / 16) % 2 ? 0.1f : 0.0f;
    demo_seams_add(&stepped, picture, reference, WIDTH, HEIGHT, 16, 3, 5);
    assert_true(demo_seams_ratio(&stepped) > 3);
    demo_seams_add(&elsewhere, picture, reference, WIDTH, HEIGHT, 16, 8, 0);
    assert_true(demo_seams_ratio(&elsewhere) < 1);
    free(reference);
    free(picture);
}

static void test_percentiles(void **state)
{
    (void)state;
    double values[200];
    for (int i = 0; i < 200; i++)
        values[i] = (double)((i * 37 + 11) % 200 + 1);
    const demo_percentiles p = demo_percentiles_of(values, 200);
    assert_float_equal(p.p50, 100, 0);
    assert_float_equal(p.p95, 190, 0);
    assert_float_equal(p.p99, 198, 0);
    const demo_percentiles one = demo_percentiles_of(values, 1), none = demo_percentiles_of(values, 0);
    assert_float_equal(one.p50, one.p99, 0);
    assert_float_equal(none.p99, 0, 0);
}

static void test_options(void **state)
{
    (void)state;
    demo_options o;
    char *good[] = {"tandem-demo", "--headless", "--frames=12", "--scene", "gallery", "--mode", "8b", "--inject", "to:1.5",
                    "--inject", "error:0.25", "--inject", "hand-over (back):3", "--seed", "4294967295",
                    "--max-error", "0.125"};
    assert_true(demo_options_parse(sizeof good / sizeof *good, good, &o));
    assert_true(o.headless && o.frames == 12 && o.precision == TANDEM_PRECISION_8B && o.frame.seed == UINT32_MAX);
    assert_string_equal(demo_scene_name(o.frame.scene), "gallery");
    assert_float_equal(o.frame.inject_ms[DEMO_TO], 1.5, 0);
    assert_float_equal(o.frame.inject_ms[DEMO_BACK], 3, 0);
    assert_float_equal(o.frame.inject_error, 0.25, 0);
    assert_int_equal(o.samples, 1024);
    assert_float_equal(o.max_error, 0.125, 0);
    char *bad[][3] = {{"tandem-demo", "--frames", "12x"}, {"tandem-demo", "--frames", "99999999999999999999"},
                      {"tandem-demo", "--inject", ":5"},  {"tandem-demo", "--inject", "pack:"},
                      {"tandem-demo", "--max-error", "0"}, {"tandem-demo", "--max-error", "nan"},
                      {"tandem-demo", "--max-error", "5%"}, {"tandem-demo", "--scene", "Room"},
                      {"tandem-demo", "room", "--headless"}, {"tandem-demo", "--npc-model", "F.gguf"},
                      {"tandem-demo", "--npc-budget=9", "--scene=tavern"}, {"tandem-demo", "--npc-cache=8b", "--scene=tavern"}};
    char *talk[] = {"tandem-demo", "--scene", "tavern", "--npc-model=F.gguf", "--npc-cache", "k8v8", "--npc-budget", "700"};
    assert_true(demo_options_parse(sizeof talk / sizeof *talk, talk, &o));
    assert_true(o.talk.asked && !strcmp(o.talk.path, "F.gguf") && o.talk.budget_us == 700 && o.talk.cache == TANDEM_CACHE_K8V8);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(demo_options_parse(3, bad[i], &o));
}

static uint64_t probe_noisy(demo_adapt *a, int probes, double middle, double noise)
{
    const uint64_t before = a->steps;
    for (int i = 0; i < probes; i++)
        demo_adapt_probe(a, middle + noise * (double)random_float());
    return a->steps - before;
}

static int probes_until_step(demo_adapt *a, double error)
{
    for (int i = 1; i <= 1000; i++)
        if (demo_adapt_probe(a, error))
            return i;
    return 0;
}

static void test_adapt(void **state)
{
    (void)state;
    demo_adapt a;
    char text[96];
    demo_adapt_init(&a, 0.05);
    assert_int_equal(demo_adapt_precision(&a), TANDEM_PRECISION_AUTO);
    /* A full window, and one more. */
    assert_int_equal(probes_until_step(&a, 0.061), DEMO_ADAPT_WINDOW + DEMO_ADAPT_UP - 1);
    assert_int_equal(demo_adapt_precision(&a), TANDEM_PRECISION_F16);
    demo_adapt_text(&a, text, sizeof text);
    assert_string_equal(text, "stepped up: error 6.1 % above 5 %");
    /* Neither just below the limit nor just above half of it is good enough to go back. */
    assert_int_equal(probes_until_step(&a, 0.049), 0);
    assert_int_equal(probes_until_step(&a, 0.026), 0);
    assert_int_equal(probes_until_step(&a, 0.0), DEMO_ADAPT_DOWN);
    assert_int_equal(demo_adapt_precision(&a), TANDEM_PRECISION_AUTO);
    demo_adapt_text(&a, text, sizeof text);
    assert_non_null(strstr(text, "stepped down: error "));
    assert_non_null(strstr(text, " % below 2.5 %"));
    assert_true(probes_until_step(&a, 0.06) > DEMO_ADAPT_UP);
    assert_int_equal(a.steps, 3);

    /* Exactly the limit is not above it, and one bad probe among good ones is not enough. */
    demo_adapt_init(&a, 0.0625);
    assert_int_equal(probes_until_step(&a, 0.0625), 0);
    demo_adapt_init(&a, 0.05);
    for (int i = 0; i < 400; i++)
        assert_false(demo_adapt_probe(&a, i % 20 == 19 ? 0.2 : 0.01));

    /* Noise around the limit: up at most once, never down. Around half the limit: never up, down at most once. */
    demo_adapt_init(&a, 0.05);
    assert_int_equal(probe_noisy(&a, 10000, 0.05, 0.02), 1);
    assert_true(a.up);
    assert_in_range(probe_noisy(&a, 10000, 0.025, 0.01), 0, 1);
    assert_int_equal(probe_noisy(&a, 10000, 0.01, 0.01), a.up ? 1 : 0);
    assert_false(a.up);
    assert_int_equal(probe_noisy(&a, 10000, 0.025, 0.02), 0);

    /* What is no number counts as wrong, and is forgotten in the end. */
    demo_adapt_init(&a, 0.05);
    assert_int_equal(probes_until_step(&a, (double)NAN), DEMO_ADAPT_WINDOW + DEMO_ADAPT_UP - 1);
    assert_in_range(probes_until_step(&a, 0.001), DEMO_ADAPT_DOWN, 40);

    /* Of a frame, only 8b counts: its own rows, or those of the trial. */
    const demo_accuracy bad = {.error_absolute = 1, .exact_absolute = 10, .elements = 1};
    demo_frame_result frame = {.precision = TANDEM_PRECISION_F16, .probed = true, .accuracy = bad};
    demo_adapt_init(&a, 0.05);
    demo_adapt_frame(&a, &frame);
    assert_int_equal(a.probes, 0);
    frame.precision = TANDEM_PRECISION_8B;
    demo_adapt_frame(&a, &frame);
    assert_float_equal(a.error, 0.1, 1e-12);
    frame = (demo_frame_result){.precision = TANDEM_PRECISION_F16, .probed = true, .tried = true, .trial = bad};
    frame.trial.error_absolute = 3;
    demo_adapt_frame(&a, &frame);
    assert_float_equal(a.error, 0.2, 1e-12);
}

/* All of a group lies within its sphere: a ray that misses that one misses all of it. */
static void check_groups(const struct td_scene_block *b)
{
    uint32_t spheres = b->counts[0], boxes = b->counts[1];
    assert_in_range(b->counts[3], 0, TD_SCENE_GROUPS);
    for (uint32_t g = 0; g < b->counts[3]; g++) {
        const float *bound = b->group_bounds[g];
        const uint32_t *group = b->groups[g];
        assert_true(group[0] == spheres && group[2] == boxes && group[1] <= TD_SCENE_SPHERES && group[3] <= TD_SCENE_BOXES);
        for (uint32_t i = group[0]; i < group[1]; i++) {
            const float *s = b->spheres[i], x = s[0] - bound[0], y = s[1] - bound[1], z = s[2] - bound[2];
            if (sqrtf(x * x + y * y + z * z) + s[3] > bound[3])
                fail_msg("group %u: sphere %u reaches out of it", g, i - group[0]);
        }
        for (uint32_t i = group[2]; i < group[3]; i++)
            for (int corner = 0; corner < 8; corner++) {
                const float *c = b->boxes[i].center, *e = b->boxes[i].extent;
                const float u = corner & 1 ? e[0] : -e[0], v = corner & 2 ? e[2] : -e[2];
                const float x = c[0] + c[3] * u + e[3] * v - bound[0], z = c[2] - e[3] * u + c[3] * v - bound[2];
                const float y = c[1] + (corner & 4 ? e[1] : -e[1]) - bound[1];
                if (sqrtf(x * x + y * y + z * z) > bound[3])
                    fail_msg("group %u: box %u reaches out of it: %g of %g", g, i - group[2],
                             (double)sqrtf(x * x + y * y + z * z), (double)bound[3]);
            }
        spheres = group[1];
        boxes = group[3];
    }
}

static void test_scenes(void **state)
{
    (void)state;
    static struct td_scene_block block;
    demo_cast cast;
    int count = 0;
    demo_scene_cast(&cast);
    for (; demo_scene_name(count); count++) {
        struct td_scene_push push;
        demo_scene_build(count, &cast, &block);
        assert_in_range(block.counts[0], 1, TD_SCENE_SPHERES);
        assert_in_range(block.counts[1], 1, TD_SCENE_BOXES);
        assert_in_range(block.counts[2], 1, TD_SCENE_LIGHTS);
        for (uint32_t i = 0; i < block.counts[2]; i++) /* from the ceiling, or out of a hearth or a window */
            assert_true((block.lights[i].normal[1] < -0.99f || demo_scene_moves(count)) &&
                        block.lights[i].edge_u[3] > (demo_scene_moves(count) ? 1e-3f : 0.1f));
        check_groups(&block);
        for (uint32_t i = 0; i < TD_SCENE_SPHERES; i++)
            assert_true(block.sphere_material[i][0] < TD_SCENE_MATERIALS);
        for (uint32_t i = 0; i < TD_SCENE_BOXES; i++)
            assert_true(block.box_material[i][0] < TD_SCENE_MATERIALS && block.box_material[i][1] <= TD_SHAPE_ARCH);
        for (int step = 0; step < 100; step++) {
            demo_scene_camera(count, &cast, step * 0.5, 320, 180, &push);
            for (int axis = 0; axis < 3; axis++)
                assert_true(push.eye[axis] > block.room_min[axis] && push.eye[axis] < block.room_max[axis]);
        }
    }
    assert_true(count >= 2);
    assert_int_equal(demo_scene_find("nowhere"), -1);
}

static uint32_t moving(const struct td_scene_block *block)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < block->counts[3]; g++)
        count += block->group_moves[g][0];
    return count;
}

/* Of somebody who comes along there is nothing where it was; the room, and who stands, stay. */
static void test_moves(void **state)
{
    const int tavern = demo_scene_find("tavern");
    static struct td_scene_block before, now;
    demo_cast cast;
    (void)state;
    demo_scene_cast(&cast);
    demo_scene_build(tavern, &cast, &before);
    demo_scene_build(tavern, &cast, &now);
    demo_scene_mark_moves(&before, &now);
    assert_int_equal(moving(&now), 0);
    cast.figures[0].x += 0.0004f; /* a breath */
    demo_scene_build(tavern, &cast, &now);
    demo_scene_mark_moves(&before, &now);
    assert_int_equal(moving(&now), 0);
    cast.figures[0].x += 0.02f;
    demo_scene_build(tavern, &cast, &now);
    demo_scene_mark_moves(&before, &now);
    assert_int_equal(moving(&now), 1);
    cast.figures[1].shake += 5;
    cast.items[0][1] += 0.1f;
    demo_scene_build(tavern, &cast, &now);
    demo_scene_mark_moves(&before, &now);
    assert_int_equal(moving(&now), 3);
}

/* What moves by itself is where its moment says; all else rests. What each scene costs is what it has. */
static void test_scenes_of_their_own_life(void **state)
{
    static const struct {
        const char *name;
        uint32_t traits, moving;
    } scenes[] = {{"room", 0, 0},
                  {"tavern", 0, 0},
                  {"courtyard", TD_TRAIT_SHAPES | TD_TRAIT_TEXTURES | TD_TRAIT_FINISHES | TD_TRAIT_GLASS | TD_TRAIT_SKY, 1},
                  {"clutter", TD_TRAIT_SHAPES | TD_TRAIT_TEXTURES | TD_TRAIT_FINISHES | TD_TRAIT_GLASS, 1}};
    static struct td_scene_block before, now;
    demo_cast cast;
    (void)state;
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
        const int scene = demo_scene_find(scenes[i].name);
        assert_true(scene >= 0);
        demo_scene_cast(&cast);
        demo_scene_build(scene, &cast, &before);
        demo_scene_build(scene, &cast, &now);
        demo_scene_mark_moves(&before, &now);
        assert_int_equal(now.traits[0], scenes[i].traits);
        assert_int_equal(moving(&now), 0);
        cast.seconds = 0.2;
        demo_scene_build(scene, &cast, &now);
        demo_scene_mark_moves(&before, &now);
        assert_int_equal(moving(&now), scenes[i].moving);
        check_groups(&now);
        assert_true(demo_scene_moves(scene) == (scenes[i].moving > 0 || demo_scene_has_cast(scene)));
    }
}

/* A GPU has a minute, whatever this process does meanwhile; a processor has until this process had none of its time for a minute. */
static void test_patience(void **state)
{
    const clock_t little = CLOCKS_PER_SEC / 1000;
    (void)state;
    for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
        demo_patience busy = demo_patience_begin(on_cpu), idle = busy;
        int steps = 1;
        while (demo_patience_lasts(&busy, busy.used + little) && steps < 1000)
            steps++;
        assert_int_equal(steps, on_cpu ? 1000 : 60);
        for (int i = 0; i < 40; i++)
            assert_true(demo_patience_lasts(&idle, idle.used + little / 2));
        assert_true(demo_patience_lasts(&idle, idle.used + little));
        for (steps = 1; demo_patience_lasts(&idle, idle.used); steps++)
            assert_true(steps < 60);
        assert_int_equal(steps, on_cpu ? 60 : 60 - 41);
        assert_false(demo_patience_lasts(&idle, idle.used));
    }
}

/* Files tell whether it is there, and a thread why it cannot be opened. */
static void test_opening(void **state)
{
    (void)state;
    char why[400] = "";
    demo_oidn *oidn;
    assert_true(demo_oidn_is_there("/proc/self/exe"));
    assert_false(demo_oidn_is_there("/none.so"));
    assert_false(demo_oidn_is_there("libthere-is-none-of-this-name.so"));
    assert_true(demo_oidn_is_there("libc.so.6"));
    demo_oidn_opening *opening = demo_oidn_begin("/none.so", false, 1, 8, 8, why, sizeof why);
    assert_non_null(opening);
    while (!demo_oidn_ended(&opening, &oidn, why, sizeof why))
        sched_yield();
    assert_null(opening);
    assert_null(oidn);
    assert_non_null(strstr(why, "/none.so"));
    demo_oidn_begin_close(demo_oidn_begin("/none.so", false, 1, 8, 8, why, sizeof why)); /* while it is under way */
    demo_oidn_begin_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_against_oracle), cmocka_unit_test(test_psnr_and_box), cmocka_unit_test(test_box), cmocka_unit_test(test_map), cmocka_unit_test(test_seams),
        cmocka_unit_test(test_percentiles),          cmocka_unit_test(test_options),      cmocka_unit_test(test_scenes),
        cmocka_unit_test(test_adapt),                cmocka_unit_test(test_moves),
        cmocka_unit_test(test_scenes_of_their_own_life), cmocka_unit_test(test_patience),
        cmocka_unit_test(test_opening),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
