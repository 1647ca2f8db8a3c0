/* Vulkan frames with new data each time, several in flight, on every ground.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plugin/rungs/rig.h"

typedef struct row {
    const shape *sh;
    tandem_timeline engines, ours;
    uint64_t bytes[2];
    slot f[IN_FLIGHT];
    unsigned char *want[IN_FLIGHT][2];
    char what[120];
} row;

/* Frames first to last, IN_FLIGHT at a time; nothing is under way before and after. */
static void pass(rig *r, row *w, uint64_t first, uint64_t last)
{
    const double bound = w->sh->precision == TANDEM_PRECISION_8B ? 0.05 : 2e-3;

    for (uint64_t n = first; n <= last + IN_FLIGHT - 1; n++) {
        if (n <= last) {
            slot *s = &w->f[n % IN_FLIGHT];

            for (int m = 0; m < 2 && w->bytes[m]; m++) {
                fill(s->up[m].host, w->bytes[m], n * 7 + (uint64_t)m);
                memcpy(w->want[n % IN_FLIGHT][m], s->up[m].host, w->bytes[m]);
            }
            frame_up(r, s, w->engines, n);
            s->job.wait = (tandem_point){w->engines, n};
            s->job.signal = (tandem_point){w->ours, n};
            s->ticket = submit_job(r, &s->job);
            frame_handed_over(r, s, w->engines);
        }
        if (n >= first + IN_FLIGHT - 1) {
            const uint64_t old = n - IN_FLIGHT + 1;
            slot *s = &w->f[old % IN_FLIGHT];
            unsigned char *got[2] = {s->down[0].host, s->down[1].host};

            frame_down(r, s, w->ours);
            expect_done(r, s->ticket);
            compute(&s->job.op.attention, s->mems, w->want[old % IN_FLIGHT]);
            check(r, w->what, &s->job.op.attention, s->mems, got, w->want[old % IN_FLIGHT], w->bytes, bound);
        }
    }
}

/* A frame copies where it must, and allocates and frees nothing. */
static void check_costs(rig *r, const row *w, const tandem_info *warm)
{
    tandem_info after = {.struct_bytes = sizeof after};

    assert_int_equal(tandem_session_info(r->s, &after), TANDEM_OK);
    assert_int_equal(after.cuda_allocations, warm->cuda_allocations);
    assert_int_equal(after.cuda_host_waits, warm->cuda_host_waits);
    if (after.host_bytes != warm->host_bytes || after.device_bytes != warm->device_bytes)
        fail_msg("%s, %s: %" PRIu64 " + %" PRIu64 " bytes become %" PRIu64 " + %" PRIu64, r->on->name, w->what,
                 warm->host_bytes, warm->device_bytes, after.host_bytes, after.device_bytes);
    if (r->info.rung != TANDEM_RUNG_COPY)
        assert_int_equal(after.cuda_copies, warm->cuda_copies);
    else if (r->info.backend == TANDEM_BACKEND_CUDA)
        assert_true(after.cuda_copies > warm->cuda_copies);
}

static void frames(rig *r, const shape *sh)
{
    tandem_info warm = {.struct_bytes = sizeof warm};
    tandem_attention views;
    row w = {.sh = sh};

    snprintf(w.what, sizeof w.what, "layout %d, %u heads of %u rows, %u keys", sh->layout, sh->heads, sh->rows, sh->keys);
    begin_points(r, &w.engines, &w.ours);
    lay_out(sh, &views, w.bytes);
    for (int i = 0; i < IN_FLIGHT; i++) {
        make_slot(r, &w.f[i], &views, w.bytes);
        for (int m = 0; m < 2; m++)
            w.want[i][m] = malloc(w.bytes[m] + 1);
    }
    if (sh->frames > WARM) {
        pass(r, &w, 1, WARM - 1);
        pass(r, &w, WARM, WARM); /* alone: what the first of these frames have outgrown goes now, not at some later time */
        assert_int_equal(tandem_session_info(r->s, &warm), TANDEM_OK);
        pass(r, &w, WARM + 1, sh->frames);
        check_costs(r, &w, &warm);
    } else {
        pass(r, &w, 1, sh->frames);
    }
    assert_int_equal(r->vk.DeviceWaitIdle(r->vk.device), VK_SUCCESS);
    for (int i = 0; i < IN_FLIGHT; i++) {
        free_slot(r, &w.f[i]);
        for (int m = 0; m < 2; m++)
            free(w.want[i][m]);
    }
    end_points(r, w.engines, w.ours);
}

static void test_frames(void **state)
{
    static const shape small[] = {
        {1, 1, 1, 32, TANDEM_PRECISION_F16, 20, ONE_MEM},
        {2, 48, 40, 32, TANDEM_PRECISION_F16, 20, ONE_MEM},
        {2, 48, 40, 32, TANDEM_PRECISION_F16, 20, TWO_MEMS},
        {3, 33, 20, 64, TANDEM_PRECISION_F16, 20, INTERLEAVED},
        {1, 130, 300, 64, TANDEM_PRECISION_8B, 20, TWO_MEMS},
    };

    (void)state;
    for (int g = 0; g < ground_count; g++) {
        rig r;

        if (!open_rig(&r, &grounds[g])) {
            print_message("%-28s not here\n", grounds[g].name);
            continue;
        }
        for (size_t i = 0; i < sizeof small / sizeof *small; i++)
            frames(&r, &small[i]);
        print_message("%-28s rung %u, backend %u%s\n", grounds[g].name, r.info.rung, r.info.backend,
                      r.bounced ? ", pinned memory beside the staging memory" : "");
        assert_int_equal(r.errors, 0);
        close_rig(&r);
    }
}

/* Several MiB: copies of many pieces. */
static void test_large(void **state)
{
    static const shape large[] = {
        {1, 16000, 16, 128, TANDEM_PRECISION_F16, 7, TWO_MEMS},
        {2, 9000, 8, 128, TANDEM_PRECISION_F16, 4, INTERLEAVED},
    };
    static const char *const names[] = {"host, forced", "copy, forced", "nothing at all"};

    (void)state;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (int g = 0; g < ground_count; g++) {
            rig r;

            if (strcmp(grounds[g].name, names[n]) || !open_rig(&r, &grounds[g]))
                continue;
            for (size_t i = 0; i < sizeof large / sizeof *large; i++)
                frames(&r, &large[i]);
            assert_int_equal(r.errors, 0);
            close_rig(&r);
        }
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_frames),
    cmocka_unit_test(test_large),
};
const test_cases rungs_frames_cases = TEST_CASES(cases);
