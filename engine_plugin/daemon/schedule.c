/* Whose job is next, in pieces of what length, and what waits in vain.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/daemon/schedule.h"

#define SLICE_NS 400000u      /* of 500 us: what is guessed is not always met */
#define LONG_NS 100000000u    /* on a CPU a frame's job of more than that is cut, too, */
#define LONG_SLICE_NS 20000000u
#define AHEAD_NS 2000000u      /* of a client's on a GPU: beyond two jobs no more than this */
#define STAND_BACK_NS 2000000u /* then a piece of the background's goes, whatever frames wait for */
#define BUSY_GAP_NS 300000u    /* who begins so soon after its last end has a queue */
#define BUSY_FOR_NS 5000000u   /* and is believed to have one for so long */

/* Whether the worker takes another of a client's jobs now. On a GPU that frames may be drawn on the background has one there:
 * between two slices it is left idle for a moment, and changes over to the engine's own work then, which it does not as long
 * as there is more of ours. */
static bool has_room(const td_turns *queue, const td_turn *turn)
{
    const bool background = turn->job_class == TANDEM_CLASS_BACKGROUND;

    if (queue->at_worker[0] + queue->at_worker[1] >= TD_WORKER_SLOTS)
        return false;
    if (background && queue->at_worker[1] >= (queue->is_gpu && !queue->has_frames ? 2u : 1u))
        return false;
    if (!queue->is_gpu)
        return queue->at_worker[turn->job_class] < TD_CPU_DEPTH;
    return turn->at_worker < TD_GPU_DEPTH && (turn->at_worker < 2 || turn->at_worker_ns < AHEAD_NS);
}

static bool counts(const td_turn *turn, uint64_t now)
{
    return (turn->ready && !turn->awaits_output) || (turn->at_worker && turn->busy && now - turn->ended_ns < BUSY_FOR_NS);
}

/* What the client has had that has had least, of those of a class that want something. */
static uint64_t least_of(const td_turns *queue, uint32_t job_class, uint64_t now)
{
    uint64_t least = UINT64_MAX;

    for (const td_turn *t = queue->turns; t < queue->turns + queue->count; t++)
        if (t->job_class == job_class && counts(t, now) && t->virtual_ns < least)
            least = t->virtual_ns;
    return least;
}

static bool goes_before(const td_turn *a, const td_turn *b)
{
    const uint64_t of_a = a->deadline_ns ? a->deadline_ns : UINT64_MAX, of_b = b->deadline_ns ? b->deadline_ns : UINT64_MAX;

    return of_a < of_b || (of_a == of_b && a->virtual_ns < b->virtual_ns);
}

static td_decision decide_class(const td_turns *queue, uint32_t job_class, uint64_t now)
{
    const uint64_t least = least_of(queue, job_class, now);
    td_decision made = {.after = queue->before};

    for (uint32_t i = 0; i < queue->count; i++) {
        const td_turn *turn = &queue->turns[i];

        if (turn->job_class != job_class || !turn->ready || turn->prepared == TD_UNPREPARED || !has_room(queue, turn))
            continue;
        if (turn->prepared == TD_NOT_ASKED)
            return (td_decision){.kind = TD_DECIDE_PREPARE, .turn = i, .after = queue->before};
        if (turn->virtual_ns - least > queue->share_window_ns) {
            made.again = true;
        } else if (made.kind == TD_DECIDE_NOBODY || goes_before(turn, &queue->turns[made.turn])) {
            made.kind = TD_DECIDE_RUN;
            made.turn = i;
        }
    }
    if (made.kind == TD_DECIDE_NOBODY)
        return made;
    made.again = false;
    if (least > made.after.virtual_ns[job_class])
        made.after.virtual_ns[job_class] = least;
    return made;
}

/* Whether the background stands back while a GPU's worker has frames' jobs: what they wait for is the engine's own work on
 * the same GPU, which changes over to that at once where we leave it idle, else only after a time slice of ours. */
static bool stands_back(const td_turns *queue, uint64_t now, uint64_t *since_ns)
{
    if (!queue->is_gpu || !queue->at_worker[TANDEM_CLASS_FRAME]) {
        *since_ns = 0;
        return false;
    }
    if (!*since_ns)
        *since_ns = now;
    return now - *since_ns < STAND_BACK_NS;
}

td_decision td_schedule_decide(const td_turns *queue, uint64_t now)
{
    const td_decision frame = decide_class(queue, TANDEM_CLASS_FRAME, now);
    td_decision background;

    if (frame.kind != TD_DECIDE_NOBODY)
        return frame;
    background = decide_class(queue, TANDEM_CLASS_BACKGROUND, now);
    background.again = background.again || frame.again;
    if (background.kind != TD_DECIDE_RUN)
        return background;
    if (stands_back(queue, now, &background.after.standing_back_ns)) {
        background.kind = TD_DECIDE_NOBODY;
        background.again = true;
    } else {
        background.after.standing_back_ns = 0; /* it has its turn */
    }
    return background;
}

uint64_t td_schedule_join(const td_schedule *schedule, uint32_t job_class, uint64_t virtual_ns)
{
    return virtual_ns < schedule->virtual_ns[job_class] ? schedule->virtual_ns[job_class] : virtual_ns;
}

bool td_schedule_is_busy(uint64_t ended_ns, uint64_t begin_ns)
{
    return begin_ns < ended_ns + BUSY_GAP_NS;
}

uint64_t td_schedule_slice_ns(const td_costs *costs, td_workload what, uint32_t job_class, uint32_t sharing)
{
    if (job_class == TANDEM_CLASS_BACKGROUND)
        return SLICE_NS;
    if (sharing < 2)
        return 0;
    if (costs->is_gpu)
        return SLICE_NS;
    return td_cost_guess(costs, what) > LONG_NS ? LONG_SLICE_NS : 0;
}

/* No wait is without a bound. */
static uint64_t bound_of(const td_waiting *job)
{
    const uint64_t since_computed = job->computed_ns + job->wait_bound_ns;

    if (job->ready_ns)
        return job->has_worker ? UINT64_MAX : job->ready_ns + TD_WIRE_MAX_WAIT_NS;
    if (!job->on_client)
        return UINT64_MAX;
    return since_computed > job->bound_ns ? since_computed : job->bound_ns;
}

td_vain td_schedule_in_vain(const td_waiting *job, uint64_t now, uint64_t *next_ns)
{
    const uint64_t bound = bound_of(job);

    if (job->deadline_ns && now >= job->deadline_ns)
        return TD_VAIN_DEADLINE;
    if (job->deadline_ns && job->deadline_ns < *next_ns)
        *next_ns = job->deadline_ns;
    if (now >= bound)
        return job->ready_ns ? TD_VAIN_WORKER : TD_VAIN_POINT;
    if (bound < *next_ns)
        *next_ns = bound;
    return TD_VAIN_NOT;
}
