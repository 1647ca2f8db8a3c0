/* Language models of Llama's architecture with made-up weights, as programs on the CPU: against
 * float64, in files of several kinds; and files that are refused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/llama_file.h"
#include "kernels/tiles.h"
#include "tests/kernels/llama_util.h"

enum { TOKENS = 20, SLOTS = 2 };

/* --- In float64 --- */

typedef struct exact {
    const lu_model *model;
    double *x; /* [TOKENS][dim] */
} exact;

static double *read_weight(const exact *e, const char *format, uint32_t layer)
{
    char name[64];

    snprintf(name, sizeof name, format, (unsigned)layer);
    const td_gguf_tensor *tensor = td_gguf_find_tensor(&e->model->file, name);
    assert_non_null(tensor);
    double *weight = malloc(tensor->shape[0] * tensor->shape[1] * sizeof *weight);
    assert_non_null(weight);
    lf_read(tensor, weight);
    return weight;
}

static double *new_rows(uint32_t channels)
{
    double *rows = calloc((size_t)TOKENS * channels, sizeof *rows);

    assert_non_null(rows);
    return rows;
}

/* x w^T */
static double *multiply(const exact *e, const double *x, uint32_t ins, const char *name,
                        uint32_t layer, uint32_t outs)
{
    double *w = read_weight(e, name, layer), *y = new_rows(outs);

    for (uint32_t r = 0; r < TOKENS; r++)
        for (uint32_t o = 0; o < outs; o++)
            for (uint32_t i = 0; i < ins; i++)
                y[r * outs + o] += x[r * ins + i] * w[(size_t)o * ins + i];
    free(w);
    return y;
}

static double *normalise(const exact *e, const char *name, uint32_t layer)
{
    const uint32_t dim = e->model->llama.sizes.dim;
    double *w = read_weight(e, name, layer), *y = new_rows(dim);

    for (uint32_t r = 0; r < TOKENS; r++) {
        double squares = 0;

        for (uint32_t i = 0; i < dim; i++)
            squares += e->x[r * dim + i] * e->x[r * dim + i];
        for (uint32_t i = 0; i < dim; i++)
            y[r * dim + i] = e->x[r * dim + i] / sqrt(squares / dim + 1e-5) * w[i];
    }
    free(w);
    return y;
}

static void rotate(const exact *e, double *y, uint32_t heads)
{
    const td_llama_sizes *s = &e->model->llama.sizes;

    for (uint32_t r = 0; r < TOKENS; r++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t i = 0; i < s->rotated_channels / 2; i++) {
                double *pair = y + (r * heads + h) * s->head_dim + 2 * i;
                const double angle = r * pow(10000, -2.0 * i / s->rotated_channels);
                const double a = pair[0], b = pair[1];

                pair[0] = a * cos(angle) - b * sin(angle);
                pair[1] = a * sin(angle) + b * cos(angle);
            }
}

static void attend(const td_llama_sizes *s, const double *q, const double *k, const double *v,
                   uint32_t r, uint32_t h, double *o)
{
    const uint32_t kv_head = h / (s->heads / s->kv_heads);
    double p[TOKENS], sum = 0;

    for (uint32_t j = 0; j <= r; j++) {
        double score = 0;

        for (uint32_t c = 0; c < s->head_dim; c++)
            score += q[(r * s->heads + h) * s->head_dim + c] *
                     k[(j * s->kv_heads + kv_head) * s->head_dim + c];
        sum += p[j] = exp(score / sqrt(s->head_dim));
    }
    for (uint32_t j = 0; j <= r; j++)
        for (uint32_t c = 0; c < s->head_dim; c++)
            o[c] += p[j] / sum * v[(j * s->kv_heads + kv_head) * s->head_dim + c];
}

static void add_to(double *x, double *y, uint32_t channels)
{
    for (uint32_t i = 0; i < TOKENS * channels; i++)
        x[i] += y[i];
    free(y);
}

static void add_layer(exact *e, uint32_t layer)
{
    const td_llama_sizes *s = &e->model->llama.sizes;
    double *n = normalise(e, "blk.%u.attn_norm.weight", layer);
    double *q = multiply(e, n, s->dim, "blk.%u.attn_q.weight", layer, s->heads * s->head_dim);
    double *k = multiply(e, n, s->dim, "blk.%u.attn_k.weight", layer, s->kv_heads * s->head_dim);
    double *v = multiply(e, n, s->dim, "blk.%u.attn_v.weight", layer, s->kv_heads * s->head_dim);
    double *o = new_rows(s->heads * s->head_dim);

    rotate(e, q, s->heads);
    rotate(e, k, s->kv_heads);
    for (uint32_t r = 0; r < TOKENS; r++)
        for (uint32_t h = 0; h < s->heads; h++)
            attend(s, q, k, v, r, h, o + (r * s->heads + h) * s->head_dim);
    add_to(e->x, multiply(e, o, s->heads * s->head_dim, "blk.%u.attn_output.weight", layer, s->dim),
           s->dim);
    free(n), free(q), free(k), free(v), free(o);

    n = normalise(e, "blk.%u.ffn_norm.weight", layer);
    double *gate = multiply(e, n, s->dim, "blk.%u.ffn_gate.weight", layer, s->hidden);
    double *up = multiply(e, n, s->dim, "blk.%u.ffn_up.weight", layer, s->hidden);
    for (uint32_t i = 0; i < TOKENS * s->hidden; i++)
        gate[i] *= up[i] / (1 + exp(-gate[i]));
    add_to(e->x, multiply(e, gate, s->hidden, "blk.%u.ffn_down.weight", layer, s->dim), s->dim);
    free(n), free(gate), free(up);
}

/* Of TOKENS tokens: logits [TOKENS][words]. */
static double *exact_logits(const lu_model *model, const int32_t *ids)
{
    const td_llama_sizes *s = &model->llama.sizes;
    exact e = {.model = model, .x = new_rows(s->dim)};
    const bool tied = !td_gguf_find_tensor(&model->file, "output.weight");
    double *words = read_weight(&e, "token_embd.weight", 0);

    for (uint32_t r = 0; r < TOKENS; r++)
        memcpy(e.x + r * s->dim, words + (size_t)ids[r] * s->dim, s->dim * sizeof *words);
    free(words);
    for (uint32_t i = 0; i < s->layers; i++)
        add_layer(&e, i);
    double *n = normalise(&e, "output_norm.weight", 0);
    double *logits =
        multiply(&e, n, s->dim, tied ? "token_embd.weight" : "output.weight", 0, s->words);
    free(n);
    free(e.x);
    return logits;
}

/* --- Files that are computed --- */

static const lf_shape base = {.layers = 2,
                              .dim = 256,
                              .hidden = 512,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 64,
                              .rotated_channels = 64,
                              .words = 300,
                              .context = 48,
                              .dtype = TANDEM_DTYPE_F16};

/* Operands are rounded to fp16, sums are float32; logits are about 1. A row at a time and all at
 * once have the same bits here. */
static void check(const lf_shape *shape)
{
    uint64_t bytes;
    void *file = lf_make(shape, NULL, &bytes);
    lu_model model = lu_open(NULL, file, bytes, SLOTS, 0);
    lu_instance it = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
    const uint32_t words = shape->words;
    float *logits = lu_memory(2 * (uint64_t)TOKENS * words * sizeof *logits);
    float *others = logits + TOKENS * words;
    int32_t ids[TOKENS];
    double worst = 0;

    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)((i * 37 + 5) % words);
    double *want = exact_logits(&model, ids);
    lu_compute_sequence(&it, ids, 0, TOKENS, TOKENS, logits);
    for (uint32_t i = 0; i < TOKENS * words; i++)
        worst = fmax(worst, fabs((double)logits[i] - want[i]));
    print_message("matrices of dtype %u: off by %.4f at most\n", (unsigned)shape->dtype, worst);
    assert_true(worst <= 0.02);
    for (uint32_t most = 1; most < TOKENS; most += 6) {
        lu_compute_sequence(&it, ids, 0, TOKENS, most, others);
        assert_memory_equal(logits, others, TOKENS * words * sizeof *logits);
    }
    free(want);
    free(logits);
    lu_end(&it);
    lu_close(&model);
    free(file);
}

static void test_dtypes(void **state)
{
    static const uint32_t dtypes[] = {TANDEM_DTYPE_F32,  TANDEM_DTYPE_F16,  TANDEM_DTYPE_BF16,
                                      TANDEM_DTYPE_Q8_0, TANDEM_DTYPE_Q4_0, TANDEM_DTYPE_Q4_1,
                                      TANDEM_DTYPE_Q4_K, TANDEM_DTYPE_Q5_K, TANDEM_DTYPE_Q6_K};
    (void)state;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        lf_shape shape = base;

        shape.dtype = dtypes[i];
        check(&shape);
    }
}

/* For a GPU each weight is what it is for a CPU, in tiles where it can be, in whatever pieces it is
 * read. */
static void check_tiles(const lf_shape *shape, uint32_t most)
{
    uint64_t bytes;
    void *file = lf_make(shape, NULL, &bytes);
    lu_model rows = lu_open(NULL, file, bytes, 1, 0), tiles = lu_open_as(NULL, file, bytes, &(td_llama_desc){.slots = 1, .tiles = true});
    uint32_t in_tiles = 0;

    assert_int_equal(rows.llama.weight_count, tiles.llama.weight_count);
    assert_int_equal(rows.weight_bytes, tiles.weight_bytes);
    for (uint32_t i = 0; i < rows.llama.weight_count; i++) {
        const td_llama_weight *weight = &tiles.llama.weights[i];
        const td_dtype of = td_dtype_of(weight->dtype);
        const uint64_t channels = weight->parts[0] ? weight->parts[0]->shape[0] : 0;
        uint64_t all = 0;

        for (int part = 0; part < TD_LLAMA_PARTS && weight->parts[part]; part++)
            all += td_llama_part_bytes(weight, weight->parts[part]);
        if (!td_dtype_is_tiles(weight->dtype)) {
            assert_int_equal(weight->dtype, rows.llama.weights[i].dtype);
            continue;
        }
        const uint64_t rows_here = all / (channels / of.elements * of.bytes);
        uint8_t *plain = lu_memory(all), *want = lu_memory(all), *got = lu_memory(all);

        in_tiles++;
        td_llama_read_weight(&rows.llama, i, 0, all, plain);
        td_tiles_pack_matrix(weight->dtype, plain, rows_here, channels, want);
        for (uint64_t at = 0, n = 4; at < all; at += n, n = n * 7 % 9973 / 4 * 4 + 4) {
            n = n < all - at ? n : all - at;
            td_llama_read_weight(&tiles.llama, i, at, n, got + at);
        }
        assert_memory_equal(got, want, all);
        free(plain);
        free(want);
        free(got);
    }
    assert_int_equal(in_tiles, most);
    lu_close(&rows);
    lu_close(&tiles);
    free(file);
}

static void test_tiles(void **state)
{
    lf_shape shape = base;

    (void)state;
    check_tiles(&shape, 0);
    shape.words = 320;
    for (uint32_t dtype = TANDEM_DTYPE_Q8_0; dtype <= TANDEM_DTYPE_Q5_K; dtype++) {
        shape.dtype = dtype;
        check_tiles(&shape, 1 + 4 * shape.layers);
    }
    shape.words = 300; /* no whole tiles */
    check_tiles(&shape, 4 * shape.layers);
    shape.dim = 192; /* no whole chunks of Q4_1's, but where channels are the hidden ones */
    shape.heads = 3;
    shape.kv_heads = 1;
    shape.dtype = TANDEM_DTYPE_Q4_1;
    check_tiles(&shape, shape.layers);
}

/* Values and logits with matrices of another dtype, heads that are not dim / heads wide, of which
 * some channels are turned, as many heads of keys as of queries. */
static void test_shapes(void **state)
{
    lf_shape shape = base;

    (void)state;
    shape.value_dtype = TANDEM_DTYPE_Q8_0;
    check(&shape);
    shape.output_dtype = TANDEM_DTYPE_Q4_1;
    check(&shape);
    shape.head_dim = 32;
    shape.rotated_channels = 16;
    check(&shape);
    shape.kv_heads = 4;
    check(&shape);
}

/* --- Slots --- */

/* Two sequences at once, each at a position of its own, have what each has alone; padding changes
 * nothing. */
static void test_slots(void **state)
{
    uint64_t bytes;
    void *file = lf_make(&base, NULL, &bytes);
    lu_model model = lu_open(NULL, file, bytes, SLOTS, 0);
    lu_instance alone = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
    lu_instance both = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
    const uint32_t words = base.words;
    float *want = lu_memory(2 * (uint64_t)TOKENS * words * sizeof *want);
    float *got = lu_memory((uint64_t)SLOTS * words * sizeof *got);
    int32_t ids[SLOTS][TOKENS];

    (void)state;
    for (int i = 0; i < SLOTS * TOKENS; i++)
        ids[i / TOKENS][i % TOKENS] = i * 41 % (int32_t)words;
    for (int slot = 0; slot < SLOTS; slot++)
        lu_compute_sequence(&alone, ids[slot], 0, TOKENS, TOKENS,
                            want + slot * TOKENS * (int)words);
    for (int32_t begin[SLOTS] = {0}, step = 0; begin[0] < TOKENS; step++) {
        const int32_t counts[SLOTS] = {3, step % 3 + 1}; /* the second falls behind */
        int32_t now[SLOTS][3], positions[SLOTS][3], rows[SLOTS];

        for (int slot = 0; slot < SLOTS; slot++) {
            const int32_t left = TOKENS - begin[slot],
                          n = counts[slot] < left ? counts[slot] : left;

            for (int i = 0; i < 3; i++) {
                now[slot][i] = i < n ? ids[slot][begin[slot] + i] : INT32_MAX;
                positions[slot][i] = i < n ? begin[slot] + i : -1;
            }
            rows[slot] = 3 * slot + n - 1;
            begin[slot] += n;
        }
        lu_compute(&both, (const uint32_t[]){SLOTS, 3, SLOTS}, now[0], positions[0], rows, got);
        for (int slot = 0; slot < SLOTS; slot++)
            assert_memory_equal(got + slot * (int)words,
                                want + (slot * TOKENS + begin[slot] - 1) * (int)words,
                                words * sizeof *got);
    }
    free(want);
    free(got);
    lu_end(&alone);
    lu_end(&both);
    lu_close(&model);
    free(file);
}

/* What a sequence left in its slot changes nothing for the next one there. */
static void test_next_sequence(void **state)
{
    uint64_t bytes;
    void *file = lf_make(&base, NULL, &bytes);
    lu_model model = lu_open(NULL, file, bytes, SLOTS, 0);
    lu_instance it = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
    const uint32_t words = base.words;
    float *want = lu_memory(2 * (uint64_t)TOKENS * words * sizeof *want),
          *got = want + TOKENS * words;
    int32_t ids[TOKENS], others[TOKENS];

    (void)state;
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = i * 41 % (int32_t)words;
        others[i] = i * 53 % (int32_t)words;
    }
    lu_compute_sequence(&it, ids, 0, TOKENS, TOKENS, want);
    for (uint32_t most = 1; most <= 5; most += 2) {
        lu_compute_sequence(&it, others, 0, TOKENS, TOKENS, got);
        lu_compute_sequence(&it, ids, 0, TOKENS, most, got);
        assert_memory_equal(got, want, TOKENS * words * sizeof *got);
    }
    free(want);
    lu_end(&it);
    lu_close(&model);
    free(file);
}

/* Positions beyond the cache write nothing, wherever they are. */
static void test_positions_beyond(void **state)
{
    static const int32_t beyond[] = {48, 49, INT32_MAX, -1, INT32_MIN};
    uint64_t bytes;
    void *file = lf_make(&base, NULL, &bytes);
    lu_model model = lu_open(NULL, file, bytes, SLOTS, 0);
    lu_instance it = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
    unsigned char *before = malloc(model.state_bytes);
    float *logits = lu_memory(base.words * sizeof *logits);

    (void)state;
    assert_non_null(before);
    memcpy(before, it.state, model.state_bytes);
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        lu_compute(&it, (const uint32_t[]){1, 1, 1}, &(int32_t){7}, &beyond[i], &(int32_t){0},
                   logits);
        assert_memory_equal(it.state, before, model.state_bytes);
    }
    free(before);
    free(logits);
    lu_end(&it);
    lu_close(&model);
    free(file);
}

/* --- Caches of codes --- */

/* A model's logits of three pages and a bit of tokens, in chunks of at most `most` within a page. */
static void compute_pages(lu_instance *it, const int32_t *ids, uint32_t count, uint32_t most,
                          float *logits)
{
    const uint32_t words = it->model->llama.sizes.words;

    for (uint32_t done = 0, n; done < count; done += n) {
        n = 64 - done % 64 < count - done ? 64 - done % 64 : count - done;
        lu_compute_sequence(it, ids + done, done, n, most, logits + (size_t)done * words);
    }
}

/* Codes change logits a little, and the same whether tokens come one by one or many at a time. */
static void test_codes(void **state)
{
    static const double least[] = {1, 0.998, 0.98}; /* of cosines */
    enum { COUNT = 150 };
    lf_shape shape = base;
    uint64_t bytes, cache_bytes = 0;
    int32_t ids[COUNT];

    (void)state;
    shape.context = 200;
    void *file = lf_make(&shape, NULL, &bytes);
    float *want = lu_memory(3 * (uint64_t)COUNT * shape.words * sizeof *want),
          *got = want + COUNT * shape.words, *again = got + COUNT * shape.words;
    for (int i = 0; i < COUNT; i++)
        ids[i] = i * 41 % (int32_t)shape.words;
    for (uint32_t format = 0; format <= TANDEM_CACHE_K4V8; format++) {
        lu_model model = lu_open_cached(NULL, file, bytes, SLOTS, 0, format);
        lu_instance it = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
        double worst = 1;

        compute_pages(&it, ids, COUNT, 64, format ? got : want);
        if (!format)
            memcpy(got, want, COUNT * shape.words * sizeof *want);
        for (uint32_t i = 0; i < COUNT; i++)
            worst = fmin(worst, lu_cosine(got + i * shape.words, want + i * shape.words, shape.words));
        print_message("format %u: a cosine of %.6f at least\n", (unsigned)format, worst);
        assert_true(worst >= least[format]);
        assert_true(format || worst == 1);
        for (uint32_t most = 1; most <= 40; most += 13) {
            compute_pages(&it, ids, COUNT, most, again);
            assert_memory_equal(got, again, COUNT * shape.words * sizeof *got);
        }
        assert_true(!format || model.state_bytes < cache_bytes);
        cache_bytes = model.state_bytes;
        lu_end(&it);
        lu_close(&model);
    }
    free(want);
    free(file);
}

/* --- Files that are refused --- */

static void refuse(const lf_change *change, uint32_t slots, uint32_t context, tandem_status status,
                   const char *says)
{
    char why[400] = "";
    uint64_t bytes;
    void *file = lf_make(&base, change, &bytes);
    td_gguf gguf;
    td_llama model;

    lu_must(td_gguf_read(file, bytes, &gguf, why, sizeof why), why);
    const tandem_status got = td_llama_open(&gguf, &(td_llama_desc){.slots = slots, .context = context}, &model, why, sizeof why);
    if (got != status || !strstr(why, says))
        fail_msg("status %d, \"%s\" instead of \"%s\"", got, why, says);
    assert_null(model.graph);
    td_llama_close(&model);
    td_gguf_close(&gguf);
    free(file);
}

static void refuse_cache(const lf_shape *shape, uint32_t cache, uint32_t pages,
                         tandem_status status, const char *says)
{
    char why[400] = "";
    uint64_t bytes;
    void *file = lf_make(shape, NULL, &bytes);
    td_gguf gguf;
    td_llama model;

    lu_must(td_gguf_read(file, bytes, &gguf, why, sizeof why), why);
    assert_int_equal(td_llama_open(&gguf, &(td_llama_desc){.slots = 1, .cache = cache, .pages = pages}, &model, why, sizeof why), status);
    assert_non_null(strstr(why, says));
    td_gguf_close(&gguf);
    free(file);
}

static void test_refusals(void **state)
{
    lf_shape narrow = base;
    static const struct {
        lf_change change;
        tandem_status status;
        const char *says;
    } cases[] = {
        {{.key = "general.architecture", .text = "mamba"},
         TANDEM_ERROR_UNSUPPORTED,
         "general.architecture is \"mamba\"; it must be llama, qwen2, qwen3, gemma, gemma2 or gemma3"},
        {{.lacks = "general.architecture"}, TANDEM_ERROR_PROTOCOL, "general.architecture"},
        {{.lacks = "llama.block_count"}, TANDEM_ERROR_PROTOCOL, "llama.block_count"},
        {{.key = "llama.block_count", .number = 0},
         TANDEM_ERROR_PROTOCOL,
         "llama.block_count is 0; it must be 1 to 256"},
        {{.key = "llama.block_count", .number = 257},
         TANDEM_ERROR_PROTOCOL,
         "llama.block_count is 257; it must be 1 to 256"},
        {{.key = "llama.block_count", .number = 3},
         TANDEM_ERROR_PROTOCOL,
         "blk.2.attn_norm.weight"},
        {{.key = "llama.block_count", .text = "2"}, TANDEM_ERROR_PROTOCOL, "llama.block_count"},
        {{.key = "llama.context_length", .number = 0},
         TANDEM_ERROR_PROTOCOL,
         "llama.context_length is 0"},
        {{.key = "llama.embedding_length", .number = 512},
         TANDEM_ERROR_PROTOCOL,
         "token_embd.weight"},
        {{.key = "llama.feed_forward_length", .number = 768},
         TANDEM_ERROR_PROTOCOL,
         "blk.0.ffn_gate.weight"},
        {{.key = "llama.attention.head_count", .number = 0},
         TANDEM_ERROR_PROTOCOL,
         "llama.attention.head_count is 0"},
        {{.key = "llama.attention.head_count_kv", .number = 3},
         TANDEM_ERROR_PROTOCOL,
         "llama.attention.head_count is 4; it must be a multiple of attention.head_count_kv, which "
         "is 3"},
        {{.key = "llama.attention.head_count_kv", .number = 5},
         TANDEM_ERROR_PROTOCOL,
         "llama.attention.head_count_kv is 5; it must be 1 to 4"},
        {{.key = "llama.attention.value_length", .number = 32},
         TANDEM_ERROR_UNSUPPORTED,
         "llama.attention.value_length is 32; it must be that of keys, 64"},
        {{.key = "llama.rope.dimension_count", .number = 65},
         TANDEM_ERROR_PROTOCOL,
         "llama.rope.dimension_count is 65; it must be 1 to 64"},
        {{.key = "llama.rope.freq_base", .text = "large"},
         TANDEM_ERROR_PROTOCOL,
         "llama.rope.freq_base"},
        {{.lacks = "llama.attention.layer_norm_rms_epsilon"},
         TANDEM_ERROR_PROTOCOL,
         "llama.attention.layer_norm_rms_epsilon"},
        {{.key = "llama.rope.scaling.type", .text = "longrope"},
         TANDEM_ERROR_UNSUPPORTED,
         "llama.rope.scaling.type is \"longrope\"; it must be none, linear or yarn"},
        {{.key = "llama.rope.scaling.type", .number = 1},
         TANDEM_ERROR_PROTOCOL,
         "llama.rope.scaling.type"},
        {{.key = "llama.rope.dimension_count", .number = 12},
         TANDEM_ERROR_UNSUPPORTED,
         "llama.rope.dimension_count is 12; it must be a multiple of 8"},
        {{.key = "llama.expert_count", .number = 8},
         TANDEM_ERROR_UNSUPPORTED,
         "llama.expert_count is there"},
        {{.adds = "rope_freqs.weight"}, TANDEM_ERROR_PROTOCOL, "rope_freqs.weight"},
        {{.adds = "blk.0.attn_q.bias"}, TANDEM_ERROR_PROTOCOL, "blk.0.attn_k.bias"},
        {{.adds = "blk.0.attn_k.bias"},
         TANDEM_ERROR_UNSUPPORTED,
         "blk.0.attn_k.bias is there, which nothing here computes for the architecture llama"},
        {{.adds = "blk.1.attn_q_norm.weight"},
         TANDEM_ERROR_UNSUPPORTED,
         "blk.1.attn_q_norm.weight is there"},
        {{.lacks = "token_embd.weight"}, TANDEM_ERROR_PROTOCOL, "token_embd.weight"},
        {{.lacks = "output_norm.weight"}, TANDEM_ERROR_PROTOCOL, "output_norm.weight"},
        {{.lacks = "blk.1.attn_v.weight"}, TANDEM_ERROR_PROTOCOL, "blk.1.attn_v.weight"},
        {{.lacks = "blk.1.ffn_down.weight"}, TANDEM_ERROR_PROTOCOL, "blk.1.ffn_down.weight"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(&cases[i].change, 1, 0, cases[i].status, cases[i].says);
    refuse(NULL, 0, 0, TANDEM_ERROR_ARG, "slots is 0; it must be at least 1");
    refuse(NULL, 1, 49, TANDEM_ERROR_ARG, "context is 49; the model was trained for 48");
    refuse(NULL, 1 << 30, 48, TANDEM_ERROR_ARG, "numbers.wanted: the most is");
    refuse_cache(&base, 4, 0, TANDEM_ERROR_ARG,
                 "cache is 4; it must be 0 (f16), 1 (k8v8), 2 (k4v8) or 3 (f32)");
    refuse_cache(&base, 3, 4, TANDEM_ERROR_UNSUPPORTED, "cache is 3 (f32), pages 4; pools are f16, k8v8 or k4v8");
    narrow.head_dim = narrow.rotated_channels = 32;
    refuse_cache(&narrow, 1, 0, TANDEM_ERROR_UNSUPPORTED, "its heads have 32 channels");
    refuse_cache(&narrow, 0, 4, TANDEM_ERROR_UNSUPPORTED, "its heads have 32 channels");
    refuse_cache(&base, 0, 4000000, TANDEM_ERROR_ARG, "slots, pages are 1, 4000000; a pool has at most");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtypes), cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_next_sequence),
        cmocka_unit_test(test_positions_beyond),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
