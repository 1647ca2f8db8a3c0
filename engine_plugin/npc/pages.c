/* Who has which page of a pool. See pages.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/pages.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct node {
    uint32_t ids[TD_PAGE_TOKENS];
    uint32_t behind, children; /* in the tree */
    uint32_t holders;
    uint32_t next; /* of the same hash, or free; TD_NO_PAGE: none */
    bool entered;
    uint64_t used;
} node;

struct td_pages {
    node *pages;
    uint32_t *heads; /* the first page of each hash */
    uint32_t count, head_count, free, held, kept;
    uint64_t now;
};

tandem_status td_pages_create(uint32_t count, td_pages **out)
{
    td_pages *p = calloc(1, sizeof *p);
    uint32_t heads = 64;

    *out = NULL;
    while (heads < count && heads < 1u << 30)
        heads *= 2;
    if (p) {
        p->pages = calloc((size_t)count + 1, sizeof *p->pages);
        p->heads = malloc(heads * sizeof *p->heads);
    }
    if (!p || !p->pages || !p->heads) {
        td_pages_destroy(&p);
        return TANDEM_ERROR_NOMEM;
    }
    p->count = count;
    p->head_count = heads;
    td_pages_forget(p);
    *out = p;
    return TANDEM_OK;
}

void td_pages_forget(td_pages *p)
{
    memset(p->heads, 0xff, p->head_count * sizeof *p->heads);
    for (uint32_t i = 0; i < p->count; i++)
        p->pages[i] = (node){.next = i + 1 < p->count ? i + 1 : TD_NO_PAGE};
    p->free = p->count ? 0 : TD_NO_PAGE;
    p->held = p->kept = 0;
}

void td_pages_destroy(td_pages **pages)
{
    if (*pages) {
        free((*pages)->pages);
        free((*pages)->heads);
    }
    free(*pages);
    *pages = NULL;
}

/* Of a page that has these tokens behind that one. */
static uint32_t *head_of(td_pages *p, uint32_t behind, const uint32_t *ids)
{
    uint64_t hash = 0xcbf29ce484222325u ^ behind;

    for (uint32_t i = 0; i < TD_PAGE_TOKENS; i++)
        hash = (hash ^ ids[i]) * 0x100000001b3u;
    return &p->heads[(hash ^ hash >> 32) & (p->head_count - 1)];
}

static uint32_t look_up(td_pages *p, uint32_t behind, const uint32_t *ids)
{
    uint32_t at = *head_of(p, behind, ids);

    while (at != TD_NO_PAGE && (p->pages[at].behind != behind ||
                                memcmp(p->pages[at].ids, ids, sizeof p->pages[at].ids) != 0))
        at = p->pages[at].next;
    return at;
}

/* Nobody finds it any more. */
static void leave_tree(td_pages *p, uint32_t page)
{
    uint32_t *link = head_of(p, p->pages[page].behind, p->pages[page].ids);

    while (*link != page)
        link = &p->pages[*link].next;
    *link = p->pages[page].next;
    if (p->pages[page].behind != TD_NO_PAGE)
        p->pages[p->pages[page].behind].children--;
    p->pages[page].entered = false;
    p->kept--;
}

uint32_t td_pages_take(td_pages *p)
{
    uint32_t page = p->free;

    if (page != TD_NO_PAGE) {
        p->free = p->pages[page].next;
    } else {
        for (uint32_t i = 0; i < p->count; i++)
            if (!p->pages[i].holders && !p->pages[i].children &&
                (page == TD_NO_PAGE || p->pages[i].used < p->pages[page].used))
                page = i;
        if (page == TD_NO_PAGE)
            return page;
        leave_tree(p, page);
    }
    p->pages[page].holders = 1;
    p->pages[page].children = 0;
    p->held++;
    return page;
}

void td_pages_hold(td_pages *p, uint32_t page)
{
    if (!p->pages[page].holders++) {
        p->held++;
        p->kept--;
    }
    p->pages[page].used = ++p->now;
}

void td_pages_drop(td_pages *p, uint32_t page)
{
    if (--p->pages[page].holders)
        return;
    p->held--;
    if (p->pages[page].entered) {
        p->kept++;
        return;
    }
    p->pages[page].next = p->free;
    p->free = page;
}

uint32_t td_pages_find(td_pages *p, uint32_t behind, const uint32_t ids[TD_PAGE_TOKENS])
{
    const uint32_t page = look_up(p, behind, ids);

    if (page != TD_NO_PAGE)
        td_pages_hold(p, page);
    return page;
}

uint32_t td_pages_enter(td_pages *p, uint32_t behind, const uint32_t ids[TD_PAGE_TOKENS],
                        uint32_t page)
{
    const uint32_t same = td_pages_find(p, behind, ids);

    if (same != TD_NO_PAGE) {
        td_pages_drop(p, page);
        return same;
    }
    if (behind != TD_NO_PAGE && !p->pages[behind].entered)
        return page;
    uint32_t *head = head_of(p, behind, ids);
    memcpy(p->pages[page].ids, ids, sizeof p->pages[page].ids);
    p->pages[page].behind = behind;
    p->pages[page].entered = true;
    p->pages[page].used = ++p->now;
    p->pages[page].next = *head;
    *head = page;
    if (behind != TD_NO_PAGE)
        p->pages[behind].children++;
    return page;
}

uint32_t td_pages_held(const td_pages *p)
{
    return p->held;
}

uint32_t td_pages_kept(const td_pages *p)
{
    return p->kept;
}
