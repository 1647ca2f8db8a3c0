/* What a process gives up.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#if __has_include(<linux/landlock.h>)
#include <linux/landlock.h>
#endif
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine_plugin/daemon/confine.h"
#include "interop/wire/conn.h"

void td_confine_process(void)
{
    const struct rlimit none = {0, 0};

    prctl(PR_SET_NO_NEW_PRIVS, 1ul, 0ul, 0ul, 0ul);
#ifndef __SANITIZE_ADDRESS__ /* which looks for leaks as a debugger */
    prctl(PR_SET_DUMPABLE, 0ul, 0ul, 0ul, 0ul);
#endif
    setrlimit(RLIMIT_CORE, &none);
}

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#if __has_include(<linux/landlock.h>) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void td_confine_files(const char *socket_path)
{
    const struct landlock_ruleset_attr all = {.handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_SYM * 2 - 1};
    struct landlock_path_beneath_attr folder = {.allowed_access = LANDLOCK_ACCESS_FS_REMOVE_FILE};
    const char *slash = strrchr(socket_path, '/');
    int rules = (int)syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0u);
    char path[TD_CONN_PATH_BYTES + 1];

    if (rules < 0)
        return;
    snprintf(path, sizeof path, "%.*s", slash ? (int)(slash - socket_path + 1) : 1, slash ? socket_path : ".");
    folder.parent_fd = open(path, O_PATH | O_CLOEXEC);
    if (!*socket_path || (folder.parent_fd >= 0 &&
                          !syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &folder, 0u)))
        syscall(SYS_landlock_restrict_self, rules, 0u);
    if (folder.parent_fd >= 0)
        close(folder.parent_fd);
    close(rules);
}
#else
void td_confine_files(const char *socket_path)
{
    (void)socket_path;
}
#endif

#if !defined(ARCH) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/* Sanitizers need calls of its own, some of them only to report. */
tandem_status td_confine_broker(char *why, size_t why_bytes)
{
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "this build does not filter system calls");
}

tandem_status td_confine_launcher(char *why, size_t why_bytes)
{
    return td_confine_broker(why, why_bytes);
}

tandem_status td_confine_worker(char *why, size_t why_bytes)
{
    return td_confine_broker(why, why_bytes);
}
#else

/* All that the broker does once it is up: no file is opened, no program started. */
static const int needed[] = {
    SYS_read, SYS_write, SYS_close, SYS_ppoll, SYS_recvmsg, SYS_sendmsg, SYS_sendto, SYS_recvfrom, SYS_accept4,
    SYS_getsockopt, SYS_fcntl, SYS_fstat, SYS_newfstatat, SYS_fstatfs, SYS_lseek, SYS_munmap, SYS_mremap, SYS_madvise,
    SYS_brk, SYS_memfd_create, SYS_fallocate, SYS_futex, SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep,
    SYS_getpid, SYS_gettid, SYS_exit, SYS_exit_group, SYS_rt_sigprocmask, SYS_rt_sigreturn,
    SYS_rt_sigaction, SYS_sched_yield, SYS_restart_syscall, SYS_pidfd_open, SYS_unlinkat, SYS_getrandom,
    SYS_socketpair, SYS_shutdown,
#ifdef SYS_futex_waitv
    SYS_futex_waitv,
#endif
#ifdef SYS_poll
    SYS_poll, SYS_unlink,
#endif
};
/* These only as long as what they map cannot be executed, */
static const int mapping[] = {SYS_mmap, SYS_mprotect};
/* and these of no other process: the broker has but the first. */
static const int own[] = {SYS_tgkill, SYS_prlimit64};

/* What neither the launcher needs nor a worker, not even while its driver starts (filters are inherited): other processes'
 * insides, other users' rights, what the whole machine is made of. */
static const int never[] = {
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot,
    SYS_setns, SYS_unshare, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_keyctl, SYS_add_key, SYS_request_key,
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct,
    SYS_quotactl, SYS_mknodat, SYS_fchown, SYS_fchownat, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_setuid,
    SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setgroups, SYS_capset, SYS_pidfd_open,
    SYS_pidfd_send_signal, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_kcmp, SYS_fanotify_init,
    SYS_open_by_handle_at, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, SYS_settimeofday, SYS_clock_settime,
    SYS_clock_adjtime, SYS_adjtimex, SYS_sethostname, SYS_setdomainname, SYS_syslog, SYS_vhangup, SYS_setfsuid,
    SYS_setfsgid, SYS_personality,
#ifdef SYS_io_uring_setup /* by which all of these could be had */
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
#endif
#ifdef SYS_open_tree
    SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick,
#endif
    438, 440, 442, 448, /* pidfd_getfd, process_madvise, mount_setattr, process_mrelease: not in all headers, and the same
                         * everywhere */
#ifdef SYS_iopl
    SYS_iopl, SYS_ioperm,
#endif
#ifdef SYS_open
    SYS_mknod, SYS_chown, SYS_lchown,
#endif
};
/* What a worker does not need once its driver is up: other programs and processes, which the launcher starts and ends; the
 * network, where a driver looks for a server of its own; files' names and modes, by which it keeps what it compiled, and
 * the launcher lets others connect. */
static const int afterwards[] = {
    SYS_execve, SYS_execveat, SYS_kill, SYS_tkill, SYS_socket, SYS_connect, SYS_bind, SYS_listen, SYS_accept,
    SYS_accept4, SYS_unlinkat, SYS_renameat2, SYS_linkat, SYS_symlinkat, SYS_mkdirat, SYS_fchmod, SYS_fchmodat,
    SYS_truncate,
    452, /* fchmodat2 */
#ifdef SYS_renameat
    SYS_renameat,
#endif
#ifdef SYS_open
    SYS_unlink, SYS_rename, SYS_link, SYS_symlink, SYS_mkdir, SYS_rmdir, SYS_chmod, SYS_fork, SYS_vfork,
#endif
};

enum {
    NEEDED = sizeof needed / sizeof *needed,
    MAPPING = sizeof mapping / sizeof *mapping,
    OWN = sizeof own / sizeof *own,
    NEVER = sizeof never / sizeof *never,
    AFTERWARDS = sizeof afterwards / sizeof *afterwards,
    MOST = 8 + 2 * (NEEDED > NEVER + AFTERWARDS ? NEEDED : NEVER + AFTERWARDS) + 5 * MAPPING + 6 * OWN
};

typedef struct program {
    struct sock_filter steps[MOST];
    unsigned short count;
} program;

static void add(program *p, struct sock_filter step)
{
    p->steps[p->count++] = step;
}

static void load(program *p, size_t at)
{
    add(p, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)at));
}

static void say(program *p, unsigned verdict)
{
    add(p, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict));
}

static void skip_unless(program *p, unsigned value, unsigned char steps)
{
    add(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, steps));
}

/* Ends with the call's number at hand. */
static void begin(program *p)
{
    load(p, offsetof(struct seccomp_data, arch));
    add(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0));
    say(p, SECCOMP_RET_KILL_PROCESS);
    load(p, offsetof(struct seccomp_data, nr));
}

/* Of this process, by its number or 0: the first `count`. */
static void allow_own(program *p, int count)
{
    for (int i = 0; i < count; i++) {
        skip_unless(p, (unsigned)own[i], 5);
        load(p, offsetof(struct seccomp_data, args[0]));
        add(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0));
        skip_unless(p, (unsigned)getpid(), 1);
        say(p, SECCOMP_RET_ALLOW);
        say(p, SECCOMP_RET_ERRNO | EPERM);
    }
}

static void refuse(program *p, const int *calls, int count)
{
    for (int i = 0; i < count; i++) {
        skip_unless(p, (unsigned)calls[i], 1);
        say(p, SECCOMP_RET_ERRNO | EPERM);
    }
}

static void begin_refusals(program *p)
{
    begin(p);
#ifdef __x86_64__
    add(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1)); /* the same calls as of x32 */
    say(p, SECCOMP_RET_ERRNO | EPERM);
#endif
    refuse(p, never, NEVER);
}

static tandem_status install(program *p, char *why, size_t why_bytes)
{
    const struct sock_fprog filter = {p->count, p->steps};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1ul, 0ul, 0ul, 0ul) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "seccomp: %s", strerror(errno));
    return TANDEM_OK;
}

tandem_status td_confine_broker(char *why, size_t why_bytes)
{
    program p = {.count = 0};

    begin(&p);
    for (int i = 0; i < NEEDED; i++) {
        skip_unless(&p, (unsigned)needed[i], 1);
        say(&p, SECCOMP_RET_ALLOW);
    }
    allow_own(&p, 1);
    for (int i = 0; i < MAPPING; i++) {
        skip_unless(&p, (unsigned)mapping[i], 4);
        load(&p, offsetof(struct seccomp_data, args[2]));
        add(&p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0));
        say(&p, SECCOMP_RET_ALLOW);
        say(&p, SECCOMP_RET_ERRNO | EPERM);
    }
    say(&p, SECCOMP_RET_ERRNO | EPERM);
    return install(&p, why, why_bytes);
}

tandem_status td_confine_launcher(char *why, size_t why_bytes)
{
    program p = {.count = 0};

    begin_refusals(&p);
    say(&p, SECCOMP_RET_ALLOW);
    return install(&p, why, why_bytes);
}

tandem_status td_confine_worker(char *why, size_t why_bytes)
{
    program p = {.count = 0};

    begin_refusals(&p);
    refuse(&p, afterwards, AFTERWARDS);
    allow_own(&p, OWN);
    say(&p, SECCOMP_RET_ALLOW);
    return install(&p, why, why_bytes);
}
#endif
