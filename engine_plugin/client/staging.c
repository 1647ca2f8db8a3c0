/* The rung `copy`: where the renderer and CUDA share no memory, bytes go through the host's.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   VkBuffer  --release-->  staging  --job-->  CUDA memory  --job-->  staging  --acquire-->  VkBuffer
 *
 * Between jobs the staging memory alone holds a mem's bytes, whoever wrote them last: the engine, the host or a job. So
 * no job trusts what an earlier one left on the device; each brings what its views read, and takes back what it wrote.
 * CUDA copies from staging memory that it can register, else through pinned memory beside it, piece by piece, so that
 * the processor copies one piece while the GPU copies another. (An H200 with driver 580 registers cached memory of
 * Vulkan's: 55 GB/s each way; a memcpy there makes 6.5. It refuses what is device-local.)
 */
#include <string.h>

#include "engine_plugin/client/client.h"

/* A piece is long enough to hide what it costs to enqueue (about 10 us), and there are few of them. */
#define PIECE_BYTES (1u << 20)
enum { MOST_PIECES = 8 };

typedef struct range {
    td_mem *mem;
    uint64_t begin, end; /* in the mem */
} range;

typedef struct ranges {
    range list[TD_JOB_VIEWS];
    uint32_t count;
} ranges;

tandem_status td_staging_make(tandem_session *s, td_mem *mem, char *why)
{
    char refused[TD_WHY_BYTES];
    tandem_status status = TANDEM_OK;

    mem->host = mem->staging.host ? mem->staging.host : mem->host;
    mem->address = (uintptr_t)mem->host;
    if (!s->cu)
        return TANDEM_OK;
    if (!mem->host) { /* no Vulkan, and no memory of the caller's */
        status = td_cu_mem_alloc_host(s->cu, mem->bytes, &mem->pinned, why, TD_WHY_BYTES);
        mem->host = mem->pinned.host;
        mem->host_share += mem->bytes;
    } else if (td_cu_mem_register(s->cu, mem->host, td_align_up(mem->bytes, 4096), &mem->pinned, refused,
                                  sizeof refused) != TANDEM_OK) {
        td_logf(&s->log, TD_LOG_DEBUG, "staging memory goes through pinned memory: %s", refused);
        mem->bounce = true;
        status = td_cu_mem_alloc_host(s->cu, mem->bytes, &mem->pinned, why, TD_WHY_BYTES);
        mem->host_share += mem->bytes;
    }
    if (status == TANDEM_OK)
        status = td_cu_mem_alloc(s->cu, mem->bytes, &mem->cu, why, TD_WHY_BYTES);
    mem->address = mem->cu.address;
    return status;
}

/* Adds a view's bytes; ranges of one mem that touch become one. */
static void add_range(ranges *to, range add)
{
    for (uint32_t i = 0; i < to->count;) {
        const range *old = &to->list[i];

        if (old->mem != add.mem || add.end < old->begin || old->end < add.begin) {
            i++;
            continue;
        }
        add.begin = old->begin < add.begin ? old->begin : add.begin;
        add.end = old->end > add.end ? old->end : add.end;
        to->list[i] = to->list[--to->count];
        i = 0;
    }
    to->list[to->count++] = add;
}

static range range_of(const td_job *job, uint32_t view)
{
    td_mem *mem = job->mems[view];
    const uint64_t begin = job->views[view] - mem->address;

    return (range){mem, begin, begin + job->extents[view].bytes};
}

static bool is_staged(const td_job *job, uint32_t view)
{
    return job->mems[view] && job->mems[view]->pinned.kind;
}

/* Whether there are bytes of others between the first and the last byte of a view. */
static bool has_gaps(const td_extent *e)
{
    uint64_t span = e->row_bytes;
    uint32_t i = 0;

    while (i < e->dimensions && e->stride[i] == span)
        span *= e->count[i++];
    return i < e->dimensions;
}

/* A view's rows alone. */
static void copy_rows(char *to, const char *from, const td_extent *e)
{
    const uint64_t n[3] = {e->dimensions > 0 ? e->count[0] : 1, e->dimensions > 1 ? e->count[1] : 1,
                           e->dimensions > 2 ? e->count[2] : 1};

    for (uint64_t i = 0; i < n[2]; i++)
        for (uint64_t j = 0; j < n[1]; j++)
            for (uint64_t k = 0; k < n[0]; k++) {
                const uint64_t at = (e->dimensions > 2 ? i * e->stride[2] : 0) +
                                    (e->dimensions > 1 ? j * e->stride[1] : 0) +
                                    (e->dimensions > 0 ? k * e->stride[0] : 0);

                memcpy(to + at, from + at, e->row_bytes);
            }
}

static td_stream_copy copy_of(const range *r, uint64_t begin, uint64_t end)
{
    return (td_stream_copy){r->mem->cu.address + begin, (char *)r->mem->pinned.host + begin, end - begin};
}

/* Ends behind the next piece of a range. */
static uint64_t piece_end(const range *r, uint64_t at)
{
    const uint64_t least = (r->end - r->begin + MOST_PIECES - 1) / MOST_PIECES;
    const uint64_t piece = least > PIECE_BYTES ? least : PIECE_BYTES;

    return r->end - at > piece ? at + piece : r->end;
}

/* Written where it stays, since there are bytes of others in between. */
static bool is_in_place(const td_job *job, uint32_t view)
{
    return job->written[view] && !job->mems[view]->bounce && has_gaps(&job->extents[view]);
}

static bool share_host_bytes(const td_job *a, uint32_t i, const td_job *b, uint32_t j)
{
    const range of_a = range_of(a, i), of_b = range_of(b, j);
    const uint64_t at_a = (uintptr_t)of_a.mem->host, at_b = (uintptr_t)of_b.mem->host;

    return at_a + of_a.begin < at_b + of_b.end && at_b + of_b.begin < at_a + of_a.end;
}

bool td_staging_must_wait(const td_job *job, const td_job *earlier)
{
    if (td_staging_takes_back(earlier)) /* that comes behind all that is on the stream by then */
        return true;
    for (uint32_t i = 0; i < job->view_count; i++)
        for (uint32_t j = 0; j < earlier->view_count; j++) {
            const bool both = is_staged(job, i) && is_staged(earlier, j) && share_host_bytes(job, i, earlier, j);

            /* Kernels and copies that write the host's memory; and pinned memory that is filled again. */
            if (both && (is_in_place(earlier, j) || (is_in_place(job, i) && earlier->written[j]) ||
                         (job->mems[i]->bounce && !job->written[i])))
                return true;
        }
    return false;
}

bool td_staging_by_hand(const td_job *job)
{
    for (uint32_t i = 0; i < job->view_count; i++)
        if (is_staged(job, i) && !job->written[i] && job->mems[i]->bounce)
            return true;
    return false;
}

bool td_staging_takes_back(const td_job *job)
{
    for (uint32_t i = 0; i < job->view_count; i++)
        if (job->staging.later[i])
            return true;
    return false;
}

/* Looks ever less often until the stream has come to `sequence`. */
static tandem_status wait_for(tandem_session *s, uint64_t sequence, char *why)
{
    const uint64_t begin = td_now_ns();

    while (td_stream_completed(s->stream) < sequence) {
        const uint64_t waited = td_now_ns() - begin;

        if (waited > TD_CLOSE_BOUND_NS)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_LOST, "the GPU is not through with submit %llu in time",
                           (unsigned long long)sequence);
        if (waited > 100000000u && td_stream_status(s->stream, why, TD_WHY_BYTES) != TANDEM_OK)
            return TANDEM_ERROR_DEVICE;
        td_sleep_ns(td_nap_ns(waited));
    }
    return TANDEM_OK;
}

tandem_status td_staging_enqueue(tandem_session *s, const td_stream_submit *submit, uint64_t *sequence, char *why)
{
    tandem_status status;
    bool signalled;

    do {
        const uint64_t completed = td_stream_completed(s->stream);

        status = td_stream_enqueue(s->stream, submit, sequence, &signalled, why, TD_WHY_BYTES);
        if (status != TANDEM_ERROR_BUSY)
            return status;
        status = wait_for(s, completed + 1, why);
    } while (status == TANDEM_OK);
    return status;
}

/* A submit of copies alone. */
static tandem_status enqueue_copy(tandem_session *s, const td_stream_submit *job, td_stream_copy copy, bool in,
                                  uint64_t *sequence, char *why)
{
    static const td_plan nothing;
    const td_stream_submit submit = {
        .plan = &nothing,
        .views = job->views,
        .scratch = job->scratch,
        .copies_in = &copy,
        .copies_out = &copy,
        .copy_in_count = in,
        .copy_out_count = !in,
        .slot = job->slot,
        .label = in ? "tandem copy in" : "tandem copy out",
    };

    return td_staging_enqueue(s, &submit, sequence, why);
}

tandem_status td_staging_in(tandem_session *s, td_job *job, td_stream_submit *submit, char *why)
{
    td_staging *staging = &job->staging;
    ranges reads = {0};
    tandem_status status = TANDEM_OK;
    uint64_t sequence = 0;
    char ignored[TD_WHY_BYTES];

    memset(staging->later, 0, sizeof staging->later);
    memcpy(staging->views, job->views, job->view_count * sizeof *staging->views);
    submit->views = staging->views;
    submit->copies_in = staging->in;
    submit->copies_out = staging->out;
    for (uint32_t i = 0; i < job->view_count; i++) {
        if (!is_staged(job, i))
            continue;
        if (!job->written[i]) {
            add_range(&reads, range_of(job, i));
        } else if (is_in_place(job, i)) {
            staging->views[i] = job->mems[i]->pinned.address + (job->views[i] - job->mems[i]->address);
        } else if (!job->mems[i]->bounce && !job->life.has_deadline) {
            const range r = range_of(job, i);

            staging->out[submit->copy_out_count++] = copy_of(&r, r.begin, r.end);
        } else {
            staging->later[i] = true;
        }
    }
    for (uint32_t i = 0; i < reads.count && status == TANDEM_OK; i++) {
        range *r = &reads.list[i];
        uint64_t at = r->begin, end = r->end;

        /* All pieces but the last go ahead; that one is the submit's own, which begins when they all are there. */
        while (r->mem->bounce && status == TANDEM_OK) {
            end = piece_end(r, at);
            memcpy((char *)r->mem->pinned.host + at, (const char *)r->mem->host + at, end - at);
            if (end == r->end)
                break;
            status = enqueue_copy(s, submit, copy_of(r, at, end), true, &sequence, why);
            at = end;
        }
        staging->in[submit->copy_in_count++] = copy_of(r, at, end);
    }
    if (status != TANDEM_OK && sequence) /* what the copies use is in use no more */
        wait_for(s, sequence, ignored);
    return status;
}

tandem_status td_staging_out(tandem_session *s, const td_job *job, char *why)
{
    const td_staging *staging = &job->staging;
    const td_stream_submit like = {.views = staging->views, .scratch = job->scratch.address};
    tandem_status status = TANDEM_OK;

    for (uint32_t i = 0; i < job->view_count && status == TANDEM_OK; i++) {
        uint64_t ends[MOST_PIECES], sequences[MOST_PIECES];
        uint32_t pieces = 0;
        range r;

        if (!staging->later[i])
            continue;
        r = range_of(job, i);
        for (uint64_t at = r.begin; at < r.end && status == TANDEM_OK; at = ends[pieces++]) {
            ends[pieces] = piece_end(&r, at);
            status = enqueue_copy(s, &like, copy_of(&r, at, ends[pieces]), false, &sequences[pieces], why);
        }
        for (uint32_t p = 0; p < pieces && status == TANDEM_OK; p++) {
            const uint64_t at = p ? ends[p - 1] : r.begin;

            status = wait_for(s, sequences[p], why);
            if (status == TANDEM_OK && r.mem->bounce && !has_gaps(&job->extents[i]))
                memcpy((char *)r.mem->host + at, (const char *)r.mem->pinned.host + at, ends[p] - at);
        }
        if (status == TANDEM_OK && r.mem->bounce && has_gaps(&job->extents[i]))
            copy_rows((char *)r.mem->host + r.begin, (const char *)r.mem->pinned.host + r.begin, &job->extents[i]);
    }
    return status;
}
