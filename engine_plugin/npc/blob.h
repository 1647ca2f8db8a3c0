/* A character as bytes, as games save it: what was said, and what it has read.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Little endian, one behind the other: a head of TD_BLOB_HEAD_BYTES, tokens, turns as a role and a
 * number of bytes each, their texts, and what caches have of the tokens behind the first pages.
 * What is read comes from a file that anybody may have written: each number is checked before it is
 * used, and a checksum finds what was damaged.
 */
#ifndef TD_NPC_BLOB_H
#define TD_NPC_BLOB_H

#include "engine_plugin/npc/history.h"

enum { TD_BLOB_VERSION = 1, TD_BLOB_HEAD_BYTES = 128, TD_BLOB_TURNS = 1 << 20 /* at most */ };

/* Whose bytes they are: they are of use where all of that is the same. */
typedef struct td_blob_kind {
    uint64_t model, persona; /* td_blob_hash() of them */
    uint32_t cache, layers, kv_heads, head_dim, words;
    uint32_t plain;
} td_blob_kind;

typedef struct td_blob {
    td_blob_kind kind;
    uint32_t token_count, first_page, pages, tail;
    uint32_t forgotten, turn_count;
    const uint32_t *tokens; /* written: the caller's; read: to be freed, as `turns` are */
    const td_chat_turn *turns; /* texts of what is read are within the bytes, without a 0 */
    const void *data;          /* within the bytes, of what is read */
    uint64_t data_bytes;
} td_blob;

uint64_t td_blob_hash(uint64_t so_far, const void *bytes, uint64_t count);
#define TD_BLOB_HASH 0xcbf29ce484222325u /* of nothing */

/* UINT64_MAX: too many. */
uint64_t td_blob_bytes(const td_blob *blob);
/* All but the data, which the caller writes to what is returned; then td_blob_seal(). */
void *td_blob_write(const td_blob *blob, void *to);
void td_blob_seal(void *to, uint64_t bytes);

/* PROTOCOL, naming what is wrong; ARG where it is of another kind than `want`, naming in what;
 * NOMEM. data_bytes: what its caller knows pages and tail to have. */
tandem_status td_blob_read(const void *from, uint64_t bytes, const td_blob_kind *want, td_blob *out,
                           char *why, size_t why_bytes);
void td_blob_free(td_blob *blob);

#endif
