/* The wire's shared memory: event counts, shared timelines, and the shared ring of jobs with their reports.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The peer can write every byte of it at any time. So what is read is copied first, then judged; indices are kept
 * privately and only ever published. Either side of a ring, and each reader of a timeline, is one thread's at a time.
 * Statuses: BUSY full, or nothing there, or not yet; LOST the peer is gone; PROTOCOL it lies.
 */
#ifndef TANDEM_RING_H
#define TANDEM_RING_H

#include <stdatomic.h>

#include "interop/wire/wire.h"

/* An event count: how one side sleeps, on a futex, until the other has done something. */
typedef struct td_eventcount {
    _Atomic uint32_t count;   /* changes with each event */
    _Atomic uint32_t waiters; /* how many sleep, or are about to */
} td_eventcount;
TD_WIRE_SIZE(td_eventcount, 8);

/* Wakes whoever waits; a system call only if somebody does. */
void td_eventcount_notify(td_eventcount *event);
/* Sleeps while count is still `seen` (which was read before looking), at most timeout_ns and 100 ms; may return early. */
void td_eventcount_wait(td_eventcount *event, uint32_t seen, uint64_t timeout_ns);

/* To spin for what comes at once, instead of sleeping: to be woken takes tens of microseconds. Only where it pays, on idle
 * processors: who spun in vain, or took others' time, does not again for a while. */
typedef struct td_spin_budget {
    uint64_t not_until_ns;
    uint32_t level, good;
} td_spin_budget;
enum { TD_SPIN_NS = 200000 }; /* at most, at a time */
static inline bool td_spin_pays(const td_spin_budget *budget, uint64_t now) { return now >= budget->not_until_ns; }
/* Between two looks: lets others run. False: they did for so long that it is better to sleep. */
bool td_spin_yield(uint64_t *now);
void td_spin_end(td_spin_budget *budget, bool paid, uint64_t now);

/* A timeline's counter in shared memory. */
typedef struct td_shared_counter {
    _Atomic uint64_t value;
    td_eventcount raised;
} td_shared_counter;
TD_WIRE_SIZE(td_shared_counter, 16);
TD_WIRE_AT(td_shared_counter, raised, 8);

/* A side's view of such a counter: `highest` is what was seen last, or signalled last. */
typedef struct td_shared_timeline {
    td_shared_counter *counter;
    uint64_t highest;
} td_shared_timeline;

/* Makes a counter, whose descriptor is the caller's; maps one that has come, after td_memfd_check(). */
tandem_status td_shared_timeline_make(td_shared_timeline *timeline, uint64_t value, int *fd, char *why, size_t why_bytes);
tandem_status td_shared_timeline_open(td_shared_timeline *timeline, int fd, char *why, size_t why_bytes);
void td_shared_timeline_close(td_shared_timeline *timeline);
/* PROTOCOL: the counter fell. *value is then the highest that was seen. */
tandem_status td_shared_timeline_read(td_shared_timeline *timeline, uint64_t *value, char *why, size_t why_bytes);
/* Raises the counter and wakes who waits for it; values that do not rise are left out. For the signaller alone. */
void td_shared_timeline_raise(td_shared_timeline *timeline, uint64_t value);

typedef struct td_shared_report {
    _Atomic uint64_t word, begin_ns, end_ns, reserved;
} td_shared_report;
TD_WIRE_SIZE(td_shared_report, 32);

typedef struct td_shared_ring {
    _Atomic uint32_t tail; /* the client's */
    uint32_t unused0;
    td_eventcount to_daemon;
    uint8_t unused1[48];
    _Atomic uint32_t head; /* the daemon's */
    uint32_t unused2;
    td_eventcount to_client;
    uint8_t unused3[TD_WIRE_SLOTS_AT - 80];
    /* Slots and reports follow, as long as the connection's sizes say. */
} td_shared_ring;
TD_WIRE_SIZE(td_shared_ring, 4096);
TD_WIRE_AT(td_shared_ring, to_daemon, 8);
TD_WIRE_AT(td_shared_ring, head, 64);
TD_WIRE_AT(td_shared_ring, to_client, 72);

/* One side of a shared ring: `own` is the daemon's head, or the client's tail. */
typedef struct td_ring {
    td_shared_ring *shared;
    uint32_t own;
    td_wire_sizes sizes;
} td_ring;

/* The daemon makes a shared ring, whose descriptor is the caller's; the client maps it, after td_memfd_check(). Sizes are
 * those of WELCOME. */
tandem_status td_ring_make(td_ring *ring, const td_wire_sizes *sizes, int *fd, char *why, size_t why_bytes);
tandem_status td_ring_open(td_ring *ring, const td_wire_sizes *sizes, int fd, char *why, size_t why_bytes);
void td_ring_close(td_ring *ring);

/* Where slot number n lies, and the report of a ticket. */
static inline _Atomic uint64_t *td_ring_slot(const td_ring *ring, uint32_t n)
{
    return (_Atomic uint64_t *)(void *)((char *)ring->shared + TD_WIRE_SLOTS_AT +
                                        (size_t)(n % TD_WIRE_SLOTS) * ring->sizes.slot_bytes);
}
static inline td_shared_report *td_ring_report_of(const td_ring *ring, uint64_t ticket)
{
    return (td_shared_report *)(void *)((char *)ring->shared + TD_WIRE_SLOTS_AT +
                                        (size_t)TD_WIRE_SLOTS * ring->sizes.slot_bytes +
                                        (size_t)(ticket % TD_WIRE_REPORTS) * ring->sizes.report_bytes);
}

/* Client: whether there is room for so many messages, so that td_ring_put() takes them one after the other. BUSY: not now. */
tandem_status td_ring_room(const td_ring *ring, uint32_t count, char *why, size_t why_bytes);
/* Client: puts a message (of header.bytes) and wakes the daemon. BUSY: full; ARG: it is longer than a slot. */
tandem_status td_ring_put(td_ring *ring, const void *message, char *why, size_t why_bytes);
/* Daemon: takes one message that td_wire_check() lets pass, and counts it. BUSY: empty. */
tandem_status td_ring_take(td_ring *ring, td_wire_rules *rules, td_wire_message *message, char *why, size_t why_bytes);
/* Daemon: how many messages were published by now, for taking all that came before a message of the socket. PROTOCOL:
 * more than there are slots. */
tandem_status td_ring_count(const td_ring *ring, uint32_t *count, char *why, size_t why_bytes);

/* Daemon: writes a job's report, whole. Notifies `to_client` if the job has ended. */
void td_ring_report(td_ring *ring, uint64_t ticket, const td_wire_report *report);
/* Client: reads it. PENDING for a job that the daemon has not got to; BUSY if it changed each time it was looked at; ARG
 * for one that is older than the last 256. */
tandem_status td_ring_read_report(const td_ring *ring, uint64_t ticket, td_wire_report *report, char *why,
                                  size_t why_bytes);
/* Client: sleeps until a report may have changed since `seen` = td_ring_seen(). */
static inline uint32_t td_ring_seen(const td_ring *ring) { return atomic_load(&ring->shared->to_client.count); }
static inline void td_ring_sleep(td_ring *ring, uint32_t seen, uint64_t timeout_ns)
{
    td_eventcount_wait(&ring->shared->to_client, seen, timeout_ns);
}

#endif
