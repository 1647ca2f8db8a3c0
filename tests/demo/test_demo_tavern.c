/* The tavern: what its people are told and may reply, what becomes of it in the room, and how a
 * visitor gets about.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
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

#include "demo/output.h"
#include "demo/tavern.h"
#include "engine_plugin/npc/grammar.h"
#include "interop/os/clock.h"
#include "tests/kernels/llama_file.h"

enum { LINA, MIRA, TOM, BROM };
#define ASPECT (16.0f / 9)
#define STEP 0.05

static char path[80];

static int write_model(void **state)
{
    const lf_shape shape = {.layers = 1,
                            .dim = 64,
                            .hidden = 128,
                            .heads = 1,
                            .kv_heads = 1,
                            .head_dim = 64,
                            .rotated_channels = 64,
                            .words = 300,
                            .context = 1024,
                            .dtype = TANDEM_DTYPE_F16,
                            .speaks = true};
    (void)state;
    snprintf(path, sizeof path, "/tmp/tandem_tavern_%d.gguf", (int)getpid());
    lf_write(path, &shape, NULL);
    return 0;
}

static int remove_model(void **state)
{
    (void)state;
    return unlink(path);
}

static demo_tavern *open_tavern(const char *model)
{
    const demo_talk_options options = {.path = model,
                                       .asked = true,
                                       .backend = TANDEM_BACKEND_CPU,
                                       .threads = 1,
                                       .budget_us = 20000};
    demo_tavern *t = demo_tavern_open(&options);
    assert_non_null(t);
    return t;
}

static void pass(demo_tavern *t, double seconds)
{
    for (double at = 0; at < seconds; at += STEP)
        demo_tavern_step(t, STEP);
}

/* --- Texts --- */

static void test_cards(void **state)
{
    (void)state;
    for (int i = 0; i < DEMO_FIGURES; i++)
        for (int own = 0; own < 2; own++) {
            char *persona = demo_talk_persona(&demo_cards[i], own),
                 *grammar = demo_talk_grammar(&demo_cards[i], own);
            char line[80], why[300] = "";
            td_grammar *read;
            assert_true(persona && grammar);
            snprintf(line, sizeof line, "\nname: %s\ntrade: %s\n", demo_cards[i].name,
                     demo_cards[i].trade);
            assert_non_null(strstr(persona, line));
            if (td_grammar_create(grammar, strlen(grammar), &read, why, sizeof why) != TANDEM_OK)
                fail_msg("%s: %s", demo_cards[i].name, why);
            td_grammar_destroy(&read);
            for (int j = 0; j < DEMO_CARD_ITEMS && demo_cards[i].items[j].name; j++)
                assert_true(strstr(persona, demo_cards[i].items[j].name) &&
                            strstr(grammar, demo_cards[i].items[j].name));
            free(persona);
            free(grammar);
        }
    char *mira = demo_talk_persona(&demo_cards[MIRA], true);
    assert_string_equal(
        mira,
        "You are this character.\nname: Mira\ntrade: innkeeper\nplace: Lark Inn\nmood: kind\n"
        "sells: bread for 2 coins, tankard for 5 coins\nknows: brother Brom in Lark Inn, friend "
        "Lina in Lark Inn\nquest: bring copper key, reward 10 coins, open");
    free(mira);
}

static bool read_act(demo_reply *r, const char *text)
{
    *r = (demo_reply){.bytes = strlen(text)};
    assert_true(r->bytes < sizeof r->text);
    memcpy(r->text, text, r->bytes);
    return demo_reply_act(r, &demo_cards[MIRA]);
}

static void test_acts(void **state)
{
    static const char *const none[] = {
        "",
        "Hello.",
        "Hello.\n",
        "Hello.\n{\"action\":\"none\"}",
        "Hello.\n{\"action\":\"fly\"}",
        "Hello.\n{\"action\":\"give\"",
        "Hello.\n{\"action\":\"give\",\"item\":\"moon\",\"price\":2}",
        "Hello.\n{\"action\":\"give\"}",
        "Hello.\n[\"refuse\"]",
        "Hello.\n{\"action\":{}}",
        "Hello.\n{\"action\":\"take\",\"item\":7}",
        "{\"action\":\"refuse\"}"};
    char said[20];
    demo_reply r;
    (void)state;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (read_act(&r, none[i]) || r.act)
            fail_msg("%s: is action %u", none[i], (unsigned)r.act);
    assert_true(
        read_act(&r, "Here you are.\n{\"action\":\"give\",\"item\":\"bread\",\"price\":2}"));
    assert_true(r.act == DEMO_ACT_GIVE && r.price == 2 && !strcmp(r.item, "bread"));
    demo_reply_said(&r, said, sizeof said);
    assert_string_equal(said, "Here you are.");
    demo_reply_said(&r, said, 5);
    assert_string_equal(said, "Here");
    assert_true(read_act(&r, "Mine!\n{\"action\":\"take\",\"item\":\"copper key\",\"pay\":10}") &&
                r.price == 10);
    assert_true(read_act(&r, "Yes?\n{\"action\":\"mood\",\"mood\":\"angry\"}") &&
                !strcmp(r.item, "angry"));
    assert_true(read_act(&r, "Yes\n{\"action\":\"follow\",\"price\":-4}") &&
                r.act == DEMO_ACT_FOLLOW && !r.price);
}

/* --- A visitor, whom nobody answers --- */

static void press(demo_tavern *t, int32_t key)
{
    demo_tavern_key(t, key, true);
    demo_tavern_key(t, key, false);
}

static void test_visitor(void **state)
{
    demo_tavern *t = open_tavern(NULL);
    demo_shown shown;
    (void)state;
    demo_tavern_show(t, ASPECT, &shown);
    assert_non_null(strstr(shown.note, "--npc-model"));
    assert_false(shown.model || shown.with);
    assert_false(demo_tavern_click(t, 0, 0.95f, ASPECT));
    for (int i = 0; i < DEMO_FIGURES; i++) {
        const demo_shown_figure *f = &shown.figures[i];
        assert_true(f->visible && fabsf(f->x) < 0.95f && fabsf(f->y) < 0.9f);
        assert_true(demo_tavern_click(t, f->x, f->y - 0.12f, ASPECT));
        assert_int_equal(t->with, i);
        pass(t, 4);
        demo_tavern_show(t, ASPECT, &shown);
        assert_string_equal(shown.with, demo_cards[i].name);
        assert_true(f->visible && fabsf(f->x) < 0.1f && f->y > 0.2f &&
                    f->y < 0.8f); /* there is room for a bubble */
        const float x = t->cast.figures[i].x - t->cast.eye[0],
                    z = t->cast.figures[i].z - t->cast.eye[2];
        assert_true(sqrtf(x * x + z * z) < 2 && sqrtf(x * x + z * z) > 1);
        press(t, DEMO_KEY_ESCAPE);
        assert_int_equal(t->with, -1);
        pass(t, 6);
        demo_tavern_show(t, ASPECT, &shown);
    }
    assert_false(demo_tavern_key(t, DEMO_KEY_ESCAPE, true)); /* that is to quit */
    demo_tavern_close(t);
}

static void test_typing(void **state)
{
    demo_tavern *t = open_tavern(NULL);
    (void)state;
    demo_tavern_text(t, "nobody hears this");
    assert_string_equal(t->input, "");
    demo_tavern_click(t, 0, 0, ASPECT);
    t->with = BROM;
    demo_tavern_text(t, " ");
    demo_tavern_text(t, "h");
    demo_tavern_text(t, "\xc3\xa9");
    demo_tavern_text(t, "\xe2\x82\xac");
    assert_true(demo_tavern_key(t, 'q', true)); /* what is typed is no command */
    assert_false(demo_tavern_key(t, DEMO_KEY_F12, true));
    assert_string_equal(t->input, "h\xc3\xa9\xe2\x82\xac");
    press(t, DEMO_KEY_BACKSPACE);
    assert_string_equal(t->input, "h\xc3\xa9");
    press(t, DEMO_KEY_BACKSPACE);
    press(t, DEMO_KEY_BACKSPACE);
    press(t, DEMO_KEY_BACKSPACE);
    assert_string_equal(t->input, "");
    for (int i = 0; i < 500; i++)
        demo_tavern_text(t, "\xe2\x82\xac");
    assert_in_range(strlen(t->input), DEMO_INPUT_BYTES - 4, DEMO_INPUT_BYTES - 1);
    press(t, DEMO_KEY_ENTER);
    assert_false(demo_tavern_talking(t));
    demo_tavern_close(t);
}

static void test_walking(void **state)
{
    static const int32_t keys[] = {DEMO_KEY_UP, DEMO_KEY_DOWN, DEMO_KEY_LEFT, DEMO_KEY_RIGHT};
    demo_tavern *t = open_tavern(NULL);
    static struct td_scene_block block;
    uint32_t seed = 1;
    (void)state;
    demo_tavern_key(t, DEMO_KEY_UP, true);
    pass(t, 1.6);
    demo_tavern_key(t, DEMO_KEY_UP, false);
    assert_true(t->cast.eye[2] < 2);
    pass(t, 2);
    press(t, DEMO_KEY_ENTER); /* whoever is near and ahead */
    assert_int_equal(t->with, TOM);
    press(t, DEMO_KEY_ESCAPE);
    demo_scene_build(demo_scene_find("tavern"), &t->cast, &block);
    for (int i = 0; i < 400; i++) {
        seed = seed * 1664525u + 1013904223u;
        demo_tavern_key(t, keys[seed >> 30], seed >> 29 & 1);
        pass(t, 0.3);
        for (int axis = 0; axis < 3; axis++)
            assert_true(t->cast.eye[axis] > block.room_min[axis] &&
                        t->cast.eye[axis] < block.room_max[axis]);
    }
    demo_tavern_close(t);
}

/* --- What is done --- */

/* A character who can but say this, be its model what it may. */
static void will_say(demo_tavern *t, int who, const char *grammar)
{
    free(t->talk.grammars[who]);
    t->talk.grammars[who] = strdup(grammar);
}

/* Frame by frame, none of which waits. */
static void ask(demo_tavern *t, int who, const char *text)
{
    const uint64_t begin = td_now_ns();
    t->with = who;
    demo_tavern_text(t, text);
    press(t, DEMO_KEY_ENTER);
    assert_string_equal(t->input, "");
    assert_true(demo_tavern_talking(t));
    while (demo_tavern_talking(t)) {
        assert_true(td_now_ns() - begin < 20000000000u);
        demo_tavern_step(t, 1e-3);
        td_sleep_ns(1000000);
    }
    assert_int_equal(t->talk.replies[who].end, TANDEM_REPLY_ENDED);
    assert_string_equal(t->talk.trouble, "");
    press(t, DEMO_KEY_ESCAPE);
}

static float apart(const float a[3], const float b[3])
{
    return sqrtf((a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1]) +
                 (a[2] - b[2]) * (a[2] - b[2]));
}

static void test_deeds(void **state)
{
    demo_tavern *t = open_tavern(path);
    demo_shown shown;
    (void)state;
    will_say(t, TOM,
             "root ::= \"The key.\\n{\\\"action\\\":\\\"give\\\",\\\"item\\\":\\\"copper "
             "key\\\",\\\"price\\\":0}\"");
    will_say(t, MIRA,
             "root ::= \"At last!\\n{\\\"action\\\":\\\"take\\\",\\\"item\\\":\\\"copper "
             "key\\\",\\\"pay\\\":10}\"");
    will_say(t, LINA, "root ::= \"Lead the way.\\n{\\\"action\\\":\\\"follow\\\"}\"");
    will_say(t, BROM, "root ::= \"No.\\n{\\\"action\\\":\\\"refuse\\\"}\"");
    const float *key = t->cast.items[5];
    ask(t, TOM, "Could you give me the copper key?");
    assert_string_equal(t->said[TOM], "The key.");
    assert_string_equal(t->did[TOM], "gives you the copper key");
    pass(t, 5);
    assert_true(apart(key, t->cast.eye) < 1.3f);
    ask(t, MIRA, "I have the copper key.");
    assert_string_equal(t->did[MIRA], "takes the copper key, and pays 10 coins");
    pass(t, 5);
    const float mira[3] = {t->cast.figures[MIRA].x, 1, t->cast.figures[MIRA].z};
    assert_true(apart(key, mira) < 0.7f);

    ask(t, BROM, "Follow me!");
    demo_tavern_step(t, 0.1);
    assert_true(fabsf(t->cast.figures[BROM].shake) > 2);
    demo_tavern_show(t, ASPECT, &shown);
    assert_true(shown.figures[BROM].refuses && !shown.figures[TOM].refuses);
    pass(t, 2);
    assert_float_equal(t->cast.figures[BROM].shake, 0, 0);
    assert_float_equal(t->cast.figures[BROM].x, t->at_first.figures[BROM].x, 0);

    ask(t, LINA, "Will you come with me?");
    pass(t, 8);
    const float lina[3] = {t->cast.figures[LINA].x, t->cast.eye[1], t->cast.figures[LINA].z};
    assert_true(apart(lina, t->cast.eye) < 2.6f);
    will_say(t, LINA, "root ::= \"I wait.\\n{\\\"action\\\":\\\"stay\\\"}\"");
    ask(t, LINA, "Stay here.");
    assert_false(t->follows[LINA]);
    /* From behind the counter the way goes around it. */
    will_say(t, MIRA, "root ::= \"Yes.\\n{\\\"action\\\":\\\"follow\\\"}\"");
    ask(t, MIRA, "Come along.");
    for (int i = 0; i < 300; i++) {
        const demo_figure *f = &t->cast.figures[MIRA];
        demo_tavern_step(t, STEP);
        if (f->z > -2.1f && f->z < -1.6f)
            assert_true(f->x > 0.5f);
    }
    assert_true(t->cast.figures[MIRA].z > -1.3f);
    assert_int_equal(t->told_count, 6);
    demo_tavern_close(t);
}

/* All four at once, as the written conversation has it; any model's words, held to the grammar. */
static void test_report(void **state)
{
    demo_tavern *t = open_tavern(path);
    const tandem_info info = {.backend = TANDEM_BACKEND_CPU, .rung = TANDEM_RUNG_CPU};
    demo_timings timings = {0};
    char file[90];
    (void)state;
    for (int i = 0; i < 10; i++)
        demo_tavern_took(t, 10 + i, false);
    demo_tavern_script(t);
    assert_true(demo_tavern_talking(t));
    const uint64_t begin = td_now_ns();
    while (demo_tavern_talking(t) && td_now_ns() - begin < 20000000000u) {
        demo_tavern_step(t, STEP);
        demo_tavern_took(t, 15, true);
        td_sleep_ns(1000000);
    }
    demo_tavern_finish(t);
    demo_report report = {
        .info = &info, .timings = &timings, .frames = 1, .width = 1, .height = 1, .tavern = t};
    snprintf(file, sizeof file, "%s.json", path);
    assert_true(demo_report_write(file, &report));
    json_t *root = json_load_file(file, 0, NULL), *tavern = json_object_get(root, "tavern");
    assert_int_equal(json_array_size(json_object_get(tavern, "told")), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *told = json_array_get(json_object_get(tavern, "told"), i);
        assert_true(json_number_value(json_object_get(told, "first_token_ms")) > 0);
        assert_true(json_integer_value(json_object_get(told, "tokens")) > 0);
        assert_null(strpbrk(json_string_value(json_object_get(told, "said")), "\n{}"));
    }
    assert_int_equal(json_integer_value(json_object_get(tavern, "budget_us")), 20000);
    assert_true(json_number_value(json_object_get(tavern, "tokens_per_s")) > 0);
    assert_true(json_number_value(json_object_get(json_object_get(tavern, "spent_us"), "p99")) > 0);
    json_t *frames = json_object_get(tavern, "frames");
    assert_float_equal(
        json_number_value(json_object_get(json_object_get(frames, "quiet"), "p99_ms")), 19, 0);
    assert_float_equal(json_number_value(json_object_get(frames, "most_p99_ms")), 19 * 1.05 + 20,
                       1e-9);
    assert_true(json_is_true(json_object_get(frames, "flat")));
    json_t *bytes = json_object_get(tavern, "cache_bytes");
    const json_int_t f16 = json_integer_value(json_object_get(bytes, "f16"));
    assert_int_equal(f16, t->talk.info.cache_bytes);
    assert_true(json_integer_value(json_object_get(bytes, "k4v8")) <
                    json_integer_value(json_object_get(bytes, "k8v8")) &&
                json_integer_value(json_object_get(bytes, "k8v8")) < f16);
    json_decref(root);
    unlink(file);
    demo_timings_free(&timings);
    demo_tavern_close(t);
}

/* A model that was asked for by name, and is none. */
static void test_no_model(void **state)
{
    demo_talk_options options = {.path = "/dev/null", .asked = true, .backend = TANDEM_BACKEND_CPU};
    (void)state;
    assert_null(demo_tavern_open(&options));
    options.path = "/nowhere/npc.gguf";
    assert_null(demo_tavern_open(&options));
    options.asked = false;
    demo_tavern *t = demo_tavern_open(&options);
    assert_non_null(t);
    assert_non_null(strstr(t->note, "Nobody talks: "));
    demo_tavern_script(t);
    assert_false(demo_tavern_talking(t));
    demo_tavern_close(t);
    demo_tavern_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cards),   cmocka_unit_test(test_acts),
        cmocka_unit_test(test_visitor), cmocka_unit_test(test_typing),
        cmocka_unit_test(test_walking), cmocka_unit_test(test_deeds),
        cmocka_unit_test(test_report),  cmocka_unit_test(test_no_model),
    };
    return cmocka_run_group_tests(tests, write_model, remove_model);
}
