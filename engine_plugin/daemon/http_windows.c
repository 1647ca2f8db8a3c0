/* Nobody is listened to, so nobody comes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/daemon/http.h"

int td_web_listen_to(const td_broker *b, td_polled p[TD_WEB_PEERS])
{
    (void)b;
    (void)p;
    return 0;
}

bool td_web_has_peers(const td_broker *b)
{
    (void)b;
    return false;
}

void td_web_turn(td_broker *b, const td_polled p[TD_WEB_PEERS])
{
    (void)b;
    (void)p;
}

void td_web_accept(td_broker *b)
{
    (void)b;
}

void td_web_end(td_broker *b)
{
    (void)b;
}
