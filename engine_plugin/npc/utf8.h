/* UTF-8 that may be broken, or not be all there yet.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_NPC_UTF8_H
#define TD_NPC_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define TD_UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD, which stands for what is broken */
enum { TD_UTF8_MOST_BYTES = 4, TD_UTF8_REPLACEMENT_BYTES = 3 };

typedef enum td_utf8_state {
    TD_UTF8_WHOLE,  /* a character */
    TD_UTF8_CUT,    /* all that is there, of a character that would go on */
    TD_UTF8_BROKEN, /* what cannot begin one, or goes on wrongly: one U+FFFD in its place */
} td_utf8_state;

/* What `count` bytes, at least one, begin with, and how many of them that takes. A cut character is
 * broken where nothing follows. */
td_utf8_state td_utf8_next(const char *bytes, size_t count, size_t *length);

/* Copies `count` bytes, with U+FFFD in place of what is broken; returns how many are written, which
 * is at most TD_UTF8_REPLACEMENT_BYTES a byte. */
size_t td_utf8_repair(const char *bytes, size_t count, char *to);

#endif
