/* Gives the metrics to whoever asks for them over HTTP.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_HTTP_H
#define TANDEM_DAEMON_HTTP_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct td_broker td_broker;

/* Somebody who asks for the metrics. */
enum { TD_WEB_PEERS = 8 };
typedef struct td_web_peer {
    uint32_t state; /* of http.c's; 0: nobody */
    int fd;
    uint64_t since_ns, until_ns; /* until: of this state */
    char request[4096], *reply;
    size_t got, bytes, sent;
} td_web_peer;

/* What poll() is to look for, and what is to be done then. */
int td_web_listen_to(const td_broker *b, struct pollfd p[TD_WEB_PEERS]);
void td_web_turn(td_broker *b, const struct pollfd p[TD_WEB_PEERS]);
void td_web_accept(td_broker *b);
bool td_web_has_peers(const td_broker *b);
void td_web_end(td_broker *b);

#endif
