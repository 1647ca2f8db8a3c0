/* Members of a request's JSON. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/serve/serve.h"

enum { MUST_BYTES = 300, VALUE_BYTES = 80 };

/* As it came, but not all of what is long. */
static void write_value(const json_t *value, char to[VALUE_BYTES])
{
    char *text =
        value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    const bool is_long = text && strlen(text) >= VALUE_BYTES;

    snprintf(to, VALUE_BYTES, "%.*s%s", is_long ? VALUE_BYTES - 4 : VALUE_BYTES,
             !value ? "missing"
             : text ? text
                    : "?",
             is_long ? "..." : "");
    free(text);
}

void serve_refuse(serve_reader *r, const char *name, const json_t *value, const char *must, ...)
{
    char what[MUST_BYTES], is[VALUE_BYTES];
    va_list args;

    if (!r->ok)
        return;
    va_start(args, must);
    td_text_list(what, sizeof what, must, args);
    va_end(args);
    write_value(value, is);
    td_text(r->why, r->why_bytes, "'%s' is %s; %s", name, is, what);
    snprintf(r->ask->param, sizeof r->ask->param, "%s", name);
    r->ok = false;
}

void serve_refuse_memory(serve_reader *r, const char *name)
{
    if (r->ok)
        td_text(r->why, r->why_bytes, "no memory for '%s'", name);
    r->ok = false;
}

void serve_becomes(serve_reader *r, const char *name, const char *argument)
{
    serve_ask *a = r->ask;
    uint32_t i = 0;

    while (i < a->origin_count && strcmp(a->origins[i].argument, argument))
        i++;
    if (i == SERVE_ORIGINS)
        return;
    a->origins[i] = (serve_origin){argument, name};
    a->origin_count += i == a->origin_count;
}

/* Whether a name has more than its first bytes. */
static bool goes_on(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

void serve_name_member(serve_ask *ask, char *why, size_t why_bytes)
{
    char rest[SERVE_WHY_BYTES];

    for (uint32_t i = 0; i < ask->origin_count; i++) {
        const serve_origin *o = &ask->origins[i];
        const size_t bytes = strlen(o->argument);

        if (strncmp(why, o->argument, bytes) || goes_on(why[bytes]))
            continue;
        snprintf(rest, sizeof rest, "%s", why + bytes);
        td_text(why, why_bytes, "'%s'%s", o->member, rest);
        snprintf(ask->param, sizeof ask->param, "%s", o->member);
        return;
    }
}

json_t *serve_member(const serve_reader *r, const char *name)
{
    json_t *value = json_object_get(r->ask->root, name);

    return json_is_null(value) ? NULL : value;
}

float serve_read_number(serve_reader *r, const char *name, float otherwise, double least,
                        double most)
{
    const json_t *value = serve_member(r, name);

    if (!value)
        return otherwise;
    if (!json_is_number(value) || !(json_number_value(value) >= least) ||
        !(json_number_value(value) <= most))
        serve_refuse(r, name, value, "it must be a number from %g to %g", least, most);
    return (float)json_number_value(value);
}

uint32_t serve_read_count(serve_reader *r, const char *name, uint32_t otherwise, uint32_t least,
                          uint32_t most)
{
    const json_t *value = serve_member(r, name);

    if (!value)
        return otherwise;
    if (!json_is_integer(value) || json_integer_value(value) < least ||
        json_integer_value(value) > most)
        serve_refuse(r, name, value, "it must be a whole number from %u to %u", (unsigned)least,
                     (unsigned)most);
    return (uint32_t)json_integer_value(value);
}

bool serve_read_flag(serve_reader *r, const char *name, bool otherwise)
{
    const json_t *value = serve_member(r, name);

    if (value && !json_is_boolean(value))
        serve_refuse(r, name, value, "it must be true or false");
    return value ? json_is_true(value) : otherwise;
}

const char *serve_read_text(serve_reader *r, const char *name)
{
    const json_t *value = serve_member(r, name);

    if (value && !json_is_string(value))
        serve_refuse(r, name, value, "it must be a string");
    return json_string_value(value);
}
