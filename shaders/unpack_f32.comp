// Token view -> rgba32f image.
//
// SPDX-License-Identifier: Apache-2.0
#version 450
#extension GL_GOOGLE_include_directive : require

#define IMAGE_FORMAT rgba32f
#define IMAGE_IS_HALF false

#include "pack_shared.h"
#include "pack_common.glsl"
#include "unpack_common.glsl"
