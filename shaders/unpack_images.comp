// Tensors [height, width, channels] -> storage images. One invocation reads a texel's channels and writes it.
//
// SPDX-License-Identifier: Apache-2.0
//
// Drivers may truncate in imageStore: what is stored is a number of the format already, which they cannot change.
#version 450
#extension GL_GOOGLE_include_directive : require

#include "images_shared.h"
#include "images_common.glsl"

layout(set = 0, binding = 1) uniform writeonly image2D images[TD_IMAGES];

uvec4 words_at(uint at, uint count)
{
    uvec4 words_of_texel = uvec4(0u);

#define GET_WORDS(i)                                                                                                   \
    if (count == 4u && (at & 3u) == 0u) {                                                                              \
        words_of_texel = tensors_by_four[i].words[at >> 2];                                                            \
    } else if (count == 2u && (at & 1u) == 0u) {                                                                       \
        words_of_texel.xy = tensors_by_two[i].words[at >> 1];                                                          \
    } else {                                                                                                           \
        words_of_texel.x = tensors[i].words[at];                                                                       \
        if (count > 1u) words_of_texel.y = tensors[i].words[at + 1u];                                                  \
        if (count > 2u) words_of_texel.z = tensors[i].words[at + 2u];                                                  \
        if (count > 3u) words_of_texel.w = tensors[i].words[at + 3u];                                                  \
    }
    EACH_IMAGE(GET_WORDS)
    return words_of_texel;
}

uvec4 halves_at(uint at, uint count)
{
    uint odd = at & 1u;
    uvec4 words_of_texel = words_at(at >> 1, (odd + count + 1u) >> 1);

    if (odd != 0u)
        words_of_texel = words_of_texel >> 16 | uvec4(words_of_texel.yzw, 0u) << 16;
    return uvec4(half_to_single(words_of_texel.x & 0xffffu), half_to_single(words_of_texel.x >> 16),
                 half_to_single(words_of_texel.y & 0xffffu), half_to_single(words_of_texel.y >> 16));
}

// Components without a channel are 0, alpha 1.
vec4 tensor_at(uint element, image_fields f)
{
    uvec4 value = f.is_half ? halves_at(element, f.channels) : words_at(element, f.channels);

    return mix(vec4(0.0, 0.0, 0.0, 1.0), uintBitsToFloat(value), lessThan(uvec4(0u, 1u, 2u, 3u), uvec4(f.channels)));
}

vec4 encoded(vec4 value, image_fields f)
{
    if (f.encoding != 0u) {
        if (f.encoding == TD_IMAGE_OCTAHEDRAL)
            value = vec4(normal_to_octahedral(value.xyz), 0.0, 1.0);
        if (is_normalised(f))
            value.xyz = value.xyz * 0.5 + 0.5;
        return value;
    }
    value.rgb = from_linear(exposed(value.rgb, f.exposure), f.transfer);
    return value;
}

bool is_nan(uint bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

// To a float without a sign and with so many bits of mantissa, as B10G11R11 has them: nearest even, what is negative 0,
// what is finite no more than the largest.
float unsigned_float(float value, uint mantissa_bits)
{
    uint bits = floatBitsToUint(value), drop = 23u - mantissa_bits;
    uint largest = (142u << 23) | ((1u << mantissa_bits) - 1u) << drop;

    if (is_nan(bits) || bits == 0x7f800000u)
        return value;
    if (bits >= 0x80000000u)
        return 0.0;
    if (bits < 0x38800000u) { // multiples of 2^-(14 + mantissa_bits), the last place of `unit`
        float unit = float(1u << (9u - mantissa_bits));
        precise float above = value + unit;
        precise float rounded = above - unit;
        return rounded;
    }
    bits = (bits + (1u << (drop - 1u)) - 1u + (bits >> drop & 1u)) >> drop << drop;
    return uintBitsToFloat(min(bits, largest));
}

// To k / most, a quarter of a step above it, so that who truncates gets k, too. NaN is 0.
vec4 unorm(vec4 value, vec4 most)
{
    uvec4 bits = floatBitsToUint(value);
    vec4 inside = mix(value, vec4(1.0), greaterThanEqual(bits, uvec4(0x3f800000u)));
    inside = mix(inside, vec4(0.0), greaterThan(bits, uvec4(0x7f800000u))); // negative, or NaN
    precise vec4 scaled = inside * most;

    return (roundEven(scaled) + 0.25) / most;
}

vec4 rounded(vec4 value, uint numbers)
{
    switch (numbers) {
    case TD_IMAGE_F16: {
        uvec4 half_value = half_bits(value);
        return uintBitsToFloat(uvec4(half_to_single(half_value.x), half_to_single(half_value.y),
                                     half_to_single(half_value.z), half_to_single(half_value.w)));
    }
    case TD_IMAGE_F11:
        return vec4(unsigned_float(value.r, 6u), unsigned_float(value.g, 6u), unsigned_float(value.b, 5u), 1.0);
    case TD_IMAGE_UNORM8:
        return unorm(value, vec4(255.0));
    case TD_IMAGE_UNORM10:
        return unorm(value, vec4(1023.0, 1023.0, 1023.0, 3.0));
    default:
        return value;
    }
}

void main()
{
    image_fields f = fields_of(push.images[gl_WorkGroupID.z]);
    uvec2 at = gl_GlobalInvocationID.xy;

    if (at.x >= f.width || at.y >= f.height)
        return;
    vec4 value = tensor_at(f.first + at.y * f.stride_line + at.x * f.stride_texel, f);
    vec4 texel = rounded(encoded(value, f), f.numbers);

#define STORE(i) imageStore(images[i], ivec2(at), texel)
    EACH_IMAGE(STORE)
}
