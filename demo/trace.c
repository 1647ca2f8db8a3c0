/* The frames of both APIs on one clock, for a browser's about:tracing or ui.perfetto.dev.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "demo/output.h"

enum { LANE_VULKAN = 1, LANE_SESSION = 2, LANE_HAND_OVER = 3 };

struct demo_trace {
    FILE *file;
    bool any;
};

static void event(demo_trace *t, json_t *e)
{
    char *text = e ? json_dumps(e, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    if (text)
        fprintf(t->file, "%s\n%s", t->any ? "," : "", text);
    t->any = t->any || text;
    free(text);
    json_decref(e);
}

static void name_lane(demo_trace *t, int lane, const char *name)
{
    event(t, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", "thread_name", "ph", "M", "pid", 1, "tid", lane, "args",
                       "name",
                       name));
}

demo_trace *demo_trace_open(const char *path, const tandem_info *info, const char *vulkan_device)
{
    char lane[320];
    demo_trace *t = calloc(1, sizeof *t);
    if (t)
        t->file = fopen(path, "w");
    if (!t || !t->file) {
        demo_fail("cannot write %s", path);
        free(t);
        return NULL;
    }
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", t->file);
    event(t, json_pack("{s:s, s:s, s:i, s:{s:s}}", "name", "process_name", "ph", "M", "pid", 1, "args", "name",
                       "tandem-demo"));
    snprintf(lane, sizeof lane, "Vulkan: %s", vulkan_device);
    name_lane(t, LANE_VULKAN, lane);
    snprintf(lane, sizeof lane, "%s: %s", info->backend == TANDEM_BACKEND_CUDA ? "CUDA" : "CPU", info->device);
    name_lane(t, LANE_SESSION, lane);
    name_lane(t, LANE_HAND_OVER, "between the two");
    return t;
}

void demo_trace_frame(demo_trace *t, const demo_frame_result *frame)
{
    for (int i = 0; i < DEMO_STAGES; i++) {
        const bool between = i == DEMO_TO || i == DEMO_BACK;
        const int lane = i == DEMO_ATTENTION ? LANE_SESSION : between ? LANE_HAND_OVER : LANE_VULKAN;
        event(t, json_pack("{s:s, s:s, s:s, s:f, s:f, s:i, s:i, s:{s:I}}", "name", demo_stage_names[i], "cat", "frame",
                           "ph", "X",
                           "ts", (double)frame->at_ns[i] * 1e-3, "dur", frame->stage_ms[i] * 1e3, "pid", 1, "tid", lane,
                           "args", "frame", (json_int_t)frame->index));
    }
    if (frame->submit_ns)
        event(t, json_pack("{s:s, s:s, s:s, s:s, s:f, s:i, s:i, s:{s:I}}", "name", "job submitted", "cat", "frame",
                           "ph", "i", "s",
                           "t", "ts", (double)frame->submit_ns * 1e-3, "pid", 1, "tid", LANE_HAND_OVER, "args", "frame",
                           (json_int_t)frame->index));
}

bool demo_trace_close(demo_trace *t)
{
    if (!t)
        return true;
    fputs("\n]}\n", t->file);
    const bool ok = !ferror(t->file);
    const bool closed = fclose(t->file) == 0;
    free(t);
    return (ok && closed) || demo_fail("cannot write the trace");
}
