/* JSON Schema as grammars. See schema.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Each schema within the text becomes a rule, named after its place among the values of the text;
 * so one may refer to itself.
 */
#include "engine_plugin/npc/schema.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/npc/grammar.h"
#include "kernels/model/json.h"

enum { MOST_WORDS = 64, MOST_PROPERTIES = 1000, MOST_ITEMS = 10000, POINTER_BYTES = 200 };
#define NO_VALUE UINT32_MAX
#define NO_LIMIT UINT32_MAX

static const char common_rules[] =
    "space ::= (\"\\n\" \" \"{0,12} | \" \")?\n"
    "character ::= [^\"\\\\\\x00-\\x1f\\x7f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4})\n"
    "string ::= \"\\\"\" character* \"\\\"\"\n"
    "integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,15})\n"
    "number ::= integer (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?\n"
    "boolean ::= \"true\" | \"false\"\n"
    "null ::= \"null\"\n"
    "member ::= string \":\" space value\n"
    "object ::= \"{\" space (member (\",\" space member)*)? space \"}\"\n"
    "array ::= \"[\" space (value (\",\" space value)*)? space \"]\"\n"
    "value ::= object | array | string | number | boolean | null\n";

typedef struct translator {
    td_json json;
    char *text;
    size_t bytes, room;
    bool *listed;   /* [values]: has or will have a rule */
    uint32_t *todo; /* such values */
    uint32_t todo_count;
    char *why;
    size_t why_bytes;
    tandem_status status; /* once it is not OK, nothing more is done */
} translator;

/* --- What is wrong --- */

/* The JSON pointer of a value: "#/properties/name". */
static void point_to(const td_json *json, uint32_t value, char to[POINTER_BYTES])
{
    uint32_t of = 0;
    size_t length = 1;

    snprintf(to, POINTER_BYTES, "#");
    while (of != value) {
        uint32_t index = 0;

        TD_JSON_EACH(json, of, member)
        {
            if (value >= member && value < json->values[member].next) {
                const char *name = json->values[member].name;

                if (name)
                    td_text(to + length, POINTER_BYTES - length, "/%s", name);
                else
                    td_text(to + length, POINTER_BYTES - length, "/%" PRIu32, index);
                length = strlen(to);
                of = member;
                break;
            }
            index++;
        }
    }
}

static void refuse(translator *t, tandem_status status, uint32_t value, const char *format, ...)
    __attribute__((format(TD_PRINTF, 4, 5)));

static void refuse(translator *t, tandem_status status, uint32_t value, const char *format, ...)
{
    char pointer[POINTER_BYTES], what[200];
    va_list args;

    if (t->status != TANDEM_OK)
        return;
    va_start(args, format);
    td_text_list(what, sizeof what, format, args);
    va_end(args);
    point_to(&t->json, value, pointer);
    t->status = td_fail(t->why, t->why_bytes, status, "schema at %s: %s", pointer, what);
}

/* --- Writing --- */

static void put_bytes(translator *t, const char *bytes, size_t count)
{
    if (t->status != TANDEM_OK)
        return;
    if (t->bytes + count > TD_GRAMMAR_BYTES) {
        t->status = td_fail(t->why, t->why_bytes, TANDEM_ERROR_ARG,
                            "the schema's grammar has more than %d bytes", TD_GRAMMAR_BYTES);
        return;
    }
    if (t->bytes + count + 1 > t->room) {
        const size_t room = 2 * (t->bytes + count) + 1024;
        char *more = realloc(t->text, room);

        if (!more) {
            t->status =
                td_fail(t->why, t->why_bytes, TANDEM_ERROR_NOMEM, "no memory for a grammar");
            return;
        }
        t->text = more;
        t->room = room;
    }
    memcpy(t->text + t->bytes, bytes, count);
    t->bytes += count;
    t->text[t->bytes] = 0;
}

static void put(translator *t, const char *text)
{
    put_bytes(t, text, strlen(text));
}

static void put_number(translator *t, const char *before, uint32_t number, const char *behind)
{
    char text[80];

    put_bytes(t, text,
              (size_t)snprintf(text, sizeof text, "%s%" PRIu32 "%s", before, number, behind));
}

/* A byte of JSON within the quotes of a grammar's text. */
static void put_quoted(translator *t, char c)
{
    if (c == '"' || c == '\\')
        put_bytes(t, "\\", 1);
    put_bytes(t, &c, 1);
}

/* A string as JSON writes it, within such quotes. */
static void put_json_string(translator *t, const char *text)
{
    put(t, "\\\"");
    for (const char *c = text; *c; c++) {
        char escape[8];

        if (*c == '"' || *c == '\\') {
            put_quoted(t, '\\');
            put_quoted(t, *c);
        } else if ((uint8_t)*c < ' ') {
            snprintf(escape, sizeof escape, "\\\\u%04x", (unsigned)*c);
            put(t, escape);
        } else {
            put_bytes(t, c, 1);
        }
    }
    put(t, "\\\"");
}

/* A value as JSON without a space, within such quotes. */
static void put_json(translator *t, uint32_t value)
{
    const td_json_value *v = &t->json.values[value];
    const bool is_object = v->type == TD_JSON_OBJECT;
    uint32_t index = 0;

    if (v->type == TD_JSON_STRING) {
        put_json_string(t, v->text);
    } else if (v->type == TD_JSON_ARRAY || is_object) {
        put(t, is_object ? "{" : "[");
        TD_JSON_EACH(&t->json, value, member)
        {
            put(t, index++ ? "," : "");
            if (is_object) {
                put_json_string(t, t->json.values[member].name);
                put(t, ":");
            }
            put_json(t, member);
        }
        put(t, is_object ? "}" : "]");
    } else {
        put(t, v->text);
    }
}

static void put_literal(translator *t, uint32_t value)
{
    put(t, "\"");
    put_json(t, value);
    put(t, "\"");
}

/* The name of a schema's rule, which will be written. */
static void put_rule(translator *t, uint32_t schema)
{
    if (!t->listed[schema]) {
        t->listed[schema] = true;
        t->todo[t->todo_count++] = schema;
    }
    put_number(t, "r", schema, "");
}

/* --- Reading --- */

/* A member's value, or NO_VALUE. */
static uint32_t find(const translator *t, uint32_t object, const char *name)
{
    TD_JSON_EACH(&t->json, object, member)
    if (!strcmp(t->json.values[member].name, name))
        return member;
    return NO_VALUE;
}

static bool is_one_of(const char *word, const char *const *words)
{
    for (; *words; words++)
        if (!strcmp(word, *words))
            return true;
    return false;
}

static const char *const says_nothing[] = {
    "title",    "description", "default", "examples", "format",      "$schema",
    "$id",      "$comment",    "$defs",   "strict",   "definitions", "deprecated",
    "readOnly", "writeOnly",   "$anchor", "example",  NULL};

/* Refuses words that are none of `known`, which may be of a type that is not this one. */
static void check_words(translator *t, uint32_t schema, const char *const *known)
{
    if (t->json.values[schema].count > MOST_WORDS)
        refuse(t, TANDEM_ERROR_UNSUPPORTED, schema, "it has more than %d words", MOST_WORDS);
    TD_JSON_EACH(&t->json, schema, member)
    {
        const char *name = t->json.values[member].name;

        if (t->status == TANDEM_OK && !is_one_of(name, says_nothing) && !is_one_of(name, known))
            refuse(t, TANDEM_ERROR_UNSUPPORTED, member, "'" TD_NAME "' is not supported here",
                   TD_NAMED(name));
    }
}

/* A whole number that a word gives, or `otherwise`. */
static uint32_t read_count(translator *t, uint32_t schema, const char *name, uint32_t otherwise)
{
    const uint32_t value = find(t, schema, name);
    char *end = NULL;

    if (value == NO_VALUE)
        return otherwise;
    const td_json_value *v = &t->json.values[value];
    const unsigned long count = v->type == TD_JSON_NUMBER ? strtoul(v->text, &end, 10) : 0;
    if (!end || *end || *v->text == '-' || count > MOST_ITEMS)
        refuse(t, TANDEM_ERROR_ARG, value, "it must be a whole number from 0 to %d", MOST_ITEMS);
    return (uint32_t)count;
}

static void check_limits(translator *t, uint32_t schema, uint32_t least, uint32_t most)
{
    if (most < least)
        refuse(t, TANDEM_ERROR_ARG, schema, "at most %" PRIu32 " are fewer than at least %" PRIu32,
               most, least);
}

/* --- Types --- */

static void translate_string(translator *t, uint32_t schema)
{
    const uint32_t least = read_count(t, schema, "minLength", 0),
                   most = read_count(t, schema, "maxLength", NO_LIMIT);

    check_limits(t, schema, least, most);
    if (least == 0 && most == NO_LIMIT) {
        put(t, "string");
        return;
    }
    put_number(t, "\"\\\"\" character{", least, ",");
    if (most != NO_LIMIT)
        put_number(t, "", most, "");
    put(t, "} \"\\\"\"");
}

static void translate_array(translator *t, uint32_t schema)
{
    const uint32_t items = find(t, schema, "items"), least = read_count(t, schema, "minItems", 0),
                   most = read_count(t, schema, "maxItems", NO_LIMIT);

    check_limits(t, schema, least, most);
    put(t, "\"[\" space ");
    if (most > 0) {
        put(t, least ? "" : "(");
        items == NO_VALUE ? put(t, "value") : put_rule(t, items);
        put(t, " (\",\" space ");
        items == NO_VALUE ? put(t, "value") : put_rule(t, items);
        put_number(t, "){", least ? least - 1 : 0, ",");
        if (most != NO_LIMIT)
            put_number(t, "", most - 1, "");
        put(t, least ? "} " : "})? ");
    }
    put(t, "space \"]\"");
}

/* Any names, values of one schema. */
static void translate_map(translator *t, uint32_t values)
{
    put(t, "\"{\" space (string \":\" space ");
    put_rule(t, values);
    put(t, " (\",\" space string \":\" space ");
    put_rule(t, values);
    put(t, ")*)? space \"}\"");
}

static bool is_required(const translator *t, uint32_t required, const char *name)
{
    if (required == NO_VALUE)
        return false;
    TD_JSON_EACH(&t->json, required, member)
    if (!strcmp(t->json.values[member].text, name))
        return true;
    return false;
}

static void check_required(translator *t, uint32_t required, uint32_t properties)
{
    if (required == NO_VALUE)
        return;
    if (t->json.values[required].type != TD_JSON_ARRAY ||
        t->json.values[required].count > MOST_PROPERTIES) {
        refuse(t, TANDEM_ERROR_ARG, required, "it must be a list of at most %d names",
               MOST_PROPERTIES);
        return;
    }
    TD_JSON_EACH(&t->json, required, member)
    {
        const td_json_value *v = &t->json.values[member];

        if (v->type != TD_JSON_STRING || properties == NO_VALUE ||
            find(t, properties, v->text) == NO_VALUE) {
            refuse(t, TANDEM_ERROR_ARG, member, "it is none of the properties");
            return;
        }
    }
}

static void check_properties(translator *t, uint32_t properties)
{
    const td_json_value *v = &t->json.values[properties];

    if (v->type != TD_JSON_OBJECT || v->count > MOST_PROPERTIES)
        refuse(t, TANDEM_ERROR_ARG, properties, "it must be an object of at most %d properties",
               MOST_PROPERTIES);
    if (t->status != TANDEM_OK)
        return;
    TD_JSON_EACH(&t->json, properties, member)
    if (find(t, properties, t->json.values[member].name) != member) {
        refuse(t, TANDEM_ERROR_ARG, member, "it is there twice");
        return;
    }
}

static void put_property(translator *t, uint32_t member)
{
    put(t, "\"");
    put_json_string(t, t->json.values[member].name);
    put(t, ":\" space ");
    put_rule(t, member);
}

/* Each property is a rule, "p7" behind others and "f7" where none was written yet, so that no comma
 * goes before it, and names the next one's. */
static void put_chain(translator *t, uint32_t required, uint32_t properties, bool first)
{
    uint32_t left = t->json.values[properties].count;

    TD_JSON_EACH(&t->json, properties, member)
    {
        const bool must = is_required(t, required, t->json.values[member].name);
        const uint32_t next = t->json.values[member].next;

        put_number(t, first ? "f" : "p", member, " ::= ");
        put(t, first ? "" : must ? "\",\" space " : "(\",\" space ");
        put_property(t, member);
        put(t, first || must ? "" : ")?");
        if (--left)
            put_number(t, " p", next, "");
        if (first && !must)
            left ? put_number(t, " | f", next, "") : put(t, " | \"\"");
        put(t, "\n");
    }
}

/* Writes the body of a rule, and further rules behind it. */
static void translate_object(translator *t, uint32_t schema)
{
    const uint32_t properties = find(t, schema, "properties"),
                   required = find(t, schema, "required"),
                   others = find(t, schema, "additionalProperties");
    const td_json_type others_are = others == NO_VALUE ? TD_JSON_NULL : t->json.values[others].type;

    if (properties != NO_VALUE)
        check_properties(t, properties);
    if (t->status == TANDEM_OK)
        check_required(t, required, properties);
    if (t->status != TANDEM_OK)
        return;
    if (properties != NO_VALUE && t->json.values[properties].count) {
        if (others_are == TD_JSON_OBJECT)
            refuse(t, TANDEM_ERROR_UNSUPPORTED, others,
                   "a schema for further properties beside those that are named");
        put_number(t, "\"{\" space f", properties + 1, " space \"}\"\n");
        put_chain(t, required, properties, true);
        put_chain(t, required, properties, false);
    } else if (others_are == TD_JSON_OBJECT) {
        translate_map(t, others);
    } else if (others_are == TD_JSON_BOOL && !strcmp(t->json.values[others].text, "false")) {
        put(t, "\"{\" space \"}\"");
    } else {
        put(t, "object");
    }
}

static const char *const string_words[] = {"minLength", "maxLength", NULL};
static const char *const array_words[] = {"items", "minItems", "maxItems", NULL};
static const char *const object_words[] = {"properties", "required", "additionalProperties", NULL};
static const char *const no_words[] = {NULL};

static const struct type {
    const char *name;
    const char *const *words;                          /* that say something about its values */
    void (*translate)(translator *t, uint32_t schema); /* NULL: the rule of its name */
} types[] = {
    {"object", object_words, translate_object},
    {"array", array_words, translate_array},
    {"string", string_words, translate_string},
    {"integer", no_words, NULL},
    {"number", no_words, NULL},
    {"boolean", no_words, NULL},
    {"null", no_words, NULL},
};
enum { TYPES = sizeof types / sizeof *types };

static const struct type *find_type(const char *name)
{
    for (int i = 0; i < TYPES; i++)
        if (!strcmp(types[i].name, name))
            return &types[i];
    return NULL;
}

/* --- Schemas --- */

static void refuse_type(translator *t, uint32_t value)
{
    const td_json_value *v = &t->json.values[value];

    if (v->type == TD_JSON_STRING)
        refuse(t, TANDEM_ERROR_ARG, value, "\"%s\" is no type", v->text);
    else
        refuse(t, TANDEM_ERROR_ARG, value, "it is no type");
}

/* Rules that a list of types needs: "t7" is the first type of schema 7 or its next, "t8" ... */
static void translate_type(translator *t, uint32_t schema, uint32_t value)
{
    const td_json_value *v = &t->json.values[value];
    const struct type *type = v->type == TD_JSON_STRING ? find_type(v->text) : NULL;

    if (!type) {
        refuse_type(t, value);
        return;
    }
    type->translate ? type->translate(t, schema) : put(t, type->name);
}

static void translate_types(translator *t, uint32_t schema, uint32_t list)
{
    static const char *const words[] = {"type",       "minLength", "maxLength",
                                        "items",      "minItems",  "maxItems",
                                        "properties", "required",  "additionalProperties",
                                        NULL};
    uint32_t index = 0;

    check_words(t, schema, words);
    if (!t->json.values[list].count || t->json.values[list].count > TYPES)
        refuse(t, TANDEM_ERROR_ARG, list, "it must have 1 to %d types", TYPES);
    TD_JSON_EACH(&t->json, list, member)
    {
        put(t, index++ ? " | " : "");
        put_number(t, "t", member, "");
    }
    put(t, "\n");
    TD_JSON_EACH(&t->json, list, member)
    {
        put_number(t, "t", member, " ::= ");
        translate_type(t, schema, member);
        put(t, "\n");
    }
}

static void translate_choice(translator *t, uint32_t list, bool of_schemas)
{
    uint32_t index = 0;

    if (t->json.values[list].type != TD_JSON_ARRAY || !t->json.values[list].count)
        refuse(t, TANDEM_ERROR_ARG, list, "it must be a list of at least one");
    if (t->status != TANDEM_OK)
        return;
    TD_JSON_EACH(&t->json, list, member)
    {
        put(t, index++ ? " | " : "");
        of_schemas ? put_rule(t, member) : put_literal(t, member);
    }
}

/* "#", "#/$defs/name", "#/properties/a~1b/items/0" */
static uint32_t find_reference(const translator *t, const char *at)
{
    uint32_t of = 0;

    if (*at++ != '#')
        return NO_VALUE;
    while (*at == '/') {
        char name[POINTER_BYTES];
        size_t length = 0;
        uint32_t index = 0, found = NO_VALUE;

        for (at++; *at && *at != '/' && length < sizeof name - 1; at++) {
            const bool escaped = *at == '~' && (at[1] == '0' || at[1] == '1');

            name[length++] = !escaped ? *at : at[1] == '0' ? '~' : '/';
            at += escaped;
        }
        name[length] = 0;
        TD_JSON_EACH(&t->json, of, member)
        {
            char number[16];

            snprintf(number, sizeof number, "%" PRIu32, index++);
            if (!strcmp(t->json.values[member].name ? t->json.values[member].name : number, name))
                found = member;
        }
        if (found == NO_VALUE)
            return NO_VALUE;
        of = found;
    }
    return *at ? NO_VALUE : of;
}

static void translate_reference(translator *t, uint32_t value)
{
    const td_json_value *v = &t->json.values[value];
    const uint32_t found = v->type == TD_JSON_STRING ? find_reference(t, v->text) : NO_VALUE;

    if (found == NO_VALUE)
        refuse(t, TANDEM_ERROR_ARG, value, "it leads to nothing within this text");
    else
        put_rule(t, found);
}

/* What a schema without a type is about. */
static const char *guess_type(const translator *t, uint32_t schema)
{
    for (int i = 0; i < TYPES; i++)
        for (const char *const *word = types[i].words; *word; word++)
            if (find(t, schema, *word) != NO_VALUE)
                return types[i].name;
    return NULL;
}

static void translate_typed(translator *t, uint32_t schema)
{
    const uint32_t value = find(t, schema, "type");
    const char *name = value == NO_VALUE ? guess_type(t, schema) : t->json.values[value].text;
    const struct type *type;
    const char *words[8] = {"type"};

    if (value != NO_VALUE && t->json.values[value].type == TD_JSON_ARRAY) {
        translate_types(t, schema, value);
        return;
    }
    if (value != NO_VALUE && t->json.values[value].type != TD_JSON_STRING)
        name = "";
    type = name ? find_type(name) : NULL;
    if (name && !type) {
        refuse_type(t, value);
        return;
    }
    for (int i = 0; type && type->words[i]; i++)
        words[i + 1] = type->words[i];
    check_words(t, schema, words);
    if (type && type->translate)
        type->translate(t, schema);
    else
        put(t, type ? type->name : "value");
}

static void translate(translator *t, uint32_t schema)
{
    static const struct {
        const char *word;
        bool of_schemas;
    } choices[] = {{"enum", false}, {"anyOf", true}, {"oneOf", true}, {"allOf", true}};
    const td_json_value *v = &t->json.values[schema];
    uint32_t value;

    if (v->type == TD_JSON_BOOL && !strcmp(v->text, "true")) {
        put(t, "value");
        return;
    }
    if (v->type != TD_JSON_OBJECT) {
        refuse(t, TANDEM_ERROR_ARG, schema, "it must be a schema: an object, or true");
        return;
    }
    if ((value = find(t, schema, "$ref")) != NO_VALUE) {
        check_words(t, schema, (const char *[]){"$ref", NULL});
        translate_reference(t, value);
        return;
    }
    if ((value = find(t, schema, "const")) != NO_VALUE) {
        check_words(t, schema, (const char *[]){"const", "type", NULL});
        put_literal(t, value);
        return;
    }
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const char *word = choices[i].word;

        if ((value = find(t, schema, word)) == NO_VALUE)
            continue;
        /* A type beside an enum is that of its values. */
        check_words(t, schema, (const char *[]){word, i ? NULL : "type", NULL});
        if (!strcmp(word, "allOf") && t->json.values[value].count > 1)
            refuse(t, TANDEM_ERROR_UNSUPPORTED, value, "allOf of more than one");
        translate_choice(t, value, choices[i].of_schemas);
        return;
    }
    translate_typed(t, schema);
}

static void translate_all(translator *t, const char *root)
{
    put(t, common_rules);
    put(t, root);
    put(t, " ::= ");
    put_rule(t, 0);
    put(t, "\n");
    while (t->todo_count && t->status == TANDEM_OK) {
        const uint32_t schema = t->todo[--t->todo_count];

        put_number(t, "r", schema, " ::= ");
        translate(t, schema);
        put(t, "\n");
    }
}

tandem_status td_schema_to_grammar(const char *text, size_t bytes, const char *root, char **grammar,
                                   char *why, size_t why_bytes)
{
    translator t = {.why = why, .why_bytes = why_bytes};

    *grammar = NULL;
    t.status = td_json_read(text, bytes, &t.json, why, why_bytes);
    if (t.status != TANDEM_OK)
        return t.status;
    t.listed = calloc(t.json.count, sizeof *t.listed);
    t.todo = calloc(t.json.count, sizeof *t.todo);
    if (t.listed && t.todo)
        translate_all(&t, root);
    else
        t.status = td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a grammar");
    free(t.listed);
    free(t.todo);
    td_json_free(&t.json);
    if (t.status == TANDEM_OK)
        *grammar = t.text;
    else
        free(t.text);
    return t.status;
}
