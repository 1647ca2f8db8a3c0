/* `tandem bench linear`: how long linear layers take, beside cuBLASLt's in the same process.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Contenders are measured in turn, round after round. Several calls are one submit. Layers of few rows read their weights from
 * memory: each call has other weights, and all of them together do not fit into the L2; of other layers all calls are alike.
 * y is poisoned before the last call, of which some elements are compared with float64.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "engine_plugin/tool/nvml.h"
#include "interop/cu/driver.h"
#include "kernels/attention/attention.h"
#include "kernels/blocks.h"
#include "kernels/builder.h"
#include "kernels/cpu/cpu.h"
#include "kernels/linear/linear.h"
#include "kernels/tiles.h"
#include "tests/bench/bench.h"
#include "tests/bench/cublas.h"

enum { MOST_ROWS = 16, MOST_CALLS = 20, FEW_ROWS = 64, CHECKED = 48, LIMIT_S = 20, OWN_ROWS = 1024 };
enum { X = TD_LINEAR_X, W = TD_LINEAR_W, SCALE = TD_LINEAR_SCALE, Y = TD_LINEAR_Y, VIEWS = TD_LINEAR_VIEWS };
static const uint64_t copied_bytes = 1u << 30;

typedef struct layer {
    uint32_t rows, ins, outs;
    td_linear_weights weights;
    double least_stream, least_inline; /* of cuBLASLt's rate; 0: not asked for */
} layer;

#define TILES(blocks) (td_linear_weights)(TD_LINEAR_##blocks - TD_LINEAR_Q8_0 + TD_LINEAR_TILES)
static const layer layers[] = {
    {4096, 4096, 4096, TD_LINEAR_DENSE, 0.70, 0.45},
    {512, 1024, 1024, TD_LINEAR_DENSE, 0.70, 0.45},
    {1024, 1024, 1024, TD_LINEAR_DENSE, 0, 0},
    {2048, 2048, 2048, TD_LINEAR_DENSE, 0, 0},
    {8192, 4096, 4096, TD_LINEAR_DENSE, 0, 0},
    {14400, 128, 384, TD_LINEAR_DENSE, 0, 0},
    {14400, 384, 128, TD_LINEAR_DENSE, 0, 0},
    {128, 384, 1536, TD_LINEAR_DENSE, 0, 0},
    {128, 1536, 384, TD_LINEAR_DENSE, 0, 0},
    {128, 4096, 4096, TD_LINEAR_DENSE, 0, 0},
    {256, 4096, 4096, TD_LINEAR_DENSE, 0, 0},
    {1, 4096, 4096, TD_LINEAR_DENSE, 0, 0},
    {4, 4096, 4096, TD_LINEAR_DENSE, 0, 0},
    {8, 4096, 4096, TD_LINEAR_DENSE, 0, 0},
    {16, 4096, 4096, TD_LINEAR_DENSE, 0, 0},
    {32, 4096, 4096, TD_LINEAR_DENSE, 0, 0},
    {64, 4096, 4096, TD_LINEAR_DENSE, 0, 0},
    {1, 4096, 14336, TD_LINEAR_DENSE, 0, 0},
    {64, 4096, 14336, TD_LINEAR_DENSE, 0, 0},
    {1, 4096, 14336, TD_LINEAR_INT8, 0, 0},
    {1, 4096, 14336, TD_LINEAR_Q8_0, 0, 0},
    {1, 4096, 14336, TD_LINEAR_Q4_K, 0, 0},
    {32, 4096, 14336, TD_LINEAR_Q8_0, 0, 0},
    {1, 4096, 14336, TILES(Q8_0), 0, 0},
    {1, 4096, 14336, TILES(Q4_0), 0, 0},
    {1, 4096, 14336, TILES(Q4_1), 0, 0},
    {1, 4096, 14336, TILES(Q4_K), 0, 0},
    {1, 4096, 14336, TILES(Q5_K), 0, 0},
    {1, 4096, 14336, TILES(Q6_K), 0, 0},
    {1, 4096, 4096, TILES(Q8_0), 0, 0},
    {1, 4096, 4096, TILES(Q4_K), 0, 0},
    {1, 14336, 4096, TILES(Q8_0), 0, 0},
    {4, 4096, 14336, TILES(Q8_0), 0, 0},
    {8, 4096, 14336, TILES(Q8_0), 0, 0},
    {16, 4096, 14336, TILES(Q8_0), 0, 0},
    {16, 4096, 14336, TILES(Q4_K), 0, 0},
    {32, 4096, 14336, TILES(Q8_0), 0, 0},
    {32, 4096, 14336, TILES(Q4_K), 0, 0},
    {64, 4096, 14336, TILES(Q8_0), 0, 0},
    {64, 4096, 14336, TILES(Q4_K), 0, 0},
    {512, 4096, 4096, TD_LINEAR_Q8_0, 0, 0},
    {512, 4096, 4096, TD_LINEAR_Q4_K, 0, 0},
};
enum { LAYERS = sizeof layers / sizeof *layers, QUICK_LAYERS = 2 };
static const char *const weight_names[TD_LINEAR_WEIGHTS] = {
    "f16",        "int8",       "q8_0",       "q4_0",       "q4_1",       "q4_k",      "q6_k",
    "q5_k",       "q8_0 tiles", "q4_0 tiles", "q4_1 tiles", "q4_k tiles", "q6_k tiles", "q5_k tiles"};

/* Our plan for streams, or for command buffers; one kernel's form; or the peer. */
typedef enum contender { STREAM, INLINE, FORM, CUBLAS } contender;
static const char *const contender_names[] = {"stream", "inline", "form", "cublaslt"};

typedef struct row {
    contender kind;
    char kernel[48], why[200];
    bench_series us;
    const td_plan *plan; /* of `calls` calls */
    uint32_t slot;
    double error; /* the largest part of its bound that a checked element is off */
} row;

typedef struct bench {
    const char *json, *only; /* only: a part of the names of layers */
    bool quick, strict, forms;
    uint32_t rounds;
    double run_us;
    td_cu_device *device;
    td_stream *stream;
    bench_cublas *cublas;
    char no_cublas[256];
    bench_nvml *nvml;
    double copy_tb; /* a second, read and written */
    void *cuda;
    int (*copy)(uint64_t, uint64_t, size_t);
    int (*memset_d32)(uint64_t, unsigned, size_t);
    td_cu_mem x, w, y, scale;
    void *host_x, *host_w;
    float *host_scale;
    bench_targets targets;
} bench;

static uint64_t weight_bytes(const layer *l)
{
    const td_dtype of = td_dtype_of(td_linear_weight_dtype(l->weights, TANDEM_DTYPE_F16));
    return (uint64_t)l->outs * l->ins / of.elements * of.bytes;
}

static const char *layer_name(const layer *l, char text[64])
{
    snprintf(text, 64, "%u x %u x %u %s", (unsigned)l->rows, (unsigned)l->outs, (unsigned)l->ins, weight_names[l->weights]);
    return text;
}

static double tflops(const layer *l, double us)
{
    return 2e-6 * l->rows * l->ins * l->outs / us;
}

static double terabytes(const layer *l, double us)
{
    return 1e-6 * ((double)weight_bytes(l) + 2.0 * l->rows * (l->ins + l->outs)) / us;
}

static tandem_operands op_of(const layer *l)
{
    const uint32_t dtype = td_linear_weight_dtype(l->weights, TANDEM_DTYPE_F16);
    tandem_operands op;
    memset(&op, 0, sizeof op);
    op.linear.x = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, l->rows, l->ins);
    op.linear.w = tandem_view_dense(0, 0, dtype, 1, l->outs, l->ins);
    op.linear.y = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, l->rows, l->outs);
    if (l->weights == TD_LINEAR_INT8)
        op.linear.scale = tandem_view_dense(0, 0, TANDEM_DTYPE_F32, 1, 1, l->outs);
    op.linear.rows = l->rows;
    op.linear.ins = l->ins;
    op.linear.outs = l->outs;
    return op;
}

/* --- Data --- */

static bool reserve(bench *b, td_cu_mem *mem, uint64_t bytes, char *why, size_t why_bytes)
{
    if (mem->kind)
        td_cu_mem_free(b->device, mem);
    return td_cu_mem_alloc(b->device, bytes, mem, why, why_bytes) == TANDEM_OK;
}

/* Random ones for so many rows, which the others repeat. */
static void make_weights(const layer *l, void *to, uint64_t *state)
{
    const uint32_t dtype = td_linear_weight_dtype(td_linear_blocks_of(l->weights), TANDEM_DTYPE_F16), own_rows = l->outs < OWN_ROWS ? l->outs : OWN_ROWS;
    const td_dtype of = td_dtype_of(dtype);
    const uint64_t all = weight_bytes(l), own = all / l->outs * own_rows;
    const float scale = 1 / sqrtf((float)l->ins);
    float x[TD_MAX_BLOCK];
    if (l->weights == TD_LINEAR_INT8) {
        for (uint64_t i = 0; i < own; i++)
            ((uint8_t *)to)[i] = (uint8_t)bench_random(state);
    } else if (l->weights == TD_LINEAR_DENSE) {
        for (uint64_t i = 0; i < own / 2; i++)
            ((uint16_t *)to)[i] = td_to_f16(scale * (float)bench_normal(state));
    } else {
        for (uint64_t at = 0; at < own; at += of.bytes) {
            for (uint32_t i = 0; i < of.elements; i++)
                x[i] = scale * (float)bench_normal(state);
            td_block_encode(dtype, (uint8_t *)to + at, x);
        }
    }
    for (uint64_t at = own; at < all; at++)
        ((uint8_t *)to)[at] = ((uint8_t *)to)[at - own];
}

/* Their tiles, which the caller frees; NULL where there is no memory. */
static void *make_tiles(const layer *l, const uint8_t *blocks)
{
    uint8_t *tiles = malloc(weight_bytes(l));
    if (tiles)
        td_tiles_pack_matrix(td_linear_weight_dtype(l->weights, TANDEM_DTYPE_F16), blocks, l->outs, l->ins, tiles);
    return tiles;
}

/* One set of weights for each call of a submit: the same ones, elsewhere. */
static bool fill(bench *b, const layer *l, uint32_t sets, char *why, size_t why_bytes)
{
    uint64_t state = 7 + l->rows + l->ins;
    free(b->host_x);
    free(b->host_w);
    free(b->host_scale);
    b->host_x = malloc((size_t)l->rows * l->ins * 2);
    b->host_w = malloc(weight_bytes(l) + TD_MAX_BLOCK);
    b->host_scale = malloc(l->outs * sizeof *b->host_scale);
    if (!b->host_x || !b->host_w || !b->host_scale)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "out of memory"), false;
    for (uint64_t i = 0; i < (uint64_t)l->rows * l->ins; i++)
        ((uint16_t *)b->host_x)[i] = td_to_f16((float)bench_normal(&state));
    for (uint32_t i = 0; i < l->outs; i++)
        b->host_scale[i] = 1 / (64 * sqrtf((float)l->ins));
    make_weights(l, b->host_w, &state);
    void *tiles = l->weights >= TD_LINEAR_TILES ? make_tiles(l, b->host_w) : NULL;
    bool ok = reserve(b, &b->x, (uint64_t)l->rows * l->ins * 2, why, why_bytes) &&
              reserve(b, &b->w, td_align_up(weight_bytes(l), 256) * sets, why, why_bytes) &&
              reserve(b, &b->scale, l->outs * sizeof *b->host_scale, why, why_bytes) &&
              reserve(b, &b->y, (uint64_t)l->rows * l->outs * 2, why, why_bytes) &&
              td_cu_copy_to_device(b->device, b->x.address, b->host_x, (uint64_t)l->rows * l->ins * 2) == TANDEM_OK &&
              td_cu_copy_to_device(b->device, b->scale.address, b->host_scale, l->outs * sizeof *b->host_scale) == TANDEM_OK;
    for (uint32_t i = 0; i < sets && ok; i++) {
        const uint64_t to = b->w.address + i * td_align_up(weight_bytes(l), 256);
        ok = i ? b->copy(to, b->w.address, weight_bytes(l)) == 0
               : td_cu_copy_to_device(b->device, to, tiles ? tiles : b->host_w, weight_bytes(l)) == TANDEM_OK;
    }
    free(tiles);
    if (!ok && !why[0])
        td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "the data could not be brought to the device");
    return ok;
}

/* Some elements of y, after a single call on poison, against float64. */
static bool check(bench *b, const layer *l, row *it)
{
    const tandem_operands op = op_of(l);
    td_params_linear p = td_linear_params(&op.linear);
    p.weights = (uint8_t)td_linear_blocks_of(l->weights);
    p.x = b->host_x;
    p.w = b->host_w;
    p.scale = l->weights == TD_LINEAR_INT8 ? b->host_scale : NULL;
    uint64_t state = 3;
    for (uint32_t i = 0; i < CHECKED; i++) {
        const uint32_t r = (uint32_t)(bench_random(&state) % l->rows), c = (uint32_t)(bench_random(&state) % l->outs);
        double want, bound;
        uint16_t got;
        if (td_cu_copy_to_host(b->device, &got, b->y.address + ((uint64_t)r * l->outs + c) * 2, 2) != TANDEM_OK) {
            td_fail(it->why, sizeof it->why, TANDEM_ERROR_DEVICE, "y could not be read");
            return false;
        }
        td_linear_reference(&p, p.rows <= TD_LINEAR_SKINNY_MOST ? TD_LINEAR_SCALED : TD_LINEAR_ROUNDED, r, c, &want, &bound);
        const double off = fabs((double)td_from_f16(got) - want) / bound;
        it->error = off > it->error ? off : it->error;
        if (!(off <= 1)) {
            td_fail(it->why, sizeof it->why, TANDEM_ERROR_DEVICE, "y[%u][%u] is %g, not %g to %g", (unsigned)r, (unsigned)c,
                    (double)td_from_f16(got), want, bound);
            return false;
        }
    }
    return true;
}

/* --- Runs --- */

static bool run_plan(bench *b, row *it, const uint64_t *views, uint64_t scratch, double *us)
{
    const td_stream_submit submit = {.plan = it->plan, .views = views, .scratch = scratch, .slot = it->slot, .label = "bench"};
    uint64_t sequence = 0, begin_ns = 0, end_ns = 0;
    bool signalled;
    if (td_stream_enqueue(b->stream, &submit, &sequence, &signalled, it->why, sizeof it->why) != TANDEM_OK)
        return false;
    const uint64_t begin = td_now_ns();
    while (td_stream_completed(b->stream) < sequence) {
        if (td_now_ns() - begin > LIMIT_S * 1000000000ull || td_stream_status(b->stream, it->why, sizeof it->why) != TANDEM_OK) {
            if (!it->why[0])
                td_fail(it->why, sizeof it->why, TANDEM_ERROR_BUSY, "not finished after %d s", LIMIT_S);
            return false;
        }
        bench_sleep_ns(20000);
    }
    if (!td_stream_times(b->stream, sequence, &begin_ns, &end_ns)) {
        td_fail(it->why, sizeof it->why, TANDEM_ERROR_DEVICE, "the GPU left no times");
        return false;
    }
    *us = 1e-3 * (double)(end_ns - begin_ns);
    return true;
}

static bool run_row(bench *b, const layer *l, row *it, double *us)
{
    if (it->kind == CUBLAS)
        return bench_cublas_run(b->cublas, us, it->why, sizeof it->why);
    const uint64_t views[VIEWS] = {[X] = b->x.address, [W] = b->w.address, [Y] = b->y.address,
                                   [SCALE] = l->weights == TD_LINEAR_INT8 ? b->scale.address : 0};
    return run_plan(b, it, views, 0, us);
}

/* As many calls as records, each with the next set of weights, which nobody writes, as those of models. */
static bool repeat(const layer *l, td_target target, uint32_t form, row *it, uint32_t calls)
{
    const tandem_operands op = op_of(l);
    td_plan plan = {0}, *one = &plan, *all = td_plan_create();
    bool ok = all != NULL;
    it->plan = all;
    target.constant_views = 1u << W;
    if (ok && td_operation_linear.check(&op, it->why, sizeof it->why) != TANDEM_OK)
        ok = false;
    if (ok && (form == UINT32_MAX ? td_operation_linear.plan(&op, &target, one, it->why, sizeof it->why)
                                  : td_linear_plan_form(&op, &target, form, one, it->why, sizeof it->why)) != TANDEM_OK)
        ok = false;
    for (uint32_t i = 0; i < calls && ok; i++) {
        td_record *r = td_plan_append(all, &one->records[0]);
        if (!r)
            ok = td_fail(it->why, sizeof it->why, TANDEM_ERROR_NOMEM, "no memory for a plan") == TANDEM_OK;
        for (uint32_t j = 0; r && j < r->reloc_count; j++)
            if (r->relocs[j].base == TD_BASE_VIEW && r->relocs[j].view == W)
                r->relocs[j].addend += l->rows <= FEW_ROWS ? i * td_align_up(weight_bytes(l), 256) : 0;
    }
    if (ok) {
        snprintf(it->kernel, sizeof it->kernel, "%s", one->records[0].kernel->name);
        td_plan_barriers(all);
    }
    td_plan_free(one);
    return ok;
}

static uint32_t make_rows(bench *b, const layer *l, uint32_t calls, row *rows)
{
    td_target stream = td_exec_target(td_cu_device_info(b->device), true), buffer = td_exec_target(td_cu_device_info(b->device), false);
    uint32_t count = 0;
    for (int kind = STREAM; kind <= INLINE; kind++, count++) {
        rows[count] = (row){.kind = (contender)kind, .slot = count};
        repeat(l, kind == STREAM ? stream : buffer, UINT32_MAX, &rows[count], calls);
    }
    for (uint32_t form = 0; b->forms && td_linear_form(form) && count < MOST_ROWS - 1; form++) {
        rows[count] = (row){.kind = FORM, .slot = count};
        if (repeat(l, stream, form, &rows[count], calls))
            count++;
        else
            td_plan_drop(&rows[count].plan);
    }
    if (b->cublas) {
        bench_cublas_call list[MOST_CALLS];
        row *it = &rows[count++];
        *it = (row){.kind = CUBLAS, .kernel = "cublaslt"};
        /* Weights that are no fp16 it would multiply as fp16: other bytes than ours, so it has a layer of its own. */
        for (uint32_t i = 0; i < calls; i++)
            list[i] = (bench_cublas_call){b->x.address,
                                          b->w.address + (l->rows <= FEW_ROWS ? i * td_align_up(weight_bytes(l), 256) : 0), b->y.address};
        if (l->weights)
            td_fail(it->why, sizeof it->why, TANDEM_ERROR_UNSUPPORTED, "it has no such weights");
        else
            bench_cublas_record(b->cublas, l->rows, l->ins, l->outs, list, calls, it->why, sizeof it->why);
    }
    return count;
}

static void measure(bench *b, const layer *l, row *rows, uint32_t count, uint32_t calls)
{
    double us = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!rows[i].why[0] && (b->memset_d32(b->y.address, 0xffffffffu, (size_t)l->rows * l->outs / 2) || !run_row(b, l, &rows[i], &us) ||
                                !check(b, l, &rows[i])) && !rows[i].why[0])
            td_fail(rows[i].why, sizeof rows[i].why, TANDEM_ERROR_DEVICE, "y could not be poisoned");
    for (uint32_t round = 0; round < b->rounds; round++)
        for (uint32_t i = 0; i < count; i++)
            for (double spent = 0; !rows[i].why[0] && spent < b->run_us; spent += us) {
                if (!run_row(b, l, &rows[i], &us))
                    break;
                if (round)
                    bench_add(&rows[i].us, us / calls);
            }
}

/* --- Results --- */

static const row *find_row(const row *rows, uint32_t count, contender kind)
{
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].kind == kind && rows[i].us.count)
            return &rows[i];
    return NULL;
}

static double median_of(const row *it)
{
    return it ? bench_median(&it->us) : NAN;
}

static void print_layer(const bench *b, const layer *l, const row *rows, uint32_t count, bench_power power)
{
    char name[64];
    const double peer = median_of(find_row(rows, count, CUBLAS));
    printf("%s, %u MHz\n", layer_name(l, name), (unsigned)power.sm_mhz);
    for (uint32_t i = 0; i < count; i++) {
        const row *it = &rows[i];
        const double us = median_of(it);
        printf("  %-9s %-28s ", contender_names[it->kind], it->kernel);
        if (!it->us.count) {
            printf("%s\n", it->why);
            continue;
        }
        printf("%9.2f us %7.1f TFLOPS %6.2f TB/s", us, tflops(l, us), terabytes(l, us));
        if (it->kind != CUBLAS && isfinite(peer))
            printf(", %.0f %% of cuBLASLt's rate", 100 * peer / us);
        if (l->rows <= FEW_ROWS)
            printf(", %.0f %% of copying", 100 * terabytes(l, us) / b->copy_tb);
        printf("\n");
    }
    fflush(stdout);
}

static void expect(bench *b, const layer *l, const row *rows, uint32_t count)
{
    char name[64];
    const double peer = median_of(find_row(rows, count, CUBLAS)), ours = median_of(find_row(rows, count, STREAM));
    const double in_buffer = median_of(find_row(rows, count, INLINE));
    layer_name(l, name);
    if (l->least_stream > 0)
        bench_expect(&b->targets, peer / ours, true, l->least_stream, "%s stream, of cuBLASLt's rate", name);
    if (l->least_inline > 0)
        bench_expect(&b->targets, peer / in_buffer, true, l->least_inline, "%s inline, of cuBLASLt's rate", name);
    if (l->rows <= FEW_ROWS)
        bench_expect(&b->targets, terabytes(l, ours) / b->copy_tb, true, 0.80, "%s stream, of the rate of copying", name);
}

static json_t *layer_json(const layer *l, const row *rows, uint32_t count, bench_power power)
{
    json_t *list = json_array();
    const double peer = median_of(find_row(rows, count, CUBLAS));
    for (uint32_t i = 0; i < count; i++) {
        const row *it = &rows[i];
        const double us = median_of(it);
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "what", contender_names[it->kind], "kernel", it->kernel, "us",
                            bench_json(&it->us), "tflops", bench_number(tflops(l, us)), "tb_per_s", bench_number(terabytes(l, us)),
                            "of_cublaslt", bench_number(peer / us), "of_bound", it->us.count ? bench_number(it->error) : json_null(),
                            "not_measured", it->why[0] ? json_string(it->why) : json_null()));
    }
    return json_pack("{s:i, s:i, s:i, s:s, s:i, s:f, s:o}", "rows", (int)l->rows, "ins", (int)l->ins, "outs", (int)l->outs, "weights",
                     weight_names[l->weights], "sm_mhz", (int)power.sm_mhz, "watts", power.milliwatts * 1e-3, "rows_of", list);
}

/* --- Projections of Q, K and V --- */

typedef struct projection {
    uint32_t tokens, heads, head_dim; /* as many heads of K and of V; ins is those of Q */
} projection;
static const projection projections[] = {{4096, 16, 128}, {1024, 16, 64}};
enum { PROJECTIONS = sizeof projections / sizeof *projections };

/* The layer alone; with codes, for which it takes statistics of its own or has them; and attention's prologue behind it, which
 * makes the same codes of y. */
typedef enum projection_way { ALONE, CODES, CALIBRATED, PROLOGUE, WAYS } projection_way;
static const char *const way_names[WAYS] = {"y alone", "codes", "calibrated", "prologue"};

/* What all ways read and write, in one buffer: offsets of the layer's views, and of scratch. */
typedef struct places {
    uint64_t views[VIEWS], scratch, bytes;
} places;

static uint64_t place(places *at, uint64_t bytes)
{
    const uint64_t begin = at->bytes;
    at->bytes += td_align_up(bytes, 256);
    return begin;
}

static tandem_linear projection_op(const projection *p, projection_way way)
{
    const uint32_t ins = p->heads * p->head_dim, dim = p->head_dim;
    const tandem_view statistics = tandem_view_dense(0, 0, TANDEM_DTYPE_F32, p->heads, 2, dim);
    tandem_linear l = {.rows = p->tokens, .ins = ins, .outs = 3 * ins};
    l.x = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, p->tokens, ins);
    l.w = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, 3 * ins, ins);
    if (way == ALONE || way == PROLOGUE) {
        l.y = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, p->tokens, 3 * ins);
        return l;
    }
    l.batch = 1;
    l.heads = l.kv_heads = p->heads;
    l.head_dim = dim;
    l.q = l.k = tandem_view_dense(0, 0, TANDEM_DTYPE_CODES_INT8, p->heads, p->tokens, dim);
    l.v = tandem_view_dense(0, 0, TANDEM_DTYPE_CODES_E4M3, p->heads, dim, p->tokens);
    if (way == CALIBRATED)
        l.statistics = statistics;
    return l;
}

/* Heads of y as attention has them, one behind the other in a row. */
static tandem_attention attention_on(const projection *p)
{
    const tandem_view heads = {.dtype = TANDEM_DTYPE_F16, .stride_head = p->head_dim, .stride_row = 3 * p->heads * p->head_dim,
                               .stride_batch = (int64_t)3 * p->heads * p->head_dim * p->tokens};
    tandem_attention a = {.q = heads, .k = heads, .v = heads, .batch = 1, .heads = p->heads, .kv_heads = p->heads,
                          .q_len = p->tokens, .kv_len = p->tokens, .head_dim = p->head_dim, .precision = TANDEM_PRECISION_8B};
    a.o = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, p->heads, p->tokens, p->head_dim);
    return a;
}

/* The records of attention that are not its kernel, whose Q, K and V are in y. */
static bool append_prologue(td_plan *all, const td_plan *attention, const projection *p)
{
    for (uint32_t i = 0; i + 1 < attention->record_count; i++) {
        td_record *r = td_plan_append(all, &attention->records[i]);
        if (!r)
            return false;
        for (uint32_t j = 0; j < r->reloc_count; j++)
            if (r->relocs[j].base == TD_BASE_VIEW) {
                r->relocs[j].addend += (uint64_t)r->relocs[j].view * p->heads * p->head_dim * 2;
                r->relocs[j].view = Y;
            }
        td_range *const lists[] = {r->reads, r->writes};
        const uint32_t counts[] = {r->read_count, r->write_count};
        for (int l = 0; l < 2; l++)
            for (uint32_t j = 0; j < counts[l]; j++)
                if (lists[l][j].base == TD_BASE_VIEW)
                    lists[l][j] = (td_range){.base = TD_BASE_VIEW, .view = Y, .end_bytes = UINT64_MAX};
    }
    return true;
}

static void plan_projection(const projection *p, projection_way way, const td_target *target, row *it)
{
    td_plan plan = {0}, *made = &plan, *all = td_plan_create();
    const tandem_operands op = {.linear = projection_op(p, way)};
    const tandem_attention attention = attention_on(p);
    bool ok = all && td_operation_linear.check(&op, it->why, sizeof it->why) == TANDEM_OK &&
              td_operation_linear.plan(&op, target, made, it->why, sizeof it->why) == TANDEM_OK;
    it->plan = all;
    for (uint32_t i = 0; ok && i < made->record_count; i++)
        ok = td_plan_append(all, &made->records[i]) != NULL;
    if (ok)
        all->scratch_bytes = made->scratch_bytes;
    if (ok && way == PROLOGUE) {
        ok = td_attention_check(&attention, it->why, sizeof it->why) == TANDEM_OK &&
             td_plan_attention(&attention, target, made, NULL, it->why, sizeof it->why) == TANDEM_OK &&
             append_prologue(all, made, p);
        all->scratch_bytes = made->scratch_bytes;
    }
    if (!ok && !it->why[0])
        td_fail(it->why, sizeof it->why, TANDEM_ERROR_NOMEM, "no memory for a plan");
    if (ok)
        td_plan_barriers(all);
    td_plan_free(made);
}

/* Random x and w as of the layer, random statistics: what codes become takes no other time. */
static bool fill_projection(bench *b, const projection *p, const row *rows, places *at, char *why, size_t why_bytes)
{
    const uint32_t ins = p->heads * p->head_dim;
    const layer like = {.rows = p->tokens, .ins = ins, .outs = 3 * ins};
    const uint32_t codes[] = {TD_LINEAR_Q, TD_LINEAR_K, TD_LINEAR_V};
    uint64_t scratch = 0;
    *at = (places){0};
    at->views[Y] = place(at, (uint64_t)p->tokens * 3 * ins * 2);
    for (int i = 0; i < 3; i++)
        at->views[codes[i]] = place(at, tandem_codes_bytes(i < 2 ? TANDEM_DTYPE_CODES_INT8 : TANDEM_DTYPE_CODES_E4M3, 1, p->heads,
                                                           p->tokens, p->head_dim, NULL));
    at->views[TD_LINEAR_STATISTICS] = place(at, (uint64_t)2 * ins * sizeof(float));
    for (int way = 0; way < WAYS; way++)
        scratch = rows[way].plan && rows[way].plan->scratch_bytes > scratch ? rows[way].plan->scratch_bytes : scratch;
    at->scratch = place(at, scratch + 1);
    if (!fill(b, &like, 1, why, why_bytes) || !reserve(b, &b->y, at->bytes, why, why_bytes))
        return false;
    const float one = 1;
    uint32_t bits;
    memcpy(&bits, &one, sizeof bits);
    for (int i = 0; i < VIEWS; i++)
        at->views[i] += b->y.address;
    at->views[X] = b->x.address;
    at->views[W] = b->w.address;
    at->scratch += b->y.address;
    if (b->memset_d32(at->views[TD_LINEAR_STATISTICS], bits, (size_t)2 * ins))
        return td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "the data could not be brought to the device"), false;
    return true;
}

static json_t *run_projection(bench *b, const projection *p, uint32_t *failed)
{
    td_target target = td_exec_target(td_cu_device_info(b->device), true);
    row rows[WAYS] = {{0}};
    places at;
    char why[400] = "";
    double us = 0;
    json_t *list = json_array();
    for (int way = 0; way < WAYS; way++) {
        rows[way] = (row){.slot = (uint32_t)way};
        plan_projection(p, (projection_way)way, &target, &rows[way]);
    }
    if (td_cu_enter(b->device, why, sizeof why) == TANDEM_OK) {
        if (fill_projection(b, p, rows, &at, why, sizeof why))
            for (uint32_t round = 0; round < b->rounds; round++)
                for (int way = 0; way < WAYS; way++)
                    for (double spent = 0; !rows[way].why[0] && spent < b->run_us; spent += us) {
                        if (!run_plan(b, &rows[way], at.views, at.scratch, &us))
                            break;
                        if (round)
                            bench_add(&rows[way].us, us);
                    }
        td_cu_leave(b->device);
    }
    printf("%u x %u x %u f16 as Q, K and V, %u heads of %u\n", (unsigned)p->tokens, (unsigned)(3 * p->heads * p->head_dim),
           (unsigned)(p->heads * p->head_dim), (unsigned)p->heads, (unsigned)p->head_dim);
    for (int way = 0; way < WAYS; way++) {
        row *it = &rows[way];
        if (it->us.count)
            printf("  %-10s %9.2f us\n", way_names[way], median_of(it));
        else
            printf("  %-10s %s\n", way_names[way], why[0] ? why : it->why);
        json_array_append_new(list, json_pack("{s:s, s:o, s:o}", "what", way_names[way], "us", bench_json(&it->us), "not_measured",
                                              it->why[0] ? json_string(it->why) : json_null()));
        *failed += !it->us.count;
        bench_free(&it->us);
        td_plan_drop(&it->plan);
    }
    return json_pack("{s:i, s:i, s:i, s:o}", "tokens", (int)p->tokens, "heads", (int)p->heads, "head_dim", (int)p->head_dim, "rows_of",
                     list);
}

static bool measure_copying(bench *b, char *why, size_t why_bytes)
{
    bench_series us = {0};
    double now = 0;
    bool ok = b->cublas && reserve(b, &b->x, copied_bytes, why, why_bytes) && reserve(b, &b->w, copied_bytes, why, why_bytes);
    for (int i = 0; i < 12 && ok; i++) {
        ok = bench_cublas_copy(b->cublas, b->w.address, b->x.address, copied_bytes, &now, why, why_bytes);
        if (i >= 2)
            bench_add(&us, now);
    }
    b->copy_tb = us.count ? 2e-6 * (double)copied_bytes / bench_median(&us) : NAN;
    bench_free(&us);
    return ok || !b->cublas;
}

static int run_all(bench *b)
{
    char why[400] = "", driver[128], name[64];
    json_t *list = json_array();
    uint32_t failed = 0, measured = 0;
    if (!measure_copying(b, why, sizeof why))
        return tool_fail("bench linear", "%s", why);
    printf("copying: %.2f TB/s, read and written\n", b->copy_tb);
    for (uint32_t i = 0; i < (b->quick ? (uint32_t)QUICK_LAYERS : (uint32_t)LAYERS); i++) {
        const layer *l = &layers[i];
        if (b->only && !strstr(layer_name(l, name), b->only))
            continue;
        const uint32_t sets = l->rows <= FEW_ROWS ? MOST_CALLS : 1;
        const double guess_us = tflops(l, 1) / 500;
        const uint32_t calls = sets > 1 || guess_us < 50 ? MOST_CALLS : 4;
        row rows[MOST_ROWS] = {{0}};
        uint32_t count = 0;
        why[0] = 0;
        if (td_cu_enter(b->device, why, sizeof why) == TANDEM_OK) {
            if (fill(b, l, sets, why, sizeof why)) {
                count = make_rows(b, l, calls, rows);
                measure(b, l, rows, count, calls);
            }
            td_cu_leave(b->device);
        }
        const bench_power power = bench_nvml_read(b->nvml);
        if (why[0]) {
            printf("%s\n", why);
            failed++;
        } else {
            print_layer(b, l, rows, count, power);
            expect(b, l, rows, count);
            json_array_append_new(list, layer_json(l, rows, count, power));
        }
        for (uint32_t r = 0; r < count; r++) {
            failed += rows[r].why[0] && rows[r].kind != CUBLAS;
            measured += rows[r].us.count != 0;
            bench_free(&rows[r].us);
            td_plan_drop(&rows[r].plan);
        }
    }
    json_t *of_projections = json_array();
    for (uint32_t i = 0; i < PROJECTIONS && !b->quick && !b->only; i++)
        json_array_append_new(of_projections, run_projection(b, &projections[i], &failed));
    const uint32_t missed = bench_print_targets(&b->targets);
    snprintf(driver, sizeof driver, "%s", bench_nvml_driver(b->nvml));
    json_t *report = bench_report("linear", td_cu_device_info(b->device)->name, driver);
    json_object_set_new(report, "cublaslt", b->cublas ? json_integer(bench_cublas_version(b->cublas)) : json_string(b->no_cublas));
    json_object_set_new(report, "copy_tb_per_s", bench_number(b->copy_tb));
    json_object_set_new(report, "layers", list);
    json_object_set_new(report, "projections", of_projections);
    json_object_set_new(report, "targets", bench_targets_json(&b->targets));
    json_object_set_new(report, "missed", json_integer(missed));
    const int saved = bench_save(report, b->json);
    if (failed)
        return tool_fail("bench linear", "%u measurements failed", (unsigned)failed);
    return saved ? saved : bench_status("bench linear", measured, missed, b->strict);
}

static bool open_all(bench *b, bool wants_cublas, char *why, size_t why_bytes)
{
    const td_log quiet = {0};
    if (td_cu_device_open(NULL, &quiet, &b->device, why, why_bytes) != TANDEM_OK)
        return false;
    if (td_stream_create_graph(b->device, &quiet, &b->stream, why, why_bytes) != TANDEM_OK &&
        td_stream_create(b->device, &quiet, &b->stream, why, why_bytes) != TANDEM_OK)
        return false;
    b->cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (b->cuda) {
        *(void **)&b->copy = dlsym(b->cuda, "cuMemcpyDtoD_v2");
        *(void **)&b->memset_d32 = dlsym(b->cuda, "cuMemsetD32_v2");
    }
    if (!b->copy || !b->memset_d32)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "libcuda.so.1 lacks cuMemcpyDtoD or cuMemsetD32"), false;
    b->nvml = bench_nvml_open(td_cu_device_info(b->device)->uuid);
    if (wants_cublas)
        b->cublas = bench_cublas_open(b->device, b->no_cublas, sizeof b->no_cublas);
    else
        snprintf(b->no_cublas, sizeof b->no_cublas, "--no-cublaslt");
    return true;
}

static void close_all(bench *b)
{
    td_cu_mem *const mems[] = {&b->x, &b->w, &b->y, &b->scale};
    bench_cublas_close(b->cublas);
    bench_nvml_close(b->nvml);
    if (b->stream)
        td_stream_destroy(&b->stream, 2000000000);
    for (int i = 0; i < 4 && b->device; i++)
        if (mems[i]->kind)
            td_cu_mem_free(b->device, mems[i]);
    td_cu_device_close(&b->device);
    free(b->host_x);
    free(b->host_w);
    free(b->host_scale);
}

int bench_linear(int argc, char **argv)
{
    const char *rounds = NULL, *run_ms = NULL;
    bool no_cublas = false;
    bench b = {0};
    const tool_option options[] = {{"--json", &b.json, NULL},      {"--rounds", &rounds, NULL},  {"--run-ms", &run_ms, NULL},
                                   {"--forms", NULL, &b.forms},    {"--no-cublaslt", NULL, &no_cublas},
                                   {"--strict", NULL, &b.strict},  {"--quick", NULL, &b.quick},
                                   {"--only", &b.only, NULL}};
    const int parsed = tool_parse("bench linear", argc, argv, options, sizeof options / sizeof *options);
    uint64_t number = b.quick ? 3 : 5, run = b.quick ? 5 : 20;
    if (parsed != TOOL_OK)
        return parsed;
    if (rounds && !tool_number(rounds, 2, 1000, &number))
        return tool_usage("bench linear", "--rounds \"%s\": must be a number from 2 to 1000", rounds);
    if (run_ms && !tool_number(run_ms, 1, 60000, &run))
        return tool_usage("bench linear", "--run-ms \"%s\": must be a number from 1 to 60000", run_ms);
    b.rounds = (uint32_t)number;
    b.run_us = 1e3 * (double)run;
    char why[400] = "";
    if (b.json && !tool_can_write("--json", b.json, why, sizeof why))
        return tool_fail("bench linear", "%s", why);
    int result;
    if (!open_all(&b, !no_cublas, why, sizeof why)) {
        result = tool_fail("bench linear", "%s", why[0] ? why : "out of memory");
    } else {
        printf("%s, driver %s, cuBLASLt %s%.0u\n", td_cu_device_info(b.device)->name,
               bench_nvml_driver(b.nvml)[0] ? bench_nvml_driver(b.nvml) : "-", b.cublas ? "" : b.no_cublas,
               (unsigned)bench_cublas_version(b.cublas));
        result = run_all(&b);
    }
    close_all(&b);
    return result;
}
