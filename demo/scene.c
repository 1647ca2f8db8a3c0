/* The rooms that can be rendered, and where the camera is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/scene.h"

#include <cglm/cglm.h>
#include <math.h>
#include <string.h>

#include "demo/builder.h"

static void build_room(scene_builder *b)
{
    const float light_tile[3] = {0.78f, 0.76f, 0.70f}, dark_tile[3] = {0.16f, 0.17f, 0.20f};
    const float cream[3] = {0.74f, 0.68f, 0.55f}, teal[3] = {0.16f, 0.38f, 0.40f};
    const float brick[3] = {0.56f, 0.28f, 0.20f}, mortar[3] = {0.70f, 0.67f, 0.62f};
    const float wood_a[3] = {0.62f, 0.42f, 0.24f}, wood_b[3] = {0.42f, 0.26f, 0.14f};
    const float silver[3] = {0.92f, 0.93f, 0.95f};
    const uint32_t tiles = build_material(b, TD_TEXTURE_CHECKER, light_tile, dark_tile, 2.5f);
    const uint32_t striped = build_material(b, TD_TEXTURE_STRIPES, cream, teal, 3.0f);
    const uint32_t bricks = build_material(b, TD_TEXTURE_BRICKS, brick, mortar, 6.0f);
    const uint32_t wood = build_material(b, TD_TEXTURE_STRIPES, wood_a, wood_b, 9.0f);
    const uint32_t mirror = build_material(b, TD_TEXTURE_MIRROR, silver, silver, 1.0f);
    const uint32_t white = build_plain(b, 0.76f, 0.75f, 0.72f), red = build_plain(b, 0.66f, 0.16f, 0.12f);
    const uint32_t green = build_plain(b, 0.24f, 0.52f, 0.22f), blue = build_plain(b, 0.20f, 0.30f, 0.62f);
    const uint32_t yellow = build_plain(b, 0.80f, 0.60f, 0.14f), clay = build_plain(b, 0.64f, 0.32f, 0.20f);

    build_bounds(b, (vec3){-3.0f, 0.0f, -3.0f}, (vec3){3.0f, 2.8f, 3.4f});
    build_walls(b, red, green, tiles, white, striped, bricks);
    build_box(b, wood, -0.2f, 0.0f, -0.7f, 1.9f, 0.62f, 0.9f, 14.0f);
    build_sphere(b, mirror, -0.62f, 1.02f, -0.78f, 0.40f);
    build_sphere(b, yellow, 0.35f, 0.86f, -0.55f, 0.24f);
    build_box(b, blue, -2.25f, 0.0f, -1.9f, 0.8f, 1.9f, 0.8f, 24.0f);
    build_box(b, white, 1.95f, 0.0f, -1.7f, 0.9f, 1.1f, 0.9f, -31.0f);
    build_sphere(b, clay, 1.95f, 1.52f, -1.7f, 0.42f);
    build_sphere(b, white, 1.55f, 0.34f, 0.55f, 0.34f);
    build_box(b, yellow, -1.75f, 0.0f, 0.45f, 0.5f, 0.5f, 0.5f, 40.0f);
    build_light(b, (vec3){0.0f, 2.79f, -0.4f}, (vec3){0.75f, 0.0f, 0.0f}, (vec3){0.0f, 0.0f, 0.55f},
              (vec3){13.0f, 11.8f, 9.6f});
}

static void build_gallery(scene_builder *b)
{
    const float plank_a[3] = {0.52f, 0.36f, 0.22f}, plank_b[3] = {0.44f, 0.29f, 0.17f};
    const float black[3] = {0.10f, 0.10f, 0.12f}, white_tile[3] = {0.80f, 0.80f, 0.78f};
    const float orange[3] = {0.82f, 0.42f, 0.12f}, navy[3] = {0.12f, 0.16f, 0.34f};
    const float silver[3] = {0.90f, 0.90f, 0.92f};
    const uint32_t planks = build_material(b, TD_TEXTURE_STRIPES, plank_a, plank_b, 5.0f);
    const uint32_t board = build_material(b, TD_TEXTURE_CHECKER, black, white_tile, 7.0f);
    const uint32_t canvas = build_material(b, TD_TEXTURE_CHECKER, orange, navy, 4.0f);
    const uint32_t mirror = build_material(b, TD_TEXTURE_MIRROR, silver, silver, 1.0f);
    const uint32_t wall = build_plain(b, 0.72f, 0.71f, 0.70f), dark = build_plain(b, 0.26f, 0.30f, 0.36f);
    const uint32_t plinth = build_plain(b, 0.60f, 0.60f, 0.58f), clay = build_plain(b, 0.70f, 0.34f, 0.22f);
    const uint32_t jade = build_plain(b, 0.20f, 0.52f, 0.40f);

    build_bounds(b, (vec3){-4.0f, 0.0f, -4.0f}, (vec3){4.0f, 3.2f, 3.6f});
    build_walls(b, wall, wall, planks, wall, dark, dark);
    build_box(b, plinth, -2.0f, 0.0f, -1.4f, 0.7f, 0.9f, 0.7f, 0.0f);
    build_sphere(b, clay, -2.0f, 1.34f, -1.4f, 0.44f);
    build_box(b, plinth, 0.0f, 0.0f, -2.2f, 0.7f, 0.9f, 0.7f, 45.0f);
    build_sphere(b, mirror, 0.0f, 1.42f, -2.2f, 0.52f);
    build_box(b, plinth, 2.0f, 0.0f, -1.4f, 0.7f, 0.9f, 0.7f, 0.0f);
    build_box(b, jade, 2.0f, 0.9f, -1.4f, 0.5f, 0.8f, 0.5f, 30.0f);
    build_box(b, canvas, -1.9f, 1.1f, -3.96f, 1.7f, 1.3f, 0.06f, 0.0f);
    build_box(b, board, 2.0f, 1.1f, -3.96f, 1.3f, 1.3f, 0.06f, 0.0f);
    build_box(b, clay, 0.9f, 0.0f, 0.1f, 1.5f, 0.42f, 0.5f, -12.0f);
    build_light(b, (vec3){-1.9f, 3.19f, -1.9f}, (vec3){0.6f, 0.0f, 0.0f}, (vec3){0.0f, 0.0f, 0.4f}, (vec3){16.0f, 13.5f,
                                                                                                         10.5f});
    build_light(b, (vec3){2.0f, 3.19f, -1.0f}, (vec3){0.5f, 0.0f, 0.0f}, (vec3){0.0f, 0.0f, 0.5f}, (vec3){10.0f, 12.0f,
                                                                                                        15.0f});
}

typedef struct scene_entry {
    const char *name;
    void (*build)(scene_builder *b); /* NULL, both: it has a cast */
    void (*build_at)(scene_builder *b, double seconds); /* in its place, where something moves by itself */
    vec3 eye, target;
    float swing, bob, field_of_view; /* metres, metres, degrees from top to bottom */
} scene_entry;

static const scene_entry scenes[] = {
    {"room", build_room, NULL, {0.0f, 1.45f, 3.05f}, {0.0f, 0.95f, -1.0f}, 0.85f, 0.18f, 58.0f},
    {"gallery", build_gallery, NULL, {0.2f, 1.60f, 3.2f}, {0.0f, 1.25f, -1.6f}, 1.3f, 0.15f, 56.0f},
    {"courtyard", NULL, build_courtyard, {1.9f, 1.62f, 4.6f}, {-0.7f, 1.75f, -3.5f}, 0.7f, 0.12f, 58.0f},
    {"clutter", NULL, build_clutter, {0.1f, 1.3f, 0.95f}, {0.02f, 1.06f, -0.8f}, 0.24f, 0.05f, 50.0f},
    {"tavern", NULL, NULL, {0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f}, 0.0f, 0.0f, 54.0f},
};
enum { SCENE_COUNT = sizeof scenes / sizeof *scenes };

int demo_scene_find(const char *name)
{
    for (int i = 0; i < SCENE_COUNT; i++)
        if (!strcmp(scenes[i].name, name))
            return i;
    return -1;
}

const char *demo_scene_name(int scene)
{
    return scene >= 0 && scene < SCENE_COUNT ? scenes[scene].name : NULL;
}

bool demo_scene_has_cast(int scene)
{
    return !scenes[scene].build && !scenes[scene].build_at;
}

bool demo_scene_moves(int scene)
{
    return !scenes[scene].build;
}

void demo_scene_build(int scene, const demo_cast *cast, struct td_scene_block *out)
{
    scene_builder b = {.block = out};
    memset(out, 0, sizeof *out);
    if (demo_scene_has_cast(scene))
        build_tavern(&b, cast);
    else if (demo_scene_moves(scene))
        scenes[scene].build_at(&b, cast->seconds);
    else
        scenes[scene].build(&b);
}

void demo_scene_middle(const struct td_scene_block *block, float out[4])
{
    const bool sky = block->traits[0] & TD_TRAIT_SKY;
    for (int i = 0; i < 3; i++) {
        float sum = 0;
        for (uint32_t g = 0; g < block->counts[3]; g++)
            sum += block->group_bounds[g][i];
        out[i] = sky ? sum / (float)block->counts[3] : 0.5f * (block->room_min[i] + block->room_max[i]);
    }
    out[3] = sky ? 7.0f : 24.0f;
}

static bool differ(const float a[4], const float b[4], int count)
{
    for (int i = 0; i < count; i++)
        if (fabsf(a[i] - b[i]) > 1e-3f)
            return true;
    return false;
}

void demo_scene_mark_moves(const struct td_scene_block *before, struct td_scene_block *out)
{
    for (uint32_t g = 0; g < out->counts[3]; g++) {
        const uint32_t *group = out->groups[g];
        bool moves = false;
        for (uint32_t i = group[0]; i < group[1]; i++)
            moves |= differ(out->spheres[i], before->spheres[i], 4);
        for (uint32_t i = group[2]; i < group[3]; i++) /* and its turn, of which cosine and sine are beside it */
            moves |= differ(out->boxes[i].center, before->boxes[i].center, 4) ||
                     fabsf(out->boxes[i].extent[3] - before->boxes[i].extent[3]) > 1e-3f;
        out->group_moves[g][0] = moves;
    }
}

void demo_scene_camera(int scene, const demo_cast *cast, double seconds, uint32_t width, uint32_t height,
                       struct td_scene_push *out)
{
    const scene_entry *s = &scenes[scene];
    const float phase = (float)fmod(seconds * 0.35, 2.0 * GLM_PI);
    const float half = tanf(0.5f * glm_rad(s->field_of_view));
    vec3 eye, target, forward, right, up;
    glm_vec3_copy((float *)s->eye, eye);
    glm_vec3_copy((float *)s->target, target);
    eye[0] += s->swing * sinf(phase);
    eye[1] += s->bob * sinf(2.0f * phase);
    target[0] -= 0.3f * s->swing * sinf(phase);
    if (demo_scene_has_cast(scene)) {
        glm_vec3_copy((float *)cast->eye, eye);
        glm_vec3_copy((float *)cast->target, target);
    }
    glm_vec3_sub(target, eye, forward);
    glm_vec3_normalize(forward);
    glm_vec3_crossn(forward, (vec3){0.0f, 1.0f, 0.0f}, right);
    glm_vec3_cross(right, forward, up);
    glm_vec3_scale(right, half * (float)width / (float)height, right);
    glm_vec3_scale(up, half, up);
    memcpy(out->eye, eye, sizeof eye);
    memcpy(out->right, right, sizeof right);
    memcpy(out->up, up, sizeof up);
    memcpy(out->forward, forward, sizeof forward);
}
