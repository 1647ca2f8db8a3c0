/* Texts as tokens. See tokenizer.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A text is one piece of memory, whose parts say where special tokens may be. What lies between
 * tokens that are found as a whole is merged: symbols, each a stretch of the text, of which two
 * neighbours at a time become one, those first whose merge has the lowest order and that lie
 * furthest left.
 */
#include <stdlib.h>

#include "engine_plugin/npc/utf8.h"
#include "engine_plugin/npc/vocabulary.h"

/* --- Tokens --- */

void td_tokens_free(td_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (td_tokens){0};
}

tandem_status td_tokens_add(td_tokens *tokens, uint32_t id)
{
    if (tokens->count == tokens->room) {
        const size_t room = tokens->room ? 2 * tokens->room : 64;
        uint32_t *ids = realloc(tokens->ids, room * sizeof *ids);

        if (!ids)
            return TANDEM_ERROR_NOMEM;
        tokens->ids = ids, tokens->room = room;
    }
    tokens->ids[tokens->count++] = id;
    return TANDEM_OK;
}

/* --- Merging --- */

enum { NO_SYMBOL = -1 };

typedef struct symbol {
    const char *text;
    uint32_t bytes; /* 0: it has become part of the one before it */
    uint32_t token; /* TD_NO_TOKEN: a character that is none */
    int32_t before, after;
} symbol;

/* Two neighbours that could become a token. */
typedef struct candidate {
    double order;
    int32_t left, right;
    uint32_t bytes; /* of both; where they have others by now, one of them was merged already */
    uint32_t token;
} candidate;

typedef struct encoder {
    const td_tokenizer *t;
    td_tokens *out;
    symbol *symbols;
    candidate *heap; /* the first is the next to be merged */
    size_t room, heap_count;
} encoder;

static bool is_first(const candidate *a, const candidate *b)
{
    return a->order != b->order ? a->order < b->order : a->left < b->left;
}

static void push(encoder *e, candidate c)
{
    size_t at = e->heap_count++;

    for (; at && is_first(&c, &e->heap[(at - 1) / 2]); at = (at - 1) / 2)
        e->heap[at] = e->heap[(at - 1) / 2];
    e->heap[at] = c;
}

static candidate pop(encoder *e)
{
    const candidate first = e->heap[0], last = e->heap[--e->heap_count];
    size_t at = 0, child;

    while ((child = 2 * at + 1) < e->heap_count) {
        child += child + 1 < e->heap_count && is_first(&e->heap[child + 1], &e->heap[child]);
        if (!is_first(&e->heap[child], &last))
            break;
        e->heap[at] = e->heap[child];
        at = child;
    }
    e->heap[at] = last;
    return first;
}

/* Pairs of tokens merge by the file's list; without one, pairs of texts to any token that has both. */
static void consider(encoder *e, int32_t left, int32_t right)
{
    if (left == NO_SYMBOL || right == NO_SYMBOL)
        return;
    const symbol *a = &e->symbols[left], *b = &e->symbols[right];
    candidate c = {.left = left, .right = right, .bytes = a->bytes + b->bytes};
    if (e->t->merges) {
        const td_merge *merge = td_vocabulary_merge(e->t, a->token, b->token);

        if (!merge)
            return;
        c.order = merge->order, c.token = merge->token;
    } else {
        c.token = td_vocabulary_find(e->t, a->text, c.bytes);
        if (c.token == TD_NO_TOKEN)
            return;
        c.order = -(double)e->t->tokens[c.token].score;
    }
    push(e, c);
}

static void merge_symbols(encoder *e, size_t count)
{
    e->heap_count = 0;
    for (size_t i = 1; i < count; i++)
        consider(e, (int32_t)i - 1, (int32_t)i);
    while (e->heap_count) {
        const candidate c = pop(e);
        symbol *left = &e->symbols[c.left], *right = &e->symbols[c.right];

        if (!left->bytes || !right->bytes || left->bytes + right->bytes != c.bytes)
            continue;
        *left = (symbol){left->text, c.bytes, c.token, left->before, right->after};
        right->bytes = 0;
        if (left->after != NO_SYMBOL)
            e->symbols[left->after].before = c.left;
        consider(e, left->before, c.left);
        consider(e, c.left, left->after);
    }
}

/* Each merge takes one candidate and adds two at most, so three times as many as symbols do. */
static tandem_status make_room(encoder *e, size_t symbols)
{
    if (symbols <= e->room)
        return TANDEM_OK;
    free(e->symbols), free(e->heap);
    e->symbols = calloc(symbols, sizeof *e->symbols);
    e->heap = calloc(symbols, 3 * sizeof *e->heap);
    e->room = e->symbols && e->heap ? symbols : 0;
    return e->room ? TANDEM_OK : TANDEM_ERROR_NOMEM;
}

static size_t add_symbol(encoder *e, size_t count, const char *text, size_t bytes, uint32_t token)
{
    e->symbols[count] = (symbol){text, (uint32_t)bytes, token, (int32_t)count - 1, NO_SYMBOL};
    if (count)
        e->symbols[count - 1].after = (int32_t)count;
    return count + 1;
}

/* A character that is no token, in bytes; where it has none of them, as what is unknown. */
static tandem_status add_spelled(encoder *e, const symbol *s)
{
    tandem_status status = TANDEM_OK;
    bool is_known = true;

    for (uint32_t i = 0; i < s->bytes; i++)
        is_known = is_known && e->t->of_byte[(uint8_t)s->text[i]] != TD_NO_TOKEN;
    if (!is_known)
        return e->t->unknown == TD_NO_TOKEN ? TANDEM_OK : td_tokens_add(e->out, e->t->unknown);
    for (uint32_t i = 0; i < s->bytes && status == TANDEM_OK; i++)
        status = td_tokens_add(e->out, e->t->of_byte[(uint8_t)s->text[i]]);
    return status;
}

static tandem_status add_merged(encoder *e, size_t count)
{
    tandem_status status = TANDEM_OK;

    merge_symbols(e, count);
    for (size_t i = 0; i < count && status == TANDEM_OK; i++)
        if (e->symbols[i].bytes)
            status = e->symbols[i].token == TD_NO_TOKEN
                         ? add_spelled(e, &e->symbols[i])
                         : td_tokens_add(e->out, e->symbols[i].token);
    return status;
}

/* A byte that is no token is left out, as everybody does: models that lack one never saw it. */
static tandem_status encode_word(void *user, const char *text, size_t bytes)
{
    encoder *e = user;
    size_t count = 0;
    uint32_t token;

    if (td_pattern_traits_of(e->t->pattern).whole_words &&
        (token = td_vocabulary_find(e->t, text, bytes)) != TD_NO_TOKEN)
        return td_tokens_add(e->out, token);
    if (make_room(e, bytes) != TANDEM_OK)
        return TANDEM_ERROR_NOMEM;
    for (size_t i = 0; i < bytes; i++)
        if ((token = e->t->of_byte[(uint8_t)text[i]]) != TD_NO_TOKEN)
            count = add_symbol(e, count, text + i, 1, token);
    return add_merged(e, count);
}

static tandem_status encode_characters(encoder *e, const char *text, size_t bytes)
{
    size_t count = 0, length;

    if (make_room(e, bytes) != TANDEM_OK)
        return TANDEM_ERROR_NOMEM;
    for (size_t at = 0; at < bytes; at += length) {
        td_utf8_next(text + at, bytes - at, &length);
        count = add_symbol(e, count, text + at, length,
                           td_vocabulary_find(e->t, text + at, length));
    }
    return add_merged(e, count);
}

/* --- Texts --- */

/* All parts, as whole UTF-8. */
typedef struct whole_text {
    char *text;
    size_t bytes;
    size_t *ends; /* of each part */
} whole_text;

static tandem_status join(const td_text_part *parts, size_t count, whole_text *out, char *why,
                          size_t why_bytes)
{
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++) {
        if (parts[i].bytes > TD_TEXT_BYTES - bytes)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "the text has more than %d bytes",
                           TD_TEXT_BYTES);
        bytes += parts[i].bytes;
    }
    out->text = malloc(TD_UTF8_REPLACEMENT_BYTES * bytes + 1);
    out->ends = calloc(count + 1, sizeof *out->ends);
    if (!out->text || !out->ends)
        return TANDEM_ERROR_NOMEM;
    for (size_t i = 0; i < count; i++)
        out->ends[i] = out->bytes +=
            td_utf8_repair(parts[i].text, parts[i].bytes, out->text + out->bytes);
    return TANDEM_OK;
}

/* The longest token that the text begins with and that is found as a whole; a special one has to
 * lie within the first `trusted` bytes. */
static uint32_t find_whole(const td_tokenizer *t, const char *text, size_t bytes, size_t trusted)
{
    const uint8_t first = (uint8_t)*text;

    for (uint32_t i = t->whole_from[first]; i < t->whole_from[first + 1]; i++) {
        const td_token *token = &t->tokens[t->whole[i]];
        const size_t most = token->kind == TD_TOKEN_USER_DEFINED ? bytes : trusted;

        if (token->bytes <= most && !memcmp(token->text, text, token->bytes))
            return t->whole[i];
    }
    return TD_NO_TOKEN;
}

/* SentencePiece does not tell U+2581 from a space. */
static tandem_status encode_with_spaces(encoder *e, const char *text, size_t bytes, bool space)
{
    char *copy = malloc(bytes + 1);

    if (!copy)
        return TANDEM_ERROR_NOMEM;
    *copy = ' '; /* taken along where one goes before the text */
    const size_t count = td_vocabulary_spaces(text, bytes, copy + 1);
    const tandem_status status = encode_characters(e, copy + !space, count + space);
    free(copy);
    return status;
}

/* What lies between tokens that are found as a whole. */
static tandem_status encode_between(encoder *e, const char *text, size_t bytes, bool space,
                                    char *why, size_t why_bytes)
{
    if (!bytes && !space)
        return TANDEM_OK;
    if (!e->t->bytewise)
        return encode_with_spaces(e, text, bytes, space);
    return td_pattern_split(e->t->pattern, text, bytes, (td_words){encode_word, e}, why, why_bytes);
}

static tandem_status encode_text(encoder *e, const td_text_part *parts, const whole_text *whole,
                                 char *why, size_t why_bytes)
{
    size_t from = 0, part = 0;
    bool space = e->t->space_first;
    tandem_status status = TANDEM_OK;

    for (size_t at = 0; at < whole->bytes && status == TANDEM_OK;) {
        while (at >= whole->ends[part])
            part++;
        const size_t trusted = parts[part].special ? whole->ends[part] - at : 0;
        const uint32_t token = find_whole(e->t, whole->text + at, whole->bytes - at, trusted);
        if (token == TD_NO_TOKEN) {
            at++;
            continue;
        }
        /* A space goes before a text, not before a special token. */
        const bool is_text = at > from || e->t->tokens[token].kind == TD_TOKEN_USER_DEFINED;
        status = encode_between(e, whole->text + from, at - from, space && is_text, why, why_bytes);
        if (status == TANDEM_OK)
            status = td_tokens_add(e->out, token);
        space = e->t->space_first && e->t->tokens[token].kind != TD_TOKEN_USER_DEFINED;
        from = at += e->t->tokens[token].bytes;
    }
    if (status == TANDEM_OK && from < whole->bytes)
        status = encode_between(e, whole->text + from, whole->bytes - from, space, why, why_bytes);
    return status;
}

tandem_status td_tokenizer_encode(const td_tokenizer *t, const td_text_part *parts, size_t count,
                                  td_tokens *out, char *why, size_t why_bytes)
{
    encoder e = {.t = t, .out = out};
    whole_text whole = {0};
    const size_t before = out->count;
    tandem_status status = join(parts, count, &whole, why, why_bytes);

    if (status == TANDEM_OK)
        status = encode_text(&e, parts, &whole, why, why_bytes);
    if (status == TANDEM_ERROR_NOMEM)
        td_text(why, why_bytes, "no memory for the tokens of a text");
    if (status != TANDEM_OK)
        out->count = before;
    free(e.symbols), free(e.heap);
    free(whole.text), free(whole.ends);
    return status;
}
