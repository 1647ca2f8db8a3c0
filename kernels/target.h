/* What plans are made for: a device, its limits, and the kernels that were built for it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_TARGET_H
#define TANDEM_KERNELS_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/plan.h"
#include "tandem/types.h"

/* A multiply-add unit whose rounding the twin reproduces when it accumulates P V (see twin.c). */
typedef enum td_accumulator {
    TD_ACCUMULATOR_F32 = 0,        /* plain float, key after key */
    TD_ACCUMULATOR_ADA_MMA = 1,    /* mma.sync e4m3 of sm_89: two fused halves of k = 16, 13 fractional bits */
    TD_ACCUMULATOR_WGMMA = 2,      /* wgmma e4m3 of sm_90: k = 32 fused, 13 fractional bits */
    TD_ACCUMULATOR_HOPPER_MMA = 3, /* mma.sync e4m3 of sm_90: fp16 products through HMMA, then an fp32 add */
    TD_ACCUMULATOR_BLACKWELL_MMA = 4, /* mma.sync e4m3 of sm_120: 25 fractional bits */
    TD_ACCUMULATOR_WGMMA_F16 = 5      /* wgmma e4m3 of sm_90 into fp16: k = 32 fused, 13 fractional bits, to nearest */
} td_accumulator;

/* What a plan is made for. */
typedef struct td_target {
    uint32_t sm;          /* 80, 86, 89, 90, 120 for a GPU; 0 for the CPU's fast kernels */
    uint32_t accumulator; /* td_accumulator of the twin; td_target_for_sm() sets the GPU's own */
    const struct td_cubin *image; /* the kernels to use, where not those of td_cubin_for_sm(); for tests */
    bool commit;          /* the output is written by the last record alone, and only if `claim` before it wins */
    /* Where the operation is a part of another (kernels/operation.h): what it is a part of, which decides in which order numbers
     * are added up; and where it lies there, as that operation's `part` said. NULL and 0: it is whole. */
    const tandem_operands *whole;
    uint32_t position;
    uint32_t shared_bytes; /* of a block, at most; 0: what every executor has (47 KB) */
    uint32_t constant_views; /* a bit each: what a node of a program reads there was written before any run of it, and stays */
    uint32_t precision;    /* of a program: what its nodes have that have one; AUTO: as its graph says */
    const uint8_t *node_precisions; /* and one for each node of its graph: AUTO, or NULL: as the rest */
    uint32_t sample_rows; /* of a program: its layers are sampled, so many rows of a head of each (td_program_sample); 0: none is */
    bool sample_all;      /* in each precision, not the next cheaper one alone */
    bool tensor_maps;      /* whoever runs the plan encodes them: CUDA's streams and graphs */
    uint32_t multiprocessors; /* of the GPU; td_target_for_sm() knows no device and sets those of an H200 (0: the same) */
    /* What AUTO goes by (kernels/attention/tuning.h); NULL, or of other kernels: the rule. */
    const struct td_tuning_table *tuning;
    const struct td_attention_options *attention; /* for tests (kernels/attention/attention.h); NULL: none */
    bool apart;           /* for tests: each node of a program keeps records of its own (kernels/join.h) */
    bool twin;            /* only the CPU's twin of that GPU will run it: no cubin of this build is asked for */
} td_target;

enum { TD_H200_MULTIPROCESSORS = 132 }; /* all times that plans and AUTO are made by were measured there */
/* Where nobody said how many there are, those. */
static inline uint32_t td_multiprocessors(const td_target *target)
{
    return target->multiprocessors ? target->multiprocessors : (uint32_t)TD_H200_MULTIPROCESSORS;
}

/* A target for a GPU of compute capability sm (as 90), or the CPU for 0. Its plans suit every executor; who knows the
 * device sets `multiprocessors`. */
td_target td_target_for_sm(uint32_t sm);

/* The same for a CUDA stream, whose blocks get more shared memory. */
td_target td_target_for_stream(uint32_t sm);

/* Whether a plan, whoever made it, stays within the bounds that plan.h sets: executors ask before they copy any of it. */
tandem_status td_plan_check(const td_plan *plan, char *why, size_t why_bytes);

/* The kernels that were built in: for each architecture one or more images, a cubin or PTX each, which a driver loads as a
 * whole. The table is made by kernels/cuda/CMakeLists.txt. */
typedef struct td_cubin_entry {
    const char *entry;
    uint32_t registers, shared_bytes, local_bytes;
} td_cubin_entry;
typedef struct td_image {
    const char *name; /* its .cu file's */
    bool on_demand;   /* executors load it when a plan first needs it; others when a stream is made */
    const unsigned char *data; /* packed by zstd; td_cubin_image() unpacks it */
    size_t data_bytes, image_bytes;
    const td_cubin_entry *entries;
    uint32_t entry_count;
} td_image;
typedef struct td_cubin {
    uint32_t sm; /* 80, 86, 89, 90, 120; for PTX the compute_ version */
    bool ptx;
    const td_image *images;
    uint32_t image_count;
} td_cubin;
const td_cubin *td_cubins(uint32_t *count); /* count 0 where the build had no nvcc */

/* The cubin for a GPU: exact, else a lower minor of the same major, else PTX; NULL and the reason if none fits. */
const td_cubin *td_cubin_for_sm(uint32_t sm, char *why, size_t why_bytes);

/* The kernels for a target: its cubin, if it has one, and of which compute capability they are. False: none fit. */
bool td_target_kernels(const td_target *target, const td_cubin **cubin, uint32_t *sm, char *why, size_t why_bytes);

/* What is known of a kernel, whichever image has it; NULL if none has. */
const td_cubin_entry *td_cubin_find(const td_cubin *cubin, const char *entry);
uint32_t td_cubin_entry_count(const td_cubin *cubin); /* of all images */

/* An image as drivers take it, image_bytes and a 0 behind them (PTX is a string); the caller frees it. UNSUPPORTED where
 * what lies in the library is damaged. From any thread; takes about a ms a MiB. */
tandem_status td_cubin_image(const td_cubin *cubin, const td_image *image, void **bytes, char *why, size_t why_bytes);

#endif
