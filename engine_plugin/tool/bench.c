/* `tandem bench`: which bench, and what they share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/bench.h"

#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* clang-format off */
const char *const tool_bench_help =
    "usage: tandem bench handover|attention|linear|daemon [options]\n"
    "\n"
    "  handover   what it costs to have a job between two pieces of Vulkan work, on each rung there is\n"
    "  attention  how fast the kernels are on this GPU, beside cuDNN's in the same process\n"
    "  linear     the same of linear layers, beside cuBLASLt's\n"
    "  daemon     what it costs to compute in tandemd instead, and how it shares the device\n"
    "\n"
    "Exit status 1, too, if a lane or a kernel that is there failed, if a result was wrong, or if nothing\n"
    "was measured.\n";

const char *const tool_bench_handover_help =
    "usage: tandem bench handover [options]\n"
    "\n"
    "handover: frames of three steps - Vulkan writes a payload, a job transforms it, Vulkan checks it -\n"
    "on every rung that this machine has, and on floors, in turn in one run:\n"
    "  floor: Vulkan alone     the middle step is a Vulkan dispatch, too: one submit with barriers\n"
    "  floor: bare timelines   the job's kernels between two Vulkan semaphores, without a session\n"
    "  floor: CUDA alone       the same on a stream, the host spins until they have run\n"
    "  inline, recorded        tandem_record() in the engine's own command buffer, one submit\n"
    "  inline, submitted       tandem_submit() on the engine's queue; the other rungs likewise\n"
    "Payloads: 64 B (one row; no dispatch, no stamps, only its bytes). 256 KiB, 8 MiB, 64 MiB: an f16\n"
    "attention that is a gather: Q's rows are Hadamard codes of random indices, K the codes, so O's row\n"
    "is exactly the row of V that Q names; every element is checked in every frame. demo: its own 8b job,\n"
    "960x540 (320x180 without a GPU) on random tensors; in every frame all of O is checked to be finite,\n"
    "64 rows against float32. Data are new in every frame, O is NaN before. Columns, medians in us:\n"
    "  gap in, gap out  the GPU between the producer's end and the job's begin, and back; where all is in\n"
    "                   one command buffer by Vulkan's timestamps around the job's own launches\n"
    "  round p50, p99   one frame at a time, from the first call to the fence of the last submit\n"
    "  3 in flight      time a frame\n"
    "  CPU calls        CPU time of the calling thread in all calls of a frame but waits\n"
    "  job              the job itself, by the GPU's clock (Vulkan alone: its middle dispatch)\n"
    "Throughput by all-Vulkan's compares with Vulkan's own frame whose middle takes as long as the job.\n"
    "Then: how late the host learns of a point and what part of a core that takes, submits left out; a\n"
    "small job on two threads of the CPU by itself, with two cores for it and the engine: quiet, with no\n"
    "job, and beside a thread that keeps one of the cores busy, all of it and from the call until it\n"
    "begins, until it is computed, until the call that waits is back; and the CPU time of enqueueing 20\n"
    "launches.\n"
    "  --json F          everything as JSON, with least and most\n"
    "  --payloads LIST   of 64B, 256K, 8M, 64M, demo, with commas between them; default: all\n"
    "  --rounds N        1 to 1000; default 7\n"
    "  --round-ms N      about how long a lane's single frames take in a round, and its frames in flight;\n"
    "                    1 to 10000; default 30\n"
    "  --no-waiting      not how late the host learns\n"
    "  --quick           2 rounds of 10 ms\n"
    "  --strict          exit status 1 if a target was missed\n";

const char *const tool_bench_attention_help =
    "usage: tandem bench attention [options]\n"
    "\n"
    "attention: N(0,1) in fp16, dense tensors [batch, heads, n, d]. Contenders, each in turn:\n"
    "  kernel      the attention kernel alone, on operands that are quantised already\n"
    "  inline      8b's kernel for command buffers (48 KB of shared memory), on the same operands; 9.0\n"
    "  e2e         end to end, fp16 in, fp16 out: smoothing, quantisation, kernel\n"
    "  cudnn       cuDNN's fp16 scaled dot product attention by its backend API, where libcudnn.so.9\n"
    "              can be opened (LD_LIBRARY_PATH): the kernel that its own heuristics put first\n"
    "Ours run through the executor (CUDA graphs where it has them) and are timed by stamps of the GPU's\n"
    "clock, cuDNN's are calls in a CUDA graph between two events. Medians by two protocols, printed with\n"
    "their clocks, as their ratios differ. sustained: a contender has the GPU for --run-ms at a time, so\n"
    "its clock is what its own power allows. one call at a time: all take turns at one clock, 11 times.\n"
    "Small shapes: up to 20 calls one after the other. Whatever fits into the L2 is rotated through\n"
    "tensors that do not. TFLOPS = 4 batch heads n n d / time, half if causal.\n"
    "Outputs are filled with NaN before each run and checked after the last: no NaN left, some rows\n"
    "against float64.\n"
    "  --json F         everything as JSON; what has been measured, if it is ended early\n"
    "  --backend cuda|cpu\n"
    "                   cuda (default), or cpu, which is there to try the bench\n"
    "  --only large|small\n"
    "                   batch 4, 32 heads, or batch 1 and 4, 8 or 16 heads; default: both\n"
    "  --n LIST         sequence lengths of 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, with commas\n"
    "                   between them; default: all\n"
    "  --dim LIST       head dims, of 64, 128, and 80, 96 (batch 4, n 4096); default: all\n"
    "  --causal yes|no|both\n"
    "                   default: both\n"
    "  --precision LIST  of 8b, f16, 4b, auto; or none: cuDNN alone; default: 8b,f16,auto\n"
    "  --tuning F       what auto goes by: a file of `tandem tune`; default: this build's own table\n"
    "  --rounds N       1 to 1000; default 5\n"
    "  --run-ms N       how long a contender has the GPU at a time, small shapes a tenth; 0: one call;\n"
    "                   to 60000; default 250\n"
    "  --no-cudnn       without cuDNN\n"
    "  --quick          fewer shapes, 3 rounds of 20 ms\n"
    "  --strict         exit status 1 if a target was missed\n";

const char *const tool_bench_linear_help =
    "usage: tandem bench linear [options]\n"
    "\n"
    "linear: y = x w^T, x and y fp16, x [rows][ins], w [outs][ins] fp16, int8 or GGUF's blocks. Layers\n"
    "are named rows x outs x ins. Contenders, each in turn, several calls one after the other:\n"
    "  stream    the kernel that plans take on a CUDA stream\n"
    "  inline    the one for command buffers: 47 KB of shared memory, no clusters, no tensor maps\n"
    "  form      with --forms: each kernel that there is for the layer\n"
    "  cublaslt  fp16 weights alone, where libcublasLt.so.13 or .12 can be opened (LD_LIBRARY_PATH):\n"
    "            of the algorithms that its heuristics name the fastest\n"
    "Ours run through the executor (CUDA graphs) and are timed by stamps of the GPU's clock, cuBLASLt's\n"
    "are a CUDA graph between two events. Medians. Layers of up to 64 rows have other weights in each\n"
    "call, which do not fit into the L2 together; their rate is compared with that of copying 1 GiB,\n"
    "read and written. y is NaN before, some elements are checked against float64. Projections of Q, K\n"
    "and V follow: y alone, with codes for attention by statistics of its own and by given ones, and\n"
    "with y and attention's prologue behind it.\n"
    "  --json F         everything as JSON\n"
    "  --forms          each kernel, too\n"
    "  --only TEXT      layers whose names have it, as \"x 4096 q4_k\"\n"
    "  --rounds N       2 to 1000, of which the first does not count; default 5\n"
    "  --run-ms N       how long a contender has the GPU at a time, 1 to 60000; default 20\n"
    "  --no-cublaslt    without cuBLASLt\n"
    "  --quick          two layers, 3 rounds of 5 ms\n"
    "  --strict         exit status 1 if a target was missed\n";

const char *const tool_bench_daemon_help =
    "usage: tandem bench daemon [options]\n"
    "\n"
    "daemon: a tandemd of its own, beside this program. First the hand-over as above (64 B; and 8 MiB,\n"
    "without a GPU 256 KiB), in this process and through tandemd in turn, on the same rung, every frame\n"
    "checked. Then eight clients, processes of their own: one with jobs of 2 x 64k tokens, seven with\n"
    "128 x 1k (without a GPU 2k and 4 x 256), as fast as they can, each 200th job a frame that is\n"
    "checked: what each gets of the device (tandemd promises equal parts), and all of them beside one\n"
    "alone. Last the seven at 60 frames a second with the long jobs in the background: how long a\n"
    "frame's job waits.\n"
    "  --json F         everything as JSON\n"
    "  --socket PATH    a tandemd that runs already; nobody else should use it meanwhile\n"
    "  --rounds N       of the hand-over, 1 to 1000; default 9\n"
    "  --quick          2 rounds of 10 ms, clients for 1 s\n"
    "  --strict         exit status 1 if a target was missed\n";
/* clang-format on */

int tool_bench(int argc, char **argv)
{
    if (argc < 1)
        return tool_usage("bench", "no bench given: must be handover, attention, linear or daemon");
    if (!strcmp(argv[0], "handover"))
        return bench_handover(argc - 1, argv + 1);
    if (!strcmp(argv[0], "linear"))
        return bench_linear(argc - 1, argv + 1);
    if (!strcmp(argv[0], "attention"))
        return bench_attention(argc - 1, argv + 1);
    if (!strcmp(argv[0], "daemon"))
        return bench_daemon(argc - 1, argv + 1);
    return tool_usage("bench", "unknown bench \"%s\": must be handover, attention, linear or daemon", argv[0]);
}

void bench_add(bench_series *s, double value)
{
    if (s->count == s->capacity) {
        const size_t capacity = s->capacity ? 2 * s->capacity : 64;
        double *values = realloc(s->values, capacity * sizeof *values);
        if (!values)
            return;
        s->values = values;
        s->capacity = capacity;
    }
    s->values[s->count++] = value;
}

void bench_free(bench_series *s)
{
    free(s->values);
    *s = (bench_series){0};
}

static int rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_at(const bench_series *s, double p)
{
    double *sorted = s->count ? malloc(s->count * sizeof *sorted) : NULL;
    if (!sorted)
        return NAN;
    memcpy(sorted, s->values, s->count * sizeof *sorted);
    qsort(sorted, s->count, sizeof *sorted, rising);
    const double rank = ceil(p * (double)s->count);
    const double value = sorted[rank < 1 ? 0 : (size_t)rank - 1];
    free(sorted);
    return value;
}

json_t *bench_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *bench_json(const bench_series *s)
{
    if (!s->count)
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:I}", "median", bench_number(bench_median(s)), "min",
                     bench_number(bench_at(s, 0)), "max", bench_number(bench_at(s, 1)), "p99",
                     bench_number(bench_at(s, 0.99)), "count", (json_int_t)s->count);
}

void bench_expect(bench_targets *targets, double value, bool at_least, double limit, const char *format, ...)
{
    if (targets->count == BENCH_TARGETS)
        return;
    bench_target *t = &targets->items[targets->count++];
    va_list args;
    va_start(args, format);
    vsnprintf(t->text, sizeof t->text, format, args);
    va_end(args);
    t->value = value;
    t->limit = limit;
    t->at_least = at_least;
}

static bool is_met(const bench_target *t)
{
    return t->at_least ? t->value >= t->limit : t->value <= t->limit;
}

uint32_t bench_print_targets(const bench_targets *targets)
{
    uint32_t met = 0, missed = 0;
    for (uint32_t i = 0; i < targets->count; i++) {
        const bench_target *t = &targets->items[i];
        if (isnan(t->value))
            continue;
        if (!met && !missed)
            printf("\ntargets\n");
        printf("  %-6s %s: %.4g (%s %.4g)\n", is_met(t) ? "met" : "MISSED", t->text, t->value,
               t->at_least ? "at least" : "at most", t->limit);
        if (is_met(t))
            met++;
        else
            missed++;
    }
    printf("verdict: %u targets met, %u missed, %u not measured here\n", met, missed, targets->count - met - missed);
    return missed;
}

int bench_status(const char *bench, uint64_t measured, uint32_t missed, bool strict)
{
    if (!measured)
        return tool_fail(bench, "nothing was measured");
    if (strict && missed)
        return tool_fail(bench, "--strict: %u target%s missed", (unsigned)missed, missed == 1 ? " was" : "s were");
    return TOOL_OK;
}

json_t *bench_targets_json(const bench_targets *targets)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < targets->count; i++) {
        const bench_target *t = &targets->items[i];
        json_array_append_new(list, json_pack("{s:s, s:o, s:s, s:f, s:o}", "target", t->text, "value",
                                              bench_number(t->value), "must_be", t->at_least ? "at least" : "at most",
                                              "limit", t->limit, "met",
                                              isnan(t->value) ? json_null() : json_boolean(is_met(t))));
    }
    return list;
}

struct bench_nvml {
    void *library, *device;
    int (*clock)(void *device, int kind, unsigned *mhz);
    int (*power)(void *device, unsigned *milliwatts);
    int (*shutdown)(void);
    char driver[96];
};

bench_nvml *bench_nvml_open(const uint8_t *uuid)
{
    char text[48];
    bench_nvml *n = calloc(1, sizeof *n);
    if (!n)
        return NULL;
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)(void) = n->library ? (int (*)(void))dlsym(n->library, "nvmlInit_v2") : NULL;
    n->shutdown = n->library ? (int (*)(void))dlsym(n->library, "nvmlShutdown") : NULL;
    if (!init || !n->shutdown || init() != 0) {
        n->shutdown = NULL;
        bench_nvml_close(n);
        return NULL;
    }
    int (*find)(const char *, void **) = (int (*)(const char *, void **))dlsym(n->library, "nvmlDeviceGetHandleByUUID");
    int (*driver)(char *, unsigned) = (int (*)(char *, unsigned))dlsym(n->library, "nvmlSystemGetDriverVersion");
    n->clock = (int (*)(void *, int, unsigned *))dlsym(n->library, "nvmlDeviceGetClockInfo");
    n->power = (int (*)(void *, unsigned *))dlsym(n->library, "nvmlDeviceGetPowerUsage");
    char *at = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%02x%s", uuid[i], i == 3 || i == 5 || i == 7 || i == 9 ? "-" : "");
    if (!find || find(text, &n->device) != 0)
        n->device = NULL;
    if (!driver || driver(n->driver, sizeof n->driver) != 0)
        n->driver[0] = 0;
    return n;
}

void bench_nvml_close(bench_nvml *n)
{
    if (!n)
        return;
    if (n->shutdown)
        n->shutdown();
    if (n->library)
        dlclose(n->library);
    free(n);
}

bench_power bench_nvml_read(bench_nvml *n)
{
    enum { SM = 1, MEMORY = 2 };
    bench_power p = {0};
    if (!n || !n->device)
        return p;
    if (n->clock) {
        n->clock(n->device, SM, &p.sm_mhz);
        n->clock(n->device, MEMORY, &p.memory_mhz);
    }
    if (n->power)
        n->power(n->device, &p.milliwatts);
    return p;
}

const char *bench_nvml_driver(const bench_nvml *n)
{
    return n ? n->driver : "";
}

json_t *bench_report(const char *bench, const char *device, const char *driver)
{
    char date[32];
    const time_t now = time(NULL);
    struct tm parts;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    return json_pack("{s:s, s:s, s:s, s:s}", "bench", bench, "device", device, "driver", driver, "date", date);
}

int bench_save(json_t *report, const char *path)
{
    const bool ok = report && (!path || json_dump_file(report, path, JSON_INDENT(1) | JSON_REAL_PRECISION(7)) == 0);
    json_decref(report);
    return ok ? TOOL_OK : tool_fail("bench", "--json \"%s\" could not be written", path ? path : "");
}

uint64_t bench_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double bench_normal(uint64_t *state)
{
    const double a = ((double)(bench_random(state) >> 11) + 0.5) * 0x1p-53;
    const double b = ((double)(bench_random(state) >> 11) + 0.5) * 0x1p-53;
    return sqrt(-2 * log(a)) * cos(6.283185307179586 * b);
}

void bench_sleep_ns(uint64_t ns)
{
    struct timespec rest = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (nanosleep(&rest, &rest)) {
    }
}
