/* `cache_attend` on the CPU: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A page becomes floats once for all rows of a tile, which take it by fours. All in vectors of 16
 * floats, compiled for each instruction set with the same bits: no multiply is fused with an add.
 */
#include "kernels/cache/cache.h"
#include "kernels/cpu/cpu.h"

enum { PAGE = TD_CACHE_PAGE, TILE = TD_CACHE_TILE, LANES = 16, FOUR = 4 };

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(64), aligned(4), may_alias));

typedef struct tile {
    const td_params_cache_attend *p;
    td_cache_local *local;
    unsigned char *plane; /* its head and newest page; NULL: none */
    unsigned char *pool;  /* of all planes of its head; NULL: it has pages of its own */
    const int32_t *table;
    int64_t batch, kv_head;
    uint32_t number, of_plane; /* in its plane, among those of all */
    int64_t position[TILE];    /* of each row, the last one's where it is beyond; -1: none */
    uint32_t pages;            /* that some row attends to */
} tile;

/* No function takes or returns a vector: in which registers depends on the instruction set. */
#define LOAD(from) (*(const vec *)(from))
#define STORE(to, x) (*(vec *)(to) = (x))
#define SPLAT(x) ((vec){0} + (x))
#define CHOOSE(where, a, b) ((vec)(((ivec)(a) & (where)) | ((ivec)(b) & ~(where))))

TD_INLINE float sum_of(float lanes[LANES])
{
    for (uint32_t apart = LANES / 2; apart; apart /= 2)
        for (uint32_t i = 0; i < apart; i++)
            lanes[i] += lanes[i + apart];
    return lanes[0];
}

/* 2^x for x <= 0: the nearest whole number by a magic one, a polynomial for the rest (relative
 * error 2e-7). At least 2^-126; NaN stays. */
TD_INLINE void exp2_of(float lanes[LANES])
{
    const vec least = SPLAT(-126.0f), x = CHOOSE(LOAD(lanes) < least, least, LOAD(lanes));
    const vec shifted = x + 0x1.8p23f, f = x - (shifted - 0x1.8p23f);
    vec y = SPLAT(0x1.5ec866p-10f);

    y = y * f + 0x1.3cbf6p-7f;
    y = y * f + 0x1.c6afeep-5f;
    y = y * f + 0x1.ebfa4cp-3f;
    y = y * f + 0x1.62e43p-1f;
    y = y * f + 1.0f;
    STORE(lanes, (vec)((ivec)y + ((ivec)shifted << 23)));
}

/* By how much sums shrink whose largest score was `m`, if that is `base` from now on. */
TD_INLINE float factor_of(float m, float base)
{
    float lanes[LANES];

    STORE(lanes, SPLAT(m == -INFINITY ? 0 : m - base));
    exp2_of(lanes);
    return m == -INFINITY ? 0 : lanes[0];
}

/* --- A page as floats --- */

/* E4M3, of which none is NaN here: its exponent is 120 less than a float's; below lie multiples of
 * 2^-9. */
TD_INLINE float value_of(uint32_t code)
{
    const uint32_t magnitude = code & 0x7f;
    const float tiny = (float)(int32_t)magnitude * 0x1p-9f;
    const uint32_t normal = (magnitude << 20) + (120u << 23);

    return td_float(td_select(magnitude < 8, td_bits(tiny), normal) | (code & 0x80) << 24);
}

TD_INLINE float scale_of(uint8_t e5m3)
{
    return td_from_f16((uint16_t)(e5m3 << 7));
}

TD_INLINE void unpack_k8(td_cache_local *to, const unsigned char *from, uint32_t c, float scale,
                         float least)
{
    for (uint32_t j = 0; j < PAGE; j++)
        to->k[c][j] = least + scale * (float)(int32_t)from[2 * j + c % 2];
}

TD_INLINE void unpack_k4(td_cache_local *to, const unsigned char *from, uint32_t c, float scale,
                         float least)
{
    const uint32_t *words = (const uint32_t *)(const void *)from;

    for (uint32_t j = 0; j < PAGE; j += 16)
        for (uint32_t i = 0; i < 16; i++)
            to->k[c][j + i] =
                least + scale * (float)(int32_t)(words[i] >> (c % 2 * 16 + j / 4) & 15);
}

TD_INLINE void unpack_sealed(const tile *of, const unsigned char *k)
{
    const uint32_t dim = of->p->dim, format = of->p->format;
    const unsigned char *v = k + TD_CACHE_K_BYTES(format, dim), *k_min = v + (size_t)PAGE * dim,
                        *k_scale = k_min + 2 * dim, *v_scale = k_scale + dim;
    td_cache_local *to = of->local;

    for (uint32_t c = 0; c < dim; c++) {
        const float least = td_from_f16(((const uint16_t *)(const void *)k_min)[c]);

        if (format == TANDEM_CACHE_K4V8)
            unpack_k4(to, k + (size_t)c / 2 * PAGE, c, scale_of(k_scale[c]), least);
        else
            unpack_k8(to, k + (size_t)c / 2 * 2 * PAGE, c, scale_of(k_scale[c]), least);
        to->v_scale[c] = scale_of(v_scale[c]);
    }
    for (uint32_t j = 0; j < PAGE; j += 2, v += 2 * dim)
        for (uint32_t c = 0; c < dim; c++) {
            to->v[j][c] = value_of(v[2 * c]);
            to->v[j + 1][c] = value_of(v[2 * c + 1]);
        }
}

/* One that is fp16; of keys from `count` on nothing counts, and is read as 0. */
TD_INLINE void unpack_f16(const tile *of, const unsigned char *page, uint32_t count)
{
    const uint32_t dim = of->p->dim;
    const uint16_t *k = (const uint16_t *)(const void *)page,
                   *v = k + (size_t)PAGE * dim;
    td_cache_local *to = of->local;

    for (uint32_t c = 0; c < dim; c++) {
        for (uint32_t j = 0; j < PAGE; j++)
            to->k[c][j] = td_from_f16(k[(size_t)c / 2 * PAGE * 2 + 2 * j + c % 2]);
        to->v_scale[c] = 1;
    }
    for (uint32_t j = 0; j < PAGE; j++)
        for (uint32_t c = 0; c < dim; c++)
            to->v[j][c] = j < count ? td_from_f16(v[(size_t)j / 2 * 2 * dim + 2 * c + j % 2]) : 0;
}

/* --- Four rows against a page --- */

TD_INLINE void multiply_q_k(const td_cache_local *at, uint32_t row, uint32_t dim,
                            float s[FOUR][PAGE])
{
    for (uint32_t j = 0; j < PAGE; j += LANES) {
        vec sum[FOUR] = {{0}};

        for (uint32_t c = 0; c < dim; c++) {
            const vec k = LOAD(&at->k[c][j]);

            for (uint32_t i = 0; i < FOUR; i++)
                sum[i] += at->q[row + i][c] * k;
        }
        for (uint32_t i = 0; i < FOUR; i++)
            STORE(&s[i][j], sum[i]);
    }
}

/* From dot products to P; the first `limit` keys count. Returns what earlier sums shrink by. */
TD_INLINE float soften(const tile *of, uint32_t row, uint32_t limit, float s[PAGE])
{
    static const int32_t numbers[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const ivec lanes = *(const ivec *)numbers;
    td_cache_local *at = of->local;
    const float m = at->chunk.m[row];
    vec top = SPLAT(m), sum = {0};
    ivec there[PAGE / LANES];
    float all[LANES], most = m;

    for (uint32_t j = 0; j < PAGE; j += LANES) {
        const vec x = LOAD(s + j) * of->p->scale;

        there[j / LANES] = lanes + (int32_t)j < (ivec){0} + (int32_t)limit;
        STORE(s + j, CHOOSE(there[j / LANES], x, SPLAT(-INFINITY)));
        top = CHOOSE(LOAD(s + j) > top, LOAD(s + j), top);
    }
    STORE(all, top);
    for (uint32_t i = 0; i < LANES; i++)
        most = all[i] > most ? all[i] : most;
    const float base = most == -INFINITY ? 0 : most, alpha = factor_of(m, base);
    for (uint32_t j = 0; j < PAGE; j += LANES) {
        STORE(s + j, LOAD(s + j) - base);
        exp2_of(s + j);
        STORE(s + j, CHOOSE(there[j / LANES], LOAD(s + j), (vec){0}));
        sum += LOAD(s + j);
    }
    STORE(all, sum);
    at->chunk.l[row] = at->chunk.l[row] * alpha + sum_of(all);
    at->chunk.m[row] = most;
    return alpha;
}

TD_INLINE void multiply_p_v(td_cache_local *at, uint32_t row, uint32_t dim, float s[FOUR][PAGE],
                            const float alpha[FOUR])
{
    for (uint32_t c = 0; c < dim; c += LANES) {
        vec sum[FOUR] = {{0}};

        for (uint32_t j = 0; j < PAGE; j++) {
            const vec v = LOAD(&at->v[j][c]);

            for (uint32_t i = 0; i < FOUR; i++)
                sum[i] += s[i][j] * v;
        }
        for (uint32_t i = 0; i < FOUR; i++) {
            float *o = &at->chunk.o[row + i][c];

            STORE(o, LOAD(o) * alpha[i] + sum[i] * LOAD(&at->v_scale[c]));
        }
    }
}

/* Rows that have this page as their own attend to it as fp16, those behind it as codes; to fp16 all
 * of them do. */
TD_INLINE uint32_t limit_of(const tile *of, uint32_t row, uint32_t number, bool sealed)
{
    const int64_t position = of->position[row], own = position / PAGE;

    if (position < 0)
        return 0;
    if (of->p->format == TANDEM_CACHE_F16)
        return own > number ? PAGE : own == number ? (uint32_t)(position % PAGE) + 1 : 0;
    return sealed ? (own > number ? PAGE : 0) : (own == number ? position % PAGE + 1 : 0);
}

/* NULL: nobody is to attend to it. */
TD_INLINE const unsigned char *page_of(const tile *of, uint32_t number, bool sealed)
{
    const td_params_cache_attend *p = of->p;

    if (!sealed)
        return p->format == TANDEM_CACHE_F16 ? NULL : of->plane + TD_CACHE_HEAD_BYTES;
    return of->pool ? td_cache_page_of(of->pool, of->table, number, p->slots, p->pages, p->format,
                                       p->dim)
                    : of->plane + TD_CACHE_SEALED(number, p->format, p->dim);
}

TD_INLINE void add_page(const tile *of, uint32_t number, bool sealed)
{
    const unsigned char *page = page_of(of, number, sealed);
    uint32_t limits[TILE], most = 0;
    float s[FOUR][PAGE], alpha[FOUR];

    for (uint32_t row = 0; row < TILE; row++) {
        limits[row] = limit_of(of, row, number, sealed);
        most = limits[row] > most ? limits[row] : most;
    }
    if (!most || !page)
        return;
    if (sealed && of->p->format != TANDEM_CACHE_F16)
        unpack_sealed(of, page);
    else
        unpack_f16(of, page, most);
    for (uint32_t row = 0; row < TILE; row += FOUR) {
        if (!(limits[row] | limits[row + 1] | limits[row + 2] | limits[row + 3]))
            continue;
        multiply_q_k(of->local, row, of->p->dim, s);
        for (uint32_t i = 0; i < FOUR; i++)
            alpha[i] = soften(of, row + i, limits[row + i], s[i]);
        multiply_p_v(of->local, row, of->p->dim, s, alpha);
    }
}

/* --- Chunks --- */

static void clear(td_cache_sums *sums)
{
    memset(sums, 0, sizeof *sums);
    for (uint32_t row = 0; row < TILE; row++)
        sums->m[row] = -INFINITY;
}

/* A chunk's, behind all those before it. */
TD_INLINE void fold(td_cache_sums *all, uint32_t row, const float *o, float m, float l,
                    uint32_t dim)
{
    const float most = m > all->m[row] ? m : all->m[row], base = most == -INFINITY ? 0 : most;
    const float mine = factor_of(all->m[row], base), its = factor_of(m, base);

    for (uint32_t c = 0; c < dim; c += LANES)
        STORE(&all->o[row][c], LOAD(&all->o[row][c]) * mine + LOAD(o + c) * its);
    all->l[row] = all->l[row] * mine + l * its;
    all->m[row] = most;
}

/* False: nobody wants it any more. */
TD_INLINE bool add_chunk(const tile *of, uint32_t chunk, const td_block *at)
{
    const uint32_t first = chunk * TD_CACHE_CHUNK, rest = of->pages - first,
                   count = rest < TD_CACHE_CHUNK ? rest : TD_CACHE_CHUNK;

    clear(&of->local->chunk);
    for (uint32_t number = first; number < first + count; number++) {
        if (!td_block_goes_on(at))
            return false;
        add_page(of, number, true);
        add_page(of, number, false);
    }
    return true;
}

static float *part_of(const tile *of, uint32_t chunk)
{
    return of->p->parts +
           ((size_t)of->of_plane * of->p->spans + chunk) * TILE * TD_CACHE_PART(of->p->dim);
}

TD_INLINE void leave_chunk(const tile *of, float *part)
{
    const td_cache_sums *chunk = &of->local->chunk;
    const uint32_t dim = of->p->dim;

    for (uint32_t row = 0; row < TILE; row++, part += TD_CACHE_PART(dim)) {
        memcpy(part, chunk->o[row], dim * sizeof *part);
        part[dim] = chunk->m[row];
        part[dim + 1] = chunk->l[row];
    }
}

static uint32_t head_of(const tile *of, uint32_t row)
{
    return (of->number * TILE + row) % of->p->group;
}

static uint32_t token_of(const tile *of, uint32_t row)
{
    return (of->number * TILE + row) / of->p->group;
}

static void write_rows(const tile *of)
{
    const td_params_cache_attend *p = of->p;
    td_cache_sums *all = &of->local->all;

    for (uint32_t row = 0; row < TILE && token_of(of, row) < p->rows; row++) {
        for (uint32_t c = 0; c < p->dim; c++)
            all->o[row][c] = all->l[row] == 0 ? 0 : all->o[row][c] / all->l[row];
        td_from_floats(p->o, p->o_dtype,
                       td_row_at(&p->o_at, of->batch, of->kv_head * p->group + head_of(of, row),
                                 token_of(of, row)),
                       all->o[row], p->dim);
    }
}

/* --- The block --- */

static void find_plane(tile *of)
{
    const td_params_cache_attend *p = of->p;

    of->plane = p->cache + td_row_at(&p->cache_at, p->table ? 0 : of->batch, of->kv_head, 0);
    if (!p->table)
        return;
    of->pool = of->plane;
    of->table = p->table + of->batch * p->table_stride;
    of->plane = td_cache_slot_of(of->pool, of->table, p->slots, p->format, p->dim);
}

static void find_positions(tile *of)
{
    const td_params_cache_attend *p = of->p;

    for (uint32_t row = 0; row < TILE; row++) {
        const uint32_t token = token_of(of, row);
        int64_t position = -1;

        if (token < p->rows && of->plane)
            position = p->position[of->batch * p->position_at.stride_batch +
                                   token * p->position_at.stride_row];
        position = position < p->entries ? position : p->entries - 1;
        of->position[row] = position < 0 ? -1 : position;
        if (position / PAGE + 1 > of->pages && position >= 0)
            of->pages = (uint32_t)(position / PAGE + 1);
    }
}

TD_INLINE void load_q(const tile *of)
{
    const td_params_cache_attend *p = of->p;

    memset(of->local->q, 0, sizeof of->local->q);
    for (uint32_t row = 0; row < TILE && token_of(of, row) < p->rows; row++)
        td_to_floats(of->local->q[row], p->q, TANDEM_DTYPE_F16,
                     td_row_at(&p->q_at, of->batch, of->kv_head * p->group + head_of(of, row),
                               token_of(of, row)),
                     p->dim);
}

/* Whether all chunks of the tile have been left, this one as the last. */
static bool is_last(const tile *of, uint32_t chunks)
{
    td_cache_head *head = (td_cache_head *)(void *)of->plane;
    uint32_t *ticket = &head->tickets[of->number];

    if (__atomic_fetch_add(ticket, 1, __ATOMIC_ACQ_REL) != chunks - 1)
        return false;
    __atomic_store_n(ticket, 0, __ATOMIC_RELAXED);
    return true;
}

TD_INLINE void attend_body(const void *params, const td_block *at)
{
    const td_params_cache_attend *p = params;
    const uint32_t tiles = (p->rows * p->group + TILE - 1) / TILE, dim = p->dim,
                   span = at->x % p->spans, of_plane = at->x / p->spans, plane = of_plane / tiles;
    tile of = {.p = p,
               .local = at->local,
               .batch = plane / p->kv_heads,
               .kv_head = plane % p->kv_heads,
               .number = of_plane % tiles,
               .of_plane = of_plane};
    find_plane(&of);
    find_positions(&of);
    const uint32_t chunks = (of.pages + TD_CACHE_CHUNK - 1) / TD_CACHE_CHUNK;
    td_cache_sums *all = &of.local->all, *one = &of.local->chunk;

    if (span && span >= chunks)
        return;
    load_q(&of);
    clear(all);
    for (uint32_t chunk = span; chunk < (p->spans > 1 && chunks ? span + 1 : chunks); chunk++) {
        if (!add_chunk(&of, chunk, at))
            return;
        for (uint32_t row = 0; row < TILE; row++)
            fold(all, row, one->o[row], one->m[row], one->l[row], dim);
    }
    if (p->spans > 1 && chunks > 1) {
        leave_chunk(&of, part_of(&of, span));
        if (!is_last(&of, chunks))
            return;
        clear(all);
        for (uint32_t chunk = 0; chunk < chunks; chunk++) {
            const float *part = part_of(&of, chunk);

            for (uint32_t row = 0; row < TILE; row++, part += TD_CACHE_PART(dim))
                fold(all, row, part, part[dim], part[dim + 1], dim);
        }
    }
    write_rows(&of);
}

static void attend_c(const void *params, const td_block *at)
{
    attend_body(params, at);
}
#if TD_X86
TD_TARGET_AVX2 static void attend_avx2(const void *params, const td_block *at)
{
    attend_body(params, at);
}
TD_TARGET_AVX512 static void attend_avx512(const void *params, const td_block *at)
{
    attend_body(params, at);
}
#endif

void td_cpu_cache_attend(const void *params, const td_block *at)
{
#if TD_X86
    const td_isa isa = td_cpu_isa_level();

    if (isa >= TD_ISA_AVX2) {
        (isa >= TD_ISA_AVX512 ? attend_avx512 : attend_avx2)(params, at);
        return;
    }
#endif
    attend_c(params, at);
}
