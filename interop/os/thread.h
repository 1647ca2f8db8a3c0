/* Threads: how one of ours is started, what it is called, how exactly it sleeps, and waiting until a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Threads, mutexes and conditions themselves are POSIX's, by their own names: every system that this library is meant for has
 * them (Windows by winpthreads, which comes with MinGW). Who needs them includes this file, and uses no more of them than
 * their creation, locks and signals; the rest differs and is here. A condition's clock is td_now_ns().
 */
#ifndef TANDEM_OS_THREAD_H
#define TANDEM_OS_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Starts a thread that gets none of the process's signals: those are the program's own threads'.
 * Returns: false if there is none to be had.
 * Owner: the caller, until pthread_join() or pthread_detach().
 * Threads: any.
 * Blocks: never. */
bool td_thread_start(pthread_t *thread, void *(*main)(void *), void *user);

/* What debuggers and profilers call the calling thread; at most 15 characters.
 * Threads: any.
 * Blocks: never. */
void td_thread_name(const char *name);

/* How much later than it asked the system may wake the calling thread, in nanoseconds, so as to wake several at once; 0 or
 * less if it does not say. Linux: 50 us, unless set to something else.
 * Threads: any.
 * Blocks: never. */
int td_thread_slack(void);
void td_thread_set_slack(int slack_ns);

/* From now on threads of usual priority go before the calling one, as far as the system lets it; beside them it still gets about a
 * quarter of a processor. Not less: others wait for the locks that it holds, and for its end.
 * Threads: any.
 * Blocks: never. */
void td_thread_set_low(void);

/* Makes a condition whose waits end by td_now_ns(); to be ended by pthread_cond_destroy(). False: there is no memory.
 * Threads: any.
 * Blocks: never. */
bool td_cond_make(pthread_cond_t *cond);

/* pthread_cond_wait(), which ends at `until_ns` at the latest; UINT64_MAX: whenever it is signalled.
 * Threads: who has the lock.
 * Blocks: until it is signalled, or until then. */
void td_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns);

#endif
