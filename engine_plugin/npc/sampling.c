/* Which token is next. See sampling.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Few tokens of a vocabulary are looked at: they are a heap, from which the largest are taken one
 * after the other, as far as a step wants to see.
 */
#include "engine_plugin/npc/sampling.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "interop/base.h"

typedef struct candidate {
    float logit;
    uint32_t token;
    double surprise; /* how far from the mean one */
} candidate;

struct td_sampler {
    td_sampling how;
    uint32_t words;
    uint64_t drawn;
    float *logits;     /* [words], with bias and penalties */
    uint32_t *counts;  /* [words], zeros between calls */
    uint32_t *lengths; /* of a history, as DRY reads it */
    size_t lengths_room;
    candidate *heap, *taken; /* [words] each: the rest, and the largest in their order */
    uint32_t left, first, count; /* in the heap; of `taken` those that stay */
    double total; /* exp(logit - largest) of all that stay, the heap's too */
};

/* --- Making one --- */

static tandem_status check_range(const char *name, float value, float least, float most, char *why,
                                 size_t why_bytes)
{
    if (value >= least && value <= most)
        return TANDEM_OK;
    return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s is %g; it must be %g to %g", name,
                   (double)value, (double)least, (double)most);
}

static tandem_status check(const td_sampling *how, uint32_t words, char *why, size_t why_bytes)
{
    const bool dry = how->dry_multiplier != 0;
    const struct {
        const char *name;
        float value, least, most;
    } ranges[] = {
        {"temperature", how->temperature, 0, 1000},
        {"typical_p", how->typical_p, 0, 1},
        {"top_p", how->top_p, 0, 1},
        {"min_p", how->min_p, 0, 1},
        {"xtc_probability", how->xtc_probability, 0, 1},
        {"xtc_threshold", how->xtc_threshold, 0, 1},
        {"repetition", how->repetition, 0, 1000},
        {"frequency", how->frequency, -1000, 1000},
        {"presence", how->presence, -1000, 1000},
        {"dry_multiplier", how->dry_multiplier, 0, 1000},
        {"dry_base", dry ? how->dry_base : 1, 1, 1000},
        {"dry_length", dry ? (float)how->dry_length : 1, 1, 1e6f},
    };

    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const tandem_status status = check_range(ranges[i].name, ranges[i].value, ranges[i].least,
                                                 ranges[i].most, why, why_bytes);
        if (status != TANDEM_OK)
            return status;
    }
    for (uint32_t i = 0; i < how->bias_count; i++)
        if (how->biases[i].token >= words || isnan(how->biases[i].bias))
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "biases[%" PRIu32 "] is %g of token %" PRIu32
                           "; it must be a number of one below %" PRIu32,
                           i, (double)how->biases[i].bias, how->biases[i].token, words);
    return TANDEM_OK;
}

tandem_status td_sampler_create(const td_sampling *how, uint32_t words, td_sampler **out, char *why,
                                size_t why_bytes)
{
    const tandem_status status = check(how, words, why, why_bytes);

    *out = NULL;
    if (status != TANDEM_OK)
        return status;
    td_sampler *made = calloc(1, sizeof *made);
    if (made) {
        made->how = *how;
        made->words = words;
        made->logits = calloc(words, sizeof *made->logits);
        made->counts = calloc(words, sizeof *made->counts);
        made->heap = calloc(words, sizeof *made->heap);
        made->taken = calloc(words, sizeof *made->taken);
    }
    if (made && made->logits && made->counts && made->heap && made->taken) {
        *out = made;
        return TANDEM_OK;
    }
    td_sampler_destroy(&made);
    return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory to sample %" PRIu32 " words",
                   words);
}

void td_sampler_destroy(td_sampler **sampler)
{
    td_sampler *s = *sampler;

    if (!s)
        return;
    free(s->logits);
    free(s->counts);
    free(s->lengths);
    free(s->heap);
    free(s->taken);
    free(s);
    *sampler = NULL;
}

/* A hash of both. */
double td_sampling_draw(uint64_t seed, uint64_t index)
{
    uint64_t x = seed + (index + 1) * 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (double)(x >> 11) * 0x1p-53;
}

/* --- Penalties --- */

/* The last of a history, `most` at most; 0: all. */
static size_t start_of(size_t count, uint32_t most)
{
    return most && count > most ? count - most : 0;
}

static void penalise(td_sampler *s, const uint32_t *history, size_t count)
{
    const td_sampling *how = &s->how;
    const float repetition = how->repetition > 0 ? how->repetition : 1;
    const size_t first = start_of(count, how->penalty_last);

    if (repetition == 1 && how->frequency == 0 && how->presence == 0)
        return;
    for (size_t i = first; i < count; i++)
        if (history[i] < s->words)
            s->counts[history[i]]++;
    for (size_t i = first; i < count; i++) {
        float *logit;

        if (history[i] >= s->words || !s->counts[history[i]])
            continue; /* it had its share */
        logit = &s->logits[history[i]];
        *logit = *logit > 0 ? *logit / repetition : *logit * repetition;
        *logit -= how->frequency * (float)s->counts[history[i]] + how->presence;
        s->counts[history[i]] = 0;
    }
}

static bool breaks(const td_sampling *how, uint32_t token)
{
    for (uint32_t i = 0; i < how->dry_break_count; i++)
        if (how->dry_breaks[i] == token)
            return true;
    return false;
}

/* s->lengths[i]: how many tokens that end i before the last one are the same as the last ones;
 * `most` are enough. What is known of one place says most of it for the next (Z algorithm). */
static void measure_repetitions(td_sampler *s, const uint32_t *last, size_t count, size_t most)
{
    size_t begin = 0, end = 0; /* a stretch that is known to be the same */

    for (size_t i = 1; i < count; i++) {
        size_t length = i < end ? s->lengths[i - begin] : 0;

        length = i + length > end && i < end ? end - i : length;
        while (length < most && i + length < count && last[-(ptrdiff_t)length] ==
                                                          last[-(ptrdiff_t)(i + length)])
            length++;
        s->lengths[i] = (uint32_t)length;
        if (i + length > end) {
            begin = i;
            end = i + length;
        }
    }
}

static void penalise_repetitions(td_sampler *s, const uint32_t *history, size_t count)
{
    const td_sampling *how = &s->how;
    const size_t seen = count - start_of(count, how->dry_last);
    size_t most = 0; /* tokens behind the last that breaks */

    if (how->dry_multiplier == 0 || seen < 2)
        return;
    const uint32_t *last = history + count - 1;
    if (s->lengths_room < seen) {
        uint32_t *more = realloc(s->lengths, 2 * seen * sizeof *more);

        if (!more)
            return; /* repeating itself is no failure */
        s->lengths = more;
        s->lengths_room = 2 * seen;
    }
    while (most < seen && !breaks(how, last[-(ptrdiff_t)most]))
        most++;
    measure_repetitions(s, last, seen, most);
    for (size_t i = 1; i < seen; i++) { /* the token behind place i */
        const uint32_t token = last[1 - (ptrdiff_t)i];

        if (token < s->words && s->lengths[i] > s->counts[token])
            s->counts[token] = s->lengths[i];
    }
    for (size_t i = 1; i < seen; i++) {
        const uint32_t token = last[1 - (ptrdiff_t)i];

        if (token >= s->words || !s->counts[token])
            continue;
        if (s->counts[token] >= how->dry_length)
            s->logits[token] -= (float)fmin(
                1e30, (double)how->dry_multiplier *
                          pow((double)how->dry_base, s->counts[token] - how->dry_length));
        s->counts[token] = 0;
    }
}

/* --- Candidates --- */

static bool before(const candidate *a, const candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->token < b->token);
}

static void sink(td_sampler *s, uint32_t at)
{
    const candidate moved = s->heap[at];

    for (uint32_t child; (child = 2 * at + 1) < s->left; at = child) {
        child += child + 1 < s->left && before(&s->heap[child + 1], &s->heap[child]);
        if (!before(&s->heap[child], &moved))
            break;
        s->heap[at] = s->heap[child];
    }
    s->heap[at] = moved;
}

/* Of the candidates in the heap, in any order. */
static void order_heap(td_sampler *s)
{
    s->first = s->count = 0;
    for (uint32_t i = s->left / 2; i-- > 0;)
        sink(s, i);
}

static void make_heap(td_sampler *s)
{
    s->left = 0;
    for (uint32_t i = 0; i < s->words; i++)
        if (!isnan(s->logits[i]))
            s->heap[s->left++] = (candidate){s->logits[i], i, 0};
    order_heap(s);
}

/* Candidate `at` of those that are left, in their order; NULL: there are no more. */
static const candidate *look(td_sampler *s, uint32_t at)
{
    while (s->first + at >= s->count && s->left) {
        s->taken[s->count++] = s->heap[0];
        s->heap[0] = s->heap[--s->left];
        if (s->left)
            sink(s, 0);
    }
    return s->first + at < s->count ? &s->taken[s->first + at] : NULL;
}

/* By how much less likely than the first one, at a temperature. */
static double weight_of(const td_sampler *s, const candidate *c, float temperature)
{
    const float largest = s->taken[s->first].logit;

    return c->logit == largest ? 1 : exp((double)(c->logit - largest) / (double)temperature);
}

static double sum_up(td_sampler *s, float temperature)
{
    double sum = 0;

    for (uint32_t i = s->first; i < s->count; i++)
        sum += weight_of(s, &s->taken[i], temperature);
    for (uint32_t i = 0; i < s->left; i++)
        sum += weight_of(s, &s->heap[i], temperature);
    return sum;
}

/* Only the first `count` stay. */
static void keep(td_sampler *s, uint32_t count)
{
    s->left = 0;
    if (s->count - s->first > count)
        s->count = s->first + count;
    s->total = sum_up(s, 1);
}

static void keep_top_k(td_sampler *s)
{
    look(s, s->how.top_k - 1);
    keep(s, s->how.top_k);
}

static int by_surprise(const void *a, const void *b)
{
    const candidate *x = a, *y = b;

    if (x->surprise != y->surprise)
        return x->surprise < y->surprise ? -1 : 1;
    return before(x, y) ? -1 : 1;
}

static int by_logit(const void *a, const void *b)
{
    return before(a, b) ? -1 : 1;
}

static void keep_typical(td_sampler *s)
{
    double mean = 0, sum = 0;
    uint32_t count = 0;

    look(s, s->words - 1);
    for (uint32_t i = 0; i < s->count; i++) {
        const double p = weight_of(s, &s->taken[i], 1) / s->total;

        s->taken[i].surprise = p > 0 ? -log(p) : INFINITY;
        mean += p > 0 ? -p * log(p) : 0;
    }
    for (uint32_t i = 0; i < s->count; i++)
        s->taken[i].surprise = fabs(s->taken[i].surprise - mean);
    const float largest = s->taken[0].logit;
    qsort(s->taken, s->count, sizeof *s->taken, by_surprise);
    while (count < s->count && sum < (double)s->how.typical_p * s->total)
        sum += exp((double)(s->taken[count++].logit - largest));
    qsort(s->taken, count, sizeof *s->taken, by_logit);
    keep(s, count);
}

static void keep_top_p(td_sampler *s)
{
    const double enough = (double)s->how.top_p * s->total;
    const candidate *c;
    double sum = 0;
    uint32_t count = 0;

    while (sum < enough && (c = look(s, count))) {
        sum += weight_of(s, c, 1);
        count++;
    }
    keep(s, count);
}

static void keep_min_p(td_sampler *s)
{
    const candidate *c;
    uint32_t count = 0;

    while ((c = look(s, count)) && weight_of(s, c, 1) >= (double)s->how.min_p)
        count++;
    keep(s, count);
}

/* Without the top choices, but for the least of them. */
static void leave_out_top(td_sampler *s)
{
    const candidate *c;
    uint32_t count = 0;

    while ((c = look(s, count)) && weight_of(s, c, 1) >= (double)s->how.xtc_threshold * s->total)
        count++;
    if (count > 1)
        s->first += count - 1;
}

static uint32_t draw(td_sampler *s, double from)
{
    const float temperature = s->how.temperature;
    const candidate *c = NULL, *next;
    double sum = from * sum_up(s, temperature);

    for (uint32_t i = 0; (next = look(s, i)); i++) {
        c = next;
        sum -= weight_of(s, c, temperature);
        if (sum < 0)
            break;
    }
    return c->token;
}

/* --- The whole --- */

/* The largest, the first of them; 0 where there is no number. */
static uint32_t most_likely(const td_sampler *s)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < s->words; i++)
        if (s->logits[i] > s->logits[best] || (isnan(s->logits[best]) && !isnan(s->logits[i])))
            best = i;
    return best;
}

/* All tokens whose bits are 0. */
static void leave_out(td_sampler *s, const uint64_t *allowed)
{
    for (uint32_t i = 0; i < s->words; i++)
        if (allowed[i / 64] == UINT64_MAX)
            i |= 63;
        else if (!(allowed[i / 64] >> i % 64 & 1))
            s->logits[i] = NAN;
}

static bool cuts(float p)
{
    return p > 0 && p < 1;
}

/* Which of the candidates in the heap it is. */
static uint32_t choose(td_sampler *s)
{
    const td_sampling *how = &s->how;
    const uint64_t drawn = 2 * s->drawn++;

    look(s, 0); /* which others are compared with */
    s->total = sum_up(s, 1);
    if (how->top_k)
        keep_top_k(s);
    if (cuts(how->typical_p))
        keep_typical(s);
    if (cuts(how->top_p))
        keep_top_p(s);
    if (how->min_p > 0)
        keep_min_p(s);
    if (how->xtc_probability > 0 && td_sampling_draw(how->seed, drawn) < (double)how->xtc_probability)
        leave_out_top(s);
    return draw(s, td_sampling_draw(how->seed, drawn + 1));
}

/* Bias and penalties. */
static void weigh(td_sampler *s, const uint32_t *history, size_t count)
{
    for (uint32_t i = 0; i < s->how.bias_count; i++)
        s->logits[s->how.biases[i].token] += s->how.biases[i].bias;
    penalise(s, history, count);
    penalise_repetitions(s, history, count);
}

uint32_t td_sampler_next(td_sampler *s, const float *logits, const uint64_t *allowed,
                         const uint32_t *history, size_t count)
{
    memcpy(s->logits, logits, s->words * sizeof *logits);
    if (allowed)
        leave_out(s, allowed);
    weigh(s, history, count);
    const uint32_t best = most_likely(s);
    if (s->how.temperature == 0 || !(s->logits[best] > -INFINITY))
        return best; /* there is nothing to draw from */
    make_heap(s);
    return choose(s);
}

bool td_sampler_may_use_tops(const td_sampler *s, uint32_t top_count)
{
    const td_sampling *how = &s->how;
    bool only_lowers = (how->repetition == 0 || how->repetition >= 1) && how->frequency >= 0 && how->presence >= 0;

    for (uint32_t i = 0; i < how->bias_count; i++)
        only_lowers = only_lowers && how->biases[i].bias <= 0;
    return top_count && only_lowers && (how->temperature == 0 || (how->top_k && how->top_k <= top_count));
}

/* What is weighed of those that are not among the largest is of an earlier token, and nobody looks at it. */
bool td_sampler_next_of_tops(td_sampler *s, const td_words *of, const uint32_t *history, size_t count, uint32_t *token)
{
    const uint32_t wanted = s->how.temperature == 0 ? 1 : s->how.top_k;
    candidate last = {0}; /* of which no other token is ahead; where there are fewer, there is no other */
    uint32_t known = 0, ahead = 0;

    for (; known < of->top_count && of->tops[of->top_count + known] >= 0; known++) {
        last = (candidate){of->tops[known], (uint32_t)of->tops[of->top_count + known], 0};
        if (last.token < s->words)
            s->logits[last.token] = last.logit;
    }
    weigh(s, history, count);
    s->left = 0;
    for (uint32_t i = 0; i < known; i++) {
        candidate c = {.token = (uint32_t)of->tops[of->top_count + i]};

        if (c.token >= s->words || isnan(s->logits[c.token]))
            continue;
        c.logit = s->logits[c.token];
        ahead += c.logit > -INFINITY && (known < of->top_count || !before(&last, &c));
        s->heap[s->left++] = c;
    }
    if (!ahead || (ahead < wanted && known == of->top_count))
        return false;
    order_heap(s);
    *token = s->how.temperature == 0 ? s->heap[0].token : choose(s);
    return true;
}
