/* `tandem generate`: what a language model answers, token by token.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/npc/chat.h"
#include "engine_plugin/npc/reply.h"
#include "engine_plugin/npc/schema.h"
#include "engine_plugin/tool/language.h"
#include "interop/base.h"
#include "kernels/graph.h"

/* clang-format off */
const char *const tool_generate_help =
    "usage: tandem generate --model F --prompt T|- [options]\n"
    "\n"
    "What a language model says to a text, written as it comes, up to where the model ends its reply. It\n"
    "is the same each time; with a --temperature another --seed makes it another.\n"
    "\n"
    "  --model F        a GGUF file, as `tandem fetch` brings one, or a folder as transformers has\n"
    "  --prompt T       the text; with - it comes from standard input\n"
    "  --plain          the model goes on with the text; default: it is what a user says, with what the\n"
    "                   model wants around that\n"
    "  --form F         by the form of this name, or one by hand: what goes before and behind each turn\n"
    "                   {\"user\": [\"USER: \", \"\\n\"], \"reply\": [\"NPC: \", \"\\n\"]}, with \"system\" and\n"
    "                   \"opening\" if need be; default: as the model's file says\n"
    "  --tokens N       at most so many tokens of a reply; default: 128\n"
    "  --stop LIST      texts that end a reply, with | between; they are not shown\n"
    "  --grammar F      a reply is what this grammar allows, in GBNF\n"
    "  --json-schema F  it is JSON, as this schema says\n"
    "  --temperature T  how freely tokens are drawn, 1: as likely as the model says; default: 0, always\n"
    "                   the most likely one\n"
    "  --seed N         of what is drawn; default: 0\n"
    "  --top-k N        only from the N most likely tokens\n"
    "  --typical P      only from those that surprise as much as the mean, up to probability P together\n"
    "  --top-p P        only from the most likely ones, up to probability P together\n"
    "  --min-p P        only from those at least P times so likely as the most likely one\n"
    "  --xtc P          with probability P without the top choices,\n"
    "  --xtc-from P     which are those of at least probability P, but for the least; default: 0.1\n"
    "  --repetition X   divides logits of tokens that were there, if above 0, and multiplies others\n"
    "  --frequency X    taken off a logit for each time that its token was there\n"
    "  --presence X     taken off once\n"
    "  --penalty-last N the three look at the last N tokens; default: all\n"
    "  --dry X          taken off a token that would go on with a repetition of N tokens, the more the\n"
    "  --dry-base X     longer: times this for each token more; default: 1.75\n"
    "  --dry-length N   tokens that may be repeated; default: 2\n"
    "  --bias LIST      added to logits, as 12:1.5,345:-100\n"
    TOOL_LANGUAGE_HELP
    "  --threads N      threads that a CPU computes on; default: all cores\n"
    "  --json           the tokens and times as JSON, behind the text\n";
/* clang-format on */

enum { MOST_TOKENS = 1 << 20, LISTED = 64 /* stops, biases */ };

typedef struct arguments {
    const char *model, *prompt, *form, *tokens, *stop, *grammar, *schema, *attention, *kv, *rung, *socket, *threads;
    const char *temperature, *seed, *top_k, *typical, *top_p, *min_p, *xtc, *xtc_from, *repetition,
        *frequency, *presence, *penalty_last, *dry, *dry_base, *dry_length, *bias;
    bool plain, json;
    uint32_t precision, cache, rung_value;
    uint64_t token_count, thread_count;
    td_sampling how;
    td_logit_bias biases[LISTED];
    const char *stops[LISTED];
    char *stop_texts; /* a copy of the list, cut */
    size_t stop_count;
} arguments;

/* Options of whole numbers, and of others. */
static int read_numbers(arguments *a)
{
    uint64_t top_k = 0, penalty_last = 0, dry_length = 2;
    const struct {
        const char *name, *text;
        uint64_t least, most, *to;
    } counts[] = {{"--tokens", a->tokens, 1, MOST_TOKENS, &a->token_count},
                  {"--threads", a->threads, 1, 1024, &a->thread_count},
                  {"--seed", a->seed, 0, UINT64_MAX, &a->how.seed},
                  {"--top-k", a->top_k, 1, UINT32_MAX, &top_k},
                  {"--penalty-last", a->penalty_last, 1, UINT32_MAX, &penalty_last},
                  {"--dry-length", a->dry_length, 1, MOST_TOKENS, &dry_length}};
    const struct {
        const char *name, *text;
        float *to;
    } numbers[] = {{"--temperature", a->temperature, &a->how.temperature},
                   {"--typical", a->typical, &a->how.typical_p},
                   {"--top-p", a->top_p, &a->how.top_p},
                   {"--min-p", a->min_p, &a->how.min_p},
                   {"--xtc", a->xtc, &a->how.xtc_probability},
                   {"--xtc-from", a->xtc_from, &a->how.xtc_threshold},
                   {"--repetition", a->repetition, &a->how.repetition},
                   {"--frequency", a->frequency, &a->how.frequency},
                   {"--presence", a->presence, &a->how.presence},
                   {"--dry", a->dry, &a->how.dry_multiplier},
                   {"--dry-base", a->dry_base, &a->how.dry_base}};

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].text &&
            !tool_number(counts[i].text, counts[i].least, counts[i].most, counts[i].to))
            return tool_usage("generate",
                              "%s \"%s\" is not a number from %" PRIu64 " to %" PRIu64,
                              counts[i].name, counts[i].text, counts[i].least, counts[i].most);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].text && !td_graph_decimal(numbers[i].text, numbers[i].to))
            return tool_usage("generate", "%s \"%s\" is not a number", numbers[i].name,
                              numbers[i].text);
    a->how.top_k = (uint32_t)top_k;
    a->how.penalty_last = (uint32_t)penalty_last;
    a->how.dry_length = (uint32_t)dry_length;
    return TOOL_OK;
}

/* "12:1.5,345:-100" */
static int read_biases(arguments *a)
{
    for (const char *at = a->bias; at && *at; at += *at == ',') {
        const int length = (int)strcspn(at, ",");
        char word[40], *colon;
        uint64_t token = 0;
        float bias;

        snprintf(word, sizeof word, "%.*s", length, at);
        colon = strchr(word, ':');
        if (colon)
            *colon = 0;
        if (length >= (int)sizeof word || !colon || !tool_number(word, 0, UINT32_MAX, &token) ||
            !td_graph_decimal(colon + 1, &bias))
            return tool_usage("generate", "--bias \"%.*s\" is not a token and a number, as 12:1.5",
                              length < 80 ? length : 80, at);
        if (a->how.bias_count == LISTED)
            return tool_usage("generate", "--bias has more than %d tokens", LISTED);
        a->biases[a->how.bias_count++] = (td_logit_bias){(uint32_t)token, bias};
        at += length;
    }
    a->how.biases = a->biases;
    return TOOL_OK;
}

static int read_stops(arguments *a)
{
    char *at = a->stop_texts = a->stop ? strdup(a->stop) : NULL;

    while (at) {
        char *end = strchr(at, '|');

        if (end)
            *end = 0;
        if (!*at || a->stop_count == LISTED)
            return tool_usage("generate", *at ? "--stop \"%s\" has more than %d texts"
                                              : "--stop \"%s\" has a text of nothing",
                              a->stop, LISTED);
        a->stops[a->stop_count++] = at;
        at = end ? end + 1 : NULL;
    }
    return TOOL_OK;
}

static int read_arguments(int argc, char **argv, arguments *a)
{
    const tool_option options[] = {
        {"--model", &a->model, NULL},           {"--prompt", &a->prompt, NULL},
        {"--plain", NULL, &a->plain},           {"--tokens", &a->tokens, NULL},
        {"--form", &a->form, NULL},
        {"--stop", &a->stop, NULL},             {"--temperature", &a->temperature, NULL},
        {"--grammar", &a->grammar, NULL},       {"--json-schema", &a->schema, NULL},
        {"--seed", &a->seed, NULL},             {"--top-k", &a->top_k, NULL},
        {"--typical", &a->typical, NULL},       {"--top-p", &a->top_p, NULL},
        {"--min-p", &a->min_p, NULL},           {"--xtc", &a->xtc, NULL},
        {"--xtc-from", &a->xtc_from, NULL},     {"--repetition", &a->repetition, NULL},
        {"--frequency", &a->frequency, NULL},   {"--presence", &a->presence, NULL},
        {"--penalty-last", &a->penalty_last, NULL}, {"--dry", &a->dry, NULL},
        {"--dry-base", &a->dry_base, NULL},     {"--dry-length", &a->dry_length, NULL},
        {"--bias", &a->bias, NULL},             {"--attention", &a->attention, NULL},
        {"--kv", &a->kv, NULL},                 {"--rung", &a->rung, NULL},
        {"--socket", &a->socket, NULL},         {"--threads", &a->threads, NULL},
        {"--json", NULL, &a->json}};

    if (tool_parse("generate", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!a->model || !a->prompt)
        return tool_usage("generate", "%s is missing; `tandem help generate` explains it",
                          !a->model ? "--model" : "--prompt");
    if (a->grammar && a->schema)
        return tool_usage("generate", "--grammar and --json-schema go alone");
    if (!tool_precision("generate", "--attention", a->attention, &a->precision) ||
        !tool_cache("generate", a->kv, a->precision, &a->cache) ||
        !tool_rung("generate", a->rung, &a->rung_value) || read_numbers(a) != TOOL_OK ||
        read_biases(a) != TOOL_OK || read_stops(a) != TOOL_OK)
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
    td_gguf_string program = {"", 0};
    char why[400] = "no memory for tokens";
    bool form_is_wrong = false;
    tandem_status status;

    if (a->plain) {
        status = tool_encode(l->tokenizer, &part, tokens, why, sizeof why);
    } else {
        td_chat_own *own = NULL;
        const td_chat_form *form = NULL;

        status = a->form ? TANDEM_OK : td_gguf_text(&l->file, key, &program, why, sizeof why);
        if (status == TANDEM_OK)
            status = td_chat_choose(a->form, program, &own, &form, why, sizeof why);
        form_is_wrong = a->form && status != TANDEM_OK;
        if (form)
            status = td_chat_encode(l->tokenizer, form, &turn, 1, true, tokens, why, sizeof why);
        else if (status == TANDEM_OK)
            status = td_fail(why, sizeof why, TANDEM_ERROR_UNSUPPORTED,
                             "%s is in no form that is known; --form says one, --plain goes "
                             "without",
                             key);
        td_chat_own_destroy(&own);
    }
    if (status == TANDEM_OK && !tokens->count)
        status = td_fail(why, sizeof why, TANDEM_ERROR_ARG, "the text has no token");
    if (status != TANDEM_OK)
        snprintf(l->why, sizeof l->why, "%s '%s': %s", form_is_wrong ? "--form" : "--model",
                 form_is_wrong ? a->form : a->model, why);
    return status;
}

/* --- The reply --- */

static void print_json(const td_tokens *tokens, size_t prompt, double prompt_ms, double reply_ms)
{
    printf("{\"prompt\": %zu, \"prompt_ms\": %.3f, \"reply_ms\": %.3f, \"tokens\": [", prompt,
           prompt_ms, reply_ms);
    for (size_t i = prompt; i < tokens->count; i++)
        printf("%s%" PRIu32, i > prompt ? ", " : "", tokens->ids[i]);
    printf("]}\n");
}

/* One token after the other. */
static tandem_status say(tool_language *l, td_reply *r, td_tokens *tokens)
{
    tandem_status status = TANDEM_OK;
    const char *text;
    size_t bytes;

    while (status == TANDEM_OK) {
        const uint32_t at = (uint32_t)tokens->count;

        status = td_reply_next(r, &(td_words){.logits = l->speaker.logits}, tokens, &text, &bytes, l->why, sizeof l->why);
        if (status != TANDEM_OK)
            return status;
        fwrite(text, 1, bytes, stdout);
        fflush(stdout);
        if (td_reply_state_of(r) != TD_REPLY_GOES_ON)
            break;
        if (!tool_language_done(l, td_speaker_read(&l->speaker, &tokens->ids[at], at, 1)))
            status = TANDEM_ERROR_DEVICE;
    }
    putchar('\n');
    return status;
}

/* Behind the prompt. */
static bool reply(const arguments *a, tool_language *l, td_reply *r, td_tokens *tokens)
{
    const size_t prompt = tokens->count;
    const uint64_t begin = td_now_ns();

    if (!tool_language_done(l, td_speaker_read(&l->speaker, tokens->ids, 0, (uint32_t)prompt)))
        return false;
    const uint64_t read = td_now_ns();
    if (say(l, r, tokens) != TANDEM_OK)
        return false;
    if (a->json)
        print_json(tokens, prompt, 1e-6 * (double)(read - begin),
                   1e-6 * (double)(td_now_ns() - read));
    return true;
}

/* --- What a reply must be --- */

/* A file that the caller frees; NULL: it cannot be read. */
static char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *text = file ? malloc(TD_GRAMMAR_BYTES + 1) : NULL;

    *bytes = text ? fread(text, 1, TD_GRAMMAR_BYTES + 1, file) : 0;
    if (text && ferror(file)) {
        free(text);
        text = NULL;
    }
    if (file)
        fclose(file);
    return text;
}

/* That of --grammar or --json-schema: an exit status. */
static int read_grammar(const arguments *a, td_grammar **out)
{
    const char *option = a->grammar ? "--grammar" : "--json-schema",
               *path = a->grammar ? a->grammar : a->schema;
    char why[400], *translated = NULL;
    size_t bytes;
    char *text = read_file(path, &bytes);

    if (!text)
        return tool_fail("generate", "%s '%s': %s", option, path, strerror(errno));
    tandem_status status = a->schema ? td_schema_to_grammar(text, bytes, "root", &translated, why, sizeof why) : TANDEM_OK;
    if (status == TANDEM_OK && translated)
        status = td_grammar_create(translated, strlen(translated), out, why, sizeof why);
    else if (status == TANDEM_OK)
        status = td_grammar_create(text, bytes, out, why, sizeof why);
    free(translated);
    free(text);
    return status == TANDEM_OK ? TOOL_OK
                               : tool_fail("generate", "%s '%s': %s", option, path, why);
}

static int begin_reply(const arguments *a, tool_language *l, td_tokens *tokens)
{
    td_reply_desc desc = {.tokenizer = l->tokenizer,
                          .how = a->how,
                          .stops = a->stops,
                          .stop_count = a->stop_count,
                          .most_tokens = (uint32_t)a->token_count};
    td_grammar *grammar = NULL;
    td_token_tree *tree = NULL;
    td_reply *r = NULL;
    int status = a->grammar || a->schema ? read_grammar(a, &grammar) : TOOL_OK;

    if (status == TOOL_OK && grammar && td_token_tree_create(l->tokenizer, &tree) != TANDEM_OK)
        status = tool_fail("generate", "no memory for a vocabulary");
    if (tree && td_matcher_create(grammar, tree, &desc.matcher, l->why, sizeof l->why) != TANDEM_OK)
        status = tool_fail("generate", "%s", l->why);
    if (status == TOOL_OK && td_reply_create(&desc, &r, l->why, sizeof l->why) != TANDEM_OK)
        status = tool_usage("generate", "%s", l->why);
    if (status == TOOL_OK && !reply(a, l, r, tokens))
        status = tool_fail("generate", "%s", l->why);
    td_reply_destroy(&r);
    td_matcher_destroy(&desc.matcher);
    td_token_tree_destroy(&tree);
    td_grammar_destroy(&grammar);
    return status;
}

static int run(const arguments *a, tool_language *l, td_tokens *tokens, const char *text,
               size_t bytes)
{
    if (!tool_language_open(l, a->model) || encode(a, l, text, bytes, tokens) != TANDEM_OK)
        return tool_fail("generate", "%s", l->why);
    const int status = tool_language_begin(
        l, "generate", a->rung_value, (uint32_t)a->thread_count, a->socket,
        &(td_speaker_desc){.path = a->model,
                           .context = (uint32_t)(tokens->count + a->token_count),
                           .precision = a->precision,
                           .cache = a->cache});
    return status == TOOL_OK ? begin_reply(a, l, tokens) : status;
}

int tool_generate(int argc, char **argv)
{
    arguments a = {.attention = "auto",
                   .kv = "f16",
                   .rung = "auto",
                   .token_count = 128,
                   .how = {.xtc_threshold = 0.1f, .dry_base = 1.75f}};
    tool_language l = {0};
    td_tokens tokens = {0};
    char *input = NULL;
    size_t bytes;
    int status = read_arguments(argc, argv, &a);
    const char *text = status == TOOL_OK ? tool_text("generate", a.prompt, &input, &bytes) : NULL;

    if (status == TOOL_OK)
        status = text ? run(&a, &l, &tokens, text, bytes) : TOOL_FAILED;
    tool_language_close(&l);
    td_tokens_free(&tokens);
    free(a.stop_texts);
    free(input);
    return status;
}
