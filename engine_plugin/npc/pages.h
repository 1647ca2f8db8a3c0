/* Who has which page of a pool: pages that sequences share as long as they begin alike.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A page is the keys and values of 64 tokens. What they are depends on these and on all before
 * them, so a page that was computed is known by its tokens and by the page behind which it comes: a
 * tree, whose root is TD_NO_PAGE. Pages that nobody holds any more stay there until room is needed.
 * This knows no device: what is in a page is its caller's affair. One thread at a time.
 */
#ifndef TD_NPC_PAGES_H
#define TD_NPC_PAGES_H

#include "tandem/types.h"

enum { TD_PAGE_TOKENS = 64 };
#define TD_NO_PAGE UINT32_MAX

typedef struct td_pages td_pages;

/* NOMEM. */
tandem_status td_pages_create(uint32_t count, td_pages **out);
void td_pages_destroy(td_pages **pages);

/* A page that nobody holds, for who asks: one that is free, or the one of the tree that was used
 * longest ago and has none behind it. TD_NO_PAGE: all are held. */
uint32_t td_pages_take(td_pages *p);
/* One holder more, or less. */
void td_pages_hold(td_pages *p, uint32_t page);
void td_pages_drop(td_pages *p, uint32_t page);

/* The page of these tokens behind another, which is held now; TD_NO_PAGE: there is none. */
uint32_t td_pages_find(td_pages *p, uint32_t behind, const uint32_t ids[TD_PAGE_TOKENS]);
/* A page has been computed: from now on it is found. Where there is the same one already that one is
 * held in its place, and returned. Behind a page that is not in the tree none is entered. */
uint32_t td_pages_enter(td_pages *p, uint32_t behind, const uint32_t ids[TD_PAGE_TOKENS],
                        uint32_t page);

/* Of which none is held: what they have is lost. */
void td_pages_forget(td_pages *p);

/* How many somebody holds; how many nobody does, but are found. */
uint32_t td_pages_held(const td_pages *p);
uint32_t td_pages_kept(const td_pages *p);

#endif
