/* A language model on a session: tokens of one sequence in, logits out.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * It reads tokens at positions from 0 on, which its caches keep: so a prompt is read in parts, then
 * one token after the other, and what was read can be read over from any position on. One thread at
 * a time.
 */
#ifndef TANDEM_NPC_SPEAKER_H
#define TANDEM_NPC_SPEAKER_H

#include <stdbool.h>

#include "engine_plugin/npc/host_mem.h"
#include "tandem/tandem.h"

enum { TD_SPEAKER_PART = 64 /* tokens that are read at once, at most */ };

typedef struct td_speaker_desc {
    const char *path;   /* a GGUF file, or NULL: */
    tandem_model model; /* one that was created of such a file, which stays the caller's */
    uint32_t context;   /* tokens of the sequence, at most; 0: as many as the model was trained for */
    uint32_t precision; /* tandem_precision of attention; AUTO: f16 */
    uint32_t cache;     /* tandem_cache_format of keys and values */
    bool all_logits;    /* of all tokens of a part; else of the last one */
} td_speaker_desc;

typedef struct td_speaker {
    tandem_session *session; /* the caller's */
    tandem_model model;
    bool owns_model;
    tandem_instance instance;
    td_host_mem mem; /* of logits */
    tandem_view view;
    uint32_t words, context;
    uint64_t cache_bytes;
    uint32_t tokens, wanted;      /* of a run that is prepared; */
    uint64_t ids, positions, rows; /* where its uniforms are, */
    uint64_t uniform_bytes;
    char *uniforms;
    const float *logits; /* [wanted][words], of the last tokens that were read */
} td_speaker;

/* What goes wrong is said by tandem_error_text() of the session. UNSUPPORTED: the file is no
 * language model. On failure *speaker is empty. */
tandem_status td_speaker_open(tandem_session *session, const td_speaker_desc *desc,
                              td_speaker *speaker);
/* Accepts empty ones. */
void td_speaker_close(td_speaker *speaker);

/* How many of `left` tokens from position `first` on are read at once: up to the end of a page, of
 * which caches of codes have one at a time. */
static inline uint32_t td_speaker_part(uint32_t first, size_t left)
{
    const uint32_t page = TD_SPEAKER_PART - first % TD_SPEAKER_PART;

    return left < page ? (uint32_t)left : page;
}

/* `count` tokens, at most td_speaker_part(), from position `first` on: logits of the last `wanted`,
 * once the job is done. One at a time. */
tandem_status td_speaker_submit(td_speaker *speaker, const uint32_t *ids, uint32_t first,
                                uint32_t count, uint32_t wanted, tandem_ticket *ticket);
/* The same, and waits for it. */
tandem_status td_speaker_compute(td_speaker *speaker, const uint32_t *ids, uint32_t first,
                                 uint32_t count, uint32_t wanted);
/* Any number of tokens: logits of the last one. */
tandem_status td_speaker_read(td_speaker *speaker, const uint32_t *ids, uint32_t first,
                              uint32_t count);

#endif
