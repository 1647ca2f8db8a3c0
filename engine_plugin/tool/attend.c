/* `tandem attend`: one attention on the tensors of a file.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Runs the plan that a session would run, on the same executors, so that the plan's scratch can be read afterwards.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine_plugin/exec/exec.h"
#include "engine_plugin/tool/tool.h"
#include "interop/os/cpu.h"
#include "interop/os/memory.h"
#include "kernels/cpu/cpu.h"
#include "tandem/tandem.h"

typedef struct arguments {
    const char *in, *out, *precision, *smooth, *granularity, *scale, *backend, *sm, *isa, *threads;
    bool causal, codes, json, session;
    uint32_t precision_value, backend_value, sm_value, thread_count;
} arguments;

enum { PRECISION_8B, PRECISION_4B, PRECISION_F16, PRECISION_REF };
enum { BACKEND_AUTO, BACKEND_CPU, BACKEND_CUDA, BACKEND_TWIN };
#define LIMIT_NS 600000000000u /* the longest that one attention may take on a device */
static const char *const precision_words[] = {"8b", "4b", "f16", "ref", NULL};
static const char *const backend_words[] = {"auto", "cpu", "cuda", "twin", NULL};

typedef struct attend {
    arguments args;
    tandem_attention op;
    tool_input inputs[3]; /* q, k, v */
    tool_file *file;
    tool_list result;
    void *o;
    float *lse;
    td_plan plan;
    td_attention_layout layout;
    unsigned char *scratch; /* on the host, once the plan has run */
    double ms;
    char backend[16], device[128], sm[12], note[256];
    char why[512];
} attend;

static double now_ms(void)
{
    return (double)td_now_ns() * 1e-6;
}

/* Options that the precision or the backend would ignore are refused, with the reason. */
static int refuse_clash(arguments *a)
{
    const bool ref = a->precision_value == PRECISION_REF, f16 = a->precision_value == PRECISION_F16;
    const bool twin = a->backend_value == BACKEND_TWIN, cuda = a->backend_value == BACKEND_CUDA;
    const struct {
        bool both;
        const char *option, *with, *why;
    } clashes[] = {
        {ref && a->codes, "--codes", "--precision ref", "it quantises nothing"},
        {ref && a->smooth, "--smooth", "--precision ref", "it quantises nothing"},
        {ref && a->granularity, "--granularity", "--precision ref", "it quantises nothing"},
        {ref && a->isa, "--isa", "--precision ref", "it is plain C in float64"},
        {ref && a->session, "--session", "--precision ref", "sessions have no such precision"},
        {ref && cuda, "--backend cuda", "--precision ref", "it is computed on the CPU"},
        {ref && twin, "--backend twin", "--precision ref", "it imitates no GPU"},
        {f16 && a->granularity, "--granularity", "--precision f16", "its scales are always of a single row"},
        {a->sm && !twin, "--sm", "this backend", "it names the GPU that --backend twin imitates"},
        {a->isa && twin, "--isa", "--backend twin", "the twin computes as the GPU does, whatever the CPU"},
        {a->isa && cuda, "--isa", "--backend cuda", "it is about the CPU's kernels"},
        {a->threads && cuda, "--threads", "--backend cuda", "it is about the CPU's kernels"},
        {a->session && a->codes, "--codes", "--session", "a session keeps its scratch to itself"},
        {a->session && twin, "--backend twin", "--session", "no session imitates a GPU"},
    };
    for (size_t i = 0; i < sizeof clashes / sizeof *clashes; i++)
        if (clashes[i].both)
            return tool_usage("attend", "%s does not go with %s: %s", clashes[i].option, clashes[i].with,
                              clashes[i].why);
    if (a->isa) /* who names the CPU's instructions wants the CPU */
        a->backend_value = BACKEND_CPU;
    return TOOL_OK;
}

/* The command line, and everything of `op` that it says. */
static int read_arguments(int argc, char **argv, arguments *a, tandem_attention *op)
{
    const tool_option options[] = {
        {"--in", &a->in, NULL},           {"--out", &a->out, NULL},     {"--precision", &a->precision, NULL},
        {"--smooth", &a->smooth, NULL},   {"--scale", &a->scale, NULL}, {"--granularity", &a->granularity, NULL},
        {"--backend", &a->backend, NULL}, {"--sm", &a->sm, NULL},       {"--threads", &a->threads, NULL},
        {"--causal", NULL, &a->causal},   {"--codes", NULL, &a->codes}, {"--json", NULL, &a->json},
        {"--session", NULL, &a->session}, {"--isa", &a->isa, NULL},
    };
    if (tool_parse("attend", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!a->in || !a->out || !a->precision)
        return tool_usage("attend", "%s is missing; `tandem help attend` explains it",
                          !a->in    ? "--in"
                          : !a->out ? "--out"
                                    : "--precision");
    const int precision = tool_word(a->precision, precision_words);
    if (precision < 0)
        return tool_usage("attend", "--precision \"%s\" is none of 8b, 4b, f16, ref", a->precision);
    a->precision_value = (uint32_t)precision;
    static const uint32_t precisions[] = {TANDEM_PRECISION_8B, TANDEM_PRECISION_4B, TANDEM_PRECISION_F16,
                                          TANDEM_PRECISION_F16};
    op->precision = precisions[precision];

    const int backend = a->backend ? tool_word(a->backend, backend_words) : BACKEND_AUTO;
    if (backend < 0)
        return tool_usage("attend", "--backend \"%s\" is none of cpu, cuda, auto, twin", a->backend);
    a->backend_value = (uint32_t)backend;
    static const char *const sms[] = {"80", "86", "89", "90", "120", NULL};
    static const uint32_t sm_values[] = {80, 86, 89, 90, 120};
    const int sm = a->sm ? tool_word(a->sm, sms) : 3;
    if (sm < 0)
        return tool_usage("attend", "--sm \"%s\" is none of 80, 86, 89, 90, 120", a->sm);
    a->sm_value = sm_values[sm];

    static const char *const granularities[] = {"thread", "thread-ada", "thread-hopper", "token",
                                                "warp",   "block",      "tensor",        NULL};
    const int granularity = a->granularity ? tool_word(a->granularity, granularities) : 0;
    if (granularity < 0)
        return tool_usage(
            "attend", "--granularity \"%s\" is none of tensor, block, warp, thread, thread-ada, thread-hopper, token",
            a->granularity);
    op->granularity = (uint32_t)granularity;

    if (a->smooth && strcmp(a->smooth, "none") == 0) {
        op->smooth = TANDEM_SMOOTH_NONE;
    } else if (a->smooth) {
        for (const char *c = a->smooth; *c; c++) {
            const uint32_t bit = *c == 'q'   ? TANDEM_SMOOTH_Q
                                 : *c == 'k' ? TANDEM_SMOOTH_K
                                 : *c == 'v' ? TANDEM_SMOOTH_V
                                             : 0;
            if (!bit)
                return tool_usage("attend", "--smooth \"%s\" is neither none nor made of the letters q, k, v",
                                  a->smooth);
            op->smooth |= bit;
        }
    }
    if (a->scale) {
        char *end = NULL;
        op->scale = strtof(a->scale, &end);
        if (*end || end == a->scale || !isfinite(op->scale) || op->scale == 0)
            return tool_usage("attend", "--scale \"%s\" is not a finite number other than 0", a->scale);
    }
    static const char *const isas[] = {"c", "avx2", "avx512-vnni", NULL};
    if (a->isa && tool_word(a->isa, isas) < 0)
        return tool_usage("attend", "--isa \"%s\" is none of c, avx2, avx512-vnni", a->isa);
    uint64_t threads = 0;
    if (a->threads && !tool_number(a->threads, 1, 1024, &threads))
        return tool_usage("attend", "--threads \"%s\" is not a number from 1 to 1024", a->threads);
    a->thread_count = threads ? (uint32_t)threads : td_core_count();
    op->causal = a->causal;
    return refuse_clash(a);
}

static tandem_view dense(uint32_t dtype, uint64_t heads, uint64_t rows, uint64_t dim)
{
    return (tandem_view){.dtype = dtype,
                         .stride_batch = (int64_t)(heads * rows * dim),
                         .stride_head = (int64_t)(rows * dim),
                         .stride_row = (int64_t)dim};
}

static bool read_inputs(attend *a)
{
    static const char *const names[] = {"q", "k", "v"};
    a->file = tool_open(a->args.in, a->why, sizeof a->why);
    if (!a->file)
        return false;
    for (int i = 0; i < 3; i++)
        if (!tool_find(a->file, names[i], &a->inputs[i], a->why, sizeof a->why))
            return false;
    const tool_input *q = &a->inputs[0], *k = &a->inputs[1], *v = &a->inputs[2];
    for (int i = 0; i < 3; i++)
        for (int c = 0; c < 4; c++)
            if (a->inputs[i].shape[c] == 0 || a->inputs[i].shape[c] > INT32_MAX) {
                td_fail(a->why, sizeof a->why, TANDEM_ERROR_ARG,
                        "%s: dimension %d is %llu; 1 to 2147483647 are possible", names[i], c,
                        (unsigned long long)a->inputs[i].shape[c]);
                return false;
            }
    static const char *const dims[] = {"batch", "heads", "rows", "head_dim"};
    for (int c = 0; c < 4; c++) {
        if (k->shape[c] != v->shape[c]) {
            td_fail(a->why, sizeof a->why, TANDEM_ERROR_ARG, "k and v differ in %s: %llu and %llu", dims[c],
                    (unsigned long long)k->shape[c], (unsigned long long)v->shape[c]);
            return false;
        }
        if ((c == 0 || c == 3) && q->shape[c] != k->shape[c]) {
            td_fail(a->why, sizeof a->why, TANDEM_ERROR_ARG, "q and k differ in %s: %llu and %llu", dims[c],
                    (unsigned long long)q->shape[c], (unsigned long long)k->shape[c]);
            return false;
        }
    }
    tandem_attention *op = &a->op;
    op->batch = (uint32_t)q->shape[0];
    op->heads = (uint32_t)q->shape[1];
    op->q_len = (uint32_t)q->shape[2];
    op->head_dim = (uint32_t)q->shape[3];
    op->kv_heads = (uint32_t)k->shape[1];
    op->kv_len = (uint32_t)k->shape[2];
    op->q = op->o = dense(q->dtype, op->heads, op->q_len, op->head_dim);
    op->k = dense(k->dtype, op->kv_heads, op->kv_len, op->head_dim);
    op->v = dense(v->dtype, op->kv_heads, op->kv_len, op->head_dim);
    op->lse = dense(TANDEM_DTYPE_F32, op->heads, op->q_len, 1);
    return td_attention_check(op, a->why, sizeof a->why) == TANDEM_OK;
}

static bool out_of_memory(attend *a)
{
    td_fail(a->why, sizeof a->why, TANDEM_ERROR_NOMEM, "out of memory");
    return false;
}

static bool make_outputs(attend *a)
{
    static const char *const dtypes[] = {"", "F16", "BF16", "F32"};
    const tandem_attention *op = &a->op;
    a->o = tool_add(&a->result, "o", dtypes[op->o.dtype & 3], 4, op->batch, op->heads, op->q_len, op->head_dim);
    a->lse = tool_add(&a->result, "lse", "F32", 3, op->batch, op->heads, op->q_len, 1);
    return a->o && a->lse ? true : out_of_memory(a);
}

/* --precision ref: (batch, head) pairs shared out over threads. */
typedef struct ref_work {
    const attend *a;
    double *o, *lse;
    atomic_uint next;
} ref_work;

static void *ref_thread(void *pointer)
{
    ref_work *work = pointer;
    const tandem_attention *whole = &work->a->op;
    const uint32_t pairs = whole->batch * whole->heads;
    for (uint32_t i; (i = atomic_fetch_add(&work->next, 1)) < pairs;) {
        const uint32_t b = i / whole->heads, h = i % whole->heads, hk = h / (whole->heads / whole->kv_heads);
        tandem_attention op = *whole;
        op.batch = op.heads = op.kv_heads = 1;
        const char *base[3];
        const tandem_view *views[3] = {&whole->q, &whole->k, &whole->v};
        for (int t = 0; t < 3; t++)
            base[t] = (const char *)work->a->inputs[t].data +
                      (int64_t)td_dtype_bytes(views[t]->dtype) *
                          (b * views[t]->stride_batch + (t ? hk : h) * views[t]->stride_head);
        const uint64_t row = (uint64_t)i * whole->q_len;
        td_ref_attention(&op, base[0], base[1], base[2], work->o + row * whole->head_dim, work->lse + row);
    }
    return NULL;
}

/* To the nearest float, ties to odd: what is rounded from it to fewer bits is rounded as if from the double. */
static float float_to_odd(double x)
{
    float f = (float)x;
    if (!isfinite(x) || !isfinite(f) || (double)f == x)
        return f;
    if (fabs((double)f) > fabs(x))
        f = nextafterf(f, 0);
    return td_float(td_bits(f) | 1);
}

static bool run_ref(attend *a)
{
    const tandem_attention *op = &a->op;
    double *o = tool_add(&a->result, "o_f64", "F64", 4, op->batch, op->heads, op->q_len, op->head_dim);
    double *lse = tool_add(&a->result, "lse_f64", "F64", 3, op->batch, op->heads, op->q_len, 1);
    if (!o || !lse)
        return out_of_memory(a);
    const double begin = now_ms();
    ref_work work = {.a = a, .o = o, .lse = lse};
    pthread_t threads[1024];
    uint32_t started = 0;
    while (started + 1 < a->args.thread_count && started + 1 < op->batch * op->heads &&
           pthread_create(&threads[started], NULL, ref_thread, &work) == 0)
        started++;
    ref_thread(&work);
    while (started)
        pthread_join(threads[--started], NULL);
    a->ms = now_ms() - begin;
    const uint64_t rows = (uint64_t)op->batch * op->heads * op->q_len, count = rows * op->head_dim;
    for (uint64_t i = 0; i < count; i++) {
        if (op->o.dtype == TANDEM_DTYPE_F32)
            ((float *)a->o)[i] = (float)o[i];
        else if (op->o.dtype == TANDEM_DTYPE_BF16)
            ((uint16_t *)a->o)[i] = td_to_bf16(float_to_odd(o[i]));
        else
            ((uint16_t *)a->o)[i] = td_to_f16(float_to_odd(o[i]));
    }
    for (uint64_t i = 0; i < rows; i++)
        a->lse[i] = (float)lse[i];
    snprintf(a->backend, sizeof a->backend, "cpu");
    snprintf(a->device, sizeof a->device, "float64");
    tool_pair(&a->result, "precision", "ref");
    tool_pair(&a->result, "causal", "%u", op->causal);
    tool_pair(&a->result, "scale", op->scale != 0 ? "%.9g" : "1/sqrt(head_dim)", (double)op->scale);
    return true;
}

/* The plan on the CPU: the shipped kernels for sm 0, the twin of a GPU otherwise. */
static bool run_cpu(attend *a, uint32_t sm)
{
    td_target target = td_target_for_sm(sm);
    target.twin = sm != 0;
    if (td_plan_attention(&a->op, &target, &a->plan, &a->layout, a->why, sizeof a->why) != TANDEM_OK ||
        (a->args.codes && !tool_has_codes(&a->plan, &a->layout, a->why, sizeof a->why)))
        return false;
    if (a->plan.scratch_bytes > SIZE_MAX - 4096)
        return out_of_memory(a);
    a->scratch = td_aligned_alloc(256, td_align_up(a->plan.scratch_bytes + 1, 256));
    if (!a->scratch)
        return out_of_memory(a);
    const uint64_t views[TD_VIEW_COUNT] = {(uintptr_t)a->inputs[0].data, (uintptr_t)a->inputs[1].data,
                                           (uintptr_t)a->inputs[2].data, (uintptr_t)a->o, (uintptr_t)a->lse};
    const double begin = now_ms();
    const tandem_status status = td_exec_cpu_run(&a->plan, views, (uintptr_t)a->scratch, a->args.thread_count, NULL);
    a->ms = now_ms() - begin;
    if (status != TANDEM_OK) {
        td_fail(a->why, sizeof a->why, status, "the CPU could not run the plan: %s", tandem_status_text(status));
        return false;
    }
    snprintf(a->backend, sizeof a->backend, "%s", sm ? "twin" : "cpu");
    snprintf(a->device, sizeof a->device, "%s", td_cpu_isa());
    if (sm) {
        snprintf(a->device, sizeof a->device, "twin of sm_%u", sm);
        snprintf(a->sm, sizeof a->sm, "%u", sm);
    }
    return true;
}

static bool try_cuda(attend *a)
{
    const void *const inputs[3] = {a->inputs[0].data, a->inputs[1].data, a->inputs[2].data};
    tool_ran ran = {0};
    tool_cuda *cuda = tool_cuda_open(a->why, sizeof a->why);
    if (!cuda)
        return false;
    const bool done = tool_cuda_run(cuda, &a->op, inputs, a->o, a->lse, a->args.codes ? &a->scratch : NULL, &ran, a->why,
                                    sizeof a->why);
    if (done) {
        a->plan = ran.plan;
        a->layout = ran.layout;
        a->ms = ran.ms;
        snprintf(a->backend, sizeof a->backend, "cuda");
        snprintf(a->device, sizeof a->device, "%s", tool_cuda_name(cuda));
        snprintf(a->sm, sizeof a->sm, "%u", tool_cuda_sm(cuda));
    }
    if (!done)
        td_plan_free(&ran.plan);
    tool_cuda_close(cuda);
    return done;
}

/* The same job through the public API. */
static bool run_session(attend *a)
{
    static const uint32_t backends[] = {TANDEM_BACKEND_AUTO, TANDEM_BACKEND_CPU, TANDEM_BACKEND_CUDA};
    tandem_session_desc desc = TANDEM_INIT(tandem_session_desc,
                                           .backend = backends[a->args.backend_value],
                                           .cpu_threads = a->args.thread_count,
                                           .timing = 1,
                                           .error_text = a->why,
                                           .error_text_bytes = sizeof a->why);
    tandem_session *session = NULL;
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_ATTENTION, .op.attention = a->op);
    tandem_attention *op = &job.op.attention;
    tandem_view *views[] = {&op->q, &op->k, &op->v, &op->o, &op->lse};
    const uint32_t heads[] = {op->heads, op->kv_heads, op->kv_heads, op->heads, op->heads};
    const uint32_t rows[] = {op->q_len, op->kv_len, op->kv_len, op->q_len, op->q_len};
    uint64_t bytes[5];
    void *host[5] = {NULL};
    tandem_status status = tandem_session_create(&desc, &session);
    if (status != TANDEM_OK)
        return false;
    for (int i = 0; i < 5 && status == TANDEM_OK; i++) {
        bytes[i] = td_view_extent_bytes(views[i], op->batch, heads[i], rows[i], i == 4 ? 1 : op->head_dim);
        const tandem_mem_desc mem = TANDEM_INIT(tandem_mem_desc,
                                                .source = TANDEM_MEM_CREATE, .bytes = bytes[i], .fd = -1);
        status = tandem_mem_create(session, &mem, &views[i]->mem);
        if (status == TANDEM_OK)
            status = tandem_mem_host(session, views[i]->mem, &host[i]);
        if (status == TANDEM_OK && i < 3)
            memcpy(host[i], a->inputs[i].data, bytes[i]);
    }
    tandem_ticket ticket = 0;
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    tandem_info info = TANDEM_INIT(tandem_info);
    const double begin = now_ms();
    if (status == TANDEM_OK)
        status = tandem_submit(session, &job, &ticket);
    if (status == TANDEM_OK)
        status = tandem_wait(session, ticket, LIMIT_NS, &report);
    a->ms = now_ms() - begin;
    const bool done = status == TANDEM_OK && report.state == TANDEM_JOB_DONE;
    if (done) {
        memcpy(a->o, host[3], bytes[3]);
        memcpy(a->lse, host[4], bytes[4]);
        if (report.end_ns > report.begin_ns)
            a->ms = (double)(report.end_ns - report.begin_ns) * 1e-6;
        tandem_session_info(session, &info);
        snprintf(a->backend, sizeof a->backend, "%s", tool_backend_name(info.backend));
        snprintf(a->device, sizeof a->device, "%s", info.backend == TANDEM_BACKEND_CPU ? info.isa : info.device);
        if (info.sm)
            snprintf(a->sm, sizeof a->sm, "%u", info.sm);
        /* Only for the metadata: the plan that the session made. */
        const td_target target = td_target_for_sm(info.sm);
        td_plan_attention(&a->op, &target, &a->plan, &a->layout, a->why, sizeof a->why);
    } else {
        tandem_error_text(session, a->why, sizeof a->why);
        if (!a->why[0])
            td_fail(a->why, sizeof a->why, status, "the job ended in state %u: %s", report.state,
                    tandem_status_text(report.status));
    }
    tandem_session_destroy(&session);
    return done;
}

static bool run_plan(attend *a)
{
    if (a->args.session)
        return run_session(a);
    switch (a->args.backend_value) {
    case BACKEND_CPU: return run_cpu(a, 0);
    case BACKEND_TWIN: return run_cpu(a, a->args.sm_value);
    case BACKEND_CUDA: return try_cuda(a);
    default:
        if (try_cuda(a))
            return true;
        snprintf(a->note, sizeof a->note, "%.255s", a->why);
        a->why[0] = 0;
        td_aligned_free(a->scratch);
        a->scratch = NULL;
        return run_cpu(a, 0);
    }
}

static const char *pair(const attend *a, const char *key)
{
    for (uint32_t i = 0; i < a->result.pair_count; i++)
        if (strcmp(a->result.keys[i], key) == 0)
            return a->result.values[i];
    return "";
}

static void report_text(const attend *a)
{
    const tandem_attention *op = &a->op;
    printf("%s on %s (%s)", pair(a, "precision"), a->backend, a->device);
    if (a->args.precision_value != PRECISION_REF)
        printf(", smooth %s, scales per %s", pair(a, "smooth"), pair(a, "granularity"));
    printf(": q [%u,%u,%u,%u], k and v [%u,%u,%u,%u], %.3f ms -> %s\n", op->batch, op->heads, op->q_len, op->head_dim,
           op->batch, op->kv_heads, op->kv_len, op->head_dim, a->ms, a->args.out);
    if (a->note[0])
        printf("not on cuda: %s\n", a->note);
}

static void report_json(const attend *a)
{
    printf("{");
    for (uint32_t i = 0; i < a->result.pair_count; i++) {
        tool_json_string(a->result.keys[i]);
        printf(": ");
        tool_json_string(a->result.values[i]);
        printf(", ");
    }
    printf("\"ms\": %.6f, \"threads\": %u, \"backend_reason\": ", a->ms, a->args.thread_count);
    tool_json_string(a->note);
    printf(", \"out\": ");
    tool_json_string(a->args.out);
    printf(", \"tensors\": {");
    for (uint32_t i = 0; i < a->result.count; i++) {
        const tool_tensor *t = &a->result.tensors[i];
        printf("%s\"%s\": {\"dtype\": \"%s\", \"shape\": [", i ? ", " : "", t->name, t->dtype);
        for (uint32_t c = 0; c < t->rank; c++)
            printf(c ? ", %llu" : "%llu", (unsigned long long)t->shape[c]);
        printf("]}");
    }
    printf("}}\n");
}

static bool compute(attend *a)
{
    if (a->args.isa && !td_cpu_isa_force(a->args.isa)) {
        td_fail(a->why, sizeof a->why, TANDEM_ERROR_UNSUPPORTED, "--isa %s: this CPU has no more than %s", a->args.isa,
                td_cpu_isa());
        return false;
    }
    if (!tool_can_save("--out", a->args.out, a->why, sizeof a->why) || !read_inputs(a) || !make_outputs(a))
        return false;
    tool_pair(&a->result, "tandem", "%d.%d.%d", TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR, TANDEM_VERSION_PATCH);
    if (a->args.precision_value == PRECISION_REF) {
        if (!run_ref(a))
            return false;
    } else {
        if (!run_plan(a))
            return false;
        tool_arithmetic(&a->op, &a->plan, &a->layout, &a->result);
        if (a->args.codes && !tool_codes(&a->op, &a->plan, &a->layout, a->scratch, &a->result))
            return out_of_memory(a);
    }
    tool_pair(&a->result, "backend", "%s", a->backend);
    tool_pair(&a->result, "device", "%s", a->device);
    if (a->sm[0])
        tool_pair(&a->result, "sm", "%s", a->sm);
    return tool_save(a->args.out, &a->result, a->why, sizeof a->why);
}

int tool_attend(int argc, char **argv)
{
    attend *a = calloc(1, sizeof *a);
    if (!a)
        return tool_fail("attend", "out of memory");
    int status = read_arguments(argc, argv, &a->args, &a->op);
    if (status == TOOL_OK) {
        if (!compute(a))
            status = tool_fail("attend", "%s", a->why[0] ? a->why : "failed");
        else if (a->args.json)
            report_json(a);
        else
            report_text(a);
    }
    tool_list_free(&a->result);
    tool_close(a->file);
    td_aligned_free(a->scratch);
    td_plan_free(&a->plan);
    free(a);
    return status;
}
