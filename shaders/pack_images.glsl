// Images -> tensors [height, width, channels]. One invocation reads one texel and writes its channels.
//
// SPDX-License-Identifier: Apache-2.0

vec4 texel_at(ivec2 at)
{
    vec4 texel;

#define READ(i) texel = READ_TEXEL(images[i], at)
    EACH_IMAGE(READ)
    return texel;
}

void put_words(uint at, uint count, uvec4 words_of_texel)
{
#define PUT_WORDS(i)                                                                                                   \
    if (count == 4u && (at & 3u) == 0u) {                                                                              \
        tensors_by_four[i].words[at >> 2] = words_of_texel;                                                            \
    } else if (count == 2u && (at & 1u) == 0u) {                                                                       \
        tensors_by_two[i].words[at >> 1] = words_of_texel.xy;                                                          \
    } else {                                                                                                           \
        if (count > 0u) tensors[i].words[at] = words_of_texel.x;                                                       \
        if (count > 1u) tensors[i].words[at + 1u] = words_of_texel.y;                                                  \
        if (count > 2u) tensors[i].words[at + 2u] = words_of_texel.z;                                                  \
        if (count > 3u) tensors[i].words[at + 3u] = words_of_texel.w;                                                  \
    }
    EACH_IMAGE(PUT_WORDS)
}

// The other half of its word may be another invocation's, or nobody's: it is left as it is.
void put_half(uint at, uint bits)
{
    uint shift = (at & 1u) * 16u;

#define PUT_HALF(i)                                                                                                    \
    atomicAnd(tensors[i].words[at >> 1], 0xffff0000u >> shift);                                                        \
    atomicOr(tensors[i].words[at >> 1], bits << shift)
    EACH_IMAGE(PUT_HALF)
}

void put_halves(uint at, uint count, uvec4 halves)
{
    if ((at & 1u) != 0u) {
        put_half(at, halves.x);
        halves = uvec4(halves.yzw, 0u);
        at++;
        count--;
    }
    put_words(at >> 1, count >> 1, uvec4(halves.xz | halves.yw << 16, 0u, 0u));
    if ((count & 1u) != 0u)
        put_half(at + count - 1u, count == 1u ? halves.x : halves.z);
}

// code / (2^bits - 1), rounded to nearest: its binary digits are the code's, over and over. bits: 8 or 10.
float unorm(uint code, uint bits)
{
    if (code == 0u)
        return 0.0;
    uint zeros = bits - 1u - uint(findMSB(code));
    uint digits = code << (zeros + 32u - bits); // as many as a word holds, from the first 1 on
    digits |= digits >> bits;
    digits |= digits >> (2u * bits);
    uint mantissa = (digits >> 8) + (digits >> 7 & 1u);
    return uintBitsToFloat(((126u - zeros) << 23) + mantissa - 0x800000u);
}

// What the texel says it is, whichever way the device divided. What it decoded as sRGB is encoded again, which finds the code.
vec4 exactly(vec4 texel, uint numbers)
{
    if (numbers == TD_IMAGE_SRGB8)
        texel.rgb = from_linear(texel.rgb, TD_IMAGE_SRGB);
    if (numbers == TD_IMAGE_UNORM8 || numbers == TD_IMAGE_SRGB8) {
        uvec4 code = uvec4(roundEven(texel * 255.0));
        return vec4(unorm(code.r, 8u), unorm(code.g, 8u), unorm(code.b, 8u), unorm(code.a, 8u));
    }
    if (numbers == TD_IMAGE_UNORM10) {
        uvec4 code = uvec4(roundEven(texel * vec4(1023.0, 1023.0, 1023.0, 3.0)));
        return vec4(unorm(code.r, 10u), unorm(code.g, 10u), unorm(code.b, 10u), unorm(code.a * 85u, 8u));
    }
    return texel;
}

vec4 decoded(vec4 value, image_fields f)
{
    if (f.encoding != 0u) {
        if (is_normalised(f))
            value.xyz = value.xyz * 2.0 - 1.0;
        if (f.encoding == TD_IMAGE_OCTAHEDRAL)
            value.xyz = octahedral_to_normal(value.xy);
        return value;
    }
    value.rgb = exposed(to_linear(value.rgb, f.transfer), f.exposure);
    return value;
}

void main()
{
    image_fields f = fields_of(push.images[gl_WorkGroupID.z]);
    uvec2 at = gl_GlobalInvocationID.xy;

    if (at.x >= f.width || at.y >= f.height)
        return;
    vec4 value = decoded(exactly(texel_at(ivec2(at)), f.numbers), f);
    uint element = f.first + at.y * f.stride_line + at.x * f.stride_texel;

    if (f.is_half)
        put_halves(element, f.channels, half_bits(value));
    else
        put_words(element, f.channels, floatBitsToUint(value));
}
