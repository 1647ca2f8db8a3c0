/* The ring of attn_f16_wgmma_inline (kernels/ring_single.h): warps that fetch, others that compute, a model of mbarriers.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An mbarrier is the parity of the phase in progress and the arrivals that this phase still lacks; a wait for a parity
 * returns while the phase in progress has the other one, whichever that is. Of each fetch every fetching warp copies a
 * part: its threads are one here, and arrive once. Its copies land by themselves, in its order, at any time after they
 * began. The steps of a warp are those of kernels/cuda/attn_f16_wgmma_inline.cu between two of which another warp may see
 * something. In every order of all warps' steps and landings, or many for the kernel's own number of warps:
 *   each tile that is read is there, the right one, and still so when the reading ends
 *   whoever is not done can go on
 * Ways to get it wrong are caught, each.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/params.h"
#include "kernels/ring_single.h"

/* Of the kernel: warps that fetch, and its ring. */
enum { FETCHERS = 4, SLOTS = TD_F16_INLINE_SLOTS };
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

typedef struct barrier {
    uint8_t parity, lacks;
    uint8_t ended; /* phases: what a GPU's does not know */
} barrier;

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
    barrier full[MOST_SLOTS], empty[MOST_SLOTS];
    fetcher fetchers[FETCHERS];
    consumer consumers[MOST_CONSUMERS];
} world;

/* What was seen in some order, in bits. */
enum { UNWRITTEN = 1, ANOTHER = 2, INCOMPLETE = 4, STUCK = 8, OLD = 16 };
static uint32_t wrong;

static void arrive(barrier *b, uint32_t arrivals)
{
    if (--b->lacks == 0) {
        b->parity ^= 1;
        b->lacks = (uint8_t)arrivals;
        b->ended++;
    }
}

/* What a wait for a parity finds, and whether it means the phase that is waited for. */
static bool is_over(const barrier *b, uint32_t parity, int phase)
{
    const bool over = b->parity != parity;

    if (over != (b->ended > phase))
        wrong |= OLD;
    return over;
}

static td_ring_place place_of(uint32_t slot, uint32_t odd)
{
    return (td_ring_place){slot, odd};
}

static uint32_t full_arrivals(const ring_case *c)
{
    return c->fetchers - (c->mistake == FEW_ARRIVALS);
}

static void begin(world *w, const ring_case *c)
{
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
                       is_over(&w->empty[slot], td_ring_empty_parity(place), (int)round - 1);
        return me->has_room;
    }
    me->has_room = false;
    me->begun++;
    if (c->mistake == ARRIVE_AT_ONCE)
        arrive(&w->full[slot], full_arrivals(c));
    return true;
}

/* The oldest fetch of which its copies are under way. */
static bool land(world *w, const ring_case *c, uint32_t index)
{
    fetcher *me = &w->fetchers[index];

    if (me->landed == me->begun)
        return false;
    if (c->mistake != ARRIVE_AT_ONCE)
        arrive(&w->full[me->landed % c->slots], full_arrivals(c));
    me->landed++;
    return true;
}

/* --- A warp that computes --- */

/* In a slot lies, of each part, the last fetch that began there. */
static void reads(const world *w, const ring_case *c, uint32_t slot, uint32_t tile, bool of_v)
{
    for (const fetcher *of = w->fetchers; of < w->fetchers + c->fetchers; of++) {
        if (of->begun <= slot) {
            wrong |= UNWRITTEN;
            continue;
        }
        const uint32_t last = of->begun - 1u - (of->begun - 1u - slot) % c->slots;
        if (td_single_tile(last, c->tiles) != tile || td_single_is_v(last, c->tiles) != of_v)
            wrong |= ANOTHER;
        else if (of->landed <= last)
            wrong |= INCOMPLETE;
    }
}

static void release(world *w, const ring_case *c, uint32_t slot)
{
    for (int i = c->mistake == RELEASE_TWICE; i >= 0; i--)
        arrive(&w->empty[slot], c->consumers);
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
        if (!is_over(&w->full[next.slot], td_ring_full_parity(next), 0))
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
        me->there = is_over(&w->full[now.k.slot], td_ring_full_parity(now.k), k_round) &&
                    is_over(&w->full[now.v.slot], td_ring_full_parity(now.v), v_round);
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
        if (!is_over(&w->full[k.slot], td_ring_full_parity(k), k_round))
            return false;
        go_on(me, WAIT_V);
        break;
    case WAIT_V:
        if (!is_over(&w->full[v.slot], td_ring_full_parity(v), v_round))
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
static uint32_t agents_of(const ring_case *c)
{
    return 2 * c->fetchers + c->consumers;
}

/* A step of an agent; false if it cannot go on. */
static bool step(world *w, const ring_case *c, uint32_t agent)
{
    return agent < c->fetchers       ? fetch(w, c, agent)
           : agent < 2 * c->fetchers ? land(w, c, agent - c->fetchers)
                                     : consume(w, c, agent - 2 * c->fetchers);
}

static bool is_done(const world *w, const ring_case *c)
{
    for (uint32_t i = 0; i < c->fetchers; i++)
        if (w->fetchers[i].landed != td_single_fetches(c->tiles))
            return false;
    for (uint32_t i = 0; i < c->consumers; i++)
        if (w->consumers[i].at != CONSUMED)
            return false;
    return true;
}

/* --- Every order --- */

enum { TABLE = 1 << 23, DEPTH = 4096 };
static uint64_t *seen; /* what the states were that have been gone on from: by 64 bits, never 0, of all searches alike */
static world *stack;
static uint32_t states, taken, search;

static uint64_t mixed(const world *w)
{
    const unsigned char *bytes = (const unsigned char *)w;
    uint64_t h = 0x9e3779b97f4a7c15u * (search + 1);

    for (size_t i = 0; i + 8 <= sizeof *w; i += 8) {
        uint64_t word;

        memcpy(&word, bytes + i, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h ? h : 1;
}

static void sort(void *items, uint32_t count, size_t bytes)
{
    unsigned char *first = items, swapped[16];

    for (uint32_t i = 1; i < count; i++)
        for (unsigned char *at = first + i * bytes; at > first && memcmp(at, at - bytes, bytes) < 0; at -= bytes) {
            memcpy(swapped, at, bytes);
            memcpy(at, at - bytes, bytes);
            memcpy(at - bytes, swapped, bytes);
        }
}

/* Whether it is new. Warps of a kind are alike, so their order does not matter (but for the one that is wrong). */
static bool is_new(world *w, const ring_case *c)
{
    if (c->mistake != ONE_WAITS)
        sort(w->fetchers, c->fetchers, sizeof *w->fetchers);
    if (c->mistake != LEAVE_EARLY && c->mistake != ARRIVE_UNSEEN)
        sort(w->consumers, c->consumers, sizeof *w->consumers);
    const uint64_t key = mixed(w);
    for (uint32_t at = (uint32_t)key % TABLE;; at = (at + 1) % TABLE) {
        if (seen[at] == key)
            return false;
        if (!seen[at]) {
            seen[at] = key;
            states++;
            assert_true(++taken < TABLE / 4 * 3);
            return true;
        }
    }
}

/* What is wrong, in any of them. */
static uint32_t in_every_order(const ring_case *c)
{
    uint32_t depth = 1, all = 0;

    _Static_assert(sizeof(world) % 8 == 0, "mixed() takes words");
    if (taken > TABLE / 4) {
        memset(seen, 0, TABLE * sizeof *seen);
        taken = 0;
    }
    search++;
    states = 0;
    begin(&stack[0], c);
    is_new(&stack[0], c);
    while (depth) {
        const world from = stack[--depth];
        bool stuck = true;

        for (uint32_t agent = 0; agent < agents_of(c); agent++) {
            world *w = &stack[depth];

            *w = from;
            wrong = 0;
            if (!step(w, c, agent))
                continue;
            stuck = false;
            all |= wrong;
            if (!(wrong & ~(uint32_t)OLD) && is_new(w, c)) /* what comes of an old phase is looked at, too */
                assert_true(++depth < DEPTH);
        }
        if (stuck && !is_done(&from, c))
            all |= STUCK;
    }
    return all;
}

/* --- Many orders --- */

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

/* Whoever can go on does, by lot, for some steps; in half of the orders one, the laggard, only if nobody else can. */
static uint32_t in_some_order(const ring_case *c, uint64_t seed)
{
    const uint32_t agents = agents_of(c);
    uint64_t state = seed;
    const uint32_t laggard = random_below(&state, 2 * agents), stay = random_below(&state, 30) + 1;
    world w, tried;
    uint32_t agent = 0;

    wrong = 0;
    begin(&w, c);
    while (!is_done(&w, c)) {
        bool moved = false;

        if (random_below(&state, stay) == 0)
            agent = random_below(&state, agents);
        for (uint32_t i = 0; i < 2 * agents && !moved; i++) {
            const uint32_t who = (agent + i) % agents;

            if (who == laggard && i < agents)
                continue;
            tried = w;
            moved = step(&tried, c, who);
            if (moved) {
                w = tried;
                agent = who;
            }
        }
        if (wrong)
            return wrong;
        if (!moved)
            return STUCK;
    }
    return 0;
}

/* --- Tests --- */

static const char *named(uint32_t what)
{
    return what & OLD         ? "a wait is for another phase"
           : what & STUCK     ? "nobody can go on"
           : what & UNWRITTEN ? "a slot is read before anything was written"
           : what & ANOTHER   ? "another tile is read"
                              : "a tile is read before all of it is there";
}

static void fail_if(uint32_t what, const ring_case *c, uint64_t seed)
{
    if (what)
        fail_msg("%u slots, %u tiles, %u warps fetch, %u compute, order %u: %s", c->slots, c->tiles, c->fetchers,
                 c->consumers, (unsigned)seed, named(what));
}

static void test_every_order(void **state)
{
    static const struct {
        uint32_t slots, fetchers, consumers;
    } cases[] = {{SLOTS, 1, 3}, {SLOTS, 2, 2}, {SLOTS, 2, 3}, {SLOTS, 3, 2}, {4, 2, 2}, {3, 2, 3},
                 {3, 3, 2},     {2, 2, 3},     {2, 3, 3},     {2, 4, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t tiles = 1; tiles <= 12; tiles += tiles < 6 ? 1 : 6) { /* more than four rounds of five slots */
            const ring_case c = {cases[i].slots, tiles, cases[i].fetchers, cases[i].consumers, RIGHT};

            fail_if(in_every_order(&c), &c, 0);
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
            for (uint64_t seed = 1; seed <= 80; seed++) {
                const ring_case c = {SLOTS, tiles[t], FETCHERS, 4 * groups, RIGHT};

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
    assert_int_equal(in_every_order(&c) & (ANOTHER | OLD), ANOTHER | OLD);
    c.consumers = 1;
    for (c.slots = 4; c.slots <= MOST_SLOTS; c.slots += 2)
        assert_int_equal(in_every_order(&c), 0);
}

static void test_mistakes(void **state)
{
    static const struct {
        mistake mistake;
        uint32_t seen;
    } cases[] = {{ONE_WAITS, ANOTHER},      {ARRIVE_AT_ONCE, INCOMPLETE}, {FEW_ARRIVALS, UNWRITTEN | INCOMPLETE},
                 {RELEASE_UNREAD, ANOTHER}, {LEAVE_EARLY, STUCK},         {ARRIVE_UNSEEN, ANOTHER},
                 {RELEASE_TWICE, ANOTHER}};

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
    assert_int_equal(in_every_order(&(ring_case){1, 10, 2, 2, RIGHT}), STUCK);
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
    assert_in_range(TD_F16_INLINE_SLOTS, 2, MOST_SLOTS);
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
    int failed;

    seen = calloc(TABLE, sizeof *seen);
    stack = malloc((DEPTH + 1) * sizeof *stack);
    if (!seen || !stack)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(seen);
    free(stack);
    return failed;
}
