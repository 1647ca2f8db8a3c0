/* Pictures as PNG files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <png.h>
#include <string.h>

#include "demo/output.h"

bool demo_png_write(const char *path, const uint8_t *rgba, uint32_t width, uint32_t height)
{
    png_image image;
    memset(&image, 0, sizeof image);
    image.version = PNG_IMAGE_VERSION;
    image.width = width;
    image.height = height;
    image.format = PNG_FORMAT_RGBA;
    if (!png_image_write_to_file(&image, path, 0, rgba, 0, NULL))
        return demo_fail("cannot write %s: %s", path, image.message);
    return true;
}
