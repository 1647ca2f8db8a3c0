/* Plans of every legal shape, the largest too, for GPUs of every size; and what becomes of a plan that has no room.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/attention/attention.h"
#include "kernels/attention/params.h"
#include "kernels/attention/tuning.h"
#include "kernels/builder.h"
#include "kernels/plan_cache.h"
#include "kernels/target.h"
#include "tests/kernels/attention_util.h"

static double random_part(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(n * random_part(state));
}

/* --- What does not fit --- */

static td_plan plan;

static td_builder new_builder(void)
{
    const td_target target = td_target_for_sm(90);

    return td_build_begin(&plan, &target);
}

static void must_not_end(td_builder *at, tandem_status expected, const char *because)
{
    char why[200] = "";

    assert_int_equal(td_build_end(at, why, sizeof why), expected);
    if (!strstr(why, because))
        fail_msg("\"%s\" does not say \"%s\"", why, because);
    assert_int_equal(td_build_end(at, NULL, 0), expected);
}

/* As many records, pointers and ranges as anybody asks for; what they were when they were added they are in the end. */
static void test_any_number(void **state)
{
    enum { RECORDS = 3000, MANY = 200 };
    static const td_kernel kernel = {.name = "a_kernel", .entry = "a_kernel"};
    static unsigned char params[TD_PARAM_BYTES];
    td_builder at = new_builder();
    td_plan copy = {0};

    (void)state;
    at.keeps_scratch = true;
    for (uint32_t i = 0; i < RECORDS; i++) {
        const uint32_t bytes = 64 + i % 63 * 64, many = i % 100 ? i % 7 : MANY;

        memset(params, (int)i % 255 + 1, sizeof params);
        td_record *record = td_build_record(&at, &kernel, i + 1, params, bytes);
        for (uint32_t j = 0; j < many; j++) {
            td_build_pointer(&at, record, j % 8 * 8, TD_BASE_VIEW, j % TD_MAX_VIEWS, i + j);
            for (int access = TD_READ; access <= TD_WRITE; access++)
                td_build_range(&at, record, access, (td_range){TD_BASE_VIEW, j % TD_MAX_VIEWS, i, i + j + 1});
        }
    }
    assert_int_equal(td_build_end(&at, NULL, 0), TANDEM_OK);
    assert_true(td_plan_copy(&copy, &plan));
    for (int of = 0; of < 2; of++) {
        const td_plan *it = of ? &copy : &plan;

        if (of)
            td_plan_free(&plan); /* the copy has memory of its own */
        assert_int_equal(it->record_count, RECORDS);
        assert_int_equal(td_plan_check(it, NULL, 0), TANDEM_OK);
        for (uint32_t i = 0; i < RECORDS; i++) {
            const td_record *r = &it->records[i];
            const uint32_t many = i % 100 ? i % 7 : MANY;

            assert_int_equal(r->grid[0], i + 1);
            assert_int_equal(r->param_bytes, 64 + i % 63 * 64);
            assert_int_equal((uintptr_t)r->params % TD_PARAM_ALIGN, 0);
            assert_true(r->params[0] == i % 255 + 1 && r->params[r->param_bytes - 1] == i % 255 + 1);
            assert_true(r->reloc_count == many + 1 && r->read_count == many && r->write_count == many);
            for (uint32_t j = 0; j < many; j++) {
                assert_true(r->relocs[j + 1].offset == j % 8 * 8 && r->relocs[j + 1].addend == i + j);
                assert_true(r->reads[j].begin_bytes == i && r->reads[j].end_bytes == i + j + 1);
                assert_memory_equal(&r->reads[j], &r->writes[j], sizeof *r->reads);
            }
        }
    }
    td_plan_free(&copy);
    assert_true(copy.record_count == 0 && !copy.records && !copy.memory.blocks);
}

static void test_room(void **state)
{
    static const td_kernel kernel = {.name = "a_kernel", .entry = "a_kernel"};
    static const unsigned char params[2 * TD_PARAM_BYTES] = {0};
    td_builder at = new_builder();
    td_record *record;

    (void)state;
    record = td_build_record(&at, &kernel, 1, params, TD_PARAM_BYTES);
    assert_int_equal(td_build_end(&at, NULL, 0), TANDEM_OK);
    assert_int_equal(record->relocs[0].base, TD_BASE_CONTROL);
    record = td_build_record(&at, &kernel, 1, params, TD_PARAM_BYTES + 1);
    td_build_pointer(&at, record, 0, TD_BASE_VIEW, 0, 0); /* which is nowhere */
    td_build_range(&at, record, TD_WRITE, (td_range){TD_BASE_VIEW, 0, 0, 1});
    assert_int_equal(plan.record_count, 1);
    must_not_end(&at, TANDEM_ERROR_UNSUPPORTED, "the kernel a_kernel has more than 4096 bytes of parameters");

    at = new_builder(); /* a pointer behind the parameters */
    record = td_build_record(&at, &kernel, 1, params, 64);
    td_build_pointer(&at, record, 56, TD_BASE_SCRATCH, 0, 0);
    assert_int_equal(td_build_end(&at, NULL, 0), TANDEM_OK);
    td_build_pointer(&at, record, 64, TD_BASE_SCRATCH, 0, 0);
    assert_int_equal(record->reloc_count, 2);
    must_not_end(&at, TANDEM_ERROR_UNSUPPORTED, "the kernel a_kernel");

    at = new_builder(); /* a pointer into a view that nobody gives */
    record = td_build_record(&at, &kernel, 1, params, 64);
    td_build_pointer(&at, record, 8, TD_BASE_VIEW, TD_MAX_VIEWS, 0);
    assert_int_equal(td_build_end(&at, NULL, 0), TANDEM_OK);
    assert_int_equal(td_plan_check(&plan, NULL, 0), TANDEM_ERROR_UNSUPPORTED);
    plan.view_count = TD_MAX_VIEWS + 1;
    assert_int_equal(td_plan_check(&plan, NULL, 0), TANDEM_OK);

    at = new_builder();
    td_build_record(&at, &kernel, TD_MOST_BLOCKS, params, 64);
    assert_int_equal(td_build_end(&at, NULL, 0), TANDEM_OK);
    td_build_record(&at, &kernel, (1ull << 32) + 1, params, 64);
    must_not_end(&at, TANDEM_ERROR_ARG, "more than 2147483647 blocks");

    at = new_builder();
    td_build_take(&at, true, (unsigned __int128)1 << 62);
    assert_int_equal(td_build_end(&at, NULL, 0), TANDEM_OK);
    td_build_take(&at, true, (unsigned __int128)1 << 62);
    must_not_end(&at, TANDEM_ERROR_ARG, "more than 2^63 bytes of scratch");
}

/* A place that is free from a record on is not taken by the next one, if that may start before the record is over and writes
 * at once; where others start early in between, not by what follows them either. */
static void test_early_writes(void **state)
{
    static const td_kernel kernels[2] = {{.name = "waits"}, {.name = "hurries", .writes_early = true}};
    const td_target target = td_target_for_sm(90);

    (void)state;
    for (int way = 0; way < 8; way++) { /* whether it may start early; whether it writes at once; whether one is between */
        td_builder at = td_build_begin(&plan, &target);
        const td_place old = td_build_take(&at, true, 1000), link = td_build_take(&at, true, 1000),
                       new = td_build_take(&at, true, 1000);
        td_record *r = td_build_record(&at, &kernels[0], 1, (uint64_t[8]){0}, 64);
        td_build_scratch(&at, r, TD_WRITE, 8, old);
        r = td_build_record(&at, &kernels[0], 1, (uint64_t[8]){0}, 64);
        td_build_scratch(&at, r, TD_READ, 8, old);
        td_build_scratch(&at, r, TD_WRITE, 16, link);
        if (way & 4) {
            r = td_build_record(&at, &kernels[0], 1, (uint64_t[8]){0}, 64);
            r->flags = TD_RECORD_PDL;
            td_build_scratch(&at, r, TD_READ, 8, link);
        }
        r = td_build_record(&at, &kernels[way >> 1 & 1], 1, (uint64_t[8]){0}, 64);
        r->flags = way & 1 ? TD_RECORD_PDL : 0;
        td_build_scratch(&at, r, TD_READ, 8, link);
        td_build_scratch(&at, r, TD_WRITE, 16, new);
        assert_int_equal(td_build_end(&at, NULL, 0), TANDEM_OK);
        assert_int_equal(plan.scratch_bytes, (way & 3) == 3 ? 3 * 1024 : 2 * 1024);
    }
}

/* --- The largest shapes --- */

typedef unsigned __int128 wide;

static tandem_view dense_view(uint32_t dtype, uint32_t heads, uint32_t rows, uint32_t dim)
{
    const wide most = INT64_MAX, head = (wide)rows * dim, batch = head * heads;

    return (tandem_view){.dtype = dtype,
                         .stride_row = dim,
                         .stride_head = (int64_t)(head < most ? head : most),
                         .stride_batch = (int64_t)(batch < most ? batch : most)};
}

/* As codes lie, or as near to it as 63 bits go. */
static tandem_view coded_view(bool is_v, uint32_t heads, uint32_t rows, uint32_t dim)
{
    const uint32_t rows_pad = (rows + 127) / 128 * 128, d_pad = (dim + 31) / 32 * 32;
    tandem_view v = dense_view(is_v ? TANDEM_DTYPE_CODES_E4M3 : TANDEM_DTYPE_CODES_INT8, heads, rows_pad, d_pad);

    v.stride_row = is_v ? rows_pad : d_pad;
    return v;
}

/* From 1 to 2^30, and near powers of two. */
static uint32_t random_size(uint64_t *state, double most_log2)
{
    const double log2_of = most_log2 * random_part(state);
    const uint32_t at = 1u << (uint32_t)log2_of;

    switch (random_below(state, 4)) {
    case 0: return at;
    case 1: return at > 1 ? at - 1 : 1;
    case 2: return at < 1u << 30 ? at + 1 : at;
    default: return (uint32_t)exp2(log2_of);
    }
}

static tandem_attention random_shape(uint64_t *state)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256};
    tandem_attention op = {.head_dim = dims[random_below(state, 6)],
                           .causal = random_below(state, 2),
                           .precision = random_below(state, 4),
                           .granularity = random_below(state, 3) ? 0 : random_below(state, 7),
                           .smooth = random_below(state, 3) ? 0 : 2 * random_below(state, 8),
                           .scale = random_below(state, 4) ? 0.f : -1.f};
    double left = 38; /* log2 of all sizes together; few shapes that are larger are legal */
    uint32_t *const sizes[] = {&op.batch, &op.kv_heads, &op.q_len, &op.kv_len, &op.heads};

    for (uint32_t i = 0, first = random_below(state, 5); i < 5; i++) {
        uint32_t *size = sizes[(first + i) % 5];

        *size = random_size(state, fmin(30, left));
        left = fmax(0, left - log2(*size));
    }
    op.kv_heads = op.kv_heads > op.heads ? op.heads : op.kv_heads;
    op.heads = op.heads / op.kv_heads * op.kv_heads;
    const uint32_t dtype = 1 + random_below(state, 3);
    const bool coded = !random_below(state, 8), alike = random_below(state, 2);
    op.q = coded ? coded_view(false, op.heads, op.q_len, op.head_dim)
                 : dense_view(dtype, op.heads, op.q_len, op.head_dim);
    op.k = coded && random_below(state, 8) ? coded_view(false, op.kv_heads, op.kv_len, op.head_dim)
                                           : dense_view(dtype, op.kv_heads, op.kv_len, op.head_dim);
    op.v = coded ? coded_view(true, op.kv_heads, op.kv_len, op.head_dim)
                 : dense_view(dtype, op.kv_heads, op.kv_len, op.head_dim);
    op.o = dense_view(1 + random_below(state, 3), op.heads, op.q_len, op.head_dim);
    if (alike && !coded) /* all rows the same: so the tensors need little memory */
        op.q.stride_head = op.k.stride_head = op.v.stride_head = op.q.stride_batch = op.k.stride_batch =
            op.v.stride_batch = op.q.stride_row = op.k.stride_row = op.v.stride_row = 0;
    if (!random_below(state, 4) && !coded)
        op.lse = dense_view(TANDEM_DTYPE_F32, op.heads, op.q_len, 1);
    return op;
}

#define PARAMS(type, name, record) \
    td_params_##type name;         \
    memcpy(&name, (record)->params, sizeof name)

static uint64_t divide_up(uint64_t x, uint64_t by)
{
    return (x + by - 1) / by;
}

/* That the blocks have all of the output's rows, by what the parameters say. */
static void check_attention(const tandem_attention *op, const td_target *target, const td_record *record)
{
    const uint64_t planes = (uint64_t)op->batch * op->heads;

    if (strstr(record->kernel->name, "16_wgmma")) {
        PARAMS(attention_f16, p, record);
        assert_true(p.works == planes * divide_up(op->q_len, p.tile_rows));
        assert_true(p.blocks == (uint64_t)record->grid[0] * p.walkers && p.pair >= 1 && p.pair <= 2);
        assert_true(divide_up(p.blocks, p.walkers) <= divide_up(p.works, p.pair) + target->multiprocessors);
        return;
    }
    PARAMS(attention, p, record);
    const uint64_t row_tiles = divide_up(op->q_len, p.tile_rows), tiles = planes * row_tiles;
    assert_true(p.planes == planes && p.q_pad == divide_up(op->q_len, 128) * 128);
    assert_true(p.chunk_planes >= 1 && p.chunk_planes <= planes && p.chunk_planes % (op->heads / op->kv_heads) == 0);
    assert_true(p.chunk_planes * row_tiles <= TD_MOST_BLOCKS);
    assert_true(record->grid[0] == (p.walkers ? p.walkers : tiles));
    if (p.walkers)
        assert_true(p.walkers == target->multiprocessors && tiles > p.walkers);
}

/* What every executor takes for granted. */
static void check_record(const td_record *r, const td_target *target)
{
    assert_in_range(r->grid[0], 1, TD_MOST_BLOCKS);
    assert_true(r->grid[1] == 1 && r->grid[2] == 1 && r->block[1] == 1 && r->block[2] == 1);
    assert_in_range(r->block[0], 1, 1024);
    /* fp16 of 256 channels: no command buffer has those kernels */
    const bool widest = r->kernel->entry && strstr(r->kernel->entry, "_f16_d256");
    const uint32_t room = target->shared_bytes ? target->shared_bytes : widest ? 99u * 1024u : 47u * 1024u;
    if (r->shared_bytes > room)
        fail_msg("%s has %u bytes of shared memory of %u", r->kernel->entry, r->shared_bytes, room);
    assert_in_range(r->param_bytes, 8, TD_PARAM_BYTES);
    assert_true(r->reloc_count >= 1);
    assert_true(!(r->flags & TD_RECORD_CLUSTER) ||
                (r->cluster >= 1 && r->cluster <= 16 && r->grid[0] % r->cluster == 0));
    for (uint32_t i = 0; i < r->reloc_count; i++)
        assert_true(r->relocs[i].offset % 8 == 0 && r->relocs[i].offset + 8u <= r->param_bytes);
    for (uint32_t i = 0; i < r->read_count + r->write_count; i++) {
        const td_range *range = i < r->read_count ? &r->reads[i] : &r->writes[i - r->read_count];

        assert_true(range->begin_bytes < range->end_bytes && range->end_bytes <= (uint64_t)INT64_MAX);
        if (range->base == TD_BASE_SCRATCH)
            assert_true(range->begin_bytes % 256 == 0 && range->end_bytes <= plan.scratch_bytes);
    }
}

/* The plan is right or there is a reason why there is none: true if it is there. */
static bool check_plan_of(const tandem_attention *op, const td_target *target)
{
    char why[300] = "";
    const tandem_status status = td_plan_attention(op, target, &plan, NULL, why, sizeof why);

    if (status != TANDEM_OK) {
        assert_true(status == TANDEM_ERROR_ARG || status == TANDEM_ERROR_UNSUPPORTED);
        assert_non_null(strstr(why, "attention."));
        return false;
    }
    assert_in_range(plan.record_count, 1, 24);
    assert_true(plan.scratch_bytes <= (uint64_t)INT64_MAX && plan.scratch_bytes % 256 == 0);
    for (uint32_t i = 0; i < plan.record_count; i++)
        check_record(&plan.records[i], target);
    if (target->sm)
        check_attention(op, target, &plan.records[plan.record_count - (target->commit ? 3 : 1)]);
    return true;
}

static const td_target *random_target(uint64_t *state, const td_tuning_table *table)
{
    static const uint32_t sms[] = {0, 80, 89, 90, 90, 120}, sizes[] = {1, 2, 58, 114, 132, 65535};
    static td_attention_options options[2][2][5]; /* those that differ lie apart, as plans are kept by where they are */
    static td_target target;

    const uint32_t sm = sms[random_below(state, 6)];
    target = random_below(state, 2) ? td_target_for_stream(sm) : td_target_for_sm(sm);
    target.twin = true;
    target.multiprocessors = sizes[random_below(state, 6)];
    const bool no_clusters = !random_below(state, 4);
    target.commit = !random_below(state, 4);
    const bool dump = !random_below(state, 16);
    const uint32_t rows = random_below(state, 3) ? (uint32_t)TD_BEST_ROWS : random_below(state, 5);
    options[no_clusters][dump][rows] = (td_attention_options){.rows = rows, .dump = dump, .no_clusters = no_clusters};
    target.attention = &options[no_clusters][dump][rows];
    target.tuning = random_below(state, 2) ? table : NULL;
    return &target;
}

/* A table by which AUTO takes 4B, whose delta-S needs more blocks than any other kernel. */
static const td_tuning_table *table_of_4b(void)
{
    static td_tuning_table t;

    t = (td_tuning_table){.sm = 90, .multiprocessors = 132, .device = "a model", .count = 1};
    t.parts[0].head_dim = 128;
    for (uint32_t i = 0; i < TD_TUNING_PLANES; i++)
        for (uint32_t j = 0; j < TD_TUNING_LENGTHS; j++) {
            t.parts[0].costs[TD_TUNING_F16].kernel[i][j] = 1000;
            t.parts[0].costs[TD_TUNING_4B].kernel[i][j] = t.parts[0].costs[TD_TUNING_4B].prologue[i][j] = 1;
        }
    return &t;
}

static bool touch(const td_range *a, uint32_t a_count, const td_range *b, uint32_t b_count)
{
    bool found = false;
    for (uint32_t i = 0; i < a_count * b_count; i++) {
        const td_range *x = &a[i / b_count], *y = &b[i % b_count];
        found |= x->base == y->base && x->view == y->view &&
                 (x->begin_bytes < y->begin_bytes ? x->end_bytes > y->begin_bytes : y->end_bytes > x->begin_bytes);
    }
    return found;
}

/* Whether between any two records that meet there is a barrier that is strong enough. */
static bool is_ordered(const td_plan *p)
{
    for (uint32_t j = 0; j < p->record_count; j++)
        for (uint32_t i = 0; i < j; i++) {
            const td_record *a = &p->records[i], *b = &p->records[j];
            uint32_t strongest = TD_BARRIER_NONE;
            for (uint32_t k = i + 1; k <= j; k++)
                strongest = p->records[k].barrier < strongest ? p->records[k].barrier : strongest;
            if (strongest > TD_BARRIER_DATA && (touch(a->writes, a->write_count, b->reads, b->read_count) ||
                                                touch(a->writes, a->write_count, b->writes, b->write_count)))
                return false;
            if (strongest > TD_BARRIER_ORDER && touch(a->reads, a->read_count, b->writes, b->write_count))
                return false;
        }
    return true;
}

/* Barriers are strong enough, and none of them could be weaker. */
static void test_barriers(void **state)
{
    enum { PLANS = 3000, RECORDS = 8 };
    static const td_kernel kernel = {.name = "a_kernel", .entry = "a_kernel"};
    uint64_t seed = 5;
    uint32_t counts[TD_BARRIER_NONE + 1] = {0};

    (void)state;
    for (int n = 0; n < PLANS; n++) {
        td_builder at = new_builder();
        for (int i = 0; i < RECORDS; i++) {
            td_record *r = td_build_record(&at, &kernel, 1, (uint64_t[8]){0}, 64);
            for (uint32_t j = random_below(&seed, 4); j > 0; j--) {
                const uint64_t begin = random_below(&seed, 32), end = begin + 1 + random_below(&seed, 6);
                const uint32_t base = random_below(&seed, 2), view = base == TD_BASE_VIEW ? random_below(&seed, 2) : 0;
                td_build_range(&at, r, random_below(&seed, 3) ? TD_READ : TD_WRITE, (td_range){base, view, begin, end});
            }
        }
        assert_int_equal(td_build_end(&at, NULL, 0), TANDEM_OK);
        assert_true(is_ordered(&plan));
        for (int i = 0; i < RECORDS; i++) {
            counts[plan.records[i].barrier]++;
            if (plan.records[i].barrier == TD_BARRIER_NONE)
                continue;
            plan.records[i].barrier++;
            assert_false(is_ordered(&plan));
            plan.records[i].barrier--;
        }
    }
    print_message("%u that carry data, %u for order, %u none\n", counts[0], counts[1], counts[2]);
    assert_true(counts[TD_BARRIER_DATA] && counts[TD_BARRIER_ORDER] && counts[TD_BARRIER_NONE] > PLANS);
}

static bool same_plan(const td_plan *a, const td_plan *b)
{
    bool same = a->scratch_bytes == b->scratch_bytes && a->precision == b->precision && a->record_count == b->record_count;

    for (uint32_t i = 0; same && i < a->record_count; i++)
        same = tu_same_record(&a->records[i], &b->records[i]);
    return same;
}

/* What is kept is what would be made, wherever views lie but for their alignment, and is made once. */
static void test_kept_plans(void **state)
{
    enum { SHAPES = 500, TURNS = 4 };
    static td_plan_cache cache;
    static td_plan copy;
    const td_tuning_table *table = table_of_4b();
    uint64_t seed = 3;
    uint32_t known = 0;

    (void)state;
    while (known < SHAPES) {
        tandem_operands op = {.attention = random_shape(&seed)}, whole = op;
        tandem_attention *const shape = &op.attention;
        td_target target = *random_target(&seed, table);
        const td_plan *kept[TURNS], *again;
        const bool has_whole = known % 2;

        if (td_attention_check(shape, NULL, 0) != TANDEM_OK)
            continue;
        target.whole = has_whole ? &whole : NULL;
        const tandem_status status = td_plan_attention(shape, &target, &plan, NULL, NULL, 0);
        assert_int_equal(td_plan_cached(&cache, &td_operation_attention, &op, &target, &kept[0], NULL, 0), status);
        if (status != TANDEM_OK)
            continue;
        known++;
        assert_true(same_plan(&plan, kept[0]));
        for (uint32_t i = 1; i < TURNS; i++) {
            shape->q.offset_bytes += 16 * i; /* another place, another mem */
            shape->k.offset_bytes += 4096;
            shape->o.mem++;
            assert_int_equal(td_plan_cached(&cache, &td_operation_attention, &op, &target, &kept[i], NULL, 0), TANDEM_OK);
            assert_true(kept[i] == kept[0]);
        }
        assert_true(td_plan_copy(&copy, kept[0]));
        assert_true(same_plan(&copy, kept[0]));
        if (has_whole) { /* by what it says, not where it is */
            whole.attention.q_len += 4096;
            assert_int_equal(td_plan_attention(shape, &target, &plan, NULL, NULL, 0), TANDEM_OK);
            assert_int_equal(td_plan_cached(&cache, &td_operation_attention, &op, &target, &again, NULL, 0), TANDEM_OK);
            assert_true(again != kept[0] && same_plan(&plan, again));
            td_plan_drop(&again);
        }
        shape->q.offset_bytes += 2; /* 16 bytes at a time no more */
        if (td_attention_check(shape, NULL, 0) == TANDEM_OK && td_plan_attention(shape, &target, &plan, NULL, NULL, 0) == TANDEM_OK) {
            assert_int_equal(td_plan_cached(&cache, &td_operation_attention, &op, &target, &again, NULL, 0), TANDEM_OK);
            assert_true(again != kept[0] && same_plan(&plan, again));
            td_plan_drop(&again);
        }
        /* who uses a plan has it, whatever the cache does */
        if (known % 5 == 0)
            td_plan_cache_clear(&cache);
        for (uint32_t i = 0; i < TURNS; i++) {
            assert_true(same_plan(&copy, kept[i]));
            td_plan_drop(&kept[i]);
            assert_null(kept[i]);
        }
    }
    td_plan_cache_clear(&cache);
    td_plan_free(&copy);
}

/* Places in scratch that are never in use at once have the same bytes, but for plans whose scratch is looked at afterwards;
 * and nothing else differs. */
static void test_shared_scratch(void **state)
{
    enum { PLANS = 4000 };
    const td_tuning_table *table = table_of_4b();
    uint64_t seed = 9, all = 0, shared = 0;
    uint32_t less = 0;
    td_plan kept = {0};

    (void)state;
    for (uint32_t i = 0; i < PLANS;) {
        const tandem_attention op = random_shape(&seed);
        td_target target = *random_target(&seed, table);
        td_attention_layout layout;

        target.commit = i % 3 == 0;
        if (td_attention_check(&op, NULL, 0) != TANDEM_OK || td_plan_attention(&op, &target, &plan, NULL, NULL, 0) != TANDEM_OK)
            continue;
        i++;
        assert_int_equal(td_plan_attention(&op, &target, &kept, &layout, NULL, 0), TANDEM_OK);
        assert_true(plan.scratch_bytes <= kept.scratch_bytes && is_ordered(&plan));
        less += plan.scratch_bytes < kept.scratch_bytes;
        all += kept.scratch_bytes >> 20;
        shared += plan.scratch_bytes >> 20;
        assert_int_equal(plan.record_count, kept.record_count);
        for (uint32_t r = 0; r < plan.record_count; r++) {
            td_record *a = &plan.records[r], *b = &kept.records[r];

            for (uint32_t j = 0; j < a->reloc_count; j++)
                if (a->relocs[j].base == TD_BASE_SCRATCH)
                    a->relocs[j].addend = b->relocs[j].addend = 0;
            for (uint32_t j = 0; j < a->read_count + a->write_count; j++) {
                td_range *x = j < a->read_count ? &a->reads[j] : &a->writes[j - a->read_count];
                td_range *y = j < a->read_count ? &b->reads[j] : &b->writes[j - a->read_count];

                if (x->base == TD_BASE_SCRATCH && y->base == TD_BASE_SCRATCH) {
                    x->end_bytes -= x->begin_bytes;
                    y->end_bytes -= y->begin_bytes;
                    x->begin_bytes = y->begin_bytes = 0;
                }
            }
            assert_true(tu_same_record(a, b));
        }
    }
    print_message("%u of %u plans have less scratch, %.1f %% of it all\n", less, PLANS, 100.0 * (double)shared / (double)all);
    assert_true(less > PLANS / 4);
    td_plan_free(&kept);
}

static void test_extreme_shapes(void **state)
{
    enum { LEGAL = 20000 };
    const td_tuning_table *table = table_of_4b();
    uint64_t seed = 1;
    uint32_t legal = 0, planned = 0, large = 0;

    (void)state;
    while (legal < LEGAL) {
        const tandem_attention op = random_shape(&seed);
        char why[300] = "";

        if (td_attention_check(&op, why, sizeof why) != TANDEM_OK) {
            assert_non_null(strstr(why, "attention."));
            continue;
        }
        legal++;
        for (int i = 0; i < 4; i++)
            if (check_plan_of(&op, random_target(&seed, table))) {
                planned++;
                large += (uint64_t)op.batch * op.heads * divide_up(op.q_len, 64) > 1 << 28;
            }
    }
    print_message("%u legal shapes, %u plans, %u of them of more than 2^28 tiles\n", legal, planned, large);
    assert_true(planned > 2 * LEGAL && large > LEGAL / 50);
}

static tandem_attention shape_of(uint32_t batch, uint32_t heads, uint32_t kv_heads, uint32_t q_len, uint32_t kv_len,
                                 uint32_t dim, uint32_t causal, uint32_t precision)
{
    return (tandem_attention){.batch = batch,
                              .heads = heads,
                              .kv_heads = kv_heads,
                              .q_len = q_len,
                              .kv_len = kv_len,
                              .head_dim = dim,
                              .causal = causal,
                              .precision = precision,
                              .q = dense_view(TANDEM_DTYPE_F16, heads, q_len, dim),
                              .k = dense_view(TANDEM_DTYPE_F16, kv_heads, kv_len, dim),
                              .v = dense_view(TANDEM_DTYPE_F16, kv_heads, kv_len, dim),
                              .o = dense_view(TANDEM_DTYPE_F16, heads, q_len, dim)};
}

/* Those in which 32 bits were not enough. */
static void test_large_products(void **state)
{
    td_target target = td_target_for_stream(90);
    char why[300] = "";

    (void)state;
    target.twin = true;
    const tandem_attention chunks = shape_of(1, 1 << 20, 1, 256, 128, 32, 1, TANDEM_PRECISION_8B);
    assert_int_equal(td_attention_check(&chunks, NULL, 0), TANDEM_OK);
    assert_true(check_plan_of(&chunks, &target));
    PARAMS(attention, p, &plan.records[plan.record_count - 1]);
    assert_int_equal(p.chunk_planes, 1 << 20); /* 2^20 heads of a group, 4096 groups: 2^32, which is 0 */

    /* AUTO's 4B is told of no earlier than here: 2^9 blocks of rows times 2^9 of keys times 2^14 heads. */
    target.tuning = table_of_4b();
    tandem_attention deltas = shape_of(1, 1 << 14, 1 << 14, 1 << 20, 1 << 16, 128, 0, TANDEM_PRECISION_AUTO);
    assert_int_equal(td_attention_check(&deltas, NULL, 0), TANDEM_OK);
    assert_int_equal(td_plan_attention(&deltas, &target, &plan, NULL, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "more than 2147483647 blocks"));

    /* K that is no codes has strides that need not fit where those of codes would be. */
    tandem_attention coded = shape_of(1, 1 << 30, 1 << 30, 1, 1 << 30, 256, 0, TANDEM_PRECISION_8B);
    coded.q = coded_view(false, coded.heads, 1, 256);
    coded.k.stride_row = coded.k.stride_head = coded.k.stride_batch = 0;
    coded.v = coded.k;
    assert_int_equal(td_attention_check(&coded, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, "attention.k.dtype"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_number),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_early_writes),
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_kept_plans),
        cmocka_unit_test(test_shared_scratch),
        cmocka_unit_test(test_extreme_shapes),
        cmocka_unit_test(test_large_products),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
