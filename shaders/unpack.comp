// Token view -> rgba16f image.
//
// SPDX-License-Identifier: Apache-2.0
#version 450
#extension GL_GOOGLE_include_directive : require

#define IMAGE_FORMAT rgba16f
#define IMAGE_IS_HALF true

#include "pack_shared.h"
#include "pack_common.glsl"
#include "unpack_common.glsl"
