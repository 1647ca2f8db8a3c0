/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_plugin/tool/daemon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/os/descriptor.h"

#define ANSWER_NS 5000000000u

bool tool_daemon_path(const char *socket, char path[TD_CONN_PATH_BYTES], char *why, size_t why_bytes)
{
    char reason[200];
    if (socket) {
        if (snprintf(path, TD_CONN_PATH_BYTES, "%s", socket) < TD_CONN_PATH_BYTES)
            return true;
        snprintf(why, why_bytes, "\"%.60s...\" is too long for a socket's path", socket);
        return false;
    }
    if (td_channel_default(path, reason, sizeof reason) == TANDEM_OK)
        return true;
    snprintf(why, why_bytes, "%s: give --socket PATH", reason);
    return false;
}

/* Sends *m and has its answer there, which is a `wanted`. */
static tandem_status ask(tool_daemon *d, td_wire_message *m, td_wire_type wanted, char *why, size_t why_bytes)
{
    tandem_status status;
    m->header.serial = d->rules.next_serial;
    const uint32_t serial = m->header.serial;
    status = td_conn_send(&d->conn, m, NULL, why, why_bytes);
    if (status == TANDEM_OK)
        td_wire_took(&d->rules, TD_WIRE_TO_DAEMON, m);
    while (status == TANDEM_OK) {
        int fds[TD_WIRE_MAX_FDS];
        status = td_conn_wait(&d->conn, ANSWER_NS, why, why_bytes);
        if (status == TANDEM_OK)
            status = td_conn_recv(&d->conn, &d->rules, TD_WIRE_TO_CLIENT, m, fds, why, why_bytes);
        if (status != TANDEM_OK)
            break;
        d->heard = true;
        td_fd_close(&fds[0]); /* a shared ring, which this client has no use for */
        if (m->header.type == TD_WIRE_BYE)
            status = td_fail(why, why_bytes, TANDEM_ERROR_LOST, "it says goodbye: %s",
                             m->bye.reason == TD_WIRE_BYE_FULL ? "there is no room for more clients" : "it stops");
        else if (m->header.type == TD_WIRE_ERROR && (m->header.serial == serial || !m->error.ticket))
            status = td_fail(why, why_bytes, (tandem_status)m->error.status, "%s", m->error.text);
        else if (m->header.serial == serial && m->header.type != wanted)
            status = td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "it answers with %s", td_wire_name(m->header.type));
        else if (m->header.serial == serial)
            break;
    }
    return status;
}

tandem_status tool_daemon_open(tool_daemon *d, const char *path, const char *name, char *why, size_t why_bytes)
{
    td_wire_message m = td_wire_new(TD_WIRE_HELLO, 0);
    tandem_status status;
    memset(d, 0, sizeof *d);
    d->rules = td_wire_rules_new(NULL);
    status = td_conn_connect(&d->conn, path, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    d->connected = true;
    m.hello.features = TD_WIRE_FEATURES;
    m.hello.share = TD_WIRE_SHARE_NONE;
    td_wire_identify(&m.hello.identity);
    td_wire_text(m.hello.name, sizeof m.hello.name, name);
    status = ask(d, &m, TD_WIRE_WELCOME, why, why_bytes);
    if (status == TANDEM_OK) {
        d->welcome = m.welcome;
        td_wire_rules_welcome(&d->rules, &d->welcome);
        m = td_wire_new(TD_WIRE_INFO, 0);
        status = ask(d, &m, TD_WIRE_INFO_REPLY, why, why_bytes);
    }
    if (status == TANDEM_OK)
        d->info = m.info;
    else
        tool_daemon_close(d);
    return status;
}

tandem_status tool_daemon_stats(tool_daemon *d, char *why, size_t why_bytes)
{
    uint32_t seen = 0, total = 1;
    if (!(d->rules.features & TD_WIRE_STATISTICS))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "this tandemd (%s) tells no numbers", d->welcome.name);
    d->row_count = 0;
    while (seen < total) {
        td_wire_message m = td_wire_new(TD_WIRE_STATS, 0);
        m.stats.first = seen;
        const tandem_status status = ask(d, &m, TD_WIRE_STATS_REPLY, why, why_bytes);
        if (status != TANDEM_OK)
            return status;
        d->rows_ns = td_now_ns();
        total = m.stats_reply.total;
        if (!m.stats_reply.count)
            break;
        for (uint32_t i = 0; i < m.stats_reply.count; i++)
            if (m.stats_reply.rows[i].session != d->welcome.session && d->row_count < TOOL_DAEMON_ROWS)
                d->rows[d->row_count++] = m.stats_reply.rows[i];
        seen += m.stats_reply.count;
    }
    return TANDEM_OK;
}

void tool_daemon_close(tool_daemon *d)
{
    td_conn_close(&d->conn);
    d->conn.fd = -1;
}
