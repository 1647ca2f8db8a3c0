/* Scratch of jobs: each slot keeps what its last job had, and gives it up for a larger one.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * To free a stream's memory is to wait for the device, so what was outgrown there waits until no job is under way. In a
 * worker session each client's jobs may hold so much and no more, and none finds what another's left.
 */
#include <inttypes.h>

#include "engine_plugin/client/local.h"

#define SCRATCH_LEAST_BYTES 65536u
#define SCRATCH_ALIGNMENT 256u

void td_scratch_free(tandem_session *s, td_scratch *scratch)
{
    if (scratch->mem) {
        s->mem_device_bytes -= scratch->mem->device_share;
        td_mem_free(s, scratch->mem);
    }
    td_session_free(s, scratch->block, scratch->bytes);
    *scratch = (td_scratch){0};
}

void td_scratch_free_retired(tandem_session *s)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < s->retired_scratch_count; i++)
        if (s->retired_scratch[i].recorded && !s->stopping)
            s->retired_scratch[kept++] = s->retired_scratch[i];
        else
            td_scratch_free(s, &s->retired_scratch[i]);
    s->retired_scratch_count = kept;
}

bool td_scratch_trim_locked(tandem_session *s, uint64_t owner)
{
    const uint32_t outgrown = s->retired_scratch_count;
    bool some;

    if (s->stream && s->order_count)
        return false;
    td_scratch_free_retired(s);
    some = s->retired_scratch_count < outgrown;
    for (uint32_t i = 0; i < s->jobs_in_flight; i++) {
        td_job *job = &s->jobs[i];

        if (job->number || !job->scratch.bytes || job->scratch.recorded ||
            (owner != TD_EVERYBODY && job->scratch.owner != owner))
            continue;
        td_scratch_free(s, &job->scratch);
        some = true;
    }
    return some;
}

/* Outgrown blocks of a stream wait until it is idle, and so do those of a job that is under way. */
static bool is_kept(const tandem_session *s, const td_job *job)
{
    return job->scratch.bytes && ((s->stream && s->order_count) || job->number || job->scratch.recorded);
}

static tandem_status put_away(tandem_session *s, td_job *job, uint64_t next_owner, char *why)
{
    td_scratch *scratch = &job->scratch;
    const bool keep = is_kept(s, job);

    if (keep && s->retired_scratch_count == TD_MAX_RETIRED_SCRATCH)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "%d blocks of scratch are still in use", TD_MAX_RETIRED_SCRATCH);
    if (keep)
        s->retired_scratch[s->retired_scratch_count++] = *scratch;
    else
        td_scratch_free(s, scratch);
    *scratch = (td_scratch){.owner = next_owner};
    return TANDEM_OK;
}

/* What a job's owner holds beside what this job would give back. */
static uint64_t held_by_others(const tandem_session *s, const td_job *job, uint64_t owner, bool *in_use)
{
    uint64_t bytes = 0;

    *in_use = false;
    for (uint32_t i = 0; i < s->jobs_in_flight; i++) {
        const td_job *other = &s->jobs[i];

        if (other->scratch.owner != owner || (other == job && !is_kept(s, job)))
            continue;
        bytes += other->scratch.bytes;
        *in_use = *in_use || (other->number && other->scratch.bytes);
    }
    for (uint32_t i = 0; i < s->retired_scratch_count; i++)
        bytes += s->retired_scratch[i].owner == owner ? s->retired_scratch[i].bytes : 0;
    return bytes;
}

/* Whether a job's owner may hold so much in place of its scratch. What it does not use is freed first. */
static tandem_status may_hold(tandem_session *s, const td_job *job, td_submission *from, uint64_t bytes, char *why)
{
    const uint64_t most = from->most_bytes;
    bool in_use;
    uint64_t held;

    from->lacks_bytes = 0;
    if (!s->of_worker)
        return TANDEM_OK;
    do {
        held = held_by_others(s, job, from->owner, &in_use);
        if (bytes <= most && held <= most - bytes)
            return TANDEM_OK;
    } while (td_scratch_trim_locked(s, from->owner));
    if (in_use && bytes <= most)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "earlier jobs hold the scratch that this one may have");
    from->lacks_bytes = bytes;
    return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM,
                   "the job needs %" PRIu64 " bytes of scratch, and may have %" PRIu64, bytes, most);
}

static tandem_status make_scratch(tandem_session *s, uint64_t owner, uint64_t bytes, td_scratch *out, char *why)
{
    tandem_status status = TANDEM_OK;

    out->bytes = bytes;
    out->owner = owner;
    if (s->stream) {
        out->mem = td_mem_new(s, bytes, why);
        status = out->mem ? td_mem_make_private(s, out->mem, false, why) : TANDEM_ERROR_NOMEM;
        if (out->mem) {
            out->address = out->mem->address;
            s->mem_device_bytes += out->mem->device_share;
        }
    } else {
        out->block = (s->of_worker ? td_session_alloc : td_session_alloc_dirty)(s, bytes, SCRATCH_ALIGNMENT);
        out->address = (uintptr_t)out->block;
        if (!out->block)
            status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for %" PRIu64 " bytes of scratch",
                             bytes);
    }
    if (status != TANDEM_OK)
        td_scratch_free(s, out);
    return status;
}

tandem_status td_scratch_reserve_locked(tandem_session *s, td_job *job, td_submission *from, uint64_t bytes, char *why)
{
    const uint64_t grown = td_align_up(job->scratch.bytes + job->scratch.bytes / 2, 4096);
    tandem_status status = TANDEM_OK;
    uint64_t wanted;
    bool more;

    if (!s->order_count)
        td_scratch_free_retired(s);
    if (job->scratch.owner != from->owner) /* another client's, who may have left something in it */
        status = put_away(s, job, from->owner, why);
    if (status != TANDEM_OK || bytes <= job->scratch.bytes)
        return status;
    if (bytes > (uint64_t)INT64_MAX)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "the job needs %" PRIu64 " bytes of scratch", bytes);
    wanted = bytes > SCRATCH_LEAST_BYTES ? td_align_up(bytes, 4096) : SCRATCH_LEAST_BYTES;
    more = is_kept(s, job) && wanted < grown; /* few outgrown blocks at a time */
    if (more && may_hold(s, job, from, grown, why) == TANDEM_OK)
        wanted = grown;
    else
        status = may_hold(s, job, from, wanted, why);
    if (status == TANDEM_OK)
        status = put_away(s, job, from->owner, why);
    return status == TANDEM_OK ? make_scratch(s, from->owner, wanted, &job->scratch, why) : status;
}
