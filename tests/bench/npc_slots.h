/* How fast a language model speaks for several characters at once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_BENCH_NPC_SLOTS_H
#define TD_BENCH_NPC_SLOTS_H

#include "tandem/tandem.h"
#include "tests/bench/bench.h"

enum { BENCH_SLOTS = 4 };
extern const uint32_t bench_slot_counts[BENCH_SLOTS]; /* characters that speak at once */

typedef struct bench_slots {
    bench_series spoken[BENCH_SLOTS]; /* tokens a second, of all of them together */
    char why[600];                    /* there are none; "": there are */
} bench_slots;

/* Each of them speaks `tokens` tokens behind a prompt that all have; rounds times, in turn. False: `why` says what failed, but
 * for what such a model cannot have, which is a reason alone. */
bool bench_measure_slots(tandem_session *s, const char *model, uint32_t cache, uint32_t tokens, uint32_t rounds, bench_slots *out);
void bench_free_slots(bench_slots *slots);

#endif
