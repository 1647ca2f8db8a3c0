/* What a frame may spend, held in a closed loop on what frames have spent.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Two ways, as a device can be told to stop or not. Where it can, a frame is a window, which ends
 * earlier by as much as work was seen to end late. Where it cannot, only as much is begun as is
 * expected to fit; what took longer is owed, and frames begin nothing until that is paid. No handles,
 * no clocks: times are what the caller says.
 */
#ifndef TD_NPC_BUDGET_H
#define TD_NPC_BUDGET_H

#include <stdint.h>

/* Begins as zeros. */
typedef struct td_budget {
    double frame_ns;         /* that a frame may spend; 0: whatever it takes */
    double margin_ns;        /* by so much earlier a window ends */
    double left_ns;          /* of this frame; below 0: owed */
    double run_ns, token_ns; /* what a run takes, and each token of it; 0: not known yet */
} td_budget;

/* A frame begins. */
void td_budget_begin(td_budget *b, uint64_t frame_ns);

/* How long its window is. */
uint64_t td_budget_window_ns(const td_budget *b);
/* Work went on for so long after its window's end. */
void td_budget_late(td_budget *b, uint64_t late_ns);

/* How many tokens, `most` at most, the run may have that is begun now. */
uint32_t td_budget_tokens(const td_budget *b, uint32_t most);
/* A part of a prompt, of `most` tokens at most, that others wait for a few frames at most. */
uint32_t td_budget_part(const td_budget *b, uint32_t most);
/* A run of so many tokens took so long. */
void td_budget_spend(td_budget *b, uint32_t tokens, uint64_t ns);

#endif
