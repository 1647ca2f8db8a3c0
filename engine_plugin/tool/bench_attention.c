/* `tandem bench attention`: how long attention takes, beside cuDNN's in the same process.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A shape's contenders are measured in turn, round after round: A B C A B C, by two protocols, as their ratios differ:
 * SUSTAINED: each has the GPU for `run_us` at a time, call after call, until the clock is what its own power allows.
 * ONE_CALL: each has it for a single call at a time, so all have one clock, which is what none of them alone would have.
 * Outputs are poisoned before a run and checked at the end. Where a shape is small, several calls are one submit, on
 * tensors that do not fit into the L2 together.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "engine_plugin/tool/accuracy.h"
#include "engine_plugin/tool/bench.h"
#include "engine_plugin/tool/bench_cudnn.h"
#include "interop/cu/driver.h"
#include "kernels/builder.h"
#include "kernels/cpu/cpu.h"
#include "tandem/tandem.h"

enum {
    MOST_SHAPES = 96,
    MOST_ROWS = 9,
    MOST_COPIES = 20,
    MOST_RECORDS = 24, /* of all copies */
    MOST_SETS = 64,
    CHECKED_ROWS = 4,
    ONE_CALL_ROUNDS = 11,
    BLOCK_VALUES = 1 << 22,
    L2_ATTRIBUTE = 38,
    LIMIT_S = 20,
    INLINE_SHARED_BYTES = 47 * 1024 /* of a block in a command buffer */
};
_Static_assert(6 * MOST_SHAPES <= BENCH_TARGETS, "expect() has up to six targets a shape");
#define POISON 0xffffffffu /* two NaNs of fp16 */

/* INLINE: 8b's kernel for command buffers, on the same codes; sm_90, where it is another one. */
typedef enum contender { KERNEL, INLINE, END_TO_END, CUDNN } contender;

typedef enum protocol { SUSTAINED, ONE_CALL, PROTOCOLS } protocol;

typedef struct shape {
    uint32_t batch, heads, n, dim;
    uint32_t kv_heads, queries; /* heads and n but for `tandem tune` */
    bool causal, small, kernels_only; /* kernels_only: what is end to end only fills the scratch */
} shape;

/* One line of a shape's table. */
typedef struct row {
    contender kind;
    uint32_t precision, used; /* used: what AUTO took */
    char why[200]; /* not measured, because; empty: measured */
    bench_series us[PROTOCOLS];
    double error; /* relative L1 of the checked rows */
    const td_plan *plan; /* `copies` calls */
    uint32_t copies, slot; /* slot: of the stream, so that each plan keeps a graph of its own */
    uint32_t runs;         /* of the plan, so far */
    uint64_t scratch, scratch_bytes; /* of set 0; from one set to the next */
    bench_power power[PROTOCOLS];    /* at the end of its last run */
} row;

typedef struct bench {
    const char *json;
    bool cpu, quick, strict;
    bool tunes;      /* for `tandem tune`: outputs are not compared with float64, the first half of a turn does not count */
    bool inline_too;            /* INLINE has rows */
    uint32_t rounds;
    double run_us;  /* that a contender has the GPU in a round, small shapes a tenth; at least one call */
    td_cu_device *device;
    td_stream *stream;
    td_thread_pool *pool; /* of a CPU */
    const char *executor, *auto_by; /* auto_by: the rule or a table */
    bench_cudnn *cudnn;
    char no_cudnn[256];
    bench_nvml *nvml;
    td_target target;
    uint64_t l2_bytes;
    void *cuda;
    int (*memset_d32)(uint64_t at, unsigned value, size_t count);
    int (*copy)(uint64_t to, uint64_t from, size_t bytes);
    int (*synchronize)(void);
    uint16_t *block; /* N(0, 1) */
    td_cu_mem device_block, tensors, scratch;
    void *host_tensors, *host_scratch;
    bench_targets targets;
} bench;

static const char *const precision_names[] = {"auto", "f16", "8b", "4b"};
static const char *const kind_names[] = {"kernel", "inline", "end to end", "cudnn"};
static const char *const protocol_names[] = {"sustained", "one call at a time"};

static bool has(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = list; at && *at;) {
        const char *comma = strchr(at, ',');
        const size_t part = comma ? (size_t)(comma - at) : strlen(at);
        if (part == length && !memcmp(at, word, length))
            return true;
        at = comma ? comma + 1 : NULL;
    }
    return !list;
}

static bool has_number(const char *list, uint32_t number)
{
    char word[16];
    snprintf(word, sizeof word, "%u", (unsigned)number);
    return has(list, word);
}

static const char *shape_name(const shape *s, char text[64])
{
    snprintf(text, 64, "b%u h%-2u d%-3u n%-5u%s", (unsigned)s->batch, (unsigned)s->heads, (unsigned)s->dim,
             (unsigned)s->n, s->causal ? " causal" : "");
    return text;
}

static double tflops(const shape *s, double us)
{
    return 4.0 * s->batch * s->heads * s->n * s->n * s->dim / us * 1e-6 * (s->causal ? 0.5 : 1);
}

/* Of a head of a tensor: as many for all. */
static uint32_t rows_of(const shape *s)
{
    return s->queries > s->n ? s->queries : s->n;
}

static uint64_t tensor_bytes(const shape *s)
{
    return td_align_up((uint64_t)s->batch * s->heads * rows_of(s) * s->dim * 2, 256);
}

static bool cuda_ok(bench *b, int result, const char *what, char *why, size_t why_bytes)
{
    return td_cu_check(b->device, result, why, why_bytes, "%s", what) == TANDEM_OK;
}

/* Address of tensor `i` (Q, K, V, O) of a set. */
static uint64_t tensor_at(const bench *b, const shape *s, uint32_t set, uint32_t i)
{
    const uint64_t base = b->cpu ? (uint64_t)(uintptr_t)b->host_tensors : b->tensors.address;
    return base + (4 * (uint64_t)set + i) * tensor_bytes(s);
}

/* The block, over and over, beginning elsewhere for every tensor. */
static bool fill(bench *b, const shape *s, uint32_t sets, char *why, size_t why_bytes)
{
    const uint64_t whole = (uint64_t)BLOCK_VALUES * 2, bytes = tensor_bytes(s);
    bool ok = true;
    for (uint32_t set = 0; set < sets; set++)
        for (uint32_t i = 0; i < 3 && ok; i++) {
            uint64_t from = (set * 3 + i) * 1000064ull % (whole / 2);
            for (uint64_t done = 0; done < bytes && ok;) {
                const uint64_t now = bytes - done < whole - from ? bytes - done : whole - from;
                const uint64_t to = tensor_at(b, s, set, i) + done;
                if (b->cpu)
                    memcpy((void *)(uintptr_t)to, (char *)b->block + from, now);
                else
                    ok = cuda_ok(b, b->copy(to, b->device_block.address + from, now), "cuMemcpyDtoD", why, why_bytes);
                done += now;
                from = 64 * (done / whole % 1024);
            }
        }
    return ok && (b->cpu || cuda_ok(b, b->synchronize(), "cuCtxSynchronize", why, why_bytes));
}

static bool poison(bench *b, const shape *s, uint32_t sets, char *why, size_t why_bytes)
{
    bool ok = true;
    for (uint32_t set = 0; set < sets && ok; set++) {
        const uint64_t at = tensor_at(b, s, set, 3);
        if (b->cpu)
            memset((void *)(uintptr_t)at, 0xff, tensor_bytes(s));
        else
            ok = cuda_ok(b, b->memset_d32(at, POISON, tensor_bytes(s) / 4), "cuMemsetD32", why, why_bytes);
    }
    return ok && (b->cpu || cuda_ok(b, b->synchronize(), "cuCtxSynchronize", why, why_bytes));
}

static bool read_back(bench *b, void *to, uint64_t from, uint64_t bytes)
{
    if (b->cpu)
        memcpy(to, (void *)(uintptr_t)from, bytes);
    return b->cpu || td_cu_copy_to_host(b->device, to, from, bytes) == TANDEM_OK;
}

typedef struct reference {
    uint32_t set, bh[CHECKED_ROWS], at[CHECKED_ROWS];
    double *o; /* [CHECKED_ROWS][dim] */
} reference;

static void exact_row(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint32_t keys, uint32_t dim, double *o)
{
    double most = -INFINITY, sum = 0;
    double *p = malloc(keys * sizeof *p);
    memset(o, 0, dim * sizeof *o);
    for (uint32_t j = 0; p && j < keys; j++) {
        double dot = 0;
        for (uint32_t c = 0; c < dim; c++)
            dot += (double)td_from_f16(q[c]) * (double)td_from_f16(k[(size_t)j * dim + c]);
        p[j] = dot / sqrt(dim);
        most = p[j] > most ? p[j] : most;
    }
    for (uint32_t j = 0; p && j < keys; j++) {
        p[j] = exp(p[j] - most);
        sum += p[j];
        for (uint32_t c = 0; c < dim; c++)
            o[c] += p[j] * (double)td_from_f16(v[(size_t)j * dim + c]);
    }
    for (uint32_t c = 0; c < dim; c++)
        o[c] /= sum;
    free(p);
}

/* A few rows of the last set, in float64. */
static bool make_reference(bench *b, const shape *s, uint32_t set, reference *r, char *why, size_t why_bytes)
{
    const size_t row_bytes = s->dim * 2u, head_bytes = row_bytes * s->n;
    uint64_t state = s->n + s->dim;
    uint16_t *q = malloc(row_bytes), *k = malloc(head_bytes), *v = malloc(head_bytes);
    r->set = set;
    r->o = malloc(CHECKED_ROWS * s->dim * sizeof *r->o);
    bool ok = q && k && v && r->o;
    for (uint32_t i = 0; i < CHECKED_ROWS && ok; i++) {
        r->bh[i] = (uint32_t)(bench_random(&state) % (s->batch * s->heads));
        r->at[i] = (uint32_t)(bench_random(&state) % s->n);
        ok = read_back(b, q, tensor_at(b, s, set, 0) + r->bh[i] * head_bytes + r->at[i] * row_bytes, row_bytes) &&
             read_back(b, k, tensor_at(b, s, set, 1) + r->bh[i] * head_bytes, head_bytes) &&
             read_back(b, v, tensor_at(b, s, set, 2) + r->bh[i] * head_bytes, head_bytes);
        if (ok)
            exact_row(q, k, v, s->causal ? r->at[i] + 1 : s->n, s->dim, r->o + i * s->dim);
    }
    free(q);
    free(k);
    free(v);
    if (!ok)
        td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "the reference could not be computed");
    return ok;
}

/* No NaN left in O (all of it, or 64 pieces of 1 MiB), and the rows of the reference close enough. */
static bool check(bench *b, const shape *s, const reference *r, row *it)
{
    enum { PIECE = 1 << 20, PIECES = 64 };
    const size_t row_bytes = s->dim * 2u, head_bytes = row_bytes * s->n;
    const uint64_t bytes = (uint64_t)s->batch * s->heads * head_bytes, o = tensor_at(b, s, r->set, 3);
    const uint64_t step = bytes > (uint64_t)PIECE * PIECES ? bytes / PIECES & ~255ull : PIECE;
    const double limit = it->kind == CUDNN || it->used == TANDEM_PRECISION_F16 ? 5e-3
                         : it->used == TANDEM_PRECISION_8B                     ? 0.15
                                                                               : 0.6;
    uint16_t *piece = malloc(PIECE);
    double difference = 0, size = 0;
    bool ok = piece != NULL;
    for (uint64_t at = 0; at < bytes && ok; at += step) {
        const uint64_t now = bytes - at < PIECE ? bytes - at : PIECE;
        ok = read_back(b, piece, o + at, now);
        for (uint64_t i = 0; i < now / 2 && ok; i++)
            if ((piece[i] & 0x7fffu) > 0x7c00u) {
                td_fail(it->why, sizeof it->why, TANDEM_ERROR_DEVICE, "element %llu of the output was not written",
                        (unsigned long long)(at / 2 + i));
                ok = false;
            }
    }
    for (uint32_t i = 0; i < CHECKED_ROWS && ok; i++) {
        ok = read_back(b, piece, o + r->bh[i] * head_bytes + r->at[i] * row_bytes, row_bytes);
        for (uint32_t c = 0; c < s->dim; c++) {
            difference += fabs((double)td_from_f16(piece[c]) - r->o[i * s->dim + c]);
            size += fabs(r->o[i * s->dim + c]);
        }
    }
    free(piece);
    it->error = difference / size;
    if (ok && !(it->error < limit)) {
        td_fail(it->why, sizeof it->why, TANDEM_ERROR_DEVICE, "relative L1 error %.4g, more than %.4g", it->error,
                limit);
        ok = false;
    }
    if (!ok && !it->why[0])
        td_fail(it->why, sizeof it->why, TANDEM_ERROR_DEVICE, "the output could not be read");
    return ok;
}

static bool run_plan(bench *b, const td_plan *plan, const uint64_t *views, uint64_t scratch, uint32_t slot, double *us,
                     char *why, size_t why_bytes)
{
    if (b->cpu) {
        if (!b->pool)
            b->pool = td_thread_pool_create(tool_cores());
        td_preemptible none = {0};
        const uint64_t begin = td_now_ns();
        const tandem_status status = td_exec_cpu_run_preemptibly(plan, views, scratch, b->pool, NULL, &none);
        *us = 1e-3 * (double)(td_now_ns() - begin);
        if (status != TANDEM_OK)
            td_fail(why, why_bytes, status, "%s", tandem_status_text(status));
        return status == TANDEM_OK;
    }
    const td_stream_submit submit = {.plan = plan, .views = views, .scratch = scratch, .slot = slot, .label = "bench"};
    uint64_t sequence = 0, begin_ns = 0, end_ns = 0;
    bool signalled;
    if (td_stream_enqueue(b->stream, &submit, &sequence, &signalled, why, why_bytes) != TANDEM_OK)
        return false;
    const uint64_t begin = td_now_ns();
    while (td_stream_completed(b->stream) < sequence) {
        if (td_now_ns() - begin > LIMIT_S * 1000000000ull || td_stream_status(b->stream, why, why_bytes) != TANDEM_OK) {
            if (!why[0])
                td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "not finished after %d s", LIMIT_S);
            return false;
        }
        bench_sleep_ns(20000);
    }
    if (!td_stream_times(b->stream, sequence, &begin_ns, &end_ns)) {
        td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "the GPU left no times");
        return false;
    }
    *us = 1e-3 * (double)(end_ns - begin_ns);
    return true;
}

static bool writes_output(const td_record *r)
{
    for (uint32_t i = 0; i < r->write_count; i++)
        if (r->writes[i].base == TD_BASE_VIEW && r->writes[i].view == TD_VIEW_O)
            return true;
    return false;
}

/* Appends to `out` the records of `plan` that are wanted, moved to the tensors and the scratch of another set. */
static bool append(td_plan *out, const td_plan *plan, bool prologue, bool kernel, uint64_t view_bytes,
                   uint64_t scratch_bytes)
{
    for (uint32_t i = 0; i < plan->record_count; i++) {
        if (!(writes_output(&plan->records[i]) ? kernel : prologue))
            continue;
        td_record *r = td_plan_append(out, &plan->records[i]);
        if (!r)
            return false;
        for (uint32_t j = 0; j < r->reloc_count; j++)
            r->relocs[j].addend += r->relocs[j].base == TD_BASE_VIEW      ? view_bytes
                                   : r->relocs[j].base == TD_BASE_SCRATCH ? scratch_bytes
                                                                          : 0;
        td_range *const lists[] = {r->reads, r->writes};
        const uint32_t counts[] = {r->read_count, r->write_count};
        for (int l = 0; l < 2; l++)
            for (uint32_t j = 0; j < counts[l]; j++) {
                const uint64_t by = lists[l][j].base == TD_BASE_VIEW      ? view_bytes
                                    : lists[l][j].base == TD_BASE_SCRATCH ? scratch_bytes
                                                                          : 0;
                lists[l][j].begin_bytes += by;
                lists[l][j].end_bytes += by;
            }
    }
    return true;
}

static tandem_attention op_of(const shape *s, uint32_t precision)
{
    const tandem_view dense = {.dtype = TANDEM_DTYPE_F16,
                               .stride_batch = (int64_t)s->heads * rows_of(s) * s->dim,
                               .stride_head = (int64_t)rows_of(s) * s->dim,
                               .stride_row = s->dim};
    return (tandem_attention){.q = dense,
                              .k = dense,
                              .v = dense,
                              .o = dense,
                              .batch = s->batch,
                              .heads = s->heads,
                              .kv_heads = s->kv_heads,
                              .q_len = s->queries,
                              .kv_len = s->n,
                              .head_dim = s->dim,
                              .causal = s->causal,
                              .precision = precision};
}

static bool make_plan(bench *b, const shape *s, contender kind, uint32_t precision, td_plan *plan, char *why,
                      size_t why_bytes)
{
    const tandem_attention op = op_of(s, precision);
    td_attention_layout layout; /* asked for so that all rows have their scratch at the same offsets */
    td_target target = b->target;
    if (kind == INLINE) /* the prologue, and with it the scratch, stays that of the others */
        target.shared_bytes = INLINE_SHARED_BYTES;
    return td_attention_check(&op, why, why_bytes) == TANDEM_OK &&
           td_plan_attention(&op, &target, plan, &layout, why, why_bytes) == TANDEM_OK;
}

static bool reserve(bench *b, td_cu_mem *mem, void **host, uint64_t bytes, char *why, size_t why_bytes)
{
    if (b->cpu) {
        free(*host);
        *host = aligned_alloc(256, td_align_up(bytes, 256));
        if (!*host)
            td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no %llu bytes", (unsigned long long)bytes);
        return *host != NULL;
    }
    if (mem->bytes >= bytes)
        return true;
    if (mem->kind)
        td_cu_mem_free(b->device, mem);
    return td_cu_mem_alloc(b->device, bytes, mem, why, why_bytes) == TANDEM_OK;
}

/* Calls on the sets from `first` on; cuDNN's are on all of them. */
static bool run_row(bench *b, const shape *s, row *it, uint32_t first, double *us)
{
    if (it->kind == CUDNN)
        return bench_cudnn_run(b->cudnn, us, it->why, sizeof it->why);
    uint64_t views[TD_VIEW_COUNT] = {0};
    for (uint32_t i = 0; i < 4; i++)
        views[i] = tensor_at(b, s, first, i);
    return run_plan(b, it->plan, views, it->scratch + first * it->scratch_bytes, it->slot, us, it->why, sizeof it->why);
}

/* The rows of a shape: kernel and end to end of each precision, then cuDNN. */
static uint32_t make_rows(bench *b, const shape *s, const char *precisions, row *rows, uint32_t *sets, char *why,
                          size_t why_bytes)
{
    static const uint32_t order[] = {TANDEM_PRECISION_8B, TANDEM_PRECISION_F16, TANDEM_PRECISION_4B,
                                     TANDEM_PRECISION_AUTO};
    const uint64_t set_bytes = 4 * tensor_bytes(s);
    uint32_t count = 0;
    uint64_t scratch_bytes = 0;
    td_plan made = {0}, *plan = &made;
    *sets = b->cpu ? 1 : (uint32_t)(2 * b->l2_bytes / set_bytes) + 1;
    *sets = *sets > MOST_SETS ? MOST_SETS : *sets;
    if (s->small && !b->cpu && *sets < MOST_COPIES)
        *sets = MOST_COPIES;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        if (!has(precisions, precision_names[order[i]]))
            continue;
        for (int kind = order[i] == TANDEM_PRECISION_AUTO ? END_TO_END : KERNEL; kind <= END_TO_END; kind++) {
            row *it = &rows[count];
            if (kind == INLINE && (order[i] != TANDEM_PRECISION_8B || !b->inline_too))
                continue;
            *it = (row){.kind = (contender)kind, .precision = order[i], .slot = count};
            td_plan *all = td_plan_create();
            it->plan = all;
            count++;
            if (!it->plan || !make_plan(b, s, it->kind, order[i], plan, it->why, sizeof it->why))
                continue;
            it->used = plan->precision;
            uint32_t part = 0;
            for (uint32_t r = 0; r < plan->record_count; r++)
                part += kind == END_TO_END || writes_output(&plan->records[r]);
            it->copies = !s->small || b->cpu || !part ? 1 : MOST_RECORDS / part;
            it->copies = it->copies > MOST_COPIES ? MOST_COPIES : it->copies;
            it->scratch_bytes = td_align_up(plan->scratch_bytes + 1, 256);
            all->scratch_bytes = plan->scratch_bytes + (it->copies - 1) * it->scratch_bytes;
            for (uint32_t copy = 0; copy < it->copies; copy++)
                if (!append(all, plan, kind == END_TO_END, true, copy * set_bytes, copy * it->scratch_bytes))
                    td_fail(it->why, sizeof it->why, TANDEM_ERROR_NOMEM, "no memory for a plan");
            td_plan_barriers(all);
            it->scratch = scratch_bytes;
            if (kind == END_TO_END)
                scratch_bytes += *sets * it->scratch_bytes;
        }
    }
    td_plan_free(plan);
    if (!reserve(b, &b->tensors, &b->host_tensors, *sets * set_bytes, why, why_bytes) ||
        !reserve(b, &b->scratch, &b->host_scratch, scratch_bytes + 256, why, why_bytes)) {
        for (uint32_t i = 0; i < count; i++)
            td_plan_drop(&rows[i].plan);
        return 0;
    }
    for (uint32_t i = 0; i < count; i++)
        rows[i].scratch += b->cpu ? (uint64_t)(uintptr_t)b->host_scratch : b->scratch.address;
    if (b->cudnn) {
        const bench_cudnn_shape like = {s->batch, s->heads, s->n, s->n, s->dim, s->causal, (float)(1 / sqrt(s->dim))};
        bench_cudnn_tensors tensors[MOST_SETS];
        row *it = &rows[count++];
        *it = (row){.kind = CUDNN, .copies = s->small ? MOST_COPIES : 1};
        for (uint32_t i = 0; i < *sets; i++)
            tensors[i] = (bench_cudnn_tensors){tensor_at(b, s, i, 0), tensor_at(b, s, i, 1), tensor_at(b, s, i, 2),
                                               tensor_at(b, s, i, 3)};
        /* What is not small has the sets in turn by one call each, so as many calls as sets. */
        it->copies = s->small ? MOST_COPIES : *sets;
        if (bench_cudnn_prepare(b->cudnn, &like, it->why, sizeof it->why))
            bench_cudnn_record(b->cudnn, tensors, *sets, it->copies, it->why, sizeof it->why);
    }
    return count;
}

/* One contender's turn: calls on set after set. */
static void run_for(bench *b, const shape *s, row *it, uint32_t sets)
{
    const uint32_t turns = it->kind == CUDNN ? 1 : sets / it->copies;
    const double turn_us = (s->small || s->kernels_only ? 0.1 : 1) * b->run_us;
    double spent = 0, us = 0;
    if (!poison(b, s, sets, it->why, sizeof it->why))
        return;
    do {
        if (!run_row(b, s, it, it->runs++ % turns * it->copies, &us))
            return;
        spent += us;
        if (!b->tunes || spent > turn_us / 2)
            bench_add(&it->us[SUSTAINED], us / it->copies);
    } while (spent < turn_us);
    it->power[SUSTAINED] = bench_nvml_read(b->nvml);
}

/* One contender's turn: a single call (where a shape is small, a single submit). */
static void run_once(bench *b, const shape *s, row *it, uint32_t sets)
{
    const uint32_t turns = it->kind == CUDNN ? 1 : sets / it->copies;
    double us = 0;
    if (run_row(b, s, it, it->runs++ % turns * it->copies, &us))
        bench_add(&it->us[ONE_CALL], us / it->copies);
    it->power[ONE_CALL] = bench_nvml_read(b->nvml);
}

/* End to end there is nothing but the kernel. */
static bool is_bare(const row *it)
{
    return it->kind == END_TO_END && it->plan && it->plan->record_count == it->copies;
}

static void free_times(row *it)
{
    for (int p = 0; p < PROTOCOLS; p++)
        bench_free(&it->us[p]);
}

static void measure(bench *b, const shape *s, row *rows, uint32_t count, uint32_t sets, char *why, size_t why_bytes)
{
    reference r = {0};
    double us = 0;
    if (!fill(b, s, sets, why, why_bytes) || (!b->tunes && !make_reference(b, s, 0, &r, why, why_bytes)))
        goto end;
    /* Once, uncounted: modules are loaded, codes are in the scratch of every set. */
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t first = 0; !rows[i].why[0] && rows[i].kind == END_TO_END && first < sets;
             first += rows[i].copies)
            run_row(b, s, &rows[i], first + rows[i].copies > sets ? sets - rows[i].copies : first, &us);
    for (uint32_t round = 0; round < b->rounds; round++)
        for (uint32_t i = 0; i < count; i++)
            if (!rows[i].why[0] && (!s->kernels_only || rows[i].kind == KERNEL) && !(b->tunes && is_bare(&rows[i])))
                run_for(b, s, &rows[i], sets);
    for (uint32_t round = 0; round < ONE_CALL_ROUNDS && !b->tunes; round++)
        for (uint32_t i = 0; i < count; i++)
            if (!rows[i].why[0])
                run_once(b, s, &rows[i], sets);
    for (uint32_t i = 0; i < count && !b->tunes; i++)
        if (!rows[i].why[0] && !(poison(b, s, sets, rows[i].why, sizeof rows[i].why) &&
                                 run_row(b, s, &rows[i], 0, &us) && check(b, s, &r, &rows[i])))
            free_times(&rows[i]);
end:
    free(r.o);
}

static const row *find_row(const row *rows, uint32_t count, contender kind, uint32_t precision)
{
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].kind == kind && (kind == CUDNN || rows[i].precision == precision) &&
            rows[i].us[SUSTAINED].count)
            return &rows[i];
    return NULL;
}

static double median_of(const row *it, protocol p)
{
    return it ? bench_median(&it->us[p]) : NAN;
}

/* AUTO's own time to the best of ours, end to end; NAN where there are not both. */
static double auto_to_best(const row *rows, uint32_t count, protocol p)
{
    double best = NAN;
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].kind == END_TO_END && rows[i].precision != TANDEM_PRECISION_AUTO)
            best = fmin(best, median_of(&rows[i], p));
    return median_of(find_row(rows, count, END_TO_END, TANDEM_PRECISION_AUTO), p) / best;
}

/* What the kernels are to reach, as a ratio to cuDNN's fp16; large shapes, 8b, kernel alone. */
static double target_ratio(const shape *s)
{
    if (s->n == 16384)
        return s->dim == 128 ? (s->causal ? 1.86 : 1.78) : (s->causal ? 1.38 : 1.58);
    if (s->n == 4096)
        return s->dim == 128 ? (s->causal ? 1.46 : 1.60) : (s->causal ? 1.27 : 1.36);
    return 0;
}

static void expect(bench *b, const shape *s, const row *rows, uint32_t count)
{
    char name[64];
    const row *cudnn = find_row(rows, count, CUDNN, 0), *kernel = find_row(rows, count, KERNEL, TANDEM_PRECISION_8B);
    const row *whole = find_row(rows, count, END_TO_END, TANDEM_PRECISION_8B);
    const row *f16 = find_row(rows, count, KERNEL, TANDEM_PRECISION_F16);
    shape_name(s, name);
    if (b->cpu)
        return;
    if (b->inline_too) {
        const row *rung = find_row(rows, count, INLINE, TANDEM_PRECISION_8B);
        bench_expect(&b->targets, median_of(kernel, SUSTAINED) / median_of(rung, SUSTAINED), true, 0.85,
                     "%s 8b inline, of the kernel's rate", name);
    }
    if (s->dim % 64) /* measured for that alone */
        return;
    if (!s->small && target_ratio(s) > 0)
        bench_expect(&b->targets, median_of(cudnn, SUSTAINED) / median_of(kernel, SUSTAINED), true,
                     target_ratio(s), "%s 8b kernel, times cuDNN fp16", name);
    if (!s->small && s->dim == 128 && (s->n == 16384 || s->n == 4096))
        bench_expect(&b->targets, median_of(kernel, SUSTAINED) / median_of(whole, SUSTAINED), true,
                     s->n == 16384 ? 0.93 : 0.80, "%s 8b end to end, of the kernel's rate", name);
    if (!s->small && (s->n == 16384 || s->n == 4096))
        bench_expect(&b->targets, median_of(cudnn, SUSTAINED) / median_of(f16, SUSTAINED), true, 0.95,
                     "%s f16 kernel, times cuDNN fp16", name);
    const row *automatic = find_row(rows, count, END_TO_END, TANDEM_PRECISION_AUTO);
    /* At one clock: in sustained turns the same plan differs by what its neighbours left it of the power. */
    bench_expect(&b->targets, auto_to_best(rows, count, ONE_CALL), false, 1.05, "%s auto end to end, to the best of ours", name);
    if (!s->small)
        bench_expect(&b->targets,
                     median_of(automatic, SUSTAINED) / median_of(cudnn, SUSTAINED), false, 1.05,
                     "%s auto end to end, to cuDNN fp16", name);
    else
        bench_expect(&b->targets,
                     median_of(automatic, SUSTAINED) / median_of(cudnn, SUSTAINED), false, 1,
                     "%s auto end to end, to cuDNN fp16", name);
    if (s->small && s->n >= 2048)
        bench_expect(&b->targets, median_of(cudnn, SUSTAINED) / median_of(whole, SUSTAINED), true, 1,
                     "%s 8b end to end, times cuDNN fp16", name);
}

/* "1815 MHz", or "1800-1965 MHz" where contenders had different clocks. */
static void print_clock(const row *rows, uint32_t count, protocol p)
{
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t mhz = (uint32_t)rows[i].power[p].sm_mhz;
        least = mhz && mhz < least ? mhz : least;
        most = mhz > most ? mhz : most;
    }
    if (most && least == most)
        printf(", %u MHz", (unsigned)most);
    else if (most)
        printf(", %u-%u MHz", (unsigned)least, (unsigned)most);
}

static void print_protocol(const shape *s, const row *rows, uint32_t count, protocol p)
{
    const double cudnn_us = median_of(find_row(rows, count, CUDNN, 0), p);
    printf("  %s", protocol_names[p]);
    print_clock(rows, count, p);
    for (uint32_t i = 0; i < count; i++) {
        const row *it = &rows[i];
        const double us = median_of(it, p);
        const bool end_to_end = it->kind == END_TO_END;
        printf(" | %s%s%s ", it->kind == CUDNN ? "" : precision_names[it->precision], it->kind == CUDNN ? "" : " ",
               end_to_end ? "e2e" : kind_names[it->kind]);
        if (!it->us[p].count)
            printf("-");
        else if (s->small)
            printf("%.1f us", us);
        else
            printf("%.*f TF", tflops(s, us) < 10 ? 3 : 0, tflops(s, us));
        if (it->us[p].count && it->kind != CUDNN && isfinite(cudnn_us))
            printf(" (%.2fx)", cudnn_us / us);
        if (it->us[p].count && it->precision == TANDEM_PRECISION_AUTO && end_to_end)
            printf(" = %s, %.2f of the best's time", precision_names[it->used], auto_to_best(rows, count, p));
    }
    printf("\n");
}

static void print_shape(const shape *s, const row *rows, uint32_t count)
{
    char name[64];
    printf("%s\n", shape_name(s, name));
    for (int p = 0; p < PROTOCOLS; p++)
        print_protocol(s, rows, count, (protocol)p);
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].why[0])
            printf("    %s %s: %s\n", rows[i].kind == CUDNN ? "" : precision_names[rows[i].precision],
                   kind_names[rows[i].kind], rows[i].why);
    fflush(stdout);
}

/* What a row took by one protocol: times, rates and the clock that it had. */
static json_t *protocol_json(const shape *s, const row *it, const row *cudnn, protocol p)
{
    const double us = median_of(it, p);
    return json_pack("{s:o, s:o, s:o, s:i, s:f}", "us", bench_json(&it->us[p]), "tflops", bench_number(tflops(s, us)),
                     "times_cudnn", bench_number(median_of(cudnn, p) / us), "sm_mhz", (int)it->power[p].sm_mhz, "watts",
                     it->power[p].milliwatts * 1e-3);
}

/* Its `us` and what belongs to that are SUSTAINED's, as in reports from before there were two protocols. */
static json_t *row_json(const shape *s, const row *it, const row *cudnn)
{
    const bool is_cudnn = it->kind == CUDNN;
    json_t *out = json_pack("{s:s, s:s, s:s}", "what", kind_names[it->kind], "precision",
                            is_cudnn ? "f16" : precision_names[it->precision], "used",
                            precision_names[is_cudnn ? (uint32_t)TANDEM_PRECISION_F16 : it->used]);
    json_t *sustained = protocol_json(s, it, cudnn, SUSTAINED);
    json_object_update(out, sustained);
    json_decref(sustained);
    json_object_set_new(out, "one_call", protocol_json(s, it, cudnn, ONE_CALL));
    json_object_set_new(out, "calls", json_integer(it->copies));
    json_object_set_new(out, "relative_l1", it->us[SUSTAINED].count ? bench_number(it->error) : json_null());
    json_object_set_new(out, "not_measured", it->why[0] ? json_string(it->why) : json_null());
    return out;
}

static json_t *shape_json(const shape *s, const row *rows, uint32_t count, uint32_t sets)
{
    json_t *list = json_array();
    const row *cudnn = find_row(rows, count, CUDNN, 0);
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(list, row_json(s, &rows[i], cudnn));
    return json_pack("{s:i, s:i, s:i, s:i, s:b, s:b, s:i, s:o, s:o, s:o}", "batch", (int)s->batch, "heads",
                     (int)s->heads, "n", (int)s->n, "d", (int)s->dim, "causal", (int)s->causal, "small", (int)s->small,
                     "sets", (int)sets, "auto_to_best", bench_number(auto_to_best(rows, count, SUSTAINED)),
                     "auto_to_best_one_call", bench_number(auto_to_best(rows, count, ONE_CALL)), "rows", list);
}

static uint32_t list_shapes(shape *out, const char *only, const char *ns, const char *dims, const char *causal,
                            bool quick, bool cpu)
{
    static const uint32_t lengths[] = {256, 512, 1024, 2048, 4096, 8192, 16384, 32768}, d[] = {64, 80, 96, 128},
                          heads[] = {4, 8, 16};
    uint32_t count = 0;
    for (int small = 0; small < 2; small++)
        for (size_t i = 0; i < sizeof d / sizeof *d; i++)
            for (int c = 0; c < 2; c++)
                for (size_t h = 0; h < (small ? 3u : 1u); h++)
                    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
                        const uint32_t n = lengths[l];
                        const bool in_table = d[i] % 64 ? !small && n == 4096
                                              : small   ? !c && n <= 4096 && (heads[h] < 16 || n >= 1024)
                                                        : n >= 1024 && n != 2048;
                        const bool in_quick = small ? h == 1 && n == 1024 : n == 4096;
                        if (!in_table || (quick && !ns && !in_quick) || !has_number(ns, n) ||
                            !has_number(dims, d[i]) || !has(causal, c ? "yes" : "no") ||
                            !has(only, small ? "small" : "large") || count == MOST_SHAPES)
                            continue;
                        /* Batch 4 and 32 heads would keep a CPU busy for minutes. */
                        out[count++] = (shape){.batch = small || cpu ? 1 : 4,
                                               .heads = small ? heads[h] : cpu ? 2 : 32,
                                               .n = n,
                                               .kv_heads = small ? heads[h] : cpu ? 2 : 32,
                                               .queries = n,
                                               .dim = d[i],
                                               .causal = c,
                                               .small = small};
                    }
    return count;
}

/* False, after a line that says it, if a length or width that was asked for is in no shape of the table. */
static bool all_taken(const shape *shapes, uint32_t count, const char *ns, const char *dims)
{
    const char *const lists[] = {ns, dims}, *const names[] = {"--n", "--dim"};
    for (int l = 0; l < 2; l++)
        for (const char *at = lists[l]; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
            bool taken = false;
            for (uint32_t i = 0; i < count && !taken; i++)
                taken = strtoul(at, NULL, 10) == (l ? shapes[i].dim : shapes[i].n);
            if (!taken)
                return tool_usage("bench attention", "%s %.*s: no shape of the table has it with the other options",
                                  names[l], (int)strcspn(at, ","), at), false;
        }
    if (!count)
        tool_usage("bench attention", "no shape of the table has --only, --causal and --quick together");
    return count != 0;
}

static bool open_cuda(bench *b, bool wants_cudnn, char *why, size_t why_bytes)
{
    const td_log quiet = {0};
    if (td_cu_device_open(NULL, &quiet, &b->device, why, why_bytes) != TANDEM_OK)
        return false;
    b->target = td_exec_target(td_cu_device_info(b->device), true);
    b->executor = "cu_graph";
    if (td_stream_create_graph(b->device, &quiet, &b->stream, why, why_bytes) != TANDEM_OK) {
        b->executor = "cu_stream";
        if (td_stream_create(b->device, &quiet, &b->stream, why, why_bytes) != TANDEM_OK)
            return false;
    }
    int l2 = 0;
    TD_CU(b->device, cuDeviceGetAttribute, &l2, L2_ATTRIBUTE, b->device->ordinal);
    b->l2_bytes = l2 > 0 ? (uint64_t)l2 : 64 << 20;
    b->cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (b->cuda) {
        b->memset_d32 = (int (*)(uint64_t, unsigned, size_t))dlsym(b->cuda, "cuMemsetD32_v2");
        b->copy = (int (*)(uint64_t, uint64_t, size_t))dlsym(b->cuda, "cuMemcpyDtoD_v2");
        b->synchronize = (int (*)(void))dlsym(b->cuda, "cuCtxSynchronize");
    }
    if (!b->memset_d32 || !b->copy || !b->synchronize) {
        td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                "libcuda.so.1 lacks cuMemsetD32, cuMemcpyDtoD or cuCtxSynchronize");
        return false;
    }
    b->nvml = bench_nvml_open(td_cu_device_info(b->device)->uuid);
    if (wants_cudnn)
        b->cudnn = bench_cudnn_open(b->device, b->no_cudnn, sizeof b->no_cudnn);
    else
        snprintf(b->no_cudnn, sizeof b->no_cudnn, "--no-cudnn");
    b->target.tuning = td_tuning_shipped(b->target.sm, td_cu_device_info(b->device)->name);
    return td_cu_mem_alloc(b->device, (uint64_t)BLOCK_VALUES * 2, &b->device_block, why, why_bytes) == TANDEM_OK &&
           td_cu_copy_to_device(b->device, b->device_block.address, b->block, (uint64_t)BLOCK_VALUES * 2) == TANDEM_OK;
}

static void make_block(bench *b)
{
    uint64_t state = 1;
    b->block = malloc((size_t)BLOCK_VALUES * 2);
    for (int i = 0; b->block && i < BLOCK_VALUES; i++)
        b->block[i] = td_to_f16((float)bench_normal(&state));
}

static void close_bench(bench *b)
{
    bench_cudnn_close(b->cudnn);
    bench_nvml_close(b->nvml);
    td_thread_pool_destroy(&b->pool);
    if (b->stream)
        td_stream_destroy(&b->stream, 2000000000);
    td_cu_mem *const mems[] = {&b->device_block, &b->tensors, &b->scratch};
    for (int i = 0; i < 3 && b->device; i++)
        if (mems[i]->kind)
            td_cu_mem_free(b->device, mems[i]);
    td_cu_device_close(&b->device);
    free(b->host_tensors);
    free(b->host_scratch);
    free(b->block);
}

/* The shapes that have been measured. missed: of the targets, once all are known; NULL while some shapes are left, as who ends
 * the bench early keeps those that it has. */
static int save(const bench *b, json_t *list, const uint32_t *missed)
{
    char driver[128];
    snprintf(driver, sizeof driver, "%s", bench_nvml_driver(b->nvml));
    json_t *report = bench_report("attention", b->cpu ? "CPU" : td_cu_device_info(b->device)->name, driver);
    json_object_set_new(report, "executor", json_string(b->executor));
    json_object_set_new(report, "auto_by", json_string(b->auto_by));
    json_object_set_new(report, "cudnn",
                        b->cudnn ? json_integer(bench_cudnn_version(b->cudnn)) : json_string(b->no_cudnn));
    json_object_set_new(report, "rounds", json_integer(b->rounds));
    json_object_set_new(report, "run_ms", json_real(1e-3 * b->run_us));
    json_object_set_new(report, "l2_bytes", json_integer((json_int_t)b->l2_bytes));
    json_object_set(report, "shapes", list);
    if (missed) {
        json_object_set_new(report, "targets", bench_targets_json(&b->targets));
        json_object_set_new(report, "missed", json_integer(*missed));
    }
    return bench_save(report, b->json);
}

static int run_all(bench *b, const shape *shapes, uint32_t count, const char *precisions)
{
    char why[400] = "";
    json_t *list = json_array();
    uint32_t failed = 0, measured = 0;
    for (uint32_t i = 0; i < count; i++) {
        row rows[MOST_ROWS] = {{0}};
        uint32_t sets = 0;
        why[0] = 0;
        uint32_t row_count = 0;
        if (b->cpu || td_cu_enter(b->device, why, sizeof why) == TANDEM_OK) {
            row_count = make_rows(b, &shapes[i], precisions, rows, &sets, why, sizeof why);
            if (row_count)
                measure(b, &shapes[i], rows, row_count, sets, why, sizeof why);
            if (!b->cpu)
                td_cu_leave(b->device);
        }
        if (why[0]) {
            char name[64];
            printf("%s | %s\n", shape_name(&shapes[i], name), why);
            failed++;
        }
        if (row_count && !why[0]) {
            print_shape(&shapes[i], rows, row_count);
            expect(b, &shapes[i], rows, row_count);
            json_array_append_new(list, shape_json(&shapes[i], rows, row_count, sets));
            if (b->json && save(b, list, NULL) != TOOL_OK)
                failed++;
        }
        for (uint32_t r = 0; r < row_count; r++) {
            failed += rows[r].why[0] != 0;
            measured += rows[r].us[SUSTAINED].count != 0;
            free_times(&rows[r]);
            td_plan_drop(&rows[r].plan);
        }
    }
    const uint32_t missed = bench_print_targets(&b->targets);
    const int saved = save(b, list, &missed);
    json_decref(list);
    if (failed)
        return tool_fail("bench attention", "%u measurements failed", (unsigned)failed);
    return saved ? saved : bench_status("bench attention", measured, missed, b->strict);
}

int bench_attention(int argc, char **argv)
{
    static const char *const backends[] = {"cuda", "cpu", NULL}, *const onlys[] = {"large", "small", NULL},
                      *const causals[] = {"yes", "no", "both", NULL},
                      *const modes[] = {"8b", "f16", "4b", "auto", "none", NULL},
                      *const lengths[] = {"256", "512", "1024", "2048", "4096", "8192", "16384", "32768", NULL},
                      *const widths[] = {"64", "80", "96", "128", NULL};
    const char *backend = "cuda", *only = NULL, *ns = NULL, *dims = NULL, *causal = "both", *precisions = "8b,f16,auto";
    const char *rounds = NULL, *run_ms = NULL, *tuning = NULL;
    bool no_cudnn = false;
    bench b = {0};
    const tool_option options[] = {{"--json", &b.json, NULL},        {"--backend", &backend, NULL},
                                   {"--only", &only, NULL},          {"--n", &ns, NULL},
                                   {"--dim", &dims, NULL},           {"--causal", &causal, NULL},
                                   {"--precision", &precisions, NULL}, {"--rounds", &rounds, NULL},
                                   {"--run-ms", &run_ms, NULL},      {"--no-cudnn", NULL, &no_cudnn},
                                   {"--tuning", &tuning, NULL},      {"--strict", NULL, &b.strict},
                                   {"--quick", NULL, &b.quick}};
    const int parsed = tool_parse("bench attention", argc, argv, options, sizeof options / sizeof *options);
    if (parsed != TOOL_OK)
        return parsed;
    uint64_t number = b.quick ? 3 : 5, run = b.quick ? 20 : 250;
    if (tool_word(backend, backends) < 0)
        return tool_usage("bench attention", "--backend \"%s\": must be cuda or cpu", backend);
    if (only && tool_word(only, onlys) < 0)
        return tool_usage("bench attention", "--only \"%s\": must be large or small", only);
    if (tool_word(causal, causals) < 0)
        return tool_usage("bench attention", "--causal \"%s\": must be yes, no or both", causal);
    if (tool_words("bench attention", "--precision", precisions, modes) != TOOL_OK ||
        (ns && tool_words("bench attention", "--n", ns, lengths) != TOOL_OK) ||
        (dims && tool_words("bench attention", "--dim", dims, widths) != TOOL_OK))
        return TOOL_USAGE;
    const bool cpu = !strcmp(backend, "cpu"), none = has(precisions, "none");
    if (none && strcmp(precisions, "none"))
        return tool_usage("bench attention", "--precision \"%s\": none goes with no other", precisions);
    if (none && (cpu || no_cudnn))
        return tool_usage("bench attention", "--precision none leaves cuDNN alone, and %s leaves that out",
                          cpu ? "--backend cpu" : "--no-cudnn");
    if (cpu && no_cudnn)
        return tool_usage("bench attention", "--no-cudnn does not go with --backend cpu: cuDNN needs a GPU");
    if (tuning && !has(precisions, "auto"))
        return tool_usage("bench attention", "--tuning is what auto goes by, and --precision %s is without it", precisions);
    if (rounds && !tool_number(rounds, 1, 1000, &number))
        return tool_usage("bench attention", "--rounds \"%s\": must be a number from 1 to 1000", rounds);
    if (run_ms && !tool_number(run_ms, 0, 60000, &run))
        return tool_usage("bench attention", "--run-ms \"%s\": must be a number from 0 to 60000", run_ms);
    b.rounds = (uint32_t)number;
    b.run_us = 1e3 * (double)run;
    b.cpu = cpu;
    shape shapes[MOST_SHAPES];
    const uint32_t count =
        list_shapes(shapes, only, ns, dims, strcmp(causal, "both") ? causal : NULL, b.quick, b.cpu);
    if (!all_taken(shapes, count, ns, dims))
        return TOOL_USAGE;
    char why[400] = "";
    if (b.json && !tool_can_write("--json", b.json, why, sizeof why))
        return tool_fail("bench attention", "%s", why);

    static td_tuning_table table;
    if (tuning && !tool_tuning(tuning, &table, why, sizeof why))
        return tool_fail("bench attention", "%s", why);

    make_block(&b);
    b.target = td_target_for_sm(0);
    b.executor = "cpu";
    int result;
    if (!b.block || (!b.cpu && !open_cuda(&b, !no_cudnn, why, sizeof why))) {
        result = tool_fail("bench attention", "%s", why[0] ? why : "out of memory");
    } else {
        b.inline_too = b.target.sm == 90;
        const char *device = b.cpu ? "CPU" : td_cu_device_info(b.device)->name;
        const bool fits = !tuning || td_tuning_fits(&table, b.target.sm, device, why, sizeof why);
        if (tuning && fits)
            b.target.tuning = &table;
        b.auto_by = !b.target.tuning ? "rule" : tuning ? "given" : "shipped";
        printf("%s, driver %s, %s, cuDNN %s%.0u, auto by the %s\n", device,
               bench_nvml_driver(b.nvml)[0] ? bench_nvml_driver(b.nvml) : "-", b.executor,
               b.cudnn ? "" : b.no_cudnn[0] ? b.no_cudnn : "-", (unsigned)bench_cudnn_version(b.cudnn),
               !b.target.tuning ? "rule" : tuning ? "table given" : "table shipped");
        result = fits ? run_all(&b, shapes, count, precisions)
                      : tool_fail("bench attention", "--tuning \"%s\": %s", tuning, why);
    }
    close_bench(&b);
    return result;
}

/* --- For `tandem tune` --- */

struct bench_tune {
    bench b;
};

bench_tune *bench_tune_open(bool cpu, double run_us, char *why, size_t why_bytes)
{
    bench_tune *t = calloc(1, sizeof *t);
    if (!t) {
        td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "out of memory");
        return NULL;
    }
    t->b.cpu = cpu;
    t->b.rounds = 1;
    t->b.run_us = run_us;
    t->b.tunes = true;
    t->b.target = td_target_for_sm(0);
    make_block(&t->b);
    if (!t->b.block || (!cpu && !open_cuda(&t->b, false, why, why_bytes))) {
        bench_tune_close(t);
        return NULL;
    }
    return t;
}

void bench_tune_device(const bench_tune *t, td_tuning_table *out)
{
    const td_cu_info *info = t->b.cpu ? NULL : td_cu_device_info(t->b.device);
    snprintf(out->device, sizeof out->device, "%.*s", TD_TUNING_DEVICE - 1, info ? info->name : "CPU");
    out->sm = info ? info->sm : 0;
    out->multiprocessors = info ? info->multiprocessors : 1;
}

static shape shape_to_tune(const bench_tune_shape *of)
{
    const uint64_t rows = of->queries > of->keys ? of->queries : of->keys;
    return (shape){.batch = of->batch,
                   .heads = of->heads,
                   .n = of->keys,
                   .dim = of->head_dim,
                   .kv_heads = of->kv_heads,
                   .queries = of->queries,
                   .causal = of->causal,
                   .small = of->batch * of->heads * rows <= 1 << 16,
                   .kernels_only = of->kernels_only};
}

uint32_t bench_tune_auto(const bench_tune *t, const bench_tune_shape *of, const td_tuning_table *table)
{
    const shape s = shape_to_tune(of);
    const tandem_attention op = op_of(&s, TANDEM_PRECISION_AUTO);
    td_target target = t->b.target;
    if (table)
        target.tuning = table;
    return td_attention_precision(&op, &target);
}

void bench_tune_close(bench_tune *t)
{
    if (t)
        close_bench(&t->b);
    free(t);
}

bool bench_tune_run(bench_tune *t, const bench_tune_shape *of, const char *precisions, bench_times *out, char *why,
                    size_t why_bytes)
{
    bench *b = &t->b;
    const shape s = shape_to_tune(of);
    row rows[MOST_ROWS] = {{0}};
    uint32_t sets = 0;
    *out = (bench_times){0};
    if (!b->cpu && td_cu_enter(b->device, why, why_bytes) != TANDEM_OK)
        return false;
    const uint32_t count = make_rows(b, &s, precisions, rows, &sets, why, why_bytes);
    if (count)
        measure(b, &s, rows, count, sets, why, why_bytes);
    if (!b->cpu)
        td_cu_leave(b->device);
    for (uint32_t i = 0; i < count; i++) {
        const int cost = rows[i].precision == TANDEM_PRECISION_F16  ? TD_TUNING_F16
                         : rows[i].precision == TANDEM_PRECISION_8B ? TD_TUNING_8B
                                                                    : TD_TUNING_4B;
        if (rows[i].us[SUSTAINED].count)
            (rows[i].kind == KERNEL ? out->kernel : out->whole)[cost] = median_of(&rows[i], SUSTAINED);
        if (rows[i].why[0] && !why[0])
            td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "%s: %s", precision_names[rows[i].precision], rows[i].why);
        free_times(&rows[i]);
        td_plan_drop(&rows[i].plan);
    }
    return count && !why[0];
}
