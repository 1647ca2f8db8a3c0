/* A reply in the making. See reply.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/reply.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct td_reply {
    td_reply_desc desc;
    td_sampler *sampler;
    td_tokens breaks; /* of DRY */
    td_decoder decoder;
    td_stops stops;
    td_reply_state state;
    uint32_t tokens;
    size_t text_bytes;
    double score; /* the sum */
    char *text;   /* that a token adds */
    char *shown;  /* of it and of what was held back */
    size_t shown_bytes, shown_room;
};

/* --- Making one --- */

/* Tokens that end what DRY takes for one: line ends, and what stands around names and quotes. */
static tandem_status find_breaks(const td_tokenizer *t, td_tokens *breaks, char *why,
                                 size_t why_bytes)
{
    static const char *const texts[] = {"\n", ":", "\"", "*"};
    tandem_status status = TANDEM_OK;

    for (size_t i = 0; i < sizeof texts / sizeof *texts && status == TANDEM_OK; i++) {
        const td_text_part part = {texts[i], strlen(texts[i]), false};

        status = td_tokenizer_encode(t, &part, 1, breaks, why, why_bytes);
    }
    return status;
}

static tandem_status make_parts(td_reply *r, char *why, size_t why_bytes)
{
    td_sampling how = r->desc.how;
    tandem_status status = TANDEM_OK;

    r->text = malloc(td_decoder_room(r->desc.tokenizer));
    if (!r->text)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a reply");
    if (how.dry_multiplier != 0 && !how.dry_break_count) {
        status = find_breaks(r->desc.tokenizer, &r->breaks, why, why_bytes);
        how.dry_breaks = r->breaks.ids;
        how.dry_break_count = (uint32_t)r->breaks.count;
    }
    if (status == TANDEM_OK)
        status = td_sampler_create(&how, td_tokenizer_count(r->desc.tokenizer), &r->sampler, why,
                                   why_bytes);
    return status;
}

tandem_status td_reply_create(const td_reply_desc *desc, td_reply **out, char *why,
                              size_t why_bytes)
{
    td_reply *r = *out = calloc(1, sizeof *r);

    if (!r)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a reply");
    r->desc = *desc;
    const tandem_status status = make_parts(r, why, why_bytes);
    if (status != TANDEM_OK)
        td_reply_destroy(out);
    else
        td_reply_restart(r);
    return status;
}

void td_reply_destroy(td_reply **reply)
{
    td_reply *r = *reply;

    if (!r)
        return;
    td_sampler_destroy(&r->sampler);
    td_tokens_free(&r->breaks);
    td_stops_free(&r->stops);
    free(r->text);
    free(r->shown);
    free(r);
    *reply = NULL;
}

void td_reply_shorten(td_reply *r, uint32_t most_tokens)
{
    if (most_tokens < r->desc.most_tokens)
        r->desc.most_tokens = most_tokens;
}

void td_reply_restart(td_reply *r)
{
    r->decoder = td_decoder_begin(r->desc.tokenizer, false);
    td_stops_free(&r->stops);
    r->stops = (td_stops){.texts = r->desc.stops, .count = r->desc.stop_count};
    if (r->desc.matcher)
        td_matcher_restart(r->desc.matcher);
    r->state = TD_REPLY_GOES_ON;
    r->tokens = 0;
    r->text_bytes = 0;
    r->score = 0;
}

/* --- Token by token --- */

/* The logarithm of how likely a token is. */
static double score_of(const float *logits, uint32_t words, uint32_t token)
{
    float largest = -INFINITY;
    double sum = 0;

    for (uint32_t i = 0; i < words; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    for (uint32_t i = 0; i < words; i++)
        sum += isnan(logits[i]) ? 0 : exp((double)(logits[i] - largest));
    return (double)(logits[token] - largest) - log(sum);
}

bool td_reply_wants_all(const td_reply *r, uint32_t top_count)
{
    return r->state == TD_REPLY_ASKS || r->desc.matcher || r->desc.scores ||
           !td_sampler_may_use_tops(r->sampler, top_count);
}

/* A token that may be next; TD_NO_TOKEN: there is none, or all logits are wanted. */
static tandem_status choose(td_reply *r, const td_words *of, const td_tokens *history,
                            uint32_t *token, char *why, size_t why_bytes)
{
    const uint32_t words = td_tokenizer_count(r->desc.tokenizer);
    const uint64_t *allowed = NULL;
    bool any = !r->desc.matcher;

    *token = TD_NO_TOKEN;
    r->state = TD_REPLY_GOES_ON;
    if (!of->logits) {
        if (td_reply_wants_all(r, of->top_count) ||
            !td_sampler_next_of_tops(r->sampler, of, history->ids, history->count, token))
            r->state = TD_REPLY_ASKS;
        return TANDEM_OK;
    }
    if (r->desc.matcher) {
        const tandem_status status = td_matcher_tokens(r->desc.matcher, &allowed, why, why_bytes);

        if (status != TANDEM_OK)
            return status;
    }
    for (uint32_t i = 0; i < (words + 63) / 64 && !any; i++)
        any = allowed[i] != 0;
    if (any)
        *token = td_sampler_next(r->sampler, of->logits, allowed, history->ids, history->count);
    return TANDEM_OK;
}

static tandem_status show(td_reply *r, const char *text, size_t bytes)
{
    if (r->shown_bytes + bytes > r->shown_room) {
        const size_t room = 2 * (r->shown_bytes + bytes);
        char *more = realloc(r->shown, room);

        if (!more)
            return TANDEM_ERROR_NOMEM;
        r->shown = more;
        r->shown_room = room;
    }
    if (bytes)
        memcpy(r->shown + r->shown_bytes, text, bytes);
    r->shown_bytes += bytes;
    return TANDEM_OK;
}

/* The text goes on with so many bytes of r->text. */
static tandem_status add_text(td_reply *r, size_t bytes)
{
    const char *text;
    size_t shown;

    r->text_bytes += bytes;
    tandem_status status = td_stops_add(&r->stops, r->text, bytes, &text, &shown);

    if (status == TANDEM_OK)
        status = show(r, text, shown);
    if (r->stops.found)
        r->state = TD_REPLY_STOPPED;
    return status;
}

/* Shows what is held back, as nothing follows. */
static tandem_status end_text(td_reply *r)
{
    tandem_status status = add_text(r, td_decoder_end(&r->decoder, r->text));
    const char *text;
    size_t bytes;

    td_stops_end(&r->stops, &text, &bytes);
    return status == TANDEM_OK ? show(r, text, bytes) : status;
}

static tandem_status add_token(td_reply *r, const float *logits, td_tokens *history, uint32_t token)
{
    const td_tokenizer *t = r->desc.tokenizer;
    tandem_status status = td_tokens_add(history, token);

    if (status != TANDEM_OK)
        return status;
    if (r->desc.scores)
        r->score += score_of(logits, td_tokenizer_count(t), token);
    if (r->desc.matcher)
        td_matcher_add_token(r->desc.matcher, token);
    r->tokens++;
    status = add_text(r, td_decoder_add(&r->decoder, token, r->text));
    if (r->state == TD_REPLY_GOES_ON && r->desc.matcher && td_matcher_must_end(r->desc.matcher))
        r->state = TD_REPLY_ENDED;
    if (r->state == TD_REPLY_GOES_ON && r->tokens == r->desc.most_tokens)
        r->state = TD_REPLY_FULL;
    return status;
}

tandem_status td_reply_next(td_reply *r, const td_words *words, td_tokens *history, const char **text,
                            size_t *text_bytes, char *why, size_t why_bytes)
{
    uint32_t token;
    tandem_status status;

    r->shown_bytes = 0;
    *text = r->shown;
    *text_bytes = 0;
    status = choose(r, words, history, &token, why, why_bytes);
    if (status != TANDEM_OK || r->state == TD_REPLY_ASKS)
        return status;
    if (token == TD_NO_TOKEN || td_tokenizer_is_end(r->desc.tokenizer, token))
        r->state = TD_REPLY_ENDED;
    else
        status = add_token(r, words->logits, history, token);
    if (status == TANDEM_OK && r->state != TD_REPLY_GOES_ON)
        status = end_text(r);
    *text = r->shown;
    *text_bytes = r->shown_bytes;
    return status == TANDEM_OK ? status : td_fail(why, why_bytes, status, "no memory for a reply");
}

void td_reply_cut(td_reply *r, const char **text, size_t *text_bytes)
{
    r->shown_bytes = 0;
    if (r->state == TD_REPLY_GOES_ON) {
        r->state = TD_REPLY_FULL;
        end_text(r);
    }
    *text = r->shown;
    *text_bytes = r->shown_bytes;
}

td_reply_state td_reply_state_of(const td_reply *r)
{
    return r->state;
}

size_t td_reply_text_bytes(const td_reply *r)
{
    return r->text_bytes;
}

double td_reply_score(const td_reply *r)
{
    return r->tokens ? r->score / r->tokens : 0;
}
