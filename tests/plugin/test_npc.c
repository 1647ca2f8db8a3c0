/* Characters: what they answer is what the model's own logits say, whichever way they are asked; what
 * they read again, forget and refuse; cancelling; several replies; the demo of it all.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine_plugin/npc/speaker.h"
#include "engine_plugin/npc/utf8.h"
#include "kernels/model/json.h"
#include "tandem/plugin.h"
#include "tests/kernels/llama_file.h"
#include "tests/plugin/session_must.h"

enum { CONTEXT = 160, WORDS = 300 };
#define SECONDS 1000000000ull

static const lf_shape shape = {.layers = 2, .dim = 64, .hidden = 128, .heads = 2, .kv_heads = 1,
                               .head_dim = 32, .rotated_channels = 32, .words = WORDS, .context = CONTEXT,
                               .dtype = TANDEM_DTYPE_F16, .speaks = true};
static char path[60];
static tandem_session *session;
static tandem_language *language;

static void must(tandem_status status) { session_must(session, status); }

static void must_fail(tandem_status status, tandem_status with, const char *says)
{
    session_must_fail(session, status, with, says);
}

static int begin(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/tandem_npc_%d.gguf", (int)getpid());
    lf_write(path, &shape, NULL);
    return tandem_session_create(&TANDEM_INIT(tandem_session_desc, .cpu_threads = 1, .rung = TANDEM_RUNG_CPU), &session) ||
           tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = path), &language);
}

static int end(void **state)
{
    (void)state;
    unlink(path);
    return tandem_language_destroy(&language) || tandem_session_destroy(&session);
}

static tandem_npc *npc_of(const char *persona)
{
    tandem_npc *npc;

    must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .persona = persona), &npc));
    return npc;
}

/* What is answered, which the caller frees; the last news. */
static char *answer(tandem_npc *npc, const tandem_say *say, tandem_npc_news *last)
{
    char *text = calloc(1, 1 << 16);
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);

    must(tandem_npc_say(npc, say));
    do {
        size_t length;

        must(tandem_npc_wait(npc, 60 * SECONDS, &news));
        assert_int_equal(strlen(news.text), news.text_bytes);
        for (size_t at = 0; at < news.text_bytes; at += length)
            assert_int_equal(td_utf8_next(news.text + at, news.text_bytes - at, &length), TD_UTF8_WHOLE);
        strcat(text, news.text);
    } while (!news.end || news.state != TANDEM_NPC_IDLE);
    if (last)
        *last = news;
    return text;
}

/* Weights that are made up make no characters; these are some. */
#define LETTERS "root ::= [a-z ]+"

static char *answer_to(tandem_npc *npc, const char *text)
{
    return answer(npc, &TANDEM_INIT(tandem_say, .text = text, .most_tokens = 12, .grammar = LETTERS), NULL);
}

/* --- Answers --- */

/* The same, whether it remembers what was said or is told, and by whichever call it goes on. */
static void test_answers(void **state)
{
    tandem_npc *npc = npc_of("A guard."), *other = npc_of("A guard."), *told = npc_of("A guard.");
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);
    tandem_turn turns[8] = {TANDEM_INIT(tandem_turn)};
    uint32_t count = 8;
    char *first, *second, polled[400] = "";
    int polls = 0;

    (void)state;
    first = answer_to(npc, "Hello.");
    second = answer(npc, &TANDEM_INIT(tandem_say, .text = "And?", .most_tokens = 12, .grammar = LETTERS), &news);
    assert_true(*first && *second && strcmp(first, second) != 0);
    assert_int_equal(news.end, TANDEM_REPLY_FULL);
    assert_int_equal(news.reply_tokens, 12);
    assert_true(news.read_tokens < news.prompt_tokens / 2);

    must(tandem_npc_get_history(npc, &count, turns));
    assert_int_equal(count, 4);
    assert_string_equal(turns[0].text, "Hello.");
    assert_string_equal(turns[1].text, first);
    assert_string_equal(turns[2].text, "And?");
    assert_string_equal(turns[3].text, second);
    assert_int_equal(turns[3].role, TANDEM_ROLE_NPC);
    must(tandem_npc_set_history(told, turns, 3));
    char *same = answer(told, &TANDEM_INIT(tandem_say, .most_tokens = 12, .grammar = LETTERS), &news);
    assert_string_equal(same, second);
    assert_int_equal(news.read_tokens, news.prompt_tokens);

    must(tandem_npc_say(other, &TANDEM_INIT(tandem_say, .text = "Hello.", .most_tokens = 12, .grammar = LETTERS)));
    do {
        must(tandem_npc_poll(other, &news));
        strcat(polled, news.text);
        polls++;
    } while (news.state != TANDEM_NPC_IDLE);
    assert_true(polls >= 12);
    assert_string_equal(polled, first);
    free(first), free(second), free(same);
    must(tandem_npc_destroy(&npc));
    must(tandem_npc_destroy(&other));
    must(tandem_npc_destroy(&told));
}

/* Two at once, with one session: what each says does not depend on the other. */
static void test_two(void **state)
{
    static const char *const personas[] = {"A smith.", "A thief, who lies."};
    tandem_npc *npcs[2] = {npc_of(personas[0]), npc_of(personas[1])};
    char *alone[2], both[2][400] = {"", ""};
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);
    bool talks[2] = {true, true};

    (void)state;
    for (int i = 0; i < 2; i++) {
        tandem_npc *npc = npc_of(personas[i]);

        alone[i] = answer_to(npc, "Who are you?");
        must(tandem_npc_destroy(&npc));
        must(tandem_npc_say(npcs[i], &TANDEM_INIT(tandem_say, .text = "Who are you?", .most_tokens = 12, .grammar = LETTERS)));
    }
    while (talks[0] || talks[1])
        for (int i = 0; i < 2; i++) {
            if (!talks[i])
                continue;
            must(tandem_npc_poll(npcs[i], &news));
            strcat(both[i], news.text);
            talks[i] = news.state != TANDEM_NPC_IDLE;
        }
    for (int i = 0; i < 2; i++) {
        assert_string_equal(both[i], alone[i]);
        free(alone[i]);
        must(tandem_npc_destroy(&npcs[i]));
    }
}

/* Seeds make answers others, and the same ones again. */
static void test_seeds(void **state)
{
    tandem_sampling sampling = TANDEM_INIT(tandem_sampling, .temperature = 1.5f, .seed = 3, .top_k = 100);
    const tandem_say say = TANDEM_INIT(tandem_say, .text = "Well?", .most_tokens = 12, .sampling = &sampling);
    char *texts[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        tandem_npc *npc = npc_of(NULL);

        sampling.seed = i == 2 ? 4 : 3;
        texts[i] = answer(npc, &say, NULL);
        must(tandem_npc_destroy(&npc));
    }
    assert_string_equal(texts[0], texts[1]);
    assert_string_not_equal(texts[0], texts[2]);
    for (int i = 0; i < 3; i++)
        free(texts[i]);
}

/* As answer(), of any tokens, which may be bytes of 0: how many bytes. */
static size_t answer_bytes(tandem_npc *npc, const tandem_say *say, char *to, tandem_npc_news *last)
{
    size_t bytes = 0;

    *last = TANDEM_INIT(tandem_npc_news);
    must(tandem_npc_say(npc, say));
    do {
        must(tandem_npc_wait(npc, 60 * SECONDS, last));
        memcpy(to + bytes, last->text, last->text_bytes);
        bytes += last->text_bytes;
    } while (!last->end || last->state != TANDEM_NPC_IDLE);
    return bytes;
}

/* The same text by the largest logits, which do for most tokens, and by all, which probabilities take: also where what was said already
 * is so unlikely that the largest do not do any more. */
static void test_few_logits(void **state)
{
    const tandem_sampling ways[] = {TANDEM_INIT(tandem_sampling), TANDEM_INIT(tandem_sampling, .presence = 1000),
                                    TANDEM_INIT(tandem_sampling, .temperature = 1, .top_k = 40, .repetition = 1.3f, .seed = 5),
                                    TANDEM_INIT(tandem_sampling, .temperature = 2, .top_k = 64, .presence = 1000, .seed = 6)};

    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        tandem_npc *few = npc_of("one"), *all = npc_of("one");
        tandem_say say = TANDEM_INIT(tandem_say, .text = "hello", .most_tokens = 120, .sampling = &ways[i]);
        tandem_npc_news few_news, all_news;
        char by_few[4096], by_all[4096];
        const size_t bytes = answer_bytes(few, &say, by_few, &few_news);

        say.logprobs = 1;
        assert_int_equal(answer_bytes(all, &say, by_all, &all_news), bytes);
        assert_memory_equal(by_few, by_all, bytes);
        assert_int_equal(few_news.reply_tokens, all_news.reply_tokens);
        assert_int_equal(few_news.read_tokens, all_news.read_tokens);
        tandem_npc_destroy(&few);
        tandem_npc_destroy(&all);
    }
}

static void test_plain(void **state)
{
    tandem_npc *npc;
    tandem_npc_news news;
    uint32_t count = 0;

    (void)state;
    must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .plain = 1, .persona = "Once "), &npc));
    char *text = answer(npc, &TANDEM_INIT(tandem_say, .text = "upon", .most_tokens = 5), &news);
    assert_int_equal(news.prompt_tokens, 9);
    free(text);
    text = answer(npc, &TANDEM_INIT(tandem_say, .text = "upon a", .most_tokens = 5), &news);
    assert_int_equal(news.read_tokens, 2);
    free(text);
    must(tandem_npc_get_history(npc, &count, NULL));
    assert_int_equal(count, 0);
    must(tandem_npc_destroy(&npc));
}

/* --- What a reply must be --- */

static void test_grammar(void **state)
{
    tandem_npc *npc = npc_of("A merchant.");
    tandem_npc_news news;
    char *text, why[200];
    td_json json;

    (void)state;
    text = answer(npc, &TANDEM_INIT(tandem_say, .text = "Yes?", .grammar = "root ::= \"yes\" | \"no, \" [a-c]{2}"), &news);
    assert_true(!strcmp(text, "yes") || (!strncmp(text, "no, ", 4) && strlen(text) == 6));
    assert_int_equal(news.end, TANDEM_REPLY_ENDED);
    free(text);
    for (int i = 0; i < 2; i++) { /* the second time with what was learnt of it */
        text = answer(npc,
                      &TANDEM_INIT(tandem_say, .text = "What?", .json_schema = "{\"properties\": {\"do\": {\"enum\": "
                                                                               "[\"give\", \"refuse\"]}, \"n\": {\"type\": "
                                                                               "\"integer\"}}, \"required\": [\"do\"]}"),
                      &news);
        if (td_json_read(text, strlen(text), &json, why, sizeof why) != TANDEM_OK)
            fail_msg("%s: %s", text, why);
        td_json_free(&json);
        free(text);
    }
    for (int i = 0; i < 2; i++) { /* words, then an action; once more, with another one */
        text = answer(npc, &TANDEM_INIT(tandem_say, .text = "Then?", .grammar = "root ::= [a-z]{5} \" \" json",
                                        .json_schema = i ? "{\"const\": [7]}" : "{\"enum\": [[8]]}"), NULL);
        assert_string_equal(text + 5, i ? " [7]" : " [8]");
        free(text);
    }
    text = answer(npc, &TANDEM_INIT(tandem_say, .text = "And?", .most_tokens = 3, .json_schema = "{\"const\": 12345}"), &news);
    assert_string_equal(text, "123");
    assert_int_equal(news.end, TANDEM_REPLY_FULL);
    free(text);
    must(tandem_npc_destroy(&npc));
}

static void test_stops(void **state)
{
    const char *const stops[] = {"zz", "c"};
    tandem_npc *npc = npc_of(NULL);
    tandem_npc_news news;
    char *text = answer(npc,
                        &TANDEM_INIT(tandem_say, .text = "?", .grammar = "root ::= \"abzcd\"", .stops = stops, .stop_count = 2),
                        &news);

    (void)state;
    assert_string_equal(text, "abz");
    assert_int_equal(news.end, TANDEM_REPLY_STOPPED);
    free(text);
    must(tandem_npc_destroy(&npc));
}

/* --- Several replies --- */

static void test_replies(void **state)
{
    enum { REPLIES = 4 };
    tandem_sampling sampling = TANDEM_INIT(tandem_sampling, .temperature = 1, .seed = 5);
    tandem_say say = TANDEM_INIT(tandem_say, .text = "A bark!", .most_tokens = 6, .sampling = &sampling, .replies = REPLIES,
                                 .grammar = LETTERS);
    tandem_npc *npc = npc_of("A dog."), *one = npc_of("A dog.");
    tandem_npc_reply replies[REPLIES], none = TANDEM_INIT(tandem_npc_reply);
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);
    tandem_turn turns[4] = {TANDEM_INIT(tandem_turn)};
    char told[REPLIES][200] = {{0}};
    uint32_t best = 0, count = 4, ends = 0;

    (void)state;
    must(tandem_npc_say(npc, &say));
    while (ends < REPLIES) {
        must(tandem_npc_wait(npc, 60 * SECONDS, &news));
        strcat(told[news.reply], news.text);
        ends += news.end != 0;
        if (news.state != TANDEM_NPC_IDLE)
            must_fail(tandem_npc_choose(npc, 0), TANDEM_ERROR_BUSY, "it answers what was said before");
    }
    for (uint32_t i = 0; i < REPLIES; i++) {
        replies[i] = TANDEM_INIT(tandem_npc_reply);
        must(tandem_npc_get_reply(npc, i, &replies[i]));
        assert_string_equal(replies[i].text, told[i]);
        assert_true(replies[i].score < 0 && replies[i].tokens <= 6);
        best = replies[i].score > replies[best].score ? i : best;
    }
    assert_string_not_equal(told[0], told[1]);
    must_fail(tandem_npc_get_reply(npc, REPLIES, &none), TANDEM_ERROR_ARG, "index is 4; 4 have begun");
    must(tandem_npc_get_history(npc, &count, turns));
    assert_int_equal(count, 2);
    assert_string_equal(turns[1].text, told[best]);
    must(tandem_npc_choose(npc, (best + 1) % REPLIES));
    must(tandem_npc_get_history(npc, &count, turns));
    assert_int_equal(count, 2);
    assert_string_equal(turns[1].text, told[(best + 1) % REPLIES]);

    say.replies = 0; /* the first of several is the only one */
    char *text = answer(one, &say, NULL);
    assert_string_equal(text, told[0]);
    free(text);
    must(tandem_npc_destroy(&npc));
    must(tandem_npc_destroy(&one));
}

/* --- How likely --- */

static tandem_npc_token token_of(tandem_npc *npc, uint32_t reply, uint32_t index)
{
    tandem_npc_token token = TANDEM_INIT(tandem_npc_token);

    must(tandem_npc_get_token(npc, reply, index, &token));
    return token;
}

/* Of logits the logarithm of each one's probability. */
static void log_softmax(const float *logits, double *to)
{
    double sum = 0;

    for (int i = 0; i < WORDS; i++)
        sum += exp((double)logits[i]);
    for (int i = 0; i < WORDS; i++)
        to[i] = (double)logits[i] - log(sum);
}

/* What a reply's tokens are said to be is what the model's logits say, computed by themselves. */
static void check_likely(tandem_npc *npc, uint32_t reply, const char *prompt, td_speaker *speaker)
{
    enum { MOST = 64 };
    tandem_npc_reply whole = TANDEM_INIT(tandem_npc_reply);
    uint32_t ids[MOST], count = (uint32_t)strlen(prompt);
    double likely[WORDS], mean = 0;
    char text[400] = "";

    must(tandem_npc_get_reply(npc, reply, &whole));
    assert_true(whole.tokens >= 4 && count + whole.tokens < MOST);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (unsigned char)prompt[i];
    for (uint32_t i = 0; i < whole.tokens; i++) {
        const tandem_npc_token token = token_of(npc, reply, i);

        must(td_speaker_read(speaker, ids, 0, count + i));
        log_softmax(speaker->logits, likely);
        assert_float_equal(token.is.logprob, likely[token.is.token], 1e-4);
        assert_int_equal(token.top_count, 3);
        for (uint32_t top = 0; top < 3; top++) {
            assert_float_equal(token.top[top].logprob, likely[token.top[top].token], 1e-4);
            uint32_t before = 0;
            for (int word = 0; word < WORDS; word++)
                before += likely[word] > likely[token.top[top].token];
            assert_int_equal(before, top);
        }
        assert_int_equal(token.text_offset, strlen(text));
        strncat(text, token.is.text, token.is.text_bytes);
        ids[count + i] = token.is.token;
        mean += token.is.logprob / (double)whole.tokens;
    }
    assert_string_equal(text, whole.text);
    assert_float_equal(mean, whole.score, 1e-3);
}

static void test_likely(void **state)
{
    static const char prompt[] = "Once upon";
    const char *const stops[] = {"gh"};
    const tandem_sampling sampling = TANDEM_INIT(tandem_sampling, .temperature = 1.5f, .seed = 9);
    const tandem_say say = TANDEM_INIT(tandem_say, .text = prompt, .most_tokens = 10, .sampling = &sampling, .replies = 3,
                                       .grammar = LETTERS, .logprobs = 1, .top_logprobs = 3);
    tandem_npc_token none = TANDEM_INIT(tandem_npc_token);
    tandem_npc_news news;
    td_speaker speaker;
    tandem_npc *npc;

    (void)state;
    must(td_speaker_open(session, &(td_speaker_desc){.path = path}, &speaker));
    must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .plain = 1), &npc));
    must_fail(tandem_npc_get_token(npc, 0, 0, &none), TANDEM_ERROR_ARG, "reply is 0; 0 have begun");
    free(answer(npc, &say, NULL));
    for (uint32_t reply = 0; reply < 3; reply++)
        check_likely(npc, reply, prompt, &speaker);
    must_fail(tandem_npc_get_token(npc, 3, 0, &none), TANDEM_ERROR_ARG, "reply is 3; 3 have begun");
    must_fail(tandem_npc_get_token(npc, 1, 99, &none), TANDEM_ERROR_ARG, "index is 99; reply 1 has ");

    /* Tokens of what ended a reply are there, behind its end. */
    char *text = answer(npc, &TANDEM_INIT(tandem_say, .text = prompt, .grammar = "root ::= [e] [f] [g] [h] [i]", .logprobs = 1,
                                          .stops = stops, .stop_count = 1), &news);
    assert_string_equal(text, "ef");
    assert_true(news.reply_tokens == 4 && token_of(npc, 0, 3).text_offset == 3 && token_of(npc, 0, 2).text_offset == 2);
    assert_int_equal(token_of(npc, 0, 3).top_count, 0);
    free(text);
    /* Those of a part of a character begin where it does. */
    text = answer(npc, &TANDEM_INIT(tandem_say, .text = prompt, .grammar = "root ::= \"a\u20acb\"", .logprobs = 1), &news);
    for (uint32_t i = 0; i < news.reply_tokens && news.reply_tokens == 5; i++)
        assert_int_equal(token_of(npc, 0, i).text_offset, i == 0 ? 0 : i < 4 ? 1 : 4);
    free(text);

    free(answer(npc, &TANDEM_INIT(tandem_say, .text = prompt, .most_tokens = 2), NULL));
    must_fail(tandem_npc_get_token(npc, 0, 0, &none), TANDEM_ERROR_ARG, "tandem_say.logprobs was 0");
    must_fail(tandem_npc_get_token(npc, 0, 0, NULL), TANDEM_ERROR_ARG, "token is NULL");
    assert_int_equal(tandem_npc_get_token(NULL, 0, 0, &none), TANDEM_ERROR_ARG);
    must(tandem_npc_destroy(&npc));
    td_speaker_close(&speaker);
}

/* --- Cancelling, and calls back --- */

typedef struct listener {
    tandem_npc *npc;
    char text[400];
    uint32_t calls, cancels_at;
} listener;

static void on_text(void *user, uint32_t reply, const char *text, size_t bytes)
{
    listener *l = user;

    assert_int_equal(reply, 0);
    strncat(l->text, text, bytes);
    if (++l->calls == l->cancels_at)
        must(tandem_npc_cancel(l->npc));
}

static void test_cancel(void **state)
{
    tandem_npc *npc = npc_of(NULL);
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);
    listener l = {.npc = npc, .cancels_at = 2};
    tandem_turn turns[4] = {TANDEM_INIT(tandem_turn)};
    uint32_t count = 4;
    char said[400] = "";

    (void)state;
    must(tandem_npc_cancel(npc)); /* of nothing */
    must(tandem_npc_say(npc, &TANDEM_INIT(tandem_say, .text = "Count.", .most_tokens = 50, .grammar = "root ::= [a-z]{50}")));
    for (int i = 0; i < 3;) {
        must(tandem_npc_wait(npc, 60 * SECONDS, &news));
        strcat(said, news.text);
        i += news.text_bytes > 0;
    }
    must_fail(tandem_npc_say(npc, &TANDEM_INIT(tandem_say, .text = "No.")), TANDEM_ERROR_BUSY, "it answers");
    must_fail(tandem_npc_set_history(npc, NULL, 0), TANDEM_ERROR_BUSY, "it answers");
    must(tandem_npc_cancel(npc));
    must(tandem_npc_poll(npc, &news));
    assert_int_equal(news.end, TANDEM_REPLY_CANCELLED);
    assert_int_equal(news.state, TANDEM_NPC_IDLE);
    assert_int_equal(news.text_bytes, 0);
    must(tandem_npc_poll(npc, &news));
    assert_int_equal(news.end, TANDEM_REPLY_OPEN);
    must(tandem_npc_get_history(npc, &count, turns));
    assert_int_equal(count, 2);
    assert_string_equal(turns[1].text, said);

    /* In the middle of reading, and at once something else, which is as if nothing had been. */
    must(tandem_npc_set_history(npc, NULL, 0));
    must(tandem_npc_say(npc, &TANDEM_INIT(tandem_say, .text = "A long text that takes a while to read, is it not?")));
    must(tandem_npc_poll(npc, &news));
    must(tandem_npc_cancel(npc));
    must(tandem_npc_set_history(npc, NULL, 0));
    char *text = answer_to(npc, "Hm?");
    tandem_npc *fresh = npc_of(NULL);
    char *same = answer_to(fresh, "Hm?");
    assert_string_equal(text, same);

    must(tandem_npc_say(npc, &TANDEM_INIT(tandem_say, .text = "Again.", .most_tokens = 50, .grammar = "root ::= [a-z]{50}",
                                          .on_text = on_text, .user = &l)));
    do
        must(tandem_npc_wait(npc, 60 * SECONDS, &news));
    while (news.state != TANDEM_NPC_IDLE);
    assert_int_equal(news.end, TANDEM_REPLY_CANCELLED);
    assert_int_equal(l.calls, 2);
    assert_int_equal(strlen(l.text), 2);
    free(text), free(same);
    must(tandem_npc_destroy(&npc));
    must(tandem_npc_destroy(&fresh));
}

static void test_timeout(void **state)
{
    tandem_npc *npc = npc_of(NULL);
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);

    (void)state;
    must(tandem_npc_wait(npc, 60 * SECONDS, &news)); /* at once, as there is nothing to wait for */
    must(tandem_npc_say(npc, &TANDEM_INIT(tandem_say, .text = "Now!", .most_tokens = 4)));
    assert_int_equal(tandem_npc_wait(npc, 0, &news), TANDEM_ERROR_BUSY);
    assert_int_equal(news.state, TANDEM_NPC_READING);
    must(tandem_npc_destroy(&npc)); /* in the middle of it */
    assert_null(npc);
}

/* --- The context --- */

static void test_forgetting(void **state)
{
    tandem_npc *npc = npc_of("A sage.");
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);
    char text[40];
    uint32_t forgotten = 0, shifts = 0;

    (void)state;
    for (int i = 0; i < 12; i++) {
        snprintf(text, sizeof text, "Question %d?", i);
        char *said = answer(npc, &TANDEM_INIT(tandem_say, .text = text, .most_tokens = 10), &news);

        assert_true(*said && news.prompt_tokens + 10 <= CONTEXT);
        shifts += news.forgotten != forgotten;
        forgotten = news.forgotten;
        free(said);
    }
    assert_true(shifts >= 2 && shifts < 8); /* many at once, so not each time */
    assert_int_equal(forgotten % 2, 0);     /* what is left begins with the player's turn */

    uint32_t count = 0;
    must(tandem_npc_get_history(npc, &count, NULL));
    assert_int_equal(count, 24 - forgotten);
    char *big = calloc(1, CONTEXT + 1);
    memset(big, 'x', CONTEXT);
    must_fail(tandem_npc_say(npc, &TANDEM_INIT(tandem_say, .text = big)), TANDEM_ERROR_ARG, "the context has 160");
    must(tandem_npc_get_history(npc, &forgotten, NULL));
    assert_int_equal(forgotten, count);
    big[CONTEXT - 60] = 0; /* it has room, but not for all of the reply */
    free(answer(npc, &TANDEM_INIT(tandem_say, .text = big, .most_tokens = 1000), &news));
    assert_true(news.prompt_tokens + news.reply_tokens <= CONTEXT);
    free(big);
    must(tandem_npc_destroy(&npc));
}

/* What the system says first stays, however long the dialogue is. */
static void test_system_turns(void **state)
{
    enum { TURNS = 12 };
    tandem_npc *npc = npc_of(NULL);
    tandem_turn turns[TURNS];
    uint32_t count = TURNS;

    (void)state;
    for (uint32_t i = 0; i < TURNS; i++)
        turns[i] = TANDEM_INIT(tandem_turn, .role = i < 2 ? TANDEM_ROLE_SYSTEM : TANDEM_ROLE_USER,
                               .text = i < 2 ? "A rule." : "A question?");
    must(tandem_npc_set_history(npc, turns, TURNS));
    free(answer(npc, &TANDEM_INIT(tandem_say, .most_tokens = 4, .grammar = LETTERS), NULL));
    must(tandem_npc_get_history(npc, &count, turns));
    assert_in_range(count, 4, TURNS - 1);
    assert_int_equal(turns[1].role, TANDEM_ROLE_SYSTEM);
    assert_int_equal(turns[2].role, TANDEM_ROLE_USER);
    assert_int_equal(turns[count - 1].role, TANDEM_ROLE_NPC);
    must(tandem_npc_destroy(&npc));
}

/* --- Refusals --- */

static void test_refusals(void **state)
{
    tandem_npc *npc = npc_of(NULL), *plain, *none = NULL;
    tandem_language *made = NULL;
    const char *const stops[] = {""};
    const struct {
        tandem_say say;
        tandem_status status;
        const char *says;
    } cases[] = {
        {TANDEM_INIT(tandem_say), TANDEM_ERROR_ARG, "say.text is NULL, and nothing was said before"},
        {TANDEM_INIT(tandem_say, .text = "a", .grammar = "root ::= x"), TANDEM_ERROR_ARG, "say.grammar: line 1: 'x' is defined nowhere"},
        {TANDEM_INIT(tandem_say, .text = "a", .json_schema = "{\"pattern\": 1}"), TANDEM_ERROR_UNSUPPORTED,
         "say.json_schema: schema at #/pattern"},
        {TANDEM_INIT(tandem_say, .text = "a", .grammar = "root ::= json\nx", .json_schema = "{}"), TANDEM_ERROR_ARG,
         "say.grammar: line 2"},
        {TANDEM_INIT(tandem_say, .text = "a", .grammar = "root ::= space\nspace ::= [ ]", .json_schema = "{}"), TANDEM_ERROR_ARG,
         "'space'"},
        {TANDEM_INIT(tandem_say, .text = "a", .grammar = "root ::= json", .json_schema = "{\"pattern\": 1}"),
         TANDEM_ERROR_UNSUPPORTED, "say.json_schema: schema at #/pattern"},
        {TANDEM_INIT(tandem_say, .text = "a", .replies = 17), TANDEM_ERROR_ARG, "say.replies is 17; at most 16"},
        {TANDEM_INIT(tandem_say, .text = "a", .stop_count = 1), TANDEM_ERROR_ARG, "say.stops is NULL"},
        {TANDEM_INIT(tandem_say, .text = "a", .stop_count = 1, .stops = stops), TANDEM_ERROR_ARG, "say.stops[0] is empty"},
        {TANDEM_INIT(tandem_say, .text = "a", .sampling = &TANDEM_INIT(tandem_sampling, .temperature = -1)), TANDEM_ERROR_ARG,
         "temperature is -1"},
        {TANDEM_INIT(tandem_say, .text = "a", .sampling = &TANDEM_INIT(tandem_sampling, .bias_count = 1)), TANDEM_ERROR_ARG,
         "bias_tokens or biases is NULL"},
        {TANDEM_INIT(tandem_say, .text = "a",
                     .sampling = &TANDEM_INIT(tandem_sampling, .bias_count = 1, .bias_tokens = &(uint32_t){WORDS}, .biases = &(float){1})),
         TANDEM_ERROR_ARG, "biases[0]"},
        {TANDEM_INIT(tandem_say, .text = "a", .logprobs = 2), TANDEM_ERROR_ARG, "say.logprobs is 2 and say.top_logprobs 0"},
        {TANDEM_INIT(tandem_say, .text = "a", .logprobs = 1, .top_logprobs = 21), TANDEM_ERROR_ARG, "say.top_logprobs 21"},
        {TANDEM_INIT(tandem_say, .text = "a", .top_logprobs = 1), TANDEM_ERROR_ARG, "say.logprobs is 0 and say.top_logprobs 1"},
        {TANDEM_INIT(tandem_say, .text = "a", .stop_count = 1025, .stops = stops), TANDEM_ERROR_ARG, "say.stop_count is 1025"},
        {(tandem_say){.text = "a"}, TANDEM_ERROR_ARG, "struct_bytes"},
    };
    const struct {
        tandem_language_desc desc;
        const char *says;
    } wrong[] = {{TANDEM_INIT(tandem_language_desc, .path = path, .cache = 3), "desc.cache is 3"},
                 {TANDEM_INIT(tandem_language_desc, .path = path, .slots = 257), "desc.slots is 257"},
                 {TANDEM_INIT(tandem_language_desc, .path = path, .tokens = UINT32_MAX), "desc.tokens is 4294967295"},
                 {TANDEM_INIT(tandem_language_desc, .path = path, .embeds = 2), "desc.embeds is 2"}};
    tandem_turn turn = TANDEM_INIT(tandem_turn, .role = TANDEM_ROLE_USER, .text = "a");
    char long_text[4 * CONTEXT + 1];
    uint32_t count = 0;

    (void)state;
    memset(long_text, 'a', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        must_fail(tandem_npc_say(npc, &cases[i].say), cases[i].status, cases[i].says);
    must(tandem_npc_get_history(npc, &count, NULL));
    assert_int_equal(count, 0);
    must_fail(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .plain = 2), &none), TANDEM_ERROR_ARG, "desc.plain is 2");
    must_fail(tandem_npc_set_history(npc, &TANDEM_INIT(tandem_turn, .role = 3, .text = ""), 1), TANDEM_ERROR_ARG, "turns[0].role is none");
    must_fail(tandem_npc_set_history(npc, &TANDEM_INIT(tandem_turn), 1), TANDEM_ERROR_ARG, "turns[0].text is NULL");
    must_fail(tandem_language_destroy(&language), TANDEM_ERROR_ARG, "language has 1 characters");
    must_fail(tandem_language_create(session, &TANDEM_INIT(tandem_language_desc), &made), TANDEM_ERROR_ARG, "desc.path is NULL");
    must_fail(tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = "/none"), &made), TANDEM_ERROR_IO, "/none");
    must_fail(tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = path, .form = "klingon"), &made),
              TANDEM_ERROR_UNSUPPORTED, "desc.form is 'klingon'");
    must_fail(tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = path, .form = "{\"user\": 1}"), &made),
              TANDEM_ERROR_ARG, "desc.form is no form: \"user\" must be two strings");
    must_fail(tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = path, .precision = 9), &made), TANDEM_ERROR_ARG,
              "desc.precision is 9");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        must_fail(tandem_language_create(session, &wrong[i].desc, &made), TANDEM_ERROR_ARG, wrong[i].says);
    must_fail(tandem_language_create(session, NULL, &made), TANDEM_ERROR_ARG, "desc is NULL");
    must_fail(tandem_language_create(session, &wrong[0].desc, NULL), TANDEM_ERROR_ARG, "out is NULL");
    must_fail(tandem_language_get_info(language, NULL), TANDEM_ERROR_ARG, "info is NULL");
    must_fail(tandem_language_get_info(language, &(tandem_language_info){0}), TANDEM_ERROR_ARG, "struct_bytes");
    must_fail(tandem_language_frame(language, 1, &(tandem_language_spent){0}), TANDEM_ERROR_ARG, "struct_bytes");
    assert_int_equal(tandem_language_get_info(NULL, &TANDEM_INIT(tandem_language_info)), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_language_frame(NULL, 1, NULL), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_language_destroy(&made), TANDEM_ERROR_ARG);
    assert_null(made);
    lf_shape wordy = shape;
    char other[80];
    wordy.more_tokens = 1; /* whose logits would be read behind the others' */
    snprintf(other, sizeof other, "%s.wordy", path);
    lf_write(other, &wordy, NULL);
    must_fail(tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = other), &made), TANDEM_ERROR_PROTOCOL,
              "tokens, of which its tensors know");
    assert_null(made);
    assert_int_equal(unlink(other), 0);
    must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .plain = 1), &plain));
    must_fail(tandem_npc_say(plain, &TANDEM_INIT(tandem_say)), TANDEM_ERROR_ARG, "say.text is NULL");
    must_fail(tandem_npc_say(plain, &TANDEM_INIT(tandem_say, .text = "")), TANDEM_ERROR_ARG, "has no token");
    must_fail(tandem_npc_say(plain, &TANDEM_INIT(tandem_say, .text = long_text)), TANDEM_ERROR_ARG,
              "the context has 160, with a reply");
    must_fail(tandem_npc_set_history(plain, &turn, 1), TANDEM_ERROR_ARG, "the character is plain: it has no turns");
    must(tandem_npc_destroy(&plain));

    must_fail(tandem_npc_create(language, NULL, &none), TANDEM_ERROR_ARG, "desc is NULL");
    must_fail(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc), NULL), TANDEM_ERROR_ARG, "out is NULL");
    assert_int_equal(tandem_npc_create(NULL, &TANDEM_INIT(tandem_npc_desc), &none), TANDEM_ERROR_ARG);
    must_fail(tandem_npc_say(npc, NULL), TANDEM_ERROR_ARG, "say is NULL");
    must_fail(tandem_npc_poll(npc, NULL), TANDEM_ERROR_ARG, "news is NULL");
    must_fail(tandem_npc_wait(npc, 0, NULL), TANDEM_ERROR_ARG, "news is NULL");
    must_fail(tandem_npc_get_reply(npc, 0, NULL), TANDEM_ERROR_ARG, "reply is NULL");
    must_fail(tandem_npc_choose(npc, 0), TANDEM_ERROR_ARG, "index is 0; 0 replies are in the history's place");
    must_fail(tandem_npc_set_history(npc, NULL, 1), TANDEM_ERROR_ARG, "turns is NULL");
    must_fail(tandem_npc_set_history(npc, &(tandem_turn){.text = "a"}, 1), TANDEM_ERROR_ARG, "turns[0]");
    must_fail(tandem_npc_get_history(npc, NULL, &turn), TANDEM_ERROR_ARG, "count is NULL");
    count = 1;
    must_fail(tandem_npc_get_history(npc, &count, &(tandem_turn){0}), TANDEM_ERROR_ARG, "turns[0]");
    must_fail(tandem_npc_save(npc, NULL, NULL), TANDEM_ERROR_ARG, "bytes is NULL");
    assert_null(none);
    must(tandem_npc_destroy(&npc));
    assert_int_equal(tandem_npc_destroy(&npc), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_npc_say(NULL, &cases[0].say), TANDEM_ERROR_ARG);
}

static void test_info(void **state)
{
    tandem_language_info info = TANDEM_INIT(tandem_language_info);
    tandem_npc *npc = npc_of(NULL);

    (void)state;
    must(tandem_language_get_info(language, &info));
    assert_int_equal(info.context, CONTEXT);
    assert_int_equal(info.words, WORDS);
    assert_int_equal(info.npcs, 1);
    assert_string_equal(info.form, "chatml");
    assert_true(info.npc_bytes >= 2 * 2 * CONTEXT * 32 * 2); /* layers, K and V, tokens, channels, fp16 */
    must(tandem_npc_destroy(&npc));
}

/* Structs of games that were built before, and after. */
static void test_structs(void **state)
{
    enum { KNOWN = offsetof(tandem_npc_news, prompt_tokens), MORE = 16 };
    struct {
        tandem_say say;
        unsigned char more[MORE];
    } longer = {.say = {.struct_bytes = sizeof longer, .text = "Hi", .most_tokens = 1}};
    struct {
        tandem_turn turn;
        uint64_t more;
    } turns[2] = {{{sizeof turns[0], TANDEM_ROLE_USER, "a"}, 0}, {{sizeof turns[0], TANDEM_ROLE_NPC, "b"}, 0}};
    tandem_npc *npc = npc_of(NULL);
    tandem_npc_news news;
    uint32_t count = 2;

    (void)state;
    longer.more[3] = 7;
    must_fail(tandem_npc_say(npc, &longer.say), TANDEM_ERROR_UNSUPPORTED, "the byte at offset 83 is 7, not 0");
    longer.more[3] = 0;
    must(tandem_npc_say(npc, &longer.say));
    memset(&news, 0xaa, sizeof news);
    news.struct_bytes = KNOWN;
    must(tandem_npc_wait(npc, 60 * SECONDS, &news));
    assert_int_equal(news.struct_bytes, KNOWN);
    assert_int_equal(news.end, TANDEM_REPLY_FULL);
    assert_int_equal(news.prompt_tokens, 0xaaaaaaaa);
    must(tandem_npc_set_history(npc, &turns[0].turn, 2));
    turns[0].turn.text = turns[1].turn.text = NULL;
    turns[1].more = UINT64_MAX;
    must(tandem_npc_get_history(npc, &count, &turns[0].turn));
    assert_string_equal(turns[0].turn.text, "a");
    assert_string_equal(turns[1].turn.text, "b");
    assert_int_equal(turns[1].more, 0);
    count = 1;
    must_fail(tandem_npc_get_history(npc, &count, &turns[0].turn), TANDEM_ERROR_BUSY, "*count is too small");
    assert_int_equal(count, 2);
    must(tandem_npc_destroy(&npc));
}

/* How many calls, of those that destroy nothing, are not refused with `says`. */
static int calls_taken(tandem_language *of, tandem_npc *npc, const char *says)
{
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);
    tandem_language_info info = TANDEM_INIT(tandem_language_info);
    tandem_npc_reply reply = TANDEM_INIT(tandem_npc_reply);
    tandem_npc_token token = TANDEM_INIT(tandem_npc_token);
    tandem_npc *other = NULL;
    char why[300] = "";
    uint32_t count = 0;
    int taken = 0;

#define CALL(call) taken += (call) != TANDEM_ERROR_ARG || tandem_error_text(NULL, why, sizeof why) || !strstr(why, says)
    CALL(tandem_npc_create(of, &TANDEM_INIT(tandem_npc_desc), &other));
    CALL(tandem_npc_say(npc, &TANDEM_INIT(tandem_say, .text = "Hi")));
    CALL(tandem_npc_poll(npc, &news));
    CALL(tandem_npc_wait(npc, 60 * SECONDS, &news));
    CALL(tandem_npc_cancel(npc));
    CALL(tandem_npc_get_reply(npc, 0, &reply));
    CALL(tandem_npc_choose(npc, 0));
    CALL(tandem_npc_get_token(npc, 0, 0, &token));
    CALL(tandem_npc_set_history(npc, NULL, 0));
    CALL(tandem_npc_get_history(npc, &count, NULL));
    CALL(tandem_npc_save(npc, NULL, &(uint64_t){0}));
    CALL(tandem_npc_restore(npc, "", 0));
    CALL(tandem_language_get_info(of, &info));
    CALL(tandem_language_frame(of, 0, NULL));
#undef CALL
    return taken + (other != NULL);
}

/* After fork() the child's are copies that are of no use. */
static void test_fork(void **state)
{
    tandem_npc *npc = npc_of(NULL);
    int status;

    (void)state;
    const pid_t child = fork();
    if (!child) {
        int wrong = calls_taken(language, npc, "another process");

        wrong += tandem_npc_destroy(&npc) != TANDEM_ERROR_ARG || !npc;
        wrong += tandem_language_destroy(&language) != TANDEM_ERROR_ARG || !language;
        _exit(wrong);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    free(answer_to(npc, "Still there?"));
    must(tandem_npc_destroy(&npc));
}

static void *count_block(void *user, size_t bytes, size_t alignment)
{
    *(int *)user += 1;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void drop_block(void *user, void *block)
{
    *(int *)user -= 1;
    free(block);
}

/* A session that ends before its characters, one of whom is answering: of pages in common, or of its own where heads are small. */
static void end_session_first(uint32_t head_dim)
{
    const lf_shape its = {.layers = 1, .dim = 64, .hidden = 64, .heads = 1, .kv_heads = 1, .head_dim = head_dim,
                          .rotated_channels = head_dim, .words = WORDS, .context = CONTEXT, .dtype = TANDEM_DTYPE_F16,
                          .speaks = true};
    int blocks = 0;
    tandem_session *s;
    tandem_language *l;
    tandem_npc *npc, *idle;
    tandem_embedder *embedder;
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);
    char file[80];

    snprintf(file, sizeof file, "%s.other", path);
    lf_write(file, &its, NULL);
    must(tandem_session_create(&TANDEM_INIT(tandem_session_desc, .cpu_threads = 1, .rung = TANDEM_RUNG_CPU, .allocate = count_block,
                                            .release = drop_block, .user = &blocks),
                               &s));
    session_must(s, tandem_language_create(s, &TANDEM_INIT(tandem_language_desc, .path = file, .embeds = 1), &l));
    session_must(s, tandem_npc_create(l, &TANDEM_INIT(tandem_npc_desc), &npc));
    session_must(s, tandem_npc_create(l, &TANDEM_INIT(tandem_npc_desc), &idle));
    session_must(s, tandem_embedder_create(l, &TANDEM_INIT(tandem_embedder_desc), &embedder));
    session_must(s, tandem_npc_say(npc, &TANDEM_INIT(tandem_say, .text = "Hello.")));
    session_must(s, tandem_npc_poll(npc, &news));
    session_must(s, tandem_embedder_begin(embedder, "Hello."));

    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
    assert_null(s);
    assert_int_equal(calls_taken(l, npc, "its session was destroyed"), 0);
    assert_int_equal(blocks, 1);
    session_must_fail(NULL, tandem_embedder_poll(embedder, &TANDEM_INIT(tandem_embedding)), TANDEM_ERROR_ARG,
                      "its session was destroyed");
    session_must_fail(NULL, tandem_language_destroy(&l), TANDEM_ERROR_ARG, "2 characters, which must be destroyed first");
    session_must(NULL, tandem_npc_destroy(&npc));
    session_must(NULL, tandem_npc_destroy(&idle));
    session_must(NULL, tandem_embedder_destroy(&embedder));
    session_must(NULL, tandem_language_destroy(&l));
    assert_true(!npc && !idle && !embedder && !l);
    assert_int_equal(blocks, 0);
    unlink(file);
}

static void test_session_first(void **state)
{
    (void)state;
    end_session_first(64);
    end_session_first(32);
}

/* What is there to be copied. */
static void test_demo(void **state)
{
    char command[200], text[2000] = "";

    (void)state;
    if (access("./examples/npc", X_OK)) {
        print_message("examples/npc was not built\n");
        skip();
    }
    snprintf(command, sizeof command, "printf 'Hello.\\n\\nWho are you?\\n' | ./examples/npc %s 'A smith.'", path);
    FILE *demo = popen(command, "r");
    assert_non_null(demo);
    assert_true(fread(text, 1, sizeof text - 1, demo) > 2);
    assert_int_equal(pclose(demo), 0);
    assert_int_equal(text[strlen(text) - 1], '\n');
    demo = popen("./examples/npc /none 2>&1", "r");
    assert_non_null(demo);
    text[fread(text, 1, sizeof text - 1, demo)] = 0;
    assert_int_equal(WEXITSTATUS(pclose(demo)), 1);
    assert_non_null(strstr(text, "/none: tandem_language_create: '/none': No such"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),  cmocka_unit_test(test_two),        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_few_logits), cmocka_unit_test(test_plain),    cmocka_unit_test(test_grammar),    cmocka_unit_test(test_stops),
        cmocka_unit_test(test_replies),  cmocka_unit_test(test_cancel),     cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_forgetting), cmocka_unit_test(test_refusals), cmocka_unit_test(test_info),
        cmocka_unit_test(test_structs),  cmocka_unit_test(test_fork),       cmocka_unit_test(test_demo),
        cmocka_unit_test(test_system_turns), cmocka_unit_test(test_likely),
        cmocka_unit_test(test_session_first),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
