/* `tandem attend --codes`: what a plan left in its scratch, cut to the tensors' own sizes and put in natural order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/tool.h"
#include "interop/base.h"
#include "kernels/attention/params.h"

static uint64_t element_bytes(const char *dtype)
{
    return dtype[1] == '8' ? 1 : strcmp(dtype, "F64") == 0 ? 8 : strcmp(dtype + 1, "32") == 0 ? 4 : 2;
}

void *tool_add(tool_list *list, const char *name, const char *dtype, uint32_t rank, uint64_t a, uint64_t b, uint64_t c,
               uint64_t d)
{
    const uint64_t shape[4] = {a, b, c, d};
    uint64_t bytes = element_bytes(dtype);
    for (uint32_t i = 0; i < rank; i++)
        if (!td_mul_u64(bytes, shape[i], &bytes))
            return NULL;
    if (list->count == TOOL_TENSORS)
        return NULL;
    void *data = malloc(bytes ? bytes : 1);
    if (!data)
        return NULL;
    tool_tensor *tensor = &list->tensors[list->count++];
    *tensor = (tool_tensor){.name = name, .dtype = dtype, .rank = rank, .bytes = bytes, .data = data};
    memcpy(tensor->shape, shape, sizeof shape);
    return data;
}

void tool_pair(tool_list *list, const char *key, const char *format, ...)
{
    if (list->pair_count == TOOL_PAIRS)
        return;
    va_list args;
    va_start(args, format);
    snprintf(list->keys[list->pair_count], sizeof *list->keys, "%s", key);
    vsnprintf(list->values[list->pair_count], sizeof *list->values, format, args);
    va_end(args);
    list->pair_count++;
}

void tool_list_free(tool_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        free(list->tensors[i].data);
    *list = (tool_list){0};
}

/* Cuts [outer][from_rows][from_columns] down to [outer][rows][columns]. */
static void cut(void *to, const void *from, uint64_t element, uint64_t outer, uint64_t from_rows, uint64_t from_columns,
                uint64_t rows, uint64_t columns)
{
    for (uint64_t i = 0; i < outer; i++)
        for (uint64_t r = 0; r < rows; r++)
            memcpy((char *)to + (i * rows + r) * columns * element,
                   (const char *)from + (i * from_rows + r) * from_columns * element, columns * element);
}

/* Packed int4 codes become int8 ones: two a byte, the even channel in the low half. */
static void unpack(int8_t *to, const unsigned char *from, const td_attention_layout *layout, uint64_t outer,
                   uint64_t from_rows, uint64_t rows, uint64_t dim)
{
    for (uint64_t i = 0; i < outer; i++)
        for (uint64_t r = 0; r < rows; r++) {
            const unsigned char *row = from + (i * from_rows + r) * TD_PACKED_ROW_BYTES(layout->d_pad);
            for (uint64_t c = 0; c < dim; c++)
                *to++ = (int8_t)(((row[c / 2] >> (c % 2 * 4) & 15) ^ 8) - 8);
        }
}

/* V's codes lie channel after channel; those of E4M3 have their keys permuted within each 16 (params.h, quant_v). */
static void untangle_v(void *to, const void *from, const td_attention_layout *layout, uint64_t heads, uint64_t keys,
                       uint64_t dim)
{
    for (uint64_t h = 0; h < heads; h++)
        for (uint64_t key = 0; key < keys; key++) {
            const uint64_t within = key % 16, quad = within % 8 / 2, r = within / 8 * 2 + within % 2;
            const uint64_t place = layout->v_is_f16 ? key : key - within + 4 * quad + r;
            for (uint64_t c = 0; c < dim; c++) {
                const uint64_t source = (h * layout->d_pad + c) * layout->kv_pad + place,
                               target = (h * keys + key) * dim + c;
                if (layout->v_is_f16)
                    ((uint16_t *)to)[target] = ((const uint16_t *)from)[source];
                else
                    ((uint8_t *)to)[target] = ((const uint8_t *)from)[source];
            }
        }
}

/* How the plan turned Q and K into integers: by two records of `quant_qk`, or by one of `quantise`. */
typedef struct {
    uint32_t granularity;
    float qmax, q_clip, k_clip;
} integers;

static integers find_integers(const td_plan *plan)
{
    integers found = {0};
    for (uint32_t i = 0; i < plan->record_count; i++) {
        const td_record *record = &plan->records[i];
        if (strncmp(record->kernel->name, "quantise", 8) == 0) {
            const td_params_quantise *p = (const void *)record->params;
            return (integers){p->granularity, p->qmax, p->q_clip, p->k_clip};
        }
        if (strncmp(record->kernel->name, "quant_qk", 8) == 0) {
            const td_params_quant_qk *p = (const void *)record->params;
            found.granularity = p->granularity;
            found.qmax = p->qmax;
            *(p->is_k ? &found.k_clip : &found.q_clip) = p->clip;
        }
    }
    return found;
}

void tool_arithmetic(const tandem_attention *op, const td_plan *plan, const td_attention_layout *layout, tool_list *out)
{
    static const char *const granularities[] = {"default", "thread-ada", "thread-hopper", "token",
                                                "warp",    "block",      "tensor"};
    static const char *const groups[] = {"default",
                                         "q: rows {i, 8+i, 16+i, 24+i} of each 32; k: rows {2j, 2j+1} + 8m of each 64",
                                         "q: rows {i, 8+i} of each 16; k: rows {2j, 2j+1} + 8m of each 128",
                                         "q, k: every row by itself",
                                         "q: 32 rows; k: 64 rows",
                                         "q: 128 rows; k: 64 rows",
                                         "q, k: all rows of a head"};
    const td_kernel *kernel = plan->records[plan->record_count - 1].kernel;
    const bool wgmma = strstr(kernel->name, "wgmma") != NULL;
    const bool q = layout->q_mean != UINT64_MAX, k = layout->k_mean != UINT64_MAX, v = layout->v_mean != UINT64_MAX;
    tool_pair(out, "precision", "%s", tool_precisions[plan->precision & 3]);
    tool_pair(out, "causal", "%u", op->causal);
    tool_pair(out, "scale", op->scale != 0 ? "%.9g" : "1/sqrt(head_dim)", (double)op->scale);
    tool_pair(out, "smooth", q || k || v ? "%s%s%s" : "none", q ? "q" : "", k ? "k" : "", v ? "v" : "");
    if (!layout->qk_is_f16) {
        const integers quant = find_integers(plan);
        const uint32_t g = quant.granularity < 7 ? quant.granularity : 0;
        tool_pair(out, "granularity", "%s", granularities[g]);
        tool_pair(out, "mapping", "%s", groups[g]);
        tool_pair(out, "qmax", "%g", (double)quant.qmax);
        tool_pair(out, "qk_rounding",
                  "code = clamp(rint(y * (qmax / amax)), -qmax, qmax), scale = amax / qmax, amax = max |y| of the group"
                  " * clip (q_clip, k_clip); float32, ties to even");
        tool_pair(out, "q_clip", "%g", (double)quant.q_clip);
        tool_pair(out, "k_clip", "%g", (double)quant.k_clip);
    } else {
        tool_pair(out, "granularity", "token");
        tool_pair(out, "qk_rounding",
                  "code = fp16(y / scale), ties to even; scale = the least 2^e >= 1 with amax / 2^e <= 32768");
    }
    tool_pair(out, "v_rounding", "%s",
              layout->v_is_f16
                  ? "code = fp16(y / scale), ties to even; scale = the least 2^e >= 1 with amax / 2^e <= 32768"
                  : "code = e4m3(y * (1.75 / amax)), ties to even; scale = amax / 1.75");
    tool_pair(out, "kernel", "%s", kernel->entry ? kernel->entry : kernel->name);
    if (kernel->entry)
        tool_pair(out, "qk_mma", "%s",
                  wgmma                  ? (layout->qk_is_f16 ? "wgmma k16 f16" : "wgmma k32 s8")
                  : layout->qk_is_f16    ? "mma.sync m16n8k16 f16"
                  : layout->qk_is_packed ? "mma.sync m16n8k64 s4: int4 tensor cores"
                  : plan->precision == TANDEM_PRECISION_4B
                      ? "mma.sync m16n8k32 s8: the int4 codes in int8 tensor cores, the same integers"
                      : "mma.sync m16n8k32 s8");
    if (wgmma && !layout->v_is_f16)
        tool_pair(out, "p_rounding",
                  "e4m3(2^(S - m)), ties to even; m becomes M - %g when a tile of 64 keys has a largest S, M, above "
                  "m + %g; rows are divided by the sum of the rounded values",
                  TD_LATE_LIMIT_LOG2 - TD_HEADROOM_LOG2, TD_LATE_LIMIT_LOG2);
    else
        tool_pair(out, "p_rounding", "%s(2^(S - m + log2 448)), %sm the running maximum over tiles of 64 keys",
                  layout->v_is_f16 ? "fp16" : "e4m3", layout->v_is_f16 ? "" : "saturating, ");
}

bool tool_has_codes(const td_plan *plan, const td_attention_layout *layout, char *why, size_t why_bytes)
{
    if (layout->q_codes != UINT64_MAX)
        return true;
    const td_kernel *kernel = plan->records[plan->record_count - 1].kernel;
    td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
            "--codes: kernel %s reads q, k and v as they are in the file, so there are no codes to write "
            "(with --smooth or F32 tensors there are)",
            kernel->entry ? kernel->entry : kernel->name);
    return false;
}

bool tool_codes(const tandem_attention *op, const td_plan *plan, const td_attention_layout *layout,
                const unsigned char *scratch, tool_list *out)
{
    (void)plan;
    const uint64_t b = op->batch, h = op->heads, hk = op->kv_heads, n = op->q_len, nk = op->kv_len, d = op->head_dim;
    const uint64_t d_pad = layout->d_pad, q_pad = layout->q_pad, kv_pad = layout->kv_pad, blocks = q_pad / TD_TILE_ROWS;
    const char *qk_type = layout->qk_is_f16 ? "F16" : "I8", *v_type = layout->v_is_f16 ? "F16" : "U8";
    const struct {
        const char *name, *dtype;
        uint64_t offset, outer, from_rows, from_columns, rows, columns;
        uint32_t rank;
        uint64_t shape[4];
    } arrays[] = {
        {"q_codes", qk_type, layout->q_codes, b * h, q_pad, d_pad, n, d, 4, {b, h, n, d}},
        {"k_codes", qk_type, layout->k_codes, b * hk, kv_pad, d_pad, nk, d, 4, {b, hk, nk, d}},
        {"q_scale", "F32", layout->q_scale, b * h, 1, q_pad, 1, n, 3, {b, h, n, 1}},
        {"k_scale", "F32", layout->k_scale, b * hk, 1, kv_pad, 1, nk, 3, {b, hk, nk, 1}},
        {"q_mean", "F32", layout->q_mean, b * h, blocks, d_pad, blocks, d, 4, {b, h, blocks, d}},
        {"k_mean", "F32", layout->k_mean, b * hk, 1, d_pad, 1, d, 3, {b, hk, d, 1}},
        {"v_scale", "F32", layout->v_scale, b * hk, 1, d_pad, 1, d, 3, {b, hk, d, 1}},
        {"v_mean", "F32", layout->v_mean, b * hk, 1, d_pad, 1, d, 3, {b, hk, d, 1}},
        {"delta_s", "F32", layout->delta_s, b * h, blocks, kv_pad, blocks, nk, 4, {b, h, blocks, nk}},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        if (arrays[i].offset == UINT64_MAX)
            continue;
        void *to = tool_add(out, arrays[i].name, arrays[i].dtype, arrays[i].rank, arrays[i].shape[0],
                            arrays[i].shape[1], arrays[i].shape[2], arrays[i].shape[3]);
        if (!to)
            return false;
        if (layout->qk_is_packed && i < 2)
            unpack(to, scratch + arrays[i].offset, layout, arrays[i].outer, arrays[i].from_rows, arrays[i].rows, d);
        else
            cut(to, scratch + arrays[i].offset, element_bytes(arrays[i].dtype), arrays[i].outer, arrays[i].from_rows,
                arrays[i].from_columns, arrays[i].rows, arrays[i].columns);
    }
    if (layout->v_codes == UINT64_MAX)
        return true;
    void *v = tool_add(out, "v_codes", v_type, 4, b, hk, nk, d);
    if (v)
        untangle_v(v, scratch + layout->v_codes, layout, b * hk, nk, d);
    return v != NULL;
}
