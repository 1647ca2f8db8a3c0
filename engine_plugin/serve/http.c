/* Connections: what is asked, by whom, and how answers leave. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine_plugin/serve/serve.h"
#include "engine_plugin/tool/tool.h"

enum { BACKLOG = 1024, HEADER_BYTES = 32 << 10, BLOCK_BYTES = 4096 };
#define GRACE_NS 1000000000u
#define JSON "application/json"

/* --- Requests that are over --- */

static void on_completed(void *user, struct MHD_Connection *connection, void **mine,
                         enum MHD_RequestTerminationCode how)
{
    server *s = user;
    exchange *e = *mine;

    (void)connection, (void)how;
    if (!e)
        return;
    pthread_mutex_lock(&s->lock);
    e->connection = NULL;
    s->asked -= e->asked;
    serve_release_locked(e);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    *mine = NULL;
}

/* --- Answers --- */

static enum MHD_Result respond(struct MHD_Connection *c, unsigned status, const char *type,
                               const char *text, size_t bytes)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(bytes, (void *)text, MHD_RESPMEM_MUST_COPY);

    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
        MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    const enum MHD_Result result = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return result;
}

static enum MHD_Result refuse_param(server *s, struct MHD_Connection *c, unsigned status,
                                    const char *what, const char *param)
{
    serve_text text = {0};

    pthread_mutex_lock(&s->lock);
    s->counts.refused++;
    pthread_mutex_unlock(&s->lock);
    serve_tell_error(&text, status, what, param);
    const enum MHD_Result result = respond(c, status, JSON, text.text ? text.text : "", text.bytes);
    free(text.text);
    return result;
}

static enum MHD_Result refuse(server *s, struct MHD_Connection *c, unsigned status,
                              const char *what)
{
    return refuse_param(s, c, status, what, NULL);
}

/* A stream is kept no longer than its client needs to read it. */
static void forget_sent(exchange *e)
{
    const size_t left = e->out.bytes - e->sent;

    if (e->sent < BLOCK_BYTES || e->sent < left)
        return;
    memmove(e->out.text, e->out.text + e->sent, left);
    e->out.bytes = left;
    e->sent = 0;
}

/* More of a stream; its connection is suspended until there is some. */
static ssize_t read_stream(void *user, uint64_t position, char *to, size_t room)
{
    server *s = ((void **)user)[0];
    exchange *e = ((void **)user)[1];
    ssize_t count;

    (void)position;
    pthread_mutex_lock(&s->lock);
    const size_t left = e->out.bytes - e->sent;
    count = (ssize_t)(left < room ? left : room);
    if (count)
        memcpy(to, e->out.text + e->sent, (size_t)count);
    else if (e->done)
        count = MHD_CONTENT_READER_END_OF_STREAM;
    else
        serve_suspend_locked(e);
    e->sent += count > 0 ? (size_t)count : 0;
    forget_sent(e);
    pthread_mutex_unlock(&s->lock);
    return count;
}

static enum MHD_Result respond_stream(server *s, exchange *e)
{
    void **both = malloc(2 * sizeof *both);
    struct MHD_Response *r;

    if (!both)
        return MHD_NO;
    both[0] = s;
    both[1] = e;
    r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, both, free);
    if (!r) {
        free(both);
        return MHD_NO;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    const enum MHD_Result result = MHD_queue_response(e->connection, MHD_HTTP_OK, r);
    MHD_destroy_response(r);
    return result;
}

/* --- What can be told at once --- */

static enum MHD_Result tell_health(server *s, struct MHD_Connection *c)
{
    static const char text[] = "{\"status\":\"ok\"}";

    (void)s;
    return respond(c, MHD_HTTP_OK, JSON, text, sizeof text - 1);
}

static enum MHD_Result tell_models(server *s, struct MHD_Connection *c)
{
    serve_text text = {0};

    serve_tell_models(&text, s->model, s->begun);
    const enum MHD_Result result =
        respond(c, MHD_HTTP_OK, JSON, text.text ? text.text : "", text.bytes);
    free(text.text);
    return result;
}

static enum MHD_Result tell_model(server *s, struct MHD_Connection *c)
{
    serve_text text = {0};

    serve_tell_model(&text, s->model, s->begun);
    const enum MHD_Result result =
        respond(c, MHD_HTTP_OK, JSON, text.text ? text.text : "", text.bytes);
    free(text.text);
    return result;
}

static enum MHD_Result tell_metrics(server *s, struct MHD_Connection *c)
{
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } * m, *end;
    serve_text text = {0};
    char line[400];

    pthread_mutex_lock(&s->lock);
    const serve_counts n = s->counts;
    const uint32_t busy = serve_busy_locked(s), queued = s->queued;
    pthread_mutex_unlock(&s->lock);
    const __typeof__(*m) metrics[] = {
        {"requests_total", "counter", "answers that were asked for", n.requests},
        {"refused_total", "counter", "requests that were refused at once", n.refused},
        {"answered_total", "counter", "answers that were given wholly", n.answered},
        {"cancelled_total", "counter", "answers whose clients went away", n.cancelled},
        {"failed_total", "counter", "answers that could not be given", n.failed},
        {"prompt_tokens_total", "counter", "tokens of what was asked", n.prompt_tokens},
        {"read_tokens_total", "counter", "of these, those that no cache had", n.read_tokens},
        {"reply_tokens_total", "counter", "tokens of answers, cancelled ones too", n.reply_tokens},
        {"embeddings_total", "counter", "texts that became vectors", n.embedded},
        {"embedded_tokens_total", "counter", "tokens of those", n.embedded_tokens},
        {"slots", "gauge", "characters that can talk at once", s->options.slots},
        {"slots_busy", "gauge", "those that do", busy},
        {"queue", "gauge", "requests that wait for one", queued},
    };
    for (m = metrics, end = m + sizeof metrics / sizeof *metrics; m < end; m++) {
        const int bytes = snprintf(line, sizeof line,
                                   "# HELP tandem_serve_%s %s\n# TYPE tandem_serve_%s %s\n"
                                   "tandem_serve_%s %" PRIu64 "\n",
                                   m->name, m->help, m->name, m->type, m->name, m->value);
        serve_put(&text, line, (size_t)bytes);
    }
    const enum MHD_Result result = respond(c, MHD_HTTP_OK, "text/plain; version=0.0.4",
                                           text.text ? text.text : "", text.bytes);
    free(text.text);
    return result;
}

/* --- What takes longer --- */

static enum MHD_Result ask(server *s, exchange *e, serve_kind kind)
{
    static const char *const names[] = {"cmpl", "chatcmpl", "embd"};
    char why[SERVE_WHY_BYTES] = "";
    bool takes;

    if (!serve_ask_read(&e->ask, kind, e->body.text, e->body.bytes, why, sizeof why))
        return refuse_param(s, e->connection, MHD_HTTP_BAD_REQUEST, why, e->ask.param);
    e->created = time(NULL);
    pthread_mutex_lock(&s->lock);
    snprintf(e->id, sizeof e->id, "%s-%08" PRIx32 "-%" PRIu64, names[kind],
             s->instance, ++s->numbers);
    takes = !s->stopping && serve_enqueue_locked(s, e);
    s->counts.requests += takes;
    e->asked = takes;
    s->asked += takes;
    if (takes)
        serve_suspend_locked(e);
    pthread_mutex_unlock(&s->lock);
    return takes ? MHD_YES
                 : refuse(s, e->connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                          "too many requests wait already");
}

static enum MHD_Result ask_chat(server *s, exchange *e)
{
    return ask(s, e, SERVE_CHAT);
}

static enum MHD_Result ask_text(server *s, exchange *e)
{
    return ask(s, e, SERVE_TEXT);
}

static enum MHD_Result ask_embeddings(server *s, exchange *e)
{
    return s->lacks_embeddings ? refuse(s, e->connection, MHD_HTTP_NOT_IMPLEMENTED,
                                        "the tandemd behind --socket is too old to make embeddings")
                               : ask(s, e, SERVE_EMBED);
}

/* Once there is something to be told. */
static enum MHD_Result go_on(server *s, exchange *e)
{
    pthread_mutex_lock(&s->lock);
    const unsigned status = e->status;
    const bool stream = e->ask.stream && status == MHD_HTTP_OK, done = e->done;
    if (!status && !done)
        serve_suspend_locked(e);
    pthread_mutex_unlock(&s->lock);
    if (!status)
        return done ? MHD_NO : MHD_YES;
    return stream
               ? respond_stream(s, e)
               : respond(e->connection, status, JSON, e->out.text ? e->out.text : "", e->out.bytes);
}

/* --- Who asks for what --- */

static const struct route {
    const char *path;
    bool open;                                                    /* to whoever has no token */
    enum MHD_Result (*tell)(server *s, struct MHD_Connection *c); /* GET, or */
    enum MHD_Result (*ask)(server *s, exchange *e);               /* POST */
} routes[] = {
    {"/health", true, tell_health, NULL},       {"/metrics", false, tell_metrics, NULL},
    {"/v1/models", false, tell_models, NULL},   {"/v1/chat/completions", false, NULL, ask_chat},
    {"/v1/completions", false, NULL, ask_text}, {"/v1/embeddings", false, NULL, ask_embeddings},
};

static const char MODELS[] = "/v1/models/";

/* Also of the one model by its name. */
static const struct route *find_route(const server *s, const char *path)
{
    static const struct route model = {NULL, false, tell_model, NULL};

    if (!strncmp(path, MODELS, sizeof MODELS - 1) && !strcmp(path + sizeof MODELS - 1, s->model))
        return &model;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (!strcmp(routes[i].path, path))
            return &routes[i];
    return NULL;
}

/* In a time that does not tell how much of it is right. */
static bool has_token(const server *s, struct MHD_Connection *c)
{
    static const char scheme[] = "Bearer ";
    const char *given =
        MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    unsigned different = 0;

    if (!s->options.token)
        return true;
    if (!given || strncmp(given, scheme, sizeof scheme - 1) != 0)
        return false;
    given += sizeof scheme - 1;
    if (strlen(given) != strlen(s->options.token))
        return false;
    for (size_t i = 0; given[i]; i++)
        different |= (unsigned)(given[i] ^ s->options.token[i]);
    return !different;
}

/* A page in a browser may ask a server on its machine, too; without a token nothing tells it from
 * its user, so it is refused. */
static bool is_page(const server *s, struct MHD_Connection *c)
{
    return !s->options.token &&
           MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
}

static enum MHD_Result route(server *s, exchange *e, const char *path, const char *method)
{
    struct MHD_Connection *c = e->connection;
    const struct route *r = find_route(s, path);

    if (is_page(s, c))
        return refuse(s, c, MHD_HTTP_FORBIDDEN, "pages in browsers need a server with a token");
    if (!(r && r->open) && !has_token(s, c))
        return refuse(s, c, MHD_HTTP_UNAUTHORIZED, "the token is missing or wrong");
    if (!r)
        return refuse(s, c, MHD_HTTP_NOT_FOUND,
                      strncmp(path, MODELS, sizeof MODELS - 1)
                          ? "nothing is at this path; /v1/chat/completions, /v1/completions, "
                            "/v1/embeddings, /v1/models, /health and /metrics are there"
                          : "there is no model of this name; /v1/models says which there is");
    if (r->tell ? strcmp(method, "GET") && strcmp(method, "HEAD") : strcmp(method, "POST"))
        return refuse(s, c, MHD_HTTP_METHOD_NOT_ALLOWED,
                      r->tell ? "this path takes GET and HEAD alone" : "this path takes POST alone");
    return r->tell ? r->tell(s, c) : r->ask(s, e);
}

static bool is_too_long(struct MHD_Connection *c)
{
    const char *length =
        MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);

    return length && strtoull(length, NULL, 10) > SERVE_BODY_BYTES;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **mine)
{
    server *s = user;
    exchange *e = *mine;

    (void)version;
    if (!e) { /* its headers alone have come */
        e = *mine = calloc(1, sizeof *e);
        if (!e)
            return MHD_NO;
        e->connection = c;
        e->users = 1;
        return is_too_long(c)
                   ? refuse(s, c, MHD_HTTP_CONTENT_TOO_LARGE, "a body may have at most 1 MiB")
                   : MHD_YES;
    }
    if (*upload_bytes) {
        if (e->body.bytes + *upload_bytes > SERVE_BODY_BYTES)
            return MHD_NO; /* it did not say so before */
        serve_put(&e->body, upload, *upload_bytes);
        *upload_bytes = 0;
        return MHD_YES;
    }
    return e->asked ? go_on(s, e) : route(s, e, url, method);
}

/* --- Beginning and end --- */

static void ignore(void *user, const char *format, va_list args)
{
    (void)user, (void)format, (void)args; /* what clients do wrong is theirs */
}

static struct addrinfo *find_address(const server *s)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char port[8];
    int error;

    snprintf(port, sizeof port, "%u", (unsigned)s->options.port);
    error = getaddrinfo(s->options.listen, port, &hints, &found);
    if (!error)
        return found;
    tool_fail("serve", "--listen \"%s\": %s", s->options.listen, gai_strerror(error));
    return NULL;
}

bool serve_http_begin(server *s, uint16_t *port)
{
    struct addrinfo *address = find_address(s);

    if (!address)
        return false;
    errno = 0;
    s->daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
                                     (address->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0),
                                 s->options.port, NULL, NULL, on_request, s, MHD_OPTION_SOCK_ADDR,
                                 address->ai_addr, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)s->options.connections, MHD_OPTION_CONNECTION_TIMEOUT,
                                 (unsigned)s->options.timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 (size_t)HEADER_BYTES, MHD_OPTION_LISTEN_BACKLOG_SIZE,
                                 (unsigned)BACKLOG, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
                                 MHD_OPTION_EXTERNAL_LOGGER, ignore, NULL, MHD_OPTION_END);
    const int error = errno;
    freeaddrinfo(address);
    if (!s->daemon) {
        tool_fail("serve", "cannot listen on %s, port %u: %s", s->options.listen,
                  (unsigned)s->options.port, error ? strerror(error) : "libmicrohttpd does not say why");
        return false;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    *port = info && info->port ? info->port : s->options.port;
    return true;
}

/* What was said last has a while to leave. */
void serve_http_end(server *s)
{
    const uint64_t until = td_now_ns() + GRACE_NS;

    if (!s->daemon)
        return;
    const MHD_socket listener = MHD_quiesce_daemon(s->daemon);
    pthread_mutex_lock(&s->lock);
    while (s->asked && td_now_ns() < until)
        td_cond_wait(&s->work, &s->lock, until);
    pthread_mutex_unlock(&s->lock);
    MHD_stop_daemon(s->daemon);
    if (listener != MHD_INVALID_SOCKET)
        close(listener);
    s->daemon = NULL;
}
