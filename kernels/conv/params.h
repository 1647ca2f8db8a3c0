/* Parameter blocks of `conv`'s kernels, on every device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_CONV_PARAMS_H
#define TANDEM_KERNELS_CONV_PARAMS_H

#include "kernels/params.h"

/* A block has so many pixels of what is computed, before they are shuffled, and so many outputs. On the GPU a warp has two rows of
 * pixels; channels are TD_CONV_CHUNK at a time. */
#define TD_CONV_WIDTH 16u
#define TD_CONV_HEIGHT 8u
#define TD_CONV_OUTS 64u /* at most: `tile` says how many */
#define TD_CONV_CHUNK 16u
/* Of a chunk: the pixels that a block needs, and where they are, and weights of `tile` outputs. */
#define TD_CONV_PIXELS(size, stride) (((TD_CONV_WIDTH - 1) * (stride) + (size)) * ((TD_CONV_HEIGHT - 1) * (stride) + (size)))
#define TD_CONV_SHARED(size, stride, tile, has_coarse) \
    (TD_CONV_PIXELS(size, stride) * ((has_coarse) ? 40u : 36u) + (size) * (size) * (tile) * 32u)

/* wgmma's: TD_CONV_WIDTH pixels of 8 or 16 rows and `outs` outputs a block. Pixels are in rings of two stages, or where each stage has its
 * own in as many as weights are. */
#define TD_CONV_WGMMA_THREADS 256u
#define TD_CONV_WGMMA_BLOCKS 2u /* of a multiprocessor at a time */
#define TD_CONV_WGMMA_RING(stride) ((stride) == 1 ? 4u : 3u)
#define TD_CONV_WGMMA_PLANE(size, stride, tiles) \
    ((stride) == 1 ? (8u * (tiles) + (size) - 1u) * (TD_CONV_WIDTH + (size) - 1u) : 8u * (tiles) * 2u * TD_CONV_WIDTH + 16u * (tiles))
#define TD_CONV_WGMMA_SHARED(size, stride, outs, tiles)                                                                        \
    (32u * (((size) == 3 && (stride) == 1 ? 2u : TD_CONV_WGMMA_RING(stride)) * TD_CONV_WGMMA_PLANE(size, stride, tiles) + \
            TD_CONV_WGMMA_RING(stride) * (size) * (outs)))

typedef struct td_params_conv {
    const uint32_t *cancel;
    const void *x, *coarse, *w;
    const float *bias;   /* or NULL */
    const float *packed; /* on the CPU: w as float32, [size * size * channels][outs_pad], or NULL; conv_pack writes it */
    void *y;
    td_strides x_at, coarse_at, y_at;
    int64_t w_stride; /* of an output, in elements */
    uint32_t height, width; /* of x */
    uint32_t out_height, out_width, columns, rows; /* before they are shuffled, in pixels and in blocks */
    uint32_t channels, coarse_channels, outs;
    uint32_t outs_pad; /* a multiple of 16 */
    uint32_t tile, tiles; /* outputs of a block: a multiple of 8; how many such there are */
    uint32_t high;     /* rows of pixels of a block: a multiple of TD_CONV_HEIGHT */
    uint32_t parts, blocks; /* what a block computes at a time, how many there are; blocks, each of which has every so many'th part */
    /* wgmma's: channels of x and coarse, outputs of a pixel of y; strides in octets of elements, in 32 bits. */
    uint32_t total, each;
    int32_t x_row, x_pixel, coarse_row, coarse_pixel, y_row, y_pixel, w_row;
    uint8_t size, stride, shuffle, relu;
    uint32_t y_dtype; /* F16 or F32 */
} td_params_conv;
/* Parts: ((batch * rows + row) * columns + column) * tiles of outputs + tile. Grid x: a part each, wgmma's `blocks`. conv_pack: an output each. */

#endif
