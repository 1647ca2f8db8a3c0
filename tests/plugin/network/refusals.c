/* What the calls about networks refuse, each by its argument and value; and what they tell.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "tests/plugin/network/rig.h"

static void test_info(void **state)
{
    static const struct {
        const char *name;
        uint32_t role, rows;
    } bindings[BINDINGS] = {{"x", TANDEM_NETWORK_INPUT, 64},
                            {"y", TANDEM_NETWORK_OUTPUT, 64},
                            {"sum", TANDEM_NETWORK_OUTPUT, 1}};
    tandem_network network = {.struct_bytes = sizeof network};
    tandem_network_number number = {.struct_bytes = sizeof number};
    tandem_network_tensor tensor = {.struct_bytes = sizeof tensor};
    const uint32_t five = 5;
    rig r;

    (void)state;
    open_rig(&r, 4, NULL);
    must(&r, tandem_model_info(r.s, r.model, &network));
    assert_int_equal(network.binding_count, BINDINGS);
    assert_int_equal(network.uniform_count, 1);
    assert_int_equal(network.number_count, 1);
    assert_int_equal(network.weight_bytes, 256);
    assert_int_equal(network.state_bytes, 256);
    must(&r, tandem_model_number(r.s, r.model, 0, &number));
    assert_string_equal(number.name, "rows");
    assert_int_equal(number.most, NETWORK_ROWS);
    for (uint32_t i = 0; i < BINDINGS; i++) {
        must(&r, tandem_model_binding(r.s, r.model, NULL, 0, i, &tensor));
        assert_string_equal(tensor.name, bindings[i].name);
        assert_int_equal(tensor.role, bindings[i].role);
        assert_int_equal(tensor.dtype, TANDEM_DTYPE_F32);
        assert_int_equal(tensor.dimensions, 2);
        assert_int_equal(tensor.shape[0] * tensor.shape[1], 1);
        assert_int_equal(tensor.shape[2], bindings[i].rows);
        assert_int_equal(tensor.shape[3], CHANNELS);
        assert_int_equal(tensor.bytes, bindings[i].rows * CHANNELS * 4);
    }
    must(&r, tandem_model_binding(r.s, r.model, &five, 1, X, &tensor));
    assert_int_equal(tensor.shape[2], 5);
    must(&r, tandem_model_uniform(r.s, r.model, &five, 1, 0, &tensor));
    assert_string_equal(tensor.name, "length");
    assert_int_equal(tensor.role, TANDEM_NETWORK_UNIFORM);
    assert_int_equal(tensor.dtype, TANDEM_DTYPE_I32);
    assert_int_equal(tensor.bytes, 4);
    assert_int_equal(tensor.offset_bytes, 0);
    close_rig(&r);
}

static void test_queries(void **state)
{
    tandem_network network = {.struct_bytes = 3};
    tandem_network_number number = {.struct_bytes = sizeof number};
    tandem_network_tensor tensor = {.struct_bytes = sizeof tensor};
    uint32_t numbers[2] = {65, 1};
    rig r;

    (void)state;
    open_rig(&r, 4, NULL);
    REFUSED(&r, ARG, "network is NULL", tandem_model_info(r.s, r.model, NULL));
    REFUSED(&r, ARG, say("network.struct_bytes is 3, not %zu", sizeof network),
            tandem_model_info(r.s, r.model, &network));
    network.struct_bytes = sizeof network;
    REFUSED(&r, ARG, "model is 0x0", tandem_model_info(r.s, 0, &network));
    REFUSED(&r, ARG, "which is an instance, not a model",
            tandem_model_info(r.s, r.instance, &network));
    REFUSED(&r, ARG, "number is NULL", tandem_model_number(r.s, r.model, 0, NULL));
    REFUSED(&r, ARG, "index is 1; the network has 1 numbers",
            tandem_model_number(r.s, r.model, 1, &number));
    REFUSED(&r, ARG, "tensor is NULL", tandem_model_binding(r.s, r.model, NULL, 0, 0, NULL));
    REFUSED(&r, ARG, "index is 3; the network has 3 inputs and outputs",
            tandem_model_binding(r.s, r.model, NULL, 0, 3, &tensor));
    REFUSED(&r, ARG, "index is 1; the network has 1 uniforms",
            tandem_model_uniform(r.s, r.model, NULL, 0, 1, &tensor));
    REFUSED(&r, ARG, "number_count is 2; the network has 1 numbers",
            tandem_model_binding(r.s, r.model, numbers, 2, 0, &tensor));
    REFUSED(&r, ARG, "numbers is NULL", tandem_model_binding(r.s, r.model, NULL, 1, 0, &tensor));
    REFUSED(&r, ARG, "numbers[0] is 65; rows must be 1 to 64",
            tandem_model_binding(r.s, r.model, numbers, 1, 0, &tensor));
    tensor.struct_bytes = 0;
    REFUSED(&r, ARG, "tensor.struct_bytes is 0",
            tandem_model_uniform(r.s, r.model, NULL, 0, 0, &tensor));
    close_rig(&r);
}

static void test_instances(void **state)
{
    tandem_instance_desc desc = {.struct_bytes = 1};
    tandem_prepared prepared = {.struct_bytes = sizeof prepared};
    tandem_instance instance = 7;
    uint32_t numbers[2] = {0, 1};
    rig r;

    (void)state;
    open_rig(&r, 4, NULL);
    REFUSED(&r, ARG, "desc is NULL", tandem_model_instance(r.s, r.model, NULL, &instance));
    assert_int_equal(instance, 0);
    REFUSED(&r, ARG, "desc.struct_bytes is 1",
            tandem_model_instance(r.s, r.model, &desc, &instance));
    desc.struct_bytes = sizeof desc;
    REFUSED(&r, ARG, "instance is NULL", tandem_model_instance(r.s, r.model, &desc, NULL));
    REFUSED(&r, ARG, "model is 0x5", tandem_model_instance(r.s, 5, &desc, &instance));
    desc.precision = 4;
    REFUSED(&r, ARG, "desc.precision is 4",
            tandem_model_instance(r.s, r.model, &desc, &instance));
    desc = (tandem_instance_desc){.struct_bytes = sizeof desc, .deadlines = 2};
    REFUSED(&r, ARG, "desc.deadlines is 2",
            tandem_model_instance(r.s, r.model, &desc, &instance));
    desc = (tandem_instance_desc){.struct_bytes = sizeof desc, .reserved = 9};
    REFUSED(&r, ARG, "desc.reserved is 9", tandem_model_instance(r.s, r.model, &desc, &instance));
    REFUSED(&r, ARG, say("instance is 0x%" PRIx64 ", which is a model, not an instance", r.model),
            tandem_instance_destroy(r.s, r.model));
    REFUSED(&r, ARG, "instance is 0x0", tandem_instance_destroy(r.s, 0));
    REFUSED(&r, ARG, "instance is 0x0", tandem_model_prepare(r.s, 0, numbers, 1));
    REFUSED(&r, ARG, "number_count is 0; the network has 1 numbers",
            tandem_model_prepare(r.s, r.instance, NULL, 0));
    REFUSED(&r, ARG, "numbers is NULL", tandem_model_prepare(r.s, r.instance, NULL, 1));
    REFUSED(&r, ARG, "numbers[0] is 0; rows must be 1 to 64",
            tandem_model_prepare(r.s, r.instance, numbers, 1));
    REFUSED(&r, ARG, "prepared is NULL",
            tandem_model_prepared(r.s, r.instance, numbers, 1, NULL));
    REFUSED(&r, ARG, "number_count is 2",
            tandem_model_prepared(r.s, r.instance, numbers, 2, &prepared));
    prepared.struct_bytes = 12;
    REFUSED(&r, ARG, "prepared.struct_bytes is 12",
            tandem_model_prepared(r.s, r.instance, &r.rows, 1, &prepared));
    close_rig(&r);
}

/* A change to a run, and what submit and tandem_supported() say of it. */
static void refuse(rig *r, const tandem_job *job, tandem_status expected, const char *text)
{
    uint64_t scratch_bytes = 1;
    tandem_ticket ticket = 1;
    unsigned errors = errors_of(r);
    char why[500] = "";

    check_refusal(r, errors, expected, text, tandem_submit(r->s, job, &ticket), __LINE__);
    assert_int_equal(ticket, 0);
    errors = errors_of(r);
    assert_int_equal(tandem_supported(r->s, job, &scratch_bytes, why, sizeof why), expected);
    assert_non_null(strstr(why, text));
    assert_int_equal(scratch_bytes, 0);
    assert_int_equal(errors_of(r), errors);
}

static void test_runs(void **state)
{
    uint32_t numbers[2] = {5, 65};
    int32_t lengths[2] = {0};
    rig r;

    (void)state;
    open_rig(&r, 4, NULL);
    const tandem_job good = new_run(&r);
    tandem_job job;
    tandem_run *run_ = &job.op.run;
#define BUT(change, status, text)                                                                  \
    do {                                                                                           \
        job = good;                                                                                \
        change;                                                                                    \
        refuse(&r, &job, TANDEM_ERROR_##status, text);                                             \
    } while (0)
    BUT(job.struct_bytes = 4, ARG, "job.struct_bytes is 4");
    BUT(job.operation = 63, ARG, "job.operation is 63; it must be 1 (attention)");
    BUT(job.operation = 63, ARG, "64 (run)");
    BUT(run_->instance = 0, ARG, "run.instance is 0x0");
    BUT(run_->instance = r.mem, ARG, "which is a mem, not an instance");
    BUT(run_->reserved[3] = 2, ARG, "run.reserved[3] is 2, not 0");
    BUT(run_->binding_count = 2, ARG, "run.binding_count is 2; the network has 3");
    BUT(run_->bindings = NULL, ARG, "run.bindings is NULL");
    BUT(run_->number_count = 2, ARG, "run.number_count is 2; the network has 1");
    BUT(run_->numbers = NULL, ARG, "run.numbers is NULL");
    BUT(run_->numbers = numbers + 1, ARG, "run.numbers[0] is 65; rows must be 1 to 64");
    BUT(run_->numbers = numbers, UNSUPPORTED,
        "run.numbers are rows 5, which are not prepared: call tandem_model_prepare() first");
    BUT(run_->uniform_bytes = 8, ARG, "run.uniform_bytes is 8; for these numbers it must be 4");
    BUT(run_->uniforms = NULL, ARG, "run.uniforms is NULL");
    BUT(job.deadline_ns = 77, UNSUPPORTED, "job.deadline_ns is 77");
    BUT(job.signal.value = 1, ARG, "job.signal.timeline is 0x0");
    run_->uniforms = lengths;

#define VIEW(which, change, status, text)                                                          \
    do {                                                                                           \
        const tandem_view kept = r.views[which];                                                   \
        r.views[which].change;                                                                     \
        refuse(&r, &good, TANDEM_ERROR_##status, text);                                            \
        r.views[which] = kept;                                                                     \
    } while (0)
    VIEW(X, mem = 0, ARG, "bindings[0] (x).mem is 0x0");
    VIEW(X, mem = r.model, ARG, "which is a model, not a mem");
    VIEW(Y, dtype = TANDEM_DTYPE_F16, ARG, "bindings[1] (y).dtype is 1; the network has 3");
    VIEW(Y, reserved = 1, ARG, "bindings[1] (y).reserved is 1");
    VIEW(X, stride_row = 16, ARG, "bindings[0] (x) has strides 0, 0, 16; it must lie dense");
    VIEW(X, offset_bytes = 8, ARG, "bindings[0] (x) is at address 0x");
    VIEW(SUM, offset_bytes = 384, ARG, "bindings[2] (sum).offset_bytes is 384");
    VIEW(SUM, offset_bytes = 16, ARG, "bindings[2] (sum).offset_bytes is 16: it overlaps");
    VIEW(Y, offset_bytes = 64, ARG, "bindings[1] (y).offset_bytes is 64: it overlaps");
    run(&r, &good);
    close_rig(&r);
}

/* What is written is no model's; a model's tensor may be read. */
static void test_models(void **state)
{
    tandem_view w;
    uint64_t shape[4];
    tandem_ticket ticket;
    rig r;

    (void)state;
    open_rig(&r, 1, NULL);
    must(&r, tandem_model_tensor(r.s, r.model, "w", &w, shape));
    const tandem_job job = new_run(&r);
    r.views[X] = w;
    run(&r, &job);
    for (int i = 0; i < CHANNELS; i++)
        assert_true(r.y[i] == 1);
    r.views[SUM] = w;
    REFUSED(&r, ARG, "bindings[2] (sum).mem is", tandem_submit(r.s, &job, &ticket));
    close_rig(&r);
}

/* Of any operation, with no slot taken and nothing queued. */
static void test_supported(void **state)
{
    uint64_t bytes;
    char why[100] = "old";
    tandem_info info = {.struct_bytes = sizeof info};
    rig r;

    (void)state;
    open_rig(&r, 4, NULL);
    const tandem_job run_ = new_run(&r);
    const tandem_view dense = tandem_view_dense(r.mem, 0, TANDEM_DTYPE_F32, 1, 4, CHANNELS);
    tandem_job norm = {.struct_bytes = sizeof norm, .operation = TANDEM_OPERATION_NORM};
    norm.op.norm = (tandem_norm){
        .x = dense, .y = dense, .batch = 1, .heads = 1, .rows = 4, .channels = CHANNELS};
    norm.op.norm.y.offset_bytes = 4 * CHANNELS * 4;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(tandem_supported(r.s, &run_, &bytes, why, sizeof why), TANDEM_OK);
        assert_string_equal(why, "");
        assert_true(bytes > 0);
        assert_int_equal(tandem_supported(r.s, &norm, NULL, NULL, 0), TANDEM_OK);
    }
    norm.op.norm.channels = 0;
    assert_int_equal(tandem_supported(r.s, &norm, &bytes, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "channels is 0"));
    REFUSED(&r, ARG, "job is NULL", tandem_supported(r.s, NULL, NULL, NULL, 0));
    must(&r, tandem_session_info(r.s, &info));
    assert_int_equal(info.jobs_submitted, 0);
    close_rig(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_info),      cmocka_unit_test(test_queries),
    cmocka_unit_test(test_instances), cmocka_unit_test(test_runs),
    cmocka_unit_test(test_models),    cmocka_unit_test(test_supported),
};
const test_cases network_refusals_cases = TEST_CASES(tests);
