// A picture -> queries, keys and values of attention over neighbours; see layer_shared.h.
//
// SPDX-License-Identifier: Apache-2.0
#version 450
#extension GL_GOOGLE_include_directive : require
#include "layer_shared.h"

layout(local_size_x = TD_LAYER_GROUP, local_size_y = TD_LAYER_GROUP) in;

layout(set = 0, binding = 0, std430) readonly buffer color_block { float color[]; }; // three a pixel
layout(set = 0, binding = 1, std430) writeonly buffer q_block { uvec4 q[]; };        // halves, two of these a pixel
layout(set = 0, binding = 2, std430) writeonly buffer k_block { uvec4 k[]; };
layout(set = 0, binding = 3, std430) writeonly buffer v_block { vec4 v[]; };

layout(push_constant) uniform push_block { td_layer_tokens push; };

vec3 color_at(ivec2 at)
{
    at = clamp(at, ivec2(0), ivec2(push.width, push.height) - 1);
    uint first = 3u * (uint(at.y) * push.width + uint(at.x));
    return vec3(color[first], color[first + 1u], color[first + 2u]);
}

float luminance(vec3 c)
{
    return dot(c, vec3(0.25, 0.5, 0.25)) - 0.5;
}

void main()
{
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    if (any(greaterThanEqual(at, ivec2(push.width, push.height))))
        return;
    vec3 c = color_at(at);
    float f[12];
    for (int i = 0; i < 9; i++)
        f[i] = push.gain * luminance(color_at(at + ivec2(i % 3, i / 3) - 1));
    f[9] = push.gain * TD_LAYER_CHROMA * (c.r - c.g);
    f[10] = push.gain * TD_LAYER_CHROMA * (c.b - c.g);
    f[11] = 0.0;

    uint words[6];
    float squared = 0.0;
    for (int i = 0; i < 6; i++) {
        words[i] = packHalf2x16(vec2(f[2 * i], f[2 * i + 1]));
        vec2 rounded = unpackHalf2x16(words[i]);
        squared += dot(rounded, rounded);
    }
    // The twelfth is the first part, the thirteenth what is left of it.
    float first = unpackHalf2x16(packHalf2x16(vec2(-0.5 * squared, 0.0))).x;
    float rest = -0.5 * squared - first;
    uint eleventh = words[5] & 0xffffu;
    uint pixel = uint(at.y) * push.width + uint(at.x);
    q[2u * pixel] = uvec4(words[0], words[1], words[2], words[3]);
    q[2u * pixel + 1u] = uvec4(words[4], eleventh | packHalf2x16(vec2(0.0, 1.0)), packHalf2x16(vec2(1.0, 0.0)), 0u);
    k[2u * pixel] = uvec4(words[0], words[1], words[2], words[3]);
    k[2u * pixel + 1u] = uvec4(words[4], eleventh | packHalf2x16(vec2(0.0, first)), packHalf2x16(vec2(rest, 0.0)), 0u);
    v[pixel] = vec4(c, 1.0);
}
