/* What a stage is made of, for the files that it is in. See stage.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_NPC_STAGE_PARTS_H
#define TD_NPC_STAGE_PARTS_H

#include "engine_plugin/npc/budget.h"
#include "engine_plugin/npc/host_mem.h"
#include "engine_plugin/npc/stage.h"
#include "interop/os/thread.h"

struct td_sequence {
    td_stage *stage;
    td_sequence *next;
    uint32_t *ids; /* that it is to have read */
    size_t count, room, read;
    uint32_t running; /* tokens behind those that the run under way has; 0: it is not in it */
    bool again;       /* but they are not what it is to read any more */
    bool wants, knows;
    bool fresh; /* its owner may be about to go on */
    bool asked; /* its owner has, once */
    int32_t slot;
    uint32_t *pages, page_count; /* with a place for each of the context's */
    uint32_t entered;            /* of these, those that everybody can find */
    uint64_t used, began;        /* by td_stage.now */
    uint64_t tokens;
    tandem_status status;
    bool all;              /* logits are wanted */
    float *logits;         /* its own, for what was moved out of the way of a run; hidden and tops behind */
    const float *known;    /* those that it was given: there or in the stage's; NULL: not all were wanted; */
    const float *hidden, *tops; /* and those of the other outputs */
    struct td_logits *of;  /* these; NULL: there are none */
    struct td_restored *saved; /* that it takes for read when it comes there; NULL: nothing */
};

struct td_restored {
    uint32_t *ids;
    char *bytes;
    size_t count;
    uint32_t first, pages, tail;
};

/* Where a run puts logits: the next one goes elsewhere while somebody may read these. */
typedef struct td_logits {
    td_host_mem mem, hidden, tops; /* the latter empty where the model has none */
    uint32_t readers; /* sequences that know theirs */
} td_logits;
enum { TD_STAGE_LOGITS = 2 };

struct td_stage {
    td_stage_desc of;
    pthread_mutex_t lock; /* of all that follows, and of sequences */
    tandem_instance instance;
    td_logits logits[TD_STAGE_LOGITS], *into; /* of the run under way, */
    bool all;                                 /* of which somebody wants all logits; */
    tandem_mem unwanted;                      /* else they go here: the device's, so that they need not cross PCIe */
    uint32_t words, page_room; /* pages of a context */
    uint64_t cache_bytes;
    td_pages *pages; /* NULL: one sequence, with caches of its own */

    uint32_t numbers[3]; /* that uniforms are for */
    uint64_t uniform[4], uniform_bytes;
    char *uniforms;

    tandem_ticket ticket; /* of the run under way; 0: none */
    td_sequence *rows[TD_STAGE_ROWS]; /* NULL: it was closed */
    uint32_t row_count;
    bool part_was_last;

    td_sequence *first, *owners[TD_STAGE_SLOTS];
    uint64_t now, tokens, runs;

    td_budget budget;
    bool framed;           /* runs are begun by frames alone, */
    bool paced;            /* or stand still when these have had theirs */
    uint64_t window_ns;    /* when the frame at hand began, */
    uint64_t until_ns;     /* and when runs were told to stop */
    uint64_t spent_ns;     /* by the run under way, in frames before; */
    uint64_t before_ns;    /* by the one before it, in this frame */
    uint64_t frame_tokens; /* `tokens`, when the frame began */
    double tokens_per_s;
};

/* stage_pages.c. drop: the first `count` pages stay. go_back: of its tokens the first `read` do, or
 * less. adopt: what others have computed of it; enter: what others may have. find: a slot, and
 * pages for all tokens before `end`; false: there are none. forget: that it has read anything. */
void td_sequence_drop_pages(td_sequence *q, uint32_t count);
void td_sequence_go_back(td_sequence *q, size_t read);
void td_sequence_adopt(td_sequence *q);
void td_sequence_enter(td_sequence *q);
bool td_sequence_find_slot_locked(td_sequence *q);
bool td_sequence_find_pages_locked(td_sequence *q, size_t end);
void td_sequence_forget_locked(td_sequence *q);

/* stage_copy.c. Pages from `first` to `end`; of the newest one `tail` tokens. install: what was
 * restored; false: there is no room for it yet. */
uint64_t td_stage_page_bytes(const td_stage *s);
tandem_status td_sequence_copy_pages(td_sequence *q, uint32_t first, uint32_t end, char *saved,
                                     bool to_stage, char *why);
tandem_status td_sequence_copy_tail(td_sequence *q, uint32_t number, uint32_t tail, char *saved,
                                    bool to_stage, char *why);
bool td_sequence_install_locked(td_sequence *q);
void td_sequence_forget_saved(td_sequence *q);

/* stage.c. collect: false: a run is still under way. fail_all: what was read is lost with the instance,
 * and what the run under way has fails. */
bool td_stage_collect_locked(td_stage *s);
void td_stage_fail_all_locked(td_stage *s, tandem_status status);

#endif
