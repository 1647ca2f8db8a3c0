/* Tensors and nodes of a language model's graph. See llama_maker.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/model/llama_maker.h"

#include <inttypes.h>
#include <math.h>

#include "kernels/tiles.h"

#define FAIL(...) TD_MAKER_FAIL(m, __VA_ARGS__)

typedef td_maker_text text;

/* --- Tensors --- */

void td_make_tensor(td_maker *m, const char *name, td_role role, uint32_t dtype, const char *rows,
                    uint32_t channels)
{
    const text columns = td_maker_format("%" PRIu32, channels);
    const char *const shape[2] = {rows, columns.bytes};

    td_graph_add_tensor(m->graph, name, role, dtype, shape, 2);
}

void td_make_rows(td_maker *m, const char *name, uint32_t dtype, uint32_t channels)
{
    td_make_tensor(m, name, TD_ROLE_TEMPORARY, dtype, "batch * tokens", channels);
}

void td_make_weight(td_maker *m, const char *name, uint32_t rows, uint32_t channels,
                    td_llama_weight weight)
{
    td_llama *model = m->model;

    weight.tensor = m->graph->tensor_count;
    td_make_tensor(m, name, TD_ROLE_WEIGHT, weight.dtype, td_maker_format("%" PRIu32, rows).bytes,
                   channels);
    if (td_maker_failed(m))
        return;
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

const td_gguf_tensor *td_maker_find(td_maker *m, const char *name, uint32_t rows, uint32_t channels)
{
    const uint64_t shape[TD_GGUF_DIMENSIONS] = {channels, rows, 1, 1};
    const td_gguf_tensor *tensor = NULL;
    char why[TD_WHY_OF_MAKER];

    if (td_maker_failed(m))
        return NULL;
    const tandem_status status = td_gguf_weights(m->file, name, shape, &tensor, why, sizeof why);
    if (status != TANDEM_OK)
        FAIL(status, "%s", why);
    else
        m->used[tensor - m->file->tensors] = true;
    return tensor;
}

uint32_t td_make_dtype(const td_maker *m, const td_gguf_tensor *matrix)
{
    const uint32_t tiles =
        m->model->tiles ? td_tiles_of(matrix->dtype, matrix->shape[1], matrix->shape[0]) : 0;

    return td_dtype_of(matrix->dtype).elements == 1 ? m->real : tiles ? tiles : matrix->dtype;
}

void td_make_matrix(td_maker *m, const char *name, uint32_t rows, uint32_t channels, bool reorders)
{
    const td_gguf_tensor *const matrix = td_maker_find(m, name, rows, channels);

    if (matrix)
        td_make_weight(m, name, rows, channels,
                       (td_llama_weight){.dtype = td_make_dtype(m, matrix),
                                         .parts = {matrix},
                                         .reorders = {reorders}});
}

void td_make_vector(td_maker *m, const char *name, uint32_t channels, bool reorders, float scale)
{
    const td_gguf_tensor *const vector = td_maker_find(m, name, 1, channels);

    if (vector)
        td_make_weight(m, name, 1, channels,
                       (td_llama_weight){.dtype = TANDEM_DTYPE_F32,
                                         .parts = {vector},
                                         .reorders = {reorders},
                                         .scale = scale});
}

td_maker_text td_maker_bias(const char *matrix)
{
    return td_maker_format("%.*s.bias", (int)(strlen(matrix) - strlen(".weight")), matrix);
}

bool td_maker_has(const td_maker *m, const char *name)
{
    return td_gguf_find_tensor(m->file, name);
}

/* --- Nodes --- */

void td_make_number(td_maker *m, const char *field, uint32_t value)
{
    td_graph_set(m->graph, field, td_maker_format("%" PRIu32, value).bytes);
}

void td_make_view(td_maker *m, const char *name, const char *tensor)
{
    td_graph_set_view(m->graph, name, tensor, NULL, NULL);
}

/* In whole numbers, which look the same in each locale. */
void td_make_float(td_maker *m, const char *field, float value)
{
    int exponent = 0; /* such that 18 digits are before the point */
    double x = (double)value;

    for (; x != 0 && fabs(x) < 1e17; x *= 10)
        exponent--;
    td_graph_set(m->graph, field, td_maker_format("%" PRId64 "e%d", (int64_t)x, exponent).bytes);
}

void td_make_norm(td_maker *m, const char *rows, const char *x, const char *weight, float scale,
                  const char *y, uint32_t dtype)
{
    const uint32_t dim = m->model->sizes.dim;

    td_make_vector(m, weight, dim, false, scale);
    td_make_tensor(m, y, TD_ROLE_TEMPORARY, dtype, rows, dim);
    td_make_norm_by(m, rows, x, weight, y);
}

void td_make_norm_by(td_maker *m, const char *rows, const char *x, const char *weight,
                     const char *y)
{
    const td_llama_sizes *s = &m->model->sizes;

    td_graph_add_node(m->graph, TANDEM_OPERATION_NORM);
    td_make_number(m, "batch", 1);
    td_make_number(m, "heads", 1);
    td_graph_set(m->graph, "rows", rows);
    td_make_number(m, "channels", s->dim);
    td_make_float(m, "epsilon", s->epsilon);
    td_make_view(m, "x", x);
    td_make_view(m, "weight", weight);
    td_make_view(m, "y", y);
}

void td_make_linear(td_maker *m, const char *rows, const char *x, uint32_t ins, const char *w,
                    uint32_t outs, const char *y)
{
    td_graph_add_node(m->graph, TANDEM_OPERATION_LINEAR);
    td_graph_set(m->graph, "rows", rows);
    td_make_number(m, "ins", ins);
    td_make_number(m, "outs", outs);
    td_make_view(m, "x", x);
    td_make_view(m, "w", w);
    td_make_view(m, "y", y);
}

void td_make_sum(td_maker *m, const char *rows, const char *a, const char *b, uint32_t channels,
                 float scale, const char *y)
{
    td_graph_add_node(m->graph, TANDEM_OPERATION_BINARY);
    td_make_number(m, "batch", 1);
    td_make_number(m, "heads", 1);
    td_graph_set(m->graph, "rows", rows);
    td_make_number(m, "channels", channels);
    td_make_number(m, "kind", TANDEM_BINARY_ADD);
    td_make_float(m, "scale", scale);
    td_make_view(m, "a", a);
    td_make_view(m, "b", b);
    td_make_view(m, "y", y);
}
