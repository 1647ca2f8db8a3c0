/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/base.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Cuts a text that fills its room behind a word; a single long one between characters of UTF-8. */
static void end_at_word(char *text, size_t bytes)
{
    static const char dots[] = "...";
    size_t end = bytes - sizeof dots, at = end;

    if (bytes <= sizeof dots)
        return;
    while (at > end / 2 && text[at] != ' ')
        at--;
    if (text[at] != ' ')
        for (at = end; at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80;)
            at--;
    memcpy(text + at, dots, sizeof dots);
}

void td_text_list(char *text, size_t bytes, const char *format, va_list args)
{
    const int wanted = text && bytes ? vsnprintf(text, bytes, format, args) : 0;

    if (wanted >= 0 && (size_t)wanted >= bytes && bytes)
        end_at_word(text, bytes);
}

void td_logf(const td_log *log, td_log_level level, const char *format, ...)
{
    char text[1200];
    va_list args;

    if (!log || !log->fn)
        return;
    va_start(args, format);
    td_text_list(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c; c++) /* names come from files and callers: a line stays one line */
        if (iscntrl((unsigned char)*c))
            *c = '?';
    log->fn(log->user, (int)level, text);
}

void td_text(char *text, size_t bytes, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    td_text_list(text, bytes, format, args);
    va_end(args);
}

tandem_status td_fail(char *text, size_t bytes, tandem_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    td_text_list(text, bytes, format, args);
    va_end(args);
    return status;
}

size_t td_first_not_zero(const void *bytes, size_t from, size_t to)
{
    const uint8_t *at = bytes;
    uint64_t word;

    while (from + sizeof word <= to && (memcpy(&word, at + from, sizeof word), !word))
        from += sizeof word;
    while (from < to && !at[from])
        from++;
    return from < to ? from : to;
}
