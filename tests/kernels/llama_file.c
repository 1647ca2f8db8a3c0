/* GGUF files of language models with made-up weights. See llama_file.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/llama_file.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/blocks.h"
#include "kernels/cpu/cpu.h"
#include "kernels/model/gguf.h"
#include "tests/kernels/gguf_util.h"
#include "tests/kernels/llama_util.h"

enum { ALIGNMENT = 32, MOST_TENSORS = 1024 };

typedef struct description {
    char name[64];
    uint64_t rows, channels;
    uint32_t dtype;
} description;

typedef struct writer {
    const lf_shape *shape;
    const lf_change *change;
    gguf_writer file;
    description tensors[MOST_TENSORS];
    uint32_t tensor_count, key_count;
} writer;

/* --- Keys --- */

static bool lacks(const writer *w, const char *name)
{
    return w->change && w->change->lacks && !strcmp(w->change->lacks, name);
}

/* Whether a key is to be written: not if it has another value. */
static bool put_key(writer *w, const char *key, td_gguf_type type)
{
    if (lacks(w, key) || (w->change && w->change->key && !strcmp(w->change->key, key)))
        return false;
    w->key_count++;
    gguf_put_key(&w->file, key, type);
    return true;
}

static void key_text(writer *w, const char *key, const char *value)
{
    if (put_key(w, key, TD_GGUF_STRING))
        gguf_put_string(&w->file, value);
}

static void key_u32(writer *w, const char *key, uint32_t value)
{
    if (put_key(w, key, TD_GGUF_U32))
        gguf_put_u32(&w->file, value);
}

static void key_f32(writer *w, const char *key, float value)
{
    if (put_key(w, key, TD_GGUF_F32))
        gguf_put(&w->file, &value, sizeof value);
}

/* How byte-level vocabularies write a byte: as itself if it is printed, else as one of the characters
 * from U+0100 on, in their order. */
static void byte_name(uint32_t byte, char name[3])
{
    uint32_t c = 0x100;

    for (uint32_t b = 0; b <= byte; b++) {
        const bool printed = (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad);

        if (b == byte && printed)
            c = b;
        c += b < byte && !printed;
    }
    if (c < 0x80)
        snprintf(name, 3, "%c", (char)c);
    else
        snprintf(name, 3, "%c%c", (char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f)));
}

static void put_word(writer *w, uint32_t word)
{
    char name[16];

    if (word == LF_TURN || word == LF_TURN_END) {
        gguf_put_string(&w->file, word == LF_TURN ? "<|im_start|>" : "<|im_end|>");
        return;
    }
    if (word < 256)
        byte_name(word, name);
    else
        snprintf(name, sizeof name, "w%u", (unsigned)word);
    gguf_put_string(&w->file, name);
}

static void put_vocabulary(writer *w)
{
    const uint32_t words = w->shape->words + w->shape->more_tokens;

    key_text(w, "tokenizer.ggml.model", "gpt2");
    key_text(w, "tokenizer.ggml.pre", "gpt-2");
    gguf_put_array(&w->file, "tokenizer.ggml.tokens", TD_GGUF_STRING, words);
    for (uint32_t i = 0; i < words; i++)
        put_word(w, i);
    gguf_put_array(&w->file, "tokenizer.ggml.token_type", TD_GGUF_I32, words);
    for (uint32_t i = 0; i < words; i++)
        gguf_put_u32(&w->file, i == LF_TURN || i == LF_TURN_END ? 3 : 1);
    gguf_put_array(&w->file, "tokenizer.ggml.merges", TD_GGUF_STRING, 0);
    w->key_count += 3;
    key_u32(w, "tokenizer.ggml.eos_token_id", LF_TURN_END);
    key_text(w, "tokenizer.chat_template", "{{'<|im_start|>' + role}}");
}

static void put_changed_key(writer *w)
{
    const lf_change change = *w->change;

    w->change = NULL;
    if (change.text)
        key_text(w, change.key, change.text);
    else
        key_u32(w, change.key, change.number);
}

static void put_keys(writer *w)
{
    const lf_shape *s = w->shape;

    key_text(w, "general.architecture", "llama");
    key_u32(w, "llama.block_count", s->layers);
    key_u32(w, "llama.context_length", s->context);
    key_u32(w, "llama.embedding_length", s->dim);
    key_u32(w, "llama.feed_forward_length", s->hidden);
    key_u32(w, "llama.attention.head_count", s->heads);
    key_u32(w, "llama.attention.head_count_kv", s->kv_heads);
    key_u32(w, "llama.attention.key_length", s->head_dim);
    key_u32(w, "llama.attention.value_length", s->head_dim);
    key_u32(w, "llama.rope.dimension_count", s->rotated_channels);
    key_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    key_f32(w, "llama.rope.freq_base", 10000);
    if (s->speaks)
        put_vocabulary(w);
    if (w->change && w->change->key)
        put_changed_key(w);
}

/* --- Tensors --- */

static void add(writer *w, const char *name, uint64_t rows, uint64_t channels, uint32_t dtype)
{
    description *t = &w->tensors[w->tensor_count];

    if (lacks(w, name))
        return;
    assert_true(++w->tensor_count <= MOST_TENSORS);
    *t = (description){.rows = rows, .channels = channels, .dtype = dtype};
    snprintf(t->name, sizeof t->name, "%s", name);
}

static void add_layer(writer *w, uint32_t layer)
{
    const lf_shape *s = w->shape;
    const uint32_t queries = s->heads * s->head_dim, keys = s->kv_heads * s->head_dim;
    const uint32_t value_dtype = s->value_dtype ? s->value_dtype : s->dtype;
    const struct {
        const char *name;
        uint64_t rows, channels;
        uint32_t dtype;
    } all[] = {
        {"attn_norm", 1, s->dim, TANDEM_DTYPE_F32}, {"attn_q", queries, s->dim, s->dtype},
        {"attn_k", keys, s->dim, s->dtype},         {"attn_v", keys, s->dim, value_dtype},
        {"attn_output", s->dim, queries, s->dtype}, {"ffn_norm", 1, s->dim, TANDEM_DTYPE_F32},
        {"ffn_gate", s->hidden, s->dim, s->dtype},  {"ffn_up", s->hidden, s->dim, s->dtype},
        {"ffn_down", s->dim, s->hidden, s->dtype}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[64];

        snprintf(name, sizeof name, "blk.%u.%s.weight", (unsigned)layer, all[i].name);
        add(w, name, all[i].rows, all[i].channels, all[i].dtype);
    }
}

static void add_tensors(writer *w)
{
    const lf_shape *s = w->shape;

    add(w, "token_embd.weight", s->words, s->dim, s->dtype);
    for (uint32_t i = 0; i < s->layers; i++)
        add_layer(w, i);
    add(w, "output_norm.weight", 1, s->dim, TANDEM_DTYPE_F32);
    if (s->output_dtype)
        add(w, "output.weight", s->words, s->dim, s->output_dtype);
    if (w->change && w->change->adds)
        add(w, w->change->adds, 1, s->dim, TANDEM_DTYPE_F32);
}

static uint32_t ggml_type(uint32_t dtype)
{
    switch (dtype) {
    case TANDEM_DTYPE_F16: return 1;
    case TANDEM_DTYPE_Q4_0: return 2;
    case TANDEM_DTYPE_Q4_1: return 3;
    case TANDEM_DTYPE_Q8_0: return 8;
    case TANDEM_DTYPE_Q4_K: return 12;
    case TANDEM_DTYPE_Q5_K: return 13;
    case TANDEM_DTYPE_Q6_K: return 14;
    case TANDEM_DTYPE_BF16: return 30;
    default: return 0;
    }
}

static uint64_t bytes_of(const description *t)
{
    const td_dtype of = td_dtype_of(t->dtype);

    return t->rows * t->channels / of.elements * of.bytes;
}

static void put_descriptions(writer *w)
{
    uint64_t offset = 0;

    for (uint32_t i = 0; i < w->tensor_count; i++) {
        const description *t = &w->tensors[i];

        gguf_put_tensor(&w->file, t->name, t->channels, t->rows, ggml_type(t->dtype), offset);
        offset += td_align_up(bytes_of(t), ALIGNMENT);
    }
}

/* -1 to 1. */
static float random_value(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) * 0x1p-23f - 1;
}

/* Matrices so that products of rows are about 1, what channels are multiplied by near 1. */
static void put_data(writer *w)
{
    uint32_t seed = 1;

    for (uint32_t i = 0; i < w->tensor_count; i++) {
        const description *t = &w->tensors[i];
        const td_dtype of = td_dtype_of(t->dtype);
        const float size = 1.7f / sqrtf((float)t->channels);
        unsigned char *to = malloc(bytes_of(t));

        assert_non_null(to);
        for (uint64_t block = 0; block < t->rows * t->channels / of.elements; block++) {
            float x[TD_MAX_BLOCK];

            for (uint32_t j = 0; j < of.elements; j++)
                x[j] = t->rows == 1 ? 1 + 0.2f * random_value(&seed) : size * random_value(&seed);
            if (of.elements > 1)
                td_block_encode(t->dtype, to + block * of.bytes, x);
            else
                td_from_floats(to, t->dtype, (int64_t)block, x, 1);
        }
        gguf_put(&w->file, to, bytes_of(t));
        gguf_align(&w->file, ALIGNMENT);
        free(to);
    }
}

void *lf_make(const lf_shape *shape, const lf_change *change, uint64_t *bytes)
{
    writer *w = calloc(1, sizeof *w);

    assert_non_null(w);
    w->shape = shape;
    w->change = change;
    add_tensors(w);
    gguf_put_header(&w->file, w->tensor_count, 0);
    put_keys(w);
    memcpy(w->file.bytes + 16, &(uint64_t){w->key_count}, sizeof(uint64_t)); /* see there */
    put_descriptions(w);
    gguf_align(&w->file, ALIGNMENT);
    put_data(w);
    void *file = w->file.bytes;
    *bytes = w->file.size;
    free(w);
    return file;
}

void lf_write(const char *path, const lf_shape *shape, const lf_change *change)
{
    uint64_t bytes;
    void *made = lf_make(shape, change, &bytes);
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(made, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    free(made);
}

void lf_read(const td_gguf_tensor *tensor, double *to)
{
    const td_dtype of = td_dtype_of(tensor->dtype);
    float x[TD_MAX_BLOCK];

    for (uint64_t block = 0; block < tensor->bytes / of.bytes; block++) {
        if (of.elements > 1)
            td_block_decode(tensor->dtype, x, (const uint8_t *)tensor->data + block * of.bytes);
        else
            td_to_floats(x, tensor->data, tensor->dtype, (int64_t)block, 1);
        for (uint32_t i = 0; i < of.elements; i++)
            to[block * of.elements + i] = (double)x[i];
    }
}
