/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tests/plugin/stream/rig.h"

const create_fn kinds[2] = {td_stream_create, td_stream_create_graph};
const char *const kind_names[2] = {"cu_stream", "cu_graph"};

const uint64_t limit_ns = 5000000000u;

td_plan plan;

td_cu_device *device;
td_stream *stream;
unsigned warnings;

static void on_log(void *user, int level, const char *text)
{
    (void)user;
    warnings += level <= TD_LOG_WARN && strstr(text, "one by one");
}

const td_log log_here = {.fn = on_log};

void must(tandem_status status, const char *why)
{
    if (status)
        fail_msg("status %d: %s", (int)status, why);
}

void open_stream(int kind)
{
    char why[256] = "";

    fault_cuda(FAULT_FAKE_CUDA);
    must(td_cu_device_open(NULL, &log_here, &device, why, sizeof why), why);
    must(kinds[kind](device, &log_here, &stream, why, sizeof why), why);
}

void close_stream(void)
{
    td_stream_destroy(&stream, limit_ns);
    td_cu_device_close(&device);
}

int make_plan(void **state)
{
    const tandem_attention op = fault_attention(TANDEM_DTYPE_F32, 32, TANDEM_PRECISION_F16);
    td_target target = td_target_for_sm(90);
    char why[256] = "";

    (void)state;
    target.twin = true;
    return td_plan_attention(&op, &target, &plan, NULL, why, sizeof why) != TANDEM_OK;
}

uint64_t submit_plan(const td_plan *of, const uint64_t *views, uint32_t slot)
{
    const td_stream_submit submit = {.plan = of, .views = views, .scratch = 4096, .slot = slot, .label = "frame"};
    uint64_t sequence = 0;
    bool signalled;
    char why[256] = "";

    must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
    return sequence;
}
