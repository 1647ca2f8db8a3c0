/* What the tests of streams over a fake driver share: a device and a stream on it, of either kind, and a plan.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_STREAM_RIG_H
#define TANDEM_TESTS_STREAM_RIG_H

#include "engine_plugin/exec/exec.h"
#include "tests/cases.h"
#include "tests/interop/fake_cuda.h"
#include "tests/interop/faults.h"

typedef tandem_status (*create_fn)(td_cu_device *device, const td_log *log, td_stream **out, char *why, size_t why_bytes);
extern const create_fn kinds[2];
extern const char *const kind_names[2];

enum { BYTES = 4096, SLOTS = 3 };

extern const uint64_t limit_ns;
extern td_plan plan;

/* A plan of the test's own, freed where its block ends. */
#define COPY(name)                                             \
    td_plan name __attribute__((cleanup(td_plan_free))) = {0}; \
    assert_true(td_plan_copy(&name, &plan))

extern td_cu_device *device;
extern td_stream *stream;
extern unsigned warnings;
extern const td_log log_here;
void must(tandem_status status, const char *why);
void open_stream(int kind);
void close_stream(void);
/* A plan of kernels that the fake takes for its own. */
int make_plan(void **state);
uint64_t submit_plan(const td_plan *of, const uint64_t *views, uint32_t slot);

/* Each file's, in the order in which they run. */
extern const test_cases stream_submits_cases, stream_kernels_cases, stream_copies_cases,
    stream_failures_cases;

#endif
