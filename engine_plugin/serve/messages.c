/* The messages of a chat. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/serve/serve.h"

enum { MOST_TURNS = 4096, ROLE_TOOL = TANDEM_ROLE_NPC + 1 };

typedef struct messages {
    serve_reader *r;
    json_t *ids;   /* of calls so far, by their names */
    bool was_tool; /* the message before */
} messages;

static bool find_role(const char *name, uint32_t *role)
{
    static const struct {
        const char *name;
        uint32_t role;
    } roles[] = {{"system", TANDEM_ROLE_SYSTEM},
                 {"developer", TANDEM_ROLE_SYSTEM},
                 {"user", TANDEM_ROLE_USER},
                 {"assistant", TANDEM_ROLE_NPC},
                 {"tool", ROLE_TOOL}};

    for (size_t i = 0; name && i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(roles[i].name, name)) {
            *role = roles[i].role;
            return true;
        }
    return false;
}

/* A text that is not in the request as it is. It is taken. */
static const char *keep(serve_reader *r, serve_text *text)
{
    json_t *kept = text->text ? json_stringn(text->text, text->bytes) : NULL;

    free(text->text);
    *text = (serve_text){0};
    if (!kept || json_array_append_new(r->ask->texts, kept)) {
        serve_refuse_memory(r, "messages");
        return "";
    }
    return json_string_value(kept);
}

static void put(serve_text *to, const char *text)
{
    serve_put(to, text, strlen(text));
}

/* "messages[5].role" */
static void refuse_in(messages *m, size_t index, const char *of, const json_t *value,
                      const char *must)
{
    char name[60];

    snprintf(name, sizeof name, "messages[%zu]%s", index, of);
    serve_refuse(m->r, name, value, "%s", must);
}

/* A text, or parts of one, which become one. */
static const char *read_content(messages *m, size_t index, const json_t *content)
{
    static const char must[] = "it must be a string, or parts of type text";
    serve_text whole = {0};
    const json_t *part;
    size_t i;

    if (!json_is_array(content)) {
        if (!json_is_string(content))
            refuse_in(m, index, ".content", content, must);
        return json_is_string(content) ? json_string_value(content) : "";
    }
    serve_put(&whole, "", 0);
    json_array_foreach(content, i, part)
    {
        const json_t *piece = json_object_get(part, "text");

        if (!json_is_string(piece))
            refuse_in(m, index, ".content", content, must);
        else
            serve_put(&whole, json_string_value(piece), json_string_length(piece));
    }
    return keep(m->r, &whole);
}

/* --- Calls, and what came of them --- */

/* As the model has written them, or would have. */
static void put_calls(messages *m, size_t index, const json_t *calls, serve_text *to)
{
    const json_t *call;
    size_t i;

    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        const char *id = json_string_value(json_object_get(call, "id")),
                   *arguments = json_string_value(json_object_get(function, "arguments"));
        json_t *name = json_object_get(function, "name");
        char *quoted = json_is_string(name) ? json_dumps(name, JSON_ENCODE_ANY) : NULL;

        if (!id || !arguments || !quoted)
            refuse_in(m, index, ".tool_calls", calls,
                      "each must have an id, and a function's name and arguments as strings");
        else
            json_object_set_new(m->ids, id, json_true());
        put(to,
            to->bytes ? "\n" SERVE_CALL_BEGINS "\n{\"name\": " : SERVE_CALL_BEGINS "\n{\"name\": ");
        put(to, quoted ? quoted : "");
        put(to, ", \"arguments\": ");
        put(to, arguments ? arguments : "");
        put(to, "}\n" SERVE_CALL_ENDS);
        free(quoted);
    }
}

static const char *read_assistant(messages *m, size_t index, const json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls"),
                 *content = json_object_get(message, "content");
    serve_text whole = {0};

    if (!json_array_size(calls)) {
        if (calls && !json_is_null(calls) && !json_is_array(calls))
            refuse_in(m, index, ".tool_calls", calls, "it must be a list");
        return read_content(m, index, content);
    }
    if (content && !json_is_null(content))
        put(&whole, read_content(m, index, content));
    put_calls(m, index, calls, &whole);
    return keep(m->r, &whole);
}

/* Those that follow one another are one turn. */
static const char *read_result(messages *m, size_t index, const json_t *message)
{
    const json_t *id = json_object_get(message, "tool_call_id");
    serve_ask *a = m->r->ask;
    serve_text whole = {0};

    if (!json_is_string(id) || !json_object_get(m->ids, json_string_value(id)))
        refuse_in(m, index, ".tool_call_id", id, "it must be the id of a call before it");
    if (m->was_tool && m->r->ok) {
        put(&whole, a->turns[--a->turn_count].text);
        put(&whole, "\n");
    }
    put(&whole, "<tool_response>\n");
    put(&whole, read_content(m, index, json_object_get(message, "content")));
    put(&whole, "\n</tool_response>");
    return keep(m->r, &whole);
}

/* --- Turns --- */

static void add_turn(serve_ask *a, uint32_t role, const char *text)
{
    a->turns[a->turn_count++] = TANDEM_INIT(tandem_turn, .role = role, .text = text);
}

/* What is told of functions goes to the first system message, or is one. */
static const char *read_system(messages *m, size_t index, const char *content)
{
    serve_text whole = {0};

    if (index || !m->r->ask->told_tools.bytes)
        return content;
    put(&whole, content);
    put(&whole, "\n\n");
    put(&whole, m->r->ask->told_tools.text);
    return keep(m->r, &whole);
}

static void read_message(messages *m, size_t index, const json_t *message)
{
    const json_t *role = json_object_get(message, "role");
    serve_ask *a = m->r->ask;
    const char *text;
    uint32_t of = 0;

    if (!find_role(json_string_value(role), &of)) {
        refuse_in(m, index, ".role", role, "it must be system, developer, user, assistant or tool");
        return;
    }
    if (!index && of != TANDEM_ROLE_SYSTEM && a->told_tools.bytes)
        add_turn(a, TANDEM_ROLE_SYSTEM, a->told_tools.text);
    text = of == ROLE_TOOL         ? read_result(m, index, message)
           : of == TANDEM_ROLE_NPC ? read_assistant(m, index, message)
                                   : read_content(m, index, json_object_get(message, "content"));
    if (of == TANDEM_ROLE_SYSTEM)
        text = read_system(m, index, text);
    add_turn(a, of == ROLE_TOOL ? TANDEM_ROLE_USER : of, text);
    m->was_tool = of == ROLE_TOOL;
}

void serve_read_messages(serve_reader *r)
{
    const json_t *all = serve_member(r, "messages"), *message;
    messages m = {.r = r};
    size_t i;

    serve_becomes(r, "messages", "persona and text");
    serve_becomes(r, "messages", "turns");
    if (!json_is_array(all) || !json_array_size(all) || json_array_size(all) > MOST_TURNS) {
        serve_refuse(r, "messages", all, "it must be a list of 1 to %d", MOST_TURNS);
        return;
    }
    r->ask->turns = calloc(json_array_size(all) + 1, sizeof *r->ask->turns);
    r->ask->texts = json_array();
    m.ids = json_object();
    if (!r->ask->turns || !r->ask->texts || !m.ids)
        serve_refuse_memory(r, "messages");
    json_array_foreach(all, i, message)
    {
        if (r->ok)
            read_message(&m, i, message);
    }
    json_decref(m.ids);
}
