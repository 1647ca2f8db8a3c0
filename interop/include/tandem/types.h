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
#define TANDEM_VERSION_MINOR 2
#define TANDEM_VERSION_PATCH 0
#define TANDEM_VERSION ((TANDEM_VERSION_MAJOR << 22) | (TANDEM_VERSION_MINOR << 12) | TANDEM_VERSION_PATCH)

/* A struct whose struct_bytes is set, so is what is named, and all else is 0, which is a good default everywhere:
 *     C    tandem_mem_create(session, &TANDEM_INIT(tandem_mem_desc, .bytes = 4096), &mem);
 *     C++  tandem_mem_desc desc = TANDEM_INIT(tandem_mem_desc); desc.bytes = 4096;
 * In C it is a compound literal, which lives as long as the block around it. */
#ifdef __cplusplus
extern "C++" {
template <typename T> inline T tandem_init()
{
    T t = T();

    t.struct_bytes = sizeof(T);
    return t;
}
}
#define TANDEM_INIT(type) tandem_init<type>()
#else
#define TANDEM_INIT(...) TANDEM_INIT_(__VA_ARGS__, )
#define TANDEM_INIT_(type, ...) ((type){.struct_bytes = sizeof(type), __VA_ARGS__})
#endif

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
    TANDEM_DTYPE_CODES_E4M3 = 5, /* v, likewise */
    TANDEM_DTYPE_I32 = 6,
    TANDEM_DTYPE_U8 = 7,
    TANDEM_DTYPE_I8 = 8,
    /* Weights in blocks, as GGUF has them: of 32 elements in 34, 18 and 20 bytes, of 256 in 144, 210 and 176. Channels and strides
     * are multiples of a block, offset_bytes of 2. */
    TANDEM_DTYPE_Q8_0 = 9,
    TANDEM_DTYPE_Q4_0 = 10,
    TANDEM_DTYPE_Q4_1 = 11,
    TANDEM_DTYPE_Q4_K = 12,
    TANDEM_DTYPE_Q6_K = 13,
    TANDEM_DTYPE_Q5_K = 14,
    /* The same weights in the same bytes, but in tiles of 16 rows, as GPUs read them fastest: of a matrix as a whole, with rows a
     * multiple of 16, channels of 64 (Q8_0), 128 (Q4_0, Q4_1) or 256, stride_row as many as channels, offset_bytes a multiple of
     * 16. Language models on a GPU have their matrices so, where they have such rows and channels; CPUs take none of them. */
    TANDEM_DTYPE_Q8_0_TILES = 15,
    TANDEM_DTYPE_Q4_0_TILES = 16,
    TANDEM_DTYPE_Q4_1_TILES = 17,
    TANDEM_DTYPE_Q4_K_TILES = 18,
    TANDEM_DTYPE_Q6_K_TILES = 19,
    TANDEM_DTYPE_Q5_K_TILES = 20
} tandem_dtype;

/* A linear block of bytes that the engine and the session share. 0 is no mem. */
typedef uint64_t tandem_mem;
/* Weights that live on the session's device. 0 is no model. */
typedef uint64_t tandem_model;
/* A model's network with state of its own, from run to run. 0 is none. */
typedef uint64_t tandem_instance;
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

/* A view of a tensor [batch, heads, rows, head_dim] that lies dense in its mem, from offset_bytes on: of any batch, and with
 * head_dim 1 an lse. Strides that an int64_t cannot hold are INT64_MAX, which tandem_submit() refuses. */
static inline tandem_view tandem_view_dense(tandem_mem mem, uint64_t offset_bytes, uint32_t dtype, uint32_t heads,
                                            uint32_t rows, uint32_t head_dim)
{
    const uint64_t plane = (uint64_t)rows * head_dim, most = (uint64_t)INT64_MAX;
    tandem_view view;

    view.mem = mem;
    view.offset_bytes = offset_bytes;
    view.dtype = dtype;
    view.reserved = 0;
    view.stride_batch = plane && heads > most / plane ? INT64_MAX : (int64_t)(plane * heads);
    view.stride_head = plane > most ? INT64_MAX : (int64_t)plane;
    view.stride_row = head_dim;
    return view;
}

typedef enum tandem_precision {
    TANDEM_PRECISION_AUTO = 0, /* what is fastest by the session's tuning: a table that was measured, or a rule: 8B where
                                  kv_len >= 256, F16 below; on Hopper 8B from about 2000 rows on (kernels/attention/tuning.h) */
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
 * causal: row i attends to key j if j <= i + kv_len - q_len; a row with no key gives O = 0, lse = -inf, whatever is in Q.
 * length: of a batch's keys only the first so many count, as if there were no others; below 0 is 0, above kv_len is kv_len.
 * bias: O = softmax(scale * Q K^T + bias) V; where it is -inf a row does not attend to a key.
 * position: row i attends to keys 0 to position[i] alone, as if it were key position[i] of a longer sequence; below 0 to none, from
 * kv_len on to all. So rows whose keys a cache has, with others before and behind them, see what is before them. causal is 0 then.
 * window: with causal or position a row attends only to the last `window` keys up to its own: to key j if j > its own - window.
 * q_start: sequences of unlike lengths lie one behind the other: rows q_start[b] to q_start[b + 1] - 1 of q, o, lse and position,
 * which have q_total rows and one batch, are those of sequence b, of which the first q_len count. k_start: likewise keys of k and v, of
 * kv_total, the first kv_len; length is not there then. Entries below 0 count as 0, above q_total (kv_total) as that, and those below
 * one before them as that one. causal: row i of a sequence attends to key j of it if j <= i + its keys - its rows. Rows of o that are
 * no sequence's become 0, and their lse -inf.
 * sink: a head's logit of a key without a value: exp(sink) is added to the sum that a softmax divides by. -inf is none, of +inf O is 0.
 * softcap: scale * Q K^T becomes softcap * tanh(scale * Q K^T / softcap), before a bias is added.
 * With any of these AUTO is F16 (of codes 8B), whose smooth is DEFAULT or NONE, and for which on a GPU q, k and v must all be F16, or
 * all BF16. 8B and 4B make codes, means and scales of those keys alone that length and the largest position let count; a bias
 * that is -inf hides keys from rows, not from scales. What smoothing K takes off a row's scores is put back before a softcap.
 * A NaN or Inf in a row of Q makes that row of O NaN; one in a row of K or V makes NaN those rows of O that
 * attend to that key. Their lse is NaN, too. Finite tensors give finite rows however large the scores are, as long as these,
 * times log2(e), and sums of K and V over all keys, times 2^15, are numbers in float32. */
typedef struct tandem_attention {
    tandem_view q, k, v, o; /* q, o: [batch, heads, q_len, head_dim]; k, v: [batch, kv_heads, kv_len, head_dim]; o is written */
    tandem_view lse;        /* [batch, heads, q_len, 1] f32, natural log, scale included; written; dtype NONE: not wanted */
    uint32_t batch, heads, kv_heads;
    uint32_t q_len, kv_len, head_dim; /* head_dim: 32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192 or 256 */
    float scale;                      /* 0: 1 / sqrt(head_dim) */
    uint32_t causal;                  /* 0 or 1 */
    uint32_t precision;               /* tandem_precision */
    uint32_t smooth;                  /* tandem_smooth, or'ed */
    uint32_t granularity;             /* tandem_granularity */
    uint32_t reserved;                /* 0 */
    tandem_view length; /* I32, [batch, 1, 1, 1]: dense ones have stride_batch 1; dtype NONE: all keys count */
    tandem_view bias;   /* [batch, heads, q_len, kv_len], F16, BF16 or F32, repeated where a stride is 0; dtype NONE: none is added */
    tandem_view position; /* I32, [batch, 1, q_len, 1]: dense ones have stride_row 1; dtype NONE: as `causal` says */
    float softcap;        /* 0: none */
    uint32_t window;      /* keys; 0: all */
    tandem_view q_start, k_start; /* I32, [1, 1, 1, batch + 1]; dtype NONE: each of the batch has q_len rows, kv_len keys */
    tandem_view sink;             /* [1, heads, 1, 1], F16, BF16 or F32: dense ones have stride_head 1; dtype NONE: none */
    uint32_t q_total, kv_total;   /* rows of all sequences; 0 where there is no q_start, no k_start */
} tandem_attention;

/* Q, K and V that are quantised already, as a projection's epilogue can write them, or a cache keeps them: attention without its
 * prologue. All three of them, or K and V alone, whose Q becomes codes by `granularity` first; precision AUTO or 8B, smooth DEFAULT
 * or NONE, lse not wanted, no softcap and no sink, as only who knows what was subtracted from K can say what scores were. Rows are padded to
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
 * has it all the same. A scale of NaN says that a row of Q is not finite, or a key in K or V: so is O then, where a row attends to
 * that key. Nobody checks codes and scales: of scales below 0 or infinite, and of other bytes, rows of O become some numbers, or none,
 * and nothing else happens. From K the caller has subtracted what it wants, for softmax does not notice one vector subtracted from
 * all keys: best their mean.
 *
 * offset_bytes is a multiple of 256, and the mem begins at a multiple of 16. Strides are those of the codes: stride_row dim_pad for q and k, rows_pad for v (of
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

typedef enum tandem_norm_kind {
    TANDEM_NORM_RMS = 0,  /* norm(h) = h / sqrt(mean(h^2) + epsilon) */
    TANDEM_NORM_LAYER = 1 /* norm(h) = (h - mean(h)) / sqrt(mean((h - mean(h))^2) + epsilon) */
} tandem_norm_kind;

/* Each row of channels is normalised: y = norm(h) * weight + bias, where h = x + residual, rounded to x's dtype. With a rotation
 * (RoPE) the first rotated_channels are turned then, as tandem_linear has it, by row t = position[row] of the rotation: so heads
 * are whose queries and keys have norms. Computed in float32; each view is F16, BF16 or F32, but for these two. A NaN or Inf in a row makes elements of that row of y NaN, or 0. */
typedef struct tandem_norm {
    tandem_view x;        /* [batch, heads, rows, channels] */
    tandem_view residual; /* the same shape; dtype NONE: none is added */
    tandem_view weight;   /* [1, 1, 1, channels]; dtype NONE: 1 */
    tandem_view bias;     /* the same; dtype NONE: 0 */
    tandem_view y;        /* as x, of any of the dtypes; written */
    tandem_view sum;      /* h, of x's dtype, as the next layer adds to it; written; dtype NONE: not wanted */
    uint32_t batch, heads, rows, channels;
    uint32_t kind;        /* tandem_norm_kind */
    float epsilon;        /* 0: 1e-5 */
    uint32_t reserved[2]; /* 0 */
    tandem_view rotation; /* F32, [1, 1, positions, rotated_channels]; dtype NONE: nothing is rotated, and what follows is 0 */
    tandem_view position; /* I32, [batch, 1, rows, 1]: dense ones have stride_row 1; below 0 counts as 0, from `positions` on as the
                             last */
    uint32_t positions;   /* rows of the rotation */
    uint32_t rotated_channels; /* a multiple of 8, at most channels */
} tandem_norm;

typedef enum tandem_activation {
    TANDEM_ACTIVATION_NONE = 0,
    TANDEM_ACTIVATION_GELU = 1,      /* x / 2 * (1 + erf(x / sqrt(2))) */
    TANDEM_ACTIVATION_GELU_TANH = 2, /* x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) */
    TANDEM_ACTIVATION_SILU = 3,      /* x / (1 + exp(-x)); SwiGLU is this with a gate */
    TANDEM_ACTIVATION_TANH = 4
} tandem_activation;

/* Whether w has two rows an output, whose sums are multiplied: activation(a) * b. */
typedef enum tandem_gate {
    TANDEM_GATE_NONE = 0,
    TANDEM_GATE_HALVES = 1, /* output j: a from row j of w, b from row outs + j */
    TANDEM_GATE_PAIRS = 2   /* a from row 2 j, b from row 2 j + 1 */
} tandem_gate;

/* y = activation(x w^T * scale + bias), with a gate times (x w^T * scale + bias) of w's other rows, + residual. With a rotation
 * (RoPE; no activation, no gate) y's columns are heads of head_dim channels, and of the first rotated_heads the first
 * rotated_channels are turned before the residual is added, in pairs of neighbours by row t = position[row] of the rotation:
 *   y[2 i] = a[2 i] rotation[t][2 i] - a[2 i + 1] rotation[t][2 i + 1],
 *   y[2 i + 1] = a[2 i] rotation[t][2 i + 1] + a[2 i + 1] rotation[t][2 i],
 * so a row of it is cos, sin, cos, sin ...; whatever stretches angles is in that table. Models that turn channels i and
 * i + rotated_channels / 2 together have rows of w reordered, of q and k alike, which changes no score.
 * Products are of x's dtype, sums float32, and so is each step after them; y is rounded once. Weights with blocks are
 * multiplied out in float32 and rounded to x's dtype first. In which order sums are taken is the kernel's affair, and depends
 * on device, executor and shape: what it may change is bounded in kernels/linear/linear.h.
 *
 * A projection of Q, K and V at once can write codes, which attention takes as they are: it is its kernel alone then. With q, k
 * and v y's rows are `batch` sequences of rows / batch, one behind the other, and its columns heads of head_dim channels: `heads`
 * of Q, `kv_heads` of K, as many of V. Codes are of y as it is rounded, to x's dtype where y itself is not wanted, and lie as
 * tandem_codes_bytes() says; padding is written, too.
 * From K its mean over the keys is subtracted, channels of V are scaled by their largest magnitudes. Both are in `statistics`,
 * calibrated ones or those of a call before: what is larger in V becomes its largest code. Without these they are this call's
 * own, for which K and V are read once more, and codes are bit for bit those that attention makes of y for 8B.
 * next_statistics are this call's, for one to come. What is not finite counts as 0 in them, and has a scale of NaN (see there); statistics that are
 * not finite make NaN of what they are for.
 * UNSUPPORTED on GPUs before compute capability 8.9, where no attention takes codes. */
typedef struct tandem_linear {
    tandem_view x;        /* [1, 1, rows, ins], F16 or BF16; on a CPU, without codes, F32, too: elsewhere it is UNSUPPORTED */
    tandem_view w;        /* [1, 1, outs, ins], with a gate [1, 1, 2 outs, ins]: of x's dtype, I8 (ins, stride_row and
                             offset_bytes multiples of 8), Q8_0, Q4_0, Q4_1, Q4_K, Q5_K or Q6_K */
    tandem_view scale;    /* F32, one for each row of w, of I8 only: [1, 1, 1, outs or 2 outs]; dtype NONE: 1 */
    tandem_view bias;     /* likewise, F16, BF16 or F32, of any w; dtype NONE: 0 */
    tandem_view residual; /* [1, 1, rows, outs], F16, BF16 or F32; dtype NONE: none is added */
    tandem_view rotation; /* F32, [1, 1, positions, rotated_channels]; dtype NONE: nothing is rotated, and what follows is 0 */
    tandem_view position; /* I32, [1, 1, 1, rows]; below 0 counts as 0, from `positions` on as the last */
    tandem_view y;        /* [1, 1, rows, outs], F16, BF16 or F32; written; with codes dtype NONE, too: not wanted */
    uint32_t rows, ins, outs;
    uint32_t activation;  /* tandem_activation */
    uint32_t gate;        /* tandem_gate */
    uint32_t positions;   /* rows of the rotation */
    uint32_t head_dim, rotated_channels; /* of a head; multiples of 8, with codes one of attention's */
    uint32_t rotated_heads;
    uint32_t batch, heads, kv_heads; /* of codes; without them 0 */
    tandem_view q, k, v;             /* CODES_INT8, CODES_INT8, CODES_E4M3: [batch, heads, rows / batch, head_dim], of k and v
                                        kv_heads; written; all three or, dtype NONE, none */
    tandem_view statistics;          /* F32, [batch, kv_heads, 2, head_dim]: K's mean, then V's largest magnitudes; a
                                        stride_batch of 0 shares them; dtype NONE: this call's own */
    tandem_view next_statistics;     /* likewise, written; dtype NONE: not wanted */
    uint32_t granularity;            /* tandem_granularity of codes, but for TENSOR */
    uint32_t reserved[3];            /* 0 */
} tandem_linear;

/* y = scale * table[id] + position_table[position] + type_table[type]: of each table the row that an id says. In float32, each
 * operation rounded, in that order; y is rounded once. Ids below 0 count as 0, those beyond a table as its last row. */
typedef struct tandem_embed {
    tandem_view table;          /* [1, 1, entries, channels]: F16, BF16, F32, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K or Q6_K */
    tandem_view position_table; /* [1, 1, positions, channels], likewise; dtype NONE: none, nor a position, and positions is 0 */
    tandem_view type_table;     /* [1, 1, types, channels], likewise; dtype NONE: none, nor a type, and types is 0 */
    tandem_view id;             /* I32, [batch, 1, rows, 1]: dense ones have stride_row 1 */
    tandem_view position, type; /* the same */
    tandem_view y;              /* [batch, 1, rows, channels], F16, BF16 or F32; written */
    uint32_t batch, rows, channels;
    uint32_t entries, positions, types; /* rows of the tables */
    float scale;                        /* finite; 0: 1 */
    uint32_t reserved;                  /* 0 */
} tandem_embed;

typedef enum tandem_binary_kind {
    TANDEM_BINARY_ADD = 0,     /* y = a + scale * b */
    TANDEM_BINARY_MULTIPLY = 1 /* y = a * (scale * b) */
} tandem_binary_kind;

/* Sums or products of two tensors, element by element, in float32; y is rounded once. b is repeated along axes whose stride is 0,
 * and along channels if it has one. Each view is F16, BF16 or F32. */
typedef struct tandem_binary {
    tandem_view a;       /* [batch, heads, rows, channels] */
    tandem_view b;       /* [batch, heads, rows, b_channels] */
    tandem_view y;       /* as a; written */
    uint32_t batch, heads, rows, channels;
    uint32_t b_channels; /* 0, which means channels; 1; or channels */
    uint32_t kind;       /* tandem_binary_kind */
    float scale;         /* finite; 0: 1 */
    uint32_t reserved;   /* 0 */
} tandem_binary;

/* y = the mean of x's rows, of a batch's first `length` ones, 0 where there are none. With `normalise` it is divided by its norm,
 * sqrt(sum of its squares), or by epsilon where that is more; rows by themselves, as batches or heads of one row, are just that. In
 * float32; y is rounded once. */
typedef struct tandem_pool {
    tandem_view x;        /* [batch, heads, rows, channels], F16, BF16 or F32 */
    tandem_view length;   /* I32, [batch, 1, 1, 1]: dense ones have stride_batch 1; below 0 counts as 0, above rows as rows; dtype
                             NONE: all rows count */
    tandem_view y;        /* [batch, heads, 1, channels], F16, BF16 or F32; written */
    uint32_t batch, heads, rows, channels;
    uint32_t normalise;   /* 0 or 1 */
    float epsilon;        /* 0: 1e-12 */
    uint32_t reserved[2]; /* 0 */
} tandem_pool;

/* Row position[i] of y becomes row i of x, rounded where y's dtype is another; all other rows of y stay as they are. So caches of
 * keys and values grow. A position below 0, or from `entries` on, is no row's: row i goes nowhere. Where two rows of a batch have
 * one position, which of them it becomes is not said. */
typedef struct tandem_scatter {
    tandem_view x;        /* [batch, heads, rows, channels], F16, BF16 or F32 */
    tandem_view position; /* I32, [batch, 1, rows, 1]: dense ones have stride_row 1 */
    tandem_view y;        /* [batch, heads, entries, channels], F16, BF16 or F32; written */
    uint32_t batch, heads, rows, channels;
    uint32_t entries;     /* rows of y */
    uint32_t reserved[3]; /* 0 */
} tandem_scatter;

/* How a cache of keys and values is kept. */
typedef enum tandem_cache_format {
    TANDEM_CACHE_F16 = 0,  /* as fp16: the operations below take it in a pool alone */
    TANDEM_CACHE_K8V8 = 1, /* keys INT8, values FP8 E4M3 */
    TANDEM_CACHE_K4V8 = 2, /* keys INT4 */
    TANDEM_CACHE_F32 = 3   /* as float32, and all of a language model is computed in it: what others are compared with. CPUs
                              alone do that; no cache of the operations below */
} tandem_cache_format;

/* What a cache keeps of one sequence's keys and values for one head, of `entries` positions: bytes, which begin at a multiple of 16.
 * Zeros are one that keeps nothing. UINT64_MAX where there is no such format, or they are too many.
 *
 * Positions lie in pages of 64. The newest page is there as fp16. Once it is full it is sealed: its keys become codes with a minimum
 * and a scale for each channel, values become codes with a scale for each channel. So a page depends on nothing but what is in it,
 * and is not touched again. */
static inline uint64_t tandem_cache_bytes(uint32_t format, uint32_t entries, uint32_t head_dim)
{
    const uint64_t pages = ((uint64_t)entries + 63) / 64, k = format == TANDEM_CACHE_K4V8 ? 32 : 64;

    if ((format != TANDEM_CACHE_K8V8 && format != TANDEM_CACHE_K4V8) || !pages || head_dim > 1u << 20)
        return UINT64_MAX;
    return 512 + (uint64_t)256 * head_dim + (pages - 1) * (k + 64 + 4) * head_dim;
}

/* The same of many sequences that have their pages in common, for one head: `slots` of them at a time, each with a newest page, and
 * `pages` full ones, which any of them may have. A table says which slot a sequence has, and which pages; with it sequences have the
 * bits that each would have in a cache of its own. Of F16 all pages are among `pages`, the newest ones, too. UINT64_MAX as above. */
static inline uint64_t tandem_cache_pool_bytes(uint32_t format, uint32_t slots, uint32_t pages, uint32_t head_dim)
{
    const uint64_t newest = format == TANDEM_CACHE_F16 ? 0 : 256,
                   page = format == TANDEM_CACHE_F16 ? 256 : format == TANDEM_CACHE_K8V8 ? 132 : 100;

    if (format > TANDEM_CACHE_K4V8 || !slots || !pages || slots > 1u << 20 || head_dim > 1u << 12)
        return UINT64_MAX;
    return slots * (512 + newest * head_dim) + pages * page * head_dim;
}

/* Rows of keys and values become those of a cache at their positions. Those of a batch follow one another within one page, from the
 * first on whose position is in the cache; a row that does not, and what is behind it, goes nowhere. Rows in the middle of a page
 * that was sealed unseal it: what is before them in the page is as its codes have it. */
typedef struct tandem_cache_append {
    tandem_view k, v;     /* [batch, kv_heads, rows, head_dim], F16, BF16 or F32: rounded to fp16 */
    tandem_view position; /* I32, [batch, 1, rows, 1]: dense ones have stride_row 1 */
    tandem_view cache;    /* U8, [batch, kv_heads, 1, tandem_cache_bytes()], or [1, kv_heads, 1, tandem_cache_pool_bytes()] with a table;
                             its strides are multiples of 16, as is its address; written */
    uint32_t batch, kv_heads, rows; /* rows: 64 at most */
    uint32_t head_dim;    /* 64 or 128 */
    uint32_t entries;     /* positions of a sequence */
    uint32_t format;      /* tandem_cache_format */
    uint32_t reserved[2]; /* 0 */
    /* I32, [batch, 1, 1, 1 + ceil(entries / 64)]: a sequence's slot, then its pages from the first on; dtype NONE: each has a cache of
     * its own. A number that is not below `slots`, or `pages`, is none: what would go there goes nowhere, and nobody attends to it.
     * No two sequences of a call have the same slot, nor is a page written that another one of them reads. */
    tandem_view table;
    uint32_t slots, pages; /* of the pool; 0 without a table */
} tandem_cache_append;

/* O = softmax(scale * Q K^T) V on such a cache: a row attends to all positions up to its own, to those of its own page as fp16, to
 * those before that as codes. So it has the same bits however many rows come at once, and whatever other sequences there are.
 * A position below 0 attends to nothing, and gives 0; one beyond the cache counts as the last. What rows of a batch attend to has
 * been appended, and nothing in another page since. One call at a time: the cache also counts which parts of a call are done, and
 * an append begins that anew. */
typedef struct tandem_cache_attention {
    tandem_view q;        /* [batch, heads, rows, head_dim], F16; offset_bytes and strides are multiples of 16 bytes */
    tandem_view position; /* as above */
    tandem_view cache;    /* as above, written */
    tandem_view o;        /* as q, F16, BF16 or F32; written */
    uint32_t batch, heads, kv_heads, rows; /* heads: kv_heads to 16 times as many; rows: 64 at most */
    uint32_t head_dim, entries, format;    /* as above */
    float scale;          /* 0: 1 / sqrt(head_dim) */
    tandem_view table;    /* as above */
    uint32_t slots, pages;
} tandem_cache_attention;

/* Images lie in views as [batch, rows of pixels, pixels of a row, channels]. */

/* A convolution. Pixel (i, j) of y is bias + the sum over size x size pixels of x around (stride i, stride j), of what lies within x,
 * each channel times its weight. `coarse` has further channels of half the resolution: its pixel (i / 2, j / 2) is behind (i, j) of
 * x. With shuffle 2 a pixel's channels are those of four: the upper left one's, upper right, lower left, lower right, and y is twice
 * as high and as wide. Products are of F16, sums float32 in an order that is the kernel's affair; y is rounded once. */
typedef struct tandem_conv {
    tandem_view x;      /* [batch, height, width, channels], F16 */
    tandem_view coarse; /* [batch, ceil(height / 2), ceil(width / 2), coarse_channels], F16; dtype NONE: none */
    tandem_view w;      /* [1, 1, outs, size * size * (channels + coarse_channels)], F16: of an output one pixel after the other, row
                           after row, of each x's channels, then coarse's */
    tandem_view bias;   /* [1, 1, 1, outs], F32; dtype NONE: 0 */
    tandem_view y;      /* [batch, shuffle * ceil(height / stride), shuffle * ceil(width / stride), outs / shuffle / shuffle], F16
                           or F32; written */
    uint32_t batch, height, width;
    uint32_t channels, coarse_channels; /* multiples of 16 */
    uint32_t outs;        /* a multiple of 8, with shuffle 2 of 32 */
    uint32_t size;        /* 1 or 3 */
    uint32_t stride;      /* 1 or 2; 0: 1 */
    uint32_t shuffle;     /* 1 or 2; 0: 1 */
    uint32_t relu;        /* 0 or 1: what is below 0 becomes 0 */
    uint32_t reserved[2]; /* 0 */
} tandem_conv; /* x, coarse, w and y begin at multiples of 16 bytes, and strides are multiples of 8 */

/* Attention of pixels over their neighbours: each pixel of o is a mean of v's pixels, by softmax(q k^T + bias) times v's weights. With
 * step 1 query (i, j) meets keys within `radius` of it, and those of k_coarse, which is half as high and as wide, within
 * coarse_radius of (i / 2, j / 2). With step 2 there is a query for four pixels, which meets keys 2 i + 1 - radius to 2 i + radius,
 * likewise in j. Keys that lie in no image are none. In float32, in an order that is the kernel's affair. */
typedef struct tandem_gather {
    tandem_view q;        /* [batch, ceil(height / step), ceil(width / step), dim], F16 */
    tandem_view k;        /* [batch, height, width, dim], F16 */
    tandem_view v;        /* [batch, height, width, 4], F32: three values, and a weight; one below 0 counts as 0 */
    tandem_view factor;   /* [batch, height, width, 3], F32: what v's values are multiplied by first; dtype NONE: 1 */
    tandem_view k_coarse; /* [batch, ceil(height / 2), ceil(width / 2), dim], F16; dtype NONE: none, nor v_coarse */
    tandem_view v_coarse; /* the same, 4, F32 */
    tandem_view bias;     /* [1, 1, 1, keys of a query], F32: row after row, k's, then k_coarse's, k_before's; dtype NONE: 0 */
    tandem_view o;        /* as q, `channels`, F32; written: three values, and 1, or 0 where no key has a weight: all are 0 then;
                             the fourth is more by v_before's */
    uint32_t batch, height, width;
    uint32_t dim;           /* 8 or 16 */
    uint32_t radius;        /* 0 to 4, with step 2 from 1 on */
    uint32_t coarse_radius; /* 0 or 1 */
    uint32_t step;          /* 1 or 2; 0: 1 */
    uint32_t channels;      /* 3 or 4 */
    uint32_t reserved[2];   /* 0 */
    tandem_view k_before; /* as q, with step 1: a key more of each query, at its own pixel, say of frames before; dtype NONE: none, nor
                             v_before */
    tandem_view v_before; /* the same, 4, F32; a weight below 0 counts as 0 */
} tandem_gather; /* q and keys begin at multiples of 16 bytes, values too; strides of those are multiples of 8 and 4 */

/* What a denoiser begins with: a path tracer's frame as light, which is radiance divided by albedo, and as a network's tokens, of
 * 2 x 2 pixels each. Radiance below 0 counts as 0. A pixel whose radiance is not finite is missing: its light is 0, and has no
 * weight. Elements of the others that are not finite are 0.
 * modulation: the albedo, no less than 0.1 and no more than 1; where none of the three is above 0, as of a light or the sky, 1.
 * A token has 12 channels of each pixel, upper left, upper right, lower left, lower right, 0 where there is none: log(1 + exposure *
 * light), three; albedo, from 0 to 1; normal, from -1 to 1; depth / (depth + far); 1 if it is not missing; 1 if its albedo is
 * 0. 1 / exposure is the geometric mean, over tiles of 16 x 16 pixels, of the mean luminances, if above 1e-8, of those that
 * are not missing (so of a frame that is traced in part it is the same), `far` of the depths above that; 1 where there is none. With
 * history a pixel has 16 channels: log(1 + exposure * history), three, and weight / (1 + weight), too. */
typedef struct tandem_demodulate {
    tandem_view color;      /* [batch, height, width, 3], F16 or F32 */
    tandem_view albedo;     /* the same; dtype NONE: 1 */
    tandem_view normal;     /* the same; dtype NONE: 0 */
    tandem_view depth;      /* [batch, height, width, 1], F16 or F32; dtype NONE: 0 */
    tandem_view light;      /* [batch, height, width, 4], F32, written: light, and 1 or 0 */
    tandem_view modulation; /* [batch, height, width, 3], F32; written */
    tandem_view tokens;     /* [batch, ceil(height / 2), ceil(width / 2), 48, or 64 with history], F16; written */
    uint32_t batch, height, width;
    uint32_t reserved; /* 0 */
    tandem_view history; /* [batch, height, width, 4], F32: light of frames before and its weight, as tandem_reproject has them;
                            what is below 0 or not finite is 0; dtype NONE: none */
} tandem_demodulate;

/* The frame before, as it is seen now. A pixel of o is the mean of the four of `history` around where it was, pixel + motion, each by
 * its share and its weight, and their weights' sum, at most 32. Pixels do not count that are beyond the image, or whose weight is not
 * above 0, or not finite, as a value; nor those of another surface: where normals are there, whose cosine is below 0.5, and where depths are, whose depth differs
 * by more than a tenth of this one's. Normals and depths that are not finite are 0, depths below 0 too. All of it is 0 where nothing
 * counts, where `valid` is not above 0, and where motion is not finite, or 1e6 and more. */
typedef struct tandem_reproject {
    tandem_view history;       /* [batch, height, width, 4], F32: three values, and a weight */
    tandem_view motion;        /* [batch, height, width, 2], F16 or F32: across and down, in pixels */
    tandem_view valid;         /* [batch, height, width, 1], F16 or F32; dtype NONE: 1 */
    tandem_view normal;        /* [batch, height, width, 3], F16 or F32; dtype NONE: none, nor normal_before */
    tandem_view depth;         /* [batch, height, width, 1], F16 or F32; dtype NONE: none, nor depth_before */
    tandem_view normal_before; /* those of the frame before */
    tandem_view depth_before;
    tandem_view o;             /* as history; written */
    uint32_t batch, height, width;
    uint32_t reserved; /* 0 */
} tandem_reproject;

/* The largest numbers of each row, the largest first, and where they are: of equal ones the first. NaN is none of them; what
 * there is too little of is NaN at -1. As a language model's next words: few are ever looked at. */
typedef struct tandem_top {
    tandem_view x;        /* [batch, heads, rows, channels], F16, BF16 or F32 */
    tandem_view y;        /* [batch, heads, rows, 2 * count], F32, written: numbers (-0 as 0), then their channels */
    uint32_t batch, heads, rows, channels; /* channels: at most 2^24 */
    uint32_t count;       /* 1 to 64 */
    uint32_t reserved[3]; /* 0 */
} tandem_top;

typedef enum tandem_operation {
    TANDEM_OPERATION_ATTENTION = 1,
    TANDEM_OPERATION_NORM = 2,
    TANDEM_OPERATION_LINEAR = 3,
    TANDEM_OPERATION_EMBED = 4,
    TANDEM_OPERATION_BINARY = 5,
    TANDEM_OPERATION_POOL = 6,
    TANDEM_OPERATION_SCATTER = 7,
    TANDEM_OPERATION_CACHE_APPEND = 8,
    TANDEM_OPERATION_CACHE_ATTENTION = 9,
    TANDEM_OPERATION_CONV = 10,
    TANDEM_OPERATION_GATHER = 11,
    TANDEM_OPERATION_DEMODULATE = 12,
    TANDEM_OPERATION_REPROJECT = 13,
    TANDEM_OPERATION_TOP = 14,
    TANDEM_OPERATION_RUN = 64 /* a whole network: those above are the operations that it may have */
} tandem_operation;

/* A network computed once, from its inputs to its outputs (tandem_model_load(), kernels/PROGRAM.md).
 * Arrays are read by tandem_submit() and not after it.
 *
 * A binding is a tensor that lies dense in a mem: its mem, its offset_bytes, a multiple of 16 such that
 * the address is one, too, and the tensor's dtype. Strides are those of tandem_view_dense(), or all 0,
 * which stands for them. What is written overlaps nothing else that the run names.
 * Runs of an instance follow one another as they were submitted. Its state moves on when a run ends
 * DONE; one that ends otherwise leaves it as it was, but for caches, which are written in place. */
typedef struct tandem_run {
    tandem_instance instance;
    const tandem_view *bindings; /* the network's inputs and outputs, in their order, */
    const uint32_t *numbers;     /* its sizes, as tandem_model_prepare() had them, */
    const void *uniforms;        /* and its uniforms, each where tandem_model_uniform() says */
    uint64_t uniform_bytes;      /* to the end of the last one; 0: it has none */
    uint32_t binding_count, number_count;
    uint32_t reserved[4];        /* 0 */
} tandem_run;

/* What an operation is about: its struct. Operations to come have theirs here, too, and change neither size nor layout; those
 * that are here may grow, so bytes behind an operation's struct are 0, or UNSUPPORTED. */
typedef union tandem_operands {
    uint64_t reserved[128];     /* first: so a job that is initialised without its op has all of it 0 */
    tandem_attention attention; /* TANDEM_OPERATION_ATTENTION */
    tandem_norm norm;           /* TANDEM_OPERATION_NORM */
    tandem_linear linear;       /* TANDEM_OPERATION_LINEAR */
    tandem_embed embed;         /* TANDEM_OPERATION_EMBED */
    tandem_binary binary;       /* TANDEM_OPERATION_BINARY */
    tandem_pool pool;           /* TANDEM_OPERATION_POOL */
    tandem_scatter scatter;     /* TANDEM_OPERATION_SCATTER */
    tandem_cache_append cache_append;       /* TANDEM_OPERATION_CACHE_APPEND */
    tandem_cache_attention cache_attention; /* TANDEM_OPERATION_CACHE_ATTENTION */
    tandem_conv conv;           /* TANDEM_OPERATION_CONV */
    tandem_gather gather;       /* TANDEM_OPERATION_GATHER */
    tandem_demodulate demodulate; /* TANDEM_OPERATION_DEMODULATE */
    tandem_reproject reproject; /* TANDEM_OPERATION_REPROJECT */
    tandem_top top;             /* TANDEM_OPERATION_TOP */
    tandem_run run;             /* TANDEM_OPERATION_RUN */
} tandem_operands;

/* One unit of work. The session copies it: the caller may reuse it once tandem_submit() returns. */
typedef struct tandem_job {
    uint32_t struct_bytes; /* sizeof(tandem_job): says which version of this struct the caller knows */
    uint32_t operation;    /* tandem_operation */
    tandem_point wait;     /* the views that are read are ready */
    tandem_point signal;   /* signalled exactly once, whatever becomes of the job */
    uint64_t deadline_ns;  /* 0: none; else nanoseconds from tandem_submit(): it ends DONE, wholly written, or STALE */
    tandem_operands op;    /* the last for good */
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
