/* This process: its number, name and user, and whether it is still the one that made something.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_OS_PROCESS_H
#define TANDEM_OS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* Its number, as other processes know it.
 * Threads: any.
 * Blocks: never. */
int32_t td_process_id(void);

/* The file name of its program, without the folder.
 * Owner: the process.
 * Threads: any.
 * Blocks: never. */
const char *td_process_name(void);

/* The number of the user with whose rights it runs; 0 is root.
 * Threads: any.
 * Blocks: never. */
uint32_t td_process_user(void);

/* What a process in the foreground is asked for from outside, by a descriptor that becomes readable then: to end, or to read again
 * what it goes by. (Linux: SIGTERM and SIGINT, SIGHUP. Windows: Ctrl-C and its like, the end of the session.) From make() on, which
 * comes before the first thread, nothing of it ends the process.
 * Returns: -1 if there is none to be had.
 * Owner: the caller, until td_fd_close().
 * Threads: one.
 * Blocks: never. */
typedef enum td_asked { TD_ASKED_NOTHING, TD_ASKED_END, TD_ASKED_READ } td_asked;
int td_asked_make(void);
td_asked td_asked_next(int fd);

/* What a name stands for in its environment; NULL if it is not there, and where the process has more rights than its user
 * (setuid), who may have set it.
 * Owner: the process.
 * Threads: while none changes the environment.
 * Blocks: never. */
const char *td_process_environment(const char *name);

/* Tells a process from the children that fork() makes of it, which have copies of all that it has in memory: one load,
 * where asking for the process's number is a system call of 60 ns or more. */
typedef struct td_process_mark {
    const volatile uint32_t *page; /* 1 in the process that made it, and in a child 0, */
    bool wiped;                    /* where the kernel sees to that */
    int32_t maker;
} td_process_mark;

/* Makes a mark of this process.
 * Returns: false if there is no memory.
 * Owner: the caller, until td_process_mark_free().
 * Threads: any.
 * Blocks: never. */
bool td_process_mark_make(td_process_mark *mark);

/* Whether this process made it. Where there is no fork() each did.
 * Threads: any.
 * Blocks: never. */
static inline bool td_process_mark_is_here(const td_process_mark *mark)
{
    return *mark->page && (mark->wiped || mark->maker == td_process_id());
}

/* Accepts a zeroed mark, and leaves one.
 * Owner: takes it back.
 * Threads: any.
 * Blocks: never. */
void td_process_mark_free(td_process_mark *mark);

#endif
