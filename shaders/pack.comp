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

// Channels first to first + 3 of the row that begins at element `row`.
void put(uint row, uint first, vec4 value)
{
    uint keep = push.channels > first ? min(push.channels - first, 4u) : 0u;
    uint count = min(push.view_channels - first, 4u);

    for (uint i = keep; i < 4u; i++)
        value[i] = 0.0;
    if (push.half_floats == 0u) {
        for (uint i = 0u; i < count; i++)
            words[row + first + i] = floatBitsToUint(value[i]);
        return;
    }
    uint word = (row + first) >> 1;
    for (uint i = 0u; i < count; i += 2u, word++) {
        uint low = half_bits(value[i]);

        // The upper half of an odd row's last word is not ours.
        words[word] = i + 1u < count ? low | (half_bits(value[i + 1u]) << 16) : low | (words[word] & 0xffff0000u);
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

    put(at, 0u, texelFetch(images[0], pixel, 0));
    if (push.image_count > 1u && push.view_channels > 4u)
        put(at, 4u, texelFetch(images[1], pixel, 0));
    if (push.image_count > 2u && push.view_channels > 8u)
        put(at, 8u, texelFetch(images[2], pixel, 0));
    if (push.image_count > 3u && push.view_channels > 12u)
        put(at, 12u, texelFetch(images[3], pixel, 0));
    for (uint first = 4u * push.image_count; first < push.view_channels; first += 4u)
        put(at, first, vec4(0.0));
}
