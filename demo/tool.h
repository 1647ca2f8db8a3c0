/* What the parts of the `tandem` command share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_H
#define TD_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* One line on stderr, "tandem COMMAND: ..."; each returns its exit status. Control characters are shown as '?'. */
int tool_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
int tool_fail(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One option of a command. `value`: NULL for a switch. */
typedef struct tool_option {
    const char *name;   /* with its dashes */
    const char **value; /* where the value goes; NULL: a switch */
    bool *given;        /* set for switches */
} tool_option;

/* Reads `--name value`, `--name=value` and switches. Returns TOOL_OK, or TOOL_USAGE after a line that names what is wrong. */
int tool_parse(const char *command, int argc, char **argv, const tool_option *options, size_t count);

/* Index of `value` in a NULL-terminated list; -1 if it is not there. */
int tool_word(const char *value, const char *const *words);
bool tool_number(const char *value, uint64_t least, uint64_t most, uint64_t *out);

/* JSON on stdout: a quoted string, with everything escaped that has to be. */
void tool_json_string(const char *text);

int tool_attend(int argc, char **argv);
int tool_info(int argc, char **argv);
extern const char *const tool_attend_help;

/* "cpu", "cuda"; "inline", "timeline", ... */
const char *tool_backend_name(uint32_t backend);
const char *tool_rung_name(uint32_t rung);

#endif
