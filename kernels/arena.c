/* Memory in blocks. See arena.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Blocks stay where they are, each twice as large as the one before it: most plans have one. Arrays
 * grow by moving to a place twice as large; what they leave behind is less than what they have.
 */
#include "kernels/arena.h"

#include <stdbool.h>
#include <string.h>

#include "interop/os/memory.h"

enum { FIRST_BYTES = 4096, FIRST_ELEMENTS = 4, BLOCK_ALIGN = 64 };

typedef struct td_arena_block {
    struct td_arena_block *next; /* older, smaller */
    size_t bytes, used;          /* with this header */
} td_arena_block;

static size_t aligned(size_t bytes, size_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

static td_arena_block *add_block(td_arena *arena, size_t least)
{
    size_t bytes = arena->blocks ? 2 * arena->blocks->bytes : FIRST_BYTES;
    td_arena_block *block;

    while (bytes < least + sizeof *block + BLOCK_ALIGN)
        bytes *= 2;
    block = td_aligned_alloc(BLOCK_ALIGN, bytes);
    if (!block)
        return NULL;
    *block = (td_arena_block){.next = arena->blocks, .bytes = bytes, .used = sizeof *block};
    return arena->blocks = block;
}

void *td_arena_take(td_arena *arena, size_t bytes, size_t alignment)
{
    td_arena_block *block = arena->blocks;

    if (!block || aligned(block->used, alignment) + bytes > block->bytes)
        block = bytes < SIZE_MAX / 4 ? add_block(arena, bytes) : NULL;
    if (!block)
        return NULL;
    const size_t at = aligned(block->used, alignment);
    block->used = at + bytes;
    return (unsigned char *)block + at;
}

/* Full at powers of two, since nothing else says how many there is room for. */
void *td_arena_grow(td_arena *arena, void *array, uint32_t count, size_t element_bytes,
                    size_t alignment)
{
    const bool full = !count || (count >= FIRST_ELEMENTS && (count & (count - 1)) == 0);
    void *to;

    if (!full)
        return array;
    to = td_arena_take(arena, (count ? 2 * (size_t)count : FIRST_ELEMENTS) * element_bytes,
                       alignment);
    if (to && count)
        memcpy(to, array, count * element_bytes);
    return to;
}

char *td_arena_text(td_arena *arena, const char *text, size_t bytes)
{
    char *copy = td_arena_take(arena, bytes + 1, 1);

    if (!copy)
        return NULL;
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    return copy;
}

size_t td_arena_bytes(const td_arena *arena)
{
    size_t bytes = 0;

    for (const td_arena_block *block = arena->blocks; block; block = block->next)
        bytes += block->bytes;
    return bytes;
}

static void free_blocks(td_arena_block *block)
{
    while (block) {
        td_arena_block *next = block->next;

        td_aligned_free(block);
        block = next;
    }
}

void td_arena_reset(td_arena *arena)
{
    if (!arena->blocks)
        return;
    free_blocks(arena->blocks->next);
    arena->blocks->next = NULL;
    arena->blocks->used = sizeof *arena->blocks;
}

void td_arena_free(td_arena *arena)
{
    free_blocks(arena->blocks);
    arena->blocks = NULL;
}
