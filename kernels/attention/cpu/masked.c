/* `attn_masked` on the CPU: lengths of keys, a bias, positions of rows. See params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Tensors are packed as they are, in float; the rest is fast.c's. What is not finite in V counts as 0, and makes its key's scale
 * NaN, so that it reaches the rows that attend to it and no others. `attn_masked_codes` takes codes, as fast.c does by itself.
 */
#include "kernels/attention/cpu/fast.h"

#if TD_X86
#include <immintrin.h>
#endif

typedef struct plane {
    const td_params_attention_masked *p;
    int64_t batch, head, kv_head;
    int64_t keys; /* that count */
    int64_t past; /* row i is the one of key i + past, where nothing else says so */
    int64_t q_first, k_first; /* of its batch, in the tensors */
    uint32_t first, count; /* rows, of its batch */
} plane;

static int64_t element_of(const td_tensor *x, int64_t batch, int64_t head, int64_t row)
{
    return batch * x->stride_batch + head * x->stride_head + row * x->stride_row;
}

/* A row; channels from dim on are 0. */
static void load_row(float *to, const td_tensor *x, int64_t at, uint32_t d_pad)
{
    td_to_floats(to, x->data, x->dtype, at, x->dim);
    memset(to + x->dim, 0, (d_pad - x->dim) * sizeof *to);
}

TD_INLINE bool is_finite(float x)
{
    return (td_bits(x) & 0x7f800000) != 0x7f800000;
}

/* 1, or NaN where something is not finite. */
TD_INLINE float scale_of(const float *row, uint32_t count)
{
    uint32_t bad = 0;
    for (uint32_t c = 0; c < count; c++)
        bad |= !is_finite(row[c]);
    return bad ? NAN : 1;
}

static void pack_q(const plane *of, td_fast_job *at)
{
    for (uint32_t r = 0; r < at->rows; r++) {
        float *row = at->local->q + (size_t)r * at->d_pad;
        if (r < of->count)
            load_row(row, &of->p->q, element_of(&of->p->q, of->batch, of->head, of->q_first + of->first + r), at->d_pad);
        else
            memset(row, 0, at->d_pad * sizeof *row);
        at->local->q_scale[r] = of->p->scale * TD_LOG2_E * scale_of(row, at->d_pad);
    }
}

/* A tile; keys that do not count are not read. */
static void pack_kv_c(const plane *of, td_fast_job *at)
{
    td_local_fast *local = at->local;
    for (uint32_t j = 0; j < TD_TILE_KEYS; j++) {
        const int64_t key = (int64_t)at->key + j;
        float row[TD_MAX_DIM] = {0}, *v = local->v + (size_t)j * at->d_pad;
        memset(v, 0, at->d_pad * sizeof *v);
        if (key < of->keys) {
            load_row(row, &of->p->k, element_of(&of->p->k, of->batch, of->kv_head, of->k_first + key), at->d_pad);
            load_row(v, &of->p->v, element_of(&of->p->v, of->batch, of->kv_head, of->k_first + key), at->d_pad);
        }
        local->k_scale[j] = scale_of(row, at->d_pad) * scale_of(v, at->d_pad);
        for (uint32_t c = 0; c < at->d_pad; c++) {
            local->k[(size_t)c * TD_TILE_KEYS + j] = row[c];
            v[c] = is_finite(v[c]) ? v[c] : 0;
        }
    }
}

#if TD_X86
enum { EIGHT = 8 /* keys, and channels, at a time */ };

/* A row of whole eights; what is behind its channels stays. False: something is not finite. */
TD_TARGET_AVX2 TD_INLINE bool load_row_avx2(float *to, const td_tensor *x, int64_t at)
{
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    __m256i bad = _mm256_setzero_si256();
    if (x->dtype != TANDEM_DTYPE_F16)
        td_to_floats(to, x->data, x->dtype, at, x->dim);
    for (uint32_t c = 0; c < x->dim; c += EIGHT) {
        const uint16_t *half = (const uint16_t *)x->data + at + c;
        const __m256 eight = x->dtype == TANDEM_DTYPE_F16 ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)half))
                                                          : _mm256_loadu_ps(to + c);
        bad = _mm256_or_si256(
            bad, _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(eight), exponent), exponent));
        _mm256_storeu_ps(to + c, eight);
    }
    return _mm256_testz_si256(bad, bad);
}

/* Eight channels of eight rows, as eight rows of keys. */
TD_TARGET_AVX2 TD_INLINE void transpose_avx2(const float *from, size_t stride, float *to)
{
    __m256 a[EIGHT], b[EIGHT];
    for (uint32_t i = 0; i < 4; i++) { /* rows i and i + 4 are the halves of one */
        a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + i * stride)),
                                    _mm_loadu_ps(from + (i + 4) * stride), 1);
        a[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + i * stride + 4)),
                                        _mm_loadu_ps(from + (i + 4) * stride + 4), 1);
    }
    for (uint32_t i = 0; i < EIGHT; i += 4) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
        b[i + 2] = _mm256_unpacklo_ps(a[i + 2], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_ps(a[i + 2], a[i + 3]);
    }
    for (uint32_t i = 0; i < EIGHT; i += 4)
        for (uint32_t half = 0; half < 2; half++) {
            _mm256_storeu_ps(to + (i + 2 * half) * TD_TILE_KEYS, _mm256_shuffle_ps(b[i + half], b[i + half + 2], 0x44));
            _mm256_storeu_ps(to + (i + 2 * half + 1) * TD_TILE_KEYS, _mm256_shuffle_ps(b[i + half], b[i + half + 2], 0xee));
        }
}

TD_TARGET_AVX2 static void pack_kv_avx2(const plane *of, td_fast_job *at)
{
    const td_params_attention_masked *p = of->p;
    td_local_fast *local = at->local;
    float rows[EIGHT][TD_MAX_DIM];
    for (uint32_t first = 0; first < TD_TILE_KEYS; first += EIGHT) {
        for (uint32_t i = 0; i < EIGHT; i++) {
            const int64_t key = (int64_t)at->key + first + i;
            float *v = local->v + (size_t)(first + i) * at->d_pad;
            bool finite = true;
            if (key >= of->keys || p->q.dim < at->d_pad) {
                memset(rows[i], 0, at->d_pad * sizeof(float));
                memset(v, 0, at->d_pad * sizeof *v);
            }
            if (key < of->keys) {
                const bool k_finite = load_row_avx2(rows[i], &p->k, element_of(&p->k, of->batch, of->kv_head, of->k_first + key));
                finite = load_row_avx2(v, &p->v, element_of(&p->v, of->batch, of->kv_head, of->k_first + key));
                for (uint32_t c = 0; c < at->d_pad && !finite; c++)
                    v[c] = is_finite(v[c]) ? v[c] : 0;
                finite = finite && k_finite;
            }
            local->k_scale[first + i] = finite ? 1 : NAN;
        }
        for (uint32_t c = 0; c < at->d_pad; c += EIGHT)
            transpose_avx2(&rows[0][c], TD_MAX_DIM, local->k + (size_t)c * TD_TILE_KEYS + first);
    }
}
#endif

static void pack_kv(const plane *of, td_fast_job *at)
{
#if TD_X86
    if (td_cpu_isa_level() >= TD_ISA_AVX2 && of->p->q.dim % EIGHT == 0) {
        pack_kv_avx2(of, at);
        return;
    }
#endif
    pack_kv_c(of, at);
}

/* Four rows', in base 2. Rows and keys that do not exist have none. */
static void load_bias(const plane *of, uint32_t key, uint32_t row, float bias[4][TD_TILE_KEYS])
{
    const td_params_attention_masked *p = of->p;
    const uint32_t count = of->keys - key < TD_TILE_KEYS ? (uint32_t)(of->keys - key) : TD_TILE_KEYS;
    memset(bias, 0, 4 * sizeof *bias);
    for (uint32_t i = 0; i < 4 && row + i < of->count && p->bias; i++) {
        td_to_floats(bias[i], p->bias, p->bias_dtype, td_row_at(&p->bias_at, of->batch, of->head, of->first + row + i) + key, count);
        for (uint32_t j = 0; j < count; j++)
            bias[i][j] *= TD_LOG2_E;
    }
}

/* Keys, from the first one on, that a row of the block attends to. */
static int64_t reach_of(const plane *of, uint32_t row)
{
    const td_params_attention_masked *p = of->p;
    int64_t reach = of->keys;
    if (p->position && row < of->count)
        reach = (int64_t)p->position[td_row_at(&p->position_at, of->batch, 0, of->q_first + of->first + row)] + 1;
    else if (p->causal)
        reach = (int64_t)of->first + row + of->past + 1;
    return reach < of->keys ? reach : of->keys;
}

/* The first key that it attends to: where the window of its own key begins, which may be behind the last. */
static int64_t first_of(const plane *of, uint32_t row)
{
    const td_params_attention_masked *p = of->p;
    int64_t own = (int64_t)of->first + row + of->past;
    if (!p->window || row >= of->count)
        return 0;
    if (p->position)
        own = p->position[td_row_at(&p->position_at, of->batch, 0, of->q_first + of->first + row)];
    return own - p->window + 1;
}

/* Keys of a tile before a row's window are as those with a bias of -inf. */
static void hide_keys(const plane *of, uint32_t key, uint32_t row, float bias[4][TD_TILE_KEYS])
{
    for (uint32_t i = 0; i < 4; i++) {
        const int64_t before = first_of(of, row + i) - key;
        for (uint32_t j = 0; j < TD_TILE_KEYS && (int64_t)j < before; j++)
            bias[i][j] = -INFINITY;
    }
}

/* And of a tile's. */
static int32_t limit_of(const plane *of, uint32_t key, uint32_t row)
{
    const int64_t limit = reach_of(of, row) - key;
    return limit < 0 ? 0 : limit > (int64_t)TD_TILE_KEYS ? (int32_t)TD_TILE_KEYS : (int32_t)limit;
}

static void store_rows(const plane *of, const td_fast_ops *ops, const td_fast_job *at)
{
    const td_params_attention_masked *p = of->p;
    for (uint32_t r = 0; r < of->count; r++) {
        const int64_t row = of->q_first + of->first + r;
        float l = 0, *o = at->local->o + (size_t)r * at->d_pad, m = at->local->m[r];
        for (uint32_t lane = 0; lane < 16; lane++)
            l += at->local->l[r][lane];
        l = td_fast_with_sink(l, m, at->sink);
        for (uint32_t c = 0; c < p->o.dim; c++)
            o[c] = l == 0 ? 0 : o[c] / l;
        ops->store(p->o.data, p->o.dtype, element_of(&p->o, of->batch, of->head, row), o, p->o.dim);
        if (p->lse)
            p->lse[td_row_at(&p->lse_at, of->batch, of->head, row)] = td_fast_lse(l, m, at->sink);
    }
}

static td_span span_of(const td_span *spans, int64_t batch, uint32_t all)
{
    return spans ? spans[batch] : (td_span){0, (int32_t)all};
}

/* A block's rows, `most` at most; none where its batch has fewer. */
static plane plane_of(const td_params_attention_masked *p, const td_block *block, uint32_t most)
{
    const uint32_t tiles = (p->q.rows + most - 1) / most, number = block->x / tiles;
    const int64_t batch = number / p->q.heads;
    const td_span q = span_of(p->q_spans, batch, p->q.rows), k = span_of(p->k_spans, batch, p->keys);
    const int64_t rows = q.end - q.first, keys = k.end - k.first;
    const int64_t length = p->length ? (int64_t)p->length[batch * p->length_stride] : keys;
    plane of = {.p = p, .batch = batch, .head = number % p->q.heads, .first = block->x % tiles * most};
    of.kv_head = of.head / (p->q.heads / p->k.heads);
    of.keys = length < 0 ? 0 : length > keys ? keys : length;
    of.past = (p->counts_by_span ? keys : (int64_t)p->keys) - rows;
    of.q_first = q.first;
    of.k_first = k.first;
    of.count = (int64_t)of.first >= rows ? 0 : rows - of.first < most ? (uint32_t)(rows - of.first) : most;
    return of;
}

/* Of the head, in base 2. */
static float sink_of(const plane *of)
{
    float sink = -INFINITY;
    if (of->p->sink)
        td_to_floats(&sink, of->p->sink, of->p->sink_dtype, of->head * of->p->sink_stride, 1);
    return sink * TD_LOG2_E;
}

/* All rows against all keys of the block; `codes`: those rows, where tiles are loaded from codes. False: nobody wants it any more. */
static bool add_keys(const plane *of, const td_fast_rows *codes, td_fast_job *at, const td_block *block)
{
    const td_params_attention_masked *p = of->p;
    float bias[4][TD_TILE_KEYS];
    int64_t begin = of->keys, end = 0;
    for (uint32_t row = 0; row < of->count; row++) {
        begin = first_of(of, row) < begin ? first_of(of, row) : begin;
        end = reach_of(of, row) > end ? reach_of(of, row) : end;
    }
    if (p->bias || p->window)
        at->bias = (const float(*)[TD_TILE_KEYS])bias;
    at->cap = p->softcap;
    begin = begin < 0 ? 0 : begin / TD_TILE_KEYS * TD_TILE_KEYS;
    for (at->key = (uint32_t)begin; (int64_t)at->key < end; at->key += TD_TILE_KEYS) {
        if (codes)
            td_fast_load_tile(codes, at);
        else
            pack_kv(of, at);
        for (uint32_t row = 0; row < at->rows; row += 4) {
            int32_t limit[4], some = 0;
            if (!td_block_goes_on(block))
                return false;
            for (uint32_t i = 0; i < 4; i++)
                some |= limit[i] = limit_of(of, at->key, row + i);
            if (!some)
                continue;
            if (at->bias)
                load_bias(of, at->key, row, bias);
            if (p->window)
                hide_keys(of, at->key, row, bias);
            td_fast_ops_in_use()->rows(at, row, limit);
        }
    }
    return true;
}

void td_fast_attn_masked(const void *params, const td_block *block)
{
    const td_params_attention_masked *p = params;
    const plane of = plane_of(p, block, TD_MASKED_ROWS);
    td_fast_job at = {.local = block->local, .rows = (of.count + 3) & ~3u, .d_pad = (p->q.dim + 31) / 32 * 32, .sink = sink_of(&of)};
    if (!of.count)
        return;
    pack_q(&of, &at);
    memset(at.local->o, 0, (size_t)at.rows * at.d_pad * sizeof *at.local->o);
    memset(at.local->l, 0, at.rows * sizeof at.local->l[0]);
    for (uint32_t r = 0; r < at.rows; r++)
        at.local->m[r] = -INFINITY;
    if (add_keys(&of, NULL, &at, block))
        store_rows(&of, td_fast_ops_in_use(), &at);
}

void td_fast_attn_masked_codes(const void *params, const td_block *block)
{
    const td_params_attention_masked_codes *p = params;
    const plane of = plane_of(&p->mask, block, TD_FAST_ROWS);
    const td_fast_rows rows = {.bh = (uint32_t)(of.batch * p->of.heads + of.head),
                               .bhk = (uint32_t)(of.batch * p->of.kv_heads + of.kv_head),
                               .first = of.first,
                               .count = of.count};
    if (!of.count)
        return;
    td_fast_job at = td_fast_start(&p->of, &rows, true, block->local);
    at.first = (uint32_t)of.q_first;
    at.sink = sink_of(&of);
    float own[TD_FAST_ROWS] = {0};
    for (uint32_t r = 0; r < of.count && p->of.lse_bias; r++)
        own[r] = p->of.lse_bias[(size_t)rows.bh * p->of.q_pad + of.first + r] * (p->of.scale * TD_LOG2_E);
    if (p->of.lse_bias && p->mask.softcap > 0)
        at.own = own;
    if (add_keys(&of, &rows, &at, block))
        td_fast_store(&rows, &at);
}

void td_cpu_attn_masked_keys(const void *params, const td_block *block)
{
    const td_params_attention_keys *p = params;
    const int64_t batch = block->x;
    const td_span q = span_of(p->q_spans, batch, p->rows), k = span_of(p->k_spans, batch, p->keys);
    const int64_t all = k.end - k.first, length = p->length ? (int64_t)p->length[batch * p->length_stride] : all;
    int64_t count = length < 0 ? 0 : length < all ? length : all, reach = 0;
    for (int64_t row = q.first; row < q.end && p->position; row++) {
        const int64_t own = (int64_t)p->position[td_row_at(&p->position_at, batch, 0, row)] + 1;
        reach = own > reach ? own : reach;
    }
    if (p->position && reach < count)
        count = reach;
    p->spans[batch] = (td_span){k.first, k.first + (int32_t)count};
}

void td_cpu_attn_spans(const void *params, const td_block *block)
{
    const td_params_attention_spans *p = params;
    (void)block;
    for (int i = 0; i < 2; i++) {
        const int64_t total = p->total[i], most = p->most[i];
        int64_t begin = 0;
        for (uint32_t b = 0; b <= p->batch && p->spans[i]; b++) {
            const int64_t start = p->start[i][b], rising = start > begin ? start : begin, end = rising < total ? rising : total;
            if (b)
                p->spans[i][b - 1] = (td_span){(int32_t)begin, (int32_t)(end - begin < most ? end : begin + most)};
            begin = end;
        }
    }
}

static void clear_rows(const td_params_attention_unspanned *p, uint32_t head, int64_t from, int64_t to)
{
    const size_t bytes = p->o.dtype == TANDEM_DTYPE_F32 ? 4 : 2;
    for (int64_t row = from; row < to; row++) {
        memset((char *)p->o.data + (size_t)element_of(&p->o, 0, head, row) * bytes, 0, p->o.dim * bytes);
        if (p->lse)
            p->lse[td_row_at(&p->lse_at, 0, head, row)] = -INFINITY;
    }
}

void td_cpu_attn_unspanned(const void *params, const td_block *block)
{
    const td_params_attention_unspanned *p = params;
    const uint32_t batch = block->x / p->o.heads, head = block->x % p->o.heads;
    const int64_t next = batch + 1 < p->batch ? p->spans[batch + 1].first : (int64_t)p->o.rows;
    if (!batch)
        clear_rows(p, head, 0, p->spans[0].first);
    clear_rows(p, head, p->spans[batch].end, next);
}
