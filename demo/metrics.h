/* Numbers about frames: PSNR, box filters, seams, percentiles.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Pictures are width * height * 4 floats of radiance; all are compared on x / (1 + x), rgb.
 */
#ifndef TANDEM_DEMO_METRICS_H
#define TANDEM_DEMO_METRICS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct demo_percentiles {
    double p50, p95, p99;
} demo_percentiles;

/* By nearest rank; sorts `values`. All zero for count 0. */
demo_percentiles demo_percentiles_of(double *values, size_t count);

double demo_psnr_db(const float *picture, const float *reference, uint32_t width, uint32_t height);

/* PSNR of the best of six: 3x3, 5x5 and 7x7 box filters of the noisy picture, of its radiance and of x / (1 + x). */
double demo_best_box_db(const float *noisy, const float *reference, uint32_t width, uint32_t height);

/* The mean of 5x5 pixels around each, as far as the picture goes; what is no number is black. */
void demo_box(const float *noisy, uint32_t width, uint32_t height, float *out);

/* Mean step of the error from pixel to pixel: across the borders of tiles that begin at -shift, and everywhere else. */
typedef struct demo_seams {
    double across, inside;
    uint64_t across_count, inside_count;
} demo_seams;
void demo_seams_add(demo_seams *seams, const float *picture, const float *reference, uint32_t width, uint32_t height,
                    uint32_t tile, uint32_t shift_x, uint32_t shift_y);
double demo_seams_ratio(const demo_seams *seams);

/* As it is shown: x / (1 + x), then gamma 2.2; rgba bytes. */
void demo_to_bytes(const float *picture, uint32_t width, uint32_t height, uint8_t *rgba);

#ifdef __cplusplus
}
#endif
#endif
