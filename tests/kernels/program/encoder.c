/* An encoder: tokens' vectors, blocks, the mean over a sequence. See encoder.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/program/encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "kernels/linear/linear.h"

enum { TEXT_BYTES = 1 << 16 };

float program_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) * 0x1p-23f - 1;
}

void program_must(tandem_status status, const char *why)
{
    if (status != TANDEM_OK)
        fail_msg("status %d: %s", status, why);
}

void *program_memory(uint64_t bytes)
{
    void *memory = aligned_alloc(256, (size_t)td_align_up(bytes + 1, 256));

    assert_non_null(memory);
    return memset(memory, 0xff, (size_t)td_align_up(bytes + 1, 256));
}

/* --- As a graph --- */

static uint16_t token_table[TOKENS * DIM], position_table[MOST * DIM];

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

void encoder_make_weights(void)
{
    uint32_t seed = 7;

    for (int i = 0; i < TOKENS * DIM; i++)
        token_table[i] = td_to_f16(program_random(&seed));
    for (int i = 0; i < MOST * DIM; i++)
        position_table[i] = td_to_f16(program_random(&seed));
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
                float value = scale * program_random(&seed) + (i == G1 || i == G2);
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

void encoder_free_weights(void)
{
    for (int i = 0; i < BLOCKS * WEIGHTS; i++) {
        free(block_weights[i / WEIGHTS][i % WEIGHTS].data);
        free(block_weights[i / WEIGHTS][i % WEIGHTS].exact);
    }
}

/* Appends to a text. */
static void say(char **at, const char *format, ...) __attribute__((format(TD_PRINTF, 2, 3)));
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
        "\"ids\": {\"role\": \"input\", \"dtype\": \"I32\", \"shape\": [\"batch\", \"tokens\"]},");
    say(&at, "\"lengths\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [\"batch\"]},");
    say(&at, "\"places\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [\"tokens\"]},");
    say(&at, "\"tokens\": {\"role\": \"weight\", \"dtype\": \"F16\", \"shape\": [%d, %d]},", TOKENS,
        DIM);
    say(&at, "\"positions\": {\"role\": \"weight\", \"dtype\": \"F16\", \"shape\": [%d, %d]},",
        MOST, DIM);
    say(&at,
        "\"in\": {\"role\": \"temporary\", \"dtype\": \"F16\", \"shape\": [\"batch * tokens\", "
        "%d]},",
        DIM);
    say(&at, "\"mean\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"batch\", %d]},",
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
    say(&at, "{\"operation\": \"embed\", \"batch\": \"batch\", \"rows\": \"tokens\",");
    say(&at, "\"channels\": %d, \"entries\": %d, \"positions\": %d,", DIM, TOKENS, MOST);
    say(&at,
        "\"views\": {\"table\": \"tokens\", \"position_table\": \"positions\", \"id\": \"ids\",");
    say(&at, "\"position\": {\"tensor\": \"places\", \"strides\": [0, 0, 1]}, \"y\": \"in\"}},");
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
    say(&at,
        ",{\"operation\": \"pool\", \"batch\": \"batch\", \"heads\": 1, \"rows\": \"tokens\",");
    say(&at, "\"channels\": %d,", DIM);
    say(&at, "\"views\": {\"x\": \"out\", \"length\": \"lengths\", \"y\": \"mean\"}}]}");
    return text;
}

/* Writes the file and reads it: the graph, and the weights of its programs. */
td_graph *encoder_graph(td_safetensors *file)
{
    const td_safetensors_text text = {TD_GRAPH_KEY, encoder_text()};
    td_safetensors_item items[BLOCKS * WEIGHTS + 2];
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
    items[BLOCKS * WEIGHTS] = (td_safetensors_item){"tokens", "F16", 2, {TOKENS, DIM}, token_table};
    items[BLOCKS * WEIGHTS + 1] =
        (td_safetensors_item){"positions", "F16", 2, {MOST, DIM}, position_table};
    program_must(
        td_safetensors_write_texts(path, &text, 1, items, BLOCKS * WEIGHTS + 2, why, sizeof why),
        why);
    program_must(td_safetensors_open(path, file, why, sizeof why), why);
    unlink(path);
    close(fd);
    program_must(td_graph_file_read(file, &graph, why, sizeof why), why);
    return graph;
}

/* --- Its nodes one by one --- */

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
    program_must(operation->check(op, why, sizeof why), why);
    program_must(operation->plan(op, &cpu, &plan, why, sizeof why), why);
    void *scratch = program_memory(plan.scratch_bytes);
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
    void *const places[TD_MAX_VIEWS] = {[TD_LINEAR_X] = x,
                                           [TD_LINEAR_W] = block_weights[block][w].data,
                                           [TD_LINEAR_BIAS] = block_weights[block][bias].data,
                                           [TD_LINEAR_RESIDUAL] = residual,
                                           [TD_LINEAR_Y] = y};

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
    void *const places[TD_MAX_VIEWS] = {
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
    void *const places[TD_MAX_VIEWS] = {qkv, qkv + DIM, qkv + 2 * DIM, o};

    op.attention.q = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, HEADS, s.tokens, HEAD_DIM);
    op.attention.q.stride_batch = (int64_t)s.tokens * 3 * DIM;
    op.attention.q.stride_head = HEAD_DIM;
    op.attention.q.stride_row = 3 * DIM;
    op.attention.k = op.attention.v = op.attention.o = op.attention.q;
    op.attention.o.stride_batch = (int64_t)s.tokens * DIM;
    op.attention.o.stride_row = DIM;
    run_operation(TANDEM_OPERATION_ATTENTION, &op, places);
}

static void run_embed(sizes s, void *y)
{
    tandem_operands op = {.embed = {.batch = s.batch,
                                    .rows = s.tokens,
                                    .channels = DIM,
                                    .entries = TOKENS,
                                    .positions = MOST}};
    void *const places[TD_MAX_VIEWS] = {token_table, position_table, NULL, s.ids, s.places, NULL, y};

    op.embed.table = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, TOKENS, DIM);
    op.embed.position_table = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, MOST, DIM);
    op.embed.id = tandem_view_dense(0, 0, TANDEM_DTYPE_I32, 1, s.tokens, 1);
    op.embed.position = op.embed.id;
    op.embed.position.stride_batch = 0;
    op.embed.y = tandem_view_dense(0, 0, TANDEM_DTYPE_F16, 1, s.tokens, DIM);
    run_operation(TANDEM_OPERATION_EMBED, &op, places);
}

static void run_pool(sizes s, void *x, void *y)
{
    tandem_operands op = {
        .pool = {.batch = s.batch, .heads = 1, .rows = s.tokens, .channels = DIM}};
    void *const places[TD_MAX_VIEWS] = {x, s.lengths, y};

    op.pool.x = tandem_view_dense(0, 0, TANDEM_DTYPE_F32, 1, s.tokens, DIM);
    op.pool.length = tandem_view_dense(0, 0, TANDEM_DTYPE_I32, 1, 1, 1);
    op.pool.y = tandem_view_dense(0, 0, TANDEM_DTYPE_F32, 1, 1, DIM);
    run_operation(TANDEM_OPERATION_POOL, &op, places);
}

void encoder_nodes(sizes s, float *out, float *mean)
{
    uint16_t *x = program_memory(s.rows * DIM * 2), *qkv = program_memory(s.rows * 3 * DIM * 2),
             *mixed = program_memory(s.rows * DIM * 2), *sum = program_memory(s.rows * DIM * 2),
             *norm = program_memory(s.rows * DIM * 2), *up = program_memory(s.rows * HIDDEN * 2);

    run_embed(s, x);
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
    run_pool(s, out, mean);
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

void encoder_exactly(uint32_t tokens, const int32_t *ids, double *out)
{
    static double qkv[MOST * 3 * DIM], mixed[MOST * DIM], sum[MOST * DIM], norm[MOST * DIM],
        up[MOST * HIDDEN];

    for (uint32_t i = 0; i < tokens * DIM; i++)
        out[i] = (double)td_from_f16(token_table[(uint32_t)ids[i / DIM] * DIM + i % DIM]) +
                 (double)td_from_f16(position_table[i]);
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
