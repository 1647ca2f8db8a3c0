/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_image.h"

const char fake_image_text[12] = "not a cubin";

enum { PACKED = 32 };
#define GZIPPED(at_12)                                                                                              \
    {                                                                                                               \
        0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0xcb, 0xcb, at_12, 0x51, 0x48, 0x54, 0x48,      \
            0x2e, 0x4d, 0xca, 0xcc, 0x63, 0x00, 0x00, 0x3a, 0xbe, 0x30, 0x45, 0x0c, 0x00, 0x00, 0x00                \
    }

void fake_image(td_image *image, bool damaged)
{
    static const unsigned char whole[PACKED] = GZIPPED(0x2f), broken[PACKED] = GZIPPED(0x2e);

    image->name = "text";
    image->data = damaged ? broken : whole;
    image->data_bytes = PACKED;
    image->image_bytes = sizeof fake_image_text;
}
