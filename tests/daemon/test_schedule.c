/* tandemd's schedule, alone: who is next, in pieces of what length, and what waits in vain.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/daemon/schedule.h"
#include "kernels/attention/attention.h"

#define US 1000ull
#define MS 1000000ull
#define NOW (1000 * MS)
#define WINDOW (2 * MS)
enum { FRAME = TANDEM_CLASS_FRAME, BACKGROUND = TANDEM_CLASS_BACKGROUND };

static td_turns queue_of(bool is_gpu)
{
    return (td_turns){.is_gpu = is_gpu, .share_window_ns = WINDOW};
}

/* Somebody whose job can run. */
static td_turn *join(td_turns *queue, uint32_t job_class, uint64_t virtual_ns)
{
    td_turn *turn = &queue->turns[queue->count++];

    *turn = (td_turn){.job_class = job_class, .ready = true, .prepared = TD_PREPARED, .virtual_ns = virtual_ns};
    queue->has_frames = queue->has_frames || job_class == FRAME;
    return turn;
}

/* The worker has another one. */
static void give(td_turns *queue, td_turn *turn, uint64_t ns)
{
    queue->at_worker[turn->job_class]++;
    turn->at_worker++;
    turn->at_worker_ns += ns;
}

static void expect(const td_turns *queue, const td_turn *who)
{
    const td_decision made = td_schedule_decide(queue, NOW);

    assert_int_equal(made.kind, who ? TD_DECIDE_RUN : TD_DECIDE_NOBODY);
    if (who)
        assert_int_equal(made.turn, who - queue->turns);
}

static void nobody_where_nobody_can(void **state)
{
    td_turns queue = queue_of(false);
    td_turn *one;

    (void)state;
    expect(&queue, NULL);
    one = join(&queue, FRAME, 0);
    expect(&queue, one);
    one->ready = false;
    expect(&queue, NULL);
    one->ready = true;
    one->prepared = TD_UNPREPARED;
    expect(&queue, NULL);
    assert_false(td_schedule_decide(&queue, NOW).again);
}

static void frames_go_before_the_background(void **state)
{
    td_turns queue = queue_of(false);
    td_turn *behind = join(&queue, BACKGROUND, 0), *frame;

    (void)state;
    expect(&queue, behind);
    behind->deadline_ns = NOW + 1; /* however soon that is, and however much the other has had */
    frame = join(&queue, FRAME, 900 * MS);
    expect(&queue, frame);
    frame->ready = false;
    expect(&queue, behind);
}

static void of_two_the_one_that_has_had_less(void **state)
{
    td_turns queue = queue_of(false);
    td_turn *more = join(&queue, FRAME, 11 * MS), *less = join(&queue, FRAME, 10 * MS);

    (void)state;
    expect(&queue, less);
    more->virtual_ns = less->virtual_ns; /* of two alike the first */
    expect(&queue, more);
}

static void a_deadline_goes_first_within_the_window(void **state)
{
    td_turns queue = queue_of(false);
    td_turn *late = join(&queue, FRAME, 10 * MS), *soon = join(&queue, FRAME, 10 * MS + WINDOW);

    (void)state;
    soon->deadline_ns = NOW + 5 * MS;
    expect(&queue, soon);
    late->deadline_ns = NOW + 6 * MS;
    expect(&queue, soon);
    late->deadline_ns = NOW + 4 * MS;
    expect(&queue, late);
    late->deadline_ns = 0;
    soon->virtual_ns++; /* it has had too much */
    expect(&queue, late);
    assert_false(td_schedule_decide(&queue, NOW).again); /* who runs will end */
    soon->virtual_ns = 9 * MS;
    soon->deadline_ns = NOW + 5 * MS;
    late->deadline_ns = NOW + 4 * MS; /* whoever has had less */
    expect(&queue, late);
}

/* Whose job would be next waits for the share of another that has some at the worker, for as long as that may want more. */
static void who_has_had_too_much_waits_for_the_other(void **state)
{
    td_turns queue = queue_of(false);
    td_turn *poor = join(&queue, FRAME, 10 * MS), *rich = join(&queue, FRAME, 20 * MS);

    (void)state;
    poor->ready = false;
    expect(&queue, rich); /* it wants nothing */
    give(&queue, poor, MS);
    poor->busy = true;
    poor->ended_ns = NOW - MS;
    expect(&queue, NULL);
    assert_true(td_schedule_decide(&queue, NOW).again);
    queue.share_window_ns = 10 * MS; /* not that much */
    expect(&queue, rich);
    queue.share_window_ns = WINDOW;
    poor->ended_ns = NOW - 5 * MS;
    expect(&queue, rich);
    poor->ended_ns = NOW - MS;
    poor->busy = false;
    expect(&queue, rich);
    poor->busy = true;
    poor->at_worker = 0;
    expect(&queue, rich);
}

/* By decisions alone: clients whose jobs take as long as they like get the same time, within the window and a job. */
static void shares_are_even_in_the_long_run(void **state)
{
    static const uint64_t takes[] = {300 * US, 1100 * US, 1700 * US, 90 * US};
    enum { CLIENTS = sizeof takes / sizeof *takes };
    td_turns queue = queue_of(false);
    uint64_t least = UINT64_MAX, most = 0;

    (void)state;
    for (int i = 0; i < CLIENTS; i++)
        join(&queue, FRAME, 0)->deadline_ns = i == 1 ? NOW : 0; /* one of them always has the earliest deadline */
    for (int k = 0; k < 20000; k++) {
        const td_decision made = td_schedule_decide(&queue, NOW);

        assert_int_equal(made.kind, TD_DECIDE_RUN);
        queue.before = made.after;
        queue.turns[made.turn].virtual_ns += takes[made.turn];
    }
    for (int i = 0; i < CLIENTS; i++) {
        least = queue.turns[i].virtual_ns < least ? queue.turns[i].virtual_ns : least;
        most = queue.turns[i].virtual_ns > most ? queue.turns[i].virtual_ns : most;
    }
    assert_true(least > 1000 * MS && most - least <= WINDOW + takes[2]);
    assert_in_range(td_schedule_join(&queue.before, FRAME, 0), least - takes[2], least); /* where one who comes now begins */
    assert_int_equal(td_schedule_join(&queue.before, FRAME, most), most);
    assert_int_equal(td_schedule_join(&queue.before, BACKGROUND, 0), 0);
}

static void the_worker_has_room_for_so_many(void **state)
{
    td_turns cpu = queue_of(false), gpu = queue_of(true);
    td_turn *one = join(&cpu, FRAME, 0), *other = join(&cpu, FRAME, 0), *behind = join(&cpu, BACKGROUND, 0);

    (void)state;
    for (int i = 0; i < TD_CPU_DEPTH; i++) {
        expect(&cpu, one);
        give(&cpu, one, MS);
    }
    expect(&cpu, behind); /* not even another's frame */
    give(&cpu, behind, MS);
    expect(&cpu, NULL);

    one = join(&gpu, FRAME, 0);
    other = join(&gpu, FRAME, 1);
    give(&gpu, one, 10 * MS);
    expect(&gpu, one);
    give(&gpu, one, 10 * MS); /* two, and they take long */
    expect(&gpu, other);
    one->at_worker_ns = 2 * MS;
    expect(&gpu, other);
    one->at_worker_ns = 2 * MS - 1;
    expect(&gpu, one);
    one->at_worker_ns = 100 * US;
    for (int i = 2; i < TD_GPU_DEPTH; i++) {
        expect(&gpu, one);
        give(&gpu, one, 100 * US);
    }
    expect(&gpu, other);
    gpu.at_worker[FRAME] = TD_WORKER_SLOTS;
    expect(&gpu, NULL);
}

static void a_gpu_has_two_of_the_background_where_nobody_draws(void **state)
{
    td_turns queue = queue_of(true);
    td_turn *behind = join(&queue, BACKGROUND, 0);

    (void)state;
    give(&queue, behind, 100 * US);
    expect(&queue, behind);
    queue.has_frames = true;
    expect(&queue, NULL);
    queue.has_frames = false;
    give(&queue, behind, 100 * US);
    expect(&queue, NULL);
}

static void the_background_stands_back_for_frames_at_a_gpu(void **state)
{
    td_turns queue = queue_of(true);
    td_turn *frame = join(&queue, FRAME, 0), *behind = join(&queue, BACKGROUND, 0);
    td_decision made;

    (void)state;
    give(&queue, frame, MS);
    frame->ready = false;
    made = td_schedule_decide(&queue, NOW);
    assert_int_equal(made.kind, TD_DECIDE_NOBODY);
    assert_true(made.again);
    assert_int_equal(made.after.standing_back_ns, NOW);
    queue.before = made.after;
    made = td_schedule_decide(&queue, NOW + 2 * MS - 1);
    assert_int_equal(made.kind, TD_DECIDE_NOBODY);
    assert_int_equal(made.after.standing_back_ns, NOW);
    made = td_schedule_decide(&queue, NOW + 2 * MS); /* long enough */
    assert_int_equal(made.kind, TD_DECIDE_RUN);
    assert_int_equal(made.turn, behind - queue.turns);
    assert_int_equal(made.after.standing_back_ns, 0);
    queue.at_worker[FRAME] = 0;
    assert_int_equal(td_schedule_decide(&queue, NOW).kind, TD_DECIDE_RUN);
    queue.at_worker[FRAME] = 1;
    queue.is_gpu = false; /* there it stands still by itself */
    assert_int_equal(td_schedule_decide(&queue, NOW).kind, TD_DECIDE_RUN);
}

/* What costs something to find out is asked of those who may be next, of frames before the background, and once. */
static void what_a_job_writes_to_is_asked_for_first(void **state)
{
    td_turns queue = queue_of(false);
    td_turn *behind = join(&queue, BACKGROUND, 0), *first = join(&queue, FRAME, 0), *second = join(&queue, FRAME, 1);
    td_decision made;

    (void)state;
    behind->prepared = first->prepared = second->prepared = TD_NOT_ASKED;
    for (int i = 0; i < 2; i++) {
        made = td_schedule_decide(&queue, NOW);
        assert_int_equal(made.kind, TD_DECIDE_PREPARE);
        assert_int_equal(made.turn, (i ? second : first) - queue.turns);
        queue.turns[made.turn].prepared = i ? TD_PREPARED : TD_UNPREPARED;
    }
    expect(&queue, second); /* nobody asks what the background's writes to */
    second->prepared = TD_UNPREPARED;
    made = td_schedule_decide(&queue, NOW);
    assert_int_equal(made.kind, TD_DECIDE_PREPARE);
    assert_int_equal(made.turn, behind - queue.turns);
    give(&queue, behind, MS); /* no room for another: nor here */
    expect(&queue, NULL);
}

/* Nor does anybody wait for the share of one whose output is being made, if it has nothing at the worker. */
static void who_awaits_an_output_holds_nobody_up(void **state)
{
    td_turns queue = queue_of(false);
    td_turn *poor = join(&queue, FRAME, 0), *rich = join(&queue, FRAME, 50 * MS);

    (void)state;
    expect(&queue, poor);
    poor->prepared = TD_UNPREPARED;
    expect(&queue, NULL);
    poor->awaits_output = true;
    expect(&queue, rich);
}

static void who_begins_at_once_again_is_busy(void **state)
{
    (void)state;
    assert_true(td_schedule_is_busy(NOW, NOW + 299 * US));
    assert_false(td_schedule_is_busy(NOW, NOW + 300 * US));
}

static uint64_t slice(bool is_gpu, uint32_t job_class, uint32_t sharing, double ns_per_mflop)
{
    const td_costs costs = {.is_gpu = is_gpu, .ns_per_mflop = ns_per_mflop};
    tandem_operands op = {.attention = {.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 1024, .kv_len = 1024, .head_dim = 64,
                                        .precision = TANDEM_PRECISION_8B}}; /* of some hundred Mflop */

    return td_schedule_slice_ns(&costs, (td_workload){.operation = &td_operation_attention, .op = &op}, job_class, sharing);
}

static void long_jobs_are_cut_where_others_may_want_to_go(void **state)
{
    (void)state;
    for (int gpu = 0; gpu < 2; gpu++) {
        assert_int_equal(slice(gpu, BACKGROUND, 1, 1), 400 * US);
        assert_int_equal(slice(gpu, FRAME, 1, 1e7), 0); /* nobody else is there */
    }
    assert_int_equal(slice(true, FRAME, 2, 1), 400 * US);
    assert_int_equal(slice(false, FRAME, 2, 1), 0); /* not long */
    assert_int_equal(slice(false, FRAME, 2, 1e7), 20 * MS);
}

static td_vain in_vain(td_waiting job, uint64_t now, uint64_t *next_ns)
{
    *next_ns = UINT64_MAX;
    return td_schedule_in_vain(&job, now, next_ns);
}

static void no_job_waits_for_good(void **state)
{
    const td_waiting point = {.on_client = true, .bound_ns = NOW, .wait_bound_ns = 5 * MS, .has_worker = true};
    td_waiting job = point;
    uint64_t next_ns;

    (void)state;
    assert_int_equal(in_vain(job, NOW - 1, &next_ns), TD_VAIN_NOT);
    assert_int_equal(next_ns, NOW);
    assert_int_equal(in_vain(job, NOW, &next_ns), TD_VAIN_POINT);
    job.computed_ns = NOW - 2 * MS; /* its client goes on: the time begins again */
    assert_int_equal(in_vain(job, NOW + 3 * MS - 1, &next_ns), TD_VAIN_NOT);
    assert_int_equal(next_ns, NOW + 3 * MS);
    assert_int_equal(in_vain(job, NOW + 3 * MS, &next_ns), TD_VAIN_POINT);
    job = point;
    job.on_client = false; /* it follows from another job */
    assert_int_equal(in_vain(job, NOW + 1000 * MS, &next_ns), TD_VAIN_NOT);
    assert_int_equal(next_ns, UINT64_MAX);
    job = point;
    job.ready_ns = NOW; /* the point has come */
    assert_int_equal(in_vain(job, NOW + TD_WIRE_MAX_WAIT_NS, &next_ns), TD_VAIN_NOT);
    job.has_worker = false;
    assert_int_equal(in_vain(job, NOW + TD_WIRE_MAX_WAIT_NS - 1, &next_ns), TD_VAIN_NOT);
    assert_int_equal(next_ns, NOW + TD_WIRE_MAX_WAIT_NS);
    assert_int_equal(in_vain(job, NOW + TD_WIRE_MAX_WAIT_NS, &next_ns), TD_VAIN_WORKER);
}

static void a_deadline_ends_whatever_waits(void **state)
{
    uint64_t next_ns;
    td_waiting job = {.deadline_ns = NOW, .on_client = true, .bound_ns = NOW - MS, .has_worker = true};

    (void)state;
    assert_int_equal(in_vain(job, NOW, &next_ns), TD_VAIN_DEADLINE);
    assert_int_equal(in_vain(job, NOW - 1, &next_ns), TD_VAIN_POINT); /* which may have come: then the deadline is next */
    assert_int_equal(next_ns, NOW);
    job.ready_ns = 1;
    assert_int_equal(in_vain(job, NOW - 1, &next_ns), TD_VAIN_NOT);
    assert_int_equal(next_ns, NOW);
    assert_int_equal(in_vain(job, NOW, &next_ns), TD_VAIN_DEADLINE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_where_nobody_can),
        cmocka_unit_test(frames_go_before_the_background),
        cmocka_unit_test(of_two_the_one_that_has_had_less),
        cmocka_unit_test(a_deadline_goes_first_within_the_window),
        cmocka_unit_test(who_has_had_too_much_waits_for_the_other),
        cmocka_unit_test(shares_are_even_in_the_long_run),
        cmocka_unit_test(the_worker_has_room_for_so_many),
        cmocka_unit_test(a_gpu_has_two_of_the_background_where_nobody_draws),
        cmocka_unit_test(the_background_stands_back_for_frames_at_a_gpu),
        cmocka_unit_test(what_a_job_writes_to_is_asked_for_first),
        cmocka_unit_test(who_awaits_an_output_holds_nobody_up),
        cmocka_unit_test(who_begins_at_once_again_is_busy),
        cmocka_unit_test(long_jobs_are_cut_where_others_may_want_to_go),
        cmocka_unit_test(no_job_waits_for_good),
        cmocka_unit_test(a_deadline_ends_whatever_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
