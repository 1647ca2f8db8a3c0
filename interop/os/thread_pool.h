/* A thread pool: a loop whose turns are computed by the caller and by threads that sleep in between.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The library lives in other people's programs: threads that spin take the cores from theirs, and threads that outlive
 * their pool run code that may be gone. So a thread that has nothing to do looks for more for TD_POOL_SPIN_NS, then
 * sleeps, and destroying a pool joins its threads. Nobody waits for a thread that has not begun: where the cores are
 * others', the caller computes the turns itself.
 */
#ifndef TANDEM_THREAD_POOL_H
#define TANDEM_THREAD_POOL_H

#include <stdint.h>

enum { TD_POOL_MOST_THREADS = 1024, TD_POOL_SPIN_NS = 50000 };

typedef struct td_thread_pool td_thread_pool;

/* One turn. worker: whose it is, below the number of threads and of turns; no two at the same time have the same. */
typedef void (*td_pool_function)(void *context, uint64_t index, uint32_t worker);

/* A pool of so many threads, the caller's among them; 0 is 1, and more than TD_POOL_MOST_THREADS are that many. They
 * are started by the first run that has turns for them, inherit its thread's affinity and priority, block all signals,
 * and are named "tandem pool". Where one cannot be started the others do its work, and it is tried again later.
 * Returns: the pool, or NULL if there is no memory.
 * Owner: the caller, until td_thread_pool_destroy().
 * Threads: any.
 * Blocks: never. */
td_thread_pool *td_thread_pool_create(uint32_t threads);

/* How many threads a run may have: what bounds `worker`. 1 for NULL.
 * Threads: any.
 * Blocks: never. */
uint32_t td_thread_pool_threads(const td_thread_pool *pool);

/* Calls function(context, i, worker) once for each i below `count`, in no order. The caller computes all of them itself
 * where the pool is NULL or busy with another caller's run, and in a process that was forked from the pool's.
 * Threads: any, several at once, and from within a turn.
 * Blocks: until all are computed. */
void td_thread_pool_run(td_thread_pool *pool, uint64_t count, td_pool_function function, void *context);

/* Ends and joins the threads, and sets *pool NULL; *pool may be NULL. In a forked process there are none to join.
 * Owner: takes the pool back.
 * Threads: no run may be under way.
 * Blocks: until the threads have ended. */
void td_thread_pool_destroy(td_thread_pool **pool);

/* The same with a pool for this one loop, where it is long enough to start threads for.
 * Threads: any.
 * Blocks: until all are computed. */
void td_parallel_for(uint32_t threads, uint64_t count, td_pool_function function, void *context);

#endif
