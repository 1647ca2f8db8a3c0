/* Calls of functions in what is said. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     <tool_call>
 *     {"name": "give", "arguments": {"item": "ring"}}
 *     </tool_call>
 *
 * That is what models that know of functions were trained to write, and what a grammar makes of
 * those that were not (tools.c). It is taken apart as it comes: text that may be the beginning of a
 * call, and white space before one, is held back until it is known.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/serve/serve.h"

static const char opening[] = SERVE_CALL_BEGINS, closing[] = SERVE_CALL_ENDS;

typedef enum calls_state { IN_TEXT, IN_NAME, IN_ARGUMENTS, BEHIND } calls_state;

static bool is_white(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void drop(serve_calls *c, size_t bytes)
{
    c->held.bytes -= bytes;
    memmove(c->held.text, c->held.text + bytes, c->held.bytes + 1);
}

/* Where a text begins in what is held; -1: nowhere. */
static int64_t find(const serve_calls *c, const char *text, size_t bytes)
{
    for (size_t at = 0; at + bytes <= c->held.bytes; at++)
        if (!memcmp(c->held.text + at, text, bytes))
            return (int64_t)at;
    return -1;
}

/* --- Text --- */

/* Without what may begin a call, and the white space before that. */
static size_t settled_bytes(const serve_calls *c)
{
    size_t bytes = c->held.bytes;

    for (size_t part = sizeof opening - 1; part; part--)
        if (part <= bytes && !memcmp(c->held.text + bytes - part, opening, part)) {
            bytes -= part;
            break;
        }
    while (bytes && is_white(c->held.text[bytes - 1]))
        bytes--;
    return bytes;
}

static bool take_text(serve_calls *c, bool ends, serve_said *to)
{
    const int64_t call = find(c, opening, sizeof opening - 1);
    size_t bytes = call >= 0 ? (size_t)call : ends ? c->held.bytes : settled_bytes(c);

    const size_t whole = bytes;
    while (call >= 0 && bytes && is_white(c->held.text[bytes - 1]))
        bytes--;
    serve_put(&to->content, c->held.text, bytes);
    drop(c, call >= 0 ? whole + sizeof opening - 1 : bytes);
    c->state = call >= 0 ? IN_NAME : IN_TEXT;
    return call >= 0;
}

/* --- A call --- */

/* Behind white space the next bytes are these; else NULL. */
static const char *skip(const char *at, const char *text)
{
    while (at && is_white(*at))
        at++;
    return at && !strncmp(at, text, strlen(text)) ? at + strlen(text) : NULL;
}

static json_t *entry_of(serve_calls *c, serve_said *to)
{
    const size_t count = json_array_size(to->calls);
    json_t *last = count ? json_array_get(to->calls, count - 1) : NULL;

    if (last && json_integer_value(json_object_get(last, "index")) == (json_int_t)c->count - 1)
        return last;
    last = json_pack("{s:i, s:{s:s}}", "index", (int)c->count - 1, "function", "arguments", "");
    json_array_append_new(to->calls, last);
    return last;
}

/* Up to where its arguments begin, once all of that is there. */
static bool take_name(serve_calls *c, serve_said *to)
{
    const char *at = skip(skip(skip(skip(c->held.text, "{"), "\"name\""), ":"), "\""),
               *end = at ? strchr(at, '"') : NULL;
    const char *behind = end ? skip(skip(skip(end + 1, ","), "\"arguments\""), ":") : NULL;
    char id[SERVE_ID_BYTES + 32];

    while (behind && is_white(*behind))
        behind++;
    if (!behind || !*behind)
        return false;
    snprintf(id, sizeof id, "call_%s_%u_%u", c->id, (unsigned)c->reply, (unsigned)c->count);
    json_array_append_new(to->calls,
                          json_pack("{s:i, s:s, s:s, s:{s:s%, s:s}}", "index", (int)c->count, "id",
                                    id, "type", "function", "function", "name", at,
                                    (size_t)(end - at), "arguments", ""));
    c->count++;
    drop(c, (size_t)(behind - c->held.text));
    c->state = IN_ARGUMENTS;
    c->depth = 0;
    c->in_string = c->escaped = false;
    return true;
}

/* One more byte of the arguments, an object; whether it is the last one. */
static bool is_last(serve_calls *c, char byte)
{
    if (c->in_string) {
        c->in_string = c->escaped || byte != '"';
        c->escaped = !c->escaped && byte == '\\';
        return false;
    }
    c->in_string = byte == '"';
    c->depth += (byte == '{' || byte == '[') - (byte == '}' || byte == ']');
    return c->depth == 0;
}

static bool take_arguments(serve_calls *c, serve_said *to)
{
    size_t bytes = 0;
    bool ends = false;

    while (bytes < c->held.bytes && !ends)
        ends = is_last(c, c->held.text[bytes++]);
    if (bytes) {
        json_t *function = json_object_get(entry_of(c, to), "function");
        json_t *before = json_object_get(function, "arguments");
        serve_text all = {0};

        serve_put(&all, json_string_value(before), json_string_length(before));
        serve_put(&all, c->held.text, bytes);
        json_object_set_new(function, "arguments", json_stringn(all.text, all.bytes));
        free(all.text);
    }
    drop(c, bytes);
    c->state = ends ? BEHIND : IN_ARGUMENTS;
    return ends;
}

static bool take_closing(serve_calls *c)
{
    const int64_t at = find(c, closing, sizeof closing - 1);

    if (at < 0)
        return false;
    drop(c, (size_t)at + sizeof closing - 1);
    c->state = IN_TEXT;
    return true;
}

void serve_calls_add(serve_calls *c, const char *text, size_t bytes, bool ends, serve_said *to)
{
    bool more = true;

    *to = (serve_said){.calls = json_array()};
    serve_put(&c->held, text, bytes);
    while (more && c->held.text)
        more = c->state == IN_TEXT        ? take_text(c, ends, to)
               : c->state == IN_NAME      ? take_name(c, to)
               : c->state == IN_ARGUMENTS ? take_arguments(c, to)
                                          : take_closing(c);
}

void serve_calls_begin(serve_calls *c, const char *id, uint32_t reply)
{
    const char *number = strchr(id, '-');

    free(c->held.text);
    *c = (serve_calls){.reply = reply};
    snprintf(c->id, sizeof c->id, "%s", number ? number + 1 : id);
}

void serve_said_free(serve_said *said)
{
    free(said->content.text);
    json_decref(said->calls);
    *said = (serve_said){0};
}
