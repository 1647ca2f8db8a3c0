/* The worker: the process that computes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DAEMON_WORKER_H
#define TANDEM_DAEMON_WORKER_H

#include <stdint.h>

/* Its main(), with its socket and the queue's memfd. */
int td_worker_main(int socket, int queue, uint32_t backend, uint32_t threads);

#endif
