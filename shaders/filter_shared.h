/* What the filter's shaders and demo/frame.c agree on.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A pixel's token is a place in feature space. With K = [f, -|f|^2 / 2] and Q = [f, 1],
 *     q . k = (|f_q|^2 - |f_q - f_k|^2) / 2,
 * and softmax does not notice the first term: attention is a Gaussian of the distance between features. Features have
 * a length of about 1, so that INT8 codes keep distances apart, and tokens are those times TD_FILTER_GAIN, which makes
 * the Gaussian narrow at the softmax scale that is everyone's default, 1 / sqrt(head_dim).
 *     image 0   normal, cos x      image 2   albedo, cos y
 *     image 1   position, sin x    image 3   sin y, shines, -|f|^2 / 2 (K) or 1 (Q), 0
 * The pixel's place is kept as an angle: that has the same length everywhere; plain coordinates would be outliers.
 */
#ifndef TD_FILTER_SHARED_H
#define TD_FILTER_SHARED_H

#define TD_FILTER_TILE 16
#define TD_FILTER_HALO 6
#define TD_FILTER_HEAD_DIM 32
#define TD_FILTER_CHANNELS 16
#define TD_FILTER_GAIN 18.4f      /* sqrt(60 * sqrt(head_dim)): the Gaussian is exp(-60 / 2 * squared distance) */
#define TD_FILTER_SCALE 0.1767767f /* softmax scale: 1 / sqrt(head_dim) */

#define TD_FILTER_NORMAL 0.6f     /* weights of the features */
#define TD_FILTER_POSITION 0.45f  /* per metre from the middle of the room */
#define TD_FILTER_ALBEDO 0.4f
#define TD_FILTER_PLACE 0.42f
#define TD_FILTER_SHINES 0.5f
#define TD_FILTER_PERIOD 64.0f    /* pixels to a full turn of the angle; more than twice a tile with its halo */

#define TD_ALBEDO_FLOOR 0.02f     /* radiance is divided by no less */
#define TD_RADIANCE_LIMIT 256.0f  /* of the quotient: tokens are half floats */

#endif
