/* The launcher: a small process that starts workers and opens files for the broker, which can do neither itself.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine_plugin/daemon/confine.h"
#include "engine_plugin/daemon/launcher.h"
#include "engine_plugin/daemon/limits.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/pass.h"
#include "interop/os/descriptor.h"

typedef struct launcher {
    int broker, signals;
    pid_t worker; /* the last one, until it has ended; 0: none */
    td_config config;
    uint32_t backend, threads; /* those of the start, whatever the configuration says now */
    const char *config_path, *socket_path; /* or NULL */
    bool config_given;
} launcher;

/* A worker is this program again, with memory of its own. */
static void become_worker(const launcher *n, int socket, int queue)
{
    char backend[16], threads[16];
    char *const argv[] = {(char *)"tandemd-worker", (char *)"--worker", backend, threads, NULL};
    sigset_t none;

    snprintf(backend, sizeof backend, "%u", n->backend);
    snprintf(threads, sizeof threads, "%u", n->threads);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0ul, 0ul, 0ul);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* of 8 two clients' streams may share one: who waits holds both up */
    /* Not onto one another. */
    socket = fcntl(socket, F_DUPFD_CLOEXEC, 10);
    queue = fcntl(queue, F_DUPFD_CLOEXEC, 10);
    if (socket >= 0 && queue >= 0 && dup2(socket, 3) == 3 && dup2(queue, 4) == 4)
        execv("/proc/self/exe", argv);
    _exit(127);
}

static void spawn(launcher *n, td_launcher_message *m, const int fds[2])
{
    const pid_t before = getpid(), pid = fork();

    if (!pid) {
        if (getppid() != before)
            _exit(127);
        become_worker(n, fds[0], fds[1]);
    }
    n->worker = pid > 0 ? pid : 0;
    m->kind = TD_LAUNCHER_SPAWNED;
    m->pid = pid;
    m->status = pid > 0 ? TANDEM_OK : TANDEM_ERROR_NOMEM;
    if (pid < 0)
        snprintf(m->text, sizeof m->text, "fork: %s", strerror(errno));
    td_pass(n->broker, m, sizeof *m, NULL, 0);
}

/* Beneath the first model directory that has it, whatever links lie on the way; a regular file. */
static int open_beneath(const launcher *n, const char *path, char *why, size_t why_bytes)
{
    const struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
                                 .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    const char *wrong = "it is not there";

    for (uint32_t i = 0; i < n->config.model_dir_count; i++) {
        const char *dir = n->config.model_dirs[i], *below = path;
        size_t length = strlen(dir);
        struct stat st;
        int at, fd;

        while (length && dir[length - 1] == '/')
            length--;
        if (path[0] == '/') { /* a client may know where they are */
            if (strncmp(path, dir, length) || path[length] != '/')
                continue;
            below = path + length;
        }
        below += strspn(below, "/");
        at = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (at < 0)
            continue;
        fd = (int)syscall(SYS_openat2, at, below, &how, sizeof how);
        if (fd < 0 && errno != ENOENT)
            wrong = errno == EXDEV ? "it leads out" : strerror(errno);
        close(at);
        if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode))
            return fd;
        if (fd >= 0)
            wrong = "it is no regular file";
        td_fd_close(&fd);
    }
    td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s, beneath %u model director%s", wrong, /* the client names the path */
            n->config.model_dir_count, n->config.model_dir_count == 1 ? "y" : "ies");
    return -1;
}

static void look_at_children(launcher *n)
{
    struct signalfd_siginfo info;
    td_launcher_message m = {.kind = TD_LAUNCHER_ENDED};
    int status;

    while (read(n->signals, &info, sizeof info) == sizeof info)
        ;
    while ((m.pid = waitpid(-1, &status, WNOHANG)) > 0) {
        m.status = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        if (m.pid == n->worker)
            n->worker = 0;
        td_pass(n->broker, &m, sizeof m, NULL, 0);
    }
}

/* One that was not named may come and go: the defaults hold without it. */
static tandem_status read_config(launcher *n, const td_launcher_message *m, char *why, size_t why_bytes)
{
    const bool allowed = n->config.allow_count;
    tandem_status status = TANDEM_OK;
    struct stat st;

    if (n->config_path && !stat(n->config_path, &st) && !S_ISREG(st.st_mode)) /* a pipe may have no end */
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s is no regular file", n->config_path);
    else if (n->config_given || (n->config_path && !access(n->config_path, F_OK)))
        status = td_config_read(n->config_path, &n->config, why, why_bytes);
    else
        n->config = td_config_default();
    if (n->socket_path && allowed != (n->config.allow_count > 0) && td_socket_mode(n->socket_path, m->device, m->inode, &n->config))
        td_say(TD_LOG_WARN, "%s keeps its mode: %s", n->socket_path,
               errno == EEXIST ? "it is not this daemon's socket any more" : strerror(errno));
    return status;
}

static void answer(launcher *n, td_launcher_message *m, const int fds[2])
{
    char why[TD_TEXT_BYTES] = "";
    int fd;

    m->text[sizeof m->text - 1] = 0;
    switch ((td_launcher_message_kind)m->kind) {
    case TD_LAUNCHER_SPAWN:
        spawn(n, m, fds);
        break;
    case TD_LAUNCHER_KILL:
        if (m->pid > 0 && m->pid == n->worker)
            kill(m->pid, SIGKILL); /* a child that nobody else waits for: the number is still its own */
        break;
    case TD_LAUNCHER_OPEN:
        fd = open_beneath(n, m->text, why, sizeof why);
        td_launcher_pass_opened(n->broker, m, fd, why);
        break;
    case TD_LAUNCHER_CONFIG:
        m->status = read_config(n, m, why, sizeof why);
        snprintf(m->text, sizeof m->text, "%s", why);
        m->config = n->config;
        td_pass(n->broker, m, sizeof *m, NULL, 0);
        break;
    default:
        break;
    }
}

static int run(launcher *n)
{
    static td_launcher_message m;

    for (;;) {
        struct pollfd p[2] = {{n->broker, POLLIN, 0}, {n->signals, POLLIN, 0}};
        int fds[2];
        tandem_status status;

        if (poll(p, 2, -1) < 0 && errno != EINTR)
            return 1;
        if (p[1].revents)
            look_at_children(n);
        if (!p[0].revents)
            continue;
        status = td_fetch(n->broker, &m, sizeof m, fds);
        if (status == TANDEM_OK)
            answer(n, &m, fds);
        td_fd_close(&fds[0]);
        td_fd_close(&fds[1]);
        if (status == TANDEM_ERROR_LOST)
            return 0; /* and workers with us */
    }
}

/* By a descriptor, which stays with what was looked at; chmod() follows links. */
int td_socket_mode(const char *path, uint64_t device, uint64_t inode, const td_config *config)
{
    int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC), result = -1;
    char at[40];
    struct stat st;

    if (fd < 0 || fstat(fd, &st)) {
        td_fd_close(&fd);
        return -1;
    }
    snprintf(at, sizeof at, "/proc/self/fd/%d", fd);
    if (S_ISSOCK(st.st_mode) && st.st_uid == geteuid() && st.st_dev == device && st.st_ino == inode)
        result = chmod(at, config->allow_count ? 0666 : 0600);
    else
        errno = EEXIST;
    close(fd);
    return result;
}

int td_launcher_start(const td_config *config, const char *config_path, bool config_given, const char *socket_path)
{
    const pid_t before = getpid();
    int ends[2];
    sigset_t set;
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        return -1;
    pid = fork();
    if (pid) {
        close(ends[1]);
        if (pid < 0)
            td_fd_close(&ends[0]);
        else
            fcntl(ends[0], F_SETFL, fcntl(ends[0], F_GETFL) | O_NONBLOCK);
        return ends[0];
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0ul, 0ul, 0ul);
    if (getppid() != before)
        _exit(1);
    /* Nothing of the broker's but the way to it: not the socket that a service manager hands over. */
    if (ends[1] != 3)
        dup2(ends[1], 3);
    fcntl(3, F_SETFD, FD_CLOEXEC);
    syscall(SYS_close_range, 4u, ~0u, 0u);
    /* What the terminal sends to all of us is the broker's to answer. */
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    {
        static launcher n;
        char why[TD_TEXT_BYTES] = "";

        n = (launcher){.broker = 3,
                       .config = *config,
                       .backend = config->backend,
                       .threads = config->threads,
                       .config_path = config_path,
                       .config_given = config_given,
                       .socket_path = socket_path};
        td_log_forget();
        n.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
        prctl(PR_SET_NAME, "tandemd-launch", 0ul, 0ul, 0ul);
        if (td_confine_launcher(why, sizeof why) != TANDEM_OK)
            td_say(TD_LOG_DEBUG, "launcher: %s", why);
        _exit(n.signals < 0 || !td_log_begin() ? 1 : run(&n));
    }
}
