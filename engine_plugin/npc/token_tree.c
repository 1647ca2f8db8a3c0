/* A vocabulary as a tree of bytes. See token_tree.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/token_tree.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = UINT16_MAX, MOST_ALIKE = UINT16_MAX };

typedef struct word {
    const char *bytes;
    uint32_t length, token;
} word;

static int by_bytes(const void *a, const void *b)
{
    const word *x = a, *y = b;
    const uint32_t shorter = x->length < y->length ? x->length : y->length;
    const int order = memcmp(x->bytes, y->bytes, shorter);

    if (order)
        return order;
    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static uint32_t list_words(const td_tokenizer *t, td_token_tree *tree, word *words)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < tree->words; i++) {
        const td_gguf_string piece = td_tokenizer_piece(t, i);

        if (td_tokenizer_is_end(t, i))
            tree->ends[tree->end_count++] = i;
        else if (!td_tokenizer_is_special(t, i) && piece.length && piece.length <= MOST_DEPTH)
            words[count++] = (word){piece.bytes, (uint32_t)piece.length, i};
    }
    return count;
}

static uint32_t alike(const word *a, const word *b)
{
    uint32_t count = 0;

    while (count < a->length && count < b->length && a->bytes[count] == b->bytes[count])
        count++;
    return count;
}

/* Nodes of each word that the one before it does not have. `path`: where those of the last are. */
static void add_words(td_token_nodes *to, const word *words, uint32_t count, uint32_t *path)
{
    uint32_t depth = 0;

    for (uint32_t i = 0; i < count; i++) {
        const word *w = &words[i];
        const uint32_t same = i ? alike(w, w - 1) : 0;

        for (; depth > same; depth--)
            to->nodes[path[depth - 1]].next = to->node_count;
        for (; depth < w->length; depth++) {
            path[depth] = to->node_count;
            to->nodes[to->node_count++] =
                (td_token_node){.first = i, .depth = depth, .byte = (uint8_t)w->bytes[depth]};
        }
        to->tokens[i] = w->token;
        if (to->nodes[path[depth - 1]].count < MOST_ALIKE)
            to->nodes[path[depth - 1]].count++;
    }
    for (; depth; depth--)
        to->nodes[path[depth - 1]].next = to->node_count;
    to->token_count = count;
}

/* Of words in their order. */
static bool build(td_token_nodes *to, const word *words, uint32_t count, uint32_t longest)
{
    uint64_t nodes = 1;

    for (uint32_t i = 0; i < count; i++)
        nodes += words[i].length - (i ? alike(&words[i], &words[i - 1]) : 0);
    to->nodes = nodes < UINT32_MAX ? malloc(nodes * sizeof *to->nodes) : NULL;
    to->tokens = malloc(((size_t)count + 1) * sizeof *to->tokens);
    uint32_t *path = malloc(((size_t)longest + 1) * sizeof *path);
    const bool ok = to->nodes && to->tokens && path;
    if (ok)
        add_words(to, words, count, path);
    free(path);
    return ok;
}

static bool is_plain(const word *w)
{
    for (uint32_t i = 0; i < w->length; i++)
        if (!td_is_plain((uint8_t)w->bytes[i]))
            return false;
    return w->length <= TD_PLAIN_BYTES;
}

static bool build_all(td_token_tree *tree, word *words)
{
    const uint32_t count = list_words(tree->tokenizer, tree, words);
    uint32_t others = 0;

    qsort(words, count, sizeof *words, by_bytes);
    for (uint32_t i = 0; i < count; i++)
        tree->longest = words[i].length > tree->longest ? words[i].length : tree->longest;
    if (!build(&tree->all, words, count, tree->longest))
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (is_plain(&words[i]))
            tree->plain[words[i].token / 64] |= (uint64_t)1 << words[i].token % 64;
        else
            words[others++] = words[i];
    return build(&tree->others, words, others, tree->longest);
}

tandem_status td_token_tree_create(const td_tokenizer *t, td_token_tree **out)
{
    td_token_tree *tree = *out = calloc(1, sizeof *tree);
    word *words = malloc(((size_t)td_tokenizer_count(t) + 1) * sizeof *words);
    bool made = false;

    if (tree && words) {
        tree->tokenizer = t;
        tree->words = td_tokenizer_count(t);
        tree->ends = malloc(((size_t)tree->words + 1) * sizeof *tree->ends);
        tree->plain = calloc((size_t)tree->words / 64 + 1, sizeof *tree->plain);
        made = tree->ends && tree->plain && build_all(tree, words);
    }
    free(words);
    if (!made)
        td_token_tree_destroy(out);
    return made ? TANDEM_OK : TANDEM_ERROR_NOMEM;
}

void td_token_tree_destroy(td_token_tree **tree)
{
    if (!*tree)
        return;
    free((*tree)->all.nodes);
    free((*tree)->all.tokens);
    free((*tree)->others.nodes);
    free((*tree)->others.tokens);
    free((*tree)->plain);
    free((*tree)->ends);
    free(*tree);
    *tree = NULL;
}
