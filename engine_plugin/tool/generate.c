/* `tandem generate`: what a language model answers, token by token, on the CPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/exec/exec.h"
#include "engine_plugin/npc/chat.h"
#include "engine_plugin/tool/tool.h"
#include "kernels/model/llama.h"

/* clang-format off */
const char *const tool_generate_help =
    "usage: tandem generate --model F [options] TEXT\n"
    "\n"
    "What a language model says to a text, written as it comes: of all tokens always the most likely one,\n"
    "so the same each time, up to where the model ends its reply. On the CPU so far.\n"
    "\n"
    "  --model F        a GGUF file of Llama's architecture, as `tandem fetch` brings one\n"
    "  --tokens N       at most so many tokens of a reply; default 128\n"
    "  --plain          the model goes on with the text; default: it is what a user says, with what the\n"
    "                   model wants around that\n"
    "  --json           the tokens and times as JSON, behind the text\n";
/* clang-format on */

enum { PART = 64 /* tokens of a prompt at once */, MOST_TOKENS = 1 << 20 };

typedef struct arguments {
    const char *model, *tokens, *text;
    bool plain, json;
    uint64_t token_count;
} arguments;

/* A model with what a run takes. */
typedef struct speaker {
    td_llama llama;
    const td_program *program; /* the last one's, of so many tokens */
    uint32_t tokens, threads;
    void *weights, *state, *uniforms, *scratch;
    float *logits;
} speaker;

static int read_arguments(int argc, char **argv, arguments *a)
{
    const tool_option options[] = {{"--model", &a->model, NULL},
                                   {"--tokens", &a->tokens, NULL},
                                   {"--plain", NULL, &a->plain},
                                   {"--json", NULL, &a->json},
                                   {"", &a->text, NULL}};

    if (tool_parse("generate", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!a->model)
        return tool_usage("generate", "--model is missing; `tandem help generate` explains it");
    if (!a->text)
        return tool_usage("generate", "the text is missing; `tandem help generate` explains it");
    a->token_count = 128;
    if (a->tokens && !tool_number(a->tokens, 1, MOST_TOKENS, &a->token_count))
        return tool_usage("generate", "--tokens \"%s\" is not a number from 1 to %d", a->tokens,
                          MOST_TOKENS);
    return TOOL_OK;
}

/* --- The text --- */

static tandem_status encode(const arguments *a, const td_gguf *file, const td_tokenizer *t,
                            td_tokens *tokens, char *why, size_t why_bytes)
{
    static const char key[] = "tokenizer.chat_template";
    const td_chat_turn turn = {TD_CHAT_USER, a->text, strlen(a->text)};
    const td_text_part part = {a->text, strlen(a->text), false};
    td_gguf_string program;

    if (a->plain) {
        tandem_status status = TANDEM_OK;
        if (td_tokenizer_begins(t))
            status = td_tokens_add(tokens, td_tokenizer_begin(t));
        return status == TANDEM_OK ? td_tokenizer_encode(t, &part, 1, tokens, why, why_bytes)
                                   : status;
    }
    tandem_status status = td_gguf_text(file, key, &program, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    const td_chat_form *form = td_chat_recognise(program);
    if (!form)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "%s is in no form that is known; --plain goes without", key);
    return td_chat_encode(t, form, &turn, 1, true, tokens, why, why_bytes);
}

/* --- The model --- */

static void *new_block(uint64_t bytes)
{
    void *block = aligned_alloc(TD_PROGRAM_ALIGN, td_align_up(bytes + 1, TD_PROGRAM_ALIGN));

    return block ? memset(block, 0, bytes) : NULL;
}

/* A program for so many tokens of a sequence, of which the logits of the last one are wanted. */
static tandem_status prepare(speaker *s, uint32_t tokens, char *why, size_t why_bytes)
{
    const td_target cpu = td_target_for_sm(0);

    if (s->tokens == tokens)
        return TANDEM_OK;
    td_program_drop(&s->program);
    free(s->uniforms);
    free(s->scratch);
    s->uniforms = s->scratch = NULL;
    s->tokens = 0;
    const tandem_status status = td_program_build(s->llama.graph, (const uint32_t[]){1, tokens, 1},
                                                  &cpu, &s->program, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    s->uniforms = new_block(s->program->uniform_bytes);
    s->scratch = new_block(s->program->plan->scratch_bytes);
    if (!s->uniforms || !s->scratch)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for %" PRIu32 " tokens",
                       tokens);
    s->tokens = tokens;
    return TANDEM_OK;
}

static tandem_status load(speaker *s, const td_gguf *file, uint64_t context, char *why,
                          size_t why_bytes)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    tandem_status status = td_llama_open(file, 1, (uint32_t)context, &s->llama, why, why_bytes);

    s->threads = cores > 0 ? (uint32_t)cores : 1;
    if (status == TANDEM_OK)
        status = prepare(s, 1, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    s->weights = new_block(s->program->weight_bytes);
    s->state = new_block(s->program->state_bytes);
    s->logits = new_block(s->llama.sizes.words * sizeof *s->logits);
    if (!s->weights || !s->state || !s->logits)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for its weights");
    td_llama_read_weights(&s->llama, s->program, s->weights);
    return TANDEM_OK;
}

static void unload(speaker *s)
{
    td_program_drop(&s->program);
    td_llama_close(&s->llama);
    free(s->weights);
    free(s->state);
    free(s->uniforms);
    free(s->scratch);
    free(s->logits);
}

static int32_t *uniform(const speaker *s, const char *name)
{
    const uint32_t i = td_graph_find_tensor(s->llama.graph, name);

    return (int32_t *)(void *)((char *)s->uniforms + s->program->tensors[i].offset);
}

/* Tokens at positions from `first` on: s->logits of what comes behind the last one. */
static tandem_status compute(speaker *s, const uint32_t *ids, uint32_t first, uint32_t count,
                             char *why, size_t why_bytes)
{
    for (uint32_t done = 0; done < count;) {
        const uint32_t n = count - done < PART ? count - done : PART;
        tandem_status status = prepare(s, n, why, why_bytes);
        if (status != TANDEM_OK)
            return status;
        for (uint32_t i = 0; i < n; i++) {
            uniform(s, "ids")[i] = (int32_t)ids[done + i];
            uniform(s, "positions")[i] = (int32_t)(first + done + i);
        }
        *uniform(s, "rows") = (int32_t)n - 1;
        const uint64_t views[] = {(uintptr_t)s->weights, (uintptr_t)s->state,
                                  (uintptr_t)s->uniforms, (uintptr_t)s->logits};
        status = td_exec_cpu_run(s->program->plan, views, (uintptr_t)s->scratch, s->threads, NULL);
        if (status != TANDEM_OK)
            return td_fail(why, why_bytes, status, "the CPU could not compute it");
        done += n;
    }
    return TANDEM_OK;
}

static uint32_t most_likely(const speaker *s)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < s->llama.sizes.words; i++)
        best = s->logits[i] > s->logits[best] ? i : best;
    return best;
}

/* --- The reply --- */

static void print_json(const td_tokens *tokens, size_t prompt, double prompt_ms, double reply_ms)
{
    printf("{\"prompt\": %zu, \"prompt_ms\": %ld, \"reply_ms\": %ld, \"tokens\": [", prompt,
           (long)prompt_ms, (long)reply_ms);
    for (size_t i = prompt; i < tokens->count; i++)
        printf("%s%" PRIu32, i > prompt ? ", " : "", tokens->ids[i]);
    printf("]}\n");
}

/* Behind the prompt, which is in `tokens`. */
static tandem_status reply(speaker *s, const td_tokenizer *t, const arguments *a, td_tokens *tokens,
                           char *to, char *why, size_t why_bytes)
{
    const size_t prompt = tokens->count;
    const uint64_t begin = td_now_ns();
    td_decoder decoder = td_decoder_begin(t, false);
    tandem_status status = compute(s, tokens->ids, 0, (uint32_t)prompt, why, why_bytes);
    const uint64_t read = td_now_ns();

    while (status == TANDEM_OK && tokens->count < prompt + a->token_count) {
        const uint32_t at = (uint32_t)tokens->count, next = most_likely(s);

        if (td_tokenizer_is_end(t, next))
            break;
        fwrite(to, 1, td_decoder_add(&decoder, next, to), stdout);
        fflush(stdout);
        status = td_tokens_add(tokens, next);
        if (status == TANDEM_OK && tokens->count < prompt + a->token_count)
            status = compute(s, &next, at, 1, why, why_bytes);
    }
    fwrite(to, 1, td_decoder_end(&decoder, to), stdout);
    putchar('\n');
    if (a->json && status == TANDEM_OK)
        print_json(tokens, prompt, 1e-6 * (double)(read - begin),
                   1e-6 * (double)(td_now_ns() - read));
    return status;
}

static tandem_status run(const arguments *a, const td_gguf *file, const td_tokenizer *t, char *why,
                         size_t why_bytes)
{
    speaker s = {0};
    td_tokens tokens = {0};
    char *to = malloc(td_decoder_room(t));
    tandem_status status = to ? encode(a, file, t, &tokens, why, why_bytes) : TANDEM_ERROR_NOMEM;

    if (status == TANDEM_OK && !tokens.count)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "the text has no token");
    if (status == TANDEM_OK)
        status = load(&s, file, tokens.count + a->token_count, why, why_bytes);
    if (status == TANDEM_OK)
        status = reply(&s, t, a, &tokens, to, why, why_bytes);
    unload(&s);
    td_tokens_free(&tokens);
    free(to);
    return status;
}

int tool_generate(int argc, char **argv)
{
    arguments a = {0};
    td_tokenizer *t = NULL;
    char why[400] = "no memory for tokens";
    td_gguf file = {0};
    const int usage = read_arguments(argc, argv, &a);

    if (usage != TOOL_OK)
        return usage;
    tandem_status status = td_gguf_open(a.model, &file, why, sizeof why);
    if (status == TANDEM_OK)
        status = td_tokenizer_create(&file, &t, why, sizeof why);
    if (status == TANDEM_OK)
        status = run(&a, &file, t, why, sizeof why);
    td_tokenizer_destroy(&t);
    td_gguf_close(&file);
    return status == TANDEM_OK ? TOOL_OK : tool_fail("generate", "--model '%s': %s", a.model, why);
}
