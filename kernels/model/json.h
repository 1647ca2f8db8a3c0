/* JSON texts: read without trusting a byte of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A text becomes a list of values in its order, an object's and array's members right behind it.
 * Memory is bounded by TD_JSON_VALUES and the text's length.
 */
#ifndef TANDEM_JSON_H
#define TANDEM_JSON_H

#include "interop/base.h"

enum { TD_JSON_VALUES = 1 << 18, TD_JSON_DEPTH = 32, TD_JSON_BYTES = 16 << 20 }; /* at most */

typedef enum td_json_type {
    TD_JSON_NULL = 0,
    TD_JSON_BOOL = 1,
    TD_JSON_NUMBER = 2,
    TD_JSON_STRING = 3,
    TD_JSON_ARRAY = 4,
    TD_JSON_OBJECT = 5
} td_json_type;

typedef struct td_json_value {
    td_json_type type;
    const char *name; /* of an object's member; else NULL */
    const char *text; /* a string; a number or word as it was written */
    uint32_t count;   /* of an array's or object's members */
    uint32_t next;    /* which value comes behind it and all that it has */
} td_json_value;

typedef struct td_json {
    td_json_value *values; /* the first is all of it; its members are the next ones */
    uint32_t count;
    char *texts;
} td_json;

/* PROTOCOL, saying in which line what is wrong: no JSON, more than the limits above, a string with
 * a 0 or that is no UTF-8; NOMEM. On failure *json is empty. Names that are twice in an object are
 * the caller's to find. */
tandem_status td_json_read(const char *text, size_t bytes, td_json *json, char *why,
                           size_t why_bytes);
/* The same within other limits than TD_JSON_BYTES and TD_JSON_VALUES. */
tandem_status td_json_read_within(const char *text, size_t bytes, size_t most_bytes,
                                  uint32_t most_values, td_json *json, char *why, size_t why_bytes);
/* Accepts empty ones. */
void td_json_free(td_json *json);

/* A member of an object by name, as its index; 0 where it has none, or is no object. */
uint32_t td_json_member(const td_json *json, uint32_t of, const char *name);

/* Whether a value is of its type; if not, what it is instead is said of `where`. */
bool td_json_is_a(const td_json *json, uint32_t at, td_json_type type, const char *where, char *why,
                  size_t why_bytes);
/* An object's members by their names, as indices of values; 0: it is not there, which is wrong of
 * the first `needed` ones. False, and why: it is no object, lacks one, or has one twice, or another. */
bool td_json_members(const td_json *json, uint32_t of, const char *where, const char *const *names,
                     uint32_t count, uint32_t needed, uint32_t *found, char *why, size_t why_bytes);

/* Each member of the array or object `of`, as its index. */
#define TD_JSON_EACH(json, of, member)                                                             \
    for (uint32_t member = (of) + 1, left_ = (json)->values[of].count; left_;                      \
         left_--, member = (json)->values[member].next)

#endif
