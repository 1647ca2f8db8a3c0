/* The queue between tandemd's broker and its worker: jobs of a session are taken in their order and none is left there,
 * while others are put into it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#include "engine_plugin/daemon/worker_queue.h"
#include "interop/os/clock.h"
#include "tests/limits.h"

#define PATIENCE LIMITS_PATIENCE_NS
#define LONG_NS 1000000000ull
enum { SESSIONS = 3, AT_ONCE = 3 };

static td_worker_queue *queue;
static _Atomic uint64_t put, taken;
static atomic_bool over;

/* As the broker: some at once, each into a slot that is free, any one. */
static void *put_all(void *user)
{
    const uint64_t until = td_now_ns() + LONG_NS;
    uint64_t state = 3, sequence = 0;

    (void)user;
    while (td_now_ns() < until) {
        for (int i = 0; i < AT_ONCE; i++) {
            td_slot *slot;

            do {
                state = state * 6364136223846793005ull + 1442695040888963407ull;
                slot = &queue->slots[(state >> 33) % TD_WORKER_SLOTS];
            } while (atomic_load(&slot->state) != TD_SLOT_FREE);
            slot->worker_session = (uint32_t)(state >> 50) % SESSIONS;
            slot->sequence = ++sequence;
            atomic_store_explicit(&slot->state, TD_SLOT_READY, memory_order_release);
        }
        put = sequence;
        while (taken < sequence && !over)
            sched_yield();
    }
    over = true;
    return NULL;
}

static void test_order(void **state)
{
    uint64_t last[TD_MAX_SESSIONS] = {0}, taken_ns = td_now_ns();
    pthread_t broker;

    (void)state;
    queue = calloc(1, sizeof *queue);
    assert_non_null(queue);
    assert_int_equal(pthread_create(&broker, NULL, put_all, NULL), 0);
    while ((!over || taken < put) && td_now_ns() - taken_ns < PATIENCE) {
        td_slot *slot = td_worker_queue_next(queue, last, 0);

        if (!slot) {
            sched_yield();
            continue;
        }
        taken_ns = td_now_ns();
        last[slot->worker_session] = slot->sequence;
        atomic_store_explicit(&slot->state, TD_SLOT_FREE, memory_order_release);
        taken++;
    }
    over = true;
    pthread_join(broker, NULL);
    assert_true(put > 0);
    assert_int_equal(taken, put); /* else one lies there whose turn is over */
    free(queue);
}

static void test_full_sessions(void **state)
{
    uint64_t last[TD_MAX_SESSIONS] = {0};

    (void)state;
    queue = calloc(1, sizeof *queue);
    assert_non_null(queue);
    assert_null(td_worker_queue_next(queue, last, 0));
    for (uint32_t i = 0; i < 4; i++) {
        queue->slots[i].worker_session = i / 2;
        queue->slots[i].sequence = 10 - i;
        queue->slots[i].state = TD_SLOT_READY;
    }
    assert_ptr_equal(td_worker_queue_next(queue, last, 0), &queue->slots[3]);
    assert_ptr_equal(td_worker_queue_next(queue, last, 1ull << 1), &queue->slots[1]);
    assert_null(td_worker_queue_next(queue, last, 3));
    last[1] = 7; /* the submitter has it, and it is not over */
    assert_ptr_equal(td_worker_queue_next(queue, last, 0), &queue->slots[2]);
    free(queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_full_sessions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
