/* What a process gives up.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine_plugin/daemon/daemon.h"

void td_confine_process(void)
{
    const struct rlimit none = {0, 0};

    prctl(PR_SET_NO_NEW_PRIVS, 1ul, 0ul, 0ul, 0ul);
    prctl(PR_SET_DUMPABLE, 0ul, 0ul, 0ul, 0ul);
    setrlimit(RLIMIT_CORE, &none);
}

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#if !defined(ARCH) || defined(__SANITIZE_ADDRESS__)
/* AddressSanitizer needs calls of its own, some of them only to report. */
tandem_status td_confine_broker(char *why, size_t why_bytes)
{
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "this build does not filter system calls");
}
#else

/* All that the broker does once it is up: no file is opened, no program started, no socket made. */
static const int allowed[] = {
    SYS_read, SYS_write, SYS_close, SYS_ppoll, SYS_recvmsg, SYS_sendmsg, SYS_sendto, SYS_recvfrom, SYS_accept4,
    SYS_getsockopt, SYS_fcntl, SYS_fstat, SYS_newfstatat, SYS_fstatfs, SYS_lseek, SYS_munmap, SYS_mremap, SYS_madvise,
    SYS_brk, SYS_memfd_create, SYS_fallocate, SYS_futex, SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep,
    SYS_getpid, SYS_gettid, SYS_tgkill, SYS_exit, SYS_exit_group, SYS_rt_sigprocmask, SYS_rt_sigreturn,
    SYS_rt_sigaction, SYS_sched_yield, SYS_restart_syscall, SYS_pidfd_open, SYS_unlinkat, SYS_getrandom,
    SYS_set_robust_list, SYS_membarrier, SYS_socketpair, SYS_shutdown,
#ifdef SYS_futex_waitv
    SYS_futex_waitv,
#endif
#ifdef SYS_poll
    SYS_poll, SYS_unlink,
#endif
};
/* These only as long as what they map cannot be executed. */
static const int mapping[] = {SYS_mmap, SYS_mprotect};

enum { ALLOWED = sizeof allowed / sizeof *allowed, MAPPING = sizeof mapping / sizeof *mapping };

tandem_status td_confine_broker(char *why, size_t why_bytes)
{
    struct sock_filter program[8 + 2 * ALLOWED + 5 * MAPPING];
    struct sock_fprog filter = {.filter = program};
    unsigned short n = 0;

#define LOAD(at) program[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)(at))
#define SAY(verdict) program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict)
#define UNLESS_EQUAL_SKIP(value, skipped) \
    program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)(value), 0, skipped)
#define IF_ANY_SKIP(bits, skipped) \
    program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (unsigned)(bits), skipped, 0)
    LOAD(offsetof(struct seccomp_data, arch));
    UNLESS_EQUAL_SKIP(ARCH, 1);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, 1);
    SAY(SECCOMP_RET_KILL_PROCESS);
    LOAD(offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < ALLOWED; i++) {
        UNLESS_EQUAL_SKIP(allowed[i], 1);
        SAY(SECCOMP_RET_ALLOW);
    }
    for (unsigned i = 0; i < MAPPING; i++) {
        UNLESS_EQUAL_SKIP(mapping[i], 4);
        LOAD(offsetof(struct seccomp_data, args[2]));
        IF_ANY_SKIP(PROT_EXEC, 1);
        SAY(SECCOMP_RET_ALLOW);
        SAY(SECCOMP_RET_ERRNO | EPERM);
    }
    SAY(SECCOMP_RET_ERRNO | EPERM);
    filter.len = n;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1ul, 0ul, 0ul, 0ul) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "seccomp: %s", strerror(errno));
    return TANDEM_OK;
}
#endif
