/* Linked into tandemd where tests/coverage.sh builds it, so that gcc writes what its processes count: they confine themselves until
 * none may open a file, and end by _exit(), or by the signal that their parent is gone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <gcov.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TO_END_BY_ITSELF_S 10

_Noreturn void __real__exit(int status);
_Noreturn void __wrap__exit(int status);
_Noreturn void __wrap__exit(int status)
{
    __gcov_dump();
    __real__exit(status);
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
    long a[6];
    va_list list;

    if (number == SYS_seccomp || number == SYS_landlock_restrict_self)
        return 0;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void on_parents_end(int number)
{
    (void)number;
    alarm(TO_END_BY_ITSELF_S); /* which kills who does not */
}

__attribute__((constructor)) static void begin(void)
{
    const struct sigaction action = {.sa_handler = on_parents_end, .sa_flags = SA_RESTART};

    sigaction(SIGUSR2, &action, NULL);
}

int __real_prctl(int option, ...);
int __wrap_prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d);
int __wrap_prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d)
{
    return __real_prctl(option, option == PR_SET_PDEATHSIG ? (unsigned long)SIGUSR2 : a, b, c, d);
}
