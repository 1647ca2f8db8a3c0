/* Four characters of one language model. See talk.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/talk.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/os/clock.h"
#include "kernels/model/folder.h"
#include "kernels/model/llama.h"

enum {
    CONTEXT = 1024,
    TOKENS = 4096,
    SLOTS = 8,
    MOST_TOKENS = 96,
    OWN_WORDS = 16384,
    WHY_BYTES = 400,
    POLL_NS = 1000000
};

#define PLACE "Lark Inn"

const demo_card demo_cards[DEMO_FIGURES] = {
    {"Lina",
     "bard",
     "cheerful",
     "friend Tom in " PLACE ", rival Fenwick",
     NULL,
     "her",
     {{"flute", 12, 0}, {"scroll", 0, 1}}},
    {"Mira",
     "innkeeper",
     "kind",
     "brother Brom in " PLACE ", friend Lina in " PLACE,
     "bring copper key, reward 10 coins, open",
     "her",
     {{"bread", 2, 2}, {"tankard", 5, 3}}},
    {"Tom",
     "guard",
     "calm",
     "friend Mira in " PLACE ", master Aldous in Oak Tower",
     NULL,
     "his",
     {{"map", 9, 4}, {"copper key", 0, 5}}},
    {"Brom",
     "blacksmith",
     "grumpy",
     "sister Mira in " PLACE,
     NULL,
     "his",
     {{"knife", 25, 6}, {"horseshoe", 6, 7}, {"hammer", 0, -1}}},
};

const char *const demo_acts[DEMO_ACTS] = {"none", "give",   "take", "follow",
                                          "stay", "refuse", "mood", "quest"};

/* --- Texts --- */

typedef struct writer {
    char bytes[8192];
    size_t count;
} writer;

static void put(writer *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(writer *t, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(t->bytes + t->count, sizeof t->bytes - t->count, format, list);
    va_end(list);
    t->count += length > 0 && (size_t)length < sizeof t->bytes - t->count ? (size_t)length : 0;
}

static void put_items(writer *t, const char *label, const demo_card *card, bool sold)
{
    uint32_t count = 0;
    for (int i = 0; i < DEMO_CARD_ITEMS; i++) {
        const demo_card_item *item = &card->items[i];
        if (!item->name || (item->price > 0) != sold)
            continue;
        put(t, "%s%s", count++ ? ", " : label, item->name);
        if (sold)
            put(t, " for %u coins", item->price);
    }
    if (count)
        put(t, "\n");
}

/* What all have in common comes first: it is read once. */
char *demo_talk_persona(const demo_card *card, bool is_own)
{
    static const char world[] =
        "You play one person in a tavern, who talks with a visitor. Answer as that person would, "
        "in one or two short "
        "sentences. Say nothing that is not on the card. Then comes what the person does, as "
        "JSON:\n"
        "Visitor: Come with me!\nGladly, lead the way.\n{\"action\":\"follow\"}\n"
        "Visitor: I will take the pie.\nHere is the pie, that makes 3 coins.\n"
        "{\"action\":\"give\",\"item\":\"pie\",\"price\":3}\n"
        "Visitor: Give me your sword.\nNo, the sword stays with me.\n{\"action\":\"refuse\"}\n"
        "Visitor: How are you?\nI am well, thank you.\n{\"action\":\"none\"}\n\nThe card:\n";
    writer t = {.count = 0};
    put(&t, "%s", is_own ? "You are this character.\n" : world);
    put(&t, "name: %s\ntrade: %s\nplace: " PLACE "\nmood: %s\n", card->name, card->trade,
        card->mood);
    put_items(&t, "sells: ", card, true);
    put_items(&t, "has: ", card, false);
    put(&t, "knows: %s", card->knows);
    if (card->quest)
        put(&t, "\nquest: %s", card->quest);
    return strdup(t.bytes);
}

char *demo_talk_grammar(const demo_card *card, bool is_own)
{
    writer t = {.count = 0};
    uint32_t count = 0;
    put(&t, is_own ? "root ::= said (\"\\n\" action)?\nsaid ::= [^\\n{}]{1,300}\n"
                   : "root ::= said \"\\n\" action\nsaid ::= sentence (\" \" sentence)?\n"
                     "sentence ::= [^ \\n{}.!?] [^\\n{}.!?]{1,90} [.!?]\n");
    put(&t,
        "action ::= \"{\\\"action\\\":\" (give | \"\\\"follow\\\"\" | \"\\\"stay\\\"\" | "
        "\"\\\"refuse\\\"\"%s) \"}\"\n",
        is_own ? " | take | mood | quest" : " | \"\\\"none\\\"\"");
    put(&t, "give ::= \"\\\"give\\\",\\\"item\\\":\\\"\" (");
    for (int i = 0; i < DEMO_CARD_ITEMS; i++)
        if (card->items[i].name)
            put(&t, "%s\"%s\\\",\\\"price\\\":%u\"", count++ ? " | " : "", card->items[i].name,
                card->items[i].price);
    put(&t, ")\nnumber ::= \"0\" | [1-9] [0-9]{0,3}\n");
    if (is_own)
        put(&t, "take ::= \"\\\"take\\\",\\\"item\\\":\\\"\" thing \"\\\",\\\"pay\\\":\" number\n"
                "mood ::= \"\\\"mood\\\",\\\"mood\\\":\\\"\" [a-z]{1,12} \"\\\"\"\n"
                "quest ::= \"\\\"quest\\\",\\\"state\\\":\\\"\" (\"taken\" | \"done\") \"\\\"\"\n"
                "thing ::= [^\\n\"\\\\{}]{1,40}\n");
    return strdup(t.bytes);
}

/* --- Replies --- */

void demo_reply_said(const demo_reply *reply, char *out, size_t bytes)
{
    const char *newline = memchr(reply->text, '\n', reply->bytes);
    const size_t length = newline ? (size_t)(newline - reply->text) : reply->bytes;
    snprintf(out, bytes, "%.*s", (int)length, reply->text);
}

static bool take_text(char *out, size_t bytes, const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    snprintf(out, bytes, "%s", value ? value : "");
    return value && *value;
}

bool demo_reply_act(demo_reply *reply, const demo_card *card)
{
    const char *line = strchr(reply->text, '\n');
    json_t *object = line ? json_loads(line + 1, 0, NULL) : NULL;
    const char *name = json_string_value(json_object_get(object, "action"));
    bool known = false;
    reply->act = DEMO_ACT_NONE;
    reply->price = 0;
    reply->item[0] = 0;
    for (uint32_t i = DEMO_ACT_GIVE; name && i < DEMO_ACTS; i++)
        if (!strcmp(name, demo_acts[i]))
            reply->act = i;
    switch (reply->act) {
    case DEMO_ACT_GIVE:
        take_text(reply->item, sizeof reply->item, object, "item");
        for (int i = 0; i < DEMO_CARD_ITEMS; i++)
            known = known || (card->items[i].name && !strcmp(card->items[i].name, reply->item));
        break;
    case DEMO_ACT_TAKE: known = take_text(reply->item, sizeof reply->item, object, "item"); break;
    case DEMO_ACT_MOOD: known = take_text(reply->item, sizeof reply->item, object, "mood"); break;
    case DEMO_ACT_QUEST: known = take_text(reply->item, sizeof reply->item, object, "state"); break;
    default: known = reply->act != DEMO_ACT_NONE; break;
    }
    const json_t *price = json_object_get(object, reply->act == DEMO_ACT_TAKE ? "pay" : "price");
    if (json_is_integer(price) && json_integer_value(price) >= 0 &&
        json_integer_value(price) < 100000)
        reply->price = (uint32_t)json_integer_value(price);
    if (!known)
        reply->act = DEMO_ACT_NONE;
    json_decref(object);
    return known;
}

/* --- The model --- */

static bool fail(demo_talk *t, const char *what, char *why, size_t why_bytes)
{
    char text[240] = "";
    tandem_error_text(t->session, text, sizeof text);
    snprintf(why, why_bytes, "%s%s%s", what, text[0] ? ": " : "", text);
    return false;
}

/* What its caches are of, and how long it may remember. */
static bool read_sizes(demo_talk *t, uint32_t *context, char *why, size_t why_bytes)
{
    const td_llama_desc as = {.slots = 1};
    char what[WHY_BYTES] = "";
    td_gguf file;
    td_llama model;
    tandem_status status = td_checkpoint_open(t->options.path, &file, what, sizeof what);
    if (status == TANDEM_OK) {
        status = td_llama_open(&file, &as, &model, what, sizeof what);
        if (status == TANDEM_OK) {
            t->layers = model.sizes.layers;
            t->kv_heads = model.sizes.kv_heads;
            t->head_dim = model.sizes.head_dim;
            *context = model.context < CONTEXT ? model.context : CONTEXT;
            td_llama_close(&model);
        }
        td_gguf_close(&file);
    }
    if (status != TANDEM_OK)
        snprintf(why, why_bytes, "%s", what);
    return status == TANDEM_OK;
}

static bool open_language(demo_talk *t, char *why, size_t why_bytes)
{
    uint32_t context = 0;
    if (!read_sizes(t, &context, why, why_bytes))
        return false;
    tandem_language_desc desc =
        TANDEM_INIT(tandem_language_desc, .path = t->options.path, .context = context,
                    .cache = t->options.cache, .tokens = TOKENS, .slots = SLOTS);
    tandem_status status = tandem_language_create(t->session, &desc, &t->language);
    if (status ==
        TANDEM_ERROR_UNSUPPORTED) { /* its heads share no pages: each character has its own then */
        desc.tokens = desc.slots = 0;
        status = tandem_language_create(t->session, &desc, &t->language);
    }
    if (status != TANDEM_OK)
        return fail(t, "the model", why, why_bytes);
    t->info = TANDEM_INIT(tandem_language_info);
    tandem_language_get_info(t->language, &t->info);
    t->budgeted = t->info.pages > 0;
    t->is_own = t->info.words < OWN_WORDS; /* who speaks of everything has more words than that */
    return true;
}

static bool make_characters(demo_talk *t, char *why, size_t why_bytes)
{
    for (int i = 0; i < DEMO_FIGURES; i++) {
        char *persona = demo_talk_persona(&demo_cards[i], t->is_own);
        const tandem_npc_desc desc = TANDEM_INIT(tandem_npc_desc, .persona = persona);
        t->grammars[i] = demo_talk_grammar(&demo_cards[i], t->is_own);
        const bool ok = persona && t->grammars[i] &&
                        tandem_npc_create(t->language, &desc, &t->npcs[i]) == TANDEM_OK;
        free(persona);
        if (!ok)
            return fail(t, "a character", why, why_bytes);
    }
    return true;
}

static void *poll_on(void *user);

static bool start_polling(demo_talk *t, char *why, size_t why_bytes)
{
    if (td_cond_make(&t->asked)) {
        t->has_lock = !pthread_mutex_init(&t->lock, NULL);
        if (!t->has_lock)
            pthread_cond_destroy(&t->asked);
    }
    t->has_thread = t->has_lock && td_thread_start(&t->thread, poll_on, t);
    return t->has_thread || fail(t, "no thread to poll with", why, why_bytes);
}

bool demo_talk_open(demo_talk *t, const demo_talk_options *options, char *why, size_t why_bytes)
{
    /* A session of its own: frames never stand behind a character's run in one queue. */
    const tandem_session_desc session = TANDEM_INIT(
        tandem_session_desc, .backend = options->backend, .log = options->log,
        .user = options->user, .cpu_threads = options->threads, .timing = 1,
        .job_class = TANDEM_CLASS_BACKGROUND, .error_text = why, .error_text_bytes = why_bytes);
    tandem_info info = TANDEM_INIT(tandem_info);
    *t = (demo_talk){.options = *options};
    why[0] = 0;
    bool ok = tandem_session_create(&session, &t->session) == TANDEM_OK &&
              tandem_session_info(t->session, &info) == TANDEM_OK &&
              open_language(t, why, why_bytes) && make_characters(t, why, why_bytes) &&
              start_polling(t, why, why_bytes);
    if (!ok) {
        demo_talk_close(t);
        return false;
    }
    snprintf(t->device, sizeof t->device, "%s", info.device);
    if (!t->options.budget_us)
        t->options.budget_us = info.backend == TANDEM_BACKEND_CUDA ? 1000 : 30000;
    return true;
}

void demo_talk_close(demo_talk *t)
{
    if (t->has_thread) {
        pthread_mutex_lock(&t->lock);
        t->ending = true;
        pthread_cond_signal(&t->asked);
        pthread_mutex_unlock(&t->lock);
        pthread_join(t->thread, NULL);
    }
    if (t->has_lock) {
        pthread_cond_destroy(&t->asked);
        pthread_mutex_destroy(&t->lock);
    }
    t->has_thread = t->has_lock = false;
    for (int i = 0; i < DEMO_FIGURES; i++) {
        if (t->npcs[i])
            tandem_npc_destroy(&t->npcs[i]);
        free(t->grammars[i]);
        t->grammars[i] = NULL;
    }
    if (t->language)
        tandem_language_destroy(&t->language);
    if (t->session)
        tandem_session_destroy(&t->session);
    memset(t->talking, 0, sizeof t->talking);
}

/* --- Frames --- */

bool demo_talk_any(const demo_talk *t)
{
    for (int i = 0; i < DEMO_FIGURES; i++)
        if (t->talking[i])
            return true;
    return false;
}

void demo_talk_frame(demo_talk *t)
{
    if (!t->language)
        return;
    t->spent = TANDEM_INIT(tandem_language_spent);
    if (t->budgeted &&
        tandem_language_frame(t->language, t->options.budget_us, &t->spent) != TANDEM_OK)
        fail(t, "Nobody answers any more", t->trouble, sizeof t->trouble);
    t->info = TANDEM_INIT(tandem_language_info);
    tandem_language_get_info(t->language, &t->info);
    for (uint32_t i = 0; i < DEMO_CACHES && t->info.pages; i++)
        t->cache_bytes[i] = (uint64_t)t->layers * t->kv_heads *
                            tandem_cache_pool_bytes(i, t->info.slots, t->info.pages, t->head_dim);
}

static void take_news(demo_talk *t, int who, const tandem_npc_news *news)
{
    demo_reply *r = &t->coming[who];
    const double ms = 1e-6 * (double)(td_now_ns() - r->asked_ns);
    const size_t room = sizeof r->text - 1 - r->bytes,
                 bytes = news->text_bytes < room ? (size_t)news->text_bytes : room;
    memcpy(r->text + r->bytes, news->text, bytes);
    r->bytes += bytes;
    r->text[r->bytes] = 0;
    r->tokens = news->reply_tokens;
    r->read = news->read_tokens;
    if (bytes && r->first_ms <= 0)
        r->first_ms = ms;
    if (!news->end)
        return;
    r->end = news->end;
    r->whole_ms = ms;
    t->polled[who] = false;
}

static tandem_status begin_reply(demo_talk *t, int who, const char *asked)
{
    const tandem_sampling sampling = TANDEM_INIT(
        tandem_sampling, .temperature = t->is_own ? 0.4f : 0.7f, .min_p = 0.1f,
        .repetition = t->is_own ? 0.0f : 1.1f, .penalty_last = 64, .seed = 7 + (uint64_t)who);
    const tandem_say say = TANDEM_INIT(tandem_say, .text = asked, .most_tokens = MOST_TOKENS,
                                       .sampling = &sampling, .grammar = t->grammars[who]);
    return tandem_npc_say(t->npcs[who], &say);
}

/* One who talks goes on. The lock is left meanwhile: nobody who draws a frame ever waits for a
 * model. */
static void go_on_locked(demo_talk *t, int who)
{
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news, .text = "");
    const bool begins = t->begins[who];
    char asked[DEMO_ASKED_BYTES], why[200] = "";
    memcpy(asked, t->coming[who].asked, sizeof asked);
    t->begins[who] = false;
    pthread_mutex_unlock(&t->lock);
    tandem_status status = begins ? begin_reply(t, who, asked) : TANDEM_OK;
    if (status == TANDEM_OK)
        status = tandem_npc_poll(t->npcs[who], &news);
    if (status != TANDEM_OK) {
        tandem_error_text(t->session, why, sizeof why);
        news.end = TANDEM_REPLY_FAILED;
    }
    pthread_mutex_lock(&t->lock);
    if (status != TANDEM_OK)
        snprintf(t->failed, sizeof t->failed, "No answer: %s",
                 why[0] ? why : tandem_status_text(status));
    take_news(t, who, &news);
}

static void *poll_on(void *user)
{
    demo_talk *t = user;
    td_thread_name("demo talk");
    pthread_mutex_lock(&t->lock);
    while (!t->ending) {
        bool any = false;
        for (int i = 0; i < DEMO_FIGURES; i++)
            if (t->polled[i]) {
                go_on_locked(t, i);
                any = true;
            }
        if (!any) {
            td_cond_wait(&t->asked, &t->lock, UINT64_MAX);
            continue;
        }
        pthread_mutex_unlock(&t->lock);
        td_sleep_ns(POLL_NS);
        pthread_mutex_lock(&t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

uint32_t demo_talk_poll(demo_talk *t)
{
    uint32_t ended = 0;
    if (!t->has_thread)
        return 0;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < DEMO_FIGURES; i++) {
        if (!t->talking[i])
            continue;
        t->replies[i] = t->coming[i];
        if (t->polled[i])
            continue;
        t->talking[i] = false;
        demo_reply_act(&t->replies[i], &demo_cards[i]);
        ended |= 1u << i;
    }
    if (t->failed[0])
        memcpy(t->trouble, t->failed, sizeof t->failed);
    t->failed[0] = 0;
    pthread_mutex_unlock(&t->lock);
    return ended;
}

bool demo_talk_say(demo_talk *t, int who, const char *text)
{
    demo_reply *r = &t->coming[who];
    if (!t->has_thread || t->talking[who])
        return false;
    t->trouble[0] = 0;
    pthread_mutex_lock(&t->lock);
    *r = (demo_reply){.asked_ns = td_now_ns()};
    snprintf(r->asked, sizeof r->asked, "%s", text);
    t->replies[who] = *r;
    t->talking[who] = t->polled[who] = t->begins[who] = true;
    pthread_cond_signal(&t->asked);
    pthread_mutex_unlock(&t->lock);
    return true;
}
