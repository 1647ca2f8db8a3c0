/* What sequences have read, as bytes. See stage.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "engine_plugin/npc/stage_parts.h"
#include "interop/os/clock.h"

#define END_NS 10000000000u /* for how long a run under way is waited for */

/* With the lock, and no run under way; false: one is. */
static bool lock_at_rest(td_stage *s)
{
    const uint64_t until = td_now_ns() + END_NS;

    for (;;) {
        pthread_mutex_lock(&s->lock);
        if (td_stage_collect_locked(s))
            return true;
        pthread_mutex_unlock(&s->lock);
        if (td_now_ns() >= until)
            return false;
        td_stage_wait(s, until - td_now_ns());
    }
}

tandem_status td_sequence_saved(td_sequence *q, td_saved *out, char *why)
{
    td_stage *s = q->stage;

    if (!lock_at_rest(s))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "a run has not ended in 10 s");
    out->ids = q->ids;
    out->count = q->read < q->count ? q->read : q->count;
    const bool has_pages =
        s->pages && s->of.layers && !td_instance_no_copies(s->of.session);
    out->pages = has_pages ? (uint32_t)(out->count / TD_PAGE_TOKENS) : 0;
    out->tail = has_pages ? (uint32_t)(out->count % TD_PAGE_TOKENS) : 0;
    if (q->saved &&
        q->saved->count > out->count) { /* nobody has asked for it since it was restored */
        out->ids = q->saved->ids;
        out->count = q->saved->count;
        out->pages = q->saved->pages;
        out->tail = q->saved->tail;
    }
    pthread_mutex_unlock(&s->lock);
    return TANDEM_OK;
}

tandem_status td_sequence_save(td_sequence *q, const td_saved *of, uint32_t first, void *to,
                               char *why)
{
    td_stage *s = q->stage;
    tandem_status status = TANDEM_OK;

    if (!of->pages && !of->tail)
        return status;
    if (!lock_at_rest(s))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "a run has not ended in 10 s");
    const struct td_restored *v = q->saved;
    if (v && v->ids == of->ids && v->first <= first) {
        memcpy(to, v->bytes + (first - v->first) * td_stage_page_bytes(s),
               td_stage_saved_bytes(s, of->pages - first, of->tail));
        pthread_mutex_unlock(&s->lock);
        return status;
    }
    if (q->read != of->count || q->page_count < of->pages + (of->tail > 0))
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_BUSY, "others took its pages meanwhile");
    if (status == TANDEM_OK)
        status = td_sequence_copy_pages(q, first, of->pages, to, false, why);
    if (status == TANDEM_OK && of->tail)
        status = td_sequence_copy_tail(q, of->pages, of->tail,
                                       (char *)to + (of->pages - first) * td_stage_page_bytes(s),
                                       false, why);
    if (status == TANDEM_ERROR_LOST) /* nobody has anything there any more */
        td_stage_fail_all_locked(s, status);
    pthread_mutex_unlock(&s->lock);
    return status;
}

tandem_status td_sequence_restore(td_sequence *q, const td_saved *of, uint32_t first,
                                  const void *bytes)
{
    td_stage *s = q->stage;
    const uint64_t size = td_stage_saved_bytes(s, of->pages - first, of->tail);
    struct td_restored *made = calloc(1, sizeof *made);

    if (made) {
        made->ids = malloc((of->count + 1) * sizeof *made->ids);
        made->bytes = malloc(size + 1);
    }
    if (!made || !made->ids || !made->bytes) {
        if (made) {
            free(made->ids);
            free(made->bytes);
        }
        free(made);
        return TANDEM_ERROR_NOMEM;
    }
    memcpy(made->ids, of->ids, of->count * sizeof *made->ids);
    if (size)
        memcpy(made->bytes, bytes, size);
    made->count = of->count;
    made->first = first;
    made->pages = of->pages;
    made->tail = of->tail;
    pthread_mutex_lock(&s->lock);
    td_sequence_forget_saved(q);
    td_sequence_forget_locked(q);
    q->saved = made;
    pthread_mutex_unlock(&s->lock);
    return TANDEM_OK;
}
