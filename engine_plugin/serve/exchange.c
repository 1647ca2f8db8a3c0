/* What goes between connections and characters. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "engine_plugin/serve/serve.h"

void serve_suspend_locked(exchange *e)
{
    e->suspended = true;
    MHD_suspend_connection(e->connection);
}

void serve_wake_locked(exchange *e)
{
    if (!e->connection || !e->suspended)
        return;
    e->suspended = false;
    MHD_resume_connection(e->connection);
}

void serve_release_locked(exchange *e)
{
    if (--e->users)
        return;
    serve_ask_free(&e->ask);
    free(e->body.text);
    free(e->out.text);
    free(e->told.calls.held.text);
    free(e);
}

/* A client that has closed its side, or is gone: either way it reads no more. */
bool serve_is_gone_locked(const exchange *e)
{
    const union MHD_ConnectionInfo *info =
        e->connection ? MHD_get_connection_info(e->connection, MHD_CONNECTION_INFO_CONNECTION_FD)
                      : NULL;
    char byte;

    if (!info)
        return true;
    const ssize_t bytes = recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}
