// Storage images -> tensors, on devices that load without being told the format.
//
// SPDX-License-Identifier: Apache-2.0
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_image_load_formatted : require

#include "images_shared.h"
#include "images_common.glsl"

layout(set = 0, binding = 1) uniform readonly image2D images[TD_IMAGES];
#define READ_TEXEL(image, at) imageLoad(image, at)

#include "pack_images.glsl"
