/* What tests of networks share: a session on the CPU with a small one, and runs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_NETWORK_RIG_H
#define TD_TESTS_NETWORK_RIG_H

#include <pthread.h>
#include <stdatomic.h>

#include "interop/base.h"
#include "tandem/tandem.h"
#include "tests/cases.h"
#include "tests/plugin/network_util.h"

enum { CHANNELS = NETWORK_CHANNELS };
enum { X = NETWORK_X, Y = NETWORK_Y, SUM = NETWORK_SUM, BINDINGS = NETWORK_BINDINGS };

typedef struct rig {
    tandem_session *s;
    tandem_model model;
    tandem_instance instance;
    tandem_mem mem; /* of x, y and sum, for so many rows: */
    uint32_t rows;
    float *x, *y, *sum;
    int32_t length;
    tandem_view views[BINDINGS];
    pthread_mutex_t lock; /* of the log */
    unsigned errors;
    char last[1024];
    atomic_int live, calls; /* of the session's allocator */
    atomic_int left;        /* allocations until all fail; below 0: none does */
} rig;

/* A session; with the model, with an instance that is prepared for `rows`, and x of ones. */
void open_session(rig *r);
void open_rig(rig *r, uint32_t rows, const tandem_instance_desc *desc);
/* The same with another network of these bindings and uniforms. */
void open_rig_of(rig *r, const char *text, uint32_t rows, const tandem_instance_desc *desc);
void close_rig(rig *r);

tandem_instance new_instance(rig *r, const tandem_instance_desc *desc);
/* A run of r->instance with the rig's rows and length. */
tandem_job new_run(rig *r);
tandem_ticket submit(rig *r, const tandem_job *job);
tandem_job_report ended(rig *r, tandem_ticket ticket);
/* Submits, waits until it is DONE. */
void run(rig *r, const tandem_job *job);

void must(rig *r, tandem_status status);
/* That a call was refused with this status, one log line, and a text that has `text` in it. */
void check_refusal(rig *r, unsigned before, tandem_status expected, const char *text,
                   tandem_status got, int line);
unsigned errors_of(rig *r);
#define REFUSED(r, expected, text, call)                                                           \
    do {                                                                                           \
        const unsigned before_ = errors_of(r);                                                     \
        check_refusal(r, before_, TANDEM_ERROR_##expected, text, call, __LINE__);                  \
    } while (0)
char *say(const char *format, ...) __attribute__((format(TD_PRINTF, 1, 2)));

extern const test_cases network_refusals_cases, network_runs_cases, network_files_cases,
    network_threads_cases, network_language_cases;

#endif
