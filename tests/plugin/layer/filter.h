/* What the layer's filter is said to make of a picture, computed from its definition.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_LAYER_FILTER_H
#define TD_TESTS_LAYER_FILTER_H

/* Red, green, blue and alpha of each pixel, row by row; 1 is white. What is no number counts as black. */
typedef struct filter_picture {
    int width, height;
    const float *colors;
    const float *codes; /* the same as pixels are compared */
} filter_picture;

float filter_color(const filter_picture *p, int x, int y, int channel);
/* amount: 1 is the filter, below 0 its opposite. It is not clamped. */
float filter_expected(const filter_picture *p, float sigma, float amount, int x, int y, int channel);

#endif
