/* Llama's architecture as a graph. See llama.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/model/llama.h"

#include <inttypes.h>

enum {
    MOST_LAYERS = 256,
    PAGE_TOKENS = 64, /* of a run whose caches are codes */
    WHY_BYTES = 300,
    NAME_BYTES = 64,
    TEXT_BYTES = 160
};

/* A model in the making. What is wrong is noted in its graph. */
typedef struct maker {
    const td_gguf *file;
    td_llama *model;
    td_graph *graph;
} maker;

#define FAIL(status, ...) td_graph_fail(m->graph, status, __VA_ARGS__)

static bool failed(const maker *m)
{
    return m->graph->status != TANDEM_OK;
}

/* --- What the file says --- */

typedef struct text {
    char bytes[TEXT_BYTES];
} text;

static text format(const char *format, ...) __attribute__((format(printf, 1, 2)));
static text format(const char *format, ...)
{
    text t;
    va_list args;

    va_start(args, format);
    td_text_list(t.bytes, sizeof t.bytes, format, args);
    va_end(args);
    return t;
}

static text key_of(const char *name)
{
    return format("llama.%s", name);
}

/* A size of 1 to `most`; `otherwise` where the file does not say it, unless that is 0. */
static uint32_t size_of(maker *m, const char *name, uint32_t otherwise, uint32_t most)
{
    const text key = key_of(name);
    uint32_t size = otherwise;
    char why[WHY_BYTES];

    if (!otherwise || td_gguf_find(m->file, key.bytes)) {
        const tandem_status status = td_gguf_u32(m->file, key.bytes, &size, why, sizeof why);
        if (status != TANDEM_OK)
            FAIL(status, "%s", why);
    }
    if (!failed(m) && (size < 1 || size > most))
        FAIL(TANDEM_ERROR_PROTOCOL, "%s is %" PRIu32 "; it must be 1 to %" PRIu32, key.bytes, size,
             most);
    return size;
}

/* A number above 0, `most` at most; `otherwise` as above. */
static float number_of(maker *m, const char *name, float otherwise, float most)
{
    const text key = key_of(name);
    float number = otherwise;
    char why[WHY_BYTES];

    if (otherwise <= 0 || td_gguf_find(m->file, key.bytes)) {
        const tandem_status status = td_gguf_f32(m->file, key.bytes, &number, why, sizeof why);
        if (status != TANDEM_OK)
            FAIL(status, "%s", why);
    }
    if (!failed(m) && !(number > 0 && number <= most))
        FAIL(TANDEM_ERROR_PROTOCOL, "%s is %g; it must be above 0, and %g at most", key.bytes,
             (double)number, (double)most);
    return number;
}

/* What would change what is computed, in a way that is not known here. */
static void refuse_others(maker *m)
{
    static const char *const counts[] = {"expert_count", "attention.sliding_window"};
    static const char *const tensors[] = {"rope_freqs.weight", "blk.0.attn_q.bias",
                                          "blk.0.attn_q_norm.weight"};
    const text scaling = key_of("rope.scaling.type");
    td_gguf_string architecture, kind;
    char why[WHY_BYTES];
    tandem_status status =
        td_gguf_text(m->file, "general.architecture", &architecture, why, sizeof why);

    if (status != TANDEM_OK)
        FAIL(status, "%s", why);
    else if (!td_gguf_string_is(architecture, "llama"))
        FAIL(TANDEM_ERROR_UNSUPPORTED, "general.architecture is \"%.*s\"; it must be \"llama\"",
             (int)(architecture.length < NAME_BYTES ? architecture.length : NAME_BYTES),
             architecture.bytes);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const text key = key_of(counts[i]);
        uint32_t count = 0;

        if (td_gguf_find(m->file, key.bytes) &&
            (td_gguf_u32(m->file, key.bytes, &count, why, sizeof why) != TANDEM_OK || count))
            FAIL(TANDEM_ERROR_UNSUPPORTED, "%s is there, which nothing here computes", key.bytes);
    }
    if (td_gguf_find(m->file, scaling.bytes) &&
        (td_gguf_text(m->file, scaling.bytes, &kind, why, sizeof why) != TANDEM_OK ||
         !td_gguf_string_is(kind, "none")))
        FAIL(TANDEM_ERROR_UNSUPPORTED, "%s is there, and not \"none\"", scaling.bytes);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        if (td_gguf_find_tensor(m->file, tensors[i]))
            FAIL(TANDEM_ERROR_UNSUPPORTED, "%s is there, which nothing here computes", tensors[i]);
}

static void read_sizes(maker *m)
{
    td_llama_sizes *s = &m->model->sizes;
    const td_gguf_tensor *words = td_gguf_find_tensor(m->file, "token_embd.weight");

    refuse_others(m);
    s->layers = size_of(m, "block_count", 0, MOST_LAYERS);
    s->dim = size_of(m, "embedding_length", 0, 1 << 20);
    s->hidden = size_of(m, "feed_forward_length", 0, 1 << 22);
    s->heads = size_of(m, "attention.head_count", 0, 1 << 12);
    s->context = size_of(m, "context_length", 0, 1 << 24);
    if (failed(m))
        return;
    s->kv_heads = size_of(m, "attention.head_count_kv", s->heads, s->heads);
    s->head_dim = size_of(m, "attention.key_length", s->dim / s->heads, TD_LLAMA_MOST_HEAD_DIM);
    const uint32_t value_dim = size_of(m, "attention.value_length", s->head_dim, TD_LLAMA_MOST_HEAD_DIM);
    s->rotated_channels = size_of(m, "rope.dimension_count", s->head_dim, s->head_dim);
    s->epsilon = number_of(m, "attention.layer_norm_rms_epsilon", 0, 0.1f);
    s->frequency_base = number_of(m, "rope.freq_base", 10000, 1e12f);
    if (!words)
        FAIL(TANDEM_ERROR_PROTOCOL, "token_embd.weight: there is no such tensor");
    else if (words->shape[1] < 1 || words->shape[1] > TD_MOST_DIMENSION)
        FAIL(TANDEM_ERROR_PROTOCOL, "token_embd.weight has %" PRIu64 " rows; it must be 1 to %d",
             words->shape[1], TD_MOST_DIMENSION);
    else
        s->words = (uint32_t)words->shape[1];
    if (failed(m))
        return;
    if (value_dim != s->head_dim)
        FAIL(TANDEM_ERROR_UNSUPPORTED,
             "llama.attention.value_length is %" PRIu32 "; it must be that of keys, %" PRIu32,
             value_dim, s->head_dim);
    if (s->heads % s->kv_heads)
        FAIL(TANDEM_ERROR_PROTOCOL,
             "llama.attention.head_count is %" PRIu32 "; it must be a multiple of "
             "attention.head_count_kv, which is %" PRIu32,
             s->heads, s->kv_heads);
}

/* --- Tensors --- */

static text layer_name(uint32_t layer, const char *name)
{
    return format("blk.%" PRIu32 ".%s", layer, name);
}

static void add_tensor(maker *m, const char *name, td_role role, uint32_t dtype, const char *rows,
                       uint32_t channels)
{
    const text columns = format("%" PRIu32, channels);
    const char *const shape[2] = {rows, columns.bytes};

    td_graph_add_tensor(m->graph, name, role, dtype, shape, 2);
}

/* Rows of a run's tokens. */
static void add_rows(maker *m, const char *name, uint32_t dtype, uint32_t channels)
{
    add_tensor(m, name, TD_ROLE_TEMPORARY, dtype, "batch * tokens", channels);
}

static void add_weight(maker *m, const char *name, uint32_t dtype, uint32_t rows, uint32_t channels,
                       const td_gguf_tensor *const parts[TD_LLAMA_PARTS])
{
    td_llama *model = m->model;
    td_llama_weight weight = {.tensor = m->graph->tensor_count, .dtype = dtype};

    add_tensor(m, name, TD_ROLE_WEIGHT, dtype, format("%" PRIu32, rows).bytes, channels);
    if (failed(m))
        return;
    if (parts)
        memcpy(weight.parts, parts, sizeof weight.parts);
    td_llama_weight *weights = td_arena_grow(&model->memory, model->weights, model->weight_count,
                                             sizeof *weights, _Alignof(td_llama_weight));
    if (!weights) {
        FAIL(TANDEM_ERROR_NOMEM, "no memory for a model of %" PRIu32 " weights",
             model->weight_count);
        return;
    }
    model->weights = weights;
    weights[model->weight_count++] = weight;
}

/* A matrix or, of one row, a vector of the file; NULL where it is not there, or another. */
static const td_gguf_tensor *find(maker *m, const char *name, uint32_t rows, uint32_t channels)
{
    const uint64_t shape[TD_GGUF_DIMENSIONS] = {channels, rows, 1, 1};
    const td_gguf_tensor *tensor = NULL;
    char why[WHY_BYTES];

    if (failed(m))
        return NULL;
    const tandem_status status = td_gguf_weights(m->file, name, shape, &tensor, why, sizeof why);
    if (status != TANDEM_OK)
        FAIL(status, "%s", why);
    return tensor;
}

/* As kernels take a matrix of that dtype. */
static uint32_t matrix_dtype(uint32_t dtype)
{
    return dtype == TANDEM_DTYPE_F32 || dtype == TANDEM_DTYPE_BF16 ? (uint32_t)TANDEM_DTYPE_F16
                                                                   : dtype;
}

static void add_matrix(maker *m, const char *name, uint32_t rows, uint32_t channels)
{
    const td_gguf_tensor *const parts[TD_LLAMA_PARTS] = {find(m, name, rows, channels)};

    if (parts[0])
        add_weight(m, name, matrix_dtype(parts[0]->dtype), rows, channels, parts);
}

/* --- Nodes --- */

static void set(maker *m, const char *field, uint32_t value)
{
    td_graph_set(m->graph, field, format("%" PRIu32, value).bytes);
}

/* All of a tensor. */
static void view(maker *m, const char *name, const char *tensor)
{
    td_graph_set_view(m->graph, name, tensor, NULL, NULL);
}

/* Heads that lie side by side in rows of `channels`, from `first` on: [batch, heads, tokens,
 * head_dim]. */
static void view_heads(maker *m, const char *name, const char *tensor, uint32_t first,
                       uint32_t channels)
{
    const uint32_t head_dim = m->model->sizes.head_dim;
    const text batch = format("tokens * %" PRIu32, channels), head = format("%" PRIu32, head_dim),
               row = format("%" PRIu32, channels);

    td_graph_set_view(m->graph, name, tensor,
                      format("%" PRIu32 " * %" PRIu32, first, head_dim).bytes,
                      (const char *const[3]){batch.bytes, head.bytes, row.bytes});
}

/* Heads of a layer's cache: [batch, heads, context, head_dim]. */
static void view_cache(maker *m, const char *name, uint32_t layer, uint32_t first)
{
    const td_llama_sizes *s = &m->model->sizes;
    const uint64_t plane = (uint64_t)m->model->context * s->head_dim;
    const text batch = format("%" PRIu64, 2 * s->kv_heads * plane),
               head = format("%" PRIu64, plane), row = format("%" PRIu32, s->head_dim);

    td_graph_set_view(m->graph, name, layer_name(layer, "cache").bytes,
                      format("%" PRIu64, first * plane).bytes,
                      (const char *const[3]){batch.bytes, head.bytes, row.bytes});
}

/* A position for each row of each sequence. */
static void view_positions(maker *m)
{
    td_graph_set_view(m->graph, "position", "positions", NULL,
                      (const char *const[3]){"tokens", "0", "1"});
}

static void add_norm(maker *m, const char *rows, const char *x, const char *weight, const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;
    const td_gguf_tensor *const parts[TD_LLAMA_PARTS] = {find(m, weight, 1, s->dim)};

    if (!parts[0])
        return;
    add_weight(m, weight, parts[0]->dtype, 1, s->dim, parts);
    add_tensor(m, y, TD_ROLE_TEMPORARY, TANDEM_DTYPE_F16, rows, s->dim);
    td_graph_add_node(m->graph, TANDEM_OPERATION_NORM);
    set(m, "batch", 1);
    set(m, "heads", 1);
    td_graph_set(m->graph, "rows", rows);
    set(m, "channels", s->dim);
    /* in whole numbers, which look the same in each locale */
    td_graph_set(m->graph, "epsilon",
                 format("%" PRIu64 "e-20", (uint64_t)((double)s->epsilon * 1e20)).bytes);
    view(m, "x", x);
    view(m, "weight", weight);
    view(m, "y", y);
}

/* y is what the caller adds; so are further numbers and views. */
static void add_linear(maker *m, const char *rows, const char *x, uint32_t ins, const char *w,
                       uint32_t outs, const char *y)
{
    td_graph_add_node(m->graph, TANDEM_OPERATION_LINEAR);
    td_graph_set(m->graph, "rows", rows);
    set(m, "ins", ins);
    set(m, "outs", outs);
    view(m, "x", x);
    view(m, "w", w);
    view(m, "y", y);
}

/* --- A layer --- */

/* Heads of queries, keys or values: in rows of which tensor, from which head on. */
typedef struct heads {
    const char *matrix, *own; /* of the file; where each has a tensor of its own */
    uint32_t count, first, channels;
    text tensor;
} heads;
enum { Q, K, V, PROJECTIONS };

/* Heads of which the first `rotated` are turned. */
static void add_projection(maker *m, const char *x, const char *w, uint32_t count, uint32_t rotated,
                           const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;

    add_rows(m, y, TANDEM_DTYPE_F16, count * s->head_dim);
    add_linear(m, "batch * tokens", x, s->dim, w, count * s->head_dim, y);
    if (!rotated)
        return;
    set(m, "positions", m->model->context);
    set(m, "head_dim", s->head_dim);
    set(m, "rotated_channels", s->rotated_channels);
    set(m, "rotated_heads", rotated);
    view(m, "rotation", "rotation");
    view(m, "position", "positions");
}

/* One layer for all three where their matrices are of one dtype, which most files have. */
static void add_projections(maker *m, uint32_t layer, const char *x, heads of[PROJECTIONS])
{
    const td_llama_sizes *s = &m->model->sizes;
    const td_gguf_tensor *parts[TD_LLAMA_PARTS];
    uint32_t all = 0;

    for (int i = 0; i < PROJECTIONS; i++) {
        of[i].first = all;
        all += of[i].count;
        parts[i] =
            find(m, layer_name(layer, of[i].matrix).bytes, of[i].count * s->head_dim, s->dim);
    }
    if (failed(m))
        return;
    if (parts[Q]->dtype == parts[K]->dtype && parts[Q]->dtype == parts[V]->dtype) {
        const text w = layer_name(layer, "attn_qkv.weight"), y = layer_name(layer, "qkv");

        for (int i = 0; i < PROJECTIONS; i++) {
            of[i].tensor = y;
            of[i].channels = all * s->head_dim;
        }
        add_weight(m, w.bytes, matrix_dtype(parts[Q]->dtype), all * s->head_dim, s->dim, parts);
        add_projection(m, x, w.bytes, all, of[Q].count + of[K].count, y.bytes);
        return;
    }
    for (int i = 0; i < PROJECTIONS; i++) {
        const text w = layer_name(layer, of[i].matrix);

        of[i].tensor = layer_name(layer, of[i].own);
        of[i].channels = of[i].count * s->head_dim;
        of[i].first = 0;
        add_matrix(m, w.bytes, of[i].channels, s->dim);
        add_projection(m, x, w.bytes, of[i].count, i == V ? 0 : of[i].count, of[i].tensor.bytes);
    }
}

/* Rows of heads, on their way to a layer's cache. */
static void add_scatter(maker *m, uint32_t layer, const heads *from, uint32_t count, uint32_t to)
{
    const td_llama_sizes *s = &m->model->sizes;

    td_graph_add_node(m->graph, TANDEM_OPERATION_SCATTER);
    td_graph_set(m->graph, "batch", "batch");
    set(m, "heads", count);
    td_graph_set(m->graph, "rows", "tokens");
    set(m, "channels", s->head_dim);
    set(m, "entries", m->model->context);
    view_heads(m, "x", from->tensor.bytes, from->first, from->channels);
    view_positions(m);
    view_cache(m, "y", layer, to);
}

/* What is kept of the layer's keys and values, as fp16, and attention on that. */
static void add_cache(maker *m, uint32_t layer, const heads of[PROJECTIONS], const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;
    const text planes = format("2 * %" PRIu32, s->kv_heads),
               slots = format("%" PRIu32, m->model->slots),
               entries = format("%" PRIu32, m->model->context),
               dim = format("%" PRIu32, s->head_dim);

    td_graph_add_tensor(m->graph, layer_name(layer, "cache").bytes, TD_ROLE_CACHE, TANDEM_DTYPE_F16,
                        (const char *const[4]){slots.bytes, planes.bytes, entries.bytes, dim.bytes},
                        4);
    if (of[V].first) { /* behind the keys */
        add_scatter(m, layer, &of[K], 2 * s->kv_heads, 0);
    } else {
        add_scatter(m, layer, &of[K], s->kv_heads, 0);
        add_scatter(m, layer, &of[V], s->kv_heads, s->kv_heads);
    }
    td_graph_add_node(m->graph, TANDEM_OPERATION_ATTENTION);
    td_graph_set(m->graph, "batch", "batch");
    set(m, "heads", s->heads);
    set(m, "kv_heads", s->kv_heads);
    td_graph_set(m->graph, "q_len", "tokens");
    set(m, "kv_len", m->model->context);
    set(m, "head_dim", s->head_dim);
    set(m, "precision", TANDEM_PRECISION_F16);
    view_heads(m, "q", of[Q].tensor.bytes, 0, of[Q].channels);
    view_cache(m, "k", layer, 0);
    view_cache(m, "v", layer, s->kv_heads);
    view_positions(m);
    view_heads(m, "o", y, 0, s->heads * s->head_dim);
}

/* A node of either operation on caches of codes. */
static void add_cache_node(maker *m, uint32_t layer, uint32_t operation)
{
    const td_llama_sizes *s = &m->model->sizes;
    const uint64_t plane = tandem_cache_bytes(m->model->cache, m->model->context, s->head_dim);
    const text batch = format("%" PRIu64, s->kv_heads * plane), head = format("%" PRIu64, plane);

    td_graph_add_node(m->graph, operation);
    td_graph_set(m->graph, "batch", "batch");
    set(m, "kv_heads", s->kv_heads);
    td_graph_set(m->graph, "rows", "tokens");
    set(m, "head_dim", s->head_dim);
    set(m, "entries", m->model->context);
    set(m, "format", m->model->cache);
    view_positions(m);
    td_graph_set_view(m->graph, "cache", layer_name(layer, "cache").bytes, NULL,
                      (const char *const[3]){batch.bytes, head.bytes, head.bytes});
}

/* The same as codes. */
static void add_coded_cache(maker *m, uint32_t layer, const heads of[PROJECTIONS], const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;
    const uint64_t plane = tandem_cache_bytes(m->model->cache, m->model->context, s->head_dim);
    const text slots = format("%" PRIu32, m->model->slots),
               heads_of_keys = format("%" PRIu32, s->kv_heads),
               bytes = format("%" PRIu64, plane);

    td_graph_add_tensor(m->graph, layer_name(layer, "cache").bytes, TD_ROLE_CACHE, TANDEM_DTYPE_U8,
                        (const char *const[4]){slots.bytes, heads_of_keys.bytes, "1", bytes.bytes},
                        4);
    add_cache_node(m, layer, TANDEM_OPERATION_CACHE_APPEND);
    view_heads(m, "k", of[K].tensor.bytes, of[K].first, of[K].channels);
    view_heads(m, "v", of[V].tensor.bytes, of[V].first, of[V].channels);
    add_cache_node(m, layer, TANDEM_OPERATION_CACHE_ATTENTION);
    set(m, "heads", s->heads);
    view_heads(m, "q", of[Q].tensor.bytes, 0, of[Q].channels);
    view_heads(m, "o", y, 0, s->heads * s->head_dim);
}

static void add_attention(maker *m, uint32_t layer, const char *x, const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;
    heads of[PROJECTIONS] = {[Q] = {"attn_q.weight", "q", .count = s->heads},
                             [K] = {"attn_k.weight", "k", .count = s->kv_heads},
                             [V] = {"attn_v.weight", "v", .count = s->kv_heads}};

    add_projections(m, layer, x, of);
    add_rows(m, y, TANDEM_DTYPE_F16, s->heads * s->head_dim);
    (m->model->cache == TANDEM_CACHE_F16 ? add_cache : add_coded_cache)(m, layer, of, y);
}

/* silu(x gate^T) * (x up^T), of one layer. */
static void add_gated(maker *m, uint32_t layer, const char *x, const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;
    const text w = layer_name(layer, "ffn_gate_up.weight");
    const td_gguf_tensor *const parts[TD_LLAMA_PARTS] = {
        find(m, layer_name(layer, "ffn_gate.weight").bytes, s->hidden, s->dim),
        find(m, layer_name(layer, "ffn_up.weight").bytes, s->hidden, s->dim)};

    if (failed(m))
        return;
    if (parts[0]->dtype != parts[1]->dtype) {
        FAIL(TANDEM_ERROR_UNSUPPORTED, "%s is %s, and %s %s; both must be of one type",
             parts[0]->name, parts[0]->type_name, parts[1]->name, parts[1]->type_name);
        return;
    }
    add_weight(m, w.bytes, matrix_dtype(parts[0]->dtype), 2 * s->hidden, s->dim, parts);
    add_rows(m, y, TANDEM_DTYPE_F16, s->hidden);
    add_linear(m, "batch * tokens", x, s->dim, w.bytes, s->hidden, y);
    set(m, "activation", TANDEM_ACTIVATION_SILU);
    set(m, "gate", TANDEM_GATE_HALVES);
}

/* y = x w^T + residual, as the next layer takes it. */
static void add_residual(maker *m, const char *x, uint32_t ins, const char *w, const char *residual,
                         const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;

    add_matrix(m, w, s->dim, ins);
    add_rows(m, y, TANDEM_DTYPE_F32, s->dim);
    add_linear(m, "batch * tokens", x, ins, w, s->dim, y);
    view(m, "residual", residual);
}

static void add_layer(maker *m, uint32_t layer, const char *x, const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;
    const text first = layer_name(layer, "first"), mixed = layer_name(layer, "mixed"),
               middle = layer_name(layer, "middle"), second = layer_name(layer, "second"),
               gated = layer_name(layer, "gated");

    add_norm(m, "batch * tokens", x, layer_name(layer, "attn_norm.weight").bytes, first.bytes);
    add_attention(m, layer, first.bytes, mixed.bytes);
    add_residual(m, mixed.bytes, s->heads * s->head_dim,
                 layer_name(layer, "attn_output.weight").bytes, x, middle.bytes);
    add_norm(m, "batch * tokens", middle.bytes, layer_name(layer, "ffn_norm.weight").bytes,
             second.bytes);
    add_gated(m, layer, second.bytes, gated.bytes);
    add_residual(m, gated.bytes, s->hidden, layer_name(layer, "ffn_down.weight").bytes,
                 middle.bytes, y);
}

/* --- The whole --- */

static void add_numbers(maker *m)
{
    const td_llama *model = m->model;
    const uint64_t rows = (uint64_t)model->slots * model->context;
    const char *const all[1] = {"batch * tokens"}, *const wanted[1] = {"wanted"};

    td_graph_add_number(m->graph, "batch", model->slots);
    td_graph_add_number(m->graph, "tokens",
                        model->cache == TANDEM_CACHE_F16 || model->context < PAGE_TOKENS
                            ? model->context
                            : PAGE_TOKENS);
    td_graph_add_number(m->graph, "wanted", rows);
    td_graph_add_tensor(m->graph, "ids", TD_ROLE_UNIFORM, TANDEM_DTYPE_I32, all, 1);
    td_graph_add_tensor(m->graph, "positions", TD_ROLE_UNIFORM, TANDEM_DTYPE_I32, all, 1);
    td_graph_add_tensor(m->graph, "rows", TD_ROLE_UNIFORM, TANDEM_DTYPE_I32, wanted, 1);
    add_weight(m, "rotation", TANDEM_DTYPE_F32, model->context, model->sizes.rotated_channels,
               NULL);
}

/* Rows of a table by ids, in float32. */
static void add_embed(maker *m, const char *rows, const char *table, const char *entries,
                      const char *id, const char *y)
{
    add_tensor(m, y, TD_ROLE_TEMPORARY, TANDEM_DTYPE_F32, rows, m->model->sizes.dim);
    td_graph_add_node(m->graph, TANDEM_OPERATION_EMBED);
    set(m, "batch", 1);
    td_graph_set(m->graph, "rows", rows);
    set(m, "channels", m->model->sizes.dim);
    td_graph_set(m->graph, "entries", entries);
    view(m, "table", table);
    view(m, "id", id);
    view(m, "y", y);
}

/* The words' matrix is that of the logits, too, unless the file has one for these. */
static void make_graph(maker *m)
{
    const td_llama_sizes *s = &m->model->sizes;
    const char *const words = "token_embd.weight";
    const bool tied = !td_gguf_find_tensor(m->file, "output.weight");
    const char *const output = tied ? words : "output.weight";
    text x = format("embedded");

    add_numbers(m);
    add_matrix(m, words, s->words, s->dim);
    add_embed(m, "batch * tokens", words, format("%" PRIu32, s->words).bytes, "ids", x.bytes);
    for (uint32_t i = 0; i < s->layers; i++) {
        const text y = layer_name(i, "out");

        add_layer(m, i, x.bytes, y.bytes);
        x = y;
    }
    add_embed(m, "wanted", x.bytes, "batch * tokens", "rows", "last");
    add_norm(m, "wanted", "last", "output_norm.weight", "normalised");
    if (!tied)
        add_matrix(m, output, s->words, s->dim);
    add_tensor(m, "logits", TD_ROLE_OUTPUT, TANDEM_DTYPE_F32, "wanted", s->words);
    add_linear(m, "wanted", "normalised", s->dim, output, s->words, "logits");
}

/* Whether caches can be kept in the format that is asked for. */
static void check_cache(maker *m)
{
    const td_llama_sizes *s = &m->model->sizes;

    if (m->model->cache > TANDEM_CACHE_K4V8)
        FAIL(TANDEM_ERROR_ARG, "cache is %" PRIu32 "; it must be 0 (f16), 1 (k8v8) or 2 (k4v8)",
             m->model->cache);
    else if (m->model->cache != TANDEM_CACHE_F16 && s->head_dim != 64 && s->head_dim != 128)
        FAIL(TANDEM_ERROR_UNSUPPORTED,
             "its heads have %" PRIu32 " channels; caches of codes are of 64 or 128, so this one's "
             "can be f16 alone",
             s->head_dim);
}

tandem_status td_llama_open(const td_gguf *file, uint32_t slots, uint32_t context, uint32_t cache,
                            td_llama *model, char *why, size_t why_bytes)
{
    maker it = {.file = file, .model = model}, *const m = &it;

    memset(model, 0, sizeof *model);
    model->graph = it.graph = td_graph_create();
    if (!it.graph)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a model's graph");
    read_sizes(m);
    model->slots = slots;
    model->context = context ? context : model->sizes.context;
    model->cache = cache;
    if (slots < 1)
        FAIL(TANDEM_ERROR_ARG, "slots is %" PRIu32 "; it must be at least 1", slots);
    if (model->context > model->sizes.context)
        FAIL(TANDEM_ERROR_ARG, "context is %" PRIu32 "; the model was trained for %" PRIu32,
             context, model->sizes.context);
    if (!failed(m))
        check_cache(m);
    if (!failed(m))
        make_graph(m);
    const tandem_status status = td_graph_end(it.graph, why, why_bytes);
    if (status != TANDEM_OK)
        td_llama_close(model);
    return status;
}

void td_llama_close(td_llama *model)
{
    td_graph_destroy(&model->graph);
    td_arena_free(&model->memory);
    memset(model, 0, sizeof *model);
}
