/* Memory: pages, what is mapped where, and blocks that several processes share through a descriptor.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_OS_MEMORY_H
#define TANDEM_OS_MEMORY_H

#include "interop/base.h"

/* The bytes of a page, which all mappings begin on; of the machine's memory.
 * Threads: any.
 * Blocks: never. */
uint64_t td_page_bytes(void);
uint64_t td_machine_bytes(void);

/* malloc() at multiples of a power of two, as vectors are read from fastest; what it gives goes to td_aligned_free() alone, which
 * takes NULL, too.
 * Returns: NULL if there is no memory.
 * Owner: the caller.
 * Threads: any.
 * Blocks: never. */
void *td_aligned_alloc(size_t alignment, size_t bytes);
void td_aligned_free(void *memory);

/* Whether all of these bytes are mapped into this process, if only for reading. Others may unmap them right afterwards.
 * Threads: any.
 * Blocks: never. */
bool td_is_mapped(const void *begin, uint64_t bytes);

/* Gives the pages within these bytes back, whose content is lost: they stay mapped, and are zero when they are used again.
 * To unmap much at once holds up whoever maps something meanwhile, for a third of a second per GiB; this goes a few pages at
 * a time, and what is unmapped after it does not.
 * Threads: any; nobody uses them.
 * Blocks: for as long as that takes. */
void td_drop_pages(void *begin, uint64_t bytes);

/* Makes bytes of an allocator's memory zero. Whole pages are given back for that, not written: so who needs much gets it at once,
 * and it takes room only where it is used. (Windows: all is written.)
 * Threads: any; nobody uses them.
 * Blocks: for as long as that takes. */
void td_zero_pages(void *begin, uint64_t bytes);

/* Of memory from an allocator, much of it, aligned to TD_LARGE_PAGE_BYTES: asks for pages of that size where nothing was written
 * yet. What is read once from end to end, as weights are, comes half again as fast, as a processor fetches ahead within a
 * page. Where there are none, nothing changes.
 * Threads: any; nobody uses them.
 * Blocks: never. */
enum { TD_LARGE_PAGE_BYTES = 2 << 20 };
void td_prefer_large_pages(void *begin, uint64_t bytes);

/* Shared memory. Its length is a multiple of this, whatever the machine's pages are. */
enum { TD_MEMFD_PAGE_BYTES = 4096 };

/* Makes so many bytes, zeroed and all there from the start: who maps them gets no SIGBUS later because the machine has no memory
 * left. They never shrink, so that no peer can take them away either; `fixed`: nor do they grow. (Linux: a memfd, sealed.)
 * Returns: NOMEM if the machine has not so much left, or no descriptor.
 * Owner: the caller, of *fd, until td_fd_close(); the memory lives while anybody has a descriptor or a mapping of it.
 * Threads: any.
 * Blocks: while it is allocated. */
tandem_status td_memfd_make(const char *name, uint64_t bytes, bool fixed, int *fd, char *why, size_t why_bytes);

/* Makes memory of so many bytes, any number, that nobody can change: it begins with a copy of `begin`, and has zeros behind that,
 * which take no memory. It is for reading, not for being mapped by who must get no SIGBUS. (Linux: a memfd, sealed. Windows: a temporary file.)
 * Returns: NOMEM if the machine has not so much left, or no descriptor.
 * Owner: the caller, of *fd, until td_fd_close().
 * Threads: any.
 * Blocks: while it is copied. */
tandem_status td_memfd_make_sparse(const char *name, const void *begin, uint64_t begin_bytes, uint64_t bytes, int *fd, char *why,
                                   size_t why_bytes);

/* Whether a descriptor, from a peer, is such memory of exactly so many bytes. Then it may be mapped.
 * Returns: PROTOCOL if not.
 * Threads: any.
 * Blocks: never. */
tandem_status td_memfd_check(int fd, uint64_t bytes, bool fixed, char *why, size_t why_bytes);

/* Whether one is what td_memfd_make_sparse() makes of nothing but `begin`, of at most so many bytes: nobody changes what is read of
 * it, and to read it takes no memory that it has not taken yet. (Windows: a file of at most that length.)
 * Returns: PROTOCOL if not.
 * Threads: any.
 * Blocks: never. */
tandem_status td_memfd_check_whole(int fd, uint64_t most_bytes, char *why, size_t why_bytes);

/* Maps its first bytes, for reading and writing, or sets *memory NULL.
 * Returns: NOMEM if there is no room, IO if it cannot be mapped.
 * Owner: the caller, until td_unmap(); *fd may be closed before.
 * Threads: any.
 * Blocks: never. */
tandem_status td_memfd_map(int fd, uint64_t bytes, void **memory, char *why, size_t why_bytes);

/* The same of bytes from an offset on, a multiple of TD_MEMFD_PAGE_BYTES; core files do not have them. */
tandem_status td_memfd_map_part(int fd, uint64_t offset, uint64_t bytes, void **memory, char *why, size_t why_bytes);

/* Whether a descriptor, from a peer, may be shown to a driver for import.
 * Returns: PROTOCOL for what no driver exports: sockets, pipes, folders, files of a disk.
 * Threads: any.
 * Blocks: never. */
tandem_status td_opaque_check(int fd, char *why, size_t why_bytes);

/* Ends a mapping of so many bytes.
 * Owner: takes it back.
 * Threads: any; nobody uses it any more.
 * Blocks: never. */
void td_unmap(void *memory, uint64_t bytes);

#endif
