/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_plugin/run/job_life.h"

static td_life_actions report(td_job_life *life, tandem_job_state state, tandem_status status)
{
    const td_life_actions actions = {.report = !life->reported, .state = state, .status = status};

    life->reported = true;
    return actions;
}

/* What is too late is reported at once, what was cancelled when it is over. */
static td_life_actions give_up(td_job_life *life)
{
    td_life_actions actions = {0};

    life->fate = TD_FATE_GIVEN_UP;
    if (life->end_state != TANDEM_JOB_CANCELLED)
        actions = report(life, life->end_state, life->end_status);
    actions.drop = life->stage == TD_STAGE_HELD && !life->busy;
    return actions;
}

static void ask(td_job_life *life, tandem_job_state state, tandem_status status)
{
    if (life->fate != TD_FATE_WANTED)
        return;
    life->fate = TD_FATE_DECIDING;
    life->end_state = state;
    life->end_status = status;
}

static td_life_actions decide(td_job_life *life)
{
    if (life->fate != TD_FATE_DECIDING)
        return (td_life_actions){0};
    return life->stage == TD_STAGE_BEGUN ? (td_life_actions){.claim = true} : give_up(life);
}

static td_life_actions end(td_job_life *life, tandem_job_state state, tandem_status status, bool signalled)
{
    td_life_actions actions = report(life, state, status);

    life->stage = TD_STAGE_OVER;
    actions.signal = !signalled;
    actions.retire = true;
    return actions;
}

static td_life_actions end_through(td_job_life *life, const td_life_event *event)
{
    if (life->fate == TD_FATE_GIVEN_UP || (life->fate == TD_FATE_DECIDING && event->gave_up))
        return end(life, life->end_state, life->end_status, event->signalled);
    return end(life, event->state, event->status, event->signalled);
}

td_life_actions td_life_step(td_job_life *life, const td_life_event *event)
{
    const td_life_actions none = {0};

    if (life->stage == TD_STAGE_OVER)
        return none;
    switch (event->kind) {
    case TD_LIFE_TAKEN: life->busy = true; return none;
    case TD_LIFE_LEFT: life->busy = false; return none;
    case TD_LIFE_BEGUN: life->stage = TD_STAGE_BEGUN; return none;
    case TD_LIFE_RETURNED:
        life->stage = TD_STAGE_HELD;
        return life->fate == TD_FATE_GIVEN_UP ? give_up(life) : decide(life);
    case TD_LIFE_ASKED: ask(life, event->state, event->status); return decide(life);
    case TD_LIFE_TIME:
        if (life->has_deadline && event->now_ns >= life->deadline_ns)
            ask(life, TANDEM_JOB_STALE, TANDEM_OK);
        return decide(life);
    case TD_LIFE_WON: return life->fate == TD_FATE_DECIDING ? give_up(life) : none;
    case TD_LIFE_LOST:
        if (life->fate == TD_FATE_DECIDING)
            life->fate = TD_FATE_COMMITTED;
        return none;
    case TD_LIFE_GAVE_UP:
        ask(life, event->state, event->status);
        if (life->fate == TD_FATE_DECIDING)
            life->fate = TD_FATE_GIVEN_UP;
        return none;
    case TD_LIFE_REPORT: return report(life, event->state, event->status);
    case TD_LIFE_THROUGH: return life->stage == TD_STAGE_BEGUN ? end_through(life, event) : none;
    case TD_LIFE_TURN:
        if (life->stage == TD_STAGE_HELD && life->fate == TD_FATE_GIVEN_UP && !life->busy)
            return end(life, life->end_state, life->end_status, false);
        return none;
    case TD_LIFE_GONE: return end(life, event->state, event->status, event->signalled);
    }
    return none;
}
