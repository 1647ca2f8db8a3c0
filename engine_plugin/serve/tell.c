/* An answer's JSON. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "engine_plugin/serve/serve.h"

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
    serve_put_json(to,
                   json_pack("{s:s, s:[o]}", "object", "list", "data", model_of(model, created)));
}

/* null while it goes on. */
static json_t *reason_of(uint32_t end, uint32_t calls)
{
    return end == TANDEM_REPLY_OPEN   ? json_null()
           : end == TANDEM_REPLY_FULL ? json_string("length")
           : calls                    ? json_string("tool_calls")
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
                         json_t *reason, json_t *logprobs)
{
    return json_pack("{s:i, s:o, s:o, s:o}", "index", (int)index,
                     e->ask.kind == SERVE_CHAT ? name : "text", said, "logprobs", logprobs,
                     "finish_reason", reason);
}

/* --- Whole answers --- */

/* A message, with its calls; *calls: how many. */
static json_t *message_of(const exchange *e, uint32_t index, const tandem_npc_reply *reply,
                          uint32_t *calls)
{
    serve_calls parts = {0};
    serve_said said;
    json_t *message, *call;
    size_t i;

    if (!e->ask.calls)
        return json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                         json_stringn(reply->text, reply->text_bytes), "refusal");
    serve_calls_begin(&parts, e->id, index);
    serve_calls_add(&parts, reply->text, reply->text_bytes, true, &said);
    *calls = parts.count;
    message =
        json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                  said.content.bytes || !*calls
                      ? json_stringn(said.content.text ? said.content.text : "", said.content.bytes)
                      : json_null(),
                  "refusal");
    json_array_foreach(said.calls, i, call) json_object_del(call, "index");
    if (*calls)
        json_object_set(message, "tool_calls", said.calls);
    serve_said_free(&said);
    free(parts.held.text);
    return message;
}

void serve_tell_whole(exchange *e, const char *model, tandem_npc *npc, uint32_t replies,
                      const tandem_npc_news *last)
{
    json_t *choices = json_array(), *whole;
    uint32_t tokens = 0;

    for (uint32_t i = 0; i < replies; i++) {
        tandem_npc_reply reply = TANDEM_INIT(tandem_npc_reply);
        uint32_t first = 0, calls = 0;

        if (tandem_npc_get_reply(npc, i, &reply) != TANDEM_OK)
            break;
        json_t *said = e->ask.kind == SERVE_CHAT ? message_of(e, i, &reply, &calls)
                                                 : json_stringn(reply.text, reply.text_bytes);
        tokens += reply.tokens;
        json_array_append_new(choices, choice_of(e, i, "message", said, reason_of(reply.end, calls),
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

static void put_part(exchange *e, const char *model, uint32_t index, json_t *said, json_t *logprobs)
{
    put_choice(e, model, choice_of(e, index, "delta", said, json_null(), logprobs));
}

/* As OpenAI's: first who speaks. */
static void begin_told(exchange *e, const char *model, uint32_t reply)
{
    serve_told *told = &e->told;

    serve_calls_begin(&told->calls, e->id, reply);
    told->begun = true;
    told->reply = reply;
    told->tokens = 0;
    if (e->ask.kind == SERVE_CHAT)
        put_part(e, model, reply,
                 json_pack("{s:s, s:s, s:n}", "role", "assistant", "content", "", "refusal"),
                 json_null());
}

/* What a chat has gained: text, calls or neither; NULL: nothing. */
static json_t *delta_of(exchange *e, const tandem_npc_news *news)
{
    serve_said said;
    json_t *delta;

    if (!e->ask.calls)
        return news->text_bytes
                   ? json_pack("{s:o}", "content", json_stringn(news->text, news->text_bytes))
                   : NULL;
    serve_calls_add(&e->told.calls, news->text, news->text_bytes, news->end != 0, &said);
    delta = json_object();
    if (said.content.bytes)
        json_object_set_new(delta, "content", json_stringn(said.content.text, said.content.bytes));
    if (json_array_size(said.calls))
        json_object_set(delta, "tool_calls", said.calls);
    serve_said_free(&said);
    if (json_object_size(delta) || (e->ask.say.logprobs && news->text_bytes))
        return delta;
    json_decref(delta);
    return NULL;
}

/* Then what is said, and why it ends by itself. */
void serve_tell_part(exchange *e, const char *model, tandem_npc *npc, const tandem_npc_news *news)
{
    const bool chat = e->ask.kind == SERVE_CHAT;
    serve_told *told = &e->told;

    if (!told->begun || told->reply != news->reply)
        begin_told(e, model, news->reply);
    json_t *gained = chat               ? delta_of(e, news)
                     : news->text_bytes ? json_stringn(news->text, news->text_bytes)
                                        : NULL;
    if (gained)
        put_part(e, model, news->reply, gained, serve_logprobs(e, npc, news->reply, &told->tokens));
    if (news->end)
        put_choice(e, model,
                   choice_of(e, news->reply, "delta", chat ? json_object() : json_string(""),
                             reason_of(news->end, told->calls.count), json_null()));
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
