/* `tandem tokenize`: a text as a language model's tokens, and back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/npc/chat.h"
#include "engine_plugin/npc/utf8.h"
#include "engine_plugin/tool/language.h"
#include "kernels/model/folder.h"

/* clang-format off */
const char *const tool_tokenize_help =
    "usage: tandem tokenize --model F [options] [TEXT|-]\n"
    "       tandem tokenize --model F --decode [NUMBERS|-]\n"
    "\n"
    "A text as the tokens that a language model reads, one a line: its number, and what it stands for,\n"
    "in quotes, where \\xe2 is a byte of a character that other tokens complete. With -, or nothing, the\n"
    "text comes from standard input. The token that the model wants before any text is put there.\n"
    "\n"
    "  --model F        a GGUF file, as `tandem fetch` brings one, or a folder as transformers has\n"
    "  --chat           the text is what a user says: with what the model wants around that, up to\n"
    "                   where its reply begins\n"
    "  --form gemma|llama3|phi4|chatml|llama2|mistral|mistral-v3|phi|zephyr\n"
    "                   how dialogues are written; default: recognised by what the file has for that\n"
    "  --special        names of special tokens in the text, as <|im_end|>, are those tokens\n"
    "  --ids            prints the numbers alone, in one line, with commas between\n"
    "  --decode         the other way: numbers, with commas or spaces between, as their text\n";
/* clang-format on */

typedef struct arguments {
    const char *model, *form, *text;
    bool chat, special, ids, decode;
} arguments;

static int read_arguments(int argc, char **argv, arguments *a)
{
    const tool_option options[] = {
        {"--model", &a->model, NULL}, {"--chat", NULL, &a->chat},       {"--form", &a->form, NULL},
        {"--ids", NULL, &a->ids},     {"--special", NULL, &a->special}, {"--decode", NULL, &a->decode},
        {"", &a->text, NULL}};
    char forms[200] = "";

    if (tool_parse("tokenize", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    for (size_t i = 0; td_chat_at(i); i++)
        td_text(forms + strlen(forms), sizeof forms - strlen(forms), "%s%s", i ? ", " : "",
                td_chat_at(i)->name);
    if (a->form && !td_chat_find(a->form))
        return tool_usage("tokenize", "--form \"%s\" is none of %s", a->form, forms);
    if (!a->model)
        return tool_usage("tokenize", "--model is missing; `tandem help tokenize` explains it");
    if (!a->text)
        a->text = "-";
    if (a->decode && (a->chat || a->form || a->special || a->ids))
        return tool_usage("tokenize", "--decode goes with no other option but --model");
    a->chat = a->chat || a->form;
    return TOOL_OK;
}

/* --- Output --- */

static void print_quoted(td_gguf_string piece)
{
    size_t length;

    putchar('"');
    for (uint64_t at = 0; at < piece.length; at += length) {
        const char *c = piece.bytes + at;
        const bool whole = td_utf8_next(c, piece.length - at, &length) == TD_UTF8_WHOLE;

        if (!whole || (uint8_t)*c < ' ' || *c == 127)
            for (size_t i = 0; i < length; i++)
                printf("\\x%02x", (uint8_t)c[i]);
        else if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else
            fwrite(c, 1, length, stdout);
    }
    putchar('"');
}

static void print_tokens(const td_tokenizer *t, const td_tokens *tokens, bool ids)
{
    for (size_t i = 0; i < tokens->count; i++) {
        if (ids) {
            printf("%s%" PRIu32, i ? "," : "", tokens->ids[i]);
            continue;
        }
        printf("%7" PRIu32 "  ", tokens->ids[i]);
        print_quoted(td_tokenizer_piece(t, tokens->ids[i]));
        putchar('\n');
    }
    if (ids)
        putchar('\n');
}

/* --- Encoding and decoding --- */

/* What is around a user's words. */
static int find_form(const arguments *a, const td_gguf *file, const td_chat_form **form)
{
    static const char key[] = "tokenizer.chat_template";
    td_gguf_string program = {"", 0};
    char why[400] = "";

    *form = a->form ? td_chat_find(a->form) : NULL;
    if (*form || !a->chat)
        return TOOL_OK;
    if (td_gguf_text(file, key, &program, why, sizeof why) != TANDEM_OK)
        return tool_fail("tokenize", "--chat: '%s': %s; --form says how dialogues are written",
                         a->model, why);
    *form = td_chat_recognise(program);
    if (!*form)
        return tool_fail("tokenize", "--chat: '%s': %s is in no form that is known; --form gives one",
                         a->model, key);
    return TOOL_OK;
}

static int encode(const arguments *a, const td_gguf *file, const td_tokenizer *t, const char *text,
                  size_t bytes)
{
    const td_chat_turn turn = {TD_CHAT_USER, text, bytes};
    const td_text_part part = {text, bytes, a->special};
    const td_chat_form *form;
    td_tokens tokens = {0};
    char why[400] = "no memory for tokens";
    tandem_status status = TANDEM_OK;

    if (find_form(a, file, &form) != TOOL_OK)
        return TOOL_FAILED;
    if (form) {
        status = td_chat_encode(t, form, &turn, 1, true, &tokens, why, sizeof why);
    } else {
        status = tool_encode(t, &part, &tokens, why, sizeof why);
    }
    if (status == TANDEM_OK)
        print_tokens(t, &tokens, a->ids);
    td_tokens_free(&tokens);
    return status == TANDEM_OK ? TOOL_OK : tool_fail("tokenize", "%s", why);
}

static int decode(const td_tokenizer *t, const char *text)
{
    td_decoder d = td_decoder_begin(t, true);
    char *to = malloc(td_decoder_room(t));
    td_tokens tokens = {0};
    /* all of them are looked at before anything is printed */
    int status = to ? tool_read_tokens("tokenize", text, td_tokenizer_count(t), &tokens)
                    : tool_fail("tokenize", "no memory for a text");

    if (status == TOOL_OK) {
        for (size_t i = 0; i < tokens.count; i++)
            fwrite(to, 1, td_decoder_add(&d, tokens.ids[i], to), stdout);
        fwrite(to, 1, td_decoder_end(&d, to), stdout);
        putchar('\n');
    }
    td_tokens_free(&tokens);
    free(to);
    return status;
}

static int run(const arguments *a, const td_gguf *file, const td_tokenizer *t)
{
    size_t bytes;
    char *input;
    const char *text = tool_text("tokenize", a->text, &input, &bytes);

    if (!text)
        return TOOL_FAILED;
    const int status = a->decode ? decode(t, text) : encode(a, file, t, text, bytes);
    free(input);
    return status;
}

int tool_tokenize(int argc, char **argv)
{
    arguments a = {0};
    td_tokenizer *t = NULL;
    char why[400] = "";
    td_gguf file;
    int status = read_arguments(argc, argv, &a);

    if (status != TOOL_OK)
        return status;
    if (td_checkpoint_open(a.model, &file, why, sizeof why) != TANDEM_OK ||
        td_tokenizer_create(&file, &t, why, sizeof why) != TANDEM_OK)
        status = tool_fail("tokenize", "--model '%s': %s", a.model, why);
    else
        status = run(&a, &file, t);
    td_tokenizer_destroy(&t);
    td_gguf_close(&file);
    return status;
}
