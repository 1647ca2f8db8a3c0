/* Live quality control (engine_plugin/run/quality.h) alone: what is measured is made up, and so is how long runs take.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine_plugin/run/quality.h"

enum { LAYERS = 3, F16 = TANDEM_PRECISION_F16, INT8 = TANDEM_PRECISION_8B, INT4 = TANDEM_PRECISION_4B };
enum { ALL = 1 << F16 | 1 << INT8 | 1 << INT4 };

/* A network: of each layer how similar it is in each precision, and how long it takes in each. */
typedef struct world {
    td_quality quality;
    td_layer_control layers[LAYERS];
    double similarity[LAYERS][4], us[4];
} world;

static world make(double min_similarity, double max_us, uint32_t precision)
{
    world w = {.us = {0, 300, 200, 100}};

    for (int i = 0; i < LAYERS; i++) {
        w.layers[i] = (td_layer_control){.precision = precision, .can = ALL};
        w.similarity[i][F16] = 1;
        w.similarity[i][INT8] = 0.9995;
        w.similarity[i][INT4] = 0.98;
    }
    w.quality.target = (td_quality_target){min_similarity, max_us};
    return w;
}

static double run_us(const world *w)
{
    double us = 0;

    for (int i = 0; i < LAYERS; i++)
        us += w->us[w->layers[i].precision];
    return us;
}

/* True: something has changed. */
static bool sample(world *w)
{
    td_layer_sample samples[LAYERS];

    if (!w->quality.layers)
        td_quality_begin(&w->quality, &(td_quality_target){w->quality.target.min_similarity, w->quality.target.max_us}, w->layers,
                         LAYERS);
    for (int i = 0; i < LAYERS; i++) {
        const uint32_t cheaper = td_quality_cheaper(&w->layers[i]);

        samples[i].similarity = w->similarity[i][w->layers[i].precision];
        samples[i].cheaper = cheaper ? w->similarity[i][cheaper] : -1;
    }
    return td_quality_step(&w->quality, samples, run_us(w));
}

static unsigned changes(world *w, unsigned samples)
{
    unsigned count = 0;

    for (unsigned i = 0; i < samples; i++)
        count += sample(w);
    return count;
}

static void check(const world *w, uint32_t a, uint32_t b, uint32_t c)
{
    assert_int_equal(w->layers[0].precision, a);
    assert_int_equal(w->layers[1].precision, b);
    assert_int_equal(w->layers[2].precision, c);
}

/* Each layer gets the cheapest precision that is good enough, after some patience and step by step. */
static void test_each_layer(void **state)
{
    world w = make(0.999, 0, F16);

    (void)state;
    w.similarity[1][INT8] = 0.9985;
    w.similarity[2][INT4] = 0.9996;
    assert_int_equal(changes(&w, TD_QUALITY_PATIENCE - 1), 0);
    check(&w, F16, F16, F16);
    assert_true(sample(&w));
    check(&w, INT8, F16, INT8);
    assert_int_equal(changes(&w, TD_QUALITY_PATIENCE), 1);
    check(&w, INT8, F16, INT4);
    assert_int_equal(changes(&w, 1000), 0);
}

/* What is worse than the target becomes more precise with the first sample that says so, a NaN among them. */
static void test_up_at_once(void **state)
{
    world w = make(0.999, 0, INT4);

    (void)state;
    w.similarity[1][INT4] = 0.9999;
    w.similarity[2][INT4] = 0.0 / 0.0;
    assert_true(sample(&w));
    check(&w, INT8, INT4, INT8);
    assert_int_equal(changes(&w, 1000), 0);
    w.similarity[0][INT8] = 0.9; /* a scene that is harder */
    assert_true(sample(&w));
    check(&w, F16, INT4, INT8);
}

/* Between the target and its margin nothing moves in either direction. */
static void test_margin(void **state)
{
    world fine = make(0.999, 0, F16), coarse = make(0.999, 0, INT8);

    (void)state;
    for (int i = 0; i < LAYERS; i++)
        fine.similarity[i][INT8] = coarse.similarity[i][INT8] = 0.9991;
    assert_int_equal(changes(&fine, 1000), 0);
    check(&fine, F16, F16, F16);
    assert_int_equal(changes(&coarse, 1000), 0);
    check(&coarse, INT8, INT8, INT8);
}

/* A layer that is good enough as long as nobody relies on it: steps back and forth get rarer, and stay so. */
static void test_no_flapping(void **state)
{
    world w = make(0.999, 0, F16);
    unsigned first = 0, last = 0;

    (void)state;
    for (unsigned i = 0; i < 4000; i++) {
        w.similarity[0][INT8] = td_quality_cheaper(&w.layers[0]) == INT8 ? 0.9999 : 0.5;
        w.similarity[1][INT8] = w.similarity[2][INT8] = 0.5;
        const bool changed = sample(&w);
        first += changed && i < 400;
        last += changed && i >= 3600;
    }
    assert_in_range(first, 4, 12); /* 4 + 1, 8 + 1, 16 + 1 ... samples apart */
    assert_in_range(last, 1, 4);
    assert_int_equal(w.layers[0].patience, TD_QUALITY_MOST_PATIENCE);
}

/* A bad sample now and then: patience begins anew. */
static void test_patience(void **state)
{
    world w = make(0.999, 0, F16);

    (void)state;
    for (int i = 0; i < 300; i++) {
        for (int layer = 0; layer < LAYERS; layer++)
            w.similarity[layer][INT8] = i % TD_QUALITY_PATIENCE ? 0.9999 : 0.99;
        assert_false(sample(&w));
    }
}

/* Precisions that a layer cannot have are passed over, and nothing lies beyond the ends. */
static void test_limits(void **state)
{
    world w = make(0.5, 0, F16);

    (void)state;
    w.layers[0].can = 1 << F16 | 1 << INT4;
    w.layers[1].can = 1 << F16;
    w.layers[2].can = 1 << F16 | 1 << INT8;
    assert_true(changes(&w, 100) >= 1);
    check(&w, INT4, F16, INT8);
    for (int i = 0; i < LAYERS; i++)
        for (int p = F16; p <= INT4; p++)
            w.similarity[i][p] = 0.1;
    assert_true(changes(&w, 100) >= 1);
    check(&w, F16, F16, F16);
    assert_int_equal(changes(&w, 100), 0);
}

/* A time is kept by what loses least, one layer after the other; similarity does not matter where none is asked for. */
static void test_time(void **state)
{
    world w = make(0, 750, F16); /* takes 900, 800, 700 */

    (void)state;
    w.similarity[1][INT8] = 0.9999;
    w.similarity[2][INT8] = 0.9997;
    assert_int_equal(changes(&w, TD_QUALITY_PATIENCE), 1);
    check(&w, F16, INT8, F16);
    assert_int_equal(changes(&w, 100), 1);
    check(&w, F16, INT8, INT8);
    assert_int_equal(changes(&w, 1000), 0);
    w.us[F16] = 60, w.us[INT8] = 40; /* a frame that is smaller: what is worst becomes more precise, until all is */
    assert_int_equal(changes(&w, TD_QUALITY_PATIENCE), 1);
    check(&w, F16, INT8, F16);
    assert_int_equal(changes(&w, 1000), 1);
    check(&w, F16, F16, F16);
}

/* Time to spare that is too short for a step is tried ever more rarely. */
static void test_time_no_flapping(void **state)
{
    world w = make(0, 600, INT8);
    unsigned count = 0;

    (void)state;
    w.us[INT8] = 100; /* takes 300, and one step up would take 700 */
    w.us[F16] = 500;
    count = changes(&w, 400);
    assert_in_range(count, 2, 20);
    assert_in_range(changes(&w, 400), 0, 6);
}

/* Both: time is not bought with similarity. */
static void test_both(void **state)
{
    world w = make(0.999, 450, F16); /* 8b takes 600, 4b 300 */

    (void)state;
    changes(&w, 1000);
    check(&w, INT8, INT8, INT8);
    w.similarity[1][INT4] = 0.9999;
    changes(&w, 1000);
    check(&w, INT8, INT4, INT8);
    w.us[INT4] = 10, w.us[INT8] = 20, w.us[F16] = 30; /* and what is to spare goes to precision */
    changes(&w, 1000);
    check(&w, F16, F16, F16);
}

/* Without a target nothing is changed, whatever is seen. */
static void test_no_target(void **state)
{
    world w = make(0, 0, INT8);

    (void)state;
    w.similarity[0][INT8] = 0;
    assert_int_equal(changes(&w, 1000), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_layer),      cmocka_unit_test(test_up_at_once), cmocka_unit_test(test_margin),
        cmocka_unit_test(test_no_flapping),     cmocka_unit_test(test_patience),   cmocka_unit_test(test_limits),
        cmocka_unit_test(test_time),            cmocka_unit_test(test_time_no_flapping),
        cmocka_unit_test(test_both),            cmocka_unit_test(test_no_target),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
