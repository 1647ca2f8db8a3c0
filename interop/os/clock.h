/* Time: the clock that never jumps, and sleeping by it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_OS_CLOCK_H
#define TANDEM_OS_CLOCK_H

#include <stdint.h>

/* Nanoseconds since some moment before this process, the same for all processes of the machine; it never goes back.
 * (Linux: CLOCK_MONOTONIC, which Vulkan's host time domain and CUDA's clocks are compared with.)
 * Threads: any.
 * Blocks: never. */
uint64_t td_now_ns(void);

/* Sleeps for at least so long, signals or not. How much longer: see td_thread_slack().
 * Threads: any.
 * Blocks: for so long. */
void td_sleep_ns(uint64_t ns);

#endif
