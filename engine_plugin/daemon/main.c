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
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine_plugin/client/tuning_file.h"
#include "engine_plugin/daemon/broker.h"
#include "engine_plugin/daemon/confine.h"
#include "engine_plugin/daemon/launcher.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/manager.h"
#include "engine_plugin/daemon/metrics.h"
#include "engine_plugin/daemon/state.h"
#include "engine_plugin/daemon/worker.h"
#include "interop/os/descriptor.h"

static void help(void)
{
    printf("usage: tandemd [--socket PATH] [--config FILE]\n"
           "\n"
           "Computes for many engines: they share memory with it over a Unix socket, and go on when it fails. Stays\n"
           "in the foreground until SIGTERM, which lets running jobs end, at most 2 s; SIGHUP reads the configuration\n"
           "again.\n"
           "\n"
           "  --socket PATH   where to listen: $XDG_RUNTIME_DIR/tandem-0 if not given; mode 0600, with allow_uid 0666\n"
           "                  (the kernel says who connects). A socket from the service manager (LISTEN_FDS) goes first\n"
           "  --config FILE   $XDG_CONFIG_HOME/tandem/tandemd.conf if not given and there\n"
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
           td_config_help);
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

/* In the folder of the user's session, which must be the user's: who can write there can put another daemon in the place
 * of this one. In a folder such as /tmp (sticky) only owners can. */
static bool find_socket(options *o)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR"), *wrong = NULL;
    struct stat st;

    if (!runtime || !*runtime) {
        td_say(TD_LOG_ERROR, "XDG_RUNTIME_DIR is not set: give --socket");
        return false;
    }
    if (*runtime != '/')
        wrong = "no absolute path";
    else if (snprintf(o->socket_path, sizeof o->socket_path, "%s/tandem-0", runtime) >= (int)sizeof o->socket_path)
        wrong = "too long for a socket";
    else if (stat(runtime, &st))
        wrong = strerror(errno);
    else if (!S_ISDIR(st.st_mode))
        wrong = "no folder";
    else if (st.st_uid != geteuid() && st.st_uid != 0)
        wrong = "another user's";
    else if (st.st_mode & (S_IWGRP | S_IWOTH) && !(st.st_mode & S_ISVTX))
        wrong = "a folder that others can write to";
    if (wrong)
        td_say(TD_LOG_ERROR, "XDG_RUNTIME_DIR is '%.80s': %s; mend it, or give --socket", runtime, wrong);
    o->socket = o->socket_path;
    return !wrong;
}

static bool find_paths(options *o, bool inherits)
{
    const char *home = getenv("HOME"), *xdg = getenv("XDG_CONFIG_HOME");
    int length = 0;

    if (!o->socket && !inherits && !find_socket(o))
        return false;
    o->config_given = o->config != NULL;
    if (o->config)
        return true;
    if (xdg && *xdg)
        length = snprintf(o->config_path, sizeof o->config_path, "%s/tandem/tandemd.conf", xdg);
    else if (home && *home)
        length = snprintf(o->config_path, sizeof o->config_path, "%s/.config/tandem/tandemd.conf", home);
    else
        return true;
    if (length < (int)sizeof o->config_path)
        o->config = o->config_path;
    return true;
}

/* Whether the service manager hands over a socket, which is descriptor 3. */
static bool inherits_socket(void)
{
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");

    return pid && fds && strtol(pid, NULL, 10) == (long)getpid() && strtol(fds, NULL, 10) >= 1;
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

static tandem_status listen_somewhere(td_broker *b, const options *o, bool inherits, char *why, size_t why_bytes)
{
    tandem_status status;

    if (inherits) {
        status = td_listener_adopt(&b->listener, 3, why, why_bytes);
        close(3);
        return status;
    }
    status = td_listener_open(&b->listener, o->socket, why, why_bytes);
    if (status == TANDEM_OK && td_socket_mode(o->socket, b->listener.device, b->listener.inode, &b->config)) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: %s", o->socket, strerror(errno));
        td_listener_close(&b->listener);
    }
    return status;
}

static void raise_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static int take_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static int be_worker(char **argv)
{
    struct stat st;

    if (fstat(3, &st) || !S_ISSOCK(st.st_mode) || fstat(4, &st)) {
        fprintf(stderr, "tandemd: --worker is for the daemon itself\n");
        return 2;
    }
    fcntl(3, F_SETFD, FD_CLOEXEC);
    return td_worker_main(3, 4, (uint32_t)strtoul(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10));
}

static int run(int argc, char **argv)
{
    static td_broker b;
    static options o;
    char why[TD_TEXT_BYTES] = "";
    const bool inherits = inherits_socket();
    int result;

    if (argc == 4 && !strcmp(argv[1], "--worker"))
        return be_worker(argv);
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
    raise_limit();
    td_confine_process();
    b.signals = take_signals();
    b.launcher = td_launcher_start(&b.config, o.config, o.config_given, inherits ? NULL : o.socket);
    result = 1;
    if (b.signals < 0 || b.launcher < 0) {
        td_say(TD_LOG_ERROR, "cannot begin: %s", strerror(errno));
    } else if (listen_somewhere(&b, &o, inherits, why, sizeof why) != TANDEM_OK) {
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
    signal(SIGPIPE, SIG_IGN); /* who reads the log may go, */
    signal(SIGXFSZ, SIG_IGN); /* and files may be limited: EPIPE and EFBIG are told or borne; workers inherit this */
    const int result = run(argc, argv);

    td_log_end();
    return result;
}
