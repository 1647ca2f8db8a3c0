/* Folders of language models as transformers saves them, with config.json, tokenizer.json and
 * safetensors files: read as if they were one GGUF file.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Metadata and names of tensors are those that the same model's GGUF file would have; what is in
 * the files is neither copied nor trusted. Some keys are there that no GGUF file has:
 * tandem.rope.halves, as channels of heads are in another order; tandem.tokenizer.patterns, the
 * regular expressions that cut texts into words, of which tandem.tokenizer.whole_words says whether
 * those that are tokens are never made of others; tandem.tokenizer.merges, of characters.
 */
#ifndef TANDEM_FOLDER_H
#define TANDEM_FOLDER_H

#include "kernels/model/gguf.h"

/* Whether there is a config.json in what is at the path. */
bool td_folder_is(const char *path);

/* Maps and checks what is in a folder. IO if a file cannot be read; PROTOCOL, naming the file and
 * what is wrong in it; UNSUPPORTED for another kind of model, or tokenizer; NOMEM. On failure *out
 * is empty. */
tandem_status td_folder_open(const char *path, td_gguf *out, char *why, size_t why_bytes);

/* What is at a path: a GGUF file, or such a folder. */
tandem_status td_checkpoint_open(const char *path, td_gguf *out, char *why, size_t why_bytes);

#endif
