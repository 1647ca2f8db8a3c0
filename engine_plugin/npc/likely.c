/* How likely each token of a reply was. See likely.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/likely.h"

#include <math.h>
#include <stdlib.h>

/* The `tops` largest logits, in their order. */
static uint32_t find_tops(const float *logits, uint32_t words, uint32_t tops, td_logprob *to)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < words && tops; i++) {
        uint32_t at = count;

        if (isnan(logits[i]) || (count == tops && !(logits[i] > to[count - 1].logprob)))
            continue;
        for (; at && logits[i] > to[at - 1].logprob; at--)
            if (at < tops)
                to[at] = to[at - 1];
        to[at] = (td_logprob){i, logits[i]};
        count += count < tops;
    }
    return count;
}

/* The logarithm of the sum of all exponentials. */
static double log_sum(const float *logits, uint32_t words)
{
    float largest = -INFINITY;
    double sum = 0;

    for (uint32_t i = 0; i < words; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    for (uint32_t i = 0; i < words; i++)
        sum += isnan(logits[i]) ? 0 : exp((double)(logits[i] - largest));
    return (double)largest + log(sum);
}

tandem_status td_likelies_add(td_likelies *to, const float *logits, uint32_t words, uint32_t token,
                              size_t text_at, uint32_t tops)
{
    const double sum = log_sum(logits, words);

    if (to->count == to->room) {
        const size_t room = 2 * to->room + 16;
        td_likely *more = realloc(to->list, room * sizeof *more);

        if (!more)
            return TANDEM_ERROR_NOMEM;
        to->list = more;
        to->room = room;
    }
    td_likely *one = &to->list[to->count++];
    one->is = (td_logprob){token, (float)((double)logits[token] - sum)};
    one->text_at = text_at;
    one->top_count = find_tops(logits, words, tops, one->tops);
    for (uint32_t i = 0; i < one->top_count; i++)
        one->tops[i].logprob = (float)((double)one->tops[i].logprob - sum);
    return TANDEM_OK;
}

void td_likelies_free(td_likelies *likelies)
{
    free(likelies->list);
    *likelies = (td_likelies){0};
}
