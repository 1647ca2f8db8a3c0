/* Descriptors: numbers that stand for what the operating system keeps for this process, such as a block of memory, an event or
 * one end of a channel, and that can be given to another process.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * On Linux they are its file descriptors, on Windows the values of handles, of which 32 bits count. Who gets a number owns it
 * until td_fd_close(); -1 is none.
 */
#ifndef TANDEM_OS_DESCRIPTOR_H
#define TANDEM_OS_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

/* Another descriptor of the same thing, which programs that this one starts do not inherit, and which is none of the three
 * of standard input, output and error.
 * Returns: -1 and errno if there is no such descriptor, or none is left.
 * Owner: the caller, of both.
 * Threads: any.
 * Blocks: never. */
int td_fd_dup(int fd);

/* Closes *fd unless it is -1, and sets it to that.
 * Owner: takes it back.
 * Threads: any.
 * Blocks: never. */
void td_fd_close(int *fd);

/* What a descriptor is, as far as that can be told without whoever made it. */
typedef enum td_fd_kind { TD_FD_FILE, TD_FD_FOLDER, TD_FD_PIPE, TD_FD_SOCKET, TD_FD_OTHER } td_fd_kind;

/* Looks at a descriptor. *bytes: how long a file is (shared memory is one, too), or something else that knows that; else 0.
 * Returns: false and errno if it is none.
 * Threads: any.
 * Blocks: never. */
bool td_fd_look(int fd, td_fd_kind *kind, uint64_t *bytes);

/* What tells a file, of a disk or in memory, from others: two descriptors of one have the same numbers. changed: when it was
 * written to last, in nanoseconds.
 * Returns: false and errno if it is no descriptor.
 * Threads: any.
 * Blocks: never. */
typedef struct td_fd_identity {
    uint64_t device, number, bytes, changed_ns;
} td_fd_identity;
bool td_fd_identify(int fd, td_fd_identity *identity);

/* How many descriptors this process may have.
 * Threads: any.
 * Blocks: never. */
uint32_t td_fd_most(void);

/* First thing in a program's main(): where standard input, output or error was not open, it is open to nothing then, so that
 * no other descriptor gets its number.
 * Returns: false if there is no nothing to open (Linux: /dev/null).
 * Threads: while there is one.
 * Blocks: never. */
bool td_fd_standard(void);

#endif
