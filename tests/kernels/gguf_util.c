/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/gguf_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/model/gguf.h"

void gguf_free(gguf_writer *w)
{
    free(w->bytes);
    *w = (gguf_writer){0};
}

void gguf_put(gguf_writer *w, const void *bytes, size_t count)
{
    w->bytes = realloc(w->bytes, w->size + count + 1);
    if (!w->bytes) {
        fprintf(stderr, "no memory for a file\n");
        abort();
    }
    if (count)
        memcpy(w->bytes + w->size, bytes, count);
    w->size += count;
}

void gguf_put_u32(gguf_writer *w, uint32_t x)
{
    gguf_put(w, &x, sizeof x);
}

void gguf_put_u64(gguf_writer *w, uint64_t x)
{
    gguf_put(w, &x, sizeof x);
}

void gguf_put_string(gguf_writer *w, const char *text)
{
    gguf_put_u64(w, strlen(text));
    gguf_put(w, text, strlen(text));
}

void gguf_put_header(gguf_writer *w, uint64_t tensors, uint64_t values)
{
    gguf_put(w, "GGUF", 4);
    gguf_put_u32(w, 3);
    gguf_put_u64(w, tensors);
    gguf_put_u64(w, values);
}

void gguf_put_key(gguf_writer *w, const char *key, uint32_t type)
{
    gguf_put_string(w, key);
    gguf_put_u32(w, type);
}

void gguf_put_array(gguf_writer *w, const char *key, uint32_t type, uint64_t count)
{
    gguf_put_key(w, key, TD_GGUF_ARRAY);
    gguf_put_u32(w, type);
    gguf_put_u64(w, count);
}

void gguf_put_tensor(gguf_writer *w, const char *name, uint64_t columns, uint64_t rows,
                     uint32_t type, uint64_t offset)
{
    gguf_put_string(w, name);
    gguf_put_u32(w, 2);
    gguf_put_u64(w, columns);
    gguf_put_u64(w, rows);
    gguf_put_u32(w, type);
    gguf_put_u64(w, offset);
}

void gguf_align(gguf_writer *w, size_t alignment)
{
    while (w->size % alignment)
        gguf_put(w, "", 1);
}
