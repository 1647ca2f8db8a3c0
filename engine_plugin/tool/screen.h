/* The terminal, as what is drawn anew on it needs it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_SCREEN_H
#define TD_TOOL_SCREEN_H

#include <stdbool.h>
#include <stdint.h>

/* Whether there is one, to read keys from and to write to. */
bool tool_screen_is_there(void);
/* Another page of it, without a cursor, on which the usual sequences of escapes are heeded; and back. */
void tool_screen_enter(void);
void tool_screen_leave(void);
void tool_screen_size(int *columns, int *rows);
/* Until so much time has passed, or a key is pressed; true if it is to be the end, by q or from outside. */
bool tool_screen_wait(uint64_t ns);

#endif
