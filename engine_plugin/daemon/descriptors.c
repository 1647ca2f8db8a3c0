/* Who may have how many of the broker's descriptors: each mem, model and exported timeline of a client's holds one, for the next
 * worker. What the broker needs itself, to replace a worker above all, is not among those that clients share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "engine_plugin/daemon/descriptors.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/state.h"
#include "interop/os/descriptor.h"

enum {
    RESERVED = 32,      /* files and sockets of its own, a new worker's, what comes with a message */
    OF_CONNECTION = 2,  /* its socket, and its process */
    OF_PLACE = 12,      /* where there are few: a place for a client, with one for who has not said hello */
    LEAST_SHARING = 4,  /* so many have all that there is, if nobody else has any */
};

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

td_fd_share td_fds_shared(const td_broker *b)
{
    const uint64_t left = b->fd_limit > RESERVED ? b->fd_limit - RESERVED : 0;
    const uint32_t places = least(left / OF_PLACE ? left / OF_PLACE : 1, TD_MAX_CLIENTS);
    td_fd_share s = {.clients = least(b->config.clients, places), .newcomers = least(places, TD_MAX_NEW)};
    const uint64_t connections = OF_CONNECTION * (s.clients + s.newcomers);

    s.objects = least(left > connections ? left - connections : 0, UINT32_MAX);
    s.of_client = s.objects / least(s.clients, LEAST_SHARING);
    return s;
}

static uint32_t count_held(const td_client *c)
{
    uint32_t count = 0;

    for (const td_shared *s = c->shared; s; s = s->next)
        count += s->fd >= 0 || s->kind == TD_WIRE_KIND_MODEL;
    return count;
}

bool td_fd_fits(td_broker *b, td_client *c, char *why, size_t why_bytes)
{
    const td_fd_share share = td_fds_shared(b);
    const uint32_t own = count_held(c);
    uint32_t all = 0;

    for (const td_client *o = b->clients; o; o = o->next)
        all += count_held(o);
    if (own < share.of_client && all < share.objects) {
        c->short_of_fds = false;
        return true;
    }
    td_fail(why, why_bytes, TANDEM_ERROR_NOMEM,
            "your mems, models and exported timelines hold %u descriptors of the %u that one client may, all clients' %u of %u: "
            "RLIMIT_NOFILE of tandemd is %u",
            own, share.of_client, all, share.objects, b->fd_limit);
    if (!c->short_of_fds)
        td_say(TD_LOG_WARN,
               "client %u (process %d, '%s') holds %u descriptors of the %u that it may, all clients %u of %u: RLIMIT_NOFILE is %u",
               c->session, (int)c->conn.pid, c->name, own, share.of_client, all, share.objects, b->fd_limit);
    c->short_of_fds = true;
    return false;
}

bool td_fds_begin(td_broker *b)
{
    td_fd_share share;

    b->fd_limit = td_fd_most();
    if (b->fd_limit < RESERVED + OF_PLACE) { /* poll() would not even take the list of what there may be */
        td_say(TD_LOG_ERROR, "RLIMIT_NOFILE is %u; at least %u are needed", b->fd_limit, RESERVED + OF_PLACE);
        return false;
    }
    share = td_fds_shared(b);
    if (share.clients < b->config.clients || share.of_client < b->config.mems)
        td_say(TD_LOG_WARN,
               "RLIMIT_NOFILE is %u: at most %u clients, with %u mems, models and exported timelines together, %u of each",
               b->fd_limit, share.clients, share.objects, share.of_client);
    return true;
}
