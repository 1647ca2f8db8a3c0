/* How likely an answer's tokens were: what is asked, and what is answered. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/serve/serve.h"

/* What is written of all tokens of an answer, and of others in their place. */
enum { MOST_OF_CHAT = 20, MOST_OF_TEXT = 5, MOST_WRITTEN = 1 << 17 };

/* --- What is asked --- */

void serve_read_logprobs(serve_reader *r)
{
    serve_ask *a = r->ask;
    const char *const name = a->kind == SERVE_CHAT ? "top_logprobs" : "logprobs";
    const uint32_t most = a->kind == SERVE_CHAT ? MOST_OF_CHAT : MOST_OF_TEXT;
    const json_t *value = serve_member(r, name);

    a->say.logprobs = a->kind == SERVE_CHAT ? serve_read_flag(r, "logprobs", false) : value != NULL;
    a->say.top_logprobs = serve_read_count(r, name, 0, 0, most);
    if (a->say.top_logprobs && !a->say.logprobs)
        serve_refuse(r, name, value, "it is for 'logprobs' that is true");
    const uint64_t written =
        (uint64_t)a->say.replies * a->say.most_tokens * (1 + a->say.top_logprobs);
    if (a->say.logprobs && written > MOST_WRITTEN)
        serve_refuse(r, "logprobs", serve_member(r, "logprobs"),
                     "with %u replies of %u tokens and %u others it would have %llu entries, of "
                     "which %d are the most",
                     (unsigned)a->say.replies, (unsigned)a->say.most_tokens,
                     (unsigned)a->say.top_logprobs, (unsigned long long)written, MOST_WRITTEN);
}

/* --- What is answered --- */

/* How long the character is that begins there; 0: it is broken, or a part. */
static size_t character_bytes(const unsigned char *text, size_t bytes)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t length = *text < 0x80             ? 1
                          : (*text & 0xe0) == 0xc0 ? 2
                          : (*text & 0xf0) == 0xe0 ? 3
                          : (*text & 0xf8) == 0xf0 ? 4
                                                   : 0;
    uint32_t code = length > 1 ? *text & (0x7fu >> length) : 0;

    if (!length || length > bytes)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3f);
    }
    return length > 1 && (code < least[length] || code > 0x10ffff || (code >> 11) == 0x1b) ? 0
                                                                                           : length;
}

/* Bytes that make no characters are written as \xNN, as OpenAI's do. */
static json_t *string_of(const char *text, uint64_t bytes, const char *before)
{
    serve_text out = {0};
    bool is_text = true;
    char code[8];

    serve_put(&out, "", 0);
    for (size_t at = 0, length; at < bytes; at += length ? length : 1) {
        length = character_bytes((const unsigned char *)text + at, bytes - at);
        snprintf(code, sizeof code, "\\x%02x", (unsigned)(unsigned char)text[at]);
        serve_put(&out, length ? text + at : code, length ? length : 4);
        is_text = is_text && length;
    }
    json_t *string = out.text ? json_stringn(out.text, out.bytes) : json_string("");
    if (!is_text && *before) {
        json_t *whole = json_sprintf("%s%s", before, json_string_value(string));

        json_decref(string);
        string = whole;
    }
    free(out.text);
    return string;
}

static json_t *bytes_of(const tandem_token_logprob *of)
{
    json_t *bytes = json_array();

    for (uint64_t i = 0; i < of->text_bytes; i++)
        json_array_append_new(bytes, json_integer((unsigned char)of->text[i]));
    return bytes;
}

/* JSON has no infinity. */
static json_t *real_of(float logprob)
{
    return json_real(logprob > -9999 ? (double)logprob : -9999.0);
}

static json_t *chat_entry(const tandem_token_logprob *of)
{
    return json_pack("{s:o, s:o, s:o}", "token", string_of(of->text, of->text_bytes, ""), "logprob",
                     real_of(of->logprob), "bytes", bytes_of(of));
}

static void add_chat_token(json_t *content, const tandem_npc_token *token)
{
    json_t *entry = chat_entry(&token->is), *tops = json_array();

    for (uint32_t i = 0; i < token->top_count; i++)
        json_array_append_new(tops, chat_entry(&token->top[i]));
    json_object_set_new(entry, "top_logprobs", tops);
    json_array_append_new(content, entry);
}

static json_int_t count_characters(const char *text, size_t bytes)
{
    json_int_t count = 0;

    for (size_t i = 0; i < bytes; i++)
        count += (text[i] & 0xc0) != 0x80;
    return count;
}

static void set_top(json_t *tops, const tandem_token_logprob *of)
{
    json_t *name = string_of(of->text, of->text_bytes, "bytes:");

    if (name)
        json_object_set_new(tops, json_string_value(name), real_of(of->logprob));
    json_decref(name);
}

/* Characters are counted from the prompt's first on. */
static void add_text_token(const exchange *e, json_t *logprobs, const tandem_npc_token *token,
                           const tandem_npc_reply *reply)
{
    const size_t at =
        (size_t)(token->text_offset < reply->text_bytes ? token->text_offset : reply->text_bytes);
    json_t *tops = json_object();

    for (uint32_t i = 0; i < token->top_count; i++)
        set_top(tops, &token->top[i]);
    set_top(tops, &token->is);
    json_array_append_new(json_object_get(logprobs, "tokens"),
                          string_of(token->is.text, token->is.text_bytes, "bytes:"));
    json_array_append_new(json_object_get(logprobs, "token_logprobs"), real_of(token->is.logprob));
    if (json_object_get(logprobs, "top_logprobs"))
        json_array_append(json_object_get(logprobs, "top_logprobs"), tops);
    json_decref(tops);
    json_array_append_new(json_object_get(logprobs, "text_offset"),
                          json_integer(count_characters(e->ask.prompt, strlen(e->ask.prompt)) +
                                       count_characters(reply->text, at)));
}

json_t *serve_logprobs(const exchange *e, tandem_npc *npc, uint32_t index, uint32_t *from)
{
    const bool chat = e->ask.kind == SERVE_CHAT;
    tandem_npc_reply reply = TANDEM_INIT(tandem_npc_reply);
    tandem_npc_token token = TANDEM_INIT(tandem_npc_token);
    json_t *logprobs;

    if (!e->ask.say.logprobs || tandem_npc_get_reply(npc, index, &reply) != TANDEM_OK)
        return json_null();
    logprobs = chat ? json_pack("{s:[], s:n}", "content", "refusal")
                    : json_pack("{s:[], s:[], s:[]}", "tokens", "token_logprobs", "text_offset");
    if (!chat)
        json_object_set_new(logprobs, "top_logprobs",
                            e->ask.say.top_logprobs ? json_array() : json_null());
    /* One whose text is not shown yet, or is of what has stopped the reply, is not told. */
    for (;
         *from < reply.tokens && tandem_npc_get_token(npc, index, *from, &token) == TANDEM_OK &&
         (token.text_offset < reply.text_bytes || (reply.end && reply.end != TANDEM_REPLY_STOPPED));
         ++*from)
        if (chat)
            add_chat_token(json_object_get(logprobs, "content"), &token);
        else
            add_text_token(e, logprobs, &token, &reply);
    return logprobs;
}
