/* Sampling against a plain account of the same steps, its draws against probabilities, and texts
 * that end a reply.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/npc/sampling.h"
#include "engine_plugin/npc/stops.h"

enum { WORDS = 300, HISTORY = 120 };

static uint64_t at; /* of the test's own random numbers */

static double uniform(void)
{
    return td_sampling_draw(42, at++);
}

static uint32_t below(uint32_t most)
{
    return (uint32_t)(uniform() * most);
}

/* --- The plain account --- */

typedef struct plain {
    uint32_t count;
    uint32_t tokens[WORDS];
    double logits[WORDS], p[WORDS];
} plain;

static void plain_sort(plain *of)
{
    for (uint32_t i = 1; i < of->count; i++)
        for (uint32_t j = i; j > 0 && (of->logits[j] > of->logits[j - 1] ||
                                       (of->logits[j] == of->logits[j - 1] &&
                                        of->tokens[j] < of->tokens[j - 1]));
             j--) {
            const double logit = of->logits[j];
            const uint32_t token = of->tokens[j];

            of->logits[j] = of->logits[j - 1], of->tokens[j] = of->tokens[j - 1];
            of->logits[j - 1] = logit, of->tokens[j - 1] = token;
        }
}

static void plain_softmax(plain *of, double temperature)
{
    double sum = 0;

    for (uint32_t i = 0; i < of->count; i++)
        sum += of->p[i] = exp((of->logits[i] - of->logits[0]) / temperature);
    for (uint32_t i = 0; i < of->count; i++)
        of->p[i] /= sum;
}

/* Those that are marked stay. */
static void plain_keep(plain *of, const bool *stays)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < of->count; i++)
        if (stays[i]) {
            of->logits[count] = of->logits[i];
            of->tokens[count++] = of->tokens[i];
        }
    of->count = count;
    plain_softmax(of, 1);
}

static void plain_typical(plain *of, double most)
{
    bool stays[WORDS] = {false};
    double mean = 0, sum = 0;

    for (uint32_t i = 0; i < of->count; i++)
        mean -= of->p[i] > 0 ? of->p[i] * log(of->p[i]) : 0;
    while (sum < most) {
        uint32_t best = of->count;

        for (uint32_t i = 0; i < of->count; i++)
            if (!stays[i] && (best == of->count || fabs(-log(of->p[i]) - mean) <
                                                       fabs(-log(of->p[best]) - mean)))
                best = i;
        if (best == of->count)
            break;
        stays[best] = true;
        sum += of->p[best];
    }
    plain_keep(of, stays);
}

static void plain_top_p(plain *of, double most)
{
    bool stays[WORDS] = {false};
    double sum = 0;

    for (uint32_t i = 0; i < of->count && sum < most; i++) {
        stays[i] = true;
        sum += of->p[i];
    }
    plain_keep(of, stays);
}

static void plain_min_p(plain *of, double least)
{
    bool stays[WORDS];

    for (uint32_t i = 0; i < of->count; i++)
        stays[i] = of->p[i] >= least * of->p[0];
    plain_keep(of, stays);
}

static void plain_xtc(plain *of, double threshold)
{
    bool stays[WORDS];

    for (uint32_t i = 0; i < of->count; i++)
        stays[i] = i + 1 == of->count || of->p[i] < threshold || of->p[i + 1] < threshold;
    plain_keep(of, stays);
}

static void plain_penalties(const td_sampling *how, float *logits, const uint32_t *history,
                            uint32_t count)
{
    const uint32_t first =
        how->penalty_last && count > how->penalty_last ? count - how->penalty_last : 0;

    for (uint32_t t = 0; t < WORDS; t++) {
        uint32_t times = 0;

        for (uint32_t i = first; i < count; i++)
            times += history[i] == t;
        if (!times)
            continue;
        if (how->repetition > 0)
            logits[t] = logits[t] > 0 ? logits[t] / how->repetition : logits[t] * how->repetition;
        logits[t] -= how->frequency * (float)times + how->presence;
    }
}

/* For each token the longest repetition that it would go on with. */
static void plain_dry(const td_sampling *how, float *logits, const uint32_t *history, uint32_t count)
{
    const uint32_t first = how->dry_last && count > how->dry_last ? count - how->dry_last : 0;

    for (uint32_t t = 0; t < WORDS; t++) {
        uint32_t longest = 0;

        for (uint32_t i = first + 1; i < count; i++) {
            uint32_t length = 0;

            while (history[i] == t && length < i - first &&
                   history[i - 1 - length] == history[count - 1 - length]) {
                bool breaks = false;

                for (uint32_t b = 0; b < how->dry_break_count; b++)
                    breaks = breaks || how->dry_breaks[b] == history[count - 1 - length];
                if (breaks)
                    break;
                length++;
            }
            longest = length > longest ? length : longest;
        }
        if (how->dry_multiplier > 0 && longest >= how->dry_length)
            logits[t] -= (float)((double)how->dry_multiplier *
                                 pow((double)how->dry_base, longest - how->dry_length));
    }
}

static uint32_t plain_next(const td_sampling *how, uint64_t drawn, const float *given,
                           const uint32_t *history, uint32_t count)
{
    float logits[WORDS];
    static plain of;
    double sum = 0;
    uint32_t i = 0;

    memcpy(logits, given, sizeof logits);
    for (uint32_t b = 0; b < how->bias_count; b++)
        logits[how->biases[b].token] += how->biases[b].bias;
    plain_penalties(how, logits, history, count);
    plain_dry(how, logits, history, count);
    of.count = WORDS;
    for (uint32_t t = 0; t < WORDS; t++)
        of.tokens[t] = t, of.logits[t] = (double)logits[t];
    plain_sort(&of);
    if (how->temperature == 0)
        return of.tokens[0];
    if (how->top_k && how->top_k < of.count)
        of.count = how->top_k;
    plain_softmax(&of, 1);
    if (how->typical_p > 0 && how->typical_p < 1)
        plain_typical(&of, (double)how->typical_p);
    if (how->top_p > 0 && how->top_p < 1)
        plain_top_p(&of, (double)how->top_p);
    if (how->min_p > 0)
        plain_min_p(&of, (double)how->min_p);
    if (td_sampling_draw(how->seed, 2 * drawn) < (double)how->xtc_probability)
        plain_xtc(&of, (double)how->xtc_threshold);
    plain_softmax(&of, (double)how->temperature);
    for (; i + 1 < of.count; i++)
        if ((sum += of.p[i]) > td_sampling_draw(how->seed, 2 * drawn + 1))
            break;
    return of.tokens[i];
}

/* --- Against it --- */

static float some_of(float least, float most)
{
    return uniform() < 0.5 ? 0 : least + (float)uniform() * (most - least);
}

static td_sampling random_sampling(const td_logit_bias *biases, const uint32_t *breaks)
{
    return (td_sampling){.seed = below(1000000),
                         .temperature = some_of(0.2f, 2),
                         .top_k = uniform() < 0.5 ? 0 : 1 + below(2 * WORDS),
                         .typical_p = some_of(0.1f, 1),
                         .top_p = some_of(0.1f, 1),
                         .min_p = some_of(0.01f, 0.3f),
                         .xtc_probability = some_of(0, 1),
                         .xtc_threshold = 0.02f + 0.2f * (float)uniform(),
                         .penalty_last = uniform() < 0.5 ? 0 : below(HISTORY),
                         .repetition = some_of(0.8f, 1.5f),
                         .frequency = some_of(-0.5f, 0.5f),
                         .presence = some_of(-0.5f, 0.5f),
                         .dry_multiplier = some_of(0.1f, 2),
                         .dry_base = 1 + (float)uniform(),
                         .dry_length = 1 + below(4),
                         .dry_last = uniform() < 0.5 ? 0 : below(HISTORY),
                         .dry_breaks = breaks,
                         .dry_break_count = below(3),
                         .biases = biases,
                         .bias_count = below(4)};
}

static void test_against_a_plain_account(void **state)
{
    enum { CASES = 1500, TOKENS = 4 };
    static const uint32_t breaks[] = {3, 5};
    static const td_logit_bias biases[] = {{7, 3}, {0, -INFINITY}, {WORDS - 1, 2}};
    float logits[WORDS];
    uint32_t history[HISTORY];
    char why[200];

    (void)state;
    for (uint32_t n = 0; n < CASES; n++) {
        const td_sampling how = random_sampling(biases, breaks);
        const uint32_t kinds = 2 + below(12), spread = 1 + below(8);
        td_sampler *s;

        assert_int_equal(td_sampler_create(&how, WORDS, &s, why, sizeof why), TANDEM_OK);
        for (uint32_t i = 0; i < HISTORY; i++)
            history[i] = below(kinds);
        for (uint32_t i = 0; i < TOKENS; i++) {
            const uint32_t count = below(HISTORY);

            for (uint32_t t = 0; t < WORDS; t++)
                logits[t] = (float)(spread * (uniform() + uniform() + uniform() - 1.5)) *
                            (n % 5 ? 1 : 0); /* now and then all are equal */
            const uint32_t want = plain_next(&how, how.temperature > 0 ? i : 0, logits, history, count),
                           got = td_sampler_next(s, logits, NULL, history, count);
            if (got != want)
                fail_msg("case %u, token %u: %u, not %u", n, i, got, want);
        }
        td_sampler_destroy(&s);
        assert_null(s);
    }
}

/* The largest of them, as an operation `top` has them. */
static void find_tops(const float logits[WORDS], float *tops, uint32_t count)
{
    bool taken[WORDS] = {false};

    for (uint32_t i = 0; i < count; i++) {
        uint32_t best = WORDS;

        for (uint32_t t = 0; t < WORDS; t++)
            if (!taken[t] && !isnan(logits[t]) && (best == WORDS || logits[t] > logits[best]))
                best = t;
        tops[i] = best < WORDS ? logits[best] : NAN;
        tops[count + i] = best < WORDS ? (float)best : -1;
        if (best < WORDS)
            taken[best] = true;
    }
}

/* The token that all logits give, or none: always one where nothing is penalised, most often where something is. */
static void test_largest_logits(void **state)
{
    enum { CASES = 6000, TOPS = 64 };
    static const uint32_t breaks[] = {3, 5};
    static const td_logit_bias biases[] = {{7, -3}, {0, -INFINITY}, {WORDS - 1, 2}};
    uint32_t may = 0, said = 0, unsaid = 0, history[HISTORY];
    float logits[WORDS], tops[2 * TOPS];
    char why[200];

    (void)state;
    for (uint32_t n = 0; n < CASES; n++) {
        td_sampling how = random_sampling(biases, breaks);
        const uint32_t kinds = 2 + below(120), spread = 1 + below(8), words = n % 3 ? WORDS : WORDS - below(50);
        const uint32_t numbers = n % 7 ? WORDS : below(TOPS);
        td_sampler *all, *few;

        how.top_k = n % 2 ? how.top_k : 1 + below(TOPS);
        how.bias_count = words == WORDS ? how.bias_count : how.bias_count % 3;
        assert_int_equal(td_sampler_create(&how, words, &all, why, sizeof why), TANDEM_OK);
        assert_int_equal(td_sampler_create(&how, words, &few, why, sizeof why), TANDEM_OK);
        const bool raises = (how.repetition > 0 && how.repetition < 1) || how.frequency < 0 || how.presence < 0 || how.bias_count == 3,
                   many = how.temperature > 0 && (!how.top_k || how.top_k > TOPS);
        assert_int_equal(td_sampler_may_use_tops(few, TOPS), !raises && !many);
        assert_false(td_sampler_may_use_tops(few, 0));
        for (uint32_t i = 0; i < HISTORY; i++)
            history[i] = below(kinds);
        for (uint32_t i = 0; i < 3 && !raises && !many; i++) {
            const uint32_t count = below(HISTORY);
            uint32_t token = WORDS;

            for (uint32_t t = 0; t < WORDS; t++) {
                logits[t] = (float)(spread * (uniform() + uniform() + uniform() - 1.5)) * (n % 5 ? 1 : 0);
                logits[t] = t < numbers ? logits[t] : NAN;
            }
            find_tops(logits, tops, TOPS);
            may++;
            if (!td_sampler_next_of_tops(few, &(td_words){.tops = tops, .top_count = TOPS}, history, count, &token)) {
                unsaid++;
                token = td_sampler_next(few, logits, NULL, history, count);
            } else {
                said++;
            }
            assert_int_equal(token, td_sampler_next(all, logits, NULL, history, count));
        }
        td_sampler_destroy(&all);
        td_sampler_destroy(&few);
    }
    printf("%u of %u tokens by the largest 64 of 300 logits\n", said, may);
    assert_true(may > CASES / 4 && unsaid > may / 100 && said > may / 2);
}

/* Without penalties the largest always do. */
static void test_largest_do(void **state)
{
    enum { TOPS = 64 };
    const td_sampling ways[] = {{.seed = 1}, {.seed = 2, .temperature = 1, .top_k = 64}, {.seed = 3, .temperature = 0.5f, .top_k = 1}};
    float logits[WORDS], tops[2 * TOPS];

    (void)state;
    for (uint32_t n = 0; n < 300; n++) {
        td_sampler *s;
        uint32_t token;

        assert_int_equal(td_sampler_create(&ways[n % 3], WORDS, &s, NULL, 0), TANDEM_OK);
        for (uint32_t t = 0; t < WORDS; t++)
            logits[t] = n % 4 ? (float)uniform() : (float)below(2); /* many are equal */
        find_tops(logits, tops, TOPS);
        assert_true(td_sampler_next_of_tops(s, &(td_words){.tops = tops, .top_count = TOPS}, NULL, 0, &token));
        for (uint32_t t = 0; t < 2 * TOPS; t++)
            tops[t] = t < TOPS ? NAN : -1; /* not one number */
        assert_false(td_sampler_next_of_tops(s, &(td_words){.tops = tops, .top_count = TOPS}, NULL, 0, &token));
        td_sampler_destroy(&s);
    }
}

/* As often as is likely: within 5 standard deviations. */
static void test_draws(void **state)
{
    enum { DRAWS = 100000 };
    const float logits[5] = {0, 1, 2, -1, 1.5f};
    const td_sampling how = {.temperature = 0.7f, .seed = 9};
    double p[5], sum = 0;
    uint32_t counts[5] = {0};
    td_sampler *s;

    (void)state;
    assert_int_equal(td_sampler_create(&how, 5, &s, NULL, 0), TANDEM_OK);
    for (int i = 0; i < DRAWS; i++)
        counts[td_sampler_next(s, logits, NULL, NULL, 0)]++;
    for (int i = 0; i < 5; i++)
        sum += p[i] = exp((double)logits[i] / (double)how.temperature);
    for (int i = 0; i < 5; i++)
        assert_true(fabs(counts[i] - DRAWS * p[i] / sum) <
                    5 * sqrt(DRAWS * p[i] / sum * (1 - p[i] / sum)));
    td_sampler_destroy(&s);
}

static void test_seeds(void **state)
{
    enum { TOKENS = 50 };
    const float logits[WORDS] = {0};
    td_sampling how = {.temperature = 1};
    uint32_t tokens[3][TOKENS];
    td_sampler *s;

    (void)state;
    for (int n = 0; n < 3; n++) {
        how.seed = n == 2;
        assert_int_equal(td_sampler_create(&how, WORDS, &s, NULL, 0), TANDEM_OK);
        for (int i = 0; i < TOKENS; i++)
            tokens[n][i] = td_sampler_next(s, logits, NULL, NULL, 0);
        td_sampler_destroy(&s);
    }
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    assert_memory_not_equal(tokens[0], tokens[2], sizeof tokens[0]);
}

/* What is no number is never taken; with none left it is token 0. */
static void test_bad_logits(void **state)
{
    float logits[4] = {NAN, -INFINITY, 1, NAN};
    const uint32_t history[] = {2, 9, UINT32_MAX}; /* some are no words */
    td_sampling how = {.temperature = 1, .top_k = 3, .typical_p = 0.5f, .top_p = 0.9f,
                       .min_p = 0.1f, .repetition = 1.2f, .dry_multiplier = 1, .dry_base = 1.5f,
                       .dry_length = 1};
    td_sampler *s;

    (void)state;
    assert_int_equal(td_sampler_create(&how, 4, &s, NULL, 0), TANDEM_OK);
    assert_int_equal(td_sampler_next(s, logits, NULL, history, 3), 2);
    logits[2] = INFINITY;
    assert_int_equal(td_sampler_next(s, logits, NULL, history, 3), 2);
    logits[2] = -INFINITY;
    assert_int_equal(td_sampler_next(s, logits, NULL, history, 3), 1);
    logits[1] = logits[2] = NAN;
    assert_int_equal(td_sampler_next(s, logits, NULL, history, 3), 0);
    td_sampler_destroy(&s);
    assert_int_equal(td_sampler_create(&(td_sampling){0}, 4, &s, NULL, 0), TANDEM_OK);
    logits[3] = -2, logits[1] = -3;
    assert_int_equal(td_sampler_next(s, logits, NULL, history, 3), 3);
    td_sampler_destroy(&s);
}

/* What is not allowed might as well be no number. */
static void test_allowed(void **state)
{
    enum { CASES = 200 };
    const td_sampling how = {.temperature = 1, .top_k = 20, .top_p = 0.9f, .repetition = 1.1f};
    float logits[WORDS], left[WORDS];
    const uint32_t history[] = {1, 2, 3};
    td_sampler *s[2];

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(td_sampler_create(&how, WORDS, &s[i], NULL, 0), TANDEM_OK);
    for (int n = 0; n < CASES; n++) {
        uint64_t allowed[(WORDS + 63) / 64] = {0};

        allowed[n % 3] = UINT64_MAX;
        for (uint32_t t = 0; t < WORDS; t++) {
            if (uniform() < 0.1)
                allowed[t / 64] |= (uint64_t)1 << t % 64;
            logits[t] = (float)(4 * uniform());
            left[t] = allowed[t / 64] >> t % 64 & 1 ? logits[t] : NAN;
        }
        const uint32_t got = td_sampler_next(s[0], logits, allowed, history, 3);
        assert_true(allowed[got / 64] >> got % 64 & 1);
        assert_int_equal(got, td_sampler_next(s[1], left, NULL, history, 3));
    }
    for (int i = 0; i < 2; i++)
        td_sampler_destroy(&s[i]);
}

static void test_refusals(void **state)
{
    const struct {
        td_sampling how;
        const char *says;
    } cases[] = {
        {{.temperature = -1}, "temperature is -1; it must be 0 to 1000"},
        {{.temperature = NAN}, "temperature is"},
        {{.top_p = 1.5f}, "top_p is 1.5"},
        {{.min_p = -0.5f}, "min_p is -0.5"},
        {{.typical_p = 2}, "typical_p is 2"},
        {{.xtc_probability = 2}, "xtc_probability is 2"},
        {{.xtc_threshold = -1}, "xtc_threshold is -1"},
        {{.repetition = -1}, "repetition is -1"},
        {{.frequency = INFINITY}, "frequency is inf"},
        {{.dry_multiplier = 1, .dry_length = 2}, "dry_base is 0; it must be 1 to 1000"},
        {{.dry_multiplier = 1, .dry_base = 2}, "dry_length is 0; it must be 1 to"},
        {{.biases = &(td_logit_bias){WORDS, 1}, .bias_count = 1}, "biases[0] is 1 of token 300"},
    };
    char why[200];
    td_sampler *s;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(td_sampler_create(&cases[i].how, WORDS, &s, why, sizeof why),
                         TANDEM_ERROR_ARG);
        assert_null(s);
        if (!strstr(why, cases[i].says))
            fail_msg("\"%s\" instead of \"%s\"", why, cases[i].says);
    }
}

/* --- Stops --- */

/* Texts of few letters in pieces of any size: what is shown, all together, ends where the first stop
 * begins; and nothing is held back that no stop begins with. */
static void test_stops(void **state)
{
    static const char *const stops[] = {"aab", "abab", "b\xc3\xa4" "b"};
    static const char *const letters[] = {"a", "b", "c", "\xc3\xa4"};

    (void)state;
    for (int n = 0; n < 3000; n++) {
        const size_t count = below(4);
        td_stops s = {.texts = stops, .count = count};
        char text[200] = "", shown[200] = "";
        const char *out;
        size_t bytes, end, done = 0;

        for (uint32_t i = below(30); i > 0; i--)
            strcat(text, letters[below(n % 2 ? 2 : 4)]);
        end = strlen(text);
        for (size_t i = 0; i < count; i++) {
            const char *found = strstr(text, stops[i]);

            end = found && (size_t)(found - text) < end ? (size_t)(found - text) : end;
        }
        while (done < strlen(text)) {
            const size_t left = strlen(text) - done, piece = 1 + below((uint32_t)left);

            assert_int_equal(td_stops_add(&s, text + done, piece, &out, &bytes), TANDEM_OK);
            strncat(shown, out, bytes);
            done += piece;
            if (!s.found && strlen(shown) < done) {
                bool may = false;

                for (size_t i = 0; i < count; i++)
                    may = may || !strncmp(stops[i], text + strlen(shown), done - strlen(shown));
                assert_true(may);
            }
        }
        assert_int_equal(s.found, end < strlen(text));
        td_stops_end(&s, &out, &bytes);
        strncat(shown, out, bytes);
        assert_int_equal(strlen(shown), end);
        assert_memory_equal(shown, text, end);
        td_stops_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_a_plain_account),
        cmocka_unit_test(test_largest_logits),
        cmocka_unit_test(test_largest_do),
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_bad_logits),
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_stops),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
