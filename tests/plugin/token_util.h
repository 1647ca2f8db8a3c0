/* For tests of tokenizers: what other libraries made of texts (tests/plugin/tokenizer/make.py), and
 * tokenizers of small vocabularies.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_TOKEN_UTIL_H
#define TD_TESTS_TOKEN_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine_plugin/npc/tokenizer.h"
#include "kernels/model/json.h"
#include "tests/kernels/gguf_util.h"

/* A file of tests/plugin/tokenizer. */
td_json token_read_json(const char *name);
/* A member of an object, as its index; 0 if there is none. */
uint32_t token_member(const td_json *json, uint32_t object, const char *name);
double token_number(const td_json *json, uint32_t value);

/* Those of an array. */
td_tokens token_read(const td_json *json, uint32_t ids);
/* Fails with both lists unless `tokens` are those of the array `ids`. */
void token_must_be(const char *text, const td_tokens *tokens, const td_json *json, uint32_t ids);
/* What td_tokenizer_encode() gives for one part. */
td_tokens token_encode(const td_tokenizer *t, const char *text, size_t bytes, bool special);
/* All tokens decoded one by one, special ones too; the caller frees it. Fails where what one adds
 * is no whole UTF-8. */
char *token_decode(const td_tokenizer *t, const td_tokens *tokens);

/* A tokenizer of the metadata that `w` has; `w` is freed. */
td_tokenizer *token_create(gguf_writer *w);
void token_must_refuse(gguf_writer *w, tandem_status status, const char *says);
/* Keys of arrays of JSON: of strings, of floats, of integers. */
void token_put_strings(gguf_writer *w, const char *key, const td_json *json, uint32_t array);
void token_put_floats(gguf_writer *w, const char *key, const td_json *json, uint32_t array);
void token_put_integers(gguf_writer *w, const char *key, const td_json *json, uint32_t array);

#endif
