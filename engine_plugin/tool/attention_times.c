/* How long attention takes: tensors, plans of several calls, turns, checks. See attention_times.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/attention_times.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/samples.h"
#include "interop/cu/driver.h"
#include "kernels/builder.h"
#include "kernels/cpu/cpu.h"
#include "tandem/tandem.h"

enum {
    MOST_RECORDS = 24, /* of all copies */
    CHECKED_ROWS = 4,
    ONE_CALL_ROUNDS = 11,
    BLOCK_VALUES = 1 << 22,
    L2_ATTRIBUTE = 38,
    LIMIT_S = 20,
    LEAST_ENERGY_US = 100000, /* of a turn: NVML's counter goes on some ten times a second */
    INLINE_SHARED_BYTES = 47 * 1024 /* of a block in a command buffer */
};
#define POISON 0xffffffffu /* two NaNs of fp16 */

/* Of a head of a tensor: as many for all. */
static uint32_t rows_of(const times_shape *s)
{
    return s->queries > s->n ? s->queries : s->n;
}

static uint64_t tensor_bytes(const times_shape *s)
{
    return td_align_up((uint64_t)s->batch * s->heads * rows_of(s) * s->dim * 2, 256);
}

static bool cuda_ok(times *t, int result, const char *what, char *why, size_t why_bytes)
{
    return td_cu_check(t->device, result, why, why_bytes, "%s", what) == TANDEM_OK;
}

uint64_t times_tensor(const times *t, const times_shape *s, uint32_t set, uint32_t i)
{
    const uint64_t base = t->cpu ? (uint64_t)(uintptr_t)t->host_tensors : t->tensors.address;
    return base + (4 * (uint64_t)set + i) * tensor_bytes(s);
}

/* The block, over and over, beginning elsewhere for every tensor. */
static bool fill(times *t, const times_shape *s, uint32_t sets, char *why, size_t why_bytes)
{
    const uint64_t whole = (uint64_t)BLOCK_VALUES * 2, bytes = tensor_bytes(s);
    bool ok = true;
    for (uint32_t set = 0; set < sets; set++)
        for (uint32_t i = 0; i < 3 && ok; i++) {
            uint64_t from = (set * 3 + i) * 1000064ull % (whole / 2);
            for (uint64_t done = 0; done < bytes && ok;) {
                const uint64_t now = bytes - done < whole - from ? bytes - done : whole - from;
                const uint64_t to = times_tensor(t, s, set, i) + done;
                if (t->cpu)
                    memcpy((void *)(uintptr_t)to, (char *)t->block + from, now);
                else
                    ok = cuda_ok(t, t->copy(to, t->device_block.address + from, now), "cuMemcpyDtoD", why, why_bytes);
                done += now;
                from = 64 * (done / whole % 1024);
            }
        }
    return ok && (t->cpu || cuda_ok(t, t->synchronize(), "cuCtxSynchronize", why, why_bytes));
}

static bool poison(times *t, const times_shape *s, uint32_t sets, char *why, size_t why_bytes)
{
    bool ok = true;
    for (uint32_t set = 0; set < sets && ok; set++) {
        const uint64_t at = times_tensor(t, s, set, 3);
        if (t->cpu)
            memset((void *)(uintptr_t)at, 0xff, tensor_bytes(s));
        else
            ok = cuda_ok(t, t->memset_d32(at, POISON, tensor_bytes(s) / 4), "cuMemsetD32", why, why_bytes);
    }
    return ok && (t->cpu || cuda_ok(t, t->synchronize(), "cuCtxSynchronize", why, why_bytes));
}

static bool read_back(times *t, void *to, uint64_t from, uint64_t bytes)
{
    if (t->cpu)
        memcpy(to, (void *)(uintptr_t)from, bytes);
    return t->cpu || td_cu_copy_to_host(t->device, to, from, bytes) == TANDEM_OK;
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
static bool make_reference(times *t, const times_shape *s, uint32_t set, reference *r, char *why, size_t why_bytes)
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
        ok = read_back(t, q, times_tensor(t, s, set, 0) + r->bh[i] * head_bytes + r->at[i] * row_bytes, row_bytes) &&
             read_back(t, k, times_tensor(t, s, set, 1) + r->bh[i] * head_bytes, head_bytes) &&
             read_back(t, v, times_tensor(t, s, set, 2) + r->bh[i] * head_bytes, head_bytes);
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
static bool check(times *t, const times_shape *s, const reference *r, times_row *it)
{
    enum { PIECE = 1 << 20, PIECES = 64 };
    const size_t row_bytes = s->dim * 2u, head_bytes = row_bytes * s->n;
    const uint64_t bytes = (uint64_t)s->batch * s->heads * head_bytes, o = times_tensor(t, s, r->set, 3);
    const uint64_t step = bytes > (uint64_t)PIECE * PIECES ? bytes / PIECES & ~255ull : PIECE;
    const double limit = it->used == TANDEM_PRECISION_F16  ? 5e-3
                         : it->used == TANDEM_PRECISION_8B ? 0.15
                                                           : 0.6;
    uint16_t *piece = malloc(PIECE);
    double difference = 0, size = 0;
    bool ok = piece != NULL;
    for (uint64_t at = 0; at < bytes && ok; at += step) {
        const uint64_t now = bytes - at < PIECE ? bytes - at : PIECE;
        ok = read_back(t, piece, o + at, now);
        for (uint64_t i = 0; i < now / 2 && ok; i++)
            if ((piece[i] & 0x7fffu) > 0x7c00u) {
                td_fail(it->why, sizeof it->why, TANDEM_ERROR_DEVICE, "element %llu of the output was not written",
                        (unsigned long long)(at / 2 + i));
                ok = false;
            }
    }
    for (uint32_t i = 0; i < CHECKED_ROWS && ok; i++) {
        ok = read_back(t, piece, o + r->bh[i] * head_bytes + r->at[i] * row_bytes, row_bytes);
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

static bool run_plan(times *t, const td_plan *plan, const uint64_t *views, uint64_t scratch, uint32_t slot, double *us,
                     char *why, size_t why_bytes)
{
    if (t->cpu) {
        if (!t->pool)
            t->pool = td_thread_pool_create(tool_cores());
        td_preemptible none = {0};
        const uint64_t begin = td_now_ns();
        const tandem_status status = td_exec_cpu_run_preemptibly(plan, views, scratch, t->pool, NULL, &none);
        *us = 1e-3 * (double)(td_now_ns() - begin);
        if (status != TANDEM_OK)
            td_fail(why, why_bytes, status, "%s", tandem_status_text(status));
        return status == TANDEM_OK;
    }
    const td_stream_submit submit = {.plan = plan, .views = views, .scratch = scratch, .slot = slot, .label = "bench"};
    uint64_t sequence = 0, begin_ns = 0, end_ns = 0;
    bool signalled;
    if (td_stream_enqueue(t->stream, &submit, &sequence, &signalled, why, why_bytes) != TANDEM_OK)
        return false;
    const uint64_t begin = td_now_ns();
    while (td_stream_completed(t->stream) < sequence) {
        if (td_now_ns() - begin > LIMIT_S * 1000000000ull || td_stream_status(t->stream, why, why_bytes) != TANDEM_OK) {
            if (!why[0])
                td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "not finished after %d s", LIMIT_S);
            return false;
        }
        bench_sleep_ns(20000);
    }
    if (!td_stream_times(t->stream, sequence, &begin_ns, &end_ns)) {
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

tandem_attention times_op(const times_shape *s, uint32_t precision)
{
    const uint32_t usual = precision == TANDEM_PRECISION_4B ? TANDEM_SMOOTH_Q | TANDEM_SMOOTH_K : TANDEM_SMOOTH_K;
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
                              .precision = precision,
                              .smooth = s->smooth_v ? usual | TANDEM_SMOOTH_V : TANDEM_SMOOTH_DEFAULT};
}

static bool make_plan(times *t, const times_shape *s, times_kind kind, uint32_t precision, td_plan *plan, char *why,
                      size_t why_bytes)
{
    const tandem_attention op = times_op(s, precision);
    td_attention_layout layout; /* asked for so that all rows have their scratch at the same offsets */
    td_target target = t->target;
    if (kind == TIMES_INLINE) /* the prologue, and with it the scratch, stays that of the others */
        target.shared_bytes = INLINE_SHARED_BYTES;
    return td_attention_check(&op, why, why_bytes) == TANDEM_OK &&
           td_plan_attention(&op, &target, plan, &layout, why, why_bytes) == TANDEM_OK;
}

static bool reserve(times *t, td_cu_mem *mem, void **host, uint64_t bytes, char *why, size_t why_bytes)
{
    if (t->cpu) {
        free(*host);
        *host = aligned_alloc(256, td_align_up(bytes, 256));
        if (!*host)
            td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no %llu bytes", (unsigned long long)bytes);
        return *host != NULL;
    }
    if (mem->bytes >= bytes)
        return true;
    if (mem->kind)
        td_cu_mem_free(t->device, mem);
    return td_cu_mem_alloc(t->device, bytes, mem, why, why_bytes) == TANDEM_OK;
}

/* Calls on the sets from `first` on; a peer's are on all of them. */
static bool run_row(times *t, const times_shape *s, times_row *it, uint32_t first, double *us)
{
    if (it->kind == TIMES_PEER)
        return it->peer(it->user, us, it->why, sizeof it->why);
    uint64_t views[TD_VIEW_COUNT] = {0};
    for (uint32_t i = 0; i < 4; i++)
        views[i] = times_tensor(t, s, first, i);
    return run_plan(t, it->plan, views, it->scratch + first * it->scratch_bytes, it->slot, us, it->why, sizeof it->why);
}

uint32_t times_make_rows(times *t, const times_shape *s, const char *precisions, times_row *rows, uint32_t *sets, char *why,
                          size_t why_bytes)
{
    static const uint32_t order[] = {TANDEM_PRECISION_8B, TANDEM_PRECISION_F16, TANDEM_PRECISION_4B,
                                     TANDEM_PRECISION_AUTO};
    const uint64_t set_bytes = 4 * tensor_bytes(s);
    uint32_t count = 0;
    uint64_t scratch_bytes = 0;
    td_plan made = {0}, *plan = &made;
    *sets = t->cpu ? 1 : (uint32_t)(2 * t->l2_bytes / set_bytes) + 1;
    *sets = *sets > TIMES_SETS ? TIMES_SETS : *sets;
    if (s->small && !t->cpu && *sets < TIMES_COPIES)
        *sets = TIMES_COPIES;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        if (!tool_has(precisions, tool_precisions[order[i]]))
            continue;
        for (int kind = order[i] == TANDEM_PRECISION_AUTO ? TIMES_END_TO_END : TIMES_KERNEL; kind <= TIMES_END_TO_END; kind++) {
            times_row *it = &rows[count];
            if (kind == TIMES_INLINE && (order[i] != TANDEM_PRECISION_8B || !t->inline_too))
                continue;
            *it = (times_row){.kind = (times_kind)kind, .precision = order[i], .slot = count};
            td_plan *all = td_plan_create();
            it->plan = all;
            count++;
            if (!it->plan || !make_plan(t, s, it->kind, order[i], plan, it->why, sizeof it->why))
                continue;
            it->used = plan->precision;
            uint32_t part = 0;
            for (uint32_t r = 0; r < plan->record_count; r++)
                part += kind == TIMES_END_TO_END || writes_output(&plan->records[r]);
            it->copies = !s->small || t->cpu || !part ? 1 : MOST_RECORDS / part;
            it->copies = it->copies > TIMES_COPIES ? TIMES_COPIES : it->copies;
            it->scratch_bytes = td_align_up(plan->scratch_bytes + 1, 256);
            all->scratch_bytes = plan->scratch_bytes + (it->copies - 1) * it->scratch_bytes;
            for (uint32_t copy = 0; copy < it->copies; copy++)
                if (!append(all, plan, kind == TIMES_END_TO_END, true, copy * set_bytes, copy * it->scratch_bytes))
                    td_fail(it->why, sizeof it->why, TANDEM_ERROR_NOMEM, "no memory for a plan");
            td_plan_barriers(all);
            it->scratch = scratch_bytes;
            if (kind == TIMES_END_TO_END)
                scratch_bytes += *sets * it->scratch_bytes;
        }
    }
    td_plan_free(plan);
    if (!reserve(t, &t->tensors, &t->host_tensors, *sets * set_bytes, why, why_bytes) ||
        !reserve(t, &t->scratch, &t->host_scratch, scratch_bytes + 256, why, why_bytes)) {
        for (uint32_t i = 0; i < count; i++)
            td_plan_drop(&rows[i].plan);
        return 0;
    }
    for (uint32_t i = 0; i < count; i++)
        rows[i].scratch += t->cpu ? (uint64_t)(uintptr_t)t->host_scratch : t->scratch.address;
    return count;
}

/* Of a turn so far, whether the last of its pieces took as long as the one before, so that the clock is what power allows. */
static bool is_settled(const bench_series *us, const size_t ends[], uint32_t pieces)
{
    const double noise = 0.005;
    if (pieces < 3)
        return false;
    const bench_series last = {us->values + ends[pieces - 2], ends[pieces - 1] - ends[pieces - 2], 0},
                       before = {us->values + ends[pieces - 3], ends[pieces - 2] - ends[pieces - 3], 0};
    return fabs(bench_median(&last) / bench_median(&before) - 1) < noise;
}

/* Calls for at most turn_us, in pieces, until these have settled. Of what was spent the first half does not count, nor what was measured
 * before. */
static void run_until_settled(times *t, const times_shape *s, times_row *it, uint32_t turns, double turn_us)
{
    enum { PIECES = 8 };
    bench_series all = {0};
    size_t ends[PIECES + 1] = {0};
    uint32_t pieces = 0;
    double spent = 0, us = 0, dropped = 0;
    while (pieces == 0 || (pieces <= PIECES && spent < turn_us && !is_settled(&all, ends, pieces))) {
        const double until = turn_us * (pieces + 1) / PIECES;
        do {
            if (!run_row(t, s, it, it->runs++ % turns * it->copies, &us)) {
                bench_free(&all);
                return;
            }
            spent += us;
            bench_add(&all, us / it->copies);
        } while (spent < until);
        ends[pieces++] = all.count;
    }
    t->turns_us += spent;
    size_t first = 0;
    while (first + 1 < all.count && (dropped += all.values[first] * it->copies) <= spent / 2)
        first++;
    for (size_t i = first; i < all.count; i++)
        bench_add(&it->us[TIMES_SUSTAINED], all.values[i]);
    bench_free(&all);
}

/* One times_kind's turn: calls on set after set. */
static void run_for(times *t, const times_shape *s, times_row *it, uint32_t sets)
{
    const uint32_t turns = it->kind == TIMES_PEER ? 1 : sets / it->copies;
    const double turn_us = (s->small || s->kernels_only ? 0.1 : 1) * t->run_us;
    double spent = 0, us = 0, calls = 0;
    uint64_t begin_mj = 0, end_mj = 0;
    if (!poison(t, s, sets, it->why, sizeof it->why))
        return;
    if (t->tunes) {
        run_until_settled(t, s, it, turns, turn_us);
        return;
    }
    const bool counts = turn_us >= LEAST_ENERGY_US && bench_nvml_energy(t->nvml, &begin_mj);
    do {
        if (!run_row(t, s, it, it->runs++ % turns * it->copies, &us))
            return;
        spent += us;
        calls += it->copies;
        bench_add(&it->us[TIMES_SUSTAINED], us / it->copies);
    } while (spent < turn_us);
    it->power[TIMES_SUSTAINED] = bench_nvml_read(t->nvml);
    if (counts && bench_nvml_energy(t->nvml, &end_mj) && end_mj >= begin_mj) {
        it->joules += 1e-3 * (double)(end_mj - begin_mj);
        it->energy_calls += calls;
    }
}

/* One times_kind's turn: a single call (where a shape is small, a single submit). */
static void run_once(times *t, const times_shape *s, times_row *it, uint32_t sets)
{
    const uint32_t turns = it->kind == TIMES_PEER ? 1 : sets / it->copies;
    double us = 0;
    if (run_row(t, s, it, it->runs++ % turns * it->copies, &us))
        bench_add(&it->us[TIMES_ONE_CALL], us / it->copies);
    it->power[TIMES_ONE_CALL] = bench_nvml_read(t->nvml);
}

/* End to end there is nothing but the kernel. */
static bool is_bare(const times_row *it)
{
    return it->kind == TIMES_END_TO_END && it->plan && it->plan->record_count == it->copies;
}

static void free_series(times_row *it)
{
    for (int p = 0; p < TIMES_PROTOCOLS; p++)
        bench_free(&it->us[p]);
}

void times_measure(times *t, const times_shape *s, times_row *rows, uint32_t count, uint32_t sets, char *why,
                   size_t why_bytes)
{
    reference r = {0};
    double us = 0;
    if (!fill(t, s, sets, why, why_bytes) || (!t->tunes && !make_reference(t, s, 0, &r, why, why_bytes)))
        goto end;
    /* Once, uncounted: modules are loaded, codes are in the scratch of every set. */
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t first = 0; !rows[i].why[0] && rows[i].kind == TIMES_END_TO_END && first < sets;
             first += rows[i].copies)
            run_row(t, s, &rows[i], first + rows[i].copies > sets ? sets - rows[i].copies : first, &us);
    for (uint32_t round = 0; round < t->rounds; round++)
        for (uint32_t i = 0; i < count; i++)
            if (!rows[i].why[0] && (!s->kernels_only || rows[i].kind == TIMES_KERNEL) && !(t->tunes && is_bare(&rows[i])))
                run_for(t, s, &rows[i], sets);
    for (uint32_t round = 0; round < ONE_CALL_ROUNDS && !t->tunes; round++)
        for (uint32_t i = 0; i < count; i++)
            if (!rows[i].why[0])
                run_once(t, s, &rows[i], sets);
    for (uint32_t i = 0; i < count && !t->tunes; i++)
        if (!rows[i].why[0] && !(poison(t, s, sets, rows[i].why, sizeof rows[i].why) &&
                                 run_row(t, s, &rows[i], 0, &us) && check(t, s, &r, &rows[i])))
            free_series(&rows[i]);
end:
    free(r.o);
}

double times_joules(const times_row *it)
{
    return it && it->energy_calls > 0 && it->joules > 0 ? it->joules / it->energy_calls : NAN;
}

double times_median(const times_row *it, times_protocol p)
{
    return it ? bench_median(&it->us[p]) : NAN;
}

void times_free_rows(times_row *rows, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        free_series(&rows[i]);
        td_plan_drop(&rows[i].plan);
    }
}

static bool open_cuda(times *t, char *why, size_t why_bytes)
{
    const td_log quiet = {0};
    if (td_cu_device_open(NULL, &quiet, &t->device, why, why_bytes) != TANDEM_OK)
        return false;
    t->target = td_exec_target(td_cu_device_info(t->device), true);
    t->executor = "cu_graph";
    if (td_stream_create_graph(t->device, &quiet, &t->stream, why, why_bytes) != TANDEM_OK) {
        t->executor = "cu_stream";
        if (td_stream_create(t->device, &quiet, &t->stream, why, why_bytes) != TANDEM_OK)
            return false;
    }
    int l2 = 0;
    TD_CU(t->device, cuDeviceGetAttribute, &l2, L2_ATTRIBUTE, t->device->ordinal);
    t->l2_bytes = l2 > 0 ? (uint64_t)l2 : 64 << 20;
    t->cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (t->cuda) {
        t->memset_d32 = (int (*)(uint64_t, unsigned, size_t))dlsym(t->cuda, "cuMemsetD32_v2");
        t->copy = (int (*)(uint64_t, uint64_t, size_t))dlsym(t->cuda, "cuMemcpyDtoD_v2");
        t->synchronize = (int (*)(void))dlsym(t->cuda, "cuCtxSynchronize");
    }
    if (!t->memset_d32 || !t->copy || !t->synchronize) {
        td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                "libcuda.so.1 lacks cuMemsetD32, cuMemcpyDtoD or cuCtxSynchronize");
        return false;
    }
    t->nvml = bench_nvml_open(td_cu_device_info(t->device)->uuid);
    t->target.tuning = td_tuning_shipped(t->target.sm, td_cu_device_info(t->device)->name);
    return td_cu_mem_alloc(t->device, (uint64_t)BLOCK_VALUES * 2, &t->device_block, why, why_bytes) == TANDEM_OK &&
           td_cu_copy_to_device(t->device, t->device_block.address, t->block, (uint64_t)BLOCK_VALUES * 2) == TANDEM_OK;
}

static void make_block(times *t)
{
    uint64_t state = 1;
    t->block = malloc((size_t)BLOCK_VALUES * 2);
    for (int i = 0; t->block && i < BLOCK_VALUES; i++)
        t->block[i] = td_to_f16((float)bench_normal(&state));
}

bool times_open(times *t, char *why, size_t why_bytes)
{
    make_block(t);
    t->target = td_target_for_sm(0);
    t->executor = "cpu";
    if (t->block)
        return t->cpu || open_cuda(t, why, why_bytes);
    td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "out of memory");
    return false;
}

void times_close(times *t)
{
    bench_nvml_close(t->nvml);
    td_thread_pool_destroy(&t->pool);
    if (t->stream)
        td_stream_destroy(&t->stream, 2000000000);
    td_cu_mem *const mems[] = {&t->device_block, &t->tensors, &t->scratch};
    for (int i = 0; i < 3 && t->device; i++)
        if (mems[i]->kind)
            td_cu_mem_free(t->device, mems[i]);
    td_cu_device_close(&t->device);
    free(t->host_tensors);
    free(t->host_scratch);
    free(t->block);
}
