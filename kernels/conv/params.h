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
    uint32_t tile;     /* outputs of a block: a multiple of 8 */
    uint8_t size, stride, shuffle, relu;
    uint32_t y_dtype; /* F16 or F32 */
} td_params_conv;
/* Grid x: ((batch * rows + row) * columns + column) * tiles of outputs + tile. conv_pack: an output each. */

#endif
