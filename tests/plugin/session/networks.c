/* Networks on each kind of ground: inputs and outputs in memory that is shared, or copied.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/plugin/network_util.h"
#include "tests/plugin/session/rig.h"
#include "tests/plugin/session_must.h"

enum { NET_ROWS = 6, NET_ELEMENTS = NET_ROWS * NETWORK_CHANNELS, FRAMES = 3 };
#define NET_VIEW_BYTES ((uint64_t)NET_ELEMENTS * sizeof(float))

/* A frame in flight: mems of its own for each binding. */
typedef struct frame {
    tandem_mem mems[NETWORK_BINDINGS];
    tandem_view views[NETWORK_BINDINGS];
    tandem_ticket ticket;
} frame;

static void must(rig *r, tandem_status status) { session_must(r->s, status); }

static void make_frame(rig *r, frame *f)
{
    float ones[NET_ELEMENTS];

    for (int i = 0; i < NET_ELEMENTS; i++)
        ones[i] = 1;
    for (int i = 0; i < NETWORK_BINDINGS; i++) {
        f->mems[i] = new_mem(r, NET_VIEW_BYTES);
        f->views[i] = (tandem_view){.mem = f->mems[i], .dtype = TANDEM_DTYPE_F32};
    }
    transfer(r, f->mems[NETWORK_X], ones, sizeof ones, true);
}

/* Frame after frame, then the last is looked at; runs that are cancelled in between change nothing. */
static void runs(rig *r)
{
    const uint32_t numbers[] = {NET_ROWS};
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc};
    tandem_info before = {.struct_bytes = sizeof before}, after = before;
    float y[NET_ELEMENTS], sum[NETWORK_CHANNELS];
    frame frames[FRAMES];
    tandem_model model;
    tandem_instance instance;
    uint32_t runs = 0;

    must(r, tandem_model_load(r->s, network_file(network_text), &model));
    must(r, tandem_model_instance(r->s, model, &desc, &instance));
    must(r, tandem_model_prepare(r->s, instance, numbers, 1));
    for (int i = 0; i < FRAMES; i++)
        make_frame(r, &frames[i]);
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_RUN};
    job.signal.timeline = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    const tandem_timeline engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    for (int i = 0; i < 8 * FRAMES; i++) {
        frame *f = &frames[i % FRAMES];
        const int32_t length = 1 + i % NET_ROWS;
        const bool given_up = i % 5 == 4;

        if (i >= FRAMES)
            ended(r, f->ticket);
        if (i == 2 * FRAMES)
            must(r, tandem_session_info(r->s, &before));
        job.op.run = (tandem_run){.instance = instance,
                                  .bindings = f->views,
                                  .binding_count = NETWORK_BINDINGS,
                                  .numbers = numbers,
                                  .number_count = 1,
                                  .uniforms = &length,
                                  .uniform_bytes = sizeof length};
        job.wait = given_up ? (tandem_point){engines, 1} : (tandem_point){0};
        job.signal.value = 1 + (uint64_t)i;
        f->ticket = submit(r, &job);
        if (given_up)
            must(r, tandem_cancel(r->s, f->ticket));
        runs += !given_up;
    }
    for (int i = 0; i < FRAMES; i++)
        ended(r, frames[i].ticket);
    must(r, tandem_point_wait(r->s, job.signal, LONG_NS));
    must(r, tandem_session_info(r->s, &after));
    assert_int_equal(after.host_bytes, before.host_bytes);
    assert_int_equal(after.device_bytes, before.device_bytes);
    assert_int_equal(after.cuda_allocations, before.cuda_allocations);
    frame *last = &frames[(8 * FRAMES - 1) % FRAMES];
    transfer(r, last->mems[NETWORK_Y], y, sizeof y, false);
    for (int i = 0; i < NET_ELEMENTS; i++)
        assert_true(y[i] == 1);
    transfer(r, last->mems[NETWORK_SUM], sum, sizeof sum, false);
    for (int i = 0; i < NETWORK_CHANNELS; i++)
        assert_true(sum[i] == (float)runs);
    must(r, tandem_instance_destroy(r->s, instance));
    must(r, tandem_model_destroy(r->s, model));
    network_file_remove();
}

static void test_networks(void **state)
{
    (void)state;
    each_kind(runs);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_networks),
};
const test_cases session_networks_cases = TEST_CASES(cases);
