/* The ring of attn_8b_wgmma_inline (kernels/ring.h): a warp that fetches, others that compute, a model of mbarriers.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An mbarrier is the parity of the phase in progress and the arrivals that this phase still lacks; a wait for a parity
 * returns while the phase in progress has the other one, whichever that is. A slot is what was written there last, and
 * whether all of it is there. The steps of a warp are those of kernels/cuda/attn_8b_wgmma_inline.cu between two of which
 * another warp may see something. In every order of all warps' steps, or many for the kernel's own number of warps:
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
#include "kernels/ring.h"

enum { MOST_SLOTS = 10, MOST_CONSUMERS = 12, NOTHING = 255 };

typedef enum mistake {
    RIGHT,
    PARITY_FOR_TWO,   /* the producer finds the round of two fetches at once: it may end between them */
    RELEASE_UNREAD,   /* V is released once it is asked for */
    WAIT_UNPUBLISHED, /* the producer waits for room before it publishes what it has */
    LEAVE_EARLY,      /* a consumer whose rows need no more keys ends */
    ARRIVE_UNSEEN,    /* the same, but it arrives for all that is to come, at once */
    RELEASE_TWICE,
} mistake;

typedef struct ring_case {
    uint32_t slots, tiles, consumers, lag;
    mistake mistake;
} ring_case;

typedef struct barrier {
    uint8_t parity, lacks;
    uint8_t ended; /* phases: what a GPU's does not know */
} barrier;

enum { ROOM, DRAIN, WAIT_ROOM, WRITE, PUBLISH, FLUSH, PRODUCED };
typedef struct producer {
    uint8_t at, fetch, under_way;
    uint8_t slot, odd, oldest_slot, oldest_odd, zero[5];
} producer;

enum { WAIT_FIRST, FIRST_READ, LOOK, R_READ, WAIT_K, WAIT_V, ISSUE, S_READ, LAST_READ, CONSUMED };
typedef struct consumer {
    uint8_t at, tile, more, there, v_slot; /* v_slot: of the tile before */
    uint8_t next_slot, next_odd, k_slot, k_odd, now_slot, now_odd;
} consumer;

/* No padding and nothing left over: states are compared by their bytes. */
typedef struct world {
    barrier full[MOST_SLOTS], empty[MOST_SLOTS];
    uint8_t held[MOST_SLOTS]; /* 2 * tile + (of V) */
    uint8_t complete[MOST_SLOTS];
    producer producer;
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

static td_ring_place place_of(uint8_t slot, uint8_t odd)
{
    return (td_ring_place){slot, odd};
}

static void begin(world *w, const ring_case *c)
{
    memset(w, 0, sizeof *w);
    for (uint32_t i = 0; i < c->slots; i++) {
        w->full[i].lacks = 1;
        w->empty[i].lacks = (uint8_t)c->consumers;
        w->held[i] = NOTHING;
    }
}

/* --- The warp that fetches --- */

static void publish(world *w, const ring_case *c)
{
    producer *p = &w->producer;
    const td_ring_place next = td_ring_next(place_of(p->oldest_slot, p->oldest_odd), c->slots);

    w->complete[p->oldest_slot] = true;
    arrive(&w->full[p->oldest_slot], 1);
    p->oldest_slot = (uint8_t)next.slot;
    p->oldest_odd = (uint8_t)next.odd;
    p->under_way--;
}

static bool has_room(const world *w, const ring_case *c)
{
    const producer *p = &w->producer;
    td_ring_place place = place_of(p->slot, p->odd);

    if (c->mistake == PARITY_FOR_TWO && p->fetch % 2 && p->slot == 0)
        place.odd ^= 1;
    return is_over(&w->empty[place.slot], td_ring_empty_parity(place), (int)(p->fetch / c->slots) - 1);
}

static void next_fetch(producer *p, const ring_case *c)
{
    const td_ring_place next = td_ring_next(place_of(p->slot, p->odd), c->slots);

    p->slot = (uint8_t)next.slot;
    p->odd = (uint8_t)next.odd;
    p->fetch++;
    p->at = p->fetch < td_ring_fetches(c->tiles) ? ROOM : FLUSH;
}

static bool produce(world *w, const ring_case *c)
{
    producer *p = &w->producer;

    switch (p->at) {
    case ROOM: p->at = has_room(w, c) ? WRITE : c->mistake == WAIT_UNPUBLISHED ? WAIT_ROOM : DRAIN; break;
    case DRAIN:
        if (p->under_way)
            publish(w, c);
        if (!p->under_way)
            p->at = WAIT_ROOM;
        break;
    case WAIT_ROOM:
        if (!has_room(w, c))
            return false;
        p->at = WRITE;
        break;
    case WRITE:
        w->held[p->slot] =
            (uint8_t)(2 * td_ring_tile(p->fetch, c->tiles) + (uint32_t)td_ring_is_v(p->fetch, c->tiles));
        w->complete[p->slot] = false;
        if (++p->under_way > c->lag)
            p->at = PUBLISH;
        else
            next_fetch(p, c);
        break;
    case PUBLISH:
        publish(w, c);
        next_fetch(p, c);
        break;
    case FLUSH:
        if (p->under_way)
            publish(w, c);
        if (!p->under_way)
            p->at = PRODUCED;
        break;
    default: return false;
    }
    return true;
}

/* --- A warp that computes --- */

static void reads(const world *w, uint32_t slot, uint32_t tile, bool of_v)
{
    if (w->held[slot] != 2 * tile + of_v)
        wrong |= w->held[slot] == NOTHING ? UNWRITTEN : ANOTHER;
    else if (!w->complete[slot])
        wrong |= INCOMPLETE;
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
        reads(w, next.slot, 0, false);
        go_on(me, FIRST_READ);
        break;
    case FIRST_READ:
        reads(w, next.slot, 0, false);
        release(w, c, next.slot);
        next = td_ring_next(next, c->slots);
        go_on(me, LOOK);
        break;
    case LOOK: {
        if (index == 0 && me->tile && me->tile == c->tiles / 2) {
            if (c->mistake == LEAVE_EARLY)
                go_on(me, CONSUMED);
            if (c->mistake == ARRIVE_UNSEEN) {
                for (uint32_t f = 2u * me->tile; f < td_ring_fetches(c->tiles); f++)
                    release(w, c, f % c->slots);
                go_on(me, CONSUMED);
            }
            if (me->at == CONSUMED)
                break;
        }
        me->more = me->tile + 1u < c->tiles;
        const td_ring_pair now = td_ring_take(&next, me->more, c->slots);
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
            reads(w, me->v_slot, me->tile - 1u, true);
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
            reads(w, k.slot, me->tile + 1u, false);
        reads(w, v.slot, me->tile, true);
        go_on(me, S_READ);
        break;
    case S_READ:
        if (!me->more) {
            go_on(me, LAST_READ);
            break;
        }
        reads(w, k.slot, me->tile + 1u, false);
        release(w, c, k.slot);
        if (c->mistake == RELEASE_UNREAD) /* the tensor cores still read it */
            release(w, c, me->now_slot);
        me->v_slot = me->now_slot;
        me->tile++;
        go_on(me, LOOK);
        break;
    case LAST_READ:
        reads(w, v.slot, me->tile, true);
        go_on(me, CONSUMED);
        break;
    default: return false;
    }
    me->next_slot = (uint8_t)next.slot;
    me->next_odd = (uint8_t)next.odd;
    return true;
}

/* A step of the producer (agent 0) or of a consumer; false if it cannot go on. */
static bool step(world *w, const ring_case *c, uint32_t agent)
{
    return agent ? consume(w, c, agent - 1) : produce(w, c);
}

static bool is_done(const world *w, const ring_case *c)
{
    for (uint32_t i = 0; i < c->consumers; i++)
        if (w->consumers[i].at != CONSUMED)
            return false;
    return w->producer.at == PRODUCED;
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

static void sort(consumer *consumers, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = i; j > 0 && memcmp(&consumers[j], &consumers[j - 1], sizeof *consumers) < 0; j--) {
            const consumer swapped = consumers[j];

            consumers[j] = consumers[j - 1];
            consumers[j - 1] = swapped;
        }
}

/* Whether it is new. Consumers are alike, so their order does not matter (but for the one that is wrong). */
static bool is_new(world *w, const ring_case *c)
{
    if (c->mistake != LEAVE_EARLY && c->mistake != ARRIVE_UNSEEN)
        sort(w->consumers, c->consumers);
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

        for (uint32_t agent = 0; agent <= c->consumers; agent++) {
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
    const uint32_t agents = c->consumers + 1;
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

static const uint32_t dims[] = {32, 64, 96, 128};

static void test_every_order(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < 4; i += 2) /* of those alike, one */
        for (uint32_t consumers = 1; consumers <= TD_HOPPER_GROUPS(dims[i]); consumers++)
            for (uint32_t tiles = 1; tiles <= 12; tiles += tiles < 6 ? 1 : 6) { /* more than two rounds of ten slots */
                const ring_case c = {TD_HOPPER_INLINE_SLOTS(dims[i]), tiles, consumers, TD_RING_LAG, RIGHT};
                const uint32_t what = in_every_order(&c);

                if (what)
                    fail_msg("%u slots, %u tiles, %u consumers: %s", c.slots, c.tiles, c.consumers, named(what));
                if (tiles == 12)
                    print_message("    %u slots, %u consumers: %u states\n", c.slots, c.consumers, states);
            }
}

static void test_many_orders(void **state)
{
    static const uint32_t tiles[] = {1, 2, 3, 4, 5, 9, 10, 11, 13, 26, 64, 101};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t groups = 1; groups <= TD_HOPPER_GROUPS(dims[i]); groups++)
            for (uint32_t t = 0; t < sizeof tiles / sizeof *tiles; t++)
                for (uint64_t seed = 1; seed <= 20; seed++) {
                    const ring_case c = {TD_HOPPER_INLINE_SLOTS(dims[i]), tiles[t], 4 * groups, TD_RING_LAG, RIGHT};
                    const uint32_t what = in_some_order(&c, seed * 1000 + i);

                    if (what)
                        fail_msg("%u slots, %u tiles, %u warps, order %u: %s", c.slots, c.tiles, c.consumers,
                                 (unsigned)seed, named(what));
                }
}

/* A producer that takes two fetches at a time, and one parity for both, is right in a ring with an even number of slots.
 * In one of five the second may begin another round: then it is two rounds ahead of the phase that it waits for, and that
 * an old one has the same parity lets it write over what nobody has read. */
static void test_a_parity_that_is_old(void **state)
{
    ring_case c = {5, 10, 2, TD_RING_LAG, PARITY_FOR_TWO};

    (void)state;
    assert_int_equal(in_every_order(&c) & (ANOTHER | OLD), ANOTHER | OLD);
    for (c.slots = 4; c.slots <= MOST_SLOTS; c.slots += 2)
        assert_int_equal(in_every_order(&c), 0);
}

static void test_mistakes(void **state)
{
    static const struct {
        mistake mistake;
        uint32_t lag, seen;
    } cases[] = {{RELEASE_UNREAD, TD_RING_LAG, ANOTHER}, {WAIT_UNPUBLISHED, 4, STUCK}, {LEAVE_EARLY, TD_RING_LAG, STUCK},
                 {ARRIVE_UNSEEN, TD_RING_LAG, ANOTHER},  {RELEASE_TWICE, TD_RING_LAG, ANOTHER}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ring_case c = {5, 10, 2, cases[i].lag, cases[i].mistake};

        if (!(in_every_order(&c) & cases[i].seen))
            fail_msg("mistake %d is not seen", (int)c.mistake);
    }
    /* A lag that publishing before it waits makes harmless; fewer slots than a consumer may hold and ask for. */
    assert_int_equal(in_every_order(&(ring_case){5, 10, 2, 4, RIGHT}), 0);
    assert_int_equal(in_every_order(&(ring_case){2, 10, 2, TD_RING_LAG, RIGHT}), 0);
    assert_int_equal(in_every_order(&(ring_case){1, 10, 2, TD_RING_LAG, RIGHT}), STUCK);
}

/* What is fetched, and where to: written down once more, by hand. */
static void test_sequence(void **state)
{
    static const char *const fetched[] = {"K0 V0 ", "K0 K1 V0 V1 ", "K0 K1 V0 K2 V1 V2 ", "K0 K1 V0 K2 V1 K3 V2 V3 "};

    (void)state;
    for (uint32_t tiles = 1; tiles <= 4; tiles++) {
        char text[64] = "";

        for (uint32_t f = 0; f < td_ring_fetches(tiles); f++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%c%u ", td_ring_is_v(f, tiles) ? 'V' : 'K',
                     td_ring_tile(f, tiles));
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
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(TD_HOPPER_INLINE_SLOTS(dims[i]) <= MOST_SLOTS);
        assert_true(4 * TD_HOPPER_GROUPS(dims[i]) <= MOST_CONSUMERS);
        assert_int_equal(TD_HOPPER_INLINE_SLOTS(dims[i]), TD_HOPPER_INLINE_SLOTS(dims[i / 2 * 2]));
        assert_int_equal(TD_HOPPER_GROUPS(dims[i]), TD_HOPPER_GROUPS(dims[i / 2 * 2]));
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
