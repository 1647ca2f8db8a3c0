/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/interop/fake_image.h"

const char fake_image_text[12] = "not a cubin";

enum { PACKED = 25 };
#define PACKED_TEXT(at_11) \
    { \
        0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x68, 0x61, 0x00, 0x00, 0x6e, 0x6f, at_11, 0x20, 0x61, 0x20, 0x63, \
        0x75, 0x62, 0x69, 0x6e, 0x00, 0x6e, 0x65, 0x18, 0x3d \
    }

void fake_image(td_image *image, bool damaged)
{
    static const unsigned char whole[PACKED] = PACKED_TEXT('t'), broken[PACKED] = PACKED_TEXT('u');

    image->name = "text";
    image->data = damaged ? broken : whole;
    image->data_bytes = PACKED;
    image->image_bytes = sizeof fake_image_text;
}
