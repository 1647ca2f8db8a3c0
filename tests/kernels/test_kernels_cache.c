/* Caches of keys and values as codes: what is appended to them against the definition, attention on
 * them against float64; and the CUDA kernels on the emulator, as far as they are to have the same
 * bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/cache/cache.h"
#include "kernels/cpu/cpu.h"
#include "tests/kernels/kernels_util.h"

enum { PAGE = 64, GUARD_BYTES = 64, MOST_ROWS = 64 };

/* --- A cache, and what is appended to it --- */

typedef struct shape {
    uint32_t batch, kv_heads, group, dim, entries, format;
} shape;

typedef struct cache {
    shape of;
    uint64_t plane_bytes, bytes;
    unsigned char *planes;
    uint32_t slots, pages; /* of a pool, which has planes for heads alone; */
    int32_t *table;        /* NULL: it is none */
    uint16_t *k, *v; /* [batch][kv_heads][entries][dim], what its positions are to hold */
} cache;

static void *allocate(size_t bytes)
{
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);

    assert_non_null(memory);
    return memory;
}

/* Channels are apart from each other, and some far from 0, as those of keys are. */
static uint16_t *random_rows(const shape *of, uint64_t seed)
{
    const size_t rows = (size_t)of->batch * of->kv_heads * of->entries;
    uint16_t *to = allocate(rows * of->dim * sizeof *to);

    for (size_t i = 0; i < rows * of->dim; i++) {
        const uint32_t c = i % of->dim;

        to[i] = td_to_f16((float)(tu_normal(&seed) * (c % 7 ? 1 : 4) + (c % 11 ? 0 : 9)));
    }
    return to;
}

static cache new_cache(shape of)
{
    cache it = {.of = of, .plane_bytes = tandem_cache_bytes(of.format, of.entries, of.dim)};

    it.bytes = it.plane_bytes * of.batch * of.kv_heads;
    it.planes = allocate(it.bytes + GUARD_BYTES);
    memset(it.planes, TU_POISON, it.bytes + GUARD_BYTES);
    it.k = random_rows(&of, 1);
    it.v = random_rows(&of, 2);
    return it;
}

static uint32_t pages_of(const shape *of)
{
    return (of->entries + PAGE - 1) / PAGE;
}

static int32_t *row_of(const cache *it, uint32_t b)
{
    return it->table + (size_t)b * (1 + pages_of(&it->of));
}

/* The same as a pool with some slots and pages more than it needs, in no order. */
static cache new_pool(shape of)
{
    const uint32_t slots = of.batch + 2, pages = of.batch * pages_of(&of) + 3;
    cache it = {.of = of,
                .slots = slots,
                .pages = pages,
                .plane_bytes = tandem_cache_pool_bytes(of.format, slots, pages, of.dim)};
    uint32_t taken = 0;

    it.bytes = it.plane_bytes * of.kv_heads;
    it.planes = allocate(it.bytes + GUARD_BYTES);
    memset(it.planes, TU_POISON, it.bytes + GUARD_BYTES);
    it.k = random_rows(&of, 1);
    it.v = random_rows(&of, 2);
    it.table = allocate((size_t)of.batch * (1 + pages_of(&of)) * sizeof *it.table);
    for (uint32_t b = 0; b < of.batch; b++) {
        row_of(&it, b)[0] = (int32_t)(slots - 1 - b);
        for (uint32_t i = 0; i < pages_of(&of); i++) {
            uint32_t page = (taken++ * 7 + 3) % pages;

            if (pages % 7 == 0)
                page = pages - taken;
            row_of(&it, b)[1 + i] = (int32_t)page;
        }
    }
    return it;
}

static void free_cache(cache *it)
{
    for (int i = 0; i < GUARD_BYTES; i++)
        assert_int_equal(it->planes[it->bytes + (uint64_t)i], TU_POISON);
    free(it->planes);
    free(it->k);
    free(it->v);
    free(it->table);
}

/* NONE without a pool. */
static tandem_view view_of_table(const cache *it)
{
    return it->table ? tandem_view_dense(1, 0, TANDEM_DTYPE_I32, 1, 1, 1 + pages_of(&it->of))
                     : (tandem_view){0};
}

static tandem_view view_of_cache(const cache *it)
{
    return tandem_view_dense(1, 0, TANDEM_DTYPE_U8, it->of.kv_heads, 1, (uint32_t)it->plane_bytes);
}

/* Where something is computed: on the CPU where there is no module. */
typedef struct place {
    em_module *on;
    uint32_t threads;
    uint32_t multiprocessors; /* 0: as many as that GPU has */
} place;
static const place cpu = {.threads = 2};

static void run(const place *where, const td_operation *operation, const tandem_operands *op,
                const uint64_t *views)
{
    td_target target = td_target_for_sm(where->on ? where->on->sm : 0);
    char why[300] = "";
    TU_PLAN(plan);

    target.twin = true;
    if (where->multiprocessors)
        target.multiprocessors = where->multiprocessors;
    if (operation->check(op, why, sizeof why) ||
        operation->plan(op, &target, &plan, why, sizeof why))
        fail_msg("%s", why);
    void *scratch = allocate(plan.scratch_bytes);
    memset(scratch, TU_POISON, plan.scratch_bytes);
    for (uint32_t i = 0; where->on && i < plan.record_count; i++)
        em_launch_record(where->on, &plan.records[i], views, (uintptr_t)scratch, i);
    if (!where->on)
        assert_int_equal(td_exec_cpu_run(&plan, views, (uintptr_t)scratch, where->threads, NULL),
                         TANDEM_OK);
    free(scratch);
}

/* Rows of every batch from its first position on, of what these are to hold; counts below `rows` leave
 * padding behind. */
static void append(const place *where, const cache *it, const uint32_t *first,
                   const uint32_t *counts, uint32_t rows)
{
    const shape *s = &it->of;
    const size_t plane = (size_t)rows * s->dim, all = plane * s->batch * s->kv_heads;
    uint16_t *k = allocate(all * sizeof *k), *v = allocate(all * sizeof *v);
    int32_t *position = allocate((size_t)rows * s->batch * sizeof *position);
    tandem_operands op = {
        .cache_append = {.k = tandem_view_dense(1, 0, TANDEM_DTYPE_F16, s->kv_heads, rows, s->dim),
                         .position = tandem_view_dense(1, 0, TANDEM_DTYPE_I32, 1, rows, 1),
                         .cache = view_of_cache(it),
                         .batch = s->batch,
                         .kv_heads = s->kv_heads,
                         .rows = rows,
                         .head_dim = s->dim,
                         .entries = s->entries,
                         .format = s->format,
                         .table = view_of_table(it),
                         .slots = it->slots,
                         .pages = it->pages}};

    op.cache_append.v = op.cache_append.k;
    memset(k, TU_POISON, all * sizeof *k);
    memset(v, TU_POISON, all * sizeof *v);
    for (uint32_t b = 0; b < s->batch; b++)
        for (uint32_t r = 0; r < rows; r++) {
            const bool there = r < counts[b];

            position[b * rows + r] = there ? (int32_t)(first[b] + r) : -1;
            for (uint32_t h = 0; h < s->kv_heads && there; h++) {
                const size_t to = (b * s->kv_heads + h) * plane + (size_t)r * s->dim,
                             from = ((size_t)(b * s->kv_heads + h) * s->entries + first[b] + r) *
                                    s->dim;

                memcpy(k + to, it->k + from, s->dim * sizeof *k);
                memcpy(v + to, it->v + from, s->dim * sizeof *v);
            }
        }
    run(where, &td_operation_cache_append, &op,
        (const uint64_t[TD_MAX_VIEWS]){(uintptr_t)k, (uintptr_t)v, (uintptr_t)position,
                                       (uintptr_t)it->planes, (uintptr_t)it->table});
    free(k);
    free(v);
    free(position);
}

/* Positions from `from` to `end` of every batch, so many at a time at most. */
static void fill(const place *where, const cache *it, uint32_t from, uint32_t end, uint32_t most)
{
    uint32_t first[8], counts[8];

    for (uint32_t at = from, n; at < end; at += n) {
        n = PAGE - at % PAGE < most ? PAGE - at % PAGE : most;
        n = end - at < n ? end - at : n;
        for (uint32_t b = 0; b < it->of.batch; b++) {
            first[b] = at;
            counts[b] = n;
        }
        append(where, it, first, counts, n);
    }
}

/* --- What a cache holds, read as types.h and params.h say --- */

static const unsigned char *plane_of(const cache *it, uint32_t b, uint32_t h)
{
    return it->planes + ((it->table ? 0 : b) * it->of.kv_heads + h) * it->plane_bytes;
}

/* A page of a sequence's: as it is sealed, or the newest. */
static const unsigned char *page_of(const cache *it, uint32_t b, uint32_t h, uint32_t page,
                                    bool sealed)
{
    const uint32_t d = it->of.dim, page_bytes = it->of.format == TANDEM_CACHE_F16    ? 256 * d
                                                : it->of.format == TANDEM_CACHE_K4V8 ? 100 * d
                                                                                     : 132 * d;
    const uint32_t newest = it->of.format == TANDEM_CACHE_F16 ? 0 : 256 * d;
    const unsigned char *plane = plane_of(it, b, h);

    if (!it->table)
        return plane + 512 + (sealed ? newest + page * page_bytes : 0);
    return sealed || !newest ? plane + it->slots * (512 + newest) +
                                   (uint32_t)row_of(it, b)[1 + page] * page_bytes
                             : plane + (uint32_t)row_of(it, b)[0] * (512 + newest) + 512;
}

static double half_at(const unsigned char *from, size_t i)
{
    uint16_t half;

    memcpy(&half, from + 2 * i, sizeof half);
    return (double)td_from_f16(half);
}

static double e5m3(unsigned char byte)
{
    return byte / 8 ? ldexp(1 + byte % 8 / 8.0, byte / 8 - 15) : ldexp(byte % 8, -17);
}

static double e4m3(unsigned char byte)
{
    const int magnitude = byte & 127;
    const double x = magnitude / 8 ? ldexp(1 + magnitude % 8 / 8.0, magnitude / 8 - 7)
                                   : ldexp(magnitude % 8, -9);

    return byte & 128 ? -x : x;
}

/* Channel c of a key and a value, of a sealed page or of the newest one; how far a key may be off. */
typedef struct held {
    double k, v, k_step;
} held;

static held held_at(const cache *it, uint32_t b, uint32_t h, uint32_t position, uint32_t c,
                    bool sealed)
{
    const uint32_t d = it->of.dim, j = position % PAGE;
    const bool is_k4 = it->of.format == TANDEM_CACHE_K4V8;
    const size_t k_at = ((size_t)c / 2 * PAGE + j) * 2 + c % 2,
                 v_at = ((size_t)j / 2 * d + c) * 2 + j % 2, k_bytes = (is_k4 ? 32 : 64) * d;
    const unsigned char *k = page_of(it, b, h, position / PAGE, sealed), *v = k + k_bytes, *k_min = v + 64 * d, *k_scale = k_min + 2 * d, *v_scale = k_scale + d;
    uint32_t word, code;

    if (!sealed || it->of.format == TANDEM_CACHE_F16)
        return (held){half_at(k, k_at), half_at(k + 128 * d, v_at), 0};
    memcpy(&word, k + (c / 2 * 16 + j % 16) * 4, sizeof word);
    code = is_k4 ? word >> (c % 2 * 16 + j / 16 * 4) & 15 : k[k_at];
    return (held){half_at(k_min, c) + code * e5m3(k_scale[c]), e4m3(v[v_at]) * e5m3(v_scale[c]),
                  e5m3(k_scale[c])};
}

/* Positions up to `end` hold what they are to, as near as codes can; the newest page exactly. */
static void check_held(const cache *it, uint32_t end)
{
    const shape *s = &it->of;

    for (uint32_t plane = 0; plane < s->batch * s->kv_heads; plane++)
        for (uint32_t position = 0; position < end; position++)
            for (uint32_t c = 0; c < s->dim; c++) {
                const bool sealed = position / PAGE < (end - 1) / PAGE;
                const held have = held_at(it, plane / s->kv_heads, plane % s->kv_heads, position,
                                          c, sealed);
                const size_t at = ((size_t)plane * s->entries + position) * s->dim + c;
                const double k = (double)td_from_f16(it->k[at]), v = (double)td_from_f16(it->v[at]);

                assert_true(fabs(have.k - k) <= have.k_step * 0.501);
                assert_true(fabs(have.v - v) <= (sealed ? fabs(v) / 15 + 1e-3 : 0));
            }
}

/* --- Attention on it --- */

typedef struct query {
    const cache *on;
    uint32_t rows;
    int32_t *position; /* [batch][rows] */
    uint16_t *q;       /* [batch][heads][rows][dim] */
    float *o;
} query;

static uint32_t heads_of(const shape *s)
{
    return s->kv_heads * s->group;
}

/* Rows of every batch that end with position `last`. */
static query ask(const cache *on, uint32_t rows, uint32_t last)
{
    const shape *s = &on->of;
    const size_t all = (size_t)s->batch * heads_of(s) * rows * s->dim;
    query it = {.on = on,
                .rows = rows,
                .position = allocate((size_t)s->batch * rows * sizeof *it.position),
                .q = allocate(all * sizeof *it.q),
                .o = allocate(all * sizeof *it.o)};

    for (uint32_t i = 0; i < s->batch * rows; i++)
        it.position[i] = (int32_t)(last + 1 - rows + i % rows);
    for (size_t i = 0; i < all; i++) { /* a row has the same whichever others there are */
        const size_t row = i / s->dim;
        uint64_t seed = 77 + (row / rows) * 1000003 + (last + 1 - rows + row % rows) * 331 + i % s->dim;

        it.q[i] = td_to_f16((float)tu_normal(&seed) * 0.7f);
    }
    memset(it.o, TU_POISON, all * sizeof *it.o);
    return it;
}

static void free_query(query *it)
{
    free(it->position);
    free(it->q);
    free(it->o);
}

static tandem_operands operands_of(const query *it)
{
    const shape *s = &it->on->of;
    tandem_operands op = {
        .cache_attention = {
            .q = tandem_view_dense(1, 0, TANDEM_DTYPE_F16, heads_of(s), it->rows, s->dim),
            .position = tandem_view_dense(1, 0, TANDEM_DTYPE_I32, 1, it->rows, 1),
            .cache = view_of_cache(it->on),
            .o = tandem_view_dense(1, 0, TANDEM_DTYPE_F32, heads_of(s), it->rows, s->dim),
            .batch = s->batch,
            .heads = heads_of(s),
            .kv_heads = s->kv_heads,
            .rows = it->rows,
            .head_dim = s->dim,
            .entries = s->entries,
            .format = s->format,
            .table = view_of_table(it->on),
            .slots = it->on->slots,
            .pages = it->on->pages}};

    return op;
}

static void attend(const place *where, const query *it)
{
    const tandem_operands op = operands_of(it);

    run(where, &td_operation_cache_attention, &op,
        (const uint64_t[TD_MAX_VIEWS]){(uintptr_t)it->q, (uintptr_t)it->position,
                                       (uintptr_t)it->on->planes, (uintptr_t)it->o,
                                       (uintptr_t)it->on->table});
}

/* One row of one head, in float64, of what the cache holds. */
static void exact(const query *it, uint32_t b, uint32_t h, uint32_t r, double *o)
{
    const shape *s = &it->on->of;
    const uint16_t *q = it->q + (((size_t)b * heads_of(s) + h) * it->rows + r) * s->dim;
    const int32_t last = it->position[b * it->rows + r];
    double *p = allocate((size_t)(last + 1) * sizeof *p), sum = 0, most = -INFINITY;

    for (int32_t j = 0; j <= last; j++) {
        p[j] = 0;
        for (uint32_t c = 0; c < s->dim; c++)
            p[j] += (double)td_from_f16(q[c]) *
                    held_at(it->on, b, h / s->group, (uint32_t)j, c, j / PAGE < last / PAGE).k;
        p[j] /= sqrt(s->dim);
        most = fmax(most, p[j]);
    }
    memset(o, 0, s->dim * sizeof *o);
    for (int32_t j = 0; j <= last; j++) {
        p[j] = exp(p[j] - most);
        sum += p[j];
        for (uint32_t c = 0; c < s->dim; c++)
            o[c] += p[j] *
                    held_at(it->on, b, h / s->group, (uint32_t)j, c, j / PAGE < last / PAGE).v;
    }
    for (uint32_t c = 0; c < s->dim; c++)
        o[c] /= sum;
    free(p);
}

/* All rows; returns by how much the worst is off. */
static double error_of(const query *it)
{
    const shape *s = &it->on->of;
    double o[TD_CACHE_MOST_DIM], worst = 0;

    for (uint32_t b = 0; b < s->batch; b++)
        for (uint32_t h = 0; h < heads_of(s); h++)
            for (uint32_t r = 0; r < it->rows; r++) {
                const float *got =
                    it->o + (((size_t)b * heads_of(s) + h) * it->rows + r) * s->dim;

                exact(it, b, h, r, o);
                for (uint32_t c = 0; c < s->dim; c++)
                    worst = fmax(worst, fabs((double)got[c] - o[c]) / (1 + fabs(o[c])));
            }
    return worst;
}

static const shape shapes[] = {
    {.batch = 1, .kv_heads = 3, .group = 3, .dim = 64, .entries = 700, .format = 1},
    {.batch = 2, .kv_heads = 2, .group = 4, .dim = 128, .entries = 330, .format = 2},
    {.batch = 3, .kv_heads = 1, .group = 16, .dim = 64, .entries = 150, .format = 2},
    {.batch = 1, .kv_heads = 2, .group = 1, .dim = 128, .entries = 64, .format = 1}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* --- Appending --- */

/* However many rows come at once a cache has the same bits, and they are what they are to be. */
static void test_append(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        cache one = new_cache(shapes[i]), other = new_cache(shapes[i]);

        for (uint32_t end = 1, last = 0; last < shapes[i].entries; last = end, end += 61) {
            end = end < shapes[i].entries ? end : shapes[i].entries;
            fill(&cpu, &one, last, end, MOST_ROWS);
            fill(&cpu, &other, last, end, 1 + end % 5);
            check_held(&one, end);
            assert_memory_equal(one.planes, other.planes, one.bytes);
        }
        free_cache(&one);
        free_cache(&other);
    }
}

/* Each batch at a position of its own, and some with nothing. */
static void test_append_apart(void **state)
{
    const shape of = {.batch = 3, .kv_heads = 2, .group = 1, .dim = 64, .entries = 200, .format = 1};
    cache both = new_cache(of), alone = new_cache(of);
    uint32_t first[3] = {0}, counts[3];

    (void)state;
    for (uint32_t step = 0; first[0] < of.entries; step++) {
        for (uint32_t b = 0; b < 3; b++) {
            const uint32_t rest = PAGE - first[b] % PAGE, left = of.entries - first[b];

            counts[b] = (step * (b + 3)) % 13;
            counts[b] = counts[b] < rest ? counts[b] : rest;
            counts[b] = counts[b] < left ? counts[b] : left;
        }
        append(&cpu, &both, first, counts, 12);
        for (uint32_t b = 0; b < 3; b++) {
            const uint32_t mine[3] = {b == 0 ? counts[0] : 0, b == 1 ? counts[1] : 0,
                                      b == 2 ? counts[2] : 0};

            append(&cpu, &alone, first, mine, 12);
            first[b] += counts[b];
        }
    }
    assert_memory_equal(both.planes, alone.planes, both.bytes);
    free_cache(&both);
    free_cache(&alone);
}

/* A sequence that goes back into a page that was sealed: what is before is as its codes have it. */
static void test_goes_back(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        cache it = new_cache(shapes[i]);

        fill(&cpu, &it, 0, 200, MOST_ROWS);
        fill(&cpu, &it, 70, 71, 1);
        for (uint32_t position = 0; position < 71; position++)
            for (uint32_t c = 0; c < it.of.dim; c++) {
                const size_t at = (size_t)position * it.of.dim + c;
                const held have = held_at(&it, 0, 0, position, c, position < 64);
                const double step = held_at(&it, 0, 0, position, c, true).k_step;

                assert_true(fabs(have.k - (double)td_from_f16(it.k[at])) <=
                            (position == 70 ? 0 : 0.51 * step + 0.01));
            }
        query q = ask(&it, 1, 70);
        attend(&cpu, &q);
        assert_true(error_of(&q) <= 1e-4);
        free_query(&q);
        fill(&cpu, &it, 71, 200, MOST_ROWS);
        q = ask(&it, 3, 199);
        attend(&cpu, &q);
        assert_true(error_of(&q) <= 1e-4);
        free_query(&q);
        free_cache(&it);
    }
}

/* --- Attending --- */

static void test_attend(void **state)
{
    static const uint32_t lasts[] = {0, 1, 63, 64, 100, 149, 255, 256, 329, 600, 699};
    static const char *const isas[] = {"c", "avx2", "avx512-vnni"};

    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        cache it = new_cache(shapes[i]);
        double worst = 0;

        for (size_t n = 0, done = 0; n < sizeof lasts / sizeof *lasts; n++) {
            const uint32_t last = lasts[n], most = last % PAGE + 1;

            if (last >= it.of.entries)
                continue;
            fill(&cpu, &it, (uint32_t)done, last + 1, MOST_ROWS);
            done = last + 1;
            query q = ask(&it, most < 5 ? most : 5, last), one = ask(&it, 1, last);
            attend(&cpu, &q);
            worst = fmax(worst, error_of(&q));
            for (size_t isa = 0; isa < 3; isa++) { /* the same bits, and alone */
                if (!td_cpu_isa_force(isas[isa]))
                    continue;
                attend(&(place){.threads = 1 + (uint32_t)isa}, &one);
                for (uint32_t plane = 0; plane < it.of.batch * heads_of(&it.of); plane++)
                    assert_memory_equal(one.o + plane * it.of.dim,
                                        q.o + ((plane + 1) * q.rows - 1) * it.of.dim,
                                        it.of.dim * sizeof *one.o);
            }
            td_cpu_isa_force(NULL);
            free_query(&q);
            free_query(&one);
        }
        print_message("shape %d: off by %.1e at most\n", i, worst);
        assert_true(worst <= 2e-5);
        free_cache(&it);
    }
}

/* A whole page of rows at once, in one block or in many, has the bits of each row alone. */
static void test_many_rows(void **state)
{
    cache it = new_cache(shapes[0]);

    (void)state;
    fill(&cpu, &it, 0, 640, MOST_ROWS);
    query all = ask(&it, 64, 639); /* more than 32 tiles: a block has all of a tile's chunks */
    attend(&cpu, &all);
    for (uint32_t r = 0; r < 64; r += 9) {
        query one = ask(&it, 1, 576 + r);
        attend(&cpu, &one);
        for (uint32_t h = 0; h < heads_of(&it.of); h++)
            assert_memory_equal(one.o + h * it.of.dim, all.o + (h * 64 + r) * it.of.dim,
                                it.of.dim * sizeof *one.o);
        free_query(&one);
    }
    free_query(&all);
    free_cache(&it);
}

/* Rows at `wild` positions, [planes][rows][dim]: numbers all, and of no position 0. */
static void check_wild(const float *o, uint32_t planes, const int32_t *wild, uint32_t rows, uint32_t dim)
{
    for (uint32_t plane = 0; plane < planes; plane++)
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t c = 0; c < dim; c++, o++) {
                assert_true(isfinite(*o));
                assert_true(wild[r] >= 0 || *o == 0);
            }
}

/* Positions that nobody should give: nothing outside is read or written, and no positions have no
 * sum. What was left undone of a call that was given up is forgotten by the next append. */
static void test_wild_positions(void **state)
{
    static const int32_t wild[] = {-1, INT32_MIN, INT32_MAX, 700, 699, 0, 64, 63, 333, 5};
    cache it = new_cache(shapes[0]);
    query q = ask(&it, 10, 9);

    (void)state;
    fill(&cpu, &it, 0, 700, MOST_ROWS);
    memcpy(q.position, wild, sizeof wild);
    ((td_cache_head *)(void *)it.planes)->tickets[0] = 1;
    fill(&cpu, &it, 699, 700, 1);
    attend(&cpu, &q);
    check_wild(q.o, heads_of(&it.of), wild, 10, it.of.dim);
    for (uint32_t i = 0; i < TD_CACHE_TICKETS; i++)
        assert_int_equal(((td_cache_head *)(void *)it.planes)->tickets[i], 0);
    free_query(&q);
    free_cache(&it);
}

/* --- Pools --- */

static const shape pooled[] = {
    {.batch = 3, .kv_heads = 2, .group = 3, .dim = 64, .entries = 400, .format = 1},
    {.batch = 2, .kv_heads = 1, .group = 4, .dim = 128, .entries = 330, .format = 2},
    {.batch = 2, .kv_heads = 2, .group = 2, .dim = 64, .entries = 333, .format = 0},
    {.batch = 2, .kv_heads = 1, .group = 8, .dim = 128, .entries = 130, .format = 0}};
enum { POOLED = sizeof pooled / sizeof *pooled };

/* Sequences of a pool are what each would be by itself: to the bit where there are such caches. */
static void test_pools(void **state)
{
    (void)state;
    for (int i = 0; i < POOLED; i++) {
        const shape of = pooled[i];
        cache pool = new_pool(of);
        double worst = 0;

        for (uint32_t last = 0, done = 0; last < of.entries; last += 1 + last / 2) {
            fill(&cpu, &pool, done, last + 1, 1 + last % MOST_ROWS);
            done = last + 1;
            check_held(&pool, done);
            query q = ask(&pool, 1 + last % 2, last);
            attend(&cpu, &q);
            worst = fmax(worst, error_of(&q));
            if (of.format != TANDEM_CACHE_F16) {
                cache alone = new_cache(of);

                fill(&cpu, &alone, 0, done, MOST_ROWS);
                query one = ask(&alone, q.rows, last);
                attend(&cpu, &one);
                assert_memory_equal(one.o, q.o, sizeof *q.o * of.batch * heads_of(&of) * q.rows * of.dim);
                free_query(&one);
                free_cache(&alone);
            }
            free_query(&q);
        }
        print_message("pool %d: off by %.1e at most\n", i, worst);
        assert_true(worst <= 2e-5);
        free_cache(&pool);
    }
}

/* Two sequences that begin alike have those pages once. */
static void test_shared_pages(void **state)
{
    (void)state;
    for (int i = 0; i < POOLED; i++) {
        const shape of = pooled[i];
        cache pool = new_pool(of);
        const size_t sequence = (size_t)of.kv_heads * of.entries * of.dim;
        const uint32_t first[3] = {0}, one[3] = {PAGE};

        for (uint32_t h = 0; h < of.kv_heads; h++) {
            const size_t at = (size_t)h * of.entries * of.dim;

            memcpy(pool.k + sequence + at, pool.k + at, (size_t)PAGE * of.dim * sizeof *pool.k);
            memcpy(pool.v + sequence + at, pool.v + at, (size_t)PAGE * of.dim * sizeof *pool.v);
        }
        row_of(&pool, 1)[1] = row_of(&pool, 0)[1];
        append(&cpu, &pool, first, one, PAGE); /* of the first sequence alone */
        fill(&cpu, &pool, PAGE, 130, MOST_ROWS);
        query q = ask(&pool, 2, 129);
        memset(q.position + 4, 0xff, (of.batch - 2) * 2 * sizeof *q.position);
        attend(&cpu, &q);
        for (uint32_t b = 0; b < 2; b++)
            for (uint32_t h = 0; h < heads_of(&of); h++)
                for (uint32_t r = 0; r < 2; r++) {
                    double o[TD_CACHE_MOST_DIM];

                    exact(&q, b, h, r, o);
                    for (uint32_t c = 0; c < of.dim; c++)
                        assert_true(fabs((double)q.o[((b * heads_of(&of) + h) * 2 + r) * of.dim + c] - o[c]) <=
                                    2e-5 * (1 + fabs(o[c])));
                }
        free_query(&q);
        free_cache(&pool);
    }
}

/* Tables that nobody should give: no sequence is touched that they do not name. */
static void wild_tables(const place *where)
{
    static const int32_t wild[] = {-1, INT32_MIN, INT32_MAX, 1000000};

    for (int i = 0; i < POOLED; i++) {
        cache pool = new_pool(pooled[i]);
        const size_t bytes = (size_t)heads_of(&pool.of) * pool.of.dim;

        fill(&cpu, &pool, 0, 130, MOST_ROWS);
        unsigned char *before = memcpy(allocate(pool.bytes), pool.planes, pool.bytes);
        for (size_t w = 0; w < sizeof wild / sizeof *wild; w++) {
            for (uint32_t b = 0; b < pool.of.batch; b++)
                row_of(&pool, b)[0] = wild[w];
            fill(where, &pool, 64, 128, MOST_ROWS);
            assert_memory_equal(before, pool.planes, pool.bytes);
            query q = ask(&pool, 1, 129);
            attend(where, &q);
            for (size_t c = 0; c < bytes * pool.of.batch; c++)
                assert_true(q.o[c] == 0);
            free_query(&q);
            for (uint32_t b = 0; b < pool.of.batch; b++) {
                row_of(&pool, b)[0] = (int32_t)b;
                for (uint32_t page = 0; page < pages_of(&pool.of); page++)
                    row_of(&pool, b)[1 + page] = wild[w];
            }
            fill(where, &pool, 64, 128, MOST_ROWS);
            fill(where, &pool, 128, 130, MOST_ROWS);
            q = ask(&pool, 1, 129);
            attend(where, &q);
            for (size_t c = 0; c < bytes * pool.of.batch; c++)
                assert_true(isfinite(q.o[c]) && (pool.of.format || q.o[c] == 0));
            free_query(&q);
            memcpy(pool.planes, before, pool.bytes);
        }
        free(before);
        free_cache(&pool);
    }
}

static void test_wild_tables(void **state)
{
    (void)state;
    wild_tables(&cpu);
}

/* --- On GPUs --- */

/* An emulated one; multiprocessors as many as it has, or so few that a block has all chunks. */
static place on(size_t module, uint32_t multiprocessors)
{
    return (place){.on = &em_modules[module], .multiprocessors = multiprocessors};
}

/* What is appended has the CPU's bits, as has what is unsealed. */
static void test_append_on_gpus(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++)
        for (size_t module = 0; module < EM_MODULES; module++) {
            const uint32_t end = shapes[i].entries < 140 ? shapes[i].entries : 140;
            const place gpu = on(module, 0);
            cache want = new_cache(shapes[i]), got = new_cache(shapes[i]);

            fill(&cpu, &want, 0, end, MOST_ROWS);
            fill(&gpu, &got, 0, end, 1 + 13 * (uint32_t)module);
            assert_memory_equal(want.planes, got.planes, want.bytes);
            fill(&cpu, &want, end - 20, end, MOST_ROWS);
            fill(&gpu, &got, end - 20, end, 7);
            if (end > 100) {
                fill(&cpu, &want, 33, 64, MOST_ROWS);
                fill(&gpu, &got, 33, 64, 64);
            }
            assert_memory_equal(want.planes, got.planes, want.bytes);
            free_cache(&want);
            free_cache(&got);
        }
}

/* Sums have the same bits on every GPU, of one chunk a block as of all of them, and of each row alone;
 * P is rounded to fp16. */
static void test_attend_on_gpus(void **state)
{
    static const uint32_t lasts[] = {0, 63, 64, 149, 329, 600};

    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        cache it = new_cache(shapes[i]);
        double worst = 0;

        for (size_t n = 0, done = 0; n < sizeof lasts / sizeof *lasts; n++) {
            const uint32_t last = lasts[n], most = last % PAGE + 1;

            if (last >= it.of.entries)
                continue;
            fill(&cpu, &it, (uint32_t)done, last + 1, MOST_ROWS);
            done = last + 1;
            query want = ask(&it, most < 3 ? most : 3, last), one = ask(&it, 1, last);
            attend(&(place){.on = &em_modules[n % EM_MODULES]}, &want);
            worst = fmax(worst, error_of(&want));
            for (size_t module = 0; module < EM_MODULES; module++) {
                query got = ask(&it, want.rows, last);
                const size_t bytes =
                    sizeof *got.o * it.of.batch * heads_of(&it.of) * got.rows * it.of.dim;
                const place gpu = on(module, module % 2 ? 1 : 132);

                attend(&gpu, &got);
                assert_memory_equal(want.o, got.o, bytes);
                free_query(&got);
            }
            attend(&(place){.on = &em_modules[(n + 1) % EM_MODULES]}, &one);
            for (uint32_t plane = 0; plane < it.of.batch * heads_of(&it.of); plane++)
                assert_memory_equal(one.o + plane * it.of.dim,
                                    want.o + ((plane + 1) * want.rows - 1) * it.of.dim,
                                    it.of.dim * sizeof *one.o);
            free_query(&want);
            free_query(&one);
        }
        for (uint32_t t = 0; t < TD_CACHE_TICKETS; t++)
            assert_int_equal(((td_cache_head *)(void *)it.planes)->tickets[t], 0);
        print_message("shape %d: off by %.1e at most\n", i, worst);
        assert_true(worst <= 2e-3);
        free_cache(&it);
    }
}

/* Positions that nobody should give; what is not finite in a page is seen by who attends to it. */
static void test_wild_on_gpus(void **state)
{
    static const int32_t wild[] = {-1, INT32_MIN, INT32_MAX, 330, 329, 0, 64, 63, 200, 5};
    cache it = new_cache(shapes[1]);
    query q = ask(&it, 10, 9);

    (void)state;
    fill(&cpu, &it, 0, 330, MOST_ROWS);
    memcpy(q.position, wild, sizeof wild);
    memcpy(q.position + 10, wild, sizeof wild);
    for (size_t module = 0; module < EM_MODULES; module++) {
        const place gpu = on(module, 132);

        attend(&gpu, &q);
        check_wild(q.o, 2 * heads_of(&it.of), wild, 10, it.of.dim);
    }
    it.k[100 * it.of.dim + 3] = 0x7e00;
    fill(&cpu, &it, 64, 128, MOST_ROWS);
    fill(&cpu, &it, 320, 330, MOST_ROWS);
    free_query(&q);
    q = ask(&it, 2, 329);
    for (size_t module = 0; module <= EM_MODULES; module++) {
        const place gpu = on(module % EM_MODULES, 1);

        attend(module < EM_MODULES ? &gpu : &cpu, &q);
        assert_true(isnan(q.o[0]) && isfinite(q.o[heads_of(&it.of) / 2 * 2 * it.of.dim]));
    }
    free_query(&q);
    free_cache(&it);
}

/* Pools on GPUs: appended to with the CPU's bits, attended to with those of each other. */
static void test_pools_on_gpus(void **state)
{
    (void)state;
    for (int i = 0; i < POOLED; i++) {
        cache want = new_pool(pooled[i]);
        const uint32_t end = 130;

        fill(&cpu, &want, 0, end, MOST_ROWS);
        query q = ask(&want, 2, end - 1);
        attend(&(place){.on = &em_modules[0]}, &q);
        assert_true(error_of(&q) <= 2e-3);
        for (size_t module = 0; module < EM_MODULES; module++) {
            const place gpu = on(module, module % 2 ? 1 : 132);
            cache got = new_pool(pooled[i]);

            fill(&gpu, &got, 0, end, 1 + 13 * (uint32_t)module);
            assert_memory_equal(want.planes, got.planes, want.bytes);
            query other = ask(&got, 2, end - 1);
            attend(&gpu, &other);
            assert_memory_equal(q.o, other.o,
                                sizeof *q.o * got.of.batch * heads_of(&got.of) * 2 * got.of.dim);
            free_query(&other);
            free_cache(&got);
        }
        free_query(&q);
        free_cache(&want);
    }
    wild_tables(&(place){.on = &em_modules[0]});
}

/* --- What it takes, and what is refused --- */

static void test_bytes(void **state)
{
    static const double most[] = {[TANDEM_CACHE_K8V8] = 0.53, [TANDEM_CACHE_K4V8] = 0.41};

    (void)state;
    for (uint32_t format = 1; format <= 2; format++)
        for (uint32_t dim = 64; dim <= 128; dim *= 2) {
            const uint64_t bytes = tandem_cache_bytes(format, 8192, dim);

            assert_true((double)bytes <= most[format] * 4 * 8192 * dim);
            assert_int_equal(bytes, TD_CACHE_SEALED(127, format, dim));
        }
    assert_true(tandem_cache_bytes(0, 64, 64) == UINT64_MAX);
    assert_true(tandem_cache_bytes(3, 64, 64) == UINT64_MAX);
    assert_true(tandem_cache_bytes(1, 0, 64) == UINT64_MAX);
    assert_true(tandem_cache_bytes(1, 64, UINT32_MAX) == UINT64_MAX);
}

static void test_refusals(void **state)
{
    cache it = new_cache(shapes[0]);
    query q = ask(&it, 2, 10);
    tandem_operands attention = operands_of(&q), append_op = {
        .cache_append = {.k = tandem_view_dense(1, 0, TANDEM_DTYPE_F16, 3, 2, 64),
                         .v = tandem_view_dense(1, 0, TANDEM_DTYPE_F16, 3, 2, 64),
                         .position = tandem_view_dense(1, 0, TANDEM_DTYPE_I32, 1, 2, 1),
                         .cache = view_of_cache(&it),
                         .batch = 1,
                         .kv_heads = 3,
                         .rows = 2,
                         .head_dim = 64,
                         .entries = 700,
                         .format = 1}};
    char why[300] = "";

    (void)state;
    assert_int_equal(td_operation_cache_append.check(&append_op, why, sizeof why), TANDEM_OK);
    assert_int_equal(td_operation_cache_attention.check(&attention, why, sizeof why), TANDEM_OK);
#define REFUSES(operation, from, member, text, ...)                                                \
    do {                                                                                           \
        tandem_operands op = from;                                                                 \
        tandem_##member *a = &op.member;                                                           \
        __VA_ARGS__;                                                                               \
        ku_refuses(&operation, &op, text);                                                         \
    } while (0)
#define APPEND(text, ...) \
    REFUSES(td_operation_cache_append, append_op, cache_append, "cache_append." text, __VA_ARGS__)
#define ATTENTION(text, ...)                                                  \
    REFUSES(td_operation_cache_attention, attention, cache_attention, \
            "cache_attention." text, __VA_ARGS__)
    APPEND("kv_heads is 0", a->kv_heads = 0);
    APPEND("rows is 65; it must be at most 64", a->rows = 65);
    APPEND("format is 0; it must be 1 (k8v8) or 2 (k4v8), or with a table 0 (f16)", a->format = 0);
    APPEND("slots, pages are 2, 0; without a table both must be 0", a->slots = 2);
#define TABLE tandem_view_dense(1, 0, TANDEM_DTYPE_I32, 1, 1, 12)
    APPEND("pages is 0; it must be at least 1", a->table = TABLE, a->slots = 2);
    APPEND("slots, pages are 4, 4000000; a pool has at most", a->table = TABLE, a->slots = 4,
           a->pages = 4000000);
    APPEND("table.dtype is 1; it must be 6 (i32)", a->table = TABLE,
           a->table.dtype = TANDEM_DTYPE_F16, a->slots = 2, a->pages = 2);
    ATTENTION("slots is 0; it must be at least 1", a->table = TABLE);
    APPEND("head_dim is 96; it must be 64 or 128", a->head_dim = 96);
    APPEND("reserved is 0, 4; both must be 0", a->reserved[1] = 4);
    APPEND("cache.offset_bytes is 8; it must be a multiple of 16", a->cache.offset_bytes = 8);
    APPEND("cache.stride_head is 1000001", a->cache.stride_head = 1000001);
    APPEND("cache.dtype is 1; it must be 7 (u8)", a->cache.dtype = TANDEM_DTYPE_F16);
    APPEND("k.dtype is 7", a->k.dtype = TANDEM_DTYPE_U8);
    ATTENTION("heads is 8; it must be a multiple of kv_heads, which is 3", a->heads = 8);
    ATTENTION("heads is 51; it must be", a->heads = 51);
    ATTENTION("scale is nan", a->scale = NAN);
    ATTENTION("q.dtype is 3; it must be 1 (f16)", a->q.dtype = TANDEM_DTYPE_F32);
    ATTENTION("q has offset_bytes 2", a->q.offset_bytes = 2);
    ATTENTION("entries is 0", a->entries = 0);
    free_query(&q);
    free_cache(&it);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),    cmocka_unit_test(test_append_apart),
        cmocka_unit_test(test_goes_back), cmocka_unit_test(test_attend),
        cmocka_unit_test(test_many_rows), cmocka_unit_test(test_wild_positions),
        cmocka_unit_test(test_append_on_gpus), cmocka_unit_test(test_attend_on_gpus),
        cmocka_unit_test(test_wild_on_gpus),   cmocka_unit_test(test_pools),
        cmocka_unit_test(test_shared_pages),   cmocka_unit_test(test_wild_tables),
        cmocka_unit_test(test_pools_on_gpus),
        cmocka_unit_test(test_bytes),     cmocka_unit_test(test_refusals),
    };

    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
