/* Texts as a model's tokens, and back: what the metadata of a GGUF file says.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Two kinds are known. Byte-level BPE ("gpt2") cuts a text into words (pattern.h) and merges each
 * word's bytes, pair by pair, in the order of the file's merges. SentencePiece's BPE ("llama")
 * merges the characters of a whole text, the pair with the highest score first or, where there is a
 * list of merges, in its order; a character that the vocabulary lacks is spelled in bytes. A tokenizer never changes once it is made: any number
 * of threads may use it.
 */
#ifndef TD_NPC_TOKENIZER_H
#define TD_NPC_TOKENIZER_H

#include "kernels/model/gguf.h"

typedef struct td_tokenizer td_tokenizer;

enum { TD_TEXT_BYTES = 1 << 28 }; /* at most, at once */
#define TD_NO_TOKEN UINT32_MAX

/* From the metadata; the file may be closed behind it. PROTOCOL, naming the key, where it is wrong;
 * UNSUPPORTED for other kinds of tokenizers; NOMEM. */
tandem_status td_tokenizer_create(const td_gguf *file, td_tokenizer **out, char *why,
                                  size_t why_bytes);
void td_tokenizer_destroy(td_tokenizer **tokenizer);

/* Tokens are numbers below this. */
uint32_t td_tokenizer_count(const td_tokenizer *t);
/* PROTOCOL if there are tokens that a model with logits of so many words knows nothing of. */
tandem_status td_tokenizer_fits(const td_tokenizer *t, uint32_t words, char *why, size_t why_bytes);
/* TD_NO_TOKEN where the model has none. */
uint32_t td_tokenizer_begin(const td_tokenizer *t);
/* Whether a text for the model begins with that one. */
bool td_tokenizer_begins(const td_tokenizer *t);
/* The token whose text, as the file has it, is exactly this: TD_NO_TOKEN if there is none. */
uint32_t td_tokenizer_find(const td_tokenizer *t, const char *text, size_t bytes);
/* Whether a reply ends with it: of a text, of a turn. */
bool td_tokenizer_is_end(const td_tokenizer *t, uint32_t token);
/* Whether it is there to steer the model and is no part of a text. */
bool td_tokenizer_is_special(const td_tokenizer *t, uint32_t token);
/* The bytes of a text that it stands for, or the name of a special one: no whole UTF-8, maybe. */
td_gguf_string td_tokenizer_piece(const td_tokenizer *t, uint32_t token);

/* --- Encoding --- */

/* Begins as zeros. */
typedef struct td_tokens {
    uint32_t *ids;
    size_t count, room;
} td_tokens;
void td_tokens_free(td_tokens *tokens);
tandem_status td_tokens_add(td_tokens *tokens, uint32_t id);

/* A text comes in parts. Only in those that are to be trusted do the names of special tokens, as
 * "<|im_end|>", become those tokens; what a player types must not be one. Otherwise it makes no
 * difference where one part ends and the next begins. Broken UTF-8 is read as U+FFFD. */
typedef struct td_text_part {
    const char *text;
    size_t bytes;
    bool special;
} td_text_part;

/* Adds a text's tokens behind those that are there, which on failure stay the same: ARG where it
 * has more than TD_TEXT_BYTES; NOMEM. Nothing is put before it: see td_tokenizer_begins(). */
tandem_status td_tokenizer_encode(const td_tokenizer *t, const td_text_part *parts, size_t count,
                                  td_tokens *out, char *why, size_t why_bytes);

/* --- Decoding, token by token --- */

/* What it gives is always whole UTF-8: the bytes of a character that is not complete are held back,
 * and broken ones replaced by U+FFFD. */
typedef struct td_decoder {
    const td_tokenizer *tokenizer;
    bool special; /* names of special tokens are written, too */
    bool begun;
    uint32_t held_bytes;
    char held[4];
} td_decoder;

td_decoder td_decoder_begin(const td_tokenizer *t, bool special);
/* The most bytes that a token can give. */
size_t td_decoder_room(const td_tokenizer *t);
/* Writes what the text gains by one more token, and returns how many bytes that is. */
size_t td_decoder_add(td_decoder *d, uint32_t token, char *to);
/* The same for the end of the text: U+FFFD for a character that was not completed. */
size_t td_decoder_end(td_decoder *d, char *to);

#endif
