/* Sizes as text: "tokens * 3 * (width + 1)".
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An expression has integers, named numbers, + - * and / (which rounds down), ceil_div(a, b) (which
 * rounds up) and parentheses. Each step is of 64 bits with a sign, and checked: nothing wraps
 * around.
 */
#ifndef TANDEM_KERNELS_EXPRESSION_H
#define TANDEM_KERNELS_EXPRESSION_H

#include "interop/base.h"

enum {
    TD_EXPRESSION_BYTES = 256,
    TD_EXPRESSION_DEPTH = 16
}; /* at most, with its end; parentheses within each other */

/* A number that expressions may name. */
typedef struct td_number {
    const char *name;
    uint32_t most; /* it is 1 to that */
} td_number;

/* Whether a name is one that numbers may have: letters, digits and _, no digit first, and not
 * ceil_div. */
bool td_number_name(const char *name);

/* What a text is with such numbers. ARG, saying what is wrong with it: no expression, a number that
 * nobody has named, a step beyond 64 bits, a division by 0 or of what is below 0. */
tandem_status td_expression_value(const char *text, const td_number *numbers,
                                  const uint32_t *values, uint32_t count, int64_t *value, char *why,
                                  size_t why_bytes);

/* The same but for its value: whether there may be one. *constant: it names no number. */
tandem_status td_expression_check(const char *text, const td_number *numbers, uint32_t count,
                                  bool *constant, char *why, size_t why_bytes);

#endif
