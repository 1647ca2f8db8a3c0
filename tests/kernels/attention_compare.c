/* Comparing what kernels left of a case with what the CPU twin left.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/attention_compare.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "interop/base.h"
#include "interop/os/cpu.h"
#include "interop/os/thread_pool.h"
#include "kernels/attention/cpu.h"

static bool same_float(float a, float b)
{
    return td_bits(a) == td_bits(b) || (isnan(a) && isnan(b));
}

static void same_bytes(const char *what, const unsigned char *gpu, const unsigned char *twin, uint64_t offset,
                       uint64_t bytes)
{
    if (offset == UINT64_MAX)
        return;
    for (uint64_t i = 0; i < bytes; i++)
        if (gpu[offset + i] != twin[offset + i])
            fail_msg("%s: byte %llu of %llu is %02x, the twin's %02x", what, (unsigned long long)i,
                     (unsigned long long)bytes, gpu[offset + i], twin[offset + i]);
}

static void same_floats(const char *what, const unsigned char *gpu, const unsigned char *twin, uint64_t offset,
                        uint64_t count)
{
    if (offset == UINT64_MAX)
        return;
    for (uint64_t i = 0; i < count; i++) {
        float a, b;

        memcpy(&a, gpu + offset + 4 * i, 4);
        memcpy(&b, twin + offset + 4 * i, 4);
        if (!same_float(a, b))
            fail_msg("%s: element %llu of %llu is %.9g, the twin's %.9g", what, (unsigned long long)i,
                     (unsigned long long)count, (double)a, (double)b);
    }
}

void tu_compare_prologue(const tu_case *it, const unsigned char *gpu)
{
    const td_attention_layout *at = &it->layout;
    const unsigned char *twin = it->scratch;
    const uint64_t bh = (uint64_t)it->op.batch * it->op.heads, bhk = (uint64_t)it->op.batch * it->op.kv_heads;
    const uint64_t row_bytes = at->qk_is_f16      ? 2 * at->d_pad
                               : at->qk_is_packed ? TD_PACKED_ROW_BYTES(at->d_pad)
                                                  : at->d_pad;

    same_floats("k_mean", gpu, twin, at->k_mean, bhk * at->d_pad);
    same_floats("v_mean", gpu, twin, at->v_mean, bhk * at->d_pad);
    same_floats("q_mean", gpu, twin, at->q_mean, bh * (at->q_pad / 128) * at->d_pad);
    same_floats("k_scale", gpu, twin, at->k_scale, bhk * at->kv_pad);
    same_floats("q_scale", gpu, twin, at->q_scale, bh * at->q_pad);
    same_floats("v_scale", gpu, twin, at->v_scale, bhk * at->d_pad);
    same_bytes("k_codes", gpu, twin, at->k_codes, bhk * at->kv_pad * row_bytes);
    same_bytes("q_codes", gpu, twin, at->q_codes, bh * at->q_pad * row_bytes);
    same_bytes("v_codes", gpu, twin, at->v_codes, bhk * at->kv_pad * at->d_pad * (at->v_is_f16 ? 2 : 1));
    same_floats("delta_s", gpu, twin, at->delta_s, bh * (at->q_pad / 128) * at->kv_pad);
    /* Partial sums, maxima, flags and lse_bias lie between these. */
    const uint64_t end = at->dump_s == UINT64_MAX ? it->plan.scratch_bytes : at->dump_s;
    same_floats("scratch", gpu, twin, 0, end / 4);
}

/* Keys of the tiles that the block of row r visits. */
static uint32_t visited(const tandem_attention *op, uint32_t r)
{
    int64_t keys = op->kv_len, last = r / 64 * 64 + 63;

    if (last > (int64_t)op->q_len - 1)
        last = op->q_len - 1;
    if (op->causal && last + (int64_t)op->kv_len - op->q_len + 1 < keys)
        keys = last + (int64_t)op->kv_len - op->q_len + 1;
    return keys <= 0 ? 0 : (uint32_t)(keys + 63) / 64 * 64;
}

/* What was found of the elements of R. */
typedef struct sums {
    const tu_case *it;
    const unsigned char *gpu;
    uint32_t accumulator;
    _Atomic uint64_t wrong, checked, rebased;
} sums;

/* Of a row of a head: R against the twin's accumulator on the very codes. */
static void check_sums(void *context, uint64_t index, uint32_t worker)
{
    sums *s = context;
    const tu_case *it = s->it;
    const td_attention_layout *at = &it->layout;
    const unsigned char *gpu = s->gpu, *twin = it->scratch;
    const uint32_t heads_per_kv = it->op.heads / it->op.kv_heads, steps = (at->kv_pad + at->step_keys - 1) / at->step_keys;
    const uint32_t bh = (uint32_t)(index / it->op.q_len), r = (uint32_t)(index % it->op.q_len);
    const uint64_t row = (uint64_t)bh * at->q_pad + r;
    const uint32_t bhk = bh / it->op.heads * it->op.kv_heads + bh % it->op.heads / heads_per_kv;
    uint64_t wrong = 0, checked = 0, rebased = 0;

    (void)worker;
    for (uint32_t key = 0; key < visited(&it->op, r); key += at->step_keys) {
        const uint64_t codes_at = at->dump_p + row * at->kv_pad + key;
        const uint32_t keys = at->kv_pad - key < at->step_keys ? at->kv_pad - key : at->step_keys;
        uint8_t p[2][TD_HOPPER_R_KEYS]; /* the GPU's, the twin's; keys that were not visited count for nothing */

        for (uint32_t j = 0; j < keys; j++) {
            const bool seen = key + j < visited(&it->op, r);

            p[0][j / 16 * 16 + td_v_position(j % 16)] = seen ? gpu[codes_at + j] : 0;
            p[1][j / 16 * 16 + td_v_position(j % 16)] = seen ? twin[codes_at + j] : 0;
        }
        for (uint32_t c = 0; c < at->d_pad; c += 1 + c % 3) { /* two of three channels */
            const uint8_t *v = gpu + at->v_codes + ((uint64_t)bhk * at->d_pad + c) * at->kv_pad + key;
            const uint64_t r_at = at->dump_r + ((row * steps + key / at->step_keys) * at->d_pad + c) * 4;
            float want[2] = {0}, got[2];

            for (uint32_t k = 0; k < keys; k += 32)
                for (int i = 0; i < 2; i++)
                    want[i] = td_twin_mma_e4m3(s->accumulator, p[i] + k, v + k, want[i]);
            memcpy(&got[0], gpu + r_at, 4);
            memcpy(&got[1], twin + r_at, 4);
            if (!same_float(got[1], want[1])) { /* the row got another base meanwhile */
                rebased++;
                continue;
            }
            checked++;
            wrong += !(got[0] == want[0] || (isnan(got[0]) && isnan(want[0])));
        }
    }
    s->wrong += wrong;
    s->checked += checked;
    s->rebased += rebased;
}

void tu_compare_codes(const tu_case *it, const unsigned char *gpu_s, const unsigned char *twin_s, const unsigned char *gpu_p,
                      const unsigned char *twin_p)
{
    const td_attention_layout *at = &it->layout;
    uint64_t codes = 0, different = 0, far = 0, some = 0;

    for (uint32_t bh = 0; bh < it->op.batch * it->op.heads; bh++)
        for (uint32_t r = 0; r < it->op.q_len; r++) {
            const uint64_t first = ((uint64_t)bh * at->q_pad + r) * at->kv_pad;
            const uint32_t n = visited(&it->op, r);

            if (memcmp(gpu_s + first * 4, twin_s + first * 4, n * 4u))
                fail_msg("S of head %u, row %u differs from the twin's", bh, r);
            for (uint32_t j = 0; gpu_p && j < n; j++) {
                const int a = gpu_p[first + j], b = twin_p[first + j];

                codes++;
                some += b != 0;
                different += a != b;
                far += abs(a - b) > 1;
            }
        }
    if (different * 10000 > codes || far)
        fail_msg("%llu of %llu codes of P differ, %llu by more than one", (unsigned long long)different,
                 (unsigned long long)codes, (unsigned long long)far);
    if (codes && !some)
        fail_msg("no code of P was written");
}

void tu_compare_dumps(const tu_case *it, const unsigned char *gpu, uint32_t accumulator)
{
    const td_attention_layout *at = &it->layout;
    const unsigned char *twin = it->scratch;
    const bool no_codes = at->dump_p == UINT64_MAX;

    if (at->step_keys != TD_TILE_KEYS)
        accumulator = TD_ACCUMULATOR_WGMMA_F16;

    if (at->dump_s == UINT64_MAX)
        return;
    tu_compare_codes(it, gpu + at->dump_s, twin + at->dump_s, no_codes ? NULL : gpu + at->dump_p,
                     no_codes ? NULL : twin + at->dump_p);
    if (no_codes)
        return;
    sums all = {.it = it, .gpu = gpu, .accumulator = accumulator};
    td_parallel_for(td_core_count(), (uint64_t)it->op.batch * it->op.heads * it->op.q_len, check_sums, &all);
    if (all.rebased > all.checked)
        fail_msg("%llu elements of R were rebased, only %llu not", (unsigned long long)all.rebased,
                 (unsigned long long)all.checked);
    if (all.wrong)
        fail_msg("%llu of %llu elements of R differ from the twin's accumulator", (unsigned long long)all.wrong,
                 (unsigned long long)all.checked);
}

double tu_distance(const tu_tensor *gpu, const tu_tensor *twin)
{
    const size_t n = (size_t)gpu->batch * gpu->heads * gpu->rows * gpu->dim;
    double *a = tu_values(gpu), *b = tu_values(twin), l1;

    for (size_t i = 0; i < n; i++) {
        if (isfinite(a[i]) != isfinite(b[i]) || isnan(a[i]) != isnan(b[i]))
            fail_msg("element %zu of %zu is %g, the twin's %g", i, n, a[i], b[i]);
        if (!isfinite(a[i])) {
            if (isinf(a[i]))
                assert_true(a[i] == b[i]);
            a[i] = b[i] = 0;
        }
    }
    l1 = tu_relative_l1(a, b, n);
    free(a);
    free(b);
    return l1;
}

/* The share of rows that attend to one key. */
static double rows_of_one_key(const tandem_attention *op)
{
    if (!op->causal)
        return op->kv_len == 1;
    return op->kv_len == 1 ? 1.0 : op->kv_len <= op->q_len ? 1.0 / op->q_len : 0;
}

void tu_compare_outputs(const tu_case *it, const tu_tensor *o, const tu_tensor *lse)
{
    assert_int_equal(tu_spoilt(o), 0);
    double l1 = tu_distance(o, &it->o);
    /* Sums in another order: 2^-24 for each of n terms, of random signs, is sqrt(n) 2^-24 = 3e-6 for 2200 keys, at most 1.3e-4. What
     * that turns of roundings to O's type is as large on average: each by a step, but only as many as the step is wider.
     * Of one key O is V, and then it is not on average: an eighth of fp16 lies half-way between two of bf16, a P off by 2^-24
     * turns half of these, each by a step, which is .0055 of a normal number on average: .0055 / 16 = 3.4e-4 of such rows. */
    const double most = 1e-4 + 3.4e-4 * (o->view.dtype == TANDEM_DTYPE_BF16 ? rows_of_one_key(&it->op) : 0);
    if (!(l1 <= most))
        fail_msg("O is %g from the twin's, %g is the most", l1, most);
    if (lse->data) {
        assert_int_equal(tu_spoilt(lse), 0);
        l1 = tu_distance(lse, &it->lse);
        /* log2 of a sum that is off by as much as above, 3e-6 / ln 2 in a sum of 2^0 to 2^22: relative to lse's about 4, 1e-6;
         * log2f itself and two roundings add 2^-23 each. */
        if (!(l1 <= 2e-6))
            fail_msg("lse is %g from the twin's", l1);
    }
}

tu_tensor tu_tensor_like(const tu_tensor *of)
{
    tu_tensor t = *of;

    if (of->data) {
        t.data = aligned_alloc(256, td_align_up(of->bytes + TU_GUARD_BYTES, 256));
        assert_non_null(t.data);
    }
    return t;
}
