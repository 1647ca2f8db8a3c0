/* A release or an acquire that the engine forgot, where they copy bytes: elsewhere it shows nothing, here the job reads zeros
 * or its result reaches nobody. Told once a mem.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Commands may be recorded once and submitted every frame, so all that is known is whether there ever was such a record. By
 * the time a job begins, what it waits for has run: a release that is not recorded then was forgotten. Whoever asked for the
 * host's address of a mem may have filled it or read it there, and what a job wrote may be for other jobs: nothing is
 * missing then.
 */
#include <inttypes.h>
#include <string.h>

#include "engine_plugin/client/client.h"

static bool is_copied(const td_mem *mem)
{
    return mem && mem->staging.buffer && !mem->host_known;
}

static bool was_written(const td_mem *mem)
{
    return mem->written_begin < mem->written_end;
}

static uint64_t begin_of(const td_job *job, uint32_t view)
{
    return job->views[view] - job->mems[view]->address;
}

/* Whether jobs write a mem from end to end, this one included: then nothing of it needs a release. */
static bool is_all_written(const td_job *job, const td_mem *mem)
{
    uint64_t first = was_written(mem) ? mem->written_begin : UINT64_MAX, last = mem->written_end;

    for (uint32_t i = 0; i < job->view_count; i++)
        if (job->mems[i] == mem && job->written[i]) {
            const uint64_t begin = begin_of(job, i), end = begin + job->extents[i].bytes;

            first = begin < first ? begin : first;
            last = end > last ? end : last;
        }
    return !first && last >= mem->bytes;
}

static bool lacks_release(const td_job *job, uint32_t view)
{
    const td_mem *mem = job->mems[view];

    if (!is_copied(mem) || mem->released || mem->told_release)
        return false;
    return job->written[view] ? mem->acquired && !is_all_written(job, mem) : !was_written(mem);
}

static bool lacks_acquire(const td_mem *mem)
{
    return is_copied(mem) && was_written(mem) && !mem->acquired && !mem->read_by_job && !mem->told_acquire;
}

/* "NAME.mem 0x.., NAME.mem 0x..", each mem once. */
static void name_mems(td_job *job, bool release, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (uint32_t i = 0; i < job->view_count; i++) {
        td_mem *mem = job->mems[i];

        if (!(release ? lacks_release(job, i) : mem && job->written[i] && lacks_acquire(mem)))
            continue;
        *(release ? &mem->told_release : &mem->told_acquire) = true;
        td_text(text + used, bytes - used, "%s%s.mem 0x%" PRIx64, used ? ", " : "", job->names[i], mem->object.id);
        used = strlen(text);
    }
}

void td_forgotten_look_locked(tandem_session *s, td_job *job)
{
    char names[300];

    if (!s->vk)
        return;
    for (uint32_t i = 0; i < job->view_count; i++)
        if (job->mems[i] && !job->written[i] && begin_of(job, i) < job->mems[i]->written_end &&
            begin_of(job, i) + job->extents[i].bytes > job->mems[i]->written_begin)
            job->mems[i]->read_by_job = true;
    if (s->hint[0]) /* one at a time: the next job comes */
        return;
    name_mems(job, true, names, sizeof names);
    if (names[0])
        td_text(s->hint, sizeof s->hint,
                "job %" PRIu64 " uses %s, but tandem_record_release() was never recorded for it: on this rung a release "
                "copies the bytes to where jobs see them, so this one sees none of the engine's",
                job->number, names);
    if (!s->hint[0]) {
        name_mems(job, false, names, sizeof names);
        if (names[0])
            td_text(s->hint, sizeof s->hint,
                    "job %" PRIu64 " writes %s once more, but tandem_record_acquire() was never recorded for it: on this "
                    "rung an acquire copies the bytes back, so what an earlier job wrote there has reached nobody",
                    job->number, names);
    }
    if (s->hint[0])
        pthread_cond_signal(&s->watch);
}

void td_forgotten_wrote_locked(const td_job *job)
{
    for (uint32_t i = 0; i < job->view_count; i++) {
        td_mem *mem = job->mems[i];
        uint64_t begin, end;

        if (!mem || !job->written[i])
            continue;
        begin = begin_of(job, i);
        end = begin + job->extents[i].bytes;
        if (!was_written(mem) || begin < mem->written_begin)
            mem->written_begin = begin;
        mem->written_end = end > mem->written_end ? end : mem->written_end;
    }
}

void td_forgotten_tell(tandem_session *s, const td_mem *mem)
{
    if (lacks_acquire(mem))
        td_logf(&s->log, TD_LOG_WARN,
                "mem 0x%" PRIx64 " ends, but tandem_record_acquire() was never recorded for it: on this rung an acquire "
                "copies the bytes back, so what jobs wrote there has reached nobody",
                mem->object.id);
}
