/* Tandem - the nouns that every floor speaks: status, dtype, mem, view, point, job.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Everything here is plain data. Handles are ids with generations, so that a
 * handle that was destroyed is recognised as such and never dereferenced.
 * Lengths are in rows (tokens), strides in elements, anything with _bytes or
 * _ns in its name in bytes or nanoseconds.
 */
#ifndef TANDEM_TYPES_H
#define TANDEM_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_VERSION_MAJOR 0
#define TANDEM_VERSION_MINOR 1
#define TANDEM_VERSION_PATCH 0
#define TANDEM_VERSION ((TANDEM_VERSION_MAJOR << 22) | (TANDEM_VERSION_MINOR << 12) | TANDEM_VERSION_PATCH)

/* What a call returns. Every value but TANDEM_OK leaves the objects as they were, and the cause
 * in one log line (BUSY at debug level) and in tandem_error_text(). */
typedef enum tandem_status {
    TANDEM_OK = 0,
    TANDEM_ERROR_ARG = -1,         /* an argument is wrong; the text names it and its value */
    TANDEM_ERROR_UNSUPPORTED = -2, /* right in itself, but not on this device or build */
    TANDEM_ERROR_NOMEM = -3,       /* host or device memory is short */
    TANDEM_ERROR_DEVICE = -4,      /* the driver reported an error; the session is of no more use */
    TANDEM_ERROR_LOST = -5,        /* the device is gone for good, the daemon for a while; a job's wait never came */
    TANDEM_ERROR_IO = -6,          /* a file or a socket could not be read or written */
    TANDEM_ERROR_PROTOCOL = -7,    /* a file or a peer does not keep to its format */
    TANDEM_ERROR_BUSY = -8         /* not finished within the time given, or a queue is full */
} tandem_status;

typedef enum tandem_dtype {
    TANDEM_DTYPE_NONE = 0, /* a view that is not there */
    TANDEM_DTYPE_F16 = 1,
    TANDEM_DTYPE_BF16 = 2,
    TANDEM_DTYPE_F32 = 3,
    TANDEM_DTYPE_CODES_INT8 = 4, /* q and k quantised already; see tandem_codes_bytes() */
    TANDEM_DTYPE_CODES_E4M3 = 5  /* v, likewise */
} tandem_dtype;

/* A linear block of bytes that the engine and the session share. 0 is no mem. */
typedef uint64_t tandem_mem;
/* Weights that live on the session's device. 0 is no model. */
typedef uint64_t tandem_model;
/* A counter that only rises, a Vulkan timeline semaphore where there is a Vulkan device. 0 is none. */
typedef uint64_t tandem_timeline;

/* A moment on a timeline: reached once the timeline's counter is at least `value`.
 * {0, 0} is a point that has always been reached (as a wait) or that nobody asked for (as a signal). */
typedef struct tandem_point {
    tandem_timeline timeline;
    uint64_t value;
} tandem_point;

/* A tensor [batch, head, row, channel] within a mem. Channels are contiguous (stride 1).
 * Element (b, h, r, c) is at offset_bytes + sizeof(dtype) * (b*stride_batch + h*stride_head + r*stride_row + c).
 * Strides may be 0 (broadcast) for tensors that are read, and must not overlap for those that are written. */
typedef struct tandem_view {
    tandem_mem mem;
    uint64_t offset_bytes; /* a multiple of the element's size */
    uint32_t dtype;        /* tandem_dtype */
    uint32_t reserved;     /* 0 */
    int64_t stride_batch;
    int64_t stride_head;
    int64_t stride_row;
} tandem_view;

typedef enum tandem_precision {
    TANDEM_PRECISION_AUTO = 0, /* what is fastest by the session's tuning: a table that was measured, or a rule: 8B where
                                  kv_len >= 256, F16 below; on Hopper 8B from about 2000 rows on (kernels/choice.h) */
    TANDEM_PRECISION_F16 = 1,  /* exact attention on operands rounded to fp16, fp32 accumulation */
    TANDEM_PRECISION_8B = 2,   /* SageAttention2-8b: INT8 QK^T, FP8 E4M3 PV (FP16 PV on sm_80 and sm_86) */
    TANDEM_PRECISION_4B = 3    /* SageAttention2-4b: INT4 QK^T with Q and K smoothed */
} tandem_precision;

typedef enum tandem_smooth {
    TANDEM_SMOOTH_DEFAULT = 0, /* K for 8B, Q and K for 4B, nothing for F16 */
    TANDEM_SMOOTH_NONE = 1,    /* explicitly nothing; not to be combined */
    TANDEM_SMOOTH_Q = 2,       /* subtract the mean of each block of 128 rows, add delta-S back before the softmax */
    TANDEM_SMOOTH_K = 4,       /* subtract the mean over all keys: softmax does not notice (section 3.1 of the paper) */
    TANDEM_SMOOTH_V = 8        /* subtract the mean over all keys, add it to O */
} tandem_smooth;

/* How many rows share one quantisation scale of Q or K. */
typedef enum tandem_granularity {
    TANDEM_GRANULARITY_DEFAULT = 0,       /* per thread, in the mapping of the device (Ada's on the CPU) */
    TANDEM_GRANULARITY_THREAD_ADA = 1,    /* Q rows {i, 8+i, 16+i, 24+i} of 32; K rows {2j, 2j+1} + 8k of 64 */
    TANDEM_GRANULARITY_THREAD_HOPPER = 2, /* Q rows {i, 8+i} of 16; K rows {2j, 2j+1} + 8k of 128 */
    TANDEM_GRANULARITY_TOKEN = 3,
    TANDEM_GRANULARITY_WARP = 4,  /* Q: 32 rows; K: 64 rows */
    TANDEM_GRANULARITY_BLOCK = 5, /* Q: 128 rows; K: 64 rows */
    TANDEM_GRANULARITY_TENSOR = 6 /* one scale a head */
} tandem_granularity;

/* O = softmax(scale * Q K^T) V, for each batch and head.
 * Head h of Q, O and lse reads head h / (heads / kv_heads) of K and V.
 * causal: row i attends to key j if j <= i + kv_len - q_len; a row with no key gives O = 0, lse = -inf.
 * A NaN or Inf in a row of Q makes that row of O NaN; one in a row of K or V makes NaN those rows of O that
 * attend to that key. */
typedef struct tandem_attention {
    tandem_view q, k, v, o; /* q, o: [batch, heads, q_len, head_dim]; k, v: [batch, kv_heads, kv_len, head_dim] */
    tandem_view lse;        /* [batch, heads, q_len, 1] f32, natural log, scale included; dtype NONE: not wanted */
    uint32_t batch, heads, kv_heads;
    uint32_t q_len, kv_len, head_dim; /* head_dim: 32, 64, 80, 96, 128 or 256 */
    float scale;                      /* 0: 1 / sqrt(head_dim) */
    uint32_t causal;                  /* 0 or 1 */
    uint32_t precision;               /* tandem_precision */
    uint32_t smooth;                  /* tandem_smooth, or'ed */
    uint32_t granularity;             /* tandem_granularity */
    uint32_t reserved;                /* 0 */
} tandem_attention;

/* Q, K and V that are quantised already, as a projection's epilogue can write them: attention without its prologue.
 * All three of them, or none; precision AUTO or 8B, smooth DEFAULT or NONE, lse not wanted. Rows are padded to
 * rows_pad, a multiple of 128, channels to dim_pad: 32, 64, 96, 128 or 256. A view's codes are followed by its scales, which
 * begin at the next multiple of 256 bytes:
 *
 *   q, k   int8 codes [batch][heads][rows_pad][dim_pad], -127 .. 127
 *          float32 scales [batch][heads][rows_pad]: a row's value is code * scale
 *   v      e4m3 codes [batch][heads][dim_pad][rows_pad], keys permuted within each 16: position 4 i + j holds key
 *          8 (j / 2) + 2 i + j % 2, i and j in 0..3. None above 1.75 or below -1.75: Hopper's kernels add up in fp16, and
 *          larger ones may make O infinite or NaN there
 *          float32 scales [batch][heads][dim_pad]: a channel's value is code * scale
 *
 * (heads: kv_heads for k and v.) Codes and scales of padding are 0. Rows that share a scale are those of `granularity`; each
 * has it all the same. A scale of NaN says that a row of Q is not finite, or a key in K or V. From K the caller has
 * subtracted what it wants, for softmax does not notice one vector subtracted from all keys: best their mean.
 *
 * offset_bytes is a multiple of 256. Strides are those of the codes: stride_row dim_pad for q and k, rows_pad for v (of
 * channels); stride_head rows_pad * dim_pad; stride_batch as many heads' of that.
 *
 * Returns the bytes of codes and scales, UINT64_MAX if they are too many; *scales_bytes, if not NULL, is where scales begin. */
static inline uint64_t tandem_codes_bytes(uint32_t dtype, uint32_t batch, uint32_t heads, uint32_t rows, uint32_t head_dim,
                                          uint64_t *scales_bytes)
{
    const uint64_t rows_pad = ((uint64_t)rows + 127) / 128 * 128, planes = (uint64_t)batch * heads;
    const uint64_t dim_pad = head_dim > 128 ? 256 : ((uint64_t)head_dim + 31) / 32 * 32;
    const uint64_t plane = rows_pad * dim_pad, scales = dtype == TANDEM_DTYPE_CODES_INT8 ? rows_pad : dim_pad;
    const int fits = !plane || planes <= (UINT64_MAX >> 4) / plane;
    const uint64_t codes = fits ? (planes * plane + 255) / 256 * 256 : 0;

    if (scales_bytes)
        *scales_bytes = codes;
    return !fits ? UINT64_MAX : codes + planes * scales * 4;
}

typedef enum tandem_operation { TANDEM_OPERATION_ATTENTION = 1 } tandem_operation;

/* One unit of work. The session copies it: the caller may reuse it once tandem_submit() returns. */
typedef struct tandem_job {
    uint32_t struct_bytes; /* sizeof(tandem_job): says which version of this struct the caller knows */
    uint32_t operation;    /* tandem_operation */
    tandem_point wait;     /* the views that are read are ready */
    tandem_point signal;   /* signalled exactly once, whatever becomes of the job */
    uint64_t deadline_ns;  /* 0: none; else nanoseconds from tandem_submit(): it ends DONE, wholly written, or STALE */
    union {
        tandem_attention attention;
    } op;
} tandem_job;

/* Names a job that was submitted; 0 is no job. */
typedef uint64_t tandem_ticket;

typedef enum tandem_job_state {
    TANDEM_JOB_PENDING = 0,   /* waits for its point, or for its turn */
    TANDEM_JOB_RUNNING = 1,   /* on the device */
    TANDEM_JOB_DONE = 2,      /* the output is written */
    TANDEM_JOB_STALE = 3,     /* the deadline passed: nothing was or will be written; its mems are read until its signal */
    TANDEM_JOB_CANCELLED = 4, /* by tandem_cancel(), or by the destruction of what it needs */
    TANDEM_JOB_FAILED = 5     /* `status` says why; its mems may be busy until its signal comes */
} tandem_job_state;

typedef struct tandem_job_report {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t state;        /* tandem_job_state */
    int32_t status;        /* tandem_status; OK while PENDING or RUNNING */
    uint32_t precision;    /* tandem_precision that was used: AUTO resolved */
    uint64_t submit_ns;    /* CLOCK_MONOTONIC of tandem_submit() */
    uint64_t begin_ns;     /* the device began, on CLOCK_MONOTONIC; 0 if it never did or timing is off */
    uint64_t end_ns;       /* the device ended */
} tandem_job_report;

#ifdef __cplusplus
}
#endif
#endif
