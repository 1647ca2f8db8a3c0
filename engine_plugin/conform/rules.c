/* What is known of mems, timelines and jobs by what the program has called, and what follows.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Commands count in the order in which their buffers are submitted, however often, not as they are recorded. A job is checked
 * once what it waits for has been submitted, as tandem_submit() may come before or behind that.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine_plugin/conform/conform.h"

enum { MOST_MEMS = 4096, MOST_TIMELINES = 256, MOST_JOBS = 1024, MOST_COMMANDS = 2048, MOST_OPS = 64, MOST_QUEUE_WAITS = 1024 };
enum { JOB_VIEWS = 24, MOST_GUARDS = 64 };

typedef struct mem {
    tandem_session *session;
    tandem_mem id;
    uint64_t bytes;
    unsigned char *host;
    bool released;  /* since it was acquired */
    bool acquired;  /* once, and not released since */
    bool packed;    /* into it, and not released since */
    tandem_point last; /* what the last job on it signals; */
    bool written;      /* by that job, */
    bool failed;       /* which, the program was told, has no result */
} mem;

typedef struct timeline {
    tandem_session *session;
    tandem_timeline id;
    VkSemaphore semaphore;
    bool of_session;
    uint64_t top;  /* that is on its way: of the session's the jobs', of the engine's the submits' */
    uint64_t seen; /* by the host */
} timeline;

typedef struct job {
    tandem_session *session;
    tandem_ticket ticket;
    tandem_point wait, signal;
    bool placed;
    size_t count;
    rules_view views[JOB_VIEWS];
} job;

typedef struct op {
    rules_kind kind;
    tandem_session *session;
    tandem_mem mem;
    VkPipelineStageFlags stage;
    VkAccessFlags access;
} op;

typedef struct commands {
    VkCommandBuffer handle;
    size_t count;
    op ops[MOST_OPS];
} commands;

/* How far a queue has waited for a timeline: commands that are submitted later come behind that, too. */
typedef struct queue_wait {
    VkQueue queue;
    VkSemaphore semaphore;
    uint64_t value;
    VkPipelineStageFlags stages; /* of the batch at hand; 0: of an earlier one */
} queue_wait;

static mem mems[MOST_MEMS];
static timeline timelines[MOST_TIMELINES];
static job jobs[MOST_JOBS];
static commands *recorded[MOST_COMMANDS];
static queue_wait waits[MOST_QUEUE_WAITS];
static size_t mem_count, timeline_count, job_next, recorded_count, wait_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define LOCKED(...)                  \
    do {                             \
        pthread_mutex_lock(&lock);   \
        __VA_ARGS__;                 \
        pthread_mutex_unlock(&lock); \
    } while (0)

/* --- What there is --- */

static mem *find_mem(const tandem_session *session, tandem_mem id)
{
    for (size_t i = 0; i < mem_count; i++)
        if (mems[i].session == session && mems[i].id == id)
            return &mems[i];
    return NULL;
}

static timeline *find_timeline(const tandem_session *session, tandem_timeline id)
{
    for (size_t i = 0; i < timeline_count; i++)
        if (timelines[i].session == session && timelines[i].id == id)
            return &timelines[i];
    return NULL;
}

static timeline *find_semaphore(VkSemaphore semaphore)
{
    for (size_t i = 0; i < timeline_count; i++)
        if (semaphore && timelines[i].semaphore == semaphore)
            return &timelines[i];
    return NULL;
}

static void make_mem(tandem_session *session, tandem_mem id, uint64_t bytes)
{
    if (mem_count < MOST_MEMS && !find_mem(session, id))
        mems[mem_count++] = (mem){.session = session, .id = id, .bytes = bytes};
}

void rules_mem_made(tandem_session *session, tandem_mem id, uint64_t bytes)
{
    LOCKED(make_mem(session, id, bytes));
}

static void know_host(tandem_session *session, tandem_mem id, void *host)
{
    mem *m = find_mem(session, id);

    if (m)
        m->host = host;
}

void rules_mem_host(tandem_session *session, tandem_mem id, void *host)
{
    LOCKED(know_host(session, id, host));
}

static void make_timeline(tandem_session *session, tandem_timeline id, bool of_session, uint64_t value)
{
    if (timeline_count < MOST_TIMELINES)
        timelines[timeline_count++] =
            (timeline){.session = session, .id = id, .of_session = of_session, .top = value, .seen = value};
}

void rules_timeline_made(tandem_session *session, tandem_timeline id, bool of_session, uint64_t value)
{
    LOCKED(make_timeline(session, id, of_session, value));
}

static void know_semaphore(tandem_session *session, tandem_timeline id, VkSemaphore semaphore)
{
    timeline *t = find_timeline(session, id);

    if (t)
        t->semaphore = semaphore;
}

void rules_timeline_semaphore(tandem_session *session, tandem_timeline id, VkSemaphore semaphore)
{
    LOCKED(know_semaphore(session, id, semaphore));
}

static void drop_waits(VkSemaphore semaphore)
{
    for (size_t i = 0; i < wait_count;)
        if (waits[i].semaphore == semaphore)
            waits[i] = waits[--wait_count];
        else
            i++;
}

static void drop_timeline(timeline *t)
{
    drop_waits(t->semaphore);
    *t = timelines[--timeline_count];
}

void rules_timeline_gone(tandem_session *session, tandem_timeline id)
{
    timeline *t;

    LOCKED(t = find_timeline(session, id); if (t) drop_timeline(t));
}

bool rules_is_sessions(VkSemaphore semaphore)
{
    const timeline *t;
    bool is;

    LOCKED(t = find_semaphore(semaphore); is = t && t->of_session);
    return is;
}

static void see(tandem_session *session, tandem_timeline id, uint64_t value)
{
    timeline *t = find_timeline(session, id);

    if (t && t->seen < value)
        t->seen = value;
}

void rules_seen(tandem_session *session, tandem_timeline id, uint64_t value)
{
    LOCKED(see(session, id, value));
}

/* --- Results that are none: the pages of them that nothing else lies in cannot be read by the host --- */

static struct guard {
    unsigned char *begin, *end;
} guards[MOST_GUARDS];
static volatile sig_atomic_t guard_count;
static struct sigaction before;

static void unguard(size_t i)
{
    mprotect(guards[i].begin, (size_t)(guards[i].end - guards[i].begin), PROT_READ | PROT_WRITE);
    guards[i] = guards[--guard_count];
}

static void unguard_within(const unsigned char *begin, uint64_t bytes)
{
    for (size_t i = 0; i < (size_t)guard_count;)
        if (begin && guards[i].begin >= begin && guards[i].begin < begin + bytes)
            unguard(i);
        else
            i++;
}

static bool open_guard(const void *address)
{
    for (size_t i = 0; i < (size_t)guard_count; i++)
        if ((const unsigned char *)address >= guards[i].begin && (const unsigned char *)address < guards[i].end) {
            unguard(i);
            return true;
        }
    return false;
}

/* A read of such pages is told, and goes on. What else faults is as it would be without this. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    if (open_guard(info->si_addr)) {
        conform_say(CONFORM_STALE, "the host reads a result at %p, whose job has ended without one: tandem_job_report.state says so",
                    info->si_addr);
        return;
    }
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else {
        sigaction(number, &before, NULL); /* it faults again, and ends the program */
    }
}

static void guard(const mem *m, const rules_view *view)
{
    static bool listens;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t)m->host + view->begin + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)m->host + view->end) / page * page;

    if (!m->host || !view->end || begin >= end || (size_t)guard_count == MOST_GUARDS)
        return;
    if (!listens) {
        const struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
        listens = sigaction(SIGSEGV, &action, &before) == 0;
    }
    if (!listens || mprotect((void *)begin, end - begin, PROT_NONE))
        return;
    guards[guard_count++] = (struct guard){.begin = (unsigned char *)begin, .end = (unsigned char *)end};
}

static void drop_mem(mem *m)
{
    unguard_within(m->host, m->bytes);
    *m = mems[--mem_count];
}

void rules_mem_gone(tandem_session *session, tandem_mem id)
{
    mem *m;

    LOCKED(m = find_mem(session, id); if (m) drop_mem(m));
}

static void drop_session(tandem_session *session)
{
    for (size_t i = mem_count; i-- > 0;)
        if (mems[i].session == session)
            drop_mem(&mems[i]);
    for (size_t i = timeline_count; i-- > 0;)
        if (timelines[i].session == session)
            drop_timeline(&timelines[i]);
    for (size_t i = 0; i < MOST_JOBS; i++)
        if (jobs[i].session == session)
            jobs[i] = (job){0};
}

void rules_session_gone(tandem_session *session)
{
    LOCKED(drop_session(session));
}

/* --- Jobs --- */

/* What the engine has put into the mem, or has taken back, it must have given to the job. */
static void check_ownership(const job *j)
{
    for (size_t i = 0; i < j->count; i++) {
        const mem *m = find_mem(j->session, j->views[i].mem);

        if (!m || m->released || !(m->packed || m->acquired))
            continue;
        conform_say(CONFORM_OWNERSHIP,
                    "a job works on mem 0x%llx, %s: tandem_record_release() is missing behind that, in what signals its wait point",
                    (unsigned long long)m->id, m->packed ? "into which images were packed" : "which the engine has acquired");
        return;
    }
}

/* The job's turn has come: what it waits for has been submitted, and what comes now is behind it. */
static void place_job(job *j)
{
    j->placed = true;
    check_ownership(j);
    for (size_t i = 0; i < j->count; i++) {
        mem *m = find_mem(j->session, j->views[i].mem);

        if (!m)
            continue;
        m->written = (m->last.value == j->signal.value && m->last.timeline == j->signal.timeline && m->written) || j->views[i].written;
        m->last = j->signal;
        m->failed = false;
    }
}

static bool is_on_its_way(const job *j)
{
    const timeline *t = find_timeline(j->session, j->wait.timeline);

    return !j->wait.timeline || !t || !t->semaphore || t->top >= j->wait.value;
}

static void take_job(tandem_session *session, tandem_ticket ticket, const tandem_job *from, const rules_view *views, size_t count)
{
    job *j = &jobs[job_next++ % MOST_JOBS];
    timeline *t = find_timeline(session, from->signal.timeline);

    *j = (job){.session = session, .ticket = ticket, .wait = from->wait, .signal = from->signal};
    j->count = count < JOB_VIEWS ? count : JOB_VIEWS;
    memcpy(j->views, views, j->count * sizeof *views);
    if (t && t->top < from->signal.value)
        t->top = from->signal.value;
    for (size_t i = 0; i < j->count; i++) {
        mem *m = find_mem(session, views[i].mem);

        if (m)
            unguard_within(m->host, m->bytes);
    }
    if (is_on_its_way(j))
        place_job(j);
}

void rules_submitted(tandem_session *session, tandem_ticket ticket, const tandem_job *from, const rules_view *views, size_t count)
{
    LOCKED(take_job(session, ticket, from, views, count));
}

static void tell(tandem_session *session, tandem_ticket ticket, uint32_t state)
{
    for (size_t n = 0; n < MOST_JOBS; n++) {
        job *j = &jobs[n];

        if (j->session != session || j->ticket != ticket || !ticket)
            continue;
        if (!j->placed) /* it ended before that, as by its deadline */
            place_job(j);
        /* An ended job's point may still be to come where it is STALE or FAILED: only one that is DONE is past it. */
        if (state == TANDEM_JOB_DONE)
            see(session, j->signal.timeline, j->signal.value);
        if (state < TANDEM_JOB_STALE)
            return;
        for (size_t i = 0; i < j->count; i++) {
            mem *m = find_mem(session, j->views[i].mem);

            if (!m || !j->views[i].written || memcmp(&m->last, &j->signal, sizeof m->last))
                continue; /* it has had another job since */
            m->failed = true;
            if (state == TANDEM_JOB_STALE) /* of the others something may yet be written */
                guard(m, &j->views[i]);
        }
        return;
    }
}

void rules_told(tandem_session *session, tandem_ticket ticket, uint32_t state)
{
    if (state >= TANDEM_JOB_DONE)
        LOCKED(tell(session, ticket, state));
}

/* --- Commands --- */

static commands *find_commands(VkCommandBuffer handle, bool make)
{
    for (size_t i = 0; i < recorded_count; i++)
        if (recorded[i]->handle == handle)
            return recorded[i];
    if (!make || recorded_count == MOST_COMMANDS)
        return NULL;
    commands *made = calloc(1, sizeof *made);
    if (made) {
        made->handle = handle;
        recorded[recorded_count++] = made;
    }
    return made;
}

static void begin_commands(VkCommandBuffer handle)
{
    commands *c = find_commands(handle, false);

    if (c)
        c->count = 0;
}

void rules_begun(VkCommandBuffer handle)
{
    LOCKED(begin_commands(handle));
}

/* Which stages have an access, of those of Vulkan 1.0; of an access that is not here nothing is said. */
#define SHADERS                                                                                                          \
    (VK_PIPELINE_STAGE_VERTEX_SHADER_BIT | VK_PIPELINE_STAGE_TESSELLATION_CONTROL_SHADER_BIT |                           \
     VK_PIPELINE_STAGE_TESSELLATION_EVALUATION_SHADER_BIT | VK_PIPELINE_STAGE_GEOMETRY_SHADER_BIT |                      \
     VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT)
static const struct {
    VkAccessFlags access;
    VkPipelineStageFlags stages;
    const char *name;
} accesses[] = {
    {VK_ACCESS_SHADER_READ_BIT, SHADERS | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, "SHADER_READ"},
    {VK_ACCESS_SHADER_WRITE_BIT, SHADERS | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, "SHADER_WRITE"},
    {VK_ACCESS_UNIFORM_READ_BIT, SHADERS | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, "UNIFORM_READ"},
    {VK_ACCESS_TRANSFER_READ_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT, "TRANSFER_READ"},
    {VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT, "TRANSFER_WRITE"},
    {VK_ACCESS_HOST_READ_BIT, VK_PIPELINE_STAGE_HOST_BIT, "HOST_READ"},
    {VK_ACCESS_HOST_WRITE_BIT, VK_PIPELINE_STAGE_HOST_BIT, "HOST_WRITE"},
    {VK_ACCESS_VERTEX_ATTRIBUTE_READ_BIT, VK_PIPELINE_STAGE_VERTEX_INPUT_BIT, "VERTEX_ATTRIBUTE_READ"},
    {VK_ACCESS_INDEX_READ_BIT, VK_PIPELINE_STAGE_VERTEX_INPUT_BIT, "INDEX_READ"},
    {VK_ACCESS_INDIRECT_COMMAND_READ_BIT, VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT, "INDIRECT_COMMAND_READ"},
};
#define GRAPHICS (SHADERS | VK_PIPELINE_STAGE_VERTEX_INPUT_BIT | VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT)

static void check_access(const char *call, VkPipelineStageFlags stages, VkAccessFlags access)
{
    if (stages & VK_PIPELINE_STAGE_ALL_COMMANDS_BIT || stages >= 1u << 17)
        return;
    for (size_t i = 0; i < sizeof accesses / sizeof *accesses; i++) {
        const bool drawn = (stages & VK_PIPELINE_STAGE_ALL_GRAPHICS_BIT) && (accesses[i].stages & GRAPHICS);

        if ((access & accesses[i].access) && !(stages & accesses[i].stages) && !drawn)
            conform_say(CONFORM_WRONG_STAGE, "%s: access has %s, but stage 0x%x has no such access", call, accesses[i].name, stages);
    }
}

void rules_recorded(VkCommandBuffer handle, rules_kind kind, tandem_session *session, tandem_mem id, VkPipelineStageFlags stage,
                    VkAccessFlags access)
{
    commands *c;

    if (kind == RULES_RELEASE || kind == RULES_ACQUIRE)
        check_access(kind == RULES_RELEASE ? "tandem_record_release()" : "tandem_record_acquire()", stage, access);
    LOCKED(c = find_commands(handle, true); if (c && c->count < MOST_OPS) c->ops[c->count++] =
               (op){.kind = kind, .session = session, .mem = id, .stage = stage, .access = access});
}

static queue_wait *find_wait(VkQueue queue, VkSemaphore semaphore)
{
    for (size_t i = 0; i < wait_count; i++)
        if (waits[i].queue == queue && waits[i].semaphore == semaphore)
            return &waits[i];
    return NULL;
}

static void wait_for(VkQueue queue, VkSemaphore semaphore, uint64_t value, VkPipelineStageFlags stages)
{
    const timeline *t = find_semaphore(semaphore);
    queue_wait *w = find_wait(queue, semaphore);

    if (!t || !t->of_session)
        return;
    if (value > t->top)
        conform_say(CONFORM_LOST_POINT, "a submit waits for %llu of the session's timeline 0x%llx, which ends at %llu: submit it once "
                                        "tandem_submit() was OK",
                    (unsigned long long)value, (unsigned long long)t->id, (unsigned long long)t->top);
    if (!w && wait_count < MOST_QUEUE_WAITS) {
        w = &waits[wait_count++];
        *w = (queue_wait){.queue = queue, .semaphore = semaphore};
    }
    if (w) {
        w->stages = stages;
        if (w->value < value)
            w->value = value;
    }
}

void rules_waits(VkQueue queue, VkSemaphore semaphore, uint64_t value, VkPipelineStageFlags stages)
{
    LOCKED(wait_for(queue, semaphore, value, stages));
}

static const char *word_of(rules_kind kind)
{
    return kind == RULES_RELEASE   ? "is released"
           : kind == RULES_ACQUIRE ? "is acquired"
           : kind == RULES_PACK    ? "has images packed into it"
                                   : "is unpacked";
}

/* The last job on it signals a point: this queue has waited for it, or the host has seen it, before anything touches it. */
static bool is_past(VkQueue queue, const mem *m, VkPipelineStageFlags *stages)
{
    const timeline *t = find_timeline(m->session, m->last.timeline);
    const queue_wait *w = t && t->semaphore ? find_wait(queue, t->semaphore) : NULL;

    *stages = 0;
    if (!m->last.value || !t || t->seen >= m->last.value)
        return true;
    if (!w || w->value < m->last.value)
        return false;
    *stages = w->stages;
    return true;
}

/* A wait for the point, in the same batch, at a stage that comes no later than what reads. */
static bool covers(VkPipelineStageFlags waited, VkPipelineStageFlags reads)
{
    const VkPipelineStageFlags all = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT;
    const VkPipelineStageFlags alone = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;

    return !waited || !reads || (waited & all) || (reads & VK_PIPELINE_STAGE_ALL_COMMANDS_BIT) || !(reads & alone & ~waited);
}

static void run_op(VkQueue queue, const op *o)
{
    mem *m = find_mem(o->session, o->mem);
    VkPipelineStageFlags waited;

    if (!m)
        return;
    if (!is_past(queue, m, &waited))
        conform_say(CONFORM_REUSE, "mem 0x%llx %s, but the job on it is not over: this submit, or one before it on the queue, has to "
                                   "wait for %llu of the session's timeline",
                    (unsigned long long)m->id, word_of(o->kind), (unsigned long long)m->last.value);
    if (o->kind == RULES_ACQUIRE && !covers(waited, o->stage))
        conform_say(CONFORM_WRONG_STAGE, "a submit waits for the job on mem 0x%llx at stages 0x%x, but acquires it for 0x%x",
                    (unsigned long long)m->id, waited, o->stage);
    if (o->kind == RULES_UNPACK && m->written && m->failed)
        conform_say(CONFORM_STALE, "mem 0x%llx is unpacked, but the job that should have written it ended without a result: "
                                   "tandem_job_report.state says so",
                    (unsigned long long)m->id);
    if (o->kind == RULES_UNPACK && m->last.value && m->released)
        conform_say(CONFORM_OWNERSHIP, "mem 0x%llx is unpacked, but was released and not acquired since", (unsigned long long)m->id);
    if (o->kind == RULES_ACQUIRE && !m->released)
        conform_say(CONFORM_OWNERSHIP, "mem 0x%llx is acquired, but was not released %s", (unsigned long long)m->id,
                    m->acquired ? "since it was acquired last" : "before");
    if (o->kind == RULES_ACQUIRE) {
        m->acquired = true;
        m->released = false;
    } else if (o->kind == RULES_RELEASE) {
        m->released = true;
        m->acquired = m->packed = false;
    } else if (o->kind == RULES_PACK) {
        m->packed = true;
        m->released = false;
    }
}

static void run_commands(VkQueue queue, VkCommandBuffer handle)
{
    const commands *c = find_commands(handle, false);

    for (size_t i = 0; c && i < c->count; i++)
        run_op(queue, &c->ops[i]);
}

void rules_runs(VkQueue queue, VkCommandBuffer handle)
{
    LOCKED(run_commands(queue, handle));
}

static void signal_value(timeline *t, uint64_t value)
{
    if (!t || t->of_session)
        return;
    if (t->top < value)
        t->top = value;
    for (size_t i = 0; i < MOST_JOBS; i++)
        if (jobs[i].session == t->session && !jobs[i].placed && jobs[i].wait.timeline == t->id && jobs[i].wait.value <= value)
            place_job(&jobs[i]);
}

void rules_signals(VkSemaphore semaphore, uint64_t value)
{
    LOCKED(signal_value(find_semaphore(semaphore), value));
}

void rules_host_signals(tandem_session *session, tandem_timeline id, uint64_t value)
{
    LOCKED(signal_value(find_timeline(session, id), value));
}

static void end_batch(VkQueue queue)
{
    for (size_t i = 0; i < wait_count; i++)
        if (waits[i].queue == queue)
            waits[i].stages = 0;
}

void rules_batch_ends(VkQueue queue)
{
    LOCKED(end_batch(queue));
}
