/* Characters that talk. See tandem/npc.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What a character is to have read is a list of tokens, which its sequence is told: what is new of
 * it is read, together with what others are to read. A step takes a token where all is read, and
 * has the sequence read that, too.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "engine_plugin/client/client.h"
#include "engine_plugin/npc/blob.h"
#include "engine_plugin/npc/characters_parts.h"

enum {
    MOST_REPLIES = TD_NPC_REPLIES,
    DEFAULT_TOKENS = 256,
    MOST_STOPS = 1024,
    MOST_BIASES = 65536
};
#define RETRY_NS 100000u /* how long to wait for others who may go on, or for room for a job */

typedef td_said said;

/* --- Characters --- */

static char *copy_text(const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);

    return copy ? memcpy(copy, text, bytes) : NULL;
}

static void free_said(said *s)
{
    free(s->text);
    td_likelies_free(&s->likely);
}

static void free_npc(tandem_npc *n)
{
    td_sequence_close(&n->read);
    td_stage_destroy(&n->own);
    td_reply_destroy(&n->reply);
    td_npc_free_grammar(n);
    td_history_free(&n->history);
    td_tokens_free(&n->tokens);
    td_arena_free(&n->copies);
    for (int i = 0; i < MOST_REPLIES; i++)
        free_said(&n->said[i]);
    free(n->first);
    free(n->news_text);
    free(n);
}

static td_stage *stage_of(const tandem_npc *n)
{
    return n->own ? n->own : n->language->stage;
}

/* What goes wrong is told. */
static tandem_status open_sequence(tandem_npc *n, const char *call)
{
    const tandem_language *l = n->language;
    const td_stage_desc desc = td_language_stage_desc(l);
    tandem_status status =
        l->pages ? td_language_stage(n->language) : td_stage_create(&desc, &n->own);

    if (status != TANDEM_OK)
        return status;
    status = td_sequence_open(stage_of(n), &n->read);
    return status == TANDEM_OK
               ? status
               : td_session_fail(l->session, call, status, "no memory for a character");
}

static tandem_status check_desc(const tandem_language *l, const tandem_npc_desc *desc, char *why)
{
    if (desc->plain > 1)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.plain is %" PRIu32 ", not 0 or 1",
                       desc->plain);
    if (!desc->plain && !l->form)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "the language's dialogues are in no form that is known; "
                       "tandem_language_desc.form names one, desc.plain goes without");
    return TANDEM_OK;
}

/* What goes wrong is told. */
static tandem_status make_npc(tandem_language *l, const tandem_npc_desc *desc, const char *call,
                              tandem_npc **out)
{
    tandem_npc *n = calloc(1, sizeof *n);

    if (n && desc->persona)
        n->history.persona = copy_text(desc->persona);
    if (!n || (desc->persona && !n->history.persona)) {
        free(n);
        return td_session_fail(l->session, call, TANDEM_ERROR_NOMEM, "no memory for a character");
    }
    n->language = l;
    n->plain = desc->plain;
    const tandem_status status = open_sequence(n, call);
    if (status != TANDEM_OK) {
        free_npc(n);
        return status;
    }
    atomic_fetch_add(&l->npcs, 1);
    *out = n;
    return TANDEM_OK;
}

tandem_status tandem_npc_create(tandem_language *language, const tandem_npc_desc *desc,
                                tandem_npc **out)
{
    char why[TD_WHY_BYTES] = "";
    tandem_npc_desc known;
    tandem_status status;

    if (out)
        *out = NULL;
    if (!language)
        return td_call_fail(__func__, TANDEM_ERROR_ARG, "language is NULL");
    if (!td_session_usable(language->session, __func__))
        return TANDEM_ERROR_ARG;
    if (!desc || !out)
        return td_session_fail(language->session, __func__, TANDEM_ERROR_ARG,
                               desc ? "out is NULL" : "desc is NULL");
    status = TD_STRUCT_IN("desc", desc, &known, why, sizeof why);
    if (status == TANDEM_OK)
        status = check_desc(language, &known, why);
    if (status != TANDEM_OK)
        return td_session_fail(language->session, __func__, status, why);
    return make_npc(language, &known, __func__, out);
}

/* What every call looks at first. */
static bool is_usable(const tandem_npc *n, const char *call)
{
    if (!n)
        td_call_fail(call, TANDEM_ERROR_ARG, "npc is NULL");
    return n && td_session_usable(n->language->session, call);
}

static tandem_status fail(const tandem_npc *n, const char *call, tandem_status status,
                          const char *why)
{
    return td_session_fail(n->language->session, call, status, why);
}

tandem_status tandem_npc_destroy(tandem_npc **npc)
{
    if (!npc || !*npc)
        return td_call_fail(__func__, TANDEM_ERROR_ARG, npc ? "*npc is NULL" : "npc is NULL");
    if (!td_session_is_here((*npc)->language->session, __func__))
        return TANDEM_ERROR_ARG;
    tandem_language *language = (*npc)->language;
    free_npc(*npc);
    atomic_fetch_sub(&language->npcs, 1); /* which may be destroyed from now on */
    *npc = NULL;
    return TANDEM_OK;
}

/* --- What is said --- */

static tandem_status copy_sampling(tandem_npc *n, const tandem_sampling *from, char *why)
{
    tandem_sampling s;
    const tandem_status status = TD_STRUCT_IN("say.sampling", from, &s, why, TD_WHY_BYTES);

    if (status != TANDEM_OK)
        return status;
    if (s.reserved || s.bias_count > MOST_BIASES || (s.bias_count && (!s.bias_tokens || !s.biases)))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "say.sampling.%s",
                       s.reserved                   ? "reserved is not 0"
                       : s.bias_count > MOST_BIASES ? "bias_count is more than 65536"
                                                    : "bias_tokens or biases is NULL");
    td_logit_bias *biases =
        td_arena_take(&n->copies, (s.bias_count + 1) * sizeof *biases, _Alignof(td_logit_bias));
    if (!biases)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no memory for what is said");
    for (uint32_t i = 0; i < s.bias_count; i++)
        biases[i] = (td_logit_bias){s.bias_tokens[i], s.biases[i]};
    n->how.how = (td_sampling){.seed = s.seed,
                               .temperature = s.temperature,
                               .top_k = s.top_k,
                               .typical_p = s.typical_p,
                               .top_p = s.top_p,
                               .min_p = s.min_p,
                               .xtc_probability = s.xtc_probability,
                               .xtc_threshold = s.xtc_threshold,
                               .penalty_last = s.penalty_last,
                               .repetition = s.repetition,
                               .frequency = s.frequency,
                               .presence = s.presence,
                               .dry_multiplier = s.dry_multiplier,
                               .dry_base = s.dry_base,
                               .dry_length = s.dry_length,
                               .dry_last = s.dry_last,
                               .bias_count = s.bias_count,
                               .biases = biases};
    return TANDEM_OK;
}

static tandem_status copy_stops(tandem_npc *n, const tandem_say *say, char *why)
{
    const char **stops =
        td_arena_take(&n->copies, (say->stop_count + 1) * sizeof *stops, _Alignof(const char *));

    for (uint32_t i = 0; i < say->stop_count && stops; i++) {
        const char *stop = say->stops[i];

        if (!stop || !*stop)
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "say.stops[%" PRIu32 "] is %s", i,
                           stop ? "empty" : "NULL");
        stops[i] = td_arena_text(&n->copies, stop, strlen(stop));
        if (!stops[i])
            stops = NULL;
    }
    if (!stops)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no memory for what is said");
    n->how.stops = stops;
    n->how.stop_count = say->stop_count;
    return TANDEM_OK;
}

static tandem_status check_say(const tandem_npc *n, const tandem_say *say, char *why)
{
    const char *wrong = say->stop_count && !say->stops ? "say.stops is NULL"
                        : n->plain && !say->text       ? "say.text is NULL"
                        : !say->text && !n->history.count
                            ? "say.text is NULL, and nothing was said before"
                            : NULL;

    if (wrong)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "%s", wrong);
    if (say->replies > MOST_REPLIES)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "say.replies is %" PRIu32 "; at most %d are made", say->replies,
                       MOST_REPLIES);
    if (say->logprobs > 1 || say->top_logprobs > TD_LIKELY_TOPS ||
        (say->top_logprobs && !say->logprobs))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "say.logprobs is %" PRIu32 " and say.top_logprobs %" PRIu32
                       "; they must be 0 or 1, and with 1 at most %d",
                       say->logprobs, say->top_logprobs, TD_LIKELY_TOPS);
    if (say->stop_count > MOST_STOPS)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "say.stop_count is %" PRIu32 "; it may be at most %d", say->stop_count,
                       MOST_STOPS);
    return TANDEM_OK;
}

/* How it is to be answered. */
static tandem_status copy_say(tandem_npc *n, const tandem_say *say, char *why)
{
    tandem_status status = TANDEM_OK;

    td_reply_destroy(&n->reply);
    td_arena_reset(&n->copies);
    n->say = *say;
    n->say.replies = say->replies ? say->replies : 1;
    n->say.most_tokens = say->most_tokens ? say->most_tokens : DEFAULT_TOKENS;
    n->how = (td_reply_desc){.tokenizer = n->language->tokenizer, .scores = n->say.replies > 1};
    if (say->sampling)
        status = copy_sampling(n, say->sampling, why);
    if (status == TANDEM_OK)
        status = copy_stops(n, say, why);
    if (status == TANDEM_OK && (say->grammar || say->json_schema)) {
        status = td_npc_take_grammar(n, say->grammar, say->json_schema, why);
        n->how.matcher = n->matcher;
    }
    if (status == TANDEM_OK && n->say.replies > 1 && !n->first) {
        n->first = malloc(n->language->words * sizeof *n->first);
        if (!n->first)
            status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no memory for replies");
    }
    n->how.most_tokens = n->say.most_tokens;
    return status == TANDEM_OK ? td_reply_create(&n->how, &n->reply, why, TD_WHY_BYTES) : status;
}

/* --- The prompt --- */

/* Persona and text as they are. */
static tandem_status encode_plain(const tandem_npc *n, const char *text, td_tokens *out, char *why)
{
    const td_tokenizer *t = n->language->tokenizer;
    const char *persona = n->history.persona ? n->history.persona : "";
    const td_text_part parts[] = {{persona, strlen(persona), false}, {text, strlen(text), false}};
    tandem_status status = TANDEM_OK;

    if (td_tokenizer_begins(t) && td_tokens_add(out, td_tokenizer_begin(t)) != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no memory for tokens");
    status = td_tokenizer_encode(t, parts, 2, out, why, TD_WHY_BYTES);
    if (status == TANDEM_OK && out->count >= n->language->context)
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                         "say.text has %zu tokens; the context has %" PRIu32 ", with a reply",
                         out->count, n->language->context);
    return status;
}

/* With what is said as its last turn; without that if it fails. */
static tandem_status encode_dialogue(tandem_npc *n, const char *text, td_tokens *out, char *why)
{
    const tandem_language *l = n->language;
    const uint32_t quarter = l->context / 4,
                   reply = n->say.most_tokens < quarter ? n->say.most_tokens : quarter;
    tandem_status status = TANDEM_OK;

    if (text)
        status = td_history_add(&n->history, TD_CHAT_USER, text, strlen(text));
    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "no memory for what is said");
    status = td_history_encode(&n->history, l->tokenizer, l->form, l->context, reply, out, why,
                               TD_WHY_BYTES);
    if (status != TANDEM_OK && text)
        td_history_drop_last(&n->history);
    return status;
}

/* All, or the largest where those may do. */
static void want_logits(tandem_npc *n)
{
    td_sequence_want_all(n->read, n->say.logprobs || td_reply_wants_all(n->reply, n->language->tops));
}

/* In place of what was to be read so far. */
static tandem_status take_prompt(tandem_npc *n, td_tokens *prompt, char *why)
{
    want_logits(n);
    const tandem_status status = td_sequence_read(n->read, prompt->ids, prompt->count);

    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "no memory for what is said");
    const td_sequence_state state = td_sequence_look(n->read);
    td_tokens_free(&n->tokens);
    n->tokens = *prompt;
    *prompt = (td_tokens){0};
    n->prompt = n->tokens.count;
    n->new = n->prompt - state.read;
    n->before = state.tokens;
    return status;
}

static void begin_said(tandem_npc *n, uint32_t index)
{
    said *s = &n->said[index];

    s->bytes = 0;
    s->tokens = 0;
    s->likely.count = 0;
    s->end = TANDEM_REPLY_OPEN;
    s->score = 0;
    n->current = index;
    n->begun = index + 1;
}

static tandem_status begin_answer(tandem_npc *n, const char *text, char *why)
{
    td_tokens prompt = {0};
    tandem_status status =
        n->plain ? encode_plain(n, text, &prompt, why) : encode_dialogue(n, text, &prompt, why);

    if (status == TANDEM_OK && !prompt.count)
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "what is said has no token");
    if (status == TANDEM_OK) {
        td_reply_shorten(n->reply, n->language->context - (uint32_t)prompt.count);
        if (n->how.matcher)
            td_matcher_restart(n->how.matcher);
        status = take_prompt(n, &prompt, why);
    }
    if (status == TANDEM_OK) {
        begin_said(n, 0);
        n->at_first = n->answered = n->cancelled = false;
        n->news = (tandem_npc_news){0};
        n->state = TANDEM_NPC_READING;
    }
    td_tokens_free(&prompt);
    return status;
}

tandem_status tandem_npc_say(tandem_npc *npc, const tandem_say *say)
{
    char why[TD_WHY_BYTES] = "";
    tandem_say known;
    tandem_status status;

    if (!is_usable(npc, __func__))
        return TANDEM_ERROR_ARG;
    if (!say)
        return fail(npc, __func__, TANDEM_ERROR_ARG, "say is NULL");
    if (npc->state != TANDEM_NPC_IDLE || npc->in_call)
        return fail(npc, __func__, TANDEM_ERROR_BUSY, "it answers what was said before");
    status = TD_STRUCT_IN("say", say, &known, why, sizeof why);
    if (status == TANDEM_OK)
        status = check_say(npc, &known, why);
    if (status == TANDEM_OK)
        status = copy_say(npc, &known, why);
    if (status != TANDEM_OK)
        return fail(npc, __func__, status, why);
    status = begin_answer(npc, known.text, why);
    return status == TANDEM_OK ? status : fail(npc, __func__, status, why);
}

/* --- Replies --- */

static bool append(char **to, size_t *count, size_t *room, const char *text, size_t bytes)
{
    if (*count + bytes + 1 > *room) {
        const size_t more = 2 * (*count + bytes) + 64;
        char *grown = realloc(*to, more);

        if (!grown)
            return false;
        *to = grown;
        *room = more;
    }
    if (bytes)
        memcpy(*to + *count, text, bytes);
    *count += bytes;
    (*to)[*count] = 0;
    return true;
}

/* More of the current reply: into the news, too. */
static tandem_status gain(tandem_npc *n, const char *text, size_t bytes)
{
    said *s = &n->said[n->current];
    size_t news_bytes = (size_t)n->news.text_bytes;

    if (!append(&s->text, &s->bytes, &s->room, text, bytes) ||
        !append(&n->news_text, &news_bytes, &n->news_room, text, bytes))
        return TANDEM_ERROR_NOMEM;
    n->news.text_bytes = news_bytes;
    if (bytes && n->say.on_text) {
        n->in_call = true;
        n->say.on_text(n->say.user, n->current, text, bytes);
        n->in_call = false;
    }
    return TANDEM_OK;
}

static uint32_t best_of(const tandem_npc *n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n->begun; i++)
        if (n->said[i].score > n->said[best].score)
            best = i;
    return best;
}

/* That reply is the last turn. */
static tandem_status remember(tandem_npc *n, uint32_t index)
{
    const said *s = &n->said[index];

    if (n->plain)
        return TANDEM_OK;
    if (n->answered)
        td_history_drop_last(&n->history);
    n->answered =
        td_history_add(&n->history, TD_CHAT_REPLY, s->text ? s->text : "", s->bytes) == TANDEM_OK;
    return n->answered ? TANDEM_OK : TANDEM_ERROR_NOMEM;
}

/* The current reply is over: the next one begins, or the answer is. */
static tandem_status end_reply(tandem_npc *n, uint32_t end)
{
    said *s = &n->said[n->current];

    s->end = end;
    s->score = td_reply_score(n->reply);
    n->news.end = end;
    if (end == TANDEM_REPLY_CANCELLED || n->current + 1 == n->say.replies) {
        n->state = TANDEM_NPC_IDLE;
        td_sequence_rest(n->read);
        return remember(n, best_of(n));
    }
    td_reply_restart(n->reply);
    n->tokens.count = n->prompt;
    n->at_first = true;
    begin_said(n, n->current + 1);
    return TANDEM_OK;
}

/* It has no more to say; what it was about to is lost. */
static tandem_status fail_answer(tandem_npc *n, tandem_status status)
{
    n->said[n->current].end = n->news.end = TANDEM_REPLY_FAILED;
    n->news.reply = n->current;
    n->state = TANDEM_NPC_IDLE;
    td_sequence_rest(n->read);
    return status;
}

static tandem_status cut(tandem_npc *n)
{
    const char *text;
    size_t bytes;

    td_reply_cut(n->reply, &text, &bytes);
    n->news.reply = n->current;
    const tandem_status status = gain(n, text, bytes), ended = end_reply(n, TANDEM_REPLY_CANCELLED);
    return status == TANDEM_OK ? ended : status;
}

tandem_status tandem_npc_cancel(tandem_npc *npc)
{
    if (!is_usable(npc, __func__))
        return TANDEM_ERROR_ARG;
    if (npc->in_call) {
        npc->cancelled = true;
        return TANDEM_OK;
    }
    if (npc->state == TANDEM_NPC_IDLE)
        return TANDEM_OK;
    const tandem_status status = cut(npc);
    return status == TANDEM_OK ? status : fail(npc, __func__, status, "no memory for a reply");
}

/* --- Step by step --- */

/* What was likely where the reply has gained a token, if it has. */
static tandem_status keep_likely(tandem_npc *n, const float *logits, size_t tokens, size_t text_at)
{
    if (!n->say.logprobs || n->tokens.count == tokens)
        return TANDEM_OK;
    return td_likelies_add(&n->said[n->current].likely, logits, n->language->words,
                           n->tokens.ids[tokens], text_at, n->say.top_logprobs);
}

static tandem_status take_token(tandem_npc *n, const td_sequence_state *read, char *why)
{
    static const uint32_t ends[] = {[TD_REPLY_ENDED] = TANDEM_REPLY_ENDED,
                                    [TD_REPLY_STOPPED] = TANDEM_REPLY_STOPPED,
                                    [TD_REPLY_FULL] = TANDEM_REPLY_FULL};
    const float *logits = n->at_first ? n->first : read->logits;
    const td_words words = {.logits = logits, .tops = read->tops, .top_count = n->language->tops};
    const size_t bytes = n->language->words * sizeof *logits, tokens = n->tokens.count,
                 text_at = td_reply_text_bytes(n->reply);
    const char *text;
    size_t count;

    if (n->state == TANDEM_NPC_READING && n->first && n->say.replies > 1)
        memcpy(n->first, logits, bytes);
    if (n->state == TANDEM_NPC_READING)
        n->new = (size_t)(read->tokens - n->before);
    n->state = TANDEM_NPC_TALKING;
    n->at_first = false;
    tandem_status status =
        td_reply_next(n->reply, &words, &n->tokens, &text, &count, why, TD_WHY_BYTES);
    if (status != TANDEM_OK)
        return status;
    n->said[n->current].tokens = (uint32_t)(n->tokens.count - n->prompt);
    n->news.reply = n->current;
    n->news.reply_tokens = n->said[n->current].tokens;
    status = keep_likely(n, logits, tokens, text_at);
    if (status == TANDEM_OK)
        status = gain(n, text, count);
    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "no memory for a reply");
    if (n->cancelled)
        return cut(n);
    if (td_reply_state_of(n->reply) != TD_REPLY_GOES_ON && td_reply_state_of(n->reply) != TD_REPLY_ASKS)
        status = end_reply(n, ends[td_reply_state_of(n->reply)]);
    return status;
}

/* As far as it goes without waiting. What goes wrong is told. */
static tandem_status step(tandem_npc *n, const char *call)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_OK;

    td_stage_step(stage_of(n), n->state == TANDEM_NPC_IDLE ? NULL : n->read);
    if (n->state == TANDEM_NPC_IDLE)
        return TANDEM_OK;
    const td_sequence_state read = td_sequence_look(n->read);
    if (read.is == TD_SEQUENCE_FAILED)
        return fail_answer(n, read.status);
    if (read.is != TD_SEQUENCE_KNOWS)
        return TANDEM_OK;
    status = take_token(n, &read, why);
    if (status == TANDEM_OK && n->state != TANDEM_NPC_IDLE && !n->at_first) {
        want_logits(n);
        status = td_sequence_read(n->read, n->tokens.ids, n->tokens.count);
        if (status != TANDEM_OK)
            td_text(why, sizeof why, "no memory for a reply");
    }
    if (status != TANDEM_OK) {
        fail(n, call, status, why);
        return fail_answer(n, status);
    }
    td_stage_step(stage_of(n), n->state == TANDEM_NPC_IDLE ? NULL : n->read);
    return status;
}

static bool is_news(const tandem_npc *n)
{
    return n->news.text_bytes || n->news.end;
}

static void tell(tandem_npc *n, tandem_npc_news *news)
{
    n->news.state = n->state;
    n->news.text = n->news.text_bytes ? n->news_text : "";
    n->news.prompt_tokens = (uint32_t)n->prompt;
    n->news.read_tokens = (uint32_t)n->new;
    n->news.forgotten = n->history.forgotten;
    TD_STRUCT_OUT(news, &n->news);
    n->news = (tandem_npc_news){.reply = n->current, .reply_tokens = n->said[n->current].tokens};
}

static tandem_status check_news(const tandem_npc *n, const char *call, const tandem_npc_news *news)
{
    char why[TD_WHY_BYTES] = "";

    if (!is_usable(n, call))
        return TANDEM_ERROR_ARG;
    if (!news)
        return fail(n, call, TANDEM_ERROR_ARG, "news is NULL");
    if (n->in_call)
        return fail(n, call, TANDEM_ERROR_ARG, "called by on_text");
    const tandem_status status = TD_STRUCT_CHECK("news", news, why, sizeof why);
    return status == TANDEM_OK ? status : fail(n, call, status, why);
}

tandem_status tandem_npc_poll(tandem_npc *npc, tandem_npc_news *news)
{
    tandem_status status = check_news(npc, __func__, news);

    if (status != TANDEM_OK)
        return status;
    if (!is_news(npc))
        status = step(npc, __func__);
    tell(npc, news);
    return status;
}

tandem_status tandem_npc_wait(tandem_npc *npc, uint64_t timeout_ns, tandem_npc_news *news)
{
    tandem_status status = check_news(npc, __func__, news);

    if (status != TANDEM_OK)
        return status;
    const uint64_t now = td_now_ns(),
                   until = now + timeout_ns < now ? UINT64_MAX : now + timeout_ns;
    while (!is_news(npc) && status == TANDEM_OK) {
        status = step(npc, __func__);
        if (is_news(npc) || npc->state == TANDEM_NPC_IDLE || status != TANDEM_OK)
            break;
        const uint64_t at = td_now_ns(), left = at < until ? until - at : 0;
        if (!left)
            status = TANDEM_ERROR_BUSY;
        else if (!td_stage_wait(stage_of(npc), left))
            td_sleep_ns(left < RETRY_NS ? left : RETRY_NS);
    }
    tell(npc, news);
    return status;
}

/* --- Replies and histories --- */

tandem_status tandem_npc_get_reply(tandem_npc *npc, uint32_t index, tandem_npc_reply *reply)
{
    char why[TD_WHY_BYTES] = "";
    tandem_npc_reply ours = {0};

    if (!is_usable(npc, __func__))
        return TANDEM_ERROR_ARG;
    if (!reply)
        return fail(npc, __func__, TANDEM_ERROR_ARG, "reply is NULL");
    tandem_status status = TD_STRUCT_CHECK("reply", reply, why, sizeof why);
    if (status == TANDEM_OK && index >= npc->begun)
        status = td_fail(why, sizeof why, TANDEM_ERROR_ARG,
                         "index is %" PRIu32 "; %" PRIu32 " have begun", index, npc->begun);
    if (status != TANDEM_OK)
        return fail(npc, __func__, status, why);
    const said *s = &npc->said[index];
    ours.end = s->end;
    ours.text = s->bytes ? s->text : "";
    ours.text_bytes = s->bytes;
    ours.tokens = s->tokens;
    ours.score = (float)s->score;
    TD_STRUCT_OUT(reply, &ours);
    return TANDEM_OK;
}

static tandem_status check_idle(const tandem_npc *n, const char *call)
{
    if (!is_usable(n, call))
        return TANDEM_ERROR_ARG;
    if (n->state != TANDEM_NPC_IDLE || n->in_call)
        return fail(n, call, TANDEM_ERROR_BUSY, "it answers what was said before");
    return TANDEM_OK;
}

tandem_status tandem_npc_choose(tandem_npc *npc, uint32_t index)
{
    char why[TD_WHY_BYTES];
    tandem_status status = check_idle(npc, __func__);

    if (status != TANDEM_OK)
        return status;
    if (index >= npc->begun || !npc->answered) {
        td_text(why, sizeof why,
                "index is %" PRIu32 "; %" PRIu32 " replies are in the history's place", index,
                npc->answered ? npc->begun : 0);
        return fail(npc, __func__, TANDEM_ERROR_ARG, why);
    }
    status = remember(npc, index);
    return status == TANDEM_OK ? status : fail(npc, __func__, status, "no memory for a turn");
}

static tandem_status read_turn(td_history *to, const tandem_turn *turns, uint32_t index, char *why)
{
    const char *at = (const char *)turns + (size_t)index * turns->struct_bytes;
    char what[TD_WHY_BYTES], name[40];
    tandem_turn known;
    tandem_status status;

    td_text(name, sizeof name, "turns[%" PRIu32 "]", index);
    status = TD_STRUCT_IN(name, (const tandem_turn *)(const void *)at, &known, what, sizeof what);
    if (status != TANDEM_OK)
        return td_fail(why, TD_WHY_BYTES, status, "%s", what);
    if (known.role > TANDEM_ROLE_NPC || !known.text)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "%s.%s", name,
                       known.text ? "role is none" : "text is NULL");
    status = td_history_add(to, (td_chat_role)known.role, known.text, strlen(known.text));
    return status == TANDEM_OK ? status
                               : td_fail(why, TD_WHY_BYTES, status, "no memory for a turn");
}

tandem_status tandem_npc_set_history(tandem_npc *npc, const tandem_turn *turns, uint32_t count)
{
    char why[TD_WHY_BYTES] = "";
    td_history made = {0};
    tandem_status status = check_idle(npc, __func__);

    if (status != TANDEM_OK)
        return status;
    if ((count && !turns) || npc->plain)
        return fail(npc, __func__, TANDEM_ERROR_ARG,
                    npc->plain ? "the character is plain: it has no turns" : "turns is NULL");
    for (uint32_t i = 0; i < count && status == TANDEM_OK; i++)
        status = read_turn(&made, turns, i, why);
    if (status != TANDEM_OK) {
        td_history_free(&made);
        return fail(npc, __func__, status, why);
    }
    made.persona = npc->history.persona;
    npc->history.persona = NULL;
    td_history_free(&npc->history);
    npc->history = made;
    npc->answered = false;
    return TANDEM_OK;
}

tandem_status tandem_npc_get_history(tandem_npc *npc, uint32_t *count, tandem_turn *turns)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_OK;

    if (!is_usable(npc, __func__))
        return TANDEM_ERROR_ARG;
    if (!count)
        return fail(npc, __func__, TANDEM_ERROR_ARG, "count is NULL");
    const uint32_t room = *count, all = (uint32_t)npc->history.count;
    *count = all;
    if (!turns)
        return TANDEM_OK;
    if (room)
        status = TD_STRUCT_CHECK("turns[0]", turns, why, sizeof why);
    if (status != TANDEM_OK)
        return fail(npc, __func__, status, why);
    const uint32_t bytes = room ? turns->struct_bytes : 0;
    for (uint32_t i = 0; i < all && i < room; i++) {
        const td_chat_turn *t = &npc->history.turns[i];
        const tandem_turn ours = {.role = (uint32_t)t->role, .text = t->text};
        tandem_turn *to = (tandem_turn *)(void *)((char *)turns + (size_t)i * bytes);

        to->struct_bytes = bytes;
        TD_STRUCT_OUT(to, &ours);
    }
    return room < all ? fail(npc, __func__, TANDEM_ERROR_BUSY, "*count is too small") : TANDEM_OK;
}

/* --- Saved --- */

static td_blob_kind kind_of(const tandem_npc *n)
{
    const tandem_language *l = n->language;
    const char *persona = n->history.persona;
    uint64_t hash = TD_BLOB_HASH;

    if (persona)
        hash = td_blob_hash(hash, persona, strlen(persona) + 1);
    return (td_blob_kind){.model = l->model_hash,
                          .persona = hash,
                          .cache = l->cache,
                          .layers = l->layers,
                          .kv_heads = l->kv_heads,
                          .head_dim = l->head_dim,
                          .words = td_tokenizer_count(l->tokenizer),
                          .plain = n->plain};
}

/* How many pages of these tokens are the persona's, which whoever restores them has, too. */
static tandem_status find_prefix(const tandem_npc *n, const td_saved *saved, uint32_t *pages,
                                 char *why)
{
    const tandem_language *l = n->language;
    const char *persona = n->history.persona;
    td_tokens tokens = {0};
    tandem_status status = TANDEM_OK;
    size_t same = 0;

    if (n->plain)
        status = encode_plain(n, "", &tokens, why);
    else if (persona)
        status = td_chat_encode(l->tokenizer, l->form,
                                &(td_chat_turn){TD_CHAT_SYSTEM, persona, strlen(persona)}, 1, false,
                                &tokens, why, TD_WHY_BYTES);
    while (same < tokens.count && same < saved->count && tokens.ids[same] == saved->ids[same])
        same++;
    td_tokens_free(&tokens);
    *pages = (uint32_t)(same / TD_PAGE_TOKENS) < saved->pages ? (uint32_t)(same / TD_PAGE_TOKENS)
                                                              : saved->pages;
    return status;
}

/* What there is to save but its caches. */
static tandem_status describe(tandem_npc *n, td_saved *saved, td_blob *blob, char *why)
{
    tandem_status status = td_sequence_saved(n->read, saved, why);
    uint32_t first = 0;

    if (status == TANDEM_OK)
        status = find_prefix(n, saved, &first, why);
    *blob = (td_blob){.kind = kind_of(n),
                      .token_count = (uint32_t)saved->count,
                      .first_page = first,
                      .pages = saved->pages,
                      .tail = saved->tail,
                      .forgotten = n->history.forgotten,
                      .turn_count = (uint32_t)n->history.count,
                      .tokens = saved->ids,
                      .turns = n->history.turns,
                      .data_bytes =
                          td_stage_saved_bytes(stage_of(n), saved->pages - first, saved->tail)};
    return status;
}

tandem_status tandem_npc_save(tandem_npc *npc, void *to, uint64_t *bytes)
{
    char why[TD_WHY_BYTES] = "";
    td_saved saved = {0};
    td_blob blob;
    tandem_status status = check_idle(npc, __func__);

    if (status != TANDEM_OK)
        return status;
    if (!bytes)
        return fail(npc, __func__, TANDEM_ERROR_ARG, "bytes is NULL");
    status = describe(npc, &saved, &blob, why);
    if (status != TANDEM_OK)
        return fail(npc, __func__, status, why);
    const uint64_t room = *bytes;
    *bytes = td_blob_bytes(&blob);
    if (*bytes == UINT64_MAX)
        return fail(npc, __func__, TANDEM_ERROR_UNSUPPORTED, "it has said too much to be saved");
    if (!to)
        return TANDEM_OK;
    if (room < *bytes)
        return fail(npc, __func__, TANDEM_ERROR_BUSY, "*bytes is too small");
    status = td_sequence_save(npc->read, &saved, blob.first_page, td_blob_write(&blob, to), why);
    if (status != TANDEM_OK)
        return fail(npc, __func__, status, why);
    td_blob_seal(to, *bytes);
    return TANDEM_OK;
}

/* The history of a blob, and what its sequence has read. */
static tandem_status take_blob(tandem_npc *n, const td_blob *blob, char *why)
{
    const td_saved saved = {
        .ids = blob->tokens, .count = blob->token_count, .pages = blob->pages, .tail = blob->tail};
    td_history made = {.forgotten = blob->forgotten};
    tandem_status status = TANDEM_OK;

    if (blob->data_bytes !=
        td_stage_saved_bytes(stage_of(n), blob->pages - blob->first_page, blob->tail))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_PROTOCOL,
                       "it has %" PRIu64
                       " bytes of caches, which are not those of its pages %" PRIu32 " to %" PRIu32
                       " and %" PRIu32 " tokens",
                       blob->data_bytes, blob->first_page, blob->pages, blob->tail);
    for (uint32_t i = 0; i < blob->turn_count && status == TANDEM_OK; i++)
        status =
            td_history_add(&made, blob->turns[i].role, blob->turns[i].text, blob->turns[i].bytes);
    if (status == TANDEM_OK)
        status = td_sequence_restore(n->read, &saved, blob->first_page, blob->data);
    if (status != TANDEM_OK) {
        td_history_free(&made);
        return td_fail(why, TD_WHY_BYTES, status, "no memory for what was saved");
    }
    made.persona = n->history.persona;
    n->history.persona = NULL;
    td_history_free(&n->history);
    n->history = made;
    n->answered = false; /* of which there are no replies to choose from */
    n->begun = 0;
    return status;
}

tandem_status tandem_npc_restore(tandem_npc *npc, const void *from, uint64_t bytes)
{
    char why[TD_WHY_BYTES] = "", what[TD_WHY_BYTES] = "";
    td_blob blob;
    tandem_status status = check_idle(npc, __func__);

    if (status != TANDEM_OK)
        return status;
    if (!from)
        return fail(npc, __func__, TANDEM_ERROR_ARG, "from is NULL");
    const td_blob_kind kind = kind_of(npc);
    status = td_blob_read(from, bytes, &kind, &blob, what, sizeof what);
    if (status == TANDEM_OK) {
        status = take_blob(npc, &blob, what);
        td_blob_free(&blob);
    }
    if (status == TANDEM_OK)
        return status;
    td_text(why, sizeof why, "from: %s", what);
    return fail(npc, __func__, status, why);
}
