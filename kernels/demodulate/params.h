/* Parameter block of `demodulate`'s kernels, on every device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_DEMODULATE_PARAMS_H
#define TANDEM_KERNELS_DEMODULATE_PARAMS_H

#include "kernels/params.h"

#define TD_DEMODULATE_TILE 16u /* pixels a side, on the GPU a thread each, or fewer for their sums */
#define TD_DEMODULATE_THREADS (TD_DEMODULATE_TILE * TD_DEMODULATE_TILE)
#define TD_DEMODULATE_TILE_THREADS 32u
#define TD_DEMODULATE_CHANNELS 12u /* of a pixel, and with history */
#define TD_DEMODULATE_MOST_CHANNELS 16u
#define TD_DEMODULATE_LEAST 1e-8f /* what has a logarithm that counts */
/* The least albedo that light is divided by, but 1 where there is none. Light is what neighbours are averaged by, so no two of them may
 * have divisors that differ much: less, and the highlight of a dark surface blows up where albedos are noisy. */
#define TD_DEMODULATE_DARK 0.1f

/* Of a tile: logarithms of luminance and of depths added up, and how many there are. */
typedef struct td_demodulate_sums {
    float luminance, luminances, depth, depths;
} td_demodulate_sums;

/* Of all: what light is multiplied by, and the depth that is shown as a half; 1 where there is none. */
typedef struct td_demodulate_scale {
    float exposure, far;
} td_demodulate_scale;

typedef struct td_params_demodulate {
    const uint32_t *cancel;
    const void *color, *albedo, *normal, *depth; /* those not there: NULL */
    const float *history;                        /* or NULL */
    float *light, *modulation;
    void *tokens;
    td_demodulate_sums *tiles;   /* [batch][rows * columns] */
    td_demodulate_scale *scales; /* [batch] */
    td_strides color_at, albedo_at, normal_at, depth_at, history_at, light_at, modulation_at, tokens_at;
    uint32_t height, width, columns, rows; /* columns, rows: tiles */
    uint8_t color_dtype, albedo_dtype, normal_dtype, depth_dtype; /* F16 or F32 */
    uint32_t channels; /* of a pixel, in tokens */
} td_params_demodulate;
/* demodulate_tiles: the sums of a tile. Grid x: (batch * rows + row) * columns + column.
 * demodulate_all: what the sums of all tiles are for. Grid x: batch.
 * demodulate: light, and tokens, which are a quarter as many. Grid as the first: a tile each. */

#endif
