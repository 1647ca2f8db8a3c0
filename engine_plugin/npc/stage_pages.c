/* Which pages and slots sequences of a stage have. See stage_parts.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/stage_parts.h"

/* The first `count` pages stay. */
void td_sequence_drop_pages(td_sequence *q, uint32_t count)
{
    while (q->page_count > count)
        td_pages_drop(q->stage->pages, q->pages[--q->page_count]);
    if (q->entered > count)
        q->entered = count;
}

/* Of its tokens the first `read` stay in its caches; less, where they are in the middle of a page
 * that is not its newest: of that nothing is as it was before. */
void td_sequence_go_back(td_sequence *q, size_t read)
{
    if (!q->stage->pages) {
        q->read = read < q->read ? read : q->read;
        return;
    }
    if (read < q->read) {
        if (read / TD_PAGE_TOKENS != q->read / TD_PAGE_TOKENS)
            read -= read % TD_PAGE_TOKENS;
        q->read = read;
    }
    td_sequence_drop_pages(q, (uint32_t)((q->read + TD_PAGE_TOKENS - 1) / TD_PAGE_TOKENS));
}

/* Pages that were computed already, up to the last token's: as long as it is where one begins. */
void td_sequence_adopt(td_sequence *q)
{
    td_stage *s = q->stage;

    while (s->pages && q->read % TD_PAGE_TOKENS == 0 && q->entered == q->read / TD_PAGE_TOKENS &&
           q->read + TD_PAGE_TOKENS < q->count) {
        const uint32_t behind = q->entered ? q->pages[q->entered - 1] : TD_NO_PAGE,
                       page = td_pages_find(s->pages, behind, q->ids + q->read);

        if (page == TD_NO_PAGE)
            return;
        td_sequence_drop_pages(q, q->entered);
        q->pages[q->page_count++] = page;
        q->entered++;
        q->read += TD_PAGE_TOKENS;
    }
}

/* The pages that it has read to their ends become everybody's. */
void td_sequence_enter(td_sequence *q)
{
    td_stage *s = q->stage;

    while (s->pages && (q->entered + 1u) * TD_PAGE_TOKENS <= q->read &&
           q->entered + 1 < s->page_room) {
        const uint32_t at = q->entered, behind = at ? q->pages[at - 1] : TD_NO_PAGE;

        q->pages[at] =
            td_pages_enter(s->pages, behind, q->ids + (size_t)at * TD_PAGE_TOKENS, q->pages[at]);
        q->entered++;
    }
}

/* With it goes its newest page, as far as that was read. */
static void leave_slot(td_sequence *q)
{
    if (q->slot < 0)
        return;
    q->stage->owners[q->slot] = NULL;
    q->slot = -1;
    td_sequence_go_back(q, q->read - q->read % TD_PAGE_TOKENS);
}

bool td_sequence_find_slot_locked(td_sequence *q)
{
    td_stage *s = q->stage;
    td_sequence *oldest = NULL;

    if (q->slot >= 0)
        return true;
    for (uint32_t i = 0; i < s->of.slots; i++)
        if (!s->owners[i]) {
            s->owners[i] = q;
            q->slot = (int32_t)i;
            return true;
        }
    for (uint32_t i = 0; i < s->of.slots; i++)
        if (!s->owners[i]->wants && (!oldest || s->owners[i]->used < oldest->used))
            oldest = s->owners[i];
    if (!oldest)
        return false;
    const int32_t slot = oldest->slot;
    leave_slot(oldest);
    s->owners[slot] = q;
    q->slot = slot;
    return true;
}

/* All that a sequence has read is forgotten: who rests longest; else who began last, after `q`. */
static bool take_from_others(td_sequence *q)
{
    td_sequence *from = NULL;

    for (td_sequence *o = q->stage->first; o; o = o->next)
        if (o != q && o->page_count && !o->wants && (!from || o->used < from->used))
            from = o;
    for (td_sequence *o = from ? NULL : q->stage->first; o; o = o->next)
        if (o != q && o->page_count && o->began > q->began && (!from || o->began > from->began))
            from = o;
    if (from) {
        from->read = 0;
        td_sequence_drop_pages(from, 0);
    }
    return from != NULL;
}

/* For all tokens before `end`. */
bool td_sequence_find_pages_locked(td_sequence *q, size_t end)
{
    td_stage *s = q->stage;

    while (s->pages && (size_t)q->page_count * TD_PAGE_TOKENS < end) {
        const uint32_t page = td_pages_take(s->pages);

        if (page != TD_NO_PAGE)
            q->pages[q->page_count++] = page;
        else if (!take_from_others(q))
            return false;
    }
    return true;
}

void td_sequence_forget_locked(td_sequence *q)
{
    q->again = q->running > 0;
    q->count = q->read = 0;
    if (q->stage->pages)
        td_sequence_drop_pages(q, 0);
}
