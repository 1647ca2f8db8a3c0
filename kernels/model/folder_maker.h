/* A folder's metadata in the making: what the parts of its reader share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_FOLDER_MAKER_H
#define TANDEM_FOLDER_MAKER_H

#include "kernels/model/folder.h"
#include "kernels/model/json.h"

enum { TD_FOLDER_PATH_BYTES = 4096 };

typedef struct td_folder {
    td_gguf *out;
    const char *path;
    const char *architecture; /* as GGUF names it */
    td_json config;
    uint32_t root; /* of the language model within it */
    tandem_status status;
    char *why;
    size_t why_bytes;
} td_folder;

/* Notes what is wrong, once; false. */
bool td_folder_fail(td_folder *f, tandem_status status, const char *format, ...)
    __attribute__((format(TD_PRINTF, 3, 4)));
void *td_folder_take(td_folder *f, uint64_t count, size_t bytes);
bool td_folder_path(td_folder *f, const char *name, char path[TD_FOLDER_PATH_BYTES]);
/* A file of the folder as JSON, within limits that vocabularies keep to; false: it is not there,
 * or, with a status, something is wrong. */
bool td_folder_json(td_folder *f, const char *name, td_json *json);
/* A text that stays. */
const char *td_folder_text(td_folder *f, const char *format, ...)
    __attribute__((format(TD_PRINTF, 2, 3)));

/* --- Metadata --- */

/* Keys and what they point to have to stay. */
bool td_folder_put(td_folder *f, td_gguf_value value);
bool td_folder_put_u32(td_folder *f, const char *key, uint32_t value);
bool td_folder_put_f32(td_folder *f, const char *key, float value);
bool td_folder_put_bool(td_folder *f, const char *key, bool value);
bool td_folder_put_text(td_folder *f, const char *key, const char *text, size_t bytes);

/* Of config.json, and of the tokenizer's files. */
bool td_folder_read_config(td_folder *f);
bool td_folder_read_tokenizer(td_folder *f);
bool td_folder_add_tensor(td_folder *f, td_gguf_tensor tensor);
/* A vector of the model that is in no file. */
bool td_folder_add_vector(td_folder *f, const char *name, const float *data, uint32_t count);

#endif
