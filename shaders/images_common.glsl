// What pack_images and unpack_images have in common: an image's fields, and what its numbers mean.
//
// SPDX-License-Identifier: Apache-2.0

#include "half.glsl"

layout(local_size_x = TD_IMAGES_GROUP_WIDTH, local_size_y = TD_IMAGES_GROUP_HEIGHT) in;

layout(push_constant, std430) uniform push_block
{
    td_image_push images[TD_IMAGES];
} push;

// The tensors, by words, and the same words by two and four.
layout(set = 0, binding = 0, std430) buffer words_block
{
    uint words[];
} tensors[TD_IMAGES];
layout(set = 0, binding = 0, std430) buffer pairs_block
{
    uvec2 words[];
} tensors_by_two[TD_IMAGES];
layout(set = 0, binding = 0, std430) buffer quads_block
{
    uvec4 words[];
} tensors_by_four[TD_IMAGES];

// Arrays of descriptors are indexed by constants, as not every device can do more.
#define EACH_IMAGE(STEP)                                                                                               \
    switch (gl_WorkGroupID.z) {                                                                                        \
    case 0u: STEP(0); break;                                                                                           \
    case 1u: STEP(1); break;                                                                                           \
    case 2u: STEP(2); break;                                                                                           \
    case 3u: STEP(3); break;                                                                                           \
    case 4u: STEP(4); break;                                                                                           \
    case 5u: STEP(5); break;                                                                                           \
    case 6u: STEP(6); break;                                                                                           \
    default: STEP(7); break;                                                                                           \
    }

struct image_fields {
    uint width, height, first, channels, numbers, encoding, transfer, stride_line, stride_texel;
    float exposure;
    bool is_half;
};

image_fields fields_of(td_image_push image)
{
    image_fields f;

    f.width = (image.size & 0xffffu) + 1u;
    f.height = (image.size >> 16) + 1u;
    f.stride_line = image.stride_line;
    f.exposure = image.exposure;
    f.first = bitfieldExtract(image.bits, 0, TD_IMAGE_FIRST_BITS);
    f.is_half = bitfieldExtract(image.bits, TD_IMAGE_HALF_AT, TD_IMAGE_HALF_BITS) != 0u;
    f.channels = bitfieldExtract(image.bits, TD_IMAGE_CHANNELS_AT, TD_IMAGE_CHANNELS_BITS) + 1u;
    f.numbers = bitfieldExtract(image.bits, TD_IMAGE_NUMBERS_AT, TD_IMAGE_NUMBERS_BITS);
    f.encoding = bitfieldExtract(image.bits, TD_IMAGE_ENCODING_AT, TD_IMAGE_ENCODING_BITS);
    f.transfer = bitfieldExtract(image.bits, TD_IMAGE_TRANSFER_AT, TD_IMAGE_TRANSFER_BITS);
    f.stride_texel = bitfieldExtract(image.bits, TD_IMAGE_STRIDE_AT, TD_IMAGE_STRIDE_BITS);
    return f;
}

bool is_normalised(image_fields f)
{
    return f.numbers == TD_IMAGE_UNORM8 || f.numbers == TD_IMAGE_UNORM10;
}

// IEC 61966-2-1. What is below 0 goes on along the line.
float srgb_to_linear(float x)
{
    return x <= 0.04045 ? x / 12.92 : pow((x + 0.055) / 1.055, 2.4);
}

float linear_to_srgb(float x)
{
    return x <= 0.0031308 ? x * 12.92 : 1.055 * pow(x, 1.0 / 2.4) - 0.055;
}

// SMPTE ST 2084; 1 is 10000 cd/m2.
const float PQ_M1 = 0.1593017578125, PQ_M2 = 78.84375, PQ_C1 = 0.8359375, PQ_C2 = 18.8515625, PQ_C3 = 18.6875;

float pq_to_linear(float x)
{
    float p = pow(max(x, 0.0), 1.0 / PQ_M2);

    return pow(max(p - PQ_C1, 0.0) / (PQ_C2 - PQ_C3 * p), 1.0 / PQ_M1);
}

float linear_to_pq(float x)
{
    float p = pow(max(x, 0.0), PQ_M1);

    return pow((PQ_C1 + PQ_C2 * p) / (1.0 + PQ_C3 * p), PQ_M2);
}

vec3 to_linear(vec3 x, uint transfer)
{
    if (transfer == TD_IMAGE_SRGB)
        return vec3(srgb_to_linear(x.r), srgb_to_linear(x.g), srgb_to_linear(x.b));
    if (transfer == TD_IMAGE_PQ)
        return vec3(pq_to_linear(x.r), pq_to_linear(x.g), pq_to_linear(x.b));
    return x;
}

vec3 from_linear(vec3 x, uint transfer)
{
    if (transfer == TD_IMAGE_SRGB)
        return vec3(linear_to_srgb(x.r), linear_to_srgb(x.g), linear_to_srgb(x.b));
    if (transfer == TD_IMAGE_PQ)
        return vec3(linear_to_pq(x.r), linear_to_pq(x.g), linear_to_pq(x.b));
    return x;
}

// An exposure of 1 changes no bit, not even of what a multiplication may flush to 0.
vec3 exposed(vec3 x, float exposure)
{
    return exposure == 1.0 ? x : x * exposure;
}

vec2 signs(vec2 x)
{
    return mix(vec2(1.0), vec2(-1.0), lessThan(x, vec2(0.0)));
}

// The unit sphere on the octahedron |x| + |y| + |z| = 1, its lower half folded outwards.
vec3 octahedral_to_normal(vec2 p)
{
    vec3 n = vec3(p, 1.0 - abs(p.x) - abs(p.y));

    n.xy -= signs(n.xy) * max(-n.z, 0.0);
    return n * inversesqrt(dot(n, n));
}

vec2 normal_to_octahedral(vec3 n)
{
    float sum = abs(n.x) + abs(n.y) + abs(n.z);
    vec2 p = n.xy / sum;

    if (!(sum > 0.0 && sum < 3.0e38)) // nowhere: as +z
        return vec2(0.0);
    return n.z < 0.0 ? (1.0 - abs(p.yx)) * signs(p) : p;
}
