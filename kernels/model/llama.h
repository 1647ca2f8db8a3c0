/* Language models of Llama's kind, from GGUF files: their graphs, and their weights as those want
 * them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A run computes `tokens` tokens of `batch` sequences, each at a position of its own, and the
 * logits of those rows that are wanted. What the layers keep of a token, its keys and values, is
 * written to caches at its position, where runs to come find it: so a prompt is one run, or
 * several, and from then on each token is one. A token whose position is below 0 is padding.
 *
 *   numbers   batch, tokens, wanted
 *   uniforms  ids, positions I32 [batch, tokens]; rows I32 [wanted], which are counted through all
 *             sequences: row t of sequence b is b * tokens + t
 *   outputs   logits F32 [wanted, words]; and, where it is asked for, what those are computed of:
 *             hidden F32 [wanted, dim], a row behind the last norm, divided by the logits' cap;
 *             top F32 [wanted, 2 * tops], the largest logits and their words, as tandem_top has them
 *   caches    of a pool of pages, of each layer U8 [1, kv_heads, 1, tandem_cache_pool_bytes()], and a
 *             further uniform, table I32 [batch, 1 + ceil(context / 64)]: which slot a sequence of
 *             the run has, and which pages. Without pages of each layer F16, with TANDEM_CACHE_F32 F32
 *             [slots, 2 * kv_heads, context, head_dim]: keys, then values; or,
 *             in another format, U8 [slots, kv_heads, 1, tandem_cache_bytes()], and then a run has
 *             at most 64 tokens of a sequence, which follow one another, as with a pool.
 *             Sequence b of a run is in slot b
 *
 * Weights stay as the file has them where kernels take them so (F16 and GGUF's blocks of
 * tandem_dtype); F32 and BF16 matrices become F16. What is added from layer to layer is float32.
 * With TANDEM_CACHE_F32 all is, for CPUs: then F16 and BF16 matrices become F32.
 *
 * Architectures: llama (Llama 2 and 3, Mistral, SmolLM2), qwen2, qwen3, gemma, gemma2, gemma3.
 */
#ifndef TANDEM_LLAMA_H
#define TANDEM_LLAMA_H

#include "kernels/model/gguf.h"
#include "kernels/program.h"

enum { TD_LLAMA_BATCH, TD_LLAMA_TOKENS, TD_LLAMA_WANTED, TD_LLAMA_NUMBERS };

enum { TD_LLAMA_MOST_HEAD_DIM = 1 << 12 };

/* How far positions turn pairs of channels: pair i by position * base^(-2 i / rotated channels),
 * that divided by `factor` and by the pair's own divisor. */
typedef struct td_llama_rotation {
    float base, factor;
    const td_gguf_tensor *divisors; /* one for each pair; NULL: 1 */
    /* YaRN: pairs that turn less than `slow` times within `original` tokens are divided by `factor`,
     * those that turn more than `fast` times are not, in between it is a mean; and what is turned is
     * `magnitude` times as long. original 0: no YaRN, and magnitude is 1. */
    uint32_t original;
    float fast, slow, magnitude;
} td_llama_rotation;

/* Layers see all tokens before them, or those in a window. */
enum { TD_LLAMA_ALL, TD_LLAMA_WINDOW, TD_LLAMA_KINDS };

/* What the file's metadata say. */
typedef struct td_llama_sizes {
    const char *architecture;
    uint32_t layers, dim, hidden, heads, kv_heads, head_dim, words;
    uint32_t rotated_channels; /* of a head */
    uint32_t context;          /* at most */
    float epsilon;
    td_llama_rotation rotations[TD_LLAMA_KINDS]; /* by which layers they are of */
    uint32_t window;  /* tokens, a layer's own the last; 0: none has one */
    uint32_t pattern; /* layers whose number, from 1 on, is a multiple of it have none; 0: all have */
    float scale;      /* of scores; 0: 1 / sqrt(head_dim) */
    float score_cap, logit_cap; /* x becomes cap * tanh(x / cap); 0: it stays */
    float embedding_scale;      /* 0: 1 */
    uint32_t activation;        /* tandem_activation of the gate */
    bool halves;      /* channels i and i + rotated_channels / 2 turn together, not neighbours */
    bool head_norms;  /* each head of queries and keys has a norm, before it turns */
    bool after_norms; /* what a layer adds has one, too */
} td_llama_sizes;

/* A weight of the graph's: matrices of the file one below the other, or none: a rotation. */
enum { TD_LLAMA_PARTS = 3 };
typedef struct td_llama_weight {
    uint32_t tensor, dtype; /* which of the graph's, and what it is there */
    uint32_t rotation;      /* where there are no parts: of which layers */
    float scale;            /* of all; 0: 1 */
    const td_gguf_tensor *parts[TD_LLAMA_PARTS];
    /* Its rows, or elements of a vector, are channels of heads; here those that turn together are
     * neighbours. */
    bool reorders[TD_LLAMA_PARTS];
} td_llama_weight;

typedef struct td_llama {
    td_llama_sizes sizes;
    uint32_t slots, context, cache; /* of the caches; their tandem_cache_format */
    uint32_t pages;                 /* of a pool; 0: each slot has its own */
    bool tiles;                     /* matrices of blocks are in tiles, where they can be: for GPUs */
    bool hidden;                    /* it has that output, */
    uint32_t tops;                  /* and, where not 0, that one */
    td_graph *graph; /* who wants to keep it takes it, and leaves NULL */
    td_llama_weight *weights; /* in the graph's order */
    uint32_t weight_count;
    td_arena memory;
} td_llama;

/* The model of a file, which has to stay open until its weights were read. slots: sequences, at
 * least 1; context: tokens of each, at most what the model was trained for; 0: that; cache:
 * tandem_cache_format; pages: those of a pool that slots have in common; 0: each has its own cache;
 * tiles: whether a GPU is to compute it.
 * PROTOCOL where something is missing, or does not fit together; UNSUPPORTED where it is another
 * architecture, or has something that this does not compute; ARG, NOMEM. On failure *model is
 * empty. */
typedef struct td_llama_desc {
    uint32_t slots, context, cache, pages;
    bool tiles;
    bool hidden;   /* a further output, `hidden` */
    uint32_t tops; /* another one, `top`: so many of the largest logits of each row, at most 64; 0: none */
} td_llama_desc;
tandem_status td_llama_open(const td_gguf *file, const td_llama_desc *desc, td_llama *model,
                            char *why, size_t why_bytes);
/* Whether there are kernels for its caches as codes, or in a pool: for its heads, and its scores. */
bool td_llama_takes_planes(const td_llama *model);
/* Accepts empty ones. */
void td_llama_close(td_llama *model);

/* How many bytes a tensor of the file has among weights. */
uint64_t td_llama_part_bytes(const td_llama_weight *weight, const td_gguf_tensor *part);

/* `bytes` bytes of weight `i`, from its byte `from` on: both multiples of 4, unless the weight ends
 * there. Threads: any, as nothing of a model changes. */
void td_llama_read_weight(const td_llama *model, uint32_t i, uint64_t from, uint64_t bytes,
                          void *to);

/* All of them: the view TD_PROGRAM_WEIGHTS of a program of its graph, of which all have the same. */
void td_llama_read_weights(const td_llama *model, const td_program *program, void *weights);

#endif
