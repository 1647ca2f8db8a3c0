/* `tandem perplexity`: how well a language model foretells a text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/language.h"
#include "interop/base.h"

/* clang-format off */
const char *const tool_perplexity_help =
    "usage: tandem perplexity --model F --text T|- [options]\n"
    "\n"
    "How well a language model foretells a text: the exponential of the mean of -log p(token), the\n"
    "smaller the better. The text is cut into parts of so many tokens, which are read one by one, each\n"
    "as if nothing were before it; of a part all tokens but its first one count. With a smaller\n"
    "precision of attention, by how much it is worse.\n"
    "\n"
    "  --model F        a GGUF file, as `tandem fetch` brings one, or a folder as transformers has\n"
    "  --text T         the text; with - it comes from standard input\n"
    "  --context N      tokens of a part; default: 512\n"
    "  --tokens N       at most so many tokens of the text; default: all\n"
    TOOL_LANGUAGE_HELP
    "  --json           as JSON\n";
/* clang-format on */

enum { MOST_TOKENS = 1 << 30, MOST_CONTEXT = 1 << 20 };

typedef struct arguments {
    const char *model, *text, *context, *tokens, *attention, *kv, *rung, *socket;
    bool json;
    uint32_t precision, cache, rung_value;
    uint64_t context_tokens, most_tokens;
} arguments;

static int read_arguments(int argc, char **argv, arguments *a)
{
    const tool_option options[] = {{"--model", &a->model, NULL},
                                   {"--text", &a->text, NULL},
                                   {"--context", &a->context, NULL},
                                   {"--tokens", &a->tokens, NULL},
                                   {"--attention", &a->attention, NULL},
                                   {"--kv", &a->kv, NULL},
                                   {"--rung", &a->rung, NULL},
                                   {"--socket", &a->socket, NULL},
                                   {"--json", NULL, &a->json}};

    if (tool_parse("perplexity", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!a->model || !a->text)
        return tool_usage("perplexity", "%s is missing; `tandem help perplexity` explains it",
                          !a->model ? "--model" : "--text");
    if (!tool_precision("perplexity", "--attention", a->attention, &a->precision) ||
        !tool_cache("perplexity", a->kv, a->precision, &a->cache) ||
        !tool_rung("perplexity", a->rung, &a->rung_value))
        return TOOL_USAGE;
    a->context_tokens = 512;
    a->most_tokens = MOST_TOKENS;
    if (a->context && !tool_number(a->context, 2, MOST_CONTEXT, &a->context_tokens))
        return tool_usage("perplexity", "--context \"%s\" is not a number from 2 to %d", a->context,
                          MOST_CONTEXT);
    if (a->tokens && !tool_number(a->tokens, 2, MOST_TOKENS, &a->most_tokens))
        return tool_usage("perplexity", "--tokens \"%s\" is not a number from 2 to %d", a->tokens,
                          MOST_TOKENS);
    return TOOL_OK;
}

/* -log p of a word, in float64. */
static double surprise(const float *logits, uint32_t words, uint32_t word)
{
    double sum = 0;
    float most = logits[0];

    for (uint32_t i = 1; i < words; i++)
        most = logits[i] > most ? logits[i] : most;
    for (uint32_t i = 0; i < words; i++)
        sum += exp((double)(logits[i] - most));
    return log(sum) + (double)(most - logits[word]);
}

typedef struct score {
    uint64_t count;
    double sum, squares;
} score;

/* A part of the text, of which the first token is only read. */
static bool read_part(tool_language *l, const uint32_t *ids, uint32_t count, score *to)
{
    const uint32_t words = l->speaker.words;

    for (uint32_t done = 0, n; done + 1 < count; done += n) {
        n = count - 1 - done < TD_SPEAKER_PART ? count - 1 - done : TD_SPEAKER_PART;
        if (!tool_language_done(l, td_speaker_compute(&l->speaker, ids + done, done, n, n)))
            return false;
        for (uint32_t i = 0; i < n; i++) {
            const double s =
                surprise(l->speaker.logits + (size_t)i * words, words, ids[done + i + 1]);

            to->sum += s;
            to->squares += s * s;
            to->count++;
        }
    }
    return true;
}

static void print_score(const arguments *a, const score *of, uint64_t cache_bytes, double seconds)
{
    const double count = (double)of->count, mean = of->sum / count,
                 deviation = sqrt(fmax(of->squares / count - mean * mean, 0) / count);

    if (a->json)
        printf("{\"perplexity\": %.6f, \"error\": %.6f, \"tokens\": %" PRIu64
               ", \"context\": %" PRIu64 ", \"attention\": \"%s\", \"kv\": \"%s\", "
               "\"cache_bytes\": %" PRIu64 ", \"seconds\": %.3f}\n",
               exp(mean), exp(mean) * deviation, of->count, a->context_tokens, a->attention, a->kv,
               cache_bytes, seconds);
    else
        printf("perplexity %.4f +- %.4f of %" PRIu64 " tokens in parts of %" PRIu64
               ", %.1f tokens/s\n",
               exp(mean), exp(mean) * deviation, of->count, a->context_tokens, count / seconds);
}

static int compute(const arguments *a, tool_language *l, const td_tokens *tokens)
{
    const uint64_t all = tokens->count < a->most_tokens ? tokens->count : a->most_tokens;
    const uint64_t begin = td_now_ns();
    score sum = {0};

    for (uint64_t at = 0; at + 1 < all; at += a->context_tokens) {
        const uint64_t rest = all - at,
                       count = rest < a->context_tokens ? rest : a->context_tokens;

        if (!read_part(l, tokens->ids + at, (uint32_t)count, &sum))
            return tool_fail("perplexity", "%s", l->why);
    }
    print_score(a, &sum, l->speaker.cache_bytes, 1e-9 * (double)(td_now_ns() - begin));
    return TOOL_OK;
}

static int run(const arguments *a, tool_language *l, td_tokens *tokens, const char *text,
               size_t bytes)
{
    const td_text_part part = {text, bytes, false};
    int status;

    if (!tool_language_open(l, a->model))
        return tool_fail("perplexity", "%s", l->why);
    if (tool_encode(l->tokenizer, &part, tokens, l->why, sizeof l->why) != TANDEM_OK)
        return tool_fail("perplexity", "--text: %s", l->why[0] ? l->why : "no memory for tokens");
    if (tokens->count < 2)
        return tool_fail("perplexity", "--text has %zu tokens; it must have at least 2",
                         tokens->count);
    status = tool_language_begin(l, "perplexity", a->rung_value, 0, a->socket,
                                 &(td_speaker_desc){.path = a->model,
                                                    .context = (uint32_t)a->context_tokens,
                                                    .precision = a->precision,
                                                    .cache = a->cache,
                                                    .all_logits = true});
    return status == TOOL_OK ? compute(a, l, tokens) : status;
}

int tool_perplexity(int argc, char **argv)
{
    arguments a = {.attention = "auto", .kv = "f16", .rung = "auto"};
    tool_language l = {0};
    td_tokens tokens = {0};
    char *input = NULL;
    size_t bytes;
    int status = read_arguments(argc, argv, &a);

    if (status != TOOL_OK)
        return status;
    const char *text = tool_text("perplexity", a.text, &input, &bytes);
    status = text ? run(&a, &l, &tokens, text, bytes) : TOOL_FAILED;
    tool_language_close(&l);
    td_tokens_free(&tokens);
    free(input);
    return status;
}
