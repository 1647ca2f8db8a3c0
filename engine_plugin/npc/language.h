/* A language model's file on a session, with what its characters share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_NPC_LANGUAGE_H
#define TD_NPC_LANGUAGE_H

#include <stdatomic.h>

#include "engine_plugin/npc/chat.h"
#include "engine_plugin/npc/token_tree.h"
#include "tandem/npc.h"

struct tandem_language {
    tandem_session *session; /* the caller's */
    tandem_model model;
    td_tokenizer *tokenizer;
    td_token_tree *tree;
    const td_chat_form *form; /* NULL: none that is known */
    td_chat_own *own_form;    /* or NULL */
    uint32_t precision, context;
    uint64_t npc_bytes;
    atomic_uint npcs;
};

#endif
