/* GGUF files of language models with made-up weights.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_LLAMA_FILE_H
#define TD_TESTS_LLAMA_FILE_H

#include <stdbool.h>

#include "kernels/model/gguf.h"

enum { LF_TURN = 256, LF_TURN_END = 257 };

/* tandem_dtypes: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K or Q6_K. */
typedef struct lf_shape {
    uint32_t layers, dim, hidden, heads, kv_heads, head_dim, rotated_channels, words, context;
    uint32_t dtype;        /* of matrices, but for: */
    uint32_t value_dtype;  /* those of values; 0: dtype */
    uint32_t output_dtype; /* that of logits; 0: the words' */
    /* With a vocabulary: words 0 to 255 are the bytes, LF_TURN and LF_TURN_END are ChatML's, which
     * ends replies by the latter; each other word is some bytes. */
    bool speaks;
    uint32_t more_tokens; /* of the vocabulary, than there are words */
} lf_shape;

/* What is another in a file. */
typedef struct lf_change {
    const char *key, *text; /* a key's value: a text or, NULL, */
    uint32_t number;        /* a number */
    const char *lacks;      /* a key or a tensor */
    const char *adds;       /* a tensor: a vector */
} lf_change;

/* The caller frees it. change: or NULL. */
void *lf_make(const lf_shape *shape, const lf_change *change, uint64_t *bytes);
/* The same as a file on the disk. */
void lf_write(const char *path, const lf_shape *shape, const lf_change *change);

/* Elements of a file's tensor as they are multiplied out. */
void lf_read(const td_gguf_tensor *tensor, double *to);

#endif
