/* A GGUF language model through tandemd, with weights that are made up: the bits of a session that computes itself, on caches
 * that the daemon keeps, and what is left where its worker ends.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine_plugin/npc/speaker.h"
#include "tandem/npc.h"
#include "tests/kernels/llama_file.h"
#include "tests/plugin/daemon_util.h"
#include "tests/plugin/relay.h"
#include "tests/plugin/session_must.h"

enum { TOKENS = 90, PROMPT = 70 /* more than a part */, WORDS = 300 };

static group_daemon daemon_here;
static char file_path[600], long_path[600]; /* long: of a context of more pages than tandemd takes of 32 characters with a run */

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
    snprintf(long_path, sizeof long_path, "%s/daemon_language_long_%d.gguf", here, (int)getpid());
    lf_shape longer = shape;
    longer.context = 32768;
    lf_write(long_path, &longer, NULL);
    snprintf(config, sizeof config, "backend = cpu\nclient_bytes = 64M\nmodels = 3\nmodel_dir = %s\n", here);
    return group_daemon_begin(&daemon_here, "language", config);
}

static int tear_down(void **state)
{
    (void)state;
    unlink(file_path);
    unlink(long_path);
    return group_daemon_end(&daemon_here);
}

static void must(tandem_session *s, tandem_status status) { session_must(s, status); }

static tandem_session *open_session_at(const char *path)
{
    const tandem_session_desc desc =
        TANDEM_INIT(tandem_session_desc, .backend = TANDEM_BACKEND_CPU, .socket = path, .timing = 1);
    tandem_session *s;

    must(NULL, tandem_session_create(&desc, &s));
    return s;
}

static tandem_session *open_session(bool remote)
{
    return open_session_at(remote ? daemon_here.socket_path : NULL);
}

static void must_fail(tandem_session *s, tandem_status status, tandem_status with, const char *says)
{
    session_must_fail(s, status, with, says);
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

/* --- Embeddings --- */

enum { DIM = 256, TEXTS = 3 };
static const char *const texts[TEXTS] = {"The smith makes swords.", "?", "A ring of silver, which nobody has worn since the flood."};

static tandem_language *language_of(tandem_session *s, const tandem_language_desc *as)
{
    tandem_language_desc desc = *as;
    tandem_language *made;

    desc.struct_bytes = sizeof desc;
    if (!desc.path)
        desc.path = file_path;
    must(s, tandem_language_create(s, &desc, &made));
    return made;
}

static tandem_embedder *embedder_of(tandem_session *s, tandem_language *language)
{
    tandem_embedder *made;

    must(s, tandem_embedder_create(language, &TANDEM_INIT(tandem_embedder_desc), &made));
    return made;
}

static tandem_status embed(tandem_embedder *e, const char *text, float to[DIM])
{
    tandem_embedding got = TANDEM_INIT(tandem_embedding);
    tandem_status status = tandem_embedder_begin(e, text);

    if (status == TANDEM_OK)
        status = tandem_embedder_wait(e, 60000000000u, &got);
    if (status == TANDEM_OK) {
        assert_true(got.ready && got.count == DIM);
        memcpy(to, got.values, DIM * sizeof *to);
    }
    return status;
}

/* In each format of caches, of a shorter context, and where each has caches of its own. */
static void test_embeddings(void **state)
{
    static const tandem_language_desc as[] = {{.embeds = 1},
                                              {.embeds = 1, .cache = TANDEM_CACHE_K8V8},
                                              {.embeds = 1, .cache = TANDEM_CACHE_K4V8, .context = 100, .slots = 2},
                                              {.embeds = 1, .precision = TANDEM_PRECISION_8B}};
    tandem_session *here = open_session(false), *there = open_session(true);
    float expected[DIM], got[DIM];

    (void)state;
    for (size_t i = 0; i < sizeof as / sizeof *as; i++) {
        tandem_language *languages[2] = {language_of(here, &as[i]), language_of(there, &as[i])};
        tandem_embedder *local = embedder_of(here, languages[0]), *remote = embedder_of(there, languages[1]);
        tandem_language_info infos[2] = {TANDEM_INIT(tandem_language_info), TANDEM_INIT(tandem_language_info)};

        for (int t = 0; t < TEXTS; t++) {
            must(here, embed(local, texts[t], expected));
            must(there, embed(remote, texts[t], got));
            assert_memory_equal(got, expected, sizeof got);
        }
        must(here, tandem_language_get_info(languages[0], &infos[0]));
        must(there, tandem_language_get_info(languages[1], &infos[1]));
        assert_int_equal(infos[1].embedding_count, DIM);
        assert_memory_equal(&infos[1], &infos[0], sizeof infos[0]); /* slots, pages and all that they have done */
        must(here, tandem_embedder_destroy(&local));
        must(there, tandem_embedder_destroy(&remote));
        must(here, tandem_language_destroy(&languages[0]));
        must(there, tandem_language_destroy(&languages[1]));
    }
    tandem_session_destroy(&there);
    tandem_session_destroy(&here);
}

/* Until there is another worker. */
static void embed_again(tandem_session *s, tandem_embedder *e, const char *text, float to[DIM])
{
    tandem_status status;

    for (const uint64_t until = td_now_ns() + 30000000000u;;) {
        status = embed(e, text, to);
        if (status == TANDEM_OK || td_now_ns() > until)
            break;
        usleep(10000);
    }
    must(s, status);
}

/* In the middle of a text: that is said, and the next worker makes the same of it. */
static void test_embedding_worker_ends(void **state)
{
    tandem_session *s = open_session(true);
    tandem_language *language = language_of(s, &(tandem_language_desc){.embeds = 1});
    tandem_embedder *e = embedder_of(s, language);
    tandem_embedding got = TANDEM_INIT(tandem_embedding);
    float before[DIM], after[DIM];
    tandem_status status;

    (void)state;
    for (int i = 0; i < 2; i++) /* from then on all that it takes is prepared */
        must(s, embed(e, texts[2], before));
    must(s, tandem_embedder_begin(e, texts[2]));
    stop_process(logged_worker(daemon_here.log_path)); /* so that it cannot be through with it before it is killed */
    must(s, tandem_embedder_poll(e, &got));
    assert_false(got.ready);
    assert_int_equal(kill(logged_worker(daemon_here.log_path), SIGKILL), 0);
    status = tandem_embedder_wait(e, 60000000000u, &got);
    assert_int_equal(status, TANDEM_ERROR_LOST);
    assert_false(got.ready);
    embed_again(s, e, texts[2], after);
    assert_memory_equal(before, after, sizeof after);
    must(s, tandem_embedder_destroy(&e));
    must(s, tandem_language_destroy(&language));
    tandem_session_destroy(&s);
}

/* --- What characters have in common --- */

enum { TALKERS = 20 };

/* Each of so many says so many letters, in frames that may spend so much, or 0: without. */
static void talk(tandem_session *s, tandem_language *language, int count, int letters, uint32_t budget_us,
                 char said[TALKERS][200])
{
    tandem_npc *npcs[TALKERS];
    int talking = count;

    for (int i = 0; i < count; i++) {
        char persona[60], grammar[60];

        snprintf(persona, sizeof persona, "Guard number %d.", i);
        snprintf(grammar, sizeof grammar, "root ::= [a-z ]{%d}", letters);
        must(s, tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .persona = persona), &npcs[i]));
        must(s, tandem_npc_say(npcs[i], &TANDEM_INIT(tandem_say, .text = "Who?", .most_tokens = 100, .grammar = grammar)));
        *said[i] = 0;
    }
    while (talking) {
        if (budget_us)
            must(s, tandem_language_frame(language, budget_us, NULL));
        for (int i = 0; i < count; i++) {
            tandem_npc_news news = TANDEM_INIT(tandem_npc_news);

            must(s, tandem_npc_poll(npcs[i], &news));
            strcat(said[i], news.text);
            talking -= news.end != 0;
        }
        usleep(200);
    }
    for (int i = 0; i < count; i++)
        must(s, tandem_npc_destroy(&npcs[i]));
}

/* Few slots and pages for many, with a budget and without: they say there what they say here. */
static void test_pools(void **state)
{
    const tandem_language_desc as = {.cache = TANDEM_CACHE_K8V8, .slots = 2, .tokens = 256};
    tandem_session *here = open_session(false), *there = open_session(true);
    tandem_language *local = language_of(here, &as), *remote = language_of(there, &as);
    static char expected[TALKERS][200], said[TALKERS][200];
    tandem_language_info info = TANDEM_INIT(tandem_language_info);
    tandem_language_spent spent = TANDEM_INIT(tandem_language_spent);

    (void)state;
    talk(here, local, 5, 12, 0, expected);
    talk(there, remote, 5, 12, 0, said);
    assert_memory_equal(said, expected, sizeof said);
    must(there, tandem_language_get_info(remote, &info));
    assert_true(info.slots == 2 && info.pages == 4 && info.runs > 0);
    talk(there, remote, 5, 12, 3000, said);
    assert_memory_equal(said, expected, sizeof said);
    must(there, tandem_language_frame(remote, 3000, &spent));
    assert_true(spent.tokens > 0 && spent.waiting == 0);
    must(here, tandem_language_destroy(&local));
    must(there, tandem_language_destroy(&remote));
    tandem_session_destroy(&there);
    tandem_session_destroy(&here);
}

/* Of a long context fewer are computed together, as their tables of pages are to go with a run; all are, in turn. */
static void test_long_context(void **state)
{
    const tandem_language_desc as = {.path = long_path, .cache = TANDEM_CACHE_K4V8};
    tandem_session *here = open_session(false), *there = open_session(true);
    tandem_language *local = language_of(here, &as), *remote = language_of(there, &as);
    static char expected[TALKERS][200], said[TALKERS][200];
    tandem_language_info info = TANDEM_INIT(tandem_language_info);

    (void)state;
    talk(here, local, TALKERS, 60, 0, expected); /* until long after the last has begun */
    talk(there, remote, TALKERS, 60, 0, said);
    assert_memory_equal(said, expected, sizeof said);
    must(there, tandem_language_get_info(remote, &info));
    assert_true(info.slots == 32 && info.context == 32768);
    must(here, tandem_language_destroy(&local));
    must(there, tandem_language_destroy(&remote));
    tandem_session_destroy(&there);
    tandem_session_destroy(&here);
}

/* --- Characters that are saved --- */

enum { BLOB_BYTES = 1 << 20 };

/* A character of a session and a language of its own, so that nobody there has read anything. */
typedef struct guard {
    tandem_session *s;
    tandem_language *language;
    tandem_npc *npc;
    tandem_npc_news news; /* the last of what it said last */
    char text[200];
} guard;

static guard begin_guard(const char *socket, const tandem_language_desc *as)
{
    guard g = {.s = open_session_at(socket)};

    g.language = language_of(g.s, as);
    must(g.s, tandem_npc_create(g.language, &TANDEM_INIT(tandem_npc_desc, .persona = "A guard."), &g.npc));
    return g;
}

static void end_guard(guard *g)
{
    must(g->s, tandem_npc_destroy(&g->npc));
    must(g->s, tandem_language_destroy(&g->language));
    tandem_session_destroy(&g->s);
}

static tandem_status answer(guard *g, const char *text)
{
    const tandem_say say = TANDEM_INIT(tandem_say, .text = text, .most_tokens = 12, .grammar = "root ::= [a-z ]{12}");
    tandem_status status = tandem_npc_say(g->npc, &say);

    if (status == TANDEM_OK)
        status = listen_to(g->npc, g->text, &g->news);
    return status;
}

static uint64_t computed_by(const guard *g)
{
    tandem_language_info info = TANDEM_INIT(tandem_language_info);

    must(g->s, tandem_language_get_info(g->language, &info));
    return info.tokens_computed;
}

static const char question[] = "Who comes here at this hour of the night?";

/* What one saves that was asked, and what it says next, which `saved` does not know of. */
static uint64_t save_guard(guard *g, char saved[BLOB_BYTES])
{
    uint64_t bytes = BLOB_BYTES;

    must(g->s, answer(g, question));
    must(g->s, tandem_npc_save(g->npc, saved, &bytes));
    must(g->s, answer(g, "And?"));
    return bytes;
}

/* What was saved goes on as if nothing had been, and is read again where `skips` is false. */
static void check_restored(const char *socket, const tandem_language_desc *as, const char *saved, uint64_t bytes, bool skips,
                           const guard *expected)
{
    guard g = begin_guard(socket, as);

    must(g.s, tandem_npc_restore(g.npc, saved, bytes));
    must(g.s, answer(&g, "And?"));
    assert_string_equal(g.text, expected->text);
    assert_int_equal(g.news.prompt_tokens, expected->news.prompt_tokens);
    assert_int_equal(g.news.read_tokens, skips ? expected->news.read_tokens : expected->news.prompt_tokens);
    if (!as->precision) /* the last token of a reply nobody reads; where each has caches of its own this is not counted */
        assert_int_equal(computed_by(&g), g.news.read_tokens + g.news.reply_tokens - 1);
    end_guard(&g);
}

/* Saved here and there, it is the same bytes, of which each makes the same character; in each format of caches that characters
 * have in common, whose tokens are not read again, and where each has caches of its own, of which nothing is saved. */
static void test_saved(void **state)
{
    static const tandem_language_desc as[] = {{0},
                                              {.cache = TANDEM_CACHE_K8V8, .slots = 2},
                                              {.cache = TANDEM_CACHE_K4V8, .tokens = 256},
                                              {.precision = TANDEM_PRECISION_8B}};
    const char *const sockets[2] = {NULL, daemon_here.socket_path};
    static char saved[2][BLOB_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof as / sizeof *as; i++) {
        const bool keeps = !as[i].precision;
        guard guards[2];
        uint64_t bytes[2];

        for (int at = 0; at < 2; at++) {
            guards[at] = begin_guard(sockets[at], &as[i]);
            bytes[at] = save_guard(&guards[at], saved[at]);
        }
        assert_string_equal(guards[1].text, guards[0].text);
        assert_true(guards[0].news.prompt_tokens > 80 && guards[0].news.read_tokens < 30); /* a page and more was there */
        assert_true(bytes[1] == bytes[0] && !memcmp(saved[1], saved[0], bytes[0]));
        assert_true(keeps == (bytes[0] > 20000));
        for (int at = 0; at < 2; at++)
            for (int of = 0; of < 2; of++)
                check_restored(sockets[at], &as[i], saved[of], bytes[of], keeps, &guards[0]);
        for (int at = 0; at < 2; at++)
            end_guard(&guards[at]);
    }
}

/* A tandemd from before there was INSTANCE_STATE: nothing of caches is saved there, and all is read again. */
static void test_saved_older_daemon(void **state)
{
    const tandem_language_desc as = {.cache = TANDEM_CACHE_K8V8};
    static char whole[BLOB_BYTES], less[BLOB_BYTES];
    guard here = begin_guard(NULL, &as), there;
    const uint64_t whole_bytes = save_guard(&here, whole);
    char path[108];
    relay old;

    (void)state;
    snprintf(path, sizeof path, "%s.old", daemon_here.socket_path);
    relay_begin(&old, path, daemon_here.socket_path, TD_WIRE_STATES, NULL);
    there = begin_guard(path, &as);
    const uint64_t less_bytes = save_guard(&there, less);
    end_guard(&there);
    relay_end(&old);
    assert_string_equal(there.text, here.text);
    assert_true(less_bytes < whole_bytes);
    relay_begin(&old, path, daemon_here.socket_path, TD_WIRE_STATES, NULL);
    check_restored(path, &as, whole, whole_bytes, false, &here);
    relay_end(&old);
    check_restored(daemon_here.socket_path, &as, less, less_bytes, false, &here);
    end_guard(&here);
}

static int states_until_end; /* of requests for state: before this one the worker ends; 0: it does not */

static void end_worker_between(td_wire_message *m, int fd)
{
    (void)fd;
    if (m->header.type == TD_WIRE_INSTANCE_STATE && states_until_end && !--states_until_end)
        assert_int_equal(kill(logged_worker(daemon_here.log_path), SIGKILL), 0);
}

/* With the next worker, once there is one. */
static void check_restored_again(guard *g, const char *saved, uint64_t bytes, const guard *expected)
{
    tandem_status status;

    for (const uint64_t until = td_now_ns() + 30000000000u;;) {
        must(g->s, tandem_npc_restore(g->npc, saved, bytes));
        status = answer(g, "And?");
        if (status == TANDEM_OK || td_now_ns() > until)
            break;
        usleep(10000);
    }
    must(g->s, status);
    assert_string_equal(g->text, expected->text);
}

/* The worker ends while caches are copied, either way: who saves is told, and then saves what is left; who was restored is told,
 * and then reads again. */
static void test_saved_worker_ends(void **state)
{
    const tandem_language_desc as = {.cache = TANDEM_CACHE_K8V8};
    static char saved[BLOB_BYTES], other[BLOB_BYTES];
    guard here = begin_guard(NULL, &as), g;
    const uint64_t bytes = save_guard(&here, saved);
    uint64_t room = BLOB_BYTES;
    char path[108];
    relay between;

    (void)state;
    snprintf(path, sizeof path, "%s.ends", daemon_here.socket_path);
    relay_begin(&between, path, daemon_here.socket_path, 0, end_worker_between);
    g = begin_guard(path, &as);
    must(g.s, answer(&g, question));
    states_until_end = 2;
    must_fail(g.s, tandem_npc_save(g.npc, other, &room), TANDEM_ERROR_LOST, "worker");
    assert_int_equal(states_until_end, 0);
    room = BLOB_BYTES;
    must(g.s, tandem_npc_save(g.npc, other, &room));
    assert_true(room < bytes);
    check_restored_again(&g, other, room, &here);
    end_guard(&g);
    relay_end(&between);

    relay_begin(&between, path, daemon_here.socket_path, 0, end_worker_between);
    g = begin_guard(path, &as); /* has read nothing */
    must(g.s, tandem_npc_restore(g.npc, saved, bytes));
    states_until_end = 2;
    assert_int_equal(answer(&g, "And?"), TANDEM_ERROR_LOST);
    assert_int_equal(states_until_end, 0);
    check_restored_again(&g, saved, bytes, &here);
    end_guard(&g);
    relay_end(&between);
    end_guard(&here);
}

/* What is more than a file, a pool or a client may have is refused, by name or for its bytes; the worker stays, and so does what is
 * right. */
static void test_too_much(void **state)
{
    static const struct {
        tandem_model_desc as;
        tandem_status created, instance; /* OK: it is not asked */
        const char *says;
    } tries[] = {
        {{.sequences = 1, .context = 129}, TANDEM_ERROR_ARG, 0, "context is 129; the model was trained for 128"},
        {{.sequences = 1, .context = UINT32_MAX}, TANDEM_ERROR_ARG, 0, "the model was trained for 128"},
        {{.sequences = UINT32_MAX}, TANDEM_ERROR_ARG, 0, "numbers.batch: the most is 4294967295"},
        {{.sequences = UINT32_MAX, .pages = UINT32_MAX}, TANDEM_ERROR_ARG, 0, "slots, pages are 4294967295, 4294967295"},
        {{.sequences = 1, .pages = 4, .cache = TANDEM_CACHE_F32}, TANDEM_ERROR_UNSUPPORTED, 0, "pages 4; pools are"},
        {{.sequences = 1 << 12}, TANDEM_OK, TANDEM_ERROR_NOMEM, "state of an instance"},
        {{.sequences = 1, .pages = 1 << 12, .hidden = 1, .tops = 64}, TANDEM_OK, TANDEM_ERROR_NOMEM, "state of an instance"},
        {{.sequences = 2, .pages = 4, .hidden = 1}, TANDEM_OK, TANDEM_OK, NULL}};
    tandem_session *s = open_session(true);
    const pid_t worker = logged_worker(daemon_here.log_path);

    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        tandem_model_desc desc = tries[i].as;
        tandem_instance instance;
        tandem_model model;

        desc.struct_bytes = sizeof desc;
        desc.path = file_path;
        tandem_status status = tandem_model_create(s, &desc, &model);
        assert_int_equal(status, tries[i].created);
        if (status == TANDEM_OK) {
            status = tandem_model_instance(s, model, &TANDEM_INIT(tandem_instance_desc), &instance);
            assert_int_equal(status, tries[i].instance);
        }
        if (tries[i].says)
            must_fail(s, status, status, tries[i].says);
        if (model)
            must(s, tandem_model_destroy(s, model));
    }
    assert_int_equal(logged_worker(daemon_here.log_path), worker);
    tandem_session_destroy(&s);
}

/* --- A tandemd that lies --- */

static int graph_instead; /* 0: none */

static void give_graph(td_wire_message *m, int fd)
{
    if (m->header.type == TD_WIRE_GRAPH && graph_instead)
        assert_true(dup2(graph_instead, fd) >= 0);
}

/* A copy of the model's file, so much longer. */
static int copy_file(int seals, off_t longer)
{
    const int from = open(file_path, O_RDONLY | O_CLOEXEC), to = memfd_create("graph", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    static char bytes[1 << 16];
    off_t length = 0;

    assert_true(from >= 0 && to >= 0);
    for (ssize_t got; (got = read(from, bytes, sizeof bytes)) > 0; length += got)
        assert_int_equal(write(to, bytes, (size_t)got), got);
    assert_int_equal(ftruncate(to, length + longer), 0);
    assert_int_equal(fcntl(to, F_ADD_SEALS, seals), 0);
    close(from);
    return to;
}

static int make_hole(off_t bytes)
{
    const int fd = memfd_create("graph", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL), 0);
    return fd;
}

/* What it sends in the graph's place is not read, and what it has loaded for that is not kept: as often as that happens. */
static void test_other_graphs(void **state)
{
    const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    const struct {
        int fd;
        const char *says;
    } others[] = {{copy_file(0, 0), "tandemd sends a graph whose descriptor has seals 0x0, must have 0xf"}, /* it could be cut */
                  {copy_file(F_SEAL_SHRINK | F_SEAL_GROW, 0), "must have 0xf"},
                  {copy_file(all, 1), "bytes long, must be at most"},
                  {make_hole(1 << 16), "has 0 of its 65536 bytes, must be allocated"},
                  {open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "is no memfd"},
                  {open("/dev/zero", O_RDONLY | O_CLOEXEC), "is no memfd"},
                  {open(file_path, O_RDONLY | O_CLOEXEC), "is no memfd"}};
    tandem_model model;
    char path[108];
    relay liar;

    (void)state;
    snprintf(path, sizeof path, "%s.lies", daemon_here.socket_path);
    relay_begin(&liar, path, daemon_here.socket_path, 0, give_graph);
    tandem_session *s = open_session_at(path);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        graph_instead = others[i].fd;
        assert_true(graph_instead > 0);
        must_fail(s, tandem_model_load(s, file_path, &model), TANDEM_ERROR_PROTOCOL, others[i].says);
        close(graph_instead);
    }
    graph_instead = 0;
    must(s, tandem_model_load(s, file_path, &model));
    tandem_session_destroy(&s);
    relay_end(&liar);
}

/* A tandemd from before there was MODEL_CREATE: characters have caches of their own, as then, and what needs it is refused. */
static void test_older_daemon(void **state)
{
    const tandem_say say = TANDEM_INIT(tandem_say, .text = "Who are you?", .most_tokens = 12, .grammar = "root ::= [a-z ]{12}");
    tandem_language_info info = TANDEM_INIT(tandem_language_info);
    tandem_language *languages[2], *none;
    char path[100], expected[200], text[200];
    tandem_npc_news news;
    relay old;

    (void)state;
    snprintf(path, sizeof path, "%s.old", daemon_here.socket_path);
    relay_begin(&old, path, daemon_here.socket_path, TD_WIRE_LANGUAGES, NULL);
    tandem_session *here = open_session(false), *there = open_session_at(path);
    tandem_npc *local = open_npc(here, &languages[0]), *remote = open_npc(there, &languages[1]);
    must(there, tandem_language_get_info(languages[1], &info));
    assert_true(info.slots == 0 && info.pages == 0);
    must(here, tandem_npc_say(local, &say));
    must(here, listen_to(local, expected, &news));
    must(there, tandem_npc_say(remote, &say));
    must(there, listen_to(remote, text, &news));
    assert_string_equal(text, expected);
    must_fail(there, tandem_language_create(there, &TANDEM_INIT(tandem_language_desc, .path = file_path, .embeds = 1), &none),
              TANDEM_ERROR_UNSUPPORTED, "desc.hidden 1 and desc.tops 0; the tandemd that computes for this session is too old");
    must_fail(there, tandem_language_create(there, &TANDEM_INIT(tandem_language_desc, .path = file_path, .slots = 2), &none),
              TANDEM_ERROR_UNSUPPORTED, "desc.slots is 2, desc.tokens 0; the tandemd");
    must_fail(there, tandem_language_frame(languages[1], 1000, NULL), TANDEM_ERROR_UNSUPPORTED, "caches of their own");
    must(there, tandem_npc_destroy(&remote));
    must(there, tandem_language_destroy(&languages[1]));
    tandem_session_destroy(&there);
    relay_end(&old);
    must(here, tandem_npc_destroy(&local));
    must(here, tandem_language_destroy(&languages[0]));
    tandem_session_destroy(&here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_worker_ends), cmocka_unit_test(test_characters),
        cmocka_unit_test(test_embeddings), cmocka_unit_test(test_embedding_worker_ends), cmocka_unit_test(test_pools),
        cmocka_unit_test(test_long_context), cmocka_unit_test(test_saved), cmocka_unit_test(test_saved_older_daemon),
        cmocka_unit_test(test_saved_worker_ends), cmocka_unit_test(test_too_much),
        cmocka_unit_test(test_other_graphs),
        cmocka_unit_test(test_older_daemon)};

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
