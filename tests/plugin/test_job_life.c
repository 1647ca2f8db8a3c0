/* The life of a job (engine_plugin/run/job_life.h) against all that can happen to one, in every order.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The world is a job, an executor that may have it, and threads that look at it. From each state that can be reached each
 * move that is possible is made. In all of them
 *   its point is signalled once, and its report ends once
 *   what it uses is not free while an executor or another thread is at it
 *   it is DONE if its executor wrote its output, and neither STALE nor CANCELLED then, but for an executor that cannot say:
 *   what that was kept from too late counts as given up
 *   once it is over nothing is to be done any more, and until then it can come to be over
 * Ways to get it wrong are caught, each.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/run/job_life.h"

#define DEADLINE_NS 1000u
enum { MOST_WORLDS = 1 << 16 };

typedef enum mistake {
    RIGHT,
    REPORTS_AGAIN,  /* a report that has ended is forgotten */
    SIGNALS_ALWAYS, /* a point that the GPU has signalled is signalled */
    NEVER_SIGNALS,
    DROPS_BUSY,     /* of a job that is given up all goes, whoever is at it */
    DROPS_BEGUN,
    RETIRES_BUSY,
    LOST_IS_WON,    /* who asked too late is told that it was in time */
    NO_VERDICT,     /* that an undecided executor gave up is not looked at */
    FORGETS_ASKED,  /* what comes back from its executor is not given up, although it was asked to be */
    NO_TURN,
    LAST_REASON,    /* who asks last says in what it ends */
    EARLY,          /* the deadline is taken to have passed */
} mistake;

typedef struct job_case {
    bool claims;      /* its executor claims the output before it writes it, and says whether it did */
    bool gpu_signals; /* once it has begun its executor signals its point */
    bool has_deadline;
    bool in_pieces; /* its executor gets it piece by piece, and answers nothing but in how they end */
    mistake mistake;
} job_case;

/* HANDED: a thread is handing it over. */
typedef enum executor { ABSENT, HANDED, HAS, CLAIMED, COMMITTED, GAVE_UP } executor;

typedef struct world {
    td_job_life life;
    executor executor;
    bool kept_off; /* the executor was told not to write, before it had begun to */
    bool through;  /* it is, and uses nothing any more */
    bool failed, late, gone, piece_failed;
    uint8_t signals, reports, retires;
    tandem_job_state first_reason, reported;
} world;

typedef enum move {
    TIME_PASSES, LOOK, CANCEL, LOSE_WAIT, TAKE, LEAVE, BEGIN, HAND_OVER, IS_HANDED, REFUSE, CLAIM, COMMIT, GIVE_UP,
    GIVE_UP_BY_ITSELF, END_PIECE, FAIL_PIECE, END, FAIL, COLLECT, TURN, BREAK, ABANDON, MOVES
} move;

static const char *wrong; /* the first that is */

static void check(bool holds, const char *text)
{
    if (!holds && !wrong)
        wrong = text;
}

static bool is_using(const world *w)
{
    return w->executor != ABSENT && !w->through;
}

static bool wrote(const world *w, const job_case *c)
{
    return c->claims ? w->executor == COMMITTED : w->through && !w->failed && !w->kept_off;
}

static td_life_actions wrongly(world *w, const job_case *c, td_life_event e)
{
    const td_job_life before = w->life;
    td_life_actions a;

    if (c->mistake == EARLY && e.kind == TD_LIFE_TIME)
        e.now_ns = DEADLINE_NS;
    if (c->mistake == LOST_IS_WON && e.kind == TD_LIFE_LOST)
        e.kind = TD_LIFE_WON;
    if (c->mistake == NO_VERDICT)
        e.gave_up = false;
    if (c->mistake == NO_TURN && e.kind == TD_LIFE_TURN)
        return (td_life_actions){0};
    if (c->mistake == FORGETS_ASKED && before.fate == TD_FATE_DECIDING &&
        (e.kind == TD_LIFE_RETURNED || (before.stage == TD_STAGE_HELD && e.kind != TD_LIFE_TURN))) {
        w->life.stage = TD_STAGE_HELD;
        return (td_life_actions){0};
    }
    if (c->mistake == LAST_REASON && e.kind == TD_LIFE_ASKED)
        w->life.end_state = e.state;
    a = td_life_step(&w->life, &e);
    if (c->mistake == REPORTS_AGAIN)
        w->life.reported = false;
    a.signal = (a.signal || (c->mistake == SIGNALS_ALWAYS && a.retire)) && c->mistake != NEVER_SIGNALS;
    if (w->life.fate == TD_FATE_GIVEN_UP && before.fate != TD_FATE_GIVEN_UP)
        a.drop = a.drop || (c->mistake == DROPS_BUSY && before.busy) || (c->mistake == DROPS_BEGUN && !before.busy);
    if (c->mistake == RETIRES_BUSY && e.kind == TD_LIFE_TURN && before.busy && before.stage == TD_STAGE_HELD &&
        before.fate == TD_FATE_GIVEN_UP) {
        w->life.busy = false;
        a = td_life_step(&w->life, &e);
        w->life.busy = true;
    }
    return a;
}

/* What an executor says to who wants it to give the job up; false while it decides. */
static bool answer(world *w, const job_case *c, td_life_event_kind *says)
{
    *says = TD_LIFE_WON;
    if (c->in_pieces)
        return false;
    if (w->executor == ABSENT || w->executor == HANDED || w->executor == CLAIMED)
        return false;
    if (w->executor == COMMITTED)
        *says = TD_LIFE_LOST;
    else
        w->kept_off = !c->claims || w->executor == HAS;
    return true;
}

static void happen(world *w, const job_case *c, td_life_event e)
{
    td_life_actions a = wrongly(w, c, e);
    td_life_event_kind says;

    if (a.claim && answer(w, c, &says))
        a = wrongly(w, c, (td_life_event){.kind = says});
    if (a.signal)
        w->signals++;
    if (a.report) {
        w->reports++;
        w->reported = a.state;
        check(a.state != TANDEM_JOB_DONE || wrote(w, c), "a job is DONE whose output was not written");
        check(a.state != TANDEM_JOB_STALE || w->late || w->first_reason == TANDEM_JOB_STALE, "a job is STALE before its deadline");
        check(a.state != TANDEM_JOB_CANCELLED || w->first_reason == TANDEM_JOB_CANCELLED, "another reason than the first holds");
        check(a.state != TANDEM_JOB_DONE || !w->piece_failed, "a job is DONE of which a piece failed");
    }
    if (a.drop || a.retire)
        check(!is_using(w) || w->gone, "an executor uses what is free");
    if (a.drop || (a.retire && e.kind == TD_LIFE_TURN))
        check(!w->life.busy, "a thread uses what is free");
    w->retires = (uint8_t)(w->retires + a.retire);
    if (w->reported == TANDEM_JOB_STALE || w->reported == TANDEM_JOB_CANCELLED)
        check(!c->claims || w->executor != COMMITTED, "a job has written its output, and is said not to have");
    check(w->signals < 2, "a point is signalled twice");
    check(w->reports < 2, "a report ends twice");
    if (w->life.stage == TD_STAGE_OVER)
        check(w->signals && w->reports && w->retires == 1, "a job is over, and its point, its report or its slot is not");
}

static void ask(world *w, const job_case *c, tandem_job_state state, tandem_status status)
{
    if (!w->first_reason)
        w->first_reason = state;
    happen(w, c, (td_life_event){.kind = TD_LIFE_ASKED, .state = state, .status = status});
}

static void end_executor(world *w, const job_case *c, bool failed)
{
    w->through = true;
    w->failed = failed;
    w->signals = (uint8_t)(w->signals + c->gpu_signals);
    check(w->signals < 2, "a point is signalled twice");
}

/* False if it is not possible now. */
static bool make(world *w, const job_case *c, move m)
{
    const bool held = w->life.stage == TD_STAGE_HELD;
    const bool at_work = is_using(w) && w->executor != HANDED;

    switch (m) {
    case TIME_PASSES:
        if (w->late || !c->has_deadline)
            return false;
        w->late = true;
        return true;
    case LOOK:
        if (w->late && w->life.fate == TD_FATE_WANTED && !w->first_reason)
            w->first_reason = TANDEM_JOB_STALE;
        happen(w, c, (td_life_event){.kind = TD_LIFE_TIME, .now_ns = w->late ? DEADLINE_NS : DEADLINE_NS - 1});
        return true;
    case CANCEL: ask(w, c, TANDEM_JOB_CANCELLED, TANDEM_OK); return true;
    case LOSE_WAIT: ask(w, c, TANDEM_JOB_FAILED, TANDEM_ERROR_LOST); return true;
    case TAKE:
        if (w->life.busy)
            return false;
        happen(w, c, (td_life_event){.kind = TD_LIFE_TAKEN});
        return true;
    case LEAVE:
        if (!w->life.busy || w->executor == HANDED)
            return false;
        happen(w, c, (td_life_event){.kind = TD_LIFE_LEFT});
        return true;
    case BEGIN:
    case HAND_OVER:
        if (!held || w->executor != ABSENT || w->life.fate == TD_FATE_GIVEN_UP || (m == HAND_OVER && !w->life.busy) ||
            (c->in_pieces && w->life.fate != TD_FATE_WANTED))
            return false;
        w->executor = m == BEGIN ? HAS : HANDED;
        happen(w, c, (td_life_event){.kind = TD_LIFE_BEGUN});
        return true;
    case IS_HANDED:
        if (w->executor != HANDED)
            return false;
        w->executor = HAS;
        return true;
    case REFUSE:
        if (w->executor != HANDED)
            return false;
        w->executor = ABSENT;
        happen(w, c, (td_life_event){.kind = TD_LIFE_LEFT});
        happen(w, c, (td_life_event){.kind = TD_LIFE_RETURNED});
        return true;
    case CLAIM:
        if (!at_work || !c->claims || w->executor != HAS || w->kept_off)
            return false;
        w->executor = CLAIMED;
        return true;
    case COMMIT:
        if (!at_work || w->executor != CLAIMED)
            return false;
        w->executor = COMMITTED;
        return true;
    case GIVE_UP: /* it was asked to while it decided, or before */
        if (!at_work || !c->claims || w->life.fate == TD_FATE_WANTED || (w->executor != CLAIMED && !w->kept_off))
            return false;
        w->executor = GAVE_UP;
        return true;
    case GIVE_UP_BY_ITSELF: /* and says so: tandemd */
        if (!at_work || !c->claims || w->executor != HAS)
            return false;
        w->executor = GAVE_UP;
        if (!w->first_reason)
            w->first_reason = TANDEM_JOB_STALE;
        happen(w, c, (td_life_event){.kind = TD_LIFE_GAVE_UP, .state = TANDEM_JOB_STALE});
        return true;
    case END_PIECE:
    case FAIL_PIECE: /* of several that the executor has the others may be through later, and well */
        if (!at_work || !c->in_pieces || w->piece_failed)
            return false;
        if (m == FAIL_PIECE) {
            w->piece_failed = true;
            if (!w->first_reason)
                w->first_reason = TANDEM_JOB_FAILED;
            happen(w, c, (td_life_event){.kind = TD_LIFE_GAVE_UP, .state = TANDEM_JOB_FAILED});
            return true;
        }
        w->executor = ABSENT;
        happen(w, c, (td_life_event){.kind = TD_LIFE_RETURNED});
        return true;
    case END:
        if (!at_work || (c->claims && w->executor != COMMITTED && w->executor != GAVE_UP))
            return false;
        end_executor(w, c, false);
        return true;
    case FAIL:
        if (!at_work || w->executor == COMMITTED)
            return false;
        end_executor(w, c, true);
        return true;
    case COLLECT:
        if (!w->through)
            return false;
        happen(w, c,
               (td_life_event){.kind = TD_LIFE_THROUGH,
                               .state = w->failed ? TANDEM_JOB_FAILED : TANDEM_JOB_DONE,
                               .status = w->failed ? TANDEM_ERROR_DEVICE : TANDEM_OK,
                               .gave_up = w->executor == GAVE_UP,
                               .signalled = c->gpu_signals});
        return true;
    case TURN: happen(w, c, (td_life_event){.kind = TD_LIFE_TURN}); return true;
    case BREAK:
        happen(w, c, (td_life_event){.kind = TD_LIFE_REPORT, .state = TANDEM_JOB_FAILED, .status = TANDEM_ERROR_DEVICE});
        return true;
    case ABANDON:
        w->gone = true;
        happen(w, c,
               (td_life_event){.kind = TD_LIFE_GONE,
                               .state = TANDEM_JOB_FAILED,
                               .status = TANDEM_ERROR_LOST,
                               .signalled = c->gpu_signals && w->through});
        return true;
    case MOVES: break;
    }
    return false;
}

/* --- All worlds --- */

static world worlds[MOST_WORLDS];
static bool comes_to_an_end[MOST_WORLDS];
static uint32_t world_count;

static bool is_same(const world *a, const world *b)
{
    const td_job_life *l = &a->life, *m = &b->life;

    return l->stage == m->stage && l->fate == m->fate && l->busy == m->busy && l->reported == m->reported &&
           l->end_state == m->end_state && l->end_status == m->end_status && a->executor == b->executor &&
           a->kept_off == b->kept_off && a->through == b->through && a->failed == b->failed && a->late == b->late &&
           a->gone == b->gone && a->piece_failed == b->piece_failed && a->signals == b->signals &&
           a->reports == b->reports && a->retires == b->retires && a->first_reason == b->first_reason &&
           a->reported == b->reported;
}

static uint32_t number_of(const world *w)
{
    uint32_t at = 0;

    while (at < world_count && !is_same(&worlds[at], w))
        at++;
    assert_true(at < MOST_WORLDS);
    if (at == world_count)
        worlds[world_count++] = *w;
    return at;
}

static bool is_over(const world *w)
{
    return w->life.stage == TD_STAGE_OVER;
}

/* Nothing is to be done for what happens to a job that is over. */
static void check_over(const world *w, const job_case *c)
{
    for (int kind = TD_LIFE_TAKEN; kind <= TD_LIFE_GONE; kind++) {
        world after = *w;
        const td_life_actions a = wrongly(&after, c, (td_life_event){.kind = (td_life_event_kind)kind,
                                                                     .state = TANDEM_JOB_FAILED,
                                                                     .now_ns = DEADLINE_NS});

        check(!a.claim && !a.signal && !a.report && !a.drop && !a.retire, "something is done for a job that is over");
    }
}

/* A job comes to be over without somebody's doing; one that is to be given up, also without an executor that takes it. */
static bool comes_by_itself(const world *w, move m)
{
    if (m == CANCEL || m == LOSE_WAIT || m == BREAK || m == ABANDON)
        return false;
    return w->life.fate == TD_FATE_WANTED || (m != BEGIN && m != HAND_OVER);
}

static void check_ends(const job_case *c)
{
    bool more = true;

    for (uint32_t i = 0; i < world_count; i++)
        comes_to_an_end[i] = is_over(&worlds[i]);
    while (more && !wrong) {
        more = false;
        for (uint32_t i = world_count; i-- > 0;)
            for (int m = 0; m < MOVES && !comes_to_an_end[i]; m++) {
                world after = worlds[i];

                if (!comes_by_itself(&after, (move)m) || !make(&after, c, (move)m))
                    continue;
                comes_to_an_end[i] = comes_to_an_end[number_of(&after)];
                more = more || comes_to_an_end[i];
            }
    }
    for (uint32_t i = 0; i < world_count; i++)
        check(comes_to_an_end[i], "a job cannot end");
}

/* What is wrong in some order, or NULL. */
static const char *in_every_order(const job_case *c)
{
    wrong = NULL;
    world_count = 1;
    memset(worlds, 0, sizeof *worlds);
    worlds[0].life.has_deadline = c->has_deadline;
    worlds[0].life.deadline_ns = DEADLINE_NS;
    for (uint32_t i = 0; i < world_count && !wrong; i++) {
        if (is_over(&worlds[i])) {
            check_over(&worlds[i], c);
            continue;
        }
        for (int m = 0; m < MOVES && !wrong; m++) {
            world after = worlds[i];

            if (make(&after, c, (move)m))
                number_of(&after);
        }
    }
    if (!wrong)
        check_ends(c);
    return wrong;
}

static void all_orders_end_well(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        const job_case c = {.claims = i / 4 == 1, .in_pieces = i / 4 == 2, .gpu_signals = i & 1, .has_deadline = i & 2};
        const char *text = in_every_order(&c);

        printf("%s, point by the %s, %s: %u states\n",
               c.in_pieces ? "in pieces" : c.claims ? "claims its output" : "claims nothing",
               c.gpu_signals ? "GPU" : "host", c.has_deadline ? "deadline" : "no deadline", world_count);
        if (text)
            fail_msg("%s", text);
        assert_true(world_count > 100);
    }
}

static void mistakes_are_caught(void **state)
{
    (void)state;
    for (int m = REPORTS_AGAIN; m <= EARLY; m++) {
        const job_case c = {.claims = true, .gpu_signals = m == SIGNALS_ALWAYS, .has_deadline = true, .mistake = (mistake)m};

        if (!in_every_order(&c))
            fail_msg("mistake %d was not caught", m);
        printf("mistake %d: %s\n", m, wrong);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_orders_end_well),
        cmocka_unit_test(mistakes_are_caught),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
