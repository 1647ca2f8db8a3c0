/* What the tests of pitfalls share: a session on each ground, on drivers that are watched, and what was asked of
 * them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_PITFALLS_RIG_H
#define TANDEM_TESTS_PITFALLS_RIG_H

#include "tandem/plugin.h"
#include "tests/cases.h"
#include "tests/interop/fake_cuda.h"
#include "tests/interop/faults.h"
#include "tests/interop/vk_util.h"
#include "tests/limits.h"

#define MS 1000000ull
#define LONG_NS (60000 * MS)
#define OPAQUE_MEMORY ((uint64_t)VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT)
#define OPAQUE_SEMAPHORE ((uint64_t)VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT)
enum { LAST_PITFALL = 34, ROWS = 32, DIM = 32, VIEW_BYTES = ROWS * DIM * 4, MEM_BYTES = 2 * VIEW_BYTES };

typedef enum ground { ON_HOST, ON_VULKAN_CPU, ON_CUDA, ON_TIMELINES } ground;

/* The session of a test, and what it stands on. */
typedef struct world {
    bool gpu;        /* the real drivers */
    bool one_by_one; /* no graphs: each launch, wait and signal is a call of its own */
    bool dma_bufs; /* the device seems to import them */
    bool two_families; /* of queues, as it seems: which validation would find out */
    ground on;
    vku vk;
    bool has_vk;
    vku_options options;
    tandem_vulkan vulkan;
    tandem_session_desc desc;
    tandem_session *s;
    tandem_info info;
    char text[400]; /* of the last failure of tandem_session_create() */
    unsigned locked;
    uint32_t locked_family, locked_index; /* as lock_queue2 was told */
} world;

extern world w;

/* What was asked for, in order. */
typedef struct event {
    const char *call;
    uint64_t handle;
    uint64_t handles, usage, type, bytes, offset, flags; /* as far as the call has them */
    uint32_t family_count, families[2];
    bool dedicated;
    fault_barrier barrier;
} event;

typedef struct events {
    pthread_mutex_t lock;
    event list[8192];
    unsigned count;
} events;

extern events seen;
void forget(void);
unsigned count_of(const char *call);
/* The n-th call of that name, from 0; it must be there. */
const event *event_of(const char *call, unsigned n);
void assert_order(const char *const *calls, size_t count);
bool prepare(ground on);
tandem_status create(void);
void leave(void);
void enter(ground on);
tandem_mem new_mem(uint64_t bytes);
tandem_timeline new_timeline(tandem_signaller signaller);
tandem_job new_job(tandem_mem mem, tandem_point wait, tandem_point signal);
tandem_ticket submit(const tandem_job *job);
tandem_job_report state_of(tandem_ticket ticket);
tandem_job_report ended(tandem_ticket ticket);
void sleep_ms(unsigned ms);
uint64_t value_of(tandem_timeline timeline);
/* One job from the engine's point to ours. */
void run_frame(tandem_mem mem, tandem_timeline engines, tandem_timeline ours, uint64_t value);

/* Which file tests which. */
#define PITFALLS_OF_IMPORTS(X) X(01) X(03) X(04) X(05) X(06) X(07) X(08) X(09) X(10) X(11) X(12) X(13)
#define PITFALLS_OF_SEMAPHORES(X) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(22)
#define PITFALLS_OF_QUEUES(X) X(23) X(24) X(25) X(26) X(27) X(28) X(31) X(34)
#define PITFALLS(X) PITFALLS_OF_IMPORTS(X) PITFALLS_OF_SEMAPHORES(X) PITFALLS_OF_QUEUES(X)

/* A device whose kernels wait for the test: the fake one, wherever this runs. */
bool prepare_fake(ground on);

/* Each file's, in the order in which they run. */
extern const test_cases pitfalls_imports_cases, pitfalls_semaphores_cases, pitfalls_queues_cases,
    pitfalls_copies_cases, pitfalls_frames_cases, pitfalls_engines_cases;

#endif
