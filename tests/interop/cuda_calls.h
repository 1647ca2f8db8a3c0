/* All functions of the driver that interop/cu/driver.h lists, with names for what they take: for hooks in front of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TEST_CUDA_CALLS_H
#define TANDEM_TEST_CUDA_CALLS_H

#include "interop/cu/driver.h"

/* X(name, parameters, arguments, info, handle, adds): `adds` is what a success adds to the live objects. What gives
 * something back does so even where it then reports an error, as a driver does that reports an earlier one. */
#define CUDA(X)                                                                                                        \
    X(cuInit, (unsigned a), (a), NULL, a, 0)                                                                           \
    X(cuGetErrorName, (td_cu_result a, const char **b), (a, b), NULL, 0, 0)                                            \
    X(cuDriverGetVersion, (int *a), (a), NULL, 0, 0)                                                                   \
    X(cuDeviceGetCount, (int *a), (a), NULL, 0, 0)                                                                     \
    X(cuDeviceGet, (td_cu_ordinal * a, int b), (a, b), NULL, (uint64_t)b, 0)                                           \
    X(cuDeviceGetName, (char *a, int b, td_cu_ordinal c), (a, b, c), NULL, 0, 0)                                       \
    X(cuDeviceGetUuid, (td_cu_uuid * a, td_cu_ordinal b), (a, b), NULL, 0, 0)                                          \
    X(cuDeviceGetLuid, (char *a, unsigned *b, td_cu_ordinal c), (a, b, c), NULL, 0, 0)                                 \
    X(cuDeviceGetUuid_v2, (td_cu_uuid * a, td_cu_ordinal b), (a, b), NULL, 0, 0)                                       \
    X(cuDeviceGetAttribute, (int *a, int b, td_cu_ordinal c), (a, b, c), NULL, (uint64_t)b, 0)                         \
    X(cuDeviceTotalMem, (size_t * a, td_cu_ordinal b), (a, b), NULL, 0, 0)                                             \
    X(cuDevicePrimaryCtxRetain, (td_cu_context * a, td_cu_ordinal b), (a, b), NULL, (uint64_t)b, 1)                    \
    X(cuDevicePrimaryCtxRelease, (td_cu_ordinal a), (a), NULL, (uint64_t)a, -1)                                        \
    X(cuCtxPushCurrent, (td_cu_context a), (a), NULL, 0, 0)                                                            \
    X(cuCtxPopCurrent, (td_cu_context * a), (a), NULL, 0, -2)                                                          \
    X(cuCtxGetDevice, (td_cu_ordinal * a), (a), NULL, 0, 0)                                                            \
    X(cuStreamGetCtx, (td_cu_stream a, td_cu_context * b), (a, b), NULL, (uintptr_t)a, 0)                              \
    X(cuPointerGetAttribute, (void *a, int b, td_cu_pointer c), (a, b, c), NULL, c, 0)                                 \
    X(cuMemGetAddressRange, (td_cu_pointer * a, size_t * b, td_cu_pointer c), (a, b, c), NULL, c, 0)                   \
    X(cuMemAlloc, (td_cu_pointer * a, size_t b), (a, b), NULL, b, 1)                                                   \
    X(cuMemFree, (td_cu_pointer a), (a), NULL, a, -1)                                                                  \
    X(cuMemHostAlloc, (void **a, size_t b, unsigned c), (a, b, c), NULL, b, 1)                                         \
    X(cuMemFreeHost, (void *a), (a), NULL, 0, -1)                                                                      \
    X(cuMemHostRegister, (void *a, size_t b, unsigned c), (a, b, c), NULL, b, 1)                                       \
    X(cuMemHostUnregister, (void *a), (a), NULL, 0, -1)                                                                \
    X(cuMemHostGetDevicePointer, (td_cu_pointer * a, void *b, unsigned c), (a, b, c), NULL, 0, 0)                      \
    X(cuMemcpyHtoD, (td_cu_pointer a, const void *b, size_t c), (a, b, c), NULL, c, 0)                                 \
    X(cuMemcpyDtoH, (void *a, td_cu_pointer b, size_t c), (a, b, c), NULL, c, 0)                                       \
    X(cuImportExternalMemory, (td_cu_external_memory * a, const td_cu_memory_handle *b), (a, b), b, 0, 1)              \
    X(cuExternalMemoryGetMappedBuffer,                                                                                 \
      (td_cu_pointer * a, td_cu_external_memory b, const td_cu_memory_buffer *c), (a, b, c), c, 0, 1)                  \
    X(cuDestroyExternalMemory, (td_cu_external_memory a), (a), NULL, 0, -1)                                            \
    X(cuImportExternalSemaphore, (td_cu_external_semaphore * a, const td_cu_semaphore_handle *b), (a, b), b, 0, 1)     \
    X(cuDestroyExternalSemaphore, (td_cu_external_semaphore a), (a), NULL, 0, -1)                                      \
    X(cuWaitExternalSemaphoresAsync,                                                                                   \
      (const td_cu_external_semaphore *a, const td_cu_semaphore_value *b, unsigned c, td_cu_stream d), (a, b, c, d),   \
      b, (uintptr_t)d, 0)                                                                                              \
    X(cuSignalExternalSemaphoresAsync,                                                                                 \
      (const td_cu_external_semaphore *a, const td_cu_semaphore_value *b, unsigned c, td_cu_stream d), (a, b, c, d),   \
      b, (uintptr_t)d, 0)                                                                                              \
    X(cuStreamCreate, (td_cu_stream * a, unsigned b), (a, b), NULL, b, 1)                                              \
    X(cuStreamCreateWithPriority, (td_cu_stream * a, unsigned b, int c), (a, b, c), NULL, b, 1)                        \
    X(cuCtxGetStreamPriorityRange, (int *a, int *b), (a, b), NULL, 0, 0)                                               \
    X(cuMemsetD8Async, (td_cu_pointer a, unsigned char b, size_t c, td_cu_stream d), (a, b, c, d), NULL, c, 0)         \
    X(cuStreamDestroy, (td_cu_stream a), (a), NULL, (uintptr_t)a, -1)                                                  \
    X(cuStreamQuery, (td_cu_stream a), (a), NULL, (uintptr_t)a, 0)                                                     \
    X(cuModuleLoadDataEx, (td_cu_module * a, const void *b, unsigned c, int *d, void **e), (a, b, c, d, e), NULL, 0,   \
      1)                                                                                                               \
    X(cuModuleUnload, (td_cu_module a), (a), NULL, 0, -1)                                                              \
    X(cuModuleGetFunction, (td_cu_function * a, td_cu_module b, const char *c), (a, b, c), c, 0, 0)                    \
    X(cuFuncGetAttribute, (int *a, int b, td_cu_function c), (a, b, c), NULL, 0, 0)                                    \
    X(cuFuncSetAttribute, (td_cu_function a, int b, int c), (a, b, c), NULL, 0, 0)                                     \
    X(cuFuncLoad, (td_cu_function a), (a), NULL, 0, 0)                                                                 \
    X(cuLaunchKernel,                                                                                                  \
      (td_cu_function a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, unsigned i,           \
       td_cu_stream j, void **k, void **l),                                                                            \
      (a, b, c, d, e, g, h, i, j, k, l),                                                                               \
      (&(td_cu_launch){.grid = {b, c, d}, .block = {e, g, h}, .shared_bytes = i, .stream = j}), (uintptr_t)j, 0)       \
    X(cuLaunchKernelEx, (const td_cu_launch *a, td_cu_function b, void **c, void **d), (a, b, c, d), a, 0, 0)          \
    X(cuMemcpyHtoDAsync, (td_cu_pointer a, const void *b, size_t c, td_cu_stream d), (a, b, c, d), NULL, c, 0)         \
    X(cuMemcpyDtoHAsync, (void *a, td_cu_pointer b, size_t c, td_cu_stream d), (a, b, c, d), NULL, c, 0)               \
    X(cuEventCreate, (td_cu_event * a, unsigned b), (a, b), a, b, 1)                                                   \
    X(cuEventDestroy, (td_cu_event a), (a), NULL, 0, -1)                                                               \
    X(cuEventRecord, (td_cu_event a, td_cu_stream b), (a, b), a, (uintptr_t)b, 0)                                      \
    X(cuEventQuery, (td_cu_event a), (a), NULL, 0, 0)                                                                  \
    X(cuEventSynchronize, (td_cu_event a), (a), NULL, 0, 0)                                                            \
    X(cuStreamWaitEvent, (td_cu_stream a, td_cu_event b, unsigned c), (a, b, c), NULL, (uintptr_t)a, 0)                \
    X(cuGraphCreate, (td_cu_graph * a, unsigned b), (a, b), NULL, 0, 1)                                                \
    X(cuGraphDestroy, (td_cu_graph a), (a), NULL, 0, -1)                                                               \
    X(cuGraphAddKernelNode,                                                                                            \
      (td_cu_graph_node * a, td_cu_graph b, const td_cu_graph_node *c, size_t d, const td_cu_kernel_node *e),          \
      (a, b, c, d, e), e, 0, 0)                                                                                        \
    X(cuGraphAddDependencies_v2,                                                                                       \
      (td_cu_graph a, const td_cu_graph_node *b, const td_cu_graph_node *c, const td_cu_graph_edge *d, size_t e),      \
      (a, b, c, d, e), d, 0, 0)                                                                                        \
    X(cuGraphKernelNodeSetAttribute, (td_cu_graph_node a, int b, const td_cu_launch_value *c), (a, b, c), NULL, 0, 0)  \
    X(cuGraphAddExternalSemaphoresWaitNode,                                                                            \
      (td_cu_graph_node * a, td_cu_graph b, const td_cu_graph_node *c, size_t d, const td_cu_semaphore_node *e),       \
      (a, b, c, d, e), e->values, 0, 0)                                                                                \
    X(cuGraphAddExternalSemaphoresSignalNode,                                                                          \
      (td_cu_graph_node * a, td_cu_graph b, const td_cu_graph_node *c, size_t d, const td_cu_semaphore_node *e),       \
      (a, b, c, d, e), e->values, 0, 0)                                                                                \
    X(cuGraphInstantiateWithFlags, (td_cu_graph_exec * a, td_cu_graph b, unsigned long long c), (a, b, c), NULL, 0, 1) \
    X(cuGraphExecDestroy, (td_cu_graph_exec a), (a), NULL, 0, -1)                                                      \
    X(cuGraphExecKernelNodeSetParams, (td_cu_graph_exec a, td_cu_graph_node b, const td_cu_kernel_node *c), (a, b, c), \
      c, 0, 0)                                                                                                         \
    X(cuGraphExecExternalSemaphoresWaitNodeSetParams,                                                                  \
      (td_cu_graph_exec a, td_cu_graph_node b, const td_cu_semaphore_node *c), (a, b, c), c->values, 0, 0)             \
    X(cuGraphExecExternalSemaphoresSignalNodeSetParams,                                                                \
      (td_cu_graph_exec a, td_cu_graph_node b, const td_cu_semaphore_node *c), (a, b, c), c->values, 0, 0)             \
    X(cuGraphLaunch, (td_cu_graph_exec a, td_cu_stream b), (a, b), NULL, (uintptr_t)b, 0)                              \
    X(cuTensorMapEncodeTiled,                                                                                          \
      (void *a, int b, unsigned c, void *d, const uint64_t *s, const uint64_t *t, const unsigned *u,                   \
       const unsigned *v, int w, int x, int y, int z),                                                                 \
      (a, b, c, d, s, t, u, v, w, x, y, z), NULL, (uintptr_t)d, 0)

#endif
