// What pack and unpack have in common: tokens and pixels.
//
// SPDX-License-Identifier: Apache-2.0

#include "half.glsl"

layout(local_size_x = TD_PACK_GROUP) in;

layout(push_constant, std430) uniform push_block
{
    td_pack_push push;
};

// The grid's second dimension only continues the first.
uint token_index()
{
    return (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * TD_PACK_GROUP + gl_LocalInvocationID.x;
}

ivec2 token_pixel(uint batch, uint row)
{
    ivec2 tile = ivec2(batch % push.tiles_x, batch / push.tiles_x);
    ivec2 in_tile = ivec2(row % push.row_width, row / push.row_width);

    return tile * ivec2(push.tile_width, push.tile_height) + in_tile - ivec2(push.shift_x, push.shift_y);
}
