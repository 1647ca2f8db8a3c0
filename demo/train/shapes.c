/* Meshes of shapes. See world.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <cglm/cglm.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "demo/train/world.h"

typedef struct vertex {
    vec3 place, normal;
} vertex;

float train_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(*state >> 40) * 0x1p-24f;
}

static void add(train_world *world, const train_shape_at *at, const vertex *a, const vertex *b, const vertex *c)
{
    const vertex *corners[3] = {a, b, c};
    vec3 places[3], normals[3];
    mat4 matrix, inverse;

    if (world->triangle_count == world->triangle_capacity) {
        const uint32_t capacity = world->triangle_capacity ? 2 * world->triangle_capacity : 4096;
        void *longer = realloc(world->triangles, capacity * sizeof *world->triangles);
        if (!longer) {
            world->no_memory = true;
            return;
        }
        world->triangles = longer;
        world->triangle_capacity = capacity;
    }
    memcpy(matrix, at->matrix, sizeof matrix);
    glm_mat4_inv(matrix, inverse);
    glm_mat4_transpose(inverse);
    for (int i = 0; i < 3; i++) {
        glm_mat4_mulv3(matrix, (float *)corners[i]->place, 1, places[i]);
        glm_mat4_mulv3(inverse, (float *)corners[i]->normal, 0, normals[i]);
        glm_vec3_normalize(normals[i]);
    }
    /* Edges turn about the outside, whatever the shape and the matrix. */
    vec3 edge1, edge2, flat;
    glm_vec3_sub(places[1], places[0], edge1);
    glm_vec3_sub(places[2], places[0], edge2);
    glm_vec3_cross(edge1, edge2, flat);
    const bool turned = glm_vec3_dot(flat, normals[0]) + glm_vec3_dot(flat, normals[1]) + glm_vec3_dot(flat, normals[2]) < 0;
    struct td_train_triangle *to = &world->triangles[world->triangle_count++];
    memset(to, 0, sizeof *to);
    glm_vec3_copy(places[0], to->corner);
    glm_vec3_copy(turned ? edge2 : edge1, to->edge1);
    glm_vec3_copy(turned ? edge1 : edge2, to->edge2);
    glm_vec3_copy(normals[0], to->normal0);
    glm_vec3_copy(normals[turned ? 2 : 1], to->normal1);
    glm_vec3_copy(normals[turned ? 1 : 2], to->normal2);
    glm_vec3_copy(world->moving, to->velocity);
    to->of[0] = at->material;
}

/* Corners in the order in which they turn about the normal. */
static void add_four(train_world *world, const train_shape_at *at, const vertex four[4])
{
    add(world, at, &four[0], &four[1], &four[2]);
    add(world, at, &four[0], &four[2], &four[3]);
}

void train_add_quad(train_world *world, const train_shape_at *at)
{
    static const vertex four[4] = {{{-1, 0, 1}, {0, 1, 0}}, {{1, 0, 1}, {0, 1, 0}}, {{1, 0, -1}, {0, 1, 0}}, {{-1, 0, -1}, {0, 1, 0}}};
    add_four(world, at, four);
}

void train_add_box(train_world *world, const train_shape_at *at)
{
    for (int axis = 0; axis < 3; axis++)
        for (int side = -1; side <= 1; side += 2) {
            vertex four[4] = {0};
            for (int i = 0; i < 4; i++) {
                const float u = i == 0 || i == 3 ? -1.0f : 1.0f, v = i < 2 ? -1.0f : 1.0f;
                four[i].place[axis] = (float)side;
                four[i].place[(axis + 1) % 3] = u * (float)side;
                four[i].place[(axis + 2) % 3] = v;
                four[i].normal[axis] = (float)side;
            }
            add_four(world, at, four);
        }
}

/* A grid of vertices that `make` gives, at 0 to 1 of two numbers. */
typedef void make_vertex(const void *shape, float u, float v, vertex *out);
static void add_grid(train_world *world, const train_shape_at *at, uint32_t columns, uint32_t rows, make_vertex *make, const void *shape)
{
    for (uint32_t j = 0; j < rows; j++)
        for (uint32_t i = 0; i < columns; i++) {
            vertex four[4];
            for (uint32_t n = 0; n < 4; n++) {
                const uint32_t x = i + (n == 1 || n == 2), y = j + n / 2;
                make(shape, (float)x / (float)columns, (float)y / (float)rows, &four[n]);
            }
            add_four(world, at, four);
        }
}

typedef struct revolved {
    void (*radius)(float t, float out[2]);
} revolved;

static void make_revolved(const void *shape, float u, float v, vertex *out)
{
    const revolved *of = shape;
    const float angle = 2 * GLM_PIf * u, step = 1e-3f;
    float here[2], below[2], above[2];

    of->radius(v, here);
    of->radius(fmaxf(v - step, 0), below);
    of->radius(fminf(v + step, 1), above);
    const float along = above[0] - below[0], up = above[1] - below[1];
    glm_vec3_copy((vec3){here[0] * cosf(angle), here[1], -here[0] * sinf(angle)}, out->place);
    glm_vec3_copy((vec3){up * cosf(angle), -along, -up * sinf(angle)}, out->normal);
    if (glm_vec3_norm(out->normal) < 1e-9f)
        glm_vec3_copy((vec3){0, v < 0.5f ? -1 : 1, 0}, out->normal);
}

void train_add_revolved(train_world *world, const train_shape_at *at, void (*radius)(float t, float out[2]), uint32_t rings, uint32_t sides)
{
    const revolved of = {radius};
    add_grid(world, at, sides, rings, make_revolved, &of);
}

static void make_torus(const void *shape, float u, float v, vertex *out)
{
    const float thickness = *(const float *)shape, a = 2 * GLM_PIf * u, b = 2 * GLM_PIf * v, r = 1 - thickness + thickness * cosf(b);

    glm_vec3_copy((vec3){r * cosf(a), thickness * sinf(b), -r * sinf(a)}, out->place);
    glm_vec3_copy((vec3){cosf(b) * cosf(a), sinf(b), -cosf(b) * sinf(a)}, out->normal);
}

void train_add_torus(train_world *world, const train_shape_at *at, float thickness)
{
    add_grid(world, at, 32, 12, make_torus, &thickness);
}

/* Waves of a few directions; of three numbers each. */
typedef struct waves {
    float of[6][4];
} waves;

static waves make_waves(uint64_t seed)
{
    waves w;

    for (int i = 0; i < 6; i++) {
        const float length = powf(1.8f, (float)i);
        for (int c = 0; c < 3; c++)
            w.of[i][c] = (2 * train_random(&seed) - 1) * 2 * length;
        w.of[i][3] = 6.28f * train_random(&seed);
    }
    return w;
}

static float wave_at(const waves *w, float x, float y, float z)
{
    float sum = 0;

    for (int i = 0; i < 6; i++)
        sum += powf(0.55f, (float)i) * sinf(w->of[i][0] * x + w->of[i][1] * y + w->of[i][2] * z + w->of[i][3]);
    return sum / 2.2f;
}

static void make_terrain(const void *shape, float u, float v, vertex *out)
{
    const waves *w = shape;
    const float x = 2 * u - 1, z = 1 - 2 * v, step = 1e-3f;

    glm_vec3_copy((vec3){x, wave_at(w, x, 0, z), z}, out->place);
    glm_vec3_copy((vec3){wave_at(w, x - step, 0, z) - wave_at(w, x + step, 0, z), 2 * step, wave_at(w, x, 0, z - step) - wave_at(w, x, 0, z + step)},
                  out->normal);
}

void train_add_waves(train_world *world, const train_shape_at *at, uint64_t seed, uint32_t cells)
{
    const waves w = make_waves(seed);
    add_grid(world, at, cells, cells, make_terrain, &w);
}

typedef struct blob {
    waves w;
    float bumps;
} blob;

static void place_of_blob(const blob *b, float u, float v, vec3 out)
{
    const float a = 2 * GLM_PIf * u, t = GLM_PIf * v;

    glm_vec3_copy((vec3){sinf(t) * cosf(a), -cosf(t), -sinf(t) * sinf(a)}, out);
    glm_vec3_scale(out, (1 + b->bumps * wave_at(&b->w, out[0], out[1], out[2])) / (1 + b->bumps), out);
}

static void make_blob(const void *shape, float u, float v, vertex *out)
{
    const blob *b = shape;
    const float t = fminf(fmaxf(v, 0.01f), 0.99f), step = 2e-3f;
    vec3 left, right, below, above, along, up;

    place_of_blob(b, u, v, out->place);
    place_of_blob(b, u - step, t, left);
    place_of_blob(b, u + step, t, right);
    place_of_blob(b, u, t - step, below);
    place_of_blob(b, u, t + step, above);
    glm_vec3_sub(right, left, along);
    glm_vec3_sub(above, below, up);
    glm_vec3_cross(along, up, out->normal);
}

void train_add_blob(train_world *world, const train_shape_at *at, uint64_t seed, float bumps)
{
    const blob b = {make_waves(seed), bumps};
    add_grid(world, at, 40, 24, make_blob, &b);
}
