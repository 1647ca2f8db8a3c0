/* How dialogues are written for a model: what goes before and behind each turn.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Files bring a program for this, in a language of its own. It is not run: the few forms that are
 * common are recognised by words in it, and any other is given by hand.
 */
#ifndef TD_NPC_CHAT_H
#define TD_NPC_CHAT_H

#include "engine_plugin/npc/tokenizer.h"

typedef struct td_chat_form {
    const char *name;
    struct {
        const char *before, *behind;
    } system, user, reply;
    const char *opening; /* of the reply that the model is to write */
    bool system_in_user; /* it stands within the user's next turn, before the text */
    bool trims;          /* white space around each text */
} td_chat_form;

/* NULL if there is none of this name. */
const td_chat_form *td_chat_find(const char *name);
/* By the text under tokenizer.chat_template; NULL if it is none that is known. */
const td_chat_form *td_chat_recognise(td_gguf_string program);
/* One by hand, as JSON: what goes before each text and behind it, and what opens a reply.
 *   {"system": ["", "\n\n"], "user": ["USER: ", "\n"], "reply": ["NPC: ", "\n"], "opening": "NPC:",
 *    "system_in_user": false, "trims": true}
 * Only "user" and "reply" have to be there; a reply is opened by what goes before it, unless "opening"
 * says otherwise. ARG, naming the member, where it is wrong; NOMEM. */
typedef struct td_chat_own td_chat_own;
tandem_status td_chat_own_create(const char *text, td_chat_own **out, char *why, size_t why_bytes);
void td_chat_own_destroy(td_chat_own **own); /* accepts NULL in it */
const td_chat_form *td_chat_own_form(const td_chat_own *own);
/* What a name is, or such JSON, or, with NULL for both, a file's program: *form is NULL where that is
 * none that is known. The caller destroys *own. UNSUPPORTED for another name; as above. */
tandem_status td_chat_choose(const char *name, td_gguf_string program, td_chat_own **own,
                             const td_chat_form **form, char *why, size_t why_bytes);
/* Each of those that are known, by index; NULL behind the last. */
const td_chat_form *td_chat_at(size_t index);

typedef enum td_chat_role { TD_CHAT_SYSTEM, TD_CHAT_USER, TD_CHAT_REPLY } td_chat_role;

typedef struct td_chat_turn {
    td_chat_role role;
    const char *text; /* never read as special tokens */
    size_t bytes;
} td_chat_turn;

/* Adds the tokens of a dialogue, which begins with the model's own token for that where it has one,
 * and where `opens` says so with what opens a reply. As td_tokenizer_encode(). */
tandem_status td_chat_encode(const td_tokenizer *t, const td_chat_form *form,
                             const td_chat_turn *turns, size_t count, bool opens, td_tokens *out,
                             char *why, size_t why_bytes);

#endif
