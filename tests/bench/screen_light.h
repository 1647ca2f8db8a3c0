/* Indirect light as games approximate it, which gi is compared with.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_BENCH_SCREEN_LIGHT_H
#define TD_BENCH_SCREEN_LIGHT_H

#include "engine_plugin/tool/picture.h"

/* A frame as `tandem help gi` has it. */
typedef struct bench_lit {
    const tool_picture *direct, *albedo, *normal, *depth, *ray;
} bench_lit;

/* Indirect light is base + ambient * weight, for an ambient light of three numbers that somebody
 * has to choose. */
typedef struct bench_light {
    tool_picture base, weight;
} bench_light;
void bench_light_free(bench_light *light);

typedef enum bench_screen {
    BENCH_NO_LIGHT,  /* 0 */
    BENCH_AMBIENT,   /* albedo * ambient */
    BENCH_OCCLUSION, /* the same in what is open of 64 points about a pixel, by a cosine, within a
                        quarter of the mean depth: SSAO */
    BENCH_BOUNCE /* along 64 rays of a cosine, in 24 steps up to twice the mean depth, the direct
                    light of what is hit within a tenth of it behind what is seen, and ambient where
                    nothing is, or what has no albedo */
} bench_screen;
/* False when memory is short. */
bool bench_screen_light(const bench_lit *lit, bench_screen kind, bench_light *out);

/* The mean of direct light on surfaces: of radiance divided by albedo, where that is 0.02 and more.
 */
void bench_mean_light(const bench_lit *lit, float mean[3]);

/* direct + base + ambient * weight. */
bool bench_light_sum(const bench_lit *lit, const bench_light *light, const float ambient[3],
                     tool_picture *out);

/* The ambient light with which the sum, as x / (1 + x), is nearest to what it should be. */
void bench_best_ambient(const bench_lit *lit, const bench_light *light,
                        const tool_picture *reference, float ambient[3]);

#endif
