/* Functions that an answer may call: what is asked. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * They stand in the first system message. A grammar has an answer be text, calls, or text and then
 * calls, with JSON of one of the functions' schemas in each.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/serve/serve.h"

enum { MOST_TOOLS = 128, MOST_NAME = 64 };

static void put(serve_text *to, const char *text)
{
    serve_put(to, text, strlen(text));
}

/* --- Which there are --- */

static bool is_name(const char *name)
{
    const size_t bytes = name ? strlen(name) : 0;

    for (size_t i = 0; i < bytes; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", name[i]))
            return false;
    return bytes && bytes <= MOST_NAME;
}

static json_t *function_of(const json_t *tool)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    json_t *function = json_object_get(tool, "function");

    return type && !strcmp(type, "function") && json_is_object(function) ? function : NULL;
}

static const char *name_of(const json_t *tool)
{
    return json_string_value(json_object_get(function_of(tool), "name"));
}

static json_t *find_tool(const json_t *tools, const char *name, size_t before)
{
    for (size_t i = 0; i < before && i < json_array_size(tools); i++)
        if (!strcmp(name_of(json_array_get(tools, i)), name))
            return json_array_get(tools, i);
    return NULL;
}

static void check_tool(serve_reader *r, const json_t *tools, size_t i)
{
    const json_t *tool = json_array_get(tools, i), *function = function_of(tool);
    const json_t *parameters = json_object_get(function, "parameters"),
                 *description = json_object_get(function, "description"),
                 *type = json_object_get(parameters, "type");
    char name[60];

    snprintf(name, sizeof name, "tools[%zu]", i);
    if (!function) {
        serve_refuse(r, name, tool, "it must be of type function, with 'function'");
        return;
    }
    snprintf(name, sizeof name, "tools[%zu].function.name", i);
    if (!is_name(name_of(tool)))
        serve_refuse(r, name, json_object_get(function, "name"),
                     "it must be 1 to %d letters, digits, _ or -", MOST_NAME);
    else if (find_tool(tools, name_of(tool), i))
        serve_refuse(r, name, json_object_get(function, "name"), "another one has that name");
    snprintf(name, sizeof name, "tools[%zu].function.description", i);
    if (description && !json_is_string(description) && !json_is_null(description))
        serve_refuse(r, name, description, "it must be a string");
    snprintf(name, sizeof name, "tools[%zu].function.parameters", i);
    if (parameters && !json_is_null(parameters) &&
        (!json_is_string(type) || strcmp(json_string_value(type), "object")))
        serve_refuse(r, name, parameters, "it must be a schema whose type is object");
}

/* --- What may be called --- */

/* References within a function's own schema lead to where that is in the whole. */
static void move_references(json_t *schema, const char *to)
{
    json_t *each;
    const char *key;
    size_t i;

    if (json_is_array(schema)) {
        json_array_foreach(schema, i, each) move_references(each, to);
        return;
    }
    json_object_foreach(schema, key, each)
    {
        const char *at = json_string_value(each);

        if (strcmp(key, "$ref") || !at || *at != '#')
            move_references(each, to);
        else
            json_object_set_new(schema, key, json_sprintf("%s%s", to, at + 1));
    }
}

/* {"name": that one, "arguments": what its parameters say} */
static json_t *call_schema(const json_t *tool, size_t index)
{
    const json_t *parameters = json_object_get(function_of(tool), "parameters");
    json_t *copy = json_is_object(parameters)
                       ? json_deep_copy(parameters)
                       : json_pack("{s:s, s:b}", "type", "object", "additionalProperties", 0);
    char to[80];

    snprintf(to, sizeof to, "#/anyOf/%zu/properties/arguments", index);
    move_references(copy, to);
    return json_pack("{s:s, s:{s:{s:s}, s:o}, s:[s, s], s:b}", "type", "object", "properties",
                     "name", "const", name_of(tool), "arguments", copy, "required", "name",
                     "arguments", "additionalProperties", 0);
}

/* Any text without the beginning of a call, or of what comes of one, which is not the model's to
 * say: pieces that begin with < and have no other, none of which goes on as those do. */
static void put_text_rule(serve_text *to)
{
    static const char opening[] = "<tool_";
    char line[80];

    put(to, "text ::= [^<]* (\"<\" tail)*\ntail ::= ");
    for (size_t i = 1; i + 1 < sizeof opening - 1; i++) {
        snprintf(line, sizeof line, "(\"\" | [^<%c] [^<]* | \"%c\" ", opening[i], opening[i]);
        put(to, line);
    }
    snprintf(line, sizeof line, "(\"\" | [^<%c] [^<]*", opening[sizeof opening - 2]);
    put(to, line);
    for (size_t i = 1; i < sizeof opening - 1; i++)
        put(to, ")");
    put(to, "\n");
}

/* must: text alone will not do. calls: with none of them only text will. */
static void write_grammar(serve_reader *r, json_t *calls, bool must, bool parallel)
{
    serve_ask *a = r->ask;
    char text[300];

    snprintf(text, sizeof text, "root ::= %s%s%s\ncall ::= \"%s\\n\" json \"\\n%s\"\n",
             must ? "" : "text ", must ? "call" : "(call",
             !parallel ? must ? "" : ")?"
             : must    ? " (\"\\n\" call)*"
                       : " (\"\\n\" call)*)?",
             SERVE_CALL_BEGINS, SERVE_CALL_ENDS);
    if (json_array_size(calls))
        put(&a->grammar, text);
    else
        put(&a->grammar, "root ::= text\n");
    put_text_rule(&a->grammar);
    if (json_array_size(calls)) {
        json_t *schema = json_pack("{s:O}", "anyOf", calls);

        a->schema = json_dumps(schema, JSON_COMPACT);
        json_decref(schema);
        if (!a->schema)
            serve_refuse_memory(r, "tools");
    }
    if (!a->grammar.text)
        serve_refuse_memory(r, "tools");
    a->say.grammar = a->grammar.text;
    a->say.json_schema = a->schema;
    serve_becomes(r, "tools", "say.grammar");
    serve_becomes(r, "tools", "say.json_schema");
}

/* --- What is chosen --- */

typedef struct choice {
    bool none, must;
    json_t *tools; /* some of the request's; NULL: all */
} choice;

static void choose_mode(serve_reader *r, const char *name, const json_t *mode, choice *to)
{
    const char *text = json_string_value(mode);

    to->none = text && !strcmp(text, "none");
    to->must = text && !strcmp(text, "required");
    if (!to->none && !to->must && (!text || strcmp(text, "auto")))
        serve_refuse(r, name, mode, "it must be none, auto, required, or a function");
}

static void choose_one(serve_reader *r, const char *name, const json_t *tools, const json_t *tool,
                       choice *to)
{
    const char *wanted = name_of(tool);
    json_t *found = wanted ? find_tool(tools, wanted, SIZE_MAX) : NULL;

    if (!found)
        serve_refuse(r, name, tool, "it must name one of 'tools'");
    else
        json_array_append(to->tools, found);
}

static void read_choice(serve_reader *r, const json_t *tools, choice *to)
{
    const json_t *value = serve_member(r, "tool_choice"), *each;
    const json_t *allowed = json_object_get(value, "allowed_tools");
    size_t i;

    if (value && !json_array_size(tools))
        serve_refuse(r, "tool_choice", value, "it is for 'tools', of which there are none");
    if (!value || !r->ok)
        return;
    if (!json_is_object(value)) {
        choose_mode(r, "tool_choice", value, to);
        return;
    }
    to->tools = json_array();
    if (!allowed) {
        to->must = true;
        choose_one(r, "tool_choice", tools, value, to);
        return;
    }
    choose_mode(r, "tool_choice.allowed_tools.mode", json_object_get(allowed, "mode"), to);
    json_array_foreach(json_object_get(allowed, "tools"), i, each)
        choose_one(r, "tool_choice.allowed_tools.tools", tools, each, to);
    if (r->ok && !json_array_size(to->tools))
        serve_refuse(r, "tool_choice", value, "it must allow one of 'tools'");
}

/* As those who were trained on functions are told of them. */
static void write_told(serve_ask *a, const json_t *tools)
{
    static const char
        begins[] = "# Tools\n\nThese functions may be called. Their signatures, as JSON, "
                   "within <tools></tools>:\n<tools>\n",
        ends[] = "</tools>\n\nFor each call write a JSON object with the function's name and "
                 "arguments within " SERVE_CALL_BEGINS SERVE_CALL_ENDS ":\n" SERVE_CALL_BEGINS
                 "\n{\"name\": <function-name>, \"arguments\": "
                 "<args-json-object>}\n" SERVE_CALL_ENDS;
    const json_t *tool;
    size_t i;

    put(&a->told_tools, begins);
    json_array_foreach(tools, i, tool)
    {
        char *text = json_dumps(tool, JSON_COMPACT);

        put(&a->told_tools, text ? text : "");
        put(&a->told_tools, "\n");
        free(text);
    }
    put(&a->told_tools, ends);
}

void serve_read_tools(serve_reader *r)
{
    const json_t *tools = serve_member(r, "tools");
    const bool parallel = serve_read_flag(r, "parallel_tool_calls", true);
    choice chosen = {0};
    json_t *tool, *calls;
    size_t i;

    if (tools && (!json_is_array(tools) || json_array_size(tools) > MOST_TOOLS))
        serve_refuse(r, "tools", tools, "it must be a list of at most %d", MOST_TOOLS);
    for (i = 0; i < json_array_size(tools) && r->ok; i++)
        check_tool(r, tools, i);
    read_choice(r, tools, &chosen);
    if (r->ok && json_array_size(tools) && !chosen.none &&
        (r->ask->say.grammar || r->ask->say.json_schema))
        serve_refuse(r, "tools", tools, "they go without 'response_format' and 'grammar'");
    if (r->ok && json_array_size(tools) && !r->ask->say.grammar && !r->ask->say.json_schema) {
        calls = json_array();
        json_array_foreach(chosen.none    ? NULL
                           : chosen.tools ? chosen.tools
                                          : tools,
                           i, tool) json_array_append_new(calls, call_schema(tool, i));
        write_grammar(r, calls, chosen.must, parallel);
        if (!chosen.none)
            write_told(r->ask, tools);
        r->ask->calls = !chosen.none;
        json_decref(calls);
    }
    json_decref(chosen.tools);
}
