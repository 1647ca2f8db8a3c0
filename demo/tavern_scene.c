/* The tavern: its room, and four figures that may stand anywhere in it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <cglm/cglm.h>
#include <math.h>
#include <string.h>

#include "demo/builder.h"
#include "demo/scene.h"

#define HEAD 1.42f /* height of the middle of a head above the feet */

enum { LINA, MIRA, TOM, BROM };

/* Where everything is to begin with: who sings, who serves, who keeps watch, who forges. */
static const demo_cast first = {.eye = {0.0f, 1.62f, 3.0f},
                                .target = {0.0f, 1.12f, -1.6f},
                                .figures = {[LINA] = {.x = -2.25f, .z = -0.75f, .turn = 28.0f},
                                            [MIRA] = {.x = -0.85f, .z = -2.45f, .turn = 6.0f},
                                            [TOM] = {.x = 0.95f, .z = -1.0f, .turn = -12.0f},
                                            [BROM] = {.x = 2.55f, .z = -1.55f, .turn = -32.0f}},
                                .items = {{-1.72f, 0.74f, 0.0f},
                                          {-1.42f, 0.74f, -0.12f},
                                          {-1.35f, 1.04f, -1.86f},
                                          {-0.42f, 1.04f, -1.84f},
                                          {1.35f, 0.74f, -0.42f},
                                          {1.62f, 0.74f, -0.3f},
                                          {2.0f, 0.62f, -0.95f},
                                          {2.32f, 0.62f, -0.82f}}};

void demo_scene_cast(demo_cast *out)
{
    *out = first;
}

void demo_scene_head(const demo_cast *cast, int figure, float out[3])
{
    const demo_figure *f = &cast->figures[figure];
    out[0] = f->x;
    out[1] = f->lift + HEAD;
    out[2] = f->z;
}

/* --- Figures --- */

typedef struct clothes {
    uint32_t skin, hair, coat, trousers, dark, extra;
} clothes;

/* A place on a figure, from where it stands and what it faces. */
typedef struct stand {
    scene_builder *b;
    const demo_figure *f;
    float sine, cosine;
} stand;

static stand facing(scene_builder *b, const demo_figure *f, float degrees)
{
    return (stand){b, f, sinf(glm_rad(degrees)), cosf(glm_rad(degrees))};
}

static void ball(const stand *s, uint32_t material, float x, float y, float z, float radius)
{
    build_sphere(s->b, material, s->f->x + s->cosine * x + s->sine * z, s->f->lift + y,
                 s->f->z - s->sine * x + s->cosine * z, radius);
}

static void block(const stand *s, uint32_t material, float x, float y, float z, float width,
                  float height, float depth)
{
    const float degrees = glm_deg(atan2f(s->sine, s->cosine));
    build_box(s->b, material, s->f->x + s->cosine * x + s->sine * z, s->f->lift + y,
              s->f->z - s->sine * x + s->cosine * z, width, height, depth, degrees);
}

/* Body, head, face and hands, which all have. */
static void person(scene_builder *b, const demo_figure *f, const clothes *c, float stout)
{
    const stand body = facing(b, f, f->turn), head = facing(b, f, f->turn + f->shake);
    const float low = HEAD - 0.03f * f->nod;
    block(&body, c->trousers, -0.1f, 0.0f, 0.0f, 0.15f, 0.45f, 0.18f);
    block(&body, c->trousers, 0.1f, 0.0f, 0.0f, 0.15f, 0.45f, 0.18f);
    ball(&body, c->coat, 0.0f, 0.68f, 0.0f, 0.28f * stout);
    ball(&body, c->coat, 0.0f, 1.0f, 0.0f, 0.225f * stout);
    ball(&body, c->coat, -0.25f * stout, 0.98f, 0.02f, 0.085f);
    ball(&body, c->coat, 0.25f * stout, 0.98f, 0.02f, 0.085f);
    ball(&body, c->skin, -0.31f * stout, 0.74f, 0.12f, 0.07f);
    ball(&body, c->skin, 0.31f * stout, 0.74f, 0.12f, 0.07f);
    ball(&head, c->skin, 0.0f, low, 0.0f, 0.19f);
    ball(&head, c->hair, 0.0f, low + 0.045f, -0.04f, 0.19f);
    ball(&head, c->dark, -0.068f, low + 0.03f, 0.168f, 0.026f);
    ball(&head, c->dark, 0.068f, low + 0.03f, 0.168f, 0.026f);
    ball(&head, c->skin, 0.0f, low - 0.025f, 0.19f, 0.033f);
}

static void begin_person(scene_builder *b, const demo_figure *f)
{
    build_group(b, f->x, f->lift + 0.9f, f->z, 0.98f);
}

static void build_figures(scene_builder *b, const demo_cast *cast, uint32_t wood)
{
    const uint32_t skin = build_plain(b, 0.80f, 0.56f, 0.42f),
                   tan = build_plain(b, 0.58f, 0.36f, 0.24f);
    const uint32_t dark = build_plain(b, 0.02f, 0.02f, 0.025f),
                   red = build_plain(b, 0.50f, 0.13f, 0.06f);
    const uint32_t grey = build_plain(b, 0.62f, 0.62f, 0.62f),
                   brown = build_plain(b, 0.16f, 0.08f, 0.04f);
    const uint32_t plum = build_plain(b, 0.42f, 0.12f, 0.40f),
                   green = build_plain(b, 0.13f, 0.33f, 0.17f);
    const uint32_t blue = build_plain(b, 0.12f, 0.21f, 0.45f),
                   linen = build_plain(b, 0.80f, 0.77f, 0.70f);
    const uint32_t leather = build_plain(b, 0.30f, 0.17f, 0.09f),
                   gold = build_plain(b, 0.85f, 0.58f, 0.12f);
    const clothes lina = {skin, red, plum, brown, dark, gold},
                  mira = {skin, brown, green, brown, dark, linen};
    const clothes tom = {tan, grey, blue, brown, dark, grey},
                  brom = {tan, dark, leather, dark, dark, wood};
    const demo_figure *f = cast->figures;
    const float shake = f[LINA].turn + f[LINA].shake;
    stand s;

    /* A hat with a feather. */
    begin_person(b, &f[LINA]);
    person(b, &f[LINA], &lina, 0.9f);
    s = facing(b, &f[LINA], shake);
    block(&s, plum, 0.0f, HEAD + 0.13f, -0.02f, 0.46f, 0.035f, 0.46f);
    block(&s, plum, 0.0f, HEAD + 0.165f, -0.03f, 0.26f, 0.12f, 0.26f);
    ball(&s, gold, 0.15f, HEAD + 0.25f, -0.03f, 0.05f);
    ball(&s, gold, 0.18f, HEAD + 0.33f, -0.05f, 0.035f);
    build_group_end(b);

    /* An apron, and a bun. */
    begin_person(b, &f[MIRA]);
    person(b, &f[MIRA], &mira, 1.08f);
    s = facing(b, &f[MIRA], f[MIRA].turn);
    block(&s, linen, 0.0f, 0.42f, 0.245f, 0.34f, 0.55f, 0.1f);
    s = facing(b, &f[MIRA], f[MIRA].turn + f[MIRA].shake);
    ball(&s, brown, 0.0f, HEAD + 0.25f, -0.06f, 0.085f);
    build_group_end(b);

    /* A helmet, a moustache, a belt. */
    begin_person(b, &f[TOM]);
    person(b, &f[TOM], &tom, 1.0f);
    s = facing(b, &f[TOM], f[TOM].turn);
    block(&s, leather, 0.0f, 0.8f, 0.0f, 0.5f, 0.06f, 0.5f);
    s = facing(b, &f[TOM], f[TOM].turn + f[TOM].shake);
    ball(&s, grey, 0.0f, HEAD + 0.085f, -0.02f, 0.19f);
    block(&s, grey, 0.0f, HEAD + 0.07f, 0.0f, 0.42f, 0.03f, 0.42f);
    ball(&s, linen, -0.05f, HEAD - 0.075f, 0.165f, 0.042f);
    ball(&s, linen, 0.05f, HEAD - 0.075f, 0.165f, 0.042f);
    build_group_end(b);

    /* A beard, and broad. */
    begin_person(b, &f[BROM]);
    person(b, &f[BROM], &brom, 1.2f);
    s = facing(b, &f[BROM], f[BROM].turn);
    block(&s, brown, 0.0f, 0.42f, 0.27f, 0.36f, 0.66f, 0.1f);
    s = facing(b, &f[BROM], f[BROM].turn + f[BROM].shake);
    ball(&s, dark, 0.0f, HEAD - 0.12f, 0.09f, 0.12f);
    build_group_end(b);
}

/* --- What they may give away --- */

static void build_items(scene_builder *b, const demo_cast *cast, uint32_t wood, uint32_t mirror)
{
    const uint32_t crust = build_plain(b, 0.66f, 0.40f, 0.14f),
                   foam = build_plain(b, 0.88f, 0.85f, 0.76f);
    const uint32_t paper = build_plain(b, 0.80f, 0.72f, 0.52f),
                   ribbon = build_plain(b, 0.70f, 0.08f, 0.06f);
    const uint32_t glow = build_plain(b, 0.95f, 0.78f, 0.30f),
                   iron = build_plain(b, 0.20f, 0.21f, 0.23f);
    for (int i = 0; i < DEMO_ITEMS; i++) {
        const float x = cast->items[i][0], y = cast->items[i][1], z = cast->items[i][2];
        build_group(b, x, y + 0.08f, z, 0.22f);
        switch (i) {
        case 0: /* a flute */
            build_box(b, wood, x, y + 0.01f, z, 0.34f, 0.035f, 0.035f, 25.0f);
            build_sphere(b, glow, x - 0.14f, y + 0.03f, z + 0.065f, 0.026f);
            break;
        case 1: /* a rolled-up song */
            build_box(b, paper, x, y, z, 0.24f, 0.06f, 0.06f, -20.0f);
            build_box(b, ribbon, x, y - 0.003f, z, 0.035f, 0.068f, 0.068f, -20.0f);
            break;
        case 2: /* bread */
            build_sphere(b, crust, x - 0.05f, y + 0.06f, z, 0.07f);
            build_sphere(b, crust, x + 0.05f, y + 0.06f, z, 0.07f);
            break;
        case 3: /* ale */
            build_box(b, wood, x, y, z, 0.11f, 0.15f, 0.11f, 20.0f);
            build_sphere(b, foam, x, y + 0.15f, z, 0.068f);
            break;
        case 4: /* a map */
            build_box(b, paper, x, y, z, 0.28f, 0.012f, 0.2f, 15.0f);
            build_box(b, ribbon, x + 0.03f, y + 0.012f, z, 0.09f, 0.004f, 0.02f, 50.0f);
            break;
        case 5: /* a key */
            build_sphere(b, glow, x - 0.06f, y + 0.03f, z, 0.035f);
            build_box(b, glow, x + 0.03f, y + 0.02f, z, 0.15f, 0.022f, 0.022f, 0.0f);
            break;
        case 6: /* a knife */
            build_box(b, mirror, x + 0.07f, y + 0.02f, z, 0.2f, 0.012f, 0.045f, 35.0f);
            build_box(b, wood, x - 0.07f, y + 0.01f, z + 0.1f, 0.12f, 0.035f, 0.035f, 35.0f);
            break;
        default: /* a horseshoe, or what looks like one from here */
            build_box(b, iron, x - 0.05f, y, z, 0.035f, 0.02f, 0.14f, 0.0f);
            build_box(b, iron, x + 0.05f, y, z, 0.035f, 0.02f, 0.14f, 0.0f);
            build_box(b, iron, x, y, z - 0.06f, 0.13f, 0.02f, 0.035f, 0.0f);
            break;
        }
        build_group_end(b);
    }
}

/* --- The room --- */

static void table(scene_builder *b, uint32_t wood, float x, float z, float width, float depth,
                  float degrees)
{
    build_group(b, x, 0.37f, z, 0.5f * sqrtf(width * width + depth * depth + 0.6f));
    build_box(b, wood, x, 0.68f, z, width, 0.06f, depth, degrees);
    build_box(b, wood, x, 0.0f, z, 0.16f, 0.68f, 0.16f, degrees);
    build_box(b, wood, x, 0.0f, z, 0.5f * width, 0.05f, 0.5f * depth, degrees);
    build_group_end(b);
}

static void build_furniture(scene_builder *b, uint32_t wood, uint32_t pale, uint32_t iron)
{
    const uint32_t bottle = build_plain(b, 0.10f, 0.30f, 0.16f),
                   wine = build_plain(b, 0.42f, 0.05f, 0.07f);
    const uint32_t amber = build_plain(b, 0.70f, 0.36f, 0.06f);
    table(b, pale, -1.6f, -0.05f, 0.95f, 0.7f, 8.0f);
    table(b, pale, 1.5f, -0.35f, 0.85f, 0.7f, -10.0f);

    build_group(b, -0.85f, 0.5f, -1.85f, 1.55f); /* the counter */
    build_box(b, wood, -0.85f, 0.0f, -1.85f, 2.5f, 0.98f, 0.4f, 0.0f);
    build_box(b, pale, -0.85f, 0.98f, -1.85f, 2.7f, 0.06f, 0.54f, 0.0f);
    build_group_end(b);

    build_group(b, -0.85f, 1.75f, -3.25f, 1.35f); /* a shelf */
    build_box(b, wood, -0.85f, 1.5f, -3.25f, 2.4f, 0.05f, 0.28f, 0.0f);
    const uint32_t glass[] = {bottle, wine, amber, bottle, amber, wine};
    for (int i = 0; i < 6; i++) {
        const float x = -1.85f + 0.4f * (float)i;
        build_box(b, glass[i], x, 1.55f, -3.25f, 0.12f, 0.24f, 0.12f, 20.0f);
        build_box(b, glass[i], x, 1.79f, -3.25f, 0.05f, 0.1f, 0.05f, 20.0f);
    }
    build_group_end(b);

    build_group(b, 2.15f, 0.32f, -0.9f, 0.5f); /* an anvil on its block */
    build_box(b, pale, 2.15f, 0.0f, -0.9f, 0.4f, 0.42f, 0.36f, 15.0f);
    build_box(b, iron, 2.15f, 0.42f, -0.9f, 0.62f, 0.2f, 0.26f, 15.0f);
    build_group_end(b);

    build_group(b, -3.05f, 0.45f, -2.3f, 0.75f); /* barrels */
    build_box(b, wood, -3.05f, 0.0f, -2.5f, 0.55f, 0.8f, 0.55f, 20.0f);
    build_box(b, iron, -3.05f, 0.55f, -2.5f, 0.57f, 0.06f, 0.57f, 20.0f);
    build_box(b, iron, -3.05f, 0.2f, -2.5f, 0.57f, 0.06f, 0.57f, 20.0f);
    build_group_end(b);
}

void build_tavern(scene_builder *b, const struct demo_cast *cast)
{
    const float plank_a[3] = {0.36f, 0.22f, 0.12f}, plank_b[3] = {0.28f, 0.16f, 0.08f};
    const float plaster[3] = {0.74f, 0.62f, 0.44f}, beam[3] = {0.24f, 0.13f, 0.06f};
    const float brick[3] = {0.46f, 0.24f, 0.17f}, mortar[3] = {0.55f, 0.48f, 0.40f};
    const float wood_a[3] = {0.44f, 0.26f, 0.12f}, wood_b[3] = {0.34f, 0.19f, 0.08f};
    const float silver[3] = {0.9f, 0.9f, 0.92f};
    const uint32_t planks = build_material(b, TD_TEXTURE_STRIPES, plank_a, plank_b, 4.0f);
    const uint32_t timber = build_material(b, TD_TEXTURE_STRIPES, plaster, plaster, 1.0f);
    const uint32_t bricks = build_material(b, TD_TEXTURE_BRICKS, brick, mortar, 5.0f);
    const uint32_t wood = build_material(b, TD_TEXTURE_STRIPES, wood_a, wood_b, 7.0f);
    const uint32_t mirror = build_material(b, TD_TEXTURE_MIRROR, silver, silver, 1.0f);
    const uint32_t dark_wood = build_plain(b, beam[0], beam[1], beam[2]),
                   pale = build_plain(b, 0.55f, 0.36f, 0.19f);
    const uint32_t iron = build_plain(b, 0.10f, 0.10f, 0.11f),
                   soot = build_plain(b, 0.05f, 0.04f, 0.04f);

    build_bounds(b, (vec3){-3.6f, 0.0f, -3.4f}, (vec3){3.6f, 2.8f, 3.4f});
    build_walls(b, timber, bricks, planks, dark_wood, timber, timber);
    /* Beams of the back wall, the chimney and its hearth: in no group, as rays meet them anywhere.
     */
    build_box(b, dark_wood, 0.95f, 0.0f, -3.36f, 0.16f, 2.8f, 0.1f, 0.0f);
    build_box(b, dark_wood, -2.55f, 0.0f, -3.36f, 0.16f, 2.8f, 0.1f, 0.0f);
    build_box(b, dark_wood, 0.0f, 2.2f, -3.36f, 7.2f, 0.16f, 0.12f, 0.0f);
    build_box(b, bricks, 3.35f, 1.0f, -0.6f, 0.5f, 1.8f, 1.5f, 0.0f);
    build_box(b, soot, 3.5f, 0.0f, -0.6f, 0.2f, 1.0f, 1.2f, 0.0f);
    build_sphere(b, soot, 3.25f, 0.1f, -0.6f, 0.14f);
    build_furniture(b, wood, pale, iron);
    build_items(b, cast, wood, mirror);
    build_figures(b, cast, wood);
    build_light(b, (vec3){-1.5f, 2.6f, 0.7f}, (vec3){0.28f, 0.0f, 0.0f}, (vec3){0.0f, 0.0f, 0.28f},
                (vec3){44.0f, 31.0f, 17.0f});
    build_light(b, (vec3){1.3f, 2.6f, 1.0f}, (vec3){0.28f, 0.0f, 0.0f}, (vec3){0.0f, 0.0f, 0.28f},
                (vec3){44.0f, 32.0f, 18.0f});
    build_light(b, (vec3){-0.8f, 2.6f, -2.4f}, (vec3){0.22f, 0.0f, 0.0f}, (vec3){0.0f, 0.0f, 0.2f},
                (vec3){38.0f, 26.0f, 14.0f});
    build_light(b, (vec3){3.38f, 0.5f, -0.6f}, (vec3){0.0f, 0.3f, 0.0f}, (vec3){0.0f, 0.0f, 0.4f},
                (vec3){40.0f, 15.0f, 4.0f});
}
