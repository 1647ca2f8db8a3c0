/* Attention: plans of what comes before its kernel, means, maxima, codes and scales of Q, K and V.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/attention/cpu.h"
#include "kernels/attention/plan.h"

enum { MULTIPROCESSOR_SHARED = 228 << 10, PREPARE_LEAST_SHARED = 18 << 10,
       PREPARE_KEPT_BYTES = 31 << 20, /* that L2 keeps from one look at a head to the next */
       PREPARE_ASKS_BYTES = 8 << 20   /* of tensors that `prepare` asks for early: above it attention suffers */ };

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
static const td_kernel kernel_quantise = {.name = "quantise",
                                          .entry = "quantise",
                                          .cpu = td_cpu_quantise,
                                          .cpu_local_bytes = sizeof(td_local_prologue),
                                          .writes_early = true};
#define PREPARE(symbol, d, early)                                          \
    {                                                                      \
        .name = #symbol, .entry = #symbol "_d" #d, .cpu = td_cpu_##symbol, \
        .cpu_local_bytes = sizeof(td_local_prologue), .writes_early = early \
    }
#define PREPARES(symbol, early) \
    {PREPARE(symbol, 32, early), PREPARE(symbol, 64, early), PREPARE(symbol, 128, early), PREPARE(symbol, 128, early)}
static const td_kernel kernels_prepare_q[] = PREPARES(prepare_q, false);
/* By whether V is smoothed. */
static const td_kernel kernels_prepare[2][4] = {PREPARES(prepare, false), PREPARES(prepare_smooth_v, false)};
static const td_kernel kernels_prepare_kv[2][4] = {PREPARES(prepare_kv, true), PREPARES(prepare_kv_smooth_v, true)};

/* Statistics of its chunks, for the prologues that keep them there. */
static void place_chunks(td_builder *at, td_operand *x, bool amax, bool flag)
{
    const unsigned __int128 chunks = (unsigned __int128)x->planes * x->chunks;
    x->partial = td_build_take(at, x->mean.offset != TD_ABSENT, chunks * x->d_pad * 4);
    x->amax = td_build_take(at, amax, chunks * x->d_pad * 4);
    x->flag = td_build_take(at, flag, chunks * TD_TILE_ROWS * 4);
}

static void add_mean(td_builder *at, td_operand *x)
{
    td_record *record;
    const td_params_mean_partial partial = {.x = x->tensor, .chunks = x->chunks, .d_pad = x->d_pad};
    record = td_build_record(at, &kernel_mean_partial, x->planes * x->chunks, &partial, sizeof partial);
    td_build_view(at, record, TD_READ, AT(mean_partial, x.data), x->view);
    td_build_scratch(at, record, TD_READ, AT(mean_partial, spans), x->spans);
    td_build_scratch(at, record, TD_WRITE, AT(mean_partial, partial), x->partial);

    const td_params_mean_final final = {
        .chunks = x->chunks, .d_pad = x->d_pad, .rows = x->tensor.rows, .heads = x->tensor.heads};
    record = td_build_record(at, &kernel_mean_final, x->planes, &final, sizeof final);
    td_build_scratch(at, record, TD_READ, AT(mean_final, partial), x->partial);
    td_build_scratch(at, record, TD_READ, AT(mean_final, spans), x->spans);
    td_build_scratch(at, record, TD_WRITE, AT(mean_final, mean), x->mean);
}

static void add_amax(td_builder *at, const td_operand *x, bool own_mean)
{
    const td_params_amax_partial amax = {
        .x = x->tensor, .chunks = x->chunks, .d_pad = x->d_pad, .rows_pad = x->rows_pad, .own_mean = own_mean};
    td_record *record = td_build_record(at, &kernel_amax_partial, x->planes * x->chunks, &amax, sizeof amax);
    td_build_view(at, record, TD_READ, AT(amax_partial, x.data), x->view);
    td_build_scratch(at, record, TD_READ, AT(amax_partial, mean), x->mean);
    td_build_scratch(at, record, TD_READ, AT(amax_partial, spans), x->spans);
    td_build_scratch(at, record, TD_WRITE, AT(amax_partial, amax), x->amax);
    td_build_scratch(at, record, TD_WRITE, AT(amax_partial, flag), x->flag);
}

/* Sets a block works on, so that each multiprocessor still gets some eight blocks: a power of two up to 8. */
static uint32_t sets_a_block(const td_target *target, uint64_t sets)
{
    const uint64_t blocks = 8 * (uint64_t)td_multiprocessors(target);
    uint32_t each = 1;
    while (each < 8 && sets / (2 * each) >= blocks)
        each *= 2;
    return each;
}

/* The prologue as two records. False if the grid is too large. */
static bool add_fused(td_planning *p)
{
    td_builder *at = &p->at;
    const tandem_attention *op = p->op;
    const td_target *target = p->target;
    const td_operand *q = &p->q, *k = &p->k, *v = &p->v;
    const bool ahead = target->shared_bytes >= TD_FUSED_SHARED_BYTES + TD_FUSED_AHEAD_BYTES;
    td_params_quantise quantise = {.q_strides = {op->q.stride_batch, op->q.stride_head, op->q.stride_row},
                                   .k_strides = {op->k.stride_batch, op->k.stride_head, op->k.stride_row},
                                   .v_strides = {op->v.stride_batch, op->v.stride_head, op->v.stride_row},
                                   .heads = op->heads,
                                   .kv_heads = op->kv_heads,
                                   .q_len = op->q_len,
                                   .kv_len = op->kv_len,
                                   .dim = (uint16_t)op->head_dim,
                                   .d_pad = (uint16_t)p->d_pad,
                                   .q_dtype = (uint8_t)op->q.dtype,
                                   .k_dtype = (uint8_t)op->k.dtype,
                                   .v_dtype = (uint8_t)op->v.dtype,
                                   .mode = p->packed ? 2 : 0,
                                   .qmax = p->qmax,
                                   .q_clip = p->q_clip,
                                   .k_clip = p->k_clip,
                                   .granularity = (uint8_t)p->granularity};
    const uint32_t tiles = TD_FUSED_TILES(k->d_pad), sets = (k->chunks + tiles - 1) / tiles;
    const uint64_t q_tiles = q->planes * q->chunks;
    const uint32_t each = sets_a_block(target, 2 * k->planes * sets + q_tiles / tiles);
    quantise.sets = (uint16_t)each;
    quantise.ahead = ahead && each > 1;
    quantise.kv_planes = (uint32_t)k->planes;
    quantise.kv_blocks = (sets + each - 1) / each;
    quantise.q_tiles = (uint32_t)q_tiles;
    const uint64_t grid = 2 * k->planes * quantise.kv_blocks + (q_tiles + tiles * each - 1) / (tiles * each);
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

    record = td_build_record(at, &kernel_quantise, grid, &quantise, sizeof quantise);
    record->block[0] = TD_FUSED_THREADS;
    record->shared_bytes = TD_FUSED_SHARED_BYTES + quantise.ahead * TD_FUSED_AHEAD_BYTES;
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
    td_build_scratch(at, record, TD_WRITE, AT(quantise, q_mean), p->q_mean);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, k_mean), k->mean);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, lse_bias), p->lse_bias);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, q_codes), q->codes);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, k_codes), k->codes);
    td_build_scratch(at, record, TD_WRITE, AT(quantise, v_codes), v->codes);
    return true;
}

/* Statistics of heads are so far ahead of their codes: by as many as find their rows still in L2, but at least so that they find
 * the statistics ready. */
static uint32_t find_lag(const td_target *target, const td_operand *k, uint32_t blocks)
{
    const uint32_t resident = 2 * td_multiprocessors(target);
    const uint64_t fit = PREPARE_KEPT_BYTES / (6 * (uint64_t)k->rows_pad * k->d_pad); /* K and V, and their codes */
    const uint32_t least = 1 + resident / (2 * blocks);
    const uint64_t most = fit < k->planes ? fit : k->planes;
    return most > least ? (uint32_t)most : least;
}

/* Blocks that start before the kernel ahead has left all multiprocessors pile up where there is room first. Shared bytes of a
 * block that let no more of them there than it takes to have the grid at once. */
static uint32_t spread_bytes(const td_target *target, uint64_t grid)
{
    const uint64_t each = (grid + td_multiprocessors(target) - 1) / td_multiprocessors(target);
    return each > 2 ? 0 : MULTIPROCESSOR_SHARED / (uint32_t)(each + 1);
}

/* Dynamic ones of `prepare`, which has at least PREPARE_LEAST_SHARED of its own unless V is smoothed. */
static uint32_t prepare_bytes(const td_planning *p, uint64_t grid)
{
    const uint32_t spread = spread_bytes(p->target, grid), smooth = TD_PREPARE_SMOOTH_V_BYTES(p->k.d_pad);
    if (p->smooth_v)
        return spread > smooth ? spread : smooth;
    return spread ? spread - PREPARE_LEAST_SHARED : 0;
}

/* The prologue on sm_90: one record where clusters hold the heads and these lie well, else two. */
static bool add_prepare(td_planning *p)
{
    td_builder *at = &p->at;
    const tandem_attention *op = p->op;
    const td_target *target = p->target;
    td_operand *q = &p->q, *k = &p->k, *v = &p->v;
    const uint32_t d_pad = k->d_pad, warps = TD_PREPARE_HEAD_WARPS(d_pad), each = TD_PREPARE_THREADS / 64 / warps;
    const uint32_t blocks = (k->chunks + each - 1) / each, lag = find_lag(target, k, blocks);
    const uint64_t q_tiles = q->planes * q->chunks;
    const bool smooth = k->mean.offset != TD_ABSENT;
    const int d = td_index_of_dim(d_pad);
    uint32_t tiles = 0, cluster = td_options_of(target).no_clusters ? 0 : td_prepare_cluster(k->chunks, d_pad, &tiles);
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
    td_params_prepare_smooth_v smooth_v = {.v_mean = NULL};
    const size_t bytes_of_params = p->smooth_v ? sizeof smooth_v : sizeof prepare; /* which begin alike */

    if ((k->planes + lag) * 2 * blocks > TD_MOST_BLOCKS || 8 * q_tiles > TD_MOST_BLOCKS || !td_is_wide(&op->q) || !td_is_wide(&op->k) ||
        !td_is_wide(&op->v))
        return false;
    if (cluster && k->planes * cluster + 8 * q_tiles <= TD_MOST_BLOCKS) {
        const uint32_t block_warps = 2 * tiles * warps;
        const uint64_t bytes = 2 * op->head_dim * (q->planes * op->q_len + 2 * k->planes * op->kv_len);
        prepare.tiles = tiles;
        prepare.asks = bytes <= PREPARE_ASKS_BYTES;
        grid = k->planes * cluster + (8 * q_tiles + block_warps - 1) / block_warps;
        grid = (grid + cluster - 1) / cluster * cluster;
        smooth_v.of = prepare;
        record = td_build_record(at, &kernels_prepare[p->smooth_v][d], grid, &smooth_v, bytes_of_params);
        record->block[0] = 32 * block_warps;
        record->flags = TD_RECORD_CLUSTER | TD_RECORD_PDL;
        record->cluster = cluster;
        record->shared_bytes = prepare_bytes(p, grid);
        td_build_view(at, record, TD_READ, AT(prepare, q), TD_VIEW_Q);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, q_scale), q->scale);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, q_codes), q->codes);
    } else {
        const td_place counters = td_build_take(at, true, (unsigned __int128)k->planes * 2 * sizeof(uint32_t));
        k->partial = td_build_take(at, smooth, (unsigned __int128)k->planes * k->chunks * d_pad * 4);
        v->partial = td_build_take(at, p->smooth_v, (unsigned __int128)k->planes * k->chunks * d_pad * 4);
        v->amax = td_build_take(at, true, (unsigned __int128)k->planes * (blocks + 1) * d_pad * 4);
        v->low = td_build_take(at, p->smooth_v, (unsigned __int128)k->planes * blocks * d_pad * 4);
        grid = (8 * q_tiles + TD_PREPARE_THREADS / 32 - 1) / (TD_PREPARE_THREADS / 32);
        record = td_build_record(at, &kernels_prepare_q[d], grid, &prepare, sizeof prepare);
        record->block[0] = TD_PREPARE_THREADS;
        td_build_view(at, record, TD_READ, AT(prepare, q), TD_VIEW_Q);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, counters), counters);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, q_scale), q->scale);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, q_codes), q->codes);

        smooth_v.of = prepare;
        record = td_build_record(at, &kernels_prepare_kv[p->smooth_v][d], (k->planes + lag) * 2 * blocks, &smooth_v,
                                 bytes_of_params);
        record->block[0] = 64 * each * warps;
        record->flags = TD_RECORD_PDL;
        record->shared_bytes = p->smooth_v ? TD_PREPARE_SMOOTH_V_BYTES(d_pad) : 0;
        td_build_scratch(at, record, TD_WRITE, AT(prepare, counters), counters);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, partial), k->partial);
        td_build_scratch(at, record, TD_WRITE, AT(prepare, amax), v->amax);
        td_build_scratch(at, record, TD_WRITE, AT(prepare_smooth_v, v_partial), v->partial);
        td_build_scratch(at, record, TD_WRITE, AT(prepare_smooth_v, v_low), v->low);
    }
    td_build_view(at, record, TD_READ, AT(prepare, k), TD_VIEW_K);
    td_build_view(at, record, TD_READ, AT(prepare, v), TD_VIEW_V);
    td_build_scratch(at, record, TD_WRITE, AT(prepare, k_scale), k->scale);
    td_build_scratch(at, record, TD_WRITE, AT(prepare, v_scale), v->scale);
    td_build_scratch(at, record, TD_WRITE, AT(prepare, k_mean), k->mean);
    td_build_scratch(at, record, TD_WRITE, AT(prepare, k_codes), k->codes);
    td_build_scratch(at, record, TD_WRITE, AT(prepare, v_codes), v->codes);
    td_build_scratch(at, record, TD_WRITE, AT(prepare_smooth_v, v_mean), v->mean);
    return true;
}

/* Codes of K and of Q, by blocks of rows; `is_k` as the kernel has it. */
static void add_quant_qk(td_planning *p, const td_operand *x, bool is_k)
{
    const td_params_quant_qk quant = {.x = x->tensor,
                                      .chunks = x->chunks,
                                      .d_pad = p->d_pad,
                                      .rows_pad = x->rows_pad,
                                      .mode = p->packed ? 2 : p->qk_f16,
                                      .qmax = p->qmax,
                                      .clip = is_k ? p->k_clip : p->q_clip,
                                      .granularity = p->granularity,
                                      .is_k = is_k,
                                      .lse_heads = is_k ? 0 : p->op->kv_heads};
    td_record *record = td_build_record(&p->at, &kernel_quant_qk, x->planes * x->chunks, &quant, sizeof quant);
    td_build_view(&p->at, record, TD_READ, AT(quant_qk, x.data), x->view);
    td_build_scratch(&p->at, record, TD_READ, AT(quant_qk, spans), x->spans);
    if (is_k) {
        td_build_scratch(&p->at, record, TD_READ, AT(quant_qk, mean), x->mean);
        td_build_scratch(&p->at, record, TD_READ, AT(quant_qk, flag), p->v.flag);
        td_build_scratch(&p->at, record, TD_READ, AT(quant_qk, amax), x->amax);
    } else {
        td_build_scratch(&p->at, record, TD_READ, AT(quant_qk, amax), x->amax);
        td_build_scratch(&p->at, record, TD_WRITE, AT(quant_qk, block_mean), p->q_mean);
        if (p->wants_bias)
            td_build_scratch(&p->at, record, TD_READ, AT(quant_qk, lse_mean), p->k.mean);
        td_build_scratch(&p->at, record, TD_WRITE, AT(quant_qk, lse_bias), p->lse_bias);
    }
    td_build_scratch(&p->at, record, TD_WRITE, AT(quant_qk, scale), x->scale);
    td_build_scratch(&p->at, record, TD_WRITE, AT(quant_qk, codes), x->codes);
}

static void add_quant_v(td_planning *p)
{
    const td_operand *v = &p->v;
    const td_params_quant_v quant = {
        .x = v->tensor, .chunks = v->chunks, .d_pad = p->d_pad, .kv_pad = v->rows_pad, .mode = p->v_f16};
    td_record *record = td_build_record(&p->at, &kernel_quant_v, v->planes * v->chunks, &quant, sizeof quant);
    td_build_view(&p->at, record, TD_READ, AT(quant_v, x.data), TD_VIEW_V);
    td_build_scratch(&p->at, record, TD_READ, AT(quant_v, spans), v->spans);
    td_build_scratch(&p->at, record, TD_READ, AT(quant_v, mean), v->mean);
    td_build_scratch(&p->at, record, TD_READ, AT(quant_v, amax), v->amax);
    td_build_scratch(&p->at, record, TD_WRITE, AT(quant_v, scale), v->scale);
    td_build_scratch(&p->at, record, TD_WRITE, AT(quant_v, codes), v->codes);
}

/* The prologue for whatever the others do not take: a record a step. */
static void add_steps(td_planning *p)
{
    if (p->smooth_k)
        add_mean(&p->at, &p->k);
    if (p->smooth_v)
        add_mean(&p->at, &p->v);
    add_amax(&p->at, &p->v, false);
    if (p->tensor_scale) {
        add_amax(&p->at, &p->k, false);
        add_amax(&p->at, &p->q, p->smooth_q);
    }
    add_quant_qk(p, &p->k, true);
    add_quant_v(p);
    add_quant_qk(p, &p->q, false);
}

/* By the means of Q's blocks: what these add to the scores of each key. */
static void add_delta_s(td_planning *p)
{
    const td_params_delta_s delta_s = {.k = p->k.tensor,
                                       .heads = p->op->heads,
                                       .q_blocks = p->q.chunks,
                                       .chunks = p->seen_keys ? (p->seen_keys - 1) / TD_TILE_ROWS + 1 : 1, /* no grid is 0 */
                                       .d_pad = p->d_pad,
                                       .kv_pad = p->k.rows_pad,
                                       .each = p->at.is_gpu ? TD_DELTA_BLOCKS : 1};
    const uint64_t groups = (p->q.chunks + delta_s.each - 1) / delta_s.each;
    td_record *record =
        td_build_record(&p->at, &kernel_delta_s, p->q.planes * groups * delta_s.chunks, &delta_s, sizeof delta_s);
    td_build_view(&p->at, record, TD_READ, AT(delta_s, k.data), TD_VIEW_K);
    td_build_scratch(&p->at, record, TD_READ, AT(delta_s, spans), p->k.spans);
    td_build_scratch(&p->at, record, TD_READ, AT(delta_s, q_mean), p->q_mean);
    td_build_scratch(&p->at, record, TD_READ, AT(delta_s, k_mean), p->k.mean);
    td_build_scratch(&p->at, record, TD_WRITE, AT(delta_s, delta), p->delta);
}

/* Where those of K and V are there: unless its are, too. */
static void add_codes_of_q(td_planning *p)
{
    if (td_dtype_is_codes(p->q.tensor.dtype))
        return;
    place_chunks(&p->at, &p->q, p->tensor_scale, false);
    if (p->tensor_scale)
        add_amax(&p->at, &p->q, false);
    add_quant_qk(p, &p->q, false);
}

/* A stream's block gets more shared memory than any executor's; only there, clusters too. */
static bool is_preparable(const td_planning *p, bool halves)
{
    return halves && p->sm == 90 && !(p->at.cubin && p->at.cubin->ptx) && p->target->shared_bytes && !p->smooth_q &&
           !p->wants_bias && p->precision == TANDEM_PRECISION_8B && p->granularity == TANDEM_GRANULARITY_THREAD_HOPPER;
}

bool td_add_prologue(td_planning *p)
{
    const tandem_attention *op = p->op;
    const bool all = p->k.spans.offset == TD_ABSENT && p->q.spans.offset == TD_ABSENT; /* who takes tensors of which not all rows count is add_steps() alone */
    const bool halves = all && op->q.dtype != TANDEM_DTYPE_F32 && op->k.dtype != TANDEM_DTYPE_F32 &&
                        op->v.dtype != TANDEM_DTYPE_F32 && p->d_pad <= 128;
    if (p->coded) {
        add_codes_of_q(p);
        return false;
    }
    if (is_preparable(p, halves) && add_prepare(p))
        return true;
    place_chunks(&p->at, &p->k, p->tensor_scale, false);
    place_chunks(&p->at, &p->v, true, true);
    place_chunks(&p->at, &p->q, p->tensor_scale, false);
    const bool fusible = p->at.is_gpu && !p->v_f16 && !p->smooth_v && !p->tensor_scale && halves;
    if (!fusible || !add_fused(p))
        add_steps(p);
    if (p->smooth_q)
        add_delta_s(p);
    return false;
}
