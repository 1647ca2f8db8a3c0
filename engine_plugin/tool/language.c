/* A language model, for the commands that have one. See language.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/language.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/model/folder.h"

/* --- The model --- */

enum { MOST_WORDS = 1 << 30 }; /* where a file has no table of them, which is refused later */

bool tool_language_open(tool_language *l, const char *model)
{
    char why[400] = "";

    if (td_checkpoint_open(model, &l->file, why, sizeof why) == TANDEM_OK &&
        td_tokenizer_create(&l->file, &l->tokenizer, why, sizeof why) == TANDEM_OK)
        return true;
    snprintf(l->why, sizeof l->why, "--model '%s': %s", model, why);
    return false;
}

bool tool_language_open_numbers(tool_language *l, const char *model, uint32_t *words)
{
    const td_gguf_tensor *table;
    char why[400] = "";

    if (td_checkpoint_open(model, &l->file, why, sizeof why) == TANDEM_OK) {
        table = td_gguf_find_tensor(&l->file, "token_embd.weight");
        *words = table && table->shape[1] < MOST_WORDS ? (uint32_t)table->shape[1] : MOST_WORDS;
        return true;
    }
    snprintf(l->why, sizeof l->why, "--model '%s': %s", model, why);
    return false;
}

int tool_language_begin(tool_language *l, const char *command, uint32_t rung, uint32_t threads, const char *socket,
                        const td_speaker_desc *desc)
{
    td_speaker_desc speaker = *desc;
    const tandem_session_desc session = TANDEM_INIT(tandem_session_desc,
                                                    .rung = rung,
                                                    .cpu_threads = threads,
                                                    .socket = socket,
                                                    .error_text = l->why,
                                                    .error_text_bytes = sizeof l->why);

    if (socket)
        speaker.context = 0; /* a daemon's clients share a model, with the context that it was trained for */
    if (tool_session_create(&session, &l->session, &l->engine) != TANDEM_OK ||
        !tool_language_done(l, td_speaker_open(l->session, &speaker, &l->speaker)))
        return tool_fail(command, "%s", l->why);
    if (l->tokenizer && td_tokenizer_fits(l->tokenizer, l->speaker.words, l->why, sizeof l->why) != TANDEM_OK)
        return tool_fail(command, "--model '%s': %s", speaker.path, l->why);
    return TOOL_OK;
}

bool tool_language_done(tool_language *l, tandem_status status)
{
    if (status == TANDEM_OK)
        return true;
    tandem_error_text(l->session, l->why, sizeof l->why);
    if (!l->why[0])
        snprintf(l->why, sizeof l->why, "%s", tandem_status_text(status));
    return false;
}

void tool_language_close(tool_language *l)
{
    td_speaker_close(&l->speaker);
    tool_session_destroy(&l->session, &l->engine);
    td_tokenizer_destroy(&l->tokenizer);
    td_gguf_close(&l->file);
}

/* --- Texts and tokens --- */

tandem_status tool_encode(const td_tokenizer *t, const td_text_part *part, td_tokens *tokens,
                          char *why, size_t why_bytes)
{
    tandem_status status = TANDEM_OK;

    if (td_tokenizer_begins(t))
        status = td_tokens_add(tokens, td_tokenizer_begin(t));
    return status == TANDEM_OK ? td_tokenizer_encode(t, part, 1, tokens, why, why_bytes) : status;
}

int tool_read_tokens(const char *command, const char *text, uint32_t count, td_tokens *tokens)
{
    static const char between[] = ", \t\r\n";

    for (const char *at = text + strspn(text, between); *at; at += strspn(at, between)) {
        const int length = (int)strcspn(at, between);
        char word[24];
        uint64_t id;

        snprintf(word, sizeof word, "%.*s", length, at);
        if (length >= (int)sizeof word || !tool_number(word, 0, count - 1, &id))
            return tool_usage(command, "\"%.*s\" is none of the tokens 0 to %" PRIu32,
                              length < 80 ? length : 80, at, count - 1);
        if (td_tokens_add(tokens, (uint32_t)id) != TANDEM_OK)
            return tool_fail(command, "no memory for tokens");
        at += length;
    }
    return TOOL_OK;
}

char *tool_read_input(size_t *bytes)
{
    size_t room = 1 << 16;
    char *text = malloc(room);

    *bytes = 0;
    while (text && !feof(stdin) && !ferror(stdin)) {
        *bytes += fread(text + *bytes, 1, room - *bytes - 1, stdin);
        if (*bytes < room - 1)
            continue;
        char *more = room < 2u * TD_TEXT_BYTES ? realloc(text, room *= 2) : NULL;
        if (!more)
            free(text);
        text = more;
    }
    if (text)
        text[*bytes] = 0;
    return text;
}

const char *tool_text(const char *command, const char *value, char **input, size_t *bytes)
{
    *bytes = strlen(value);
    *input = NULL;
    if (strcmp(value, "-") != 0)
        return value;
    *input = tool_read_input(bytes);
    if (!*input)
        tool_fail(command, "standard input has more than %d bytes", TD_TEXT_BYTES);
    return *input;
}
