/* A reader of JSON. See json.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/model/json.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct reader {
    const char *at, *end;
    char *texts; /* where the next string goes */
    td_json *json;
    uint32_t room, line, depth, most_values;
    tandem_status status;
    char *why;
    size_t why_bytes;
} reader;

static bool read_value(reader *r, const char *name);

static bool fail(reader *r, const char *what)
{
    r->status =
        td_fail(r->why, r->why_bytes, TANDEM_ERROR_PROTOCOL, "line %" PRIu32 ": %s", r->line, what);
    return false;
}

static void skip_spaces(reader *r)
{
    for (; r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r');
         r->at++)
        r->line += *r->at == '\n';
}

/* The next character behind spaces; 0 at the end. */
static char next(reader *r)
{
    skip_spaces(r);
    return r->at < r->end ? *r->at : 0;
}

static bool take(reader *r, char c)
{
    if (next(r) != c)
        return false;
    r->at++;
    return true;
}

/* --- Strings --- */

/* Strings and numbers are never longer than what they are written as, so there is room for all of
 * them. */
static void put(reader *r, unsigned byte)
{
    *r->texts++ = (char)byte;
}

static void put_code(reader *r, uint32_t code)
{
    if (code < 0x80) {
        put(r, code);
        return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned first[4] = {0, 0xc0, 0xe0, 0xf0};
    put(r, first[more] | code >> 6 * more);
    for (int i = more - 1; i >= 0; i--)
        put(r, 0x80 | (code >> 6 * i & 0x3f));
}

static bool read_hex(reader *r, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        const char c = r->at < r->end ? *r->at : 0;
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return fail(r, "\\u without four digits");
        *code = *code << 4 | (uint32_t)digit;
    }
    return true;
}

/* Behind \u: a character, or two halves of one. */
static bool read_code(reader *r)
{
    uint32_t code, low;
    if (!read_hex(r, &code))
        return false;
    if (code >= 0xd800 && code < 0xdc00) {
        if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
            return fail(r, "half a character");
        r->at += 2;
        if (!read_hex(r, &low))
            return false;
        if (low < 0xdc00 || low >= 0xe000)
            return fail(r, "half a character");
        code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
    } else if (code >= 0xdc00 && code < 0xe000) {
        return fail(r, "half a character");
    }
    if (!code)
        return fail(r, "a string with a 0 in it");
    put_code(r, code);
    return true;
}

static bool read_escape(reader *r)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char c = r->at < r->end ? *r->at++ : 0;
    const char *which = c ? strchr(from, c) : NULL;
    if (c == 'u')
        return read_code(r);
    if (!which)
        return fail(r, "a backslash before what it must not be before");
    put(r, (unsigned char)to[which - from]);
    return true;
}

/* One character of UTF-8 of more than a byte, the shortest way that there is. */
static bool read_wide(reader *r)
{
    const unsigned char *at = (const unsigned char *)r->at;
    const int more = *at >= 0xf0 && *at < 0xf5   ? 3
                     : *at >= 0xe0 && *at < 0xf0 ? 2
                     : *at >= 0xc2 && *at < 0xe0 ? 1
                                                 : 0;
    uint32_t code = *at & (0x3fu >> more);
    if (!more || r->end - r->at <= more)
        return fail(r, "a string that is no UTF-8");
    for (int i = 1; i <= more; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return fail(r, "a string that is no UTF-8");
        code = code << 6 | (at[i] & 0x3f);
    }
    if ((more == 2 && code < 0x800) || (more == 3 && (code < 0x10000 || code > 0x10ffff)) ||
        (code >= 0xd800 && code < 0xe000))
        return fail(r, "a string that is no UTF-8");
    put_code(r, code);
    r->at += more + 1;
    return true;
}

/* From its first quote on. */
static bool read_string(reader *r, const char **text)
{
    *text = r->texts;
    r->at++;
    while (r->at < r->end && *r->at != '"') {
        const unsigned char c = (unsigned char)*r->at;
        bool good = true;
        if (c < 0x20)
            return fail(r, "a string with a control character in it");
        if (c >= 0x80) {
            good = read_wide(r);
        } else {
            r->at++;
            if (c == '\\')
                good = read_escape(r);
            else
                put(r, c);
        }
        if (!good)
            return false;
    }
    if (r->at == r->end)
        return fail(r, "a string without an end");
    r->at++;
    put(r, 0);
    return true;
}

/* --- Numbers and words --- */

static bool take_digits(reader *r)
{
    const char *begin = r->at;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
        put(r, (unsigned char)*r->at);
    return r->at != begin;
}

static bool take_any(reader *r, const char *of)
{
    if (r->at == r->end || !*r->at || !strchr(of, *r->at))
        return false;
    put(r, (unsigned char)*r->at++);
    return true;
}

static bool read_number(reader *r, const char **text)
{
    *text = r->texts;
    take_any(r, "-");
    const bool zero = r->at < r->end && *r->at == '0', digits = take_digits(r);
    bool good = digits && !(zero && r->texts - *text > 1 + (**text == '-'));
    if (good && take_any(r, "."))
        good = take_digits(r);
    if (good && take_any(r, "eE")) {
        take_any(r, "+-");
        good = take_digits(r);
    }
    put(r, 0);
    return good || fail(r, "a number that is none");
}

static bool read_word(reader *r, td_json_value *value)
{
    static const struct {
        const char *word;
        td_json_type type;
    } words[] = {{"true", TD_JSON_BOOL}, {"false", TD_JSON_BOOL}, {"null", TD_JSON_NULL}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t length = strlen(words[i].word);
        if ((size_t)(r->end - r->at) < length || memcmp(r->at, words[i].word, length) != 0)
            continue;
        value->type = words[i].type;
        value->text = words[i].word;
        r->at += length;
        return true;
    }
    return fail(r, r->at == r->end ? "it ends before a value" : "a value that is none");
}

/* --- Values --- */

static td_json_value *add_value(reader *r)
{
    td_json *json = r->json;
    if (json->count == r->most_values) {
        fail(r, "more values than there is room for");
        return NULL;
    }
    if (json->count == r->room) {
        const uint32_t room = r->room ? 2 * r->room : 64;
        td_json_value *values = realloc(json->values, room * sizeof *values);
        if (!values) {
            r->status = td_fail(r->why, r->why_bytes, TANDEM_ERROR_NOMEM, "no memory for %u values of JSON", room);
            return NULL;
        }
        json->values = values;
        r->room = room;
    }
    return &json->values[json->count++];
}

/* Behind its bracket. */
static bool read_members(reader *r, uint32_t of, bool named, char close)
{
    uint32_t count = 0;
    if (++r->depth > TD_JSON_DEPTH)
        return fail(r, "too many brackets within each other");
    while (!take(r, close)) {
        const char *name = NULL;
        if (count && !take(r, ','))
            return fail(r, next(r) ? "a comma is missing" : "a bracket is missing");
        if (named && next(r) != '"')
            return fail(r, "a member without a name");
        if (named && !read_string(r, &name))
            return false;
        if (named && !take(r, ':'))
            return fail(r, "a colon is missing");
        if (!read_value(r, name))
            return false;
        count++;
    }
    r->depth--;
    r->json->values[of].count = count;
    return true;
}

static bool read_value(reader *r, const char *name)
{
    const uint32_t at = r->json->count;
    const char c = next(r);
    td_json_value *value = add_value(r);
    bool good;

    if (!value)
        return false;
    *value = (td_json_value){.name = name};
    if (c == '{' || c == '[') {
        value->type = c == '{' ? TD_JSON_OBJECT : TD_JSON_ARRAY;
        r->at++;
        good = read_members(r, at, c == '{', c == '{' ? '}' : ']');
    } else if (c == '"') {
        value->type = TD_JSON_STRING;
        good = read_string(r, &value->text);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        value->type = TD_JSON_NUMBER;
        good = read_number(r, &value->text);
    } else {
        good = read_word(r, value);
    }
    if (good)
        r->json->values[at].next = r->json->count;
    return good;
}

tandem_status td_json_read(const char *text, size_t bytes, td_json *json, char *why,
                           size_t why_bytes)
{
    return td_json_read_within(text, bytes, TD_JSON_BYTES, TD_JSON_VALUES, json, why, why_bytes);
}

uint32_t td_json_member(const td_json *json, uint32_t of, const char *name)
{
    if (json->values[of].type != TD_JSON_OBJECT)
        return 0;
    TD_JSON_EACH (json, of, i)
        if (!strcmp(json->values[i].name, name))
            return i;
    return 0;
}

bool td_json_is_a(const td_json *json, uint32_t at, td_json_type type, const char *where, char *why,
                  size_t why_bytes)
{
    static const char *const names[] = {"null",     "true or false", "a number",
                                        "a string", "an array",      "an object"};
    const td_json_type found = json->values[at].type;

    if (found != type)
        td_text(why, why_bytes, "%s: is %s; it must be %s", where, names[found], names[type]);
    return found == type;
}

bool td_json_members(const td_json *json, uint32_t of, const char *where, const char *const *names,
                     uint32_t count, uint32_t needed, uint32_t *found, char *why, size_t why_bytes)
{
    memset(found, 0, count * sizeof *found);
    if (!td_json_is_a(json, of, TD_JSON_OBJECT, where, why, why_bytes))
        return false;
    TD_JSON_EACH (json, of, member) {
        const char *name = json->values[member].name;
        uint32_t which = 0;

        while (which < count && strcmp(names[which], name) != 0)
            which++;
        if (which == count)
            td_text(why, why_bytes, "%s: has a member \"" TD_NAME "\", which no such object has",
                    where, TD_NAMED(name));
        else if (found[which])
            td_text(why, why_bytes, "%s.%s: is there twice", where, name);
        if (which == count || found[which])
            return false;
        found[which] = member;
    }
    for (uint32_t i = 0; i < needed; i++)
        if (!found[i]) {
            td_text(why, why_bytes, "%s: lacks \"%s\"", where, names[i]);
            return false;
        }
    return true;
}

tandem_status td_json_read_within(const char *text, size_t bytes, size_t most_bytes,
                                  uint32_t most_values, td_json *json, char *why, size_t why_bytes)
{
    reader r = {.at = text,
                .end = text + bytes,
                .json = json,
                .line = 1,
                .most_values = most_values,
                .why = why,
                .why_bytes = why_bytes};

    *json = (td_json){0};
    if (bytes > most_bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL, "%zu bytes of JSON; there may be %zu",
                       bytes, most_bytes);
    json->texts = r.texts = malloc(2 * bytes + 1); /* a number of one digit takes two */
    if (!json->texts)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for %zu bytes of JSON",
                       bytes);
    if (read_value(&r, NULL) && next(&r))
        fail(&r, "something behind its end");
    else if (r.status == TANDEM_OK && r.at != r.end)
        fail(&r, "a 0 behind its end");
    if (r.status != TANDEM_OK)
        td_json_free(json);
    return r.status;
}

void td_json_free(td_json *json)
{
    free(json->values);
    free(json->texts);
    *json = (td_json){0};
}
