/* Push constants of pack and unpack, for C and GLSL alike.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_PACK_SHARED_H
#define TANDEM_PACK_SHARED_H

#ifdef GL_core_profile
#define TD_UINT uint
#else
#include <stdint.h>
#define TD_UINT uint32_t
#endif

#define TD_PACK_GROUP 64

struct td_pack_push {
    TD_UINT total;       /* tokens of this dispatch */
    TD_UINT first_batch; /* its first tile */
    TD_UINT rows;        /* tokens of one tile */
    TD_UINT row_width; /* pixels from one line of a tile to the next, halo included */
    TD_UINT tiles_x;
    TD_UINT tile_width;
    TD_UINT tile_height;
    TD_UINT shift_x; /* halo included */
    TD_UINT shift_y;
    TD_UINT width; /* of the images */
    TD_UINT height;
    TD_UINT image_count;
    TD_UINT channels;
    TD_UINT view_channels;
    TD_UINT half_floats;   /* 1: the view is f16, else f32 */
    TD_UINT first_element; /* of the first tile, in the range that is bound */
    TD_UINT whole_quads;   /* pack: every row begins and ends at 16 bytes */
    TD_UINT stride_batch;
    TD_UINT stride_row;
};

#endif
