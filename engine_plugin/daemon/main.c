/* tandemd: the command line, and everything that must happen before the broker is confined.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A broker that knows the clients, a worker that computes, a launcher that starts workers:
 *
 *   clients ==== sockets, shared rings and timelines ====> broker ---- requests (socket), jobs (queue) ----> worker
 *                                              |  <--- memory, answers, results ----------     ^
 *                                              +----> launcher ---------------- starts --------+
 *
 * Its units, each with a header that says what it does. None calls one that stands below it here (tests/test_floors.py):
 *
 *   every process    log, pass, config, confine, manager
 *   what is pure     costs, schedule
 *   the worker       worker_queue, follower, loader, worker
 *   the launcher     launcher
 *   what is held     quotas, descriptors
 *   clients          replies, worker_requests, networks, queue_jobs, queue_dispatch, clients, accept
 *   their worker     answers, blame, worker_process
 *   the broker       queue (its second thread), metrics, http, broker (its main one)
 *   its begin        start
 *
 * What a unit has otherwise on Windows is in UNIT_windows.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/client/tuning_file.h"
#include "engine_plugin/daemon/broker.h"
#include "engine_plugin/daemon/confine.h"
#include "engine_plugin/daemon/launcher.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/manager.h"
#include "engine_plugin/daemon/metrics.h"
#include "engine_plugin/daemon/start.h"
#include "engine_plugin/daemon/state.h"
#include "interop/os/descriptor.h"
#include "interop/os/process.h"

static void help(void)
{
    printf("usage: tandemd [--socket PATH] [--config FILE]\n"
           "\n"
           "%s"
           "  --help          prints this\n"
           "  --version       prints the version\n"
           "\n"
           "The configuration has lines `key = value`; these are the defaults. Lines with # in front are comments:\n%s"
           "\n"
           "Frames go before what clients do in the background. Of a class each client gets the same time on the\n"
           "device; within share_window_us the earliest deadline goes first. What takes long is computed in slices\n"
           "where it can be cut: of 0.5 ms, what is a frame's on a CPU of 20 ms. On a CPU the background stands still\n"
           "while frames are computed.\n"
           "Engines use it by tandem_session_desc.socket. `tandem doctor` says whether it can be reached and what it\n"
           "computes on, `tandem top` what its clients have it do; it logs to stderr, under systemd to the journal.\n"
           "Exit status: 0 after SIGTERM; 1 if it cannot begin; 2 for a wrong command line.\n",
           td_start_help, td_config_help);
}

typedef struct options {
    const char *socket, *config;
    bool config_given; /* else it need not be there */
    char socket_path[TD_CONN_PATH_BYTES], config_path[4096];
} options;

/* -1: go on; else the exit status. */
static int read_options(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char **to = !strcmp(argv[i], "--socket") ? &o->socket : !strcmp(argv[i], "--config") ? &o->config : NULL;

        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            help();
            return 0;
        }
        if (!strcmp(argv[i], "--version")) {
            printf("tandemd %d.%d.%d\n", TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR, TANDEM_VERSION_PATCH);
            return 0;
        }
        if (!to || i + 1 == argc) {
            fprintf(stderr, "tandemd: %s '%s'; see tandemd --help\n",
                    to ? "a value is missing behind" : "unknown option", argv[i]);
            return 2;
        }
        *to = argv[++i];
    }
    return -1;
}

static bool find_paths(options *o, bool inherits)
{
    if (!o->socket && !inherits) {
        char why[TD_TEXT_BYTES];

        if (td_channel_default(o->socket_path, why, sizeof why) != TANDEM_OK ||
            td_start_check_place(o->socket_path, why, sizeof why) != TANDEM_OK) {
            td_say(TD_LOG_ERROR, "%s; mend that, or give --socket", why);
            return false;
        }
        o->socket = o->socket_path;
    }
    o->config_given = o->config != NULL;
    if (!o->config && td_start_config(o->config_path, sizeof o->config_path))
        o->config = o->config_path;
    return true;
}

static tandem_status read_tuning(const char *path, td_tuning_table *table, char *why, size_t why_bytes)
{
    static char text[TD_TUNING_MOST_TEXT + 1];
    char reason[300] = "";
    FILE *file = fopen(path, "re");
    const size_t bytes = file ? fread(text, 1, sizeof text, file) : 0;
    tandem_status status = TANDEM_OK;

    if (!file || ferror(file))
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "tuning is '%s': %s", path, strerror(errno));
    else if (td_tuning_parse(text, bytes, table, reason, sizeof reason) != TANDEM_OK)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "tuning is '%s': %s", path, reason);
    if (file)
        fclose(file);
    return status;
}

static int run(int argc, char **argv)
{
    static td_broker b;
    static options o;
    char why[TD_TEXT_BYTES] = "";
    const bool inherits = td_start_inherits();
    int result;

    if (argc > 2 && !strcmp(argv[1], "--worker"))
        return td_start_worker(argc, argv);
    result = read_options(&o, argc, argv);
    if (result >= 0)
        return result;
    if (!find_paths(&o, inherits))
        return 1;
    b.config = td_config_default();
    b.listener = (td_listener){.fd = -1, .lock = -1, .spare = -1};
    b.metrics = b.signals = b.launcher = b.notify = -1;
    if (o.config && (o.config_given || !access(o.config, F_OK)) &&
        td_config_read(o.config, &b.config, why, sizeof why) != TANDEM_OK) {
        td_say(TD_LOG_ERROR, "%s", why);
        return 1;
    }
    if (b.config.tuning[0] && read_tuning(b.config.tuning, &b.tuning, why, sizeof why) != TANDEM_OK) {
        td_say(TD_LOG_ERROR, "%s", why);
        return 1;
    }
    td_say_level = b.config.log_level;
    td_start_limits();
    td_confine_process();
    b.signals = td_asked_make();
    b.launcher = td_launcher_start(&b.config, o.config, o.config_given, inherits ? NULL : o.socket);
    result = 1;
    if (b.signals < 0 || b.launcher < 0) {
        td_say(TD_LOG_ERROR, "cannot begin: %s", strerror(errno));
    } else if (td_start_listen(&b.listener, &b.config, inherits ? NULL : o.socket, why, sizeof why) != TANDEM_OK) {
        td_say(TD_LOG_ERROR, "%s", why);
    } else if (b.config.metrics_port && (b.metrics = td_metrics_listen(b.config.metrics_port, why, sizeof why)) < 0) {
        td_say(TD_LOG_ERROR, "%s", why);
        td_listener_close(&b.listener);
    } else {
        b.notify = td_manager_socket();
        b.watchdog_ns = td_manager_watchdog_ns();
        td_say(TD_LOG_INFO, "listening at %s", inherits ? "the service manager's socket" : o.socket);
        result = td_broker_run(&b);
    }
    td_fd_close(&b.launcher); /* it ends, and the worker with it */
    td_fd_close(&b.signals);
    td_fd_close(&b.metrics);
    td_fd_close(&b.notify);
    return result;
}

int main(int argc, char **argv)
{
    if (!td_fd_standard())
        return 1;
    td_start_signals();
    const int result = run(argc, argv);

    td_log_end();
    return result;
}
