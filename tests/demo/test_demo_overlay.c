/* What a person sees of the demo: the texts of its window at many sizes, where they lie, and the
 * way down the ladder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "demo/adapt.h"
#include "demo/screen.h"

enum { MOST_TEXTS = 256 };

typedef struct seen {
    uint32_t count;
    char texts[MOST_TEXTS][320];
    demo_rect where[MOST_TEXTS];
} seen;

static demo_engine engine;
static demo_screen screen;
static seen drawn;

static void on_text(void *user, const char *text, const demo_rect *where)
{
    seen *s = user;
    assert_in_range(s->count, 0, MOST_TEXTS - 1);
    snprintf(s->texts[s->count], sizeof *s->texts, "%s", text);
    s->where[s->count++] = *where;
}

static int open_screen(void **state)
{
    (void)state;
    if (!demo_engine_instance(&engine, NULL, 0, false) ||
        !demo_engine_device(&engine, VK_NULL_HANDLE) ||
        !demo_screen_create(&screen, &engine, VK_NULL_HANDLE, 0, 64, 64) ||
        !demo_overlay_create(&engine, screen.pass, 1))
        return -1;
    demo_overlay_watch(on_text, &drawn);
    return 0;
}

static int close_screen(void **state)
{
    (void)state;
    demo_overlay_watch(NULL, NULL);
    demo_overlay_destroy(&engine);
    demo_screen_destroy(&screen);
    return demo_engine_destroy(&engine) ? -1 : 0;
}

/* A session on this machine's CPU after some frames, as the window knows it. */
static demo_overlay_data some_data(tandem_info *info, char why[96])
{
    static float history[50][DEMO_STAGES];
    const float ms[DEMO_STAGES] = {12, 30, 0.4f, 70, 0.2f, 2, 9};
    demo_overlay_data d = {
        .info = info,
        .vulkan_device = "llvmpipe (LLVM 15.0.6, 256 bits)",
        .scene = "room",
        .why = why,
        .width = 320,
        .height = 180,
        .in_flight = 1,
        .frames_per_second = 6.8,
        .history = history,
        .history_count = 50,
        .precision_used = TANDEM_PRECISION_8B,
        .denoised = true,
        .accuracy = {.elements = 100, .error_absolute = 0.7, .exact_absolute = 100}};
    demo_adapt adapt;
    *info = (tandem_info){
        .struct_bytes = sizeof *info, .backend = TANDEM_BACKEND_CPU, .rung = TANDEM_RUNG_CPU};
    snprintf(info->device, sizeof info->device, "CPU, 2 threads");
    snprintf(info->isa, sizeof info->isa, "avx512-vnni");
    snprintf(
        info->rung_reason, sizeof info->rung_reason,
        "no CUDA here: no CUDA driver: libcuda.so.1: cannot open shared object file: No such file or directory");
    demo_adapt_init(&adapt, 0.05);
    demo_adapt_probe(&adapt, 0.00696);
    demo_adapt_text(&adapt, why, 96);
    for (int i = 0; i < 50; i++)
        memcpy(history[i], ms, sizeof ms);
    for (int i = 0; i < DEMO_STAGES; i++) {
        d.stages[i] = (demo_percentiles){(double)ms[i], (double)ms[i], (double)ms[i]};
        d.frame.p50 += (double)ms[i];
    }
    d.frame.p95 = d.frame.p99 = d.frame.p50;
    return d;
}

static void build(const demo_view *view, const demo_overlay_data *d, uint32_t width,
                  uint32_t height)
{
    drawn.count = 0;
    demo_overlay_build(view, d, width, height, 0.1, &screen.picture, &screen.error_map);
}

static int find(const char *part)
{
    for (uint32_t i = 0; i < drawn.count; i++)
        if (strstr(drawn.texts[i], part))
            return (int)i;
    return -1;
}

static bool lies_in(const demo_rect *a, float width, float height)
{
    return a->x >= -1 && a->y >= -1 && a->x + a->width <= width + 1 &&
           a->y + a->height <= height + 1;
}

static bool overlap(const demo_rect *a, const demo_rect *b)
{
    const float least = 2; /* lines touch */
    return a->x + least < b->x + b->width && b->x + least < a->x + a->width &&
           a->y + least < b->y + b->height && b->y + least < a->y + a->height;
}

/* Everything is in the window, and nothing is written over something else. */
static void check_places(uint32_t width, uint32_t height)
{
    assert_true(lies_in(&screen.picture, (float)width, (float)height) &&
                screen.picture.width >= 32);
    for (uint32_t i = 0; i < drawn.count; i++) {
        if (!lies_in(&drawn.where[i], (float)width, (float)height))
            fail_msg("%ux%u: \"%s\" leaves the window", width, height, drawn.texts[i]);
        for (uint32_t j = 0; j < i; j++)
            if (overlap(&drawn.where[i], &drawn.where[j]))
                fail_msg("%ux%u: \"%s\" lies on \"%s\"", width, height, drawn.texts[i],
                         drawn.texts[j]);
    }
}

static const uint32_t sizes[][2] = {{1280, 720}, {1920, 1080}, {3840, 2160}, {1280, 700},
                                    {1024, 576}, {900, 520},   {800, 480},   {640, 360},
                                    {640, 480},  {500, 300},   {720, 1280},  {1400, 400},
                                    {420, 300},  {320, 240},   {300, 500},   {200, 200}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static bool is_small(uint32_t i)
{
    return sizes[i][0] < 640 || sizes[i][1] < 360;
}

static void test_first_view(void **state)
{
    (void)state;
    tandem_info info;
    char why[96];
    const demo_overlay_data d = some_data(&info, why);
    const demo_view view = demo_first_view(TANDEM_PRECISION_AUTO);
    assert_int_equal(view.wipe, DEMO_WIPE_NOISY);
    assert_true(view.wipe_at > 0.3f && view.wipe_at < 0.7f);
    assert_false(view.help || view.hide_panel || view.paused);
    build(&view, &d, 1280, 720);
    assert_true(find("input: 1 sample a pixel") >= 0 && find("cleaned by the filter") >= 0);
    assert_true(find("move the line") >= 0);
}

/* From 640x360 on there is a panel with what matters; below, the same in a few words. */
static void test_sizes(void **state)
{
    (void)state;
    tandem_info info;
    char why[96];
    demo_overlay_data d = some_data(&info, why);
    for (uint32_t i = 0; i < SIZES; i++)
        for (uint32_t how = 0; how < 32; how++) {
            const uint32_t w = sizes[i][0], h = sizes[i][1];
            demo_view view = demo_first_view(TANDEM_PRECISION_AUTO);
            view.error_map = how & 1;
            view.wipe = how & 2 ? DEMO_WIPE_EXACT : how & 4 ? DEMO_WIPE_NONE : DEMO_WIPE_NOISY;
            view.paused = how & 8;
            d.result_db = how & 4 ? 39.3 : 0;
            d.reference_samples = 1024;
            d.notice = how & 16
                           ? "saved /home/somebody/a folder/of a few/levels/out/screenshot-001.png"
                           : NULL;
            d.has_exact = view.error_map;
            build(&view, &d, w, h);
            check_places(w, h);
            assert_true(find(" ms a frame") >= 0 || is_small(i));
            assert_true(find("0.70 %") >= 0 || is_small(i));
            if (!is_small(i)) {
                static const char *const needed[] = {"Tandem", "attention", "whole frame",
                                                     "cpu",    "Precision", "render"};
                for (size_t n = 0; n < sizeof needed / sizeof *needed; n++)
                    if (find(needed[n]) < 0)
                        fail_msg("%ux%u has no \"%s\"", w, h, needed[n]);
                assert_true(screen.picture.width >= 0.4f * fminf((float)w, 16.0f / 9 * (float)h));
            }
            if (d.notice)
                assert_true(find("screenshot-001.png") >= 0);
            if (!view.error_map) {
                assert_true(screen.error_map.width <= 0);
                continue;
            }
            const int caption = find("Error against exact") >= 0 ? find("Error against exact")
                                                                 : find("Error \xc3\x97");
            assert_true(caption >= 0 && screen.error_map.width > 30 &&
                        lies_in(&screen.error_map, (float)w, (float)h));
            const float above =
                screen.error_map.y - drawn.where[caption].y - drawn.where[caption].height;
            assert_true(above >= 0 && above < 30 * fmaxf(1, (float)h / 720));
        }
}

static demo_overlay_data network_data(tandem_info *info, char why[96])
{
    demo_overlay_data d = some_data(info, why);
    d.effect = DEMO_EFFECT_DENOISE;
    d.has_denoiser = true;
    d.model = "/home/somebody/tandem/build/denoise.safetensors";
    d.preset = "balanced";
    d.next_preset = "fast";
    d.in_history = 12;
    d.precision_used = 0;
    d.accuracy = (demo_accuracy){0};
    return d;
}

/* The trained network says what it is and what it uses, and nothing of what it has not. */
static void test_network(void **state)
{
    (void)state;
    tandem_info info;
    char why[96];
    demo_overlay_data d = network_data(&info, why);
    demo_view view = demo_first_view(TANDEM_PRECISION_AUTO);
    view.effect = DEMO_EFFECT_DENOISE;
    for (uint32_t i = 0; i < SIZES; i++)
        for (uint32_t how = 0; how < 16; how++) {
            const uint32_t w = sizes[i][0], h = sizes[i][1];
            view.wipe = how & 2 ? DEMO_WIPE_REFERENCE : how & 4 ? DEMO_WIPE_NONE : DEMO_WIPE_NOISY;
            view.paused = how & 8;
            d.result_db = how & 4 ? 36.4 : 0;
            d.noisy_db = 25;
            d.box_db = how & 1 ? 30.8 : 0;
            d.quality.single_db = how & 1 ? 35.3 : 0;
            d.reference_samples = how & 8 ? 1024 : 0;
            d.notice = how & 1 ? "this key is the filter's, which N shows" : NULL;
            build(&view, &d, w, h);
            check_places(w, h);
            assert_true(find(" ms a frame") >= 0 || is_small(i) || d.notice);
            assert_true(find("INT8") < 0 && find("Error") < 0 && find("8-bit") < 0 && find("ttention") < 0);
            if (!is_small(i))
                assert_true(find("trained network") >= 0 && find("before") >= 0 && find("balanced") >= 0);
        }
    d.notice = NULL;
    view.wipe = DEMO_WIPE_NOISY;
    view.paused = false;
    build(&view, &d, 1280, 720);
    assert_true(find("this frame and 11 before it") >= 0 && find("denoise.safetensors") >= 0 && find("/home") < 0);
    assert_true(find("balanced  (M: fast)") >= 0);
    assert_true(find("cleaned by the trained network") >= 0 && find("S: next scene") >= 0);
    d.next_preset = NULL; /* the only one */
    build(&view, &d, 1280, 720);
    assert_true(find("balanced") >= 0 && find("M: ") < 0);
    d.preset = NULL; /* somebody's own */
    build(&view, &d, 1280, 720);
    assert_true(find("Preset") < 0 && find("denoise.safetensors") >= 0);
    d.effect = DEMO_EFFECT_FILTER; /* from which N leads back */
    build(&view, &d, 1280, 720);
    assert_true(find("cleaned by the filter") >= 0 && find("N: trained network") >= 0);
    d.effect = DEMO_EFFECT_DENOISE;
    d.in_history = 1;
    build(&view, &d, 1280, 720);
    assert_true(find("this frame alone, so far") >= 0);
    d.denoised = false;
    build(&view, &d, 1280, 720);
    assert_true(find("not cleaned") >= 0);
}

static demo_shown some_people(void)
{
    demo_shown s = {.model = "npc.gguf", .device = "CPU, 2 threads", .cache = "16-bit", .tokens_per_s = 41, .first_ms = 240,
                    .budget_us = 30000, .spent_us = 28684, .talking = 2, .slots = 8, .pages = 64, .pages_held = 9,
                    .all_mib = {15.9, 10.2, 8.31}, .quiet_ms = {200, 210, 236}, .talking_ms = {190, 200, 213.1},
                    .quiet_frames = 25, .talking_frames = 75};
    static const char *const names[][2] = {{"Lina", "bard"}, {"Mira", "innkeeper"}, {"Tom", "guard"}, {"Brom", "blacksmith"}};
    for (int i = 0; i < DEMO_FIGURES; i++)
        s.figures[i] = (demo_shown_figure){.name = names[i][0], .trade = names[i][1], .x = -0.7f + 0.45f * (float)i,
                                           .y = 0.2f + 0.05f * (float)(i % 2), .visible = true};
    s.figures[0].said = "Ha! Lead the way. Isn't it grand?";
    s.figures[0].did = "comes with you";
    s.figures[1].said = "The tankard is yours for 5 coins, and take care not to spill it as the last one did, who had to "
                        "sweep the floor until the sun rose.";
    s.figures[1].did = "gives you the tankard, for 5 coins";
    s.figures[2].thinks = s.figures[2].talks = true;
    s.figures[3].said = "Hmph. Nothing is free.";
    s.figures[3].did = "shakes his head";
    s.figures[3].refuses = true;
    return s;
}

/* Names, bubbles and what is typed: each has its place at any size, and says what matters where there is room. */
static void test_tavern(void **state)
{
    (void)state;
    tandem_info info;
    char why[96];
    demo_overlay_data d = network_data(&info, why);
    demo_view view = demo_first_view(TANDEM_PRECISION_AUTO);
    view.effect = DEMO_EFFECT_DENOISE;
    for (uint32_t i = 0; i < SIZES; i++)
        for (uint32_t how = 0; how < 32; how++) {
            const uint32_t w = sizes[i][0], h = sizes[i][1];
            demo_shown s = some_people();
            view.wipe = how & 1 ? DEMO_WIPE_NOISY : DEMO_WIPE_NONE;
            d.notice = how & 2 ? "saved /home/somebody/a folder/of a few/levels/out/screenshot-001.png" : NULL;
            d.shown = &s;
            if (how & 4) {
                s.with = "Mira";
                s.input = how & 8 ? "" : "Could you tell me where the blacksmith of this village has put the key of the cellar?";
                s.asked = "I'll take the tankard, please.";
                s.figures[1].with = true;
                s.figures[1].x = 0;
            } else if (how & 8) {
                s.near_ = "Tom";
                s.figures[2].x = s.figures[1].x + 0.02f; /* one in front of the other */
            }
            if (how & 16)
                s.note = "Nobody talks: there is no npc.gguf beside the program. --npc-model FILE.gguf takes any language "
                         "model; tandem fetch smollm2 brings one.";
            build(&view, &d, w, h);
            check_places(w, h);
            if (w < 900 || h < 520 || h > w)
                continue;
            static const char *const needed[] = {"Lina", "Mira", "Tom", "Brom", "Who talks", "28684 of 30000",
                                                 "41 tokens a second"};
            for (size_t n = 0; n < sizeof needed / sizeof *needed; n++)
                if (find(needed[n]) < 0)
                    fail_msg("%ux%u (%u) has no \"%s\"", w, h, how, needed[n]);
            if (how & 4)
                assert_true(find("You to Mira: ") >= 0 && find(how & 8 ? "_" : "cellar?_") >= 0 && find("Esc: leave") >= 0);
            if (how & 4 && !(how & 19) && h >= 700) /* with nothing in the way */
                assert_true(find("The tankard is yours") >= 0 && find("* gives you the tankard, for 5 coins") >= 0);
            if (!how)
                assert_true(find("* comes with you") >= 0 && find("* shakes his head") >= 0 && find("...") >= 0 &&
                            find("click somebody to talk") >= 0);
        }
    demo_shown s = some_people();
    d.shown = &s;
    build(&view, &d, 1280, 720);
    assert_true(find("9 of 64 pages, 8 slots, 16-bit") >= 0 && find("16 MiB (8-bit: 10, 4-bit: 8.3)") >= 0);
    s.model = NULL;
    build(&view, &d, 1280, 720);
    assert_true(find("none") >= 0 && find("tokens") < 0);
    view.help = true;
    for (uint32_t i = 0; i < SIZES; i++) {
        build(&view, &d, sizes[i][0], sizes[i][1]);
        for (int t = find("Keys"); t < (int)drawn.count; t++)
            assert_true(lies_in(&drawn.where[t], (float)sizes[i][0], (float)sizes[i][1]));
        assert_true(find("walk up to somebody, and talk") >= 0);
    }
}

/* Who else cleans the same frame, and what it comes to, where that is known. */
static void test_others(void **state)
{
    (void)state;
    tandem_info info;
    char why[96];
    demo_overlay_data d = some_data(&info, why);
    demo_view view = demo_first_view(TANDEM_PRECISION_AUTO);
    d.effect = DEMO_EFFECT_DENOISE;
    d.quality = (demo_quality){.oidn = "2.5, on the CPU", .oidn_ms = 44.25, .oidn_db = 35.4};
    d.reference_samples = 256;
    d.noisy_db = 24.8;
    d.result_db = 36.4;
    for (uint32_t i = 0; i < SIZES; i++)
        for (view.wipe = DEMO_WIPE_BOX; view.wipe <= DEMO_WIPE_OIDN; view.wipe++) {
            build(&view, &d, sizes[i][0], sizes[i][1]);
            check_places(sizes[i][0], sizes[i][1]);
        }
    view.wipe = DEMO_WIPE_OIDN;
    build(&view, &d, 1280, 720);
    assert_true(find("Open Image Denoise: 44.2 ms") >= 0 && find("35.4 dB  (44.2 ms; 2.5, on the CPU)") >= 0);
    view.wipe = DEMO_WIPE_BOX;
    build(&view, &d, 1280, 720);
    assert_true(find("box filter: 5x5 pixels") >= 0);
    d.quality.oidn = NULL;
    build(&view, &d, 1280, 720);
    assert_true(find("OIDN") < 0);
    view.wipe = DEMO_WIPE_MAP;
    view.paused = true;
    d.light_now = 0.381;
    d.light_before = 0.619;
    for (uint32_t i = 0; i < SIZES; i++) {
        build(&view, &d, sizes[i][0], sizes[i][1]);
        check_places(sizes[i][0], sizes[i][1]);
    }
    build(&view, &d, 1280, 720);
    assert_true(find("orange: light of this frame, 38 %") >= 0 && find("blue: of the frames before, 62 %") >= 0 &&
                find("half as bright: a tenth of the weight") >= 0 && find("Esc: back") >= 0 && find("input:") < 0);
}

static void test_help_fits(void **state)
{
    (void)state;
    tandem_info info;
    char why[96];
    demo_overlay_data d = some_data(&info, why);
    demo_view view = demo_first_view(TANDEM_PRECISION_AUTO);
    view.help = true;
    build(&view, &d, 1280, 720);
    assert_true(find("Open Image Denoise: --oidn F names it") >= 0);
    d.has_oidn = true; /* which nobody has opened yet */
    build(&view, &d, 1280, 720);
    assert_true(find("wipe: Open Image Denoise") >= 0);
    for (uint32_t i = 0; i < SIZES; i++) {
        build(&view, &d, sizes[i][0], sizes[i][1]);
        const int first = find("Keys"), last = find("quit");
        assert_true(first >= 0 && last > first);
        for (int t = first; t < (int)drawn.count; t++)
            assert_true(lies_in(&drawn.where[t], (float)sizes[i][0], (float)sizes[i][1]));
    }
}

/* Nothing that only who wrote it understands, and no two figures that contradict each other. */
static void test_plain_words(void **state)
{
    (void)state;
    static const char *const jargon[] = {
        "f16", "no CUDA here", "libcuda", "Cpu:", "not higher", "frames/s", "/s ", "8b"};
    tandem_info info;
    char why[96];
    demo_overlay_data d = some_data(&info, why);
    const demo_view view = demo_first_view(TANDEM_PRECISION_AUTO);
    for (uint32_t i = 0; i < SIZES; i++) {
        build(&view, &d, sizes[i][0], sizes[i][1]);
        for (size_t j = 0; j < sizeof jargon / sizeof *jargon; j++)
            if (find(jargon[j]) >= 0)
                fail_msg("%s: \"%s\"", jargon[j], drawn.texts[find(jargon[j])]);
    }
    build(&view, &d, 1280, 720);
    assert_true(find("8-bit: error near 0.70 %, limit 5 %") >= 0);
    assert_true(find("Faster ways need an NVIDIA GPU and its driver.") >= 0);
    assert_true(find("123.6 ms a frame, 6.8 shown a second") >= 0);
    d.frames_per_second = 0;
    build(&view, &d, 1280, 720);
    assert_true(find("shown a second") < 0);
    snprintf(info.rung_reason, sizeof info.rung_reason, "no CUDA here: the driver knows no device");
    build(&view, &d, 1280, 720);
    assert_true(find("Faster ways need CUDA: the driver knows no device") >= 0);
    info.rung_reason[0] = 0;
    info.rung = TANDEM_RUNG_INLINE;
    build(&view, &d, 1280, 720);
    assert_true(find("Faster") < 0 && find("No faster way") < 0 && find("there and back") >= 0);
}

/* The key visits what is another way to compute, and nothing twice. */
static void test_way_down_on_a_cpu(void **state)
{
    (void)state;
    static demo_pipeline p;
    char text[400];
    uint32_t visits[TANDEM_RUNG_CPU + 1] = {0}, before;
    const demo_frame_options options = {
        .width = 64, .height = 48, .backend = TANDEM_BACKEND_CPU, .threads = 1};
    memset(&p, 0, sizeof p);
    assert_true(demo_pipeline_create(&p, &engine, &options));
    for (int i = 0; i < 6; i++) {
        before = p.info.rung;
        assert_int_equal(demo_pipeline_step_down(&p, true, text, sizeof text), DEMO_SWITCHED);
        assert_int_not_equal(p.info.rung, before);
        assert_int_equal(p.info.backend, TANDEM_BACKEND_CPU);
        visits[p.info.rung]++;
    }
    assert_int_equal(visits[TANDEM_RUNG_HOST], 0);
    assert_int_equal(visits[TANDEM_RUNG_COPY], 3);
    assert_int_equal(visits[TANDEM_RUNG_CPU], 3);
    /* --ladder checks every rung. */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(demo_pipeline_step_down(&p, false, text, sizeof text), DEMO_SWITCHED);
        visits[p.info.rung]++;
    }
    assert_int_equal(visits[TANDEM_RUNG_HOST], 1);
    demo_pipeline_destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_view),        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_network),           cmocka_unit_test(test_tavern),
        cmocka_unit_test(test_help_fits),         cmocka_unit_test(test_others),         cmocka_unit_test(test_plain_words),
        cmocka_unit_test(test_way_down_on_a_cpu),
    };
    return cmocka_run_group_tests(tests, open_screen, close_screen);
}
