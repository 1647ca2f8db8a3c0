/* cuDNN's fp16 attention, to compare with.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * cuDNN is not needed to build this: what is used of its backend API (version 9) is declared here. The graph is the one
 * that its own front end makes of scaled dot product attention, so that heuristics pick the same kernels as for others:
 *
 *     S = Q K^T ; S * scale ; [row >= column ? S : -inf] ; exp(S - max) / sum ; O = P V
 */
#include "tests/bench/cudnn.h"

#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/cu/driver.h"

typedef void *descriptor;

enum { /* cudnnBackendDescriptorType_t */
    POINTWISE = 0,
    ENGINECFG = 3,
    ENGINEHEUR = 4,
    EXECUTION_PLAN = 5,
    OPERATION_POINTWISE = 13,
    OPERATIONGRAPH = 15,
    VARIANT_PACK = 16,
    TENSOR = 17,
    MATMUL = 18,
    OPERATION_MATMUL = 19,
    REDUCTION = 21,
    OPERATION_REDUCTION = 22
};

enum { /* cudnnBackendAttributeName_t */
    POINTWISE_MODE = 0,
    POINTWISE_MATH_PREC = 1,
    POINTWISE_AXIS = 9,
    ENGINEHEUR_MODE = 200,
    ENGINEHEUR_OPERATION_GRAPH = 201,
    ENGINEHEUR_RESULTS = 202,
    EXECUTION_PLAN_HANDLE = 400,
    EXECUTION_PLAN_ENGINE_CONFIG = 401,
    EXECUTION_PLAN_WORKSPACE_SIZE = 402,
    OPERATION_POINTWISE_PW_DESCRIPTOR = 750,
    OPERATION_POINTWISE_XDESC = 751,
    OPERATION_POINTWISE_BDESC = 752,
    OPERATION_POINTWISE_YDESC = 753,
    OPERATION_POINTWISE_TDESC = 758,
    OPERATIONGRAPH_HANDLE = 800,
    OPERATIONGRAPH_OPS = 801,
    TENSOR_BYTE_ALIGNMENT = 900,
    TENSOR_DATA_TYPE = 901,
    TENSOR_DIMENSIONS = 902,
    TENSOR_STRIDES = 903,
    TENSOR_UNIQUE_ID = 906,
    TENSOR_IS_VIRTUAL = 907,
    TENSOR_IS_BY_VALUE = 908,
    VARIANT_PACK_UNIQUE_IDS = 1000,
    VARIANT_PACK_DATA_POINTERS = 1001,
    VARIANT_PACK_WORKSPACE = 1003,
    MATMUL_COMP_TYPE = 1500,
    OPERATION_MATMUL_ADESC = 1520,
    OPERATION_MATMUL_BDESC = 1521,
    OPERATION_MATMUL_CDESC = 1522,
    OPERATION_MATMUL_DESC = 1523,
    REDUCTION_OPERATOR = 1600,
    REDUCTION_COMP_TYPE = 1601,
    OPERATION_REDUCTION_XDESC = 1610,
    OPERATION_REDUCTION_YDESC = 1611,
    OPERATION_REDUCTION_DESC = 1612
};

enum { /* cudnnBackendAttributeType_t */
    TYPE_HANDLE = 0,
    TYPE_DATA_TYPE = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_VOID_PTR = 6,
    TYPE_HEUR_MODE = 8,
    TYPE_POINTWISE_MODE = 14,
    TYPE_BACKEND_DESCRIPTOR = 15,
    TYPE_REDUCTION_OPERATOR = 18
};

enum { DATA_FLOAT = 0, DATA_HALF = 2, DATA_INT32 = 4, DATA_BOOLEAN = 11 }; /* cudnnDataType_t */
enum { MODE_ADD = 0, MODE_MUL = 1, MODE_DIV = 6, MODE_SUB = 9, MODE_EXP = 13, MODE_LOG = 15, MODE_CMP_GE = 303,
       MODE_GEN_INDEX = 501, MODE_BINARY_SELECT = 601 };  /* cudnnPointwiseMode_t */
enum { REDUCE_ADD = 0, REDUCE_MAX = 3 };                  /* cudnnReduceTensorOp_t */
enum { HEURISTIC_A = 3, CONFIGURATIONS = 8, MOST_DESCRIPTORS = 192, MOST_OPERATIONS = 16, MOST_SETS = 64 };
enum { UID_Q = 1, UID_K, UID_V, UID_O, UID_SCALE, UID_MASKED, UID_VIRTUAL };

/* X(name, parameters) */
#define CUDNN_FUNCTIONS(X)                                                                                             \
    X(cudnnGetVersion, size_t, (void))                                                                                 \
    X(cudnnGetErrorString, const char *, (int))                                                                        \
    X(cudnnCreate, int, (void **))                                                                                     \
    X(cudnnDestroy, int, (void *))                                                                                     \
    X(cudnnSetStream, int, (void *, void *))                                                                           \
    X(cudnnBackendCreateDescriptor, int, (int, descriptor *))                                                          \
    X(cudnnBackendDestroyDescriptor, int, (descriptor))                                                                \
    X(cudnnBackendSetAttribute, int, (descriptor, int, int, int64_t, const void *))                                    \
    X(cudnnBackendGetAttribute, int, (descriptor, int, int, int64_t, int64_t *, void *))                               \
    X(cudnnBackendFinalize, int, (descriptor))                                                                         \
    X(cudnnBackendExecute, int, (void *, descriptor, descriptor))

/* Of the driver, beyond what Tandem itself uses; all return a CUresult. */
#define CUDA_FUNCTIONS(X)                                                                                              \
    X(cuStreamCreate, int, (void **, unsigned))                                                                        \
    X(cuStreamDestroy_v2, int, (void *))                                                                               \
    X(cuStreamSynchronize, int, (void *))                                                                              \
    X(cuStreamBeginCapture_v2, int, (void *, int))                                                                     \
    X(cuStreamEndCapture, int, (void *, void **))                                                                      \
    X(cuGraphInstantiateWithFlags, int, (void **, void *, unsigned long long))                                         \
    X(cuGraphLaunch, int, (void *, void *))                                                                            \
    X(cuGraphDestroy, int, (void *))                                                                                   \
    X(cuGraphExecDestroy, int, (void *))                                                                               \
    X(cuEventCreate, int, (void **, unsigned))                                                                         \
    X(cuEventDestroy_v2, int, (void *))                                                                                \
    X(cuEventRecord, int, (void *, void *))                                                                            \
    X(cuEventElapsedTime, int, (float *, void *, void *))

struct bench_cudnn {
    td_cu_device *device;
    void *library, *cuda, *handle, *stream, *events[2], *graph;
#define FIELD(name, result, parameters) result(*name) parameters;
    CUDNN_FUNCTIONS(FIELD)
    CUDA_FUNCTIONS(FIELD)
#undef FIELD
    /* One shape's graph. `status` is sticky while it is made; `step` says where it failed. */
    int status;
    const char *step;
    descriptor descriptors[MOST_DESCRIPTORS], operations[MOST_OPERATIONS], plan;
    uint32_t descriptor_count, operation_count;
    int64_t next_uid;
    float scale, masked;
    bool causal;
    td_cu_mem workspace;
};

static bool fail(bench_cudnn *c, int status, const char *step)
{
    if (status && !c->status) {
        c->status = status;
        c->step = step;
    }
    return status == 0;
}

static descriptor create(bench_cudnn *c, int type, const char *step)
{
    descriptor d = NULL;
    if (c->status || (c->descriptor_count == MOST_DESCRIPTORS && !fail(c, -1, "too many descriptors")))
        return NULL;
    if (fail(c, c->cudnnBackendCreateDescriptor(type, &d), step))
        c->descriptors[c->descriptor_count++] = d;
    return d;
}

static void set(bench_cudnn *c, descriptor d, int name, int type, int64_t count, const void *values, const char *step)
{
    if (!c->status)
        fail(c, c->cudnnBackendSetAttribute(d, name, type, count, values), step);
}

static void set_int(bench_cudnn *c, descriptor d, int name, int type, int value, const char *step)
{
    set(c, d, name, type, 1, &value, step);
}

static void link(bench_cudnn *c, descriptor d, int name, descriptor other, const char *step)
{
    set(c, d, name, TYPE_BACKEND_DESCRIPTOR, 1, &other, step);
}

static void finish(bench_cudnn *c, descriptor d, const char *step)
{
    if (!c->status)
        fail(c, c->cudnnBackendFinalize(d), step);
}

/* uid 0: virtual, with the next free number. */
static descriptor tensor(bench_cudnn *c, int data_type, const int64_t dims[4], const int64_t strides[4], int64_t uid,
                         bool by_value)
{
    static const char step[] = "a tensor";
    const int64_t alignment = 16, number = uid ? uid : c->next_uid++;
    const bool yes = true;
    descriptor d = create(c, TENSOR, step);
    set_int(c, d, TENSOR_DATA_TYPE, TYPE_DATA_TYPE, data_type, step);
    set(c, d, TENSOR_DIMENSIONS, TYPE_INT64, 4, dims, step);
    set(c, d, TENSOR_STRIDES, TYPE_INT64, 4, strides, step);
    set(c, d, TENSOR_UNIQUE_ID, TYPE_INT64, 1, &number, step);
    set(c, d, TENSOR_BYTE_ALIGNMENT, TYPE_INT64, 1, &alignment, step);
    if (!uid)
        set(c, d, TENSOR_IS_VIRTUAL, TYPE_BOOLEAN, 1, &yes, step);
    if (by_value)
        set(c, d, TENSOR_IS_BY_VALUE, TYPE_BOOLEAN, 1, &yes, step);
    finish(c, d, step);
    return d;
}

static void operation(bench_cudnn *c, descriptor d, const char *step)
{
    finish(c, d, step);
    if (!c->status && c->operation_count < MOST_OPERATIONS)
        c->operations[c->operation_count++] = d;
    else
        fail(c, -1, "too many operations");
}

static void matmul(bench_cudnn *c, descriptor a, descriptor b, descriptor y)
{
    static const char step[] = "a matrix product";
    descriptor how = create(c, MATMUL, step);
    set_int(c, how, MATMUL_COMP_TYPE, TYPE_DATA_TYPE, DATA_FLOAT, step);
    finish(c, how, step);
    descriptor d = create(c, OPERATION_MATMUL, step);
    link(c, d, OPERATION_MATMUL_ADESC, a, step);
    link(c, d, OPERATION_MATMUL_BDESC, b, step);
    link(c, d, OPERATION_MATMUL_CDESC, y, step);
    link(c, d, OPERATION_MATMUL_DESC, how, step);
    operation(c, d, step);
}

static void pointwise(bench_cudnn *c, int mode, int precision, int64_t axis, descriptor x, descriptor b, descriptor t,
                      descriptor y)
{
    static const char step[] = "an elementwise operation";
    descriptor how = create(c, POINTWISE, step);
    set_int(c, how, POINTWISE_MODE, TYPE_POINTWISE_MODE, mode, step);
    set_int(c, how, POINTWISE_MATH_PREC, TYPE_DATA_TYPE, precision, step);
    if (mode == MODE_GEN_INDEX)
        set(c, how, POINTWISE_AXIS, TYPE_INT64, 1, &axis, step);
    finish(c, how, step);
    descriptor d = create(c, OPERATION_POINTWISE, step);
    link(c, d, OPERATION_POINTWISE_PW_DESCRIPTOR, how, step);
    link(c, d, OPERATION_POINTWISE_XDESC, x, step);
    link(c, d, OPERATION_POINTWISE_YDESC, y, step);
    if (b)
        link(c, d, OPERATION_POINTWISE_BDESC, b, step);
    if (t)
        link(c, d, OPERATION_POINTWISE_TDESC, t, step);
    operation(c, d, step);
}

static void reduce(bench_cudnn *c, int how_to, descriptor x, descriptor y)
{
    static const char step[] = "a reduction";
    descriptor how = create(c, REDUCTION, step);
    set_int(c, how, REDUCTION_OPERATOR, TYPE_REDUCTION_OPERATOR, how_to, step);
    set_int(c, how, REDUCTION_COMP_TYPE, TYPE_DATA_TYPE, DATA_FLOAT, step);
    finish(c, how, step);
    descriptor d = create(c, OPERATION_REDUCTION, step);
    link(c, d, OPERATION_REDUCTION_XDESC, x, step);
    link(c, d, OPERATION_REDUCTION_YDESC, y, step);
    link(c, d, OPERATION_REDUCTION_DESC, how, step);
    operation(c, d, step);
}

static void build_operations(bench_cudnn *c, const bench_cudnn_shape *s)
{
    const int64_t b = s->batch, h = s->heads, m = s->q_len, n = s->kv_len, d = s->head_dim;
    const int64_t q_dims[4] = {b, h, m, d}, q_strides[4] = {h * m * d, m * d, d, 1};
    const int64_t k_dims[4] = {b, h, d, n}, k_strides[4] = {h * n * d, n * d, 1, d}; /* transposed */
    const int64_t v_dims[4] = {b, h, n, d}, v_strides[4] = {h * n * d, n * d, d, 1};
    const int64_t s_dims[4] = {b, h, m, n}, s_strides[4] = {h * m * n, m * n, n, 1};
    const int64_t row_dims[4] = {b, h, m, 1}, row_strides[4] = {h * m, m, 1, 1};
    const int64_t one[4] = {1, 1, 1, 1};
    descriptor q = tensor(c, DATA_HALF, q_dims, q_strides, UID_Q, false);
    descriptor k = tensor(c, DATA_HALF, k_dims, k_strides, UID_K, false);
    descriptor v = tensor(c, DATA_HALF, v_dims, v_strides, UID_V, false);
    descriptor o = tensor(c, DATA_HALF, q_dims, q_strides, UID_O, false);
    descriptor scale = tensor(c, DATA_FLOAT, one, one, UID_SCALE, true);
    descriptor scores = tensor(c, DATA_FLOAT, s_dims, s_strides, 0, false);
    descriptor scaled = tensor(c, DATA_FLOAT, s_dims, s_strides, 0, false);
    matmul(c, q, k, scores);
    pointwise(c, MODE_MUL, DATA_FLOAT, 0, scores, scale, NULL, scaled);
    if (s->causal) {
        descriptor rows = tensor(c, DATA_INT32, s_dims, s_strides, 0, false);
        descriptor columns = tensor(c, DATA_INT32, s_dims, s_strides, 0, false);
        descriptor keep = tensor(c, DATA_BOOLEAN, s_dims, s_strides, 0, false);
        descriptor masked = tensor(c, DATA_FLOAT, one, one, UID_MASKED, true);
        descriptor selected = tensor(c, DATA_FLOAT, s_dims, s_strides, 0, false);
        pointwise(c, MODE_GEN_INDEX, DATA_INT32, 2, scaled, NULL, NULL, rows);
        pointwise(c, MODE_GEN_INDEX, DATA_INT32, 3, scaled, NULL, NULL, columns);
        pointwise(c, MODE_CMP_GE, DATA_BOOLEAN, 0, rows, columns, NULL, keep);
        pointwise(c, MODE_BINARY_SELECT, DATA_FLOAT, 0, scaled, masked, keep, selected);
        scaled = selected;
    }
    descriptor most = tensor(c, DATA_FLOAT, row_dims, row_strides, 0, false);
    descriptor below = tensor(c, DATA_FLOAT, s_dims, s_strides, 0, false);
    descriptor weights = tensor(c, DATA_FLOAT, s_dims, s_strides, 0, false);
    descriptor sum = tensor(c, DATA_FLOAT, row_dims, row_strides, 0, false);
    descriptor log_sum = tensor(c, DATA_FLOAT, row_dims, row_strides, 0, false);
    descriptor lse = tensor(c, DATA_FLOAT, row_dims, row_strides, 0, false);
    descriptor p = tensor(c, DATA_HALF, s_dims, s_strides, 0, false);
    reduce(c, REDUCE_MAX, scaled, most);
    pointwise(c, MODE_SUB, DATA_FLOAT, 0, scaled, most, NULL, below);
    pointwise(c, MODE_EXP, DATA_FLOAT, 0, below, NULL, NULL, weights);
    reduce(c, REDUCE_ADD, weights, sum);
    /* Nobody reads them, but the pattern that cuDNN looks for has them. */
    pointwise(c, MODE_LOG, DATA_FLOAT, 0, sum, NULL, NULL, log_sum);
    pointwise(c, MODE_ADD, DATA_FLOAT, 0, most, log_sum, NULL, lse);
    pointwise(c, MODE_DIV, DATA_FLOAT, 0, weights, sum, NULL, p);
    matmul(c, p, v, o);
}

static void drop_shape(bench_cudnn *c)
{
    if (c->graph)
        c->cuGraphExecDestroy(c->graph);
    c->graph = NULL;
    while (c->descriptor_count)
        c->cudnnBackendDestroyDescriptor(c->descriptors[--c->descriptor_count]);
    c->operation_count = 0;
    c->plan = NULL;
    c->status = 0;
    c->next_uid = UID_VIRTUAL;
    if (c->workspace.kind)
        td_cu_mem_free(c->device, &c->workspace);
}

/* The first of the configurations that can be finalised. */
static void choose_plan(bench_cudnn *c)
{
    static const char step[] = "the choice of a kernel";
    int64_t count = 0;
    descriptor found[CONFIGURATIONS];
    descriptor graph = create(c, OPERATIONGRAPH, "the graph");
    set(c, graph, OPERATIONGRAPH_OPS, TYPE_BACKEND_DESCRIPTOR, c->operation_count, c->operations, "the graph");
    set(c, graph, OPERATIONGRAPH_HANDLE, TYPE_HANDLE, 1, &c->handle, "the graph");
    finish(c, graph, "the graph");
    descriptor heuristics = create(c, ENGINEHEUR, step);
    link(c, heuristics, ENGINEHEUR_OPERATION_GRAPH, graph, step);
    set_int(c, heuristics, ENGINEHEUR_MODE, TYPE_HEUR_MODE, HEURISTIC_A, step);
    finish(c, heuristics, step);
    for (int i = 0; i < CONFIGURATIONS; i++)
        found[i] = create(c, ENGINECFG, step);
    if (!c->status)
        fail(c, c->cudnnBackendGetAttribute(heuristics, ENGINEHEUR_RESULTS, TYPE_BACKEND_DESCRIPTOR, CONFIGURATIONS,
                                            &count, found), step);
    int last = -1;
    for (int64_t i = 0; !c->status && i < count && i < CONFIGURATIONS; i++) {
        descriptor plan = create(c, EXECUTION_PLAN, step);
        set(c, plan, EXECUTION_PLAN_HANDLE, TYPE_HANDLE, 1, &c->handle, step);
        link(c, plan, EXECUTION_PLAN_ENGINE_CONFIG, found[i], step);
        last = c->status ? c->status : c->cudnnBackendFinalize(plan);
        if (!last) {
            c->plan = plan;
            return;
        }
    }
    fail(c, last, "no kernel for this shape");
}

static bool explain(bench_cudnn *c, char *why, size_t why_bytes)
{
    if (c->status)
        td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "cuDNN: %s: %s (%d)", c->step,
                c->status > 0 ? c->cudnnGetErrorString(c->status) : "-", c->status);
    return !c->status;
}

bool bench_cudnn_prepare(bench_cudnn *c, const bench_cudnn_shape *shape, char *why, size_t why_bytes)
{
    int64_t bytes = 0, count = 0;
    if (td_cu_enter(c->device, why, why_bytes) != TANDEM_OK)
        return false;
    drop_shape(c);
    c->scale = shape->scale;
    c->masked = -INFINITY;
    c->causal = shape->causal;
    build_operations(c, shape);
    choose_plan(c);
    if (!c->status)
        fail(c, c->cudnnBackendGetAttribute(c->plan, EXECUTION_PLAN_WORKSPACE_SIZE, TYPE_INT64, 1, &count, &bytes),
             "the size of the workspace");
    bool ok = explain(c, why, why_bytes);
    td_cu_leave(c->device);
    if (ok && bytes > 0)
        ok = td_cu_mem_alloc(c->device, (uint64_t)bytes, &c->workspace, why, why_bytes) == TANDEM_OK;
    return ok;
}

static descriptor variant(bench_cudnn *c, const bench_cudnn_tensors *t)
{
    static const char step[] = "the tensors' addresses";
    const int64_t uids[] = {UID_Q, UID_K, UID_V, UID_O, UID_SCALE, UID_MASKED};
    const void *const pointers[] = {(void *)(uintptr_t)t->q, (void *)(uintptr_t)t->k, (void *)(uintptr_t)t->v,
                                    (void *)(uintptr_t)t->o, &c->scale,               &c->masked};
    const int64_t count = c->causal ? 6 : 5;
    const void *workspace = (void *)(uintptr_t)c->workspace.address;
    descriptor d = create(c, VARIANT_PACK, step);
    set(c, d, VARIANT_PACK_UNIQUE_IDS, TYPE_INT64, count, uids, step);
    set(c, d, VARIANT_PACK_DATA_POINTERS, TYPE_VOID_PTR, count, pointers, step);
    set(c, d, VARIANT_PACK_WORKSPACE, TYPE_VOID_PTR, 1, &workspace, step);
    finish(c, d, step);
    return d;
}

static bool record(bench_cudnn *c, const bench_cudnn_tensors *sets, uint32_t set_count, uint32_t calls)
{
    enum { RELAXED = 2 };
    descriptor packs[MOST_SETS];
    void *captured = NULL;
    if (c->graph)
        c->cuGraphExecDestroy(c->graph);
    c->graph = NULL;
    for (uint32_t i = 0; i < set_count && i < MOST_SETS; i++) {
        packs[i] = variant(c, &sets[i]);
        /* Once outside of the capture: what is loaded lazily is loaded then. */
        if (!c->status && (i == 0))
            fail(c, c->cudnnBackendExecute(c->handle, c->plan, packs[i]), "a first call");
    }
    if (!c->status)
        fail(c, c->cuStreamSynchronize(c->stream), "waiting for a first call");
    if (c->status)
        return false;
    fail(c, c->cuStreamBeginCapture_v2(c->stream, RELAXED), "the begin of a capture");
    for (uint32_t i = 0; i < calls && !c->status; i++)
        fail(c, c->cudnnBackendExecute(c->handle, c->plan, packs[i % set_count]), "a call within a capture");
    const int end = c->cuStreamEndCapture(c->stream, &captured);
    fail(c, end, "the end of a capture");
    if (!c->status)
        fail(c, c->cuGraphInstantiateWithFlags(&c->graph, captured, 0), "cuGraphInstantiate");
    if (captured)
        c->cuGraphDestroy(captured);
    return !c->status;
}

bool bench_cudnn_record(bench_cudnn *c, const bench_cudnn_tensors *sets, uint32_t set_count, uint32_t calls, char *why,
                        size_t why_bytes)
{
    if (td_cu_enter(c->device, why, why_bytes) != TANDEM_OK)
        return false;
    record(c, sets, set_count < MOST_SETS ? set_count : MOST_SETS, calls);
    const bool ok = explain(c, why, why_bytes);
    td_cu_leave(c->device);
    return ok;
}

bool bench_cudnn_run(bench_cudnn *c, double *us, char *why, size_t why_bytes)
{
    float ms = 0;
    if (td_cu_enter(c->device, why, why_bytes) != TANDEM_OK)
        return false;
    fail(c, c->cuEventRecord(c->events[0], c->stream), "cuEventRecord");
    fail(c, c->cuGraphLaunch(c->graph, c->stream), "cuGraphLaunch");
    fail(c, c->cuEventRecord(c->events[1], c->stream), "cuEventRecord");
    fail(c, c->cuStreamSynchronize(c->stream), "cuStreamSynchronize");
    fail(c, c->cuEventElapsedTime(&ms, c->events[0], c->events[1]), "cuEventElapsedTime");
    *us = 1e3 * (double)ms;
    const bool ok = explain(c, why, why_bytes);
    td_cu_leave(c->device);
    return ok;
}

bench_cudnn *bench_cudnn_open(td_cu_device *device, char *why, size_t why_bytes)
{
    enum { NON_BLOCKING = 1 };
    const char *missing = NULL;
    bench_cudnn *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->device = device;
    c->cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    c->library = c->cuda ? dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!c->library) {
        const char *error = dlerror();
        td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s", error ? error : "libcudnn.so.9 cannot be opened");
        bench_cudnn_close(c);
        return NULL;
    }
#define LOAD_FROM(from, name)                        \
    *(void **)(&c->name) = dlsym(c->from, #name);     \
    if (!c->name)                                    \
        missing = #name;
#define LOAD_CUDNN(name, result, parameters) LOAD_FROM(library, name)
#define LOAD_CUDA(name, result, parameters) LOAD_FROM(cuda, name)
    CUDNN_FUNCTIONS(LOAD_CUDNN)
    CUDA_FUNCTIONS(LOAD_CUDA)
    if (missing) {
        td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s is missing", missing);
        c->cudnnDestroy = NULL;
        bench_cudnn_close(c);
        return NULL;
    }
    bool ok = td_cu_enter(device, why, why_bytes) == TANDEM_OK;
    if (ok) {
        fail(c, c->cudnnCreate(&c->handle), "cudnnCreate");
        if (!c->status)
            fail(c, c->cuStreamCreate(&c->stream, NON_BLOCKING), "cuStreamCreate");
        for (int i = 0; i < 2 && !c->status; i++)
            fail(c, c->cuEventCreate(&c->events[i], 0), "cuEventCreate");
        if (!c->status)
            fail(c, c->cudnnSetStream(c->handle, c->stream), "cudnnSetStream");
        ok = explain(c, why, why_bytes);
        td_cu_leave(device);
    }
    if (!ok) {
        bench_cudnn_close(c);
        return NULL;
    }
    return c;
}

void bench_cudnn_close(bench_cudnn *c)
{
    if (!c)
        return;
    if (c->handle && td_cu_enter(c->device, NULL, 0) == TANDEM_OK) {
        drop_shape(c);
        for (int i = 0; i < 2; i++)
            if (c->events[i])
                c->cuEventDestroy_v2(c->events[i]);
        if (c->stream)
            c->cuStreamDestroy_v2(c->stream);
        c->cudnnDestroy(c->handle);
        td_cu_leave(c->device);
    }
    /* The libraries stay: cuDNN leaves threads and contexts of its own behind. */
    free(c);
}

uint32_t bench_cudnn_version(const bench_cudnn *c)
{
    return c ? (uint32_t)c->cudnnGetVersion() : 0;
}
