/* What the scene's shader and demo/scene.c agree on: a uniform block and the push constants.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Read by C and by GLSL; every member is a multiple of 16 bytes, so both lay it out alike.
 */
#ifndef TD_SCENE_SHARED_H
#define TD_SCENE_SHARED_H

#ifdef VULKAN
#define TD_VEC4(name) vec4 name
#define TD_UVEC4(name) uvec4 name
#define TD_STRUCT
#else
#include <stdint.h>
#define TD_VEC4(name) float name[4]
#define TD_UVEC4(name) uint32_t name[4]
#define TD_STRUCT struct
#endif

#define TD_SCENE_MATERIALS 32
#define TD_SCENE_SPHERES 128
#define TD_SCENE_BOXES 128
#define TD_SCENE_LIGHTS 8
#define TD_SCENE_GROUPS 32

#define TD_TEXTURE_PLAIN 0
#define TD_TEXTURE_CHECKER 1
#define TD_TEXTURE_STRIPES 2
#define TD_TEXTURE_BRICKS 3
#define TD_TEXTURE_MIRROR 4
#define TD_TEXTURE_SKY 6    /* of walls far away: color_a at the horizon, color_b overhead; what is behind it shines */
#define TD_TEXTURE_CLOUDY 7 /* between the two colours, as noise has it: stone, plaster */
#define TD_TEXTURE_LEAVES 8 /* cells of both colours that face any way */
#define TD_TEXTURE_RIPPLES 9

/* What a surface does with light. */
#define TD_FINISH_MATT 0
#define TD_FINISH_COATED 1 /* matt under a clear coat */
#define TD_FINISH_METAL 2
#define TD_FINISH_GLASS 3  /* spheres alone, in groups of their own */
#define TD_FINISH_GLOW 4   /* is seen as bright as its colour times `finish.y`, and lights nothing */

/* What a scene has. */
#define TD_TRAIT_SHAPES 1u   /* boxes of which something is cut away */
#define TD_TRAIT_TEXTURES 2u /* those from TD_TEXTURE_CLOUDY on */
#define TD_TRAIT_FINISHES 4u /* other than matt */
#define TD_TRAIT_GLASS 8u
#define TD_TRAIT_SKY 16u     /* and a sun */

/* What is inscribed in a box. */
#define TD_SHAPE_BOX 0
#define TD_SHAPE_COLUMN 1 /* a round one, upright */
#define TD_SHAPE_ARCH 2   /* the box without a round one that lies along its depth at the middle of its foot */

struct td_material {
    TD_VEC4(color_a); /* rgb; w: TD_TEXTURE_* */
    TD_VEC4(color_b); /* rgb of the other cells; w: cells a metre */
    TD_VEC4(finish);  /* x: TD_FINISH_*, y: roughness, 0 to 1, z: of ripples, how far they have come */
};

struct td_box {
    TD_VEC4(center); /* w: cosine of its turn about y */
    TD_VEC4(extent); /* half edges; w: sine of the turn */
};

/* A parallelogram that shines to one side. */
struct td_light {
    TD_VEC4(center);
    TD_VEC4(edge_u);   /* half edges; w of u: area in square metres */
    TD_VEC4(edge_v);
    TD_VEC4(normal);
    TD_VEC4(emission); /* radiance, rgb */
};

struct td_scene_block {
    TD_VEC4(room_min);
    TD_VEC4(room_max);
    TD_UVEC4(counts);    /* spheres and boxes of no group, lights, groups: constants of the pipeline, so that loops unroll */
    TD_UVEC4(traits);    /* x: TD_TRAIT_*, a constant of the pipeline, too, so that what a scene has not costs it nothing */
    TD_UVEC4(walls_min); /* materials of the walls at room_min: x, y (floor), z */
    TD_UVEC4(walls_max); /* and at room_max */
    TD_STRUCT td_material materials[TD_SCENE_MATERIALS];
    TD_VEC4(spheres[TD_SCENE_SPHERES]); /* w: radius */
    TD_STRUCT td_box boxes[TD_SCENE_BOXES];
    TD_UVEC4(sphere_material[TD_SCENE_SPHERES]); /* x */
    TD_UVEC4(box_material[TD_SCENE_BOXES]);      /* x; y: TD_SHAPE_* */
    TD_STRUCT td_light lights[TD_SCENE_LIGHTS];
    TD_VEC4(group_bounds[TD_SCENE_GROUPS]); /* a sphere around all of a group, which rays that miss it pass by */
    TD_UVEC4(groups[TD_SCENE_GROUPS]);      /* x to below y: its spheres; z to below w: its boxes */
    TD_UVEC4(group_moves[TD_SCENE_GROUPS]); /* x: 1: something of it is not where it was in the frame before; y: 1: it is glass */
    TD_VEC4(sun);       /* towards it; w: how far its edge is from its middle, in radians */
    TD_VEC4(sun_color); /* rgb: irradiance */
};

struct td_scene_push {
    TD_VEC4(eye);
    TD_VEC4(right);   /* scaled so that the image spans -1 to 1 */
    TD_VEC4(up);
    TD_VEC4(forward);
    TD_UVEC4(size);   /* x: width, y: height, z: samples in this dispatch, w: samples that are there already */
    TD_UVEC4(random); /* x: seed, y: stream, z: bounces, w: 1: rays anywhere in their pixel, 0: through its middle */
};

#endif
