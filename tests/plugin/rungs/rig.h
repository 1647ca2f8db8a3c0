/* What the tests of rungs share: devices that lack something, sessions on them, jobs and the oracle.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_RUNGS_RIG_H
#define TANDEM_TESTS_RUNGS_RIG_H

#include "tandem/vulkan.h"
#include "tests/cases.h"
#include "tests/interop/vk_util.h"

#define LONG_NS 60000000000ull
#define MEMORY_FD "VK_KHR_external_memory_fd"
#define SEMAPHORE_FD "VK_KHR_external_semaphore_fd"
#define MEMORY_HOST "VK_EXT_external_memory_host"
#define INLINE_KERNELS "VK_NVX_binary_import"
#define TIMELINE_FEATURE "timelineSemaphore"

/* What a wrapped vkGetInstanceProcAddr does to the driver. */
typedef enum disguise { HIDES_FUNCTIONS = 1, NO_BUFFER_EXPORT = 2, NO_TIMELINE_EXPORT = 4 } disguise;

/* A device, what it lacks and how, what is asked for, and what it comes to with CUDA and without. 0: nothing asked for;
 * it cannot be had. */
typedef struct ground {
    const char *name;
    const char *without[6];    /* neither enabled nor named */
    const char *unsaid[3];     /* enabled, but not among enabled_extensions */
    const char *hidden[3];     /* functions that are not found */
    unsigned disguises;
    uint32_t backend, asked;
    tandem_rung cuda, cpu;
    const char *reason_cuda, *reason_cpu;
    bool same; /* for the session as another one: frames will do */
} ground;

extern const ground grounds[];
extern const int ground_count;

typedef struct rig {
    const ground *on;
    vku vk;
    tandem_vulkan vulkan;
    const char *extensions[INTEGRATION_EXTENSIONS];
    tandem_session_desc desc;
    tandem_session *s;
    tandem_info info;
    bool semaphores;
    tandem_timeline back; /* with semaphores: which frames are back */
    uint64_t back_value;
    pthread_mutex_t lock;
    unsigned errors, bounced;
    char last[600], text[600];
} rig;

/* Everything but the session; skips where there is no Vulkan at all. */
void prepare(rig *r, const ground *on);
void close_rig(rig *r);
/* Whether CUDA has the device at all: what a session comes to that asks for nothing but CUDA and copies. */
bool has_cuda(rig *r);
/* False where this ground's rung cannot be had here, which was then refused as it must be. */
bool open_rig(rig *r, const ground *on);

/* Where the views of a job lie in up to two mems. */
typedef enum layout {
    ONE_MEM,     /* one after the other */
    TWO_MEMS,    /* read from one, written to the other, both with bytes of others around them */
    INTERLEAVED, /* rows of Q and O in turns, and bytes of others between them */
    LAYOUTS
} layout;

typedef struct shape {
    uint32_t heads, rows, keys, dim, precision, frames;
    layout layout;
} shape;

enum { IN_FLIGHT = 3, WARM = 9, GUARD = 96 };

typedef struct slot {
    tandem_mem mems[2];
    tandem_mem_vulkan vulkan[2];
    vku_buffer up[2], down[2];
    VkCommandBuffer up_commands, down_commands;
    VkFence up_fence, down_fence;
    tandem_job job;
    tandem_ticket ticket;
    uint64_t value;
} slot;

const ground *ground_named(const char *name);

/* jobs.c's. */

void fill(void *data, uint64_t bytes, uint64_t seed);
uint64_t bytes_of(uint32_t heads, uint32_t rows, uint32_t dim);
/* The views of a job, as if its mems were 1 and 2; returns how long they are. */
void lay_out(const shape *sh, tandem_attention *a, uint64_t bytes[2]);
tandem_view *const *views_of(tandem_attention *a, tandem_view *list[5]);
/* The oracle's O and lse, written over what `want` holds of the two mems. */
void compute(const tandem_attention *a, const tandem_mem mems[2], unsigned char *want[2]);
/* What is written is near the oracle, everything else what it was, to the bit. */
void check(const rig *r, const char *what, const tandem_attention *a, const tandem_mem mems[2],
           unsigned char *const got[2], unsigned char *const want[2], const uint64_t bytes[2], double bound);
tandem_mem new_mem(rig *r, uint64_t bytes);
tandem_timeline new_timeline(rig *r, tandem_signaller signaller);
tandem_ticket submit_job(rig *r, const tandem_job *job);
void expect_done(rig *r, tandem_ticket ticket);
/* What the host writes and reads itself: tandem_mem_host() is what jobs see, on every rung where there is such. */
void on_the_host(rig *r, tandem_mem mem, unsigned char *host);

/* slots.c's. */

/* The commands of a slot are recorded once and submitted each frame. */
void make_slot(rig *r, slot *f, const tandem_attention *views, const uint64_t bytes[2]);
void free_slot(rig *r, slot *f);
/* The engine's part of a frame up to the job: the data goes up and is handed over. */
void frame_up(rig *r, slot *f, tandem_timeline engines, uint64_t n);
/* Without semaphores the engine says itself that its commands are done. */
void frame_handed_over(rig *r, slot *f, tandem_timeline engines);
/* From the job to the engine's host: the result comes back and down. No fence is waited for while the session signals a
 * semaphore: the layer's old version loses itself in that. */
void frame_down(rig *r, slot *f, tandem_timeline ours);
void begin_points(rig *r, tandem_timeline *engines, tandem_timeline *ours);
void end_points(rig *r, tandem_timeline engines, tandem_timeline ours);

/* Each file's, in the order in which they run. */
extern const test_cases rungs_frames_cases, rungs_mems_cases, rungs_sessions_cases;

#endif
