/* What tandemd's processes cannot do any more once they are confined.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine_plugin/daemon/confine.h"
#include "engine_plugin/daemon/limits.h"

enum { BROKER = 1, WORKER = 2, LAUNCHER = 4, ALL = 7, NOTHING = 77 };

typedef struct attempt {
    const char *name;
    int refused_to; /* BROKER, WORKER, LAUNCHER */
    long number, arguments[6];
} attempt;

#define BAD -1l, 0, 0, 0, 0, 0
static const attempt attempts[] = {
    {"a socket", BROKER | WORKER, SYS_socket, {AF_INET, SOCK_STREAM, 0}},
    {"connect", BROKER | WORKER, SYS_connect, {BAD}},
    {"a program", BROKER | WORKER, SYS_execve, {0}},
    {"a file", BROKER, SYS_openat, {AT_FDCWD, 0, 0}},
    {"a debugger", ALL, SYS_ptrace, {0}},
    {"another's memory", ALL, SYS_process_vm_readv, {1, 0, 0, 0, 0, 0}},
    {"a signal", BROKER | WORKER, SYS_kill, {1, 0}},
    {"a signal to a thread", BROKER | WORKER, SYS_tgkill, {1, 1, 0}},
    {"a signal with a value", ALL, SYS_rt_sigqueueinfo, {1, 0, 0}},
    {"another's limits", BROKER | WORKER, SYS_prlimit64, {1, RLIMIT_CORE, 0, 0}},
    {"renaming", BROKER | WORKER, SYS_renameat2, {BAD}},
    {"a mode", BROKER | WORKER, SYS_fchmodat, {BAD}},
    {"a mode, with flags", BROKER | WORKER, 452, {BAD}},
    {"another's descriptor", ALL, 438, {BAD}},
    {"a name space", ALL, SYS_unshare, {0}},
    {"a mount", ALL, SYS_mount, {0}},
    {"a ring of calls", ALL, 425, {1, 0}},
    {"calls of a ring", ALL, 426, {BAD}},
    {"a filter for the kernel", ALL, SYS_bpf, {BAD}},
    {"a user", ALL, SYS_setuid, {0}},
    {"a module", ALL, SYS_finit_module, {BAD}},
    {"a device", ALL, SYS_mknodat, {AT_FDCWD, 0, 0}},
    {"an owner", ALL, SYS_fchownat, {BAD}},
    {"code", BROKER, SYS_mmap, {0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0}},
    {"a child", BROKER, SYS_clone, {SIGCHLD}},
#ifdef SYS_renameat
    {"renaming, of old", BROKER | WORKER, SYS_renameat, {BAD}},
#endif
};

static long call(const attempt *a)
{
    const long *x = a->arguments;

    return syscall(a->number, x[0], x[1], x[2], x[3], x[4], x[5]);
}

static tandem_status confine(int who)
{
    char why[TD_TEXT_BYTES] = "";

    return who == BROKER    ? td_confine_broker(why, sizeof why)
           : who == LAUNCHER ? td_confine_launcher(why, sizeof why)
                            : td_confine_worker(why, sizeof why);
}

/* The first attempt that does not fail as it should, from 1. */
static int try_refused(int who)
{
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
        if (attempts[i].refused_to & who && (call(&attempts[i]) >= 0 || errno != EPERM))
            return 1 + (int)i;
    return 0;
}

static int end_of(pid_t pid)
{
    int status = -1;

    return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

/* What a launcher does: it starts this program, which gives up more, opens, and ends it. */
static bool can_launch(void)
{
    char *const argv[] = {(char *)"worker", (char *)"--worker", NULL};
    pid_t pid = fork();
    int fd;

    if (!pid) {
        execv("/proc/self/exe", argv);
        _exit(NOTHING);
    }
    if (end_of(pid) != 0)
        return false;
    pid = fork();
    if (!pid)
        for (;;)
            pause();
    if (pid < 0 || kill(pid, SIGKILL) || end_of(pid) != SIGKILL)
        return false;
    fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    return fd >= 0 && !close(fd) && chmod("/nonexistent/socket", 0600) && errno == ENOENT;
}

/* In a process of its own: its exit status, 0 if all is as it should be, else which attempt is not. */
static int try_all(int who)
{
    void *memory;
    int wrong;

    td_confine_process();
    if (confine(who) != TANDEM_OK)
        return NOTHING;
    wrong = try_refused(who);
    if (wrong)
        return wrong;
    memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || munmap(memory, 4096) || syscall(SYS_tgkill, getpid(), getpid(), 0))
        return 70; /* what it needs */
    return who == LAUNCHER && !can_launch() ? 70 : 0;
}

static int status_of(int (*child)(int), int argument)
{
    const pid_t pid = fork();
    int status = 0;

    assert_true(pid >= 0);
    if (!pid)
        _exit(child(argument));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void check_calls(int who)
{
    const int status = status_of(try_all, who);

    if (status == NOTHING)
        skip();
    if (status)
        fail_msg("%s: %s", who == BROKER ? "broker" : who == LAUNCHER ? "launcher" : "worker",
                 status <= (int)(sizeof attempts / sizeof *attempts) ? attempts[status - 1].name : "what it needs");
}

static void the_broker_is_confined(void **state)
{
    (void)state;
    check_calls(BROKER);
}

static void the_worker_is_confined(void **state)
{
    (void)state;
    check_calls(WORKER);
}

static void the_launcher_is_confined(void **state)
{
    (void)state;
    check_calls(LAUNCHER);
}

static char folder[64];

static int try_files(int ignored)
{
    char inside[100], outside[100];

    (void)ignored;
    if (getenv("TANDEM_SANITIZED") || syscall(444, NULL, 0, 1u) < 0) /* landlock_create_ruleset(): which version */
        return NOTHING;
    snprintf(inside, sizeof inside, "%s/in/socket", folder);
    snprintf(outside, sizeof outside, "%s/outside", folder);
    td_confine_process();
    td_confine_files(inside);
    if (!unlink(outside) || errno != EACCES)
        return 1;
    if (open(outside, O_RDONLY | O_CLOEXEC) >= 0 || errno != EACCES)
        return 2;
    return unlink(inside) ? 3 : 0;
}

/* The broker can take away its socket, and no other file. */
static void files_stay(void **state)
{
    char path[100];
    int status;

    (void)state;
    snprintf(folder, sizeof folder, "/tmp/tandem-confine-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/outside", folder);
    assert_int_equal(close(open(path, O_CREAT | O_CLOEXEC | O_WRONLY, 0600)), 0);
    snprintf(path, sizeof path, "%s/in", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/in/socket", folder);
    assert_int_equal(close(open(path, O_CREAT | O_CLOEXEC | O_WRONLY, 0600)), 0);
    status = status_of(try_files, 0);
    unlink(path);
    snprintf(path, sizeof path, "%s/in", folder);
    rmdir(path);
    snprintf(path, sizeof path, "%s/outside", folder);
    unlink(path);
    rmdir(folder);
    if (status == NOTHING)
        skip();
    assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_broker_is_confined),
        cmocka_unit_test(the_worker_is_confined),
        cmocka_unit_test(the_launcher_is_confined),
        cmocka_unit_test(files_stay),
    };

    if (argc == 2 && !strcmp(argv[1], "--worker")) /* of a launcher */
        return confine(WORKER) == TANDEM_OK ? try_refused(WORKER) : NOTHING;
    return cmocka_run_group_tests_name("confinement", tests, NULL, NULL);
}
