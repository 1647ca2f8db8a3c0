/* What the tests of the inline rung share: a GPU, or the fake one, a stream on it, cases in Vulkan memory, and a
 * session that several frames are in flight in.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_INLINE_RIG_H
#define TANDEM_TESTS_INLINE_RIG_H

#include "engine_plugin/exec/exec.h"
#include "tandem/vulkan.h"
#include "tests/cases.h"
#include "tests/kernels/attention_util.h"
#include "tests/plugin/fake_nvx.h"

#define LIMIT_NS 20000000000ull
#define STORAGE                                                                                                        \
    (VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT)
#define F fake_nvx_state

extern vku gpu;
extern td_vk *vk;
extern td_stream *stream;
extern uint32_t sm;
extern char why[400];
void must(tandem_status status);
td_inline_desc desc_here(void);
td_stream *new_stream(void);

typedef struct vk_case {
    td_vk_mem mems[TU_VIEWS], scratch;
    uint64_t views[TU_VIEWS];
} vk_case;

void vk_case_make(vk_case *it, const tu_case *of);
void vk_case_free(vk_case *it);
td_stream_submit submit_of(const vk_case *it, const td_plan *plan);
void run(const td_stream_submit *submit);
/* What the plan of `of` must give, guard included: of the same cubin on a CUDA stream, or of the CPU twin. */
void expected(const tu_case *of, tu_tensor *o, tu_tensor *lse);
void same(const char *what, const vk_case *got, int view, const tu_tensor *wanted);
void check_case(const tu_shape *shape, const char *name);
void check_direct(const tu_shape *shape, const char *kernel);

enum { FRAMES = 3, ROWS = 64, DIM = 32, ELEMENTS = ROWS * DIM };

typedef struct frame_data {
    float q[ELEMENTS], k[ELEMENTS], v[ELEMENTS], o[ELEMENTS];
} frame_data;

typedef struct flight {
    vku_buffer in, out; /* frame_data */
    VkCommandPool pool;
    VkCommandBuffer commands[3];
    VkFence fence;
    tandem_mem mem;
    VkBuffer engines; /* on mem, where the session has none */
    tandem_ticket ticket;
    frame_data wanted;
} flight;

/* A session, with a flight for each of its frames. */
typedef struct world {
    tandem_session *s;
    tandem_info info;
    char text[400], log[1024];
    int locked; /* by the session: never twice */
    uint32_t family;   /* whose queue it locks */
    unsigned locks;
    tandem_timeline engines, ours;
    VkSemaphore engines_semaphore, our_semaphore;
    flight flights[FRAMES];
} world;

#define OK(call)                                                                             \
    do {                                                                                     \
        const tandem_status status_ = (call);                                                \
        if (status_ != TANDEM_OK)                                                            \
            fail_msg("%s: %s (%s)", #call, tandem_status_text(status_), w.log);              \
    } while (0)

/* barriers.c's. */

void submit_commands(VkCommandBuffer commands);

/* flights.c's. */

extern world w;
tandem_status create_session(vku *on, uint32_t rung, bool queue);
tandem_mem new_mem(uint64_t bytes);
void enter(void);
void leave(void);
tandem_job job_on(tandem_mem mem);
/* New data each frame, and what must come of it. */
void fill(flight *f, uint64_t seed);
void check_flight(flight *f, uint64_t frame);
void begin_commands(VkCommandBuffer commands);
void record_copies(flight *f, VkCommandBuffer first, VkCommandBuffer last, bool in);
void submit_flight(flight *f, uint32_t first, uint32_t count, vku_point wait, vku_point signal, VkFence fence);
void wait_flight(flight *f);
tandem_job_report report_of(tandem_ticket ticket);
uint64_t frames_here(void);
void check_done(const flight *f);

/* bench.c's. */

void test_bench(void **state);
/* *state: a file of weights, or NULL. */
void test_bench_minilm(void **state);

/* Each file's, in the order in which they run. */
extern const test_cases inline_plans_cases, inline_barriers_cases, inline_streams_cases,
    inline_failures_cases, inline_frames_cases, inline_recorded_cases, inline_sessions_cases,
    inline_networks_cases, inline_stamps_cases, inline_example_cases;

#endif
