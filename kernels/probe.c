/* Probes as plans, their twin, and what goes into them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/probe.h"

#include <stdio.h>
#include <string.h>

#include "kernels/attention/cpu.h"
#include "kernels/params.h"

static void probe(const void *params, const td_block *at, bool e4m3)
{
    const td_params_probe *p = params;
    const unsigned char *a = (const unsigned char *)p->a + (size_t)at->x * TD_PROBE_A_BYTES;
    const unsigned char *b = (const unsigned char *)p->b + (size_t)at->x * TD_PROBE_B_BYTES;
    const float *c = p->c + (size_t)at->x * TD_PROBE_ELEMENTS;
    float *d = p->d + (size_t)at->x * TD_PROBE_ELEMENTS;
    for (uint32_t i = 0; i < TD_PROBE_ELEMENTS; i++) {
        const void *row = a + i / TD_PROBE_COLUMNS * 32, *column = b + i % TD_PROBE_COLUMNS * 32;
        d[i] = e4m3 ? td_twin_mma_e4m3(p->accumulator, row, column, c[i]) : td_twin_mma_f16(row, column, c[i]);
    }
}

static void probe_e4m3(const void *params, const td_block *at)
{
    probe(params, at, true);
}

static void probe_f16(const void *params, const td_block *at)
{
    probe(params, at, false);
}

static const td_kernel kernels[TD_PROBE_UNITS] = {
    {.name = "probe_wgmma_e4m3", .entry = "probe_wgmma_e4m3", .cpu = probe_e4m3},
    {.name = "probe_mma_e4m3", .entry = "probe_mma_e4m3", .cpu = probe_e4m3},
    {.name = "probe_mma_f16", .entry = "probe_mma_f16", .cpu = probe_f16},
    {.name = "probe_wgmma_e4m3_f16", .entry = "probe_wgmma_e4m3_f16", .cpu = probe_e4m3},
};

const char *td_probe_name(uint32_t unit)
{
    static const char *const names[] = {"wgmma m64n8k32 e4m3", "mma.sync m16n8k32 e4m3", "mma.sync m16n8k16 f16",
                                        "wgmma m64n8k32 e4m3 into fp16"};
    return unit < TD_PROBE_UNITS ? names[unit] : "unknown";
}

uint32_t td_probe_k(uint32_t unit)
{
    return unit == TD_PROBE_MMA_F16 ? 16 : 32;
}

tandem_status td_plan_probe(uint32_t unit, uint32_t tiles, const td_target *target, td_plan *plan, char *why,
                            size_t why_bytes)
{
    td_plan_reset(plan);
    if (unit >= TD_PROBE_UNITS || tiles < 1 || tiles > TD_PROBE_MOST_TILES) {
        snprintf(why, why_bytes, "probe: unit is %u, tiles is %u; they must be below %d, and from 1 to %d", unit, tiles,
                 TD_PROBE_UNITS, TD_PROBE_MOST_TILES);
        return TANDEM_ERROR_ARG;
    }
    if (((unit == TD_PROBE_WGMMA_E4M3 || unit == TD_PROBE_WGMMA_E4M3_F16) && target->sm != 90) ||
        (unit == TD_PROBE_MMA_E4M3 && target->sm < 89)) {
        snprintf(why, why_bytes, "sm_%u has no %s", target->sm, td_probe_name(unit));
        return TANDEM_ERROR_UNSUPPORTED;
    }
    td_record *record = td_plan_add_record(plan, sizeof(td_params_probe));
    bool whole = record != NULL;
    if (whole && !target->twin) {
        const td_cubin *cubin = target->image ? target->image : td_cubin_for_sm(target->sm, why, why_bytes);
        const td_cubin_entry *entry = cubin ? td_cubin_find(cubin, kernels[unit].entry) : NULL;
        if (!cubin)
            return TANDEM_ERROR_UNSUPPORTED;
        if (!entry) {
            snprintf(why, why_bytes, "the kernels for %s_%u have no %s", cubin->ptx ? "compute" : "sm", cubin->sm,
                     td_probe_name(unit));
            return TANDEM_ERROR_UNSUPPORTED;
        }
        record->registers = entry->registers;
        record->local_bytes = entry->local_bytes;
    }
    const td_params_probe params = {.accumulator = unit == TD_PROBE_WGMMA_E4M3       ? TD_ACCUMULATOR_WGMMA
                                                   : unit == TD_PROBE_WGMMA_E4M3_F16 ? TD_ACCUMULATOR_WGMMA_F16
                                                                                     : target->accumulator};
    const struct {
        size_t offset;
        uint64_t tile_bytes;
    } views[TD_PROBE_VIEWS] = {{offsetof(td_params_probe, a), TD_PROBE_A_BYTES},
                               {offsetof(td_params_probe, b), TD_PROBE_B_BYTES},
                               {offsetof(td_params_probe, c), TD_PROBE_ELEMENTS * sizeof(float)},
                               {offsetof(td_params_probe, d), TD_PROBE_ELEMENTS * sizeof(float)}};
    if (whole) {
        record->kernel = &kernels[unit];
        record->grid[0] = tiles;
        record->grid[1] = record->grid[2] = record->block[1] = record->block[2] = 1;
        record->block[0] = TD_BLOCK_THREADS;
        memcpy(record->params, &params, sizeof params);
    }
    for (uint32_t i = 0; i < TD_PROBE_VIEWS; i++) {
        const td_range range = {TD_BASE_VIEW, i, 0, tiles * views[i].tile_bytes};
        const td_reloc pointer = {.offset = (uint16_t)views[i].offset, .base = TD_BASE_VIEW, .view = i};
        whole = whole && td_plan_add_reloc(plan, record, pointer) &&
                (i == TD_PROBE_D ? td_plan_add_write : td_plan_add_read)(plan, record, range);
    }
    return whole ? TANDEM_OK : td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a plan of a record");
}

void td_probe_fill_bits(void *a, void *b, float *c)
{
    memset(a, 0, TD_PROBE_A_BYTES);
    memset(b, 0, TD_PROBE_B_BYTES);
    for (uint32_t i = 0; i < TD_PROBE_ELEMENTS; i++)
        c[i] = i < TD_PROBE_MANTISSA_BITS    ? td_float(0x3f800000u | 1u << (TD_PROBE_MANTISSA_BITS - 1 - i))
               : i == TD_PROBE_MANTISSA_BITS ? td_float(0x3fffffff)
                                             : 0;
}

static void put(uint32_t unit, void *codes, size_t i, float value)
{
    if (unit == TD_PROBE_MMA_F16)
        ((uint16_t *)codes)[i] = td_to_f16(value);
    else
        ((uint8_t *)codes)[i] = td_to_e4m3(value);
}

void td_probe_fill_powers(uint32_t unit, void *a, void *b, float *c)
{
    const uint32_t k = td_probe_k(unit);
    for (uint32_t n = 0; n < TD_PROBE_POWERS; n++) {
        unsigned char *to_a = (unsigned char *)a + n * TD_PROBE_A_BYTES;
        unsigned char *to_b = (unsigned char *)b + n * TD_PROBE_B_BYTES;
        memset(to_a, 0, TD_PROBE_A_BYTES);
        for (uint32_t i = 0; i < k; i++)
            put(unit, to_a, TD_PROBE_ROW_ALL * k + i, 1);
        put(unit, to_a, TD_PROBE_ROW_ONE * k, 1);
        put(unit, to_a, TD_PROBE_ROW_HALVES * k, 1.5f);
        put(unit, to_a, TD_PROBE_ROW_MINUS * k, -1);
        for (uint32_t i = 0; i < TD_PROBE_COLUMNS * k; i++)
            put(unit, to_b, i, 1);
        for (uint32_t i = 0; i < TD_PROBE_ELEMENTS; i++)
            c[n * TD_PROBE_ELEMENTS + i] = ldexpf(1, (int)n);
    }
}

static uint32_t random32(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32 ^ x >> 11);
}

/* Magnitudes from 2^least to below 2^(least + powers). */
static float random_float(uint64_t *state, int least, uint32_t powers)
{
    const uint32_t bits = random32(state), exponent = (uint32_t)(127 + least) + random32(state) % powers;
    return td_float((bits & 0x80000000u) | exponent << 23 | (bits & 0x7fffff));
}

enum { ANY, POSITIVE, NEAR_ONE, NEAR_ONE_AND_C, NO_C, LARGE_C, SPARSE, SUBNORMAL, KINDS };

static void random_code(uint32_t unit, void *codes, size_t i, uint32_t kind, bool is_a, uint64_t *state)
{
    if (unit == TD_PROBE_MMA_F16) {
        const bool near = kind == NEAR_ONE || kind == NEAR_ONE_AND_C, subnormal = kind == SUBNORMAL && is_a;
        float x = random_float(state, near ? -1 : subnormal ? -24 : -12, near ? 2 : subnormal ? 10 : 24);
        if (is_a && ((kind == POSITIVE && x < 0) || (kind == SPARSE && i % 7)))
            x = kind == SPARSE ? 0 : -x;
        ((uint16_t *)codes)[i] = td_to_f16(x);
        return;
    }
    uint32_t code = random32(state) & 255;
    if (kind == NEAR_ONE || kind == NEAR_ONE_AND_C)
        code = (code & 0x8f) | 0x30;
    if (kind == POSITIVE && is_a)
        code &= 0x7f;
    if (kind == SUBNORMAL && is_a)
        code &= 0x87;
    if (kind == SPARSE && is_a && i % 7)
        code = 0;
    if (unit == TD_PROBE_WGMMA_E4M3_F16 && !is_a)
        code = (code & 0x80) | (code & 0x7f) % 0x3f; /* at most 1.75: 32 products pass no 25088 */
    ((uint8_t *)codes)[i] = (uint8_t)((code & 0x7f) == 0x7f ? code ^ 1 : code);
}

void td_probe_fill_random(uint32_t unit, uint32_t tiles, uint64_t seed, void *a, void *b, float *c)
{
    const uint32_t k = td_probe_k(unit);
    for (uint32_t tile = 0; tile < tiles; tile++) {
        unsigned char *to_a = (unsigned char *)a + (size_t)tile * TD_PROBE_A_BYTES;
        unsigned char *to_b = (unsigned char *)b + (size_t)tile * TD_PROBE_B_BYTES;
        const uint32_t kind = tile % KINDS;
        uint64_t state = seed ^ (uint64_t)tile << 32;
        for (uint32_t i = 0; i < TD_PROBE_ROWS * k; i++)
            random_code(unit, to_a, i, kind, true, &state);
        for (uint32_t i = 0; i < TD_PROBE_COLUMNS * k; i++)
            random_code(unit, to_b, i, kind, false, &state);
        for (uint32_t i = 0; i < TD_PROBE_ELEMENTS; i++) {
            const bool none = kind == NO_C || kind == NEAR_ONE;
            const int least = kind == LARGE_C ? 0 : -12;
            c[(size_t)tile * TD_PROBE_ELEMENTS + i] =
                none ? 0 : random_float(&state, least, unit == TD_PROBE_WGMMA_E4M3_F16 ? (uint32_t)(15 - least) : 24);
        }
    }
}
