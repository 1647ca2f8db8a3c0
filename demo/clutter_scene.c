/* Clutter: a desk and shelves, full of small things of all kinds.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <cglm/cglm.h>
#include <math.h>

#include "demo/builder.h"

enum { COLOURS = 6, BOOKS = 17, MARBLES = 9, PLANETS = 4 };

#define DESK 0.75f /* height of its top */
#define REAR (-1.35f) /* z of what stands against the wall */

typedef struct stuff {
    uint32_t wood, board, paper, brass, steel, mirror, black, leaf, clay, globe, glow, cold_glow, ceramic, lampshade;
    uint32_t cloth[COLOURS], paint[COLOURS], glass[3];
} stuff;

static float scatter(uint32_t *state)
{
    *state = *state * 747796405u + 2891336453u;
    return (float)(*state >> 8) / 16777216.0f;
}

static stuff make_stuff(scene_builder *b)
{
    static const float colours[COLOURS][3] = {{0.55f, 0.10f, 0.08f}, {0.10f, 0.24f, 0.42f}, {0.62f, 0.42f, 0.10f},
                                              {0.10f, 0.32f, 0.20f}, {0.42f, 0.16f, 0.34f}, {0.66f, 0.60f, 0.48f}};
    static const float tints[3][3] = {{0.62f, 0.93f, 0.97f}, {0.98f, 0.62f, 0.30f}, {0.62f, 0.95f, 0.55f}};
    const float wood_a[3] = {0.40f, 0.22f, 0.11f}, wood_b[3] = {0.29f, 0.15f, 0.07f};
    const float board_a[3] = {0.30f, 0.19f, 0.11f}, board_b[3] = {0.24f, 0.15f, 0.09f};
    const float silver[3] = {0.93f, 0.93f, 0.94f}, leaf_a[3] = {0.08f, 0.24f, 0.06f}, leaf_b[3] = {0.24f, 0.44f, 0.12f};
    const float sea[3] = {0.07f, 0.24f, 0.44f}, land[3] = {0.60f, 0.52f, 0.28f};
    stuff s = {.wood = build_material(b, TD_TEXTURE_CLOUDY, wood_a, wood_b, 9.0f),
               .board = build_material(b, TD_TEXTURE_STRIPES, board_a, board_b, 14.0f),
               .paper = build_plain(b, 0.80f, 0.76f, 0.66f),
               .brass = build_plain(b, 0.90f, 0.66f, 0.28f),
               .steel = build_plain(b, 0.74f, 0.75f, 0.78f),
               .mirror = build_material(b, TD_TEXTURE_MIRROR, silver, silver, 1.0f),
               .black = build_plain(b, 0.03f, 0.03f, 0.035f),
               .leaf = build_material(b, TD_TEXTURE_LEAVES, leaf_a, leaf_b, 34.0f),
               .clay = build_plain(b, 0.58f, 0.28f, 0.17f),
               .globe = build_material(b, TD_TEXTURE_CLOUDY, sea, land, 11.0f),
               .glow = build_plain(b, 1.0f, 0.68f, 0.34f),
               .cold_glow = build_plain(b, 0.35f, 0.85f, 1.0f),
               .ceramic = build_plain(b, 0.78f, 0.77f, 0.74f),
               .lampshade = build_plain(b, 1.0f, 0.36f, 0.10f)};
    for (int i = 0; i < COLOURS; i++) {
        s.cloth[i] = build_plain(b, colours[i][0], colours[i][1], colours[i][2]);
        s.paint[i] = build_plain(b, 1.25f * colours[i][0], 1.25f * colours[i][1], 1.25f * colours[i][2]);
        build_finish(b, s.paint[i], TD_FINISH_COATED, 0.18f);
    }
    for (int i = 0; i < 3; i++) {
        s.glass[i] = build_plain(b, tints[i][0], tints[i][1], tints[i][2]);
        build_finish(b, s.glass[i], TD_FINISH_GLASS, 0.0f);
    }
    build_finish(b, s.wood, TD_FINISH_COATED, 0.32f);
    build_finish(b, s.brass, TD_FINISH_METAL, 0.3f);
    build_finish(b, s.steel, TD_FINISH_METAL, 0.45f);
    build_finish(b, s.black, TD_FINISH_COATED, 0.25f);
    build_finish(b, s.globe, TD_FINISH_COATED, 0.2f);
    build_finish(b, s.ceramic, TD_FINISH_COATED, 0.12f);
    build_finish(b, s.glow, TD_FINISH_GLOW, 14.0f);
    build_finish(b, s.lampshade, TD_FINISH_GLOW, 1.7f);
    build_finish(b, s.cold_glow, TD_FINISH_GLOW, 6.0f);
    return s;
}

/* Books side by side from x on, with something between them. */
static void shelf(scene_builder *b, const stuff *s, float y, uint32_t seed)
{
    float x = -1.5f;
    for (int i = 0; i < BOOKS; i++) {
        const float wide = 0.05f + 0.055f * scatter(&seed), tall = 0.22f + 0.1f * scatter(&seed);
        if (i % 6 == 0)
            build_group_begin(b);
        build_box(b, s->cloth[(uint32_t)(scatter(&seed) * COLOURS) % COLOURS], x + 0.5f * wide, y, REAR - 0.02f * scatter(&seed),
                  wide - 0.004f, tall, 0.19f, 0.0f);
        x += wide + (i == 7 ? 0.42f : i == 12 ? 0.34f : 0.0f);
        if (i % 6 == 5 || i + 1 == BOOKS)
            build_group_fit(b);
    }
}

/* A sun with planets on arms that turn. */
static void orrery(scene_builder *b, const stuff *s, double seconds)
{
    const float x = 0.26f, z = -0.42f, y = DESK + 0.3f;
    const float reach[PLANETS] = {0.13f, 0.2f, 0.27f, 0.33f}, size[PLANETS] = {0.022f, 0.034f, 0.028f, 0.05f};
    build_group_begin(b);
    build_column(b, s->wood, x, DESK, z, 0.1f, 0.035f);
    build_column(b, s->brass, x, DESK + 0.035f, z, 0.011f, 0.25f);
    build_sphere(b, s->brass, x, y, z, 0.062f);
    for (int i = 0; i < PLANETS; i++) {
        const float angle = (float)fmod(seconds * (1.3 - 0.25 * i) + 1.9 * i, 2 * GLM_PI), low = y - 0.055f - 0.024f * (float)i;
        build_box(b, s->brass, x + 0.5f * reach[i] * cosf(angle), low, z - 0.5f * reach[i] * sinf(angle), reach[i], 0.007f, 0.007f,
                  glm_deg(angle));
        build_column(b, s->brass, x + reach[i] * cosf(angle), low, z - reach[i] * sinf(angle), 0.004f, 0.06f);
        build_sphere(b, i == 2 ? s->mirror : i == 1 ? s->globe : s->paint[i == 0 ? 2 : 0], x + reach[i] * cosf(angle),
                     low + 0.06f + 0.6f * size[i], z - reach[i] * sinf(angle), size[i]);
    }
    build_group_fit(b);
}

static void lamp(scene_builder *b, const stuff *s)
{
    const float x = -0.6f, z = -0.6f;
    build_group_begin(b);
    build_column(b, s->black, x - 0.16f, DESK, z, 0.1f, 0.025f);
    build_column(b, s->black, x - 0.16f, DESK + 0.025f, z, 0.01f, 0.52f);
    build_box(b, s->black, x - 0.08f, DESK + 0.535f, z, 0.18f, 0.014f, 0.014f, 0.0f);
    build_column(b, s->lampshade, x, DESK + 0.45f, z, 0.125f, 0.11f);
    build_group_fit(b);
    build_light(b, (vec3){x, DESK + 0.446f, z}, (vec3){0.085f, 0.0f, 0.0f}, (vec3){0.0f, 0.0f, 0.085f}, (vec3){420.0f, 262.0f, 122.0f});
}

static void pile(scene_builder *b, const stuff *s)
{
    static const float turns[5] = {6.0f, -9.0f, 17.0f, 2.0f, -21.0f};
    float y = DESK;
    build_group_begin(b);
    for (int i = 0; i < 5; i++) {
        const float tall = i % 2 ? 0.034f : 0.048f, shrink = 0.02f * (float)i;
        build_box(b, s->cloth[(i * 5 + 1) % COLOURS], -0.98f, y, -0.2f, 0.34f - shrink, tall, 0.25f - shrink, turns[i]);
        y += tall;
    }
    build_column(b, s->ceramic, -0.97f, y, -0.2f, 0.052f, 0.1f);
    build_group_fit(b);
}

static void toys(scene_builder *b, const stuff *s)
{
    uint32_t seed = 7;
    build_group_begin(b);
    for (int i = 0; i < 7; i++) { /* blocks, two of them on others */
        const bool up = i > 4;
        const float x = up ? 0.9f + 0.1f * (float)(i - 5) : 0.82f + 0.105f * (float)(i % 3) + 0.02f * scatter(&seed);
        build_box(b, s->paint[i % COLOURS], x, up ? DESK + 0.085f : DESK, up ? -0.5f : -0.5f + 0.12f * (float)(i / 3), 0.085f, 0.085f,
                  0.085f, 50.0f * scatter(&seed) - 25.0f);
    }
    build_sphere(b, s->mirror, 0.98f, DESK + 0.235f, -0.5f, 0.065f);
    build_group_fit(b);
    build_group_begin(b); /* dice, and balls of steel */
    for (int i = 0; i < 4; i++)
        build_box(b, i == 2 ? s->paint[0] : s->ceramic, -0.3f + 0.075f * (float)i + 0.02f * scatter(&seed), DESK, 0.05f - 0.05f * scatter(&seed),
                  0.034f, 0.034f, 0.034f, 90.0f * scatter(&seed));
    for (int i = 0; i < 4; i++)
        build_sphere(b, i % 2 ? s->steel : s->mirror, -0.52f + 0.1f * (float)i + 0.02f * scatter(&seed), DESK + 0.022f + 0.009f * (float)(i % 2),
                     -0.1f - 0.07f * scatter(&seed), 0.022f + 0.009f * (float)(i % 2));
    build_group_fit(b);
    build_group_begin(b); /* a cup of pencils, plates, a pot */
    build_column(b, s->paint[3], 1.2f, DESK, -0.85f, 0.05f, 0.12f);
    for (int i = 0; i < 6; i++)
        build_column(b, s->paint[(i * 2 + 1) % COLOURS], 1.2f + 0.03f * sinf(1.1f * (float)i), DESK + 0.02f, -0.85f + 0.03f * cosf(1.1f * (float)i),
                     0.0055f, 0.17f + 0.05f * scatter(&seed));
    for (int i = 0; i < 4; i++)
        build_column(b, s->ceramic, 0.62f, DESK + 0.014f * (float)i, -0.95f, 0.1f - 0.004f * (float)i, 0.009f);
    build_column(b, s->clay, -0.3f, DESK, -0.98f, 0.085f, 0.14f);
    for (int i = 0; i < 9; i++)
        build_sphere(b, s->leaf, -0.3f + 0.085f * sinf(2.4f * (float)i), DESK + 0.2f + 0.018f * (float)i, -0.98f + 0.085f * cosf(2.4f * (float)i),
                     0.055f + 0.02f * scatter(&seed));
    build_group_fit(b);
    build_group_begin(b); /* an open book */
    build_box(b, s->paper, -0.1f, DESK, -0.32f, 0.17f, 0.018f, 0.22f, 12.0f);
    build_box(b, s->paper, 0.07f, DESK, -0.356f, 0.165f, 0.014f, 0.22f, 12.0f);
    build_box(b, s->black, 0.72f, DESK, -0.05f, 0.16f, 0.012f, 0.075f, 28.0f);
    build_column(b, s->brass, 0.5f, DESK, -0.02f, 0.036f, 0.014f);
    build_column(b, s->brass, 0.44f, DESK, 0.04f, 0.026f, 0.01f);
    build_group_fit(b);
    build_group_begin(b);
    for (int i = 0; i < MARBLES; i++) {
        const float size = i == 0 ? 0.1f : 0.024f + 0.02f * scatter(&seed);
        const float x = i == 0 ? -0.42f : -0.66f + 0.17f * (float)i + 0.05f * scatter(&seed), z = i == 0 ? -0.4f : 0.12f - 0.16f * scatter(&seed);
        build_sphere(b, s->glass[i % 3], x, DESK + size, z, size);
    }
    build_group_fit(b);
    build_group_is_glass(b);
}

/* What stands between the books. */
static void treasures(scene_builder *b, const stuff *s, float low, float high)
{
    build_group_begin(b);
    build_column(b, s->brass, -0.72f, high, REAR, 0.06f, 0.02f);
    build_column(b, s->brass, -0.72f, high + 0.02f, REAR, 0.01f, 0.05f);
    build_sphere(b, s->globe, -0.72f, high + 0.17f, REAR, 0.11f);
    build_column(b, s->ceramic, -0.74f, low, REAR, 0.05f, 0.06f);
    build_sphere(b, s->ceramic, -0.74f, low + 0.11f, REAR, 0.078f);
    build_column(b, s->ceramic, -0.74f, low + 0.17f, REAR, 0.028f, 0.08f);
    build_group_fit(b);
    build_group_begin(b);
    build_sphere(b, s->mirror, 0.12f, low + 0.1f, REAR + 0.02f, 0.1f);
    build_box(b, s->paint[1], 0.1f, high, REAR, 0.2f, 0.09f, 0.14f, 14.0f);
    build_box(b, s->paint[2], 0.1f, high + 0.09f, REAR, 0.14f, 0.07f, 0.11f, -20.0f);
    build_group_fit(b);
    build_group_begin(b);
    build_box(b, s->brass, 1.12f, high, REAR - 0.03f, 0.46f, 0.34f, 0.03f, 0.0f);
    build_box(b, s->globe, 1.12f, high + 0.025f, REAR - 0.012f, 0.41f, 0.29f, 0.02f, 0.0f);
    build_sphere(b, s->paint[0], 0.85f, low + 0.07f, REAR, 0.07f);
    build_sphere(b, s->steel, 1.02f, low + 0.09f, REAR, 0.09f);
    build_sphere(b, s->paint[3], 1.18f, low + 0.06f, REAR + 0.03f, 0.06f);
    build_box(b, s->paint[4], 1.36f, low, REAR, 0.13f, 0.2f, 0.13f, 22.0f);
    build_group_fit(b);
}

/* Little lamps along a board: each is seen as a ball, and shines down. */
static void little_lamps(scene_builder *b, const stuff *s, float y)
{
    const float warm[3] = {560.0f, 320.0f, 130.0f}, cold[3] = {140.0f, 390.0f, 540.0f};
    build_group_begin(b);
    for (int i = 0; i < 3; i++) {
        const float x = -1.0f + 1.0f * (float)i;
        build_sphere(b, i == 1 ? s->cold_glow : s->glow, x, y - 0.022f, REAR + 0.15f, 0.016f);
        build_light(b, (vec3){x, y - 0.04f, REAR + 0.15f}, (vec3){0.022f, 0.0f, 0.0f}, (vec3){0.0f, 0.0f, 0.022f}, i == 1 ? cold : warm);
    }
    build_group_fit(b);
}

void build_clutter(scene_builder *b, double seconds)
{
    const float low = 1.22f, high = 1.64f;
    const float stripe_a[3] = {0.36f, 0.40f, 0.40f}, stripe_b[3] = {0.31f, 0.36f, 0.37f};
    const stuff s = make_stuff(b);
    const uint32_t wall = build_material(b, TD_TEXTURE_STRIPES, stripe_a, stripe_b, 5.0f), plain = build_plain(b, 0.55f, 0.53f, 0.48f);
    build_bounds(b, (vec3){-2.1f, 0.0f, -1.5f}, (vec3){2.1f, 2.4f, 2.4f});
    build_walls(b, plain, plain, s.board, plain, wall, plain);
    build_box(b, s.wood, 0.0f, DESK - 0.05f, -0.6f, 3.1f, 0.05f, 1.55f, 0.0f);
    build_box(b, s.board, 0.0f, low - 0.03f, REAR, 3.2f, 0.03f, 0.28f, 0.0f);
    build_box(b, s.board, 0.0f, high - 0.03f, REAR, 3.2f, 0.03f, 0.28f, 0.0f);
    build_sphere(b, s.clay, 1.28f, DESK + 0.13f, -0.25f, 0.13f);
    shelf(b, &s, low, 3);
    shelf(b, &s, high, 19);
    treasures(b, &s, low, high);
    pile(b, &s);
    toys(b, &s);
    orrery(b, &s, seconds);
    lamp(b, &s);
    little_lamps(b, &s, low - 0.03f);
    /* The evening through a window. */
    build_light(b, (vec3){2.09f, 1.6f, 0.3f}, (vec3){0.0f, 0.0f, 0.7f}, (vec3){0.0f, 0.6f, 0.0f}, (vec3){2.6f, 4.0f, 7.6f});
}
