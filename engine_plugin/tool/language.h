/* A language model, for the commands that have one: its file, its tokenizer, and a session that it
 * is computed on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_LANGUAGE_H
#define TD_TOOL_LANGUAGE_H

#include "engine_plugin/npc/speaker.h"
#include "engine_plugin/npc/tokenizer.h"
#include "engine_plugin/tool/session.h"
#include "engine_plugin/tool/tool.h"

typedef struct tool_language {
    td_gguf file;
    td_tokenizer *tokenizer;
    tandem_session *session;
    tool_engine *engine; /* that it stands on */
    td_speaker speaker;
    char why[600]; /* what went wrong, which names the option */
} tool_language;

/* File and tokenizer. False, and why. Begins as zeros, and is closed in any case. */
bool tool_language_open(tool_language *l, const char *model);
/* The file alone, where no text is read, which takes no tokenizer; *words: how many tokens the model knows. */
bool tool_language_open_numbers(tool_language *l, const char *model, uint32_t *words);
/* A session on a rung, with so many threads on a CPU (0: all cores), or in the tandemd that listens at
 * `socket`, unless NULL; and the model on it. */
int tool_language_begin(tool_language *l, const char *command, uint32_t rung, uint32_t threads, const char *socket,
                        const td_speaker_desc *desc);
void tool_language_close(tool_language *l);

/* What a call of the speaker's said: false, and why. */
bool tool_language_done(tool_language *l, tandem_status status);

/* A text with the token before it that the model wants there. */
tandem_status tool_encode(const td_tokenizer *t, const td_text_part *part, td_tokens *tokens,
                          char *why, size_t why_bytes);
/* "1,2,3", or with spaces: each must be below `count`. */
int tool_read_tokens(const char *command, const char *text, uint32_t count, td_tokens *tokens);

/* What is on standard input, which the caller frees; NULL where there is no memory, or too much. */
char *tool_read_input(size_t *bytes);
/* A text that an option gives or, where that is "-", standard input: NULL after a line that says
 * what is wrong. *input is what the caller frees. */
const char *tool_text(const char *command, const char *value, char **input, size_t *bytes);

#endif
