/* Attention of pixels over their neighbours as an operation: tandem_gather in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/gather/gather.h"

enum { Q, K, V, FACTOR, K_COARSE, V_COARSE, BIAS, O, K_BEFORE, V_BEFORE, VIEWS };
#define AT(member) offsetof(td_params_gather, member)

static uint32_t half(uint32_t length)
{
    return length / 2 + length % 2;
}

/* Of a query, a side: in k, and in k_coarse. */
static uint32_t taps_of(const tandem_gather *g)
{
    return g->step == 2 ? 2 * g->radius : 2 * g->radius + 1;
}

static uint32_t coarse_taps_of(const tandem_gather *g)
{
    return g->k_coarse.dtype == TANDEM_DTYPE_NONE ? 0 : 2 * g->coarse_radius + 1;
}

/* All keys of a query. */
static uint32_t keys_of(const tandem_gather *g)
{
    return taps_of(g) * taps_of(g) + coarse_taps_of(g) * coarse_taps_of(g) + (g->k_before.dtype != TANDEM_DTYPE_NONE);
}

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const tandem_gather *g = &op->gather;
    const bool smaller = view == K_COARSE || view == V_COARSE || ((view == Q || view == O) && g->step == 2);

    shape[0] = g->batch;
    shape[1] = smaller ? half(g->height) : g->height;
    shape[2] = smaller ? half(g->width) : g->width;
    shape[3] = view == V || view == V_COARSE || view == V_BEFORE ? 4 : view == FACTOR ? 3 : view == O ? g->channels : g->dim;
    if (view == BIAS) {
        shape[0] = shape[1] = shape[2] = 1;
        shape[3] = keys_of(g);
    }
}

static tandem_status check_numbers(const tandem_gather *g, char *why, size_t why_bytes)
{
    tandem_status status = td_check_image("gather", g->batch, g->height, g->width, why, why_bytes);

    if (status == TANDEM_OK && g->dim != 8 && g->dim != 16)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "gather.dim is %" PRIu32 "; it must be 8 or 16", g->dim);
    if (status == TANDEM_OK && g->step > 2)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "gather.step is %" PRIu32 "; it must be 1 or 2", g->step);
    if (status == TANDEM_OK && (g->radius > TD_GATHER_RADIUS || (g->step == 2 && !g->radius)))
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "gather.radius is %" PRIu32 "; it must be %d to %u", g->radius, g->step == 2,
                         TD_GATHER_RADIUS);
    if (status == TANDEM_OK && g->coarse_radius > 1)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "gather.coarse_radius is %" PRIu32 "; it must be 0 or 1", g->coarse_radius);
    if (status == TANDEM_OK && g->channels != 3 && g->channels != 4)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "gather.channels is %" PRIu32 "; it must be 3 or 4", g->channels);
    if (status == TANDEM_OK && !g->k_coarse.dtype != !g->v_coarse.dtype)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "gather.k_coarse and v_coarse must both be there, or neither");
    if (status == TANDEM_OK && !g->k_before.dtype != !g->v_before.dtype)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "gather.k_before and v_before must both be there, or neither");
    if (status == TANDEM_OK && g->k_before.dtype && g->step == 2)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "gather.step is 2, and k_before is there: it goes with 1");
    if (status == TANDEM_OK && g->k_coarse.dtype && g->step == 2)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "gather.step is 2, and k_coarse is there: it goes with 1");
    if (status == TANDEM_OK && (g->reserved[0] || g->reserved[1]))
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "gather.reserved is not 0");
    return status;
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_gather.layout;
    tandem_status status = check_numbers(&op->gather, why, why_bytes);

    for (uint32_t i = 0; i < VIEWS && status == TANDEM_OK; i++) {
        const bool is_key = i == Q || i == K || i == K_COARSE || i == K_BEFORE, is_value = i == V || i == V_COARSE || i == V_BEFORE;
        const int64_t multiple = is_key ? 8 : 4;
        const tandem_view *view = td_view_in(layout, op, i);
        status = td_check_view(layout, op, i, TD_DTYPES(is_key ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_F32), why, why_bytes);
        if (status == TANDEM_OK && (is_key || is_value) && td_view_is_there(layout, op, i) &&
            (view->offset_bytes % 16 || view->stride_batch % multiple || view->stride_head % multiple || view->stride_row % multiple))
            status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "gather.%s: offset_bytes must be a multiple of 16, strides of %d",
                             layout->views[i].name, (int)multiple);
    }
    return status;
}

/* Bytes in shared memory: keys, values, of both. */
static uint32_t shared_bytes(const td_params_gather *p)
{
    const uint32_t pixel = p->dim * 2 + 16;
    const uint32_t fine = TD_GATHER_SPAN(TD_GATHER_WIDTH, p->step, p->taps) * TD_GATHER_SPAN(TD_GATHER_HEIGHT, p->step, p->taps);
    const uint32_t coarse = TD_GATHER_COARSE_SPAN(TD_GATHER_WIDTH, p->coarse_radius) * TD_GATHER_COARSE_SPAN(TD_GATHER_HEIGHT, p->coarse_radius);

    return pixel * (fine + (p->coarse_taps ? coarse : 0));
}

#define KERNEL(symbol) {.name = "gather", .entry = #symbol, .cpu = td_cpu_gather, .cpu_local_bytes = TD_GATHER_CPU_LOCAL_BYTES}

/* A kernel for such windows, or the one for all. */
static const td_kernel *kernel_for(const tandem_gather *g, const td_params_gather *p, uint32_t *threads)
{
#define WINDOWS(symbol, ...) {KERNEL(symbol), __VA_ARGS__},
    static const struct {
        td_kernel kernel;
        uint32_t taps, coarse_taps, step, queries;
        bool may_have_before, has_factor;
    } kernels[] = {TD_GATHER_KERNELS(WINDOWS)};
    static const td_kernel any = KERNEL(gather);

    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (p->dim == 8 && p->taps == kernels[i].taps && p->coarse_taps == kernels[i].coarse_taps && p->step == kernels[i].step &&
            (kernels[i].may_have_before || !g->k_before.dtype) && kernels[i].has_factor == (g->factor.dtype != TANDEM_DTYPE_NONE)) {
            *threads = TD_GATHER_WIDTH * TD_GATHER_HEIGHT / kernels[i].queries;
            return &kernels[i].kernel;
        }
    *threads = TD_GATHER_WIDTH * TD_GATHER_HEIGHT;
    return &any;
}

static tandem_status plan_gather(const tandem_operands *op, const td_target *target, td_plan *plan, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_gather.layout;
    const tandem_gather *g = &op->gather;
    td_builder at;
    uint32_t of[4];
    const tandem_status status = td_build_operation(&at, plan, target, layout, op, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    shape(op, O, of);
    const td_output o = td_build_output(&at, target, layout, op, O);
    const td_params_gather params = {.q_at = td_strides_of(&g->q),
                                     .k_at = td_strides_of(&g->k),
                                     .v_at = td_strides_of(&g->v),
                                     .k_coarse_at = td_strides_of(&g->k_coarse),
                                     .v_coarse_at = td_strides_of(&g->v_coarse),
                                     .k_before_at = td_strides_of(&g->k_before),
                                     .v_before_at = td_strides_of(&g->v_before),
                                     .factor_at = td_strides_of(&g->factor),
                                     .o_at = o.at,
                                     .height = g->height,
                                     .width = g->width,
                                     .out_height = of[1],
                                     .out_width = of[2],
                                     .columns = (of[2] + TD_GATHER_WIDTH - 1) / TD_GATHER_WIDTH,
                                     .rows = (of[1] + TD_GATHER_HEIGHT - 1) / TD_GATHER_HEIGHT,
                                     .dim = g->dim,
                                     .taps = taps_of(g),
                                     .before = g->step == 2 ? g->radius - 1 : g->radius,
                                     .coarse_radius = g->coarse_radius,
                                     .coarse_taps = coarse_taps_of(g),
                                     .step = g->step == 2 ? 2 : 1,
                                     .channels = g->channels};
    const unsigned __int128 grid = (unsigned __int128)g->batch * params.rows * params.columns;
    uint32_t threads;
    const td_kernel *kernel = kernel_for(g, &params, &threads);
    td_record *record = td_build_record(&at, kernel, grid, &params, sizeof params);
    record->block[0] = at.is_gpu ? threads : 1;
    record->shared_bytes = at.is_gpu ? shared_bytes(&params) : 0;
    record->flags = at.overlaps ? TD_RECORD_PDL : 0;
    td_build_view(&at, record, TD_READ, AT(q), Q);
    td_build_view(&at, record, TD_READ, AT(k), K);
    td_build_view(&at, record, TD_READ, AT(v), V);
    td_build_view(&at, record, TD_READ, AT(factor), FACTOR);
    td_build_view(&at, record, TD_READ, AT(k_coarse), K_COARSE);
    td_build_view(&at, record, TD_READ, AT(v_coarse), V_COARSE);
    td_build_view(&at, record, TD_READ, AT(k_before), K_BEFORE);
    td_build_view(&at, record, TD_READ, AT(v_before), V_BEFORE);
    td_build_view(&at, record, TD_READ, AT(bias), BIAS);
    td_build_write(&at, record, AT(o), &o);
    td_build_outputs(&at, target, layout, op, &o, 1);
    return td_build_end_sized(&at, "gather.batch, height, width", (const uint32_t[3]){g->batch, g->height, g->width}, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const tandem_gather *g = &op->gather;
    uint32_t of[4];

    (void)position;
    shape(op, O, of);
    const double queries = (double)of[0] * of[1] * of[2], keys = keys_of(g);
    return (td_cost){2e-6 * queries * keys * (g->dim + 4), 1e-6 * queries * keys * (4 * g->dim + 60)};
}

#define VIEW(member, is_written, is_optional) {#member, offsetof(tandem_gather, member), is_written, is_optional}
#define NUMBER(member) {#member, offsetof(tandem_gather, member), false}
const td_operation td_operation_gather = {
    .layout = {.name = "gather",
               .number = TANDEM_OPERATION_GATHER,
               .bytes = sizeof(tandem_gather),
               .version = 2,
               .older = (const uint32_t[]){offsetof(tandem_gather, k_before)},
               .view_count = VIEWS,
               .views = {[Q] = VIEW(q, false, false),
                         [K] = VIEW(k, false, false),
                         [V] = VIEW(v, false, false),
                         [FACTOR] = VIEW(factor, false, true),
                         [K_COARSE] = VIEW(k_coarse, false, true),
                         [V_COARSE] = VIEW(v_coarse, false, true),
                         [BIAS] = VIEW(bias, false, true),
                         [O] = VIEW(o, true, false),
                         [K_BEFORE] = VIEW(k_before, false, true),
                         [V_BEFORE] = VIEW(v_before, false, true)},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(height), NUMBER(width), NUMBER(dim), NUMBER(radius), NUMBER(coarse_radius), NUMBER(step),
               NUMBER(channels)},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem gather"},
    .check = check,
    .plan = plan_gather,
    .cost = cost,
};
