/* Objects that go by themselves once the last job that needs them has ended.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A retired object stays in its table, where no call finds it any more, until nobody uses it. Then a thread takes it out
 * and frees it as a destruction would: that may block, in the driver or for the engine's queue, and who retires does not.
 * The thread begins with the first object that is retired, and sleeps while there is none.
 */
#include "engine_plugin/client/local.h"
#include "engine_plugin/client/network.h"

#define GPU_LOOK_NS 1000000u /* how often jobs are looked at whose end wakes nobody */
#define CPU_LOOK_NS 10000000u

/* The object whose uses say whether one is needed: a model's are those of the mem behind its tensors. */
static const td_object *used_of(const td_object *object)
{
    switch (object->id >> 60) {
    case TD_KIND_MODEL: return &((const td_model *)object)->mem->object;
    case TD_KIND_INSTANCE: return &((const td_instance *)object)->state->object;
    default: return object;
    }
}

static bool is_retired(const td_object *object)
{
    return object && object->retired && !(object->id >> 60 == TD_KIND_MEM && ((const td_mem *)object)->of_model);
}

/* One that nobody needs any more, or NULL. `waits`: there are others. */
static td_object *find_idle_locked(tandem_session *s, bool *waits)
{
    const td_table *const tables[] = {&s->instances, &s->models, &s->mems, &s->timelines};

    *waits = false;
    for (uint32_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (uint32_t i = 0; i < tables[t]->capacity; i++) {
            td_object *object = tables[t]->slots[i];

            if (is_retired(object) && !used_of(object)->uses)
                return object;
            *waits = *waits || is_retired(object);
        }
    return NULL;
}

/* Called and left with the lock, which it lets go. */
static void free_locked(tandem_session *s, td_object *object)
{
    char line[TD_WHY_BYTES] = "";

    switch (object->id >> 60) {
    case TD_KIND_MEM: td_mem_remove_locked(s, (td_mem *)object); break;
    case TD_KIND_TIMELINE:
        td_refused_release_locked(s, (td_timeline *)object, line);
        td_timeline_remove_locked(s, (td_timeline *)object);
        break;
    case TD_KIND_MODEL: td_model_remove_locked(s, (td_model *)object); break;
    default: td_table_remove_locked(&s->instances, object); break;
    }
    pthread_mutex_unlock(&s->lock);
    if (line[0])
        td_logf(&s->log, TD_LOG_WARN, "%s", line);
    switch (object->id >> 60) {
    case TD_KIND_MEM: td_mem_end(s, (td_mem *)object); break;
    case TD_KIND_TIMELINE: td_timeline_end(s, (td_timeline *)object); break;
    case TD_KIND_MODEL: td_model_end(s, (td_model *)object); break;
    default: td_instance_end(s, (td_instance *)object); break;
    }
    pthread_mutex_lock(&s->lock);
}

static void *reap(void *session)
{
    tandem_session *s = session;

    td_thread_prepare("tandem reaper");
    pthread_mutex_lock(&s->lock);
    while (!s->reaper_ends) {
        td_object *object;
        bool waits;

        td_jobs_advance_locked(s);
        object = find_idle_locked(s, &waits);
        if (object)
            free_locked(s, object);
        else
            td_cond_wait_until(s, &s->reap,
                               waits ? td_now_ns() + (td_gpu_signals(s) ? GPU_LOOK_NS : CPU_LOOK_NS) : UINT64_MAX);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void td_reaper_stop(tandem_session *s)
{
    if (!s->has_reaper)
        return;
    pthread_mutex_lock(&s->lock);
    s->reaper_ends = true;
    pthread_cond_signal(&s->reap);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->reaper, NULL);
    s->has_reaper = false;
}

static tandem_status retire_locked(tandem_session *s, uint64_t id, char *why)
{
    const td_kind kind = (td_kind)(id >> 60);
    const bool known = kind == TD_KIND_MODEL || kind == TD_KIND_TIMELINE || kind == TD_KIND_INSTANCE;
    td_object *object = kind == TD_KIND_INSTANCE ? (td_object *)td_instance_find_locked(s, id, "id", why)
                                                 : td_table_find_locked(s, known ? kind : TD_KIND_MEM, id, "id", why);

    if (!object)
        return TANDEM_ERROR_ARG;
    if (kind == TD_KIND_MEM && ((td_mem *)object)->of_model)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "id is 0x%llx, a mem which belongs to a model",
                       (unsigned long long)id);
    if (!s->has_reaper && !(s->has_reaper = td_thread_start(&s->reaper, reap, s)))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no thread could be started");
    object->retired = true;
    if (kind == TD_KIND_MODEL) /* its tensors are views of it */
        ((td_model *)object)->mem->object.retired = true;
    pthread_cond_broadcast(&s->changed); /* who waits for a point that nobody signals any more uses it */
    pthread_cond_signal(&s->reap);
    return TANDEM_OK;
}

tandem_status tandem_retire(tandem_session *session, uint64_t id)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    pthread_mutex_lock(&session->lock);
    status = retire_locked(session, id, why);
    pthread_mutex_unlock(&session->lock);
    return td_session_fail(session, __func__, status, why);
}
