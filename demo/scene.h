/* The rooms that can be rendered, and where the camera is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_SCENE_H
#define TANDEM_DEMO_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include "shaders/scene_shared.h"

enum { DEMO_BOUNCES = 3, DEMO_FIGURES = 4, DEMO_ITEMS = 8 };

/* What moves in a scene that has figures: where they stand, where things lie, and who looks on. Metres, degrees. */
typedef struct demo_figure {
    float x, z, lift; /* of its feet; above the floor */
    float turn;       /* about the vertical; 0: towards positive z */
    float shake;      /* of its head, beyond that */
    float nod;        /* how far its head is lowered */
} demo_figure;

typedef struct demo_cast {
    float eye[3], target[3];
    demo_figure figures[DEMO_FIGURES];
    float items[DEMO_ITEMS][3];
    double seconds; /* of what moves by itself, figures or not */
} demo_cast;

/* Whether it has figures; of a cast of other scenes nothing but the seconds is read. */
bool demo_scene_has_cast(int scene);
/* Whether anything in it is not always where it was. */
bool demo_scene_moves(int scene);
/* All in their places. */
void demo_scene_cast(demo_cast *out);
/* The middle of a figure's head. */
void demo_scene_head(const demo_cast *cast, int figure, float out[3]);

/* Index of a scene, or -1. demo_scene_name() is NULL past the last one. */
int demo_scene_find(const char *name);
const char *demo_scene_name(int scene);

void demo_scene_build(int scene, const demo_cast *cast, struct td_scene_block *out);
/* Where the middle of all is; the fourth: how far from there it reaches, metres, but for a sky, whose walls are far away. */
void demo_scene_middle(const struct td_scene_block *block, float out[4]);
/* Says of each group whether something of it is more than a millimetre from where it is in `before`: the same scene. */
void demo_scene_mark_moves(const struct td_scene_block *before, struct td_scene_block *out);

/* Fills eye, right, up and forward for a moment of the camera's path; where there is a cast, as that has it. */
void demo_scene_camera(int scene, const demo_cast *cast, double seconds, uint32_t width, uint32_t height,
                       struct td_scene_push *out);

#endif
