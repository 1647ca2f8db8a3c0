/* Writes GGUF files into memory, right or wrong ones, for tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_GGUF_UTIL_H
#define TD_GGUF_UTIL_H

#include <stddef.h>
#include <stdint.h>

/* Begins as zeros; grows as it is written to. Ends the program where memory is short. */
typedef struct gguf_writer {
    uint8_t *bytes;
    size_t size;
} gguf_writer;

void gguf_free(gguf_writer *w);
void gguf_put(gguf_writer *w, const void *bytes, size_t count);
void gguf_put_u32(gguf_writer *w, uint32_t x);
void gguf_put_u64(gguf_writer *w, uint64_t x);
void gguf_put_string(gguf_writer *w, const char *text);
/* The header of a file of version 3. */
void gguf_put_header(gguf_writer *w, uint64_t tensors, uint64_t values);
/* A key, and its value's type (td_gguf_type); what follows is the value. */
void gguf_put_key(gguf_writer *w, const char *key, uint32_t type);
/* The same for an array of `count` elements, which follow. */
void gguf_put_array(gguf_writer *w, const char *key, uint32_t type, uint64_t count);
/* The description of a tensor of the shape [columns, rows], of a type as files number them. */
void gguf_put_tensor(gguf_writer *w, const char *name, uint64_t columns, uint64_t rows,
                     uint32_t type, uint64_t offset);
/* Zeros up to a multiple of `alignment`. */
void gguf_align(gguf_writer *w, size_t alignment);

#endif
