/* Sessions: create, destroy, info, error text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "engine_plugin/client/tuning_file.h"
#include "interop/os/cpu.h"
#include "interop/os/log.h"
#include "interop/os/memory.h"
#include "kernels/plan_cache.h"
#include "kernels/attention/tuning.h"

uint32_t tandem_version(void)
{
    return TANDEM_VERSION;
}

tandem_status tandem_error_text(tandem_session *session, char *text, size_t bytes)
{
    const char *no_room = !text ? "text is NULL" : !bytes ? "bytes is 0" : NULL;

    if (!session && no_room)
        return td_call_fail(__func__, TANDEM_ERROR_ARG, no_room);
    if (!session || !td_session_usable(session, __func__)) {
        if (!no_room)
            td_text(text, bytes, "%s", td_call_text());
        return session ? TANDEM_ERROR_ARG : TANDEM_OK;
    }
    if (no_room)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, no_room);
    pthread_mutex_lock(&session->lock);
    td_text(text, bytes, "%s", session->error);
    pthread_mutex_unlock(&session->lock);
    return TANDEM_OK;
}

static tandem_status check_desc(const tandem_session_desc *desc, char *why)
{
    const tandem_vulkan *vulkan = desc->vulkan;

    if (desc->backend > TANDEM_BACKEND_CPU)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.backend is %u; it must be 0 (auto), 1 (CUDA) or 2 (CPU)",
                       desc->backend);
    if (!desc->allocate != !desc->release)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.%s is NULL, but desc.%s is not",
                       desc->allocate ? "release" : "allocate", desc->allocate ? "allocate" : "release");
    if (desc->frames_in_flight > TD_MAX_JOBS_IN_FLIGHT)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.frames_in_flight is %u, more than %d",
                       desc->frames_in_flight, TD_MAX_JOBS_IN_FLIGHT);
    if (desc->timing > 1)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.timing is %u, not 0 or 1", desc->timing);
    if (desc->rung > TANDEM_RUNG_CPU)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, 
                       "desc.rung is %u; it must be 0 (the best), 1 (inline), 2 (timeline), 3 (host), 4 (copy) or 5 (cpu)",
                       desc->rung);
    if (desc->job_class > TANDEM_CLASS_BACKGROUND)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, 
                       "desc.job_class is %u; it must be 0 (frame) or 1 (background)", desc->job_class);
    if (desc->reserved)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.reserved is %u, not 0", desc->reserved);
    if (!desc->tuning && desc->tuning_bytes)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.tuning is NULL, but desc.tuning_bytes is %" PRIu64,
                       desc->tuning_bytes);
    if (desc->cuda_stream && !desc->cuda_context)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.cuda_context is NULL, but desc.cuda_stream is not");
    if (desc->cuda_context && (vulkan || desc->socket))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc.cuda_context is for sessions without %s, but desc.%s is not NULL", vulkan ? "Vulkan" : "a daemon",
                       vulkan ? "vulkan" : "socket");
    if (desc->cuda_context && (desc->backend == TANDEM_BACKEND_CPU || (desc->rung && desc->rung != TANDEM_RUNG_HOST)))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.cuda_context is not NULL: desc.backend, %u, must be 0 or 1 (CUDA), and desc.rung, %u, 0 or 3 (host)",
                       desc->backend, desc->rung);
    if (!vulkan)
        return TANDEM_OK;
    if (!vulkan->get_instance_proc_addr || !vulkan->instance || !vulkan->physical_device || !vulkan->device)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.vulkan.%s is NULL",
                       !vulkan->get_instance_proc_addr ? "get_instance_proc_addr"
                       : !vulkan->instance             ? "instance"
                       : !vulkan->physical_device      ? "physical_device"
                                                       : "device");
    if (vulkan->enabled_extension_count && !vulkan->enabled_extensions)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.vulkan.enabled_extensions is NULL, but enabled_extension_count is %u",
                       vulkan->enabled_extension_count);
    if (!vulkan->lock_queue != !vulkan->unlock_queue)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.vulkan.%s is NULL, but its twin is not",
                       vulkan->lock_queue ? "unlock_queue" : "lock_queue");
    if (!vulkan->lock_queue2 != !vulkan->unlock_queue2)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.vulkan.%s is NULL, but its twin is not",
                       vulkan->lock_queue2 ? "unlock_queue2" : "lock_queue2");
    return TANDEM_OK;
}

tandem_status td_session_take_table(tandem_session *s, const td_tuning_table *table, char *why)
{
    if (!s->given)
        s->given = td_session_alloc(s, sizeof *s->given, 64);
    if (!s->given)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for a tuning of %zu bytes",
                       sizeof *s->given);
    if (table)
        *s->given = *table;
    return TANDEM_OK;
}

static tandem_status read_tuning(tandem_session *s, const tandem_session_desc *desc, char *why)
{
    char text[TD_WHY_BYTES - 20];
    tandem_status status = TANDEM_OK;

    if (desc->tuning)
        status = td_session_take_table(s, NULL, why);
    if (desc->tuning && status == TANDEM_OK &&
        td_tuning_parse(desc->tuning, desc->tuning_bytes, s->given, text, sizeof text) != TANDEM_OK)
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.tuning: %s", text);
    return status;
}

static bool make_lock(tandem_session *s)
{
    pthread_cond_t *const conds[] = {&s->work, &s->watch, &s->changed, &s->reap, &s->judge};
    enum { CONDS = sizeof conds / sizeof *conds };
    int made = 0;

    while (made < CONDS && td_cond_make(conds[made]))
        made++;
    s->has_lock = made == CONDS && !pthread_mutex_init(&s->lock, NULL);
    while (!s->has_lock && made > 0)
        pthread_cond_destroy(conds[--made]);
    return s->has_lock;
}

static void table_free(tandem_session *s, td_table *table)
{
    td_session_free(s, table->slots, table->capacity * sizeof *table->slots);
    td_session_free(s, table->generations, table->capacity * sizeof *table->generations);
}

static void release_refused(tandem_session *s)
{
    bool more = true;

    while (more) {
        char line[TD_WHY_BYTES];

        pthread_mutex_lock(&s->lock);
        more = td_refused_release_locked(s, NULL, line);
        pthread_mutex_unlock(&s->lock);
        if (more)
            td_logf(&s->log, TD_LOG_WARN, "%s", line);
    }
}

void td_session_drop(tandem_session *s)
{
    if (atomic_fetch_sub(&s->holders, 1) > 1)
        return;
    td_process_mark_free(&s->mark);
    if (s->release)
        s->release(s->user, s);
    else
        td_aligned_free(s);
}

/* Accepts a half-made one. */
static void free_session(tandem_session *s)
{
    atomic_store(&s->over, true);
    td_judge_stop(s);
    td_reaper_stop(s);
    if (s->has_lock)
        release_refused(s); /* on the inline rung jobs are behind what waits for them, in the engine's queue */
    if (s->has_lock) {
        s->ops->stop(s);
        td_session_leave_queue(s);
    }
    for (uint32_t i = 0; i < s->mems.capacity; i++)
        if (s->mems.slots[i] && !((td_mem *)s->mems.slots[i])->of_model) {
            td_forgotten_tell(s, (td_mem *)s->mems.slots[i]);
            td_mem_free(s, (td_mem *)s->mems.slots[i]);
        }
    for (uint32_t i = 0; i < s->instances.capacity; i++)
        if (s->instances.slots[i])
            td_instance_free(s, (td_instance *)s->instances.slots[i]);
    for (uint32_t i = 0; i < s->models.capacity; i++)
        if (s->models.slots[i])
            td_model_free(s, (td_model *)s->models.slots[i]);
    for (uint32_t i = 0; i < s->timelines.capacity; i++)
        if (s->timelines.slots[i])
            td_timeline_free(s, (td_timeline *)s->timelines.slots[i]);
    td_leaving_free(s);
    td_device_close(s);
    for (uint32_t i = 0; s->jobs && i < s->jobs_in_flight; i++)
        td_plan_drop(&s->jobs[i].plan);
    if (s->plans)
        td_plan_cache_clear(s->plans);
    td_session_free(s, s->jobs, s->jobs_in_flight * sizeof *s->jobs);
    td_session_free(s, s->plans, sizeof *s->plans);
    td_session_free(s, s->given, sizeof *s->given);
    table_free(s, &s->mems);
    table_free(s, &s->timelines);
    table_free(s, &s->models);
    table_free(s, &s->instances);
    if (s->has_lock) {
        pthread_mutex_destroy(&s->lock);
        pthread_cond_destroy(&s->work);
        pthread_cond_destroy(&s->watch);
        pthread_cond_destroy(&s->changed);
        pthread_cond_destroy(&s->reap);
        pthread_cond_destroy(&s->judge);
    }
    td_session_drop(s);
}

tandem_status tandem_session_destroy(tandem_session **session)
{
    if (!td_session_usable(session ? *session : NULL, __func__))
        return TANDEM_ERROR_ARG;
    free_session(*session);
    *session = NULL;
    return TANDEM_OK;
}

/* Tells the ids of one session from those of the 4095 made before and after it. */
static atomic_uint sessions_made;

/* Its text is kept for who asks without a session, as there is none. */
static tandem_status create_failed(td_log log, tandem_status status, const char *why)
{
    if (!log.fn)
        return td_call_fail("tandem_session_create", status, why);
    td_call_keep("tandem_session_create", why);
    td_logf(&log, TD_LOG_ERROR, "tandem_session_create: %s", why);
    return status;
}

/* One whose size was forgotten can still be answered where it says; of one with another that is none nothing is believed. */
static tandem_status refuse_size(const tandem_session_desc *desc, const char *why)
{
    td_log log = {0};

    if (!desc->struct_bytes) {
        td_fail(desc->error_text, desc->error_text_bytes, TANDEM_ERROR_ARG, "%s", why);
        log = (td_log){desc->log, desc->user};
    }
    return create_failed(log, TANDEM_ERROR_ARG, why);
}

tandem_status td_session_make(const tandem_session_desc *given, bool of_worker, bool imports_only, tandem_session **out)
{
    char why[TD_WHY_BYTES] = "";
    tandem_session_desc known, *const desc = &known;
    tandem_vulkan vulkan;
    tandem_session *s = NULL;
    tandem_status status;
    td_log log;

    if (out)
        *out = NULL;
    if (!given)
        return create_failed((td_log){0}, TANDEM_ERROR_ARG, "desc is NULL");
    status = TD_STRUCT_IN("desc", given, desc, why, sizeof why);
    if (status == TANDEM_ERROR_ARG)
        return refuse_size(given, why);
    log = desc->log ? (td_log){desc->log, desc->user} : td_log_of_environment();
    if (status == TANDEM_OK && desc->vulkan) {
        status = TD_STRUCT_IN("desc.vulkan", desc->vulkan, &vulkan, why, sizeof why);
        desc->vulkan = &vulkan;
    }
    if (status == TANDEM_OK)
        status = out ? check_desc(desc, why) : td_fail(why, sizeof why, TANDEM_ERROR_ARG, "out is NULL");
    if (status != TANDEM_OK)
        goto fail;
    status = TANDEM_ERROR_NOMEM;
    if (desc->allocate)
        s = desc->allocate(desc->user, sizeof *s, 64);
    else
        s = td_aligned_alloc(64, (size_t)td_align_up(sizeof *s, 64));
    if (!s) {
        td_fail(why, sizeof why, status, "no host memory for a session of %zu bytes", sizeof *s);
        goto fail;
    }
    memset(s, 0, sizeof *s);
    s->log = log;
    s->allocate = desc->allocate;
    s->release = desc->release;
    s->user = desc->user;
    atomic_init(&s->block_bytes, sizeof *s);
    atomic_init(&s->holders, 1);
    s->jobs_in_flight = desc->frames_in_flight ? desc->frames_in_flight : 3;
    s->timing = desc->timing;
    s->job_class = desc->job_class;
    s->way = (td_way){TD_DEVICE_CPU, TD_SHARING_COPY}; /* until it stands on what it finds */
    s->of_worker = of_worker;
    s->imports_only = imports_only;
    s->ops = desc->socket ? &td_backend_remote : &td_backend_local;
    s->wait_bound_ns = desc->wait_bound_ns ? desc->wait_bound_ns : 2000000000u;
    s->threads = td_core_count();
    if (desc->cpu_threads && desc->cpu_threads < s->threads)
        s->threads = desc->cpu_threads;
    s->salt = atomic_fetch_add(&sessions_made, 1) & 0xfff;
    s->jobs = td_session_alloc(s, s->jobs_in_flight * sizeof *s->jobs, 64);
    if (!td_process_mark_make(&s->mark)) {
        td_fail(why, sizeof why, status, "no memory for a page: mmap: %s", strerror(errno));
        goto fail;
    }
    s->plans = td_session_alloc(s, sizeof *s->plans, 64);
    if (!s->jobs || !s->plans || !make_lock(s)) {
        td_fail(why, sizeof why, status, "no host memory for %u jobs in flight", s->jobs_in_flight);
        goto fail;
    }
    status = read_tuning(s, desc, why);
    if (status == TANDEM_OK)
        status = td_device_open(s, desc, why);
    if (status == TANDEM_OK)
        td_device_tune(s);
    if (status == TANDEM_OK)
        status = s->ops->start(s, why);
    if (status != TANDEM_OK)
        goto fail;
    td_logf(&s->log, TD_LOG_INFO, "session on %s: %s (%s)", s->device_name, s->isa, s->rung_reason);
    *out = s;
    return TANDEM_OK;
fail:
    if (s)
        free_session(s);
    td_fail(desc->error_text, desc->error_text_bytes, status, "%s", why);
    return create_failed(log, status, why);
}

tandem_status tandem_session_create(const tandem_session_desc *desc, tandem_session **out)
{
    return td_session_make(desc, false, false, out);
}

static void read_info(tandem_session *s, tandem_info *info)
{
    info->backend = s->way.device == TD_DEVICE_CPU ? TANDEM_BACKEND_CPU : TANDEM_BACKEND_CUDA;
    info->rung = s->rung;
    info->cpu_threads = s->threads;
    td_text(info->rung_reason, sizeof info->rung_reason, "%s", s->rung_reason);
    memcpy(info->device, s->device_name, sizeof info->device);
    memcpy(info->isa, s->isa, sizeof info->isa);
    info->tuning = s->tuning;
    td_text(info->tuning_reason, sizeof info->tuning_reason, "%s", s->tuning_reason);
    if (s->cu) {
        const td_cu_counts counts = td_cu_device_counts(s->cu);

        info->cuda_copies = counts.copies;
        info->cuda_allocations = counts.allocations;
        info->cuda_host_waits = counts.host_waits;
        info->cuda_launches = counts.launches;
        info->device_bytes = td_cu_device_allocated_bytes(s->cu);
    }
    pthread_mutex_lock(&s->lock);
    info->sm = s->sm;
    info->cuda_driver_version = s->cuda_driver_version;
    memcpy(info->device_uuid, s->device_uuid, sizeof info->device_uuid);
    td_jobs_advance_locked(s);
    info->host_bytes = atomic_load(&s->block_bytes) + s->mem_host_bytes;
    info->device_bytes += s->mem_device_bytes;
    info->jobs_submitted = s->submitted;
    info->jobs_done = s->done;
    info->jobs_stale = s->stale;
    info->jobs_cancelled = s->cancelled;
    info->jobs_failed = s->failed;
    pthread_mutex_unlock(&s->lock);
}

tandem_status tandem_session_info(tandem_session *session, tandem_info *info)
{
    char why[TD_WHY_BYTES] = "";
    tandem_info known = {0};
    tandem_status status;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!info)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, "info is NULL");
    status = TD_STRUCT_CHECK("info", info, why, sizeof why);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    read_info(session, &known);
    TD_STRUCT_OUT(info, &known);
    return TANDEM_OK;
}
