/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/wire/ring.h"

#include <inttypes.h>
#include <string.h>

#include "interop/os/clock.h"
#include "interop/os/cpu.h"
#include "interop/os/descriptor.h"
#include "interop/os/futex.h"
#include "interop/os/memory.h"

static_assert(TD_WIRE_SLOT_BYTES <= sizeof(td_wire_message), "there is room for what a slot holds");
static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "no locks in memory that a peer can write");
static_assert(TD_WIRE_PAGE_BYTES % TD_MEMFD_PAGE_BYTES == 0, "a timeline is shared memory");
static const uint64_t slice_ns = 100000000; /* the most that a peer's lie in an event count can cost */
enum { REPORT_TRIES = 1000 };

void td_eventcount_notify(td_eventcount *event)
{
    atomic_fetch_add(&event->count, 1);
    if (atomic_load(&event->waiters))
        td_futex_wake_shared(&event->count);
}

void td_eventcount_wait(td_eventcount *event, uint32_t seen, uint64_t timeout_ns)
{
    atomic_fetch_add(&event->waiters, 1);
    td_futex_wait_shared(&event->count, seen, timeout_ns < slice_ns ? timeout_ns : slice_ns);
    atomic_fetch_sub(&event->waiters, 1);
}

bool td_spin_yield(uint64_t *now)
{
    const uint64_t before = *now;

    td_cpu_yield();
    *now = td_now_ns();
    return *now - before < TD_SPIN_NS;
}

/* Where one in sixty-four is in vain, they become rare. */
void td_spin_end(td_spin_budget *budget, bool paid, uint64_t now)
{
    enum { GOOD = 64, MOST = 7 };
    const uint64_t least_ns = 8000000;

    if (paid && ++budget->good < GOOD)
        return;
    budget->good = 0;
    if (paid) {
        budget->level -= budget->level > 0;
        return;
    }
    budget->not_until_ns = now + (least_ns << budget->level);
    budget->level += budget->level < MOST;
}

static tandem_status make(const char *name, uint64_t bytes, void **out, int *fd, char *why, size_t why_bytes)
{
    tandem_status status = td_memfd_make(name, bytes, true, fd, why, why_bytes);

    *out = NULL;
    if (status == TANDEM_OK)
        status = td_memfd_map(*fd, bytes, out, why, why_bytes);
    if (status != TANDEM_OK)
        td_fd_close(fd);
    return status;
}

static tandem_status open_checked(int fd, uint64_t bytes, void **out, char *why, size_t why_bytes)
{
    const tandem_status status = td_memfd_check(fd, bytes, true, why, why_bytes);

    *out = NULL;
    return status == TANDEM_OK ? td_memfd_map(fd, bytes, out, why, why_bytes) : status;
}

tandem_status td_shared_timeline_make(td_shared_timeline *timeline, uint64_t value, int *fd, char *why, size_t why_bytes)
{
    void *counter;
    const tandem_status status = make("tandem-timeline", TD_WIRE_PAGE_BYTES, &counter, fd, why, why_bytes);

    *timeline = (td_shared_timeline){counter, value};
    if (status == TANDEM_OK)
        atomic_store(&timeline->counter->value, value);
    return status;
}

tandem_status td_shared_timeline_open(td_shared_timeline *timeline, int fd, char *why, size_t why_bytes)
{
    void *counter;
    const tandem_status status = open_checked(fd, TD_WIRE_PAGE_BYTES, &counter, why, why_bytes);

    *timeline = (td_shared_timeline){counter, 0};
    if (status == TANDEM_OK)
        timeline->highest = atomic_load(&timeline->counter->value);
    return status;
}

void td_shared_timeline_close(td_shared_timeline *timeline)
{
    if (timeline->counter)
        td_unmap(timeline->counter, TD_WIRE_PAGE_BYTES);
    timeline->counter = NULL;
}

tandem_status td_shared_timeline_read(td_shared_timeline *timeline, uint64_t *value, char *why, size_t why_bytes)
{
    const uint64_t now = atomic_load_explicit(&timeline->counter->value, memory_order_acquire);

    *value = timeline->highest;
    if (now < timeline->highest)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "a timeline's counter fell from %" PRIu64 " to %" PRIu64,
                       timeline->highest, now);
    *value = timeline->highest = now;
    return TANDEM_OK;
}

void td_shared_timeline_raise(td_shared_timeline *timeline, uint64_t value)
{
    if (value <= timeline->highest)
        return;
    timeline->highest = value;
    atomic_store_explicit(&timeline->counter->value, value, memory_order_release);
    td_eventcount_notify(&timeline->counter->raised);
}

tandem_status td_ring_make(td_ring *ring, const td_wire_sizes *sizes, int *fd, char *why, size_t why_bytes)
{
    void *shared;
    const tandem_status status = make("tandem-ring", sizes->ring_bytes, &shared, fd, why, why_bytes);

    *ring = (td_ring){shared, 0, *sizes};
    return status;
}

tandem_status td_ring_open(td_ring *ring, const td_wire_sizes *sizes, int fd, char *why, size_t why_bytes)
{
    void *shared;
    const tandem_status status = open_checked(fd, sizes->ring_bytes, &shared, why, why_bytes);

    *ring = (td_ring){shared, 0, *sizes};
    return status;
}

void td_ring_close(td_ring *ring)
{
    if (ring->shared)
        td_unmap(ring->shared, ring->sizes.ring_bytes);
    ring->shared = NULL;
}

tandem_status td_ring_room(const td_ring *ring, uint32_t count, char *why, size_t why_bytes)
{
    const uint32_t head = atomic_load_explicit(&ring->shared->head, memory_order_acquire), used = ring->own - head;

    if (used > TD_WIRE_SLOTS)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "ring.head is %" PRIu32 " with ring.tail %" PRIu32, head,
                       ring->own);
    if (used + count > TD_WIRE_SLOTS)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "%" PRIu32 " messages are in the ring", used);
    return TANDEM_OK;
}

tandem_status td_ring_put(td_ring *ring, const void *message, char *why, size_t why_bytes)
{
    const uint32_t bytes = ((const td_wire_header *)message)->bytes;
    const uint32_t head = atomic_load_explicit(&ring->shared->head, memory_order_acquire);
    _Atomic uint64_t *slot = td_ring_slot(ring, ring->own);

    if (bytes > ring->sizes.slot_bytes || bytes % 8)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "a message of %" PRIu32 " bytes does not fit into a slot of %" PRIu32, bytes, ring->sizes.slot_bytes);
    if (ring->own - head > TD_WIRE_SLOTS)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "ring.head is %" PRIu32 " with ring.tail %" PRIu32, head,
                       ring->own);
    if (ring->own - head == TD_WIRE_SLOTS)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "%d messages are in the ring", TD_WIRE_SLOTS);
    for (uint32_t i = 0; i < bytes / 8; i++) {
        uint64_t word;

        memcpy(&word, (const char *)message + 8 * i, 8);
        atomic_store_explicit(&slot[i], word, memory_order_relaxed);
    }
    atomic_store_explicit(&ring->shared->tail, ++ring->own, memory_order_release);
    td_eventcount_notify(&ring->shared->to_daemon);
    return TANDEM_OK;
}

tandem_status td_ring_count(const td_ring *ring, uint32_t *count, char *why, size_t why_bytes)
{
    const uint32_t tail = atomic_load_explicit(&ring->shared->tail, memory_order_acquire);

    *count = tail - ring->own;
    if (*count <= TD_WIRE_SLOTS)
        return TANDEM_OK;
    *count = 0;
    return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "ring.tail is %" PRIu32 " with ring.head %" PRIu32, tail,
                   ring->own);
}

tandem_status td_ring_take(td_ring *ring, td_wire_rules *rules, td_wire_message *message, char *why, size_t why_bytes)
{
    _Atomic uint64_t *slot = td_ring_slot(ring, ring->own);
    const uint32_t most = ring->sizes.slot_bytes;
    uint64_t words[sizeof *message / 8] = {0}; /* what the peer does not know of a message is 0 */
    uint32_t count, bytes;
    tandem_status status = td_ring_count(ring, &count, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    if (!count)
        return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "the ring is empty");
    words[0] = atomic_load_explicit(&slot[0], memory_order_relaxed);
    bytes = (uint32_t)words[0]; /* which a message begins with; one that is longer than a slot is refused below */
    bytes = bytes < sizeof(td_wire_header) ? sizeof(td_wire_header) : bytes > most ? most : bytes;
    for (uint32_t i = 1; i < (bytes + 7) / 8; i++)
        words[i] = atomic_load_explicit(&slot[i], memory_order_relaxed);
    atomic_store_explicit(&ring->shared->head, ++ring->own, memory_order_release);
    memcpy(message, words, sizeof words);
    status = td_wire_check(rules, TD_WIRE_RING, message, bytes, 0, why, why_bytes);
    if (status == TANDEM_OK)
        td_wire_took(rules, TD_WIRE_RING, message);
    return status;
}

void td_ring_report(td_ring *ring, uint64_t ticket, const td_wire_report *report)
{
    td_shared_report *at = td_ring_report_of(ring, ticket);
    td_wire_report whole = *report;

    whole.ticket = (uint32_t)ticket;
    if (report->state > TANDEM_JOB_RUNNING) {
        /* Whoever reads the times of the job that was here before finds its word gone. */
        const td_wire_report running = {.ticket = whole.ticket, .state = TANDEM_JOB_RUNNING};

        atomic_store_explicit(&at->word, td_wire_report_pack(&running), memory_order_relaxed);
        atomic_thread_fence(memory_order_release);
        atomic_store_explicit(&at->begin_ns, report->begin_ns, memory_order_relaxed);
        atomic_store_explicit(&at->end_ns, report->end_ns, memory_order_relaxed);
    }
    atomic_store_explicit(&at->word, td_wire_report_pack(&whole), memory_order_release);
    if (report->state > TANDEM_JOB_RUNNING)
        td_eventcount_notify(&ring->shared->to_client);
}

tandem_status td_ring_read_report(const td_ring *ring, uint64_t ticket, td_wire_report *report, char *why,
                                  size_t why_bytes)
{
    td_shared_report *at = td_ring_report_of(ring, ticket);

    for (int tries = 0; tries < REPORT_TRIES; tries++) {
        const uint64_t word = atomic_load_explicit(&at->word, memory_order_acquire);
        const uint32_t age = (uint32_t)ticket - (uint32_t)(word >> 32);
        tandem_status status;

        report->begin_ns = atomic_load_explicit(&at->begin_ns, memory_order_relaxed);
        report->end_ns = atomic_load_explicit(&at->end_ns, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&at->word, memory_order_relaxed) != word)
            continue;
        status = td_wire_report_unpack(word, report, why, why_bytes);
        if (status != TANDEM_OK)
            return status;
        if (age > INT32_MAX)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "ticket %" PRIu64 " is older than the last %d", ticket,
                           TD_WIRE_REPORTS);
        if (age)
            *report = (td_wire_report){.ticket = (uint32_t)ticket};
        else if (report->state <= TANDEM_JOB_RUNNING)
            report->begin_ns = report->end_ns = 0;
        return TANDEM_OK;
    }
    return td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "report of ticket %" PRIu64 " keeps changing", ticket);
}
