/* A program of CUDA's without Vulkan: Tandem computes in its context, on its memory, in order with
 * its stream. What is on the stream comes before the job, what is put on it after tandem_submit()
 * comes behind it, and the host waits once, at the end.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     cc cuda_stream.c $(pkg-config --cflags --libs tandem) -ldl && ./a.out
 *
 * The driver's functions are opened at run time: this builds without CUDA. Of CUDA's runtime,
 * cudaStream_t is a CUstream, cudaMalloc() gives a CUdeviceptr, cuCtxGetCurrent() the context.
 */
#ifdef _WIN32
#include <windows.h>
#define dlopen(name, flags) LoadLibraryA("nvcuda.dll")
#define dlsym(library, name) (void *)(uintptr_t)GetProcAddress(library, name)
#else
#include <dlfcn.h>
#endif
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <tandem/tandem.h>

enum { ROWS = 1024, CHANNELS = 64, ELEMENTS = ROWS * CHANNELS, BYTES = ELEMENTS * sizeof(float) };

typedef struct cuda {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*context_retain)(void **context, int device);
    int (*context_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_wait)(void *stream);
    int (*stream_destroy)(void *stream);
    int (*allocate)(uint64_t *pointer, size_t bytes);
    int (*release)(uint64_t pointer);
    int (*to_device)(uint64_t to, const void *from, size_t bytes, void *stream);
    int (*to_host)(void *to, uint64_t from, size_t bytes, void *stream);
    int device;
    void *context, *stream;
    uint64_t memory;
} cuda;

static int open_cuda(cuda *c)
{
    const struct {
        void *function;
        const char *symbol;
    } functions[] = {
        {&c->init, "cuInit"},
        {&c->device_get, "cuDeviceGet"},
        {&c->context_retain, "cuDevicePrimaryCtxRetain"},
        {&c->context_release, "cuDevicePrimaryCtxRelease_v2"},
        {&c->context_push, "cuCtxPushCurrent_v2"},
        {&c->context_pop, "cuCtxPopCurrent_v2"},
        {&c->stream_create, "cuStreamCreate"},
        {&c->stream_wait, "cuStreamSynchronize"},
        {&c->stream_destroy, "cuStreamDestroy_v2"},
        {&c->allocate, "cuMemAlloc_v2"},
        {&c->release, "cuMemFree_v2"},
        {&c->to_device, "cuMemcpyHtoDAsync_v2"},
        {&c->to_host, "cuMemcpyDtoHAsync_v2"},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *symbol;

    for (size_t i = 0; library && i < sizeof functions / sizeof *functions; i++) {
        symbol = dlsym(library, functions[i].symbol);
        if (!symbol)
            return 0;
        memcpy(functions[i].function, &symbol, sizeof symbol);
    }
    return library && !c->init(0) && !c->device_get(&c->device, 0) &&
           !c->context_retain(&c->context, c->device);
}

/* The norm of each row: y is one mem's second half. */
static tandem_status normalise(tandem_session *session, tandem_mem mem, tandem_ticket *ticket)
{
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_NORM);
    tandem_norm *norm = &job.op.norm;

    norm->x = norm->y = tandem_view_dense(mem, 0, TANDEM_DTYPE_F32, 1, ROWS, CHANNELS);
    norm->y.offset_bytes = BYTES;
    norm->batch = norm->heads = 1;
    norm->rows = ROWS;
    norm->channels = CHANNELS;
    return tandem_submit(session, &job, ticket);
}

static int fail(const char *what)
{
    char why[600];

    tandem_error_text(NULL, why, sizeof why);
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

static int compute(const cuda *c, tandem_session **session)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc, .cuda_context = c->context,
                                                 .cuda_stream = c->stream, .frames_in_flight = 32);
    const tandem_mem_desc tensors = TANDEM_INIT(tandem_mem_desc, .source = TANDEM_MEM_CUDA,
                                                .cuda_pointer = c->memory, .bytes = 2 * BYTES);
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    static float x[ELEMENTS], y[ELEMENTS];
    tandem_ticket ticket;
    tandem_mem mem;

    if (tandem_session_create(&desc, session))
        return fail("session");
    if (tandem_mem_create(*session, &tensors, &mem))
        return fail("memory");
    for (int i = 0; i < ELEMENTS; i++)
        x[i] = i % 2 ? 3.0f : -3.0f;                  /* so a row's elements become 1 and -1 */
    if (c->to_device(c->memory, x, BYTES, c->stream)) /* before the job, */
        return 1;
    if (normalise(*session, mem, &ticket))
        return fail("job");
    if (c->to_host(y, c->memory + BYTES, BYTES, c->stream) ||
        c->stream_wait(c->stream)) /* and behind it */
        return 1;
    if (tandem_poll(*session, ticket, &report) || report.state != TANDEM_JOB_DONE)
        return fail("not done");
    printf("done, y[0] = %.3f, y[1] = %.3f\n", y[0], y[1]);
    return y[1] < 0.999f || y[1] > 1.001f;
}

int main(void)
{
    tandem_session *session = NULL;
    cuda c = {0};
    int failed;

    if (!open_cuda(&c)) {
        printf("there is no CUDA device here\n");
        return 0;
    }
    failed = c.context_push(c.context) || c.stream_create(&c.stream, 1) ||
             c.allocate(&c.memory, 2 * BYTES);
    failed = failed || compute(&c, &session);
    if (session) /* before the context, the stream and the memory that it uses */
        tandem_session_destroy(&session);
    failed |= c.memory && c.release(c.memory);
    failed |= c.stream && c.stream_destroy(c.stream);
    failed |= c.context_pop(&c.context) || c.context_release(c.device);
    return failed;
}
