/* The rooms that can be rendered, and where the camera is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_SCENE_H
#define TANDEM_DEMO_SCENE_H

#include <stdint.h>

#include "shaders/scene_shared.h"

enum { DEMO_BOUNCES = 3 };

/* Index of a scene, or -1. demo_scene_name() is NULL past the last one. */
int demo_scene_find(const char *name);
const char *demo_scene_name(int scene);

void demo_scene_build(int scene, struct td_scene_block *out);

/* Fills eye, right, up and forward for a moment of the camera's path. */
void demo_scene_camera(int scene, double seconds, uint32_t width, uint32_t height, struct td_scene_push *out);

#endif
