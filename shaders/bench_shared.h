/* What the tool and its shaders around a job share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_BENCH_SHARED_H
#define TD_BENCH_SHARED_H

#define TD_BENCH_GROUP 256
#define TD_BENCH_KEYS 1024   /* most keys of a checked row */
#define TD_BENCH_GAIN 8.0    /* of random Q, so that some keys matter more than others */

/* What a pipeline does: its specialisation constant. From CHECK_GATHER on it checks. */
#define TD_BENCH_WRITE_GATHER 0
#define TD_BENCH_WRITE_RANDOM 1
#define TD_BENCH_GATHER 2
#define TD_BENCH_COPY 3
#define TD_BENCH_CHECK_GATHER 4
#define TD_BENCH_CHECK_COPY 5
#define TD_BENCH_CHECK_FINITE 6
#define TD_BENCH_CHECK_ROWS 7
#define TD_BENCH_MODES 8

#ifdef GL_core_profile
#define td_bench_uint uint
#else
#include <stdint.h>
#define td_bench_uint uint32_t
#endif

/* Positions and sizes in uvec4, that is eight elements. */
struct td_bench_push {
    td_bench_uint frame, in_vectors, out_vectors, k_at, v_at;
    td_bench_uint batch, q_len, kv_len;
    float scale, tolerance;
};

#endif
