/* O = softmax(scale * Q K^T) V on Hopper: int8 Q K^T and e4m3 P V by wgmma.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Shapes: Q codes [bh][q_pad][Dim], K codes [bhk][kv_pad][Dim], V codes [bhk][Dim][kv_pad], keys
 * permuted as the A fragment of P wants them. A block is two to four warpgroups of 64 rows and one
 * that fetches. A step takes 128 keys in two halves that follow one another in one set of registers
 * for S (i: step; 0, 1: halves):
 *
 *   fetching   V(i) K(i+1) -> a ring of stages, mbarriers full and empty
 *   tensor     S = Q K0(i) |              | S = Q K1(i), R += P0 V0(i) |            | S = Q K0(i+1), R += P1 V1(i) ...
 *   threads                | P0 = ex2 S0  |                            | P1 = ex2 S |
 *
 * While one warpgroup waits for S, the others are in the exponential. P is computed before it is
 * known whether its base fits, and again if it did not. Whether it did is seen in P's codes, four
 * at a time: only where one is as large as the limit are the maxima of S looked at.
 *
 * R adds up TD_HOPPER_R_KEYS keys in fp16: products are exact, those of 32 keys and R are cut off
 * behind 13 fractional bits of the largest and added up exactly, and the sum is rounded to nearest
 * (kernels/attention/cpu/twin.c). O, in fp32, takes the rest (two-level accumulation). fp16 sums
 * take half the registers and half the way through the registers' ports, so a third warpgroup has
 * room: a thread at Dim 128 has O 64, R 34, S 32, P 16 of 160; at Dim 64 a fourth: O 32, R 18 of
 * 112. No sum overflows: P <= 2^TD_LATE_LIMIT_LOG2 and V's codes are at most TD_V_TOP, so 256 keys
 * are at most 128 * 1.75 * 256 = 57344 of 65504. P's sum, at most 32768, is one more column of P V,
 * a channel of ones: the denominator adds up the very codes that the numerator has, rounded alike.
 * A row's base follows its maximum late: when it is set, P is about 2^(TD_LATE_LIMIT_LOG2 -
 * TD_HEADROOM_LOG2), and it stays until a P would pass the limit. So nothing saturates, 64 keys
 * cost a row one comparison, and rebasing is rare. Where a base is far (params.h), each step makes
 * P again as it has to be there: see hide_base().
 *
 * Where tiles are many, blocks walk over them (HopperTile::walks): the ring goes on from one tile
 * to the next, and the fetch that a tile begins with brings Q and scales, too, into one of two
 * places in turn. Such a place is free when all warps have said so behind the tile's O. Who fetches
 * says in front of that fetch which tile it is, or that there is none.
 *
 * Where tiles are few, all warpgroups of a block have the same 64 rows, and each every so manieth
 * step of keys with bases, R and O of its own (HopperTile::splits). Behind the last step each
 * leaves O in a stage of its own, and all of them write the tile: O = sum of O_i 2^(top_i - top),
 * in the warpgroups' order, so every run has the same bits. Such a block walks from tile to tile;
 * the ring goes on. It is another order of adding up than that of the other blocks, so other bits.
 * Where there are somewhat more, two warpgroups of four have the same 64 rows, and two the next 64
 * (HopperTile::abreast): warpgroup i has rows of part i % 2 and every second step, from step i / 2
 * on. Of such a pair each leaves the other half of its channels and writes its own.
 *
 * hopper_tile      shared memory, what a block works on    hopper_softmax   a thread's registers
 * hopper_schedule  which tiles and which steps             hopper_fetch     the warps that fetch
 * hopper_consume   a warpgroup that computes               hopper_write     O and lse
 */
#pragma once

#include "hopper_consume.cuh"
#include "hopper_fetch.cuh"
