/* Who connects: which users may, and who makes room for a newcomer while too many have not said hello.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A client says hello as soon as it has connected. So of those who have not, the oldest one of the process that has most
 * of them goes first, of the user who has most. Where no process has many (each may have forked), nobody goes who came
 * a moment ago: newcomers stay in the kernel's queue until then.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "engine_plugin/daemon/accept.h"
#include "engine_plugin/daemon/clients.h"
#include "engine_plugin/daemon/descriptors.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/replies.h"
#include "engine_plugin/daemon/state.h"
#include "interop/os/clock.h"

#define GRACE_NS 20000000u /* to say hello in, whoever else comes */
enum { ACCEPTED_AT_ONCE = 64, FEW = 4 };

static bool may_connect(const td_broker *b, uint32_t uid)
{
    bool may = uid == b->uid;

    for (uint32_t i = 0; i < b->config.allow_count; i++)
        may = may || uid == b->config.allow[i];
    return may;
}

typedef struct crowd {
    td_client *oldest;
    uint32_t of_user, of_process;
} crowd;

/* Of those who are new, who goes before the others do. */
static crowd find_greediest(const td_broker *b)
{
    crowd most = {0};

    for (td_client *c = b->clients; c; c = c->next) { /* the newest first */
        crowd here = {.oldest = c};

        if (c->state != TD_CLIENT_NEW)
            continue;
        for (const td_client *o = b->clients; o; o = o->next) {
            here.of_user += o->state == TD_CLIENT_NEW && o->conn.uid == c->conn.uid;
            here.of_process += o->state == TD_CLIENT_NEW && o->conn.uid == c->conn.uid && o->conn.pid == c->conn.pid;
        }
        if (!most.oldest || here.of_user > most.of_user ||
            (here.of_user == most.of_user &&
             (here.of_process > most.of_process ||
              (here.of_process == most.of_process && (!c->hello || most.oldest->hello)))))
            most = here;
    }
    return most;
}

static bool may_go(const crowd *most, uint64_t now)
{
    return most->of_process > FEW || now - most->oldest->since_ns >= GRACE_NS;
}

static void make_room(td_broker *b)
{
    while (b->new_count > td_fds_shared(b).newcomers) {
        td_client *c = find_greediest(b).oldest;

        if (!c->hello) {
            td_client_read(b, c); /* it may have spoken by now */
            if (c->state != TD_CLIENT_NEW || c->hello)
                continue;
        }
        b->refused++;
        td_client_end(b, c, TANDEM_OK, TD_WIRE_BYE_FULL, "too many connect and say nothing");
    }
}

void td_clients_accept(td_broker *b)
{
    for (int i = 0; i < ACCEPTED_AT_ONCE; i++) {
        const crowd most = b->new_count < td_fds_shared(b).newcomers ? (crowd){0} : find_greediest(b);
        const uint64_t now = td_now_ns();
        char why[TD_TEXT_BYTES] = "";
        tandem_status status;
        td_client *c;

        b->accept_ns = 0;
        if (most.oldest && !may_go(&most, now)) {
            b->accept_ns = most.oldest->since_ns + GRACE_NS;
            return;
        }
        c = calloc(1, sizeof *c);
        if (!c)
            return;
        status = td_listener_accept(&b->listener, &c->conn, why, sizeof why);
        if (status != TANDEM_OK) {
            free(c);
            if (status != TANDEM_ERROR_BUSY)
                td_say(TD_LOG_WARN, "%s", why);
            if (status == TANDEM_ERROR_NOMEM)
                continue;
            return;
        }
        c->process = -1;
        c->rules = td_wire_rules_new(td_operation_of_clients);
        c->since_ns = now;
        c->next = b->clients;
        b->clients = c;
        b->new_count++;
        if (!may_connect(b, c->conn.uid)) {
            td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED, "user %u may not connect: neither user %u nor allowed",
                    c->conn.uid, b->uid);
            b->refused++;
            td_client_end(b, c, TANDEM_ERROR_UNSUPPORTED, 0, why);
            continue;
        }
        c->process = td_conn_process(&c->conn);
        make_room(b);
    }
}
