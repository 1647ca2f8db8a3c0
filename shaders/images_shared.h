/* Push constants of pack_images and unpack_images, for C and GLSL alike.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_IMAGES_SHARED_H
#define TANDEM_IMAGES_SHARED_H

#ifdef GL_core_profile
#define TD_IMAGE_UINT uint
#define TD_IMAGE_FLOAT float
#else
#include <stdint.h>
#define TD_IMAGE_UINT uint32_t
#define TD_IMAGE_FLOAT float
#endif

#define TD_IMAGES 8        /* in a dispatch, which is the third dimension of its grid */
/* Texels of a work group: a warp writes 16 together, and reads two lines, as textures keep them together. */
#define TD_IMAGES_GROUP_WIDTH 16
#define TD_IMAGES_GROUP_HEIGHT 4

/* As tandem_image_encoding and tandem_image_transfer. */
#define TD_IMAGE_NORMAL 1
#define TD_IMAGE_OCTAHEDRAL 2
#define TD_IMAGE_SRGB 1
#define TD_IMAGE_PQ 2

/* How a texel holds its numbers. */
#define TD_IMAGE_F32 0
#define TD_IMAGE_F16 1
#define TD_IMAGE_F11 2     /* B10G11R11 */
#define TD_IMAGE_UNORM8 3
#define TD_IMAGE_UNORM10 4 /* 10 bits, and 2 of alpha */
#define TD_IMAGE_SRGB8 5   /* as UNORM8, but the device decodes all but alpha */

/* Four words an image, as 128 bytes of push constants are all that every device has. */
struct td_image_push {
    TD_IMAGE_UINT stride_line; /* of the tensor, in elements */
    TD_IMAGE_FLOAT exposure;
    TD_IMAGE_UINT size;        /* width - 1, and height - 1 from bit 16 on */
    TD_IMAGE_UINT bits;        /* the fields below, from the lowest bit on */
};
#define TD_IMAGE_FIRST_BITS 7 /* first element of the tensor in what is bound */
#define TD_IMAGE_HALF_BITS 1  /* 1: the tensor is f16, else f32 */
#define TD_IMAGE_CHANNELS_BITS 2 /* less one */
#define TD_IMAGE_NUMBERS_BITS 3  /* TD_IMAGE_F32 to _SRGB8 */
#define TD_IMAGE_ENCODING_BITS 2 /* tandem_image_encoding */
#define TD_IMAGE_TRANSFER_BITS 2 /* tandem_image_transfer */
#define TD_IMAGE_STRIDE_BITS 15  /* from texel to texel, in elements */

#define TD_IMAGE_HALF_AT TD_IMAGE_FIRST_BITS
#define TD_IMAGE_CHANNELS_AT (TD_IMAGE_HALF_AT + TD_IMAGE_HALF_BITS)
#define TD_IMAGE_NUMBERS_AT (TD_IMAGE_CHANNELS_AT + TD_IMAGE_CHANNELS_BITS)
#define TD_IMAGE_ENCODING_AT (TD_IMAGE_NUMBERS_AT + TD_IMAGE_NUMBERS_BITS)
#define TD_IMAGE_TRANSFER_AT (TD_IMAGE_ENCODING_AT + TD_IMAGE_ENCODING_BITS)
#define TD_IMAGE_STRIDE_AT (TD_IMAGE_TRANSFER_AT + TD_IMAGE_TRANSFER_BITS)

#endif
