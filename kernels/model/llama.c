/* Language models of Llama's kind as graphs. See llama.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/model/llama_maker.h"

enum { PAGE_TOKENS = 64 /* of a run whose caches are codes */ };

#define FAIL(...) TD_MAKER_FAIL(m, __VA_ARGS__)

typedef td_maker maker;
typedef td_maker_text text;

/* --- Names and views --- */

static text layer_name(uint32_t layer, const char *name)
{
    return td_maker_format("blk.%" PRIu32 ".%s", layer, name);
}

/* Heads that lie side by side in rows of `channels`, from `first` on: [batch, heads, tokens,
 * head_dim]. */
static void view_heads(maker *m, const char *name, const char *tensor, uint32_t first,
                       uint32_t channels)
{
    const uint32_t head_dim = m->model->sizes.head_dim;
    const text batch = td_maker_format("tokens * %" PRIu32, channels),
               head = td_maker_format("%" PRIu32, head_dim),
               row = td_maker_format("%" PRIu32, channels);

    td_graph_set_view(m->graph, name, tensor,
                      td_maker_format("%" PRIu32 " * %" PRIu32, first, head_dim).bytes,
                      (const char *const[3]){batch.bytes, head.bytes, row.bytes});
}

/* Heads of a layer's cache: [batch, heads, context, head_dim]. */
static void view_cache(maker *m, const char *name, uint32_t layer, uint32_t first)
{
    const td_llama_sizes *s = &m->model->sizes;
    const uint64_t plane = (uint64_t)m->model->context * s->head_dim;
    const text batch = td_maker_format("%" PRIu64, 2 * s->kv_heads * plane),
               head = td_maker_format("%" PRIu64, plane),
               row = td_maker_format("%" PRIu32, s->head_dim);

    td_graph_set_view(m->graph, name, layer_name(layer, "cache").bytes,
                      td_maker_format("%" PRIu64, first * plane).bytes,
                      (const char *const[3]){batch.bytes, head.bytes, row.bytes});
}

/* A position for each row of each sequence. */
static void view_positions(maker *m)
{
    td_graph_set_view(m->graph, "position", "positions", NULL,
                      (const char *const[3]){"tokens", "0", "1"});
}

static bool is_coded(const maker *m)
{
    return m->model->cache == TANDEM_CACHE_K8V8 || m->model->cache == TANDEM_CACHE_K4V8;
}

/* --- A layer --- */

/* Heads of queries, keys or values: in rows of which tensor, from which head on. */
typedef struct heads {
    const char *matrix, *own; /* of the file; where each has a tensor of its own */
    uint32_t count, first, channels;
    bool turns;
    text tensor;
} heads;
enum { Q, K, V, PROJECTIONS };

/* By which table a layer's heads turn. */
static uint32_t kind_of(const maker *m, uint32_t layer)
{
    const td_llama_sizes *s = &m->model->sizes;

    return s->window && !(s->pattern && (layer + 1) % s->pattern == 0) ? TD_LLAMA_WINDOW
                                                                       : TD_LLAMA_ALL;
}

static bool turns_alike(const td_llama_rotation *a, const td_llama_rotation *b)
{
    return a->base == b->base && a->factor == b->factor && a->divisors == b->divisors &&
           a->original == b->original;
}

/* Whether layers of that kind have a table of their own: those with a window where it is another.
 */
static bool has_rotation(const maker *m, uint32_t kind)
{
    const td_llama_sizes *s = &m->model->sizes;

    if (kind == TD_LLAMA_ALL)
        return true;
    return s->window && !turns_alike(&s->rotations[TD_LLAMA_ALL], &s->rotations[TD_LLAMA_WINDOW]);
}

static const char *rotation_of(const maker *m, uint32_t kind)
{
    return has_rotation(m, kind) && kind == TD_LLAMA_WINDOW ? "rotation.window" : "rotation";
}

static void view_rotation(maker *m, uint32_t layer)
{
    td_make_number(m, "positions", m->model->context);
    td_make_number(m, "rotated_channels", m->model->sizes.rotated_channels);
    td_make_view(m, "rotation", rotation_of(m, kind_of(m, layer)));
}

/* Heads of which the first `rotated` are turned, unless they have norms, which come before that. */
static void add_projection(maker *m, uint32_t layer, const char *x, const char *w, bool has_bias,
                           uint32_t count, uint32_t rotated, const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;

    td_make_rows(m, y, m->real, count * s->head_dim);
    td_make_linear(m, "batch * tokens", x, s->dim, w, count * s->head_dim, y);
    if (has_bias)
        td_make_view(m, "bias", td_maker_bias(w).bytes);
    if (!rotated || s->head_norms)
        return;
    view_rotation(m, layer);
    td_make_number(m, "head_dim", s->head_dim);
    td_make_number(m, "rotated_heads", rotated);
    td_make_view(m, "position", "positions");
}

/* Their biases, one behind the other, where all of them have one. */
static bool add_head_biases(maker *m, uint32_t layer, const char *name, const heads *of,
                            uint32_t count)
{
    const td_llama_sizes *s = &m->model->sizes;
    td_llama_weight weight = {.dtype = TANDEM_DTYPE_F32};
    uint32_t all = 0;

    if (!td_maker_has(m, td_maker_bias(layer_name(layer, of->matrix).bytes).bytes))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        weight.parts[i] =
            td_maker_find(m, td_maker_bias(layer_name(layer, of[i].matrix).bytes).bytes, 1,
                          of[i].count * s->head_dim);
        weight.reorders[i] = s->halves && of[i].turns;
        all += of[i].count * s->head_dim;
    }
    if (!td_maker_failed(m))
        td_make_weight(m, td_maker_bias(name).bytes, 1, all, weight);
    return true;
}

/* One layer for all three where their matrices are of one dtype, which most files have. */
static void add_projections(maker *m, uint32_t layer, const char *x, heads of[PROJECTIONS])
{
    const td_llama_sizes *s = &m->model->sizes;
    td_llama_weight weight = {0};
    uint32_t all = 0;

    for (int i = 0; i < PROJECTIONS; i++) {
        of[i].first = all;
        all += of[i].count;
        weight.reorders[i] = s->halves && of[i].turns;
        weight.parts[i] = td_maker_find(m, layer_name(layer, of[i].matrix).bytes,
                                        of[i].count * s->head_dim, s->dim);
    }
    if (td_maker_failed(m))
        return;
    weight.dtype = td_make_dtype(m, weight.parts[Q]);
    if (weight.dtype == td_make_dtype(m, weight.parts[K]) &&
        weight.dtype == td_make_dtype(m, weight.parts[V])) {
        const text w = layer_name(layer, "attn_qkv.weight"), y = layer_name(layer, "qkv");

        for (int i = 0; i < PROJECTIONS; i++) {
            of[i].tensor = y;
            of[i].channels = all * s->head_dim;
        }
        td_make_weight(m, w.bytes, all * s->head_dim, s->dim, weight);
        const bool has_bias = add_head_biases(m, layer, w.bytes, of, PROJECTIONS);
        add_projection(m, layer, x, w.bytes, has_bias, all, of[Q].count + of[K].count, y.bytes);
        return;
    }
    for (int i = 0; i < PROJECTIONS; i++) {
        const text w = layer_name(layer, of[i].matrix);

        of[i].tensor = layer_name(layer, of[i].own);
        of[i].channels = of[i].count * s->head_dim;
        of[i].first = 0;
        td_make_matrix(m, w.bytes, of[i].channels, s->dim, weight.reorders[i]);
        const bool has_bias = add_head_biases(m, layer, w.bytes, &of[i], 1);
        add_projection(m, layer, x, w.bytes, has_bias, of[i].count, of[i].turns ? of[i].count : 0,
                       of[i].tensor.bytes);
    }
}

/* A norm of each head, which then turns, into a tensor of its own. */
static void add_head_norm(maker *m, uint32_t layer, const char *weight, const char *own, heads *of)
{
    const td_llama_sizes *s = &m->model->sizes;
    const text w = layer_name(layer, weight), y = layer_name(layer, own);

    td_make_vector(m, w.bytes, s->head_dim, s->halves, 0);
    td_make_rows(m, y.bytes, m->real, of->count * s->head_dim);
    td_graph_add_node(m->graph, TANDEM_OPERATION_NORM);
    td_graph_set(m->graph, "batch", "batch");
    td_make_number(m, "heads", of->count);
    td_graph_set(m->graph, "rows", "tokens");
    td_make_number(m, "channels", s->head_dim);
    td_make_float(m, "epsilon", s->epsilon);
    view_heads(m, "x", of->tensor.bytes, of->first, of->channels);
    td_make_view(m, "weight", w.bytes);
    view_rotation(m, layer);
    view_positions(m);
    *of = (heads){.count = of->count, .channels = of->count * s->head_dim, .tensor = y};
    view_heads(m, "y", y.bytes, of->first, of->channels);
}

/* Rows of heads, on their way to a layer's cache. */
static void add_scatter(maker *m, uint32_t layer, const heads *from, uint32_t count, uint32_t to)
{
    const td_llama_sizes *s = &m->model->sizes;

    td_graph_add_node(m->graph, TANDEM_OPERATION_SCATTER);
    td_graph_set(m->graph, "batch", "batch");
    td_make_number(m, "heads", count);
    td_graph_set(m->graph, "rows", "tokens");
    td_make_number(m, "channels", s->head_dim);
    td_make_number(m, "entries", m->model->context);
    view_heads(m, "x", from->tensor.bytes, from->first, from->channels);
    view_positions(m);
    view_cache(m, "y", layer, to);
}

static void set_scores(maker *m)
{
    if (m->model->sizes.scale > 0)
        td_make_float(m, "scale", m->model->sizes.scale);
}

/* Whether caches are those of the operations on caches, whose runs are of one page. */
static bool has_planes(const maker *m)
{
    return m->model->pages || is_coded(m);
}

/* What is kept of the layer's keys and values, as they are, and attention on that. */
static void add_cache(maker *m, uint32_t layer, const heads of[PROJECTIONS], const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;
    const text planes = td_maker_format("2 * %" PRIu32, s->kv_heads),
               slots = td_maker_format("%" PRIu32, m->model->slots),
               entries = td_maker_format("%" PRIu32, m->model->context),
               dim = td_maker_format("%" PRIu32, s->head_dim);

    td_graph_add_tensor(m->graph, layer_name(layer, "cache").bytes, TD_ROLE_CACHE, m->real,
                        (const char *const[4]){slots.bytes, planes.bytes, entries.bytes, dim.bytes},
                        4);
    if (of[V].first == of[K].first + of[K].count && of[V].channels == of[K].channels) {
        add_scatter(m, layer, &of[K], 2 * s->kv_heads, 0);
    } else {
        add_scatter(m, layer, &of[K], s->kv_heads, 0);
        add_scatter(m, layer, &of[V], s->kv_heads, s->kv_heads);
    }
    td_graph_add_node(m->graph, TANDEM_OPERATION_ATTENTION);
    td_graph_set(m->graph, "batch", "batch");
    td_make_number(m, "heads", s->heads);
    td_make_number(m, "kv_heads", s->kv_heads);
    td_graph_set(m->graph, "q_len", "tokens");
    td_make_number(m, "kv_len", m->model->context);
    td_make_number(m, "head_dim", s->head_dim);
    td_make_number(m, "precision", TANDEM_PRECISION_F16);
    set_scores(m);
    if (kind_of(m, layer) == TD_LLAMA_WINDOW)
        td_make_number(m, "window", s->window);
    if (s->score_cap > 0)
        td_make_float(m, "softcap", s->score_cap);
    view_heads(m, "q", of[Q].tensor.bytes, 0, of[Q].channels);
    view_cache(m, "k", layer, 0);
    view_cache(m, "v", layer, s->kv_heads);
    view_positions(m);
    view_heads(m, "o", y, 0, s->heads * s->head_dim);
}

/* Bytes of a head, and slots that have such planes: all have a pool's in common. */
static uint64_t plane_bytes(const td_llama *model)
{
    return model->pages ? tandem_cache_pool_bytes(model->cache, model->slots, model->pages,
                                                  model->sizes.head_dim)
                        : tandem_cache_bytes(model->cache, model->context, model->sizes.head_dim);
}

/* A node of either operation on caches of codes, or a pool. */
static void add_cache_node(maker *m, uint32_t layer, uint32_t operation)
{
    const td_llama_sizes *s = &m->model->sizes;
    const uint64_t plane = plane_bytes(m->model);
    const text batch = td_maker_format("%" PRIu64, s->kv_heads * plane),
               head = td_maker_format("%" PRIu64, plane);

    td_graph_add_node(m->graph, operation);
    td_graph_set(m->graph, "batch", "batch");
    td_make_number(m, "kv_heads", s->kv_heads);
    td_graph_set(m->graph, "rows", "tokens");
    td_make_number(m, "head_dim", s->head_dim);
    td_make_number(m, "entries", m->model->context);
    td_make_number(m, "format", m->model->cache);
    view_positions(m);
    td_graph_set_view(m->graph, "cache", layer_name(layer, "cache").bytes, NULL,
                      (const char *const[3]){batch.bytes, head.bytes, head.bytes});
    if (!m->model->pages)
        return;
    td_make_number(m, "slots", m->model->slots);
    td_make_number(m, "pages", m->model->pages);
    td_make_view(m, "table", "table");
}

/* The same as codes, or in a pool. */
static void add_coded_cache(maker *m, uint32_t layer, const heads of[PROJECTIONS], const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;
    const uint64_t plane = plane_bytes(m->model);
    const text slots = td_maker_format("%" PRIu32, m->model->pages ? 1 : m->model->slots),
               heads_of_keys = td_maker_format("%" PRIu32, s->kv_heads),
               bytes = td_maker_format("%" PRIu64, plane);

    td_graph_add_tensor(m->graph, layer_name(layer, "cache").bytes, TD_ROLE_CACHE, TANDEM_DTYPE_U8,
                        (const char *const[4]){slots.bytes, heads_of_keys.bytes, "1", bytes.bytes},
                        4);
    add_cache_node(m, layer, TANDEM_OPERATION_CACHE_APPEND);
    view_heads(m, "k", of[K].tensor.bytes, of[K].first, of[K].channels);
    view_heads(m, "v", of[V].tensor.bytes, of[V].first, of[V].channels);
    add_cache_node(m, layer, TANDEM_OPERATION_CACHE_ATTENTION);
    td_make_number(m, "heads", s->heads);
    set_scores(m);
    view_heads(m, "q", of[Q].tensor.bytes, 0, of[Q].channels);
    view_heads(m, "o", y, 0, s->heads * s->head_dim);
}

static void add_attention(maker *m, uint32_t layer, const char *x, const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;
    heads of[PROJECTIONS] = {[Q] = {"attn_q.weight", "q", .count = s->heads, .turns = true},
                             [K] = {"attn_k.weight", "k", .count = s->kv_heads, .turns = true},
                             [V] = {"attn_v.weight", "v", .count = s->kv_heads}};

    add_projections(m, layer, x, of);
    if (s->head_norms) {
        add_head_norm(m, layer, "attn_q_norm.weight", "q.turned", &of[Q]);
        add_head_norm(m, layer, "attn_k_norm.weight", "k.turned", &of[K]);
    }
    td_make_rows(m, y, m->real, s->heads * s->head_dim);
    (has_planes(m) ? add_coded_cache : add_cache)(m, layer, of, y);
}

/* activation(x gate^T) * (x up^T), of one layer. */
static void add_gated(maker *m, uint32_t layer, const char *x, const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;
    const text w = layer_name(layer, "ffn_gate_up.weight"),
               gate = layer_name(layer, "ffn_gate.weight"), up = layer_name(layer, "ffn_up.weight");
    const bool has_bias = td_maker_has(m, td_maker_bias(gate.bytes).bytes);
    td_llama_weight weight = {.parts = {td_maker_find(m, gate.bytes, s->hidden, s->dim),
                                        td_maker_find(m, up.bytes, s->hidden, s->dim)}};

    if (td_maker_failed(m))
        return;
    weight.dtype = td_make_dtype(m, weight.parts[0]);
    if (weight.dtype != td_make_dtype(m, weight.parts[1])) {
        FAIL(TANDEM_ERROR_UNSUPPORTED, "%s is %s, and %s %s; both must be of one type",
             weight.parts[0]->name, weight.parts[0]->type_name, weight.parts[1]->name,
             weight.parts[1]->type_name);
        return;
    }
    td_make_weight(m, w.bytes, 2 * s->hidden, s->dim, weight);
    if (has_bias)
        td_make_weight(
            m, td_maker_bias(w.bytes).bytes, 1, 2 * s->hidden,
            (td_llama_weight){
                .dtype = TANDEM_DTYPE_F32,
                .parts = {td_maker_find(m, td_maker_bias(gate.bytes).bytes, 1, s->hidden),
                          td_maker_find(m, td_maker_bias(up.bytes).bytes, 1, s->hidden)}});
    td_make_rows(m, y, m->real, s->hidden);
    td_make_linear(m, "batch * tokens", x, s->dim, w.bytes, s->hidden, y);
    td_make_number(m, "activation", s->activation);
    td_make_number(m, "gate", TANDEM_GATE_HALVES);
    if (has_bias)
        td_make_view(m, "bias", td_maker_bias(w.bytes).bytes);
}

/* y = x w^T + residual, as the next layer takes it; `after`: the norm of what is added, or NULL. */
static void add_residual(maker *m, const char *x, uint32_t ins, const char *w, const char *after,
                         const char *residual, const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;
    const text plain = td_maker_format("%s.plain", y), added = td_maker_format("%s.added", y);
    const bool has_bias = td_maker_has(m, td_maker_bias(w).bytes);

    td_make_matrix(m, w, s->dim, ins, false);
    if (has_bias)
        td_make_vector(m, td_maker_bias(w).bytes, s->dim, false, 0);
    td_make_rows(m, after ? plain.bytes : y, TANDEM_DTYPE_F32, s->dim);
    td_make_linear(m, "batch * tokens", x, ins, w, s->dim, after ? plain.bytes : y);
    if (has_bias)
        td_make_view(m, "bias", td_maker_bias(w).bytes);
    if (!after) {
        td_make_view(m, "residual", residual);
        return;
    }
    td_make_norm(m, "batch * tokens", plain.bytes, after, 0, added.bytes, TANDEM_DTYPE_F32);
    td_make_rows(m, y, TANDEM_DTYPE_F32, s->dim);
    td_make_sum(m, "batch * tokens", residual, added.bytes, s->dim, 1, y);
}

static void add_layer(maker *m, uint32_t layer, const char *x, const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;
    const text first = layer_name(layer, "first"), mixed = layer_name(layer, "mixed"),
               middle = layer_name(layer, "middle"), second = layer_name(layer, "second"),
               gated = layer_name(layer, "gated"),
               after_attention = layer_name(layer, "post_attention_norm.weight"),
               after_gate = layer_name(layer, "post_ffw_norm.weight");

    td_make_norm(m, "batch * tokens", x, layer_name(layer, "attn_norm.weight").bytes, 0,
                 first.bytes, m->real);
    add_attention(m, layer, first.bytes, mixed.bytes);
    add_residual(m, mixed.bytes, s->heads * s->head_dim,
                 layer_name(layer, "attn_output.weight").bytes,
                 s->after_norms ? after_attention.bytes : NULL, x, middle.bytes);
    td_make_norm(m, "batch * tokens", middle.bytes, layer_name(layer, "ffn_norm.weight").bytes, 0,
                 second.bytes, m->real);
    add_gated(m, layer, second.bytes, gated.bytes);
    add_residual(m, gated.bytes, s->hidden, layer_name(layer, "ffn_down.weight").bytes,
                 s->after_norms ? after_gate.bytes : NULL, middle.bytes, y);
}

/* --- The whole --- */

static void add_numbers(maker *m)
{
    const td_llama *model = m->model;
    const uint64_t rows = (uint64_t)model->slots * model->context;
    const char *const all[1] = {"batch * tokens"}, *const wanted[1] = {"wanted"};

    td_graph_add_number(m->graph, "batch", model->slots);
    td_graph_add_number(m->graph, "tokens",
                        has_planes(m) && model->context > PAGE_TOKENS ? PAGE_TOKENS : model->context);
    td_graph_add_number(m->graph, "wanted", rows);
    td_graph_add_tensor(m->graph, "ids", TD_ROLE_UNIFORM, TANDEM_DTYPE_I32, all, 1);
    td_graph_add_tensor(m->graph, "positions", TD_ROLE_UNIFORM, TANDEM_DTYPE_I32, all, 1);
    td_graph_add_tensor(m->graph, "rows", TD_ROLE_UNIFORM, TANDEM_DTYPE_I32, wanted, 1);
    if (model->pages)
        td_graph_add_tensor(
            m->graph, "table", TD_ROLE_UNIFORM, TANDEM_DTYPE_I32,
            (const char *const[2]){"batch", td_maker_format("%" PRIu32, 1 + (model->context - 1) / PAGE_TOKENS + 1).bytes}, 2);
    for (uint32_t kind = 0; kind < TD_LLAMA_KINDS; kind++)
        if (has_rotation(m, kind))
            td_make_weight(m, rotation_of(m, kind), model->context, model->sizes.rotated_channels,
                           (td_llama_weight){.dtype = TANDEM_DTYPE_F32, .rotation = kind});
}

/* Rows of a table by ids, in float32. */
static void add_embed(maker *m, const char *rows, const char *table, const char *entries,
                      const char *id, float scale, const char *y)
{
    td_make_tensor(m, y, TD_ROLE_TEMPORARY, TANDEM_DTYPE_F32, rows, m->model->sizes.dim);
    td_graph_add_node(m->graph, TANDEM_OPERATION_EMBED);
    td_make_number(m, "batch", 1);
    td_graph_set(m->graph, "rows", rows);
    td_make_number(m, "channels", m->model->sizes.dim);
    td_graph_set(m->graph, "entries", entries);
    if (scale > 0)
        td_make_float(m, "scale", scale);
    td_make_view(m, "table", table);
    td_make_view(m, "id", id);
    td_make_view(m, "y", y);
}

/* Logits of the rows that are wanted. With a cap the norm's weights are divided by it. */
static void add_logits(maker *m, const char *output)
{
    const td_llama_sizes *s = &m->model->sizes;
    const bool capped = s->logit_cap > 0;
    const char *const y = capped ? "parts" : "logits";

    td_make_norm(m, "wanted", "last", "output_norm.weight", capped ? 1 / s->logit_cap : 0,
                 "normalised", m->real);
    td_make_tensor(m, "logits", TD_ROLE_OUTPUT, TANDEM_DTYPE_F32, "wanted", s->words);
    if (capped)
        td_make_tensor(m, y, TD_ROLE_TEMPORARY, TANDEM_DTYPE_F32, "wanted", s->words);
    td_make_linear(m, "wanted", "normalised", s->dim, output, s->words, y);
    if (!capped)
        return;
    td_make_number(m, "activation", TANDEM_ACTIVATION_TANH);
    td_make_sum(m, "wanted", y, y, s->words, s->logit_cap - 1, "logits");
}

/* The rows that logits are computed of, whole: kernels want them rounded, hosts do not. */
static void add_hidden(maker *m)
{
    td_make_tensor(m, "hidden", TD_ROLE_OUTPUT, TANDEM_DTYPE_F32, "wanted", m->model->sizes.dim);
    td_make_norm_by(m, "wanted", "last", "output_norm.weight", "hidden");
}

/* The few words that are ever looked at. */
static void add_tops(maker *m)
{
    const uint32_t tops = m->model->tops;

    td_make_tensor(m, "top", TD_ROLE_OUTPUT, TANDEM_DTYPE_F32, "wanted", 2 * tops);
    td_graph_add_node(m->graph, TANDEM_OPERATION_TOP);
    td_make_number(m, "batch", 1);
    td_make_number(m, "heads", 1);
    td_graph_set(m->graph, "rows", "wanted");
    td_make_number(m, "channels", m->model->sizes.words);
    td_make_number(m, "count", tops);
    td_make_view(m, "x", "logits");
    td_make_view(m, "y", "top");
}

/* The words' matrix is that of the logits, too, unless the file has one for these. */
static void make_graph(maker *m)
{
    const td_llama_sizes *s = &m->model->sizes;
    const char *const words = "token_embd.weight";
    const bool tied = !td_maker_has(m, "output.weight");
    const char *const output = tied ? words : "output.weight";
    text x = td_maker_format("embedded");

    add_numbers(m);
    td_make_matrix(m, words, s->words, s->dim, false);
    add_embed(m, "batch * tokens", words, td_maker_format("%" PRIu32, s->words).bytes, "ids",
              s->embedding_scale, x.bytes);
    for (uint32_t i = 0; i < s->layers && !td_maker_failed(m); i++) {
        const text y = layer_name(i, "out");

        add_layer(m, i, x.bytes, y.bytes);
        x = y;
    }
    add_embed(m, "wanted", x.bytes, "batch * tokens", "rows", 0, "last");
    if (!tied)
        td_make_matrix(m, output, s->words, s->dim, false);
    add_logits(m, output);
    if (m->model->hidden)
        add_hidden(m);
    if (m->model->tops)
        add_tops(m);
}

/* A tensor that nothing here has would change what is computed. */
static void refuse_unused(maker *m)
{
    for (uint32_t i = 0; i < m->file->tensor_count && !td_maker_failed(m); i++)
        if (!m->used[i])
            FAIL(TANDEM_ERROR_UNSUPPORTED,
                 "%s is there, which nothing here computes for the architecture %s",
                 m->file->tensors[i].name, m->model->sizes.architecture);
}

/* Whether caches can be kept in the format that is asked for. */
bool td_llama_takes_planes(const td_llama *model)
{
    const td_llama_sizes *s = &model->sizes;

    return (s->head_dim == 64 || s->head_dim == 128) && !s->window && s->score_cap <= 0;
}

/* Says why it does not take them. */
static void refuse_planes(maker *m)
{
    const td_llama_sizes *s = &m->model->sizes;

    if (s->head_dim != 64 && s->head_dim != 128)
        FAIL(TANDEM_ERROR_UNSUPPORTED,
             "its heads have %" PRIu32 " channels; caches of codes, and pools, are of 64 or 128, so "
             "this one's can be f16 alone, each slot with its own",
             s->head_dim);
    else if (s->window)
        FAIL(TANDEM_ERROR_UNSUPPORTED,
             "its layers see %" PRIu32 " tokens; with caches of codes, and pools, they see all, so the "
             "context can be %" PRIu32 " at most, and is %" PRIu32,
             s->window, s->window, m->model->context);
    else
        FAIL(TANDEM_ERROR_UNSUPPORTED,
             "its scores are capped, which no attention on caches of codes, or pools, does: they can "
             "be f16 alone, each slot with its own");
}

static void check_cache(maker *m)
{
    if (m->model->cache > TANDEM_CACHE_F32)
        FAIL(TANDEM_ERROR_ARG,
             "cache is %" PRIu32 "; it must be 0 (f16), 1 (k8v8), 2 (k4v8) or 3 (f32)",
             m->model->cache);
    else if (m->model->pages && m->model->cache == TANDEM_CACHE_F32)
        FAIL(TANDEM_ERROR_UNSUPPORTED,
             "cache is 3 (f32), pages %" PRIu32 "; pools are f16, k8v8 or k4v8", m->model->pages);
    else if (has_planes(m) && !td_llama_takes_planes(m->model))
        refuse_planes(m);
    else if (m->model->pages && plane_bytes(m->model) > TD_MOST_DIMENSION)
        FAIL(TANDEM_ERROR_ARG,
             "slots, pages are %" PRIu32 ", %" PRIu32 "; a pool has at most %d bytes for each head",
             m->model->slots, m->model->pages, TD_MOST_DIMENSION);
}

static void make_model(maker *m, uint32_t context)
{
    td_llama *model = m->model;

    td_llama_read_sizes(m);
    model->context = context ? context : model->sizes.context;
    if (model->slots < 1)
        FAIL(TANDEM_ERROR_ARG, "slots is %" PRIu32 "; it must be at least 1", model->slots);
    if (model->context > model->sizes.context)
        FAIL(TANDEM_ERROR_ARG, "context is %" PRIu32 "; the model was trained for %" PRIu32,
             context, model->sizes.context);
    if (model->sizes.window >= model->context) /* each token sees all before it */
        model->sizes.window = 0;
    if (!td_maker_failed(m))
        check_cache(m);
    if (!td_maker_failed(m))
        make_graph(m);
    if (!td_maker_failed(m))
        refuse_unused(m);
}

tandem_status td_llama_open(const td_gguf *file, const td_llama_desc *desc, td_llama *model,
                            char *why, size_t why_bytes)
{
    maker it = {.file = file,
                .model = model,
                .real = desc->cache == TANDEM_CACHE_F32 ? TANDEM_DTYPE_F32 : TANDEM_DTYPE_F16};

    memset(model, 0, sizeof *model);
    it.used = calloc(file->tensor_count + 1, sizeof *it.used);
    model->graph = it.graph = td_graph_create();
    if (!it.graph || !it.used) {
        free(it.used);
        td_llama_close(model);
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a model's graph");
    }
    model->slots = desc->slots;
    model->cache = desc->cache;
    model->pages = desc->pages;
    model->tiles = desc->tiles;
    model->hidden = desc->hidden;
    model->tops = desc->tops;
    make_model(&it, desc->context);
    free(it.used);
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
