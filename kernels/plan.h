/* A plan: what the device has to do, as data. Kernels make plans, executors run them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A plan is an ordered list of launch records plus the scratch bytes that they need. It holds no
 * address: a record's parameter block carries zeros where pointers belong, and its relocations say
 * which view or which place in scratch each of them means. So one plan runs on a CUDA stream, in a
 * CUDA graph, inside a Vulkan command buffer, or on the CPU, and can be checked before it runs.
 */
#ifndef TANDEM_KERNELS_PLAN_H
#define TANDEM_KERNELS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "interop/operation.h"
#include "kernels/arena.h"

enum {
    TD_PARAM_BYTES = 4096, /* largest parameter block: what every GPU takes */
    TD_PARAM_ALIGN = 64    /* of a block, in a plan and where an executor has it: a tensor map in it wants that */
};

/* Where a pointer leads: into one of the job's views, into the plan's scratch, or into the job's td_control (params.h),
 * where the pointer stays NULL if the executor has none for it. */
typedef enum td_base { TD_BASE_VIEW = 0, TD_BASE_SCRATCH = 1, TD_BASE_CONTROL = 2 } td_base;
typedef enum td_reloc_kind { TD_RELOC_POINTER = 0, TD_RELOC_TENSOR_MAP = 1 } td_reloc_kind;

typedef struct td_reloc {
    uint16_t offset; /* within the parameter block, of the 8-byte pointer or the td_tensor_map */
    uint8_t kind;    /* td_reloc_kind */
    uint8_t base;    /* td_base */
    uint32_t view;   /* which view, for TD_BASE_VIEW */
    uint64_t addend; /* bytes from the base */
} td_reloc;

/* Bytes that a record reads or writes; barriers are derived from these. */
typedef struct td_range {
    uint32_t base; /* td_base */
    uint32_t view;
    uint64_t begin_bytes, end_bytes;
} td_range;

/* One block of a record's grid, on the CPU. `local` is this thread's scratch, 64-byte aligned. A block that takes long asks
 * `goes_on` (NULL: it does) between its tiles: the executor may let other work run meanwhile, and false is to leave at
 * once, as nobody wants the result any more. */
typedef struct td_block {
    uint32_t x, y, z;
    void *local;
    bool (*goes_on)(void *user);
    void *user;
} td_block;
typedef void (*td_cpu_fn)(const void *params, const td_block *at);

/* A kernel, wherever it runs. `entry` is its name in every cubin (NULL: none on the GPU), `cpu` does the same
 * to the same parameter block on the CPU: bit-faithfully where `entry` is set. */
typedef struct td_kernel {
    const char *name; /* for labels and traces */
    const char *entry;
    td_cpu_fn cpu;
    uint32_t cpu_local_bytes;
    bool writes_early; /* with TD_RECORD_PDL: before the record ahead of it is over. What it reads then must be there before that
                          one begins. */
} td_kernel;

typedef enum td_record_flags {
    TD_RECORD_CLUSTER = 1,     /* needs thread-block clusters, of `cluster` blocks */
    TD_RECORD_PDL = 2,         /* programmatic dependent launch */
    TD_RECORD_TENSOR_MAPS = 4, /* has relocations of that kind */
} td_record_flags;

/* What a record needs of those before it: that they are over, as it writes what they read, and their data too, as it reads or
 * writes what they wrote. A barrier counts for all that is before it. The strongest where nobody derived it. */
typedef enum td_barrier { TD_BARRIER_DATA = 0, TD_BARRIER_ORDER = 1, TD_BARRIER_NONE = 2 } td_barrier;

typedef struct td_record {
    const td_kernel *kernel;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes; /* dynamic */
    uint32_t registers;    /* a thread; 0 on the CPU */
    uint32_t local_bytes;  /* a thread */
    uint32_t flags;        /* td_record_flags */
    uint32_t cluster;      /* blocks of one, at most 16; grid[0] is a multiple of it */
    uint32_t barrier;      /* td_barrier before it */
    uint32_t param_bytes, reloc_count, read_count, write_count;
    unsigned char *params; /* these four are in the plan's memory */
    td_reloc *relocs;
    td_range *reads, *writes;
} td_record;

/* Begins as zeros: a plan without records. One that grew holds memory until td_plan_free(). */
typedef struct td_plan {
    uint64_t scratch_bytes; /* 256-byte aligned start is assumed */
    uint32_t record_count;
    uint32_t precision; /* tandem_precision: AUTO resolved */
    td_record *records;
    td_arena memory;     /* of all that */
    uint32_t view_count; /* how many addresses who runs it gives; 0: TD_MAX_VIEWS, as an operation has */
    uint32_t users;      /* of one from td_plan_create() */
} td_plan;

/* No records; what memory it has may be used again. */
void td_plan_reset(td_plan *plan);

/* The same, and its memory goes back. */
void td_plan_free(td_plan *plan);

/* Each adds one at the end and returns it, NULL where there is no memory. A record is all zeros, its parameters (1 to any
 * number of bytes) too; where records are is another place once one is added. */
td_record *td_plan_add_record(td_plan *plan, size_t param_bytes);
td_reloc *td_plan_add_reloc(td_plan *plan, td_record *record, td_reloc reloc);
td_range *td_plan_add_read(td_plan *plan, td_record *record, td_range range);
td_range *td_plan_add_write(td_plan *plan, td_record *record, td_range range);

/* Adds a copy of another plan's record; of its launch and parameters alone, for who binds them. */
td_record *td_plan_append(td_plan *to, const td_record *record);
td_record *td_plan_append_launch(td_plan *to, const td_record *record);

/* A copy in memory of its own; false where there is not enough, and then `to` has no records. */
bool td_plan_copy(td_plan *to, const td_plan *from);

/* A plan without records that has one user; the last one's td_plan_drop() frees it. Only who made it may change it, and only
 * while nobody else uses it. Threads: any. NULL: no memory. */
td_plan *td_plan_create(void);
const td_plan *td_plan_use(const td_plan *plan);
void td_plan_drop(const td_plan **plan); /* sets it to NULL; NULL in it is nothing to drop */

#endif
