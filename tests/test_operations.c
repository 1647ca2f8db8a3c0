/* Operations through sessions: on the CPU, on CUDA where there is a GPU, and in tandemd; with deadlines, too.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * test_operations [--each]; --each runs each once on the GPU alone, for compute-sanitizer.
 */
#include <math.h>

#include "kernels/operation.h"
#include "tests/daemon_client.h"
#include "tests/linear_util.h"

enum { CHANNELS = 640, ROWS = 33, HEADS = 3, PLANE = CHANNELS * ROWS * HEADS, OUT = 4 * PLANE, IDS = 8 * PLANE, BYTES = IDS + 4 * ROWS };

/* Halves in the first half of a mem, y in the second, whole numbers behind it. */
static tandem_view halves(tandem_mem mem, uint64_t first, uint32_t heads, uint32_t rows)
{
    return tandem_view_dense(mem, 2 * first, TANDEM_DTYPE_F16, heads, rows, CHANNELS);
}

static tandem_view numbers(tandem_mem mem, uint32_t rows)
{
    return tandem_view_dense(mem, IDS, TANDEM_DTYPE_I32, 1, rows, 1);
}

static void norm(tandem_mem mem, tandem_operands *op)
{
    op->norm = (tandem_norm){.batch = 1, .heads = HEADS, .rows = ROWS, .channels = CHANNELS};
    op->norm.x = halves(mem, 0, HEADS, ROWS);
    op->norm.residual = halves(mem, PLANE, HEADS, ROWS);
    op->norm.weight = halves(mem, PLANE, 1, 1);
    op->norm.y = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, HEADS, ROWS, CHANNELS);
}

static void embed(tandem_mem mem, tandem_operands *op)
{
    op->embed = (tandem_embed){.batch = HEADS, .rows = ROWS, .channels = CHANNELS, .entries = 3 * ROWS, .positions = 2 * ROWS};
    op->embed.table = halves(mem, 0, 1, 3 * ROWS);
    op->embed.position_table = halves(mem, PLANE, 1, 2 * ROWS);
    op->embed.id = op->embed.position = numbers(mem, ROWS);
    op->embed.id.stride_batch = op->embed.position.stride_batch = 0;
    op->embed.y = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, 1, ROWS, CHANNELS);
}

/* b has one row, and one channel in it. */
static void binary(tandem_mem mem, tandem_operands *op)
{
    op->binary = (tandem_binary){.batch = 1, .heads = HEADS, .rows = ROWS, .channels = CHANNELS, .b_channels = 1, .scale = 0.25f,
                                 .kind = TANDEM_BINARY_MULTIPLY};
    op->binary.a = halves(mem, 0, HEADS, ROWS);
    op->binary.b = halves(mem, PLANE, 1, 1);
    op->binary.b.stride_head = op->binary.b.stride_row = 0;
    op->binary.y = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, HEADS, ROWS, CHANNELS);
}

/* Of more rows than a chunk has, by lengths below 0 and beyond. */
static void pool(tandem_mem mem, tandem_operands *op)
{
    op->pool = (tandem_pool){.batch = ROWS, .heads = 1, .rows = 600, .channels = 48, .normalise = 1};
    op->pool.x = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, 1, 600, 48);
    op->pool.x.stride_batch = 96;
    op->pool.length = numbers(mem, 1);
    op->pool.length.stride_batch = 1;
    op->pool.y = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, 1, 1, 48);
}

/* Of batches of which 1, 28 and, as more than there are count as all, 33 keys count, with a bias. */
static void attention(tandem_mem mem, tandem_operands *op)
{
    op->attention = (tandem_attention){.batch = HEADS, .heads = CHANNELS / 64, .kv_heads = CHANNELS / 64, .q_len = ROWS, .kv_len = ROWS,
                                       .head_dim = 64};
    op->attention.q = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, CHANNELS / 64, ROWS, 64);
    op->attention.k = tandem_view_dense(mem, PLANE, TANDEM_DTYPE_F16, CHANNELS / 64, ROWS, 64);
    op->attention.v = tandem_view_dense(mem, 2 * PLANE, TANDEM_DTYPE_F16, CHANNELS / 64, ROWS, 64);
    op->attention.o = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, CHANNELS / 64, ROWS, 64);
    op->attention.length = numbers(mem, 1);
    op->attention.length.offset_bytes += 3 * sizeof(int32_t);
    op->attention.bias = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, 1, ROWS, ROWS);
    op->attention.bias.stride_batch = op->attention.bias.stride_head = 0;
}

typedef struct operation {
    uint32_t number;
    void (*make)(tandem_mem mem, tandem_operands *op);
    uint32_t elements; /* of y */
    float off;         /* by so much GPUs may be from the CPU */
} operation;

static void fill(void *data)
{
    uint16_t *half = data;
    int32_t *number = (int32_t *)((char *)data + IDS);

    memset(data, 0xff, BYTES);
    for (uint32_t i = 0, state = 1; i < 2 * PLANE; i++) {
        state = state * 1664525u + 1013904223u;
        half[i] = (uint16_t)(0x3000 + (state >> 16 & 0x8fff)); /* 1/8 to 2 and beyond, either sign */
    }
    for (int32_t i = 0; i < ROWS; i++)
        number[i] = i * 27 - 80; /* some beyond any table, or sequence */
}

/* Of a session of such a kind; false: there is none here. */
static bool compute(const tandem_session_desc *desc, const operation *what, uint64_t deadline_ns, void *y)
{
    tandem_job job = {.struct_bytes = sizeof job, .operation = what->number, .deadline_ns = deadline_ns};
    const td_operation_layout *layout = &td_operation_find(what->number)->layout;
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_session *session;
    tandem_ticket ticket;
    tandem_mem mem;
    void *host;

    if (tandem_session_create(desc, &session) != TANDEM_OK)
        return false;
    assert_int_equal(
        tandem_mem_create(session, &(tandem_mem_desc){.struct_bytes = sizeof(tandem_mem_desc), .bytes = BYTES}, &mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(session, mem, &host), TANDEM_OK);
    fill(host);
    what->make(mem, &job.op);
    TL_OK(tandem_submit(session, &job, &ticket), session);
    TL_OK(tandem_wait(session, ticket, PATIENCE, &report), session);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
    memcpy(y, (char *)host + OUT, 4 * PLANE);
    for (uint32_t i = 0; i < layout->view_count; i++)
        if (layout->views[i].written && td_view_is_there(layout, &job.op, i))
            td_view_of(layout, &job.op, i)->offset_bytes = 0;
    assert_int_equal(tandem_submit(session, &job, &ticket), TANDEM_ERROR_ARG); /* it overlaps what is read */
    assert_int_equal(tandem_session_destroy(&session), TANDEM_OK);
    return true;
}

static const operation operations[] = {
    {TANDEM_OPERATION_NORM, norm, PLANE, 0},
    {TANDEM_OPERATION_EMBED, embed, PLANE, 0},
    {TANDEM_OPERATION_BINARY, binary, PLANE, 0},
    {TANDEM_OPERATION_POOL, pool, ROWS * 48, 0},
    {TANDEM_OPERATION_ATTENTION, attention, PLANE, 4e-3f},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static void compute_on_cpu(const operation *what, float y[PLANE])
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .cpu_threads = 2};

    assert_true(compute(&desc, what, 0, y));
    for (size_t i = 0; i < PLANE; i++)
        assert_true((y[i] == y[i]) == (i < what->elements)); /* else it is as it was, no number */
}

static void compare(const operation *what, const float other[PLANE], const float y[PLANE], float off)
{
    for (size_t i = 0; i < what->elements; i++)
        assert_true(fabsf(other[i] - y[i]) <= off);
    assert_memory_equal(other + what->elements, y + what->elements, (PLANE - what->elements) * sizeof *y);
}

/* The same bits everywhere, but where more is allowed. */
static void test_rows(void **state)
{
    static float y[PLANE], other[PLANE];
    const char *expect = getenv("TANDEM_EXPECT_GPU");

    (void)state;
    for (size_t n = 0; n < OPERATIONS; n++) {
        compute_on_cpu(&operations[n], y);
        for (int way = 0; way < 6; way++) {
            const tandem_session_desc desc = {
                .struct_bytes = sizeof desc,
                .cpu_threads = 2,
                .backend = way % 3 == 0 ? TANDEM_BACKEND_CPU : way % 3 == 1 ? TANDEM_BACKEND_CUDA : TANDEM_BACKEND_AUTO,
                .socket = way % 3 == 2 ? socket_path : NULL,
            };
            memset(other, 0, sizeof other);
            if (compute(&desc, &operations[n], way / 3 * PATIENCE, other))
                compare(&operations[n], other, y, way % 3 ? operations[n].off : 0);
            else
                assert_true(way % 3 == 1 && !(expect && !strcmp(expect, "1")));
        }
    }
}

static void test_each(void **state)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CUDA};
    static float y[PLANE], other[PLANE];

    (void)state;
    for (size_t n = 0; n < OPERATIONS; n++) {
        compute_on_cpu(&operations[n], y);
        memset(other, 0, sizeof other);
        assert_true(compute(&desc, &operations[n], 0, other));
        compare(&operations[n], other, y, operations[n].off);
    }
    printf("    %d of %d cases ran here\n", OPERATIONS, OPERATIONS);
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
        assert_true(tl_try_codes(session));
        assert_int_equal(tandem_session_destroy(&session), TANDEM_OK);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_linear)};
    const struct CMUnitTest each[] = {cmocka_unit_test(test_each)};

    if (argc > 1 && !strcmp(argv[1], "--each"))
        return cmocka_run_group_tests(each, NULL, NULL);
    if (!begin_tests("tandemd"))
        return 1;
    return end_tests(cmocka_run_group_tests(tests, set_up_daemon, tear_down_daemon));
}
