/* Grammars in GBNF: read into a tree, then compiled. See grammar.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdlib.h>

#include "engine_plugin/npc/grammar_tree.h"
#include "engine_plugin/npc/utf8.h"

enum { MOST_REPEATED = 10000 };

/* --- Characters --- */

static char peek(const td_grammar_parser *p)
{
    return p->at < p->end ? *p->at : 0;
}

static bool starts(const td_grammar_parser *p, const char *word)
{
    const size_t length = strlen(word);

    return (size_t)(p->end - p->at) >= length && !memcmp(p->at, word, length);
}

static bool take(td_grammar_parser *p, char c)
{
    if (peek(p) != c || p->at == p->end)
        return false;
    p->at++;
    return true;
}

/* Blanks and comments; `lines`: and over line ends. */
static void skip(td_grammar_parser *p, bool lines)
{
    for (; p->at < p->end; p->at++) {
        if (*p->at == '#')
            while (p->at + 1 < p->end && p->at[1] != '\n')
                p->at++;
        else if (*p->at == '\n' && lines)
            p->line++;
        else if (*p->at != ' ' && *p->at != '\t' && *p->at != '\r')
            return;
    }
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static uint32_t read_hex(td_grammar_parser *p, int digits)
{
    uint32_t value = 0;

    for (int i = 0; i < digits; i++, p->at++) {
        const char c = peek(p);
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;

        if (digit < 0) {
            td_grammar_fail_at(p, p->line, "an escape must have %d hexadecimal digits", digits);
            return 0;
        }
        value = value << 4 | (uint32_t)digit;
    }
    return value;
}

static uint32_t read_escape(td_grammar_parser *p)
{
    static const char letters[] = "nrt\\\"[]-^", stand_for[] = "\n\r\t\\\"[]-^";
    const char c = peek(p);
    const char *letter = c ? strchr(letters, c) : NULL;

    p->at += p->at < p->end;
    if (letter)
        return (uint8_t)stand_for[letter - letters];
    if (c == 'x')
        return read_hex(p, 2);
    if (c == 'u')
        return read_hex(p, 4);
    if (c == 'U')
        return read_hex(p, 8);
    td_grammar_fail_at(p, p->line, "\\%c is no escape", c > ' ' && c < 127 ? c : '?');
    return 0;
}

static uint32_t read_utf8(td_grammar_parser *p)
{
    static const uint8_t masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    size_t length;

    if (td_utf8_next(p->at, (size_t)(p->end - p->at), &length) != TD_UTF8_WHOLE) {
        td_grammar_fail_at(p, p->line, "broken UTF-8");
        return 0;
    }
    uint32_t value = (uint8_t)*p->at & masks[length];
    for (size_t i = 1; i < length; i++)
        value = value << 6 | ((uint8_t)p->at[i] & 0x3fu);
    p->at += length;
    return value;
}

static uint32_t read_character(td_grammar_parser *p)
{
    const uint32_t c = take(p, '\\') ? read_escape(p) : read_utf8(p);

    if (c > TD_MOST_CHARACTER || (c >= TD_FIRST_SURROGATE && c <= TD_LAST_SURROGATE))
        td_grammar_fail_at(p, p->line, "U+%04" PRIX32 " is no character", c);
    return c > TD_MOST_CHARACTER ? 0 : c;
}

/* --- Elements --- */

static td_grammar_node *new_node(td_grammar_parser *p, td_grammar_kind kind)
{
    td_grammar_node *made = td_arena_take(&p->arena, sizeof *made, _Alignof(td_grammar_node));

    if (!made) {
        td_grammar_no_memory(p);
        return NULL;
    }
    *made = (td_grammar_node){.kind = kind};
    return made;
}

/* "text" */
static td_grammar_node *read_text(td_grammar_parser *p)
{
    const uint32_t line = p->line;
    td_grammar_node *made = new_node(p, TD_GRAMMAR_TEXT);
    char *text = NULL;

    for (p->at++; p->status == TANDEM_OK && !take(p, '"');) {
        uint8_t bytes[4];
        uint32_t count;

        if (p->at == p->end || *p->at == '\n') {
            td_grammar_fail_at(p, line, "a text has no end");
            return NULL;
        }
        count = td_grammar_utf8(read_character(p), bytes);
        for (uint32_t i = 0; i < count && p->status == TANDEM_OK; i++) {
            text = td_arena_grow(&p->arena, text, made->count, 1, 1);
            if (!text)
                td_grammar_no_memory(p);
            else
                text[made->count++] = (char)bytes[i];
        }
    }
    if (made)
        made->text = text;
    return made;
}

static void add_range(td_grammar_parser *p, td_grammar_node *to, uint32_t first, uint32_t last)
{
    to->ranges = td_arena_grow(&p->arena, to->ranges, to->count, sizeof *to->ranges,
                               _Alignof(td_grammar_range));
    if (!to->ranges)
        td_grammar_no_memory(p);
    else
        to->ranges[to->count++] = (td_grammar_range){first, last};
}

/* From `first` on what is no surrogate, which UTF-8 does not have. */
static void add_characters(td_grammar_parser *p, td_grammar_node *to, uint32_t first, uint32_t last)
{
    if (first < TD_FIRST_SURROGATE)
        add_range(p, to, first, last < TD_FIRST_SURROGATE ? last : TD_FIRST_SURROGATE - 1);
    if (last > TD_LAST_SURROGATE && p->status == TANDEM_OK)
        add_range(p, to, first > TD_LAST_SURROGATE ? first : TD_LAST_SURROGATE + 1, last);
}

static int by_first(const void *a, const void *b)
{
    const td_grammar_range *x = a, *y = b;

    return x->first < y->first ? -1 : x->first > y->first;
}

/* In their order, none of which touch: */
static void merge_ranges(td_grammar_node *set)
{
    uint32_t count = 0;

    if (set->count)
        qsort(set->ranges, set->count, sizeof *set->ranges, by_first);
    for (uint32_t i = 0; i < set->count; i++) {
        if (count && set->ranges[i].first <= set->ranges[count - 1].last + 1) {
            if (set->ranges[i].last > set->ranges[count - 1].last)
                set->ranges[count - 1].last = set->ranges[i].last;
        } else {
            set->ranges[count++] = set->ranges[i];
        }
    }
    set->count = count;
}

static td_grammar_node *all_but(td_grammar_parser *p, const td_grammar_node *set)
{
    td_grammar_node *made = new_node(p, TD_GRAMMAR_SET);
    uint32_t next = 0;

    for (uint32_t i = 0; i < set->count && p->status == TANDEM_OK; i++) {
        if (set->ranges[i].first > next)
            add_characters(p, made, next, set->ranges[i].first - 1);
        next = set->ranges[i].last + 1;
    }
    if (p->status == TANDEM_OK && next <= TD_MOST_CHARACTER)
        add_characters(p, made, next, TD_MOST_CHARACTER);
    return made;
}

/* [a-z] */
static td_grammar_node *read_set(td_grammar_parser *p)
{
    const uint32_t line = p->line;
    td_grammar_node *made = new_node(p, TD_GRAMMAR_SET);
    bool others;

    p->at++;
    others = take(p, '^');
    while (p->status == TANDEM_OK && !take(p, ']')) {
        uint32_t first, last;

        if (p->at == p->end || *p->at == '\n') {
            td_grammar_fail_at(p, line, "a [ has no ]");
            return NULL;
        }
        first = last = read_character(p);
        if (p->end - p->at > 1 && *p->at == '-' && p->at[1] != ']') {
            p->at++;
            last = read_character(p);
        }
        if (last < first)
            td_grammar_fail_at(p, p->line, "a range ends before it begins");
        if (p->status == TANDEM_OK)
            add_characters(p, made, first, last);
    }
    if (p->status != TANDEM_OK)
        return NULL;
    merge_ranges(made);
    return others ? all_but(p, made) : made;
}

static td_grammar_node *read_any(td_grammar_parser *p)
{
    td_grammar_node *made = new_node(p, TD_GRAMMAR_SET);

    p->at++;
    if (made)
        add_characters(p, made, 0, TD_MOST_CHARACTER);
    return made;
}

/* The rule of a name, which may be defined later. */
static uint32_t find_rule(td_grammar_parser *p, const char *name, uint32_t bytes)
{
    uint32_t hash = 5381, *first;

    for (uint32_t i = 0; i < bytes; i++)
        hash = hash * 33 ^ (uint8_t)name[i];
    first = &p->by_hash[hash % TD_RULE_HASHES];
    for (uint32_t i = *first; i; i = p->rules[i - 1].next)
        if (p->rules[i - 1].bytes == bytes && !memcmp(p->rules[i - 1].name, name, bytes))
            return i - 1;
    td_grammar_rule *rules =
        td_arena_grow(&p->arena, p->rules, p->rule_count, sizeof *rules, _Alignof(td_grammar_rule));
    if (!rules) {
        td_grammar_no_memory(p);
        return 0;
    }
    p->rules = rules;
    p->rules[p->rule_count] = (td_grammar_rule){name, bytes, p->line, NULL, *first};
    *first = ++p->rule_count;
    return *first - 1;
}

static uint32_t read_name(td_grammar_parser *p)
{
    const char *name = p->at;

    while (is_name(peek(p)))
        p->at++;
    return find_rule(p, name, (uint32_t)(p->at - name));
}

static td_grammar_node *read_choice(td_grammar_parser *p, bool within);

static td_grammar_node *read_group(td_grammar_parser *p)
{
    const uint32_t line = p->line;
    td_grammar_node *made;

    if (++p->depth > TD_GRAMMAR_DEPTH)
        td_grammar_fail_at(p, p->line, "more than %d parentheses in each other", TD_GRAMMAR_DEPTH);
    p->at++;
    made = p->status == TANDEM_OK ? read_choice(p, true) : NULL;
    if (p->status == TANDEM_OK && !take(p, ')'))
        td_grammar_fail_at(p, line, "a ( has no )");
    p->depth--;
    return made;
}

/* --- Repetitions --- */

static uint32_t read_count(td_grammar_parser *p)
{
    uint32_t count = 0;

    if (peek(p) < '0' || peek(p) > '9')
        td_grammar_fail_at(p, p->line, "a number is missing within { }");
    while (p->status == TANDEM_OK && peek(p) >= '0' && peek(p) <= '9') {
        count = 10 * count + (uint32_t)(*p->at++ - '0');
        if (count > MOST_REPEATED)
            td_grammar_fail_at(p, p->line, "more than %d repetitions", MOST_REPEATED);
    }
    return count;
}

static td_grammar_node *repeat(td_grammar_parser *p, td_grammar_node *what, uint32_t least,
                               uint32_t most)
{
    td_grammar_node *made = new_node(p, TD_GRAMMAR_REPEAT);
    td_grammar_node **kid =
        td_arena_take(&p->arena, sizeof(td_grammar_node *), _Alignof(td_grammar_node *));

    if (!kid)
        td_grammar_no_memory(p);
    if (!made || !kid)
        return NULL;
    *kid = what;
    made->kids = kid;
    made->count = 1;
    made->least = least;
    made->most = most;
    return made;
}

/* {n} {n,} {n,m} */
static td_grammar_node *read_counts(td_grammar_parser *p, td_grammar_node *what)
{
    uint32_t least, most;

    skip(p, false);
    least = most = read_count(p);
    skip(p, false);
    if (take(p, ',')) {
        skip(p, false);
        most = peek(p) == '}' ? TD_NO_LIMIT : read_count(p);
        skip(p, false);
    }
    if (p->status == TANDEM_OK && !take(p, '}'))
        td_grammar_fail_at(p, p->line, "a { has no }");
    if (most < least)
        td_grammar_fail_at(p, p->line, "at most %" PRIu32 " repetitions are fewer than %" PRIu32,
                           most, least);
    return repeat(p, what, least, most);
}

/* Any of ? * + { behind an element; more than one is as if the first had parentheses. */
static td_grammar_node *read_repetition(td_grammar_parser *p, td_grammar_node *what)
{
    for (int marks = 0; p->status == TANDEM_OK; marks++) {
        if (marks > TD_GRAMMAR_DEPTH)
            td_grammar_fail_at(p, p->line, "more than %d marks behind an element",
                               TD_GRAMMAR_DEPTH);
        else if (take(p, '?'))
            what = repeat(p, what, 0, 1);
        else if (take(p, '*'))
            what = repeat(p, what, 0, TD_NO_LIMIT);
        else if (take(p, '+'))
            what = repeat(p, what, 1, TD_NO_LIMIT);
        else if (take(p, '{'))
            what = read_counts(p, what);
        else
            break;
    }
    return what;
}

/* --- Rules --- */

static void add_kid(td_grammar_parser *p, td_grammar_node *to, td_grammar_node *kid)
{
    if (p->status != TANDEM_OK)
        return;
    to->kids = td_arena_grow(&p->arena, to->kids, to->count, sizeof *to->kids,
                             _Alignof(td_grammar_node *));
    if (!to->kids)
        td_grammar_no_memory(p);
    else
        to->kids[to->count++] = kid;
}

static td_grammar_node *read_element(td_grammar_parser *p)
{
    const char c = peek(p);
    td_grammar_node *made;

    if (c == '"')
        return read_text(p);
    if (c == '[')
        return read_set(p);
    if (c == '.')
        return read_any(p);
    if (c == '(')
        return read_group(p);
    made = new_node(p, TD_GRAMMAR_RULE);
    if (made)
        made->rule = read_name(p);
    return made;
}

static td_grammar_node *read_sequence(td_grammar_parser *p, bool within)
{
    td_grammar_node *made = new_node(p, TD_GRAMMAR_SEQUENCE);

    for (skip(p, within); p->status == TANDEM_OK; skip(p, within)) {
        const char c = peek(p);
        td_grammar_node *element;

        if (c != '"' && c != '[' && c != '.' && c != '(' && !is_name(c))
            break;
        element = read_element(p);
        if (p->status == TANDEM_OK)
            add_kid(p, made, read_repetition(p, element));
    }
    return made;
}

/* Takes a "|", which may stand in a line to come. */
static bool take_bar(td_grammar_parser *p)
{
    const char *at = p->at;
    const uint32_t line = p->line;

    skip(p, true);
    if (take(p, '|'))
        return true;
    p->at = at;
    p->line = line;
    return false;
}

/* `within`: parentheses, where lines end nothing. */
static td_grammar_node *read_choice(td_grammar_parser *p, bool within)
{
    td_grammar_node *made = new_node(p, TD_GRAMMAR_CHOICE);

    do {
        skip(p, true); /* each alternative may begin in a line of its own */
        add_kid(p, made, read_sequence(p, within));
    } while (p->status == TANDEM_OK && take_bar(p));
    return made;
}

static void read_rule(td_grammar_parser *p)
{
    const uint32_t line = p->line;
    uint32_t which;
    td_grammar_node *body;

    if (!is_name(peek(p))) {
        td_grammar_fail_at(p, line, "a rule must begin with its name");
        return;
    }
    which = read_name(p);
    skip(p, false);
    if (p->status == TANDEM_OK && !starts(p, "::="))
        td_grammar_fail_at(p, line, "::= is missing behind '%.*s'", (int)p->rules[which].bytes,
                           p->rules[which].name);
    if (p->status == TANDEM_OK && p->rules[which].body)
        td_grammar_fail_at(p, line, "'%.*s' is defined twice", (int)p->rules[which].bytes,
                           p->rules[which].name);
    if (p->status != TANDEM_OK)
        return;
    p->at += 3;
    body = read_choice(p, false);
    if (p->status == TANDEM_OK && p->at < p->end && *p->at != '\n')
        td_grammar_fail_at(p, p->line, "'%c' has no meaning here",
                           *p->at > ' ' && *p->at < 127 ? *p->at : '?');
    if (p->status == TANDEM_OK)
        p->rules[which].body = body;
}

static void read_rules(td_grammar_parser *p)
{
    for (skip(p, true); p->status == TANDEM_OK && p->at < p->end; skip(p, true))
        read_rule(p);
    for (uint32_t i = 0; i < p->rule_count; i++)
        if (!p->rules[i].body)
            td_grammar_fail_at(p, p->rules[i].line, "'%.*s' is defined nowhere",
                               (int)p->rules[i].bytes, p->rules[i].name);
}

/* --- The whole --- */

tandem_status td_grammar_create(const char *text, size_t bytes, td_grammar **out, char *why,
                                size_t why_bytes)
{
    td_grammar_parser p = {
        .at = text, .end = text + bytes, .line = 1, .why = why, .why_bytes = why_bytes};
    uint32_t root;

    *out = NULL;
    if (bytes > TD_GRAMMAR_BYTES)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "a grammar of %zu bytes; it may have at most %d", bytes, TD_GRAMMAR_BYTES);
    p.made = calloc(1, sizeof *p.made);
    if (!p.made)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a grammar");
    read_rules(&p);
    root = find_rule(&p, "root", 4);
    if (p.status == TANDEM_OK && !p.rules[root].body)
        p.status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "there is no rule 'root'");
    if (p.status == TANDEM_OK)
        td_grammar_compile(&p, root);
    td_arena_free(&p.arena);
    if (p.status != TANDEM_OK) {
        td_grammar_destroy(&p.made);
        return p.status;
    }
    *out = p.made;
    return TANDEM_OK;
}

void td_grammar_destroy(td_grammar **grammar)
{
    td_grammar *g = *grammar;

    if (!g)
        return;
    free(g->steps);
    free(g->rules);
    free(g);
    *grammar = NULL;
}
