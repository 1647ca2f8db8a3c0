/* Texts as vectors: what they are of, whichever way they are asked for; that those who talk meanwhile say
 * the same; what is given up, and refused.
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

#include "tandem/plugin.h"
#include "tests/kernels/llama_file.h"
#include "tests/plugin/session_must.h"

enum { CONTEXT = 256, WORDS = 300, DIM = 64, TALKERS = 5, TEXTS = 6 };
#define SECONDS 1000000000ull

static const lf_shape shape = {.layers = 2, .dim = DIM, .hidden = 128, .heads = 2, .kv_heads = 1,
                               .head_dim = 64, .rotated_channels = 64, .words = WORDS, .context = CONTEXT,
                               .dtype = TANDEM_DTYPE_Q8_0, .speaks = true};
static const char *const texts[TEXTS] = {
    "The smith makes swords.", "The river floods the fields every spring, and nobody knows why it does.",
    "A ring of silver", "?", "The smith makes swords. ", "Wolves near the forest have taken eleven sheep since the first snow."};
static char path[60], narrow[60]; /* narrow: heads that have caches of their own each */
static tandem_session *session;

static void must(tandem_status status) { session_must(session, status); }

static void must_fail(tandem_status status, tandem_status with, const char *says)
{
    session_must_fail(session, status, with, says);
}

static int begin(void **state)
{
    lf_shape other = shape;

    (void)state;
    other.head_dim = other.rotated_channels = 32;
    snprintf(path, sizeof path, "/tmp/tandem_embedder_%d.gguf", (int)getpid());
    snprintf(narrow, sizeof narrow, "/tmp/tandem_embedder_narrow_%d.gguf", (int)getpid());
    lf_write(path, &shape, NULL);
    lf_write(narrow, &other, NULL);
    return tandem_session_create(&TANDEM_INIT(tandem_session_desc, .cpu_threads = 2, .rung = TANDEM_RUNG_CPU), &session);
}

static int end(void **state)
{
    (void)state;
    unlink(path);
    unlink(narrow);
    return tandem_session_destroy(&session);
}

static tandem_language *language_of(const char *file, uint32_t cache, uint32_t slots)
{
    tandem_language *made;

    must(tandem_language_create(
        session, &TANDEM_INIT(tandem_language_desc, .path = file, .embeds = 1, .cache = cache, .slots = slots), &made));
    return made;
}

static tandem_embedder *embedder_of(tandem_language *language)
{
    tandem_embedder *made;

    must(tandem_embedder_create(language, &TANDEM_INIT(tandem_embedder_desc), &made));
    return made;
}

/* [DIM] */
static void embed(tandem_embedder *e, const char *text, float *to)
{
    tandem_embedding got = TANDEM_INIT(tandem_embedding);

    must(tandem_embedder_begin(e, text));
    must(tandem_embedder_wait(e, 60 * SECONDS, &got));
    assert_int_equal(got.ready, 1);
    assert_int_equal(got.count, DIM);
    memcpy(to, got.values, DIM * sizeof *to);
}

static double product(const float *a, const float *b)
{
    double sum = 0;

    for (int i = 0; i < DIM; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* --- What they are --- */

static void test_vectors(void **state)
{
    tandem_language *language = language_of(path, 0, 0);
    tandem_language_info info = TANDEM_INIT(tandem_language_info);
    tandem_embedder *e = embedder_of(language);
    tandem_embedding got = TANDEM_INIT(tandem_embedding);
    float all[TEXTS][DIM], again[DIM];
    int polls = 0;

    (void)state;
    must(tandem_language_get_info(language, &info));
    assert_int_equal(info.embedding_count, DIM);
    must(tandem_embedder_poll(e, &got)); /* nothing was begun */
    assert_true(!got.ready && !got.values && !got.count && !got.tokens);
    must(tandem_embedder_wait(e, UINT64_MAX, &got));
    assert_false(got.ready);
    for (int i = 0; i < TEXTS; i++) {
        embed(e, texts[i], all[i]);
        assert_float_equal(product(all[i], all[i]), 1, 1e-6);
        for (int other = 0; other < i; other++)
            assert_true(product(all[i], all[other]) < 0.9999);
    }
    /* The same bits in another order, by polls alone, and by another one. */
    tandem_embedder *second = embedder_of(language);
    for (int i = TEXTS; i-- > 0;) {
        embed(second, texts[i], again);
        assert_memory_equal(again, all[i], sizeof again);
        must(tandem_embedder_begin(e, texts[i]));
        do
            must(tandem_embedder_poll(e, &got)), polls++;
        while (!got.ready);
        assert_memory_equal(got.values, all[i], sizeof again);
        assert_int_equal(got.tokens, strlen(texts[i])); /* a byte is a token here */
    }
    assert_true(polls > TEXTS);
    must(tandem_embedder_destroy(&second));
    must(tandem_embedder_destroy(&e));
    assert_null(e);
    must(tandem_language_destroy(&language));
}

/* With something else around a text its row is taken as it is: no longer the question's, nor less anything. */
static void test_around(void **state)
{
    tandem_language *language = language_of(path, 0, 0);
    tandem_embedder *plain, *ends, *same, *question = embedder_of(language);
    float a[DIM], b[DIM], c[DIM];

    (void)state;
    must(tandem_embedder_create(language, &TANDEM_INIT(tandem_embedder_desc, .before = ""), &plain));
    must(tandem_embedder_create(language, &TANDEM_INIT(tandem_embedder_desc, .behind = "<|im_end|>"), &ends));
    must(tandem_embedder_create(language, &TANDEM_INIT(tandem_embedder_desc, .before = "A ring", .behind = ""), &same));
    embed(plain, texts[2], a);
    embed(same, " of silver", b);
    assert_memory_equal(a, b, sizeof a); /* the same tokens */
    embed(ends, texts[2], c);
    assert_memory_not_equal(a, c, sizeof a);
    embed(plain, "A ring of silver<|im_end|>", b); /* a text has no special tokens, whatever it says */
    assert_memory_not_equal(b, c, sizeof b);
    embed(question, texts[2], b);
    assert_memory_not_equal(a, b, sizeof a);
    must(tandem_embedder_destroy(&plain));
    must(tandem_embedder_destroy(&ends));
    must(tandem_embedder_destroy(&same));
    must(tandem_embedder_destroy(&question));
    must(tandem_language_destroy(&language));
}

/* --- Beside those who talk --- */

#define LETTERS "root ::= [a-z ]+"

static tandem_npc *talker(tandem_language *language, int i)
{
    char persona[100];
    tandem_npc *npc;

    snprintf(persona, sizeof persona, "Guard number %d of the northern gate.", i);
    must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .persona = persona), &npc));
    must(tandem_npc_say(npc, &TANDEM_INIT(tandem_say, .text = "Who goes there?", .most_tokens = 24, .grammar = LETTERS)));
    return npc;
}

/* They say, each [100]; polled in turn with an embedder, which makes all texts' vectors meanwhile, if it is there. */
static void talk(tandem_language *language, uint32_t budget_us, char (*said)[100], tandem_embedder *e, float (*made)[DIM])
{
    tandem_npc *npcs[TALKERS];
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);
    tandem_embedding got = TANDEM_INIT(tandem_embedding);
    int talking = TALKERS, text = 0;

    for (int i = 0; i < TALKERS; i++) {
        npcs[i] = talker(language, i);
        *said[i] = 0;
    }
    if (e)
        must(tandem_embedder_begin(e, texts[0]));
    while (talking || (e && text < TEXTS)) {
        if (budget_us)
            must(tandem_language_frame(language, budget_us, NULL));
        for (int i = 0; i < TALKERS; i++) {
            must(tandem_npc_poll(npcs[i], &news));
            strcat(said[i], news.text);
            talking -= news.end != 0;
        }
        if (!e || text == TEXTS)
            continue;
        must(tandem_embedder_poll(e, &got));
        if (!got.ready)
            continue;
        memcpy(made[text++], got.values, sizeof *made);
        if (text < TEXTS)
            must(tandem_embedder_begin(e, texts[text]));
    }
    if (budget_us)
        must(tandem_language_frame(language, 0, NULL));
    for (int i = 0; i < TALKERS; i++)
        must(tandem_npc_destroy(&npcs[i]));
}

static void check_among_others(const char *file, uint32_t cache, uint32_t slots, uint32_t budget_us)
{
    tandem_language *language = language_of(file, cache, slots);
    tandem_embedder *e = embedder_of(language);
    float alone[TEXTS][DIM], among[TEXTS][DIM];
    char quiet[TALKERS][100], said[TALKERS][100];

    for (int i = 0; i < TEXTS; i++)
        embed(e, texts[i], alone[i]);
    talk(language, budget_us, quiet, NULL, NULL);
    talk(language, budget_us, said, e, among);
    assert_memory_equal(among, alone, sizeof alone);
    for (int i = 0; i < TALKERS; i++) {
        assert_true(strlen(quiet[i]) > 12);
        assert_string_equal(said[i], quiet[i]);
    }
    must(tandem_embedder_destroy(&e));
    must(tandem_language_destroy(&language));
}

static void test_among_others(void **state)
{
    (void)state;
    check_among_others(path, TANDEM_CACHE_F16, 0, 0);
    check_among_others(path, TANDEM_CACHE_K8V8, 0, 0);
    check_among_others(path, TANDEM_CACHE_F16, 2, 0); /* more than have a place at a time */
    check_among_others(path, TANDEM_CACHE_F16, 0, 500);
    check_among_others(narrow, TANDEM_CACHE_F16, 0, 0);
}

/* --- What is given up and refused --- */

static void test_given_up(void **state)
{
    char longer[CONTEXT - 40];
    tandem_language *language = language_of(path, 0, 0);
    tandem_embedder *e = embedder_of(language);
    tandem_embedding got = TANDEM_INIT(tandem_embedding);
    float first[DIM], again[DIM];

    (void)state;
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    embed(e, texts[0], first);
    must(tandem_embedder_begin(e, longer));
    must(tandem_embedder_poll(e, &got));
    assert_false(got.ready);
    embed(e, texts[0], again);
    assert_memory_equal(again, first, sizeof first);
    must(tandem_embedder_begin(e, longer));
    assert_int_equal(tandem_embedder_wait(e, 0, &got), TANDEM_ERROR_BUSY);
    must(tandem_embedder_begin(e, NULL));
    must(tandem_embedder_wait(e, UINT64_MAX, &got));
    assert_false(got.ready);
    must(tandem_embedder_begin(e, longer));
    must(tandem_embedder_poll(e, &got));
    must(tandem_embedder_destroy(&e)); /* while it reads */
    must(tandem_language_destroy(&language));
}

static void test_refusals(void **state)
{
    char text[CONTEXT + 1];
    tandem_language *language = language_of(path, 0, 0), *lacks = (tandem_language *)1;
    tandem_embedder *e = embedder_of(language), *none = (tandem_embedder *)1;
    tandem_embedding got = TANDEM_INIT(tandem_embedding);

    (void)state;
    must_fail(tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = path, .embeds = 2), &lacks),
              TANDEM_ERROR_ARG, "desc.embeds is 2");
    must(tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = path), &lacks));
    must_fail(tandem_embedder_create(lacks, &TANDEM_INIT(tandem_embedder_desc), &none), TANDEM_ERROR_UNSUPPORTED,
              "tandem_language_desc.embeds was 0");
    assert_null(none);
    must(tandem_language_destroy(&lacks));
    must_fail(tandem_embedder_create(language, NULL, &none), TANDEM_ERROR_ARG, "desc is NULL");
    must_fail(tandem_embedder_create(language, &TANDEM_INIT(tandem_embedder_desc, .reserved = 3), &none), TANDEM_ERROR_ARG,
              "desc.reserved is 3");
    must_fail(tandem_embedder_create(language, &TANDEM_INIT(tandem_embedder_desc), NULL), TANDEM_ERROR_ARG, "out is NULL");
    assert_int_equal(tandem_embedder_create(NULL, NULL, &none), TANDEM_ERROR_ARG);
    must_fail(tandem_embedder_begin(e, ""), TANDEM_ERROR_ARG, "text is empty");
    memset(text, 'a', CONTEXT);
    text[CONTEXT] = 0;
    must_fail(tandem_embedder_begin(e, text), TANDEM_ERROR_ARG, "; the context has 256");
    must_fail(tandem_embedder_poll(e, NULL), TANDEM_ERROR_ARG, "embedding is NULL");
    got.struct_bytes = 3;
    must_fail(tandem_embedder_wait(e, 0, &got), TANDEM_ERROR_ARG, "embedding.struct_bytes is 3");
    assert_int_equal(tandem_embedder_begin(NULL, "a"), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_embedder_destroy(NULL), TANDEM_ERROR_ARG);
    must_fail(tandem_language_destroy(&language), TANDEM_ERROR_ARG, "1 embedders, which must be destroyed first");
    must(tandem_embedder_destroy(&e));
    assert_int_equal(tandem_embedder_destroy(&e), TANDEM_ERROR_ARG);
    must(tandem_language_destroy(&language));
}

/* After fork() the child's are copies that are of no use. */
static void test_fork(void **state)
{
    tandem_language *language = language_of(path, 0, 0);
    tandem_embedder *e = embedder_of(language), *other = NULL;
    int status;

    (void)state;
    const pid_t child = fork();
    if (!child) {
        tandem_embedding got = TANDEM_INIT(tandem_embedding);
        const tandem_status all[] = {tandem_embedder_create(language, &TANDEM_INIT(tandem_embedder_desc), &other),
                                     tandem_embedder_begin(e, "a"), tandem_embedder_poll(e, &got),
                                     tandem_embedder_wait(e, SECONDS, &got), tandem_embedder_destroy(&e)};
        int wrong = !e || other;

        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            wrong += all[i] != TANDEM_ERROR_ARG;
        _exit(wrong);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    must(tandem_embedder_destroy(&e));
    must(tandem_language_destroy(&language));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),  cmocka_unit_test(test_around),   cmocka_unit_test(test_among_others),
        cmocka_unit_test(test_given_up), cmocka_unit_test(test_refusals), cmocka_unit_test(test_fork),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
