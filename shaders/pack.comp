// Images -> token view. One invocation writes one row of the view.
//
// SPDX-License-Identifier: Apache-2.0
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_samplerless_texture_functions : require

#include "pack_shared.h"
#include "pack_common.glsl"

layout(set = 0, binding = 0, std430) buffer words_block
{
    uint words[];
};
layout(set = 0, binding = 1) uniform texture2D images[4];

layout(set = 0, binding = 0, std430) writeonly buffer quads_block // the same words, four at a time
{
    uvec4 quads[];
};

// Channels first to first + 3 of the row that begins at element `row`, wherever it begins.
void put(uint row, uint first, vec4 value)
{
    uint count = min(push.view_channels - first, 4u);

    if (push.half_floats == 0u) {
        for (uint i = 0u; i < count; i++)
            words[row + first + i] = floatBitsToUint(value[i]);
        return;
    }
    uvec4 bits = half_bits(value);
    uint word = (row + first) >> 1;
    for (uint i = 0u; i < count; i += 2u, word++) // the upper half of an odd row's last word is not ours
        words[word] = i + 1u < count ? bits[i] | (bits[i + 1u] << 16) : bits[i] | (words[word] & 0xffff0000u);
}

// The same for channels first to first + 7 of a row that lies on whole quads.
void put_quads(uint row, uint first, vec4 low, vec4 high)
{
    if (push.half_floats == 0u) {
        quads[(row + first) >> 2] = floatBitsToUint(low);
        if (push.view_channels > first + 4u)
            quads[((row + first) >> 2) + 1u] = floatBitsToUint(high);
    } else {
        uvec4 l = half_bits(low), h = half_bits(high);
        quads[(row + first) >> 3] = uvec4(l.xz, h.xz) | (uvec4(l.yw, h.yw) << 16);
    }
}

void main()
{
    uint token = token_index();

    if (token >= push.total)
        return;
    uint batch = token / push.rows;
    uint row = token % push.rows;
    ivec2 pixel = clamp(token_pixel(push.first_batch + batch, row), ivec2(0), ivec2(push.width, push.height) - 1);
    uint at = push.first_element + batch * push.stride_batch + row * push.stride_row;
    vec4 value[4] = vec4[4](vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));

    value[0] = texelFetch(images[0], pixel, 0);
    if (push.image_count > 1u)
        value[1] = texelFetch(images[1], pixel, 0);
    if (push.image_count > 2u)
        value[2] = texelFetch(images[2], pixel, 0);
    if (push.image_count > 3u)
        value[3] = texelFetch(images[3], pixel, 0);
    for (uint i = 0u; i < 4u; i++)
        value[i] = mix(vec4(0.0), value[i], lessThan(uvec4(0u, 1u, 2u, 3u) + 4u * i, uvec4(push.channels)));

    if (push.whole_quads == 0u) {
        for (uint i = 0u; i < 4u && 4u * i < push.view_channels; i++)
            put(at, 4u * i, value[i]);
        for (uint first = 16u; first < push.view_channels; first += 4u)
            put(at, first, vec4(0.0));
        return;
    }
    put_quads(at, 0u, value[0], value[1]);
    if (push.view_channels > 8u)
        put_quads(at, 8u, value[2], value[3]);
    uint size = push.half_floats == 0u ? 2u : 3u; // log2 of the elements in a quad
    for (uint quad = (at + 16u) >> size; quad < (at + push.view_channels) >> size; quad++)
        quads[quad] = uvec4(0u);
}
