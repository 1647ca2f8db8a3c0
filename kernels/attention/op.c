/* Attention as a plan: checks, layout of scratch, records.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/attention/attention.h"
#include "kernels/target.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "interop/base.h"
#include "kernels/attention/cpu.h"
#include "kernels/attention/params.h"
#include "kernels/attention/tuning.h"
#include "kernels/plan_builder.h"

enum { MAX_ROWS = 1 << 30, MAX_CLUSTER = 16, MULTIPROCESSOR_SHARED = 228 << 10, PREPARE_LEAST_SHARED = 18 << 10,
       PREPARE_KEPT_BYTES = 31 << 20, /* that L2 keeps from one look at a head to the next */
       PREPARE_ASKS_BYTES = 8 << 20   /* of tensors that `prepare` asks for early: above it attention suffers */ };

/* The compiler's word for the parameter blocks of today. */
#define FITS(type) \
    _Static_assert(sizeof(td_params_##type) <= TD_PARAM_BYTES, "a record has no room for td_params_" #type)
FITS(mean_partial);
FITS(mean_final);
FITS(amax_partial);
FITS(quant_qk);
FITS(quant_v);
FITS(delta_s);
FITS(stats);
FITS(quantise);
FITS(prepare);
FITS(attention);
FITS(attention_f16);
FITS(claim);
FITS(commit);

#define PROLOGUE(symbol)                       \
    static const td_kernel kernel_##symbol = { \
        .name = #symbol, .entry = #symbol, .cpu = td_cpu_##symbol, .cpu_local_bytes = sizeof(td_local_prologue)}
PROLOGUE(mean_partial);
PROLOGUE(mean_final);
PROLOGUE(amax_partial);
PROLOGUE(quant_qk);
PROLOGUE(quant_v);
PROLOGUE(delta_s);
PROLOGUE(stats);
PROLOGUE(quantise);
#define PREPARE(symbol, d)                                                  \
    {                                                                       \
        .name = #symbol, .entry = #symbol "_d" #d, .cpu = td_cpu_##symbol, \
        .cpu_local_bytes = sizeof(td_local_prologue)                        \
    }
#define PREPARES(symbol) {PREPARE(symbol, 32), PREPARE(symbol, 64), PREPARE(symbol, 128), PREPARE(symbol, 128)}
static const td_kernel kernels_prepare[] = PREPARES(prepare);
static const td_kernel kernels_prepare_q[] = PREPARES(prepare_q);
static const td_kernel kernels_prepare_kv[] = PREPARES(prepare_kv);
static const td_kernel kernel_claim = {.name = "claim", .entry = "claim", .cpu = td_cpu_claim};
static const td_kernel kernel_commit = {.name = "commit", .entry = "commit", .cpu = td_cpu_commit};

enum { D_COUNT = 5 };
static const uint32_t d_pads[D_COUNT] = {32, 64, 96, 128, 256};

#define ATTENTION(symbol, d)                                                                                         \
    {                                                                                                                \
        .name = #symbol, .entry = #symbol "_d" #d, .cpu = td_twin_##symbol, .cpu_local_bytes = sizeof(td_local_twin) \
    }
#define ATTENTIONS(symbol)                                                                           \
    {                                                                                                \
        ATTENTION(symbol, 32), ATTENTION(symbol, 64), ATTENTION(symbol, 96), ATTENTION(symbol, 128), \
            ATTENTION(symbol, 256)                                                                   \
    }
static const td_kernel kernels_attn_8b_fp8[D_COUNT] = ATTENTIONS(attn_8b_fp8);
static const td_kernel kernels_attn_8b_f16[D_COUNT] = ATTENTIONS(attn_8b_f16);
static const td_kernel kernels_attn_4b_fp8[D_COUNT] = ATTENTIONS(attn_4b_fp8);
static const td_kernel kernels_attn_4b_f16[D_COUNT] = ATTENTIONS(attn_4b_f16);
static const td_kernel kernels_attn_f16[D_COUNT] = ATTENTIONS(attn_f16);
#define WGMMA_AS(kind, symbol, d)                                                    \
    {                                                                                \
        .name = #kind, .entry = #symbol "_d" #d, .cpu = td_twin_attn_8b_wgmma,       \
        .cpu_local_bytes = sizeof(td_local_twin)                                     \
    }
#define WGMMA(symbol, d) WGMMA_AS(symbol, symbol, d)
static const td_kernel kernels_attn_8b_wgmma[D_COUNT] = {WGMMA(attn_8b_wgmma, 32), WGMMA(attn_8b_wgmma, 64),
                                                         WGMMA(attn_8b_wgmma, 96), WGMMA(attn_8b_wgmma, 128),
                                                         WGMMA(attn_8b_wgmma, 256)};
static const td_kernel kernels_attn_8b_wgmma_short[D_COUNT - 1] = {
    WGMMA(attn_8b_wgmma_short, 32), WGMMA(attn_8b_wgmma_short, 64), WGMMA(attn_8b_wgmma_short, 96),
    WGMMA(attn_8b_wgmma_short, 128)};
static const td_kernel kernels_attn_8b_wgmma_walk[D_COUNT - 1] = {
    WGMMA_AS(attn_8b_wgmma, attn_8b_wgmma_walk, 32), WGMMA_AS(attn_8b_wgmma, attn_8b_wgmma_walk, 64),
    WGMMA_AS(attn_8b_wgmma, attn_8b_wgmma_walk, 96), WGMMA_AS(attn_8b_wgmma, attn_8b_wgmma_walk, 128)};
static const td_kernel kernels_attn_8b_wgmma_split[D_COUNT - 1] = {
    WGMMA(attn_8b_wgmma_split, 32), WGMMA(attn_8b_wgmma_split, 64), WGMMA(attn_8b_wgmma_split, 96),
    WGMMA(attn_8b_wgmma_split, 128)};
static const td_kernel kernel_attn_8b_wgmma_pair = WGMMA(attn_8b_wgmma_pair, 64);
static const td_kernel kernels_attn_8b_wgmma_dump[D_COUNT] = {
    WGMMA(attn_8b_wgmma_dump, 32), WGMMA(attn_8b_wgmma_dump, 64), WGMMA(attn_8b_wgmma_dump, 96),
    WGMMA(attn_8b_wgmma_dump, 128), WGMMA(attn_8b_wgmma_dump, 256)};
#define F16_WGMMA(name_, d) {.name = name_, .entry = name_ "_d" #d, .cpu = td_twin_attn_f16_wgmma}
static const td_kernel kernels_attn_8b_wgmma_inline[D_COUNT - 1] = {
    WGMMA(attn_8b_wgmma_inline, 32), WGMMA(attn_8b_wgmma_inline, 64), WGMMA(attn_8b_wgmma_inline, 96),
    WGMMA(attn_8b_wgmma_inline, 128)};
static const td_kernel kernels_attn_8b_wgmma_inline_split[D_COUNT - 1] = {
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_split, 32),
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_split, 64),
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_split, 96),
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_split, 128)};
static const td_kernel kernel_attn_8b_wgmma_inline_pair = WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_pair, 64);
static const td_kernel kernels_attn_8b_wgmma_inline_short[D_COUNT - 1] = {
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_short, 32),
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_short, 64),
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_short, 96),
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_short, 128)};
/* Without a prologue, on tensors of fp16, of bf16: on a stream, there by blocks whose warpgroups share the keys of 64 rows or
 * of 128, and in the shared memory that every executor has, by blocks of three warpgroups or of two. */
typedef enum direct_kind { DIRECT, DIRECT_SPLIT, DIRECT_SPLIT2, DIRECT_INLINE, DIRECT_SHORT, DIRECT_KINDS } direct_kind;
typedef struct direct_kernels {
    uint32_t dim;
    td_kernel kernels[DIRECT_KINDS][2];
} direct_kernels;
#define DIRECT_PAIR(kind, d) {F16_WGMMA("attn_f16_wgmma" kind, d), F16_WGMMA("attn_bf16_wgmma" kind, d)}
#define DIRECTS(d)                                                                                       \
    .dim = d, .kernels = {[DIRECT] = DIRECT_PAIR("", d), [DIRECT_SPLIT] = DIRECT_PAIR("_split", d),      \
                          [DIRECT_INLINE] = DIRECT_PAIR("_inline", d), [DIRECT_SHORT] = DIRECT_PAIR("_inline_short", d)}
static const direct_kernels directs[] = {
    {DIRECTS(64), .kernels[DIRECT_SPLIT2] = DIRECT_PAIR("_split2", 64)}, {DIRECTS(80)}, {DIRECTS(96)}, {DIRECTS(128)}};
static const td_kernel kernel_fast_8b = {
    .name = "attn_fast_8b", .cpu = td_fast_attn_8b, .cpu_local_bytes = sizeof(td_local_fast)};
static const td_kernel kernel_fast_f16 = {
    .name = "attn_fast_f16", .cpu = td_fast_attn_f16, .cpu_local_bytes = sizeof(td_local_fast)};

__attribute__((format(printf, 4, 5))) static tandem_status refuse(tandem_status status, char *why, size_t why_bytes,
                                                                  const char *format, ...)
{
    if (why && why_bytes) {
        va_list list;
        va_start(list, format);
        td_text_list(why, why_bytes, format, list);
        va_end(list);
    }
    return status;
}

static uint32_t round_up(uint32_t x, uint32_t to)
{
    return (x + to - 1) / to * to;
}

static uint32_t pad_dim(uint32_t dim)
{
    for (int i = 0; i < D_COUNT; i++)
        if (dim <= d_pads[i])
            return d_pads[i];
    return 0;
}

static bool is_codes(uint32_t dtype)
{
    return dtype == TANDEM_DTYPE_CODES_INT8 || dtype == TANDEM_DTYPE_CODES_E4M3;
}

/* Where nobody said how many there are, those of the GPU on which all times here were measured. */
static uint32_t multiprocessors_of(const td_target *target)
{
    return target->multiprocessors ? target->multiprocessors : TD_H200_MULTIPROCESSORS;
}

/* In how many turns the multiprocessors have `blocks` blocks, one each at a time. */
static double turns_of(const td_target *target, uint64_t blocks)
{
    return (double)blocks / multiprocessors_of(target);
}

/* What td_attention_check() is at. */
typedef struct check {
    const tandem_attention *op;
    char *why;
    size_t why_bytes;
} check;

static tandem_status check_view(const check *at, const char *name, const tandem_view *view, uint32_t heads,
                                uint32_t rows, uint32_t dim, bool written)
{
    const uint32_t batch = at->op->batch, bytes = td_dtype_bytes(view->dtype);
    const struct {
        const char *name;
        int64_t stride;
        uint32_t count;
    } axes[3] = {
        {"batch", view->stride_batch, batch}, {"head", view->stride_head, heads}, {"row", view->stride_row, rows}};
    if (!bytes || (written && is_codes(view->dtype)))
        return refuse(TANDEM_ERROR_ARG, at->why, at->why_bytes,
                      "attention.%s.dtype is %" PRIu32 "; it must be 1 (f16), 2 (bf16) or 3 (f32)%s", name, view->dtype,
                      written ? "" : ", or where q, k and v are codes 4 and 5");
    if (view->reserved)
        return refuse(TANDEM_ERROR_ARG, at->why, at->why_bytes, "attention.%s.reserved is %" PRIu32 "; it must be 0",
                      name, view->reserved);
    if (view->offset_bytes % bytes)
        return refuse(TANDEM_ERROR_ARG, at->why, at->why_bytes,
                      "attention.%s.offset_bytes is %" PRIu64 "; it must be a multiple of the element's %" PRIu32
                      " bytes",
                      name, view->offset_bytes, bytes);
    for (int i = 0; i < 3; i++)
        if (axes[i].stride < 0)
            return refuse(TANDEM_ERROR_ARG, at->why, at->why_bytes,
                          "attention.%s.stride_%s is %" PRId64 "; it must not be negative", name, axes[i].name,
                          axes[i].stride);
    const uint64_t extent = td_view_extent_bytes(view, batch, heads, rows, dim);
    if (extent > (uint64_t)INT64_MAX || view->offset_bytes > (uint64_t)INT64_MAX - extent)
        return refuse(TANDEM_ERROR_ARG, at->why, at->why_bytes,
                      "attention.%s.stride_batch, stride_head, stride_row are %" PRId64 ", %" PRId64 ", %" PRId64
                      "; with offset_bytes %" PRIu64 " the last element lies beyond 2^63 bytes (strides count elements)",
                      name, view->stride_batch, view->stride_head, view->stride_row, view->offset_bytes);
    if (!written)
        return TANDEM_OK;

    /* Strides in rising order: each must clear what the smaller ones span. */
    int order[3] = {0, 1, 2};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2 - i; j++)
            if (axes[order[j]].stride > axes[order[j + 1]].stride) {
                const int other = order[j];
                order[j] = order[j + 1];
                order[j + 1] = other;
            }
    unsigned __int128 span = dim;
    for (int i = 0; i < 3; i++) {
        const int axis = order[i];
        if (axes[axis].count < 2)
            continue;
        if ((unsigned __int128)axes[axis].stride < span)
            return refuse(TANDEM_ERROR_ARG, at->why, at->why_bytes,
                          "attention.%s.stride_%s is %" PRId64 "; the output would overlap itself: strides count elements, and "
                          "it must be at least %" PRIu64,
                          name, axes[axis].name, axes[axis].stride, (uint64_t)span);
        span += (unsigned __int128)(axes[axis].count - 1) * (uint64_t)axes[axis].stride;
    }
    return TANDEM_OK;
}

/* Where a view is codes: that all three are, and lie as they must. */
static tandem_status check_codes(const tandem_attention *op, char *why, size_t why_bytes)
{
    const struct {
        const char *name;
        const tandem_view *view;
        uint32_t dtype, heads, rows;
    } views[3] = {{"q", &op->q, TANDEM_DTYPE_CODES_INT8, op->heads, op->q_len},
                  {"k", &op->k, TANDEM_DTYPE_CODES_INT8, op->kv_heads, op->kv_len},
                  {"v", &op->v, TANDEM_DTYPE_CODES_E4M3, op->kv_heads, op->kv_len}};
    const int64_t d_pad = pad_dim(op->head_dim);
    if (!is_codes(op->q.dtype) && !is_codes(op->k.dtype) && !is_codes(op->v.dtype))
        return TANDEM_OK;
    for (int i = 0; i < 3; i++) {
        const tandem_view *view = views[i].view;
        if (view->dtype != views[i].dtype)
            return refuse(TANDEM_ERROR_ARG, why, why_bytes,
                          "attention.%s.dtype is %" PRIu32 "; where q, k or v is codes it must be %" PRIu32, views[i].name,
                          view->dtype, views[i].dtype);
        /* check_view() has seen that 63 bits hold what such codes have */
        const int64_t rows_pad = round_up(views[i].rows, TD_TILE_ROWS), row = i < 2 ? d_pad : rows_pad;
        const struct {
            const char *name;
            int64_t is, must;
        } strides[3] = {{"row", view->stride_row, row},
                        {"head", view->stride_head, rows_pad * d_pad},
                        {"batch", view->stride_batch, rows_pad * d_pad * views[i].heads}};
        if (view->offset_bytes % TD_SCRATCH_ALIGN)
            return refuse(TANDEM_ERROR_ARG, why, why_bytes,
                          "attention.%s.offset_bytes is %" PRIu64 "; for codes it must be a multiple of %d", views[i].name,
                          view->offset_bytes, TD_SCRATCH_ALIGN);
        for (int s = 0; s < 3; s++)
            if (strides[s].is != strides[s].must)
                return refuse(TANDEM_ERROR_ARG, why, why_bytes,
                              "attention.%s.stride_%s is %" PRId64 "; for codes of this shape it must be %" PRId64,
                              views[i].name, strides[s].name, strides[s].is, strides[s].must);
    }
    if (op->precision != TANDEM_PRECISION_AUTO && op->precision != TANDEM_PRECISION_8B)
        return refuse(TANDEM_ERROR_ARG, why, why_bytes,
                      "attention.precision is %" PRIu32 "; for codes it must be 0 (auto) or 2 (8b)", op->precision);
    if (op->smooth > TANDEM_SMOOTH_NONE)
        return refuse(TANDEM_ERROR_ARG, why, why_bytes,
                      "attention.smooth is %" PRIu32 "; codes are smoothed already, or not: it must be 0 or 1", op->smooth);
    if (op->lse.dtype != TANDEM_DTYPE_NONE)
        return refuse(TANDEM_ERROR_ARG, why, why_bytes,
                      "attention.lse.dtype is %" PRIu32 "; of codes, whose mean nobody knows, it must be 0", op->lse.dtype);
    return TANDEM_OK;
}

tandem_status td_attention_check(const tandem_attention *op, char *why, size_t why_bytes)
{
    const check at = {op, why, why_bytes};
    const struct {
        const char *name;
        uint32_t value;
    } sizes[] = {{"batch", op->batch},
                 {"heads", op->heads},
                 {"kv_heads", op->kv_heads},
                 {"q_len", op->q_len},
                 {"kv_len", op->kv_len}},
      limits[] = {{"precision", op->precision},
                  {"granularity", op->granularity},
                  {"causal", op->causal},
                  {"reserved", op->reserved}};
    const uint32_t highest[] = {TANDEM_PRECISION_4B, TANDEM_GRANULARITY_TENSOR, 1, 0};
    static const char *const legal[] = {
        "0 (auto), 1 (f16), 2 (8b) or 3 (4b)",
        "0 (default), 1 (thread, Ada's), 2 (thread, Hopper's), 3 (token), 4 (warp), 5 (block) or 6 (tensor)",
        "0 or 1", "0"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value == 0)
            return refuse(TANDEM_ERROR_ARG, why, why_bytes, "attention.%s is 0; it must be at least 1", sizes[i].name);
        if (sizes[i].value > MAX_ROWS)
            return refuse(TANDEM_ERROR_ARG, why, why_bytes, "attention.%s is %" PRIu32 "; it must be at most %d",
                          sizes[i].name, sizes[i].value, MAX_ROWS);
    }
    if (op->heads % op->kv_heads)
        return refuse(TANDEM_ERROR_ARG, why, why_bytes,
                      "attention.heads is %" PRIu32 "; it must be a multiple of kv_heads, which is %" PRIu32, op->heads,
                      op->kv_heads);
    const uint32_t dim = op->head_dim;
    if (dim != 32 && dim != 64 && dim != 80 && dim != 96 && dim != 128 && dim != 256)
        return refuse(TANDEM_ERROR_ARG, why, why_bytes,
                      "attention.head_dim is %" PRIu32 "; it must be 32, 64, 80, 96, 128 or 256", dim);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value > highest[i])
            return refuse(TANDEM_ERROR_ARG, why, why_bytes, "attention.%s is %" PRIu32 "; it must be %s",
                          limits[i].name, limits[i].value, legal[i]);
    if (op->smooth > 15)
        return refuse(TANDEM_ERROR_ARG, why, why_bytes,
                      "attention.smooth is %" PRIu32
                      "; it must be 0 (default), 1 (none), or a sum of 2 (Q), 4 (K) and 8 (V): at most 14",
                      op->smooth);
    if ((op->smooth & TANDEM_SMOOTH_NONE) && op->smooth != TANDEM_SMOOTH_NONE)
        return refuse(TANDEM_ERROR_ARG, why, why_bytes,
                      "attention.smooth is %" PRIu32 "; NONE (1) must not be combined with others", op->smooth);
    if (!isfinite(op->scale))
        return refuse(TANDEM_ERROR_ARG, why, why_bytes, "attention.scale is %f; it must be finite", (double)op->scale);

    tandem_status status = check_view(&at, "q", &op->q, op->heads, op->q_len, dim, false);
    if (status == TANDEM_OK)
        status = check_view(&at, "k", &op->k, op->kv_heads, op->kv_len, dim, false);
    if (status == TANDEM_OK)
        status = check_view(&at, "v", &op->v, op->kv_heads, op->kv_len, dim, false);
    if (status == TANDEM_OK)
        status = check_view(&at, "o", &op->o, op->heads, op->q_len, dim, true);
    if (status == TANDEM_OK && op->lse.dtype != TANDEM_DTYPE_NONE) {
        if (op->lse.dtype != TANDEM_DTYPE_F32)
            return refuse(TANDEM_ERROR_ARG, why, why_bytes,
                          "attention.lse.dtype is %" PRIu32 "; it must be 3 (f32), or 0 where lse is not wanted",
                          op->lse.dtype);
        status = check_view(&at, "lse", &op->lse, op->heads, op->q_len, 1, true);
    }
    if (status == TANDEM_OK)
        status = check_codes(op, why, why_bytes);
    if (status != TANDEM_OK)
        return status;

    /* Every grid must fit into 2^31 - 1 blocks and all of scratch into 2^63 bytes; no array has more than
     * bh * (q blocks) * (kv rows) or bh * rows * 256 elements of 4 bytes, and there are fewer than 32. */
    const unsigned __int128 bh = (unsigned __int128)op->batch * op->heads;
    const uint64_t q_tiles = ((uint64_t)op->q_len + 63) / 64, q_blocks = ((uint64_t)op->q_len + 127) / 128;
    const uint64_t chunks = ((uint64_t)op->kv_len + 127) / 128;
    const bool deltas = (op->smooth & TANDEM_SMOOTH_Q) || (op->precision == TANDEM_PRECISION_4B && op->smooth == 0);
    unsigned __int128 blocks = bh * (q_tiles > chunks ? q_tiles : chunks);
    if (deltas && bh * q_blocks * chunks > blocks)
        blocks = bh * q_blocks * chunks;
    if (blocks > TD_MOST_BLOCKS)
        return refuse(TANDEM_ERROR_ARG, why, why_bytes,
                      "attention.batch, heads, q_len, kv_len are %" PRIu32 ", %" PRIu32 ", %" PRIu32 ", %" PRIu32
                      "; together they need more than %d blocks",
                      op->batch, op->heads, op->q_len, op->kv_len, TD_MOST_BLOCKS);
    return TANDEM_OK;
}

#define AT(type, member) offsetof(td_params_##type, member)

static td_tensor tensor_of(const tandem_view *view, uint32_t heads, uint32_t rows, uint32_t dim)
{
    return (td_tensor){.stride_batch = view->stride_batch,
                       .stride_head = view->stride_head,
                       .stride_row = view->stride_row,
                       .dtype = view->dtype,
                       .heads = heads,
                       .rows = rows,
                       .dim = dim};
}

/* One of Q, K, V as the prologue sees it. */
typedef struct operand {
    uint32_t view, rows_pad, chunks, d_pad;
    uint64_t planes; /* batch * its heads */
    td_tensor tensor;
    td_place partial, mean, amax, flag, codes, scale;
} operand;

/* Statistics of its chunks, for the prologues that keep them there. */
static void place_chunks(td_builder *at, operand *x, bool amax, bool flag)
{
    const unsigned __int128 chunks = (unsigned __int128)x->planes * x->chunks;
    x->partial = td_build_take(at, x->mean.offset != TD_ABSENT, chunks * x->d_pad * 4);
    x->amax = td_build_take(at, amax, chunks * x->d_pad * 4);
    x->flag = td_build_take(at, flag, chunks * TD_TILE_ROWS * 4);
}

static void add_mean(td_builder *at, operand *x)
{
    td_record *record;
    const td_params_mean_partial partial = {.x = x->tensor, .chunks = x->chunks, .d_pad = x->d_pad};
    record = td_build_record(at, &kernel_mean_partial, x->planes * x->chunks, &partial, sizeof partial);
    td_build_view(at, record, TD_READ, AT(mean_partial, x.data), x->view);
    td_build_scratch(at, record, TD_WRITE, AT(mean_partial, partial), x->partial);

    const td_params_mean_final final = {.chunks = x->chunks, .d_pad = x->d_pad, .rows = x->tensor.rows};
    record = td_build_record(at, &kernel_mean_final, x->planes, &final, sizeof final);
    td_build_scratch(at, record, TD_READ, AT(mean_final, partial), x->partial);
    td_build_scratch(at, record, TD_WRITE, AT(mean_final, mean), x->mean);
}

static void add_amax(td_builder *at, const operand *x, bool own_mean)
{
    const td_params_amax_partial amax = {
        .x = x->tensor, .chunks = x->chunks, .d_pad = x->d_pad, .rows_pad = x->rows_pad, .own_mean = own_mean};
    td_record *record = td_build_record(at, &kernel_amax_partial, x->planes * x->chunks, &amax, sizeof amax);
    td_build_view(at, record, TD_READ, AT(amax_partial, x.data), x->view);
    td_build_scratch(at, record, TD_READ, AT(amax_partial, mean), x->mean);
    td_build_scratch(at, record, TD_WRITE, AT(amax_partial, amax), x->amax);
    td_build_scratch(at, record, TD_WRITE, AT(amax_partial, flag), x->flag);
}

/* Codes and scales of an operand: of scratch, or of a view that has them. */
static void use_codes(td_builder *at, td_record *record, size_t codes, size_t scale, const operand *x)
{
    uint64_t scales_bytes;
    if (!is_codes(x->tensor.dtype)) {
        td_build_scratch(at, record, TD_READ, codes, x->codes);
        td_build_scratch(at, record, TD_READ, scale, x->scale);
        return;
    }
    tandem_codes_bytes(x->tensor.dtype, at->op->batch, x->tensor.heads, x->tensor.rows, x->tensor.dim, &scales_bytes);
    td_build_view(at, record, TD_READ, codes, x->view);
    td_build_pointer(at, record, scale, TD_BASE_VIEW, x->view, scales_bytes);
}

static operand make_operand(td_builder *at, uint32_t view, const tandem_view *of, uint32_t heads, uint32_t rows,
                            uint32_t d_pad)
{
    const uint32_t dim = at->op->head_dim;
    operand x = {.view = view, .rows_pad = round_up(rows, TD_TILE_ROWS), .d_pad = d_pad};
    x.chunks = x.rows_pad / TD_TILE_ROWS;
    x.planes = (uint64_t)at->op->batch * heads;
    x.tensor = tensor_of(of, heads, rows, dim);
    at->extent_bytes[view] = td_view_extent_bytes(of, at->op->batch, heads, rows, dim);
    return x;
}

/* Scratch of an operand. Its sizes count elements, which are below 2^31 blocks * 128 rows * 256 channels. */
static void place_operand(td_builder *at, operand *x, bool mean, uint32_t row_bytes, bool scale_by_row)
{
    const unsigned __int128 rows = (unsigned __int128)x->planes * x->rows_pad;
    const unsigned __int128 channels = (unsigned __int128)x->planes * x->d_pad;
    x->partial = x->amax = x->flag = (td_place){TD_ABSENT, 0};
    x->mean = td_build_take(at, mean, channels * 4);
    x->codes = td_build_take(at, !is_codes(x->tensor.dtype), rows * row_bytes);
    x->scale = td_build_take(at, !is_codes(x->tensor.dtype), (scale_by_row ? rows : channels) * 4);
}

/* Sets a block works on, so that each multiprocessor still gets some eight blocks: a power of two up to 8. */
static uint32_t sets_a_block(const td_target *target, uint64_t sets)
{
    const uint64_t blocks = 8 * (uint64_t)multiprocessors_of(target);
    uint32_t each = 1;
    while (each < 8 && sets / (2 * each) >= blocks)
        each *= 2;
    return each;
}

/* The prologue as two records; what they need beyond the operands is in `quantise`. False if the grid is too large. */
static bool add_fused(td_builder *at, const td_target *target, const operand *q, const operand *k, const operand *v, td_params_quantise *quantise,
                      td_place q_mean, td_place lse_bias, bool ahead)
{
    const uint32_t tiles = TD_FUSED_TILES(k->d_pad), sets = (k->chunks + tiles - 1) / tiles;
    const uint64_t q_tiles = q->planes * q->chunks;
    const uint32_t each = sets_a_block(target, 2 * k->planes * sets + q_tiles / tiles);
    quantise->sets = (uint16_t)each;
    quantise->ahead = ahead && each > 1;
    quantise->kv_planes = (uint32_t)k->planes;
    quantise->kv_blocks = (sets + each - 1) / each;
    quantise->q_tiles = (uint32_t)q_tiles;
    const uint64_t grid = 2 * k->planes * quantise->kv_blocks + (q_tiles + tiles * each - 1) / (tiles * each);
    if (grid > TD_MOST_BLOCKS || 2 * k->planes * k->chunks > TD_MOST_BLOCKS)
        return false;

    td_params_stats stats = {.k = k->tensor,
                             .v = v->tensor,
                             .planes = (uint32_t)k->planes,
                             .chunks = k->chunks,
                             .sets = sets_a_block(target, 2 * k->planes * k->chunks / tiles),
                             .d_pad = (uint16_t)k->d_pad};
    stats.ahead = ahead && stats.sets > 1;
    const bool smooth_k = k->partial.offset != TD_ABSENT;
    const uint64_t stats_grid = (k->planes * k->chunks + tiles * stats.sets - 1) / (tiles * stats.sets);
    td_record *record = td_build_record(at, &kernel_stats, stats_grid << smooth_k, &stats, sizeof stats);
    record->block[0] = TD_FUSED_THREADS;
    record->shared_bytes = TD_FUSED_SHARED_BYTES + stats.ahead * TD_FUSED_AHEAD_BYTES;
    if (smooth_k)
        td_build_view(at, record, TD_READ, AT(stats, k.data), TD_VIEW_K);
    td_build_view(at, record, TD_READ, AT(stats, v.data), TD_VIEW_V);
    td_build_scratch(at, record, TD_WRITE, AT(stats, partial), k->partial);
    td_build_scratch(at, record, TD_WRITE, AT(stats, amax), v->amax);
    td_build_scratch(at, record, TD_WRITE, AT(stats, flag), v->flag);

    record = td_build_record(at, &kernel_quantise, grid, quantise, sizeof *quantise);
    record->block[0] = TD_FUSED_THREADS;
    record->shared_bytes = TD_FUSED_SHARED_BYTES + quantise->ahead * TD_FUSED_AHEAD_BYTES;
    record->flags = at->overlaps ? TD_RECORD_PDL : 0;
    td_build_view(at, record, TD_READ, AT(quantise, q), TD_VIEW_Q);
    td_build_view(at, record, TD_READ, AT(quantise, k), TD_VIEW_K);
    td_build_view(at, record, TD_READ, AT(quantise, v), TD_VIEW_V);
    td_build_scratch(at, record, TD_READ, AT(quantise, partial), k->partial);
    td_build_scratch(at, record, TD_READ, AT(quantise, amax), v->amax);
    td_build_scratch(at, record, TD_READ, AT(quantise, flag), v->flag);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, q_scale), q->scale);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, k_scale), k->scale);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, v_scale), v->scale);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, q_mean), q_mean);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, k_mean), k->mean);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, lse_bias), lse_bias);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, q_codes), q->codes);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, k_codes), k->codes);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, v_codes), v->codes);
    return true;
}

/* Where a plan that commits puts its output first; o is TD_ABSENT where that is in the views Q and K. */
typedef struct output {
    td_place o, lse, verdict;
} output;

static void add_commit(td_builder *at, const output *out, const td_tensor *o, uint64_t planes)
{
    const tandem_view *lse = &at->op->lse;
    td_record *record;
    const td_params_claim claim = {0};
    record = td_build_record(at, &kernel_claim, 1, &claim, sizeof claim);
    record->block[0] = 1;
    td_build_pointer(at, record, AT(claim, control), TD_BASE_CONTROL, 0, 0);
    td_build_scratch(at, record, TD_WRITE, AT(claim, verdict), out->verdict);
    if (out->o.offset != TD_ABSENT) /* no pointer leads there, but nothing is claimed before it is computed */
        td_build_range(at, record, TD_READ, (td_range){TD_BASE_SCRATCH, 0, out->o.offset, out->o.offset + out->o.bytes});

    const td_params_commit commit = {.o = *o,
                                     .lse_stride_batch = lse->stride_batch,
                                     .lse_stride_head = lse->stride_head,
                                     .lse_stride_row = lse->stride_row};
    record = td_build_record(at, &kernel_commit, planes * ((o->rows + TD_TILE_ROWS - 1) / TD_TILE_ROWS), &commit,
                        sizeof commit);
    td_build_scratch(at, record, TD_READ, AT(commit, verdict), out->verdict);
    if (out->o.offset != TD_ABSENT) {
        td_build_scratch(at, record, TD_READ, AT(commit, from), out->o);
        td_build_scratch(at, record, TD_READ, AT(commit, lse_from), out->lse);
    } else {
        td_build_view(at, record, TD_READ, AT(commit, from), TD_VIEW_Q);
        td_build_view(at, record, TD_READ, AT(commit, lse_from), TD_VIEW_K);
    }
    td_build_view(at, record, TD_WRITE, AT(commit, o.data), TD_VIEW_O);
    td_build_view(at, record, TD_WRITE, AT(commit, lse), TD_VIEW_LSE);
}

/* Whether a view may be read 16 bytes at a time. */
static bool is_wide(const tandem_view *view)
{
    return view->offset_bytes % 16 == 0 && view->stride_batch % 8 == 0 && view->stride_head % 8 == 0 &&
           view->stride_row % 8 == 0;
}

/* How many blocks of `tiles` tiles make a cluster that has all of a head's K and V; 0: none does. */
static uint32_t find_cluster(uint32_t chunks, uint32_t d_pad, uint32_t *tiles)
{
    const uint32_t most = TD_PREPARE_MOST_THREADS / 64 / TD_PREPARE_HEAD_WARPS(d_pad);
    for (*tiles = 1; *tiles <= most; *tiles *= 2)
        if ((chunks + *tiles - 1) / *tiles <= MAX_CLUSTER)
            return (chunks + *tiles - 1) / *tiles;
    return 0;
}

/* Statistics of heads are so far ahead of their codes: by as many as find their rows still in L2, but at least so that they find
 * the statistics ready. */
static uint32_t find_lag(const td_target *target, const operand *k, uint32_t blocks)
{
    const uint32_t resident = 2 * multiprocessors_of(target);
    const uint64_t fit = PREPARE_KEPT_BYTES / (6 * (uint64_t)k->rows_pad * k->d_pad); /* K and V, and their codes */
    const uint32_t least = 1 + resident / (2 * blocks);
    const uint64_t most = fit < k->planes ? fit : k->planes;
    return most > least ? (uint32_t)most : least;
}

static int index_of_dim(uint32_t d_pad)
{
    int i = 0;
    while (d_pads[i] != d_pad)
        i++;
    return i;
}

/* Blocks that start before the kernel ahead has left all multiprocessors pile up where there is room first. Dynamic shared bytes,
 * which nobody uses, that let no more of them there than it takes to have the grid at once. */
static uint32_t spread_bytes(const td_target *target, uint64_t grid)
{
    const uint64_t each = (grid + multiprocessors_of(target) - 1) / multiprocessors_of(target);
    return each > 2 ? 0 : MULTIPROCESSOR_SHARED / (uint32_t)(each + 1) - PREPARE_LEAST_SHARED;
}

/* The prologue on sm_90: one record where clusters hold the heads and these lie well, else two. */
static bool add_prepare(td_builder *at, const td_target *target, operand *q, operand *k, operand *v)
{
    const tandem_attention *op = at->op;
    const uint32_t d_pad = k->d_pad, warps = TD_PREPARE_HEAD_WARPS(d_pad), each = TD_PREPARE_THREADS / 64 / warps;
    const uint32_t blocks = (k->chunks + each - 1) / each, lag = find_lag(target, k, blocks);
    const uint64_t q_tiles = q->planes * q->chunks;
    const bool smooth = k->mean.offset != TD_ABSENT;
    const int d = index_of_dim(d_pad);
    uint32_t tiles = 0, cluster = target->no_clusters ? 0 : find_cluster(k->chunks, d_pad, &tiles);
    uint64_t grid;
    td_record *record;
    td_params_prepare prepare = {.q_strides = {op->q.stride_batch, op->q.stride_head, op->q.stride_row},
                                 .k_strides = {op->k.stride_batch, op->k.stride_head, op->k.stride_row},
                                 .v_strides = {op->v.stride_batch, op->v.stride_head, op->v.stride_row},
                                 .heads = op->heads,
                                 .kv_heads = op->kv_heads,
                                 .q_len = op->q_len,
                                 .kv_len = op->kv_len,
                                 .kv_pad = k->rows_pad,
                                 .kv_planes = (uint32_t)k->planes,
                                 .q_tiles = (uint32_t)q_tiles,
                                 .dim = (uint16_t)op->head_dim,
                                 .d_pad = (uint16_t)d_pad,
                                 .q_dtype = (uint8_t)op->q.dtype,
                                 .k_dtype = (uint8_t)op->k.dtype,
                                 .v_dtype = (uint8_t)op->v.dtype,
                                 .smooth = smooth,
                                 .tiles = each,
                                 .lag = lag};

    if ((k->planes + lag) * 2 * blocks > TD_MOST_BLOCKS || 8 * q_tiles > TD_MOST_BLOCKS || !is_wide(&op->q) || !is_wide(&op->k) ||
        !is_wide(&op->v))
        return false;
    if (cluster && k->planes * cluster + 8 * q_tiles <= TD_MOST_BLOCKS) {
        const uint32_t block_warps = 2 * tiles * warps;
        const uint64_t bytes = 2 * op->head_dim * (q->planes * op->q_len + 2 * k->planes * op->kv_len);
        prepare.tiles = tiles;
        prepare.asks = bytes <= PREPARE_ASKS_BYTES;
        grid = k->planes * cluster + (8 * q_tiles + block_warps - 1) / block_warps;
        grid = (grid + cluster - 1) / cluster * cluster;
        record = td_build_record(at, &kernels_prepare[d], grid, &prepare, sizeof prepare);
        record->block[0] = 32 * block_warps;
        record->flags = TD_RECORD_CLUSTER | TD_RECORD_PDL;
        record->cluster = cluster;
        record->shared_bytes = spread_bytes(target, grid);
        td_build_view(at, record, TD_READ, AT(prepare, q), TD_VIEW_Q);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, q_scale), q->scale);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, q_codes), q->codes);
    } else {
        const td_place counters = td_build_take(at, true, (unsigned __int128)k->planes * 2 * sizeof(uint32_t));
        k->partial = td_build_take(at, smooth, (unsigned __int128)k->planes * k->chunks * d_pad * 4);
        v->amax = td_build_take(at, true, (unsigned __int128)k->planes * (blocks + 1) * d_pad * 4);
        grid = (8 * q_tiles + TD_PREPARE_THREADS / 32 - 1) / (TD_PREPARE_THREADS / 32);
        record = td_build_record(at, &kernels_prepare_q[d], grid, &prepare, sizeof prepare);
        record->block[0] = TD_PREPARE_THREADS;
        td_build_view(at, record, TD_READ, AT(prepare, q), TD_VIEW_Q);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, counters), counters);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, q_scale), q->scale);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, q_codes), q->codes);

        record = td_build_record(at, &kernels_prepare_kv[d], (k->planes + lag) * 2 * blocks, &prepare, sizeof prepare);
        record->block[0] = 64 * each * warps;
        record->flags = TD_RECORD_PDL;
        td_build_scratch(at, record, TD_WRITE, AT(prepare, counters), counters);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, partial), k->partial);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, amax), v->amax);
    }
    td_build_view(at, record, TD_READ, AT(prepare, k), TD_VIEW_K);
    td_build_view(at, record, TD_READ, AT(prepare, v), TD_VIEW_V);
    td_build_scratch(at, record, TD_WRITE, AT(prepare, k_scale), k->scale);
    td_build_scratch(at, record, TD_WRITE, AT(prepare, v_scale), v->scale);
    td_build_scratch(at, record, TD_WRITE, AT(prepare, k_mean), k->mean);
    td_build_scratch(at, record, TD_WRITE, AT(prepare, k_codes), k->codes);
    td_build_scratch(at, record, TD_WRITE, AT(prepare, v_codes), v->codes);
    return true;
}

/* Whether a block of the target has room for attn_f16_wgmma's. */
static bool is_roomy(const td_target *target, uint32_t head_dim)
{
    return target->shared_bytes >= TD_F16_SHARED_BYTES(head_dim);
}

/* Whether each of those that walk from tile to tile gets pairs of tiles of rows, a long and a short one: where there are as
 * many as that, or, of two a multiprocessor, almost. */
static bool is_paired(const tandem_attention *op, uint64_t works, uint32_t multiprocessors, uint32_t walkers)
{
    return op->causal && 4 * works >= (uint64_t)multiprocessors * (walkers == 1 ? 8 : 7 * walkers);
}

/* Warpgroups of a block of attn_f16_wgmma_inline that pay off, as in hopper_groups(). */
static uint32_t inline_groups(const tandem_attention *op, const td_target *target)
{
    double times[2];

    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t rows = 64 * (TD_F16_INLINE_GROUPS - i);
        const uint64_t works = (uint64_t)op->batch * op->heads * ((op->q_len + rows - 1) / rows);
        const double each = is_paired(op, works, multiprocessors_of(target), 1) ? 2 : 1;

        times[i] = each * ceil(turns_of(target, works) / each);
        if (op->causal)
            times[i] *= (double)op->kv_len + rows; /* twice what a query sees, and what the mask hides of a block's keys */
    }
    const bool pays = times[1] < TD_F16_INLINE_LONGER(op->head_dim) * times[0];
    const bool is_short = target->rows ? target->rows == TD_SHORT_ROWS : pays;
    return TD_F16_INLINE_GROUPS - is_short;
}

/* What a block of a direct kernel is made of. */
typedef struct direct_block {
    direct_kind kind;
    uint32_t rows, teams, keys; /* of a tile; of warpgroups that share its keys, else 1; of a step */
    uint32_t walkers;           /* teams that have tiles of their own, else 1 */
    uint32_t threads, shared_bytes;
} direct_block;

/* Of how many tiles of 64 rows a block is whose warpgroups share the keys, where such blocks end first; else 0. By
 * microseconds of an H200 for what a multiprocessor has at once, and for 128 keys of it. */
static uint32_t split_members(const tandem_attention *op, const td_target *target)
{
    static const struct {
        double begin, step;
    } times[2][3] = {{{2.6, 1.9}, {2.0, 0.67}, {4.3, 0.96}}, {{3.5, 1.58}, {3.4, 1.02}}}; /* up to 64 channels, above */
    const double alone = 1.4; /* a step where only one of the two teams has a tile */
    const bool wide = op->head_dim > 64;
    const uint32_t most = wide ? 1 : 2, walkers = TD_F16_WALKERS(op->head_dim);
    const double part = op->causal ? 1 - fmin(1, op->q_len / (double)op->kv_len) / 2 : 1; /* of the keys that a row sees */
    uint32_t best = 0;
    double least = 0;

    if (target->rows != TD_BEST_ROWS)
        return target->rows == TD_SPLIT_ROWS ? 1 : target->rows == TD_PAIR_ROWS && most == 2 ? 2 : 0;
    for (uint32_t members = 0; members <= most; members++) {
        const uint32_t rows = members ? 64 * members : TD_F16_ROWS;
        const double tiles = turns_of(target, (uint64_t)op->batch * op->heads * ((op->q_len + rows - 1) / rows));
        const double blocks = members ? tiles : tiles / walkers;
        const double step = members == 0 && walkers > 1 && tiles <= 1 ? alone : times[wide][members].step;
        const double begin = times[wide][members].begin, all = begin + step * op->kv_len / 128;
        const double average = begin + step * part * op->kv_len / 128;
        const double time = part < 0.75 ? fmax(all, blocks * average) : ceil(blocks) * all;

        if (members == 0 || time < least) {
            least = time;
            best = members;
        }
    }
    return best;
}

static direct_block direct_block_of(const tandem_attention *op, const td_target *target)
{
    const uint32_t d = op->head_dim;
    if (!is_roomy(target, d)) {
        const uint32_t groups = inline_groups(op, target);
        return (direct_block){groups < TD_F16_INLINE_GROUPS ? DIRECT_SHORT : DIRECT_INLINE, 64 * groups, 1,
                              TD_F16_INLINE_KEYS(d), 1, 128 * (groups + 1), TD_F16_INLINE_SHARED_BYTES(d)};
    }
    const uint32_t members = split_members(target->whole ? target->whole : op, target);
    if (members == 1)
        return (direct_block){DIRECT_SPLIT, 64, TD_F16_SPLIT_TEAMS, TD_F16_SPLIT_KEYS, 1, TD_F16_SPLIT_THREADS,
                              TD_F16_SPLIT_SHARED_BYTES(d)};
    return (direct_block){members ? DIRECT_SPLIT2 : DIRECT, TD_F16_ROWS, members ? 2 : 1, TD_F16_KEYS(d),
                          members ? 1 : TD_F16_WALKERS(d), TD_F16_THREADS(d), TD_F16_SHARED_BYTES(d)};
}

/* The kernel that takes Q, K and V of these types as they lie in memory, or NULL. */
static const td_kernel *direct_kernel(const tandem_attention *op, const td_target *target, const td_cubin *cubin,
                                      uint32_t sm, uint32_t smooth, float scale)
{
    const bool bf16 = op->q.dtype == TANDEM_DTYPE_BF16;
    if (sm != 90 || (cubin && cubin->ptx) || target->dump || smooth != TANDEM_SMOOTH_NONE || !(scale > 0) ||
        (!bf16 && op->q.dtype != TANDEM_DTYPE_F16) || op->k.dtype != op->q.dtype || op->v.dtype != op->q.dtype ||
        !is_wide(&op->q) || !is_wide(&op->k) || !is_wide(&op->v))
        return NULL;
    for (size_t i = 0; i < sizeof directs / sizeof *directs; i++)
        if (directs[i].dim == op->head_dim)
            return &directs[i].kernels[direct_block_of(op, target).kind][bf16];
    return NULL;
}

/* How many blocks share the tiles of rows: a block begins a tile beside the end of the one before, which two blocks do
 * not. So where it `walks` a block gets up to 8 tiles (a multiple of `pair`), as long as the last multiprocessor is not
 * done later. Elsewhere (command buffers, where that was not timed; single tiles that a mask makes unequal) it gets 32
 * steps in all, if almost each multiprocessor has two blocks. */
static uint64_t blocks_for(uint64_t tiles, uint32_t pair, uint32_t steps, uint32_t multiprocessors, bool walks)
{
    enum { STEPS = 32, MOST = 8 };
    uint64_t best = (tiles + pair - 1) / pair, least = (best + multiprocessors - 1) / multiprocessors * pair;
    for (uint32_t each = 2 * pair; each <= MOST && (walks || each * steps <= STEPS); each += pair) {
        const uint64_t blocks = (tiles + each - 1) / each;
        const uint64_t last = (blocks + multiprocessors - 1) / multiprocessors * each;
        if (last <= least && (walks || blocks * 16 >= 31 * multiprocessors)) {
            least = last;
            best = blocks;
        }
    }
    return best;
}

/* To how many keys op's last row attends. */
static uint32_t seen_keys_of(const tandem_attention *op, const td_target *target)
{
    return target->last_keys == TD_NO_KEYS ? 0 : target->last_keys ? target->last_keys : op->kv_len;
}

/* Who has which tiles of a direct kernel. */
typedef struct direct_walk {
    uint64_t works, grid; /* tiles of all heads; blocks */
    uint32_t pair;
} direct_walk;

static direct_walk direct_walk_of(const tandem_attention *op, const td_target *target, const direct_block *block,
                                  uint32_t keys)
{
    const bool splits = block->teams > 1;
    const uint64_t works = (uint64_t)op->batch * op->heads * ((op->q_len + block->rows - 1) / block->rows);
    const uint32_t multiprocessors = multiprocessors_of(target), walkers = multiprocessors * block->walkers;
    const uint32_t pair = !splits && is_paired(op, works, multiprocessors, block->walkers) ? 2 : 1;
    const uint32_t steps = (keys + 127) / 128;
    const uint64_t walks = splits ? works
                                  : blocks_for(works, pair, op->causal ? (steps + 1) / 2 : steps, walkers,
                                               block->kind == DIRECT && (!op->causal || pair == 2));
    /* so few walks that each may have a multiprocessor of its own do not share a block */
    const uint64_t all = (walks + block->walkers - 1) / block->walkers;
    const uint64_t grid = walks < multiprocessors ? walks : all < multiprocessors ? multiprocessors : all;
    return (direct_walk){works, grid, pair};
}

static tandem_status plan_direct(td_builder *at, const td_kernel *kernel, const td_target *target, float scale, char *why,
                                 size_t why_bytes)
{
    const tandem_attention *op = at->op;
    const bool commits = target->commit;
    const direct_block block = direct_block_of(op, target);
    const uint32_t keys = seen_keys_of(op, target);
    const uint64_t planes = (uint64_t)op->batch * op->heads, o_rows = planes * op->q_len;
    const direct_walk walk = direct_walk_of(op, target, &block, keys);
    const bool wants_lse = op->lse.dtype != TANDEM_DTYPE_NONE;
    td_params_attention_f16 p = {.q = tensor_of(&op->q, op->heads, op->q_len, op->head_dim),
                                 .k = tensor_of(&op->k, op->kv_heads, keys, op->head_dim),
                                 .v = tensor_of(&op->v, op->kv_heads, keys, op->head_dim),
                                 .o = tensor_of(&op->o, op->heads, op->q_len, op->head_dim),
                                 .lse_stride_batch = op->lse.stride_batch,
                                 .lse_stride_head = op->lse.stride_head,
                                 .lse_stride_row = op->lse.stride_row,
                                 .scale = scale,
                                 .causal = (uint16_t)op->causal,
                                 .pair = (uint16_t)walk.pair,
                                 .works = (uint32_t)walk.works,
                                 .blocks = (uint32_t)(walk.grid * block.walkers),
                                 .tile_rows = (uint16_t)block.rows,
                                 .step_keys = (uint16_t)block.keys,
                                 .teams = (uint16_t)block.teams,
                                 .walkers = (uint16_t)block.walkers};
    const td_tensor o = p.o;
    const output out = {.o = td_build_take(at, commits, (unsigned __int128)o_rows * op->head_dim * td_dtype_bytes(op->o.dtype)),
                        .lse = td_build_take(at, commits && wants_lse, (unsigned __int128)o_rows * 4),
                        .verdict = td_build_take(at, commits, sizeof(uint32_t))};
    if (commits) {
        p.o.stride_row = op->head_dim;
        p.o.stride_head = p.o.stride_row * op->q_len;
        p.o.stride_batch = p.o.stride_head * op->heads;
        p.lse_stride_row = 1;
        p.lse_stride_head = op->q_len;
        p.lse_stride_batch = p.lse_stride_head * op->heads;
    }
    td_record *record = td_build_record(at, kernel, walk.grid, &p, sizeof p);
    record->shared_bytes = block.shared_bytes;
    record->block[0] = block.threads;
    td_build_view(at, record, TD_READ, AT(attention_f16, q.data), TD_VIEW_Q);
    td_build_view(at, record, TD_READ, AT(attention_f16, k.data), TD_VIEW_K);
    td_build_view(at, record, TD_READ, AT(attention_f16, v.data), TD_VIEW_V);
    if (commits) {
        td_build_scratch(at, record, TD_WRITE, AT(attention_f16, o.data), out.o);
        td_build_scratch(at, record, TD_WRITE, AT(attention_f16, lse), out.lse);
        add_commit(at, &out, &o, planes);
    } else {
        td_build_view(at, record, TD_WRITE, AT(attention_f16, o.data), TD_VIEW_O);
        td_build_view(at, record, TD_WRITE, AT(attention_f16, lse), TD_VIEW_LSE);
    }
    return td_build_end(at, why, why_bytes);
}

float td_int4_clip(uint32_t granularity, uint32_t head_dim, bool is_k)
{
    static const uint32_t rows_of_q[] = {4, 4, 2, 1, 32, 128, 128}, rows_of_k[] = {16, 16, 32, 1, 64, 64, 128};
    const uint32_t i = granularity <= TANDEM_GRANULARITY_TENSOR ? granularity : 0;
    const uint32_t values = (is_k ? rows_of_k : rows_of_q)[i] * head_dim;
    return values <= 64 || head_dim < 64 ? 1 : values <= 256 || head_dim < 96 ? 0.8125f : 0.75f;
}

/* What AUTO stands for. Tables are measured on a stream's kernels, with tensors of 16 bits and all else left to us. */
static uint32_t choose_precision(const tandem_attention *op, const td_target *target, const td_cubin *cubin,
                                 uint32_t sm)
{
    const tandem_view *const inputs[] = {&op->q, &op->k, &op->v};
    const td_choice_table *table = target->choice;
    bool usual = op->smooth == TANDEM_SMOOTH_DEFAULT && op->granularity == TANDEM_GRANULARITY_DEFAULT && op->scale >= 0;
    for (int i = 0; i < 3; i++)
        usual = usual && is_wide(inputs[i]) && inputs[i]->dtype == op->q.dtype && inputs[i]->dtype != TANDEM_DTYPE_F32;
    const bool known = table && table->sm == target->sm &&
                       target->shared_bytes == td_target_for_stream(target->sm).shared_bytes;
    const uint32_t precision = known && usual ? td_choice_precision(table, op) : (uint32_t)TANDEM_PRECISION_AUTO;
    if (precision != TANDEM_PRECISION_AUTO)
        return precision;
    if (!usual || !direct_kernel(op, target, cubin, sm, TANDEM_SMOOTH_NONE, 1))
        return td_choice_rule(op);
    return (is_roomy(target, op->head_dim) ? td_choice_rule_direct : td_choice_rule_inline)(op, target->multiprocessors);
}

/* The kernels for a target: its cubin, if it has one, and of which compute capability they are. False: none fit. */
static bool find_kernels(const td_target *target, const td_cubin **cubin, uint32_t *sm, char *why, size_t why_bytes)
{
    uint32_t cubins = 0;
    td_cubins(&cubins);
    *cubin = NULL;
    *sm = target->sm;
    if (!target->sm || !cubins || target->twin)
        return true;
    *cubin = target->image ? target->image : td_cubin_for_sm(target->sm, why, why_bytes);
    if (*cubin)
        *sm = (*cubin)->sm;
    return *cubin != NULL;
}

uint32_t td_attention_precision(const tandem_attention *op, const td_target *target)
{
    const td_cubin *cubin;
    uint32_t sm;
    if (is_codes(op->q.dtype))
        return TANDEM_PRECISION_8B;
    if (op->precision != TANDEM_PRECISION_AUTO || !find_kernels(target, &cubin, &sm, NULL, 0))
        return op->precision;
    return choose_precision(op, target, cubin, sm);
}

static uint32_t hopper_shared_bytes(uint32_t d_pad, uint32_t groups, uint32_t splits)
{
    return d_pad > 128 ? TD_HOPPER_256_SHARED_BYTES : TD_HOPPER_SHARED_BYTES(d_pad, groups, splits);
}

/* What a block of attn_8b_wgmma is made of: its warpgroups, and how many of them have the same rows. */
typedef struct hopper_block {
    uint32_t groups, splits;
} hopper_block;

/* Those blocks that end first: with one warpgroup more each takes longer, but there are fewer; where they are few, that
 * decides. Where even those are few, warpgroups share the keys. */
static hopper_block hopper_blocks(const tandem_attention *op, const td_target *target, uint32_t d_pad)
{
    const uint32_t most = TD_HOPPER_GROUPS(d_pad);
    const hopper_block ways[] = {{most, 1}, {most - 1, 1}, {most, TD_HOPPER_SPLITS(d_pad)}, {most, 2}};
    const bool narrow = d_pad <= 64;
    const double longer = TD_HOPPER_LONGER(d_pad);
    const struct {
        double tile, step; /* microseconds of a tile and of each of its steps */
        double uneven;     /* with a mask: by how much the last block ends later than if tiles were shared out evenly */
    } us[] = {{3.0 * longer, (narrow ? 1.27 : 1.16) * longer, 1.15},
              {3.0, narrow ? 1.27 : 1.16, 1.7},
              {2.4, narrow ? 0.44 : 0.53, 1.4},
              {3.0, 0.86, 1.4}};
    const double steps = op->kv_len / (double)TD_HOPPER_KEYS;
    const double mean = op->causal ? fmax(1, steps - op->q_len / 2.0 / TD_HOPPER_KEYS + 0.5) : steps;
    uint32_t best = 0;
    double least = 0;

    if (d_pad > 128)
        return ways[0];
    if (target->dump)
        return ways[1];
    if (target->rows != TD_BEST_ROWS)
        return ways[target->rows == TD_PAIR_ROWS && d_pad != 64 ? 2 : target->rows - TD_MOST_ROWS];
    for (uint32_t i = 0; i < (d_pad == 64 ? 4 : 3); i++) {
        const uint32_t rows = TD_HOPPER_ROWS(ways[i].groups / ways[i].splits);
        const double blocks = turns_of(target, (uint64_t)op->batch * op->heads * ((op->q_len + rows - 1) / rows));
        const double longest = us[i].tile + us[i].step * steps;
        const double time = op->causal ? fmax(longest, us[i].uneven * blocks * (us[i].tile + us[i].step * mean))
                                       : ceil(blocks) * longest;

        if (i == 0 || (time < least &&
                       hopper_shared_bytes(d_pad, ways[i].groups, ways[i].splits) <= target->shared_bytes)) {
            least = time;
            best = i;
        }
    }
    return ways[best];
}

/* Whether blocks of most warpgroups walk, as they may where there are more tiles than multiprocessors. What a tile begins and
 * ends with is hidden then, and with a mask long and short tiles are shared out evenly; but tiles of many steps are as well
 * handed out to whichever multiprocessor is free. */
static bool hopper_walks(const tandem_attention *op, const td_target *target, uint32_t d_pad, hopper_block block,
                         uint64_t tiles)
{
    const uint32_t most = d_pad <= 64 || op->causal ? 8192 : 2048; /* keys, at which it was measured to gain */

    return d_pad <= 128 && !target->dump && tiles > multiprocessors_of(target) &&
           block.groups == TD_HOPPER_GROUPS(d_pad) && block.splits == 1 &&
           target->shared_bytes >= TD_HOPPER_WALK_SHARED_BYTES(d_pad) &&
           (op->kv_len <= most || (op->causal && d_pad <= 64));
}

/* The same of attn_8b_wgmma_inline, by times of an H200. */
static hopper_block inline_blocks(const tandem_attention *op, const td_target *target, uint32_t d_pad)
{
    const uint32_t splits = TD_HOPPER_INLINE_SPLITS(d_pad);
    const hopper_block ways[] = {
        {TD_HOPPER_INLINE_GROUPS(d_pad), 1}, {TD_HOPPER_INLINE_FEW, 1}, {splits, splits}, {TD_HOPPER_INLINE_GROUPS(64u), 2}};
    static const struct {
        double block, step;
    } us[D_COUNT][4] = {{{6.0, 1.2}, {5.0, 0.95}, {4.6, 0.45}}, /* of 32 channels: not measured */
                        {{6.5, 1.62}, {5.4, 1.1}, {5.0, 0.57}, {6.2, 0.84}},
                        {{5.9, 1.46}, {5.9, 1.2}, {5.0, 0.75}},
                        {{7.2, 1.57}, {6.7, 1.27}, {6.3, 0.77}}};
    const double steps = op->kv_len / (double)TD_HOPPER_KEYS;
    const double mean = op->causal ? fmax(1, steps - op->q_len / 2.0 / TD_HOPPER_KEYS + 0.5) : steps;
    uint32_t best = 0;
    double least = 0;

    if (target->rows != TD_BEST_ROWS)
        return ways[target->rows == TD_PAIR_ROWS && d_pad != 64 ? 2 : target->rows - TD_MOST_ROWS];
    for (uint32_t i = 0; i < (d_pad == 64 ? 4 : 3); i++) {
        const uint32_t rows = TD_HOPPER_ROWS(ways[i].groups / ways[i].splits);
        const double blocks = turns_of(target, (uint64_t)op->batch * op->heads * ((op->q_len + rows - 1) / rows));
        const double block = us[index_of_dim(d_pad)][i].block, step = us[index_of_dim(d_pad)][i].step;
        const double time = op->causal ? fmax(block + step * steps, blocks * (block + step * mean))
                                       : ceil(blocks) * (block + step * steps);

        if (i == 0 || time < least) {
            least = time;
            best = i;
        }
    }
    return ways[best];
}

/* Heads whose tiles blocks that walk take at a time, those that share K and V together; no more than there are, so that
 * its tiles are no more than all of them, which 32 bits hold. */
static uint32_t walk_chunk(const tandem_attention *op, uint32_t d_pad)
{
    const uint64_t plane_bytes = 2 * (uint64_t)round_up(op->kv_len, TD_TILE_ROWS) * d_pad, planes = (uint64_t)op->batch * op->heads;
    const uint64_t kept = TD_HOPPER_WALK_CHUNK_BYTES / plane_bytes, group = op->heads / op->kv_heads;
    const uint64_t chunk = group * (kept ? kept : 1);
    return (uint32_t)(chunk < planes ? chunk : planes);
}

td_tiles td_attention_tiles(const tandem_attention *op, const td_target *target, uint32_t precision)
{
    const uint32_t d_pad = pad_dim(op->head_dim);
    const bool roomy = target->shared_bytes >= hopper_shared_bytes(d_pad, TD_HOPPER_GROUPS(d_pad), 1);
    td_tiles t = {.rows = TD_TWIN_ROWS, .groups = 1, .shares = 1, .walkers = 1, .pair = 1};
    if (target->sm == 90 && precision == TANDEM_PRECISION_8B && (roomy || d_pad <= 128)) {
        const hopper_block block = roomy ? hopper_blocks(op, target, d_pad) : inline_blocks(op, target, d_pad);
        t.groups = block.groups;
        t.shares = block.splits;
    } else if (target->sm == 90 && precision == TANDEM_PRECISION_F16 && op->head_dim >= 64 && op->head_dim <= 128) {
        const direct_block block = direct_block_of(op, target);
        t.groups = block.rows / 64 * block.teams;
        t.shares = block.teams;
        const direct_walk walk = direct_walk_of(op, target, &block, op->kv_len);
        t.walkers = block.walkers;
        t.pair = walk.pair;
        t.blocks = (uint32_t)(walk.grid * block.walkers);
    }
    t.rows = 64 * t.groups / t.shares;
    t.tiles = (uint64_t)op->batch * op->heads * ((op->q_len + t.rows - 1) / t.rows);
    if (target->sm == 90 && precision == TANDEM_PRECISION_8B && roomy) {
        t.walks = hopper_walks(op, target, d_pad, (hopper_block){t.groups, t.shares}, t.tiles);
        t.blocks = t.walks || (t.shares > 1 && t.tiles > multiprocessors_of(target)) ? multiprocessors_of(target) : 0;
        t.chunk_planes = walk_chunk(op, d_pad);
    }
    if (target->sm == 90 && target->shared_bytes && precision == TANDEM_PRECISION_8B && d_pad <= 128) {
        uint32_t tiles;
        t.cluster = find_cluster((op->kv_len + TD_TILE_ROWS - 1) / TD_TILE_ROWS, d_pad, &tiles);
        t.cluster_threads = t.cluster ? 64 * tiles * TD_PREPARE_HEAD_WARPS(d_pad) : 0;
    }
    return t;
}

tandem_status td_plan_attention(const tandem_attention *op, const td_target *target, td_plan *plan,
                                td_attention_layout *layout, char *why, size_t why_bytes)
{
    td_builder at = {.op = op, .plan = plan, .is_gpu = target->sm != 0};
    plan->scratch_bytes = 0;
    plan->record_count = 0;
    uint32_t sm;
    if (!find_kernels(target, &at.cubin, &sm, why, why_bytes))
        return TANDEM_ERROR_UNSUPPORTED;
    at.overlaps = at.is_gpu && sm >= 90;
    const bool coded = is_codes(op->q.dtype);
    const uint32_t precision = td_attention_precision(op, target);
    uint32_t granularity = op->granularity, smooth = op->smooth;
    if (coded)
        smooth = TANDEM_SMOOTH_NONE;
    if (granularity == TANDEM_GRANULARITY_DEFAULT)
        granularity = sm == 90 ? TANDEM_GRANULARITY_THREAD_HOPPER : TANDEM_GRANULARITY_THREAD_ADA;
    if (smooth == TANDEM_SMOOTH_DEFAULT)
        smooth = precision == TANDEM_PRECISION_8B   ? TANDEM_SMOOTH_K
                 : precision == TANDEM_PRECISION_4B ? TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K
                                                    : TANDEM_SMOOTH_NONE;
    plan->precision = precision;

    const bool qk_f16 = precision == TANDEM_PRECISION_F16, v_f16 = qk_f16 || (at.is_gpu && sm < 89);
    /* mma s4 is native up to sm_89; later GPUs have the same integers faster in their int8 tensor cores */
    const bool native_int4 = (target->image ? sm : target->sm) < 90;
    const bool packed = precision == TANDEM_PRECISION_4B && at.is_gpu && (native_int4 || target->int4);
    const bool smooth_q = smooth & TANDEM_SMOOTH_Q, smooth_k = smooth & TANDEM_SMOOTH_K,
               smooth_v = smooth & TANDEM_SMOOTH_V;
    const bool tensor_scale = !qk_f16 && granularity == TANDEM_GRANULARITY_TENSOR;
    const bool wants_lse = op->lse.dtype != TANDEM_DTYPE_NONE, bias = wants_lse && smooth_k;
    const uint32_t d_pad = pad_dim(op->head_dim);
    const uint32_t qk_row_bytes = qk_f16 ? 2 * d_pad : packed ? TD_PACKED_ROW_BYTES(d_pad) : d_pad;
    if (coded && v_f16)
        return refuse(TANDEM_ERROR_UNSUPPORTED, why, why_bytes,
                      "attention.v.dtype is %" PRIu32 " (e4m3 codes); on compute capability %" PRIu32 ".%" PRIu32
                      " V must be fp16, bf16 or f32",
                      op->v.dtype, sm / 10, sm % 10);
    const float qmax = precision == TANDEM_PRECISION_4B ? 7 : 127;
    const bool clips = precision == TANDEM_PRECISION_4B && smooth_q && smooth_k;
    const float scale = op->scale != 0 ? op->scale : (float)(1 / sqrt((double)op->head_dim));

    const td_kernel *direct = qk_f16 ? direct_kernel(op, target, at.cubin, sm, smooth, scale) : NULL;
    operand q = make_operand(&at, TD_VIEW_Q, &op->q, op->heads, op->q_len, d_pad);
    operand k = make_operand(&at, TD_VIEW_K, &op->k, op->kv_heads, op->kv_len, d_pad);
    operand v = make_operand(&at, TD_VIEW_V, &op->v, op->kv_heads, op->kv_len, d_pad);
    at.extent_bytes[TD_VIEW_O] = td_view_extent_bytes(&op->o, op->batch, op->heads, op->q_len, op->head_dim);
    at.extent_bytes[TD_VIEW_LSE] = wants_lse ? td_view_extent_bytes(&op->lse, op->batch, op->heads, op->q_len, 1) : 0;

    if (direct) {
        if (layout)
            *layout = (td_attention_layout){.q_pad = q.rows_pad,
                                            .kv_pad = k.rows_pad,
                                            .d_pad = d_pad,
                                            .v_is_f16 = 1,
                                            .qk_is_f16 = 1,
                                            .step_keys = direct_block_of(op, target).keys,
                                            .q_codes = TD_ABSENT,
                                            .q_scale = TD_ABSENT,
                                            .q_mean = TD_ABSENT,
                                            .k_codes = TD_ABSENT,
                                            .k_scale = TD_ABSENT,
                                            .k_mean = TD_ABSENT,
                                            .v_codes = TD_ABSENT,
                                            .v_scale = TD_ABSENT,
                                            .v_mean = TD_ABSENT,
                                            .delta_s = TD_ABSENT,
                                            .dump_s = TD_ABSENT,
                                            .dump_p = TD_ABSENT,
                                            .dump_r = TD_ABSENT};
        return plan_direct(&at, direct, target, scale, why, why_bytes);
    }
    place_operand(&at, &k, smooth_k, qk_row_bytes, true);
    place_operand(&at, &v, smooth_v, v_f16 ? 2 * d_pad : d_pad, false);
    place_operand(&at, &q, false, qk_row_bytes, true);
    const unsigned __int128 q_rows = (unsigned __int128)q.planes * q.rows_pad;
    const td_place q_mean = td_build_take(&at, smooth_q, (unsigned __int128)q.planes * q.chunks * d_pad * 4);
    const td_place delta = td_build_take(&at, smooth_q, (unsigned __int128)q.planes * q.chunks * k.rows_pad * 4);
    const td_place lse_bias = td_build_take(&at, bias, q_rows * 4);
    const uint64_t o_rows = q.planes * op->q_len;
    const output out = {
        .o = td_build_take(&at, target->commit, (unsigned __int128)o_rows * op->head_dim * td_dtype_bytes(op->o.dtype)),
        .lse = td_build_take(&at, target->commit && wants_lse, (unsigned __int128)o_rows * 4),
        .verdict = td_build_take(&at, target->commit, sizeof(uint32_t))};
    const bool halves = op->q.dtype != TANDEM_DTYPE_F32 && op->k.dtype != TANDEM_DTYPE_F32 &&
                        op->v.dtype != TANDEM_DTYPE_F32 && d_pad <= 128;
    /* A stream's block gets more shared memory than any executor's; only there, clusters too. */
    const bool prepared = !coded && halves && sm == 90 && !(at.cubin && at.cubin->ptx) && target->shared_bytes && !smooth_q &&
                          !smooth_v && !bias && precision == TANDEM_PRECISION_8B &&
                          granularity == TANDEM_GRANULARITY_THREAD_HOPPER && add_prepare(&at, target, &q, &k, &v);
    if (!prepared && !coded) {
        place_chunks(&at, &k, tensor_scale, false);
        place_chunks(&at, &v, true, true);
        place_chunks(&at, &q, tensor_scale, false);
    }
    const uint32_t seen_keys = seen_keys_of(op, target);
    /* wgmma: one scale for what a thread has of a step's keys, maxima before scales (so none below zero), no delta-S */
    const bool one_scale =
        granularity == TANDEM_GRANULARITY_THREAD_HOPPER || granularity == TANDEM_GRANULARITY_TENSOR;
    const bool wgmma_can = sm == 90 && !(at.cubin && at.cubin->ptx) && !v_f16 && one_scale && !smooth_q && scale > 0;
    /* ring: in the shared memory that every executor has; it has no dumps and no 256 channels */
    const bool roomy = target->shared_bytes >= hopper_shared_bytes(d_pad, TD_HOPPER_GROUPS(d_pad), 1);
    const bool ring = wgmma_can && !roomy && !target->dump && d_pad <= 128, wgmma = wgmma_can && (roomy || ring);
    const bool dump = target->dump && at.is_gpu;
    const hopper_block block = !wgmma ? (hopper_block){0, 1}
                               : ring ? inline_blocks(target->whole ? target->whole : op, target, d_pad)
                                      : hopper_blocks(target->whole ? target->whole : op, target, d_pad);
    const uint32_t sums = wgmma ? TD_HOPPER_SUMS(k.rows_pad, d_pad) : k.rows_pad / TD_TILE_KEYS;
    const td_place dump_s = td_build_take(&at, dump, q_rows * k.rows_pad * 4);
    const td_place dump_p = td_build_take(&at, dump && !v_f16, q_rows * k.rows_pad);
    const td_place dump_r = td_build_take(&at, dump && !v_f16, q_rows * sums * d_pad * 4);
    td_record *record;
    td_params_quantise quantise = {.q_strides = {op->q.stride_batch, op->q.stride_head, op->q.stride_row},
                                   .k_strides = {op->k.stride_batch, op->k.stride_head, op->k.stride_row},
                                   .v_strides = {op->v.stride_batch, op->v.stride_head, op->v.stride_row},
                                   .heads = op->heads,
                                   .kv_heads = op->kv_heads,
                                   .q_len = op->q_len,
                                   .kv_len = op->kv_len,
                                   .dim = (uint16_t)op->head_dim,
                                   .d_pad = (uint16_t)d_pad,
                                   .q_dtype = (uint8_t)op->q.dtype,
                                   .k_dtype = (uint8_t)op->k.dtype,
                                   .v_dtype = (uint8_t)op->v.dtype,
                                   .mode = packed ? 2 : 0,
                                   .qmax = qmax,
                                   .q_clip = clips ? td_int4_clip(granularity, op->head_dim, false) : 1,
                                   .k_clip = clips ? td_int4_clip(granularity, op->head_dim, true) : 1,
                                   .granularity = (uint8_t)granularity};
    const bool fused = !prepared && !coded && at.is_gpu && !v_f16 && !smooth_v && !tensor_scale && halves &&
                       add_fused(&at, target, &q, &k, &v, &quantise, q_mean, lse_bias,
                                 target->shared_bytes >= TD_FUSED_SHARED_BYTES + TD_FUSED_AHEAD_BYTES);
    if (!prepared && !fused && !coded) {
        if (smooth_k)
            add_mean(&at, &k);
        if (smooth_v)
            add_mean(&at, &v);
        add_amax(&at, &v, false);
        if (tensor_scale) {
            add_amax(&at, &k, false);
            add_amax(&at, &q, smooth_q);
        }

        td_params_quant_qk quant = {.x = k.tensor,
                                    .chunks = k.chunks,
                                    .d_pad = d_pad,
                                    .rows_pad = k.rows_pad,
                                    .mode = packed ? 2 : qk_f16,
                                    .qmax = qmax,
                                    .clip = clips ? td_int4_clip(granularity, op->head_dim, true) : 1,
                                    .granularity = granularity,
                                    .is_k = 1};
        record = td_build_record(&at, &kernel_quant_qk, k.planes * k.chunks, &quant, sizeof quant);
        td_build_view(&at, record, TD_READ, AT(quant_qk, x.data), TD_VIEW_K);
        td_build_scratch(&at, record, TD_READ, AT(quant_qk, mean), k.mean);
        td_build_scratch(&at, record, TD_READ, AT(quant_qk, flag), v.flag);
        td_build_scratch(&at, record, TD_READ, AT(quant_qk, amax), k.amax);
        td_build_scratch(&at, record, TD_WRITE, AT(quant_qk, scale), k.scale);
        td_build_scratch(&at, record, TD_WRITE, AT(quant_qk, codes), k.codes);

        const td_params_quant_v quant_v = {
            .x = v.tensor, .chunks = v.chunks, .d_pad = d_pad, .kv_pad = v.rows_pad, .mode = v_f16};
        record = td_build_record(&at, &kernel_quant_v, v.planes * v.chunks, &quant_v, sizeof quant_v);
        td_build_view(&at, record, TD_READ, AT(quant_v, x.data), TD_VIEW_V);
        td_build_scratch(&at, record, TD_READ, AT(quant_v, mean), v.mean);
        td_build_scratch(&at, record, TD_READ, AT(quant_v, amax), v.amax);
        td_build_scratch(&at, record, TD_WRITE, AT(quant_v, scale), v.scale);
        td_build_scratch(&at, record, TD_WRITE, AT(quant_v, codes), v.codes);

        quant.x = q.tensor;
        quant.chunks = q.chunks;
        quant.rows_pad = q.rows_pad;
        quant.is_k = 0;
        quant.clip = clips ? td_int4_clip(granularity, op->head_dim, false) : 1;
        quant.lse_heads = op->kv_heads;
        record = td_build_record(&at, &kernel_quant_qk, q.planes * q.chunks, &quant, sizeof quant);
        td_build_view(&at, record, TD_READ, AT(quant_qk, x.data), TD_VIEW_Q);
        td_build_scratch(&at, record, TD_READ, AT(quant_qk, amax), q.amax);
        td_build_scratch(&at, record, TD_WRITE, AT(quant_qk, block_mean), q_mean);
        if (bias)
            td_build_scratch(&at, record, TD_READ, AT(quant_qk, lse_mean), k.mean);
        td_build_scratch(&at, record, TD_WRITE, AT(quant_qk, lse_bias), lse_bias);
        td_build_scratch(&at, record, TD_WRITE, AT(quant_qk, scale), q.scale);
        td_build_scratch(&at, record, TD_WRITE, AT(quant_qk, codes), q.codes);
    }

    if (smooth_q) {
        const td_params_delta_s delta_s = {.k = k.tensor,
                                           .heads = op->heads,
                                           .q_blocks = q.chunks,
                                           .chunks = seen_keys ? (seen_keys - 1) / TD_TILE_ROWS + 1 : 1, /* no grid is 0 */
                                           .d_pad = d_pad,
                                           .kv_pad = k.rows_pad,
                                           .each = at.is_gpu ? TD_DELTA_BLOCKS : 1};
        const uint64_t block_groups = (q.chunks + delta_s.each - 1) / delta_s.each;
        record = td_build_record(&at, &kernel_delta_s, q.planes * block_groups * delta_s.chunks, &delta_s, sizeof delta_s);
        td_build_view(&at, record, TD_READ, AT(delta_s, k.data), TD_VIEW_K);
        td_build_scratch(&at, record, TD_READ, AT(delta_s, q_mean), q_mean);
        td_build_scratch(&at, record, TD_READ, AT(delta_s, k_mean), k.mean);
        td_build_scratch(&at, record, TD_WRITE, AT(delta_s, delta), delta);
    }

    td_params_attention attention = {.o = tensor_of(&op->o, op->heads, op->q_len, op->head_dim),
                                           .lse_stride_batch = op->lse.stride_batch,
                                           .lse_stride_head = op->lse.stride_head,
                                           .lse_stride_row = op->lse.stride_row,
                                           .scale = scale,
                                           .heads = op->heads,
                                           .kv_heads = op->kv_heads,
                                           .kv_len = seen_keys,
                                           .q_pad = q.rows_pad,
                                           .kv_pad = k.rows_pad,
                                           .d_pad = d_pad,
                                           .causal = op->causal,
                                           .accumulator =
                                               (uint8_t)(wgmma ? TD_ACCUMULATOR_WGMMA_F16 : target->accumulator),
                                           .splits = (uint8_t)block.splits,
                                           .planes = (uint32_t)q.planes};
    const td_tensor o = attention.o;
    if (target->commit) {
        attention.o.stride_row = op->head_dim;
        attention.o.stride_head = attention.o.stride_row * op->q_len;
        attention.o.stride_batch = attention.o.stride_head * op->heads;
        attention.lse_stride_row = 1;
        attention.lse_stride_head = op->q_len;
        attention.lse_stride_batch = attention.lse_stride_head * op->heads;
    }
    const int d_index = index_of_dim(d_pad);
    const uint32_t tile_rows = wgmma       ? TD_HOPPER_ROWS(block.groups / block.splits)
                               : at.is_gpu ? TD_TWIN_ROWS
                                           : TD_FAST_ROWS;
    const uint64_t tiles = q.planes * ((op->q_len + tile_rows - 1) / tile_rows);
    const bool shared = block.splits > 1 && !ring && tiles > multiprocessors_of(target);
    const bool long_ones = wgmma && !ring && hopper_walks(op, target, d_pad, block, tiles), walks = shared || long_ones;
    const uint64_t blocks = walks ? multiprocessors_of(target) : tiles;
    attention.tile_rows = (uint16_t)tile_rows;
    attention.walkers = walks ? (uint32_t)blocks : 0;
    attention.chunk_planes = walk_chunk(op, d_pad);
    const td_kernel *kernel = qk_f16   ? &kernels_attn_f16[d_index]
                              : packed ? (v_f16 ? &kernels_attn_4b_f16[d_index] : &kernels_attn_4b_fp8[d_index])
                              : v_f16  ? &kernels_attn_8b_f16[d_index]
                              : ring   ? (block.splits > 1
                                              ? (block.groups > block.splits ? &kernel_attn_8b_wgmma_inline_pair
                                                                             : &kernels_attn_8b_wgmma_inline_split[d_index])
                                          : block.groups < TD_HOPPER_INLINE_GROUPS(d_pad)
                                              ? &kernels_attn_8b_wgmma_inline_short[d_index]
                                              : &kernels_attn_8b_wgmma_inline[d_index])
                              : wgmma  ? (dump                ? &kernels_attn_8b_wgmma_dump[d_index]
                                          : block.splits == 2 ? &kernel_attn_8b_wgmma_pair
                                          : block.splits > 1  ? &kernels_attn_8b_wgmma_split[d_index]
                                          : block.groups < TD_HOPPER_GROUPS(d_pad)
                                              ? &kernels_attn_8b_wgmma_short[d_index]
                                          : long_ones ? &kernels_attn_8b_wgmma_walk[d_index]
                                                      : &kernels_attn_8b_wgmma[d_index])
                                       : &kernels_attn_8b_fp8[d_index];
    if (!at.is_gpu)
        kernel = qk_f16 ? &kernel_fast_f16 : &kernel_fast_8b;
    record = td_build_record(&at, kernel, blocks, &attention, sizeof attention);
    if (wgmma) {
        record->shared_bytes = ring ? TD_HOPPER_INLINE_SHARED_BYTES(d_pad, block.groups, block.splits)
                               : long_ones ? TD_HOPPER_WALK_SHARED_BYTES(d_pad)
                                           : hopper_shared_bytes(d_pad, block.groups, block.splits);
        record->block[0] = TD_HOPPER_THREADS(block.groups);
        /* Behind the kernel that lets it start early, and to which that was measured to gain; it waits for its end itself. */
        record->flags = prepared && !ring && plan->record_count == 2 ? TD_RECORD_PDL : 0;
    } else if (at.is_gpu) {
        record->shared_bytes = TD_ATTENTION_SHARED_BYTES(qk_row_bytes, v_f16 ? 2u : 1u, d_pad);
    }
    use_codes(&at, record, AT(attention, q_codes), AT(attention, q_scale), &q);
    use_codes(&at, record, AT(attention, k_codes), AT(attention, k_scale), &k);
    use_codes(&at, record, AT(attention, v_codes), AT(attention, v_scale), &v);
    td_build_scratch(&at, record, TD_READ, AT(attention, v_mean), v.mean);
    td_build_scratch(&at, record, TD_READ, AT(attention, delta), delta);
    td_build_scratch(&at, record, TD_READ, AT(attention, lse_bias), lse_bias);
    if (target->commit) {
        td_build_scratch(&at, record, TD_WRITE, AT(attention, o.data), out.o);
        td_build_scratch(&at, record, TD_WRITE, AT(attention, lse), out.lse);
    } else {
        td_build_view(&at, record, TD_WRITE, AT(attention, o.data), TD_VIEW_O);
        td_build_view(&at, record, TD_WRITE, AT(attention, lse), TD_VIEW_LSE);
    }
    td_build_scratch(&at, record, TD_WRITE, AT(attention, dump_s), dump_s);
    td_build_scratch(&at, record, TD_WRITE, AT(attention, dump_p), dump_p);
    td_build_scratch(&at, record, TD_WRITE, AT(attention, dump_r), dump_r);
    if (target->commit)
        add_commit(&at, &out, &o, q.planes);

    const tandem_status status = td_build_end(&at, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    if (layout)
        *layout = (td_attention_layout){.q_pad = q.rows_pad,
                                        .kv_pad = k.rows_pad,
                                        .d_pad = d_pad,
                                        .v_is_f16 = v_f16,
                                        .qk_is_f16 = qk_f16,
                                        .step_keys = wgmma ? TD_HOPPER_SUM_KEYS(d_pad) : TD_TILE_KEYS,
                                        .qk_is_packed = packed,
                                        .q_codes = q.codes.offset,
                                        .q_scale = q.scale.offset,
                                        .q_mean = q_mean.offset,
                                        .k_codes = k.codes.offset,
                                        .k_scale = k.scale.offset,
                                        .k_mean = k.mean.offset,
                                        .v_codes = v.codes.offset,
                                        .v_scale = v.scale.offset,
                                        .v_mean = v.mean.offset,
                                        .delta_s = delta.offset,
                                        .dump_s = dump_s.offset,
                                        .dump_p = dump_p.offset,
                                        .dump_r = dump_r.offset};
    return TANDEM_OK;
}

tandem_status td_plan_commit(const tandem_attention *op, const td_target *target, td_plan *plan, char *why,
                             size_t why_bytes)
{
    td_builder at = {.op = op, .plan = plan, .is_gpu = target->sm != 0};
    const bool wants_lse = op->lse.dtype != TANDEM_DTYPE_NONE;
    const td_tensor o = tensor_of(&op->o, op->heads, op->q_len, op->head_dim);
    const output out = {.o = {TD_ABSENT, 0}, .lse = {TD_ABSENT, 0}, .verdict = td_build_take(&at, true, sizeof(uint32_t))};
    uint32_t sm;
    plan->record_count = 0;
    if (!find_kernels(target, &at.cubin, &sm, why, why_bytes))
        return TANDEM_ERROR_UNSUPPORTED;
    at.extent_bytes[TD_VIEW_Q] = td_view_extent_bytes(&op->q, op->batch, op->heads, op->q_len, op->head_dim);
    at.extent_bytes[TD_VIEW_O] = td_view_extent_bytes(&op->o, op->batch, op->heads, op->q_len, op->head_dim);
    at.extent_bytes[TD_VIEW_K] = wants_lse ? td_view_extent_bytes(&op->k, op->batch, op->heads, op->q_len, 1) : 0;
    at.extent_bytes[TD_VIEW_LSE] = wants_lse ? td_view_extent_bytes(&op->lse, op->batch, op->heads, op->q_len, 1) : 0;
    add_commit(&at, &out, &o, (uint64_t)op->batch * op->heads);
    plan->precision = op->precision;
    return td_build_end(&at, why, why_bytes);
}
