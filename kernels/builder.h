/* Plans in the making: records, their pointers and what they touch, places in scratch.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What does not fit (a record's parameters, a grid, all of scratch, all of it into memory) is noted and leaves everything
 * within bounds; td_build_end() says so, and then nobody runs the plan.
 *
 * While a plan is built each place in scratch has bytes of its own. In the end places that are never in use at once share
 * them, where a barrier that is there anyhow lies between the two.
 */
#ifndef TANDEM_KERNELS_BUILDER_H
#define TANDEM_KERNELS_BUILDER_H

#include "kernels/params.h"
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
    const char *crowded; /* a kernel with more parameters than a GPU takes, or a pointer outside them */
    uint64_t most_blocks; /* of a grid that is too large; else 0 */
    bool overflow; /* scratch is beyond 2^63 bytes */
    bool no_memory; /* for the plan */
    bool keeps_scratch; /* each place has bytes of its own, and what is left there can be looked at afterwards */
    struct td_lifetime *places; /* in the plan's memory */
    uint32_t place_count;
    td_record spare; /* what a record is that there is no memory for */
} td_builder;

/* Begins a plan for a target; it loses the records that it had. */
td_builder td_build_begin(td_plan *plan, const td_target *target);

/* A place in scratch and its size; TD_ABSENT if there is none. */
typedef struct td_place {
    uint64_t offset, bytes;
} td_place;
#define TD_ABSENT UINT64_MAX

td_place td_build_take(td_builder *at, bool wanted, unsigned __int128 bytes);

/* Adds a record: a grid of so many blocks, td_control's `cancel` as the first pointer of its parameters. It is where it is
 * until the next one is added. */
td_record *td_build_record(td_builder *at, const td_kernel *kernel, unsigned __int128 grid, const void *params,
                           size_t param_bytes);

/* A grid of td_shape's eights. */
static inline unsigned __int128 td_eights_grid(const td_shape *shape)
{
    const unsigned __int128 rows = (unsigned __int128)shape->batch * shape->heads * shape->rows;

    return (rows * ((shape->channels + 7) / 8) + TD_EIGHTS - 1) / TD_EIGHTS;
}

/* The pointer at `offset` of the parameters leads to `addend` bytes behind a base. */
void td_build_pointer(td_builder *at, td_record *record, size_t offset, uint32_t base, uint32_t view,
                      uint64_t addend);

/* The td_tensor_map at `offset` of the parameters is one of a view, or of a place in scratch, which the record must read or write
 * besides. */
void td_build_map(td_builder *at, td_record *record, size_t offset, uint32_t view);
void td_build_scratch_map(td_builder *at, td_record *record, size_t offset, td_place it);

/* What a record reads or writes, without a pointer to it. */
enum { TD_READ = 0, TD_WRITE = 1 };
void td_build_range(td_builder *at, td_record *record, int access, td_range range);
/* Whether any of the one and any of the other have bytes in common. */
bool td_ranges_meet(const td_range *a, uint32_t a_count, const td_range *b, uint32_t b_count);
void td_build_place(td_builder *at, td_record *record, int access, td_place it);

/* Both, for a place in scratch or a view; the pointer stays NULL where there is none. */
void td_build_scratch(td_builder *at, td_record *record, int access, size_t offset, td_place it);
void td_build_view(td_builder *at, td_record *record, int access, size_t offset, uint32_t view);

/* Derives all barriers from what records read and write. td_build_end() does; it is for those who put plans together. */
void td_plan_barriers(td_plan *plan);

/* The plan's barriers and scratch; or why it is none: ARG where the shape is too large, and what it needs too much of;
 * UNSUPPORTED where a kernel is missing or its record does not fit, and which; NOMEM. */
tandem_status td_build_end(td_builder *at, char *why, size_t why_bytes);

/* The same; what is wrong comes behind the sizes that the plan was made for, as "norm.batch, heads, rows are 1, 2, 3: ". */
tandem_status td_build_end_sized(td_builder *at, const char *names, const uint32_t sizes[3], char *why, size_t why_bytes);

#endif
