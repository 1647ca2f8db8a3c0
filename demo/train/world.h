/* Scenes for training, made at random: meshes, materials, lights, a sky, a camera that moves.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_TRAIN_WORLD_H
#define TANDEM_DEMO_TRAIN_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shaders/train_shared.h"

enum { TRAIN_MATERIALS = 64 };

/* What the shader reads. Zeroed is empty. */
typedef struct train_world {
    struct td_train_world head; /* the camera's part by train_world_camera() */
    struct td_train_triangle *triangles;
    struct td_train_node *nodes; /* by train_bvh_build(), which puts triangles into another order */
    struct td_train_light *lights;
    struct td_train_material materials[TRAIN_MATERIALS];
    uint32_t triangle_count, triangle_capacity, node_count, light_count, material_count;
    float eye[3], target[3], velocity[3], field; /* the camera's at frame 0; of a frame; tangent of half the field of view's height */
    float moving[3]; /* of triangles that are added: metres a frame */
    bool no_memory;
} train_world;

/* The same for the same seed. False when memory is short; what there is of it is freed by train_world_free() all the same. */
bool train_world_make(uint64_t seed, train_world *out);
void train_world_free(train_world *world);

/* Moves what moves by so many frames; false when memory is short. */
bool train_world_move(train_world *world, uint32_t frames);

/* The camera at a frame, and at the one before. */
void train_world_camera(train_world *world, uint32_t frame, uint32_t width, uint32_t height);

/* Shapes, within -1 to 1, moved to where `at` says; normals are as smooth as the shape. */
typedef struct train_shape_at {
    float matrix[4][4]; /* columns, as cglm has them */
    uint32_t material;
} train_shape_at;
void train_add_box(train_world *world, const train_shape_at *at);
void train_add_quad(train_world *world, const train_shape_at *at); /* the square of x and z, facing y */
/* A body of revolution about y: `radius` says how far it is from the axis, and how high, at 0 to 1 from bottom to top. */
void train_add_revolved(train_world *world, const train_shape_at *at, void (*radius)(float t, float out[2]), uint32_t rings, uint32_t sides);
void train_add_torus(train_world *world, const train_shape_at *at, float thickness);
/* The square of x and z, raised by a sum of waves. */
void train_add_waves(train_world *world, const train_shape_at *at, uint64_t seed, uint32_t cells);
/* A sphere with bumps. */
void train_add_blob(train_world *world, const train_shape_at *at, uint64_t seed, float bumps);

/* Nodes over the triangles; false when memory is short. */
bool train_bvh_build(train_world *world);

/* 0 to 1, from a state of the caller's. */
float train_random(uint64_t *state);

#endif
