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

#include "engine_plugin/daemon/daemon.h"

enum { BROKER = 1, WORKER = 2, NOTHING = 77 };

typedef struct attempt {
    const char *name;
    int refused_to; /* BROKER, WORKER */
    long number, arguments[6];
} attempt;

#define BAD -1l, 0, 0, 0, 0, 0
static const attempt attempts[] = {
    {"a socket", BROKER | WORKER, SYS_socket, {AF_INET, SOCK_STREAM, 0}},
    {"connect", BROKER | WORKER, SYS_connect, {BAD}},
    {"a program", BROKER | WORKER, SYS_execve, {0}},
    {"a file", BROKER, SYS_openat, {AT_FDCWD, 0, 0}},
    {"a debugger", BROKER | WORKER, SYS_ptrace, {0}},
    {"another's memory", BROKER | WORKER, SYS_process_vm_readv, {1, 0, 0, 0, 0, 0}},
    {"a signal", BROKER | WORKER, SYS_kill, {1, 0}},
    {"a signal to a thread", BROKER | WORKER, SYS_tgkill, {1, 1, 0}},
    {"a signal with a value", BROKER | WORKER, SYS_rt_sigqueueinfo, {1, 0, 0}},
    {"another's limits", BROKER | WORKER, SYS_prlimit64, {1, RLIMIT_CORE, 0, 0}},
    {"renaming", BROKER | WORKER, SYS_renameat2, {BAD}},
    {"a mode", BROKER | WORKER, SYS_fchmodat, {BAD}},
    {"a mode, with flags", BROKER | WORKER, 452, {BAD}},
    {"another's descriptor", BROKER | WORKER, 438, {BAD}},
    {"a name space", BROKER | WORKER, SYS_unshare, {0}},
    {"a mount", BROKER | WORKER, SYS_mount, {0}},
    {"a ring of calls", BROKER | WORKER, 425, {1, 0}},
    {"calls of a ring", BROKER | WORKER, 426, {BAD}},
    {"a filter for the kernel", BROKER | WORKER, SYS_bpf, {BAD}},
    {"a user", BROKER | WORKER, SYS_setuid, {0}},
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

/* In a process of its own: its exit status, 0 if all is as it should be, else which attempt is not. */
static int try_all(int who)
{
    char why[TD_TEXT_BYTES] = "";
    void *memory;

    td_confine_process();
    if ((who == BROKER ? td_confine_broker : td_confine_worker)(why, sizeof why) != TANDEM_OK)
        return NOTHING;
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
        if (attempts[i].refused_to & who && (call(&attempts[i]) >= 0 || errno != EPERM))
            return 1 + (int)i;
    memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || munmap(memory, 4096) || syscall(SYS_tgkill, getpid(), getpid(), 0))
        return 70; /* what it needs */
    return 0;
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
        fail_msg("%s: %s", who == BROKER ? "broker" : "worker",
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_broker_is_confined),
        cmocka_unit_test(the_worker_is_confined),
        cmocka_unit_test(files_stay),
    };

    return cmocka_run_group_tests_name("confinement", tests, NULL, NULL);
}
