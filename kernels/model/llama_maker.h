/* A language model's graph in the making: what its parts share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_LLAMA_MAKER_H
#define TANDEM_LLAMA_MAKER_H

#include "kernels/model/llama.h"

enum { TD_WHY_OF_MAKER = 300, TD_TEXT_OF_MAKER = 160 };

/* What is wrong is noted in its graph. */
typedef struct td_maker {
    const td_gguf *file;
    td_llama *model;
    td_graph *graph;
    uint32_t real; /* dtype of rows, caches and dense matrices: F16 or F32 */
    bool *used;    /* which of the file's tensors the graph has */
} td_maker;

#define TD_MAKER_FAIL(m, status, ...) td_graph_fail((m)->graph, status, __VA_ARGS__)

static inline bool td_maker_failed(const td_maker *m)
{
    return m->graph->status != TANDEM_OK;
}

typedef struct td_maker_text {
    char bytes[TD_TEXT_OF_MAKER];
} td_maker_text;

static inline td_maker_text td_maker_format(const char *format, ...)
    __attribute__((format(TD_PRINTF, 1, 2)));
static inline td_maker_text td_maker_format(const char *format, ...)
{
    td_maker_text t;
    va_list args;

    va_start(args, format);
    td_text_list(t.bytes, sizeof t.bytes, format, args);
    va_end(args);
    return t;
}

/* A tensor of the file, which the graph has then. NULL where it is not there, or of another shape.
 */
const td_gguf_tensor *td_maker_find(td_maker *m, const char *name, uint32_t rows,
                                    uint32_t channels);
bool td_maker_has(const td_maker *m, const char *name);
/* "blk.0.attn_q.bias" beside "blk.0.attn_q.weight" */
td_maker_text td_maker_bias(const char *matrix);

/* The model's sizes, by the file's metadata. */
void td_llama_read_sizes(td_maker *m);

/* --- Tensors of the graph --- */

void td_make_tensor(td_maker *m, const char *name, td_role role, uint32_t dtype, const char *rows,
                    uint32_t channels);
/* Rows of a run's tokens. */
void td_make_rows(td_maker *m, const char *name, uint32_t dtype, uint32_t channels);
void td_make_weight(td_maker *m, const char *name, uint32_t rows, uint32_t channels,
                    td_llama_weight weight);
/* The dtype in which kernels take a matrix. */
uint32_t td_make_dtype(const td_maker *m, const td_gguf_tensor *matrix);
void td_make_matrix(td_maker *m, const char *name, uint32_t rows, uint32_t channels, bool reorders);
/* scale: of the file's; 0: 1. */
void td_make_vector(td_maker *m, const char *name, uint32_t channels, bool reorders, float scale);

/* --- Nodes --- */

void td_make_number(td_maker *m, const char *field, uint32_t value);
void td_make_float(td_maker *m, const char *field, float value);
/* All of a tensor. */
void td_make_view(td_maker *m, const char *name, const char *tensor);
/* Of rows of the model's channels, by a vector of the file, which is multiplied by `scale`; 0: 1.
 */
void td_make_norm(td_maker *m, const char *rows, const char *x, const char *weight, float scale,
                  const char *y, uint32_t dtype);
/* The same by a vector that the graph has already, to what it has already. */
void td_make_norm_by(td_maker *m, const char *rows, const char *x, const char *weight,
                     const char *y);
/* y is what the caller adds; so are further numbers and views. */
void td_make_linear(td_maker *m, const char *rows, const char *x, uint32_t ins, const char *w,
                    uint32_t outs, const char *y);
/* y = a + scale * b */
void td_make_sum(td_maker *m, const char *rows, const char *a, const char *b, uint32_t channels,
                 float scale, const char *y);

#endif
