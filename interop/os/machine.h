/* The machine that this process runs on, told from others and from what it was before it was started anew.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_OS_MACHINE_H
#define TANDEM_OS_MACHINE_H

#include <stddef.h>

/* The text that stands for this installation of the system alone; for this start of the machine. As much as fits; empty if
 * the system has none. Neither is to be told to others as it is.
 * Returns: its length.
 * Threads: any.
 * Blocks: while a small file is read. */
size_t td_machine_id(char *text, size_t bytes);
size_t td_machine_boot_id(char *text, size_t bytes);

#endif
