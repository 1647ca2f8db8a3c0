/* Sessions of tandemd's worker. What they compute on is their client's: descriptors that its Vulkan exported.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "engine_plugin/client/client.h"
#include "kernels/attention/tuning.h"
#include "kernels/plan_cache.h"

tandem_status td_worker_session_create(const tandem_session_desc *desc, bool imports_only, tandem_session **out)
{
    tandem_session_desc own = *desc;

    if (imports_only)
        own.rung = TANDEM_RUNG_TIMELINE;
    return td_session_make(&own, true, imports_only, out);
}

tandem_status td_worker_session_tune(tandem_session *s, const td_tuning_table *table)
{
    char why[TD_WHY_BYTES] = "";
    const tandem_status status = td_session_take_table(s, table, why);

    if (status == TANDEM_OK)
        td_device_tune(s);
    return td_session_fail(s, __func__, status, why);
}

uint32_t td_worker_session_precision(tandem_session *s, const td_operation *operation, const tandem_operands *op)
{
    const td_operation_layout *layout = &operation->layout;
    uint32_t precision = td_operation_precision(operation, op);
    uint64_t addresses[TD_MAX_VIEWS] = {0};
    const td_plan *plan = NULL;
    char why[TD_WHY_BYTES];

    if (precision != TANDEM_PRECISION_AUTO || !operation->precision)
        return precision;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < layout->view_count; i++) {
        const tandem_view *view = td_view_in(layout, op, i);
        const td_mem *mem = view->mem ? td_mem_find_locked(s, view->mem, "mem", why) : NULL; /* the job says so if not */

        addresses[i] = view->offset_bytes + (mem ? mem->address : 0);
    }
    const tandem_operands placed = td_operands_at(operation, op, addresses);
    /* which goes by few shapes; where there is no plan the job says why */
    const tandem_status status = td_plan_cached(s->plans, operation, &placed, &s->target, &plan, why, sizeof why);
    precision = status == TANDEM_OK ? plan->precision : operation->precision(&placed, &s->target);
    td_plan_drop(&plan);
    pthread_mutex_unlock(&s->lock);
    return precision;
}

tandem_status td_worker_session_import_mem(tandem_session *s, int fd, uint64_t allocation_bytes, bool dedicated,
                                           uint64_t offset_bytes, uint64_t bytes, tandem_mem *out)
{
    char why[TD_WHY_BYTES] = "";
    td_mem *mem = td_mem_new(s, bytes, why);
    tandem_status status = TANDEM_ERROR_NOMEM;

    *out = 0;
    if (mem) {
        mem->source = TANDEM_MEM_FD;
        status = td_cu_mem_import_fd(s->cu, fd, allocation_bytes, dedicated, offset_bytes, bytes, &mem->cu, why,
                                     sizeof why);
        mem->address = mem->cu.address;
        if (status == TANDEM_OK)
            status = td_mem_enter(s, mem, out, why);
        else
            td_mem_free(s, mem);
    }
    return td_session_fail(s, __func__, status, why);
}

tandem_status td_worker_session_import_timeline(tandem_session *s, int fd, bool by_session, uint64_t value,
                                                tandem_timeline *out)
{
    char why[TD_WHY_BYTES] = "";
    td_timeline *timeline = td_session_alloc(s, sizeof *timeline, 64);
    tandem_status status = TANDEM_ERROR_NOMEM;

    *out = 0;
    if (timeline) {
        timeline->by_session = by_session;
        timeline->counter = timeline->promised = timeline->ended = value;
        status = td_cu_timeline_import_fd(s->cu, fd, &timeline->cu, why, sizeof why);
        timeline->imported = status == TANDEM_OK;
    } else {
        td_fail(why, sizeof why, status, "no host memory for a timeline");
    }
    if (status == TANDEM_OK) {
        pthread_mutex_lock(&s->lock);
        status = td_table_add_locked(s, &s->timelines, TD_KIND_TIMELINE, &timeline->object, why);
        if (status == TANDEM_OK)
            *out = timeline->object.id;
        pthread_mutex_unlock(&s->lock);
    }
    if (status != TANDEM_OK && timeline)
        td_timeline_free(s, timeline);
    return td_session_fail(s, __func__, status, why);
}

tandem_mem td_worker_session_model_mem(tandem_session *s, tandem_model model)
{
    char why[TD_WHY_BYTES];
    const td_model *found;
    tandem_mem mem;

    pthread_mutex_lock(&s->lock);
    found = (const td_model *)td_table_find_locked(s, TD_KIND_MODEL, model, "model", why);
    mem = found ? found->mem->object.id : 0;
    pthread_mutex_unlock(&s->lock);
    return mem;
}

tandem_status td_worker_session_make_temp_output(tandem_session *s, uint64_t bytes, tandem_mem *out)
{
    char why[TD_WHY_BYTES] = "";
    td_mem *mem = td_mem_new(s, bytes, why);
    tandem_status status = mem ? td_mem_make_private(s, mem, true, why) : TANDEM_ERROR_NOMEM;

    *out = 0;
    if (status == TANDEM_OK) {
        mem->temp_output = true;
        status = td_mem_enter(s, mem, out, why);
    } else if (mem) {
        td_mem_free(s, mem);
    }
    return td_session_fail(s, __func__, status, why);
}

tandem_status td_worker_session_submit(tandem_session *s, td_submission *from, tandem_ticket *ticket)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;

    *ticket = 0;
    pthread_mutex_lock(&s->lock);
    status = td_job_submit_locked(s, from, ticket, why);
    pthread_mutex_unlock(&s->lock);
    return td_session_fail(s, __func__, status, why);
}

tandem_status td_worker_session_compute(tandem_session *s, td_submission *from, tandem_job_report *report)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;
    td_job *job;

    pthread_mutex_lock(&s->lock);
    status = td_job_prepare_locked(s, from, &job, why);
    if (status == TANDEM_OK)
        status = td_scratch_reserve_locked(s, job, from, job->plan->scratch_bytes, why);
    if (status == TANDEM_OK)
        td_job_compute_locked(s, job, report);
    pthread_mutex_unlock(&s->lock);
    return td_session_fail(s, __func__, status, why);
}

void td_worker_session_release(tandem_session *s)
{
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->order_count; i++) {
        td_job_cancel_locked(s, s->order[i]);
        if (td_job_has_begun(s->order[i]) && s->stream)
            td_stream_cancel(s->stream, s->order[i]->stream_sequence);
    }
    for (uint32_t i = 0; i < s->order_count; i++)
        td_job_release_wait_locked(s, s->order[i]);
    pthread_mutex_unlock(&s->lock);
}

bool td_worker_session_is_broken(tandem_session *s)
{
    bool broken;

    pthread_mutex_lock(&s->lock);
    broken = s->broken != TANDEM_OK;
    pthread_mutex_unlock(&s->lock);
    return broken;
}

void td_worker_session_preempt(tandem_session *s, td_preempt_flag *flag)
{
    pthread_mutex_lock(&s->lock);
    s->preempt = flag;
    pthread_mutex_unlock(&s->lock);
}

void td_worker_session_held(tandem_session *s, uint64_t *held_ns, uint64_t *late_ns)
{
    pthread_mutex_lock(&s->lock);
    *held_ns = s->held_ns;
    *late_ns = s->late_ns;
    pthread_mutex_unlock(&s->lock);
}

static void add_holding(td_holding *list, uint32_t *count, const td_scratch *scratch)
{
    uint32_t at = 0;

    if (!scratch->bytes)
        return;
    while (at < *count && list[at].owner != scratch->owner)
        at++;
    if (at == TD_MAX_JOBS_IN_FLIGHT)
        return;
    if (at == *count)
        list[(*count)++] = (td_holding){scratch->owner, 0};
    list[at].bytes += scratch->bytes;
}

uint32_t td_worker_session_holdings(tandem_session *s, td_holding list[TD_MAX_JOBS_IN_FLIGHT])
{
    uint32_t count = 0;

    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->jobs_in_flight; i++)
        add_holding(list, &count, &s->jobs[i].scratch);
    for (uint32_t i = 0; i < s->retired_scratch_count; i++)
        add_holding(list, &count, &s->retired_scratch[i]);
    pthread_mutex_unlock(&s->lock);
    return count;
}

bool td_worker_session_trim(tandem_session *s, uint64_t owner)
{
    bool some;

    pthread_mutex_lock(&s->lock);
    some = td_scratch_trim_locked(s, owner);
    pthread_mutex_unlock(&s->lock);
    return some;
}
