/* What clients are told, and the end of their connections.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/replies.h"
#include "engine_plugin/daemon/state.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"

tandem_status td_client_send(td_broker *b, td_client *c, const td_wire_message *m, const int *fd)
{
    char why[TD_TEXT_BYTES] = "";
    tandem_status status;

    if (c->state == TD_CLIENT_GONE)
        return TANDEM_ERROR_LOST;
    status = td_conn_send(&c->conn, m, fd, why, sizeof why);
    if (status != TANDEM_OK)
        td_client_end(b, c, TANDEM_ERROR_LOST, 0, why);
    return status;
}

void td_client_answered(td_client *c, uint32_t serial)
{
    if (serial && c->pending)
        c->pending--;
}

void td_client_error(td_broker *b, td_client *c, uint32_t serial, uint64_t ticket, tandem_status status,
                     const char *text)
{
    td_wire_message m = td_wire_new(TD_WIRE_ERROR, serial);

    m.error.status = status;
    m.error.ticket = ticket;
    td_wire_sentence(m.error.text, sizeof m.error.text, text);
    td_client_answered(c, serial);
    td_client_send(b, c, &m, NULL);
}

void td_client_done(td_broker *b, td_client *c, uint32_t serial, uint64_t id)
{
    td_wire_message m = td_wire_new(TD_WIRE_DONE, serial);

    m.object.id = id;
    td_client_answered(c, serial);
    td_client_send(b, c, &m, NULL);
}

/* Its client is gone. Not by a request: the driver may hold those up until what is released here has come. */
static void release_worker_session(td_broker *b, const td_client *c)
{
    if (!c->worker_session || !b->worker_queue)
        return;
    atomic_fetch_or(&b->worker_queue->released, 1ull << c->worker_session);
    td_eventcount_notify(&b->worker_queue->to_worker);
}

void td_client_end(td_broker *b, td_client *c, tandem_status status, td_wire_reason reason, const char *why)
{
    char ignored[TD_TEXT_BYTES];

    if (c->state == TD_CLIENT_GONE)
        return;
    if (status == TANDEM_OK) {
        td_wire_message m = td_wire_new(TD_WIRE_BYE, 0);

        m.bye.reason = reason;
        td_conn_send(&c->conn, &m, NULL, ignored, sizeof ignored);
    } else if (status != TANDEM_ERROR_LOST) {
        td_wire_message m = td_wire_new(TD_WIRE_ERROR, 0);

        m.error.status = status;
        td_wire_sentence(m.error.text, sizeof m.error.text, why);
        td_conn_send(&c->conn, &m, NULL, ignored, sizeof ignored);
    }
    /* Who never said hello could fill the log. */
    td_say(c->state == TD_CLIENT_NEW                                ? TD_LOG_DEBUG
           : status == TANDEM_OK || status == TANDEM_ERROR_LOST ? TD_LOG_INFO
                                                                    : TD_LOG_WARN,
           "client %u (process %d, '%s') ends: %s", c->session, (int)c->conn.pid, c->name, why);
    if (c->state == TD_CLIENT_NEW)
        b->new_count--;
    else
        b->client_count--;
    c->state = TD_CLIENT_GONE;
    c->gone_ns = td_now_ns();
    td_conn_close(&c->conn);
    td_fd_close(&c->process);
    release_worker_session(b, c); /* what its jobs wait for may never come */
    td_queue_wake(b);
}
