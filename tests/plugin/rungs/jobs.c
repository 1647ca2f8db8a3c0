/* Jobs: where their views lie in up to two mems, what the oracle makes of them, and what must not have changed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/attention.h"
#include "tests/plugin/rungs/rig.h"

static double noise(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(*seed >> 11) * 0x1p-52 - 1;
}

void fill(void *data, uint64_t bytes, uint64_t seed)
{
    float *f = data;

    seed = seed * 0x9e3779b97f4a7c15ull + 1;
    for (uint64_t i = 0; i < bytes / sizeof *f; i++)
        f[i] = (float)(2 * noise(&seed));
}

static tandem_view dense(tandem_mem mem, uint64_t at, uint32_t heads, uint32_t rows, uint32_t dim)
{
    return (tandem_view){.mem = mem,
                         .offset_bytes = at,
                         .dtype = TANDEM_DTYPE_F32,
                         .stride_batch = (int64_t)heads * rows * dim,
                         .stride_head = (int64_t)rows * dim,
                         .stride_row = dim};
}

uint64_t bytes_of(uint32_t heads, uint32_t rows, uint32_t dim)
{
    return (uint64_t)heads * rows * dim * sizeof(float);
}

void lay_out(const shape *sh, tandem_attention *a, uint64_t bytes[2])
{
    const uint32_t h = sh->heads, d = sh->dim;
    const uint64_t q = bytes_of(h, sh->rows, d), kv = bytes_of(h, sh->keys, d), lse = bytes_of(h, sh->rows, 1);

    *a = (tandem_attention){.batch = 1,
                            .heads = h,
                            .kv_heads = h,
                            .q_len = sh->rows,
                            .kv_len = sh->keys,
                            .head_dim = d,
                            .precision = sh->precision};
    bytes[1] = 0;
    switch (sh->layout) {
    case ONE_MEM:
        a->q = dense(1, 0, h, sh->rows, d);
        a->k = dense(1, q, h, sh->keys, d);
        a->v = dense(1, q + kv, h, sh->keys, d);
        a->o = dense(1, q + 2 * kv, h, sh->rows, d);
        a->lse = dense(1, 2 * q + 2 * kv, h, sh->rows, 1);
        bytes[0] = 2 * q + 2 * kv + lse;
        break;
    case TWO_MEMS:
        a->q = dense(1, GUARD, h, sh->rows, d);
        a->k = dense(1, 2 * GUARD + q, h, sh->keys, d);
        a->v = dense(1, 3 * GUARD + q + kv, h, sh->keys, d);
        a->o = dense(2, GUARD, h, sh->rows, d);
        a->lse = dense(2, 2 * GUARD + q, h, sh->rows, 1);
        bytes[0] = 4 * GUARD + q + 2 * kv;
        bytes[1] = 3 * GUARD + q + lse;
        break;
    default: { /* [row][head][Q | O | others] */
        const int64_t row = (int64_t)h * (2 * d + GUARD / sizeof(float));

        a->q = dense(1, 0, h, sh->rows, d);
        a->q.stride_head = row / h;
        a->q.stride_row = row;
        a->q.stride_batch = row * sh->rows;
        a->o = a->q;
        a->o.offset_bytes = d * sizeof(float);
        bytes[0] = (uint64_t)a->q.stride_batch * sizeof(float);
        a->k = dense(1, bytes[0], h, sh->keys, d);
        a->v = dense(1, bytes[0] + kv, h, sh->keys, d);
        bytes[0] += 2 * kv;
        break;
    }
    }
}

tandem_view *const *views_of(tandem_attention *a, tandem_view *list[5])
{
    list[0] = &a->q;
    list[1] = &a->k;
    list[2] = &a->v;
    list[3] = &a->o;
    list[4] = &a->lse;
    return list;
}

static float *element(const tandem_view *v, unsigned char *const data[2], const tandem_mem mems[2], uint32_t head,
                      uint32_t row)
{
    unsigned char *base = data[v->mem == mems[1] && mems[1]];

    return (float *)(void *)(base + v->offset_bytes) + head * v->stride_head + row * v->stride_row;
}

void compute(const tandem_attention *a, const tandem_mem mems[2], unsigned char *want[2])
{
    const uint32_t h = a->heads, d = a->head_dim;
    const tandem_view *in[3] = {&a->q, &a->k, &a->v};
    double *o = calloc((size_t)h * a->q_len * d, sizeof *o), *lse = calloc((size_t)h * a->q_len, sizeof *lse);
    tandem_attention plain = *a;
    float *packed[3];

    for (int i = 0; i < 3; i++) {
        const uint32_t rows = i ? a->kv_len : a->q_len;

        packed[i] = malloc(bytes_of(h, rows, d));
        for (uint32_t head = 0; head < h; head++)
            for (uint32_t row = 0; row < rows; row++)
                memcpy(packed[i] + ((uint64_t)head * rows + row) * d, element(in[i], want, mems, head, row),
                       d * sizeof(float));
    }
    plain.q = dense(1, 0, h, a->q_len, d);
    plain.k = plain.v = dense(1, 0, h, a->kv_len, d);
    plain.o = plain.q;
    plain.lse = dense(1, 0, h, a->q_len, 1);
    td_ref_attention(&plain, packed[0], packed[1], packed[2], o, lse);
    for (uint32_t head = 0; head < h; head++)
        for (uint32_t row = 0; row < a->q_len; row++) {
            float *to = element(&a->o, want, mems, head, row);

            for (uint32_t c = 0; c < d; c++)
                to[c] = (float)o[((uint64_t)head * a->q_len + row) * d + c];
            if (a->lse.dtype)
                *element(&a->lse, want, mems, head, row) = (float)lse[(uint64_t)head * a->q_len + row];
        }
    for (int i = 0; i < 3; i++)
        free(packed[i]);
    free(o);
    free(lse);
}

static bool is_written(const uint8_t *marks, uint64_t at)
{
    return marks[at / sizeof(float)];
}

void check(const rig *r, const char *what, const tandem_attention *a, const tandem_mem mems[2],
           unsigned char *const got[2], unsigned char *const want[2], const uint64_t bytes[2], double bound)
{
    uint8_t *marks[2] = {calloc(1, bytes[0] / 4 + 1), calloc(1, bytes[1] / 4 + 1)};
    double wrong = 0, all = 0;

    for (uint32_t head = 0; head < a->heads; head++)
        for (uint32_t row = 0; row < a->q_len; row++) {
            const float *from = element(&a->o, got, mems, head, row), *ref = element(&a->o, want, mems, head, row);
            const int in = a->o.mem == mems[1] && mems[1];

            for (uint32_t c = 0; c < a->head_dim; c++) {
                wrong += fabs((double)from[c] - (double)ref[c]);
                all += fabs((double)ref[c]);
            }
            memset(marks[in] + ((const unsigned char *)from - got[in]) / 4, 1, a->head_dim);
            if (!a->lse.dtype)
                continue;
            from = element(&a->lse, got, mems, head, row);
            ref = element(&a->lse, want, mems, head, row);
            if (!(fabs((double)*from - (double)*ref) <= 10 * bound))
                fail_msg("%s, %s: lse of row %u is %g, not %g", r->on->name, what, row, (double)*from, (double)*ref);
            marks[in][((const unsigned char *)from - got[in]) / 4] = 1;
        }
    if (!(wrong <= bound * all))
        fail_msg("%s, %s: relative L1 is %g", r->on->name, what, wrong / all);
    for (int m = 0; m < 2; m++)
        for (uint64_t at = 0; at < bytes[m]; at += sizeof(float))
            if (!is_written(marks[m], at) && memcmp(got[m] + at, want[m] + at, sizeof(float)))
                fail_msg("%s, %s: byte %" PRIu64 " of mem %d, which is not the job's, was changed", r->on->name, what,
                         at, m);
    free(marks[0]);
    free(marks[1]);
}

tandem_mem new_mem(rig *r, uint64_t bytes)
{
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = bytes};
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(r->s, &desc, &mem), TANDEM_OK);
    return mem;
}

tandem_timeline new_timeline(rig *r, tandem_signaller signaller)
{
    const tandem_timeline_desc desc = {.struct_bytes = sizeof desc, .signaller = signaller};
    tandem_timeline timeline;

    assert_int_equal(tandem_timeline_create(r->s, &desc, &timeline), TANDEM_OK);
    return timeline;
}

tandem_ticket submit_job(rig *r, const tandem_job *job)
{
    tandem_ticket ticket;
    tandem_status status = tandem_submit(r->s, job, &ticket);

    if (status != TANDEM_OK) {
        tandem_error_text(r->s, r->text, sizeof r->text);
        fail_msg("%s: submit: %d %s", r->on->name, status, r->text);
    }
    return ticket;
}

void expect_done(rig *r, tandem_ticket ticket)
{
    tandem_job_report report = {.struct_bytes = sizeof report};

    assert_int_equal(tandem_wait(r->s, ticket, LONG_NS, &report), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
}

void on_the_host(rig *r, tandem_mem mem, unsigned char *host)
{
    const shape sh = {2, 40, 24, 32, TANDEM_PRECISION_F16, 0, INTERLEAVED};
    tandem_mem mems[2] = {mem, 0};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    unsigned char *want[2] = {NULL, NULL}, *got[2] = {host, NULL};
    tandem_view *list[5];
    uint64_t bytes[2];

    lay_out(&sh, &job.op.attention, bytes);
    views_of(&job.op.attention, list);
    for (int i = 0; i < 5; i++)
        list[i]->mem = list[i]->mem ? mem : 0;
    want[0] = malloc(bytes[0]);
    for (uint64_t n = 0; n < 5; n++) {
        fill(host, bytes[0], n + 99);
        memcpy(want[0], host, bytes[0]);
        expect_done(r, submit_job(r, &job));
        compute(&job.op.attention, mems, want);
        check(r, "the host's memory", &job.op.attention, mems, got, want, bytes, 2e-3);
    }
    free(want[0]);
}
