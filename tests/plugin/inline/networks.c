/* Networks on the inline rung: submitted by the session, and in the engine's own commands.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "tests/plugin/inline/rig.h"
#include "tests/plugin/network_util.h"

enum { NET_ROWS = 4, BYTES = 65536, NET_Y_AT = 1024, NET_SUM_AT = 2048 };

/* An instance, and a run of it on the host's memory, which the device sees. */
typedef struct net {
    tandem_model model;
    tandem_instance instance;
    tandem_mem mem;
    float *data;
    int32_t length;
    uint32_t rows;
    tandem_view views[NETWORK_BINDINGS];
    tandem_job job;
} net;

static void open_net(net *n)
{
    const tandem_instance_desc desc = {.struct_bytes = sizeof desc};
    const uint64_t offsets[NETWORK_BINDINGS] = {0, NET_Y_AT, NET_SUM_AT};
    void *pages = NULL;

    assert_int_equal(posix_memalign(&pages, BYTES, BYTES), 0);
    memset(pages, 0, BYTES);
    *n = (net){.data = pages, .length = NET_ROWS, .rows = NET_ROWS};
    for (int i = 0; i < NET_ROWS * NETWORK_CHANNELS; i++)
        n->data[i] = 1;
    OK(tandem_model_load(w.s, network_file(network_text), &n->model));
    network_file_remove();
    OK(tandem_model_instance(w.s, n->model, &desc, &n->instance));
    OK(tandem_model_prepare(w.s, n->instance, &n->rows, 1));
    OK(tandem_mem_create(w.s,
                         &(tandem_mem_desc){.struct_bytes = sizeof(tandem_mem_desc),
                                            .source = TANDEM_MEM_HOST,
                                            .host = pages,
                                            .bytes = BYTES,
                                            .fd = -1},
                         &n->mem));
    for (int i = 0; i < NETWORK_BINDINGS; i++)
        n->views[i] = (tandem_view){
            .mem = n->mem, .offset_bytes = offsets[i], .dtype = TANDEM_DTYPE_F32};
    n->job = (tandem_job){.struct_bytes = sizeof n->job, .operation = TANDEM_OPERATION_RUN};
    n->job.op.run = (tandem_run){.instance = n->instance,
                                 .bindings = n->views,
                                 .binding_count = NETWORK_BINDINGS,
                                 .numbers = &n->rows,
                                 .number_count = 1,
                                 .uniforms = &n->length,
                                 .uniform_bytes = sizeof n->length};
}

static void close_net(net *n)
{
    OK(tandem_mem_destroy(w.s, n->mem));
    OK(tandem_instance_destroy(w.s, n->instance));
    OK(tandem_model_destroy(w.s, n->model));
    free(n->data);
}

static void check_sum(const net *n, float sum)
{
    for (int i = 0; i < NETWORK_CHANNELS; i++)
        assert_true(n->data[NET_SUM_AT / sizeof *n->data + (size_t)i] == sum);
}

static void test_submitted(void **state)
{
    enum { WARM = 4 * FRAMES, RUNS = WARM + 2 * FRAMES }; /* a slot has four command buffers */
    uint64_t scratch_bytes;
    char text[200] = "";
    net n;

    (void)state;
    enter();
    open_net(&n);
    assert_int_equal(tandem_supported(w.s, &n.job, &scratch_bytes, text, sizeof text), TANDEM_OK);
    for (int i = 1; i <= RUNS; i++) {
        tandem_ticket ticket;

        if (i == WARM + 1)
            F.begins = F.allocations = 0;
        OK(tandem_submit(w.s, &n.job, &ticket));
        OK(tandem_wait(w.s, ticket, LIMIT_NS, NULL));
        assert_int_equal(report_of(ticket).state, TANDEM_JOB_DONE);
        check_sum(&n, (float)i);
    }
    if (!F.real)
        assert_int_equal(F.begins + F.allocations, 0);
    close_net(&n);
    leave();
}

/* Commands that run again and again, each time from the state that the last run left; and commands
 * that were given up, which claim nothing should they run after all. */
static void test_recorded(void **state)
{
    tandem_prepared prepared = {.struct_bytes = sizeof prepared};
    VkCommandBuffer commands;
    flight *f;
    net n;

    (void)state;
    enter();
    open_net(&n);
    f = &w.flights[0];
    commands = f->commands[0];
    begin_commands(commands);
    OK(tandem_record(w.s, &n.job, commands, &f->ticket));
    assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
    for (int i = 1; i <= 3; i++) {
        submit_flight(f, 0, 1, (vku_point){0}, (vku_point){0}, f->fence);
        wait_flight(f);
        check_sum(&n, (float)i);
        for (uint32_t rows = 10; rows <= 19; rows++) /* which takes the place of others alone */
            OK(tandem_model_prepare(w.s, n.instance, &rows, 1));
        OK(tandem_model_prepared(w.s, n.instance, &n.rows, 1, &prepared));
    }
    begin_commands(commands);
    OK(tandem_record(w.s, &n.job, commands, &f->ticket));
    assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
    OK(tandem_cancel(w.s, f->ticket));
    submit_flight(f, 0, 1, (vku_point){0}, (vku_point){0}, f->fence);
    wait_flight(f);
    assert_int_equal(report_of(f->ticket).state, TANDEM_JOB_CANCELLED);
    check_sum(&n, 3);
    begin_commands(commands);
    OK(tandem_record(w.s, &n.job, commands, &f->ticket));
    assert_int_equal(gpu.EndCommandBuffer(commands), VK_SUCCESS);
    submit_flight(f, 0, 1, (vku_point){0}, (vku_point){0}, f->fence);
    wait_flight(f);
    check_sum(&n, 4);
    close_net(&n);
    leave();
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_submitted),
    cmocka_unit_test(test_recorded),
};
const test_cases inline_networks_cases = TEST_CASES(cases);
