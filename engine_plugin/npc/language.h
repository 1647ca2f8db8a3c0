/* A language model's file on a session, with what its characters share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_NPC_LANGUAGE_H
#define TD_NPC_LANGUAGE_H

#include <stdatomic.h>

#include "engine_plugin/npc/chat.h"
#include "engine_plugin/npc/stage.h"
#include "engine_plugin/npc/token_tree.h"
#include "interop/os/thread.h"
#include "tandem/npc.h"

struct tandem_language {
    tandem_session *session; /* the caller's */
    tandem_model model;
    td_tokenizer *tokenizer;
    td_token_tree *tree;
    const td_chat_form *form; /* NULL: none that is known */
    td_chat_own *own_form;    /* or NULL */
    td_stage *stage; /* of all characters; NULL: each has its own */
    uint32_t precision, context, words; /* words: of logits */
    uint32_t cache, slots, pages;       /* pages 0: no stage */
    uint32_t rows;                      /* characters of a run, at most; 0: as many as there may be */
    uint32_t layers, kv_heads, head_dim; /* of the model; */
    uint64_t model_hash;                 /* its metadata, and how its tensors begin */
    uint64_t npc_bytes;
    uint32_t hidden; /* numbers of an embedding; 0: it makes none */
    uint32_t tops;   /* words of an output of the largest logits; 0: there is none */
    atomic_uint npcs, embedders;
    pthread_mutex_t lock; /* of `stage`, until it is there */
};

/* Of its stage, or of one of a character's own. */
td_stage_desc td_language_stage_desc(const tandem_language *l);
/* Makes the stage of a language that has pages, unless it is there. What goes wrong is told. */
tandem_status td_language_stage(tandem_language *l);

#endif
