/* Grammars as steps, and which rules come back to themselves. See grammar.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdlib.h>

#include "engine_plugin/npc/grammar_tree.h"

/* --- What is wrong --- */

void td_grammar_fail_at(td_grammar_parser *p, uint32_t line, const char *format, ...)
{
    char what[200];
    va_list args;

    if (p->status != TANDEM_OK)
        return;
    va_start(args, format);
    td_text_list(what, sizeof what, format, args);
    va_end(args);
    p->status = td_fail(p->why, p->why_bytes, TANDEM_ERROR_ARG, "line %" PRIu32 ": %s", line, what);
}

void td_grammar_no_memory(td_grammar_parser *p)
{
    if (p->status == TANDEM_OK)
        p->status = td_fail(p->why, p->why_bytes, TANDEM_ERROR_NOMEM, "no memory for a grammar");
}

/* --- Compiling --- */

uint32_t td_grammar_utf8(uint32_t c, uint8_t to[4])
{
    const uint32_t count = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t marks[] = {0, 0, 0xc0, 0xe0, 0xf0};

    for (uint32_t i = count; i-- > 1; c >>= 6)
        to[i] = (uint8_t)(0x80 | (c & 0x3f));
    to[0] = (uint8_t)(marks[count] | c);
    return count;
}

static uint32_t here(const td_grammar_parser *p)
{
    return p->made->step_count;
}

static uint32_t emit(td_grammar_parser *p, td_grammar_step step)
{
    td_grammar *g = p->made;

    if (p->status != TANDEM_OK)
        return 0;
    if (g->step_count == TD_GRAMMAR_SIZE) {
        p->status = td_fail(p->why, p->why_bytes, TANDEM_ERROR_ARG,
                            "it has more than %d elements, repetitions counted", TD_GRAMMAR_SIZE);
        return 0;
    }
    if (g->step_count == p->room) {
        td_grammar_step *more = realloc(g->steps, (2 * p->room + 64) * sizeof *more);

        if (!more) {
            td_grammar_no_memory(p);
            return 0;
        }
        g->steps = more;
        p->room = 2 * p->room + 64;
    }
    g->steps[g->step_count] = step;
    return g->step_count++;
}

static uint32_t emit_byte(td_grammar_parser *p, uint8_t low, uint8_t high)
{
    return emit(p, (td_grammar_step){.op = TD_GRAMMAR_BYTE, .low = low, .high = high});
}

/* A step whose ends are not known yet. */
static uint32_t emit_open(td_grammar_parser *p, td_grammar_op op)
{
    return emit(p, (td_grammar_step){.op = (uint8_t)op});
}

static void set_ends(td_grammar_parser *p, uint32_t step, uint32_t a, uint32_t b)
{
    if (p->status != TANDEM_OK)
        return;
    p->made->steps[step].a = a;
    p->made->steps[step].b = b;
}

/* Alternatives one after the other: each begins with a SPLIT to the next, and each but the last
 * ends with a JUMP to the end of all; those jumps are a list until that is known. */
typedef struct alternatives {
    uint32_t split, jumps;
} alternatives;
#define NO_STEP UINT32_MAX

static alternatives begin_alternatives(void)
{
    return (alternatives){NO_STEP, NO_STEP};
}

static void next_alternative(td_grammar_parser *p, alternatives *a)
{
    if (a->split != NO_STEP) {
        const uint32_t jump = emit_open(p, TD_GRAMMAR_JUMP);

        set_ends(p, jump, a->jumps, 0);
        a->jumps = jump;
        set_ends(p, a->split, a->split + 1, here(p));
    }
    a->split = emit_open(p, TD_GRAMMAR_SPLIT);
}

/* Behind the last there is no other. */
static void end_alternatives(td_grammar_parser *p, const alternatives *a)
{
    if (a->split != NO_STEP)
        set_ends(p, a->split, a->split + 1, a->split + 1);
    for (uint32_t jump = a->jumps, next; jump != NO_STEP && p->status == TANDEM_OK; jump = next) {
        next = p->made->steps[jump].a;
        set_ends(p, jump, here(p), 0);
    }
}

/* Characters of one length, first to last, as ranges of bytes: where they differ in more than the
 * last byte, the ends may be cut off those in the middle, in which later bytes are any. */
static void emit_bytes(td_grammar_parser *p, alternatives *a, const uint8_t *first,
                       const uint8_t *last, uint32_t count)
{
    next_alternative(p, a);
    for (uint32_t i = 0; i < count; i++)
        emit_byte(p, first[i], last[i]);
}

static void emit_characters(td_grammar_parser *p, alternatives *a, uint32_t first, uint32_t last)
{
    static const uint32_t most[] = {0x7f, 0x7ff, 0xffff, TD_MOST_CHARACTER};
    uint8_t low[4], high[4];

    if (p->status != TANDEM_OK)
        return;
    for (int i = 0; i < 3; i++)
        if (first <= most[i] && last > most[i]) {
            emit_characters(p, a, first, most[i]);
            emit_characters(p, a, most[i] + 1, last);
            return;
        }
    for (uint32_t bits = 6; bits <= 18 && first > 0x7f; bits += 6) {
        const uint32_t rest = (1u << bits) - 1;

        if ((first & ~rest) == (last & ~rest))
            break;
        if (first & rest) {
            emit_characters(p, a, first, first | rest);
            emit_characters(p, a, (first | rest) + 1, last);
            return;
        }
        if ((last & rest) != rest) {
            emit_characters(p, a, first, (last & ~rest) - 1);
            emit_characters(p, a, last & ~rest, last);
            return;
        }
    }
    const uint32_t count = td_grammar_utf8(first, low);
    td_grammar_utf8(last, high);
    emit_bytes(p, a, low, high, count);
}

static void compile_set(td_grammar_parser *p, const td_grammar_node *set)
{
    alternatives a = begin_alternatives();

    for (uint32_t i = 0; i < set->count; i++)
        emit_characters(p, &a, set->ranges[i].first, set->ranges[i].last);
    if (!set->count)
        emit_byte(p, 1, 0); /* which no byte is */
    end_alternatives(p, &a);
}

static void compile(td_grammar_parser *p, const td_grammar_node *n);

static void compile_choice(td_grammar_parser *p, const td_grammar_node *n)
{
    alternatives a = begin_alternatives();

    for (uint32_t i = 0; i < n->count; i++) {
        next_alternative(p, &a);
        compile(p, n->kids[i]);
    }
    end_alternatives(p, &a);
}

static void compile_repeat(td_grammar_parser *p, const td_grammar_node *n)
{
    uint32_t skips = NO_STEP; /* a list of SPLITs past the end */

    for (uint32_t i = 0; i < n->least && p->status == TANDEM_OK; i++)
        compile(p, n->kids[0]);
    if (n->most == TD_NO_LIMIT) {
        const uint32_t split = emit_open(p, TD_GRAMMAR_SPLIT);

        compile(p, n->kids[0]);
        set_ends(p, emit_open(p, TD_GRAMMAR_JUMP), split, 0);
        set_ends(p, split, split + 1, here(p));
        return;
    }
    for (uint32_t i = n->least; i < n->most && p->status == TANDEM_OK; i++) {
        const uint32_t split = emit_open(p, TD_GRAMMAR_SPLIT);

        set_ends(p, split, split + 1, skips);
        skips = split;
        compile(p, n->kids[0]);
    }
    for (uint32_t split = skips, next; split != NO_STEP && p->status == TANDEM_OK; split = next) {
        next = p->made->steps[split].b;
        set_ends(p, split, split + 1, here(p));
    }
}

static void compile(td_grammar_parser *p, const td_grammar_node *n)
{
    if (p->status == TANDEM_OK && ++p->work > TD_GRAMMAR_SIZE)
        p->status = td_fail(p->why, p->why_bytes, TANDEM_ERROR_ARG,
                            "it has more than %d elements, repetitions counted", TD_GRAMMAR_SIZE);
    if (p->status != TANDEM_OK)
        return;
    switch (n->kind) {
    case TD_GRAMMAR_TEXT:
        for (uint32_t i = 0; i < n->count; i++)
            emit_byte(p, (uint8_t)n->text[i], (uint8_t)n->text[i]);
        return;
    case TD_GRAMMAR_SET:
        compile_set(p, n);
        return;
    case TD_GRAMMAR_RULE:
        emit(p, (td_grammar_step){.op = TD_GRAMMAR_CALL, .a = n->rule});
        return;
    case TD_GRAMMAR_SEQUENCE:
        for (uint32_t i = 0; i < n->count; i++)
            compile(p, n->kids[i]);
        return;
    case TD_GRAMMAR_CHOICE:
        compile_choice(p, n);
        return;
    case TD_GRAMMAR_REPEAT:
        compile_repeat(p, n);
        return;
    }
}

/* --- Rules that come back to themselves before a character is read --- */

/* A rule whose steps are followed as far as no byte is read. Those of a rule that it calls are
 * followed first, to know whether that can be nothing at all. So each step is looked at once. */
typedef struct walk {
    uint32_t rule, below; /* of `ahead`, what was there before */
    uint32_t behind;      /* the step at which the caller goes on */
} walk;

typedef struct walker {
    walk *walks; /* [rules] */
    uint32_t walk_count;
    uint32_t *ahead; /* [2 steps + 2]: steps that are yet to be looked at */
    uint32_t ahead_count;
    bool *seen;          /* [steps] */
    bool *empty, *begun; /* [rules]: it can be nothing; it is or was followed, */
    bool *done;          /* and was */
} walker;

static void enter(const td_grammar *g, walker *w, uint32_t rule, uint32_t behind)
{
    w->begun[rule] = true;
    w->walks[w->walk_count++] = (walk){rule, w->ahead_count, behind};
    w->ahead[w->ahead_count++] = g->rules[rule];
}

static void leave(walker *w)
{
    const walk left = w->walks[--w->walk_count];

    w->done[left.rule] = true;
    if (w->walk_count && w->empty[left.rule])
        w->ahead[w->ahead_count++] = left.behind;
}

static void follow(td_grammar_parser *p, walker *w)
{
    const td_grammar *g = p->made;
    const uint32_t at = w->ahead[--w->ahead_count];
    const td_grammar_step *step = &g->steps[at];

    if (w->seen[at])
        return;
    w->seen[at] = true;
    switch ((td_grammar_op)step->op) {
    case TD_GRAMMAR_SPLIT:
        w->ahead[w->ahead_count++] = step->b;
        w->ahead[w->ahead_count++] = step->a;
        return;
    case TD_GRAMMAR_JUMP:
        w->ahead[w->ahead_count++] = step->a;
        return;
    case TD_GRAMMAR_CALL:
        if (!w->begun[step->a])
            enter(g, w, step->a, at + 1);
        else if (!w->done[step->a])
            td_grammar_fail_at(p, p->rules[step->a].line,
                               "'%.*s' comes back to itself before a character is read",
                               (int)p->rules[step->a].bytes, p->rules[step->a].name);
        else if (w->empty[step->a])
            w->ahead[w->ahead_count++] = at + 1;
        return;
    case TD_GRAMMAR_RETURN:
        w->empty[w->walks[w->walk_count - 1].rule] = true;
        return;
    case TD_GRAMMAR_BYTE:
        return;
    }
}

static void check_recursion(td_grammar_parser *p)
{
    const td_grammar *g = p->made;
    walker w = {.walks = calloc(g->rule_count, sizeof *w.walks),
                .ahead = calloc(2 * (size_t)g->step_count + 2, sizeof *w.ahead),
                .seen = calloc(g->step_count, 1),
                .empty = calloc(g->rule_count, 1),
                .begun = calloc(g->rule_count, 1),
                .done = calloc(g->rule_count, 1)};

    if (!w.walks || !w.ahead || !w.seen || !w.empty || !w.begun || !w.done)
        td_grammar_no_memory(p);
    for (uint32_t rule = 0; rule < g->rule_count && p->status == TANDEM_OK; rule++) {
        if (!w.begun[rule])
            enter(g, &w, rule, 0);
        while (w.walk_count && p->status == TANDEM_OK)
            if (w.ahead_count == w.walks[w.walk_count - 1].below)
                leave(&w);
            else
                follow(p, &w);
    }
    free(w.walks);
    free(w.ahead);
    free(w.seen);
    free(w.empty);
    free(w.begun);
    free(w.done);
}

/* --- The whole --- */

static void find_classes(td_grammar *g)
{
    bool begins[257] = {false};

    for (uint32_t i = 0; i < g->step_count; i++)
        if (g->steps[i].op == TD_GRAMMAR_BYTE)
            begins[g->steps[i].low] = begins[g->steps[i].high + 1] = true;
    g->class_count = 1;
    for (int byte = 1; byte < 256; byte++) {
        g->class_count += begins[byte];
        g->class_of[byte] = (uint8_t)(g->class_count - 1);
    }
}

void td_grammar_compile(td_grammar_parser *p, uint32_t root)
{
    td_grammar *g = p->made;

    g->rules = calloc(p->rule_count, sizeof *g->rules);
    if (!g->rules) {
        td_grammar_no_memory(p);
        return;
    }
    g->rule_count = p->rule_count;
    g->root = root;
    for (uint32_t i = 0; i < g->rule_count; i++) {
        g->rules[i] = here(p);
        compile(p, p->rules[i].body);
        emit_open(p, TD_GRAMMAR_RETURN);
    }
    if (p->status == TANDEM_OK)
        check_recursion(p);
    if (p->status == TANDEM_OK)
        find_classes(g);
}
