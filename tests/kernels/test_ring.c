/* The ring of attn_8b_wgmma_inline (kernels/ring.h): warps that fetch, others that compute, a model of mbarriers.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Of each fetch every warp of its team copies a part, waits for it and arrives: its threads are one here. The steps of a
 * warp are those of kernels/attention/cuda/attn_8b_wgmma_inline.cuh between two of which another warp may see something. In every
 * order of all warps' steps, or many for the kernel's own number of warps:
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
#include "kernels/ring.h"
#include "tests/kernels/ring_orders.h"

enum { MOST_SLOTS = 8, MOST_FETCHERS = 4, MOST_CONSUMERS = 16 };

typedef enum mistake {
    RIGHT,
    ONE_WAITS,      /* for room, and the other warps of its team take it that there is */
    ARRIVE_AT_ONCE, /* who fetches arrives when its copies begin */
    FEW_ARRIVALS,   /* full expects one less than there are warps of a team */
    RELEASE_UNREAD, /* a fetch is released once V is asked for */
    LEAVE_EARLY,    /* a consumer whose rows need no more keys ends */
    ARRIVE_UNSEEN,  /* the same, but it arrives for all that is to come, at once */
    RELEASE_TWICE,
} mistake;

typedef struct ring_case {
    uint32_t slots, tiles, teams, fetchers, consumers; /* warps that fetch: of a team */
    mistake mistake;
    bool early; /* a consumer waits for R with S, and then gives the fetch back */
} ring_case;

typedef struct fetcher {
    uint8_t begun, landed; /* of its team's fetches, of its part */
    uint8_t has_room;      /* the next fetch */
    uint8_t team;
} fetcher;

enum { WAIT_FIRST, FIRST_READ, LOOK, R_READ, WAIT, ISSUE, S_READ, LAST_READ, CONSUMED };
typedef struct consumer {
    uint8_t at, tile, there, slot, odd; /* slot, odd: of the fetch that was asked for last */
    uint8_t zero[3];
} consumer;

/* No padding and nothing left over: states are compared by their bytes. */
typedef struct world {
    ring_barrier full[MOST_SLOTS], empty[MOST_SLOTS];
    fetcher fetchers[MOST_FETCHERS];
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
    for (uint32_t i = 0; i < c->teams * c->fetchers; i++)
        w->fetchers[i].team = (uint8_t)(i % c->teams);
}

/* --- A warp that fetches --- */

static uint32_t fetch_of(const ring_case *c, const fetcher *of, uint32_t count)
{
    return of->team + count * c->teams;
}

static bool fetch(world *w, const ring_case *c, uint32_t index)
{
    fetcher *me = &w->fetchers[index];
    const uint32_t number = fetch_of(c, me, me->landed);
    const td_ring_place place = td_ring_of(number, c->slots);

    if (number >= td_ring_fetches(c->tiles))
        return false;
    if (!me->has_room) {
        me->has_room = (c->mistake == ONE_WAITS && index >= c->teams) ||
                       ring_is_over(&w->empty[place.slot], td_ring_empty_parity(place), (int)(number / c->slots) - 1);
        return me->has_room;
    }
    if (me->begun == me->landed) {
        me->begun++;
        if (c->mistake == ARRIVE_AT_ONCE)
            ring_arrive(&w->full[place.slot], full_arrivals(c));
        return true;
    }
    me->landed++;
    me->has_room = false;
    if (c->mistake != ARRIVE_AT_ONCE)
        ring_arrive(&w->full[place.slot], full_arrivals(c));
    return true;
}

/* --- A warp that computes --- */

/* In a slot lies, of each part, what of the slot's fetches began last. `number` is the one that is read. */
static void reads(const world *w, const ring_case *c, uint32_t slot, uint32_t number)
{
    for (const fetcher *of = w->fetchers; of < w->fetchers + c->teams * c->fetchers; of++) {
        uint32_t last = of->begun;

        while (last > 0 && fetch_of(c, of, last - 1) % c->slots != slot)
            last--;
        if (last > 0 && fetch_of(c, of, last - 1) > number)
            ring_wrong |= RING_ANOTHER;
        if (of->team != number % c->teams)
            continue;
        if (last == 0)
            ring_wrong |= RING_UNWRITTEN;
        else if (fetch_of(c, of, last - 1) < number)
            ring_wrong |= RING_ANOTHER;
        else if (of->landed < last)
            ring_wrong |= RING_INCOMPLETE;
    }
}

static void reads_k(const world *w, const ring_case *c, uint32_t slot, uint32_t tile)
{
    if (!td_ring_has_k(tile, c->tiles))
        ring_wrong |= RING_ANOTHER;
    reads(w, c, slot, tile);
}
static void reads_v(const world *w, const ring_case *c, uint32_t slot, uint32_t tile)
{
    if (!td_ring_has_v(tile + 1))
        ring_wrong |= RING_ANOTHER;
    reads(w, c, slot, tile + 1);
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
    const td_ring_place now = place_of(me->slot, me->odd), next = td_ring_next(now, c->slots);
    const uint32_t tile = me->tile;
    const int round = (int)((tile + 1) / c->slots);
    const bool more = tile + 1 < c->tiles;

    switch (me->at) {
    case WAIT_FIRST:
        if (!ring_is_over(&w->full[now.slot], td_ring_full_parity(now), 0))
            return false;
        reads_k(w, c, now.slot, 0);
        go_on(me, FIRST_READ);
        break;
    case FIRST_READ:
        reads_k(w, c, now.slot, 0);
        release(w, c, now.slot);
        go_on(me, LOOK);
        break;
    case LOOK:
        if (index == 0 && tile && tile == c->tiles / 2 && (c->mistake == LEAVE_EARLY || c->mistake == ARRIVE_UNSEEN)) {
            for (uint32_t f = tile; f < td_ring_fetches(c->tiles) && c->mistake == ARRIVE_UNSEEN; f++)
                release(w, c, f % c->slots);
            go_on(me, CONSUMED);
            break;
        }
        me->there = ring_is_over(&w->full[next.slot], td_ring_full_parity(next), round);
        go_on(me, R_READ);
        break;
    case R_READ:
        if (tile && !c->early) {
            reads_v(w, c, now.slot, tile - 1);
            if (c->mistake != RELEASE_UNREAD)
                release(w, c, now.slot);
        }
        go_on(me, me->there ? ISSUE : WAIT);
        break;
    case WAIT:
        if (!ring_is_over(&w->full[next.slot], td_ring_full_parity(next), round))
            return false;
        go_on(me, ISSUE);
        break;
    case ISSUE:
        if (more)
            reads_k(w, c, next.slot, tile + 1);
        reads_v(w, c, next.slot, tile);
        me->slot = (uint8_t)next.slot;
        me->odd = (uint8_t)next.odd;
        go_on(me, more ? S_READ : LAST_READ);
        break;
    case S_READ:
        reads_k(w, c, now.slot, tile + 1);
        if (c->mistake == RELEASE_UNREAD) /* the tensor cores still read V */
            release(w, c, now.slot);
        if (c->early) {
            reads_v(w, c, now.slot, tile);
            release(w, c, now.slot);
        }
        me->tile++;
        go_on(me, LOOK);
        break;
    case LAST_READ:
        reads_v(w, c, now.slot, tile);
        go_on(me, CONSUMED);
        break;
    default: return false;
    }
    return true;
}

/* Agents: the fetching warps, the consumers. */
static uint32_t agents_of(const void *the_case)
{
    const ring_case *c = the_case;

    return c->teams * c->fetchers + c->consumers;
}

/* A step of an agent; false if it cannot go on. */
static bool step(void *at, const void *the_case, uint32_t agent)
{
    world *w = at;
    const ring_case *c = the_case;
    const uint32_t fetchers = c->teams * c->fetchers;

    return agent < fetchers ? fetch(w, c, agent) : consume(w, c, agent - fetchers);
}

static bool is_done(const void *at, const void *the_case)
{
    const world *w = at;
    const ring_case *c = the_case;

    for (uint32_t i = 0; i < c->teams * c->fetchers; i++)
        if (fetch_of(c, &w->fetchers[i], w->fetchers[i].landed) < td_ring_fetches(c->tiles))
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
        ring_sort(w->fetchers, c->teams * c->fetchers, sizeof *w->fetchers);
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
        fail_msg("%u slots, %u tiles, %u teams of %u warps fetch, %u compute, order %u: %s", c->slots, c->tiles, c->teams,
                 c->fetchers, c->consumers, (unsigned)seed, ring_named(what));
}

static const uint32_t dims[] = {32, 64, 96, 128};

static void test_every_order(void **state)
{
    static const struct {
        uint32_t slots, teams, fetchers, consumers;
    } cases[] = {{2, 2, 1, 3}, {2, 2, 2, 2}, {2, 2, 2, 3}, {3, 3, 1, 2}, {3, 3, 1, 3}, {4, 4, 1, 2}, {4, 4, 1, 3},
                 {5, 4, 1, 2}, {8, 2, 1, 2}, {3, 2, 2, 2}, {2, 1, 3, 3}, {1, 1, 2, 2}, {1, 1, 1, 4}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t tiles = 1, early = 0; tiles <= 20; /* more than two rounds of eight slots */
             tiles += early == 0 ? 0 : tiles < 6 ? 1 : 7, early ^= 1) {
            const ring_case c = {cases[i].slots,     tiles, cases[i].teams, cases[i].fetchers,
                                 cases[i].consumers, RIGHT, early};
            uint32_t states;

            fail_if(ring_in_every_order(&model, &c, &states), &c, 0);
            if (tiles == 20)
                print_message("    %u slots, %u teams of %u warps fetch, %u compute%s: %u states\n", c.slots, c.teams,
                              c.fetchers, c.consumers, early ? ", early" : "", states);
        }
}

static void test_many_orders(void **state)
{
    static const uint32_t tiles[] = {1, 2, 3, 4, 5, 9, 10, 11, 13, 26, 64, 101};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        /* the last two: of blocks whose warpgroups share keys, with a ring each or two of them one */
        for (uint32_t way = 0; way < TD_HOPPER_INLINE_GROUPS(dims[i]) + 2; way++)
            for (uint32_t t = 0; t < sizeof tiles / sizeof *tiles; t++)
                for (uint64_t seed = 1; seed <= 20; seed++) {
                    const uint32_t most = TD_HOPPER_INLINE_GROUPS(dims[i]), split = TD_HOPPER_INLINE_SPLITS(dims[i]);
                    const uint32_t splits = way < most ? 1 : way == most ? split : 2;
                    const uint32_t groups = way < most ? way + 1 : way == most ? split : 4;
                    const uint32_t slots = TD_HOPPER_INLINE_SLOTS(dims[i], groups, splits);
                    const ring_case c = {slots, tiles[t], slots, 4 / (slots * splits), 4 * groups / splits, RIGHT, seed % 2};

                    fail_if(in_some_order(&c, seed * 1000 + i), &c, seed);
                }
}

/* Of more teams than slots one may come to its next fetch while another has not yet done the one before in that slot: it
 * is two rounds ahead of the phase that it waits for, and that an old one has the same parity lets it write over what
 * nobody has read. */
static void test_a_parity_that_is_old(void **state)
{
    const uint32_t old = RING_ANOTHER | RING_OLD;

    (void)state;
    assert_int_equal(in_every_order(&(ring_case){1, 10, 2, 1, 2, RIGHT, false}) & old, old);
    assert_int_equal(in_every_order(&(ring_case){2, 10, 3, 1, 2, RIGHT, false}) & old, old);
    for (uint32_t slots = 2; slots <= 5; slots++)
        for (uint32_t teams = 1; teams <= slots && teams <= MOST_FETCHERS; teams++)
            assert_int_equal(in_every_order(&(ring_case){slots, 11, teams, 1, 1, RIGHT, teams % 2}), 0);
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
        const ring_case few = {2, 6, 1, 2, 2, cases[i].mistake, false},
                        many = {2, 26, 2, 2, 8, cases[i].mistake, false};
        uint32_t what = 0;

        if (cases[i].seen & ~in_every_order(&few))
            fail_msg("mistake %d is not seen in every order", (int)few.mistake);
        for (uint64_t seed = 1; seed <= 50; seed++)
            what |= in_some_order(&many, seed);
        if (cases[i].seen & ~what)
            fail_msg("mistake %d is not seen in many orders", (int)many.mistake);
    }
}

/* What is fetched, and where to: written down once more, by hand. */
static void test_sequence(void **state)
{
    static const char *const fetched[] = {"", "K0, V0, ", "K0, K1 V0, V1, ", "K0, K1 V0, K2 V1, V2, "};

    (void)state;
    for (uint32_t tiles = 0; tiles <= 3; tiles++) {
        char text[64] = "";

        for (uint32_t n = 0; n < td_ring_fetches(tiles); n++) {
            const bool k = td_ring_has_k(n, tiles);

            if (k)
                snprintf(text + strlen(text), sizeof text - strlen(text), "K%u%s", n, td_ring_has_v(n) ? " " : "");
            if (td_ring_has_v(n))
                snprintf(text + strlen(text), sizeof text - strlen(text), "V%u", n - 1);
            snprintf(text + strlen(text), sizeof text - strlen(text), ", ");
        }
        assert_string_equal(text, fetched[tiles]);
    }
    for (uint32_t slots = 1; slots <= MOST_SLOTS; slots++) {
        td_ring_place place = {0, 0};

        for (uint32_t n = 0; n < 50; n++, place = td_ring_next(place, slots)) {
            const td_ring_place same = td_ring_of(n, slots);

            assert_int_equal(place.slot, n % slots);
            assert_int_equal(same.slot, n % slots);
            assert_int_equal(same.odd, place.odd);
            assert_int_equal(td_ring_full_parity(place), n / slots % 2);
            assert_int_equal(td_ring_empty_parity(place), (n / slots + 1) % 2);
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t splits = TD_HOPPER_INLINE_SPLITS(dims[i]);

        assert_true(TD_HOPPER_INLINE_SLOTS(dims[i], 4, 1) <= MOST_SLOTS);
        assert_true(4 * TD_HOPPER_INLINE_GROUPS(dims[i]) <= MOST_CONSUMERS);
        assert_true(TD_HOPPER_INLINE_SLOTS(dims[i], 4, 1) <= MOST_FETCHERS); /* a team a slot */
        assert_true(splits * TD_HOPPER_INLINE_SLOTS(dims[i], splits, splits) <= 4);
    }
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
