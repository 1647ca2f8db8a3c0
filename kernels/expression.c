/* Expressions, evaluated while they are read. See expression.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/expression.h"

#include <inttypes.h>

static const char ceil_div[] = "ceil_div";

/* How far a text has been read. */
typedef struct reader {
    const char *text, *at;
    const td_number *numbers;
    const uint32_t *values;
    uint32_t count, depth;
    bool evaluates;       /* else it is only checked, and what steps come to is not known */
    bool constant;        /* so far */
    tandem_status status; /* of the first thing that is wrong */
    char *why;
    size_t why_bytes;
} reader;

static int64_t sum(reader *r);

/* Says what is wrong unless something was before; what is left of the text is not read. */
static int64_t fail(reader *r, const char *what)
{
    if (r->status == TANDEM_OK)
        r->status = td_fail(r->why, r->why_bytes, TANDEM_ERROR_ARG, "\"" TD_NAME "\" %s",
                            TD_NAMED(r->text), what);
    r->at = "";
    return 0;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void skip_spaces(reader *r)
{
    while (*r->at == ' ')
        r->at++;
}

/* Takes a character if it comes next. */
static bool take(reader *r, char c)
{
    skip_spaces(r);
    if (*r->at != c)
        return false;
    r->at++;
    return true;
}

static size_t name_length(const char *at)
{
    size_t length = 0;
    while (is_letter(at[length]) || (length && is_digit(at[length])))
        length++;
    return length;
}

static int64_t divided(reader *r, int64_t a, int64_t b, bool up)
{
    if (!r->evaluates)
        return 1;
    if (a < 0 || b <= 0)
        return fail(r, "divides what is below 0, or not by 1 or more");
    return a / b + (up && a % b);
}

static int64_t literal(reader *r)
{
    int64_t value = 0;
    for (; is_digit(*r->at); r->at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *r->at - '0', &value))
            return fail(r, "has a number of more than 63 bits");
    return is_letter(*r->at) ? fail(r, "has letters right behind a number") : value;
}

static int64_t named(reader *r)
{
    const size_t length = name_length(r->at);
    char what[TD_EXPRESSION_BYTES + 32];
    if (length == strlen(ceil_div) && !memcmp(r->at, ceil_div, length)) {
        r->at += length;
        if (!take(r, '('))
            return fail(r, "has ceil_div without \"(\"");
        const int64_t a = sum(r);
        if (!take(r, ','))
            return fail(r, "has ceil_div without \",\"");
        const int64_t b = sum(r);
        return take(r, ')') ? divided(r, a, b, true) : fail(r, "lacks \")\"");
    }
    for (uint32_t i = 0; i < r->count; i++)
        if (strlen(r->numbers[i].name) == length && !memcmp(r->numbers[i].name, r->at, length)) {
            r->at += length;
            r->constant = false;
            return r->evaluates ? r->values[i] : 1;
        }
    td_text(what, sizeof what, "names \"%.*s\", which is no number", (int)length, r->at);
    return fail(r, what);
}

static int64_t term(reader *r)
{
    if (take(r, '(')) {
        const int64_t value = sum(r);
        return take(r, ')') ? value : fail(r, "lacks \")\"");
    }
    if (is_digit(*r->at))
        return literal(r);
    return is_letter(*r->at) ? named(r) : fail(r, "lacks a number, a name or \"(\"");
}

static int64_t product(reader *r)
{
    int64_t value = term(r);
    for (;;) {
        if (take(r, '*')) {
            const int64_t by = term(r);
            if (__builtin_mul_overflow(value, by, &value) && r->evaluates)
                return fail(r, "is beyond 64 bits");
        } else if (take(r, '/')) {
            value = divided(r, value, term(r), false);
        } else {
            return value;
        }
    }
}

static int64_t sum(reader *r)
{
    if (++r->depth > TD_EXPRESSION_DEPTH)
        return fail(r, "has too many parentheses within each other");
    int64_t value = product(r);
    for (;;) {
        if (take(r, '+')) {
            if (__builtin_add_overflow(value, product(r), &value) && r->evaluates)
                return fail(r, "is beyond 64 bits");
        } else if (take(r, '-')) {
            if (__builtin_sub_overflow(value, product(r), &value) && r->evaluates)
                return fail(r, "is beyond 64 bits");
        } else {
            r->depth--;
            return value;
        }
    }
}

static int64_t read_all(reader *r)
{
    r->at = r->text;
    r->constant = true;
    if (strlen(r->text) >= TD_EXPRESSION_BYTES)
        return fail(r, "is too long");
    const int64_t value = sum(r);
    skip_spaces(r);
    return *r->at ? fail(r, "has something behind its end") : value;
}

tandem_status td_expression_value(const char *text, const td_number *numbers,
                                  const uint32_t *values, uint32_t count, int64_t *value, char *why,
                                  size_t why_bytes)
{
    reader r = {.text = text,
                .numbers = numbers,
                .values = values,
                .count = count,
                .evaluates = true,
                .why = why,
                .why_bytes = why_bytes};
    *value = read_all(&r);
    return r.status;
}

tandem_status td_expression_check(const char *text, const td_number *numbers, uint32_t count,
                                  bool *constant, char *why, size_t why_bytes)
{
    reader r = {
        .text = text, .numbers = numbers, .count = count, .why = why, .why_bytes = why_bytes};
    read_all(&r);
    *constant = r.constant;
    return r.status;
}

bool td_number_name(const char *name)
{
    const size_t length = name_length(name);
    return length && !name[length] && strcmp(name, ceil_div) != 0;
}
