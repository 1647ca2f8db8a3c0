// Token view -> image. One invocation reads one row of the view and writes one pixel.
//
// SPDX-License-Identifier: Apache-2.0

layout(set = 0, binding = 0, std430) readonly buffer words_block
{
    uint words[];
};
layout(set = 0, binding = 1, IMAGE_FORMAT) uniform writeonly image2D image;

void main()
{
    uint token = token_index();

    if (token >= push.total)
        return;
    uint batch = token / push.rows;
    uint row = token % push.rows;
    ivec2 pixel = token_pixel(push.first_batch + batch, row);
    if (any(lessThan(pixel, ivec2(0))) || any(greaterThanEqual(pixel, ivec2(push.width, push.height))))
        return;
    uint at = push.first_element + batch * push.stride_batch + row * push.stride_row;
    uvec4 value = uvec4(floatBitsToUint(1.0));

    for (uint c = 0u; c < push.channels; c++) {
        if (push.half_floats != 0u) {
            value[c] = half_to_single((words[(at + c) >> 1] >> (((at + c) & 1u) * 16u)) & 0xffffu);
        } else {
            value[c] = words[at + c];
            // Drivers may truncate in imageStore; what is a half already they cannot change.
            if (IMAGE_IS_HALF)
                value[c] = half_to_single(half_bits(vec4(uintBitsToFloat(value[c]))).x);
        }
    }
    imageStore(image, pixel, uintBitsToFloat(value));
}
