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

// A picture of halves may have what is no number, which would be all that its neighbours see.
float number(float x)
{
    return (floatBitsToUint(x) & 0x7f800000u) == 0x7f800000u ? 0.0 : x;
}

vec3 color_at(ivec2 at)
{
    at = clamp(at, ivec2(0), ivec2(push.width, push.height) - 1);
    uint first = 3u * (uint(at.y) * push.width + uint(at.x));
    return vec3(number(color[first]), number(color[first + 1u]), number(color[first + 2u]));
}

vec3 code_at(ivec2 at)
{
    vec3 c = color_at(at), size = abs(c);
    if (push.linear != 0u)
        c = sign(c) * mix(1.055 * pow(size, vec3(1.0 / 2.4)) - 0.055, 12.92 * size, lessThanEqual(size, vec3(0.0031308)));
    return clamp(c, -TD_LAYER_MOST, TD_LAYER_MOST);
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
    vec3 c = code_at(at);
    float f[12];
    for (int i = 0; i < 9; i++)
        f[i] = push.gain * luminance(code_at(at + ivec2(i % 3, i / 3) - 1));
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
    // The twelfth is the first part, the two behind it what is left of it.
    float first = unpackHalf2x16(packHalf2x16(vec2(-0.5 * squared / TD_LAYER_PART, 0.0))).x;
    float rest = -0.5 * squared - TD_LAYER_PART * first;
    float second = unpackHalf2x16(packHalf2x16(vec2(rest, 0.0))).x;
    uint eleventh = words[5] & 0xffffu;
    uint pixel = uint(at.y) * push.width + uint(at.x);
    q[2u * pixel] = uvec4(words[0], words[1], words[2], words[3]);
    q[2u * pixel + 1u] = uvec4(words[4], eleventh | packHalf2x16(vec2(0.0, TD_LAYER_PART)), packHalf2x16(vec2(1.0)), 0u);
    k[2u * pixel] = uvec4(words[0], words[1], words[2], words[3]);
    k[2u * pixel + 1u] = uvec4(words[4], eleventh | packHalf2x16(vec2(0.0, first)),
                                packHalf2x16(vec2(second, rest - second)), 0u);
    v[pixel] = vec4(color_at(at), 1.0);
}
