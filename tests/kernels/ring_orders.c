/* ring_orders.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/kernels/ring_orders.h"

enum { TABLE = 1 << 23, DEPTH = 4096, MOST_BYTES = 512 };

uint32_t ring_wrong;
static uint64_t *seen; /* what the states were that have been gone on from: by 64 bits, never 0, of all searches alike */
static unsigned char *stack;
static uint32_t taken, search;

const char *ring_named(uint32_t wrong)
{
    return wrong & RING_OLD         ? "a wait is for another phase"
           : wrong & RING_STUCK     ? "nobody can go on"
           : wrong & RING_UNWRITTEN ? "a slot is read before anything was written"
           : wrong & RING_ANOTHER   ? "another tile is read"
                                    : "a tile is read before all of it is there";
}

void ring_arrive(ring_barrier *b, uint32_t arrivals)
{
    if (--b->lacks == 0) {
        b->parity ^= 1;
        b->lacks = (uint8_t)arrivals;
        b->ended++;
    }
}

bool ring_is_over(const ring_barrier *b, uint32_t parity, int phase)
{
    const bool over = b->parity != parity;

    if (over != (b->ended > phase))
        ring_wrong |= RING_OLD;
    return over;
}

void ring_sort(void *items, uint32_t count, size_t bytes)
{
    unsigned char *first = items, swapped[16];

    for (uint32_t i = 1; i < count; i++)
        for (unsigned char *at = first + i * bytes; at > first && memcmp(at, at - bytes, bytes) < 0; at -= bytes) {
            memcpy(swapped, at, bytes);
            memcpy(at, at - bytes, bytes);
            memcpy(at - bytes, swapped, bytes);
        }
}

/* --- Every order --- */

static uint64_t mixed(const unsigned char *world, size_t bytes)
{
    uint64_t h = 0x9e3779b97f4a7c15u * (search + 1);

    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word;

        memcpy(&word, world + i, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h ? h : 1;
}

static bool is_new(const ring_model *m, const void *the_case, unsigned char *world)
{
    m->normalise(world, the_case);
    const uint64_t key = mixed(world, m->world_bytes);
    for (uint32_t at = (uint32_t)key % TABLE;; at = (at + 1) % TABLE) {
        if (seen[at] == key)
            return false;
        if (!seen[at]) {
            seen[at] = key;
            assert_true(++taken < TABLE / 4 * 3);
            return true;
        }
    }
}

uint32_t ring_in_every_order(const ring_model *m, const void *the_case, uint32_t *states)
{
    const size_t bytes = m->world_bytes;
    const uint32_t agents = m->agents(the_case);
    unsigned char from[MOST_BYTES];
    uint32_t depth = 1, all = 0;

    assert_true(bytes % 8 == 0 && bytes <= MOST_BYTES);
    if (taken > TABLE / 4) {
        memset(seen, 0, TABLE * sizeof *seen);
        taken = 0;
    }
    const uint32_t before = taken;
    search++;
    m->begin(stack, the_case);
    is_new(m, the_case, stack);
    while (depth) {
        bool stuck = true;

        memcpy(from, stack + --depth * bytes, bytes);
        for (uint32_t agent = 0; agent < agents; agent++) {
            unsigned char *world = stack + depth * bytes;

            memcpy(world, from, bytes);
            ring_wrong = 0;
            if (!m->step(world, the_case, agent))
                continue;
            stuck = false;
            all |= ring_wrong;
            if (!(ring_wrong & ~(uint32_t)RING_OLD) && is_new(m, the_case, world)) /* behind an old phase, too */
                assert_true(++depth < DEPTH);
        }
        if (stuck && !m->is_done(from, the_case))
            all |= RING_STUCK;
    }
    if (states)
        *states = taken - before;
    return all;
}

/* --- Many orders --- */

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

uint32_t ring_in_some_order(const ring_model *m, const void *the_case, uint64_t seed)
{
    const uint32_t agents = m->agents(the_case);
    uint64_t state = seed;
    const uint32_t laggard = random_below(&state, 2 * agents), stay = random_below(&state, 30) + 1;
    unsigned char *world = stack, *tried = stack + m->world_bytes;
    uint32_t agent = 0;

    ring_wrong = 0;
    m->begin(world, the_case);
    while (!m->is_done(world, the_case)) {
        bool moved = false;

        if (random_below(&state, stay) == 0)
            agent = random_below(&state, agents);
        for (uint32_t i = 0; i < 2 * agents && !moved; i++) {
            const uint32_t who = (agent + i) % agents;

            if (who == laggard && i < agents)
                continue;
            memcpy(tried, world, m->world_bytes);
            moved = m->step(tried, the_case, who);
            if (moved) {
                memcpy(world, tried, m->world_bytes);
                agent = who;
            }
        }
        if (ring_wrong)
            return ring_wrong;
        if (!moved)
            return RING_STUCK;
    }
    return 0;
}

int ring_orders_begin(void **state)
{
    (void)state;
    seen = calloc(TABLE, sizeof *seen);
    stack = malloc((size_t)(DEPTH + 1) * MOST_BYTES);
    return seen && stack ? 0 : -1;
}

int ring_orders_end(void **state)
{
    (void)state;
    free(seen);
    free(stack);
    return 0;
}
