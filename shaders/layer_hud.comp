// Lines of text, bright on dark, in the upper left corner of an image.
//
// SPDX-License-Identifier: Apache-2.0
#version 450
#extension GL_GOOGLE_include_directive : require
#include "layer_shared.h"

layout(local_size_x = TD_LAYER_GROUP, local_size_y = TD_LAYER_GROUP) in;

layout(set = 0, binding = 0) uniform writeonly image2D image;
layout(set = 0, binding = 1, std430) readonly buffer text_block {
    uint font[TD_LAYER_FONT_WORDS];
    uint text[TD_LAYER_TEXT_WORDS];
};

layout(push_constant) uniform push_block { td_layer_hud push; };

bool is_lit(ivec2 at)
{
    at -= TD_LAYER_MARGIN;
    uint column = uint(at.x) / TD_LAYER_GLYPH_WIDTH, line = uint(at.y) / TD_LAYER_GLYPH_ROWS;
    if (any(lessThan(at, ivec2(0))) || column >= TD_LAYER_COLUMNS || line >= TD_LAYER_LINES)
        return false;
    uint letter = line * TD_LAYER_COLUMNS + column;
    uint glyph = text[letter / 4u] >> 8u * (letter % 4u) & 255u;
    uint row = uint(at.y) % TD_LAYER_GLYPH_ROWS;
    uint bits = font[glyph * TD_LAYER_GLYPH_WORDS + row / 4u] >> 8u * (row % 4u) & 255u;
    return (bits >> 7u - uint(at.x) % TD_LAYER_GLYPH_WIDTH & 1u) != 0u;
}

void main()
{
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    if (any(greaterThanEqual(at, ivec2(push.width, push.height))))
        return;
    imageStore(image, at, vec4(vec3(is_lit(at / int(push.scale)) ? push.white : 0.08 * push.white), 1.0));
}
