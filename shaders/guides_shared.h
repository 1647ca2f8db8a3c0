/* What the shader that writes the network's inputs and demo/denoise.c agree on: push constants.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_GUIDES_SHARED_H
#define TD_GUIDES_SHARED_H

#include "scene_shared.h"

struct td_guides_push {
    TD_VEC4(eye); /* the camera as td_scene_push has it; it looks along up x right */
    TD_VEC4(right);
    TD_VEC4(up);
    TD_VEC4(eye_before); /* and that of the frame before */
    TD_VEC4(right_before);
    TD_VEC4(up_before);
    TD_UVEC4(size); /* x: width, y: height, z: 1 if there is a frame before */
};

#endif
