/* Tables of `tandem tune` as files: JSON, which kernels do not know.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_CLIENT_TUNING_FILE_H
#define TANDEM_CLIENT_TUNING_FILE_H

#include "kernels/attention/tuning.h"

enum { TD_TUNING_MOST_TEXT = 1 << 20 };

/* Reads the JSON of a table. ARG, and what is wrong with which value in `why`; nothing in it is trusted. */
tandem_status td_tuning_parse(const char *text, size_t bytes, td_tuning_table *out, char *why, size_t why_bytes);

#endif
