/* What man pages and completion share: how a text of help is read, and written as a page.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A text of help: "usage:" and what follows it up to the first empty line. Then paragraphs that
 * begin in column 0; options, which begin with two spaces and "--", then a value's name or its
 * words ("yes|no"), then after two spaces or on the next lines what they do; and anything else that
 * is indented, which stays as it is.
 */
#ifndef TD_TOOL_MANUAL_H
#define TD_TOOL_MANUAL_H

#include <stdbool.h>
#include <stddef.h>

enum { HELP_LINE_BYTES = 256 };

/* An option's line, cut up. */
typedef struct help_option {
    char name[32], value[160]; /* value: its name or words; empty: a switch */
    const char *text;          /* what it does, if that begins on this line; else "" */
} help_option;

/* Copies a line of `text` without its end. Returns what follows it; NULL where there was none. */
const char *help_next_line(const char *text, char line[HELP_LINE_BYTES]);
size_t help_indent(const char *line); /* how many spaces it begins with */
bool help_is_option(const char *line);
/* Its `text` points into the line. */
help_option help_cut_option(const char *line);

/* A page in roff on stdout: its title and what it is of, then what a caller gives headings (".SH ...") for. */
void man_begin(const char *name, const char *summary);
void man_text(const char *text);
void man_line(const char *text); /* and its end */
const char *man_synopsis(const char *text); /* the lines of the usage; returns what is behind them */
/* What follows the usage, or is like that. Behind a heading no paragraph has to be begun. */
void man_body(const char *text, bool behind_heading);

#endif
