/* What the shader that makes frames for training and demo/train agree on.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Read by C and by GLSL; every member is a multiple of 16 bytes, so both lay it out alike.
 */
#ifndef TD_TRAIN_SHARED_H
#define TD_TRAIN_SHARED_H

#include "scene_shared.h"

/* Materials: what they do with light. */
#define TD_TRAIN_DIFFUSE 0
#define TD_TRAIN_PLASTIC 1 /* diffuse under a clear coat, which is rough */
#define TD_TRAIN_METAL 2   /* rough */
#define TD_TRAIN_MIRROR 3
#define TD_TRAIN_GLASS 4

/* Beside those of scene_shared.h, in three dimensions. */
#define TD_TEXTURE_NOISE 5

struct td_train_node {
    TD_VEC4(low);
    TD_VEC4(high);
    TD_UVEC4(of); /* x: first triangle, or the first of two neighbouring children; y: triangles, 0: it has children */
};

struct td_train_triangle {
    TD_VEC4(corner); /* edges lead from it */
    TD_VEC4(edge1);
    TD_VEC4(edge2);
    TD_VEC4(normal0); /* of the corners, towards the outside */
    TD_VEC4(normal1);
    TD_VEC4(normal2);
    TD_VEC4(velocity); /* metres a frame */
    TD_UVEC4(of); /* x: material */
};

struct td_train_material {
    TD_VEC4(color_a);  /* rgb; w: TD_TEXTURE_* */
    TD_VEC4(color_b);  /* rgb of the other cells; w: cells a metre */
    TD_VEC4(kind);     /* x: TD_TRAIN_*, y: roughness, 0 to 1 */
    TD_VEC4(emission); /* radiance, to both sides */
};

struct td_train_light {
    TD_VEC4(corner); /* a triangle; w: the probability that it is chosen, and those before it */
    TD_VEC4(edge1);  /* w: the probability that it is chosen */
    TD_VEC4(edge2);
    TD_VEC4(emission);
};

struct td_train_world {
    TD_VEC4(eye);
    TD_VEC4(right); /* scaled so that the image spans -1 to 1 */
    TD_VEC4(up);
    TD_VEC4(forward);
    TD_VEC4(eye_before); /* the same of the frame before */
    TD_VEC4(right_before);
    TD_VEC4(up_before);
    TD_VEC4(forward_before);
    TD_VEC4(sky_low);  /* radiance at the horizon; w: 1 if there is a sky, else it is black */
    TD_VEC4(sky_high); /* and overhead */
    TD_VEC4(sun);      /* towards it; w: the sine of its radius */
    TD_VEC4(sun_color); /* irradiance */
    TD_UVEC4(counts);  /* x: lights, y: the frame */
};

/* A pixel's sums over its samples, as floats. */
#define TD_TRAIN_COLOR 0
#define TD_TRAIN_ALBEDO 3
#define TD_TRAIN_NORMAL 6
#define TD_TRAIN_DEPTH 9
#define TD_TRAIN_MOTION 10
#define TD_TRAIN_VALID 12
#define TD_TRAIN_DIRECT 13 /* the part of color that no surface scatters of another's light */
#define TD_TRAIN_CHANNELS 16

/* What is wanted: motion; albedo of what scatters alone, 0 of metal, mirrors and glass. */
#define TD_TRAIN_MOVES 1u
#define TD_TRAIN_DIFFUSE_ALBEDO 2u
#define TD_TRAIN_MIDDLE 4u /* rays go through the middle of their pixel */

struct td_train_push {
    TD_UVEC4(size);   /* x: width, y: height, z: samples in this dispatch, w: samples that are there already */
    TD_UVEC4(random); /* x: seed, y: stream, z: bounces, w: TD_TRAIN_MOVES, TD_TRAIN_DIFFUSE_ALBEDO, TD_TRAIN_MIDDLE */
};

#endif
