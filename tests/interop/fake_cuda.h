/* A CUDA driver without a GPU, for failure paths only: objects are counted, streams are threads, but no kernel computes
 * anything save the time stamps. What passes on it says that errors are met, not that CUDA works.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TEST_FAKE_CUDA_H
#define TANDEM_TEST_FAKE_CUDA_H

#include <stdatomic.h>

#include "interop/cu/driver.h"
#include "interop/vk/table.h"
#include "kernels/plan.h"

enum { FAKE_CUDA_DEVICES = 3 };

typedef struct fake_cuda {
    int device_count;
    uint8_t uuids[FAKE_CUDA_DEVICES][16];
    td_adapter adapter; /* of each; not known: none, as on Linux */
    int retained_ordinal;       /* of the last primary context */
    const td_vk_table *vulkan;  /* where the semaphores behind its timelines live */
    VkDevice device;
    int static_shared_bytes; /* that every kernel has */
    int multiprocessors;     /* of each device; 0: 4 */
    atomic_bool holds;       /* kernels that are launched one by one meanwhile take until it is false */
    atomic_int live;      /* contexts, memory, imports, semaphores, streams and modules that were not given back */
    atomic_int abandoned; /* those that only the end of their context took with it */
} fake_cuda;

extern fake_cuda fake_cuda_driver;

/* The driver's functions, by the names of interop/cu/driver.h. */
const td_cu_table *fake_cuda_table(void);

/* What benches and examples look up by themselves, by its symbol; NULL: no such function. */
void *fake_cuda_of_benches(const char *symbol);

/* A context of a caller's own on a device, current in this thread until the next cuCtxPopCurrent(). There is one for each
 * device, it lives for ever, and what is left in it counts as live. */
td_cu_context fake_cuda_context(td_cu_ordinal ordinal);

/* Something on a stream that takes until fake_cuda_driver.holds is false. */
void fake_cuda_hold(td_cu_stream stream);

/* What is alive in a context. */
int fake_cuda_live_in(td_cu_context context);

/* How many contexts are current in this thread. */
int fake_cuda_depth(void);

/* The context fails for good, as by a kernel's fault: when this returns nothing runs in it, and nothing will. */
void fake_cuda_die(void);

/* The same by a kernel's wild pointer: from here on all that the context is asked for fails, too. */
void fake_cuda_fault(void);

/* The kernels that were launched, one by one or in graphs, but for stamps: the last FAKE_CUDA_LAUNCHES of them since the
 * counter was set to 0, by number % FAKE_CUDA_LAUNCHES. */
enum { FAKE_CUDA_LAUNCHES = 64, FAKE_CUDA_ONLY_BYTES = 320 };
typedef struct fake_cuda_launch {
    char entry[40];
    unsigned grid[3];
    _Alignas(16) unsigned char params[TD_PARAM_BYTES];
} fake_cuda_launch;
extern atomic_uint fake_cuda_launched;
extern fake_cuda_launch fake_cuda_launches[FAKE_CUDA_LAUNCHES];

/* A kernel on that stream that never ends. */
void fake_cuda_hang(td_cu_stream stream);

/* An fd that stands for a timeline semaphore, as the fake imports it: a memfd that holds the handle. */
int fake_cuda_semaphore_fd(VkSemaphore semaphore);

#endif
