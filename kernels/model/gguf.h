/* GGUF files, which language models come in: read without trusting a byte of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A file is a header, the metadata (values by key), a description of each tensor, and the tensors'
 * bytes. It is mapped, and nothing of it is copied but names. So it has to stay as it is while it
 * is open: one that shrinks meanwhile raises SIGBUS where what is missing is read (who replaces a
 * file that is in use renames another to its name). After it was opened nothing here changes, and
 * any number of threads may read.
 */
#ifndef TANDEM_GGUF_H
#define TANDEM_GGUF_H

#include "interop/base.h"
#include "kernels/arena.h"

enum {
    TD_GGUF_DIMENSIONS = 4,
    TD_GGUF_MOST_KEYS = 1 << 16,
    TD_GGUF_MOST_TENSORS = 1 << 16,
    TD_GGUF_MOST_STRINGS = 1 << 24, /* of an array */
    TD_GGUF_KEY_BYTES = 65535,      /* at most; the format's own limits */
    TD_GGUF_NAME_BYTES = 64
};

/* As files number them. */
typedef enum td_gguf_type {
    TD_GGUF_U8 = 0,
    TD_GGUF_I8 = 1,
    TD_GGUF_U16 = 2,
    TD_GGUF_I16 = 3,
    TD_GGUF_U32 = 4,
    TD_GGUF_I32 = 5,
    TD_GGUF_F32 = 6,
    TD_GGUF_BOOL = 7,
    TD_GGUF_STRING = 8,
    TD_GGUF_ARRAY = 9,
    TD_GGUF_U64 = 10,
    TD_GGUF_I64 = 11,
    TD_GGUF_F64 = 12
} td_gguf_type;

/* Bytes of the file: of any value, and with no 0 behind them. */
typedef struct td_gguf_string {
    const char *bytes;
    uint64_t length;
} td_gguf_string;

typedef struct td_gguf_value {
    const char *key;
    td_gguf_type type; /* of an array's elements, which are no arrays */
    bool is_array;
    uint64_t count;                /* elements; 1 where it is no array */
    const td_gguf_string *strings; /* else NULL */
    const uint8_t *bytes;          /* what is no string, one behind the other */
    uint64_t offset;               /* in the file: of the first element */
} td_gguf_value;

typedef struct td_gguf_tensor {
    const char *name;
    const char *type_name; /* as "Q4_K"; a literal */
    uint32_t dtype;        /* tandem_dtype; NONE for a type that no view has */
    uint32_t dimensions;
    uint64_t shape[TD_GGUF_DIMENSIONS]; /* neighbours in memory come first; 1 behind `dimensions` */
    const void *data;                   /* as aligned as the file says, by 8 bytes at least */
    uint64_t offset, bytes;             /* in the file, from its beginning */
    uint64_t described;                 /* where in the file */
} td_gguf_tensor;

/* A file that tensors lie in, where there are several. */
typedef struct td_gguf_map {
    void *at;
    uint64_t bytes;
} td_gguf_map;

typedef struct td_gguf {
    uint32_t alignment, value_count, tensor_count;
    td_gguf_value *values;   /* sorted by key */
    td_gguf_tensor *tensors; /* by name */
    const uint8_t *bytes;    /* the file; NULL of a folder (folder.h) */
    uint64_t size;
    void *map; /* NULL: `bytes` are the caller's */
    td_gguf_map *maps; /* of a folder's files, in the arena */
    uint32_t map_count;
    td_arena arena;
} td_gguf;

/* Maps and checks a file. IO if it cannot be read; PROTOCOL, naming the key or tensor, what is
 * wrong with it and at which byte of the file; NOMEM. On failure *out is empty. */
tandem_status td_gguf_open(const char *path, td_gguf *out, char *why, size_t why_bytes);
/* The same of a file in memory, which has to lie there, at a multiple of 8, until it is closed. */
tandem_status td_gguf_read(const void *bytes, uint64_t size, td_gguf *out, char *why,
                           size_t why_bytes);
/* Accepts empty ones. */
void td_gguf_close(td_gguf *file);

/* For who makes one: puts keys and names into their order. Returns one that is there twice, or NULL. */
const char *td_gguf_sort(td_gguf *file);

/* NULL if there is none of this name. */
const td_gguf_value *td_gguf_find(const td_gguf *file, const char *key);
const td_gguf_tensor *td_gguf_find_tensor(const td_gguf *file, const char *name);

/* PROTOCOL, naming the key, if it is not there or its value is something else. Integers may have
 * any width, floats both. */
tandem_status td_gguf_u32(const td_gguf *file, const char *key, uint32_t *out, char *why,
                          size_t why_bytes);
tandem_status td_gguf_f32(const td_gguf *file, const char *key, float *out, char *why,
                          size_t why_bytes); /* finite */
tandem_status td_gguf_bool(const td_gguf *file, const char *key, bool *out, char *why,
                           size_t why_bytes);
tandem_status td_gguf_text(const td_gguf *file, const char *key, td_gguf_string *out, char *why,
                           size_t why_bytes);
/* An array of elements of exactly this type. */
tandem_status td_gguf_array(const td_gguf *file, const char *key, td_gguf_type type,
                            const td_gguf_value **out, char *why, size_t why_bytes);
/* Element `i` of a value of numbers or bools; integers beyond 2^53 are rounded. */
double td_gguf_number(const td_gguf_value *value, uint64_t i);

/* A tensor to compute with. PROTOCOL if there is none of this name, or it has another shape;
 * UNSUPPORTED if it has a type that no view has. */
tandem_status td_gguf_weights(const td_gguf *file, const char *name,
                              const uint64_t shape[TD_GGUF_DIMENSIONS], const td_gguf_tensor **out,
                              char *why, size_t why_bytes);

static inline bool td_gguf_string_is(td_gguf_string string, const char *text)
{
    return strlen(text) == string.length && !memcmp(string.bytes, text, string.length);
}

#endif
