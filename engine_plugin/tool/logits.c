/* `tandem logits`: what a language model makes of some tokens, for anybody to compare.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "engine_plugin/tool/language.h"

/* clang-format off */
const char *const tool_logits_help =
    "usage: tandem logits --model F --tokens LIST --out G.safetensors [options]\n"
    "\n"
    "Reads tokens as a language model does, and writes its logits behind each of them: \"logits\", F32\n"
    "[tokens, words], and \"tokens\", I32 [tokens].\n"
    "\n"
    "  --model F        a GGUF file, as `tandem fetch` brings one, or a folder as transformers has\n"
    "  --tokens LIST    their numbers, as 1,2,3; `tandem tokenize --ids` makes such a list of a text\n"
    "  --out G          where to write, a safetensors file\n"
    TOOL_LANGUAGE_HELP;
/* clang-format on */

typedef struct arguments {
    const char *model, *tokens, *out, *attention, *kv, *rung, *socket;
    uint32_t precision, cache, rung_value;
} arguments;

static int read_arguments(int argc, char **argv, arguments *a)
{
    const tool_option options[] = {{"--model", &a->model, NULL},
                                   {"--tokens", &a->tokens, NULL},
                                   {"--out", &a->out, NULL},
                                   {"--attention", &a->attention, NULL},
                                   {"--kv", &a->kv, NULL},
                                   {"--rung", &a->rung, NULL},
                                   {"--socket", &a->socket, NULL}};
    if (tool_parse("logits", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!a->model || !a->tokens || !a->out)
        return tool_usage("logits", "%s is missing; `tandem help logits` explains it",
                          !a->model    ? "--model"
                          : !a->tokens ? "--tokens"
                                       : "--out");
    if (!tool_precision("logits", "--attention", a->attention, &a->precision) ||
        !tool_cache("logits", a->kv, a->precision, &a->cache) ||
        !tool_rung("logits", a->rung, &a->rung_value))
        return TOOL_USAGE;
    return TOOL_OK;
}

/* All of them, a part at a time, as tensors. */
static bool compute(tool_language *l, const td_tokens *tokens, tool_list *result)
{
    const uint32_t words = l->speaker.words, count = (uint32_t)tokens->count;
    float *logits = tool_add(result, "logits", "F32", 2, count, words, 1, 1);
    void *ids = tool_add(result, "tokens", "I32", 1, count, 1, 1, 1);

    if (!logits || !ids)
        return tool_language_done(l, TANDEM_ERROR_NOMEM);
    memcpy(ids, tokens->ids, count * sizeof *tokens->ids);
    for (uint32_t done = 0, n; done < count; done += n) {
        n = count - done < TD_SPEAKER_PART ? count - done : TD_SPEAKER_PART;
        if (!tool_language_done(
                l, td_speaker_compute(&l->speaker, tokens->ids + done, done, n, n)))
            return false;
        memcpy(logits + (size_t)done * words, l->speaker.logits, n * words * sizeof *logits);
    }
    return true;
}

static int run(const arguments *a, tool_language *l, td_tokens *tokens, tool_list *result)
{
    uint32_t words;
    int status;

    if (!tool_can_save("--out", a->out, l->why, sizeof l->why) ||
        !tool_language_open_numbers(l, a->model, &words))
        return tool_fail("logits", "%s", l->why);
    status = tool_read_tokens("logits", a->tokens, words, tokens);
    if (status == TOOL_OK && !tokens->count)
        status = tool_usage("logits", "--tokens is \"%s\", which is none", a->tokens);
    if (status == TOOL_OK)
        status = tool_language_begin(l, "logits", a->rung_value, 0, a->socket,
                                     &(td_speaker_desc){.path = a->model,
                                                        .context = (uint32_t)tokens->count,
                                                        .precision = a->precision,
                                                        .cache = a->cache,
                                                        .all_logits = true});
    if (status != TOOL_OK)
        return status;
    if (!compute(l, tokens, result) || !tool_save(a->out, result, l->why, sizeof l->why))
        return tool_fail("logits", "%s", l->why);
    return TOOL_OK;
}

int tool_logits(int argc, char **argv)
{
    arguments a = {.attention = "auto", .kv = "f16", .rung = "auto"};
    tool_language l = {0};
    tool_list result = {0};
    td_tokens tokens = {0};
    int status = read_arguments(argc, argv, &a);

    if (status == TOOL_OK)
        status = run(&a, &l, &tokens, &result);
    tool_language_close(&l);
    tool_list_free(&result);
    td_tokens_free(&tokens);
    return status;
}
