/* Objects that are retired: no call finds them, jobs go on with them, and then they are gone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <poll.h>
#include <unistd.h>

#include "interop/base.h"
#include "tests/plugin/network_util.h"
#include "tests/plugin/session/rig.h"

static uint64_t held_bytes(rig *r)
{
    assert_int_equal(tandem_session_info(r->s, &r->info), TANDEM_OK);
    return r->info.host_bytes + r->info.device_bytes;
}

/* Semaphores that the engine's queue may still use, as it cannot be asked, go a while later, with something else that goes. */
static void expect_held(rig *r, uint64_t bytes)
{
    const uint64_t until = td_now_ns() + LONG_NS;

    while (held_bytes(r) != bytes && td_now_ns() < until) {
        assert_int_equal(tandem_mem_destroy(r->s, new_mem(r, 64)), TANDEM_OK);
        sleep_ns(MS);
    }
    assert_int_equal(held_bytes(r), bytes);
}

/* A job's mem and timelines are retired before it may begin: it is computed and signals all the same, then they go. */
static void retire_in_use(rig *r)
{
    const tandem_mem mem = new_mem(r, MEM_BYTES), kept = new_mem(r, MEM_BYTES);
    const tandem_timeline gate = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    tandem_timeline engines, ours, last;
    struct pollfd reached = {.events = POLLIN};
    tandem_job job = new_job(kept), next = new_job(kept);
    const uint64_t before = held_bytes(r);
    tandem_mem more = new_mem(r, 1 << 20);
    uint64_t with, seen;
    tandem_ticket ticket, behind;
    void *host;

    /* Slots take their scratch with their first jobs, which is not this test's. */
    assert_int_equal(tandem_retire(r->s, more), TANDEM_OK);
    expect_held(r, before);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(ended(r, submit(r, &next)).state, TANDEM_JOB_DONE);
    with = held_bytes(r);
    more = new_mem(r, MEM_BYTES);
    engines = new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0);
    ours = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    last = new_timeline(r, TANDEM_SIGNALLER_SESSION, 0);
    job = new_job(more);
    job.wait = (tandem_point){engines, 1};
    job.signal = (tandem_point){ours, 1};
    ticket = submit(r, &job);
    next.signal = (tandem_point){last, 1};
    behind = submit(r, &next);
    assert_int_equal(tandem_point_fd(r->s, job.signal, &reached.fd), TANDEM_OK);
    seen = held_bytes(r);
    assert_int_equal(tandem_retire(r->s, more), TANDEM_OK);
    assert_int_equal(tandem_retire(r->s, ours), TANDEM_OK);
    assert_int_equal(tandem_retire(r->s, last), TANDEM_OK);
    REFUSED(r, ARG, say("mem is 0x%" PRIx64 ", which was destroyed", more), got = tandem_mem_host(r->s, more, &host));
    REFUSED(r, ARG, say("id is 0x%" PRIx64 ", which was destroyed", more), got = tandem_retire(r->s, more));
    REFUSED(r, ARG, say("mem is 0x%" PRIx64 ", which was destroyed", more), got = tandem_mem_destroy(r->s, more));
    REFUSED(r, ARG, say("job.signal.timeline is 0x%" PRIx64 ", which was destroyed", ours),
            job.signal.value = 2; tandem_ticket t; got = tandem_submit(r->s, &job, &t));
    sleep_ns(STUCK_NS);
    assert_int_equal(held_bytes(r), seen); /* nothing goes while a job needs it */
    assert_int_equal(report_of(r, ticket).state, TANDEM_JOB_PENDING);
    assert_int_equal(tandem_timeline_signal(r->s, engines, 1), TANDEM_OK);
    assert_int_equal(tandem_retire(r->s, engines), TANDEM_OK);
    assert_int_equal(ended(r, ticket).state, TANDEM_JOB_DONE);
    assert_int_equal(ended(r, behind).state, TANDEM_JOB_DONE);
    assert_int_equal(poll(&reached, 1, (int)(LONG_NS / MS)), 1);
    close(reached.fd);
    expect_held(r, with);
    REFUSED(r, ARG, "id is 0x0, which names none", got = tandem_retire(r->s, 0));
    REFUSED(r, ARG, say("id is 0x%" PRIx64 ", which is a ticket, not a mem", ticket), got = tandem_retire(r->s, ticket));
    /* Left to the session's end, with a job that never begins. */
    job = new_job(mem);
    job.wait = (tandem_point){gate, 1};
    submit(r, &job);
    assert_int_equal(tandem_retire(r->s, mem), TANDEM_OK);
    assert_int_equal(tandem_retire(r->s, gate), TANDEM_OK);
}

static void test_retire_in_use(void **state)
{
    (void)state;
    each_kind(retire_in_use);
}

/* A model goes with its instances, behind a run of one that had yet to begin; the other goes by itself. */
static void retire_model_once(rig *r)
{
    const uint32_t rows = 4;
    const int32_t length = 2;
    tandem_network_tensor tensor = TANDEM_INIT(tandem_network_tensor);
    tandem_view views[NETWORK_BINDINGS];
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_RUN);
    tandem_instance instance, other;
    tandem_model model;
    tandem_ticket ticket;

    assert_int_equal(tandem_model_load(r->s, network_file(network_text), &model), TANDEM_OK);
    assert_int_equal(tandem_model_instance(r->s, model, &TANDEM_INIT(tandem_instance_desc), &instance), TANDEM_OK);
    assert_int_equal(tandem_model_instance(r->s, model, &TANDEM_INIT(tandem_instance_desc), &other), TANDEM_OK);
    assert_int_equal(tandem_model_prepare(r->s, instance, &rows, 1), TANDEM_OK);
    for (uint32_t i = 0; i < NETWORK_BINDINGS; i++) {
        assert_int_equal(tandem_model_binding(r->s, model, &rows, 1, i, &tensor), TANDEM_OK);
        views[i] = (tandem_view){.mem = new_mem(r, MEM_BYTES), .dtype = tensor.dtype};
    }
    job.op.run = (tandem_run){.instance = instance,
                              .bindings = views,
                              .binding_count = NETWORK_BINDINGS,
                              .numbers = &rows,
                              .number_count = 1,
                              .uniforms = &length,
                              .uniform_bytes = sizeof length};
    job.wait = (tandem_point){new_timeline(r, TANDEM_SIGNALLER_ENGINE, 0), 1};
    ticket = submit(r, &job);
    assert_int_equal(tandem_retire(r->s, other), TANDEM_OK);
    assert_int_equal(tandem_retire(r->s, model), TANDEM_OK);
    REFUSED(r, ARG, say("run.instance is 0x%" PRIx64 ", whose model is being destroyed", instance),
            tandem_ticket t; got = tandem_submit(r->s, &job, &t));
    REFUSED(r, ARG, say("model is 0x%" PRIx64 ", which was destroyed", model), got = tandem_model_destroy(r->s, model));
    sleep_ns(STUCK_NS);
    assert_int_equal(report_of(r, ticket).state, TANDEM_JOB_PENDING);
    assert_int_equal(tandem_timeline_signal(r->s, job.wait.timeline, 1), TANDEM_OK);
    assert_int_equal(ended(r, ticket).state, TANDEM_JOB_DONE);
    for (uint32_t i = 0; i < NETWORK_BINDINGS; i++)
        assert_int_equal(tandem_retire(r->s, views[i].mem), TANDEM_OK);
    assert_int_equal(tandem_retire(r->s, job.wait.timeline), TANDEM_OK);
    network_file_remove();
}

static void retire_model(rig *r)
{
    uint64_t before;

    for (uint32_t i = 0; i < 3; i++)
        retire_model_once(r); /* ids take their tables, and slots their scratch */
    sleep_ns(300 * MS);
    assert_int_equal(tandem_mem_destroy(r->s, new_mem(r, 64)), TANDEM_OK);
    before = held_bytes(r);
    for (uint32_t i = 0; i < 3; i++)
        retire_model_once(r);
    expect_held(r, before);
}

static void test_retire_model(void **state)
{
    (void)state;
    each_kind(retire_model);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_retire_in_use),
    cmocka_unit_test(test_retire_model),
};
const test_cases session_retire_cases = TEST_CASES(cases);
