/* Pictures as PNG, by libpng: linear here, sRGB in the file. See picture.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifdef TOOL_PNG
#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/picture.h"
#include "interop/base.h"

static float from_srgb(uint8_t code)
{
    const float x = (float)code / 255;
    return x <= 0.04045f ? x / 12.92f : powf((x + 0.055f) / 1.055f, 2.4f);
}

/* Files of 8 bits are made linear here: libpng would do so in 8 bits. */
bool tool_png_read(const char *path, uint32_t channels, tool_picture *out, char *why, size_t why_bytes)
{
    png_image image = {.version = PNG_IMAGE_VERSION};
    void *codes = NULL;
    bool done = png_image_begin_read_from_file(&image, path) != 0;
    const bool wide = image.format & PNG_FORMAT_FLAG_LINEAR; /* 16 bits */

    image.format = (channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB) | (wide ? PNG_FORMAT_FLAG_LINEAR : 0);
    if (done && (image.width > TOOL_PICTURE_MOST || image.height > TOOL_PICTURE_MOST)) {
        td_text(why, why_bytes, "has more than %d pixels a side", TOOL_PICTURE_MOST);
        done = false;
    } else if (done) {
        codes = malloc(PNG_IMAGE_SIZE(image));
        done = codes && tool_picture_new(out, image.width, image.height, channels);
        if (!done)
            td_text(why, why_bytes, "out of memory");
    }
    done = done && png_image_finish_read(&image, &(png_color){0}, codes, 0, NULL) != 0;
    for (size_t i = 0; done && i < (size_t)out->width * out->height * channels; i++)
        out->pixels[i] = wide ? (float)((uint16_t *)codes)[i] / 65535 : from_srgb(((uint8_t *)codes)[i]);
    if (PNG_IMAGE_FAILED(image))
        td_text(why, why_bytes, "%s", image.message);
    png_image_free(&image);
    free(codes);
    return done;
}

bool tool_png_write(const char *path, const tool_picture *picture, char *why, size_t why_bytes)
{
    const size_t count = (size_t)picture->width * picture->height * 3;
    png_image image = {.version = PNG_IMAGE_VERSION, .width = picture->width, .height = picture->height};
    uint16_t *linear = malloc(count * sizeof *linear);

    if (!linear) {
        td_text(why, why_bytes, "out of memory");
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        const float x = picture->pixels[i];
        linear[i] = (uint16_t)(x > 0 ? (x < 1 ? x : 1) * 65535 + 0.5f : 0);
    }
    image.format = PNG_FORMAT_LINEAR_RGB;
    const bool done = png_image_write_to_file(&image, path, 1, linear, 0, NULL) != 0;
    if (!done)
        td_text(why, why_bytes, "%s", image.message);
    free(linear);
    return done;
}
#else
typedef int tool_no_png; /* a file is not empty */
#endif
