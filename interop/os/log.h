/* Where log lines go that no caller has asked for: the process's standard error.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_OS_LOG_H
#define TANDEM_OS_LOG_H

#include "interop/base.h"

/* What the environment's TANDEM_LOG asks for (error, warning, info or debug): lines of that level and above to standard error,
 * one write each, so that those of several threads and processes do not mix; else nowhere. Any other value is said once a
 * process. A process with more rights than its user (setuid) is not asked.
 * Threads: any.
 * Blocks: never. */
td_log td_log_of_environment(void);

/* Writes a line, with its end, to standard error in one go.
 * Threads: any.
 * Blocks: as who reads it does. */
void td_log_write(const char *line, size_t bytes);

#endif
