/* The ring of attn_f16_wgmma_inline (kernels/ring_single.h): warps that fetch, others that compute, a model of mbarriers.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Of each fetch every fetching warp copies a part: its threads are one here, and arrive once. Its copies land by
 * themselves, in its order, at any time after they began. The steps of a warp are those of
 * kernels/attention/cuda/attn_f16_wgmma_inline.cuh between two of which another warp may see something. In every order of all warps'
 * steps and landings, or many for the kernel's own number of warps:
 *   each tile that is read is there, the right one, and still so when the reading ends
 *   whoever is not done can go on
 * Ways to get it wrong are caught, each.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/attention/params.h"
#include "kernels/ring_single.h"
#include "tests/kernels/ring_orders.h"

/* Of the kernel: warps that fetch, and its ring. */
enum { FETCHERS = 4, SLOTS = TD_F16_INLINE_SLOTS(128), FEW_SLOTS = TD_F16_INLINE_SLOTS(80) };
enum { MOST_SLOTS = 10, MOST_CONSUMERS = 12 };

typedef enum mistake {
    RIGHT,
    PARITY_FOR_TWO, /* who fetches finds the round of two fetches at once: it may end between them */
    ONE_WAITS,      /* for room, and the other fetching warps take it that there is */
    ARRIVE_AT_ONCE, /* who fetches arrives when its copies begin */
    FEW_ARRIVALS,   /* full expects one less than there are fetching warps */
    RELEASE_UNREAD, /* V is released once it is asked for */
    LEAVE_EARLY,    /* a consumer whose rows need no more keys ends */
    ARRIVE_UNSEEN,  /* the same, but it arrives for all that is to come, at once */
    RELEASE_TWICE,
} mistake;

typedef struct ring_case {
    uint32_t slots, tiles, fetchers, consumers;
    mistake mistake;
} ring_case;

typedef struct fetcher {
    uint8_t begun, landed; /* fetches, of its part */
    uint8_t has_room;      /* the next fetch */
    uint8_t zero;
} fetcher;

enum { WAIT_FIRST, FIRST_READ, LOOK, R_READ, WAIT_K, WAIT_V, ISSUE, S_READ, LAST_READ, CONSUMED };
typedef struct consumer {
    uint8_t at, tile, more, there, v_slot; /* v_slot: of the tile before */
    uint8_t next_slot, next_odd, k_slot, k_odd, now_slot, now_odd;
} consumer;

/* No padding and nothing left over: states are compared by their bytes. */
typedef struct world {
    ring_barrier full[MOST_SLOTS], empty[MOST_SLOTS];
    fetcher fetchers[FETCHERS];
    consumer consumers[MOST_CONSUMERS];
} world;

static td_ring_place place_of(uint32_t slot, uint32_t odd)
{
    return (td_ring_place){slot, odd};
}

static uint32_t full_arrivals(const ring_case *c)
{
    return c->fetchers - (c->mistake == FEW_ARRIVALS);
}

static void begin(void *at, const void *the_case)
{
    world *w = at;
    const ring_case *c = the_case;

    memset(w, 0, sizeof *w);
    for (uint32_t i = 0; i < c->slots; i++) {
        w->full[i].lacks = (uint8_t)full_arrivals(c);
        w->empty[i].lacks = (uint8_t)c->consumers;
    }
}

/* --- A warp that fetches --- */

static bool fetch(world *w, const ring_case *c, uint32_t index)
{
    fetcher *me = &w->fetchers[index];
    const uint32_t slot = me->begun % c->slots, round = me->begun / c->slots;
    const bool old_parity = c->mistake == PARITY_FOR_TWO && me->begun % 2 && slot == 0;
    const td_ring_place place = place_of(slot, (round + old_parity) % 2); /* test_sequence: so td_ring_next() has it */

    if (me->begun == td_single_fetches(c->tiles))
        return false;
    if (!me->has_room) {
        me->has_room = (c->mistake == ONE_WAITS && index > 0) ||
                       ring_is_over(&w->empty[slot], td_ring_empty_parity(place), (int)round - 1);
        return me->has_room;
    }
    me->has_room = false;
    me->begun++;
    if (c->mistake == ARRIVE_AT_ONCE)
        ring_arrive(&w->full[slot], full_arrivals(c));
    return true;
}

/* The oldest fetch of which its copies are under way. */
static bool land(world *w, const ring_case *c, uint32_t index)
{
    fetcher *me = &w->fetchers[index];

    if (me->landed == me->begun)
        return false;
    if (c->mistake != ARRIVE_AT_ONCE)
        ring_arrive(&w->full[me->landed % c->slots], full_arrivals(c));
    me->landed++;
    return true;
}

/* --- A warp that computes --- */

/* In a slot lies, of each part, the last fetch that began there. */
static void reads(const world *w, const ring_case *c, uint32_t slot, uint32_t tile, bool of_v)
{
    for (const fetcher *of = w->fetchers; of < w->fetchers + c->fetchers; of++) {
        if (of->begun <= slot) {
            ring_wrong |= RING_UNWRITTEN;
            continue;
        }
        const uint32_t last = of->begun - 1u - (of->begun - 1u - slot) % c->slots;
        if (td_single_tile(last, c->tiles) != tile || td_single_is_v(last, c->tiles) != of_v)
            ring_wrong |= RING_ANOTHER;
        else if (of->landed <= last)
            ring_wrong |= RING_INCOMPLETE;
    }
}

static void release(world *w, const ring_case *c, uint32_t slot)
{
    for (int i = c->mistake == RELEASE_TWICE; i >= 0; i--)
        ring_arrive(&w->empty[slot], c->consumers);
}

static void go_on(consumer *me, uint32_t at)
{
    me->at = (uint8_t)at;
}

static bool consume(world *w, const ring_case *c, uint32_t index)
{
    consumer *me = &w->consumers[index];
    const td_ring_place k = place_of(me->k_slot, me->k_odd), v = place_of(me->now_slot, me->now_odd);
    const uint32_t k_fetch = 2u * me->tile + 1, v_fetch = k_fetch + (me->tile + 1u < c->tiles);
    const int k_round = (int)(k_fetch / c->slots), v_round = (int)(v_fetch / c->slots);
    td_ring_place next = place_of(me->next_slot, me->next_odd);

    switch (me->at) {
    case WAIT_FIRST:
        if (!ring_is_over(&w->full[next.slot], td_ring_full_parity(next), 0))
            return false;
        reads(w, c, next.slot, 0, false);
        go_on(me, FIRST_READ);
        break;
    case FIRST_READ:
        reads(w, c, next.slot, 0, false);
        release(w, c, next.slot);
        next = td_ring_next(next, c->slots);
        go_on(me, LOOK);
        break;
    case LOOK: {
        if (index == 0 && me->tile && me->tile == c->tiles / 2) {
            if (c->mistake == LEAVE_EARLY)
                go_on(me, CONSUMED);
            if (c->mistake == ARRIVE_UNSEEN) {
                for (uint32_t f = 2u * me->tile; f < td_single_fetches(c->tiles); f++)
                    release(w, c, f % c->slots);
                go_on(me, CONSUMED);
            }
            if (me->at == CONSUMED)
                break;
        }
        me->more = me->tile + 1u < c->tiles;
        const td_single_pair now = td_single_take(&next, me->more, c->slots);
        me->there = ring_is_over(&w->full[now.k.slot], td_ring_full_parity(now.k), k_round) &&
                    ring_is_over(&w->full[now.v.slot], td_ring_full_parity(now.v), v_round);
        me->k_slot = (uint8_t)now.k.slot;
        me->k_odd = (uint8_t)now.k.odd;
        me->now_slot = (uint8_t)now.v.slot;
        me->now_odd = (uint8_t)now.v.odd;
        go_on(me, R_READ);
        break;
    }
    case R_READ:
        if (me->tile) {
            reads(w, c, me->v_slot, me->tile - 1u, true);
            if (c->mistake != RELEASE_UNREAD)
                release(w, c, me->v_slot);
        }
        go_on(me, me->there ? ISSUE : WAIT_K);
        break;
    case WAIT_K:
        if (!ring_is_over(&w->full[k.slot], td_ring_full_parity(k), k_round))
            return false;
        go_on(me, WAIT_V);
        break;
    case WAIT_V:
        if (!ring_is_over(&w->full[v.slot], td_ring_full_parity(v), v_round))
            return false;
        go_on(me, ISSUE);
        break;
    case ISSUE:
        if (me->more)
            reads(w, c, k.slot, me->tile + 1u, false);
        reads(w, c, v.slot, me->tile, true);
        go_on(me, S_READ);
        break;
    case S_READ:
        if (!me->more) {
            go_on(me, LAST_READ);
            break;
        }
        reads(w, c, k.slot, me->tile + 1u, false);
        release(w, c, k.slot);
        if (c->mistake == RELEASE_UNREAD) /* the tensor cores still read it */
            release(w, c, me->now_slot);
        me->v_slot = me->now_slot;
        me->tile++;
        go_on(me, LOOK);
        break;
    case LAST_READ:
        reads(w, c, v.slot, me->tile, true);
        go_on(me, CONSUMED);
        break;
    default: return false;
    }
    me->next_slot = (uint8_t)next.slot;
    me->next_odd = (uint8_t)next.odd;
    return true;
}

/* Agents: the fetching warps, their copies, the consumers. */
static uint32_t agents_of(const void *the_case)
{
    const ring_case *c = the_case;

    return 2 * c->fetchers + c->consumers;
}

/* A step of an agent; false if it cannot go on. */
static bool step(void *at, const void *the_case, uint32_t agent)
{
    world *w = at;
    const ring_case *c = the_case;
    return agent < c->fetchers       ? fetch(w, c, agent)
           : agent < 2 * c->fetchers ? land(w, c, agent - c->fetchers)
                                     : consume(w, c, agent - 2 * c->fetchers);
}

static bool is_done(const void *at, const void *the_case)
{
    const world *w = at;
    const ring_case *c = the_case;

    for (uint32_t i = 0; i < c->fetchers; i++)
        if (w->fetchers[i].landed != td_single_fetches(c->tiles))
            return false;
    for (uint32_t i = 0; i < c->consumers; i++)
        if (w->consumers[i].at != CONSUMED)
            return false;
    return true;
}

/* Warps of a kind are alike, so their order does not matter (but for the one that is wrong). */
static void normalise(void *at, const void *the_case)
{
    world *w = at;
    const ring_case *c = the_case;

    if (c->mistake != ONE_WAITS)
        ring_sort(w->fetchers, c->fetchers, sizeof *w->fetchers);
    if (c->mistake != LEAVE_EARLY && c->mistake != ARRIVE_UNSEEN)
        ring_sort(w->consumers, c->consumers, sizeof *w->consumers);
}

static const ring_model model = {sizeof(world), begin, agents_of, step, is_done, normalise};

static uint32_t in_every_order(const ring_case *c)
{
    return ring_in_every_order(&model, c, NULL);
}

static uint32_t in_some_order(const ring_case *c, uint64_t seed)
{
    return ring_in_some_order(&model, c, seed);
}

/* --- Tests --- */

static void fail_if(uint32_t what, const ring_case *c, uint64_t seed)
{
    if (what)
        fail_msg("%u slots, %u tiles, %u warps fetch, %u compute, order %u: %s", c->slots, c->tiles, c->fetchers,
                 c->consumers, (unsigned)seed, ring_named(what));
}

static void test_every_order(void **state)
{
    static const struct {
        uint32_t slots, fetchers, consumers;
    } cases[] = {{SLOTS, 1, 3}, {SLOTS, 2, 2},     {SLOTS, 2, 3},     {SLOTS, 3, 2},     {FEW_SLOTS, 1, 3},
                 {3, 2, 3},     {FEW_SLOTS, 2, 2}, {FEW_SLOTS, 2, 3}, {FEW_SLOTS, 3, 2}, {3, 3, 2},
                 {2, 2, 3},     {2, 3, 3},         {2, 4, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t tiles = 1; tiles <= 12; tiles += tiles < 6 ? 1 : 6) { /* more than four rounds of five slots */
            const ring_case c = {cases[i].slots, tiles, cases[i].fetchers, cases[i].consumers, RIGHT};
            uint32_t states;

            fail_if(ring_in_every_order(&model, &c, &states), &c, 0);
            if (tiles == 12)
                print_message("    %u slots, %u warps fetch, %u compute: %u states\n", c.slots, c.fetchers, c.consumers,
                              states);
        }
}

static void test_many_orders(void **state)
{
    static const uint32_t tiles[] = {1, 2, 3, 4, 5, 9, 10, 11, 13, 26, 64, 101};

    (void)state;
    for (uint32_t groups = 1; groups <= TD_F16_INLINE_GROUPS; groups++)
        for (uint32_t t = 0; t < sizeof tiles / sizeof *tiles; t++)
            for (uint64_t seed = 1; seed <= 160; seed++) {
                const ring_case c = {seed % 2 ? SLOTS : FEW_SLOTS, tiles[t], FETCHERS, 4 * groups, RIGHT};

                fail_if(in_some_order(&c, seed), &c, seed);
            }
}

/* Who takes two fetches at a time, and one parity for both, is right in a ring with an even number of slots. In one of
 * five the second may begin another round: then it is two rounds ahead of the phase that it waits for, and that an old
 * one has the same parity lets it write over what nobody has read. */
static void test_a_parity_that_is_old(void **state)
{
    ring_case c = {5, 10, 2, 2, PARITY_FOR_TWO};

    (void)state;
    assert_int_equal(in_every_order(&c) & (RING_ANOTHER | RING_OLD), RING_ANOTHER | RING_OLD);
    c.consumers = 1;
    for (c.slots = 4; c.slots <= MOST_SLOTS; c.slots += 2)
        assert_int_equal(in_every_order(&c), 0);
}

static void test_mistakes(void **state)
{
    static const struct {
        mistake mistake;
        uint32_t seen;
    } cases[] = {{ONE_WAITS, RING_ANOTHER},
                 {ARRIVE_AT_ONCE, RING_INCOMPLETE},
                 {FEW_ARRIVALS, RING_UNWRITTEN | RING_INCOMPLETE},
                 {RELEASE_UNREAD, RING_ANOTHER},
                 {LEAVE_EARLY, RING_STUCK},
                 {ARRIVE_UNSEEN, RING_ANOTHER},
                 {RELEASE_TWICE, RING_ANOTHER}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ring_case few = {5, 6, 2, 2, cases[i].mistake}, many = {5, 26, FETCHERS, 8, cases[i].mistake};
        uint32_t what = 0;

        if (cases[i].seen & ~in_every_order(&few))
            fail_msg("mistake %d is not seen in every order", (int)few.mistake);
        for (uint64_t seed = 1; seed <= 50; seed++)
            what |= in_some_order(&many, seed);
        if (cases[i].seen & ~what)
            fail_msg("mistake %d is not seen in many orders", (int)many.mistake);
    }
    /* Fewer slots than a consumer may hold and ask for. */
    assert_int_equal(in_every_order(&(ring_case){2, 10, 2, 2, RIGHT}), 0);
    assert_int_equal(in_every_order(&(ring_case){1, 10, 2, 2, RIGHT}), RING_STUCK);
}

/* What is fetched, and where to: written down once more, by hand. */
static void test_sequence(void **state)
{
    static const char *const fetched[] = {"K0 V0 ", "K0 K1 V0 V1 ", "K0 K1 V0 K2 V1 V2 ", "K0 K1 V0 K2 V1 K3 V2 V3 "};

    (void)state;
    for (uint32_t tiles = 1; tiles <= 4; tiles++) {
        char text[64] = "";

        for (uint32_t f = 0; f < td_single_fetches(tiles); f++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%c%u ", td_single_is_v(f, tiles) ? 'V' : 'K',
                     td_single_tile(f, tiles));
        assert_string_equal(text, fetched[tiles - 1]);
    }
    for (uint32_t slots = 1; slots <= MOST_SLOTS; slots++) {
        td_ring_place place = {0, 0};

        for (uint32_t f = 0; f < 50; f++, place = td_ring_next(place, slots)) {
            assert_int_equal(place.slot, f % slots);
            assert_int_equal(td_ring_full_parity(place), f / slots % 2);
            assert_int_equal(td_ring_empty_parity(place), (f / slots + 1) % 2);
        }
    }
    for (uint32_t d = 64; d <= 128; d += 16) {
        const uint32_t slots = TD_F16_INLINE_SLOTS(d);
        assert_true(slots == SLOTS || slots == FEW_SLOTS);
        assert_in_range(slots, 2, MOST_SLOTS);
    }
    assert_in_range(4 * TD_F16_INLINE_GROUPS, 4, MOST_CONSUMERS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequence),
        cmocka_unit_test(test_every_order),
        cmocka_unit_test(test_many_orders),
        cmocka_unit_test(test_a_parity_that_is_old),
        cmocka_unit_test(test_mistakes),
    };

    return cmocka_run_group_tests(tests, ring_orders_begin, ring_orders_end);
}
