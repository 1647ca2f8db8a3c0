/* Programs: a transformer's encoder from a file, computed on the CPU, against float64 and against
 * its nodes one by one; state, uniforms, commits; and for GPUs that records, barriers, shared
 * scratch and patches are right.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/cpu/cpu.h"
#include "kernels/model/graph_file.h"

enum {
    BLOCKS = 2,
    HEADS = 2,
    HEAD_DIM = 32,
    DIM = HEADS * HEAD_DIM,
    HIDDEN = 128,
    MOST = 65,
    TEXT_BYTES = 1 << 16
};

static float random_float(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) * 0x1p-23f - 1;
}

static void must(tandem_status status, const char *why)
{
    if (status != TANDEM_OK)
        fail_msg("status %d: %s", status, why);
}

/* Memory as an executor has it, poisoned: NaNs of every float. */
static void *new_memory(uint64_t bytes)
{
    void *memory = aligned_alloc(256, (size_t)td_align_up(bytes + 1, 256));

    assert_non_null(memory);
    return memset(memory, 0xff, (size_t)td_align_up(bytes + 1, 256));
}

/* --- The encoder --- */

/* A block's weights, in the order in which the file has them. */
enum { WQKV, BQKV, WO, BO, G1, B1, WUP, BUP, WDOWN, BDOWN, G2, B2, WEIGHTS };
static const struct {
    const char *name, *dtype;
    uint32_t rows, columns; /* rows 0: a vector */
} weights[WEIGHTS] = {
    [WQKV] = {"wqkv", "F16", 3 * DIM, DIM},
    [BQKV] = {"bqkv", "F32", 0, 3 * DIM},
    [WO] = {"wo", "F16", DIM, DIM},
    [BO] = {"bo", "F16", 0, DIM},
    [G1] = {"g1", "F32", 0, DIM},
    [B1] = {"b1", "F32", 0, DIM},
    [WUP] = {"wup", "F16", HIDDEN, DIM},
    [BUP] = {"bup", "F32", 0, HIDDEN},
    [WDOWN] = {"wdown", "F16", DIM, HIDDEN},
    [BDOWN] = {"bdown", "F32", 0, DIM},
    [G2] = {"g2", "F16", 0, DIM},
    [B2] = {"b2", "F32", 0, DIM},
};

static struct {
    void *data;
    double *exact;
    char name[16];
} block_weights[BLOCKS][WEIGHTS];

static uint32_t elements_of(int i)
{
    return (weights[i].rows ? weights[i].rows : 1) * weights[i].columns;
}

static void make_weights(void)
{
    uint32_t seed = 7;

    for (int block = 0; block < BLOCKS; block++)
        for (int i = 0; i < WEIGHTS; i++) {
            const bool half = !strcmp(weights[i].dtype, "F16");
            const float scale = weights[i].rows ? 2 / sqrtf((float)weights[i].columns) : 0.3f;
            uint16_t *halves = malloc(elements_of(i) * 4);

            block_weights[block][i].data = halves;
            block_weights[block][i].exact = malloc(elements_of(i) * sizeof(double));
            snprintf(block_weights[block][i].name, sizeof block_weights[block][i].name, "%d.%s",
                     block, weights[i].name);
            for (uint32_t e = 0; e < elements_of(i); e++) {
                float value = scale * random_float(&seed) + (i == G1 || i == G2);
                if (half) {
                    halves[e] = td_to_f16(value);
                    value = td_from_f16(halves[e]);
                } else {
                    ((float *)(void *)halves)[e] = value;
                }
                block_weights[block][i].exact[e] = (double)value;
            }
        }
}

/* Appends to a text. */
static void say(char **at, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(char **at, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    *at += vsprintf(*at, format, args);
    va_end(args);
}

static void say_tensor(char **at, const char *name, int block, const char *role, const char *dtype,
                       const char *shape)
{
    say(at, ",\n\"%d.%s\": {\"role\": \"%s\", \"dtype\": \"%s\", \"shape\": %s}", block, name, role,
        dtype, shape);
}

static const char *encoder_text(void)
{
    static char text[TEXT_BYTES];
    char *at = text;

    say(&at, "{\"version\": 1, \"numbers\": {\"batch\": %d, \"tokens\": %d}, \"tensors\": {", MOST,
        MOST);
    say(&at,
        "\"in\": {\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"batch\", \"tokens\", "
        "%d]},",
        DIM);
    say(&at,
        "\"out\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"batch\", \"tokens\", "
        "%d]}",
        DIM);
    for (int block = 0; block < BLOCKS; block++) {
        static const char *const rows[] = {"qkv", "mixed", "sum", "norm", "up", "down", "next"};
        static const int columns[] = {3 * DIM, DIM, DIM, DIM, HIDDEN, DIM, DIM};

        for (int i = 0; i < WEIGHTS; i++) {
            char shape[40];
            snprintf(shape, sizeof shape, weights[i].rows ? "[%u, %u]" : "[%.0u%u]",
                     weights[i].rows, weights[i].columns);
            say_tensor(&at, weights[i].name, block, "weight", weights[i].dtype, shape);
        }
        for (int i = 0; i < 7 - (block == BLOCKS - 1); i++) {
            char shape[60];
            snprintf(shape, sizeof shape, "[\"batch * tokens\", %d]", columns[i]);
            say_tensor(&at, rows[i], block, "temporary", "F16", shape);
        }
    }
    say(&at, "}, \"nodes\": [");
    for (int b = 0; b < BLOCKS; b++) {
        char from[16], to[16];

        snprintf(from, sizeof from, b ? "%d.next" : "in", b - 1);
        snprintf(to, sizeof to, b < BLOCKS - 1 ? "%d.next" : "out", b);
        say(&at,
            "%s{\"operation\": \"linear\", \"rows\": \"batch * tokens\", \"ins\": %d, \"outs\": "
            "%d,",
            b ? ",\n" : "\n", DIM, 3 * DIM);
        say(&at,
            "\"views\": {\"x\": \"%s\", \"w\": \"%d.wqkv\", \"bias\": \"%d.bqkv\", \"y\": "
            "\"%d.qkv\"}},\n",
            from, b, b, b);
        say(&at,
            "{\"operation\": \"attention\", \"batch\": \"batch\", \"heads\": %d, \"kv_heads\": %d, "
            "\"q_len\": \"tokens\",",
            HEADS, HEADS);
        say(&at, "\"kv_len\": \"tokens\", \"head_dim\": %d, \"precision\": 1, \"views\": {",
            HEAD_DIM);
        for (int i = 0; i < 3; i++)
            say(&at,
                "\"%c\": {\"tensor\": \"%d.qkv\", \"offset\": %d, \"strides\": [\"tokens * %d\", "
                "%d, %d]},",
                "qkv"[i], b, i * DIM, 3 * DIM, HEAD_DIM, 3 * DIM);
        say(&at, "\"o\": {\"tensor\": \"%d.mixed\", \"strides\": [\"tokens * %d\", %d, %d]}}},\n",
            b, DIM, HEAD_DIM, DIM);
        say(&at,
            "{\"operation\": \"linear\", \"rows\": \"batch * tokens\", \"ins\": %d, \"outs\": %d,",
            DIM, DIM);
        say(&at,
            "\"views\": {\"x\": \"%d.mixed\", \"w\": \"%d.wo\", \"bias\": \"%d.bo\", \"residual\": "
            "\"%s\", \"y\": \"%d.sum\"}},\n",
            b, b, b, from, b);
        say(&at,
            "{\"operation\": \"norm\", \"batch\": 1, \"heads\": 1, \"rows\": \"batch * tokens\", "
            "\"channels\": %d, \"kind\": 1,",
            DIM);
        say(&at,
            "\"views\": {\"x\": \"%d.sum\", \"weight\": \"%d.g1\", \"bias\": \"%d.b1\", \"y\": "
            "\"%d.norm\"}},\n",
            b, b, b, b);
        say(&at,
            "{\"operation\": \"linear\", \"rows\": \"batch * tokens\", \"ins\": %d, \"outs\": %d, "
            "\"activation\": 1,",
            DIM, HIDDEN);
        say(&at,
            "\"views\": {\"x\": \"%d.norm\", \"w\": \"%d.wup\", \"bias\": \"%d.bup\", \"y\": "
            "\"%d.up\"}},\n",
            b, b, b, b);
        say(&at,
            "{\"operation\": \"linear\", \"rows\": \"batch * tokens\", \"ins\": %d, \"outs\": %d,",
            HIDDEN, DIM);
        say(&at,
            "\"views\": {\"x\": \"%d.up\", \"w\": \"%d.wdown\", \"bias\": \"%d.bdown\", "
            "\"residual\": \"%d.norm\", \"y\": \"%d.down\"}},\n",
            b, b, b, b, b);
        say(&at,
            "{\"operation\": \"norm\", \"batch\": \"batch\", \"heads\": 1, \"rows\": \"tokens\", "
            "\"channels\": %d, \"kind\": 1,",
            DIM);
        say(&at,
            "\"views\": {\"x\": \"%d.down\", \"weight\": \"%d.g2\", \"bias\": \"%d.b2\", \"y\": "
            "\"%s\"}}",
            b, b, b, to);
    }
    say(&at, "]}");
    return text;
}

/* Writes the file and reads it: the graph, and the weights of its programs. */
static td_graph *read_encoder(td_safetensors *file)
{
    const td_safetensors_text text = {TD_GRAPH_KEY, encoder_text()};
    td_safetensors_item items[BLOCKS * WEIGHTS];
    char path[] = "/tmp/tandem-program-XXXXXX", why[400] = "";
    const int fd = mkstemp(path);
    td_graph *graph;

    assert_true(fd >= 0);
    for (int i = 0; i < BLOCKS * WEIGHTS; i++) {
        const uint32_t rows = weights[i % WEIGHTS].rows, columns = weights[i % WEIGHTS].columns;

        items[i] = (td_safetensors_item){.name = block_weights[i / WEIGHTS][i % WEIGHTS].name,
                                         .dtype = weights[i % WEIGHTS].dtype,
                                         .dimensions = rows ? 2 : 1,
                                         .shape = {rows ? rows : columns, columns},
                                         .data = block_weights[i / WEIGHTS][i % WEIGHTS].data};
    }
    must(td_safetensors_write_texts(path, &text, 1, items, BLOCKS * WEIGHTS, why, sizeof why), why);
    must(td_safetensors_open(path, file, why, sizeof why), why);
    unlink(path);
    close(fd);
    must(td_graph_file_read(file, &graph, why, sizeof why), why);
    return graph;
}

/* --- Its nodes one by one --- */

typedef struct sizes {
    uint32_t batch, tokens, rows;
} sizes;

/* An operation by itself; views[i]: where its first element is. */
static void run_operation(uint32_t number, const tandem_operands *op, void *const *places)
{
    const td_target cpu = td_target_for_sm(0);
    const td_operation *operation = td_operation_find(number);
    uint64_t views[TD_MAX_VIEWS] = {0};
    char why[400] = "";
    td_plan plan = {0};

    for (uint32_t i = 0; i < operation->layout.view_count; i++)
        views[i] = (uintptr_t)places[i];
    must(operation->check(op, why, sizeof why), why);
    must(operation->plan(op, &cpu, &plan, why, sizeof why), why);
    void *scratch = new_memory(plan.scratch_bytes);
    assert_int_equal(td_exec_cpu_run(&plan, views, (uintptr_t)scratch, 2, NULL), TANDEM_OK);
    free(scratch);
    td_plan_free(&plan);
}

static void run_linear(uint32_t rows, uint32_t ins, uint32_t outs, uint32_t activation, void *x,
                       int block, int w, int bias, void *residual, void *y)
{
    const bool half = !strcmp(weights[bias].dtype, "F16");
    tandem_operands op = {
        .linear = {.rows = rows, .ins = ins, .outs = outs, .activation = activation}};
    void *const places[] = {x,        block_weights[block][w].data,
                            NULL,     block_weights[block][bias].data,
                            residual, NULL,
                            NULL,     y};

    op.linear.x = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, rows, ins);
    op.linear.w = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, outs, ins);
    op.linear.bias =
        tandem_view_dense(0, 0, half ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_F32, 1, 1, outs);
    if (residual)
        op.linear.residual = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, rows, outs);
    op.linear.y = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, rows, outs);
    run_operation(TANDEM_OPERATION_LINEAR, &op, places);
}

static void run_norm(uint32_t rows, void *x, int block, int weight, int bias, void *y,
                     uint32_t y_dtype)
{
    const bool half = !strcmp(weights[weight].dtype, "F16");
    tandem_operands op = {
        .norm = {.batch = 1, .heads = 1, .rows = rows, .channels = DIM, .kind = TANDEM_NORM_LAYER}};
    void *const places[] = {
        x, NULL, block_weights[block][weight].data, block_weights[block][bias].data, y, NULL};

    op.norm.x = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, rows, DIM);
    op.norm.weight = tandem_view_dense(0, 0, half ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_F32, 1, 1, DIM);
    op.norm.bias = tandem_view_dense(0, 0, TANDEM_DTYPE_F32, 1, 1, DIM);
    op.norm.y = tandem_view_dense(0, 0, y_dtype, 1, rows, DIM);
    run_operation(TANDEM_OPERATION_NORM, &op, places);
}

static void run_attention(sizes s, uint16_t *qkv, void *o)
{
    tandem_operands op = {.attention = {.batch = s.batch,
                                        .heads = HEADS,
                                        .kv_heads = HEADS,
                                        .q_len = s.tokens,
                                        .kv_len = s.tokens,
                                        .head_dim = HEAD_DIM,
                                        .precision = TANDEM_PRECISION_F16}};
    void *const places[] = {qkv, qkv + DIM, qkv + 2 * DIM, o, NULL};

    op.attention.q = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, HEADS, s.tokens, HEAD_DIM);
    op.attention.q.stride_batch = (int64_t)s.tokens * 3 * DIM;
    op.attention.q.stride_head = HEAD_DIM;
    op.attention.q.stride_row = 3 * DIM;
    op.attention.k = op.attention.v = op.attention.o = op.attention.q;
    op.attention.o.stride_batch = (int64_t)s.tokens * DIM;
    op.attention.o.stride_row = DIM;
    run_operation(TANDEM_OPERATION_ATTENTION, &op, places);
}

static void run_nodes(sizes s, const void *in, float *out)
{
    uint16_t *x = new_memory(s.rows * DIM * 2), *qkv = new_memory(s.rows * 3 * DIM * 2),
             *mixed = new_memory(s.rows * DIM * 2), *sum = new_memory(s.rows * DIM * 2),
             *norm = new_memory(s.rows * DIM * 2), *up = new_memory(s.rows * HIDDEN * 2);

    memcpy(x, in, (size_t)s.rows * DIM * 2);
    for (int b = 0; b < BLOCKS; b++) {
        const bool last = b == BLOCKS - 1;

        run_linear(s.rows, DIM, 3 * DIM, 0, x, b, WQKV, BQKV, NULL, qkv);
        run_attention(s, qkv, mixed);
        run_linear(s.rows, DIM, DIM, 0, mixed, b, WO, BO, x, sum);
        run_norm(s.rows, sum, b, G1, B1, norm, TANDEM_DTYPE_F16);
        run_linear(s.rows, DIM, HIDDEN, TANDEM_ACTIVATION_GELU, norm, b, WUP, BUP, NULL, up);
        run_linear(s.rows, HIDDEN, DIM, 0, up, b, WDOWN, BDOWN, norm, sum);
        run_norm(s.rows, sum, b, G2, B2, last ? (void *)out : x,
                 last ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_F16);
    }
    free(x), free(qkv), free(mixed), free(sum), free(norm), free(up);
}

/* --- In float64, a sequence --- */

static void exact_linear(uint32_t rows, uint32_t ins, uint32_t outs, const double *x, int block,
                         int w, int bias, const double *residual, bool gelu, double *y)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t j = 0; j < outs; j++) {
            double sum = block_weights[block][bias].exact[j];

            for (uint32_t i = 0; i < ins; i++)
                sum += x[r * ins + i] * block_weights[block][w].exact[j * ins + i];
            sum = gelu ? sum / 2 * (1 + erf(sum / sqrt(2))) : sum;
            y[r * outs + j] = sum + (residual ? residual[r * outs + j] : 0);
        }
}

static void exact_norm(uint32_t rows, const double *x, int block, int weight, int bias, double *y)
{
    for (uint32_t r = 0; r < rows; r++) {
        double mean = 0, square = 0;

        for (int i = 0; i < DIM; i++)
            mean += x[r * DIM + i] / DIM;
        for (int i = 0; i < DIM; i++)
            square += (x[r * DIM + i] - mean) * (x[r * DIM + i] - mean) / DIM;
        for (int i = 0; i < DIM; i++)
            y[r * DIM + i] = (x[r * DIM + i] - mean) / sqrt(square + 1e-5) *
                                 block_weights[block][weight].exact[i] +
                             block_weights[block][bias].exact[i];
    }
}

static void exact_attention(uint32_t tokens, const double *qkv, double *o)
{
    double scores[MOST];

    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t r = 0; r < tokens; r++) {
            double most = -INFINITY, sum = 0;

            for (uint32_t k = 0; k < tokens; k++) {
                scores[k] = 0;
                for (int i = 0; i < HEAD_DIM; i++)
                    scores[k] += qkv[r * 3 * DIM + h * HEAD_DIM + i] *
                                 qkv[k * 3 * DIM + DIM + h * HEAD_DIM + i] / sqrt(HEAD_DIM);
                most = fmax(most, scores[k]);
            }
            for (uint32_t k = 0; k < tokens; k++)
                sum += scores[k] = exp(scores[k] - most);
            for (int i = 0; i < HEAD_DIM; i++) {
                double value = 0;

                for (uint32_t k = 0; k < tokens; k++)
                    value += scores[k] / sum * qkv[k * 3 * DIM + 2 * DIM + h * HEAD_DIM + i];
                o[r * DIM + h * HEAD_DIM + i] = value;
            }
        }
}

static void compute_exactly(uint32_t tokens, const uint16_t *in, double *out)
{
    static double qkv[MOST * 3 * DIM], mixed[MOST * DIM], sum[MOST * DIM], norm[MOST * DIM],
        up[MOST * HIDDEN];

    for (uint32_t i = 0; i < tokens * DIM; i++)
        out[i] = (double)td_from_f16(in[i]);
    for (int b = 0; b < BLOCKS; b++) {
        exact_linear(tokens, DIM, 3 * DIM, out, b, WQKV, BQKV, NULL, false, qkv);
        exact_attention(tokens, qkv, mixed);
        exact_linear(tokens, DIM, DIM, mixed, b, WO, BO, out, false, sum);
        exact_norm(tokens, sum, b, G1, B1, norm);
        exact_linear(tokens, DIM, HIDDEN, norm, b, WUP, BUP, NULL, true, up);
        exact_linear(tokens, HIDDEN, DIM, up, b, WDOWN, BDOWN, norm, false, sum);
        exact_norm(tokens, sum, b, G2, B2, out);
    }
}

/* --- Runs --- */

/* A program's blocks, all poisoned but weights, and the addresses of its views. */
typedef struct run {
    const td_program *program;
    void *blocks[TD_PROGRAM_BINDINGS], *scratch, *bindings[TD_GRAPH_BINDINGS];
    uint64_t views[TD_PROGRAM_VIEWS];
} run;

static run new_run(const td_graph *graph, const td_safetensors *file, const uint32_t *numbers,
                   bool commit)
{
    td_target cpu = td_target_for_sm(0);
    char why[400] = "";
    run r = {0};

    cpu.commit = commit;
    must(td_program_build(graph, numbers, &cpu, &r.program, why, sizeof why), why);
    const uint64_t bytes[] = {r.program->weight_bytes, r.program->state_bytes,
                              r.program->uniform_bytes};
    for (int i = 0; i < TD_PROGRAM_BINDINGS; i++)
        r.views[i] = (uintptr_t)(r.blocks[i] = new_memory(bytes[i]));
    for (uint32_t i = 0; i < r.program->binding_count; i++)
        r.views[TD_PROGRAM_BINDINGS + i] =
            (uintptr_t)(r.bindings[i] =
                            new_memory(r.program->tensors[r.program->bindings[i]].bytes));
    r.scratch = new_memory(r.program->plan->scratch_bytes);
    if (file)
        must(td_graph_file_weights(file, r.program, r.blocks[TD_PROGRAM_WEIGHTS], why, sizeof why),
             why);
    memset(r.blocks[TD_PROGRAM_STATE], 0, r.program->state_bytes);
    return r;
}

static void compute(run *r, td_control *control)
{
    memset(r->scratch, 0xff, r->program->plan->scratch_bytes);
    assert_int_equal(td_exec_cpu_run(r->program->plan, r->views, (uintptr_t)r->scratch, 2, control),
                     TANDEM_OK);
}

static void end_run(run *r)
{
    for (int i = 0; i < TD_PROGRAM_BINDINGS; i++)
        free(r->blocks[i]);
    for (uint32_t i = 0; i < r->program->binding_count; i++)
        free(r->bindings[i]);
    free(r->scratch);
    td_program_drop(&r->program);
}

static void test_encoder(void **state)
{
    static const uint32_t counts[] = {1, 63, 64, 65};
    static double exact[MOST * DIM];
    td_safetensors file;
    td_graph *graph = read_encoder(&file);
    double worst = 0;
    uint32_t seed = 5;

    (void)state;
    for (int n = 0; n < 16; n++) {
        const sizes s = {counts[n / 4], counts[n % 4], counts[n / 4] * counts[n % 4]};
        run r = new_run(graph, &file, (const uint32_t[]){s.batch, s.tokens}, n % 3 == 0);
        uint16_t *in = r.bindings[0];
        float *out = r.bindings[1], *expected = new_memory(s.rows * DIM * 4);

        assert_string_equal(r.program->tensors[r.program->bindings[1]].name, "out");
        for (uint32_t i = 0; i < s.rows * DIM; i++)
            in[i] = td_to_f16(2 * random_float(&seed));
        run_nodes(s, in, expected);
        compute(&r, NULL);
        assert_memory_equal(out, expected, (size_t)s.rows * DIM * 4);
        for (uint32_t b = 0; b<s.batch; b += s.batch> 1 ? s.batch - 1 : 1) {
            compute_exactly(s.tokens, in + b * s.tokens * DIM, exact);
            for (uint32_t i = 0; i < s.tokens * DIM; i++)
                worst = fmax(worst, fabs(exact[i] - (double)out[b * s.tokens * DIM + i]));
        }
        free(expected);
        end_run(&r);
    }
    print_message("at most %.5f from float64\n", worst);
    assert_true(worst < 0.01);
    td_graph_destroy(&graph);
    td_safetensors_close(&file);
}

/* Written wholly, or not at all where the run is given up. */
static void test_commit(void **state)
{
    td_safetensors file;
    td_graph *graph = read_encoder(&file);
    run r = new_run(graph, &file, (const uint32_t[]){3, 7}, true);
    const size_t bytes = 3 * 7 * DIM * 4;
    uint8_t poison[3 * 7 * DIM * 4];
    td_control control = {.stale = 1};

    (void)state;
    memset(poison, 0xff, sizeof poison);
    memset(r.bindings[0], 0, bytes / 2);
    assert_true(r.program->claims);
    compute(&r, &control);
    assert_int_equal(control.verdict, TD_VERDICT_GIVEN_UP);
    assert_memory_equal(r.bindings[1], poison, bytes);
    memset(&control, 0, sizeof control);
    compute(&r, &control);
    assert_int_equal(control.verdict, TD_VERDICT_COMMITTED);
    for (size_t i = 0; i < bytes / 4; i++)
        assert_true(isfinite(((float *)r.bindings[1])[i]));
    end_run(&r);
    td_graph_destroy(&graph);
    td_safetensors_close(&file);
}

/* --- State and uniforms --- */

static td_graph *graph_of(const char *text)
{
    char why[400] = "";
    td_graph *graph;

    must(td_graph_read(text, strlen(text), &graph, why, sizeof why), why);
    return graph;
}

/* `sum` adds up what came; one node reads what it was, one what it is. The rows of x are turned by
 * their positions. */
static const char sums_text[] =
    "{\"version\": 1, \"numbers\": {\"rows\": 65}, \"tensors\": {"
    "\"x\": {\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"rows\", 32]},"
    "\"w\": {\"role\": \"weight\", \"dtype\": \"F16\", \"shape\": [32, 32]},"
    "\"turns\": {\"role\": \"weight\", \"dtype\": \"F32\", \"shape\": [100, 32]},"
    "\"before\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [3]},"
    "\"at\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [\"rows\"]},"
    "\"sum\": {\"role\": \"state\", \"dtype\": \"F16\", \"shape\": [65, 32]},"
    "\"count\": {\"role\": \"state\", \"dtype\": \"F16\", \"shape\": [1, 32]},"
    "\"turned\": {\"role\": \"output\", \"dtype\": \"F16\", \"shape\": [\"rows\", 32]},"
    "\"other\": {\"role\": \"temporary\", \"dtype\": \"F16\", \"shape\": [3, 32]},"
    "\"now\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [65, 32]},"
    "\"was\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [65, 32]},"
    "\"is\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [65, 32]}}, \"nodes\": ["
    "{\"operation\": \"linear\", \"rows\": 3, \"ins\": 32, \"outs\": 32, \"positions\": 100, "
    "\"head_dim\": 32, \"rotated_channels\": 32, \"rotated_heads\": 1,"
    " \"views\": {\"x\": {\"tensor\": \"w\", \"offset\": 32}, \"w\": \"w\", \"rotation\": "
    "\"turns\", \"position\": \"before\", \"y\": \"other\"}},"
    "{\"operation\": \"linear\", \"rows\": \"rows\", \"ins\": 32, \"outs\": 32, \"positions\": "
    "100, \"head_dim\": 32, \"rotated_channels\": 32, \"rotated_heads\": 1,"
    " \"views\": {\"x\": \"x\", \"w\": \"w\", \"rotation\": \"turns\", \"position\": \"at\", "
    "\"y\": \"turned\"}},"
    "{\"operation\": \"norm\", \"batch\": 1, \"heads\": 1, \"rows\": 65, \"channels\": 32, "
    "\"views\": {\"x\": \"sum\", \"y\": \"was\"}},"
    "{\"operation\": \"norm\", \"batch\": 1, \"heads\": 1, \"rows\": 65, \"channels\": 32,"
    " \"views\": {\"x\": {\"tensor\": \"w\", \"strides\": [0, 0, 0]}, \"residual\": \"sum\", "
    "\"y\": \"now\", \"sum\": \"sum\"}},"
    "{\"operation\": \"norm\", \"batch\": 1, \"heads\": 1, \"rows\": 65, \"channels\": 32, "
    "\"views\": {\"x\": \"sum\", \"y\": \"is\"}},"
    "{\"operation\": \"norm\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 32, "
    "\"views\": {\"x\": \"count\", \"y\": \"count\"}}]}";

static void test_state(void **state)
{
    enum { ROWS = 5, SUM = 65 * 32 };
    td_graph *graph = graph_of(sums_text);
    run r = new_run(graph, NULL, (const uint32_t[]){ROWS}, false);
    uint16_t *x = r.bindings[0], *turned = r.bindings[1], *w = r.blocks[TD_PROGRAM_WEIGHTS],
             *sum = r.blocks[TD_PROGRAM_STATE];
    const float *now = r.bindings[2], *was = r.bindings[3], *is = r.bindings[4];
    float *turns = NULL, last[SUM];
    uint16_t first_row[32];
    int32_t *at = NULL, *before = NULL;
    uint32_t seed = 3;

    (void)state;
    assert_true(r.program->claims && r.program->binding_count == 5);
    for (uint32_t i = 0; i < r.program->tensor_count; i++) {
        const td_program_tensor *t = &r.program->tensors[i];

        if (!strcmp(t->name, "turns"))
            turns = (float *)((char *)r.blocks[TD_PROGRAM_WEIGHTS] + t->offset);
        if (!strcmp(t->name, "at"))
            at = (int32_t *)((char *)r.blocks[TD_PROGRAM_UNIFORM] + t->offset);
        if (!strcmp(t->name, "before"))
            before = (int32_t *)((char *)r.blocks[TD_PROGRAM_UNIFORM] + t->offset);
        assert_true(t->view == UINT32_MAX || t->offset % TD_PROGRAM_ALIGN == 0);
    }
    memset(before, 0, 3 * sizeof *before);
    for (int i = 0; i < 32 * 32; i++)
        w[i] = td_to_f16(i % 33 == 0); /* y is x, turned */
    for (int i = 0; i < 32; i++)       /* w's first row is added in each run */
        first_row[i] = w[i] = td_to_f16(i == 0 ? 1 : 0);
    for (int i = 0; i < 100 * 32; i++)
        turns[i] = i % 2 ? 0 : (float)(i / 32); /* a row is multiplied by its position */
    for (int i = 0; i < ROWS * 32; i++)
        x[i] = td_to_f16(random_float(&seed));
    for (int turn = 1; turn <= 4; turn++) {
        const bool given_up = turn == 3;
        td_control control = {.stale = given_up};

        for (int i = 0; i < ROWS; i++)
            at[i] = turn * i;
        memcpy(last, is, sizeof last);
        compute(&r, turn == 1 ? NULL : &control);
        for (int i = 0; i < ROWS * 32; i++)
            assert_true(td_from_f16(turned[i]) ==
                        td_from_f16(td_to_f16(td_from_f16(x[i]) * (float)(turn * (i / 32)))));
        const int runs = turn - (turn >= 3); /* that were not given up */
        for (int i = 0; i < SUM; i++)
            assert_true(td_from_f16(sum[i]) == (float)runs * td_from_f16(first_row[i % 32]));
        assert_memory_equal(now, is, sizeof last);
        if (turn == 2 || turn == 3) /* what the last run left */
            assert_memory_equal(was, last, sizeof last);
    }
    end_run(&r);
    td_graph_destroy(&graph);
}

/* --- Programs for GPUs --- */

static bool same_record(const td_record *a, const td_record *b)
{
    td_record x = *a, y = *b;

    x.params = y.params = NULL;
    x.relocs = y.relocs = NULL;
    x.reads = y.reads = x.writes = y.writes = NULL;
    return !memcmp(&x, &y, sizeof x) && !memcmp(a->params, b->params, a->param_bytes) &&
           !memcmp(a->relocs, b->relocs, a->reloc_count * sizeof *a->relocs) &&
           (!a->read_count || !memcmp(a->reads, b->reads, a->read_count * sizeof *a->reads)) &&
           (!a->write_count || !memcmp(a->writes, b->writes, a->write_count * sizeof *a->writes));
}

static void check_same(const td_program *a, const td_program *b)
{
    assert_true(a->plan->record_count == b->plan->record_count &&
                a->plan->scratch_bytes == b->plan->scratch_bytes);
    assert_true(a->plan->view_count == b->plan->view_count && a->weight_bytes == b->weight_bytes);
    assert_true(a->state_bytes == b->state_bytes && a->uniform_bytes == b->uniform_bytes &&
                a->chain == b->chain);
    for (uint32_t i = 0; i < a->plan->record_count; i++)
        assert_true(same_record(&a->plan->records[i], &b->plan->records[i]));
    assert_int_equal(a->patch_count, b->patch_count);
    assert_memory_equal(a->patches, b->patches, a->patch_count * sizeof *a->patches);
    assert_memory_equal(a->nodes, b->nodes, a->node_count * sizeof *a->nodes);
}

static uint64_t bytes_of(const td_program *p, uint32_t base, uint32_t view)
{
    const uint64_t blocks[] = {p->weight_bytes, p->state_bytes, p->uniform_bytes};

    if (base == TD_BASE_SCRATCH)
        return p->plan->scratch_bytes;
    assert_int_equal(base, TD_BASE_VIEW);
    assert_in_range(view, 0, TD_PROGRAM_BINDINGS + p->binding_count - 1);
    return view < TD_PROGRAM_BINDINGS ? blocks[view]
                                      : p->tensors[p->bindings[view - TD_PROGRAM_BINDINGS]].bytes;
}

static void check_bounds(const td_program *p)
{
    char why[300] = "";

    must(td_plan_check(p->plan, why, sizeof why), why);
    for (uint32_t i = 0; i < p->plan->record_count; i++) {
        const td_record *r = &p->plan->records[i];

        for (uint32_t j = 0; j < r->reloc_count; j++)
            if (r->relocs[j].base != TD_BASE_CONTROL)
                assert_true(r->relocs[j].addend <
                            bytes_of(p, r->relocs[j].base, r->relocs[j].view));
        for (uint32_t j = 0; j < r->read_count + r->write_count; j++) {
            const td_range *range =
                j < r->read_count ? &r->reads[j] : &r->writes[j - r->read_count];

            assert_true(range->begin_bytes < range->end_bytes &&
                        range->end_bytes <= bytes_of(p, range->base, range->view));
        }
    }
}

static bool touch(const td_range *a, uint32_t a_count, const td_range *b, uint32_t b_count)
{
    for (uint32_t i = 0; i < a_count * b_count; i++) {
        const td_range *x = &a[i / b_count], *y = &b[i % b_count];

        if (x->base == y->base && x->view == y->view && x->begin_bytes < y->end_bytes &&
            y->begin_bytes < x->end_bytes)
            return true;
    }
    return false;
}

/* Between any two records that meet there is a barrier that is strong enough. */
static void check_order(const td_plan *p)
{
    for (uint32_t j = 0; j < p->record_count; j++) {
        uint32_t strongest = TD_BARRIER_NONE;

        for (uint32_t i = j; i-- > 0;) {
            const td_record *a = &p->records[i], *b = &p->records[j];

            if (p->records[i + 1].barrier < strongest)
                strongest = p->records[i + 1].barrier;
            assert_false(strongest > TD_BARRIER_DATA &&
                         (touch(a->writes, a->write_count, b->reads, b->read_count) ||
                          touch(a->writes, a->write_count, b->writes, b->write_count)));
            assert_false(strongest > TD_BARRIER_ORDER &&
                         touch(a->reads, a->read_count, b->writes, b->write_count));
        }
    }
}

static uint32_t node_of(const td_program *p, uint32_t record)
{
    uint32_t node = 0;

    while (node < p->node_count &&
           record >= p->nodes[node].first_record + p->nodes[node].record_count)
        node++;
    return node; /* node_count: the end of the program */
}

/* Whether a node may read in scratch what another has written: itself, or one whose tensor it has.
 * The end reads all. */
static bool may_read(const td_graph *graph, uint32_t reader, uint32_t writer)
{
    if (reader == writer || reader == graph->node_count)
        return true;
    for (uint32_t i = 0; i < graph->nodes[reader].view_count; i++)
        if (graph->tensors[graph->nodes[reader].views[i].tensor].writer == writer)
            return true;
    return false;
}

/* What a record reads in scratch was last written by its own node or one that it reads of: nobody
 * else was given the bytes. */
static void check_scratch(const td_graph *graph, const td_program *p)
{
    for (uint32_t i = 0; i < p->plan->record_count; i++)
        for (uint32_t j = 0; j < p->plan->records[i].read_count; j++) {
            td_range left = p->plan->records[i].reads[j];

            if (left.base != TD_BASE_SCRATCH)
                continue;
            for (uint32_t k = i; k-- > 0 && left.begin_bytes < left.end_bytes;)
                for (uint32_t w = 0; w < p->plan->records[k].write_count; w++) {
                    const td_range *write = &p->plan->records[k].writes[w];

                    if (!touch(write, 1, &left, 1))
                        continue;
                    assert_true(may_read(graph, node_of(p, i), node_of(p, k)));
                    if (write->begin_bytes <= left.begin_bytes)
                        left.begin_bytes = write->end_bytes;
                    else
                        left.end_bytes = write->begin_bytes;
                }
            assert_true(left.begin_bytes >= left.end_bytes || p->plan->scratch_bytes == 0);
        }
}

/* Bound to two addresses of a view, records differ in its patches and nowhere else. */
static void check_patches(const td_program *p)
{
    static _Alignas(TD_PARAM_ALIGN) unsigned char before[TD_PARAM_BYTES], behind[TD_PARAM_BYTES];
    const uint32_t view_count = TD_PROGRAM_BINDINGS + p->binding_count;
    uint64_t views[TD_PROGRAM_VIEWS], moved[TD_PROGRAM_VIEWS];
    uint32_t patches = 0;

    assert_true(p->plan->view_count == view_count && p->first_patch[0] == 0 &&
                p->first_patch[view_count] == p->patch_count);
    for (uint32_t v = 0; v < view_count; v++) {
        for (uint32_t i = 0; i < view_count; i++)
            moved[i] = views[i] = 0x100000000000u * (i + 1);
        moved[v] = 0xfedcba9876543200u - views[v]; /* every byte differs, but the lowest */
        for (uint32_t i = 0, at = p->first_patch[v]; i < p->plan->record_count; i++) {
            const td_record *r = &p->plan->records[i];

            td_exec_bind(r, views, 0x700000000000u, 0x7000u, before);
            td_exec_bind(r, moved, 0x700000000000u, 0x7000u, behind);
            for (; at < p->first_patch[v + 1] && p->patches[at].record == i; at++, patches++) {
                const td_reloc *reloc = &r->relocs[p->patches[at].reloc];
                const uint64_t address = td_exec_address(reloc, moved, 0, 0);

                assert_true(reloc->base == TD_BASE_VIEW && reloc->view == v);
                if (reloc->kind == TD_RELOC_TENSOR_MAP)
                    continue; /* the executor's to encode */
                assert_memory_not_equal(before + reloc->offset, behind + reloc->offset,
                                        sizeof address);
                memcpy(before + reloc->offset, &address, sizeof address);
            }
            assert_memory_equal(before, behind, r->param_bytes);
        }
    }
    assert_int_equal(patches, p->patch_count);
    for (uint32_t i = 0; i < p->plan->record_count; i++)
        for (uint32_t j = 0; j < p->plan->records[i].reloc_count; j++)
            patches -= p->plan->records[i].relocs[j].base == TD_BASE_VIEW;
    assert_int_equal(patches, 0);
}

static void test_devices(void **state)
{
    static const uint32_t sms[] = {0, 80, 86, 89, 90, 120}, counts[] = {1, 63, 64, 65};
    td_safetensors file;
    td_graph *graphs[] = {read_encoder(&file), graph_of(sums_text)};

    (void)state;
    for (int n = 0; n < 6 * 2 * 2 * 4 * 2; n++) {
        const td_graph *graph = graphs[n / 96];
        td_target target =
            n % 2 ? td_target_for_stream(sms[n / 2 % 6]) : td_target_for_sm(sms[n / 2 % 6]);
        const uint32_t numbers[2] = {counts[n / 24 % 4], counts[(n + 1) % 4]};
        const td_program *program, *again;
        char why[400] = "";

        target.twin = true;
        target.commit = n / 12 % 2;
        must(td_program_build(graph, numbers, &target, &program, why, sizeof why), why);
        must(td_program_build(graph, numbers, &target, &again, why, sizeof why), why);
        check_same(program, again);
        td_program_drop(&again);
        assert_null(again);
        check_bounds(program);
        check_order(program->plan);
        check_scratch(graph, program);
        check_patches(program);
        uint32_t chain = 1;
        for (uint32_t i = 1; i < program->plan->record_count; i++)
            chain += program->plan->records[i].barrier != TD_BARRIER_NONE;
        assert_true(program->chain == chain && chain <= program->plan->record_count);
        assert_true(fabs(td_program_floor_us(program, true) - 1.2 * chain) < 1e-9);
        const td_program *shared = td_program_use(program);
        td_program_drop(&program);
        assert_true(shared->node_count == graph->node_count && shared->nodes[0].record_count > 0 &&
                    shared->nodes[0].mflop > 0);
        td_program_drop(&shared);
    }
    td_graph_destroy(&graphs[0]);
    td_graph_destroy(&graphs[1]);
    td_safetensors_close(&file);
}

/* --- As many nodes as there may be --- */

static void add_norm(td_graph *graph, const char *from, const char *to)
{
    static const char *const sizes_of[] = {"batch", "heads", "rows"};

    td_graph_add_node(graph, TANDEM_OPERATION_NORM);
    for (int i = 0; i < 3; i++)
        td_graph_set(graph, sizes_of[i], "1");
    td_graph_set(graph, "channels", "n");
    td_graph_set_view(graph, "x", from, NULL, NULL);
    td_graph_set_view(graph, "y", to, NULL, NULL);
}

/* A chain needs two places, however long it is; nodes that do not wait for each other need all, and
 * no barriers. */
static void test_many_nodes(void **state)
{
    static const char *const shape[] = {"n"};
    const td_target target = td_target_for_sm(0);
    char why[400] = "", name[2][20];

    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        td_graph *graph = td_graph_create();
        const td_program *program;

        td_graph_add_number(graph, "n", 1000);
        td_graph_add_tensor(graph, "x", TD_ROLE_INPUT, TANDEM_DTYPE_F16, shape, 1);
        td_graph_add_tensor(graph, "y", TD_ROLE_OUTPUT, TANDEM_DTYPE_F16, shape, 1);
        for (int i = 0; i < TD_GRAPH_NODES - 1; i++) {
            snprintf(name[0], sizeof name[0], "%d", i);
            snprintf(name[1], sizeof name[1], wide || !i ? "x" : "%d", i - 1);
            td_graph_add_tensor(graph, name[0], TD_ROLE_TEMPORARY, TANDEM_DTYPE_F16, shape, 1);
            add_norm(graph, name[1], name[0]);
        }
        add_norm(graph, name[0], "y");
        must(td_graph_end(graph, why, sizeof why), why);
        must(td_program_build(graph, (const uint32_t[]){1000}, &target, &program, why, sizeof why),
             why);
        assert_int_equal(program->plan->record_count, TD_GRAPH_NODES);
        assert_int_equal(program->chain, wide ? 2 : TD_GRAPH_NODES);
        assert_int_equal(program->plan->scratch_bytes,
                         wide ? (TD_GRAPH_NODES - 1) * 2048 : 2 * 2048);
        td_program_drop(&program);
        td_graph_destroy(&graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encoder),    cmocka_unit_test(test_commit),
        cmocka_unit_test(test_state),      cmocka_unit_test(test_devices),
        cmocka_unit_test(test_many_nodes),
    };

    make_weights();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < BLOCKS * WEIGHTS; i++) {
        free(block_weights[i / WEIGHTS][i % WEIGHTS].data);
        free(block_weights[i / WEIGHTS][i % WEIGHTS].exact);
    }
    return failed;
}
