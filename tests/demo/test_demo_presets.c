/* Presets of the trained denoiser, and the way from one to another while frames are under way.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "demo/metrics.h"
#include "demo/recheck.h"

enum { WIDTH = 128, HEIGHT = 72, FRAMES = 9, CHANGE = 5, SAMPLES = 64, FLOATS = 4 * WIDTH * HEIGHT };

static demo_engine engine;
static char files[DEMO_PRESETS][PATH_MAX];

static int open_engine(void **state)
{
    (void)state;
    for (int i = 0; i < DEMO_PRESET_HIGH; i++)
        if (!demo_asset_find(demo_preset_files[i], files[i], sizeof files[i]))
            return -1;
    return demo_engine_instance(&engine, NULL, 0, false) && demo_engine_device(&engine, VK_NULL_HANDLE) ? 0 : -1;
}

static int close_engine(void **state)
{
    (void)state;
    return demo_engine_destroy(&engine) ? -1 : 0;
}

static void open_pipeline(demo_pipeline *p, const char *high, uint32_t first)
{
    const demo_frame_options options = {.width = WIDTH, .height = HEIGHT, .seed = 1, .in_flight = 2, .preset = first,
                                        .models = {files[DEMO_PRESET_FAST], files[DEMO_PRESET_BALANCED], high}};
    memset(p, 0, sizeof *p);
    assert_true(demo_pipeline_create(p, &engine, &options));
    assert_true(p->has_denoiser);
}

static demo_frame_request request_of(uint32_t index, uint32_t preset)
{
    return (demo_frame_request){.index = index, .seconds = index / 30.0, .effect = DEMO_EFFECT_DENOISE, .preset = preset,
                                .cut = index == 0, .jitter = true};
}

/* Of each frame that has a reference its PSNR; every pixel of each is what one session on the CPU makes of all, with two under way. */
static void render(demo_pipeline *p, const uint32_t presets[FRAMES], uint32_t cut, float *const references[FRAMES], double db[FRAMES])
{
    static float picture[FLOATS];
    demo_recheck *recheck = demo_recheck_open(p);
    assert_non_null(recheck);
    for (uint32_t i = 0; i <= FRAMES; i++) {
        if (i < FRAMES) {
            demo_frame_request request = request_of(i, presets[i]);
            request.cut = request.cut || i == cut;
            assert_true(demo_frame_begin(p, &p->slots[i % DEMO_SLOTS], &request));
            assert_true(!demo_frame_at_once(&p->slots[i % DEMO_SLOTS]) || demo_frame_consume(p, &p->slots[i % DEMO_SLOTS], NULL));
        }
        if (!i)
            continue;
        demo_slot *slot = &p->slots[(i - 1) % DEMO_SLOTS];
        demo_frame_result frame;
        demo_accuracy accuracy = {0};
        assert_true(slot->consumed || demo_frame_consume(p, slot, NULL));
        assert_true(demo_frame_complete(p, slot, &frame));
        assert_true(frame.denoised);
        assert_int_equal(frame.preset, presets[i - 1]);
        assert_int_equal(frame.cut, i == 1 || i - 1 == cut);
        assert_true(demo_recheck_frame(recheck, p, slot, &accuracy));
        assert_true(demo_accuracy_rel_l1(&accuracy) < 0.01);
        assert_true(demo_image_read(&engine, &slot->result, picture));
        if (references[i - 1])
            db[i - 1] = demo_psnr_db(picture, references[i - 1], WIDTH, HEIGHT);
    }
    demo_recheck_close(recheck);
}

/* A frame behind the change is as good as if there had been none: it goes on from what the other preset has left. */
static void test_change(void **state)
{
    (void)state;
    static demo_pipeline p;
    float *references[FRAMES] = {NULL};
    double narrow[FRAMES], wide[FRAMES], changed[FRAMES], forgot[FRAMES];
    open_pipeline(&p, NULL, DEMO_PRESET_BALANCED);
    for (uint32_t i = CHANGE; i < FRAMES; i++) {
        const demo_frame_request request = request_of(i, DEMO_PRESET_BALANCED);
        references[i] = malloc(FLOATS * sizeof(float));
        assert_non_null(references[i]);
        assert_true(demo_render_reference(&p, &p.slots[0], &request, SAMPLES, DEMO_REFERENCE_STREAM + i, references[i]));
    }
    for (uint32_t to = DEMO_PRESET_FAST; to <= DEMO_PRESET_BALANCED; to++) {
        const uint32_t from = to == DEMO_PRESET_FAST ? DEMO_PRESET_BALANCED : DEMO_PRESET_FAST;
        uint32_t before[FRAMES], after[FRAMES], both[FRAMES];
        for (uint32_t i = 0; i < FRAMES; i++) {
            before[i] = from;
            after[i] = to;
            both[i] = i < CHANGE ? from : to;
        }
        render(&p, before, FRAMES, references, narrow);
        render(&p, after, FRAMES, references, wide);
        render(&p, both, FRAMES, references, changed);
        render(&p, both, CHANGE, references, forgot);
        for (uint32_t i = CHANGE; i < FRAMES; i++) {
            const double worse = narrow[i] < wide[i] ? narrow[i] : wide[i];
            if (changed[i] < worse - 0.25)
                fail_msg("%s to %s: frame %u: %.2f dB, without the change %.2f and %.2f", demo_presets[from], demo_presets[to], i,
                         changed[i], narrow[i], wide[i]);
        }
        if (changed[CHANGE] < forgot[CHANGE] + 0.5)
            fail_msg("%s to %s: %.2f dB, without the frames before %.2f", demo_presets[from], demo_presets[to], changed[CHANGE],
                     forgot[CHANGE]);
    }
    for (uint32_t i = 0; i < FRAMES; i++)
        free(references[i]);
    demo_pipeline_destroy(&p);
}

/* The key visits what is there, and each takes its own memory. */
static void test_way_around(void **state)
{
    (void)state;
    static demo_pipeline p;
    char text[300];
    open_pipeline(&p, files[DEMO_PRESET_BALANCED], DEMO_PRESET_FAST);
    const demo_denoiser *d = &p.stations[0].denoiser;
    assert_int_equal(demo_denoiser_preset_after(d, DEMO_PRESET_FAST), DEMO_PRESET_BALANCED);
    assert_int_equal(demo_denoiser_preset_after(d, DEMO_PRESET_BALANCED), DEMO_PRESET_HIGH);
    assert_int_equal(demo_denoiser_preset_after(d, DEMO_PRESET_HIGH), DEMO_PRESET_FAST);
    assert_true(d->networks[DEMO_PRESET_FAST].weight_bytes > 100000 && d->networks[DEMO_PRESET_FAST].scratch_bytes > 100000);
    assert_true(d->networks[DEMO_PRESET_BALANCED].weight_bytes > d->networks[DEMO_PRESET_FAST].weight_bytes);
    assert_int_equal(demo_pipeline_step_down(&p, true, text, sizeof text), DEMO_SWITCHED);
    assert_true(p.station->denoiser.networks[DEMO_PRESET_HIGH].instance != 0); /* on the next rung, too */
    demo_pipeline_destroy(&p);
}

/* A file beside the one to begin with that is none is left out, and that is said. */
static void test_wrong_file(void **state)
{
    (void)state;
    static demo_pipeline p;
    char path[] = "/tmp/tandem_preset_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "none", 4) == 4);
    close(fd);
    open_pipeline(&p, path, DEMO_PRESET_BALANCED);
    assert_null(p.options.models[DEMO_PRESET_HIGH]);
    assert_int_equal(demo_denoiser_preset_after(&p.station->denoiser, DEMO_PRESET_BALANCED), DEMO_PRESET_FAST);
    demo_pipeline_destroy(&p);
    const demo_frame_options options = {.width = WIDTH, .height = HEIGHT, .preset = DEMO_PRESET_HIGH,
                                        .models = {files[DEMO_PRESET_FAST], NULL, path}};
    memset(&p, 0, sizeof p);
    assert_true(demo_pipeline_create(&p, &engine, &options));
    assert_true(!p.has_denoiser && p.no_denoiser[0]);
    demo_pipeline_destroy(&p);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_change),
        cmocka_unit_test(test_way_around),
        cmocka_unit_test(test_wrong_file),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
