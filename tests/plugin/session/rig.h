/* What the tests of sessions share: a session on each kind of ground that there is, small jobs, and a model's file.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_SESSION_RIG_H
#define TANDEM_TESTS_SESSION_RIG_H

#include <pthread.h>

#include "tandem/plugin.h"
#include "tests/cases.h"
#include "tests/interop/vk_util.h"
#include "tests/limits.h"

#define MS 1000000ull
#define LONG_NS (180000 * MS) /* under sanitizers, on a machine that does other things too */
#define STUCK_NS (20 * MS) /* how long a job is watched that must not move */
#define DEFAULT_BOUND_NS (20000 * MS)

/* What a session may stand on. */
typedef enum rig_kind {
    ON_CPU,          /* host memory, CPU */
    ON_CUDA,         /* pinned host memory, CUDA */
    ON_VULKAN,       /* whatever is best there */
    ON_VULKAN_CPU,   /* the CPU in memory shared with Vulkan */
    ON_VULKAN_HALF,  /* Vulkan without exported semaphores */
    ON_TIMELINE,     /* the rung `timeline` and no other */
    ON_COPY,         /* the rung `copy` and no other */
    KINDS
} rig_kind;

extern const char *const kind_names[KINDS];

typedef struct logbook {
    pthread_mutex_t lock;
    unsigned errors, details;
    char last[1024], last_warning[1024], last_detail[1024]; /* lines of level ERROR, WARN and DEBUG */
} logbook;

typedef struct rig {
    rig_kind kind;
    vku vk;
    bool has_vk;
    tandem_vulkan vulkan;
    tandem_session_desc desc;
    tandem_session *s;
    tandem_info info;
    logbook log;
} rig;

unsigned errors_of(rig *r);
extern bool validates;
/* Everything but the session. False where this machine has not what it takes. */
bool rig_prepare(rig *r, rig_kind kind);
void rig_close(rig *r);
bool rig_start(rig *r);
bool rig_open(rig *r, rig_kind kind);
void each_kind(void (*test)(rig *r));
/* Memory is the engine's and the session's own, both. */
void each_kind_that_shares(void (*test)(rig *r));

enum {
    HEADS = 2,
    KV_HEADS = 1,
    ROWS = 48,
    KEYS = 40,
    DIM = 32,
    Q_SIZE = HEADS * ROWS * DIM,
    K_SIZE = KV_HEADS * KEYS * DIM
};
enum {
    K_AT = Q_SIZE,
    V_AT = K_AT + K_SIZE,
    O_AT = V_AT + K_SIZE,
    LSE_AT = O_AT + Q_SIZE,
    FLOATS = LSE_AT + HEADS * ROWS
};
#define MEM_BYTES 36864u
_Static_assert(FLOATS * sizeof(float) <= MEM_BYTES, "the mem holds the job");

tandem_mem new_mem(rig *r, uint64_t bytes);
tandem_timeline new_timeline(rig *r, tandem_signaller signaller, uint64_t initial);
tandem_view view_at(tandem_mem mem, uint64_t at, uint32_t heads, uint32_t rows, uint32_t dim);
tandem_job new_job(tandem_mem mem);
/* A job that takes seconds on one core; its mem is not filled. */
tandem_job long_job(rig *r, tandem_mem *mem);
double noise(uint64_t *seed);
void fill(float *data, uint64_t seed);
/* Relative L1 of O, and the largest error of lse, against the oracle. */
void check_output(const tandem_job *job, const float *data, double bound);
tandem_job_report report_of(rig *r, tandem_ticket ticket);
tandem_job_report ended(rig *r, tandem_ticket ticket);
tandem_ticket submit(rig *r, const tandem_job *job);
uint64_t value_of(rig *r, tandem_timeline timeline);
bool gpu_signals(const rig *r);
/* Bytes into and out of a mem: through its host address, or by a copy on the engine's queue. */
void transfer(rig *r, tandem_mem mem, void *data, uint64_t bytes, bool to_mem);
void check_refusal(rig *r, unsigned before, tandem_status expected, const char *text, tandem_status got,
                   int line);

#define REFUSED(r, expected, text, ...)                                         \
    do {                                                                        \
        const unsigned before_ = errors_of(r);                                  \
        tandem_status got = TANDEM_OK;                                          \
        __VA_ARGS__;                                                            \
        check_refusal(r, before_, TANDEM_ERROR_##expected, text, got, __LINE__); \
    } while (0)

char *say(const char *format, ...) __attribute__((format(TD_PRINTF, 1, 2)));
void sleep_ns(uint64_t ns);
/* A model's file, which is there from make_model() to remove_model(). */
extern char model_path[];
int make_model(void **state);
int remove_model(void **state);

/* bench.c's. */

int bench(const char *only);

/* Each file's, in the order in which they run. */
extern const test_cases session_library_cases, session_refusals_cases, session_results_cases,
    session_jobs_cases, session_destruction_cases, session_memory_cases, session_threads_cases,
    session_networks_cases, session_device_cases, session_images_cases, session_waits_cases,
    session_retire_cases, session_cuda_cases;

#endif
