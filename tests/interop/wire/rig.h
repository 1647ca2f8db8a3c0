/* What the tests of the wire share: system calls that are counted, descriptors that must not be left, pairs of
 * connections and rings.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_WIRE_RIG_H
#define TANDEM_TESTS_WIRE_RIG_H

#include <sys/socket.h>

#include "interop/os/clock.h"
#include "interop/os/descriptor.h"
#include "interop/wire/conn.h"
#include "interop/wire/ring.h"
#include "tests/cases.h"
#include "tests/interop/wire_util.h"

enum { SCM_MAX = 253, MESSAGES = 1000000, KILLS = 25, CONNECTS = 10000 };

extern char why[400];
extern const size_t why_bytes;
/* Futexes are the only system calls that interop/wire makes by syscall(): the linker brings them here. */
extern atomic_int futex_calls;
int count_fds(void);
int note_fds(void **state);
int same_fds(void **state);
tandem_status check(const td_wire_rules *rules, td_wire_road road, const void *bytes, size_t length, uint32_t fds);
tandem_status check_sample(uint32_t type, const td_wire_message *m);
/* Two ends, as connections; `raw` is a third hand on the first end, to misbehave with. */
void make_pair(td_conn *a, td_conn *b);
void open_rings(td_ring *daemon, td_ring *client);
void open_rings_of(td_ring *daemon, td_ring *client, td_wire_sizes sizes);
void close_rings(td_ring *daemon, td_ring *client);

#define TEST(name) cmocka_unit_test_setup_teardown(name, note_fds, same_fds)

/* Each file's, in the order in which they run. */
extern const test_cases wire_messages_cases, wire_greeting_cases, wire_socket_cases, wire_ring_cases, wire_conversation_cases;

#endif
