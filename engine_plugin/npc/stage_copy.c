/* Pages of sequences, to the host's memory and back. See stage_parts.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "engine_plugin/npc/stage_parts.h"
#include "kernels/cache/params.h"

/* How a page lies in a stage's caches: of layer by layer, and there head by head. */
uint64_t td_stage_page_bytes(const td_stage *s)
{
    return (uint64_t)s->of.layers * s->of.kv_heads *
           TD_CACHE_PAGE_BYTES(s->of.cache, s->of.head_dim);
}

/* Of the newest page: so many keys, and pairs of values. */
static uint64_t tail_bytes(const td_stage *s, uint32_t tail)
{
    return (uint64_t)s->of.layers * s->of.kv_heads * s->of.head_dim * 2 *
           (tail + (tail + 1) / 2 * 2);
}

uint64_t td_stage_saved_bytes(const td_stage *s, uint32_t pages, uint32_t tail)
{
    return pages * td_stage_page_bytes(s) + tail_bytes(s, tail);
}

/* Pieces of heads' planes, which are copied all at once: where a daemon has them each time costs a
 * way there and back. */
enum { NAME_BYTES = 40 };
typedef struct pieces {
    td_state_copy *list;
    char (*names)[NAME_BYTES]; /* of layers' caches */
    size_t count;
} pieces;

static void free_pieces(pieces *p)
{
    free(p->list);
    free(p->names);
}

static tandem_status make_pieces(const td_stage *s, size_t most, pieces *p, char *why)
{
    *p = (pieces){.list = calloc(most + 1, sizeof *p->list),
                  .names = calloc((size_t)s->of.layers + 1, sizeof *p->names)};
    if (!p->list || !p->names || most > UINT32_MAX) {
        free_pieces(p);
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no memory to copy caches");
    }
    for (uint32_t layer = 0; layer < s->of.layers; layer++)
        td_text(p->names[layer], sizeof p->names[layer], "blk.%" PRIu32 ".cache", layer);
    return TANDEM_OK;
}

static void add_piece(const td_stage *s, pieces *p, uint32_t layer, uint32_t head, uint64_t offset,
                      uint64_t bytes, void *host)
{
    const uint64_t plane =
        tandem_cache_pool_bytes(s->of.cache, s->of.slots, s->of.pages, s->of.head_dim);

    p->list[p->count++] = (td_state_copy){.tensor = p->names[layer],
                                          .offset = head * plane + offset,
                                          .bytes = bytes,
                                          .host = host};
}

static tandem_status copy_pieces(td_stage *s, const pieces *p, bool to_stage, char *why)
{
    return td_instance_copy(s->of.session, s->instance, p->list, (uint32_t)p->count, to_stage, why);
}

/* Where the newest page of a sequence is in a plane. */
static uint64_t newest_at(const td_sequence *q, uint32_t number)
{
    const td_stage *s = q->stage;

    return s->of.cache == TANDEM_CACHE_F16
               ? TD_CACHE_POOLED(s->of.slots, q->pages[number], s->of.cache, s->of.head_dim)
               : (uint64_t)(uint32_t)q->slot * TD_CACHE_SLOT_BYTES(s->of.cache, s->of.head_dim) +
                     TD_CACHE_HEAD_BYTES;
}

/* Keys lie as [dim / 2][64][2], of which `tail` are there; values as [32][dim][2]. */
static void pack(char *packed, char *page, uint32_t dim, uint32_t tail, bool unpacks)
{
    for (uint32_t pair = 0; pair < dim / 2; pair++) {
        char *whole = page + (size_t)pair * TD_PAGE_TOKENS * 4,
             *part = packed + (size_t)pair * tail * 4;

        memcpy(unpacks ? whole : part, unpacks ? part : whole, (size_t)tail * 4);
    }
    char *whole = page + (size_t)dim * TD_PAGE_TOKENS * 2, *part = packed + (size_t)dim * tail * 2;
    memcpy(unpacks ? whole : part, unpacks ? part : whole, (size_t)((tail + 1) / 2) * dim * 4);
}

tandem_status td_sequence_copy_tail(td_sequence *q, uint32_t number, uint32_t tail, char *saved,
                                    bool to_stage, char *why)
{
    td_stage *s = q->stage;
    const uint32_t dim = s->of.head_dim, planes = s->of.layers * s->of.kv_heads;
    const uint64_t bytes = tail_bytes(s, tail) / planes, page_bytes = TD_CACHE_NEWEST_BYTES(dim),
                   at = newest_at(q, number);
    char *pages = calloc(planes, page_bytes);
    int32_t holds = (int32_t)number + 1;
    pieces p;
    tandem_status status = make_pieces(s, 2 * (size_t)planes, &p, why);

    if (status == TANDEM_OK && !pages) {
        free_pieces(&p);
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no memory to copy caches");
    }
    if (status != TANDEM_OK) {
        free(pages);
        return status;
    }
    for (uint32_t plane = 0; plane < planes; plane++) {
        const uint32_t layer = plane / s->of.kv_heads, head = plane % s->of.kv_heads;
        char *page = pages + plane * page_bytes;

        if (to_stage)
            pack(saved + plane * bytes, page, dim, tail, true);
        add_piece(s, &p, layer, head, at, page_bytes, page);
        if (to_stage && s->of.cache != TANDEM_CACHE_F16)
            add_piece(s, &p, layer, head, at - TD_CACHE_HEAD_BYTES, sizeof holds, &holds);
    }
    status = copy_pieces(s, &p, to_stage, why);
    for (uint32_t plane = 0; plane < planes && status == TANDEM_OK && !to_stage; plane++)
        pack(saved + plane * bytes, pages + plane * page_bytes, dim, tail, false);
    free_pieces(&p);
    free(pages);
    return status;
}

tandem_status td_sequence_copy_pages(td_sequence *q, uint32_t first, uint32_t end, char *saved,
                                     bool to_stage, char *why)
{
    td_stage *s = q->stage;
    const uint32_t bytes = TD_CACHE_PAGE_BYTES(s->of.cache, s->of.head_dim);
    pieces p;
    tandem_status status =
        make_pieces(s, (size_t)(end - first) * s->of.layers * s->of.kv_heads, &p, why);

    if (status != TANDEM_OK)
        return status;
    for (uint32_t page = first; page < end; page++)
        for (uint32_t layer = 0; layer < s->of.layers; layer++)
            for (uint32_t head = 0; head < s->of.kv_heads; head++, saved += bytes)
                add_piece(s, &p, layer, head,
                          TD_CACHE_POOLED(s->of.slots, q->pages[page], s->of.cache, s->of.head_dim),
                          bytes, saved);
    status = copy_pieces(s, &p, to_stage, why);
    free_pieces(&p);
    return status;
}

void td_sequence_forget_saved(td_sequence *q)
{
    if (q->saved) {
        free(q->saved->ids);
        free(q->saved->bytes);
    }
    free(q->saved);
    q->saved = NULL;
}

bool td_sequence_install_locked(td_sequence *q)
{
    const struct td_restored *v = q->saved;
    char why[TD_WHY_BYTES];
    size_t same = 0;

    if (!v || q->read < (size_t)v->first * TD_PAGE_TOKENS)
        return true;
    while (same < v->count && same + 1 < q->count && v->ids[same] == q->ids[same])
        same++;
    const uint32_t end = (uint32_t)(same / TD_PAGE_TOKENS) < v->pages
                             ? (uint32_t)(same / TD_PAGE_TOKENS)
                             : v->pages,
                   tail = same > (size_t)v->pages * TD_PAGE_TOKENS ? v->tail : 0;
    const size_t read = tail ? same : (size_t)end * TD_PAGE_TOKENS;
    if (q->read > (size_t)v->first * TD_PAGE_TOKENS || read <= q->read ||
        td_instance_no_copies(q->stage->of.session)) {
        td_sequence_forget_saved(q);
        return true;
    }
    if (!td_sequence_find_slot_locked(q) || !td_sequence_find_pages_locked(q, read))
        return false;
    if (td_sequence_copy_pages(q, v->first, end, v->bytes, true, why) == TANDEM_OK &&
        (!tail || td_sequence_copy_tail(q, end, tail,
                                        v->bytes + (end - v->first) * td_stage_page_bytes(q->stage),
                                        true, why) == TANDEM_OK)) {
        q->read = read;
        q->entered = end; /* what a file says is never found by others */
    }
    td_sequence_forget_saved(q);
    return true;
}
