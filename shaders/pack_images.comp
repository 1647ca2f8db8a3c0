// Sampled images -> tensors.
//
// SPDX-License-Identifier: Apache-2.0
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_samplerless_texture_functions : require

#include "images_shared.h"
#include "images_common.glsl"

layout(set = 0, binding = 1) uniform texture2D images[TD_IMAGES];
#define READ_TEXEL(image, at) texelFetch(image, at, 0)

#include "pack_images.glsl"
