/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_plugin/npc/chat.h"

#include <stdlib.h>

enum { FINGERPRINTS = 3, PARTS_OF_TURN = 3 };

/* The first whose fingerprints are all in a file's program is its form. */
static const struct known {
    const char *fingerprints[FINGERPRINTS];
    td_chat_form form;
} known[] = {
    {{"<start_of_turn>"},
     {.name = "gemma",
      .system = {"", "\n\n"},
      .user = {"<start_of_turn>user\n", "<end_of_turn>\n"},
      .reply = {"<start_of_turn>model\n", "<end_of_turn>\n"},
      .opening = "<start_of_turn>model\n",
      .system_in_user = true,
      .trims = true}},
    {{"<|start_header_id|>"},
     {.name = "llama3",
      .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
      .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
      .reply = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
      .opening = "<|start_header_id|>assistant<|end_header_id|>\n\n",
      .trims = true}},
    {{"<|im_sep|>"},
     {.name = "phi4",
      .system = {"<|im_start|>system<|im_sep|>", "<|im_end|>"},
      .user = {"<|im_start|>user<|im_sep|>", "<|im_end|>"},
      .reply = {"<|im_start|>assistant<|im_sep|>", "<|im_end|>"},
      .opening = "<|im_start|>assistant<|im_sep|>"}},
    {{"<|im_start|>"},
     {.name = "chatml",
      .system = {"<|im_start|>system\n", "<|im_end|>\n"},
      .user = {"<|im_start|>user\n", "<|im_end|>\n"},
      .reply = {"<|im_start|>assistant\n", "<|im_end|>\n"},
      .opening = "<|im_start|>assistant\n"}},
    {{"[INST]", "<<SYS>>"},
     {.name = "llama2",
      .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
      .user = {"[INST] ", " [/INST]"},
      .reply = {" ", " </s>"},
      .opening = "",
      .system_in_user = true,
      .trims = true}},
    {{"[INST]", " [/INST]"},
     {.name = "mistral",
      .system = {"", "\n\n"},
      .user = {"[INST] ", " [/INST]"},
      .reply = {" ", "</s>"},
      .opening = "",
      .system_in_user = true}},
    {{"[INST]"},
     {.name = "mistral-v3",
      .system = {"", "\n\n"},
      .user = {"[INST] ", "[/INST]"},
      .reply = {" ", "</s>"},
      .opening = "",
      .system_in_user = true}},
    {{"<|assistant|>", "<|end|>"},
     {.name = "phi",
      .system = {"<|system|>\n", "<|end|>\n"},
      .user = {"<|user|>\n", "<|end|>\n"},
      .reply = {"<|assistant|>\n", "<|end|>\n"},
      .opening = "<|assistant|>\n"}},
    {{"<|assistant|>", "<|user|>"},
     {.name = "zephyr",
      .system = {"<|system|>\n", "</s>\n"},
      .user = {"<|user|>\n", "</s>\n"},
      .reply = {"<|assistant|>\n", "</s>\n"},
      .opening = "<|assistant|>\n"}},
};
enum { KNOWN = sizeof known / sizeof *known };

const td_chat_form *td_chat_at(size_t index)
{
    return index < KNOWN ? &known[index].form : NULL;
}

const td_chat_form *td_chat_find(const char *name)
{
    for (int i = 0; i < KNOWN; i++)
        if (!strcmp(known[i].form.name, name))
            return &known[i].form;
    return NULL;
}

static bool has(td_gguf_string program, const char *word)
{
    const size_t length = strlen(word);

    for (uint64_t at = 0; at + length <= program.length; at++)
        if (!memcmp(program.bytes + at, word, length))
            return true;
    return false;
}

static bool has_all(td_gguf_string program, const char *const words[FINGERPRINTS])
{
    for (int i = 0; i < FINGERPRINTS && words[i]; i++)
        if (!has(program, words[i]))
            return false;
    return true;
}

const td_chat_form *td_chat_recognise(td_gguf_string program)
{
    for (int i = 0; i < KNOWN; i++)
        if (has_all(program, known[i].fingerprints))
            return &known[i].form;
    return NULL;
}

/* --- Dialogues --- */

static td_text_part form_part(const char *text)
{
    return (td_text_part){text, strlen(text), true};
}

static bool is_white(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static td_text_part text_part(const td_chat_form *form, const td_chat_turn *turn)
{
    const char *text = turn->text;
    size_t bytes = turn->bytes;

    for (; form->trims && bytes && is_white(text[bytes - 1]); bytes--)
        continue;
    for (; form->trims && bytes && is_white(*text); bytes--)
        text++;
    return (td_text_part){text, bytes, false};
}

/* `system`: what stands within a turn of the user; NULL: nothing. */
static size_t put_turn(const td_chat_form *form, const td_chat_turn *turn,
                       const td_chat_turn *system, td_text_part *to)
{
    const bool is_user = turn->role == TD_CHAT_USER, is_reply = turn->role == TD_CHAT_REPLY;
    size_t count = 0;

    to[count++] = form_part(is_user    ? form->user.before
                            : is_reply ? form->reply.before
                                       : form->system.before);
    if (system)
        count += put_turn(form, system, NULL, to + count);
    to[count++] = text_part(form, turn);
    to[count++] = form_part(is_user    ? form->user.behind
                            : is_reply ? form->reply.behind
                                       : form->system.behind);
    return count;
}

tandem_status td_chat_encode(const td_tokenizer *t, const td_chat_form *form,
                             const td_chat_turn *turns, size_t count, bool opens, td_tokens *out,
                             char *why, size_t why_bytes)
{
    const size_t before = out->count;
    td_text_part *parts = calloc(PARTS_OF_TURN * count + 1, sizeof *parts);
    const td_chat_turn *system = NULL;
    size_t part_count = 0;

    if (!parts)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for %zu turns", count);
    for (size_t i = 0; i < count; i++) {
        if (turns[i].role == TD_CHAT_SYSTEM && form->system_in_user) {
            system = &turns[i];
            continue;
        }
        const bool takes = turns[i].role == TD_CHAT_USER;
        part_count += put_turn(form, &turns[i], takes ? system : NULL, parts + part_count);
        system = takes ? NULL : system;
    }
    if (opens)
        parts[part_count++] = form_part(form->opening);
    tandem_status status = TANDEM_OK;
    if (td_tokenizer_begins(t) && td_tokens_add(out, td_tokenizer_begin(t)) != TANDEM_OK)
        status = td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for tokens");
    if (status == TANDEM_OK)
        status = td_tokenizer_encode(t, parts, part_count, out, why, why_bytes);
    if (status != TANDEM_OK)
        out->count = before;
    free(parts);
    return status;
}
