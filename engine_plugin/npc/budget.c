/* What a frame may spend. See budget.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/budget.h"

/* Frames that a part of a prompt may take, and tokens that are not cut further. */
enum { PART_FRAMES = 4, LEAST_PART = 8 };

void td_budget_begin(td_budget *b, uint64_t frame_ns)
{
    if ((double)frame_ns != b->frame_ns) {
        b->frame_ns = (double)frame_ns;
        b->margin_ns = b->frame_ns / 10;
        b->left_ns = 0;
    }
    b->left_ns += b->frame_ns;
    if (b->left_ns > b->frame_ns) /* what a frame did not need is lost */
        b->left_ns = b->frame_ns;
}

uint64_t td_budget_window_ns(const td_budget *b)
{
    const double least = b->frame_ns / 4, window = b->frame_ns - b->margin_ns;

    return (uint64_t)(window > least ? window : least);
}

/* As many steps up for one frame in fifty as down for the others: two in a hundred end later than
 * the margin has it, and a tenth of the budget is what those may take more. */
void td_budget_late(td_budget *b, uint64_t late_ns)
{
    const double step = b->frame_ns / 40;

    b->margin_ns += (double)late_ns > b->margin_ns ? step : -step / 50;
    if (b->margin_ns < 0)
        b->margin_ns = 0;
    if (b->margin_ns > b->frame_ns)
        b->margin_ns = b->frame_ns;
}

uint32_t td_budget_tokens(const td_budget *b, uint32_t most)
{
    const double token_ns = b->token_ns > 1 ? b->token_ns : 1;

    if (!b->frame_ns)
        return most;
    if (!b->run_ns && !b->token_ns) /* what they take is not known yet */
        return 1;
    const double fit = (b->left_ns - b->run_ns) / token_ns;
    if (fit >= most)
        return most;
    if (fit >= 1)
        return (uint32_t)fit;
    return b->left_ns > 0 &&
           b->run_ns + token_ns > b->frame_ns; /* no frame has as much: it is owed */
}

uint32_t td_budget_part(const td_budget *b, uint32_t most)
{
    const double fit = b->frame_ns && b->token_ns ? PART_FRAMES * b->frame_ns / b->token_ns : most;
    const uint32_t part = fit < LEAST_PART ? LEAST_PART : fit < most ? (uint32_t)fit : most;

    return part < most ? part : most;
}

void td_budget_spend(td_budget *b, uint32_t tokens, uint64_t ns)
{
    const double took = (double)ns, eighth = 1.0 / 8;

    b->left_ns -= took;
    if (!b->run_ns && !b->token_ns) {
        b->token_ns = took / tokens;
        return;
    }
    const double error = took - b->run_ns - tokens * b->token_ns;
    if (tokens > 1) /* what many tokens tell is of tokens, what one tells of a run */
        b->token_ns += eighth * error / tokens;
    else
        b->run_ns += eighth * error;
    b->token_ns = b->token_ns > 0 ? b->token_ns : 0;
    b->run_ns = b->run_ns > 0 ? b->run_ns : 0;
}
