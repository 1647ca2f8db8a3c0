/* `cache_append` on the CPU, the bits of the GPU's: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Sealing a page takes longer than putting its rows there: it is what compilers make vectors of.
 */
#include "kernels/cache/cache.h"
#include "kernels/cpu/cpu.h"

enum { PAGE = TD_CACHE_PAGE, MOST_DIM = TD_CACHE_MOST_DIM };
_Static_assert(sizeof(td_cache_head) == TD_CACHE_HEAD_BYTES, "where the newest page is");

/* A plane, and which rows of a call are for it. */
typedef struct plane {
    const td_params_cache_append *p;
    int64_t batch, head;
    unsigned char *bytes, *page; /* its head and newest page; the page of the first row, if there is one */
    uint32_t row, count; /* the first one, and how many */
    uint32_t position;   /* of that one */
} plane;

/* Codes of fp16. */
typedef struct newest {
    uint16_t *k, *v;
} newest;

static newest newest_of(const plane *of)
{
    unsigned char *at = of->p->format == TANDEM_CACHE_F16 ? of->page : of->bytes + TD_CACHE_HEAD_BYTES;
    uint16_t *k = (uint16_t *)(void *)at;

    return (newest){k, k + (size_t)PAGE * of->p->dim};
}

/* Rows that follow one another within a page, from the first on that has a place. */
static void find_rows(plane *of)
{
    const td_params_cache_append *p = of->p;
    const int32_t *const position = p->position + of->batch * p->position_at.stride_batch;

#define POSITION(row) ((int64_t)position[(row) * p->position_at.stride_row])
    for (; of->row < p->rows; of->row++) {
        const int64_t first = POSITION(of->row); /* what is used is what was looked at, whatever is there by now */

        of->position = (uint32_t)first;
        if (first >= 0 && first < p->entries)
            break;
    }
    if (of->row == p->rows)
        return;
    while (of->row + of->count < p->rows && of->position + of->count < p->entries &&
           of->position % PAGE + of->count < PAGE &&
           POSITION(of->row + of->count) == (int64_t)of->position + of->count)
        of->count++;
#undef POSITION
}

static void put_rows(const plane *of)
{
    const td_params_cache_append *p = of->p;
    const newest to = newest_of(of);
    float x[MOST_DIM];

    for (uint32_t i = 0; i < of->count; i++) {
        const uint32_t key = of->position % PAGE + i, row = of->row + i;

        td_to_floats(x, p->k, p->k_dtype, td_row_at(&p->k_at, of->batch, of->head, row), p->dim);
        for (uint32_t c = 0; c < p->dim; c++)
            to.k[(c / 2 * PAGE + key) * 2 + c % 2] = td_to_f16(x[c]);
        td_to_floats(x, p->v, p->v_dtype, td_row_at(&p->v_at, of->batch, of->head, row), p->dim);
        for (uint32_t c = 0; c < p->dim; c++)
            to.v[(key / 2 * p->dim + c) * 2 + key % 2] = td_to_f16(x[c]);
    }
}

/* --- Sealed pages --- */

typedef struct sealed {
    unsigned char *k, *v;
    uint16_t *k_min;
    unsigned char *k_scale, *v_scale;
} sealed;

static sealed sealed_of(const plane *of)
{
    const uint32_t dim = of->p->dim, format = of->p->format;
    unsigned char *k = of->page;
    unsigned char *v = k + TD_CACHE_K_BYTES(format, dim), *k_min = v + (size_t)PAGE * dim;

    return (sealed){k, v, (uint16_t *)(void *)k_min, k_min + 2 * dim, k_min + 3 * dim};
}

/* E5M3 upwards, of what is not negative; NaN where it is not finite. */
TD_INLINE uint8_t scale_up(float x)
{
    const uint32_t half = td_to_f16(x), up = half + (td_from_f16((uint16_t)half) < x);

    return (uint8_t)(up >= 0x7c00 ? TD_CACHE_NAN : (up + 0x7f) >> 7);
}

TD_INLINE float scale_of(uint8_t e5m3)
{
    return td_from_f16((uint16_t)(e5m3 << 7));
}

/* What to multiply by for codes: 0 where all is 0. */
TD_INLINE float inverse_of(uint8_t e5m3)
{
    return e5m3 ? 1 / scale_of(e5m3) : 0;
}

/* The nearest code from 0 on. */
TD_INLINE uint32_t code_of(float x, float most)
{
    const float near = (x + 0x1.8p23f) - 0x1.8p23f;

    return (uint32_t)(int32_t)(near > most ? most : near > 0 ? near : 0);
}

/* A channel of all keys: its codes, minimum and scale. */
TD_INLINE void encode_channel(const uint16_t *from, float most, uint32_t code[PAGE],
                              uint16_t *k_min, uint8_t *k_scale)
{
    float x[PAGE], low[PAGE], high[PAGE];
    uint32_t bad = 0;

    for (uint32_t j = 0; j < PAGE; j++) {
        x[j] = low[j] = high[j] = td_from_f16(from[2 * j]);
        bad |= (from[2 * j] & 0x7c00) == 0x7c00;
    }
    for (uint32_t apart = PAGE / 2; apart; apart /= 2)
        for (uint32_t j = 0; j < apart; j++) {
            low[j] = low[j + apart] < low[j] ? low[j + apart] : low[j];
            high[j] = high[j + apart] > high[j] ? high[j + apart] : high[j];
        }
    *k_min = td_to_f16(low[0]);
    *k_scale = bad ? TD_CACHE_NAN : scale_up((high[0] - low[0]) / most);
    const float inverse = inverse_of(*k_scale);
    for (uint32_t j = 0; j < PAGE; j++)
        code[j] = code_of((x[j] - low[0]) * inverse, most);
}

TD_INLINE void encode_keys(const plane *of, const uint16_t *from, sealed to)
{
    const uint32_t format = of->p->format;
    const float most = TD_CACHE_K_MOST(format);
    uint32_t code[2][PAGE];

    for (uint32_t c = 0; c < of->p->dim; c += 2, from += 2 * PAGE) {
        for (uint32_t i = 0; i < 2; i++)
            encode_channel(from + i, most, code[i], to.k_min + c + i, to.k_scale + c + i);
        if (format == TANDEM_CACHE_K4V8) {
            uint32_t *words = (uint32_t *)(void *)(to.k + (size_t)c / 2 * PAGE);

            for (uint32_t i = 0; i < 16; i++) {
                words[i] = 0;
                for (uint32_t j = 0; j < 4; j++)
                    words[i] |= (code[0][16 * j + i] | code[1][16 * j + i] << 16) << 4 * j;
            }
        } else {
            uint16_t *pairs = (uint16_t *)(void *)(to.k + (size_t)c * PAGE);

            for (uint32_t j = 0; j < PAGE; j++)
                pairs[j] = (uint16_t)(code[0][j] | code[1][j] << 8);
        }
    }
}

TD_INLINE void encode_values(const plane *of, const uint16_t *from, sealed to)
{
    const uint32_t dim = of->p->dim;
    float inverse[MOST_DIM];
    uint16_t most[MOST_DIM] = {0}; /* without signs fp16 is in the order of its bits */

    for (uint32_t pair = 0; pair < PAGE / 2; pair++)
        for (uint32_t c = 0; c < 2 * dim; c++) {
            const uint16_t x = from[(size_t)pair * 2 * dim + c] & 0x7fff;

            most[c / 2] = x > most[c / 2] ? x : most[c / 2];
        }
    for (uint32_t c = 0; c < dim; c++) {
        to.v_scale[c] = most[c] >= 0x7c00 ? TD_CACHE_NAN
                                          : scale_up(td_from_f16(most[c]) / TD_CACHE_V_MOST);
        inverse[c] = inverse_of(to.v_scale[c]);
    }
    for (uint32_t pair = 0; pair < PAGE / 2; pair++)
        for (uint32_t c = 0; c < 2 * dim; c++) {
            const size_t at = (size_t)pair * 2 * dim + c;

            to.v[at] = td_to_e4m3(td_from_f16(from[at]) * inverse[c / 2]);
        }
}

TD_INLINE void seal_body(const plane *of)
{
    const newest from = newest_of(of);
    const sealed to = sealed_of(of);

    encode_keys(of, from.k, to);
    encode_values(of, from.v, to);
}

static void seal_c(const plane *of)
{
    seal_body(of);
}
#if TD_X86
TD_TARGET_AVX2 static void seal_avx2(const plane *of)
{
    seal_body(of);
}
#endif

static void seal(const plane *of)
{
#if TD_X86
    if (td_cpu_isa_level() >= TD_ISA_AVX2) {
        seal_avx2(of);
        return;
    }
#endif
    seal_c(of);
}

/* Of the page of the first row, what is before that, as fp16 again. */
static void unseal(const plane *of)
{
    const uint32_t dim = of->p->dim, count = of->position % PAGE;
    const sealed from = sealed_of(of);
    const newest to = newest_of(of);

    for (uint32_t c = 0; c < dim; c++)
        for (uint32_t j = 0; j < count; j++) {
            const size_t pair = (size_t)c / 2 * PAGE, at = ((size_t)j / 2 * dim + c) * 2 + j % 2;
            uint32_t code, word;

            if (of->p->format == TANDEM_CACHE_K4V8) {
                memcpy(&word, from.k + pair + 4 * (j % 16), sizeof word);
                code = word >> (c % 2 * 16 + j / 16 * 4) & 15;
            } else {
                code = from.k[(pair + j) * 2 + c % 2];
            }
            to.k[(pair + j) * 2 + c % 2] =
                td_to_f16(td_from_f16(from.k_min[c]) + (float)code * scale_of(from.k_scale[c]));
            to.v[at] = td_to_f16(td_from_e4m3(from.v[at]) * scale_of(from.v_scale[c]));
        }
}

/* Where its head and newest page are; false: it has none. */
static bool find_plane(plane *of)
{
    const td_params_cache_append *p = of->p;
    unsigned char *all = p->cache + td_row_at(&p->cache_at, p->table ? 0 : of->batch, of->head, 0);

    of->bytes = p->table ? td_cache_slot_of(all, p->table + of->batch * p->table_stride, p->slots,
                                            p->format, p->dim)
                         : all;
    return of->bytes != NULL;
}

/* The page of the first row. */
static void find_page(plane *of)
{
    const td_params_cache_append *p = of->p;
    const uint32_t number = of->position / PAGE;

    of->page = p->table ? td_cache_page_of(p->cache + td_row_at(&p->cache_at, 0, of->head, 0),
                                           p->table + of->batch * p->table_stride, number, p->slots,
                                           p->pages, p->format, p->dim)
                        : of->bytes + TD_CACHE_SEALED(number, p->format, p->dim);
}

void td_cpu_cache_append(const void *params, const td_block *at)
{
    const td_params_cache_append *p = params;
    plane of = {.p = p, .batch = at->x / p->heads, .head = at->x % p->heads};
    td_cache_head *head;

    if ((p->verdict && *p->verdict != TD_VERDICT_COMMITTED) || !find_plane(&of))
        return;
    head = (td_cache_head *)(void *)of.bytes;
    memset(head->tickets, 0, sizeof head->tickets);
    find_rows(&of);
    if (!of.count)
        return;
    find_page(&of);
    const int32_t number = (int32_t)(of.position / PAGE);
    const bool is_f16 = p->format == TANDEM_CACHE_F16;
    const bool has_codes = !is_f16 && of.page && /* or will have */
                           number < (int32_t)((p->entries - 1) / PAGE);
    if (is_f16 && !of.page)
        return;
    if (of.position % PAGE && head->holds != number + 1 && has_codes)
        unseal(&of);
    head->holds = number + 1;
    put_rows(&of);
    if (of.position % PAGE + of.count == PAGE && has_codes)
        seal(&of);
}
