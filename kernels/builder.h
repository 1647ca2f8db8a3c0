/* Plans in the making: records, their pointers and what they touch, places in scratch.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What does not fit (a record's parameters, relocations or ranges, the plan's records, a grid, all of scratch) is noted
 * and leaves everything within bounds; td_build_end() says so, and then nobody runs the plan.
 */
#ifndef TANDEM_KERNELS_BUILDER_H
#define TANDEM_KERNELS_BUILDER_H

#include "kernels/target.h"

enum { TD_MOST_BLOCKS = 0x7fffffff, TD_SCRATCH_ALIGN = 256 };

typedef struct td_builder {
    td_plan *plan; /* begins without records */
    const td_cubin *cubin;
    uint64_t scratch_bytes;
    uint64_t extent_bytes[TD_MAX_VIEWS]; /* of the views; 0 where there is none */
    bool is_gpu;
    bool overlaps; /* the kernels wait for the one before themselves, from sm_90 on */
    const char *missing; /* an entry that the cubin lacks */
    const char *crowded; /* a kernel whose record has no room in the plan, or no room for all that it needs */
    uint64_t most_blocks; /* of a grid that is too large; else 0 */
    bool overflow; /* scratch is beyond 2^63 bytes */
} td_builder;

/* A place in scratch and its size; TD_ABSENT if there is none. */
typedef struct td_place {
    uint64_t offset, bytes;
} td_place;
#define TD_ABSENT UINT64_MAX

td_place td_build_take(td_builder *at, bool wanted, unsigned __int128 bytes);

/* Adds a record: a grid of so many blocks, td_control's `cancel` as the first pointer of its parameters. */
td_record *td_build_record(td_builder *at, const td_kernel *kernel, uint64_t grid, const void *params,
                           size_t param_bytes);

/* The pointer at `offset` of the parameters leads to `addend` bytes behind a base. */
void td_build_pointer(td_builder *at, td_record *record, size_t offset, uint32_t base, uint32_t view,
                      uint64_t addend);

/* The td_tensor_map at `offset` of the parameters is one of a view, which the record must read or write besides. */
void td_build_map(td_builder *at, td_record *record, size_t offset, uint32_t view);

/* What a record reads or writes, without a pointer to it. */
enum { TD_READ = 0, TD_WRITE = 1 };
void td_build_range(td_builder *at, td_record *record, int access, td_range range);

/* Both, for a place in scratch or a view; the pointer stays NULL where there is none. */
void td_build_scratch(td_builder *at, td_record *record, int access, size_t offset, td_place it);
void td_build_view(td_builder *at, td_record *record, int access, size_t offset, uint32_t view);

/* Derives all barriers from what records read and write. td_build_end() does; it is for those who put plans together. */
void td_plan_barriers(td_plan *plan);

/* The plan's scratch bytes and barriers; or why it is none: ARG where the shape is too large, and what it needs too much of;
 * UNSUPPORTED where a kernel is missing or its record does not fit, and which. */
tandem_status td_build_end(const td_builder *at, char *why, size_t why_bytes);

#endif
