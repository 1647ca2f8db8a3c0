/* cuBLASLt's fp16 products, to compare with.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * cuBLASLt is not needed to build this: what is used of it is declared here, as its header has it.
 */
#include "tests/bench/cublas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "interop/cu/driver.h"

enum { /* of cublas_api.h, library_types.h and cublasLt.h */
    COMPUTE_32F = 68,
    R_32F = 0,
    R_16F = 2,
    TRANSPOSE_A = 3,
    TRANSPOSE_B = 4,
    TRANSPOSED = 1,
    AS_IT_IS = 0,
    MOST_WORKSPACE = 1,
    RELAXED = 2, /* CU_STREAM_CAPTURE_MODE_... */
    NON_BLOCKING = 1,
    MOST_ALGORITHMS = 8,
    TRIES = 5
};
static const size_t workspace_bytes = 64u << 20;

typedef struct algorithm {
    uint64_t data[8];
} algorithm;

typedef struct heuristic {
    algorithm algo;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
} heuristic;

#define CUBLAS_FUNCTIONS(X)                                                                                            \
    X(cublasLtCreate, (void **))                                                                                       \
    X(cublasLtDestroy, (void *))                                                                                       \
    X(cublasLtMatmulDescCreate, (void **, int, int))                                                                   \
    X(cublasLtMatmulDescSetAttribute, (void *, int, const void *, size_t))                                             \
    X(cublasLtMatmulDescDestroy, (void *))                                                                             \
    X(cublasLtMatrixLayoutCreate, (void **, int, uint64_t, uint64_t, int64_t))                                         \
    X(cublasLtMatrixLayoutDestroy, (void *))                                                                           \
    X(cublasLtMatmulPreferenceCreate, (void **))                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute, (void *, int, const void *, size_t))                                       \
    X(cublasLtMatmulPreferenceDestroy, (void *))                                                                       \
    X(cublasLtMatmulAlgoGetHeuristic, (void *, void *, void *, void *, void *, void *, void *, int, heuristic *, int *)) \
    X(cublasLtMatmul, (void *, void *, const void *, const void *, void *, const void *, void *, const void *,         \
                       const void *, void *, void *, void *, const algorithm *, void *, size_t, void *))
#define CUDA_FUNCTIONS(X)                                                    \
    X(cuStreamCreate, (void **, unsigned))                                   \
    X(cuStreamDestroy_v2, (void *))                                          \
    X(cuStreamSynchronize, (void *))                                         \
    X(cuStreamBeginCapture_v2, (void *, int))                                \
    X(cuStreamEndCapture, (void *, void **))                                 \
    X(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))    \
    X(cuGraphLaunch, (void *, void *))                                       \
    X(cuGraphDestroy, (void *))                                              \
    X(cuGraphExecDestroy, (void *))                                          \
    X(cuEventCreate, (void **, unsigned))                                    \
    X(cuEventDestroy_v2, (void *))                                           \
    X(cuEventRecord, (void *, void *))                                       \
    X(cuMemcpyDtoDAsync_v2, (uint64_t, uint64_t, size_t, void *))            \
    X(cuEventElapsedTime, (float *, void *, void *))

struct bench_cublas {
    td_cu_device *device;
    void *library, *cuda, *handle, *stream, *events[2], *graph;
    td_cu_mem workspace;
#define FIELD(name, parameters) int(*name) parameters;
    CUBLAS_FUNCTIONS(FIELD)
    CUDA_FUNCTIONS(FIELD)
#undef FIELD
    /* What failed first, since it was last asked. */
    int status;
    const char *step;
};

static bool fail(bench_cublas *c, int status, const char *step)
{
    if (status && !c->status) {
        c->status = status;
        c->step = step;
    }
    return c->status == 0;
}
/* Nothing is called any more once something has failed. */
#define TRY(c, name, ...) fail(c, (c)->status ? 0 : (c)->name(__VA_ARGS__), #name)

static bool explain(bench_cublas *c, char *why, size_t why_bytes)
{
    const int status = c->status;
    c->status = 0;
    if (status)
        td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "%s: error %d", c->step, status);
    return status == 0;
}

/* As columns, which cuBLAS counts in: y^T [outs][rows] = w [outs][ins] x^T. */
typedef struct product {
    void *what, *w, *x, *y, *preference;
    heuristic found[MOST_ALGORITHMS];
    int count;
} product;

static void describe(bench_cublas *c, product *p, uint32_t rows, uint32_t ins, uint32_t outs)
{
    const int transposed = TRANSPOSED, as_it_is = AS_IT_IS;
    (void)(TRY(c, cublasLtMatmulDescCreate, &p->what, COMPUTE_32F, R_32F) &&
           TRY(c, cublasLtMatmulDescSetAttribute, p->what, TRANSPOSE_A, &transposed, sizeof transposed) &&
           TRY(c, cublasLtMatmulDescSetAttribute, p->what, TRANSPOSE_B, &as_it_is, sizeof as_it_is) &&
           TRY(c, cublasLtMatrixLayoutCreate, &p->w, R_16F, ins, outs, ins) &&
           TRY(c, cublasLtMatrixLayoutCreate, &p->x, R_16F, ins, rows, ins) &&
           TRY(c, cublasLtMatrixLayoutCreate, &p->y, R_16F, outs, rows, outs) &&
           TRY(c, cublasLtMatmulPreferenceCreate, &p->preference) &&
           TRY(c, cublasLtMatmulPreferenceSetAttribute, p->preference, MOST_WORKSPACE, &workspace_bytes, sizeof workspace_bytes) &&
           TRY(c, cublasLtMatmulAlgoGetHeuristic, c->handle, p->what, p->w, p->x, p->y, p->y, p->preference, MOST_ALGORITHMS,
               p->found, &p->count));
}

static void forget(bench_cublas *c, product *p)
{
    if (p->what)
        c->cublasLtMatmulDescDestroy(p->what);
    if (p->preference)
        c->cublasLtMatmulPreferenceDestroy(p->preference);
    void *const layouts[] = {p->w, p->x, p->y};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            c->cublasLtMatrixLayoutDestroy(layouts[i]);
}

static bool call(bench_cublas *c, const product *p, int algorithm_at, const bench_cublas_call *at)
{
    static const float one = 1, zero = 0;
    void *const y = (void *)(uintptr_t)at->y;
    return TRY(c, cublasLtMatmul, c->handle, p->what, &one, (void *)(uintptr_t)at->w, p->w, (void *)(uintptr_t)at->x, p->x, &zero,
               y, p->y, y, p->y, &p->found[algorithm_at].algo, (void *)(uintptr_t)c->workspace.address, workspace_bytes, c->stream);
}

static bool launch(bench_cublas *c, void *graph, double *us)
{
    float ms = 0;
    if (TRY(c, cuEventRecord, c->events[0], c->stream) && TRY(c, cuGraphLaunch, graph, c->stream) &&
        TRY(c, cuEventRecord, c->events[1], c->stream) && TRY(c, cuStreamSynchronize, c->stream))
        TRY(c, cuEventElapsedTime, &ms, c->events[0], c->events[1]);
    *us = 1e3 * (double)ms;
    return c->status == 0;
}

/* All calls by one algorithm as a graph, and its best time of some. */
static void *capture(bench_cublas *c, const product *p, int algorithm_at, const bench_cublas_call *calls, uint32_t count, double *best)
{
    void *captured = NULL, *graph = NULL;
    double us;
    /* Once outside of the capture: what is loaded lazily is loaded then. */
    if (!call(c, p, algorithm_at, &calls[0]) || !TRY(c, cuStreamSynchronize, c->stream) ||
        !TRY(c, cuStreamBeginCapture_v2, c->stream, RELAXED))
        return NULL;
    for (uint32_t i = 0; i < count; i++)
        call(c, p, algorithm_at, &calls[i]);
    fail(c, c->cuStreamEndCapture(c->stream, &captured), "cuStreamEndCapture");
    TRY(c, cuGraphInstantiateWithFlags, &graph, captured, 0);
    if (captured)
        c->cuGraphDestroy(captured);
    *best = 1e30;
    for (int i = 0; i < TRIES && launch(c, graph, &us); i++)
        *best = us < *best ? us : *best;
    return graph;
}

bool bench_cublas_record(bench_cublas *c, uint32_t rows, uint32_t ins, uint32_t outs, const bench_cublas_call *calls, uint32_t count,
                         char *why, size_t why_bytes)
{
    product p = {0};
    double least = 1e30, us = 0;
    if (td_cu_enter(c->device, why, why_bytes) != TANDEM_OK)
        return false;
    if (c->graph)
        c->cuGraphExecDestroy(c->graph);
    c->graph = NULL;
    describe(c, &p, rows, ins, outs);
    for (int i = 0; i < p.count && !c->status; i++) {
        void *graph = capture(c, &p, i, calls, count, &us);
        void *slower = graph;
        if (graph && us < least) {
            least = us;
            slower = c->graph;
            c->graph = graph;
        }
        if (slower)
            c->cuGraphExecDestroy(slower);
    }
    if (!c->graph)
        fail(c, -1, "cublasLtMatmulAlgoGetHeuristic names no algorithm");
    forget(c, &p);
    const bool ok = explain(c, why, why_bytes);
    td_cu_leave(c->device);
    return ok;
}

bool bench_cublas_run(bench_cublas *c, double *us, char *why, size_t why_bytes)
{
    if (td_cu_enter(c->device, why, why_bytes) != TANDEM_OK)
        return false;
    launch(c, c->graph, us);
    const bool ok = explain(c, why, why_bytes);
    td_cu_leave(c->device);
    return ok;
}

bool bench_cublas_copy(bench_cublas *c, uint64_t to, uint64_t from, uint64_t bytes, double *us, char *why, size_t why_bytes)
{
    float ms = 0;
    if (td_cu_enter(c->device, why, why_bytes) != TANDEM_OK)
        return false;
    if (TRY(c, cuEventRecord, c->events[0], c->stream) && TRY(c, cuMemcpyDtoDAsync_v2, to, from, bytes, c->stream) &&
        TRY(c, cuEventRecord, c->events[1], c->stream) && TRY(c, cuStreamSynchronize, c->stream))
        TRY(c, cuEventElapsedTime, &ms, c->events[0], c->events[1]);
    *us = 1e3 * (double)ms;
    const bool ok = explain(c, why, why_bytes);
    td_cu_leave(c->device);
    return ok;
}

bench_cublas *bench_cublas_open(td_cu_device *device, char *why, size_t why_bytes)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    const char *missing = NULL;
    bench_cublas *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->device = device;
    c->cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < 2 && c->cuda && !c->library; i++)
        c->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!c->library) {
        const char *error = dlerror();
        td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s", error ? error : "libcublasLt.so.13 cannot be opened");
        free(c);
        return NULL;
    }
#define LOAD_FROM(from, name)                     \
    *(void **)(&c->name) = dlsym(c->from, #name); \
    if (!c->name)                                 \
        missing = #name;
#define LOAD_CUBLAS(name, parameters) LOAD_FROM(library, name)
#define LOAD_CUDA(name, parameters) LOAD_FROM(cuda, name)
    CUBLAS_FUNCTIONS(LOAD_CUBLAS)
    CUDA_FUNCTIONS(LOAD_CUDA)
    if (missing) {
        td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s is missing", missing);
        free(c);
        return NULL;
    }
    bool ok = td_cu_enter(device, why, why_bytes) == TANDEM_OK;
    if (ok) {
        TRY(c, cublasLtCreate, &c->handle);
        TRY(c, cuStreamCreate, &c->stream, NON_BLOCKING);
        for (int i = 0; i < 2; i++)
            TRY(c, cuEventCreate, &c->events[i], 0);
        ok = explain(c, why, why_bytes) && td_cu_mem_alloc(device, workspace_bytes, &c->workspace, why, why_bytes) == TANDEM_OK;
        td_cu_leave(device);
    }
    if (!ok) {
        bench_cublas_close(c);
        return NULL;
    }
    return c;
}

void bench_cublas_close(bench_cublas *c)
{
    if (!c)
        return;
    if (td_cu_enter(c->device, NULL, 0) == TANDEM_OK) {
        if (c->graph)
            c->cuGraphExecDestroy(c->graph);
        for (int i = 0; i < 2; i++)
            if (c->events[i])
                c->cuEventDestroy_v2(c->events[i]);
        if (c->stream)
            c->cuStreamDestroy_v2(c->stream);
        if (c->handle)
            c->cublasLtDestroy(c->handle);
        if (c->workspace.kind)
            td_cu_mem_free(c->device, &c->workspace);
        td_cu_leave(c->device);
    }
    /* The libraries stay: they leave threads and contexts of their own behind. */
    free(c);
}

uint32_t bench_cublas_version(const bench_cublas *c)
{
    size_t (*version)(void) = NULL;
    if (c)
        *(void **)(&version) = dlsym(c->library, "cublasLtGetVersion");
    return version ? (uint32_t)version() : 0;
}
