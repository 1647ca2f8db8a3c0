/* What the tests of images share: texels and numbers as the specifications have them, and calls whose results are checked.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_VK_IMAGES_RIG_H
#define TANDEM_TESTS_VK_IMAGES_RIG_H

#include "tests/interop/vk/rig.h"

/* How a component is stored. */
typedef enum numbers { UNORM8, UNORM10, SRGB8, FLOAT16, FLOAT11, FLOAT32, DEPTH24 } numbers;

typedef struct texel_format {
    VkFormat format;
    const char *name;
    numbers numbers;
    uint32_t channels;
    bool swapped; /* blue comes first */
} texel_format;

enum { TEXEL_FORMATS = 16, BGRA8 = 1, RGB10A2 = 4, R16F = 6, RG16F = 7, RGBA16F = 8, R11G11B10F = 9, R32F = 10, RGBA32F = 11,
       D32F = 12 };
extern const texel_format texel_formats[TEXEL_FORMATS];

bool is_normalised(const texel_format *format);
bool is_of_depth(const texel_format *format);
/* Whether this device can sample it, or store to it. */
bool device_takes(const texel_format *format, VkFormatFeatureFlags feature);

/* What a result may be, before it is rounded to what it is stored as: one number where lo is hi. */
typedef struct span {
    double lo, hi;
} span;

/* An image and a tensor. */
typedef struct image_case {
    const texel_format *format;
    uint32_t width, height;             /* of what is packed or unpacked */
    uint32_t more_width, more_height;   /* the image is larger by */
    uint32_t dtype, channels, encoding, transfer;
    float exposure;
    uint32_t first, pad_texel, pad_line; /* in elements */
    VkImageLayout layout_after;
    bool storage; /* packed from a storage image */
    /* Texels, or elements of the tensor, number n; of each, component c. Noise if NULL. */
    uint32_t (*bits)(const struct image_case *c, uint32_t n, uint32_t component);
} image_case;

enum { MAX_CASES = 8, PLAIN = 0, NORMAL = 1, OCTAHEDRAL = 2, LINEAR = 0, SRGB = 1, PQ = 2 };

uint32_t noise_bits(void);
/* Noise for a component: as likely any bits as a number such as images have. */
uint32_t noise_of(const texel_format *format, uint32_t component);

/* All of them by one call, and every byte of every tensor, or every texel, is looked at. */
void check_pack(const image_case *cases, uint32_t count);
void check_unpack(const image_case *cases, uint32_t count);

#endif
