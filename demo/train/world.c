/* Scenes for training, made at random. See world.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A scene is inside, in a room with lamps, or outside, under a sky; either has objects on its floor, on each other and in the
 * air, some of them thin. What is learnt should be about light and not about these scenes, so as little as possible is fixed.
 */
#include "demo/train/world.h"

#include <cglm/cglm.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BODIES = 96 };

typedef struct maker {
    train_world *world;
    uint64_t random;
    float bodies[BODIES][4]; /* where no eye may be: within so much of a point */
    uint32_t body_count;
} maker;

/* --- Chance --- */

static float between(maker *m, float low, float high)
{
    return low + (high - low) * train_random(&m->random);
}

/* As likely in each part that is as many times larger. */
static float between_log(maker *m, float low, float high)
{
    return expf(between(m, logf(low), logf(high)));
}

static bool chance(maker *m, float share)
{
    return train_random(&m->random) < share;
}

static uint32_t below(maker *m, uint32_t count)
{
    const uint32_t n = (uint32_t)(train_random(&m->random) * (float)count);
    return n < count ? n : count - 1;
}

static void note_body(maker *m, const vec3 middle, float radius)
{
    if (m->body_count < BODIES)
        glm_vec4_copy((vec4){middle[0], middle[1], middle[2], radius}, m->bodies[m->body_count++]);
}

static bool is_free(const maker *m, const vec3 eye)
{
    for (uint32_t i = 0; i < m->body_count; i++)
        if (glm_vec3_distance((float *)eye, (float *)m->bodies[i]) < m->bodies[i][3] + 0.3f)
            return false;
    return true;
}

/* --- Materials --- */

static void random_color(maker *m, float brightest, float out[3])
{
    const float gray = between(m, 0.04f, brightest), colorful = chance(m, 0.3f) ? 0.1f : between(m, 0.2f, 1.2f);
    for (int i = 0; i < 3; i++)
        out[i] = glm_clamp(gray * (1 + colorful * between(m, -1, 1)), 0.02f, 0.92f);
}

static uint32_t add_material(maker *m, uint32_t kind)
{
    static const float metals[][3] = {{1.0f, 0.78f, 0.34f}, {0.95f, 0.64f, 0.54f}, {0.91f, 0.92f, 0.92f}, {0.56f, 0.57f, 0.58f}, {0.97f, 0.96f, 0.92f}};
    train_world *w = m->world;

    if (w->material_count == TRAIN_MATERIALS)
        return below(m, TRAIN_MATERIALS - 1);
    struct td_train_material *of = &w->materials[w->material_count];
    const float share = train_random(&m->random);
    random_color(m, 0.9f, of->color_a);
    random_color(m, 0.9f, of->color_b);
    of->color_a[3] = share < 0.5f    ? TD_TEXTURE_PLAIN
                     : share < 0.65f ? TD_TEXTURE_NOISE
                     : share < 0.8f  ? TD_TEXTURE_CHECKER
                     : share < 0.9f  ? TD_TEXTURE_STRIPES
                                     : TD_TEXTURE_BRICKS;
    of->color_b[3] = between_log(m, 0.7f, 25);
    of->kind[0] = (float)kind;
    of->kind[1] = between(m, 0.1f, 0.7f);
    if (kind == TD_TRAIN_METAL)
        memcpy(of->color_a, metals[below(m, 5)], sizeof metals[0]);
    if (kind == TD_TRAIN_MIRROR || kind == TD_TRAIN_GLASS)
        for (int i = 0; i < 3; i++)
            of->color_a[i] = chance(m, 0.7f) ? 0.97f : between(m, 0.6f, 1);
    if (kind >= TD_TRAIN_METAL)
        of->color_a[3] = TD_TEXTURE_PLAIN;
    return w->material_count++;
}

static uint32_t any_material(maker *m)
{
    const float share = train_random(&m->random);
    return add_material(m, share < 0.58f   ? TD_TRAIN_DIFFUSE
                           : share < 0.76f ? TD_TRAIN_PLASTIC
                           : share < 0.89f ? TD_TRAIN_METAL
                           : share < 0.94f ? TD_TRAIN_MIRROR
                                           : TD_TRAIN_GLASS);
}

/* Of what bounds a room or stands far away: nothing that is looked through. */
static uint32_t solid_material(maker *m)
{
    const float share = train_random(&m->random);
    return add_material(m, share < 0.7f ? TD_TRAIN_DIFFUSE : share < 0.92f ? TD_TRAIN_PLASTIC : share < 0.97f ? TD_TRAIN_METAL : TD_TRAIN_MIRROR);
}

static uint32_t add_emitter(maker *m, float radiance)
{
    const uint32_t material = add_material(m, TD_TRAIN_DIFFUSE);
    struct td_train_material *of = &m->world->materials[material];
    const float warm = between(m, -0.35f, 0.35f);

    glm_vec3_copy((vec3){radiance * (1 + warm), radiance, radiance * (1 - warm)}, of->emission);
    if (chance(m, 0.15f)) /* colored */
        of->emission[below(m, 3)] *= 0.1f;
    return material;
}

/* --- Shapes --- */

static train_shape_at place(const vec3 where, const vec3 size, float turn, const vec3 axis, uint32_t material)
{
    train_shape_at at = {.material = material};
    mat4 matrix;

    glm_translate_make(matrix, (float *)where);
    glm_rotate(matrix, turn, (float *)axis);
    glm_scale(matrix, (float *)size);
    memcpy(at.matrix, matrix, sizeof at.matrix);
    return at;
}

static void sphere(float t, float out[2])
{
    out[0] = sinf(GLM_PIf * t), out[1] = -cosf(GLM_PIf * t);
}

static void cylinder(float t, float out[2])
{
    out[0] = t < 0.02f || t > 0.98f ? 0 : 1, out[1] = t < 0.04f ? -1 : t > 0.96f ? 1 : 2 * t - 1;
}

static void cone(float t, float out[2])
{
    out[0] = t < 0.02f ? 0 : 1 - t, out[1] = t < 0.04f ? -1 : 2 * t - 1;
}

static void vase(float t, float out[2])
{
    out[0] = t < 0.02f ? 0 : 0.55f + 0.35f * sinf(5 * t) + 0.1f * cosf(11 * t), out[1] = 2 * t - 1;
}

static void pole(float t, float out[2])
{
    out[0] = 1, out[1] = 2 * t - 1;
}

static void add_thin(maker *m, const vec3 where, float size, uint32_t material)
{
    const uint32_t count = 4 + below(m, 12), kind = below(m, 3);
    const float thick = between_log(m, 0.004f, 0.03f), apart = size * between(m, 0.15f, 0.5f);
    const bool along_x = chance(m, 0.5f);

    for (uint32_t i = 0; i < count; i++) {
        vec3 here;
        const float step = apart * ((float)i - 0.5f * (float)count);
        glm_vec3_copy((vec3){where[0] + (along_x ? step : 0), where[1] + size, where[2] + (along_x ? 0 : step)}, here);
        if (kind == 0) { /* a fence, or bars */
            const train_shape_at at = place(here, (vec3){thick, size, thick}, 0, (vec3){0, 1, 0}, material);
            train_add_revolved(m->world, &at, pole, 1, 8);
        } else if (kind == 1) { /* a chain */
            here[1] = where[1] + size + 0.3f * size * cosf((float)i);
            const train_shape_at at = place(here, (vec3){apart, apart, apart}, GLM_PI_2f * (float)(i % 2), (vec3){1, 0.2f, 0}, material);
            train_add_torus(m->world, &at, 0.1f);
        } else { /* leaves */
            for (int leaf = 0; leaf < 6; leaf++) {
                vec3 there = {here[0] + between(m, -1, 1) * size, where[1] + between(m, 0, 2) * size, here[2] + between(m, -1, 1) * size};
                const float wide = size * between(m, 0.05f, 0.2f);
                const train_shape_at at = place(there, (vec3){wide, 1, 2 * wide}, between(m, 0, 6), (vec3){between(m, -1, 1), between(m, -1, 1), 1}, material);
                train_add_quad(m->world, &at);
            }
        }
    }
}

/* An object that stands on `where`; how high it is. */
static float add_object(maker *m, const vec3 where, float size)
{
    const uint32_t material = any_material(m), kind = below(m, 9);
    const float high = size * between(m, 0.5f, 1.6f), turn = between(m, 0, 2 * GLM_PIf);
    const bool tilted = chance(m, 0.2f);
    vec3 middle = {where[0], where[1] + high, where[2]}, axis = {tilted ? between(m, -1, 1) : 0, 1, tilted ? between(m, -1, 1) : 0};
    const bool round = kind == 1 || kind == 6;
    train_shape_at at;

    if (round)
        middle[1] = where[1] + size;
    note_body(m, middle, 1.5f * fmaxf(size, high));
    at = place(middle, (vec3){size, round ? size : high, round ? size : size * between(m, 0.4f, 1)}, turn, axis, material);
    if (kind == 0 || kind == 7)
        train_add_box(m->world, &at);
    else if (kind == 1)
        train_add_revolved(m->world, &at, sphere, 24, 40);
    else if (kind == 2)
        train_add_revolved(m->world, &at, cylinder, 50, 32);
    else if (kind == 3)
        train_add_revolved(m->world, &at, cone, 50, 32);
    else if (kind == 4)
        train_add_revolved(m->world, &at, vase, 40, 32);
    else if (kind == 5)
        train_add_torus(m->world, &at, between(m, 0.1f, 0.4f));
    else if (kind == 6)
        train_add_blob(m->world, &at, m->random, between(m, 0.05f, 0.5f));
    else
        add_thin(m, where, size, material);
    return 2 * (round ? size : high);
}

static void add_objects(maker *m, float reach_x, float reach_z)
{
    const uint32_t count = 4 + below(m, 26);
    const float typical = between_log(m, 0.12f, 0.5f);

    for (uint32_t i = 0; i < count; i++) {
        const float size = typical * between_log(m, 0.4f, 2);
        vec3 where = {between(m, -reach_x, reach_x), 0, between(m, -reach_z, reach_z)};
        const bool moves = chance(m, 0.25f);
        for (int axis = 0; axis < 3; axis++)
            m->world->moving[axis] = moves ? between(m, -0.06f, 0.06f) * (axis == 1 ? 0.3f : 1.0f) : 0;
        if (chance(m, 0.15f)) /* in the air */
            where[1] = between(m, 0, 1.8f);
        where[1] += add_object(m, where, size);
        if (chance(m, 0.3f)) /* on top of it */
            add_object(m, where, 0.5f * size);
    }
    memset(m->world->moving, 0, sizeof m->world->moving);
}

/* --- Light --- */

static void add_lamp(maker *m, const train_shape_at *at, uint32_t kind)
{
    if (kind == 0)
        train_add_quad(m->world, at);
    else if (kind == 1)
        train_add_revolved(m->world, at, sphere, 8, 12);
    else
        train_add_box(m->world, at);
}

/* All triangles that shine, each as likely as it is bright. */
static void collect_lights(train_world *w)
{
    float sum = 0, before = 0;

    for (uint32_t i = 0; i < w->triangle_count; i++)
        w->light_count += glm_vec3_max(w->materials[w->triangles[i].of[0]].emission) > 0;
    w->lights = calloc(w->light_count ? w->light_count : 1, sizeof *w->lights);
    w->no_memory = w->no_memory || !w->lights;
    for (uint32_t i = 0, n = 0; i < w->triangle_count && w->lights; i++) {
        const struct td_train_triangle *t = &w->triangles[i];
        const struct td_train_material *of = &w->materials[t->of[0]];
        vec3 area;
        if (!(glm_vec3_max((float *)of->emission) > 0))
            continue;
        struct td_train_light *light = &w->lights[n++];
        memcpy(light->corner, t->corner, sizeof light->corner);
        memcpy(light->edge1, t->edge1, sizeof light->edge1);
        memcpy(light->edge2, t->edge2, sizeof light->edge2);
        memcpy(light->emission, of->emission, sizeof light->emission);
        glm_vec3_cross(light->edge1, light->edge2, area);
        light->edge1[3] = glm_vec3_norm(area) * glm_vec3_max(light->emission) + 1e-12f;
        sum += light->edge1[3];
    }
    for (uint32_t n = 0; n < w->light_count && w->lights; n++) {
        w->lights[n].edge1[3] /= sum;
        before += w->lights[n].edge1[3];
        w->lights[n].corner[3] = before;
    }
    w->head.counts[0] = w->light_count;
}

/* --- Inside and outside --- */

static void add_inside(maker *m, float *reach_x, float *reach_z)
{
    train_world *w = m->world;
    const float wide = between(m, 1.8f, 4.5f), deep = between(m, 1.8f, 4.5f), high = between(m, 2.3f, 3.8f);
    const uint32_t lamps = 1 + below(m, 4);
    const uint32_t wall = add_material(m, TD_TRAIN_DIFFUSE);
    const float exposure = between_log(m, 0.02f, 50);

    for (int side = 0; side < 6; side++) {
        const bool is_floor = side == 0, is_ceiling = side == 1;
        const uint32_t material = is_floor || chance(m, 0.3f) ? solid_material(m) : wall;
        const float far = side < 2 ? high / 2 : side < 4 ? deep : wide, half_z = side < 2 ? deep : high / 2, half_x = side < 4 ? wide : deep;
        mat4 matrix = GLM_MAT4_IDENTITY_INIT;
        train_shape_at at = {.material = material};
        if (side == 1 && chance(m, 0.1f)) /* open above */
            continue;
        glm_translate(matrix, (vec3){0, high / 2, 0});
        if (is_ceiling)
            glm_rotate(matrix, GLM_PIf, (vec3){1, 0, 0});
        else if (side == 2 || side == 3)
            glm_rotate(matrix, side == 2 ? GLM_PI_2f : -GLM_PI_2f, (vec3){1, 0, 0});
        else if (side > 3) {
            glm_rotate(matrix, side == 4 ? GLM_PI_2f : -GLM_PI_2f, (vec3){0, 1, 0});
            glm_rotate(matrix, GLM_PI_2f, (vec3){1, 0, 0});
        }
        glm_translate(matrix, (vec3){0, -far, 0});
        glm_scale(matrix, (vec3){half_x, 1, half_z});
        memcpy(at.matrix, matrix, sizeof at.matrix);
        train_add_quad(w, &at);
    }
    for (uint32_t i = 0; i < lamps; i++) {
        const bool is_low = chance(m, 0.3f);
        const float size = between_log(m, 0.03f, is_low ? 0.25f : 0.9f), power = exposure * between(m, 1, 8) * wide * deep / (float)lamps;
        const uint32_t kind = below(m, 3), material = add_emitter(m, power / (4 * size * size * (kind ? 3.0f : 1.0f)));
        vec3 where = {between(m, -0.8f, 0.8f) * wide, high - 0.02f - (kind ? size : 0), between(m, -0.8f, 0.8f) * deep};
        if (is_low)
            where[1] = between(m, 0.3f, 2);
        note_body(m, where, 1.8f * size);
        const train_shape_at at = place(where, (vec3){size, kind ? size : -1, size}, 0, (vec3){0, 1, 0}, material);
        add_lamp(m, &at, kind);
    }
    *reach_x = 0.85f * wide, *reach_z = 0.85f * deep;
}

static void add_outside(maker *m, float *reach_x, float *reach_z)
{
    train_world *w = m->world;
    const float exposure = between_log(m, 0.02f, 50);
    const bool waves = chance(m, 0.4f);
    const train_shape_at at = place((vec3){0, waves ? -0.3f : 0, 0}, (vec3){30, waves ? 0.8f : 1, 30}, between(m, 0, 6), (vec3){0, 1, 0},
                                    add_material(m, chance(m, 0.8f) ? TD_TRAIN_DIFFUSE : TD_TRAIN_PLASTIC));

    if (waves)
        train_add_waves(w, &at, m->random, 120);
    else
        train_add_quad(w, &at);
    w->head.sky_low[3] = 1;
    for (int i = 0; i < 3; i++) {
        w->head.sky_low[i] = exposure * between(m, 0.4f, 1.2f);
        w->head.sky_high[i] = exposure * between(m, 0.1f, 0.6f + 0.3f * (float)i);
    }
    if (chance(m, 0.65f)) {
        const float strength = exposure * between_log(m, 1, 10);
        glm_vec3_copy((vec3){between(m, -1, 1), between(m, 0.15f, 1.2f), between(m, -1, 1)}, w->head.sun);
        glm_vec3_normalize(w->head.sun);
        w->head.sun[3] = chance(m, 0.6f) ? 0.005f : between_log(m, 0.01f, 0.2f);
        glm_vec3_copy((vec3){strength, strength * between(m, 0.75f, 1), strength * between(m, 0.5f, 1)}, w->head.sun_color);
    }
    const uint32_t houses = below(m, 6);
    for (uint32_t i = 0; i < houses; i++) {
        const float angle = between(m, 0, 6.28f), far = between(m, 5, 14), high = between(m, 1, 4);
        const train_shape_at house = place((vec3){far * cosf(angle), high, far * sinf(angle)}, (vec3){between(m, 1, 3), high, between(m, 1, 3)}, angle,
                                           (vec3){0, 1, 0}, solid_material(m));
        train_add_box(w, &house);
    }
    *reach_x = *reach_z = between(m, 2, 5);
}

bool train_world_make(uint64_t seed, train_world *out)
{
    maker m = {.world = out, .random = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15)};
    float reach_x, reach_z;

    memset(out, 0, sizeof *out);
    m.random = (m.random ^ m.random >> 30) * UINT64_C(0xbf58476d1ce4e5b9); /* neighbouring seeds have nothing in common */
    m.random = (m.random ^ m.random >> 27) * UINT64_C(0x94d049bb133111eb);
    const bool inside = chance(&m, 0.6f);
    if (inside)
        add_inside(&m, &reach_x, &reach_z);
    else
        add_outside(&m, &reach_x, &reach_z);
    add_objects(&m, reach_x, reach_z);
    for (int tries = 0; tries == 0 || (tries < 64 && !is_free(&m, out->eye)); tries++) {
        const float angle = between(&m, 0, 2 * GLM_PIf), far = inside ? between(&m, 0.7f, 1) : between(&m, 0.9f, 1.4f);
        glm_vec3_copy((vec3){far * reach_x * cosf(angle), between(&m, 0.5f, 2), far * reach_z * sinf(angle)}, out->eye);
    }
    glm_vec3_copy((vec3){between(&m, -0.4f, 0.4f) * reach_x, between(&m, 0.1f, 1.3f), between(&m, -0.4f, 0.4f) * reach_z}, out->target);
    for (int i = 0; i < 3; i++)
        out->velocity[i] = between(&m, -0.04f, 0.04f);
    out->field = between_log(&m, 0.3f, 0.75f);
    collect_lights(out);
    return !out->no_memory && train_bvh_build(out);
}

void train_world_free(train_world *world)
{
    free(world->triangles);
    free(world->nodes);
    free(world->lights);
    memset(world, 0, sizeof *world);
}

bool train_world_move(train_world *w, uint32_t frames)
{
    for (uint32_t i = 0; i < w->triangle_count; i++)
        glm_vec3_muladds(w->triangles[i].velocity, (float)frames, w->triangles[i].corner);
    return train_bvh_build(w);
}

static void look(const train_world *w, float frame, float aspect, float *eye, float *right, float *up, float *forward)
{
    glm_vec3_copy((float *)w->eye, eye);
    glm_vec3_muladds((float *)w->velocity, frame, eye);
    glm_vec3_sub((float *)w->target, eye, forward);
    glm_vec3_normalize(forward);
    glm_vec3_crossn(forward, (vec3){0, 1, 0}, right);
    glm_vec3_cross(right, forward, up);
    glm_vec3_scale(right, w->field * aspect, right);
    glm_vec3_scale(up, w->field, up);
}

void train_world_camera(train_world *w, uint32_t frame, uint32_t width, uint32_t height)
{
    struct td_train_world *h = &w->head;
    const float aspect = (float)width / (float)height;

    h->counts[1] = frame;
    look(w, (float)frame, aspect, h->eye, h->right, h->up, h->forward);
    look(w, (float)frame - 1, aspect, h->eye_before, h->right_before, h->up_before, h->forward_before);
}
