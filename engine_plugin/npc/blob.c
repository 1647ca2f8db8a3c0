/* A character as bytes. See blob.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/blob.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of the head, of 32 and of 64 bits, by their order. */
enum {
    VERSION,
    HEAD,
    CACHE,
    LAYERS,
    KV_HEADS,
    HEAD_DIM,
    WORDS,
    PLAIN,
    TOKENS,
    FIRST,
    PAGES,
    TAIL,
    FORGOTTEN,
    TURNS,
    NUMBERS
};
enum {
    MAGIC_BYTES = 8,
    CHECKSUM_AT = 8,
    BYTES_AT = 16,
    MODEL_AT = 24,
    PERSONA_AT = 32,
    TEXT_AT = 40,
    DATA_AT = 48,
    NUMBERS_AT = 56
};
_Static_assert(NUMBERS_AT + 4 * NUMBERS <= TD_BLOB_HEAD_BYTES, "the head has room for all");
static const char magic[MAGIC_BYTES] = {'T', 'D', 'N', 'P', 'C', '\r', '\n', 0x1a};
enum { PAGE_TOKENS = 64, TURN_BYTES = 8 };

uint64_t td_blob_hash(uint64_t so_far, const void *bytes, uint64_t count)
{
    const unsigned char *at = bytes;

    for (uint64_t i = 0; i < count; i++)
        so_far = (so_far ^ at[i]) * 0x100000001b3u;
    return so_far;
}

/* Whatever a machine's own order is. */
static void put(unsigned char *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *from, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << 8 * i;
    return value;
}

static uint64_t text_bytes(const td_blob *b)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < b->turn_count; i++)
        bytes += b->turns[i].bytes;
    return bytes;
}

uint64_t td_blob_bytes(const td_blob *b)
{
    const uint64_t lists = (uint64_t)b->token_count * 4 + (uint64_t)b->turn_count * TURN_BYTES;

    if (b->turn_count > TD_BLOB_TURNS || text_bytes(b) > INT64_MAX / 4 ||
        b->data_bytes > INT64_MAX / 4)
        return UINT64_MAX;
    return TD_BLOB_HEAD_BYTES + lists + text_bytes(b) + b->data_bytes;
}

void *td_blob_write(const td_blob *b, void *to)
{
    const uint32_t numbers[NUMBERS] = {[VERSION] = TD_BLOB_VERSION,
                                       [HEAD] = TD_BLOB_HEAD_BYTES,
                                       [CACHE] = b->kind.cache,
                                       [LAYERS] = b->kind.layers,
                                       [KV_HEADS] = b->kind.kv_heads,
                                       [HEAD_DIM] = b->kind.head_dim,
                                       [WORDS] = b->kind.words,
                                       [PLAIN] = b->kind.plain,
                                       [TOKENS] = b->token_count,
                                       [FIRST] = b->first_page,
                                       [PAGES] = b->pages,
                                       [TAIL] = b->tail,
                                       [FORGOTTEN] = b->forgotten,
                                       [TURNS] = b->turn_count};
    unsigned char *at = to;

    memset(at, 0, TD_BLOB_HEAD_BYTES);
    memcpy(at, magic, MAGIC_BYTES);
    put(at + BYTES_AT, td_blob_bytes(b), 8);
    put(at + MODEL_AT, b->kind.model, 8);
    put(at + PERSONA_AT, b->kind.persona, 8);
    put(at + TEXT_AT, text_bytes(b), 8);
    put(at + DATA_AT, b->data_bytes, 8);
    for (int i = 0; i < NUMBERS; i++)
        put(at + NUMBERS_AT + 4 * i, numbers[i], 4);
    at += TD_BLOB_HEAD_BYTES;
    for (uint32_t i = 0; i < b->token_count; i++, at += 4)
        put(at, b->tokens[i], 4);
    for (uint32_t i = 0; i < b->turn_count; i++, at += TURN_BYTES) {
        put(at, b->turns[i].role, 4);
        put(at + 4, b->turns[i].bytes, 4);
    }
    for (uint32_t i = 0; i < b->turn_count; at += b->turns[i++].bytes)
        if (b->turns[i].bytes)
            memcpy(at, b->turns[i].text, b->turns[i].bytes);
    return at;
}

/* Of all but itself. */
static uint64_t checksum_of(const unsigned char *bytes, uint64_t count)
{
    const uint64_t so_far = td_blob_hash(TD_BLOB_HASH, bytes, CHECKSUM_AT);

    return td_blob_hash(so_far, bytes + BYTES_AT, count - BYTES_AT);
}

void td_blob_seal(void *to, uint64_t bytes)
{
    put((unsigned char *)to + CHECKSUM_AT, checksum_of(to, bytes), 8);
}

/* --- Reading --- */

typedef struct reader {
    const unsigned char *bytes;
    uint64_t count, text;
    char *why;
    size_t why_bytes;
} reader;

#define WRONG(r, ...) td_fail((r)->why, (r)->why_bytes, TANDEM_ERROR_PROTOCOL, __VA_ARGS__)

/* Whether it is one at all, and whole. */
static tandem_status check_bytes(const reader *r)
{
    if (r->count < TD_BLOB_HEAD_BYTES)
        return WRONG(r, "it has %" PRIu64 " bytes; a head has %d", r->count, TD_BLOB_HEAD_BYTES);
    if (memcmp(r->bytes, magic, MAGIC_BYTES) != 0)
        return WRONG(r, "it does not begin as a character that was saved");
    const uint64_t version = get(r->bytes + NUMBERS_AT, 4),
                   head = get(r->bytes + NUMBERS_AT + 4, 4), bytes = get(r->bytes + BYTES_AT, 8);
    if (version != TD_BLOB_VERSION || head != TD_BLOB_HEAD_BYTES)
        return WRONG(r,
                     "it is of version %" PRIu64 ", with a head of %" PRIu64
                     " bytes; known is version %d, with %d",
                     version, head, TD_BLOB_VERSION, TD_BLOB_HEAD_BYTES);
    if (bytes != r->count)
        return WRONG(r, "it says that it has %" PRIu64 " bytes, and has %" PRIu64, bytes, r->count);
    if (get(r->bytes + CHECKSUM_AT, 8) != checksum_of(r->bytes, r->count))
        return WRONG(r, "its checksum is wrong: it was damaged");
    return TANDEM_OK;
}

static tandem_status check_kind(const reader *r, const td_blob *b, const td_blob_kind *want)
{
    const td_blob_kind *have = &b->kind;
    const char *other = have->model != want->model || have->words != want->words ||
                                have->layers != want->layers || have->kv_heads != want->kv_heads ||
                                have->head_dim != want->head_dim
                            ? "model"
                        : have->persona != want->persona ? "persona"
                        : have->plain != want->plain     ? "kind of dialogue: plain or with turns"
                        : have->cache != want->cache     ? "format of caches"
                                                         : NULL;

    return !other ? TANDEM_OK
                  : td_fail(r->why, r->why_bytes, TANDEM_ERROR_ARG, "it was saved with another %s",
                            other);
}

/* Counts fit to each other, and to the bytes. */
static tandem_status check_counts(const reader *r, const td_blob *b)
{
    const uint64_t lists = (uint64_t)b->token_count * 4 + (uint64_t)b->turn_count * TURN_BYTES,
                   left = r->count - TD_BLOB_HEAD_BYTES;

    if (lists > left || r->text > left - lists || b->data_bytes != left - lists - r->text)
        return WRONG(r,
                     "%" PRIu32 " tokens, %" PRIu32 " turns, %" PRIu64 " bytes of text and %" PRIu64
                     " of caches are not its %" PRIu64 " bytes",
                     b->token_count, b->turn_count, r->text, b->data_bytes, r->count);
    if (b->turn_count > TD_BLOB_TURNS)
        return WRONG(r, "it has %" PRIu32 " turns; at most %d are known", b->turn_count,
                     TD_BLOB_TURNS);
    if (b->first_page > b->pages || b->tail >= PAGE_TOKENS ||
        ((b->pages || b->tail) && (uint64_t)b->pages * PAGE_TOKENS + b->tail != b->token_count))
        return WRONG(r,
                     "pages %" PRIu32 " to %" PRIu32 " and %" PRIu32
                     " tokens are not those of %" PRIu32 " tokens",
                     b->first_page, b->pages, b->tail, b->token_count);
    return TANDEM_OK;
}

static tandem_status read_lists(const reader *r, td_blob *b)
{
    const unsigned char *at = r->bytes + TD_BLOB_HEAD_BYTES;
    uint32_t *tokens = malloc(((size_t)b->token_count + 1) * sizeof *tokens);
    td_chat_turn *turns = malloc(((size_t)b->turn_count + 1) * sizeof *turns);
    uint64_t left = r->text;

    b->tokens = tokens;
    b->turns = turns;
    if (!tokens || !turns)
        return td_fail(r->why, r->why_bytes, TANDEM_ERROR_NOMEM, "no memory for what was saved");
    for (uint32_t i = 0; i < b->token_count; i++, at += 4) {
        tokens[i] = (uint32_t)get(at, 4);
        if (tokens[i] >= b->kind.words)
            return WRONG(r, "token %" PRIu32 " is %" PRIu32 "; there are %" PRIu32, i, tokens[i],
                         b->kind.words);
    }
    const char *text = (const char *)at + (size_t)b->turn_count * TURN_BYTES;
    for (uint32_t i = 0; i < b->turn_count; i++, at += TURN_BYTES) {
        const uint64_t role = get(at, 4), bytes = get(at + 4, 4);

        if (role > TD_CHAT_REPLY)
            return WRONG(r, "turn %" PRIu32 " is of nobody that is known: %" PRIu64, i, role);
        if (bytes > left || memchr(text, 0, bytes))
            return WRONG(r,
                         "turn %" PRIu32 " has %" PRIu64 " bytes, of %" PRIu64
                         " that are left, and no 0 among them",
                         i, bytes, left);
        turns[i] = (td_chat_turn){(td_chat_role)role, text, bytes};
        text += bytes;
        left -= bytes;
    }
    if (left)
        return WRONG(r, "%" PRIu64 " bytes of text are nobody's", left);
    b->data = text;
    return TANDEM_OK;
}

tandem_status td_blob_read(const void *from, uint64_t bytes, const td_blob_kind *want, td_blob *out,
                           char *why, size_t why_bytes)
{
    const reader r0 = {.bytes = from, .count = bytes, .why = why, .why_bytes = why_bytes};
    reader r = r0;
    tandem_status status = check_bytes(&r);

    *out = (td_blob){0};
    if (status != TANDEM_OK)
        return status;
#define NUMBER(which) (uint32_t) get(r.bytes + NUMBERS_AT + 4 * (which), 4)
    *out = (td_blob){.kind = {.model = get(r.bytes + MODEL_AT, 8),
                              .persona = get(r.bytes + PERSONA_AT, 8),
                              .cache = NUMBER(CACHE),
                              .layers = NUMBER(LAYERS),
                              .kv_heads = NUMBER(KV_HEADS),
                              .head_dim = NUMBER(HEAD_DIM),
                              .words = NUMBER(WORDS),
                              .plain = NUMBER(PLAIN)},
                     .token_count = NUMBER(TOKENS),
                     .first_page = NUMBER(FIRST),
                     .pages = NUMBER(PAGES),
                     .tail = NUMBER(TAIL),
                     .forgotten = NUMBER(FORGOTTEN),
                     .turn_count = NUMBER(TURNS),
                     .data_bytes = get(r.bytes + DATA_AT, 8)};
    r.text = get(r.bytes + TEXT_AT, 8);
    status = check_kind(&r, out, want);
    if (status == TANDEM_OK)
        status = check_counts(&r, out);
    if (status == TANDEM_OK)
        status = read_lists(&r, out);
    if (status != TANDEM_OK)
        td_blob_free(out);
    return status;
}

void td_blob_free(td_blob *b)
{
    free((uint32_t *)b->tokens);
    free((td_chat_turn *)b->turns);
    *b = (td_blob){0};
}
