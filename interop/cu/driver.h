/* The CUDA driver API as far as it is used here: declared by ourselves, opened at run time, every call counted by its
 * cost.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Private to interop/cu and to the executors. A call is made through TD_CU(device, cuName, arguments...), which counts
 * it.
 */
#ifndef TD_CU_DRIVER_H
#define TD_CU_DRIVER_H

#include <assert.h>
#include <stdatomic.h>

#include "interop/cu/cu.h"
#include "interop/os/library.h"
#include "interop/os/opaque.h"

/* The driver's own types. Handles are opaque pointers, a device pointer is 64 bits, a device an ordinal. */
typedef int td_cu_result;
typedef int td_cu_ordinal;
typedef uint64_t td_cu_pointer;
typedef struct td_cu_context_st *td_cu_context;
typedef struct td_cu_module_st *td_cu_module;
typedef struct td_cu_function_st *td_cu_function;
typedef struct td_cu_stream_st *td_cu_stream;
typedef struct td_cu_event_st *td_cu_event;
typedef struct td_cu_graph_st *td_cu_graph;
typedef struct td_cu_graph_exec_st *td_cu_graph_exec;
typedef struct td_cu_graph_node_st *td_cu_graph_node;
typedef struct td_cu_external_memory_st *td_cu_external_memory;
typedef struct td_cu_external_semaphore_st *td_cu_external_semaphore;

typedef struct td_cu_uuid {
    uint8_t bytes[16];
} td_cu_uuid;

typedef struct td_cu_memory_handle {
    int type;
    union {
        td_opaque_handle opaque;
        struct {
            void *handle;
            const void *name;
        } win32;
    } handle;
    unsigned long long size;
    unsigned flags, reserved[16];
} td_cu_memory_handle;
static_assert(sizeof(td_cu_memory_handle) == 104, "CUDA_EXTERNAL_MEMORY_HANDLE_DESC");

typedef struct td_cu_memory_buffer {
    unsigned long long offset, size;
    unsigned flags, reserved[16];
} td_cu_memory_buffer;
static_assert(sizeof(td_cu_memory_buffer) == 88, "CUDA_EXTERNAL_MEMORY_BUFFER_DESC");

typedef struct td_cu_semaphore_handle {
    int type;
    union {
        td_opaque_handle opaque;
        struct {
            void *handle;
            const void *name;
        } win32;
    } handle;
    unsigned flags, reserved[16];
} td_cu_semaphore_handle;
static_assert(sizeof(td_cu_semaphore_handle) == 96, "CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC");

/* CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS and .._WAIT_PARAMS: they differ in fields that timelines do not use. */
typedef struct td_cu_semaphore_value {
    unsigned long long value, sync, key;
    unsigned reserved_a[12], flags, reserved_b[16];
} td_cu_semaphore_value;
static_assert(sizeof(td_cu_semaphore_value) == 144, "CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS");

/* CUlaunchConfig and CUlaunchAttribute, as far as launches here have any. */
typedef union td_cu_launch_value {
    int allowed;         /* TD_CU_LAUNCH_OVERLAPS */
    unsigned cluster[3]; /* TD_CU_LAUNCH_CLUSTER: blocks */
    unsigned char bytes[64];
} td_cu_launch_value;

typedef struct td_cu_launch_attribute {
    int id;
    unsigned reserved;
    td_cu_launch_value value;
} td_cu_launch_attribute;
static_assert(sizeof(td_cu_launch_attribute) == 72, "CUlaunchAttribute");

typedef struct td_cu_launch {
    unsigned grid[3], block[3], shared_bytes;
    td_cu_stream stream;
    td_cu_launch_attribute *attributes;
    unsigned attribute_count;
} td_cu_launch;
static_assert(sizeof(td_cu_launch) == 56, "CUlaunchConfig");

/* CUDA_KERNEL_NODE_PARAMS and CUDA_EXT_SEM_SIGNAL_NODE_PARAMS, .._WAIT_NODE_PARAMS, of the functions' first versions. */
typedef struct td_cu_kernel_node {
    td_cu_function function;
    unsigned grid[3], block[3], shared_bytes;
    void **params, **extra;
} td_cu_kernel_node;
static_assert(sizeof(td_cu_kernel_node) == 56, "CUDA_KERNEL_NODE_PARAMS_v1");

/* CUgraphEdgeData. */
typedef struct td_cu_graph_edge {
    unsigned char from_port, to_port, type, reserved[5];
} td_cu_graph_edge;

typedef struct td_cu_semaphore_node {
    td_cu_external_semaphore *semaphores;
    const td_cu_semaphore_value *values;
    unsigned count;
} td_cu_semaphore_node;
static_assert(sizeof(td_cu_semaphore_node) == 24, "CUDA_EXT_SEM_WAIT_NODE_PARAMS_v1");

enum {
    TD_CU_SUCCESS = 0,
    TD_CU_ERROR_OUT_OF_MEMORY = 2,
    TD_CU_ERROR_NOT_READY = 600,

    TD_CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    TD_CU_ATTRIBUTE_MAJOR = 75,
    TD_CU_ATTRIBUTE_MINOR = 76,
    TD_CU_ATTRIBUTE_SHARED_OPTIN = 97,
    TD_CU_ATTRIBUTE_TIMELINES = 114,

    TD_CU_FUNCTION_STATIC_SHARED = 1,
    TD_CU_FUNCTION_REGISTERS = 4,
    TD_CU_FUNCTION_DYNAMIC_SHARED = 8,
    TD_CU_FUNCTION_WIDE_CLUSTERS = 14, /* CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED */

    TD_CU_POINTER_CONTEXT = 1, /* CU_POINTER_ATTRIBUTE_... */
    TD_CU_POINTER_MEMORY_TYPE = 2,
    TD_CU_POINTER_ORDINAL = 9,
    TD_CU_MEMORY_TYPE_DEVICE = 2,

    TD_CU_MEMORY_DEDICATED = 1,
    TD_CU_HOST_PORTABLE = 1,
    TD_CU_HOST_MAPPED = 2,
    TD_CU_STREAM_NON_BLOCKING = 1,
    TD_CU_EVENT_SLEEPS = 1, /* who waits for it sleeps until an interrupt: CU_EVENT_BLOCKING_SYNC */
    TD_CU_EVENT_NO_TIMING = 2,
    TD_CU_LAUNCH_CLUSTER = 4,
    TD_CU_GRAPH_OVERLAPS = 1, /* an edge's port and type: CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, _DEPENDENCY_TYPE_.. */
    TD_CU_LAUNCH_OVERLAPS = 6, /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
    TD_CU_MAP_F16 = 6, /* CU_TENSOR_MAP_... */
    TD_CU_MAP_BF16 = 9,
    TD_CU_MAP_SWIZZLE_128 = 3,
    TD_CU_MAP_PROMOTE_256 = 3, /* what is fetched goes to L2 by so many bytes */
    TD_CU_JIT_ERROR_LOG = 5,
    TD_CU_JIT_ERROR_LOG_BYTES = 6,
};

/* cuLaunchKernel's `extra`: a packed parameter buffer. Not for parameters of 64-byte alignment, such as tensor maps: drivers (580)
 * put the buffer 48 bytes before where the kernel looks for it. `params`, a pointer to each, is right for all. */
#define TD_CU_LAUNCH_END ((void *)0)
#define TD_CU_LAUNCH_BUFFER ((void *)1)
#define TD_CU_LAUNCH_BYTES ((void *)2)

typedef enum td_cu_kind {
    TD_CU_KIND_OTHER,
    TD_CU_KIND_COPY,
    TD_CU_KIND_ALLOCATION, /* memory, imports, modules, streams: anything that a frame must not do */
    TD_CU_KIND_HOST_WAIT,
    TD_CU_KIND_LAUNCH,
    TD_CU_KIND_SLEEP, /* of a helper thread that has nothing else to do: no frame waits for it */
    TD_CU_KINDS
} td_cu_kind;

/* X(kind, name, symbol, parameters); X is TD_OPTIONAL for what older drivers lack. */
#define TD_CU_FUNCTIONS(X, TD_OPTIONAL)                                                                             \
    X(OTHER, cuInit, cuInit, (unsigned flags))                                                                      \
    X(OTHER, cuGetErrorName, cuGetErrorName, (td_cu_result, const char **))                                         \
    X(OTHER, cuDriverGetVersion, cuDriverGetVersion, (int *))                                                       \
    X(OTHER, cuDeviceGetCount, cuDeviceGetCount, (int *))                                                           \
    X(OTHER, cuDeviceGet, cuDeviceGet, (td_cu_ordinal *, int))                                                      \
    X(OTHER, cuDeviceGetName, cuDeviceGetName, (char *, int, td_cu_ordinal))                                        \
    X(OTHER, cuDeviceGetUuid, cuDeviceGetUuid, (td_cu_uuid *, td_cu_ordinal))                                       \
    TD_OPTIONAL(OTHER, cuDeviceGetUuid_v2, cuDeviceGetUuid_v2,                                                      \
                (td_cu_uuid *, td_cu_ordinal)) /* of a MIG slice: its own */                                        \
    TD_OPTIONAL(OTHER, cuDeviceGetLuid, cuDeviceGetLuid, (char *, unsigned *, td_cu_ordinal)) /* of Windows' */    \
    X(OTHER, cuDeviceGetAttribute, cuDeviceGetAttribute, (int *, int, td_cu_ordinal))                               \
    X(OTHER, cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *, td_cu_ordinal))                                      \
    X(ALLOCATION, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (td_cu_context *, td_cu_ordinal))             \
    X(OTHER, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (td_cu_ordinal))                              \
    X(OTHER, cuCtxPushCurrent, cuCtxPushCurrent_v2, (td_cu_context))                                                \
    X(OTHER, cuCtxPopCurrent, cuCtxPopCurrent_v2, (td_cu_context *))                                                \
    X(OTHER, cuCtxGetDevice, cuCtxGetDevice, (td_cu_ordinal *))                                                     \
    X(OTHER, cuStreamGetCtx, cuStreamGetCtx, (td_cu_stream, td_cu_context *))                                       \
    X(OTHER, cuPointerGetAttribute, cuPointerGetAttribute, (void *, int, td_cu_pointer))                            \
    X(OTHER, cuMemGetAddressRange, cuMemGetAddressRange_v2, (td_cu_pointer *, size_t *, td_cu_pointer))             \
    X(ALLOCATION, cuMemAlloc, cuMemAlloc_v2, (td_cu_pointer *, size_t))                                             \
    X(ALLOCATION, cuMemFree, cuMemFree_v2, (td_cu_pointer))                                                         \
    X(ALLOCATION, cuMemHostAlloc, cuMemHostAlloc, (void **, size_t, unsigned))                                      \
    X(ALLOCATION, cuMemFreeHost, cuMemFreeHost, (void *))                                                           \
    X(ALLOCATION, cuMemHostRegister, cuMemHostRegister_v2, (void *, size_t, unsigned))                              \
    X(ALLOCATION, cuMemHostUnregister, cuMemHostUnregister, (void *))                                               \
    X(OTHER, cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, (td_cu_pointer *, void *, unsigned))          \
    X(COPY, cuMemcpyHtoD, cuMemcpyHtoD_v2, (td_cu_pointer, const void *, size_t))                                   \
    X(COPY, cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, td_cu_pointer, size_t))                                         \
    X(ALLOCATION, cuImportExternalMemory, cuImportExternalMemory,                                                   \
      (td_cu_external_memory *, const td_cu_memory_handle *))                                                       \
    X(ALLOCATION, cuExternalMemoryGetMappedBuffer, cuExternalMemoryGetMappedBuffer,                                 \
      (td_cu_pointer *, td_cu_external_memory, const td_cu_memory_buffer *))                                        \
    X(ALLOCATION, cuDestroyExternalMemory, cuDestroyExternalMemory, (td_cu_external_memory))                        \
    X(ALLOCATION, cuImportExternalSemaphore, cuImportExternalSemaphore,                                             \
      (td_cu_external_semaphore *, const td_cu_semaphore_handle *))                                                 \
    X(ALLOCATION, cuDestroyExternalSemaphore, cuDestroyExternalSemaphore, (td_cu_external_semaphore))               \
    X(OTHER, cuWaitExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync,                                          \
      (const td_cu_external_semaphore *, const td_cu_semaphore_value *, unsigned, td_cu_stream))                    \
    X(OTHER, cuSignalExternalSemaphoresAsync, cuSignalExternalSemaphoresAsync,                                      \
      (const td_cu_external_semaphore *, const td_cu_semaphore_value *, unsigned, td_cu_stream))                    \
    X(ALLOCATION, cuStreamCreate, cuStreamCreate, (td_cu_stream *, unsigned))                                       \
    TD_OPTIONAL(ALLOCATION, cuStreamCreateWithPriority, cuStreamCreateWithPriority,                                 \
                (td_cu_stream *, unsigned, int))                                                                    \
    TD_OPTIONAL(OTHER, cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, (int *, int *))                    \
    TD_OPTIONAL(COPY, cuMemsetD8Async, cuMemsetD8Async, (td_cu_pointer, unsigned char, size_t, td_cu_stream))       \
    X(ALLOCATION, cuStreamDestroy, cuStreamDestroy_v2, (td_cu_stream))                                              \
    X(OTHER, cuStreamQuery, cuStreamQuery, (td_cu_stream))                                                          \
    X(ALLOCATION, cuModuleLoadDataEx, cuModuleLoadDataEx, (td_cu_module *, const void *, unsigned, int *, void **)) \
    X(ALLOCATION, cuModuleUnload, cuModuleUnload, (td_cu_module))                                                   \
    X(ALLOCATION, cuModuleGetFunction, cuModuleGetFunction, (td_cu_function *, td_cu_module, const char *))         \
    X(OTHER, cuFuncGetAttribute, cuFuncGetAttribute, (int *, int, td_cu_function))                                  \
    X(OTHER, cuFuncSetAttribute, cuFuncSetAttribute, (td_cu_function, int, int))                                    \
    TD_OPTIONAL(ALLOCATION, cuFuncLoad, cuFuncLoad, (td_cu_function))                                               \
    X(LAUNCH, cuLaunchKernel, cuLaunchKernel,                                                                       \
      (td_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, td_cu_stream, void **, \
       void **))                                                                                                    \
    TD_OPTIONAL(LAUNCH, cuLaunchKernelEx, cuLaunchKernelEx, (const td_cu_launch *, td_cu_function, void **, void **))\
    X(COPY, cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (td_cu_pointer, const void *, size_t, td_cu_stream))           \
    X(COPY, cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *, td_cu_pointer, size_t, td_cu_stream))                 \
    X(ALLOCATION, cuEventCreate, cuEventCreate, (td_cu_event *, unsigned))                                          \
    X(ALLOCATION, cuEventDestroy, cuEventDestroy_v2, (td_cu_event))                                                 \
    X(OTHER, cuEventRecord, cuEventRecord, (td_cu_event, td_cu_stream))                                             \
    X(OTHER, cuEventQuery, cuEventQuery, (td_cu_event))                                                             \
    X(SLEEP, cuEventSynchronize, cuEventSynchronize, (td_cu_event))                                                 \
    X(OTHER, cuStreamWaitEvent, cuStreamWaitEvent, (td_cu_stream, td_cu_event, unsigned))                           \
    TD_OPTIONAL(ALLOCATION, cuGraphCreate, cuGraphCreate, (td_cu_graph *, unsigned))                                \
    TD_OPTIONAL(ALLOCATION, cuGraphDestroy, cuGraphDestroy, (td_cu_graph))                                          \
    TD_OPTIONAL(ALLOCATION, cuGraphAddKernelNode, cuGraphAddKernelNode,                                             \
                (td_cu_graph_node *, td_cu_graph, const td_cu_graph_node *, size_t, const td_cu_kernel_node *))     \
    TD_OPTIONAL(ALLOCATION, cuGraphAddDependencies_v2, cuGraphAddDependencies_v2,                                   \
                (td_cu_graph, const td_cu_graph_node *, const td_cu_graph_node *, const td_cu_graph_edge *,         \
                 size_t)) /* since CUDA 12.3 */                                                                     \
    TD_OPTIONAL(ALLOCATION, cuGraphKernelNodeSetAttribute, cuGraphKernelNodeSetAttribute,                           \
                (td_cu_graph_node, int, const td_cu_launch_value *)) /* since CUDA 11.0 */                          \
    TD_OPTIONAL(ALLOCATION, cuGraphAddExternalSemaphoresWaitNode, cuGraphAddExternalSemaphoresWaitNode,             \
                (td_cu_graph_node *, td_cu_graph, const td_cu_graph_node *, size_t, const td_cu_semaphore_node *))  \
    TD_OPTIONAL(ALLOCATION, cuGraphAddExternalSemaphoresSignalNode, cuGraphAddExternalSemaphoresSignalNode,         \
                (td_cu_graph_node *, td_cu_graph, const td_cu_graph_node *, size_t, const td_cu_semaphore_node *))  \
    TD_OPTIONAL(ALLOCATION, cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags,                               \
                (td_cu_graph_exec *, td_cu_graph, unsigned long long))                                              \
    TD_OPTIONAL(ALLOCATION, cuGraphExecDestroy, cuGraphExecDestroy, (td_cu_graph_exec))                             \
    TD_OPTIONAL(OTHER, cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams,                              \
                (td_cu_graph_exec, td_cu_graph_node, const td_cu_kernel_node *))                                    \
    TD_OPTIONAL(OTHER, cuGraphExecExternalSemaphoresWaitNodeSetParams, cuGraphExecExternalSemaphoresWaitNodeSetParams,\
                (td_cu_graph_exec, td_cu_graph_node, const td_cu_semaphore_node *))                                 \
    TD_OPTIONAL(OTHER, cuGraphExecExternalSemaphoresSignalNodeSetParams,                                            \
                cuGraphExecExternalSemaphoresSignalNodeSetParams,                                                   \
                (td_cu_graph_exec, td_cu_graph_node, const td_cu_semaphore_node *))                                 \
    TD_OPTIONAL(LAUNCH, cuGraphLaunch, cuGraphLaunch, (td_cu_graph_exec, td_cu_stream))                             \
    TD_OPTIONAL(OTHER, cuTensorMapEncodeTiled, cuTensorMapEncodeTiled,                                              \
                (void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const unsigned *, const unsigned *, \
                 int, int, int, int)) /* since CUDA 12.0 */

#define TD_CU_FIELD(kind, name, symbol, parameters) td_cu_result(*name) parameters;
#define TD_CU_KIND(kind, name, symbol, parameters) TD_CU_KIND_##name = TD_CU_KIND_##kind,
typedef struct td_cu_table {
    TD_CU_FUNCTIONS(TD_CU_FIELD, TD_CU_FIELD)
} td_cu_table;
enum { TD_CU_FUNCTIONS(TD_CU_KIND, TD_CU_KIND) };
#undef TD_CU_FIELD
#undef TD_CU_KIND

struct td_cu_device {
    td_log log;
    td_library *library;
    td_cu_table table;
    td_cu_ordinal ordinal;
    td_cu_context context; /* the primary one, retained, or */
    bool borrowed;         /* a caller's, */
    td_cu_stream callers;  /* and a stream of that caller's, or NULL */
    td_cu_info info;
    uint32_t shared_limit; /* bytes of shared memory that a block may ask for */
    td_cu_urgency urgency; /* of streams that are made from now on */
    atomic_uint_fast64_t counts[TD_CU_KINDS], allocated;
};

static inline void td_cu_count(td_cu_device *device, td_cu_kind kind)
{
    atomic_fetch_add_explicit(&device->counts[kind], 1, memory_order_relaxed);
}

#define TD_CU(device, name, ...) (td_cu_count(device, (td_cu_kind)TD_CU_KIND_##name), (device)->table.name(__VA_ARGS__))

/* Makes the device's context current; every success is followed by td_cu_leave(). */
tandem_status td_cu_enter(td_cu_device *device, char *why, size_t why_bytes);
void td_cu_leave(td_cu_device *device);

/* OK for success; else the status that fits, and "what: CUDA_ERROR_..." in `why`. */
tandem_status td_cu_check(td_cu_device *device, td_cu_result result, char *why, size_t why_bytes, const char *format,
                          ...) __attribute__((format(TD_PRINTF, 5, 6)));

#endif
