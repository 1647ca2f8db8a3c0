/* Gives one page, /metrics, to whoever asks for it over HTTP: a few at a time, each for a bounded time, and nobody is waited
 * for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engine_plugin/daemon/http.h"
#include "engine_plugin/daemon/metrics.h"
#include "engine_plugin/daemon/state.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"

#define REQUEST_NS (2 * TD_SECOND) /* to send a request in, */
#define REPLY_NS (5 * TD_SECOND)   /* to read the reply in, */
#define CLOSE_NS TD_SECOND         /* and to close in: what is closed with something unread is reset, and its reply lost */

typedef enum web_state { WEB_FREE, WEB_READS, WEB_WRITES, WEB_CLOSES } web_state;

static void drop(td_web_peer *peer)
{
    td_fd_close(&peer->fd);
    free(peer->reply);
    *peer = (td_web_peer){.fd = -1};
}

/* What a request is made of. */

/* Past a token of RFC 9110; `text` itself if there is none. */
static const char *past_token(const char *text)
{
    return text + strspn(text, "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
}

static bool is_text(const char *from, const char *end)
{
    while (from < end && *from >= 0x20 && *from < 0x7f)
        from++;
    return from == end;
}

/* METHOD SP TARGET SP HTTP/1.x, without its end; out: where the target lies. */
static bool is_request_line(const char *line, const char *end, const char **target, const char **target_end)
{
    const char *method_end = past_token(line);

    if (method_end == line || method_end >= end || *method_end != ' ')
        return false;
    *target = method_end + 1;
    *target_end = memchr(*target, ' ', (size_t)(end - *target));
    return *target_end && *target_end > *target && is_text(*target, *target_end) && end - *target_end == 9 &&
           (!memcmp(*target_end, " HTTP/1.0", 9) || !memcmp(*target_end, " HTTP/1.1", 9));
}

/* `NAME: VALUE` each, up to the empty line. */
static bool are_fields(const char *line)
{
    for (const char *end; (end = strstr(line, "\r\n")) && end != line; line = end + 2) {
        const char *colon = past_token(line);

        if (colon == line || *colon != ':' || memchr(colon, '\n', (size_t)(end - colon)))
            return false;
    }
    return true;
}

/* Of a request as far as it has come: 0 if more has to come, else the status of its reply. */
static int judge(const td_web_peer *peer, bool ended)
{
    const char *request = peer->request, *line_end = strstr(request, "\r\n"), *all_end = strstr(request, "\r\n\r\n");
    const char *target = request, *target_end = request;
    const size_t shown = line_end ? (size_t)(line_end - request) : peer->got;
    const bool cut = !line_end && shown && request[shown - 1] == '\r';

    if (strlen(request) < peer->got || !is_text(request, request + shown - cut) ||
        (line_end && !is_request_line(request, line_end, &target, &target_end)))
        return 400;
    if (!all_end)
        return ended || peer->got == sizeof peer->request - 1 ? 400 : 0;
    if (!are_fields(line_end + 2))
        return 400;
    if (strncmp(request, "GET ", 4) && strncmp(request, "HEAD ", 5))
        return 405;
    return !strncmp(target, "/metrics", 8) && (target[8] == ' ' || target[8] == '?') ? 200 : 404;
}

/* Replies. */

static const char *reason_of(int status)
{
    return status == 200 ? "OK" : status == 404 ? "Not Found" : status == 405 ? "Method Not Allowed" : "Bad Request";
}

static void make_reply(td_broker *b, td_web_peer *peer, int status)
{
    const bool head_only = !strncmp(peer->request, "HEAD ", 5);
    const char *body = "the numbers are at /metrics, by GET or HEAD\n";
    size_t bytes = strlen(body);
    char head[240];
    int length;

    if (status == 200)
        body = td_metrics_page(b, &bytes);
    length = snprintf(head, sizeof head,
                      "HTTP/1.1 %d %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %zu\r\n"
                      "%sConnection: close\r\n\r\n",
                      status, reason_of(status), bytes, status == 405 ? "Allow: GET, HEAD\r\n" : "");
    peer->reply = malloc((size_t)length + bytes);
    if (!peer->reply) {
        drop(peer);
        return;
    }
    memcpy(peer->reply, head, (size_t)length);
    memcpy(peer->reply + length, body, bytes);
    peer->bytes = (size_t)length + (head_only ? 0 : bytes);
    peer->state = WEB_WRITES;
    peer->until_ns = td_now_ns() + REPLY_NS;
}

static void read_some(td_broker *b, td_web_peer *peer)
{
    const ssize_t got = recv(peer->fd, peer->request + peer->got, sizeof peer->request - 1 - peer->got, MSG_DONTWAIT);
    int status;

    if (got > 0)
        peer->got += (size_t)got;
    else if (got < 0 || !peer->got) {
        if (got == 0)
            drop(peer);
        return;
    }
    peer->request[peer->got] = 0;
    status = judge(peer, got == 0);
    if (status)
        make_reply(b, peer, status);
}

static void write_some(td_web_peer *peer)
{
    const ssize_t sent =
        send(peer->fd, peer->reply + peer->sent, peer->bytes - peer->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

    peer->sent += sent > 0 ? (size_t)sent : 0;
    if (peer->sent < peer->bytes)
        return;
    shutdown(peer->fd, SHUT_WR);
    peer->state = WEB_CLOSES;
    peer->until_ns = td_now_ns() + CLOSE_NS;
}

static void go_on(td_broker *b, td_web_peer *peer, short found)
{
    char ignored[4096];

    if (peer->state == WEB_READS && found)
        read_some(b, peer);
    if (peer->state == WEB_WRITES)
        write_some(peer);
    else if (peer->state == WEB_CLOSES && found && recv(peer->fd, ignored, sizeof ignored, MSG_DONTWAIT) <= 0)
        drop(peer);
    if (peer->state == WEB_FREE || (td_now_ns() < peer->until_ns && !(found & TD_POLL_GONE)))
        return;
    if (peer->state == WEB_READS && peer->got) { /* half a request is none */
        make_reply(b, peer, 400);
        if (peer->state == WEB_WRITES)
            write_some(peer);
    } else {
        drop(peer);
    }
}

/* Peers. */

/* One that is free, or the oldest one's place. */
static td_web_peer *place_for_another(td_broker *b)
{
    td_web_peer *oldest = &b->web[0];

    for (int i = 0; i < TD_WEB_PEERS; i++) {
        if (b->web[i].state == WEB_FREE)
            return &b->web[i];
        if (b->web[i].since_ns < oldest->since_ns)
            oldest = &b->web[i];
    }
    drop(oldest);
    return oldest;
}

int td_web_listen_to(const td_broker *b, td_polled p[TD_WEB_PEERS])
{
    for (int i = 0; i < TD_WEB_PEERS; i++) {
        const td_web_peer *peer = &b->web[i];

        p[i] = (td_polled){peer->state == WEB_FREE ? -1 : peer->fd,
                           peer->state == WEB_WRITES ? TD_POLL_WRITES : TD_POLL_READS, 0};
    }
    return TD_WEB_PEERS;
}

bool td_web_has_peers(const td_broker *b)
{
    bool has = false;

    for (int i = 0; i < TD_WEB_PEERS; i++)
        has = has || b->web[i].state != WEB_FREE;
    return has;
}

void td_web_turn(td_broker *b, const td_polled p[TD_WEB_PEERS])
{
    for (int i = 0; i < TD_WEB_PEERS; i++)
        if (b->web[i].state != WEB_FREE)
            go_on(b, &b->web[i], p[i].found);
}

/* No more at a time than there are places: each is looked at once before another may have its place. */
void td_web_accept(td_broker *b)
{
    for (int i = 0; i < TD_WEB_PEERS; i++) {
        const int fd = accept4(b->metrics, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        td_web_peer *peer;

        if (fd < 0)
            return;
        peer = place_for_another(b);
        *peer = (td_web_peer){.state = WEB_READS, .fd = fd, .since_ns = td_now_ns()};
        peer->until_ns = peer->since_ns + REQUEST_NS;
        go_on(b, peer, TD_POLL_READS);
    }
}

void td_web_end(td_broker *b)
{
    for (int i = 0; i < TD_WEB_PEERS; i++)
        if (b->web[i].state != WEB_FREE)
            drop(&b->web[i]);
}
