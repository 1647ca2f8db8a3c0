/* Measuring how tensor cores round: one D = A B + C a tile, as a plan for a GPU or for its twin.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_PROBE_H
#define TANDEM_KERNELS_PROBE_H

#include "kernels/target.h"

typedef enum td_probe_unit {
    TD_PROBE_WGMMA_E4M3 = 0, /* wgmma m64n8k32: sm_90a alone */
    TD_PROBE_MMA_E4M3 = 1,   /* mma.sync m16n8k32: sm_89 and up */
    TD_PROBE_MMA_F16 = 2,    /* mma.sync m16n8k16 */
    TD_PROBE_WGMMA_E4M3_F16 = 3, /* wgmma m64n8k32 into fp16: sm_90a alone */
    TD_PROBE_UNITS
} td_probe_unit;

/* Views of a probe plan; their shapes are in params.h. */
enum { TD_PROBE_A, TD_PROBE_B, TD_PROBE_C, TD_PROBE_D, TD_PROBE_VIEWS };
enum {
    TD_PROBE_ROWS = 16,
    TD_PROBE_COLUMNS = 8,
    TD_PROBE_ELEMENTS = TD_PROBE_ROWS * TD_PROBE_COLUMNS, /* of C and D */
    TD_PROBE_A_BYTES = 512,                               /* of a tile, whatever the unit */
    TD_PROBE_B_BYTES = 256,
    TD_PROBE_MOST_TILES = 1 << 20
};

/* The instruction's name, and how many products it adds up at once. */
const char *td_probe_name(uint32_t unit);
uint32_t td_probe_k(uint32_t unit);

/* UNSUPPORTED with the reason where the target has no such unit. */
tandem_status td_plan_probe(uint32_t unit, uint32_t tiles, const td_target *target, td_plan *plan, char *why,
                            size_t why_bytes);

/* What goes in. `a`, `b`, `c` have room for the tiles. */

/* One tile, A = B = 0. Element i < 23 of C is 1 + 2^-(i + 1); element 23 has all mantissa bits set; the rest is 0. */
enum { TD_PROBE_MANTISSA_BITS = 23 };
void td_probe_fill_bits(void *a, void *b, float *c);
/* TD_PROBE_POWERS tiles, in tile n all of C is 2^n, all of B is 1. Rows of A: one product of 1; k products of 1; one
 * of 1.5; one of -1; the others 0. */
enum { TD_PROBE_POWERS = 32 };
enum { TD_PROBE_ROW_ONE, TD_PROBE_ROW_ALL, TD_PROBE_ROW_HALVES, TD_PROBE_ROW_MINUS };
void td_probe_fill_powers(uint32_t unit, void *a, void *b, float *c);
/* Eight kinds of tiles in turn: any codes, none negative, all near 1 (with and without C), C = 0, C large, sparse A,
 * subnormal A. Neither NaN nor infinity, also where sums are fp16. */
void td_probe_fill_random(uint32_t unit, uint32_t tiles, uint64_t seed, void *a, void *b, float *c);

#endif
