/* Texts as vectors. See tandem/npc.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * That a language model says what a text is about in one word, and that the row this word would
 * come of tells texts apart, is from Jiang et al., "Scaling Sentence Embeddings with Large Language
 * Models" (2023). All such rows have much in common, which is what no text at all has.
 *
 * Models that were trained to embed by the last token take a text as it is, or with what they were
 * trained for around it: then a row is taken as it is.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "engine_plugin/client/client.h"
#include "engine_plugin/npc/language.h"
#include "interop/os/clock.h"
#include "kernels/arena.h"

static const char question_before[] = "This sentence: \"",
                  question_behind[] = "\" means in one word: \"";
#define RETRY_NS 100000u /* how long to wait for others who may go on, or for room for a job */

typedef enum embedder_state { IDLE, READS_NOTHING, READS_TEXT, READY } embedder_state;

struct tandem_embedder {
    tandem_language *language;
    td_stage *own; /* where those of a language have none in common */
    td_sequence *read;
    embedder_state state;
    td_arena copies;
    const char *before, *behind;
    td_tokens text;    /* with what stands around it */
    uint32_t around;   /* tokens that no text has */
    float *nothing;    /* the row of that, or zeros; */
    bool nothing_read; /* which is known */
    float *values;
};

/* --- Embedders --- */

static td_stage *stage_of(const tandem_embedder *e)
{
    return e->own ? e->own : e->language->stage;
}

static void free_embedder(tandem_embedder *e)
{
    td_sequence_close(&e->read);
    td_stage_destroy(&e->own);
    td_tokens_free(&e->text);
    td_arena_free(&e->copies);
    free(e->nothing);
    free(e->values);
    free(e);
}

static tandem_status fail(const tandem_language *l, const char *call, tandem_status status,
                          const char *why)
{
    return td_session_fail(l->session, call, status, why);
}

static tandem_status encode(const tandem_embedder *e, const char *text, td_tokens *out, char *why)
{
    const td_tokenizer *t = e->language->tokenizer;
    const td_text_part parts[] = {{e->before, strlen(e->before), true},
                                  {text, strlen(text), false},
                                  {e->behind, strlen(e->behind), true}};

    if (td_tokenizer_begins(t) && td_tokens_add(out, td_tokenizer_begin(t)) != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no memory for tokens");
    return td_tokenizer_encode(t, parts, 3, out, why, TD_WHY_BYTES);
}

/* As many tokens as stand around every text. */
static tandem_status count_around(tandem_embedder *e, char *why)
{
    td_tokens tokens = {0};
    const tandem_status status = encode(e, "", &tokens, why);

    e->around = (uint32_t)tokens.count;
    td_tokens_free(&tokens);
    return status;
}

static const char *copy_text(tandem_embedder *e, const char *text)
{
    return td_arena_text(&e->copies, text, strlen(text));
}

/* What goes wrong is told. */
static tandem_status make_parts(tandem_embedder *e, const tandem_embedder_desc *desc,
                                const char *call)
{
    tandem_language *l = e->language;
    const td_stage_desc stage = td_language_stage_desc(l);
    const bool is_own = desc->before || desc->behind;
    char why[TD_WHY_BYTES] = "no memory for an embedder";
    tandem_status status = l->pages ? td_language_stage(l) : td_stage_create(&stage, &e->own);

    if (status != TANDEM_OK)
        return status;
    e->nothing = calloc(l->hidden, sizeof *e->nothing);
    e->values = calloc(l->hidden, sizeof *e->values);
    e->before = copy_text(e, desc->before ? desc->before : is_own ? "" : question_before);
    e->behind = copy_text(e, desc->behind ? desc->behind : is_own ? "" : question_behind);
    e->nothing_read = is_own;
    if (!e->nothing || !e->values || !e->before || !e->behind ||
        td_sequence_open(stage_of(e), &e->read) != TANDEM_OK)
        return fail(l, call, TANDEM_ERROR_NOMEM, why);
    td_sequence_want_all(e->read, false); /* none is looked at */
    status = count_around(e, why);
    return status == TANDEM_OK ? status : fail(l, call, status, why);
}

tandem_status tandem_embedder_create(tandem_language *language, const tandem_embedder_desc *desc,
                                     tandem_embedder **out)
{
    char why[TD_WHY_BYTES] = "";
    tandem_embedder_desc known;
    tandem_status status;

    if (out)
        *out = NULL;
    if (!language)
        return td_call_fail(__func__, TANDEM_ERROR_ARG, "language is NULL");
    if (!td_session_usable(language->session, __func__))
        return TANDEM_ERROR_ARG;
    if (!desc || !out)
        return fail(language, __func__, TANDEM_ERROR_ARG, desc ? "out is NULL" : "desc is NULL");
    status = TD_STRUCT_IN("desc", desc, &known, why, sizeof why);
    if (status == TANDEM_OK && known.reserved)
        status = td_fail(why, sizeof why, TANDEM_ERROR_ARG, "desc.reserved is %" PRIu32 ", not 0",
                         known.reserved);
    if (status != TANDEM_OK)
        return fail(language, __func__, status, why);
    if (!language->hidden)
        return fail(language, __func__, TANDEM_ERROR_UNSUPPORTED,
                    "the language makes no embeddings: tandem_language_desc.embeds was 0");
    tandem_embedder *e = calloc(1, sizeof *e);
    if (!e)
        return fail(language, __func__, TANDEM_ERROR_NOMEM, "no memory for an embedder");
    e->language = language;
    status = make_parts(e, &known, __func__);
    if (status != TANDEM_OK) {
        free_embedder(e);
        return status;
    }
    atomic_fetch_add(&language->embedders, 1);
    *out = e;
    return TANDEM_OK;
}

/* What every call looks at first. */
static bool is_usable(const tandem_embedder *e, const char *call)
{
    if (!e)
        td_call_fail(call, TANDEM_ERROR_ARG, "embedder is NULL");
    return e && td_session_usable(e->language->session, call);
}

tandem_status tandem_embedder_destroy(tandem_embedder **embedder)
{
    if (!embedder || !*embedder)
        return td_call_fail(__func__, TANDEM_ERROR_ARG,
                            embedder ? "*embedder is NULL" : "embedder is NULL");
    if (!td_session_is_here((*embedder)->language->session, __func__))
        return TANDEM_ERROR_ARG;
    tandem_language *language = (*embedder)->language;
    free_embedder(*embedder);
    atomic_fetch_sub(&language->embedders, 1); /* which may be destroyed from now on */
    *embedder = NULL;
    return TANDEM_OK;
}

/* --- Texts --- */

/* The sequence is to read tokens that stand for no text. */
static tandem_status read_nothing(tandem_embedder *e, char *why)
{
    td_tokens tokens = {0};
    tandem_status status = encode(e, "", &tokens, why);

    if (status == TANDEM_OK) {
        e->state = READS_NOTHING;
        status = td_sequence_read(e->read, tokens.ids, tokens.count);
        if (status != TANDEM_OK)
            td_text(why, TD_WHY_BYTES, "no memory for a text");
    }
    td_tokens_free(&tokens);
    return status;
}

static tandem_status read_text(tandem_embedder *e, char *why)
{
    const tandem_status status = td_sequence_read(e->read, e->text.ids, e->text.count);

    e->state = READS_TEXT;
    return status == TANDEM_OK ? status
                               : td_fail(why, TD_WHY_BYTES, status, "no memory for a text");
}

static void give_up(tandem_embedder *e)
{
    td_sequence_rest(e->read);
    e->state = IDLE;
    e->text.count = 0;
}

static tandem_status begin(tandem_embedder *e, const char *text, char *why)
{
    const uint32_t context = e->language->context;
    const tandem_status status = encode(e, text, &e->text, why);

    if (status != TANDEM_OK)
        return status;
    if (e->text.count > context)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "text has %zu tokens, with those around it; the context has %" PRIu32,
                       e->text.count, context);
    return e->nothing_read ? read_text(e, why) : read_nothing(e, why);
}

tandem_status tandem_embedder_begin(tandem_embedder *embedder, const char *text)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;

    if (!is_usable(embedder, __func__))
        return TANDEM_ERROR_ARG;
    give_up(embedder);
    if (!text)
        return TANDEM_OK;
    if (!*text)
        return fail(embedder->language, __func__, TANDEM_ERROR_ARG, "text is empty");
    status = begin(embedder, text, why);
    if (status == TANDEM_OK)
        return status;
    give_up(embedder);
    return fail(embedder->language, __func__, status, why);
}

/* --- Step by step --- */

/* What the text's row has besides nothing's, at length 1. */
static tandem_status make_values(tandem_embedder *e, const float *row, char *why)
{
    const uint32_t count = e->language->hidden;
    double sum = 0;

    for (uint32_t i = 0; i < count; i++) {
        e->values[i] = row[i] - e->nothing[i];
        sum += (double)e->values[i] * (double)e->values[i];
    }
    if (!(sum > 0) || !isfinite(sum))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_DEVICE,
                       "the model's numbers for the text have no direction");
    for (uint32_t i = 0; i < count; i++)
        e->values[i] = (float)((double)e->values[i] / sqrt(sum));
    td_sequence_rest(e->read);
    e->state = READY;
    return TANDEM_OK;
}

/* Its sequence has read what it was to. */
static tandem_status take_row(tandem_embedder *e, const float *row, char *why)
{
    if (e->state == READS_TEXT)
        return make_values(e, row, why);
    memcpy(e->nothing, row, e->language->hidden * sizeof *row);
    e->nothing_read = true;
    return read_text(e, why);
}

static bool is_reading(const tandem_embedder *e)
{
    return e->state == READS_NOTHING || e->state == READS_TEXT;
}

/* As far as it goes without waiting. What goes wrong is told. */
static tandem_status step(tandem_embedder *e, const char *call)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status;

    td_stage_step(stage_of(e), is_reading(e) ? e->read : NULL);
    if (!is_reading(e))
        return TANDEM_OK;
    const td_sequence_state read = td_sequence_look(e->read);
    if (read.is == TD_SEQUENCE_FAILED) { /* the session's text says why */
        give_up(e);
        return read.status;
    }
    if (read.is != TD_SEQUENCE_KNOWS)
        return TANDEM_OK;
    status = take_row(e, read.hidden, why);
    if (status != TANDEM_OK) {
        give_up(e);
        return fail(e->language, call, status, why);
    }
    td_stage_step(stage_of(e), is_reading(e) ? e->read : NULL);
    return status;
}

static void tell(const tandem_embedder *e, tandem_embedding *embedding)
{
    tandem_embedding ours = {0};

    if (e->state == READY)
        ours = (tandem_embedding){
            .ready = 1,
            .values = e->values,
            .count = e->language->hidden,
            .tokens = e->text.count > e->around ? (uint32_t)e->text.count - e->around : 0};
    TD_STRUCT_OUT(embedding, &ours);
}

static tandem_status check_out(const tandem_embedder *e, const char *call,
                               const tandem_embedding *embedding)
{
    char why[TD_WHY_BYTES] = "";

    if (!is_usable(e, call))
        return TANDEM_ERROR_ARG;
    if (!embedding)
        return fail(e->language, call, TANDEM_ERROR_ARG, "embedding is NULL");
    const tandem_status status = TD_STRUCT_CHECK("embedding", embedding, why, sizeof why);
    return status == TANDEM_OK ? status : fail(e->language, call, status, why);
}

tandem_status tandem_embedder_poll(tandem_embedder *embedder, tandem_embedding *embedding)
{
    tandem_status status = check_out(embedder, __func__, embedding);

    if (status != TANDEM_OK)
        return status;
    status = step(embedder, __func__);
    tell(embedder, embedding);
    return status;
}

tandem_status tandem_embedder_wait(tandem_embedder *embedder, uint64_t timeout_ns,
                                   tandem_embedding *embedding)
{
    tandem_status status = check_out(embedder, __func__, embedding);

    if (status != TANDEM_OK)
        return status;
    const uint64_t now = td_now_ns(),
                   until = now + timeout_ns < now ? UINT64_MAX : now + timeout_ns;
    while (is_reading(embedder)) {
        status = step(embedder, __func__);
        if (!is_reading(embedder) || status != TANDEM_OK)
            break;
        const uint64_t at = td_now_ns(), left = at < until ? until - at : 0;
        if (!left) {
            status = TANDEM_ERROR_BUSY;
            break;
        }
        if (!td_stage_wait(stage_of(embedder), left))
            td_sleep_ns(left < RETRY_NS ? left : RETRY_NS);
    }
    tell(embedder, embedding);
    return status;
}
