/* SPDX-License-Identifier: Apache-2.0
 *
 * A mark is a page that the kernel wipes in a child (MADV_WIPEONFORK, from Linux 4.14 on), not a handler as of
 * pthread_atfork(), which would have to outlive a dlclose() and which clone() passes by.
 */
#define _GNU_SOURCE
#include "interop/os/process.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <unistd.h>

int32_t td_process_id(void)
{
    return getpid();
}

const char *td_process_name(void)
{
    return program_invocation_short_name;
}

uint32_t td_process_user(void)
{
    return geteuid();
}

int td_asked_make(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

td_asked td_asked_next(int fd)
{
    struct signalfd_siginfo info;

    if (read(fd, &info, sizeof info) != sizeof info)
        return TD_ASKED_NOTHING;
    return info.ssi_signo == SIGHUP ? TD_ASKED_READ : TD_ASKED_END;
}

const char *td_process_environment(const char *name)
{
    return secure_getenv(name);
}

bool td_process_mark_make(td_process_mark *mark)
{
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    uint32_t *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return false;
    *page = 1;
    *mark = (td_process_mark){.page = page, .wiped = !madvise(page, bytes, MADV_WIPEONFORK), .maker = getpid()};
    return true;
}

void td_process_mark_free(td_process_mark *mark)
{
    if (mark->page)
        munmap((void *)(uintptr_t)mark->page, (size_t)sysconf(_SC_PAGESIZE));
    *mark = (td_process_mark){0};
}
