/* What scenes are put together from: materials, spheres, boxes, lights.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_BUILDER_H
#define TANDEM_DEMO_BUILDER_H

#include <stdint.h>

#include "shaders/scene_shared.h"

typedef struct scene_builder {
    struct td_scene_block *block;
    uint32_t materials, spheres, boxes;
} scene_builder;

/* Each material is a number. Colours of cells, so many a metre. */
uint32_t build_material(scene_builder *b, uint32_t texture, const float color_a[3],
                        const float color_b[3], float cells);
uint32_t build_plain(scene_builder *b, float red, float green, float blue);

/* TD_FINISH_* */
void build_finish(scene_builder *b, uint32_t material, uint32_t finish, float roughness);

void build_sphere(scene_builder *b, uint32_t material, float x, float y, float z, float radius);
/* A box that stands on y, turned about the vertical. */
void build_box(scene_builder *b, uint32_t material, float x, float y, float z, float width,
               float height, float depth, float degrees);
/* A round one that stands on y; an arch of that width, whose opening is round. */
void build_column(scene_builder *b, uint32_t material, float x, float y, float z, float radius, float height);
void build_arch(scene_builder *b, uint32_t material, float x, float y, float z, float width, float height, float depth,
                float degrees);
void build_light(scene_builder *b, const float center[3], const float half_u[3],
                 const float half_v[3], const float emission[3]);
void build_bounds(scene_builder *b, const float low[3], const float high[3]);
void build_walls(scene_builder *b, uint32_t left, uint32_t right, uint32_t floor_, uint32_t ceiling,
                 uint32_t back, uint32_t front);

/* What comes between the two lies within a sphere. From the first group on there is nothing outside
 * of groups. */
void build_group(scene_builder *b, float x, float y, float z, float radius);
void build_group_end(scene_builder *b);
/* The same around whatever has come between the two. */
void build_group_begin(scene_builder *b);
void build_group_fit(scene_builder *b);
/* All of that is glass. */
void build_group_is_glass(scene_builder *b);

/* `towards` it; colour: its irradiance; `radius` of what is seen of it, in radians. */
void build_sun(scene_builder *b, const float towards[3], float radius, const float color[3]);

/* Scenes that have files of their own. `seconds`: of what moves by itself. */
struct demo_cast;
void build_tavern(scene_builder *b, const struct demo_cast *cast);
void build_courtyard(scene_builder *b, double seconds);
void build_clutter(scene_builder *b, double seconds);

#endif
