/* `tandem generate`: what a language model answers, token by token.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/npc/chat.h"
#include "engine_plugin/tool/language.h"
#include "interop/base.h"

/* clang-format off */
const char *const tool_generate_help =
    "usage: tandem generate --model F --prompt T|- [options]\n"
    "\n"
    "What a language model says to a text, written as it comes: of all tokens always the most likely one,\n"
    "so the same each time, up to where the model ends its reply.\n"
    "\n"
    "  --model F        a GGUF file of Llama's architecture, as `tandem fetch` brings one\n"
    "  --prompt T       the text; with - it comes from standard input\n"
    "  --plain          the model goes on with the text; default: it is what a user says, with what the\n"
    "                   model wants around that\n"
    "  --tokens N       at most so many tokens of a reply; default: 128\n"
    "  --temperature 0  so far 0 is all there is: the most likely token\n"
    "  --attention auto|f16|8b|4b\n"
    "                   the precision of attention; default: auto, which is f16\n"
    "  --rung auto|inline|timeline|host|copy|cpu\n"
    "                   the way of computing; default: auto, the best that there is\n"
    "  --threads N      threads that a CPU computes on; default: all cores\n"
    "  --json           the tokens and times as JSON, behind the text\n";
/* clang-format on */

enum { MOST_TOKENS = 1 << 20 };

typedef struct arguments {
    const char *model, *prompt, *tokens, *temperature, *attention, *rung, *threads;
    bool plain, json;
    uint32_t precision, rung_value;
    uint64_t token_count, thread_count;
} arguments;

static int read_arguments(int argc, char **argv, arguments *a)
{
    static const char *const temperatures[] = {"0", NULL};
    const tool_option options[] = {{"--model", &a->model, NULL},
                                   {"--prompt", &a->prompt, NULL},
                                   {"--plain", NULL, &a->plain},
                                   {"--tokens", &a->tokens, NULL},
                                   {"--temperature", &a->temperature, NULL},
                                   {"--attention", &a->attention, NULL},
                                   {"--rung", &a->rung, NULL},
                                   {"--threads", &a->threads, NULL},
                                   {"--json", NULL, &a->json}};
    if (tool_parse("generate", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!a->model || !a->prompt)
        return tool_usage("generate", "%s is missing; `tandem help generate` explains it",
                          !a->model ? "--model" : "--prompt");
    a->token_count = 128;
    if (a->tokens && !tool_number(a->tokens, 1, MOST_TOKENS, &a->token_count))
        return tool_usage("generate", "--tokens \"%s\" is not a number from 1 to %d", a->tokens,
                          MOST_TOKENS);
    if (a->threads && !tool_number(a->threads, 1, 1024, &a->thread_count))
        return tool_usage("generate", "--threads \"%s\" is not a number from 1 to 1024", a->threads);
    if (tool_word(a->temperature, temperatures) < 0)
        return tool_usage("generate", "--temperature \"%s\" is not 0", a->temperature);
    if (!tool_precision("generate", a->attention, &a->precision) ||
        !tool_rung("generate", a->rung, &a->rung_value))
        return TOOL_USAGE;
    return TOOL_OK;
}

/* --- The prompt --- */

static tandem_status encode(const arguments *a, tool_language *l, const char *text, size_t bytes,
                            td_tokens *tokens)
{
    static const char key[] = "tokenizer.chat_template";
    const td_chat_turn turn = {TD_CHAT_USER, text, bytes};
    const td_text_part part = {text, bytes, false};
    td_gguf_string program;
    char why[400] = "no memory for tokens";
    tandem_status status;

    if (a->plain) {
        status = tool_encode(l->tokenizer, &part, tokens, why, sizeof why);
    } else {
        status = td_gguf_text(&l->file, key, &program, why, sizeof why);
        const td_chat_form *form = status == TANDEM_OK ? td_chat_recognise(program) : NULL;

        if (form)
            status = td_chat_encode(l->tokenizer, form, &turn, 1, true, tokens, why, sizeof why);
        else if (status == TANDEM_OK)
            status = td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED,
                             "%s is in no form that is known; --plain goes without", key);
    }
    if (status == TANDEM_OK && !tokens->count)
        status = td_fail(why, sizeof why, TANDEM_ERROR_ARG, "the text has no token");
    if (status != TANDEM_OK)
        snprintf(l->why, sizeof l->why, "--model '%s': %s", a->model, why);
    return status;
}

/* --- The reply --- */

static uint32_t most_likely(const float *logits, uint32_t words)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < words; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static void print_json(const td_tokens *tokens, size_t prompt, double prompt_ms, double reply_ms)
{
    printf("{\"prompt\": %zu, \"prompt_ms\": %.3f, \"reply_ms\": %.3f, \"tokens\": [", prompt,
           prompt_ms, reply_ms);
    for (size_t i = prompt; i < tokens->count; i++)
        printf("%s%" PRIu32, i > prompt ? ", " : "", tokens->ids[i]);
    printf("]}\n");
}

/* Behind the prompt, which is in `tokens`. */
static bool reply(const arguments *a, tool_language *l, td_tokens *tokens, char *to)
{
    const size_t prompt = tokens->count, most = prompt + a->token_count;
    const uint64_t begin = td_now_ns();
    td_decoder decoder = td_decoder_begin(l->tokenizer, false);
    tandem_status status = td_speaker_read(&l->speaker, tokens->ids, 0, (uint32_t)prompt);
    const uint64_t read = td_now_ns();

    if (!tool_language_done(l, status))
        return false;
    while (status == TANDEM_OK && tokens->count < most) {
        const uint32_t at = (uint32_t)tokens->count,
                       next = most_likely(l->speaker.logits, l->speaker.words);

        if (td_tokenizer_is_end(l->tokenizer, next))
            break;
        fwrite(to, 1, td_decoder_add(&decoder, next, to), stdout);
        fflush(stdout);
        status = td_tokens_add(tokens, next);
        if (status == TANDEM_OK && tokens->count < most)
            status = td_speaker_read(&l->speaker, &next, at, 1);
    }
    fwrite(to, 1, td_decoder_end(&decoder, to), stdout);
    putchar('\n');
    if (a->json && status == TANDEM_OK)
        print_json(tokens, prompt, 1e-6 * (double)(read - begin),
                   1e-6 * (double)(td_now_ns() - read));
    return tool_language_done(l, status);
}

static int run(const arguments *a, tool_language *l, td_tokens *tokens, const char *text,
               size_t bytes)
{
    if (!tool_language_open(l, a->model) || encode(a, l, text, bytes, tokens) != TANDEM_OK)
        return tool_fail("generate", "%s", l->why);
    const int status = tool_language_begin(
        l, "generate", a->rung_value, (uint32_t)a->thread_count,
        &(td_speaker_desc){.path = a->model,
                           .context = (uint32_t)(tokens->count + a->token_count),
                           .precision = a->precision});
    if (status != TOOL_OK)
        return status;
    char *to = malloc(td_decoder_room(l->tokenizer));
    const bool said = to ? reply(a, l, tokens, to) : tool_language_done(l, TANDEM_ERROR_NOMEM);
    free(to);
    return said ? TOOL_OK : tool_fail("generate", "%s", l->why);
}

int tool_generate(int argc, char **argv)
{
    arguments a = {.temperature = "0", .attention = "auto", .rung = "auto"};
    tool_language l = {0};
    td_tokens tokens = {0};
    char *input = NULL;
    size_t bytes;
    int status = read_arguments(argc, argv, &a);

    if (status != TOOL_OK)
        return status;
    const char *text = tool_text("generate", a.prompt, &input, &bytes);
    status = text ? run(&a, &l, &tokens, text, bytes) : TOOL_FAILED;
    tool_language_close(&l);
    td_tokens_free(&tokens);
    free(input);
    return status;
}
