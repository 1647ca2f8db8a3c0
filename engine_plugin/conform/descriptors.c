/* Descriptors that a program has from the library, or lends it: each is the program's to close, once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine_plugin/conform/conform.h"

enum { MOST = 4096 };

/* `twin` is a duplicate, by which the same open file is known again, whatever has the number by then. */
static struct lent {
    int fd, twin;
    const char *of;
    bool closed;
} lent[MOST];
static size_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t home;

static int close_really(int fd)
{
    return (int)syscall(SYS_close, fd);
}

static bool is_same_file(int a, int b)
{
    const pid_t self = getpid();

    return syscall(SYS_kcmp, self, self, KCMP_FILE, a, b) == 0;
}

static struct lent *find(int fd, bool closed)
{
    for (size_t i = count; i-- > 0;)
        if (lent[i].fd == fd && lent[i].closed == closed)
            return &lent[i];
    return NULL;
}

static void forget(struct lent *it)
{
    if (it->twin >= 0)
        close_really(it->twin);
    *it = lent[--count];
}

void conform_lend_fd(int fd, const char *of)
{
    struct lent *it;

    if (fd < 0)
        return;
    pthread_mutex_lock(&lock);
    while ((it = find(fd, true))) /* the number is another file's now */
        forget(it);
    it = find(fd, false);
    if (!it && count < MOST) {
        it = &lent[count++];
        *it = (struct lent){.fd = fd, .twin = fcntl(fd, F_DUPFD_CLOEXEC, 512), .of = of};
    }
    pthread_mutex_unlock(&lock);
}

int close(int fd)
{
    struct lent *open_one, *closed_one;
    const char *of = NULL;
    int result, error;

    if (conform_within())
        return close_really(fd);
    pthread_mutex_lock(&lock);
    open_one = find(fd, false);
    closed_one = find(fd, true);
    result = close_really(fd);
    error = errno;
    if (open_one && result == 0) {
        open_one->closed = true;
        if (open_one->twin >= 0)
            close_really(open_one->twin);
        open_one->twin = -1;
    } else if (closed_one) {
        if (result < 0 && error == EBADF)
            of = closed_one->of;
        forget(closed_one);
    }
    pthread_mutex_unlock(&lock);
    if (of)
        conform_say(CONFORM_DOUBLE_CLOSE, "close(%d): %s, is closed already: had its number been somebody else's by now, that "
                                          "were closed",
                    fd, of);
    errno = error;
    return result;
}

__attribute__((constructor)) static void begin(void)
{
    home = getpid();
}

/* What was closed otherwise, as by fclose() or dup2(), is known by its twin. */
__attribute__((destructor)) static void end(void)
{
    if (getpid() != home)
        return;
    for (size_t i = 0; i < count; i++)
        if (!lent[i].closed && fcntl(lent[i].fd, F_GETFD) >= 0 && (lent[i].twin < 0 || is_same_file(lent[i].fd, lent[i].twin)))
            conform_say(CONFORM_FD_LEAK, "descriptor %d, %s, is open at the end", lent[i].fd, lent[i].of);
}
