/* The prologue in two launches: `stats` reads K and V, `quantise` reads Q, K and V and writes all
 * codes and scales.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Grids, arrays and arithmetic: params.h; the CPU twin gets the same bits. It uses prologue.cuh's
 * functions for groups and scales. A block has a set of tiles in registers, each thread eight
 * channels of four rows as they lie in memory: so 32 KB of loads are under way at once, and a step
 * over them is few instructions. At small sizes what counts is the time of one block, and that is
 * the latency of loads and of fetching instructions.
 *
 *   stats, K        rows to shared memory, half a set at a time | a thread a channel: the rows one after the other
 *   stats, V        maxima of magnitudes as integers
 *   quantise, Q, K  [mean] | maxima of rows, of groups | scales | codes
 *   quantise, V     factors | the four keys of a word of codes are one thread's: [channel][key] in shared memory | out
 *
 * Values that are not finite are rare: a look at the exponents shows whether there is one, and only
 * then is it looked for. Shared memory of both, all of it dynamic: the stage (in turn sums or
 * maxima of chunks, rows, V's codes), what threads tell each other, and where `ahead` says so the
 * set after the one in registers.
 */
#pragma once

#include "fused_stats.cuh"
#include "fused_quantise.cuh"
