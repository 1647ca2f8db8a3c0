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

static json_t *usage_of(uint32_t prompt, uint32_t reply)
{
    return json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
                     (json_int_t)reply, "total_tokens", (json_int_t)prompt + reply);
}

static json_t *envelope(const exchange *e, const char *model, json_t *choices)
{
    const char *object = e->ask.kind != SERVE_CHAT ? "text_completion"
                         : e->ask.stream ? "chat.completion.chunk"
                                         : "chat.completion";

    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", e->id, "object", object, "created",
                     (json_int_t)e->created, "model", model, "choices", choices);
}

/* What is said, under `name` in a chat. */
static void set_text(json_t *choice, const exchange *e, const char *name, const char *text,
                     uint64_t bytes)
{
    json_t *said = json_stringn(text, bytes);

    if (e->ask.kind == SERVE_CHAT)
        json_object_set_new(choice, name,
                            json_pack("{s:s, s:o}", "role", "assistant", "content", said));
    else
        json_object_set_new(choice, "text", said);
}

void serve_tell_whole(exchange *e, const char *model, tandem_npc *npc, uint32_t replies,
                      const tandem_npc_news *last)
{
    json_t *choices = json_array(), *whole;
    uint32_t tokens = 0;

    for (uint32_t i = 0; i < replies; i++) {
        tandem_npc_reply reply = TANDEM_INIT(tandem_npc_reply);
        json_t *choice;

        if (tandem_npc_get_reply(npc, i, &reply) != TANDEM_OK)
            break;
        tokens += reply.tokens;
        choice = json_pack("{s:i, s:o, s:n}", "index", (int)i, "finish_reason",
                           reason_of(reply.end), "logprobs");
        set_text(choice, e, "message", reply.text, reply.text_bytes);
        json_array_append_new(choices, choice);
    }
    whole = envelope(e, model, choices);
    json_object_set_new(whole, "usage", usage_of(last->prompt_tokens, tokens));
    serve_put_json(&e->out, whole);
}

static void put_event(exchange *e, json_t *json)
{
    serve_put(&e->out, "data: ", 6);
    serve_put_json(&e->out, json);
    serve_put(&e->out, "\n\n", 2);
}

void serve_tell_part(exchange *e, const char *model, const tandem_npc_news *news)
{
    json_t *choice = json_pack("{s:i, s:o, s:n}", "index", (int)news->reply, "finish_reason",
                               reason_of(news->end), "logprobs");

    set_text(choice, e, "delta", news->text, news->text_bytes);
    put_event(e, envelope(e, model, json_pack("[o]", choice)));
}

void serve_tell_end(exchange *e, const char *model, const tandem_npc_news *last, uint32_t tokens)
{
    if (e->ask.usage) {
        json_t *whole = envelope(e, model, json_array());

        json_object_set_new(whole, "usage", usage_of(last->prompt_tokens, tokens));
        put_event(e, whole);
    }
    serve_put(&e->out, "data: [DONE]\n\n", 14);
}
