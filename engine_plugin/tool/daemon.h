/* `tandem top` and `tandem doctor` as clients of tandemd that share nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_DAEMON_H
#define TD_TOOL_DAEMON_H

#include "engine_plugin/tool/tool.h"
#include "interop/wire/conn.h"

enum { TOOL_DAEMON_ROWS = 64 };

typedef struct tool_daemon {
    bool connected, heard; /* ever: somebody listens; and speaks the wire */
    td_conn conn;
    td_wire_rules rules;
    td_wire_welcome welcome;
    td_wire_info info;
    uint32_t row_count;
    td_wire_row rows[TOOL_DAEMON_ROWS];
    uint64_t rows_ns; /* CLOCK_MONOTONIC when they were true */
} tool_daemon;

/* The socket's path: `socket`, or $XDG_RUNTIME_DIR/tandem-0 where that is NULL. False, and the reason, if there is
 * none. */
bool tool_daemon_path(const char *socket, char path[TD_CONN_PATH_BYTES], char *why, size_t why_bytes);
/* Connects, greets, fills `welcome` and `info`. OK; LOST where nobody listens; else why it did not answer. */
tandem_status tool_daemon_open(tool_daemon *d, const char *path, const char *name, char *why, size_t why_bytes);
/* Fills `rows` with all clients but this one. */
tandem_status tool_daemon_stats(tool_daemon *d, char *why, size_t why_bytes);
void tool_daemon_close(tool_daemon *d); /* accepts one whose open failed */

#endif
