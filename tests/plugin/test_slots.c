/* Characters that have their caches in common: what each computes has the same bits, whoever else is
 * there and whatever was taken from it meanwhile; what begins alike is read once, and there once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/npc/blob.h"
#include "engine_plugin/npc/budget.h"
#include "engine_plugin/npc/stage.h"
#include "interop/os/clock.h"
#include "tandem/plugin.h"
#include "tests/kernels/llama_file.h"
#include "tests/limits.h"
#include "tests/plugin/session_must.h"

enum { CONTEXT = 512, WORDS = 300, PAGE = TD_PAGE_TOKENS, MOST = 40, TOPS = 50 };
#define SECONDS 1000000000ull

static const lf_shape shape = {.layers = 2, .dim = 64, .hidden = 128, .heads = 2, .kv_heads = 1,
                               .head_dim = 64, .rotated_channels = 64, .words = WORDS, .context = CONTEXT,
                               .dtype = TANDEM_DTYPE_Q8_0, .speaks = true};
static char path[60];
static tandem_session *session;

static void must(tandem_status status) { session_must(session, status); }

static int begin(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/tandem_slots_%d.gguf", (int)getpid());
    lf_write(path, &shape, NULL);
    return tandem_session_create(&TANDEM_INIT(tandem_session_desc, .cpu_threads = 2, .rung = TANDEM_RUNG_CPU), &session);
}

static int end(void **state)
{
    (void)state;
    unlink(path);
    return tandem_session_destroy(&session);
}

/* --- Pages --- */

static void test_tree(void **state)
{
    uint32_t a[PAGE], b[PAGE];
    td_pages *p;

    (void)state;
    for (uint32_t i = 0; i < PAGE; i++)
        a[i] = b[i] = i * 7;
    b[PAGE - 1]++;
    must(td_pages_create(3, &p));
    const uint32_t first = td_pages_take(p), second = td_pages_take(p), third = td_pages_take(p);
    assert_true(first < 3 && second < 3 && third < 3 && first != second && second != third);
    assert_int_equal(td_pages_take(p), TD_NO_PAGE);
    assert_int_equal(td_pages_find(p, TD_NO_PAGE, a), TD_NO_PAGE);
    assert_int_equal(td_pages_enter(p, TD_NO_PAGE, a, first), first);
    assert_int_equal(td_pages_enter(p, first, b, second), second);
    /* what is there already takes its place, and it is free */
    assert_int_equal(td_pages_enter(p, TD_NO_PAGE, a, third), first);
    assert_int_equal(td_pages_take(p), third);
    td_pages_drop(p, third);
    td_pages_drop(p, first);
    assert_int_equal(td_pages_held(p), 2);
    /* the same tokens behind others are another page */
    assert_int_equal(td_pages_find(p, TD_NO_PAGE, b), TD_NO_PAGE);
    assert_int_equal(td_pages_find(p, first, b), second);
    td_pages_drop(p, second);
    td_pages_drop(p, second);
    td_pages_drop(p, first);
    assert_int_equal(td_pages_held(p), 0);
    assert_int_equal(td_pages_kept(p), 2);
    /* first what is free, then the end of a branch, then what it was behind */
    assert_int_equal(td_pages_take(p), third);
    assert_int_equal(td_pages_take(p), second);
    assert_int_equal(td_pages_find(p, TD_NO_PAGE, a), first);
    td_pages_drop(p, first);
    assert_int_equal(td_pages_take(p), first);
    assert_int_equal(td_pages_find(p, TD_NO_PAGE, a), TD_NO_PAGE);
    /* behind what is not in the tree nothing is entered */
    assert_int_equal(td_pages_enter(p, first, b, second), second);
    assert_int_equal(td_pages_find(p, first, b), TD_NO_PAGE);
    assert_int_equal(td_pages_kept(p), 0);
    td_pages_destroy(&p);
}

/* --- A stage, and sequences on it --- */

typedef struct stage {
    tandem_model model;
    td_stage *on;
    td_sequence *of[MOST];
} stage;

static stage open_stage(uint32_t cache, uint32_t slots, uint32_t pages, uint32_t sequences)
{
    stage s = {0};

    must(tandem_model_create(session, &TANDEM_INIT(tandem_model_desc, .path = path, .cache = cache, .sequences = slots, .pages = pages, .tops = TOPS),
                             &s.model));
    must(td_stage_create(&(td_stage_desc){.session = session, .model = s.model, .slots = slots, .pages = pages, .context = CONTEXT,
                                          .layers = 2, .kv_heads = 1, .head_dim = 64, .cache = cache, .tops = TOPS},
                         &s.on));
    for (uint32_t i = 0; i < sequences; i++)
        must(td_sequence_open(s.on, &s.of[i]));
    return s;
}

static void close_stage(stage *s)
{
    for (uint32_t i = 0; i < MOST; i++)
        td_sequence_close(&s->of[i]);
    assert_int_equal(td_stage_count(s->on).pages_held, 0);
    td_stage_destroy(&s->on);
    must(tandem_model_destroy(session, s->model));
}

/* The tokens of a text that only sequences of this number have, behind what all have. */
static void make_text(uint32_t *ids, uint32_t number, uint32_t common, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (i * 37 + (i < common ? 0 : 1 + number * 11 + i / 7)) % WORDS;
}

/* Until all of them know their logits. */
static void run(stage *s, uint32_t from, uint32_t end)
{
    for (uint32_t i = from; i < end;) {
        const td_sequence_state state = td_sequence_look(s->of[i]);

        assert_int_equal(state.status, TANDEM_OK);
        if (state.is == TD_SEQUENCE_KNOWS) {
            i++;
            continue;
        }
        td_stage_step(s->on, NULL);
        td_stage_wait(s->on, 10 * SECONDS);
    }
}

/* What sequence `number` knows after `count` tokens and then one by one up to `last`, all by itself. */
static float *alone(uint32_t cache, uint32_t number, uint32_t common, uint32_t count, uint32_t last)
{
    stage s = open_stage(cache, 1, CONTEXT / PAGE, 1);
    float *logits = malloc(WORDS * sizeof *logits);
    uint32_t ids[CONTEXT];

    make_text(ids, number, common, last);
    for (uint32_t n = count; n <= last; n++) {
        must(td_sequence_read(s.of[0], ids, n));
        run(&s, 0, 1);
    }
    memcpy(logits, td_sequence_look(s.of[0]).logits, WORDS * sizeof *logits);
    close_stage(&s);
    return logits;
}

static void check(stage *s, uint32_t i, uint32_t cache, uint32_t common, uint32_t count, uint32_t last)
{
    float *want = alone(cache, i, common, count, last);

    assert_memory_equal(want, td_sequence_look(s->of[i]).logits, WORDS * sizeof *want);
    free(want);
}

/* Who wants the largest logits alone is given those, and all of them where a neighbour in the run wants all; what was given holds
 * while others go on. */
static void test_largest(void **state)
{
    stage s = open_stage(TANDEM_CACHE_K8V8, 4, 4 * 3, 4);
    uint32_t ids[CONTEXT];
    float first[2 * TOPS];

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        td_sequence_want_all(s.of[i], false);
    for (uint32_t all = 0; all < 2; all++) {
        td_sequence_want_all(s.of[3], all);
        for (uint32_t i = 0; i < 4; i++) {
            make_text(ids, i, 0, 80 + all);
            must(td_sequence_read(s.of[i], ids, 80 + all));
        }
        run(&s, 0, 4);
        for (uint32_t i = 0; i < 4; i++) {
            const td_sequence_state state_of = td_sequence_look(s.of[i]);
            float *const logits = alone(TANDEM_CACHE_K8V8, i, 0, 80, 80 + all);

            assert_int_equal(state_of.logits != NULL, all);
            if (all)
                assert_memory_equal(state_of.logits, logits, WORDS * sizeof *logits);
            for (uint32_t t = 0; t < TOPS; t++)
                assert_true(state_of.tops[t] == logits[(uint32_t)state_of.tops[TOPS + t]] && (!t || state_of.tops[t] <= state_of.tops[t - 1]));
            for (uint32_t word = 0; word < WORDS; word++)
                assert_true(logits[word] <= state_of.tops[0]);
            free(logits);
        }
    }
    memcpy(first, td_sequence_look(s.of[0]).tops, sizeof first);
    for (uint32_t n = 0; n < 5; n++) {
        make_text(ids, 1, 0, 82 + n);
        must(td_sequence_read(s.of[1], ids, 82 + n));
        run(&s, 1, 2);
    }
    assert_memory_equal(first, td_sequence_look(s.of[0]).tops, sizeof first);
    /* asked once more, for all */
    make_text(ids, 0, 0, 81);
    td_sequence_want_all(s.of[0], true);
    must(td_sequence_read(s.of[0], ids, 81));
    run(&s, 0, 1);
    check(&s, 0, TANDEM_CACHE_K8V8, 0, 80, 81);
    close_stage(&s);
}

/* Bits alone and among 31 others. */
static void test_among_others(void **state)
{
    uint32_t ids[CONTEXT];

    (void)state;
    for (uint32_t cache = 0; cache <= TANDEM_CACHE_K4V8; cache++) {
        stage s = open_stage(cache, 32, 32 * 3, 32);

        for (uint32_t n = 0; n < 12; n++) {
            for (uint32_t i = 0; i < 32; i++) {
                make_text(ids, i, 0, 60 + i + n);
                must(td_sequence_read(s.of[i], ids, 60 + i + n));
            }
            run(&s, 0, 32);
        }
        for (uint32_t i = 0; i < 32; i += 9)
            check(&s, i, cache, 0, 60 + i, 60 + i + 11);
        assert_true(td_stage_count(s.on).runs < 32 * 2 + 13); /* not each token by itself */
        close_stage(&s);
    }
}

/* What all begin with is read once, and there once; also where all ask for it at the same time. */
static void test_prefix(void **state)
{
    enum { GUARDS = 20, COMMON = 3 * PAGE + 10, ALL = COMMON + 20 };
    uint32_t ids[CONTEXT];

    (void)state;
    for (uint32_t cache = 0; cache <= TANDEM_CACHE_K4V8; cache++) {
        stage s = open_stage(cache, 32, 32, GUARDS + 1);

        for (uint32_t i = 0; i < GUARDS; i++) {
            make_text(ids, i, COMMON, ALL);
            must(td_sequence_read(s.of[i], ids, ALL));
        }
        run(&s, 0, GUARDS);
        assert_int_equal(td_stage_count(s.on).tokens, 3 * PAGE + GUARDS * (ALL - 3 * PAGE));
        assert_int_equal(td_stage_count(s.on).pages_held, 3 + GUARDS);
        assert_int_equal(td_sequence_look(s.of[7]).tokens, ALL - 3 * PAGE);
        check(&s, 0, cache, COMMON, ALL, ALL);
        check(&s, 7, cache, COMMON, ALL, ALL);
        for (uint32_t i = 0; i < GUARDS; i++)
            td_sequence_close(&s.of[i]);
        /* nobody has it any more, and still it is there */
        assert_int_equal(td_stage_count(s.on).pages_kept, 3);
        make_text(ids, GUARDS, COMMON, ALL);
        must(td_sequence_read(s.of[GUARDS], ids, ALL));
        assert_int_equal(td_sequence_look(s.of[GUARDS]).read, 3 * PAGE);
        run(&s, GUARDS, GUARDS + 1);
        check(&s, GUARDS, cache, COMMON, ALL, ALL);
        close_stage(&s);
    }
}

/* Going back to any place has the bits of who came there straight; and so has who goes on from it. */
static void test_goes_back(void **state)
{
    static const uint32_t backs[] = {199, 198, 192, 191, 130, 128, 127, 66, 64, 63, 1};
    uint32_t ids[CONTEXT], other[CONTEXT];

    (void)state;
    for (uint32_t cache = 0; cache <= TANDEM_CACHE_K4V8; cache++) {
        stage s = open_stage(cache, 2, 2 * CONTEXT / PAGE, 1);

        make_text(ids, 0, 0, 200);
        make_text(other, 1, 0, 230);
        for (size_t n = 0; n < sizeof backs / sizeof *backs; n++) {
            uint32_t mixed[CONTEXT];

            must(td_sequence_read(s.of[0], ids, 200));
            run(&s, 0, 1);
            memcpy(mixed, ids, backs[n] * sizeof *ids);
            memcpy(mixed + backs[n], other + backs[n], (230 - backs[n]) * sizeof *ids);
            must(td_sequence_read(s.of[0], mixed, 230));
            run(&s, 0, 1);
            stage fresh = open_stage(cache, 1, CONTEXT / PAGE, 1);
            must(td_sequence_read(fresh.of[0], mixed, 230));
            run(&fresh, 0, 1);
            assert_memory_equal(td_sequence_look(s.of[0]).logits, td_sequence_look(fresh.of[0]).logits, WORDS * sizeof(float));
            close_stage(&fresh);
        }
        close_stage(&s);
    }
}

/* More sequences than there are slots, and pages for hardly two contexts: all get what they would have
 * otherwise, one after the other, by reading again. */
static void test_little_room(void **state)
{
    enum { COUNT = 7, FIRST = 300, LAST = 310 };
    uint32_t ids[CONTEXT];

    (void)state;
    for (uint32_t cache = 0; cache <= TANDEM_CACHE_K4V8; cache++) {
        stage s = open_stage(cache, 3, 12, COUNT);

        for (uint32_t n = FIRST; n <= LAST; n++) {
            for (uint32_t i = 0; i < COUNT; i++) {
                make_text(ids, i, 0, n);
                must(td_sequence_read(s.of[i], ids, n));
            }
            run(&s, 0, COUNT);
        }
        for (uint32_t i = 0; i < COUNT; i += 3)
            check(&s, i, cache, 0, FIRST, LAST);
        assert_true(td_stage_count(s.on).tokens > (uint64_t)COUNT * LAST);
        assert_in_range(td_stage_count(s.on).pages_held, 1, 12);
        close_stage(&s);
    }
}

/* Changed in the middle of a run, or closed: others do not notice. */
static void test_changes_its_mind(void **state)
{
    uint32_t ids[CONTEXT], other[CONTEXT];

    (void)state;
    for (uint32_t cache = 0; cache <= TANDEM_CACHE_K4V8; cache++) {
        stage s = open_stage(cache, 4, 4 * CONTEXT / PAGE, 3);

        for (uint32_t n = 0; n < 20; n++) {
            make_text(ids, n, 0, 150);
            make_text(other, n + 1, 40, 150);
            must(td_sequence_read(s.of[0], ids, 100 + n));
            must(td_sequence_read(s.of[1], other, 90 + n));
            for (uint32_t steps = 0; steps < n % 5; steps++) {
                td_stage_step(s.on, NULL);
                if (steps % 2)
                    td_stage_wait(s.on, SECONDS);
            }
            make_text(ids, 0, 0, 120);
            must(td_sequence_read(s.of[0], ids, 120));
            if (n % 3 == 0) {
                td_sequence_close(&s.of[1]);
                must(td_sequence_open(s.on, &s.of[1]));
            } else if (n % 3 == 1) {
                td_sequence_rest(s.of[1]);
            }
            run(&s, 0, 1);
            check(&s, 0, cache, 0, 120, 120);
        }
        close_stage(&s);
    }
}

/* What was read goes into bytes and back: not read again, and of the same bits; as far as it is asked for. */
static void test_restores(void **state)
{
    static const struct {
        uint32_t saved, first, asked, same;
    } cases[] = {{200, 0, 260, 200}, {200, 2, 201, 200}, {192, 1, 230, 192}, {130, 2, 140, 130}, {200, 1, 150, 150},
                 {200, 1, 200, 200}, {200, 2, 240, 100}, {50, 0, 60, 50}};
    char why[300] = "";
    uint32_t ids[CONTEXT], mixed[CONTEXT];

    (void)state;
    for (uint32_t cache = 0; cache <= TANDEM_CACHE_K4V8; cache++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            stage from = open_stage(cache, 2, 2 * CONTEXT / PAGE, 2), to = open_stage(cache, 2, 2 * CONTEXT / PAGE, 2);
            td_saved saved;

            make_text(ids, 0, 0, CONTEXT);
            must(td_sequence_read(from.of[1], ids + 3, 100)); /* another, in the first slot and pages */
            run(&from, 1, 2);
            must(td_sequence_read(from.of[0], ids, cases[i].saved));
            run(&from, 0, 1);
            td_sequence_rest(from.of[0]);
            must(td_sequence_saved(from.of[0], &saved, why));
            assert_int_equal(saved.count, cases[i].saved);
            const uint64_t bytes = td_stage_saved_bytes(from.on, saved.pages - cases[i].first, saved.tail);
            char *memory = malloc(bytes + 1);
            memory[bytes] = 0x5a;
            must(td_sequence_save(from.of[0], &saved, cases[i].first, memory, why));
            assert_int_equal(memory[bytes], 0x5a);
            must(td_sequence_restore(to.of[0], &saved, cases[i].first, memory));
            free(memory);
            make_text(mixed, 1, cases[i].same, CONTEXT);
            memcpy(mixed, ids, cases[i].same * sizeof *ids);
            must(td_sequence_read(to.of[0], mixed, cases[i].asked));
            run(&to, 0, 1);
            const uint32_t same = cases[i].asked <= cases[i].same ? cases[i].asked - 1 : cases[i].same,
                           kept = same / PAGE == cases[i].saved / PAGE ? same : same / PAGE * PAGE; /* newest, or full pages */
            const uint32_t prefix = cases[i].first * PAGE, taken = kept > prefix ? kept - prefix : 0;
            assert_int_equal(td_stage_count(to.on).tokens, cases[i].asked - taken);
            must(td_sequence_read(from.of[0], mixed, cases[i].asked));
            run(&from, 0, 1);
            assert_memory_equal(td_sequence_look(from.of[0]).logits, td_sequence_look(to.of[0]).logits, WORDS * sizeof(float));
            /* what came from outside nobody else finds */
            assert_int_equal(td_sequence_look(to.of[1]).read, 0);
            must(td_sequence_read(to.of[1], mixed, cases[i].asked));
            assert_true(td_sequence_look(to.of[1]).read <= prefix || !taken);
            run(&to, 1, 2);
            assert_memory_equal(td_sequence_look(from.of[0]).logits, td_sequence_look(to.of[1]).logits, WORDS * sizeof(float));
            close_stage(&from);
            close_stage(&to);
        }
}

/* --- Characters --- */

#define LETTERS "root ::= [a-z ]+"

static tandem_language_info info_of(tandem_language *language)
{
    tandem_language_info info = TANDEM_INIT(tandem_language_info);

    must(tandem_language_get_info(language, &info));
    return info;
}

/* They all talk at once, polled in turn as a game does. */
static void talk(tandem_npc **npc, uint32_t count, char text[][200])
{
    for (uint32_t i = 0; i < count; i++) {
        char said[40];

        text[i][0] = 0;
        snprintf(said, sizeof said, "I am number %u.", (unsigned)i);
        must(tandem_npc_say(npc[i], &TANDEM_INIT(tandem_say, .text = said, .most_tokens = 24, .grammar = LETTERS,
                                                 .sampling = &TANDEM_INIT(tandem_sampling, .temperature = 1, .seed = i))));
    }
    for (uint32_t talking = count; talking;) {
        talking = 0;
        for (uint32_t i = 0; i < count; i++) {
            tandem_npc_news news = TANDEM_INIT(tandem_npc_news);

            must(tandem_npc_poll(npc[i], &news));
            strcat(text[i], news.text);
            talking += news.state != TANDEM_NPC_IDLE;
        }
    }
}

static void test_characters(void **state)
{
    enum { GUARDS = 12 };
    char persona[400] = "A guard of the northern gate", together[GUARDS][200], apart[1][200];
    tandem_language *language;
    tandem_npc *npc[GUARDS];

    (void)state;
    while (strlen(persona) < 300)
        strcat(persona, ", who has seen it all");
    for (uint32_t cache = 0; cache <= TANDEM_CACHE_K4V8; cache++) {
        must(tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = path, .cache = cache), &language));
        assert_int_equal(info_of(language).slots, 32);
        for (uint32_t i = 0; i < GUARDS; i++)
            must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .persona = persona), &npc[i]));
        talk(npc, GUARDS, together);
        const tandem_language_info info = info_of(language);
        assert_true(info.tokens_computed < 300 + GUARDS * 170); /* not the persona of each */
        assert_true(info.pages_held < 5 + 3 * GUARDS);
        assert_true(info.runs < 24 * 3 + 3 * GUARDS);
        for (uint32_t i = 0; i < GUARDS; i++)
            must(tandem_npc_destroy(&npc[i]));
        must(tandem_language_destroy(&language));

        must(tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = path, .cache = cache, .slots = 1), &language));
        must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .persona = persona), &npc[0]));
        talk(npc, 1, apart);
        assert_string_equal(apart[0], together[0]);
        assert_true(strcmp(together[0], together[1]) != 0);
        must(tandem_npc_destroy(&npc[0]));
        must(tandem_language_destroy(&language));
    }
}

static tandem_language *language_of(uint32_t cache)
{
    tandem_language *language;

    must(tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = path, .cache = cache), &language));
    return language;
}

static const char gate[] = "A guard of the northern gate, who has seen it all, and tells it to everybody who asks, over and over: "
                           "the siege, the winter, the two kings and the horse; but never why he was sent here.";

static tandem_npc *guard_of(tandem_language *language)
{
    tandem_npc *npc;

    must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .persona = gate), &npc));
    return npc;
}

static void answer(tandem_npc *npc, const char *said, char text[200], tandem_npc_news *last)
{
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);

    text[0] = 0;
    must(tandem_npc_say(npc, &TANDEM_INIT(tandem_say, .text = said, .most_tokens = 24, .grammar = LETTERS,
                                          .sampling = &TANDEM_INIT(tandem_sampling, .temperature = 1, .seed = 5))));
    do {
        must(tandem_npc_wait(npc, 60 * SECONDS, &news));
        strcat(text, news.text);
    } while (news.state != TANDEM_NPC_IDLE);
    if (last)
        *last = news;
}

static char *save(tandem_npc *npc, uint64_t *bytes)
{
    must(tandem_npc_save(npc, NULL, bytes));
    char *to = malloc(*bytes);
    must(tandem_npc_save(npc, to, bytes));
    return to;
}

/* A game that is saved and loaded: what is said next is what would have been, and is all that is read. */
static void test_saves(void **state)
{
    char text[200], want[200], got[200];

    (void)state;
    for (uint32_t cache = 0; cache <= TANDEM_CACHE_K4V8; cache++) {
        tandem_language *language = language_of(cache);
        tandem_npc *npc = guard_of(language), *other;
        tandem_npc_news news;
        tandem_turn turns[8] = {TANDEM_INIT(tandem_turn)};
        uint32_t count = 8;
        uint64_t bytes;

        answer(npc, "Who goes there? And where to, at this time of the night, and all alone?", text, NULL);
        char *saved = save(npc, &bytes);
        answer(npc, "Open the gate.", want, &news);
        const uint32_t prompt = news.prompt_tokens, read = news.read_tokens;
        must(tandem_npc_destroy(&npc));
        for (int fresh = 0; fresh < 2; fresh++) { /* the same process, and another one */
            if (fresh) {
                must(tandem_language_destroy(&language));
                language = language_of(cache);
            }
            other = guard_of(language);
            must(tandem_npc_restore(other, saved, bytes));
            uint64_t again;
            char *same = save(other, &again); /* before anybody has asked for it */
            assert_int_equal(again, bytes);
            assert_memory_equal(same, saved, bytes);
            free(same);
            must(tandem_npc_get_history(other, &count, turns));
            assert_int_equal(count, 2);
            assert_string_equal(turns[1].text, text);
            count = 8;
            const uint64_t before = info_of(language).tokens_computed;
            answer(other, "Open the gate.", got, &news);
            assert_string_equal(got, want);
            assert_int_equal(news.prompt_tokens, prompt);
            if (fresh)
                assert_int_equal(news.read_tokens, read + 3 * PAGE); /* of the persona alone */
            else
                assert_true(news.read_tokens <= read); /* what is still there besides, too */
            assert_true(info_of(language).tokens_computed - before <= news.read_tokens + 24);
            must(tandem_npc_destroy(&other));
        }
        print_message("cache %u: %u of %u tokens read again; %u bytes, %.2f of fp16\n", (unsigned)cache, (unsigned)read, (unsigned)prompt,
                      (unsigned)bytes, (double)bytes / ((prompt - read) * 2 * 2 * 64 * 2.0));
        free(saved);
        must(tandem_language_destroy(&language));
    }
}

/* So it is of a text alone; a character that has turns does not take it. */
static void test_saves_plain(void **state)
{
    tandem_language *language = language_of(TANDEM_CACHE_F16);
    tandem_npc *npc, *other, *turns;
    char text[200], want[200], got[200], why[600];
    uint64_t bytes;

    (void)state;
    must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .plain = 1), &npc));
    must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .plain = 1), &other));
    must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc), &turns));
    answer(npc, "The gate was shut, and nobody", text, NULL);
    char *saved = save(npc, &bytes);
    answer(npc, "The gate was shut, and nobody came", want, NULL);
    must(tandem_npc_restore(other, saved, bytes));
    answer(other, "The gate was shut, and nobody came", got, NULL);
    assert_string_equal(got, want);
    assert_int_equal(tandem_npc_restore(turns, saved, bytes), TANDEM_ERROR_ARG);
    tandem_error_text(session, why, sizeof why);
    assert_non_null(strstr(why, "it was saved"));
    free(saved);
    must(tandem_npc_destroy(&turns));
    must(tandem_npc_destroy(&other));
    must(tandem_npc_destroy(&npc));
    must(tandem_language_destroy(&language));
}

static void must_refuse(tandem_npc *npc, const void *from, uint64_t bytes, tandem_status status, const char *says)
{
    char why[600] = "";

    assert_int_equal(tandem_npc_restore(npc, from, bytes), status);
    tandem_error_text(session, why, sizeof why);
    if (!strstr(why, says))
        fail_msg("\"%s\" does not say \"%s\"", why, says);
}

static void set_u32(char *bytes, size_t at, uint32_t value)
{
    memcpy(bytes + at, &value, sizeof value);
}

/* Bytes that are none, or somebody else's; and any at all, whose checksum is right. */
static void test_hostile_bytes(void **state)
{
    enum { VERSION = 56, FIRST = 92, PAGES = 96, TAIL = 100, TURNS = 108, TOKENS = 88, TEXT = 40, DATA = 48 };
    static const struct {
        size_t at;
        uint32_t value;
        const char *says;
    } wrong[] = {{VERSION, 2, "it is of version 2"},        {VERSION + 4, 0, "with a head of 0 bytes"},
                 {FIRST, 1000, "pages 1000 to"},            {PAGES, UINT32_MAX, "are not those of"},
                 {TAIL, 64, "are not those of"},            {TOKENS, UINT32_MAX, "are not its"},
                 {TURNS, UINT32_MAX, "are not its"},        {TURNS, 0, "are not its"},
                 {TEXT, UINT32_MAX, "are not its"},         {DATA + 4, UINT32_MAX, "are not its"},
                 {16, 5, "it says that it has 5 bytes"},
                 {128, 100000, "token 0 is 100000"}};
    tandem_language *language = language_of(TANDEM_CACHE_K8V8), *f16 = language_of(TANDEM_CACHE_F16);
    tandem_npc *npc = guard_of(language), *of_f16 = guard_of(f16), *stranger;
    char text[200];
    uint64_t bytes, state_of_dice = 3, room = 10;

    (void)state;
    must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .persona = "A thief."), &stranger));
    answer(npc, "Who goes there? And where to, at this time of the night, and all alone?", text, NULL);
    char *saved = save(npc, &bytes), *bad = malloc(bytes + 1);

    assert_int_equal(tandem_npc_save(npc, bad, &room), TANDEM_ERROR_BUSY);
    assert_int_equal(room, bytes);
    must_refuse(npc, NULL, 0, TANDEM_ERROR_ARG, "from is NULL");
    must_refuse(stranger, saved, bytes, TANDEM_ERROR_ARG, "it was saved with another persona");
    must_refuse(of_f16, saved, bytes, TANDEM_ERROR_ARG, "it was saved with another format of caches");
    for (uint64_t n = 0; n < bytes; n += 1 + n / 40)
        must_refuse(npc, saved, n, TANDEM_ERROR_PROTOCOL, n < 128 ? "a head has 128" : "it says that it has");
    memcpy(bad, saved, bytes);
    for (uint64_t n = 0; n < bytes; n += 1 + n / 40) { /* any bit */
        bad[n] ^= (char)(1 << n % 8);
        assert_int_equal(tandem_npc_restore(npc, bad, bytes), TANDEM_ERROR_PROTOCOL);
        bad[n] = saved[n];
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(bad, saved, bytes);
        set_u32(bad, wrong[i].at, wrong[i].value);
        td_blob_seal(bad, bytes);
        must_refuse(npc, bad, bytes, TANDEM_ERROR_PROTOCOL, wrong[i].says);
    }
    for (int round = 0; round < 300; round++) {
        memcpy(bad, saved, bytes);
        for (int i = 0; i < 1 + round % 5; i++) {
            state_of_dice = state_of_dice * 6364136223846793005u + 1442695040888963407u;
            const uint64_t at = (state_of_dice >> 33) % (round % 2 ? bytes - 56 : 200) + (round % 2 ? 56 : 0);
            bad[at] = (char)(state_of_dice >> 20);
        }
        td_blob_seal(bad, bytes);
        const tandem_status status = tandem_npc_restore(npc, bad, bytes);
        assert_true(status == TANDEM_OK || status == TANDEM_ERROR_PROTOCOL || status == TANDEM_ERROR_ARG);
        if (status == TANDEM_OK && round % 20 == 1)
            answer(npc, "Open the gate.", text, NULL);
    }
    must(tandem_npc_restore(npc, saved, bytes));
    answer(npc, "Open the gate.", text, NULL);
    free(saved);
    free(bad);
    must(tandem_npc_destroy(&npc));
    must(tandem_npc_destroy(&of_f16));
    must(tandem_npc_destroy(&stranger));
    must(tandem_language_destroy(&language));
    must(tandem_language_destroy(&f16));
}

/* --- Frames --- */

static double dice(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / 9007199254740992.0;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double at(double *values, size_t count, double share)
{
    qsort(values, count, sizeof *values, compare);
    return values[(size_t)((double)(count - 1) * share)];
}

/* Work that ends late, mostly a little, sometimes much: 99 of 100 frames are within the budget and a tenth, and little of it is
 * left unused. */
static void test_windows(void **state)
{
    enum { FRAMES = 20000, SETTLED = 1000 };
    static const double budgets[] = {300e3, 2000e3, 8000e3};
    double *spent = malloc(FRAMES * sizeof *spent);
    uint64_t seed = 1;

    (void)state;
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        td_budget b = {0};
        double all = 0;

        for (int frame = 0; frame < FRAMES; frame++) {
            const double late = budgets[i] * (0.02 + 0.05 * dice(&seed) + (dice(&seed) < 0.015 ? 0.2 * dice(&seed) : 0));

            td_budget_begin(&b, (uint64_t)budgets[i]);
            spent[frame] = (double)td_budget_window_ns(&b) + late;
            td_budget_late(&b, (uint64_t)late);
            all += frame < SETTLED ? 0 : spent[frame];
        }
        assert_true(at(spent + SETTLED, FRAMES - SETTLED, 0.99) <= 1.1 * budgets[i]);
        assert_true(all / (FRAMES - SETTLED) >= 0.85 * budgets[i]);
    }
    free(spent);
}

/* Frames of runs that cannot stand still, of what there is to compute; returns what each had. */
static void run_frames(td_budget *b, double budget, double run, double token, int frames, double *spent, uint64_t *seed)
{
    for (int frame = 0; frame < frames; frame++) {
        spent[frame] = 0;
        td_budget_begin(b, (uint64_t)budget);
        for (uint32_t tokens; (tokens = td_budget_tokens(b, 64)) > 0;) {
            const double took = (run + token * tokens) * (0.97 + 0.06 * dice(seed));

            spent[frame] += took;
            td_budget_spend(b, tokens, (uint64_t)took);
        }
    }
}

static void test_runs(void **state)
{
    enum { FRAMES = 4000, SETTLED = 400 };
    double spent[FRAMES], all = 0;
    uint64_t seed = 2;
    td_budget b = {0};

    (void)state;
    run_frames(&b, 1e6, 1e5, 2e4, FRAMES, spent, &seed);
    for (int i = SETTLED; i < FRAMES; i++)
        all += spent[i];
    assert_true(at(spent + SETTLED, FRAMES - SETTLED, 0.99) <= 1.1e6);
    assert_true(all / (FRAMES - SETTLED) >= 0.8e6);
    /* twice as dear from one frame to the next: it has learnt that soon */
    run_frames(&b, 1e6, 2e5, 4e4, 60, spent, &seed);
    run_frames(&b, 1e6, 2e5, 4e4, FRAMES, spent, &seed);
    assert_true(at(spent, FRAMES, 0.99) <= 1.1e6);
    /* a token that takes three frames and a half: on the average it holds, and tokens still come */
    b = (td_budget){0};
    run_frames(&b, 1e6, 3.4e6, 1e5, FRAMES, spent, &seed);
    all = 0;
    for (int i = 0; i < FRAMES; i++)
        all += spent[i];
    assert_true(all / FRAMES <= 1.02e6 && all / FRAMES >= 0.9e6);
    assert_int_equal(td_budget_tokens(&(td_budget){0}, 64), 64); /* without a budget */
    assert_int_equal(td_budget_part(&(td_budget){0}, 64), 64);
    assert_int_equal(td_budget_part(&(td_budget){.frame_ns = 1e6, .token_ns = 1e5}, 64), 40);
    assert_int_equal(td_budget_part(&(td_budget){.frame_ns = 1e6, .token_ns = 1e9}, 64), 8);
}

/* On a CPU, with a model of which one run takes more than a frame may: frames keep to it, and what is said is the same. */
static void test_frames(void **state)
{
    enum { NPCS = 3, MOST_FRAMES = 60000, BUDGET_US = 400 };
    const lf_shape large = {.layers = 3, .dim = 256, .hidden = 1024, .heads = 4, .kv_heads = 2, .head_dim = 64, .rotated_channels = 64,
                            .words = WORDS, .context = CONTEXT, .dtype = TANDEM_DTYPE_Q8_0, .speaks = true};
    char large_path[80], want[NPCS][200], got[NPCS][200];
    static double spent_us[MOST_FRAMES];
    tandem_language *language;
    tandem_npc *npc[NPCS];
    uint32_t frames = 0, counted = 0;
    float fastest = 0;

    (void)state;
    snprintf(large_path, sizeof large_path, "%s.large", path);
    lf_write(large_path, &large, NULL);
    must(tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = large_path), &language));
    for (int framed = 0; framed < 2; framed++) {
        uint32_t talking = NPCS;

        for (uint32_t i = 0; i < NPCS; i++)
            must(tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc, .persona = gate), &npc[i]));
        if (!framed) {
            talk(npc, NPCS, want);
            talking = 0;
        }
        for (uint32_t i = 0; i < NPCS && framed; i++) {
            char said[40];

            got[i][0] = 0;
            snprintf(said, sizeof said, "I am number %u.", (unsigned)i);
            must(tandem_npc_say(npc[i], &TANDEM_INIT(tandem_say, .text = said, .most_tokens = 24, .grammar = LETTERS,
                                                     .sampling = &TANDEM_INIT(tandem_sampling, .temperature = 1, .seed = i))));
        }
        while (talking && frames < MOST_FRAMES) {
            tandem_language_spent spent = TANDEM_INIT(tandem_language_spent);

            must(tandem_language_frame(language, BUDGET_US, &spent));
            if (spent.spent_us)
                spent_us[counted++] = spent.spent_us;
            frames++;
            talking = 0;
            for (uint32_t i = 0; i < NPCS; i++) {
                tandem_npc_news news = TANDEM_INIT(tandem_npc_news);

                must(tandem_npc_poll(npc[i], &news));
                strcat(got[i], news.text);
                talking += news.state != TANDEM_NPC_IDLE;
            }
            assert_true(spent.waiting <= NPCS);
            fastest = spent.tokens_per_s > fastest ? spent.tokens_per_s : fastest;
            td_sleep_ns(500000);
        }
        for (uint32_t i = 0; i < NPCS; i++) {
            if (framed)
                assert_string_equal(got[i], want[i]);
            must(tandem_npc_destroy(&npc[i]));
        }
    }
    print_message("%u frames: %.0f us at the median, %.0f us at p99, of %u\n", (unsigned)frames, at(spent_us, counted, 0.5),
                  at(spent_us, counted, 0.99), (unsigned)BUDGET_US);
    assert_true(frames > 100); /* not all at once */
    assert_true(fastest > 0);
    assert_true(at(spent_us, counted, 0.5) <= 1.1 * BUDGET_US);
    must(tandem_language_frame(language, 0, NULL));
    must(tandem_language_destroy(&language));
    unlink(large_path);
}

/* Asked once its budget is spent, a frame begins nothing, and nothing counts as late. */
static void test_late_polls(void **state)
{
    const uint64_t budget_ns = 2000000;
    stage s = open_stage(TANDEM_CACHE_F16, 2, 2 * CONTEXT / PAGE, 2);
    uint32_t ids[CONTEXT];

    (void)state;
    make_text(ids, 0, 0, CONTEXT);
    for (uint32_t tokens = 1; tokens < 4; tokens++) {
        td_stage_frame(s.on, budget_ns); /* which has nothing to do in time */
        must(td_sequence_read(s.of[0], ids, tokens));
        td_sleep_ns(5 * budget_ns);
        td_stage_step(s.on, NULL);
        td_sleep_ns(budget_ns);
        assert_int_equal(td_stage_frame(s.on, budget_ns).spent_ns, 0);
        for (int tries = 0; tries < 100 && td_sequence_look(s.of[0]).is != TD_SEQUENCE_KNOWS; tries++) {
            td_stage_frame(s.on, budget_ns);
            td_stage_wait(s.on, budget_ns);
        }
        assert_int_equal(td_sequence_look(s.of[0]).is, TD_SEQUENCE_KNOWS);
    }
    td_stage_frame(s.on, 0);
    close_stage(&s);
}

/* A run that stands still, and that nobody wants any more, ends there. */
static void test_gives_up(void **state)
{
    stage s = open_stage(TANDEM_CACHE_F16, 2, 2 * CONTEXT / PAGE, 2);
    uint32_t ids[CONTEXT];

    (void)state;
    make_text(ids, 0, 0, CONTEXT);
    for (int way = 0; way < 2; way++) {
        must(td_sequence_read(s.of[way], ids, CONTEXT));
        td_stage_frame(s.on, 1);
        td_stage_step(s.on, NULL);
        const uint64_t begin = td_now_ns();
        if (way)
            td_sequence_close(&s.of[way]);
        else
            td_sequence_rest(s.of[way]);
        while (td_stage_wait(s.on, 2 * LIMITS_SOON_NS))
            td_stage_step(s.on, NULL);
        assert_true(td_now_ns() - begin < LIMITS_SOON_NS);
        assert_int_equal(td_stage_count(s.on).tokens, 0);
    }
    td_stage_frame(s.on, 0);
    must(td_sequence_read(s.of[0], ids, 100));
    run(&s, 0, 1);
    check(&s, 0, TANDEM_CACHE_F16, 0, 100, 100);
    close_stage(&s);
}

/* A frame that was the last one: nobody waits for another one for long. */
static void test_last_frame(void **state)
{
    tandem_language *language = language_of(0);
    tandem_npc *npc = guard_of(language);
    char text[200];

    (void)state;
    must(tandem_language_frame(language, 1, NULL));
    const uint64_t begin_ns = td_now_ns();
    answer(npc, "Who goes there?", text, NULL);
    assert_true(*text);
    assert_true(td_now_ns() - begin_ns < LIMITS_SOON_NS);
    must(tandem_npc_destroy(&npc));
    must(tandem_language_destroy(&language));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree),          cmocka_unit_test(test_among_others),
        cmocka_unit_test(test_largest),
        cmocka_unit_test(test_prefix),        cmocka_unit_test(test_goes_back),
        cmocka_unit_test(test_little_room),   cmocka_unit_test(test_changes_its_mind),
        cmocka_unit_test(test_characters),    cmocka_unit_test(test_restores),
        cmocka_unit_test(test_saves),         cmocka_unit_test(test_saves_plain),   cmocka_unit_test(test_hostile_bytes),
        cmocka_unit_test(test_windows),       cmocka_unit_test(test_runs),
        cmocka_unit_test(test_frames),        cmocka_unit_test(test_gives_up),
        cmocka_unit_test(test_last_frame),    cmocka_unit_test(test_late_polls),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
