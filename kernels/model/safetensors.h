/* Safetensors files: read without trusting a byte of them, and written.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A file is an 8-byte little-endian length, that many bytes of JSON {name: {dtype, shape, data_offsets}}, and the
 * tensors' bytes, which the offsets count from. Files are read, not mapped: one that shrinks meanwhile is an error and
 * not a signal.
 */
#ifndef TANDEM_SAFETENSORS_H
#define TANDEM_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tandem/types.h"

enum { TD_SAFETENSORS_DIMENSIONS = 8 };

typedef struct td_safetensor {
    const char *name;
    const char *dtype_name; /* as "F16"; a literal */
    uint32_t dtype;         /* tandem_dtype; NONE for a type that no view has */
    uint32_t element_bytes;
    uint32_t dimensions;
    uint64_t shape[TD_SAFETENSORS_DIMENSIONS];
    uint64_t offset, bytes; /* in the file, from its beginning */
} td_safetensor;

/* A string of the metadata. */
typedef struct td_safetensors_text {
    const char *key, *value;
} td_safetensors_text;

typedef struct td_safetensors {
    int fd;
    uint64_t file_bytes;
    uint32_t count, text_count;
    td_safetensor *tensors; /* in the order of their bytes */
    td_safetensors_text *texts;
    char *strings; /* of all those */
} td_safetensors;

/* Reads and checks the header. IO if the file cannot be read; PROTOCOL, naming the tensor and what is wrong with it, if
 * it does not keep to the format; NOMEM. On failure *out is empty. */
tandem_status td_safetensors_open(const char *path, td_safetensors *out, char *why, size_t why_bytes);
/* Accepts empty ones. */
void td_safetensors_close(td_safetensors *file);
/* NULL if there is none of this name. */
const td_safetensor *td_safetensors_find(const td_safetensors *file, const char *name);
const char *td_safetensors_find_text(const td_safetensors *file, const char *key);
/* Reads a tensor's bytes; IO if the file is shorter by now. */
tandem_status td_safetensors_read(const td_safetensors *file, const td_safetensor *tensor, void *to, char *why,
                                  size_t why_bytes);
/* The same with `bytes` of them from `from` on, which must lie within the tensor. */
tandem_status td_safetensors_read_part(const td_safetensors *file, const td_safetensor *tensor, uint64_t from,
                                       uint64_t bytes, void *to, char *why, size_t why_bytes);

/* A tensor to write; its bytes are the product of shape and dtype. */
typedef struct td_safetensors_item {
    const char *name;
    const char *dtype; /* "F16", "I32", ... */
    uint32_t dimensions;
    uint64_t shape[TD_SAFETENSORS_DIMENSIONS];
    const void *data;
} td_safetensors_item;

/* Writes all of them, or no file: a partial one is removed. ARG for an unknown dtype, a name twice, or a shape that
 * overflows; IO. */
tandem_status td_safetensors_write(const char *path, const td_safetensors_item *items, uint32_t count, char *why,
                                   size_t why_bytes);

/* The same with metadata: strings under "__metadata__". */
tandem_status td_safetensors_write_texts(const char *path, const td_safetensors_text *texts, uint32_t text_count,
                                         const td_safetensors_item *items, uint32_t count, char *why, size_t why_bytes);

#endif
