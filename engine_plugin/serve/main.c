/* Options of `tandem serve`, and how it begins and ends. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine_plugin/serve/serve.h"
#include "engine_plugin/tool/tool.h"

enum { TOKEN_BYTES = 256 };

typedef struct arguments {
    const char *model, *listen, *port, *slots, *queue, *connections, *timeout, *context;
    const char *token_file, *attention, *kv, *rung, *socket, *threads, *form;
    uint32_t precision, cache, rung_value;
    uint64_t thread_count;
    char token[TOKEN_BYTES];
} arguments;

static int read_numbers(const arguments *a, serve_options *to, uint64_t *threads)
{
    uint64_t port = 8080, slots = 4, queue = 64, connections = 1000, timeout = 60, context = 0;
    const struct {
        const char *name, *text;
        uint64_t least, most, *to;
    } counts[] = {{"--port", a->port, 0, 65535, &port},
                  {"--slots", a->slots, 1, 32, &slots},
                  {"--queue", a->queue, 0, 100000, &queue},
                  {"--connections", a->connections, 1, 100000, &connections},
                  {"--timeout", a->timeout, 1, 86400, &timeout},
                  {"--context", a->context, 16, 1 << 20, &context},
                  {"--threads", a->threads, 1, 1024, threads}};

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].text &&
            !tool_number(counts[i].text, counts[i].least, counts[i].most, counts[i].to))
            return tool_usage("serve", "%s \"%s\" is not a number from %" PRIu64 " to %" PRIu64,
                              counts[i].name, counts[i].text, counts[i].least, counts[i].most);
    to->port = (uint16_t)port;
    to->slots = (uint32_t)slots;
    to->queue = (uint32_t)queue;
    to->connections = (uint32_t)connections;
    to->timeout_s = (uint32_t)timeout;
    to->context = (uint32_t)context;
    return TOOL_OK;
}

/* Its first line. */
static int read_token(arguments *a, serve_options *to)
{
    FILE *file;

    if (!a->token_file)
        return TOOL_OK;
    file = fopen(a->token_file, "r");
    if (!file)
        return tool_fail("serve", "--token-file \"%s\": %s", a->token_file, strerror(errno));
    const bool got = fgets(a->token, sizeof a->token, file) != NULL;
    fclose(file);
    const size_t bytes = strcspn(a->token, "\r\n");
    if (got && bytes == sizeof a->token - 1)
        return tool_fail("serve", "--token-file \"%s\": its first line has more than %zu bytes",
                         a->token_file, bytes - 1);
    a->token[bytes] = 0;
    if (!got || !bytes)
        return tool_fail("serve", "--token-file \"%s\": it has no line to be read", a->token_file);
    to->token = a->token;
    return TOOL_OK;
}

static int read_arguments(int argc, char **argv, arguments *a, serve_options *to)
{
    const tool_option options[] = {
        {"--model", &a->model, NULL},           {"--listen", &a->listen, NULL},
        {"--port", &a->port, NULL},             {"--slots", &a->slots, NULL},
        {"--queue", &a->queue, NULL},           {"--connections", &a->connections, NULL},
        {"--timeout", &a->timeout, NULL},       {"--context", &a->context, NULL},
        {"--token-file", &a->token_file, NULL}, {"--attention", &a->attention, NULL},
        {"--kv", &a->kv, NULL},
        {"--rung", &a->rung, NULL},             {"--socket", &a->socket, NULL},
        {"--threads", &a->threads, NULL},       {"--form", &a->form, NULL}};
    int status = tool_parse("serve", argc, argv, options, sizeof options / sizeof *options);

    if (status != TOOL_OK)
        return status;
    if (!a->model)
        return tool_usage("serve", "--model is missing; `tandem help serve` explains it");
    if (!tool_precision("serve", "--attention", a->attention, &a->precision) ||
        !tool_cache("serve", a->kv, a->precision, &a->cache) ||
        !tool_rung("serve", a->rung, &a->rung_value))
        return TOOL_USAGE;
    status = read_numbers(a, to, &a->thread_count);
    to->model = a->model;
    to->listen = a->listen;
    return status == TOOL_OK ? read_token(a, to) : status;
}

/* --- The model --- */

static int open_language(server *s, const arguments *a)
{
    char why[SERVE_WHY_BYTES] = "";
    const tandem_session_desc session = TANDEM_INIT(
        tandem_session_desc, .rung = a->rung_value, .cpu_threads = (uint32_t)a->thread_count,
        .frames_in_flight = s->options.slots, .socket = a->socket,
        .job_class = TANDEM_CLASS_BACKGROUND, .error_text = why, .error_text_bytes = sizeof why);
    tandem_language_desc language =
        TANDEM_INIT(tandem_language_desc, .path = a->model, .context = s->options.context,
                    .precision = a->precision, .cache = a->cache, .form = a->form,
                    .embeds = 1);
    const char *slash = strrchr(a->model, '/'), *name = slash ? slash + 1 : a->model;

    snprintf(s->model, sizeof s->model, "%s", name);
    char *ending = strstr(s->model, ".gguf");
    if (ending && !ending[5])
        *ending = 0;
    if (tool_session_create(&session, &s->session, &s->engine) != TANDEM_OK)
        return tool_fail("serve", "%s", why);
    tandem_status status = tandem_language_create(s->session, &language, &s->language);
    if (status == TANDEM_ERROR_UNSUPPORTED && a->socket) { /* of an older tandemd's */
        s->lacks_embeddings = true;
        language.embeds = 0;
        status = tandem_language_create(s->session, &language, &s->language);
    }
    if (status == TANDEM_OK)
        return TOOL_OK;
    tandem_error_text(s->session, why, sizeof why);
    return tool_fail("serve", "--model: %s", why);
}

static void close_language(server *s)
{
    if (s->language)
        tandem_language_destroy(&s->language);
    tool_session_destroy(&s->session, &s->engine);
}

/* --- Beginning and end --- */

/* Until one of those signals comes, which no thread gets otherwise. */
static int serve(server *s, const sigset_t *ends)
{
    uint16_t port;
    int signal;

    if (!serve_slots_begin(s))
        return tool_fail("serve", "no memory or thread for %" PRIu32 " slots", s->options.slots);
    const bool listens = serve_http_begin(s, &port);
    if (listens) {
        const bool six = strchr(s->options.listen, ':') != NULL;

        printf("%s on http://%s%s%s:%u\n", s->model, six ? "[" : "", s->options.listen,
               six ? "]" : "", (unsigned)port);
        fflush(stdout);
        sigwait(ends, &signal);
    }
    serve_slots_end(s);
    serve_http_end(s);
    return listens ? TOOL_OK : TOOL_FAILED;
}

int main(int argc, char **argv)
{
    arguments a = {.listen = "127.0.0.1", .attention = "auto", .kv = "f16", .rung = "auto"};
    server s = {.begun = time(NULL), .instance = (uint32_t)td_now_ns()};
    sigset_t ends;
    int status = read_arguments(argc - 1, argv + 1, &a, &s.options);

    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (status == TOOL_OK && (pthread_mutex_init(&s.lock, NULL) || !td_cond_make(&s.work)))
        return tool_fail("serve", "no memory for a lock");
    if (status == TOOL_OK)
        status = open_language(&s, &a);
    if (status == TOOL_OK)
        status = serve(&s, &ends);
    close_language(&s);
    return status;
}
