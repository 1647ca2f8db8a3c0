/* Four characters of one language model: who they are, what they are told, and what they answer and
 * do.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     demo_talk_open()     a session of its own, a model's file on it, and the characters
 *     demo_talk_frame()    once a frame: how long it may compute for them
 *     demo_talk_poll()     takes what was said meanwhile, and never waits
 *     demo_talk_say()      what the visitor says to one of them
 *
 * A thread polls characters while they talk, so that what a frame may spend is used however long
 * frames are. An engine of many frames a second needs none: it polls in its frames.
 *
 * A reply is what is said, and then, where something happens, a line of JSON:
 * {"action":"give","item":"bread","price":2}. A grammar holds any model to that, and to items that
 * the character has.
 */
#ifndef TANDEM_DEMO_TALK_H
#define TANDEM_DEMO_TALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "demo/scene.h"
#include "interop/os/thread.h"
#include "tandem/npc.h"

enum { DEMO_CARD_ITEMS = 3, DEMO_SAID_BYTES = 640, DEMO_ASKED_BYTES = 200, DEMO_CACHES = 3 };

typedef struct demo_card_item {
    const char *name; /* NULL: there is none */
    uint32_t price;   /* 0: its own, and not for sale */
    int prop;         /* among demo_cast.items, or -1 */
} demo_card_item;

typedef struct demo_card {
    const char *name, *trade, *mood, *knows, *quest, *her; /* her: or his */
    demo_card_item items[DEMO_CARD_ITEMS];
} demo_card;

extern const demo_card demo_cards[DEMO_FIGURES];

typedef enum demo_act {
    DEMO_ACT_NONE,
    DEMO_ACT_GIVE,
    DEMO_ACT_TAKE,
    DEMO_ACT_FOLLOW,
    DEMO_ACT_STAY,
    DEMO_ACT_REFUSE,
    DEMO_ACT_MOOD,
    DEMO_ACT_QUEST,
    DEMO_ACTS
} demo_act;
extern const char *const demo_acts[DEMO_ACTS]; /* as a reply has them */

/* What was asked last, and what came of it. */
typedef struct demo_reply {
    char asked[DEMO_ASKED_BYTES], text[DEMO_SAID_BYTES]; /* text: as it comes, with its action */
    size_t bytes;
    uint32_t end;        /* tandem_reply_end */
    uint32_t act, price; /* demo_act, once it has ended */
    char item[64];       /* or a mood, or a quest's state */
    uint64_t asked_ns;
    double first_ms, whole_ms; /* from then on; 0: not yet */
    uint32_t tokens, read;     /* said; read before that */
} demo_reply;

typedef struct demo_talk_options {
    const char *path;
    bool asked;         /* by name */
    uint32_t budget_us; /* that a frame may spend; 0: by the device */
    uint32_t cache;     /* tandem_cache_format */
    uint32_t backend, threads;
    void (*log)(void *user, int level, const char *text);
    void *user;
} demo_talk_options;

/* Zeroed is closed. */
typedef struct demo_talk {
    tandem_session *session;
    tandem_language *language;
    tandem_npc *npcs[DEMO_FIGURES];
    demo_reply replies[DEMO_FIGURES]; /* as far as they were taken */
    bool talking[DEMO_FIGURES];
    pthread_mutex_t lock; /* of what follows. Characters are the thread's */
    pthread_cond_t asked;
    pthread_t thread;
    bool has_lock, has_thread, ending;
    bool polled[DEMO_FIGURES],
        begins[DEMO_FIGURES]; /* who goes on; who was asked, and has not heard it yet */
    char failed[256];
    demo_reply coming[DEMO_FIGURES];
    bool is_own; /* a model that was trained on cards like these, and has to be told nothing more */
    bool budgeted; /* frames hold its runs to the budget */
    char *grammars[DEMO_FIGURES];
    demo_talk_options options;
    tandem_language_spent spent; /* of the frame before */
    uint32_t cache, layers, kv_heads, head_dim;
    uint64_t
        cache_bytes[DEMO_CACHES]; /* that all pages and slots would take, by tandem_cache_format */
    tandem_language_info info;
    char device[128], trouble[256]; /* why nobody answers; empty while they do */
} demo_talk;

/* False, and the reason; then it is closed. Blocks while it reads the file. */
bool demo_talk_open(demo_talk *t, const demo_talk_options *options, char *why, size_t why_bytes);
void demo_talk_close(demo_talk *t);

void demo_talk_frame(demo_talk *t);
/* A bit for each character whose reply has ended now. */
uint32_t demo_talk_poll(demo_talk *t);
bool demo_talk_say(demo_talk *t, int who, const char *text);

bool demo_talk_any(const demo_talk *t);
/* What is said, without its action, copied to `out`. */
void demo_reply_said(const demo_reply *reply, char *out, size_t bytes);
/* The action of a reply that has ended; false: there is none, or it is not one of `card`'s. */
bool demo_reply_act(demo_reply *reply, const demo_card *card);
/* GBNF of what a character may reply. free() it; NULL: out of memory. */
char *demo_talk_grammar(const demo_card *card, bool is_own);
char *demo_talk_persona(const demo_card *card, bool is_own);

#endif
