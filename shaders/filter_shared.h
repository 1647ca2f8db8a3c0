/* What the filter's shaders and demo/frame.c agree on.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A pixel's token is a place in feature space. With K = [f, -|f|^2 / 2] and Q = [f, 1],
 *     q . k = (|f_q|^2 - |f_q - f_k|^2) / 2,
 * and softmax does not notice the first term: attention is a Gaussian of the distance between features, whose width is
 * the softmax scale. Features have a length of about 1 and the scale is large, so that INT8 codes keep distances apart.
 *     image 0   normal, cos x      image 2   albedo, cos y
 *     image 1   position, sin x    image 3   sin y, shines, -|f|^2 / 2 (K) or 1 (Q), 0
 * The pixel's place is kept as an angle: that has the same length everywhere, where plain coordinates would be outliers.
 */
#ifndef TD_FILTER_SHARED_H
#define TD_FILTER_SHARED_H

#define TD_FILTER_TILE 16
#define TD_FILTER_HALO 4
#define TD_FILTER_HEAD_DIM 32
#define TD_FILTER_CHANNELS 16
#define TD_FILTER_SCALE 60.0f     /* softmax scale */

#define TD_FILTER_NORMAL 0.6f     /* weights of the features */
#define TD_FILTER_POSITION 0.45f  /* per metre from the middle of the room */
#define TD_FILTER_ALBEDO 0.4f
#define TD_FILTER_PLACE 0.5f
#define TD_FILTER_SHINES 0.5f
#define TD_FILTER_PERIOD 64.0f    /* pixels to a full turn of the angle; more than twice a tile with its halo */

#define TD_ALBEDO_FLOOR 0.02f     /* radiance is divided by no less */
#define TD_RADIANCE_LIMIT 256.0f  /* of the quotient: tokens are half floats */

#endif
