/* The courtyard: arcades about a fountain, under a sky.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <cglm/cglm.h>
#include <math.h>

#include "demo/builder.h"

enum { ARCHES = 4, RIM = 12, JETS = 5, DROPS_A_JET = 4, LEAVES = 12, FRUIT = 5, BARS = 11 };

#define SPAN 2.5f   /* from column to column */
#define SPRING 2.3f /* height at which arches begin */
#define STOREY 3.9f /* height at which they end */
#define TOP 5.3f    /* of the walls */
#define LEFT (-5.0f) /* where the arcades stand: x of one, z of the other */
#define BACK (-7.0f)
#define RIGHT 5.0f

typedef struct stuff {
    uint32_t plaster, stone, terracotta, tiles, wood, dark, iron, bronze, water, leaf, cypress, blossom, orange, glass, mirror,
        pane, cushion, glow, shade;
} stuff;

/* Always the same numbers from 0 to 1, one after the other. */
static float scatter(uint32_t *state)
{
    *state = *state * 747796405u + 2891336453u;
    return (float)(*state >> 8) / 16777216.0f;
}

static stuff make_stuff(scene_builder *b, double seconds)
{
    const float plaster_a[3] = {0.72f, 0.56f, 0.37f}, plaster_b[3] = {0.60f, 0.43f, 0.26f};
    const float stone_a[3] = {0.72f, 0.68f, 0.60f}, stone_b[3] = {0.56f, 0.52f, 0.46f};
    const float clay_a[3] = {0.60f, 0.27f, 0.15f}, clay_b[3] = {0.46f, 0.19f, 0.11f};
    const float tile_a[3] = {0.58f, 0.46f, 0.33f}, tile_b[3] = {0.40f, 0.20f, 0.12f};
    const float wood_a[3] = {0.30f, 0.18f, 0.10f}, wood_b[3] = {0.22f, 0.13f, 0.07f};
    const float leaf_a[3] = {0.12f, 0.26f, 0.05f}, leaf_b[3] = {0.30f, 0.42f, 0.10f};
    const float cypress_a[3] = {0.05f, 0.13f, 0.05f}, cypress_b[3] = {0.11f, 0.21f, 0.08f};
    const float pink[3] = {0.72f, 0.10f, 0.34f}, green[3] = {0.16f, 0.32f, 0.08f};
    const float deep[3] = {0.05f, 0.20f, 0.22f}, blue[3] = {0.42f, 0.62f, 0.80f}, clear[3] = {0.97f, 0.99f, 1.0f};
    stuff s = {.plaster = build_material(b, TD_TEXTURE_CLOUDY, plaster_a, plaster_b, 1.7f),
               .stone = build_material(b, TD_TEXTURE_CLOUDY, stone_a, stone_b, 5.0f),
               .terracotta = build_material(b, TD_TEXTURE_CLOUDY, clay_a, clay_b, 6.0f),
               .tiles = build_material(b, TD_TEXTURE_CHECKER, tile_a, tile_b, 1.6f),
               .wood = build_material(b, TD_TEXTURE_STRIPES, wood_a, wood_b, 9.0f),
               .dark = build_plain(b, 0.10f, 0.07f, 0.05f),
               .iron = build_plain(b, 0.05f, 0.05f, 0.055f),
               .bronze = build_plain(b, 0.80f, 0.52f, 0.24f),
               .water = build_material(b, TD_TEXTURE_RIPPLES, deep, deep, 9.0f),
               .leaf = build_material(b, TD_TEXTURE_LEAVES, leaf_a, leaf_b, 16.0f),
               .cypress = build_material(b, TD_TEXTURE_LEAVES, cypress_a, cypress_b, 9.0f),
               .blossom = build_material(b, TD_TEXTURE_LEAVES, pink, green, 17.0f),
               .orange = build_plain(b, 0.90f, 0.38f, 0.04f),
               .glass = build_material(b, TD_TEXTURE_PLAIN, clear, clear, 1.0f),
               .mirror = build_material(b, TD_TEXTURE_MIRROR, blue, blue, 1.0f),
               .pane = build_plain(b, 0.05f, 0.08f, 0.11f),
               .cushion = build_plain(b, 0.10f, 0.30f, 0.44f),
               .glow = build_plain(b, 1.0f, 0.62f, 0.26f),
               .shade = build_plain(b, 0.16f, 0.34f, 0.42f)};
    build_finish(b, s.bronze, TD_FINISH_METAL, 0.35f);
    build_finish(b, s.water, TD_FINISH_COATED, 0.03f);
    b->block->materials[s.water].finish[2] = (float)fmod(1.6 * seconds, 4096.0);
    build_finish(b, s.orange, TD_FINISH_COATED, 0.35f);
    build_finish(b, s.pane, TD_FINISH_COATED, 0.05f);
    build_finish(b, s.glass, TD_FINISH_GLASS, 0.0f);
    build_finish(b, s.glow, TD_FINISH_GLOW, 9.0f);
    return s;
}

static void walls(scene_builder *b, const stuff *s)
{
    const float deep = 2.4f, long_ = ARCHES * SPAN;
    build_box(b, s->plaster, LEFT, STOREY, BACK + 0.5f * long_, 0.45f, TOP - STOREY, long_ + 0.45f, 0.0f);
    build_box(b, s->plaster, 0.0f, STOREY, BACK, long_ + 0.45f, TOP - STOREY, 0.45f, 0.0f);
    build_box(b, s->plaster, LEFT - deep, 0.0f, BACK + 0.5f * long_ - 1.0f, 0.3f, TOP, long_ + 5.0f, 0.0f);
    build_box(b, s->plaster, 0.0f, 0.0f, BACK - deep, long_ + 5.0f, TOP, 0.3f, 0.0f);
    build_box(b, s->wood, LEFT - 0.5f * deep, STOREY - 0.1f, BACK + 0.5f * long_ - 1.0f, deep, 0.12f, long_ + 4.5f, 0.0f);
    build_box(b, s->wood, 0.0f, STOREY - 0.1f, BACK - 0.5f * deep, long_ + 4.5f, 0.12f, deep, 0.0f);
    build_box(b, s->plaster, RIGHT + 0.2f, 0.0f, -0.5f, 0.4f, TOP - 0.7f, 14.0f, 0.0f);
    build_box(b, s->plaster, 0.0f, 0.0f, 6.4f, 13.0f, 3.0f, 0.4f, 0.0f);
    build_box(b, s->terracotta, LEFT, TOP, BACK + 0.5f * long_, 1.0f, 0.13f, long_ + 1.0f, 0.0f);
    build_box(b, s->terracotta, 0.0f, TOP, BACK, long_ + 1.0f, 0.13f, 1.0f, 0.0f);
    build_box(b, s->terracotta, RIGHT + 0.2f, TOP - 0.7f, -0.5f, 0.75f, 0.13f, 14.2f, 0.0f);
    build_sphere(b, s->bronze, 0.3f, 1.62f, -2.6f, 0.15f);
}

static void column(scene_builder *b, const stuff *s, float x, float z)
{
    build_box(b, s->stone, x, 0.0f, z, 0.5f, 0.16f, 0.5f, 0.0f);
    build_column(b, s->stone, x, 0.16f, z, 0.16f, SPRING - 0.32f);
    build_box(b, s->stone, x, SPRING - 0.16f, z, 0.48f, 0.16f, 0.48f, 0.0f);
}

/* Two bays make a group. */
static void arcades(scene_builder *b, const stuff *s)
{
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < ARCHES; i++) {
            const float at = ((float)i + 0.5f) * SPAN, end = ((float)i + 1.0f) * SPAN;
            if (i % 2 == 0)
                build_group_begin(b);
            if (side == 0) {
                build_arch(b, s->plaster, LEFT, SPRING, BACK + at, SPAN, STOREY - SPRING, 0.42f, 90.0f);
                column(b, s, LEFT, BACK + end);
            } else {
                build_arch(b, s->plaster, LEFT + at, SPRING, BACK, SPAN, STOREY - SPRING, 0.42f, 0.0f);
                column(b, s, i + 1 == ARCHES ? LEFT : LEFT + end, BACK);
            }
            if (i % 2)
                build_group_fit(b);
        }
}

static void windows(scene_builder *b, const stuff *s)
{
    build_group_begin(b);
    for (int i = 0; i < 3; i++) {
        const float x = LEFT + 1.25f + (float)i * 2.9f;
        build_box(b, s->pane, x, 4.2f, BACK + 0.22f, 0.62f, 0.8f, 0.03f, 0.0f);
        build_box(b, s->shade, x - 0.46f, 4.17f, BACK + 0.25f, 0.28f, 0.86f, 0.05f, 0.0f);
        build_box(b, s->shade, x + 0.46f, 4.17f, BACK + 0.25f, 0.28f, 0.86f, 0.05f, 0.0f);
    }
    build_group_fit(b);
    /* A balcony of thin bars. */
    build_group_begin(b);
    for (int i = 0; i < BARS; i++)
        build_box(b, s->iron, LEFT + 0.62f, STOREY + 0.05f, -2.9f + 0.16f * (float)i, 0.022f, 0.75f, 0.022f, 0.0f);
    build_box(b, s->iron, LEFT + 0.62f, STOREY + 0.8f, -2.1f, 0.05f, 0.04f, 1.74f, 0.0f);
    build_box(b, s->stone, LEFT + 0.42f, STOREY - 0.05f, -2.1f, 0.5f, 0.1f, 1.8f, 0.0f);
    build_box(b, s->pane, LEFT + 0.21f, STOREY + 0.05f, -2.1f, 0.05f, 1.1f, 0.8f, 0.0f);
    build_group_fit(b);
    /* A door, and a bench beside it, in the shade. */
    build_group_begin(b);
    build_box(b, s->shade, RIGHT - 0.02f, 0.0f, -4.6f, 0.08f, 2.2f, 1.1f, 0.0f);
    build_box(b, s->stone, RIGHT - 0.02f, 2.2f, -4.6f, 0.16f, 0.16f, 1.5f, 0.0f);
    build_box(b, s->wood, 4.5f, 0.42f, -1.9f, 0.55f, 0.07f, 1.7f, 0.0f);
    build_box(b, s->stone, 4.5f, 0.0f, -2.5f, 0.45f, 0.42f, 0.16f, 0.0f);
    build_box(b, s->stone, 4.5f, 0.0f, -1.3f, 0.45f, 0.42f, 0.16f, 0.0f);
    build_box(b, s->cushion, 4.6f, 0.49f, -2.35f, 0.16f, 0.4f, 0.45f, 8.0f);
    build_box(b, s->orange, 4.56f, 0.49f, -1.75f, 0.15f, 0.36f, 0.42f, -14.0f);
    build_group_fit(b);
}

static void fountain(scene_builder *b, const stuff *s, double seconds)
{
    const float x = 0.3f, z = -2.6f;
    build_group_begin(b);
    for (int i = 0; i < RIM; i++) {
        const float degrees = 360.0f / RIM * (float)i, angle = glm_rad(degrees);
        build_box(b, s->stone, x + 1.32f * sinf(angle), 0.0f, z + 1.32f * cosf(angle), 0.76f, 0.52f, 0.22f, degrees);
    }
    build_column(b, s->water, x, 0.0f, z, 1.28f, 0.42f);
    build_column(b, s->stone, x, 0.42f, z, 0.15f, 0.85f);
    build_column(b, s->stone, x, 1.22f, z, 0.55f, 0.12f);
    build_column(b, s->water, x, 1.34f, z, 0.48f, 0.02f);
    build_column(b, s->stone, x, 1.34f, z, 0.07f, 0.18f);
    build_group_fit(b);
    /* Water that rises from the ball and falls into the basin, each drop a part of a jet after the one before. */
    build_group_begin(b);
    for (int jet = 0; jet < JETS; jet++)
        for (int i = 0; i < DROPS_A_JET; i++) {
            const double turns = 0.9 * seconds + (double)i / DROPS_A_JET + 0.13 * jet;
            const float t = (float)(turns - floor(turns)), angle = glm_rad(360.0f / JETS * ((float)jet + 0.3f));
            const float away = 0.1f + 0.8f * t, y = 1.75f + 1.25f * t - 2.5f * t * t;
            build_sphere(b, s->glass, x + away * sinf(angle), y, z + away * cosf(angle), 0.034f - 0.012f * t);
        }
    build_group_fit(b);
    build_group_is_glass(b);
}

static void tree(scene_builder *b, const stuff *s, float x, float z, float size, uint32_t seed)
{
    build_group_begin(b);
    build_column(b, s->terracotta, x, 0.0f, z, 0.34f * size, 0.5f * size);
    build_column(b, s->terracotta, x, 0.5f * size, z, 0.38f * size, 0.07f * size);
    build_column(b, s->wood, x, 0.5f * size, z, 0.045f * size, 0.9f * size);
    for (int i = 0; i < LEAVES + FRUIT; i++) {
        const bool leaves = i < LEAVES;
        const float angle = 2.4f * (float)i + scatter(&seed), up = 2.0f * scatter(&seed) - 1.0f;
        const float radius = size * (leaves ? 0.42f : 0.62f) * sqrtf(1.0f - up * up);
        build_sphere(b, leaves ? s->leaf : s->orange, x + radius * sinf(angle), size * (1.72f + (leaves ? 0.34f : 0.5f) * up),
                     z + radius * cosf(angle), size * (leaves ? 0.24f + 0.12f * scatter(&seed) : 0.065f));
    }
    build_group_fit(b);
}

static void cypress(scene_builder *b, const stuff *s, float x, float z, float height)
{
    build_group_begin(b);
    for (int i = 0; i < 9; i++) {
        const float t = (float)i / 9.0f;
        build_sphere(b, s->cypress, x, height * (0.5f + 0.5f * t), z, 0.82f * (1.0f - t * t) + 0.12f);
    }
    build_group_fit(b);
}

/* What climbs a wall, and hangs from it. */
static void vine(scene_builder *b, const stuff *s, float x, float y, float z, float along, uint32_t seed)
{
    build_group_begin(b);
    for (int i = 0; i < 11; i++) {
        const float t = (float)i / 10.0f, size = 0.2f + 0.16f * scatter(&seed);
        build_sphere(b, i % 4 == 1 ? s->leaf : s->blossom, x + 0.08f * scatter(&seed), y + 0.5f * sinf(5.0f * t) - 0.9f * t * scatter(&seed),
                     z + along * t, size);
    }
    build_group_fit(b);
}

void build_courtyard(scene_builder *b, double seconds)
{
    const float horizon[3] = {0.52f, 0.64f, 0.80f}, overhead[3] = {0.045f, 0.17f, 0.66f};
    const uint32_t sky = build_material(b, TD_TEXTURE_SKY, horizon, overhead, 1.0f);
    const stuff s = make_stuff(b, seconds);
    build_bounds(b, (vec3){-80.0f, 0.0f, -80.0f}, (vec3){80.0f, 80.0f, 80.0f});
    build_walls(b, sky, sky, s.tiles, sky, sky, sky);
    build_sun(b, (vec3){0.56f, 0.72f, 0.30f}, 0.012f, (vec3){11.5f, 8.9f, 5.9f});
    walls(b, &s);
    arcades(b, &s);
    windows(b, &s);
    fountain(b, &s, seconds);
    tree(b, &s, -3.4f, -4.9f, 1.15f, 11);
    tree(b, &s, 3.0f, -5.3f, 1.25f, 23);
    tree(b, &s, -2.9f, 0.3f, 1.0f, 37);
    cypress(b, &s, 7.4f, -6.4f, 8.6f);
    cypress(b, &s, 3.7f, -12.5f, 8.8f);
    vine(b, &s, LEFT + 0.3f, 4.9f, -6.6f, 3.0f, 5);
    vine(b, &s, RIGHT - 0.1f, 3.6f, -3.6f, 3.4f, 9);
    /* A ball that shows it all, and a lantern beneath the arches. */
    build_group_begin(b);
    build_column(b, s.stone, 2.85f, 0.0f, 0.2f, 0.2f, 0.78f);
    build_column(b, s.stone, 2.85f, 0.78f, 0.2f, 0.27f, 0.07f);
    build_sphere(b, s.mirror, 2.85f, 1.18f, 0.2f, 0.34f);
    build_group_fit(b);
    build_group_begin(b);
    build_column(b, s.glow, -6.2f, 2.5f, -3.2f, 0.1f, 0.26f);
    build_column(b, s.iron, -6.2f, 2.76f, -3.2f, 0.14f, 0.05f);
    build_column(b, s.iron, -6.2f, 2.81f, -3.2f, 0.012f, 1.0f);
    build_group_fit(b);
    build_light(b, (vec3){-6.2f, 2.48f, -3.2f}, (vec3){0.11f, 0.0f, 0.0f}, (vec3){0.0f, 0.0f, 0.11f}, (vec3){75.0f, 44.0f, 18.0f});
}
