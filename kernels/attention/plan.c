/* Attention as a plan: what is computed, where it lies, and which records do it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/attention/plan.h"

#include <inttypes.h>
#include <math.h>

#include "interop/base.h"
#include "kernels/attention/cpu.h"
#include "kernels/commit.h"

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
FITS(prepare_smooth_v);
FITS(attention);
FITS(attention_f16);




#define ATTENTION(symbol, d)                                                                                         \
    {                                                                                                                \
        .name = #symbol, .entry = #symbol "_d" #d, .cpu = td_twin_##symbol, .cpu_local_bytes = sizeof(td_local_twin) \
    }
#define ATTENTIONS(symbol)                                                                           \
    {                                                                                                \
        ATTENTION(symbol, 32), ATTENTION(symbol, 64), ATTENTION(symbol, 96), ATTENTION(symbol, 128), \
            ATTENTION(symbol, 256)                                                                   \
    }
static const td_kernel kernels_attn_8b_fp8[TD_D_PADS] = ATTENTIONS(attn_8b_fp8);
static const td_kernel kernels_attn_8b_f16[TD_D_PADS] = ATTENTIONS(attn_8b_f16);
static const td_kernel kernels_attn_4b_fp8[TD_D_PADS] = ATTENTIONS(attn_4b_fp8);
static const td_kernel kernels_attn_4b_f16[TD_D_PADS] = ATTENTIONS(attn_4b_f16);
static const td_kernel kernels_attn_f16[TD_D_PADS] = ATTENTIONS(attn_f16);
#define WGMMA_AS(kind, symbol, d)                                                    \
    {                                                                                \
        .name = #kind, .entry = #symbol "_d" #d, .cpu = td_twin_attn_8b_wgmma,       \
        .cpu_local_bytes = sizeof(td_local_twin)                                     \
    }
#define WGMMA(symbol, d) WGMMA_AS(symbol, symbol, d)
static const td_kernel kernels_attn_8b_wgmma[TD_D_PADS] = {WGMMA(attn_8b_wgmma, 32), WGMMA(attn_8b_wgmma, 64),
                                                         WGMMA(attn_8b_wgmma, 96), WGMMA(attn_8b_wgmma, 128),
                                                         WGMMA(attn_8b_wgmma, 256)};
static const td_kernel kernels_attn_8b_wgmma_short[TD_D_PADS - 1] = {
    WGMMA(attn_8b_wgmma_short, 32), WGMMA(attn_8b_wgmma_short, 64), WGMMA(attn_8b_wgmma_short, 96),
    WGMMA(attn_8b_wgmma_short, 128)};
static const td_kernel kernels_attn_8b_wgmma_walk[TD_D_PADS - 1] = {
    WGMMA_AS(attn_8b_wgmma, attn_8b_wgmma_walk, 32), WGMMA_AS(attn_8b_wgmma, attn_8b_wgmma_walk, 64),
    WGMMA_AS(attn_8b_wgmma, attn_8b_wgmma_walk, 96), WGMMA_AS(attn_8b_wgmma, attn_8b_wgmma_walk, 128)};
static const td_kernel kernels_attn_8b_wgmma_split[TD_D_PADS - 1] = {
    WGMMA(attn_8b_wgmma_split, 32), WGMMA(attn_8b_wgmma_split, 64), WGMMA(attn_8b_wgmma_split, 96),
    WGMMA(attn_8b_wgmma_split, 128)};
static const td_kernel kernel_attn_8b_wgmma_pair = WGMMA(attn_8b_wgmma_pair, 64);
static const td_kernel kernels_attn_8b_wgmma_dump[TD_D_PADS] = {
    WGMMA(attn_8b_wgmma_dump, 32), WGMMA(attn_8b_wgmma_dump, 64), WGMMA(attn_8b_wgmma_dump, 96),
    WGMMA(attn_8b_wgmma_dump, 128), WGMMA(attn_8b_wgmma_dump, 256)};
static const td_kernel kernels_attn_8b_wgmma_inline[TD_D_PADS - 1] = {
    WGMMA(attn_8b_wgmma_inline, 32), WGMMA(attn_8b_wgmma_inline, 64), WGMMA(attn_8b_wgmma_inline, 96),
    WGMMA(attn_8b_wgmma_inline, 128)};
static const td_kernel kernels_attn_8b_wgmma_inline_split[TD_D_PADS - 1] = {
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_split, 32),
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_split, 64),
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_split, 96),
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_split, 128)};
static const td_kernel kernel_attn_8b_wgmma_inline_pair = WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_pair, 64);
static const td_kernel kernels_attn_8b_wgmma_inline_short[TD_D_PADS - 1] = {
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_short, 32),
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_short, 64),
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_short, 96),
    WGMMA_AS(attn_8b_wgmma_inline, attn_8b_wgmma_inline_short, 128)};
static const td_kernel kernel_fast_8b = {
    .name = "attn_fast_8b", .cpu = td_fast_attn_8b, .cpu_local_bytes = sizeof(td_local_fast)};
static const td_kernel kernel_fast_f16 = {
    .name = "attn_fast_f16", .cpu = td_fast_attn_f16, .cpu_local_bytes = sizeof(td_local_fast)};


/* --- What is computed --- */

static tandem_status resolve(td_planning *p, char *why, size_t why_bytes)
{
    const tandem_attention *op = p->op;
    const td_target *target = p->target;
    if (!td_target_kernels(target, &p->at.cubin, &p->sm, why, why_bytes))
        return TANDEM_ERROR_UNSUPPORTED;
    p->at.overlaps = p->at.is_gpu && p->sm >= 90;
    p->coded = td_dtype_is_codes(op->k.dtype);
    p->precision = td_attention_precision(op, target);
    p->granularity = op->granularity;
    p->smooth = p->coded ? (uint32_t)TANDEM_SMOOTH_NONE : op->smooth;
    if (p->granularity == TANDEM_GRANULARITY_DEFAULT)
        p->granularity = p->sm == 90 ? TANDEM_GRANULARITY_THREAD_HOPPER : TANDEM_GRANULARITY_THREAD_ADA;
    if (p->smooth == TANDEM_SMOOTH_DEFAULT)
        p->smooth = p->precision == TANDEM_PRECISION_8B   ? TANDEM_SMOOTH_K
                    : p->precision == TANDEM_PRECISION_4B ? TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K
                                                          : TANDEM_SMOOTH_NONE;
    p->smooth_q = p->smooth & TANDEM_SMOOTH_Q;
    p->smooth_k = p->smooth & TANDEM_SMOOTH_K;
    p->smooth_v = p->smooth & TANDEM_SMOOTH_V;

    const bool is_4b = p->precision == TANDEM_PRECISION_4B, clips = is_4b && p->smooth_q && p->smooth_k;
    /* mma s4 is native up to sm_89; later GPUs have the same integers faster in their int8 tensor cores */
    const bool native_int4 = (target->image ? p->sm : target->sm) < 90;
    p->qk_f16 = p->precision == TANDEM_PRECISION_F16;
    p->v_f16 = p->qk_f16 || (p->at.is_gpu && p->sm < 89);
    p->packed = is_4b && p->at.is_gpu && (native_int4 || td_options_of(target).int4);
    p->tensor_scale = !p->qk_f16 && p->granularity == TANDEM_GRANULARITY_TENSOR;
    p->wants_lse = op->lse.dtype != TANDEM_DTYPE_NONE;
    p->wants_bias = (p->wants_lse || op->softcap > 0 || op->sink.dtype != TANDEM_DTYPE_NONE) && p->smooth_k;
    p->d_pad = td_pad_dim(op->head_dim);
    p->qk_row_bytes = p->qk_f16 ? 2 * p->d_pad : p->packed ? TD_PACKED_ROW_BYTES(p->d_pad) : p->d_pad;
    p->scale = op->scale != 0 ? op->scale : (float)(1 / sqrt((double)op->head_dim));
    p->qmax = is_4b ? 7 : 127;
    p->q_clip = clips ? td_int4_clip(p->granularity, op->head_dim, false) : 1;
    p->k_clip = clips ? td_int4_clip(p->granularity, op->head_dim, true) : 1;
    p->seen_keys = target->position == TD_NO_KEYS ? 0 : target->position ? target->position : op->kv_len;
    if (p->coded && p->v_f16)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "attention.v.dtype is %" PRIu32 " (e4m3 codes); on compute capability %" PRIu32 ".%" PRIu32
                       " V must be fp16, bf16 or f32",
                       op->v.dtype, p->sm / 10, p->sm % 10);
    return TANDEM_OK;
}

/* --- Where it lies --- */

static td_operand make_operand(td_planning *p, uint32_t view, const tandem_view *of, uint32_t heads, uint32_t rows)
{
    const tandem_attention *op = p->op;
    const uint32_t chunks = (rows + TD_TILE_ROWS - 1) / TD_TILE_ROWS;
    const td_place none = {TD_ABSENT, 0};
    td_tensor tensor = td_tensor_of(of, heads, rows, op->head_dim);
    if ((view == TD_VIEW_Q ? op->q_start : op->k_start).dtype != TANDEM_DTYPE_NONE)
        tensor.stride_batch = 0; /* spans say where a batch begins */
    return (td_operand){.view = view,
                        .rows_pad = chunks * TD_TILE_ROWS,
                        .chunks = chunks,
                        .d_pad = p->d_pad,
                        .planes = (uint64_t)op->batch * heads,
                        .tensor = tensor,
                        .partial = none,
                        .mean = none,
                        .amax = none,
                        .low = none,
                        .flag = none,
                        .codes = none,
                        .scale = none,
                        .spans = none};
}

static void use_views(td_planning *p)
{
    const tandem_attention *op = p->op;
    p->q = make_operand(p, TD_VIEW_Q, &op->q, op->heads, op->q_len);
    p->k = make_operand(p, TD_VIEW_K, &op->k, op->kv_heads, op->kv_len);
    p->v = make_operand(p, TD_VIEW_V, &op->v, op->kv_heads, op->kv_len);
    td_build_extents(&p->at, &td_operation_attention.layout, td_operands_of(op));
    p->q_mean = p->delta = p->lse_bias = p->dump_s = p->dump_p = p->dump_r = (td_place){TD_ABSENT, 0};
}

/* Scratch of an operand. Its sizes count elements, which are below 2^31 blocks * 128 rows * 256 channels. */
static void place_operand(td_builder *at, td_operand *x, bool mean, uint32_t row_bytes, bool scale_by_row)
{
    const unsigned __int128 rows = (unsigned __int128)x->planes * x->rows_pad;
    const unsigned __int128 channels = (unsigned __int128)x->planes * x->d_pad;
    x->mean = td_build_take(at, mean, channels * 4);
    x->codes = td_build_take(at, !td_dtype_is_codes(x->tensor.dtype), rows * row_bytes);
    x->scale = td_build_take(at, !td_dtype_is_codes(x->tensor.dtype), (scale_by_row ? rows : channels) * 4);
}

static void place_codes(td_planning *p)
{
    const unsigned __int128 q_rows = (unsigned __int128)p->q.planes * p->q.rows_pad;
    const unsigned __int128 q_chunks = (unsigned __int128)p->q.planes * p->q.chunks;
    place_operand(&p->at, &p->k, p->smooth_k, p->qk_row_bytes, true);
    place_operand(&p->at, &p->v, p->smooth_v, p->v_f16 ? 2 * p->d_pad : p->d_pad, false);
    place_operand(&p->at, &p->q, false, p->qk_row_bytes, true);
    p->q_mean = td_build_take(&p->at, p->smooth_q, q_chunks * p->d_pad * 4);
    p->delta = td_build_take(&p->at, p->smooth_q, q_chunks * p->k.rows_pad * 4);
    p->lse_bias = td_build_take(&p->at, p->wants_bias, q_rows * 4);
}

static void place_dumps(td_planning *p, bool wgmma)
{
    const bool dump = td_options_of(p->target).dump && p->at.is_gpu;
    const uint32_t sums = wgmma ? TD_HOPPER_SUMS(p->k.rows_pad, p->d_pad) : p->k.rows_pad / TD_TILE_KEYS;
    const unsigned __int128 q_rows = (unsigned __int128)p->q.planes * p->q.rows_pad;
    p->dump_s = td_build_take(&p->at, dump, q_rows * p->k.rows_pad * 4);
    p->dump_p = td_build_take(&p->at, dump && !p->v_f16, q_rows * p->k.rows_pad);
    p->dump_r = td_build_take(&p->at, dump && !p->v_f16, q_rows * sums * p->d_pad * 4);
}

/* --- Which records do it --- */

/* Codes and scales of an operand: of scratch, or of a view that has them. */
static void use_codes(td_planning *p, td_record *record, size_t codes, size_t scale, const td_operand *x)
{
    uint64_t scales_bytes;
    if (!td_dtype_is_codes(x->tensor.dtype)) {
        td_build_scratch(&p->at, record, TD_READ, codes, x->codes);
        td_build_scratch(&p->at, record, TD_READ, scale, x->scale);
        return;
    }
    tandem_codes_bytes(x->tensor.dtype, p->op->batch, x->tensor.heads, x->tensor.rows, x->tensor.dim, &scales_bytes);
    td_build_view(&p->at, record, TD_READ, codes, x->view);
    td_build_pointer(&p->at, record, scale, TD_BASE_VIEW, x->view, scales_bytes);
}

/* How the attention kernel is launched. */
typedef struct launch {
    const td_kernel *kernel;
    bool wgmma, ring;  /* ring: in the shared memory that every executor has */
    td_hopper_block block;
    uint32_t tile_rows, walkers, threads, shared_bytes;
    uint64_t blocks;
} launch;

/* wgmma: one scale for what a thread has of a step's keys, maxima before scales (so none below zero), no delta-S. */
static bool can_wgmma(const td_planning *p)
{
    const bool one_scale =
        p->granularity == TANDEM_GRANULARITY_THREAD_HOPPER || p->granularity == TANDEM_GRANULARITY_TENSOR;
    return p->sm == 90 && !(p->at.cubin && p->at.cubin->ptx) && !p->v_f16 && one_scale && !p->smooth_q && p->scale > 0;
}

static const td_kernel *ring_kernel(uint32_t d_pad, td_hopper_block block)
{
    const uint32_t d = td_index_of_dim(d_pad);
    if (block.splits > 1)
        return block.groups > block.splits ? &kernel_attn_8b_wgmma_inline_pair : &kernels_attn_8b_wgmma_inline_split[d];
    return block.groups < TD_HOPPER_INLINE_GROUPS(d_pad) ? &kernels_attn_8b_wgmma_inline_short[d]
                                                         : &kernels_attn_8b_wgmma_inline[d];
}

static const td_kernel *wgmma_kernel(uint32_t d_pad, td_hopper_block block, bool dump, bool walks)
{
    const uint32_t d = td_index_of_dim(d_pad);
    if (dump)
        return &kernels_attn_8b_wgmma_dump[d];
    if (block.splits > 1)
        return block.splits == 2 ? &kernel_attn_8b_wgmma_pair : &kernels_attn_8b_wgmma_split[d];
    if (block.groups < TD_HOPPER_GROUPS(d_pad))
        return &kernels_attn_8b_wgmma_short[d];
    return walks ? &kernels_attn_8b_wgmma_walk[d] : &kernels_attn_8b_wgmma[d];
}

/* The kernels of every GPU, a block a tile, and the CPU's. */
static launch plain_launch(const td_planning *p)
{
    const uint32_t d = td_index_of_dim(p->d_pad);
    launch l = {.block = {0, 1}, .tile_rows = p->at.is_gpu ? TD_TWIN_ROWS : TD_FAST_ROWS};
    l.blocks = p->q.planes * ((p->op->q_len + l.tile_rows - 1) / l.tile_rows);
    if (!p->at.is_gpu) {
        l.kernel = p->qk_f16 ? &kernel_fast_f16 : &kernel_fast_8b;
        l.threads = 1;
        return l;
    }
    l.kernel = p->qk_f16   ? &kernels_attn_f16[d]
               : p->packed ? (p->v_f16 ? &kernels_attn_4b_f16[d] : &kernels_attn_4b_fp8[d])
               : p->v_f16  ? &kernels_attn_8b_f16[d]
                           : &kernels_attn_8b_fp8[d];
    l.threads = TD_BLOCK_THREADS;
    l.shared_bytes = TD_ATTENTION_SHARED_BYTES(p->qk_row_bytes, p->v_f16 ? 2u : 1u, p->d_pad);
    return l;
}

static launch launch_of(const td_planning *p)
{
    const tandem_attention *op = p->op, *whole = p->target->whole ? &p->target->whole->attention : op;
    const td_target *target = p->target;
    const uint32_t d_pad = p->d_pad;
    const bool roomy = target->shared_bytes >= td_hopper_shared_bytes(d_pad, TD_HOPPER_GROUPS(d_pad), 1);
    const bool dump = td_options_of(target).dump, ring = !roomy && !dump && d_pad <= 128;
    if (!can_wgmma(p) || (!roomy && !ring))
        return plain_launch(p);

    launch l = {.wgmma = true, .ring = ring};
    l.block = ring ? td_hopper_inline_block_of(whole, target, d_pad) : td_hopper_block_of(whole, target, d_pad);
    l.tile_rows = TD_HOPPER_ROWS(l.block.groups / l.block.splits);
    l.threads = TD_HOPPER_THREADS(l.block.groups);
    const uint64_t tiles = p->q.planes * ((op->q_len + l.tile_rows - 1) / l.tile_rows);
    const uint32_t multiprocessors = td_multiprocessors(target);
    const bool shared = l.block.splits > 1 && !ring && tiles > multiprocessors;
    const bool walks = !ring && td_hopper_walks(op, target, d_pad, l.block, tiles);
    l.walkers = shared || walks ? multiprocessors : 0;
    l.blocks = l.walkers ? l.walkers : tiles;
    l.kernel = ring ? ring_kernel(d_pad, l.block) : wgmma_kernel(d_pad, l.block, dump && p->at.is_gpu, walks);
    l.shared_bytes = ring    ? TD_HOPPER_INLINE_SHARED_BYTES(d_pad, l.block.groups, l.block.splits)
                     : walks ? TD_HOPPER_WALK_SHARED_BYTES(d_pad)
                             : td_hopper_shared_bytes(d_pad, l.block.groups, l.block.splits);
    return l;
}

static void add_attention(td_planning *p, const launch *l, const td_written *to, bool prepared)
{
    const tandem_attention *op = p->op;
    td_builder *at = &p->at;
    const td_params_attention attention = {
        .o = to->o,
        .lse_stride_batch = to->lse_stride_batch,
        .lse_stride_head = to->lse_stride_head,
        .lse_stride_row = to->lse_stride_row,
        .scale = p->scale,
        .heads = op->heads,
        .kv_heads = op->kv_heads,
        .kv_len = p->seen_keys,
        .q_pad = p->q.rows_pad,
        .kv_pad = p->k.rows_pad,
        .d_pad = p->d_pad,
        .causal = op->causal,
        .accumulator = (uint8_t)(l->wgmma ? (uint32_t)TD_ACCUMULATOR_WGMMA_F16 : p->target->accumulator),
        .splits = (uint8_t)l->block.splits,
        .tile_rows = (uint16_t)l->tile_rows,
        .planes = (uint32_t)p->q.planes,
        .walkers = l->walkers,
        .chunk_planes = td_hopper_walk_chunk(op, p->d_pad)};
    /* Behind the kernel that lets it start early, and to which that was measured to gain; it waits for its end itself. */
    const bool early = l->wgmma && prepared && !l->ring && at->plan->record_count == 1;
    td_record *record;
    if (td_attention_is_masked(op)) {
        record = td_add_masked_codes(p, to, &attention);
    } else {
        record = td_build_record(at, l->kernel, l->blocks, &attention, sizeof attention);
        record->shared_bytes = l->shared_bytes;
        record->block[0] = l->threads;
        record->flags = early ? TD_RECORD_PDL : 0;
    }
    use_codes(p, record, AT(attention, q_codes), AT(attention, q_scale), &p->q);
    use_codes(p, record, AT(attention, k_codes), AT(attention, k_scale), &p->k);
    use_codes(p, record, AT(attention, v_codes), AT(attention, v_scale), &p->v);
    td_build_scratch(at, record, TD_READ, AT(attention, v_mean), p->v.mean);
    td_build_scratch(at, record, TD_READ, AT(attention, delta), p->delta);
    td_build_scratch(at, record, TD_READ, AT(attention, lse_bias), p->lse_bias);
    td_build_write(at, record, AT(attention, o.data), &p->out[0]);
    td_build_write(at, record, AT(attention, lse), &p->out[1]);
    td_build_scratch(at, record, TD_WRITE, AT(attention, dump_s), p->dump_s);
    td_build_scratch(at, record, TD_WRITE, AT(attention, dump_p), p->dump_p);
    td_build_scratch(at, record, TD_WRITE, AT(attention, dump_r), p->dump_r);
}

/* --- Plans --- */

static td_attention_layout layout_of(const td_planning *p, uint32_t step_keys)
{
    return (td_attention_layout){.q_pad = p->q.rows_pad,
                                 .kv_pad = p->k.rows_pad,
                                 .d_pad = p->d_pad,
                                 .v_is_f16 = p->v_f16,
                                 .qk_is_f16 = p->qk_f16,
                                 .step_keys = step_keys,
                                 .qk_is_packed = p->packed,
                                 .q_codes = p->q.codes.offset,
                                 .q_scale = p->q.scale.offset,
                                 .q_mean = p->q_mean.offset,
                                 .k_codes = p->k.codes.offset,
                                 .k_scale = p->k.scale.offset,
                                 .k_mean = p->k.mean.offset,
                                 .v_codes = p->v.codes.offset,
                                 .v_scale = p->v.scale.offset,
                                 .v_mean = p->v.mean.offset,
                                 .delta_s = p->delta.offset,
                                 .dump_s = p->dump_s.offset,
                                 .dump_p = p->dump_p.offset,
                                 .dump_r = p->dump_r.offset};
}

static tandem_status end_plan(td_planning *p, char *why, size_t why_bytes)
{
    const tandem_attention *op = p->op;
    char reason[200];
    const tandem_status status = td_build_end(&p->at, reason, sizeof reason);
    if (status == TANDEM_ERROR_ARG)
        return td_fail(why, why_bytes, status,
                       "attention.batch, heads, q_len, kv_len are %" PRIu32 ", %" PRIu32 ", %" PRIu32 ", %" PRIu32
                       "; together they need %s",
                       op->batch, op->heads, op->q_len, op->kv_len, reason);
    return status == TANDEM_OK ? status : td_fail(why, why_bytes, status, "%s", reason);
}

tandem_status td_plan_attention(const tandem_attention *op, const td_target *target, td_plan *plan,
                                td_attention_layout *layout, char *why, size_t why_bytes)
{
    td_planning p = {.op = op, .target = target, .at = td_build_begin(plan, target)};
    uint32_t step_keys;
    tandem_status status = resolve(&p, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    plan->precision = p.precision;
    p.at.keeps_scratch = layout != NULL;
    use_views(&p);

    const td_kernel *direct =
        p.qk_f16 ? td_direct_kernel(op, target, p.at.cubin, p.sm, p.smooth, p.scale) : NULL;
    if (td_attention_has_starts(op))
        td_add_spans(&p);
    if (td_attention_is_masked(op) && p.qk_f16) {
        step_keys = 0;
        status = td_add_masked(&p, why, why_bytes);
        if (status != TANDEM_OK)
            return status;
    } else if (direct) {
        step_keys = td_add_direct(&p, direct);
    } else {
        place_codes(&p);
        const td_written to = td_place_output(&p);
        if (td_attention_is_masked(op))
            td_add_masked_keys(&p);
        const bool prepared = td_add_prologue(&p);
        const launch l = td_attention_is_masked(op) ? plain_launch(&p) : launch_of(&p);
        place_dumps(&p, l.wgmma);
        add_attention(&p, &l, &to, prepared);
        step_keys = l.wgmma ? TD_HOPPER_SUM_KEYS(p.d_pad) : TD_TILE_KEYS;
    }
    if (op->q_start.dtype != TANDEM_DTYPE_NONE)
        td_add_unspanned(&p);
    td_build_outputs(&p.at, target, &td_operation_attention.layout, td_operands_of(op), p.out, 2);
    status = end_plan(&p, why, why_bytes);
    if (status == TANDEM_OK && layout)
        *layout = layout_of(&p, step_keys);
    return status;
}
