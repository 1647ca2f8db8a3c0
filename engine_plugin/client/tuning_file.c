/* Tables of `tandem tune` as files. See tuning_file.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/client/tuning_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <string.h>

#include "interop/base.h"

static const float most_us = 1e9f;

typedef struct reader {
    char *why;
    size_t why_bytes;
} reader;

__attribute__((format(TD_PRINTF, 2, 3))) static bool refuse(const reader *r, const char *format, ...)
{
    if (r->why && r->why_bytes) {
        va_list list;
        va_start(list, format);
        td_text_list(r->why, r->why_bytes, format, list);
        va_end(list);
    }
    return false;
}

static bool only_known(const reader *r, json_t *object, const char *what, const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        bool found = false;
        for (int i = 0; known[i] && !found; i++)
            found = strcmp(key, known[i]) == 0;
        if (!found)
            return refuse(r, "%s has a member \"%.40s\", which is not known", what, key);
    }
    return true;
}

static bool read_number(const reader *r, json_t *object, const char *what, const char *key, json_int_t least,
                        json_int_t most, uint32_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        return refuse(r, "%s.%s is missing or no whole number", what, key);
    if (json_integer_value(value) < least || json_integer_value(value) > most)
        return refuse(r, "%s.%s is %" PRId64 "; it must be from %" PRId64 " to %" PRId64, what, key,
                      (int64_t)json_integer_value(value), (int64_t)least, (int64_t)most);
    *out = (uint32_t)json_integer_value(value);
    return true;
}

static bool read_times(const reader *r, json_t *part, const char *what, const char *key, td_tuning_times out)
{
    json_t *planes = json_object_get(part, key);
    memset(out, 0, sizeof(td_tuning_times));
    if (!planes || json_is_null(planes))
        return true;
    if (!json_is_array(planes) || json_array_size(planes) != TD_TUNING_PLANES)
        return refuse(r, "%s.%s is no array of %d", what, key, TD_TUNING_PLANES);
    for (size_t i = 0; i < TD_TUNING_PLANES; i++) {
        json_t *lengths = json_array_get(planes, i);
        if (!json_is_array(lengths) || json_array_size(lengths) != TD_TUNING_LENGTHS)
            return refuse(r, "%s.%s[%zu] is no array of %d", what, key, i, TD_TUNING_LENGTHS);
        for (size_t j = 0; j < TD_TUNING_LENGTHS; j++) {
            const json_t *value = json_array_get(lengths, j);
            if (json_is_null(value))
                continue;
            const double us = json_number_value(value);
            if (!json_is_number(value) || !(us > 1e-3 && us < (double)most_us))
                return refuse(r, "%s.%s[%zu][%zu] is %g; it must be null, or microseconds above 0.001 and below %g",
                              what, key, i, j, us, (double)most_us);
            out[i][j] = (float)us;
        }
    }
    return true;
}

static bool read_cost(const reader *r, json_t *part, const char *of, const char *key, td_tuning_cost *out)
{
    static const char *const known[] = {"kernel", "prologue", "few", NULL};
    json_t *cost = json_object_get(part, key);
    char what[48];
    snprintf(what, sizeof what, "%s.%s", of, key);
    memset(out, 0, sizeof *out);
    if (!cost || json_is_null(cost))
        return true;
    if (!json_is_object(cost))
        return refuse(r, "%s is no object", what);
    return only_known(r, cost, what, known) && read_times(r, cost, what, "kernel", out->kernel) &&
           read_times(r, cost, what, "prologue", out->prologue) && read_times(r, cost, what, "few", out->few);
}

static bool read_part(const reader *r, json_t *json, size_t index, td_tuning_table *out)
{
    static const char *const known[] = {"head_dim", "causal", "f16", "8b", "4b", NULL};
    td_tuning_part *part = &out->parts[out->count];
    char what[32];
    snprintf(what, sizeof what, "parts[%zu]", index);
    if (!json_is_object(json))
        return refuse(r, "%s is no object", what);
    if (!only_known(r, json, what, known) || !read_number(r, json, what, "head_dim", 1, 256, &part->head_dim) ||
        !read_number(r, json, what, "causal", 0, 1, &part->causal))
        return false;
    for (int i = 0; i < TD_TUNING_COSTS; i++)
        if (!read_cost(r, json, what, known[2 + i], &part->costs[i]))
            return false;
    if (td_tuning_part_of(out, part->head_dim, part->causal))
        return refuse(r, "%s is for head_dim %" PRIu32 ", causal %" PRIu32 " again", what, part->head_dim,
                      part->causal);
    out->count++;
    return true;
}

static bool read_table(const reader *r, json_t *json, td_tuning_table *out)
{
    static const char *const known[] = {"tandem", "version", "device", "sm", "multiprocessors", "parts", NULL};
    const char *kind = json_string_value(json_object_get(json, "tandem"));
    const char *device = json_string_value(json_object_get(json, "device"));
    json_t *parts = json_object_get(json, "parts");
    uint32_t version;
    if (!json_is_object(json) || !kind || strcmp(kind, "choice") != 0)
        return refuse(r, "this is no table of `tandem tune`: \"tandem\" is not \"choice\"");
    if (!read_number(r, json, "the table", "version", 2, 2, &version) || !only_known(r, json, "the table", known) ||
        !read_number(r, json, "the table", "sm", 10, 999, &out->sm) ||
        !read_number(r, json, "the table", "multiprocessors", 1, 4096, &out->multiprocessors))
        return false;
    if (!device || strlen(device) >= sizeof out->device)
        return refuse(r, "the table.device is missing, or longer than %d bytes", TD_TUNING_DEVICE - 1);
    strcpy(out->device, device);
    if (!json_is_array(parts) || !json_array_size(parts) || json_array_size(parts) > TD_TUNING_PARTS)
        return refuse(r, "the table.parts is no array of 1 to %d", TD_TUNING_PARTS);
    for (size_t i = 0; i < json_array_size(parts); i++)
        if (!read_part(r, json_array_get(parts, i), i, out))
            return false;
    return true;
}

tandem_status td_tuning_parse(const char *text, size_t bytes, td_tuning_table *out, char *why, size_t why_bytes)
{
    const reader r = {why, why_bytes};
    json_error_t error;
    memset(out, 0, sizeof *out);
    if (bytes > TD_TUNING_MOST_TEXT) {
        refuse(&r, "the table has %zu bytes; at most %d are read", bytes, TD_TUNING_MOST_TEXT);
        return TANDEM_ERROR_ARG;
    }
    json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!json)
        refuse(&r, "the table is no JSON: line %d: %s", error.line, error.text);
    const bool good = json && read_table(&r, json, out);
    json_decref(json);
    if (!good)
        memset(out, 0, sizeof *out);
    return good ? TANDEM_OK : TANDEM_ERROR_ARG;
}
