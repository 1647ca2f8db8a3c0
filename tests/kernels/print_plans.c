/* Prints the plans of random attention jobs for six targets, as text that two versions of the code can be compared by.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * usage: print_plans [COUNT [SEED]]
 *
 * Of each record: kernel, entry, grid, block, shared bytes, flags, cluster, parameters as 32-bit words (zeros behind the
 * last other word left out), where pointers lead, what is read and written. Places in scratch are numbered in the order in
 * which a plan names them, since where they lie is nobody's business. Registers are left out: they are the compiler's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/attention.h"
#include "kernels/target.h"

enum { MOST_PLACES = 128 };

typedef struct places {
    uint64_t begin[MOST_PLACES];
    uint32_t count;
} places;

static uint64_t state;

/* splitmix64 */
static uint64_t random_bits(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t below(uint32_t n)
{
    return (uint32_t)(random_bits() % n);
}

static uint32_t one_of(const uint32_t *list, uint32_t count)
{
    return list[below(count)];
}
#define ONE_OF(...) one_of((const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

/* Rows as they come: edges of tiles, powers of two, anything. */
static uint32_t random_rows(void)
{
    switch (below(3)) {
    case 0:
        return ONE_OF(1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 192, 255, 256, 257);
    case 1:
        return 256u << below(8);
    default:
        return 1 + below(1u << (4 + below(12)));
    }
}

static tandem_view random_view(uint32_t dtype, uint32_t heads, uint32_t rows, uint32_t dim)
{
    const int64_t row = dim + (below(4) ? 0 : ONE_OF(1, 4, 8, 64));
    const bool interleaved = below(4) == 0; /* [batch, row, head, channel] */
    return (tandem_view){
        .dtype = dtype,
        .stride_row = interleaved ? row * heads : row,
        .stride_head = interleaved ? row : row * rows,
        .stride_batch = row * rows * heads,
    };
}

static tandem_attention random_op(void)
{
    tandem_attention op = {
        .batch = ONE_OF(1, 1, 1, 2, 4, 64),
        .q_len = random_rows(),
        .head_dim = ONE_OF(32, 64, 64, 80, 96, 128, 128, 256),
        .scale = below(8) ? 0 : below(2) ? 0.25f : -0.5f,
        .causal = below(2),
        .precision = ONE_OF(0, 0, 1, 2, 2, 2, 3),
        .smooth = ONE_OF(0, 0, 0, 0, 1, 2, 4, 6, 8, 12),
        .granularity = ONE_OF(0, 0, 0, 0, 1, 2, 3, 4, 5, 6),
    };
    op.kv_heads = ONE_OF(1, 2, 4, 8, 16);
    op.heads = op.kv_heads * ONE_OF(1, 1, 1, 2, 4, 8);
    op.kv_len = below(2) ? op.q_len : random_rows();
    const uint32_t input = ONE_OF(TANDEM_DTYPE_F16, TANDEM_DTYPE_F16, TANDEM_DTYPE_BF16, TANDEM_DTYPE_F32);
    op.q = random_view(input, op.heads, op.q_len, op.head_dim);
    op.k = random_view(input, op.kv_heads, op.kv_len, op.head_dim);
    op.v = random_view(input, op.kv_heads, op.kv_len, op.head_dim);
    op.o = random_view(below(4) ? input : TANDEM_DTYPE_F32, op.heads, op.q_len, op.head_dim);
    if (!below(3))
        op.lse = random_view(TANDEM_DTYPE_F32, op.heads, op.q_len, 1);
    return op;
}

static uint32_t place_of(places *known, uint64_t begin)
{
    for (uint32_t i = 0; i < known->count; i++)
        if (known->begin[i] == begin)
            return i;
    if (known->count == MOST_PLACES)
        abort();
    known->begin[known->count] = begin;
    return known->count++;
}

static const char *const view_names[] = {"q", "k", "v", "o", "lse"};

static void print_pointer(places *known, const td_reloc *r)
{
    printf(" %u=%s", r->offset, r->kind == TD_RELOC_TENSOR_MAP ? "map:" : "");
    if (r->base == TD_BASE_VIEW)
        printf("%s+%llu", view_names[r->view], (unsigned long long)r->addend);
    else if (r->base == TD_BASE_SCRATCH)
        printf("s%u", place_of(known, r->addend));
    else
        printf("control+%llu", (unsigned long long)r->addend);
}

static void print_ranges(places *known, const char *what, const td_range *ranges, uint32_t count)
{
    printf("    %s", what);
    for (uint32_t i = 0; i < count; i++) {
        const td_range *r = &ranges[i];
        const unsigned long long bytes = r->end_bytes - r->begin_bytes;
        if (r->base == TD_BASE_SCRATCH)
            printf(" s%u:%llu", place_of(known, r->begin_bytes), bytes);
        else
            printf(" %s+%llu:%llu", r->base == TD_BASE_VIEW ? view_names[r->view] : "control",
                   (unsigned long long)r->begin_bytes, bytes);
    }
    printf("\n");
}

static void print_params(const td_record *r)
{
    uint32_t words[TD_PARAM_BYTES / 4] = {0}, count = TD_PARAM_BYTES / 4;
    memcpy(words, r->params, r->param_bytes);
    while (count && !words[count - 1])
        count--;
    printf("    %u bytes:", r->param_bytes);
    for (uint32_t i = 0, zeros = 0; i < count; i++) {
        zeros = words[i] ? 0 : zeros + 1;
        if (words[i])
            printf(" %x", words[i]);
        else if (words[i + 1])
            printf(" 0*%u", zeros);
    }
    printf("\n");
}

static void print_record(places *known, const td_record *r)
{
    printf("   %s %s grid %ux%ux%u block %ux%ux%u shared %u flags %u cluster %u\n", r->kernel->name,
           r->kernel->entry ? r->kernel->entry : "-", r->grid[0], r->grid[1], r->grid[2], r->block[0], r->block[1],
           r->block[2], r->shared_bytes, r->flags, r->cluster);
    print_params(r);
    printf("    at");
    for (uint32_t i = 0; i < r->reloc_count; i++)
        print_pointer(known, &r->relocs[i]);
    printf("\n");
    print_ranges(known, "reads", r->reads, r->read_count);
    print_ranges(known, "writes", r->writes, r->write_count);
}

static void print_plan(const char *name, const tandem_attention *op, const td_target *target)
{
    static td_plan plan;
    td_attention_layout layout; /* so that no two places have the same bytes */
    places known = {.count = 0};
    char why[400] = "";
    const tandem_status status = td_plan_attention(op, target, &plan, &layout, why, sizeof why);
    if (status != TANDEM_OK) {
        printf("  %s: status %d: %s\n", name, (int)status, why);
        return;
    }
    printf("  %s: precision %u, %u records\n", name, plan.precision, plan.record_count);
    for (uint32_t i = 0; i < plan.record_count; i++)
        print_record(&known, &plan.records[i]);
}

static void print_view(const char *name, const tandem_view *v)
{
    if (v->dtype != TANDEM_DTYPE_NONE)
        printf(" %s %u:%lld,%lld,%lld", name, v->dtype, (long long)v->stride_batch, (long long)v->stride_head,
               (long long)v->stride_row);
}

static void print_op(uint32_t number, const tandem_attention *op)
{
    printf("%u: batch %u heads %u/%u q %u kv %u d %u scale %g causal %u precision %u smooth %u granularity %u", number,
           op->batch, op->heads, op->kv_heads, op->q_len, op->kv_len, op->head_dim, (double)op->scale, op->causal,
           op->precision, op->smooth, op->granularity);
    print_view("q", &op->q);
    print_view("k", &op->k);
    print_view("v", &op->v);
    print_view("o", &op->o);
    print_view("lse", &op->lse);
    printf("\n");
}

int main(int argc, char **argv)
{
    const uint32_t count = argc > 1 ? (uint32_t)atoi(argv[1]) : 500;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    static const struct {
        const char *name;
        uint32_t sm, multiprocessors;
        bool stream;
    } targets[] = {{"cpu", 0, 0, false},         {"sm_80 stream", 80, 108, true}, {"sm_89 stream", 89, 128, true},
                   {"sm_90 inline", 90, 132, false}, {"sm_90 stream", 90, 132, true}, {"sm_120 stream", 120, 170, true}};
    for (uint32_t i = 0; i < count;) {
        char why[400];
        const tandem_attention op = random_op();
        if (td_attention_check(&op, why, sizeof why) != TANDEM_OK)
            continue;
        print_op(i++, &op);
        for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
            td_target target = targets[t].stream ? td_target_for_stream(targets[t].sm) : td_target_for_sm(targets[t].sm);
            target.twin = targets[t].sm != 0; /* no cubin is asked for, so plans are the same in each build */
            if (targets[t].multiprocessors)
                target.multiprocessors = targets[t].multiprocessors;
            target.commit = i % 8 == 0;
            print_plan(targets[t].name, &op, &target);
        }
    }
    return 0;
}
