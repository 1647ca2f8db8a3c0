/* For tests of rings: a model of mbarriers, and warps that run against each other in every order, or in many.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An mbarrier is the parity of the phase in progress and the arrivals that this phase still lacks; a wait for a parity
 * returns while the phase in progress has the other one, whichever that is.
 */
#ifndef TANDEM_TESTS_RING_ORDERS_H
#define TANDEM_TESTS_RING_ORDERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is wrong in some order, in bits. Steps set them in ring_wrong. */
enum {
    RING_UNWRITTEN = 1,  /* a slot is read before anything was written */
    RING_ANOTHER = 2,    /* another tile is read */
    RING_INCOMPLETE = 4, /* a tile is read before all of it is there */
    RING_STUCK = 8,      /* nobody can go on */
    RING_OLD = 16,       /* a wait is for another phase */
};
extern uint32_t ring_wrong;

/* The first of what is wrong, in words. */
const char *ring_named(uint32_t wrong);

typedef struct ring_barrier {
    uint8_t parity, lacks;
    uint8_t ended; /* phases: what a GPU's does not know */
} ring_barrier;

/* `arrivals`: of a phase. */
void ring_arrive(ring_barrier *b, uint32_t arrivals);
/* What a wait for a parity finds; RING_OLD if that does not mean the phase that is waited for. */
bool ring_is_over(const ring_barrier *b, uint32_t parity, int phase);

/* A world is where all agents are: plain bytes, a multiple of 8 of them, no padding and nothing left over. */
typedef struct ring_model {
    size_t world_bytes;
    void (*begin)(void *world, const void *the_case);
    uint32_t (*agents)(const void *the_case);
    bool (*step)(void *world, const void *the_case, uint32_t agent); /* false if the agent cannot go on */
    bool (*is_done)(const void *world, const void *the_case);
    void (*normalise)(void *world, const void *the_case); /* agents that are alike into one order */
} ring_model;

/* Items of at most 16 bytes. */
void ring_sort(void *items, uint32_t count, size_t bytes);

/* What is wrong in any order; `states`: how many there are. */
uint32_t ring_in_every_order(const ring_model *m, const void *the_case, uint32_t *states);
/* What is wrong in one. Whoever can go on does, by lot, for some steps; in half of the orders one, the laggard, only if
 * nobody else can. */
uint32_t ring_in_some_order(const ring_model *m, const void *the_case, uint64_t seed);

/* Room for the searches, about 64 MiB: a group's setup and teardown (cmocka). */
int ring_orders_begin(void **state);
int ring_orders_end(void **state);

#endif
