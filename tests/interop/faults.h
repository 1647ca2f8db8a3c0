/* Faults under the API: the n-th call that libtandem makes of Vulkan, of CUDA or of the C library fails. The same hooks
 * show what it asked for.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * C library: the linker's --wrap, so that only what is linked into the test program itself is met: libtandem's objects,
 * while drivers and libc go their own way. Vulkan: through vkGetInstanceProcAddr. CUDA: through dlopen and dlsym;
 * behind them is the driver, or the fake of tests/interop/fake_cuda.h.
 */
#ifndef TANDEM_TEST_FAULTS_H
#define TANDEM_TEST_FAULTS_H

#include <pthread.h>

#include "interop/cu/driver.h"
#include "interop/vk/table.h"
#include "tests/interop/fake_kernels.h"

/* What may fail; or'ed. A look-up fails by finding nothing. */
typedef enum fault_kind {
    FAULT_VULKAN = 1,
    FAULT_VULKAN_LOOKUP = 2,
    FAULT_CUDA = 4,
    FAULT_CUDA_LOOKUP = 8,
    FAULT_LIBC = 16
} fault_kind;

typedef struct fault_plan {
    unsigned kinds;
    const char *call; /* only calls of this name; NULL: all */
    unsigned n;       /* which call among those fails, from 1; 0: none */
    bool sticky;      /* so do all after it */
    VkResult vulkan;  /* what failing calls return */
    td_cu_result cuda;
} fault_plan;

/* From here on calls count. */
void fault_arm(const fault_plan *plan);
/* Returns how many calls of the armed kinds there were. */
unsigned fault_disarm(void);
/* The call that failed first since fault_arm(), or NULL. */
const char *fault_tripped(void);

/* With TANDEM_TEST_SHAKE=SEED in the environment one call in 16 to a driver, and one command in 16 of a fake stream,
 * takes longer: other orders of threads than a quiet machine shows. */
void fault_shake(unsigned most_us);

/* What is alive of what libtandem made: nothing may be left when a session is gone. */
typedef struct fault_live {
    int vulkan, cuda, blocks, mappings, threads, fds;
} fault_live;
fault_live fault_count_live(void);

/* close() of an fd that was none; nothing but a fault of ours. */
int fault_wrong_closes(void);

/* Each call as it is made, before it is carried out. `info` is the create info, the barrier, or the CUDA descriptor (of
 * cuLaunchKernel, too, a td_cu_launch);
 * `handle` what is destroyed, freed, launched on or duplicated. May be called from any thread. */
typedef void (*fault_observer)(const char *call, const void *info, uint64_t handle);
void fault_observe(fault_observer observer);

/* A CmdPipelineBarrier with one buffer. */
typedef struct fault_barrier {
    VkPipelineStageFlags src_stage, dst_stage;
    VkBufferMemoryBarrier buffer;
} fault_barrier;

/* Vulkan: give this to the session, with the engine's own behind it. */
void fault_vulkan(PFN_vkGetInstanceProcAddr gipa);
VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL fault_gipa(VkInstance instance, const char *name);
const td_vk_table *fault_vulkan_real(void);
PFN_vkGetMemoryFdKHR fault_get_memory_fd(void);
/* Held around calls on semaphores: the validation layer (1.3.239) stalls for 10 s where one thread signals what another
 * reads. */
extern pthread_mutex_t fault_semaphores;

/* How the device is to look: bits. */
typedef enum fault_disguise {
    FAULT_TIMELINES = 1,     /* lavapipe's semaphores seem exportable, to the fake CUDA */
    FAULT_NO_TIMELINES = 2,  /* no semaphore is exportable */
    FAULT_WANTS_DEDICATED = 4,
    FAULT_DEDICATED_ONLY = 8,
    FAULT_ROUNDS_UP = 16, /* allocations are larger than their buffers */
    FAULT_NO_GRAPHS = 32, /* CUDA's driver is too old for graphs */
    FAULT_TWO_FAMILIES = 128, /* the device seems to have one more of the first queue family: not under validation */
    FAULT_DMA_BUF = 256, /* the device seems to import dma-bufs: it gets memory of its own instead */
    FAULT_DAMAGED_IMAGE = 64, /* the kernels in the library are not as they were built; to the fake CUDA */
} fault_disguise;
void fault_disguise_as(unsigned bits);

/* CUDA: nothing (as on a machine without a driver), the fake, or the real one with hooks. */
typedef enum fault_cuda_kind { FAULT_NO_CUDA, FAULT_FAKE_CUDA, FAULT_REAL_CUDA } fault_cuda_kind;
void fault_cuda(fault_cuda_kind kind);

/* The kernels that the fake has instead of a small plan's (images as fake_image() makes them); NULL: those again. They stay
 * the caller's. */
void fault_kernels(const td_cubin *kernels);

/* Whether a function of Vulkan or CUDA was ever asked for by name, since the start of the program. */
bool fault_looked_up(const char *part_of_name);
/* How often dlopen() was asked for CUDA. */
int fault_cuda_opened(void);

/* What the linker leaves us for the wrapped functions. */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__real_realloc(void *pointer, size_t bytes);
void __real_free(void *pointer);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, long offset);
int __real_munmap(void *at, size_t bytes);
int __real_memfd_create(const char *name, unsigned flags);
int __real_eventfd(unsigned value, int flags);
int __real_timerfd_create(int clock, int flags);
int __real_posix_fallocate(int fd, long offset, long bytes);
int __real_fcntl(int fd, int command, ...);
int __real_close(int fd);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *user);
int __real_pthread_join(pthread_t thread, void **result);
int __real_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __real_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes);
void *__real_dlopen(const char *name, int flags);
void *__real_dlsym(void *library, const char *name);
const td_cubin *__real_td_cubins(uint32_t *count);

#endif
