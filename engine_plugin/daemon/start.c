/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine_plugin/daemon/launcher.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/start.h"
#include "engine_plugin/daemon/worker.h"

const char td_start_help[] =
    "Computes for many engines: they share memory with it over a Unix socket, and go on when it fails. Stays\n"
    "in the foreground until SIGTERM, which lets running jobs end, at most 2 s; SIGHUP reads the configuration\n"
    "again.\n"
    "\n"
    "  --socket PATH   where to listen: $XDG_RUNTIME_DIR/tandem-0 if not given; mode 0600, with allow_uid 0666\n"
    "                  (the kernel says who connects). A socket from the service manager (LISTEN_FDS) goes first\n"
    "  --config FILE   $XDG_CONFIG_HOME/tandem/tandemd.conf if not given and there\n";

tandem_status td_start_check_place(const char *path, char *why, size_t why_bytes)
{
    char folder[TD_CHANNEL_PATH_BYTES];
    const char *wrong = NULL;
    struct stat st;

    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (stat(folder, &st))
        wrong = strerror(errno);
    else if (!S_ISDIR(st.st_mode))
        wrong = "no folder";
    else if (st.st_uid != geteuid() && st.st_uid != 0)
        wrong = "another user's";
    else if (st.st_mode & (S_IWGRP | S_IWOTH) && !(st.st_mode & S_ISVTX))
        wrong = "a folder that others can write to";
    return wrong ? td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "XDG_RUNTIME_DIR is '%.80s': %s", folder, wrong) : TANDEM_OK;
}

bool td_start_config(char *path, size_t bytes)
{
    const char *home = getenv("HOME"), *xdg = getenv("XDG_CONFIG_HOME");
    int length = 0;

    if (xdg && *xdg)
        length = snprintf(path, bytes, "%s/tandem/tandemd.conf", xdg);
    else if (home && *home)
        length = snprintf(path, bytes, "%s/.config/tandem/tandemd.conf", home);
    return length > 0 && length < (int)bytes;
}

/* The listener is descriptor 3. */
bool td_start_inherits(void)
{
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");

    return pid && fds && strtol(pid, NULL, 10) == (long)getpid() && strtol(fds, NULL, 10) >= 1;
}

tandem_status td_start_listen(td_listener *listener, const td_config *config, const char *socket, char *why, size_t why_bytes)
{
    tandem_status status;

    if (!socket) {
        status = td_listener_adopt(listener, 3, why, why_bytes);
        close(3);
        return status;
    }
    status = td_listener_open(listener, socket, why, why_bytes);
    if (status == TANDEM_OK && td_socket_mode(socket, listener->device, listener->inode, config)) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: %s", socket, strerror(errno));
        td_listener_close(listener);
    }
    return status;
}

/* Workers inherit this. */
void td_start_signals(void)
{
    signal(SIGPIPE, SIG_IGN); /* who reads the log may go, */
    signal(SIGXFSZ, SIG_IGN); /* and files may be limited: EPIPE and EFBIG are told or borne */
}

void td_start_limits(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int td_start_worker(int argc, char **argv)
{
    struct stat st;

    if (argc != 4 || fstat(3, &st) || !S_ISSOCK(st.st_mode) || fstat(4, &st)) {
        fprintf(stderr, "tandemd: --worker is for the daemon itself\n");
        return 2;
    }
    fcntl(3, F_SETFD, FD_CLOEXEC);
    return td_worker_main(3, 4, (uint32_t)strtoul(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10));
}
