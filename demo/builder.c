/* What scenes are put together from.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/builder.h"

#include <cglm/cglm.h>
#include <math.h>
#include <string.h>

uint32_t build_material(scene_builder *b, uint32_t texture, const float color_a[3],
                        const float color_b[3], float cells)
{
    struct td_material *m = &b->block->materials[b->materials];
    memcpy(m->color_a, color_a, 3 * sizeof(float));
    memcpy(m->color_b, color_b, 3 * sizeof(float));
    m->color_a[3] = (float)texture;
    m->color_b[3] = cells;
    b->block->traits[0] |= texture == TD_TEXTURE_SKY ? TD_TRAIT_SKY : texture >= TD_TEXTURE_CLOUDY ? TD_TRAIT_TEXTURES : 0;
    return b->materials++;
}

uint32_t build_plain(scene_builder *b, float red, float green, float blue)
{
    const float color[3] = {red, green, blue};
    return build_material(b, TD_TEXTURE_PLAIN, color, color, 1.0f);
}

void build_finish(scene_builder *b, uint32_t material, uint32_t finish, float roughness)
{
    b->block->materials[material].finish[0] = (float)finish;
    b->block->materials[material].finish[1] = roughness;
    b->block->traits[0] |= TD_TRAIT_FINISHES;
}

void build_sphere(scene_builder *b, uint32_t material, float x, float y, float z, float radius)
{
    const uint32_t i = b->spheres++;
    b->block->counts[0] += !b->block->counts[3];
    const float sphere[4] = {x, y, z, radius};
    memcpy(b->block->spheres[i], sphere, sizeof sphere);
    b->block->sphere_material[i][0] = material;
}

/* A box that stands on y, turned about the vertical. */
void build_box(scene_builder *b, uint32_t material, float x, float y, float z, float width,
               float height, float depth, float degrees)
{
    const uint32_t i = b->boxes++;
    b->block->counts[1] += !b->block->counts[3];
    const float center[4] = {x, y + 0.5f * height, z, cosf(glm_rad(degrees))};
    const float extent[4] = {0.5f * width, 0.5f * height, 0.5f * depth, sinf(glm_rad(degrees))};
    memcpy(b->block->boxes[i].center, center, sizeof center);
    memcpy(b->block->boxes[i].extent, extent, sizeof extent);
    b->block->box_material[i][0] = material;
}

static void shape_last(scene_builder *b, uint32_t shape)
{
    b->block->box_material[b->boxes - 1][1] = shape;
    b->block->traits[0] |= TD_TRAIT_SHAPES;
}

void build_column(scene_builder *b, uint32_t material, float x, float y, float z, float radius, float height)
{
    build_box(b, material, x, y, z, 2 * radius, height, 2 * radius, 0.0f);
    shape_last(b, TD_SHAPE_COLUMN);
}

void build_arch(scene_builder *b, uint32_t material, float x, float y, float z, float width, float height, float depth,
                float degrees)
{
    build_box(b, material, x, y, z, width, height, depth, degrees);
    shape_last(b, TD_SHAPE_ARCH);
}

void build_light(scene_builder *b, const vec3 center, const vec3 half_u, const vec3 half_v,
                 const vec3 emission)
{
    struct td_light *light = &b->block->lights[b->block->counts[2]++];
    vec3 u, v, normal;
    glm_vec3_copy((float *)half_u, u);
    glm_vec3_copy((float *)half_v, v);
    glm_vec3_cross(u, v, normal);
    light->edge_u[3] = 4.0f * glm_vec3_norm(normal);
    glm_vec3_normalize(normal);
    memcpy(light->center, center, sizeof(vec3));
    memcpy(light->edge_u, u, sizeof u);
    memcpy(light->edge_v, v, sizeof v);
    memcpy(light->normal, normal, sizeof normal);
    memcpy(light->emission, emission, sizeof(vec3));
}

void build_bounds(scene_builder *b, const vec3 low, const vec3 high)
{
    memcpy(b->block->room_min, low, sizeof(vec3));
    memcpy(b->block->room_max, high, sizeof(vec3));
}

void build_walls(scene_builder *b, uint32_t left, uint32_t right, uint32_t floor_, uint32_t ceiling,
                 uint32_t back, uint32_t front)
{
    const uint32_t low[4] = {left, floor_, back, 0}, high[4] = {right, ceiling, front, 0};
    memcpy(b->block->walls_min, low, sizeof low);
    memcpy(b->block->walls_max, high, sizeof high);
}

void build_group(scene_builder *b, float x, float y, float z, float radius)
{
    const uint32_t g = b->block->counts[3]++;
    const float bound[4] = {x, y, z, radius};
    const uint32_t none[4] = {b->spheres, b->spheres, b->boxes, b->boxes};
    memcpy(b->block->group_bounds[g], bound, sizeof bound);
    memcpy(b->block->groups[g], none, sizeof none);
}

void build_group_end(scene_builder *b)
{
    uint32_t *group = b->block->groups[b->block->counts[3] - 1];
    group[1] = b->spheres;
    group[3] = b->boxes;
}

void build_group_begin(scene_builder *b)
{
    build_group(b, 0.0f, 0.0f, 0.0f, 0.0f);
}

static void widen(vec3 low, vec3 high, const float *center, float x, float y, float z)
{
    const float reach[3] = {x, y, z};
    for (int axis = 0; axis < 3; axis++) {
        low[axis] = fminf(low[axis], center[axis] - reach[axis]);
        high[axis] = fmaxf(high[axis], center[axis] + reach[axis]);
    }
}

/* The middle of all, and how far the farthest of it is from there. */
void build_group_fit(scene_builder *b)
{
    struct td_scene_block *block = b->block;
    const uint32_t g = block->counts[3] - 1;
    float *bound = block->group_bounds[g], most = 0.0f;
    vec3 low = {1e9f, 1e9f, 1e9f}, high = {-1e9f, -1e9f, -1e9f};
    build_group_end(b);
    const uint32_t *group = block->groups[g];
    for (uint32_t i = group[0]; i < group[1]; i++)
        widen(low, high, block->spheres[i], block->spheres[i][3], block->spheres[i][3], block->spheres[i][3]);
    for (uint32_t i = group[2]; i < group[3]; i++) {
        const float *e = block->boxes[i].extent, across = sqrtf(e[0] * e[0] + e[2] * e[2]);
        widen(low, high, block->boxes[i].center, across, e[1], across);
    }
    for (int axis = 0; axis < 3; axis++)
        bound[axis] = 0.5f * (low[axis] + high[axis]);
    for (uint32_t i = group[0]; i < group[1]; i++)
        most = fmaxf(most, glm_vec3_distance(block->spheres[i], bound) + block->spheres[i][3]);
    for (uint32_t i = group[2]; i < group[3]; i++)
        most = fmaxf(most, glm_vec3_distance(block->boxes[i].center, bound) + glm_vec3_norm(block->boxes[i].extent));
    bound[3] = most + 1e-3f;
}

void build_group_is_glass(scene_builder *b)
{
    b->block->group_moves[b->block->counts[3] - 1][1] = 1;
    b->block->traits[0] |= TD_TRAIT_GLASS;
}

void build_sun(scene_builder *b, const vec3 towards, float radius, const vec3 color)
{
    vec3 way;
    glm_vec3_normalize_to((float *)towards, way);
    memcpy(b->block->sun, way, sizeof way);
    memcpy(b->block->sun_color, color, sizeof(vec3));
    b->block->sun[3] = radius;
}
