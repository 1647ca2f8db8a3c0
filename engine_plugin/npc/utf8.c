/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_plugin/npc/utf8.h"

#include <stdbool.h>
#include <string.h>

/* What the second byte may be behind the first: narrower than 80 to bf where a character could be
 * written shorter, is half of a pair of UTF-16, or lies beyond U+10FFFF. */
static void second_byte(uint8_t first, uint8_t *least, uint8_t *most)
{
    *least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    *most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
}

td_utf8_state td_utf8_next(const char *bytes, size_t count, size_t *length)
{
    const uint8_t first = (uint8_t)bytes[0];
    uint8_t least, most;
    size_t whole;

    *length = 1;
    if (first < 0x80)
        return TD_UTF8_WHOLE;
    if (first < 0xc2 || first > 0xf4)
        return TD_UTF8_BROKEN;
    whole = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    second_byte(first, &least, &most);
    for (; *length < whole; ++*length, least = 0x80, most = 0xbf) {
        if (*length == count)
            return TD_UTF8_CUT;
        if ((uint8_t)bytes[*length] < least || (uint8_t)bytes[*length] > most)
            return TD_UTF8_BROKEN;
    }
    return TD_UTF8_WHOLE;
}

size_t td_utf8_repair(const char *bytes, size_t count, char *to)
{
    size_t written = 0, length;

    for (size_t at = 0; at < count; at += length) {
        const bool whole = td_utf8_next(bytes + at, count - at, &length) == TD_UTF8_WHOLE;
        const size_t put = whole ? length : TD_UTF8_REPLACEMENT_BYTES;

        memcpy(to + written, whole ? bytes + at : TD_UTF8_REPLACEMENT, put);
        written += put;
    }
    return written;
}
