/* What characters of a language compute on together. See stage.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One run is under way at a time. While it is, nobody gets a slot or a page that another has left:
 * both are given out by who makes the next run, when this one was seen to have ended.
 */
#include "engine_plugin/npc/stage_parts.h"

#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "interop/os/clock.h"

#define MOST_FRAME_NS 1000000000u /* from one frame's beginning to the next one's */

enum { NUMBERS = 3 /* batch, tokens, wanted */, UNIFORMS = 4 /* ids, positions, rows, table */ };

/* --- The stage --- */

static tandem_status find_words(td_stage *s)
{
    tandem_network network = {.struct_bytes = sizeof network};
    tandem_network_tensor logits = {.struct_bytes = sizeof logits};
    const uint32_t one[NUMBERS] = {1, 1, 1};
    tandem_status status = tandem_model_info(s->of.session, s->of.model, &network);

    if (status == TANDEM_OK)
        status = tandem_model_binding(s->of.session, s->of.model, one, NUMBERS, 0, &logits);
    s->words = logits.shape[3];
    s->cache_bytes = network.state_bytes;
    return status;
}

/* Sequences of a run, at most. */
static uint32_t most_rows(const td_stage *s)
{
    const uint32_t most = s->of.slots < TD_STAGE_ROWS ? s->of.slots : (uint32_t)TD_STAGE_ROWS;

    return s->of.rows && s->of.rows < most ? s->of.rows : most;
}

/* Memory of the host's for an output of so many numbers a row; 0: the model has no such output. */
static tandem_status make_output(td_stage *s, uint32_t rows, uint32_t numbers, td_host_mem *out)
{
    return numbers ? td_host_mem_make(s->of.session, (uint64_t)rows * numbers * sizeof(float), out)
                   : TANDEM_OK;
}

static tandem_status make_logits(td_stage *s)
{
    const uint32_t rows = most_rows(s);
    const tandem_mem_desc unwanted = {.struct_bytes = sizeof unwanted,
                                      .bytes = (uint64_t)rows * s->words * sizeof(float)};
    tandem_status status = TANDEM_OK;

    for (int i = 0; i < TD_STAGE_LOGITS && status == TANDEM_OK; i++) {
        td_logits *l = &s->logits[i];

        status = make_output(s, rows, s->words, &l->mem);
        if (status == TANDEM_OK)
            status = make_output(s, rows, s->of.hidden, &l->hidden);
        if (status == TANDEM_OK)
            status = make_output(s, rows, 2 * s->of.tops, &l->tops);
    }
    if (status == TANDEM_OK && s->of.tops)
        status = tandem_mem_create(s->of.session, &unwanted, &s->unwanted);
    return status;
}

/* Who was given logits does not want them any more. */
static void let_go(td_sequence *q)
{
    if (q->of)
        q->of->readers--;
    q->of = NULL;
    q->knows = q->fresh = false;
}

static td_logits *unread(td_stage *s, const td_logits *but)
{
    for (int i = 0; i < TD_STAGE_LOGITS; i++)
        if (&s->logits[i] != but && !s->logits[i].readers)
            return &s->logits[i];
    return NULL;
}

static tandem_status make_instance(td_stage *s)
{
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc, .precision = s->of.precision};

    return tandem_model_instance(s->of.session, s->of.model, &desc, &s->instance);
}

tandem_status td_stage_create(const td_stage_desc *desc, td_stage **out)
{
    td_stage *s = calloc(1, sizeof *s);
    tandem_status status = TANDEM_ERROR_NOMEM;

    *out = NULL;
    if (!s)
        return status;
    s->of = *desc;
    s->page_room = (desc->context + TD_PAGE_TOKENS - 1) / TD_PAGE_TOKENS;
    if (pthread_mutex_init(&s->lock, NULL)) {
        free(s);
        return status;
    }
    if (!desc->pages || td_pages_create(desc->pages, &s->pages) == TANDEM_OK)
        status = find_words(s);
    if (status == TANDEM_OK)
        status = make_logits(s);
    if (status == TANDEM_OK)
        status = make_instance(s);
    if (status != TANDEM_OK)
        td_stage_destroy(&s);
    *out = s;
    return status;
}

/* What was the session's own went with it; of the host's stays what a GPU that hung may still use. */
static void free_numbers(const td_stage *s, td_host_mem *m)
{
    tandem_session *session = s->of.session;

    if (td_session_is_over(session)) {
        m->mem = 0;
        m->pages = atomic_load(&session->stuck) ? NULL : m->pages;
    }
    td_host_mem_free(session, m);
}

void td_stage_destroy(td_stage **stage)
{
    td_stage *s = *stage;

    if (!s)
        return;
    const bool over = td_session_is_over(s->of.session);
    if (s->instance && !over)
        tandem_instance_destroy(s->of.session, s->instance);
    for (int i = 0; i < TD_STAGE_LOGITS; i++) {
        free_numbers(s, &s->logits[i].mem);
        free_numbers(s, &s->logits[i].hidden);
        free_numbers(s, &s->logits[i].tops);
    }
    if (s->unwanted && !over)
        tandem_mem_destroy(s->of.session, s->unwanted);
    td_pages_destroy(&s->pages);
    pthread_mutex_destroy(&s->lock);
    free(s->uniforms);
    free(s);
    *stage = NULL;
}

td_stage_counts td_stage_count(td_stage *s)
{
    pthread_mutex_lock(&s->lock);
    const td_stage_counts counts = {.tokens = s->tokens,
                                    .runs = s->runs,
                                    .cache_bytes = s->cache_bytes,
                                    .pages = s->of.pages,
                                    .pages_held = s->pages ? td_pages_held(s->pages) : 0,
                                    .pages_kept = s->pages ? td_pages_kept(s->pages) : 0};
    pthread_mutex_unlock(&s->lock);
    return counts;
}

/* --- Runs --- */

static tandem_status find_uniforms(td_stage *s, const uint32_t numbers[NUMBERS])
{
    tandem_network_tensor uniform = {.struct_bytes = sizeof uniform};

    for (uint32_t i = 0; i < UNIFORMS - !s->pages; i++) {
        const tandem_status status =
            tandem_model_uniform(s->of.session, s->of.model, numbers, NUMBERS, i, &uniform);

        if (status != TANDEM_OK)
            return status;
        s->uniform[i] = uniform.offset_bytes;
        s->uniform_bytes = uniform.offset_bytes + uniform.bytes;
    }
    char *more = realloc(s->uniforms, s->uniform_bytes);
    if (!more)
        return TANDEM_ERROR_NOMEM;
    s->uniforms = memset(more, 0, s->uniform_bytes);
    return TANDEM_OK;
}

static tandem_status prepare(td_stage *s, const uint32_t numbers[NUMBERS])
{
    if (!memcmp(s->numbers, numbers, sizeof s->numbers))
        return TANDEM_OK;
    memset(s->numbers, 0, sizeof s->numbers);
    tandem_status status = tandem_model_prepare(s->of.session, s->instance, numbers, NUMBERS);
    if (status == TANDEM_OK)
        status = find_uniforms(s, numbers);
    if (status == TANDEM_OK)
        memcpy(s->numbers, numbers, sizeof s->numbers);
    return status;
}

static int32_t *uniform_of(td_stage *s, uint32_t which)
{
    return (int32_t *)(void *)(s->uniforms + s->uniform[which]);
}

/* Row `b` of a run; NULL: nobody's, which no place is known of. */
static void put_row(td_stage *s, uint32_t b, const td_sequence *q)
{
    const uint32_t tokens = s->numbers[1];
    int32_t *ids = uniform_of(s, 0) + (size_t)b * tokens,
            *positions = uniform_of(s, 1) + (size_t)b * tokens;

    for (uint32_t i = 0; i < tokens; i++) {
        const bool there = q && i < q->running;

        ids[i] = there ? (int32_t)q->ids[q->read + i] : 0;
        positions[i] = there ? (int32_t)(q->read + i) : -1;
    }
    uniform_of(s, 2)[b] = (int32_t)(b * tokens + (q ? q->running - 1 : 0));
    if (!s->pages)
        return;
    int32_t *table = uniform_of(s, 3) + (size_t)b * (1 + s->page_room);
    memset(table, 0xff, (1 + s->page_room) * sizeof *table);
    table[0] = q ? q->slot : -1;
    for (uint32_t i = 0; q && i < q->page_count; i++)
        table[1 + i] = (int32_t)q->pages[i];
}

/* As many rows as programs are made for. */
static uint32_t batch_of(uint32_t rows)
{
    uint32_t batch = 1;

    while (batch < rows)
        batch *= 2;
    return batch;
}

/* By this frame so far, where runs stand still when it has had its part: what has computed has left
 * when it last did. */
static uint64_t spent_of(td_stage *s)
{
    uint64_t seen = 0;

    if (!td_instance_pace(s->of.session, s->instance, s->until_ns, &seen) || seen <= s->window_ns)
        return 0;
    return seen - s->window_ns;
}

static tandem_status submit(td_stage *s, uint32_t tokens)
{
    uint32_t batch = batch_of(s->row_count);
    const uint32_t most = most_rows(s);

    batch = batch < most ? batch : most;
    const uint32_t numbers[NUMBERS] = {batch, tokens, batch};
    s->into = unread(s, NULL); /* advance() leaves one */
    tandem_view views[3] = {{.dtype = TANDEM_DTYPE_F32}};
    uint32_t view_count = 1;
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_RUN};
    tandem_status status = s->instance ? TANDEM_OK : make_instance(s);

    if (status == TANDEM_OK)
        status = prepare(s, numbers);
    if (status != TANDEM_OK)
        return status;
    s->all = !s->of.tops;
    for (uint32_t b = 0; b < batch; b++) {
        put_row(s, b, b < s->row_count ? s->rows[b] : NULL);
        s->all = s->all || (b < s->row_count && s->rows[b]->all);
    }
    views[0].mem = s->all ? s->into->mem.mem : s->unwanted;
    if (s->of.hidden)
        views[view_count++] = (tandem_view){.mem = s->into->hidden.mem, .dtype = TANDEM_DTYPE_F32};
    if (s->of.tops)
        views[view_count++] = (tandem_view){.mem = s->into->tops.mem, .dtype = TANDEM_DTYPE_F32};
    s->spent_ns = 0;
    s->before_ns = s->paced ? spent_of(s) : 0;
    job.op.run = (tandem_run){.instance = s->instance,
                              .bindings = views,
                              .binding_count = view_count,
                              .numbers = numbers,
                              .number_count = NUMBERS,
                              .uniforms = s->uniforms,
                              .uniform_bytes = s->uniform_bytes};
    return tandem_submit(s->of.session, &job, &s->ticket);
}

/* What all were about to read is lost, and what they have read: with the instance. */
void td_stage_fail_all_locked(td_stage *s, tandem_status status)
{
    for (uint32_t i = 0; i < s->row_count; i++)
        if (s->rows[i]) {
            s->rows[i]->status = status;
            s->rows[i]->wants = false;
        }
    for (td_sequence *q = s->first; q; q = q->next) {
        q->read = 0;
        if (s->pages)
            td_sequence_drop_pages(q, 0);
    }
    if (s->pages)
        td_pages_forget(s->pages);
    if (s->instance)
        tandem_instance_destroy(s->of.session, s->instance);
    s->instance = 0;
    memset(s->numbers, 0, sizeof s->numbers);
}

static void end_run(td_stage *s)
{
    for (uint32_t i = 0; i < s->row_count; i++)
        if (s->rows[i])
            s->rows[i]->running = 0;
    s->row_count = 0;
    s->ticket = 0;
}

/* A row of an output: where it is, or in the sequence's own memory from `place` on, where its run's are not to stay; NULL: the model has
 * no such output. */
static const float *given(const td_sequence *q, const td_host_mem *output, uint32_t row, uint32_t count, size_t place)
{
    const float *const from = (const float *)output->host + (size_t)row * count;

    if (!count)
        return NULL;
    return q->of ? from : memcpy(q->logits + place, from, count * sizeof *from);
}

/* A sequence has read what it was to in this run, of which it has a row. Its logits stay where they
 * are if the next run has another place for its own. */
static void advance(td_stage *s, td_sequence *q, uint32_t row)
{
    const size_t end = q->read + q->running;

    s->tokens += q->running;
    q->tokens += q->running;
    if (q->again || q->count < end) /* it is to read something else meanwhile */
        return;
    q->read = end;
    td_sequence_enter(q);
    if (!q->wants || q->read < q->count)
        return;
    q->wants = false;
    q->knows = q->fresh = true;
    q->of = unread(s, s->into) ? s->into : NULL;
    if (q->of)
        q->of->readers++;
    q->known = s->all ? given(q, &s->into->mem, row, s->words, 0) : NULL;
    q->hidden = given(q, &s->into->hidden, row, s->of.hidden, s->words);
    q->tops = given(q, &s->into->tops, row, 2 * s->of.tops, (size_t)s->words + s->of.hidden);
}

/* What the run that has ended took: as the device says; where it stood still meanwhile, as frames
 * do. */
static void spend(td_stage *s, const tandem_job_report *report)
{
    uint32_t tokens = 0;

    for (uint32_t i = 0; i < s->row_count; i++)
        tokens += s->rows[i] ? s->rows[i]->running : 1;
    if (s->paced)
        td_budget_spend(&s->budget, tokens, s->spent_ns + spent_of(s) - s->before_ns);
    else if (s->framed && report->end_ns > report->begin_ns)
        td_budget_spend(&s->budget, tokens, report->end_ns - report->begin_ns);
}

/* False: a run is still under way. Of a ticket that is too old nothing is known, so its tokens are
 * read again. */
bool td_stage_collect_locked(td_stage *s)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    if (!s->ticket)
        return true;
    const tandem_status status = tandem_poll(s->of.session, s->ticket, &report);
    if (status == TANDEM_OK && report.state <= TANDEM_JOB_RUNNING)
        return false;
    if (status == TANDEM_OK && report.state == TANDEM_JOB_DONE) {
        s->runs++;
        spend(s, &report);
        for (uint32_t i = 0; i < s->row_count; i++)
            if (s->rows[i])
                advance(s, s->rows[i], i);
    } else if (status == TANDEM_OK && report.state == TANDEM_JOB_FAILED) {
        td_stage_fail_all_locked(s, report.status ? (tandem_status)report.status : TANDEM_ERROR_LOST);
    } else if (status != TANDEM_OK && status != TANDEM_ERROR_ARG) {
        td_stage_fail_all_locked(s, status);
    }
    end_run(s);
    return true;
}

/* The one that began first of those that read and began after `after`, with one token left, or
 * with more; NULL: there is none. */
static td_sequence *next_of(td_stage *s, const td_sequence *after, bool one)
{
    td_sequence *next = NULL;

    for (td_sequence *q = s->first; q; q = q->next)
        if (q->wants && (q->count - q->read == 1) == one && (!after || q->began > after->began) &&
            (!next || q->began < next->began))
            next = q;
    return next;
}

static void add_row(td_stage *s, td_sequence *q, uint32_t tokens)
{
    s->rows[s->row_count++] = q;
    q->running = tokens;
    q->again = false;
    q->used = ++s->now;
}

/* A part of who began first. */
static uint32_t choose_part(td_stage *s)
{
    for (td_sequence *q = next_of(s, NULL, false); q; q = next_of(s, q, false)) {
        td_sequence_adopt(q);
        if (!td_sequence_install_locked(q))
            continue;
        const size_t left = q->count - q->read;
        const uint32_t page = TD_PAGE_TOKENS - (uint32_t)(q->read % TD_PAGE_TOKENS),
                       whole = left < page ? (uint32_t)left : page,
                       part = !s->framed ? whole
                              : s->paced ? td_budget_part(&s->budget, whole)
                                         : td_budget_tokens(&s->budget, whole);

        if (!part || !td_sequence_find_slot_locked(q) ||
            !td_sequence_find_pages_locked(q, q->read + part))
            continue;
        add_row(s, q, part);
        return part;
    }
    return 0;
}

/* The last tokens of as many as there is room for. */
static uint32_t choose_tokens(td_stage *s)
{
    uint32_t most = most_rows(s);

    if (s->framed && !s->paced)
        most = td_budget_tokens(&s->budget, most);
    for (td_sequence *q = next_of(s, NULL, true); q && s->row_count < most; q = next_of(s, q, true))
        if (td_sequence_find_slot_locked(q) && td_sequence_find_pages_locked(q, q->count) &&
            q->count - q->read == 1)
            add_row(s, q, 1);
    return s->row_count ? 1 : 0;
}

/* Parts and last tokens take turns, so that those who talk do not wait for who reads. */
static uint32_t choose(td_stage *s)
{
    uint32_t tokens = s->part_was_last ? choose_tokens(s) : choose_part(s);

    if (!tokens)
        tokens = s->part_was_last ? choose_part(s) : choose_tokens(s);
    s->part_was_last = tokens > 1;
    return tokens;
}

/* Whether somebody who was given logits may be about to go on, and nobody has asked twice. */
static bool is_awaited(td_stage *s, td_sequence *asker)
{
    bool awaited = false;

    for (td_sequence *q = s->first; q; q = q->next)
        awaited = awaited || (q != asker && q->fresh);
    if (!awaited || !asker)
        return false;
    if (!asker->asked) {
        asker->asked = true;
        return true;
    }
    for (td_sequence *q = s->first; q; q = q->next)
        q->fresh = false;
    return false;
}

/* The next run, if there is something to compute. */
static void go_on(td_stage *s)
{
    const uint32_t tokens = choose(s);
    const tandem_status status = tokens ? submit(s, tokens) : TANDEM_OK;

    if (status != TANDEM_OK)
        s->ticket = 0;
    if (status != TANDEM_OK && status != TANDEM_ERROR_BUSY)
        td_stage_fail_all_locked(s, status);
    if (status != TANDEM_OK)
        end_run(s);
    for (td_sequence *q = s->first; q && tokens; q = q->next)
        q->asked = false;
}

/* Who has begun no frame for long does not any more. */
static void end_frames(td_stage *s)
{
    uint64_t seen;

    if (!s->framed || td_now_ns() < s->window_ns + MOST_FRAME_NS)
        return;
    if (s->paced)
        td_instance_pace(s->of.session, s->instance, 0, &seen);
    s->framed = s->paced = false;
}

/* What begins when a frame has had its part would stand still at once, and count as late: the next
 * frame begins it. */
static bool may_begin(const td_stage *s)
{
    return !s->framed || (s->paced && td_now_ns() < s->until_ns);
}

void td_stage_step(td_stage *s, td_sequence *asker)
{
    pthread_mutex_lock(&s->lock);
    end_frames(s);
    if (td_stage_collect_locked(s) && may_begin(s) && !is_awaited(s, asker))
        go_on(s);
    pthread_mutex_unlock(&s->lock);
}

/* How fast it was of late: in a second or so what was before is forgotten. */
static void count_rate(td_stage *s, uint64_t now)
{
    const double seconds = 1e-9 * (double)(now - s->window_ns), share = seconds < 1 ? seconds : 1;

    if (s->window_ns && seconds > 0)
        s->tokens_per_s +=
            share * ((double)(s->tokens - s->frame_tokens) / seconds - s->tokens_per_s);
    s->frame_tokens = s->tokens;
}

td_stage_spent td_stage_frame(td_stage *s, uint64_t budget_ns)
{
    td_stage_spent spent = {0};
    uint64_t seen = 0;

    pthread_mutex_lock(&s->lock);
    const uint64_t now = td_now_ns();
    if (s->paced && s->instance) {
        spent.spent_ns = spent_of(s);
        s->spent_ns += spent.spent_ns - s->before_ns;
        s->before_ns = 0;
        if (s->window_ns + spent.spent_ns > s->until_ns) /* it was told to stop, and did then */
            td_budget_late(&s->budget, s->window_ns + spent.spent_ns - s->until_ns);
    } else if (s->framed && s->budget.frame_ns > s->budget.left_ns) {
        spent.spent_ns = (uint64_t)(s->budget.frame_ns - s->budget.left_ns);
    }
    if (spent.spent_ns > (uint64_t)s->budget.frame_ns && s->framed)
        spent.late_ns = spent.spent_ns - (uint64_t)s->budget.frame_ns;
    const bool at_rest = td_stage_collect_locked(s);
    count_rate(s, now);
    s->framed = budget_ns > 0;
    td_budget_begin(&s->budget, budget_ns);
    s->window_ns = now;
    s->until_ns = budget_ns ? now + td_budget_window_ns(&s->budget) : 0;
    s->paced = s->instance && td_instance_pace(s->of.session, s->instance, s->until_ns, &seen) &&
               budget_ns;
    if (at_rest)
        go_on(s);
    spent.tokens = s->tokens;
    spent.tokens_per_s = s->tokens_per_s;
    for (const td_sequence *q = s->first; q; q = q->next)
        spent.waiting += q->wants;
    pthread_mutex_unlock(&s->lock);
    return spent;
}

bool td_stage_wait(td_stage *s, uint64_t timeout_ns)
{
    pthread_mutex_lock(&s->lock);
    const tandem_ticket ticket = s->ticket;
    pthread_mutex_unlock(&s->lock);
    if (ticket)
        tandem_wait(s->of.session, ticket, timeout_ns, NULL);
    return ticket != 0;
}

/* --- Sequences --- */

tandem_status td_sequence_open(td_stage *s, td_sequence **out)
{
    td_sequence *q = calloc(1, sizeof *q);

    *out = NULL;
    if (q) {
        q->pages = malloc((s->page_room + 1) * sizeof *q->pages);
        q->logits = malloc(((size_t)s->words + s->of.hidden + 2 * s->of.tops) * sizeof *q->logits);
    }
    if (!q || !q->pages || !q->logits) {
        if (q) {
            free(q->pages);
            free(q->logits);
        }
        free(q);
        return TANDEM_ERROR_NOMEM;
    }
    q->stage = s;
    q->slot = -1;
    q->all = true;
    pthread_mutex_lock(&s->lock);
    q->next = s->first;
    s->first = q;
    pthread_mutex_unlock(&s->lock);
    *out = q;
    return TANDEM_OK;
}

/* A run whose tokens nobody wants any more need not go on. */
static void cancel_unwanted(td_stage *s)
{
    for (uint32_t i = 0; i < s->row_count; i++)
        if (s->rows[i] && s->rows[i]->wants)
            return;
    if (s->ticket && !td_session_is_over(s->of.session))
        tandem_cancel(s->of.session, s->ticket);
}

void td_sequence_close(td_sequence **sequence)
{
    td_sequence *q = *sequence, **link;

    if (!q)
        return;
    td_stage *s = q->stage;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->row_count; i++)
        s->rows[i] = s->rows[i] == q ? NULL : s->rows[i];
    let_go(q);
    cancel_unwanted(s);
    if (q->slot >= 0)
        s->owners[q->slot] = NULL;
    td_sequence_forget_saved(q);
    if (s->pages)
        td_sequence_drop_pages(q, 0);
    for (link = &s->first; *link != q; link = &(*link)->next)
        ;
    *link = q->next;
    pthread_mutex_unlock(&s->lock);
    free(q->pages);
    free(q->logits);
    free(q->ids);
    free(q);
    *sequence = NULL;
}

static bool make_room(td_sequence *q, size_t count)
{
    if (count <= q->room)
        return true;
    uint32_t *more = realloc(q->ids, (count + count / 2 + 64) * sizeof *more);
    if (!more)
        return false;
    q->ids = more;
    q->room = count + count / 2 + 64;
    return true;
}

/* Of the tokens that it has, or will have read when a run ends, those that are the same; but for
 * the last one, whose logits are wanted. */
static size_t same_of(const td_sequence *q, const uint32_t *ids, size_t count)
{
    const size_t known = q->read + q->running;
    size_t same = 0;

    while (same < known && same < q->count && same + 1 < count && q->ids[same] == ids[same])
        same++;
    return same;
}

tandem_status td_sequence_read(td_sequence *q, const uint32_t *ids, size_t count)
{
    td_stage *s = q->stage;

    pthread_mutex_lock(&s->lock);
    const size_t same = same_of(q, ids, count);
    const bool is_more = q->knows && count == q->count + 1 && same == q->count;
    let_go(q);
    q->wants = q->asked = false;
    q->status = TANDEM_OK;
    if (!make_room(q, count)) {
        pthread_mutex_unlock(&s->lock);
        return TANDEM_ERROR_NOMEM;
    }
    if (same < q->read + q->running) {
        q->again = q->running > 0; /* what that run computes of it is not what it is to have read */
        td_sequence_go_back(q, same);
    }
    memcpy(q->ids + same, ids + same, (count - same) * sizeof *ids);
    q->count = count;
    q->wants = true;
    if (!is_more)
        q->began = ++s->now;
    td_sequence_adopt(q);
    pthread_mutex_unlock(&s->lock);
    return TANDEM_OK;
}

void td_sequence_want_all(td_sequence *q, bool all)
{
    pthread_mutex_lock(&q->stage->lock);
    q->all = all;
    pthread_mutex_unlock(&q->stage->lock);
}

void td_sequence_rest(td_sequence *q)
{
    pthread_mutex_lock(&q->stage->lock);
    let_go(q);
    q->wants = false;
    cancel_unwanted(q->stage);
    pthread_mutex_unlock(&q->stage->lock);
}

td_sequence_state td_sequence_look(td_sequence *q)
{
    pthread_mutex_lock(&q->stage->lock);
    const td_sequence_state state = {.is = q->status  ? TD_SEQUENCE_FAILED
                                           : q->knows ? TD_SEQUENCE_KNOWS
                                           : q->wants ? TD_SEQUENCE_READS
                                                      : TD_SEQUENCE_RESTS,
                                     .status = q->status,
                                     .read = q->read,
                                     .tokens = q->tokens,
                                     .logits = q->known,
                                     .hidden = q->hidden,
                                     .tops = q->tops};
    pthread_mutex_unlock(&q->stage->lock);
    return state;
}
