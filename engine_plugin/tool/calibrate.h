/* The two ways of `tandem calibrate`: tensors of heads, and a model.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_CALIBRATE_H
#define TD_TOOL_CALIBRATE_H

#include <stdint.h>

typedef struct tool_calibration {
    const char *model, *set, *rung, *target, *at_most, *rows, *out;
    char *const *files;
    uint32_t file_count, rung_value;
} tool_calibration;

/* Which precision each layer of a model needs; the exit status. */
int tool_calibrate_model(const tool_calibration *asked);

#endif
