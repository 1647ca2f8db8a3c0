/* What parameter blocks of all families share, and those of kernels that belong to none: one POD a kernel, read by the CUDA
 * kernels and by their CPU twins alike.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Plain C that C++ accepts. Pointers are 8 bytes on either side; a plan leaves them 0 and relocates them.
 */
#ifndef TANDEM_KERNELS_PARAMS_H
#define TANDEM_KERNELS_PARAMS_H

#include <stdint.h>

/* On the GPU blocks have so many threads where nothing else is said (`stamp` and `claim`: 1). */
#define TD_BLOCK_THREADS 128u
#define TD_TILE_ROWS 128u  /* rows that one block of `commit` and of attention's prologue handles, and the padding of rows */
#define TD_LOG2_E 1.4426950408889634f
#define TD_LN_2 0.6931471805599453f

/* A tensor that a kernel reads or writes: [batch, head, row, channel], strides in elements. */
typedef struct td_tensor {
    void *data;
    int64_t stride_batch, stride_head, stride_row;
    uint32_t dtype; /* tandem_dtype */
    uint32_t heads; /* heads of this tensor: bh = batch * heads + head */
    uint32_t rows, dim;
} td_tensor;

/* Where such a tensor's rows are, in elements. */
typedef struct td_strides {
    int64_t stride_batch, stride_head, stride_row;
} td_strides;

/* What kernels have that compute each element by itself: a thread for eight neighbouring channels, blocks of so many threads.
 * Thread n of the grid has channels 8 (n % e) to 8 (n % e) + 7 of row n / e, where a row has e eights of channels. */
#define TD_EIGHTS 256u
typedef struct td_shape {
    uint32_t batch, heads, rows, channels;
} td_shape;

/* What host and device say to each other about one job, in memory of the host's that the device can read and write.
 * Plain loads and stores with fences only: across PCIe no compare-and-swap is atomic for both sides.
 * Every parameter block of a plan's kernels begins with a pointer to `cancel`, or NULL: a block that finds it set
 * returns at once.
 *   host, giving the job up:   stale = 1; full fence; claimed == 0: the output is never written;
 *                              else `verdict` comes within microseconds and says what the device decided
 *   device, before it writes:  claimed = 1; full fence; verdict = stale ? TD_VERDICT_GIVEN_UP : TD_VERDICT_COMMITTED
 * Whoever is second sees the word of the first, so never do both believe to have won. */
typedef struct td_control {
    uint32_t cancel, stale, claimed, verdict;
    uint32_t reserved[12]; /* to a cache line */
} td_control;
enum { TD_VERDICT_NONE = 0, TD_VERDICT_COMMITTED = 1, TD_VERDICT_GIVEN_UP = 2 };

/* Kernel `claim` (one thread), of plans that commit: the device's side of td_control's protocol. *verdict, in scratch, is
 * what it decided; TD_VERDICT_COMMITTED where control is NULL. It does not heed `cancel`. */
typedef struct td_params_claim {
    const uint32_t *cancel;
    td_control *control; /* or NULL */
    uint32_t *verdict;
} td_params_claim;

/* Kernel `commit`: if *verdict is TD_VERDICT_COMMITTED, copies the output from scratch to where it belongs. It does not
 * heed `cancel` either. Grid x: bh * chunks + chunk, chunks of 128 rows. */
typedef struct td_params_commit {
    const uint32_t *cancel;
    const uint32_t *verdict;
    const void *from;      /* [bh][rows][dim] of o's type */
    const float *lse_from; /* [bh][rows] */
    td_tensor o;
    float *lse; /* or NULL */
    int64_t lse_stride_batch, lse_stride_head, lse_stride_row;
} td_params_commit;

/* Kernel `fetch`: 16 bytes a thread, from what the host wrote to scratch. Each read across PCIe takes a microsecond or two, so a
 * program's uniforms come over once, not once for each kernel that wants them. */
typedef struct td_params_fetch {
    const uint32_t *cancel; /* which it does not heed */
    const void *from; /* 16-byte aligned, as `to` */
    void *to;
    uint32_t count; /* of 16 bytes */
    uint32_t reserved;
} td_params_fetch;

/* Kernels `probe_wgmma_e4m3`, `probe_wgmma_e4m3_f16` (sm_90a; the latter rounds C to fp16 first), `probe_mma_e4m3` (sm_89 and
 * up), `probe_mma_f16`: D = A B + C by one instruction of the tensor cores, for measuring how they round. Grid x: tiles. a [tile][16][k], b [tile][8][k] (column after column),
 * c, d [tile][16][8]; k is 32 codes of e4m3 or 16 of fp16. Every warp of a block does the same, the first one writes. */
typedef struct td_params_probe {
    const void *a, *b;
    const float *c;
    float *d;
    uint32_t accumulator; /* td_accumulator, for the twin */
    uint32_t reserved;
} td_params_probe;

/* Kernel `stamp` (GPU only, one thread; no plan holds it): marks the begin or the end of a submit in pinned host
 * memory. Begin: {slot->begin_ns = globaltimer, slot->begun = sequence} in one write; end: {slot->end_ns, slot->sequence}
 * likewise, then *completed = sequence, visible to the host after it. No write waits for another but that: a fence that
 * reaches the host costs a microsecond, within the hand-over. */
typedef struct td_stamp {
    uint64_t begin_ns, begun;
    uint64_t end_ns, sequence;
} td_stamp;
typedef struct td_params_stamp {
    td_stamp *slot;      /* 16-byte aligned */
    uint64_t *completed; /* or NULL */
    uint64_t sequence;
    uint32_t end, reserved;
} td_params_stamp;

/* A tensor map of TMA in a parameter block: matrices of 16-bit elements, of which a kernel copies boxes, swizzled over 128 bytes,
 * zeros where there is nothing. A plan says what is in it; executors put the driver's encoding of that in its place. */
typedef struct td_tensor_map {
    uint64_t channels, rows, stride_bytes; /* of the matrix: its base and stride are multiples of 16 */
    uint32_t box_channels, box_rows;
    uint32_t dtype; /* tandem_dtype: F16 or BF16 */
    uint32_t reserved[23];
} __attribute__((aligned(64))) td_tensor_map;

#endif
