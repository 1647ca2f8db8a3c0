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
    return b->materials++;
}

uint32_t build_plain(scene_builder *b, float red, float green, float blue)
{
    const float color[3] = {red, green, blue};
    return build_material(b, TD_TEXTURE_PLAIN, color, color, 1.0f);
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
