/* A vocabulary as a tree of bytes: tokens that begin alike share what they begin with.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_NPC_TOKEN_TREE_H
#define TD_NPC_TOKEN_TREE_H

#include "engine_plugin/npc/tokenizer.h"

/* Bytes that are nothing but themselves in a string of JSON. */
static inline bool td_is_plain(uint8_t byte)
{
    return byte >= ' ' && byte <= '~' && byte != '"' && byte != '\\';
}
enum { TD_PLAIN_BYTES = 16 }; /* of a plain token, at most */

/* A byte behind those of the nodes above it. */
typedef struct td_token_node {
    uint32_t next;  /* the node behind all that are below this one */
    uint32_t first; /* tokens that end here: `count` of `tokens` */
    uint32_t count : 16, depth : 16;
    uint8_t byte;
} td_token_node;

typedef struct td_token_nodes {
    td_token_node *nodes; /* what is below a node lies right behind it */
    uint32_t *tokens;     /* by their bytes */
    uint32_t node_count, token_count;
} td_token_nodes;

/* Never changes once it is made. Special tokens and those without a byte are not in it. */
typedef struct td_token_tree {
    const td_tokenizer *tokenizer; /* the caller's, which must live as long */
    td_token_nodes all;
    /* Most tokens of most vocabularies are plain bytes alone, and short. A mask of those, bit
     * token % 64 of [token / 64], and all others. */
    uint64_t *plain;
    td_token_nodes others;
    uint32_t words, longest;
    uint32_t *ends; /* tokens that end a reply */
    uint32_t end_count;
} td_token_tree;

/* NOMEM. */
tandem_status td_token_tree_create(const td_tokenizer *t, td_token_tree **out);
void td_token_tree_destroy(td_token_tree **tree);

#endif
