/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "interop/os/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "interop/os/descriptor.h"

uint64_t td_page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t td_machine_bytes(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

void *td_aligned_alloc(size_t alignment, size_t bytes)
{
    return aligned_alloc(alignment, bytes);
}

void td_aligned_free(void *memory)
{
    free(memory);
}

/* msync() tells of holes; MS_ASYNC does nothing else. */
bool td_is_mapped(const void *begin, uint64_t bytes)
{
    const uint64_t page = td_page_bytes(), first = (uintptr_t)begin / page * page, end = (uintptr_t)begin + bytes;

    return msync((void *)(uintptr_t)first, end - first, MS_ASYNC) == 0 || errno != ENOMEM;
}

enum { MOST_PAGE_BYTES = 65536 /* no machine has larger ones */ };

/* Of whole pages; false: the kernel keeps some, as where they are locked. */
static bool drop(uint64_t first, uint64_t end)
{
    const uint64_t piece = 8 << 20;

    for (uint64_t at = first; at < end; at += piece)
        if (madvise((void *)(uintptr_t)at, end - at < piece ? end - at : piece, MADV_DONTNEED))
            return false;
    return true;
}

void td_drop_pages(void *begin, uint64_t bytes)
{
    const uint64_t at = (uintptr_t)begin;

    drop(td_align_up(at, MOST_PAGE_BYTES), (at + bytes) / MOST_PAGE_BYTES * MOST_PAGE_BYTES);
}

void td_zero_pages(void *begin, uint64_t bytes)
{
    const uint64_t at = (uintptr_t)begin, first = td_align_up(at, MOST_PAGE_BYTES);
    const uint64_t end = (at + bytes) / MOST_PAGE_BYTES * MOST_PAGE_BYTES;

    if (first >= end || !drop(first, end)) {
        memset(begin, 0, (size_t)bytes);
        return;
    }
    memset(begin, 0, (size_t)(first - at));
    memset((void *)(uintptr_t)end, 0, (size_t)(at + bytes - end));
}

void td_prefer_large_pages(void *begin, uint64_t bytes)
{
    madvise(begin, (size_t)(bytes / TD_LARGE_PAGE_BYTES * TD_LARGE_PAGE_BYTES), MADV_HUGEPAGE);
}

enum { SEALS = F_SEAL_SHRINK, SEALS_FIXED = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* What this machine could still give, in bytes; UINT64_MAX if it does not say. */
static uint64_t memory_left(void)
{
    const int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    char text[1024];
    const ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    const char *line;
    uint64_t kib;

    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = 0;
    line = strstr(text, "MemAvailable:");
    return line && sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1 ? kib * 1024 : UINT64_MAX;
}

/* A number that is none of the three of standard input, output and error. */
static void leave_standard(int *fd)
{
    int low = *fd;

    *fd = td_fd_dup(low);
    td_fd_close(&low);
}

tandem_status td_memfd_make(const char *name, uint64_t bytes, bool fixed, int *fd, char *why, size_t why_bytes)
{
    const char *call = "memfd_create";
    uint64_t left;
    int error = 0;

    *fd = -1;
    if (!bytes || bytes > INT64_MAX || bytes % TD_MEMFD_PAGE_BYTES)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "a memfd of %" PRIu64 " bytes: must be whole pages of %d", bytes,
                       TD_MEMFD_PAGE_BYTES);
    /* A memfd has no limit of its own: the kernel would kill processes to make room before it said no. */
    left = memory_left();
    if (bytes > left)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "a memfd of %" PRIu64 " bytes: %" PRIu64 " are left", bytes,
                       left);
    *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd >= 0 && *fd <= STDERR_FILENO)
        leave_standard(fd);
    if (*fd < 0) {
        error = errno;
    } else {
        call = "posix_fallocate";
        do
            error = posix_fallocate(*fd, 0, (off_t)bytes);
        while (error == EINTR);
    }
    if (!error && !fcntl(*fd, F_ADD_SEALS, fixed ? SEALS_FIXED : SEALS))
        return TANDEM_OK;
    if (!error) {
        call = "fcntl";
        error = errno;
    }
    td_fd_close(fd);
    return td_fail(why, why_bytes,
                   error == ENOSPC || error == ENOMEM || error == EMFILE || error == EFBIG ? TANDEM_ERROR_NOMEM
                                                                                           : TANDEM_ERROR_IO,
                   "a memfd of %" PRIu64 " bytes: %s: %s", bytes, call, strerror(error));
}

static bool write_all(int fd, const char *from, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes;) {
        const ssize_t put = pwrite(fd, from + at, (size_t)(bytes - at), (off_t)at);

        if (put <= 0 && errno != EINTR)
            return false;
        at += put > 0 ? (uint64_t)put : 0;
    }
    return true;
}

tandem_status td_memfd_make_sparse(const char *name, const void *begin, uint64_t begin_bytes, uint64_t bytes, int *fd, char *why,
                                   size_t why_bytes)
{
    *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd >= 0 && *fd <= STDERR_FILENO)
        leave_standard(fd);
    if (*fd >= 0 && write_all(*fd, begin, begin_bytes) && !ftruncate(*fd, (off_t)bytes) &&
        !fcntl(*fd, F_ADD_SEALS, SEALS_FIXED | F_SEAL_WRITE))
        return TANDEM_OK;
    td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "a memfd of %" PRIu64 " bytes cannot be made: %s", begin_bytes,
            strerror(errno));
    td_fd_close(fd);
    return TANDEM_ERROR_NOMEM;
}

/* Whether it is a memfd with all of these seals. */
static tandem_status check_memfd(int fd, int wanted, struct stat *st, int *seals, char *why, size_t why_bytes)
{
    struct statfs fs;

    *seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, st) || fstatfs(fd, &fs))
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "descriptor cannot be looked at: %s", strerror(errno));
    if (!S_ISREG(st->st_mode) || (unsigned long)fs.f_type != TMPFS_MAGIC || *seals < 0)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                       "descriptor is no memfd: mode 0%o on a file system of type 0x%lx", st->st_mode,
                       (unsigned long)fs.f_type);
    if ((*seals & wanted) != wanted)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "descriptor has seals 0x%x, must have 0x%x", (unsigned)*seals,
                       (unsigned)wanted);
    return TANDEM_OK;
}

static tandem_status check_allocated(const struct stat *st, char *why, size_t why_bytes)
{
    const uint64_t has = (uint64_t)st->st_blocks * 512, bytes = (uint64_t)st->st_size;

    return has >= bytes ? TANDEM_OK
                        : td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                                  "descriptor has %" PRIu64 " of its %" PRIu64 " bytes, must be allocated", has, bytes);
}

tandem_status td_memfd_check(int fd, uint64_t bytes, bool fixed, char *why, size_t why_bytes)
{
    const int flags = fcntl(fd, F_GETFL);
    struct stat st;
    int seals;
    const tandem_status status = check_memfd(fd, fixed ? SEALS_FIXED : SEALS, &st, &seals, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    if ((uint64_t)st.st_size != bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "descriptor is %" PRIu64 " bytes long, must be %" PRIu64,
                       (uint64_t)st.st_size, bytes);
    if (flags & O_PATH || (flags & O_ACCMODE) != O_RDWR)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "descriptor has flags 0%o, must be open to read and write",
                       (unsigned)flags);
    if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "descriptor has seals 0x%x, must have neither WRITE nor FUTURE_WRITE",
                       (unsigned)seals);
    return check_allocated(&st, why, why_bytes);
}

tandem_status td_memfd_check_whole(int fd, uint64_t most_bytes, char *why, size_t why_bytes)
{
    struct stat st;
    int seals;
    const tandem_status status = check_memfd(fd, SEALS_FIXED | F_SEAL_WRITE, &st, &seals, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    if ((uint64_t)st.st_size > most_bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "descriptor is %" PRIu64 " bytes long, must be at most %" PRIu64,
                       (uint64_t)st.st_size, most_bytes);
    return check_allocated(&st, why, why_bytes);
}

tandem_status td_memfd_map(int fd, uint64_t bytes, void **memory, char *why, size_t why_bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    *memory = p == MAP_FAILED ? NULL : p;
    return *memory ? TANDEM_OK
                   : td_fail(why, why_bytes, errno == ENOMEM ? TANDEM_ERROR_NOMEM : TANDEM_ERROR_IO,
                             "mmap of %" PRIu64 " bytes: %s", bytes, strerror(errno));
}

tandem_status td_memfd_map_part(int fd, uint64_t offset, uint64_t bytes, void **memory, char *why, size_t why_bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);

    *memory = p == MAP_FAILED ? NULL : p;
    if (!*memory)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "%" PRIu64 " bytes cannot be mapped: %s", bytes, strerror(errno));
    madvise(p, bytes, MADV_DONTDUMP);
    return TANDEM_OK;
}

tandem_status td_opaque_check(int fd, char *why, size_t why_bytes)
{
    const int flags = fcntl(fd, F_GETFL);
    struct statfs fs;
    struct stat st;

    if (flags < 0 || fstat(fd, &st) || fstatfs(fd, &fs))
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "descriptor cannot be looked at: %s", strerror(errno));
    /* NVIDIA exports its device file, Mesa's drivers dma-bufs, lavapipe memfds; no driver what a disk or a peer serves. */
    if (!(flags & O_PATH) &&
        (S_ISCHR(st.st_mode) || !(st.st_mode & S_IFMT) ||
         (S_ISREG(st.st_mode) &&
          ((unsigned long)fs.f_type == TMPFS_MAGIC || (unsigned long)fs.f_type == DMA_BUF_MAGIC ||
           (unsigned long)fs.f_type == ANON_INODE_FS_MAGIC))))
        return TANDEM_OK;
    return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                   "descriptor is nothing that a driver exports: mode 0%o on a file system of type 0x%lx, flags 0%o",
                   st.st_mode, (unsigned long)fs.f_type, (unsigned)flags);
}

void td_unmap(void *memory, uint64_t bytes)
{
    munmap(memory, bytes);
}
