/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/daemon/fuzz_server/world.h"

world w;

int listener, metrics, fds[FD_KINDS];
struct sockaddr_un at, metrics_at;
socklen_t at_bytes, metrics_at_bytes;
td_shared_counter *counters[COUNTERS];
td_wire_identity identity;

uint64_t now_ns;
uint64_t __wrap_td_now_ns(void);
uint64_t __wrap_td_now_ns(void)
{
    return now_ns;
}

uint32_t td_say_level = TD_LOG_DEBUG;
void td_say(td_log_level level, const char *format, ...)
{
    static int loud = -1;
    char line[TD_TEXT_BYTES + 200];
    va_list list;

    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (loud < 0)
        loud = getenv("TANDEM_FUZZ_LOG") != NULL;
    if (loud)
        fprintf(stderr, "%d %s\n", (int)level, line);
}

void broken(const char *what)
{
    fprintf(stderr, "fuzz_server: broken promise: %s\n", what);
    abort();
}

void need(bool is, const char *what)
{
    if (!is)
        broken(what);
}

bool td_log_begin(void) { return true; }
void td_log_forget(void) {}

/* The input. */

uint8_t take(void)
{
    if (!w.left)
        return 0;
    w.left--;
    return *w.data++;
}

void take_bytes(void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = take();
}

uint32_t take_number(size_t bytes)
{
    uint32_t number = 0;

    take_bytes(&number, bytes);
    return number;
}

void twist(void *bytes, size_t length)
{
    static const uint64_t edges[] = {0,    1,          2,          63,         64,         65,         255,       256,
                                     4096, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32, 1ull << 63, UINT64_MAX};
    enum { EDGES = sizeof edges / sizeof *edges };

    for (uint8_t n = take() & 3; n; n--) {
        const uint8_t how = take();
        const size_t width = (size_t)1 << (how & 3), place = take_number(2) % length / width * width;
        uint64_t value;

        if (how >> 2 < EDGES)
            value = edges[how >> 2];
        else
            take_bytes(&value, sizeof value);
        if (place + width <= length)
            memcpy((char *)bytes + place, &value, width);
    }
}

/* What is made once. */

static int make_memfd(off_t bytes, int seals, bool allocated)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    need(fd >= 0 && !ftruncate(fd, bytes) && (!allocated || !posix_fallocate(fd, 0, bytes)) &&
             !fcntl(fd, F_ADD_SEALS, seals),
         "no memfd for the fuzzer itself");
    return fd;
}

static int listen_somewhere(int type, struct sockaddr_un *where, socklen_t *bytes)
{
    const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *where = (struct sockaddr_un){.sun_family = AF_UNIX};
    *bytes = sizeof *where;
    need(fd >= 0 && !bind(fd, (const struct sockaddr *)where, sizeof where->sun_family) && !listen(fd, 64) &&
             !getsockname(fd, (struct sockaddr *)where, bytes),
         "no socket for the fuzzer itself");
    return fd;
}

void make_once(void)
{
    static bool made;
    char path[40];
    int ends[2];

    if (made)
        return;
    made = true;
    signal(SIGPIPE, SIG_IGN);
    listener = listen_somewhere(SOCK_SEQPACKET, &at, &at_bytes);
    metrics = listen_somewhere(SOCK_STREAM, &metrics_at, &metrics_at_bytes);
    td_wire_identify(&identity);
    fds[FD_BUFFER] = make_memfd(BUFFER_BYTES, F_SEAL_SHRINK, true);
    for (int i = 0; i < COUNTERS; i++) {
        fds[FD_COUNTER + i] = make_memfd(TD_WIRE_PAGE_BYTES, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, true);
        counters[i] = mmap(NULL, TD_WIRE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[FD_COUNTER + i], 0);
        need(counters[i] != MAP_FAILED, "no counter for the fuzzer itself");
    }
    fds[FD_UNSEALED] = make_memfd(BUFFER_BYTES, 0, true);
    fds[FD_SHORT] = make_memfd(TD_WIRE_PAGE_BYTES - 1, F_SEAL_SHRINK, true);
    fds[FD_HOLES] = make_memfd(BUFFER_BYTES, F_SEAL_SHRINK, false);
    fds[FD_NO_WRITE] = make_memfd(BUFFER_BYTES, F_SEAL_SHRINK | F_SEAL_WRITE, true);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fds[FD_BUFFER]);
    fds[FD_READ_ONLY] = open(path, O_RDONLY | O_CLOEXEC);
    fds[FD_PATH] = open("/tmp", O_PATH | O_CLOEXEC);
    need(!pipe2(ends, O_CLOEXEC), "no pipe for the fuzzer itself");
    fds[FD_PIPE] = ends[0];
    need(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), "no sockets for the fuzzer itself");
    fds[FD_SOCKET] = ends[0];
    fds[FD_FOLDER] = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fds[FD_NULL] = open("/dev/null", O_RDWR | O_CLOEXEC);
    fds[FD_EVENT] = eventfd(0, EFD_CLOEXEC);
    fds[FD_EPOLL] = epoll_create1(EPOLL_CLOEXEC);
    fds[FD_LISTENER] = listener;
}

int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count;
}
