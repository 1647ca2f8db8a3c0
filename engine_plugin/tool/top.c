/* `tandem top`: what tandemd's clients have it do, live.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/ladder.h"
#include "engine_plugin/tool/daemon.h"
#include "engine_plugin/tool/screen.h"
#include "interop/os/clock.h"
#include "tandem/tandem.h"

/* clang-format off */
const char *const tool_top_help =
    "usage: tandem top [--socket PATH] [--interval S] [--once] [--json]\n"
    "\n"
    "What the clients of a running tandemd have it do, live; q ends it. Where the output is no terminal, one\n"
    "table. A line a client, the busiest first, over the last interval:\n"
    "  CLASS    frame, or background: what frames leave of the device\n"
    "  JOBS/S   jobs that ended with their output written\n"
    "  MS/S     milliseconds of compute in a second: 1000 is a device that does nothing else\n"
    "  WAIT MS  how long a job that could run waited for its turn, on average\n"
    "  MISS/S   jobs whose deadline passed first (STALE)\n"
    "  FAIL     jobs that failed, since the client connected\n"
    "  QUEUE    jobs that have not ended, now\n"
    "  MEMORY   what it shares, the scratch of its jobs and its models, now: of the GPU where that computes\n"
    "\n"
    "  --socket PATH   default: $XDG_RUNTIME_DIR/tandem-0\n"
    "  --interval S    seconds between two looks, 0.1 to 60; default: 1\n"
    "  --once          one table and end\n"
    "  --json          one line of JSON an interval; with --once, one\n";
/* clang-format on */

enum { NAME_CELLS = 17 };

typedef struct top {
    char path[TD_CONN_PATH_BYTES];
    tool_daemon now;
    td_wire_row was[TOOL_DAEMON_ROWS];
    uint32_t was_count;
    uint64_t was_ns;
    double seconds; /* between the two */
} top;

/* What one client did in the interval. */
typedef struct figures {
    const td_wire_row *row;
    double jobs, compute_ms, wait_ms, misses;
} figures;

static figures figures_of(const top *t, const td_wire_row *row)
{
    const td_wire_row none = {0}, *was = &none;
    for (uint32_t i = 0; i < t->was_count; i++)
        if (t->was[i].session == row->session)
            was = &t->was[i];
    const double connected = (double)row->connected_ns / 1e9;
    const double seconds = was == &none && connected < t->seconds ? connected : t->seconds;
    const uint64_t ended = row->jobs_done - was->jobs_done + row->jobs_stale - was->jobs_stale + row->jobs_failed -
                           was->jobs_failed + row->jobs_cancelled - was->jobs_cancelled;
    figures f = {.row = row};
    if (seconds > 0) {
        f.jobs = (double)(row->jobs_done - was->jobs_done) / seconds;
        f.misses = (double)(row->jobs_stale - was->jobs_stale) / seconds;
        f.compute_ms = (double)(row->gpu_ns - was->gpu_ns) / 1e6 / seconds;
    }
    if (ended)
        f.wait_ms = (double)(row->wait_ns - was->wait_ns) / 1e6 / (double)ended;
    return f;
}

static int busier(const void *a, const void *b)
{
    const figures *x = a, *y = b;
    if (x->compute_ms != y->compute_ms)
        return x->compute_ms < y->compute_ms ? 1 : -1;
    return x->row->session < y->row->session ? -1 : 1;
}

static uint32_t all_figures(const top *t, figures list[TOOL_DAEMON_ROWS])
{
    for (uint32_t i = 0; i < t->now.row_count; i++)
        list[i] = figures_of(t, &t->now.rows[i]);
    /* cppcheck-suppress uninitvar ; that many were filled just now */
    qsort(list, t->now.row_count, sizeof *list, busier);
    return t->now.row_count;
}

/* Connects if need be, and takes the next numbers; the ones before become `was`. */
static tandem_status look(top *t, char *why, size_t why_bytes)
{
    tandem_status status = TANDEM_OK;
    if (t->now.conn.fd < 0) {
        t->was_count = 0;
        t->was_ns = 0;
        status = tool_daemon_open(&t->now, t->path, "tandem top", why, why_bytes);
    } else {
        memcpy(t->was, t->now.rows, sizeof t->was);
        t->was_count = t->now.row_count;
        t->was_ns = t->now.rows_ns;
    }
    if (status == TANDEM_OK)
        status = tool_daemon_stats(&t->now, why, why_bytes);
    if (status != TANDEM_OK)
        tool_daemon_close(&t->now);
    else
        t->seconds = t->was_ns ? (double)(t->now.rows_ns - t->was_ns) / 1e9 : 0;
    return status;
}

static const char *class_name(const td_wire_row *row)
{
    return row->job_class == TANDEM_CLASS_BACKGROUND ? "background" : "frame";
}

static const char *bytes_text(uint64_t bytes, char text[16])
{
    static const char units[] = "BKMGT";
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1000 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 16, unit && value < 9.95 ? "%.1f%c" : "%.0f%c", value, units[unit]);
    return text;
}

static const char *rate_text(double value, char text[16])
{
    snprintf(text, 16, value < 9.95 && value > 0 ? "%.1f" : "%.0f", value);
    return text;
}

/* How many bytes the first characters of a text have, `most` of them at most. */
static size_t cells(const char *text, int most, int *count)
{
    size_t bytes = 0;
    int have = 0;
    while (text[bytes] && have < most) {
        bytes++;
        while (((unsigned char)text[bytes] & 0xc0) == 0x80)
            bytes++;
        have++;
    }
    if (count)
        *count = have;
    return bytes;
}

/* A line of the screen, cut to its width; behind it nothing is left of what was there. */
static void line(bool live, int columns, const char *format, ...) __attribute__((format(TD_PRINTF, 3, 4)));
static void line(bool live, int columns, const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127)
            *c = '?';
    printf("%.*s%s\n", (int)cells(text, live ? columns : (int)sizeof text, NULL), text, live ? "\033[K" : "");
}

static void print_head(const top *t, bool live, int columns)
{
    const td_wire_welcome *w = &t->now.welcome;
    const td_wire_info *info = &t->now.info;
    double busy = 0;
    uint64_t queued = 0;
    figures list[TOOL_DAEMON_ROWS];
    const uint32_t count = all_figures(t, list);
    for (uint32_t i = 0; i < count; i++) {
        busy += list[i].compute_ms / 10;
        queued += list[i].row->queued + list[i].row->running;
    }
    line(live, columns, "%s at %s", w->name, t->path);
    line(live, columns, "%s: %s", tool_backend_name(info->backend), info->device);
    line(live, columns, "%u client%s, busy %.0f %%, %" PRIu64 " job%s under way, worker replaced %u times", count,
         count == 1 ? "" : "s", busy, queued, queued == 1 ? "" : "s", info->epoch);
    line(live, columns, "%s", "");
}

static void print_table(const top *t, bool live, int columns, int rows)
{
    figures list[TOOL_DAEMON_ROWS];
    const uint32_t count = all_figures(t, list);
    const int room = live ? rows - 6 : (int)count;
    print_head(t, live, columns);
    if (live)
        printf("\033[7m");
    line(live, columns, "%-*s %7s %-5s %7s %6s %7s %6s %5s %5s %6s", NAME_CELLS, "CLIENT", "PID", "CLASS", "JOBS/S",
         "MS/S", "WAIT MS", "MISS/S", "FAIL", "QUEUE", "MEMORY");
    if (live)
        printf("\033[0m");
    for (uint32_t i = 0; i < count && (int)i < room; i++) {
        const td_wire_row *r = list[i].row;
        char jobs[16], ms[16], wait[16], miss[16], fail[16], memory[16];
        const char *name = r->name[0] ? r->name : "(no name)";
        int shown;
        const int name_bytes = (int)cells(name, NAME_CELLS, &shown);
        snprintf(fail, sizeof fail, "%" PRIu64, r->jobs_failed);
        snprintf(wait, sizeof wait, list[i].wait_ms < 99.5 ? "%.2f" : "%.0f", list[i].wait_ms);
        line(live, columns, "%.*s%*s %7u %-5.5s %7s %6s %7s %6s %5s %5u %6s", name_bytes, name, NAME_CELLS - shown, "",
             r->pid, class_name(r),
             rate_text(list[i].jobs, jobs), rate_text(list[i].compute_ms, ms), wait, rate_text(list[i].misses, miss),
             fail, r->queued + r->running, bytes_text(r->mem_bytes + r->model_bytes, memory));
    }
    if ((int)count > room)
        line(live, columns, "... and %d more", (int)count - room);
    if (!count)
        line(live, columns, "no clients: sessions with tandem_session_desc.socket set show up here");
}

static json_t *json_of(const top *t)
{
    figures list[TOOL_DAEMON_ROWS];
    const uint32_t count = all_figures(t, list);
    const td_wire_info *info = &t->now.info;
    json_t *clients = json_array();
    for (uint32_t i = 0; i < count; i++) {
        const td_wire_row *r = list[i].row;
        json_array_append_new(
            clients,
            json_pack("{s:i, s:i, s:i, s:s, s:s, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:i, s:i, s:I, s:I, s:f}",
                      "session", (int)r->session, "pid", (int)r->pid, "uid", (int)r->uid, "name", r->name, "class",
                      class_name(r), "jobs_per_s", list[i].jobs, "compute_ms_per_s", list[i].compute_ms, "wait_ms",
                      list[i].wait_ms, "missed_per_s", list[i].misses, "done", (json_int_t)r->jobs_done, "missed",
                      (json_int_t)r->jobs_stale, "cancelled", (json_int_t)r->jobs_cancelled, "failed",
                      (json_int_t)r->jobs_failed, "queued", (int)r->queued, "running", (int)r->running, "mem_bytes",
                      (json_int_t)r->mem_bytes, "model_bytes", (json_int_t)r->model_bytes, "connected_s",
                      (double)r->connected_ns / 1e9));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:f, s:o}", "socket", t->path, "daemon", t->now.welcome.name,
                     "backend", tool_backend_name(info->backend), "rung", td_rung_name(t->now.welcome.rung), "device",
                     info->device, "workers_replaced", (int)info->epoch, "interval_s", t->seconds, "clients", clients);
}

static bool print_json(const top *t)
{
    json_t *report = json_of(t);
    char *text = report ? json_dumps(report, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    const bool ok = text && printf("%s\n", text) >= 0 && fflush(stdout) == 0;
    free(text);
    json_decref(report);
    return ok;
}

static int run_live(top *t, uint64_t interval_ns)
{
    char why[TD_WIRE_TEXT_BYTES] = "";
    bool fresh = true;
    tool_screen_enter();
    do {
        const tandem_status status = look(t, why, sizeof why);
        int columns, rows;
        tool_screen_size(&columns, &rows);
        printf("\033[H");
        if (status == TANDEM_OK) {
            print_table(t, true, columns, rows);
        } else {
            line(true, columns, "tandemd at %s does not answer; looking again", t->path);
            line(true, columns, "%s", why);
        }
        printf("\033[J\033[%d;1Hq ends", rows);
        fflush(stdout);
        fresh = status == TANDEM_OK && !t->was_ns; /* the second look makes rates: soon */
    } while (!tool_screen_wait(fresh ? 300000000u : interval_ns));
    tool_screen_leave();
    return TOOL_OK;
}

static int run_lines(top *t, uint64_t interval_ns, bool once, bool json)
{
    char why[TD_WIRE_TEXT_BYTES] = "";
    tandem_status status = look(t, why, sizeof why);
    while (status == TANDEM_OK) {
        td_sleep_ns(interval_ns);
        status = look(t, why, sizeof why);
        if (status != TANDEM_OK)
            break;
        if (!json)
            print_table(t, false, 0, 0);
        else if (!print_json(t))
            return tool_fail("top", "standard output: %s", strerror(errno));
        if (once || !json)
            return TOOL_OK;
    }
    return tool_fail("top", "tandemd at %s does not answer: %s%s", t->path, why,
                     status == TANDEM_ERROR_LOST ? "; `tandem doctor` says how to start it" : "");
}

int tool_top(int argc, char **argv)
{
    const char *socket = NULL, *interval = NULL;
    bool once = false, json = false;
    const tool_option options[] = {
        {"--socket", &socket, NULL}, {"--interval", &interval, NULL}, {"--once", NULL, &once}, {"--json", NULL, &json}};
    char why[TD_WIRE_TEXT_BYTES] = "", *end = NULL;
    double seconds = 1;
    static top t;
    if (tool_parse("top", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (interval)
        seconds = strtod(interval, &end);
    if (interval && (*end || !(seconds >= 0.1 && seconds <= 60)))
        return tool_usage("top", "--interval \"%s\": must be a number from 0.1 to 60", interval);
    if (!tool_daemon_path(socket, t.path, why, sizeof why))
        return tool_usage("top", "%s", why);
    t.now.conn.fd = -1;
    const uint64_t interval_ns = (uint64_t)(seconds * 1e9);
    const bool live = !once && !json && tool_screen_is_there();
    const int result = live ? run_live(&t, interval_ns) : run_lines(&t, interval_ns, once, json);
    tool_daemon_close(&t.now);
    return result;
}
