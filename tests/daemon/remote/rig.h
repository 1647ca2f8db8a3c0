/* What the tests of remote sessions share: a tandemd, sessions in it, jobs and what they make in this process, and
 * a Vulkan device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_REMOTE_RIG_H
#define TANDEM_TESTS_REMOTE_RIG_H

#include <pthread.h>

#include "tandem/vulkan.h"
#include "tests/cases.h"
#include "tests/interop/vk_util.h"
#include "tests/limits.h"
#include "tests/plugin/daemon_util.h"

#define MS 1000000ull
#define PATIENCE LIMITS_PATIENCE_NS
#define SOON LIMITS_SOON_NS

extern char folder[64], socket_path[96], config_path[96], log_path[96], model_path[96], program[4096];
extern pid_t daemon_pid;
void sleep_ms(unsigned ms);
void start_daemon(const char *config);
void end_daemon(int with);

typedef struct side {
    tandem_session *s;
    tandem_info info;
    tandem_timeline engines, ours;
    uint64_t value; /* that the last job signals */
    _Atomic unsigned errors, warnings;
    pthread_mutex_t lock;
    char last[1000];
} side;

/* Whether the last line of an error says so: of a call that failed, as a job's line is logged behind its report. */
bool says(side *x, const char *words);
tandem_timeline new_timeline(side *x, tandem_signaller signaller);
void open_bounded(side *x, const char *socket, const tandem_vulkan *on, uint32_t rung, uint64_t wait_bound_ns);
void open_side(side *x, const char *socket, const tandem_vulkan *on, uint32_t rung);
void close_side(side *x);
tandem_mem new_mem(side *x, uint64_t bytes, void **host);
tandem_ticket submit(side *x, tandem_job *job);
tandem_job_report ended(side *x, tandem_ticket ticket, uint64_t within_ns);
void run(side *x, tandem_job *job);

typedef struct shape {
    uint32_t dtype, batch, heads, kv_heads, q_len, kv_len, dim, precision, causal;
    uint32_t gap; /* elements behind each row */
    bool lse;
} shape;

extern const shape shapes[];
/* A job of which everything lies in one mem; *bytes is what it takes, *in of that what is read. */
tandem_job job_of(const shape *s, tandem_mem mem, uint64_t *in, uint64_t *bytes);
/* Numbers between -2 and 2 in each of the three types, the rest 0x55. */
void fill(void *data, uint64_t in, uint64_t bytes, uint32_t dtype);
/* What the same job leaves in its mem when it is computed here. The caller frees it. */
void *expected(const shape *s, uint64_t *bytes);
/* A job that takes seconds on one core. */
tandem_job long_job(side *x, tandem_mem *mem);
void check_same(side *x);
extern vku vk;
extern tandem_vulkan vulkan;
bool open_vulkan(const char *without);
void close_vulkan(void);

/* jobs.c's. */

/* Until the session has a daemon again. */
void await_return(side *x, tandem_job *job);

/* Each file's, in the order in which they run. */
extern const test_cases remote_results_cases, remote_jobs_cases, remote_restarts_cases, remote_networks_cases,
    remote_reloads_cases;

#endif
