/* Sleeping on a 32-bit word of memory until somebody who has changed it wakes who sleeps there.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Who sleeps says which value it has seen: if the word has another by then it does not, so no wake-up is missed. All may
 * come back early, with the word unchanged: look again. The plain functions are for words that only this process has, the
 * shared ones for memory that others have mapped as well. (Windows has no such thing: there a word of shared memory has an event,
 * which all sides open by a name.)
 */
#ifndef TANDEM_OS_FUTEX_H
#define TANDEM_OS_FUTEX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Sleeps while *word is `seen`.
 * Threads: any.
 * Blocks: until it is woken. */
void td_futex_wait(_Atomic uint32_t *word, uint32_t seen);

/* Wakes up to `count` of those that sleep.
 * Threads: any.
 * Blocks: never. */
void td_futex_wake(_Atomic uint32_t *word, uint32_t count);

/* The same, at most timeout_ns, less than a second; and wakes all.
 * Threads: any, of any process.
 * Blocks: until it is woken, or so long; never. */
void td_futex_wait_shared(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
void td_futex_wake_shared(_Atomic uint32_t *word);

/* Sleeps while each of these words is what was seen of it, until td_now_ns() is `until_ns`; at most 128. Plain or shared: who
 * changes one wakes by td_futex_wake_shared().
 * Returns: false if the system cannot wait for many (Linux before 5.16).
 * Threads: any.
 * Blocks: until one is woken, or until then. */
typedef struct td_futex_seen {
    _Atomic uint32_t *word;
    uint32_t seen;
} td_futex_seen;
bool td_futex_wait_many(const td_futex_seen *words, uint32_t count, uint64_t until_ns);

#endif
