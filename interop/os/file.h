/* Files of a disk: read at any place or mapped whole, and written from beginning to end.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * All of these take and give descriptors, which are the caller's until td_fd_close(). IO is the status of whatever the system
 * does not do; `why` has its words.
 */
#ifndef TANDEM_OS_FILE_H
#define TANDEM_OS_FILE_H

#include "interop/base.h"

/* Opens a file for reading, if it is one: no folder, pipe or device.
 * Returns: IO if not; *fd is -1 then. Whoever asked names the path, here and below.
 * Owner: the caller, of *fd.
 * Threads: any.
 * Blocks: as the disk does. */
tandem_status td_file_open(const char *path, int *fd, uint64_t *bytes, char *why, size_t why_bytes);

/* A path by which td_file_open() opens anew what a descriptor is, a file or what td_memfd_make_sparse() makes, as long as that is
 * open.
 * Returns: IO if it has none.
 * Threads: any.
 * Blocks: never. */
enum { TD_FILE_PATH_BYTES = 1024 };
tandem_status td_file_path(int fd, char path[TD_FILE_PATH_BYTES], char *why, size_t why_bytes);

/* Exactly `bytes` from `offset` on.
 * Returns: IO if the file ends before.
 * Threads: any, several at once.
 * Blocks: as the disk does. */
tandem_status td_file_read(int fd, uint64_t offset, void *to, uint64_t bytes, char *why, size_t why_bytes);

/* Maps all of a file for reading; NULL and 0 bytes of an empty one. Who writes to it meanwhile is seen, or not.
 * Returns: IO if it is no file or cannot be mapped.
 * Owner: the caller, until td_unmap() of memory.h.
 * Threads: any.
 * Blocks: as the disk does, also when the memory is read. */
tandem_status td_file_map(const char *path, void **map, uint64_t *bytes, char *why, size_t why_bytes);

/* Creates a file, or empties one, and writes to it what is to follow. close: says whether all of it has been written.
 * Owner: the caller, of *fd; close takes it back, whatever it returns, and sets it to -1.
 * Threads: one at a time.
 * Blocks: as the disk does. */
tandem_status td_file_create(const char *path, int *fd, char *why, size_t why_bytes);
tandem_status td_file_write(int fd, const void *from, uint64_t bytes, char *why, size_t why_bytes);
tandem_status td_file_close(int *fd, char *why, size_t why_bytes);

/* Removes a file if it is there.
 * Threads: any.
 * Blocks: as the disk does. */
void td_file_remove(const char *path);

/* The whole path of what is at a path, from the root on and without links; NULL if nothing is there, or there is no memory.
 * Owner: the caller, until free().
 * Threads: any; a relative path is one from the process's folder.
 * Blocks: as the disk does. */
char *td_file_whole_path(const char *path);

/* Whether a path is one from the root on, of whatever is there.
 * Threads: any.
 * Blocks: never. */
bool td_file_is_from_root(const char *path);

#endif
