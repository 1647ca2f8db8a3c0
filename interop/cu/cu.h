/* CUDA without math: the driver API opened at run time, a device found by its UUID, memory and timelines from descriptors.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * No CUDA header is needed to build this or to use it. Everything runs on the device's primary context, or on one of the
 * caller's; every function makes it current for its own duration (push and pop), so any thread may call.
 */
#ifndef TANDEM_CU_H
#define TANDEM_CU_H

#include "interop/os/adapter.h"

typedef struct td_cu_device td_cu_device;

/* Calls of the driver, by what they cost: a frame after warm-up must not copy, allocate or wait on the host. `sleeps` are
 * those of helper threads in td_stream_wait(). */
typedef struct td_cu_counts {
    uint64_t copies, allocations, host_waits, launches, sleeps, all;
} td_cu_counts;

typedef struct td_cu_info {
    char name[128];
    uint8_t uuid[16];
    uint32_t sm;              /* 90 for compute capability 9.0 */
    uint32_t driver_version;  /* of CUDA, as 13000 */
    uint32_t multiprocessors;
    uint64_t memory_bytes;
    td_adapter adapter;
    bool timelines; /* CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED */
    bool tensor_maps; /* the driver encodes them */
} td_cu_info;

/* Opens td_library_cuda and the device with this UUID (NULL: the first). UNSUPPORTED when there is no driver, or no such
 * device: `why` says which, and for a foreign UUID prints both. */
tandem_status td_cu_device_open(const uint8_t *uuid, const td_log *log, td_cu_device **out, char *why,
                                size_t why_bytes);
/* The device of a CUcontext of the caller's, and in it: it is never destroyed here, and must outlive the object. `stream`: a
 * CUstream of that context, with which streams that are made on the device put their submits in order (exec.h); NULL: none.
 * ARG for a context that cannot be made current, or a stream of another one. */
tandem_status td_cu_device_open_in(void *context, void *stream, const td_log *log, td_cu_device **out, char *why,
                                   size_t why_bytes);
/* What td_cu_device_info() would say, without a context on the device. */
tandem_status td_cu_device_query(const uint8_t *uuid, td_cu_info *info, char *why, size_t why_bytes);
/* The same of every device there is: of as many as *count is at most, and then is. */
tandem_status td_cu_device_list(td_cu_info *list, uint32_t *count, char *why, size_t why_bytes);
/* Accepts NULL and half-built objects; releases the primary context, leaves a caller's alone. Objects made from it must be gone. */
void td_cu_device_close(td_cu_device **device);
const td_cu_info *td_cu_device_info(const td_cu_device *device);
/* How the device chooses among the streams of all objects on it, from now on: of what is ready the more urgent goes first,
 * block by block; what runs is not interrupted. A hint, and only between streams that have one. */
typedef enum td_cu_urgency { TD_CU_ANY, TD_CU_LATER, TD_CU_SOON, TD_CU_NOW } td_cu_urgency;
void td_cu_device_urgency(td_cu_device *device, td_cu_urgency urgency);
td_cu_counts td_cu_device_counts(const td_cu_device *device);
/* Bytes of device memory that this device object holds by td_cu_mem_alloc(). */
uint64_t td_cu_device_allocated_bytes(const td_cu_device *device);

/* Memory. `address` is what kernels use; `host` is set where the host can use it too. */
typedef struct td_cu_mem {
    uint64_t address;
    void *host;
    uint64_t bytes;
    void *external; /* CUexternalMemory of an import */
    int kind;       /* 0: none, 1: device allocation, 2: import, 3: registered host memory, 4: pinned host allocation,
                       5: the caller's */
} td_cu_mem;

/* Device memory. */
tandem_status td_cu_mem_alloc(td_cu_device *device, uint64_t bytes, td_cu_mem *out, char *why, size_t why_bytes);
/* Pinned host memory, mapped for the device. */
tandem_status td_cu_mem_alloc_host(td_cu_device *device, uint64_t bytes, td_cu_mem *out, char *why, size_t why_bytes);
/* Memory exported by Vulkan, as what td_opaque says: allocation_bytes is VkMemoryAllocateInfo.allocationSize, [offset, offset +
 * bytes) the range to map. `fd` is duplicated: it stays the caller's. */
tandem_status td_cu_mem_import_fd(td_cu_device *device, int fd, uint64_t allocation_bytes, bool dedicated,
                                  uint64_t offset, uint64_t bytes, td_cu_mem *out, char *why, size_t why_bytes);
/* Page-aligned host memory of the caller, registered and mapped. */
tandem_status td_cu_mem_register(td_cu_device *device, void *host, uint64_t bytes, td_cu_mem *out, char *why,
                                 size_t why_bytes);
/* Device memory of the caller's, which stays that: ARG unless all of it lies in one allocation on this device, and in this
 * context where memory has one; UNSUPPORTED for host memory. */
tandem_status td_cu_mem_wrap(td_cu_device *device, uint64_t address, uint64_t bytes, td_cu_mem *out, char *why,
                             size_t why_bytes);
/* Fills device memory with zeros, and waits for it: what another had there must not be seen. */
tandem_status td_cu_mem_clear(td_cu_device *device, const td_cu_mem *mem, char *why, size_t why_bytes);
/* Undoes any of these, in the right order; zeroes *mem. */
void td_cu_mem_free(td_cu_device *device, td_cu_mem *mem);

/* A timeline semaphore exported by Vulkan, as what td_opaque says; `fd` is duplicated. */
typedef struct td_cu_timeline {
    void *external; /* CUexternalSemaphore */
} td_cu_timeline;
tandem_status td_cu_timeline_import_fd(td_cu_device *device, int fd, td_cu_timeline *out, char *why, size_t why_bytes);
void td_cu_timeline_free(td_cu_device *device, td_cu_timeline *timeline);

/* Synchronous copies for set-up and tests, never in a frame. */
tandem_status td_cu_copy_to_device(td_cu_device *device, uint64_t address, const void *from, uint64_t bytes);
tandem_status td_cu_copy_to_host(td_cu_device *device, void *to, uint64_t address, uint64_t bytes);

#endif
