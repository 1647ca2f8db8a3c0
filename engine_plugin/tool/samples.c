/* Heads for `tandem accuracy`: synthetic ones with outliers, or those of a file; their exact attention; metrics.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "engine_plugin/tool/samples.h"
#include "interop/os/cpu.h"
#include "interop/os/memory.h"
#include "kernels/attention/cpu.h"
#include "tandem/tandem.h"

#define CHANNELS_AND_TOKENS                                                                             \
    .q_offset = 0.5, .k_offset = 2.9, .spread = 0.5, .q_outlier = 6.5, .k_outlier = 4.5, .outliers = 4, \
    .token_spread = 0.35
#define HARD_CHANNELS                                                                                  \
    .q_offset = 0.5, .k_offset = 5.5, .spread = 0.7, .q_outlier = 22, .k_outlier = 5, .outliers = 4, \
    .token_spread = 0.35
static const tool_family hard = {.name = "hard", HARD_CHANNELS, .sink = 8, .v_normal = 1};
const tool_family tool_family_video = {
    .name = "channel offsets and outliers in Q and K (far ones in a hard layer), token norms spread, a sink, V with "
            "offsets N(0,1)",
    CHANNELS_AND_TOKENS,
    .sink = 8,
    .v_normal = 1,
    .hard = &hard};
const tool_family tool_family_long = {
    .name = "the same, longer, V with offsets 3 N(0,1)", CHANNELS_AND_TOKENS, .sink = 8, .v_normal = 3};
const tool_family tool_family_biased = {.name = "the same, longer, V with an offset of 8 to 9 in every channel",
                                          CHANNELS_AND_TOKENS,
                                          .sink = 8,
                                          .v_offset = 8};
const tool_family tool_family_flat = {.name = "Q and K of N(0,1), V with an offset of 8 to 9 in every channel",
                                        .v_offset = 8};
const tool_family tool_family_normal = {.name = "N(0,1)"};
const tool_family tool_family_outlier = {.name =
                                               "N(0,1), offsets of 8 in six channels of Q and K, of 10 N(0,1) in V's",
                                           .q_outlier = 8,
                                           .k_outlier = 8,
                                           .outliers = 6,
                                           .v_normal = 10};

static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double uniform(uint64_t *state)
{
    return ((double)(random_bits(state) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t *state)
{
    const double radius = sqrt(-2 * log(uniform(state)));
    return radius * cos(6.283185307179586 * uniform(state));
}

static double sign(uint64_t *state)
{
    return random_bits(state) >> 63 ? -1 : 1;
}

static void fill(float *x, uint32_t rows, uint32_t dim, const double *offset, const double *size, double token_spread,
                 uint64_t *state)
{
    for (uint32_t r = 0; r < rows; r++) {
        const double norm = token_spread > 0 ? exp(token_spread * normal(state)) : 1;
        for (uint32_t c = 0; c < dim; c++)
            x[(size_t)r * dim + c] = td_from_f16(td_to_f16((float)(offset[c] + size[c] * norm * normal(state))));
    }
}

/* Moves some keys along the mean of Q. */
static void add_sinks(tool_sample *s, const double *q, double logit, uint64_t *state)
{
    const uint32_t dim = s->head.dim, count = (s->head.kv_len + 1023) / 1024;
    double square = 0;
    for (uint32_t c = 0; c < dim; c++)
        square += q[c] * q[c];
    for (uint32_t n = 0; n < count && square > 0; n++) {
        float *row = s->k + (size_t)(random_bits(state) % s->head.kv_len) * dim;
        for (uint32_t c = 0; c < dim; c++)
            row[c] = td_from_f16(td_to_f16((float)((double)row[c] + logit / (double)s->head.scale / square * q[c])));
    }
}

static tool_sample *add_sample(tool_samples *to, uint32_t q_len, uint32_t kv_len, uint32_t dim)
{
    tool_sample *items = realloc(to->items, (to->count + 1) * sizeof *items);
    if (!items)
        return NULL;
    to->items = items;
    tool_sample *s = &items[to->count++];
    *s = (tool_sample){.q = malloc((size_t)q_len * dim * sizeof(float)),
                       .k = malloc((size_t)kv_len * dim * sizeof(float)),
                       .v = malloc((size_t)kv_len * dim * sizeof(float))};
    s->head = (td_head){.q = s->q,
                        .k = s->k,
                        .v = s->v,
                        .q_len = q_len,
                        .kv_len = kv_len,
                        .dim = dim,
                        .scale = (float)(1 / sqrt((double)dim))};
    return s->q && s->k && s->v ? s : NULL;
}

bool tool_samples_make(tool_samples *to, const tool_family *family, uint32_t layers, uint32_t heads, uint32_t q_len,
                       uint32_t kv_len, uint32_t dim, uint64_t seed, char *why, size_t why_bytes)
{
    for (uint32_t i = 0; i < layers * heads; i++) {
        const tool_family *f = family->hard && layers > 1 && i / heads == layers - 1 ? family->hard : family;
        uint64_t state = seed * 1000 + i;
        tool_sample *s = add_sample(to, q_len, kv_len, dim);
        if (!s) {
            td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "out of memory");
            return false;
        }
        s->layer = i / heads;
        s->index = s->head_of_file = i % heads;
        double q[TD_MAX_DIM], k[TD_MAX_DIM], v[TD_MAX_DIM], one[TD_MAX_DIM], size[TD_MAX_DIM];
        for (uint32_t c = 0; c < dim; c++) {
            const double common = f->shared * normal(&state), own = sqrt(1 - f->shared * f->shared);
            q[c] = sign(&state) * f->q_offset * exp(f->spread * (common + own * normal(&state)));
            k[c] = sign(&state) * f->k_offset * exp(f->spread * (common + own * normal(&state)));
            v[c] = f->v_offset > 0 ? sign(&state) * (f->v_offset + uniform(&state)) : f->v_normal * normal(&state);
            size[c] = exp(f->v_spread * normal(&state));
            one[c] = 1;
        }
        for (uint32_t n = 0; n < f->outliers; n++) {
            const uint32_t c = (uint32_t)(random_bits(&state) % dim);
            q[c] = sign(&state) * f->q_outlier;
            k[c] = sign(&state) * f->k_outlier;
        }
        fill(s->q, q_len, dim, q, one, f->token_spread, &state);
        fill(s->k, kv_len, dim, k, one, f->token_spread, &state);
        fill(s->v, kv_len, dim, v, size, 0, &state);
        if (f->sink > 0)
            add_sinks(s, q, f->sink, &state);
    }
    return true;
}

static float element(const tool_input *x, size_t i)
{
    switch (x->dtype) {
    case TANDEM_DTYPE_F16: return td_from_f16(((const uint16_t *)x->data)[i]);
    case TANDEM_DTYPE_BF16: return td_from_bf16(((const uint16_t *)x->data)[i]);
    default: return ((const float *)x->data)[i];
    }
}

/* False for a value that is not finite. */
static bool copy(float *to, const tool_input *from, uint64_t b, uint64_t h)
{
    const size_t n = (size_t)(from->shape[2] * from->shape[3]), first = (size_t)(b * from->shape[1] + h) * n;
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        to[i] = element(from, first + i);
        finite = finite && isfinite(to[i]);
    }
    return finite;
}

bool tool_samples_read(tool_samples *to, const char *path, uint32_t layer, bool causal, char *why, size_t why_bytes)
{
    static const char *const names[] = {"q", "k", "v"};
    tool_input x[3];
    bool ok = true;
    tool_file *file = tool_open(path, why, why_bytes);
    if (!file)
        return false;
    for (int i = 0; i < 3 && ok; i++)
        ok = tool_find(file, names[i], &x[i], why, why_bytes);
    if (ok) {
        const uint64_t *q = x[0].shape, *k = x[1].shape, *v = x[2].shape;
        const uint64_t most = 1 << 24;
        const bool alike = memcmp(k, v, sizeof x[1].shape) == 0 && q[0] == k[0] && q[3] == k[3];
        ok = alike && q[0] && q[1] && q[2] && q[3] && k[1] && k[2] && q[1] % k[1] == 0 && q[3] % 16 == 0 &&
             q[3] <= TD_MAX_DIM && q[0] <= most && q[1] <= most && q[2] <= most && k[2] <= most;
        if (!ok)
            td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                    "--in \"%s\": q [%llu,%llu,%llu,%llu], k [%llu,%llu,%llu,%llu] do not go together (or with v)",
                    path, (unsigned long long)q[0], (unsigned long long)q[1], (unsigned long long)q[2],
                    (unsigned long long)q[3], (unsigned long long)k[0], (unsigned long long)k[1],
                    (unsigned long long)k[2], (unsigned long long)k[3]);
    }
    for (uint64_t b = 0; ok && b < x[0].shape[0]; b++)
        for (uint64_t h = 0; ok && h < x[0].shape[1]; h++) {
            tool_sample *s = add_sample(to, (uint32_t)x[0].shape[2], (uint32_t)x[1].shape[2], (uint32_t)x[0].shape[3]);
            if (!s) {
                td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "out of memory");
                ok = false;
                break;
            }
            const uint64_t hk = h / (x[0].shape[1] / x[1].shape[1]);
            s->layer = layer;
            s->index = (uint32_t)(b * x[0].shape[1] + h);
            s->head_of_file = (uint32_t)h;
            s->head.causal = causal;
            ok = copy(s->q, &x[0], b, h) && copy(s->k, &x[1], b, hk) && copy(s->v, &x[2], b, hk);
            if (!ok)
                td_fail(why, why_bytes, TANDEM_ERROR_ARG, "--in \"%s\": a value of batch %llu, head %llu is not finite",
                        path, (unsigned long long)b, (unsigned long long)h);
        }
    tool_close(file);
    return ok;
}

void tool_samples_free(tool_samples *samples)
{
    for (uint32_t i = 0; i < samples->count; i++) {
        free(samples->items[i].q);
        free(samples->items[i].k);
        free(samples->items[i].v);
        free(samples->items[i].exact);
    }
    free(samples->items);
    *samples = (tool_samples){0};
}

static double mean_magnitude(const tool_sample *s)
{
    const size_t n = (size_t)s->head.q_len * s->head.dim;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += fabs(s->exact[i]);
    return sum / (double)n;
}

bool tool_samples_exact(tool_samples *samples, uint32_t threads, char *why, size_t why_bytes)
{
    for (uint32_t i = 0; i < samples->count; i++) {
        tool_sample *s = &samples->items[i];
        if (s->exact)
            continue;
        s->exact = malloc((size_t)s->head.q_len * s->head.dim * sizeof *s->exact);
        if (!s->exact || !td_exact_attention(&s->head, s->exact, threads)) {
            td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "out of memory");
            return false;
        }
    }
    for (uint32_t first = 0, next; first < samples->count; first = next) { /* a layer's samples are neighbours */
        double sum = 0;
        for (next = first; next < samples->count && samples->items[next].layer == samples->items[first].layer; next++)
            sum += mean_magnitude(&samples->items[next]);
        for (uint32_t i = first; i < next; i++)
            samples->items[i].faint = mean_magnitude(&samples->items[i]) < 0.01 * sum / (next - first);
    }
    return true;
}

tool_sums tool_sum(const float *o, const double *exact, size_t n)
{
    tool_sums s = {.count = (double)n};
    for (size_t i = 0; i < n; i++) {
        const double a = (double)o[i], b = exact[i], d = a - b;
        s.dot += a * b;
        s.mine += a * a;
        s.exact += b * b;
        s.difference += fabs(d);
        s.size += fabs(b);
        s.squares += d * d;
    }
    return s;
}

void tool_sums_add(tool_sums *to, const tool_sums *more)
{
    to->dot += more->dot;
    to->mine += more->mine;
    to->exact += more->exact;
    to->difference += more->difference;
    to->size += more->size;
    to->squares += more->squares;
    to->count += more->count;
}

tool_metrics tool_metrics_of(const tool_sums *s)
{
    const bool zero = s->mine == 0 && s->exact == 0;
    return (tool_metrics){.cosine = zero                              ? 1
                                    : s->mine == 0 || s->exact == 0 ? 0
                                                                      : s->dot / sqrt(s->mine) / sqrt(s->exact),
                          .l1 = s->difference == 0 ? 0 : s->difference / s->size,
                          .rmse = sqrt(s->squares / s->count)};
}

tool_metrics tool_measure(const float *o, const double *exact, size_t n)
{
    const tool_sums sums = tool_sum(o, exact, n);
    return tool_metrics_of(&sums);
}

uint32_t tool_cores(void)
{
    const uint32_t cores = td_core_count();
    return cores < 1024 ? cores : 1024;
}

bool tool_run_mode(const td_head *head, uint32_t precision, uint32_t smooth, tool_cuda *cuda, float *o,
                   uint32_t threads, char *why, size_t why_bytes)
{
    const tandem_view dense = {.dtype = TANDEM_DTYPE_F32, .stride_row = head->dim};
    tandem_attention op = {.q = dense,
                           .k = dense,
                           .v = dense,
                           .o = dense,
                           .batch = 1,
                           .heads = 1,
                           .kv_heads = 1,
                           .q_len = head->q_len,
                           .kv_len = head->kv_len,
                           .head_dim = head->dim,
                           .scale = head->scale,
                           .causal = head->causal,
                           .precision = precision,
                           .smooth = smooth};
    if (td_attention_check(&op, why, why_bytes) != TANDEM_OK)
        return false;
    if (cuda) {
        const void *const inputs[3] = {head->q, head->k, head->v};
        tool_ran ran = {0};
        const bool done = tool_cuda_run(cuda, &op, inputs, o, NULL, NULL, &ran, why, why_bytes);
        td_plan_free(&ran.plan);
        return done;
    }
    const td_target target = td_target_for_sm(0);
    td_plan plan = {0};
    if (td_plan_attention(&op, &target, &plan, NULL, why, why_bytes) != TANDEM_OK)
        return false;
    void *scratch = td_aligned_alloc(256, td_align_up(plan.scratch_bytes + 1, 256));
    const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)head->q, (uintptr_t)head->k, (uintptr_t)head->v, (uintptr_t)o, 0};
    const tandem_status status =
        scratch ? td_exec_cpu_run(&plan, views, (uintptr_t)scratch, threads, NULL) : TANDEM_ERROR_NOMEM;
    td_aligned_free(scratch);
    td_plan_free(&plan);
    if (status != TANDEM_OK)
        td_fail(why, why_bytes, status, "the CPU could not run the plan: %s", tandem_status_text(status));
    return status == TANDEM_OK;
}
