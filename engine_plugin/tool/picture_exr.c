/* Pictures as EXR, by OpenEXR's C library: the first part, whole, scanlines or tiles of one level. See picture.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifdef TOOL_EXR
#include <openexr.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/picture.h"
#include "interop/base.h"

static void no_message(exr_const_context_t file, exr_result_t code, const char *text)
{
    (void)file, (void)code, (void)text;
}

/* What is done with a file, step by step, until one goes wrong. */
typedef struct exr {
    exr_context_t file;
    exr_result_t result;
    const char *refused; /* what we say ourselves */
} exr;

static bool goes(exr *e, exr_result_t result)
{
    e->result = result;
    return result == EXR_ERR_SUCCESS;
}

static bool ends(exr *e, bool done, char *why, size_t why_bytes)
{
    const exr_result_t end = exr_finish(&e->file);

    if (done && end == EXR_ERR_SUCCESS)
        return true;
    td_text(why, why_bytes, "%s", e->refused ? e->refused : exr_get_error_code_as_string(done ? end : e->result));
    return false;
}

/* --- Reading --- */

/* Which of a file's channels ours are: "R" or what ends in ".R", and so on. */
static bool find_channels(exr *e, uint32_t channels, const char *names[3])
{
    static const char *const sets[][3] = {{"R", "G", "B"}, {"X", "Y", "Z"}, {"r", "g", "b"}, {"x", "y", "z"}};
    static const char *const singles[] = {"Z", "Y", "V", "R", "X", "z", "y", "r"};
    const size_t tries = channels == 3 ? sizeof sets / sizeof *sets : sizeof singles / sizeof *singles;
    const exr_attr_chlist_t *list;

    if (!goes(e, exr_get_channels(e->file, 0, &list)))
        return false;
    for (size_t t = 0; t < tries; t++) {
        uint32_t found = 0;
        for (uint32_t c = 0; c < channels; c++) {
            const char *wanted = channels == 3 ? sets[t][c] : singles[t];
            for (int i = 0; i < list->num_channels && found == c; i++) {
                const char *name = list->entries[i].name.str, *layer = strrchr(name, '.');
                if (!strcmp(layer ? layer + 1 : name, wanted) && list->entries[i].x_sampling == 1 && list->entries[i].y_sampling == 1) {
                    names[c] = name;
                    found = c + 1;
                }
            }
        }
        if (found == channels)
            return true;
    }
    e->refused = channels == 3 ? "has no channels R, G, B or X, Y, Z" : "has no channel Z, Y, V or R";
    return false;
}

static bool read_chunk(exr *e, const exr_chunk_info_t *chunk, const exr_attr_box2i_t *window, const char *const names[3], tool_picture *out)
{
    exr_decode_pipeline_t pipe = EXR_DECODE_PIPELINE_INITIALIZER;
    const size_t x = (size_t)(chunk->start_x - (chunk->type == EXR_STORAGE_TILED ? 0 : window->min.x));
    const size_t y = (size_t)(chunk->start_y - (chunk->type == EXR_STORAGE_TILED ? 0 : window->min.y));

    if (!goes(e, exr_decoding_initialize(e->file, 0, chunk, &pipe)))
        return false;
    for (int i = 0; i < pipe.channel_count; i++) {
        exr_coding_channel_info_t *channel = &pipe.channels[i];
        channel->decode_to_ptr = NULL;
        for (uint32_t c = 0; c < out->channels; c++)
            if (!strcmp(channel->channel_name, names[c]))
                channel->decode_to_ptr = (uint8_t *)(out->pixels + (y * out->width + x) * out->channels + c);
        channel->user_bytes_per_element = sizeof(float);
        channel->user_data_type = EXR_PIXEL_FLOAT;
        channel->user_pixel_stride = (int32_t)(out->channels * sizeof(float));
        channel->user_line_stride = (int32_t)(out->channels * sizeof(float) * out->width);
    }
    const bool done = goes(e, exr_decoding_choose_default_routines(e->file, 0, &pipe)) && goes(e, exr_decoding_run(e->file, 0, &pipe));
    const exr_result_t why = e->result;
    exr_decoding_destroy(e->file, &pipe);
    e->result = why;
    return done;
}

static bool read_scanlines(exr *e, const exr_attr_box2i_t *window, const char *const names[3], tool_picture *out)
{
    exr_chunk_info_t chunk;
    int32_t lines;
    bool done = goes(e, exr_get_scanlines_per_chunk(e->file, 0, &lines));

    for (int32_t y = window->min.y; y <= window->max.y && done; y += lines)
        done = goes(e, exr_read_scanline_chunk_info(e->file, 0, y, &chunk)) && read_chunk(e, &chunk, window, names, out);
    return done;
}

static bool read_tiles(exr *e, const exr_attr_box2i_t *window, const char *const names[3], tool_picture *out)
{
    exr_chunk_info_t chunk;
    exr_tile_level_mode_t mode;
    exr_tile_round_mode_t round;
    uint32_t width, height;
    bool done = goes(e, exr_get_tile_descriptor(e->file, 0, &width, &height, &mode, &round));

    for (uint32_t y = 0; y * height < out->height && done; y++)
        for (uint32_t x = 0; x * width < out->width && done; x++)
            done = goes(e, exr_read_tile_chunk_info(e->file, 0, (int)x, (int)y, 0, 0, &chunk)) && read_chunk(e, &chunk, window, names, out);
    return done;
}

static bool read_part(exr *e, uint32_t channels, tool_picture *out)
{
    const char *names[3];
    exr_attr_box2i_t window;
    exr_storage_t storage;

    if (!goes(e, exr_get_data_window(e->file, 0, &window)) || !goes(e, exr_get_storage(e->file, 0, &storage)) ||
        !find_channels(e, channels, names))
        return false;
    const int64_t width = (int64_t)window.max.x - window.min.x + 1, height = (int64_t)window.max.y - window.min.y + 1;
    if (width < 1 || height < 1 || width > TOOL_PICTURE_MOST || height > TOOL_PICTURE_MOST)
        e->refused = "has no width and height from 1 to 16384";
    else if (storage != EXR_STORAGE_SCANLINE && storage != EXR_STORAGE_TILED)
        e->refused = "is deep, which is no picture";
    else if (!tool_picture_new(out, (uint32_t)width, (uint32_t)height, channels))
        e->refused = "out of memory";
    if (e->refused)
        return false;
    return storage == EXR_STORAGE_TILED ? read_tiles(e, &window, names, out) : read_scanlines(e, &window, names, out);
}

bool tool_exr_read(const char *path, uint32_t channels, tool_picture *out, char *why, size_t why_bytes)
{
    exr_context_initializer_t init = EXR_DEFAULT_CONTEXT_INITIALIZER;
    exr e = {0};

    init.error_handler_fn = no_message;
    const bool done = goes(&e, exr_start_read(&e.file, path, &init)) && read_part(&e, channels, out);
    return ends(&e, done, why, why_bytes);
}

/* --- Writing --- */

static bool write_chunk(exr *e, const exr_chunk_info_t *chunk, const tool_picture *picture)
{
    exr_encode_pipeline_t pipe = EXR_ENCODE_PIPELINE_INITIALIZER;

    if (!goes(e, exr_encoding_initialize(e->file, 0, chunk, &pipe)))
        return false;
    for (int i = 0; i < pipe.channel_count; i++) {
        exr_coding_channel_info_t *channel = &pipe.channels[i];
        const size_t c = strcspn("RGB", channel->channel_name);
        channel->encode_from_ptr = (const uint8_t *)(picture->pixels + (size_t)chunk->start_y * picture->width * 3 + c);
        channel->user_bytes_per_element = sizeof(float);
        channel->user_data_type = EXR_PIXEL_FLOAT;
        channel->user_pixel_stride = 3 * sizeof(float);
        channel->user_line_stride = (int32_t)(3 * sizeof(float) * picture->width);
    }
    const bool done = goes(e, exr_encoding_choose_default_routines(e->file, 0, &pipe)) && goes(e, exr_encoding_run(e->file, 0, &pipe));
    const exr_result_t why = e->result;
    exr_encoding_destroy(e->file, &pipe);
    e->result = why;
    return done;
}

static bool write_part(exr *e, const tool_picture *picture)
{
    exr_chunk_info_t chunk;
    int32_t lines = 0;
    int part;
    bool done = goes(e, exr_add_part(e->file, NULL, EXR_STORAGE_SCANLINE, &part)) &&
                goes(e, exr_initialize_required_attr_simple(e->file, part, (int32_t)picture->width, (int32_t)picture->height,
                                                            EXR_COMPRESSION_ZIP));

    for (int c = 0; c < 3 && done; c++)
        done = goes(e, exr_add_channel(e->file, part, (const char *const[]){"B", "G", "R"}[c], EXR_PIXEL_FLOAT, EXR_PERCEPTUALLY_LINEAR, 1, 1));
    done = done && goes(e, exr_write_header(e->file)) && goes(e, exr_get_scanlines_per_chunk(e->file, part, &lines));
    for (int32_t y = 0; y < (int32_t)picture->height && done; y += lines)
        done = goes(e, exr_write_scanline_chunk_info(e->file, part, y, &chunk)) && write_chunk(e, &chunk, picture);
    return done;
}

bool tool_exr_write(const char *path, const tool_picture *picture, char *why, size_t why_bytes)
{
    exr_context_initializer_t init = EXR_DEFAULT_CONTEXT_INITIALIZER;
    exr e = {0};

    init.error_handler_fn = no_message;
    const bool done = goes(&e, exr_start_write(&e.file, path, EXR_WRITE_FILE_DIRECTLY, &init)) && write_part(&e, picture);
    return ends(&e, done, why, why_bytes);
}
#else
typedef int tool_no_exr; /* a file is not empty */
#endif
