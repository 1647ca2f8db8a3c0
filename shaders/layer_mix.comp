// The picture and what the network made of it -> what lies between them, or beyond.
//
// SPDX-License-Identifier: Apache-2.0
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_samplerless_texture_functions : require
#include "layer_shared.h"

layout(local_size_x = TD_LAYER_GROUP, local_size_y = TD_LAYER_GROUP) in;

layout(set = 0, binding = 0) uniform texture2D picture;
layout(set = 0, binding = 1, std430) buffer result_block { float result[]; }; // three a pixel

layout(push_constant) uniform push_block { td_layer_mix push; };

void main()
{
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    if (any(greaterThanEqual(at, ivec2(push.width, push.height))))
        return;
    vec3 before = texelFetch(picture, at, 0).rgb;
    uint first = 3u * (uint(at.y) * push.width + uint(at.x));
    vec3 made = vec3(result[first], result[first + 1u], result[first + 2u]);
    vec3 after = mix(before, made, push.amount);
    if (push.exchange != 0u)
        after = after.bgr;
    for (uint i = 0u; i < 3u; i++)
        result[first + i] = after[i];
}
