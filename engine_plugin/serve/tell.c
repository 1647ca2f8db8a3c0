/* An answer's JSON. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "engine_plugin/serve/serve.h"

/* What has no memory is left out: an answer that is cut is no JSON, and no client takes it for it. */
void serve_put(serve_text *to, const char *text, size_t bytes)
{
    if (to->bytes + bytes + 1 > to->room) {
        const size_t room = 2 * (to->bytes + bytes) + 256;
        char *more = realloc(to->text, room);

        if (!more)
            return;
        to->text = more;
        to->room = room;
    }
    if (bytes)
        memcpy(to->text + to->bytes, text, bytes);
    to->bytes += bytes;
    to->text[to->bytes] = 0;
}

void serve_put_json(serve_text *to, json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

    if (text)
        serve_put(to, text, strlen(text));
    free(text);
    json_decref(json);
}

void serve_tell_error(serve_text *to, unsigned status, const char *what, const char *param)
{
    const char *type = status == MHD_HTTP_UNAUTHORIZED ? "authentication_error"
                       : status >= 500                 ? "server_error"
                                                       : "invalid_request_error";

    serve_put_json(to, json_pack("{s:{s:s, s:s, s:s?, s:n}}", "error", "message", what, "type",
                                 type, "param", param && *param ? param : NULL, "code"));
}

static json_t *model_of(const char *model, int64_t created)
{
    return json_pack("{s:s, s:s, s:I, s:s}", "id", model, "object", "model", "created",
                     (json_int_t)created, "owned_by", "tandem");
}

void serve_tell_model(serve_text *to, const char *model, int64_t created)
{
    serve_put_json(to, model_of(model, created));
}

void serve_tell_models(serve_text *to, const char *model, int64_t created)
{
    serve_put_json(to, json_pack("{s:s, s:[o]}", "object", "list", "data",
                                 model_of(model, created)));
}

/* null while it goes on. */
static json_t *reason_of(uint32_t end)
{
    return end == TANDEM_REPLY_OPEN   ? json_null()
           : end == TANDEM_REPLY_FULL ? json_string("length")
                                      : json_string("stop");
}

static json_t *usage_of(const tandem_npc_news *last, uint32_t reply)
{
    const json_int_t prompt = last->prompt_tokens, cached = prompt - last->read_tokens;

    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens",
                     (json_int_t)reply, "total_tokens", prompt + reply, "prompt_tokens_details",
                     "cached_tokens", cached > 0 ? cached : 0);
}

static json_t *envelope(const exchange *e, const char *model, json_t *choices)
{
    const char *object = e->ask.kind != SERVE_CHAT ? "text_completion"
                         : e->ask.stream           ? "chat.completion.chunk"
                                                   : "chat.completion";

    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", e->id, "object", object, "created",
                     (json_int_t)e->created, "model", model, "choices", choices);
}

/* What is said, in a chat as `name`, which it takes. */
static json_t *choice_of(const exchange *e, uint32_t index, const char *name, json_t *said,
                         uint32_t end, json_t *logprobs)
{
    return json_pack("{s:i, s:o, s:o, s:o}", "index", (int)index,
                     e->ask.kind == SERVE_CHAT ? name : "text", said, "logprobs", logprobs,
                     "finish_reason", reason_of(end));
}

/* --- Whole answers --- */

void serve_tell_whole(exchange *e, const char *model, tandem_npc *npc, uint32_t replies,
                      const tandem_npc_news *last)
{
    json_t *choices = json_array(), *whole;
    uint32_t tokens = 0;

    for (uint32_t i = 0; i < replies; i++) {
        tandem_npc_reply reply = TANDEM_INIT(tandem_npc_reply);
        uint32_t first = 0;

        if (tandem_npc_get_reply(npc, i, &reply) != TANDEM_OK)
            break;
        json_t *said = json_stringn(reply.text, reply.text_bytes);
        if (e->ask.kind == SERVE_CHAT)
            said = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", said, "refusal");
        tokens += reply.tokens;
        json_array_append_new(choices, choice_of(e, i, "message", said, reply.end,
                                                 serve_logprobs(e, npc, i, &first)));
    }
    whole = envelope(e, model, choices);
    json_object_set_new(whole, "usage", usage_of(last, tokens));
    serve_put_json(&e->out, whole);
}

/* --- Streams --- */

static void put_event(exchange *e, json_t *json)
{
    serve_put(&e->out, "data: ", 6);
    serve_put_json(&e->out, json);
    serve_put(&e->out, "\n\n", 2);
}

static void put_choice(exchange *e, const char *model, json_t *choice)
{
    json_t *chunk = envelope(e, model, json_pack("[o]", choice));

    if (e->ask.usage) /* which the last one has */
        json_object_set_new(chunk, "usage", json_null());
    put_event(e, chunk);
}

/* As OpenAI's: first who speaks, then what, and why it ends by itself. */
void serve_tell_part(exchange *e, const char *model, tandem_npc *npc, const tandem_npc_news *news)
{
    const bool chat = e->ask.kind == SERVE_CHAT;
    serve_told *told = &e->told;

    if (!told->begun || told->reply != news->reply) {
        *told = (serve_told){.begun = true, .reply = news->reply};
        if (chat)
            put_choice(e, model,
                       choice_of(e, news->reply, "delta",
                                 json_pack("{s:s, s:s, s:n}", "role", "assistant", "content", "",
                                           "refusal"),
                                 TANDEM_REPLY_OPEN, json_null()));
    }
    if (news->text_bytes) {
        json_t *said = json_stringn(news->text, news->text_bytes);

        put_choice(e, model,
                   choice_of(e, news->reply, "delta", chat ? json_pack("{s:o}", "content", said) : said,
                             TANDEM_REPLY_OPEN, serve_logprobs(e, npc, news->reply, &told->tokens)));
    }
    if (news->end)
        put_choice(e, model,
                   choice_of(e, news->reply, "delta", chat ? json_object() : json_string(""),
                             news->end, json_null()));
}

void serve_tell_end(exchange *e, const char *model, const tandem_npc_news *last, uint32_t tokens)
{
    if (e->ask.usage) {
        json_t *whole = envelope(e, model, json_array());

        json_object_set_new(whole, "usage", usage_of(last, tokens));
        put_event(e, whole);
    }
    serve_put(&e->out, "data: [DONE]\n\n", 14);
}
