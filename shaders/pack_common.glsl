// What pack and unpack have in common: tokens, pixels, half floats.
//
// SPDX-License-Identifier: Apache-2.0

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

// To half precision, nearest even. In integers, because packHalf2x16 may round either way.
uint half_bits(float value)
{
    uint bits = floatBitsToUint(value);
    uint sign = (bits >> 16) & 0x8000u;
    uint magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u) // NaN
        return sign | 0x7e00u;
    if (magnitude >= 0x477ff000u) // 65520 and more
        return sign | 0x7c00u;
    if (magnitude >= 0x38800000u) // normal halves: rebias the exponent by 112
        return sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13);
    if (magnitude <= 0x33000000u) // 2^-25 is a tie, and 0 is even
        return sign;
    uint shift = 126u - (magnitude >> 23);
    uint mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    uint whole = mantissa >> shift;
    uint rest = mantissa & ((1u << shift) - 1u);
    uint tie = 1u << (shift - 1u);
    if (rest > tie || (rest == tie && (whole & 1u) != 0u))
        whole++;
    return sign | whole;
}

// Bits of the single that equals a half, so that no driver flushes a small one.
uint half_to_single(uint half_value)
{
    uint sign = (half_value & 0x8000u) << 16;
    uint exponent = (half_value >> 10) & 31u;
    uint mantissa = half_value & 0x3ffu;

    if (exponent == 31u)
        return sign | 0x7f800000u | (mantissa << 13);
    if (exponent != 0u)
        return sign | ((exponent + 112u) << 23) | (mantissa << 13);
    if (mantissa == 0u)
        return sign;
    uint top = uint(findMSB(mantissa));
    return sign | ((top + 103u) << 23) | ((mantissa << (23u - top)) & 0x7fffffu);
}
