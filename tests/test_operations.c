/* Norms and linear layers through sessions: on the CPU, on CUDA where there is a GPU, and in tandemd; with deadlines, too.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/daemon_client.h"
#include "tests/linear_util.h"

enum { CHANNELS = 640, ROWS = 33, HEADS = 3, PLANE = CHANNELS * ROWS * HEADS, BYTES = 8 * PLANE };

/* x as f16, then the residual, weights, y as f32. */
static tandem_job norm_of(tandem_mem mem, uint64_t deadline_ns)
{
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_NORM, .deadline_ns = deadline_ns};
    tandem_norm *n = &job.op.norm;

    n->batch = 1;
    n->heads = HEADS;
    n->rows = ROWS;
    n->channels = CHANNELS;
    n->x = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, HEADS, ROWS, CHANNELS);
    n->residual = tandem_view_dense(mem, 2 * PLANE, TANDEM_DTYPE_F16, HEADS, ROWS, CHANNELS);
    n->weight = tandem_view_dense(mem, 2 * PLANE, TANDEM_DTYPE_F16, 1, 1, CHANNELS);
    n->y = tandem_view_dense(mem, 4 * PLANE, TANDEM_DTYPE_F32, HEADS, ROWS, CHANNELS);
    return job;
}

static void fill(void *data)
{
    uint16_t *half = data;

    memset(data, 0xff, BYTES);
    for (uint32_t i = 0, state = 1; i < 2 * PLANE; i++) {
        state = state * 1664525u + 1013904223u;
        half[i] = (uint16_t)(0x3000 + (state >> 16 & 0x8fff)); /* 1/8 to 2 and beyond, either sign */
    }
}

/* Of a session of such a kind; false: there is none here. */
static bool compute(const tandem_session_desc *desc, uint64_t deadline_ns, void *y)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_session *session;
    tandem_ticket ticket;
    tandem_mem mem;
    tandem_job job;
    void *host;

    if (tandem_session_create(desc, &session) != TANDEM_OK)
        return false;
    assert_int_equal(
        tandem_mem_create(session, &(tandem_mem_desc){.struct_bytes = sizeof(tandem_mem_desc), .bytes = BYTES}, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(session, mem, &host), TANDEM_OK);
    fill(host);
    job = norm_of(mem, deadline_ns);
    assert_int_equal(tandem_submit(session, &job, &ticket), TANDEM_OK);
    assert_int_equal(tandem_wait(session, ticket, PATIENCE, &report), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
    memcpy(y, (char *)host + 4 * PLANE, 4 * PLANE);
    job.op.norm.y.offset_bytes = 2 * PLANE;
    assert_int_equal(tandem_submit(session, &job, &ticket), TANDEM_ERROR_ARG); /* it overlaps the residual */
    assert_int_equal(tandem_session_destroy(&session), TANDEM_OK);
    return true;
}

/* Of norms the same bits everywhere. */
static void test_norms(void **state)
{
    static float y[PLANE], other[PLANE];
    const char *expect = getenv("TANDEM_EXPECT_GPU");
    tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .cpu_threads = 2};

    (void)state;
    assert_true(compute(&desc, 0, y));
    for (size_t i = 0; i < PLANE; i++)
        assert_true(y[i] == y[i]); /* finite, or at least a number */
    for (int way = 0; way < 6; way++) {
        desc.backend = way % 3 == 0 ? TANDEM_BACKEND_CPU : way % 3 == 1 ? TANDEM_BACKEND_CUDA : TANDEM_BACKEND_AUTO;
        desc.socket = way % 3 == 2 ? socket_path : NULL;
        memset(other, 0, sizeof other);
        if (compute(&desc, way / 3 * PATIENCE, other))
            assert_memory_equal(other, y, sizeof y);
        else
            assert_true(way % 3 == 1 && !(expect && !strcmp(expect, "1")));
    }
}

static void test_linear(void **state)
{
    tandem_session_desc desc = {.struct_bytes = sizeof desc, .cpu_threads = 2};
    (void)state;
    for (int daemon = 0; daemon < 2; daemon++) {
        tandem_session *session;
        desc.backend = daemon ? TANDEM_BACKEND_AUTO : TANDEM_BACKEND_CPU;
        desc.socket = daemon ? socket_path : NULL;
        assert_int_equal(tandem_session_create(&desc, &session), TANDEM_OK);
        tl_try_session(session);
        assert_int_equal(tandem_session_destroy(&session), TANDEM_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_norms), cmocka_unit_test(test_linear)};

    if (!begin_tests("tandemd"))
        return 1;
    return end_tests(cmocka_run_group_tests(tests, set_up_daemon, tear_down_daemon));
}
