/* Linear layers for tests: random operands of any shape, and what y may be.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_LINEAR_UTIL_H
#define TD_TESTS_LINEAR_UTIL_H

#include "kernels/linear/linear.h"
#include "tandem/tandem.h"

enum {
    TL_X = TD_LINEAR_X,
    TL_W = TD_LINEAR_W,
    TL_SCALE = TD_LINEAR_SCALE,
    TL_BIAS = TD_LINEAR_BIAS,
    TL_RESIDUAL = TD_LINEAR_RESIDUAL,
    TL_ROTATION = TD_LINEAR_ROTATION,
    TL_POSITION = TD_LINEAR_POSITION,
    TL_STATISTICS = TD_LINEAR_STATISTICS,
    TL_Y = TD_LINEAR_Y,
    TL_Q = TD_LINEAR_Q,
    TL_K = TD_LINEAR_K,
    TL_V = TD_LINEAR_V,
    TL_NEXT_STATISTICS = TD_LINEAR_NEXT_STATISTICS,
    TL_VIEWS = TD_LINEAR_VIEWS
};

typedef struct tl_shape {
    uint32_t rows, ins, outs, activation, gate;
    uint32_t dtype, y_dtype, bias_dtype, residual_dtype; /* of x; the last two: or 0 */
    td_linear_weights weights;
    uint32_t pad;    /* elements, of blocks blocks, between rows of x, w, residual and y */
    uint32_t offset; /* of x, w and y from their begin, in elements */
    uint32_t head_dim, rotated_channels, rotated_heads; /* or 0 */
    uint32_t batch, heads, kv_heads, granularity; /* of codes, or 0; with them outs is left to tl_make() */
    bool has_statistics, wants_next;
} tl_shape;

typedef struct tl_case {
    tl_shape shape;
    tandem_operands op;      /* mems are 0 */
    void *data[TL_VIEWS];    /* each view's own, or NULL */
    uint64_t bytes[TL_VIEWS];
    void *blocks; /* of weights in tiles: the same as they were before */
    bool on_cpu; /* it was computed there, which has a bound of its own */
} tl_case;

/* Random operands, what is written poisoned, rows beyond y and between, too. With weights in tiles ins and outs are rounded up, and w
 * lies dense. Fails the test if there is no memory. */
tl_case tl_make(tl_shape shape, uint32_t seed);
void tl_poison(tl_case *it);
void tl_free(tl_case *it);

/* Fails the test where an element of every `step`th row, with sanitizers of fewer, is not as td_linear_reference() bounds it, or anything
 * but y was written. */
void tl_check(const tl_case *it, uint32_t step);

/* Fails the test unless codes and statistics are what types.h makes of y, bit for bit, and nothing else was written. */
void tl_check_codes(const tl_case *it, uint32_t granularity);

/* A call of the session's that must succeed, else the test fails with its text. */
void tl_must(tandem_status status, tandem_session *session, const char *call);
#define TL_OK(call, session)               \
    do {                                   \
        const tandem_status ok_ = call;    \
        tl_must(ok_, session, #call);      \
    } while (0)

/* Some layers of all kinds through a session, each in memory of the host's, with deadlines and without, against float64. */
void tl_try_session(tandem_session *session);

/* Attention on codes that a layer has written, beside attention on what they were made of; false: there is none on codes here. */
bool tl_try_codes(tandem_session *session);

#endif
