/* The GPU of test_cuda, a stream on it, and cases of attention that run there and by the CPU twin.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_KERNELS_CUDA_RIG_H
#define TD_TESTS_KERNELS_CUDA_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine_plugin/exec/exec.h"
#include "interop/vk/vk.h"
#include "tests/kernels/attention_compare.h"
#include "tests/kernels/each.h"

enum { THREADS = 16 };
static const uint64_t run_limit_ns = 20000000000u;

extern td_cu_device *device;
extern td_stream *stream;
extern td_stream *own_stream; /* of this GPU's own kernels */
extern const td_cubin *image; /* what `stream` runs; NULL: this GPU's own kernels */
extern bool graphs;           /* `stream` is of td_stream_create_graph() */
extern bool quick;

uint64_t wait_for(uint64_t sequence);
void must(tandem_status status, const char *why);
/* On `stream`; fails the test unless it ends well. */
void run_to_the_end(const td_stream_submit *submit);
td_target target_here(void);

/* --- A case on the GPU --- */

typedef struct gpu_case {
    td_cu_mem mems[TU_VIEWS], scratch;
    uint64_t views[TU_VIEWS];
    unsigned char *host_scratch;
} gpu_case;

void upload(td_cu_mem *mem, const void *data, size_t bytes);
void gpu_case_free(gpu_case *it);
/* Runs the plan of `of` on poisoned outputs and scratch. o and lse receive what the GPU wrote, guard included. */
void gpu_case_run(gpu_case *it, const tu_case *of, tu_tensor *o, tu_tensor *lse);

/* A stride that broadcasts, a value somewhere: applied to the tensors before the case runs. */
typedef void (*spoil_fn)(tu_case *);

void show(const char *name, const tu_shape *s);
void check_case_on(td_target target, const tu_shape *shape, spoil_fn spoil);
void check_case(const tu_shape *shape, spoil_fn spoil);
/* Of float32, and of the types that have a prologue of two records. */
void check(const tu_shape *shape);

void compare_probe(uint32_t unit, uint32_t tiles, void *const *arrays, const td_plan *plan, bool proven);

/* --- Each kernel once: each.c --- */

extern te_cases kernel_cases;
void each_kernel(td_target stream_target);

/* --- With Vulkan: vulkan.c --- */

extern td_vk *vk; /* NULL: there is none on this GPU */
bool open_vulkan(void);
void close_vulkan(void);

/* A timeline in both APIs. */
typedef struct meeting {
    VkSemaphore vulkan;
    td_cu_timeline cuda;
} meeting;

meeting meeting_new(uint64_t initial);
void meeting_free(meeting *it);

int count_fds(void);
/* What `test_cuda --peer SOCKET` does. */
int be_peer(int socket);

void test_bench(void **state);
void test_bench_copies(void **state);
void test_bench_enqueue(void **state);
void test_bench_small(void **state);
void test_bench_wait(void **state);
void test_cancel(void **state);
void test_causal_and_groups(void **state);
void test_codes(void **state);
void test_commit(void **state);
void test_copies(void **state);
void test_descriptors(void **state);
void test_direct(void **state);
void test_each(void **state);
void test_frame_counts(void **state);
void test_granularities(void **state);
void test_head_dims(void **state);
void test_inline_wgmma(void **state);
void test_int4_equals_int8(void **state);
void test_launch_features(void **state);
void test_lengths(void **state);
void test_many_heads(void **state);
void test_memory(void **state);
void test_odd_values(void **state);
void test_open_and_close(void **state);
void test_peer_dies(void **state);
void test_pieces(void **state);
void test_prepare(void **state);
void test_probe(void **state);
void test_refusals(void **state);
void test_replay(void **state);
void test_smoothing(void **state);
void test_split_wgmma(void **state);
void test_stuck_stream(void **state);
void test_types_and_layouts(void **state);
void test_vulkan_frames(void **state);
void test_vulkan_leaks_nothing(void **state);
void test_walk_wgmma(void **state);
void test_wide_blocks(void **state);

#endif
