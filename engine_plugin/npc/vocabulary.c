/* A tokenizer from a file's metadata. See vocabulary.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/vocabulary.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/npc/utf8.h"

enum { MOST_TOKENS = 1 << 22, MOST_MERGES = 1 << 23, MOST_TOKEN_BYTES = 1 << 12 };

typedef struct loader {
    const td_gguf *file;
    td_tokenizer *t;
    tandem_status status;
    char *why;
    size_t why_bytes;
} loader;

static bool fail(loader *l, tandem_status status, const char *format, ...)
    __attribute__((format(TD_PRINTF, 3, 4)));

static bool fail(loader *l, tandem_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    td_text_list(l->why, l->why_bytes, format, args);
    va_end(args);
    l->status = status;
    return false;
}

static bool passed(loader *l, tandem_status status)
{
    l->status = status;
    return status == TANDEM_OK;
}

static void *take(loader *l, size_t count, size_t bytes)
{
    void *memory = td_arena_take(&l->t->arena, count * bytes, _Alignof(max_align_t));

    if (!memory)
        fail(l, TANDEM_ERROR_NOMEM, "no memory for a vocabulary");
    return memory;
}

/* --- Tables --- */

/* At most half full. */
static uint32_t slots_for(uint32_t count)
{
    uint32_t slots = 2;

    while (slots < 2 * count)
        slots *= 2;
    return slots;
}

static uint64_t mix(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15;
    return x ^ x >> 32;
}

static uint64_t hash_text(const char *text, size_t bytes)
{
    uint64_t hash = bytes;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3;
    return mix(hash);
}

static bool is_text(const td_token *token, const char *text, size_t bytes)
{
    return token->bytes == bytes && !memcmp(token->text, text, bytes);
}

/* Where the text is, or would be. */
static uint32_t *text_slot(const td_tokenizer *t, const char *text, size_t bytes)
{
    uint64_t at = hash_text(text, bytes);

    for (;; at++) {
        uint32_t *slot = &t->by_text[at & (t->text_slots - 1)];

        if (*slot == TD_NO_TOKEN || is_text(&t->tokens[*slot], text, bytes))
            return slot;
    }
}

uint32_t td_vocabulary_find(const td_tokenizer *t, const char *text, size_t bytes)
{
    return *text_slot(t, text, bytes);
}

static td_merge *merge_slot(const td_tokenizer *t, uint32_t left, uint32_t right)
{
    uint64_t at = mix((uint64_t)left << 32 | right);

    for (;; at++) {
        td_merge *slot = &t->merges[at & (t->merge_slots - 1)];

        if (slot->left == TD_NO_TOKEN || (slot->left == left && slot->right == right))
            return slot;
    }
}

const td_merge *td_vocabulary_merge(const td_tokenizer *t, uint32_t left, uint32_t right)
{
    const td_merge *slot = merge_slot(t, left, right);

    return slot->left == TD_NO_TOKEN ? NULL : slot;
}

/* --- Texts of tokens --- */

/* Byte-level vocabularies write bytes as characters that can be printed: those that are printable
 * in Latin-1 as themselves, the others, in their order, as U+0100 and so on. */
static bool is_printable(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

/* -1 where the character stands for none. */
static int byte_of(uint32_t code)
{
    uint32_t other = 0x100;

    if (code < 0x100)
        return is_printable(code) ? (int)code : -1;
    for (uint32_t byte = 0; byte < 0x100; byte++)
        if (!is_printable(byte) && other++ == code)
            return (int)byte;
    return -1;
}

/* The bytes that characters stand for, and how many; 0 where one stands for none. */
static uint32_t unprintable(td_gguf_string from, char *to)
{
    uint32_t count = 0;
    size_t length;

    for (uint64_t at = 0; at < from.length; at += length) {
        const uint8_t *c = (const uint8_t *)from.bytes + at;

        if (td_utf8_next(from.bytes + at, from.length - at, &length) != TD_UTF8_WHOLE || length > 2)
            return 0;
        const int byte = byte_of(length == 1 ? c[0] : (c[0] & 31u) << 6 | (c[1] & 63u));
        if (byte < 0)
            return 0;
        to[count++] = (char)byte;
    }
    return count;
}

size_t td_vocabulary_spaces(const char *text, size_t bytes, char *to)
{
    static const char blank[3] = "\xe2\x96\x81";
    size_t count = 0;

    for (size_t at = 0; at < bytes;) {
        const bool is_blank =
            bytes - at >= sizeof blank && !memcmp(text + at, blank, sizeof blank);
        to[count++] = is_blank ? ' ' : text[at];
        at += is_blank ? sizeof blank : 1;
    }
    return count;
}

/* "<0x0A>" */
static int spelled_byte(td_gguf_string text)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *high, *low;

    if (text.length != 6 || memcmp(text.bytes, "<0x", 3) || text.bytes[5] != '>')
        return -1;
    high = memchr(digits, text.bytes[3], 16), low = memchr(digits, text.bytes[4], 16);
    return high && low ? (int)(high - digits) * 16 + (int)(low - digits) : -1;
}

static bool set_byte(loader *l, uint32_t id, td_gguf_string from, char *to)
{
    const int byte = spelled_byte(from);

    if (byte < 0)
        return fail(l, TANDEM_ERROR_PROTOCOL,
                    "tokenizer.ggml.tokens: token %u is no byte as \"<0x0A>\"", id);
    *to = (char)byte;
    l->t->tokens[id].bytes = 1;
    return true;
}

/* What the token stands for. Names of special tokens, and in byte-level vocabularies what users
 * have defined, are written as they are. */
static bool set_text(loader *l, uint32_t id, td_gguf_string from)
{
    td_tokenizer *t = l->t;
    td_token *token = &t->tokens[id];
    const bool is_plain = token->kind == TD_TOKEN_CONTROL || token->kind == TD_TOKEN_UNKNOWN ||
                          (t->bytewise && token->kind == TD_TOKEN_USER_DEFINED);
    char *to = take(l, from.length + 1, 1);

    if (!to)
        return false;
    token->text = to;
    if (token->kind == TD_TOKEN_BYTE)
        return set_byte(l, id, from, to);
    if (!is_plain)
        token->bytes = t->bytewise
                           ? unprintable(from, to)
                           : (uint32_t)td_vocabulary_spaces(from.bytes, from.length, to);
    if (!token->bytes) {
        memcpy(to, from.bytes, from.length);
        token->bytes = (uint32_t)from.length;
        if (!is_plain) /* no bytes are written like this, so no text has it */
            token->kind = TD_TOKEN_UNUSED;
    }
    t->longest = token->bytes > t->longest ? token->bytes : t->longest;
    return true;
}

/* --- Tokens --- */

/* An array of as many elements as there are tokens; NULL where there is none. */
static bool token_array(loader *l, const char *key, td_gguf_type type, const td_gguf_value **out)
{
    *out = NULL;
    if (!td_gguf_find(l->file, key))
        return true;
    if (!passed(l, td_gguf_array(l->file, key, type, out, l->why, l->why_bytes)))
        return false;
    if ((*out)->count != l->t->count)
        return fail(l, TANDEM_ERROR_PROTOCOL, "%s has %" PRIu64 " elements for %u tokens", key,
                    (*out)->count, l->t->count);
    return true;
}

static bool load_token(loader *l, uint32_t id, td_gguf_string text, double kind, double score)
{
    td_token *token = &l->t->tokens[id];

    if (!(kind >= TD_TOKEN_NORMAL && kind <= TD_TOKEN_BYTE))
        return fail(l, TANDEM_ERROR_PROTOCOL, "tokenizer.ggml.token_type: token %u has type %.0f",
                    id, kind);
    if (!isfinite(score))
        return fail(l, TANDEM_ERROR_PROTOCOL, "tokenizer.ggml.scores: token %u has score %f", id,
                    score);
    if (text.length > MOST_TOKEN_BYTES)
        return fail(l, TANDEM_ERROR_PROTOCOL,
                    "tokenizer.ggml.tokens: token %u has %" PRIu64 " bytes, more than %d", id,
                    text.length, MOST_TOKEN_BYTES);
    *token = (td_token){.kind = (td_token_kind)kind, .score = (float)score};
    return set_text(l, id, text);
}

static bool load_tokens(loader *l)
{
    static const char key[] = "tokenizer.ggml.tokens";
    td_tokenizer *t = l->t;
    const td_gguf_value *texts, *kinds, *scores;

    if (!passed(l, td_gguf_array(l->file, key, TD_GGUF_STRING, &texts, l->why, l->why_bytes)))
        return false;
    if (texts->count < 1 || texts->count > MOST_TOKENS)
        return fail(l, TANDEM_ERROR_PROTOCOL, "%s has %" PRIu64 " elements, not 1 to %d", key,
                    texts->count, MOST_TOKENS);
    t->count = (uint32_t)texts->count;
    if (!token_array(l, "tokenizer.ggml.token_type", TD_GGUF_I32, &kinds) ||
        !token_array(l, "tokenizer.ggml.scores", TD_GGUF_F32, &scores))
        return false;
    if (!t->bytewise && !scores)
        return fail(l, TANDEM_ERROR_PROTOCOL, "key \"tokenizer.ggml.scores\" is not there");
    if (!(t->tokens = take(l, t->count, sizeof *t->tokens)))
        return false;
    for (uint32_t i = 0; i < t->count; i++)
        if (!load_token(l, i, texts->strings[i], kinds ? td_gguf_number(kinds, i) : TD_TOKEN_NORMAL,
                        scores ? td_gguf_number(scores, i) : 0))
            return false;
    return true;
}

/* Of tokens with the same text the first is found. */
static void set_first(uint32_t *slot, uint32_t token)
{
    if (*slot == TD_NO_TOKEN)
        *slot = token;
}

static bool index_texts(loader *l)
{
    td_tokenizer *t = l->t;

    t->text_slots = slots_for(t->count);
    if (!(t->by_text = take(l, t->text_slots, sizeof *t->by_text)))
        return false;
    memset(t->by_text, 0xff, t->text_slots * sizeof *t->by_text);
    memset(t->of_byte, 0xff, sizeof t->of_byte);
    for (uint32_t i = 0; i < t->count; i++) {
        const td_token *token = &t->tokens[i];
        const bool is_text = token->kind == TD_TOKEN_NORMAL || token->kind == TD_TOKEN_USER_DEFINED;
        const bool is_byte = token->kind == (t->bytewise ? TD_TOKEN_NORMAL : TD_TOKEN_BYTE);

        if (is_text && token->bytes)
            set_first(text_slot(t, token->text, token->bytes), i);
        if (is_byte && token->bytes == 1)
            set_first(&t->of_byte[(uint8_t)token->text[0]], i);
    }
    return true;
}

static bool is_whole(const td_token *token)
{
    return token->bytes && (token->kind == TD_TOKEN_CONTROL || token->kind == TD_TOKEN_UNKNOWN ||
                            token->kind == TD_TOKEN_USER_DEFINED);
}

/* By first byte; the longest of them first, and of equal ones the first. */
static int compare_whole(const void *a, const void *b)
{
    const td_token *x = *(const td_token *const *)a, *y = *(const td_token *const *)b;

    if (x->text[0] != y->text[0])
        return (uint8_t)x->text[0] < (uint8_t)y->text[0] ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x < y ? -1 : x > y;
}

static bool index_whole(loader *l)
{
    td_tokenizer *t = l->t;
    const td_token **sorted = malloc(t->count * sizeof *sorted);
    uint32_t count = 0;

    if (!sorted)
        return fail(l, TANDEM_ERROR_NOMEM, "no memory for a vocabulary");
    for (uint32_t i = 0; i < t->count; i++)
        if (is_whole(&t->tokens[i]))
            sorted[count++] = &t->tokens[i];
    qsort(sorted, count, sizeof *sorted, compare_whole);
    t->whole = take(l, count, sizeof *t->whole);
    for (uint32_t i = 0; i < count && t->whole; i++)
        t->whole[i] = (uint32_t)(sorted[i] - t->tokens);
    free(sorted);
    if (!t->whole)
        return false;
    for (uint32_t byte = 0, at = 0; byte <= 256; byte++) {
        while (at < count && (uint8_t)t->tokens[t->whole[at]].text[0] < byte)
            at++;
        t->whole_from[byte] = at;
    }
    return true;
}

/* --- Merges --- */

/* Of characters, kernels/model/folder.h; files with scores go by these. */
static const char folders_merges[] = "tandem.tokenizer.merges";

/* "left right" */
static uint32_t merged_text(const td_tokenizer *t, td_gguf_string from, char *to)
{
    return t->bytewise ? unprintable(from, to)
                       : (uint32_t)td_vocabulary_spaces(from.bytes, from.length, to);
}

static bool load_merge(loader *l, uint32_t order, td_gguf_string text)
{
    const td_tokenizer *t = l->t;
    char left[MOST_TOKEN_BYTES], both[MOST_TOKEN_BYTES];
    const char *space = text.length > 1 ? memchr(text.bytes + 1, ' ', text.length - 1) : NULL;
    uint32_t ids[3] = {TD_NO_TOKEN, TD_NO_TOKEN, TD_NO_TOKEN};

    if (space && text.length <= MOST_TOKEN_BYTES) {
        const td_gguf_string first = {text.bytes, (uint64_t)(space - text.bytes)},
                             rest = {space + 1, text.length - first.length - 1};
        const uint32_t left_bytes = merged_text(t, first, left);

        memcpy(both, left, left_bytes);
        const uint32_t right_bytes = merged_text(t, rest, both + left_bytes);
        ids[0] = td_vocabulary_find(t, left, left_bytes);
        ids[1] = td_vocabulary_find(t, both + left_bytes, right_bytes);
        ids[2] = td_vocabulary_find(t, both, left_bytes + right_bytes);
    }
    if (ids[0] == TD_NO_TOKEN || ids[1] == TD_NO_TOKEN || ids[2] == TD_NO_TOKEN)
        return fail(l, TANDEM_ERROR_PROTOCOL,
                    "tokenizer.ggml.merges: merge %u is not of two tokens that make a third",
                    order);
    td_merge *slot = merge_slot(t, ids[0], ids[1]);
    if (slot->left == TD_NO_TOKEN)
        *slot = (td_merge){ids[0], ids[1], order, ids[2]};
    return true;
}

static bool load_merges(loader *l)
{
    const char *const key = l->t->bytewise ? "tokenizer.ggml.merges" : folders_merges;
    td_tokenizer *t = l->t;
    const td_gguf_value *texts;

    if (!passed(l, td_gguf_array(l->file, key, TD_GGUF_STRING, &texts, l->why, l->why_bytes)))
        return false;
    if (texts->count > MOST_MERGES)
        return fail(l, TANDEM_ERROR_PROTOCOL, "%s has %" PRIu64 " elements, more than %d", key,
                    texts->count, MOST_MERGES);
    t->merge_slots = slots_for((uint32_t)texts->count);
    if (!(t->merges = take(l, t->merge_slots, sizeof *t->merges)))
        return false;
    memset(t->merges, 0xff, t->merge_slots * sizeof *t->merges);
    for (uint32_t i = 0; i < texts->count; i++)
        if (!load_merge(l, i, texts->strings[i]))
            return false;
    return true;
}

/* --- What else the metadata says --- */

/* Leaves *out as it is where there is no such key. */
static bool load_flag(loader *l, const char *key, bool *out)
{
    return !td_gguf_find(l->file, key) ||
           passed(l, td_gguf_bool(l->file, key, out, l->why, l->why_bytes));
}

/* Regular expressions of a folder: kernels/model/folder.h. */
static bool load_patterns(loader *l)
{
    static const char key[] = "tandem.tokenizer.patterns", whole[] = "tandem.tokenizer.whole_words";
    td_pattern_text texts[8]; /* as many as a pattern has */
    td_pattern_traits traits = {false, false};
    const td_gguf_value *strings;

    if (!passed(l, td_gguf_array(l->file, key, TD_GGUF_STRING, &strings, l->why, l->why_bytes)) ||
        !load_flag(l, whole, &traits.whole_words))
        return false;
    if (strings->count > sizeof texts / sizeof *texts)
        return fail(l, TANDEM_ERROR_PROTOCOL, "%s has %" PRIu64 " elements", key, strings->count);
    for (uint64_t i = 0; i < strings->count; i++)
        texts[i] = (td_pattern_text){strings->strings[i].bytes, strings->strings[i].length};
    return passed(l, td_pattern_create_of(texts, strings->count, traits, &l->t->pattern, l->why,
                                          l->why_bytes));
}

/* Another kind's patterns are GPT-2's where the file names none: it is older than the key. */
static bool load_kind(loader *l)
{
    static const char key[] = "tokenizer.ggml.model", pre_key[] = "tokenizer.ggml.pre";
    td_gguf_string model, pre = {"default", strlen("default")};

    if (!passed(l, td_gguf_text(l->file, key, &model, l->why, l->why_bytes)))
        return false;
    l->t->bytewise = td_gguf_string_is(model, "gpt2");
    if (!l->t->bytewise && !td_gguf_string_is(model, "llama"))
        return fail(l, TANDEM_ERROR_UNSUPPORTED, "%s is \"%.*s\", neither \"gpt2\" nor \"llama\"",
                    key, (int)(model.length < TD_NAME_MOST ? model.length : TD_NAME_MOST),
                    model.bytes);
    if (!l->t->bytewise)
        return true;
    if (td_gguf_find(l->file, "tandem.tokenizer.patterns"))
        return load_patterns(l);
    if (td_gguf_find(l->file, pre_key) &&
        !passed(l, td_gguf_text(l->file, pre_key, &pre, l->why, l->why_bytes)))
        return false;
    return passed(l,
                  td_pattern_create(pre.bytes, pre.length, &l->t->pattern, l->why, l->why_bytes));
}

static bool load_id(loader *l, const char *key, uint32_t *out)
{
    *out = TD_NO_TOKEN;
    if (!td_gguf_find(l->file, key))
        return true;
    if (!passed(l, td_gguf_u32(l->file, key, out, l->why, l->why_bytes)))
        return false;
    if (*out >= l->t->count)
        return fail(l, TANDEM_ERROR_PROTOCOL, "key \"%s\": is %u, and there are %u tokens", key,
                    *out, l->t->count);
    return true;
}

static void add_end(td_tokenizer *t, uint32_t id)
{
    if (id != TD_NO_TOKEN && !td_tokenizer_is_end(t, id))
        t->ends[t->end_count++] = id;
}

/* Files name one token that ends a text; what ends a turn in a dialogue is known by its text. */
static bool load_ends(loader *l)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    static const char *const texts[] = {"<|im_end|>", "<|eot_id|>",      "<|eom_id|>",
                                        "<|end|>",    "<end_of_turn>",   "</s>",
                                        "<|endoftext|>", "<|end_of_text|>"};
    uint32_t id;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (!load_id(l, keys[i], &id))
            return false;
        add_end(l->t, id);
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        id = td_tokenizer_find(l->t, texts[i], strlen(texts[i]));
        if (id != TD_NO_TOKEN && l->t->tokens[id].kind == TD_TOKEN_CONTROL)
            add_end(l->t, id);
    }
    return true;
}

static bool load(loader *l)
{
    td_tokenizer *t = l->t;

    if (!load_kind(l) || !load_tokens(l) || !index_texts(l) || !index_whole(l) ||
        ((t->bytewise || td_gguf_find(l->file, folders_merges)) && !load_merges(l)))
        return false;
    t->space_first = !t->bytewise;
    t->begins = t->bytewise ? td_pattern_traits_of(t->pattern).begins : true;
    return (t->bytewise || load_flag(l, "tokenizer.ggml.add_space_prefix", &t->space_first)) &&
           load_flag(l, "tokenizer.ggml.add_bos_token", &t->begins) &&
           load_id(l, "tokenizer.ggml.bos_token_id", &t->begin) &&
           load_id(l, "tokenizer.ggml.unknown_token_id", &t->unknown) && load_ends(l);
}

tandem_status td_tokenizer_create(const td_gguf *file, td_tokenizer **out, char *why,
                                  size_t why_bytes)
{
    loader l = {.file = file, .why = why, .why_bytes = why_bytes};

    *out = NULL;
    l.t = calloc(1, sizeof *l.t);
    if (!l.t)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a tokenizer");
    if (load(&l))
        *out = l.t;
    else
        td_tokenizer_destroy(&l.t);
    return l.status;
}

void td_tokenizer_destroy(td_tokenizer **tokenizer)
{
    if (!*tokenizer)
        return;
    td_pattern_destroy(&(*tokenizer)->pattern);
    td_arena_free(&(*tokenizer)->arena);
    free(*tokenizer);
    *tokenizer = NULL;
}

/* --- What is asked of it --- */

uint32_t td_tokenizer_count(const td_tokenizer *t)
{
    return t->count;
}

tandem_status td_tokenizer_fits(const td_tokenizer *t, uint32_t words, char *why, size_t why_bytes)
{
    return t->count <= words ? TANDEM_OK
                             : td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                                       "its tokenizer has %" PRIu32 " tokens, of which its tensors know "
                                       "%" PRIu32, t->count, words);
}

uint32_t td_tokenizer_begin(const td_tokenizer *t)
{
    return t->begin;
}

bool td_tokenizer_begins(const td_tokenizer *t)
{
    return t->begins && t->begin != TD_NO_TOKEN;
}

uint32_t td_tokenizer_find(const td_tokenizer *t, const char *text, size_t bytes)
{
    if (!bytes)
        return TD_NO_TOKEN;
    for (uint32_t i = t->whole_from[(uint8_t)*text]; i < t->whole_from[(uint8_t)*text + 1]; i++)
        if (is_text(&t->tokens[t->whole[i]], text, bytes))
            return t->whole[i];
    return td_vocabulary_find(t, text, bytes);
}

bool td_tokenizer_is_end(const td_tokenizer *t, uint32_t token)
{
    for (uint32_t i = 0; i < t->end_count; i++)
        if (t->ends[i] == token)
            return true;
    return false;
}

bool td_tokenizer_is_special(const td_tokenizer *t, uint32_t token)
{
    return t->tokens[token].kind == TD_TOKEN_CONTROL || t->tokens[token].kind == TD_TOKEN_UNKNOWN;
}

td_gguf_string td_tokenizer_piece(const td_tokenizer *t, uint32_t token)
{
    return (td_gguf_string){t->tokens[token].text, t->tokens[token].bytes};
}
