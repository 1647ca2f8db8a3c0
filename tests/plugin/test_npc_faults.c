/* Faults under characters: from the file to the end of a conversation the n-th call of the C library that can fail does, for
 * every n; so it does under files of models. Each time there is a status with a text, nothing leaks, and the same call made again
 * leads to what it should have.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/npc/tokenizer.h"
#include "kernels/model/folder.h"
#include "kernels/model/safetensors.h"
#include "tandem/plugin.h"
#include "tests/interop/faults.h"
#include "tests/kernels/llama_file.h"
#include "tests/limits.h"

enum { TEXT_BYTES = 400, MOST_VALUES = 128, MOST_SAVED = 1 << 20, WHY_BYTES = 600 };

static tandem_session *session;
static char path[60];

/* A conversation, and what came of it. */
typedef struct talk {
    bool embeds;
    tandem_language *language;
    tandem_npc *npc, *restored;
    tandem_embedder *embedder;
    uint64_t saved_bytes;
    char texts[2][TEXT_BYTES];
    float values[MOST_VALUES];
    uint32_t turns;
    char last_turn[TEXT_BYTES];
} talk;
static char saved[MOST_SAVED];

/* The steps. Each may be taken again after it failed. */

static tandem_status make_language(talk *t)
{
    return tandem_language_create(session, &TANDEM_INIT(tandem_language_desc, .path = path, .embeds = t->embeds,
                                                        .tokens = t->embeds ? 512 : 0, .slots = t->embeds ? 4 : 0),
                                  &t->language);
}

static tandem_status make_npc(talk *t)
{
    return tandem_npc_create(t->language, &TANDEM_INIT(tandem_npc_desc, .persona = "A guard."), &t->npc);
}

static tandem_status set_history(talk *t)
{
    const tandem_turn turns[] = {TANDEM_INIT(tandem_turn, .role = TANDEM_ROLE_USER, .text = "Hello."),
                                 TANDEM_INIT(tandem_turn, .role = TANDEM_ROLE_NPC, .text = "Halt!")};

    return tandem_npc_set_history(t->npc, turns, 2);
}

static tandem_status answer(talk *t, const tandem_say *say, char *text)
{
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);
    tandem_status status = tandem_npc_say(t->npc, say);

    *text = 0;
    while (status == TANDEM_OK) {
        status = tandem_npc_wait(t->npc, LIMITS_PATIENCE_NS, &news);
        if (status != TANDEM_OK || (news.end && news.state == TANDEM_NPC_IDLE))
            break;
        assert_true(news.end != TANDEM_REPLY_FAILED);
    }
    if (status != TANDEM_OK) {
        char why[300] = "";

        tandem_error_text(session, why, sizeof why);
        assert_true(strlen(why) > 0);
        assert_int_equal(set_history(t), TANDEM_OK); /* whatever came of it is taken back */
        return status;
    }
    for (uint32_t i = 0; i < (say->replies ? say->replies : 1); i++) {
        tandem_npc_reply reply = TANDEM_INIT(tandem_npc_reply);

        assert_int_equal(tandem_npc_get_reply(t->npc, i, &reply), TANDEM_OK);
        snprintf(text + strlen(text), TEXT_BYTES - strlen(text), "%s|", reply.text);
    }
    return TANDEM_OK;
}

static tandem_status say_drawn(talk *t)
{
    static const uint32_t tokens[] = {'a', 'b'};
    static const float biases[] = {1, -1};
    static const char *const stops[] = {"zzzz", "qq"};
    const tandem_sampling sampling = TANDEM_INIT(tandem_sampling, .temperature = 1.5f, .seed = 3, .top_k = 40, .repetition = 1.1f,
                                                 .dry_multiplier = .8f, .dry_base = 1.75f, .dry_length = 1, .bias_count = 2,
                                                 .bias_tokens = tokens, .biases = biases);

    return answer(t, &TANDEM_INIT(tandem_say, .text = "Who are you?", .most_tokens = 5, .sampling = &sampling, .stops = stops,
                                  .stop_count = 2, .replies = 2, .grammar = "root ::= ([a-z ] | \"1\"{2,3})+", .logprobs = 1,
                                  .top_logprobs = 3),
                  t->texts[0]);
}

static tandem_status say_json(talk *t)
{
    tandem_status status = set_history(t);

    return status != TANDEM_OK
               ? status
               : answer(t, &TANDEM_INIT(tandem_say, .text = "Where?", .most_tokens = 30,
                                        .json_schema = "{\"type\": \"object\", \"properties\": {\"go\": {\"enum\": "
                                                       "[\"n\", \"s\"]}, \"s\": {\"type\": \"string\", \"maxLength\": 2}}, "
                                                       "\"required\": [\"go\", \"s\"], \"additionalProperties\": false}"),
                        t->texts[1]);
}

static tandem_status save(talk *t)
{
    t->saved_bytes = sizeof saved;
    return tandem_npc_save(t->npc, saved, &t->saved_bytes);
}

static tandem_status make_restored(talk *t)
{
    return tandem_npc_create(t->language, &TANDEM_INIT(tandem_npc_desc, .persona = "A guard."), &t->restored);
}

static tandem_status restore(talk *t)
{
    tandem_turn turns[8] = {TANDEM_INIT(tandem_turn)};
    tandem_status status = tandem_npc_restore(t->restored, saved, t->saved_bytes);

    t->turns = 8;
    assert_int_equal(tandem_npc_get_history(t->restored, &t->turns, turns), TANDEM_OK);
    if (status != TANDEM_OK)
        assert_int_equal(t->turns, 0); /* nothing has changed */
    else
        snprintf(t->last_turn, sizeof t->last_turn, "%s", turns[t->turns - 1].text);
    return status;
}

static tandem_status make_embedder(talk *t)
{
    return t->embeds ? tandem_embedder_create(t->language, &TANDEM_INIT(tandem_embedder_desc), &t->embedder) : TANDEM_OK;
}

static tandem_status embed(talk *t)
{
    tandem_embedding embedding = TANDEM_INIT(tandem_embedding);
    tandem_status status;

    if (!t->embeds)
        return TANDEM_OK;
    status = tandem_embedder_begin(t->embedder, "the old gate");
    while (status == TANDEM_OK && !embedding.ready)
        status = tandem_embedder_wait(t->embedder, LIMITS_PATIENCE_NS, &embedding);
    if (status == TANDEM_OK) {
        assert_in_range(embedding.count, 1, MOST_VALUES);
        memcpy(t->values, embedding.values, embedding.count * sizeof *t->values);
    }
    return status;
}

static const struct {
    const char *name;
    tandem_status (*take)(talk *t);
} steps[] = {{"language_create", make_language}, {"npc_create", make_npc}, {"set_history", set_history},
             {"say, drawn", say_drawn}, {"say, JSON", say_json}, {"save", save}, {"npc_create", make_restored},
             {"restore", restore}, {"embedder_create", make_embedder}, {"embed", embed}};
enum { STEPS = sizeof steps / sizeof *steps };

static void check_failure(unsigned n, const char *what, tandem_status status, const char *why)
{
    const char *call = fault_tripped();

    /* a file that cannot be mapped cannot be read */
    if (!call || status != (strcmp(call, "mmap") ? TANDEM_ERROR_NOMEM : TANDEM_ERROR_IO) || !*why)
        fail_msg("call %u, %s: %s: %d, \"%s\"", n, call ? call : "none failed", what, status, why);
}

static void check_live(unsigned n, const fault_live *before, const fault_live *after)
{
    if (memcmp(before, after, sizeof *before))
        fail_msg("call %u: left are %d blocks, %d mappings, %d threads, %d descriptors", n, after->blocks - before->blocks,
                 after->mappings - before->mappings, after->threads - before->threads, after->fds - before->fds);
}

static void make_session(void)
{
    assert_int_equal(tandem_session_create(&TANDEM_INIT(tandem_session_desc, .cpu_threads = 1, .rung = TANDEM_RUNG_CPU), &session),
                     TANDEM_OK);
}

/* The n-th call fails; 0: none does. Returns whether there was one. */
static bool converse(talk *t, unsigned n)
{
    unsigned failures = 0;
    bool tripped;

    fault_arm(&(fault_plan){.kinds = FAULT_LIBC, .n = n});
    for (size_t i = 0; i < STEPS; i++) {
        tandem_status status = steps[i].take(t);

        if (status == TANDEM_OK)
            continue;
        char why[WHY_BYTES] = "";

        tandem_error_text(session, why, sizeof why);
        check_failure(n, steps[i].name, status, why);
        assert_int_equal(failures++, 0);
        i--;
    }
    tripped = fault_tripped() != NULL;
    fault_disarm();
    if (t->embedder)
        assert_int_equal(tandem_embedder_destroy(&t->embedder), TANDEM_OK);
    assert_int_equal(tandem_npc_destroy(&t->restored), TANDEM_OK);
    assert_int_equal(tandem_npc_destroy(&t->npc), TANDEM_OK);
    assert_int_equal(tandem_language_destroy(&t->language), TANDEM_OK);
    return tripped;
}

static void all_faults(const lf_shape *shape, bool embeds)
{
    talk first = {.embeds = embeds};
    fault_live before, after;
    unsigned n = 0;
    bool tripped = true;

    snprintf(path, sizeof path, "/tmp/tandem_npc_faults_%d.gguf", (int)getpid());
    lf_write(path, shape, NULL);
    make_session();
    converse(&first, 0);
    assert_true(strlen(first.texts[0]) > 2 && strstr(first.texts[1], "\"go\":") && first.turns == 4);
    before = fault_count_live();
    while (tripped) {
        talk now = {.embeds = embeds};

        tripped = converse(&now, ++n);
        for (int i = 0; i < 2; i++)
            assert_string_equal(now.texts[i], first.texts[i]);
        assert_string_equal(now.last_turn, first.last_turn);
        assert_int_equal(now.turns, first.turns);
        assert_memory_equal(now.values, first.values, sizeof now.values);
        after = fault_count_live();
        check_live(n, &before, &after);
    }
    print_message("  %u calls\n", n - 1);
    assert_true(n > 100);
    assert_int_equal(tandem_session_destroy(&session), TANDEM_OK);
    unlink(path);
}

/* With caches in common, and with some of their own. */
static void with_pages(void **state)
{
    (void)state;
    all_faults(&(lf_shape){.layers = 1, .dim = 64, .hidden = 64, .heads = 1, .kv_heads = 1, .head_dim = 64, .rotated_channels = 64,
                           .words = 300, .context = 256, .dtype = TANDEM_DTYPE_F16, .speaks = true},
               true);
}

static void without_pages(void **state)
{
    (void)state;
    all_faults(&(lf_shape){.layers = 1, .dim = 64, .hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 32, .rotated_channels = 32,
                           .words = 300, .context = 256, .dtype = TANDEM_DTYPE_F16, .speaks = true},
               false);
}

/* --- Files --- */

/* A model as transformers saves it, and its vocabulary. */
static tandem_status read_folder(const char *folder, char why[WHY_BYTES])
{
    td_tokenizer *tokenizer = NULL;
    td_gguf file;
    tandem_status status = td_folder_open(folder, &file, why, WHY_BYTES);

    if (status != TANDEM_OK)
        return status;
    status = td_tokenizer_create(&file, &tokenizer, why, WHY_BYTES);
    assert_true((status == TANDEM_OK) == (tokenizer != NULL));
    td_tokenizer_destroy(&tokenizer);
    td_gguf_close(&file);
    return status;
}

/* A file is whole, or not there. */
static tandem_status write_file(const char *written, char why[WHY_BYTES])
{
    static const float values[] = {1, 2, 3};
    const td_safetensors_item item = {.name = "x", .dtype = "F32", .dimensions = 1, .shape = {3}, .data = values};
    const td_safetensors_text text = {"a key", "a text"};
    td_safetensors file;
    tandem_status status = td_safetensors_write_texts(written, &text, 1, &item, 1, why, WHY_BYTES);

    if (status == TANDEM_OK) {
        status = td_safetensors_open(written, &file, why, WHY_BYTES);
        assert_int_equal(unlink(written), 0);
        if (status == TANDEM_OK) {
            assert_string_equal(td_safetensors_find_text(&file, "a key"), "a text");
            assert_int_equal(td_safetensors_find(&file, "x")->bytes, sizeof values);
            td_safetensors_close(&file);
        }
    }
    assert_int_not_equal(access(written, F_OK), 0);
    return status;
}

/* Jansson takes what it has no memory for as left out of the text: it always has some. */
static bool spared;

static void *allocate_for_jansson(size_t bytes)
{
    void *block = malloc(bytes);

    spared = spared || !block;
    return block ? block : malloc(bytes);
}

static void each_call_fails(const char *file, tandem_status (*take)(const char *file, char *why))
{
    const fault_live before = fault_count_live();
    bool tripped = true;
    unsigned n = 0;

    while (tripped) {
        char why[WHY_BYTES] = "";
        tandem_status status;
        fault_live after;

        spared = false;
        fault_arm(&(fault_plan){.kinds = FAULT_LIBC, .n = ++n});
        status = take(file, why);
        fault_disarm();
        tripped = fault_tripped() != NULL;
        if (tripped && !spared)
            check_failure(n, file, status, why);
        else if (status != TANDEM_OK)
            fail_msg("%s: %s", file, why);
        after = fault_count_live();
        check_live(n, &before, &after);
    }
    print_message("  %u calls: %s\n", n - 1, file);
    assert_true(n > 2);
}

static void files(void **state)
{
    static const char *const names[] = {"llama", "mistral", "gemma3"};
    const char *build = getenv("TANDEM_BUILD");
    char file[4096];

    (void)state;
    assert_non_null(build);
    json_set_alloc_funcs(allocate_for_jansson, free);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(file, sizeof file, "%s/models/%s", build, names[i]);
        each_call_fails(file, read_folder);
    }
    snprintf(file, sizeof file, "/tmp/tandem_npc_faults_%d.safetensors", (int)getpid());
    each_call_fails(file, write_file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_pages),
        cmocka_unit_test(without_pages),
        cmocka_unit_test(files),
    };

    return cmocka_run_group_tests_name("npc_faults", tests, NULL, NULL);
}
