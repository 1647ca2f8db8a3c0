/* A tandemd that a test runs, what it has said in the file that its stderr goes to, and what it holds.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_DAEMON_UTIL_H
#define TANDEM_TESTS_DAEMON_UTIL_H

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "interop/base.h"
#include "interop/os/clock.h"

static inline bool is_logged(const char *log_path, const char *text)
{
    static char all[1 << 20];
    const int fd = open(log_path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd < 0 ? 0 : read(fd, all, sizeof all - 1);

    all[got > 0 ? got : 0] = 0;
    if (fd >= 0)
        close(fd);
    return strstr(all, text) != NULL;
}

/* What the daemon has said a thread of its has yet to write. */
static inline bool has_logged(const char *log_path, const char *text)
{
    const uint64_t begin = td_now_ns();
    bool is;

    while (!(is = is_logged(log_path, text)) && td_now_ns() - begin < 2000000000u)
        usleep(2000);
    return is;
}

static inline pid_t last_logged_worker(const char *log_path)
{
    FILE *file = fopen(log_path, "r");
    char line[1000];
    int pid = 0;

    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        const char *at = strstr(line, "worker (process ");

        if (at && strstr(line, "computes on"))
            sscanf(at, "worker (process %d", &pid);
    }
    fclose(file);
    return (pid_t)pid;
}

/* The process of the worker that the log names last, of those that there are. */
static inline pid_t logged_worker(const char *log_path)
{
    const uint64_t begin = td_now_ns();
    pid_t pid;

    while ((pid = last_logged_worker(log_path)) <= 0 || kill(pid, 0)) {
        assert_true(td_now_ns() - begin < 30000000000u);
        usleep(2000);
    }
    return pid;
}

/* Starts `program` with this configuration and an empty log; returns once it computes. */
static inline pid_t begin_daemon(const char *program, const char *socket_path, const char *config_path,
                                 const char *config, const char *log_path)
{
    const uint64_t begin = td_now_ns();
    FILE *file = fopen(config_path, "w");
    pid_t daemon;

    assert_non_null(file);
    assert_true(fputs(config, file) >= 0);
    assert_int_equal(fclose(file), 0);
    unlink(log_path);
    daemon = fork();
    assert_true(daemon >= 0);
    if (!daemon) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0ul, 0ul, 0ul);
        dup2(open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
        execl(program, "tandemd", "--socket", socket_path, "--config", config_path, (char *)NULL);
        _exit(127);
    }
    while (!has_logged(log_path, "computes on")) {
        assert_true(td_now_ns() - begin < 30000000000u);
        usleep(2000);
    }
    return daemon;
}

/* SIGTERM has it end in order. */
static inline void end_daemon_by(pid_t *daemon, int with)
{
    int status;

    assert_true(*daemon > 0); /* 0 would be all of the caller's process group */
    assert_int_equal(kill(*daemon, with), 0);
    assert_int_equal(waitpid(*daemon, &status, 0), *daemon);
    *daemon = 0;
    if (with == SIGTERM)
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The worker of tests/daemon/tandemd_faulty.c that there is now fails so at the next job. */
static inline void arm_fault(const char *fault_path, const char *log_path, const char *how)
{
    char next[120];
    FILE *file;

    snprintf(next, sizeof next, "%s.next", fault_path);
    file = fopen(next, "w");
    assert_non_null(file);
    fprintf(file, "%d %s\n", (int)logged_worker(log_path), how);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(next, fault_path), 0);
}

/* A process's descriptors; -1 where only root may see them. */
static inline int count_fds_of(pid_t pid)
{
    char path[64];
    const struct dirent *e;
    int count = 0;
    DIR *dir;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    dir = opendir(path);
    if (!dir)
        return -1;
    while ((e = readdir(dir)))
        count += e->d_name[0] != '.';
    closedir(dir);
    return count;
}

static inline bool is_thread_stopped(pid_t pid, const char *thread)
{
    char path[300], text[400] = "";
    const char *end;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/task/%s/stat", (int)pid, thread);
    file = fopen(path, "re");
    if (!file)
        return true; /* it is gone */
    if (!fgets(text, sizeof text, file))
        text[0] = 0;
    fclose(file);
    end = strrchr(text, ')');
    return !end || strchr("TtZX", end[2]);
}

/* Stops a process, until SIGCONT: none of its threads runs any more when this returns, which a signal alone does not see to. */
static inline void stop_process(pid_t pid)
{
    char path[64];
    bool runs = true;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    for (int tries = 0; runs; tries++) {
        DIR *dir = opendir(path);
        struct dirent *e;

        assert_non_null(dir);
        assert_true(tries < 30000);
        runs = false;
        while ((e = readdir(dir)))
            runs = runs || (e->d_name[0] != '.' && !is_thread_stopped(pid, e->d_name));
        closedir(dir);
        if (runs)
            usleep(1000);
    }
}

/* A daemon for all tests of a program, in a folder of its own. */
typedef struct group_daemon {
    char folder[64], socket_path[96], log_path[96];
    pid_t process;
} group_daemon;

/* 0, as cmocka's functions for groups have it. */
static inline int group_daemon_begin(group_daemon *d, const char *name, const char *config)
{
    const char *build = getenv("TANDEM_BUILD");
    char program[4096], config_path[96];

    *d = (group_daemon){0};
    if (!build) {
        print_error("TANDEM_BUILD, the folder that holds tandemd, is not set: ctest sets it\n");
        return 1;
    }
    snprintf(d->folder, sizeof d->folder, "/tmp/tandem-%s-XXXXXX", name);
    if (!mkdtemp(d->folder))
        return 1;
    snprintf(program, sizeof program, "%s/tandemd", build);
    snprintf(d->socket_path, sizeof d->socket_path, "%s/tandem-0", d->folder);
    snprintf(config_path, sizeof config_path, "%s/config", d->folder);
    snprintf(d->log_path, sizeof d->log_path, "%s/log", d->folder);
    d->process = begin_daemon(program, d->socket_path, config_path, config, d->log_path);
    return 0;
}

static inline int group_daemon_end(group_daemon *d)
{
    static const char *const left[] = {"tandem-0", "tandem-0.lock", "config", "log"};
    char path[128];

    if (!d->process) /* it did not begin */
        return 0;
    end_daemon_by(&d->process, SIGTERM);
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        snprintf(path, sizeof path, "%s/%s", d->folder, left[i]);
        unlink(path);
    }
    return rmdir(d->folder);
}

#endif
