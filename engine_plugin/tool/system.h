/* What the tool asks the operating system besides what interop/os/ has: files beside others, its own place, texts as streams.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_SYSTEM_H
#define TD_TOOL_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* What is written is written as it is, line ends as well. Before anything is. */
void tool_system_begin(void);

/* Makes a file whose name ends in XXXXXX, which becomes one that is new; with the rights that files have here by default. False
 * and errno if it cannot; it may be there then. */
bool tool_make_temporary(char *name);
/* Gives a file another's name, which it replaces. False and errno. */
bool tool_replace(const char *from, const char *to);

/* Where this program lies, without its name, with '/'; false if the system does not say. */
bool tool_program_folder(char *path, size_t bytes);

/* A stream whose text is kept in memory. */
typedef struct tool_text {
    FILE *file; /* NULL if there is none to be had */
    char *text;
    size_t bytes;
} tool_text;
void tool_text_begin(tool_text *text);
/* All of it, which the caller frees; NULL if it could not be kept, or none was begun. */
char *tool_text_end(tool_text *text);

#endif
