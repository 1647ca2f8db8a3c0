// Half floats in integers: the same bits on every device.
//
// SPDX-License-Identifier: Apache-2.0

// To half precision, nearest even. In integers, because packHalf2x16 may round either way.
uvec4 half_bits(vec4 value)
{
    uvec4 bits = floatBitsToUint(value);
    uvec4 magnitude = bits & 0x7fffffffu;
    // Normal halves: rebias the exponent by 112. Others are multiples of 2^-24, the last place of 0.5.
    uvec4 normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    precise vec4 above = uintBitsToFloat(magnitude) + 0.5;
    uvec4 small = floatBitsToUint(above) - 0x3f000000u;
    uvec4 rounded = mix(normal, small, lessThan(magnitude, uvec4(0x38800000u)));

    rounded = mix(rounded, uvec4(0x7c00u), greaterThanEqual(magnitude, uvec4(0x477ff000u))); // 65520 and more
    rounded = mix(rounded, uvec4(0x7e00u), greaterThan(magnitude, uvec4(0x7f800000u)));      // NaN
    return rounded | ((bits >> 16) & 0x8000u);
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
