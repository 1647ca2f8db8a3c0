/* What the layer takes from its socket and from the environment: right words, wrong ones, and any
 * bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/layer/settings.h"
#include "tandem/tandem.h"

static bool set(const char *lines)
{
    char why[300] = "";
    const bool taken = layer_settings_set(lines, why, sizeof why);

    assert_true(taken == !why[0]);
    assert_null(strchr(why, '\n'));
    return taken;
}

static void test_words(void **state)
{
    layer_settings s;
    char text[2000];

    (void)state;
    assert_true(set("effect=sharpen\namount=0.75\nsigma=12.5\nhud=off\non=0\nrung=copy\n"));
    layer_settings_get(&s);
    assert_int_equal(s.effect, LAYER_EFFECT_SHARPEN);
    assert_true(s.amount == 0.75f && s.sigma == 12.5f && !s.hud && !s.on);
    assert_int_equal(s.rung, TANDEM_RUNG_COPY);
    const uint32_t generation = s.generation;
    assert_false(set("effect=none\namount=2.5"));
    layer_settings_get(&s);
    assert_int_equal(s.effect, LAYER_EFFECT_SHARPEN); /* all, or none */
    assert_int_equal(s.generation, generation);
    layer_settings_toggle(false);
    layer_settings_toggle(true);
    layer_settings_get(&s);
    assert_true(s.on && s.hud && s.generation == generation); /* nothing has to be made anew */
    assert_true(set("effect=model=/a folder/a=b.safetensors"));
    layer_settings_get(&s);
    assert_string_equal(s.model, "/a folder/a=b.safetensors");
    layer_status_set(&(layer_status){.presented = 7, .frame_ms = 16.6666, .rung = "cpu"});
    layer_status_text(text, sizeof text);
    assert_non_null(strstr(text, "\npresented 7\n"));
    assert_non_null(strstr(text, "\nframe_ms 16.667\n"));
    layer_status_text(text, 10); /* cut, and no more than that */
    assert_int_equal(strlen(text), 9);
}

static void test_wrong_words(void **state)
{
    static const char *const wrong[] = {"effect",
                                        "=",
                                        "=1",
                                        "effect=",
                                        "effect=blur",
                                        "effect=model=",
                                        "amount=-1",
                                        "amount=1e0",
                                        "amount=0x1",
                                        "amount=inf",
                                        "amount=1 ",
                                        "amount=.",
                                        "amount=00000000001",
                                        "sigma=0.99",
                                        "sigma=65",
                                        "hud=2",
                                        "rung=9",
                                        "on",
                                        "on=yes",
                                        "EFFECT=none",
                                        "\n",
                                        "effect=none\n\n"};
    char longest[3000];

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (set(wrong[i]))
            fail_msg("\"%s\" is taken", wrong[i]);
    memset(longest, 'a', sizeof longest);
    memcpy(longest, "effect=model=", 13);
    for (size_t bytes = 1020; bytes < sizeof longest; bytes += 1 + bytes / 4) {
        longest[bytes] = 0;
        assert_true(set(longest) == (bytes - 13 < LAYER_PATH_BYTES));
        longest[bytes] = 'a';
    }
}

/* Right lines, of which some bytes are others: taken or not, what is set is within its bounds. */
static void test_any_bytes(void **state)
{
    static const char right[] =
        "effect=denoise-film\namount=1.5\nsigma=8\nhud=on\non=off\nrung=cpu\n";
    uint32_t random = 1;
    layer_settings s;
    char lines[sizeof right];

    (void)state;
    for (int i = 0; i < 200000; i++) {
        memcpy(lines, right, sizeof lines);
        for (int j = 0; j < 1 + i % 3; j++) {
            random = random * 1664525 + 1013904223;
            lines[(random >> 8) % (sizeof right - 1)] = (char)(random >> 24);
        }
        set(lines);
        layer_settings_get(&s);
        assert_true(s.amount >= 0 && s.amount <= 2 && s.sigma >= 1 && s.sigma <= 64);
        assert_true(s.effect <= LAYER_EFFECT_MODEL && s.rung <= TANDEM_RUNG_CPU);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words),
                                       cmocka_unit_test(test_wrong_words),
                                       cmocka_unit_test(test_any_bytes)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
