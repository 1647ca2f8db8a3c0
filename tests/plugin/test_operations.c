/* Operations through sessions: on the CPU, on CUDA where there is a GPU, and in tandemd; with deadlines, too.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * test_operations [--each [LANE/LANES | NAME] | --cases]; --each runs each kernel on the GPU alone, for compute-sanitizer; --cases needs
 * no GPU: that it leaves none out.
 */
#include <math.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/operation.h"
#include "tests/cases.h"
#include "tests/kernels/each.h"
#include "tests/kernels/linear_util.h"
#include "tests/plugin/daemon_client.h"

enum { CHANNELS = 640, ROWS = 33, HEADS = 3, PLANE = CHANNELS * ROWS * HEADS, OUT = 4 * PLANE, IDS = 8 * PLANE, BYTES = IDS + 4 * (ROWS + 2) };

typedef struct operation {
    uint32_t number;
    void (*make)(const struct operation *it, tandem_mem mem, tandem_operands *op);
    uint32_t elements; /* of y, in floats */
    float off;         /* by so much GPUs may be from the CPU */
    uint32_t dtype, head_dim; /* of attention's q, k and v, or norm's x; of caches their format, and heads */
    uint64_t offset_bytes;    /* where q begins */
    uint32_t precision;       /* of attention */
    tandem_gather windows;    /* of gather: radius, coarse_radius, step, and whether there are k_coarse and factor */
} operation;

/* Halves in the first half of a mem, y in the second, whole numbers behind it. */
static tandem_view halves(tandem_mem mem, uint64_t first, uint32_t heads, uint32_t rows)
{
    return tandem_view_dense(mem, 2 * first, TANDEM_DTYPE_F16, heads, rows, CHANNELS);
}

static tandem_view numbers(tandem_mem mem, uint32_t rows)
{
    return tandem_view_dense(mem, IDS, TANDEM_DTYPE_I32, 1, rows, 1);
}

/* Of halves into floats, or all of a type as networks have it, which short rows have a kernel for. */
static void norm(const operation *it, tandem_mem mem, tandem_operands *op)
{
    op->norm = (tandem_norm){.batch = 1, .heads = HEADS, .rows = ROWS, .channels = CHANNELS};
    op->norm.x = halves(mem, 0, HEADS, ROWS);
    op->norm.residual = halves(mem, PLANE, HEADS, ROWS);
    op->norm.weight = halves(mem, PLANE, 1, 1);
    op->norm.y = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, HEADS, ROWS, CHANNELS);
    if (it->dtype) {
        op->norm.x.dtype = op->norm.residual.dtype = op->norm.y.dtype = it->dtype;
        op->norm.weight = (tandem_view){0};
    }
}

/* Of floats, which pairs of halves are too, into a type, as language models have it. */
static void norm_line(const operation *it, tandem_mem mem, tandem_operands *op)
{
    op->norm = (tandem_norm){.batch = 1, .heads = HEADS, .rows = ROWS, .channels = CHANNELS};
    op->norm.x = tandem_view_dense(mem, 0, TANDEM_DTYPE_F32, HEADS, ROWS, CHANNELS);
    op->norm.weight = tandem_view_dense(mem, 0, TANDEM_DTYPE_F32, 1, 1, CHANNELS);
    op->norm.y = tandem_view_dense(mem, OUT, it->dtype, HEADS, ROWS, CHANNELS);
}

static void embed(const operation *it, tandem_mem mem, tandem_operands *op)
{
    (void)it;
    op->embed = (tandem_embed){.batch = HEADS, .rows = ROWS, .channels = CHANNELS, .entries = 3 * ROWS, .positions = 2 * ROWS};
    op->embed.table = halves(mem, 0, 1, 3 * ROWS);
    op->embed.position_table = halves(mem, PLANE, 1, 2 * ROWS);
    op->embed.id = op->embed.position = numbers(mem, ROWS);
    op->embed.id.stride_batch = op->embed.position.stride_batch = 0;
    op->embed.y = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, 1, ROWS, CHANNELS);
}

/* b has one row, and one channel in it. */
static void binary(const operation *it, tandem_mem mem, tandem_operands *op)
{
    (void)it;
    op->binary = (tandem_binary){.batch = 1, .heads = HEADS, .rows = ROWS, .channels = CHANNELS, .b_channels = 1, .scale = 0.25f,
                                 .kind = TANDEM_BINARY_MULTIPLY};
    op->binary.a = halves(mem, 0, HEADS, ROWS);
    op->binary.b = halves(mem, PLANE, 1, 1);
    op->binary.b.stride_head = op->binary.b.stride_row = 0;
    op->binary.y = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, HEADS, ROWS, CHANNELS);
}

/* Of more rows than a chunk has, by lengths below 0 and beyond. */
static void pool(const operation *it, tandem_mem mem, tandem_operands *op)
{
    (void)it;
    op->pool = (tandem_pool){.batch = ROWS, .heads = 1, .rows = 600, .channels = 48, .normalise = 1};
    op->pool.x = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, 1, 600, 48);
    op->pool.x.stride_batch = 96;
    op->pool.length = numbers(mem, 1);
    op->pool.length.stride_batch = 1;
    op->pool.y = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, 1, 1, 48);
}

/* Of rows of several chunks of channels, so by two records: the numbers of one head lie in the next one's, too. */
static void top(const operation *it, tandem_mem mem, tandem_operands *op)
{
    (void)it;
    op->top = (tandem_top){.batch = 1, .heads = 2, .rows = 1, .channels = 9000, .count = 64};
    op->top.x = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, 2, 1, 9000);
    op->top.x.stride_head = 500;
    op->top.y = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, 2, 1, 128);
}

/* Row 1 of two, in front of which there is nothing of y's that anybody reads. */
static void scatter(const operation *it, tandem_mem mem, tandem_operands *op)
{
    (void)it;
    op->scatter = (tandem_scatter){.batch = 1, .heads = 1, .rows = 1, .channels = CHANNELS, .entries = 2};
    op->scatter.x = halves(mem, 0, 1, 1);
    op->scatter.position = numbers(mem, 1);
    op->scatter.position.offset_bytes += 3 * sizeof(int32_t);
    op->scatter.y = tandem_view_dense(mem, OUT - CHANNELS * sizeof(float), TANDEM_DTYPE_F32, 1, 2, CHANNELS);
}

/* Of batches of which 1, 28 and, as more than there are count as all, 33 keys count, with a bias. */
static void attention(const operation *it, tandem_mem mem, tandem_operands *op)
{
    const uint32_t heads = CHANNELS / it->head_dim;

    op->attention = (tandem_attention){.batch = HEADS, .heads = heads, .kv_heads = heads, .q_len = ROWS, .kv_len = ROWS,
                                       .head_dim = it->head_dim, .precision = it->precision};
    if (it->precision) /* rows that share a scale are the same everywhere */
        op->attention.granularity = TANDEM_GRANULARITY_THREAD_ADA;
    op->attention.q = tandem_view_dense(mem, it->offset_bytes, it->dtype, heads, ROWS, it->head_dim);
    op->attention.k = tandem_view_dense(mem, PLANE, it->dtype, heads, ROWS, it->head_dim);
    op->attention.v = tandem_view_dense(mem, 2 * PLANE, it->dtype, heads, ROWS, it->head_dim);
    op->attention.o = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, heads, ROWS, it->head_dim);
    op->attention.length = numbers(mem, 1);
    op->attention.length.offset_bytes += 3 * sizeof(int32_t);
    op->attention.bias = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, 1, ROWS, ROWS);
    op->attention.bias.stride_batch = op->attention.bias.stride_head = 0;
}

/* Of two sequences, of which rows 1 to 27 and all from 28 on are. */
static void sequences(const operation *it, tandem_mem mem, tandem_operands *op)
{
    attention(it, mem, op);
    op->attention.batch = 2;
    op->attention.heads = op->attention.kv_heads = HEADS * (CHANNELS / it->head_dim);
    op->attention.causal = 1;
    op->attention.length.dtype = op->attention.bias.dtype = TANDEM_DTYPE_NONE;
    op->attention.q_start = op->attention.k_start =
        tandem_view_dense(mem, IDS + 3 * sizeof(int32_t), TANDEM_DTYPE_I32, 1, 1, 3);
    op->attention.q_total = op->attention.kv_total = ROWS;
    op->attention.sink = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, op->attention.heads, 1, 1);
}

/* To a cache where y is otherwise: a row at position 1, which those behind it do not follow. */
static void cache_append(const operation *it, tandem_mem mem, tandem_operands *op)
{
    const uint64_t bytes = tandem_cache_bytes(it->dtype, 2 * ROWS, it->head_dim);

    op->cache_append = (tandem_cache_append){.batch = 1, .kv_heads = HEADS, .rows = ROWS - 3, .head_dim = it->head_dim,
                                             .entries = 2 * ROWS, .format = it->dtype};
    op->cache_append.k = op->cache_append.v = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, HEADS, ROWS, it->head_dim);
    op->cache_append.position = numbers(mem, ROWS);
    op->cache_append.position.offset_bytes += 3 * sizeof(int32_t);
    op->cache_append.cache = tandem_view_dense(mem, OUT, TANDEM_DTYPE_U8, HEADS, 1, (uint32_t)bytes);
}

/* On the newest page alone, which is all that a cache of one page has; fp16's is in a pool, which a table is for. */
static void cache_attention(const operation *it, tandem_mem mem, tandem_operands *op)
{
    const bool pool = it->dtype == TANDEM_CACHE_F16;
    const uint64_t bytes = pool ? tandem_cache_pool_bytes(it->dtype, 1, 1, it->head_dim)
                                : tandem_cache_bytes(it->dtype, ROWS, it->head_dim);

    op->cache_attention = (tandem_cache_attention){.batch = 1, .heads = HEADS, .kv_heads = 1, .rows = ROWS,
                                                   .head_dim = it->head_dim, .entries = ROWS, .format = it->dtype};
    op->cache_attention.q = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, HEADS, ROWS, it->head_dim);
    op->cache_attention.position = numbers(mem, ROWS);
    op->cache_attention.cache = tandem_view_dense(mem, 2 * PLANE, TANDEM_DTYPE_U8, 1, 1, (uint32_t)bytes);
    op->cache_attention.o = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, HEADS, ROWS, it->head_dim);
    if (pool) {
        op->cache_attention.slots = op->cache_attention.pages = 1;
        op->cache_attention.table = tandem_view_dense(mem, IDS + ROWS * sizeof(int32_t), TANDEM_DTYPE_I32, 1, 1, 2);
    }
}

enum { IMAGE_ROWS = 21, IMAGE_COLUMNS = 35, PIXELS = IMAGE_ROWS * IMAGE_COLUMNS };

static tandem_view image(tandem_mem mem, uint64_t offset_bytes, uint32_t dtype, uint32_t channels)
{
    return tandem_view_dense(mem, offset_bytes, dtype, IMAGE_ROWS, IMAGE_COLUMNS, channels);
}

static void conv(const operation *it, tandem_mem mem, tandem_operands *op)
{
    (void)it;
    op->conv = (tandem_conv){.batch = 1, .height = IMAGE_ROWS, .width = IMAGE_COLUMNS, .channels = 32, .outs = 40, .size = 3};
    op->conv.x = image(mem, 0, TANDEM_DTYPE_F16, 32);
    op->conv.w = tandem_view_dense(mem, 2 * PIXELS * 32, TANDEM_DTYPE_F16, 1, 40, 288);
    op->conv.y = image(mem, OUT, TANDEM_DTYPE_F32, 40);
}

/* Every other pixel, and what is half as large: by mma.sync on each GPU. */
static void conv_coarse(const operation *it, tandem_mem mem, tandem_operands *op)
{
    const uint32_t rows = (IMAGE_ROWS + 1) / 2, columns = (IMAGE_COLUMNS + 1) / 2;

    conv(it, mem, op);
    op->conv.stride = 2, op->conv.channels = op->conv.coarse_channels = 16;
    op->conv.x = image(mem, 0, TANDEM_DTYPE_F16, 16);
    op->conv.coarse = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, rows, columns, 16);
    op->conv.y = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, rows, columns, 40);
}

/* Of step 2 with fewer queries; what is of half the size is the beginning of what is not. */
static void gather(const operation *it, tandem_mem mem, tandem_operands *op)
{
    const uint32_t rows = (IMAGE_ROWS + 1) / 2, columns = (IMAGE_COLUMNS + 1) / 2;
    tandem_gather *g = &op->gather;

    *g = it->windows;
    g->batch = 1, g->height = IMAGE_ROWS, g->width = IMAGE_COLUMNS, g->dim = 8, g->channels = 4;
    g->q = image(mem, 0, TANDEM_DTYPE_F16, 8);
    g->k = image(mem, 2 * PIXELS * 8, TANDEM_DTYPE_F16, 8);
    g->v = image(mem, 4 * PIXELS * 8, TANDEM_DTYPE_F32, 4);
    g->o = image(mem, OUT, TANDEM_DTYPE_F32, 4);
    if (g->step == 2) {
        g->q = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, rows, columns, 8);
        g->o = tandem_view_dense(mem, OUT, TANDEM_DTYPE_F32, rows, columns, 4);
    }
    if (g->factor.dtype)
        g->factor = image(mem, 4 * PIXELS * 8, TANDEM_DTYPE_F32, 3);
    if (g->k_coarse.dtype) {
        g->k_coarse = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, rows, columns, 8);
        g->v_coarse = tandem_view_dense(mem, 4 * PIXELS * 8, TANDEM_DTYPE_F32, rows, columns, 4);
    }
}

/* Tokens, which are not compared, go where there are halves that nobody reads. */
static void demodulate(const operation *it, tandem_mem mem, tandem_operands *op)
{
    (void)it;
    op->demodulate = (tandem_demodulate){.batch = 1, .height = IMAGE_ROWS, .width = IMAGE_COLUMNS};
    op->demodulate.color = image(mem, 0, TANDEM_DTYPE_F16, 3);
    op->demodulate.albedo = image(mem, 2 * PIXELS * 3, TANDEM_DTYPE_F16, 3);
    op->demodulate.light = image(mem, OUT, TANDEM_DTYPE_F32, 4);
    op->demodulate.modulation = image(mem, OUT + 4 * PIXELS * 4, TANDEM_DTYPE_F32, 3);
    op->demodulate.tokens = tandem_view_dense(mem, 2 * PLANE, TANDEM_DTYPE_F16, (IMAGE_ROWS + 1) / 2, (IMAGE_COLUMNS + 1) / 2, 48);
}

static void reproject(const operation *it, tandem_mem mem, tandem_operands *op)
{
    (void)it;
    op->reproject = (tandem_reproject){.batch = 1, .height = IMAGE_ROWS, .width = IMAGE_COLUMNS};
    op->reproject.history = image(mem, 0, TANDEM_DTYPE_F32, 4);
    op->reproject.motion = image(mem, 4 * PIXELS * 4, TANDEM_DTYPE_F16, 2);
    op->reproject.o = image(mem, OUT, TANDEM_DTYPE_F32, 4);
}

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
    number[ROWS] = number[ROWS + 1] = 0; /* a pool's first slot, and its first page */
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
    if (!what->elements) /* a cache: pages that were never written hold no numbers that codes could be made of */
        memset((char *)host + OUT, 0, 4 * PLANE);
    what->make(what, mem, &job.op);
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
    {.number = TANDEM_OPERATION_NORM, .make = norm, .elements = PLANE},
    {.number = TANDEM_OPERATION_NORM, .make = norm, .elements = PLANE / 2, .dtype = TANDEM_DTYPE_F16},
    {.number = TANDEM_OPERATION_NORM, .make = norm, .elements = PLANE / 2, .dtype = TANDEM_DTYPE_BF16},
    {.number = TANDEM_OPERATION_NORM, .make = norm_line, .elements = PLANE / 2, .dtype = TANDEM_DTYPE_F16},
    {.number = TANDEM_OPERATION_NORM, .make = norm_line, .elements = PLANE / 2, .dtype = TANDEM_DTYPE_BF16},
    {.number = TANDEM_OPERATION_EMBED, .make = embed, .elements = PLANE},
    {.number = TANDEM_OPERATION_BINARY, .make = binary, .elements = PLANE},
    {.number = TANDEM_OPERATION_POOL, .make = pool, .elements = ROWS * 48},
    {.number = TANDEM_OPERATION_SCATTER, .make = scatter, .elements = CHANNELS},
    {.number = TANDEM_OPERATION_CONV, .make = conv, .elements = PIXELS * 40, .off = 2e-3f},
    {.number = TANDEM_OPERATION_CONV, .make = conv_coarse, .elements = (IMAGE_ROWS + 1) / 2 * ((IMAGE_COLUMNS + 1) / 2) * 40, .off = 2e-3f},
#define GATHER(count, ...) \
    {.number = TANDEM_OPERATION_GATHER, .make = gather, .elements = (count) * 4, .off = 1e-4f, .windows = {__VA_ARGS__}}
    GATHER(PIXELS, .radius = 2),
    GATHER(PIXELS, .radius = 2, .coarse_radius = 1, .k_coarse.dtype = TANDEM_DTYPE_F16),
    GATHER(PIXELS, .radius = 1, .factor.dtype = TANDEM_DTYPE_F32),
    GATHER(PIXELS, .radius = 3),
    GATHER((IMAGE_ROWS + 1) / 2 * ((IMAGE_COLUMNS + 1) / 2), .radius = 2, .step = 2),
    {.number = TANDEM_OPERATION_DEMODULATE, .make = demodulate, .elements = PIXELS * 7, .off = 1e-4f},
    {.number = TANDEM_OPERATION_REPROJECT, .make = reproject, .elements = PIXELS * 4, .off = 1e-4f},
    {.number = TANDEM_OPERATION_TOP, .make = top, .elements = 2 * 128},
    {.number = TANDEM_OPERATION_ATTENTION, .make = attention, .elements = PLANE, .off = 4e-3f, .dtype = TANDEM_DTYPE_F16, .head_dim = 64},
    {.number = TANDEM_OPERATION_ATTENTION, .make = attention, .elements = PLANE, .off = 4e-2f, .dtype = TANDEM_DTYPE_F16, .head_dim = 64,
     .precision = TANDEM_PRECISION_8B},
    {.number = TANDEM_OPERATION_ATTENTION, .make = sequences, .elements = PLANE, .off = 4e-3f, .dtype = TANDEM_DTYPE_F16, .head_dim = 64},
    {.number = TANDEM_OPERATION_CACHE_APPEND, .make = cache_append, .dtype = TANDEM_CACHE_K8V8, .head_dim = 64},
#define CACHE(format, dim) \
    {.number = TANDEM_OPERATION_CACHE_ATTENTION, .make = cache_attention, .elements = HEADS * ROWS * dim, .off = 4e-3f, .dtype = format, .head_dim = dim}
    CACHE(TANDEM_CACHE_F16, 64),
    CACHE(TANDEM_CACHE_F16, 128),
    CACHE(TANDEM_CACHE_K8V8, 64),
    CACHE(TANDEM_CACHE_K8V8, 128),
    CACHE(TANDEM_CACHE_K4V8, 64),
    CACHE(TANDEM_CACHE_K4V8, 128),
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static void compute_on_cpu(const operation *what, float y[PLANE])
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .cpu_threads = 2};

    assert_true(compute(&desc, what, 0, y));
    for (size_t i = 0; i < PLANE && what->elements; i++) /* caches are no floats */
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
                assert_true(way % 3 == 1 && !expects_gpu());
        }
    }
}

/* --- Each kernel once, as sanitizers need it --- */

static te_cases each;

static void each_case(const operation *what, td_target target)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CUDA};
    const td_operation *found = td_operation_find(what->number);
    static float y[PLANE], other[PLANE];
    td_plan plan = {0};
    tandem_operands op;
    char why[300] = "";

    what->make(what, 1, &op);
    if (found->plan(&op, &target, &plan, why, sizeof why))
        fail_msg("%s", why);
    if (te_is_mine(&each, &plan, false)) {
        print_message("    %s\n", plan.records[0].kernel->entry);
        compute_on_cpu(what, y);
        memset(other, 0, sizeof other);
        assert_true(compute(&desc, what, 0, other));
        compare(what, other, y, what->off);
    }
    td_plan_free(&plan);
}

/* Attention of each head dim, at addresses that wide loads can read and at others. */
static void each_kernel(td_target target)
{
    static const uint32_t dims[] = {32, 64, 96, 128, 256};

    for (size_t n = 0; n < OPERATIONS; n++)
        each_case(&operations[n], target);
    for (uint32_t n = 0; n < 4 * 5; n++) {
        operation it = {.number = TANDEM_OPERATION_ATTENTION, .make = attention, .head_dim = dims[n / 4],
                        .dtype = n % 2 ? TANDEM_DTYPE_BF16 : TANDEM_DTYPE_F16, .off = n % 2 ? 1e-2f : 4e-3f, .offset_bytes = n % 4 / 2 * 2};

        it.elements = HEADS * ROWS * (CHANNELS / it.head_dim * it.head_dim);
        each_case(&it, target);
        for (it.precision = TANDEM_PRECISION_8B; n % 4 == 0 && it.precision <= TANDEM_PRECISION_4B; it.precision++) {
            it.off = it.precision == TANDEM_PRECISION_8B ? 4e-2f : 0.2f;
            each_case(&it, target);
        }
    }
}

static void test_each(void **state)
{
    td_cu_info gpu;
    char why[300] = "";

    (void)state;
    if (td_cu_device_query(NULL, &gpu, why, sizeof why))
        fail_msg("%s", why);
    te_begin(&each, gpu.sm);
    each_kernel(td_exec_target(&gpu, true));
    te_end(&each, TE_OPERATIONS);
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
    const struct CMUnitTest kernel_by_kernel[] = {cmocka_unit_test(test_each)};
    const bool each_only = argc > 1 && !strcmp(argv[1], "--each"), cases_only = argc > 1 && !strcmp(argv[1], "--cases");

    if ((each_only || cases_only) && !te_arguments(&each, argc, argv))
        return 2;
    if (cases_only)
        return te_check_cases(&each, TE_OPERATIONS, each_kernel);
    if (each_only)
        return cmocka_run_group_tests(kernel_by_kernel, NULL, NULL);
    if (!begin_tests("tandemd"))
        return 1;
    return end_tests(cmocka_run_group_tests(tests, set_up_daemon, tear_down_daemon));
}
