/* Memory that is taken piece by piece and given back as a whole.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_ARENA_H
#define TANDEM_KERNELS_ARENA_H

#include <stddef.h>
#include <stdint.h>

/* Begins as zeros: nothing is taken. */
typedef struct td_arena {
    struct td_arena_block *blocks;
} td_arena;

/* Stays where it is until the arena is reset or freed. NULL: there is none. */
void *td_arena_take(td_arena *arena, size_t bytes, size_t alignment);

/* An array with room for one more behind its `count` elements: the same, or a copy twice as large.
 * It must have grown by this alone, one after the other. NULL: there is no memory. */
void *td_arena_grow(td_arena *arena, void *array, uint32_t count, size_t element_bytes,
                    size_t alignment);

/* A copy of `bytes` bytes with a 0 behind them. */
char *td_arena_text(td_arena *arena, const char *text, size_t bytes);

/* What it holds, taken or not. */
size_t td_arena_bytes(const td_arena *arena);

/* What was taken is gone; some memory is kept to be taken again. */
void td_arena_reset(td_arena *arena);
void td_arena_free(td_arena *arena);

#endif
