/* Characters, and whose turn it is. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One thread polls all characters in turn, which the session computes one after the other. A user
 * keeps a slot as long as nobody needs it more: what it has read already it does not read again.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/serve/serve.h"

#define TURN_NS 5000000u   /* how long a character is waited for before the next one is looked at */
#define LOOK_NS 100000000u /* how often it is seen who has gone while all slots are busy */

/* --- Exchanges --- */

static void refuse_locked(exchange *e, unsigned status, const char *why)
{
    if (!e->status) {
        e->status = status;
        e->out.bytes = 0;
        serve_tell_error(&e->out, status, why, e->ask.param);
    } else if (e->ask.stream) { /* it has begun: the stream says so */
        serve_put(&e->out, "data: ", 6);
        serve_tell_error(&e->out, status, why, e->ask.param);
        serve_put(&e->out, "\n\n", 2);
    }
    e->done = true;
    serve_wake_locked(e);
}

bool serve_enqueue_locked(server *s, exchange *e)
{
    exchange **last = &s->queue;

    if (s->queued == s->options.queue)
        return false;
    while (*last)
        last = &(*last)->next;
    *last = e;
    e->next = NULL;
    e->users++;
    s->queued++;
    pthread_cond_signal(&s->work);
    return true;
}

uint32_t serve_busy_locked(const server *s)
{
    uint32_t busy = 0;

    for (uint32_t i = 0; i < s->options.slots; i++)
        busy += s->slots[i].exchange != NULL;
    return busy;
}

/* --- Whose slot --- */

static bool is_users(const slot *l, const exchange *e)
{
    return e->ask.user && *l->user && !strncmp(l->user, e->ask.user, sizeof l->user - 1) &&
           l->chat == (e->ask.kind == SERVE_CHAT);
}

/* How much is lost if a slot is taken: nothing that anybody will come back to, memory for a new
 * character, what a user's has read, or that and the character. */
static int loss_of(const slot *l, const exchange *e)
{
    const bool fits = l->npc && l->chat == (e->ask.kind == SERVE_CHAT);

    return fits && !*l->user ? 0 : !l->npc ? 1 : fits ? 2 : 3;
}

/* The user's own, which is waited for; else the one whose loss is least, of such the one that was
 * used longest ago. NULL: there is none that is free. */
static slot *choose_slot(server *s, const exchange *e)
{
    slot *best = NULL;

    for (uint32_t i = 0; i < s->options.slots; i++)
        if (is_users(&s->slots[i], e))
            return s->slots[i].exchange ? NULL : &s->slots[i];
    for (uint32_t i = 0; i < s->options.slots; i++) {
        slot *l = &s->slots[i];
        const int loss = loss_of(l, e), least = best ? loss_of(best, e) : loss;

        if (!l->exchange && (!best || loss < least || (loss == least && l->used < best->used)))
            best = l;
    }
    return best;
}

/* A character of the kind that is asked for, in a slot. */
static tandem_status make_npc(server *s, slot *l, bool chat)
{
    if (l->npc && l->chat == chat)
        return TANDEM_OK;
    if (l->npc)
        tandem_npc_destroy(&l->npc);
    l->chat = chat;
    return tandem_npc_create(s->language, &TANDEM_INIT(tandem_npc_desc, .plain = !chat), &l->npc);
}

static unsigned http_status(tandem_status status)
{
    return status == TANDEM_ERROR_ARG || status == TANDEM_ERROR_UNSUPPORTED ||
                   status == TANDEM_ERROR_PROTOCOL
               ? MHD_HTTP_BAD_REQUEST
               : MHD_HTTP_INTERNAL_SERVER_ERROR;
}

/* Of the last call: without the name of a function that the client does not know. */
static void read_why(char *why)
{
    char text[SERVE_WHY_BYTES];
    const char *colon;

    tandem_error_text(NULL, text, sizeof text);
    colon = strstr(text, ": ");
    snprintf(why, SERVE_WHY_BYTES, "%s", colon ? colon + 2 : text);
}

/* Without the lock: only this thread uses a slot, and what is asked does not change. */
static tandem_status begin(server *s, slot *l, exchange *e, char *why)
{
    const serve_ask *a = &e->ask;
    tandem_status status = make_npc(s, l, a->kind == SERVE_CHAT);

    if (status == TANDEM_OK && a->kind == SERVE_CHAT)
        status = tandem_npc_set_history(l->npc, a->turns, a->turn_count);
    if (status == TANDEM_OK)
        status = tandem_npc_say(l->npc, &a->say);
    if (status != TANDEM_OK) {
        read_why(why);
        serve_name_member(&e->ask, why, SERVE_WHY_BYTES); /* who asked knows no arguments */
    }
    return status;
}

/* --- Turns --- */

/* The slot is free. */
static void leave_locked(slot *l)
{
    serve_release_locked(l->exchange);
    l->exchange = NULL;
}

static void start(server *s, slot *l, exchange *e)
{
    char why[SERVE_WHY_BYTES] = "";
    const tandem_status status = begin(s, l, e, why);

    pthread_mutex_lock(&s->lock);
    l->tokens = l->reply = l->counted = 0;
    snprintf(l->user, sizeof l->user, "%s", e->ask.user ? e->ask.user : "");
    if (status != TANDEM_OK) {
        s->counts.failed++;
        refuse_locked(e, http_status(status), why);
        leave_locked(l);
    } else if (e->ask.stream) {
        e->status = MHD_HTTP_OK;
        serve_wake_locked(e);
    }
    pthread_mutex_unlock(&s->lock);
}

static void end_locked(server *s, slot *l, const tandem_npc_news *news)
{
    exchange *e = l->exchange;

    s->counts.answered++;
    s->counts.prompt_tokens += news->prompt_tokens;
    s->counts.read_tokens += news->read_tokens;
    if (e->ask.stream)
        serve_tell_end(e, s->model, news, l->tokens);
    else
        serve_tell_whole(e, s->model, l->npc, e->ask.say.replies, news);
    e->status = MHD_HTTP_OK;
    e->done = true;
    serve_wake_locked(e);
    leave_locked(l);
}

static void give_up_locked(server *s, slot *l)
{
    tandem_npc_cancel(l->npc);
    s->counts.cancelled++;
    l->exchange->done = true;
    serve_wake_locked(l->exchange);
    leave_locked(l);
}

static void count_locked(server *s, slot *l, const tandem_npc_news *news)
{
    if (news->reply != l->reply)
        l->counted = 0;
    l->reply = news->reply;
    s->counts.reply_tokens += news->reply_tokens - l->counted;
    l->counted = news->reply_tokens;
    l->tokens += news->end ? news->reply_tokens : 0;
}

static void take_turn(server *s, slot *l)
{
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);
    const tandem_status status = tandem_npc_wait(l->npc, TURN_NS, &news);
    char why[SERVE_WHY_BYTES];

    if (status != TANDEM_OK && status != TANDEM_ERROR_BUSY)
        read_why(why);
    pthread_mutex_lock(&s->lock);
    exchange *e = l->exchange;
    count_locked(s, l, &news);
    if (serve_is_gone_locked(e)) {
        give_up_locked(s, l);
    } else if (e->ask.stream && e->out.bytes - e->sent > SERVE_BEHIND_BYTES) {
        refuse_locked(e, MHD_HTTP_SERVICE_UNAVAILABLE, "the client has not read what was said");
        give_up_locked(s, l);
    } else if (status != TANDEM_OK && status != TANDEM_ERROR_BUSY) {
        s->counts.failed++;
        refuse_locked(e, http_status(status), why);
        leave_locked(l);
    } else {
        if (e->ask.stream && (news.text_bytes || news.end)) {
            serve_tell_part(e, s->model, l->npc, &news);
            serve_wake_locked(e);
        }
        if (news.state == TANDEM_NPC_IDLE)
            end_locked(s, l, &news);
    }
    pthread_mutex_unlock(&s->lock);
}

/* --- Vectors --- */

static void end_embedding_locked(server *s, const char *why, tandem_status status)
{
    exchange *e = s->embeds;

    s->embeds = NULL;
    if (status == TANDEM_OK) {
        s->counts.answered++;
        s->counts.embedded_tokens += e->tokens;
        serve_tell_embedded(e, s->model);
        e->status = MHD_HTTP_OK;
        e->done = true;
        serve_wake_locked(e);
    } else {
        char text[SERVE_WHY_BYTES];

        s->counts.failed++;
        td_text(text, sizeof text, "'input[%" PRIu32 "]': %s", e->embedded, why);
        snprintf(e->ask.param, sizeof e->ask.param, "input");
        refuse_locked(e, http_status(status), text);
    }
    serve_release_locked(e);
}

/* The next input of what is asked. */
static void embed_next(server *s, const exchange *e)
{
    char why[SERVE_WHY_BYTES] = "";
    tandem_status status = TANDEM_OK;

    if (!s->embedder)
        status =
            tandem_embedder_create(s->language, &TANDEM_INIT(tandem_embedder_desc), &s->embedder);
    if (status == TANDEM_OK)
        status = tandem_embedder_begin(s->embedder, e->ask.inputs[e->embedded]);
    if (status == TANDEM_OK)
        return;
    read_why(why);
    pthread_mutex_lock(&s->lock);
    end_embedding_locked(s, why, status);
    pthread_mutex_unlock(&s->lock);
}

static void take_embedding_turn(server *s)
{
    tandem_embedding got = TANDEM_INIT(tandem_embedding);
    char why[SERVE_WHY_BYTES] = "";
    exchange *e = s->embeds;
    const tandem_status status = tandem_embedder_wait(s->embedder, TURN_NS, &got);

    if (status != TANDEM_OK && status != TANDEM_ERROR_BUSY)
        read_why(why);
    pthread_mutex_lock(&s->lock);
    const bool gone = serve_is_gone_locked(e);
    bool more = false;
    if (gone) {
        s->counts.cancelled++;
        e->done = true;
        s->embeds = NULL;
        serve_wake_locked(e);
        serve_release_locked(e);
    } else if (status != TANDEM_OK && status != TANDEM_ERROR_BUSY) {
        end_embedding_locked(s, why, status);
    } else if (got.ready) {
        s->counts.embedded++;
        serve_tell_embedding(e, &got);
        more = e->embedded < e->ask.input_count;
        if (!more)
            end_embedding_locked(s, why, TANDEM_OK);
    }
    pthread_mutex_unlock(&s->lock);
    if (gone)
        tandem_embedder_begin(s->embedder, NULL);
    if (more)
        embed_next(s, e);
}

/* Vectors have as many numbers as the model's rows; no fewer say the same. */
static bool has_dimensions(server *s, exchange *e)
{
    tandem_language_info info = TANDEM_INIT(tandem_language_info);
    char why[SERVE_WHY_BYTES];

    tandem_language_get_info(s->language, &info);
    if (!e->ask.dimensions || e->ask.dimensions == info.embedding_count)
        return true;
    td_text(why, sizeof why, "'dimensions' is %" PRIu32 "; this model's vectors have %" PRIu32,
            e->ask.dimensions, info.embedding_count);
    pthread_mutex_lock(&s->lock);
    snprintf(e->ask.param, sizeof e->ask.param, "dimensions");
    s->counts.failed++;
    s->embeds = NULL;
    refuse_locked(e, MHD_HTTP_BAD_REQUEST, why);
    serve_release_locked(e);
    pthread_mutex_unlock(&s->lock);
    return false;
}

static void start_embedding(server *s, exchange *e)
{
    if (has_dimensions(s, e))
        embed_next(s, e);
}

/* Whether there is a place for it: a slot, or the embedder. */
static bool find_place(server *s, exchange *e, slot **to)
{
    *to = e->ask.kind == SERVE_EMBED ? NULL : choose_slot(s, e);
    return e->ask.kind == SERVE_EMBED ? !s->embeds : *to != NULL;
}

static void start_at(server *s, slot *to, exchange *e)
{
    if (to)
        start(s, to, e);
    else
        start_embedding(s, e);
}

/* Takes the first of those that wait for which there is a place, without those who have gone. */
static exchange *next_locked(server *s, slot **to)
{
    for (exchange **at = &s->queue; *at;) {
        exchange *e = *at;
        const bool gone = serve_is_gone_locked(e);

        if (!gone && !find_place(s, e, to)) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        s->queued--;
        if (!gone && *to) {
            (*to)->exchange = e;
            (*to)->used = ++s->turns;
        } else if (!gone) {
            s->embeds = e;
        }
        if (!gone)
            return e;
        s->counts.cancelled++;
        e->done = true;
        serve_wake_locked(e);
        serve_release_locked(e);
    }
    return NULL;
}

static void *run(void *user)
{
    server *s = user;

    td_thread_name("characters");
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        slot *to;
        exchange *e = next_locked(s, &to);

        if (!e && !s->embeds && !serve_busy_locked(s)) {
            td_cond_wait(&s->work, &s->lock, s->queue ? td_now_ns() + LOOK_NS : UINT64_MAX);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        if (e)
            start_at(s, to, e);
        if (s->embeds)
            take_embedding_turn(s);
        for (uint32_t i = 0; i < s->options.slots; i++)
            if (s->slots[i].exchange)
                take_turn(s, &s->slots[i]);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* --- Beginning and end --- */

bool serve_slots_begin(server *s)
{
    s->slots = calloc(s->options.slots, sizeof *s->slots);
    if (s->slots && td_thread_start(&s->thread, run, s))
        return true;
    free(s->slots);
    s->slots = NULL;
    return false;
}

void serve_slots_end(server *s)
{
    static const char why[] = "the server ends";

    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->options.slots; i++)
        if (s->slots[i].exchange) {
            refuse_locked(s->slots[i].exchange, MHD_HTTP_SERVICE_UNAVAILABLE, why);
            leave_locked(&s->slots[i]);
        }
    if (s->embeds) {
        refuse_locked(s->embeds, MHD_HTTP_SERVICE_UNAVAILABLE, why);
        serve_release_locked(s->embeds);
        s->embeds = NULL;
    }
    while (s->queue) {
        exchange *e = s->queue;

        s->queue = e->next;
        refuse_locked(e, MHD_HTTP_SERVICE_UNAVAILABLE, why);
        serve_release_locked(e);
    }
    s->queued = 0;
    pthread_mutex_unlock(&s->lock);
    if (s->embedder)
        tandem_embedder_destroy(&s->embedder);
    for (uint32_t i = 0; i < s->options.slots; i++)
        if (s->slots[i].npc)
            tandem_npc_destroy(&s->slots[i].npc);
    free(s->slots);
    s->slots = NULL;
}
