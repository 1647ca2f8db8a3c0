/* A GGUF language model through tandemd, with weights that are made up: the bits of a session that computes itself, on caches
 * that the daemon keeps, and what is left where its worker ends.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/npc/speaker.h"
#include "tandem/npc.h"
#include "tests/kernels/llama_file.h"
#include "tests/plugin/daemon_util.h"

enum { TOKENS = 90, PROMPT = 70 /* more than a part */, WORDS = 300 };

static group_daemon daemon_here;
static char file_path[600];

static int set_up(void **state)
{
    static const lf_shape shape = {.layers = 2,
                                   .dim = 256,
                                   .hidden = 512,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 64,
                                   .rotated_channels = 64,
                                   .words = WORDS,
                                   .context = 128,
                                   .dtype = TANDEM_DTYPE_Q4_1,
                                   .speaks = true};
    char here[500], config[600];

    (void)state;
    assert_non_null(getcwd(here, sizeof here));
    snprintf(file_path, sizeof file_path, "%s/daemon_language_%d.gguf", here, (int)getpid());
    lf_write(file_path, &shape, NULL);
    snprintf(config, sizeof config, "backend = cpu\nmodel_dir = %s\n", here);
    return group_daemon_begin(&daemon_here, "language", config);
}

static int tear_down(void **state)
{
    (void)state;
    unlink(file_path);
    return group_daemon_end(&daemon_here);
}

static void must(tandem_session *s, tandem_status status)
{
    char why[600] = "";

    if (status == TANDEM_OK)
        return;
    tandem_error_text(s, why, sizeof why);
    fail_msg("%s: %s", tandem_status_text(status), why);
}

static tandem_session *open_session(bool remote)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc, .backend = TANDEM_BACKEND_CPU,
                                                 .socket = remote ? daemon_here.socket_path : NULL);
    tandem_session *s;

    must(NULL, tandem_session_create(&desc, &s));
    return s;
}

static td_speaker open_speaker(tandem_session *s)
{
    const td_speaker_desc desc = {.path = file_path};
    td_speaker speaker;

    must(s, td_speaker_open(s, &desc, &speaker));
    assert_int_equal(speaker.words, WORDS);
    assert_int_equal(speaker.context, 128);
    return speaker;
}

/* A prompt in parts, then one token after the other: [TOKENS - PROMPT + 1][WORDS]. */
static void speak(td_speaker *speaker, uint32_t seed, float *logits)
{
    uint32_t ids[TOKENS];

    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = (i * 37 + seed) % WORDS;
    must(speaker->session, td_speaker_read(speaker, ids, 0, PROMPT));
    memcpy(logits, speaker->logits, WORDS * sizeof *logits);
    for (uint32_t i = PROMPT; i < TOKENS; i++) {
        must(speaker->session, td_speaker_read(speaker, ids + i, i, 1));
        memcpy(logits + (i - PROMPT + 1) * WORDS, speaker->logits, WORDS * sizeof *logits);
    }
}

/* Two characters of one model: each has caches of its own. */
static void test_same_bits(void **state)
{
    enum { BYTES = (TOKENS - PROMPT + 1) * WORDS * sizeof(float) };
    tandem_session *here = open_session(false), *there = open_session(true);
    td_speaker local = open_speaker(here), remote = open_speaker(there), second = open_speaker(there);
    float *expected = malloc(BYTES), *logits = malloc(BYTES), *others = malloc(BYTES);

    (void)state;
    assert_true(expected && logits && others);
    speak(&local, 1, expected);
    speak(&remote, 1, logits);
    assert_memory_equal(logits, expected, BYTES);
    speak(&second, 2, others);
    assert_memory_not_equal(others, expected, BYTES);
    speak(&remote, 1, logits); /* read over */
    assert_memory_equal(logits, expected, BYTES);
    td_speaker_close(&second);
    td_speaker_close(&remote);
    td_speaker_close(&local);
    tandem_session_destroy(&there);
    tandem_session_destroy(&here);
    free(expected);
    free(logits);
    free(others);
}

/* Caches end with the worker: that is said, and a character that begins anew speaks as before. */
static void test_worker_ends(void **state)
{
    enum { BYTES = (TOKENS - PROMPT + 1) * WORDS * sizeof(float) };
    const uint32_t ids[] = {1, 2, 3};
    tandem_session *s = open_session(true);
    td_speaker speaker = open_speaker(s);
    float *before = malloc(BYTES), *after = malloc(BYTES);
    tandem_status status = TANDEM_OK;

    (void)state;
    assert_true(before && after);
    speak(&speaker, 3, before);
    assert_int_equal(kill(logged_worker(daemon_here.log_path), SIGKILL), 0);
    for (int i = 0; i < 1000 && status == TANDEM_OK; i++)
        status = td_speaker_read(&speaker, ids, 0, 3);
    assert_int_equal(status, TANDEM_ERROR_LOST);
    td_speaker_close(&speaker);
    for (const uint64_t until = td_now_ns() + 30000000000u;;) {
        const td_speaker_desc desc = {.path = file_path};

        status = td_speaker_open(s, &desc, &speaker);
        if (status == TANDEM_OK || td_now_ns() > until)
            break;
        usleep(10000); /* the next worker begins */
    }
    must(s, status);
    speak(&speaker, 3, after);
    assert_memory_equal(before, after, BYTES);
    td_speaker_close(&speaker);
    tandem_session_destroy(&s);
    free(before);
    free(after);
}

/* --- Characters --- */

static tandem_npc *open_npc(tandem_session *s, tandem_language **language)
{
    tandem_npc *npc;

    must(s, tandem_language_create(s, &TANDEM_INIT(tandem_language_desc, .path = file_path), language));
    must(s, tandem_npc_create(*language, &TANDEM_INIT(tandem_npc_desc, .persona = "A guard."), &npc));
    return npc;
}

/* All that is said, and how it ends. */
static tandem_status listen_to(tandem_npc *npc, char text[200], tandem_npc_news *news)
{
    tandem_status status;

    *text = 0;
    *news = TANDEM_INIT(tandem_npc_news);
    do {
        status = tandem_npc_wait(npc, 60000000000u, news);
        strcat(text, news->text);
    } while (status == TANDEM_OK && news->state != TANDEM_NPC_IDLE);
    return status;
}

/* They say there what they say here; where the worker ends they are told so, and speak again with the next one. */
static void test_characters(void **state)
{
    const tandem_say say = TANDEM_INIT(tandem_say, .text = "Who are you?", .most_tokens = 30, .grammar = "root ::= [a-z ]{30}");
    tandem_session *here = open_session(false), *there = open_session(true);
    tandem_language *languages[2];
    tandem_npc *local = open_npc(here, &languages[0]), *remote = open_npc(there, &languages[1]);
    char expected[200], text[200];
    tandem_npc_news news;
    tandem_status status;

    (void)state;
    must(here, tandem_npc_say(local, &say));
    must(here, listen_to(local, expected, &news));
    must(there, tandem_npc_say(remote, &say));
    must(there, listen_to(remote, text, &news));
    assert_string_equal(text, expected);

    must(there, tandem_npc_set_history(remote, NULL, 0));
    must(there, tandem_npc_say(remote, &say));
    must(there, tandem_npc_wait(remote, 60000000000u, &news));
    assert_int_equal(kill(logged_worker(daemon_here.log_path), SIGKILL), 0);
    status = listen_to(remote, text, &news);
    assert_int_equal(status, TANDEM_ERROR_LOST);
    assert_int_equal(news.end, TANDEM_REPLY_FAILED);
    assert_int_equal(news.state, TANDEM_NPC_IDLE);
    for (const uint64_t until = td_now_ns() + 30000000000u;;) {
        must(there, tandem_npc_set_history(remote, NULL, 0));
        status = tandem_npc_say(remote, &say);
        if (status == TANDEM_OK || td_now_ns() > until)
            break;
        usleep(10000); /* the next worker begins */
    }
    must(there, status);
    must(there, listen_to(remote, text, &news));
    assert_string_equal(text, expected);
    must(there, tandem_npc_destroy(&remote));
    must(there, tandem_language_destroy(&languages[1]));
    tandem_session_destroy(&there);
    must(here, tandem_npc_destroy(&local));
    must(here, tandem_language_destroy(&languages[0]));
    tandem_session_destroy(&here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_worker_ends), cmocka_unit_test(test_characters)};

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
