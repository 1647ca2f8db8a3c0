/* The daemon's numbers, in Prometheus' text format.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine_plugin/daemon/metrics.h"
#include "engine_plugin/daemon/quotas.h"
#include "engine_plugin/daemon/state.h"
#include "interop/os/descriptor.h"

/* That of 48 clients whose names are as long as can be has 120 KB. */
enum { PAGE_BYTES = 160 * 1024 };

int td_metrics_listen(uint32_t port, char *why, size_t why_bytes)
{
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    /* What is accepted has room for most of a page: it can go at once. */
    if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) &&
        !setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){2 * PAGE_BYTES}, sizeof(int)) &&
        !bind(fd, (const struct sockaddr *)&at, sizeof at) && !listen(fd, 8))
        return fd;
    td_fail(why, why_bytes, TANDEM_ERROR_IO, "metrics is %u: %s", port, strerror(errno));
    td_fd_close(&fd);
    return -1;
}

typedef struct page {
    char text[PAGE_BYTES];
    size_t at;
} page;

static void add(page *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(page *p, const char *format, ...)
{
    va_list list;
    int more;

    va_start(list, format);
    more = vsnprintf(p->text + p->at, sizeof p->text - p->at, format, list);
    va_end(list);
    if (more > 0 && (size_t)more < sizeof p->text - p->at)
        p->at += (size_t)more; /* else it stays as it was, at the end of a line */
    else
        p->text[p->at] = 0;
}

/* A client's line; its name is a label's value. */
static void add_client(page *p, const td_client *c, const char *metric, uint64_t value)
{
    char name[2 * TD_WIRE_NAME_BYTES];
    size_t to = 0;

    for (const char *from = c->name; *from && to < sizeof name - 2; from++) {
        if (*from == '"' || *from == '\\')
            name[to++] = '\\';
        name[to++] = *from;
    }
    name[to] = 0;
    add(p, "tandemd_client_%s{session=\"%u\",pid=\"%d\",name=\"%s\",class=\"%s\"} %" PRIu64 "\n", metric, c->session,
        (int)c->conn.pid, name, c->job_class == TANDEM_CLASS_BACKGROUND ? "background" : "frame", value);
}

static void add_clients(page *p, const td_broker *b, const char *metric, const char *type, const char *help,
                        uint64_t (*of)(const td_broker *b, const td_client *c))
{
    add(p, "# HELP tandemd_client_%s %s\n# TYPE tandemd_client_%s %s\n", metric, help, metric, type);
    for (const td_client *c = b->clients; c; c = c->next)
        if (c->state == TD_CLIENT_READY)
            add_client(p, c, metric, of(b, c));
}

typedef const td_broker broker;
typedef const td_client client;
static uint64_t done_of(broker *b, client *c) { return (void)b, c->done; }
static uint64_t stale_of(broker *b, client *c) { return (void)b, c->stale; }
static uint64_t failed_of(broker *b, client *c) { return (void)b, c->failed; }
static uint64_t compute_of(broker *b, client *c) { return (void)b, c->compute_ns; }
static uint64_t wait_of(broker *b, client *c) { return (void)b, c->wait_ns; }
static uint64_t mem_of(broker *b, client *c) { return (void)b, c->mem_bytes; }
static uint64_t scratch_of(broker *b, client *c) { return td_scratch_held(b, c); }
static uint64_t models_of(broker *b, client *c) { return (void)b, c->model_bytes; }
static uint64_t queued_of(broker *b, client *c) { return (void)b, c->count; }

static void write_page(page *p, const td_broker *b)
{
    add(p, "# HELP tandemd_clients Sessions now.\n# TYPE tandemd_clients gauge\ntandemd_clients %u\n", b->client_count);
    add(p, "# HELP tandemd_refused_total Connections that were turned away.\n# TYPE tandemd_refused_total counter\n"
           "tandemd_refused_total %" PRIu64 "\n", b->refused);
    add(p, "# HELP tandemd_worker_restarts_total Workers that died.\n# TYPE tandemd_worker_restarts_total counter\n"
           "tandemd_worker_restarts_total %u\n", b->epoch);
    add(p, "# HELP tandemd_worker_up Whether there is a worker now.\n# TYPE tandemd_worker_up gauge\n"
           "tandemd_worker_up %d\n", b->has_worker);
    add(p, "# HELP tandemd_jobs_total Jobs that have ended.\n# TYPE tandemd_jobs_total counter\n"
           "tandemd_jobs_total{state=\"done\"} %" PRIu64 "\ntandemd_jobs_total{state=\"stale\"} %" PRIu64
           "\ntandemd_jobs_total{state=\"cancelled\"} %" PRIu64 "\ntandemd_jobs_total{state=\"failed\"} %" PRIu64 "\n",
        b->jobs_done, b->jobs_stale, b->jobs_cancelled, b->jobs_failed);
    add(p, "# HELP tandemd_compute_ns_total Time on the device.\n# TYPE tandemd_compute_ns_total counter\n"
           "tandemd_compute_ns_total %" PRIu64 "\n", b->compute_ns);
    add(p, "# HELP tandemd_background_slice_ns_max Longest that background work kept a frame waiting, or may have: its longest "
           "piece, on a CPU the longest until it stood still.\n"
           "# TYPE tandemd_background_slice_ns_max gauge\ntandemd_background_slice_ns_max %" PRIu64 "\n",
        b->longest_slice_ns);
    add(p, "# HELP tandemd_mem_bytes Shared memory of all clients, and their jobs' temporary outputs.\n"
           "# TYPE tandemd_mem_bytes gauge\ntandemd_mem_bytes %" PRIu64 "\n", b->mem_bytes);
    add(p, "# HELP tandemd_scratch_bytes What the worker holds for jobs.\n# TYPE tandemd_scratch_bytes gauge\n"
           "tandemd_scratch_bytes %" PRIu64 "\n", td_scratch_held(b, NULL));
    add(p, "# HELP tandemd_model_bytes Files of all models.\n# TYPE tandemd_model_bytes gauge\n"
           "tandemd_model_bytes %" PRIu64 "\n", b->model_bytes);
    add_clients(p, b, "jobs_done_total", "counter", "Jobs that wrote their output.", done_of);
    add_clients(p, b, "jobs_stale_total", "counter", "Jobs that missed their deadline.", stale_of);
    add_clients(p, b, "jobs_failed_total", "counter", "Jobs that failed.", failed_of);
    add_clients(p, b, "compute_ns_total", "counter", "Time on the device.", compute_of);
    add_clients(p, b, "wait_ns_total", "counter", "Time that jobs which could run waited for their turn.", wait_of);
    add_clients(p, b, "mem_bytes", "gauge", "Shared memory, and its jobs' temporary output.", mem_of);
    add_clients(p, b, "scratch_bytes", "gauge", "What the worker holds for its jobs.", scratch_of);
    add_clients(p, b, "model_bytes", "gauge", "Files of the models that it uses.", models_of);
    add_clients(p, b, "jobs_under_way", "gauge", "Jobs that have not ended.", queued_of);
}

const char *td_metrics_page(td_broker *b, size_t *bytes)
{
    static page p;

    p.at = 0;
    write_page(&p, b);
    *bytes = p.at;
    return p.text;
}
